//! The rings between a session and its router, for packets that no link between two ends carries:
//! datagrams, messages of the connection manager, and others.
//!
//! The router makes two segments, one for each direction, and a socket for wake-ups. A frame is one
//! packet, or several for one address:
//!
//! ```text
//! 0  address (16 bytes): towards the router that of the receiver, from there that of the sender
//! 16  flags (1 byte): bit 0: the receiver's ring is half full or more, or its rate is near
//! 17  hop limit of the packets (1); 0: the system's
//! 18  bytes of each packet but the last (2 bytes); 0: there is one packet
//! 20  their flow label, 20 bits, and above it their traffic class, 8 bits without its ECN bits (4)
//! 24  the packets, each from its BTH to its ICRC
//! ```
//!
//! Hop limit, label and class are zero unless both ends know of them ([`Relay::with_headers`]).
//!
//! A frame of eight bytes is the last one of its ring: the writer continues in the larger ring
//! behind it in the segment ([`Relay`]).
//!
//! A reader trusts nothing: it copies bytes before it checks them. An end that overwrites the
//! other's words loses its own rings, nothing else.

use super::listener::LinkSocket;
use super::ring::{BrokenRing, Reader, Writer, FRAME_ALIGN};
use super::segment::Segment;
use crate::rights::{self, Foreign};
use crate::sys::Fd;
use core::sync::atomic::{fence, Ordering};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::host;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::sleep;
use gdrcore_core::wire::grh::{Fields, DSCP, FLOW_LABEL};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Bytes of a frame before its packet.
pub const HEAD: usize = 24;
/// Most bytes of a packet: the largest MTU and all headers.
pub const PACKET_MAX: usize = 4096 + 128;
/// Most bytes of a frame.
pub const FRAME_MAX: usize = HEAD + PACKET_MAX;
/// Bytes of the ring towards the router, and of the ring from it. A full first ring delays the
/// session alone. The second ring limits what its peers may have in flight.
pub const RINGS: (u32, u32) = (128 << 10, 256 << 10);
/// Bytes of the larger rings. The second holds a peer's window of a MiB with all headers. In a
/// smaller ring the end of a window would be lost.
pub const LARGER: (u32, u32) = (1 << 20, 2 << 20);
/// Flag of a frame: its receiver is too slow.
const CONGESTED: u8 = 1;
/// Laps in which a ring is half full before it moves to the larger one.
const LAPS: u32 = 8;
/// Length of a ring's last frame before its writer goes on in the larger ring. No other frame is
/// shorter than a head.
const MOVED: usize = 8;

/// A session's ends of its rings, in the order of the router's message.
#[derive(Debug)]
pub struct RingDescriptors {
    /// The ring towards the router.
    pub up: OwnedFd,
    /// The ring from the router.
    pub down: OwnedFd,
    /// The socket of the bells.
    pub socket: OwnedFd,
}

/// A packet that [`Relay::take`] has copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'b> {
    /// The address in its frame's head.
    pub address: [u8; 16],
    /// The receiver's ring is half full, or more is sent to it than its rate allows.
    pub congested: bool,
    /// The fields that an IP header of the packet would have.
    pub grh: Fields,
    /// The packet.
    pub packet: &'b [u8],
}

/// A packet in a ring, whose beginning was copied. Until the rest is copied, the other end may
/// change it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'b> {
    /// The whole packet if it is shorter than [`LONG`], else its first [`FIRST`] bytes.
    pub first: &'b [u8],
    /// Address and bytes of the rest.
    rest: (u64, usize),
    /// The fields that the packet's IP header would have.
    pub grh: Fields,
}

/// Packets from this length on are not copied whole at once.
pub const LONG: usize = 1024;
/// Bytes of a long packet that are copied at once: more than any headers.
pub const FIRST: usize = 128;

impl<'b> Packet<'b> {
    /// A packet that was copied, and the fields that its IP header would have.
    pub fn whole(first: &'b [u8], grh: Fields) -> Packet<'b> {
        Packet { first, rest: (0, 0), grh }
    }

    /// The packet's bytes, never 0.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.1
    }

    /// Copies the packet into memory of its length.
    ///
    /// # Errors
    /// [`BrokenRing`]: the ring's memory vanished, or `to` has another length.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> core::result::Result<(), BrokenRing> {
        let (first, rest) = to.split_at_mut_checked(self.first.len()).ok_or(BrokenRing)?;
        if rest.len() != self.rest.1 {
            return Err(BrokenRing);
        }
        first.copy_from_slice(self.first);
        host::fetch(self.rest.0, rest).map_err(|_| BrokenRing)
    }
}

/// Result of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The frame is in the ring.
    Done,
    /// The ring has no room.
    Full,
}

/// One end of both rings. One thread at a time; nothing waits.
///
/// If both ends support it, a ring moves to larger memory when it is half full again and again, or
/// has no room for a frame of the router. More data can then be in flight, so that a session, its
/// router and its peers change less often on a core that they share. A session with little data in
/// flight keeps small rings.
#[derive(Debug)]
pub struct Relay {
    writer: Writer,
    reader: Reader,
    socket: LinkSocket,
    /// The frame whose packets are being taken.
    open: Frames,
    /// The ring that the own ring may move to; `None`: it has moved, or may not.
    grows: Option<Growth>,
    /// The ring that the other end's ring may move to; `None`: it has moved, or may not.
    follows: Option<Segment>,
    /// The mappings of the own ring and of the other end's.
    segments: [Segment; 2],
    /// Both ends know of hop limits, labels and classes.
    has_headers: bool,
}

/// A frame in the ring with packets that were not taken.
#[derive(Clone, Copy, Debug, Default)]
struct Frames {
    /// The next packet's address in this process.
    at: u64,
    /// Bytes from there on.
    left: usize,
    /// Bytes of each packet but the last.
    seg: usize,
    /// Bytes of the whole frame.
    len: usize,
    address: [u8; 16],
    congested: bool,
    grh: Fields,
}

/// A larger ring that a ring may move to.
#[derive(Debug)]
struct Growth {
    segment: Segment,
    /// Laps in which the ring was half full.
    laps: u32,
    /// Where in the smaller ring the next such lap begins.
    next: u64,
}

// SAFETY: its rings lead to mappings that it holds; they belong to the process, not to a thread.
// Every access takes `&mut self` or reads atomics.
unsafe impl Send for Relay {}

impl Relay {
    /// The router's end of new rings, and the session's parts. `grow`: the rings may move to
    /// larger memory. Some ten system calls.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Os`]: no memory or descriptors are left.
    pub fn create(grow: bool) -> Result<(Relay, RingDescriptors)> {
        crate::fault::install()?;
        let (up, up_fd) = Ring::create(RINGS.0, LARGER.0, grow)?;
        let (down, down_fd) = Ring::create(RINGS.1, LARGER.1, grow)?;
        let [ours, theirs] = rights::pair()?;
        // Neither end takes descriptors.
        rights::refuse(theirs.as_fd());
        let ends = RingDescriptors { up: up_fd.into(), down: down_fd.into(), socket: theirs };
        Ok((Relay::new(down, up, Foreign::fresh(ours)), ends))
    }

    /// The session's end. `sizes`: bytes of either ring, as [`RINGS`]; `grow`: as the router made
    /// them.
    ///
    /// # Errors
    /// [`Error::Access`]: the memory has not the required form; as [`Relay::create`].
    pub fn open(ends: RingDescriptors, sizes: (u32, u32), grow: bool) -> Result<Relay> {
        let up = Ring::open(ends.up, sizes.0, LARGER.0, grow)?;
        let down = Ring::open(ends.down, sizes.1, LARGER.1, grow)?;
        Ok(Relay::new(up, down, Foreign::fresh(ends.socket)))
    }

    fn new(out: Ring, from: Ring, socket: Foreign) -> Relay {
        Relay {
            writer: Writer::new(out.first.place()),
            reader: Reader::new(from.first.place()),
            socket: LinkSocket::brokered(socket),
            open: Frames::default(),
            grows: out.larger.map(|segment| Growth { segment, laps: 0, next: 0 }),
            follows: from.larger,
            segments: [out.first, from.first],
            has_headers: false,
        }
    }

    /// Sets whether frames contain the hop limit, flow label and class of their packets: only if
    /// both ends support them.
    #[must_use]
    pub fn with_headers(self, has_headers: bool) -> Relay {
        Relay { has_headers, ..self }
    }

    /// Readable when the other end sends a wake-up, or has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.socket.fd()) }
    }

    /// Whether there is room for frames of `bytes` bytes in all, with their heads and gaps. If not,
    /// the socket is readable when there is some.
    ///
    /// # Errors
    /// [`BrokenRing`].
    pub fn ask_room(&mut self, bytes: usize) -> core::result::Result<bool, BrokenRing> {
        if self.writer.room(bytes, bytes)?.is_some() {
            return Ok(true);
        }
        // Pairs with the reader's fence in `settle`: either the reader sees the word, or this end
        // sees the reader's tail.
        self.writer.place().wants_room().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.writer.room(bytes, bytes)?.is_some())
    }

    /// Memory in the ring for packets to one address, which [`Relay::send`] then sends: at least
    /// [`PACKET_MAX`] bytes, and at most `most` if that is more. `None`: there is no room; the
    /// socket is readable when there is some.
    ///
    /// # Errors
    /// [`BrokenRing`].
    pub fn room(&mut self, most: usize) -> core::result::Result<Option<&mut [u8]>, BrokenRing> {
        if !self.ask_room(FRAME_MAX)? {
            return Ok(None);
        }
        let most = most.max(PACKET_MAX);
        let Some((room, free, _)) = self.space(FRAME_MAX, HEAD + most)? else { return Ok(None) };
        // SAFETY: `free` bytes from there on are mapped, and the writer's until it publishes them.
        // The reader reads them by copies that no value of a byte can harm.
        Ok(Some(unsafe {
            let packets = room.as_ptr().add(HEAD);
            core::slice::from_raw_parts_mut(packets, (free - HEAD).min(most))
        }))
    }

    /// Sends the `len` bytes at the beginning of the memory that [`Relay::room`] returned last:
    /// packets of `seg` bytes each, of which the last may be shorter, to one address. Wakes nobody,
    /// as [`Relay::put_quietly`].
    ///
    /// # Errors
    /// [`BrokenRing`]: the ring's memory vanished, or there was not so much room.
    pub fn send(
        &mut self,
        to: &PeerAddr,
        len: usize,
        seg: usize,
    ) -> core::result::Result<(), BrokenRing> {
        let frame = HEAD + len;
        let Some((at, _)) = self.writer.room(frame, frame)? else { return Err(BrokenRing) };
        let grh = self.carried(to.grh());
        place_head(at, &to.gid, 0, if seg < len { seg as u16 } else { 0 }, grh)?;
        self.writer.publish(frame);
        Ok(())
    }

    /// Writes a frame, and wakes the other end if it sleeps. A packet longer than [`PACKET_MAX`] is
    /// never valid, and finds no room.
    ///
    /// # Errors
    /// [`BrokenRing`].
    pub fn put(
        &mut self,
        address: &[u8; 16],
        packet: &[u8],
    ) -> core::result::Result<Put, BrokenRing> {
        let put = self.put_quietly(address, packet, false)?;
        if put == Put::Done {
            self.wake();
        }
        Ok(put)
    }

    /// Wakes the other end if it sleeps. Follows [`Relay::put_quietly`].
    #[inline]
    pub fn wake(&mut self) {
        if self.writer.place().asleep().must_wake(sleep::ANY) {
            self.socket.wake();
        }
    }

    /// As [`Relay::put`], but wakes nobody: [`Relay::wake`] must follow soon, once for several
    /// frames, because its fence waits until all bytes have left this core. `marked`: the receiver
    /// gets too much, even if its ring is not half full.
    ///
    /// # Errors
    /// [`BrokenRing`].
    pub fn put_quietly(
        &mut self,
        address: &[u8; 16],
        packet: &[u8],
        marked: bool,
    ) -> core::result::Result<Put, BrokenRing> {
        self.put_with_icrc(address, &Packet::whole(packet, Fields::default()), &[], marked)
    }

    /// As [`Relay::put_quietly`], with the packet's ICRC, its last bytes, apart.
    ///
    /// # Errors
    /// [`BrokenRing`].
    pub fn put_with_icrc(
        &mut self,
        address: &[u8; 16],
        packet: &Packet<'_>,
        icrc: &[u8],
        marked: bool,
    ) -> core::result::Result<Put, BrokenRing> {
        let len = HEAD + packet.len() + icrc.len();
        if len > FRAME_MAX {
            return Ok(Put::Full);
        }
        // A ring that may move keeps room for its last frame.
        let kept = if self.grows.is_some() { FRAME_ALIGN } else { 0 };
        let room = self.space(len + kept, len + kept)?;
        let Some((at, _, half_full)) = room else { return Ok(Put::Full) };
        // Both are mapped. If the memory vanished all the same, the ring ends.
        let flags = if marked || half_full { CONGESTED } else { 0 };
        place_head(at, address, flags, 0, self.carried(packet.grh))?;
        let body = at.as_ptr() as u64 + HEAD as u64;
        host::place(body, packet.first).map_err(|_| BrokenRing)?;
        let (rest, to) = (packet.rest, body + packet.first.len() as u64);
        host::transfer(rest.0, to, rest.1).map_err(|_| BrokenRing)?;
        host::place(body + packet.len() as u64, icrc).map_err(|_| BrokenRing)?;
        self.writer.publish(len);
        Ok(Put::Done)
    }

    /// The fields of IP headers that this relay's frames carry.
    #[inline]
    fn carried(&self, grh: Fields) -> Fields {
        let Fields { flow_label, traffic_class, hop_limit } = grh;
        match self.has_headers {
            false => Fields::default(),
            true => Fields {
                flow_label: flow_label & FLOW_LABEL,
                traffic_class: traffic_class & DSCP,
                hop_limit: if hop_limit == 1 { 0 } else { hop_limit },
            },
        }
    }

    /// Room for a frame of `want` bytes: where, how many bytes up to `most` or half of the ring,
    /// and whether the ring is half full. Moves the ring first if it must.
    #[inline]
    fn space(
        &mut self,
        want: usize,
        most: usize,
    ) -> core::result::Result<Option<Space>, BrokenRing> {
        loop {
            // The ring is half full if less than half of it is free.
            let half = self.writer.half();
            let room = self.writer.room(want, half.max(most))?;
            let room = room.map(|(at, free)| (at, free, free < half));
            // A frame that finds no room is lost, which slows its sender for long.
            if matches!(room, Some((.., false))) || !self.grow(room.is_none())? {
                return Ok(room);
            }
        }
    }

    /// The own ring is half full: moves it to larger memory if it often is, or `at_once`. Returns
    /// true if it has moved, which happens once.
    #[cold]
    fn grow(&mut self, at_once: bool) -> core::result::Result<bool, BrokenRing> {
        let Some(growth) = &mut self.grows else { return Ok(false) };
        let at = self.writer.written();
        if !at_once && at < growth.next {
            return Ok(false);
        }
        growth.laps += 1;
        if growth.laps < LAPS && !at_once {
            // Three quarters of the ring: half is full now, and at most the rest becomes full.
            growth.next = at + self.writer.half() as u64 * 3 / 2;
            return Ok(false);
        }
        let Some((last, _)) = self.writer.room(MOVED, MOVED)? else { return Ok(false) };
        let Some(Growth { segment, .. }) = self.grows.take() else { return Ok(false) };
        if segment.allocate().is_err() {
            return Ok(false);
        }
        host::place(last.as_ptr() as u64, &[0; MOVED]).map_err(|_| BrokenRing)?;
        self.writer.publish(MOVED);
        // A sleeping reader has announced its sleep in the smaller ring.
        self.wake();
        self.writer = Writer::new(segment.place());
        self.segments[0] = segment;
        Ok(true)
    }

    /// Follows the other end's ring to larger memory, once. Returns false if it may not move.
    #[cold]
    fn follow(&mut self) -> bool {
        let Some(segment) = self.follows.take() else { return false };
        self.reader = Reader::new(segment.place());
        self.segments[1] = segment;
        true
    }

    /// Whether a frame waits.
    #[inline]
    pub fn has_input(&self) -> bool {
        !self.reader.is_empty()
    }

    /// Takes the next packet, copied into `to`; `None`: there is none.
    ///
    /// # Errors
    /// [`BrokenRing`]: a length or a head that no writer of ours writes.
    #[inline]
    pub fn take<'b>(
        &mut self,
        to: &'b mut [u8; PACKET_MAX],
    ) -> core::result::Result<Option<Frame<'b>>, BrokenRing> {
        let Some(len) = self.next_len()? else { return Ok(None) };
        let Frames { address, congested, grh, at, .. } = self.open;
        let packet = to.get_mut(..len).ok_or(BrokenRing)?;
        host::fetch(at, packet).map_err(|_| BrokenRing)?;
        self.consume();
        Ok(Some(Frame { address, congested, grh, packet }))
    }

    /// The next packet and the address in its frame's head. The packet stays until
    /// [`Relay::consume`]; its beginning is copied into `to`. `None`: there is none.
    ///
    /// # Errors
    /// As [`Relay::take`].
    #[inline]
    pub fn look<'b>(
        &mut self,
        to: &'b mut [u8; LONG],
    ) -> core::result::Result<Option<([u8; 16], Packet<'b>)>, BrokenRing> {
        let Some(len) = self.next_len()? else { return Ok(None) };
        let at = self.open.at;
        let first = &mut to[..if len < LONG { len } else { FIRST }];
        host::fetch(at, first).map_err(|_| BrokenRing)?;
        let rest = (at + first.len() as u64, len - first.len());
        Ok(Some((self.open.address, Packet { first, rest, grh: self.open.grh })))
    }

    /// Gives up the packet of [`Relay::look`], which must have returned one.
    #[inline]
    pub fn consume(&mut self) {
        let open = &mut self.open;
        let len = open.left.min(open.seg);
        (open.at, open.left) = (open.at + len as u64, open.left - len);
        let Frames { left, len: frame, .. } = *open;
        if left == 0 {
            self.reader.release(frame);
            if self.reader.place().wants_room().load(Ordering::Relaxed) != 0 {
                self.settle();
            }
        }
    }

    /// Bytes of the next packet; `None`: there is none.
    #[inline]
    fn next_len(&mut self) -> core::result::Result<Option<usize>, BrokenRing> {
        if self.open.left == 0 && !self.open_next()? {
            return Ok(None);
        }
        let len = self.open.left.min(self.open.seg);
        if len > PACKET_MAX {
            return Err(BrokenRing);
        }
        Ok(Some(len))
    }

    /// Reads the head of the next frame. False: there is none.
    fn open_next(&mut self) -> core::result::Result<bool, BrokenRing> {
        let mut next = self.reader.peek()?;
        if matches!(next, Some((_, MOVED))) && self.follow() {
            next = self.reader.peek()?;
        }
        let Some((from, len)) = next else { return Ok(false) };
        if len <= HEAD {
            return Err(BrokenRing);
        }
        let (mut head, at) = ([0; HEAD], from.as_ptr() as u64);
        host::fetch(at, &mut head).map_err(|_| BrokenRing)?;
        let (flags, hop_limit) = (head[16], head[17]);
        let word = u32::from_le_bytes([head[20], head[21], head[22], head[23]]);
        let seg = usize::from(u16::from_le_bytes([head[18], head[19]]));
        let left = len - HEAD;
        // Too long packets are noticed one by one.
        let several = seg > 0 && left > seg;
        let unknown = if self.has_headers { word >> 28 } else { word | u32::from(hop_limit) };
        if flags & !CONGESTED != 0 || unknown != 0 || !(seg == 0 || several) {
            return Err(BrokenRing);
        }
        let flow_label = word & FLOW_LABEL;
        let grh = Fields { flow_label, traffic_class: (word >> 20) as u8 & DSCP, hop_limit };
        let mut address = [0; 16];
        address.copy_from_slice(&head[..16]);
        let seg = if seg == 0 { left } else { seg };
        let congested = flags & CONGESTED != 0;
        self.open = Frames { at: at + HEAD as u64, left, seg, len, address, congested, grh };
        Ok(true)
    }

    /// Returns the room to the writer, and wakes it if it waits for room.
    pub fn settle(&mut self) {
        self.reader.settle();
        // Pairs with the writer's fence in `ask_room`.
        fence(Ordering::SeqCst);
        let wants_room = self.reader.place().wants_room();
        if wants_room.load(Ordering::Relaxed) != 0 {
            wants_room.store(0, Ordering::Relaxed);
            self.socket.wake();
        }
    }

    /// Announces that this end is about to sleep. Returns true if a frame is there after all.
    pub fn announce_sleep(&mut self) -> bool {
        self.settle();
        self.reader.place().asleep().announce(sleep::ANY);
        self.has_input()
    }

    /// Takes the wake-ups. Returns true if the other end has ended, or has sent an invalid message.
    pub fn take_wakeups(&mut self) -> bool {
        self.socket.for_each_event(|_| false)
    }
}

/// Room in a ring: where, how many bytes, and whether the ring is half full.
type Space = (NonNull<u8>, usize, bool);

/// Writes the head of a frame. `seg`: bytes of each packet but the last; 0: there is one packet.
#[inline]
fn place_head(
    at: NonNull<u8>,
    address: &[u8; 16],
    flags: u8,
    seg: u16,
    grh: Fields,
) -> core::result::Result<(), BrokenRing> {
    let mut head = [0; HEAD];
    head[..16].copy_from_slice(address);
    (head[16], head[17]) = (flags, grh.hop_limit);
    head[18..20].copy_from_slice(&seg.to_le_bytes());
    let word = u32::from(grh.traffic_class) << 20 | grh.flow_label;
    head[20..].copy_from_slice(&word.to_le_bytes());
    host::place(at.as_ptr() as u64, &head).map_err(|_| BrokenRing)
}

/// The memory of one ring, and of the larger one that it may move to.
struct Ring {
    first: Segment,
    larger: Option<Segment>,
}

impl Ring {
    fn create(size: u32, larger: u32, grow: bool) -> Result<(Ring, Fd)> {
        if grow {
            let (segments, fd) = Segment::create_growing(size as usize, larger as usize)?;
            return Ok((Ring::growing(segments), fd));
        }
        let (first, fd) = Segment::create(size as usize)?;
        Ok((Ring { first, larger: None }, fd))
    }

    fn open(fd: OwnedFd, size: u32, larger: u32, grow: bool) -> Result<Ring> {
        let fd = fd.as_raw_fd();
        if grow {
            return Segment::open_growing(fd, size as usize, larger as usize).map(Ring::growing);
        }
        Ok(Ring { first: Segment::open(fd, size as usize)?, larger: None })
    }

    fn growing([first, larger]: [Segment; 2]) -> Ring {
        Ring { first, larger: Some(larger) }
    }
}

impl RingDescriptors {
    /// Takes the descriptors of a message, in its order.
    ///
    /// # Errors
    /// [`Error::Os`]`(EMFILE)`: some did not arrive, because this process may open no more.
    pub fn from_descriptors(fds: [Option<OwnedFd>; 3]) -> Result<RingDescriptors> {
        let [Some(up), Some(down), Some(socket)] = fds else {
            return Err(Error::Os(libc::EMFILE));
        };
        Ok(RingDescriptors { up, down, socket })
    }
}

#[cfg(test)]
mod tests;
