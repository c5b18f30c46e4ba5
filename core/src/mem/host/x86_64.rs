//! The copies in assembly, each range of faulting instructions with its landing pad.
//!
//! Order. x86 keeps the stores of one CPU to ordinary memory in program order (Intel SDM volume 3,
//! "Memory ordering": stores are not reordered with other stores), so a copy that stores in ascending
//! address is seen so, and a plain store is a release. Only the bytes of one vector store may appear in
//! any order among themselves, which is why the last word has a store of its own. `rep movsb` would give
//! that up for the whole body (the stores of a fast string may appear in any order), so it is not used.

use super::Fault;
use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

/// One line of the table: offsets from each field's own address, so that it needs no relocation at load time.
#[repr(C)]
struct Entry {
    start: i32,
    end: i32,
    landing: i32,
}

/// Adds a line to the table: faults in [`$start`, `$end`) continue at `$landing`.
///
/// Section flag R: a linker that collects unused sections must keep it, nothing refers to it by name but
/// its bounds.
macro_rules! guard {
    ($start:literal, $end:literal, $landing:literal) => {
        concat!(
            ".pushsection gdrc_fixup,\"aR\",@progbits\n",
            ".balign 4\n",
            ".long ",
            $start,
            " - .\n",
            ".long ",
            $end,
            " - .\n",
            ".long ",
            $landing,
            " - .\n",
            ".popsection"
        )
    };
}

// An empty line, so that the section and its bounds exist in every program. The bounds are ours alone:
// hidden, so that two libraries with such a table in one process do not share it.
core::arch::global_asm!(
    ".hidden __start_gdrc_fixup",
    ".hidden __stop_gdrc_fixup",
    ".pushsection gdrc_fixup,\"aR\",@progbits",
    ".balign 4",
    ".long 0, 0, 0",
    ".popsection",
);

extern "C" {
    #[link_name = "__start_gdrc_fixup"]
    static TABLE_START: Entry;
    #[link_name = "__stop_gdrc_fixup"]
    static TABLE_END: Entry;
}

pub(super) fn fixup(pc: usize) -> Option<usize> {
    let mut entry = core::ptr::addr_of!(TABLE_START);
    let end = core::ptr::addr_of!(TABLE_END);
    while entry < end {
        let at = entry as usize;
        // SAFETY: the linker sets both names to the bounds of the section, which holds nothing but whole entries.
        let e = unsafe { &*entry };
        let field = |offset: usize, value: i32| at.wrapping_add(offset).wrapping_add_signed(value as isize);
        let (start, stop) = (field(0, e.start), field(4, e.end));
        if (start..stop).contains(&pc) {
            return Some(field(8, e.landing));
        }
        entry = entry.wrapping_add(1);
    }
    None
}

#[inline]
fn result<T>(fault: u32, value: T) -> Result<T, Fault> {
    if fault == 0 {
        Ok(value)
    } else {
        Err(Fault)
    }
}

#[inline]
pub(super) fn load8(addr: u64) -> Result<u64, Fault> {
    let (value, fault): (u64, u32);
    // SAFETY: the only access is the load, which either succeeds or lands on 4 with `fault` still 1 (module doc of
    // `host`); it goes to no register or memory that is not declared.
    unsafe {
        asm!(
            "mov {fault:e}, 1",
            "2: mov {value}, [{addr}]",
            "3: xor {fault:e}, {fault:e}",
            "4:",
            guard!("2b", "3b", "4b"),
            addr = in(reg) addr,
            value = out(reg) value,
            fault = out(reg) fault,
            options(nostack),
        );
    }
    result(fault, value)
}

#[inline]
pub(super) fn store8(addr: u64, value: u64) -> Result<(), Fault> {
    let fault: u32;
    // SAFETY: the only access is the store to memory that the program registered for writing; it succeeds or lands on 4.
    unsafe {
        asm!(
            "mov {fault:e}, 1",
            "2: mov [{addr}], {value}",
            "3: xor {fault:e}, {fault:e}",
            "4:",
            guard!("2b", "3b", "4b"),
            addr = in(reg) addr,
            value = in(reg) value,
            fault = out(reg) fault,
            options(nostack),
        );
    }
    result(fault, ())
}

pub(super) fn fetch_add(addr: u64, add: u64) -> Result<u64, Fault> {
    let (old, fault): (u64, u32);
    // SAFETY: as `store8`.
    unsafe {
        asm!(
            "mov {fault:e}, 1",
            "2: lock xadd [{addr}], {value}",
            "3: xor {fault:e}, {fault:e}",
            "4:",
            guard!("2b", "3b", "4b"),
            addr = in(reg) addr,
            value = inout(reg) add => old,
            fault = out(reg) fault,
            options(nostack),
        );
    }
    result(fault, old)
}

pub(super) fn cmp_swap(addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    let (old, fault): (u64, u32);
    // SAFETY: as `store8`. Where the comparison fails the CPU writes the old value back, so the memory must be
    // writable, which REMOTE_ATOMIC needs anyway.
    unsafe {
        asm!(
            "mov {fault:e}, 1",
            "2: lock cmpxchg [{addr}], {swap}",
            "3: xor {fault:e}, {fault:e}",
            "4:",
            guard!("2b", "3b", "4b"),
            addr = in(reg) addr,
            swap = in(reg) swap,
            inout("rax") compare => old,
            fault = out(reg) fault,
            options(nostack),
        );
    }
    result(fault, old)
}

/// One step of `$n` bytes through `$reg` if `$reg_tested` has the bit `$n`: used to reach an alignment.
macro_rules! step {
    ($bit:literal, $tested:literal, $reg:literal, $skip:literal) => {
        concat!(
            "test ",
            $tested,
            ", ",
            $bit,
            "\n",
            "jz ",
            $skip,
            "f\n",
            "mov ",
            $reg,
            ", [rsi]\n",
            "mov [rdi], ",
            $reg,
            "\n",
            "add rsi, ",
            $bit,
            "\n",
            "add rdi, ",
            $bit,
            "\n",
            "sub rdx, ",
            $bit,
            "\n",
            $skip,
            ":\n",
        )
    };
}

/// Copies rdx bytes from rsi to rdi in ascending order in units of 128 (AVX, if r8d says so, else 64 by
/// SSE), 16 and 8 bytes, and leaves less than 8 in rdx.
macro_rules! copy_units {
    () => {
        "
        cmp rdx, 128
        jb 25f
        test r8d, r8d
        jz 24f
        23:
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
        cmp rdx, 128
        jae 23b
        vzeroupper
        jmp 25f
        24:
        movups xmm0, [rsi]
        movups xmm1, [rsi + 16]
        movups xmm2, [rsi + 32]
        movups xmm3, [rsi + 48]
        movups [rdi], xmm0
        movups [rdi + 16], xmm1
        movups [rdi + 32], xmm2
        movups [rdi + 48], xmm3
        add rsi, 64
        add rdi, 64
        sub rdx, 64
        cmp rdx, 64
        jae 24b
        25:
        cmp rdx, 16
        jb 27f
        26:
        movups xmm0, [rsi]
        movups [rdi], xmm0
        add rsi, 16
        add rdi, 16
        sub rdx, 16
        cmp rdx, 16
        jae 26b
        27:
        test dl, 8
        jz 28f
        mov rax, [rsi]
        mov [rdi], rax
        add rsi, 8
        add rdi, 8
        sub rdx, 8
        28:
        "
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

#[inline(never)]
pub(super) fn fetch(addr: u64, dst: &mut [u8]) -> Result<(), Fault> {
    let fault: u32;
    // SAFETY: writes only `dst.len()` bytes at `dst`; reads that many at `addr`, each of which succeeds or lands on 4.
    // From 8 bytes on the source is aligned first (at most 7 bytes), so that no aligned word is read in two pieces.
    unsafe {
        asm!(
            "2:",
            "cmp rdx, 8",
            "jb 28f",
            "mov ecx, esi",
            "neg ecx",
            step!("1", "cl", "al", "31"),
            step!("2", "cl", "ax", "32"),
            step!("4", "cl", "eax", "33"),
            copy_units!(),
            step!("4", "dl", "eax", "34"),
            step!("2", "dl", "ax", "35"),
            step!("1", "dl", "al", "36"),
            finish!(),
            guard!("2b", "3b", "4b"),
            inout("rdi") dst.as_mut_ptr() => _,
            inout("rsi") addr => _,
            inout("rdx") dst.len() => _,
            in("r8d") u32::from(has_avx()),
            out("ecx") _,
            lateout("eax") fault,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
    result(fault, ())
}

/// The last `last` bytes (1 to 8, at most all of `src`) are the last aligned word.
#[inline(never)]
pub(super) fn place(addr: u64, src: &[u8], last: usize) -> Result<(), Fault> {
    let fault: u32;
    // SAFETY: reads `src` from its start to its end; writes as many bytes at `addr`, registered for writing, each of
    // which succeeds or lands on 4.
    // A body ends on an 8-byte boundary, so that after the steps to alignment its rest is whole words.
    unsafe {
        asm!(
            "2:",
            "test rdx, rdx",
            "jz 28f",
            "mov ecx, edi",
            "neg ecx",
            step!("1", "cl", "al", "31"),
            step!("2", "cl", "ax", "32"),
            step!("4", "cl", "eax", "33"),
            copy_units!(),
            // The last word in one access where its size and address allow, else in ascending pieces.
            "mov rdx, r9",
            "cmp rdx, 8",
            "je 40f",
            // A short payload may begin in the middle of a word: then byte by byte up to its alignment.
            "test dil, 1",
            "jnz 41f",
            step!("4", "dl", "eax", "34"),
            step!("2", "dl", "ax", "35"),
            step!("1", "dl", "al", "36"),
            "jmp 3f",
            "41:",
            "mov al, [rsi]",
            "mov [rdi], al",
            "add rsi, 1",
            "add rdi, 1",
            "sub rdx, 1",
            "jnz 41b",
            "jmp 3f",
            "40:",
            "mov rax, [rsi]",
            "mov [rdi], rax",
            finish!(),
            guard!("2b", "3b", "4b"),
            inout("rdi") addr => _,
            inout("rsi") src.as_ptr() => _,
            inout("rdx") src.len() - last => _,
            in("r8d") u32::from(has_avx()),
            in("r9") last,
            out("ecx") _,
            lateout("eax") fault,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
    result(fault, ())
}

/// 0: not asked yet, 1: no, 2: yes. Any thread may ask; all get the same answer.
static AVX: AtomicU8 = AtomicU8::new(0);

/// Whether the CPU has AVX and the system saves its registers.
#[inline]
fn has_avx() -> bool {
    match AVX.load(Ordering::Relaxed) {
        0 => ask_avx(),
        known => known == 2,
    }
}

#[cold]
#[allow(unused_unsafe)] // newer compilers have a safe cpuid
fn ask_avx() -> bool {
    const OSXSAVE_AND_AVX: u32 = 1 << 27 | 1 << 28;
    // SAFETY: every x86-64 CPU has cpuid.
    let features = unsafe { core::arch::x86_64::__cpuid(1) }.ecx;
    let yes = features & OSXSAVE_AND_AVX == OSXSAVE_AND_AVX && {
        let xcr0: u32;
        // SAFETY: OSXSAVE says that xgetbv exists; it writes eax and edx only.
        unsafe { asm!("xgetbv", in("ecx") 0, out("eax") xcr0, out("edx") _, options(nomem, nostack)) };
        // XMM and YMM state.
        xcr0 & 6 == 6
    };
    AVX.store(1 + u8::from(yes), Ordering::Relaxed);
    yes
}
