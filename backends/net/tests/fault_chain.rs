//! Tests of the fault handlers beside other handlers. Each case runs in a process of its own.

use gdrcore_net::fault;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const ROLE: &str = "GDRCORE_FAULT_ROLE";

/// Runs the test `name` of this file again, as the process under test.
fn run(name: &str) -> ExitStatus {
    let me = std::env::current_exe().unwrap();
    let out = Command::new(me)
        .args(["--exact", name, "--test-threads=1"])
        .env(ROLE, "1")
        .output()
        .unwrap();
    out.status
}

fn is_subject() -> bool {
    // Intended crashes leave no core files.
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
    // SAFETY: zeroes are valid for sigaction, and the function has the signature that the flags
    // name.
    unsafe {
        let mut a: libc::sigaction = core::mem::zeroed();
        a.sa_sigaction = function;
        a.sa_flags = flags;
        libc::sigaction(signal, &a, core::ptr::null_mut());
    }
}

/// A fault in core's own copy, so that the handlers are known to work before the foreign fault.
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

/// A handler that the program installs after ours. It passes foreign signals on to the handler that
/// it replaced.
struct Later {
    calls: AtomicU32,
    saved: AtomicUsize,
}

static P: Later = Later { calls: AtomicU32::new(0), saved: AtomicUsize::new(0) };
static Q: Later = Later { calls: AtomicU32::new(0), saved: AtomicUsize::new(0) };

impl Later {
    fn pass_on(&self, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // Beyond any chain that ends.
        if self.calls.fetch_add(1, Ordering::Relaxed) > 1_000_000 {
            // SAFETY: ends the process.
            unsafe { libc::_exit(99) };
        }
        // SAFETY: it is an action with siginfo that this handler has replaced.
        let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { core::mem::transmute(self.saved.load(Ordering::Relaxed)) };
        f(signal, info, context);
    }
}

extern "C" fn p(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    P.pass_on(signal, info, context);
}

extern "C" fn q(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    Q.pass_on(signal, info, context);
}

/// The handler that is installed for SIGSEGV.
fn installed() -> usize {
    // SAFETY: zeroes are valid for sigaction; asks only.
    unsafe {
        let mut now: libc::sigaction = core::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, core::ptr::null(), &mut now);
        now.sa_sigaction
    }
}

type Action = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// As programs do: installs its handler, and keeps the replaced one.
fn install_later(function: Action, later: &Later) {
    let old = installed();
    set(libc::SIGSEGV, function as *const () as usize, libc::SA_SIGINFO);
    later.saved.store(old, Ordering::Relaxed);
}

/// The program's first handler, and ours in front of it.
fn begin() {
    set(libc::SIGSEGV, earlier as *const () as usize, libc::SA_SIGINFO);
    fault::install().unwrap();
}

#[test]
fn ours_is_put_back_in_front_of_a_later_handler_which_gets_foreign_faults() {
    if is_subject() {
        begin();
        install_later(p, &P);
        fault::install().unwrap();
        own_fault();
        assert_eq!(P.calls.load(Ordering::Relaxed), 0, "the program's handler got a fault of ours");
        // The signal goes to the newest handler, which passes it on to ours, which passes it on to
        // the oldest.
        crash();
        return;
    }
    let status = run("ours_is_put_back_in_front_of_a_later_handler_which_gets_foreign_faults");
    assert_eq!(status.code(), Some(42), "{status}");
}

#[test]
fn a_later_handler_that_passes_nothing_on_gets_foreign_faults() {
    if is_subject() {
        begin();
        set(libc::SIGSEGV, earlier_plain as *const () as usize, 0);
        fault::install().unwrap();
        own_fault();
        crash();
        return;
    }
    let status = run("a_later_handler_that_passes_nothing_on_gets_foreign_faults");
    assert_eq!(status.code(), Some(40 + libc::SIGSEGV), "{status}");
}

#[test]
fn a_handler_that_replaces_ours_twice_ends() {
    if is_subject() {
        begin();
        for _ in 0..100 {
            // From the second time on, the handler that it replaced is ours in front of itself.
            install_later(p, &P);
            fault::install().unwrap();
            own_fault();
        }
        crash();
        return;
    }
    let status = run("a_handler_that_replaces_ours_twice_ends");
    assert_eq!(status.code(), Some(42), "{status}");
}

#[test]
fn a_program_that_restores_its_old_handler_gets_that() {
    if is_subject() {
        begin();
        let before = installed();
        set(libc::SIGSEGV, earlier_plain as *const () as usize, 0);
        fault::install().unwrap();
        set(libc::SIGSEGV, before, libc::SA_SIGINFO);
        fault::install().unwrap();
        own_fault();
        // Not to the handler that is gone.
        crash();
        return;
    }
    let status = run("a_program_that_restores_its_old_handler_gets_that");
    assert_eq!(status.code(), Some(42), "{status}");
}

#[test]
fn handlers_beyond_the_table_stay_in_front_of_ours() {
    if is_subject() {
        begin();
        for flags in 0..40 {
            // Another action each time.
            let flags = [
                libc::SA_RESTART,
                libc::SA_NOCLDSTOP,
                libc::SA_NOCLDWAIT,
                libc::SA_NODEFER,
                libc::SA_ONSTACK,
            ]
            .iter()
            .enumerate()
            .filter(|(bit, _)| flags >> bit & 1 != 0)
            .fold(libc::SA_SIGINFO, |all, (_, f)| all | f);
            set(libc::SIGSEGV, earlier as *const () as usize, flags);
            fault::install().unwrap();
        }
        crash();
        return;
    }
    let status = run("handlers_beyond_the_table_stay_in_front_of_ours");
    assert_eq!(status.code(), Some(42), "{status}");
}

/// Installs a handler repeatedly, whatever handler is there.
fn churn(function: Action) {
    for _ in 0..3000 {
        set(libc::SIGSEGV, function as *const () as usize, libc::SA_SIGINFO);
        own_fault();
        fault::install().unwrap();
        own_fault();
    }
}

#[test]
fn threads_that_install_handlers_at_once_lose_none() {
    if is_subject() {
        begin();
        std::thread::scope(|s| {
            // The first time one after the other, so that none replaces itself.
            install_later(p, &P);
            install_later(q, &Q);
            s.spawn(|| churn(p));
            s.spawn(|| churn(q));
            s.spawn(|| {
                for _ in 0..3000 {
                    fault::install().unwrap();
                    own_fault();
                }
            });
        });
        fault::install().unwrap();
        own_fault();
        crash();
        return;
    }
    let status = run("threads_that_install_handlers_at_once_lose_none");
    assert_eq!(status.code(), Some(42), "{status}");
}
