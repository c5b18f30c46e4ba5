//! System calls that would end the process by a signal: writes to a pipe without reader (SIGPIPE),
//! and files longer than RLIMIT_FSIZE allows (SIGXFSZ), memory files included. A library's call
//! must not end the program.

use crate::sys::errno;

/// The signals that a system call itself raises.
const RAISED: [i32; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: zeroes are a valid set, which lives through the calls.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&mut set);
        signals.iter().for_each(|&s| {
            libc::sigaddset(&mut set, s);
        });
        set
    }
}

/// Makes system calls. A signal that they raise for this thread is dropped, and their error reports
/// the failure. `errno` stays as `calls` left it. Cost: three system calls more.
pub fn without_signals<T>(calls: impl FnOnce() -> T) -> T {
    let (raised, mut before, mut pending) = (set_of(&RAISED), set_of(&[]), set_of(&[]));
    // SAFETY: whole sets, which live through the calls; none fails for them.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &raised, &mut before);
        libc::sigpending(&mut pending);
    }
    let result = calls();
    let code = errno();
    for (signal, of) in RAISED.into_iter().zip([libc::EPIPE, libc::EFBIG]) {
        // A signal that was pending before is the program's.
        // SAFETY: as above; no wait, and nothing is asked about the signal. The last is the
        // thread's own variable.
        unsafe {
            if code == of && libc::sigismember(&pending, signal) == 0 {
                let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                libc::sigtimedwait(&set_of(&[signal]), core::ptr::null_mut(), &none);
            }
        }
    }
    // SAFETY: the mask that this thread had; the last is the thread's own variable.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut());
        *libc::__errno_location() = code;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Fd;

    /// A pipe whose reader is gone.
    fn broken() -> Fd {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        let [reader, writer] = ends.map(|fd| Fd::from_call(fd).unwrap());
        drop(reader);
        writer
    }

    fn write(to: &Fd) -> isize {
        // SAFETY: one byte of a constant.
        unsafe { libc::write(to.raw(), b"x".as_ptr().cast(), 1) }
    }

    fn is_pending(signal: i32) -> bool {
        let mut pending = set_of(&[]);
        // SAFETY: a whole set.
        unsafe {
            libc::sigpending(&mut pending);
            libc::sigismember(&pending, signal) == 1
        }
    }

    #[test]
    fn a_signal_of_the_call_is_dropped_and_one_of_the_program_is_kept() {
        // The tests' runtime ignores SIGPIPE, so the signal would not be pending at all.
        std::thread::spawn(|| {
            // SAFETY: whole sets; this thread ends with its mask. Other tests of this process block
            // no signal and raise none of these.
            unsafe {
                let blocked = set_of(&[libc::SIGPIPE]);
                libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, core::ptr::null_mut());
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            }
            let pipe = broken();
            assert_eq!((without_signals(|| write(&pipe)), errno()), (-1, libc::EPIPE));
            assert!(!is_pending(libc::SIGPIPE), "the call's signal is still there");
            assert_eq!(write(&pipe), -1);
            assert!(is_pending(libc::SIGPIPE));
            assert_eq!((without_signals(|| write(&pipe)), errno()), (-1, libc::EPIPE));
            assert!(is_pending(libc::SIGPIPE), "the program's signal is gone");
            // SAFETY: as above.
            unsafe {
                let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                let set = set_of(&[libc::SIGPIPE]);
                libc::sigtimedwait(&set, core::ptr::null_mut(), &none);
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            assert_eq!(without_signals(|| 7), 7);
        })
        .join()
        .unwrap();
    }
}
