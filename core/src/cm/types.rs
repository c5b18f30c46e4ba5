//! Arguments and events of the connection manager. Plain data.

use crate::consts;
use crate::verbs::types::{AhAttr, Handle};

consts! {
    /// Port spaces (rdma_port_space).
    port_space: u16 {
        /// RC connections, with ports like TCP's.
        TCP = 0x0106,
        /// UD services, with ports like UDP's.
        UDP = 0x0111,
        /// RC and UC connections by InfiniBand service ids.
        IB = 0x013f,
    }
}

consts! {
    /// Events of the connection manager (rdma_cm_event_type).
    cm_event: u32 {
        /// A peer's request to a listener.
        CONNECT_REQUEST = 4,
        /// The peer has accepted. Only for ids without a QP: the program moves its own QP to RTS,
        /// then calls gdrc_cm_establish.
        CONNECT_RESPONSE = 5,
        /// The peer has accepted, but the QP could not be brought to RTS. The peer gets a REJ.
        CONNECT_ERROR = 6,
        /// The peer did not answer in time, or the kernel or network refused the request. The
        /// status is -ETIMEDOUT, the error of the network (-ECONNREFUSED, -EHOSTUNREACH), or that
        /// of the kernel (-EPERM: a firewall; -ENETUNREACH, -EACCES, ...: no route).
        UNREACHABLE = 7,
        /// The peer has rejected the request; status is the reason.
        REJECTED = 8,
        /// The connection is established.
        ESTABLISHED = 9,
        /// The connection has ended, from either side. The status is -ETIMEDOUT if the peer said
        /// nothing: its process has ended, or it did not answer for 9 s.
        DISCONNECTED = 10,
        /// The network interface of the context's address has been removed, and with it what a NIC
        /// would be. Every id has this event; the program destroys the id, as rdma_get_cm_event(3)
        /// says.
        DEVICE_REMOVAL = 11,
        /// The network interface of the context's address has another hardware address, or another
        /// interface has the address: a bonding device has failed over. Every id has this event.
        /// Connections go on.
        ADDR_CHANGE = 14,
        /// No late packet of the connection can arrive any more.
        TIMEWAIT_EXIT = 15,
    }
}

consts! {
    /// Common reasons of a rejection (IBTA 12.6.7.2): the status of [`cm_event::REJECTED`].
    reject: u16 {
        /// The peer has no queue pair left.
        NO_QP = 1,
        /// The peer's tables are full.
        NO_RESOURCES = 3,
        /// The peer's connection manager has timed out, or its program has destroyed the id.
        TIMEOUT = 4,
        /// The peer does not support what was asked for.
        UNSUPPORTED = 5,
        /// The peer does not know the communication id.
        INVALID_COMM_ID = 6,
        /// No listener at this port.
        INVALID_SERVICE_ID = 8,
        /// The peer does not know the transport.
        INVALID_TRANSPORT = 9,
        /// The peer still has a connection to this QPN and probes it. Request again, with another
        /// QP if the rejection repeats.
        STALE_CONNECTION = 10,
        /// The request names another address than it came from or to.
        INVALID_GID = 12,
        /// The path MTU is larger than the peer's link carries.
        INVALID_MTU = 26,
        /// The peer's program called gdrc_cm_reject, or rdma_reject.
        CONSUMER = 28,
    }
}

/// Attribute ids, which say what message it is (IBTA 12.6).
#[allow(missing_docs)]
pub mod mad_attribute {
    pub const REQ: u16 = 0x10;
    pub const MRA: u16 = 0x11;
    pub const REJ: u16 = 0x12;
    pub const REP: u16 = 0x13;
    pub const RTU: u16 = 0x14;
    pub const DREQ: u16 = 0x15;
    pub const DREP: u16 = 0x16;
    pub const SIDR_REQ: u16 = 0x17;
    pub const SIDR_REP: u16 = 0x18;
}

/// Status of a SIDR_REP (IBTA 12.11.2).
#[allow(missing_docs)]
pub mod sidr_status {
    pub const SUCCESS: u8 = 0;
    pub const UNSUPPORTED: u8 = 1;
    pub const REJECTED: u8 = 2;
    pub const NO_QP: u8 = 3;
}

/// Bytes of private data that gdrc_cm_connect takes ([`port_space::UDP`]: [`UD_CONNECT_DATA_MAX`]).
pub const CONNECT_DATA_MAX: usize = 56;
/// Bytes of private data that gdrc_cm_accept takes ([`port_space::UDP`]: [`UD_ACCEPT_DATA_MAX`]).
pub const ACCEPT_DATA_MAX: usize = 196;
/// Bytes of private data that gdrc_cm_reject takes ([`port_space::UDP`]: [`UD_ACCEPT_DATA_MAX`]).
pub const REJECT_DATA_MAX: usize = 148;
/// Bytes of private data that gdrc_cm_connect takes for [`port_space::UDP`].
pub const UD_CONNECT_DATA_MAX: usize = 180;
/// Bytes of private data that gdrc_cm_accept and gdrc_cm_reject take for [`port_space::UDP`].
pub const UD_ACCEPT_DATA_MAX: usize = 136;
/// Most private data of any message.
pub const DATA_MAX: usize = ACCEPT_DATA_MAX;

/// Timeout code for the answer of a peer, if the program names none: 0.54 s.
pub const RESPONSE_TIMEOUT: u8 = 17;
/// How often a message is sent again.
pub const MAX_RETRIES: u8 = 15;

/// Parameters of one side in connect and accept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnParam<'a> {
    /// QPN of this side.
    pub qpn: u32,
    /// Type of the QP: `qp_type::RC`, `UC`, `UD`.
    pub qp_type: u32,
    /// First PSN that this side expects, and the peer will begin with; `None`: random.
    pub psn: Option<u32>,
    /// READs and atomics that this side serves at once.
    pub responder_resources: u8,
    /// READs and atomics that this side wants outstanding.
    pub initiator_depth: u8,
    /// Transport retries, 0 to 7 (connect only: it holds for both sides).
    pub retry_count: u8,
    /// RNR retries that the peer shall make, 0 to 7; 7 = for ever.
    pub rnr_retry: u8,
    /// ACK timeout code (connect only: it holds for both sides).
    pub ack_timeout: u8,
    /// Timeout code within which the peer's CM shall answer, 0 = the manager's own.
    pub response_timeout: u8,
    /// Path MTU code (connect only); 0: the largest that the link carries.
    pub path_mtu: u32,
    /// The QP takes its receives from an SRQ.
    pub srq: bool,
    /// Q_Key (UD).
    pub qkey: u32,
    /// Data for the peer's program.
    pub private_data: &'a [u8],
}

impl ConnParam<'_> {
    /// The same with other private data.
    pub fn with_data<'d>(&self, private_data: &'d [u8]) -> ConnParam<'d> {
        let ConnParam { qpn, qp_type, psn, responder_resources, initiator_depth, .. } = *self;
        let ConnParam { retry_count, rnr_retry, ack_timeout, response_timeout, .. } = *self;
        let ConnParam { path_mtu, srq, qkey, .. } = *self;
        ConnParam {
            qpn,
            qp_type,
            psn,
            responder_resources,
            initiator_depth,
            retry_count,
            rnr_retry,
            ack_timeout,
            response_timeout,
            path_mtu,
            srq,
            qkey,
            private_data,
        }
    }
}

/// Something happened to an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// One of [`cm_event`].
    pub event: u32,
    /// When it came, among all events of the process's devices ([`super::arrival`]).
    pub arrival: u64,
    /// REJECTED: the reason ([`reject`], [`sidr_status`] for UD). Otherwise a negative errno, or 0.
    /// UNREACHABLE: `ETIMEDOUT`; or, after the same time, a network error about the peer
    /// (`ECONNREFUSED`, `EHOSTUNREACH`, ...); or, at once, the kernel's reason for refusing to send
    /// (`EPERM`, `ENETUNREACH`, ...).
    pub status: i32,
    /// UNREACHABLE: the kernel has refused to send, which no other host can cause.
    pub local: bool,
    /// The id concerned; with CONNECT_REQUEST a new one.
    pub id: Handle,
    /// CONNECT_REQUEST: the listener that was asked. Else 0.
    pub listener: Handle,
    /// The QP that the id was given, or 0.
    pub qp: Handle,
    /// The program's context of the id.
    pub context: u64,
    /// The peer.
    pub peer: AhAttr,
    /// The peer's QPN, once known.
    pub remote_qpn: u32,
    /// The peer's Q_Key (UD), once known.
    pub qkey: u32,
    /// This side's port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// Type of the QP asked for.
    pub qp_type: u32,
    /// Path MTU code.
    pub path_mtu: u32,
    /// READs and atomics that this side should serve: what the peer wants outstanding.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding: what the peer serves.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// The peer's QP has an SRQ.
    pub srq: bool,
    /// Bytes of private data: as many as the message holds, whatever the peer's program gave.
    pub data_len: u8,
    /// Private data of the peer's program.
    pub data: [u8; DATA_MAX],
}

impl Default for CmEvent {
    fn default() -> Self {
        CmEvent {
            event: 0,
            arrival: 0,
            status: 0,
            local: false,
            id: 0,
            listener: 0,
            qp: 0,
            context: 0,
            peer: AhAttr::default(),
            remote_qpn: 0,
            qkey: 0,
            local_port: 0,
            remote_port: 0,
            qp_type: 0,
            path_mtu: 0,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry: 0,
            srq: false,
            data_len: 0,
            data: [0; DATA_MAX],
        }
    }
}

impl CmEvent {
    /// The private data.
    pub fn private_data(&self) -> &[u8] {
        self.data.get(..usize::from(self.data_len)).unwrap_or(&[])
    }
}
