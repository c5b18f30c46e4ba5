//! The fault handlers beside other handlers: each case runs in a process of its own.

use gdrcore_net::fault;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};

const ROLE: &str = "GDRCORE_FAULT_ROLE";

/// Runs the test `name` of this file again, as the process under test.
fn run(name: &str) -> ExitStatus {
    let me = std::env::current_exe().unwrap();
    let out = Command::new(me).args(["--exact", name, "--test-threads=1"]).env(ROLE, "1").output().unwrap();
    out.status
}

fn is_subject() -> bool {
    // No core files for deaths that are wanted.
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let subject = std::env::var_os(ROLE).is_some();
    if subject {
        // SAFETY: `none` is a whole rlimit.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    }
    subject
}

/// An access that is not core's.
fn crash() {
    // SAFETY: none; the fault is what the test is about. The address is never mapped.
    unsafe { core::ptr::without_provenance::<u8>(8).read_volatile() };
}

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn earlier(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the chain must hand the kernel's siginfo through.
    let addr = unsafe { (*info).si_addr() } as usize;
    let good = signal == libc::SIGSEGV && addr == 8 && SEEN.load(Ordering::Relaxed) == 0;
    // SAFETY: ends the process.
    unsafe { libc::_exit(if good { 42 } else { 43 }) };
}

extern "C" fn earlier_plain(signal: i32) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(40 + signal) };
}

fn set(signal: i32, function: usize, flags: i32) {
    // SAFETY: zeroes are valid for sigaction, and the function has the signature that the flags say.
    unsafe {
        let mut a: libc::sigaction = core::mem::zeroed();
        a.sa_sigaction = function;
        a.sa_flags = flags;
        libc::sigaction(signal, &a, core::ptr::null_mut());
    }
}

/// Core's own fault, so that the handlers are known to work before the foreign one.
fn own_fault() {
    let mut b = [0u8; 8];
    assert!(gdrcore_core::mem::host::fetch(8, &mut b).is_err());
    assert!(gdrcore_core::mem::host::place(8, &b).is_err());
}

#[test]
fn a_foreign_fault_goes_to_the_handler_that_was_there_before() {
    if is_subject() {
        set(libc::SIGSEGV, earlier as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER);
        fault::install().unwrap();
        fault::install().unwrap();
        own_fault();
        crash();
        return;
    }
    let status = run("a_foreign_fault_goes_to_the_handler_that_was_there_before");
    assert_eq!(status.code(), Some(42), "{status}");
}

#[test]
fn a_foreign_fault_goes_to_a_handler_without_siginfo() {
    if is_subject() {
        set(libc::SIGSEGV, earlier_plain as *const () as usize, 0);
        fault::install().unwrap();
        own_fault();
        crash();
        return;
    }
    let status = run("a_foreign_fault_goes_to_a_handler_without_siginfo");
    assert_eq!(status.code(), Some(40 + libc::SIGSEGV), "{status}");
}

#[test]
fn a_foreign_fault_without_handler_kills_as_before() {
    if is_subject() {
        for handler in [libc::SIG_DFL, libc::SIG_IGN] {
            set(libc::SIGSEGV, handler, 0);
        }
        fault::install().unwrap();
        own_fault();
        crash();
        return;
    }
    let status = run("a_foreign_fault_without_handler_kills_as_before");
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
}

#[test]
fn a_sent_signal_kills_as_before() {
    if is_subject() {
        set(libc::SIGBUS, libc::SIG_DFL, 0);
        fault::install().unwrap();
        own_fault();
        // SAFETY: a signal to ourselves.
        unsafe { libc::raise(libc::SIGBUS) };
        return;
    }
    let status = run("a_sent_signal_kills_as_before");
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

#[test]
fn an_ignored_signal_stays_ignored() {
    if is_subject() {
        set(libc::SIGBUS, libc::SIG_IGN, 0);
        fault::install().unwrap();
        // SAFETY: a signal to ourselves.
        unsafe { libc::raise(libc::SIGBUS) };
        own_fault();
        // SAFETY: ends the process.
        unsafe { libc::_exit(7) };
    }
    let status = run("an_ignored_signal_stays_ignored");
    assert_eq!(status.code(), Some(7), "{status}");
}
