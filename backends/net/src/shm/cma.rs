//! Writing another process's memory by its addresses: `process_vm_writev`, a copy by the kernel
//! from one process into another.
//!
//! The kernel allows it to a process of the same user that could also trace the other: not if that
//! is not dumpable, not across user namespaces, and not where Yama restricts ptrace(2) to
//! ancestors. Then it says so once, and the link keeps to its ring.
//!
//! A call names its target by number, and numbers of processes are used again. So the process is
//! held by a descriptor (pidfd) from the moment on at which its link is made, and before each call
//! that and the link's socket are asked whether it has ended, or become another program (which
//! closes the socket). What is left is the time between that look and the call.

use crate::local::{is_own_user, peer_of};
use crate::sys::{any_ready, pidfd_open, write_process, Fd};
use gdrcore_core::roce::peer_memory::Piece;
use std::os::fd::RawFd;

/// A process at the other end of a link, whose memory may be written.
#[derive(Debug)]
pub(super) struct PeerProcess {
    pid: libc::pid_t,
    pidfd: Fd,
    /// The link's socket, which outlives this.
    socket: RawFd,
}

/// Why a copy was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmaError {
    /// Nothing is there, or not all of it, or not in ours.
    Fault,
    /// It is not allowed, or there is nobody any more: no other call will do better.
    Never,
}

impl PeerProcess {
    /// The process at the other end of a socket that was connected just now. `None`: it is none of
    /// this user's, or this system has no such call.
    pub(super) fn of(socket: RawFd) -> Option<PeerProcess> {
        // Elsewhere nothing is known of the order in which the kernel's copies are seen.
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let peer = peer_of(socket).filter(|peer| is_own_user(peer.uid) && peer.pid > 0)?;
        let pidfd = pidfd_open(peer.pid)?;
        // The number may have been another's by then; but a process closes its sockets before its
        // number is free.
        Some(PeerProcess { pid: peer.pid, pidfd, socket }).filter(|process| !process.has_ended())
    }

    /// Whether it has ended, or let go of the link.
    fn has_ended(&self) -> bool {
        any_ready([(self.pidfd.raw(), libc::POLLIN), (self.socket, 0)])
    }

    /// Copies pieces of this process, one behind the other, to an address of the other one, the
    /// last aligned word after all others.
    pub(super) fn write(&self, pieces: &[Piece], to: u64) -> Result<(), CmaError> {
        if self.has_ended() {
            return Err(CmaError::Never);
        }
        let len: u64 = pieces.iter().map(|p| p.len).sum();
        outcome(write_process(self.pid, pieces, ranges(to, len)), len)
    }
}

/// `len` bytes at `to`, the last aligned word (up to 8 bytes) apart: the kernel fills ranges in
/// their order, each by a copy of its own, and the processor keeps the order of two string copies,
/// but not that within one.
fn ranges(to: u64, len: u64) -> [(u64, u64); 2] {
    let last = (to.wrapping_add(len).wrapping_sub(1) & 7).wrapping_add(1).min(len);
    let first = len - last;
    [(to, first), (to.wrapping_add(first), last)]
}

/// What an answer of the call means.
fn outcome(answer: Result<u64, i32>, wanted: u64) -> Result<(), CmaError> {
    match answer {
        Ok(n) if n == wanted => Ok(()),
        Err(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ESRCH) => Err(CmaError::Never),
        _ => Err(CmaError::Fault),
    }
}

#[cfg(test)]
mod tests;
