//! Grants of the port's regions: marks shared regions, grants them on request, revokes them.

use super::super::grant::{offers, shared_region, PeerRequest, SharedRegion};
use super::super::messages::GrantRequest;
use super::{Inbound, ShmPort};
use crate::addr::Endpoint;
use crate::sys::Fd;
use core::sync::atomic::Ordering;
use gdrcore_core::device::MrAttr;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;

impl ShmPort {
    /// Marks the region with this key as shared: its memory begins `offset` bytes into that of
    /// `fd`, which is duplicated.
    ///
    /// # Errors
    /// `NoMemory`: [`SHARED`](super::SHARED) regions are shared already. `Os`: no
    /// such descriptor, or none left.
    pub fn share(&mut self, rkey: u32, fd: i32, offset: u64) -> Result<()> {
        let place = self.shared.iter_mut().find(|s| s.is_none()).ok_or_else(|| {
            refuse!(NoMemory, "mr: {} regions are shared, the most of a device", super::SHARED)
        })?;
        *place = Some(SharedRegion { rkey, fd: Fd::copy_of(fd)?, offset });
        self.publish_offers();
        Ok(())
    }

    /// Marks the regions as shared that another engine's port has marked.
    ///
    /// # Errors
    /// As [`ShmPort::share`].
    pub fn share_all(&mut self, of: &ShmPort) -> Result<()> {
        of.shared.iter().flatten().try_for_each(|s| self.share(s.rkey, s.fd.raw(), s.offset))
    }

    /// Marks the region with this key as no longer shared; its grants end with the next
    /// [`ShmPort::check_grants`].
    pub fn unshare(&mut self, rkey: u32) {
        if let Some(place) =
            self.shared.iter_mut().find(|s| s.as_ref().is_some_and(|s| s.rkey == rkey))
        {
            *place = None;
            self.publish_offers();
        }
    }

    /// Whether the memory of the region with this key is shared.
    pub fn is_shared(&self, rkey: u32) -> bool {
        shared_region(&self.shared, rkey).is_some()
    }

    fn publish_offers(&mut self) {
        for inbound in self.inbound.iter().flatten() {
            if let Some(link) =
                inbound.link.as_ref().filter(|_| inbound.brokered.is_none_or(|b| b.may_grant))
            {
                link.reader
                    .place()
                    .offers()
                    .store(offers(&self.shared, link.by_address), Ordering::Relaxed);
            }
        }
    }

    /// The next request for a grant.
    pub fn take_request(&mut self) -> Option<PeerRequest> {
        self.requested.iter_mut().find_map(Option::take)
    }

    /// Grants a region to the link that requested it, if its memory is shared or may be written by
    /// address.
    pub fn export(&mut self, requested: &PeerRequest, region: &MrAttr) {
        let memory =
            shared_region(&self.shared, region.rkey).map(|shared| (shared.fd.raw(), shared.offset));
        let Some(Some(Inbound { link: Some(link), socket, .. })) =
            self.inbound.get_mut(usize::from(requested.inbound))
        else {
            return;
        };
        let place = link.reader.place();
        // A shared region is mapped, any other is written by address. A request for the other kind
        // is dropped.
        if link.from != requested.from
            || requested.by_address != memory.is_none()
            || requested.by_address && !link.by_address
        {
            return;
        }
        if !link.grants.export(&requested.request, region, memory, place, socket) {
            self.counters.broken += 1;
            self.close_inbound(requested.inbound.into());
        }
    }

    /// Revokes every grant for which `is_valid` is false; no peer writes there afterwards. Waits
    /// for a peer that has the grant pinned, some microseconds; a peer that keeps it pinned loses
    /// its link.
    pub fn check_grants(
        &mut self,
        mut is_valid: impl FnMut(&Endpoint, &GrantRequest, &MrAttr) -> bool,
    ) {
        let mut k = 0;
        while let Some(i) = self.open[..self.open_len].get(k).map(|&i| usize::from(i)) {
            k += 1;
            let Some(Inbound { link: Some(link), .. }) = &mut self.inbound[i] else { continue };
            let shared = &self.shared;
            let from = link.from;
            let left =
                link.grants.revoke_invalid(link.reader.place(), |request, region, by_address| {
                    // A grant by address ends as soon as one by descriptor is possible.
                    shared_region(shared, region.rkey).is_some() != by_address
                        && is_valid(&from, request, region)
                });
            if !left {
                self.counters.broken += 1;
                self.close_inbound(i);
                k -= 1;
            }
        }
    }
}
