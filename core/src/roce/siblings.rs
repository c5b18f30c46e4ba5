//! The engines of a device that has no port. They are reached over links, and by their numbers:
//! each has a range of QPNs.

use crate::verbs::NONE;

/// Engines that such a device can have.
pub const MAX_SIBLINGS: usize = 64;

/// The peer records of the other engines.
pub struct Siblings {
    /// First QPN of the first engine.
    first: u32,
    /// QPNs of each; 0: the device has a port, or one engine.
    count: u32,
    /// Index of an engine's record; [`NONE`]: no link leads to it.
    peers: [u32; MAX_SIBLINGS],
}

impl Siblings {
    /// Those of a device with a port.
    pub(crate) const fn none() -> Siblings {
        Siblings { first: 0, count: 0, peers: [NONE; MAX_SIBLINGS] }
    }

    /// Sets their QPNs.
    pub(crate) fn set_qpns(&mut self, first: u32, count: u32) {
        (self.first, self.count) = (first, count);
    }

    /// Whether there may be some.
    pub(crate) fn any(&self) -> bool {
        self.count != 0
    }

    /// Sets the record of an engine; returns the one that it had.
    pub(crate) fn set_peer(&mut self, number: usize, peer: u32) -> Option<u32> {
        let before = core::mem::replace(self.peers.get_mut(number)?, peer);
        (before != NONE).then_some(before)
    }

    /// The record of the engine that has a QPN; `None`: there is none, or no link leads to it.
    #[inline]
    pub(crate) fn peer_of(&self, qpn: u32) -> Option<u32> {
        let number = qpn.checked_sub(self.first)?.checked_div(self.count)?;
        self.peers.get(number as usize).copied().filter(|&peer| peer != NONE)
    }
}
