//! The engines of a loopback device. They have no port, so the device joins each pair of them by
//! two links ([`super::device`]), as a router joins its tenants.

use super::{PortState, SoftConfig, SoftEngine};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::rights::Foreign;
use crate::shm::{Peer, ShmBounds};
use gdrcore_core::config::qpn_block;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::roce::siblings::SiblingQpns;

/// The QPNs of a loopback device: its engines have consecutive blocks of the same size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Siblings {
    pub(super) qpns: SiblingQpns,
    /// Engines that the device can have.
    pub(super) engines: u32,
}

impl Siblings {
    /// Chooses the blocks by the seed, above the reserved numbers.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the blocks do not fit into 24 bits.
    pub(super) fn choose(config: &SoftConfig<'_>, seed: u64) -> Result<Siblings> {
        let engines = config.engines.most;
        let count = config.core.resolve()?.qpn_count;
        let blocks = (1 << 24) / count;
        if engines + 2 > blocks {
            return Err(refuse!(
                Invalid,
                "engines {engines}: each has {count:#x} QPNs, and all together less than 0x1000000"
            ));
        }
        let first = 1 + (seed >> 17) as u32 % (blocks - 1 - engines);
        Ok(Siblings { qpns: SiblingQpns { first: first * count, count }, engines })
    }

    /// The number of the engine that has a QPN; `None`: no engine can have it.
    pub(super) fn engine_of(&self, qpn: u32) -> Option<usize> {
        self.qpns.engine_of(qpn).filter(|&k| k < self.engines as usize)
    }

    pub(super) fn bounds(&self) -> ShmBounds {
        ShmBounds::of_siblings(self.engines)
    }

    /// The block by which links name an engine: its first one, because an engine may have several.
    fn block_of(&self, k: usize) -> u16 {
        qpn_block(self.qpns.first_of(k))
    }

    /// An engine as the other end of a link.
    fn peer(at: &Endpoint, k: usize) -> Peer {
        Peer { at: *at, session: k as u32, may_grant: false }
    }
}

/// Control: links between the engines of a device.
impl SoftEngine {
    /// Sets the path to a queue pair of a sibling, if there is a link.
    pub(super) fn choose_sibling_path(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        siblings: &Siblings,
        to: &Endpoint,
        dest_qpn: Option<u32>,
    ) {
        let Some(qpn) = dest_qpn.filter(|&qpn| *to == self.local && !g.owns(qpn)) else { return };
        let link = siblings.engine_of(qpn).and_then(|k| self.sibling_link(port, siblings, k));
        if link.is_some() {
            g.set_own_address_remote(true);
            g.set_link(link);
        }
    }

    /// Finds the link back to an initiator of DC: it exists, because its address handle has linked
    /// all siblings.
    pub(super) fn link_context(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        siblings: &Siblings,
        at: usize,
        qpn: u32,
    ) {
        let link = siblings.engine_of(qpn).and_then(|k| self.sibling_link(port, siblings, k));
        if let Some(link) = link {
            g.set_context_link(at, link);
        }
    }

    pub(super) fn is_linked(&self, siblings: &Siblings, k: usize) -> bool {
        self.sibling_link(self.lock_control().port(), siblings, k).is_some()
    }

    fn sibling_link(&self, port: &mut PortState, siblings: &Siblings, k: usize) -> Option<u16> {
        port.shm.as_mut()?.find_link(&self.local, siblings.block_of(k))
    }

    /// Makes a link to a sibling, over one end of a new socket.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; [`Error::Os`]: no memory or descriptor for the link.
    pub(super) fn link_sibling(&self, siblings: &Siblings, k: usize, fd: Foreign) -> Result<()> {
        let mut held = self.lock_control();
        let (g, port) = held.parts();
        let Some(shm) = &mut port.shm else { return Err(Error::NoDevice) };
        let (peer, block) = (Siblings::peer(&self.local, k), siblings.block_of(k));
        let link = shm.adopt(&peer, block, fd, &self.waiter)?;
        g.set_sibling_link(k, link)
    }

    /// Takes the other end of the socket over which a sibling has made its link.
    pub(super) fn admit_sibling(&self, k: usize, fd: Foreign) {
        let mut held = self.lock_control();
        let port = held.port();
        if let Some(shm) = &mut port.shm {
            shm.admit(now_ns(), &Siblings::peer(&self.local, k), fd, &self.waiter);
        }
        port.schedule.look_at_links();
    }
}

#[cfg(test)]
mod tests;
