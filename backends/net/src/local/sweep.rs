//! Removes the files that killed processes have left in the user's directory, of any address and
//! network namespace. Runs when a device is opened.

use super::receipt_file::may_be_read;
use super::socket_dir::{entries, open_dir, SocketDir};
use super::{empty, lock};
use core::ffi::CStr;
use std::os::fd::RawFd;

/// The budget of a sweep. A holder that it checks costs two system calls, [`CHECKED`]. One that is
/// kept for its receipts costs [`KEPT`]: many of them do not hide others.
const BUDGET: usize = 4096;
const CHECKED: usize = 8;
const KEPT: usize = 1;

/// Removes the holder directories that no process has locked and whose receipts nobody will read,
/// and then the directories that are empty.
///
/// `now`: [`wall_ns`](crate::clock::wall_ns).
pub(crate) fn sweep(socket_dir: &SocketDir, now: u64) {
    let Ok(path) = socket_dir.above() else { return };
    let Ok(user) = open_dir(libc::AT_FDCWD, path.as_c_str()) else { return };
    let mut left = BUDGET;
    below(user.raw(), |network_name, network| {
        below(network, |address_name, address| {
            sweep_address(address, now, &mut left);
            remove(network, address_name);
            left > 0
        });
        remove(user.raw(), network_name);
        left > 0
    });
}

/// The part of a sweep in the directory of an address.
pub(super) fn sweep_address(address: RawFd, now: u64, left: &mut usize) {
    below(address, |holder, dir| {
        // A free lock has no living owner. A process that takes this lock next waits until the
        // sweep has released it.
        let is_free = lock(dir) == Ok(true);
        let kept = is_free && may_be_read(dir, now);
        if is_free && !kept {
            empty(dir);
            remove(address, holder);
        }
        *left = left.saturating_sub(if kept { KEPT } else { CHECKED });
        *left > 0
    });
}

/// Opens each subdirectory and passes its name and descriptor to `each`, until `each` returns
/// false.
fn below(dir: RawFd, mut each: impl FnMut(&CStr, RawFd) -> bool) {
    let mut go_on = true;
    entries(dir, |name| {
        if go_on {
            if let Ok(entry) = open_dir(dir, name) {
                go_on = each(name, entry.raw());
            }
        }
    });
}

/// Removes a directory that is empty.
fn remove(dir: RawFd, name: &CStr) {
    // SAFETY: a C string; no other pointers.
    unsafe { libc::unlinkat(dir, name.as_ptr(), libc::AT_REMOVEDIR) };
}
