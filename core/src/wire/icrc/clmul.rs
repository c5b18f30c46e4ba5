//! CRC-32 by carry-less multiplication: 128 bits at a time, or 512 where the machine can.
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

/// What folds the later half of a block (bytes 8 to 15) over `bits`.
pub(super) const fn fold_high(bits: u32) -> u64 {
    power(bits - 1)
}

/// What folds the earlier half of a block (bytes 0 to 7) over `bits`.
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

/// [`step`] over all blocks, four chains at a time.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn blocks_128(mut block: __m128i, blocks: &[[u8; 16]]) -> __m128i {
    let (fours, rest) = blocks.as_chunks::<4>();
    if let Some(([a, b, c, d], fours)) = fours.split_first() {
        let by = pair(const { fold_low(512) }, const { fold_high(512) });
        let mut chains = [step(block, load(a)), load(b), load(c), load(d)];
        for four in fours {
            for (chain, bytes) in chains.iter_mut().zip(four) {
                *chain = _mm_xor_si128(fold(*chain, by), load(bytes));
            }
        }
        let [a, b, c, d] = chains;
        block = step(step(step(a, b), c), d);
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
    // What the data is too short to meet of the state only moves.
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

/// The state after a packet, by 128-bit registers: eight bytes that vary, the constant that folds
/// them over what comes up to the end of the BTH, the two numbers of [`super::Head::last`], and
/// what follows the BTH.
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

/// From here on 512-bit registers are worth their entry and exit.
const WIDE_BLOCKS: usize = 12;

/// The state after `data`, by 512-bit registers where there is enough of it.
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.1,ssse3")]
pub(super) fn update_512(state: u32, data: &[u8]) -> u32 {
    let Some(first) = data.first_chunk() else { return update_short(state, data) };
    let (block, blocks) = begin(state, first, data);
    reduce(if blocks.len() < WIDE_BLOCKS {
        blocks_128(block, blocks)
    } else {
        blocks_512(block, blocks)
    })
}

/// [`icrc_128`] by 512-bit registers where there is enough of it.
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.1,ssse3")]
pub(super) fn icrc_512(varying: u64, fold: u64, begin: u64, end: u64, rest: &[u8]) -> u32 {
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

/// [`step`] over all blocks, four chains of four lanes at a time.
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
        let over_4 = lanes(const { fold_low(2048) }, const { fold_high(2048) });
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
        let over_3 = lanes(const { fold_low(1536) }, const { fold_high(1536) });
        let over_2 = lanes(const { fold_low(1024) }, const { fold_high(1024) });
        let late = step_512(chain_c, over_1, chain_d);
        wide = step_512(chain_a, over_3, step_512(chain_b, over_2, late));
    }
    for bytes in registers {
        wide = step_512(wide, over_1, load_512(bytes));
    }

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

/// The processor's description of itself, sub-leaf 0.
// Newer compilers hold the instruction for safe.
#[allow(unused_unsafe)]
fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { __cpuid_count(leaf, 0) }
}

/// Whether the machine and its operating system have what the 128-bit functions need.
pub(super) fn has_128() -> bool {
    const SSSE3: u32 = 1 << 9;
    const NEEDED: u32 = SSSE3 | PCLMULQDQ | SSE41;
    const PCLMULQDQ: u32 = 1 << 1;
    const SSE41: u32 = 1 << 19;
    cpuid(0).eax >= 1 && cpuid(1).ecx & NEEDED == NEEDED
}

/// Whether the machine and its operating system have what the 512-bit functions need.
pub(super) fn has_512() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    if !has_128() || cpuid(0).eax < 7 || cpuid(1).ecx & (OSXSAVE | AVX) != OSXSAVE | AVX {
        return false;
    }
    // SAFETY: OSXSAVE says that the instruction exists and that the system has enabled it.
    let saved = unsafe { xgetbv() };
    // SSE, AVX, and the three parts of AVX-512's registers are kept across context switches.
    const STATE: u64 = 0b1110_0110;
    const AVX2: u32 = 1 << 5;
    const AVX512F: u32 = 1 << 16;
    const AVX512VL: u32 = 1 << 31;
    const VPCLMULQDQ: u32 = 1 << 10;
    const EBX: u32 = AVX2 | AVX512F | AVX512VL;
    let leaf = cpuid(7);
    saved & STATE == STATE && leaf.ebx & EBX == EBX && leaf.ecx & VPCLMULQDQ != 0
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
