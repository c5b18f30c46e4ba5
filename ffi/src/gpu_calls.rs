//! C calls for GPU memory that a program allocates, shares and fills: gdrc_cuda_. Its registration
//! is in `mr_calls`.

use crate::c_consts::*;
use crate::c_result::{call, refuse};
use crate::c_types::*;
use crate::gpu_error::explain;
use crate::ptr::{self, out, plain_in, put_text, sized_out_optional};
use core::ffi::{c_char, c_int, c_void, CStr};
use gdrcore_core::Result;
use gdrcore_cuda::api::{self, IpcHandle};
use gdrcore_cuda::device::Device;
use gdrcore_cuda::memory::{self, AllocationKind, Shared};
use gdrcore_cuda::span::Span;
use gdrcore_net::reason;

/// Finds a GPU: by ordinal ("0"), by PCI address with or without domain ("b7:00.0"), or the first
/// (NULL or ""). Fills `attr` (struct_size set; may be NULL). The CUDA driver is opened by the
/// first call that needs it.
///
/// Returns the ordinal.
/// Errors: -ENODEV: no CUDA driver, or no such GPU; -EINVAL: no name of a GPU; gdrc_error_detail
/// has the reason. Threads: any. Cost: the first use of a GPU makes its primary context, which the
/// process keeps.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_device(name: *const c_char, attr: *mut gdrc_cuda_attr) -> c_int {
    call(|| {
        let attr = sized_out_optional!(attr);
        reason::clear();
        // SAFETY: the header's contract: NULL or a NUL-terminated string that stays during the
        // call.
        let name = if name.is_null() { "" } else { unsafe { ptr::text(name, "name") }? };
        let gpu = Device::find(name).map_err(|f| match f.code {
            api::INVALID_VALUE => {
                refuse!(
                    Invalid,
                    "'{name}' is no GPU: give a PCI address as lspci prints it (b7:00.0), or an \
                     ordinal"
                )
            }
            api::INVALID_DEVICE => {
                refuse!(NoDevice, "there is no GPU '{name}': `nvidia-smi` lists them")
            }
            _ => explain(f),
        })?;
        if let Some(attr) = attr {
            let mut a: gdrc_cuda_attr = ptr::zeroed();
            for (feature, flag) in [
                (api::DEVICE_DMA_BUF, cuda_features::HAS_DMABUF),
                (api::DEVICE_VMM, cuda_features::HAS_VMM),
                (api::DEVICE_GPU_DIRECT, cuda_features::HAS_GPUDIRECT),
            ] {
                if gpu.has(feature) {
                    a.flags |= flag;
                }
            }
            a.memory = gpu.bytes();
            put_text(&mut a.bdf, &gpu.bdf().map(|b| b.to_string()).unwrap_or_default());
            put_text(&mut a.name, &gpu.name());
            attr.write(&a);
        }
        Ok(gpu.ordinal as c_int)
    })
}

/// Allocates GPU memory on a GPU (its ordinal). `flags`: GDRC_CUDA_SHAREABLE, or 0. Contents are
/// undefined. Memory that a program allocated through CUDA itself may be registered as well.
///
/// Errors: -ENODEV, -ENOMEM; -EOPNOTSUPP: no virtual memory management; -EINVAL; gdrc_error_detail
/// has the reason. Threads: any. Cost: calls of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_alloc(
    gpu: c_int,
    length: usize,
    flags: u32,
    addr: *mut u64,
) -> c_int {
    call(|| {
        let out = out!(addr);
        reason::clear();
        let kind = match flags {
            0 => AllocationKind::Plain,
            cuda_alloc_flags::SHAREABLE => AllocationKind::Shareable,
            _ => {
                return Err(refuse!(Invalid, "flags {flags:#x}: only GDRC_CUDA_SHAREABLE is known"))
            }
        };
        if length == 0 {
            return Err(refuse!(Invalid, "length 0: at least one byte"));
        }
        let ordinal = u32::try_from(gpu).map_err(|_| refuse!(Invalid, "gpu {gpu}: negative"))?;
        let gpu = Device::get(ordinal).map_err(explain)?;
        out.write(memory::alloc(gpu, length, kind).map_err(explain)?);
        Ok(())
    })
}

/// Frees memory of gdrc_cuda_alloc, or closes that of gdrc_cuda_import. Deregister it first.
///
/// Errors: -EINVAL: not from these calls; others of the driver. Threads: any. Cost: waits for work
/// on the GPU.
#[no_mangle]
pub extern "C" fn gdrc_cuda_free(addr: u64) -> c_int {
    reason::clear();
    call(|| memory::free(addr).map_err(explain))
}

/// Exports GPU memory to another process of this host. Memory of gdrc_cuda_alloc with
/// GDRC_CUDA_SHAREABLE is exported by a descriptor, `*fd`, which the caller closes; other memory by
/// CUDA IPC, and `*fd` is -1. The memory must stay until the other process has closed it.
///
/// Errors: -EINVAL: not GPU memory, or of a kind that cannot be exported (imported, managed, of a
/// pool); -ENODEV. Threads: any. Cost: calls of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_export(
    addr: u64,
    length: usize,
    handle: *mut gdrc_cuda_handle,
    fd: *mut c_int,
) -> c_int {
    call(|| {
        let (out, out_fd) = (out!(handle), out!(fd));
        reason::clear();
        let span = Span::look_up(addr, length as u64).map_err(explain)?;
        let mut h = gdrc_cuda_handle {
            kind: 1,
            reserved: 0,
            length: length as u64,
            offset: 0,
            bdf: [0; 16],
            ipc: [0; 64],
        };
        put_text(&mut h.bdf, &span.device.bdf().map(|b| b.to_string()).unwrap_or_default());
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
        Ok(())
    })
}

/// Opens GPU memory that another process exported. `fd`: the descriptor that came with it, which
/// stays the caller's, or -1. The handle's fields are checked: a range outside of the memory is
/// refused. `*addr` is its address here.
///
/// Errors: -ENODEV: no driver, or not that GPU; -EINVAL: damaged, or from this very process (CUDA
/// IPC); -EACCES, -EIO: the driver refuses: the exporter has ended, or belongs to another user or
/// container; gdrc_error_detail has the reason. Threads: any. Cost: calls of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_import(
    handle: *const gdrc_cuda_handle,
    fd: c_int,
    addr: *mut u64,
) -> c_int {
    call(|| {
        let out = out!(addr);
        let h = plain_in!(handle);
        reason::clear();
        // The bytes come from another process: a name without a NUL in the field is refused.
        let bytes = h.bdf.map(|c| c as u8);
        let bdf = CStr::from_bytes_until_nul(&bytes)
            .ok()
            .and_then(|t| t.to_str().ok())
            .filter(|t| t.contains(':'));
        let shared = match h.kind {
            1 => Shared::Ipc(IpcHandle(h.ipc), h.offset),
            2 if fd >= 0 => {
                let mut size = [0; 8];
                size.copy_from_slice(&h.ipc[..8]);
                Shared::Descriptor { fd, offset: h.offset, size: u64::from_ne_bytes(size) }
            }
            2 => return Err(refuse!(Invalid, "fd {fd}: this handle came with a descriptor")),
            kind => {
                return Err(refuse!(
                    Invalid,
                    "handle->kind {kind}: 1 (CUDA IPC) or 2 (a descriptor)"
                ))
            }
        };
        let bdf = bdf.ok_or_else(|| refuse!(Invalid, "handle->bdf: no PCI address"))?;
        let gpu = Device::find(bdf).map_err(explain)?;
        out.write(memory::import(gpu, shared, h.length).map_err(explain)?);
        Ok(())
    })
}

/// Refuses the buffer argument `name` of a copy if it cannot be one.
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
/// Errors: -EINVAL: not within one allocation, or `from` is NULL; -ENODEV. Threads: any. Cost: a
/// call of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_copy_in(addr: u64, from: *const c_void, length: usize) -> c_int {
    call(|| {
        reason::clear();
        check_buffer(from, length, "from")?;
        // SAFETY: the header's contract: `length` bytes are readable, and no thread writes them
        // during the call.
        let bytes = unsafe { core::slice::from_raw_parts(from.cast(), length) };
        memory::copy_in(addr, bytes).map_err(explain)
    })
}

/// Copies `length` bytes out of GPU memory.
///
/// Errors: as gdrc_cuda_copy_in. Threads: any. Cost: a call of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cuda_copy_out(to: *mut c_void, addr: u64, length: usize) -> c_int {
    call(|| {
        reason::clear();
        check_buffer(to, length, "to")?;
        // SAFETY: the header's contract: `length` bytes are writable, and no other thread uses them
        // during the call.
        let bytes = unsafe { core::slice::from_raw_parts_mut(to.cast(), length) };
        memory::copy_out(addr, bytes).map_err(explain)
    })
}

/// Sets `length` bytes of GPU memory to `byte`.
///
/// Errors: as gdrc_cuda_copy_in. Threads: any. Cost: a call of the driver.
#[no_mangle]
pub extern "C" fn gdrc_cuda_fill(addr: u64, byte: u8, length: usize) -> c_int {
    reason::clear();
    call(|| memory::fill(addr, byte, length).map_err(explain))
}
