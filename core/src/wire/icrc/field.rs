//! Arithmetic modulo the CRC's polynomial. It moves the difference of two CRCs forward over bytes
//! that both have, or back over them.

use super::table::{times_x, POLY};

/// The residue that [`times_x`] turns into `state`: a division by x.
const fn over_x(state: u32) -> u32 {
    let carry = state >> 31;
    ((state ^ if carry != 0 { POLY } else { 0 }) << 1) | carry
}

/// The product of two residues. Bitwise, about 30 ns: it is needed once or twice for a foreign
/// packet, or for one that changes its flow.
const fn product(a: u32, b: u32) -> u32 {
    let mut b = b;
    let mut sum = 0;
    let mut bit = 0;
    while bit < 32 {
        // The highest bit is the coefficient of x^0.
        let mask = ((a << bit) as i32 >> 31) as u32;
        sum ^= b & mask;
        b = times_x(b);
        bit += 1;
    }
    sum
}

/// `x^(8 · step · i)` for i = 0..256; with `back`, `x^(-8 · step · i)`.
const fn powers(step: u32, back: bool) -> [u32; 256] {
    let mut table = [0; 256];
    let mut power = 1 << 31;
    let mut i = 0;
    let mut factor = 1 << 31;
    let mut bits = 0;
    while bits < 8 * step {
        factor = if back { over_x(factor) } else { times_x(factor) };
        bits += 1;
    }
    while i < 256 {
        table[i] = power;
        power = product(power, factor);
        i += 1;
    }
    table
}

static BACK_1: [u32; 256] = powers(1, true);
static BACK_256: [u32; 256] = powers(256, true);
static ON_1: [u32; 256] = powers(1, false);
static ON_256: [u32; 256] = powers(256, false);

/// The state before `bytes` zero bytes (at most 65535, a datagram is shorter).
pub(super) fn unshift(state: u32, bytes: u16) -> u32 {
    let [high, low] = bytes.to_be_bytes();
    product(product(state, BACK_1[low as usize]), BACK_256[high as usize])
}

/// The state after `bytes` zero bytes. A difference of two states changes in the same way over any
/// bytes that both have.
pub(super) fn shift(state: u32, bytes: u16) -> u32 {
    let [high, low] = bytes.to_be_bytes();
    product(product(state, ON_1[low as usize]), ON_256[high as usize])
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    #[test]
    fn division_undoes_multiplication() {
        for state in [1, 0x8000_0000, 0xFFFF_FFFF, 0xDEAD_BEEF, POLY] {
            assert_eq!(over_x(times_x(state)), state);
            assert_eq!(times_x(over_x(state)), state);
            assert_eq!(product(state, 1 << 31), state);
            assert_eq!(product(1 << 30, state), times_x(state));
        }
    }

    #[test]
    fn zero_bytes_are_shifts_and_undone() {
        let zeros = [0; 70_000];
        for n in [0, 1, 2, 255, 256, 257, 4096, 4240, 65_535] {
            let state = table::update(0x1234_5678, &zeros[..n as usize]);
            assert_eq!(shift(0x1234_5678, n), state, "{n}");
            assert_eq!(unshift(state, n), 0x1234_5678, "{n}");
        }
    }
}
