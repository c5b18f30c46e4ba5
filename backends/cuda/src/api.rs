//! Binds the functions of `libcuda.so.1` that are used here, and their numbers.
//!
//! Names, numbers and layouts are those of NVIDIA's `cuda.h`, CUDA 12.4; all of them are ABI since
//! 11.7 or before. Our own bindings are needed because the available crates end the process if the
//! driver lacks a function.

use core::ffi::{c_char, c_int, c_longlong, c_uint, c_void, CStr};
use std::sync::OnceLock;

use crate::failure::{Failure, ResultName};

/// Result code of the driver.
pub type CuResult = c_int;
/// An address of device memory.
pub type DevicePtr = u64;
/// Opaque objects of the driver.
pub type Object = *mut c_void;

pub use crate::codes::*;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemLocation {
    /// [`MEM_LOCATION_DEVICE`].
    pub kind: c_int,
    /// The device.
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub struct MemProp {
    /// [`MEM_ALLOCATION_PINNED`].
    pub kind: c_int,
    /// [`MEM_HANDLE_POSIX_FD`] or 0.
    pub handles: c_int,
    /// Where.
    pub location: MemLocation,
    /// Null.
    pub win32: *mut c_void,
    /// Compression.
    pub compression: u8,
    /// 1: NICs may reach it.
    pub gpu_direct: u8,
    /// Zero.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub struct MemAccess {
    /// The device or process that has access.
    pub location: MemLocation,
    /// [`MEM_ACCESS_READWRITE`].
    pub flags: c_int,
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle(pub [u8; 64]);

const _: () = assert!(
    size_of::<MemProp>() == 32 && size_of::<MemAccess>() == 12 && size_of::<IpcHandle>() == 64
);

/// Declares the table: required functions, and functions that a driver may lack.
macro_rules! api {
    (
        needed { $($n:ident = $ns:literal ($($na:ty),*);)* }
        optional { $($o:ident = $os:literal ($($oa:ty),*);)* }
    ) => {
        /// The driver's functions. Calling one is as safe as its arguments.
        #[allow(missing_docs)]
        pub struct Api {
            $(pub $n: unsafe extern "C" fn($($na),*) -> CuResult,)*
            $(pub $o: Option<unsafe extern "C" fn($($oa),*) -> CuResult>,)*
        }

        impl Api {
            /// # Safety
            /// `library` is a live handle of dlopen, of a library whose functions have the types of
            /// `cuda.h`.
            unsafe fn load(library: *mut c_void) -> Result<Api, Failure> {
                use core::mem::transmute;
                // SAFETY: our contract; the names are terminated.
                let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
                Ok(Api {
                    $($n: {
                        let f = symbol(c_str(concat!($ns, "\0")));
                        if f.is_null() {
                            return Err(Failure::new(LIBRARY, Failure::BROKEN));
                        }
                        // SAFETY: not null, and by our contract a function of this type.
                        unsafe {
                            transmute::<*mut c_void, unsafe extern "C" fn($($na),*) -> CuResult>(f)
                        }
                    },)*
                    $($o: {
                        let f = symbol(c_str(concat!($os, "\0")));
                        // SAFETY: null is None; else as above.
                        unsafe {
                            transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($oa),*) -> CuResult>,
                            >(f)
                        }
                    },)*
                })
            }
        }

        // Name of each call for failures; not every failure of a call is reported.
        $(#[allow(dead_code)] pub(crate) mod $n { pub const NAME: &str = $ns; })*
        $(#[allow(dead_code)] pub(crate) mod $o { pub const NAME: &str = $os; })*
    };
}

fn c_str(terminated: &'static str) -> &'static CStr {
    CStr::from_bytes_until_nul(terminated.as_bytes()).unwrap_or_default()
}

api! {
    needed {
        init = "cuInit" (c_uint);
        error_name = "cuGetErrorName" (CuResult, *mut *const c_char);
        device_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut c_int, c_int);
        device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
        device_bdf = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
        device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
        device_memory = "cuDeviceTotalMem_v2" (*mut usize, c_int);
        context_retain = "cuDevicePrimaryCtxRetain" (*mut Object, c_int);
        context_push = "cuCtxPushCurrent_v2" (Object);
        context_pop = "cuCtxPopCurrent_v2" (*mut Object);
        alloc = "cuMemAlloc_v2" (*mut DevicePtr, usize);
        free = "cuMemFree_v2" (DevicePtr);
        host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        host_free = "cuMemFreeHost" (*mut c_void);
        copy_in = "cuMemcpyHtoD_v2" (DevicePtr, *const c_void, usize);
        copy_out = "cuMemcpyDtoH_v2" (*mut c_void, DevicePtr, usize);
        fill = "cuMemsetD8_v2" (DevicePtr, u8, usize);
        copy_in_async = "cuMemcpyHtoDAsync_v2" (DevicePtr, *const c_void, usize, Object);
        copy_out_async = "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePtr, usize, Object);
        stream_create = "cuStreamCreate" (*mut Object, c_uint);
        stream_destroy = "cuStreamDestroy_v2" (Object);
        stream_wait = "cuStreamWaitEvent" (Object, Object, c_uint);
        stream_sync = "cuStreamSynchronize" (Object);
        event_create = "cuEventCreate" (*mut Object, c_uint);
        event_destroy = "cuEventDestroy_v2" (Object);
        event_record = "cuEventRecord" (Object, Object);
        event_query = "cuEventQuery" (Object);
        pointer_get = "cuPointerGetAttribute" (*mut c_void, c_int, DevicePtr);
        pointer_set = "cuPointerSetAttribute" (*const c_void, c_int, DevicePtr);
    }
    optional {
        ipc_get = "cuIpcGetMemHandle" (*mut IpcHandle, DevicePtr);
        ipc_open = "cuIpcOpenMemHandle_v2" (*mut DevicePtr, IpcHandle, c_uint);
        ipc_close = "cuIpcCloseMemHandle" (DevicePtr);
        range_handle = "cuMemGetHandleForAddressRange" (*mut c_void, DevicePtr, usize, c_int, u64);
        vmm_granularity = "cuMemGetAllocationGranularity" (*mut usize, *const MemProp, c_int);
        vmm_create = "cuMemCreate" (*mut u64, usize, *const MemProp, u64);
        vmm_release = "cuMemRelease" (u64);
        vmm_reserve = "cuMemAddressReserve" (*mut DevicePtr, usize, usize, DevicePtr, u64);
        vmm_unreserve = "cuMemAddressFree" (DevicePtr, usize);
        vmm_map = "cuMemMap" (DevicePtr, usize, usize, u64, u64);
        vmm_unmap = "cuMemUnmap" (DevicePtr, usize);
        vmm_access = "cuMemSetAccess" (DevicePtr, usize, *const MemAccess, usize);
        vmm_export = "cuMemExportToShareableHandle" (*mut c_void, u64, c_int, u64);
        vmm_import = "cuMemImportFromShareableHandle" (*mut u64, *mut c_void, c_int);
    }
}

const _: () = assert!(size_of::<c_longlong>() == size_of::<u64>());

static API: OnceLock<Api> = OnceLock::new();
/// `cuGetErrorName`, which works before `cuInit` was called.
static NAMES: OnceLock<unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult> =
    OnceLock::new();

/// The driver. The first successful call loads and initialises it; it is kept as long as the
/// process lives.
///
/// # Errors
/// [`LIBRARY`] is missing or broken, or the error of `cuInit` (no device, a driver without its
/// kernel module).
pub fn driver() -> Result<&'static Api, Failure> {
    if let Some(api) = API.get() {
        return Ok(api);
    }
    // SAFETY: a terminated name; the driver's constructors may run in any thread.
    let library =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: the string is the thread's own until its next dl call.
        let text = unsafe { libc::dlerror() };
        // SAFETY: not null: a terminated string.
        let absent = text.is_null()
            || unsafe { CStr::from_ptr(text) }.to_bytes().ends_with(b"No such file or directory");
        return Err(Failure::new(LIBRARY, if absent { Failure::MISSING } else { Failure::BROKEN }));
    }
    // SAFETY: a live handle of the library with NVIDIA's name; the handle is never closed.
    let api = unsafe { Api::load(library) }?;
    NAMES.get_or_init(|| api.error_name);
    // SAFETY: no pointers.
    check(init::NAME, unsafe { (api.init)(0) })?;
    Ok(API.get_or_init(|| api))
}

/// A result code of the driver as a `Result`.
#[inline]
pub(crate) fn check(call: &'static str, code: CuResult) -> Result<(), Failure> {
    if code == SUCCESS {
        Ok(())
    } else {
        Err(Failure { name: name(code), ..Failure::new(call, code) })
    }
}

pub(crate) fn need<F: Copy>(call: &'static str, f: Option<F>) -> Result<F, Failure> {
    f.ok_or(Failure::new(call, Failure::MISSING))
}

/// The driver's name of an error.
fn name(code: CuResult) -> Option<ResultName> {
    let names = NAMES.get()?;
    let mut text = core::ptr::null();
    // SAFETY: a writable place.
    let known = unsafe { names(code, &mut text) } == SUCCESS && !text.is_null();
    // SAFETY: a terminated string of the driver's, which stays loaded.
    known.then(|| unsafe { CStr::from_ptr(text) })
}
