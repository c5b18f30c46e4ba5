//! The kernel's end of libibumad: `/dev/infiniband/umad<n>`, to which `ibping`, `perfquery` and
//! `smpquery` write management datagrams.
//!
//! An open file is one end of a socket pair. Programs write datagrams into it, read, poll and close
//! it, as they do with the kernel's file. A thread has the other ends. Only ioctl(2), which
//! registers agents, needs the preloaded library: that passes on the calls that the kernel has
//! refused. `proto` has the structs, `mad` a datagram, `agents` the port's answers, `file` an open
//! file.
//!
//! Requests to the port itself are answered here. So are other ports' performance queries, even if
//! the program has opened no file: others can ask ports with a LID, so for these the thread starts
//! with the device. Datagrams to another port travel from QP1 to QP1. Datagrams to QP0 and to the
//! subnet's administration have no receiver, since the port is RoCE's: they end as requests without
//! an answer.

mod agents;
mod file;
mod mad;
mod proto;

use crate::adapter::Adapter;
use crate::hca::ON_OTHER_MAD;
use crate::open_devices::{self, present, STATE};
use crate::verb_result::{last_error, stat, Verb};
use crate::worker::{HelperThread, Sleep, Wakeup};
use core::ffi::{c_int, c_ulong};
use file::File;
use gdrcore_calls::preload::Umad;
use gdrcore_core::cm::other_mads::OtherMad;
use gdrcore_core::verbs::types::AhAttr;
use gdrcore_core::{Error, Result};
use gdrcore_net::fork::around_forks;
use gdrcore_net::thread_lock::{ForkLock, ForkLockGuard};
use gdrcore_net::{clock, fault};
use mad::{class, Mad};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Once;
use std::time::Instant;

/// Limit of the datagrams that one run of the thread takes from a device or a file.
pub const BATCH: usize = 64;

/// The open files of a process.
struct Files {
    /// The process that owns them; a child of fork starts without any.
    pid: u32,
    open: Vec<File>,
}

static FILES: ForkLock<Files> = ForkLock::new(Files { pid: 0, open: Vec::new() });

static THREAD: HelperThread = HelperThread::new();

fork_handlers!(FILES);

/// From now on holds the locks of the list of devices and of the files around every fork. Call this
/// before a device is open. `has_lid`: others may query the port's counters, so this starts the
/// thread, if the system allows one. An arriving datagram cannot start it: it comes under the
/// engine's lock, and any host may send it.
pub fn prepare(has_lid: bool) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The pair registered last holds first: the list of devices is locked under the files'
        // lock.
        open_devices::guard_forks();
        around_forks(hold, release);
        // No other code sets it.
        let _ = ON_OTHER_MAD.set(wake);
    });
    if has_lid {
        let _ = start();
    }
}

/// The files of this process.
fn files() -> ForkLockGuard<'static, Files> {
    let mut files = FILES.lock();
    if files.pid != std::process::id() {
        // A parent's files and devices remain the parent's. This program may have closed the
        // inherited descriptors and reused their numbers.
        core::mem::take(&mut files.open).into_iter().for_each(File::forget);
        files.pid = std::process::id();
    }
    files
}

/// Owns a descriptor that a system call has returned.
///
/// # Errors
/// Those of the call.
fn owned(fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: just made, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens the file of a number; the flags are those of open(2).
///
/// # Errors
/// `ENXIO`: no such device. The system's: no descriptor, no thread.
pub fn open(number: u32, flags: c_int) -> Result<c_int> {
    prepare(false);
    let adapter = present().into_iter().find(|a| a.umad() == number);
    let adapter = adapter.ok_or(Error::Os(libc::ENXIO))?;
    // Commands contain addresses of the program.
    fault::install()?;
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return Err(last_error());
    }
    let [theirs, end] = [owned(ends[0])?, owned(ends[1])?];
    let status = if flags & libc::O_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
    let kept = if flags & libc::O_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: no pointers.
    unsafe {
        libc::fcntl(theirs.as_raw_fd(), libc::F_SETFL, status);
        libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, kept);
    }
    let inode = stat(theirs.as_raw_fd())?.st_ino;
    let file = File::new(inode, end, adapter, clock::random_seed()? as u32);
    start()?;
    files().open.push(file);
    wake();
    Ok(theirs.into_raw_fd())
}

/// Starts the thread, if this process has none. Wakes it, too, because another thread's [`wake`]
/// may have found none while it was being started.
fn start() -> Result<()> {
    THREAD.start("gdrc-umad", run)?;
    wake();
    Ok(())
}

/// Wakes the thread. Without a thread, arriving datagrams are lost, as datagrams may be. The thread
/// that runs the engine calls this, too.
fn wake() {
    THREAD.wake();
}

/// A run of the thread, after a program has written to a file or has opened or closed one, a
/// datagram has arrived, or an answer is late.
fn run(why: &Wakeup<'_>) -> Sleep {
    let mut files = files();
    for p in why.ready.iter().filter(|p| p.revents != 0) {
        let Some(at) = files.open.iter().position(|f| f.end() == p.fd) else { continue };
        if !files.open[at].take(p.revents & libc::POLLHUP != 0) {
            files.open.remove(at).close();
        }
    }
    drop(files);
    for (adapter, d) in arrivals() {
        take(adapter, &d);
    }
    let (mut sleep, now) = (Sleep::default(), Instant::now());
    for file in &mut self::files().open {
        file.expire(now);
        sleep.readable.push(file.end());
        sleep.until = sleep.until.into_iter().chain(file.deadline()).min();
    }
    sleep
}

/// The datagrams that have arrived at the open devices of this process.
fn arrivals() -> Vec<(&'static Adapter, OtherMad)> {
    let state = STATE.lock();
    let mut all = Vec::new();
    for open in &state.open {
        let Some(&adapter) = state.adapters.get(open.index as usize) else { continue };
        for _ in 0..BATCH {
            match open.hca.take_other_mad() {
                Ok(Some(d)) => all.push((adapter, d)),
                _ => break,
            }
        }
    }
    if all.len() >= BATCH {
        wake();
    }
    all
}

/// Handles a datagram that has arrived at a device.
fn take(adapter: &'static Adapter, d: &OtherMad) {
    let Some(mut mad) = Mad::parse(&d.mad) else { return };
    match mad.class() {
        // These travel only between QP0 and QP0.
        class::SMP | class::DIRECTED => {}
        class::PERFORMANCE if !mad.is_response() => {
            agents::answer(&file::facts(adapter), &mut mad);
            let p = &d.peer;
            let to =
                AhAttr { dgid: p.gid, scope_id: p.scope_id, udp_port: p.port, ..AhAttr::default() };
            let state = STATE.lock();
            let open = state.open.iter().find(|o| o.index == adapter.index);
            // The peer repeats the request if the answer is lost.
            let _ = open.map(|o| o.hca.send_other_mad(&to, mad.bytes()));
        }
        _ => {
            let mut files = files();
            let mut of_device =
                files.open.iter_mut().filter(|f| core::ptr::eq(f.adapter(), adapter));
            of_device.any(|f| f.receive(&d.peer.gid, &mad));
        }
    }
}

/// The table of version 1.
#[cfg_attr(not(test), export_name = "gdrc_umad_1")]
pub static UMAD_1: Umad = Umad { ioctl };

/// ioctl(2) that the kernel has refused with ENOTTY. Returns 0 or a negative errno.
///
/// # Safety
/// The program's own arguments.
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: u64) -> c_int {
    let done = (|| {
        let inode = stat(fd)?.st_ino;
        let mut files = files();
        let file = files.open.iter_mut().find(|f| f.inode() == inode);
        file.ok_or(Error::Os(libc::ENOTTY))?.command(request, argument)
    })();
    match done {
        Ok(()) => 0,
        Err(e) => {
            Verb("ioctl of umad").refused(e);
            -e.errno()
        }
    }
}
