//! The processes of a program that the launcher runs again and again: all of them are to end with
//! it, whatever groups and sessions they have made.

use gdrcore_run::proc_stat::Stat;
use std::fs;
use std::time::{Duration, Instant};

/// How often those that were killed are looked at, and how long one has to end: in the kernel, a
/// process may be kept from it.
const LOOK: Duration = Duration::from_millis(2);
const WAIT: Duration = Duration::from_secs(10);

/// Processes by their numbers.
pub struct Children(Vec<i32>);

impl Children {
    /// From here on this process gets its descendants as children when their parents end; returns
    /// the children that it has.
    pub fn adopt() -> Children {
        // SAFETY: no pointers.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        Children(children())
    }
}

/// The children of this process.
fn children() -> Vec<i32> {
    let own = std::process::id();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let is_child =
        |pid: &i32| Stat::read(&format!("/proc/{pid}/stat")).and_then(|s| s.parent()) == Some(own);
    numbers.filter(is_child).collect()
}

/// Ends all children but those of before, and theirs, which are then children of this process.
/// Those that have the rights of another user stay.
pub fn end_children(before: &Children) {
    let end = Instant::now() + WAIT;
    loop {
        let mut left = children();
        left.retain(|pid| !before.0.contains(pid) && kill(*pid));
        if left.is_empty() || Instant::now() > end {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// Kills a child, and takes its end if it has ended. False: it may not.
fn kill(pid: i32) -> bool {
    // SAFETY: no pointers but null, which says that the status is not wanted. The number is that of
    // a child that has not been waited for, so it is of no other process.
    unsafe {
        let may = libc::kill(pid, libc::SIGKILL) == 0;
        libc::waitpid(pid, core::ptr::null_mut(), libc::WNOHANG);
        may
    }
}
