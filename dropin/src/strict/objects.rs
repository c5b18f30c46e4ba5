//! Objects that live, and where they were made.

use super::report::Report;
use super::rules::Rule;
use super::sites::{is_of_librdmacm, Site, Sites};
use crate::abi::*;
use crate::peek::peek;
use core::mem::offset_of;
use gdrcore_calls::{Arg, Call, Outcome};
use std::collections::{BTreeMap, HashMap};

/// Most objects that are kept.
const OBJECTS_MAX: usize = 1 << 16;

/// An object.
pub struct Object {
    words: String,
    site: Site,
}

/// Objects by their addresses.
#[derive(Default)]
pub struct Objects(HashMap<usize, Object>);

/// The object that a call makes. Contexts and channels are not watched: they are descriptors, which
/// end with the process. Nor is what is another object under a second name.
pub fn made_by(call: &Call) -> Option<Arg> {
    let is_alias = call.name.contains("import") || call.name == "ibv_qp_to_qp_ex";
    match call.outcome {
        Outcome::New(
            kind @ (Arg::Pd | Arg::Mr | Arg::Mw | Arg::Ah | Arg::Cq | Arg::Srq | Arg::Qp | Arg::Dm),
        ) if !is_alias => Some(kind),
        _ => None,
    }
}

/// Whether a call destroys its first argument.
pub fn is_end(call: &Call) -> bool {
    matches!(
        call.name,
        "ibv_dealloc_pd"
            | "ibv_dereg_mr"
            | "ibv_dealloc_mw"
            | "ibv_destroy_ah"
            | "ibv_destroy_cq"
            | "ibv_destroy_srq"
            | "ibv_destroy_qp"
            | "ibv_free_dm"
    )
}

fn words(kind: Arg, at: usize) -> String {
    let field = |offset| peek::<u32>(at + offset).unwrap_or(0);
    match kind {
        Arg::Qp => format!("QP {:#x}", field(offset_of!(ibv_qp, qp_num))),
        Arg::Mr => {
            let addr = peek::<usize>(at + offset_of!(ibv_mr, addr)).unwrap_or(0);
            let len = peek::<usize>(at + offset_of!(ibv_mr, length)).unwrap_or(0);
            format!("MR of {len} bytes at {addr:#x}")
        }
        Arg::Pd => "PD".into(),
        Arg::Mw => "MW".into(),
        Arg::Ah => "AH".into(),
        Arg::Srq => "SRQ".into(),
        Arg::Dm => "DM".into(),
        _ => format!("CQ of {} entries", field(offset_of!(ibv_cq, cqe))),
    }
}

impl Objects {
    /// Keeps a new one.
    pub fn made(&mut self, kind: Arg, at: usize, site: Site) {
        if self.0.len() < OBJECTS_MAX {
            self.0.insert(at, Object { words: words(kind, at), site });
        }
    }

    /// Takes one out, before its address can be another's.
    pub fn take(&mut self, at: usize) -> Option<Object> {
        self.0.remove(&at)
    }

    /// Puts one back, whose destruction failed.
    pub fn put_back(&mut self, at: usize, object: Object) {
        self.0.insert(at, object);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// A report for each place whose objects are left, but those that librdmacm keeps for itself.
    pub fn left(&self, sites: &Sites) -> Vec<Report> {
        let mut places: BTreeMap<Site, (usize, &str)> = BTreeMap::new();
        for object in self.0.values() {
            places.entry(object.site).or_insert((0, &object.words)).0 += 1;
        }
        let is_its_own = |site| is_of_librdmacm(&sites.frames(site));
        let left = places.into_iter().filter(|(site, _)| !is_its_own(*site));
        left.map(|(site, (n, words))| Report {
            rule: Rule::ObjectLeft,
            words: match n {
                1 => format!("{words} lives at the end of the process"),
                n => format!("{n} objects, {words} among them, live at the end of the process"),
            },
            site,
            noticed: None,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_calls::{Row, CALLS};

    #[test]
    fn each_object_that_is_watched_has_a_call_that_ends_it() {
        let names = |f: &dyn Fn(&Call) -> bool| -> Vec<&str> {
            CALLS.iter().filter(|c| f(c)).map(|c| c.name).collect()
        };
        assert_eq!(names(&is_end).len(), 8);
        assert!(names(&|c| made_by(c).is_some()).contains(&"ibv_reg_dmabuf_mr"));
        assert_eq!(made_by(Row::ibv_import_mr.call()), None);
        assert_eq!(made_by(Row::ibv_open_device.call()), None);
    }

    #[test]
    fn objects_of_one_place_are_one_report() {
        let mut all = Objects::default();
        all.made(Arg::Pd, 8, 1);
        all.made(Arg::Pd, 16, 1);
        all.made(Arg::Ah, 24, 2);
        let pd = all.take(8).unwrap();
        assert_eq!(all.left(&Sites::default()).len(), 2);
        all.put_back(8, pd);
        let left = all.left(&Sites::default());
        assert_eq!((left.len(), left[0].site), (2, 1));
        assert!(left[0].words.starts_with("2 objects, PD among them"), "{}", left[0].words);
    }
}
