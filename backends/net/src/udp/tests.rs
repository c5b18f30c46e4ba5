use super::*;
use crate::addr::{endpoint, peer_addr};
use crate::map::Map;
use gdrcore_core::wire::icrc::IcrcFlow;
use gdrcore_testkit::patience::{deadline, limit_ms, until};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

mod connected;
mod header;
pub(crate) mod network;

/// A port and the memory under it.
struct Rig {
    port: UdpPort,
    _mem: Map,
}

fn open(ep: Endpoint, cfg: &UdpConfig) -> Result<Rig> {
    let mem = Map::new(UdpPort::memsize(cfg)).unwrap();
    // SAFETY: the map outlives the port: fields are dropped in order, and nobody else uses it.
    let port = unsafe { UdpPort::open(&ep, cfg, mem.as_ptr(), mem.len()) }?;
    Ok(Rig { port, _mem: mem })
}

fn v4(last: u8) -> Rig {
    open(Endpoint::v4([127, 0, 0, last], 0), &UdpConfig::DEFAULT).unwrap()
}

fn v6() -> Rig {
    open(Endpoint::new(std::net::Ipv6Addr::LOCALHOST.octets(), 0, 0), &UdpConfig::DEFAULT).unwrap()
}

/// Packets of `seg` bytes with a counter, and ICRCs for identifications 0, 1, 2, ….
fn fill(space: &mut [u8], len: usize, seg: usize, flow: &IcrcFlow) {
    for (k, packet) in space[..len].chunks_mut(seg).enumerate() {
        for (j, b) in packet.iter_mut().enumerate() {
            *b = (k * 31 + j) as u8;
        }
        flow.append_icrc(k as u16, packet);
    }
}

fn flow(from: &UdpPort, to: &Endpoint) -> IcrcFlow {
    IcrcFlow::from_gids(&from.local().ip, &to.ip, from.local().port, to.port)
}

fn send(port: &mut UdpPort, dst: Endpoint, len: usize, seg: usize) {
    let flow = flow(port, &dst);
    fill(port.tx_space().expect("room"), len, seg, &flow);
    port.tx_commit(Burst { dst: peer_addr(&dst), len, seg: seg as u16 });
}

/// Polls until packets come.
fn poll(port: &mut UdpPort) -> usize {
    until(
        60,
        || "no packet came".into(),
        || {
            let n = port.rx_poll();
            if n == 0 {
                std::thread::yield_now();
            }
            (n > 0).then_some(n)
        },
    )
}

/// Receives `len` bytes from `src` and checks the counters and ICRCs; returns the number of
/// datagrams.
fn receive(port: &mut UdpPort, src: &UdpPort, mut len: usize, seg: usize) -> usize {
    let flow =
        IcrcFlow::from_gids(&src.local().ip, &port.local().ip, src.local().port, port.local().port);
    let (mut datagrams, mut k) = (0, 0);
    while len > 0 {
        for i in 0..poll(port) {
            let p = port.rx_get(i);
            assert_eq!(endpoint(&p.src), *src.local());
            assert!(usize::from(p.seg) <= seg);
            for (hint, packet) in p.data.chunks(usize::from(p.seg)).enumerate() {
                let accepted = flow.check(hint as u16, packet).expect("ICRC");
                assert!(
                    accepted.exact,
                    "identification is the number of the segment in its \
                    burst: {accepted:?}, packet {k}, {hint} of {} bytes, {seg}",
                    p.data.len()
                );
                let body = &packet[..packet.len() - 4];
                assert!(
                    body.iter().enumerate().all(|(j, &b)| b == (k * 31 + j) as u8),
                    "packet {k} in order"
                );
                k += 1;
            }
            len -= p.data.len();
            datagrams += 1;
        }
    }
    datagrams
}

#[test]
fn memsize_is_enough_at_any_alignment_and_less_is_refused() {
    let cfg = UdpConfig { tx_batch: 3, rx_batch: 2, ..UdpConfig::DEFAULT };
    let need = UdpPort::memsize(&cfg);
    let mem = Map::new(need + 64).unwrap();
    for shift in [0, 1, 63] {
        // SAFETY: `shift + need <= need + 64`, and one port at a time uses the map.
        let port = unsafe {
            UdpPort::open(&Endpoint::v4([127, 0, 0, 1], 0), &cfg, mem.as_ptr().add(shift), need)
        };
        assert!(port.is_ok());
    }
    // SAFETY: as above.
    let less =
        unsafe { UdpPort::open(&Endpoint::v4([127, 0, 0, 1], 0), &cfg, mem.as_ptr(), need - 1) };
    assert!(matches!(less, Err(Error::NoMemory)));
}

#[test]
fn a_gso_burst_arrives_by_gro_whole_and_in_order() {
    for (mut a, mut b) in [(v4(1), v4(2)), (v6(), v6())] {
        assert_eq!(a.port.offloads(), (true, true), "this kernel offloads");
        let dst = *b.port.local();
        // 15 packets of 4 KiB and headers, the last one short.
        send(&mut a.port, dst, 14 * 4124 + 100, 4124);
        assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
        assert_eq!(receive(&mut b.port, &a.port, 14 * 4124 + 100, 4124), 1, "one GRO packet");
        assert_eq!(a.port.counters().tx_calls, 1);
        assert_eq!(b.port.rx_poll(), 0);
        assert!(a.port.take_error().is_none() && b.port.take_error().is_none());
    }
}

#[test]
fn the_largest_bursts_pass() {
    for (mut a, mut b) in [(v4(1), v4(2)), (v6(), v6())] {
        let dst = *b.port.local();
        let room = a.port.tx_space().unwrap().len();
        for (len, seg) in [(room, 4124), (room, room), (64 * 1000, 1000), (20, 20)] {
            send(&mut a.port, dst, len, seg);
            assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
            assert_eq!(
                receive(&mut b.port, &a.port, len, seg),
                1,
                "{len} bytes in packets of {seg}"
            );
        }
        assert!(a.port.take_error().is_none());
        assert_eq!(a.port.counters().gso_refused, 0);
    }
}

#[test]
fn a_batch_of_bursts_leaves_by_one_call() {
    let (mut a, mut b) = (v4(1), v4(2));
    let dst = *b.port.local();
    let mut n = 0;
    while n < 20 && a.port.tx_space().is_some() {
        send(&mut a.port, dst, 64 + 16, 64);
        n += 1;
    }
    assert_eq!(n, 20);
    assert!(a.port.tx_pending());
    assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
    assert_eq!(a.port.counters().tx_calls, 1);
    assert!(!a.port.tx_pending());
    let mut got = 0;
    while got < 20 {
        let n = poll(&mut b.port);
        assert!(n > 0);
        got += n;
    }
    assert_eq!(got, 20);
}

#[test]
fn the_socket_adopts_the_segment_size_of_its_bursts_and_no_other_datagram_is_cut() {
    use crate::sys::get_option;
    let own = |p: &UdpPort| get_option::<i32>(p.fd(), libc::SOL_UDP, libc::UDP_SEGMENT).unwrap();
    for (mut a, mut b, mut c) in [(v4(1), v4(2), v4(3)), (v6(), v6(), v6())] {
        let dst = *b.port.local();
        let mut exchange = |a: &mut Rig, len, seg, times| {
            for k in 0..times {
                let flow = flow(&a.port, &dst);
                fill(a.port.tx_space().expect("room"), len, seg, &flow);
                let burst = Burst { dst: peer_addr(&dst), len, seg: seg as u16 };
                if k % 2 == 0 || !a.port.tx_now(&burst) {
                    a.port.tx_commit(burst);
                    assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
                }
                assert_eq!(
                    receive(&mut b.port, &a.port, len, seg),
                    1,
                    "{len} bytes in packets of {seg}"
                );
            }
        };
        // A request and the ACK behind it.
        exchange(&mut a, 100, 80, 40);
        assert_eq!(own(&a.port), 80);
        assert_eq!(a.port.counters().tx_calls, 40);
        // A longer burst leaves whole, or in segments of its own size; the socket's size changes
        // only after several such bursts.
        for (len, seg) in [
            (60_000, 60_000),
            (20, 20),
            (14 * 4124 + 100, 4124),
            (240, 80),
            (81, 81),
            (1000, 500),
            (60, 40),
        ] {
            exchange(&mut a, len, seg, 2);
            assert_eq!(own(&a.port), 80);
        }
        exchange(&mut a, 81, 81, 20);
        assert_eq!(own(&a.port), 0);
        // Neither very short segments, which other sends by this socket could exceed, nor long ones
        // change the size.
        exchange(&mut a, 50, 30, 40);
        exchange(&mut a, 1200, 600, 40);
        assert_eq!(own(&a.port), 0);
        // Batches of all kinds, to two peers.
        let (mut rng, ends) = (7u64, [dst, *c.port.local()]);
        for round in 0..2000 {
            let mut sent = [0; 2];
            let mut draw = |n: u64| {
                rng = rng
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (rng >> 33) % n
            };
            let burst = [(100, 80), (80, 80), (60, 60), (2000, 500), (4124, 4124), (9000, 4124)]
                [draw(6) as usize];
            let (to, batch) = (draw(2) as usize, 1 + draw(2));
            // Phases with a default_segment each.
            let (len, seg) =
                if round % 100 < 50 { [(100, 80), (160, 120)][round / 100 % 2] } else { burst };
            for k in 0..batch {
                let to = (to + k as usize) % 2;
                send(&mut a.port, ends[to], len, seg);
                sent[to] += 1;
            }
            assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
            for (n, rig) in sent.into_iter().zip([&mut b, &mut c]) {
                for _ in 0..n {
                    assert_eq!(receive(&mut rig.port, &a.port, len, seg), 1, "round {round}");
                }
            }
        }
        assert!(a.port.take_error().is_none());
        assert_eq!((a.port.counters().gso_refused, a.port.counters().send_err), (0, 0));
    }
}

#[test]
fn a_single_burst_is_not_lost_to_the_error_of_another_peer() {
    let (mut a, mut b) = (v4(1), v4(2));
    let (dst, closed) = (*b.port.local(), Endpoint::v4([127, 0, 0, 1], 9));
    let now = Burst { dst: peer_addr(&dst), len: 64, seg: 64 };
    let mut declined = 0;
    for _ in 0..50 {
        send(&mut a.port, dst, 64, 64);
        send(&mut a.port, closed, 64, 64);
        a.port.tx_flush();
        assert_eq!(receive(&mut b.port, &a.port, 64, 64), 1);
        // The refusal waits in the socket, and the next call reports it.
        let flow = flow(&a.port, &dst);
        fill(a.port.tx_space().unwrap(), 64, 64, &flow);
        if !a.port.tx_now(&now) {
            declined += 1;
            a.port.tx_commit(now);
            assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
        }
        assert_eq!(receive(&mut b.port, &a.port, 64, 64), 1);
    }
    assert!(declined > 0);
    assert_eq!(a.port.take_error().map(|e| (e.dst.port, e.errno)), Some((9, libc::ECONNREFUSED)));
    assert!(!a.port.tx_now(&Burst { dst: peer_addr(&closed), ..now }), "goes elsewhere");
    for (len, seg) in [(0, 64), (64, 0), (MAX_BURST + 1, 4124), (65 * 64, 64)] {
        assert!(
            !a.port.tx_now(&Burst { dst: peer_addr(&dst), len, seg }),
            "{len} in packets of {seg}"
        );
    }
    assert_eq!(a.port.counters().send_err, 0);
}

#[test]
fn a_queue_of_messages_is_received_in_growing_batches_and_single_ones_singly() {
    let (mut a, mut b) = (v4(1), v4(2));
    let dst = *b.port.local();
    let mut single = |n: usize| {
        for _ in 0..n {
            send(&mut a.port, dst, 64, 64);
            a.port.tx_flush();
        }
    };
    single(41);
    let (mut polls, mut got) = (0, 0);
    while got < 41 {
        (polls, got) = (polls + 1, got + poll(&mut b.port));
    }
    // 1, 2, 4, then the batch of 8.
    assert!(polls <= 9, "{polls} polls");
    // An exchange of single messages receives one at a time, mostly.
    let mut twos = 0;
    for _ in 0..200 {
        single(1);
        assert_eq!(poll(&mut b.port), 1);
        twos += usize::from(b.port.rx.want > 1);
    }
    assert!(twos < 20, "{twos} receives of two");
}

#[test]
fn a_full_batch_asks_for_a_flush() {
    let mut a = v4(1);
    let cfg_batch = UdpConfig::DEFAULT.tx_batch as usize;
    let dst = Endpoint::v4([127, 0, 0, 1], 9);
    for _ in 0..cfg_batch {
        send(&mut a.port, dst, 32, 32);
    }
    assert!(a.port.tx_space().is_none(), "no slot left");
    a.port.tx_flush();
    for _ in 0..3 {
        send(&mut a.port, dst, 60_000, 6_000);
    }
    assert!(a.port.tx_space().is_some());
    send(&mut a.port, dst, 60_000, 6_000);
    assert!(a.port.tx_space().is_none(), "no bytes left");
    a.port.tx_flush();
    assert!(a.port.tx_space().is_some());
}

#[test]
fn a_full_send_buffer_keeps_the_rest_in_order() {
    // Loopback queues straight into the receive buffer, and the bytes there are charged to the
    // sender.
    let small = UdpConfig { sndbuf: 4096, ..UdpConfig::DEFAULT };
    let mut a = open(Endpoint::v4([127, 0, 0, 1], 0), &small).unwrap();
    let mut b = v4(2);
    let dst = *b.port.local();
    let (mut sent, mut full, mut got) = (0u64, 0, 0u64);
    let end = deadline(60);
    while got < 200 {
        assert!(Instant::now() < end, "{got} of 200, {full} times full");
        while sent < 200 {
            let Some(space) = a.port.tx_space() else { break };
            space[..3000].fill(0);
            space[..8].copy_from_slice(&sent.to_be_bytes());
            a.port.tx_commit(Burst { dst: peer_addr(&dst), len: 3000, seg: 3000 });
            sent += 1;
        }
        if a.port.tx_flush() == TxOutcome::Full {
            full += 1;
            assert!(a.port.tx_pending());
        }
        loop {
            let n = b.port.rx_poll();
            for i in 0..n {
                let p = b.port.rx_get(i);
                for packet in p.data.chunks(usize::from(p.seg)) {
                    assert_eq!(packet[..8], got.to_be_bytes(), "in order, none lost");
                    got += 1;
                }
            }
            if n == 0 {
                break;
            }
        }
    }
    assert_eq!(a.port.counters().tx_full, full);
    assert_eq!(a.port.counters().send_err, 0);
}

#[test]
fn a_closed_port_is_reported_with_its_destination_and_costs_other_peers_nothing() {
    for (mut a, mut b) in [(v4(1), v4(2)), (v6(), v6())] {
        let mut closed = *b.port.local();
        closed.port = 9;
        let open_dst = *b.port.local();
        let (mut got, rounds) = (0, 50);
        for _ in 0..rounds {
            send(&mut a.port, closed, 4 * 100, 100);
            send(&mut a.port, open_dst, 100, 100);
            assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
            got += poll(&mut b.port);
        }
        assert_eq!(got, rounds, "every packet to the open port arrived");
        a.port.rx_poll();
        let e = a
            .port
            .take_error()
            .unwrap_or_else(|| panic!("no refusal: {closed} {:?}", a.port.counters()));
        assert_eq!((e.dst, e.errno, e.kind), (closed, libc::ECONNREFUSED, ErrorKind::Icmp));
        assert!(a.port.take_error().is_none(), "repetitions are merged");
        assert!(a.port.counters().icmp_err >= 1);
        assert_eq!(a.port.counters().send_err, 0);
    }
}

#[test]
fn a_refusal_does_not_hide_received_packets() {
    let (mut a, mut b) = (v4(1), v4(2));
    let closed = Endpoint::v4([127, 0, 0, 1], 9);
    let here = *a.port.local();
    for _ in 0..50 {
        send(&mut a.port, closed, 100, 100);
        a.port.tx_flush();
        send(&mut b.port, here, 100, 100);
        b.port.tx_flush();
        assert_eq!(a.port.rx_poll(), 1, "one poll finds it although an error is pending");
    }
    assert_eq!(a.port.take_error().map(|e| e.errno), Some(libc::ECONNREFUSED));
}

#[test]
fn a_network_without_route_is_reported() {
    // 2001:db8::/32 is for documentation. If a default route takes it, there is nothing to see.
    let mut a = v6();
    let dst = Endpoint::new([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 0, 4791);
    send(&mut a.port, dst, 200, 100);
    assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
    // A ::1 source is invalid for other networks, so the kernel refuses in any case.
    if let Some(e) = a.port.take_error() {
        assert_eq!(e.dst, dst);
        assert!(
            [libc::ENETUNREACH, libc::EINVAL, libc::EHOSTUNREACH, libc::EADDRNOTAVAIL]
                .contains(&e.errno),
            "{e:?}"
        );
        assert_eq!(e.kind, ErrorKind::Send);
        assert_eq!(a.port.counters().send_err, 1);
    }
}

#[test]
fn impossible_bursts_are_reported_and_not_sent() {
    let mut a = v4(1);
    let v6dst = Endpoint::new(std::net::Ipv6Addr::LOCALHOST.octets(), 0, 9);
    let dst = Endpoint::v4([127, 0, 0, 1], 9);
    for (dst, len, seg, errno) in [
        (v6dst, 100, 100, libc::EAFNOSUPPORT),
        (dst, 0, 100, libc::EMSGSIZE),
        (dst, 100_000, 100, libc::EMSGSIZE),
        (dst, usize::MAX, 100, libc::EMSGSIZE),
        (dst, 100, 0, libc::EAFNOSUPPORT),
    ] {
        a.port.tx_commit(Burst { dst: peer_addr(&dst), len, seg });
        assert!(!a.port.tx_pending());
        assert_eq!(a.port.take_error().map(|e| (e.dst, e.errno)), Some((dst, errno)));
    }
}

#[test]
fn more_segments_than_the_kernel_takes_leave_one_by_one_with_right_icrcs() {
    let (mut a, mut b) = (v4(1), v4(2));
    let dst = *b.port.local();
    // 65 packets: over the limit of one GSO send. Each arrives alone with identification 0.
    let before = a.port.counters().tx_calls;
    let flow = flow(&a.port, &dst);
    fill(a.port.tx_space().unwrap(), 65 * 60, 60, &flow);
    a.port.tx_commit(Burst { dst: peer_addr(&dst), len: 65 * 60, seg: 60 });
    assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
    assert_eq!(a.port.counters().tx_calls - before, 65);
    assert_eq!(receive(&mut b.port, &a.port, 65 * 60, 60), 65);
    assert_eq!(a.port.max_segments(&dst), MAX_SEGMENTS, "that is no refusal");
}

#[test]
fn without_gso_every_packet_leaves_alone() {
    let cfg = UdpConfig { flags: udp_flags::NO_GSO, ..UdpConfig::DEFAULT };
    let mut a = open(Endpoint::v4([127, 0, 0, 1], 0), &cfg).unwrap();
    let mut b = v4(2);
    let dst = *b.port.local();
    assert_eq!(a.port.max_segments(&dst), 1);
    send(&mut a.port, dst, 10 * 500, 500);
    assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
    assert_eq!(receive(&mut b.port, &a.port, 10 * 500, 500), 10);
}

#[test]
fn without_gro_segments_arrive_alone() {
    let cfg = UdpConfig { flags: udp_flags::NO_GRO, ..UdpConfig::DEFAULT };
    let mut a = v4(1);
    let mut b = open(Endpoint::v4([127, 0, 0, 2], 0), &cfg).unwrap();
    let dst = *b.port.local();
    let flow = flow(&a.port, &dst);
    send(&mut a.port, dst, 10 * 500, 500);
    assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
    let mut k = 0;
    while k < 10 {
        let n = poll(&mut b.port);
        assert!(n > 0);
        for i in 0..n {
            let p = b.port.rx_get(i);
            assert_eq!(p.data.len(), 500);
            // The receiver cannot know the segment's number: without a hint the identification is
            // solved for.
            assert_eq!(flow.check(0, p.data).map(|a| a.ident), Ok(k));
            k += 1;
        }
    }
}

#[test]
fn an_address_in_use_and_a_foreign_address_give_different_errors() {
    let a = v4(1);
    let again = open(*a.port.local(), &UdpConfig::DEFAULT);
    assert!(matches!(again, Err(Error::AddressInUse)));
    // No host has an address of TEST-NET-3.
    let foreign = open(Endpoint::v4([203, 0, 113, 7], 0), &UdpConfig::DEFAULT);
    assert!(matches!(foreign, Err(Error::AddressNotLocal)));
    let foreign = open(
        Endpoint::new([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7], 0, 0),
        &UdpConfig::DEFAULT,
    );
    assert!(matches!(foreign, Err(Error::AddressNotLocal)));
    assert!(matches!(
        open(Endpoint::v4([0, 0, 0, 0], 0), &UdpConfig::DEFAULT),
        Err(Error::Invalid)
    ));
    // A zone without interface.
    let zone = Endpoint::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 4_000_000, 0);
    assert!(matches!(open(zone, &UdpConfig::DEFAULT), Err(Error::AddressNotLocal)));
}

#[test]
fn reuse_port_lets_two_ports_share() {
    let cfg = UdpConfig { flags: udp_flags::REUSE_PORT, ..UdpConfig::DEFAULT };
    let a = open(Endpoint::v4([127, 0, 0, 1], 0), &cfg).unwrap();
    assert!(open(*a.port.local(), &cfg).is_ok());
    assert!(matches!(open(*a.port.local(), &UdpConfig::DEFAULT), Err(Error::AddressInUse)));
}

#[test]
fn the_socket_options_are_what_exact_icrcs_need() {
    let a = v4(1);
    let option = |fd, level, name| crate::sys::get_option::<i32>(fd, level, name).unwrap();
    assert_eq!(
        option(a.port.fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        libc::IP_PMTUDISC_PROBE
    );
    assert_eq!(option(a.port.fd(), libc::IPPROTO_IP, libc::IP_RECVERR), 1);
    let b = v6();
    assert_eq!(option(b.port.fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), 1);
    assert_eq!(option(b.port.fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVERR), 1);
    assert_eq!(option(b.port.fd(), libc::SOL_UDP, 102), 1, "zero checksums are accepted");
    // SAFETY: asks for descriptor flags only.
    let flags = unsafe { libc::fcntl(a.port.fd(), libc::F_GETFD) };
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
}

#[test]
fn garbage_arrives_as_it_is_and_breaks_nothing() {
    let mut a = v4(1);
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], a.port.local().port));
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    for len in [0usize, 1, 3, 11, 12, 15, 16, 100, 65_507] {
        other.send_to(&vec![0xa5; len], to).unwrap();
        assert_eq!(poll(&mut a.port), 1);
        let p = a.port.rx_get(0);
        assert_eq!((p.data.len(), usize::from(p.seg)), (len, len));
        assert!(p.data.iter().all(|&b| b == 0xa5));
        assert_eq!(p.src.port, other.local_addr().unwrap().port());
    }
    assert_eq!(a.port.rx_get(1).data.len(), 0);
    assert_eq!(a.port.rx_get(usize::MAX).data.len(), 0);
}

#[test]
fn ecn_bits_arrive() {
    let zero = |e: &Endpoint| Endpoint { port: 0, ..*e };
    for (from, to) in [(zero(v4(1).port.local()), v4(2)), (zero(v6().port.local()), v6())] {
        let cfg = UdpConfig { traffic_class: 0b10, ..UdpConfig::DEFAULT };
        let mut a = open(from, &cfg).unwrap();
        let mut b = to;
        let dst = *b.port.local();
        send(&mut a.port, dst, 5 * 60, 60);
        a.port.tx_flush();
        assert_eq!(poll(&mut b.port), 1);
        assert_eq!((b.port.rx_get(0).src.traffic_class, b.port.rx_get(0).seg), (0b10, 60));
    }
}

#[test]
fn loopback_mtu_is_found_for_addresses_that_only_a_network_covers() {
    let lo: u32 = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap().trim().parse().unwrap();
    assert_eq!(v4(1).port.link_mtu(), lo);
    assert_eq!(v4(77).port.link_mtu(), lo);
    assert_eq!(v6().port.link_mtu(), lo);
}

#[test]
fn the_waiter_wakes_for_packets_and_errors() {
    let (mut a, mut b) = (v4(1), v4(2));
    let w = crate::wait::Waiter::new().unwrap();
    w.add_socket(a.port.fd()).unwrap();
    w.attach_io(true).unwrap();
    assert!(!w.sleep(0));
    let here = *a.port.local();
    send(&mut b.port, here, 64, 64);
    b.port.tx_flush();
    assert!(w.sleep(limit_ms(60)));
    assert_eq!(a.port.rx_poll(), 1);
    assert!(!w.sleep(0));
    send(&mut a.port, Endpoint::v4([127, 0, 0, 1], 9), 64, 64);
    a.port.tx_flush();
    assert!(w.sleep(limit_ms(60)), "EPOLLERR");
    assert_eq!(a.port.rx_poll(), 0);
    assert!(!w.sleep(0), "the poll drained the error, so sleeping works again");
    assert!(a.port.take_error().is_some());
}

#[test]
fn the_error_queue_merges_errors_and_counts_lost_ones() {
    let mut a = v4(1);
    for n in 1..21 {
        a.port.report(PortError {
            dst: Endpoint::v4([127, 0, 0, 1], n),
            errno: 111,
            kind: ErrorKind::Icmp,
            mtu: 0,
        });
    }
    assert_eq!(a.port.counters().errors_lost, 4);
    for n in 1..17 {
        assert_eq!(a.port.take_error().map(|e| e.dst.port), Some(n));
    }
    assert!(a.port.take_error().is_none());
}

/// A device with small buffers: a longer datagram is cut, so it is no packet, and the next one is
/// received.
#[test]
fn a_datagram_that_is_longer_than_its_buffer_is_no_packet() {
    let small = UdpConfig { burst_bytes: 4352, ..UdpConfig::DEFAULT };
    let mut b = open(Endpoint::v4([127, 0, 0, 2], 0), &small).unwrap();
    let to = (std::net::Ipv4Addr::new(127, 0, 0, 2), b.port.local().port);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut lengths = Vec::new();
    for len in [10_000, 4353, 100] {
        sender.send_to(&vec![7; len], to).unwrap();
        for i in 0..poll(&mut b.port) {
            lengths.push(b.port.rx_get(i).data.len());
        }
    }
    assert_eq!(lengths, [0, 0, 100]);
}
