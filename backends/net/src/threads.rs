//! Threads of this library. Their stacks are large enough, however much the program's libraries
//! take of them, and they leave the program's signals to the program's threads.

use gdrcore_core::error::{Error, Result};
use std::thread::Builder;

/// The CPU on which the calling thread runs; `u32::MAX` if the system does not tell.
#[inline]
pub fn own_cpu() -> u32 {
    // SAFETY: no precondition.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Bytes of stack of [`with_stack`].
const STACK: usize = 512 << 10;

/// While it lives, new threads start with the signal mask of a helper, which leaves the program's
/// signals to the program's threads. Fault signals stay unblocked, because vanished memory raises
/// them.
pub struct HelperSignals {
    before: libc::sigset_t,
}

impl HelperSignals {
    /// Sets the mask; dropping restores the former one.
    pub fn take() -> Self {
        // SAFETY: zeroes are valid for both sets, which live through the calls; the calls do not
        // fail for them.
        unsafe {
            let mut mask: libc::sigset_t = core::mem::zeroed();
            let mut before: libc::sigset_t = core::mem::zeroed();
            libc::sigfillset(&mut mask);
            for fault in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGILL,
                libc::SIGFPE,
                libc::SIGTRAP,
                libc::SIGSYS,
            ] {
                libc::sigdelset(&mut mask, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &mask, &mut before);
            HelperSignals { before }
        }
    }
}

impl Drop for HelperSignals {
    fn drop(&mut self) {
        // SAFETY: a whole set that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut()) };
    }
}

/// A thread that has `stack` bytes of stack for itself.
///
/// glibc puts the thread-local variables of the program and of its libraries onto each thread's
/// stack: hundreds of kilobytes in some programs, megabytes under sanitizers. So the stack is
/// larger by these.
pub fn thread(name: &str, stack: usize) -> Builder {
    Builder::new().name(name.into()).stack_size(stack + taken_by_libc())
}

/// Bytes of a new thread's stack that the C library takes for itself, and for thread-local
/// variables.
pub(crate) fn taken_by_libc() -> usize {
    // SAFETY: a C string; the handle is one that dlsym(3) defines.
    let f = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    if f.is_null() {
        // Not glibc: musl adds the room for thread-local variables to each stack by itself.
        return 0;
    }
    // SAFETY: glibc's function of this name takes attributes and returns the least size of a stack;
    // the attributes are filled by `init` before they are used.
    unsafe {
        let least: unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize =
            core::mem::transmute(f);
        let mut attr: libc::pthread_attr_t = core::mem::zeroed();
        if libc::pthread_attr_init(&mut attr) != 0 {
            return 0;
        }
        let bytes = least(&attr);
        libc::pthread_attr_destroy(&mut attr);
        bytes
    }
}

/// The error of a [`thread`] that could not be made.
pub fn no_thread(e: std::io::Error) -> Error {
    let e = Error::Os(e.raw_os_error().unwrap_or(libc::EAGAIN));
    let (words, limits) = ("no thread can be made", "`ulimit -u` and `-v`, a cgroup's pids.max");
    gdrcore_core::reason::refused(e, format_args!("{words}: see {limits}"))
}

/// Runs `work` on a thread with a large stack, because a program's threads may have small ones:
/// those of dapltest have 64 KB. The thread gets no signals of the program.
///
/// # Errors
/// Those of `work`; the system's: no thread.
pub fn with_stack<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let masked = HelperSignals::take();
    std::thread::scope(|s| {
        let started = thread(name, STACK).spawn_scoped(s, work);
        drop(masked);
        let started = started.map_err(no_thread)?;
        started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of this thread's stack below a local variable.
    fn left() -> usize {
        // SAFETY: attributes of the calling thread, which live through the calls.
        unsafe {
            let mut attr: libc::pthread_attr_t = core::mem::zeroed();
            assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &mut attr), 0);
            let (mut base, mut size) = (core::ptr::null_mut(), 0);
            libc::pthread_attr_getstack(&attr, &mut base, &mut size);
            libc::pthread_attr_destroy(&mut attr);
            (&raw const base).addr() - base.addr()
        }
    }

    #[test]
    fn a_thread_has_its_stack_for_itself() {
        for size in [64 << 10, 256 << 10, 1 << 20] {
            let left = thread("test", size).spawn(left).unwrap().join().unwrap();
            assert!(left + (4 << 10) >= size, "{left} bytes of {size}");
        }
        let left = with_stack("test", || Ok(left())).unwrap();
        assert!(left + (4 << 10) >= STACK, "{left} bytes");
    }
}
