//! The operations of a context that verbs.h calls by inline functions.
//!
//! `rdma-sys` has such functions too, but with two faults. They compare the mark of an extended
//! context with 32 bits of ones in place of 64, so they find no operation on any device. And they
//! make a plain SRQ in place of one of XRC.

use core::mem::offset_of;
use rdma_sys::{ibv_context, verbs_context};

/// The extended context whose last part is this context; `None`: an old driver has none.
///
/// # Safety
/// `context` is open.
pub unsafe fn extended(context: *const ibv_context) -> Option<*const verbs_context> {
    // SAFETY: our contract.
    let mark = unsafe { (*context).abi_compat };
    // SAFETY: the mark says that the context lies there.
    (mark.addr() == usize::MAX)
        .then(|| unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() })
}

/// An operation of an open context; `None`: the driver, or the release of libibverbs, lacks it.
/// Expands to unsafe code: the context is open.
macro_rules! operation {
    ($context:expr, $name:ident) => {{
        $crate::context_ops::extended($context).and_then(|c| {
            // The struct grows at its front.
            let needed = size_of::<verbs_context>() - core::mem::offset_of!(verbs_context, $name);
            if (*c).sz < needed {
                None
            } else {
                (*c).$name
            }
        })
    }};
}
pub(crate) use operation;
