//! CRC-32 by 512-bit registers: VPCLMULQDQ and AVX-512.

use core::arch::x86_64::*;

use super::{
    begin, blocks_128, fold_high, fold_low, go_on, head_block, over_round, pair, reduce,
    update_short, WIDE_BLOCKS,
};

/// The state after `data`, by 512-bit registers where there is enough of it.
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.1,ssse3")]
pub(in crate::wire::icrc) fn update_512(state: u32, data: &[u8]) -> u32 {
    let Some(first) = data.first_chunk() else { return update_short(state, data) };
    let (block, blocks) = begin(state, first, data);
    reduce(if blocks.len() < WIDE_BLOCKS {
        blocks_128(block, blocks)
    } else {
        blocks_512(block, blocks)
    })
}

/// [`super::icrc_128`] by 512-bit registers where there is enough of it.
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.1,ssse3")]
pub(in crate::wire::icrc) fn icrc_512(
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
        blocks_512(block, blocks)
    })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_512(bytes: &[[u8; 16]; 4]) -> __m512i {
    // SAFETY: the reference covers the 64 bytes that are read, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Zeros, `block`, and up to three blocks, right-aligned in one register.
#[inline]
#[target_feature(enable = "avx512f")]
fn first_512(block: __m128i, blocks: &[[u8; 16]]) -> __m512i {
    let taken = blocks.len().min(3);
    // Two mask bits for each lane that is read; the lane before them takes `block`.
    let read = (0xFF00_u16 >> (2 * taken)) as u8;
    let lane = 0b1100_0000_u8 >> (2 * taken);
    let begin = blocks.as_ptr().cast::<i64>().wrapping_sub(8 - 2 * taken);
    // SAFETY: lanes whose mask bits are clear are not read, and the others are the last `taken` of
    // the four, which begin at the start of `blocks` and end where it ends or before. With none
    // taken the mask is clear.
    let loaded = unsafe { _mm512_maskz_loadu_epi64(read, begin) };
    _mm512_mask_blend_epi64(lane, loaded, _mm512_broadcast_i32x4(block))
}

/// Constants that fold all four lanes over the same distance.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(low: u64, high: u64) -> __m512i {
    _mm512_broadcast_i32x4(pair(low, high))
}

/// Every lane folded by its constants, with `next` added.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn step_512(wide: __m512i, by: __m512i, next: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128(wide, by, 0x00);
    let high = _mm512_clmulepi64_epi128(wide, by, 0x11);
    // 0x96 is the truth table of a three-way xor.
    _mm512_ternarylogic_epi64(low, high, next, 0x96)
}

/// [`super::step`] over all blocks, four chains of four lanes at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq")]
fn blocks_512(block: __m128i, blocks: &[[u8; 16]]) -> __m128i {
    // The block so far and the first few of `blocks` fill the first register, right-aligned, so
    // that the rest is a whole number of registers.
    let taken = blocks.len() % 4;
    let (first, rest) = blocks.split_at(taken);
    let mut wide = first_512(block, first);

    let (registers, _) = rest.as_chunks::<4>();
    let over_1 = lanes(const { fold_low(512) }, const { fold_high(512) });
    let (fours, registers) = registers.as_chunks::<4>();
    if let Some(([a, b, c, d], fours)) = fours.split_first() {
        let (low, high) = const { over_round(4) };
        let over_4 = lanes(low, high);
        let mut chain_a = step_512(wide, over_1, load_512(a));
        let mut chain_b = load_512(b);
        let mut chain_c = load_512(c);
        let mut chain_d = load_512(d);
        for [a, b, c, d] in fours {
            chain_a = step_512(chain_a, over_4, load_512(a));
            chain_b = step_512(chain_b, over_4, load_512(b));
            chain_c = step_512(chain_c, over_4, load_512(c));
            chain_d = step_512(chain_d, over_4, load_512(d));
        }
        wide = join([chain_a, chain_b, chain_c, chain_d]);
    }
    for bytes in registers {
        wide = step_512(wide, over_1, load_512(bytes));
    }
    last(wide)
}

/// Four chains as one register.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn join([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let over_1 = lanes(const { fold_low(512) }, const { fold_high(512) });
    let over_2 = lanes(const { fold_low(1024) }, const { fold_high(1024) });
    let over_3 = lanes(const { fold_low(1536) }, const { fold_high(1536) });
    step_512(a, over_3, step_512(b, over_2, step_512(c, over_1, d)))
}

/// A register as one block.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq")]
fn last(wide: __m512i) -> __m128i {
    // Each lane goes over those after it; the last one stays.
    let by = _mm512_set_epi64(
        0,
        0,
        const { fold_high(128) } as i64,
        const { fold_low(128) } as i64,
        const { fold_high(256) } as i64,
        const { fold_low(256) } as i64,
        const { fold_high(384) } as i64,
        const { fold_low(384) } as i64,
    );
    let last = _mm512_maskz_mov_epi64(0b1100_0000, wide);
    let sum = step_512(wide, by, last);
    let half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1))
}

/// [`super::end_rounds`] of 512-bit registers.
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.1")]
pub(crate) fn end_rounds_512(chains: [__m512i; 4]) -> u32 {
    reduce(last(join(chains)))
}
