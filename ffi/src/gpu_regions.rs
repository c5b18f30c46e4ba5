//! Regions of GPU memory: the record that a context keeps of each, and the routes by which a device
//! reaches them.

use crate::c_consts::*;
use crate::c_result::refuse;
use crate::c_types::{gdrc_context, gdrc_mr_attr};
use crate::context_device::ContextDevice;
use crate::context_slots::{device, nic, not_a_context, number, SLOTS};
use crate::gpu_error::explain;
use core::sync::atomic::{AtomicPtr, Ordering};
use gdrcore_core::device::{Device as _, MrAttr, MrReg};
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::Result;
use gdrcore_cuda::memory::{self, Shared};
use gdrcore_cuda::route::{self, Route, RouteChoice, SkipReason};
use gdrcore_cuda::span::Span;
use gdrcore_cuda::staging::Staging;
use gdrcore_net::remote::call::{GpuMemory, GpuRoute};
use gdrcore_net::remote::client::RemoteDevice;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The GPU memory of a context.
#[derive(Default)]
struct GpuState {
    /// The soft device's access to the regions, made with the first one.
    staging: Option<&'static Staging>,
    regions: Vec<GpuRegion>,
}

struct GpuRegion {
    mr: Handle,
    span: Span,
    record: RouteChoice,
    /// The region's number in the staging.
    cookie: Option<u64>,
}

/// One for each context; null until it uses GPU memory.
static STATES: [AtomicPtr<Mutex<GpuState>>; SLOTS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS];

fn state(ctx: *const gdrc_context) -> Option<&'static Mutex<GpuState>> {
    let state = STATES.get(number(ctx)?)?.load(Ordering::Acquire);
    // SAFETY: null, or a box that lives until `forget`, which the header forbids beside other calls
    // on the context.
    unsafe { state.as_ref() }
}

fn state_or_new(ctx: *const gdrc_context) -> Result<&'static Mutex<GpuState>> {
    let slot = number(ctx).and_then(|n| STATES.get(n)).ok_or_else(|| not_a_context(ctx))?;
    if slot.load(Ordering::Acquire).is_null() {
        let fresh = Box::into_raw(Box::default());
        if slot
            .compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: another thread was first; nobody has seen ours.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
    state(ctx).ok_or_else(|| not_a_context(ctx))
}

fn with_state<T>(state: &Mutex<GpuState>, f: impl FnOnce(&mut GpuState) -> T) -> T {
    f(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Frees the pinned memory and the streams of a closed context.
///
/// # Safety
/// Its device is closed, and no call on the context runs or follows.
pub(crate) unsafe fn forget(ctx: *const gdrc_context) {
    let Some(slot) = number(ctx).and_then(|n| STATES.get(n)) else { return };
    let state = slot.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if state.is_null() {
        return;
    }
    // SAFETY: made by `state_or_new`, and out of the table.
    let state = unsafe { Box::from_raw(state) };
    let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(staging) = state.staging {
        // SAFETY: leaked from a box in `stage`; the device that used it is closed, by
        // our contract.
        drop(unsafe { Box::from_raw((&raw const *staging).cast_mut()) });
    }
}

/// Forgets a region that was deregistered.
pub(crate) fn release(ctx: *const gdrc_context, mr: Handle) {
    let Some(state) = state(ctx) else { return };
    let gone = with_state(state, |s| {
        let i = s.regions.iter().position(|r| r.mr == mr)?;
        let region = s.regions.swap_remove(i);
        Some((s.staging?, region.cookie?))
    });
    if let Some((staging, cookie)) = gone {
        staging.release(cookie);
    }
}

/// Fills in the attributes of a region of GPU memory; does nothing for other regions.
pub(crate) fn describe(ctx: *const gdrc_context, mr: Handle, attr: &mut gdrc_mr_attr) {
    let Some(state) = state(ctx) else { return };
    let Some((span, record)) =
        with_state(state, |s| s.regions.iter().find(|r| r.mr == mr).map(|r| (r.span, r.record)))
    else {
        return;
    };
    attr.provider = memory_kind::CUDA;
    attr.addr = span.at;
    attr.route = record.route as u32;
    attr.no_dmabuf = record.no_dma_buf as u32;
    attr.no_peermem = record.no_peermem as u32;
    attr.refusal = record.code;
    attr.buffer_id = span.buffer_id;
    attr.flags = if span.is_same() { 0 } else { mr_flags::GONE };
}

/// Registers with the soft device, which stages every region.
fn stage(
    device: &dyn ContextDevice,
    state: &Mutex<GpuState>,
    reg: &MrReg,
    span: &Span,
) -> Result<((Handle, MrAttr), u64)> {
    let staging = with_state(state, |s| match s.staging {
        Some(staging) => Ok(staging),
        None => {
            let made = Box::new(Staging::new(span.device).map_err(explain)?);
            let leaked: &'static Staging = Box::leak(made);
            if let Err(e) = device.memory_add(memory_kind::CUDA, leaked) {
                // SAFETY: leaked a line above, and nobody took it.
                drop(unsafe { Box::from_raw((&raw const *leaked).cast_mut()) });
                return Err(e);
            }
            s.staging = Some(leaked);
            Ok(leaked)
        }
    })?;
    let cookie = staging.register(span).map_err(explain)?;
    let reg = MrReg { provider: memory_kind::CUDA, cookie, ..*reg };
    match device.mr_reg(&reg) {
        Ok(made) => Ok((made, cookie)),
        Err(e) => {
            staging.release(cookie);
            Err(e)
        }
    }
}

/// Registers with a router's device. The router opens the memory by the descriptor of its
/// allocation, and tells the route.
fn register_at_router(
    device: &RemoteDevice,
    reg: &MrReg,
    span: &Span,
) -> Result<((Handle, MrAttr), RouteChoice)> {
    let Shared::Descriptor { fd, offset, size } =
        memory::export(span.at, span.length).map_err(explain)?
    else {
        return Err(refuse!(
            Unsupported,
            "a router opens GPU memory by a descriptor: allocate it with GDRC_CUDA_SHAREABLE"
        ));
    };
    // SAFETY: just exported, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let name = span.device.bdf().map(|bdf| bdf.to_string()).unwrap_or_default();
    let mut bdf = [0; 16];
    // Names of PCI devices are shorter.
    bdf.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    let memory = GpuMemory { bdf, offset, size };
    let (made, GpuRoute { route, no_dma_buf, no_peermem, code }) =
        device.mr_reg_gpu(reg, memory, fd.as_fd())?;
    let route = Route::from_u32(route).unwrap_or_default();
    let [no_dma_buf, no_peermem] =
        [no_dma_buf, no_peermem].map(|n| SkipReason::from_u32(n).unwrap_or_default());
    Ok((made, RouteChoice { route, no_dma_buf, no_peermem, code }))
}

/// Registers GPU memory by the first route that works. `dma_buf`: the program's own descriptor and
/// the offset in it.
///
/// # Errors
/// Those of gdrc_mr_reg_memory, with reasons.
pub(crate) fn register(
    ctx: *const gdrc_context,
    reg: &MrReg,
    dma_buf: Option<(i32, u64)>,
) -> Result<(Handle, MrAttr)> {
    let (device, nic) = (device(ctx)?, nic(ctx));
    let state = state_or_new(ctx)?;
    let span = Span::look_up(reg.addr, reg.length).map_err(explain)?;
    let of_gpu = MrReg { provider: memory_kind::CUDA, ..*reg };
    let mut cookie = None;
    let ((mr, attr), record) = match (nic, device.remote()) {
        (Some(nic), _) => {
            let by_dma_buf = |fd, offset| nic.mr_reg_dmabuf(&MrReg { addr: offset, ..of_gpu }, fd);
            let has_peermem = || route::has_peermem(Path::new("/sys"));
            route::register(&span, dma_buf, has_peermem, by_dma_buf, || nic.mr_reg(reg))?
        }
        (None, Some(router)) => {
            let (made, record) = register_at_router(router, reg, &span)?;
            device.note_region(&of_gpu, &made);
            (made, record)
        }
        (None, None) => {
            let (made, number) = stage(device, state, reg, &span)?;
            cookie = Some(number);
            (made, RouteChoice::staged())
        }
    };
    with_state(state, |s| s.regions.push(GpuRegion { mr, span, record, cookie }));
    Ok((mr, attr))
}
