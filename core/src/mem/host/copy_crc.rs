//! Copies that compute the CRC of the bytes in the same pass, by the instructions that
//! [`crate::wire::icrc`] uses: each byte is loaded once, stored, and folded.
//!
//! The loops copy whole rounds, which are four registers. What is behind them is copied and summed
//! in two passes.

use super::{result, Fault};
use crate::wire::icrc::{end_rounds, end_rounds_256, end_rounds_512, over_round, Impl};
use core::arch::asm;
use core::arch::x86_64::*;

/// Rounds below which two passes are no slower: the loop's beginning and end cost as much.
const FEW: usize = 4;

/// Bytes of a round.
fn round_of(which: Impl) -> Option<usize> {
    match which {
        Impl::Table => None,
        Impl::Clmul => Some(64),
        Impl::Vpclmul256 => Some(128),
        Impl::Vpclmul512 => Some(256),
    }
}

/// The loop for a copy of `len` bytes, and how many of them are whole rounds of it; `None`: too few
/// are. What runs the widest loop runs the next one as well.
#[inline]
pub(super) fn rounds(which: Impl, len: usize) -> Option<(Impl, usize)> {
    let by = match which {
        Impl::Vpclmul512 if len < FEW * 256 => Impl::Vpclmul256,
        which => which,
    };
    let round = round_of(by)?;
    (len >= FEW * round).then_some((by, len / round * round))
}

/// Copies `len` bytes, whole rounds and at least one of `which`, and returns the state after them.
///
/// # Safety
/// The machine can run `which`. `from` or `to` may be any memory of the program's, the other one is
/// a slice of ours.
#[inline]
pub(super) unsafe fn copy_rounds(
    which: Impl,
    from: u64,
    to: u64,
    len: usize,
    state: u32,
) -> Result<u32, Fault> {
    // SAFETY: the caller's promise, for each.
    unsafe {
        match which {
            Impl::Vpclmul512 => copy_512(from, to, len, state),
            Impl::Vpclmul256 => copy_256(from, to, len, state),
            _ => copy_128(from, to, len, state),
        }
    }
}

/// The loop: `$first` loads and stores the first round and adds the state to it, `$next` folds the
/// chains over a round, loads that, stores it and adds it. Each access succeeds or lands on 6 with
/// `fault` still 1.
macro_rules! rounds {
    ($bytes:literal, $first:expr, $next:expr) => {
        concat! {
            "mov {fault:e}, 1\n",
            "2:\n",
            $first,
            "jmp 4f\n",
            "3:\n",
            $next,
            "4:\n",
            "add {from}, ", $bytes, "\n",
            "add {to}, ", $bytes, "\n",
            "sub {len}, ", $bytes, "\n",
            "jnz 3b\n",
            "5:\n",
            "xor {fault:e}, {fault:e}\n",
            "6:\n",
            guard!("2b", "5b", "6b"),
        }
    };
}

/// By 128-bit registers.
///
/// # Safety
/// As [`copy_rounds`].
#[target_feature(enable = "pclmulqdq,sse4.1")]
unsafe fn copy_128(from: u64, to: u64, len: usize, state: u32) -> Result<u32, Fault> {
    macro_rules! first {
        ($at:literal, $chain:literal) => {
            concat! {
                "movups {", $chain, "}, [{from} + ", $at, "]\n",
                "movups [{to} + ", $at, "], {", $chain, "}\n",
            }
        };
    }
    macro_rules! next {
        ($at:literal, $chain:literal) => {
            concat! {
                "movups {x}, [{from} + ", $at, "]\n",
                "movups [{to} + ", $at, "], {x}\n",
                "movdqa {y}, {", $chain, "}\n",
                "pclmulqdq {y}, {by}, 0\n",
                "pclmulqdq {", $chain, "}, {by}, 17\n",
                "pxor {y}, {x}\n",
                "pxor {", $chain, "}, {y}\n",
            }
        };
    }
    let (low, high) = const { over_round(1) };
    let by = _mm_set_epi64x(high as i64, low as i64);
    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    let fault: u32;
    // SAFETY: accesses `len` bytes of either side, by the caller's promise; each access succeeds or
    // lands on 6 (module doc of `host`).
    unsafe {
        asm!(
            rounds!(
                "64",
                concat!(
                    first!("0", "a"),
                    first!("16", "b"),
                    first!("32", "c"),
                    first!("48", "d"),
                    "pxor {a}, {state}\n",
                ),
                concat!(next!("0", "a"), next!("16", "b"), next!("32", "c"), next!("48", "d"))
            ),
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            len = inout(reg) len => _,
            fault = out(reg) fault,
            state = in(xmm_reg) _mm_cvtsi32_si128(state as i32),
            by = in(xmm_reg) by,
            a = out(xmm_reg) a,
            b = out(xmm_reg) b,
            c = out(xmm_reg) c,
            d = out(xmm_reg) d,
            x = out(xmm_reg) _,
            y = out(xmm_reg) _,
            options(nostack),
        );
    }
    result(fault, ())?;
    Ok(end_rounds([a, b, c, d]))
}

/// By 256-bit registers.
///
/// # Safety
/// As [`copy_rounds`].
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.1")]
unsafe fn copy_256(from: u64, to: u64, len: usize, state: u32) -> Result<u32, Fault> {
    macro_rules! first {
        ($at:literal, $chain:literal) => {
            concat! {
                "vmovdqu {", $chain, "}, [{from} + ", $at, "]\n",
                "vmovdqu [{to} + ", $at, "], {", $chain, "}\n",
            }
        };
    }
    macro_rules! next {
        ($at:literal, $chain:literal) => {
            concat! {
                "vmovdqu {x}, [{from} + ", $at, "]\n",
                "vmovdqu [{to} + ", $at, "], {x}\n",
                "vpclmulqdq {y}, {", $chain, "}, {by}, 0\n",
                "vpclmulqdq {", $chain, "}, {", $chain, "}, {by}, 17\n",
                "vpxor {y}, {y}, {x}\n",
                "vpxor {", $chain, "}, {", $chain, "}, {y}\n",
            }
        };
    }
    let (low, high) = const { over_round(2) };
    let by = _mm256_broadcastsi128_si256(_mm_set_epi64x(high as i64, low as i64));
    let (a, b, c, d): (__m256i, __m256i, __m256i, __m256i);
    let fault: u32;
    // SAFETY: as in `copy_128`.
    unsafe {
        asm!(
            rounds!(
                "128",
                concat!(
                    first!("0", "a"),
                    first!("32", "b"),
                    first!("64", "c"),
                    first!("96", "d"),
                    "vpxor {a}, {a}, {state}\n",
                ),
                concat!(next!("0", "a"), next!("32", "b"), next!("64", "c"), next!("96", "d"))
            ),
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            len = inout(reg) len => _,
            fault = out(reg) fault,
            state = in(ymm_reg) _mm256_zextsi128_si256(_mm_cvtsi32_si128(state as i32)),
            by = in(ymm_reg) by,
            a = out(ymm_reg) a,
            b = out(ymm_reg) b,
            c = out(ymm_reg) c,
            d = out(ymm_reg) d,
            x = out(ymm_reg) _,
            y = out(ymm_reg) _,
            options(nostack),
        );
    }
    result(fault, ())?;
    Ok(end_rounds_256([a, b, c, d]))
}

/// By 512-bit registers.
///
/// # Safety
/// As [`copy_rounds`].
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.1,ssse3")]
unsafe fn copy_512(from: u64, to: u64, len: usize, state: u32) -> Result<u32, Fault> {
    macro_rules! first {
        ($at:literal, $chain:literal) => {
            concat! {
                "vmovdqu64 {", $chain, "}, [{from} + ", $at, "]\n",
                "vmovdqu64 [{to} + ", $at, "], {", $chain, "}\n",
            }
        };
    }
    macro_rules! next {
        ($at:literal, $chain:literal) => {
            concat! {
                "vmovdqu64 {x}, [{from} + ", $at, "]\n",
                "vmovdqu64 [{to} + ", $at, "], {x}\n",
                "vpclmulqdq {y}, {", $chain, "}, {by}, 0\n",
                "vpclmulqdq {", $chain, "}, {", $chain, "}, {by}, 17\n",
                // 0x96 is the truth table of a three-way xor.
                "vpternlogq {", $chain, "}, {y}, {x}, 0x96\n",
            }
        };
    }
    let (low, high) = const { over_round(4) };
    let by = _mm512_broadcast_i32x4(_mm_set_epi64x(high as i64, low as i64));
    let (a, b, c, d): (__m512i, __m512i, __m512i, __m512i);
    let fault: u32;
    // SAFETY: as in `copy_128`.
    unsafe {
        asm!(
            rounds!(
                "256",
                concat!(
                    first!("0", "a"),
                    first!("64", "b"),
                    first!("128", "c"),
                    first!("192", "d"),
                    "vpxorq {a}, {a}, {state}\n",
                ),
                concat!(next!("0", "a"), next!("64", "b"), next!("128", "c"), next!("192", "d"))
            ),
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            len = inout(reg) len => _,
            fault = out(reg) fault,
            state = in(zmm_reg) _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32)),
            by = in(zmm_reg) by,
            a = out(zmm_reg) a,
            b = out(zmm_reg) b,
            c = out(zmm_reg) c,
            d = out(zmm_reg) d,
            x = out(zmm_reg) _,
            y = out(zmm_reg) _,
            options(nostack),
        );
    }
    result(fault, ())?;
    Ok(end_rounds_512([a, b, c, d]))
}
