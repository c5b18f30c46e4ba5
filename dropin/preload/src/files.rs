//! The sets of descriptors that are the device file, or files and folders of the drop-in. Signal
//! handlers may read them: one load, no lock.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::{AtomicU64, Ordering};

/// Descriptors from this number on cannot be in a set, so the device file never gets one of them.
const MAX: usize = 1 << 16;
const WORDS: usize = MAX / 64;

/// A set of descriptors.
pub struct Files([AtomicU64; WORDS]);

/// The connection manager's device file.
pub static FILES: Files = Files([const { AtomicU64::new(0) }; WORDS]);
/// Files and folders of sysfs. A call that this library does not see may have closed a descriptor;
/// then the kernel's name of the descriptor's file differs.
pub static FOLDERS: Files = Files([const { AtomicU64::new(0) }; WORDS]);

impl Files {
    fn word(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    /// Whether it is in the set.
    #[inline]
    pub fn has(&self, fd: c_int) -> bool {
        self.word(fd).is_some_and(|(w, bit)| w.load(Ordering::Relaxed) & bit != 0)
    }

    /// Adds a descriptor; false: its number is too high.
    pub fn add(&self, fd: c_int) -> bool {
        self.word(fd).inspect(|(w, bit)| _ = w.fetch_or(*bit, Ordering::Relaxed)).is_some()
    }

    /// Removes a descriptor; false: it was not in the set.
    pub fn remove(&self, fd: c_int) -> bool {
        // Most descriptors are not in the set: do not write to shared memory for them.
        self.has(fd)
            && self.word(fd).is_some_and(|(w, bit)| w.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// Calls `f` for the set's descriptors from `first` to `last`.
    pub fn each(&self, first: c_uint, last: c_uint, f: impl Fn(c_int)) {
        for (at, word) in self.0.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let fd = (at * 64) as c_uint + bits.trailing_zeros();
                if (first..=last).contains(&fd) {
                    f(fd as c_int);
                }
                bits &= bits - 1;
            }
        }
    }
}

/// The number of the kernel's device file, if the kernel has one: librdmacm gets it by netlink and
/// compares. Otherwise any number.
pub fn device_number() -> libc::dev_t {
    const MISC: c_uint = 10;
    const SOME: c_uint = 255;
    let text = std::fs::read_to_string("/sys/class/misc/rdma_cm/dev").unwrap_or_default();
    let mut parts = text.trim().split(':').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => libc::makedev(major, minor),
        _ => libc::makedev(MISC, SOME),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_set_of_descriptors() {
        let set = Files([const { AtomicU64::new(0) }; WORDS]);
        for fd in [0, 63, 64, MAX as c_int - 1] {
            assert!(!set.has(fd) && set.add(fd) && set.has(fd));
        }
        for fd in [-1, c_int::MIN, MAX as c_int, c_int::MAX] {
            assert!(!set.add(fd) && !set.has(fd) && !set.remove(fd));
        }
        let seen = RefCell::new(Vec::new());
        set.each(1, 64, |fd| seen.borrow_mut().push(fd));
        assert_eq!(*seen.borrow(), [63, 64]);
        assert!(set.remove(63) && !set.remove(63) && !set.has(63) && set.has(64));
    }
}
