//! The connection manager of a device of several engines: its connections have queue pairs of any
//! engine.

use gdrcore_core::cm::types::{cm_event, port_space, reject, ConnParam};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{qp_state, qp_type, wc_status};
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags, EngineCount, PathChoice, SoftConfig};
use gdrcore_tests::cm::{address, cm, connect, datagram, listen, offer, Events};
use gdrcore_tests::ends::{complete, pattern, succeed, End, Op, Shape};
use gdrcore_tests::soft::{self, Soft};
use gdrcore_tests::workers::{block, shape};
use std::time::Duration;

const PATHS: [PathChoice; 2] = [PathChoice::Shm, PathChoice::Udp];

/// Two devices of two engines each.
fn two(path: PathChoice) -> [Soft; 2] {
    [1, 2].map(|last| {
        let config = SoftConfig { path, flags: soft_flags::HELPER, ..SoftConfig::default() };
        Soft::open_with(&soft::address(last), &config, EngineCount::all(2)).expect("open")
    })
}

/// Ends of one device: the first of this thread's engine, the second of another.
fn ends(dev: &dyn Device, shape: Shape) -> [End<'_>; 2] {
    let first = End::new(dev, shape).expect("an end");
    let second = std::thread::scope(|scope| {
        scope.spawn(|| End::new(dev, shape).expect("an end")).join().expect("the thread")
    });
    assert_ne!(block(&first), block(&second), "a block for each engine");
    [first, second]
}

#[test]
fn queue_pairs_of_every_engine_are_connected_and_disconnected() {
    for path in PATHS {
        let [x, y] = two(path);
        let both = [x.dev(), y.dev()];
        let [a, b] = both;
        let mut events = Events::default();
        let (listener, port) = listen(b, port_space::TCP, 0);
        let pairs = ends(a, shape()).into_iter().zip(ends(b, shape()).into_iter().rev());
        let mut ids = Vec::new();
        for (mut mine, mut theirs) in pairs {
            let active = connect(&mine, address(b), port, &offer(b"from any engine"));
            assert_eq!(mine.state(), qp_state::INIT, "it takes receives before the answer");
            let e = events.expect(both, cm_event::CONNECT_REQUEST, 0);
            assert_eq!((e.listener, e.remote_qpn), (listener, mine.own.qpn));
            let less = ConnParam { initiator_depth: 3, ..offer(b"") };
            cm(b).accept(e.id, theirs.qp, &less).unwrap();
            let reached = events.expect(both, cm_event::ESTABLISHED, active);
            assert_eq!((reached.qp, reached.remote_qpn), (mine.qp, theirs.own.qpn));
            assert_eq!(events.expect(both, cm_event::ESTABLISHED, e.id).qp, theirs.qp);
            assert_eq!([mine.state(), theirs.state()], [qp_state::RTS; 2]);
            assert_eq!(b.qp_query(theirs.qp).unwrap().0.max_rd_atomic, 3);

            (mine.peer, theirs.peer) = (theirs.own, mine.own);
            let bytes = pattern(1, 1000);
            mine.buffer.write(0, &bytes);
            mine.post(1, Op::Write(0, None), 0, 1000).unwrap();
            succeed(&mut mine, &mut theirs, 1);
            theirs.post(2, Op::Read(0), 2000, 1000).unwrap();
            succeed(&mut theirs, &mut mine, 2);
            assert!(theirs.buffer.read(2000, 1000) == bytes);

            theirs.post_recv(9, 0, 64).unwrap();
            cm(a).disconnect(active).unwrap();
            assert_eq!(mine.state(), qp_state::ERR);
            events.expect(both, cm_event::DISCONNECTED, active);
            events.expect(both, cm_event::DISCONNECTED, e.id);
            let wc = complete(&mut theirs, &mut mine, 9, Duration::from_secs(60));
            assert_eq!(wc.status, wc_status::WR_FLUSH_ERR, "its connection is over");
            ids.extend([(a, active), (b, e.id)]);
            mine.destroy().unwrap();
            theirs.destroy().unwrap();
        }
        ids.push((b, listener));
        for (dev, id) in ids {
            cm(dev).destroy(id).unwrap();
            assert_eq!(cm(dev).destroy(id), Err(Error::StaleHandle));
        }
        assert_eq!([a.leaks().unwrap(), b.leaks().unwrap()], [Default::default(); 2]);
    }
}

#[test]
fn a_failed_connection_is_explained_at_its_queue_pair_of_any_engine() {
    let [x, y] = two(PathChoice::Udp);
    let [a, b] = [x.dev(), y.dev()];
    let mut events = Events::default();
    let (_, port) = listen(b, port_space::TCP, 0);
    let strangers = ends(b, Shape { qp_type: qp_type::UD, ..shape() });
    for (end, datagrams) in ends(a, shape()).into_iter().zip(strangers) {
        let id = connect(&end, address(b), 9, &offer(b""));
        let e = events.expect([a, b], cm_event::REJECTED, id);
        assert_eq!(e.status, i32::from(reject::INVALID_SERVICE_ID), "nobody listens");
        for cause in [a.qp_cause(end.qp).unwrap(), a.last_cause().unwrap()] {
            assert_eq!((cause.code, cause.qpn), (CauseCode::Rejected as u32, end.own.qpn));
        }
        assert_eq!(end.state(), qp_state::ERR);
        assert_eq!(cm(a).connect(id, &address(b), port, end.qp, &offer(b"")), Err(Error::Invalid));

        // A queue pair of another type than the request's, and one that there is not.
        a.qp_reset(end.qp).unwrap();
        let id = connect(&end, address(b), port, &offer(b""));
        let request = events.expect([a, b], cm_event::CONNECT_REQUEST, 0).id;
        assert_eq!(cm(b).accept(request, datagrams.qp, &offer(b"")), Err(Error::Invalid));
        for stale in [datagrams.qp + (1 << 32), 63 << 16] {
            assert_eq!(cm(b).accept(request, stale, &offer(b"")), Err(Error::StaleHandle));
        }
        cm(b).reject(request, b"").unwrap();
        events.expect([a, b], cm_event::REJECTED, id);
    }
}

#[test]
fn datagram_services_are_of_any_engine() {
    for path in PATHS {
        let [x, y] = two(path);
        let both = [x.dev(), y.dev()];
        let [a, b] = both;
        let mut events = Events::default();
        let shape = Shape { qp_type: qp_type::UD, ..shape() };
        let (_, port) = listen(b, port_space::UDP, 0);
        let services = ends(b, shape).into_iter().rev();
        for (mut asker, mut service) in ends(a, shape).into_iter().zip(services) {
            let id = connect(&asker, address(b), port, &offer(b"name?"));
            let request = events.expect(both, cm_event::CONNECT_REQUEST, 0);
            cm(b).accept(request.id, service.qp, &offer(b"")).unwrap();
            let e = events.expect(both, cm_event::ESTABLISHED, id);
            assert_eq!((e.remote_qpn, service.state()), (service.own.qpn, qp_state::RTS));
            datagram(&mut asker, &mut service, &e);
        }
    }
}
