//! Verbs of XRC domains. `srq_verbs` has the SRQs of a domain, `qp_verbs` its queue pairs,
//! `open_qp_verbs` further handles of these.
//!
//! A domain belongs to one process. Programs name a domain by a file to share it among processes;
//! here each process that opens the file has its own domain. Uses that need the other process are
//! refused: `ibv_open_qp` of its queue pair, and requests to its SRQ.

use crate::abi::*;
use crate::hca::{File, Hca, XrcFile};
use crate::open_context::Context;
use crate::verb_result::{object, stat, Verb};
use core::ffi::c_int;
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::{refuse, Error, Result};

/// An XRC domain: one result of `ibv_open_xrcd`.
#[repr(C)]
pub struct Xrcd {
    ibv: ibv_xrcd,
    hca: &'static Hca,
    /// The device's domain.
    pub handle: Handle,
    /// The file that names it.
    file: Option<File>,
}

/// `ibv_xrcd_init_attr_mask`: FD and OFLAGS, both required.
const INIT_BOTH: u32 = 3;
impl Xrcd {
    /// The domain that a program's pointer belongs to.
    ///
    /// # Errors
    /// `Error::Invalid`: null. `Error::OwnerDead`: it is the parent process's.
    ///
    /// # Safety
    /// `p` is null or a live domain of ours.
    pub unsafe fn from_ptr<'a>(p: *mut ibv_xrcd) -> Result<&'a Xrcd> {
        // SAFETY: the caller's promise; the program's struct is the first field.
        let x = unsafe { object(p.cast::<Xrcd>())? };
        x.hca.check()?;
        Ok(x)
    }
}

/// The domain of a file; makes one if there is none.
fn domain_of(hca: &'static Hca, file: File, oflags: c_int) -> Result<Handle> {
    let known = hca.objects().xrc_files.contains_key(&file);
    if known && oflags & libc::O_EXCL != 0 {
        return Err(refuse!(Invalid, "oflags: O_EXCL, and the file has a domain already"));
    }
    if !known && oflags & libc::O_CREAT == 0 {
        return Err(refuse!(Again, "oflags: no O_CREAT, and the file has no domain yet"));
    }
    if !known {
        // The objects' lock is not held here, because it must be taken after the device's lock.
        let made = hca.make(0, |d| d.xrcd_alloc())?;
        let mut objects = hca.objects();
        if let Some(other) = objects.xrc_files.get_mut(&file) {
            // Another thread has made one meanwhile.
            other.opens += 1;
            let handle = other.handle;
            drop(objects);
            hca.device.xrcd_dealloc(made)?;
            return Ok(handle);
        }
        objects.xrc_files.insert(file, XrcFile { handle: made, opens: 1 });
        return Ok(made);
    }
    let mut objects = hca.objects();
    let found = objects.xrc_files.get_mut(&file).ok_or(Error::Again)?;
    found.opens += 1;
    Ok(found.handle)
}

/// The operation behind `ibv_open_xrcd`.
pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    Verb("ibv_open_xrcd").pointer((|| {
        // SAFETY: the program's pointers.
        let (c, i) = unsafe { (Context::from_ptr(context)?, object(init)?) };
        if i.comp_mask != INIT_BOTH {
            return Err(refuse!(
                Invalid,
                "comp_mask {:#x}: IBV_XRCD_INIT_ATTR_FD and _OFLAGS (3)",
                i.comp_mask
            ));
        }
        if i.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(refuse!(Invalid, "oflags {:#x}: O_CREAT and O_EXCL", i.oflags));
        }
        let file = match i.fd {
            -1 => None,
            fd => Some(stat(fd).map(|st| (st.st_dev, st.st_ino))?),
        };
        let handle = match file {
            Some(file) => domain_of(c.hca, file, i.oflags)?,
            None => c.hca.make(0, |d| d.xrcd_alloc())?,
        };
        let ibv = ibv_xrcd { context };
        Ok(Box::into_raw(Box::new(Xrcd { ibv, hca: c.hca, handle, file })).cast())
    })())
}

/// The operation behind `ibv_close_xrcd`. The last handle ends the domain; this is refused while it
/// has SRQs or queue pairs.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    Verb("ibv_close_xrcd").code((|| {
        // SAFETY: the program's pointer.
        let x = unsafe { Xrcd::from_ptr(xrcd)? };
        let mut last = true;
        if let Some(file) = x.file {
            if let Some(known) = x.hca.objects().xrc_files.get_mut(&file) {
                last = known.opens == 1;
                known.opens -= usize::from(!last);
            }
        }
        if last {
            x.hca.device.xrcd_dealloc(x.handle)?;
            if let Some(file) = x.file {
                x.hca.objects().xrc_files.remove(&file);
            }
        }
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
        Ok(())
    })())
}
