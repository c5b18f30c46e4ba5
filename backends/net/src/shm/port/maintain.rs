//! Maintains links beside their data: new connections, hellos, requests and grants, ends.

use super::super::grant::{offers, OwnGrants, PeerRequest, SharedRegion};
use super::super::listener::{Incoming, LinkEvent};
use super::super::ring::Reader;
use super::rx::return_room;
use super::{Inbound, InboundRing, LostLink, ShmPort};
use crate::addr::Endpoint;
use crate::local::{is_own_user, peer_of, ACCEPT_AGAIN_NS};
use crate::wait::Waiter;
use core::sync::atomic::Ordering;
use gdrcore_core::error::Result;
use gdrcore_core::wire::Psn;

/// An inbound socket without a hello for this long is closed.
const HELLO_NS: u64 = 1_000_000_000;

impl ShmPort {
    /// Handles connections, hellos, wake-ups, requests, grants and ends. Returns true if a process
    /// has connected, also without its hello, or has ended. Costs some system calls for each link,
    /// so it is called at intervals, and before sleeping.
    pub fn maintain(&mut self, now: u64, waiter: &Waiter) -> bool {
        // Ends are noted first, so that frames sent before an end are found below.
        let mut changed = self.maintain_outbound(now);
        changed |= self.accept_links(now, waiter);
        changed |= self.maintain_inbound(now);
        for i in 0..self.out.len() {
            // An unread ACK may complete a message that this link carried.
            if self.out[i].as_ref().is_some_and(|out| out.gone && !self.has_input_from(&out.to)) {
                self.close_outbound(i);
            }
        }
        changed
    }

    /// Takes grants, requests memory for which WRITEs had no grant, and notes ends. Returns true if
    /// a peer has ended.
    fn maintain_outbound(&mut self, now: u64) -> bool {
        let mut changed = false;
        for out in self.out.iter_mut().flatten() {
            let peer_grants = &mut out.peer_grants;
            let may_grant = out.brokered.is_none_or(|b| b.may_grant);
            out.gone |= out.socket.for_each_event(|event| match event {
                LinkEvent::Grant(grant, fd) if may_grant => {
                    peer_grants.take(&grant, fd);
                    true
                }
                _ => false,
            });
            if may_grant {
                out.peer_grants.maintain(now, &mut out.socket);
            }
            changed |= out.gone;
        }
        changed
    }

    /// Takes hellos and requests for grants, returns room, and closes links that have ended.
    /// Returns true if a process has ended or connected since the last call, or if a hello is still
    /// missing.
    fn maintain_inbound(&mut self, now: u64) -> bool {
        let mut changed = false;
        for i in 0..self.inbound.len() {
            let Some(inbound) = &mut self.inbound[i] else { continue };
            changed |= inbound.link.is_none();
            let Some(link) = &mut inbound.link else {
                match inbound.receive_link(&self.shared, self.by_address) {
                    Ok(Some(link)) => {
                        inbound.link = Some(link);
                        self.open[self.open_len] = i as u16;
                        self.open_len += 1;
                    }
                    Ok(None) if now.saturating_sub(inbound.since_ns) < HELLO_NS => {}
                    Ok(None) | Err(_) => {
                        self.counters.broken += 1;
                        self.inbound[i] = None;
                    }
                }
                continue;
            };
            if link.reader.settle() {
                return_room(link, &inbound.socket);
            }
            let (requested, from) = (&mut self.requested, link.from);
            let may_grant = inbound.brokered.is_none_or(|b| b.may_grant);
            link.gone |= inbound.socket.for_each_event(|event| match event {
                LinkEvent::Request { request, by_address } if may_grant => {
                    // Without a free entry the request is dropped; the peer repeats it.
                    if let Some(free) = requested.iter_mut().find(|r| r.is_none()) {
                        let inbound = i as u16;
                        *free = Some(PeerRequest { inbound, from, request, by_address });
                    }
                    true
                }
                _ => false,
            });
            changed |= link.gone;
            if link.gone && link.reader.is_empty() {
                self.close_inbound(i);
            }
        }
        changed
    }

    fn has_input_from(&self, from: &Endpoint) -> bool {
        self.open[..self.open_len].iter().any(|&i| match &self.inbound[usize::from(i)] {
            Some(Inbound { link: Some(link), .. }) => link.from == *from && !link.reader.is_empty(),
            _ => false,
        })
    }

    /// Accepts connections at all listeners. Returns true if there was one.
    fn accept_links(&mut self, now: u64, waiter: &Waiter) -> bool {
        if self.paused_until.is_some_and(|until| now < until) {
            return false;
        }
        if self.paused_until.take().is_some() {
            for listener in self.listeners.iter().flatten() {
                let _ = waiter.add_socket(listener.fd());
            }
        }
        let (mut connected, mut free) = (false, 0);
        for k in 0..self.listeners.len() {
            let Some(listener) = &self.listeners[k] else { continue };
            loop {
                let socket = match listener.accept() {
                    Incoming::Link(socket) => socket,
                    Incoming::Nothing => break,
                    Incoming::NoDescriptor => {
                        self.pause_listeners(now, waiter);
                        return connected;
                    }
                };
                connected = true;
                while self.inbound.get(free).is_some_and(Option::is_some) {
                    free += 1;
                }
                // Without a free entry the connection is closed, which the other end takes as a
                // lost link.
                let Some(slot) = self.inbound.get_mut(free) else { return connected };
                if waiter.add_socket(socket.fd()).is_ok() {
                    *slot = Some(Inbound { socket, since_ns: now, link: None, brokered: None });
                }
            }
        }
        connected
    }

    /// A connection that waits for a descriptor would end every sleep at once, so the listeners
    /// leave the epoll set for a while.
    #[cold]
    pub(super) fn pause_listeners(&mut self, now: u64, waiter: &Waiter) {
        for listener in self.listeners.iter().flatten() {
            let _ = waiter.remove_socket(listener.fd());
        }
        self.paused_until = Some(now + ACCEPT_AGAIN_NS);
    }

    /// Removes the receipts that this end has left and for which `keep` is false.
    #[cold]
    pub fn retain_receipts(&self, mut keep: impl FnMut(u32, Psn) -> bool) {
        for &i in &self.open[..self.open_len] {
            if let Some(Inbound { link: Some(link), .. }) = &self.inbound[usize::from(i)] {
                link.reader.place().receipts().retain(&mut keep);
            }
        }
    }

    /// Removes the receipt of a QP at the other end of a link, to which a connection begins.
    pub fn forget_receipt(&self, link: u16, qpn: u32) {
        if let Some(Some(out)) = self.out.get(usize::from(link)) {
            out.writer.place().receipts().forget(qpn);
        }
    }

    /// Whether `take_lost` has something.
    pub fn has_lost(&self) -> bool {
        self.any_lost
    }

    /// Takes the next lost link, with its number, which may be used again afterwards.
    pub fn take_lost(&mut self) -> Option<(u16, LostLink)> {
        if !self.any_lost {
            return None;
        }
        for (i, lost) in self.lost.iter_mut().enumerate() {
            if let Some(lost) = lost.take() {
                return Some((i as u16, lost));
            }
        }
        self.any_lost = false;
        None
    }

    /// Ends an outbound link; [`ShmPort::take_lost`] returns it.
    pub(super) fn close_outbound(&mut self, i: usize) {
        // Dropping closes the socket, which removes it from every epoll set.
        self.lost[i] = self.out[i].take().map(|out| LostLink {
            to: out.to,
            block: out.block,
            place: *out.writer.place(),
            _segment: out._segment,
        });
        self.any_lost = true;
    }

    /// Ends an inbound link and its grants.
    pub(super) fn close_inbound(&mut self, i: usize) {
        if let Some(Inbound { link: Some(link), .. }) = &mut self.inbound[i] {
            link.grants.end(link.reader.place());
        }
        self.inbound[i] = None;
        if let Some(k) = self.open[..self.open_len].iter().position(|&j| usize::from(j) == i) {
            self.open_len -= 1;
            self.open[k] = self.open[self.open_len];
        }
    }
}

impl Inbound {
    /// Makes the link of a hello. `Ok(None)`: the hello has not arrived yet.
    ///
    /// # Errors
    /// The message is no hello of ours; the socket must be closed.
    fn receive_link(
        &mut self,
        shared: &[Option<SharedRegion>],
        by_address: bool,
    ) -> Result<Option<InboundRing>> {
        let (from, segment, export, by_address) = match &self.brokered {
            // The router made the socket: SO_PEERCRED names the router, not the peer.
            Some(b) => match self.socket.receive_brokered()? {
                Some(segment) => (b.from, segment, b.may_grant, false),
                None => return Ok(None),
            },
            None => match self.socket.receive()? {
                Some((from, segment)) => {
                    let own =
                        || peer_of(self.socket.fd()).is_some_and(|peer| is_own_user(peer.uid));
                    (from, segment, true, by_address && own())
                }
                None => return Ok(None),
            },
        };
        let reader = Reader::new(segment.place());
        let offers = if export { offers(shared, by_address) } else { 0 };
        segment.place().offers().store(offers, Ordering::Relaxed);
        Ok(Some(InboundRing {
            from,
            reader,
            grants: OwnGrants::new(),
            by_address,
            gone: false,
            _segment: segment,
        }))
    }
}
