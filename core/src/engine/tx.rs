//! Packets and records out: by the port, by links, and between the queue pairs of the engine.

use super::{EngineGuard, Inner};
use crate::device::MrAttr;
use crate::roce::frame::packet::Packets;
use crate::roce::frame::record::Links;
use crate::roce::peer::{ConnectedFlow, Path, PeerAddr};
use crate::roce::peer_memory::PeerMemory;
use crate::roce::txbuf::TxBuf;
use crate::roce::{Origin, Sent, Transport};
use crate::verbs::post::Single;
use crate::verbs::shared::Shared;
use crate::verbs::NONE;

/// A burst that waits in the port's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Where it goes.
    pub dst: PeerAddr,
    /// Bytes.
    pub len: usize,
    /// Bytes of each packet but the last, which may be shorter.
    pub seg: usize,
    /// The ICRC is that of the flow of the port's connected socket.
    pub for_connected: bool,
}

/// Runs that one [`EngineGuard::run_loopback`] handles; more follow in the next round.
const LOOPBACK_RUNS: usize = 64;

/// Lets one QP send, regardless of others that are ready.
#[inline]
fn transmit_alone(t: &mut Transport, s: &Shared, qi: usize, tx: &mut TxBuf<'_>, now: u64) {
    match t.transmit(s, qi, tx, now) {
        Sent::Idle => {}
        Sent::Full | Sent::OtherPath => t.common.ready.set(qi),
    }
}

impl Inner {
    /// The burst in a buffer, and its destination; `None`: the buffer is empty.
    #[inline]
    fn burst(&self, tx: &TxBuf<'_>) -> Option<Burst> {
        let peer = self.transport.peers.get(tx.peer() as usize).filter(|_| !tx.is_empty())?;
        Some(Burst {
            dst: peer.addr,
            len: tx.len(),
            seg: tx.seg(),
            for_connected: tx.is_for_connected(),
        })
    }

    /// Collects the QPs that posts have marked, and those that waited for room in a CQ.
    #[inline(always)]
    fn collect_ready(&mut self, s: &Shared, now: u64) {
        if s.active.any() || !self.transport.common.full_cqs.is_empty() {
            self.collect_marked(s, now);
        }
    }

    #[inline(never)]
    fn collect_marked(&mut self, s: &Shared, now: u64) {
        let t = &mut self.transport;
        s.active.drain(|qi| {
            t.common.ready.set(qi);
        });
        if !t.common.full_cqs.is_empty() {
            t.look_for_room(s, now);
        }
    }

    /// Fills a burst from the QPs that have something for its path. Peers take turns, and so do the
    /// QPs of each.
    #[inline]
    fn fill(&mut self, s: &Shared, tx: &mut TxBuf<'_>, now: u64) {
        let mut seen_first = NONE as usize;
        let mut at = self.cursor;
        while let Some(qi) = self.transport.common.ready.next_from(at) {
            if qi == seen_first {
                break;
            }
            if seen_first == NONE as usize {
                seen_first = qi;
            }
            at = qi + 1;
            self.transport.common.ready.clear(qi);
            match self.transport.transmit(s, qi, tx, now) {
                Sent::Idle => {
                    if seen_first == qi {
                        seen_first = NONE as usize;
                    }
                }
                Sent::Full => {
                    self.transport.common.ready.set(qi);
                    if !tx.is_empty() {
                        at = self.transport.next_sender(qi, tx.peer());
                        break;
                    }
                }
                Sent::OtherPath => {
                    self.transport.common.ready.set(qi);
                }
            }
        }
        self.cursor = at;
    }
}

/// Data: what leaves.
impl EngineGuard<'_> {
    /// Writes the next burst into `buf`: headers, payload (copied once) and ICRC. `None`: nothing
    /// to send now.
    ///
    /// `buf` must hold one packet of the largest MTU (4,160 bytes); more than 65,000 bytes are not
    /// used.
    #[inline]
    pub fn poll_transmit(&mut self, now: u64, buf: &mut [u8]) -> Option<Burst> {
        self.poll_transmit_over(now, buf, None)
    }

    /// As [`EngineGuard::poll_transmit`], for a port that has a connected socket, of the flow
    /// `connected`: packets of connected QPs to its destination have the ICRC of that flow.
    pub fn poll_transmit_over(
        &mut self,
        now: u64,
        buf: &mut [u8],
        connected: Option<&ConnectedFlow>,
    ) -> Option<Burst> {
        let (inner, s) = self.split();
        inner.collect_ready(s, now);
        if now >= inner.transport.common.acks.flush_at() {
            inner.flush_acks();
        }
        if inner.cm.is_ready() {
            if let Some(burst) = inner.transmit_mad(s, now, buf) {
                return Some(burst);
            }
        }
        if inner.transport.common.ready.is_empty() {
            return None;
        }
        let tx = TxBuf::new(buf, Path::Port, inner.rx_flow.1);
        let mut tx = tx.with_zero_idents(inner.idents_are_zero).with_connected(connected);
        if !inner.transport.common.cnp_owed.is_empty() {
            inner.transport.transmit_cnps(&mut tx);
        }
        if tx.is_empty() {
            inner.fill(s, &mut tx, now);
        }
        inner.burst(&tx)
    }

    /// The link of a QP with something to send, except for those that `skip` names; `None`: none.
    pub fn next_link(&mut self, now: u64, mut skip: impl FnMut(u16) -> bool) -> Option<u16> {
        let (inner, s) = self.split();
        inner.collect_ready(s, now);
        let t = &inner.transport;
        let mut at = 0;
        let mut first = NONE as usize;
        while let Some(qi) = t.common.ready.next_from(at) {
            if qi == first {
                break;
            }
            if first == NONE as usize {
                first = qi;
            }
            at = qi + 1;
            match t.next_path(s, qi) {
                Some(Path::Link(link)) if !skip(link) => return Some(link),
                _ => {}
            }
        }
        None
    }

    /// As [`EngineGuard::poll_transmit`], for a link: writes records without ICRC into `buf`.
    /// Returns their bytes; 0: nothing to send now.
    pub fn poll_transmit_link(
        &mut self,
        now: u64,
        link: u16,
        buf: &mut [u8],
        memory: &mut dyn PeerMemory,
    ) -> usize {
        let (inner, s) = self.split();
        inner.collect_ready(s, now);
        if now >= inner.transport.common.acks.flush_at() {
            inner.flush_acks();
        }
        let mut tx = TxBuf::new_link(buf, link, inner.rx_flow.1, memory);
        inner.fill(s, &mut tx, now);
        tx.len()
    }

    /// The path to the peer of the QP at this index; `None`: it has no peer, or each request names
    /// one.
    #[inline]
    pub fn path_of(&self, qi: usize) -> Option<Path> {
        let t = &self.transport;
        let qp = &t.qps[qi];
        let peer = t.peers.get(qp.conn.peer as usize)?;
        (qp.kind.is_connected()).then_some(peer.path)
    }

    /// Whether the QP whose doorbell was rung may send by itself
    /// ([`EngineGuard::transmit_to_port`]): no other QP waits to send, and this one does not gather
    /// requests.
    #[inline]
    pub fn may_send_alone(&self, qi: usize) -> bool {
        let t = &self.transport;
        t.common.ready.is_empty()
            && t.common.cnp_owed.is_empty()
            && !self.cm.is_ready()
            && !t.may_gather(self.shared(), qi)
    }

    /// As [`EngineGuard::poll_transmit_over`], for the one QP whose doorbell was rung.
    #[inline]
    pub fn transmit_to_port(
        &mut self,
        now: u64,
        qi: usize,
        buf: &mut [u8],
        connected: Option<&ConnectedFlow>,
    ) -> Option<Burst> {
        let (inner, s) = self.split();
        let mut tx = TxBuf::new(buf, Path::Port, inner.rx_flow.1).with_connected(connected);
        transmit_alone(&mut inner.transport, s, qi, &mut tx, now);
        inner.burst(&tx)
    }

    /// As [`EngineGuard::poll_transmit_link`], for the one QP whose doorbell was rung, without a
    /// search for others. The rest leaves with the next round.
    #[inline]
    pub fn transmit_to_link(
        &mut self,
        now: u64,
        qi: usize,
        link: u16,
        buf: &mut [u8],
        memory: &mut dyn PeerMemory,
    ) -> usize {
        let (inner, s) = self.split();
        let mut tx = TxBuf::new_link(buf, link, inner.rx_flow.1, memory);
        transmit_alone(&mut inner.transport, s, qi, &mut tx, now);
        tx.len()
    }

    /// Places the requests that were just posted to the QP at this index into memory of its peer,
    /// as long as they are WRITEs to mapped memory. True: nothing else is to be sent or done.
    #[inline]
    pub fn write_peer(&mut self, qi: usize, memory: &mut dyn PeerMemory) -> bool {
        let (inner, s) = self.split();
        inner.transport.conn(s, qi).write_peer(memory)
    }

    /// Places one short WRITE into memory of the QP's peer, without a slot of the send queue.
    /// `memory`: the memory that is mapped of the peer behind a link. False: the caller must post
    /// it ([`crate::verbs::post::send`]), whether or not its bytes were written.
    #[inline(always)]
    pub fn write_peer_single<'m, M: PeerMemory + ?Sized + 'm>(
        &mut self,
        qi: usize,
        write: &Single,
        memory: impl FnOnce(u16) -> Option<&'m mut M>,
    ) -> bool {
        let (inner, s) = self.split();
        inner.transport.write_peer_single(s, qi, write, memory)
    }

    /// The region that the peer at `gid` may write by itself ([`PeerMemory`]) with a key of it,
    /// through its QP `from_qpn`, connected to `qpn` here over a link. `None`: not all of its
    /// WRITEs would be allowed. The answer holds until [`EngineGuard::changes`] moves.
    pub fn mappable_region(
        &self,
        qpn: u32,
        from_qpn: u32,
        gid: &[u8; 16],
        rkey: u32,
    ) -> Option<MrAttr> {
        self.transport.mappable_region(qpn, from_qpn, gid, rkey)
    }

    /// A counter that moves when an answer of [`EngineGuard::mappable_region`] may have changed.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.transport.common.changes
    }

    /// Sends the single message of the QP whose doorbell was rung over its link, and publishes it.
    /// `DC`: it is a DCI, else RC. The clock is read for DC, if a timer is `wanted` at once, and if
    /// another request waits for a timer. Otherwise [`EngineGuard::arm_deferred_timer`] must follow
    /// before deadlines are asked for. False: the QP has no single message, and nothing has
    /// changed.
    #[inline(always)]
    pub fn send_single<const DC: bool, L: Links>(
        &mut self,
        qi: usize,
        links: &mut L,
        wanted: bool,
        clock: impl Fn() -> u64,
    ) -> bool {
        let (inner, s) = self.split();
        inner.transport.send_single::<DC, L>(s, qi, links, wanted, clock)
    }

    /// As [`EngineGuard::send_single`], through the port. Returns the time. `None`: nothing has
    /// changed, because others wait to send or the request is not single. `DC`: the QP is a DCI,
    /// for which the clock is read before the packet, too; else it is RC.
    #[inline(always)]
    pub fn send_packet<const DC: bool, P: Packets>(
        &mut self,
        qi: usize,
        port: &mut P,
        clock: impl Fn() -> u64,
    ) -> Option<u64> {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        if !t.common.ready.is_empty() || !t.common.cnp_owed.is_empty() || inner.cm.is_ready() {
            return None;
        }
        t.send_packet::<DC, P>(s, qi, port, clock)
    }

    /// Carries runs between QPs of this engine, until none is left or [`LOOPBACK_RUNS`] were
    /// handled. Returns the runs handled.
    pub fn run_loopback(&mut self, now: u64) -> usize {
        let (inner, s) = self.split();
        inner.collect_ready(s, now);
        let mut handled = if inner.cm.is_ready() { inner.loop_mads(s, now) } else { 0 };
        let Inner { transport: t, scratch, handed, local, rx_flow, .. } = inner;
        let from = Origin { gid: local.gid, path: Path::Loopback, port: 0 };
        let mut at = 0;
        let mut skipped = NONE as usize;
        while !t.common.ready.is_empty() && handled < LOOPBACK_RUNS {
            let Some(qi) = t.common.ready.next_from(at).filter(|&qi| qi != skipped) else { break };
            at = qi + 1;
            t.common.ready.clear(qi);
            let mut tx = TxBuf::new_runs(scratch, handed, rx_flow.1);
            let sent = t.transmit(s, qi, &mut tx, now);
            if sent != Sent::Idle {
                t.common.ready.set(qi);
            }
            if tx.is_empty() {
                if sent != Sent::Idle && skipped == NONE as usize {
                    skipped = qi;
                }
                continue;
            }
            skipped = NONE as usize;
            let n = tx.run_count();
            for h in handed.iter().take(n) {
                t.handle_run(s, now, &from, &h.run, h.payload(scratch));
            }
            handled += n;
            if let Some(to) = t.common.acks.take_local() {
                match t.conn(s, to).take_local_ack() {
                    Some(ack) if t.end_local_single(s, now, &ack) => {}
                    Some(ack) => t.handle_run(s, now, &from, &ack, &[]),
                    None => t.common.ready.set(to),
                }
            }
        }
        handled
    }
}
