//! Prints the parts of other values: flags, names of enumerations, numbers of objects.

use super::words::{put, Hex, Line, Put, Words};
use crate::abi::*;
use crate::peek::peek;
use core::mem::offset_of;
use gdrcore_calls::{Arg, Object};

/// The flags of a mask, or the value of an enumeration, by the names of the header.
pub struct Flags(pub u32, pub &'static str, pub fn(u32) -> &'static str);

impl Put for Flags {
    fn put(&self, to: &mut Line) {
        let (mut left, mut unnamed, mut between) = (self.0, 0, "");
        while left != 0 {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            match (self.2)(bit) {
                "?" => unnamed |= bit,
                name => {
                    put!(to, between, self.1, name);
                    between = "|";
                }
            }
        }
        match unnamed {
            0 if between.is_empty() => put!(to, "0"),
            0 => {}
            bits => put!(to, between, Hex(bits)),
        }
    }
}

/// A value of an enumeration, by the header's name.
pub struct Named(pub u32, pub &'static str, pub fn(u32) -> &'static str);

impl Put for Named {
    fn put(&self, to: &mut Line) {
        match (self.2)(self.0) {
            "?" => self.0.put(to),
            name => put!(to, self.1, name),
        }
    }
}

/// Where the number of an object stands in its struct.
pub fn number_of(kind: Arg) -> Option<(Object, usize)> {
    Some(match kind {
        Arg::Pd => (Object::Pd, offset_of!(ibv_pd, handle)),
        Arg::Mr => (Object::Mr, offset_of!(ibv_mr, handle)),
        Arg::Mw => (Object::Mw, offset_of!(ibv_mw, handle)),
        Arg::Ah => (Object::Ah, offset_of!(ibv_ah, handle)),
        Arg::Cq => (Object::Cq, offset_of!(ibv_cq, handle)),
        Arg::Srq => (Object::Srq, offset_of!(ibv_srq, handle)),
        Arg::Dm => (Object::Dm, offset_of!(ibv_dm, handle)),
        Arg::Qp => (Object::Qp, offset_of!(ibv_qp, qp_num)),
        _ => return None,
    })
}

/// The number of the object at an address, which filters know it by.
pub fn number(kind: Arg, at: usize) -> Option<(Object, u32)> {
    let (object, offset) = number_of(kind)?;
    Some((object, peek::<u32>(at.checked_add(offset).filter(|_| at != 0)?)?))
}

/// An object, by its number.
pub fn object(w: &mut Words<'_>, kind: Arg, at: usize) {
    if at == 0 {
        return put!(w, "NULL");
    }
    let named = match number(kind, at) {
        Some((object, n)) => {
            w.names(object, n);
            match object {
                Object::Qp => return put!(w, Hex(n)),
                Object::Pd => ("pd", n),
                Object::Mr => ("mr", n),
                Object::Mw => ("mw", n),
                Object::Ah => ("ah", n),
                Object::Cq => ("cq", n),
                Object::Srq => ("srq", n),
                Object::Dm => ("dm", n),
                Object::Id => ("id", n),
            }
        }
        None => return put!(w, Hex(at)),
    };
    put!(w, named.0, "#", named.1)
}
