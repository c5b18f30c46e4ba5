//! The port's half of [`loan`](super::super::loan): what is shared, what is asked for, what is
//! taken back.

use super::super::loan::{lends, shared_with, Asked, Shared};
use super::super::messages::Ask;
use super::{Caller, ShmPort};
use crate::addr::Endpoint;
use crate::sys::Fd;
use core::sync::atomic::Ordering;
use gdrcore_core::device::MrAttr;
use gdrcore_core::error::{Error, Result};

impl ShmPort {
    /// From here on the region with this key may be lent: its memory begins `offset` bytes into
    /// what `fd` stands for, which is duplicated.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: [`SHARED`](super::SHARED) regions are. [`Error::Os`]: no such
    /// descriptor, or none left.
    pub fn share(&mut self, rkey: u32, fd: i32, offset: u64) -> Result<()> {
        let place = self.shared.iter_mut().find(|s| s.is_none()).ok_or(Error::NoMemory)?;
        // SAFETY: no pointers.
        let fd = Fd::from_call(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
        *place = Some(Shared { rkey, fd, offset });
        self.say_lends();
        Ok(())
    }

    /// The region with this key is lent no more; its loans end with the next
    /// [`ShmPort::check_loans`].
    pub fn unshare(&mut self, rkey: u32) {
        if let Some(place) =
            self.shared.iter_mut().find(|s| s.as_ref().is_some_and(|s| s.rkey == rkey))
        {
            *place = None;
            self.say_lends();
        }
    }

    /// Whether the memory of the region with this key is shared.
    pub fn is_shared(&self, rkey: u32) -> bool {
        shared_with(&self.shared, rkey).is_some()
    }

    fn say_lends(&mut self) {
        for caller in self.callers.iter().flatten() {
            if let Some(link) =
                caller.link.as_ref().filter(|_| caller.brokered.is_none_or(|b| b.loans))
            {
                link.reader
                    .place()
                    .lends()
                    .store(lends(&self.shared, link.by_address), Ordering::Relaxed);
            }
        }
    }

    /// The next loan that somebody asks for.
    pub fn take_asked(&mut self) -> Option<Asked> {
        self.asked.iter_mut().find_map(Option::take)
    }

    /// Lends a region to who asked for it, if its memory is shared, or may be lent by address, and
    /// the link is still there.
    pub fn lend(&mut self, asked: &Asked, region: &MrAttr) {
        let memory =
            shared_with(&self.shared, region.rkey).map(|shared| (shared.fd.raw(), shared.offset));
        let Some(Some(Caller { link: Some(link), bell, .. })) =
            self.callers.get_mut(usize::from(asked.caller))
        else {
            return;
        };
        let place = link.reader.place();
        // What is shared is mapped, all else by address; neither is lent to who asks for the other.
        if link.from != asked.from || asked.far != memory.is_none() || asked.far && !link.by_address
        {
            return;
        }
        if !link.loans.lend(&asked.ask, region, memory, place, bell) {
            self.counters.broken += 1;
            self.hang_up(asked.caller.into());
        }
    }

    /// Takes back every loan of which `stands` says no; from then on nobody writes there. May wait
    /// for who is writing just now, some microseconds; who is stuck there loses the link.
    pub fn check_loans(&mut self, mut stands: impl FnMut(&Endpoint, &Ask, &MrAttr) -> bool) {
        let mut k = 0;
        while let Some(i) = self.open[..self.open_len].get(k).map(|&i| usize::from(i)) {
            k += 1;
            let Some(Caller { link: Some(link), .. }) = &mut self.callers[i] else { continue };
            let shared = &self.shared;
            let from = link.from;
            let left = link.loans.check(link.reader.place(), |ask, region, far| {
                // One by address makes room for a better one.
                shared_with(shared, region.rkey).is_some() != far && stands(&from, ask, region)
            });
            if !left {
                self.counters.broken += 1;
                self.hang_up(i);
                k -= 1;
            }
        }
    }
}
