//! What is told of faults: a line for each in a log, and how to repeat the run when the process
//! ends.

use super::FaultSpec;
use crate::reason::say;
use crate::signals::without_signals;
use crate::sys::Fd;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gdrcore_core::error::Result;
use gdrcore_core::inject::{CallHit, Direction};
use gdrcore_core::reason::refused;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock};

/// Names the file of the log.
const LOG: &str = "GDRC_FAULT_LOG";

/// Faults of this process.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// How to repeat the run: the process that it is of, and the words.
static REPEAT: Mutex<(u32, String)> = Mutex::new((0, String::new()));

/// The seed of a process that was given none, the same for all of its devices.
///
/// # Errors
/// As [`crate::clock::random_seed`].
pub fn process_seed() -> Result<u64> {
    static SEED: OnceLock<u64> = OnceLock::new();
    // Short, because people write it down.
    let drawn = crate::clock::random_seed()? >> 44 | 1;
    Ok(*SEED.get_or_init(|| drawn))
}

/// Whether the process has rights that its caller lacks: its environment is the caller's.
pub fn is_privileged() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Tells of each fault of a device.
pub struct FaultLog {
    log: Option<Fd>,
}

/// The log that the environment names, opened at its end.
///
/// # Errors
/// Those of open(2).
fn open_log() -> Result<Option<Fd>> {
    // A program with the rights of another user would write the file by them.
    let path = std::env::var_os(LOG).filter(|v| !v.is_empty() && !is_privileged());
    let Some(path) = path.and_then(|p| CString::new(p.as_bytes()).ok()) else {
        return Ok(None);
    };
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: a C string.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_NONBLOCK, 0o644) };
    let why = std::io::Error::last_os_error();
    match Fd::from_call(fd) {
        Ok(log) => Ok(Some(log)),
        Err(e) => Err(refused(e, format_args!("{LOG}: cannot be opened: {why}"))),
    }
}

/// Checks that the log can be written, for faults that no device has.
///
/// # Errors
/// Those of open(2).
pub fn check_log() -> Result<()> {
    open_log().map(drop)
}

/// Tells of a call that has failed. The log is opened for each: between two calls a program may
/// close all descriptors.
pub fn tell_of_call(spec: &FaultSpec<'_>, seed: u64, hit: &CallHit<'_>) {
    note_repeat(spec, seed);
    // The opening of a device has told why it cannot be opened.
    let mut fault_log = FaultLog { log: open_log().unwrap_or(None) };
    fault_log.log_fault(hit);
}

/// The rules in one line.
fn in_one_line(rules: &str) -> String {
    let lines = rules.lines().map(|line| line.split('#').next().unwrap_or_default());
    let rules = lines.flat_map(|line| line.split(';')).map(str::trim).filter(|r| !r.is_empty());
    rules.collect::<Vec<_>>().join("; ")
}

/// Counts a fault that has no line in the log: whether a poll ends early depends on time, and keys
/// are of a whole device. [`note_repeat`] comes first.
pub fn count_one() {
    FAULTS.fetch_add(1, Ordering::Relaxed);
}

/// Notes how the run is repeated.
pub fn note_repeat(spec: &FaultSpec<'_>, seed: u64) {
    let (rules, own) = (in_one_line(spec.rules), std::process::id());
    let words = match spec.launched {
        Some(_) => format!("gdrcore-run --fault '{rules}' --seed {seed} -- PROGRAM"),
        None => format!("gdrc_config.faults \"{rules}\", seed {seed}"),
    };
    if let Ok(mut repeat) = REPEAT.try_lock() {
        if repeat.0 != 0 && repeat.0 != own {
            // Those of the parent, which has told of them. A thread that is told of the process's
            // first fault may come behind others that have counted theirs.
            FAULTS.store(0, Ordering::Relaxed);
        }
        *repeat = (own, words);
    }
}

impl FaultLog {
    /// Of a device with these faults.
    ///
    /// # Errors
    /// As [`check_log`].
    pub fn open(spec: &FaultSpec<'_>, seed: u64) -> Result<FaultLog> {
        note_repeat(spec, seed);
        Ok(FaultLog { log: open_log()? })
    }

    /// Tells of a fault.
    pub fn log_fault(&mut self, hit: &dyn fmt::Display) {
        count_one();
        self.write(format_args!("{hit}"));
    }

    /// Tells of a packet that found no room among those that wait, and is lost.
    pub fn overflow(&mut self, direction: Direction, qp: u32) {
        self.write(format_args!("overflow {} qp {qp}", direction.name()));
    }

    /// One write, of a whole line.
    fn write(&self, words: fmt::Arguments<'_>) {
        let Some(log) = &self.log else { return };
        let mut line = heapless::String::<256>::new();
        if writeln!(line, "{words}").is_ok() {
            // SAFETY: the line lives through the call.
            let write = || unsafe { libc::write(log.raw(), line.as_ptr().cast(), line.len()) };
            without_signals(write);
        }
    }
}

/// At the end of the process: says how to repeat the run, once, if this process has had faults.
pub fn report() {
    static SAID: AtomicBool = AtomicBool::new(false);
    // No wait: another thread may have been interrupted by the end of the process.
    let Ok(repeat) = REPEAT.try_lock() else { return };
    if repeat.0 != std::process::id() || SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let faults = FAULTS.load(Ordering::Relaxed);
    if faults > 0 {
        say(format_args!("{faults} faults; the same ones again: {}", repeat.1));
    }
}
