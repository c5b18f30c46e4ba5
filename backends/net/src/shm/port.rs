//! The links of one device: those it writes, those it reads, and the listener through which new ones
//! come.

use super::cma::PeerProcess;
use super::grant::{offers, OwnGrants, PeerGrants, PeerRequest, SharedRegion};
use super::listener::{connect_link, Incoming, LinkEvent, LinkSocket, Listener};
use super::ring::{Broken, Reader, Writer};
use super::segment::Segment;
use crate::addr::Endpoint;
use crate::local::{
    has_hung_up, is_own_user, peer_of, Holder, Lock, Name, Role, SocketDir, ACCEPT_AGAIN_NS,
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
enum LinkSlot {
    /// There is one.
    Linked(u16),
    /// There is none; one may be put here.
    Free(usize),
}

/// A link that we write.
struct Outbound {
    to: Endpoint,
    /// The QPN block whose owner reads it; `None`: whoever has the address's own name.
    block: Option<u16>,
    socket: LinkSocket,
    writer: Writer,
    /// Memory of the other end that we write by ourselves.
    peer_grants: PeerGrants,
    /// The other end is gone: what it sent us before is read, then the link counts as lost.
    gone: bool,
    /// Of a link that a router made.
    brokered: Option<Brokered>,
    /// MappedGrant for its mapping.
    _segment: Segment,
}

/// A link that we read.
struct InboundRing {
    from: Endpoint,
    reader: Reader,
    /// Memory of ours that the other end writes by itself.
    grants: OwnGrants,
    /// It may do so by address.
    by_address: bool,
    /// The other end is gone: what it left is read, then the link is closed.
    gone: bool,
    _segment: Segment,
}

/// A socket that somebody opened to us, before and after its hello.
struct Inbound {
    socket: LinkSocket,
    since_ns: u64,
    link: Option<InboundRing>,
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
    pub wakes: u64,
    /// Links refused or ended because the other end broke a rule.
    pub broken: u64,
}

/// The shm port of a device. One thread at a time.
pub struct ShmPort {
    /// Where processes of this user find each other; `None`: all links are a router's.
    socket_dir: Option<SocketDir>,
    local: Endpoint,
    /// One for the address, unless another device of it has that, and one for each block.
    listeners: RawSlice<Option<Listener>>,
    /// The right to the address's own name.
    address: Option<Lock>,
    /// Somebody waits at a listener for whom there is no descriptor; until then no listener is looked at.
    paused_until: Option<u64>,
    out: RawSlice<Option<Outbound>>,
    inbound: RawSlice<Option<Inbound>>,
    /// Callers with a ring to look at: their indexes, densely.
    open: RawSlice<u16>,
    open_len: usize,
    /// Links that are gone and not yet told; true: it led to an address, not to a block.
    lost: RawSlice<Option<bool>>,
    any_lost: bool,
    /// Regions of which the program shares the memory.
    shared: RawSlice<Option<SharedRegion>>,
    /// Loans that were asked for and not yet looked at.
    requested: RawSlice<Option<PeerRequest>>,
    /// The program wants regions to be lent and borrowed by address.
    by_address: bool,
    counters: ShmCounters,
}

// SAFETY: the slices lead only into memory that `open` was given for this port alone.
unsafe impl Send for ShmPort {}
// SAFETY: by shared reference the port only reads; whatever writes takes `&mut self`.
unsafe impl Sync for ShmPort {}

/// A frame that is being written.
pub struct OpenFrame<'p> {
    out: &'p mut Outbound,
    counters: &'p mut ShmCounters,
}

/// Small frames: where there is no room, [`ShmPort::room`] does what is to be done then.
impl Links for ShmPort {
    type Frame<'p> = OpenFrame<'p>;

    #[inline(always)]
    fn begin(&mut self, link: u16) -> Option<(&mut [u8], OpenFrame<'_>)> {
        let Some(Some(out)) = self.out.get_mut(usize::from(link)) else { return None };
        let (p, len) = out.writer.room(FRAME_MIN, FRAME_MIN).ok()??;
        // SAFETY: as in `room`; nothing of the port lies there.
        let room = unsafe { core::slice::from_raw_parts_mut(p.as_ptr(), len) };
        Some((room, OpenFrame { out, counters: &mut self.counters }))
    }
}

impl Frame for OpenFrame<'_> {
    /// Rings if the other end sleeps.
    #[inline(always)]
    fn commit(self, len: usize) {
        let OpenFrame { out, counters } = self;
        out.writer.publish(len);
        counters.tx_frames += 1;
        if out.writer.place().asleep().must_wake(sleep::ANY) {
            counters.wakes += 1;
            out.socket.wake();
        }
        out.writer.prepare();
    }
}

struct Parts {
    listeners: RawSlice<Option<Listener>>,
    out: RawSlice<Option<Outbound>>,
    inbound: RawSlice<Option<Inbound>>,
    open: RawSlice<u16>,
    lost: RawSlice<Option<bool>>,
    shared: RawSlice<Option<SharedRegion>>,
    requested: RawSlice<Option<PeerRequest>>,
}

fn walk(w: &mut Walk, blocks: u16) -> Result<Parts> {
    Ok(Parts {
        listeners: w.slice_with(1 + usize::from(blocks), |_| None)?,
        out: w.slice_with(LINKS, |_| None)?,
        inbound: w.slice_with(LINKS, |_| None)?,
        open: w.slice(LINKS, 0)?,
        lost: w.slice(LINKS, None)?,
        shared: w.slice_with(SHARED, |_| None)?,
        requested: w.slice(LINKS, None)?,
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

    /// Opens the listeners of the device's blocks, whose locks it is shown, and that of its address,
    /// unless another device of the address has that one. `by_address`: any region is lent to
    /// processes of this user that want it so, and borrowed from them.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: fewer than [`ShmPort::memsize`] bytes; [`Error::Os`].
    ///
    /// # Safety
    /// The memory is used by nobody else and outlives the port.
    pub(crate) unsafe fn open<'l>(
        socket_dir: &SocketDir,
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
        port.socket_dir = Some(*socket_dir);
        port.open_listeners(blocks, waiter)?;
        Ok(port)
    }

    /// A port without listeners.
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
        let Parts { listeners, out, inbound, open, lost, shared, requested } = parts;
        Ok(ShmPort {
            socket_dir: None,
            local: *local,
            listeners,
            address: None,
            paused_until: None,
            out,
            inbound,
            open,
            open_len: 0,
            lost,
            any_lost: false,
            shared,
            requested,
            by_address,
            counters: ShmCounters::default(),
        })
    }

    /// Opens all listeners, anew where some were open. Those of the blocks are this device's by their
    /// locks.
    pub(crate) fn open_listeners<'l>(
        &mut self,
        blocks: impl Iterator<Item = &'l Lock>,
        waiter: &Waiter,
    ) -> Result<()> {
        self.listeners.fill_with(|| None);
        self.address = None;
        let Some(socket_dir) = &self.socket_dir else { return Ok(()) };
        match Lock::take(socket_dir, &self.local, Holder::Address) {
            Ok(lock) => self.address = Some(lock),
            Err(Error::AddressInUse) => {}
            Err(e) => return Err(e),
        }
        let mut places = self.listeners.iter_mut();
        let mut open = |lock: &Lock| {
            let listener = Listener::open(lock)?;
            waiter.add_socket(listener.fd())?;
            if let Some(place) = places.next() {
                *place = Some(listener);
            }
            Ok(())
        };
        self.address.iter().try_for_each(&mut open)?;
        blocks.into_iter().try_for_each(open)
    }

    /// Takes the names of the listeners anew in another home.
    ///
    /// # Errors
    /// As [`ShmPort::open`].
    #[cold]
    pub(crate) fn renew<'l>(
        &mut self,
        socket_dir: &SocketDir,
        blocks: impl Iterator<Item = &'l Lock>,
        waiter: &Waiter,
    ) -> Result<()> {
        self.socket_dir = Some(*socket_dir);
        self.open_listeners(blocks, waiter)
    }

    /// When [`ShmPort::tend`] is wanted at the latest.
    pub fn deadline(&self) -> Option<u64> {
        self.paused_until
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
            LinkSlot::Linked(link) => return Ok(link),
            LinkSlot::Free(i) => i,
        };
        let socket_dir = self.socket_dir.as_ref().ok_or(Error::NoDevice)?;
        let name =
            Name::of(socket_dir, to, block.map_or(Holder::Address, Holder::Block), Role::Links);
        let (socket, segment) = connect_link(&name, &self.local, RING)?;
        waiter.add_socket(socket.fd())?;
        let writer = Writer::new(segment.place());
        let process = if self.by_address { PeerProcess::of(socket.fd()) } else { None };
        let peer_grants = PeerGrants::new(segment.place(), process);
        let brokered = None;
        self.out[i] = Some(Outbound {
            to: *to,
            block,
            socket,
            writer,
            peer_grants,
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
    fn place_for(&mut self, to: &Endpoint, block: Option<u16>) -> Result<LinkSlot> {
        // Who has the block now may not be who had it: a link to a process that is gone says so
        // only when it is tended.
        let same = |l: &Outbound| l.to == *to && l.block == block;
        let stale = |l: &Outbound| same(l) && has_hung_up(l.socket.fd());
        if let Some(i) = self.out.iter().position(|l| l.as_ref().is_some_and(stale)) {
            self.close_outbound(i);
        }
        let mut free = None;
        for (i, link) in self.out.iter().enumerate() {
            match link {
                Some(l) if same(l) && self.lost[i].is_none() => {
                    return Ok(LinkSlot::Linked(i as u16))
                }
                None if free.is_none() && self.lost[i].is_none() => free = Some(i),
                _ => {}
            }
        }
        free.map(LinkSlot::Free).ok_or(Error::NoMemory)
    }

    /// Room for the next frame of a link, and the other end's memory that is mapped here; `None`:
    /// its ring is full (a socket will say when it no longer is), or the link is gone.
    #[inline]
    pub fn room(&mut self, link: u16) -> Option<(&mut [u8], &mut dyn PeerMemory)> {
        let i = usize::from(link);
        let Some(Some(out)) = self.out.get_mut(i) else { return None };
        let mut room = out.writer.room(FRAME_MIN, FRAME_MAX);
        if room == Ok(None) {
            // Pairs with the reader's fence in `tend`: it sees the word, or we see its tail.
            out.writer.place().wants_room().store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            room = out.writer.room(FRAME_MIN, FRAME_MAX);
        }
        match room {
            Ok(Some((p, len))) => {
                let Some(Some(out)) = self.out.get_mut(i) else { return None };
                // SAFETY: the bytes are the writer's until it publishes; the engine only writes
                // them. A peer that writes there too spoils what it will read, nothing of ours.
                let room = unsafe { core::slice::from_raw_parts_mut(p.as_ptr(), len) };
                Some((room, &mut out.peer_grants))
            }
            Ok(None) => None,
            Err(Broken) => {
                self.close_outbound(i);
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
    pub fn peer_grants_any(&mut self, link: u16) -> Option<&mut PeerGrants> {
        match self.out.get_mut(usize::from(link)) {
            Some(Some(out)) if out.peer_grants.offers_any() => Some(&mut out.peer_grants),
            _ => None,
        }
    }

    /// The other end's memory that is mapped here, if it has any to lend.
    #[inline(always)]
    pub fn peer_grants(&mut self, link: u16) -> Option<&mut PeerGrants> {
        match self.out.get_mut(usize::from(link)) {
            Some(Some(out)) if out.peer_grants.offers_mappable() => Some(&mut out.peer_grants),
            _ => None,
        }
    }

    /// Sends `len` bytes of what [`ShmPort::room`] gave; rings if the other end sleeps.
    #[inline]
    pub fn commit(&mut self, link: u16, len: usize) {
        let Some(Some(out)) = self.out.get_mut(usize::from(link)) else { return };
        OpenFrame { out, counters: &mut self.counters }.commit(len);
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
            match self.inbound.get(usize::from(i)) {
                Some(Some(Inbound { link: Some(link), .. })) if !link.reader.is_empty() => {}
                _ => continue,
            }
            match self.read_link(usize::from(i), to, &short, &take) {
                Ok(n) => handled += n,
                Err(Broken) => {
                    self.counters.broken += 1;
                    self.close_inbound(usize::from(i));
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
        let Some(Some(Inbound { link: Some(link), socket, .. })) = self.inbound.get_mut(i) else {
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
        if link.reader.place().wants_room().load(Ordering::Relaxed) != 0 {
            return_room(link, socket);
        }
        Ok(handled)
    }

    /// Whether a frame waits to be read.
    pub fn has_input(&self) -> bool {
        self.open[..self.open_len].iter().any(|&i| match &self.inbound[usize::from(i)] {
            Some(Inbound { link: Some(link), .. }) => !link.reader.is_empty(),
            _ => false,
        })
    }

    /// Says on every ring that we are about to sleep. True: something is there after all.
    pub fn announce_sleep(&mut self) -> bool {
        for k in 0..self.open_len {
            let i = usize::from(self.open[k]);
            let Some(Some(Inbound { link: Some(link), socket, .. })) = self.inbound.get_mut(i)
            else {
                continue;
            };
            // Whatever was read is given back first: a writer that waits for it would wait for a
            // sleeper.
            if link.reader.settle() {
                return_room(link, socket);
            }
            link.reader.place().asleep().announce(sleep::ANY);
        }
        self.has_input()
    }

    /// Everything that is not data: inbound, hellos, wakes, ends. Some system calls: now and then,
    /// and before sleeping.
    /// True: somebody came or went.
    pub fn maintain(&mut self, now: u64, waiter: &Waiter) -> bool {
        let mut changed = false;
        // Ends first: whatever a process called or sent before its end is then found below.
        for out in self.out.iter_mut().flatten() {
            let peer_grants = &mut out.peer_grants;
            let borrows = out.brokered.is_none_or(|b| b.may_grant);
            out.gone |= out.socket.for_each_event(|said| match said {
                LinkEvent::Grant(grant, fd) if borrows => {
                    peer_grants.take(&grant, fd.as_ref());
                    true
                }
                _ => false,
            });
            if borrows {
                out.peer_grants.maintain(now, &out.socket);
            }
            changed |= out.gone;
        }
        changed |= self.accept_links(now, waiter);
        for i in 0..LINKS {
            let Some(inbound) = &mut self.inbound[i] else { continue };
            changed |= inbound.link.is_none();
            match &mut inbound.link {
                None => match inbound.receive(&self.shared, self.by_address) {
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
                },
                Some(link) => {
                    if link.reader.settle() {
                        return_room(link, &inbound.socket);
                    }
                    let (requested, from) = (&mut self.requested, link.from);
                    let offers = inbound.brokered.is_none_or(|b| b.may_grant);
                    link.gone |= inbound.socket.for_each_event(|said| match said {
                        // One too many is asked for again.
                        LinkEvent::Request(request, by_address) if offers => {
                            if let Some(free) = requested.iter_mut().find(|a| a.is_none()) {
                                *free = Some(PeerRequest {
                                    inbound: i as u16,
                                    from,
                                    request,
                                    by_address,
                                });
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
            }
        }
        for i in 0..LINKS {
            // An ACK among what is unread may complete what this link carried.
            if self.out[i].as_ref().is_some_and(|out| out.gone && !self.has_input_from(&out.to)) {
                self.close_outbound(i);
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

    fn accept_links(&mut self, now: u64, waiter: &Waiter) -> bool {
        if self.paused_until.is_some_and(|until| now < until) {
            return false;
        }
        if self.paused_until.take().is_some() {
            for listener in self.listeners.iter().flatten() {
                let _ = waiter.add_socket(listener.fd());
            }
        }
        let mut came = false;
        let mut free = 0;
        for k in 0..self.listeners.len() {
            let Some(listener) = &self.listeners[k] else { continue };
            loop {
                let socket = match listener.accept() {
                    Incoming::Link(socket) => socket,
                    Incoming::Nothing => break,
                    Incoming::NoDescriptor => {
                        self.pause_listeners(now, waiter);
                        return came;
                    }
                };
                came = true;
                while free < LINKS && self.inbound[free].is_some() {
                    free += 1;
                }
                // No place: hung up on, which the other end takes as a lost link.
                let Some(slot) = self.inbound.get_mut(free) else { return came };
                if waiter.add_socket(socket.fd()).is_ok() {
                    *slot = Some(Inbound { socket, since_ns: now, link: None, brokered: None });
                }
            }
        }
        came
    }

    /// A caller for whom there is no descriptor would make every sleep end at once, so the listeners
    /// wake nobody for a while.
    #[cold]
    fn pause_listeners(&mut self, now: u64, waiter: &Waiter) {
        for listener in self.listeners.iter().flatten() {
            let _ = waiter.remove_socket(listener.fd());
        }
        self.paused_until = Some(now + ACCEPT_AGAIN_NS);
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

    fn close_outbound(&mut self, i: usize) {
        // Dropping closes the socket, which takes it out of every epoll set.
        self.lost[i] = self.out[i].take().map(|out| out.block.is_none());
        self.any_lost = true;
    }

    fn close_inbound(&mut self, i: usize) {
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
fn return_room(link: &mut InboundRing, socket: &LinkSocket) {
    link.reader.settle();
    // Pairs with the writer's fence in `ShmPort::room`.
    fence(Ordering::SeqCst);
    let wants_room = link.reader.place().wants_room();
    if wants_room.load(Ordering::Relaxed) != 0 {
        wants_room.store(0, Ordering::Relaxed);
        socket.wake();
    }
}

impl Inbound {
    /// The link that its hello brings. `Ok(None)`: that has not come yet.
    ///
    /// # Errors
    /// It is none: to be hung up on.
    fn receive(
        &self,
        shared: &[Option<SharedRegion>],
        by_address: bool,
    ) -> Result<Option<InboundRing>> {
        let (from, segment, export, by_address) = match &self.brokered {
            // The socket was made by the router, so what the kernel says of its other end is said
            // of that.
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

impl Drop for ShmPort {
    fn drop(&mut self) {
        // What is lent is the program's alone again when its context is closed.
        self.check_grants(|_, _, _| false);
        // The slices never run destructors: sockets and mappings are given back here.
        self.listeners.fill_with(|| None);
        self.address = None;
        self.shared.fill_with(|| None);
        for i in 0..LINKS {
            self.out[i] = None;
            self.inbound[i] = None;
        }
    }
}

mod brokered;
mod grants;
#[cfg(test)]
mod tests;
