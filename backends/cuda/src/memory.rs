//! Device memory: allocation, export and import, copies by the program.

use core::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use crate::api::{self, check, need, DevicePtr, IpcHandle, MemAccess, MemLocation, MemProp};
use crate::device::Device;
use crate::failure::Failure;
use crate::span::Span;

/// The kind of an allocation, which decides how other processes can open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    /// `cuMemAlloc`: passed on by CUDA IPC handle.
    Plain,
    /// `cuMemCreate`: passed on by descriptor.
    Shareable,
}

/// The steps that [`free`] must undo.
#[derive(Clone, Copy)]
enum Made {
    Plain,
    Opened,
    Mapped { size: usize, handle: u64 },
}

struct Allocation {
    /// The address that was returned to the program.
    given: DevicePtr,
    at: DevicePtr,
    device: &'static Device,
    made: Made,
}

static ALLOCATIONS: Mutex<Vec<Allocation>> = Mutex::new(Vec::new());

fn remember(at: DevicePtr, device: &'static Device, made: Made) -> DevicePtr {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner).push(Allocation {
        given: at,
        at,
        device,
        made,
    });
    at
}

/// A reference to memory, for another process.
#[derive(Clone, Copy)]
pub enum Shared {
    /// By a handle, with the offset of the range in its allocation.
    Ipc(IpcHandle, u64),
    /// By a descriptor of the whole allocation, with the offset of the range in it.
    Descriptor {
        /// From [`export`]; the receiver closes it.
        fd: i32,
        /// The range's offset.
        offset: u64,
        /// Bytes of the allocation: drivers map it whole.
        size: u64,
    },
}

/// Allocates `length` bytes. Contents are undefined.
///
/// # Errors
/// No memory; [`AllocationKind::Shareable`]: the driver or the GPU lacks virtual memory management.
pub fn alloc(
    device: &'static Device,
    length: usize,
    kind: AllocationKind,
) -> Result<DevicePtr, Failure> {
    if kind == AllocationKind::Shareable {
        return alloc_shareable(device, length);
    }
    let _current = device.enter()?;
    let mut at = 0;
    // SAFETY: a writable place.
    check(api::alloc::NAME, unsafe { (device.api.alloc)(&mut at, length) })?;
    Ok(remember(at, device, Made::Plain))
}

fn prop(device: &Device) -> MemProp {
    MemProp {
        kind: api::MEM_ALLOCATION_PINNED,
        handles: api::MEM_HANDLE_POSIX_FD,
        location: MemLocation { kind: api::MEM_LOCATION_DEVICE, id: device.handle },
        win32: core::ptr::null_mut(),
        compression: 0,
        gpu_direct: u8::from(device.has(api::DEVICE_GPU_DIRECT_VMM)),
        usage: 0,
        reserved: [0; 4],
    }
}

/// `length` rounded up to the device's mapping granularity.
fn granular(device: &Device, length: usize) -> Result<usize, Failure> {
    let call = api::vmm_granularity::NAME;
    let granularity = need(call, device.api.vmm_granularity)?;
    let mut step = 0;
    // SAFETY: a writable place and a whole struct.
    check(call, unsafe { granularity(&mut step, &prop(device), 0) })?;
    length
        .checked_next_multiple_of(step.max(1))
        .filter(|&n| n > 0)
        .ok_or(Failure::new(call, api::INVALID_VALUE))
}

fn alloc_shareable(device: &'static Device, length: usize) -> Result<DevicePtr, Failure> {
    let call = api::vmm_create::NAME;
    let create = need(call, device.api.vmm_create)?;
    if !device.has(api::DEVICE_VMM) || !device.has(api::DEVICE_POSIX_HANDLES) {
        return Err(Failure::new(call, api::NOT_SUPPORTED));
    }
    let _current = device.enter()?;
    let size = granular(device, length)?;
    let mut handle = 0;
    // SAFETY: a writable place and a whole struct.
    check(call, unsafe { create(&mut handle, size, &prop(device), 0) })?;
    map(device, size, handle)
}

/// Maps physical memory at an address. Consumes the handle, also on failure.
fn map(device: &'static Device, size: usize, handle: u64) -> Result<DevicePtr, Failure> {
    let api = device.api;
    let mapped = (|| {
        let reserve = need(api::vmm_reserve::NAME, api.vmm_reserve)?;
        let map = need(api::vmm_map::NAME, api.vmm_map)?;
        let access = need(api::vmm_access::NAME, api.vmm_access)?;
        need(api::vmm_unmap::NAME, api.vmm_unmap)?;
        need(api::vmm_unreserve::NAME, api.vmm_unreserve)?;
        let mut at = 0;
        // SAFETY: a writable place.
        check(api::vmm_reserve::NAME, unsafe { reserve(&mut at, size, 0, 0, 0) })?;
        // SAFETY: addresses and handle are ours.
        let done =
            check(api::vmm_map::NAME, unsafe { map(at, size, 0, handle, 0) }).and_then(|()| {
                let location = MemLocation { kind: api::MEM_LOCATION_DEVICE, id: device.handle };
                let all = MemAccess { location, flags: api::MEM_ACCESS_READWRITE };
                // SAFETY: one whole struct; the addresses are mapped.
                check(api::vmm_access::NAME, unsafe { access(at, size, &all, 1) })
                    .inspect_err(|_| unmap(api, at, size))
            });
        match done {
            Ok(()) => Ok(at),
            Err(e) => {
                unreserve(api, at, size);
                Err(e)
            }
        }
    })();
    match mapped {
        Ok(at) => Ok(remember(at, device, Made::Mapped { size, handle })),
        Err(e) => {
            release(api, handle);
            Err(e)
        }
    }
}

fn unmap(api: &api::Api, at: DevicePtr, size: usize) {
    if let Some(unmap) = api.vmm_unmap {
        // SAFETY: mapped by us, and nobody uses it any more.
        unsafe { unmap(at, size) };
    }
}

fn unreserve(api: &api::Api, at: DevicePtr, size: usize) {
    if let Some(unreserve) = api.vmm_unreserve {
        // SAFETY: reserved by us, nothing is mapped there.
        unsafe { unreserve(at, size) };
    }
}

fn release(api: &api::Api, handle: u64) {
    if let Some(release) = api.vmm_release {
        // SAFETY: a handle of ours, let go once.
        unsafe { release(handle) };
    }
}

/// Frees or closes memory of [`alloc`] or [`import`]. Waits for work in progress on it.
///
/// # Errors
/// `INVALID_VALUE`: not allocated here, or freed already.
pub fn free(at: DevicePtr) -> Result<(), Failure> {
    let mut all = ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let i = all
        .iter()
        .position(|a| a.given == at)
        .ok_or(Failure::new(api::free::NAME, api::INVALID_VALUE))?;
    let Allocation { at, device, made, .. } = all.swap_remove(i);
    drop(all);
    let _current = device.enter()?;
    match made {
        // SAFETY: allocated by us, and forgotten above.
        Made::Plain => check(api::free::NAME, unsafe { (device.api.free)(at) }),
        Made::Opened => {
            let close = need(api::ipc_close::NAME, device.api.ipc_close)?;
            // SAFETY: opened by us, and forgotten above.
            check(api::ipc_close::NAME, unsafe { close(at) })
        }
        Made::Mapped { size, handle } => {
            unmap(device.api, at, size);
            unreserve(device.api, at, size);
            release(device.api, handle);
            Ok(())
        }
    }
}

/// Makes a range of memory available to other processes.
///
/// # Errors
/// `INVALID_VALUE`: not device memory, or memory of a kind that cannot be passed on (imported,
/// managed, of a pool).
pub fn export(at: DevicePtr, length: u64) -> Result<Shared, Failure> {
    let span = Span::look_up(at, length)?;
    let offset = at - span.base;
    let mapped = {
        let all = ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|a| a.at == span.base).and_then(|a| match a.made {
            Made::Mapped { handle, size } => Some((handle, size)),
            _ => None,
        })
    };
    let _current = span.device.enter()?;
    if let Some((handle, size)) = mapped {
        let call = api::vmm_export::NAME;
        let export = need(call, span.device.api.vmm_export)?;
        let mut fd: i32 = -1;
        // SAFETY: an int, which this kind of handle is.
        check(call, unsafe { export((&raw mut fd).cast(), handle, api::MEM_HANDLE_POSIX_FD, 0) })?;
        // SAFETY: a descriptor that is ours since now.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        return Ok(Shared::Descriptor { fd, offset, size: size as u64 });
    }
    let call = api::ipc_get::NAME;
    let get = need(call, span.device.api.ipc_get)?;
    let mut handle = IpcHandle([0; 64]);
    // SAFETY: a writable place.
    check(call, unsafe { get(&mut handle, span.base) })?;
    Ok(Shared::Ipc(handle, offset))
}

/// Opens memory that another process exported; the descriptor stays the caller's. Returns the
/// address of the range, which [`free`] takes.
///
/// # Errors
/// The driver refuses: the exporter has ended, belongs to another user or namespace, or (by handle)
/// is this process.
pub fn import(device: &'static Device, shared: Shared, length: u64) -> Result<DevicePtr, Failure> {
    let current = device.enter()?;
    let (at, offset) = match shared {
        Shared::Ipc(handle, offset) => {
            let call = api::ipc_open::NAME;
            let open = need(call, device.api.ipc_open)?;
            let mut at = 0;
            // SAFETY: a writable place; the driver checks the handle.
            check(call, unsafe { open(&mut at, handle, api::IPC_LAZY_PEER_ACCESS) })?;
            (remember(at, device, Made::Opened), offset)
        }
        Shared::Descriptor { fd, offset, size } => {
            let call = api::vmm_import::NAME;
            let import = need(call, device.api.vmm_import)?;
            // The driver itself checks the size.
            let size = usize::try_from(size).map_err(|_| Failure::new(call, api::INVALID_VALUE))?;
            let mut handle = 0;
            // SAFETY: this kind of handle is a descriptor in place of a pointer; the driver checks
            // it.
            let rc = unsafe {
                import(&mut handle, fd as usize as *mut c_void, api::MEM_HANDLE_POSIX_FD)
            };
            check(call, rc)?;
            (map(device, size, handle)?, offset)
        }
    };
    drop(current);
    // The exporter's numbers are not trusted: the range must lie in the opened memory.
    let inside =
        at.checked_add(offset).ok_or(Failure::new(api::pointer_get::NAME, api::INVALID_VALUE));
    match inside.and_then(|begin| Span::look_up(begin, length)) {
        Ok(span) => {
            let mut all = ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(a) = all.iter_mut().rfind(|a| a.at == at) {
                a.given = span.at;
            }
            Ok(span.at)
        }
        Err(e) => {
            let _ = free(at);
            Err(e)
        }
    }
}

/// The GPU of a range that a program names.
fn owner(at: DevicePtr, length: usize) -> Result<&'static Device, Failure> {
    Span::look_up(at, length as u64).map(|s| s.device)
}

/// Waits for calls without a stream: a copy from pageable memory returns once the bytes are staged,
/// a fill returns at once, and the streams of [`crate::staging`] wait for neither.
fn settle(device: &Device) -> Result<(), Failure> {
    // SAFETY: null is the stream of those calls.
    check(api::stream_sync::NAME, unsafe { (device.api.stream_sync)(core::ptr::null_mut()) })
}

/// Copies into device memory; done when it returns.
///
/// # Errors
/// `INVALID_VALUE`: the range is not within one allocation.
pub fn copy_in(to: DevicePtr, from: &[u8]) -> Result<(), Failure> {
    if from.is_empty() {
        return Ok(());
    }
    let device = owner(to, from.len())?;
    let _current = device.enter()?;
    // SAFETY: the slice is readable; the driver checks the other end.
    check(api::copy_in::NAME, unsafe {
        (device.api.copy_in)(to, from.as_ptr().cast(), from.len())
    })?;
    settle(device)
}

/// Copies out of device memory.
///
/// # Errors
/// As [`copy_in`].
pub fn copy_out(from: DevicePtr, to: &mut [u8]) -> Result<(), Failure> {
    if to.is_empty() {
        return Ok(());
    }
    let device = owner(from, to.len())?;
    let _current = device.enter()?;
    // SAFETY: the slice is writable; the driver checks the other end.
    check(api::copy_out::NAME, unsafe {
        (device.api.copy_out)(to.as_mut_ptr().cast(), from, to.len())
    })
}

/// Sets every byte of a range.
///
/// # Errors
/// As [`copy_in`].
pub fn fill(at: DevicePtr, byte: u8, length: usize) -> Result<(), Failure> {
    if length == 0 {
        return Ok(());
    }
    let device = owner(at, length)?;
    let _current = device.enter()?;
    // SAFETY: the driver checks the range.
    check(api::fill::NAME, unsafe { (device.api.fill)(at, byte, length) })?;
    settle(device)
}
