//! The packets of a device: passes received ones to the engine, its bursts to the port, and the
//! port's errors of single destinations to the engine.
//!
//! Written against [`crate::port::Port`]; nothing here depends on a UDP socket. The tests run it
//! over a port in memory.

use super::group::rx::receive_shared;
use super::peers::witness::note_refusal;
use super::rounds::limits::{BURSTS, LONG_BURST};
use super::{endpoint, peer_addr, PortState, SoftEngine};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::port::{Burst, ErrorKind, Port, RxPacket, TxOutcome, GROUPS};
use crate::wait::Waiter;
use crate::LONG;
use gdrcore_core::engine::{self, EngineGuard};
use gdrcore_core::roce::frame::packet::Packets;
use gdrcore_core::roce::peer::{ConnectedFlow, Path, PeerAddr};
use std::os::fd::RawFd;

pub(super) mod tap;

/// Datagrams that one round takes of each group.
const GROUP_BATCH: usize = 8;

/// The parts of the device that the packet path of its port uses.
pub(super) trait Host {
    fn address(&self) -> &Endpoint;
    /// The epoll sets that the port's descriptor is in.
    fn waiter(&self) -> &Waiter;
    /// Whether a thread sleeps on the descriptors, or may sleep.
    fn may_sleep(&self) -> bool;
    /// A packet waits until a time: a thread that sleeps wakes by then.
    fn due_at(&self, at: u64);
}

impl Host for SoftEngine {
    #[inline(always)]
    fn address(&self) -> &Endpoint {
        &self.local
    }

    #[inline(always)]
    fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    fn may_sleep(&self) -> bool {
        self.may_sleep()
    }

    fn due_at(&self, at: u64) {
        self.wake_by(at);
    }
}

/// The part of a round's [`BURSTS`] that a burst takes.
fn cost(len: usize) -> usize {
    if len >= LONG {
        LONG_BURST
    } else {
        1
    }
}

/// Result of batching one burst.
enum Batched {
    Nothing,
    /// The batch is full: flush first.
    NoRoom,
    /// The burst is in the batch; its bytes.
    Burst(usize),
    /// The burst has left by the connected socket; its bytes.
    Left(usize),
}

/// A port that sends one burst alone.
struct Alone<'p, P> {
    net: &'p mut P,
    is_batched: bool,
    /// The burst's destination, if bursts to it have one packet each.
    limited: Option<PeerAddr>,
}

impl<P: Port> Packets for Alone<'_, P> {
    #[inline(always)]
    fn begin(&mut self) -> Option<(&mut [u8], Option<&ConnectedFlow>)> {
        self.net.tx_space()
    }

    #[inline(always)]
    fn commit(&mut self, to: &PeerAddr, len: usize, seg: usize, for_connected: bool) -> u64 {
        let b = Burst { dst: *to, len, seg: seg as u16 };
        if !self.net.tx_single(&b, for_connected) {
            self.batch(b);
        }
        // The peer already has the packet while the clock is read here.
        now_ns()
    }
}

impl<P: Port> Alone<'_, P> {
    #[inline(never)]
    fn batch(&mut self, b: Burst) {
        let one = must_be_single(self.net, &b);
        (self.limited, self.is_batched) = (one.then_some(b.dst), true);
        self.net.tx_commit(b);
    }
}

/// Whether a burst has several packets, and bursts to its destination must have one each.
#[inline(always)]
fn must_be_single<P: Port>(net: &P, b: &Burst) -> bool {
    b.len > usize::from(b.seg) && net.max_segments(&endpoint(&b.dst)) == 1
}

/// Puts a burst that is in the port's room into the batch, or sends it by the connected socket.
#[inline(always)]
fn commit<P: Port>(net: &mut P, g: &mut EngineGuard<'_>, burst: &engine::Burst) -> Batched {
    let b = Burst { dst: burst.dst, len: burst.len, seg: burst.seg as u16 };
    if must_be_single(net, &b) {
        g.limit_segments(&b.dst, 1);
    }
    if burst.for_connected && net.tx_single(&b, true) {
        return Batched::Left(b.len);
    }
    net.tx_commit(b);
    Batched::Burst(burst.len)
}

impl<P: Port> PortState<P> {
    /// Sends what was just posted to the QP at an index, whose peer is behind the port. Returns the
    /// time; `None`: the request takes another path, or must wait behind others.
    #[inline(always)]
    pub(super) fn send_just_posted<const DC: bool>(
        &mut self,
        host: &impl Host,
        g: &mut EngineGuard<'_>,
        qi: usize,
    ) -> Option<u64> {
        self.send_single_packet::<DC>(host, g, qi).or_else(|| match g.path_of(qi) {
            Some(Path::Port) => self.send_posted(host, g, qi),
            _ => None,
        })
    }

    /// Sends the requests that were just posted to the QP at an index, alone. Returns the time;
    /// `None`: they must wait behind others.
    #[inline]
    fn send_posted(&mut self, host: &impl Host, g: &mut EngineGuard<'_>, qi: usize) -> Option<u64> {
        // Without a socket, a round sends the requests over another path. With faults, packets that
        // have waited may take the room.
        if self.blocked || self.net.is_none() || self.has_faults() || !g.may_send_alone(qi) {
            return None;
        }
        let now = now_ns();
        match self
            .put(host, g, now, |g, space, connected| g.transmit_to_port(now, qi, space, connected))
        {
            Batched::NoRoom => return None,
            Batched::Nothing => {}
            Batched::Left(_) => self.check_tx_errors(g, now),
            Batched::Burst(_) => {
                self.flush(host);
                self.check_tx_errors(g, now);
            }
        }
        Some(now)
    }

    /// Sends the single message that was just posted to the QP at an index, if nothing precedes it.
    /// Returns the time.
    #[inline]
    pub(super) fn send_single_packet<const DC: bool>(
        &mut self,
        host: &impl Host,
        g: &mut EngineGuard<'_>,
        qi: usize,
    ) -> Option<u64> {
        // A capture needs the time of each packet, and the clock is not read before this send.
        let PortState { net: Some(net), tap: None, blocked: false, .. } = self else {
            return None;
        };
        let mut alone = Alone { net, is_batched: false, limited: None };
        let now = g.send_packet::<DC, _>(qi, &mut alone, now_ns)?;
        let Alone { is_batched, limited, .. } = alone;
        self.schedule.set_time(now);
        if is_batched {
            self.flush(host);
            if let Some(dst) = limited {
                g.limit_segments(&dst, 1);
            }
        }
        self.check_tx_errors(g, now);
        Some(now)
    }

    /// Receives once; `now` may be the time of an earlier round. Returns the packets.
    #[inline]
    pub(super) fn receive(&mut self, host: &impl Host, g: &mut EngineGuard<'_>, now: u64) -> usize {
        let Some(net) = &mut self.net else { return 0 };
        let n = net.rx_poll();
        if n == 0 {
            let now = self.schedule.refresh(now, now_ns);
            if let Some(member) = &mut self.member {
                member.note_socket_empty(now);
            }
        }
        let local = *host.address();
        let mut handled = 0;
        for i in 0..n {
            let PortState { net: Some(net), tap, member, ports, schedule, .. } = self else {
                break;
            };
            let r = net.rx_get(i);
            if r.data.is_empty() {
                continue;
            }
            // One function, with or without a tap: with two callers what it calls would not be
            // inlined, and cost each packet some ten instructions more.
            let mut each = |g: &mut EngineGuard<'_>, r: &RxPacket<'_>| match member {
                Some(member) => receive_shared(g, member, now, || schedule.refresh(now, now_ns), r),
                None => g.handle_arrival(&r.arrival(now), || now),
            };
            // The refused port may be the peer's second socket. Then the refused packet is handled
            // now, because the peer may never send it again.
            // Both ways call it by themselves: one closure for them costs 7 instructions.
            handled += match tap {
                None => {
                    let n = each(g, &r);
                    if ports.vet_refused(g, &local) {
                        each(g, &r);
                    }
                    n
                }
                Some(tap) => tap.receive(host, g, now, &r, &mut |g, r| {
                    let n = each(g, r);
                    if ports.vet_refused(g, &local) {
                        each(g, r);
                    }
                    n
                }),
            };
            if r.data.len() >= LONG && i + 1 < n {
                // The ACK of a long burst leaves now: it opens the sender's window while the rest
                // is handled here.
                let now = self.schedule.refresh(now, now_ns);
                self.send(host, g, now);
            }
        }
        if handled > 0 {
            self.ports.review(g, now, &local);
        }
        let PortState { net: Some(net), schedule, .. } = self else { return handled };
        if handled > 0 && schedule.note_busy(now) && self.watched && !self.blocked {
            unwatch(host, net.fd(), &mut self.watched);
        }
        // `rx_poll` reads an ICMP error that the kernel reports instead of data. Records of errors
        // that a send has reported already only keep the descriptor readable, so they are drained
        // at intervals.
        if schedule.drains_errors() {
            net.drain_errors();
        }
        if net.has_error() {
            let now = self.schedule.refresh(now, now_ns);
            self.report_errors(g, now);
        }
        handled
    }

    /// Puts the descriptor into the epoll set: a thread is about to sleep. A packet that waits
    /// already wakes it at once.
    pub(super) fn watch(&mut self, host: &impl Host) {
        self.schedule.forget_busy();
        if let Some(net) = self.net.as_ref().filter(|_| !self.watched) {
            self.watched = host.waiter().add_socket(net.fd()).is_ok();
        }
    }

    pub(super) fn send(&mut self, host: &impl Host, g: &mut EngineGuard<'_>, now: u64) {
        if self.blocked {
            if !self.flush(host) {
                return;
            }
            self.blocked = false;
            if let Some(net) = &self.net {
                let _ = host.waiter().want_write(net.fd(), false);
            }
        }
        let mut sent = 0;
        let mut more = true;
        while more && sent < BURSTS {
            more = false;
            let mut any = false;
            while sent < BURSTS && !more {
                match self.put(host, g, now, |g, space, connected| {
                    g.poll_transmit_over(now, space, connected)
                }) {
                    Batched::Nothing => break,
                    Batched::NoRoom => more = true,
                    Batched::Left(len) => sent += cost(len),
                    Batched::Burst(len) => {
                        any = true;
                        // A long burst leaves by itself: the receiver works on it while the next
                        // is built.
                        more = len >= LONG;
                        sent += cost(len);
                    }
                }
            }
            if any && !self.flush(host) {
                return;
            }
        }
        self.check_tx_errors(g, now);
    }

    /// Puts the burst that `make` fills into the batch, or sends it by the connected socket.
    #[inline]
    fn put<F>(&mut self, host: &impl Host, g: &mut EngineGuard<'_>, now: u64, make: F) -> Batched
    where
        F: FnOnce(&mut EngineGuard<'_>, &mut [u8], Option<&ConnectedFlow>) -> Option<engine::Burst>,
    {
        let Some(net) = &mut self.net else { return Batched::Nothing };
        let Some((space, connected)) = net.tx_space() else { return Batched::NoRoom };
        if self.tap.is_some() {
            return self.put_tapped(host, g, now, make);
        }
        let Some(burst) = make(g, space, connected) else { return Batched::Nothing };
        commit(net, g, &burst)
    }

    /// Sends the batch. Returns false if there is no room; the descriptor wakes when there is.
    #[inline]
    fn flush(&mut self, host: &impl Host) -> bool {
        let Some(net) = &mut self.net else { return true };
        if net.tx_flush() == TxOutcome::Full {
            if !self.blocked {
                self.blocked = true;
                let fd = net.fd();
                self.watch(host);
                let _ = host.waiter().want_write(fd, true);
            }
            return false;
        }
        true
    }

    /// Receives the packets of groups. Returns their number.
    #[inline]
    pub(super) fn receive_groups(&mut self, g: &mut EngineGuard<'_>, now: u64) -> usize {
        match &self.net {
            Some(net) if net.has_groups() => self.receive_all_groups(g, now),
            _ => 0,
        }
    }

    #[cold]
    fn receive_all_groups(&mut self, g: &mut EngineGuard<'_>, now: u64) -> usize {
        let PortState { net: Some(net), tap, .. } = self else { return 0 };
        let mut handled = 0;
        for k in 0..GROUPS {
            for _ in 0..GROUP_BATCH {
                let Some(group) = net.group_poll(k) else { break };
                let to = Endpoint { ip: group, port: net.local().port, ..Endpoint::default() };
                let r = net.rx_get(0);
                if let Some(tap) = tap {
                    tap.capture(now, &r, &to, 0);
                }
                handled += g.handle_multicast(now, &r.src, &group, usize::from(r.seg), r.data);
            }
        }
        handled
    }

    /// Reports to the engine the destinations to which a send has failed.
    #[inline]
    fn check_tx_errors(&mut self, g: &mut EngineGuard<'_>, now: u64) {
        let Some(net) = &self.net else { return };
        let c = net.counters();
        let failures = c.send_err + c.icmp_err + c.gso_refused;
        if failures != self.seen.send_err {
            self.seen.send_err = failures;
            self.report_errors(g, now);
        }
    }

    /// Hands the port's errors of single destinations to the engine.
    fn report_errors(&mut self, g: &mut EngineGuard<'_>, now: u64) {
        let Some(net) = &mut self.net else { return };
        while let Some(e) = net.take_error() {
            let dst = peer_addr(&e.dst);
            match e.kind {
                ErrorKind::Icmp => {
                    note_refusal(g, &mut self.refused, now, &e.dst, e.errno);
                    if let Some(member) = self.member.as_mut().filter(|s| s.has_others()) {
                        member.send_peer_error(&e.dst, e.errno);
                    }
                }
                ErrorKind::Mtu => g.peer_mtu_exceeded(now, &dst, e.mtu),
                ErrorKind::Send => g.port_error(now, &dst, e.errno),
            }
        }
    }
}

/// Removes a descriptor from the epoll set, unless a thread may sleep on it. A wake-up that reaches
/// no thread costs the sender some 400 ns for each burst, in two epoll sets.
#[cold]
fn unwatch(host: &impl Host, fd: RawFd, watched: &mut bool) {
    if host.may_sleep() {
        return;
    }
    *watched = host.waiter().remove_socket(fd).is_err();
}

#[cfg(test)]
mod tests;
