//! Finds the drop-in in the process, and the tables of functions that it exports.

use core::ffi::{c_void, CStr};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};
use gdrcore_calls::preload::{Names, Ucma, Umad, PATH_MAX};

/// The drop-in's name in the process.
const LIBRARY: &CStr = c"libibverbs.so.1";
/// A table of the drop-in, looked up at its first use.
pub struct Table<T: 'static> {
    at: AtomicPtr<c_void>,
    name: &'static CStr,
    /// Whether to load the drop-in if the process has no libibverbs yet.
    load: bool,
    what: PhantomData<&'static T>,
}

/// The tables of this process.
pub static UCMA: Table<Ucma> = Table::new(c"gdrc_ucma_1", false);
pub static NAMES: Table<Names> = Table::new(c"gdrc_names_2", true);
pub static UMAD: Table<Umad> = Table::new(c"gdrc_umad_1", false);

impl<T> Table<T> {
    const fn new(name: &'static CStr, load: bool) -> Self {
        Table { at: AtomicPtr::new(core::ptr::null_mut()), name, load, what: PhantomData }
    }

    /// The table, if the process has the drop-in and not another libibverbs.
    pub fn get(&self) -> Option<&'static T> {
        let mut at = self.at.load(Ordering::Acquire);
        if at.is_null() {
            at = self.find();
            self.at.store(at, Ordering::Release);
        }
        // SAFETY: null, or a table of this layout, which its name stands for and which never
        // changes.
        unsafe { at.cast::<T>().as_ref() }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: constant names; NOLOAD loads nothing, and the handle is kept, so the library
        // stays.
        unsafe {
            let mut library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if library.is_null() && self.load {
                library = beside_this_library();
            }
            if library.is_null() {
                return core::ptr::null_mut();
            }
            libc::dlsym(library, self.name.as_ptr())
        }
    }
}

/// Loads the drop-in from the folder of this library, so that programs without verbs, such as `ls`,
/// see the devices' files as well.
fn beside_this_library() -> *mut c_void {
    // SAFETY: zeroes are a valid Dl_info, which lives through the call; the name in it lives as
    // long as this library.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr((&raw const NAMES).cast(), &mut info) == 0 || info.dli_fname.is_null() {
            return core::ptr::null_mut();
        }
        let own = CStr::from_ptr(info.dli_fname).to_bytes();
        let folder = own.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        let mut path = [0u8; PATH_MAX];
        let library = LIBRARY.to_bytes_with_nul();
        let Some(to) = path.get_mut(..folder + library.len()) else { return core::ptr::null_mut() };
        to[..folder].copy_from_slice(&own[..folder]);
        to[folder..].copy_from_slice(library);
        libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL)
    }
}
