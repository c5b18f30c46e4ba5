//! Signals, signal masks and descriptors that run out. Each test runs in a process of its own,
//! since it changes the whole process.

use gdrcore_core::device::MrReg;
use gdrcore_core::verbs::types::{access, wc_status};
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags as flags, SoftConfig, SoftDevice};
use gdrcore_tests::ends::{complete, connected_pair, Buffer, End, Op};
use gdrcore_tests::map::{register, Map};
use gdrcore_tests::patience;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::is_alone;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn a_program_that_blocks_all_signals_survives_memory_that_vanishes_under_its_helper() {
    if !is_alone("a_program_that_blocks_all_signals_survives_memory_that_vanishes_under_its_helper")
    {
        return;
    }
    // SAFETY: a local set; changes the mask of this thread, and so of those that it makes.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let a = Soft::open(&address(1), &config).expect("a device with helper");
    let b = Soft::open(&address(2), &config).expect("a device with helper");
    let (mut x, y) = connected_pair(a.dev(), b.dev());
    let map = Map::new(1 << 20);
    let all = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    let (addr, length) = (map.addr(), 1 << 20);
    let reg = MrReg { pd: y.pd, addr, length, iova: addr, access: all, provider: 0, cookie: 0 };
    let (_, attr) = b.dev().mr_reg(&reg).expect("mr_reg");
    (x.peer.addr, x.peer.rkey) = (addr, attr.rkey);
    map.vanish();
    x.post(1, Op::Write(0, None), 0, 100_000).expect("post_send");
    // Only the helper of `b` accesses the memory: this thread never runs that device.
    let wc = x.alone(1);
    assert_eq!(wc.status, wc_status::REM_OP_ERR);
    // The helpers must leave the program's signals to the program.
    let term = 1u64 << (libc::SIGTERM - 1);
    let segv = 1u64 << (libc::SIGSEGV - 1);
    let mut helpers = 0;
    for task in std::fs::read_dir("/proc/self/task").expect("/proc").filter_map(Result::ok) {
        let status = std::fs::read_to_string(task.path().join("status")).expect("status");
        if status.contains("gdrc-helper") {
            let mask =
                status.lines().find_map(|l| l.strip_prefix("SigBlk:")).expect("SigBlk").trim();
            let mask = u64::from_str_radix(mask, 16).expect("a mask");
            assert_eq!((mask & term, mask & segv), (term, 0), "{mask:#x}");
            helpers += 1;
        }
    }
    assert_eq!(helpers, 2);
}

/// Set when the program's handler is expected to be called.
static OWN_FAULT: AtomicBool = AtomicBool::new(false);

extern "C" fn handler_of_the_program(_: i32) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(if OWN_FAULT.load(Ordering::Relaxed) { 0 } else { 50 }) };
}

/// Crash reporters and runtimes install handlers late. The next registration or open must put ours
/// in front of them.
#[test]
fn a_handler_installed_after_open_does_not_cost_the_protection_of_vanished_memory() {
    if !is_alone("a_handler_installed_after_open_does_not_cost_the_protection_of_vanished_memory") {
        return;
    }
    let install = || {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: a whole action, and a function that ends the process.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler_of_the_program as *const () as usize;
                assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
            }
        }
    };
    let write_into_vanished = |x: &mut End, y: &mut End, before: &dyn Fn()| {
        let map = Map::new(1 << 20);
        before();
        let access = access::LOCAL_WRITE | access::REMOTE_WRITE;
        let (addr, length) = (map.addr(), 1 << 20);
        let reg = MrReg { pd: y.pd, addr, length, iova: addr, access, provider: 0, cookie: 0 };
        let (_, attr) = y.dev.mr_reg(&reg).expect("mr_reg");
        (x.peer.addr, x.peer.rkey) = (addr, attr.rkey);
        map.vanish();
        x.post(1, Op::Write(0, None), 0, 100_000).expect("post_send");
        complete(x, y, 1, Duration::from_secs(10)).status
    };
    let a = Soft::open(&address(1), &SoftConfig::default()).expect("a device");
    let b = Soft::open(&address(2), &SoftConfig::default()).expect("a device");
    let (mut x, mut y) = connected_pair(a.dev(), b.dev());
    assert_eq!(write_into_vanished(&mut x, &mut y, &install), wc_status::REM_OP_ERR);
    // By another open: existing registrations are protected again.
    let (mut x, mut y) = connected_pair(a.dev(), b.dev());
    let map = Map::new(1 << 20);
    let (_, rkey) = register(&y, &map);
    (x.peer.addr, x.peer.rkey) = (map.addr(), rkey);
    install();
    let _c = Soft::open(&address(3), &SoftConfig::default()).expect("a third device");
    map.vanish();
    x.post(1, Op::Write(0, None), 0, 100_000).expect("post_send");
    assert_eq!(complete(&mut x, &mut y, 1, Duration::from_secs(10)).status, wc_status::REM_OP_ERR);
    // The program's handler still gets the program's own faults.
    OWN_FAULT.store(true, Ordering::Relaxed);
    // SAFETY: none; the fault is what the test is about. The address is never mapped.
    unsafe { std::ptr::without_provenance::<u8>(8).read_volatile() };
    unreachable!("the handler ends the process");
}

#[test]
fn a_signal_ends_a_wait() {
    if !is_alone("a_signal_ends_a_wait") {
        return;
    }
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a handler that does nothing, and a whole action.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    for helper in [0, flags::HELPER] {
        let config = SoftConfig { flags: helper, ..SoftConfig::default() };
        let a = Soft::open(&address(1), &config).expect("a device");
        // SAFETY: no arguments.
        let me = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                // SAFETY: the thread lives as long as the scope.
                assert_eq!(unsafe { libc::pthread_kill(me, libc::SIGUSR1) }, 0);
            });
            let watch = patience::watch(60, "a wait without end that a signal ends");
            assert_eq!(a.dev().wait(-1), Err(Error::Os(libc::EINTR)));
            drop(watch);
        });
        assert_eq!(a.dev().wait(1), Ok(false));
    }
}

#[test]
fn an_open_without_free_descriptors_fails_and_leaks_none() {
    if !is_alone("an_open_without_free_descriptors_fails_and_leaks_none") {
        return;
    }
    let limit = |n: u64| {
        let l = libc::rlimit { rlim_cur: n, rlim_max: 4096 };
        // SAFETY: a live struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &l) }, 0);
    };
    limit(4096);
    let count = || std::fs::read_dir("/proc/self/fd").expect("/proc").count() as u64;
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let name = address(1);
    let bytes = SoftDevice::memsize(&name, &config).expect("memsize");
    let memory = Buffer::new(bytes);
    let before = count();
    let mut refused = 0;
    for more in 0..30 {
        // `count` includes the descriptor that it counts with.
        limit(before - 1 + more);
        // SAFETY: page-aligned memory that only this device uses until `close`.
        let made = unsafe { SoftDevice::init(memory.as_ptr(), bytes, &name, &config) };
        limit(4096);
        match made {
            Ok(dev) => {
                // SAFETY: nothing uses the device.
                unsafe { dev.close() };
            }
            Err(e) => {
                assert!(matches!(e, Error::Os(libc::EMFILE)), "{e}");
                refused += 1;
            }
        }
        assert_eq!(count(), before, "with {more} descriptors left");
    }
    assert!((5..30).contains(&refused), "{refused} refusals");
    // The address is free again, and devices can be opened.
    let (a, b) = (Soft::new(&name), Soft::new(&address(2)));
    let (mut x, mut y): (End, End) = connected_pair(a.dev(), b.dev());
    x.post(1, Op::Write(0, None), 0, 1000).expect("post_send");
    assert_eq!(complete(&mut x, &mut y, 1, Duration::from_secs(10)).status, wc_status::SUCCESS);
}
