//! One datagram with its descriptors over a Unix socket. Nothing here waits.

use super::proto::{Envelope, FDS_MAX, MESSAGE_MAX};
use crate::sys::{errno, last_error};
use gdrcore_core::error::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A datagram that came. Descriptors that nobody takes out of it are closed with it.
#[derive(Debug)]
pub struct Received {
    /// Its bytes; a longer datagram than [`MESSAGE_MAX`] has one more.
    pub len: usize,
    /// Its first descriptors.
    pub fds: [Option<OwnedFd>; FDS_MAX],
    /// How many it had; the kernel may have kept more back.
    pub count: usize,
    /// It had more than there was room for: [`FDS_MAX`] descriptors, or as many as this process may open.
    pub cut: bool,
}

/// What a look at a socket found.
#[derive(Debug)]
pub enum Look {
    /// A datagram, in the buffer.
    Message(Received),
    /// Nothing for now.
    Nothing,
    /// The other end is gone.
    Gone,
}

/// Room for the control message of [`FDS_MAX`] descriptors and a little more; in words, so that it is aligned.
const CONTROL: usize = 8;
const _: () = assert!(CONTROL * 8 >= 16 + 4 * FDS_MAX);

/// A buffer for [`receive`].
pub type Buffer = [u8; MESSAGE_MAX + 1];

/// Takes the next datagram of a socket. Any thread; one system call.
pub fn receive(from: BorrowedFd<'_>, bytes: &mut Buffer) -> Look {
    let mut control = [0u64; CONTROL];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeroes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = core::mem::size_of_val(&control) as _;
    // SAFETY: every pointer in `msg` leads to a buffer that lives through the call and has the length beside it.
    let n = unsafe { libc::recvmsg(from.as_raw_fd(), &mut msg, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    if n < 0 {
        return if matches!(errno(), libc::EAGAIN | libc::EINTR) { Look::Nothing } else { Look::Gone };
    }
    let cut = msg.msg_flags & libc::MSG_CTRUNC != 0;
    let mut message = Received { len: n as usize, fds: [const { None }; FDS_MAX], count: 0, cut };
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
                // SAFETY: new, and nobody else's; dropped, and so closed, where there is no place for it.
                let fd = unsafe { OwnedFd::from_raw_fd(raw) };
                if let Some(place) = message.fds.get_mut(message.count) {
                    *place = Some(fd);
                }
                message.count += 1;
            }
        }
        // SAFETY: as above.
        cmsg = unsafe { libc::CMSG_NXTHDR(&msg, cmsg) };
    }
    // An empty datagram, which no message is, counts as an end too: the kernel says both the same way.
    if message.len == 0 {
        return Look::Gone;
    }
    Look::Message(message)
}

/// Sends a message with a descriptor or without. It goes whole or not at all. Any thread; one system call.
///
/// # Errors
/// [`Error::Again`]: the other end takes nothing now. Others as sendmsg(2): it is gone, or, `Os(ETOOMANYREFS)`, too many descriptors are under way.
pub fn send(to: BorrowedFd<'_>, e: &Envelope, fd: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut bytes = [0; MESSAGE_MAX];
    let len = e.emit(&mut bytes);
    send_bytes(to, &bytes[..len], fd)
}

/// The same for any bytes.
///
/// # Errors
/// As [`send`].
pub fn send_bytes(to: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
    if let Some(fd) = fd {
        return crate::shm::door::send_with(to.as_raw_fd(), bytes, fd.as_raw_fd());
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
