//! The responder contexts of all DC targets of an engine: hidden queue pairs, each for one
//! initiator at a time.
//!
//! A context gets another QPN with each association, out of some that it owns. So late packets of
//! an earlier association find no queue pair, or a later association, whose PSNs they do not have.
//! Contexts are used in turn, the one that has been free longest first.
//!
//! A lease ends an association whose initiator has stopped: a context that has heard nothing for
//! that long may be given to another initiator. No timer runs: the ages of contexts are compared
//! when one is wanted and none is free.

use heapless::Vec;

use crate::arena::RawSlice;
use crate::random::Random;
use crate::roce::run::Run;
use crate::roce::Transport;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::resp::Incoming;
use crate::verbs::shared::Shared;
use crate::verbs::types::{qp_state, wc_status};
use crate::verbs::NONE;
use crate::wire::dceth::{DcEth, DcMessage};

/// Most QPNs of a context.
pub(crate) const NUMBERS: usize = 32;
/// Most answers that wait to leave. An initiator whose answer finds no place asks again.
const REPLIES: usize = 16;
/// Most wrong keys that are refused in [`KEY_INTERVAL_NS`]. Further ones draw no answer, so that
/// keys cannot be guessed.
const KEY_REFUSALS: u32 = 10;
const KEY_INTERVAL_NS: u64 = 100_000_000;
/// Purpose of the random numbers.
const PURPOSE: u64 = 0x6463_6374;

/// A context, and the initiator that it serves.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Index of its queue pair.
    pub qi: u32,
    /// Index of the DCT that it belongs to; [`NONE`]: it is free.
    pub dct: u32,
    /// Association.
    pub id: u64,
    /// The initiator.
    pub gid: [u8; 16],
    /// The initiator's QPN.
    pub qpn: u32,
    /// Packets that it had received when it was last looked at.
    pub seen: u64,
    /// Since when it has received so many. Of a free context: since when it is free.
    pub since: u64,
    /// Silence after which it may be given to another initiator.
    pub lease_ns: u64,
    /// Which of its QPNs it uses.
    pub number: u32,
    /// Control message that it owes its initiator.
    pub owes: Option<DcMessage>,
    /// When its initiator may be asked again to close.
    pub reclaim_at: u64,
    /// Its initiator is reached over a link, if the caller of the engine finds one.
    pub wants_link: bool,
}

impl Context {
    /// A free context.
    pub const FREE: Context = Context {
        qi: NONE,
        dct: NONE,
        id: 0,
        gid: [0; 16],
        qpn: 0,
        seen: 0,
        since: 0,
        lease_ns: 0,
        number: 0,
        owes: None,
        reclaim_at: 0,
        wants_link: false,
    };

    /// Whether it belongs to no association.
    pub(super) fn is_free(&self) -> bool {
        self.dct == NONE
    }

    /// For how long no packet has come, as far as it is known.
    pub(super) fn silence(&mut self, qp: &Qp, now: u64) -> u64 {
        let seen = qp.counters.rcvd_pkts;
        if self.seen != seen {
            (self.seen, self.since) = (seen, now);
        }
        now.saturating_sub(self.since)
    }
}

/// An answer of a DCT, or of a DCI, that belongs to no association.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) of: u32,
    pub(super) peer: u32,
    pub(super) run: Run,
    pub(super) eth: DcEth,
}

/// All contexts of an engine.
pub struct Contexts {
    /// The contexts; none before the first DCT.
    pub(crate) list: RawSlice<Context>,
    /// QPNs of each context, in a row.
    pub(crate) numbers: RawSlice<u32>,
    /// Answers that wait to leave.
    pub(super) replies: Vec<Reply, REPLIES>,
    /// Random number of this engine's life.
    pub incarnation: u64,
    /// Numbers for the lives of initiators.
    random: Random,
    /// Wrong keys refused, and since when.
    refused: (u64, u32),
    /// A context may want a link.
    pub(crate) want_links: bool,
}

impl Contexts {
    /// No contexts, for an engine with a seed.
    pub fn new(seed: u64) -> Contexts {
        let mut random = Random::new(seed, PURPOSE);
        Contexts {
            list: RawSlice::default(),
            numbers: RawSlice::default(),
            replies: Vec::new(),
            incarnation: random.draw(),
            random,
            refused: (0, 0),
            want_links: false,
        }
    }

    /// The id before the first of an initiator's new life.
    pub(crate) fn new_life(&mut self) -> u64 {
        self.random.draw() & !0xffff_ffff
    }

    /// How many contexts belong to an association.
    pub fn in_use(&self) -> usize {
        self.list.iter().filter(|context| !context.is_free()).count()
    }

    /// QPNs that each context has.
    pub(super) fn numbers_each(&self) -> usize {
        self.numbers.len() / self.list.len().max(1)
    }

    /// Whether a wrong key draws an answer now.
    pub(super) fn take_key_refusal(&mut self, now: u64) -> bool {
        let (since, count) = &mut self.refused;
        if now.saturating_sub(*since) >= KEY_INTERVAL_NS {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= KEY_REFUSALS
    }
}

impl Qp {
    /// Whether no request of the context's association is under way. An idle context may be given
    /// to another initiator when its own has agreed, or its lease is over.
    pub(super) fn is_idle_context(&self) -> bool {
        let resp = &self.conn.resp;
        resp.incoming() == Incoming::Idle
            && resp.job_len() == 0
            && resp.landing_count() == 0
            && !resp.owes_answer()
            && self.state == qp_state::RTR
    }
}

impl Transport {
    /// Frees a context. The part of a message that has come is lost. The receive request that the
    /// message has taken serves the next message of this context into the same SRQ.
    pub(crate) fn free_context(&mut self, s: &Shared, at: usize, now: u64) {
        let context = self.dc.list[at];
        if context.is_free() {
            return;
        }
        let qi = context.qi as usize;
        let mut c = self.conn(s, qi);
        c.stop();
        c.flush_landings();
        c.release_cqe();
        c.set_state(qp_state::RESET);
        c.wait_for_nothing();
        let sent = c.qp.counters.sent_pkts;
        let recv = core::mem::take(&mut c.qp.conn.resp.recv);
        let peer = c.qp.conn.end(0, sent);
        c.qp.conn.resp.recv = recv;
        c.qp.set_paced(false);
        let index = c.qp.qpn.wrapping_sub(c.common.qpn_base) as usize;
        if let Some(entry) = c.common.by_qpn.get_mut(index) {
            *entry = 0;
        }
        self.peer_leave(peer);
        let seen = self.qps[qi].counters.rcvd_pkts;
        let kept = Context { wants_link: false, ..self.dc.list[at] };
        self.dc.list[at] =
            Context { dct: NONE, id: 0, seen, since: now, owes: None, reclaim_at: 0, ..kept };
    }

    /// Frees all contexts of a DCT, which ends or begins anew, and drops its answers. `flushes`:
    /// receive requests that contexts have taken complete as flushed, as far as their CQ has room.
    /// The others stay with their contexts, because they are the SRQ's, which goes on.
    pub(crate) fn free_contexts_of(&mut self, s: &Shared, dct: usize, now: u64, flushes: bool) {
        let number = self.qps[dct].qpn;
        for at in 0..self.dc.list.len() {
            let qi = self.dc.list[at].qi as usize;
            if self.dc.list[at].dct == dct as u32 {
                if flushes && self.qps[qi].conn.resp.recv.taken {
                    self.conn(s, qi).fail_recv(wc_status::WR_FLUSH_ERR);
                }
                self.free_context(s, at, now);
                self.qps[qi].conn.resp.recv.failed = 0;
            }
            let qp = &mut self.qps[qi];
            if self.dc.list[at].is_free() && qp.wc_qpn == number {
                // The CQ may end with the DCT.
                qp.rcq = NONE;
            }
        }
        self.drop_replies_of(dct);
    }

    /// Drops the answers of a DCT or a DCI, which ends or begins anew.
    pub(crate) fn drop_replies_of(&mut self, qi: usize) {
        let mut i = 0;
        while i < self.dc.replies.len() {
            if self.dc.replies[i].of == qi as u32 {
                let reply = self.dc.replies.remove(i);
                self.peer_leave(reply.peer);
            } else {
                i += 1;
            }
        }
    }

    /// Gives up the receive requests of an SRQ that free contexts hold, because the SRQ ends.
    pub(crate) fn forget_requests_of(&mut self, srq: u32) {
        for at in 0..self.dc.list.len() {
            let qp = &mut self.qps[self.dc.list[at].qi as usize];
            if qp.srq == srq && self.dc.list[at].is_free() {
                qp.conn.resp.recv = Default::default();
                qp.srq = NONE;
            }
        }
    }

    /// The context of a queue pair, by index in the table.
    pub(super) fn context_of(&self, qi: usize) -> usize {
        debug_assert!(self.qps[qi].kind == QpKind::DcContext);
        self.qps[qi].context as usize
    }
}
