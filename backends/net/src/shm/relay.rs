//! The rings between a session and its router, for what needs more than the two ends of a link:
//! datagrams, messages of the connection manager, and whatever else leaves as packets.
//!
//! Two segments, one each way, which the router makes, and a socket of bells. A frame is one
//! packet:
//!
//! ```text
//!  0  address (16 bytes): towards the router that of the receiver, from there that of the sender
//! 16  flags (2 bytes): bit 0: the receiver's ring is half full or more, or its rate is near
//! 18  zero (6)
//! 24  the packet, from its BTH to its ICRC
//! ```
//!
//! Whoever reads believes nothing: a frame is copied out first. What the two ends do to each
//! other's words costs themselves their rings.

use super::listener::LinkSocket;
use super::ring::{Broken, Reader, Writer};
use super::segment::Segment;
use crate::sys::{check, Fd};
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
/// Bytes of the ring towards the router, and of that from it. The first only lets a session wait,
/// the second is what its peers may have under way.
pub const RINGS: (u32, u32) = (64 << 10, 256 << 10);
/// Flag of a frame: its receiver does not keep up.
const CONGESTED: u16 = 1;

/// What a session is given of its rings, in the order of the message.
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
    /// The receiver's ring is half full, or more is sent to it than its rate lets through.
    pub congested: bool,
    /// The packet.
    pub packet: &'b [u8],
}

/// What became of a frame.
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

// SAFETY: what its rings lead to are mappings of the process, which it holds; no thread owns them,
// and all that is done with them takes `&mut self` or reads atomics.
unsafe impl Send for Relay {}

fn pair() -> Result<[OwnedFd; 2]> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut fds = [-1; 2];
    // SAFETY: room for the two descriptors that the call writes.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: new, and nobody else's.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The same descriptor in the other type: its owner closes it no more.
fn owned(fd: Fd) -> OwnedFd {
    // SAFETY: `fd` is open and gives up what it owns.
    unsafe { OwnedFd::from_raw_fd(core::mem::ManuallyDrop::new(fd).raw()) }
}

impl Relay {
    /// The router's end of new rings, and what the session gets. Some ten system calls.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Os`]: no memory or descriptors are left.
    pub fn create() -> Result<(Relay, Ends)> {
        crate::fault::install()?;
        let (up, up_fd) = Segment::create(RINGS.0 as usize)?;
        let (down, down_fd) = Segment::create(RINGS.1 as usize)?;
        let [ours, theirs] = pair()?;
        let ends = Ends { up: owned(up_fd), down: owned(down_fd), socket: theirs };
        Ok((Relay::of(down, up, ours)?, ends))
    }

    /// The session's end. `sizes`: bytes of either ring, as [`RINGS`].
    ///
    /// # Errors
    /// [`Error::Access`]: the memory is not what it must be; as [`Relay::create`].
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

    /// Readable when the other end rings, or is gone.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.socket.fd()) }
    }

    /// Whether frames of `bytes` bytes in all, with their heads and gaps, find room. Where not, a
    /// socket says when there is some.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn has_room(&mut self, bytes: usize) -> core::result::Result<bool, Broken> {
        if self.writer.room(bytes, bytes)?.is_some() {
            return Ok(true);
        }
        // Pairs with the reader's fence in `settle`: it sees the word, or we see its tail.
        self.writer.place().wants_room().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(self.writer.room(bytes, bytes)?.is_some())
    }

    /// Writes a frame; rings if the other end sleeps. A packet longer than [`PACKET_MAX`] is none,
    /// and finds no room.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn put(&mut self, address: &[u8; 16], packet: &[u8]) -> core::result::Result<Put, Broken> {
        self.put_marked(address, packet, false)
    }

    /// The same; `marked`: the receiver gets too much, even where its ring is not half full.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn put_marked(
        &mut self,
        address: &[u8; 16],
        packet: &[u8],
        marked: bool,
    ) -> core::result::Result<Put, Broken> {
        let len = HEAD + packet.len();
        if len > FRAME_MAX {
            return Ok(Put::Full);
        }
        // The other half of the ring tells whether it is half full.
        let half = self.writer.half();
        let (room, congested) = match self.writer.room(len, half.max(len))? {
            Some((room, free)) => (room, marked || free < half),
            None => return Ok(Put::Full),
        };
        let mut head = [0; HEAD];
        head[..16].copy_from_slice(address);
        head[16..18].copy_from_slice(&if congested { CONGESTED } else { 0 }.to_le_bytes());
        let at = room.as_ptr() as u64;
        // Both are mapped; memory that vanished all the same is the end of the ring.
        host::place(at, &head).map_err(|_| Broken)?;
        host::place(at + HEAD as u64, packet).map_err(|_| Broken)?;
        self.writer.publish(len);
        if self.writer.place().asleep().must_wake(sleep::ANY) {
            self.socket.wake();
        }
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
    /// [`Broken`]: a length, or a head, that no writer of ours gives.
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

    /// Gives the writer its room back, and wakes it if it waits for that.
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

    /// Says that this end is about to sleep. True: a frame is there after all.
    pub fn announce_sleep(&mut self) -> bool {
        self.settle();
        self.reader.place().asleep().announce(sleep::ANY);
        self.has_input()
    }

    /// Takes the bells. True: the other end is gone, or says what no process of ours says.
    pub fn hear(&self) -> bool {
        self.socket.for_each_event(|_| false)
    }
}

impl Ends {
    /// Of the descriptors of a message, in its order.
    ///
    /// # Errors
    /// [`Error::Os`]`(EMFILE)`: some did not come, as this process may open no more.
    pub fn of(fds: [Option<OwnedFd>; 3]) -> Result<Ends> {
        let [Some(up), Some(down), Some(socket)] = fds else {
            return Err(Error::Os(libc::EMFILE));
        };
        Ok(Ends { up, down, socket })
    }
}

#[cfg(test)]
mod tests;
