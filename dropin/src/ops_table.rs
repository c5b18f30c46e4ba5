//! The table of operations that a context has for the inline verbs.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::hca::Hca;
use crate::hca_kinds::Called;
use crate::{
    cq_ex_verbs, cq_verbs, dm_verbs, failed_requests, layer, mr_verbs, open_qp_verbs, pd_verbs,
    post_verbs, qp_ex_verbs, qp_verbs, query_verbs, srq_verbs, weak, xrcd_verbs,
};
use core::ffi::{c_int, c_void};
use gdrcore_core::device::Device;
use gdrcore_net::soft::SoftDevice;

/// The operations of contexts whose device is a `D`.
fn operations<D: Called + ?Sized>() -> ibv_context_ops {
    ibv_context_ops {
        alloc_mw: Some(mr_verbs::alloc_mw),
        bind_mw: Some(post_verbs::bind_mw),
        dealloc_mw: Some(mr_verbs::dealloc_mw),
        poll_cq: Some(match (weak::shortens_polls(), failed_requests::are_wanted()) {
            (false, false) => cq_verbs::poll_cq::<D, false>,
            (false, true) => cq_verbs::poll_cq::<D, true>,
            (true, false) => cq_verbs::poll_cq_short::<D, false>,
            (true, true) => cq_verbs::poll_cq_short::<D, true>,
        }),
        req_notify_cq: Some(cq_verbs::req_notify_cq),
        post_srq_recv: Some(post_verbs::post_srq_recv::<D>),
        post_send: Some(post_verbs::post_send::<D>),
        post_recv: Some(post_verbs::post_recv::<D>),
        // SAFETY: null pointers are operations that no program calls.
        ..unsafe { core::mem::zeroed() }
    }
}

/// The operations of a context, and its public fields.
pub fn verbs(
    adapter: &'static Adapter,
    hca: &'static Hca,
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
            ops: match hca.soft() {
                Some(_) => operations::<SoftDevice>(),
                None => operations::<dyn Device>(),
            },
            cmd_fd,
            async_fd,
            num_comp_vectors: hca.device.vectors() as c_int,
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
