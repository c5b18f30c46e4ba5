//! Copies between memory that belongs to the program and our own buffers.
//!
//! The program may change its memory while we read it, free it, unmap it, or truncate the file
//! behind it; a peer process may do so to memory that it shared. Therefore
//! - no Rust reference to program memory is ever formed: addresses are integers, accesses are
//!   assembly, so a racing change is a stale or mixed value but never undefined behaviour;
//! - a fault (SIGSEGV, SIGBUS) inside these accesses is an error, not the end of the process. Each
//!   instruction that touches program memory lies in a range that a table names together with a
//!   landing pad, like the kernel's exception table. The OS layer's signal handler asks [`fixup`]
//!   and moves the program counter there; the copy then returns [`Fault`]. A copy without a fault
//!   costs nothing more.
//!
//! On other targets than Linux on x86-64 and aarch64 (and under Miri) the copies are volatile
//! accesses, [`fixup`] knows nothing, and vanished memory ends the process as it would with plain
//! code.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri)))]
#[macro_use]
mod landings;

#[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
#[path = "host/aarch64.rs"]
mod imp;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[path = "host/x86_64.rs"]
mod imp;
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    not(miri)
)))]
#[path = "host/portable.rs"]
mod imp;

use crate::wire::icrc::Impl;

/// Copies without a CRC, which is taken in a second pass.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod two_passes {
    use super::{fetch, place, Fault};
    use crate::wire::icrc::{crc32_with, Impl};

    pub fn fetch_crc(which: Impl, addr: u64, dst: &mut [u8], state: u32) -> Result<u32, Fault> {
        fetch(addr, dst)?;
        Ok(crc32_with(which, state, dst))
    }

    pub fn place_crc(which: Impl, addr: u64, src: &[u8], state: u32) -> Result<u32, Fault> {
        place(addr, src)?;
        Ok(crc32_with(which, state, src))
    }
}

/// The memory could not be read or written; some of its bytes may have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Asks the processor for the cache line of an address, to write it soon: another core's cache
/// gives it up meanwhile, so that the store need not wait. Any address; nothing is read, and
/// nothing faults. Cost: one instruction.
#[inline(always)]
pub fn expect_write(addr: u64) {
    imp::expect_write(addr);
}

/// Copies `dst.len()` bytes at `addr` into `dst`.
///
/// Any address is allowed: a bad one is a fault, as long as a handler that uses [`fixup`] is
/// installed. A whole copy of 1, 2, 4 or 8 bytes is one access. Where `addr` is aligned to 8, the
/// words of a longer copy are read in one piece each, so that a value which the program stores in
/// one piece is never mixed with the one before. For copies from 512 bytes on this holds only if
/// `dst` is aligned to 8 too: they copy by the fastest way.
///
/// # Errors
/// [`Fault`]; `dst` then holds a mixture.
#[inline(always)]
pub fn fetch(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    if dst.is_empty() {
        return Ok(());
    }
    if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *dst) {
        *word = imp::load8(addr)?.to_ne_bytes();
        return Ok(());
    }
    imp::fetch(addr, dst)
}

/// [`fetch`] for a caller that expects 8 bytes. Another length is copied by a call out of line, so
/// that the caller has its registers for itself.
#[inline(always)]
pub fn fetch_short(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *dst) {
        *word = imp::load8(addr)?.to_ne_bytes();
        return Ok(());
    }
    fetch_apart(addr, dst)
}

#[cold]
#[inline(never)]
fn fetch_apart(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    fetch(addr, dst)
}

/// As [`fetch`], and continues the CRC ([`crate::wire::icrc::crc32`]) from `state` over the bytes
/// as `dst` holds them. Returns the new state. Bulk in one pass, where the machine has carry-less
/// multiplication.
///
/// # Errors
/// [`Fault`]; `dst` then holds a mixture.
#[inline]
pub fn fetch_crc(addr: u64, dst: &mut [u8], state: u32) -> Result<u32, Fault> {
    imp::fetch_crc(Impl::best(), addr, dst, state)
}

/// [`fetch_crc`] by the implementation named, or the best that the machine has if it lacks that
/// one.
///
/// # Errors
/// As [`fetch_crc`].
pub fn fetch_crc_with(which: Impl, addr: u64, dst: &mut [u8], state: u32) -> Result<u32, Fault> {
    imp::fetch_crc(which.min(Impl::best()), addr, dst, state)
}

/// Copies `src` to `addr`.
///
/// A program that polls memory sees this order: bytes in ascending address (in units of up to 64
/// bytes; from 32 KiB on of up to 16 KiB), and the last aligned word (up to 8 bytes) only after all
/// the others, with release. Every byte is written once. A payload that is 1, 2, 4 or 8 bytes
/// long and aligned to its length is written by one access.
///
/// # Errors
/// [`Fault`]; some bytes may be written then.
#[inline(always)]
pub fn place(addr: u64, src: &[u8]) -> Result<(), Fault> {
    if let (Ok(word), 0) = (<&[u8; 8]>::try_from(src), addr & 7) {
        return imp::store8(addr, u64::from_ne_bytes(*word));
    }
    if src.is_empty() {
        return Ok(());
    }
    imp::place(addr, src, last_word(addr, src.len()))
}

/// [`place`] for a caller that expects 8 bytes: around the call that copies others it keeps its
/// values in registers.
#[inline(always)]
pub fn place_short(addr: u64, src: &[u8]) -> Result<(), Fault> {
    if let (Ok(word), 0) = (<&[u8; 8]>::try_from(src), addr & 7) {
        return imp::store8(addr, u64::from_ne_bytes(*word));
    }
    place_apart(addr, src)
}

#[cold]
#[inline(never)]
fn place_apart(addr: u64, src: &[u8]) -> Result<(), Fault> {
    place(addr, src)
}

/// Copies `src` to `addr`, and continues the CRC from `state` over the bytes. Returns the new
/// state. Bulk in one pass, as [`fetch_crc`]. Bytes are seen in ascending address; nothing is said
/// of a last word.
///
/// # Errors
/// [`Fault`]; some bytes may be written then.
#[inline]
pub fn place_crc(addr: u64, src: &[u8], state: u32) -> Result<u32, Fault> {
    imp::place_crc(Impl::best(), addr, src, state)
}

/// [`place_crc`] by the implementation named, or the best that the machine has if it lacks that
/// one.
///
/// # Errors
/// As [`place_crc`].
pub fn place_crc_with(which: Impl, addr: u64, src: &[u8], state: u32) -> Result<u32, Fault> {
    imp::place_crc(which.min(Impl::best()), addr, src, state)
}

/// Copies `len` bytes from one address to another, both of them memory that belongs to programs, in
/// the order of [`place`]. 8 bytes are read in one piece, and written so where `to` is aligned to
/// them.
///
/// # Errors
/// [`Fault`], of either address; some bytes may be written then.
#[inline(always)]
pub fn transfer(from: u64, to: u64, len: usize) -> Result<(), Fault> {
    if len == 8 && to & 7 == 0 {
        return imp::store8(to, imp::load8(from)?);
    }
    if len == 0 {
        return Ok(());
    }
    imp::transfer(from, to, len, last_word(to, len))
}

/// Bytes of the last word of `len` bytes, at least one, at `addr`: it ends at the last byte and
/// begins at its 8-byte boundary, or at the payload's start.
#[inline]
fn last_word(addr: u64, len: usize) -> usize {
    let end = addr.wrapping_add(len as u64);
    ((end.wrapping_sub(1) & 7) as usize + 1).min(len)
}

/// Adds to the 8 bytes at `addr` (wrapping) and returns the value before. One access of the CPU,
/// sequentially consistent.
///
/// # Errors
/// [`Fault`]: memory gone, or not aligned to 8 bytes; nothing is written then.
#[inline]
pub fn fetch_add(addr: u64, add: u64) -> Result<u64, Fault> {
    if addr & 7 != 0 {
        return Err(Fault);
    }
    imp::fetch_add(addr, add)
}

/// Stores `swap` in the 8 bytes at `addr` if they hold `compare`; returns the value before.
///
/// # Errors
/// As for [`fetch_add`].
#[inline]
pub fn cmp_swap(addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    if addr & 7 != 0 {
        return Err(Fault);
    }
    imp::cmp_swap(addr, compare, swap)
}

/// Stores 8 bytes at `addr` by one access of the CPU, behind all that was placed before (release).
///
/// # Errors
/// As for [`fetch_add`].
#[inline]
pub fn store(addr: u64, value: u64) -> Result<(), Fault> {
    if addr & 7 != 0 {
        return Err(Fault);
    }
    imp::store8(addr, value)
}

/// Whether an access to vanished memory ends here with [`Fault`] ([`fixup`]), not with the end of
/// the process.
pub const HAS_LANDINGS: bool =
    cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri)));

/// Where to continue after a fault at program counter `pc`, if that lies in one of our copies.
///
/// # Thread-safety
/// Any thread, also in a signal handler: it only reads a constant table. A few dozen entries,
/// searched in order.
pub fn fixup(pc: usize) -> Option<usize> {
    imp::fixup(pc)
}

#[cfg(test)]
mod tests;
