//! Several devices on one address and UDP port: steering, forwarding, connections, processes that
//! stop or end.

use gdrcore_core::cm::types::{cm_event, port_space};
use gdrcore_core::cm::LISTENER_GRACE_NS;
use gdrcore_core::config::{Config, QPN_UNIT};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::qp_type;
use gdrcore_core::Error;
use gdrcore_net::soft::{EngineCount, PathChoice, SoftConfig};
use gdrcore_tests::cm::{self, cm, Events};
use gdrcore_tests::cpu;
use gdrcore_tests::ends::{connected, pattern, succeed, End, Op, Shape};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::patience::{deadline, run_until, until};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::traffic::exchange_between;
use std::time::{Duration, Instant};

const UDP: SoftConfig<'static> = SoftConfig { path: PathChoice::Udp, ..DEFAULT };
const DEFAULT: SoftConfig<'static> = SoftConfig {
    core: Config::DEFAULT,
    flags: 0,
    path: PathChoice::Auto,
    pcap: None,
    faults: None,
    engines: EngineCount::ONE,
};

fn open(name: &str, config: &SoftConfig) -> Soft {
    Soft::open(name, config).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Lets all of them run until the steering has settled. Time in which this thread did not run does
/// not count.
fn settle(devices: &[Soft]) {
    run_for(devices, Duration::from_millis(150));
}

/// Lets all of them run for this much of the thread's CPU time.
fn run_for(devices: &[Soft], time: Duration) {
    let end = cpu::of_thread() + time;
    while cpu::of_thread() < end {
        for d in devices {
            d.dev().progress().expect("progress");
        }
    }
}

#[test]
fn devices_of_one_address_talk_to_each_other_and_to_others() {
    for config in [UDP, DEFAULT] {
        let name = address(1);
        let devices: Vec<Soft> = (0..4).map(|_| open(&name, &config)).collect();
        let other = open(&address(2), &config);
        // Before the steering has settled, and after.
        for round in 0..2 {
            for a in &devices {
                for b in &devices {
                    exchange_between(a.dev(), b.dev(), Shape::default(), 100_000);
                }
                exchange_between(a.dev(), other.dev(), Shape::default(), 100_000);
                exchange_between(other.dev(), a.dev(), Shape::default(), 100_000);
            }
            if round == 0 {
                settle(&devices);
            }
        }
        let mut blocks: Vec<u32> =
            devices.iter().map(|d| d.dev().query().expect("query").qpn_base / QPN_UNIT).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 4, "a block each");
    }
}

fn detours(devices: &[Soft]) -> u64 {
    devices.iter().map(|d| d.dev().counters().expect("counters").share_by_detour).sum()
}

/// A device of the same host gets a second socket after some small messages. What it sends by that
/// to a device whose packets do not come to its own socket yet is taken, too.
#[test]
fn a_second_socket_is_allowed_before_the_steering_has_settled() {
    let (end, name) = (deadline(120), address(1));
    let mut seen = 0;
    // On a busy machine the steering may come before the second socket.
    for run in 0.. {
        let devices = [open(&name, &UDP), open(&name, &UDP)];
        let [dx, dy] = [0, 1].map(|n| devices[n].dev());
        let shape = Shape { depth: 256, cqe: 1024, peer_is_soft: true, ..Shape::default() };
        let (mut a, mut b) = connected(dx, dy, shape).expect("connected ends");
        let counters = || dy.counters().expect("counters");
        let mut first = None;
        for round in 0..100 {
            let before = counters();
            // The second socket comes after some that leave alone; then more than besiege a queue
            // pair are refused at once.
            let n = if round < 60 { 1 } else { 128 };
            for id in 0..n {
                a.post(id, Op::Write(0, None), 0, 64).expect("post_send");
            }
            for id in 0..n {
                succeed(&mut a, &mut b, id);
            }
            let now = counters();
            if now.rcvd_refused > before.rcvd_refused && first.is_none() {
                first = Some(round);
                seen += u32::from(now.share_by_detour > before.share_by_detour);
            }
        }
        let now = counters();
        assert_eq!(now.rcvd_throttled, 0, "run {run}, first refused in {first:?}: {now:?}");
        if seen == 5 {
            break;
        }
        assert!(Instant::now() < end, "{seen} of {run} second sockets before the steering");
    }
}

#[test]
fn the_kernel_keeps_steering_when_devices_leave() {
    let name = address(1);
    let mut devices: Vec<Soft> = (0..6).map(|_| open(&name, &UDP)).collect();
    let other = open(&address(2), &UDP);
    let refused: u64 =
        devices.iter().map(|d| d.dev().counters().expect("counters").share_refused).sum();
    if refused > 0 {
        gdrcore_tests::skip!("the kernel attaches no program to a group of sockets here");
    }
    // The first, one from the middle, then all but one: the kernel's list changes each time.
    for leave in [&[][..], &[0], &[2, 0], &[1, 0]] {
        for &i in leave {
            drop(devices.remove(i));
        }
        settle(&devices);
        let before = detours(&devices);
        for d in &devices {
            exchange_between(d.dev(), other.dev(), Shape::default(), 200_000);
        }
        assert_eq!(detours(&devices), before, "{} are left", devices.len());
        devices.push(open(&name, &UDP));
    }
}

#[test]
fn datagrams_find_the_device_that_has_the_qpn() {
    for path in [PathChoice::Udp, PathChoice::Auto, PathChoice::Shm] {
        let config = SoftConfig { path, ..DEFAULT };
        let name = address(1);
        let mut devices: Vec<Soft> = (0..3).map(|_| open(&name, &config)).collect();
        devices.push(open(&address(2), &config));
        let shape = Shape { qp_type: qp_type::UD, ..Shape::default() };
        for a in &devices {
            for b in &devices {
                let (x, y) = connected(a.dev(), b.dev(), shape).expect("connected ends");
                let (mut x, mut y) = (x, y);
                let end = deadline(60);
                for n in 0..20u64 {
                    let data = pattern(n, 900);
                    x.buffer.write(0, &data);
                    y.post_recv(n, 0, 2000).expect("post_recv");
                    // A datagram may be lost, as long as later ones arrive. A datagram that is
                    // still on its way after so many rounds counts as lost.
                    let mut got = false;
                    while !got {
                        x.post(n, Op::Send(None), 0, 900).expect("post_send");
                        got = (0..20_000).any(|_| {
                            devices.iter().for_each(|d| _ = d.dev().progress());
                            x.poll();
                            y.poll();
                            y.take(n).is_some()
                        });
                        assert!(Instant::now() < end, "{path:?}: nothing came");
                    }
                    assert!(y.buffer.read(40, 900) == data);
                    x.done.clear();
                }
                x.destroy().expect("nothing in use");
                y.destroy().expect("nothing in use");
            }
        }
    }
}

/// Runs all devices until `a` or `b` has the event.
fn event(
    all: &[Soft],
    events: &mut Events,
    a: &dyn Device,
    b: &dyn Device,
    kind: u32,
) -> gdrcore_core::cm::types::CmEvent {
    until(
        60,
        || format!("no event {kind}"),
        || {
            all.iter().for_each(|d| _ = d.dev().progress());
            events.find([a, b], Duration::ZERO, |e| e.event == kind)
        },
    )
}

#[test]
fn requests_find_their_listener_and_both_sides_find_each_other() {
    for config in [UDP, DEFAULT] {
        let name = address(1);
        let mut devices: Vec<Soft> = (0..4).map(|_| open(&name, &config)).collect();
        devices.push(open(&address(2), &config));
        // Each listens at a port of its own; a port has one listener among the devices of an
        // address.
        let services: Vec<_> =
            devices.iter().map(|d| cm::listen(d.dev(), port_space::TCP, 8)).collect();
        let second = cm(devices[1].dev()).create(port_space::TCP, 0).expect("create");
        cm(devices[1].dev()).bind(second, services[0].1).expect("bound on this device only");
        assert_eq!(cm(devices[1].dev()).listen(second, 8), Err(Error::AddressInUse));
        for a in &devices {
            for (b, (_, port)) in devices.iter().zip(&services) {
                let mut events = Events::default();
                let mut x = End::new(a.dev(), Shape::default()).expect("an end");
                let mut y = End::new(b.dev(), Shape::default()).expect("an end");
                let id = cm::connect(&x, cm::address(b.dev()), *port, &cm::offer(b"hello"));
                let asked =
                    event(&devices, &mut events, b.dev(), b.dev(), cm_event::CONNECT_REQUEST);
                cm(b.dev()).accept(asked.id, y.qp, &cm::offer(b"yes")).expect("accept");
                let e = event(&devices, &mut events, a.dev(), a.dev(), cm_event::ESTABLISHED);
                assert_eq!(e.id, id);
                assert!(e.private_data().starts_with(b"yes"));
                x.peer = y.own;
                let data = pattern(u64::from(*port), 50_000);
                x.buffer.write(0, &data);
                x.post(1, Op::Write(0, None), 0, 50_000).expect("post_send");
                succeed(&mut x, &mut y, 1);
                assert!(y.buffer.read(0, 50_000) == data);
                cm(a.dev()).disconnect(id).expect("disconnect");
                event(&devices, &mut events, b.dev(), b.dev(), cm_event::DISCONNECTED);
                cm(a.dev()).destroy(id).expect("destroy");
                cm(b.dev()).destroy(asked.id).expect("destroy");
                x.destroy().expect("nothing in use");
                y.destroy().expect("nothing in use");
            }
        }
        // A destroyed listener frees its port.
        cm(devices[0].dev()).destroy(services[0].0).expect("destroy");
        cm(devices[1].dev()).listen(second, 8).expect("the port is free");
        // Without a listener the request is refused, whichever device gets it.
        let x = End::new(devices[2].dev(), Shape::default()).expect("an end");
        let mut events = Events::default();
        cm::connect(&x, cm::address(devices[0].dev()), 9, &cm::offer(b""));
        event(&devices, &mut events, devices[2].dev(), devices[2].dev(), cm_event::REJECTED);
        x.destroy().expect("nothing in use");
    }
}

#[test]
fn a_listener_is_found_before_the_steering_has_settled() {
    // The kernel chooses by the addresses which of the two sockets gets the request.
    for last in 1..=12 {
        let config = if last % 2 == 0 { UDP } else { DEFAULT };
        let here = open(&address(last), &config);
        settle(std::slice::from_ref(&here));
        let there = open(&address(last), &config);
        let (_listener, port) = cm::listen(there.dev(), port_space::TCP, 8);
        let x = End::new(here.dev(), Shape::default()).expect("an end");
        cm::connect(&x, cm::address(there.dev()), port, &cm::offer(b""));
        let mut events = Events::default();
        let e = events
            .find([here.dev(), there.dev()], Duration::from_secs(60), |_| true)
            .expect("an event");
        assert_eq!((e.event, e.status), (cm_event::CONNECT_REQUEST, 0), "address {last}");
        x.destroy().expect("nothing in use");
    }
}

#[test]
fn a_request_waits_for_a_listener_whose_port_is_bound() {
    for config in [UDP, DEFAULT] {
        let name = address(1);
        let devices: Vec<Soft> = (0..4).map(|_| open(&name, &config)).collect();
        // Whichever device gets the request first.
        for (server, client) in [(1, 2), (2, 1), (3, 3), (0, 3)] {
            let (a, b) = (devices[client].dev(), devices[server].dev());
            let listener = cm(b).create(port_space::TCP, 0).expect("create");
            let port = cm(b).bind(listener, 0).expect("bind");
            cm(b).announce(listener, true).expect("announce");
            let before = (
                b.counters().expect("counters").cm_rcvd,
                a.counters().expect("counters").cm_retries,
            );
            let x = End::new(a, Shape::default()).expect("an end");
            // Repeated after four seconds, which the test does not need to wait for.
            let offer =
                gdrcore_core::cm::types::ConnParam { response_timeout: 20, ..cm::offer(b"hello") };
            let id = cm::connect(&x, cm::address(b), port, &offer);
            let end = deadline(60);
            while b.counters().expect("counters").cm_rcvd == before.0 {
                devices.iter().for_each(|d| _ = d.dev().progress());
                if let Some(e) = cm(a).event().expect("event") {
                    let counters = devices.iter().map(|d| d.dev().counters().expect("counters"));
                    let rejected: Vec<_> =
                        counters.map(|c| (c.cm_rcvd, c.cm_rejected, c.share_passed)).collect();
                    panic!("{server} {client}: event {} {}: {rejected:?}", e.event, e.status);
                }
                assert!(Instant::now() < end, "{server} {client}: the request did not arrive");
            }
            cm(b).listen(listener, 8).expect("listen");
            let mut events = Events::default();
            let asked = event(&devices, &mut events, a, b, cm_event::CONNECT_REQUEST);
            assert_eq!(asked.listener, listener);
            let y = End::new(b, Shape::default()).expect("an end");
            cm(b).accept(asked.id, y.qp, &cm::offer(b"yes")).expect("accept");
            assert_eq!(event(&devices, &mut events, a, a, cm_event::ESTABLISHED).id, id);
            assert_eq!(
                a.counters().expect("counters").cm_retries,
                before.1,
                "{server} {client}: the request arrived twice"
            );
            for (of, id) in [(a, id), (b, asked.id), (b, listener)] {
                cm(of).destroy(id).expect("destroy");
            }
            x.destroy().expect("nothing in use");
            y.destroy().expect("nothing in use");
        }
    }
}

/// Many requests for a port without a listener, shortly after one ended and shortly before the next
/// begins. `None`: the machine was too busy for that timing.
fn requests_between_two_listeners(config: &SoftConfig) -> Option<()> {
    let name = address(1);
    let devices: Vec<Soft> = (0..4).map(|_| open(&name, config)).collect();
    let others: Vec<Soft> = (0..6).map(|k| open(&address(2 + k), config)).collect();
    let ends: Vec<End> =
        others.iter().map(|d| End::new(d.dev(), Shape::default()).expect("an end")).collect();
    let server = devices[1].dev();
    let (first, port) = cm::listen(server, port_space::TCP, 64);
    settle(&devices);
    let began = Instant::now();
    cm(server).destroy(first).expect("destroy");
    // The kernel chooses which socket gets a request without a listener; of many requests each
    // socket gets some. The pause is short enough for a busy machine too.
    let shortly = Duration::from_millis(30);
    run_for(&devices, shortly);
    let asked: Vec<u64> =
        ends.iter().map(|e| cm::connect(e, cm::address(server), port, &cm::offer(b""))).collect();
    run_for(&devices, shortly);
    let again = cm(server).create(port_space::TCP, 0).expect("create");
    cm(server).bind(again, port).expect("bind");
    cm(server).listen(again, 64).expect("listen");
    // A listener that has just ended is waited for; a second is left for the clock's grain and for
    // requests under way.
    let in_time = began.elapsed().as_nanos() + 1_000_000_000 < u128::from(LISTENER_GRACE_NS);
    let mut accepted = Vec::new();
    let mut established = 0;
    let end = deadline(60);
    while established < asked.len() {
        devices.iter().chain(&others).for_each(|d| _ = d.dev().progress());
        for d in devices.iter().chain(&others) {
            while let Some(e) = cm(d.dev()).event().expect("event") {
                match e.event {
                    cm_event::CONNECT_REQUEST => {
                        let x = End::new(server, Shape::default()).expect("an end");
                        cm(server).accept(e.id, x.qp, &cm::offer(b"")).expect("accept");
                        accepted.push(x);
                    }
                    cm_event::ESTABLISHED => established += usize::from(asked.contains(&e.id)),
                    cm_event::REJECTED if !in_time => return None,
                    other => panic!("event {other}, status {}", e.status),
                }
            }
        }
        assert!(Instant::now() < end, "{established} of {}", asked.len());
    }
    Some(())
}

#[test]
fn a_request_between_two_listeners_of_a_port_waits_at_any_process() {
    for config in [UDP, DEFAULT] {
        let tries = (0..20).find_map(|_| requests_between_two_listeners(&config));
        tries.expect("the machine was too busy in each of twenty tries");
    }
}

#[test]
fn a_refusal_of_the_network_reaches_the_sender() {
    // The kernel gives an ICMP message to any socket of the group.
    let name = address(1);
    let devices: Vec<Soft> = (0..4).map(|_| open(&name, &UDP)).collect();
    settle(&devices);
    let nobody = {
        let there = open(&address(2), &UDP);
        let end = End::new(there.dev(), Shape::default()).expect("an end");
        end.own
    };
    for d in &devices {
        // Without the refusal it would end after a minute, by the timeout.
        let mut x = End::new(d.dev(), Shape { timeout: 20, ..Shape::default() }).expect("an end");
        x.connect(nobody).expect("connect");
        x.post(1, Op::Send(None), 0, 100).expect("post_send");
        run_until(60, "the refusal was not reported", || {
            devices.iter().for_each(|d| _ = d.dev().progress());
            d.dev().qp_cause(x.qp).expect("qp_cause").code == CauseCode::PeerUnreachable as u32
        });
        x.destroy().expect("nothing in use");
    }
}

#[test]
fn a_stopped_process_delays_no_other_process_of_its_address() {
    for path in ["udp", "auto"] {
        let name = address(1);
        let config = if path == "udp" { UDP } else { DEFAULT };
        // One device before it in the kernel's list and one after it.
        let mut devices = vec![open(&name, &config)];
        let mut far = Far::start(env!("CARGO_BIN_EXE_far_end"), &name, &[&format!("path={path}")]);
        devices.push(open(&name, &config));
        devices.push(open(&address(2), &config));
        settle(&devices);
        far.signal(libc::SIGSTOP);
        let timeouts = || -> u64 {
            devices.iter().map(|d| d.dev().counters().expect("counters").retry_timeouts).sum()
        };
        let before = timeouts();
        for a in &devices {
            for b in &devices {
                exchange_between(a.dev(), b.dev(), Shape::default(), 50_000);
            }
            // All processes of the address share QP1.
            let (listener, port) = cm::listen(a.dev(), port_space::TCP, 8);
            let mut events = Events::default();
            let x = End::new(devices[2].dev(), Shape::default()).expect("an end");
            cm::connect(&x, cm::address(a.dev()), port, &cm::offer(b""));
            event(&devices, &mut events, a.dev(), a.dev(), cm_event::CONNECT_REQUEST);
            cm(a.dev()).destroy(listener).expect("destroy");
            x.destroy().expect("nothing in use");
        }
        // Of 18 requests.
        assert!(
            timeouts() - before < 3,
            "they waited for the stopped process: {} timeouts",
            timeouts() - before
        );
        // A device that joins now gets no answer from the stopped one, and still finds its index.
        devices.push(open(&name, &config));
        settle(&devices);
        exchange_between(devices[3].dev(), devices[2].dev(), Shape::default(), 50_000);
        far.signal(libc::SIGCONT);
        let mut x = End::new(devices[2].dev(), Shape::default()).expect("an end");
        far.connect(&mut x);
        x.post(1, Op::Write(0, None), 0, 100_000).expect("post_send");
        run_until(60, "the process that was stopped does not answer", || {
            devices.iter().for_each(|d| _ = d.dev().progress());
            x.poll();
            x.take(1).is_some()
        });
        x.destroy().expect("nothing in use");
    }
}
