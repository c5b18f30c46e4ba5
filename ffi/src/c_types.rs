//! The structs of the header: core's, and those of this library alone. Their layout is ABI, which
//! `ffi/abi` states as a C compiler sees it.
//!
//! Three families (docs/using/ABI.md): handles (one 64-bit word, passed by value), hot structs
//! (frozen, layout of their `ibv_` counterparts) and attribute structs (`struct_size` first,
//! append-only). Numbers are in host byte order unless a field says otherwise.

pub use crate::c_device_types::*;
pub use crate::c_fast_types::*;
pub use crate::c_handles::*;
pub use crate::c_qp_types::*;
pub use crate::context_slots::gdrc_context;
pub use gdrcore_core::device::AsyncEvent;
pub use gdrcore_core::verbs::cause::Cause;
pub use gdrcore_core::verbs::types::{
    AtomicWr, BindMwWr, DcWr, FlushWr, MwBindInfo, QpCap, RdmaWr, RecvWr, SendWr, Sge, UdWr, Wc,
    WrExt, WrOp,
};
