//! Arguments and events of the connection manager. Plain data.

use crate::verbs::types::{AhAttr, Handle};

/// Port spaces: the upper bits of a service id (numbers of `rdma_port_space`).
pub mod port_space {
    /// The name of a port space, for messages.
    pub fn name(ps: u16) -> &'static str {
        match ps {
            TCP => "TCP",
            UDP => "UDP",
            IB => "IB",
            _ => "?",
        }
    }

    /// Connections named by InfiniBand service ids.
    pub const IB: u16 = 0x013f;
    /// Reliable connections with TCP-like ports.
    pub const TCP: u16 = 0x0106;
    /// Datagrams with UDP-like ports.
    pub const UDP: u16 = 0x0111;
}

/// The event (numbers of `rdma_cm_event_type`).
pub mod cm_event {
    /// A peer sends a request to a listener.
    pub const CONNECT_REQUEST: u32 = 4;
    /// The peer has accepted; the connection waits for `establish`.
    pub const CONNECT_RESPONSE: u32 = 5;
    /// The QP could not be brought into the connection.
    pub const CONNECT_ERROR: u32 = 6;
    /// The peer did not answer.
    pub const UNREACHABLE: u32 = 7;
    /// The peer rejected; the status is the reason.
    pub const REJECTED: u32 = 8;
    /// Connected; for UD the remote QPN and Q_Key are there.
    pub const ESTABLISHED: u32 = 9;
    /// The peer, or this side, ended the connection.
    pub const DISCONNECTED: u32 = 10;
    /// The network interface of the id's device has been removed.
    pub const DEVICE_REMOVAL: u32 = 11;
    /// The network interface of the id's device has another hardware address.
    pub const ADDR_CHANGE: u32 = 14;
    /// Late packets of the connection are gone from the network; its QPN may be used again.
    pub const TIMEWAIT_EXIT: u32 = 15;
}

/// Why a connection was rejected (IBTA 12.6.7.2).
#[allow(missing_docs)]
pub mod reject {
    pub const NO_QP: u16 = 1;
    pub const NO_RESOURCES: u16 = 3;
    pub const TIMEOUT: u16 = 4;
    pub const UNSUPPORTED: u16 = 5;
    pub const INVALID_COMM_ID: u16 = 6;
    pub const INVALID_SERVICE_ID: u16 = 8;
    pub const INVALID_TRANSPORT: u16 = 9;
    pub const STALE_CONNECTION: u16 = 10;
    pub const INVALID_GID: u16 = 12;
    pub const INVALID_MTU: u16 = 26;
    pub const CONSUMER: u16 = 28;
}

/// Status of a SIDR_REP (IBTA 12.11.2).
#[allow(missing_docs)]
pub mod sidr_status {
    pub const SUCCESS: u8 = 0;
    pub const UNSUPPORTED: u8 = 1;
    pub const REJECTED: u8 = 2;
    pub const NO_QP: u8 = 3;
}

/// Bytes of private data that a program may give to connect: what rdma_cm's header leaves of a REQ.
pub const CONNECT_DATA_MAX: usize = 56;
/// Bytes of private data in an accept.
pub const ACCEPT_DATA_MAX: usize = 196;
/// Bytes of private data in a reject.
pub const REJECT_DATA_MAX: usize = 148;
/// Bytes of private data in a connect of the UDP port space.
pub const UD_CONNECT_DATA_MAX: usize = 180;
/// Bytes of private data in an accept of the UDP port space.
pub const UD_ACCEPT_DATA_MAX: usize = 136;
/// Most private data of any message.
pub const DATA_MAX: usize = ACCEPT_DATA_MAX;

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

impl CmEvent {
    /// The private data.
    pub fn private_data(&self) -> &[u8] {
        self.data.get(..usize::from(self.data_len)).unwrap_or(&[])
    }
}
