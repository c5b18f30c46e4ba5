//! Reads what a program's pointers lead to. A bad pointer is no fault here: the caller gets `None`,
//! and the program's call goes on and returns its own error.

use core::mem::MaybeUninit;
use gdrcore_core::mem::host;
use gdrcore_core::verbs::types::{RecvWr, SendWr, Sge, Wc};

/// Most requests of a list that are read. A list may be a circle.
const REQUESTS_MAX: usize = 1024;

/// Types of which any bytes are a value.
///
/// # Safety
/// Any bytes are a value of it.
pub unsafe trait Bits: Copy {}

macro_rules! bits {
    ($($t:ty),* $(,)?) => {
        $(
            // SAFETY: integers, raw pointers and arrays, structs and unions of them.
            unsafe impl Bits for $t {}
        )*
    };
}
bits! { u8, u16, u32, u64, usize, i32, [u8; 16], [u32; 3], Sge, SendWr, RecvWr, Wc }

/// The value at an address; `None`: null, or no memory.
pub fn peek<T: Bits>(at: usize) -> Option<T> {
    if at == 0 {
        return None;
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the value's own bytes, which are zero.
    let bytes =
        unsafe { core::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    host::fetch(at as u64, bytes).ok()?;
    // SAFETY: any bytes are a value.
    Some(unsafe { value.assume_init() })
}

/// A string of C, of at most as many bytes as the buffer has; `None`: null, or no memory.
pub fn text(at: usize, buffer: &mut [u8]) -> Option<&str> {
    let mut len = 0;
    while len < buffer.len() {
        match peek::<u8>(at.checked_add(len).filter(|_| at != 0)?)? {
            0 => break,
            byte => buffer[len] = byte,
        }
        len += 1;
    }
    core::str::from_utf8(&buffer[..len]).ok()
}

/// Types of requests, which lead to the next one.
pub trait Listed: Bits {
    /// The address of the next one, or null.
    fn next(&self) -> usize;
}
impl Listed for SendWr {
    fn next(&self) -> usize {
        self.next as usize
    }
}
impl Listed for RecvWr {
    fn next(&self) -> usize {
        self.next as usize
    }
}

/// The requests of a list, each with its address.
fn places<T: Listed>(first: usize) -> impl Iterator<Item = (usize, T)> {
    let read = |at: usize| peek::<T>(at).map(|wr| (at, wr));
    core::iter::successors(read(first), move |(_, wr)| read(wr.next())).take(REQUESTS_MAX)
}

/// The requests of a list.
pub fn list<T: Listed>(first: usize) -> impl Iterator<Item = T> {
    places(first).map(|(_, wr)| wr)
}

/// The requests of a list, each with its address. `None`: it is longer than what is read, or does
/// not end.
pub fn whole_list<T: Listed>(first: usize) -> Option<Vec<(usize, T)>> {
    let all: Vec<(usize, T)> = places(first).collect();
    all.last().is_none_or(|(_, wr)| wr.next() == 0).then_some(all)
}
