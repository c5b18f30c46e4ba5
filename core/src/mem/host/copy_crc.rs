//! Copies that compute the CRC of the bytes in the same pass, by the instructions that
//! [`crate::wire::icrc`] uses: each byte is loaded once, stored, and folded.
//!
//! The loops copy whole rounds, which are four registers. What is behind them is copied and summed
//! in two passes.

use super::{result, Fault};
use crate::wire::icrc::{end_rounds, end_rounds_256, end_rounds_512, over_round, Impl};
use core::arch::asm;
use core::arch::x86_64::*;

/// Below so many rounds two passes are no slower: the beginning and the end of the loop cost as
/// much as it saves.
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

/// Loads 16 bytes or more at `$at` into `$register` and stores them.
macro_rules! copy {
    ($mov:literal, $at:literal, $register:literal) => {
        concat! {
            $mov, " {", $register, "}, [{from} + ", $at, "]\n",
            $mov, " [{to} + ", $at, "], {", $register, "}\n",
        }
    };
}

/// Folds `$chain` over a round, and adds the next register, which it copies.
macro_rules! next {
    ($mov:literal, $at:literal, $chain:literal) => {
        concat!(copy!($mov, $at, "x"), fold!($chain))
    };
}

/// Runs the loop by four chains in registers of a class: the chains after the last round. The first
/// round is copied, and `$add` adds the state to it. `fold!` of its place folds a chain by `by` and
/// adds `x`.
///
/// # Safety
/// As [`copy_rounds`].
macro_rules! copy_loop {
    ($class:ident, $mov:literal, $bytes:literal,
     [$a:literal, $b:literal, $c:literal, $d:literal], $add:literal,
     ($from:ident, $to:ident, $len:ident, $state:ident, $by:ident)) => {{
        let (a, b, c, d);
        let fault: u32;
        // Accesses `len` bytes of either side; each access succeeds or lands on 6 with `fault`
        // still 1 (module doc of `host`).
        asm!(
            "mov {fault:e}, 1",
            "2:",
            copy!($mov, $a, "a"), copy!($mov, $b, "b"), copy!($mov, $c, "c"), copy!($mov, $d, "d"),
            $add,
            "jmp 4f",
            "3:",
            next!($mov, $a, "a"), next!($mov, $b, "b"), next!($mov, $c, "c"), next!($mov, $d, "d"),
            "4:",
            concat!("add {from}, ", $bytes),
            concat!("add {to}, ", $bytes),
            concat!("sub {len}, ", $bytes),
            "jnz 3b",
            "5:",
            "xor {fault:e}, {fault:e}",
            "6:",
            guard!("2b", "5b", "6b"),
            from = inout(reg) $from => _,
            to = inout(reg) $to => _,
            len = inout(reg) $len => _,
            fault = out(reg) fault,
            state = in($class) $state,
            by = in($class) $by,
            a = out($class) a,
            b = out($class) b,
            c = out($class) c,
            d = out($class) d,
            x = out($class) _,
            y = out($class) _,
            options(nostack),
        );
        result(fault, [a, b, c, d])
    }};
}

/// By 128-bit registers.
///
/// # Safety
/// As [`copy_rounds`].
#[target_feature(enable = "pclmulqdq,sse4.1")]
unsafe fn copy_128(from: u64, to: u64, len: usize, state: u32) -> Result<u32, Fault> {
    macro_rules! fold {
        ($chain:literal) => {
            concat! {
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
    let state = _mm_cvtsi32_si128(state as i32);
    // SAFETY: our contract.
    let chains: [__m128i; 4] = unsafe {
        copy_loop!(
            xmm_reg,
            "movups",
            "64",
            ["0", "16", "32", "48"],
            "pxor {a}, {state}",
            (from, to, len, state, by)
        )?
    };
    Ok(end_rounds(chains))
}

/// By 256-bit registers.
///
/// # Safety
/// As [`copy_rounds`].
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.1")]
unsafe fn copy_256(from: u64, to: u64, len: usize, state: u32) -> Result<u32, Fault> {
    macro_rules! fold {
        ($chain:literal) => {
            concat! {
                "vpclmulqdq {y}, {", $chain, "}, {by}, 0\n",
                "vpclmulqdq {", $chain, "}, {", $chain, "}, {by}, 17\n",
                "vpxor {y}, {y}, {x}\n",
                "vpxor {", $chain, "}, {", $chain, "}, {y}\n",
            }
        };
    }
    let (low, high) = const { over_round(2) };
    let by = _mm256_broadcastsi128_si256(_mm_set_epi64x(high as i64, low as i64));
    let state = _mm256_zextsi128_si256(_mm_cvtsi32_si128(state as i32));
    // SAFETY: our contract.
    let chains: [__m256i; 4] = unsafe {
        copy_loop!(
            ymm_reg,
            "vmovdqu",
            "128",
            ["0", "32", "64", "96"],
            "vpxor {a}, {a}, {state}",
            (from, to, len, state, by)
        )?
    };
    Ok(end_rounds_256(chains))
}

/// By 512-bit registers.
///
/// # Safety
/// As [`copy_rounds`].
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.1,ssse3")]
unsafe fn copy_512(from: u64, to: u64, len: usize, state: u32) -> Result<u32, Fault> {
    macro_rules! fold {
        ($chain:literal) => {
            concat! {
                "vpclmulqdq {y}, {", $chain, "}, {by}, 0\n",
                "vpclmulqdq {", $chain, "}, {", $chain, "}, {by}, 17\n",
                // 0x96 is the truth table of a three-way xor.
                "vpternlogq {", $chain, "}, {y}, {x}, 0x96\n",
            }
        };
    }
    let (low, high) = const { over_round(4) };
    let by = _mm512_broadcast_i32x4(_mm_set_epi64x(high as i64, low as i64));
    let state = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
    // SAFETY: our contract.
    let chains: [__m512i; 4] = unsafe {
        copy_loop!(
            zmm_reg,
            "vmovdqu64",
            "256",
            ["0", "64", "128", "192"],
            "vpxorq {a}, {a}, {state}",
            (from, to, len, state, by)
        )?
    };
    Ok(end_rounds_512(chains))
}
