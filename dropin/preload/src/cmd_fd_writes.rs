//! Passes commands that a program writes to a context's `cmd_fd` to the drop-in. The kernel refuses
//! such a write, also to copies of the descriptor, and only then this calls the drop-in. So no list
//! of descriptors is needed, and a write that the kernel accepts costs nothing.

use crate::fail;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// The drop-in's function for a write(2) to a descriptor that is not open for writing. Returns the
/// length, or a negative errno.
type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;

/// The function's address; 0: this process has opened no context.
static WRITE: AtomicUsize = AtomicUsize::new(0);

/// Registers the drop-in's function, which calls this when it opens a context.
///
/// # Safety
/// `write` has the declared type.
#[no_mangle]
pub unsafe extern "C" fn gdrc_commands_1(write: Write) {
    // SAFETY: zeroes are a valid Dl_info, which lives through the call; the name in it lives as
    // long as the library that it names. That one is loaded, and stays so from here on.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(write as *const c_void, &mut info) == 0
            || libc::dlopen(
                info.dli_fname,
                libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
            )
            .is_null()
        {
            return;
        }
    }
    WRITE.store(write as usize, Ordering::Release);
}

/// Handles a write for which the kernel has returned `n`, an error.
///
/// # Safety
/// The program's own arguments.
#[cold]
pub unsafe fn finish_failed_write(n: isize, fd: c_int, buf: *const c_void, len: usize) -> isize {
    let at = WRITE.load(Ordering::Acquire);
    // SAFETY: the thread's own errno.
    if at == 0 || unsafe { *libc::__errno_location() } != libc::EBADF {
        return n;
    }
    // SAFETY: not 0, so an address of this type, in a library that stays; the caller's promise.
    let done = unsafe { core::mem::transmute::<usize, Write>(at)(fd, buf, len) };
    if done < 0 {
        return fail(-done as c_int) as isize;
    }
    done
}
