//! Peers that are not ready: what leaves after an RNR NAK, and what does not.

use std::ops::RangeInclusive;

use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Bth, Opcode};

use gdrcore_testkit::rng::Rng;

use crate::util::*;

/// Bytes of a packet's payload.
const MTU: usize = 1024;
/// Code of an RNR timer of 1.28 ms, beyond which virtual time must be moved.
const TIMER: u8 = 14;
const TIMER_NS: u64 = 1_280_000;

fn opts(way: Way) -> Opts {
    Opts { way, rnr_timer: TIMER, timeout: 18, ..Opts::default() }
}

fn send(a: &End, packets: usize) -> Wr {
    Wr::new(wr_opcode::SEND).local(a, 0, packets * MTU)
}

/// Packets of requests that an end has sent. It sends no answers, since it is not asked anything.
fn sent(net: &Net, e: &End) -> u64 {
    net.lock(e).qp_counters(e.qp).unwrap().sent_pkts
}

fn again(net: &Net, e: &End) -> u64 {
    net.lock(e).qp_counters(e.qp).unwrap().retransmitted_pkts
}

fn refusals(net: &Net, e: &End) -> u64 {
    net.lock(e).qp_counters(e.qp).unwrap().send_rnr_err
}

/// PSNs and ACK requests of what host 0 sends, as it leaves.
fn watch(net: &mut Net) -> Notes<(Opcode, u32, bool)> {
    net.note(move |from, p| {
        (from == 0).then(|| {
            let bth = Bth::parse(p.first_chunk().unwrap());
            (bth.opcode, bth.psn.get().wrapping_sub(PSN) & 0xff_ffff, bth.ack_req)
        })
    })
}

// rxe rxe_comp.c rnrnak_jiffies
// rxe rxe_resp.c check_resource, RNR
#[test]
fn the_refused_packet_goes_alone_until_it_is_accepted() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(opts(way));
        a.buf.write(0, &[7; 5 * MTU]);
        // 5 packets, and 3 requests behind them.
        net.post(&a, send(&a, 5).id(0));
        (1..4).for_each(|i| net.post(&a, send(&a, 1).id(i)));
        net.settle();
        assert_eq!((sent(&net, &a), refusals(&net, &b)), (8, 1), "{way:?}");
        for round in 1..=6 {
            net.run(TIMER_NS + 10_000);
            assert_eq!((sent(&net, &a), refusals(&net, &b)), (8 + round, 1 + round), "{way:?}");
        }
        // Requests that are posted meanwhile wait as well.
        net.post(&a, send(&a, 1).id(4));
        net.settle();
        assert_eq!(sent(&net, &a), 14, "{way:?}");
        (0..5).for_each(|i| net.recv(&b, i, &[(0, 8 * MTU)]));
        let done = net.wait(a.host, a.scq, 5);
        assert!(
            done.iter().map(|w| (w.wr_id, w.status)).eq((0..5).map(|i| (i, wc_status::SUCCESS))),
            "{way:?}"
        );
        assert!(
            b.buf.read(0, 5 * MTU) == [7; 5 * MTU] && net.wait(b.host, b.rcq, 5).len() == 5,
            "{way:?}"
        );
        assert_eq!((sent(&net, &a), refusals(&net, &b)), (14 + 9, 7), "{way:?}");
    }
}

// rxe rxe_comp.c rnrnak_jiffies
#[test]
fn a_packet_after_an_rnr_nak_asks_for_an_ack_and_names_the_refused_psn() {
    let (mut net, a, b) = Net::pair(opts(Way::Wire));
    let seen = watch(&mut net);
    net.post(&a, send(&a, 3));
    net.post(&a, send(&a, 2));
    net.settle();
    seen.borrow_mut().clear();
    net.run(3 * (TIMER_NS + 10_000));
    assert_eq!(*seen.borrow(), [(Opcode::RC_SEND_FIRST, 0, true); 3]);
    seen.borrow_mut().clear();
    // The peer is ready for one message. One packet of the next one follows, to find out whether
    // there is a receive request for it.
    net.recv(&b, 1, &[(0, 8 * MTU)]);
    net.run(TIMER_NS / 2 * 3);
    let psns: Vec<u32> = seen.borrow().iter().map(|&(_, psn, _)| psn).collect();
    assert_eq!(psns, [0, 1, 2, 3]);
    assert_eq!(seen.borrow()[3], (Opcode::RC_SEND_FIRST, 3, true));
    seen.borrow_mut().clear();
    net.recv(&b, 2, &[(0, 8 * MTU)]);
    net.wait(0, a.scq, 2);
    let psns: Vec<u32> = seen.borrow().iter().map(|&(_, psn, _)| psn).collect();
    assert_eq!(psns, [3, 4]);
}

#[test]
fn a_request_that_is_posted_while_the_only_one_is_refused_waits() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(opts(way));
        // Each of them could leave in one step.
        net.post(&a, send(&a, 1).id(0));
        net.settle();
        net.run(TIMER_NS + 10_000);
        assert_eq!((sent(&net, &a), refusals(&net, &b)), (2, 2), "{way:?}");
        net.post(&a, send(&a, 1).id(1));
        net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).remote(&b, 0).id(2));
        net.settle();
        assert_eq!((sent(&net, &a), refusals(&net, &b)), (2, 2), "{way:?}");
        net.recv(&b, 1, &[(0, MTU)]);
        net.recv(&b, 2, &[(0, MTU)]);
        assert_eq!(net.wait(a.host, a.scq, 3).len(), 3);
        assert_eq!((sent(&net, &a), again(&net, &a)), (5, 2), "{way:?}");
    }
}

#[test]
fn a_peer_that_is_late_for_every_message_costs_one_packet_a_nak() {
    const MESSAGES: u64 = 20;
    const PACKETS: usize = 256;
    for way in WAYS {
        let (mut net, a, b) = Net::pair(opts(way));
        (0..MESSAGES).for_each(|i| net.post(&a, send(&a, PACKETS).id(i)));
        let first = {
            net.settle();
            sent(&net, &a)
        };
        for i in 0..MESSAGES {
            net.run(5_000_000);
            net.recv(&b, i, &[(0, PACKETS * MTU)]);
            assert_eq!(net.wait(b.host, b.rcq, 1)[0].byte_len as usize, PACKETS * MTU);
        }
        let naks = refusals(&net, &b);
        assert_eq!(net.wait(a.host, a.scq, MESSAGES as usize).len() as u64, MESSAGES);
        assert!(naks >= 3 * MESSAGES, "{way:?}: {naks}");
        // The window that was under way at the first of them, and one packet for each.
        let bound = first + naks;
        assert!(
            again(&net, &a) <= bound,
            "{way:?}: {} packets again, {naks} NAKs, {first} first",
            again(&net, &a)
        );
        assert_eq!(sent(&net, &a), MESSAGES * PACKETS as u64 + again(&net, &a), "{way:?}");
    }
}

/// Packets that were sent again, of a hundred that were needed, by a queue of SENDs of 1 MiB.
fn share_again(net: &Net, a: &End, messages: u64) -> f64 {
    let needed = messages << 20 >> 10;
    assert_eq!(sent(net, a), needed + again(net, a));
    100.0 * again(net, a) as f64 / needed as f64
}

#[test]
fn receivers_that_are_late_cost_two_packets_in_a_hundred_at_most() {
    const MESSAGES: u64 = 100;
    // 0.64 ms, the default of gdrc_qp_connect.
    const DEFAULT_TIMER: u8 = 12;
    for way in [Way::Wire, Way::Link] {
        // 5 ms late for each message.
        let o = Opts { rnr_timer: DEFAULT_TIMER, sq: 128, ..opts(way) };
        let (mut net, a, b) = Net::pair(o);
        (0..MESSAGES).for_each(|i| net.post(&a, send(&a, 1024).id(i)));
        for i in 0..MESSAGES {
            net.run(5_000_000);
            net.recv(&b, i, &[(0, 1 << 20)]);
            net.wait(b.host, b.rcq, 1);
        }
        net.wait(a.host, a.scq, MESSAGES as usize);
        let share = share_again(&net, &a, MESSAGES);
        assert!(share <= 2.0, "{way:?}: {share} %");
        // Late by the moment after a message in which the program posts the next receive.
        let (mut net, a, b) = Net::pair(o);
        net.recv(&b, 0, &[(0, 1 << 20)]);
        (0..MESSAGES).for_each(|i| net.post(&a, send(&a, 1024).id(i)));
        for i in 1..=MESSAGES {
            net.wait(b.host, b.rcq, 1);
            net.recv(&b, i, &[(0, 1 << 20)]);
        }
        net.wait(a.host, a.scq, MESSAGES as usize);
        let share = share_again(&net, &a, MESSAGES);
        assert!(share <= 2.0, "{way:?}: {share} % with one receive at a time");
    }
}

/// Packets that are sent again, of a hundred that are needed, to a program that posts some receives
/// at once, takes their messages, and is late by up to a millisecond: one that has no CPU, as on a
/// busy machine.
fn share_of_a_busy_receiver(
    way: Way,
    packets: usize,
    messages: u64,
    batch: RangeInclusive<u64>,
) -> f64 {
    let o = Opts { rnr_timer: 12, sq: 1024, cqe: 1024, ..opts(way) };
    let (mut net, a, b) = Net::pair(o);
    let mut rng = Rng::new(7);
    let (mut posted, mut done, mut received) = (0, 0, 0);
    while received < messages {
        while posted < messages && posted - done < 1024 {
            net.post(&a, send(&a, packets).id(posted));
            posted += 1;
        }
        net.run(rng.below(1_000_000));
        let wide = batch.end() - batch.start() + 1;
        let batch = (batch.start() + rng.below(wide)).min(messages - received);
        (0..batch).for_each(|i| net.recv(&b, i, &[(0, packets * MTU)]));
        net.wait(b.host, b.rcq, batch as usize);
        received += batch;
        done += net.poll(a.host, a.scq).len() as u64;
    }
    net.wait(a.host, a.scq, (messages - done) as usize);
    100.0 * again(&net, &a) as f64 / (messages * packets as u64) as f64
}

#[test]
fn a_receiver_that_is_late_now_and_then_costs_a_part_of_what_it_accepts() {
    for way in [Way::Wire, Way::Link] {
        // Three messages of a window each, at most; and sixty-four of a packet.
        let share = share_of_a_busy_receiver(way, 1024, 100, 1..=3);
        assert!(share <= 2.0, "{way:?}: {share} % of long messages");
        let share = share_of_a_busy_receiver(way, 1, 10_000, 1..=64);
        assert!(share <= 25.0, "{way:?}: {share} % of short messages");
        let share = share_of_a_busy_receiver(way, 1, 10_000, 64..=64);
        assert!(share <= 4.0, "{way:?}: {share} % of short messages in equal batches");
    }
}

#[test]
fn a_peer_that_was_late_once_gets_a_window_again() {
    const WINDOW: u64 = 32;
    for way in WAYS {
        // Of a window behind so many messages that the peer accepts at once, so many leave.
        for (accepted, at_once) in [(2, 2), (4, 3), (50, 9), (2000, WINDOW)] {
            let (mut net, a, b) = Net::pair(Opts { rq: 512, cqe: 512, ..opts(way) });
            net.post(&a, send(&a, 1));
            net.run(TIMER_NS / 2);
            for i in 0..accepted {
                net.recv(&b, i, &[(0, MTU)]);
                if i > 0 {
                    net.post(&a, send(&a, 1));
                }
                net.wait(a.host, a.scq, 1);
                net.wait(b.host, b.rcq, 1);
            }
            let before = sent(&net, &a);
            (0..WINDOW).for_each(|_| net.post(&a, send(&a, 1)));
            net.settle();
            assert_eq!(sent(&net, &a) - before, at_once, "{way:?}: {accepted}");
        }
    }
}

#[test]
fn what_the_first_refusal_has_cost_is_remembered_by_those_that_follow() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(opts(way));
        // More than thirty packets are lost, and then the first of them four times more.
        (0..40).for_each(|_| net.post(&a, send(&a, 1)));
        net.settle();
        assert!(sent(&net, &a) > 30);
        net.run(4 * (TIMER_NS + 10_000));
        // One, and one, two and four at once; eight more, the first of which is refused.
        (0..8).for_each(|i| net.recv(&b, i, &[(0, MTU)]));
        let before = sent(&net, &a);
        net.wait(b.host, b.rcq, 8);
        net.settle();
        assert_eq!(sent(&net, &a) - before, 16, "{way:?}");
    }
}

#[test]
fn a_write_without_immediate_data_ends_the_doubt() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(opts(way));
        net.post(&a, send(&a, 1));
        net.run(TIMER_NS / 2);
        net.recv(&b, 0, &[(0, MTU)]);
        net.wait(a.host, a.scq, 1);
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 64).remote(&b, 0));
        let before = sent(&net, &a);
        (0..4).for_each(|i| net.post(&a, send(&a, 1).id(i)));
        net.settle();
        assert_eq!(sent(&net, &a), before + 4, "{way:?}");
    }
}

// rxe rxe_resp.c check_resource, immediate
#[test]
fn of_a_write_with_immediate_data_only_the_last_packet_is_refused() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(opts(way));
        a.buf.write(0, &[3; 6 * MTU]);
        net.post(
            &a,
            Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM).local(&a, 0, 6 * MTU).remote(&b, 0).id(0),
        );
        net.post(
            &a,
            Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM).local(&a, 0, 4 * MTU).remote(&b, 0).id(1),
        );
        net.settle();
        assert_eq!((sent(&net, &a), refusals(&net, &b)), (10, 1), "{way:?}");
        assert!(
            b.buf.read(0, 5 * MTU) == [3; 5 * MTU],
            "{way:?}: what needs no receive request is placed"
        );
        net.run(2 * (TIMER_NS + 10_000));
        assert_eq!((sent(&net, &a), refusals(&net, &b)), (12, 3), "{way:?}");
        // One more receive request: the second message comes as far as its last packet.
        net.recv(&b, 1, &[]);
        net.run(TIMER_NS / 2 * 3);
        assert_eq!((sent(&net, &a), refusals(&net, &b)), (12 + 1 + 4, 4), "{way:?}");
        net.recv(&b, 2, &[]);
        assert_eq!(net.wait(a.host, a.scq, 2).len(), 2);
        assert_eq!((sent(&net, &a), refusals(&net, &b)), (18, 4), "{way:?}");
    }
}

#[test]
fn a_read_before_the_refused_packet_is_asked_for_again_whole() {
    let (mut net, a, b) = Net::pair(opts(Way::Wire));
    let seen = watch(&mut net);
    let watched = net.tap.take();
    let mut watched = watched.unwrap();
    let mut lost = 0;
    net.tap = Some(Box::new(move |from, p| {
        // The answer of the READ is lost once.
        if from == 1 && Bth::parse(p.first_chunk().unwrap()).opcode != Opcode::RC_ACK && lost < 3 {
            lost += 1;
            return Fate::Drop;
        }
        watched(from, p)
    }));
    b.buf.write(0, &[9; 3 * MTU]);
    net.post(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 8 * MTU, 3 * MTU).remote(&b, 0).id(0));
    net.post(&a, send(&a, 3).id(1));
    net.post(&a, send(&a, 3).id(2));
    net.settle();
    seen.borrow_mut().clear();
    net.run(TIMER_NS + 10_000);
    assert_eq!(
        *seen.borrow(),
        [(Opcode::RC_READ_REQUEST, 0, true), (Opcode::RC_SEND_FIRST, 3, true)]
    );
    assert!(a.buf.read(8 * MTU, 3 * MTU) == [9; 3 * MTU]);
    (0..2).for_each(|i| net.recv(&b, i, &[(4 * MTU, 3 * MTU)]));
    assert_eq!(net.wait(0, a.scq, 3).len(), 3);
}

// rxe rxe_comp.c reset_retry_counters
#[test]
fn the_counter_of_refusals_begins_anew_with_every_packet_that_is_accepted() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { rnr: 3, ..opts(way) });
        (0..4).for_each(|i| net.post(&a, send(&a, 2).id(i)));
        for i in 0..4 {
            net.run(2 * (TIMER_NS + 10_000));
            net.recv(&b, i, &[(0, 2 * MTU)]);
            net.wait(b.host, b.rcq, 1);
        }
        let done = net.wait(a.host, a.scq, 4);
        assert!(done.iter().all(|w| w.status == wc_status::SUCCESS), "{way:?} {done:?}");
        assert!(refusals(&net, &b) >= 8, "{way:?}");
        // And ends all the same.
        let wc = net.run_one(&a, send(&a, 2));
        assert_eq!(wc.status, wc_status::RNR_RETRY_EXC_ERR, "{way:?}");
    }
}

#[test]
fn a_refused_packet_that_is_lost_is_repeated_and_nothing_behind_it() {
    let (mut net, a, b) = Net::pair(opts(Way::Wire));
    net.post(&a, send(&a, 4));
    net.settle();
    let seen = watch(&mut net);
    let mut watched = net.tap.take().unwrap();
    let mut lose = 3;
    net.tap = Some(Box::new(move |from, p| {
        let fate = watched(from, p);
        if from == 0 && lose > 0 {
            lose -= 1;
            return Fate::Drop;
        }
        fate
    }));
    net.recv(&b, 1, &[(0, 4 * MTU)]);
    net.wait(0, a.scq, 1);
    let psns: Vec<u32> = seen.borrow().iter().map(|&(_, psn, _)| psn).collect();
    assert_eq!(psns, [0, 0, 0, 0, 1, 2, 3]);
    // By probes, not by the ACK timer of a second.
    assert_eq!(net.lock(&a).counters().retry_timeouts, 0);
}

#[test]
fn a_peer_that_is_not_ready_lives_and_its_next_silence_begins_anew() {
    let (mut net, a, b) = Net::pair(Opts { retry: 1, timeout: 10, ..opts(Way::Wire) });
    let timeouts = |net: &Net| net.lock(&a).counters().retry_timeouts;
    let until = |net: &mut Net, n: u64| {
        for _ in 0..10_000 {
            if timeouts(net) == n {
                return;
            }
            net.run(100_000);
        }
        panic!("{} timeouts", timeouts(net));
    };
    net.post(&a, send(&a, 1));
    for round in 1..=3 {
        // The one retry that it has is used up.
        net.tap = Some(Box::new(|from, _| Fate::drop_if(from == 0)));
        until(&mut net, round);
        assert_eq!(net.state(&a), qp_state::RTS, "{round}");
        net.tap = None;
        for _ in 0..100 {
            if refusals(&net, &b) == round {
                break;
            }
            net.run(100_000);
        }
        assert_eq!((refusals(&net, &b), timeouts(&net)), (round, round));
    }
    net.recv(&b, 1, &[(0, MTU)]);
    assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);
}
