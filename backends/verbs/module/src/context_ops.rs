//! The operations of a context that verbs.h calls by inline functions.
//!
//! `rdma-sys` has such functions too, but compares the mark of an extended context with 32 bits of
//! ones in place of 64, so that they find no operation on any device; and it makes a plain SRQ
//! where one of XRC is wanted.

use core::mem::offset_of;
use rdma_sys::{ibv_context, verbs_context};

/// The extended context of which a context is the last part; `None`: a driver of the old kind.
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

/// An operation of an open context; `None`: the driver, or the release of libibverbs, has not got
/// it. Expands to unsafe code: the context is open.
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
