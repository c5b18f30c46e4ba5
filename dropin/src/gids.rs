//! The GID table of a device's port.
//!
//! A NIC has two entries for each address, one of RoCE v1 and one of RoCE v2, and usually begins
//! with those of its link-local IPv6 address. So an IPv4 address is at 2 and 3, and programs get an
//! index of 3, or have 0 or 1 built in. This device has a single address, and both pairs name it,
//! so any index that a program takes leads to the device.
//!
//! An entry of RoCE v1 means the same as one of v2: the device has one wire format, and peers
//! exchange only GIDs.
//!
//! As on a NIC, the table has unused entries. Such an entry is a GID of zeros without a type; a
//! query of it gets ENODATA, as from Linux (`rdma_get_gid_attr`).

use gdrcore_core::{refuse, Result};

/// Entries of the table.
pub const LEN: u32 = 16;
/// The entries in use, which come first.
pub const USED: u32 = 4;
/// The entry that the library itself uses: the first of RoCE v2.
pub const PREFERRED: u8 = 1;

/// `ibv_gid_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    RoceV1 = 1,
    RoceV2 = 2,
}

impl GidType {
    /// The name in sysfs.
    pub fn name(self) -> &'static str {
        match self {
            GidType::RoceV1 => "IB/RoCE v1",
            GidType::RoceV2 => "RoCE v2",
        }
    }
}

/// The type of an entry; `None`: it is unused.
///
/// # Errors
/// `Error::Invalid`: behind the end of the table.
pub fn entry(index: u32) -> Result<Option<GidType>> {
    match index {
        LEN.. => Err(refuse!(
            Invalid,
            "sgid_index {index}: the table has {LEN} entries (0 to {})",
            LEN - 1
        )),
        USED.. => Ok(None),
        n if n % 2 == 0 => Ok(Some(GidType::RoceV1)),
        _ => Ok(Some(GidType::RoceV2)),
    }
}

/// The type of an entry that is in use.
///
/// # Errors
/// `Error::Invalid`: behind the end of the table. ENODATA: unused.
pub fn gid_type(index: u32) -> Result<GidType> {
    entry(index)?.ok_or_else(|| {
        refuse!(
            Os(libc::ENODATA),
            "sgid_index {index}: the entry is unused (0 to {} are in use)",
            USED - 1
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::Error;

    #[test]
    fn usual_gid_indexes_exist() {
        let kinds: Vec<_> = (0..USED).map(|i| gid_type(i).unwrap()).collect();
        assert_eq!(kinds, [GidType::RoceV1, GidType::RoceV2, GidType::RoceV1, GidType::RoceV2]);
        assert_eq!(gid_type(PREFERRED.into()), Ok(GidType::RoceV2));
        for index in [LEN, 255, u32::MAX] {
            assert_eq!(gid_type(index), Err(Error::Invalid), "{index}");
            assert_eq!(entry(index), Err(Error::Invalid), "{index}");
        }
    }

    #[test]
    fn unused_entries_have_no_type() {
        for index in USED..LEN {
            assert_eq!(entry(index), Ok(None), "{index}");
            assert_eq!(gid_type(index), Err(Error::Os(libc::ENODATA)), "{index}");
        }
    }
}
