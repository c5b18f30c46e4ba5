//! Packets out, paths and links, loopback, timers, and errors of the port.

use super::cm::local_refusal;
use super::{Guard, Inner};
use crate::bitmap::Bitmap;
use crate::config::config_flags;
use crate::device::MrAttr;
use crate::receipt::Receipts;
use crate::roce::frame::packet::Packets;
use crate::roce::frame::record::Links;
use crate::roce::peer::{OwnFlow, Path, Peer, PeerAddr};
use crate::roce::peer_memory::PeerMemory;
use crate::roce::txbuf::TxBuf;
use crate::roce::{Common, Origin, Sent, Transport};
use crate::verbs::association::DcPhase;
use crate::verbs::cause::CauseCode;
use crate::verbs::post::Single;
use crate::verbs::shared::Shared;
use crate::verbs::types::wc_status;
use crate::verbs::NONE;
use crate::wire::Psn;

/// A burst that waits in the port's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Where it goes.
    pub dst: PeerAddr,
    /// Bytes.
    pub len: usize,
    /// Bytes of each packet but the last, which may be shorter.
    pub seg: usize,
    /// It is signed for the flow of the port's connected socket.
    pub is_own: bool,
}

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
        Some(Burst { dst: peer.addr, len: tx.len(), seg: tx.seg(), is_own: tx.is_own() })
    }

    /// Collects the QPs that posts have marked, and those that waited for room in a CQ.
    #[inline(always)]
    fn absorb(&mut self, s: &Shared, now: u64) {
        if s.active.any() || !self.transport.common.full_cqs.is_empty() {
            self.absorb_marked(s, now);
        }
    }

    #[inline(never)]
    fn absorb_marked(&mut self, s: &Shared, now: u64) {
        let t = &mut self.transport;
        s.active.drain(|qi| {
            t.common.ready.set(qi);
        });
        if !t.common.full_cqs.is_empty() {
            t.look_for_room(s, now);
        }
    }

    fn flush_acks(&mut self) {
        self.transport.common.flush_acks();
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

/// Data: what leaves, and when the next call is due.
impl Guard<'_> {
    /// Writes the next burst into `buf`: headers, payload (copied once) and ICRC. `None`: nothing
    /// to send now.
    ///
    /// `buf` must hold one packet of the largest MTU (4,160 bytes); more than 65,000 bytes are not
    /// used.
    #[inline]
    pub fn poll_transmit(&mut self, now: u64, buf: &mut [u8]) -> Option<Burst> {
        self.poll_transmit_over(now, buf, None)
    }

    /// As [`Guard::poll_transmit`], for a port that has a connected socket, of the flow `own`: what
    /// connected QPs send to its destination is signed for that flow.
    pub fn poll_transmit_over(
        &mut self,
        now: u64,
        buf: &mut [u8],
        own: Option<&OwnFlow>,
    ) -> Option<Burst> {
        let (inner, s) = self.split();
        inner.absorb(s, now);
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
        let mut tx = tx.unnumbered(inner.unnumbered).with_own(own);
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
        inner.absorb(s, now);
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

    /// As [`Guard::poll_transmit`], for a link: writes records without ICRC into `buf`. Returns
    /// their bytes; 0: nothing to send now.
    pub fn poll_transmit_link(
        &mut self,
        now: u64,
        link: u16,
        buf: &mut [u8],
        memory: &mut dyn PeerMemory,
    ) -> usize {
        let (inner, s) = self.split();
        inner.absorb(s, now);
        if now >= inner.transport.common.acks.flush_at() {
            inner.flush_acks();
        }
        let mut tx = TxBuf::to_link(buf, link, inner.rx_flow.1, memory);
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

    /// Whether the QP whose doorbell was rung may send by itself ([`Guard::transmit_to_port`]): no
    /// other waits to send, and it does not gather requests.
    #[inline]
    pub fn may_send_alone(&self, qi: usize) -> bool {
        let t = &self.transport;
        t.common.ready.is_empty()
            && t.common.cnp_owed.is_empty()
            && !self.cm.is_ready()
            && !t.may_gather(self.shared(), qi)
    }

    /// As [`Guard::poll_transmit_over`], for the one QP whose doorbell was rung.
    #[inline]
    pub fn transmit_to_port(
        &mut self,
        now: u64,
        qi: usize,
        buf: &mut [u8],
        own: Option<&OwnFlow>,
    ) -> Option<Burst> {
        let (inner, s) = self.split();
        let mut tx = TxBuf::new(buf, Path::Port, inner.rx_flow.1).with_own(own);
        transmit_alone(&mut inner.transport, s, qi, &mut tx, now);
        inner.burst(&tx)
    }

    /// As [`Guard::poll_transmit_link`], for the one QP whose doorbell was rung, without a search
    /// for others. What does not fit leaves with the next round.
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
        let mut tx = TxBuf::to_link(buf, link, inner.rx_flow.1, memory);
        transmit_alone(&mut inner.transport, s, qi, &mut tx, now);
        tx.len()
    }

    /// Places what was just posted to the QP at this index into memory of its peer, as long as it
    /// is WRITEs to mapped memory. True: nothing else is to be sent or done.
    #[inline]
    pub fn write_peer(&mut self, qi: usize, memory: &mut dyn PeerMemory) -> bool {
        let (inner, s) = self.split();
        inner.transport.conn(s, qi).write_peer(memory)
    }

    /// Places one short WRITE into memory of the QP's peer, without a slot of the send queue.
    /// `memory`: the memory that is mapped of the peer behind a link. False: it is to be posted
    /// ([`crate::verbs::post::send`]), whether or not its bytes were written.
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
    /// WRITEs would be allowed. To be asked again when [`Guard::changes`] has moved.
    pub fn mappable(&self, qpn: u32, from_qpn: u32, gid: &[u8; 16], rkey: u32) -> Option<MrAttr> {
        self.transport.mappable(qpn, from_qpn, gid, rkey)
    }

    /// A counter that every change of an answer of [`Guard::mappable`] advances.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.transport.common.changes
    }

    /// Sends the single message of the QP whose doorbell was rung over its link, and hands it over.
    /// `DC`: it is a DCI, else RC. The clock is read for DC, if a timer is `wanted` at once, and if
    /// another request waits for a timer. Otherwise [`Guard::arm_deferred_timer`] must follow
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

    /// Starts the timer of the request that was sent without a read of the clock.
    #[inline(always)]
    pub fn arm_deferred_timer(&mut self, now: u64) {
        let (inner, s) = self.split();
        inner.transport.arm_deferred_timer(s, now);
    }

    /// As [`Guard::send_single`], through the port. Returns the time. `None`: nothing has changed,
    /// for others wait to send or the request is not single. `DC`: it is a DCI, whose clock is read
    /// before the packet, too; else it is RC.
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

    /// From here on a peer may answer through the port what it received over a link, and the other
    /// way round: either side may fail to get a link at that moment.
    pub fn set_mixed_paths(&mut self) {
        self.split().0.transport.common.mixed_paths = true;
    }

    /// Sets the link to the peers that later control calls under this lock name; `None`: the port.
    pub fn set_link(&mut self, link: Option<u16>) {
        self.split().0.link_of_new_peers = link;
    }

    /// Later control calls under this lock treat a peer at the engine's own address as another
    /// engine there, or not. Such a peer is reached over the link, or through the port.
    pub fn set_elsewhere(&mut self, elsewhere: bool) {
        self.split().0.elsewhere = elsewhere;
    }

    /// Other engines may share this one's address: datagrams to QPNs of theirs, and messages of the
    /// connection manager for them, leave through the port.
    pub fn set_shared(&mut self, shared: bool) {
        self.split().0.shared = shared;
    }

    /// From now on, WRITEs of few packets travel through the port as a WRITE for each packet, which
    /// makes long bursts of them. For a port that segments bursts.
    pub fn divide_writes(&mut self, on: bool) {
        self.transport.common.divides_writes = on;
    }

    /// The port carries packets one by one, whatever bursts they are sent in: all have the IPv4
    /// identification 0. Without this those of a burst count from 0 on.
    pub fn set_unnumbered(&mut self) {
        self.split().0.unnumbered = true;
    }

    /// Whether a QPN is of this engine's block.
    #[inline]
    pub fn owns(&self, qpn: u32) -> bool {
        self.transport.common.owns(qpn)
    }

    /// A link is gone: its connected QPs fail with the cause, datagrams to it are lost. The number
    /// may be used again. With [`config_flags::SILENT_LOSS`] it is [`Guard::link_ended`].
    pub fn link_lost(&mut self, now: u64, link: u16) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        if t.common.config.flags & config_flags::SILENT_LOSS != 0 {
            for qi in 0..t.qps.len() {
                let peer = t.peers.get(t.qps[qi].conn.peer as usize);
                if t.qps[qi].live && peer.is_some_and(|p| p.path == Path::Link(link)) {
                    t.note_end(s, qi, now);
                }
            }
            return self.link_ended(link);
        }
        for i in 0..t.peers.len() {
            if t.peers[i].path == Path::Link(link) {
                t.peers[i].path = Path::Lost;
            }
        }
        for qi in 0..t.qps.len() {
            let qp = &t.qps[qi];
            if qp.live && qp.conn.peer != NONE && t.peers[qp.conn.peer as usize].path == Path::Lost
            {
                t.conn(s, qi).fail_path(now, CauseCode::PathLost, 0);
            }
            t.note_path(s, qi);
            t.common.ready.set(qi);
        }
    }

    /// Takes the `receipts` that the process at the other end of a link has left. It has ended, and
    /// all that it had written to the link is read. To be called before the link is given up.
    pub fn link_receipts(&mut self, now: u64, link: u16, receipts: &Receipts) {
        let (inner, s) = self.split();
        let is_lost = |peer: &Peer| peer.path == Path::Link(link);
        inner.transport.take_receipts(s, now, is_lost, receipts);
    }

    /// Takes the `receipts` that the process of a peer behind the port has left. It has ended, and
    /// all that it had sent is received.
    pub fn port_receipts(&mut self, now: u64, at: &PeerAddr, receipts: &Receipts) {
        let (inner, s) = self.split();
        let is_lost = |peer: &Peer| {
            peer.path == Path::Port && (peer.addr.gid, peer.addr.port) == (at.gid, at.port)
        };
        inner.transport.take_receipts(s, now, is_lost, receipts);
    }

    /// How many queue pairs have got a first PSN. When it changes, receipts of their numbers are
    /// void unless [`Guard::is_receipt`] says otherwise.
    #[inline]
    pub fn begun(&self) -> u32 {
        self.transport.common.begun
    }

    /// Whether a receipt is of the present connection of a QP.
    pub fn is_receipt(&self, qpn: u32, psn: Psn) -> bool {
        let qi = self.transport.common.qp_of(qpn);
        qi.is_some_and(|qi| self.transport.qps[qi].conn.resp.ack_psn == psn)
    }

    /// The link that [`Guard::set_link`] has set.
    pub fn link(&self) -> Option<u16> {
        self.link_of_new_peers
    }

    /// A link is gone, and its traffic goes through the port from now on. If no process answers
    /// there, requests end by their timers. The number may be used again.
    pub fn link_ended(&mut self, link: u16) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        for i in 0..t.peers.len() {
            if t.peers[i].path == Path::Link(link) {
                t.peers[i].path = Path::Port;
            }
        }
        for qi in 0..t.qps.len() {
            t.note_path(s, qi);
            t.common.ready.set(qi);
        }
    }

    /// Moves everything between QPs of this engine, until nothing moves or `max_runs` runs were
    /// handled. Returns the runs handled.
    pub fn run_loopback(&mut self, now: u64, max_runs: usize) -> usize {
        let (inner, s) = self.split();
        inner.absorb(s, now);
        let mut handled = if inner.cm.is_ready() { inner.loop_mads(s, now) } else { 0 };
        let Inner { transport: t, scratch, handed, local, rx_flow, .. } = inner;
        let from = Origin { gid: local.gid, path: Path::Loopback, port: 0 };
        let mut at = 0;
        let mut skipped = NONE as usize;
        while !t.common.ready.is_empty() && handled < max_runs {
            let Some(qi) = t.common.ready.next_from(at).filter(|&qi| qi != skipped) else { break };
            at = qi + 1;
            t.common.ready.clear(qi);
            let mut tx = TxBuf::of_runs(scratch, handed, rx_flow.1);
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

    /// Lets every owed ACK leave with the next bursts, for a caller that has nothing else to do.
    pub fn flush_acks(&mut self) {
        self.split().0.flush_acks();
    }

    /// Whether `poll_transmit` or `run_loopback` may have something.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.has_known_work() || self.shared().active.any()
    }

    /// [`Guard::has_work`] without the QPs that posts have marked, for a caller that checks the
    /// marks once it has released the lock.
    #[inline(always)]
    pub fn has_known_work(&self) -> bool {
        let Inner { transport: t, cm, .. } = &**self;
        let idle = Bitmap::are_empty([&t.common.ready, &t.common.full_cqs]);
        (!idle || cm.is_ready())
            && (!t.common.ready.is_empty() || cm.is_ready() || t.common.may_go_on(self.shared()))
    }

    /// Whether anything but timers of QPs is to be done: something may be sent, or memory or a CQ
    /// is waited for.
    #[inline(always)]
    pub fn has_due_work(&self, now: u64) -> bool {
        let Inner { transport: t, cm, .. } = &**self;
        let Common { ready, full_cqs, mem_wait, cnp_owed, .. } = &t.common;
        let idle = Bitmap::are_empty([ready, full_cqs, mem_wait, cnp_owed]);
        !idle || cm.is_ready() || self.shared().active.any() || now >= t.common.acks.flush_at()
    }

    /// Whether no owed ACK is delayed.
    #[inline]
    pub fn delays_no_ack(&self) -> bool {
        self.transport.common.acks.flush_at() == u64::MAX
    }

    /// Runs the timers that are due. To be called only when nothing is left to receive: a process
    /// that was stopped must read its packets before it takes its peers for silent.
    pub fn handle_timeout(&mut self, now: u64) {
        let (inner, s) = self.split();
        inner.transport.arm_deferred_timer(s, now);
        while let Some(qi) = inner.transport.common.wheel.pop_expired(now) {
            inner.transport.conn(s, qi).on_timer(now);
        }
        if now >= inner.transport.common.acks.flush_at() {
            inner.flush_acks();
        }
        if !inner.transport.common.mem_wait.is_empty() {
            inner.transport.poll_memory(s, now);
        }
        if !inner.transport.common.silent.is_empty() {
            inner.end_silent(now);
        }
        inner.cm_timeout(s, now);
    }

    /// Asks slow memory whether the accesses that QPs wait for have ended.
    pub fn poll_memory(&mut self, now: u64) {
        let (inner, s) = self.split();
        if !inner.transport.common.mem_wait.is_empty() {
            inner.transport.poll_memory(s, now);
        }
    }

    /// When `handle_timeout` must run next; `None`: not before something else happens.
    pub fn next_timeout(&mut self, now: u64) -> Option<u64> {
        let (inner, s) = self.split();
        inner.transport.arm_deferred_timer(s, now);
        let t = &inner.transport;
        let mut at =
            t.common.wheel.next_deadline().unwrap_or(u64::MAX).min(t.common.acks.flush_at());
        at = at.min(inner.cm.next_timeout().unwrap_or(u64::MAX));
        if !t.common.mem_wait.is_empty() {
            // Slow memory has no interrupt: look again soon.
            at = at.min(now + 20_000);
        }
        (at != u64::MAX).then_some(at)
    }

    /// The port could not reach an address: notes the cause on its QPs with requests in flight,
    /// whose retry counters end them. `errno` is the system's. Only for refusals that last (no
    /// socket there, no route).
    pub fn peer_unreachable(&mut self, now: u64, dst: &PeerAddr, errno: i32) {
        self.note_peer_error(now, dst, CauseCode::PeerUnreachable, errno as u64, 0);
        self.cm_refused(dst, errno, false);
    }

    /// As [`Guard::peer_unreachable`], but the peer's socket is of this host, and it is there: a
    /// firewall of this host rejects in its name.
    pub fn peer_rejected(&mut self, now: u64, dst: &PeerAddr, errno: i32) {
        self.note_peer_error(now, dst, CauseCode::Firewall, errno as u64, 0);
        self.cm_refused(dst, errno, false);
    }

    /// The kernel refused to send to an address, whatever the network may say. Notes the cause as
    /// [`Guard::peer_unreachable`] does; a connection attempt to it ends at once, if the refusal
    /// lasts.
    pub fn port_error(&mut self, now: u64, dst: &PeerAddr, errno: i32) {
        let code = local_refusal(errno);
        self.note_peer_error(now, dst, code, errno as u64, 0);
        if code != CauseCode::Socket {
            self.cm_refused(dst, errno, true);
        }
    }

    /// Whether an armed CQ without a channel, the connection manager, a QP, an SRQ or the port has
    /// an event.
    pub fn has_events(&self) -> bool {
        let Inner { transport: t, cm, .. } = &**self;
        self.shared().cq_events.any()
            || cm.has_events()
            || !t.common.event_qps.is_empty()
            || t.common.port_events.any()
            || (0..t.common.srqs.len()).any(|i| t.common.srqs[i].events != 0)
    }

    /// A packet to an address was larger than its path carries.
    pub fn peer_mtu_exceeded(&mut self, now: u64, dst: &PeerAddr, link_mtu: u32) {
        self.note_peer_error(now, dst, CauseCode::MtuExceeded, 0, u64::from(link_mtu));
    }

    fn note_peer_error(&mut self, now: u64, dst: &PeerAddr, code: CauseCode, arg0: u64, arg1: u64) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        for qi in 0..t.qps.len() {
            let qp = &t.qps[qi];
            if !qp.live || !qp.kind.is_connected() || qp.conn.peer == NONE {
                continue;
            }
            let addr = t.peers[qp.conn.peer as usize].addr;
            let opens = qp.dci.first().is_some_and(|a| a.phase == DcPhase::Opening);
            let waits =
                qp.conn.req.una_psn != qp.conn.req.max_psn || qp.conn.keep.tries > 0 || opens;
            if addr.gid != dst.gid || addr.port != dst.port || !waits {
                continue;
            }
            // A hint only: the peer may be starting. The retry counter ends the operation; this
            // says why.
            let arg0 = if code == CauseCode::MtuExceeded { u64::from(qp.conn.mtu) } else { arg0 };
            let mut c = t.conn(s, qi);
            if code == CauseCode::PeerUnreachable {
                // This host's firewall that rejects what goes out also sends such an error.
                let since = c.qp.conn.req.silent_since;
                if matches!(c.explanation(since), Some((CauseCode::Firewall, ..))) {
                    continue;
                }
                c.suspect_end(now);
            }
            c.note(now, code, wc_status::RETRY_EXC_ERR, arg0, arg1);
        }
    }

    /// Segments per burst to an address from now on (1 where the link refuses segmentation
    /// offload).
    pub fn limit_segments(&mut self, dst: &PeerAddr, max_seg: u16) {
        let t = &mut self.split().0.transport;
        for i in 0..t.peers.len() {
            let p = &mut t.peers[i];
            if p.refs > 0 && p.addr.gid == dst.gid && p.addr.port == dst.port {
                p.max_seg = max_seg.max(1);
            }
        }
    }
}
