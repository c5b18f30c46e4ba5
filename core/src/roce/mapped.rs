//! A WRITE into memory of the peer that this process has mapped: placed here and now, without a packet.
//!
//! A NIC writes into another machine's memory without that machine's help. Two processes of one host can have the same, where the
//! target shares the memory of a region and the initiator has mapped it: then a WRITE is one copy. It takes no PSN, since nothing
//! travels; everything before it on its queue pair has been acknowledged, and everything after it leaves behind its last store, so
//! the order that RC promises holds. Whoever shares the memory says for which of its queue pairs and keys that is so and takes it
//! back when one of them ends; both ask the same questions as the responder would ([`Transport::mappable`]).
//!
//! What cannot be done so (another opcode, a key that opens nothing here, a local key that is refused, memory that is gone) takes
//! the usual way, which alone knows what is to be done then.

use super::lone::cq_of;
use super::peer::{Path, Peer};
use super::queues::{push_to, send_wc};
use super::Transport;
use crate::device::MrAttr;
use crate::mem::{Access, Providers, Regions};
use crate::ring::SlotRef;
use crate::verbs::objects::Qp;
use crate::verbs::shared::Shared;
use crate::verbs::types::{access, qp_state, qp_type, wc_status, wr_opcode};
use crate::verbs::wqe::SendWqe;

/// Bytes that are copied in one go: a peer that takes its memory back waits so long.
const STRETCH: u64 = 64 << 10;

/// Bytes that are copied before others have their turn with the engine: some 25 us.
pub(crate) const TURN: u64 = 1 << 20;

/// A request as long as this, with so many before it that have not been acknowledged, waits until they are: then those behind it need
/// not be sent either. Any other is sent behind them. Not with few before it, since a program that posts and then looks at its
/// memory alone might bring nobody to take the ACKs; one with many under way polls.
const WORTH_WAITING: (u64, u32) = (16 << 10, 4);

/// Memory of one peer that this process has mapped.
pub trait PeerMemory {
    /// Where `len` bytes at `addr` of what the peer's key `rkey` opens for WRITEs of our QP `from_qpn` to its QP `qpn` lie in this
    /// process; `None`: nowhere (yet). The peer does not take them back before [`PeerMemory::leave`], which follows at once.
    fn enter(&mut self, from_qpn: u32, qpn: u32, rkey: u32, addr: u64, len: u64) -> Option<u64>;
    /// The bytes have been used.
    fn leave(&mut self);
}

/// None.
impl PeerMemory for () {
    fn enter(&mut self, _: u32, _: u32, _: u32, _: u64, _: u64) -> Option<u64> {
        None
    }
    fn leave(&mut self) {}
}

/// What became of the request that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// It goes the usual way.
    No,
    /// It is worth waiting until all before it has been acknowledged.
    Later,
    /// What its turn allowed was placed, more is left.
    Part,
    /// It has ended.
    Whole,
}

impl Qp {
    /// Whether all that was sent has been acknowledged, and nothing keeps the next request back.
    #[inline]
    fn is_quiet(&self) -> bool {
        let r = &self.req;
        r.acked == r.next && r.una_psn == r.max_psn && r.next_psn == r.max_psn
    }
}

impl Transport {
    /// Places what a doorbell has brought, as long as it is WRITEs into mapped memory. True: that was all there is to send. It takes
    /// no time stamp, because nothing stays outstanding and nothing was before.
    #[inline]
    pub(crate) fn write_mapped(&mut self, s: &Shared, qi: usize, memory: &mut dyn PeerMemory) -> bool {
        let qp = &self.qps[qi];
        if qp.state != qp_state::RTS || !qp.req.is_idle() {
            return false;
        }
        let mut turn = TURN;
        loop {
            match self.place_mapped(s, qi, memory, &mut turn, 0) {
                Mapped::Whole if self.qps[qi].req.next == s.sq(qi, &self.key).end() => return true,
                Mapped::Whole => {}
                _ => return false,
            }
        }
    }

    /// [`Transport::write_mapped`] of one short WRITE of one piece behind which nothing waits, in one step: all questions are asked before
    /// anything is changed, as in `lone`. False: nothing has changed, but bytes that are written again. `memory`: what is
    /// mapped of who is reached over a link.
    #[inline(always)]
    pub(crate) fn write_mapped_lone<'m, M: PeerMemory + ?Sized + 'm>(
        &mut self,
        s: &Shared,
        qi: usize,
        memory: impl FnOnce(u16) -> Option<&'m mut M>,
    ) -> bool {
        let Transport { key, qps, cqs, peers, regions, providers, counters, .. } = self;
        let (Some(qp), Some(shared)) = (qps.get_mut(qi), s.qps.get(qi)) else { return false };
        let Some(&Peer { path: Path::Link(link), .. }) = peers.get(qp.peer as usize) else { return false };
        let Some(memory) = memory(link) else { return false };
        let index = qp.req.next;
        let next = index.wrapping_add(1);
        let mut sq = shared.engine_sq(key);
        if sq.end() != next || qp.state != qp_state::RTS || qp.kind != qp_type::RC || qp.paced || !qp.req.is_idle() {
            return false;
        }
        let slot = sq.at(index);
        let wqe = slot.header();
        let len = wqe.length;
        if u32::from(wqe.opcode) != wr_opcode::RDMA_WRITE || len.wrapping_sub(1) >= STRETCH || qp.req.placed != 0 {
            return false;
        }
        let mut completion = None;
        if wqe.is_signaled() {
            completion = cq_of(s, key, cqs, qp.scq);
            if completion.as_ref().is_none_or(|(ring, cq)| ring.free() <= cq.reserved) {
                return false;
            }
        }
        let source = match slot.sges(1).first() {
            _ if wqe.inline != 0 => None,
            Some(sge) if wqe.num_sge == 1 => match regions.local(sge.lkey, qp.pd, sge.addr, len as u32, false) {
                Ok(source) => Some(source),
                Err(_) => return false,
            },
            _ => return false,
        };
        let Some(to) = memory.enter(qp.qpn, qp.attr.dest_qp_num, wqe.rkey, wqe.remote_addr, len) else { return false };
        let placed = match source {
            Some(source) => providers.transfer(&source, 0, to, len as usize),
            None => match slot.tail().get(..len as usize) {
                Some(bytes) => providers.put(to, bytes),
                None => Access::Fault,
            },
        };
        memory.leave();
        if placed != Access::Ready {
            return false;
        }
        let told = completion.map(|(ring, cq)| (ring, cq, send_wc(qp, wqe, wc_status::SUCCESS)));
        for c in [counters, &mut qp.counters] {
            c.mapped_writes += 1;
            c.rdma_writes += 1;
            c.request_bytes = c.request_bytes.wrapping_add(len);
        }
        (qp.req.next, qp.req.acked, qp.req.una) = (next, next, next);
        sq.release(1);
        if let Some((mut ring, cq, wc)) = told {
            push_to(s, &mut ring, cq, qp.scq, wc, false);
        }
        true
    }

    /// Places the request that is next, if it is a WRITE into mapped memory, as far as this turn goes. The caller has seen that the
    /// queue pair may begin something new.
    pub(crate) fn place_mapped(
        &mut self,
        s: &Shared,
        qi: usize,
        memory: &mut dyn PeerMemory,
        turn: &mut u64,
        now: u64,
    ) -> Mapped {
        let sq = s.sq(qi, &self.key);
        let qp = &self.qps[qi];
        let index = qp.req.next;
        if index == sq.end() || qp.kind != qp_type::RC || qp.paced || qp.req.cur_pkt != 0 {
            return Mapped::No;
        }
        let slot = sq.at(index);
        let wqe = slot.header();
        if u32::from(wqe.opcode) != wr_opcode::RDMA_WRITE || wqe.length == 0 {
            return Mapped::No;
        }
        let quiet = qp.is_quiet();
        let under_way = index.wrapping_sub(qp.req.acked);
        if !quiet && (wqe.length < WORTH_WAITING.0 || under_way < WORTH_WAITING.1) {
            return Mapped::No;
        }
        let mut at = if quiet { qp.req.placed } else { 0 };
        let end = wqe.length.min(at + *turn);
        *turn -= end - at;
        let mut placed = true;
        while at < end && placed {
            let n = (end - at).min(STRETCH);
            let to = wqe.remote_addr.wrapping_add(at);
            let Some(to) = memory.enter(qp.qpn, qp.attr.dest_qp_num, wqe.rkey, to, n) else {
                // Taken back half way: the usual way begins anew and writes the same bytes once more.
                placed = false;
                break;
            };
            if !quiet {
                memory.leave();
                return Mapped::Later;
            }
            placed = copy(&self.regions, &self.providers, qp.pd, &slot, at, to, n);
            memory.leave();
            at += n;
        }
        let qp = &mut self.qps[qi];
        qp.req.placed = if placed { at } else { 0 };
        if !placed {
            return Mapped::No;
        }
        if at < wqe.length {
            return Mapped::Part;
        }
        qp.req.placed = 0;
        qp.counters.mapped_writes += 1;
        self.counters.mapped_writes += 1;
        if self.complete_lone(s, qi, index) {
            return Mapped::Whole;
        }
        let qp = &mut self.qps[qi];
        let psn = qp.req.next_psn;
        let ws = qp.wqe(index);
        (ws.started, ws.psn, ws.npkts, ws.done) = (true, psn, 0, true);
        qp.req.next = index.wrapping_add(1);
        self.skip_done(s, qi);
        self.complete(s, qi, now);
        Mapped::Whole
    }

    /// Something that [`Transport::mappable`] asks is another now.
    #[inline]
    pub(crate) fn note_change(&mut self) {
        self.changes = self.changes.wrapping_add(1);
    }

    /// The region that a peer may write by itself, because every WRITE of it to our QP `qpn` with this key would be allowed: the QP
    /// is connected over a link to `from_qpn` at `gid`. `None`: there is none. Holds until [`Transport::changes`] moves.
    pub(crate) fn mappable(&self, qpn: u32, from_qpn: u32, gid: &[u8; 16], rkey: u32) -> Option<MrAttr> {
        let qp = &self.qps[self.qp_of(qpn)?];
        let peer = self.peers.get(qp.peer as usize)?;
        let connected = qp.kind == qp_type::RC
            && qp.can_receive()
            && qp.attr.dest_qp_num == from_qpn
            && peer.addr.gid == *gid
            && matches!(peer.path, Path::Link(_));
        if !connected || qp.attr.qp_access_flags & access::REMOTE_WRITE == 0 {
            return None;
        }
        self.regions.whole(rkey, qp.pd).filter(|region| region.access & access::REMOTE_WRITE != 0)
    }
}

/// Copies `len` bytes, from byte `at` on, of what a request sends to an address.
fn copy(
    regions: &Regions,
    providers: &Providers,
    pd: u32,
    slot: &SlotRef<'_, SendWqe>,
    mut at: u64,
    mut to: u64,
    mut len: u64,
) -> bool {
    let wqe = slot.header();
    if wqe.inline != 0 {
        let bytes = slot.tail().get(at as usize..).and_then(|b| b.get(..len as usize));
        return bytes.is_some_and(|b| providers.put(to, b) == Access::Ready);
    }
    for sge in slot.sges(usize::from(wqe.num_sge)) {
        let size = u64::from(sge.length);
        if at >= size {
            at -= size;
            continue;
        }
        let n = (size - at).min(len);
        let Ok(source) = regions.local(sge.lkey, pd, sge.addr.wrapping_add(at), n as u32, false) else { return false };
        if providers.transfer(&source, 0, to, n as usize) != Access::Ready {
            return false;
        }
        (to, len, at) = (to.wrapping_add(n), len - n, 0);
        if len == 0 {
            return true;
        }
    }
    false
}
