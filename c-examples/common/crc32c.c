// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * CRC-32C. The crc32 instruction has a latency of three cycles and a throughput of one, so three
 * independent streams keep it busy; the three registers are then joined by multiplying with x^(8n)
 * modulo the polynomial, done with tables. Without the instruction: eight tables, eight bytes a
 * step.
 */
#include "gx.h"

#include <string.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#define POLY 0x82f63b78u /* reflected: bit 31 is x^0 */
#define LANE_LONG 8192u
#define LANE_SHORT 256u

static uint32_t slice[8][256];

static void make_slices(void)
{
    for (unsigned n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ POLY : c >> 1;
        slice[0][n] = c;
    }
    for (unsigned n = 0; n < 256; n++)
        for (int k = 1; k < 8; k++)
            slice[k][n] = slice[k - 1][n] >> 8 ^ slice[0][slice[k - 1][n] & 0xff];
}

static uint32_t with_tables(uint32_t c, const uint8_t *at, size_t length)
{
    while (length >= 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= c; /* little-endian hosts only, like the library itself */
        c = slice[7][low & 0xff] ^ slice[6][low >> 8 & 0xff] ^ slice[5][low >> 16 & 0xff] ^
            slice[4][low >> 24] ^ slice[3][high & 0xff] ^ slice[2][high >> 8 & 0xff] ^
            slice[1][high >> 16 & 0xff] ^ slice[0][high >> 24];
        at += 8;
        length -= 8;
    }
    while (length--)
        c = c >> 8 ^ slice[0][(c ^ *at++) & 0xff];
    return c;
}

/* Products are modulo the polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ POLY : b >> 1;
    }
    return product;
}

/* x^(8 * bytes): what a register is multiplied with when so many zero bytes follow. */
static uint32_t power_of_zeros(uint64_t bytes)
{
    uint32_t power = 1u << 31, square = 1u << 23; /* 1 and x^8 */
    for (; bytes; bytes >>= 1) {
        if (bytes & 1)
            power = multiply(power, square);
        square = multiply(square, square);
    }
    return power;
}

#if defined(__x86_64__)
static uint32_t over_long[4][256], over_short[4][256];
static bool have_instruction;

/* Table of "append `bytes` zero bytes" for each byte of the register. */
static void make_shift(uint32_t table[4][256], size_t bytes)
{
    uint32_t power = power_of_zeros(bytes);
    for (int k = 0; k < 4; k++)
        for (uint32_t n = 0; n < 256; n++)
            table[k][n] = multiply(power, n << 8 * k);
}

static inline uint32_t shift(uint32_t table[4][256], uint32_t c)
{
    return table[0][c & 0xff] ^ table[1][c >> 8 & 0xff] ^ table[2][c >> 16 & 0xff] ^
           table[3][c >> 24];
}

static inline uint64_t word(const uint8_t *at)
{
    uint64_t v;
    memcpy(&v, at, 8);
    return v;
}

__attribute__((target("sse4.2"))) static uint32_t three_lanes(uint32_t c, const uint8_t *at,
                                                              size_t lane, uint32_t table[4][256])
{
    uint64_t a = c, b = 0, d = 0;
    for (size_t i = 0; i < lane; i += 8) {
        a = _mm_crc32_u64(a, word(at + i));
        b = _mm_crc32_u64(b, word(at + lane + i));
        d = _mm_crc32_u64(d, word(at + 2 * lane + i));
    }
    return shift(table, shift(table, (uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)d;
}

__attribute__((target("sse4.2"))) static uint32_t with_instruction(uint32_t c, const uint8_t *at,
                                                                   size_t length)
{
    for (; length >= 3 * LANE_LONG; at += 3 * LANE_LONG, length -= 3 * LANE_LONG)
        c = three_lanes(c, at, LANE_LONG, over_long);
    for (; length >= 3 * LANE_SHORT; at += 3 * LANE_SHORT, length -= 3 * LANE_SHORT)
        c = three_lanes(c, at, LANE_SHORT, over_short);
    uint64_t wide = c;
    for (; length >= 8; at += 8, length -= 8)
        wide = _mm_crc32_u64(wide, word(at));
    c = (uint32_t)wide;
    while (length--)
        c = _mm_crc32_u8(c, *at++);
    return c;
}
#endif

/* Before main(), so that no thread ever finds a half-made table. */
__attribute__((constructor)) static void make_tables(void)
{
    make_slices();
#if defined(__x86_64__)
    __builtin_cpu_init();
    have_instruction = __builtin_cpu_supports("sse4.2");
    make_shift(over_long, LANE_LONG);
    make_shift(over_short, LANE_SHORT);
#endif
}

uint32_t gx_crc32c(uint32_t crc, const void *bytes, size_t length)
{
#if defined(__x86_64__)
    if (have_instruction)
        return ~with_instruction(~crc, bytes, length);
#endif
    return ~with_tables(~crc, bytes, length);
}

uint32_t gx_crc32c_zeros(uint32_t crc, uint64_t length)
{
    return ~multiply(power_of_zeros(length), ~crc);
}
