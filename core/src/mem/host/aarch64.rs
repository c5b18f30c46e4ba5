//! The copies in assembly, each range of faulting instructions with its landing pad.
//!
//! Order. The CPU may show stores to others in any order, and do loads in any. So a copy has a
//! barrier before it, one after each unit of 64 bytes and one before the last word, whose pieces
//! are stores with release: a placement comes behind the one before, and what a copy reads is not
//! older than what the one before has read. What only reads has a barrier behind it, too. Aligned
//! words are one access each, also as a half of a vector register (Arm ARM, B2.2.1: a 128-bit
//! access that is aligned to 64 bits is two single-copy atomic accesses of 64 bits).

pub(super) use super::landings::fixup;
use super::landings::result;
pub(super) use super::two_passes::{fetch_crc, place_crc};
use super::Fault;
use core::arch::asm;

#[inline(always)]
pub(super) fn expect_write(addr: u64) {
    // SAFETY: a hint, which has no effect on memory or registers and never faults.
    unsafe {
        asm!("prfm pstl1keep, [{addr}]", addr = in(reg) addr,
            options(nostack, preserves_flags, readonly))
    };
}

/// One access at `$addr`, in the order of its instructions. They end on 4 with `fault` still 1 if
/// the memory cannot be accessed.
macro_rules! access {
    ($($line:expr,)+ ; $($operands:tt)*) => {{
        let fault: u32;
        asm!(
            "mov {fault:w}, #1",
            "2:",
            $($line,)+
            "3: mov {fault:w}, wzr",
            "4:",
            guard!("2b", "3b", "4b"),
            fault = out(reg) fault,
            $($operands)*
            options(nostack),
        );
        fault
    }};
}

#[inline]
pub(super) fn load8(addr: u64) -> Result<u64, Fault> {
    let value: u64;
    // SAFETY: the only access is the load, which either succeeds or lands on 4 (module doc of
    // `host`); it goes to no register or memory that is not declared.
    let fault = unsafe {
        access!("ldr {value}, [{addr}]", "dmb ishld",; addr = in(reg) addr, value = out(reg) value,)
    };
    result(fault, value)
}

/// The address is aligned, as all of `host`'s callers see to.
#[inline]
pub(super) fn store8(addr: u64, value: u64) -> Result<(), Fault> {
    // SAFETY: the only access is the store to memory that the program registered for writing; it
    // succeeds or lands on 4.
    let fault =
        unsafe { access!("stlr {value}, [{addr}]",; addr = in(reg) addr, value = in(reg) value,) };
    result(fault, ())
}

pub(super) fn fetch_add(addr: u64, add: u64) -> Result<u64, Fault> {
    let old: u64;
    // SAFETY: as `store8`.
    let fault = unsafe {
        access!(
            "5: ldaxr {old}, [{addr}]",
            "add {new}, {old}, {add}",
            "stlxr {failed:w}, {new}, [{addr}]",
            "cbnz {failed:w}, 5b",
            "dmb ish",;
            addr = in(reg) addr, add = in(reg) add, old = out(reg) old, new = out(reg) _,
            failed = out(reg) _,
        )
    };
    result(fault, old)
}

pub(super) fn cmp_swap(addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    let old: u64;
    // SAFETY: as `store8`.
    let fault = unsafe {
        access!(
            "5: ldaxr {old}, [{addr}]",
            "cmp {old}, {compare}",
            "b.ne 6f",
            "stlxr {failed:w}, {swap}, [{addr}]",
            "cbnz {failed:w}, 5b",
            "6: dmb ish",;
            addr = in(reg) addr, compare = in(reg) compare, swap = in(reg) swap, old = out(reg) old,
            failed = out(reg) _,
        )
    };
    result(fault, old)
}

/// Copies `$n` bytes through `$reg`, if `$tested` has the bit `$bit`, and moves on; `$skip` is a
/// label of its own.
macro_rules! unit_if {
    ($tested:literal, $bit:literal, $width:literal, $reg:literal, $n:literal, $skip:literal) => {
        concat! {
            "tbz ", $tested, ", #", $bit, ", ", $skip, "f\n",
            "ldr", $width, " ", $reg, ", [{from}], #", $n, "\n",
            "str", $width, " ", $reg, ", [{to}], #", $n, "\n",
            $skip, ":\n",
        }
    };
}

/// Copies 64 bytes at a time while `len` has them, with a line behind each 64, then 8 at a time.
macro_rules! words {
    ($behind:literal) => {
        concat! {
            "
            subs {len}, {len}, #64
            b.lo 35f
            34:
            ldp {a:q}, {b:q}, [{from}]
            ldp {c:q}, {d:q}, [{from}, #32]
            add {from}, {from}, #64
            stp {a:q}, {b:q}, [{to}]
            stp {c:q}, {d:q}, [{to}, #32]
            add {to}, {to}, #64
            ", $behind, "
            subs {len}, {len}, #64
            b.hs 34b
            35:
            add {len}, {len}, #64
            36:
            subs {len}, {len}, #8
            b.lo 37f
            ldr {word}, [{from}], #8
            str {word}, [{to}], #8
            b 36b
            37:
            add {len}, {len}, #8
            "
        }
    };
}

#[inline(never)]
pub(super) fn fetch(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: writes only within `dst`; reads as many bytes at `addr`, each of which succeeds or
    // lands on 4.
    let fault = unsafe {
        access!(
            words!(""),
            unit_if!("{len}", "2", "", "{word:w}", "4", "31"),
            unit_if!("{len}", "1", "h", "{word:w}", "2", "32"),
            unit_if!("{len}", "0", "b", "{word:w}", "1", "33"),
            "dmb ishld",;
            from = inout(reg) addr => _,
            to = inout(reg) dst.as_mut_ptr() => _,
            len = inout(reg) dst.len() => _,
            word = out(reg) _,
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
        )
    };
    result(fault, ())
}

#[inline]
pub(super) fn place(addr: u64, src: &[u8], last: usize) -> Result<(), Fault> {
    transfer(src.as_ptr().expose_provenance() as u64, addr, src.len(), last)
}

/// The last `last` bytes (1 to 8, at most `len`) are the last aligned word.
#[inline(never)]
pub(super) fn transfer(from: u64, to: u64, len: usize, last: usize) -> Result<(), Fault> {
    // `len` counts the body, what is before the last word. A body ends on an 8-byte boundary, so
    // that after the units to alignment its rest is whole words. No byte is stored twice: the
    // program may already have changed it again. The last word goes by the largest pieces that are
    // aligned: stores with release must be.
    // SAFETY: reads `len` bytes at `from` and writes as many at `to`, registered for writing (or a
    // slice of ours for reading); each access succeeds or lands on 4.
    let fault = unsafe {
        access!(
            "dmb ish",
            "cbz {len}, 37f",
            "neg {word}, {to}",
            "and {word}, {word}, #7",
            "sub {len}, {len}, {word}",
            "mov {skew}, {word}",
            unit_if!("{skew}", "0", "b", "{word:w}", "1", "31"),
            unit_if!("{skew}", "1", "h", "{word:w}", "2", "32"),
            unit_if!("{skew}", "2", "", "{word:w}", "4", "33"),
            words!("dmb ishst"),
            "
            dmb ish
            tbz {last}, #3, 41f
            ldr {word}, [{from}]
            stlr {word}, [{to}]
            b 3f
            41:
            tst {to}, #3
            b.ne 42f
            tbz {last}, #2, 42f
            ldr {word:w}, [{from}], #4
            stlr {word:w}, [{to}]
            add {to}, {to}, #4
            sub {last}, {last}, #4
            42:
            tbnz {to}, #0, 44f
            43:
            cmp {last}, #2
            b.lo 44f
            ldrh {word:w}, [{from}], #2
            stlrh {word:w}, [{to}]
            add {to}, {to}, #2
            sub {last}, {last}, #2
            b 43b
            44:
            cbz {last}, 3f
            ldrb {word:w}, [{from}], #1
            stlrb {word:w}, [{to}]
            add {to}, {to}, #1
            sub {last}, {last}, #1
            b 44b
            ",;
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            len = inout(reg) len - last => _,
            last = inout(reg) last => _,
            skew = out(reg) _,
            word = out(reg) _,
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
        )
    };
    result(fault, ())
}
