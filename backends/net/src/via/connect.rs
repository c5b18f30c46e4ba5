//! Reaches a router's socket.

use super::find::SocketPath;
use crate::clock::now_ns;
use crate::local;
use crate::sys::{errno, set_option, wait_ready};
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A socket for a router. It has room for the few messages that a process may have in flight, so
/// that unread messages do not fill the system's memory.
pub(super) fn socket() -> Result<OwnedFd> {
    let fd = local::socket(libc::SOCK_SEQPACKET)?;
    set_option(fd.raw(), libc::SOL_SOCKET, libc::SO_SNDBUF, 64i32 << 10)?;
    Ok(fd.into())
}

/// Connects without waiting, or returns the errno.
pub(super) fn try_connect(fd: BorrowedFd<'_>, at: &SocketPath) -> Result<(), i32> {
    let (addr, len) = at.to_sockaddr();
    // SAFETY: `len` bytes of the address are initialised and live through the call.
    match unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

/// Connects until a time.
///
/// # Errors
/// With a reason: no router listens there, or it accepts no connection in time.
pub(super) fn connect(at: &SocketPath, until: u64) -> Result<OwnedFd> {
    let fd = socket()?;
    loop {
        let Err(n) = try_connect(fd.as_fd(), at) else { return Ok(fd) };
        match n {
            // The backlog is full, because many processes connect at once. No event reports room in
            // the backlog.
            libc::EAGAIN | libc::EINTR if now_ns() < until => {
                std::thread::sleep(core::time::Duration::from_millis(2))
            }
            libc::EAGAIN | libc::EINTR => {
                return Err(refuse!(TimedOut, "router '{at}': it accepts no connections"))
            }
            libc::EACCES | libc::EPERM => {
                return Err(refuse!(
                    Access,
                    "router '{at}': this user may not connect \
                     to the socket, or not look into its folder"
                ))
            }
            n => {
                let words = match n {
                    libc::ENOENT => "there is no such socket",
                    libc::ECONNREFUSED => "no socket listens there: the router is not running",
                    libc::EPROTOTYPE => "the socket is another program's",
                    _ => "no socket of a router",
                };
                return Err(refuse!(NoDevice, "router '{at}': {words} (errno {n})"));
            }
        }
    }
}

/// Sleeps until a descriptor is ready, at most `ns`.
pub(super) fn poll(fd: BorrowedFd<'_>, events: i16, ns: u64) {
    let ms = i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX);
    // The caller's next call finds out the result.
    wait_ready(fd.as_raw_fd(), events, ms);
}
