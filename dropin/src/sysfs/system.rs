//! Reads the kernel's own sysfs by system calls: the C library's functions would lead to the
//! preloaded library, and from there back here.

use super::walk::{canonical, Kernel};
use core::ffi::{c_char, c_int};
use std::ffi::CString;
use std::sync::OnceLock;

/// Longest content: numbers and lists of processors.
const LINE_MAX: usize = 4096;
/// Most `uverbs` or `umad` files of hardware.
const FILES_MAX: u32 = 256;

/// This machine.
pub struct System;

impl Kernel for System {
    fn read_link(&self, path: &str) -> Option<String> {
        let path = CString::new(path).ok()?;
        let mut target = [0u8; LINE_MAX];
        // SAFETY: a terminated string, and a buffer of the length that is given.
        let n = unsafe {
            libc::syscall(
                libc::SYS_readlinkat,
                libc::AT_FDCWD,
                path.as_ptr(),
                target.as_mut_ptr().cast::<c_char>(),
                target.len(),
            )
        };
        let n = usize::try_from(n).ok().filter(|n| *n < target.len())?;
        Some(String::from_utf8_lossy(&target[..n]).into_owned())
    }
}

impl System {
    /// Whether the kernel has a name.
    pub fn has(&self, path: &str) -> bool {
        let Ok(path) = CString::new(path) else { return false };
        // SAFETY: a terminated string.
        unsafe {
            libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0
        }
    }

    /// The contents of a small file, without the last newline.
    pub fn line(&self, path: &str) -> Option<String> {
        let path = CString::new(path).ok()?;
        let mut text = [0u8; LINE_MAX];
        // SAFETY: a terminated string; the descriptor is closed, and the buffer has the length that
        // is given.
        let n = unsafe {
            let flags = libc::O_RDONLY | libc::O_CLOEXEC;
            let fd =
                libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) as c_int;
            if fd < 0 {
                return None;
            }
            let n = libc::syscall(libc::SYS_read, fd, text.as_mut_ptr(), text.len());
            libc::syscall(libc::SYS_close, fd);
            n
        };
        let text = text.get(..usize::try_from(n).ok()?)?;
        Some(String::from_utf8_lossy(text).trim_end().to_string())
    }

    /// The list of online processors.
    pub fn cpus(&self) -> String {
        self.line("/sys/devices/system/cpu/online").unwrap_or_default()
    }

    /// The folder of a network interface, and that of its hardware.
    pub fn interface(&self, name: &str) -> (Option<String>, Option<String>) {
        let there = |path: String| self.has(&path).then(|| canonical(self, &path)).flatten();
        let Some(folder) = there(format!("/sys/class/net/{name}")) else { return (None, None) };
        let hardware = there(format!("{folder}/device"));
        (Some(folder), hardware)
    }

    /// The NUMA node of a hardware folder: that of the nearest folder above that names one.
    pub fn numa_node(&self, hardware: &str) -> i32 {
        let above = std::path::Path::new(hardware)
            .ancestors()
            .take_while(|a| a.starts_with("/sys/devices"));
        let nodes =
            above.filter_map(|a| self.line(&format!("{}/numa_node", a.display()))?.parse().ok());
        nodes.into_iter().next().unwrap_or(-1)
    }
}

/// The number of our first `uverbs` file: those of hardware come first.
pub fn first_uverbs() -> u32 {
    static FIRST: OnceLock<u32> = OnceLock::new();
    *FIRST.get_or_init(|| first_free(super::tree::CLASS_VERBS, "uverbs"))
}

/// The same for `umad` files.
pub fn first_umad() -> u32 {
    static FIRST: OnceLock<u32> = OnceLock::new();
    *FIRST.get_or_init(|| first_free(super::tree::CLASS_MAD, "umad"))
}

/// The number after the highest of the kernel's names in a folder.
fn first_free(folder: &str, name: &str) -> u32 {
    let taken = |n: &u32| System.has(&format!("{folder}/{name}{n}"));
    match System.has(folder) {
        true => (0..FILES_MAX).rev().find(taken).map_or(0, |n| n + 1),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_sysfs_is_read() {
        assert_eq!(System.read_link("/proc/self").unwrap(), std::process::id().to_string());
        assert_eq!(System.read_link("/proc"), None);
        assert_eq!(System.read_link("/nothing\0"), None);
        assert!(System.has("/proc/self") && !System.has("/proc/nothing"));
        assert!(System.line("/proc/self/status").unwrap().starts_with("Name:"));
        assert_eq!(System.line("/proc/nothing"), None);
        assert_eq!(System.line("/proc"), None);
        assert_eq!(System.numa_node("/nothing"), -1);
        assert_eq!(System.interface("no such interface"), (None, None));
    }
}
