//! Verbs of device memory. This device's memory is the host's, so device memory is a mapping that
//! the library makes.

use crate::abi::*;
use crate::hca::Hca;
use crate::layer;
use crate::mr_verbs::{self, RegRequest};
use crate::object_numbers::{ObjectKind, ObjectNumber};
use crate::open_context::Context;
use crate::pd_verbs::Pd;
use crate::verb_result::{object, Verb};
use core::ffi::{c_int, c_uint, c_void};
use gdrcore_core::mem::host;
use gdrcore_core::verbs::types::{access, ACCESS_ALL};
use gdrcore_core::{refuse, Result};
use gdrcore_net::map::Map;
use std::os::fd::{IntoRawFd, OwnedFd};

/// Limit of an allocation; no NIC has as much.
pub const MAX: u64 = 64 << 20;

/// Device memory.
#[repr(C)]
pub struct Dm {
    ibv: ibv_dm,
    /// `ibv.handle`; `None`: imported.
    _number: Option<ObjectNumber>,
    /// Address of the first byte, as a number, because no reference into the memory exists.
    base: u64,
    length: usize,
    hca: &'static Hca,
    /// `None`: imported.
    map: Option<Map>,
    /// The memory as a file, for the export. `None`: it is imported, or there was no descriptor for
    /// it.
    file: Option<OwnedFd>,
}

impl Dm {
    fn ibv(context: *mut ibv_context, handle: u32) -> ibv_dm {
        let mut dm = ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle,
        };
        layer::wrap_dm(&mut dm);
        dm
    }

    /// As `at`, for copies by the program. As on NICs, offset and length must be multiples of 4.
    fn words_at(&self, offset: u64, length: usize) -> Result<u64> {
        if offset % 4 != 0 || length % 4 != 0 {
            return Err(refuse!(Invalid, "dm_offset {offset}, length {length}: multiples of 4"));
        }
        self.at(offset, length)
    }

    /// The address of `length` bytes at an offset.
    fn at(&self, offset: u64, length: usize) -> Result<u64> {
        let all = self.length as u64;
        if offset.checked_add(length as u64).is_none_or(|end| end > all) {
            return Err(refuse!(
                Invalid,
                "dm_offset {offset}, length {length}: this device memory has {all} bytes"
            ));
        }
        Ok(self.base + offset)
    }
}

/// The operation behind `ibv_alloc_dm`.
pub unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    Verb("ibv_alloc_dm").pointer((|| {
        // SAFETY: the program's pointers. Also allowed in a child of fork: the device is not used.
        let (c, a) = unsafe { (Context::of_anybody(context)?, object(attr)?) };
        // Pages are aligned to 2^12.
        if a.comp_mask != 0 || a.length == 0 || a.log_align_req > 12 {
            let (length, log, mask) = (a.length, a.log_align_req, a.comp_mask);
            return Err(refuse!(
                Invalid,
                "length {length}: at least 1; log_align_req \
                 {log}: at most 12; comp_mask {mask:#x}: 0"
            ));
        }
        if a.length as u64 > MAX {
            return Err(refuse!(NoMemory, "length {}: at most {MAX}", a.length));
        }
        // A router's device has no memory of a file; only the export needs it.
        let shared = c.hca.soft().map(|_| Map::with_file(c"gdrcore-dm", a.length));
        let (map, file) = match shared {
            Some(Ok((map, file))) => (map, Some(file)),
            _ => (Map::new(a.length)?, None),
        };
        let number = ObjectNumber::new(ObjectKind::Dm, c.hca);
        let handle = number.get();
        let (base, length) = (map.as_ptr() as u64, a.length);
        let dm = Box::into_raw(Box::new(Dm {
            ibv: Dm::ibv(context, handle),
            _number: Some(number),
            base,
            length,
            hca: c.hca,
            map: Some(map),
            file,
        }));
        if c.hca.check().is_ok() {
            c.hca.objects().dms.insert(handle, dm.cast());
        }
        Ok(dm.cast())
    })())
}

/// The operation behind `ibv_free_dm`. Programs should deregister its regions first: requests that
/// still use them get access errors.
pub unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the program's pointer, one of ours.
    Verb("ibv_free_dm").code(unsafe { object(dm.cast::<Dm>()) }.map(|d| {
        if d.map.is_some() && d.hca.check().is_ok() {
            d.hca.objects().dms.remove(&d.ibv.handle);
        }
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(dm.cast::<Dm>()) });
    }))
}

/// `ibv_import_dm`: another object for device memory of another context of this process. The owner
/// frees the memory.
pub unsafe extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    Verb("ibv_import_dm").pointer((|| {
        // SAFETY: the program's pointer.
        let c = unsafe { Context::from_ptr(context)? };
        let objects = c.hca.objects();
        let theirs = objects.dms.get(&handle).copied();
        let theirs = theirs
            .ok_or_else(|| refuse!(Invalid, "dm_handle {handle}: no memory of this device"))?;
        // SAFETY: it is in the table for as long as it lives, and the table is locked.
        let theirs = unsafe { &*theirs.cast::<Dm>() };
        let (base, length) = (theirs.base, theirs.length);
        let ibv = Dm::ibv(context, handle);
        let alias = Dm { ibv, _number: None, base, length, hca: c.hca, map: None, file: None };
        Ok(Box::into_raw(Box::new(alias)).cast())
    })())
}

/// `ibv_unimport_dm`.
pub unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the program's pointer. Only the name goes.
    unsafe { free_dm(dm) };
}

/// `ibv_dm_export_dmabuf_fd`: a descriptor of the memory, which programs can map and this device
/// registers as a dma-buf. Kernel drivers cannot import it, because none of them made it.
pub unsafe extern "C" fn export_dmabuf_fd(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the program's pointer, one of ours.
    Verb("ibv_dm_export_dmabuf_fd").number(unsafe { object(dm.cast::<Dm>()) }.and_then(|d| {
        let file = d.file.as_ref().ok_or_else(|| {
            refuse!(Unsupported, "dm: imported, or no descriptor was free when it was allocated")
        })?;
        let copy = file.try_clone().map_err(|_| crate::verb_result::last_error())?;
        Ok(copy.into_raw_fd())
    }))
}

/// `IBV_ACCESS_*` flags that a region over device memory may have. Its addresses are offsets.
const DM_ACCESS: u32 = ACCESS_ALL & !(access::ON_DEMAND | access::HUGETLB);

/// The operation behind `ibv_reg_dm_mr`.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> *mut ibv_mr {
    Verb("ibv_reg_dm_mr").pointer((|| {
        // SAFETY: the program's pointers.
        let (_, d) = unsafe { (Pd::from_ptr(pd)?, object(dm.cast::<Dm>())?) };
        if flags & !DM_ACCESS != 0 || flags & access::ZERO_BASED == 0 {
            return Err(refuse!(
                Invalid,
                "access {flags:#x}: IBV_ACCESS_ZERO_BASED and others of {DM_ACCESS:#x}"
            ));
        }
        let addr = d.at(offset, length)?;
        // SAFETY: as above.
        let mr = unsafe {
            mr_verbs::new(&RegRequest { pd, addr, length, iova: 0, access: flags, provider: 0 })?
        };
        // SAFETY: just made. To programs it begins at 0.
        unsafe { (*mr).addr = core::ptr::null_mut() };
        Ok(mr)
    })())
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_memcpy_to_dm").code(unsafe { object(dm.cast::<Dm>()) }.and_then(|d| {
        let at = d.words_at(offset, length)?;
        // SAFETY: `length` bytes of the mapping, which nobody holds a reference to.
        let to = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, length) };
        host::fetch(from as u64, to)
            .map_err(|_| refuse!(Fault, "host_addr {from:p}: {length} bytes cannot be read"))
    }))
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_memcpy_from_dm").code(unsafe { object(dm.cast::<Dm>()) }.and_then(|d| {
        if to.is_null() && length > 0 {
            return Err(refuse!(Invalid, "host_addr: NULL"));
        }
        let at = d.words_at(offset, length)?;
        // SAFETY: `length` bytes of the mapping; the program's buffer has as many.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, to.cast::<u8>(), length) };
        Ok(())
    }))
}
