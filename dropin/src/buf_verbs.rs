//! Buffers that the library allocates for the program (rdma-core 64), and `ibv_reg_mr_ex`, which
//! unites the other registrations (59).

use crate::abi::*;
use crate::dmah_verbs::Dmah;
use crate::mr_verbs::{self, RegRequest};
use crate::pd_verbs::Pd;
use crate::peek::peek;
use crate::verb_result::{object, Verb};
use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use gdrcore_core::{refuse, Result};
use gdrcore_net::map::{page_size, Map};

/// A buffer, which the program knows only by its pointer. Its memory is a mapping of its own.
pub struct Buf {
    map: Map,
    length: usize,
    /// The domain that it was allocated from.
    pd: *mut ibv_pd,
    /// The domain that counts it as a user.
    domain: &'static Pd,
}

/// `ibv_alloc_buf`: page-aligned, zeroed memory of the process. As for rings, a parent domain's
/// allocators are not called.
pub unsafe extern "C" fn alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut Buf,
) -> *mut c_void {
    Verb("ibv_alloc_buf").pointer((|| {
        // SAFETY: the program's pointers.
        let (domain, out) = unsafe { (Pd::from_ptr(pd)?, buf.as_mut()) };
        let out = out.ok_or_else(|| refuse!(Invalid, "buf: the pointer to it is NULL"))?;
        let whole = size.checked_next_multiple_of(page_size()).filter(|_| size > 0);
        let whole = whole.ok_or_else(|| {
            refuse!(Invalid, "size {size:#x}: at least 1, and within the address space")
        })?;
        let map = Map::new(whole)?;
        let at = map.as_ptr();
        let made = Buf { map, length: size, pd, domain: domain.hold() };
        *out = Box::into_raw(Box::new(made));
        Ok(at.cast())
    })())
}

/// `ibv_free_buf`. Requests to regions in it end in access errors, as with any memory that the
/// program unmaps.
pub unsafe extern "C" fn free_buf(buf: *mut Buf) {
    if buf.is_null() {
        return;
    }
    // SAFETY: made by Box::into_raw; the program may not use it any more.
    let buf = unsafe { Box::from_raw(buf) };
    buf.domain.release();
}

/// `ibv_reg_buf_mr`: a region within a buffer.
pub unsafe extern "C" fn reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let addr = addr as u64;
    let w = RegRequest { pd, addr, length, iova: addr, access: access as u32, provider: 0 };
    // SAFETY: the program's pointers.
    Verb("ibv_reg_buf_mr").pointer(unsafe { register_within(buf, &w) })
}

/// # Safety
/// `buf` is null or a live buffer, and `w.pd` is the program's.
unsafe fn register_within(buf: *const Buf, w: &RegRequest) -> Result<*mut ibv_mr> {
    // SAFETY: the caller's promise.
    let b = unsafe { object(buf)? };
    if w.pd != b.pd {
        return Err(refuse!(Invalid, "pd: not the domain that the buffer was allocated from"));
    }
    let offset = w.addr.checked_sub(b.map.as_ptr() as u64);
    let end = offset.and_then(|offset| offset.checked_add(w.length as u64));
    if end.is_none_or(|end| end > b.length as u64) {
        let (at, whole) = (b.map.as_ptr(), b.length);
        let (addr, length) = (w.addr, w.length);
        return Err(refuse!(
            Invalid,
            "addr {addr:#x}, length {length}: not within the buffer, {whole} bytes at {at:p}"
        ));
    }
    // SAFETY: the caller's promise.
    unsafe { mr_verbs::new(w) }
}

/// `ibv_export_buf_dmabuf_fd`: the memory is not a dma-buf's.
pub unsafe extern "C" fn export_buf_dmabuf_fd(buf: *mut Buf) -> c_int {
    // SAFETY: the program's pointer.
    Verb("ibv_export_buf_dmabuf_fd").number(
        unsafe { object(buf) }
            .and_then(|_| Err(refuse!(Os(libc::ENODATA), "buf: ordinary memory, not a dma-buf"))),
    )
}

/// `ibv_mr_init_attr_mask`.
const IOVA: u64 = 1;
const ADDR: u64 = 2;
const FD: u64 = 4;
const FD_OFFSET: u64 = 8;
const DMAH: u64 = 16;
const BUF: u64 = 32;

/// The argument of `ibv_reg_mr_ex`; `comp_mask` says which fields from `iova` on there are.
#[repr(C)]
pub struct ibv_mr_init_attr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut Dmah,
    buf: *mut Buf,
}

/// All fields.
const KNOWN: u64 = IOVA | ADDR | FD | FD_OFFSET | DMAH | BUF;

/// The address that requests give to the first byte of a region, by the argument of
/// `ibv_reg_mr_ex`. `None`: no memory of the program's.
pub fn iova_of(attr: usize) -> Option<u64> {
    let field = |offset: usize| peek::<u64>(attr.checked_add(offset)?);
    let mask = field(offset_of!(ibv_mr_init_attr, comp_mask))?;
    match mask & (FD | IOVA) {
        0 => field(offset_of!(ibv_mr_init_attr, addr)),
        IOVA => field(offset_of!(ibv_mr_init_attr, iova)),
        _ => None,
    }
}

/// `ibv_reg_mr_ex`: `comp_mask` selects one of the other registrations.
pub unsafe extern "C" fn reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    // SAFETY: the program's pointers.
    Verb("ibv_reg_mr_ex").pointer(unsafe { register_by(pd, attr) })
}

/// # Safety
/// The program's pointers. The struct may be shorter than ours, so this reads only the fields
/// before the mask and those that the mask names, and forms no reference.
unsafe fn register_by(pd: *mut ibv_pd, a: *const ibv_mr_init_attr) -> Result<*mut ibv_mr> {
    if a.is_null() {
        return Err(refuse!(Invalid, "a pointer to an ibv_mr_init_attr is NULL"));
    }
    // SAFETY: the caller's promise.
    let (mask, length, access) = unsafe { ((*a).comp_mask, (*a).length, (*a).access) };
    if mask & !KNOWN != 0 {
        return Err(refuse!(Unsupported, "comp_mask {mask:#x}: the device knows {KNOWN:#x}"));
    }
    let given = |bit| mask & bit != 0;
    let dmah = match given(DMAH) {
        // SAFETY: the caller's promise.
        true => Some(unsafe { Dmah::for_region((*a).dmah, pd, access as u32)? }),
        false => None,
    };
    let mr = if given(FD) {
        if given(ADDR) || given(BUF) || !given(FD_OFFSET) || !given(IOVA) {
            return Err(refuse!(
                Invalid,
                "comp_mask {mask:#x}: FD is with FD_OFFSET and IOVA, without ADDR and BUF"
            ));
        }
        // SAFETY: the caller's promise.
        unsafe { mr_verbs::of_dmabuf(pd, (*a).fd_offset, length, (*a).iova, (*a).fd, access)? }
    } else {
        if !given(ADDR) || given(FD_OFFSET) {
            return Err(refuse!(Invalid, "comp_mask {mask:#x}: ADDR, or FD with FD_OFFSET"));
        }
        // SAFETY: the caller's promise.
        let addr = unsafe { (*a).addr } as u64;
        // SAFETY: the caller's promise.
        let iova = if given(IOVA) { unsafe { (*a).iova } } else { addr };
        let w = RegRequest { pd, addr, length, iova, access: access as u32, provider: 0 };
        match given(BUF) {
            // SAFETY: the caller's promise.
            true => unsafe { register_within((*a).buf, &w)? },
            // SAFETY: the caller's promise.
            false => unsafe { mr_verbs::of_host(&w)? },
        }
    };
    if let Some(dmah) = dmah {
        // SAFETY: the region is new.
        unsafe { mr_verbs::set_dmah(mr, dmah) };
    }
    Ok(mr)
}
