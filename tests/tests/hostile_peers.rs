//! Peers that are killed, stopped or silent: every operation ends with its cause, and the surviving
//! process continues.

use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{qp_attr_mask, qp_state, wc_status, QpAttr};
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::ends::{complete, pattern, succeed, Address, End, Op, Shape};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::patience::{deadline, run_until};
use gdrcore_tests::soft::{address, Soft};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
const MIB: u32 = 1 << 20;
/// Requests of 1 MiB in a stream.
const STREAM: u64 = 1024;

fn alone_succeeds(a: &mut End, wr_id: u64) {
    let wc = a.alone(wr_id);
    assert_eq!(wc.status, wc_status::SUCCESS, "{wc:?}, cause {:?}", a.cause());
}

#[test]
fn a_peer_killed_in_a_stream_ends_it_with_its_cause_and_the_survivor_goes_on() {
    let here = Soft::new(&address(1));
    let there = address(2);
    for op in [Op::Write(0, None), Op::Read(0), Op::Send(None)] {
        let mut far = Far::start(FAR, &there, &["recv=1048576"]);
        let mut a = End::new(here.dev(), Shape::default()).expect("an end");
        far.connect(&mut a);
        let (mut posted, mut moved) = (0u64, 0u64);
        let (mut killed, end) = (false, deadline(60));
        let failed = 'stream: loop {
            while posted < STREAM && posted < moved + 8 {
                a.post(posted, op, 0, MIB).expect("post_send");
                posted += 1;
            }
            if a.poll() == 0 {
                std::thread::yield_now();
            }
            for wc in std::mem::take(&mut a.done) {
                if wc.status != wc_status::SUCCESS {
                    a.done.push(wc);
                } else {
                    assert_eq!(wc.wr_id, moved, "{op:?}");
                    moved += 1;
                }
            }
            if let Some(wc) = a.done.first() {
                break 'stream *wc;
            }
            if moved == 24 && !killed {
                far.kill();
                killed = true;
            }
            assert!(moved < STREAM, "{op:?}: the stream outlived its peer");
            assert!(Instant::now() < end, "{op:?} did not end");
        };
        assert!(killed, "{op:?} failed before the kill: {failed:?}, cause {:?}", a.cause());
        assert_eq!((failed.status, failed.wr_id), (wc_status::RETRY_EXC_ERR, moved), "{op:?}");
        // The host of an ended peer refuses packets by ICMP.
        assert_eq!(a.cause(), CauseCode::PeerUnreachable, "{op:?}");
        assert_eq!(a.dev.qp_cause(a.qp).expect("qp_cause").peer, a.peer.ah.dgid);
        for n in moved + 1..posted {
            assert_eq!(a.alone(n).status, wc_status::WR_FLUSH_ERR, "{op:?}");
        }
        a.destroy().expect("destroy");
        // The same device, with a new peer at the same address.
        let mut far = Far::start(FAR, &there, &[]);
        let mut a = End::new(here.dev(), Shape::default()).expect("an end");
        far.connect(&mut a);
        let bytes = pattern(5, 300_000);
        a.buffer.write(0, &bytes);
        a.post(1, Op::Write(0, None), 0, 300_000).expect("post_send");
        alone_succeeds(&mut a, 1);
        a.post(2, Op::Read(0), 500_000, 300_000).expect("post_send");
        alone_succeeds(&mut a, 2);
        assert!(a.buffer.read(500_000, 300_000) == bytes);
        a.destroy().expect("destroy");
        assert!(far.finish(), "the far end did not close cleanly");
    }
    assert_eq!(here.dev().leaks().expect("leaks"), Default::default());
}

/// Timeouts of hours: only the end of the link can be what ends the requests.
#[test]
fn a_peer_killed_behind_a_link_is_reported_at_once_whatever_the_timeouts() {
    let patient = Shape { timeout: 31, retry_cnt: 7, ..Shape::default() };
    for path in [PathChoice::Shm, PathChoice::Auto] {
        let config = SoftConfig { path, ..SoftConfig::default() };
        let here = Soft::open(&address(5), &config).expect("a device");
        let there = address(6);
        let mut far = Far::start(FAR, &there, &["path=shm", "recv=1024"]);
        let [mut busy, mut idle] = [0, 1].map(|_| End::new(here.dev(), patient).expect("an end"));
        for a in [&mut busy, &mut idle] {
            far.connect(a);
            a.post(1, Op::Write(0, None), 0, 1000).expect("post_send");
            alone_succeeds(a, 1);
        }
        // A stopped peer answers nothing, so the requests are under way when it is killed.
        far.stop();
        busy.post(2, Op::Write(0, None), 0, 100).expect("post_send");
        busy.post(3, Op::Read(0), 0, 100_000).expect("post_send");
        far.kill();
        assert_eq!(busy.alone(2).status, wc_status::RETRY_EXC_ERR, "{path:?}");
        assert_eq!(busy.alone(3).status, wc_status::WR_FLUSH_ERR, "{path:?}");
        // One that has nothing under way fails too, so that a program that only receives hears it.
        run_until(60, &format!("{path:?}: an idle queue pair heard nothing"), || {
            idle.poll();
            idle.state() == qp_state::ERR
        });
        for a in [&busy, &idle] {
            assert_eq!(a.cause(), CauseCode::PathLost, "{path:?}");
        }
        for a in [busy, idle] {
            a.destroy().expect("destroy");
        }
    }
}

#[test]
fn a_requester_killed_in_its_stream_leaves_its_target_unaffected() {
    let here = Soft::new(&address(1));
    let there = address(2);
    for stream in ["stream=write", "stream=read", "stream=send"] {
        let mut far = Far::start(FAR, &there, &[stream]);
        let mut a = End::new(here.dev(), Shape::default()).expect("an end");
        far.connect(&mut a);
        for n in 0..4 {
            a.post_recv(n, 0, MIB).expect("post_recv");
        }
        let end = deadline(60);
        let mut received = 0;
        let before = a.dev.counters().expect("counters").rcvd_pkts;
        loop {
            if a.poll() == 0 {
                std::thread::yield_now();
            }
            for wc in std::mem::take(&mut a.done) {
                assert_eq!(wc.status, wc_status::SUCCESS, "{stream}: {wc:?}");
                a.post_recv(wc.wr_id, 0, MIB).expect("post_recv");
                received += 1;
            }
            let packets = a.dev.counters().expect("counters").rcvd_pkts - before;
            if packets > 3000 || stream == "stream=read" && packets > 60 {
                break;
            }
            assert!(Instant::now() < end, "{stream}: {packets} packets");
        }
        assert!(stream != "stream=send" || received > 0);
        far.kill();
        // A responder has nothing outstanding, so nothing completes and nothing fails.
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            a.poll();
        }
        assert!(a.done.iter().all(|wc| wc.status == wc_status::SUCCESS), "{stream}: {:?}", a.done);
        let to_err = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
        let left = 4 - a.done.len();
        a.done.clear();
        a.dev.qp_modify(a.qp, &to_err, qp_attr_mask::STATE).expect("to ERR");
        for _ in 0..100 {
            a.poll();
        }
        let flushed = a.done.iter().filter(|wc| wc.status == wc_status::WR_FLUSH_ERR).count();
        assert_eq!(flushed, left, "{stream}: {:?}", a.done);
        a.destroy().expect("destroy");
    }
    assert_eq!(here.dev().leaks().expect("leaks"), Default::default());
}

/// Runs these ends until a time.
fn drive(ends: &mut [&mut End], until: Instant) {
    while Instant::now() < until {
        if ends.iter_mut().map(|e| e.poll()).sum::<usize>() == 0 {
            std::thread::yield_now();
        }
    }
}

fn drive_a_little(ends: &mut [&mut End]) {
    drive(ends, Instant::now() + Duration::from_millis(5));
}

/// The next line of the far process; runs these ends meanwhile.
fn next_line(far: &mut Far, ends: &mut [&mut End], end: Instant) -> String {
    loop {
        drive_a_little(ends);
        if let Some(line) = far.said() {
            return line;
        }
        assert!(Instant::now() < end, "the far process printed nothing");
    }
}

/// Timeouts that the far process has counted, while it streams to `target`.
fn timeouts_of(far: &mut Far, target: &mut End, end: Instant) -> u64 {
    far.say("tell");
    loop {
        let line = next_line(far, &mut [target], end);
        let mut words = line.split_whitespace();
        match words.next() {
            Some("counters") => return words.next().expect("a number").parse().expect("a number"),
            _ => assert!(line.starts_with("moved"), "{line}"),
        }
    }
}

#[test]
fn processes_stopped_for_five_seconds() {
    let here = Soft::new(&address(1));
    // Three processes: a target that is stopped for longer than its peer retries, one whose peer
    // retries for long, and one that streams itself.
    let mut gone = Far::start(FAR, &address(2), &[]);
    let mut patient = Far::start(FAR, &address(3), &[]);
    let mut busy =
        Far::start(FAR, &address(4), &["stream=write", "piece=65536", "timeout=16", "retry=7"]);
    let mut a = End::new(here.dev(), Shape::default()).expect("an end");
    // Eight tries of 2.1 s each.
    let mut b = End::new(here.dev(), Shape { timeout: 19, ..Shape::default() }).expect("an end");
    let mut c = End::new(here.dev(), Shape::default()).expect("an end");
    gone.connect(&mut a);
    patient.connect(&mut b);
    busy.connect(&mut c);
    let end = deadline(60);
    let line = next_line(&mut busy, &mut [&mut a, &mut b, &mut c], end);
    assert!(line.starts_with("moved"), "{line}; {:?}", here.dev().counters());
    let timeouts = timeouts_of(&mut busy, &mut c, end);
    for far in [&gone, &patient, &busy] {
        far.signal(libc::SIGSTOP);
    }
    let stopped = Instant::now();
    let bytes = pattern(6, 400_000);
    a.post(1, Op::Write(0, None), 0, 400_000).expect("post_send");
    b.buffer.write(0, &bytes);
    b.post(1, Op::Write(0, None), 0, 400_000).expect("post_send");
    b.post(2, Op::Read(0), 500_000, 400_000).expect("post_send");
    drive(&mut [&mut a, &mut b, &mut c], stopped + Duration::from_secs(5));
    // Eight tries of 67 ms are over long ago, unless the machine is busy.
    let wc = loop {
        if let Some(wc) = a.take(1) {
            break wc;
        }
        drive_a_little(&mut [&mut a, &mut b, &mut c]);
        assert!(b.done.is_empty(), "eight tries of 67 ms take longer than eight of 2.1 s");
    };
    assert_eq!((wc.status, a.cause()), (wc_status::RETRY_EXC_ERR, CauseCode::NotPolled));
    assert!(b.done.is_empty() && c.done.is_empty(), "{:?} {:?}", b.done, c.done);
    for far in [&gone, &patient, &busy] {
        while far.said().is_some() {}
        far.signal(libc::SIGCONT);
    }
    run_until(60, "two completions", || {
        drive_a_little(&mut [&mut b, &mut c]);
        b.done.len() >= 2
    });
    assert!(
        b.done.iter().all(|wc| wc.status == wc_status::SUCCESS),
        "{:?}, cause {:?}",
        b.done,
        b.cause()
    );
    assert!(b.buffer.read(500_000, 400_000) == bytes);
    // The process that streams handles the packets that arrived before it looks at its timers, so
    // it continues without superfluous retries.
    let line = next_line(&mut busy, &mut [&mut b, &mut c], end);
    assert!(line.starts_with("moved"), "{line}");
    let timeouts = timeouts_of(&mut busy, &mut c, end) - timeouts;
    assert!(
        timeouts <= 1,
        "after its stop the process counted {timeouts} timeouts against its peer"
    );
    // The process whose peer gave up can make another connection.
    let mut d = End::new(here.dev(), Shape::default()).expect("an end");
    gone.connect(&mut d);
    d.post(1, Op::Write(0, None), 0, 100_000).expect("post_send");
    alone_succeeds(&mut d, 1);
}

/// An address with a socket that never answers.
fn mute(last: u8) -> (UdpSocket, Address) {
    let at: SocketAddr = address(last).trim_start_matches("soft:").parse().expect("address:port");
    let socket = UdpSocket::bind(at).expect("a socket");
    (socket, stranger(at))
}

fn stranger(at: SocketAddr) -> Address {
    let mut a = Address { qpn: 0x1234, psn: 7, addr: 0x10_0000, rkey: 0x55, ..Address::default() };
    let std::net::IpAddr::V4(ip) = at.ip() else {
        unreachable!("tests of this file use IPv4 addresses")
    };
    a.ah.dgid[10..12].fill(0xff);
    a.ah.dgid[12..].copy_from_slice(&ip.octets());
    a.ah.udp_port = at.port();
    a
}

#[test]
fn a_peer_that_never_answers_ends_every_operation_by_the_deadline() {
    let mut config = SoftConfig::default();
    config.core.deadline_ns = 400_000_000;
    let here = Soft::open(&address(1), &config).expect("a device");
    let (_socket, nobody) = mute(2);
    // Timeout code 10 is 4.2 ms, with three tries; code 0 leaves the limit to the device.
    for (timeout, retry_cnt) in [(10, 2), (0, 7)] {
        let shape = Shape { timeout, retry_cnt, ..Shape::default() };
        let mut ends: Vec<End> =
            (0..8).map(|_| End::new(here.dev(), shape).expect("an end")).collect();
        for (n, a) in ends.iter_mut().enumerate() {
            a.connect(nobody).expect("connect");
            let op = [Op::Write(0, None), Op::Read(0), Op::Send(None), Op::FetchAdd(0, 1)][n % 4];
            a.post(1, op, 0, if n % 4 == 3 { 8 } else { 200_000 }).expect("post_send");
            a.post(2, Op::Write(0, None), 0, 8).expect("post_send");
        }
        for a in &mut ends {
            assert_eq!(a.alone(1).status, wc_status::RETRY_EXC_ERR);
            assert_eq!(a.alone(2).status, wc_status::WR_FLUSH_ERR);
            // That socket is never read.
            assert_eq!(a.cause(), CauseCode::NotPolled);
        }
        ends.into_iter().for_each(|e| e.destroy().expect("destroy"));
    }
}

#[test]
fn an_address_without_a_socket_is_reported_as_the_cause() {
    for (from, host) in [(address(1), 2u8), (address(3), 4)] {
        let here = Soft::new(&from);
        let (socket, nobody) = mute(host);
        drop(socket);
        let mut a = End::new(here.dev(), Shape { timeout: 10, retry_cnt: 3, ..Shape::default() })
            .expect("an end");
        a.connect(nobody).expect("connect");
        a.post(1, Op::Write(0, None), 0, 100_000).expect("post_send");
        let wc = a.alone(1);
        assert_eq!(
            (wc.status, wc.vendor_err),
            (wc_status::RETRY_EXC_ERR, CauseCode::PeerUnreachable as u32)
        );
        let c = a.dev.qp_cause(a.qp).expect("qp_cause");
        assert_eq!((c.peer, c.arg0), (nobody.ah.dgid, libc::ECONNREFUSED as u64));
        assert!(here.dev().counters().expect("counters").port_icmp_err >= 1);
    }
}

#[test]
fn a_refusal_of_long_ago_is_not_the_cause_of_a_later_silence() {
    let here = Soft::new(&address(1));
    // Two devices with one configuration give their first QPs the same number.
    let mut config = SoftConfig::default();
    config.core.seed = 0x5EED;
    // Three seconds of retries; the second device is made within them.
    let shape = Shape { timeout: 17, retry_cnt: 4, ..Shape::default() };
    let mut a = End::new(here.dev(), shape).expect("an end");
    let was = {
        let first = Soft::open(&address(2), &config).expect("a device");
        let end = End::new(first.dev(), shape).expect("an end");
        end.own
    };
    a.connect(was).expect("connect");
    a.post(1, Op::Send(None), 0, 1000).expect("post_send");
    run_until(60, "the refusal was not noticed", || {
        a.poll();
        a.cause() == CauseCode::PeerUnreachable
    });
    let second = Soft::open(&address(2), &config).expect("a device");
    let mut b = End::new(second.dev(), shape).expect("an end");
    assert_eq!((b.own.qpn, b.own.psn), (was.qpn, was.psn));
    b.connect(a.own).expect("connect");
    for n in 0..2 {
        b.post_recv(n, 0, 1000).expect("post_recv");
    }
    succeed(&mut a, &mut b, 1);
    let until = Instant::now() + Duration::from_millis(600);
    while Instant::now() < until {
        a.poll();
    }
    b.dev.qp_destroy(b.qp).expect("qp_destroy");
    a.post(2, Op::Write(0, None), 0, 1000).expect("post_send");
    let wc = complete(&mut a, &mut b, 2, Duration::from_secs(60));
    assert_eq!((wc.status, a.cause()), (wc_status::RETRY_EXC_ERR, CauseCode::Unanswered));
}
