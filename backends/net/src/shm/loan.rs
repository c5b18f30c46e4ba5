//! Memory of regions that one process lends to another, so that WRITEs between them are copies and
//! no messages ([`gdrcore_core::roce::peer_write`]).
//!
//! ```text
//! borrower (writes the ring)                          lender (reads the ring)
//!                                     control page: "lends"  <- it has memory to lend at all
//! a WRITE with an unknown key   -- ask: QPs, key -->   are its WRITEs all allowed?
//!                                                      (`Transport::mappable`)
//! maps the descriptor           <-- loan: number, serial, range, descriptor --
//! "entered" = number, fence, is its serial in the page? copy, "entered" = 0
//!                                                      takes back: serial = 0, fence,
//!                                                      waits while "entered" is the number
//! ```
//!
//! The two words are a Dekker pair ([`gdrcore_core::lease`]): either the borrower sees that the
//! loan has ended, or the lender sees that it is being used. Messages travel on the link's socket,
//! beside the bells. What is lent may be written by the borrower at any time, also against these
//! rules: memory is lent only if the program shares it
//! ([`gdrcore_core::device::Device::mr_share`]), and only to processes that the link trusts.
//!
//! A loan *by address* ([`super::reach`]) has no descriptor: the borrower writes the lender's
//! memory as it lies there, by a call. All else is the same. Both ends have chosen it: the lender
//! says so beside "lends", and only who is asked so answers so.

use super::door::Bell;
use super::messages::{Ask, Loan, ASK, ASK_FAR};
use super::reach::{Reach, Unreached};
use super::ring::{Place, LOANS};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::map::{page_size, Map};
use crate::sys::{sealed_len, Fd};
use core::sync::atomic::Ordering;
use gdrcore_core::device::MrAttr;
use gdrcore_core::roce::peer_memory::{PeerMemory, Piece};
use std::os::fd::RawFd;

/// In the word "lends": there is memory that the program shares.
const SHARES: u32 = 1;
/// In the same: all other regions are lent by address.
const BY_ADDRESS: u32 = 2;
/// What was asked for in vain is asked for again after this time: the lender may have shared it
/// since.
const ASK_AGAIN_NS: u64 = 50_000_000;
/// A borrower that is inside when a loan ends is waited for this long. One that has been stopped
/// there loses its link.
const LEAVE_NS: u64 = 100_000_000;

/// What the other end of a link has lent to us.
pub struct Borrowed {
    place: Place,
    list: [Option<Entry<Held>>; LOANS],
    last: usize,
    /// By address, what is not shared.
    far: [Option<Entry<Loan>>; LOANS],
    /// The other end's process, if loans by address are wanted and it can be reached.
    reach: Option<Reach>,
    /// What of "lends" is of use to us.
    wants: u32,
}

struct Entry<T> {
    ask: Ask,
    /// When it was asked for; 0: not yet.
    asked_ns: u64,
    loan: Option<T>,
}

/// A loan, mapped.
struct Held {
    number: u32,
    serial: u32,
    iova: u64,
    length: u64,
    /// Where its first byte lies here.
    base: u64,
    _map: Map,
}

/// The entry of a key, if it has a loan; one that is unknown is noted, to be asked for.
fn find<T>(list: &mut [Option<Entry<T>>], ask: Ask) -> Option<usize> {
    let at = list.iter().position(|e| e.as_ref().is_some_and(|e| e.ask == ask));
    if let Some(i) = at {
        return Some(i).filter(|&i| list[i].as_ref().is_some_and(|e| e.loan.is_some()));
    }
    // A place that nothing is borrowed with, the emptiest first.
    let free = list.iter().position(|e| e.is_none());
    let free =
        free.or_else(|| list.iter().position(|e| e.as_ref().is_some_and(|e| e.loan.is_none())));
    if let Some(i) = free {
        list[i] = Some(Entry { ask, asked_ns: 0, loan: None });
    }
    None
}

/// Gives up what was taken back, and gives `ask` what is to be asked for. `name`: the number and
/// serial of a loan.
fn tend<T>(
    list: &mut [Option<Entry<T>>],
    place: &Place,
    now: u64,
    name: impl Fn(&T) -> (u32, u32),
    ask: impl Fn(&Ask),
) {
    for e in list {
        let Some(entry) = e else { continue };
        match entry.loan.as_ref().map(&name) {
            Some((number, serial)) if place.loan(number).is(serial) => {}
            Some(_) => *e = None,
            None if entry.asked_ns == 0 || now.saturating_sub(entry.asked_ns) > ASK_AGAIN_NS => {
                entry.asked_ns = now.max(1);
                ask(&entry.ask);
            }
            None => {}
        }
    }
}

/// Enters a loan. False: it has been taken back.
#[inline(always)]
fn hold(place: &Place, number: u32, serial: u32) -> bool {
    place.entered().enter(place.loan(number), number, serial)
}

/// Where in a region `len` bytes at `addr` lie.
#[inline(always)]
fn within(iova: u64, length: u64, addr: u64, len: u64) -> Option<u64> {
    let offset = addr.wrapping_sub(iova);
    (offset <= length && len <= length - offset).then_some(offset)
}

impl Borrowed {
    pub(super) fn new(place: Place, reach: Option<Reach>) -> Borrowed {
        let wants = if reach.is_some() { SHARES | BY_ADDRESS } else { SHARES };
        Borrowed {
            place,
            list: [const { None }; LOANS],
            last: 0,
            far: [const { None }; LOANS],
            reach,
            wants,
        }
    }

    /// [`find`] of what can be mapped.
    #[cold]
    fn find_mapped(&mut self, ask: Ask) -> Option<usize> {
        if !self.any() {
            return None;
        }
        find(&mut self.list, ask)
    }

    #[inline]
    fn lends(&self) -> u32 {
        self.place.lends().load(Ordering::Relaxed)
    }

    /// Whether the other end has memory to lend that can be mapped.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.lends() & SHARES != 0
    }

    /// The same, or memory that we can reach by its address.
    #[inline]
    pub(super) fn any_far(&self) -> bool {
        self.lends() & self.wants != 0
    }

    /// Asks for what is wanted and gives up what was taken back. System calls, where there is
    /// something to do.
    pub(super) fn tend(&mut self, now: u64, bell: &Bell) {
        let say = |head, ask: &Ask| {
            bell.say(&ask.emit(head), None);
        };
        tend(
            &mut self.list,
            &self.place,
            now,
            |held| (held.number, held.serial),
            |ask| say(ASK, ask),
        );
        if self.reach.is_some() {
            tend(
                &mut self.far,
                &self.place,
                now,
                |loan| (loan.number, loan.serial),
                |ask| say(ASK_FAR, ask),
            );
        }
    }

    /// A loan has come, by address where there is no descriptor. What was not asked for, or cannot
    /// be mapped, is let go.
    pub(super) fn take(&mut self, loan: &Loan, fd: Option<&Fd>) {
        if !loan.is_sound() || loan.far != fd.is_none() {
            return;
        }
        let Some(fd) = fd else {
            let asked =
                self.far.iter_mut().flatten().find(|e| e.ask == loan.ask && e.loan.is_none());
            if let Some(entry) = asked {
                entry.loan = Some(*loan);
            }
            return;
        };
        let Some(entry) =
            self.list.iter_mut().flatten().find(|e| e.ask == loan.ask && e.loan.is_none())
        else {
            return;
        };
        // Memory that nobody can take away.
        let (end, len) =
            (loan.offset.checked_add(loan.length), sealed_len(fd.raw(), libc::F_SEAL_SHRINK));
        if len.is_none() || end.is_none_or(|end| Some(end) > len) {
            return;
        }
        let into = loan.offset % page_size() as u64;
        let Some(bytes) = loan.length.checked_add(into).and_then(|n| usize::try_from(n).ok())
        else {
            return;
        };
        let Ok(map) = Map::shared(fd.raw(), loan.offset - into, bytes, true) else { return };
        let base = map.as_ptr().expose_provenance() as u64 + into;
        let Loan { number, serial, iova, length, .. } = *loan;
        entry.loan = Some(Held { number, serial, iova, length, base, _map: map });
        // A long WRITE may have come before it, and have asked for the other kind.
        if let Some(far) =
            self.far.iter_mut().find(|e| e.as_ref().is_some_and(|e| e.ask == loan.ask))
        {
            *far = None;
        }
    }
}

impl PeerMemory for Borrowed {
    #[inline(always)]
    fn enter(&mut self, from_qpn: u32, qpn: u32, rkey: u32, addr: u64, len: u64) -> Option<u64> {
        let ask = Ask { from_qpn, qpn, rkey };
        if !self.list[self.last].as_ref().is_some_and(|e| e.ask == ask && e.loan.is_some()) {
            self.last = self.find_mapped(ask)?;
        }
        let held = self.list[self.last].as_ref()?.loan.as_ref()?;
        let offset = within(held.iova, held.length, addr, len)?;
        hold(&self.place, held.number, held.serial).then(|| held.base + offset)
    }

    #[inline(always)]
    fn leave(&mut self) {
        self.place.entered().leave();
    }

    fn enter_far(
        &mut self,
        from_qpn: u32,
        qpn: u32,
        rkey: u32,
        addr: u64,
        len: u64,
    ) -> Option<u64> {
        if self.reach.is_none() || self.lends() & BY_ADDRESS == 0 {
            return None;
        }
        let i = find(&mut self.far, Ask { from_qpn, qpn, rkey })?;
        let loan = self.far[i].as_ref()?.loan?;
        let offset = within(loan.iova, loan.length, addr, len)?;
        hold(&self.place, loan.number, loan.serial).then(|| loan.offset.wrapping_add(offset))
    }

    fn carry(&mut self, pieces: &[Piece], to: u64) -> bool {
        let Some(reach) = &self.reach else { return false };
        let outcome = reach.write(pieces, to);
        if outcome == Err(Unreached::Never) {
            // From here on only what can be mapped is asked for.
            (self.reach, self.wants) = (None, SHARES);
        }
        outcome.is_ok()
    }
}

/// What we have lent to the other end of a link.
pub(super) struct Loans {
    list: [Option<(Loan, MrAttr)>; LOANS],
    serial: u32,
}

impl Loans {
    pub(super) const fn new() -> Loans {
        Loans { list: [None; LOANS], serial: 0 }
    }

    /// Lends a region, `offset` bytes into what `fd` stands for, or by its address. One that cannot
    /// be told of is not lent. False: the other end is stuck inside of the loan that it asks for
    /// again; the link is to be given up.
    pub(super) fn lend(
        &mut self,
        ask: &Ask,
        region: &MrAttr,
        memory: Option<(RawFd, u64)>,
        place: &Place,
        bell: &Bell,
    ) -> bool {
        let again = self.list.iter().position(|l| l.as_ref().is_some_and(|(l, _)| l.ask == *ask));
        if let Some(i) = again {
            self.list[i] = None;
            if !self.take_back(i, place) {
                return false;
            }
        }
        let Some(i) = again.or_else(|| self.list.iter().position(Option::is_none)) else {
            return true;
        };
        self.serial = self.serial.wrapping_add(1).max(1);
        let (number, serial, iova, length) = (i as u32, self.serial, region.iova, region.length);
        let (far, offset) = memory.map_or((true, region.addr), |(_, offset)| (false, offset));
        let loan = Loan { ask: *ask, number, serial, iova, length, offset, far };
        place.loan(number).grant(serial);
        if bell.say(&loan.emit(), memory.map(|(fd, _)| fd)) {
            self.list[i] = Some((loan, *region));
        } else {
            place.loan(number).forget();
        }
        true
    }

    /// Takes back every loan of which `stands` says no; it is told whether the loan is by address.
    /// False: the other end is stuck inside of one; the link is to be given up.
    pub(super) fn check(
        &mut self,
        place: &Place,
        mut stands: impl FnMut(&Ask, &MrAttr, bool) -> bool,
    ) -> bool {
        for i in 0..LOANS {
            let Some((loan, region)) = &self.list[i] else { continue };
            if !stands(&loan.ask, region, loan.far) {
                let left = self.take_back(i, place);
                self.list[i] = None;
                if !left {
                    return false;
                }
            }
        }
        true
    }

    /// Ends all loans of a link that is given up, and waits for nobody: the other end is gone, or
    /// is not to be waited for.
    pub(super) fn end(&mut self, place: &Place) {
        for (i, loan) in self.list.iter_mut().enumerate() {
            if loan.take().is_some() {
                place.loan(i as u32).forget();
            }
        }
    }

    /// Ends a loan. False: the borrower has not left it in time.
    fn take_back(&mut self, i: usize, place: &Place) -> bool {
        place.loan(i as u32).revoke();
        let inside = || place.entered().is_inside(i as u32);
        if !inside() {
            return true;
        }
        let end = now_ns() + LEAVE_NS;
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
pub(super) struct Shared {
    pub(super) rkey: u32,
    pub(super) fd: Fd,
    pub(super) offset: u64,
}

/// What the word "lends" of a link is, of a device that shares these, and lends whatever it has by
/// address.
pub(super) fn lends(shared: &[Option<Shared>], by_address: bool) -> u32 {
    let shares = if shared.iter().any(Option::is_some) { SHARES } else { 0 };
    shares | if by_address { BY_ADDRESS } else { 0 }
}

/// The shared region with a key.
pub(super) fn shared_with(shared: &[Option<Shared>], rkey: u32) -> Option<&Shared> {
    shared.iter().flatten().find(|s| s.rkey == rkey)
}

/// Somebody asks for a loan.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Who: the sender of a link.
    pub(super) caller: u16,
    /// Its address.
    pub from: Endpoint,
    /// For what.
    pub ask: Ask,
    /// By address.
    pub(super) far: bool,
}

#[cfg(test)]
mod tests;
