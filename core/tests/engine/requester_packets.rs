//! The requester, packet by packet: what it sends, and what each answer means to it.

use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Bth, Opcode, Psn};
use gdrcore_core::Error;

use crate::raw_packet::Raw;
use crate::util::*;

/// Bytes of a packet's payload.
const MTU: usize = 1024;
const NAK_PSN: u8 = 0x60;

fn write(a: &End, b: &End) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 64).remote(b, 0)
}

/// Ends that hear nothing of each other, and `n` WRITEs of one packet that the first has sent.
fn unanswered(n: u64) -> (Net, End, End) {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    (0..n).for_each(|id| net.post(&a, write(&a, &b).id(id)));
    net.exchange();
    (net, a, b)
}

/// An ACK or NAK of the peer.
fn answer(net: &mut Net, a: &End, ahead: u32, syndrome: u8) {
    Raw::new(Opcode::RC_ACK, a, ahead).aeth(syndrome).inject(net, 1, 0);
}

/// What host 0 sends: headers, and bytes behind the opcode's own.
fn watch(net: &mut Net) -> Notes<(Bth, usize)> {
    net.note(move |from, p| {
        (from == 0).then(|| {
            let bth = Bth::parse(p.first_chunk().unwrap());
            (bth, p.len() - bth.opcode.header_len() - 4)
        })
    })
}

// rxe rxe_hdr.h bth_pad
// rxe rxe_req.c next_opcode_rc
// rxe rxe_req.c init_req_packet
#[test]
fn a_message_is_cut_into_packets_of_the_path_mtu_and_its_last_one_asks_for_an_ack() {
    use Opcode as O;
    let (mut net, a, b) = Net::pair(Opts::default());
    let log = watch(&mut net);
    let mut psn = 0;
    for (len, want) in [
        (0, &[O::RC_SEND_ONLY][..]),
        (1, &[O::RC_SEND_ONLY]),
        (MTU, &[O::RC_SEND_ONLY]),
        (MTU + 1, &[O::RC_SEND_FIRST, O::RC_SEND_LAST]),
        (3 * MTU - 2, &[O::RC_SEND_FIRST, O::RC_SEND_MIDDLE, O::RC_SEND_LAST]),
    ] {
        log.borrow_mut().clear();
        net.recv(&b, 1, &[(0, 8 * MTU)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, len));
        let sent = log.borrow();
        assert!(sent.iter().map(|(bth, _)| bth.opcode).eq(want.iter().copied()), "{sent:?}");
        for (i, (bth, bytes)) in sent.iter().enumerate() {
            let last = i + 1 == want.len();
            let rest = len - i * MTU;
            assert_eq!(bth.ack_req, last, "{len}");
            assert_eq!(bth.psn, Psn::new(PSN).add(psn), "{len}");
            assert_eq!(*bytes, rest.min(MTU).next_multiple_of(4), "{len}");
            assert_eq!(usize::from(bth.pad), rest.min(MTU).wrapping_neg() & 3, "{len}");
            psn += 1;
        }
    }
}

// rxe rxe_req.c update_wqe_psn
#[test]
fn a_read_takes_as_many_psns_as_its_answer_has_packets() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let log = watch(&mut net);
    let mut want = Vec::new();
    let mut next = 0;
    for (len, psns) in [(0, 1), (1, 1), (MTU, 1), (MTU + 1, 2), (5 * MTU, 5)] {
        let read = Wr::new(wr_opcode::RDMA_READ).remote(&b, 0);
        net.ok(&a, if len == 0 { read } else { read.local(&a, 0, len) });
        want.push((Opcode::RC_READ_REQUEST, next));
        next += psns;
    }
    net.ok(&a, write(&a, &b));
    want.push((Opcode::RC_WRITE_ONLY, next));
    let ahead = |bth: &Bth| bth.psn.diff(Psn::new(PSN)) as u32;
    let got: Vec<_> = log.borrow().iter().map(|(bth, _)| (bth.opcode, ahead(bth))).collect();
    assert_eq!(got, want);
}

// IBTA 9.7.5.1.2
#[test]
fn an_ack_acknowledges_all_requests_up_to_its_psn() {
    let (mut net, a, _b) = unanswered(4);
    answer(&mut net, &a, 2, 0x1f);
    let done: Vec<_> = net.poll(0, a.scq).iter().map(|w| (w.wr_id, w.status)).collect();
    assert_eq!(done, [(0, 0), (1, 0), (2, 0)]);
    answer(&mut net, &a, 3, 0x1f);
    assert_eq!(net.poll(0, a.scq).len(), 1);
}

// IBTA 9.7.7.2, taken
#[test]
fn an_ack_with_any_credits_acknowledges() {
    // The only request that is under way ends by another path than several do.
    for (credits, n) in (0..=0x1f).flat_map(|credits| [(credits, 1), (credits, 3)]) {
        let (mut net, a, _b) = unanswered(n);
        answer(&mut net, &a, n as u32 - 1, credits);
        let done = net.poll(0, a.scq).iter().filter(|w| w.status == wc_status::SUCCESS).count();
        assert_eq!(done, n as usize, "{credits}");
    }
}

// rxe rxe_comp.c check_ack, sequence
#[test]
fn a_sequence_nak_acknowledges_what_is_before_it_and_the_rest_is_sent_again() {
    let (mut net, a, b) = unanswered(4);
    net.tap = None;
    let log = watch(&mut net);
    answer(&mut net, &a, 2, NAK_PSN);
    let done: Vec<_> = net.poll(0, a.scq).iter().map(|w| w.wr_id).collect();
    assert_eq!(done, [0, 1], "what is before it has arrived");
    net.exchange();
    let ahead = |bth: &Bth| bth.psn.diff(Psn::new(PSN)) as u32;
    let again: Vec<_> = log.borrow().iter().map(|(bth, _)| ahead(bth)).collect();
    assert_eq!(again, [2, 3]);
    assert_eq!(net.lock(&a).counters().rcvd_seq_err, 1);
    drop(b);
}

// rxe rxe_comp.c check_ack, NAK
#[test]
fn each_nak_ends_the_request_with_its_status() {
    for (nak, status) in [
        (0x61, wc_status::REM_INV_REQ_ERR),
        (0x62, wc_status::REM_ACCESS_ERR),
        (0x63, wc_status::REM_OP_ERR),
    ] {
        let (mut net, a, _b) = unanswered(3);
        answer(&mut net, &a, 1, nak);
        let wc = net.poll(0, a.scq);
        let got: Vec<_> = wc.iter().map(|w| (w.wr_id, w.status)).collect();
        assert_eq!(got, [(0, 0), (1, status), (2, wc_status::WR_FLUSH_ERR)], "{nak:#x}");
        assert_eq!(net.state(&a), qp_state::ERR);
    }
}

// IBTA 10.2.5
#[test]
fn a_q_key_with_its_top_bit_is_the_queue_pairs_own() {
    let (mut net, a, b) = Net::pair(Opts { kind: qp_type::UD, ..Opts::default() });
    let ah = net.ah(&a, &b);
    for qkey in [0x8000_0000, 0xffff_ffff] {
        net.recv(&b, 1, &[(0, 100)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 8).ud(ah, b.qpn, qkey));
        assert_eq!(net.wait(b.host, b.rcq, 1).len(), 1, "{qkey:#x}");
    }
    assert_eq!(net.lock(&b).counters().rcvd_refused, 0);
}

// IBTA C10-97.2.1
// rxe rxe_verbs.c rxe_post_send
#[test]
fn receives_are_taken_from_init_on_and_sends_from_rts_on() {
    use qp_attr_mask as m;
    let o = Opts::default();
    let mut net = Net::new(2, &o);
    let (a, b) = (net.end(0, &o), net.end(1, &o));
    assert_eq!(err(net.try_recv(&a, 1, &[(0, 8)])), Error::Invalid);
    assert_eq!(err(net.try_post(&a, write(&a, &b))), Error::Invalid);
    let mut attr = QpAttr { qp_state: qp_state::INIT, port_num: 1, ..QpAttr::default() };
    net.modify(&a, &attr, m::STATE | m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS).unwrap();
    net.recv(&a, 1, &[(0, 8)]);
    assert_eq!(err(net.try_post(&a, write(&a, &b))), Error::Invalid);
    attr = QpAttr {
        qp_state: qp_state::RTR,
        path_mtu: mtu::MTU_1024,
        dest_qp_num: b.qpn,
        ah: AhAttr { dgid: net.hosts[1].addr.gid, ..AhAttr::default() },
        ..attr
    };
    let mask = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
    net.modify(&a, &attr, m::STATE | mask | m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER).unwrap();
    net.recv(&a, 2, &[(0, 8)]);
    assert_eq!(err(net.try_post(&a, write(&a, &b))), Error::Invalid);
}

// rxe rxe_qp.c rxe_qp_reset
#[test]
fn reset_discards_what_is_queued_without_completions() {
    let (mut net, a, _b) = unanswered(3);
    (0..3).for_each(|id| net.recv(&a, id, &[(0, 8)]));
    net.to_state(&a, qp_state::RESET).unwrap();
    net.settle();
    assert!(net.poll(0, a.scq).is_empty() && net.poll(0, a.rcq).is_empty());
}

// IBTA C11-17
#[test]
fn a_completion_queue_is_not_destroyed_under_its_queue_pairs() {
    let (net, a, _b) = Net::pair(Opts::default());
    for cq in [a.scq, a.rcq] {
        assert_eq!(err(net.lock(&a).cq_destroy(cq)), Error::Busy);
    }
    net.lock(&a).qp_destroy(net.now, a.qp).unwrap();
    for cq in [a.scq, a.rcq] {
        net.lock(&a).cq_destroy(cq).unwrap();
    }
}

// rxe rxe_comp.c check_ack, READ
#[test]
fn a_response_whose_packets_stand_elsewhere_is_a_bad_response() {
    use Opcode as O;
    let (first, middle) = (O::RC_READ_RESPONSE_FIRST, O::RC_READ_RESPONSE_MIDDLE);
    let (last, only) = (O::RC_READ_RESPONSE_LAST, O::RC_READ_RESPONSE_ONLY);
    let right: [&[Opcode]; 5] = [
        &[only],
        &[first, last],
        &[first, middle, middle, last],
        // As where the packets behind the second one were lost, and asked for again.
        &[first, middle, first, last],
        &[first, middle, middle, only],
    ];
    let wrong: [&[Opcode]; 9] = [
        &[first],
        &[last],
        &[middle],
        &[middle, last],
        &[last, last],
        &[only, last],
        &[first, last, last],
        &[first, only, last],
        &[first, middle, middle],
    ];
    let answered = |ops: &[Opcode]| {
        let (mut net, a, b) = Net::pair(Opts::default());
        let len = ops.len() * MTU;
        net.tap = Some(Box::new(|_, _| Fate::Drop));
        net.post(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, len).remote(&b, 0));
        net.exchange();
        for (op, ahead) in ops.iter().zip(0..) {
            let packet = Raw::new(*op, &a, ahead);
            let packet = if op.has_aeth() { packet.aeth(0x1f) } else { packet };
            packet.payload(MTU).inject(&mut net, 1, 0);
        }
        let done = net.poll(a.host, a.scq);
        done.iter().map(|wc| wc.status).collect::<Vec<_>>()
    };
    for ops in right {
        assert_eq!(answered(ops), [wc_status::SUCCESS], "{ops:?}");
    }
    for ops in wrong {
        assert_eq!(answered(ops), [wc_status::BAD_RESP_ERR], "{ops:?}");
    }
}
