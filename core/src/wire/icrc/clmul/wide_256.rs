//! CRC-32 by 256-bit registers: VPCLMULQDQ and AVX2.

use core::arch::x86_64::*;

use super::{
    begin, blocks_128, fold_high, fold_low, go_on, head_block, load, over_round, pair, reduce,
    step, update_short, WIDE_BLOCKS,
};

/// The state after `data`, by 256-bit registers where there is enough of it.
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.1,ssse3")]
pub(in crate::wire::icrc) fn update_256(state: u32, data: &[u8]) -> u32 {
    let Some(first) = data.first_chunk() else { return update_short(state, data) };
    let (block, blocks) = begin(state, first, data);
    reduce(if blocks.len() < WIDE_BLOCKS {
        blocks_128(block, blocks)
    } else {
        blocks_256(block, blocks)
    })
}

/// [`super::icrc_128`] by 256-bit registers where there is enough of it.
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.1,ssse3")]
pub(in crate::wire::icrc) fn icrc_256(
    varying: u64,
    fold: u64,
    begin: u64,
    end: u64,
    rest: &[u8],
) -> u32 {
    let (block, blocks) = go_on(head_block(varying, fold, begin, end), rest);
    reduce(if blocks.len() < WIDE_BLOCKS {
        blocks_128(block, blocks)
    } else {
        blocks_256(block, blocks)
    })
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_256(bytes: &[[u8; 16]; 2]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes that are read, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Constants that fold both lanes over the same distance.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(low: u64, high: u64) -> __m256i {
    _mm256_broadcastsi128_si256(pair(low, high))
}

/// Both lanes folded by their constants, with `next` added.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn step_256(wide: __m256i, by: __m256i, next: __m256i) -> __m256i {
    let low = _mm256_clmulepi64_epi128(wide, by, 0x00);
    let high = _mm256_clmulepi64_epi128(wide, by, 0x11);
    _mm256_xor_si256(_mm256_xor_si256(low, high), next)
}

/// [`super::step`] over all blocks, four chains of two lanes at a time.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq")]
fn blocks_256(block: __m128i, blocks: &[[u8; 16]]) -> __m128i {
    // The block so far ends the first register, or precedes an odd block in it, so that the rest is
    // a whole number of registers.
    let (odd, rest) = blocks.split_at(blocks.len() % 2);
    let mut wide = match odd {
        [first] => _mm256_set_m128i(load(first), block),
        _ => _mm256_set_m128i(block, _mm_setzero_si128()),
    };
    let (registers, _) = rest.as_chunks::<2>();
    let over_1 = lanes(const { fold_low(256) }, const { fold_high(256) });
    let (fours, registers) = registers.as_chunks::<4>();
    if let Some(([a, b, c, d], fours)) = fours.split_first() {
        let (low, high) = const { over_round(2) };
        let over_4 = lanes(low, high);
        let mut chain_a = step_256(wide, over_1, load_256(a));
        let mut chain_b = load_256(b);
        let mut chain_c = load_256(c);
        let mut chain_d = load_256(d);
        for [a, b, c, d] in fours {
            chain_a = step_256(chain_a, over_4, load_256(a));
            chain_b = step_256(chain_b, over_4, load_256(b));
            chain_c = step_256(chain_c, over_4, load_256(c));
            chain_d = step_256(chain_d, over_4, load_256(d));
        }
        wide = join([chain_a, chain_b, chain_c, chain_d]);
    }
    for bytes in registers {
        wide = step_256(wide, over_1, load_256(bytes));
    }
    last(wide)
}

/// Four chains as one register.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn join([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let over_1 = lanes(const { fold_low(256) }, const { fold_high(256) });
    let over_2 = lanes(const { fold_low(512) }, const { fold_high(512) });
    let over_3 = lanes(const { fold_low(768) }, const { fold_high(768) });
    step_256(a, over_3, step_256(b, over_2, step_256(c, over_1, d)))
}

/// A register as one block.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq")]
fn last(wide: __m256i) -> __m128i {
    step(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1))
}

/// [`super::end_rounds`] of 256-bit registers.
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.1")]
pub(crate) fn end_rounds_256(chains: [__m256i; 4]) -> u32 {
    reduce(last(join(chains)))
}
