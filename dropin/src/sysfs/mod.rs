//! The files that the kernel would make for the devices. Programs read them in addition to
//! libibverbs: UCX uses a device only if `/dev/infiniband/uverbs<n>` exists, Mooncake and NCCL
//! resolve the path of a device's folder in sysfs, scripts list `/sys/class/infiniband`. An
//! unprivileged user cannot make such files. So `libgdrcore_preload.so` asks this module about a
//! path before it passes a call to the kernel.
//!
//! The names are a map that is built for each query, not a file system. So a killed process leaves
//! nothing behind, no other user can replace a file, and a read returns the current state.
//!
//! `tree` has the names, `walk` resolves a path, `system` reads the kernel's sysfs.

pub mod system;
mod tree;
mod walk;

use crate::adapter::Adapter;
use crate::open_devices::{ask, present, STATE};
use core::ffi::{c_char, c_int, CStr};
use core::time::Duration;
use gdrcore_calls::preload::{kind, Names, PathInfo, PATH_MAX};
use gdrcore_core::counters::Counters;
use gdrcore_core::{Error, Result};
use gdrcore_net::signals::without_signals;
use gdrcore_net::status::counters_of_others;
use std::ffi::CString;
use system::System;
pub use tree::PORT_COUNTERS;
use tree::{Content, DeviceFacts, Interface, Node, Tree, FILES};
use walk::{resolve as find, Resolved};

/// The facts of a device that the tree shows.
fn facts(a: &Adapter) -> DeviceFacts {
    let interface = a.interface().map(|name| {
        let (folder, hardware) = System.interface(&name);
        let numa_node = hardware.as_deref().map_or(-1, |h| System.numa_node(h));
        Interface { name, folder, hardware, numa_node }
    });
    DeviceFacts {
        index: a.index,
        uverbs: a.uverbs(),
        umad: a.umad(),
        guid: a.guid(),
        gid: a.endpoint.ip,
        lid: a.lid,
        interface,
    }
}

fn tree() -> Tree {
    let devices: Vec<DeviceFacts> = present().into_iter().map(facts).collect();
    Tree::new(&devices, &System.cpus())
}

/// Whether the link of a device's port is up, and whether the machine still has its address.
pub fn port_state(device: u32) -> (bool, bool) {
    if let Some(Ok(now)) = ask(device, |hca| hca.device.query()) {
        return (now.is_up(), now.has_gid != 0);
    }
    let adapter = STATE.lock().adapters.iter().find(|a| a.index == device).copied();
    adapter.and_then(|a| a.link()).map_or((true, true), |link| (link.is_up, link.has_address))
}

/// The current contents of a file; `None`: it cannot be read.
fn text(content: &Content) -> Option<String> {
    match content {
        Content::Text(text) => Some(text.clone()),
        Content::Unreadable => None,
        Content::Port { device, file } => {
            let (is_up, has_gid) = port_state(*device);
            file.text(is_up, has_gid)
        }
        Content::Counter { device, name, unit } => {
            let mut counters = counters_of(*device);
            // Without the lock: others answer in their own time.
            let at = STATE.lock().adapters.iter().find(|a| a.index == *device).map(|a| a.endpoint);
            at.inspect(|at| counters.add(&counters_of_others(at, ANSWERS)));
            Some(format!("{}\n", value_of(&counters, name) / unit))
        }
    }
}

/// How long the other processes of an address may take to tell their counters.
const ANSWERS: Duration = Duration::from_millis(100);

/// The counters of a device in this process; 0 for one that it has not opened.
fn counters_of(device: u32) -> Counters {
    ask(device, |hca| hca.device.counters().unwrap_or_default()).unwrap_or_default()
}

fn value_of(counters: &Counters, name: &str) -> u64 {
    let at = Counters::NAMES.iter().position(|n| *n == name);
    at.and_then(|i| counters.values().get(i).copied()).unwrap_or_default()
}

/// The values of [`PORT_COUNTERS`], each in its unit.
pub fn counters_of_port(device: u32) -> impl Iterator<Item = u64> {
    let counters = counters_of(device);
    PORT_COUNTERS.iter().map(move |c| value_of(&counters, c.name) / c.unit)
}

/// The contents of a file, if the path leads to one of ours.
pub fn read(path: &str) -> Option<String> {
    // Most paths are elsewhere: return before the system's addresses are listed.
    if !path.starts_with("/sys/") {
        return None;
    }
    match find(&tree(), &System, path, true) {
        Ok(Resolved::Ours(_, Node::File(content))) => text(&content),
        _ => None,
    }
}

fn kind_of(node: &Node) -> c_int {
    match node {
        Node::Device { .. } => kind::DEVICE,
        Node::File(_) => kind::FILE,
        Node::Folder { .. } => kind::FOLDER,
        Node::Link(_) => kind::LINK,
    }
}

/// The table of version 2.
#[cfg_attr(not(test), export_name = "gdrc_names_2")]
pub static NAMES_2: Names = Names { look, list, open };

/// FNV-1a.
fn inode(path: &str) -> u64 {
    let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    path.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

/// Copies a string and its NUL; false: it is too long.
fn put(to: &mut [c_char; PATH_MAX], text: &str) -> bool {
    if text.len() >= PATH_MAX {
        return false;
    }
    for (to, from) in to.iter_mut().zip(text.bytes().chain([0])) {
        *to = from as c_char;
    }
    true
}

/// Looks up an absolute path. Returns 0 for no name of ours, a negative errno, or the kind of the
/// name, with further attributes in `seen`. With `follow`, a link at the end is followed.
///
/// # Safety
/// A C string, and room for a [`PathInfo`].
unsafe extern "C" fn look(path: *const c_char, follow: c_int, seen: *mut PathInfo) -> c_int {
    // SAFETY: the caller's promise. All fields are integers, written below if they have a meaning.
    let (path, seen) = unsafe { (CStr::from_ptr(path), &mut *seen) };
    // Names of ours are ASCII.
    let Ok(path) = path.to_str() else { return 0 };
    (seen.merged, seen.major, seen.minor) = (0, 0, 0);
    match find(&tree(), &System, path, follow != 0) {
        Err(errno) => -errno,
        Ok(Resolved::Nothing) => 0,
        Ok(Resolved::Moved(to)) if put(&mut seen.path, &to) => kind::MOVED,
        Ok(Resolved::Ours(at, node)) if put(&mut seen.path, &at) => {
            seen.inode = inode(&at);
            match &node {
                Node::Folder { merged } => seen.merged = u32::from(*merged),
                Node::Device { major, minor } => (seen.major, seen.minor) = (*major, *minor),
                Node::Link(target) => _ = put(&mut seen.target, target),
                Node::File(_) => {}
            }
            kind_of(&node)
        }
        Ok(_) => -libc::ENAMETOOLONG,
    }
}

/// The names in a folder of ours, by its canonical path. Each has eight bytes of its inode, one of
/// its kind, the name, and a zero. Returns the size of all, and writes them only if there is room
/// for all.
///
/// # Safety
/// A C string, and `room` writable bytes.
unsafe extern "C" fn list(path: *const c_char, to: *mut u8, room: usize) -> isize {
    // SAFETY: the caller's promise.
    let Ok(path) = (unsafe { CStr::from_ptr(path) }).to_str() else {
        return -(libc::ENOENT as isize);
    };
    let mut all = Vec::new();
    for (name, node) in tree().list(path) {
        all.extend_from_slice(&inode(&format!("{path}/{name}")).to_ne_bytes());
        all.push(kind_of(node) as u8);
        all.extend_from_slice(name.as_bytes());
        all.push(0);
    }
    if all.len() <= room {
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(all.as_ptr(), to, all.len()) };
    }
    all.len() as isize
}

/// Opens a file or folder of ours, by its canonical path and the flags of open(2). Returns a
/// descriptor or a negative errno. The name of the descriptor's file is the path, so
/// `/proc/self/fd` shows it.
///
/// # Safety
/// A C string.
unsafe extern "C" fn open(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy();
    open_path(&path, flags).unwrap_or_else(|e| -e.errno())
}

fn open_path(path: &str, flags: c_int) -> Result<c_int> {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let fresh = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let errno = match tree().get(path) {
        None => libc::ENOENT,
        Some(_) if fresh => libc::EEXIST,
        Some(Node::Folder { .. }) if writes => libc::EISDIR,
        Some(Node::File(_)) if writes => libc::EACCES,
        Some(Node::File(_)) if flags & libc::O_DIRECTORY != 0 => libc::ENOTDIR,
        Some(Node::Folder { .. }) => return file_of(path, "", flags),
        Some(Node::File(content)) => {
            return match text(content) {
                Some(text) => file_of(path, &text, flags),
                None => unreadable(flags),
            }
        }
        // Only libibverbs would open the other devices.
        Some(Node::Device { minor, .. }) => {
            return match path.strip_prefix(FILES).is_some_and(|name| name.starts_with("/umad")) {
                true => crate::umad::open(*minor, flags),
                false => Err(Error::Os(libc::ENXIO)),
            }
        }
        Some(Node::Link(_)) => libc::ELOOP,
    };
    Err(Error::Os(errno))
}

/// Seals that make a file's contents final.
const SEALS: c_int =
    libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;

/// A descriptor on which read(2) fails with EINVAL, because an epoll instance has no data. Programs
/// distinguish a missing file (the open fails) from an unused entry (the read fails).
fn unreadable(flags: c_int) -> Result<c_int> {
    let cloexec = if flags & libc::O_CLOEXEC != 0 { libc::EPOLL_CLOEXEC } else { 0 };
    // SAFETY: no memory is passed.
    match unsafe { libc::epoll_create1(cloexec) } {
        -1 => Err(crate::verb_result::last_error()),
        fd => Ok(fd),
    }
}

/// A descriptor from which a text can be read.
fn file_of(path: &str, text: &str, flags: c_int) -> Result<c_int> {
    let name = CString::new(path)
        .map_err(|_| gdrcore_core::refuse!(Invalid, "path: it has a NUL inside"))?;
    let cloexec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: a NUL-terminated name; one that is too long is an error.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), cloexec | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(crate::verb_result::last_error());
    }
    // SAFETY: the text's bytes, and a descriptor of our own. The descriptor's offset stays at the
    // beginning, and no other thread writes.
    let done = unsafe {
        without_signals(|| libc::pwrite(fd, text.as_ptr().cast(), text.len(), 0))
            == text.len() as isize
            && libc::fchmod(fd, 0o444) == 0
            && libc::fcntl(fd, libc::F_ADD_SEALS, SEALS) == 0
    };
    if !done {
        let e = crate::verb_result::last_error();
        // SAFETY: ours, and nobody has seen it.
        unsafe { libc::close(fd) };
        return Err(e);
    }
    Ok(fd)
}
