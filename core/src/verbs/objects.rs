//! The engine's private half of the verbs objects, reachable only inside its lock.

use crate::arena::{RawBytes, RawSlice};
use crate::bucket::TokenBucket;
use crate::counters::Counters;
use crate::verbs::association::Association;
use crate::verbs::cause::Cause;
use crate::verbs::connection::Connection;
use crate::verbs::holds::Holds;
use crate::verbs::kind::QpKind;
use crate::verbs::req::WqeState;
use crate::verbs::resp::rx_block;
use crate::verbs::shared::Shared;
use crate::verbs::types::{qp_state, QpAttr, QpInit};
use crate::verbs::NONE;
use crate::wire::Psn;

/// Conditions that keep all requests of a queue pair off the single path.
pub mod qp_block {
    /// It is not in RTS.
    pub const NOT_RTS: u32 = 1;
    /// It is not RC.
    pub const NOT_RC: u32 = 2;
    /// A limit of its rate applies.
    pub const PACED: u32 = 4;
}

/// The engine's half of a QP: its queues, what the program asked for, and its connection.
#[derive(Default)]
pub struct Qp {
    /// Created and not destroyed.
    pub live: bool,
    /// Its transport service.
    pub kind: QpKind,
    /// `qp_state`.
    pub state: u32,
    /// QP number.
    pub qpn: u32,
    /// The number that its completions have: of a context of a DC target the target's.
    pub wc_qpn: u32,
    /// Calls that keep it from being destroyed.
    pub pins: u32,
    /// Index of its PD, for the memory that its requests and its peer's keys name. An XRC target
    /// takes this, `recv_pd`, `rcq` and `srq` from the SRQ that its latest request named; [`NONE`]
    /// before.
    pub pd: u32,
    /// Index of the PD of the memory that its receive requests name: its SRQ's, else its own.
    pub recv_pd: u32,
    /// Index of the send CQ, or [`NONE`].
    pub scq: u32,
    /// Index of the receive CQ, or [`NONE`].
    pub rcq: u32,
    /// Index of the SRQ, or [`NONE`].
    pub srq: u32,
    /// XRC target: index of its domain. [`NONE`]: it is of another kind.
    pub xrcd: u32,
    /// DC initiator: its association; else none.
    pub dci: RawSlice<Association>,
    /// Context of a DC target: its place in the table of contexts.
    pub context: u32,
    /// Its attributes at creation.
    pub init: QpInit,
    /// Attributes as they were set.
    pub attr: QpAttr,
    /// It was in RTR with a peer outside of this engine, or as UD: another device may know its
    /// number.
    pub met: bool,
    /// The longest silence of a peer that its connections before the last RESET allowed.
    pub longest_ns: u64,
    /// Send rate.
    pub bucket: TokenBucket,
    /// Conditions that keep all requests off the single path: bits of [`qp_block`].
    holds: Holds,
    /// Progress of the send WQEs, by ring index.
    pub wqes: RawSlice<WqeState>,
    /// One past the last PSN that it sent before it was last in RESET; 0: it sent none.
    pub former_psn: Psn,
    /// Its connection: RC and UC have one from RTR on, UD uses the requester's half of it.
    pub conn: Connection,
    /// Ring memory of its send queue, for the heap.
    pub sq_mem: Option<RawBytes>,
    /// Ring memory of its receive queue.
    pub rq_mem: Option<RawBytes>,
    /// Asynchronous events that the program has not taken: bits by number of the event.
    pub events: u32,
    /// Events.
    pub counters: Counters,
    /// Why it failed.
    pub cause: Cause,
}

impl Qp {
    /// A new one, in RESET, without queues.
    pub fn new(qpn: u32, kind: QpKind, init: QpInit) -> Qp {
        let attr = QpAttr { cap: init.cap, port_num: 1, ..QpAttr::default() };
        let base = Qp { live: true, kind, qpn, init, attr, ..Qp::default() };
        let mut qp = Qp { wc_qpn: qpn, xrcd: NONE, context: NONE, ..base };
        qp.set_state(qp_state::RESET);
        qp
    }

    /// Changes its state.
    #[inline]
    pub fn set_state(&mut self, state: u32) {
        self.state = state;
        self.attr.qp_state = state;
        self.set(qp_block::NOT_RTS, state != qp_state::RTS);
        self.set(qp_block::NOT_RC, self.kind != QpKind::Rc);
    }

    /// Whether a limit of its rate applies now.
    #[inline(always)]
    pub fn is_paced(&self) -> bool {
        self.holds.is(qp_block::PACED)
    }

    /// Sets that.
    #[inline]
    pub fn set_paced(&mut self, on: bool) {
        self.set(qp_block::PACED, on);
    }

    #[inline(always)]
    fn set(&mut self, bits: u32, on: bool) {
        self.holds.set(bits, on);
    }

    /// All bits of [`qp_block`] that are set.
    #[inline(always)]
    pub fn holds(&self) -> u32 {
        self.holds.all()
    }

    /// Whether the bits of the three words agree with the fields that they stand for.
    pub fn holds_are_true(&self) -> bool {
        let (state, kind) = (self.state != qp_state::RTS, self.kind != QpKind::Rc);
        let own = state == (self.holds.is(qp_block::NOT_RTS))
            && kind == (self.holds.is(qp_block::NOT_RC));
        own && self.conn.req.holds_are_true() && self.conn.resp.holds_are_true()
    }

    /// Whether it is RC and in RTS.
    #[inline(always)]
    pub fn is_rc_in_rts(&self) -> bool {
        !self.holds.is(qp_block::NOT_RTS | qp_block::NOT_RC)
    }

    /// Whether it takes single messages of DC, or their ACKs: it is a context, or a DCI whose
    /// target does not want its context back.
    #[inline(always)]
    pub fn takes_singles_of_dc(&self) -> bool {
        match self.kind {
            QpKind::DcContext => self.state == qp_state::RTR,
            QpKind::Dci => self.state == qp_state::RTS && !self.dci[0].wanted,
            _ => false,
        }
    }

    /// Whether the next request may take the single path: nothing is sent again, and no condition
    /// holds it back or goes before it. The caller checks the peer's window and the request. `DC`:
    /// it is a DCI, whose association the caller checks, too; else it is RC.
    #[inline(always)]
    pub fn may_send_new<const DC: bool>(&self) -> bool {
        let kind = if DC { qp_block::NOT_RC } else { 0 };
        ((self.holds.all() ^ kind)
            | self.conn.req.holds()
            | self.conn.resp.holds() & rx_block::BEFORE_REQUESTS)
            == 0
            && !self.conn.req.sends_again()
    }

    /// Whether it is in a state that sends anything at all.
    #[inline]
    pub fn may_transmit(&self) -> bool {
        self.live && self.state != qp_state::RESET && self.state != qp_state::INIT
    }
    /// Whether it is in SQE or ERR, where posts are flushed.
    #[inline]
    pub fn has_failed(&self) -> bool {
        matches!(self.state, qp_state::SQE | qp_state::ERR)
    }
    /// Whether it can go to ERR by itself.
    pub fn can_fail(&self) -> bool {
        self.can_receive() || self.state == qp_state::INIT
    }
    /// Whether packets from the peer are taken.
    #[inline]
    pub fn can_receive(&self) -> bool {
        matches!(self.state, qp_state::RTR | qp_state::RTS | qp_state::SQD | qp_state::SQE)
    }
    /// Whether the requester may send.
    #[inline]
    pub fn can_send(&self) -> bool {
        matches!(self.state, qp_state::RTS | qp_state::SQD)
    }
    /// The association of a DC initiator; no other kind has one.
    #[inline]
    pub fn association(&mut self) -> &mut Association {
        &mut self.dci[0]
    }
    /// Where in [`Qp::wqes`] the WQE of a ring index has its record.
    #[inline(always)]
    pub fn wqe_at(&self, index: u32) -> usize {
        index as usize & (self.wqes.len() - 1)
    }
    /// The state record of the WQE at a ring index.
    #[inline]
    pub fn wqe(&mut self, index: u32) -> &mut WqeState {
        let at = self.wqe_at(index);
        &mut self.wqes[at]
    }
}

/// Completions for which an armed CQ raises an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Armed {
    /// Nothing.
    #[default]
    No,
    /// The next completion that is solicited or failed.
    Urgent,
    /// The next completion.
    Any,
}

/// The engine's half of a CQ.
#[derive(Default)]
pub struct Cq {
    /// Created and not destroyed.
    pub live: bool,
    /// Ring memory, for the heap.
    pub mem: Option<RawBytes>,
    /// Entries reserved for receives that have begun.
    pub reserved: u32,
    /// The poll to which its next completion goes past the ring
    /// (`roce::rules::cq::CompletionHandoff`); 0: none.
    pub bypass: u64,
    /// Completions that raise its next event.
    pub armed: Armed,
    /// Free entries when a QP last began to wait for one.
    pub seen_free: u32,
    /// The QP for which an entry was last reserved.
    pub holder: u32,
    /// QPs that use it, counted once per queue, and pins.
    pub users: u32,
    /// Send queues among them.
    pub senders: u32,
    /// Sum of the depths of those queues (strict mode).
    pub depth_sum: u32,
    /// Where its events go, if not to the context.
    pub channel: Option<u8>,
    /// It has an event on its channel, and is in the list of such CQs.
    pub has_event: bool,
    /// The CQ behind it in that list, plus one.
    pub next: u32,
    /// Its last error.
    pub error: CqError,
}

/// What has become of a CQ that takes no completions any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CqError {
    /// It takes completions.
    #[default]
    None,
    /// A completion found it full; its queue pairs do not know yet.
    Overrun,
    /// It has failed, and the program does not know yet.
    Raised,
    /// It has failed.
    Told,
}

impl Cq {
    /// So many entries are reserved in a CQ that has failed, so that no completion finds one.
    const FAILED: u32 = 1 << 30;

    /// It has failed: no completion finds room in it any more.
    pub fn fail(&mut self) {
        (self.reserved, self.bypass) = (Self::FAILED, 0);
        self.error = CqError::Raised;
    }

    /// Whether it has failed: then completions for it are lost. Messages that had reserved entries
    /// give those back.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.reserved > Self::FAILED / 2
    }

    /// Most entries of a CQ of `capacity` that may be reserved for receives that have begun. A
    /// message whose sender is gone keeps its reservation for ever, so one entry is left to the
    /// send queues.
    #[inline]
    pub fn reservable(&self, capacity: u32) -> u32 {
        capacity.saturating_sub(u32::from(self.senders > 0))
    }

    /// Raises the event of an armed CQ at an index.
    #[inline(always)]
    pub(crate) fn raise(&mut self, s: &Shared, index: u32) {
        self.armed = Armed::No;
        match self.channel {
            None => s.raise_cq(index as usize),
            Some(_) if self.has_event => {}
            Some(channel) => {
                self.has_event = true;
                self.next = s.raise_on_channel(index, channel.into());
            }
        }
    }
}

/// The engine's half of an SRQ.
#[derive(Default)]
pub struct Srq {
    /// Created and not destroyed.
    pub live: bool,
    /// Ring memory, for the heap.
    pub mem: Option<RawBytes>,
    /// Its PD.
    pub pd: u32,
    /// Its number, out of the QPNs of the engine.
    pub number: u32,
    /// XRC: its domain and its CQ, by index.
    pub xrc: Option<(u32, u32)>,
    /// QPs that use it; XRC targets do not count.
    pub users: u32,
    /// Raise the limit event below this; 0 = off.
    pub limit: u32,
    /// Asked for at creation.
    pub max_sge: u32,
    /// Asynchronous events not taken.
    pub events: u32,
}

/// An address handle.
#[derive(Clone, Copy, Default)]
pub struct Ah {
    /// Created and not destroyed.
    pub live: bool,
    /// Its PD.
    pub pd: u32,
    /// The peer.
    pub peer: u32,
    /// The peer record for QPNs of other engines at the same address; NONE where the address is not
    /// shared.
    pub others: u32,
}

/// An XRC domain.
#[derive(Clone, Copy, Default)]
pub struct Xrcd {
    /// SRQs and targets in it.
    pub users: u32,
}

/// A protection domain.
#[derive(Clone, Copy, Default)]
pub struct Pd {
    /// Objects that belong to it, besides MRs and windows.
    pub users: u32,
}
