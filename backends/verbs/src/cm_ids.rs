//! What is known of the ids of a NIC's connection manager.

use std::sync::Mutex;

use crate::abi::cm::Opened;
use crate::abi::Text;
use crate::slots::Slots;
use gdrcore_core::cm::{ConnParam, DATA_MAX};
use gdrcore_core::verbs::types::{AhAttr, Handle};

/// How far an id has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Idle,
    Listening,
    /// Address and route of the peer are looked for.
    Resolving,
    /// The peer has been asked.
    Asked,
    /// The peer asks.
    Requested,
    /// The peer has accepted.
    Answered,
    /// This side has accepted.
    Accepted,
    Established,
    /// It is over, or a datagram service has been answered.
    Over,
}

/// What is known of an id.
#[derive(Clone, Copy, Default)]
pub(crate) struct Facts {
    pub(crate) stage: Stage,
    pub(crate) space: u16,
    pub(crate) port: u16,
    pub(crate) remote_port: u16,
    /// The program's.
    pub(crate) context: u64,
    pub(crate) qp: Handle,
    pub(crate) qp_type: u32,
    pub(crate) qpn: u32,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
    pub(crate) path_mtu: u32,
    pub(crate) peer: AhAttr,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    /// What the peer asks of this side's queue pair, and this side of the peer's.
    pub(crate) rnr_retry: u8,
    pub(crate) peer_rnr_retry: u8,
    pub(crate) srq: bool,
    pub(crate) peer_srq: bool,
    /// Private data of a request that is still to leave.
    pub(crate) out: Data,
}

#[derive(Clone, Copy)]
pub(crate) struct Data {
    pub(crate) len: u8,
    pub(crate) bytes: [u8; DATA_MAX],
}

impl Default for Data {
    fn default() -> Self {
        Data { len: 0, bytes: [0; DATA_MAX] }
    }
}

impl Data {
    pub(crate) fn from_bytes(from: &[u8]) -> Data {
        let mut to = Data::default();
        let len = from.len().min(DATA_MAX);
        to.bytes[..len].copy_from_slice(&from[..len]);
        to.len = len as u8;
        to
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// An id; only the holder of the manager's lock locks it.
#[derive(Default)]
pub(crate) struct CmId(pub(crate) Mutex<Facts>);

/// Whether librdmacm is open.
#[derive(Default)]
pub(crate) enum State {
    /// Nobody has asked for it.
    #[default]
    Unopened,
    Open(Opened),
    /// It cannot be opened, and the words. It is not tried again: a router's files are to be open
    /// before it confines itself.
    Refused(Box<Text>),
}

/// The connection manager of a device.
pub(crate) struct Manages {
    pub(crate) state: Mutex<State>,
    pub(crate) ids: Slots<CmId>,
}

impl Manages {
    pub(crate) fn new(ids: Slots<CmId>) -> Manages {
        Manages { state: Mutex::default(), ids }
    }
}

impl Facts {
    /// This side's queue pair, and what it asks of the peer's.
    pub(crate) fn set_qp(&mut self, qp: Handle, p: &ConnParam<'_>) {
        (self.qp, self.qpn, self.qp_type) = (qp, p.qpn, p.qp_type);
        (self.peer_rnr_retry, self.srq) = (p.rnr_retry, p.srq);
    }
}
