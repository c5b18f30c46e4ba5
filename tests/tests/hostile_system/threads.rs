//! Threads that sleep beside a helper, or use one queue at once.

use super::*;

#[test]
fn a_sleeper_in_poll_beside_a_helper_is_woken_by_every_completion() {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let a = Soft::open(&address(1), &config).expect("a device with helper");
    let b = Soft::open(&address(2), &config).expect("a device with helper");
    let (mut x, mut y) = connected_pair(a.dev(), b.dev());
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
    let (x, mut y) = connected_pair(a.dev(), b.dev());
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
