//! The connection of one session. No call on it blocks.

use super::sys::Epoll;
use gdrcore_core::Error;
use gdrcore_net::rights::Foreign;
use gdrcore_net::via::proto::Envelope;
use gdrcore_net::via::wire::{receive, send, send_with, Buffer, ReadOutcome};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The epoll tokens of a connection: its socket's and its process's.
#[derive(Clone, Copy)]
pub(super) struct Tokens {
    pub(super) socket: u64,
    pub(super) process: u64,
}

/// A session's socket, its process, and a message that is not sent yet.
pub(super) struct Connection {
    fd: Foreign,
    _process: Option<OwnedFd>,
    token: u64,
    kept: Option<(Envelope, Option<Foreign>)>,
}

/// The result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is sent, or kept until the other end reads.
    Gone,
    /// Refused: another message is kept already, as the other end does not read.
    Full,
    /// The other end is closed.
    Lost,
}

fn became(sent: gdrcore_core::Result<()>) -> Sent {
    match sent {
        Ok(()) => Sent::Gone,
        // ENOBUFS and ETOOMANYREFS: the system's limits of messages and descriptors in flight.
        Err(Error::Again | Error::NoMemory | Error::Os(libc::ETOOMANYREFS)) => Sent::Full,
        Err(_) => Sent::Lost,
    }
}

impl Connection {
    pub(super) fn new(
        fd: Foreign,
        process: Option<OwnedFd>,
        tokens: Tokens,
        epoll: &Epoll,
    ) -> io::Result<Connection> {
        epoll.add(fd.as_fd(), tokens.socket)?;
        if let Some(process) = &process {
            epoll.add(process.as_fd(), tokens.process)?;
        }
        Ok(Connection { fd, _process: process, token: tokens.socket, kept: None })
    }

    pub(super) fn receive(&self, buffer: &mut Buffer) -> ReadOutcome {
        receive(self.fd.as_fd(), buffer)
    }

    /// Sends a message, or keeps it until the other end reads.
    pub(super) fn send(&mut self, e: &Envelope, fd: Option<Foreign>, epoll: &Epoll) -> Sent {
        if self.kept.is_some() {
            return Sent::Full;
        }
        match self.send_now(e, fd.as_ref().map(AsFd::as_fd)) {
            Sent::Full => {
                self.kept = Some((*e, fd));
                let _ = epoll.want_write(self.fd.as_fd(), self.token, true);
                Sent::Gone
            }
            other => other,
        }
    }

    /// Sends a message if that does not block.
    pub(super) fn send_now(&self, e: &Envelope, fd: Option<BorrowedFd<'_>>) -> Sent {
        if self.kept.is_some() {
            return Sent::Full;
        }
        became(send(self.fd.as_fd(), e, fd))
    }

    /// Sends a WELCOME with descriptors. It is the first message of the connection, so there is
    /// room.
    pub(super) fn send_with<const N: usize>(&self, e: &Envelope, fds: [&OwnedFd; N]) -> Sent {
        became(send_with(self.fd.as_fd(), e, fds.map(AsFd::as_fd)))
    }

    /// Sends the kept message: the socket is writable again.
    pub(super) fn flush(&mut self, epoll: &Epoll) -> Sent {
        let Some((e, fd)) = self.kept.take() else { return Sent::Gone };
        match self.send_now(&e, fd.as_ref().map(AsFd::as_fd)) {
            Sent::Full => {
                self.kept = Some((e, fd));
                Sent::Gone
            }
            other => {
                let _ = epoll.want_write(self.fd.as_fd(), self.token, false);
                other
            }
        }
    }
}
