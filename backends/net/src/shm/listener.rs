//! Passes a segment from one process to another, over a Unix socket named after the address
//! ([`crate::local`]).
//!
//! The sender connects, checks which user listens, and sends one hello with the memory. The socket
//! then carries wake-ups, requests and grants.

use super::messages::{
    Grant, GrantRequest, Hello, LinkMessage, GRANT_LEN, HELLO, HELLO_BROKERED, HELLO_LEN,
};
use super::segment::Segment;
use crate::addr::Endpoint;
use crate::local::{accept, connect, Accepted, Lock, Role, SocketPath};
use crate::rights::{self, Foreign};
use crate::sys::{set_option, Fd};
use gdrcore_core::error::{Error, Result};
use std::os::fd::RawFd;

/// Most messages of one link's socket that one call handles.
const EVENTS_MAX: usize = 64;

/// The socket at which other processes deliver their segments.
#[derive(Debug)]
pub struct Listener {
    fd: Fd,
}

impl Drop for Listener {
    /// Takes the waiting connections, because the listener's end would close the descriptors in
    /// them.
    fn drop(&mut self) {
        // SAFETY: no pointers. From here on nobody connects.
        unsafe { libc::shutdown(self.fd.raw(), libc::SHUT_RDWR) };
        while matches!(accept(self.fd.raw()), Accepted::Peer(_) | Accepted::OtherUser) {}
    }
}

impl Listener {
    /// Listens at the name of a holder.
    ///
    /// # Errors
    /// As [`Lock::bind`].
    pub(crate) fn open(lock: &Lock) -> Result<Listener> {
        Ok(Listener { fd: lock.listen(Role::Links)? })
    }

    /// Readable when a connection waits.
    pub fn fd(&self) -> RawFd {
        self.fd.raw()
    }

    /// Accepts the next connection of this user.
    pub(super) fn accept(&self) -> Incoming {
        // Bounded: connections of other users are closed, sixteen at a time.
        for _ in 0..16 {
            match accept(self.fd.raw()) {
                Accepted::Peer(fd) => return Incoming::Link(LinkSocket { fd }),
                Accepted::OtherUser => {}
                Accepted::Nothing => break,
                Accepted::NoDescriptor => return Incoming::NoDescriptor,
            }
        }
        Incoming::Nothing
    }
}

/// Result of an accept at a listener.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A connection whose segment has arrived or will arrive.
    Link(LinkSocket),
    /// Nothing more for now.
    Nothing,
    /// A connection for which this process has no descriptor; it waits in the kernel.
    NoDescriptor,
}

/// The next event of a link's socket.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// No event waits.
    Idle,
    /// The other end has sent a wake-up.
    Wake,
    /// The other end requests a grant.
    Request { request: GrantRequest, by_address: bool },
    /// The other end grants memory: the descriptor's, or by address.
    Grant(Grant, Option<Foreign>),
    /// The other end has closed the socket, or has sent an unknown message.
    Closed,
}

/// The socket of one link: its end, wake-ups, requests and grants. No call on it blocks.
#[derive(Debug)]
pub struct LinkSocket {
    fd: Foreign,
}

impl LinkSocket {
    /// One end of a socket that a router made.
    pub(super) fn brokered(fd: Foreign) -> LinkSocket {
        LinkSocket { fd: Foreign::socket(fd) }
    }

    /// Sets whether a descriptor may come. One may come only after this end has requested memory.
    pub(super) fn allow_descriptor(&mut self, allowed: bool) {
        self.fd.expect(allowed);
    }

    /// Readable when a wake-up, a message or the end of the other process waits.
    pub fn fd(&self) -> RawFd {
        self.fd.raw()
    }

    /// Wakes the other end. A full socket already wakes it, so a failed send loses nothing.
    pub fn wake(&self) {
        self.send(&[1], None);
    }

    /// Sends a message, with a descriptor or without. False: the message was not sent.
    pub(super) fn send(&self, bytes: &[u8], fd: Option<RawFd>) -> bool {
        match fd {
            Some(fd) => rights::send(self.fd.raw(), bytes, fd).is_ok(),
            None => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: the bytes live through the call.
                let n =
                    unsafe { libc::send(self.fd.raw(), bytes.as_ptr().cast(), bytes.len(), flags) };
                n == bytes.len() as isize
            }
        }
    }

    pub(super) fn next_event(&mut self) -> LinkEvent {
        let mut bytes = [0u8; GRANT_LEN + 1];
        let Some(Message { len, fd, fds }) = receive(&mut self.fd, &mut bytes) else {
            return LinkEvent::Idle;
        };
        match (LinkMessage::parse(&bytes[..len.min(bytes.len())]), fds, fd) {
            (Some(LinkMessage::Wake), 0, None) => LinkEvent::Wake,
            (Some(LinkMessage::Request { request, by_address }), 0, None) => {
                LinkEvent::Request { request, by_address }
            }
            (Some(LinkMessage::Grant(grant)), 0, None) if grant.by_address => {
                LinkEvent::Grant(grant, None)
            }
            (Some(LinkMessage::Grant(grant)), 1, Some(fd)) if !grant.by_address => {
                LinkEvent::Grant(grant, Some(fd))
            }
            _ => LinkEvent::Closed,
        }
    }

    /// Passes every event but wake-ups to `take`, which returns false for an unexpected one.
    /// Returns true if the socket is closed or such an event came. Bounded: at most [`EVENTS_MAX`]
    /// messages are read per call.
    pub(super) fn for_each_event(&mut self, mut take: impl FnMut(LinkEvent) -> bool) -> bool {
        for _ in 0..EVENTS_MAX {
            match self.next_event() {
                LinkEvent::Idle => break,
                LinkEvent::Wake => {}
                LinkEvent::Closed => return true,
                said => {
                    if !take(said) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Receives the hello of a connection. `Ok(None)`: it has not arrived yet.
    ///
    /// # Errors
    /// [`Error::Access`]: the message is no hello, or its memory has not the required form; the
    /// socket must be closed. [`Error::NoMemory`].
    pub fn receive(&mut self) -> Result<Option<(Endpoint, Segment)>> {
        self.receive_hello(HELLO)
    }

    /// As [`LinkSocket::receive`], on a socket that a router made: only the memory is used.
    ///
    /// # Errors
    /// As [`LinkSocket::receive`].
    pub(super) fn receive_brokered(&mut self) -> Result<Option<Segment>> {
        Ok(self.receive_hello(HELLO_BROKERED)?.map(|(_, segment)| segment))
    }

    fn receive_hello(&mut self, hello: [u8; 8]) -> Result<Option<(Endpoint, Segment)>> {
        let mut bytes = [0u8; HELLO_LEN + 1];
        let Some(Message { len, fd, fds }) = receive(&mut self.fd, &mut bytes) else {
            return Ok(None);
        };
        self.fd.expect(false);
        let said = Hello::parse(&bytes[..len.min(bytes.len())], hello);
        let (Some(Hello { size, from }), 1, Some(memory)) = (said, fds, fd) else {
            return Err(Error::Access);
        };
        let segment = Segment::open(memory.raw(), size as usize).map_err(|e| match e {
            Error::NoMemory => e,
            _ => Error::Access,
        })?;
        // The memory has this size and is mapped, so this close is not its last one.
        drop(memory.trusted());
        Ok(Some((from, segment)))
    }
}

/// One message of a socket: its length (0 also for a closed socket), the first of its descriptors,
/// and their number.
struct Message {
    len: usize,
    fd: Option<Foreign>,
    fds: usize,
}

/// Takes the next message; `None`: there is none now. Drops all descriptors but the first.
fn receive(from: &mut Foreign, bytes: &mut [u8]) -> Option<Message> {
    let mut message = Message { len: 0, fd: None, fds: 0 };
    let arrived = from.receive(bytes, |i, fd| {
        if i == 0 {
            message.fd = Some(fd);
        }
    });
    match arrived {
        // The message stays in the queue, so the socket counts as closed.
        Ok(arrived) if arrived.cut => {}
        Ok(arrived) => (message.len, message.fds) = (arrived.len, arrived.fds),
        Err(libc::EAGAIN | libc::EINTR) => return None,
        // The socket is closed.
        Err(_) => {}
    }
    Some(message)
}

/// Connects to the process that listens under a name and sends it a new segment of `size` bytes.
///
/// # Errors
/// As [`connect`].
pub(crate) fn connect_link(
    at: &SocketPath,
    from: &Endpoint,
    size: usize,
) -> Result<(LinkSocket, Segment)> {
    send_hello(connect(at)?, HELLO, from, size)
}

/// Sends a new segment over a socket that a router made.
///
/// # Errors
/// As [`connect_link`].
pub(super) fn connect_brokered(fd: Foreign, size: usize) -> Result<(LinkSocket, Segment)> {
    send_hello(Foreign::socket(fd), HELLO_BROKERED, &Endpoint::default(), size)
}

fn send_hello(
    mut fd: Foreign,
    hello: [u8; 8],
    from: &Endpoint,
    size: usize,
) -> Result<(LinkSocket, Segment)> {
    // The hello must leave at once, so the buffer needs room for it and for a few wake-ups.
    set_option(fd.raw(), libc::SOL_SOCKET, libc::SO_SNDBUF, 4096i32)?;
    let (segment, memory) = Segment::create(size)?;
    fd.expect(false);
    let bytes = Hello { size: size as u32, from: *from }.emit(hello);
    rights::send(fd.raw(), &bytes, memory.raw())?;
    Ok((LinkSocket { fd }, segment))
}

#[cfg(test)]
mod tests;
