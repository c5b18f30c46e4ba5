//! System calls that the standard library lacks.

use gdrcore_net::addr::Endpoint;
use gdrcore_net::closing::is_full;
use gdrcore_net::rights::{self, refuse, Foreign};
use std::ffi::CString;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// asm-generic/socket.h, since Linux 6.5: a descriptor of the process at the other end.
const SO_PEERPIDFD: i32 = 77;

/// Limit of the unread bytes of a connection.
const UNREAD_MAX: usize = 4 << 20;

fn check(rc: i32) -> io::Result<i32> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

fn own_fd(rc: i32) -> io::Result<OwnedFd> {
    // SAFETY: the kernel has just made it, so it is nobody else's.
    check(rc).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A set of descriptors to wait for.
pub(super) struct Epoll(OwnedFd);

/// A ready descriptor: its token, and whether it is readable (or at its end) and writable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) token: u64,
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Epoll {
    pub(super) fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers.
        own_fd(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Epoll)
    }

    fn control(&self, op: i32, fd: BorrowedFd<'_>, token: u64, write: bool) -> io::Result<()> {
        let events = libc::EPOLLIN | if write { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event lives through the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd.as_raw_fd(), &mut event) })
            .map(drop)
    }

    /// Adds a descriptor, waiting for it to be readable. Closing its last copy removes it.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, false)
    }

    /// Removes a descriptor.
    pub(super) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, false)
    }

    /// Sets whether to wait for it to be writable as well.
    pub(super) fn want_write(&self, fd: BorrowedFd<'_>, token: u64, on: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, on)
    }

    /// Waits for ready descriptors, of which it returns up to 64. `ms`: the time limit; -1: none.
    pub(super) fn wait(&self, ms: i32, ready: &mut Vec<Ready>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for as many events as it is told.
        let n = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, ms)
        };
        ready.clear();
        for e in events.iter().take(usize::try_from(n).unwrap_or(0)) {
            let bits = e.events as i32;
            let read = bits & !libc::EPOLLOUT != 0;
            ready.push(Ready { token: e.u64, read, write: bits & libc::EPOLLOUT != 0 });
        }
    }
}

/// The kind of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketKind {
    Packets,
    Stream,
}

impl SocketKind {
    fn flags(self) -> i32 {
        let kind = match self {
            SocketKind::Packets => libc::SOCK_SEQPACKET,
            SocketKind::Stream => libc::SOCK_STREAM,
        };
        kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK
    }
}

fn name(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: zeroes are a valid sockaddr_un.
    let mut addr: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= addr.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no path that a socket can have"));
    }
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, &from) in addr.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    let len = core::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((addr, len as libc::socklen_t))
}

/// A socket that listens at a path, which must not exist. No descriptors may come over it, where
/// the kernel can refuse them (Linux 6.16).
pub(super) fn listen(path: &Path, kind: SocketKind, mode: u32) -> io::Result<OwnedFd> {
    let (addr, len) = name(path)?;
    // SAFETY: no pointers.
    let fd = own_fd(unsafe { libc::socket(libc::AF_UNIX, kind.flags(), 0) })?;
    refuse(fd.as_fd());
    // SAFETY: `len` bytes of the address are initialised and live through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    let c_path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a C string.
    check(unsafe { libc::chmod(c_path.as_ptr(), mode) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::listen(fd.as_raw_fd(), 128) })?;
    Ok(fd)
}

/// Connects to a path, with a non-blocking socket.
pub(super) fn connect(path: &Path, kind: SocketKind) -> io::Result<OwnedFd> {
    let (addr, len) = name(path)?;
    // SAFETY: no pointers.
    let fd = own_fd(unsafe { libc::socket(libc::AF_UNIX, kind.flags(), 0) })?;
    // SAFETY: `len` bytes of the address are initialised and live through the call.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(fd)
}

/// A socket that listens already, for use as [`listen`]'s.
pub(super) fn adopt(fd: OwnedFd) -> io::Result<OwnedFd> {
    refuse(fd.as_fd());
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }).map(|_| fd)
}

/// The address of a socket that another program has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// A listener.
    Path(PathBuf, SocketKind),
    Udp(Endpoint),
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::Path(path, kind) => write!(f, "{kind:?} at {}", path.display()),
            Bound::Udp(at) => write!(f, "UDP at {at}"),
        }
    }
}

/// A descriptor that this process was started with; this makes it close-on-exec. `None`: it is not
/// open. Call this once for each, before this process opens any descriptor of its own.
pub(super) fn given(raw: RawFd) -> Option<OwnedFd> {
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(raw, libc::F_SETFD, libc::FD_CLOEXEC) }).ok()?;
    // SAFETY: it is open, and as this process has opened nothing so far, nobody else's.
    Some(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn option(fd: BorrowedFd<'_>, name: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    let to = (&raw mut value).cast();
    // SAFETY: the pointers describe `value` and its length, both live through the call.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, to, &mut len) };
    (rc == 0).then_some(value)
}

/// The kind and address of a socket; `None`: it is of a kind that the router does not use.
pub(super) fn bound(fd: &OwnedFd) -> Option<Bound> {
    let of = |name| option(fd.as_fd(), name);
    let (domain, kind) = (of(libc::SO_DOMAIN)?, of(libc::SO_TYPE)?);
    match (domain, kind) {
        (libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_STREAM) => {
            let kind =
                if kind == libc::SOCK_STREAM { SocketKind::Stream } else { SocketKind::Packets };
            let socket = UnixListener::from(fd.try_clone().ok()?);
            let at = socket.local_addr().ok()?;
            let path = at.as_pathname()?.to_path_buf();
            (of(libc::SO_ACCEPTCONN)? != 0).then_some(Bound::Path(path, kind))
        }
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM) => {
            let at = UdpSocket::from(fd.try_clone().ok()?).local_addr().ok()?;
            Some(Bound::Udp(match at {
                SocketAddr::V4(at) => Endpoint::v4(at.ip().octets(), at.port()),
                SocketAddr::V6(at) => Endpoint::new(at.ip().octets(), at.scope_id(), at.port()),
            }))
        }
        _ => None,
    }
}

/// Accepts the next connection; none while many descriptors wait to be closed.
pub(super) fn accept(fd: BorrowedFd<'_>) -> io::Result<Foreign> {
    if is_full() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let none = core::ptr::null_mut();
    // SAFETY: no addresses are asked for.
    own_fd(unsafe {
        libc::accept4(fd.as_raw_fd(), none, none.cast(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
    })
    .map(Foreign::accepted)
}

/// Two ends of a new socket for packets.
pub(super) fn pair() -> io::Result<[OwnedFd; 2]> {
    rights::pair().map_err(|e| io::Error::from_raw_os_error(e.errno()))
}

/// Process and user of the peer, as the kernel recorded them at connect.
pub(super) fn credentials(fd: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut cred).cast();
    // SAFETY: the pointers describe `cred` and its length, both live through the call.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len)
    })?;
    Ok(cred)
}

/// A pidfd of the peer. It comes from SO_PEERPIDFD, or on an older kernel from the pid, which may
/// have been reused.
pub(super) fn process(fd: BorrowedFd<'_>, pid: i32) -> io::Result<OwnedFd> {
    let mut raw: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the pointers describe `raw` and its length, both live through the call.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut raw).cast(),
            &mut len,
        )
    };
    if rc == 0 {
        return own_fd(raw);
    }
    let e = io::Error::last_os_error();
    if e.raw_os_error() != Some(libc::ENOPROTOOPT) || pid <= 0 {
        return Err(e);
    }
    // SAFETY: no pointers.
    own_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32)
}

/// Whether a descriptor is readable or at its end, or the process of a pidfd has ended. Does not
/// wait.
pub(super) fn is_ready(fd: BorrowedFd<'_>, events: i16) -> bool {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one live entry; no wait.
    unsafe { libc::poll(&mut p, 1, 0) > 0 }
}

/// A signalfd. This blocks its signals for the calling thread and for the threads that it makes.
pub(super) fn signals(which: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: zeroes are a valid set, which lives through all the calls; they take nothing else but
    // numbers.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in which {
            libc::sigaddset(&mut set, signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, &set, core::ptr::null_mut()))?;
        own_fd(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
    }
}

pub(super) fn next_signal(fd: BorrowedFd<'_>) -> Option<i32> {
    // SAFETY: zeroes are a valid record.
    let mut info: libc::signalfd_siginfo = unsafe { core::mem::zeroed() };
    let len = size_of::<libc::signalfd_siginfo>();
    // SAFETY: room for `len` bytes.
    let n = unsafe { libc::read(fd.as_raw_fd(), (&raw mut info).cast(), len) };
    (n == len as isize).then_some(info.ssi_signo as i32)
}

/// Raises the limit of descriptors as far as allowed, and returns it.
pub(super) fn raise_descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the record lives through both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max
        {
            let more = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &more) == 0 {
                limit = more;
            }
        }
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Reads without waiting.
pub(super) fn read(fd: &impl AsFd, to: &mut [u8]) -> io::Result<usize> {
    gdrcore_net::via::wire::read(fd.as_fd(), to).map_err(io::Error::from_raw_os_error)
}

/// Writes without waiting.
pub(super) fn write(fd: &impl AsFd, from: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: pointer and length are those of `from`.
    let n = unsafe { libc::send(fd.as_fd().as_raw_fd(), from.as_ptr().cast(), from.len(), flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Writes the output of a connection as far as its other end reads, and waits for more room if some
/// is left. False: the connection is over, or has more than 4 MiB unread: the router does not store
/// what nobody reads.
pub(super) fn flush(fd: &impl AsFd, token: u64, output: &mut Vec<u8>, epoll: &Epoll) -> bool {
    let mut from = 0;
    while from < output.len() {
        match write(fd, &output[from..]) {
            Ok(n) => from += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(_) => return false,
        }
    }
    output.drain(..from);
    output.len() <= UNREAD_MAX && epoll.want_write(fd.as_fd(), token, !output.is_empty()).is_ok()
}

/// Writes once to a file of any kind.
pub(super) fn put(fd: BorrowedFd<'_>, from: &[u8]) {
    // SAFETY: pointer and length are those of `from`.
    unsafe { libc::write(fd.as_raw_fd(), from.as_ptr().cast(), from.len()) };
}

/// Has the kernel judge each system call of this process by a filter, for ever. No program that it
/// starts gets more rights than it has (PR_SET_NO_NEW_PRIVS).
pub(super) fn filter_calls(program: &[seccompiler::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let filter = program.as_ptr().cast_mut().cast::<libc::sock_filter>();
    let program = libc::sock_fprog { len, filter };
    // For all threads. Without the kernel's mitigations of speculation (SPEC_ALLOW): they slow the
    // data path more than the filter does, and a process has nothing to hide from itself.
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the record and its instructions, which have the kernel's layout, live through the
    // call, which only reads them.
    let rc = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    match rc {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has another filter"))),
    }
}

/// The number of a user (getpwnam_r(3)); `None`: there is none. It may take as long as a server of
/// users does.
pub(super) fn user(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    let mut room = vec![0u8; 1 << 10];
    loop {
        let mut found = std::ptr::null_mut();
        // SAFETY: zeroes are a valid record, which the call fills. All pointers are to what lives
        // through the call; `room` has the length that it is told.
        let (rc, uid) = unsafe {
            let mut entry: libc::passwd = core::mem::zeroed();
            let rc = libc::getpwnam_r(
                name.as_ptr(),
                &mut entry,
                room.as_mut_ptr().cast(),
                room.len(),
                &mut found,
            );
            (rc, entry.pw_uid)
        };
        match rc {
            0 => return Ok((!found.is_null()).then_some(uid)),
            // The words of some systems for "there is none".
            libc::ENOENT | libc::ESRCH => return Ok(None),
            libc::ERANGE if room.len() < 1 << 20 => room.resize(room.len() * 4, 0),
            e => return Err(io::Error::from_raw_os_error(e)),
        }
    }
}

/// Whether this process may make files in a folder.
pub(super) fn may_write(folder: &Path) -> bool {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return false };
    let (rights, flags) = (libc::W_OK | libc::X_OK, libc::AT_EACCESS);
    // SAFETY: a C string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), rights, flags) == 0 }
}

pub(super) fn own_uid() -> u32 {
    // SAFETY: no precondition.
    unsafe { libc::geteuid() }
}

/// Runs `work` in a forked child. Returns its exit code, or the signal that ended it. `work` may
/// only make system calls: a lock that another thread held at the fork stays held in the child.
#[cfg(test)]
pub(super) fn in_child(work: impl FnOnce() -> i32) -> Result<i32, i32> {
    // SAFETY: the child leaves by `_exit`, and until then `work` keeps to the rule above.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = work();
        // SAFETY: no precondition.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: room for the status, of a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    match libc::WIFSIGNALED(status) {
        true => Err(libc::WTERMSIG(status)),
        false => Ok(libc::WEXITSTATUS(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::Error;
    use gdrcore_net::via::wire::send_bytes;

    #[test]
    fn no_descriptor_comes_over_what_the_router_listens_at() {
        let [one, _other] = pair().unwrap();
        if !refuse(one.as_fd()) {
            gdrcore_testkit::skip!("this kernel refuses no descriptors");
        }
        let path = std::env::temp_dir().join(format!("gdrc-refuses-{}", std::process::id()));
        let others = |path: &Path| adopt(UnixListener::bind(path).unwrap().into());
        for (kind, is_own) in
            [(SocketKind::Packets, true), (SocketKind::Stream, true), (SocketKind::Stream, false)]
        {
            let listener = if is_own { listen(&path, kind, 0o600) } else { others(&path) }.unwrap();
            let before = connect(&path, kind).unwrap();
            let sent = || send_bytes(before.as_fd(), b"x", Some(one.as_fd()));
            assert_eq!(sent(), Err(Error::Access), "before it is accepted");
            let _accepted = accept(listener.as_fd()).unwrap();
            assert_eq!(sent(), Err(Error::Access), "{kind:?} {is_own}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
