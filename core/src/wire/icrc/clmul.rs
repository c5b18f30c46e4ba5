//! CRC-32 by carry-less multiplication: 128 bits at a time, or 256 or 512 where the machine can.
//!
//! Registers hold polynomials bit-reflected, as the CRC wants them: bit `i` of 128 is the
//! coefficient of x^(127−i). A carry-less product of two 64-bit halves comes out multiplied by x,
//! so every constant below is one power short.
//!
//! A block is *folded over* D bits by replacing it with a shorter polynomial of the same residue as
//! block · x^D: two products and a xor. The data is consumed from its front so that what is left is
//! a whole number of 16-byte blocks, and nothing is left over at the end, where it would lengthen
//! the chain of dependent products.

use core::arch::x86_64::*;

use super::table::{times_x, POLY};

/// The functions that wide registers of any width have in common. The module defines these for its
/// width: `first` puts the block so far, and as many blocks as leave whole registers, into one
/// register; `load` loads a register; `lanes` makes constants that fold every lane over the same
/// distance; `step` folds every lane and adds the next register; `last` folds a register into one
/// block.
macro_rules! wide {
    ($features:literal, $register:ty, $lanes:literal, $update:ident, $icrc:ident, $end:ident) => {
        /// The state after `data`, by wide registers where there is enough of it.
        #[target_feature(enable = $features)]
        pub(in crate::wire::icrc) fn $update(state: u32, data: &[u8]) -> u32 {
            let Some(first) = data.first_chunk() else { return update_short(state, data) };
            let (block, blocks) = begin(state, first, data);
            reduce(over_blocks(block, blocks))
        }

        /// [`super::icrc_128`] by wide registers where there is enough of it.
        #[target_feature(enable = $features)]
        pub(in crate::wire::icrc) fn $icrc(
            varying: u64,
            fold: u64,
            begin: u64,
            end: u64,
            rest: &[u8],
        ) -> u32 {
            let (block, blocks) = go_on(head_block(varying, fold, begin, end), rest);
            reduce(over_blocks(block, blocks))
        }

        /// [`super::step`] over all blocks, four chains of wide registers at a time.
        #[inline]
        #[target_feature(enable = $features)]
        fn over_blocks(block: __m128i, blocks: &[[u8; 16]]) -> __m128i {
            if blocks.len() < WIDE_BLOCKS {
                return blocks_128(block, blocks);
            }
            let (mut wide, rest) = first(block, blocks);
            let (registers, _) = rest.as_chunks::<$lanes>();
            let over_1 = fold_over::<1>();
            let (fours, registers) = registers.as_chunks::<4>();
            if let Some(([a, b, c, d], fours)) = fours.split_first() {
                let over_4 = fold_over::<4>();
                let mut chain_a = step(wide, over_1, load(a));
                let mut chain_b = load(b);
                let mut chain_c = load(c);
                let mut chain_d = load(d);
                for [a, b, c, d] in fours {
                    chain_a = step(chain_a, over_4, load(a));
                    chain_b = step(chain_b, over_4, load(b));
                    chain_c = step(chain_c, over_4, load(c));
                    chain_d = step(chain_d, over_4, load(d));
                }
                wide = join([chain_a, chain_b, chain_c, chain_d]);
            }
            for bytes in registers {
                wide = step(wide, over_1, load(bytes));
            }
            last(wide)
        }

        /// What folds every lane over `N` registers.
        #[inline]
        #[target_feature(enable = $features)]
        fn fold_over<const N: u32>() -> $register {
            lanes(const { fold_low(128 * $lanes * N) }, const { fold_high(128 * $lanes * N) })
        }

        /// Four chains as one register.
        #[inline]
        #[target_feature(enable = $features)]
        fn join([a, b, c, d]: [$register; 4]) -> $register {
            step(a, fold_over::<3>(), step(b, fold_over::<2>(), step(c, fold_over::<1>(), d)))
        }

        /// [`super::end_rounds`] of wide registers.
        #[target_feature(enable = $features)]
        pub(crate) fn $end(chains: [$register; 4]) -> u32 {
            reduce(last(join(chains)))
        }
    };
}

pub(crate) mod features;
pub(super) mod wide_256;
pub(super) mod wide_512;

/// x^n modulo the polynomial, as the upper half of 64 bits.
const fn power(n: u32) -> u64 {
    let mut residue: u32 = 1 << 31;
    let mut i = 0;
    while i < n {
        residue = times_x(residue);
        i += 1;
    }
    (residue as u64) << 32
}

/// The constant that folds the later half of a block (bytes 8 to 15) over `bits`.
pub(super) const fn fold_high(bits: u32) -> u64 {
    power(bits - 1)
}

/// The constant that folds the earlier half of a block (bytes 0 to 7) over `bits`.
const fn fold_low(bits: u32) -> u64 {
    power(bits + 63)
}

/// floor(x^96 / P) reflected in 65 bits, of which the last, that of x^0, is left out.
const BARRETT: u64 = {
    let poly: u128 = 1 << 32 | POLY.reverse_bits() as u128;
    let mut rest: u128 = 1 << 96;
    let mut reflected: u64 = 0;
    let mut degree = 64;
    while degree > 0 {
        if rest >> (degree + 32) & 1 != 0 {
            rest ^= poly << degree;
            reflected |= 1 << (64 - degree);
        }
        degree -= 1;
    }
    reflected
};

/// P reflected in 33 bits.
const POLY_33: u64 = (POLY as u64) << 1 | 1;

/// Shuffles that move a block by bytes: see [`later`] and [`earlier`].
static SHIFTS: [u8; 48] = {
    let mut shifts = [0x80; 48];
    let mut i = 0;
    while i < 16 {
        shifts[16 + i] = i as u8;
        i += 1;
    }
    shifts
};

#[inline]
#[target_feature(enable = "sse2")]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes that are read, and the load asks for no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn pair(low: u64, high: u64) -> __m128i {
    _mm_set_epi64x(high as i64, low as i64)
}

/// The 16 bytes of [`SHIFTS`] at `at`, which is 32 at most by its callers' arithmetic.
#[inline]
#[target_feature(enable = "sse2")]
fn shifts_at(at: usize) -> __m128i {
    match SHIFTS.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(shuffle) => load(shuffle),
        None => _mm_setzero_si128(),
    }
}

/// The block moved `bytes` (0 to 16) towards its end; zeros come in at the front.
#[inline]
#[target_feature(enable = "ssse3")]
fn later(block: __m128i, bytes: usize) -> __m128i {
    _mm_shuffle_epi8(block, shifts_at(16 - bytes))
}

/// The block moved `bytes` (0 to 16) towards its front; zeros come in at the end.
#[inline]
#[target_feature(enable = "ssse3")]
fn earlier(block: __m128i, bytes: usize) -> __m128i {
    _mm_shuffle_epi8(block, shifts_at(16 + bytes))
}

/// Up to 16 bytes at the front of a block of zeros.
#[inline]
#[target_feature(enable = "sse2")]
fn load_some(bytes: &[u8]) -> __m128i {
    // Two loads that overlap in the middle cover every length from one to two of their width.
    let len = bytes.len();
    if let Some(whole) = bytes.first_chunk() {
        return load(whole);
    }
    let value = if let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) {
        u64::from_le_bytes(*head) as u128 | (u64::from_le_bytes(*tail) as u128) << (8 * (len - 8))
    } else if let (Some(head), Some(tail)) = (bytes.first_chunk(), bytes.last_chunk()) {
        u32::from_le_bytes(*head) as u128 | (u32::from_le_bytes(*tail) as u128) << (8 * (len - 4))
    } else {
        bytes.iter().rev().fold(0, |value, &byte| value << 8 | byte as u128)
    };
    pair(value as u64, (value >> 64) as u64)
}

/// The block folded by the constants for its halves.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold(block: __m128i, by: __m128i) -> __m128i {
    _mm_xor_si128(_mm_clmulepi64_si128(block, by, 0x00), _mm_clmulepi64_si128(block, by, 0x11))
}

/// `block` folded over the 16 bytes of `next`, with `next` added.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn step(block: __m128i, next: __m128i) -> __m128i {
    _mm_xor_si128(fold(block, pair(const { fold_low(128) }, const { fold_high(128) })), next)
}

/// The CRC state that a block leaves behind: block · x^32 modulo the polynomial. Three products in
/// a row.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn reduce(block: __m128i) -> u32 {
    // The earlier half goes over 96 bits into what is below x^96, where the later half, shifted,
    // belongs as well.
    let early = _mm_clmulepi64_si128(block, _mm_cvtsi64_si128(const { power(95) } as i64), 0x00);
    let late = _mm_slli_si128(_mm_srli_si128(block, 8), 4);
    let value = _mm_xor_si128(early, late);
    // Barrett: the quotient of the 64 upper coefficients, and what quotient · P leaves of the 32
    // lower ones.
    let quotient =
        _mm_clmulepi64_si128(_mm_srli_si128(value, 4), _mm_cvtsi64_si128(BARRETT as i64), 0x00);
    let multiple = _mm_clmulepi64_si128(quotient, _mm_cvtsi64_si128(POLY_33 as i64), 0x00);
    (_mm_extract_epi32(multiple, 2) ^ _mm_extract_epi32(value, 3)) as u32
}

/// Begins with a state and data of at least 16 bytes: the block so far, and the whole blocks that
/// follow.
#[inline]
#[target_feature(enable = "pclmulqdq,ssse3")]
fn begin<'a>(state: u32, first: &[u8; 16], data: &'a [u8]) -> (__m128i, &'a [[u8; 16]]) {
    let state = _mm_cvtsi32_si128(state as i32);
    let odd = data.len() % 16;
    let (_, rest) = data.split_at(odd);
    let (blocks, _) = rest.as_chunks();
    let Some((second, blocks)) = blocks.split_first() else {
        // There are 16 bytes after the odd ones, because there are 16 in all.
        return (_mm_setzero_si128(), &[]);
    };
    if odd == 0 {
        return (_mm_xor_si128(load(second), state), blocks);
    }
    // The odd bytes form a block with zeros before them; the state may reach into the next.
    let block = later(_mm_xor_si128(load(first), state), 16 - odd);
    (step(block, _mm_xor_si128(load(second), earlier(state, odd))), blocks)
}

/// Goes on from a complete block: the same, with as many bytes taken from `data` as leave whole
/// blocks.
#[inline]
#[target_feature(enable = "pclmulqdq,ssse3")]
fn go_on(block: __m128i, data: &[u8]) -> (__m128i, &[[u8; 16]]) {
    let odd = data.len() % 16;
    let (head, rest) = data.split_at(odd);
    let (blocks, _) = rest.as_chunks();
    if odd == 0 {
        return (block, blocks);
    }
    // The sixteen bytes that end with the odd ones begin inside the block.
    let head = match data.first_chunk() {
        Some(whole) => load(whole),
        None => load_some(head),
    };
    let next = _mm_or_si128(earlier(block, odd), later(head, 16 - odd));
    (step(later(block, 16 - odd), next), blocks)
}

/// The constants that fold a chain over a round, which is four registers of so many lanes: for the
/// earlier and for the later half of a block.
pub(crate) const fn over_round(lanes: u32) -> (u64, u64) {
    (fold_low(512 * lanes), fold_high(512 * lanes))
}

/// Four chains as one block.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn join([a, b, c, d]: [__m128i; 4]) -> __m128i {
    step(step(step(a, b), c), d)
}

/// The state after rounds of four blocks, each chain folded by [`over_round`].
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(crate) fn end_rounds(chains: [__m128i; 4]) -> u32 {
    reduce(join(chains))
}

/// [`step`] over all blocks, four chains at a time.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn blocks_128(mut block: __m128i, blocks: &[[u8; 16]]) -> __m128i {
    let (fours, rest) = blocks.as_chunks::<4>();
    if let Some(([a, b, c, d], fours)) = fours.split_first() {
        let (low, high) = const { over_round(1) };
        let by = pair(low, high);
        let mut chains = [step(block, load(a)), load(b), load(c), load(d)];
        for four in fours {
            for (chain, bytes) in chains.iter_mut().zip(four) {
                *chain = _mm_xor_si128(fold(*chain, by), load(bytes));
            }
        }
        block = join(chains);
    }
    for bytes in rest {
        block = step(block, load(bytes));
    }
    block
}

/// The state after less than 16 bytes.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn update_short(state: u32, data: &[u8]) -> u32 {
    let len = data.len();
    let block = _mm_xor_si128(load_some(data), _mm_cvtsi32_si128(state as i32));
    // The bytes of the state that lie beyond the data are only shifted.
    let left = if len < 4 { state >> (8 * len) } else { 0 };
    if len == 0 {
        return state;
    }
    reduce(later(block, 16 - len)) ^ left
}

/// The state after `data`, by 128-bit registers.
#[target_feature(enable = "pclmulqdq,sse4.1,ssse3")]
pub(super) fn update_128(state: u32, data: &[u8]) -> u32 {
    let Some(first) = data.first_chunk() else { return update_short(state, data) };
    let (block, blocks) = begin(state, first, data);
    reduce(blocks_128(block, blocks))
}

/// The state after a packet, by 128-bit registers. The arguments: the eight bytes that vary, the
/// constant that folds them up to the end of the BTH, the two numbers of
/// [`super::MaskedHeaders::last`], and the bytes after the BTH.
#[target_feature(enable = "pclmulqdq,sse4.1,ssse3")]
pub(super) fn icrc_128(varying: u64, fold: u64, begin: u64, end: u64, rest: &[u8]) -> u32 {
    let (block, blocks) = go_on(head_block(varying, fold, begin, end), rest);
    reduce(blocks_128(block, blocks))
}

/// The block that stands for all of a packet up to the end of the BTH.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2")]
fn head_block(varying: u64, fold: u64, begin: u64, end: u64) -> __m128i {
    let varying = _mm_clmulepi64_si128(
        _mm_cvtsi64_si128(varying as i64),
        _mm_cvtsi64_si128(fold as i64),
        0x00,
    );
    _mm_xor_si128(varying, pair(begin, end))
}

/// Fewest blocks for which wider registers pay.
const WIDE_BLOCKS: usize = 12;
