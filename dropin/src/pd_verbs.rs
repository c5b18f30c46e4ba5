//! Verbs of protection domains, parent domains and thread domains.
//!
//! A parent domain is an alias of a protection domain. By a thread domain a program declares that
//! only one thread uses the objects on it. The locks need no such hint: they cost nothing without a
//! second thread.

use crate::abi::*;
use crate::hca::Hca;
use crate::object_numbers::{ObjectKind, ObjectNumber};
use crate::open_context::Context;
use crate::verb_result::{object, Verb};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::{refuse, Result};

/// A protection domain, or a parent domain over one.
#[repr(C)]
pub struct Pd {
    ibv: ibv_pd,
    /// `ibv.handle`. An alias of a domain has the number of its base.
    number: Option<ObjectNumber>,
    pub hca: &'static Hca,
    /// The device's protection domain.
    pub handle: Handle,
    /// The base of a parent or imported domain, else null.
    base: *mut Pd,
    td: *mut Td,
    imported: bool,
    /// Objects made on it, parent domains included.
    users: AtomicU32,
}

/// A thread domain: only one thread at a time uses the objects on it. One engine has all its CQs.
#[repr(C)]
pub struct Td {
    ibv: ibv_td,
    /// Its number on the device.
    number: u32,
    users: AtomicU32,
}

impl Pd {
    /// The domain that a program's pointer belongs to.
    ///
    /// # Errors
    /// `Error::Invalid`: null. `Error::OwnerDead`: it is the parent process's.
    ///
    /// # Safety
    /// `p` is null or a live domain of ours.
    pub unsafe fn from_ptr<'a>(p: *mut ibv_pd) -> Result<&'a Pd> {
        // SAFETY: the caller's promise; the program's struct is the first field.
        let pd = unsafe { object(p.cast::<Pd>())? };
        pd.hca.check()?;
        Ok(pd)
    }

    /// Counts an object that is made on the domain. Returns the domain that counts the object,
    /// which is to be released with it. An imported domain returns its base, because the import may
    /// end before its objects.
    pub fn hold(&self) -> &'static Pd {
        let counted: *const Pd = if self.imported { self.base } else { self };
        // SAFETY: a domain lives for as long as objects are counted on it.
        let counted: &'static Pd = unsafe { &*counted };
        counted.users.fetch_add(1, Ordering::Relaxed);
        counted
    }

    /// The number of the thread domain of a parent domain.
    pub fn thread_domain(&self) -> Option<u32> {
        // SAFETY: null, or one that lives as long as this domain, which counts as its user.
        unsafe { self.td.as_ref() }.map(|td| td.number)
    }

    /// Counts one object less.
    pub fn release(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// A domain of the device, or with `base` an alias of that.
    fn boxed(
        context: *mut ibv_context,
        hca: &'static Hca,
        handle: Handle,
        base: *mut Pd,
        td: *mut Td,
    ) -> *mut Pd {
        // SAFETY: null, or a domain that lives.
        let theirs = unsafe { base.as_ref() }.map(|base| base.ibv.handle);
        let number = theirs.is_none().then(|| ObjectNumber::new(ObjectKind::Pd, hca));
        let shown = theirs.or(number.as_ref().map(ObjectNumber::get)).unwrap_or_default();
        let ibv = ibv_pd { context, handle: shown };
        Box::into_raw(Box::new(Pd {
            ibv,
            number,
            hca,
            handle,
            base,
            td,
            imported: false,
            users: AtomicU32::new(0),
        }))
    }
}

/// `ibv_alloc_pd`.
pub unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    Verb("ibv_alloc_pd").pointer((|| {
        // SAFETY: the program's pointer.
        let c = unsafe { Context::from_ptr(context)? };
        let handle = c.hca.make(0, |d| d.pd_alloc())?;
        let pd = Pd::boxed(context, c.hca, handle, core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: just made.
        c.hca.objects().domains.insert(unsafe { (*pd).ibv.handle }, pd.cast());
        Ok(pd.cast())
    })())
}

/// `ibv_dealloc_pd`, also for a parent domain.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    Verb("ibv_dealloc_pd").code((|| {
        // SAFETY: the program's pointer.
        let p = unsafe { Pd::from_ptr(pd)? };
        let users = p.users.load(Ordering::Relaxed);
        if users != 0 {
            return Err(refuse!(Busy, "pd: {users} objects are in it"));
        }
        // SAFETY: a parent domain counts as a user of its base and its thread domain, which
        // therefore live.
        match unsafe { p.base.as_ref() } {
            Some(base) => base.release(),
            None => {
                p.hca.device.pd_dealloc(p.handle)?;
                p.hca.objects().domains.remove(&p.ibv.handle);
            }
        }
        // SAFETY: as above.
        if let Some(td) = unsafe { p.td.as_ref() } {
            td.users.fetch_sub(1, Ordering::Relaxed);
        }
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        Ok(())
    })())
}

/// `ibv_import_pd`: another object for a domain of another context of this process. The owner
/// deallocates the domain.
pub unsafe extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    Verb("ibv_import_pd").pointer((|| {
        // SAFETY: the program's pointer.
        let c = unsafe { Context::from_ptr(context)? };
        let base = c.hca.objects().domains.get(&handle).copied();
        let base =
            base.ok_or_else(|| refuse!(Invalid, "pd_handle {handle}: no domain of this device"))?;
        let base = base.cast::<Pd>();
        // SAFETY: a domain is in the table for as long as it lives.
        let p = unsafe { &*base };
        p.hold();
        let name = Pd::boxed(context, c.hca, p.handle, base, core::ptr::null_mut());
        // SAFETY: just made.
        unsafe { (*name).imported = true };
        Ok(name.cast())
    })())
}

/// `ibv_unimport_pd`.
pub unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the program's pointer. Only the name goes.
    unsafe { dealloc_pd(pd) };
}

/// The operation behind `ibv_alloc_td`.
pub unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    Verb("ibv_alloc_td").pointer((|| {
        // SAFETY: the program's pointers.
        let (c, attr) = unsafe { (Context::from_ptr(context)?, object(attr)?) };
        if attr.comp_mask != 0 {
            return Err(refuse!(Unsupported, "comp_mask {:#x}: must be 0", attr.comp_mask));
        }
        let number = c.hca.thread_domains.fetch_add(1, Ordering::Relaxed);
        let td = Td { ibv: ibv_td { context }, number, users: AtomicU32::new(0) };
        Ok(Box::into_raw(Box::new(td)).cast())
    })())
}

/// The operation behind `ibv_dealloc_td`.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    Verb("ibv_dealloc_td").code((|| {
        // SAFETY: the program's pointer, one of ours.
        if unsafe { object(td.cast::<Td>())? }.users.load(Ordering::Relaxed) != 0 {
            return Err(refuse!(Busy, "td: a parent domain uses it"));
        }
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(td.cast::<Td>()) });
        Ok(())
    })())
}

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS`, `_PD_CONTEXT`: allocators are accepted but not called,
/// because the rings are in the device's memory; drivers without allocations do the same.
/// `_ALLOW_CC_UNPROTECTED_ALLOC`: a permission that a device without DMA does not need.
const PARENT_DOMAIN_ATTRS: u32 = 7;

/// The operation behind `ibv_alloc_parent_domain`.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    Verb("ibv_alloc_parent_domain").pointer((|| {
        // SAFETY: the program's pointers.
        let (c, attr) = unsafe { (Context::from_ptr(context)?, object(attr)?) };
        if attr.comp_mask & !PARENT_DOMAIN_ATTRS != 0 {
            return Err(refuse!(
                Unsupported,
                "comp_mask {:#x}: the device knows {PARENT_DOMAIN_ATTRS:#x}",
                attr.comp_mask
            ));
        }
        // SAFETY: as above.
        let base = unsafe { Pd::from_ptr(attr.pd)? };
        if !base.base.is_null() || !core::ptr::eq(base.hca, c.hca) {
            return Err(refuse!(Invalid, "pd: a parent domain itself, or of another device"));
        }
        base.hold();
        let td = attr.td.cast::<Td>();
        // SAFETY: null or one of ours.
        if let Some(td) = unsafe { td.as_ref() } {
            td.users.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Pd::boxed(context, c.hca, base.handle, attr.pd.cast(), td).cast())
    })())
}
