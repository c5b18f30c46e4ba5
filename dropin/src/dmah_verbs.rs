//! DMA handles (rdma-core 59): hints by which a NIC marks its PCIe transactions (TPH). This device
//! makes no such transactions. It checks the hints as the kernel does, and accepts the handles in
//! registrations.

use crate::abi::*;
use crate::hca::Hca;
use crate::open_context::Context;
use crate::pd_verbs::Pd;
use crate::verb_result::{last_error, object, Verb};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use gdrcore_core::verbs::types::access;
use gdrcore_core::{refuse, Result};

/// A DMA handle.
#[repr(C)]
pub struct Dmah {
    /// The part that programs see.
    context: *mut ibv_context,
    hca: &'static Hca,
    /// Regions that were registered with it.
    users: AtomicU32,
}

/// The argument of `ibv_alloc_dmah`.
#[repr(C)]
pub struct ibv_dmah_init_attr {
    comp_mask: u32,
    cpu_id: u32,
    ph: u8,
    tph_mem_type: u8,
}

/// `ibv_dmah_init_attr_mask`.
const CPU_ID: u32 = 1;
const PH: u32 = 2;
const MEM_TYPE: u32 = 4;
/// Processing hints have two bits.
const PH_MAX: u8 = 3;
/// `IBV_TPH_MEM_TYPE_PM`; 0 is `_VM`.
const PERSISTENT: u8 = 1;

impl Dmah {
    /// The handle for a new region of a domain.
    ///
    /// # Errors
    /// `Error::Invalid`: null, of another device, or for a region on demand.
    ///
    /// # Safety
    /// The program's pointers.
    pub unsafe fn for_region(p: *const Dmah, pd: *mut ibv_pd, flags: u32) -> Result<&'static Dmah> {
        // SAFETY: the caller's promise.
        let (dmah, pd) = unsafe { (object(p)?, Pd::from_ptr(pd)?) };
        if !core::ptr::eq(dmah.hca, pd.hca) || flags & access::ON_DEMAND != 0 {
            return Err(refuse!(
                Invalid,
                "dmah: of another device, or with an access on demand ({flags:#x})"
            ));
        }
        Ok(dmah)
    }

    /// Counts a region that is registered with it.
    pub fn hold(&'static self) -> &'static Dmah {
        self.users.fetch_add(1, Ordering::Relaxed);
        self
    }

    /// Counts one region less.
    pub fn release(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }
}

fn may_run_on(cpu: u32) -> Result<bool> {
    // SAFETY: zeroes are a valid set, which lives through the call.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    let size = size_of_val(&set);
    // SAFETY: as above.
    if unsafe { libc::sched_getaffinity(0, size, &mut set) } != 0 {
        return Err(last_error());
    }
    let cpu = cpu as usize;
    // SAFETY: within the set.
    Ok(cpu < size * 8 && unsafe { libc::CPU_ISSET(cpu, &set) })
}

/// `ibv_alloc_dmah`.
pub unsafe extern "C" fn alloc_dmah(
    context: *mut ibv_context,
    attr: *const ibv_dmah_init_attr,
) -> *mut Dmah {
    Verb("ibv_alloc_dmah").pointer((|| {
        // SAFETY: the program's pointers.
        let (c, a) = unsafe { (Context::from_ptr(context)?, object(attr)?) };
        let known = CPU_ID | PH | MEM_TYPE;
        if a.comp_mask & !known != 0 {
            let mask = a.comp_mask;
            return Err(refuse!(Unsupported, "comp_mask {mask:#x}: the device knows {known:#x}"));
        }
        if a.comp_mask & PH != 0 && a.ph > PH_MAX {
            return Err(refuse!(Invalid, "ph {}: at most {PH_MAX}", a.ph));
        }
        if a.comp_mask & MEM_TYPE != 0 && a.tph_mem_type > PERSISTENT {
            return Err(refuse!(
                Invalid,
                "tph_mem_type {}: volatile (0) or persistent ({PERSISTENT})",
                a.tph_mem_type
            ));
        }
        if a.comp_mask & CPU_ID != 0 && !may_run_on(a.cpu_id)? {
            return Err(refuse!(
                Os(libc::EPERM),
                "cpu_id {}: not a CPU that this thread may run on",
                a.cpu_id
            ));
        }
        Ok(Box::into_raw(Box::new(Dmah { context, hca: c.hca, users: AtomicU32::new(0) })))
    })())
}

/// `ibv_dealloc_dmah`.
pub unsafe extern "C" fn dealloc_dmah(dmah: *mut Dmah) -> c_int {
    Verb("ibv_dealloc_dmah").code((|| {
        // SAFETY: the program's pointer, one of ours.
        let users = unsafe { object(dmah)? }.users.load(Ordering::Relaxed);
        if users != 0 {
            return Err(refuse!(Busy, "dmah: {users} regions are registered with it"));
        }
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(dmah) });
        Ok(())
    })())
}
