//! C calls of the connection manager: listen, connect, accept, and its events.

use crate::c_cm_types::*;
use crate::c_consts::{cm_conn_flags, cm_event};
use crate::c_result::{call, refuse};
use crate::c_types::*;
use crate::connect_calls::DEFAULT_TIMEOUT;
use crate::context_device::undoing;
use crate::context_slots::device;
use crate::ptr::{out, plain_in, sized_in_optional, sized_out};
use core::ffi::{c_char, c_int, c_void};
use gdrcore_core::cm::types as cm;
use gdrcore_core::device::CmDevice;
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::Result;

fn manager(ctx: *const gdrc_context) -> Result<&'static dyn CmDevice> {
    device(ctx)?.cm()
}

/// Destroys an id of a call that has failed.
fn give_up(ctx: *const gdrc_context, id: Handle) {
    let _ = device(ctx).and_then(|device| undoing(device).cm()?.destroy(id));
}

/// The parameters of a call in core's form.
fn param<'a>(p: &gdrc_cm_conn_param) -> Result<cm::ConnParam<'a>> {
    if p.flags & !(cm_conn_flags::EXACT | cm_conn_flags::PSN | cm_conn_flags::SRQ) != 0 {
        return Err(refuse!(
            Invalid,
            "param->flags {:#x}: only GDRC_CM_CONN_EXACT, _PSN and _SRQ are known",
            p.flags
        ));
    }
    let exact = p.flags & cm_conn_flags::EXACT != 0;
    let byte = |name: &str, v: u32, default: u8| match v {
        0 if !exact => Ok(default),
        v => u8::try_from(v).map_err(|_| refuse!(Invalid, "param->{name} {v}: at most 255")),
    };
    Ok(cm::ConnParam {
        qpn: p.qpn,
        qp_type: p.qp_type,
        psn: (p.flags & cm_conn_flags::PSN != 0).then_some(p.psn),
        responder_resources: byte("responder_resources", p.responder_resources, u8::MAX)?,
        initiator_depth: byte("initiator_depth", p.initiator_depth, u8::MAX)?,
        retry_count: byte("retry_count", p.retry_count, 7)?,
        rnr_retry: byte("rnr_retry", p.rnr_retry, 7)?,
        ack_timeout: byte("ack_timeout", p.ack_timeout, DEFAULT_TIMEOUT)?,
        response_timeout: byte("response_timeout", p.response_timeout, 0)?,
        path_mtu: p.path_mtu,
        srq: p.flags & cm_conn_flags::SRQ != 0,
        qkey: p.qkey,
        private_data: data(p.private_data, p.private_data_len as usize)?,
    })
}

/// The caller's private data.
fn data<'a>(at: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if len > cm::DATA_MAX {
        return Err(refuse!(
            MessageSize,
            "private data of {len} bytes: at most {} in any message",
            cm::DATA_MAX
        ));
    }
    if at.is_null() {
        return Err(refuse!(Invalid, "private data: NULL, and its length is {len}"));
    }
    // SAFETY: the header's contract: len bytes are readable during the call, and the slice does not
    // outlive it.
    Ok(unsafe { core::slice::from_raw_parts(at.cast(), len) })
}

fn port_space(ps: u32) -> Result<u16> {
    u16::try_from(ps)
        .map_err(|_| refuse!(Invalid, "port_space {ps:#x}: GDRC_PS_TCP, GDRC_PS_UDP or GDRC_PS_IB"))
}

/// The argument `port`.
fn port(port: u32) -> Result<u16> {
    u16::try_from(port).map_err(|_| refuse!(Invalid, "port {port}: at most 65535"))
}

/// Listens for connections to a port of a port space (GDRC_PS_); port 0 takes a free one. Requests
/// come as GDRC_CM_EVENT_CONNECT_REQUEST; at most `backlog` of them wait for the program at once
/// (0: a quarter of max_cm_ids; never more than a quarter of max_qp or half of max_cm_ids,
/// whichever is less, but from 8 to 1024 in any case). Further ones are dropped, and their senders
/// repeat them. `context` is returned with the listener's events. Requests and accepted connections
/// that their peers have not confirmed take none of the max_cm_ids; under a flood of requests those
/// that are not confirmed within 0.1 s end early, with GDRC_CM_EVENT_UNREACHABLE
/// (docs/internals/TRANSPORT.md, "Connection manager").
///
/// Returns the port.
/// Errors: -EADDRINUSE: another id of this context has the port; -ENOMEM: max_cm_ids are in use;
/// -EINVAL: not a port space, port is over 65535, out is NULL; -EOPNOTSUPP: the device has no
/// connection manager. Threads: any. Cost: none. Source: rdma_listen(3), rdma_bind_addr(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cm_listen(
    ctx: *mut gdrc_context,
    port_space: u32,
    port: u32,
    backlog: u32,
    context: u64,
    out: *mut gdrc_cm_id,
) -> c_int {
    call(|| {
        let out = out!(out);
        let m = manager(ctx)?;
        let port = self::port(port)?;
        let handle = m.create(self::port_space(port_space)?, context)?;
        let made = m.bind(handle, port).and_then(|port| m.listen(handle, backlog).map(|()| port));
        let port = made.inspect_err(|_| give_up(ctx, handle))?;
        out.write(gdrc_cm_id { handle });
        Ok(c_int::from(port))
    })
}

/// Requests a connection of `qp` (in RESET or INIT) to the listener at `port` of the peer at `to`.
/// At return the QP is in INIT, so that receives can be posted; events report the result.
/// GDRC_CM_EVENT_ESTABLISHED: the QP is in RTS and connected, the event has the peer's private
/// data. GDRC_CM_EVENT_REJECTED, GDRC_CM_EVENT_UNREACHABLE: no connection; the program destroys the
/// id and the QP. With GDRC_PS_UDP the QP (in any state up to RTS) goes to RTS at once, and
/// GDRC_CM_EVENT_ESTABLISHED brings the QPN and Q_Key to send to.
///
/// With `qp` {0} the program moves a QP itself: `param` names its number and type, and at
/// GDRC_CM_EVENT_CONNECT_RESPONSE the program uses gdrc_cm_qp_attr and then gdrc_cm_establish.
/// `param` may be NULL: all defaults. The peer may be a Linux kernel (rdma_cm). Destroy the id when
/// done with it.
///
/// Errors: -EINVAL: the QP's state or its type for this port space, the address, a parameter is out
/// of range, a struct_size is 0; -EMSGSIZE: too much private data; -ENOMEM: max_cm_ids are in use;
/// -EOPNOTSUPP: the device has no connection manager. Threads: one per QP. Cost: a system call.
/// Source: rdma_connect(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cm_connect(
    ctx: *mut gdrc_context,
    to: *const gdrc_ah_attr,
    port_space: u32,
    port: u32,
    qp: gdrc_qp,
    param: *const gdrc_cm_conn_param,
    out: *mut gdrc_cm_id,
) -> c_int {
    call(|| {
        let out = out!(out);
        let to: gdrc_ah_attr = plain_in!(to);
        let p: gdrc_cm_conn_param = sized_in_optional!(param);
        let param = self::param(&p)?;
        let m = manager(ctx)?;
        let port = self::port(port)?;
        let handle = m.create(self::port_space(port_space)?, p.context)?;
        m.connect(handle, &to.into(), port, qp.handle, &param)
            .inspect_err(|_| give_up(ctx, handle))?;
        out.write(gdrc_cm_id { handle });
        Ok(())
    })
}

/// Accepts a request (GDRC_CM_EVENT_CONNECT_REQUEST) with `qp` (in RESET or INIT), which is in RTS
/// at return. The connection is made when GDRC_CM_EVENT_ESTABLISHED comes. For a request of
/// GDRC_PS_UDP the QP may serve many requests at once, and no event follows: destroy the id as soon
/// as it is accepted. One that is kept serves a repeated request alone, and is freed, the oldest
/// first, when max_cm_ids are in use; gdrc_cm_destroy then returns -EINVAL. With `qp` {0} the
/// program has brought a QP of its own to RTS by gdrc_cm_qp_attr; `param` names its number and
/// type. `param` may be NULL: all defaults.
///
/// Errors: -EINVAL: not a pending request (the peer may have given up), the QP's state, or a type
/// that was not requested; -EMSGSIZE: too much private data; -ENOMEM: max_peer are in use. After an
/// error the request is still pending. Threads: one per QP and id. Cost: a system call. Source:
/// rdma_accept(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cm_accept(
    ctx: *mut gdrc_context,
    id: gdrc_cm_id,
    qp: gdrc_qp,
    param: *const gdrc_cm_conn_param,
) -> c_int {
    call(|| {
        let p: gdrc_cm_conn_param = sized_in_optional!(param);
        let param = self::param(&p)?;
        let m = manager(ctx)?;
        if p.context != 0 {
            m.set_context(id.handle, p.context)?;
        }
        m.accept(id.handle, qp.handle, &param)
    })
}

/// Completes a connection at GDRC_CM_EVENT_CONNECT_RESPONSE: the program's own QP is in RTS, and
/// the peer is notified.
///
/// Errors: -EINVAL: no accepted connection that waits for it. Threads: any. Cost: a system call.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cm_establish(ctx: *mut gdrc_context, id: gdrc_cm_id) -> c_int {
    call(|| manager(ctx)?.establish(id.handle))
}

/// Rejects a request, with at most GDRC_CM_REJECT_DATA_MAX bytes for the peer's program, whose
/// reason is GDRC_REJ_CONSUMER. The program destroys the id. A connection at
/// GDRC_CM_EVENT_CONNECT_RESPONSE may be rejected as well.
///
/// Errors: -EINVAL: nothing to reject, data is NULL while len is not 0; -EMSGSIZE: too much data.
/// Threads: any. Cost: a system call. Source: rdma_reject(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cm_reject(
    ctx: *mut gdrc_context,
    id: gdrc_cm_id,
    private_data: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        let data = data(private_data, len)?;
        manager(ctx)?.reject(id.handle, data)
    })
}

/// Disconnects: the QP goes to ERR and is flushed, the peer is notified. GDRC_CM_EVENT_DISCONNECTED
/// follows when it has answered, or after 16 tries.
///
/// Errors: -EINVAL: not connected (any more). Threads: one per QP. Cost: a system call. Source:
/// rdma_disconnect(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cm_disconnect(ctx: *mut gdrc_context, id: gdrc_cm_id) -> c_int {
    call(|| manager(ctx)?.disconnect(id.handle))
}

/// Destroys an id, whatever its state: a listener stops, a request is rejected, an attempt is given
/// up, a connection is ended. The peer is notified; no further events of the id come. Its QP stays
/// as it is.
///
/// Errors: -EINVAL: stale handle. Threads: any. Cost: a system call. Source: rdma_destroy_id(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cm_destroy(ctx: *mut gdrc_context, id: gdrc_cm_id) -> c_int {
    call(|| manager(ctx)?.destroy(id.handle))
}

/// Takes an event of the connection manager, and moves the id's QP accordingly: to RTS when the
/// peer has accepted (GDRC_CM_EVENT_CONNECT_ERROR if that fails), to ERR when the connection has
/// ended. `out->struct_size` must be set before the call. When there is an event, gdrc_fd is
/// readable and gdrc_wait returns.
///
/// Returns 1 and writes `out`, or 0 when there is none.
/// Errors: -EINVAL: not an open context, out is NULL or its struct_size 0; -EOPNOTSUPP: the device
/// has no connection manager. Threads: any. Cost: a poll. Source: rdma_get_cm_event(3), without
/// sleep.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cm_get_event(
    ctx: *mut gdrc_context,
    out: *mut gdrc_cm_event,
) -> c_int {
    call(|| {
        let out = sized_out!(out);
        let Some(e) = manager(ctx)?.event()? else { return Ok(0) };
        let mut private_data = [0; 200];
        let given = e.private_data();
        if let Some(to) = private_data.get_mut(..given.len()) {
            to.copy_from_slice(given);
        }
        out.write(&gdrc_cm_event {
            event: e.event,
            status: e.status,
            private_data_len: given.len() as u32,
            id: gdrc_cm_id { handle: e.id },
            listener: gdrc_cm_id { handle: e.listener },
            qp: gdrc_qp { handle: e.qp },
            context: e.context,
            peer: e.peer.into(),
            remote_qpn: e.remote_qpn,
            qkey: e.qkey,
            local_port: u32::from(e.local_port),
            remote_port: u32::from(e.remote_port),
            qp_type: e.qp_type,
            path_mtu: e.path_mtu,
            responder_resources: u32::from(e.responder_resources),
            initiator_depth: u32::from(e.initiator_depth),
            retry_count: u32::from(e.retry_count),
            rnr_retry: u32::from(e.rnr_retry),
            srq: u32::from(e.srq),
            private_data,
            ..crate::ptr::zeroed()
        });
        Ok(1)
    })
}

/// The attributes and mask that bring an id's QP to `state` (GDRC_QPS_INIT, RTR or RTS), for
/// programs that call gdrc_qp_modify themselves. `attr->struct_size` must be set before the call.
///
/// Errors: -EINVAL: another state, the peer is not known yet, a NULL pointer, a struct_size of 0.
/// Threads: any. Cost: none. Source: rdma_init_qp_attr(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cm_qp_attr(
    ctx: *mut gdrc_context,
    id: gdrc_cm_id,
    state: u32,
    attr: *mut gdrc_qp_attr,
    mask: *mut u32,
) -> c_int {
    call(|| {
        let mask = out!(mask);
        let attr = sized_out!(attr);
        let (a, m) = manager(ctx)?.qp_attr(id.handle, state)?;
        attr.write(&crate::qp_calls::qp_attr_out(&a));
        mask.write(m);
        Ok(())
    })
}

/// The name of a connection manager's event (GDRC_CM_EVENT_), without prefix. Static; never NULL.
/// Threads: any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_cm_event_str(event: u32) -> *const c_char {
    crate::string_calls::text(cm_event::c_name(event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptr::zeroed;
    use crate::tests::fake_device::Fake;
    use gdrcore_core::Error;

    #[test]
    fn a_device_without_connection_manager_is_refused() {
        let (_, ctx) = Fake::open();
        let mut id = gdrc_cm_id::default();
        let mut e: gdrc_cm_event = zeroed();
        // SAFETY: valid pointers of the right types.
        unsafe {
            assert_eq!(
                gdrc_cm_listen(ctx, cm::port_space::TCP.into(), 1, 0, 0, &mut id),
                -libc::EOPNOTSUPP
            );
            assert_eq!(gdrc_cm_get_event(ctx, &mut e), -libc::EOPNOTSUPP);
            assert_eq!(gdrc_cm_disconnect(ctx, id), -libc::EOPNOTSUPP);
        }
        assert_eq!(id.handle, 0);
    }

    #[test]
    fn zeros_are_defaults_unless_meant() {
        let p: gdrc_cm_conn_param = zeroed();
        let d = param(&p).unwrap();
        assert_eq!(
            (d.responder_resources, d.initiator_depth, d.retry_count, d.rnr_retry),
            (255, 255, 7, 7)
        );
        assert_eq!((d.ack_timeout, d.psn), (DEFAULT_TIMEOUT, None));
        let exact =
            gdrc_cm_conn_param { flags: cm_conn_flags::EXACT | cm_conn_flags::PSN, psn: 9, ..p };
        let d = param(&exact).unwrap();
        assert_eq!(
            (d.responder_resources, d.retry_count, d.ack_timeout, d.psn),
            (0, 0, 0, Some(9))
        );
        for bad in [
            gdrc_cm_conn_param { flags: 8, ..p },
            gdrc_cm_conn_param { retry_count: 256, ..p },
            gdrc_cm_conn_param { initiator_depth: u32::MAX, ..p },
            gdrc_cm_conn_param { private_data_len: 1, ..p },
        ] {
            assert_eq!(param(&bad).map(|_| ()), Err(Error::Invalid));
        }
        assert_eq!(
            param(&gdrc_cm_conn_param { private_data_len: 197, ..p }).map(|_| ()),
            Err(Error::MessageSize)
        );
        assert_eq!(
            param(&gdrc_cm_conn_param { private_data_len: u32::MAX, ..p }).map(|_| ()),
            Err(Error::MessageSize)
        );
    }
}
