//! The driver's facts about an address.

use core::ffi::c_void;

use crate::api::{self, check, DevicePtr};
use crate::device::Device;
use crate::failure::Failure;

/// Device memory that contains a range.
#[derive(Clone, Copy)]
pub struct Span {
    /// The GPU.
    pub device: &'static Device,
    /// First byte of the requested range.
    pub at: DevicePtr,
    /// Bytes of the range.
    pub length: u64,
    /// First byte of the allocation (or mapping).
    pub base: DevicePtr,
    /// Bytes of the allocation.
    pub size: u64,
    /// Unique in the process among all allocations, existing and freed; 0 if the driver gives none.
    pub buffer_id: u64,
    /// Whether SYNC_MEMOPS could be set: synchronous copies then wait until their bytes are
    /// written.
    pub sync_memops: bool,
}

/// One attribute of an address.
///
/// # Safety
/// `T` is the type that `cuda.h` gives for the attribute.
unsafe fn attribute<T: Default>(api: &api::Api, which: i32, at: DevicePtr) -> Result<T, Failure> {
    let mut value = T::default();
    // SAFETY: a writable place of the right type, by our contract; the driver takes any address.
    check(api::pointer_get::NAME, unsafe {
        (api.pointer_get)((&raw mut value).cast::<c_void>(), which, at)
    })?;
    Ok(value)
}

/// The unique id of the allocation at an address, if there is one. 0: the allocation is of a kind
/// without ids.
pub(crate) fn buffer_id(device: &Device, at: DevicePtr) -> Option<u64> {
    let _current = device.enter().ok()?;
    // SAFETY: unsigned long long.
    let id = unsafe { attribute::<u64>(device.api, api::POINTER_BUFFER_ID, at) };
    // SAFETY: unsigned int.
    let there = || unsafe { attribute::<u32>(device.api, api::POINTER_MEMORY_TYPE, at) };
    id.ok().or_else(|| there().ok().map(|_| 0))
}

/// The kind of memory, and its GPU. Most drivers answer without a current context. If this one does
/// not, makes a context on the first GPU, even if other processes use that GPU.
fn kind(api: &api::Api, at: DevicePtr) -> Result<(u32, i32), Failure> {
    let ask = || {
        // SAFETY: unsigned int.
        let kind = unsafe { attribute::<u32>(api, api::POINTER_MEMORY_TYPE, at) }?;
        // SAFETY: int.
        let ordinal = unsafe { attribute::<i32>(api, api::POINTER_DEVICE_ORDINAL, at) }?;
        Ok((kind, ordinal))
    };
    match ask() {
        Err(Failure { code: api::INVALID_CONTEXT, .. }) => {
            let _current = Device::get(0)?.enter()?;
            ask()
        }
        other => other,
    }
}

impl Span {
    /// Looks up a range. It must lie within one allocation of a GPU.
    ///
    /// # Errors
    /// No driver; `INVALID_VALUE`: not device memory, or more than one allocation.
    pub fn look_up(at: DevicePtr, length: u64) -> Result<Span, Failure> {
        let api = api::driver()?;
        let wrong = Failure::new(api::pointer_get::NAME, api::INVALID_VALUE);
        let (kind, ordinal) = kind(api, at)?;
        if kind != api::MEMORYTYPE_DEVICE || length == 0 {
            return Err(wrong);
        }
        let device = Device::get(u32::try_from(ordinal).map_err(|_| wrong)?)?;
        let current = device.enter()?;
        // SAFETY: CUdeviceptr.
        let base: u64 = unsafe { attribute(api, api::POINTER_RANGE_START, at) }?;
        // SAFETY: size_t.
        let size: usize = unsafe { attribute(api, api::POINTER_RANGE_SIZE, at) }?;
        let size = size as u64;
        let inside = at.checked_sub(base).is_some_and(|off| off <= size && length <= size - off);
        if !inside {
            return Err(wrong);
        }
        let on: u32 = 1;
        // SAFETY: an unsigned int, as the attribute has it.
        let rc =
            unsafe { (api.pointer_set)((&raw const on).cast(), api::POINTER_SYNC_MEMOPS, base) };
        drop(current);
        let buffer_id = buffer_id(device, base).ok_or(wrong)?;
        // Memory of cuMemCreate has no such attribute.
        Ok(Span { device, at, length, base, size, buffer_id, sync_memops: rc == api::SUCCESS })
    }

    /// Whether the allocation is still the same one.
    pub fn is_same(&self) -> bool {
        buffer_id(self.device, self.base) == Some(self.buffer_id)
    }

    /// A dma-buf descriptor of whole host pages around the range, and the range's offset in it. The
    /// caller closes it.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`; the driver is older than 11.7; other errors of the driver.
    pub fn dma_buf(&self) -> Result<(i32, u64), Failure> {
        let call = api::range_handle::NAME;
        let get = api::need(call, self.device.api.range_handle)?;
        if !self.device.has(api::DEVICE_DMA_BUF) {
            return Err(Failure::new(call, api::NOT_SUPPORTED));
        }
        // Allocations begin at pages of the device, which are larger than the host's.
        let page = page_size();
        let begin = self.at & !(page - 1);
        let end = (self.at + self.length)
            .checked_next_multiple_of(page)
            .ok_or(Failure::new(call, api::INVALID_VALUE))?;
        let mut fd: i32 = -1;
        let _current = self.device.enter()?;
        // SAFETY: an int, which this kind of handle is.
        let rc = unsafe {
            get((&raw mut fd).cast(), begin, (end - begin) as usize, api::MEM_RANGE_DMA_BUF_FD, 0)
        };
        check(call, rc)?;
        // The driver's descriptors survive exec, ours must not. SAFETY: a descriptor that is ours
        // from now on.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok((fd, self.at - begin))
    }
}

fn page_size() -> u64 {
    // SAFETY: no precondition.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
