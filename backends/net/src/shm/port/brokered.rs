//! Links that a router makes ([`crate::via`]): it hands either end of a socket to a process, and
//! then has no part in them. Who is at the other end is the router's word; all else is as ever, but
//! that memory is never lent by address, and between tenants not at all.

use super::super::door::{greet_brokered, Bell};
use super::super::loan::Borrowed;
use super::super::ring::Writer;
use super::{Caller, Out, Place, ShmPort, RING};
use crate::addr::Endpoint;
use crate::sys::Fd;
use crate::wait::Waiter;
use gdrcore_core::error::Result;
use std::os::fd::{IntoRawFd, OwnedFd};

/// What the router said of the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brokered {
    /// Its address.
    pub(super) from: Endpoint,
    /// The number of its session.
    peer: u32,
    /// Memory may be lent.
    pub(super) loans: bool,
}

/// The other end of a link that a router made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Its address.
    pub(crate) at: Endpoint,
    /// The number of its session.
    pub(crate) session: u32,
    /// Memory may be lent over the link.
    pub(crate) loans: bool,
}

impl Peer {
    fn brokered(&self) -> Brokered {
        Brokered { from: self.at, peer: self.session, loans: self.loans }
    }
}

fn own(fd: OwnedFd) -> Result<Fd> {
    Fd::from_call(fd.into_raw_fd())
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
        memory: *mut u8,
        bytes: usize,
    ) -> Result<ShmPort> {
        // SAFETY: the caller's promise.
        unsafe { ShmPort::carve(local, 0, false, memory, bytes) }
    }

    /// The link to the owner of a block at an address that stands.
    pub(crate) fn linked(&mut self, to: &Endpoint, block: u16) -> Option<u16> {
        match self.place_for(to, Some(block)) {
            Ok(Place::Linked(link)) => Some(link),
            _ => None,
        }
    }

    /// Makes a link to the owner of a block out of a socket that the router gave; one that stands
    /// is kept.
    ///
    /// # Errors
    /// As [`ShmPort::connect`].
    pub(crate) fn adopt(
        &mut self,
        to: &Peer,
        block: u16,
        fd: OwnedFd,
        waiter: &Waiter,
    ) -> Result<u16> {
        let i = match self.place_for(&to.at, Some(block))? {
            Place::Linked(link) => return Ok(link),
            Place::Free(i) => i,
        };
        let (bell, segment) = greet_brokered(own(fd)?, RING)?;
        waiter.add_socket(bell.fd())?;
        let (writer, borrowed) =
            (Writer::new(segment.place()), Borrowed::new(segment.place(), None));
        let brokered = Some(to.brokered());
        let block = Some(block);
        self.out[i] = Some(Out {
            to: to.at,
            block,
            bell,
            writer,
            borrowed,
            gone: false,
            brokered,
            _segment: segment,
        });
        Ok(i as u16)
    }

    /// Takes a socket over which another session will bring its ring. Each has one: an earlier one
    /// of the same session is hung up on, so that no session keeps others out. Dropped where there
    /// is no place for it, which the other end takes as a lost link.
    pub(crate) fn admit(&mut self, now: u64, from: &Peer, fd: OwnedFd, waiter: &Waiter) {
        self.part_with(from.session, false);
        let Some(free) = self.callers.iter().position(Option::is_none) else { return };
        let Ok(fd) = own(fd) else { return };
        let bell = Bell::brokered(fd);
        if waiter.add_socket(bell.fd()).is_ok() {
            self.callers[free] =
                Some(Caller { bell, since_ns: now, link: None, brokered: Some(from.brokered()) });
        }
    }

    /// Ends the links from a session, and where `both` those to it.
    pub(crate) fn part_with(&mut self, peer: u32, both: bool) {
        let of_peer = |b: &Option<Brokered>| b.is_some_and(|b| b.peer == peer);
        for i in 0..self.callers.len() {
            if self.callers[i].as_ref().is_some_and(|c| of_peer(&c.brokered)) {
                self.hang_up(i);
            }
            if both && self.out[i].as_ref().is_some_and(|o| of_peer(&o.brokered)) {
                self.lose(i);
            }
        }
    }
}

#[cfg(test)]
mod tests;
