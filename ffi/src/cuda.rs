//! GPU memory: registration, and the helpers with which a program makes, shares and fills it.

use crate::consts::*;
use crate::context::{device, nic, not_a_context, number, Owned, SLOTS};
use crate::objects;
use crate::objects::mr_attr;
use crate::ptr::{self, out, refuse, ret, sized_in, sized_out_optional};
use crate::types::*;
use crate::verbs::VerbsDevice;
use core::ffi::{c_char, c_int, c_void, CStr};
use core::sync::atomic::{AtomicPtr, Ordering};
use gdrcore_core::device::{Device as _, MrAttr, MrReg};
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::{Error, Result};
use gdrcore_cuda::api::{self, IpcHandle};
use gdrcore_cuda::device::Device;
use gdrcore_cuda::memory::{self, Kind, Shared};
use gdrcore_cuda::route::{self, Reason, Record, Ways};
use gdrcore_cuda::span::Span;
use gdrcore_cuda::staging::Staging;
use gdrcore_cuda::Failure;
use gdrcore_net::reason;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// What a context keeps about its regions of GPU memory.
#[derive(Default)]
struct State {
    /// The soft device's way to them, made with the first.
    staging: Option<&'static Staging>,
    regions: Vec<Region>,
}

struct Region {
    mr: Handle,
    span: Span,
    record: Record,
    /// The staging's name for it.
    cookie: Option<u64>,
}

/// Of each context; null until it has GPU memory.
static STATES: [AtomicPtr<Mutex<State>>; SLOTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS];

fn state(ctx: *const gdrc_context) -> Option<&'static Mutex<State>> {
    let state = STATES.get(number(ctx)?)?.load(Ordering::Acquire);
    // SAFETY: null, or a box that lives until `forget`, which the header forbids beside other calls on the context.
    unsafe { state.as_ref() }
}

fn state_made(ctx: *const gdrc_context) -> Result<&'static Mutex<State>> {
    let slot = number(ctx).and_then(|n| STATES.get(n)).ok_or_else(|| not_a_context(ctx))?;
    if slot.load(Ordering::Acquire).is_null() {
        let fresh = Box::into_raw(Box::default());
        if slot.compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was first; nobody has seen ours.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
    state(ctx).ok_or_else(|| not_a_context(ctx))
}

fn with<T>(state: &Mutex<State>, f: impl FnOnce(&mut State) -> T) -> T {
    f(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A context is closed: its pinned memory and its streams go.
///
/// # Safety
/// Its device is closed, and no call on the context runs or follows.
pub(crate) unsafe fn forget(ctx: *const gdrc_context) {
    let Some(slot) = number(ctx).and_then(|n| STATES.get(n)) else { return };
    let state = slot.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if state.is_null() {
        return;
    }
    // SAFETY: made by `state_made`, and out of the table.
    let state = unsafe { Box::from_raw(state) };
    let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(staging) = state.staging {
        // SAFETY: leaked from a box in `Soft::staged`; the device that used it is closed, by our contract.
        drop(unsafe { Box::from_raw((&raw const *staging).cast_mut()) });
    }
}

/// A region is deregistered.
pub(crate) fn release(ctx: *const gdrc_context, mr: Handle) {
    let Some(state) = state(ctx) else { return };
    let gone = with(state, |s| {
        let i = s.regions.iter().position(|r| r.mr == mr)?;
        let region = s.regions.swap_remove(i);
        Some((s.staging?, region.cookie?))
    });
    if let Some((staging, cookie)) = gone {
        staging.release(cookie);
    }
}

/// Adds what is known of a region of GPU memory.
pub(crate) fn describe(ctx: *const gdrc_context, mr: Handle, attr: &mut gdrc_mr_attr) {
    let Some(state) = state(ctx) else { return };
    let Some((span, record)) = with(state, |s| s.regions.iter().find(|r| r.mr == mr).map(|r| (r.span, r.record)))
    else {
        return;
    };
    attr.provider = GDRC_MEMORY_CUDA;
    attr.addr = span.at;
    attr.route = record.route as u32;
    attr.no_dmabuf = record.no_dma_buf as u32;
    attr.no_peermem = record.no_peermem as u32;
    attr.refusal = record.code;
    attr.buffer_id = span.buffer_id;
    attr.flags = if span.is_same() { 0 } else { GDRC_MR_GONE };
}

/// Says a failure of the driver in words, and gives its error.
fn explain(f: Failure) -> Error {
    let advice = match f.code {
        api::INVALID_DEVICE => ": there is no such GPU; `nvidia-smi` lists them",
        api::NO_DEVICE => ": the driver finds no GPU (CUDA_VISIBLE_DEVICES hides some)",
        _ => "",
    };
    reason::set(f.error(), format_args!("{f}{advice}"));
    f.error()
}

/// The soft device: everything is staged.
struct Soft<'a> {
    device: &'static dyn Owned,
    state: &'a Mutex<State>,
    reg: MrReg,
    span: &'a Span,
}

impl Ways for Soft<'_> {
    type Made = (Handle, MrAttr, Option<u64>);

    fn dma_buf(&mut self, _: i32, _: u64) -> Result<Self::Made> {
        // No words: one of several ways; the reasons are in the region's attributes.
        Err(Error::Unsupported)
    }

    fn address(&mut self) -> Result<Self::Made> {
        // No words: one of several ways; the reasons are in the region's attributes.
        Err(Error::Unsupported)
    }

    fn staged(&mut self) -> Result<Self::Made> {
        let staging = with(self.state, |s| match s.staging {
            Some(staging) => Ok(staging),
            None => {
                let made = Box::new(Staging::new(self.span.device).map_err(explain)?);
                let leaked: &'static Staging = Box::leak(made);
                if let Err(e) = self.device.memory_add(GDRC_MEMORY_CUDA, leaked) {
                    // SAFETY: leaked a line above, and nobody took it.
                    drop(unsafe { Box::from_raw((&raw const *leaked).cast_mut()) });
                    return Err(e);
                }
                s.staging = Some(leaked);
                Ok(leaked)
            }
        })?;
        let cookie = staging.register(self.span).map_err(explain)?;
        let reg = MrReg { provider: GDRC_MEMORY_CUDA, cookie, ..self.reg };
        match self.device.mr_reg(&reg) {
            Ok((mr, attr)) => Ok((mr, attr, Some(cookie))),
            Err(e) => {
                staging.release(cookie);
                Err(e)
            }
        }
    }

    fn is_soft(&self) -> bool {
        true
    }
}

/// A NIC.
struct Nic {
    nic: &'static VerbsDevice,
    reg: MrReg,
}

impl Ways for Nic {
    type Made = (Handle, MrAttr, Option<u64>);

    fn dma_buf(&mut self, fd: i32, offset: u64) -> Result<Self::Made> {
        let reg = MrReg { addr: offset, provider: GDRC_MEMORY_CUDA, ..self.reg };
        self.nic.mr_reg_dmabuf(&reg, fd).map(|(mr, attr)| (mr, attr, None))
    }

    fn address(&mut self) -> Result<Self::Made> {
        self.nic.mr_reg(&self.reg).map(|(mr, attr)| (mr, attr, None))
    }

    fn staged(&mut self) -> Result<Self::Made> {
        // No words: one of several ways; the reasons are in the region's attributes.
        Err(Error::Unsupported)
    }

    fn is_soft(&self) -> bool {
        false
    }
}

/// Registers memory of any kind. Host memory: as gdrc_mr_reg; with GDRC_MEMORY_SHARED processes of this host write it by themselves
/// (docs/using/SHARED-MEMORY.md). GPU memory: by the first way that works, dma-buf (the
/// caller's own descriptor, or one of the driver's), nvidia_peermem, staging through pinned host memory; `attr` and
/// gdrc_mr_query say which, and why not those before it. The range lies within one allocation, which must stay until
/// gdrc_mr_dereg: if it is freed all the same, operations that use it end with an access error, also where its
/// address was given again. Work requests name it by CUDA's addresses unless `memory` says otherwise; inline data is read
/// by the CPU and cannot come from a GPU. `attr` (struct_size set) may be NULL.
///
/// The soft device copies in chunks and acknowledges what has landed; its 8-byte atomics on GPU memory are atomic among the
/// operations of this context only. The first such registration of a context pins 8 MiB of host memory.
///
/// Errors: as gdrc_mr_reg; -ENODEV: no CUDA driver; -EINVAL: not GPU memory, or more than one allocation, or
/// (GDRC_MEMORY_SHARED) not a shared mapping of that descriptor; -EBADF: no descriptor; -EOPNOTSUPP: the NIC has no way;
/// gdrc_open_error has the words.
/// Threads: any. Cost: calls of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_mr_reg_memory(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    memory: *const gdrc_memory,
    access: u32,
    out: *mut gdrc_mr,
    attr: *mut gdrc_mr_attr,
) -> c_int {
    ret(mr_reg_memory(ctx, pd, memory, access, out, attr))
}

fn mr_reg_memory(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    memory: *const gdrc_memory,
    access: u32,
    out: *mut gdrc_mr,
    attr: *mut gdrc_mr_attr,
) -> Result<c_int> {
    let m = sized_in!(memory);
    let zero_based = access & GDRC_ACCESS_ZERO_BASED != 0;
    let iova = match m.flags & GDRC_MEMORY_IOVA {
        0 if zero_based => 0,
        0 => m.addr,
        _ => m.iova,
    };
    let known = GDRC_MEMORY_DMABUF | GDRC_MEMORY_IOVA | GDRC_MEMORY_SHARED;
    if m.flags & !known != 0 {
        return Err(refuse!(
            Invalid,
            "memory->flags {:#x}: only GDRC_MEMORY_DMABUF, _IOVA and _SHARED are known",
            m.flags
        ));
    }
    if m.kind > GDRC_MEMORY_CUDA {
        return Err(refuse!(Invalid, "memory->kind {}: GDRC_MEMORY_HOST (0) or GDRC_MEMORY_CUDA (1)", m.kind));
    }
    if zero_based && iova != 0 {
        return Err(refuse!(Invalid, "memory->iova {iova:#x}: with GDRC_ACCESS_ZERO_BASED it must be 0"));
    }
    if m.kind == GDRC_MEMORY_HOST {
        if m.flags & GDRC_MEMORY_DMABUF != 0 {
            return Err(refuse!(Invalid, "memory->flags {:#x}: GDRC_MEMORY_DMABUF is for GPU memory", m.flags));
        }
        let addr = core::ptr::with_exposed_provenance_mut(m.addr as usize);
        let shared = (m.flags & GDRC_MEMORY_SHARED != 0).then_some((m.dmabuf_fd, m.dmabuf_offset));
        return objects::mr_reg(ctx, pd, addr, m.length as usize, iova, access, shared, out, attr);
    }
    if m.flags & GDRC_MEMORY_SHARED != 0 {
        return Err(refuse!(Invalid, "memory->flags {:#x}: GDRC_MEMORY_SHARED is for host memory", m.flags));
    }
    let out = out!(out);
    let attr = sized_out_optional!(attr);
    let (dev, nic) = (device(ctx)?, nic(ctx));
    reason::clear();
    let own = (m.flags & GDRC_MEMORY_DMABUF != 0).then_some((m.dmabuf_fd, m.dmabuf_offset));
    for (name, first) in [("addr", m.addr), ("iova", iova)] {
        if first.checked_add(m.length).is_none() {
            let length = m.length;
            return Err(refuse!(
                Invalid,
                "memory->length {length:#x}: from {name} {first:#x} on it leaves the address space"
            ));
        }
    }
    if let Some((fd, _)) = own.filter(|(fd, _)| *fd < 0) {
        return Err(refuse!(Invalid, "memory->dmabuf_fd {fd}: not a descriptor"));
    }
    let state = state_made(ctx)?;
    let span = Span::of(m.addr, m.length).map_err(explain)?;
    let reg = MrReg { pd: pd.handle, addr: m.addr, length: m.length, iova, access, provider: 0, cookie: 0 };
    let sysfs = Path::new("/sys");
    let ((mr, made, cookie), record) = match nic {
        Some(nic) => route::register(&span, own, sysfs, &mut Nic { nic, reg })?,
        None => route::register(&span, own, sysfs, &mut Soft { device: dev, state, reg, span: &span })?,
    };
    with(state, |s| s.regions.push(Region { mr, span, record, cookie }));
    out.write(gdrc_mr { handle: mr });
    if let Some(attr) = attr {
        let mut a = mr_attr(&made);
        describe(ctx, mr, &mut a);
        attr.write(&a);
    }
    Ok(0)
}

/// A GDRC_ROUTE_ in words. Static; never NULL. Threads: any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_mr_route_str(route: u32) -> *const c_char {
    match route {
        GDRC_ROUTE_HOST => c"host memory".as_ptr(),
        GDRC_ROUTE_DMABUF => c"dma-buf".as_ptr(),
        GDRC_ROUTE_PEERMEM => c"nvidia_peermem".as_ptr(),
        GDRC_ROUTE_STAGED => c"staged through pinned host memory".as_ptr(),
        _ => c"unknown".as_ptr(),
    }
}

/// A GDRC_NO_ in words. Static; never NULL. Threads: any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_mr_reason_str(reason: u32) -> *const c_char {
    Reason::from_u32(reason).map_or(c"unknown", Reason::words).as_ptr()
}

/// Copies a name into a field, cut, with a NUL.
pub(crate) fn put<const N: usize>(field: &mut [c_char; N], text: &str) {
    for (to, byte) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
}

fn gpu(ordinal: c_int) -> Result<&'static Device> {
    let n = u32::try_from(ordinal).map_err(|_| refuse!(Invalid, "gpu {ordinal}: negative"))?;
    Device::get(n).map_err(explain)
}

/// Finds a GPU: by ordinal ("0"), by PCI address with or without domain ("b7:00.0"), or the first (NULL or ""). Fills `attr`
/// (struct_size set; may be NULL). The CUDA driver is opened by the first call that needs it.
///
/// Returns the ordinal.
/// Errors: -ENODEV: no CUDA driver, or no such GPU; -EINVAL: no name of a GPU; gdrc_open_error has the words.
/// Threads: any. Cost: the first use of a GPU makes its primary context, which the process keeps.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_device(name: *const c_char, attr: *mut gdrc_cuda_attr) -> c_int {
    ret(cuda_device(name, attr))
}

fn cuda_device(name: *const c_char, attr: *mut gdrc_cuda_attr) -> Result<c_int> {
    let attr = sized_out_optional!(attr);
    reason::clear();
    // SAFETY: the header's contract: NULL or a NUL-terminated string that stays during the call.
    let name = if name.is_null() { "" } else { unsafe { ptr::text(name, "name") }? };
    let gpu = Device::find(name).map_err(|f| match f.code {
        api::INVALID_VALUE => {
            refuse!(Invalid, "'{name}' is no GPU: give a PCI address as lspci prints it (b7:00.0), or an ordinal")
        }
        api::INVALID_DEVICE => refuse!(NoDevice, "there is no GPU '{name}': `nvidia-smi` lists them"),
        _ => explain(f),
    })?;
    if let Some(attr) = attr {
        let mut a: gdrc_cuda_attr = ptr::zeroed();
        for (feature, flag) in [
            (api::DEVICE_DMA_BUF, GDRC_CUDA_HAS_DMABUF),
            (api::DEVICE_VMM, GDRC_CUDA_HAS_VMM),
            (api::DEVICE_GPU_DIRECT, GDRC_CUDA_HAS_GPUDIRECT),
        ] {
            if gpu.has(feature) {
                a.flags |= flag;
            }
        }
        a.memory = gpu.bytes();
        put(&mut a.bdf, &gpu.bdf().map(|b| b.to_string()).unwrap_or_default());
        put(&mut a.name, &gpu.name());
        attr.write(&a);
    }
    Ok(gpu.ordinal as c_int)
}

/// Allocates GPU memory on a GPU (its ordinal). `flags`: GDRC_CUDA_SHAREABLE, or 0. Contents are undefined. Memory that a
/// program got from CUDA otherwise may be registered as well.
///
/// Errors: -ENODEV, -ENOMEM; -EOPNOTSUPP: no virtual memory management; -EINVAL; gdrc_open_error has the words.
/// Threads: any. Cost: calls of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_alloc(gpu: c_int, length: usize, flags: u32, addr: *mut u64) -> c_int {
    ret(cuda_alloc(gpu, length, flags, addr))
}

fn cuda_alloc(ordinal: c_int, length: usize, flags: u32, addr: *mut u64) -> Result<c_int> {
    let out = out!(addr);
    reason::clear();
    let kind = match flags {
        0 => Kind::Plain,
        GDRC_CUDA_SHAREABLE => Kind::Shareable,
        _ => return Err(refuse!(Invalid, "flags {flags:#x}: only GDRC_CUDA_SHAREABLE is known")),
    };
    if length == 0 {
        return Err(refuse!(Invalid, "length 0: at least one byte"));
    }
    out.write(memory::alloc(gpu(ordinal)?, length, kind).map_err(explain)?);
    Ok(0)
}

/// Frees what gdrc_cuda_alloc, or closes what gdrc_cuda_import gave. Deregister it first.
///
/// Errors: -EINVAL: not given by them; others of the driver. Threads: any. Cost: waits for work on the GPU.
#[no_mangle]
pub extern "C" fn gdrc_cuda_free(addr: u64) -> c_int {
    reason::clear();
    ret(memory::free(addr).map_err(explain).map(|()| 0))
}

/// Makes GPU memory available to another process of this host. Memory of gdrc_cuda_alloc with GDRC_CUDA_SHAREABLE goes by a
/// descriptor, which `*fd` then is and the caller closes; other memory by CUDA IPC, and `*fd` is -1. The memory must stay
/// until the other process has let go of it.
///
/// Errors: -EINVAL: not GPU memory, or of a kind that cannot be passed on (imported, managed, of a pool); -ENODEV.
/// Threads: any. Cost: calls of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_export(
    addr: u64,
    length: usize,
    handle: *mut gdrc_cuda_handle,
    fd: *mut c_int,
) -> c_int {
    ret(cuda_export(addr, length, handle, fd))
}

fn cuda_export(addr: u64, length: usize, handle: *mut gdrc_cuda_handle, fd: *mut c_int) -> Result<c_int> {
    let (out, out_fd) = (out!(handle), out!(fd));
    reason::clear();
    let span = Span::of(addr, length as u64).map_err(explain)?;
    let mut h = gdrc_cuda_handle { kind: 1, reserved: 0, length: length as u64, offset: 0, bdf: [0; 16], ipc: [0; 64] };
    put(&mut h.bdf, &span.device.bdf().map(|b| b.to_string()).unwrap_or_default());
    let descriptor = match memory::export(addr, length as u64).map_err(explain)? {
        Shared::Ipc(ipc, offset) => {
            (h.ipc, h.offset) = (ipc.0, offset);
            -1
        }
        Shared::Descriptor { fd, offset, size } => {
            (h.kind, h.offset) = (2, offset);
            h.ipc[..8].copy_from_slice(&size.to_ne_bytes());
            fd
        }
    };
    out.write(h);
    out_fd.write(descriptor);
    Ok(0)
}

/// Opens GPU memory that another process exported. `fd`: the descriptor that came with it, which stays the caller's, or -1.
/// What the handle says is checked: a range outside of the memory is refused. `*addr` is its address here.
///
/// Errors: -ENODEV: no driver, or not that GPU; -EINVAL: damaged, or from this very process (CUDA IPC); -EACCES, -EIO: the
/// driver refuses: the exporter is gone, or another user's or container's; gdrc_open_error has the words.
/// Threads: any. Cost: calls of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_import(handle: *const gdrc_cuda_handle, fd: c_int, addr: *mut u64) -> c_int {
    ret(cuda_import(handle, fd, addr))
}

fn cuda_import(handle: *const gdrc_cuda_handle, fd: c_int, addr: *mut u64) -> Result<c_int> {
    let out = out!(addr);
    let h = ptr::plain_in!(handle);
    reason::clear();
    // Somebody else's bytes: the name ends within the field or is none.
    let bytes = h.bdf.map(|c| c as u8);
    let bdf = CStr::from_bytes_until_nul(&bytes).ok().and_then(|t| t.to_str().ok()).filter(|t| t.contains(':'));
    let shared = match h.kind {
        1 => Shared::Ipc(IpcHandle(h.ipc), h.offset),
        2 if fd >= 0 => {
            let mut size = [0; 8];
            size.copy_from_slice(&h.ipc[..8]);
            Shared::Descriptor { fd, offset: h.offset, size: u64::from_ne_bytes(size) }
        }
        2 => return Err(refuse!(Invalid, "fd {fd}: this handle came with a descriptor")),
        kind => return Err(refuse!(Invalid, "handle->kind {kind}: 1 (CUDA IPC) or 2 (a descriptor)")),
    };
    let bdf = bdf.ok_or_else(|| refuse!(Invalid, "handle->bdf: no PCI address"))?;
    let gpu = Device::find(bdf).map_err(explain)?;
    out.write(memory::import(gpu, shared, h.length).map_err(explain)?);
    Ok(0)
}

/// The buffer argument `name` of a copy.
fn check_buffer(at: *const c_void, length: usize, name: &str) -> Result<()> {
    if at.is_null() {
        return Err(refuse!(Invalid, "{name}: NULL"));
    }
    if isize::try_from(length).is_err() {
        return Err(refuse!(Invalid, "length {length:#x}: longer than any buffer"));
    }
    Ok(())
}

/// Copies `length` bytes into GPU memory; done when it returns.
///
/// Errors: -EINVAL: not within one allocation, or `from` is NULL; -ENODEV. Threads: any. Cost: a call of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_copy_in(addr: u64, from: *const c_void, length: usize) -> c_int {
    ret(cuda_copy_in(addr, from, length))
}

fn cuda_copy_in(addr: u64, from: *const c_void, length: usize) -> Result<c_int> {
    reason::clear();
    check_buffer(from, length, "from")?;
    // SAFETY: the header's contract: `length` bytes are readable, and nobody writes them during the call.
    let bytes = unsafe { core::slice::from_raw_parts(from.cast(), length) };
    memory::copy_in(addr, bytes).map_err(explain).map(|()| 0)
}

/// Copies `length` bytes out of GPU memory.
///
/// Errors: as gdrc_cuda_copy_in. Threads: any. Cost: a call of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_copy_out(to: *mut c_void, addr: u64, length: usize) -> c_int {
    ret(cuda_copy_out(to, addr, length))
}

fn cuda_copy_out(to: *mut c_void, addr: u64, length: usize) -> Result<c_int> {
    reason::clear();
    check_buffer(to, length, "to")?;
    // SAFETY: the header's contract: `length` bytes are writable, and nobody else uses them during the call.
    let bytes = unsafe { core::slice::from_raw_parts_mut(to.cast(), length) };
    memory::copy_out(addr, bytes).map_err(explain).map(|()| 0)
}

/// Sets `length` bytes of GPU memory to `byte`.
///
/// Errors: as gdrc_cuda_copy_in. Threads: any. Cost: a call of the driver.
#[no_mangle]
pub extern "C" fn gdrc_cuda_fill(addr: u64, byte: u8, length: usize) -> c_int {
    reason::clear();
    ret(memory::fill(addr, byte, length).map_err(explain).map(|()| 0))
}
