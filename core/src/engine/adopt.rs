//! Objects that all engines of a device have, under the same handles and keys: protection domains,
//! regions, windows, address handles; and the rings of a CQ in several engines.
//!
//! One engine makes the object, the others adopt it. The caller makes these calls one after
//! another, and gives the object to the program when all engines have it. So each engine has all
//! that its packets need in memory of its own, and no engine reads a word of another.

use super::EngineGuard;
use crate::device::MrReg;
use crate::error::Result;
use crate::mem::{OtherTables, Regions};
use crate::reason::refuse;
use crate::roce::peer::Path;
use crate::roce::siblings::SiblingQpns;
use crate::verbs::objects::{Ah, Pd};
use crate::verbs::types::{AhAttr, Handle};

/// Control: objects of the other engines of a device.
impl EngineGuard<'_> {
    /// Adopts a protection domain of another engine.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`]; [`crate::Error::Busy`]: its index is in use here.
    pub fn pd_adopt(&mut self, pd: Handle) -> Result<()> {
        self.make_pd(|pool| pool.adopt(pd)).map(|_| ())
    }

    /// Whether a protection domain may end as far as this engine knows.
    ///
    /// # Errors
    /// Those of [`EngineGuard::pd_dealloc`].
    pub fn pd_may_end(&self, pd: Handle) -> Result<()> {
        self.check_pd_unused(pd).map(|_| ())
    }

    /// Adopts a region of another engine under the `key` that it has there. `reg`: as in the
    /// registration there.
    ///
    /// # Errors
    /// As [`EngineGuard::mr_reg`]; [`crate::Error::Busy`]: its index is in use here.
    pub fn mr_adopt(&mut self, mr: Handle, key: u32, reg: &MrReg) -> Result<()> {
        let pd = self.pd(reg.pd)? as u32;
        let reg = self.transport.common.memory.providers.of_region(reg);
        self.in_regions(|regions| regions.adopt_mr(mr, key, &reg, pd))
    }

    /// Whether a region may end, or be registered anew, as far as this engine knows.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`]; [`crate::Error::Busy`]: windows are bound to it.
    pub fn mr_may_end(&self, mr: Handle) -> Result<()> {
        self.transport.common.memory.regions.unbound(mr).map(|_| ())
    }

    /// Adopts a window of another engine under the `key` that it has there. A binding to a window
    /// of type 2 belongs to its queue pair, so it is not adopted.
    ///
    /// # Errors
    /// As [`EngineGuard::mw_alloc`]; [`crate::Error::Busy`]: its index is in use here.
    pub fn mw_adopt(&mut self, mw: Handle, key: u32, pd: Handle, mw_type: u32) -> Result<()> {
        let pd = self.pd(pd)? as u32;
        self.in_regions(|regions| regions.adopt_mw(mw, key, pd, mw_type))
    }

    /// Adopts an address handle of another engine.
    ///
    /// # Errors
    /// As [`EngineGuard::ah_create`]; [`crate::Error::Busy`]: its index is in use here.
    pub fn ah_adopt(&mut self, ah: Handle, pd: Handle, attr: &AhAttr) -> Result<()> {
        self.make_ah(pd, attr, |pool| pool.adopt(ah)).map(|_| ())
    }

    /// Takes over what another engine has: kinds of memory, and protection domains, regions and
    /// windows under the same handles and keys. Of its address handles it takes the handles alone:
    /// [`EngineGuard::ah_follow`] then makes them one by one, because each has a path of its own.
    /// This engine has had no object yet.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`]; [`crate::Error::Busy`]: this engine has objects.
    pub fn adopt_all(&mut self, of: &EngineGuard<'_>) -> Result<()> {
        let theirs = &of.transport.common;
        let (inner, _) = self.split();
        let common = &mut inner.transport.common;
        common.memory.providers = theirs.memory.providers;
        common.pd_pool.growing(
            &mut inner.heap,
            |pool| pool.copy(&theirs.pd_pool).map(|()| (0, 0)),
            |have, heap| common.pds.grow_past(have, heap, |_| Pd::default()),
        )?;
        common.ah_pool.growing(
            &mut inner.heap,
            |pool| pool.copy(&theirs.ah_pool).map(|()| (0, 0)),
            |have, heap| common.ahs.grow_past(have, heap, |_| Ah::default()),
        )?;
        self.in_regions(|regions| regions.copy(&theirs.memory.regions))
    }

    /// The number of places for address handles. [`EngineGuard::ah_at`] takes places from 0 on.
    pub fn ah_places(&self) -> usize {
        self.transport.common.ahs.len()
    }

    /// The address handle at a place, its protection domain, and its address. `None`: the place is
    /// free.
    pub fn ah_at(&self, place: usize) -> Option<(Handle, Handle, AhAttr)> {
        let common = &self.transport.common;
        let ah = common.ahs.get(place).filter(|ah| ah.live)?;
        let to = self.transport.peers.get(ah.peer as usize)?.addr.to_ah();
        Some((common.ah_pool.handle(place), common.pd_pool.handle(ah.pd as usize), to))
    }

    /// Makes an address handle whose handle came with [`EngineGuard::adopt_all`].
    ///
    /// # Errors
    /// As [`EngineGuard::ah_create`].
    pub fn ah_follow(&mut self, ah: Handle, pd: Handle, attr: &AhAttr) -> Result<()> {
        self.make_ah(pd, attr, |pool| pool.check(ah).map(|i| (ah, i))).map(|_| ())
    }

    /// Takes over what is bound to windows of type 1 in another engine. The caller holds the locks
    /// of all engines, and counts this engine among them from then on.
    pub fn adopt_bindings(&mut self, of: &EngineGuard<'_>) {
        let (inner, _) = self.split();
        inner.transport.common.memory.regions.copy_bindings(&of.transport.common.memory.regions);
    }

    /// Sets the engines in which windows of type 1 are bound, too. `own`: this engine's number
    /// among them.
    pub fn set_other_tables(&mut self, others: &'static dyn OtherTables, own: usize) {
        self.split().0.transport.common.memory.others = Some((others, own));
    }

    /// Sets the QPNs of the engines of a device without a port.
    pub fn set_sibling_qpns(&mut self, qpns: SiblingQpns) {
        self.split().0.transport.common.siblings.set_qpns(qpns);
    }

    /// From here on datagrams, and requests of DC, to QPNs of the engine with this number go over a
    /// link.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`]: no peer record is free.
    pub fn set_sibling_link(&mut self, number: usize, link: u16) -> Result<()> {
        let (inner, _) = self.split();
        let peer = inner.peer_by_path(inner.local, Path::Link(link))?;
        if let Some(before) = inner.transport.common.siblings.set_peer(number, peer) {
            inner.transport.peer_leave(before);
        }
        Ok(())
    }

    /// The engine's regions and windows.
    pub fn regions(&mut self) -> &mut Regions {
        &mut self.split().0.transport.common.memory.regions
    }

    /// Makes the branch in this engine of a CQ of another engine, with the same size. `home`: the
    /// program's handle of the CQ.
    ///
    /// # Errors
    /// As [`EngineGuard::cq_create`].
    pub fn cq_branch(&mut self, home: Handle, capacity: u32) -> Result<Handle> {
        let (branch, _) = self.cq_create(capacity)?;
        let i = self.shared().cq_pool.check(branch)?;
        self.shared().cqs[i].beside.branches.begin(home);
        Ok(branch)
    }

    /// The entries of a CQ. Refuses a CQ that may get no branch.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`]: also of a branch.
    pub fn cq_may_branch(&self, cq: Handle) -> Result<u32> {
        self.own_cq(cq).map(|i| self.shared().cqs[i].ring.capacity())
    }

    /// Whether a ring of a CQ may be destroyed, as far as this engine knows.
    ///
    /// # Errors
    /// As [`EngineGuard::cq_destroy`].
    pub fn cq_may_end(&self, cq: Handle) -> Result<()> {
        self.check_cq_unused(cq).map(|_| ())
    }

    /// The index of a CQ. Refuses a branch, whose handle only the device knows.
    fn own_cq(&self, cq: Handle) -> Result<usize> {
        let s = self.shared();
        let i = s.cq_pool.check(cq)?;
        match s.cqs[i].beside.branches.home() {
            0 => Ok(i),
            _ => Err(refuse!(StaleHandle, "cq {cq:#x}: no CQ of this device")),
        }
    }
}
