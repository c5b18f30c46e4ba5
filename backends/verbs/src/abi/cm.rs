//! The part of the table that is librdmacm's, which the module opens when a program asks for a
//! connection manager.
//!
//! Ids are librdmacm's `rdma_cm_id *`. They have no queue pair in it: those of their connections
//! are named by their numbers, and moved by the other side of the table.

use super::{Object, Text};
use core::ffi::{c_int, c_void};
use gdrcore_core::verbs::types::QpAttr;

/// Most private data of an event (`RDMA_MAX_PRIVATE_DATA`).
pub const DATA_MAX: usize = 256;

/// An opened connection manager.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Opened {
    /// `rdma_event_channel *`, non-blocking.
    pub channel: Object,
    /// An id that is bound to the device, so that librdmacm keeps the device open.
    pub keeper: Object,
    /// Readable when an event waits.
    pub fd: c_int,
}

// SAFETY: librdmacm's objects may be used by any thread; the caller ensures that they exist.
unsafe impl Send for Opened {}

/// An IP address, as a GID, with a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The GID.
    pub gid: [u8; 16],
    /// Index of its network interface, for a link-local address.
    pub scope_id: u32,
    /// Port in host order.
    pub port: u32,
}

/// What a request or an answer says of its side (`rdma_conn_param`).
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Param {
    pub private_data: *const c_void,
    pub private_data_len: u32,
    /// The number of the queue pair.
    pub qpn: u32,
    pub srq: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
}

/// An event (`rdma_cm_event`). It is acknowledged already.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    /// `rdma_cm_event_type`.
    pub kind: u32,
    /// Its status.
    pub status: c_int,
    /// The cookie of its id; of a request that of the listener.
    pub cookie: u64,
    /// The id of a request; else null.
    pub request: Object,
    /// The peer.
    pub peer: Address,
    /// This side's port.
    pub local_port: u32,
    /// Type of the queue pair, as `ibv_qp_type`.
    pub qp_type: u32,
    /// Number of the peer's queue pair, or 0.
    pub qpn: u32,
    /// Q_Key of the peer's datagram service, or 0.
    pub qkey: u32,
    /// 1: the peer's queue pair has an SRQ.
    pub srq: u32,
    /// READs and atomics that this side should serve.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Bytes of `data`.
    pub data_len: u32,
    /// Private data.
    pub data: [u8; DATA_MAX],
}

// SAFETY: as of `Opened`: the id of a request belongs to who takes the event.
unsafe impl Send for Event {}

/// The functions. Each returns 0 or a positive errno, and writes results only on success.
///
/// # Thread-safety
/// The caller calls one of them at a time for a channel and its ids.
#[repr(C)]
#[allow(missing_docs)]
pub struct Calls {
    /// Opens librdmacm and a channel, and binds an id to an address of the device. `why` gets the
    /// reason of a failure.
    pub open: unsafe extern "C" fn(
        context: Object,
        at: *const Address,
        out: *mut Opened,
        why: *mut Text,
    ) -> c_int,
    /// Ends keeper and channel, of which there is no other id.
    pub close: unsafe extern "C" fn(opened: *const Opened),
    /// `space`: `rdma_port_space`. The cookie comes back in events.
    pub create:
        unsafe extern "C" fn(channel: Object, space: u32, cookie: u64, out: *mut Object) -> c_int,
    pub destroy: unsafe extern "C" fn(id: Object) -> c_int,
    /// Gives the id of a request its cookie.
    pub set_cookie: unsafe extern "C" fn(id: Object, cookie: u64),
    /// `port`: the port given.
    pub bind: unsafe extern "C" fn(id: Object, at: *const Address, port: *mut u32) -> c_int,
    pub listen: unsafe extern "C" fn(id: Object, backlog: u32) -> c_int,
    /// Begins to resolve the address of a peer, for a connection with this ACK timeout (-1: the
    /// kernel's own; kernels before 5.1 know no other). An event follows.
    pub resolve_address:
        unsafe extern "C" fn(id: Object, to: *const Address, ack_timeout: c_int) -> c_int,
    /// Begins to resolve the route. An event follows.
    pub resolve_route: unsafe extern "C" fn(id: Object) -> c_int,
    pub connect: unsafe extern "C" fn(id: Object, param: *const Param) -> c_int,
    pub accept: unsafe extern "C" fn(id: Object, param: *const Param) -> c_int,
    pub establish: unsafe extern "C" fn(id: Object) -> c_int,
    pub reject: unsafe extern "C" fn(id: Object, data: *const c_void, len: u32) -> c_int,
    pub disconnect: unsafe extern "C" fn(id: Object) -> c_int,
    /// Attributes and mask that bring the queue pair into a state.
    pub qp_attr:
        unsafe extern "C" fn(id: Object, state: u32, out: *mut QpAttr, mask: *mut u32) -> c_int,
    /// Takes an event. EAGAIN: there is none.
    pub event: unsafe extern "C" fn(channel: Object, out: *mut Event) -> c_int,
}
