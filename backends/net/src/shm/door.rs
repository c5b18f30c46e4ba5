//! How a segment gets from one process to another: a Unix socket named after the address
//! ([`crate::local`]).
//!
//! Whoever wants to send connects, looks who listens, and sends one hello with the memory; nothing
//! comes back but, later, bells and loans.

use super::messages::{Ask, Loan, LOAN_LEN};
use super::segment::Segment;
use crate::addr::Endpoint;
use crate::local::{accept, connect, Accepted, Lock, Name, Role};
use crate::rights;
use crate::sys::{set_option, Fd};
use gdrcore_core::error::{Error, Result};
use std::os::fd::{IntoRawFd, RawFd};

/// First bytes of a hello: name and version.
const HELLO: [u8; 8] = *b"gdrshm\x02\0";
/// Of one on a socket that a router made: who says it is the router's word, and the rest of the
/// hello says nothing of it.
const HELLO_BROKERED: [u8; 8] = *b"gdrshm\x03\0";
/// Messages of one link's socket that one look takes.
const WORDS: usize = 64;
/// Bytes of a hello: magic 8, bytes of ring data 4, zone 4, port 2, zero 2, zero 4, address 16.
const HELLO_LEN: usize = 40;

/// Where others bring their segments.
#[derive(Debug)]
pub struct Door {
    fd: Fd,
}

impl Door {
    /// Listens at the name of a holder.
    ///
    /// # Errors
    /// As [`Lock::bind`].
    pub(crate) fn open(lock: &Lock) -> Result<Door> {
        Ok(Door { fd: lock.listen(Role::Door)? })
    }

    /// Readable when somebody knocks.
    pub fn fd(&self) -> RawFd {
        self.fd.raw()
    }

    /// The next caller of this user.
    pub(super) fn accept(&self) -> Knock {
        // Bounded: connections of strangers are closed, sixteen at a time.
        for _ in 0..16 {
            match accept(self.fd.raw()) {
                Accepted::Caller(fd) => return Knock::Caller(Bell { fd }),
                Accepted::Stranger => {}
                Accepted::Nobody => break,
                Accepted::NoRoom => return Knock::NoRoom,
            }
        }
        Knock::Nobody
    }
}

/// What came to a door.
#[derive(Debug)]
pub(super) enum Knock {
    /// A process that brings a segment, now or soon.
    Caller(Bell),
    /// Nothing more for now.
    Nobody,
    /// One that this process has no descriptor for; it waits.
    NoRoom,
}

/// What the other end of a link last did.
#[derive(Debug)]
pub(super) enum Heard {
    /// Nothing.
    Quiet,
    /// It rang.
    Rung,
    /// It asks for a loan; true: by address.
    Asked(Ask, bool),
    /// It lends memory: the descriptor's, or by address.
    Lent(Loan, Option<Fd>),
    /// It is gone, or said something that no process of ours says.
    Gone,
}

/// The socket of one link: life, wake-ups and loans. Nothing on it ever blocks.
#[derive(Debug)]
pub struct Bell {
    fd: Fd,
}

impl Bell {
    /// The end of a socket that a router made.
    pub(super) fn brokered(fd: Fd) -> Bell {
        Bell { fd }
    }

    /// Readable when the other end rings, or is gone.
    pub fn fd(&self) -> RawFd {
        self.fd.raw()
    }

    /// Wakes the other end. A bell that nobody answers fills up; ringing it more would say no more.
    pub fn ring(&self) {
        self.say(&[1], None);
    }

    /// Sends a message, with a descriptor or without. False: it did not go.
    pub(super) fn say(&self, bytes: &[u8], fd: Option<RawFd>) -> bool {
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

    /// The next thing that the other end did.
    pub(super) fn hear(&self) -> Heard {
        let mut bytes = [0u8; LOAN_LEN + 1];
        let Some(Message { len, fd, fds }) = receive(self.fd.raw(), &mut bytes) else {
            return Heard::Quiet;
        };
        let said = &bytes[..len.min(bytes.len())];
        match (said, fds, fd) {
            ([_], 0, None) => Heard::Rung,
            (_, 0, None) if said.len() < LOAN_LEN => {
                Ask::parse(said).map_or(Heard::Gone, |(ask, far)| Heard::Asked(ask, far))
            }
            (_, 0, None) => {
                Loan::parse(said, true).map_or(Heard::Gone, |loan| Heard::Lent(loan, None))
            }
            (_, 1, Some(fd)) => {
                Loan::parse(said, false).map_or(Heard::Gone, |loan| Heard::Lent(loan, Some(fd)))
            }
            _ => Heard::Gone,
        }
    }

    /// Gives `take` what the other end said, but for rings; false: no process of ours says that.
    /// True: it is gone, or said such a thing.
    /// Bounded: a peer that talks without end is heard once per call.
    pub(super) fn listen(&self, mut take: impl FnMut(Heard) -> bool) -> bool {
        for _ in 0..WORDS {
            match self.hear() {
                Heard::Quiet => break,
                Heard::Rung => {}
                Heard::Gone => return true,
                said => {
                    if !take(said) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Receives the hello of a caller. `Ok(None)`: it has not come yet.
    ///
    /// # Errors
    /// [`Error::Access`]: it is none, or the memory is not what it must be; to be hung up on.
    /// [`Error::NoMemory`].
    pub fn receive(&self) -> Result<Option<(Endpoint, Segment)>> {
        self.receive_hello(HELLO)
    }

    /// The same on a socket that a router made: only the memory counts.
    ///
    /// # Errors
    /// As [`Bell::receive`].
    pub(super) fn receive_brokered(&self) -> Result<Option<Segment>> {
        Ok(self.receive_hello(HELLO_BROKERED)?.map(|(_, segment)| segment))
    }

    fn receive_hello(&self, hello: [u8; 8]) -> Result<Option<(Endpoint, Segment)>> {
        let mut bytes = [0u8; HELLO_LEN + 1];
        let Some(Message { len, fd, fds }) = receive(self.fd.raw(), &mut bytes) else {
            return Ok(None);
        };
        let Some(memory) = fd else { return Err(Error::Access) };
        if len != HELLO_LEN || bytes[..8] != hello || fds != 1 {
            return Err(Error::Access);
        }
        let u32_at =
            |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let mut ip = [0; 16];
        ip.copy_from_slice(&bytes[24..40]);
        let from = Endpoint::new(ip, u32_at(12), u16::from_le_bytes([bytes[16], bytes[17]]));
        let segment = Segment::open(memory.raw(), u32_at(8) as usize).map_err(|e| match e {
            Error::NoMemory => e,
            _ => Error::Access,
        })?;
        Ok(Some((from, segment)))
    }
}

/// One message of a socket: its length (0 also where the other end is gone), the first of its
/// descriptors, and how many it had.
struct Message {
    len: usize,
    fd: Option<Fd>,
    fds: usize,
}

/// Takes the next message; `None`: there is none now. All descriptors but the first are closed.
fn receive(from: RawFd, bytes: &mut [u8]) -> Option<Message> {
    let mut message = Message { len: 0, fd: None, fds: 0 };
    // Whatever came, its descriptors are ours to close.
    let arrived = rights::receive::<16>(from, bytes, |i, fd| {
        if i == 0 {
            message.fd = Fd::from_call(fd.into_raw_fd()).ok();
        }
    });
    match arrived {
        Ok(arrived) => (message.len, message.fds) = (arrived.len, arrived.fds),
        Err(libc::EAGAIN | libc::EINTR) => return None,
        // It is gone.
        Err(_) => {}
    }
    Some(message)
}

/// Connects to the process that listens under a name and hands it a new segment of `size` bytes.
///
/// # Errors
/// As [`connect`].
pub(crate) fn knock(at: &Name, from: &Endpoint, size: usize) -> Result<(Bell, Segment)> {
    greet(connect(at)?, HELLO, from, size)
}

/// Hands a new segment to whoever has the other end of a socket that a router made.
///
/// # Errors
/// As [`knock`].
pub(super) fn greet_brokered(fd: Fd, size: usize) -> Result<(Bell, Segment)> {
    greet(fd, HELLO_BROKERED, &Endpoint::default(), size)
}

fn greet(fd: Fd, hello: [u8; 8], from: &Endpoint, size: usize) -> Result<(Bell, Segment)> {
    // The hello must go at once: room for it and for a few bells is all that is needed.
    set_option(fd.raw(), libc::SOL_SOCKET, libc::SO_SNDBUF, 4096i32)?;
    let (segment, memory) = Segment::create(size)?;
    let mut bytes = [0u8; HELLO_LEN];
    bytes[..8].copy_from_slice(&hello);
    bytes[8..12].copy_from_slice(&(size as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&from.scope_id.to_le_bytes());
    bytes[16..18].copy_from_slice(&from.port.to_le_bytes());
    bytes[24..40].copy_from_slice(&from.ip);
    rights::send(fd.raw(), &bytes, memory.raw())?;
    Ok((Bell { fd }, segment))
}

#[cfg(test)]
mod tests;
