//! Objects of the whole device: each engine has them.

use super::EngineSet;
use crate::soft::device::probe;
use crate::soft::SoftDevice;
use gdrcore_core::device::{Device, MrAttr, MrReg};
use gdrcore_core::error::Result;
use gdrcore_core::verbs::types::{AhAttr, Handle};

impl EngineSet {
    /// Makes an object in the first engine, then in the others. If one fails, those before it end
    /// the object again. The caller holds [`EngineSet::control`].
    fn in_all<T>(
        &self,
        make: impl FnOnce(&SoftDevice) -> Result<T>,
        adopt: impl Fn(&SoftDevice, &T) -> Result<()>,
        end: impl Fn(&SoftDevice, &T) -> Result<()>,
    ) -> Result<T> {
        let made = make(self.engines.first())?;
        for (k, engine) in self.engines.numbered().skip(1) {
            if let Err(e) = adopt(engine, &made) {
                for (_, before) in self.engines.numbered().take_while(|(of, _)| *of < k) {
                    // It was made just now, and nothing uses it.
                    let _ = end(before, &made);
                }
                return Err(e);
            }
        }
        Ok(made)
    }

    /// [`Device::pd_alloc`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn pd_make(&self) -> Result<Handle> {
        let _control = self.control()?;
        self.in_all(
            |engine| engine.pd_alloc(),
            |engine, pd| engine.lock()?.pd_adopt(*pd),
            |engine, pd| engine.pd_dealloc(*pd),
        )
    }

    /// [`Device::pd_dealloc`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn pd_end(&self, pd: Handle) -> Result<()> {
        let _control = self.control()?;
        for engine in self.engines.iter() {
            engine.lock()?.pd_may_end(pd)?;
        }
        self.engines.iter().try_for_each(|engine| engine.pd_dealloc(pd))
    }

    /// [`Device::mr_reg`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn mr_make(&self, reg: &MrReg) -> Result<(Handle, MrAttr)> {
        self.fork.check()?;
        probe(reg)?;
        let _control = self.control()?;
        self.in_all(
            |engine| engine.lock()?.mr_reg(reg),
            |engine, (mr, attr)| engine.lock()?.mr_adopt(*mr, attr.rkey, reg),
            |engine, (mr, _)| engine.lock()?.mr_dereg(*mr),
        )
    }

    /// [`Device::mr_rereg`]. The range changes for all engines in one step.
    ///
    /// # Errors
    /// As there.
    pub(super) fn mr_change(&self, mr: Handle, reg: &MrReg) -> Result<MrAttr> {
        self.fork.check()?;
        probe(reg)?;
        let _control = self.control()?;
        let attr = self.with_all(|all| {
            for held in &*all {
                held.mr_may_end(mr)?;
            }
            // The first engine checks the request for all.
            let attr = all[0].mr_rereg(mr, reg)?;
            for held in &mut all[1..] {
                held.mr_rereg(mr, reg)?;
            }
            Ok(attr)
        })?;
        self.unshare(attr.rkey);
        Ok(attr)
    }

    /// [`Device::mr_dereg`]. No engine uses the memory afterwards: each was locked once.
    ///
    /// # Errors
    /// As there.
    pub(super) fn mr_end(&self, mr: Handle) -> Result<()> {
        let _control = self.control()?;
        let rkey = self.with_all(|all| {
            // With the lock held no queue pair of an engine binds a window.
            for held in &*all {
                held.mr_may_end(mr)?;
            }
            let rkey = all[0].mr_query(mr)?.rkey;
            for held in all {
                held.mr_dereg(mr)?;
            }
            Ok(rkey)
        })?;
        self.unshare(rkey);
        Ok(())
    }

    /// [`Device::mr_share`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn mr_grant(&self, mr: Handle, fd: i32, offset: u64) -> Result<()> {
        let _control = self.control()?;
        for (k, engine) in self.engines.numbered() {
            if let Err(e) = engine.share_region(mr, fd, offset) {
                if k > 0 {
                    self.unshare(self.engines.first().mr_query(mr)?.rkey);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    /// Ends the sharing of a region in all engines.
    fn unshare(&self, rkey: u32) {
        for engine in self.engines.iter() {
            SoftDevice::unshare_region(&mut engine.lock_control(), rkey);
        }
    }

    /// [`Device::mw_alloc`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn mw_make(&self, pd: Handle, mw_type: u32) -> Result<(Handle, u32)> {
        let _control = self.control()?;
        self.in_all(
            |engine| engine.mw_alloc(pd, mw_type),
            |engine, (mw, key)| engine.lock()?.mw_adopt(*mw, *key, pd, mw_type),
            |engine, (mw, _)| engine.mw_dealloc(*mw),
        )
    }

    /// [`Device::mw_dealloc`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn mw_end(&self, mw: Handle) -> Result<()> {
        let _control = self.control()?;
        // In one step, as no engine binds it in some of the others alone.
        self.with_all(|all| all.iter_mut().try_for_each(|held| held.mw_dealloc(mw)))
    }

    /// [`Device::ah_create`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn ah_make(&self, pd: Handle, attr: &AhAttr) -> Result<Handle> {
        let mut control = self.control()?;
        self.link_all(&mut control)?;
        self.in_all(
            |engine| engine.ah_create(pd, attr),
            |engine, ah| {
                let mut held = engine.lock()?;
                engine.choose_path(&mut held, attr, None, None)?;
                held.guard.ah_adopt(*ah, pd, attr)
            },
            |engine, ah| engine.ah_destroy(*ah),
        )
    }

    /// [`Device::ah_destroy`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn ah_end(&self, ah: Handle) -> Result<()> {
        let _control = self.control()?;
        self.engines.iter().try_for_each(|engine| engine.ah_destroy(ah))
    }
}
