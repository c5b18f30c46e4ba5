//! A request that is posted alone, which has a way of its own, leaves in its queue what the same
//! request leaves at the head of a list.

use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;

use crate::util::*;

/// What waits in a send queue: the slots as they are, from the one of an index on.
fn sent(net: &Net, e: &End, from: u32) -> Vec<String> {
    let g = net.lock(e);
    let sq = g.shared().sq(index(e.qp), &g.transport.common.key);
    (from..sq.end())
        .map(|i| format!("{:?} {:?}", sq.at(i).header(), &sq.at(i).tail()[..32]))
        .collect()
}

fn received(net: &Net, e: &End, from: u32) -> Vec<String> {
    let g = net.lock(e);
    let rq = g.shared().rq(index(e.qp), &g.transport.common.key);
    (from..rq.end())
        .map(|i| format!("{:?} {:?}", rq.at(i).header(), &rq.at(i).tail()[..16]))
        .collect()
}

/// Posts a request, alone or with one behind it that is refused. What became of it.
fn post_send(net: &Net, e: &End, wr: &mut SendWr, alone: bool) -> Result<(), Error> {
    let refused = Wr::new(77).raw;
    wr.next = if alone { core::ptr::null() } else { &raw const refused };
    let mut bad = core::ptr::null();
    // SAFETY: the requests and their lists live through the call.
    let (posted, outcome) =
        unsafe { net.hosts[e.host].engine.post_unmarked(e.qp, wr, &mut bad).unwrap() };
    assert_eq!(posted.count == 0, bad == &raw const *wr, "who is to blame");
    if posted.count == 0 {
        outcome
    } else {
        Ok(())
    }
}

fn post_recv(net: &Net, e: &End, wr: &mut RecvWr, alone: bool) -> Result<(), Error> {
    let refused =
        RecvWr { wr_id: 0, next: core::ptr::null(), sg_list: core::ptr::null(), num_sge: -1 };
    wr.next = if alone { core::ptr::null() } else { &raw const refused };
    let mut bad = core::ptr::null();
    // SAFETY: as above.
    let outcome = unsafe { net.hosts[e.host].engine.post_recv(e.qp, wr, &mut bad) };
    if bad == &raw const *wr {
        outcome
    } else {
        Ok(())
    }
}

#[test]
fn a_request_alone_is_posted_as_in_a_list() {
    let mut rng = Rng(7);
    let mut ok = 0;
    for round in 0..60 {
        let kind = [qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD][rng.below(4) as usize];
        let o = Opts { kind, sq: 16, rq: 16, sig_all: rng.below(2) == 0, ..Opts::default() };
        let (net, a, b) = Net::pair(o);
        if rng.below(8) == 0 {
            for e in [&a, &b] {
                net.to_state(e, qp_state::ERR).unwrap();
            }
        }
        let source = pattern(round, 256);
        let (mut sends, mut recvs) = (0, 0);
        for step in 0..40 {
            let sges = [0, 1].map(|i| Sge {
                addr: source.as_ptr() as u64 + i * 64,
                length: [8, 8, 0, 1, 24, 64, 200, u32::MAX][rng.below(8) as usize],
                lkey: 0x1234 + i as u32,
            });
            let inline = if rng.below(2) == 0 { send_flags::INLINE } else { 0 };
            let opcode = [2, 2, 0, 0, 3, 1, 4, 5, 6, 8, 9, 15, 40][rng.below(13) as usize];
            let mut wr = Wr::new(opcode).id(step).imm(0x0a0b_0c0d).raw;
            wr.num_sge = [1, 1, 1, 1, 1, 0, 2, -1, 99][rng.below(9) as usize];
            wr.sg_list = if rng.below(16) == 0 { core::ptr::null() } else { sges.as_ptr() };
            wr.send_flags = inline
                | [0, send_flags::SIGNALED, send_flags::FENCE | 1 << 20][rng.below(3) as usize];
            wr.wr.rdma = RdmaWr { remote_addr: 0x5555_0000_1111, rkey: 0x77 };
            let what = (round, step, opcode, wr.num_sge, wr.send_flags, sges);
            let outcome =
                [(&a, true), (&b, false)].map(|(e, alone)| post_send(&net, e, &mut wr, alone));
            assert_eq!(outcome[0], outcome[1], "{what:?}");
            assert_eq!(sent(&net, &a, sends), sent(&net, &b, sends), "{what:?}");
            sends += u32::from(outcome[0].is_ok());
            ok += u32::from(outcome[0].is_ok());
            let num_sge = [1, 1, 1, 0, 2, -1, 99][rng.below(7) as usize];
            let mut wr = RecvWr {
                wr_id: step,
                next: core::ptr::null(),
                sg_list: core::ptr::null(),
                num_sge,
            };
            wr.sg_list = if rng.below(16) == 0 { core::ptr::null() } else { sges.as_ptr() };
            let outcome =
                [(&a, true), (&b, false)].map(|(e, alone)| post_recv(&net, e, &mut wr, alone));
            assert_eq!(outcome[0], outcome[1], "{what:?} {num_sge}");
            assert_eq!(received(&net, &a, recvs), received(&net, &b, recvs), "{what:?} {num_sge}");
            recvs += u32::from(outcome[0].is_ok());
        }
    }
    assert!(ok > 300, "{ok}");
}

#[test]
fn what_was_posted_before_a_refused_request_leaves_although_it_said_that_more_follows() {
    let (net, a, b) = Net::pair(Opts::default());
    let mut good = Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).remote(&b, 0);
    good = good.flags(send_flags::MORE | send_flags::SIGNALED);
    let bad = Wr::new(77).raw;
    for (next, held_back) in [(core::ptr::null(), true), (&raw const bad, false)] {
        good.raw.next = next;
        good.raw.sg_list = good.sges.as_ptr();
        good.raw.num_sge = 1;
        let mut blamed = core::ptr::null();
        // SAFETY: the requests and their lists live through the call.
        let (posted, outcome) = unsafe {
            net.hosts[a.host].engine.post_unmarked(a.qp, &good.raw, &mut blamed).unwrap()
        };
        assert_eq!((posted.count, outcome.is_ok(), blamed), (1, held_back, next));
        assert_eq!(posted.more, held_back, "nothing follows a refused request");
    }
}
