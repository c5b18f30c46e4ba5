//! Which instructions the processor has and the operating system supports.

use core::arch::x86_64::*;

/// The processor's description of itself, sub-leaf 0.
// Newer compilers define the call as safe.
#[allow(unused_unsafe)]
fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { __cpuid_count(leaf, 0) }
}

/// Whether the processor has the instructions of the 128-bit functions.
pub(in crate::wire::icrc) fn has_128() -> bool {
    const SSSE3: u32 = 1 << 9;
    const NEEDED: u32 = SSSE3 | PCLMULQDQ | SSE41;
    const PCLMULQDQ: u32 = 1 << 1;
    const SSE41: u32 = 1 << 19;
    cpuid(0).eax >= 1 && cpuid(1).ecx & NEEDED == NEEDED
}

const AVX2: u32 = 1 << 5;

/// Whether the processor has VPCLMULQDQ and all of `leaf_7` (bits of leaf 7's EBX), and the
/// operating system saves the registers of `state` (bits of extended control register 0).
fn has_wide(leaf_7: u32, state: u64) -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    const VPCLMULQDQ: u32 = 1 << 10;
    if !has_128() || cpuid(0).eax < 7 || cpuid(1).ecx & (OSXSAVE | AVX) != OSXSAVE | AVX {
        return false;
    }
    // SAFETY: OSXSAVE says that the instruction exists and that the system has enabled it.
    let saved = unsafe { xgetbv() };
    let leaf = cpuid(7);
    saved & state == state && leaf.ebx & leaf_7 == leaf_7 && leaf.ecx & VPCLMULQDQ != 0
}

/// Whether the 256-bit functions can run here.
pub(in crate::wire::icrc) fn has_256() -> bool {
    // The registers of SSE and AVX.
    has_wide(AVX2, 0b110)
}

/// Whether the 512-bit functions can run here.
pub(in crate::wire::icrc) fn has_512() -> bool {
    const AVX512F: u32 = 1 << 16;
    const AVX512VL: u32 = 1 << 31;
    // The registers of SSE and AVX, and the three groups of AVX-512.
    has_wide(AVX2 | AVX512F | AVX512VL, 0b1110_0110)
}

/// Extended control register 0: which registers the system saves.
///
/// # Safety
/// The machine has OSXSAVE set.
#[target_feature(enable = "xsave")]
unsafe fn xgetbv() -> u64 {
    // SAFETY: the caller's promise.
    unsafe { _xgetbv(0) }
}
