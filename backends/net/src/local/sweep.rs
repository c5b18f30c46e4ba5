//! Removes the files that killed processes have left in the user's directory, of any address and
//! network namespace. Runs when a device is opened.

use super::receipt_file::may_be_read;
use super::socket_dir::{entries, open_dir, SocketDir};
use super::{empty, lock};
use core::ffi::CStr;
use std::os::fd::RawFd;

/// Most holders that one sweep checks, with two system calls each.
const HOLDERS: usize = 512;

/// Removes the holder directories that no process has locked and whose receipts nobody will read,
/// and then the directories that are empty.
///
/// `now`: [`wall_ns`](crate::clock::wall_ns).
pub(crate) fn sweep(socket_dir: &SocketDir, now: u64) {
    let Ok(path) = socket_dir.above() else { return };
    let Ok(user) = open_dir(libc::AT_FDCWD, path.as_c_str()) else { return };
    let mut left = HOLDERS;
    below(user.raw(), |network_name, network| {
        below(network, |address_name, address| {
            below(address, |holder, dir| {
                // A free lock has no living owner. A process that takes this lock next waits until
                // the sweep has released it.
                if lock(dir) == Ok(true) && !may_be_read(dir, now) {
                    empty(dir);
                    remove(address, holder);
                }
                left = left.saturating_sub(1);
                left > 0
            });
            remove(network, address_name);
            left > 0
        });
        remove(user.raw(), network_name);
        left > 0
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
