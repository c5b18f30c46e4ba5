//! The table of operations that a context has for the inline verbs.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::{
    cq_ex_verbs, cq_verbs, dm_verbs, failed_requests, layer, mr_verbs, open_qp_verbs, pd_verbs,
    post_verbs, qp_ex_verbs, qp_verbs, query_verbs, srq_verbs, xrcd_verbs,
};
use core::ffi::{c_int, c_void};

fn operations() -> ibv_context_ops {
    ibv_context_ops {
        alloc_mw: Some(mr_verbs::alloc_mw),
        bind_mw: Some(post_verbs::bind_mw),
        dealloc_mw: Some(mr_verbs::dealloc_mw),
        poll_cq: Some(if failed_requests::are_wanted() {
            cq_verbs::poll_cq::<true>
        } else {
            cq_verbs::poll_cq::<false>
        }),
        req_notify_cq: Some(cq_verbs::req_notify_cq),
        post_srq_recv: Some(post_verbs::post_srq_recv),
        post_send: Some(post_verbs::post_send),
        post_recv: Some(post_verbs::post_recv),
        // SAFETY: null pointers are operations that no program calls.
        ..unsafe { core::mem::zeroed() }
    }
}

/// The operations of a context, and its public fields. `vectors`: completion vectors of its device.
pub fn verbs(
    adapter: &'static Adapter,
    vectors: u32,
    cmd_fd: c_int,
    async_fd: c_int,
) -> verbs_context {
    let mut verbs = verbs_context {
        query_port: Some(query_verbs::query_port_ex),
        advise_mr: Some(mr_verbs::advise_mr),
        alloc_null_mr: Some(mr_verbs::alloc_null_mr),
        reg_dm_mr: Some(dm_verbs::reg_dm_mr),
        alloc_dm: Some(dm_verbs::alloc_dm),
        free_dm: Some(dm_verbs::free_dm),
        modify_qp_rate_limit: Some(qp_verbs::modify_qp_rate_limit),
        alloc_parent_domain: Some(pd_verbs::alloc_parent_domain),
        dealloc_td: Some(pd_verbs::dealloc_td),
        alloc_td: Some(pd_verbs::alloc_td),
        modify_cq: Some(cq_verbs::modify_cq),
        query_rt_values: Some(query_verbs::query_rt_values),
        create_cq_ex: Some(cq_ex_verbs::create_cq_ex),
        query_device_ex: Some(query_verbs::query_device_ex),
        open_qp: Some(open_qp_verbs::open_qp),
        create_qp_ex: Some(qp_ex_verbs::create_qp_ex),
        get_srq_num: Some(srq_verbs::get_srq_num),
        create_srq_ex: Some(srq_verbs::create_srq_ex),
        open_xrcd: Some(xrcd_verbs::open_xrcd),
        close_xrcd: Some(xrcd_verbs::close_xrcd),
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device: (&raw const adapter.ibv).cast_mut(),
            ops: operations(),
            cmd_fd,
            async_fd,
            num_comp_vectors: vectors as c_int,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            // Tells the inline verbs that there is a verbs_context.
            abi_compat: usize::MAX as *mut c_void,
        },
        // SAFETY: null pointers are operations that the device lacks.
        ..unsafe { core::mem::zeroed() }
    };
    layer::wrap_context(&mut verbs);
    verbs
}
