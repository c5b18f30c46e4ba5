//! C calls that open and close contexts, add memory to them, and query their limits.

use crate::c_consts::GDRC_CONTEXT_ALIGN;
use crate::c_result::{call, refuse};
use crate::c_types::*;
use crate::context_kinds::DeviceKind;
use crate::context_slots::{device, retire, ClaimedSlot};
use crate::fast_ops;
use crate::gpu_regions;
use crate::open_config::{self, OpenConfig};
use crate::open_error::{self, Stage};
use crate::ptr::{self, out, sized_out, sized_out_optional};
use core::ffi::{c_char, c_int, c_void};
use gdrcore_core::{copy_fields, Error, Result};
use gdrcore_net::fork::ForkGuard;
use gdrcore_net::map::Map;
use gdrcore_net::reason;

/// The checked arguments of an open.
struct Request<'a> {
    name: &'a str,
    kind: &'static DeviceKind,
    config: OpenConfig<'a>,
    /// Bytes of memory that the device needs.
    need: usize,
}

fn request<'a>(device: *const c_char, cfg: *const gdrc_config) -> Result<Request<'a>> {
    // SAFETY: the header's contract: a NUL-terminated string, or NULL, that stays during the call;
    // the request does not outlive it.
    let name: &'a str = unsafe { ptr::text(device, "device") }?;
    reason::install();
    let config =
        open_config::read(cfg).inspect_err(|&e| open_error::explain(name, Stage::Config, e))?;
    let explain = |&e: &Error| open_error::explain(name, Stage::Size, e);
    let kind = DeviceKind::find(name).inspect_err(explain)?;
    (kind.check)(name, &config)?;
    let need = (kind.memsize)(name, &config).inspect_err(explain)?;
    Ok(Request { name, kind, config, need })
}

/// Bytes of memory that a context of this device and configuration needs (gdrc_context_init). The
/// number depends on the arguments and the library's version only. `cfg` may be NULL: all defaults.
///
/// Errors: -EINVAL: not a device name, struct_size is 0, a limit is out of range, or a pointer is
/// NULL; -E2BIG: cfg is from a newer header and sets fields that this library does not know;
/// gdrc_error_detail has the reason. Threads: any. Cost: no allocation; no system call, but for an
/// IPv6 address with a zone and for a seed of `faults` that is drawn.
#[no_mangle]
pub unsafe extern "C" fn gdrc_context_size(
    device: *const c_char,
    cfg: *const gdrc_config,
    bytes: *mut usize,
) -> c_int {
    call(|| {
        let out = out!(bytes);
        let r = request(device, cfg)?;
        reason::clear();
        out.write(r.need);
        Ok(())
    })
}

/// Opens a device in the caller's memory. A soft device or a NIC allocates nothing, now or later,
/// but for `faults`, whose rules allocate when the device is opened, and for each CQ and queue
/// pair, and for `strict`, which allocates in each call. A router's device (below) is on the heap
/// and may allocate in calls other than posts and polls. `memory` must be aligned to
/// GDRC_CONTEXT_ALIGN bytes and have the size of gdrc_context_size; its contents do not matter; it
/// must stay at its place, untouched, until gdrc_close has returned.
///
/// device: `soft:127.0.0.1`, `soft:10.0.0.1:4800`, `soft:[::1]:4791`, `soft:[fe80::1%eth0]:4791` (a
/// RoCEv2 NIC in software at that local address and UDP port, 4791 by default), "loopback" (queue
/// pairs of this context only), or a NIC through libibverbs: "verbs:rxe0", "verbs:mlx5_0:1:3" (port
/// and index of a RoCE v2 GID), "verbs:10.0.0.1" (the NIC with this address). Without an index the
/// first RoCE v2 GID is used, IPv4 ones first. A NIC needs libgdrcore_verbs.so, beside
/// libgdrcore.so or where the system searches for libraries. Or by way of a router
/// (gdrcore-routerd), which assigns the address and the queue pair numbers, or executes the verbs
/// on a device of its own: "router:/run/gdrcore/tenant.gdrc" (its socket), "router:name"
/// (/freeflow/name.gdrc, else /run/gdrcore/name.gdrc), "router:" (the one in GDRC_ROUTER, else
/// FFR_NAME, else /run/gdrcore/tenant.gdrc).
///
/// Errors: -EINVAL: name, configuration or memory's alignment; -ENOMEM: memory is too small;
/// -E2BIG: as in gdrc_context_size; -EADDRNOTAVAIL: the address is not local, or the NIC has no
/// usable GID; -ENODEV: there is no such NIC or no module; -EOPNOTSUPP: the NIC is not a RoCE one;
/// -EADDRINUSE: another program has the port, or another context the QPNs (any number of contexts
/// and processes of one user may share an address and port); -EMFILE: over 1024 contexts, or out of
/// descriptors; of a router: -ENODEV: there is none, -EACCES: this process belongs to no tenant,
/// -ETIMEDOUT: it does not answer, -EDQUOT, -ENOSPC: its resources are exhausted; other errnos of
/// the system. gdrc_error_detail has the reason. Threads: any; the new context may be used by all.
/// Cost: system calls (sockets, epoll). A fault of a call opens and
/// writes the log that GDRC_FAULT_LOG names.
#[no_mangle]
pub unsafe extern "C" fn gdrc_context_init(
    memory: *mut c_void,
    bytes: usize,
    device: *const c_char,
    cfg: *const gdrc_config,
    out: *mut *mut gdrc_context,
) -> c_int {
    call(|| {
        let out = out!(out);
        let r = request(device, cfg)?;
        let stage = Stage::Memory { need: r.need, have: bytes };
        if memory.is_null()
            || !memory.addr().is_multiple_of(GDRC_CONTEXT_ALIGN as usize)
            || memory.addr().checked_add(bytes).is_none()
        {
            return Err(open_error::refused(r.name, stage, Error::from_errno(libc::EINVAL)));
        }
        if bytes < r.need {
            return Err(open_error::refused(r.name, stage, Error::NoMemory));
        }
        // SAFETY: the header's contract: `bytes` at `memory` are the context's until close.
        out.write(unsafe { open_in(memory.cast(), bytes, &r, false) }?);
        Ok(())
    })
}

/// Opens a device in memory that the library maps once, here, and unmaps in gdrc_close; otherwise
/// as gdrc_context_init. `cfg` may be NULL: all defaults.
///
/// Errors: as gdrc_context_init; -ENOMEM: the memory cannot be mapped. Threads: any. Cost: one
/// mmap; pages are allocated when they are used.
#[no_mangle]
pub unsafe extern "C" fn gdrc_open(
    device: *const c_char,
    cfg: *const gdrc_config,
    out: *mut *mut gdrc_context,
) -> c_int {
    call(|| {
        let out = out!(out);
        let r = request(device, cfg)?;
        let stage = Stage::Map { need: r.need };
        let (base, len) = Map::new(r.need)
            .map(Map::into_raw)
            .inspect_err(|&e| open_error::explain(r.name, stage, e))?;
        // SAFETY: the mapping is fresh and ours, and ends only when the open fails or the context
        // closes.
        match unsafe { open_in(base, len, &r, true) } {
            Ok(ctx) => {
                out.write(ctx);
                Ok(0)
            }
            Err(e) => {
                // SAFETY: `into_raw` gave it, and the failed open left nothing behind that uses it.
                unsafe { unmap(base, len) };
                Err(e)
            }
        }
    })
}

/// # Safety
/// `len` bytes at `base`, page-aligned, are this context's until it is closed.
unsafe fn open_in(
    base: *mut u8,
    len: usize,
    r: &Request<'_>,
    mapped: bool,
) -> Result<*mut gdrc_context> {
    let owner = ForkGuard::new();
    let slot =
        ClaimedSlot::claim().inspect_err(|&e| open_error::explain(r.name, Stage::Slots, e))?;
    // SAFETY: our contract is that of `open`.
    match unsafe { (r.kind.open)(base, len, r.name, &r.config) } {
        Ok(open) => {
            reason::clear();
            Ok(slot.publish(
                owner,
                &open,
                if mapped { (base, len) } else { (core::ptr::null_mut(), 0) },
            ))
        }
        Err(e) => {
            slot.free();
            Err(e)
        }
    }
}

/// # Safety
/// It came from `Map::into_raw`, and is not used any more.
unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: our contract.
    drop(unsafe { Map::from_raw(base, len) });
}

/// Closes a context: stops the helper, acknowledges what was received and ends connections without
/// waiting for answers, releases sockets and memory. Remaining objects are counted and destroyed.
/// No other call on the context may run or follow; later ones get -EINVAL.
///
/// Returns the number of remaining objects and, if `leaks` is not NULL, their kinds.
/// Errors: -EINVAL: not an open context, or leaks->struct_size is 0 (the context stays open);
/// -E2BIG: leaks->struct_size is over 4096; -EOWNERDEAD: opened by the parent of this fork (it
/// stays the parent's). Threads: one. Cost: system calls.
#[no_mangle]
pub unsafe extern "C" fn gdrc_close(ctx: *mut gdrc_context, leaks: *mut gdrc_leaks) -> c_int {
    call(|| {
        let out = sized_out_optional!(leaks);
        let closing = retire(ctx)?;
        fast_ops::forget(ctx);
        // SAFETY: the header's contract: no other call on the context runs, and none begins, since
        // it is retired.
        let l = unsafe { closing.device.close() };
        // SAFETY: the device is closed, and no other call on the context runs.
        unsafe { gpu_regions::forget(ctx) };
        let (base, len) = closing.mapped;
        if len > 0 {
            // SAFETY: `into_raw` gave it, and the device in it is closed.
            unsafe { unmap(base, len) };
        }
        closing.slot.free();
        let mut left: gdrc_leaks = ptr::zeroed();
        copy_fields!(l => left; pd mr mw cq qp srq ah);
        let sum: u64 =
            [l.pd, l.mr, l.mw, l.cq, l.qp, l.srq, l.ah].iter().map(|&n| u64::from(n)).sum();
        if let Some(out) = out {
            out.write(&left);
        }
        Ok(c_int::try_from(sum).unwrap_or(c_int::MAX))
    })
}

/// Gives a context more memory for tables and rings, when a create or resize returned -ENOMEM. The
/// memory must stay untouched until gdrc_close has returned.
///
/// Errors: -EINVAL: not an open context, memory is NULL, misaligned (64 bytes) or too small to be
/// of use. Threads: any. Cost: no system call.
#[no_mangle]
pub unsafe extern "C" fn gdrc_arena_add(
    ctx: *mut gdrc_context,
    memory: *mut c_void,
    bytes: usize,
) -> c_int {
    call(|| {
        let dev = device(ctx)?;
        let at = memory.addr();
        if memory.is_null() || !at.is_multiple_of(64) {
            return Err(refuse!(Invalid, "memory {at:#x}: not NULL, and aligned to 64 bytes"));
        }
        if bytes == 0 || at.checked_add(bytes).is_none() {
            return Err(refuse!(
                Invalid,
                "bytes {bytes:#x}: at least 1, and within the address space"
            ));
        }
        // SAFETY: the header's contract: the memory is the context's until it is closed.
        unsafe { dev.arena_add(memory.cast(), bytes) }
    })
}

/// Fills `attr` with the capabilities of the device. `attr->struct_size` must be set before the
/// call.
///
/// Errors: -EINVAL: not an open context, attr is NULL or its struct_size 0. Threads: any. Cost:
/// some fifteen system calls, for the state of the link. Source: IBTA verb Query HCA;
/// ibv_query_device(3), ibv_query_port(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_device_query(
    ctx: *mut gdrc_context,
    attr: *mut gdrc_device_attr,
) -> c_int {
    call(|| {
        let out = sized_out!(attr);
        let a = device(ctx)?.query()?;
        let mut attr: gdrc_device_attr = ptr::zeroed();
        copy_fields! { a => attr;
            max_msg_size node_guid max_pd max_mr max_cq max_qp max_srq max_ah max_qp_wr max_cqe
            max_sge max_inline max_rd_atomic active_mtu udp_port qpn_base gid scope_id port_state
        }
        out.write(&attr);
        Ok(())
    })
}
