//! CRC-32 by 512-bit registers: VPCLMULQDQ and AVX-512.

use core::arch::x86_64::*;

use super::{
    begin, blocks_128, fold_high, fold_low, go_on, head_block, pair, reduce, update_short,
    WIDE_BLOCKS,
};

wide!(
    "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.1,ssse3",
    __m512i,
    4,
    update_512,
    icrc_512,
    end_rounds_512
);

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[[u8; 16]; 4]) -> __m512i {
    // SAFETY: the reference covers the 64 bytes that are read, and the load asks for no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Zeros, `block`, and up to three of `blocks`, right-aligned in the first register.
#[inline]
#[target_feature(enable = "avx512f")]
fn first(block: __m128i, blocks: &[[u8; 16]]) -> (__m512i, &[[u8; 16]]) {
    let taken = blocks.len() % 4;
    let (blocks, rest) = blocks.split_at(taken);
    // Two mask bits for each lane that is read; the lane before them takes `block`.
    let read = (0xFF00_u16 >> (2 * taken)) as u8;
    let lane = 0b1100_0000_u8 >> (2 * taken);
    let begin = blocks.as_ptr().cast::<i64>().wrapping_sub(8 - 2 * taken);
    // SAFETY: lanes whose mask bits are clear are not read, and the others are the last `taken` of
    // the four, which begin at the start of `blocks` and end where it ends. With none
    // taken the mask is clear.
    let loaded = unsafe { _mm512_maskz_loadu_epi64(read, begin) };
    (_mm512_mask_blend_epi64(lane, loaded, _mm512_broadcast_i32x4(block)), rest)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(low: u64, high: u64) -> __m512i {
    _mm512_broadcast_i32x4(pair(low, high))
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn step(wide: __m512i, by: __m512i, next: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128(wide, by, 0x00);
    let high = _mm512_clmulepi64_epi128(wide, by, 0x11);
    // 0x96 is the truth table of a three-way xor.
    _mm512_ternarylogic_epi64(low, high, next, 0x96)
}

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
    let sum = step(wide, by, last);
    let half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
    _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1))
}
