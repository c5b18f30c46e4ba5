//! Multicast: which UD queue pairs get what is sent to a group.
//!
//! A group is a multicast GID. Its packets name no QP but [`Qpn::MULTICAST`]; each member gets a
//! copy, if its Q_Key is theirs. The sender is no receiver of its own, as on a NIC.

use super::{Origin, Transport};
use crate::error::Result;
use crate::reason::refuse;
use crate::roce::run::Run;
use crate::verbs::shared::Shared;
use crate::wire::{Class, Qpn};

/// Memberships of all queue pairs of an engine together.
pub const MEMBERS: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    gid: [u8; 16],
    qi: u32,
}

/// Members of multicast groups.
#[derive(Clone, Debug)]
pub struct Members {
    list: [Member; MEMBERS],
    len: usize,
}

impl Members {
    /// No members.
    pub const fn new() -> Self {
        Members { list: [Member { gid: [0; 16], qi: 0 }; MEMBERS], len: 0 }
    }

    fn all(&self) -> &[Member] {
        self.list.get(..self.len).unwrap_or(&[])
    }

    fn position(&self, qi: usize, gid: &[u8; 16]) -> Option<usize> {
        self.all().iter().position(|m| m.qi == qi as u32 && m.gid == *gid)
    }

    /// Whether a group has members.
    pub fn has(&self, gid: &[u8; 16]) -> bool {
        self.all().iter().any(|m| m.gid == *gid)
    }

    /// Makes a QP a member. Twice is no error, and counts once.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`]: [`MEMBERS`] are in use.
    pub fn join(&mut self, qi: usize, gid: &[u8; 16]) -> Result<()> {
        if self.position(qi, gid).is_some() {
            return Ok(());
        }
        let full = || {
            refuse!(NoMemory, "gid: the device has {} memberships, the most it can have", MEMBERS)
        };
        *self.list.get_mut(self.len).ok_or_else(full)? = Member { gid: *gid, qi: qi as u32 };
        self.len += 1;
        Ok(())
    }

    /// Ends a membership.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`]: not a member.
    pub fn leave(&mut self, qi: usize, gid: &[u8; 16]) -> Result<()> {
        let at = self
            .position(qi, gid)
            .ok_or_else(|| refuse!(Invalid, "gid: the QP is no member of this group"))?;
        self.len -= 1;
        self.list.swap(at, self.len);
        Ok(())
    }

    /// Ends all memberships of a QP.
    pub fn leave_all(&mut self, qi: usize) {
        while let Some(gid) = self.all().iter().find(|m| m.qi == qi as u32).map(|m| m.gid) {
            let _ = self.leave(qi, &gid);
        }
    }
}

impl Default for Members {
    fn default() -> Self {
        Self::new()
    }
}

impl Transport {
    /// Takes a datagram that was sent to a group.
    pub fn handle_multicast(
        &mut self,
        s: &Shared,
        now: u64,
        from: &Origin,
        group: &[u8; 16],
        run: &Run,
        payload: &[u8],
    ) {
        if run.class != Class::Ud
            || run.dest_qpn != Qpn::MULTICAST.get()
            || run.pkey & 0x7fff != 0x7fff
        {
            self.common.counters.rcvd_refused += 1;
            return;
        }
        // rxe rxe_recv.c rxe_rcv_mcast_pkt: Each member of a group takes a datagram for QPN
        // 0xFFFFFF, under its own Q_Key.
        let mut taken = false;
        for i in 0..self.common.members.len {
            let m = self.common.members.list[i];
            let qi = m.qi as usize;
            let qp = &mut self.qps[qi];
            let own = run.src_qpn == qp.qpn && from.gid == self.common.gid;
            if m.gid != *group || own || qp.kind.is_connected() || !qp.can_receive() {
                continue;
            }
            taken = true;
            let bytes = run.wire_bytes(run.n, payload.len() as u32);
            let mut c = self.conn(s, qi);
            c.count_received(1, bytes);
            c.handle_ud(now, from, group, run, payload);
        }
        if !taken {
            self.common.counters.rcvd_no_qp += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn memberships_come_and_go() {
        let mut m = Members::new();
        let (a, b) = ([1; 16], [2; 16]);
        assert_eq!(m.join(1, &a), Ok(()));
        assert_eq!(m.join(1, &a), Ok(()));
        assert_eq!(m.len, 1);
        m.join(2, &a).unwrap();
        m.join(1, &b).unwrap();
        assert_eq!(m.leave(3, &a), Err(Error::Invalid));
        m.leave(2, &a).unwrap();
        assert!(m.has(&a) && m.has(&b));
        m.leave_all(1);
        assert!(!m.has(&a) && !m.has(&b) && m.len == 0);
        for qi in 0..MEMBERS {
            m.join(qi, &a).unwrap();
        }
        assert_eq!(m.join(MEMBERS, &a), Err(Error::NoMemory));
    }
}
