//! Writes another process's memory by its addresses: `process_vm_writev`, a copy by the kernel from
//! one process into another.
//!
//! The kernel allows the call to a process of the same user that may also trace the other. The
//! kernel refuses the call for a process that is not dumpable, and across user namespaces. Where
//! Yama restricts ptrace(2), only ancestors may call. After one refusal the link uses its ring
//! alone.
//!
//! The call names its target by pid, and pids are used again. A pidfd, opened when the link is
//! made, shows whether the process has ended. The link's socket, which execve(2) closes, shows
//! whether it runs another program. Both are checked shortly before each call. The grant is checked
//! at the very moment of the call ([`crate::rseq`]).

use crate::local::{is_own_user, peer_of};
use crate::rseq::write_process;
use crate::sys::{any_ready, pidfd_open, Fd};
use gdrcore_core::lease::Serial;
use gdrcore_core::roce::peer_memory::Piece;
use std::os::fd::RawFd;

/// The process at the other end of a link, whose memory may be written.
#[derive(Debug)]
pub(super) struct PeerProcess {
    pid: libc::pid_t,
    pidfd: Fd,
    /// The link's socket, which outlives this value.
    socket: RawFd,
}

/// Why a copy was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmaError {
    /// An address is not mapped, in the target or here, or only in part.
    Fault,
    /// The call is not allowed, or the process has ended: every later call would fail too.
    Never,
}

impl PeerProcess {
    /// The process at the other end of a socket that was connected just now. `None`: it is another
    /// user's, or this system lacks the call.
    pub(super) fn from_socket(socket: RawFd) -> Option<PeerProcess> {
        // The order in which a copy's bytes become visible is known only on x86-64.
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let peer = peer_of(socket).filter(|peer| is_own_user(peer.uid) && peer.pid > 0)?;
        let pidfd = pidfd_open(peer.pid)?;
        // The pid may belong to another process by now. A process closes its sockets before its pid
        // is free, so an open socket rules that out.
        Some(PeerProcess { pid: peer.pid, pidfd, socket }).filter(|process| !process.has_ended())
    }

    /// Whether the process has ended, or has closed the link.
    fn has_ended(&self) -> bool {
        any_ready([(self.pidfd.raw(), libc::POLLIN), (self.socket, 0)])
    }

    /// Copies ranges of this process, in order, to an address of the other one; the last aligned
    /// word is written after all others. Nothing is copied once the grant with this serial has been
    /// revoked, even if this process was stopped in between.
    pub(super) fn write(
        &self,
        pieces: &[Piece],
        to: u64,
        grant: (&Serial, u32),
    ) -> Result<(), CmaError> {
        if self.has_ended() {
            return Err(CmaError::Never);
        }
        // The call checks the grant: its owner waits only a bounded time for a pin, and may have
        // revoked the grant although it is pinned.
        let len: u64 = pieces.iter().map(|p| p.len).sum();
        outcome(write_process(self.pid, pieces, ranges(to, len), grant), len)
    }
}

/// `len` bytes at `to`, the last aligned word (up to 8 bytes) as a range of its own. The kernel
/// copies ranges in order, and the processor keeps the order of two string copies, but not the
/// order within one.
fn ranges(to: u64, len: u64) -> [(u64, u64); 2] {
    let last = (to.wrapping_add(len).wrapping_sub(1) & 7).wrapping_add(1).min(len);
    let first = len - last;
    [(to, first), (to.wrapping_add(first), last)]
}

/// The meaning of the call's return value.
fn outcome(answer: Result<u64, i32>, wanted: u64) -> Result<(), CmaError> {
    match answer {
        Ok(n) if n == wanted => Ok(()),
        Err(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ESRCH) => Err(CmaError::Never),
        _ => Err(CmaError::Fault),
    }
}

#[cfg(test)]
mod tests;
