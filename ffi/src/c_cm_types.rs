//! Structs of the connection manager.

use crate::c_handles::*;
use crate::c_qp_types::*;
use core::ffi::c_void;

const _: () = {
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
    /// Timeout code of a request to the peer's connection manager, which is sent up to 16 times
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
    /// GDRC_CM_EVENT_.
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
