//! `libgdrcore_preload.so`: passes the calls of programs on files of RDMA devices to the libibverbs
//! drop-in.
//!
//! librdmacm reaches the kernel by four calls of the C library: it opens the device file
//! `/dev/infiniband/rdma_cm`, checks that it is a character device, writes commands into it and
//! closes it. Other programs read the names of devices below `/dev/infiniband` and
//! `/sys/class/infiniband`. Only a library before the C library in the order of symbol lookup can
//! intercept these calls. A NEEDED libibverbs comes after the C library. So this library exists,
//! for `LD_PRELOAD`, which `gdrcore-run` sets.
//!
//! The drop-in knows the names. This library only records which descriptors are such files. It
//! passes on all other calls after a few comparisons.
//!
//! It also passes writes to the `cmd_fd` of a context to the drop-in, after the kernel has refused
//! them (`cmd_fd_writes`).
//!
//! `drop_in` finds the drop-in's tables; `path_route` decides about a path; `names`,
//! `descriptor_calls`, `commands`, `folders` and `search` are the intercepted calls of the C
//! library; `real` are the calls behind them.
//!
//! The drop-in is looked up at its first use. A program that uses librdmacm has it already; a
//! process without any libibverbs loads it. If the process has another libibverbs, the call goes to
//! the kernel.
//!
//! Other interposers (librspreload, a sanitizer) work in either order: each calls the next.

mod cmd_fd_writes;
mod commands;
mod descriptor_calls;
mod drop_in;
mod files;
mod folders;
mod names;
mod path_route;
mod real;
mod search;

use core::ffi::c_int;
use real::REAL;

/// Sets errno and returns the result of a failed call.
fn fail(errno: c_int) -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The real calls are looked up when the library is loaded, because a later first call may come
/// from a signal handler.
extern "C" fn at_load() {
    REAL.load();
}

#[used]
#[link_section = ".init_array"]
static AT_LOAD: extern "C" fn() = at_load;
