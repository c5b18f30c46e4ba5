//! One id: a listener, or one end of a connection, and its state.

use super::types::{cm_event, port_space, CmEvent, ConnParam, DATA_MAX};
use crate::error::{Error, Result};
use crate::reason::refuse;
use crate::roce::peer::PeerAddr;
use crate::verbs::types::{access, qp_attr_mask as mask, qp_state, qp_type, Handle, QpAttr};
use crate::verbs::NONE;

/// State of an id.
///
/// ```text
/// active:   Idle --REQ--> ReqSent --[REP]--> RepRcvd --RTU--> Established
/// passive:  [REQ]--> ReqRcvd --REP--> RepSent --[RTU]--> Established
/// end:      Established --DREQ--> DreqSent --[DREP]--> TimeWait --> Dead
///           Established --[DREQ] DREP--> TimeWait --> Dead
/// refusal:  ReqRcvd --REJ--> Rejecting --> Dead     any --[REJ], no answer--> Dead
/// UD:       Idle --SIDR_REQ--> SidrSent --[SIDR_REP]--> Established
///           [SIDR_REQ]--> SidrRcvd --SIDR_REP--> SidrDone
/// ```
/// `[X]`: X arrives. Dead: nothing more happens until the program destroys the id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Made; may have a port.
    #[default]
    Idle,
    /// Listens at its port.
    Listen,
    /// REQ sent, waits for REP.
    ReqSent,
    /// REQ received, waits for the program's accept or reject.
    ReqRcvd,
    /// REP sent, waits for RTU.
    RepSent,
    /// REP received, waits for the program's establish.
    RepRcvd,
    /// Connected.
    Established,
    /// DREQ sent, waits for DREP.
    DreqSent,
    /// Disconnected; late packets may still be about.
    TimeWait,
    /// Rejected by the program; answers a repeated REQ by the same REJ.
    Rejecting,
    /// SIDR_REQ sent, waits for SIDR_REP.
    SidrSent,
    /// SIDR_REQ received, waits for the program.
    SidrRcvd,
    /// Answered; answers a repeated SIDR_REQ by the same SIDR_REP.
    SidrDone,
    /// Over.
    Dead,
}

/// Messages that an id owes: bits of [`Id::owes`], sent lowest first.
pub(super) mod owe {
    pub const REQ: u16 = 1;
    pub const REP: u16 = 2;
    pub const RTU: u16 = 4;
    pub const MRA: u16 = 8;
    pub const REJ: u16 = 16;
    pub const DREQ: u16 = 32;
    pub const DREP: u16 = 64;
    pub const SIDR_REQ: u16 = 128;
    pub const SIDR_REP: u16 = 256;
}

/// Private data, kept to be sent again or until the program takes it.
#[derive(Clone, Copy)]
pub(super) struct Data {
    len: u8,
    bytes: [u8; DATA_MAX],
}

impl Default for Data {
    fn default() -> Data {
        Data { len: 0, bytes: [0; DATA_MAX] }
    }
}

impl Data {
    /// Keeps at most [`DATA_MAX`] bytes of `from`.
    pub(super) fn set(&mut self, from: &[u8]) {
        let n = from.len().min(DATA_MAX);
        self.bytes.fill(0);
        if let (Some(to), Some(from)) = (self.bytes.get_mut(..n), from.get(..n)) {
            to.copy_from_slice(from);
        }
        self.len = n as u8;
    }

    pub(super) fn get(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

/// An id. Fields of "this side" are those that its own messages carry.
#[derive(Clone, Copy, Default)]
pub(super) struct Id {
    pub(super) state: State,
    /// The program has destroyed it; it lives on only to finish its exchange.
    pub(super) orphan: bool,
    /// The peer sent the first message.
    pub(super) passive: bool,
    /// Port space.
    pub(super) ps: u16,
    /// This side's port, 0 = none yet.
    pub(super) port: u16,
    /// The peer's port.
    pub(super) remote_port: u16,
    /// The program's context of the id.
    pub(super) context: Handle,
    /// The program's QP, 0 = it moves the QP by itself.
    pub(super) qp: Handle,
    /// Index of the listener that a request came to, while it is half-open, or `NONE`.
    pub(super) listener: u32,
    /// The program has said that it will listen.
    pub(super) announced: bool,
    /// Listener: requests that may wait for the program at once.
    pub(super) backlog: u32,
    /// Listener: requests that wait for it.
    pub(super) pending: u32,
    /// Listener: those, and accepted connections that are not confirmed.
    pub(super) half_open: u32,
    /// It is a guest: its peer has not shown that it receives.
    pub(super) guest: bool,
    /// The program has asked for the end of the connection.
    pub(super) end_asked: bool,
    /// The peer may have lost this connection, and was asked.
    pub(super) doubted: bool,
    /// Requests, unconfirmed connections: when it came into its state. Connected: when it was
    /// doubted last; announced: when the first request came; 0: never.
    pub(super) since: u64,
    /// The communication id that this place of the table had before.
    pub(super) former_id: u32,
    /// The peer's address.
    pub(super) peer: PeerAddr,
    /// Transaction id.
    pub(super) tid: u64,
    /// Communication id of this side; for UD the request id.
    pub(super) local_id: u32,
    /// Communication id of the peer; for UD the request id.
    pub(super) remote_id: u32,
    pub(super) remote_guid: u64,
    pub(super) local_qpn: u32,
    pub(super) remote_qpn: u32,
    /// PSN that this side expects first: what its REQ or REP said.
    pub(super) rq_psn: u32,
    /// PSN that this side sends first: what the peer asked for.
    pub(super) sq_psn: u32,
    pub(super) qkey: u32,
    pub(super) remote_qkey: u32,
    pub(super) qp_type: u32,
    pub(super) path_mtu: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    /// What the peer asked this side's QP to use.
    pub(super) rnr_retry: u8,
    /// What this side asks the peer's QP to use.
    pub(super) peer_rnr_retry: u8,
    pub(super) ack_timeout: u8,
    pub(super) response_timeout: u8,
    pub(super) srq: bool,
    pub(super) peer_srq: bool,
    /// Messages owed ([`owe`]).
    pub(super) owes: u16,
    /// How often the message that waits for an answer may be sent again.
    pub(super) retries_left: u8,
    /// MRAs that the peer may still send.
    pub(super) mras_left: u8,
    /// Which message a REJ or MRA of ours is about.
    pub(super) about: u8,
    /// Reason of a REJ of ours, or status of a SIDR_REP.
    pub(super) reason: u16,
    /// Errno of a network error that came since the peer was asked, 0 = none. It may be forged, so
    /// it ends nothing; if the peer does not answer, it is the status in place of ETIMEDOUT.
    pub(super) network_errno: i32,
    /// The kernel has refused to send; the status has its errno.
    pub(super) kernel_refused: bool,
    /// Status of the event that has one.
    pub(super) status: i32,
    /// Private data of this side's message, which may be sent again.
    pub(super) data_out: Data,
    /// Private data of the peer's message, until the program takes it.
    pub(super) data_in: Data,
}

/// The attributes that bring a QP of a type into INIT, with all remote operations enabled, and
/// their mask.
pub fn init_attr(kind: u32, qkey: u32) -> (QpAttr, u32) {
    let all = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let mut attr = QpAttr { qp_state: qp_state::INIT, port_num: 1, ..QpAttr::default() };
    let m = mask::STATE | mask::PKEY_INDEX | mask::PORT;
    if kind == qp_type::UD {
        attr.qkey = qkey;
        return (attr, m | mask::QKEY);
    }
    attr.qp_access_flags = if kind == qp_type::RC { all } else { access::REMOTE_WRITE };
    (attr, m | mask::ACCESS_FLAGS)
}

/// RNR NAK timer code of QPs that the connection manager sets up: 0.64 ms.
pub const MIN_RNR_TIMER: u8 = 12;

impl Id {
    /// Sets this side's QP, and what its REQ or REP says of it.
    pub(super) fn set_qp(&mut self, qp: Handle, p: &ConnParam<'_>) {
        (self.qp, self.local_qpn) = (qp, p.qpn);
        self.rq_psn = p.psn.unwrap_or(self.rq_psn);
        if self.ps == port_space::UDP {
            // A datagram service has no PSN of the peer.
            self.sq_psn = self.rq_psn;
        }
        (self.qkey, self.peer_rnr_retry, self.srq) = (p.qkey, p.rnr_retry, p.srq);
    }

    pub(super) fn new(ps: u16, context: u64) -> Self {
        Id { ps, context, listener: NONE, qp_type: qp_type::RC, ..Id::default() }
    }

    /// Whether a message with these ids from this address belongs to it.
    pub(super) fn is_named(&self, local_id: u32, remote_id: u32, from: &PeerAddr) -> bool {
        // Linux cm.c cm_acquire_id: A message counts for a connection only if both communication
        // ids and the peer's address are right.
        self.local_id == local_id
            && self.remote_id == remote_id
            && self.peer.gid == from.gid
            && local_id != 0
    }

    /// Whether it has a communication id of its own and a peer.
    pub(super) fn is_conversation(&self) -> bool {
        !matches!(self.state, State::Idle | State::Listen)
    }

    /// Whether it is a connection, or about to be one, whose peer's QP is known.
    pub(super) fn has_peer_qp(&self) -> bool {
        let begun = matches!(self.state, State::RepSent | State::RepRcvd | State::Established);
        begun && self.qp_type != qp_type::UD
    }

    /// Whether a request waits for the program.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::ReqRcvd | State::SidrRcvd)
    }

    /// The status of an event that reports that the peer has not answered.
    pub(super) fn silence_status(&self) -> i32 {
        if self.network_errno != 0 {
            -self.network_errno
        } else {
            -Error::TimedOut.errno()
        }
    }

    /// The event with a number, from the present state; the caller knows when it arrived.
    pub(super) fn event(&self, event: u32, id: Handle, listener: Handle) -> CmEvent {
        let with_data = matches!(
            event,
            cm_event::CONNECT_REQUEST | cm_event::CONNECT_RESPONSE | cm_event::REJECTED
        ) || event == cm_event::ESTABLISHED && self.qp_type == qp_type::UD;
        let data = if with_data { self.data_in } else { Data::default() };
        let has_status = matches!(
            event,
            cm_event::REJECTED
                | cm_event::UNREACHABLE
                | cm_event::CONNECT_ERROR
                | cm_event::DISCONNECTED
        );
        CmEvent {
            event,
            arrival: 0,
            status: if has_status { self.status } else { 0 },
            local: event == cm_event::UNREACHABLE && self.kernel_refused,
            id,
            listener,
            qp: self.qp,
            context: self.context,
            peer: self.peer.to_ah(),
            remote_qpn: self.remote_qpn,
            qkey: self.remote_qkey,
            local_port: self.port,
            remote_port: self.remote_port,
            qp_type: self.qp_type,
            path_mtu: self.path_mtu,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            srq: self.peer_srq,
            data_len: data.len,
            data: data.bytes,
        }
    }

    /// The attributes that bring a QP of this connection into `state`, and their mask.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`]: a state that is not on the way up, or one for which too little is
    /// known yet.
    pub(super) fn qp_attr(&self, state: u32) -> Result<(QpAttr, u32)> {
        let reliable = self.qp_type == qp_type::RC;
        let datagram = self.qp_type == qp_type::UD;
        let known = matches!(
            self.state,
            State::ReqRcvd
                | State::RepSent
                | State::RepRcvd
                | State::Established
                | State::SidrRcvd
                | State::SidrDone
        );
        let mut attr = QpAttr { qp_state: state, port_num: 1, ..QpAttr::default() };
        let m = match state {
            qp_state::INIT => return Ok(init_attr(self.qp_type, self.qkey)),
            qp_state::RTR if datagram => mask::STATE,
            qp_state::RTR if known => {
                // Linux cm.c cm_init_qp_rtr_attr: RTR takes QPN, path MTU, first PSN and READs to
                // serve from the messages.
                attr.ah = self.peer.to_ah();
                attr.path_mtu = self.path_mtu;
                attr.dest_qp_num = self.remote_qpn;
                attr.rq_psn = self.rq_psn;
                attr.max_dest_rd_atomic = self.responder_resources;
                attr.min_rnr_timer = MIN_RNR_TIMER;
                let base = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
                base | if reliable { mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER } else { 0 }
            }
            qp_state::RTS if datagram => {
                attr.sq_psn = self.sq_psn;
                mask::STATE | mask::SQ_PSN
            }
            qp_state::RTS if known => {
                attr.sq_psn = self.sq_psn;
                // Linux cm.c cm_init_qp_rts_attr: RTS takes timeout, counters of retries and READs
                // to have outstanding from the messages.
                attr.timeout = self.ack_timeout;
                attr.retry_cnt = self.retry_count;
                attr.rnr_retry = self.rnr_retry;
                attr.max_rd_atomic = self.initiator_depth;
                let all =
                    mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
                mask::STATE | mask::SQ_PSN | if reliable { all } else { 0 }
            }
            _ => {
                let (to, is) = (qp_state::name(state), self.state);
                return Err(refuse!(
                    Invalid,
                    "state {to}: INIT, RTR or RTS, the latter \
                     once the peer is known (the id is in {is:?})"
                ));
            }
        };
        Ok((attr, m))
    }
}
