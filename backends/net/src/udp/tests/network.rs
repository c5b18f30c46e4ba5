//! Tests of ports in network namespaces of their own: links with small MTUs, links that delay
//! packets, and packets as they leave. A thread can have a namespace of its own, so no process is
//! needed for one.

use super::*;
use crate::addr::{endpoint, peer_addr};
use crate::sys::Fd;
use gdrcore_testkit::descriptors::fork;
use gdrcore_testkit::icrc::check_exact;
use std::process::Command;

/// An empty network namespace with its loopback up.
pub(crate) struct Namespace(Fd);

impl Namespace {
    /// `None`, and a printed line, if this process may not make one.
    pub(crate) fn new() -> Option<Namespace> {
        // The name of the test, for the line of a skip.
        let name = std::thread::current().name().unwrap_or_default().to_string();
        let make = || {
            // SAFETY: takes no pointers; changes this thread only, which ends.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                gdrcore_testkit::skip::skipped(format_args!(
                    "no network namespaces here ({})",
                    std::io::Error::last_os_error()
                ));
                return None;
            }
            ip("link set lo up");
            // New addresses count at once, else the first packets wait for duplicate detection.
            for which in ["all", "default"] {
                let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/accept_dad"), "0");
            }
            // SAFETY: the path is a C string.
            let fd = unsafe {
                libc::open(c"/proc/thread-self/ns/net".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)
            };
            Some(Namespace(Fd::from_call(fd).unwrap()))
        };
        std::thread::Builder::new().name(name).spawn(make).unwrap().join().unwrap()
    }

    /// Runs `f` on a thread inside; sockets that it opens stay inside.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|s| {
            s.spawn(|| {
                // SAFETY: takes no pointers; changes this thread only.
                assert_eq!(unsafe { libc::setns(self.0.raw(), libc::CLONE_NEWNET) }, 0);
                f()
            })
            .join()
            .unwrap_or_else(|e| std::panic::resume_unwind(e))
        })
    }

    /// A name that `ip` takes for it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.raw())
    }
}

pub(crate) fn ip(args: &str) {
    let _fork = fork();
    let out = Command::new("ip").args(args.split_whitespace()).output().expect("iproute2");
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Links `a` and `b` by a cable of this MTU, with the addresses 10.`net`.0.1 and .2, fd00:`net`::1
/// and ::2.
fn link(a: &Namespace, b: &Namespace, net: u8, mtu: u32) {
    a.run(|| ip(&format!("link add v{net}a type veth peer name v{net}b netns {}", b.path())));
    for (side, ns, host) in [("a", a, 1), ("b", b, 2)] {
        ns.run(|| {
            ip(&format!("addr add 10.{net}.0.{host}/24 dev v{net}{side}"));
            ip(&format!("addr add fd00:{net}::{host}/64 dev v{net}{side} nodad"));
            ip(&format!("link set v{net}{side} mtu {mtu} up"));
        });
    }
}

fn v4_at(ip: [u8; 4]) -> Rig {
    open(Endpoint::v4(ip, 4791), &UdpConfig::DEFAULT).unwrap()
}

/// Takes errors until one of this kind comes.
fn error_of_kind(port: &mut UdpPort, kind: ErrorKind) -> PortError {
    until(
        60,
        || format!("no error of the kind {kind:?}"),
        || {
            port.rx_poll();
            let found = std::iter::from_fn(|| port.take_error()).find(|e| e.kind == kind);
            if found.is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            found
        },
    )
}

#[test]
fn a_packet_larger_than_the_link_is_reported_with_the_links_mtu() {
    let (Some(a), Some(b)) = (Namespace::new(), Namespace::new()) else { return };
    link(&a, &b, 1, 1500);
    let mut ra = a.run(|| v4_at([10, 1, 0, 1]));
    let mut rb = b.run(|| v4_at([10, 1, 0, 2]));
    assert_eq!(ra.port.link_mtu(), 1500);
    let dst = *rb.port.local();
    // Path MTU 4096 over link MTU 1500, several packets and one.
    for n in [3, 1] {
        send(&mut ra.port, dst, n * 4124, 4124);
        assert_eq!(ra.port.tx_flush(), TxOutcome::Sent);
        let e = error_of_kind(&mut ra.port, ErrorKind::Mtu);
        assert_eq!((e.dst, e.errno), (dst, libc::EMSGSIZE));
        if n == 1 {
            assert_eq!(e.mtu, 1500);
        }
    }
    // Smaller packets pass as before, segmented, to the last byte.
    let before = ra.port.counters().tx_calls;
    for seg in [1052, 1472] {
        send(&mut ra.port, dst, 20 * seg, seg);
        assert_eq!(ra.port.tx_flush(), TxOutcome::Sent);
        receive(&mut rb.port, &ra.port, 20 * seg, seg);
    }
    assert_eq!(ra.port.counters().tx_calls - before, 2);
    assert_eq!(ra.port.max_segments(&dst), MAX_SEGMENTS, "a packet too large is no refusal of GSO");
    // A change of the link's MTU is noticed.
    a.run(|| ip("link set v1a mtu 1300"));
    assert_eq!(ra.port.link_mtu(), 1300);
}

#[test]
fn a_narrow_link_on_the_way_is_reported_with_its_mtu() {
    let (Some(a), Some(r), Some(b)) = (Namespace::new(), Namespace::new(), Namespace::new()) else {
        return;
    };
    link(&a, &r, 2, 1500);
    link(&r, &b, 3, 1300);
    a.run(|| ip("route add default via 10.2.0.2"));
    b.run(|| ip("route add default via 10.3.0.1"));
    r.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap();
    a.run(|| ip("-6 route add default via fd00:2::2"));
    b.run(|| ip("-6 route add default via fd00:3::1"));
    r.run(|| std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")).unwrap();
    let cases = [
        ("10.2.0.1", "10.3.0.2"),
        // fd00:2::1 to fd00:3::2
        ("[fd00:2::1]", "[fd00:3::2]"),
    ];
    for (from, to) in cases {
        let mut ra = a.run(|| open(Endpoint::parse(from).unwrap(), &UdpConfig::DEFAULT)).unwrap();
        let mut rb = b.run(|| open(Endpoint::parse(to).unwrap(), &UdpConfig::DEFAULT)).unwrap();
        let dst = *rb.port.local();
        send(&mut ra.port, dst, 2 * 1052, 1052);
        ra.port.tx_flush();
        receive(&mut rb.port, &ra.port, 2 * 1052, 1052);
        // Fits the first link, not the second: the router reports that by ICMP.
        send(&mut ra.port, dst, 4 * 1400, 1400);
        assert_eq!(ra.port.tx_flush(), TxOutcome::Sent);
        let e = error_of_kind(&mut ra.port, ErrorKind::Mtu);
        assert_eq!((e.dst, e.errno, e.mtu), (dst, libc::EMSGSIZE, 1300));
        // Smaller packets pass as before.
        send(&mut ra.port, dst, 4 * 1052, 1052);
        ra.port.tx_flush();
        receive(&mut rb.port, &ra.port, 4 * 1052, 1052);
    }
}

/// An IP packet, with a header checksum for IPv4.
fn ip_packet(from: &Endpoint, to: &Endpoint, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut p = if let (Some(from), Some(to)) = (from.to_v4(), to.to_v4()) {
        let mut p = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
        p[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
        p.extend(from);
        p.extend(to);
        let sum = checksum(&p, 0);
        p[10..12].copy_from_slice(&sum.to_be_bytes());
        p
    } else {
        let mut p = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
        p[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
        p.extend(from.ip);
        p.extend(to.ip);
        p
    };
    p.extend(payload);
    p
}

/// The Internet checksum of an even number of bytes.
fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum =
        bytes.chunks(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum::<u32>() + start;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// "Fragmentation needed" (ICMP), or "packet too big" (ICMPv6), for a datagram from `from` to `to`,
/// as another host would forge it.
fn too_big(from: &Endpoint, to: &Endpoint, mtu: u16) -> Vec<u8> {
    let udp: Vec<u8> = [from.port, to.port, 1408, 0].iter().flat_map(|x| x.to_be_bytes()).collect();
    let quoted = ip_packet(from, to, 17, &udp);
    let mut icmp = if from.is_v4() { vec![3, 4, 0, 0, 0, 0] } else { vec![2, 0, 0, 0, 0, 0] };
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(quoted);
    let v4 = from.is_v4();
    // ICMPv6 sums a pseudo-header too.
    let pseudo =
        [&to.ip[..], &from.ip[..], &[0, 0], &(icmp.len() as u16).to_be_bytes(), &[0, 0, 0, 58]]
            .concat();
    let start = if v4 { 0 } else { u32::from(!checksum(&pseudo, 0)) };
    let sum = checksum(&icmp, start);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    ip_packet(to, from, if v4 { 1 } else { 58 }, &icmp)
}

#[test]
fn a_forged_path_mtu_stops_nothing() {
    let Some(ns) = Namespace::new() else { return };
    let Some(dev) = ns.run(|| tun(b"t1")) else { return };
    ns.run(|| {
        ip("addr add 10.9.0.1/24 dev t1");
        ip("addr add fd00:9::1/64 dev t1 nodad");
        ip("link set t1 mtu 4200 up");
    });
    let mut buf = [0u8; 8192];
    for (from, to) in [("10.9.0.1", "10.9.0.2"), ("[fd00:9::1]", "[fd00:9::2]")] {
        let mut r = ns.run(|| open(Endpoint::parse(from).unwrap(), &UdpConfig::DEFAULT)).unwrap();
        let dst = Endpoint::parse(to).unwrap();
        let forged = too_big(r.port.local(), &dst, if dst.is_v4() { 600 } else { 1280 });
        // The kernel believes the message. It is sent again if the kernel drops one, as it does
        // while the addresses of a new link have no route to themselves.
        let forge = || {
            // The kernel accepts a path MTU only for a destination with a route entry.
            send(&mut r.port, dst, 60, 60);
            assert_eq!(r.port.tx_flush(), TxOutcome::Sent);
            // SAFETY: pointer and length are those of `forged`.
            let n = unsafe { libc::write(dev.raw(), forged.as_ptr().cast(), forged.len()) };
            assert_eq!(n, forged.len() as isize);
            std::thread::sleep(Duration::from_millis(20));
            r.port.rx_poll();
            std::iter::from_fn(|| r.port.take_error()).find(|e| e.kind == ErrorKind::Mtu)
        };
        let e = until(60, || format!("no error for {to}"), forge);
        assert_eq!((e.dst, e.errno), (dst, libc::EMSGSIZE));
        while r.port.take_error().is_some() {}
        while read_packet(&dev, &mut buf).is_some() {}
        // Bursts and single packets of the link's MTU leave as before: DF, no fragment,
        // identification 0 and up.
        let mut seen = 0;
        for n in [3, 1] {
            send(&mut r.port, dst, n * 4124, 4124);
            assert_eq!(r.port.tx_flush(), TxOutcome::Sent);
            assert!(r.port.take_error().is_none(), "refused by the kernel");
            while let Some(n) = read_packet(&dev, &mut buf) {
                if buf[0] >> 4 == 6 && buf[6] != 17 {
                    continue;
                }
                check_exact(&buf[..n]).expect("ICRC of the packet as sent");
                if buf[0] >> 4 == 4 {
                    assert_eq!(buf[6..8], [0x40, 0], "DF, no fragment");
                }
                seen += 1;
            }
        }
        assert_eq!(seen, 4);
        assert_eq!(r.port.counters().send_err, 0);
    }
}

#[test]
fn no_route_and_a_dead_host_are_reported() {
    let (Some(a), Some(b)) = (Namespace::new(), Namespace::new()) else { return };
    link(&a, &b, 4, 1500);
    let mut ra = a.run(|| v4_at([10, 4, 0, 1]));
    let nowhere = Endpoint::v4([10, 99, 0, 1], 4791);
    let dead = Endpoint::v4([10, 4, 0, 77], 4791);
    send(&mut ra.port, nowhere, 300, 100);
    send(&mut ra.port, dead, 300, 100);
    assert_eq!(ra.port.tx_flush(), TxOutcome::Sent);
    let e = error_of_kind(&mut ra.port, ErrorKind::Send);
    assert_eq!((e.dst, e.errno), (nowhere, libc::ENETUNREACH));
    assert_eq!(ra.port.counters().send_err, 1);
    // Nothing answers ARP: after three seconds the kernel reports that.
    let e = error_of_kind(&mut ra.port, ErrorKind::Icmp);
    assert_eq!((e.dst, e.errno), (dead, libc::EHOSTUNREACH));
}

#[test]
fn a_link_local_address_works_in_its_zone() {
    let (Some(a), Some(b)) = (Namespace::new(), Namespace::new()) else { return };
    link(&a, &b, 5, 1500);
    let open_at = |ns: &Namespace, dev: &str, host: u8| {
        ns.run(|| {
            ip(&format!("addr add fe80::{host}/64 dev {dev} nodad"));
            open(Endpoint::parse(&format!("[fe80::{host}%{dev}]")).unwrap(), &UdpConfig::DEFAULT)
                .unwrap()
        })
    };
    let mut ra = open_at(&a, "v5a", 71);
    let mut rb = open_at(&b, "v5b", 72);
    assert_eq!(ra.port.link_mtu(), 1500);
    // Each end sees the other through its own zone.
    let there = Endpoint { scope_id: ra.port.local().scope_id, ..*rb.port.local() };
    send(&mut ra.port, there, 5 * 1052, 1052);
    assert_eq!(ra.port.tx_flush(), TxOutcome::Sent);
    poll(&mut rb.port);
    let src = endpoint(&rb.port.rx_get(0).src);
    assert_eq!(src, Endpoint { scope_id: rb.port.local().scope_id, ..*ra.port.local() });
}

/// A TUN device: packets sent into it can be read as the IP packets that a wire would carry.
fn tun(name: &[u8]) -> Option<Fd> {
    // SAFETY: the path is a C string.
    let fd = unsafe {
        libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC)
    };
    let Ok(fd) = Fd::from_call(fd) else {
        gdrcore_testkit::skip::skipped(format_args!("no /dev/net/tun here"));
        return None;
    };
    // SAFETY: zeroes are valid for ifreq.
    let mut req: libc::ifreq = unsafe { core::mem::zeroed() };
    for (to, from) in req.ifr_name.iter_mut().zip(name) {
        *to = *from as _;
    }
    req.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: TUNSETIFF reads and writes `req`.
    let rc = unsafe { libc::ioctl(fd.raw(), libc::TUNSETIFF as _, &mut req) };
    if rc != 0 {
        gdrcore_testkit::skip::skipped(format_args!("no TUN devices here"));
        return None;
    }
    Some(fd)
}

fn read_packet(tun: &Fd, buf: &mut [u8]) -> Option<usize> {
    // SAFETY: pointer and length are those of `buf`.
    let n = unsafe { libc::read(tun.raw(), buf.as_mut_ptr().cast(), buf.len()) };
    usize::try_from(n).ok()
}

#[test]
fn packets_leave_with_the_identifications_that_their_icrcs_cover() {
    let Some(ns) = Namespace::new() else { return };
    let Some(dev) = ns.run(|| tun(b"t0")) else { return };
    ns.run(|| {
        ip("addr add 10.6.0.1/24 dev t0");
        ip("addr add fd00:6::1/64 dev t0 nodad");
        ip("link set t0 mtu 4200 up");
    });
    for (from, to) in [("10.6.0.1", "10.6.0.2"), ("[fd00:6::1]", "[fd00:6::2]")] {
        let mut r = ns.run(|| open(Endpoint::parse(from).unwrap(), &UdpConfig::DEFAULT)).unwrap();
        let dst = Endpoint::parse(to).unwrap();
        // Two bursts of one batch, then the same when the kernel refuses to segment.
        for refused in [false, true] {
            if refused {
                crate::sys::set_option(r.port.fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1i32)
                    .unwrap();
            }
            send(&mut r.port, dst, 9 * 4124 + 60, 4124);
            send(&mut r.port, dst, 60, 60);
            send(&mut r.port, dst, 3 * 100, 100);
            assert_eq!(r.port.tx_flush(), TxOutcome::Sent);
            let mut idents = vec![];
            let mut buf = [0u8; 8192];
            while let Some(n) = read_packet(&dev, &mut buf) {
                let ours = match buf[0] >> 4 {
                    4 => buf[9] == 17 && buf[22..24] == 4791u16.to_be_bytes(),
                    // Neighbour discovery and the like are the kernel's own packets.
                    _ => buf[6] == 17 && buf[42..44] == 4791u16.to_be_bytes(),
                };
                if !ours {
                    continue;
                }
                check_exact(&buf[..n]).expect("ICRC of the packet as sent");
                if buf[0] >> 4 == 4 {
                    idents.push(u16::from_be_bytes([buf[4], buf[5]]));
                    assert_eq!(buf[6..8], [0x40, 0], "DF, no fragment");
                } else {
                    idents.push(0);
                }
            }
            // Before 6.11 the kernel itself refuses (EIO) to segment for devices that compute no
            // checksums.
            let expected: &[u16] = match (r.port.local().is_v4(), r.port.max_segments(&dst)) {
                (true, MAX_SEGMENTS) => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 1, 2],
                _ => &[0; 14],
            };
            assert_eq!(idents, expected);
        }
        if r.port.local().is_v4() {
            // IPv6 sockets have their own switch for checksums, so GSO was used there.
            assert_eq!(r.port.counters().gso_refused, 2);
            assert_eq!(r.port.max_segments(&dst), 1, "and is remembered");
            assert_eq!(
                r.port.max_segments(&Endpoint::v4([10, 6, 0, 3], 4791)),
                MAX_SEGMENTS,
                "for this host only"
            );
            let before = r.port.counters().tx_calls;
            send(&mut r.port, dst, 3 * 100, 100);
            assert_eq!(r.port.tx_flush(), TxOutcome::Sent);
            assert_eq!(r.port.counters().tx_calls - before, 3, "no second attempt");
            assert_eq!(r.port.counters().gso_refused, 2);
        }
        assert!(r.port.take_error().is_none());
        let mut buf = [0u8; 8192];
        while read_packet(&dev, &mut buf).is_some() {}
    }
}

#[test]
fn a_slow_link_fills_the_send_buffer_and_nothing_is_lost() {
    let (Some(a), Some(b)) = (Namespace::new(), Namespace::new()) else { return };
    link(&a, &b, 7, 9000);
    // The queue holds more than a send buffer, and its bytes are charged to the sender.
    let shaped = a.run(|| {
        let _fork = fork();
        let args = "qdisc add dev v7a root tbf rate 60mbit burst 64kb limit 8mb";
        Command::new("tc").args(args.split_whitespace()).status().is_ok_and(|s| s.success())
    });
    if !shaped {
        gdrcore_testkit::skip!("no tbf queue here");
    }
    for flags in [0, udp_flags::NO_GSO] {
        let cfg = UdpConfig { flags, ..UdpConfig::DEFAULT };
        let mut ra = a.run(|| open(Endpoint::v4([10, 7, 0, 1], 4791), &cfg)).unwrap();
        let mut rb = b.run(|| v4_at([10, 7, 0, 2]));
        // Room for everything, whenever this thread runs next; the limit of ordinary users is
        // lower.
        crate::sys::set_option(rb.port.fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 8 << 20)
            .unwrap();
        let w = crate::wait::Waiter::new().unwrap();
        w.add_socket(ra.port.fd()).unwrap();
        w.attach_io(true).unwrap();
        let dst = *rb.port.local();
        let flow = flow(&ra.port, &dst);
        let (mut filled, mut got, bursts) = (0u32, 0u32, 60);
        let end = deadline(60);
        while got < bursts * 10 {
            assert!(Instant::now() < end, "{got} packets: {:?}", ra.port.counters());
            while filled < bursts {
                let Some(space) = ra.port.tx_space() else { break };
                for (k, p) in space[..10 * 4000].chunks_mut(4000).enumerate() {
                    p[..4].copy_from_slice(&(filled * 10 + k as u32).to_be_bytes());
                    flow.append_icrc(k as u16, p);
                }
                ra.port.tx_commit(Burst { dst: peer_addr(&dst), len: 10 * 4000, seg: 4000 });
                filled += 1;
            }
            let full = ra.port.tx_flush() == TxOutcome::Full;
            w.want_write(ra.port.fd(), full).unwrap();
            // Receives packets until the sender may continue.
            loop {
                for i in 0..rb.port.rx_poll() {
                    let p = rb.port.rx_get(i);
                    for packet in p.data.chunks(usize::from(p.seg)) {
                        assert_eq!(packet[..4], got.to_be_bytes(), "in order, none lost");
                        flow.check(0, packet).unwrap();
                        got += 1;
                    }
                }
                if !full || w.sleep(0) {
                    break;
                }
                assert!(Instant::now() < end, "never writable: {:?}", ra.port.counters());
            }
        }
        let c = ra.port.counters();
        assert!(c.tx_full > 0 && c.send_err == 0, "{c:?}");
        assert!(ra.port.take_error().is_none());
    }
}

#[test]
fn two_hosts_share_a_port_number_and_see_each_others_bursts() {
    let (Some(a), Some(b)) = (Namespace::new(), Namespace::new()) else { return };
    link(&a, &b, 8, 9000);
    let mut ra = a.run(|| v4_at([10, 8, 0, 1]));
    let mut rb = b.run(|| v4_at([10, 8, 0, 2]));
    for _ in 0..50 {
        let (here, there) = (*ra.port.local(), *rb.port.local());
        send(&mut ra.port, there, 10 * 4124, 4124);
        assert_eq!(ra.port.tx_flush(), TxOutcome::Sent);
        assert_eq!(receive(&mut rb.port, &ra.port, 10 * 4124, 4124), 1, "veth keeps bursts whole");
        send(&mut rb.port, here, 20, 20);
        assert_eq!(rb.port.tx_flush(), TxOutcome::Sent);
        receive(&mut ra.port, &rb.port, 20, 20);
    }
    assert_eq!(ra.port.counters().tx_calls, 50);
}
