//! Rules of the standard whose breach shows in no data: what is counted, what is answered, and what
//! must not be answered.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gdrcore_core::device::{async_event, SrqAttr};
use gdrcore_core::receipt::{Receipts, RECEIPTS};
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Bth, Opcode};
use gdrcore_core::Error;

use crate::flush::flush;
use crate::packet_loss::only;
use crate::util::*;

/// Everything that a tap has seen: who sent it, and its bytes.
type Log = Notes<(usize, Vec<u8>)>;

/// Writes down all that passes.
fn log(net: &mut Net) -> Log {
    net.note(|from, p| Some((from, p.to_vec())))
}

/// The MSN of a packet that carries an AETH.
fn msn(packet: &[u8]) -> Option<u32> {
    let brings = [
        Opcode::RC_ACK,
        Opcode::RC_ATOMIC_ACK,
        Opcode::RC_READ_RESPONSE_FIRST,
        Opcode::RC_READ_RESPONSE_LAST,
        Opcode::RC_READ_RESPONSE_ONLY,
    ];
    let has = brings.contains(&Opcode(packet[0]));
    has.then(|| u32::from_be_bytes([0, packet[13], packet[14], packet[15]]))
}

// IBTA C9-148
#[test]
fn every_answer_says_how_many_messages_were_done() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let log = log(&mut net);
    for round in 0..3u32 {
        let requests = [
            Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 5000).remote(&b, 0),
            Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 3000).remote(&b, 0),
            Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, 0, 8).atomic(&b, 0, 1, 0),
            Wr::new(wr_opcode::SEND).local(&a, 0, 2000),
            Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM).remote(&b, 0),
        ];
        let each = requests.len() as u32;
        for (k, w) in requests.into_iter().enumerate() {
            net.recv(&b, 1, &[(10_000, 2000)]);
            log.borrow_mut().clear();
            net.ok(&a, w);
            net.settle();
            let said: Vec<u32> = log
                .borrow()
                .iter()
                .filter(|(from, _)| *from == 1)
                .filter_map(|(_, p)| msn(p))
                .collect();
            let done = round * each + k as u32 + 1;
            assert!(
                !said.is_empty() && said.iter().all(|&m| m == done),
                "{said:?} after {done} messages"
            );
        }
    }
}

// rxe rxe_resp.c check_psn, gap
#[test]
fn what_is_lost_again_is_asked_for_again_at_once() {
    for times in [1, 2, 5] {
        let (mut net, a, b) = Net::pair(Opts::default());
        let mut left = times;
        net.tap = Some(Box::new(move |from, p| {
            let psn = u32::from_be_bytes([0, p[9], p[10], p[11]]);
            if from == 0 && psn == PSN + 1 && left > 0 {
                left -= 1;
                return Fate::Drop;
            }
            Fate::Deliver
        }));
        net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 5000).remote(&b, 0));
        let before = net.now;
        net.settle();
        assert_eq!(net.now, before, "no timer has run");
        assert_eq!(net.poll(a.host, a.scq).len(), 1, "lost {times} times");
        assert_eq!(net.lock(&b).counters().send_nak_err, times, "one NAK for each loss");
    }
}

#[test]
fn a_peer_that_only_asks_again_ends_the_request() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 18, ..Opts::default() });
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 64).remote(&b, 0));
    net.exchange();
    // A sequence NAK for the only packet, again and again, and nothing arrives.
    let mut nak = vec![0x11, 0, 0xff, 0xff, 0];
    nak.extend_from_slice(&a.qpn.to_be_bytes()[1..]);
    nak.push(0);
    nak.extend_from_slice(&PSN.to_be_bytes()[1..]);
    nak.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, 0, 0]);
    sign(&net, 1, 0, &mut nak);
    for n in 0..200 {
        net.inject(1, 0, &nak);
        net.exchange();
        assert!(net.poll(a.host, a.scq).is_empty(), "after {n}");
    }
    net.inject(1, 0, &nak);
    let wc = net.poll(a.host, a.scq);
    assert_eq!((wc.len(), wc[0].status), (1, wc_status::RETRY_EXC_ERR));
    assert_eq!(net.state(&a), qp_state::ERR);
    assert_eq!(net.lock(&a).counters().retry_exceeded_err, 1);
}

// rxe rxe_req.c check_init_depth
#[test]
fn as_many_reads_are_under_way_as_the_peer_serves() {
    for depth in [1u8, 2, 3] {
        let (mut net, a, b) = Net::pair(Opts { rd_atomic: depth, ..Opts::default() });
        let under_way = Rc::new(Cell::new((0i32, 0i32)));
        let count = under_way.clone();
        net.tap = Some(Box::new(move |_, p| {
            let (mut now, mut most) = count.get();
            match Opcode(p[0]) {
                Opcode::RC_READ_REQUEST => now += 1,
                Opcode::RC_READ_RESPONSE_LAST | Opcode::RC_READ_RESPONSE_ONLY => now -= 1,
                _ => {}
            }
            most = most.max(now);
            count.set((now, most));
            Fate::Deliver
        }));
        b.buf.write(0, &pattern(4, 1 << 20));
        // READs are requested in pieces of 64 KiB: some of these end with a piece, others do not.
        for i in 0..40u64 {
            let len = [1 << 16, 2 << 16, 3 << 16, 100, (1 << 16) + 1][i as usize % 5];
            net.post(&a, Wr::new(wr_opcode::RDMA_READ).id(i).local(&a, 0, len).remote(&b, 0));
        }
        let wc = net.wait(a.host, a.scq, 40);
        assert!(wc.iter().all(|w| w.status == wc_status::SUCCESS), "{wc:?}");
        assert_eq!(under_way.get(), (0, i32::from(depth)));
    }
}

// rxe rxe_req.c check_init_depth
#[test]
fn a_read_that_has_ended_makes_room_for_one() {
    // Each is one request, for 64 packets.
    let (mut net, a, b) = Net::pair(Opts { rd_atomic: 2, ..Opts::default() });
    let read = |a: &End, b: &End| Wr::new(wr_opcode::RDMA_READ).local(a, 0, 1 << 16).remote(b, 0);
    // The window grows until it does not limit READs any more.
    (0..60).for_each(|_| net.post(&a, read(&a, &b)));
    net.wait(a.host, a.scq, 60);
    let begin = PSN + 60 * 64;
    let asked = Rc::new(RefCell::new(std::collections::BTreeSet::new()));
    let tell = asked.clone();
    net.tap = Some(Box::new(move |from, p| {
        let bth = Bth::parse(p.first_chunk().unwrap());
        let ahead = bth.psn.get().wrapping_sub(begin) & 0xff_ffff;
        if bth.opcode == Opcode::RC_READ_REQUEST {
            tell.borrow_mut().insert(ahead);
        }
        // Only the first one is answered.
        Fate::drop_if(from == 1 && ahead >= 64)
    }));
    (0..5).for_each(|_| net.post(&a, read(&a, &b)));
    net.settle();
    assert_eq!(net.poll(a.host, a.scq).len(), 1);
    assert!(asked.borrow().iter().eq(&[0, 64, 128]), "{asked:?}");
}

#[test]
fn a_lost_end_costs_a_probe_and_not_the_timeout() {
    let write = |a: &End, b: &End| Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 3000).remote(b, 0);
    let read = |a: &End, b: &End| Wr::new(wr_opcode::RDMA_READ).local(a, 0, 3000).remote(b, 0);
    let add = |a: &End, b: &End| {
        Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(a, 0, 8).atomic(b, 0, 1, 0)
    };
    let store = |a: &End, b: &End| {
        a.buf.write_u64(0, 1);
        Wr::new(wr_opcode::ATOMIC_WRITE).local(a, 0, 8).remote(b, 0)
    };
    let lost = [
        Opcode::RC_WRITE_LAST,
        Opcode::RC_ACK,
        Opcode::RC_READ_REQUEST,
        Opcode::RC_READ_RESPONSE_LAST,
        Opcode::RC_FETCH_ADD,
        Opcode::RC_ATOMIC_ACK,
        Opcode::RC_ATOMIC_WRITE,
        Opcode::RC_READ_RESPONSE_ONLY,
        Opcode::RC_FLUSH,
    ];
    // A probe after 1 ms, and the next after 2 ms more.
    for (lost, times) in lost.into_iter().flat_map(|op| [(op, 1), (op, 2)]) {
        // Code 18 is a second.
        let (mut net, a, b) = Net::pair(Opts { timeout: 18, retry: 1, ..Opts::default() });
        let mut left = times;
        net.tap = Some(Box::new(move |_, p| {
            // The missing part of a READ's answer comes as an answer of its own.
            let rest = lost == Opcode::RC_READ_RESPONSE_LAST
                && Opcode(p[0]) == Opcode::RC_READ_RESPONSE_ONLY;
            if (Opcode(p[0]) == lost || rest) && left > 0 {
                left -= 1;
                return Fate::Drop;
            }
            Fate::Deliver
        }));
        let before = net.now;
        let request = match lost {
            Opcode::RC_WRITE_LAST | Opcode::RC_ACK => write(&a, &b),
            Opcode::RC_READ_REQUEST | Opcode::RC_READ_RESPONSE_LAST => read(&a, &b),
            Opcode::RC_ATOMIC_WRITE | Opcode::RC_READ_RESPONSE_ONLY => store(&a, &b),
            Opcode::RC_FLUSH => flush(&b, 0, 8),
            _ => add(&a, &b),
        };
        let is_atomic =
            matches!(request.raw.opcode, wr_opcode::ATOMIC_FETCH_AND_ADD | wr_opcode::ATOMIC_WRITE);
        net.ok(&a, request);
        let took = net.now - before;
        let probes = if times == 1 { 1_000_000..2_000_000 } else { 3_000_000..4_000_000 };
        assert!(probes.contains(&took), "{lost:?} lost {times} times: {took} ns");
        assert_eq!(net.lock(&a).counters().retry_timeouts, 0, "{lost:?}: a probe is no retry");
        assert_eq!(b.buf.read_u64(0), u64::from(is_atomic), "executed once");
    }
}

// rxe rxe_resp.c check_rkey, length
#[test]
fn a_write_that_is_not_as_long_as_it_said_is_refused() {
    // Bytes that are sent, and the length in the RETH.
    for (len, said) in [
        (2000, 1500),
        (2000, 2001),
        (2000, 2500),
        (2000, 900),
        (100, 99),
        (100, 200),
        (100, 5000),
        (0, 1),
    ] {
        let (mut net, a, b) = Net::pair(Opts::default());
        let (src, dst) = (net.hosts[0].addr, net.hosts[1].addr);
        let flow = gdrcore_core::wire::IcrcFlow::from_gids(&src.gid, &dst.gid, src.port, dst.port);
        net.tap = Some(Box::new(move |from, p| {
            if from == 0 && [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_ONLY].contains(&Opcode(p[0]))
            {
                p[24..28].copy_from_slice(&u32::to_be_bytes(said));
                flow.append_icrc(0, p);
            }
            Fate::Deliver
        }));
        let wc = net.run_one(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, len).remote(&b, 0));
        assert_eq!(wc.status, wc_status::REM_INV_REQ_ERR, "{len} bytes that said {said}");
        assert_eq!(net.state(&b), qp_state::ERR);
    }
}

// rxe rxe_resp.c duplicate_request, READ
// rxe rxe_resp.c duplicate_request, atomic
#[test]
fn a_duplicate_is_answered_only_if_it_is_the_same_request() {
    for opcode in [wr_opcode::ATOMIC_FETCH_AND_ADD, wr_opcode::RDMA_READ] {
        let (mut net, a, b) = Net::pair(Opts::default());
        let log = log(&mut net);
        let w = match opcode {
            wr_opcode::RDMA_READ => Wr::new(opcode).local(&a, 0, 8).remote(&b, 0),
            _ => Wr::new(opcode).local(&a, 0, 8).atomic(&b, 0, 1, 0),
        };
        net.ok(&a, w);
        let request =
            log.borrow().iter().find(|(from, _)| *from == 0).expect("a request").1.clone();
        net.tap = None;
        let (_, other) = net.reg(&b, &b.buf, ALL);
        // Answers that the peer sends to a copy of the request with one field changed.
        let answers = |net: &mut Net, change: &dyn Fn(&mut [u8])| {
            let mut copy = request.clone();
            change(&mut copy);
            sign(net, 0, 1, &mut copy);
            let before = net.lock(&b).counters().sent_pkts;
            net.inject(0, 1, &copy);
            net.settle();
            net.lock(&b).counters().sent_pkts - before
        };
        assert_eq!(answers(&mut net, &|_| {}), 1, "the request itself");
        assert_eq!(
            answers(&mut net, &|p| p[20..24].copy_from_slice(&other.rkey.to_be_bytes())),
            0,
            "another key"
        );
        assert_eq!(answers(&mut net, &|p| p[19] ^= 8), 0, "another address");
        if opcode == wr_opcode::ATOMIC_FETCH_AND_ADD {
            assert_eq!(b.buf.read_u64(0), 1, "executed once");
        }
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).remote(&b, 0));
    }
}

// rxe rxe_resp.c rxe_recheck_mr
#[test]
fn an_old_duplicate_of_a_read_through_a_closed_window_harms_nobody() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let key = net.window(&b, 4096, access::REMOTE_READ);
    let log = log(&mut net);
    net.ok(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 100).key(b.mr.iova, key));
    let ask = log
        .borrow()
        .iter()
        .find(|(_, p)| Opcode(p[0]) == Opcode::RC_READ_REQUEST)
        .cloned()
        .unwrap()
        .1;
    net.ok(&b, Wr::new(wr_opcode::LOCAL_INV).imm(key));
    net.inject(a.host, b.host, &ask);
    net.settle();
    assert_eq!(net.lock(&b).counters().duplicate_request, 1, "it came");
    assert_eq!(net.state(&b), qp_state::RTS);
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).remote(&b, 0));
    // A new request through it is refused as ever.
    let wc = net.run_one(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 100).key(b.mr.iova, key));
    assert_eq!(wc.status, wc_status::REM_ACCESS_ERR);
}

// rxe rxe_resp.c invalidate_rkey
#[test]
fn a_window_closes_with_the_send_that_invalidates_it() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let key = net.window(&b, 4096, access::REMOTE_WRITE);
    net.recv(&b, 1, &[(8192, 100)]);
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).key(b.mr.iova, key));
    b.buf.write(0, &[0xaa; 100]);
    net.ok(&a, Wr::new(wr_opcode::SEND_WITH_INV).imm(key).local(&a, 0, 10));
    let wc = net.run_one(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).key(b.mr.iova, key));
    assert_eq!(wc.status, wc_status::REM_ACCESS_ERR);
    assert!(b.buf.read(0, 100) == [0xaa; 100]);
}

#[test]
fn windows_of_a_qp_close_when_it_is_reset() {
    let o = Opts::default();
    let (mut net, a, b) = Net::pair(o);
    let key = net.window(&b, 4096, access::REMOTE_WRITE);
    for e in [&a, &b] {
        net.to_state(e, qp_state::RESET).unwrap();
    }
    net.connect(&a, &b, &o);
    net.connect(&b, &a, &o);
    let wc = net.run_one(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).key(b.mr.iova, key));
    assert_eq!(wc.status, wc_status::REM_ACCESS_ERR);
}

// rxe rxe_resp.c get_srq_wqe
#[test]
fn an_srq_limit_is_told_at_its_value_and_once() {
    let (mut net, a, b) = Net::pair(Opts { srq: true, ..Opts::default() });
    for i in 0..6 {
        net.recv(&b, i, &[(0, 100)]);
    }
    net.lock(&b).srq_modify(b.srq, 3).unwrap();
    for left in (0..6).rev() {
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 10));
        let event = net.lock(&b).take_async_event();
        let told = event.is_some_and(|e| e.event == async_event::SRQ_LIMIT_REACHED);
        assert_eq!(told, left == 2, "{left} left");
    }
    assert_eq!(net.lock(&b).srq_query(b.srq).unwrap().srq_limit, 0, "it is off after it was told");
}

// rxe rxe_srq.c rxe_srq_chk_attr
#[test]
fn a_resized_srq_keeps_what_is_posted_in_its_order() {
    let (mut net, a, b) = Net::pair(Opts { srq: true, rq: 8, sge: 3, ..Opts::default() });
    let post = |net: &Net, id: u64| {
        // Three pieces: the list behind a request moves with it.
        let at = |k: usize| (id as usize * 300 + k * 100, 100);
        net.try_recv(&b, id, &[at(0), at(2), at(1)])
    };
    let mut id = 0..;
    let mut next = 0;
    let mut waiting = 0u32;
    for (max_wr, granted) in [(64, Ok(64)), (5, Ok(8)), (3, Err(Error::Invalid)), (100, Ok(128))] {
        // Part of it is consumed, so that the ring's ends stand somewhere inside.
        while waiting < 5 {
            post(&net, id.next().unwrap()).unwrap();
            waiting += 1;
        }
        assert_eq!(net.lock(&b).srq_resize(b.srq, max_wr, None), granted, "{max_wr}");
        for _ in 0..3 {
            let bytes: Vec<u8> = (0..300).map(|k| (next as usize * 7 + k) as u8).collect();
            a.buf.write(0, &bytes);
            net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 300));
            let wc = net.wait(b.host, b.rcq, 1);
            assert_eq!((wc[0].wr_id, wc[0].status, wc[0].byte_len), (next, 0, 300));
            let from = next as usize * 300;
            assert_eq!(b.buf.read(from, 100), bytes[..100]);
            assert_eq!(b.buf.read(from + 200, 100), bytes[100..200]);
            assert_eq!(b.buf.read(from + 100, 100), bytes[200..]);
            next += 1;
            waiting -= 1;
        }
    }
    // As many as it has room for now, and no more.
    assert_eq!(net.lock(&b).srq_resize(b.srq, 4, None), Ok(4));
    while waiting < 4 {
        post(&net, id.next().unwrap()).unwrap();
        waiting += 1;
    }
    assert_eq!(post(&net, 99), Err(Error::Again));
    // Never below its limit, old or new; and neither is changed by a call that is refused.
    net.lock(&b).srq_modify(b.srq, 3).unwrap();
    assert_eq!(net.lock(&b).srq_resize(b.srq, 2, None), Err(Error::Invalid));
    assert_eq!(net.lock(&b).srq_resize(b.srq, 8, Some(9)), Err(Error::Invalid));
    assert_eq!(net.lock(&b).srq_resize(b.srq, 5, Some(6)), Err(Error::Invalid), "8 are given");
    assert_eq!(net.lock(&b).srq_resize(b.srq, 2, Some(1)), Err(Error::Invalid), "four wait");
    let fewer = net.lock(&b).srq_resize(b.srq, 3, Some(1));
    assert_eq!(fewer, Err(Error::Invalid), "four wait, and would have places");
    let attr = net.lock(&b).srq_query(b.srq).unwrap();
    assert_eq!((attr.max_wr, attr.srq_limit, attr.max_sge), (4, 3, 3));
    assert_eq!(net.lock(&b).srq_resize(b.srq, 8, Some(6)), Ok(8));
    assert_eq!(net.lock(&b).srq_query(b.srq).unwrap().srq_limit, 6);
    for size in [0, (1 << 16) + 1] {
        assert_eq!(net.lock(&b).srq_resize(b.srq, size, None), Err(Error::Invalid), "{size}");
    }
}

#[test]
fn no_two_srqs_and_queue_pairs_have_one_number() {
    let (net, a, b) = Net::pair(Opts { srq: true, ..Opts::default() });
    let mut g = net.lock(&b);
    let mut numbers = vec![b.qpn, g.srq_number(b.srq).unwrap()];
    for _ in 0..3 {
        let attr = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
        let srq = g.srq_create(0, b.pd, &attr).unwrap().0;
        numbers.push(g.srq_number(srq).unwrap());
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 5);
    assert_eq!(err(g.srq_number(a.qp)), Error::StaleHandle);
}

// rxe rxe_resp.c check_psn, UC
#[test]
fn the_rest_of_a_uc_message_with_a_gap_is_not_placed() {
    for lost in [0, 1, 3] {
        let (mut net, a, b) = Net::pair(Opts { kind: qp_type::UC, ..Opts::default() });
        a.buf.write(0, &[0x11; 5000]);
        b.buf.write(0, &[0xaa; 5000]);
        net.tap = Some(Box::new(only(lost)));
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 5000).remote(&b, 0));
        let placed = b.buf.read(0, 5000);
        let before = lost as usize * 1024;
        assert!(
            placed[..before].iter().all(|&x| x == 0x11)
                && placed[before..].iter().all(|&x| x == 0xaa),
            "{lost}"
        );
        // The next message is whole again.
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 5000).remote(&b, 0));
        assert!(b.buf.read(0, 5000) == [0x11; 5000]);
    }
}

// rxe rxe_resp.c check_psn, UC
#[test]
fn a_receive_of_an_srq_whose_uc_message_was_lost_serves_the_next_one() {
    for lost in 0..5 {
        let (mut net, a, b) = Net::pair(Opts { kind: qp_type::UC, srq: true, ..Opts::default() });
        net.recv(&b, 1, &[(10_000, 5000)]);
        net.recv(&b, 2, &[(20_000, 5000)]);
        net.tap = Some(Box::new(only(lost)));
        for fill in [0x11, 0x22, 0x33] {
            a.buf.write(0, &[fill; 5000]);
            net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 5000));
        }
        let wc = net.wait(b.host, b.rcq, 2);
        let said: Vec<_> = wc.iter().map(|w| (w.wr_id, w.status, w.byte_len)).collect();
        assert_eq!(said, [(1, wc_status::SUCCESS, 5000), (2, wc_status::SUCCESS, 5000)], "{lost}");
        assert!(
            b.buf.read(10_000, 5000) == [0x22; 5000] && b.buf.read(20_000, 5000) == [0x33; 5000],
            "{lost}"
        );
    }
}

// rxe rxe_req.c check_init_depth
#[test]
fn requests_with_an_answer_under_way_stay_below_their_bound() {
    let (mut net, a, b) = Net::pair(Opts { rd_atomic: 2, ..Opts::default() });
    let open = Rc::new(RefCell::new((0i32, 0i32)));
    let count = open.clone();
    net.tap = Some(Box::new(move |from, p| {
        let (now, most) = &mut *count.borrow_mut();
        let op = Opcode(p[0]);
        let first = [
            Opcode::RC_READ_REQUEST,
            Opcode::RC_FETCH_ADD,
            Opcode::RC_ATOMIC_WRITE,
            Opcode::RC_FLUSH,
        ];
        if from == 0 && first.contains(&op) {
            *now += 1;
            *most = (*most).max(*now);
        }
        let last =
            [Opcode::RC_READ_RESPONSE_LAST, Opcode::RC_READ_RESPONSE_ONLY, Opcode::RC_ATOMIC_ACK];
        if from == 1 && last.contains(&op) {
            *now -= 1;
        }
        Fate::Deliver
    }));
    for i in 0..12u64 {
        let w = match i % 4 {
            0 => Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, 0, 8).atomic(&b, 0, 1, 0),
            1 => flush(&b, 0, 8),
            2 => Wr::new(wr_opcode::ATOMIC_WRITE).local(&a, 0, 8).remote(&b, 0),
            _ => Wr::new(wr_opcode::RDMA_READ).local(&a, 4096, 3000).remote(&b, 4096),
        };
        net.post(&a, w.id(i));
    }
    let wc = net.wait(a.host, a.scq, 12);
    assert!(wc.iter().all(|w| w.status == wc_status::SUCCESS));
    assert_eq!(*open.borrow(), (0, 2), "under way at the end, and at most");
}

// rxe rxe_resp.c acknowledge
#[test]
fn an_ack_travels_with_the_reply_and_alone_after_20_us() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let mut buf = vec![0; 65_000];
    for hop in 0..20 {
        let (x, y) = if hop % 2 == 0 { (&a, &b) } else { (&b, &a) };
        net.recv(y, hop, &[(0, 64)]);
        net.post(x, Wr::new(wr_opcode::SEND).local(x, 0, 64).id(hop));
        let burst = net.lock(x).poll_transmit(net.now, &mut buf).expect("a SEND");
        let opcodes: Vec<Opcode> =
            buf[..burst.len].chunks(burst.seg).map(|p| Opcode(p[0])).collect();
        // The owed ACK follows the request as the shorter last segment of the same burst.
        let expected: &[Opcode] =
            if hop < 3 { &[Opcode::RC_SEND_ONLY] } else { &[Opcode::RC_SEND_ONLY, Opcode::RC_ACK] };
        assert_eq!(opcodes, expected, "hop {hop}");
        assert_eq!(net.lock(x).poll_transmit(net.now, &mut buf), None, "hop {hop}: one burst");
        // Longer than the deadline altogether: the timer of an ACK that has left does not count for
        // the next one.
        net.now += 4_000;
        let src = net.hosts[x.host].addr;
        net.lock(y).handle_packets(net.now, &src, burst.seg, &buf[..burst.len], false);
        let ack = net.lock(y).poll_transmit(net.now, &mut buf);
        // Who has not replied yet may end next.
        assert_eq!(ack.is_some(), hop < 2, "hop {hop}: the ACK waits for the reply");
        if let Some(ack) = ack {
            let src = net.hosts[y.host].addr;
            net.lock(x).handle_packets(net.now, &src, ack.seg, &buf[..ack.len], false);
        }
    }
    net.now += 20_000;
    let burst = net.lock(&a).poll_transmit(net.now, &mut buf).expect("nobody replied");
    assert_eq!((Opcode(buf[0]), burst.len), (Opcode::RC_ACK, 20));
    // It waited in vain, so the next one does not wait.
    let src = net.hosts[a.host].addr;
    net.lock(&b).handle_packets(net.now, &src, burst.seg, &buf[..burst.len], false);
    net.recv(&a, 20, &[(0, 64)]);
    net.post(&b, Wr::new(wr_opcode::SEND).local(&b, 0, 64).id(20));
    let burst = net.lock(&b).poll_transmit(net.now, &mut buf).expect("a SEND");
    let src = net.hosts[b.host].addr;
    net.lock(&a).handle_packets(net.now, &src, burst.seg, &buf[..burst.len], false);
    let burst = net.lock(&a).poll_transmit(net.now, &mut buf).expect("an ACK, at once");
    assert_eq!((Opcode(buf[0]), burst.len), (Opcode::RC_ACK, 20));
}

/// Sends a message of `from` to `to`, which answers with nothing but what leaves at once. Returns
/// whether an ACK did.
fn hop(net: &mut Net, from: &End, to: &End, id: u64) -> bool {
    let mut buf = vec![0; 65_000];
    net.recv(to, id, &[(0, 64)]);
    net.post(from, Wr::new(wr_opcode::SEND).local(from, 0, 64).id(id));
    let burst = net.lock(from).poll_transmit(net.now, &mut buf).expect("a SEND");
    let src = net.hosts[from.host].addr;
    net.lock(to).handle_packets(net.now, &src, burst.seg, &buf[..burst.len], false);
    let Some(ack) = net.lock(to).poll_transmit(net.now, &mut buf) else { return false };
    let src = net.hosts[to.host].addr;
    net.lock(from).handle_packets(net.now, &src, ack.seg, &buf[..ack.len], false);
    true
}

// rxe rxe_resp.c acknowledge
#[test]
fn an_ack_waits_for_no_ninth_packet() {
    let (mut net, a, b) = Net::pair(Opts::default());
    // It has replied, so its ACKs may wait.
    assert!(hop(&mut net, &a, &b, 0) && hop(&mut net, &b, &a, 1));
    let left: Vec<bool> = (2..10).map(|id| hop(&mut net, &a, &b, id)).collect();
    assert_eq!(left, [[false; 7].as_slice(), &[true]].concat());
}

// rxe rxe_resp.c acknowledge
#[test]
fn an_ack_that_waits_at_the_port_leaves_a_receipt() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 8, retry: 2, ..Opts::default() });
    let receipts: &'static Receipts = Box::leak(Box::default());
    net.lock(&b).leave_receipts(receipts);
    net.lock(&a).set_witness();
    // Who has not answered yet sends the ACK at once.
    assert!(hop(&mut net, &a, &b, 0) && receipts.find(b.qpn).is_none());
    assert!(hop(&mut net, &b, &a, 1));
    assert!(!hop(&mut net, &a, &b, 2), "the ACK waits");
    let psn = receipts.find(b.qpn).expect("a receipt");
    // The process of b is killed. The next message was never taken.
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 64).id(3));
    while !net.lock(&a).has_suspects() {
        net.run(100_000);
    }
    let (now, suspect) = (net.now, net.lock(&a).next_suspect().expect("one"));
    assert_eq!(suspect.dest_qpn, Some(b.qpn));
    net.lock(&a).take_receipt(now, suspect.qi, psn);
    net.lock(&a).testify(now, suspect.qi, None);
    let end = |wc: &Wc| (wc.wr_id, wc.status);
    let wcs = net.wait(a.host, a.scq, 2);
    assert_eq!(wcs.iter().map(end).collect::<Vec<_>>(), [(0, 0), (2, wc_status::SUCCESS)]);
    // What the receipt does not cover has its retries, and fails without an answer.
    loop {
        net.run(100_000);
        let (now, suspect) = (net.now, net.lock(&a).next_suspect());
        if let Some(suspect) = suspect {
            net.lock(&a).take_receipt(now, suspect.qi, psn);
            net.lock(&a).testify(now, suspect.qi, None);
            break;
        }
    }
    let wcs = net.wait(a.host, a.scq, 1);
    assert_eq!(wcs.iter().map(end).collect::<Vec<_>>(), [(3, wc_status::RETRY_EXC_ERR)]);
    // It says nothing about the next connection, which may have the same PSNs.
    net.tap = None;
    net.to_state(&b, qp_state::RESET).unwrap();
    net.connect(&b, &a, &Opts::default());
    assert_eq!(receipts.find(b.qpn), None);
}

#[test]
fn an_ack_whose_receipt_is_replaced_leaves_at_once() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let receipts: &'static Receipts = Box::leak(Box::default());
    net.lock(&b).leave_receipts(receipts);
    // Another pair, the receipts of whose second queue pair have the same place.
    let c = net.end(0, &Opts::default());
    let mut d = net.end(1, &Opts::default());
    let mut init = QpInit { pd: d.pd, send_cq: d.scq, recv_cq: d.rcq, ..QpInit::default() };
    init.cap =
        QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, ..init.cap };
    (init.qp_type, init.sq_sig_all) = (qp_type::RC, 1);
    while (d.qpn ^ b.qpn) as usize % RECEIPTS != 0 {
        net.lock(&d).qp_destroy(net.now, d.qp).unwrap();
        (d.qp, d.qpn, _) = net.lock(&b).qp_create(net.now, &init).unwrap();
    }
    net.connect(&c, &d, &Opts::default());
    net.connect(&d, &c, &Opts::default());
    for (x, y) in [(&a, &b), (&c, &d)] {
        hop(&mut net, x, y, 0);
        hop(&mut net, y, x, 1);
    }
    assert!(!hop(&mut net, &a, &b, 2), "the ACK waits");
    assert!(hop(&mut net, &c, &d, 2), "an ACK leaves");
    assert!(receipts.find(b.qpn).is_none() && receipts.find(d.qpn).is_some());
    let wcs = net.wait(a.host, a.scq, 2);
    assert_eq!(wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 2]);
    net.run(1_000_000);
    assert_eq!(receipts.find(d.qpn), None, "its ACK has left alone");
}

/// Posts and rings the doorbell as a device does: true, it is to be heard at once.
fn rings(net: &Net, e: &End) -> bool {
    let mut w = Wr::new(wr_opcode::SEND).local(e, 0, 64);
    w.raw.sg_list = w.sges.as_ptr();
    w.raw.num_sge = w.sges.len() as i32;
    let mut bad = std::ptr::null();
    // SAFETY: the request and its list live through the call.
    let (posted, outcome) =
        unsafe { net.hosts[e.host].engine.post_unmarked(e.qp, &w.raw, &mut bad).unwrap() };
    assert!(outcome.is_ok() && posted.count == 1);
    net.lock(e).wake(index(e.qp))
}

/// Posts ([`rings`]); what is to be heard at once goes to `to`. Returns the number of packets.
fn sent_at_once(net: &Net, from: &End, to: &End) -> usize {
    if !rings(net, from) {
        return 0;
    }
    let mut buf = vec![0; 65_000];
    let burst = net.lock(from).poll_transmit(net.now, &mut buf).expect("what was posted");
    let src = net.hosts[from.host].addr;
    net.lock(to).handle_packets(net.now, &src, burst.seg, &buf[..burst.len], false);
    burst.len.div_ceil(burst.seg)
}

#[test]
fn requests_wait_for_company_only_while_many_are_under_way() {
    for kind in [qp_type::RC, qp_type::UC] {
        let (mut net, a, b) = Net::pair(Opts { kind, sq: 64, rq: 64, cqe: 256, ..Opts::default() });
        for round in 0..3 {
            for i in 0..40 {
                net.recv(&b, i, &[(0, 64)]);
            }
            // Requests that the doorbell does not send at once leave with later ones.
            let mut bursts = Vec::new();
            for _ in 0..40 {
                match sent_at_once(&net, &a, &b) {
                    0 => {}
                    packets => bursts.push(packets),
                }
            }
            if kind == qp_type::RC {
                // Eight leave one by one, then sixteen at a time; the rest waits for a poll. Who
                // has posted many at a time does so again: then one is enough.
                let alone = if round == 0 { 8 } else { 1 };
                let expected = [vec![1; alone], vec![16; 2]].concat();
                assert_eq!(bursts, expected, "round {round}");
            } else {
                assert_eq!(
                    bursts.iter().sum::<usize>(),
                    40,
                    "nothing is ever under way: {bursts:?}"
                );
            }
            net.settle();
            assert_eq!(net.poll(b.host, b.rcq).len(), 40, "round {round}");
            assert_eq!(net.poll(a.host, a.scq).len(), 40, "round {round}");
        }
    }
}

#[test]
fn a_program_that_no_longer_posts_many_at_a_time_waits_for_none_of_its_requests() {
    let (mut net, a, b) = Net::pair(Opts { sq: 64, rq: 64, cqe: 256, ..Opts::default() });
    let mut exchange = |requests: u64| {
        for i in 0..requests {
            net.recv(&b, i, &[(0, 64)]);
        }
        let packets = (0..requests).map(|_| sent_at_once(&net, &a, &b)).collect::<Vec<_>>();
        net.settle();
        assert_eq!(net.poll(b.host, b.rcq).len() as u64, requests);
        assert_eq!(net.poll(a.host, a.scq).len() as u64, requests);
        packets
    };
    exchange(40);
    // Two batches: one request leaves at once, two by a poll.
    assert_eq!(exchange(3), [1, 0, 0], "bulk");
    for _ in 0..6 {
        assert_eq!(exchange(1), [1]);
    }
    assert_eq!(exchange(8), [1; 8], "after eight short batches");
}

#[test]
fn a_long_message_leaves_in_long_bursts_and_waits_for_no_timer() {
    let (mut net, a, b) = Net::pair(Opts { mtu: mtu::MTU_4096, ..Opts::default() });
    let len = 1 << 20;
    // The window has grown by the second one.
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, len).remote(&b, 0));
    let log = log(&mut net);
    let begun = net.now;
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, len).remote(&b, 0));
    net.settle();
    // No timer had to open the window again.
    assert_eq!((net.now, net.poll(a.host, a.scq).len()), (begun, 1));
    let log = log.borrow();
    let packets = log.iter().filter(|(from, _)| *from == a.host).count();
    let asked = log.iter().filter(|(from, p)| *from == a.host && p[8] & 0x80 != 0).count();
    // 256 packets, at most 15 in a burst: some 19 bursts. One asks for an ACK after each quarter of
    // the window, not each.
    assert_eq!(packets, 256);
    assert!((4..=13).contains(&asked), "{asked} packets ask for an ACK");
}

#[test]
fn an_entry_that_is_reserved_is_taken_back_in_a_round_of_its_own() {
    let (mut net, a, b) = Net::pair(Opts { one_cq: true, cqe: 2, mtu: 1, ..Opts::default() });
    let (capacity, mut buf) =
        (net.lock(&b).shared().cqs[index(b.rcq)].ring.capacity(), vec![0; 20_000]);
    // One message has begun at b, and its entry is reserved.
    net.recv(&b, 7, &[(0, 4096)]);
    net.post(&a, Wr::new(wr_opcode::SEND).id(1).local(&a, 0, 1000));
    let burst = net.lock(&a).poll_transmit(net.now, &mut buf).expect("a burst");
    assert!(burst.seg < burst.len, "several packets");
    net.inject(a.host, b.host, &buf[..burst.seg]);
    // Enough requests of b end that the last one finds only the reserved entry.
    for id in 0..u64::from(capacity) {
        net.post(&b, Wr::new(wr_opcode::RDMA_WRITE).id(100 + id).local(&b, 0, 8).remote(&a, 0));
    }
    net.send_from(b.host);
    net.lock(&a).flush_acks();
    net.send_from(a.host);
    let ring = |net: &Net| net.lock(&b).shared().cqs[index(b.scq)].ring.len();
    assert_eq!(ring(&net), capacity - 1, "the last completion waits");
    assert!(net.lock(&b).has_work(), "who sleeps now would not hear of it");
    net.settle();
    assert_eq!(ring(&net), capacity);
    let ids: Vec<u64> = net.poll(b.host, b.scq).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (100..100 + u64::from(capacity)).collect::<Vec<_>>());
    // The message goes on, and its last packet finds an entry again.
    let done = net.wait(b.host, b.rcq, 1);
    assert_eq!((done[0].wr_id, done[0].status), (7, wc_status::SUCCESS));
}

// The rest of a message of UC may never come.
#[test]
fn a_uc_message_that_is_not_whole_yet_keeps_no_entry_of_its_cq() {
    let o = Opts { kind: qp_type::UC, one_cq: true, cqe: 2, mtu: 1, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    let ring = |net: &Net| {
        let g = net.lock(&b);
        let ring = &g.shared().cqs[index(b.scq)].ring;
        (ring.len(), ring.capacity())
    };
    let (_, capacity) = ring(&net);
    let mut buf = vec![0; 20_000];
    net.recv(&b, 7, &[(0, 4096)]);
    net.post(&a, Wr::new(wr_opcode::SEND).id(1).local(&a, 0, 1000));
    let burst = net.lock(&a).poll_transmit(net.now, &mut buf).expect("a burst");
    net.inject(a.host, b.host, &buf[..burst.seg]);
    for id in 0..u64::from(capacity) {
        net.post(&b, Wr::new(wr_opcode::RDMA_WRITE).id(100 + id).local(&b, 0, 8).remote(&a, 0));
    }
    net.send_from(b.host);
    assert_eq!(ring(&net), (capacity, capacity));
}

#[test]
fn each_packet_for_a_routers_ring_has_identification_zero() {
    for unnumbered in [false, true] {
        let (net, a, b) = Net::pair(Opts::default());
        if unnumbered {
            net.lock(&a).set_idents_zero();
        }
        net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 4000));
        let mut buf = vec![0; 65_536];
        let burst = net.lock(&a).poll_transmit(net.now, &mut buf).expect("a burst");
        let packets: Vec<&[u8]> = buf[..burst.len].chunks(burst.seg).collect();
        assert_eq!(packets.len(), 4);
        let flow = flow(&net, a.host, b.host);
        for (k, packet) in packets.into_iter().enumerate() {
            let (body, icrc) = packet.split_last_chunk::<4>().expect("an ICRC");
            // The kernel numbers the segments of one send; nobody numbers what a ring carries.
            let ident = if unnumbered { 0 } else { k as u16 };
            assert_eq!(flow.icrc(ident, body).to_le_bytes(), *icrc, "packet {k}, {unnumbered}");
        }
    }
}
