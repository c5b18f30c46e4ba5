//! ioctl(2), by which libibumad registers agents with a device's file, which is a socket here. The
//! kernel refuses the call, and only then this calls the drop-in, so a call that the kernel accepts
//! costs nothing.

use crate::drop_in::UMAD;
use crate::fail;
use crate::real::REAL;
use core::ffi::{c_int, c_ulong};

/// The type of all commands to libibumad's file, in bits 8 to 15.
const OF_UMAD: c_ulong = 0x1b;

/// ioctl(2).
///
/// # Safety
/// As ioctl(2). (Its third argument is a number or a pointer, and both are passed alike.)
#[no_mangle]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the program's own arguments.
    let done = unsafe { (REAL.ioctl())(fd, request, argument) };
    if done != -1 || request >> 8 & 0xff != OF_UMAD {
        return done;
    }
    // SAFETY: as above.
    unsafe { refused(fd, request, argument) }
}

/// # Safety
/// The program's own arguments.
#[cold]
unsafe fn refused(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the thread's own errno.
    let ours = unsafe { *libc::__errno_location() } == libc::ENOTTY;
    match UMAD.get().filter(|_| ours) {
        None => -1,
        // SAFETY: the table's function, and the caller's promise.
        Some(t) => match unsafe { (t.ioctl)(fd, request, argument as u64) } {
            0 => 0,
            errno => fail(-errno),
        },
    }
}
