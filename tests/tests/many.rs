//! Several devices on one address and UDP port.

use gdrcore_core::cm::types::{cm_event, port_space};
use gdrcore_core::config::{Config, QPN_UNIT};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::qp_type;
use gdrcore_core::Error;
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::cm::{self, cm, Events};
use gdrcore_tests::ends::{connected, pattern, succeed, End, Op, Shape};
use gdrcore_tests::soft::{address, Soft};
use std::time::{Duration, Instant};

const UDP: SoftConfig<'static> = SoftConfig { path: PathChoice::Udp, ..DEFAULT };
const DEFAULT: SoftConfig<'static> = SoftConfig { core: Config::DEFAULT, flags: 0, path: PathChoice::Auto, pcap: None };

fn open(name: &str, config: &SoftConfig) -> Soft {
    Soft::open(name, config).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Lets all of them run until nobody finds out anything any more.
fn settle(devices: &[Soft]) {
    let end = Instant::now() + Duration::from_millis(150);
    while Instant::now() < end {
        for d in devices {
            d.dev().progress().expect("progress");
        }
    }
}

fn exchange(a: &Soft, b: &Soft, bytes: usize) {
    let (mut x, mut y) = connected(a.dev(), b.dev(), Shape::default()).expect("connected ends");
    let data = pattern(u64::from(x.own.qpn), bytes);
    x.buffer.write(0, &data);
    x.post(1, Op::Write(0, None), 0, bytes as u32).expect("post_send");
    succeed(&mut x, &mut y, 1);
    assert!(y.buffer.read(0, bytes) == data);
    y.post(2, Op::Read(0), 500_000, bytes as u32 / 2).expect("post_send");
    succeed(&mut y, &mut x, 2);
    x.destroy().expect("nothing in use");
    y.destroy().expect("nothing in use");
}

#[test]
fn devices_of_one_address_talk_to_each_other_and_to_others() {
    for config in [UDP, DEFAULT] {
        let name = address(1);
        let devices: Vec<Soft> = (0..4).map(|_| open(&name, &config)).collect();
        let other = open(&address(2), &config);
        // Before anybody has found out anything, and after.
        for round in 0..2 {
            for a in &devices {
                for b in &devices {
                    exchange(a, b, 100_000);
                }
                exchange(a, &other, 100_000);
                exchange(&other, a, 100_000);
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

#[test]
fn the_kernel_steers_and_goes_on_when_some_leave() {
    let name = address(1);
    let mut devices: Vec<Soft> = (0..6).map(|_| open(&name, &UDP)).collect();
    let other = open(&address(2), &UDP);
    let refused: u64 = devices.iter().map(|d| d.dev().counters().expect("counters").share_refused).sum();
    if refused > 0 {
        gdrcore_tests::skip!("the kernel attaches no program to a group of sockets here");
    }
    // The first, one from the middle, then all but one: each time the kernel's list changes.
    for leave in [&[][..], &[0], &[2, 0], &[1, 0]] {
        for &i in leave {
            drop(devices.remove(i));
        }
        settle(&devices);
        let before = detours(&devices);
        for d in &devices {
            exchange(d, &other, 200_000);
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
                let end = Instant::now() + Duration::from_secs(20);
                for n in 0..20u64 {
                    let data = pattern(n, 900);
                    x.buffer.write(0, &data);
                    y.post_recv(n, 0, 2000).expect("post_recv");
                    // A datagram may be lost, as long as later ones are not.
                    let mut got = false;
                    while !got {
                        x.post(n, Op::Send(None), 0, 900).expect("post_send");
                        let once = Instant::now() + Duration::from_millis(200);
                        while !got && Instant::now() < once {
                            devices.iter().for_each(|d| _ = d.dev().progress());
                            x.poll();
                            got = y.poll() > 0 && y.take(n).is_some() || y.take(n).is_some();
                        }
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

/// Runs `a` and `b`, and all others of the address, until one of the two has the event.
fn event(
    all: &[Soft],
    events: &mut Events,
    a: &dyn Device,
    b: &dyn Device,
    kind: u32,
) -> gdrcore_core::cm::types::CmEvent {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        all.iter().for_each(|d| _ = d.dev().progress());
        if let Some(e) = events.find([a, b], Duration::ZERO, |e| e.event == kind) {
            return e;
        }
        assert!(Instant::now() < end, "no event {kind}");
    }
}

#[test]
fn connections_find_who_listens_and_each_side_finds_the_other() {
    for config in [UDP, DEFAULT] {
        let name = address(1);
        let mut devices: Vec<Soft> = (0..4).map(|_| open(&name, &config)).collect();
        devices.push(open(&address(2), &config));
        // Each listens; a port has one listener among the devices of an address.
        let services: Vec<_> = devices.iter().map(|d| cm::listen(d.dev(), port_space::TCP, 8)).collect();
        let second = cm(devices[1].dev()).create(port_space::TCP, 0).expect("create");
        cm(devices[1].dev()).bind(second, services[0].1).expect("bound on this device only");
        assert_eq!(cm(devices[1].dev()).listen(second, 8), Err(Error::AddressInUse));
        for a in &devices {
            for (b, (_, port)) in devices.iter().zip(&services) {
                let mut events = Events::default();
                let x = End::new(a.dev(), Shape::default()).expect("an end");
                let y = End::new(b.dev(), Shape::default()).expect("an end");
                let id = cm::connect(&x, cm::address(b.dev()), *port, &cm::offer(b"hello"));
                let asked = event(&devices, &mut events, b.dev(), b.dev(), cm_event::CONNECT_REQUEST);
                cm(b.dev()).accept(asked.id, y.qp, &cm::offer(b"yes")).expect("accept");
                let e = event(&devices, &mut events, a.dev(), a.dev(), cm_event::ESTABLISHED);
                assert_eq!(e.id, id);
                assert!(e.private_data().starts_with(b"yes"));
                cm(a.dev()).disconnect(id).expect("disconnect");
                event(&devices, &mut events, b.dev(), b.dev(), cm_event::DISCONNECTED);
                cm(a.dev()).destroy(id).expect("destroy");
                cm(b.dev()).destroy(asked.id).expect("destroy");
                x.destroy().expect("nothing in use");
                y.destroy().expect("nothing in use");
            }
        }
        // A listener that is gone leaves its port to others.
        cm(devices[0].dev()).destroy(services[0].0).expect("destroy");
        cm(devices[1].dev()).listen(second, 8).expect("the port is free");
        // Nobody listens: refused, whichever device gets the question.
        let x = End::new(devices[2].dev(), Shape::default()).expect("an end");
        let mut events = Events::default();
        cm::connect(&x, cm::address(devices[0].dev()), 9, &cm::offer(b""));
        event(&devices, &mut events, devices[2].dev(), devices[2].dev(), cm_event::REJECTED);
        x.destroy().expect("nothing in use");
    }
}
