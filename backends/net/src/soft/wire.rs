//! The socket: packets in, bursts out, and what the kernel says of destinations.

use super::budget::BURSTS;
use super::sharing::take;
use super::{endpoint, peer_addr, Port, SoftDevice};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::udp::{Burst, ErrorKind, TxOutcome, GROUPS};
use crate::LONG;
use gdrcore_core::engine::{self, Guard};
use std::os::fd::RawFd;

/// Rounds that receive something, one after the other, with nobody about to sleep, after which
/// nobody watches the socket.
const WAKEFUL: u32 = 64;

/// Datagrams that one round takes of each group.
const GROUP_BATCH: usize = 8;

/// What became of a burst.
enum Put {
    /// There was none.
    Nothing,
    /// The batch is full: flush first.
    NoRoom,
    /// It is in the batch; its bytes.
    Burst(usize),
}

impl SoftDevice {
    /// Sends what a QP was just posted by itself. When; `None`: it goes another way, or has to wait
    /// for others.
    #[inline]
    pub(super) fn send_to_port(
        &self,
        g: &mut Guard<'_>,
        port: &mut Port,
        qi: usize,
    ) -> Option<u64> {
        // Without a socket the round sends it, to wherever that leads.
        if port.blocked || port.udp.is_none() || !g.may_send_alone(qi) {
            return None;
        }
        let now = now_ns();
        match self.put(g, port, now, |g, space| g.transmit_to_port(now, qi, space)) {
            Put::NoRoom => return None,
            Put::Nothing => {}
            Put::Burst(_) => {
                self.flush(port);
                look_for_failures(g, port, now);
            }
        }
        Some(now)
    }

    /// Sends the one small message that a QP was just posted through the socket, if nothing is in
    /// its way. When.
    #[inline]
    pub(super) fn send_lone_packet(
        &self,
        g: &mut Guard<'_>,
        port: &mut Port,
        qi: usize,
    ) -> Option<u64> {
        // The tee wants to know the time of what it shows.
        let Port { udp: Some(udp), pcap: None, blocked: false, .. } = port else { return None };
        let lane = udp.lane();
        let mut by_lane = false;
        let (burst, prepared) = g.prepare_packet(qi, udp.tx_space()?, |peer| {
            let (_, flow, ident) = lane.filter(|(dst, ..)| *dst == endpoint(peer))?;
            by_lane = true;
            Some((flow, ident))
        })?;
        let b = Burst { dst: endpoint(&burst.dst), len: burst.len, seg: burst.seg as u16 };
        if !(if by_lane { udp.tx_lane(&b) } else { udp.tx_now(&b) }) {
            if burst.len > burst.seg && udp.max_segments(&b.dst) == 1 {
                g.limit_segments(&burst.dst, 1);
            }
            udp.tx_commit(b);
            self.flush(port);
        }
        // The peer has it while the clock is read here.
        let now = now_ns();
        port.set_time(now);
        g.commit_send(now, prepared);
        look_for_failures(g, port, now);
        Some(now)
    }

    /// Receives once; the time may be as of a moment ago. Returns the packets.
    #[inline]
    pub(super) fn receive(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
        let Some(udp) = &mut port.udp else { return 0 };
        let n = udp.rx_poll();
        if n == 0 {
            let now = port.refresh(now);
            if let Some(share) = &mut port.share {
                share.drained(now);
            }
        }
        let local = self.local;
        let mut handled = 0;
        for i in 0..n {
            let Port { udp: Some(udp), pcap, share, stale, ports, now: read, .. } = port else {
                break;
            };
            let r = udp.rx_get(i);
            if r.data.is_empty() {
                continue;
            }
            if let Some(tee) = pcap {
                tee.burst(now, &r.src, &local, 0, r.seg, r.data);
            }
            let mut each = |g: &mut Guard<'_>| match share {
                Some(share) => {
                    let right = || {
                        if core::mem::take(stale) != 0 {
                            *read = now_ns();
                        }
                        now.max(*read)
                    };
                    take(g, share, now, right, &r)
                }
                None => g.handle_packets(
                    now,
                    &peer_addr(&r.src),
                    usize::from(r.seg),
                    r.data,
                    r.ecn == 3,
                ),
            };
            handled += each(g);
            if g.has_refused_port() && ports.vet(g) {
                // The peer's second socket: what was refused is taken now. Nobody may be there to
                // send it again.
                each(g);
            }
            if r.data.len() >= LONG && i + 1 < n {
                // Its ACK opens the sender's window while the rest is handled here.
                let now = port.refresh(now);
                self.send(g, port, now);
            }
        }
        if handled > 0 {
            port.ports.review(g, now);
        }
        let Port { udp: Some(udp), empty, .. } = port else { return handled };
        if handled > 0 {
            port.udp_hot_ns = now;
            port.wakeful = port.wakeful.saturating_add(1);
            if port.wakeful >= WAKEFUL && port.watched && !port.blocked {
                self.unwatch(udp.fd(), &mut port.watched);
            }
        }
        // An ICMP error is told instead of data, and read by `rx_poll`. Records of errors that a
        // send has reported already only keep the descriptor readable: they are looked for now and
        // then.
        if *empty % 64 == 32 {
            udp.drain_errors();
        }
        if udp.has_error() {
            let now = port.refresh(now);
            report_errors(g, port, now);
        }
        handled
    }

    /// Whoever is about to sleep wants to be woken by packets. One that is there already wakes at
    /// once.
    pub(super) fn watch(&self, port: &mut Port) {
        port.wakeful = 0;
        if let Some(udp) = port.udp.as_ref().filter(|_| !port.watched) {
            port.watched = self.waiter.add_socket(udp.fd()).is_ok();
        }
    }

    /// Takes the socket from what wakes a sleeper, unless there is one: waking nobody costs whoever
    /// sends to us some 400 ns for each burst, in two epoll sets.
    #[cold]
    fn unwatch(&self, fd: RawFd, watched: &mut bool) {
        if self.may_sleep() {
            return;
        }
        *watched = self.waiter.remove_socket(fd).is_err();
    }

    /// Sends what the engine has, in batches of bursts.
    pub(super) fn send(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) {
        if port.blocked {
            if !self.flush(port) {
                return;
            }
            port.blocked = false;
            if let Some(udp) = &port.udp {
                let _ = self.waiter.want_write(udp.fd(), false);
            }
        }
        let mut sent = 0;
        let mut more = true;
        while more && sent < BURSTS {
            more = false;
            let mut any = false;
            while sent < BURSTS && !more {
                match self.put(g, port, now, |g, space| g.poll_transmit(now, space)) {
                    Put::Nothing => break,
                    Put::NoRoom => more = true,
                    Put::Burst(len) => {
                        sent += 1;
                        any = true;
                        // A long one leaves by itself: the receiver works on it while the next is
                        // made.
                        more = len >= LONG;
                    }
                }
            }
            if any && !self.flush(port) {
                return;
            }
        }
        look_for_failures(g, port, now);
    }

    /// Puts the burst that `make` fills into the batch.
    #[inline]
    fn put(
        &self,
        g: &mut Guard<'_>,
        port: &mut Port,
        now: u64,
        make: impl FnOnce(&mut Guard<'_>, &mut [u8]) -> Option<engine::Burst>,
    ) -> Put {
        let Some(udp) = &mut port.udp else { return Put::Nothing };
        let Some(space) = udp.tx_space() else { return Put::NoRoom };
        let Some(burst) = make(g, space) else { return Put::Nothing };
        let dst = endpoint(&burst.dst);
        if let Some(tee) = &mut port.pcap {
            tee.burst(now, &self.local, &dst, 0, burst.seg as u16, &space[..burst.len]);
        }
        if burst.len > burst.seg && udp.max_segments(&dst) == 1 {
            g.limit_segments(&burst.dst, 1);
        }
        udp.tx_commit(Burst { dst, len: burst.len, seg: burst.seg as u16 });
        Put::Burst(burst.len)
    }

    /// Sends the batch. False: the kernel has no room; a wake follows when it has.
    #[inline]
    fn flush(&self, port: &mut Port) -> bool {
        let Some(udp) = &mut port.udp else { return true };
        if udp.tx_flush() == TxOutcome::Full {
            if !port.blocked {
                port.blocked = true;
                let fd = udp.fd();
                self.watch(port);
                let _ = self.waiter.want_write(fd, true);
            }
            return false;
        }
        true
    }
}

/// Receives what came to groups. Returns the packets.
#[inline]
pub(super) fn receive_groups(g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
    match &port.udp {
        Some(udp) if udp.has_groups() => receive_all_groups(g, port, now),
        _ => 0,
    }
}

#[cold]
fn receive_all_groups(g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
    let Port { udp: Some(udp), pcap, .. } = port else { return 0 };
    let mut handled = 0;
    for k in 0..GROUPS {
        for _ in 0..GROUP_BATCH {
            let Some(group) = udp.group_poll(k) else { break };
            let to = Endpoint { ip: group, port: udp.local().port, ..Endpoint::default() };
            let r = udp.rx_get(0);
            if let Some(tee) = pcap {
                tee.burst(now, &r.src, &to, 0, r.seg, r.data);
            }
            handled +=
                g.handle_multicast(now, &peer_addr(&r.src), &group, usize::from(r.seg), r.data);
        }
    }
    handled
}

/// Tells the engine of destinations that a send has failed for.
#[inline]
fn look_for_failures(g: &mut Guard<'_>, port: &mut Port, now: u64) {
    let Some(udp) = &port.udp else { return };
    let c = udp.counters();
    let failures = c.send_err + c.icmp_err + c.gso_refused;
    if failures != port.send_err {
        port.send_err = failures;
        report_errors(g, port, now);
    }
}

/// Hands what the kernel said about single destinations to the engine.
fn report_errors(g: &mut Guard<'_>, port: &mut Port, now: u64) {
    let Some(udp) = &mut port.udp else { return };
    while let Some(e) = udp.take_error() {
        let dst = peer_addr(&e.dst);
        match e.kind {
            ErrorKind::Icmp => {
                g.peer_unreachable(now, &dst, e.errno);
                if let Some(share) = port.share.as_mut().filter(|s| s.has_company()) {
                    share.tell_refusal(&e.dst, e.errno);
                }
            }
            ErrorKind::Mtu => g.peer_mtu_exceeded(now, &dst, e.mtu),
            ErrorKind::Send => g.port_error(now, &dst, e.errno),
        }
    }
}
