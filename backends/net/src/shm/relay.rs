//! The rings between a session and its router, for traffic that involves more than the two ends of
//! a link: datagrams, messages of the connection manager, and all else that is sent as packets.
//!
//! The router makes two segments, one for each direction, and a socket for wake-ups. A frame is one
//! packet:
//!
//! ```text
//! 0  address (16 bytes): towards the router that of the receiver, from there that of the sender
//! 16  flags (2 bytes): bit 0: the receiver's ring is half full or more, or its rate is near
//! 18  zero (6)
//! 24  the packet, from its BTH to its ICRC
//! ```
//!
//! A reader trusts nothing: a frame is copied before it is checked. An end that overwrites the
//! other's words loses its own rings, nothing else.

use super::listener::{socket_pair, LinkSocket};
use super::ring::{Broken, Reader, Writer};
use super::segment::Segment;
use crate::sys::Fd;
use core::sync::atomic::{fence, Ordering};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::host;
use gdrcore_core::sleep;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

/// Bytes of a frame before its packet.
pub const HEAD: usize = 24;
/// Most bytes of a packet: the largest MTU and all headers.
pub const PACKET_MAX: usize = 4096 + 128;
/// Most bytes of a frame.
pub const FRAME_MAX: usize = HEAD + PACKET_MAX;
/// Bytes of the ring towards the router, and of the ring from it. The first only lets a session
/// wait; the second limits what its peers may have in flight.
pub const RINGS: (u32, u32) = (128 << 10, 256 << 10);
/// Flag of a frame: its receiver is too slow.
const CONGESTED: u16 = 1;

/// The parts of its rings that a session gets, in the order of the message.
#[derive(Debug)]
pub struct Ends {
    /// The ring towards the router.
    pub up: OwnedFd,
    /// The ring from it.
    pub down: OwnedFd,
    /// The socket of the bells.
    pub socket: OwnedFd,
}

/// A frame, where [`Relay::take`] has put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'b> {
    /// The address in its head.
    pub address: [u8; 16],
    /// The receiver's ring is half full, or more is sent to it than its rate allows.
    pub congested: bool,
    /// The packet.
    pub packet: &'b [u8],
}

/// Result of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is in the ring.
    Done,
    /// The ring has no room.
    Full,
}

/// One end of both rings. One thread at a time; nothing waits.
#[derive(Debug)]
pub struct Relay {
    writer: Writer,
    reader: Reader,
    socket: LinkSocket,
    /// Held for their mappings.
    _segments: [Segment; 2],
}

// SAFETY: its rings lead to mappings that it holds; they belong to the process, not to a thread.
// Every access takes `&mut self` or reads atomics.
unsafe impl Send for Relay {}

/// The same descriptor as an `OwnedFd`, which closes it.
fn owned(fd: Fd) -> OwnedFd {
    // SAFETY: `fd` is open and gives up what it owns.
    unsafe { OwnedFd::from_raw_fd(core::mem::ManuallyDrop::new(fd).raw()) }
}

impl Relay {
    /// The router's end of new rings, and the session's parts. Some ten system calls.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Os`]: no memory or descriptors are left.
    pub fn create() -> Result<(Relay, Ends)> {
        crate::fault::install()?;
        let (up, up_fd) = Segment::create(RINGS.0 as usize)?;
        let (down, down_fd) = Segment::create(RINGS.1 as usize)?;
        let [ours, theirs] = socket_pair()?;
        let ends = Ends { up: owned(up_fd), down: owned(down_fd), socket: theirs };
        Ok((Relay::of(down, up, ours)?, ends))
    }

    /// The session's end. `sizes`: bytes of either ring, as [`RINGS`].
    ///
    /// # Errors
    /// [`Error::Access`]: the memory has not the required form; as [`Relay::create`].
    pub fn open(ends: Ends, sizes: (u32, u32)) -> Result<Relay> {
        let raw = |fd: OwnedFd| Fd::from_call(fd.into_raw_fd());
        let up = Segment::open(raw(ends.up)?.raw(), sizes.0 as usize)?;
        let down = Segment::open(raw(ends.down)?.raw(), sizes.1 as usize)?;
        Relay::of(up, down, ends.socket)
    }

    fn of(out: Segment, from: Segment, socket: OwnedFd) -> Result<Relay> {
        Ok(Relay {
            writer: Writer::new(out.place()),
            reader: Reader::new(from.place()),
            socket: LinkSocket::brokered(Fd::from_call(socket.into_raw_fd())?),
            _segments: [out, from],
        })
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
    /// [`Broken`].
    pub fn has_room(&mut self, bytes: usize) -> core::result::Result<bool, Broken> {
        if self.writer.room(bytes, bytes)?.is_some() {
            return Ok(true);
        }
        // Pairs with the reader's fence in `settle`: either it sees the word, or this end sees its
        // tail.
        self.writer.place().wants_room().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.writer.room(bytes, bytes)?.is_some())
    }

    /// Writes a frame, and wakes the other end if it sleeps. A packet longer than [`PACKET_MAX`] is
    /// never valid, and finds no room.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn put(&mut self, address: &[u8; 16], packet: &[u8]) -> core::result::Result<Put, Broken> {
        let put = self.put_quietly(address, packet, false)?;
        if put == Put::Done {
            self.wake();
        }
        Ok(put)
    }

    /// Wakes the other end if it sleeps: after [`Relay::put_quietly`].
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
    /// [`Broken`].
    pub fn put_quietly(
        &mut self,
        address: &[u8; 16],
        packet: &[u8],
        marked: bool,
    ) -> core::result::Result<Put, Broken> {
        self.put_with_icrc(address, packet, &[], marked)
    }

    /// As [`Relay::put_quietly`], with the packet's ICRC, its last bytes, apart.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn put_with_icrc(
        &mut self,
        address: &[u8; 16],
        packet: &[u8],
        icrc: &[u8],
        marked: bool,
    ) -> core::result::Result<Put, Broken> {
        let len = HEAD + packet.len() + icrc.len();
        if len > FRAME_MAX {
            return Ok(Put::Full);
        }
        // Whether the other half of the ring is in use shows whether it is half full.
        let half = self.writer.half();
        let (room, congested) = match self.writer.room(len, half.max(len))? {
            Some((room, free)) => (room, marked || free < half),
            None => return Ok(Put::Full),
        };
        let mut head = [0; HEAD];
        head[..16].copy_from_slice(address);
        head[16..18].copy_from_slice(&if congested { CONGESTED } else { 0 }.to_le_bytes());
        let at = room.as_ptr() as u64;
        // Both are mapped. If the memory vanished all the same, the ring ends.
        host::place(at, &head).map_err(|_| Broken)?;
        let body = at + HEAD as u64;
        host::place(body, packet).map_err(|_| Broken)?;
        host::place(body + packet.len() as u64, icrc).map_err(|_| Broken)?;
        self.writer.publish(len);
        Ok(Put::Done)
    }

    /// Whether a frame waits.
    #[inline]
    pub fn has_input(&self) -> bool {
        !self.reader.is_empty()
    }

    /// Takes the next frame, copied into `to`; `None`: there is none.
    ///
    /// # Errors
    /// [`Broken`]: a length or a head that no writer of ours writes.
    pub fn take<'b>(
        &mut self,
        to: &'b mut [u8; FRAME_MAX],
    ) -> core::result::Result<Option<Frame<'b>>, Broken> {
        let Some((from, len)) = self.reader.peek()? else { return Ok(None) };
        let bytes = to.get_mut(..len).filter(|_| len > HEAD).ok_or(Broken)?;
        host::fetch(from.as_ptr() as u64, bytes).map_err(|_| Broken)?;
        self.reader.release(len);
        if self.reader.place().wants_room().load(Ordering::Relaxed) != 0 {
            self.settle();
        }
        let (head, packet) = bytes.split_first_chunk::<HEAD>().ok_or(Broken)?;
        let flags = u16::from_le_bytes([head[16], head[17]]);
        if flags & !CONGESTED != 0 || head[18..] != [0; 6] {
            return Err(Broken);
        }
        let mut address = [0; 16];
        address.copy_from_slice(&head[..16]);
        Ok(Some(Frame { address, congested: flags & CONGESTED != 0, packet }))
    }

    /// Returns the room to the writer, and wakes it if it waits for room.
    pub fn settle(&mut self) {
        self.reader.settle();
        // Pairs with the writer's fence in `has_room`.
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
    pub fn hear(&self) -> bool {
        self.socket.for_each_event(|_| false)
    }
}

impl Ends {
    /// Makes them of a message's descriptors, in its order.
    ///
    /// # Errors
    /// [`Error::Os`]`(EMFILE)`: some did not arrive, because this process may open no more.
    pub fn of(fds: [Option<OwnedFd>; 3]) -> Result<Ends> {
        let [Some(up), Some(down), Some(socket)] = fds else {
            return Err(Error::Os(libc::EMFILE));
        };
        Ok(Ends { up, down, socket })
    }
}

#[cfg(test)]
mod tests;
