//! Names in the file system that the kernel would make for the devices, and that programs look at beside libibverbs.
//!
//! UCX uses a device only where `/dev/infiniband/uverbs<n>` is there, and learns from sysfs that a GID is of RoCE v2. No user
//! can make these files. So `libgdrcore_preload.so` asks here before it lets such a name go on to the kernel.

use crate::adapter::{self, Adapter};
use core::ffi::{c_char, c_int, CStr};
use gdrcore_core::{Error, Result};

/// The connection manager's file.
const MANAGER: &str = "/dev/infiniband/rdma_cm";
/// What devices' names begin with.
const NODE: &str = "/dev/infiniband/";
/// Where sysfs has RDMA devices.
const SYSFS: &str = "/sys/class/infiniband/";

/// What a name is.
#[derive(Debug, PartialEq)]
enum Kind {
    /// A character device.
    Node,
    /// A file of sysfs: what it holds.
    Text(String),
}

/// What a name is, for a program that has these devices. `None`: nothing of ours.
fn look(path: &str, devices: &[&Adapter]) -> Option<Kind> {
    if path == MANAGER {
        return Some(Kind::Node);
    }
    if let Some(name) = path.strip_prefix(NODE) {
        return devices.iter().any(|a| name == a.node()).then_some(Kind::Node);
    }
    let (name, rest) = path.strip_prefix(SYSFS)?.split_once('/')?;
    let device = devices.iter().find(|a| a.name() == name)?;
    Some(Kind::Text(text(device, rest)? + "\n"))
}

/// The sysfs files of a device, below its own folder.
fn text(device: &Adapter, rest: &str) -> Option<String> {
    // Groups of 16 bits, as the kernel writes GUIDs and GIDs.
    let groups = |bytes: &[u8]| -> String {
        let all: Vec<String> = bytes.chunks(2).map(|b| format!("{:02x}{:02x}", b[0], b[1])).collect();
        all.join(":")
    };
    Some(match rest {
        "node_type" => "1: CA".into(),
        "node_guid" | "sys_image_guid" => groups(&device.guid().to_be_bytes()),
        "fw_ver" => env!("CARGO_PKG_VERSION").into(),
        "ports/1/state" => "4: ACTIVE".into(),
        "ports/1/phys_state" => "5: LinkUp".into(),
        "ports/1/link_layer" => "Ethernet".into(),
        "ports/1/pkeys/0" => "0xffff".into(),
        "ports/1/gids/0" => groups(&device.endpoint.ip),
        "ports/1/gid_attrs/types/0" => "RoCE v2".into(),
        "ports/1/gid_attrs/ndevs/0" => device.interface()?,
        _ => return None,
    })
}

/// What a file of sysfs holds, if it is one of a device of the list.
pub fn read(path: &str) -> Option<String> {
    // Most names are not: they cost no look at the system's addresses.
    if !path.starts_with(SYSFS) {
        return None;
    }
    match look(path, &adapter::present())? {
        Kind::Text(text) => Some(text),
        Kind::Node => None,
    }
}

/// What the preloaded library calls; its layout is said there too.
#[repr(C)]
pub struct Table {
    kind: unsafe extern "C" fn(*const c_char) -> c_int,
    open: unsafe extern "C" fn(*const c_char, c_int) -> c_int,
}

/// The table of version 1.
#[cfg_attr(not(test), export_name = "gdrc_names_1")]
pub static NAMES_1: Table = Table { kind, open };

/// 0: nothing of ours; 1: a character device; 2: a file that can be read.
///
/// # Safety
/// A C string.
unsafe extern "C" fn kind(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy();
    match look(&path, &adapter::present()) {
        None => 0,
        Some(Kind::Node) => 1,
        Some(Kind::Text(_)) => 2,
    }
}

/// Opens a file of sysfs, by the flags of open(2): a descriptor, or a negative errno.
///
/// # Safety
/// A C string.
unsafe extern "C" fn open(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy();
    let opened = match read(&path) {
        None => Err(Error::Os(libc::ENOENT)),
        Some(_) if flags & libc::O_ACCMODE != libc::O_RDONLY => Err(Error::Os(libc::EACCES)),
        Some(text) => file_of(&text, flags & libc::O_CLOEXEC != 0),
    };
    opened.unwrap_or_else(|e| -e.errno())
}

/// A descriptor to read a text from.
fn file_of(text: &str, cloexec: bool) -> Result<c_int> {
    let flags = if cloexec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: a NUL-terminated name.
    let fd = unsafe { libc::memfd_create(c"gdrcore-sysfs".as_ptr(), flags) };
    if fd < 0 {
        return Err(crate::result::last_error());
    }
    // SAFETY: the text's bytes, and a descriptor of our own. The offset of the descriptor stays at the beginning.
    let n = unsafe { libc::pwrite(fd, text.as_ptr().cast(), text.len(), 0) };
    if n != text.len() as isize {
        let e = crate::result::last_error();
        // SAFETY: ours, and nobody has seen it.
        unsafe { libc::close(fd) };
        return Err(e);
    }
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_net::addr::{Endpoint, ROCE_PORT};

    #[test]
    fn names_are_those_of_the_list_and_no_others() {
        let at = |index| Adapter::new(index, Endpoint::v4([10, 1, 2, 3], ROCE_PORT), 1);
        let (zero, twelve) = (at(0), at(12));
        let list = [&zero, &twelve];
        for path in [MANAGER, "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs12"] {
            assert_eq!(look(path, &list), Some(Kind::Node), "{path}");
        }
        let sysfs = |rest: &str| look(&format!("/sys/class/infiniband/gdrc12/{rest}"), &list);
        let text = |s: &str| Some(Kind::Text(s.into()));
        assert_eq!(sysfs("ports/1/gid_attrs/types/0"), text("RoCE v2\n"));
        assert_eq!(sysfs("ports/1/gids/0"), text("0000:0000:0000:0000:0000:ffff:0a01:0203\n"));
        assert_eq!(sysfs("ports/1/gid_attrs/ndevs/0"), text("lo\n"));
        for path in [
            "/dev/infiniband/uverbs1",
            "/dev/infiniband/uverbs00",
            "/dev/infiniband/umad0",
            "/dev/infiniband/",
            "/sys/class/infiniband/gdrc1/ports/1/gids/0",
            "/sys/class/infiniband/mlx5_0/ports/1/gids/0",
            "/sys/class/infiniband/gdrc0",
            "/sys/class/infiniband/gdrc0/ports/2/gids/0",
            "/sys/class/infiniband/gdrc0/ports/1/gid_attrs/types/1",
            "/sys/class/net/lo",
            "",
        ] {
            assert_eq!(look(path, &list), None, "{path}");
        }
    }
}
