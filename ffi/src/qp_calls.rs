//! C calls of queue pairs: create, modify, query, reset, destroy.

use crate::c_consts::qp_attr_mask;
use crate::c_result::call;
use crate::c_types::*;
use crate::context_slots::device;
use crate::ptr::{out, out_optional, plain_in, sized_in, sized_out, sized_out_optional, zeroed};
use core::ffi::c_int;
use gdrcore_core::copy_qp_attr;
use gdrcore_core::verbs::types::{AhAttr, QpAttr, QpInit};
use gdrcore_net::reason;

/// Attributes as C has them.
pub(crate) fn qp_attr_out(a: &QpAttr) -> gdrc_qp_attr {
    let mut attr = gdrc_qp_attr {
        ah: a.ah.into(),
        flow_label: a.ah.flow_label,
        cap: a.cap,
        rate_limit_bytes_per_s: a.rate_limit_bytes_per_s,
        ..zeroed()
    };
    copy_qp_attr!(a => attr);
    attr
}

/// Creates a queue pair in state RESET, by the attributes in `inout` (struct_size set); at return
/// its `cap` holds the granted sizes. `qpn` receives the QP's number and may be NULL; 0: a
/// GDRC_QPT_DCT of a NIC has none before RTR (gdrc_endpoint_local).
///
/// With an SRQ, `max_recv_wr` and `max_recv_sge` are ignored. The SRQ may be of another protection
/// domain: receives are of that one, keys of peers of the queue pair's.
///
/// Errors: -ENOMEM: max_qp or ring_bytes are in use; -EINVAL: a stale handle, a size over the
/// device's, an unknown qp_type, a NULL pointer, with GDRC_CONFIG_STRICT_CQ a CQ that is too small;
/// -EOPNOTSUPP: the device does not have this type.
/// Threads: any. Cost: no system call. Source: IBTA verb Create Queue Pair; ibv_create_qp(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_create(
    ctx: *mut gdrc_context,
    inout: *mut gdrc_qp_init,
    out: *mut gdrc_qp,
    qpn: *mut u32,
) -> c_int {
    call(|| {
        let out = out!(out);
        let qpn = out_optional!(qpn);
        let mut init = sized_in!(inout.cast_const());
        let given = sized_out!(inout);
        let (handle, number, cap) = device(ctx)?.qp_create(&QpInit {
            pd: init.pd.handle,
            send_cq: init.send_cq.handle,
            recv_cq: init.recv_cq.handle,
            srq: init.srq.handle,
            xrcd: init.xrcd.handle,
            dc_key: init.dc_key,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            cap: init.cap,
        })?;
        out.write(gdrc_qp { handle });
        init.cap = cap;
        given.write(&init);
        if let Some(qpn) = qpn {
            qpn.write(number);
        }
        Ok(())
    })
}

/// Sets the attributes of a QP that `mask` (GDRC_QP_) names, most often its state. IBTA's table of
/// Modify Queue Pair lists the attributes that each transition requires and allows. gdrc_qp_connect
/// makes the usual transitions in one call.
///
/// Errors: -EINVAL: the transition does not exist, needs an attribute that mask lacks or does not
/// allow one that it has, a value is out of range, stale handle, attr is NULL or its struct_size 0
/// (nothing was changed); -EBUSY: another thread uses the QP. Threads: one per QP. Cost: none; to
/// RTR it may take a peer slot (-ENOMEM). Source: IBTA verb Modify Queue Pair; ibv_modify_qp(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_modify(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    attr: *const gdrc_qp_attr,
    mask: u32,
) -> c_int {
    call(|| {
        let from = sized_in!(attr);
        let mut a = QpAttr {
            ah: AhAttr { flow_label: from.flow_label, ..from.ah.into() },
            cap: from.cap,
            rate_limit_bytes_per_s: from.rate_limit_bytes_per_s,
            ..QpAttr::default()
        };
        copy_qp_attr!(from => a);
        let dev = device(ctx)?;
        let to = (mask & qp_attr_mask::STATE != 0).then_some(a.qp_state);
        dev.qp_modify(qp.handle, &a, mask)
            .map_err(|e| reason::prefix_transition(e, dev, qp.handle, to))
    })
}

/// Fills `attr`, and `init` unless it is NULL (struct_size set in both), with the QP's current
/// attributes.
///
/// Errors: -EINVAL: stale handle, attr is NULL, a struct_size is 0. Threads: any. Cost: none.
/// Source: IBTA verb Query Queue Pair; ibv_query_qp(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_query(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    attr: *mut gdrc_qp_attr,
    init: *mut gdrc_qp_init,
) -> c_int {
    call(|| {
        let attr = sized_out!(attr);
        let init = sized_out_optional!(init);
        let (a, i) = device(ctx)?.qp_query(qp.handle)?;
        attr.write(&qp_attr_out(&a));
        if let Some(init) = init {
            init.write(&gdrc_qp_init {
                qp_type: i.qp_type,
                pd: gdrc_pd { handle: i.pd },
                send_cq: gdrc_cq { handle: i.send_cq },
                recv_cq: gdrc_cq { handle: i.recv_cq },
                srq: gdrc_srq { handle: i.srq },
                xrcd: gdrc_xrcd { handle: i.xrcd },
                sq_sig_all: i.sq_sig_all,
                cap: i.cap,
                ..zeroed()
            });
        }
        Ok(())
    })
}

/// Takes a QP back to RESET, from any state, so that it can be connected again: for recovery in
/// place, after a failure, or to another peer. It keeps its handle, number, queues, counters and
/// last cause.
///
/// Unlike gdrc_qp_modify to RESET, which drops outstanding requests, every posted request gets its
/// completion first (GDRC_WC_WR_FLUSH_ERR if it had not completed). They are in the CQ when the
/// call succeeds, before any completion of the next life. -EAGAIN: they are not all there yet, most
/// often because a CQ is full; the QP is in ERR meanwhile. Poll its CQs and call again. The call
/// itself never waits.
///
/// Then the two programs exchange endpoints again: gdrc_endpoint_local gives PSNs for which packets
/// of the former life cannot be mistaken (docs/using/ABI.md), gdrc_qp_connect does the rest. The
/// peer resets its QP too, or makes another.
///
/// Errors: -EAGAIN; -EBUSY: another thread posts to it; -EINVAL: stale handle. Threads: one per QP.
/// Cost: the flushed completions, and the ACK that the QP may still owe. Source: IBTA verb Modify
/// Queue Pair; ibv_modify_qp(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_reset(ctx: *mut gdrc_context, qp: gdrc_qp) -> c_int {
    call(|| device(ctx)?.qp_reset(qp.handle))
}

/// Destroys a QP. Requests still in it end without completion, and the device does not access their
/// memory any more; completions that are already in a CQ stay there.
///
/// Errors: -EBUSY: it has a fast handle, is in a multicast group, or another thread uses it. A soft
/// device unbinds the type 2 windows that are bound to it. -EINVAL: stale handle. Threads: one per
/// QP. Cost: none. Source: IBTA verb Destroy Queue Pair; ibv_destroy_qp(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_destroy(ctx: *mut gdrc_context, qp: gdrc_qp) -> c_int {
    call(|| device(ctx)?.qp_destroy(qp.handle))
}

/// Makes a GDRC_QPT_UD queue pair a member of a multicast group: it receives what is sent there,
/// by any process of any host, under its own Q_Key. `gid` is 16 bytes, of which the device keeps a
/// copy: an IPv6 group, or an IPv4 one as ::ffff:239.1.2.3. Twice is no error, and counts once.
///
/// To send to a group, make an address handle of its GID and name GDRC_QPN_MULTICAST as the QP; no
/// membership is needed. The sender does not receive its own messages. A queue pair that is a
/// member of a group is not destroyed.
///
/// Errors: -EINVAL: not UD, not a group's address or of another family than the device's, stale
/// handle, gid is NULL; -ENOMEM: 64 memberships of the device, or 16 groups, are in use;
/// -EOPNOTSUPP: loopback, a device over a router, a NIC without multicast. Threads: any. Cost: for
/// the first member of a group of a context a socket. Source: IBTA verb Attach QP to Multicast
/// Group; ibv_attach_mcast(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_attach_mcast(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    gid: *const u8,
) -> c_int {
    call(|| {
        let gid: [u8; 16] = plain_in!(gid.cast());
        device(ctx)?.mcast_attach(qp.handle, &gid)
    })
}

/// Ends a membership.
///
/// Errors: -EINVAL: not a member, stale handle, gid is NULL; -EOPNOTSUPP: as
/// gdrc_qp_attach_mcast. Threads: any. Cost: for the last member of a group the end of its socket.
/// Source: IBTA verb Detach QP from Multicast Group; ibv_detach_mcast(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_detach_mcast(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    gid: *const u8,
) -> c_int {
    call(|| {
        let gid: [u8; 16] = plain_in!(gid.cast());
        device(ctx)?.mcast_detach(qp.handle, &gid)
    })
}
