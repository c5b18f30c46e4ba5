//! C calls of memory regions of host and GPU memory, and of memory windows: gdrc_mr_, gdrc_mw_.

use crate::c_consts::*;
use crate::c_result::{call, refuse};
use crate::c_types::*;
use crate::context_device::undoing;
use crate::context_slots::device;
use crate::gpu_regions;
use crate::ptr::{out, out_optional, sized_in, sized_out, sized_out_optional, zeroed};
use core::ffi::{c_char, c_int, c_void};
use gdrcore_core::device::{MrAttr, MrReg};
use gdrcore_core::{copy_fields, Result};
use gdrcore_cuda::route::{Route, SkipReason};
use gdrcore_net::reason;

/// Registers `length` bytes at `addr`: work requests may name them by the keys in `attr`, with the
/// rights in `access` (GDRC_ACCESS_). Remote write and atomics need local write as well. Work
/// requests use the program's own addresses, or count from 0 with GDRC_ACCESS_ZERO_BASED. The
/// memory must stay mapped until gdrc_mr_dereg; if it vanishes nevertheless, operations on it end
/// with an access error. `attr` (struct_size set) may be NULL.
///
/// Errors: -EFAULT: the range is not mapped with the rights that `access` needs; -ENOMEM: max_mr
/// are in use; -EINVAL: length 0, the range leaves the address space, unknown or contradictory
/// access flags, stale pd; -EOPNOTSUPP: access flags that the device does not have. Threads: any.
/// Cost: probes every page once. Source: IBTA verb Register Memory Region; ibv_reg_mr(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_mr_reg(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
    out: *mut gdrc_mr,
    attr: *mut gdrc_mr_attr,
) -> c_int {
    let iova = if access & access::ZERO_BASED != 0 { 0 } else { addr.expose_provenance() as u64 };
    call(|| mr_reg(ctx, pd, addr, length, iova, access, None, out, attr))
}

#[allow(clippy::too_many_arguments)] // those of the C call
fn mr_reg(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
    shared: Option<(i32, u64)>,
    out: *mut gdrc_mr,
    attr: *mut gdrc_mr_attr,
) -> Result<()> {
    let out = out!(out);
    let attr = sized_out_optional!(attr);
    let dev = device(ctx)?;
    // The engine reaches the memory by its address: the pointer's provenance is exposed here for
    // that.
    let addr = addr.expose_provenance() as u64;
    let len = length as u64;
    check_range(addr, len, iova)?;
    if access & access::ZERO_BASED != 0 && iova != 0 {
        return Err(refuse!(Invalid, "iova {iova:#x}: with GDRC_ACCESS_ZERO_BASED it must be 0"));
    }
    let reg = MrReg { pd: pd.handle, addr, length: len, iova, access, provider: 0, cookie: 0 };
    let (mr, a) = match (shared, dev.remote()) {
        (None, _) => dev.mr_reg(&reg)?,
        // A router maps the file itself.
        (Some((fd, offset)), Some(remote)) => {
            let made = remote.mr_reg_file(&reg, fd, offset)?;
            dev.note_region(&reg, &made);
            made
        }
        (Some((fd, offset)), None) => {
            let made = dev.mr_reg(&reg)?;
            if let Err(e) = dev.mr_share(made.0, fd, offset) {
                undoing(dev).mr_dereg(made.0)?;
                return Err(e);
            }
            made
        }
    };
    out.write(gdrc_mr { handle: mr });
    if let Some(attr) = attr {
        attr.write(&mr_attr(&a));
    }
    Ok(())
}

/// Refuses a range that is empty or leaves the address space, in the program's addresses or in
/// those of its peers.
fn check_range(addr: u64, length: u64, iova: u64) -> Result<()> {
    if addr == 0 {
        return Err(refuse!(Invalid, "addr: NULL"));
    }
    if length == 0 {
        return Err(refuse!(Invalid, "length 0: a region has at least one byte"));
    }
    if addr.checked_add(length).is_none() {
        return Err(refuse!(
            Invalid,
            "length {length:#x}: from addr {addr:#x} on it leaves the address space"
        ));
    }
    if iova.checked_add(length).is_none() {
        return Err(refuse!(
            Invalid,
            "length {length:#x}: from iova {iova:#x} on it leaves the address space"
        ));
    }
    Ok(())
}

fn mr_attr(a: &MrAttr) -> gdrc_mr_attr {
    let mut attr: gdrc_mr_attr = zeroed();
    copy_fields!(a => attr; provider addr length iova lkey rkey access);
    attr
}

/// Fills `attr` (struct_size set) with the region's attributes.
///
/// Errors: -EINVAL: stale handle, attr is NULL or its struct_size 0. Threads: any. Cost: none; GPU
/// memory: a call of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_mr_query(
    ctx: *mut gdrc_context,
    mr: gdrc_mr,
    attr: *mut gdrc_mr_attr,
) -> c_int {
    call(|| {
        let out = sized_out!(attr);
        let mut a = mr_attr(&device(ctx)?.mr_query(mr.handle)?);
        gpu_regions::describe(ctx, mr.handle, &mut a);
        out.write(&a);
        Ok(())
    })
}

/// Deregisters a region: its keys are invalid at return, and the device does not access the memory
/// any more.
///
/// Errors: -EBUSY: a window is bound to it; -EINVAL: stale handle. Threads: any. Cost: none; GPU
/// memory: waits for copies under way. Source: IBTA verb Deregister Memory Region; ibv_dereg_mr(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_mr_dereg(ctx: *mut gdrc_context, mr: gdrc_mr) -> c_int {
    call(|| {
        device(ctx)?.mr_dereg(mr.handle)?;
        gpu_regions::release(ctx, mr.handle);
        Ok(())
    })
}

/// Registers memory of any kind. Host memory: as gdrc_mr_reg; with GDRC_MEMORY_FLAG_SHARED other
/// processes of this host write it themselves (docs/using/SHARED-MEMORY.md). GPU memory: by the
/// first route that works, dma-buf (the caller's own descriptor, or one of the driver's),
/// nvidia_peermem, staging through pinned host memory; `attr` and gdrc_mr_query name the route, and
/// why the earlier ones were not taken. The range lies within one allocation, which must stay until
/// gdrc_mr_dereg: if it is freed nevertheless, operations that use it end with an access error,
/// even if its address was reused. Work requests name it by CUDA's addresses unless `memory` sets
/// an iova; inline data is read by the CPU and cannot come from a GPU. `attr` (struct_size set) may
/// be NULL.
///
/// The soft device copies in chunks and acknowledges data that has landed; its 8-byte atomics on
/// GPU memory are atomic among the operations of this context only. The first such registration of
/// a context pins 8 MiB of host memory.
///
/// Errors: as gdrc_mr_reg; -ENODEV: no CUDA driver; -EINVAL: not GPU memory, or more than one
/// allocation, or (GDRC_MEMORY_FLAG_SHARED) not a shared mapping of that descriptor; -EBADF: no
/// descriptor; -EOPNOTSUPP: the NIC has no route; gdrc_error_detail has the reason. Threads: any.
/// Cost: calls of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_mr_reg_memory(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    memory: *const gdrc_memory,
    access: u32,
    out: *mut gdrc_mr,
    attr: *mut gdrc_mr_attr,
) -> c_int {
    call(|| {
        let m = sized_in!(memory);
        check_memory(&m, access)?;
        let iova = match m.flags & memory_flags::IOVA {
            0 if access & access::ZERO_BASED != 0 => 0,
            0 => m.addr,
            _ => m.iova,
        };
        if m.kind == memory_kind::HOST {
            let addr = core::ptr::with_exposed_provenance_mut(m.addr as usize);
            let shared = (m.flags & memory_flags::SHARED != 0).then_some((m.fd, m.fd_offset));
            return mr_reg(ctx, pd, addr, m.length as usize, iova, access, shared, out, attr);
        }
        let out = out!(out);
        let attr = sized_out_optional!(attr);
        device(ctx)?;
        reason::clear();
        for (name, first) in [("addr", m.addr), ("iova", iova)] {
            if first.checked_add(m.length).is_none() {
                let length = m.length;
                return Err(refuse!(
                    Invalid,
                    "memory->length {length:#x}: from {name} {first:#x} on it leaves the address \
                     space"
                ));
            }
        }
        let dma_buf = (m.flags & memory_flags::DMABUF != 0).then_some((m.fd, m.fd_offset));
        if let Some((fd, _)) = dma_buf.filter(|(fd, _)| *fd < 0) {
            return Err(refuse!(Invalid, "memory->fd {fd}: not a descriptor"));
        }
        let reg = MrReg {
            pd: pd.handle,
            addr: m.addr,
            length: m.length,
            iova,
            access,
            provider: 0,
            cookie: 0,
        };
        let (handle, made) = gpu_regions::register(ctx, &reg, dma_buf)?;
        out.write(gdrc_mr { handle });
        if let Some(attr) = attr {
            let mut a = mr_attr(&made);
            gpu_regions::describe(ctx, handle, &mut a);
            attr.write(&a);
        }
        Ok(())
    })
}

/// Whether kind and flags fit together.
fn check_memory(m: &gdrc_memory, access: u32) -> Result<()> {
    let known = memory_flags::DMABUF | memory_flags::IOVA | memory_flags::SHARED;
    if m.flags & !known != 0 {
        return Err(refuse!(
            Invalid,
            "memory->flags {:#x}: only GDRC_MEMORY_FLAG_DMABUF, _IOVA and _SHARED are known",
            m.flags
        ));
    }
    if m.kind > memory_kind::CUDA {
        return Err(refuse!(
            Invalid,
            "memory->kind {}: GDRC_MEMORY_HOST (0) or GDRC_MEMORY_CUDA (1)",
            m.kind
        ));
    }
    if access & access::ZERO_BASED != 0 && m.flags & memory_flags::IOVA != 0 && m.iova != 0 {
        return Err(refuse!(
            Invalid,
            "memory->iova {:#x}: with GDRC_ACCESS_ZERO_BASED it must be 0",
            m.iova
        ));
    }
    match m.kind {
        memory_kind::HOST if m.flags & memory_flags::DMABUF != 0 => Err(refuse!(
            Invalid,
            "memory->flags {:#x}: GDRC_MEMORY_FLAG_DMABUF is for GPU memory",
            m.flags
        )),
        memory_kind::CUDA if m.flags & memory_flags::SHARED != 0 => Err(refuse!(
            Invalid,
            "memory->flags {:#x}: GDRC_MEMORY_FLAG_SHARED is for host memory",
            m.flags
        )),
        _ => Ok(()),
    }
}

/// A GDRC_ROUTE_ in words. Static; never NULL. Threads: any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_mr_route_str(route: u32) -> *const c_char {
    Route::from_u32(route).map_or(c"unknown", Route::text).as_ptr()
}

/// A GDRC_MR_REASON_ in words. Static; never NULL. Threads: any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_mr_reason_str(reason: u32) -> *const c_char {
    SkipReason::from_u32(reason).map_or(c"unknown", SkipReason::text).as_ptr()
}

/// Allocates a memory window of type `mw_type`, 1 or 2, and writes its first rkey (`rkey` may be
/// NULL). A GDRC_WR_BIND_MW work request binds it.
///
/// Errors: -ENOMEM: max_mr are in use; -EINVAL: another type, stale pd, out is NULL. Threads: any.
/// Cost: none. Source: IBTA verb Allocate Memory Window; ibv_alloc_mw(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_mw_alloc(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    mw_type: u32,
    out: *mut gdrc_mw,
    rkey: *mut u32,
) -> c_int {
    call(|| {
        let out = out!(out);
        let rkey = out_optional!(rkey);
        let (handle, key) = device(ctx)?.mw_alloc(pd.handle, mw_type)?;
        out.write(gdrc_mw { handle });
        if let Some(rkey) = rkey {
            rkey.write(key);
        }
        Ok(())
    })
}

/// Deallocates a window; its rkey is invalid at return.
///
/// Errors: -EINVAL: stale handle. Threads: any. Cost: none. Source: IBTA verb Deallocate Memory
/// Window; ibv_dealloc_mw(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_mw_dealloc(ctx: *mut gdrc_context, mw: gdrc_mw) -> c_int {
    call(|| device(ctx)?.mw_dealloc(mw.handle))
}
