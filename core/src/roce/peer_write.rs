//! WRITEs into memory of the peer that this process reaches by itself: they are placed at once,
//! without a packet.
//!
//! A NIC writes into another machine's memory without that machine's help. Two processes of one
//! host can have the same, where the target shares the memory of a region and the initiator has
//! mapped it: then a WRITE is one copy. It takes no PSN, since nothing travels. Everything before
//! it on its queue pair has been acknowledged, and everything after it leaves behind its last
//! store, so RC's order holds. The owner of the memory permits this by queue pair and key, and
//! revokes it when one of them ends, by the responder's own checks
//! ([`Transport::mappable_region`]).
//!
//! Memory is reached in one of two ways ([`PeerMemory`]): mapped, so that a WRITE is a copy of the
//! CPU's; or, for long WRITEs, by a call of the system that copies from one process into another,
//! which needs no more than an address.
//!
//! Everything else (another opcode, a key that opens nothing here, a local key that is refused,
//! memory that is gone) takes the general path, which reports errors.

use core::sync::atomic::Ordering;

use super::conn::Conn;
use super::peer::Path;
use super::peer_memory::{PeerMemory, Piece, COPY_BUDGET, COPY_REMOTE_MIN, PIECES};
use super::rules::complete::prepare;
use super::Common;
use super::Transport;
use crate::device::MrAttr;
use crate::mem::{Access, RegisteredMemory, Target};
use crate::ring::SlotRef;
use crate::verbs::objects::Qp;
use crate::verbs::post::Single;
use crate::verbs::shared::{slotless, Shared};
use crate::verbs::types::{access, send_flags, wc_opcode, wc_status, wr_opcode};
use crate::verbs::wqe::SendWqe;

/// Bytes copied under one pin. An owner that revokes its memory waits for them.
const STRETCH: u64 = 64 << 10;

/// Bytes copied by one call of [`PeerMemory::copy_remote`], which costs two microseconds besides
/// its bytes.
const CALL: u64 = 256 << 10;

/// A WRITE of at least this length, behind at least this many unacknowledged requests, waits for
/// their ACKs: then it and those behind it need no packets. Behind fewer it is sent, since a
/// program that posts and then only watches its memory might run nothing that takes the ACKs.
const WORTH_WAITING: (u64, u32) = (16 << 10, 4);

/// A WRITE of [`COPY_REMOTE_MIN`] bytes or more waits, too, if its length times the requests before
/// it reaches this. Few of those are in flight at a time, so without this rule a stream of them
/// that has begun with packets would stay with packets.
const FILLS_A_RING: u64 = 256 << 10;

/// Whether a request of `len` bytes waits for so many before it.
fn is_worth_waiting(len: u64, before: u32) -> bool {
    len >= WORTH_WAITING.0 && before >= WORTH_WAITING.1
        || len >= COPY_REMOTE_MIN && len.saturating_mul(before.into()) >= FILLS_A_RING
}

/// Result of placing the request that is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// The request takes the general path.
    No,
    /// The request waits until all before it has been acknowledged.
    Later,
    /// As many bytes as the budget allowed are placed; more are left.
    Partly,
    /// The request has ended.
    Whole,
}

impl Qp {
    /// Whether all that was sent has been acknowledged, and nothing is to be sent again.
    fn is_quiet(&self) -> bool {
        let r = &self.conn.req;
        r.acked == r.next && r.una_psn == r.max_psn && r.next_psn == r.max_psn
    }
}

impl Transport {
    /// Places one short WRITE that has no slot of the send queue. False: the general path takes it,
    /// and may write the same bytes once more. `memory`: the memory that is mapped of the peer
    /// behind a link.
    #[inline(always)]
    pub(crate) fn write_peer_single<'m, M: PeerMemory + ?Sized + 'm>(
        &mut self,
        s: &Shared,
        qi: usize,
        write: &Single,
        memory: impl FnOnce(u16) -> Option<&'m mut M>,
    ) -> bool {
        let Single { wr_id, sge, inline, signaled, remote_addr, rkey, .. } = *write;
        let len = u64::from(sge.length);
        let Some(Conn { qp, peer, q, common, .. }) = self.connected(s, qi) else { return false };
        let Path::Link(link) = peer.path else { return false };
        let Some(memory) = memory(link) else { return false };
        let Common { key, cqs, memory: RegisteredMemory { regions, providers, .. }, .. } = common;
        let idle = q.engine_sq(key).end() == qp.conn.req.next && qp.conn.req.nothing_in_flight();
        if !idle || !qp.may_send_new::<false>() || len.wrapping_sub(1) >= STRETCH {
            return false;
        }
        let source = match inline {
            true => Target { addr: sge.addr, len: sge.length, ..Target::default() },
            false => match regions.local(sge.lkey, qp.pd, sge.addr, sge.length, false) {
                Ok(source) => source,
                Err(_) => return false,
            },
        };
        let Some(to) = memory.pin(qp.qpn, qp.attr.dest_qp_num, rkey, remote_addr, len) else {
            q.slotless.store(slotless::NO, Ordering::Relaxed);
            return false;
        };
        let placed = providers.transfer(&source, 0, to, len as usize);
        memory.unpin();
        if placed != Access::Ready {
            return false;
        }
        q.note_peer_write(remote_addr, to);
        // Computed after the copy, because a result from before it would have to be kept across the
        // copy.
        let flags = if signaled { send_flags::SIGNALED as u16 } else { 0 };
        let wqe = SendWqe { wr_id, length: len, flags, ..SendWqe::default() };
        let (scq, status) = ((&*key, cqs, qp.scq), wc_status::SUCCESS);
        let ending = prepare(s, scq, &wqe, wc_opcode::RDMA_WRITE, status);
        let Some(ending) = ending else { return false };
        qp.counters.mapped_writes += 1;
        ending.finish_slotless(s, qp);
        true
    }

    /// The region that a peer may write by itself, because each of its WRITEs to our QP `qpn` with
    /// this key would be allowed: the QP is connected over a link to `from_qpn` at `gid`. `None`:
    /// there is none. The answer holds until [`Common::changes`] moves.
    pub(crate) fn mappable_region(
        &self,
        qpn: u32,
        from_qpn: u32,
        gid: &[u8; 16],
        rkey: u32,
    ) -> Option<MrAttr> {
        let qp = &self.qps[self.common.qp_of(qpn)?];
        let peer = self.peers.get(qp.conn.peer as usize)?;
        let connected = qp.kind.has_one_copy_writes()
            && qp.can_receive()
            && qp.attr.dest_qp_num == from_qpn
            && peer.addr.gid == *gid
            && matches!(peer.path, Path::Link(_));
        if !connected || !qp.takes_writes() {
            return None;
        }
        self.common
            .memory
            .regions
            .whole_region(rkey, qp.pd)
            .filter(|region| region.access & access::REMOTE_WRITE != 0)
    }
}

impl Common {
    /// Notes a change that [`Transport::mappable_region`] depends on.
    pub(crate) fn note_change(&mut self) {
        self.changes = self.changes.wrapping_add(1);
    }
}

impl Conn<'_> {
    /// Places the WRITEs that a doorbell brought, as long as they go into mapped memory. True:
    /// nothing else is to be sent. No time is needed, because nothing stays outstanding.
    pub(crate) fn write_peer(&mut self, memory: &mut dyn PeerMemory) -> bool {
        if !self.qp.may_send_new::<false>() || !self.qp.conn.req.nothing_in_flight() {
            return false;
        }
        let mut budget = COPY_BUDGET;
        loop {
            match self.place_in_peer(memory, &mut budget, 0) {
                Mapped::Whole
                    if self.qp.conn.req.next == self.q.engine_sq(&self.common.key).end() =>
                {
                    return true
                }
                Mapped::Whole => {}
                _ => return false,
            }
        }
    }

    /// Places the next request, if it is a WRITE into mapped memory, as far as `budget` allows. The
    /// caller has checked that the queue pair may begin a request.
    pub(crate) fn place_in_peer(
        &mut self,
        memory: &mut dyn PeerMemory,
        budget: &mut u64,
        now: u64,
    ) -> Mapped {
        let sq = self.q.engine_sq(&self.common.key);
        let qp = &*self.qp;
        let index = qp.conn.req.next;
        if index == sq.end()
            || !qp.kind.has_one_copy_writes()
            || qp.is_paced()
            || qp.conn.req.cur_pkt != 0
        {
            return Mapped::No;
        }
        let slot = sq.at(index);
        let wqe = slot.header();
        if u32::from(wqe.opcode) != wr_opcode::RDMA_WRITE || wqe.length == 0 {
            return Mapped::No;
        }
        let quiet = qp.is_quiet();
        let under_way = index.wrapping_sub(qp.conn.req.acked);
        if !quiet && !is_worth_waiting(wqe.length, under_way) {
            return Mapped::No;
        }
        let mut at = if quiet { qp.conn.req.placed } else { 0 };
        let end = wqe.length.min(at + *budget);
        *budget -= end - at;
        let mut carried = false;
        let mut placed = true;
        while at < end && placed {
            match self.place_stretch(qp, &slot, at, end - at, quiet, memory) {
                Some(_) if !quiet => return Mapped::Later,
                Some((n, by_call)) => (at, carried) = (at + n, by_call),
                // If the memory was revoked half way, the general path writes all bytes again.
                None => placed = false,
            }
        }
        self.qp.conn.req.placed = if placed { at } else { 0 };
        if !placed {
            return Mapped::No;
        }
        if at < wqe.length {
            return Mapped::Partly;
        }
        self.qp.conn.req.placed = 0;
        self.count(|c| if carried { &mut c.carried_writes } else { &mut c.mapped_writes });
        let place = if carried { slotless::NO } else { slotless::MAPPED };
        self.q.slotless.store(place, Ordering::Relaxed);
        if self.complete_single(index) {
            return Mapped::Whole;
        }
        self.end_here(now, index);
        Mapped::Whole
    }

    /// Places the next bytes of a request, at most `left`, or (`place` false) only checks that it
    /// could. Returns how many, and whether a call copied them. `None`: the whole request takes the
    /// general path.
    fn place_stretch(
        &self,
        qp: &Qp,
        slot: &SlotRef<'_, SendWqe>,
        at: u64,
        left: u64,
        place: bool,
        memory: &mut dyn PeerMemory,
    ) -> Option<(u64, bool)> {
        let wqe = slot.header();
        let to = wqe.remote_addr.wrapping_add(at);
        let (own, theirs) = (qp.qpn, qp.attr.dest_qp_num);
        let n = left.min(STRETCH);
        if let Some(to) = memory.pin(own, theirs, wqe.rkey, to, n) {
            let placed = !place || self.common.memory.transfer(qp.pd, slot, at, to, n);
            memory.unpin();
            return placed.then_some((n, false));
        }
        if wqe.length < COPY_REMOTE_MIN || wqe.inline != 0 {
            return None;
        }
        let mut pieces = [Piece::default(); PIECES];
        let most = left.min(CALL);
        let (count, n) = self.common.memory.host_pieces(qp.pd, slot, at, most, &mut pieces);
        if n == 0 {
            return None;
        }
        let to = memory.pin_remote(own, theirs, wqe.rkey, to, n)?;
        let placed = !place || memory.copy_remote(&pieces[..count], to);
        memory.unpin();
        placed.then_some((n, true))
    }
}
