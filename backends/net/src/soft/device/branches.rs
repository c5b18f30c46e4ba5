//! CQs of queue pairs of several engines.
//!
//! A completion is written under the lock of the queue pair's engine, into a ring of that engine.
//! So a CQ with queue pairs of several engines has several rings: its own, and a *branch* in each
//! other engine. The first queue pair of an engine makes the branch there. A poll takes from all of
//! them in turn. A CQ without branches costs a poll one load.

use super::parts::{Part, PartKind};
use super::{program_handle, SoftDevice, MAX_ENGINES};
use crate::soft::pinned_handles::PinnedCq;
use crate::soft::SoftEngine;
use core::sync::atomic::Ordering;
use gdrcore_core::engine::Engine;
use gdrcore_core::error::Result;
use gdrcore_core::verbs::kind::QpKind;
use gdrcore_core::verbs::shared::polled;
use gdrcore_core::verbs::types::{Handle, QpCap, QpInit, Wc};

/// The rings of a CQ.
static RINGS: PartKind = PartKind {
    argument: "cq",
    name: "CQ",
    links: |engine, ring| Ok(&engine.engine.cq(ring)?.1.beside.branches),
};

/// The objects that a new queue pair uses, besides its protection domain.
struct Uses {
    /// Receives of it: an SRQ, an XRC domain.
    source: Handle,
    send_cq: Handle,
    recv_cq: Handle,
}

impl Uses {
    /// An object that the kind lacks is 0.
    fn from_init(init: &QpInit) -> Uses {
        let (send_cq, recv_cq) = (init.send_cq, init.recv_cq);
        match QpKind::from_number(init.qp_type) {
            Some(QpKind::Rc | QpKind::Uc | QpKind::Ud) => {
                Uses { source: init.srq, send_cq, recv_cq }
            }
            Some(QpKind::XrcIni | QpKind::Dci) => Uses { source: 0, send_cq, recv_cq: 0 },
            Some(QpKind::Dct) => Uses { source: init.srq, send_cq: 0, recv_cq },
            Some(QpKind::XrcTgt) => Uses { source: init.xrcd, send_cq: 0, recv_cq: 0 },
            // The engine refuses the kind.
            Some(QpKind::DcContext) | None => Uses { source: 0, send_cq: 0, recv_cq: 0 },
        }
    }
}

/// A pinned CQ of a device of several engines, for polls without a look-up.
#[derive(Clone, Copy)]
pub struct PinnedRings {
    device: &'static SoftDevice,
    handle: Handle,
    own: PinnedCq,
}

impl PinnedRings {
    /// As `Device::poll_cq`.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As for [`PinnedCq::poll`].
    #[inline(always)]
    pub unsafe fn poll(&self, wc: &mut [Wc]) -> Result<usize> {
        if self.own.has_branches() {
            return self.device.poll_in_turn(self.handle, wc);
        }
        // SAFETY: our contract.
        unsafe { self.own.poll(wc) }
    }
}

impl SoftDevice {
    /// Looks up a CQ that is pinned.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub fn pinned_cq(&'static self, cq: Handle) -> Result<PinnedRings> {
        let (_, engine, own) = self.resolve(cq)?;
        Ok(PinnedRings { device: self, handle: cq, own: engine.pinned_cq(own)? })
    }

    /// `Device::poll_cq`, in the process that opened the device.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn quick_poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        let (_, engine, own) = self.resolve(cq)?;
        let (index, shared) = engine.engine.cq(own)?;
        if shared.beside.branches.next() != 0 {
            return self.poll_in_turn(cq, wc);
        }
        engine.poll_cq_at(index, shared, wc).map(|n| n as usize).ok_or_else(polled)
    }

    /// `Device::take_completions`. A CQ of several engines is polled as by `Device::poll_cq`.
    ///
    /// # Errors
    /// As there.
    pub(super) fn take_waiting(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        let (_, engine, own) = self.resolve(cq)?;
        let (_, shared) = engine.engine.cq(own)?;
        if shared.beside.branches.next() != 0 {
            return self.poll_in_turn(cq, wc);
        }
        Engine::take_completions(shared, wc).map(|n| n as usize).ok_or_else(polled)
    }

    /// Takes completions from all rings of a CQ. Each poll begins at another ring, so that no ring
    /// waits until the others are empty.
    #[cold]
    fn poll_in_turn(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        let rings: heapless::Vec<Part, MAX_ENGINES> = self.rings(cq)?.collect();
        let (_, engine, own) = rings[0];
        let first = engine.engine.cq(own)?.1.beside.branches.next_look() % rings.len();
        let mut taken = 0;
        for (_, engine, ring) in rings[first..].iter().chain(&rings[..first]) {
            if taken == wc.len() {
                break;
            }
            match engine.quick_poll_cq(*ring, &mut wc[taken..]) {
                Ok(n) => taken += n,
                // Completions from other rings are reported first.
                Err(_) if taken > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(taken)
    }

    /// The rings of a CQ, its own one first.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`]: also of a branch, whose handle no program is given.
    fn rings(&self, cq: Handle) -> Result<impl Iterator<Item = Part> + '_> {
        self.parts(&RINGS, cq)
    }

    /// The ring of a CQ in an engine; makes the branch if there is none. The caller holds
    /// [`SoftDevice::control`].
    fn ring_in(&self, k: usize, cq: Handle) -> Result<Handle> {
        self.part_in(&RINGS, k, cq, |(home, engine, own), of| {
            let capacity = engine.lock()?.cq_may_branch(own)?;
            match engine.channel_of(own)? {
                None => of.lock()?.cq_branch(cq, capacity),
                Some(channel) => {
                    let channel = self.channel_in(k, program_handle(home, channel))?;
                    of.cq_branch_on(cq, capacity, channel)
                }
            }
        })
    }

    /// `Device::qp_create`. The engine is that of the SRQ or XRC domain, else of the send CQ,
    /// else of the receive CQ. CQs of other engines get a branch there.
    ///
    /// # Errors
    /// As there; as [`gdrcore_core::engine::EngineGuard::cq_branch`] and `cq_may_branch`.
    pub(super) fn qp_make(&self, init: &QpInit) -> Result<(Handle, u32, QpCap)> {
        // The queue pair's protection domain must not end meanwhile in another engine.
        let _control = self.control()?;
        let uses = Uses::from_init(init);
        let by = [uses.source, uses.send_cq, uses.recv_cq].into_iter().find(|h| *h != 0);
        let (k, engine, _) = self.resolve(by.unwrap_or(0))?;
        let mut crosses = false;
        let mut ring = |used: Handle, given: Handle| match used {
            0 => Ok(self.engine_handle(given)),
            cq => {
                crosses |= self.resolve(cq)?.0 != k;
                self.ring_in(k, cq)
            }
        };
        let of_engine = QpInit {
            send_cq: ring(uses.send_cq, init.send_cq)?,
            recv_cq: ring(uses.recv_cq, init.recv_cq)?,
            srq: self.engine_handle(init.srq),
            xrcd: self.engine_handle(init.xrcd),
            ..*init
        };
        let (qp, qpn, given) = engine.qp_create(&of_engine)?;
        if crosses {
            self.crossing_qps.fetch_add(1, Ordering::Relaxed);
        }
        Ok((program_handle(k, qp), qpn, given))
    }

    /// For an XRC SRQ of a domain: the CQ as the domain's engine knows it, that engine, and the
    /// domain's handle there. The caller holds [`SoftDevice::control`].
    ///
    /// # Errors
    /// As [`SoftDevice::qp_make`].
    pub(super) fn xrc_ring(&self, xrcd: Handle, cq: Handle) -> Result<(Part, Handle)> {
        let (k, engine, xrcd) = self.resolve(xrcd)?;
        Ok(((k, engine, self.ring_in(k, cq)?), xrcd))
    }

    /// The program's handle of a CQ, from an engine's handle of it.
    pub(super) fn home_of(&self, k: usize, cq: Handle) -> Handle {
        let of = self.existing_engine(k).and_then(|engine| engine.engine.cq(cq));
        match of.map_or(0, |(_, shared)| shared.beside.branches.home()) {
            0 => program_handle(k, cq),
            home => home,
        }
    }

    /// `Device::cq_resize`: all rings, or none.
    ///
    /// # Errors
    /// As there.
    pub(super) fn resize_rings(&self, cq: Handle, cqe: u32) -> Result<u32> {
        let _control = self.control()?;
        let (_, engine, own) = self.resolve(cq)?;
        let before = engine.engine.cq(own)?.1.ring.capacity();
        let mut given = 0;
        for (done, (_, engine, ring)) in self.rings(cq)?.enumerate() {
            match engine.cq_resize(ring, cqe) {
                Ok(n) => given = n,
                Err(e) => {
                    for (_, engine, ring) in self.rings(cq)?.take(done) {
                        // There was room for the same size just now.
                        let _ = engine.cq_resize(ring, before);
                    }
                    return Err(e);
                }
            }
        }
        Ok(given)
    }

    /// `Device::cq_destroy`: all rings, the CQ's own one last.
    ///
    /// # Errors
    /// As there.
    pub(super) fn destroy_rings(&self, cq: Handle) -> Result<()> {
        let _control = self.control()?;
        self.end_parts(
            &RINGS,
            cq,
            |engine, ring| engine.lock()?.cq_may_end(ring),
            |engine, ring| engine.cq_destroy(ring),
        )
    }

    /// Makes a call on each ring of a CQ.
    ///
    /// # Errors
    /// Those of the call.
    pub(super) fn for_each_ring(
        &self,
        cq: Handle,
        mut call: impl FnMut(&SoftEngine, Handle) -> Result<()>,
    ) -> Result<()> {
        self.rings(cq)?.try_for_each(|(_, engine, ring)| call(engine, ring))
    }
}
