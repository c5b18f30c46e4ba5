//! Constants and structs of the connection manager.

use crate::c_handles::*;
use crate::c_qp_types::*;
use core::ffi::c_void;
use gdrcore_core::cm::types as cm;

// enum gdrc_cm_port_space
/// Port spaces (numbers of rdma_port_space): RC connections, with ports like TCP's.
pub const GDRC_PS_TCP: u32 = 0x0106;
/// UD services, with ports like UDP's.
pub const GDRC_PS_UDP: u32 = 0x0111;
/// RC and UC connections by InfiniBand service ids.
pub const GDRC_PS_IB: u32 = 0x013f;

// enum gdrc_cm_event_type
/// Events of the connection manager (numbers of rdma_cm_event_type). CONNECT_REQUEST: a peer's
/// request to a listener.
pub const GDRC_CM_EVENT_CONNECT_REQUEST: u32 = 4;
/// The peer has accepted. Only for ids without a QP: the program moves its own QP to RTS, then
/// calls gdrc_cm_establish.
pub const GDRC_CM_EVENT_CONNECT_RESPONSE: u32 = 5;
/// The peer has accepted, but the QP could not be brought to RTS. The peer gets a REJ.
pub const GDRC_CM_EVENT_CONNECT_ERROR: u32 = 6;
/// The peer did not answer in time, or the kernel or network refused the request. The status is
/// -ETIMEDOUT, the error of the network (-ECONNREFUSED, -EHOSTUNREACH), or that of the kernel
/// (-EPERM: a firewall; -ENETUNREACH, -EACCES, ...: no route).
pub const GDRC_CM_EVENT_UNREACHABLE: u32 = 7;
/// The peer has rejected the request; status is the reason.
pub const GDRC_CM_EVENT_REJECTED: u32 = 8;
/// The connection is established.
pub const GDRC_CM_EVENT_ESTABLISHED: u32 = 9;
/// The connection has ended, from either side. The status is -ETIMEDOUT if the peer said nothing:
/// its process has ended, or it did not answer for 9 s.
pub const GDRC_CM_EVENT_DISCONNECTED: u32 = 10;
/// The network interface of the context's address has been removed, and with it what a NIC would
/// be. Every id has this event; the program destroys the id, as rdma_get_cm_event(3) says.
pub const GDRC_CM_EVENT_DEVICE_REMOVAL: u32 = 11;
/// The network interface of the context's address has another hardware address, or another
/// interface has the address: a bonding device has failed over. Every id has this event.
/// Connections go on.
pub const GDRC_CM_EVENT_ADDR_CHANGE: u32 = 14;
/// No late packet of the connection can arrive any more.
pub const GDRC_CM_EVENT_TIMEWAIT_EXIT: u32 = 15;

// enum gdrc_cm_rej_reason
/// Common reasons of a rejection (IBTA 12.6.7.2): the status of GDRC_CM_EVENT_REJECTED.
/// NO_RESOURCES: the peer's tables are full.
pub const GDRC_REJ_NO_RESOURCES: u32 = 3;
/// The peer's connection manager has timed out, or its program has destroyed the id.
pub const GDRC_REJ_TIMEOUT: u32 = 4;
/// No listener at this port.
pub const GDRC_REJ_INVALID_SERVICE_ID: u32 = 8;
/// The peer still has a connection to this QPN and probes it. Request again, with another QP if the
/// rejection repeats.
pub const GDRC_REJ_STALE_CONNECTION: u32 = 10;
/// The path MTU is larger than the peer's link carries.
pub const GDRC_REJ_INVALID_MTU: u32 = 26;
/// The peer's program called gdrc_cm_reject, or rdma_reject.
pub const GDRC_REJ_CONSUMER: u32 = 28;

// flags gdrc_cm_conn_flags
/// Flags of gdrc_cm_conn_param. EXACT: 0 is a value in the fields that have another default.
pub const GDRC_CM_CONN_EXACT: u32 = 1;
/// The field psn is set; without it the PSN is random.
pub const GDRC_CM_CONN_PSN: u32 = 2;
/// The QP named by qpn takes its receives from an SRQ.
pub const GDRC_CM_CONN_SRQ: u32 = 4;

/// Bytes of private data that gdrc_cm_connect takes (GDRC_PS_UDP: GDRC_CM_UD_CONNECT_DATA_MAX).
pub const GDRC_CM_CONNECT_DATA_MAX: u32 = 56;
/// Bytes of private data that gdrc_cm_accept takes (GDRC_PS_UDP: GDRC_CM_UD_ACCEPT_DATA_MAX).
pub const GDRC_CM_ACCEPT_DATA_MAX: u32 = 196;
/// Bytes of private data that gdrc_cm_reject takes (GDRC_PS_UDP: GDRC_CM_UD_ACCEPT_DATA_MAX).
pub const GDRC_CM_REJECT_DATA_MAX: u32 = 148;
/// Bytes of private data that gdrc_cm_connect takes for GDRC_PS_UDP.
pub const GDRC_CM_UD_CONNECT_DATA_MAX: u32 = 180;
/// Bytes of private data that gdrc_cm_accept and gdrc_cm_reject take for GDRC_PS_UDP.
pub const GDRC_CM_UD_ACCEPT_DATA_MAX: u32 = 136;

const _: () = {
    macro_rules! same {
        ($($c:ident == $core:expr;)*) => { $(assert!($c == $core as u32);)* };
    }
    same! {
        GDRC_PS_TCP == cm::port_space::TCP;
        GDRC_PS_UDP == cm::port_space::UDP;
        GDRC_PS_IB == cm::port_space::IB;
        GDRC_CM_EVENT_CONNECT_REQUEST == cm::cm_event::CONNECT_REQUEST;
        GDRC_CM_EVENT_CONNECT_RESPONSE == cm::cm_event::CONNECT_RESPONSE;
        GDRC_CM_EVENT_CONNECT_ERROR == cm::cm_event::CONNECT_ERROR;
        GDRC_CM_EVENT_UNREACHABLE == cm::cm_event::UNREACHABLE;
        GDRC_CM_EVENT_REJECTED == cm::cm_event::REJECTED;
        GDRC_CM_EVENT_ESTABLISHED == cm::cm_event::ESTABLISHED;
        GDRC_CM_EVENT_DISCONNECTED == cm::cm_event::DISCONNECTED;
        GDRC_CM_EVENT_DEVICE_REMOVAL == cm::cm_event::DEVICE_REMOVAL;
        GDRC_CM_EVENT_ADDR_CHANGE == cm::cm_event::ADDR_CHANGE;
        GDRC_CM_EVENT_TIMEWAIT_EXIT == cm::cm_event::TIMEWAIT_EXIT;
        GDRC_REJ_NO_RESOURCES == cm::reject::NO_RESOURCES;
        GDRC_REJ_TIMEOUT == cm::reject::TIMEOUT;
        GDRC_REJ_INVALID_SERVICE_ID == cm::reject::INVALID_SERVICE_ID;
        GDRC_REJ_STALE_CONNECTION == cm::reject::STALE_CONNECTION;
        GDRC_REJ_INVALID_MTU == cm::reject::INVALID_MTU;
        GDRC_REJ_CONSUMER == cm::reject::CONSUMER;
        GDRC_CM_CONNECT_DATA_MAX == cm::CONNECT_DATA_MAX;
        GDRC_CM_ACCEPT_DATA_MAX == cm::ACCEPT_DATA_MAX;
        GDRC_CM_REJECT_DATA_MAX == cm::REJECT_DATA_MAX;
        GDRC_CM_UD_CONNECT_DATA_MAX == cm::UD_CONNECT_DATA_MAX;
        GDRC_CM_UD_ACCEPT_DATA_MAX == cm::UD_ACCEPT_DATA_MAX;
    }
    assert!(core::mem::size_of::<gdrc_cm_conn_param>() == 72);
    assert!(core::mem::size_of::<gdrc_cm_event>() == 320);
};

/// A listener, a request, or one end of a connection.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_cm_id {
    /// Opaque.
    pub handle: u64,
}

/// The parameters of one side in gdrc_cm_connect and gdrc_cm_accept. 0 means the default, given in
/// parentheses, unless GDRC_CM_CONN_EXACT is set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_cm_conn_param {
    /// sizeof(struct gdrc_cm_conn_param), set by the caller.
    pub struct_size: u32,
    /// GDRC_CM_CONN_ flags.
    pub flags: u32,
    /// QPN, if the call has no QP; else ignored.
    pub qpn: u32,
    /// GDRC_QPT_, if the call has no QP; else ignored.
    pub qp_type: u32,
    /// First PSN that this side expects and the peer sends (GDRC_CM_CONN_PSN).
    pub psn: u32,
    /// READs and atomics that this side holds as responder (the smaller of the device's bound and
    /// the peer's initiator_depth).
    pub responder_resources: u32,
    /// READs and atomics that this side has outstanding as requester (the smaller of the device's
    /// bound and the peer's responder_resources).
    pub initiator_depth: u32,
    /// Retries after a timeout, for both sides (7); gdrc_cm_connect only.
    pub retry_count: u32,
    /// Retries of the peer after an RNR NAK (7: for ever).
    pub rnr_retry: u32,
    /// ACK timeout code, for both sides (17: 0.54 s); gdrc_cm_connect only.
    pub ack_timeout: u32,
    /// Timeout code of a request to the peer's connection manager, which is repeated up to 16 times
    /// (17: 0.54 s); gdrc_cm_connect only.
    pub response_timeout: u32,
    /// GDRC_MTU_ code (what the link carries); gdrc_cm_connect only.
    pub path_mtu: u32,
    /// Q_Key of a UD QP (the QP's own; 0x01234567 if it has none yet).
    pub qkey: u32,
    /// Bytes at private_data.
    pub private_data_len: u32,
    /// Data for the peer's program; read during the call only.
    pub private_data: *const c_void,
    /// A number of the program's own, returned with the events of the id.
    pub context: u64,
}

/// An event of an id.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_cm_event {
    /// sizeof(struct gdrc_cm_event), set by the caller.
    pub struct_size: u32,
    /// GDRC_CM_.
    pub event: u32,
    /// GDRC_CM_EVENT_REJECTED: the reason (GDRC_REJ_; for GDRC_PS_UDP the SIDR status); else a
    /// negative errno, or 0. In words: gdrc_qp_cause, or gdrc_last_cause for an id without a QP.
    pub status: i32,
    /// Bytes of private_data: always the whole field of the message, however many of them the
    /// peer's program set.
    pub private_data_len: u32,
    /// The id concerned; with GDRC_CM_EVENT_CONNECT_REQUEST a new one, which the program accepts or
    /// rejects, and destroys.
    pub id: gdrc_cm_id,
    /// GDRC_CM_EVENT_CONNECT_REQUEST: the listener.
    pub listener: gdrc_cm_id,
    /// The QP of the id, or {0}.
    pub qp: gdrc_qp,
    /// The program's number for the id.
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
    /// READs and atomics that this side holds as responder; with a request, the peer's initiator
    /// depth.
    pub responder_resources: u32,
    /// READs and atomics that this side may have outstanding; with a request, the peer's responder
    /// resources.
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
unsafe impl crate::ptr::Versioned for gdrc_cm_conn_param {}
// SAFETY: repr(C), integers, struct_size first.
unsafe impl crate::ptr::Versioned for gdrc_cm_event {}
