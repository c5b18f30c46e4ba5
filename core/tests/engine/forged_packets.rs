//! Strangers who send in a peer's name, know addresses and QPNs, and guess PSNs.

use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::IcrcFlow;

use crate::util::*;

/// Bits of the AETH's syndrome: RNR NAK, NAK.
const RNR: u8 = 0x20;
const NAK: u8 = 0x60;
const REMOTE_ACCESS: u8 = NAK | 2;
/// Far from any PSN that is expected.
const FAR: u32 = 0x40_0000;

/// A packet with these bytes behind its BTH, as host `from` would send it.
fn packet(net: &Net, from: usize, opcode: u8, to: &End, psn: u32, rest: &[u8]) -> Vec<u8> {
    let mut p = vec![opcode, 0, 0xff, 0xff, 0];
    p.extend_from_slice(&to.qpn.to_be_bytes()[1..]);
    p.push(0x80);
    p.extend_from_slice(&psn.to_be_bytes()[1..]);
    p.extend_from_slice(rest);
    p.extend_from_slice(&[0; 4]);
    sign(net, from, to.host, &mut p);
    p
}

/// An ACK or NAK.
fn answer(net: &Net, from: usize, to: &End, psn: u32, syndrome: u8) -> Vec<u8> {
    packet(net, from, 0x11, to, psn, &[syndrome, 0, 0, 1])
}

fn plus(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & 0xff_ffff
}

/// Besieges the QP of `e`: sends enough packets at PSNs that it does not expect.
fn besiege(net: &mut Net, from: usize, e: &End) {
    for n in 0..100 {
        let p = answer(net, from, e, plus(PSN, FAR + n), NAK);
        net.inject(from, e.host, &p);
    }
}

/// Two ends, and nothing that host 1 sends arrives.
fn deaf(o: Opts) -> (Net, End, End) {
    let (mut net, a, b) = Net::pair(o);
    net.tap = Some(Box::new(|from, _| Fate::drop_if(from == 1)));
    (net, a, b)
}

fn write(a: &End, b: &End, at: usize) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 64).remote(b, at)
}

// rxe rxe_comp.c check_psn, old
#[test]
fn answers_to_what_is_not_outstanding_do_nothing_and_are_counted() {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.ok(&a, write(&a, &b, 0));
    let next = plus(PSN, 1);
    let syndromes = [0x1f, RNR, NAK, NAK | 1, REMOTE_ACCESS, NAK | 3, NAK | 4, NAK | 20, 0xe0];
    let before = net.lock(&a).counters();
    // Nothing is outstanding, so no PSN is right, neither the last that was acknowledged nor the
    // next one.
    for psn in [
        plus(next, 0),
        plus(next, 1),
        plus(next, 0xff_ffff),
        plus(next, FAR),
        plus(next, 0x80_0000),
    ] {
        for syndrome in syndromes {
            let p = answer(&net, 1, &a, psn, syndrome);
            net.inject(1, 0, &p);
        }
        let p = packet(&net, 1, 0x10, &a, psn, &[0x1f, 0, 0, 1, 9, 9, 9, 9]);
        net.inject(1, 0, &p);
    }
    let after = net.lock(&a).counters();
    assert_eq!((after.rcvd_stray - before.rcvd_stray, after.rcvd_nak_err), (5 * 10, 0));
    assert_eq!(net.lock(&a).qp_counters(a.qp).unwrap().rcvd_stray, 5 * 10);
    // While something is outstanding, only its PSNs are right, and codes that RC lacks never are.
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    net.post(&a, write(&a, &b, 0));
    net.exchange();
    net.tap = None;
    for psn in [plus(next, 0xff_ffff), plus(next, 1), plus(next, FAR)] {
        for syndrome in syndromes {
            let p = answer(&net, 1, &a, psn, syndrome);
            net.inject(1, 0, &p);
        }
    }
    for syndrome in [NAK | 4, NAK | 5, NAK | 31, 0x40, 0x80] {
        let p = answer(&net, 1, &a, next, syndrome);
        net.inject(1, 0, &p);
    }
    assert!(net.poll(a.host, a.scq).is_empty());
    assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);
    assert_eq!(net.state(&a), qp_state::RTS);
}

#[test]
fn a_nak_that_ends_a_besieged_queue_pair_must_be_said_twice() {
    let o = Opts { timeout: 14, ..Opts::default() };
    for syndrome in [NAK | 1, REMOTE_ACCESS, NAK | 3] {
        // The right PSN, by chance, once.
        let (mut net, a, b) = Net::pair(o);
        net.post(&a, write(&a, &b, 0));
        net.send_from(0);
        besiege(&mut net, 1, &a);
        let p = answer(&net, 1, &a, PSN, syndrome);
        net.inject(1, 0, &p);
        assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS, "{syndrome:#x}");
        assert_eq!(net.state(&a), qp_state::RTS);
        // A second time: a failed peer repeats its NAK when it is asked again.
        let (mut net, a, b) = deaf(o);
        net.post(&a, write(&a, &b, 0));
        net.post(&a, write(&a, &b, 64));
        net.exchange();
        besiege(&mut net, 1, &a);
        let p = answer(&net, 1, &a, plus(PSN, 1), syndrome);
        let other = answer(&net, 1, &a, PSN, syndrome);
        for nak in [&p, &other, &p] {
            net.inject(1, 0, nak);
            assert_eq!(
                net.state(&a),
                qp_state::RTS,
                "{syndrome:#x}: each of them for the first time in turn"
            );
        }
        net.inject(1, 0, &p);
        let wc = net.poll(a.host, a.scq);
        assert_eq!(
            (wc.len(), wc[0].status),
            (2, wc_status::SUCCESS),
            "what comes before it was acknowledged by it"
        );
        assert_ne!(wc[1].status, wc_status::SUCCESS);
        assert_eq!(net.state(&a), qp_state::ERR);
        // Or silence: a failed peer may not repeat its NAK.
        let (mut net, a, b) = deaf(o);
        net.post(&a, write(&a, &b, 0));
        net.exchange();
        besiege(&mut net, 1, &a);
        net.inject(1, 0, &p.clone());
        let p = answer(&net, 1, &a, PSN, syndrome);
        net.inject(1, 0, &p);
        let start = net.now;
        let wc = net.wait(a.host, a.scq, 1);
        let expected = match syndrome & 0x1f {
            1 => wc_status::REM_INV_REQ_ERR,
            2 => wc_status::REM_ACCESS_ERR,
            _ => wc_status::REM_OP_ERR,
        };
        assert_eq!(wc[0].status, expected);
        assert!(net.now - start <= 2 * (4096 << 14), "after one timeout, not after all of them");
    }
    // Without forgeries a NAK is believed at once.
    let (mut net, a, b) = deaf(o);
    net.post(&a, write(&a, &b, 0));
    net.exchange();
    let p = answer(&net, 1, &a, PSN, REMOTE_ACCESS);
    net.inject(1, 0, &p);
    assert_eq!(net.poll(a.host, a.scq)[0].status, wc_status::REM_ACCESS_ERR);
}

#[test]
fn a_thousand_guesses_a_millisecond_end_nothing() {
    let (mut net, a, b) = Net::pair(Opts { rnr: 1, ..Opts::default() });
    let (mut rng, mut done) = (Rng(99), 0);
    for step in 0..400u64 {
        net.post(&a, write(&a, &b, 0).id(step));
        net.send_from(0);
        // The ACK is on its way, and one of sixteen PSNs about the right one is guessed each time;
        // most guesses are far off.
        for n in 0..200 {
            let near = n == 199;
            let psn = if near {
                plus(PSN, (step + rng.below(16)).wrapping_sub(8) as u32)
            } else {
                rng.below(1 << 24) as u32
            };
            let syndrome = [RNR, NAK, NAK | 1, REMOTE_ACCESS, NAK | 3][rng.below(5) as usize];
            let p = answer(&net, 1, &a, psn, syndrome);
            net.inject(1, 0, &p);
        }
        net.run(1_200_000);
        let wc = net.poll(a.host, a.scq);
        assert!(wc.iter().all(|w| w.status == wc_status::SUCCESS), "step {step}: {wc:?}");
        done += wc.len();
    }
    net.run(10_000_000);
    done += net.poll(a.host, a.scq).len();
    assert_eq!((done, net.state(&a), net.state(&b)), (400, qp_state::RTS, qp_state::RTS));
    let c = net.lock(&a).counters();
    assert!(c.rcvd_throttled > 400 * 100 && c.rcvd_stray > 64, "{c:?}");
}

#[test]
fn an_rnr_nak_neither_holds_nor_uses_up_a_besieged_queue_pair() {
    let (mut net, a, b) = deaf(Opts { rnr: 1, timeout: 18, ..Opts::default() });
    net.post(&a, write(&a, &b, 0));
    net.exchange();
    // Code 0: 655 ms, and two of them are one too many.
    let p = answer(&net, 1, &a, PSN, RNR);
    for _ in 0..5 {
        besiege(&mut net, 1, &a);
        net.inject(1, 0, &p);
        let before = net.packets;
        net.run(1_100_000);
        assert!(net.packets > before, "it waits no longer than a millisecond");
        assert!(net.poll(a.host, a.scq).is_empty());
    }
    net.tap = None;
    assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);
}

#[test]
fn naks_acknowledge_nothing_to_a_besieged_queue_pair() {
    for syndrome in [NAK, RNR | 1] {
        let (mut net, a, b) = Net::pair(Opts::default());
        net.tap = Some(Box::new(|_, _| Fate::Drop));
        (0..3).for_each(|n| net.post(&a, write(&a, &b, 64 * n).id(n as u64)));
        net.exchange();
        besiege(&mut net, 1, &a);
        let p = answer(&net, 1, &a, plus(PSN, 2), syndrome);
        net.inject(1, 0, &p);
        assert!(net.poll(a.host, a.scq).is_empty(), "{syndrome:#x}: nothing of it has arrived");
        net.tap = None;
        let wc = net.wait(a.host, a.scq, 3);
        assert!(wc.iter().all(|w| w.status == wc_status::SUCCESS));
        assert_eq!(b.buf.read(0, 64), a.buf.read(0, 64));
    }
}

/// A SEND of one packet that no end has posted.
fn request(net: &Net, from: usize, to: &End, psn: u32) -> Vec<u8> {
    packet(net, from, 0x04, to, psn, &[7; 16])
}

#[test]
fn requests_far_ahead_make_nobody_send_again() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let mut rng = Rng(7);
    // Not so many that the queue pair is besieged.
    for step in 0..60u32 {
        net.post(&a, write(&a, &b, 0));
        let p = request(&net, 0, &b, plus(PSN, FAR + rng.below(0x20_0000) as u32));
        net.inject(0, 1, &p);
        net.settle();
        net.now += 10_000 * u64::from(step % 20);
        assert_eq!(net.poll(a.host, a.scq).len(), 1);
    }
    let (x, y) = (net.lock(&a).counters(), net.lock(&b).counters());
    assert_eq!((y.send_nak_err, x.rcvd_seq_err, x.retransmitted_pkts), (0, 0, 0));
    assert_eq!(y.out_of_seq_request, 60);
    // If nothing comes in order any more, it looks like a loss, for example of a READ request that
    // takes so many PSNs.
    let p = request(&net, 0, &b, plus(PSN, 60 + FAR));
    net.inject(0, 1, &p);
    net.now += 49_000;
    net.inject(0, 1, &p);
    net.settle();
    assert_eq!(net.lock(&b).counters().send_nak_err, 0, "it may still come");
    net.now += 2_000;
    net.inject(0, 1, &p);
    net.settle();
    assert_eq!(net.lock(&b).counters().send_nak_err, 1);
}

#[test]
fn a_besieged_queue_pair_asks_for_what_was_lost_a_little_later() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 18, ..Opts::default() });
    besiege(&mut net, 0, &b);
    let mut n = 0;
    net.tap = Some(Box::new(move |from, _| {
        n += usize::from(from == 0);
        Fate::drop_if(from == 0 && n == 3)
    }));
    (0..8).for_each(|k| net.post(&a, write(&a, &b, 64 * k)));
    let start = net.now;
    let wc = net.wait(a.host, a.scq, 8);
    assert!(wc.iter().all(|w| w.status == wc_status::SUCCESS));
    assert!(
        net.now - start < 5_000_000,
        "by a NAK, long before the timeout of a second: {}",
        net.now - start
    );
    assert_eq!(net.lock(&b).counters().send_nak_err, 1);
    // A packet ahead between packets in order draws no NAK.
    besiege(&mut net, 0, &b);
    for k in 0..50 {
        let p = request(&net, 0, &b, plus(PSN, 8 + k + 5));
        net.inject(0, 1, &p);
        net.send_from(1);
        net.post(&a, write(&a, &b, 0));
        net.settle();
        net.now += 1_000;
    }
    assert_eq!(net.lock(&b).counters().send_nak_err, 1);
}

#[test]
fn what_is_far_off_is_dropped_before_its_icrc_is_computed() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let bad = |net: &Net, psn| {
        let mut p = answer(net, 1, &a, psn, NAK);
        let last = p.len() - 1;
        p[last] ^= 1;
        p
    };
    let p = bad(&net, plus(PSN, FAR));
    net.inject(1, 0, &p);
    let c = net.lock(&a).counters();
    assert_eq!((c.rcvd_icrc_err, c.rcvd_throttled), (1, 0));
    besiege(&mut net, 1, &a);
    let before = net.lock(&a).counters();
    (0..1_000).for_each(|_| net.inject(1, 0, &p));
    // From another address no PSN is right.
    net.add(Host::new(&Opts::default().config, false, 9));
    let stranger = request(&net, 2, &a, PSN);
    (0..100).for_each(|_| net.inject(2, 0, &stranger));
    let after = net.lock(&a).counters();
    assert_eq!(after.rcvd_throttled - before.rcvd_throttled, 1_100);
    assert_eq!((after.rcvd_icrc_err, after.rcvd_refused), (1, before.rcvd_refused));
    // Packets of its peer are taken all the same, and so are those of other queue pairs.
    net.ok(&a, write(&a, &b, 0));
    net.ok(&b, write(&b, &a, 0));
    // The siege ends by itself.
    net.now += 200_000_000;
    let before = net.lock(&a).counters();
    net.inject(1, 0, &p);
    net.inject(2, 0, &stranger);
    let c = net.lock(&a).counters();
    assert_eq!(
        (c.rcvd_icrc_err, c.rcvd_refused, c.rcvd_throttled),
        (2, before.rcvd_refused + 1, before.rcvd_throttled)
    );
}

// rxe rxe_resp.c duplicate_request, READ
#[test]
fn a_besieged_queue_pair_answers_reads_of_long_ago_again() {
    let o = Opts { mtu: mtu::MTU_256, bytes: 17 << 20, ..Opts::default() };
    let (mut net, _a, b) = Net::pair(o);
    // A NIC asks for all of a READ at once: 69,632 PSNs.
    let mut reth = b.mr.iova.to_be_bytes().to_vec();
    reth.extend_from_slice(&b.mr.rkey.to_be_bytes());
    reth.extend_from_slice(&(17u32 << 20).to_be_bytes());
    let p = packet(&net, 0, 0x0c, &b, PSN, &reth);
    net.inject(0, 1, &p);
    net.settle();
    assert!(net.lock(&b).counters().sent_pkts >= 17 << 12);
    // It asks again for the part of the answer that was lost.
    besiege(&mut net, 0, &b);
    let before = net.lock(&b).counters();
    net.inject(0, 1, &p);
    net.settle();
    let after = net.lock(&b).counters();
    assert_eq!(after.duplicate_request, before.duplicate_request + 1);
    assert!(after.sent_pkts >= before.sent_pkts + (17 << 12));
}

/// Connects `b` with `a` anew, as with a peer that is known to be of our kind.
fn connect_to_soft(net: &mut Net, b: &End, a: &End, o: &Opts) {
    use qp_attr_mask as m;
    net.to_state(b, qp_state::RESET).unwrap();
    let to = net.hosts[a.host].addr;
    let mut attr = QpAttr {
        qp_state: qp_state::INIT,
        port_num: 1,
        qp_access_flags: ALL,
        peer_is_soft: 1,
        ..QpAttr::default()
    };
    net.modify(b, &attr, m::STATE | m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS).unwrap();
    attr = QpAttr {
        qp_state: qp_state::RTR,
        path_mtu: o.mtu,
        dest_qp_num: a.qpn,
        rq_psn: PSN,
        ..attr
    };
    attr.ah = AhAttr { dgid: to.gid, ..AhAttr::default() };
    let mask =
        m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER;
    net.modify(b, &attr, m::STATE | mask).unwrap();
    let attr = QpAttr {
        qp_state: qp_state::RTS,
        sq_psn: PSN,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..attr
    };
    let mask = m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::SQ_PSN | m::MAX_QP_RD_ATOMIC;
    net.modify(b, &attr, m::STATE | mask).unwrap();
}

/// Two connected ends, of which the second checks ports; `is_soft`: it knows that its peer is a
/// soft device.
fn pair_that_checks(is_soft: bool) -> (Net, End, End) {
    let o = Opts::default();
    let mut net = Net::new(2, &o);
    let (a, b) = (net.end(0, &o), net.end(1, &o));
    net.lock(&b).check_ports(true);
    net.connect(&a, &b, &o);
    net.connect(&b, &a, &o);
    if is_soft {
        connect_to_soft(&mut net, &b, &a, &o);
    }
    (net, a, b)
}

#[test]
fn a_peer_of_our_kind_sends_from_its_own_port() {
    for is_soft in [true, false] {
        let (net, _, b) = pair_that_checks(is_soft);
        (0..4).for_each(|n| net.recv(&b, n, &[(0, 100)]));
        let from = |port| PeerAddr { port, ..net.hosts[0].addr };
        let send = |net: &Net, port: u16, psn: u32| {
            let mut p = request(net, 0, &b, psn);
            let (src, dst) = (from(port), net.hosts[1].addr);
            IcrcFlow::from_gids(&src.gid, &dst.gid, src.port, dst.port).append_icrc(0, &mut p);
            net.hosts[1].lock().handle_packets(net.now, &src, p.len(), &p, false);
        };
        let taken = |net: &Net| net.lock(&b).counters().rdma_recvs;
        // Both ways into the engine: alone, and as one of several.
        send(&net, 50_000, PSN);
        if !is_soft {
            assert_eq!(taken(&net), 1, "any port, as NICs have it");
            continue;
        }
        let peer = net.hosts[0].addr;
        assert_eq!((taken(&net), net.lock(&b).counters().rcvd_refused), (0, 1));
        assert_eq!(net.lock(&b).take_refused_port(), Some((peer, 50_000)));
        assert_eq!(net.lock(&b).take_refused_port(), None);
        send(&net, 4791, PSN);
        assert_eq!(taken(&net), 1);
        assert!(net.lock(&b).allow_port(&peer, 50_000));
        send(&net, 50_000, plus(PSN, 1));
        assert_eq!(taken(&net), 2);
        net.lock(&b).forbid_port(&peer, 50_000);
        send(&net, 50_000, plus(PSN, 2));
        assert_eq!((taken(&net), net.lock(&b).counters().rcvd_refused), (2, 2));
        // Four at a time.
        (50_000..50_005).for_each(|port| assert!(net.lock(&b).allow_port(&peer, port)));
        send(&net, 50_000, plus(PSN, 2));
        assert_eq!(taken(&net), 2, "the oldest has made room");
        send(&net, 50_001, plus(PSN, 2));
        assert_eq!(taken(&net), 3);
        assert!(!net.lock(&b).allow_port(&PeerAddr { port: 1, ..peer }, 5), "nobody");
        // CNPs and marks as well.
        assert_eq!(net.lock(&b).qp_cause(b.qp).unwrap().code, CauseCode::None as u32);
    }
}

/// A receiver of IPv4 does not see the identification that the ICRC covers. What it solves for must
/// be one that a soft device gives, if the peer is known to be one.
#[test]
fn damaged_packets_of_a_peer_of_our_kind_are_found() {
    for is_soft in [true, false] {
        let (mut net, _, b) = pair_that_checks(is_soft);
        (0..16).for_each(|n| net.recv(&b, n, &[(0, 100)]));
        let counters = |net: &Net| net.lock(&b).counters();
        // As the last of a burst, its second packet, and beyond any burst.
        let (mut taken, mut bad) = (0, 0);
        for (ident, known) in [(127, true), (1, true), (128, false), (0x8000, false)] {
            let mut p = request(&net, 0, &b, plus(PSN, taken as u32));
            flow(&net, 0, 1).append_icrc(ident, &mut p);
            net.inject(0, 1, &p);
            match known || !is_soft {
                true => taken += 1,
                false => bad += 1,
            }
            let c = counters(&net);
            assert_eq!((c.rdma_recvs, c.rcvd_icrc_err), (taken, bad), "{ident}, is_soft {is_soft}");
        }
        // The right one again, so that nothing else is expected of the next packet.
        let p = request(&net, 0, &b, plus(PSN, taken as u32));
        net.inject(0, 1, &p);
        // Any ICRC, of packets that come singly: one in 2^15 is right for some identification.
        let mut p = request(&net, 0, &b, plus(PSN, FAR));
        let (mut x, tries) = (0x9e37_79b9_7f4a_7c15_u64, 1 << 18);
        for _ in 0..tries {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let at = p.len() - 4;
            p[at..].copy_from_slice(&(x as u32).to_le_bytes());
            net.inject(0, 1, &p);
        }
        let found = counters(&net).rcvd_icrc_err - bad;
        assert_eq!(found == tries, is_soft, "{found} of {tries}");
    }
}

/// A packet as host `from` would send it, from another UDP port of its address.
fn from_port(net: &mut Net, from: usize, port: u16, mut p: Vec<u8>, to: &End) {
    let (src, dst) = (PeerAddr { port, ..net.hosts[from].addr }, net.hosts[to.host].addr);
    let n = p.len() - 4;
    p.truncate(n);
    p.extend_from_slice(&[0; 4]);
    IcrcFlow::from_gids(&src.gid, &dst.gid, src.port, dst.port).append_icrc(0, &mut p);
    let now = net.now;
    net.hosts[to.host].lock().handle_packets(now, &src, p.len(), &p, false);
}

/// While many guess, packets from a port that nobody has asked about are dropped, and reported, so
/// that somebody can ask. The peer's second socket goes on.
#[test]
fn a_besieged_queue_pair_takes_a_new_port_of_its_peer() {
    let (mut net, _a, b) = pair_that_checks(true);
    (0..4).for_each(|n| net.recv(&b, n, &[(0, 64)]));
    let taken = |net: &Net| net.lock(&b).counters().rdma_recvs;
    let p = request(&net, 0, &b, PSN);
    from_port(&mut net, 0, 4791, p, &b);
    assert_eq!(taken(&net), 1, "its own port has advanced the connection");
    besiege(&mut net, 0, &b);
    let (peer, throttled) = (net.hosts[0].addr, net.lock(&b).counters().rcvd_throttled);
    assert!(throttled > 0, "besieged");
    let p = request(&net, 0, &b, plus(PSN, 1));
    from_port(&mut net, 0, 50_000, p.clone(), &b);
    assert_eq!((taken(&net), net.lock(&b).counters().rcvd_throttled), (1, throttled + 1));
    assert_eq!(net.lock(&b).take_refused_port(), Some((peer, 50_000)));
    assert!(net.lock(&b).allow_port(&peer, 50_000));
    from_port(&mut net, 0, 50_000, p, &b);
    assert_eq!(taken(&net), 2);
    // Another port is dropped still, and so is what is far off from this one.
    for (port, psn) in [(50_001, plus(PSN, 2)), (50_000, plus(PSN, FAR))] {
        let p = request(&net, 0, &b, psn);
        from_port(&mut net, 0, port, p, &b);
    }
    assert_eq!((taken(&net), net.lock(&b).counters().rcvd_throttled), (2, throttled + 3));
    let p = request(&net, 0, &b, plus(PSN, 2));
    from_port(&mut net, 0, 4791, p, &b);
    assert_eq!(taken(&net), 3);
}

#[test]
fn the_right_psn_from_another_port_is_not_enough_while_many_are_guessed() {
    let (mut net, a, b) = Net::pair(Opts::default());
    for step in 0..3 {
        net.ok(&a, write(&a, &b, step));
    }
    let right = plus(PSN, 3);
    net.recv(&b, 1, &[(0, 64)]);
    // PSNs in turn, as somebody who sees nothing would try them; the right one is among them.
    for psn in (0..5000).map(|n| plus(right, FAR + n)).chain([right]) {
        let p = request(&net, 0, &b, psn);
        from_port(&mut net, 0, 50_000, p, &b);
        net.now += 1_000;
    }
    let c = net.lock(&b).counters();
    assert!(c.rcvd_throttled > 100, "{c:?}");
    // The peer's packets are taken, from its own port and from one that it changed to before.
    for step in 3..6 {
        net.ok(&a, write(&a, &b, step));
    }
    assert_eq!(net.poll(b.host, b.rcq).len(), 0, "nothing was delivered");
    // The same packet from the peer's own port is taken.
    net.now += 1_000_000_000;
    let p = request(&net, 0, &b, plus(right, 3));
    net.inject(0, 1, &p);
    assert_eq!(net.poll(b.host, b.rcq).len(), 1);
}

/// Few packets are guessed, so no queue pair is besieged; and a NAK has many right PSNs.
#[test]
fn a_nak_from_a_port_that_never_answered_ends_nothing_while_the_peer_lives() {
    let o = Opts { timeout: 14, ..Opts::default() };
    for syndrome in [NAK | 1, REMOTE_ACCESS, NAK | 3] {
        let (mut net, a, b) = Net::pair(o);
        net.ok(&a, write(&a, &b, 0));
        let psn = plus(PSN, 1);
        net.post(&a, write(&a, &b, 64));
        net.send_from(0);
        // Said twice, too.
        for _ in 0..2 {
            let p = answer(&net, 1, &a, psn, syndrome);
            from_port(&mut net, 1, 50_000, p, &a);
            assert_eq!(
                (net.poll(a.host, a.scq).len(), net.state(&a)),
                (0, qp_state::RTS),
                "{syndrome:#x}"
            );
        }
        assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);
        net.ok(&a, write(&a, &b, 0));
        // A peer has failed and answers from another port than before; nothing else comes.
        net.tap = Some(Box::new(|from, _| Fate::drop_if(from == 1)));
        net.post(&a, write(&a, &b, 64));
        net.exchange();
        let (p, start) = (answer(&net, 1, &a, plus(PSN, 3), syndrome), net.now);
        from_port(&mut net, 1, 50_000, p, &a);
        let wc = net.wait(a.host, a.scq, 1);
        assert!(![wc_status::SUCCESS, wc_status::RETRY_EXC_ERR].contains(&wc[0].status), "{wc:?}");
        assert!(net.now - start <= 2 * (4096 << 14), "after one timeout, not after all of them");
    }
    // From its own port it is believed at once.
    let (mut net, a, b) = deaf(o);
    net.tap = None;
    net.ok(&a, write(&a, &b, 0));
    net.post(&a, write(&a, &b, 64));
    net.send_from(0);
    let p = answer(&net, 1, &a, plus(PSN, 1), REMOTE_ACCESS);
    net.inject(1, 0, &p);
    assert_eq!(net.poll(a.host, a.scq)[0].status, wc_status::REM_ACCESS_ERR);
}
