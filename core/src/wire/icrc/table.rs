//! CRC-32 by tables, sixteen bytes a step: for machines without carry-less multiplication, and as
//! the reference.

/// The polynomial, lowest degree in the highest bit.
pub(super) const POLY: u32 = 0xEDB8_8320;

/// The residue of `state` one bit later, with zero as data: a multiplication by x.
pub(super) const fn times_x(state: u32) -> u32 {
    (state >> 1) ^ if state & 1 != 0 { POLY } else { 0 }
}

/// `TABLES[k][b]`: the state that byte `b` leaves behind after `k` more bytes.
static TABLES: [[u32; 256]; 16] = {
    let mut tables = [[0; 256]; 16];
    let mut b = 0;
    while b < 256 {
        let mut state = b as u32;
        let mut bit = 0;
        while bit < 8 {
            state = times_x(state);
            bit += 1;
        }
        tables[0][b] = state;
        b += 1;
    }
    let mut k = 1;
    while k < 16 {
        let mut b = 0;
        while b < 256 {
            let before = tables[k - 1][b];
            tables[k][b] = (before >> 8) ^ tables[0][(before & 0xFF) as usize];
            b += 1;
        }
        k += 1;
    }
    tables
};

/// The state after `data`.
pub(super) fn update(mut state: u32, data: &[u8]) -> u32 {
    let (blocks, rest) = data.as_chunks::<16>();
    for &[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] in blocks {
        let [a, b, c, d] = (state ^ u32::from_le_bytes([a, b, c, d])).to_le_bytes();
        let at = |k: usize, byte: u8| TABLES[k][byte as usize];
        state = at(15, a)
            ^ at(14, b)
            ^ at(13, c)
            ^ at(12, d)
            ^ (at(11, e) ^ at(10, f) ^ at(9, g) ^ at(8, h))
            ^ (at(7, i) ^ at(6, j) ^ at(5, k) ^ at(4, l))
            ^ (at(3, m) ^ at(2, n) ^ at(1, o) ^ at(0, p));
    }
    for &byte in rest {
        state = (state >> 8) ^ TABLES[0][(state as u8 ^ byte) as usize];
    }
    state
}
