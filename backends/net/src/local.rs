//! The Unix sockets by which processes of one user find each other on this host.
//!
//! A socket has a path below the user's directory (`socket_dir`). A process may bind a path while
//! it holds a lock on the directory of the path. The kernel gives the lock to one process and
//! releases it when that process ends, so no crash leaves a claim behind. The next holder of the
//! lock removes the files that a killed process left in the directory.
//!
//! Directories, their sockets and their holders:
//!
//! * `<address>-<port>/any`: `door`. The first device of the address; links of datagrams.
//! * `<address>-<port>/<block>`: `door`, `mail`, `life`. The owner of the QPN block; links,
//!   messages of the group, and connections that end with the owner; `acks`: the receipts of ACKs
//!   that wait; `status`: what `gdrcore top` shows of the device. If a device has several blocks,
//!   the doors of the others are symbolic links to the door of the first, so that one link serves
//!   all.
//! * `<address>-<port>/c<port space>-<port>`: `mail`. The listener of the connection manager at
//!   that port.

mod receipt_file;
mod socket_dir;
mod status_file;
mod sweep;

pub(crate) use receipt_file::{receipts_of, ReceiptFile};
pub(crate) use socket_dir::{own_paths, SocketDir};
pub(crate) use status_file::StatusText;
pub(crate) use sweep::sweep;

use crate::addr::Endpoint;
use crate::closing;
use crate::rights::{self, Foreign};
use crate::sys::{check, errno, get_option, stat, stat_at, wait_ready, Fd};
use core::ffi::CStr;
use core::fmt::Write;
use gdrcore_core::error::{Error, Result};
use socket_dir::{make_dir, network, open_dir, Path};
use std::os::fd::{AsFd, RawFd};
#[cfg(test)]
use std::os::unix::ffi::OsStrExt;

/// Attempts to make a directory while other processes remove it.
const TRIES: usize = 100;

/// Pause before the next accept after a connection for which no descriptor was free.
pub(crate) const ACCEPT_AGAIN_NS: u64 = 10_000_000;

/// The names of an address that a process can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The address itself.
    Address,
    /// A block of QPNs.
    Block(u16),
    /// A port of the connection manager: port space, port.
    Service(u16, u16),
}

/// The sockets of a holder. Their file names are part of the protocol between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Listens for links.
    Links,
    /// Receives messages (datagrams).
    Messages,
    /// Listens for connections that end with the holder.
    Liveness,
}

impl Role {
    const ALL: [Role; 3] = [Role::Links, Role::Messages, Role::Liveness];

    fn file(self) -> &'static CStr {
        match self {
            Role::Links => c"door",
            Role::Messages => c"mail",
            Role::Liveness => c"life",
        }
    }
}

/// The text of an address or a holder: the name of a directory.
struct Part(heapless::String<48>);

impl Part {
    fn format(text: core::fmt::Arguments<'_>) -> Part {
        let mut part = heapless::String::new();
        // The longest text, an IPv6 address with zone and port, has 47 bytes, so this cannot fail.
        let _ = part.write_fmt(text);
        Part(part)
    }

    fn of_address(at: &Endpoint) -> Part {
        match at.to_v4() {
            Some([a, b, c, d]) => Part::format(format_args!("{a}.{b}.{c}.{d}-{}", at.port)),
            None if at.scope_id != 0 => Part::format(format_args!(
                "{:032x}%{:x}-{}",
                u128::from_be_bytes(at.ip),
                at.scope_id,
                at.port
            )),
            None => Part::format(format_args!("{:032x}-{}", u128::from_be_bytes(at.ip), at.port)),
        }
    }

    fn of_holder(holder: Holder) -> Part {
        match holder {
            Holder::Address => Part::format(format_args!("any")),
            Holder::Block(n) => Part::format(format_args!("{n}")),
            Holder::Service(space, port) => Part::format(format_args!("c{space}-{port}")),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The directory of an address, below that of the user; `None`: the network namespace has no
/// number. Allocates.
pub(crate) fn address_folder(at: &Endpoint) -> Option<std::path::PathBuf> {
    let network = std::path::PathBuf::from(format!("{:x}", network().ok()?));
    Some(network.join(Part::of_address(at).0.as_str()))
}

/// The path of a socket.
#[derive(Clone, Copy)]
pub(crate) struct SocketPath {
    addr: libc::sockaddr_un,
    len: libc::socklen_t,
}

impl SocketPath {
    /// The name of a holder's socket.
    pub(crate) fn new(
        socket_dir: &SocketDir,
        at: &Endpoint,
        holder: Holder,
        role: Role,
    ) -> SocketPath {
        // SAFETY: zeroes are a valid sockaddr_un.
        let mut addr: libc::sockaddr_un = unsafe { core::mem::zeroed() };
        addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let parts = [Part::of_address(at), Part::of_holder(holder)];
        let path = socket_dir.c_path(&[parts[0].bytes(), parts[1].bytes(), role.file().to_bytes()]);
        let start = core::mem::offset_of!(libc::sockaddr_un, sun_path);
        // The lock of its directory refuses a path that is too long, so no process can have bound
        // it.
        let Ok(path) = path else { return SocketPath { addr, len: start as libc::socklen_t } };
        for (to, &from) in addr.sun_path.iter_mut().zip(path.as_bytes_with_nul()) {
            *to = from as libc::c_char;
        }
        SocketPath { addr, len: (start + path.as_bytes_with_nul().len()) as libc::socklen_t }
    }

    /// Whether there is a file of that name, even if the process that bound it has ended.
    pub(crate) fn exists(&self) -> bool {
        // SAFETY: the path is a C string within the address, because a longer one is left empty.
        let path = unsafe { CStr::from_ptr(self.addr.sun_path.as_ptr()) };
        // A router that has confined itself makes this call, and not access(2).
        stat_at(libc::AT_FDCWD, path).is_ok()
    }

    #[cfg(test)]
    pub(crate) fn path(&self) -> &std::path::Path {
        // SAFETY: the path is a C string within the address, which is borrowed.
        let path = unsafe { CStr::from_ptr(self.addr.sun_path.as_ptr()) };
        std::path::Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()))
    }

    /// For `bind`, `connect` and `sendto`.
    pub(crate) fn parts(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.addr).cast(), self.len)
    }
}

/// Whether the error says that a directory, or one above it, does not exist.
fn is_gone(e: Error) -> bool {
    matches!(e, Error::NoDevice | Error::Os(libc::ENOENT))
}

/// The right to bind the names of one holder. Its drop removes the names and their directory.
#[derive(Debug)]
pub(crate) struct Lock {
    socket_dir: SocketDir,
    at: Endpoint,
    holder: Holder,
    dir: Fd,
}

impl Lock {
    /// Locks the directory of a holder and removes the files that a killed process left there.
    ///
    /// # Errors
    /// [`Error::AddressInUse`]: another process holds the lock. [`Error::Unsupported`]: the path is
    /// too long. [`Error::Os`]: as mkdir(2), open(2).
    pub(crate) fn take(socket_dir: &SocketDir, at: &Endpoint, holder: Holder) -> Result<Lock> {
        let parts = [Part::of_address(at), Part::of_holder(holder)];
        // The longest socket below it must fit as well.
        socket_dir.c_path(&[parts[0].bytes(), parts[1].bytes(), Role::Links.file().to_bytes()])?;
        let above = socket_dir.c_path(&[parts[0].bytes()])?;
        let path = socket_dir.c_path(&[parts[0].bytes(), parts[1].bytes()])?;
        let first = match holder {
            Holder::Address => Role::Links,
            Holder::Block(_) | Holder::Service(..) => Role::Messages,
        };
        for _ in 0..TRIES {
            // Between any two of these calls another process may remove its own directory, and the
            // empty one above it.
            let dir = match make_dir(&path).and_then(|()| open_dir(libc::AT_FDCWD, path.as_c_str()))
            {
                Ok(dir) => dir,
                Err(e) if is_gone(e) => {
                    make_dir(&socket_dir.c_path(&[])?)?;
                    match make_dir(&above) {
                        Err(e) if !is_gone(e) => return Err(e),
                        // Or a sweep has removed the new directory while it was empty.
                        _ => continue,
                    }
                }
                Err(e) => return Err(e),
            };
            match lock(dir.raw()) {
                Ok(true) => {
                    empty(dir.raw());
                    return Ok(Lock { socket_dir: *socket_dir, at: *at, holder, dir });
                }
                // The directory was removed before it was locked.
                Ok(false) => {}
                // The directory's first name is not bound: the holder is about to bind it, or
                // another process sweeps the directory.
                Err(Error::Again) if !is_bound(&SocketPath::new(socket_dir, at, holder, first)) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                Err(Error::Again) => return Err(Error::AddressInUse),
                Err(e) => return Err(e),
            }
        }
        Err(Error::AddressInUse)
    }

    pub(crate) fn name(&self, role: Role) -> SocketPath {
        SocketPath::new(&self.socket_dir, &self.at, self.holder, role)
    }

    /// Whether its directory is still at its path.
    pub(crate) fn is_there(&self) -> bool {
        stat(self.dir.raw()).is_ok_and(|s| s.st_nlink > 0)
    }

    /// A socket of a type, bound to one of its names.
    ///
    /// # Errors
    /// [`Error::Os`]; [`Error::NoMemory`].
    pub(crate) fn bind(&self, role: Role, kind: i32) -> Result<Fd> {
        let fd = socket(kind)?;
        if role != Role::Links {
            // No descriptor is expected here.
            rights::refuse(fd.as_fd());
        }
        let (name, len) = self.name(role).parts();
        // SAFETY: `len` bytes of the name are initialised and live through the call.
        check(unsafe { libc::bind(fd.raw(), name, len) })?;
        Ok(fd)
    }

    /// A socket that listens at one of its names, of type SOCK_SEQPACKET.
    ///
    /// # Errors
    /// As [`Lock::bind`].
    pub(crate) fn listen(&self, role: Role) -> Result<Fd> {
        let fd = self.bind(role, libc::SOCK_SEQPACKET)?;
        // SAFETY: no pointers.
        check(unsafe { libc::listen(fd.raw(), 128) })?;
        Ok(fd)
    }
}

/// Makes the doors of a device's blocks lead to the door of the first block, and returns its lock.
/// A device with many queue pairs has many blocks: so one link of each peer serves them all.
///
/// # Errors
/// [`Error::Os`]: as symlink(2).
pub(crate) fn lead_to_first<'l>(
    mut blocks: impl Iterator<Item = &'l Lock>,
) -> Result<Option<&'l Lock>> {
    let Some(first) = blocks.next() else { return Ok(None) };
    let (to, door) = (Target::new(first.holder), Role::Links.file());
    for block in blocks {
        // SAFETY: two C strings; no other pointers.
        check(unsafe { libc::symlinkat(to.0.as_ptr().cast(), block.dir.raw(), door.as_ptr()) })?;
    }
    Ok(Some(first))
}

#[cfg(test)]
impl Lock {
    /// Releases the lock and leaves the files, as the kernel does when the process is killed.
    pub(crate) fn abandon(&self) {
        // SAFETY: no pointers.
        unsafe { libc::flock(self.dir.raw(), libc::LOCK_UN) };
    }
}

/// The target of a symbolic link from one holder's door to another's, as a C string.
struct Target(heapless::String<64>);

impl Target {
    fn new(holder: Holder) -> Target {
        let mut text = heapless::String::new();
        // The longest text, of a service, has 21 bytes, so this cannot fail.
        let _ = write!(text, "../{}/door\0", Part::of_holder(holder).0);
        Target(text)
    }
}

/// The block at whose socket the links to a block's owner end: the block itself, unless its name
/// leads to that of another block of the same device. Cost: a system call.
pub(crate) fn listener_block(socket_dir: &SocketDir, at: &Endpoint, block: u16) -> u16 {
    let parts = [Part::of_address(at), Part::of_holder(Holder::Block(block))];
    let path =
        socket_dir.c_path(&[parts[0].bytes(), parts[1].bytes(), Role::Links.file().to_bytes()]);
    // An absolute path needs no directory.
    path.ok().and_then(|path| target_of(libc::AT_FDCWD, path.as_c_str())).unwrap_or(block)
}

/// The block to whose door the door in a holder's directory leads; `None`: it is not a link.
fn first_block(dir: RawFd) -> Option<u16> {
    target_of(dir, Role::Links.file())
}

/// The block to whose door a symbolic link leads.
fn target_of(dir: RawFd, door: &CStr) -> Option<u16> {
    let mut target = [0u8; 32];
    // SAFETY: the name is a C string; pointer and length are those of `target`.
    let n =
        unsafe { libc::readlinkat(dir, door.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    let text = usize::try_from(n).ok().and_then(|n| target.get(..n)).unwrap_or_default();
    let text = core::str::from_utf8(text).ok()?;
    text.strip_prefix("../")?.strip_suffix("/door")?.parse().ok()
}

/// Locks a directory. False: it was removed before.
///
/// # Errors
/// [`Error::Again`]: another process has the lock.
fn lock(dir: RawFd) -> Result<bool> {
    // SAFETY: no pointers.
    check(unsafe { libc::flock(dir, libc::LOCK_EX | libc::LOCK_NB) })?;
    Ok(stat(dir)?.st_nlink > 0)
}

/// Whether a living process has bound a name.
fn is_bound(name: &SocketPath) -> bool {
    let (to, len) = name.parts();
    let Ok(fd) = socket(libc::SOCK_DGRAM) else { return false };
    // SAFETY: `len` bytes of the name are initialised and live through the call.
    let rc = unsafe { libc::connect(fd.raw(), to, len) };
    // A socket for links has another type, and no connection is made to it.
    rc == 0 || errno() == libc::EPROTOTYPE
}

/// Removes a holder's files.
fn empty(dir: RawFd) {
    let others = [receipt_file::FILE, status_file::FILE, status_file::NEW_FILE];
    for file in Role::ALL.map(Role::file).into_iter().chain(others) {
        // SAFETY: a C string; no other pointers.
        unsafe { libc::unlinkat(dir, file.as_ptr(), 0) };
    }
}

fn remove_dir(path: &Result<Path>) {
    if let Ok(path) = path {
        // SAFETY: a C string; no other pointers.
        unsafe { libc::rmdir(path.as_c_str().as_ptr()) };
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_there() {
            empty(self.dir.raw());
            let parts = [Part::of_address(&self.at), Part::of_holder(self.holder)];
            // The lock is still held, so the directory is this holder's; those above go with the
            // last one.
            remove_dir(&self.socket_dir.c_path(&[parts[0].bytes(), parts[1].bytes()]));
            remove_dir(&self.socket_dir.c_path(&[parts[0].bytes()]));
            remove_dir(&self.socket_dir.c_path(&[]));
        }
    }
}

/// An unbound socket.
///
/// # Errors
/// `Os`, `NoMemory`.
pub(crate) fn socket(kind: i32) -> Result<Fd> {
    // SAFETY: no pointers.
    Fd::from_call(unsafe {
        libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    })
}

/// Connects to a name, with a SOCK_SEQPACKET socket. It takes no descriptors.
///
/// # Errors
/// [`Error::NoDevice`]: no process listens there. [`Error::Again`]: too many processes connect at
/// once. [`Error::Access`]: the process there is of another user. [`Error::Os`],
/// [`Error::NoMemory`].
pub(crate) fn connect(to: &SocketPath) -> Result<Foreign> {
    let fd = Foreign::fresh(socket(libc::SOCK_SEQPACKET)?.into());
    let (name, len) = to.parts();
    // SAFETY: `len` bytes of the name are initialised and live through the call.
    check(unsafe { libc::connect(fd.raw(), name, len) }).map_err(|e| match errno() {
        libc::ECONNREFUSED | libc::ENOENT | libc::ENOTDIR | libc::EINVAL => Error::NoDevice,
        _ => e,
    })?;
    if is_trusted(fd.raw()) {
        Ok(fd)
    } else {
        Err(Error::Access)
    }
}

/// Result of an accept at a listening socket.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// A connection from a process of this user.
    Peer(Foreign),
    /// A connection from another user's process, which was closed.
    OtherUser,
    /// No connection waits.
    Nothing,
    /// No descriptor or memory is free for the connection, which waits in the kernel.
    NoDescriptor,
}

/// Accepts the next connection of a listening socket; none while much waits to be closed.
pub(crate) fn accept(fd: RawFd) -> Accepted {
    if closing::is_full() {
        return Accepted::NoDescriptor;
    }
    let none = core::ptr::null_mut();
    // SAFETY: no addresses are asked for.
    let rc =
        unsafe { libc::accept4(fd, none, none.cast(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) };
    match Fd::from_call(rc).map(|fd| Foreign::accepted(fd.into())) {
        Ok(fd) if is_trusted(fd.raw()) => Accepted::Peer(fd),
        Ok(_) => Accepted::OtherUser,
        Err(_) if matches!(errno(), libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            Accepted::NoDescriptor
        }
        Err(_) => Accepted::Nothing,
    }
}

/// Whether a connection is open at its other end. Reads and drops the bytes that came.
pub(crate) fn is_open(fd: &mut Foreign) -> bool {
    match fd.receive(&mut [0], |_, _| {}) {
        Ok(arrived) => arrived.len > 0 && !arrived.cut,
        Err(e) => matches!(e, libc::EAGAIN | libc::EINTR),
    }
}

/// Whether a connection is closed at its other end. Does not read the bytes that came.
pub(crate) fn has_hung_up(fd: RawFd) -> bool {
    wait_ready(fd, libc::POLLRDHUP, 0)
}

/// The effective user of this process, as its user namespace names it.
pub(crate) fn own_uid() -> libc::uid_t {
    // SAFETY: no precondition.
    unsafe { libc::geteuid() }
}

/// Whether a process of a user may be at the other end of a local socket. Only processes of this
/// user may: each end trusts the other's memory, and with root at one end, root would have to trust
/// a user.
///
/// Comparing uids suffices: where one uid may stand for several users, no socket is made
/// ([`SocketDir::open`]).
pub(crate) fn is_own_user(uid: libc::uid_t) -> bool {
    uid == own_uid()
}

/// Whether equal uids are equal users. In a user namespace every user without a uid there appears
/// as the overflow uid (65534), so a process with that uid cannot compare users
/// (user_namespaces(7)). Cost: two small files of procfs.
pub(crate) fn has_unique_uid() -> bool {
    let mut text = [0u8; 512];
    let overflow = read_number(c"/proc/sys/kernel/overflowuid", &mut text).unwrap_or(65534);
    own_uid() != overflow || maps_all_uids(read_file(c"/proc/self/uid_map", &mut text))
}

/// Whether a uid_map gives every user a uid, so that none appears as the overflow uid. Only a map
/// of one line can, like that of the initial user namespace.
fn maps_all_uids(map: &[u8]) -> bool {
    let mut words = map.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
    [&b"0"[..], b"0", b"4294967295"].iter().all(|&w| words.next() == Some(w))
        && words.next().is_none()
}

/// Reads a small file of procfs; empty if it does not exist.
pub(crate) fn read_file<'b>(path: &core::ffi::CStr, to: &'b mut [u8]) -> &'b [u8] {
    // SAFETY: a C string; no other pointers.
    let fd = Fd::from_call(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) });
    // SAFETY: pointer and length are those of `to`.
    let n = fd.map_or(0, |fd| unsafe { libc::read(fd.raw(), to.as_mut_ptr().cast(), to.len()) });
    &to[..usize::try_from(n).unwrap_or(0)]
}

fn read_number(path: &core::ffi::CStr, buffer: &mut [u8]) -> Option<u32> {
    core::str::from_utf8(read_file(path, buffer)).ok()?.trim().parse().ok()
}

/// The credentials of a connected socket's other end, as the kernel noted them at its listen or
/// connect.
pub(crate) fn peer_of(fd: RawFd) -> Option<libc::ucred> {
    get_option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED).ok()
}

/// Whether the process at the other end of a connected socket is of this user.
pub(crate) fn is_trusted(fd: RawFd) -> bool {
    peer_of(fd).is_some_and(|peer| is_own_user(peer.uid))
}

#[cfg(test)]
mod tests;
