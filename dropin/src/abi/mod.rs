//! The structs of libibverbs that programs are compiled against: rdma-core 44, 64-bit.
//!
//! Names, order and types of the fields are those of `<infiniband/verbs.h>`; a test compiles every
//! size and offset against that header. Later releases only append (`verbs_context` at its front,
//! by `sz`), so programs built against them find the fields at the same places. Enumerations are
//! integers: a C program can store any bits there. The structs of mlx5dv are those of
//! `<infiniband/mlx5dv.h>` of the same release.

/// A pointer to a function of C, or null.
macro_rules! call {
    ($($arg:ty),* $(=> $result:ty)?) => { Option<unsafe extern "C" fn($($arg),*) $(-> $result)?> };
}

mod attr_structs;
mod context_structs;
mod kern_structs;
mod mlx5_structs;
mod object_structs;
mod uverbs_structs;

pub use attr_structs::*;
pub use context_structs::*;
pub use kern_structs::*;
pub use mlx5_structs::*;
pub use object_structs::*;
pub use uverbs_structs::*;

/// The structs of the data path: core's have libibverbs' layout, as core asserts.
pub use gdrcore_core::verbs::types::{
    RecvWr as ibv_recv_wr, SendWr as ibv_send_wr, Sge as ibv_sge, Wc as ibv_wc,
};

#[cfg(test)]
mod tests;
