//! The engines of a device that has no port. They are reached over links, and by their numbers:
//! each has a range of QPNs.

use crate::verbs::NONE;

/// Engines that a device can have.
pub const MAX_SIBLINGS: usize = 64;

/// The QPNs of the engines. All have equally many, one engine behind the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct SiblingQpns {
    /// First QPN of the first engine.
    pub first: u32,
    /// QPNs of each; 0: the device has a port, or one engine.
    pub count: u32,
}

impl SiblingQpns {
    /// The first QPN of an engine.
    pub fn first_of(&self, number: usize) -> u32 {
        self.first + number as u32 * self.count
    }

    /// The number that an engine with a QPN has; there may be none of this number.
    #[inline]
    pub fn engine_of(&self, qpn: u32) -> Option<usize> {
        qpn.checked_sub(self.first)?.checked_div(self.count).map(|number| number as usize)
    }
}

/// The peer records of the other engines.
pub struct Siblings {
    qpns: SiblingQpns,
    /// Index of an engine's record; [`NONE`]: no link leads to it.
    peers: [u32; MAX_SIBLINGS],
}

impl Siblings {
    /// The siblings of a device with a port: none.
    pub(crate) const fn none() -> Siblings {
        Siblings { qpns: SiblingQpns { first: 0, count: 0 }, peers: [NONE; MAX_SIBLINGS] }
    }

    /// Sets the QPNs of the engines.
    pub(crate) fn set_qpns(&mut self, qpns: SiblingQpns) {
        self.qpns = qpns;
    }

    /// Whether there may be other engines.
    pub(crate) fn any(&self) -> bool {
        self.qpns.count != 0
    }

    /// Sets the record of an engine. Returns the record that it had.
    pub(crate) fn set_peer(&mut self, number: usize, peer: u32) -> Option<u32> {
        let before = core::mem::replace(self.peers.get_mut(number)?, peer);
        (before != NONE).then_some(before)
    }

    /// The record of the engine that has a QPN; `None`: there is none, or no link leads to it.
    #[inline]
    pub(crate) fn peer_of(&self, qpn: u32) -> Option<u32> {
        self.peers.get(self.qpns.engine_of(qpn)?).copied().filter(|&peer| peer != NONE)
    }
}
