//! XRC: what its initiator sends, and what its target does with it.

use gdrcore_core::device::{async_event, MrAttr, SrqAttr};
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Class, Opcode};
use gdrcore_testkit::packet::View;

use crate::operations::{all_three, sizes, MTUS};
use crate::packet_loss::only;
use crate::raw_packet::{answers, Raw};
use crate::util::*;

const NAK_INVALID: u8 = 0x61;

fn xrc() -> Opts {
    Opts { kind: qp_type::XRC_SEND, ..Opts::default() }
}

/// Another SRQ in the domain of `b`, with a PD and a CQ of its own, and its number.
fn another_srq(net: &Net, b: &End, xrcd: Handle) -> (Handle, Handle, Handle, u32) {
    let mut g = net.lock(b);
    let pd = g.pd_alloc().unwrap();
    let cq = g.cq_create(16).unwrap().0;
    let attr = SrqAttr { max_wr: 8, max_sge: 2, srq_limit: 0 };
    let srq = g.srq_create_xrc(net.now, [pd, xrcd, cq], &attr).unwrap().0;
    let number = g.srq_number(srq).unwrap();
    (pd, cq, srq, number)
}

/// Memory of a PD of `b`'s host.
fn reg(net: &Net, b: &End, pd: Handle, buf: &Buffer) -> MrAttr {
    let reg = region(pd, buf.addr(), buf.len() as u64, ALL);
    net.lock(b).mr_reg(&reg).unwrap().1
}

fn post(net: &Net, b: &End, srq: Handle, id: u64, sge: Sge) {
    net.try_recv_sge(b.host, srq, id, sge).unwrap();
}

#[test]
fn send_write_read_of_all_sizes_over_every_way() {
    for way in WAYS {
        for (code, v6) in MTUS.into_iter().zip([false, true, false, true, false]) {
            let o = Opts { mtu: code, bytes: 210_000, way, v6, ..xrc() };
            let (mut net, a, b) = Net::pair(o);
            for len in sizes(code) {
                all_three(&mut net, &a, &b, len);
            }
            net.assert_faultless();
        }
    }
}

#[test]
fn immediate_data_keys_and_atomics() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..xrc() });
        for (op, wc_op) in [
            (wr_opcode::SEND_WITH_IMM, wc_opcode::RECV),
            (wr_opcode::RDMA_WRITE_WITH_IMM, wc_opcode::RECV_RDMA_WITH_IMM),
        ] {
            for len in [0, 8, 5000] {
                net.recv(&b, 4, &[(0, 8192)]);
                net.ok(&a, Wr::new(op).imm(0x0102_0304).local(&a, 0, len).remote(&b, 9000));
                let wc = net.wait(b.host, b.rcq, 1)[0];
                let got = (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.imm_data);
                assert_eq!(got, (4, 0, wc_op, len as u32, 0x0102_0304));
                assert_eq!((wc.qp_num, wc.wc_flags), (b.qpn, wc_flags::WITH_IMM));
            }
        }
        b.buf.write(64, &5u64.to_ne_bytes());
        net.ok(&a, Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).atomic(&b, 64, 3, 0).local(&a, 0, 8));
        net.ok(&a, Wr::new(wr_opcode::ATOMIC_CMP_AND_SWP).atomic(&b, 64, 8, 11).local(&a, 8, 8));
        let words: Vec<u8> = [5u64, 8].iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(a.buf.read(0, 16), words);
        assert_eq!(b.buf.read(64, 8), 11u64.to_ne_bytes());
        net.ok(&a, Wr::new(wr_opcode::ATOMIC_WRITE).local(&a, 0, 8).remote(&b, 64));
        assert_eq!(b.buf.read(64, 8), 5u64.to_ne_bytes());
        net.assert_faultless();
    }
}

#[test]
fn each_request_is_of_the_srq_that_it_names() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..xrc() });
        let (pd, cq, srq, number) = another_srq(&net, &b, b.xrcd);
        let buf = Buffer::new(4096);
        let mr = reg(&net, &b, pd, &buf);
        for round in 0..6u64 {
            let named = round % 2 == 1;
            net.recv(&b, 100 + round, &[(0, 100)]);
            let sge = Sge { addr: mr.iova, length: 100, lkey: mr.lkey };
            post(&net, &b, srq, 200 + round, sge);
            let to = if named { number } else { net.srqn };
            a.buf.write(0, &[round as u8 + 1; 100]);
            net.ok(&a, Wr::new(wr_opcode::SEND).srqn(to).local(&a, 0, 100));
            let (own, other) = if named { (cq, b.rcq) } else { (b.rcq, cq) };
            let wc = net.wait(b.host, own, 1)[0];
            // In the order of each SRQ; what the others have posted is not touched.
            let id = if named { 200 } else { 100 } + round / 2;
            assert_eq!((wc.wr_id, wc.status, wc.qp_num), (id, 0, b.qpn));
            assert!(net.poll(b.host, other).is_empty());
            let placed = if named { buf.read(0, 100) } else { b.buf.read(0, 100) };
            assert_eq!(placed, [round as u8 + 1; 100]);
        }
        // Keys count in the PD of the SRQ that the request names, whatever was named before.
        let write =
            |to| Wr::new(wr_opcode::RDMA_WRITE).srqn(to).local(&a, 0, 100).key(mr.iova, mr.rkey);
        net.ok(&a, write(number));
        net.ok(
            &a,
            Wr::new(wr_opcode::RDMA_READ).srqn(number).local(&a, 0, 8).key(mr.iova, mr.rkey),
        );
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).remote(&b, 0));
        let wc = net.run_one(&a, write(net.srqn));
        assert_eq!(wc.status, wc_status::REM_ACCESS_ERR, "the key is of another PD");
    }
}

#[test]
fn an_answer_is_given_in_the_pd_of_its_srq_whatever_comes_behind_it() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..xrc() });
        let (pd, _, _, number) = another_srq(&net, &b, b.xrcd);
        let buf = Buffer::new(50_000);
        let mr = reg(&net, &b, pd, &buf);
        buf.write(0, &[0x42; 50_000]);
        let read = Wr::new(wr_opcode::RDMA_READ).id(1).srqn(number).key(mr.iova, mr.rkey);
        net.post(&a, read.local(&a, 0, 50_000));
        let write = Wr::new(wr_opcode::RDMA_WRITE).id(2).remote(&b, 0);
        net.post(&a, write.local(&a, 60_000, 100));
        let wc = net.wait(a.host, a.scq, 2);
        assert_eq!((wc[0].status, wc[1].status), (0, 0), "{way:?}");
        assert!(a.buf.read(0, 50_000).iter().all(|&x| x == 0x42));
    }
}

#[test]
fn an_srq_that_is_not_in_the_domain_is_an_invalid_request() {
    let mut tried = 0;
    for op in [wr_opcode::SEND, wr_opcode::RDMA_WRITE, wr_opcode::RDMA_READ] {
        for case in 0..4 {
            let (mut net, a, b) = Net::pair(xrc());
            net.recv(&b, 1, &[(0, 100)]);
            let number = match case {
                0 => 1,
                1 => b.qpn,
                2 => {
                    let domain = net.lock(&b).xrcd_alloc().unwrap();
                    another_srq(&net, &b, domain).3
                }
                _ => {
                    let attr = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
                    let mut g = net.lock(&b);
                    let srq = g.srq_create(0, b.pd, &attr).unwrap().0;
                    g.srq_number(srq).unwrap()
                }
            };
            b.buf.write(0, &[0x77; 100]);
            let naks = net.note(move |from, p| (from == 1).then(|| (p[0], p[12])));
            let wc = net.run_one(&a, Wr::new(op).srqn(number).local(&a, 0, 50).remote(&b, 0));
            assert_eq!(wc.status, wc_status::REM_INV_REQ_ERR, "{op} {case}");
            assert_eq!(naks.borrow()[..], [(Opcode::RC_ACK.of_xrc().0, NAK_INVALID)]);
            assert_eq!(net.state(&b), qp_state::ERR);
            let event = net.lock(&b).take_async_event().unwrap();
            assert_eq!((event.event, event.handle), (async_event::QP_REQ_ERR, b.qp));
            assert_eq!(b.buf.read(0, 100), [0x77; 100]);
            assert!(net.poll(b.host, b.rcq).is_empty(), "no receive was taken");
            tried += 1;
        }
    }
    assert_eq!(tried, 12);
}

#[test]
fn a_message_stays_with_its_srq() {
    for (first, middle) in [
        (Opcode::RC_SEND_FIRST, Opcode::RC_SEND_LAST),
        (Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_LAST),
    ] {
        let (mut net, _, b) = Net::pair(xrc());
        let (_, _, _, other) = another_srq(&net, &b, b.xrcd);
        net.recv(&b, 1, &[(0, 4096)]);
        let own = net.srqn;
        let begin = |n: u32| {
            let raw = Raw::new(first.of_xrc(), &b, 0).bytes(&n.to_be_bytes());
            match first.has_reth() {
                true => raw.reth(b.mr.iova, b.mr.rkey, 1032).payload(1024),
                false => raw.payload(1024),
            }
        };
        let end =
            |n: u32| Raw::new(middle.of_xrc(), &b, 1).asks().bytes(&n.to_be_bytes()).payload(8);
        let ack = Opcode::RC_ACK.of_xrc();
        let said = answers(&mut net, &[begin(own), end(other)]);
        assert_eq!(said, [(ack, 1, Some(NAK_INVALID))], "{first:?}");
    }
}

#[test]
fn an_empty_srq_draws_rnr_naks() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, rnr_timer: 12, ..xrc() });
        let (pd, cq, srq, number) = another_srq(&net, &b, b.xrcd);
        let buf = Buffer::new(64);
        let mr = reg(&net, &b, pd, &buf);
        // The other SRQ's requests are none of this one's.
        post(&net, &b, srq, 9, Sge { addr: mr.iova, length: 64, lkey: mr.lkey });
        net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 8));
        net.settle();
        assert!(net.poll(a.host, a.scq).is_empty());
        net.recv(&b, 3, &[(0, 64)]);
        assert_eq!(net.wait(a.host, a.scq, 1)[0].status, 0);
        assert_eq!(net.wait(b.host, b.rcq, 1)[0].wr_id, 3);
        net.ok(&a, Wr::new(wr_opcode::SEND).srqn(number).local(&a, 0, 8));
        assert_eq!(net.wait(b.host, cq, 1)[0].wr_id, 9);
        assert!(net.lock(&a).qp_counters(a.qp).unwrap().rcvd_rnr_err > 0, "{way:?}");
    }
    let (mut net, a, _) = Net::pair(Opts { rnr: 0, ..xrc() });
    let wc = net.run_one(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 8));
    assert_eq!(wc.status, wc_status::RNR_RETRY_EXC_ERR);
}

#[test]
fn every_request_packet_names_the_srq_and_no_answer_does() {
    let (mut net, a, b) = Net::pair(xrc());
    let number = net.srqn;
    let seen = net.note(move |from, p| {
        let view = View::parse(&p[..p.len() - 4]).unwrap();
        let op = view.opcode();
        assert_eq!((op.class(), op.kind().is_answer()), (Class::Xrc, from == 1), "{op:?}");
        let named = view.xrceth().map(|x| x.srqn.get());
        assert_eq!(named, (from == 0).then_some(number), "{op:?}");
        assert_eq!(p.len(), op.header_len() + view.payload().len() + view.pad().len() + 4);
        Some(op)
    });
    for len in [8, 2048, 3000] {
        all_three(&mut net, &a, &b, len);
    }
    for op in [wr_opcode::SEND_WITH_IMM, wr_opcode::RDMA_WRITE_WITH_IMM] {
        for len in [8, 2048] {
            net.recv(&b, 1, &[(0, 4096)]);
            net.ok(&a, Wr::new(op).imm(1).local(&a, 0, len).remote(&b, 9000));
        }
    }
    net.ok(&a, Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).atomic(&b, 64, 3, 0).local(&a, 0, 8));
    net.ok(&a, Wr::new(wr_opcode::ATOMIC_CMP_AND_SWP).atomic(&b, 64, 8, 11).local(&a, 8, 8));
    // All of RC's but those with a key to invalidate, and two that are only recognised.
    let mut ops: Vec<u8> = seen.borrow().iter().map(|op| op.0).collect();
    ops.sort_unstable();
    ops.dedup();
    assert_eq!(ops, (0xA0..=0xB4).collect::<Vec<u8>>());
}

#[test]
fn whatever_packet_is_lost_all_arrives_once() {
    for lost in 0..24 {
        let (mut net, a, b) = Net::pair(xrc());
        net.tap = Some(Box::new(only(lost)));
        for round in 0..2 {
            all_three(&mut net, &a, &b, 3000 + round);
            b.buf.write(64, &5u64.to_ne_bytes());
            let add = Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD);
            net.ok(&a, add.atomic(&b, 64, 3, 0).local(&a, 0, 8));
            assert_eq!(b.buf.read(64, 8), 8u64.to_ne_bytes(), "packet {lost}");
        }
    }
}

#[test]
fn an_initiator_takes_no_requests_and_a_target_no_answers() {
    // Host 1 is the initiator here.
    let (mut net, a, b) = Net::pair(xrc());
    let number = net.srqn.to_be_bytes();
    let ack = Raw::new(Opcode::RC_ACK.of_xrc(), &b, 0).aeth(0x1f);
    ack.inject(&mut net, 0, 1);
    assert_eq!(net.lock(&b).qp_counters(b.qp).unwrap().rcvd_refused, 1);
    let send = Raw::new(Opcode::RC_SEND_ONLY.of_xrc(), &a, 0).asks().bytes(&number).payload(8);
    send.inject(&mut net, 1, 0);
    net.settle();
    assert_eq!(net.lock(&a).qp_counters(a.qp).unwrap().rcvd_refused, 1);
    // Packets of RC are of another service.
    Raw::new(Opcode::RC_WRITE_ONLY, &b, 0)
        .asks()
        .reth(b.mr.iova, b.mr.rkey, 8)
        .payload(8)
        .inject(&mut net, 0, 1);
    assert_eq!(net.lock(&b).qp_counters(b.qp).unwrap().rcvd_refused, 2);
    assert_eq!((net.state(&a), net.state(&b)), (qp_state::RTS, qp_state::RTS));
}

#[test]
fn a_flush_has_its_feth_behind_the_number_of_the_srq() {
    for (types, want) in [
        (1, (Opcode::RC_READ_RESPONSE_ONLY.of_xrc(), 0, Some(0x1f))),
        (0, (Opcode::RC_ACK.of_xrc(), 0, Some(NAK_INVALID))),
    ] {
        let (mut net, _, b) = Net::pair(xrc());
        let raw = Raw::new(Opcode::RC_FLUSH.of_xrc(), &b, 0).asks().bytes(&net.srqn.to_be_bytes());
        let raw = raw.bytes(&[0, 0, 0, types]).reth(b.mr.iova, b.mr.rkey, 8);
        assert_eq!(answers(&mut net, &[raw]), [want], "types {types}");
    }
}
