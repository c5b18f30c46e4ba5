//! The connection manager over sockets, between soft devices and processes that connect by address
//! and port.

use gdrcore_core::cm::mad::MAD_LEN;
use gdrcore_core::cm::types::{cm_event, port_space, reject, ConnParam, CONNECT_DATA_MAX};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{
    qp_attr_mask as mask, qp_state, qp_type, wc_status, AhAttr, QpAttr,
};
use gdrcore_core::wire::QP1_QKEY;
use gdrcore_core::Error;
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::cm::{address, cm, connect, connected, datagram, listen, offer, Events};
use gdrcore_tests::ends::{complete, pattern, succeed, End, Op, Shape};
use gdrcore_tests::forge::{bth, plain, send_valid};
use gdrcore_tests::patience::{deadline, limit_ms, run_until};
use gdrcore_tests::soft::{self, over_each, Soft};
use gdrcore_tests::tools::{installed, loopback, run, scratch, Running};
use gdrcore_tests::{library, or_skip};
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

const SHAPE: Shape = Shape {
    qp_type: qp_type::RC,
    buffer: 1 << 18,
    access: 15,
    depth: 16,
    cqe: 64,
    sge: 1,
    mtu: 0,
    timeout: 0,
    retry_cnt: 0,
    rnr_retry: 0,
    min_rnr_timer: 0,
    peer_is_soft: false,
};

fn two() -> (Soft, Soft) {
    (Soft::new(&soft::address(1)), Soft::new(&soft::address(2)))
}

#[test]
fn programs_connect_exchange_and_disconnect_by_address_and_port() {
    over_each(|a, b| {
        let both = [a, b];
        let mut events = Events::default();
        let (listener, port) = listen(b, port_space::TCP, 0);
        let (mut mine, mut theirs) = (End::new(a, SHAPE).unwrap(), End::new(b, SHAPE).unwrap());
        let active = connect(&mine, address(b), port, &offer(b"who is there?"));
        assert_eq!(
            a.qp_query(mine.qp).unwrap().0.qp_state,
            qp_state::INIT,
            "receives can be posted before the event is taken"
        );
        let e = events.expect(both, cm_event::CONNECT_REQUEST, 0);
        assert_eq!((e.listener, e.local_port, e.remote_qpn), (listener, port, mine.own.qpn));
        assert_eq!(
            (e.private_data().len(), &e.private_data()[..13]),
            (CONNECT_DATA_MAX, &b"who is there?"[..])
        );
        let passive = e.id;
        let less = ConnParam { initiator_depth: 3, ..offer(b"me") };
        cm(b).accept(passive, theirs.qp, &less).unwrap();
        let e = events.expect(both, cm_event::ESTABLISHED, active);
        assert_eq!((&e.private_data()[..3], e.remote_qpn), (&b"me\0"[..], theirs.own.qpn));
        events.expect(both, cm_event::ESTABLISHED, passive);
        let (at, bt) = (a.qp_query(mine.qp).unwrap().0, b.qp_query(theirs.qp).unwrap().0);
        assert_eq!(
            (at.qp_state, bt.qp_state, at.path_mtu),
            (qp_state::RTS, qp_state::RTS, bt.path_mtu)
        );
        assert_eq!((at.rq_psn, bt.rq_psn), (bt.sq_psn, at.sq_psn));
        assert_eq!((at.max_rd_atomic, bt.max_rd_atomic, bt.max_dest_rd_atomic), (16, 3, 16));

        (mine.peer, theirs.peer) = (theirs.own, mine.own);
        let bytes = pattern(1, 100_000);
        mine.buffer.write(0, &bytes);
        mine.post(1, Op::Write(0, None), 0, 100_000).unwrap();
        succeed(&mut mine, &mut theirs, 1);
        theirs.post(2, Op::Read(0), 130_000, 100_000).unwrap();
        succeed(&mut theirs, &mut mine, 2);
        assert!(
            theirs.buffer.read(0, 100_000) == bytes
                && theirs.buffer.read(130_000, 100_000) == bytes
        );

        theirs.post_recv(9, 0, 64).unwrap();
        cm(a).disconnect(active).unwrap();
        assert_eq!(a.qp_query(mine.qp).unwrap().0.qp_state, qp_state::ERR);
        events.expect(both, cm_event::DISCONNECTED, active);
        events.expect(both, cm_event::DISCONNECTED, passive);
        let wc = complete(&mut theirs, &mut mine, 9, Duration::from_secs(5));
        assert_eq!(wc.status, wc_status::WR_FLUSH_ERR, "the QP of an ended connection is in ERR");
        events.expect(both, cm_event::TIMEWAIT_EXIT, active);
        for (dev, id) in [(a, active), (b, passive), (b, listener)] {
            cm(dev).destroy(id).unwrap();
            assert_eq!(cm(dev).destroy(id), Err(Error::StaleHandle));
        }
        mine.destroy().unwrap();
        theirs.destroy().unwrap();
    });
}

#[test]
fn refusals_say_why() {
    let (a, b) = two();
    let (a, b) = (a.dev(), b.dev());
    let mut events = Events::default();
    let end = End::new(a, SHAPE).unwrap();
    let id = connect(&end, address(b), 9, &offer(b""));
    let e = events.expect([a, b], cm_event::REJECTED, id);
    assert_eq!(e.status, i32::from(reject::INVALID_SERVICE_ID), "nobody listens");
    let cause = a.qp_cause(end.qp).unwrap();
    assert_eq!((cause.code, cause.arg0), (CauseCode::Rejected as u32, 8), "{cause}");
    assert_eq!(a.qp_query(end.qp).unwrap().0.qp_state, qp_state::ERR);

    let (_, port) = listen(b, port_space::TCP, 0);
    let end = End::new(a, SHAPE).unwrap();
    let id = connect(&end, address(b), port, &offer(b""));
    let request = events.expect([a, b], cm_event::CONNECT_REQUEST, 0).id;
    cm(b).reject(request, b"not today").unwrap();
    let e = events.expect([a, b], cm_event::REJECTED, id);
    assert_eq!(
        (e.status, &e.private_data()[..9]),
        (i32::from(reject::CONSUMER), &b"not today"[..])
    );

    // A REP cannot name a QP of another type than the request's, or a connected one.
    let end = End::new(a, SHAPE).unwrap();
    connect(&end, address(b), port, &offer(b""));
    let request = events.expect([a, b], cm_event::CONNECT_REQUEST, 0).id;
    let datagrams = End::new(b, Shape { qp_type: qp_type::UD, ..SHAPE }).unwrap();
    assert_eq!(cm(b).accept(request, datagrams.qp, &offer(b"")), Err(Error::Invalid));
    assert_eq!(cm(b).accept(request, 12345, &offer(b"")), Err(Error::StaleHandle));
    let good = End::new(b, SHAPE).unwrap();
    assert_eq!(cm(b).accept(request, good.qp, &offer(&[0; 197])), Err(Error::MessageSize));
    cm(b).accept(request, good.qp, &offer(b"")).unwrap();

    // Nobody is at the port, which the kernel reports by ICMP. Anybody can send ICMP, so all 16
    // requests are made, 16 ms each.
    let end = End::new(a, SHAPE).unwrap();
    let nobody =
        AhAttr { dgid: gdrcore_core::wire::ip::gid_of_v4([127, 43, 251, 251]), ..address(b) };
    let sent = a.counters().unwrap().cm_sent;
    let id = connect(&end, nobody, port, &ConnParam { response_timeout: 12, ..offer(b"") });
    let e = events.expect([a, b], cm_event::UNREACHABLE, id);
    assert!(e.status == -libc::ECONNREFUSED && !e.local, "{e:?}");
    assert!(a.counters().unwrap().cm_sent - sent >= 16, "not all requests were made");
}

#[test]
fn a_sleeping_listener_wakes_for_a_request() {
    let (a, b) = two();
    let (_, port) = listen(b.dev(), port_space::TCP, 0);
    let end = End::new(a.dev(), SHAPE).unwrap();
    for helper in [false, true] {
        b.dev().helper(helper).unwrap();
        let id = std::thread::scope(|s| {
            // Ignores a completion event that an earlier round left.
            let sleeper = s.spawn(|| {
                let limit = deadline(60);
                while Instant::now() < limit {
                    assert!(b.dev().wait(limit_ms(60)).unwrap(), "slept through it");
                    while let Some(e) = cm(b.dev()).event().unwrap() {
                        if e.event == cm_event::CONNECT_REQUEST {
                            return true;
                        }
                    }
                }
                false
            });
            std::thread::sleep(Duration::from_millis(300));
            let fresh = End::new(a.dev(), SHAPE).unwrap();
            let id =
                connect(if helper { &fresh } else { &end }, address(b.dev()), port, &offer(b""));
            assert!(sleeper.join().unwrap(), "helper {helper}");
            id
        });
        cm(a.dev()).destroy(id).unwrap();
    }
    b.dev().helper(false).unwrap();
}

#[test]
fn programs_may_move_their_queue_pairs_themselves() {
    let (a, b) = two();
    let (a, b) = (a.dev(), b.dev());
    let mut events = Events::default();
    let (_, port) = listen(b, port_space::TCP, 0);
    let (mut mine, mut theirs) = (End::new(a, SHAPE).unwrap(), End::new(b, SHAPE).unwrap());
    let raise = |dev: &dyn Device, id, qp, states: &[u32]| {
        for &state in states {
            let (attr, m) = cm(dev).qp_attr(id, state).unwrap();
            dev.qp_modify(qp, &attr, m).unwrap();
        }
    };
    let own = |end: &End| ConnParam { qpn: end.own.qpn, qp_type: qp_type::RC, ..offer(b"") };
    let active = cm(a).create(port_space::TCP, 7).unwrap();
    cm(a).connect(active, &address(b), port, 0, &own(&mine)).unwrap();
    raise(a, active, mine.qp, &[qp_state::INIT]);
    let passive = events.expect([a, b], cm_event::CONNECT_REQUEST, 0).id;
    cm(b).accept(passive, 0, &own(&theirs)).unwrap();
    raise(b, passive, theirs.qp, &[qp_state::INIT, qp_state::RTR, qp_state::RTS]);
    let e = events.expect([a, b], cm_event::CONNECT_RESPONSE, active);
    assert_eq!((e.context, e.qp), (7, 0));
    raise(a, active, mine.qp, &[qp_state::RTR, qp_state::RTS]);
    cm(a).establish(active).unwrap();
    events.expect([a, b], cm_event::ESTABLISHED, passive);
    (mine.peer, theirs.peer) = (theirs.own, mine.own);
    mine.post(1, Op::Write(0, None), 0, 5000).unwrap();
    succeed(&mut mine, &mut theirs, 1);
}

#[test]
fn a_queue_pair_that_cannot_be_connected_is_an_event() {
    let (a, b) = two();
    let (a, b) = (a.dev(), b.dev());
    let mut events = Events::default();
    let (_, port) = listen(b, port_space::TCP, 0);
    let (mine, theirs) = (End::new(a, SHAPE).unwrap(), End::new(b, SHAPE).unwrap());
    let active = connect(&mine, address(b), port, &offer(b""));
    let passive = events.expect([a, b], cm_event::CONNECT_REQUEST, 0).id;
    let end = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
    a.qp_modify(mine.qp, &end, mask::STATE).unwrap();
    cm(b).accept(passive, theirs.qp, &offer(b"")).unwrap();
    let e = events.expect([a, b], cm_event::CONNECT_ERROR, active);
    assert_eq!(e.status, -libc::EINVAL);
    // The peer hears that nothing comes of it.
    events.expect([a, b], cm_event::REJECTED, passive);
}

#[test]
fn datagram_services_are_found_by_their_port() {
    let (a, b) = two();
    let (a, b) = (a.dev(), b.dev());
    let mut events = Events::default();
    let shape = Shape { qp_type: qp_type::UD, ..SHAPE };
    let (_, port) = listen(b, port_space::UDP, 0);
    let (mut asker, mut service) = (End::new(a, shape).unwrap(), End::new(b, shape).unwrap());
    let id = connect(&asker, address(b), port, &offer(b"name?"));
    let request = events.expect([a, b], cm_event::CONNECT_REQUEST, 0);
    assert_eq!(&request.private_data()[..6], b"name?\0");
    cm(b).accept(request.id, service.qp, &offer(b"")).unwrap();
    let e = events.expect([a, b], cm_event::ESTABLISHED, id);
    assert_eq!(e.remote_qpn, service.own.qpn);
    datagram(&mut asker, &mut service, &e);
}

#[test]
fn a_vanished_peer_ends_only_its_own_connection() {
    let names = [soft::address(1), soft::address(2)];
    let b = Soft::new(&names[1]);
    let b = b.dev();
    let (listener, port) = listen(b, port_space::TCP, 0);
    for round in 0..2 {
        // The same address and port each time.
        let a = Soft::new(&names[0]);
        let mut events = Events::default();
        let (mut mine, mut theirs) =
            (End::new(a.dev(), SHAPE).unwrap(), End::new(b, SHAPE).unwrap());
        let active = connect(&mine, address(b), port, &ConnParam { retry_count: 2, ..offer(b"") });
        let passive = events.expect([a.dev(), b], cm_event::CONNECT_REQUEST, 0).id;
        cm(b).accept(passive, theirs.qp, &offer(b"")).unwrap();
        events.expect([a.dev(), b], cm_event::ESTABLISHED, active);
        events.expect([a.dev(), b], cm_event::ESTABLISHED, passive);
        (mine.peer, theirs.peer) = (theirs.own, mine.own);
        theirs.post(1, Op::Write(0, None), 0, 100).unwrap();
        succeed(&mut theirs, &mut mine, 1);
        drop(mine);
        drop(a);
        theirs.post(2, Op::Write(0, None), 0, 100).unwrap();
        run_until(60, &format!("round {round}: an operation without an end"), || {
            theirs.poll();
            theirs.take(2).is_some()
        });
        // The device that was closed has ended its connection.
        events.expect([b, b], cm_event::DISCONNECTED, passive);
        assert_eq!(cm(b).disconnect(passive), Err(Error::Invalid), "it is over");
        cm(b).destroy(passive).unwrap();
        theirs.destroy().unwrap();
    }
    cm(b).destroy(listener).unwrap();
}

#[test]
fn garbage_at_qp1_is_counted_and_ignored() {
    let (a, b) = two();
    let name = soft::address(2);
    let mut events = Events::default();
    let (mut mine, mut theirs, [_, passive]) = connected(a.dev(), b.dev(), SHAPE);
    let stranger = UdpSocket::bind((plain(&soft::address(3)).ip(), 0)).unwrap();
    let before = b.dev().counters().unwrap();
    let noise = pattern(5, 400 * MAD_LEN);
    let mut sent = 0;
    for (i, mad) in noise.chunks(MAD_LEN).enumerate() {
        let mut packet = bth(0x64, 0, 1, false, i as u32);
        packet.extend_from_slice(&if i % 8 == 7 { 0 } else { QP1_QKEY }.to_be_bytes());
        packet.extend_from_slice(&[0, 0, 0, if i % 8 == 6 { 2 } else { 1 }]);
        let mut mad = mad.to_vec();
        if i % 4 != 0 {
            // A valid header, with every attribute id.
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&(0x10 + (i / 4 % 10) as u16).to_be_bytes());
        }
        packet.extend_from_slice(&mad[..if i % 8 == 5 { 100 } else { MAD_LEN }]);
        send_valid(&stranger, plain(&name), &mut packet);
        sent += 1;
        if i % 16 == 0 {
            std::thread::sleep(Duration::from_millis(1));
            b.dev().progress().unwrap();
        }
    }
    let limit = deadline(60);
    let seen = || {
        let c = b.dev().counters().unwrap();
        (c.cm_rcvd - before.cm_rcvd) + (c.rcvd_refused - before.rcvd_refused)
    };
    while seen() < sent && Instant::now() < limit {
        b.dev().progress().unwrap();
    }
    let after = b.dev().counters().unwrap();
    assert_eq!(seen(), sent, "not every message was counted");
    assert_eq!(
        after.rcvd_refused - before.rcvd_refused,
        sent / 4,
        "another Q_Key, another QP than QP1"
    );
    assert!(after.cm_sent - before.cm_sent <= sent, "more answers than messages");
    let quiet = events.find([a.dev(), b.dev()], Duration::from_millis(50), |_| true);
    assert!(quiet.is_none(), "{quiet:?}");
    (mine.peer, theirs.peer) = (theirs.own, mine.own);
    mine.post(1, Op::Write(0, None), 0, 1000).unwrap();
    succeed(&mut mine, &mut theirs, 1);
    cm(b.dev()).disconnect(passive).unwrap();
    events.expect([a.dev(), b.dev()], cm_event::DISCONNECTED, passive);
    let reset = QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() };
    a.dev().qp_modify(mine.qp, &reset, mask::STATE).unwrap();
}

#[test]
fn tshark_names_every_message_on_the_wire() {
    let tshark = or_skip!(installed("tshark"));
    let file = scratch("cm-pcap");
    let path = file.join("cm.pcap");
    let text = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let (from, to) = (format!("soft:{}", loopback(46, 1)), format!("soft:{}", loopback(46, 2)));
    let a = Soft::open(&from, &SoftConfig { pcap: Some(&text), ..SoftConfig::default() }).unwrap();
    let b = Soft::new(&to);
    let mut events = Events::default();
    let (mine, theirs, [active, passive]) = connected(a.dev(), b.dev(), SHAPE);
    cm(a.dev()).disconnect(active).unwrap();
    events.expect([a.dev(), b.dev()], cm_event::DISCONNECTED, passive);
    events.expect([a.dev(), b.dev()], cm_event::DISCONNECTED, active);
    let end = End::new(a.dev(), SHAPE).unwrap();
    let id = connect(&end, address(b.dev()), 9, &offer(b""));
    events.expect([a.dev(), b.dev()], cm_event::REJECTED, id);
    drop((mine, theirs, end));
    drop(a);
    let said = run(Command::new(tshark).arg("-r").arg(&path), 60).output;
    let names = [
        "ConnectRequest",
        "ConnectReply",
        "ReadyToUse",
        "DisconnectRequest",
        "DisconnectReply",
        "ConnectReject",
    ];
    for name in names {
        assert!(said.contains(&format!("CM: {name}")), "no {name}:\n{said}");
    }
    let judge = gdrcore_tests::source::root().join("scripts/tshark_check.sh");
    let judged = run(Command::new(judge).args(["-p", "4791"]).arg(&path), 60);
    assert!(judged.ok(), "{judged}");
}

#[test]
fn two_processes_ping_and_the_end_of_a_killed_one_is_reported() {
    let program = library::examples().join("cm/cm_ping");
    let (here, there) = (loopback(46, 11), loopback(46, 12));
    let device = |address: &str| format!("soft:{address}");
    let server = || Running::start(Command::new(&program).args(["-s", "-v", "-d", &device(&here)]));
    let client = |rounds: &str| {
        let mut command = Command::new(&program);
        command.args(["-c", "-d", &device(&there), "-C", rounds, &here]);
        command
    };
    let first = server();
    let asked = run(&mut client("20"), 60);
    assert!(asked.ok() && asked.output.contains("20 rounds"), "{asked}");
    let served = first.finish(Duration::from_secs(60));
    assert!(served.ok() && served.output.contains("20 rounds"), "{served}");
    assert!(served.output.contains("ping data: rdma-ping-19: "), "{served}");

    // Its output goes to a file, which shows when the two exchange: a request that came before the
    // listener is repeated later.
    let dir = scratch("cm-killed");
    let words = dir.join("words");
    let mut told = Command::new("sh");
    told.args(["-c", "exec \"$0\" \"$@\" >\"$WORDS\" 2>&1"]).arg(&program);
    told.args(["-s", "-v", "-d", &device(&here)]).env("WORDS", &words);
    let second = Running::start(&mut told);
    let mut doomed = Running::start(&mut client("0"));
    let said = || std::fs::read_to_string(&words).unwrap_or_default();
    let end = deadline(60);
    while !said().contains("ping data") {
        assert!(
            Instant::now() < end && doomed.still_runs(),
            "they did not exchange a message: {}",
            said()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    doomed.kill();
    let left = second.finish(Duration::from_secs(40));
    assert!(
        left.code().is_some() && said().contains("rounds"),
        "the server ended by itself: {}",
        said()
    );

    let nobody = run(&mut client("1"), 60);
    assert!(
        nobody.code().is_some_and(|c| c > 0) && nobody.output.contains("UNREACHABLE"),
        "{nobody}"
    );
}

#[test]
fn connections_are_made_under_a_flood_of_requests() {
    // The figures for 10,000 connections are in docs/records/PROOF.md.
    let flood = env!("CARGO_BIN_EXE_cm_flood");
    let done = run(Command::new(flood).args(["300", "1000", "1000"]), 120);
    assert!(done.ok() && done.output.contains("300 of 300 connections stood"), "{done}");
}
