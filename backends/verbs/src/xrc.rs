//! XRC domains and their SRQs; sizes and numbers of any SRQ.

use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{caps, Object, XrcSrqMake};
use crate::device::{made, VerbsDevice};
use crate::errno;
use gdrcore_core::device::{Device, SrqAttr};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::Handle;

impl VerbsDevice {
    /// Refuses the argument `what` if the NIC has no XRC.
    pub(crate) fn needs_xrc(&self, what: &str) -> Result<()> {
        if self.opened.caps & caps::XRC == 0 {
            return Err(refuse!(Unsupported, "{what}: this NIC has no XRC"));
        }
        Ok(())
    }

    /// See [`Device::xrcd_alloc`].
    pub(crate) fn do_xrcd_alloc(&self) -> Result<Handle> {
        self.needs_xrc("xrcd")?;
        self.add(&self.xrcds, |_, ()| {
            // SAFETY: an open context, a writable result.
            made(|xrcd| unsafe { (self.module.xrcd_open)(self.opened.context, xrcd) })
        })
    }

    /// See [`Device::srq_create_xrc`].
    pub(crate) fn do_srq_create_xrc(
        &self,
        of: [Handle; 3],
        attr: &SrqAttr,
    ) -> Result<(Handle, SrqAttr)> {
        self.needs_xrc("xrcd")?;
        let pd = self.pds.enter(of[0])?;
        let xrcd = self.xrcds.enter(of[1])?;
        let cq = self.cqs.enter(of[2])?;
        self.add_srq(of, attr, |cookie, given| {
            let make = XrcSrqMake { pd: pd.object(), xrcd: xrcd.object(), cq: cq.object(), cookie };
            // SAFETY: live objects, readable and writable attributes, a writable result.
            let srq = made(|srq| unsafe { (self.module.srq_create_xrc)(&make, given, srq) })?;
            pd.adopt();
            xrcd.adopt();
            cq.adopt();
            Ok(srq)
        })
    }

    /// Makes an SRQ of a PD, an XRC domain and a CQ. Domain and CQ 0: a plain SRQ.
    pub(crate) fn add_srq(
        &self,
        of: [Handle; 3],
        attr: &SrqAttr,
        make: impl FnOnce(Handle, &mut SrqAttr) -> Result<Object>,
    ) -> Result<(Handle, SrqAttr)> {
        let mut given = *attr;
        let handle = self.add(&self.srqs, |handle, more| {
            let srq = make(handle, &mut given)?;
            more.sge.store(given.max_sge, Relaxed);
            more.depth.store(given.max_wr, Relaxed);
            for (place, handle) in [&more.pd, &more.xrcd, &more.cq].into_iter().zip(of) {
                place.store(handle, Relaxed);
            }
            Ok(srq)
        })?;
        self.set_first_limit(handle, attr.srq_limit)?;
        Ok((handle, SrqAttr { srq_limit: attr.srq_limit, ..given }))
    }

    /// Sets the limit of a new SRQ, because providers ignore the limit of a create. Destroys the
    /// SRQ if that fails.
    pub(crate) fn set_first_limit(&self, srq: Handle, limit: u32) -> Result<()> {
        if limit == 0 {
            return Ok(());
        }
        self.srq_modify(srq, limit).inspect_err(|_| {
            let _ = self.srq_destroy(srq);
        })
    }

    /// See [`Device::srq_resize`].
    pub(crate) fn do_srq_resize(
        &self,
        srq: Handle,
        max_wr: u32,
        limit: Option<u32>,
    ) -> Result<u32> {
        let held = self.srqs.enter(srq)?;
        if self.opened.caps & caps::SRQ_RESIZE == 0 {
            return Err(refuse!(Unsupported, "max_wr: this NIC cannot resize SRQs"));
        }
        if max_wr == 0 {
            return Err(refuse!(Invalid, "max_wr 0: at least 1"));
        }
        let limit = limit.map_or(-1, i64::from);
        // SAFETY: a live SRQ.
        errno(unsafe { (self.module.srq_resize)(held.object(), max_wr, limit) })?;
        // The call returns no size.
        let mut now = SrqAttr::default();
        // SAFETY: a live SRQ, a writable result.
        errno(unsafe { (self.module.srq_query)(held.object(), &mut now) })?;
        held.more().depth.store(now.max_wr, Relaxed);
        Ok(now.max_wr)
    }

    /// See [`Device::srq_number`].
    pub(crate) fn do_srq_number(&self, srq: Handle) -> Result<u32> {
        let held = self.srqs.enter(srq)?;
        let mut number = 0;
        // SAFETY: a live SRQ, a writable result.
        match errno(unsafe { (self.module.srq_number)(held.object(), &mut number) }) {
            Ok(()) => Ok(number),
            Err(Error::Unsupported) => {
                Err(refuse!(Unsupported, "srq: this NIC's driver gives this SRQ no number"))
            }
            Err(e) => Err(e),
        }
    }
}
