//! The copies in assembly, each range of faulting instructions with its landing pad.
//!
//! Order. x86 keeps the stores of one CPU to ordinary memory in program order (Intel SDM volume 3,
//! "Memory ordering": stores are not reordered with other stores), so a copy that stores in
//! ascending address is seen so, and a plain store is a release. Only the bytes of one vector store
//! may appear in any order among themselves, which is why the last word has a store of its own. So
//! may the bytes of one `rep movsb`, where strings are fast; it stays in order with all other
//! stores. It places bulk a sixth faster, so a body of [`STRINGS_FROM`] bytes or more is placed by
//! strings of 16 KiB.

pub(super) use super::landings::fixup;
use super::landings::result;
use super::Fault;
use crate::wire::icrc::features::{self, AVX512F, STATE_256, STATE_512};
use crate::wire::icrc::{crc32_with, Impl};
use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

mod copy_crc;

#[inline(always)]
pub(super) fn expect_write(addr: u64) {
    // SAFETY: a hint, which has no effect on memory or registers and never faults. Processors
    // without it take it for a no-op.
    unsafe {
        asm!("prefetchw [{addr}]", addr = in(reg) addr, options(nostack, preserves_flags, readonly))
    };
}

/// One instruction that accesses `$addr`. It ends on 4 with `fault` still 1 if the memory cannot be
/// accessed.
macro_rules! access {
    ($instruction:literal; $($operands:tt)*) => {{
        let fault: u32;
        asm!(
            "mov {fault:e}, 1",
            concat!("2: ", $instruction),
            "3: xor {fault:e}, {fault:e}",
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
    let fault =
        unsafe { access!("mov {value}, [{addr}]"; addr = in(reg) addr, value = out(reg) value,) };
    result(fault, value)
}

#[inline]
pub(super) fn store8(addr: u64, value: u64) -> Result<(), Fault> {
    // SAFETY: the only access is the store to memory that the program registered for writing; it
    // succeeds or lands on 4.
    let fault =
        unsafe { access!("mov [{addr}], {value}"; addr = in(reg) addr, value = in(reg) value,) };
    result(fault, ())
}

pub(super) fn fetch_add(addr: u64, add: u64) -> Result<u64, Fault> {
    let old: u64;
    // SAFETY: as `store8`.
    let fault = unsafe {
        access!("lock xadd [{addr}], {value}"; addr = in(reg) addr, value = inout(reg) add => old,)
    };
    result(fault, old)
}

pub(super) fn cmp_swap(addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    let old: u64;
    // SAFETY: as `store8`. Where the comparison fails the CPU writes the old value back, so the
    // memory must be writable, which REMOTE_ATOMIC needs anyway.
    let fault = unsafe {
        access!(
            "lock cmpxchg [{addr}], {swap}";
            addr = in(reg) addr, swap = in(reg) swap, inout("rax") compare => old,
        )
    };
    result(fault, old)
}

/// Copies `$n` bytes through `$reg` and moves on.
macro_rules! unit {
    ($n:literal, $reg:literal) => {
        concat! {
            "mov ", $reg, ", [rsi]\n",
            "mov [rdi], ", $reg, "\n",
            "add rsi, ", $n, "\n",
            "add rdi, ", $n, "\n",
            "sub rdx, ", $n, "\n",
        }
    };
}

/// The same if `$tested` has the bit `$n`; `$skip` is a label of its own.
macro_rules! unit_if {
    ($n:literal, $tested:literal, $reg:literal, $skip:literal) => {
        concat! {
            "test ", $tested, ", ", $n, "\n",
            "jz ", $skip, "f\n",
            unit!($n, $reg),
            $skip, ":\n",
        }
    };
}

/// Copies 128 bytes at a time from rsi to rdi, ascending, while rdx is at least r9, by the
/// registers that r8d names ([`registers`]).
macro_rules! blocks {
    () => {
        "
        test r8d, r8d
        jz 22f
        cmp r8d, 1
        jne 26f
        21:
        vmovdqu ymm0, [rsi]
        vmovdqu ymm1, [rsi + 32]
        vmovdqu ymm2, [rsi + 64]
        vmovdqu ymm3, [rsi + 96]
        vmovdqu [rdi], ymm0
        vmovdqu [rdi + 32], ymm1
        vmovdqu [rdi + 64], ymm2
        vmovdqu [rdi + 96], ymm3
        add rsi, 128
        add rdi, 128
        sub rdx, 128
        cmp rdx, r9
        jae 21b
        vzeroupper
        jmp 23f
        26:
        vmovdqu64 zmm0, [rsi]
        vmovdqu64 zmm1, [rsi + 64]
        vmovdqu64 [rdi], zmm0
        vmovdqu64 [rdi + 64], zmm1
        add rsi, 128
        add rdi, 128
        sub rdx, 128
        cmp rdx, r9
        jae 26b
        vzeroupper
        jmp 23f
        22:
        movups xmm0, [rsi]
        movups xmm1, [rsi + 16]
        movups xmm2, [rsi + 32]
        movups xmm3, [rsi + 48]
        movups [rdi], xmm0
        movups [rdi + 16], xmm1
        movups [rdi + 32], xmm2
        movups [rdi + 48], xmm3
        movups xmm0, [rsi + 64]
        movups xmm1, [rsi + 80]
        movups xmm2, [rsi + 96]
        movups xmm3, [rsi + 112]
        movups [rdi + 64], xmm0
        movups [rdi + 80], xmm1
        movups [rdi + 96], xmm2
        movups [rdi + 112], xmm3
        add rsi, 128
        add rdi, 128
        sub rdx, 128
        cmp rdx, r9
        jae 22b
        23:
        "
    };
}

/// Copies 64 bytes from rsi to rdi, and moves nothing on.
macro_rules! copy_64 {
    () => {
        "
        movups xmm0, [rsi]
        movups xmm1, [rsi + 16]
        movups xmm2, [rsi + 32]
        movups xmm3, [rsi + 48]
        movups [rdi], xmm0
        movups [rdi + 16], xmm1
        movups [rdi + 32], xmm2
        movups [rdi + 48], xmm3
        "
    };
}

/// Copies 32 bytes, and moves rsi and rdi on.
macro_rules! unit_32 {
    () => {
        "
        movups xmm0, [rsi]
        movups xmm1, [rsi + 16]
        movups [rdi], xmm0
        movups [rdi + 16], xmm1
        add rsi, 32
        add rdi, 32
        "
    };
}

/// On to the next 64-byte boundary of rdi, or by a whole unit where it is on one. The bytes behind
/// the boundary are stored again.
macro_rules! to_line {
    () => {
        concat! {
            copy_64!(),
            "
            mov ecx, edi
            and ecx, 63
            sub rcx, 64
            sub rsi, rcx
            sub rdi, rcx
            add rdx, rcx
            "
        }
    };
}

/// Less than 128 bytes, rdx of them, from rsi to rdi, each unit at most once; then the last word.
macro_rules! short_body {
    () => {
        concat! {
            "
        51:
        test dl, 64
        jz 14f
        ",
            copy_64!(),
            "
        add rsi, 64
        add rdi, 64
        14:
        test dl, 32
        jz 15f
        ",
            unit_32!(),
            "
        15:
        test dl, 16
        jz 19f
        movups xmm0, [rsi]
        movups [rdi], xmm0
        add rsi, 16
        add rdi, 16
        19:
        test dl, 8
        jz 16f
        mov rax, [rsi]
        mov [rdi], rax
        add rsi, 8
        add rdi, 8
        16:
        cmp r10d, 8
        jne 17f
        mov rax, [rsi]
        mov [rdi], rax
        jmp 3f
        "
        }
    };
}

/// The last word, r10 bytes of it, in pieces: 1, 2 and 4 bytes are one access each, more are
/// ascending. One that begins at an odd address goes byte by byte.
macro_rules! last_word {
    () => {
        concat! {
            "
            17:
            mov rdx, r10
            test edi, 1
            jnz 18f
            ",
            unit_if!("4", "dl", "eax", "35"),
            unit_if!("2", "dl", "ax", "36"),
            unit_if!("1", "dl", "al", "37"),
            "jmp 3f\n",
            "18:\n",
            unit!("1", "al"),
            "jnz 18b\n",
        }
    };
}

/// The common end: eax = 0 after success; after a fault the upper halves are cleaned and eax = 1.
macro_rules! finish {
    () => {
        "
        3:
        xor eax, eax
        jmp 5f
        4:
        test r8d, r8d
        jz 6f
        vzeroupper
        6:
        mov eax, 1
        5:
        "
    };
}

/// [`fetch`], and the CRC state after the bytes.
pub(super) fn fetch_crc(which: Impl, addr: u64, dst: &mut [u8], state: u32) -> Result<u32, Fault> {
    let Some((by, whole)) = copy_crc::rounds(which, dst.len()) else {
        super::fetch(addr, dst)?;
        return Ok(crc32_with(which, state, dst));
    };
    let (body, tail) = dst.split_at_mut(whole);
    // SAFETY: this machine can run what `rounds` takes; `body` is ours.
    let state = unsafe {
        let to = body.as_mut_ptr().expose_provenance() as u64;
        copy_crc::copy_rounds(by, addr, to, whole, state)?
    };
    super::fetch(addr.wrapping_add(whole as u64), tail)?;
    Ok(crc32_with(which, state, tail))
}

/// [`place`], and the CRC state after the bytes.
pub(super) fn place_crc(which: Impl, addr: u64, src: &[u8], state: u32) -> Result<u32, Fault> {
    let Some((by, whole)) = copy_crc::rounds(which, src.len()) else {
        super::place(addr, src)?;
        return Ok(crc32_with(which, state, src));
    };
    let (body, tail) = src.split_at(whole);
    // SAFETY: this machine can run what `rounds` takes; `body` is ours.
    let state = unsafe {
        let from = body.as_ptr().expose_provenance() as u64;
        copy_crc::copy_rounds(by, from, addr, whole, state)?
    };
    super::place(addr.wrapping_add(whole as u64), tail)?;
    Ok(crc32_with(which, state, tail))
}

#[inline(never)]
pub(super) fn fetch(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    let fault: u32;
    // Copies that overlap (dst is ours, so bytes may be written twice) are stored in such an order
    // that the one that begins on a word of the source wins: a word is never put together from two
    // reads. Long copies align dst, since stores across cache lines cost most: 4 KiB in 37 instead
    // of 75 ns.
    // SAFETY: writes only within `dst`; reads as many bytes at `addr`, each of which succeeds or
    // lands on 4.
    unsafe {
        asm!(
            "
            2:
            cmp rdx, 16
            ja 50f
            cmp rdx, 8
            jb 30f
            mov rax, [rsi]
            mov rcx, [rsi + rdx - 8]
            mov [rdi + rdx - 8], rcx
            mov [rdi], rax
            jmp 3f

            50:
            cmp rdx, 32
            ja 51f
            movups xmm0, [rsi]
            movups xmm1, [rsi + rdx - 16]
            movups [rdi + rdx - 16], xmm1
            movups [rdi], xmm0
            jmp 3f

            51:
            mov r9d, 144
            cmp rdx, r9
            jb 24f
            cmp rdx, 512
            jb 52f
            ",
            to_line!(),
            "
            52:
            ",
            blocks!(),
            "
            24:
            cmp rdx, 48
            jbe 25f
            movups xmm1, [rsi]
            movups xmm0, [rsi + 16]
            movups [rdi], xmm1
            movups [rdi + 16], xmm0
            add rsi, 32
            add rdi, 32
            sub rdx, 32
            jmp 24b
            25:
            movups xmm0, [rsi]
            movups [rdi], xmm0
            add rsi, 16
            add rdi, 16
            sub rdx, 16
            cmp rdx, 16
            ja 25b
            // 1 to 16 bytes are left: they end a unit that overlaps the one in xmm0, which is
            // stored again.
            movups xmm1, [rsi + rdx - 16]
            movups [rdi + rdx - 16], xmm1
            movups [rdi - 16], xmm0
            jmp 3f

            30:
            ",
            unit_if!("4", "dl", "eax", "31"),
            unit_if!("2", "dl", "ax", "32"),
            unit_if!("1", "dl", "al", "33"),
            finish!(),
            guard!("2b", "3b", "4b"),
            inout("rdi") dst.as_mut_ptr() => _,
            inout("rsi") addr => _,
            inout("rdx") dst.len() => _,
            in("r8d") registers(),
            out("ecx") _,
            out("r9") _,
            lateout("eax") fault,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
    result(fault, ())
}

#[inline]
pub(super) fn place(addr: u64, src: &[u8], last: usize) -> Result<(), Fault> {
    transfer(src.as_ptr().expose_provenance() as u64, addr, src.len(), last)
}

/// The last `last` bytes (1 to 8, at most `len`) are the last aligned word.
#[inline(never)]
pub(super) fn transfer(from: u64, to: u64, len: usize, last: usize) -> Result<(), Fault> {
    let fault: u32;
    // rdx counts the body, what is before the last word. A body ends on an 8-byte boundary, so that
    // after the units to alignment its rest is whole words. No byte is stored twice: the program
    // may already have changed it again.
    // SAFETY: reads `len` bytes at `from` and writes as many at `to`, registered for writing (or a
    // slice of ours for reading); each access succeeds or lands on 4.
    unsafe {
        asm!(
            "
            2:
            test edi, 7
            jnz 12f
            50:
            cmp rdx, 128
            jae 13f
            ",
            short_body!(),
            "

            // To the next 8-byte boundary, if there is a body; else a short payload within one
            // word.
            12:
            test rdx, rdx
            jz 17f
            mov ecx, edi
            neg ecx
            ",
            unit_if!("1", "cl", "al", "31"),
            unit_if!("2", "cl", "ax", "32"),
            unit_if!("4", "cl", "eax", "33"),
            "
            jmp 50b

            // Long: on to the next 64-byte boundary where that pays, then blocks.
            13:
            mov r9d, 128
            cmp rdx, 512
            jb 20f
            mov ecx, edi
            neg ecx
            ",
            unit_if!("8", "cl", "rax", "34"),
            "
            test cl, 16
            jz 38f
            movups xmm0, [rsi]
            movups [rdi], xmm0
            add rsi, 16
            add rdi, 16
            sub rdx, 16
            38:
            test cl, 32
            jz 20f
            ",
            unit_32!(),
            "
            sub rdx, 32
            20:
            cmp rdx, r11
            jb 40f
            39:
            mov ecx, 16384
            sub rdx, rcx
            rep movsb
            cmp rdx, 16384 + 128
            jae 39b
            40:
            ",
            blocks!(),
            "
            jmp 51b
            ",
            last_word!(),
            finish!(),
            guard!("2b", "3b", "4b"),
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") len - last => _,
            in("r8d") registers(),
            in("r10") last,
            in("r11") strings_from(len),
            out("ecx") _,
            out("r9") _,
            lateout("eax") fault,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
    result(fault, ())
}

/// Bytes of the shortest body that is placed by strings.
const STRINGS_FROM: usize = 32 << 10;

/// As [`REGISTERS`]: 1: strings are slow, 2: they are fast.
static STRINGS: AtomicU8 = AtomicU8::new(0);

/// [`STRINGS_FROM`], or more than any body has where strings are slow, or for a copy of `len` bytes
/// that is shorter.
#[inline]
fn strings_from(len: usize) -> usize {
    if len < STRINGS_FROM {
        return usize::MAX;
    }
    match STRINGS.load(Ordering::Relaxed) {
        0 => ask_strings(),
        1 => usize::MAX,
        _ => STRINGS_FROM,
    }
}

#[cold]
fn ask_strings() -> usize {
    const ERMS: u32 = 1 << 9;
    let fast = features::has_features(ERMS);
    STRINGS.store(1 + u8::from(fast), Ordering::Relaxed);
    if fast {
        STRINGS_FROM
    } else {
        usize::MAX
    }
}

/// What [`registers`] returns, and 1 more; 0: not asked yet. Any thread may ask; all get the same
/// answer.
static REGISTERS: AtomicU8 = AtomicU8::new(0);

/// The widest registers of the CPU that the system saves: 0, of 128 bits; 1, of 256 (AVX); 2, of
/// 512 (AVX-512).
#[inline]
fn registers() -> u32 {
    match REGISTERS.load(Ordering::Relaxed) {
        0 => ask_registers(),
        known => u32::from(known) - 1,
    }
}

#[cold]
fn ask_registers() -> u32 {
    let wide = features::has_features(AVX512F) && features::are_saved(STATE_512);
    let known = if wide { 2 } else { u8::from(features::are_saved(STATE_256)) };
    REGISTERS.store(1 + known, Ordering::Relaxed);
    u32::from(known)
}
