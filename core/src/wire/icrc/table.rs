//! CRC-32 by tables, sixteen bytes a step: for machines without carry-less multiplication, and as the reference.

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
    for block in blocks {
        let head = state.to_le_bytes();
        let mut next = 0;
        for (i, &byte) in block.iter().enumerate() {
            let byte = if i < 4 { byte ^ head[i] } else { byte };
            next ^= TABLES[15 - i][byte as usize];
        }
        state = next;
    }
    for &byte in rest {
        state = (state >> 8) ^ TABLES[0][(state as u8 ^ byte) as usize];
    }
    state
}
