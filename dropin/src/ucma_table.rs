//! librdmacm's kernel interface over this process's devices: the table of functions that
//! `libgdrcore_preload.so` looks up when the library opens `/dev/infiniband/rdma_cm`.
//! `gdrcore_ucma` executes the commands.
//!
//! A thread takes the events of the connection managers and wakes threads that sleep on the file's
//! descriptor. At exit the files are closed, as the kernel would close them, so that the peers of
//! open connections get a DREQ.

use crate::adapter::Adapter;
use crate::gids;
use crate::hca::{Hca, CM_EVENTS};
use crate::layer;
use crate::open_devices;
use crate::umad;
use crate::verb_result::Verb;
use crate::worker::Sleep;
use core::ffi::{c_int, c_void};
use core::ops::Deref;
use gdrcore_calls::preload::Ucma;
use gdrcore_calls::Row;
use gdrcore_core::device::CmDevice;
use gdrcore_core::mem::host;
use gdrcore_core::verbs::types::AhAttr;
use gdrcore_core::Result;
use gdrcore_net::fork::around_forks;
use gdrcore_net::thread_lock::ForkLock;
use gdrcore_net::{fault, reason};
use gdrcore_ucma::file::Files;
use gdrcore_ucma::proto::number;
use gdrcore_ucma::session::{DeviceInfo, Devices, Manage, Manager};
use std::sync::{Arc, Once};

/// The list of devices at the time when librdmacm first opened its file.
struct Adapters {
    all: Vec<&'static Adapter>,
    list: Vec<DeviceInfo>,
}

impl Adapters {
    fn new() -> Self {
        let all = open_devices::present();
        let info = |a: &&'static Adapter| DeviceInfo {
            node_guid: a.guid(),
            index: a.index,
            gid: a.endpoint.ip,
            gid_index: gids::PREFERRED,
            scope_id: a.endpoint.scope_id,
        };
        let list = all.iter().map(info).collect();
        Adapters { all, list }
    }
}

impl Devices for Adapters {
    fn list(&self) -> &[DeviceInfo] {
        &self.list
    }

    fn manager(&self, device: usize) -> Result<Manager> {
        let adapter = self.all.get(device).ok_or(gdrcore_core::Error::NoDevice)?;
        umad::prepare(adapter.lid != 0);
        let hca = open_devices::get(adapter)?;
        match hca.device.cm() {
            Ok(cm) => Ok(Arc::new(HeldHca { hca, cm })),
            Err(e) => {
                open_devices::put(hca);
                Err(e)
            }
        }
    }
}

/// An open device, kept open, and its connection manager.
struct HeldHca {
    hca: &'static Hca,
    cm: &'static dyn CmDevice,
}

impl Drop for HeldHca {
    fn drop(&mut self) {
        open_devices::put(self.hca);
    }
}

impl Manage for HeldHca {
    fn path_mtu(&self, to: &AhAttr) -> u8 {
        self.hca.device.path_mtu(to).unwrap_or(self.hca.attr.active_mtu) as u8
    }
}

impl Deref for HeldHca {
    type Target = dyn CmDevice;
    fn deref(&self) -> &Self::Target {
        self.cm
    }
}

/// The files of a process.
struct Process {
    /// The process that owns them; a child of fork starts without any.
    pid: libc::pid_t,
    files: &'static Files<Adapters>,
}

/// The process's files. Their lock is held during forks.
static PROCESS: ForkLock<Option<Process>> = ForkLock::new(None);

/// Holds the locks of the list of devices and of the files around every later fork.
fn guard_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Registered after the list's lock, so that it is held first.
        open_devices::guard_forks();
        around_forks(hold, release);
    });
}

fork_handlers!(PROCESS);

fn pid() -> libc::pid_t {
    // SAFETY: takes nothing, never fails.
    unsafe { libc::getpid() }
}

/// The files of this process, if it has opened one.
fn files() -> Option<&'static Files<Adapters>> {
    PROCESS.lock().as_ref().filter(|p| p.pid == pid()).map(|p| p.files)
}

/// The files of this process, made if needed.
///
/// # Errors
/// The system's: no descriptor, no thread.
fn files_or_new() -> Result<&'static Files<Adapters>> {
    guard_forks();
    let mut process = PROCESS.lock();
    if let Some(p) = process.as_ref().filter(|p| p.pid == pid()) {
        return Ok(p.files);
    }
    // Commands contain addresses of the program. A bad address must become an error, not a fault.
    fault::install()?;
    // Never freed, because threads of the program may be inside at any time.
    let files: &'static Files<Adapters> = Box::leak(Box::new(Files::new(Adapters::new())));
    CM_EVENTS.start("gdrc-ucma", move |why| {
        if why.last {
            files.close_all()
        } else {
            while files.pump() > 0 {}
        }
        Sleep::default()
    })?;
    // SAFETY: a function of this library, which librdmacm keeps loaded.
    unsafe { libc::atexit(at_exit) };
    *process = Some(Process { pid: pid(), files });
    Ok(files)
}

extern "C" fn at_exit() {
    CM_EVENTS.finish();
}

/// The table of version 1.
#[cfg_attr(not(test), export_name = "gdrc_ucma_1")]
pub static UCMA_1: Ucma = Ucma { open, write, close };

unsafe extern "C" fn open(flags: c_int) -> c_int {
    layer::channel(Row::rdma_create_event_channel, -1, || {
        reason::install();
        files_or_new().and_then(|f| f.open(flags)).unwrap_or_else(|e| -e.errno())
    })
}

unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: usize) -> isize {
    let done = layer::command([fd as usize, buf as usize, len], || {
        let Some(files) = files() else { return libc::EBADF };
        match files.write(fd, buf as u64, len) {
            Ok(_) => 0,
            Err(e) => {
                let mut number = [0xff; 4];
                // A command that cannot be read has no number.
                let _ = host::fetch(buf as u64, &mut number);
                Verb(number::call(u32::from_ne_bytes(number))).refused(e);
                e.errno()
            }
        }
    });
    match done {
        0 => len as isize,
        errno => -(errno as isize),
    }
}

unsafe extern "C" fn close(fd: c_int) {
    layer::channel(Row::rdma_destroy_event_channel, fd, || {
        if let Some(files) = files() {
            files.close(fd);
        }
        0
    });
}
