//! Constants and structs of the connection manager.

use crate::c_handles::*;
use crate::c_qp_types::*;
use core::ffi::c_void;
use gdrcore_core::cm::types as cm;

/// Port spaces (numbers of rdma_port_space): RC connections, with ports like TCP's.
pub const GDRC_PS_TCP: u32 = 0x0106;
/// UD services, with ports like UDP's.
pub const GDRC_PS_UDP: u32 = 0x0111;
/// RC and UC connections by InfiniBand service ids.
pub const GDRC_PS_IB: u32 = 0x013f;

/// Events of the connection manager (numbers of rdma_cm_event_type). A peer asks a listener.
pub const GDRC_CM_CONNECT_REQUEST: u32 = 4;
/// The peer has accepted. Only for ids without a QP: the program brings its own to RTS, then calls
/// gdrc_establish.
pub const GDRC_CM_CONNECT_RESPONSE: u32 = 5;
/// The peer has accepted, but the QP could not be brought to RTS. The peer gets a REJ.
pub const GDRC_CM_CONNECT_ERROR: u32 = 6;
/// The peer did not answer in time, or this machine refuses to send to it. The status says which:
/// -ETIMEDOUT, what the network said of it (-ECONNREFUSED, -EHOSTUNREACH), or why the kernel
/// refuses (-EPERM: a firewall; -ENETUNREACH, -EACCES, ...: no route).
pub const GDRC_CM_UNREACHABLE: u32 = 7;
/// The peer does not want the connection; status says why.
pub const GDRC_CM_REJECTED: u32 = 8;
/// The connection stands.
pub const GDRC_CM_ESTABLISHED: u32 = 9;
/// The connection has ended, from either side.
pub const GDRC_CM_DISCONNECTED: u32 = 10;
/// Late packets of the connection are gone.
pub const GDRC_CM_TIMEWAIT_EXIT: u32 = 15;

/// Reasons of a rejection that programs meet (IBTA 12.6.7.2): the status of GDRC_CM_REJECTED. The
/// peer's tables are full.
pub const GDRC_REJ_NO_RESOURCES: u32 = 3;
/// The peer waited in vain, or its program let the id go.
pub const GDRC_REJ_TIMEOUT: u32 = 4;
/// No listener at this port.
pub const GDRC_REJ_INVALID_SERVICE_ID: u32 = 8;
/// The peer still has a connection to this QPN, and looks whether it stands: ask again, with
/// another QP if it lasts.
pub const GDRC_REJ_STALE_CONNECTION: u32 = 10;
/// The path MTU is larger than the peer's link carries.
pub const GDRC_REJ_INVALID_MTU: u32 = 26;
/// The peer's program called gdrc_reject, or rdma_reject.
pub const GDRC_REJ_CONSUMER: u32 = 28;

/// Flags of gdrc_conn_param. EXACT: zeros in the fields that have another default are meant.
pub const GDRC_CONN_EXACT: u32 = 1;
/// The field psn counts; without it the PSN is random.
pub const GDRC_CONN_PSN: u32 = 2;
/// The QP named by qpn takes its receives from an SRQ.
pub const GDRC_CONN_SRQ: u32 = 4;

/// Bytes of private data that gdrc_connect takes (GDRC_PS_UDP: GDRC_UD_CONNECT_DATA_MAX).
pub const GDRC_CONNECT_DATA_MAX: u32 = 56;
/// Bytes of private data that gdrc_accept takes (GDRC_PS_UDP: GDRC_UD_ACCEPT_DATA_MAX).
pub const GDRC_ACCEPT_DATA_MAX: u32 = 196;
/// Bytes of private data that gdrc_reject takes (GDRC_PS_UDP: GDRC_UD_ACCEPT_DATA_MAX).
pub const GDRC_REJECT_DATA_MAX: u32 = 148;
/// Bytes of private data that gdrc_connect takes for GDRC_PS_UDP.
pub const GDRC_UD_CONNECT_DATA_MAX: u32 = 180;
/// Bytes of private data that gdrc_accept and gdrc_reject take for GDRC_PS_UDP.
pub const GDRC_UD_ACCEPT_DATA_MAX: u32 = 136;

const _: () = {
    macro_rules! same {
        ($($c:ident == $core:expr;)*) => { $(assert!($c == $core as u32);)* };
    }
    same! {
        GDRC_PS_TCP == cm::port_space::TCP;
        GDRC_PS_UDP == cm::port_space::UDP;
        GDRC_PS_IB == cm::port_space::IB;
        GDRC_CM_CONNECT_REQUEST == cm::cm_event::CONNECT_REQUEST;
        GDRC_CM_CONNECT_RESPONSE == cm::cm_event::CONNECT_RESPONSE;
        GDRC_CM_CONNECT_ERROR == cm::cm_event::CONNECT_ERROR;
        GDRC_CM_UNREACHABLE == cm::cm_event::UNREACHABLE;
        GDRC_CM_REJECTED == cm::cm_event::REJECTED;
        GDRC_CM_ESTABLISHED == cm::cm_event::ESTABLISHED;
        GDRC_CM_DISCONNECTED == cm::cm_event::DISCONNECTED;
        GDRC_CM_TIMEWAIT_EXIT == cm::cm_event::TIMEWAIT_EXIT;
        GDRC_REJ_NO_RESOURCES == cm::reject::NO_RESOURCES;
        GDRC_REJ_TIMEOUT == cm::reject::TIMEOUT;
        GDRC_REJ_INVALID_SERVICE_ID == cm::reject::INVALID_SERVICE_ID;
        GDRC_REJ_STALE_CONNECTION == cm::reject::STALE_CONNECTION;
        GDRC_REJ_INVALID_MTU == cm::reject::INVALID_MTU;
        GDRC_REJ_CONSUMER == cm::reject::CONSUMER;
        GDRC_CONNECT_DATA_MAX == cm::CONNECT_DATA_MAX;
        GDRC_ACCEPT_DATA_MAX == cm::ACCEPT_DATA_MAX;
        GDRC_REJECT_DATA_MAX == cm::REJECT_DATA_MAX;
        GDRC_UD_CONNECT_DATA_MAX == cm::UD_CONNECT_DATA_MAX;
        GDRC_UD_ACCEPT_DATA_MAX == cm::UD_ACCEPT_DATA_MAX;
    }
    assert!(core::mem::size_of::<gdrc_conn_param>() == 72);
    assert!(core::mem::size_of::<gdrc_cm_event>() == 320);
};

/// A listener, a request, or one end of a connection.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_cm_id {
    /// Opaque.
    pub handle: u64,
}

/// What one side offers in gdrc_connect and gdrc_accept. 0 means the default named at each field,
/// unless GDRC_CONN_EXACT is set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_conn_param {
    /// sizeof(struct gdrc_conn_param), set by the caller.
    pub struct_size: u32,
    /// GDRC_CONN_ flags.
    pub flags: u32,
    /// QPN, where the call is given no QP; else ignored.
    pub qpn: u32,
    /// GDRC_QPT_, where the call is given no QP; else ignored.
    pub qp_type: u32,
    /// First PSN that this side expects, and the peer will begin with (GDRC_CONN_PSN).
    pub psn: u32,
    /// READs and atomics that this side serves at once (as many as the device can and the peer
    /// wants).
    pub responder_resources: u32,
    /// READs and atomics that this side wants outstanding (as many as the device can and the peer
    /// serves).
    pub initiator_depth: u32,
    /// Retries after a timeout, for both sides (7); gdrc_connect only.
    pub retry_count: u32,
    /// Retries after an RNR NAK that the peer shall make (7: for ever).
    pub rnr_retry: u32,
    /// ACK timeout code, for both sides (14: 67 ms); gdrc_connect only.
    pub ack_timeout: u32,
    /// Timeout code within which the peer's connection manager shall answer, or is asked again, up
    /// to 16 times (17: 0.54 s); gdrc_connect only.
    pub response_timeout: u32,
    /// GDRC_MTU_ code (what the link carries); gdrc_connect only.
    pub path_mtu: u32,
    /// Q_Key of a UD QP (the QP's own; 0x01234567 where it has none yet).
    pub qkey: u32,
    /// Bytes at private_data.
    pub private_data_len: u32,
    /// Data for the peer's program; read during the call only.
    pub private_data: *const c_void,
    /// The program's own word for the id; comes back with its events.
    pub context: u64,
}

/// Something happened to an id.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_cm_event {
    /// sizeof(struct gdrc_cm_event), set by the caller.
    pub struct_size: u32,
    /// GDRC_CM_.
    pub event: u32,
    /// GDRC_CM_REJECTED: the reason (GDRC_REJ_; for GDRC_PS_UDP the SIDR status); else a negative
    /// errno, or 0. In words: gdrc_qp_cause, or gdrc_last_cause where the id was given no QP.
    pub status: i32,
    /// Bytes of private_data: what the message has room for, whatever the peer's program gave.
    pub private_data_len: u32,
    /// The id concerned; with GDRC_CM_CONNECT_REQUEST a new one, which is the program's to accept,
    /// reject and destroy.
    pub id: gdrc_cm_id,
    /// GDRC_CM_CONNECT_REQUEST: the listener that was asked.
    pub listener: gdrc_cm_id,
    /// The QP that the id was given, or {0}.
    pub qp: gdrc_qp,
    /// The program's own word for the id.
    pub context: u64,
    /// The peer, as an address handle needs it.
    pub peer: gdrc_ah_attr,
    /// The peer's QPN, once known.
    pub remote_qpn: u32,
    /// The peer's Q_Key (UD), once known.
    pub qkey: u32,
    /// This side's port.
    pub local_port: u32,
    /// The peer's port.
    pub remote_port: u32,
    /// GDRC_QPT_.
    pub qp_type: u32,
    /// GDRC_MTU_ code.
    pub path_mtu: u32,
    /// READs and atomics that this side serves: with a request, what the peer wants outstanding.
    pub responder_resources: u32,
    /// READs and atomics that this side may have outstanding: with a request, what the peer serves.
    pub initiator_depth: u32,
    /// Retries after a timeout.
    pub retry_count: u32,
    /// Retries after an RNR NAK.
    pub rnr_retry: u32,
    /// 1: the peer's QP has an SRQ.
    pub srq: u32,
    /// Zero.
    pub reserved: u32,
    /// Data of the peer's program.
    pub private_data: [u8; 200],
}

// SAFETY: repr(C), integers and a raw pointer, struct_size first.
unsafe impl crate::ptr::Versioned for gdrc_conn_param {}
// SAFETY: repr(C), integers, struct_size first.
unsafe impl crate::ptr::Versioned for gdrc_cm_event {}
