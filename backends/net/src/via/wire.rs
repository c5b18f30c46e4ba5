//! Sends and receives one datagram with its descriptors over a Unix socket. Nothing here waits.

use super::proto::{Envelope, FDS_MAX, MESSAGE_MAX};
use crate::closing;
use crate::rights::{self, Foreign};
use crate::sys::last_error;
use gdrcore_core::error::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

/// A received datagram. A drop gives up its remaining descriptors.
#[derive(Debug)]
pub struct Received {
    /// The datagram's length; [`MESSAGE_MAX`] + 1 for a longer datagram.
    pub len: usize,
    /// The datagram's first descriptors.
    pub fds: [Option<Foreign>; FDS_MAX],
    /// Number of descriptors that arrived; the kernel may have withheld more.
    pub count: usize,
    /// The datagram had more descriptors than there was room for: [`FDS_MAX`] descriptors, or as
    /// many as this process may open.
    pub cut: bool,
}

/// Result of one read of a socket.
#[derive(Debug)]
pub enum ReadOutcome {
    /// A datagram, in the buffer.
    Message(Received),
    /// Nothing for now.
    Nothing,
    /// The other end is gone.
    Gone,
}

const _: () = assert!(FDS_MAX <= rights::SEND_MAX);

/// A buffer for [`receive`].
pub type Buffer = [u8; MESSAGE_MAX + 1];

/// Takes the next datagram of a socket; none while many descriptors wait to be closed. Any thread;
/// one system call.
pub fn receive(from: BorrowedFd<'_>, bytes: &mut Buffer) -> ReadOutcome {
    if closing::is_full() {
        return ReadOutcome::Nothing;
    }
    let mut message = Received { len: 0, fds: [const { None }; FDS_MAX], count: 0, cut: false };
    let arrived = rights::receive(from.as_raw_fd(), bytes, 0, |i, fd| {
        // A descriptor without a place is given up.
        if let Some(place) = message.fds.get_mut(i) {
            *place = Some(fd);
        }
    });
    match arrived {
        Ok(arrived) => {
            (message.len, message.count) = (arrived.len, arrived.fds);
            message.cut = arrived.cut || arrived.fds > FDS_MAX;
        }
        Err(libc::EAGAIN | libc::EINTR) => return ReadOutcome::Nothing,
        Err(_) => return ReadOutcome::Gone,
    }
    // An empty datagram, which no message is, counts as the end too: the kernel reports both the
    // same way.
    if message.len == 0 {
        return ReadOutcome::Gone;
    }
    ReadOutcome::Message(message)
}

/// Reads from a stream on which no descriptors are expected: any that come are given up. Any
/// thread; one system call.
///
/// # Errors
/// The errno of recvmsg(2).
pub fn read(from: BorrowedFd<'_>, bytes: &mut [u8]) -> core::result::Result<usize, i32> {
    rights::receive(from.as_raw_fd(), bytes, 0, |_, _| {}).map(|arrived| arrived.len)
}

/// Sends a message with a descriptor or without, whole or not at all. Any thread; one system call.
///
/// # Errors
/// [`Error::Again`]: the other end's queue is full. Others as sendmsg(2): the other end has ended,
/// or, `Os(ETOOMANYREFS)`, too many descriptors are in flight.
pub fn send(to: BorrowedFd<'_>, e: &Envelope, fd: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut bytes = [0; MESSAGE_MAX];
    let len = e.emit(&mut bytes);
    send_bytes(to, &bytes[..len], fd)
}

/// Sends a message with one to [`FDS_MAX`] descriptors, as [`send`] does.
///
/// # Errors
/// As [`send`]; [`Error::Invalid`]: another number of descriptors.
pub fn send_with<const N: usize>(
    to: BorrowedFd<'_>,
    e: &Envelope,
    fds: [BorrowedFd<'_>; N],
) -> Result<()> {
    let mut bytes = [0; MESSAGE_MAX];
    let len = e.emit(&mut bytes);
    rights::send_all(to.as_raw_fd(), &bytes[..len], &fds.map(|fd| fd.as_raw_fd()))
}

/// As [`send`], for any bytes.
///
/// # Errors
/// As [`send`].
pub fn send_bytes(to: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
    if let Some(fd) = fd {
        return rights::send(to.as_raw_fd(), bytes, fd.as_raw_fd());
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes live through the call.
    let n = unsafe { libc::send(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    match n {
        n if n == bytes.len() as isize => Ok(()),
        n if n < 0 => Err(last_error()),
        _ => Err(Error::Os(libc::EIO)),
    }
}
