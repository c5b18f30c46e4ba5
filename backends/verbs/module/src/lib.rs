//! `libgdrcore_verbs.so`: libibverbs behind the table of [`gdrcore_verbs::abi`].
//!
//! * `library`: which libibverbs it is. `context_ops`: the operations of a context. `convert`:
//!   attributes in either direction.
//! * `device`: list, open, ports, GIDs. `objects`: the objects of an open device. `queue_pairs`,
//!   `qp_init`: its queue pairs. `mlx5`: those of DC.
//! * `extended`: posts that `ibv_post_send` does not take. `events`: the kernel's events.
//! * `cm`: librdmacm, opened when it is asked for.
//!
//! The module's only state is the addresses of libmlx5's functions and librdmacm's. Objects are
//! libibverbs' own pointers, and the other side of the table manages their lifetime.

#![cfg(feature = "ibverbs")]

mod cm;
mod context_ops;
mod convert;
mod device;
mod events;
mod extended;
mod library;
mod mlx5;
mod objects;
mod qp_init;
mod queue_pairs;

use core::ffi::c_int;
use core::mem::size_of;
use gdrcore_core::verbs::types::{RecvWr, SendWr, Sge, Wc};
use gdrcore_verbs::abi::{Module, MAGIC, VERSION};

// The structs of the data path go to libibverbs unchanged.
const _: () = {
    assert!(size_of::<SendWr>() == size_of::<rdma_sys::ibv_send_wr>());
    assert!(size_of::<RecvWr>() == size_of::<rdma_sys::ibv_recv_wr>());
    assert!(size_of::<Sge>() == size_of::<rdma_sys::ibv_sge>());
    assert!(size_of::<Wc>() == size_of::<rdma_sys::ibv_wc>());
};

static MODULE: Module = Module {
    magic: MAGIC,
    version: VERSION,
    size: size_of::<Module>() as u32,
    device_name: device::device_name,
    open: device::open,
    close: device::close,
    port: device::port,
    gids: device::gids,
    pd_alloc: objects::pd_alloc,
    pd_dealloc: objects::pd_dealloc,
    mr_reg: objects::mr_reg,
    mr_dereg: objects::mr_dereg,
    mw_alloc: objects::mw_alloc,
    mw_dealloc: objects::mw_dealloc,
    ah_create: objects::ah_create,
    ah_destroy: objects::ah_destroy,
    cq_create: objects::cq_create,
    cq_resize: objects::cq_resize,
    cq_destroy: objects::cq_destroy,
    srq_create: objects::srq_create,
    srq_modify: objects::srq_modify,
    srq_resize: objects::srq_resize,
    srq_number: objects::srq_number,
    srq_query: objects::srq_query,
    srq_destroy: objects::srq_destroy,
    xrcd_open: objects::xrcd_open,
    xrcd_close: objects::xrcd_close,
    srq_create_xrc: objects::srq_create_xrc,
    qp_create: queue_pairs::qp_create,
    qp_modify: queue_pairs::qp_modify,
    qp_query: queue_pairs::qp_query,
    qp_number: queue_pairs::qp_number,
    mcast_attach: queue_pairs::mcast_attach,
    mcast_detach: queue_pairs::mcast_detach,
    post_extended: extended::post_extended,
    qp_destroy: queue_pairs::qp_destroy,
    channel_create: device::channel_create,
    channel_destroy: objects::channel_destroy,
    cq_event: events::cq_event,
    async_event: events::async_event,
    cm: cm::CALLS,
};

/// The table ([`gdrcore_verbs::abi::EntryPoint`]). Any thread.
#[no_mangle]
pub extern "C" fn gdrcore_verbs_module() -> *const Module {
    &MODULE
}

/// errno of the last failed call of this thread, never 0.
fn last_errno() -> c_int {
    // SAFETY: the thread's own errno.
    match unsafe { *libc::__errno_location() } {
        0 => libc::EIO,
        e => e,
    }
}

/// The result of a call that returns errno. Some old providers return −1 and set errno.
fn code(rc: c_int) -> c_int {
    if rc < 0 {
        last_errno()
    } else {
        rc
    }
}
