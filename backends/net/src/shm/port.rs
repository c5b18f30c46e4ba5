//! The links of one device: those it writes, those it reads, and the door through which new ones
//! come.

use super::door::{knock, Bell, Door, Heard, Knock};
use super::loan::{lends, Asked, Borrowed, Loans, Shared};
use super::reach::Reach;
use super::ring::{Broken, Reader, Writer};
use super::segment::Segment;
use crate::addr::Endpoint;
use crate::local::{
    has_hung_up, is_own_user, peer_of, Holder, Home, Lock, Name, Role, ACCEPT_AGAIN_NS,
};
use crate::wait::Waiter;
use brokered::Brokered;
pub(crate) use brokered::Peer;
use core::sync::atomic::{fence, Ordering};
use gdrcore_core::arena::{RawSlice, Walk};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::roce::frame::record::{ack_behind, is_ack, Frame, Links, ACK_BESIDE};
use gdrcore_core::roce::peer_memory::PeerMemory;
use gdrcore_core::roce::run::{Run, HEAD_MAX, HEAD_MIN, RECORD_ALIGN};
use gdrcore_core::sleep;
use gdrcore_core::wire::Malformed;
use std::ptr::NonNull;

/// Links of either direction that one device holds.
pub const LINKS: usize = 256;
/// Bytes of data in a ring: small enough to stay in the caches of both ends.
const RING: usize = 256 << 10;
/// Most bytes of one frame: four of them fill a ring, so that one is read while the next is
/// written.
const FRAME_MAX: usize = RING / 4 - 128;
/// Least room worth asking the engine for: one packet of the largest MTU with its header.
const FRAME_MIN: usize = 4096 + 512;
/// A caller that has not said hello for this long is hung up on.
const HELLO_NS: u64 = 1_000_000_000;
/// Regions whose memory may be shared at a time.
pub const SHARED: usize = 256;
/// Frames of one link that one poll takes, so that a fast peer does not keep others waiting.
const BATCH: usize = 16;

/// Where a link stands.
enum Place {
    /// There is one.
    Linked(u16),
    /// There is none; one may be put here.
    Free(usize),
}

/// A link that we write.
struct Out {
    to: Endpoint,
    /// The QPN block whose owner reads it; `None`: whoever has the address's own name.
    block: Option<u16>,
    bell: Bell,
    writer: Writer,
    /// Memory of the other end that we write by ourselves.
    borrowed: Borrowed,
    /// The other end is gone: what it sent us before is read, then the link counts as lost.
    gone: bool,
    /// Of a link that a router made.
    brokered: Option<Brokered>,
    /// Held for its mapping.
    _segment: Segment,
}

/// A link that we read.
struct In {
    from: Endpoint,
    reader: Reader,
    /// Memory of ours that the other end writes by itself.
    loans: Loans,
    /// It may do so by address.
    by_address: bool,
    /// The other end is gone: what it left is read, then the link is closed.
    gone: bool,
    _segment: Segment,
}

/// A socket that somebody opened to us, before and after its hello.
struct Caller {
    bell: Bell,
    since_ns: u64,
    link: Option<In>,
    /// Of a socket that a router made.
    brokered: Option<Brokered>,
}

/// What shm counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmCounters {
    /// Frames written.
    pub tx_frames: u64,
    /// Frames read.
    pub rx_frames: u64,
    /// Bells rung: the other end slept.
    pub bells: u64,
    /// Links refused or ended because the other end broke a rule.
    pub broken: u64,
}

/// The shm port of a device. One thread at a time.
pub struct ShmPort {
    /// Where processes of this user find each other; `None`: all links are a router's.
    home: Option<Home>,
    local: Endpoint,
    /// One for the address, unless another device of it has that, and one for each block.
    doors: RawSlice<Option<Door>>,
    /// The right to the address's own name.
    address: Option<Lock>,
    /// Somebody waits at a door for whom there is no descriptor; until then no door is looked at.
    closed_until: Option<u64>,
    out: RawSlice<Option<Out>>,
    callers: RawSlice<Option<Caller>>,
    /// Callers with a ring to look at: their indexes, densely.
    open: RawSlice<u16>,
    open_len: usize,
    /// Links that are gone and not yet told; true: it led to an address, not to a block.
    lost: RawSlice<Option<bool>>,
    any_lost: bool,
    /// Regions of which the program shares the memory.
    shared: RawSlice<Option<Shared>>,
    /// Loans that were asked for and not yet looked at.
    asked: RawSlice<Option<Asked>>,
    /// The program wants regions to be lent and borrowed by address.
    by_address: bool,
    counters: ShmCounters,
}

// SAFETY: the slices lead only into memory that `open` was given for this port alone.
unsafe impl Send for ShmPort {}
// SAFETY: by shared reference the port only reads; whatever writes takes `&mut self`.
unsafe impl Sync for ShmPort {}

/// A frame that is being written.
pub struct Begun<'p> {
    out: &'p mut Out,
    counters: &'p mut ShmCounters,
}

/// Small frames: where there is no room, [`ShmPort::room`] does what is to be done then.
impl Links for ShmPort {
    type Frame<'p> = Begun<'p>;

    #[inline(always)]
    fn begin(&mut self, link: u16) -> Option<(&mut [u8], Begun<'_>)> {
        let Some(Some(out)) = self.out.get_mut(usize::from(link)) else { return None };
        let (p, len) = out.writer.room(FRAME_MIN, FRAME_MIN).ok()??;
        // SAFETY: as in `room`; nothing of the port lies there.
        let room = unsafe { core::slice::from_raw_parts_mut(p.as_ptr(), len) };
        Some((room, Begun { out, counters: &mut self.counters }))
    }
}

impl Frame for Begun<'_> {
    /// Rings if the other end sleeps.
    #[inline(always)]
    fn commit(self, len: usize) {
        let Begun { out, counters } = self;
        out.writer.publish(len);
        counters.tx_frames += 1;
        if out.writer.place().asleep().must_wake(sleep::ANY) {
            counters.bells += 1;
            out.bell.ring();
        }
        out.writer.prepare();
    }
}

struct Parts {
    doors: RawSlice<Option<Door>>,
    out: RawSlice<Option<Out>>,
    callers: RawSlice<Option<Caller>>,
    open: RawSlice<u16>,
    lost: RawSlice<Option<bool>>,
    shared: RawSlice<Option<Shared>>,
    asked: RawSlice<Option<Asked>>,
}

fn walk(w: &mut Walk, blocks: u16) -> Result<Parts> {
    Ok(Parts {
        doors: w.slice_with(1 + usize::from(blocks), |_| None)?,
        out: w.slice_with(LINKS, |_| None)?,
        callers: w.slice_with(LINKS, |_| None)?,
        open: w.slice(LINKS, 0)?,
        lost: w.slice(LINKS, None)?,
        shared: w.slice_with(SHARED, |_| None)?,
        asked: w.slice(LINKS, None)?,
    })
}

impl ShmPort {
    /// Bytes that [`ShmPort::open`] needs for a device with that many blocks of QPNs.
    pub fn memsize(blocks: u16) -> usize {
        let mut w = Walk::size_query();
        // A query of a fixed size does not fail.
        let _ = walk(&mut w, blocks);
        w.offset()
    }

    /// Opens the doors of the device's blocks, whose locks it is shown, and that of its address,
    /// unless another device of the address has that one. `by_address`: any region is lent to
    /// processes of this user that want it so, and borrowed from them.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: fewer than [`ShmPort::memsize`] bytes; [`Error::Os`].
    ///
    /// # Safety
    /// The memory is used by nobody else and outlives the port.
    pub(crate) unsafe fn open<'l>(
        home: &Home,
        local: &Endpoint,
        blocks: impl Iterator<Item = &'l Lock> + Clone,
        by_address: bool,
        memory: *mut u8,
        bytes: usize,
        waiter: &Waiter,
    ) -> Result<ShmPort> {
        // SAFETY: the caller's promise.
        let mut port = unsafe {
            ShmPort::carve(local, blocks.clone().count() as u16, by_address, memory, bytes)?
        };
        // From here on a drop gives the names back.
        port.home = Some(*home);
        port.open_doors(blocks, waiter)?;
        Ok(port)
    }

    /// A port without doors.
    ///
    /// # Safety
    /// As [`ShmPort::open`].
    unsafe fn carve(
        local: &Endpoint,
        blocks: u16,
        by_address: bool,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<ShmPort> {
        // SAFETY: the caller's promise.
        let parts = walk(&mut unsafe { Walk::carve(memory, bytes)? }, blocks)?;
        let Parts { doors, out, callers, open, lost, shared, asked } = parts;
        Ok(ShmPort {
            home: None,
            local: *local,
            doors,
            address: None,
            closed_until: None,
            out,
            callers,
            open,
            open_len: 0,
            lost,
            any_lost: false,
            shared,
            asked,
            by_address,
            counters: ShmCounters::default(),
        })
    }

    /// Opens all doors, anew where some were open. Those of the blocks are this device's by their
    /// locks.
    pub(crate) fn open_doors<'l>(
        &mut self,
        blocks: impl Iterator<Item = &'l Lock>,
        waiter: &Waiter,
    ) -> Result<()> {
        self.doors.fill_with(|| None);
        self.address = None;
        let Some(home) = &self.home else { return Ok(()) };
        match Lock::take(home, &self.local, Holder::Address) {
            Ok(lock) => self.address = Some(lock),
            Err(Error::AddressInUse) => {}
            Err(e) => return Err(e),
        }
        let mut places = self.doors.iter_mut();
        let mut open = |lock: &Lock| {
            let door = Door::open(lock)?;
            waiter.add_socket(door.fd())?;
            if let Some(place) = places.next() {
                *place = Some(door);
            }
            Ok(())
        };
        self.address.iter().try_for_each(&mut open)?;
        blocks.into_iter().try_for_each(open)
    }

    /// Takes the names of the doors anew in another home.
    ///
    /// # Errors
    /// As [`ShmPort::open`].
    #[cold]
    pub(crate) fn renew<'l>(
        &mut self,
        home: &Home,
        blocks: impl Iterator<Item = &'l Lock>,
        waiter: &Waiter,
    ) -> Result<()> {
        self.home = Some(*home);
        self.open_doors(blocks, waiter)
    }

    /// When [`ShmPort::tend`] is wanted at the latest.
    pub fn deadline(&self) -> Option<u64> {
        self.closed_until
    }

    /// Whether any link is open to be read.
    #[inline]
    pub fn has_links(&self) -> bool {
        self.open_len > 0
    }

    /// Counts since the port was opened.
    pub fn counters(&self) -> ShmCounters {
        self.counters
    }

    /// The link to the owner of a block of QPNs at an address, or (`None`) to whoever has the
    /// address's own name; made if there is none. It can be written at once.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: nobody of this host listens there; [`Error::Access`]: somebody whom we
    /// do not trust; [`Error::NoMemory`]: all links are in use; others as the system said.
    pub fn connect(&mut self, to: &Endpoint, block: Option<u16>, waiter: &Waiter) -> Result<u16> {
        let i = match self.place_for(to, block)? {
            Place::Linked(link) => return Ok(link),
            Place::Free(i) => i,
        };
        let home = self.home.as_ref().ok_or(Error::NoDevice)?;
        let name = Name::of(home, to, block.map_or(Holder::Address, Holder::Block), Role::Door);
        let (bell, segment) = knock(&name, &self.local, RING)?;
        waiter.add_socket(bell.fd())?;
        let writer = Writer::new(segment.place());
        let reach = if self.by_address { Reach::of(bell.fd()) } else { None };
        let borrowed = Borrowed::new(segment.place(), reach);
        let brokered = None;
        self.out[i] = Some(Out {
            to: *to,
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

    /// The link to the owner of a block at an address, or where a new one may stand.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: all links are in use.
    fn place_for(&mut self, to: &Endpoint, block: Option<u16>) -> Result<Place> {
        // Who has the block now may not be who had it: a link to a process that is gone says so
        // only when it is tended.
        let same = |l: &Out| l.to == *to && l.block == block;
        let stale = |l: &Out| same(l) && has_hung_up(l.bell.fd());
        if let Some(i) = self.out.iter().position(|l| l.as_ref().is_some_and(stale)) {
            self.lose(i);
        }
        let mut free = None;
        for (i, link) in self.out.iter().enumerate() {
            match link {
                Some(l) if same(l) && self.lost[i].is_none() => return Ok(Place::Linked(i as u16)),
                None if free.is_none() && self.lost[i].is_none() => free = Some(i),
                _ => {}
            }
        }
        free.map(Place::Free).ok_or(Error::NoMemory)
    }

    /// Room for the next frame of a link, and the other end's memory that is mapped here; `None`:
    /// its ring is full (a bell will say when it no longer is), or the link is gone.
    #[inline]
    pub fn room(&mut self, link: u16) -> Option<(&mut [u8], &mut dyn PeerMemory)> {
        let i = usize::from(link);
        let Some(Some(out)) = self.out.get_mut(i) else { return None };
        let mut room = out.writer.room(FRAME_MIN, FRAME_MAX);
        if room == Ok(None) {
            // Pairs with the reader's fence in `tend`: it sees the word, or we see its tail.
            out.writer.place().starved().store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            room = out.writer.room(FRAME_MIN, FRAME_MAX);
        }
        match room {
            Ok(Some((p, len))) => {
                let Some(Some(out)) = self.out.get_mut(i) else { return None };
                // SAFETY: the bytes are the writer's until it publishes; the engine only writes
                // them. A peer that writes there too spoils what it will read, nothing of ours.
                let room = unsafe { core::slice::from_raw_parts_mut(p.as_ptr(), len) };
                Some((room, &mut out.borrowed))
            }
            Ok(None) => None,
            Err(Broken) => {
                self.lose(i);
                self.counters.broken += 1;
                None
            }
        }
    }

    /// Whether the other end of a link has taken everything; `None`: the link is gone.
    pub fn is_drained(&self, link: u16) -> Option<bool> {
        match self.out.get(usize::from(link)) {
            Some(Some(out)) if !out.gone => Some(out.writer.is_drained()),
            _ => None,
        }
    }

    /// The other end's memory, if it has any to lend, mapped or by address.
    #[inline]
    pub fn borrowed_far(&mut self, link: u16) -> Option<&mut Borrowed> {
        match self.out.get_mut(usize::from(link)) {
            Some(Some(out)) if out.borrowed.any_far() => Some(&mut out.borrowed),
            _ => None,
        }
    }

    /// The other end's memory that is mapped here, if it has any to lend.
    #[inline(always)]
    pub fn borrowed(&mut self, link: u16) -> Option<&mut Borrowed> {
        match self.out.get_mut(usize::from(link)) {
            Some(Some(out)) if out.borrowed.any() => Some(&mut out.borrowed),
            _ => None,
        }
    }

    /// Sends `len` bytes of what [`ShmPort::room`] gave; rings if the other end sleeps.
    #[inline]
    pub fn commit(&mut self, link: u16, len: usize) {
        let Some(Some(out)) = self.out.get_mut(usize::from(link)) else { return };
        Begun { out, counters: &mut self.counters }.commit(len);
    }

    /// Gives every run that has come to `take`: who sent it, what it is, its payload; an error for
    /// bytes that are no run. The sender may change the payload at any time. Returns how many there
    /// were.
    #[inline]
    pub fn poll(
        &mut self,
        mut take: impl FnMut(&Endpoint, core::result::Result<(&Run, &[u8]), Malformed>),
    ) -> usize {
        self.poll_with(&mut take, |_, _, _, _| 0, |take, from, run| take(from, run))
    }

    /// As [`ShmPort::poll`], but each record is first shown to `short` as it is: the words of its
    /// head, and all bytes of its frame from there on. That returns how many of them it took, which
    /// is 0 where it leaves the record to `take`. `to`: whatever both need.
    #[inline(always)]
    pub fn poll_with<T>(
        &mut self,
        to: &mut T,
        short: impl Fn(&mut T, &Endpoint, &[u64; HEAD_MAX / 8], &[u8]) -> usize,
        take: impl Fn(&mut T, &Endpoint, core::result::Result<(&Run, &[u8]), Malformed>),
    ) -> usize {
        let mut handled = 0;
        let mut k = 0;
        while let Some(&i) = self.open[..self.open_len].get(k) {
            k += 1;
            match self.callers.get(usize::from(i)) {
                Some(Some(Caller { link: Some(link), .. })) if !link.reader.is_empty() => {}
                _ => continue,
            }
            match self.read_link(usize::from(i), to, &short, &take) {
                Ok(n) => handled += n,
                Err(Broken) => {
                    self.counters.broken += 1;
                    self.hang_up(usize::from(i));
                    // The list has changed; the rest is looked at next time.
                    return handled.max(1);
                }
            }
        }
        handled
    }

    /// What [`ShmPort::poll_with`] does with the link of a caller.
    #[inline(always)]
    fn read_link<T>(
        &mut self,
        i: usize,
        to: &mut T,
        short: impl Fn(&mut T, &Endpoint, &[u64; HEAD_MAX / 8], &[u8]) -> usize,
        take: impl Fn(&mut T, &Endpoint, core::result::Result<(&Run, &[u8]), Malformed>),
    ) -> core::result::Result<usize, Broken> {
        let Some(Some(Caller { link: Some(link), bell, .. })) = self.callers.get_mut(i) else {
            return Ok(0);
        };
        let mut handled = 0;
        for _ in 0..BATCH {
            let Some((p, len)) = link.reader.peek()? else { break };
            // SAFETY: the frame lies in the mapping, which lives until the link is closed.
            handled += unsafe {
                records(
                    p,
                    len,
                    to,
                    |to, w, rest| short(to, &link.from, w, rest),
                    |to, r| take(to, &link.from, r),
                )
            };
            link.reader.release(len);
            self.counters.rx_frames += 1;
            if len >= crate::LONG {
                // What it asks for (an ACK) opens the sender's window: before the next one is read.
                break;
            }
        }
        // A writer that waits for room must hear of it.
        if link.reader.place().starved().load(Ordering::Relaxed) != 0 {
            tend(link, bell);
        }
        Ok(handled)
    }

    /// Whether a frame waits to be read.
    pub fn has_input(&self) -> bool {
        self.open[..self.open_len].iter().any(|&i| match &self.callers[usize::from(i)] {
            Some(Caller { link: Some(link), .. }) => !link.reader.is_empty(),
            _ => false,
        })
    }

    /// Says on every ring that we are about to sleep. True: something is there after all.
    pub fn announce_sleep(&mut self) -> bool {
        for k in 0..self.open_len {
            let i = usize::from(self.open[k]);
            let Some(Some(Caller { link: Some(link), bell, .. })) = self.callers.get_mut(i) else {
                continue;
            };
            // Whatever was read is given back first: a writer that waits for it would wait for a
            // sleeper.
            if link.reader.settle() {
                tend(link, bell);
            }
            link.reader.place().asleep().announce(sleep::ANY);
        }
        self.has_input()
    }

    /// Everything that is not data: callers, hellos, bells, ends. Some system calls: now and then,
    /// and before sleeping.
    /// True: somebody came or went.
    pub fn tend(&mut self, now: u64, waiter: &Waiter) -> bool {
        let mut changed = false;
        // Ends first: whatever a process called or sent before its end is then found below.
        for out in self.out.iter_mut().flatten() {
            let borrowed = &mut out.borrowed;
            let borrows = out.brokered.is_none_or(|b| b.loans);
            out.gone |= out.bell.listen(|said| match said {
                Heard::Lent(loan, fd) if borrows => {
                    borrowed.take(&loan, fd.as_ref());
                    true
                }
                _ => false,
            });
            if borrows {
                out.borrowed.tend(now, &out.bell);
            }
            changed |= out.gone;
        }
        changed |= self.let_in(now, waiter);
        for i in 0..LINKS {
            let Some(caller) = &mut self.callers[i] else { continue };
            changed |= caller.link.is_none();
            match &mut caller.link {
                None => match caller.receive(&self.shared, self.by_address) {
                    Ok(Some(link)) => {
                        caller.link = Some(link);
                        self.open[self.open_len] = i as u16;
                        self.open_len += 1;
                    }
                    Ok(None) if now.saturating_sub(caller.since_ns) < HELLO_NS => {}
                    Ok(None) | Err(_) => {
                        self.counters.broken += 1;
                        self.callers[i] = None;
                    }
                },
                Some(link) => {
                    if link.reader.settle() {
                        tend(link, &caller.bell);
                    }
                    let (asked, from) = (&mut self.asked, link.from);
                    let lends = caller.brokered.is_none_or(|b| b.loans);
                    link.gone |= caller.bell.listen(|said| match said {
                        // One too many is asked for again.
                        Heard::Asked(ask, far) if lends => {
                            if let Some(free) = asked.iter_mut().find(|a| a.is_none()) {
                                *free = Some(Asked { caller: i as u16, from, ask, far });
                            }
                            true
                        }
                        _ => false,
                    });
                    changed |= link.gone;
                    if link.gone && link.reader.is_empty() {
                        self.hang_up(i);
                    }
                }
            }
        }
        for i in 0..LINKS {
            // An ACK among what is unread may complete what this link carried.
            if self.out[i].as_ref().is_some_and(|out| out.gone && !self.has_input_from(&out.to)) {
                self.lose(i);
            }
        }
        changed
    }

    fn has_input_from(&self, from: &Endpoint) -> bool {
        self.open[..self.open_len].iter().any(|&i| match &self.callers[usize::from(i)] {
            Some(Caller { link: Some(link), .. }) => link.from == *from && !link.reader.is_empty(),
            _ => false,
        })
    }

    fn let_in(&mut self, now: u64, waiter: &Waiter) -> bool {
        if self.closed_until.is_some_and(|until| now < until) {
            return false;
        }
        if self.closed_until.take().is_some() {
            for door in self.doors.iter().flatten() {
                let _ = waiter.add_socket(door.fd());
            }
        }
        let mut came = false;
        let mut free = 0;
        for k in 0..self.doors.len() {
            let Some(door) = &self.doors[k] else { continue };
            loop {
                let bell = match door.accept() {
                    Knock::Caller(bell) => bell,
                    Knock::Nobody => break,
                    Knock::NoRoom => {
                        self.close_doors(now, waiter);
                        return came;
                    }
                };
                came = true;
                while free < LINKS && self.callers[free].is_some() {
                    free += 1;
                }
                // No place: hung up on, which the other end takes as a lost link.
                let Some(slot) = self.callers.get_mut(free) else { return came };
                if waiter.add_socket(bell.fd()).is_ok() {
                    *slot = Some(Caller { bell, since_ns: now, link: None, brokered: None });
                }
            }
        }
        came
    }

    /// A caller for whom there is no descriptor would make every sleep end at once, so the doors
    /// wake nobody for a while.
    #[cold]
    fn close_doors(&mut self, now: u64, waiter: &Waiter) {
        for door in self.doors.iter().flatten() {
            let _ = waiter.remove_socket(door.fd());
        }
        self.closed_until = Some(now + ACCEPT_AGAIN_NS);
    }

    /// Whether `take_lost` has something.
    pub fn has_lost(&self) -> bool {
        self.any_lost
    }

    /// Links that were lost since the last call, one at a time, and whether each led to an address
    /// rather than to a block; the number may be used again afterwards.
    pub fn take_lost(&mut self) -> Option<(u16, bool)> {
        if !self.any_lost {
            return None;
        }
        for (i, lost) in self.lost.iter_mut().enumerate() {
            if let Some(of_address) = lost.take() {
                return Some((i as u16, of_address));
            }
        }
        self.any_lost = false;
        None
    }

    fn lose(&mut self, i: usize) {
        // Dropping closes the socket, which takes it out of every epoll set.
        self.lost[i] = self.out[i].take().map(|out| out.block.is_none());
        self.any_lost = true;
    }

    fn hang_up(&mut self, i: usize) {
        if let Some(Caller { link: Some(link), .. }) = &mut self.callers[i] {
            link.loans.end(link.reader.place());
        }
        self.callers[i] = None;
        if let Some(k) = self.open[..self.open_len].iter().position(|&j| usize::from(j) == i) {
            self.open_len -= 1;
            self.open[k] = self.open[self.open_len];
        }
    }
}

/// The records of a frame, each given to `short` and, where that declines, to `take`.
///
/// # Safety
/// `len` bytes at `frame`, which is aligned to 8, and HEAD_MAX bytes behind them are mapped during
/// the call.
#[inline(always)]
unsafe fn records<T>(
    frame: NonNull<u8>,
    mut len: usize,
    to: &mut T,
    short: impl Fn(&mut T, &[u64; HEAD_MAX / 8], &[u8]) -> usize,
    take: impl Fn(&mut T, core::result::Result<(&Run, &[u8]), Malformed>),
) -> usize {
    let (mut at, mut n) = (0, 0);
    while at < len {
        n += 1;
        if len - at < HEAD_MIN {
            take(to, Err(Malformed::Length));
            return n;
        }
        // SAFETY: the caller's promise.
        let words = unsafe { head(frame, at) };
        // SAFETY: inside the frame. The bytes may change while the slice lives: nothing reads
        // through it but the copies of `mem::host`, which are assembly and take each byte as it
        // finds it.
        let rest = unsafe { core::slice::from_raw_parts(frame.as_ptr().add(at), len - at) };
        let mut taken = 0;
        // An ACK among the words is `short`'s to take with the message; one that is not, or was not
        // taken, comes before it.
        if rest.len() <= HEAD_MAX {
            taken = short(to, &words, rest);
            if !matches!(taken, 0 | ACK_BESIDE) {
                at += taken;
                continue;
            }
        }
        if taken == 0 {
            let end = len - HEAD_MIN;
            // SAFETY: the caller's promise.
            if let Some(ack) = unsafe { ack_at_end(frame, at, &words, rest.len()) } {
                if short(to, &ack, &rest[end - at..]) == 0 {
                    match Run::parse_head(&ack) {
                        Ok((run, ..)) => take(to, Ok((&run, &[]))),
                        Err(e) => take(to, Err(e)),
                    }
                }
                // The message is next, and the last.
                len = end;
                continue;
            }
            if rest.len() > HEAD_MAX {
                taken = short(to, &words, rest);
                if !matches!(taken, 0 | ACK_BESIDE) {
                    at += taken;
                    continue;
                }
            }
        }
        let parsed = Run::parse_head(&words).and_then(|(run, payload, head)| {
            let end =
                payload.checked_next_multiple_of(RECORD_ALIGN).and_then(|p| p.checked_add(head));
            Ok((run, payload, head, end.filter(|&e| e <= len - at).ok_or(Malformed::Length)?))
        });
        match parsed {
            Ok((run, payload, head, end)) => {
                take(to, Ok((&run, &rest[head..head + payload])));
                at += end + if taken == ACK_BESIDE { HEAD_MIN } else { 0 };
            }
            Err(e) => {
                take(to, Err(e));
                return n;
            }
        }
    }
    n
}

/// The first words of the ACK that ends a frame which holds one message of one packet besides, from
/// `at` on. Apart from the loop, which seldom needs it.
///
/// # Safety
/// As for [`head`]; `len` bytes of the frame are left at `at`.
#[inline(never)]
unsafe fn ack_at_end(
    frame: NonNull<u8>,
    at: usize,
    words: &[u64; HEAD_MAX / 8],
    len: usize,
) -> Option<[u64; HEAD_MAX / 8]> {
    let ack = ack_behind(words, len)?;
    // SAFETY: the caller's promise; the ACK begins inside the frame, at a multiple of 8.
    Some(unsafe { head(frame, at + ack) }).filter(is_ack)
}

/// The first words of the record at `at`. Copied out before anything in it is believed: the other
/// end may still write there.
///
/// # Safety
/// `at` lies in the frame and is a multiple of 8, as for [`records`].
#[inline(always)]
unsafe fn head(frame: NonNull<u8>, at: usize) -> [u64; HEAD_MAX / 8] {
    // SAFETY: behind the last byte of a frame at least HEAD_MAX more are mapped, since the data
    // pages are mapped twice and no frame is as long as they are.
    unsafe { frame.as_ptr().add(at).cast::<[u64; HEAD_MAX / 8]>().read_volatile() }
        .map(u64::from_le)
}

/// Gives the writer its room back, and wakes it if it waits for that.
fn tend(link: &mut In, bell: &Bell) {
    link.reader.settle();
    // Pairs with the writer's fence in `ShmPort::room`.
    fence(Ordering::SeqCst);
    let starved = link.reader.place().starved();
    if starved.load(Ordering::Relaxed) != 0 {
        starved.store(0, Ordering::Relaxed);
        bell.ring();
    }
}

impl Caller {
    /// The link that its hello brings. `Ok(None)`: that has not come yet.
    ///
    /// # Errors
    /// It is none: to be hung up on.
    fn receive(&self, shared: &[Option<Shared>], by_address: bool) -> Result<Option<In>> {
        let (from, segment, lend, by_address) = match &self.brokered {
            // The socket was made by the router, so what the kernel says of its other end is said
            // of that.
            Some(b) => match self.bell.receive_brokered()? {
                Some(segment) => (b.from, segment, b.loans, false),
                None => return Ok(None),
            },
            None => match self.bell.receive()? {
                Some((from, segment)) => {
                    let own = || peer_of(self.bell.fd()).is_some_and(|peer| is_own_user(peer.uid));
                    (from, segment, true, by_address && own())
                }
                None => return Ok(None),
            },
        };
        let reader = Reader::new(segment.place());
        let lends = if lend { lends(shared, by_address) } else { 0 };
        segment.place().lends().store(lends, Ordering::Relaxed);
        Ok(Some(In {
            from,
            reader,
            loans: Loans::new(),
            by_address,
            gone: false,
            _segment: segment,
        }))
    }
}

impl Drop for ShmPort {
    fn drop(&mut self) {
        // What is lent is the program's alone again when its context is closed.
        self.check_loans(|_, _, _| false);
        // The slices never run destructors: sockets and mappings are given back here.
        self.doors.fill_with(|| None);
        self.address = None;
        self.shared.fill_with(|| None);
        for i in 0..LINKS {
            self.out[i] = None;
            self.callers[i] = None;
        }
    }
}

mod brokered;
mod loans;
#[cfg(test)]
mod tests;
