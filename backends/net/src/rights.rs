//! Descriptors that travel with messages of Unix sockets (SCM_RIGHTS, unix(7)). Any thread; one
//! system call each.

use crate::closing;
use crate::memfd::file_type;
use crate::sys::{check, errno, get_option, last_error, set_option};
use core::mem::{ManuallyDrop, MaybeUninit};
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::Error;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// setsockopt(2), asm-generic/socket.h, since Linux 6.16: whether descriptors may be received. A
/// connection has the option of its listener. Without it the kernel refuses them to the sender
/// (EPERM).
const SO_PASSRIGHTS: i32 = 83;
/// Most descriptors of a message (SCM_MAX_FD, unix(7)).
const FDS: usize = 253;
/// Messages that are taken before a socket is closed.
const EMPTIED: usize = 16;
/// A control buffer that holds them, and credentials; in words, so that it is aligned. The kernel
/// closes descriptors that do not fit, on the receiving thread.
pub(crate) type Ancillary = [MaybeUninit<u64>; 8 + FDS.div_ceil(2)];
/// Bytes of the control buffer for a look at a message: no message of ours has more descriptors. A
/// message with more stays in the queue, and is closed with its socket, as one thing.
// SAFETY: computes from a number.
const LOOKED_AT: usize = unsafe {
    libc::CMSG_SPACE((SEND_MAX * size_of::<RawFd>()) as u32)
        + libc::CMSG_SPACE(size_of::<libc::ucred>() as u32)
} as usize;
/// Descriptors that fit into [`LOOKED_AT`] bytes.
const HELD: usize = LOOKED_AT / size_of::<RawFd>();

/// Sets whether descriptors may come over a socket. False: the kernel has no such option.
fn set_pass_rights(fd: RawFd, on: bool) -> bool {
    set_option(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, i32::from(on)).is_ok()
}

/// Has the kernel refuse descriptors for a socket, and for connections that it accepts. False: this
/// kernel cannot. Any thread; one system call.
pub fn refuse(fd: BorrowedFd<'_>) -> bool {
    set_pass_rights(fd.as_raw_fd(), false)
}

/// Makes both ends of a socket of datagrams that keep their order, which do not block.
///
/// # Errors
/// [`Error::Os`]: no descriptor or no memory is left.
pub fn pair() -> Result<[OwnedFd; 2]> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let mut fds = [-1; 2];
    // SAFETY: room for the two descriptors that the call writes.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: new, and nobody else's.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The foreign things that a descriptor may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// The descriptor came from another process.
    Anything,
    /// The descriptor is a socket of this process; descriptors may come.
    Arrivals,
    /// A socket of this process; descriptors are refused now, but some may be in its queue.
    Leftovers,
    /// Nothing foreign.
    Nothing,
}

/// A descriptor that came from another process, or a socket over which some may come. Its close may
/// take any time, so another thread closes it ([`closing`]), unless it holds nothing foreign.
#[derive(Debug)]
pub struct Foreign {
    fd: ManuallyDrop<OwnedFd>,
    holds: Holds,
}

impl From<OwnedFd> for Foreign {
    fn from(fd: OwnedFd) -> Foreign {
        Foreign { fd: ManuallyDrop::new(fd), holds: Holds::Anything }
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Foreign {
    /// A new socket, to which nobody has sent anything. No descriptors may come.
    pub fn fresh(fd: OwnedFd) -> Foreign {
        let holds = if refuse(fd.as_fd()) { Holds::Nothing } else { Holds::Arrivals };
        Foreign { fd: ManuallyDrop::new(fd), holds }
    }

    /// An accepted connection. Its listener determines whether descriptors may come.
    pub fn accepted(fd: OwnedFd) -> Foreign {
        let refused = get_option(fd.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS) == Ok(0i32);
        let holds = if refused { Holds::Nothing } else { Holds::Arrivals };
        Foreign { fd: ManuallyDrop::new(fd), holds }
    }

    /// A socket that a trusted process made for this one alone.
    pub(crate) fn socket(fd: Foreign) -> Foreign {
        let holds = if fd.holds == Holds::Anything { Holds::Arrivals } else { fd.holds };
        Foreign { fd: ManuallyDrop::new(fd.trusted()), holds }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether calls on it wait for no other process: it is memory, or an open character device, as
    /// those of drivers are. That of a file of a FUSE server may never return; here its server is
    /// not asked.
    pub fn answers_at_once(&self) -> bool {
        let fd = self.raw();
        // SAFETY: no pointers.
        let [seals, flags] =
            [libc::F_GET_SEALS, libc::F_GETFL].map(|c| unsafe { libc::fcntl(fd, c) });
        if seals >= 0 {
            return true;
        }
        // A path alone (O_PATH) has the type of what is there, and not its driver.
        let is_open = flags >= 0 && flags & libc::O_PATH == 0;
        is_open && file_type(fd) == Some(libc::S_IFCHR)
    }

    /// Takes the descriptor out, for a close on this thread: the process that sent it is trusted
    /// not to make that slow.
    pub fn trusted(self) -> OwnedFd {
        let mut me = ManuallyDrop::new(self);
        // SAFETY: once, since `me` is never dropped.
        unsafe { ManuallyDrop::take(&mut me.fd) }
    }

    /// Sets whether descriptors may come to a socket of this process. No system call without a
    /// change.
    pub(crate) fn expect(&mut self, some: bool) {
        let change = self.holds != Holds::Anything && some != (self.holds == Holds::Arrivals);
        if change && set_pass_rights(self.raw(), some) {
            self.holds = if some { Holds::Arrivals } else { Holds::Leftovers };
        }
    }

    /// Empties the queue, if it is short.
    fn drain(&mut self) {
        self.expect(false);
        for _ in 0..EMPTIED {
            if self.holds != Holds::Leftovers
                || !self.receive(&mut [0], |_, _| {}).is_ok_and(|a| a.len > 0 && !a.cut)
            {
                return;
            }
        }
    }

    /// Receives the next message. `keep` gets each descriptor with its number; those that it drops
    /// are closed by another thread. A message with more descriptors than any of ours, or than fit
    /// into this process, stays in the queue: [`Arrived::cut`].
    ///
    /// # Errors
    /// The errno of recvmsg(2); EAGAIN: there is no message now, or too much waits to be closed.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut [u8],
        mut keep: impl FnMut(usize, Foreign),
    ) -> core::result::Result<Arrived, i32> {
        let fd = self.raw();
        if self.holds == Holds::Nothing {
            return receive(fd, bytes, 0, keep);
        }
        // A descriptor that is taken must find a place among those that wait to be closed.
        if closing::is_full() {
            return Err(libc::EAGAIN);
        }
        // Looks first, with copies of the descriptors: the kernel would close on this thread what
        // it cannot deliver. The copies stay open until the message is gone; otherwise the end
        // of the message would close the descriptors for the last time.
        let mut held = heapless::Vec::<Foreign, HELD>::new();
        let arrived = receive(fd, bytes, libc::MSG_PEEK, |_, copy| _ = held.push(copy));
        match arrived {
            Ok(Arrived { cut: false, .. }) => {
                // SAFETY: pointer and length are those of `bytes`.
                unsafe {
                    libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT)
                };
            }
            Err(libc::EAGAIN) if self.holds == Holds::Leftovers => self.holds = Holds::Nothing,
            _ => {}
        }
        held.into_iter().enumerate().for_each(|(number, copy)| keep(number, copy));
        arrived
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.drain();
        // SAFETY: once, since this is the drop.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if self.holds != Holds::Nothing {
            closing::close_later(fd.into_raw_fd());
        }
    }
}

pub(crate) struct Arrived {
    /// The message's bytes.
    pub(crate) len: usize,
    /// Descriptors that came with it.
    pub(crate) fds: usize,
    /// More descriptors came than this process may open.
    pub(crate) cut: bool,
}

/// Receives the next message, with further flags. `keep` as in [`Foreign::receive`].
///
/// # Errors
/// The errno of recvmsg(2); EAGAIN: there is no message now.
pub(crate) fn receive(
    from: RawFd,
    bytes: &mut [u8],
    flags: i32,
    mut keep: impl FnMut(usize, Foreign),
) -> core::result::Result<Arrived, i32> {
    let mut control: Ancillary = [const { MaybeUninit::uninit() }; _];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeroes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    let looks = flags & libc::MSG_PEEK != 0;
    msg.msg_controllen = if looks { LOOKED_AT } else { size_of_val(&control) } as _;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer in `msg` leads to a buffer that lives through the call and has the
    // length beside it.
    let n = unsafe { libc::recvmsg(from, &mut msg, flags) };
    if n < 0 {
        return Err(errno());
    }
    let cut = msg.msg_flags & libc::MSG_CTRUNC != 0;
    let mut arrived = Arrived { len: n as usize, fds: 0, cut };
    each_fd(&msg, |fd| {
        keep(arrived.fds, fd);
        arrived.fds += 1;
    });
    Ok(arrived)
}

/// Passes on each descriptor of a message that recvmsg(2) has put into `msg`, whose buffers live.
pub(crate) fn each_fd(msg: &libc::msghdr, mut take: impl FnMut(Foreign)) {
    // SAFETY: `msg` is as recvmsg left it, and its control buffer lives.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(msg) };
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
                take(unsafe { OwnedFd::from_raw_fd(raw) }.into());
            }
        }
        // SAFETY: as above.
        cmsg = unsafe { libc::CMSG_NXTHDR(msg, cmsg) };
    }
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
    let mut control = [0u64; 2 + SEND_MAX / 2];
    send_with(to, bytes, fds, &mut control)
}

/// As [`send_all`], by a control buffer that is filled with zeroes and has room for a header of 16
/// bytes and the descriptors, one at least.
fn send_with(to: RawFd, bytes: &[u8], fds: &[RawFd], control: &mut [u64]) -> Result<()> {
    let size = size_of_val(fds) as u32;
    assert!(!fds.is_empty() && control.len() >= 2 + fds.len().div_ceil(2));
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zeroes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    // SAFETY: no pointers; a header and the descriptors, checked above.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_message_with_more_descriptors_than_ours_have_stays_in_the_queue() {
        let (theirs, ours) = UnixDatagram::pair().unwrap();
        let mut ours = Foreign { fd: ManuallyDrop::new(ours.into()), holds: Holds::Arrivals };
        let send = |n: usize| {
            let fds = vec![theirs.as_raw_fd(); n];
            send_with(theirs.as_raw_fd(), b"x", &fds, &mut [0; 2 + FDS.div_ceil(2)]).unwrap();
        };
        let mut bytes = [0; 8];
        send(SEND_MAX);
        let mut kept = Vec::new();
        let arrived = ours.receive(&mut bytes, |_, fd| kept.push(fd)).unwrap();
        assert_eq!((arrived.len, arrived.cut, kept.len()), (1, false, SEND_MAX));
        send(FDS);
        for _ in 0..3 {
            kept.clear();
            let arrived = ours.receive(&mut bytes, |_, fd| kept.push(fd)).unwrap();
            assert!(arrived.cut && kept.len() <= HELD, "{} taken", kept.len());
        }
        // It is not taken apart: the socket's close ends it, and counts as one.
        ours.drain();
        assert!(ours.receive(&mut bytes, |_, _| {}).unwrap().cut);
    }
}
