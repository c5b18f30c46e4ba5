//! Queue pairs that tie objects of several engines of a device together: a CQ or an SRQ serves
//! queue pairs of any engine.

use gdrcore_core::config::Config;
use gdrcore_core::device::{Device, SrqAttr};
use gdrcore_core::verbs::types::{
    qp_type, wc_opcode, wc_status, Handle, QpCap, QpInit, RecvWr, Sge, Wc,
};
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags, EngineCount, PathChoice, SoftConfig};
use gdrcore_tests::ends::{connect_both, End, Op, Shape};
use gdrcore_tests::patience::{deadline, limit_ms, run_until, until, wait_for};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::workers::{
    await_sleep, block, elsewhere, engine_of, remake, shape, sleeping, LEN,
};
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::time::Instant;

const PATHS: [PathChoice; 2] = [PathChoice::Shm, PathChoice::Udp];

/// A device whose helpers run its engines while no thread polls.
fn device(path: PathChoice, engines: u32) -> Soft {
    let config = SoftConfig { path, flags: soft_flags::HELPER, ..SoftConfig::default() };
    Soft::open_with(&address(1), &config, EngineCount::all(engines)).expect("open")
}

/// What `make` returns in threads that live at the same time, so in one of each engine.
fn in_each<T: Send>(engines: u32, make: impl Fn() -> T + Sync) -> Vec<T> {
    let all = Barrier::new(engines as usize);
    let in_one = || {
        let made = make();
        all.wait();
        made
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..engines).map(|_| scope.spawn(in_one)).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread")).collect()
    })
}

/// Two ends of each engine, in the order of their blocks of QPNs.
fn pairs<const N: usize>(dev: &dyn Device) -> [[End<'_>; 2]; N] {
    let make = || [(); 2].map(|()| End::new(dev, shape()).expect("an end"));
    let mut all = in_each(N as u32, make);
    all.sort_by_key(|[end, _]| block(end));
    all.dedup_by_key(|[end, _]| block(end));
    <[[End; 2]; N]>::try_from(all).ok().expect("a block for each engine")
}

/// An end of each engine.
fn ends<const N: usize>(dev: &dyn Device) -> [End<'_>; N] {
    pairs(dev).map(|[end, other]| {
        other.destroy().expect("destroy");
        end
    })
}

/// Polls a CQ, `room` completions at a time, until it has given `n`.
fn take(dev: &dyn Device, cq: Handle, n: usize, room: usize) -> Vec<Wc> {
    let (mut all, end) = (Vec::new(), deadline(60));
    while all.len() < n {
        let mut wc = vec![Wc::default(); room];
        let got = dev.poll_cq(cq, &mut wc).unwrap();
        assert!(wc[..got].iter().all(|wc| wc.status == wc_status::SUCCESS), "{wc:?}");
        all.extend_from_slice(&wc[..got]);
        assert!(Instant::now() < end, "{} of {n} completions", all.len());
    }
    all
}

fn crossing(dev: &dyn Device) -> u64 {
    dev.counters().unwrap().qps_of_two_engines
}

#[test]
fn a_queue_pair_has_cqs_of_two_engines() {
    for path in PATHS {
        let set = device(path, 2);
        let dev = set.dev();
        let [mut a, mut b] = ends::<2>(dev);
        let home = block(&a);
        assert_eq!(crossing(dev), 0);
        remake(&mut a, |init| QpInit { recv_cq: b.cq, ..init });
        assert_eq!((block(&a), crossing(dev)), (home, 1), "of its send CQ's engine");
        remake(&mut b, |init| QpInit { send_cq: a.cq, ..init });
        assert_eq!((block(&b), crossing(dev)), (home, 2));
        connect_both(&mut a, &mut b);
        for round in 0..50 {
            a.post_recv(round, 0, LEN).unwrap();
            b.post_recv(round, 0, LEN).unwrap();
            a.post(round, Op::Send(None), 0, LEN).unwrap();
            b.post(round, Op::Send(None), 0, LEN).unwrap();
            // Both send CQs are a's, and both receive CQs b's.
            for (cq, opcode) in [(a.cq, wc_opcode::SEND), (b.cq, wc_opcode::RECV)] {
                let done = take(dev, cq, 2, 4);
                assert!(done.iter().all(|wc| (wc.opcode, wc.wr_id) == (opcode, round)), "{done:?}");
                let qpns: BTreeSet<u32> = done.iter().map(|wc| wc.qp_num).collect();
                assert_eq!(qpns, BTreeSet::from([a.own.qpn, b.own.qpn]));
            }
        }
    }
}

/// Three ends of three engines whose receives end at the CQ of the last, and a peer for each.
fn around_one_cq(dev: &dyn Device) -> ([End<'_>; 3], [End<'_>; 3], Handle) {
    let [[a, d], [b, e], [c, f]] = pairs::<3>(dev);
    let (mut to, mut from) = ([a, b, c], [f, d, e]);
    let common = to[2].cq;
    for end in &mut to[..2] {
        remake(end, |init| QpInit { recv_cq: common, ..init });
    }
    assert_eq!(to.iter().map(block).collect::<BTreeSet<_>>().len(), 3);
    for (a, b) in to.iter_mut().zip(&mut from) {
        connect_both(a, b);
    }
    (to, from, common)
}

#[test]
fn a_cq_of_queue_pairs_of_all_engines_is_polled_in_turn() {
    for path in PATHS {
        let set = device(path, 3);
        let dev = set.dev();
        let (to, from, common) = around_one_cq(dev);
        for n in 0..4 {
            for (a, b) in to.iter().zip(&from) {
                a.post_recv(n, 0, LEN).unwrap();
                b.post(n, Op::Send(None), 0, LEN).unwrap();
            }
        }
        // Acknowledged, so all are in the CQ.
        for b in &from {
            take(dev, b.cq, 4, 4);
        }
        let mut order = Vec::new();
        for _ in 0..12 {
            let mut wc = [Wc::default()];
            assert_eq!(dev.poll_cq(common, &mut wc), Ok(1));
            order.push(wc[0].qp_num);
        }
        // A ring that is never empty holds nobody up.
        for three in order.chunks(3) {
            let qpns: BTreeSet<u32> = three.iter().copied().collect();
            assert_eq!(qpns.len(), 3, "{order:x?}");
        }
        assert_eq!(dev.poll_cq(common, &mut [Wc::default()]), Ok(0));
        // One poll takes what all have.
        for (a, b) in to.iter().zip(&from) {
            a.post_recv(9, 0, LEN).unwrap();
            b.post(9, Op::Send(None), 0, LEN).unwrap();
            take(dev, b.cq, 1, 1);
        }
        assert_eq!(dev.poll_cq(common, &mut [Wc::default(); 8]), Ok(3));
    }
}

#[test]
fn threads_of_all_engines_end_their_requests_at_one_cq() {
    const EACH: u64 = 2000;
    for path in PATHS {
        let set = device(path, 3);
        let dev = set.dev();
        let (to, mut from, common) = around_one_cq(dev);
        for a in &to {
            (0..8).for_each(|n| a.post_recv(n, 0, LEN).unwrap());
        }
        std::thread::scope(|scope| {
            for b in &mut from {
                scope.spawn(move || {
                    for n in 0..EACH {
                        b.post(n, Op::Send(Some(n as u32)), 0, LEN).unwrap();
                        take(dev, b.cq, 1, 1);
                    }
                });
            }
            let mut seen = [0u32; 3];
            while seen.iter().sum::<u32>() < 3 * EACH as u32 {
                for wc in take(dev, common, 1, 8) {
                    let at = to.iter().position(|a| a.own.qpn == wc.qp_num).unwrap();
                    assert_eq!(wc.imm_data.to_le_bytes(), seen[at].to_le_bytes(), "in order");
                    seen[at] += 1;
                    to[at].post_recv(wc.wr_id, 0, LEN).unwrap();
                }
            }
            assert_eq!(seen, [EACH as u32; 3]);
        });
    }
}

#[test]
fn an_srq_serves_queue_pairs_with_cqs_of_another_engine() {
    for path in PATHS {
        let set = device(path, 2);
        let dev = set.dev();
        let [mut a, mut b] = ends::<2>(dev);
        let of_a = block(&a);
        let attr = SrqAttr { max_wr: 8, max_sge: 1, ..SrqAttr::default() };
        let pd = a.pd;
        // Threads get engines by turns, and a new thread may be taken for one that has ended: of
        // two more both may have one engine, of three not.
        let srqs = in_each(3, || dev.srq_create(pd, &attr).expect("an SRQ").0);
        // Handles have their engine's number there.
        let engine = |h: Handle| h >> 16 & 0xff;
        let srq = *srqs.iter().find(|srq| engine(**srq) != engine(a.cq)).unwrap();
        remake(&mut a, |init| {
            let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap };
            QpInit { srq, cap, ..init }
        });
        assert_eq!((block(&a), crossing(dev)), (block(&b), 1), "of its SRQ's engine");
        assert_ne!(block(&a), of_a);
        connect_both(&mut a, &mut b);
        for round in 0..20 {
            let piece = Sge { addr: a.attr.addr, length: LEN, lkey: a.attr.lkey };
            let wr = RecvWr { wr_id: round, next: std::ptr::null(), sg_list: &piece, num_sge: 1 };
            let mut bad = std::ptr::null();
            // SAFETY: a list of one on this stack frame.
            unsafe { dev.post_srq_recv(srq, &wr, &mut bad) }.unwrap();
            b.post(round, Op::Send(None), 0, LEN).unwrap();
            take(dev, b.cq, 1, 1);
            assert_eq!(take(dev, a.cq, 1, 1)[0].wr_id, round);
            a.post(round, Op::Write(4096, None), 0, LEN).unwrap();
            assert_eq!(take(dev, a.cq, 1, 1)[0].opcode, wc_opcode::RDMA_WRITE);
        }
    }
}

#[test]
fn an_event_names_the_cq_whichever_engine_completes() {
    let set = device(PathChoice::Udp, 2);
    let dev = set.dev();
    let [[mut a, _], [b, mut c]] = pairs::<2>(dev);
    remake(&mut a, |init| QpInit { recv_cq: b.cq, ..init });
    connect_both(&mut a, &mut c);
    for round in 0..10 {
        a.post_recv(round, 0, LEN).unwrap();
        dev.cq_arm(b.cq, false).unwrap();
        c.post(round, Op::Send(None), 0, LEN).unwrap();
        // Nothing else ends at this CQ.
        let event = until(
            60,
            || format!("round {round}"),
            || {
                assert!(dev.wait(limit_ms(60)).unwrap(), "round {round}");
                dev.cq_event().unwrap()
            },
        );
        assert_eq!(event, b.cq, "round {round}");
        assert_eq!(take(dev, b.cq, 1, 1)[0].wr_id, round);
        take(dev, c.cq, 1, 1);
        assert_eq!(dev.cq_event(), Ok(None), "no further event without an arming that meets it");
    }
}

#[test]
fn a_cq_changes_and_ends_in_all_engines() {
    let set = device(PathChoice::Udp, 3);
    let dev = set.dev();
    let (to, from, common) = around_one_cq(dev);
    let count = |n: u32| assert_eq!(dev.leaks().unwrap().cq, n, "what the program made");
    count(6);
    for (a, b) in to.iter().zip(&from) {
        a.post_recv(1, 0, LEN).unwrap();
        b.post(1, Op::Send(None), 0, LEN).unwrap();
        take(dev, b.cq, 1, 1);
    }
    // The completions of one queue pair go, in whichever ring they are.
    dev.cq_purge(common, to[0].own.qpn).unwrap();
    assert_eq!(dev.cq_resize(common, 500), Ok(512));
    let left: BTreeSet<u32> = take(dev, common, 2, 4).iter().map(|wc| wc.qp_num).collect();
    assert_eq!(left, BTreeSet::from([to[1].own.qpn, to[2].own.qpn]));
    assert_eq!(dev.poll_cq(common, &mut [Wc::default()]), Ok(0));
    assert_eq!(dev.cq_resize(common, 0), Err(Error::Invalid));

    // A refused end leaves all rings as they are: what the last queue pair of one has completed
    // comes, though nothing uses that ring any more.
    to[0].post_recv(2, 0, LEN).unwrap();
    from[0].post(2, Op::Send(None), 0, LEN).unwrap();
    take(dev, from[0].cq, 1, 1);
    dev.qp_destroy(to[0].qp).unwrap();
    assert_eq!(dev.cq_destroy(common), Err(Error::Busy), "two queue pairs of it are left");
    assert_eq!(take(dev, common, 1, 4)[0].wr_id, 2);

    for end in [&to[2], &to[1]] {
        assert_eq!(dev.cq_destroy(common), Err(Error::Busy), "a queue pair of it is left");
        dev.qp_destroy(end.qp).unwrap();
    }
    count(6);
    dev.cq_destroy(common).unwrap();
    count(5);
    assert_eq!(dev.cq_destroy(common), Err(Error::StaleHandle));
    assert_eq!(dev.poll_cq(common, &mut [Wc::default()]), Err(Error::StaleHandle));
    assert_eq!(dev.cq_arm(common, false), Err(Error::StaleHandle));

    // Again and again: nothing is left of a CQ, its branches included.
    let (send_cq, init) =
        (to[0].cq, QpInit { pd: to[0].pd, ..dev.qp_query(from[0].qp).unwrap().1 });
    for _ in 0..1000 {
        for recv_cq in in_each(3, || dev.cq_create(16).unwrap().0) {
            let (qp, ..) = dev.qp_create(&QpInit { send_cq, recv_cq, ..init }).unwrap();
            dev.qp_destroy(qp).unwrap();
            dev.cq_destroy(recv_cq).unwrap();
        }
    }
    count(5);
}

#[test]
fn cqs_that_are_not_there_tie_nothing() {
    let set = device(PathChoice::Udp, 2);
    let dev = set.dev();
    let [a, b] = ends::<2>(dev);
    let init = QpInit { pd: a.pd, ..dev.qp_query(a.qp).unwrap().1 };
    for stale in [b.cq + (1 << 32), 63 << 16] {
        let with = |send_cq, recv_cq| dev.qp_create(&QpInit { send_cq, recv_cq, ..init }).err();
        assert_eq!(with(stale, a.cq), Some(Error::StaleHandle));
        assert_eq!(with(a.cq, stale), Some(Error::StaleHandle));
    }
    assert_eq!(crossing(dev), 0);
    let shape = Shape { qp_type: qp_type::UD, ..shape() };
    assert!(End::new(dev, shape).is_ok());
}

/// Two ends of two engines whose receives end at one CQ on a channel, with a peer for each; the CQ
/// and the channel.
fn on_one_channel(dev: &dyn Device) -> ([End<'_>; 2], [End<'_>; 2], Handle, Handle) {
    let [[a, b], [c, d]] = pairs::<2>(dev);
    let (mut to, mut from) = ([a, c], [d, b]);
    let channel = dev.channel_create().unwrap();
    let (cq, _) = dev.cq_create_on(64, channel).unwrap();
    for (a, b) in to.iter_mut().zip(&mut from) {
        remake(a, |init| QpInit { recv_cq: cq, ..init });
        connect_both(a, b);
    }
    (to, from, cq, channel)
}

/// Waits for the one completion of a SEND. All engines run meanwhile: the receiver's owes the ACK.
fn acknowledged(dev: &dyn Device, from: &End) {
    let mut wc = [Wc::default(); 2];
    run_until(60, "no completion", || {
        dev.progress().unwrap();
        dev.poll_cq(from.cq, &mut wc).unwrap() > 0
    });
    assert_eq!((wc[0].status, wc[0].opcode), (wc_status::SUCCESS, wc_opcode::SEND));
}

fn is_readable(fd: i32) -> bool {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&mut asked, 1, 0) == 1 }
}

#[test]
fn a_channel_has_the_events_of_all_rings_of_its_cqs() {
    for (path, flags) in PATHS
        .map(|path| (path, soft_flags::HELPER))
        .into_iter()
        .chain([(PathChoice::Shm, 0), (PathChoice::Udp, 0)])
    {
        let config = SoftConfig { path, flags, ..SoftConfig::default() };
        let set = Soft::open_with(&address(1), &config, EngineCount::all(2)).expect("open");
        let dev = set.dev();
        let (to, mut from, cq, channel) = on_one_channel(dev);
        assert_eq!(crossing(dev), 1, "one of them is of the CQ's engine");
        let fd = dev.channel_fd(channel).unwrap();
        for round in 0..20usize {
            let (to, from) = (&to[round % 2], &mut from[round % 2]);
            to.post_recv(round as u64, 0, LEN).unwrap();
            dev.cq_arm(cq, false).unwrap();
            assert_eq!(dev.channel_event(channel).unwrap(), None);
            assert!(!is_readable(fd));
            assert_eq!(dev.channel_wait(channel, 0).unwrap(), None);
            std::thread::scope(|scope| {
                // It runs all engines while it sleeps, if no helper does.
                let sleeper = scope.spawn(|| dev.channel_wait(channel, limit_ms(60)));
                from.post(round as u64, Op::Send(None), 0, LEN).unwrap();
                assert_eq!(sleeper.join().expect("the sleeper").unwrap(), Some(cq));
            });
            let done = take(dev, cq, 1, 4);
            assert_eq!((done[0].opcode, done[0].qp_num), (wc_opcode::RECV, to.own.qpn));
            acknowledged(dev, from);
            // An arming arms both rings: the other one has no event yet.
            assert!(!is_readable(fd) && dev.channel_event(channel).unwrap().is_none());
        }
        assert_eq!(dev.channel_destroy(channel), Err(Error::Busy));
        for end in to {
            dev.qp_destroy(end.qp).unwrap();
        }
        dev.cq_destroy(cq).unwrap();
        dev.channel_destroy(channel).unwrap();
        assert_eq!(dev.channel_fd(channel), Err(Error::StaleHandle));
    }
}

#[test]
fn events_of_two_rings_are_both_taken_from_their_channel() {
    for path in PATHS {
        let set = device(path, 2);
        let dev = set.dev();
        let (to, mut from, cq, channel) = on_one_channel(dev);
        let fd = dev.channel_fd(channel).unwrap();
        for round in 0..20 {
            dev.cq_arm(cq, false).unwrap();
            for (to, from) in to.iter().zip(&mut from) {
                to.post_recv(round, 0, LEN).unwrap();
                from.post(round, Op::Send(None), 0, LEN).unwrap();
            }
            // Each ring raises one, and while one is left the descriptor says so.
            let limit = deadline(60);
            let mut events = 0;
            let polled_first = round % 2 == 1;
            if polled_first {
                // Both have completed, so both events come, whoever looks.
                take(dev, cq, 2, 4);
                let first = until(60, || "no event".into(), || dev.channel_event(channel).unwrap());
                assert_eq!(first, cq);
                wait_for(60, "one is left, and nothing says so", || is_readable(fd));
                events = 1;
            }
            while events < 2 {
                if let Some(of) = dev.channel_event(channel).unwrap() {
                    assert_eq!(of, cq);
                    events += 1;
                }
                assert!(Instant::now() < limit, "{events} of two events");
                if events == 1 && !is_readable(fd) {
                    assert!(dev.channel_wait(channel, limit_ms(60)).unwrap() == Some(cq));
                    events += 1;
                }
            }
            assert!(dev.channel_event(channel).unwrap().is_none() && !is_readable(fd));
            if !polled_first {
                take(dev, cq, 2, 4);
            }
            from.iter().for_each(|end| acknowledged(dev, end));
        }
    }
}

/// The end of a CQ in one engine takes nothing from the others of its channel.
#[test]
fn a_cq_that_ends_leaves_the_events_of_other_engines_on_its_channel() {
    for path in PATHS {
        let set = device(path, 2);
        let dev = set.dev();
        let (to, mut from, cq, channel) = on_one_channel(dev);
        let fd = dev.channel_fd(channel).unwrap();
        // One of the two is of another engine than the CQ that ends.
        for (to, from) in to.iter().zip(&mut from) {
            let (ends, _) = dev.cq_create_on(64, channel).unwrap();
            dev.cq_arm(cq, false).unwrap();
            to.post_recv(1, 0, LEN).unwrap();
            from.post(1, Op::Send(None), 0, LEN).unwrap();
            take(dev, cq, 1, 4);
            acknowledged(dev, from);
            wait_for(60, "no event", || is_readable(fd));
            dev.cq_destroy(ends).unwrap();
            assert!(is_readable(fd), "an event is left");
            assert_eq!(dev.channel_event(channel).unwrap(), Some(cq));
            assert!(!is_readable(fd) && dev.channel_event(channel).unwrap().is_none());
        }
    }
}

#[test]
fn who_sleeps_on_a_channel_runs_an_engine_that_its_cq_gets_meanwhile() {
    for path in PATHS {
        let config = SoftConfig { path, ..SoftConfig::default() };
        let set = Soft::open_with(&address(1), &config, EngineCount::all(2)).expect("open");
        let dev = set.dev();
        let [[mut a, _b], [_c, mut d]] = pairs::<2>(dev);
        let channel = dev.channel_create().unwrap();
        let (cq, _) = dev.cq_create_on(64, channel).unwrap();
        // The receiver is of the other engine than the CQ.
        let (to, from) = match engine_of(a.cq) == engine_of(cq) {
            true => (&mut d, &mut a),
            false => (&mut a, &mut d),
        };
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let sleeper = scope.spawn(move || {
                tell.send(sleeping()).unwrap();
                dev.channel_wait(channel, limit_ms(60))
            });
            await_sleep(told.recv().unwrap());
            remake(to, |init| QpInit { recv_cq: cq, ..init });
            connect_both(to, from);
            to.post_recv(1, 0, LEN).unwrap();
            dev.cq_arm(cq, false).unwrap();
            from.post(1, Op::Send(None), 0, LEN).unwrap();
            assert_eq!(sleeper.join().expect("the sleeper").unwrap(), Some(cq));
        });
    }
}

/// CQs until the engine of this thread has no memory for another.
fn fill(dev: &dyn Device) -> Vec<Handle> {
    std::iter::from_fn(|| dev.cq_create(64).ok().map(|(cq, _)| cq)).collect()
}

fn end_all(dev: &dyn Device, cqs: Vec<Handle>) -> usize {
    cqs.iter().for_each(|&cq| dev.cq_destroy(cq).unwrap());
    cqs.len()
}

#[test]
fn a_cq_that_one_engine_has_no_room_for_keeps_its_size_in_all() {
    let core = Config { ring_bytes: 256 << 10, ..Config::default() };
    let set = Soft::open_with(
        "loopback",
        &SoftConfig { core, ..Default::default() },
        EngineCount::all(2),
    )
    .unwrap();
    let dev = set.dev();
    let (common, _) = dev.cq_create(16).unwrap();
    let (end, others) = elsewhere(|| {
        let mut end = End::new(dev, shape()).expect("an end");
        remake(&mut end, |init| QpInit { recv_cq: common, ..init });
        (end, fill(dev))
    });
    assert!(others.iter().all(|&cq| engine_of(cq) != engine_of(common)), "of the other engine");
    let room = end_all(dev, fill(dev));
    assert_eq!(dev.cq_resize(common, 1000), Err(Error::NoMemory));
    assert_eq!(end_all(dev, fill(dev)), room, "a ring of the first engine stayed large");
    end_all(dev, others);
    assert_eq!(dev.cq_resize(common, 1000), Ok(1024));
    dev.qp_destroy(end.qp).unwrap();
    dev.cq_destroy(common).unwrap();
}

#[test]
fn the_newest_cause_is_that_of_whichever_engine_failed_last() {
    let set = device(PathChoice::Udp, 2);
    let dev = set.dev();
    let mut all = pairs::<2>(dev);
    for [a, b] in &mut all {
        connect_both(a, b);
    }
    for (engine, which) in [(0, 0), (1, 0), (0, 1)] {
        let end = &mut all[engine][which];
        end.attr.lkey ^= 1;
        end.post(7, Op::Write(0, None), 0, 8).unwrap();
        let failed = || {
            let mut wc = [Wc::default()];
            (dev.poll_cq(end.cq, &mut wc).unwrap() == 1).then_some(wc[0].status)
        };
        assert_eq!(until(60, || "no failure".into(), failed), wc_status::LOC_PROT_ERR);
        assert_eq!(dev.last_cause().unwrap().qpn, end.own.qpn);
    }
}
