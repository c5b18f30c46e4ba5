//! Sockets without room, and links that refuse segmentation or are slow.

use super::*;
use gdrcore_tests::tools::installed;
use gdrcore_tests::traffic::exchange;
use gdrcore_tests::{or_skip, skip};

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

#[test]
fn sockets_without_room_lose_packets_and_no_bytes() {
    let (x, y) = (address(1), address(2));
    let (dx, dy) = (Soft::new(&x), Soft::new(&y));
    for fd in [socket_of(&x), socket_of(&y)] {
        // The kernel raises it to its minimum: a packet or two.
        set(fd, libc::SO_RCVBUF, 1);
        set(fd, libc::SO_SNDBUF, 1);
    }
    let (mut a, mut b) = connected_pair(dx.dev(), dy.dev());
    (0..3).for_each(|round| exchange(&mut a, &mut b, 3 * round, 300_000));
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
    let (mut a, mut b) = connected_pair(dx.dev(), dy.dev());
    (0..5).for_each(|round| exchange(&mut a, &mut b, 3 * round, 300_000));
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
    or_skip!(installed("tc"));
    or_skip!(installed("ip"));
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
        let pairs: Vec<_> = (0..8).map(|_| connected_pair(dx.dev(), dy.dev())).collect();
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
