//! Processes of peers on this host, whatever their address: a connection to each process ends with
//! the process.

use super::{Member, WatchedPeer, PEERS};
use crate::addr::Endpoint;
use crate::local::{connect, is_open, listener_block, receipts_of, Holder, Role, SocketPath};
use crate::wait::watch;
use gdrcore_core::config::qpn_block;
use gdrcore_core::error::Error;
use gdrcore_core::receipt::Receipts;

impl Member {
    /// Watches the owner of a block of QPNs at an address, if it is a process of this host and
    /// user. False: it is not, or there is no room for it. Cost: a few system calls.
    #[cold]
    pub(crate) fn watch_peer(&mut self, at: &Endpoint, block: u16) -> bool {
        let is = |p: &WatchedPeer| p.at == *at && p.block == block;
        if *at == self.local && self.owns_block(block) || self.peers.iter().any(is) {
            return true;
        }
        if self.peers.len() == PEERS {
            return false;
        }
        // A device with several blocks listens at the first of them.
        let listener = listener_block(&self.socket_dir, at, block);
        let name = SocketPath::new(&self.socket_dir, at, Holder::Block(listener), Role::Liveness);
        let life = match connect(&name) {
            Ok(life) if watch(self.set.raw(), life.raw()).is_ok() => Some(life),
            // The process was killed after it sent its message.
            Err(Error::NoDevice) if name.exists() => None,
            _ => return false,
        };
        self.has_gone |= life.is_none();
        self.peers.push(WatchedPeer { at: *at, block, listener, life, had_ended: false });
        true
    }

    /// Where this member leaves the receipts of ACKs that wait; `None`: there is no file for them.
    ///
    /// # Safety
    /// The receipts are not used after the member has been dropped.
    pub(crate) unsafe fn receipts(&self) -> Option<&'static Receipts> {
        // SAFETY: the caller's promise.
        self.receipts.as_ref().map(|file| unsafe { &*core::ptr::from_ref(file.receipts()) })
    }

    /// The receipts that the owner of a block at an address has left, if it was a process of this
    /// host and user. `has_ended`: its end was seen; else it is asked for.
    #[cold]
    pub(crate) fn receipts_of(
        &self,
        at: &Endpoint,
        block: u16,
        has_ended: bool,
    ) -> Option<Receipts> {
        let left = receipts_of(&self.socket_dir, at, block, has_ended)?;
        for (_, qpn, psn) in self.void_receipts.iter().filter(|(of, ..)| of == at) {
            left.retain(|q, p| (q, p) != (*qpn, *psn));
        }
        Some(left)
    }

    /// A connection to a queue pair begins: the receipt that lies there is of an earlier one. The
    /// owner removes it when it connects, but may be killed before. Only the newest of many such
    /// receipts are remembered. Cost: two system calls where no process of this host and user is.
    #[cold]
    pub(crate) fn void_receipt(&mut self, at: &Endpoint, qpn: u32) {
        let block = qpn_block(qpn);
        let left = receipts_of(&self.socket_dir, at, block, true);
        let Some(psn) = left.and_then(|left| left.find(qpn)) else { return };
        self.void_receipts.write((*at, qpn, psn));
    }

    /// Whether the owner of a block at an address is watched, by the block whose sockets it listens
    /// at.
    pub(crate) fn watches(&self, at: &Endpoint, listener: Option<u16>) -> bool {
        self.peers.iter().any(|p| p.at == *at && Some(p.listener) == listener)
    }

    /// Stops watching peers for which `keep` is false.
    #[cold]
    pub(crate) fn retain_peers(&mut self, keep: impl Fn(&Endpoint, u16) -> bool) {
        self.peers.retain(|p| keep(&p.at, p.block));
    }

    /// A descriptor is readable: whether it is a peer's, which sends nothing and so has ended.
    pub(super) fn note_peer_end(&mut self, fd: std::os::fd::RawFd) -> bool {
        let is = |p: &&mut WatchedPeer| p.life.as_ref().is_some_and(|life| life.raw() == fd);
        let Some(peer) = self.peers.iter_mut().find(is) else { return false };
        if !peer.life.as_mut().is_some_and(is_open) {
            peer.life = None;
            self.has_gone = true;
        }
        true
    }

    /// Whether [`Member::take_gone`] may have a peer.
    #[inline]
    pub(crate) fn has_gone(&self) -> bool {
        self.has_gone
    }

    /// Takes a peer that had ended at the last call. `is_read`: whether its links are read to the
    /// end and closed; one whose links are not stays. Returns its address and one of its blocks. To
    /// be called until there is none.
    pub(crate) fn take_gone(
        &mut self,
        is_read: impl Fn(&Endpoint, u16) -> bool,
    ) -> Option<(Endpoint, u16)> {
        if let Some(at) = self.peers.iter().position(|p| p.had_ended && is_read(&p.at, p.listener))
        {
            let peer = self.peers.swap_remove(at);
            return Some((peer.at, peer.block));
        }
        for peer in &mut self.peers {
            peer.had_ended = peer.life.is_none();
        }
        self.has_gone = self.peers.iter().any(|p| p.had_ended);
        None
    }
}
