//! The engines of a loopback device, which has no port: each reaches the others through memory.

use gdrcore_core::cm::types::{cm_event, port_space};
use gdrcore_core::device::{CqPlace, Device, SrqAttr};
use gdrcore_core::verbs::types::{
    qp_attr_mask as m, qp_state, qp_type, wc_opcode, DcWr, Handle, QpAttr, QpInit, WrExt,
};
use gdrcore_net::soft::{soft_flags, EngineCount, SoftConfig};
use gdrcore_tests::cm::{cm, datagram, join, listen, Events};
use gdrcore_tests::ends::{connect_both, pattern, succeed, Address, End, Op, Shape};
use gdrcore_tests::patience::deadline;
use gdrcore_tests::soft::Soft;
use gdrcore_tests::workers::{await_one, await_sleep, comes, engine_of, shape, sleeping, LEN};
use std::sync::mpsc::channel;

/// With a helper, so that one thread can wait for what two engines do.
fn open(engines: EngineCount) -> Soft {
    let config = SoftConfig { flags: soft_flags::HELPER, ..SoftConfig::default() };
    Soft::open_with("loopback", &config, engines).expect("open")
}

/// An end of the engine with a number.
fn end_of(dev: &dyn Device, engine: u32, shape: Shape) -> End<'_> {
    let mut end = End::new(dev, shape).expect("an end");
    let cq = dev.cq_create_at(shape.cqe, CqPlace::Domain(engine)).expect("a CQ").0;
    assert_eq!(engine_of(cq), u64::from(engine));
    let init = dev.qp_query(end.qp).expect("query").1;
    dev.qp_destroy(end.qp).expect("destroy");
    dev.cq_destroy(std::mem::replace(&mut end.cq, cq)).expect("destroy");
    let init = QpInit { pd: end.pd, send_cq: cq, recv_cq: cq, ..init };
    (end.qp, end.own.qpn, _) = dev.qp_create(&init).expect("a queue pair");
    end
}

/// Connected ends of two engines.
fn pair(dev: &dyn Device, engines: (u32, u32), shape: Shape) -> (End<'_>, End<'_>) {
    let (mut a, mut b) = (end_of(dev, engines.0, shape), end_of(dev, engines.1, shape));
    connect_both(&mut a, &mut b);
    (a, b)
}

/// One datagram, received at its peer.
fn send_datagram(from: &mut End, to: &mut End, seed: u64) {
    let bytes = pattern(seed, LEN as usize);
    from.buffer.write(0, &bytes);
    to.post_recv(seed, 4096, LEN + 40).expect("post_recv");
    from.post(seed, Op::Send(None), 0, LEN).expect("post_send");
    await_one(from, wc_opcode::SEND);
    // None is lost: there is no network.
    assert!(comes(to, wc_opcode::RECV, deadline(60)), "no datagram {seed} has come");
    assert!(to.buffer.read(4096 + 40, LEN as usize) == bytes, "datagram {seed}");
}

#[test]
fn every_operation_reaches_queue_pairs_of_other_engines() {
    let set = open(EngineCount::all(3));
    let dev = set.dev();
    let big = Shape { buffer: 1 << 20, ..shape() };
    // Each direction has a link, whichever is connected first.
    for (round, engines) in [(0, 1), (2, 0), (1, 2), (1, 0), (0, 1)].into_iter().enumerate() {
        let (mut a, mut b) = pair(dev, engines, big);
        let bytes = pattern(round as u64, 400_000);
        a.buffer.write(0, &bytes);
        a.post(1, Op::Write(0, None), 0, 400_000).unwrap();
        succeed(&mut a, &mut b, 1);
        assert!(b.buffer.read(0, 400_000) == bytes, "{engines:?}");
        b.post(2, Op::Read(0), 500_000, 400_000).unwrap();
        succeed(&mut b, &mut a, 2);
        assert!(b.buffer.read(500_000, 400_000) == bytes, "{engines:?}");
        b.buffer.write(0, &7u64.to_ne_bytes());
        a.post(3, Op::FetchAdd(0, 5), 8, 8).unwrap();
        succeed(&mut a, &mut b, 3);
        assert_eq!(
            (a.buffer.read(8, 8), b.buffer.read(0, 8)),
            (7u64.to_ne_bytes().into(), 12u64.to_ne_bytes().into())
        );
        b.post_recv(9, 900_000, 100_000).unwrap();
        a.post(4, Op::Send(Some(5)), 0, 100_000).unwrap();
        succeed(&mut a, &mut b, 4);
        assert_eq!(succeed(&mut b, &mut a, 9).byte_len, 100_000);
        a.destroy().unwrap();
        b.destroy().unwrap();
        let unreliable = Shape { qp_type: qp_type::UC, ..shape() };
        let (mut a, mut b) = pair(dev, engines, unreliable);
        b.post_recv(1, 0, LEN).unwrap();
        a.post(1, Op::Send(None), 0, LEN).unwrap();
        succeed(&mut a, &mut b, 1);
        assert_eq!(succeed(&mut b, &mut a, 1).byte_len, LEN);
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
    assert_eq!(dev.leaks().unwrap(), Default::default());
}

#[test]
fn datagrams_choose_their_engine_one_by_one() {
    let set = open(EngineCount::all(3));
    let dev = set.dev();
    let shape = Shape { qp_type: qp_type::UD, ..shape() };
    let mut ends: Vec<End> = (0..3).map(|k| end_of(dev, k, shape)).collect();
    let all: Vec<Address> = ends.iter().map(|end| end.own).collect();
    for end in &mut ends {
        end.connect(all[0]).expect("connect");
    }
    for round in 0..90u64 {
        let (from, to) = (round as usize % 3, round as usize / 3 % 3);
        // By the one address handle that it has.
        ends[from].peer = all[to];
        if from == to {
            continue;
        }
        let (left, right) = ends.split_at_mut(from.max(to));
        let (low, high) = (&mut left[from.min(to)], &mut right[0]);
        if from < to {
            send_datagram(low, high, round);
        } else {
            send_datagram(high, low, round);
        }
    }
    // Nobody has these: they are lost, and nothing else is.
    for qpn in [all[0].qpn ^ 1, 2, 0xff_fffe] {
        let [a, b, _] = &mut ends[..] else { unreachable!() };
        a.peer = Address { qpn, ..all[1] };
        a.post(1, Op::Send(None), 0, LEN).unwrap();
        await_one(a, wc_opcode::SEND);
        a.peer = all[1];
        send_datagram(a, b, 1000 + u64::from(qpn));
    }
}

#[test]
fn an_address_handle_reaches_engines_that_are_made_later() {
    let set = open(EngineCount::up_to(3));
    let dev = set.dev();
    let shape = Shape { qp_type: qp_type::UD, ..shape() };
    let mut a = end_of(dev, 0, shape);
    a.connect(a.own).expect("connect");
    for engine in [2, 1] {
        let mut b = end_of(dev, engine, shape);
        b.connect(a.own).expect("connect");
        a.peer = b.own;
        for round in 0..20 {
            send_datagram(&mut a, &mut b, 2 * round);
            send_datagram(&mut b, &mut a, 2 * round + 1);
        }
    }
}

/// Takes a queue pair of DC to its last state.
fn start_dc(dev: &dyn Device, qp: Handle, is_target: bool) {
    let of = |target, initiator| if is_target { target } else { initiator };
    let mut attr = QpAttr {
        qp_state: qp_state::INIT,
        port_num: 1,
        qp_access_flags: shape().access,
        path_mtu: shape().mtu,
        min_rnr_timer: 12,
        timeout: shape().timeout,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 8,
        ..QpAttr::default()
    };
    dev.qp_modify(qp, &attr, m::STATE | m::PKEY_INDEX | m::PORT | of(m::ACCESS_FLAGS, 0)).unwrap();
    attr.qp_state = qp_state::RTR;
    dev.qp_modify(qp, &attr, m::STATE | m::AV | m::PATH_MTU | of(m::MIN_RNR_TIMER, 0)).unwrap();
    if !is_target {
        attr.qp_state = qp_state::RTS;
        let reliable = m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC;
        dev.qp_modify(qp, &attr, m::STATE | m::SQ_PSN | reliable).unwrap();
    }
}

#[test]
fn initiators_of_dc_reach_targets_of_other_engines() {
    const KEY: u64 = 0x1234;
    let set = open(EngineCount::all(3));
    let dev = set.dev();
    // The target of each engine, and an initiator of each.
    let mut targets: Vec<End> = (0..3).map(|k| end_of(dev, k, shape())).collect();
    for (k, end) in targets.iter_mut().enumerate() {
        let init = dev.qp_query(end.qp).unwrap().1;
        let attr = SrqAttr { max_wr: 8, max_sge: 1, ..SrqAttr::default() };
        let srq = dev.srq_create_in(k as u32, end.pd, &attr).unwrap().0;
        dev.qp_destroy(end.qp).unwrap();
        let init = QpInit { pd: end.pd, srq, qp_type: qp_type::DCT, dc_key: KEY, ..init };
        (end.qp, end.own.qpn, _) = dev.qp_create(&init).unwrap();
        start_dc(dev, end.qp, true);
    }
    for k in 0..3 {
        let mut a = end_of(dev, k, Shape { qp_type: qp_type::DCI, ..shape() });
        start_dc(dev, a.qp, false);
        let ah = dev.ah_create(a.pd, &a.own.ah).unwrap();
        for round in 0..30u64 {
            let b = &mut targets[round as usize % 3];
            let bytes = pattern(round, 4000);
            a.buffer.write(0, &bytes);
            a.peer = b.own;
            let piece = [a.piece(0, 4000)];
            let mut wr = a.request(round, Op::Write(4000, None), &piece);
            wr.ext = WrExt { dc: DcWr { ah, dc_key: KEY, dctn: b.own.qpn } };
            a.post_wr(&wr).unwrap();
            succeed(&mut a, b, round);
            assert!(b.buffer.read(4000, 4000) == bytes, "{k} to {round}");
        }
    }
}

#[test]
fn the_connection_manager_connects_queue_pairs_of_any_two_engines() {
    let set = open(EngineCount::all(2));
    let dev = set.dev();
    let mut events = Events::default();
    for (kind, space) in [(qp_type::RC, port_space::TCP), (qp_type::UD, port_space::UDP)] {
        let (listener, port) = listen(dev, space, 0);
        for (mine, theirs) in [(0, 1), (1, 0), (1, 1)] {
            let shape = Shape { qp_type: kind, ..shape() };
            let (mut mine, mut theirs) = (end_of(dev, mine, shape), end_of(dev, theirs, shape));
            let ([id, request], reached) = join(&mut events, &mine, &theirs, port);
            assert_eq!(reached.remote_qpn, theirs.own.qpn);
            if kind == qp_type::UD {
                datagram(&mut mine, &mut theirs, &reached);
                continue;
            }
            (mine.peer, theirs.peer) = (theirs.own, mine.own);
            let bytes = pattern(1, 1000);
            mine.buffer.write(0, &bytes);
            mine.post(1, Op::Write(0, None), 0, 1000).unwrap();
            succeed(&mut mine, &mut theirs, 1);
            assert!(theirs.buffer.read(0, 1000) == bytes);
            cm(dev).disconnect(id).unwrap();
            events.expect([dev; 2], cm_event::DISCONNECTED, id);
            events.expect([dev; 2], cm_event::DISCONNECTED, request);
        }
        cm(dev).destroy(listener).unwrap();
    }
}

#[test]
fn a_thread_that_sleeps_is_woken_by_another_engine() {
    // Nothing but what the sleeper and the sender do runs the engines.
    let set =
        Soft::open_with("loopback", &SoftConfig::default(), EngineCount::all(2)).expect("open");
    let dev = set.dev();
    let (mut a, mut b) = pair(dev, (0, 1), shape());
    for round in 0..20u64 {
        b.post_recv(round, 0, LEN).unwrap();
        dev.cq_arm(b.cq, false).unwrap();
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            let sleeper = scope.spawn(move || {
                tell.send(sleeping()).unwrap();
                while dev.cq_event().unwrap().is_none() {
                    assert!(dev.wait(60_000).unwrap(), "no event in round {round}");
                }
            });
            await_sleep(told.recv().unwrap());
            a.post(round, Op::Send(None), 0, LEN).unwrap();
            sleeper.join().expect("the sleeper");
        });
        assert_eq!(succeed(&mut b, &mut a, round).opcode, wc_opcode::RECV);
        succeed(&mut a, &mut b, round);
    }
}

#[test]
fn a_peer_of_an_engine_that_was_never_made_is_silent() {
    let set = open(EngineCount::up_to(2));
    let dev = set.dev();
    let quick = Shape { timeout: 8, retry_cnt: 1, ..shape() };
    let mut a = end_of(dev, 0, quick);
    // The block behind its own one is that of the other engine.
    let count = gdrcore_core::config::QPN_UNIT;
    for qpn in [a.own.qpn + count, a.own.qpn - count, a.own.qpn ^ 1] {
        a.connect(Address { qpn, ..a.own }).expect("connect");
        a.post(1, Op::Send(None), 0, LEN).unwrap();
        a.alone(1);
        dev.qp_reset(a.qp).unwrap();
    }
}

#[test]
fn ends_of_many_engines_come_and_go() {
    let set = open(EngineCount::all(8));
    let dev = set.dev();
    for round in 0..8u32 {
        let mut pairs: Vec<_> =
            (0..8).map(|k| pair(dev, (k, (k + 1 + round % 7) % 8), shape())).collect();
        std::thread::scope(|scope| {
            for (k, (a, b)) in pairs.iter_mut().enumerate() {
                scope.spawn(move || {
                    for n in 0..20u64 {
                        let bytes = pattern(n + ((k as u64) << 8), LEN as usize);
                        a.buffer.write(0, &bytes);
                        a.post(n, Op::Write(0, None), 0, LEN).unwrap();
                        succeed(a, b, n);
                        assert!(b.buffer.read(0, LEN as usize) == bytes);
                    }
                });
            }
        });
        for (a, b) in pairs {
            a.destroy().unwrap();
            b.destroy().unwrap();
        }
    }
    assert_eq!(dev.leaks().unwrap(), Default::default());
}
