//! Contexts: what a `gdrc_context *` points at, and how one is opened and closed.
//!
//! A context lives in a fixed table of this library, not in the memory of the device. So a pointer is checked by
//! arithmetic alone, nothing that C passes is dereferenced, and a pointer to a closed context is refused
//! for as long as its slot is not given again (slots are given in turn, the oldest first).

use crate::consts::*;
use crate::cuda;
use crate::open_error::{self, Stage};
use crate::pinned;
use crate::ptr::{self, out, refuse, sized_in_optional, sized_out_optional};
use crate::soft;
use crate::types::*;
use crate::verbs;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_void, CStr};
use core::mem::{size_of, MaybeUninit};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use gdrcore_core::device::{Device, Leaks};
use gdrcore_core::mem::Memory;
use gdrcore_core::{Config, Error, Result};
use gdrcore_net::fork::{self, ForkGuard};
use gdrcore_net::map::Map;
use gdrcore_net::reason;

/// Contexts that one process can have open.
pub(crate) const SLOTS: usize = 1024;

/// Magic words of a slot. `OPEN` is "gdrcctx" with a version byte.
const FREE: u64 = 0;
const CHANGING: u64 = 1;
const OPEN: u64 = u64::from_le_bytes(*b"gdrcctx\x01");

/// `quick_of` where there is no short way.
const NONE: u64 = fork::NOWHERE;

/// A device that a context owns.
pub(crate) trait Owned: Device {
    /// Makes a kind of memory known under a number from 1 on. It outlives the device.
    fn memory_add(&self, _provider: u32, _memory: &'static dyn Memory) -> Result<()> {
        Err(refuse!(Unsupported, "this device has one kind of memory, the host's"))
    }
    /// Stops everything and gives system resources back; the device's memory is free afterwards.
    /// # Safety
    /// Nobody uses the device any more.
    unsafe fn close(&self) -> Leaks;
}

/// Opaque: a device and everything that was made on it.
#[repr(align(64))]
pub struct gdrc_context {
    /// `OPEN` is stored with release after `body` was written, and loaded with acquire before it is read.
    magic: AtomicU64,
    /// While this is an open NIC's: what [`fork::here`] says in the process that owns it; an open soft device's: that word with
    /// [`fork::MARK`] turned. Else a word that is neither.
    quick_of: AtomicU64,
    body: UnsafeCell<MaybeUninit<Body>>,
}

#[derive(Clone, Copy)]
struct Body {
    device: &'static dyn Owned,
    /// Tells in one load whether this process is the one that opened it.
    owner: ForkGuard,
    /// The device, for the short way of posts and polls: of which type, `quick_of` says.
    quick: *const (),
    /// What gdrc_open mapped, to be unmapped at close; length 0: the caller's memory.
    mapped: (*mut u8, usize),
}

const _: () = assert!(size_of::<gdrc_context>() == 64);

// SAFETY: `body` is written only by the thread that moved `magic` to CHANGING, and read only while it is OPEN.
unsafe impl Sync for gdrc_context {}

static TABLE: [gdrc_context; SLOTS] = [const {
    gdrc_context {
        magic: AtomicU64::new(FREE),
        quick_of: AtomicU64::new(NONE),
        body: UnsafeCell::new(MaybeUninit::uninit()),
    }
}; SLOTS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The slot of a pointer that C gave. Any bits are fine.
#[inline(always)]
fn slot(ctx: *const gdrc_context) -> Option<&'static gdrc_context> {
    let off = ctx.addr().wrapping_sub(TABLE.as_ptr().addr());
    // As a rotation it is one comparison: what is not a multiple of the size gets high bits.
    if off.rotate_right(size_of::<gdrc_context>().trailing_zeros()) >= SLOTS {
        return None;
    }
    // SAFETY: within TABLE, as was just found.
    let slot = unsafe { TABLE.as_ptr().byte_add(off) };
    // SAFETY: as above, and a multiple of a slot's size from its begin.
    Some(unsafe { &*slot })
}

/// The number of a context's slot, for what is kept beside it.
pub(crate) fn number(ctx: *const gdrc_context) -> Option<usize> {
    slot(ctx).map(|c| ((&raw const *c).addr() - TABLE.as_ptr().addr()) / size_of::<gdrc_context>())
}

/// What a context is: the way in of every call.
#[inline(always)]
fn body(ctx: *const gdrc_context) -> Result<&'static Body> {
    let Some(c) = slot(ctx) else { return Err(not_a_context(ctx)) };
    if c.magic.load(Ordering::Acquire) != OPEN {
        return Err(closed(ctx));
    }
    // SAFETY: OPEN was loaded with acquire, so `body` was written before; it is not changed until close, and the header
    // forbids other calls on a context during its close.
    let body = unsafe { (*c.body.get()).assume_init_ref() };
    body.owner.check()?;
    Ok(body)
}

#[cold]
#[inline(never)]
pub(crate) fn not_a_context(ctx: *const gdrc_context) -> Error {
    match ctx.addr() {
        0 => refuse!(Invalid, "ctx: NULL"),
        at => refuse!(Invalid, "ctx {at:#x}: not a context of this library"),
    }
}

#[cold]
#[inline(never)]
fn closed(ctx: *const gdrc_context) -> Error {
    refuse!(StaleHandle, "ctx {:#x}: it is closed", ctx.addr())
}

/// The device of a context.
#[inline(always)]
pub(crate) fn device(ctx: *const gdrc_context) -> Result<&'static dyn Owned> {
    body(ctx).map(|b| b.device)
}

/// A context that posts and polls have a short way into.
pub(crate) enum Quick {
    /// A NIC's.
    Nic(&'static verbs::VerbsDevice),
    /// A soft device's.
    Soft(&'static soft::SoftDevice),
    /// It is neither, or not one that may be used; [`device`] tells.
    None,
}

/// The short way into a context.
#[inline(always)]
pub(crate) fn quick(ctx: *const gdrc_context) -> Quick {
    let Some(c) = slot(ctx) else { return Quick::None };
    // One word for three questions: open, by this process, and what it is.
    let said = c.quick_of.load(Ordering::Acquire) ^ fork::here();
    if said & !fork::MARK != 0 {
        return Quick::None;
    }
    // SAFETY: `quick_of` was loaded with acquire, so `body` was written before; it is not changed until close, and the header
    // forbids other calls on a context during its close.
    let body = unsafe { (*c.body.get()).assume_init_ref() };
    if said == 0 {
        // SAFETY: `publish` says so only where it is a NIC, which lives until close.
        Quick::Nic(unsafe { &*body.quick.cast() })
    } else {
        // SAFETY: and so only where it is a soft device.
        Quick::Soft(unsafe { &*body.quick.cast() })
    }
}

/// The NIC of a context. `None`: the context is not a NIC's, or not one that may be used; [`device`] tells.
pub(crate) fn nic(ctx: *const gdrc_context) -> Option<&'static verbs::VerbsDevice> {
    match quick(ctx) {
        Quick::Nic(nic) => Some(nic),
        _ => None,
    }
}

/// Takes a free slot, leaves it in CHANGING.
fn claim() -> Result<&'static gdrc_context> {
    for _ in 0..SLOTS {
        let i = NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS;
        let c = &TABLE[i];
        if c.magic.compare_exchange(FREE, CHANGING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(c);
        }
    }
    Err(Error::Os(libc::EMFILE))
}

/// Fills a claimed slot and opens it. `quick` leads to `device` itself, which lives until close.
fn publish(
    c: &'static gdrc_context,
    owner: ForkGuard,
    device: &'static dyn Owned,
    quick: &Quick,
    mapped: (*mut u8, usize),
) -> *mut gdrc_context {
    let (quick, quick_of): (*const (), u64) = match *quick {
        Quick::Nic(nic) => ((&raw const *nic).cast(), owner.word()),
        Quick::Soft(soft) => ((&raw const *soft).cast(), owner.word() ^ fork::MARK),
        Quick::None => (core::ptr::null(), NONE),
    };
    // SAFETY: the slot is CHANGING and this thread made it so: nobody else reads or writes `body`.
    unsafe { (*c.body.get()).write(Body { device, owner, quick, mapped }) };
    c.quick_of.store(quick_of, Ordering::Release);
    c.magic.store(OPEN, Ordering::Release);
    (&raw const *c).cast_mut()
}

fn abandon(c: &gdrc_context) {
    c.magic.store(FREE, Ordering::Release);
}

/// Puts a device that is not this library's own behind a context pointer: for tests of the C surface.
#[doc(hidden)]
#[cfg(test)]
pub(crate) fn open_test_device(device: &'static dyn Owned) -> *mut gdrc_context {
    let owner = ForkGuard::new();
    publish(claim().unwrap(), owner, device, &Quick::None, (core::ptr::null_mut(), 0))
}

/// What an open needs, checked and in core's terms.
struct Request<'a> {
    name: &'a str,
    config: soft::SoftConfig<'a>,
    need: usize,
}

fn request<'a>(device: *const c_char, cfg: *const gdrc_config) -> Result<Request<'a>> {
    // SAFETY: the header's contract: a NUL-terminated string, or NULL, that stays during the call; the request does not outlive it.
    let name: &'a str = unsafe { ptr::text(device, "device") }?;
    reason::install();
    let config = config(cfg).inspect_err(|&e| open_error::explain(name, Stage::Config, e))?;
    let need = if verbs::is_named(name) {
        verbs::check(name, &config)?;
        verbs::VerbsDevice::memsize(name, &config.core)
    } else {
        soft::SoftDevice::memsize(name, &config)
    };
    let need = need.inspect_err(|&e| open_error::explain(name, Stage::Size, e))?;
    Ok(Request { name, config, need })
}

fn config<'a>(cfg: *const gdrc_config) -> Result<soft::SoftConfig<'a>> {
    let c = sized_in_optional!(cfg);
    let known = GDRC_CONFIG_STRICT_CQ
        | GDRC_CONFIG_HELPER
        | GDRC_CONFIG_NO_GSO
        | GDRC_CONFIG_SHM
        | GDRC_CONFIG_SHM_ONLY
        | GDRC_CONFIG_UDP_ONLY
        | GDRC_CONFIG_CMA
        | GDRC_CONFIG_DCQCN;
    if c.flags & !known != 0 {
        let unknown = c.flags & !known;
        return Err(refuse!(Invalid, "cfg->flags {:#x}: this library knows no flag {unknown:#x}", c.flags));
    }
    if c.reserved != 0 {
        return Err(refuse!(Invalid, "cfg->reserved {}: must be 0", c.reserved));
    }
    let pcap: Option<&'a CStr> = if c.pcap_path.is_null() {
        None
    } else {
        // SAFETY: the header's contract: a NUL-terminated string that stays during the call.
        Some(unsafe { ptr::cstr(c.pcap_path, libc::PATH_MAX as usize, "cfg->pcap_path") }?)
    };
    let mut flags = 0;
    if c.flags & GDRC_CONFIG_HELPER != 0 {
        flags |= soft::soft_flags::HELPER;
    }
    const EITHER: u32 = GDRC_CONFIG_SHM | GDRC_CONFIG_SHM_ONLY;
    let path = match c.flags & (EITHER | GDRC_CONFIG_UDP_ONLY) {
        // A capture shows everything, unless the program wants it otherwise.
        0 if pcap.is_some() => soft::PathChoice::Udp,
        0 | GDRC_CONFIG_SHM => soft::PathChoice::Auto,
        GDRC_CONFIG_SHM_ONLY | EITHER => soft::PathChoice::Shm,
        GDRC_CONFIG_UDP_ONLY => soft::PathChoice::Udp,
        _ => {
            let both = "GDRC_CONFIG_UDP_ONLY excludes GDRC_CONFIG_SHM and GDRC_CONFIG_SHM_ONLY";
            return Err(refuse!(Invalid, "cfg->flags {:#x}: {both}", c.flags));
        }
    };
    if c.flags & GDRC_CONFIG_NO_GSO != 0 {
        flags |= soft::soft_flags::NO_GSO;
    }
    if c.flags & GDRC_CONFIG_CMA != 0 {
        flags |= soft::soft_flags::CMA;
    }
    let core = Config {
        max_pd: c.max_pd,
        max_mr: c.max_mr,
        max_cq: c.max_cq,
        max_qp: c.max_qp,
        max_srq: c.max_srq,
        max_ah: c.max_ah,
        max_peer: c.max_peer,
        ring_bytes: c.ring_bytes,
        max_sge: c.max_sge,
        max_inline: c.max_inline,
        max_rd_atomic: c.max_rd_atomic,
        qpn_base: c.qpn_base,
        qpn_count: c.qpn_count,
        max_mtu: c.max_mtu,
        deadline_ns: u64::from(c.deadline_ms) * 1_000_000,
        window_max: c.window_max,
        max_cm_ids: c.max_cm_ids,
        seed: c.seed,
        line_rate_bps: c.line_rate_bps,
        keepalive_ns: u64::from(c.keepalive_ms) * 1_000_000,
        flags: c.flags & (GDRC_CONFIG_STRICT_CQ | GDRC_CONFIG_DCQCN),
    };
    Ok(soft::SoftConfig { core, flags, pcap, path })
}

/// Fills `cfg` with the default of every bound, so that a program can print them or change one by a factor.
/// `cfg->struct_size` must be set before the call. A struct whose other fields are 0 means the same.
///
/// Errors: -EINVAL: cfg is NULL, misaligned, or its struct_size is 0. -E2BIG: struct_size is over 4096.
/// Threads: any. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_config_default(cfg: *mut gdrc_config) -> c_int {
    ptr::ret(config_default(cfg))
}

fn config_default(cfg: *mut gdrc_config) -> Result<c_int> {
    let d = Config::DEFAULT;
    crate::ptr::sized_out!(cfg).write(&gdrc_config {
        max_pd: d.max_pd,
        max_mr: d.max_mr,
        max_cq: d.max_cq,
        max_qp: d.max_qp,
        max_srq: d.max_srq,
        max_ah: d.max_ah,
        max_peer: d.max_peer,
        max_sge: d.max_sge,
        max_inline: d.max_inline,
        max_rd_atomic: d.max_rd_atomic,
        max_mtu: d.max_mtu,
        window_max: d.window_max,
        deadline_ms: u32::try_from(d.deadline_ns / 1_000_000).unwrap_or(u32::MAX),
        ring_bytes: d.ring_bytes,
        max_cm_ids: d.max_cm_ids,
        line_rate_bps: d.line_rate_bps,
        ..ptr::zeroed()
    });
    Ok(0)
}

/// Bytes of memory that a context of this device and configuration needs (gdrc_context_init). The number depends on
/// the arguments and the library's version only. `cfg` may be NULL: all defaults.
///
/// Errors: -EINVAL: not a device name, struct_size is 0, a bound is out of range, or a pointer is NULL;
/// -E2BIG: cfg is from a newer header and sets fields that this library does not know; gdrc_open_error has the words.
/// Threads: any. Cost: no allocation, no system call.
#[no_mangle]
pub unsafe extern "C" fn gdrc_context_size(device: *const c_char, cfg: *const gdrc_config, bytes: *mut usize) -> c_int {
    ptr::ret(context_size(device, cfg, bytes))
}

fn context_size(device: *const c_char, cfg: *const gdrc_config, bytes: *mut usize) -> Result<c_int> {
    let out = out!(bytes);
    let r = request(device, cfg)?;
    reason::clear();
    out.write(r.need);
    Ok(0)
}

/// Opens a device in the caller's memory: nothing is allocated, now or later. `memory` must be aligned to
/// GDRC_CONTEXT_ALIGN bytes and hold what gdrc_context_size says; contents do not matter; it must stay where it is,
/// untouched, until gdrc_close returned.
///
/// device: `soft:127.0.0.1`, `soft:10.0.0.1:4800`, `soft:[::1]:4791`, `soft:[fe80::1%eth0]:4791` (a RoCEv2 NIC in
/// software at that local address and UDP port, 4791 by default), "loopback" (queue pairs of this context only), or a NIC
/// through libibverbs: "verbs:rxe0", "verbs:mlx5_0:1:3" (port and index of a RoCE v2 GID), "verbs:10.0.0.1" (whichever has
/// this address). Without an index the first RoCE v2 GID is taken, IPv4 ones first. Needs libgdrcore_verbs.so, which lies
/// beside libgdrcore.so or where the system looks for libraries. Or by way of a router (gdrcore-routerd), which gives the address
/// and the queue pair numbers: "router:/run/gdrcore/tenant.gdrc" (its socket), "router:name" (/freeflow/name.gdrc, else
/// /run/gdrcore/name.gdrc), "router:" (what GDRC_ROUTER names, FFR_NAME, else /run/gdrcore/tenant.gdrc).
///
/// Errors: -EINVAL: name, configuration or memory's alignment; -ENOMEM: memory is too small; -E2BIG: as in gdrc_context_size;
/// -EADDRNOTAVAIL: the address is not local, or the NIC has no GID that fits; -ENODEV: there is no such NIC or no module;
/// -EOPNOTSUPP: the NIC is not a RoCE one; -EADDRINUSE: a stranger has the port, or another context the
/// QPNs (any number of contexts and processes of one user may have one address and port); -EMFILE: over 1024 contexts, or out of
/// descriptors; of a router: -ENODEV: there is none, -EACCES: it knows no tenant that this process is, -ETIMEDOUT: it does not answer,
/// -EDQUOT, -ENOSPC: it has no more to give; other errnos of the system. gdrc_open_error has the words.
/// Threads: any; the new context may be used by all. Cost: system calls (sockets, epoll); no allocation.
#[no_mangle]
pub unsafe extern "C" fn gdrc_context_init(
    memory: *mut c_void,
    bytes: usize,
    device: *const c_char,
    cfg: *const gdrc_config,
    out: *mut *mut gdrc_context,
) -> c_int {
    ptr::ret(context_init(memory, bytes, device, cfg, out))
}

fn context_init(
    memory: *mut c_void,
    bytes: usize,
    device: *const c_char,
    cfg: *const gdrc_config,
    out: *mut *mut gdrc_context,
) -> Result<c_int> {
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
    Ok(0)
}

/// Opens a device in memory that the library maps once, here, and unmaps in gdrc_close; else as gdrc_context_init.
/// `cfg` may be NULL: all defaults.
///
/// Errors: as gdrc_context_init; -ENOMEM: the memory cannot be mapped.
/// Threads: any. Cost: one mmap; pages are touched when they are used.
#[no_mangle]
pub unsafe extern "C" fn gdrc_open(
    device: *const c_char,
    cfg: *const gdrc_config,
    out: *mut *mut gdrc_context,
) -> c_int {
    ptr::ret(open(device, cfg, out))
}

fn open(device: *const c_char, cfg: *const gdrc_config, out: *mut *mut gdrc_context) -> Result<c_int> {
    let out = out!(out);
    let r = request(device, cfg)?;
    let stage = Stage::Map { need: r.need };
    let (base, len) = Map::new(r.need).map(Map::into_raw).inspect_err(|&e| open_error::explain(r.name, stage, e))?;
    // SAFETY: the mapping is fresh, ours, and goes only when the open fails or the context closes.
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
}

/// # Safety
/// `len` bytes at `base`, page-aligned, are this context's until it is closed.
unsafe fn open_in(base: *mut u8, len: usize, r: &Request<'_>, mapped: bool) -> Result<*mut gdrc_context> {
    let owner = ForkGuard::new();
    let c = claim().inspect_err(|&e| open_error::explain(r.name, Stage::Slots, e))?;
    let opened: Result<(&'static dyn Owned, Quick)> = if verbs::is_named(r.name) {
        // SAFETY: our contract is that of `open`.
        unsafe { verbs::open(base, len, r.name, &r.config.core) }.map(|d| (d as _, Quick::Nic(d)))
    } else {
        // SAFETY: our contract is that of `init`.
        unsafe { soft::SoftDevice::init(base, len, r.name, &r.config) }
            .inspect_err(|&e| open_error::explain(r.name, Stage::Device, e))
            .map(|d| (d as _, Quick::Soft(d)))
    };
    match opened {
        Ok((device, quick)) => {
            reason::clear();
            let mapped = if mapped { (base, len) } else { (core::ptr::null_mut(), 0) };
            Ok(publish(c, owner, device, &quick, mapped))
        }
        Err(e) => {
            abandon(c);
            Err(e)
        }
    }
}

/// # Safety
/// `Map::into_raw` gave it, and nothing uses it any more.
unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: our contract.
    drop(unsafe { Map::from_raw(base, len) });
}

/// Closes a context: stops the helper, flushes nothing that is not yet acknowledged, gives sockets and memory back.
/// What the program did not destroy is counted and destroyed. No other call on the context may run or follow;
/// later ones get -EINVAL.
///
/// Returns the number of objects left behind, and, where `leaks` is not NULL, their kinds.
/// Errors: -EINVAL: not an open context, or leaks->struct_size is 0 (the context stays open);
/// -E2BIG: leaks->struct_size is over 4096; -EOWNERDEAD: opened by the parent of this fork (it stays the parent's).
/// Threads: one. Cost: system calls.
#[no_mangle]
pub unsafe extern "C" fn gdrc_close(ctx: *mut gdrc_context, leaks: *mut gdrc_leaks) -> c_int {
    ptr::ret(close(ctx, leaks))
}

fn close(ctx: *mut gdrc_context, leaks: *mut gdrc_leaks) -> Result<c_int> {
    let out = sized_out_optional!(leaks);
    device(ctx)?;
    let c = slot(ctx).ok_or_else(|| not_a_context(ctx))?;
    // Of two closes at once one wins, the other sees a stale context.
    if c.magic.compare_exchange(OPEN, CHANGING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return Err(closed(ctx));
    }
    c.quick_of.store(NONE, Ordering::Relaxed);
    pinned::forget(ctx);
    // SAFETY: the slot was OPEN, so `body` was written; it is CHANGING by us, so nobody writes it.
    let body = unsafe { (*c.body.get()).assume_init() };
    // SAFETY: the header's contract: no other call on the context runs, and from CHANGING on none begins.
    let l = unsafe { body.device.close() };
    // SAFETY: the device is closed, and no other call on the context runs.
    unsafe { cuda::forget(ctx) };
    let (base, len) = body.mapped;
    if len > 0 {
        // SAFETY: `into_raw` gave it, the device in it is closed.
        unsafe { unmap(base, len) };
    }
    c.magic.store(FREE, Ordering::Release);
    let l = gdrc_leaks { pd: l.pd, mr: l.mr, mw: l.mw, cq: l.cq, qp: l.qp, srq: l.srq, ah: l.ah, ..ptr::zeroed() };
    let sum: u64 = [l.pd, l.mr, l.mw, l.cq, l.qp, l.srq, l.ah].iter().map(|&n| u64::from(n)).sum();
    if let Some(out) = out {
        out.write(&l);
    }
    Ok(c_int::try_from(sum).unwrap_or(c_int::MAX))
}

/// Gives a context more memory for tables and rings, when a create or resize returned -ENOMEM. The memory must stay
/// untouched until gdrc_close returned.
///
/// Errors: -EINVAL: not an open context, memory is NULL, misaligned (64 bytes) or too small to be of use.
/// Threads: any. Cost: no system call.
#[no_mangle]
pub unsafe extern "C" fn gdrc_arena_add(ctx: *mut gdrc_context, memory: *mut c_void, bytes: usize) -> c_int {
    ptr::ret(arena_add(ctx, memory, bytes))
}

fn arena_add(ctx: *mut gdrc_context, memory: *mut c_void, bytes: usize) -> Result<c_int> {
    let dev = device(ctx)?;
    let at = memory.addr();
    if memory.is_null() || !at.is_multiple_of(64) {
        return Err(refuse!(Invalid, "memory {at:#x}: not NULL, and aligned to 64 bytes"));
    }
    if bytes == 0 || at.checked_add(bytes).is_none() {
        return Err(refuse!(Invalid, "bytes {bytes:#x}: at least 1, and within the address space"));
    }
    // SAFETY: the header's contract: the memory is the context's until it is closed.
    unsafe { dev.arena_add(memory.cast(), bytes) }?;
    Ok(0)
}

/// Fills `attr` with what the device can do. `attr->struct_size` must be set before the call.
///
/// Errors: -EINVAL: not an open context, attr is NULL or its struct_size 0.
/// Threads: any. Cost: none. Source: IBTA verb Query HCA; ibv_query_device(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_query_device(ctx: *mut gdrc_context, attr: *mut gdrc_device_attr) -> c_int {
    ptr::ret(query_device(ctx, attr))
}

fn query_device(ctx: *mut gdrc_context, attr: *mut gdrc_device_attr) -> Result<c_int> {
    let out = crate::ptr::sized_out!(attr);
    let a = device(ctx)?.query()?;
    out.write(&gdrc_device_attr {
        max_msg_size: a.max_msg_size,
        node_guid: a.node_guid,
        max_pd: a.max_pd,
        max_mr: a.max_mr,
        max_cq: a.max_cq,
        max_qp: a.max_qp,
        max_srq: a.max_srq,
        max_ah: a.max_ah,
        max_qp_wr: a.max_qp_wr,
        max_cqe: a.max_cqe,
        max_sge: a.max_sge,
        max_inline: a.max_inline,
        max_rd_atomic: a.max_rd_atomic,
        active_mtu: a.active_mtu,
        udp_port: a.udp_port,
        qpn_base: a.qpn_base,
        gid: a.gid,
        scope_id: a.scope_id,
        ..ptr::zeroed()
    });
    Ok(0)
}
