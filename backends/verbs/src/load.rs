//! Finds and loads `libgdrcore_verbs.so`.

use core::ffi::{c_void, CStr};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{EntryPoint, Module, Text, ENTRY, VERSION};
use gdrcore_core::error::{Error, Result};
use heapless::CString;

/// File name of the module.
const FILE: &CStr = c"libgdrcore_verbs.so";

static LOADED: AtomicPtr<Module> = AtomicPtr::new(core::ptr::null_mut());

/// The module. The first call that finds it loads it, and it stays loaded. The search begins in the
/// folder of the file that contains this code, and goes on in the system's library folders.
///
/// # Errors
/// [`Error::NoDevice`]: it is missing, or a library that it needs is; [`Error::Unsupported`]: it is
/// of another version. `why` gets the reason.
pub fn module(why: &mut Text) -> Result<&'static Module> {
    let known = LOADED.load(Ordering::Acquire);
    // SAFETY: set below, from a table that lives as long as the process.
    if let Some(module) = unsafe { known.as_ref() } {
        return Ok(module);
    }
    // A module beside this file is ours. If it cannot be loaded, its error is the helpful one.
    let library = match beside_us() {
        Some(path) => open(path.as_c_str()),
        None => open(FILE),
    };
    let Some(library) = library else {
        why.set(format_args!(
            "{}; `make verbs` builds the module, which needs libibverbs1 to run",
            error()
        ));
        return Err(Error::NoDevice);
    };
    // SAFETY: a live handle and a terminated name.
    let entry = unsafe { libc::dlsym(library, ENTRY.as_ptr()) };
    if entry.is_null() {
        why.set(format_args!("the libgdrcore_verbs.so found is not a module of gdrcore"));
        // No words here: `why` has them.
        return Err(Error::Unsupported);
    }
    // SAFETY: the symbol of this name is an EntryPoint in every version of the module.
    let entry: EntryPoint = unsafe { core::mem::transmute::<*mut c_void, EntryPoint>(entry) };
    // SAFETY: an EntryPoint has no precondition and returns a table that lives as long as the
    // library, which stays.
    let module = unsafe { entry() };
    // SAFETY: as above; magic, version and size come first in every version of the table.
    let head = unsafe { (*module).is_ours() };
    if !head {
        why.set(format_args!(
            "the libgdrcore_verbs.so found is not of this libgdrcore's \
             build (table version {VERSION}): install both from one build"
        ));
        // No words here: `why` has them.
        return Err(Error::Unsupported);
    }
    LOADED.store(module.cast_mut(), Ordering::Release);
    // SAFETY: a whole table of our version, kept for ever.
    Ok(unsafe { &*module })
}

fn open(path: &CStr) -> Option<*mut c_void> {
    // SAFETY: a terminated path. The module's constructors are those of libibverbs, which any
    // thread may run.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!library.is_null()).then_some(library)
}

/// Why the last `dlopen` failed.
fn error() -> &'static str {
    // SAFETY: the string is the thread's own until its next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "libgdrcore_verbs.so cannot be loaded";
    }
    // SAFETY: not null, so a terminated string; used before the next dl call.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("libgdrcore_verbs.so cannot be loaded")
}

/// The path of the module in the folder of the library or program with this function, if it exists
/// there.
fn beside_us() -> Option<CString<{ libc::PATH_MAX as usize }>> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let here: *const c_void = (beside_us as fn() -> _) as *const c_void;
    // SAFETY: any address may be asked about; `info` is writable.
    if unsafe { libc::dladdr(here, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: all-zero is valid, and dladdr filled it besides.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr's strings live as long as their object, which contains this code.
    let file = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    let slash = file.iter().rposition(|&b| b == b'/');
    let folder = slash.map_or(&b"."[..], |at| &file[..at]);
    let mut path = CString::new();
    for part in [folder, b"/", FILE.to_bytes()] {
        path.extend_from_bytes(part).ok()?;
    }
    // SAFETY: a terminated path.
    let there = unsafe { libc::access(path.as_c_str().as_ptr(), libc::F_OK) } == 0;
    there.then_some(path)
}
