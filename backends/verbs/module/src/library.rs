//! Which libibverbs the process has: its symbols, its release, and whether it is gdrcore's own.

use core::ffi::{c_void, CStr};
use core::mem::MaybeUninit;
use gdrcore_verbs::release;
use rdma_sys::ibv_get_device_name;

/// The symbol by which gdrcore's own libibverbs is recognised.
const DROPIN: &CStr = c"gdrcore_dropin_version";
/// The release of rdma-core whose calls gdrcore's own libibverbs has.
const DROPIN_RELEASE: u32 = 45;
/// For tests: `1` allows verbs devices of gdrcore's own libibverbs.
const ALLOW: &str = "GDRC_VERBS_ON_DROPIN";

/// The reason for refusing a device of gdrcore's own libibverbs.
pub const OURS: &str = "the libibverbs that this program found is gdrcore's own drop-in, \
                        which has no NICs: open its device by the soft device's name, or \
                        take the drop-in out of LD_LIBRARY_PATH and LD_PRELOAD";

/// The file of the libibverbs to which this module is linked; it stays loaded as long as the
/// module.
fn file() -> Option<&'static CStr> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let known: *const c_void =
        (ibv_get_device_name as unsafe extern "C" fn(_) -> _) as *const c_void;
    // SAFETY: any address may be asked about; `info` is writable.
    if unsafe { libc::dladdr(known, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: all-zero is valid, and dladdr filled it besides.
    let file = unsafe { info.assume_init() }.dli_fname;
    // SAFETY: dladdr's string, of an object that stays loaded.
    (!file.is_null()).then(|| unsafe { CStr::from_ptr(file) })
}

/// A symbol of that libibverbs.
pub fn symbol(name: &CStr) -> *mut c_void {
    let Some(file) = file() else { return core::ptr::null_mut() };
    // SAFETY: a terminated path.
    let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: a live handle, a terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: the handle counted once more a library that this module keeps loaded.
    unsafe { libc::dlclose(library) };
    found
}

/// Whether libibverbs is gdrcore's own. Its devices would lead back to this library.
fn is_dropin() -> bool {
    !symbol(DROPIN).is_null()
}

/// Whether a device of this libibverbs may be opened. A device of gdrcore's own needs the variable:
/// it would give the program a second engine, with its own locks, threads and signal handlers,
/// below a device that the program takes for a NIC.
pub fn may_be_used() -> bool {
    !is_dropin() || std::env::var_os(ALLOW).is_some_and(|v| v == "1")
}

/// The release of rdma-core that has this libibverbs; 0: unknown. Distributions and rdma-core's own
/// build put it into the file name, `libibverbs.so.1.14.44.0`.
pub fn release() -> u32 {
    if is_dropin() {
        return DROPIN_RELEASE;
    }
    let path = file().and_then(|f| f.to_str().ok()).and_then(|f| std::fs::canonicalize(f).ok());
    let name = path.as_ref().and_then(|p| p.file_name()).and_then(|n| n.to_str());
    name.map_or(0, release::of_file)
}
