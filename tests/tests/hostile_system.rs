//! Limits of kernel, threads and forks: sockets without room, links that refuse segmentation,
//! descriptors, sleepers beside a helper thread, two threads on one queue.

use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{wc_status, Wc};
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags as flags, SoftConfig, SoftDevice};
use gdrcore_tests::ends::{connected, pattern, succeed, Buffer, End, Op, Shape};
use gdrcore_tests::patience::{deadline, limit_ms};
use gdrcore_tests::skip;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{find, run};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The open descriptors of this process.
fn descriptors() -> BTreeSet<i32> {
    let dir = std::fs::read_dir("/proc/self/fd").expect("/proc");
    dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The device's socket that is bound to the address of `name`.
fn socket_of(name: &str) -> i32 {
    let wanted: SocketAddr = name.trim_start_matches("soft:").parse().expect("address:port");
    let SocketAddr::V4(wanted) = wanted else {
        unreachable!("tests of this file use IPv4 addresses")
    };
    descriptors()
        .into_iter()
        .find(|&fd| {
            // SAFETY: zeroes are valid for sockaddr_in.
            let mut at: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            let mut len = size_of::<libc::sockaddr_in>() as u32;
            // SAFETY: room for `len` bytes; whatever the descriptor is, the call only asks.
            let rc = unsafe { libc::getsockname(fd, (&raw mut at).cast(), &mut len) };
            rc == 0
                && i32::from(at.sin_family) == libc::AF_INET
                && u16::from_be(at.sin_port) == wanted.port()
                && at.sin_addr.s_addr.to_ne_bytes() == wanted.ip().octets()
        })
        .expect("the device's socket")
}

fn set(fd: i32, option: i32, value: i32) {
    // SAFETY: a live integer of the given length.
    let rc =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), 4) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

fn exchange(a: &mut End, b: &mut End, rounds: u64, len: u32) {
    for round in 0..rounds {
        let bytes = pattern(round, len as usize);
        a.buffer.write(0, &bytes);
        a.post(2 * round, Op::Write(0, None), 0, len).expect("post_send");
        succeed(a, b, 2 * round);
        assert!(b.buffer.read(0, len as usize) == bytes, "round {round}");
        a.post(2 * round + 1, Op::Read(0), len.into(), len).expect("post_send");
        succeed(a, b, 2 * round + 1);
        assert!(a.buffer.read(len as usize, len as usize) == bytes, "round {round}");
    }
}

#[test]
fn sockets_without_room_lose_packets_and_no_bytes() {
    let (x, y) = (address(1), address(2));
    let (dx, dy) = (Soft::new(&x), Soft::new(&y));
    for fd in [socket_of(&x), socket_of(&y)] {
        // The kernel raises it to its minimum: a packet or two.
        set(fd, libc::SO_RCVBUF, 1);
        set(fd, libc::SO_SNDBUF, 1);
    }
    let (mut a, mut b) = connected(dx.dev(), dy.dev(), Shape::default()).expect("connected ends");
    exchange(&mut a, &mut b, 3, 300_000);
    let c = dx.dev().counters().expect("counters");
    assert_eq!((c.send_err, c.retry_exceeded_err, c.rcvd_icrc_err), (0, 0, 0), "{c:?}");
}

#[test]
fn a_link_that_refuses_segmentation_gets_single_packets() {
    let (x, y) = (address(1), address(2));
    let (dx, dy) = (Soft::new(&x), Soft::new(&y));
    for fd in [socket_of(&x), socket_of(&y)] {
        // The kernel does not segment without checksums.
        set(fd, libc::SO_NO_CHECK, 1);
    }
    let (mut a, mut b) = connected(dx.dev(), dy.dev(), Shape::default()).expect("connected ends");
    exchange(&mut a, &mut b, 5, 300_000);
    let (cx, cy) = (dx.dev().counters().expect("counters"), dy.dev().counters().expect("counters"));
    assert!(cx.port_gso_refused >= 1 && cy.port_gso_refused >= 1, "{cx:?} {cy:?}");
    assert!(cx.port_gso_refused <= 64, "the refusal is not remembered: {cx:?}");
    assert_eq!(
        (cx.send_err, cx.rcvd_icrc_err, cy.send_err, cy.rcvd_icrc_err),
        (0, 0, 0, 0),
        "{cx:?} {cy:?}"
    );
}

#[test]
fn a_slow_link_fills_the_send_buffer_and_the_sleeper_is_woken_when_it_drains() {
    if find("tc").is_none() || find("ip").is_none() {
        skip!("tc or ip is not installed");
    }
    // A thread of its own can have a network namespace of its own.
    let outcome = std::thread::spawn(|| {
        // SAFETY: takes no pointers; changes this thread only, which ends.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err("no network namespaces here".to_string());
        }
        assert!(run(Command::new("ip").args(["link", "set", "lo", "up"]), 10).ok());
        let tbf = "qdisc add dev lo root tbf rate 400mbit burst 64kb limit 8mb";
        if !run(Command::new("tc").args(tbf.split_whitespace()), 10).ok() {
            return Err("no tbf queue here".to_string());
        }
        let (x, y) = (address(1), address(2));
        let mut config = SoftConfig::default();
        config.core.window_max = 4 << 20;
        let (dx, dy) =
            (Soft::open(&x, &config).expect("open"), Soft::open(&y, &config).expect("open"));
        set(socket_of(&x), libc::SO_SNDBUF, 1);
        set(socket_of(&y), libc::SO_RCVBUFFORCE, 8 << 20);
        let pairs: Vec<_> = (0..8)
            .map(|_| connected(dx.dev(), dy.dev(), Shape::default()).expect("connected ends"))
            .collect();
        let bytes = pattern(1, 500_000);
        for (a, b) in &pairs {
            a.buffer.write(0, &bytes);
            a.post(1, Op::Write(0, None), 0, 500_000).expect("post_send");
            a.dev.cq_arm(a.cq, false).expect("cq_arm");
            assert_eq!(b.done.len(), 0);
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = dy.dev().wait(20);
                }
            });
            // The sender sleeps whenever the socket has no room, and must be woken for every
            // completion.
            let end = deadline(60);
            let mut heard = BTreeSet::new();
            while heard.len() < pairs.len() {
                dx.dev().wait(1000).expect("wait");
                while let Some(cq) = dx.dev().cq_event().expect("cq_event") {
                    heard.insert(cq);
                }
                assert!(
                    Instant::now() < end,
                    "{} of {} woke: {:?}",
                    heard.len(),
                    pairs.len(),
                    dx.dev().counters()
                );
            }
            stop.store(true, Ordering::Relaxed);
        });
        for (mut a, mut b) in pairs {
            succeed(&mut a, &mut b, 1);
            assert!(b.buffer.read(0, 500_000) == bytes);
        }
        let c = dx.dev().counters().expect("counters");
        assert_eq!((c.send_err, c.retry_exceeded_err), (0, 0), "{c:?}");
        assert!(c.port_tx_full > 0, "{c:?}");
        Ok(())
    });
    match outcome.join() {
        Ok(Ok(())) => {}
        Ok(Err(why)) => skip!("{why}"),
        Err(e) => std::panic::resume_unwind(e),
    }
}

/// Waits for a child, whose exit code is its result.
fn reap(child: i32) -> i32 {
    let mut status = -1;
    // SAFETY: our own child and a local.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_child_opens_devices_of_its_own_while_the_parents_helper_works() {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let a = Soft::open(&address(1), &config).expect("a device with helper");
    let b = Soft::open(&address(2), &config).expect("a device with helper");
    let (mut x, mut y) = connected(a.dev(), b.dev(), Shape::default()).expect("connected ends");
    let names = (address(3), address(4));
    // The child's memory is allocated before the fork: another thread of this process may hold the
    // allocator's lock.
    let bytes = SoftDevice::memsize(&names.0, &SoftConfig::default()).expect("memsize");
    let (m1, m2) = (Buffer::new(bytes), Buffer::new(bytes));
    let data = pattern(2, 1000);
    for round in 0..10u64 {
        x.post(round, Op::Write(0, None), 0, 500_000).expect("post_send");
        // SAFETY: the child calls only the device, with memory made beforehand, and leaves by
        // _exit.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let refused = x.dev.progress().err() == Some(Error::OwnerDead)
                && x.dev.helper(true).err() == Some(Error::OwnerDead)
                && x.dev.wait(0).err() == Some(Error::OwnerDead)
                && x.dev.fd().err() == Some(Error::OwnerDead);
            let moved = child_traffic(&names.0, &names.1, &m1, &m2, bytes, &data);
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(if refused { i32::from(moved.is_err()) * 2 } else { 1 }) };
        }
        succeed(&mut x, &mut y, round);
        assert_eq!(reap(child), 0, "1 << 8: not refused; 2 << 8: its own devices failed");
    }
}

/// Makes two devices in the given memory and one WRITE between them; allocates only what `End`
/// does.
fn child_traffic(
    x: &str,
    y: &str,
    m1: &Buffer,
    m2: &Buffer,
    bytes: usize,
    data: &[u8],
) -> Result<(), Error> {
    let config = SoftConfig::default();
    // SAFETY: page-aligned memory of the asked size that nobody else uses in this process.
    let a = unsafe { SoftDevice::init(m1.as_ptr(), bytes, x, &config)? };
    // SAFETY: as above.
    let b = unsafe { SoftDevice::init(m2.as_ptr(), bytes, y, &config)? };
    let shape = Shape { buffer: 4096, ..Shape::default() };
    {
        let (mut p, mut q) = connected(a, b, shape)?;
        p.buffer.write(0, data);
        p.post(1, Op::Write(0, None), 0, data.len() as u32)?;
        let end = deadline(60);
        loop {
            p.poll();
            q.poll();
            match p.take(1) {
                Some(wc) if wc.status == wc_status::SUCCESS => break,
                Some(_) => return Err(Error::Invalid),
                None if Instant::now() > end => return Err(Error::Again),
                None => {}
            }
        }
        if q.buffer.read(0, data.len()) != data {
            return Err(Error::Fault);
        }
        p.destroy()?;
        q.destroy()?;
    }
    // SAFETY: nothing uses the devices any more.
    unsafe {
        a.close();
        b.close();
    }
    Ok(())
}

#[test]
fn every_descriptor_is_close_on_exec() {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let dir = gdrcore_tests::tools::scratch("cloexec");
    let pcap = dir.join("all.pcap");
    let path = std::ffi::CString::new(pcap.to_str().expect("a plain path")).expect("a path");
    let before = descriptors();
    let _a =
        Soft::open(&address(1), &SoftConfig { pcap: Some(&path), ..config }).expect("a device");
    let _b = Soft::open("loopback", &config).expect("a device");
    let mut seen = 0;
    for fd in descriptors().difference(&before) {
        // SAFETY: asks for the flags of a descriptor; a closed one is an error.
        let got = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
        // A thread of another test may have opened or closed it meanwhile.
        if got >= 0 {
            assert!(got & libc::FD_CLOEXEC != 0, "descriptor {fd} outlives exec");
            seen += 1;
        }
    }
    assert!(seen >= 9, "{seen} descriptors");
}

#[test]
fn a_sleeper_in_poll_beside_a_helper_is_woken_by_every_completion() {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let a = Soft::open(&address(1), &config).expect("a device with helper");
    let b = Soft::open(&address(2), &config).expect("a device with helper");
    let (mut x, mut y) = connected(a.dev(), b.dev(), Shape::default()).expect("connected ends");
    let rounds = 200u64;
    for n in 0..rounds {
        if n < 60 {
            y.post_recv(n, 0, 64).expect("post_recv");
        }
    }
    let heard = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let heard = &heard;
        let (x, y) = (&mut x, &mut y);
        scope.spawn(move || {
            // By the recipe of docs/using/ABI.md: arm the CQ, poll once more, arm the descriptor,
            // sleep, poll.
            let mut got = 0;
            let end = deadline(60);
            while got < rounds {
                assert!(Instant::now() < end, "{got} of {rounds}: a completion woke nobody");
                y.dev.cq_arm(y.cq, false).expect("cq_arm");
                if y.poll() == 0 {
                    if y.dev.arm().expect("arm") {
                        y.dev.progress().expect("progress");
                    } else {
                        let mut p = libc::pollfd {
                            fd: y.dev.fd().expect("fd"),
                            events: libc::POLLIN,
                            revents: 0,
                        };
                        // SAFETY: one entry that lives through the call.
                        let n = unsafe { libc::poll(&mut p, 1, limit_ms(60)) };
                        assert!(
                            n > 0,
                            "{got} of {rounds}: the sleeper was not woken; {:?}",
                            y.dev.counters()
                        );
                    }
                    while y.dev.cq_event().expect("cq_event").is_some() {}
                }
                for wc in std::mem::take(&mut y.done) {
                    assert_eq!(wc.status, wc_status::SUCCESS);
                    got += 1;
                    y.post_recv(wc.wr_id, 0, 64).expect("post_recv");
                    heard.store(got, Ordering::Release);
                }
            }
        });
        for round in 0..rounds {
            x.post(round, Op::Send(None), 0, 64).expect("post_send");
            // Posts now shortly after each other, now after the sleeper sleeps again.
            if round % 8 == 7 {
                let end = deadline(60);
                while heard.load(Ordering::Acquire) <= round {
                    std::thread::sleep(Duration::from_micros(300));
                    assert!(
                        Instant::now() < end,
                        "round {round}: {} heard",
                        heard.load(Ordering::Relaxed)
                    );
                }
                std::thread::sleep(Duration::from_millis(round % 5));
            }
            while x.poll() > 0 {}
        }
    });
}

#[test]
fn a_sleeper_in_wait_beside_a_helper_is_woken_by_an_event() {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let a = Soft::open(&address(1), &config).expect("a device with helper");
    let b = Soft::open(&address(2), &config).expect("a device with helper");
    let (x, mut y) = connected(a.dev(), b.dev(), Shape::default()).expect("connected ends");
    for round in 0..30u64 {
        y.post_recv(round, 0, 64).expect("post_recv");
        y.dev.cq_arm(y.cq, false).expect("cq_arm");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(round * 100));
                x.post(round, Op::Send(None), 0, 64).expect("post_send");
            });
            assert_eq!(y.dev.wait(limit_ms(60)), Ok(true), "round {round}: {:?}", y.dev.counters());
        });
        assert_eq!(y.dev.cq_event(), Ok(Some(y.cq)));
        y.poll();
        assert!(y.take(round).is_some(), "round {round}");
    }
}

#[test]
fn two_threads_on_one_queue_get_ebusy_and_break_nothing() {
    let (dx, dy) = (Soft::new(&address(1)), Soft::new(&address(2)));
    let (a, b) = connected(dx.dev(), dy.dev(), Shape { depth: 32, ..Shape::default() })
        .expect("connected ends");
    let (posted, completed, busy) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    const TOTAL: u64 = 20_000;
    let end = deadline(60);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut wc = [Wc::default(); 4];
                while completed.load(Ordering::Relaxed) < TOTAL {
                    assert!(Instant::now() < end, "{completed:?} of {TOTAL}");
                    if posted.fetch_add(1, Ordering::Relaxed) < TOTAL {
                        match a.post(7, Op::Write(0, None), 0, 8) {
                            Ok(()) => {}
                            Err(e) => {
                                assert!(matches!(e, Error::Busy | Error::Again), "{e}");
                                posted.fetch_sub(1, Ordering::Relaxed);
                                busy.fetch_add(u64::from(e == Error::Busy), Ordering::Relaxed);
                            }
                        }
                    } else {
                        posted.fetch_sub(1, Ordering::Relaxed);
                    }
                    match a.dev.poll_cq(a.cq, &mut wc) {
                        Ok(n) => {
                            assert!(
                                wc[..n]
                                    .iter()
                                    .all(|w| (w.wr_id, w.status) == (7, wc_status::SUCCESS)),
                                "{wc:?}"
                            );
                            completed.fetch_add(n as u64, Ordering::Relaxed);
                        }
                        Err(e) => {
                            assert_eq!(e, Error::Busy);
                            busy.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    match b.post_recv(1, 0, 8) {
                        Ok(()) => {}
                        Err(e) => assert!(matches!(e, Error::Busy | Error::Again), "{e}"),
                    }
                    b.dev.progress().expect("progress");
                    if completed.load(Ordering::Relaxed) % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(completed.into_inner(), TOTAL, "each request completed once");
    a.destroy().expect("destroy");
    b.destroy().expect("destroy");
}

/// Resident memory of the process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|l| l.starts_with("VmRSS")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

/// Opens and closes devices, in a process of its own (see below).
fn open_and_close(rounds: usize) {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let name = address(1);
    let bytes = SoftDevice::memsize(&name, &config).expect("memsize");
    let memory = Buffer::new(bytes);
    for _ in 0..rounds {
        // SAFETY: page-aligned memory that only this device uses until `close`.
        let dev =
            unsafe { SoftDevice::init(memory.as_ptr(), bytes, &name, &config) }.expect("a device");
        let kept = dev.pd_alloc().expect("pd_alloc");
        dev.progress().expect("progress");
        assert_ne!(kept, 0);
        // SAFETY: nothing uses the device any more.
        let leaks = unsafe { dev.close() };
        assert_eq!(leaks.pd, 1, "{leaks:?}");
    }
}

#[test]
fn a_thousand_devices_leave_no_descriptor_and_no_memory_behind() {
    if std::env::var_os("GDRC_TEST_ALONE").is_none() {
        // In a process in which no other test opens devices.
        let mut alone = Command::new(std::env::current_exe().expect("this program"));
        alone.args([
            "--exact",
            "a_thousand_devices_leave_no_descriptor_and_no_memory_behind",
            "--nocapture",
        ]);
        let done = run(alone.env("GDRC_TEST_ALONE", "1"), 60);
        assert!(done.ok(), "{}", done.output);
        return;
    }
    open_and_close(50);
    let (descriptors_before, resident_before) = (descriptors().len(), resident());
    open_and_close(1000);
    assert_eq!(descriptors().len(), descriptors_before, "descriptors leak");
    let grown = resident().saturating_sub(resident_before);
    assert!(grown < 4096, "{grown} KiB leaked");
    let threads = std::fs::read_dir("/proc/self/task").expect("/proc").count();
    assert!(threads <= 3, "{threads} threads are left");
}
