//! The structs of the header. Their layout is ABI: `c_layout.rs` asserts it against core's types,
//! `tests/c/layout.c` asserts it again from the C side.
//!
//! Three families (docs/using/ABI.md): handles (one 64-bit word, passed by value), hot structs
//! (frozen, layout of their `ibv_` counterparts) and attribute structs (`struct_size` first,
//! append-only). Numbers are in host byte order unless a field says otherwise.

pub use crate::c_device_types::*;
pub use crate::c_handles::*;
pub use crate::c_qp_types::*;
pub use crate::c_wr_types::*;
pub use crate::context_slots::gdrc_context;
