//! How the 24 bits of QPNs are divided among the processes of one address.

use gdrcore_core::config::QPN_UNIT;

/// The first of the QPNs that stand for a socket's index in the kernel's list: this number + index.
pub const INDEX_QPN_BASE: u32 = 0xff_0000;
/// The first of the QPNs that stand for a block: this number + block.
pub const BLOCK_QPN_BASE: u32 = 0xfe_0000;
/// The last of the blocks that processes can own; the first is 1. Block 0 has the QPNs that the
/// standard reserves; the blocks above `BLOCK_MAX` have the two ranges here.
pub const BLOCK_MAX: u16 = (BLOCK_QPN_BASE / QPN_UNIT - 1) as u16;

const _: () =
    assert!(BLOCK_QPN_BASE.is_multiple_of(QPN_UNIT) && INDEX_QPN_BASE.is_multiple_of(QPN_UNIT));
