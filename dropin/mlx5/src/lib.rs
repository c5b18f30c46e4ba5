//! `libmlx5.so.1`: mlx5dv, the interface of NVIDIA's NICs, for programs on the libibverbs drop-in.
//!
//! Programs that use dynamically connected transport (DC) are linked to this library beside
//! libibverbs. What they need is in the drop-in (its module `mlx5`), which exports a table of
//! functions as it does for librdmacm. This library has all names and versions of Debian's
//! releases, passes the calls of the table on, and refuses all others, because the device has no
//! such feature: a program that is linked to any name cannot start without it.
//!
//! The table is looked up by name at each call, and this library is linked to nothing of ours. So a
//! program that has another libibverbs starts too, and each call is refused as for a device of
//! another vendor.

use core::ffi::{c_int, c_void};

/// The functions of the table, in its order, with the function that answers where there is no
/// drop-in. Each is `mlx5dv_` and its name.
macro_rules! functions {
    ($($name:ident($($arg:ident),*) -> $result:ty, else $refused:ident;)*) => {
        /// The table `gdrc_mlx5_1`, of the same layout as in the drop-in. Objects are those of
        /// mlx5dv and libibverbs.
        #[repr(C)]
        struct Table {
            $($name: unsafe extern "C" fn($($arg: *mut c_void),*) -> $result,)*
        }

        $(unsafe extern "C" fn $name($($arg: *mut c_void),*) -> $result {
            match table() {
                // SAFETY: the program's pointers, passed on.
                Some(t) => unsafe { (t.$name)($($arg),*) },
                // SAFETY: takes nothing.
                None => unsafe { $refused() },
            }
        })*
    };
}

functions! {
    is_supported(device) -> bool, else no;
    open_device(device, attr) -> *mut c_void, else none;
    query_device(context, attributes) -> c_int, else refuse;
    create_qp(context, init, more) -> *mut c_void, else none;
    create_cq(context, init, more) -> *mut c_void, else none;
    qp_ex_from_ibv_qp_ex(qp) -> *mut c_void, else none;
}

/// The drop-in's table; `None`: the process has another libibverbs.
fn table() -> Option<&'static Table> {
    let name = c"gdrc_mlx5_1".as_ptr();
    // SAFETY: constant names. NOLOAD loads nothing; it finds the drop-in where a program has loaded
    // it for itself alone. The reference that it adds keeps the drop-in, as this library's users
    // expect.
    let found = unsafe {
        let preloaded = libc::dlsym(libc::RTLD_DEFAULT, name);
        let library = match preloaded.is_null() {
            true => libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD),
            false => core::ptr::null_mut(),
        };
        if library.is_null() {
            preloaded
        } else {
            libc::dlsym(library, name)
        }
    };
    // SAFETY: null, or a table of this layout, which its name stands for and which never changes.
    unsafe { found.cast::<Table>().as_ref() }
}

fn set_errno(errno: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Of a function that returns a bool.
unsafe extern "C" fn no() -> bool {
    false
}

/// Of a function that returns an errno.
unsafe extern "C" fn refuse() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Of a function that returns a pointer.
unsafe extern "C" fn none() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// Of a function that returns −1 and sets errno.
unsafe extern "C" fn minus() -> isize {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// Of a function that returns a number, or a negative errno.
unsafe extern "C" fn negative() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -libc::EOPNOTSUPP
}

/// Of a function without a result.
unsafe extern "C" fn nothing() {}

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
