//! How the 24 bits of QPNs are divided among the processes of one address.

use gdrcore_core::config::QPN_UNIT;

/// QPNs of at least this number name an index of the group.
pub const PROBE: u32 = 0xff_0000;
/// QPNs of at least this number, below [`PROBE`], name a block.
pub const CHECK: u32 = 0xfe_0000;
/// The last of the blocks that processes can own; the first is 1. Block 0 has the QPNs that the
/// standard reserves; the blocks above `BLOCK_MAX` have the two ranges here.
pub const BLOCK_MAX: u16 = (CHECK / QPN_UNIT - 1) as u16;

const _: () = assert!(CHECK.is_multiple_of(QPN_UNIT) && PROBE.is_multiple_of(QPN_UNIT));
