//! A QP or CQ that was looked up once, for posts and polls without a lookup.
//!
//! The pin keeps the object's table entry in place.

use super::SoftEngine;
use gdrcore_core::error::Result;
use gdrcore_core::verbs::post::Take;
use gdrcore_core::verbs::shared::{polled, CqShared, QpShared};
use gdrcore_core::verbs::types::{Handle, RecvWr, SendWr, Wc};

/// A pinned QP.
#[derive(Clone, Copy)]
pub struct PinnedQp {
    device: &'static SoftEngine,
    index: usize,
    qp: &'static QpShared,
}

/// A pinned CQ.
#[derive(Clone, Copy)]
pub struct PinnedCq {
    device: &'static SoftEngine,
    index: usize,
    cq: &'static CqShared,
}

/// Control: pins for the calls without a handle.
impl SoftEngine {
    /// Looks up a QP that is pinned.
    ///
    /// # Errors
    /// [`gdrcore_core::error::Error::StaleHandle`].
    pub fn pinned_qp(&'static self, qp: Handle) -> Result<PinnedQp> {
        let (index, qp) = self.engine.qp(qp)?;
        Ok(PinnedQp { device: self, index, qp })
    }

    /// Looks up a CQ that is pinned.
    ///
    /// # Errors
    /// [`gdrcore_core::error::Error::StaleHandle`].
    pub fn pinned_cq(&'static self, cq: Handle) -> Result<PinnedCq> {
        let (index, cq) = self.engine.cq(cq)?;
        Ok(PinnedCq { device: self, index, cq })
    }
}

impl PinnedQp {
    /// As [`gdrcore_core::device::Device::post_send`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there; the QP is still pinned, its device open, and the process the one that opened it.
    #[inline(always)]
    pub unsafe fn post_send(&self, wr: *const SendWr, bad: &mut *const SendWr) -> Result<()> {
        *bad = wr;
        // SAFETY: our contract.
        unsafe { self.device.post_send_to(self.index, self.qp, wr, bad, Take::Some) }
    }

    /// As [`gdrcore_core::device::Device::post_recv`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As for [`PinnedQp::post_send`].
    #[inline(always)]
    pub unsafe fn post_recv(&self, wr: *const RecvWr, bad: &mut *const RecvWr) -> Result<()> {
        *bad = wr;
        // SAFETY: our contract.
        unsafe { self.device.engine.post_recv_to(self.index, self.qp, wr, bad) }
    }
}

impl PinnedCq {
    /// Whether other engines of the device have rings of this CQ.
    #[inline(always)]
    pub(super) fn has_branches(&self) -> bool {
        self.cq.beside.branches.next() != 0
    }

    /// As [`gdrcore_core::device::Device::poll_cq`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// The CQ is still pinned, its device open, and the process the one that opened it.
    #[inline(always)]
    pub unsafe fn poll(&self, wc: &mut [Wc]) -> Result<usize> {
        let found = self.device.poll_cq_at(self.index, self.cq, wc);
        found.map(|n| n as usize).ok_or_else(polled)
    }
}
