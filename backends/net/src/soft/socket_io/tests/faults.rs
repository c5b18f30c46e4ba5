//! Injected faults, packet by packet: what the peer sees of each, and that the transport repairs
//! it.

use super::*;
use crate::inject::FaultSpec;
use crate::soft::{PathChoice, SoftConfig};
use gdrcore_core::counters::Counters;
use gdrcore_core::device::async_event;
use gdrcore_core::verbs::types::qp_state;

/// Gives an end faults.
fn inject(e: &mut End, rules: &str) {
    let spec = FaultSpec { rules, seed: 7, launched: None };
    let config = SoftConfig { faults: Some(&spec), path: PathChoice::Udp, ..SoftConfig::default() };
    let mut tap = Tap::open(None, &config, SPACE as u32).unwrap().expect("a tap");
    let (index, _) = e.engine.qp(e.qp).unwrap();
    tap.injector().expect("faults").note_made(index).unwrap();
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
    let sign = IcrcFlow::from_gids(&a.host.address.ip, &b.host.address.ip, 4791, 4791);
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

impl End {
    /// The asynchronous events that the program has not taken.
    fn events(&self) -> Vec<u32> {
        let mut g = self.engine.lock();
        std::iter::from_fn(|| g.take_async_event()).map(|e| e.event).collect()
    }

    fn state(&self) -> u32 {
        self.engine.lock().qp_query(self.qp).unwrap().0.qp_state
    }

    fn cause(&self) -> CauseCode {
        CauseCode::from_u32(self.engine.lock().qp_cause(self.qp).unwrap().code).unwrap()
    }
}

/// Rounds of both ends until each has had so many completions: number and status.
fn completions(a: &mut End, b: &mut End, wanted: [usize; 2]) -> [Vec<(u64, u32)>; 2] {
    let end = now_ns() + limit_ms(60) as u64 * 1_000_000;
    let mut all = [Vec::new(), Vec::new()];
    while all[0].len() < wanted[0] || all[1].len() < wanted[1] {
        assert!(now_ns() < end, "{all:?}");
        for (k, e) in [&mut *a, &mut *b].into_iter().enumerate() {
            all[k].extend(e.round().iter().map(|wc| (wc.wr_id, wc.status)));
        }
    }
    all
}

/// Posts five messages from `a` to `b`, whose receive requests have other numbers.
fn five(a: &mut End, b: &mut End) {
    (0..5).for_each(|i| b.post_recv(10 + i, 0, 4096));
    (0..5).for_each(|i| _ = a.post_send(i, 0, 3000, false));
}

#[test]
fn a_request_ends_with_the_status_of_its_rule_and_the_rest_flushes() {
    const OK: u32 = wc_status::SUCCESS;
    const FLUSHED: u32 = wc_status::WR_FLUSH_ERR;
    for (rule, status) in [
        ("completion RETRY_EXC_ERR nth 3", wc_status::RETRY_EXC_ERR),
        ("completion REM_ACCESS_ERR opcode SEND_FIRST from 3", wc_status::REM_ACCESS_ERR),
    ] {
        let (mut a, mut b) = faulty(rule);
        five(&mut a, &mut b);
        let [sent, came] = completions(&mut a, &mut b, [5, 2]);
        assert_eq!(sent, [(0, OK), (1, OK), (2, status), (3, FLUSHED), (4, FLUSHED)], "{rule}");
        assert_eq!(came, [(10, OK), (11, OK)], "{rule}: the rest has not left");
        assert_eq!((a.state(), a.cause()), (qp_state::ERR, CauseCode::Injected));
        assert!(a.events().is_empty(), "the completion tells of it");
    }
    let (mut a, mut b) = pair(|_| false);
    inject(&mut b, "completion LOC_PROT_ERR in nth 2");
    five(&mut a, &mut b);
    let [sent, came] = completions(&mut a, &mut b, [5, 5]);
    let wanted = [(0, OK), (1, wc_status::REM_OP_ERR), (2, FLUSHED), (3, FLUSHED), (4, FLUSHED)];
    assert_eq!(sent, wanted);
    let wanted =
        [(10, OK), (11, wc_status::LOC_PROT_ERR), (12, FLUSHED), (13, FLUSHED), (14, FLUSHED)];
    assert_eq!(came, wanted);
    assert!(b.events().is_empty() && b.state() == qp_state::ERR);
}

#[test]
fn an_event_comes_once_with_the_state_that_it_tells_of() {
    for (name, event, status) in [
        ("QP_FATAL", async_event::QP_FATAL, wc_status::REM_OP_ERR),
        ("QP_REQ_ERR", async_event::QP_REQ_ERR, wc_status::REM_INV_REQ_ERR),
        ("QP_ACCESS_ERR", async_event::QP_ACCESS_ERR, wc_status::REM_ACCESS_ERR),
    ] {
        let (mut a, mut b) = pair(|_| false);
        inject(&mut b, &format!("event {name} in after 2"));
        five(&mut a, &mut b);
        let [sent, came] = completions(&mut a, &mut b, [5, 5]);
        assert!(sent.iter().any(|(_, s)| *s == status), "{name}: {sent:?}");
        assert_eq!(came[4].1, wc_status::WR_FLUSH_ERR);
        assert_eq!((b.events(), b.state()), (vec![event], qp_state::ERR), "{name}");
        assert_eq!(b.cause(), CauseCode::Injected);
    }
    for (name, event) in [
        ("PATH_MIG", async_event::PATH_MIG),
        ("COMM_EST", async_event::COMM_EST),
        ("QP_LAST_WQE_REACHED", async_event::QP_LAST_WQE_REACHED),
        ("GID_CHANGE", async_event::GID_CHANGE),
        ("CLIENT_REREGISTER", async_event::CLIENT_REREGISTER),
    ] {
        let (mut a, mut b) = faulty(&format!("event {name} after 2"));
        exchange(&mut a, &mut b, 5, 100);
        assert_eq!((a.events(), a.state()), (vec![event], qp_state::RTS), "{name}");
    }
    // A queue pair that the device has not made has no events.
    let (mut a, mut b) = faulty("event QP_FATAL at 1ns qp 2; event SRQ_ERR after 1");
    exchange(&mut a, &mut b, 5, 100);
    assert!(a.events().is_empty());
}

#[test]
fn a_cq_that_has_failed_takes_no_completion_and_its_queue_pairs_fail() {
    let (mut a, mut b) = faulty("event CQ_ERR after 3");
    five(&mut a, &mut b);
    let end = now_ns() + limit_ms(60) as u64 * 1_000_000;
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(now_ns() < end, "no event");
        a.round();
        b.round();
        events = a.events();
    }
    assert_eq!((events, a.state()), (vec![async_event::CQ_ERR], qp_state::ERR));
    for _ in 0..100 {
        assert!(a.round().is_empty(), "it takes nothing any more");
        b.round();
    }
    assert!(a.events().is_empty());
    a.post_send(9, 0, 64, false);
    assert!(a.round().is_empty());
    let mut g = a.engine.lock();
    g.qp_destroy(now_ns(), a.qp).unwrap();
    g.cq_destroy(a.cq).unwrap();
}

#[test]
fn nothing_passes_a_port_that_is_down() {
    let (mut a, mut b) = faulty("event PORT_ERR after 2");
    five(&mut a, &mut b);
    let [sent, came] = completions(&mut a, &mut b, [5, 0]);
    assert_eq!(sent[0].1, wc_status::RETRY_EXC_ERR, "not even its ACKs: {sent:?}");
    assert!(came.len() == 2 && a.port.injector().is_some_and(|i| i.is_down()), "{came:?}");
    assert_eq!(a.events(), [async_event::PORT_ERR]);
    let (mut a, mut b) = faulty("event PORT_ERR at 1ns; event PORT_ACTIVE at 40ms");
    exchange(&mut a, &mut b, 5, 100);
    assert!(!a.port.injector().is_some_and(|i| i.is_down()));
    assert_eq!(a.events(), [async_event::PORT_ERR, async_event::PORT_ACTIVE]);
}

/// Neither in a moment nor when the port is up again.
#[test]
fn what_waits_in_a_port_that_goes_down_is_lost() {
    const MS: u64 = 1_000_000;
    for (end, wanted) in [("", 3), ("; event PORT_ERR at 10ms; event PORT_ACTIVE at 20ms", 0)] {
        let start = now_ns();
        let (mut a, _b) = faulty(&format!("delay 60s{end}"));
        (0..3).for_each(|id| _ = a.post_send(id, 0, 64, false));
        assert_eq!(a.sent_at(start), 0);
        // The rules count from the opening, which was later than `start`.
        let later = now_ns() + 100 * MS;
        assert_eq!(a.sent_at(later), 0);
        assert!(!a.port.injector().is_some_and(|i| i.is_down()), "{end}");
        assert_eq!(a.sent_at(later + 60_000 * MS), wanted, "{end}");
    }
}

#[test]
fn a_device_that_is_removed_stays_away() {
    const MS: u64 = 1_000_000;
    let (mut a, _b) = faulty("event DEVICE_FATAL at 1ns; event PORT_ACTIVE at 2ns");
    a.sent_at(now_ns() + MS);
    assert_eq!(a.events(), [async_event::DEVICE_FATAL]);
    assert!(a.port.injector().is_some_and(|i| i.is_down()));
}

#[test]
fn a_device_that_is_removed_ends_its_queue_pairs() {
    let (mut a, mut b) = faulty("event DEVICE_FATAL after 2");
    five(&mut a, &mut b);
    let [sent, _] = completions(&mut a, &mut b, [5, 0]);
    assert_eq!(sent[4], (4, wc_status::WR_FLUSH_ERR));
    assert_eq!((a.events(), a.state()), (vec![async_event::DEVICE_FATAL], qp_state::ERR));
}
