//! The calls that stand behind ours: the next in the order of symbol lookup.

use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Types of the calls.
pub mod next {
    use super::*;
    pub type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
    pub type CheckedOpen = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    pub type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
    pub type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
    pub type OldFstat = unsafe extern "C" fn(c_int, c_int, *mut libc::stat) -> c_int;
    pub type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
    pub type OldStat = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat) -> c_int;
    pub type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    pub type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
    pub type Close = unsafe extern "C" fn(c_int) -> c_int;
    pub type Dup2 = unsafe extern "C" fn(c_int, c_int) -> c_int;
    pub type Dup3 = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    pub type CloseRange = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    pub type CloseFrom = unsafe extern "C" fn(c_int);
}

macro_rules! calls {
    ($($name:ident: $ty:ty;)*) => {
        /// Addresses of the calls, 0 until they were looked up.
        pub struct Real { $($name: AtomicUsize,)* }

        /// The process's.
        pub static REAL: Real = Real { $($name: AtomicUsize::new(0),)* };

        impl Real {
            /// Looks all of them up.
            pub fn load(&self) {
                $(let _ = find(&self.$name, name(concat!(stringify!($name), "\0")));)*
            }

            $(
                #[inline]
                pub fn $name(&self) -> $ty {
                    let at = match self.$name.load(Ordering::Relaxed) {
                        0 => must(find(&self.$name, name(concat!(stringify!($name), "\0")))),
                        at => at,
                    };
                    // SAFETY: not 0, and the address of the C library's function of this name, or of another
                    // interposer's, which has the same type.
                    unsafe { core::mem::transmute::<usize, $ty>(at) }
                }
            )*
        }
    };
}

calls! {
    open: next::Open;
    open64: next::Open;
    __open_2: next::CheckedOpen;
    __open64_2: next::CheckedOpen;
    openat: next::OpenAt;
    openat64: next::OpenAt;
    fstat: next::Fstat;
    fstat64: next::Fstat;
    __fxstat: next::OldFstat;
    __fxstat64: next::OldFstat;
    stat: next::Stat;
    stat64: next::Stat;
    __xstat: next::OldStat;
    __xstat64: next::OldStat;
    access: next::Access;
    write: next::Write;
    close: next::Close;
    dup2: next::Dup2;
    dup3: next::Dup3;
    close_range: next::CloseRange;
    closefrom: next::CloseFrom;
}

fn name(text: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(text.as_bytes()).unwrap_or_default()
}

#[cold]
fn find(slot: &AtomicUsize, name: &CStr) -> usize {
    // SAFETY: a C string; the name is looked up behind this library.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    slot.store(at, Ordering::Relaxed);
    at
}

/// A program that calls what its C library does not have would not have been started without this library either.
#[cold]
fn must(at: usize) -> usize {
    if at == 0 {
        // SAFETY: ends the process.
        unsafe { libc::abort() }
    }
    at
}
