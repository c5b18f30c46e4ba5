//! Descriptors that travel with messages of Unix sockets (SCM_RIGHTS, unix(7)). Any thread; one
//! system call each.

use crate::sys::{errno, last_error};
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::Error;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A message that has arrived.
pub(crate) struct Arrived {
    /// Its bytes.
    pub(crate) len: usize,
    /// Descriptors that came with it.
    pub(crate) fds: usize,
    /// More descriptors came than the control buffer holds; the kernel has closed the rest.
    pub(crate) cut: bool,
}

/// Receives the next message, with a control buffer of `WORDS` words. `keep` gets each descriptor
/// with its number; it closes those that it drops.
///
/// # Errors
/// The errno of recvmsg(2); EAGAIN: there is no message now.
pub(crate) fn receive<const WORDS: usize>(
    from: RawFd,
    bytes: &mut [u8],
    mut keep: impl FnMut(usize, OwnedFd),
) -> core::result::Result<Arrived, i32> {
    // In words, so that it is aligned.
    let mut control = [0u64; WORDS];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeroes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = core::mem::size_of_val(&control) as _;
    // SAFETY: every pointer in `msg` leads to a buffer that lives through the call and has the
    // length beside it.
    let n = unsafe { libc::recvmsg(from, &mut msg, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    if n < 0 {
        return Err(errno());
    }
    let mut arrived =
        Arrived { len: n as usize, fds: 0, cut: msg.msg_flags & libc::MSG_CTRUNC != 0 };
    // SAFETY: `msg` is as recvmsg left it, and its control buffer lives.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(&msg) };
    while !cmsg.is_null() {
        // SAFETY: not null, so a whole header inside the control buffer.
        let head = unsafe { cmsg.read_unaligned() };
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: no pointers.
            let data = head.cmsg_len as usize - unsafe { libc::CMSG_LEN(0) } as usize;
            for i in 0..data / size_of::<RawFd>() {
                // SAFETY: the kernel wrote that many descriptors behind the header.
                let raw = unsafe { libc::CMSG_DATA(cmsg).cast::<RawFd>().add(i).read_unaligned() };
                // SAFETY: new, and nobody else's.
                keep(arrived.fds, unsafe { OwnedFd::from_raw_fd(raw) });
                arrived.fds += 1;
            }
        }
        // SAFETY: as above.
        cmsg = unsafe { libc::CMSG_NXTHDR(&msg, cmsg) };
    }
    Ok(arrived)
}

/// Sends a message with one descriptor, whole or not at all.
///
/// # Errors
/// As [`send_all`].
pub(crate) fn send(to: RawFd, bytes: &[u8], fd: RawFd) -> Result<()> {
    send_all(to, bytes, &[fd])
}

/// Descriptors that [`send_all`] takes.
pub(crate) const SEND_MAX: usize = 4;

/// Sends a message with one to [`SEND_MAX`] descriptors, whole or not at all.
///
/// # Errors
/// As sendmsg(2); `Os(EIO)`: only a part was sent. [`Error::Invalid`]: another number of
/// descriptors.
pub(crate) fn send_all(to: RawFd, bytes: &[u8], fds: &[RawFd]) -> Result<()> {
    if !(1..=SEND_MAX).contains(&fds.len()) {
        return Err(refuse!(Invalid, "a message of {} descriptors: 1 to {SEND_MAX}", fds.len()));
    }
    let size = size_of_val(fds) as u32;
    let mut control = [0u64; 2 + SEND_MAX / 2];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zeroes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    // SAFETY: no pointers; a header of 16 bytes and at most 16 of descriptors, of 32.
    msg.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as _;
    // SAFETY: the control buffer has room for one header and the descriptors, and is aligned for
    // the header.
    unsafe {
        let cmsg = libc::CMSG_FIRSTHDR(&msg);
        (*cmsg).cmsg_level = libc::SOL_SOCKET;
        (*cmsg).cmsg_type = libc::SCM_RIGHTS;
        (*cmsg).cmsg_len = libc::CMSG_LEN(size) as _;
        for (i, &fd) in fds.iter().enumerate() {
            libc::CMSG_DATA(cmsg).cast::<RawFd>().add(i).write_unaligned(fd);
        }
    }
    // SAFETY: every pointer in `msg` leads to a buffer that lives through the call; sendmsg writes
    // to none of them.
    let n = unsafe { libc::sendmsg(to, &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if n == bytes.len() as isize {
        Ok(())
    } else if n < 0 {
        Err(last_error())
    } else {
        Err(Error::Os(libc::EIO))
    }
}
