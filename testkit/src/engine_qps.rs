//! The queue pairs of one engine for its connection manager, where there is no device around it.

use gdrcore_core::cm::{Cm, CmEvent};
use gdrcore_core::engine::cm_qps::ManagedQps;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::types::{qp_attr_mask, AhAttr, Handle, QpAttr, QpInit};

/// An engine that a test has locked, and how it chooses the path to a peer (by
/// [`EngineGuard::set_link`]) before a QP is moved to RTR.
pub struct EngineQps<'g, 'h, P> {
    /// The engine.
    pub guard: &'g mut EngineGuard<'h>,
    /// Chooses the path.
    pub path: P,
}

impl<P: FnMut(&mut EngineGuard<'_>)> ManagedQps for EngineQps<'_, '_, P> {
    type Cm = Cm;

    fn address(&mut self, to: &AhAttr) -> Result<PeerAddr> {
        self.guard.address(to)
    }

    fn with_cm<R>(&mut self, f: impl FnOnce(&mut Cm) -> R) -> R {
        f(self.guard.cm())
    }

    fn query(&self, qp: Handle) -> Result<(QpAttr, QpInit)> {
        self.guard.qp_query(qp)
    }

    fn number(&self, qp: Handle) -> Result<u32> {
        self.guard.qp_number(qp)
    }

    fn modify(&mut self, now: u64, qp: Handle, attr: &QpAttr, m: u32) -> Result<()> {
        if m & qp_attr_mask::AV != 0 {
            (self.path)(self.guard);
        }
        self.guard.qp_modify(now, qp, attr, m)
    }

    fn note_failed(&mut self, now: u64, e: &CmEvent) {
        self.guard.cm_note_failed(now, e);
    }
}
