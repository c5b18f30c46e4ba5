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

/// Whether the processor has all features of `leaf_7` (bits of leaf 7's EBX).
pub(crate) fn has_features(leaf_7: u32) -> bool {
    cpuid(0).eax >= 7 && cpuid(7).ebx & leaf_7 == leaf_7
}

/// Whether the operating system saves the registers of AVX, and those of `state` (bits of extended
/// control register 0).
pub(crate) fn are_saved(state: u64) -> bool {
    const OSXSAVE_AND_AVX: u32 = 1 << 27 | 1 << 28;
    // SAFETY: OSXSAVE says that the instruction exists and that the system has enabled it.
    cpuid(1).ecx & OSXSAVE_AND_AVX == OSXSAVE_AND_AVX && unsafe { xgetbv() } & state == state
}

/// Whether the processor has VPCLMULQDQ and all of `leaf_7`, and the operating system saves the
/// registers of `state`.
fn has_wide(leaf_7: u32, state: u64) -> bool {
    const VPCLMULQDQ: u32 = 1 << 10;
    has_128() && are_saved(state) && has_features(leaf_7) && cpuid(7).ecx & VPCLMULQDQ != 0
}

/// The registers of SSE and AVX.
pub(crate) const STATE_256: u64 = 0b110;
/// These, and the three groups of AVX-512.
pub(crate) const STATE_512: u64 = 0b1110_0110;
/// AVX-512 Foundation.
pub(crate) const AVX512F: u32 = 1 << 16;

/// Whether the 256-bit functions can run here.
pub(in crate::wire::icrc) fn has_256() -> bool {
    has_wide(AVX2, STATE_256)
}

/// Whether the 512-bit functions can run here.
pub(in crate::wire::icrc) fn has_512() -> bool {
    const AVX512VL: u32 = 1 << 31;
    has_wide(AVX2 | AVX512F | AVX512VL, STATE_512)
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
