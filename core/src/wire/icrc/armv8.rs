//! CRC-32 by the instructions CRC32X and CRC32B of Armv8, eight bytes a step. Their polynomial is
//! zlib's. Armv8.1 and later always have them (Arm ARM, FEAT_CRC32).

use super::{V4_BETWEEN, V6_BETWEEN};
use core::arch::aarch64::{__crc32b, __crc32d};
use core::arch::asm;

/// The state after `data`.
#[target_feature(enable = "crc")]
pub(super) fn update(mut state: u32, data: &[u8]) -> u32 {
    let (words, rest) = data.as_chunks::<8>();
    for &word in words {
        state = __crc32d(state, u64::from_le_bytes(word));
    }
    for &byte in rest {
        state = __crc32b(state, byte);
    }
    state
}

/// The state after a packet: see [`super::MaskedHeaders`].
#[target_feature(enable = "crc")]
pub(super) fn icrc(varying: u64, v6: bool, begin: u64, end: u64, rest: &[u8]) -> u32 {
    let between = &[0; V6_BETWEEN][..if v6 { V6_BETWEEN } else { V4_BETWEEN }];
    let state = update(__crc32d(0, varying), between);
    update(__crc32d(__crc32d(state, begin), end), rest)
}

/// Whether this machine has the instructions.
pub(super) fn is_here() -> bool {
    let features: u64;
    // SAFETY: Linux from 4.11 on answers a read of this register by a program (its documentation,
    // "ARM64 CPU Feature Registers"); nothing else is read or written.
    unsafe {
        asm!("mrs {}, ID_AA64ISAR0_EL1", out(reg) features,
            options(nomem, nostack, preserves_flags));
    }
    // The field CRC32 of ID_AA64ISAR0_EL1, bits 16 to 19.
    features >> 16 & 0xF != 0
}
