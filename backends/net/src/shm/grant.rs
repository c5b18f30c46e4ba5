//! Memory of regions that one process lends to another, so that WRITEs between them are copies and
//! no messages ([`gdrcore_core::roce::peer_write`]).
//!
//! ```text
//! borrower (writes the ring)                          lender (reads the ring)
//!                                     control page: "lends"  <- it has memory to lend at all
//! a WRITE with an unknown key   -- ask: QPs, key -->   are its WRITEs all allowed?
//!                                                      (`Transport::mappable`)
//! maps the descriptor           <-- grant: number, serial, range, descriptor --
//! "entered" = number, fence, is its serial in the page? copy, "entered" = 0
//!                                                      takes back: serial = 0, fence,
//!                                                      waits while "entered" is the number
//! ```
//!
//! The two words are a Dekker pair ([`gdrcore_core::lease`]): either the borrower sees that the
//! grant has ended, or the lender sees that it is being used. Messages travel on the link's socket,
//! beside the wakes. What is lent may be written by the borrower at any time, also against these
//! rules: memory is lent only if the program shares it
//! ([`gdrcore_core::device::Device::mr_share`]), and only to processes that the link trusts.
//!
//! A grant *by address* ([`super::reach`]) has no descriptor: the borrower writes the lender's
//! memory as it lies there, by a call. All else is the same. Both ends have chosen it: the lender
//! says so beside "lends", and only who is asked so answers so.

use super::cma::{CmaError, PeerProcess};
use super::listener::LinkSocket;
use super::messages::{Grant, GrantRequest, REQUEST, REQUEST_BY_ADDRESS};
use super::ring::{Place, GRANTS};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::map::{page_size, Map};
use crate::sys::{sealed_len, Fd};
use core::sync::atomic::Ordering;
use gdrcore_core::device::MrAttr;
use gdrcore_core::roce::peer_memory::{PeerMemory, Piece};
use std::os::fd::RawFd;

/// In the word "lends": there is memory that the program shares.
const OFFERS_SHARED: u32 = 1;
/// In the same: all other regions are lent by address.
const OFFERS_BY_ADDRESS: u32 = 2;
/// What was asked for in vain is asked for again after this time: the lender may have shared it
/// since.
const REQUEST_AGAIN_NS: u64 = 50_000_000;
/// A borrower that is inside when a grant ends is waited for this long. One that has been stopped
/// there loses its link.
const UNPIN_NS: u64 = 100_000_000;

/// What the other end of a link has lent to us.
pub struct PeerGrants {
    place: Place,
    list: [Option<Entry<MappedGrant>>; GRANTS],
    last: usize,
    /// By address, what is not shared.
    by_address: [Option<Entry<Grant>>; GRANTS],
    /// The other end's process, if grants by address are wanted and it can be reached.
    process: Option<PeerProcess>,
    /// What of "lends" is of use to us.
    accepts: u32,
}

struct Entry<T> {
    request: GrantRequest,
    /// When it was asked for; 0: not yet.
    requested_ns: u64,
    grant: Option<T>,
}

/// A grant, mapped.
struct MappedGrant {
    number: u32,
    serial: u32,
    iova: u64,
    length: u64,
    /// Where its first byte lies here.
    base: u64,
    _map: Map,
}

/// The entry of a key, if it has a grant; one that is unknown is noted, to be asked for.
fn find<T>(list: &mut [Option<Entry<T>>], request: GrantRequest) -> Option<usize> {
    let at = list.iter().position(|e| e.as_ref().is_some_and(|e| e.request == request));
    if let Some(i) = at {
        return Some(i).filter(|&i| list[i].as_ref().is_some_and(|e| e.grant.is_some()));
    }
    // A place that nothing is borrowed with, the emptiest first.
    let free = list.iter().position(|e| e.is_none());
    let free =
        free.or_else(|| list.iter().position(|e| e.as_ref().is_some_and(|e| e.grant.is_none())));
    if let Some(i) = free {
        list[i] = Some(Entry { request, requested_ns: 0, grant: None });
    }
    None
}

/// Gives up what was taken back, and gives `ask` what is to be asked for. `name`: the number and
/// serial of a grant.
fn maintain<T>(
    list: &mut [Option<Entry<T>>],
    place: &Place,
    now: u64,
    name: impl Fn(&T) -> (u32, u32),
    request: impl Fn(&GrantRequest),
) {
    for e in list {
        let Some(entry) = e else { continue };
        match entry.grant.as_ref().map(&name) {
            Some((number, serial)) if place.grant(number).is(serial) => {}
            Some(_) => *e = None,
            None if entry.requested_ns == 0
                || now.saturating_sub(entry.requested_ns) > REQUEST_AGAIN_NS =>
            {
                entry.requested_ns = now.max(1);
                request(&entry.request);
            }
            None => {}
        }
    }
}

/// Enters a grant. False: it has been taken back.
#[inline(always)]
fn try_pin(place: &Place, number: u32, serial: u32) -> bool {
    place.pinned().pin(place.grant(number), number, serial)
}

/// Where in a region `len` bytes at `addr` lie.
#[inline(always)]
fn within(iova: u64, length: u64, addr: u64, len: u64) -> Option<u64> {
    let offset = addr.wrapping_sub(iova);
    (offset <= length && len <= length - offset).then_some(offset)
}

impl PeerGrants {
    pub(super) fn new(place: Place, process: Option<PeerProcess>) -> PeerGrants {
        let accepts =
            if process.is_some() { OFFERS_SHARED | OFFERS_BY_ADDRESS } else { OFFERS_SHARED };
        PeerGrants {
            place,
            list: [const { None }; GRANTS],
            last: 0,
            by_address: [const { None }; GRANTS],
            process,
            accepts,
        }
    }

    /// [`find`] of what can be mapped.
    #[cold]
    fn find_mapped(&mut self, request: GrantRequest) -> Option<usize> {
        if !self.offers_mappable() {
            return None;
        }
        find(&mut self.list, request)
    }

    #[inline]
    fn offers(&self) -> u32 {
        self.place.offers().load(Ordering::Relaxed)
    }

    /// Whether the other end has memory to lend that can be mapped.
    #[inline]
    pub(super) fn offers_mappable(&self) -> bool {
        self.offers() & OFFERS_SHARED != 0
    }

    /// The same, or memory that we can reach by its address.
    #[inline]
    pub(super) fn offers_any(&self) -> bool {
        self.offers() & self.accepts != 0
    }

    /// Asks for what is wanted and gives up what was taken back. System calls, where there is
    /// something to do.
    pub(super) fn maintain(&mut self, now: u64, socket: &LinkSocket) {
        let say = |head, request: &GrantRequest| {
            socket.send(&request.emit(head), None);
        };
        maintain(
            &mut self.list,
            &self.place,
            now,
            |held| (held.number, held.serial),
            |request| say(REQUEST, request),
        );
        if self.process.is_some() {
            maintain(
                &mut self.by_address,
                &self.place,
                now,
                |grant| (grant.number, grant.serial),
                |request| say(REQUEST_BY_ADDRESS, request),
            );
        }
    }

    /// A grant has come, by address where there is no descriptor. What was not asked for, or cannot
    /// be mapped, is let go.
    pub(super) fn take(&mut self, grant: &Grant, fd: Option<&Fd>) {
        if !grant.is_sound() || grant.by_address != fd.is_none() {
            return;
        }
        let Some(fd) = fd else {
            let requested = self
                .by_address
                .iter_mut()
                .flatten()
                .find(|e| e.request == grant.request && e.grant.is_none());
            if let Some(entry) = requested {
                entry.grant = Some(*grant);
            }
            return;
        };
        let Some(entry) = self
            .list
            .iter_mut()
            .flatten()
            .find(|e| e.request == grant.request && e.grant.is_none())
        else {
            return;
        };
        // Memory that nobody can take away.
        let (end, len) =
            (grant.offset.checked_add(grant.length), sealed_len(fd.raw(), libc::F_SEAL_SHRINK));
        if len.is_none() || end.is_none_or(|end| Some(end) > len) {
            return;
        }
        let into = grant.offset % page_size() as u64;
        let Some(bytes) = grant.length.checked_add(into).and_then(|n| usize::try_from(n).ok())
        else {
            return;
        };
        let Ok(map) = Map::shared(fd.raw(), grant.offset - into, bytes, true) else { return };
        let base = map.as_ptr().expose_provenance() as u64 + into;
        let Grant { number, serial, iova, length, .. } = *grant;
        entry.grant = Some(MappedGrant { number, serial, iova, length, base, _map: map });
        // A long WRITE may have come before it, and have asked for the other kind.
        if let Some(by_address) = self
            .by_address
            .iter_mut()
            .find(|e| e.as_ref().is_some_and(|e| e.request == grant.request))
        {
            *by_address = None;
        }
    }
}

impl PeerMemory for PeerGrants {
    #[inline(always)]
    fn pin(&mut self, from_qpn: u32, qpn: u32, rkey: u32, addr: u64, len: u64) -> Option<u64> {
        let request = GrantRequest { from_qpn, qpn, rkey };
        if !self.list[self.last].as_ref().is_some_and(|e| e.request == request && e.grant.is_some())
        {
            self.last = self.find_mapped(request)?;
        }
        let held = self.list[self.last].as_ref()?.grant.as_ref()?;
        let offset = within(held.iova, held.length, addr, len)?;
        try_pin(&self.place, held.number, held.serial).then(|| held.base + offset)
    }

    #[inline(always)]
    fn unpin(&mut self) {
        self.place.pinned().unpin();
    }

    fn pin_remote(
        &mut self,
        from_qpn: u32,
        qpn: u32,
        rkey: u32,
        addr: u64,
        len: u64,
    ) -> Option<u64> {
        if self.process.is_none() || self.offers() & OFFERS_BY_ADDRESS == 0 {
            return None;
        }
        let i = find(&mut self.by_address, GrantRequest { from_qpn, qpn, rkey })?;
        let grant = self.by_address[i].as_ref()?.grant?;
        let offset = within(grant.iova, grant.length, addr, len)?;
        try_pin(&self.place, grant.number, grant.serial).then(|| grant.offset.wrapping_add(offset))
    }

    fn copy_remote(&mut self, pieces: &[Piece], to: u64) -> bool {
        let Some(process) = &self.process else { return false };
        let outcome = process.write(pieces, to);
        if outcome == Err(CmaError::Never) {
            // From here on only what can be mapped is asked for.
            (self.process, self.accepts) = (None, OFFERS_SHARED);
        }
        outcome.is_ok()
    }
}

/// What we have lent to the other end of a link.
pub(super) struct OwnGrants {
    list: [Option<(Grant, MrAttr)>; GRANTS],
    serial: u32,
}

impl OwnGrants {
    pub(super) const fn new() -> OwnGrants {
        OwnGrants { list: [None; GRANTS], serial: 0 }
    }

    /// Lends a region, `offset` bytes into what `fd` stands for, or by its address. One that cannot
    /// be told of is not lent. False: the other end is stuck inside of the grant that it asks for
    /// again; the link is to be given up.
    pub(super) fn export(
        &mut self,
        request: &GrantRequest,
        region: &MrAttr,
        memory: Option<(RawFd, u64)>,
        place: &Place,
        socket: &LinkSocket,
    ) -> bool {
        let again =
            self.list.iter().position(|l| l.as_ref().is_some_and(|(l, _)| l.request == *request));
        if let Some(i) = again {
            self.list[i] = None;
            if !self.revoke(i, place) {
                return false;
            }
        }
        let Some(i) = again.or_else(|| self.list.iter().position(Option::is_none)) else {
            return true;
        };
        self.serial = self.serial.wrapping_add(1).max(1);
        let (number, serial, iova, length) = (i as u32, self.serial, region.iova, region.length);
        let (by_address, offset) =
            memory.map_or((true, region.addr), |(_, offset)| (false, offset));
        let grant = Grant { request: *request, number, serial, iova, length, offset, by_address };
        place.grant(number).activate(serial);
        if socket.send(&grant.emit(), memory.map(|(fd, _)| fd)) {
            self.list[i] = Some((grant, *region));
        } else {
            place.grant(number).forget();
        }
        true
    }

    /// Takes back every grant of which `stands` says no; it is told whether the grant is by address.
    /// False: the other end is stuck inside of one; the link is to be given up.
    pub(super) fn check(
        &mut self,
        place: &Place,
        mut is_valid: impl FnMut(&GrantRequest, &MrAttr, bool) -> bool,
    ) -> bool {
        for i in 0..GRANTS {
            let Some((grant, region)) = &self.list[i] else { continue };
            if !is_valid(&grant.request, region, grant.by_address) {
                let left = self.revoke(i, place);
                self.list[i] = None;
                if !left {
                    return false;
                }
            }
        }
        true
    }

    /// Ends all grants of a link that is given up, and waits for nobody: the other end is gone, or
    /// is not to be waited for.
    pub(super) fn end(&mut self, place: &Place) {
        for (i, grant) in self.list.iter_mut().enumerate() {
            if grant.take().is_some() {
                place.grant(i as u32).forget();
            }
        }
    }

    /// Ends a grant. False: the borrower has not left it in time.
    fn revoke(&mut self, i: usize, place: &Place) -> bool {
        place.grant(i as u32).revoke();
        let inside = || place.pinned().is_pinned(i as u32);
        if !inside() {
            return true;
        }
        let end = now_ns() + UNPIN_NS;
        while inside() {
            // It may need this very core to leave.
            std::thread::yield_now();
            if now_ns() > end {
                return false;
            }
        }
        true
    }
}

/// A region whose memory the program shares.
pub(super) struct SharedRegion {
    pub(super) rkey: u32,
    pub(super) fd: Fd,
    pub(super) offset: u64,
}

/// What the word "lends" of a link is, of a device that shares these, and lends whatever it has by
/// address.
pub(super) fn offers(shared: &[Option<SharedRegion>], by_address: bool) -> u32 {
    let shares = if shared.iter().any(Option::is_some) { OFFERS_SHARED } else { 0 };
    shares | if by_address { OFFERS_BY_ADDRESS } else { 0 }
}

/// The shared region with a key.
pub(super) fn shared_region(shared: &[Option<SharedRegion>], rkey: u32) -> Option<&SharedRegion> {
    shared.iter().flatten().find(|s| s.rkey == rkey)
}

/// Somebody asks for a grant.
#[derive(Clone, Copy, Debug)]
pub struct PeerRequest {
    /// Who: the sender of a link.
    pub(super) inbound: u16,
    /// Its address.
    pub from: Endpoint,
    /// For what.
    pub request: GrantRequest,
    /// By address.
    pub(super) by_address: bool,
}

#[cfg(test)]
mod tests;
