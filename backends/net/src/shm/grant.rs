//! Grants: memory of regions that another process may write by itself, so that WRITEs between the
//! two are copies and no messages ([`gdrcore_core::roce::peer_write`]).
//!
//! ```text
//! writer (writes the ring)                            owner (reads the ring)
//!   control page: "offers"  <- there is memory to grant
//!   a WRITE with an unknown key   -- request: QPs, key -->  may it WRITE? (`mappable_region`)
//!   maps the descriptor           <-- grant: number, serial, range, descriptor --
//!   "pinned" = number, fence, serial still in the page? copy, "pinned" = 0
//!                                   revokes: serial = 0, fence, waits while "pinned" is the number
//! ```
//!
//! The two words are a Dekker pair ([`gdrcore_core::lease`]): either the writer sees that the grant
//! was revoked, or the owner sees that it is pinned. Messages travel on the link's socket. The
//! writer's process could write granted memory at any time, also against these rules. So memory is
//! granted only if the program shares it ([`gdrcore_core::device::Device::mr_share`]), and only to
//! processes that the link trusts.
//!
//! A grant *by address* (`cma`) has no descriptor: the writer copies to the address in the owner's
//! process, by a system call. Nothing else differs. Both ends must enable it; the owner grants by
//! address only if the request was by address.

use super::cma::{CmaError, PeerProcess};
use super::listener::LinkSocket;
use super::messages::{Grant, GrantRequest, REQUEST, REQUEST_BY_ADDRESS};
use super::ring::{RingMap, GRANTS};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::closing::unmap_later;
use crate::map::{page_size, Map};
use crate::memfd::sealed_len;
use crate::rights::Foreign;
use crate::sys::Fd;
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;
use gdrcore_core::device::MrAttr;
use gdrcore_core::roce::peer_memory::{PeerMemory, Piece};
use std::os::fd::RawFd;

/// Bit of the word "offers": there is memory that the program shares.
const OFFERS_SHARED: u32 = 1;
/// Bit of the word "offers": all other regions are granted by address.
const OFFERS_BY_ADDRESS: u32 = 2;
/// Time until an unanswered request is repeated: the owner may have shared the region since.
const REQUEST_AGAIN_NS: u64 = 50_000_000;
/// Time for which the owner waits for a pinned grant that it revokes. A writer that keeps the grant
/// pinned longer, because it was stopped while it copied, loses its link.
const UNPIN_NS: u64 = 100_000_000;

/// Grants of the other end.
pub struct PeerGrants {
    place: RingMap,
    list: [Option<GrantEntry<MappedGrant>>; GRANTS],
    last: usize,
    /// Grants by address, of regions that are not shared.
    by_address: [Option<GrantEntry<Grant>>; GRANTS],
    /// The other end's process, if grants by address are enabled and the kernel allows them.
    process: Option<PeerProcess>,
    /// Number and serial of the grant by address that was pinned last.
    pinned: (u32, u32),
    /// Bits of "offers" that this end uses.
    accepts: u32,
}

struct GrantEntry<T> {
    request: GrantRequest,
    /// When the grant was requested; 0: not yet.
    requested_ns: u64,
    grant: Option<T>,
}

struct MappedGrant {
    number: u32,
    serial: u32,
    iova: u64,
    length: u64,
    /// The first byte of the mapping in this process.
    base: u64,
    map: ManuallyDrop<Map>,
}

impl Drop for MappedGrant {
    /// This may be the last mapping of a file of any size, so another thread unmaps it.
    fn drop(&mut self) {
        // SAFETY: once, since this is the drop.
        unmap_later(unsafe { ManuallyDrop::take(&mut self.map) });
    }
}

/// The index of a key's entry, if it has a grant. An unknown key gets an entry, to be requested.
fn find_or_add<T>(list: &mut [Option<GrantEntry<T>>], request: GrantRequest) -> Option<usize> {
    let at = list.iter().position(|e| e.as_ref().is_some_and(|e| e.request == request));
    if let Some(i) = at {
        return Some(i).filter(|&i| list[i].as_ref().is_some_and(|e| e.grant.is_some()));
    }
    // A free entry, else one without a grant.
    let free = list.iter().position(|e| e.is_none());
    let free =
        free.or_else(|| list.iter().position(|e| e.as_ref().is_some_and(|e| e.grant.is_none())));
    if let Some(i) = free {
        list[i] = Some(GrantEntry { request, requested_ns: 0, grant: None });
    }
    None
}

/// Drops grants that were revoked, and calls `request` for each entry that must be requested.
/// `name`: the number and serial of a grant.
fn maintain<T>(
    list: &mut [Option<GrantEntry<T>>],
    place: &RingMap,
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

/// Pins a grant. False: it was revoked.
#[inline(always)]
fn try_pin(place: &RingMap, number: u32, serial: u32) -> bool {
    place.pinned().pin(place.grant(number), number, serial)
}

/// The offset of the `len` bytes at `addr` in a region of `length` bytes at `iova`; `None`: a part
/// of them is outside.
#[inline(always)]
fn offset_within(iova: u64, length: u64, addr: u64, len: u64) -> Option<u64> {
    let offset = addr.wrapping_sub(iova);
    (offset <= length && len <= length - offset).then_some(offset)
}

impl PeerGrants {
    pub(super) fn new(place: RingMap, process: Option<PeerProcess>) -> PeerGrants {
        let accepts =
            if process.is_some() { OFFERS_SHARED | OFFERS_BY_ADDRESS } else { OFFERS_SHARED };
        PeerGrants {
            place,
            list: [const { None }; GRANTS],
            last: 0,
            by_address: [const { None }; GRANTS],
            process,
            pinned: (0, 0),
            accepts,
        }
    }

    /// As [`find_or_add`], among grants that are mapped.
    #[cold]
    fn find_or_add_mapped(&mut self, request: GrantRequest) -> Option<usize> {
        if !self.offers_mappable() {
            return None;
        }
        find_or_add(&mut self.list, request)
    }

    #[inline]
    fn offers(&self) -> u32 {
        self.place.offers().load(Ordering::Relaxed)
    }

    /// Whether the other end offers memory that can be mapped.
    #[inline]
    pub(super) fn offers_mappable(&self) -> bool {
        self.offers() & OFFERS_SHARED != 0
    }

    /// Whether the other end offers memory of either kind.
    #[inline]
    pub(super) fn offers_any(&self) -> bool {
        self.offers() & self.accepts != 0
    }

    /// Sends requests and drops grants that were revoked. Cost: a system call for each request, and
    /// one before the first and after the last.
    pub(super) fn maintain(&mut self, now: u64, socket: &mut LinkSocket) {
        socket.allow_descriptor(self.list.iter().flatten().any(|e| e.grant.is_none()));
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

    /// Takes a grant, by address if it has no descriptor. Drops a grant that was not requested or
    /// cannot be mapped.
    pub(super) fn take(&mut self, grant: &Grant, fd: Option<Foreign>) {
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
        // Accepts only memory that its owner cannot truncate.
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
        // The file is memory and mapped, so this close is not its last one.
        drop(fd.trusted());
        let base = map.as_ptr().expose_provenance() as u64 + into;
        let map = ManuallyDrop::new(map);
        let Grant { number, serial, iova, length, .. } = *grant;
        entry.grant = Some(MappedGrant { number, serial, iova, length, base, map });
        // An earlier long WRITE may have requested the other kind.
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
            self.last = self.find_or_add_mapped(request)?;
        }
        let held = self.list[self.last].as_ref()?.grant.as_ref()?;
        let offset = offset_within(held.iova, held.length, addr, len)?;
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
        let i = find_or_add(&mut self.by_address, GrantRequest { from_qpn, qpn, rkey })?;
        let grant = self.by_address[i].as_ref()?.grant?;
        let offset = offset_within(grant.iova, grant.length, addr, len)?;
        self.pinned = (grant.number, grant.serial);
        try_pin(&self.place, grant.number, grant.serial).then(|| grant.offset.wrapping_add(offset))
    }

    fn copy_remote(&mut self, pieces: &[Piece], to: u64) -> bool {
        let Some(process) = &self.process else { return false };
        let (number, serial) = self.pinned;
        let outcome = process.write(pieces, to, (self.place.grant(number), serial));
        if outcome == Err(CmaError::Never) {
            // From now on only mapped grants are requested.
            (self.process, self.accepts) = (None, OFFERS_SHARED);
        }
        outcome.is_ok()
    }
}

/// Grants of this end's regions to the other end.
pub(super) struct OwnGrants {
    list: [Option<(Grant, MrAttr)>; GRANTS],
    serial: u32,
}

impl OwnGrants {
    pub(super) const fn new() -> OwnGrants {
        OwnGrants { list: [None; GRANTS], serial: 0 }
    }

    /// Grants a region: `offset` bytes into the memory of a descriptor, or by its address. A grant
    /// that cannot be sent is not made. Returns false if the other end keeps an earlier grant of
    /// the same key pinned; then the link must be closed.
    pub(super) fn export(
        &mut self,
        request: &GrantRequest,
        region: &MrAttr,
        memory: Option<(RawFd, u64)>,
        place: &RingMap,
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

    /// Revokes every grant for which `is_valid` is false. The last argument of `is_valid`: the
    /// grant is by address. Returns false if the other end keeps a grant pinned; then the link must
    /// be closed.
    pub(super) fn revoke_invalid(
        &mut self,
        place: &RingMap,
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

    /// Ends all grants of a link that is closed, without a wait: the other end has ended, or has
    /// kept a grant pinned for too long.
    pub(super) fn end(&mut self, place: &RingMap) {
        for (i, grant) in self.list.iter_mut().enumerate() {
            if grant.take().is_some() {
                place.grant(i as u32).forget();
            }
        }
    }

    /// Revokes a grant. Returns false if the writer did not unpin it in time.
    fn revoke(&mut self, i: usize, place: &RingMap) -> bool {
        place.grant(i as u32).revoke();
        let inside = || place.pinned().is_pinned(i as u32);
        if !inside() {
            return true;
        }
        let end = now_ns() + UNPIN_NS;
        while inside() {
            // The writer may need this very core.
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

/// The word "offers" of a device that shares these regions and grants others by address or not.
pub(super) fn offers(shared: &[Option<SharedRegion>], by_address: bool) -> u32 {
    let shares = if shared.iter().any(Option::is_some) { OFFERS_SHARED } else { 0 };
    shares | if by_address { OFFERS_BY_ADDRESS } else { 0 }
}

pub(super) fn shared_region(shared: &[Option<SharedRegion>], rkey: u32) -> Option<&SharedRegion> {
    shared.iter().flatten().find(|s| s.rkey == rkey)
}

/// A request for a grant, as a link received it.
#[derive(Clone, Copy, Debug)]
pub struct PeerRequest {
    /// The index of the link.
    pub(super) inbound: u16,
    /// Address of the requester.
    pub from: Endpoint,
    /// Queue pairs and key.
    pub request: GrantRequest,
    pub(super) by_address: bool,
}

#[cfg(test)]
mod tests;
