//! Memory of regions that one process lends to another, so that WRITEs between them are copies and no messages
//! ([`gdrcore_core::roce::mapped`]).
//!
//! ```text
//! borrower (writes the ring)                          lender (reads the ring)
//!                                     control page: "lends"  <- it has memory to lend at all
//! a WRITE with an unknown key   -- ask: QPs, key -->   are its WRITEs all allowed? (`Transport::mappable`)
//! maps the descriptor           <-- loan: number, serial, range, descriptor --
//! "entered" = number, fence, is its serial in the page? copy, "entered" = 0
//!                                                      takes back: serial = 0, fence, waits while "entered" is the number
//! ```
//!
//! The two words are a Dekker pair: either the borrower sees that the loan has ended, or the lender sees that it is being used.
//! Messages travel on the link's socket, beside the bells. What is lent may be written by the borrower at any time, also against
//! these rules: memory is lent only if the program shares it ([`gdrcore_core::device::Device::mr_share`]), and only to
//! processes that the link trusts.

use super::door::Bell;
use super::ring::{Place, LOANS};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::map::{page_size, Map};
use crate::sys::{sealed_len, Fd};
use core::sync::atomic::{fence, Ordering};
use gdrcore_core::device::MrAttr;
use gdrcore_core::roce::mapped::PeerMemory;
use std::os::fd::RawFd;

/// First bytes of the messages: name and version.
const ASK: [u8; 8] = *b"gdrask\x01\0";
const LOAN: [u8; 8] = *b"gdrlon\x01\0";
/// Bytes of the messages.
const ASK_LEN: usize = 24;
pub(super) const LOAN_LEN: usize = 56;
/// What was asked for in vain is asked for again after this time: the lender may have shared it since.
const ASK_AGAIN_NS: u64 = 50_000_000;
/// A borrower that is inside when a loan ends is waited for this long. One that has been stopped there loses its link.
const LEAVE_NS: u64 = 100_000_000;

/// Between which queue pairs, and with which key of the lender's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The borrower's QPN.
    pub from_qpn: u32,
    /// The lender's QPN.
    pub qpn: u32,
    /// The lender's key.
    pub rkey: u32,
}

/// A loan as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    ask: Ask,
    number: u32,
    serial: u32,
    iova: u64,
    length: u64,
    /// Where the region begins in what the descriptor stands for.
    offset: u64,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Ask {
    fn emit(&self, head: [u8; 8]) -> [u8; ASK_LEN] {
        let mut bytes = [0; ASK_LEN];
        bytes[..8].copy_from_slice(&head);
        for (at, value) in [(8, self.from_qpn), (12, self.qpn), (16, self.rkey)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn fields(bytes: &[u8]) -> Ask {
        Ask { from_qpn: word(bytes, 8), qpn: word(bytes, 12), rkey: word(bytes, 16) }
    }

    /// `None`: these bytes are none.
    pub(super) fn parse(bytes: &[u8]) -> Option<Ask> {
        (bytes.len() == ASK_LEN && bytes[..8] == ASK).then(|| Ask::fields(bytes))
    }
}

impl Loan {
    fn emit(&self) -> [u8; LOAN_LEN] {
        let mut bytes = [0; LOAN_LEN];
        bytes[..ASK_LEN].copy_from_slice(&self.ask.emit(LOAN));
        bytes[20..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.serial.to_le_bytes());
        for (at, value) in [(32, self.iova), (40, self.length), (48, self.offset)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// `None`: these bytes are none.
    pub(super) fn parse(bytes: &[u8]) -> Option<Loan> {
        (bytes.len() == LOAN_LEN && bytes[..8] == LOAN).then(|| Loan {
            ask: Ask::fields(bytes),
            number: word(bytes, 20),
            serial: word(bytes, 24),
            iova: long(bytes, 32),
            length: long(bytes, 40),
            offset: long(bytes, 48),
        })
    }
}

/// What the other end of a link has lent to us.
pub struct Borrowed {
    place: Place,
    list: [Option<Entry>; LOANS],
    last: usize,
}

struct Entry {
    ask: Ask,
    /// When it was asked for; 0: not yet.
    asked_ns: u64,
    loan: Option<Held>,
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

impl Borrowed {
    pub(super) fn new(place: Place) -> Borrowed {
        Borrowed { place, list: [const { None }; LOANS], last: 0 }
    }

    /// The entry of this key, if it has a loan; one that is unknown is noted, to be asked for.
    #[cold]
    fn find(&mut self, ask: Ask) -> Option<usize> {
        if !self.any() {
            return None;
        }
        let at = self.list.iter().position(|e| e.as_ref().is_some_and(|e| e.ask == ask));
        if let Some(i) = at {
            return Some(i).filter(|&i| self.list[i].as_ref().is_some_and(|e| e.loan.is_some()));
        }
        // A place that nothing is borrowed with, the emptiest first.
        let free = self.list.iter().position(|e| e.is_none());
        let free = free.or_else(|| self.list.iter().position(|e| e.as_ref().is_some_and(|e| e.loan.is_none())));
        if let Some(i) = free {
            self.list[i] = Some(Entry { ask, asked_ns: 0, loan: None });
        }
        None
    }

    /// Whether the other end has memory to lend.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.place.lends().load(Ordering::Relaxed) != 0
    }

    /// Asks for what is wanted and gives up what was taken back. System calls, where there is something to do.
    pub(super) fn tend(&mut self, now: u64, bell: &Bell) {
        for e in &mut self.list {
            let Some(entry) = e else { continue };
            match &entry.loan {
                Some(held) if self.place.loan(held.number).load(Ordering::Acquire) == held.serial => {}
                Some(_) => *e = None,
                None if entry.asked_ns == 0 || now.saturating_sub(entry.asked_ns) > ASK_AGAIN_NS => {
                    entry.asked_ns = now.max(1);
                    bell.say(&entry.ask.emit(ASK), None);
                }
                None => {}
            }
        }
    }

    /// A loan has come. What was not asked for, or cannot be mapped, is let go.
    pub(super) fn take(&mut self, loan: &Loan, fd: &Fd) {
        let Some(entry) = self.list.iter_mut().flatten().find(|e| e.ask == loan.ask && e.loan.is_none()) else {
            return;
        };
        let end = loan.offset.checked_add(loan.length);
        let sound = loan.number < LOANS as u32
            && loan.serial != 0
            && loan.length != 0
            && loan.iova.checked_add(loan.length - 1).is_some()
            // Memory that nobody can take away.
            && end.is_some_and(|end| sealed_len(fd.raw(), libc::F_SEAL_SHRINK).is_some_and(|len| end <= len));
        if !sound {
            return;
        }
        let into = loan.offset % page_size() as u64;
        let Some(bytes) = loan.length.checked_add(into).and_then(|n| usize::try_from(n).ok()) else { return };
        let Ok(map) = Map::shared(fd.raw(), loan.offset - into, bytes, true) else { return };
        let base = map.as_ptr().expose_provenance() as u64 + into;
        let Loan { number, serial, iova, length, .. } = *loan;
        entry.loan = Some(Held { number, serial, iova, length, base, _map: map });
    }
}

impl PeerMemory for Borrowed {
    #[inline(always)]
    fn enter(&mut self, from_qpn: u32, qpn: u32, rkey: u32, addr: u64, len: u64) -> Option<u64> {
        let ask = Ask { from_qpn, qpn, rkey };
        if !self.list[self.last].as_ref().is_some_and(|e| e.ask == ask && e.loan.is_some()) {
            self.last = self.find(ask)?;
        }
        let held = self.list[self.last].as_ref()?.loan.as_ref()?;
        let offset = addr.wrapping_sub(held.iova);
        if offset > held.length || len > held.length - offset {
            return None;
        }
        self.place.entered().store(held.number + 1, Ordering::Relaxed);
        // Pairs with the lender's fence in `Loans::take_back`: it sees the word, or we see that the loan has ended.
        fence(Ordering::SeqCst);
        if self.place.loan(held.number).load(Ordering::Acquire) != held.serial {
            self.leave();
            return None;
        }
        Some(held.base + offset)
    }

    #[inline(always)]
    fn leave(&mut self) {
        self.place.entered().store(0, Ordering::Release);
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

    /// Lends a region, `offset` bytes into what `fd` stands for. One that cannot be told of is not lent. False: the other end is stuck
    /// inside of the loan that it asks for again; the link is to be given up.
    pub(super) fn lend(
        &mut self,
        ask: &Ask,
        region: &MrAttr,
        fd: RawFd,
        offset: u64,
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
        let Some(i) = again.or_else(|| self.list.iter().position(Option::is_none)) else { return true };
        self.serial = self.serial.wrapping_add(1).max(1);
        let (number, serial, iova, length) = (i as u32, self.serial, region.iova, region.length);
        let loan = Loan { ask: *ask, number, serial, iova, length, offset };
        place.loan(number).store(serial, Ordering::Release);
        if bell.say(&loan.emit(), Some(fd)) {
            self.list[i] = Some((loan, *region));
        } else {
            place.loan(number).store(0, Ordering::Relaxed);
        }
        true
    }

    /// Takes back every loan of which `stands` says no. False: the other end is stuck inside of one; the link is to be given up.
    pub(super) fn check(&mut self, place: &Place, mut stands: impl FnMut(&Ask, &MrAttr) -> bool) -> bool {
        for i in 0..LOANS {
            let Some((loan, region)) = &self.list[i] else { continue };
            if !stands(&loan.ask, region) {
                let left = self.take_back(i, place);
                self.list[i] = None;
                if !left {
                    return false;
                }
            }
        }
        true
    }

    /// Ends all loans of a link that is given up, and waits for nobody: the other end is gone, or is not to be waited for.
    pub(super) fn end(&mut self, place: &Place) {
        for (i, loan) in self.list.iter_mut().enumerate() {
            if loan.take().is_some() {
                place.loan(i as u32).store(0, Ordering::Relaxed);
            }
        }
    }

    /// Ends a loan. False: the borrower has not left it in time.
    fn take_back(&mut self, i: usize, place: &Place) -> bool {
        place.loan(i as u32).store(0, Ordering::Relaxed);
        // Pairs with the borrower's fence in `Borrowed::enter`.
        fence(Ordering::SeqCst);
        let inside = || place.entered().load(Ordering::Acquire) == i as u32 + 1;
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

/// What the word "lends" of a link is, of a device that shares these.
pub(super) fn lends(shared: &[Option<Shared>]) -> u32 {
    shared.iter().any(Option::is_some).into()
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
}

#[cfg(test)]
mod tests;
