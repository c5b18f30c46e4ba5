//! Links that a router makes ([`crate::via`]). The router hands each end of a socket to a process
//! and takes no further part. It names the other end. Memory is never granted by address over such
//! a link, and between tenants not at all.

use super::super::listener::{connect_brokered, LinkSocket};
use super::tx::LinkSlot;
use super::{Brokered, Inbound, ShmBounds, ShmPort, LINK_RING_BYTES};
use crate::addr::Endpoint;
use crate::rights::Foreign;
use crate::wait::Waiter;
use gdrcore_core::error::Result;

/// The other end of a link that a router made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The other end's address.
    pub(crate) at: Endpoint,
    /// The number of the other end's session.
    pub(crate) session: u32,
    pub(crate) may_grant: bool,
}

impl Peer {
    fn brokered(&self) -> Brokered {
        Brokered { from: self.at, peer: self.session, may_grant: self.may_grant }
    }
}

impl ShmPort {
    /// A port whose links all come from a router.
    ///
    /// # Errors
    /// As [`ShmPort::open`].
    ///
    /// # Safety
    /// As [`ShmPort::open`].
    pub(crate) unsafe fn open_brokered(
        local: &Endpoint,
        bounds: &ShmBounds,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<ShmPort> {
        // SAFETY: the caller's promise.
        unsafe { ShmPort::carve(local, bounds, memory, bytes) }
    }

    /// The link to the owner of a block at an address, if there is one.
    pub(crate) fn find_link(&mut self, to: &Endpoint, block: u16) -> Option<u16> {
        match self.place_for(to, Some(block)) {
            Ok(LinkSlot::Linked(link)) => Some(link),
            _ => None,
        }
    }

    /// Makes a link to the owner of a block from a socket of the router; an existing link is kept.
    ///
    /// # Errors
    /// As [`ShmPort::connect`].
    pub(crate) fn adopt(
        &mut self,
        to: &Peer,
        block: u16,
        fd: Foreign,
        waiter: &Waiter,
    ) -> Result<u16> {
        self.link(&to.at, Some(block), Some(to.brokered()), waiter, || {
            connect_brokered(fd, LINK_RING_BYTES)
        })
    }

    /// Takes a socket over which another session will send its ring. Each session has one socket:
    /// an earlier one is closed, so that no session takes all places. Without a free place the
    /// socket is dropped, which the other end takes as a lost link.
    pub(crate) fn admit(&mut self, now: u64, from: &Peer, fd: Foreign, waiter: &Waiter) {
        self.close_session(from.session, false);
        let Some(free) = self.inbound.iter().position(Option::is_none) else { return };
        let socket = LinkSocket::brokered(fd);
        if waiter.add_socket(socket.fd()).is_ok() {
            self.inbound[free] = Some(Inbound {
                socket,
                since_ns: now,
                link: None,
                brokered: Some(from.brokered()),
            });
        }
    }

    /// Ends the links from a session, and, if `both`, the links to it.
    pub(crate) fn close_session(&mut self, peer: u32, both: bool) {
        let of_peer = |b: &Option<Brokered>| b.is_some_and(|b| b.peer == peer);
        for i in 0..self.inbound.len() {
            if self.inbound[i].as_ref().is_some_and(|c| of_peer(&c.brokered)) {
                self.close_inbound(i);
            }
            if both && self.out[i].as_ref().is_some_and(|o| of_peer(&o.brokered)) {
                self.close_outbound(i);
            }
        }
    }
}

#[cfg(test)]
mod tests;
