//! Attackers who can send packets to the port: floods, packets for QPs that are gone, forgeries by
//! the peer itself.

use gdrcore_core::counters::Counters;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{qp_attr_mask, qp_state, qp_type, QpAttr};
use gdrcore_tests::ends::{connected_pair, pattern, succeed, Address, End, Op, Shape};
use gdrcore_tests::forge::{bth, octets, plain, send_valid, still_works};
use gdrcore_tests::patience::{deadline, run_until, until};
use gdrcore_tests::rng::Rng;
use gdrcore_tests::soft::{address, Soft};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn counters(dev: &dyn Device) -> Counters {
    dev.counters().expect("counters")
}

#[test]
fn a_flood_costs_time_and_nothing_else() {
    let (x, y) = (address(1), address(2));
    let (dx, dy) = (Soft::new(&x), Soft::new(&y));
    let (mut a, mut b) = connected_pair(dx.dev(), dy.dev());
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let target = plain(&x);
    let qpn = a.own.qpn;
    // Counters of the packets that were received and dropped.
    let seen = || {
        let c = counters(dx.dev());
        c.rcvd_icrc_err > 0 && c.rcvd_malformed > 0 && c.rcvd_no_qp > 0
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stranger = UdpSocket::bind((plain(&address(3)).ip(), 0)).expect("a socket");
            let forger =
                UdpSocket::bind((plain(&y).ip(), 0)).expect("a socket at the peer's address");
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                // Garbage, packets with an existing QPN, and some with a valid ICRC.
                let mut packet = match n % 3 {
                    0 => pattern(n, (n * 131 % 1500) as usize),
                    1 => [bth(0x0A, 0x40, qpn, true, n as u32), pattern(n, 700)].concat(),
                    _ => [bth(0x11, 0x40, qpn ^ 0x40_0000, false, n as u32), vec![0x1F, 0, 0, 1]]
                        .concat(),
                };
                let _ = match n % 3 {
                    2 => {
                        send_valid(&forger, target, &mut packet);
                        Ok(0)
                    }
                    _ => stranger.send_to(&packet, target),
                };
                n += 1;
                sent.store(n, Ordering::Relaxed);
                if n % 64 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        let (end, mut round) = (deadline(60), 0);
        while round < 20 || !seen() || sent.load(Ordering::Relaxed) <= 100 {
            assert!(Instant::now() < end, "{sent:?} sent; {:?}", counters(dx.dev()));
            let bytes = pattern(round, 200_000);
            b.buffer.write(0, &bytes);
            b.post(round, Op::Write(300_000, None), 0, 200_000).expect("post_send");
            succeed(&mut b, &mut a, round);
            assert!(a.buffer.read(300_000, 200_000) == bytes, "round {round}");
            round += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    still_works(&mut a, &mut b);
}

/// Packets for missing QPs, summed over the counters of all checks: their order does not matter
/// here.
fn refused(c: &Counters) -> u64 {
    let known = c.rcvd_no_qp + c.rcvd_refused + c.rcvd_malformed + c.rcvd_icrc_err;
    known + c.rcvd_stray + c.rcvd_throttled + c.rcvd_dropped + c.share_dropped + c.cm_dropped
}

#[test]
fn packets_for_qps_that_are_gone_or_not_ready_are_dropped() {
    let (x, y) = (address(1), address(2));
    let (dx, dy) = (Soft::new(&x), Soft::new(&y));
    let (mut a, mut b) = connected_pair(dx.dev(), dy.dev());
    let forger = UdpSocket::bind((plain(&y).ip(), 0)).expect("a socket at the peer's address");
    let fresh = End::new(dx.dev(), Shape::default()).expect("an end");
    let mut init = End::new(dx.dev(), Shape::default()).expect("an end");
    init.to_init().expect("to INIT");
    init.post_recv(1, 0, 64).expect("post_recv");
    let (broken, _other) = connected_pair(dx.dev(), dy.dev());
    let to_err = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
    broken.dev.qp_modify(broken.qp, &to_err, qp_attr_mask::STATE).expect("to ERR");
    let gone = End::new(dx.dev(), Shape::default()).expect("an end");
    let gone_qpn = gone.own.qpn;
    gone.destroy().expect("destroy");
    for qpn in [fresh.own.qpn, init.own.qpn, broken.own.qpn, gone_qpn, 0, 1, 0xFF_FFFF] {
        let before = counters(dx.dev());
        for opcode in [0x04u8, 0x0A, 0x0C, 0x11, 0x13, 0x24, 0x64, 0x81] {
            send_valid(
                &forger,
                plain(&x),
                &mut [bth(opcode, 0x40, qpn, true, 5), pattern(9, 64)].concat(),
            );
        }
        let missing = || format!("QPN {qpn:#x}: {before:?}; then {:?}", counters(dx.dev()));
        until(60, missing, || {
            dx.dev().progress().expect("progress");
            (refused(&counters(dx.dev())) >= refused(&before) + 8).then_some(())
        });
    }
    init.poll();
    assert!(init.done.is_empty(), "{:?}", init.done);
    still_works(&mut a, &mut b);
}

/// A packet that a hostile peer may send: a known or unknown opcode, header fields near the
/// expected ones, lengths that fit or not.
fn forged(dice: &mut Rng, to: &End, psn: u32) -> Vec<u8> {
    let class = match to.shape.qp_type {
        qp_type::RC => 0x00,
        qp_type::UC => 0x20,
        _ => 0x60,
    };
    let opcode =
        if dice.below(8) == 0 { dice.below(256) as u8 } else { class | dice.below(0x18) as u8 };
    let near = psn.wrapping_add(dice.below(7) as u32).wrapping_sub(3) & 0xFF_FFFF;
    let flags = [0x40, 0xC0, 0x00, 0x50, 0x70, 0x41][dice.below(6) as usize];
    let mut p = bth(opcode, flags, to.own.qpn, dice.below(2) == 0, near);
    let (guard, key) = (to.own.addr + 4096, to.own.rkey);
    // RETH or AtomicETH, AETH, DETH, immediate data: one of the words is plausible for any opcode.
    for _ in 0..dice.below(4) {
        match dice.below(5) {
            0 => {
                p.extend_from_slice(&(guard + dice.below(64)).to_be_bytes());
                p.extend_from_slice(
                    &[key, key ^ 1, 0, u32::MAX][dice.below(4) as usize].to_be_bytes(),
                );
                p.extend_from_slice(
                    &[0, 1, 64, 1024, 4096, u32::MAX][dice.below(6) as usize].to_be_bytes(),
                );
            }
            1 => p.extend_from_slice(&(dice.below(1 << 32) as u32).to_be_bytes()),
            2 => p.extend_from_slice(&[0; 16]),
            3 => p.extend_from_slice(&pattern(dice.next(), dice.below(70) as usize)),
            _ => p.extend_from_slice(&pattern(dice.next(), 1024)),
        }
    }
    p
}

#[test]
fn a_peer_that_forges_its_own_packets_harms_its_own_connection_only() {
    let (x, y) = (address(1), address(2));
    let (dx, dy) = (Soft::new(&x), Soft::new(&y));
    let (mut c, mut d) = connected_pair(dx.dev(), dy.dev());
    let forger = UdpSocket::bind((plain(&y).ip(), 0)).expect("a socket at the peer's address");
    let target = plain(&x);
    let mut dice = Rng::new(0x1BAD_5EED_0BAD_CAFE);
    for round in 0..240u64 {
        let qp_type = [qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD][(round % 4) as usize];
        let shape = Shape {
            qp_type,
            buffer: 64 << 10,
            depth: 8,
            retry_cnt: 1,
            timeout: 10,
            ..Shape::default()
        };
        let mut a = End::new(dx.dev(), shape).expect("an end");
        let peer = Address { ah: d.own.ah, qpn: 0x777, psn: 0xFF_FFFE, addr: 0x1000, rkey: 1 };
        a.connect(peer).expect("connect");
        // The peer may write one page. It has no key for the rest of the buffer.
        let secret = pattern(round, 64 << 10);
        a.buffer.write(0, &secret);
        a.dev.mr_dereg(a.mr).expect("mr_dereg");
        let page = gdrcore_core::device::MrReg {
            pd: a.pd,
            addr: a.buffer.addr() + 4096,
            length: 4096,
            iova: a.buffer.addr() + 4096,
            access: a.shape.access,
            provider: 0,
            cookie: 0,
        };
        (a.mr, a.attr) = a.dev.mr_reg(&page).expect("mr_reg");
        a.own.rkey = a.attr.rkey;
        for n in 0..4 {
            a.post_recv(n, 0, 2048).expect("post_recv");
        }
        // Requests of our own, which the peer may answer with anything.
        if qp_type != qp_type::UD {
            for (n, op) in [Op::Write(0, None), Op::Read(0), Op::FetchAdd(0, 1), Op::Send(None)]
                .into_iter()
                .enumerate()
            {
                let len = if matches!(op, Op::FetchAdd(..)) { 8 } else { 1500 };
                let _ = a.post(100 + n as u64, op, 0, len);
            }
        }
        let sent_psn = a.own.psn;
        for k in 0..60 {
            // Half of the packets go to the responder, half answer the requester.
            let psn = if k % 2 == 0 { peer.psn } else { sent_psn };
            send_valid(&forger, target, &mut forged(&mut dice, &a, psn));
            if k % 8 == 7 {
                a.poll();
            }
        }
        for _ in 0..20 {
            a.poll();
        }
        let now = a.buffer.read(0, 64 << 10);
        assert!(
            now[..4096] == secret[..4096] && now[8192..] == secret[8192..],
            "round {round} wrote other memory"
        );
        a.destroy().expect("destroy");
        if round % 40 == 0 {
            still_works(&mut c, &mut d);
        }
    }
    still_works(&mut c, &mut d);
}

/// The socket of a peer that is no device.
fn peer_socket() -> UdpSocket {
    UdpSocket::bind(plain(&address(2))).expect("a socket")
}

/// The address of that peer's queue pair 0x99, which begins with PSN 70, for an end.
fn address_of(end: &End<'_>, socket: &UdpSocket) -> Address {
    let at = socket.local_addr().expect("an address");
    let mut peer = Address { qpn: 0x99, psn: 70, ah: end.own.ah, ..Address::default() };
    peer.ah.dgid[12..].copy_from_slice(&octets(at));
    peer.ah.udp_port = at.port();
    peer
}

#[test]
fn a_peer_with_random_answers_ends_operations_and_writes_no_other_memory() {
    let x = address(1);
    let dx = Soft::new(&x);
    let liar = peer_socket();
    liar.set_nonblocking(true).expect("nonblocking");
    let mut dice = Rng::new(42);
    for round in 0..60u64 {
        let shape =
            Shape { buffer: 64 << 10, retry_cnt: 2, timeout: 8, rnr_retry: 2, ..Shape::default() };
        let mut a = End::new(dx.dev(), shape).expect("an end");
        let peer = Address { psn: 0, addr: 0x1000, rkey: 1, ..address_of(&a, &liar) };
        a.connect(peer).expect("connect");
        let secret = pattern(round, 64 << 10);
        a.buffer.write(0, &secret);
        let op = [Op::Read(0), Op::Write(0, None), Op::CmpSwap(0, 1, 2)][(round % 3) as usize];
        let len = if round % 3 == 2 { 8 } else { 10_000 };
        for n in 0..3 {
            a.post(n, op, 8192, len).expect("post_send");
        }
        let end = deadline(60);
        let mut heard = [0u8; 2048];
        while a.done.len() < 3 {
            a.poll();
            while let Ok((n, _)) = liar.recv_from(&mut heard) {
                if n < 12 {
                    continue;
                }
                // Fields of an answer, each wrong now and then.
                let psn =
                    u32::from_be_bytes([0, heard[9], heard[10], heard[11]]) + dice.below(4) as u32;
                let opcode = [0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12][dice.below(6) as usize];
                let mut p = bth(opcode, 0x40, a.own.qpn, false, psn & 0xFF_FFFF);
                let syndrome = [0x00, 0x1F, 0x20, 0x2C, 0x60, 0x61, 0x62, 0x63, 0x64, 0x80, 0xFF]
                    [dice.below(11) as usize];
                if opcode != 0x0E {
                    p.extend_from_slice(&[
                        if dice.below(3) > 0 { 0x1F } else { syndrome },
                        0,
                        0,
                        1,
                    ]);
                }
                let body = [0, 8, 1024, 1024, 784, 512, 1200][dice.below(7) as usize];
                p.extend_from_slice(&vec![0xEE; body]);
                send_valid(&liar, plain(&x), &mut p);
            }
            assert!(Instant::now() < end, "round {round}, {op:?}: {:?}", a.done);
        }
        let now = a.buffer.read(0, 64 << 10);
        assert!(
            now[..8192] == secret[..8192] && now[8192 + 10_000..] == secret[8192 + 10_000..],
            "round {round}"
        );
        a.destroy().expect("destroy");
    }
    assert_eq!(dx.dev().leaks().expect("leaks"), Default::default());
}

#[test]
fn a_fatal_nak_is_repeated_for_a_repeated_request() {
    let x = address(1);
    let dx = Soft::new(&x);
    let peer_socket = peer_socket();
    peer_socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let mut a = End::new(dx.dev(), Shape::default()).expect("an end");
    a.connect(address_of(&a, &peer_socket)).expect("connect");
    // A WRITE ONLY with an invalid key, repeated, as by a requester that gets no answer.
    let request = || {
        let mut p = bth(0x0A, 0x40, a.own.qpn, true, 70);
        p.extend_from_slice(&a.own.addr.to_be_bytes());
        p.extend_from_slice(&(a.own.rkey ^ 1).to_be_bytes());
        p.extend_from_slice(&4u32.to_be_bytes());
        p.extend_from_slice(&[1, 2, 3, 4]);
        p
    };
    for try_ in 0..5 {
        send_valid(&peer_socket, plain(&x), &mut request());
        let mut heard = [0u8; 64];
        let n = until(
            60,
            || format!("try {try_}: no answer"),
            || {
                dx.dev().progress().expect("progress");
                peer_socket.recv_from(&mut heard).ok().map(|(n, _)| n)
            },
        );
        let answer = &heard[..n];
        // Opcode ACKNOWLEDGE, PSN 70, NAK remote access error.
        assert_eq!(
            (answer[0], &answer[9..12], answer[12]),
            (0x11, &[0, 0, 70][..], 0x62),
            "try {try_}"
        );
    }
    // Packets of a stranger are not answered.
    let stranger = UdpSocket::bind((plain(&address(3)).ip(), 0)).expect("a socket");
    let before = counters(dx.dev()).rcvd_no_qp;
    send_valid(&stranger, plain(&x), &mut request());
    run_until(60, "the stranger's packet was not dropped", || {
        dx.dev().progress().expect("progress");
        counters(dx.dev()).rcvd_no_qp != before
    });
    assert!(peer_socket.recv_from(&mut [0u8; 64]).is_err(), "an answer to a stranger's packet");
}

#[test]
fn a_late_copy_of_a_read_with_a_dead_key_is_not_fatal_and_a_new_one_is() {
    let x = address(1);
    let dx = Soft::new(&x);
    let peer_socket = peer_socket();
    peer_socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let mut a = End::new(dx.dev(), Shape::default()).expect("an end");
    a.connect(address_of(&a, &peer_socket)).expect("connect");
    // READs of four bytes.
    let read = |psn: u32| {
        let mut p = bth(0x0C, 0x40, a.own.qpn, true, psn);
        p.extend_from_slice(&a.own.addr.to_be_bytes());
        p.extend_from_slice(&a.own.rkey.to_be_bytes());
        p.extend_from_slice(&4u32.to_be_bytes());
        send_valid(&peer_socket, plain(&x), &mut p);
    };
    // Opcode, PSN and syndrome of the answer.
    let ask = |psn: u32| {
        read(psn);
        let mut heard = [0u8; 64];
        run_until(60, &format!("PSN {psn}: no answer"), || {
            dx.dev().progress().expect("progress");
            peer_socket.recv_from(&mut heard).is_ok()
        });
        (heard[0], heard[11], heard[12])
    };
    assert_eq!(ask(70), (0x10, 70, 0x1F));
    assert_eq!(ask(71), (0x10, 71, 0x1F));
    a.dev.mr_dereg(a.mr).expect("mr_dereg");
    // A late copy of the first request meets a deregistered key: it is counted, and neither
    // answered nor fatal, since the peer may have moved on.
    read(70);
    run_until(60, "the copy did not arrive", || {
        dx.dev().progress().expect("progress");
        a.dev.qp_counters(a.qp).expect("qp_counters").duplicate_request != 0
    });
    dx.dev().progress().expect("progress");
    assert!(peer_socket.recv_from(&mut [0u8; 64]).is_err(), "an answer to a late copy");
    assert_eq!(a.dev.qp_query(a.qp).expect("qp_query").0.qp_state, qp_state::RTS);
    // A new request is refused, and the refusal is repeated for a repeated request.
    assert_eq!(ask(72), (0x11, 72, 0x62));
    assert_eq!(ask(72), (0x11, 72, 0x62));
    assert_eq!(ask(75), (0x11, 72, 0x62), "the NAK must not name a PSN beyond the expected one");
}
