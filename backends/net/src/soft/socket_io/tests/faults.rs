//! Injected faults, packet by packet: what the peer sees of each, and that the transport repairs
//! it.

use super::*;
use crate::inject::FaultSpec;
use crate::soft::{PathChoice, SoftConfig};
use gdrcore_core::counters::Counters;

/// Gives an end faults.
fn inject(e: &mut End, rules: &str) {
    let spec = FaultSpec { rules, seed: 7, launched: None };
    let config = SoftConfig { faults: Some(&spec), path: PathChoice::Udp, ..SoftConfig::default() };
    let mut tap = Tap::open(None, &config, SPACE as u32).unwrap().expect("a tap");
    let (index, _) = e.engine.qp(e.qp).unwrap();
    tap.injector().expect("faults").made(index).unwrap();
    e.port.tap = Some(tap);
}

fn counters(e: &End) -> Counters {
    e.engine.lock().counters()
}

/// A pair whose port loses nothing by itself, the first with faults.
fn faulty(rules: &str) -> (End, End) {
    let (mut a, mut b) = pair(|_| false);
    b.net().loses = |_| false;
    inject(&mut a, rules);
    (a, b)
}

#[test]
fn every_fault_of_packets_that_leave_is_repaired() {
    for (rules, wanted) in [
        ("loss every 9", (0, true)),
        ("duplicate every 9", (0, false)),
        ("reorder 2 every 9", (0, false)),
        ("delay 300us every 9", (0, false)),
        ("slow 20us", (0, false)),
        ("corrupt every 9", (1, true)),
        ("loss rate 3%; corrupt rate 3%; reorder 4 rate 3%; duplicate rate 3%", (1, true)),
        ("loss opcode ACK every 3; loss every 2", (0, true)),
    ] {
        let (mut a, mut b) = faulty(rules);
        let single = exchange(&mut a, &mut b, 100, 200);
        assert_eq!(single, 0, "{rules}: a tap sees packets that leave");
        exchange(&mut a, &mut b, 20, 10_000);
        exchange(&mut b, &mut a, 20, 3_000);
        let (sent, came) = (counters(&a), counters(&b));
        let (damaged, again) = wanted;
        assert_eq!(came.rcvd_icrc_err > 0, damaged > 0, "{rules}: {came:?}");
        assert!(sent.retransmitted_pkts > 0 || !again, "{rules}: {sent:?}");
        let in_order = rules.starts_with("delay") || rules.starts_with("slow");
        assert!(came.out_of_seq_request == 0 || !in_order, "{rules}: {came:?}");
        let end = now_ns() + limit_ms(60) as u64 * 1_000_000;
        while a.port.injector().expect("faults").due().is_some() {
            assert!(now_ns() < end, "{rules}: a packet waits for ever");
            a.round();
            b.round();
        }
    }
}

#[test]
fn a_damaged_packet_is_never_delivered_and_each_one_is_seen() {
    let (mut a, mut b) = faulty("corrupt");
    exchange(&mut a, &mut b, 60, 100);
    // Each passes for the first time once, and is right when it comes again.
    assert_eq!(counters(&b).rcvd_icrc_err, 60);
    // What arrives is damaged the same way.
    let (mut a, mut b) = pair(|_| false);
    inject(&mut b, "corrupt in every 2");
    exchange(&mut a, &mut b, 60, 100);
    assert_eq!(counters(&b).rcvd_icrc_err, 30);
}

#[test]
fn what_arrives_is_lost_doubled_and_late_as_what_leaves() {
    for rules in ["loss in every 9", "duplicate in every 9", "delay 300us in every 9"] {
        let (mut a, mut b) = pair(|_| false);
        inject(&mut b, rules);
        exchange(&mut a, &mut b, 100, 200);
        exchange(&mut a, &mut b, 20, 10_000);
        assert!(rules.starts_with("loss") || counters(&b).rcvd_icrc_err == 0, "{rules}");
        assert!(!rules.starts_with("dupl") || counters(&b).duplicate_request > 0, "{rules}");
        let in_order = counters(&b).out_of_seq_request == 0;
        assert_ne!(in_order, rules.starts_with("loss"), "{rules}");
    }
}

#[test]
fn a_receiver_that_is_not_ready_says_so_once_for_each_message() {
    let (mut a, mut b) = pair(|_| false);
    inject(&mut b, "rnr every 10");
    exchange(&mut a, &mut b, 100, 200);
    assert_eq!(counters(&a).rcvd_rnr_err, 10);
    assert_eq!(counters(&b).send_rnr_err, 10);
}

#[test]
fn marked_packets_are_answered_by_notifications() {
    let (mut a, mut b) = pair(|_| false);
    inject(&mut b, "ecn every 10");
    exchange(&mut a, &mut b, 100, 200);
    assert_eq!(counters(&b).np_ecn_marked, 10);
    assert!((1..=10).contains(&counters(&b).np_cnp_sent));
    assert_eq!(counters(&a).rp_cnp_ignored, counters(&b).np_cnp_sent, "DCQCN is off");
}

#[test]
fn a_partition_ends_the_requests_behind_it() {
    let (mut a, mut b) = faulty("partition from 31");
    exchange(&mut a, &mut b, 30, 100);
    b.post_recv(30, 0, 100);
    a.post_send(30, 0, 100, true);
    let end = now_ns() + limit_ms(60) as u64 * 1_000_000;
    let mut ended = Vec::new();
    while ended.is_empty() {
        assert!(now_ns() < end, "the request does not end");
        ended = a.round();
        assert!(b.round().is_empty(), "it has arrived");
    }
    assert_eq!(ended[0].status, wc_status::RETRY_EXC_ERR);
    assert_eq!(counters(&a).retry_exceeded_err, 1);
}

/// What the port has no room for waits in the injector, and leaves in order.
#[test]
fn a_port_without_room_loses_nothing() {
    let (mut a, mut b) = faulty("duplicate every 50");
    a.net().full = 5;
    exchange(&mut a, &mut b, 100, 9000);
    assert_eq!((a.net().full, a.net().lost), (0, 0));
    assert_eq!(counters(&b).out_of_seq_request, 0);
}

impl End {
    /// Lets what is due at a time leave, and returns how many packets have left.
    fn sent_at(&mut self, now: u64) -> u64 {
        let before = self.net().sent;
        let mut g = self.engine.lock();
        self.port.send(&self.host, &mut g, now);
        drop(g);
        self.net().sent - before
    }
}

#[test]
fn packets_leave_at_the_time_of_their_rule_and_not_before() {
    const MS: u64 = 1_000_000;
    let start = now_ns();
    for (rules, steps) in [
        ("delay 50ms nth 1", [(0, 0), (50 * MS - 1, 0), (50 * MS, 3), (99 * MS, 0)]),
        ("delay 50ms nth 2", [(0, 1), (50 * MS - 1, 0), (50 * MS, 2), (99 * MS, 0)]),
        ("slow 20ms", [(0, 1), (20 * MS - 1, 0), (20 * MS, 1), (40 * MS, 1)]),
        ("delay 50ms; duplicate nth 1", [(0, 0), (50 * MS - 1, 0), (50 * MS, 4), (99 * MS, 0)]),
        ("reorder 3 nth 1", [(0, 2), (10 * MS - 1, 0), (10 * MS, 1), (99 * MS, 0)]),
        ("reorder 2 nth 1; delay 5ms nth 1", [(0, 2), (5 * MS - 1, 0), (5 * MS, 1), (99 * MS, 0)]),
    ] {
        let (mut a, _b) = faulty(rules);
        (0..3).for_each(|id| _ = a.post_send(id, 0, 64, false));
        for (at, wanted) in steps {
            assert_eq!(a.sent_at(start + at), wanted, "{rules}: {at} ns");
        }
    }
}

#[test]
fn as_many_packets_overtake_one_as_the_rule_says() {
    for (rules, wanted) in [
        ("reorder 1 nth 1", &[1, 0, 2, 3, 4][..]),
        ("reorder 3 nth 2", &[0, 2, 3, 4, 1]),
        ("reorder 2 nth 1; duplicate nth 1", &[1, 2, 0, 0, 3, 4]),
    ] {
        let (mut a, _b) = faulty(rules);
        (0..5).for_each(|id| _ = a.post_send(id, 0, 64, false));
        a.sent_at(now_ns());
        let sent = a.net().to.lock().unwrap();
        let psn = |packet: &[u8]| Bth::parse(packet.first_chunk().unwrap()).psn;
        let first = sent.iter().map(|(_, packet)| psn(packet)).min_by_key(|psn| psn.get());
        let first = first.expect("packets");
        let order: Vec<i32> = sent.iter().map(|(_, packet)| psn(packet).diff(first)).collect();
        assert_eq!(order, wanted, "{rules}");
    }
}

/// Packets that were late take the room of the batch; a request that is posted then must not be
/// forgotten.
#[test]
fn a_request_that_finds_the_batch_full_leaves_with_the_next_round() {
    let (mut a, _b) = faulty("delay 1ns to 32");
    let start = now_ns();
    (0..32).for_each(|id| _ = a.post_send(id, 0, 64, false));
    assert_eq!(a.sent_at(start), 0);
    a.post_send(32, 0, 64, true);
    let sent = a.net().sent + (1..20).map(|k| a.sent_at(start + k)).sum::<u64>();
    assert_eq!(sent, 33);
    // A device with faults sends by its rounds alone, which know what still waits for room.
    let (mut a, _b) = faulty("loss nth 1000");
    let before = a.net().sent;
    a.post_send(0, 0, 64, true);
    assert_eq!(a.net().sent, before);
    assert_eq!(a.sent_at(now_ns()), 1);
}

/// What no peer has sent is not counted, and causes no answer.
#[test]
fn packets_that_a_stranger_makes_up_are_not_judged() {
    let (mut a, mut b) = pair(|_| false);
    inject(&mut b, "rnr nth 1; loss in nth 3");
    let mut forged = vec![0; Bth::LEN + 64];
    let sign = Flow::from_gids(&a.host.address.ip, &b.host.address.ip, 4791, 4791);
    for psn in 0..64 {
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(b.qpn), Psn::new(psn));
        bth.emit(forged.first_chunk_mut().unwrap());
        let end = forged.len() - 1;
        sign.append_icrc(0, &mut forged);
        forged[end] ^= 0x55;
        let from = a.host.address;
        a.net().to.lock().unwrap().push_back((from, forged.clone()));
    }
    b.round();
    assert_eq!((counters(&b).rcvd_icrc_err, counters(&b).send_rnr_err), (64, 0));
    exchange(&mut a, &mut b, 20, 200);
    assert_eq!((counters(&a).rcvd_rnr_err, counters(&b).send_rnr_err), (1, 1));
    assert!(counters(&b).out_of_seq_request > 0, "the third one is lost");
}
