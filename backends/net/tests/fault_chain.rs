//! Tests of the fault handlers beside other handlers. Each case runs in a process of its own.

use gdrcore_net::fault;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const ROLE: &str = "GDRCORE_FAULT_ROLE";

/// Runs the test `name` of this file again, as the process under test, by `command`.
fn run(name: &str, command: impl FnOnce(&mut Command) -> &mut Command) -> ExitStatus {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name, "--test-threads=1"]).env(ROLE, "1");
    command(&mut again).output().unwrap().status
}

/// How a process under test ends.
#[derive(Debug, PartialEq, Eq)]
enum Ends {
    /// Its part of the test returns.
    Returns,
    Exits(i32),
    Killed(i32),
}

/// Runs `subject` in a process of its own, which the test `name` is in. It has to end so.
fn case(name: &str, expected: Ends, subject: impl FnOnce()) {
    const RETURNED: i32 = 7;
    if is_subject() {
        subject();
        // SAFETY: ends the process.
        unsafe { libc::_exit(RETURNED) };
    }
    let status = run(name, |command| command);
    let ended = match status.code() {
        Some(RETURNED) => Ends::Returns,
        Some(code) => Ends::Exits(code),
        None => Ends::Killed(status.signal().unwrap()),
    };
    assert_eq!(ended, expected);
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

/// The function of a signal's action.
fn action(signal: i32) -> usize {
    // SAFETY: zeroes are valid for sigaction; the call only asks.
    unsafe {
        let mut a: libc::sigaction = core::mem::zeroed();
        libc::sigaction(signal, core::ptr::null(), &mut a);
        a.sa_sigaction
    }
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
    case("a_foreign_fault_goes_to_the_handler_that_was_there_before", Ends::Exits(42), || {
        set(libc::SIGSEGV, earlier as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER);
        fault::install().unwrap();
        fault::install().unwrap();
        own_fault();
        crash();
    });
}

#[test]
fn a_foreign_fault_goes_to_a_handler_without_siginfo() {
    case(
        "a_foreign_fault_goes_to_a_handler_without_siginfo",
        Ends::Exits(40 + libc::SIGSEGV),
        || {
            set(libc::SIGSEGV, earlier_plain as *const () as usize, 0);
            fault::install().unwrap();
            own_fault();
            crash();
        },
    );
}

#[test]
fn a_foreign_fault_without_handler_kills_as_before() {
    case("a_foreign_fault_without_handler_kills_as_before", Ends::Killed(libc::SIGSEGV), || {
        for handler in [libc::SIG_DFL, libc::SIG_IGN] {
            set(libc::SIGSEGV, handler, 0);
        }
        fault::install().unwrap();
        own_fault();
        crash();
    });
}

#[test]
fn a_sent_signal_kills_as_before() {
    case("a_sent_signal_kills_as_before", Ends::Killed(libc::SIGBUS), || {
        set(libc::SIGBUS, libc::SIG_DFL, 0);
        fault::install().unwrap();
        own_fault();
        // SAFETY: a signal to ourselves.
        unsafe { libc::raise(libc::SIGBUS) };
    });
}

#[test]
fn an_ignored_signal_stays_ignored() {
    case("an_ignored_signal_stays_ignored", Ends::Returns, || {
        set(libc::SIGBUS, libc::SIG_IGN, 0);
        fault::install().unwrap();
        // SAFETY: a signal to ourselves.
        unsafe { libc::raise(libc::SIGBUS) };
        own_fault();
    });
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

type Action = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// As programs do: installs its handler, and keeps the replaced one.
fn install_later(function: Action, later: &Later) {
    let old = action(libc::SIGSEGV);
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
    case(
        "ours_is_put_back_in_front_of_a_later_handler_which_gets_foreign_faults",
        Ends::Exits(42),
        || {
            begin();
            install_later(p, &P);
            fault::install().unwrap();
            own_fault();
            assert_eq!(
                P.calls.load(Ordering::Relaxed),
                0,
                "the program's handler got a fault of ours"
            );
            // The signal goes to the newest handler, which passes it on to ours, which passes it on
            // to the oldest.
            crash();
        },
    );
}

#[test]
fn a_later_handler_that_passes_nothing_on_gets_foreign_faults() {
    case(
        "a_later_handler_that_passes_nothing_on_gets_foreign_faults",
        Ends::Exits(40 + libc::SIGSEGV),
        || {
            begin();
            set(libc::SIGSEGV, earlier_plain as *const () as usize, 0);
            fault::install().unwrap();
            own_fault();
            crash();
        },
    );
}

#[test]
fn a_handler_that_replaces_ours_twice_ends() {
    case("a_handler_that_replaces_ours_twice_ends", Ends::Exits(42), || {
        begin();
        for _ in 0..100 {
            // From the second time on, the handler that it replaced is ours in front of itself.
            install_later(p, &P);
            fault::install().unwrap();
            own_fault();
        }
        crash();
    });
}

#[test]
fn a_program_that_restores_its_old_handler_gets_that() {
    case("a_program_that_restores_its_old_handler_gets_that", Ends::Exits(42), || {
        begin();
        let before = action(libc::SIGSEGV);
        set(libc::SIGSEGV, earlier_plain as *const () as usize, 0);
        fault::install().unwrap();
        set(libc::SIGSEGV, before, libc::SA_SIGINFO);
        fault::install().unwrap();
        own_fault();
        // Not to the handler that is gone.
        crash();
    });
}

#[test]
fn handlers_beyond_the_table_stay_in_front_of_ours() {
    case("handlers_beyond_the_table_stay_in_front_of_ours", Ends::Exits(42), || {
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
    });
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
    case("threads_that_install_handlers_at_once_lose_none", Ends::Exits(42), || {
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
    });
}

/// Calls of [`repairs`] and [`returns`].
static CALLS: AtomicU32 = AtomicU32::new(0);
/// A page that [`repairs`] makes accessible.
static PAGE: AtomicUsize = AtomicUsize::new(0);

fn page() -> *mut libc::c_void {
    core::ptr::with_exposed_provenance_mut(PAGE.load(Ordering::Relaxed))
}

/// Accesses the page.
fn access_page() {
    // SAFETY: the fault is what the test is about.
    unsafe { page().cast::<u8>().read_volatile() };
}

fn protect_page(prot: i32) {
    // SAFETY: a page of a mapping of the test's own, or a new one.
    unsafe {
        if PAGE.load(Ordering::Relaxed) == 0 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let new = libc::mmap(core::ptr::null_mut(), 4096, prot, flags, -1, 0);
            PAGE.store(new.expose_provenance(), Ordering::Relaxed);
        }
        libc::mprotect(page(), 4096, prot);
    }
}

/// As a collector of garbage does: the access succeeds when the handler returns.
extern "C" fn repairs(_: i32) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    protect_page(libc::PROT_READ | libc::PROT_WRITE);
}

/// The fault repeats itself when the handler returns.
extern "C" fn returns(_: i32) {
    if CALLS.fetch_add(1, Ordering::Relaxed) > 0 {
        // SAFETY: ends the process.
        unsafe { libc::_exit(21) };
    }
}

#[test]
fn a_handler_for_one_signal_is_called_once() {
    case("a_handler_for_one_signal_is_called_once", Ends::Killed(libc::SIGSEGV), || {
        set(libc::SIGSEGV, returns as *const () as usize, libc::SA_RESETHAND);
        fault::install().unwrap();
        own_fault();
        // The handler returns, and the fault repeats itself.
        crash();
    });
}

#[test]
fn a_handler_for_one_signal_that_is_installed_again_is_called_again() {
    case("a_handler_for_one_signal_that_is_installed_again_is_called_again", Ends::Returns, || {
        for round in 1..=3 {
            let flags = libc::SA_RESETHAND | libc::SA_NODEFER;
            set(libc::SIGSEGV, repairs as *const () as usize, flags);
            fault::install().unwrap();
            protect_page(libc::PROT_NONE);
            access_page();
            own_fault();
            assert_eq!(CALLS.load(Ordering::Relaxed), round);
        }
    });
}

/// What the library leaves behind when it is unmapped: the program's own action, a spent handler's
/// as the kernel would have it, and a handler that the program has installed since.
#[test]
fn what_the_program_had_is_back_when_ours_are_taken_away() {
    let dfl = libc::SIG_DFL;
    let (once, since) = (returns as *const () as usize, repairs as *const () as usize);
    case("what_the_program_had_is_back_when_ours_are_taken_away", Ends::Returns, || {
        // The standard library has handlers, too.
        let actions = || [libc::SIGSEGV, libc::SIGBUS].map(action);
        let before = actions();
        fault::install().unwrap();
        assert_ne!(actions(), before);
        fault::uninstall();
        let mut seen = vec![actions() == before];
        for spend in [false, true] {
            set(libc::SIGSEGV, once, libc::SA_RESETHAND | libc::SA_NODEFER);
            fault::install().unwrap();
            if spend {
                // SAFETY: sends a signal to this thread, whose handler returns.
                unsafe { libc::raise(libc::SIGSEGV) };
            }
            fault::uninstall();
            seen.push(action(libc::SIGSEGV) == if spend { dfl } else { once });
        }
        fault::install().unwrap();
        set(libc::SIGSEGV, since, 0);
        fault::uninstall();
        seen.push(action(libc::SIGSEGV) == since);
        assert_eq!(seen, [true; 4]);
    });
}

/// A handler that returns is called for each fault.
#[test]
fn a_handler_that_repairs_is_called_for_each_fault() {
    case("a_handler_that_repairs_is_called_for_each_fault", Ends::Returns, || {
        set(libc::SIGSEGV, repairs as *const () as usize, 0);
        fault::install().unwrap();
        for round in 1..=5 {
            protect_page(libc::PROT_NONE);
            access_page();
            own_fault();
            assert_eq!(CALLS.load(Ordering::Relaxed), round);
        }
    });
}

/// Exits with the signals that are blocked in it: 1: its own, 2: SIGUSR1; 4: it runs on the
/// alternate stack.
extern "C" fn tells(signal: i32) {
    // SAFETY: a local set and a local description, which live through the calls.
    unsafe {
        let (mut mask, mut stack): (libc::sigset_t, libc::stack_t) =
            (core::mem::zeroed(), core::mem::zeroed());
        libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &mut mask);
        libc::sigaltstack(core::ptr::null(), &mut stack);
        let blocked = |s: i32, bit: i32| libc::sigismember(&mask, s) * bit;
        let on = if stack.ss_flags & libc::SS_ONSTACK != 0 { 4 } else { 0 };
        libc::_exit(blocked(signal, 1) + blocked(libc::SIGUSR1, 2) + on);
    }
}

/// Sets [`tells`] with flags and a mask, with an alternate stack for this thread.
fn set_tells(flags: i32, mask: &[i32]) {
    const ALTERNATE: usize = 64 << 10;
    // SAFETY: zeroes are valid for sigaction; the alternate stack is never freed.
    unsafe {
        let base = Box::leak(vec![0u8; ALTERNATE].into_boxed_slice()).as_mut_ptr().cast();
        let stack = libc::stack_t { ss_sp: base, ss_flags: 0, ss_size: ALTERNATE };
        libc::sigaltstack(&stack, core::ptr::null_mut());
        let mut a: libc::sigaction = core::mem::zeroed();
        a.sa_sigaction = tells as *const () as usize;
        a.sa_flags = flags;
        for &signal in mask {
            libc::sigaddset(&mut a.sa_mask, signal);
        }
        libc::sigaction(libc::SIGSEGV, &a, core::ptr::null_mut());
    }
}

/// Each with the same flags and mask, by the kernel alone and with ours in front.
#[test]
fn a_handler_runs_on_the_stack_and_with_the_signals_blocked_that_it_was_installed_with() {
    const NAME: &str =
        "a_handler_runs_on_the_stack_and_with_the_signals_blocked_that_it_was_installed_with";
    let (usr1, segv) = (libc::SIGUSR1, libc::SIGSEGV);
    let cases: [(i32, &[i32], i32); 6] = [
        (0, &[], 1),
        (0, &[usr1], 3),
        (libc::SA_NODEFER, &[usr1], 2),
        (libc::SA_NODEFER, &[segv], 1),
        (libc::SA_ONSTACK, &[], 5),
        (libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESETHAND, &[], 4),
    ];
    if is_subject() {
        let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
        let (flags, mask, _) = cases[number("GDRCORE_FAULT_CASE")];
        set_tells(flags, mask);
        if number("GDRCORE_FAULT_OURS") == 1 {
            fault::install().unwrap();
            own_fault();
        }
        crash();
        return;
    }
    for (k, case) in cases.iter().enumerate() {
        for ours in ["0", "1"] {
            let status = run(NAME, |command| {
                command.env("GDRCORE_FAULT_OURS", ours).env("GDRCORE_FAULT_CASE", k.to_string())
            });
            assert_eq!(status.code(), Some(case.2), "{case:?}, ours {ours}: {status}");
        }
    }
}

extern "C" fn nothing(_: i32) {}

/// A signal that another thread or process sends interrupts a system call only if the program's
/// handler would.
#[test]
fn system_calls_go_on_after_a_signal_as_the_program_wants() {
    case("system_calls_go_on_after_a_signal_as_the_program_wants", Ends::Returns, || {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let handler = nothing as *const () as usize;
        for (function, flags, goes_on) in
            [(handler, libc::SA_RESTART, true), (handler, 0, false), (libc::SIG_IGN, 0, true)]
        {
            set(libc::SIGBUS, function, flags);
            fault::install().unwrap();
            // SAFETY: no precondition.
            let reader = unsafe { libc::pthread_self() } as usize;
            let done = AtomicU32::new(0);
            std::thread::scope(|s| {
                s.spawn(|| {
                    // Signals come again and again, so that some come while the other thread waits.
                    for k in 0..200 {
                        if done.load(Ordering::Relaxed) == 0 {
                            // SAFETY: the thread lives until this one has ended.
                            unsafe { libc::pthread_kill(reader as libc::pthread_t, libc::SIGBUS) };
                        }
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        if k == 199 && done.load(Ordering::Relaxed) == 0 {
                            // SAFETY: one byte of a live array.
                            unsafe { libc::write(ends[1], b"x".as_ptr().cast(), 1) };
                        }
                    }
                });
                let mut byte = 0u8;
                // SAFETY: room for one byte.
                let n = unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
                done.store(1, Ordering::Relaxed);
                assert_eq!(n == 1, goes_on, "flags {flags:#x}");
            });
        }
    });
}
