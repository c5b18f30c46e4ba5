//! Multicast: which UD queue pairs get the datagrams to a group.
//!
//! A group is a multicast GID. Its packets name the QPN [`Qpn::MULTICAST`]. Each member with the
//! packet's Q_Key gets a copy. The sender gets none, as on a NIC.

use heapless::Vec;

use super::{Origin, Transport};
use crate::error::Result;
use crate::reason::refuse;
use crate::roce::run::Run;
use crate::verbs::shared::Shared;
use crate::wire::{is_default_partition, Class, Qpn};

/// Memberships of all queue pairs of an engine together.
pub const MEMBERS: usize = 64;

/// Members of multicast groups: the group's GID, and the index of a QP.
#[derive(Clone, Debug, Default)]
pub struct Members(Vec<([u8; 16], usize), MEMBERS>);

impl Members {
    /// Whether a group has members.
    pub fn has(&self, gid: &[u8; 16]) -> bool {
        self.0.iter().any(|m| m.0 == *gid)
    }

    /// Makes a QP a member. Twice is no error, and counts once.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`]: [`MEMBERS`] are in use.
    pub fn join(&mut self, qi: usize, gid: &[u8; 16]) -> Result<()> {
        if self.0.contains(&(*gid, qi)) {
            return Ok(());
        }
        self.0.push((*gid, qi)).map_err(|_| {
            refuse!(NoMemory, "gid: the device has {} memberships, the most it can have", MEMBERS)
        })
    }

    /// Ends a membership.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`]: not a member.
    pub fn leave(&mut self, qi: usize, gid: &[u8; 16]) -> Result<()> {
        let at = self.0.iter().position(|m| *m == (*gid, qi));
        let none = || refuse!(Invalid, "gid: the QP is no member of this group");
        self.0.swap_remove(at.ok_or_else(none)?);
        Ok(())
    }

    /// How many groups a QP is a member of.
    pub fn memberships(&self, qi: usize) -> usize {
        self.0.iter().filter(|m| m.1 == qi).count()
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
            || !is_default_partition(run.pkey)
        {
            self.common.counters.rcvd_refused += 1;
            return;
        }
        // rxe rxe_recv.c rxe_rcv_mcast_pkt: Each member of a group takes a datagram for QPN
        // 0xFFFFFF, under its own Q_Key.
        let mut taken = false;
        for i in 0..self.common.members.0.len() {
            let (gid, qi) = self.common.members.0[i];
            let qp = &self.qps[qi];
            let own = run.src_qpn == qp.qpn && from.gid == self.common.local.gid;
            if gid != *group || own || qp.kind.is_connected() || !qp.can_receive() {
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
        let mut m = Members::default();
        let (a, b) = ([1; 16], [2; 16]);
        assert_eq!(m.join(1, &a), Ok(()));
        assert_eq!(m.join(1, &a), Ok(()));
        assert_eq!(m.0.len(), 1);
        m.join(2, &a).unwrap();
        m.join(1, &b).unwrap();
        assert_eq!(m.leave(3, &a), Err(Error::Invalid));
        m.leave(2, &a).unwrap();
        assert!(m.has(&a) && m.has(&b));
        assert_eq!((m.memberships(1), m.memberships(2)), (2, 0));
        m.leave(1, &a).unwrap();
        m.leave(1, &b).unwrap();
        assert!(!m.has(&a) && !m.has(&b) && m.memberships(1) == 0);
        for qi in 0..MEMBERS {
            m.join(qi, &a).unwrap();
        }
        assert_eq!(m.join(MEMBERS, &a), Err(Error::NoMemory));
    }
}
