//! CRC-32 by 256-bit registers: VPCLMULQDQ and AVX2.

use core::arch::x86_64::*;

use super::{
    begin, blocks_128, fold_high, fold_low, go_on, head_block, pair, reduce, update_short,
    WIDE_BLOCKS,
};

wide!("avx2,vpclmulqdq,pclmulqdq,sse4.1,ssse3", __m256i, 2, update_256, icrc_256, end_rounds_256);

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[[u8; 16]; 2]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes that are read, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// `block` ends the first register, or precedes an odd block in it.
#[inline]
#[target_feature(enable = "avx2")]
fn first(block: __m128i, blocks: &[[u8; 16]]) -> (__m256i, &[[u8; 16]]) {
    match blocks.split_at(blocks.len() % 2) {
        ([odd], rest) => (_mm256_set_m128i(super::load(odd), block), rest),
        (_, rest) => (_mm256_set_m128i(block, _mm_setzero_si128()), rest),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes(low: u64, high: u64) -> __m256i {
    _mm256_broadcastsi128_si256(pair(low, high))
}

#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn step(wide: __m256i, by: __m256i, next: __m256i) -> __m256i {
    let low = _mm256_clmulepi64_epi128(wide, by, 0x00);
    let high = _mm256_clmulepi64_epi128(wide, by, 0x11);
    _mm256_xor_si256(_mm256_xor_si256(low, high), next)
}

#[inline]
#[target_feature(enable = "avx2,pclmulqdq")]
fn last(wide: __m256i) -> __m128i {
    super::step(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1))
}
