//! The other devices of an address.
//!
//! * `names`: how they find this one.
//! * `open`: joins them.
//! * `rx`: passes on their packets.

pub(super) mod names;
pub(super) mod open;
pub(super) mod rx;
