//! Recovery in place: `qp_reset`, and the life after it.

use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;

use crate::util::*;

/// How far a life begins ahead of the last one; as `gdrc_endpoint_local` has it, less the random
/// part.
const GAP: u32 = 1 << 16;

fn reset(net: &Net, e: &End) -> gdrcore_core::Result<()> {
    net.lock(e).qp_reset(net.now, e.qp)
}

fn sq_psn(net: &Net, e: &End) -> u32 {
    net.lock(e).qp_query(e.qp).unwrap().0.sq_psn
}

/// Resets both ends, which must have nothing that keeps them, and connects them for their next
/// life.
fn again(net: &mut Net, a: &End, b: &End, o: &Opts, gap: u32) {
    for e in [a, b] {
        reset(net, e).unwrap();
        net.poll(e.host, e.scq);
        net.poll(e.host, e.rcq);
    }
    let next = |psn: u32| if gap == 0 { PSN } else { (psn + gap) & 0xff_ffff };
    let (pa, pb) = (next(sq_psn(net, a)), next(sq_psn(net, b)));
    net.connect_at(a, b, o, pa, pb);
    net.connect_at(b, a, o, pb, pa);
}

#[test]
fn every_request_has_its_completion_first_and_a_full_cq_asks_for_patience() {
    for way in WAYS {
        let o = Opts { way, cqe: 4, ..Opts::default() };
        let (mut net, a, b) = Net::pair(o);
        net.tap = Some(Box::new(|_, _| Fate::Drop));
        for i in 0..20 {
            net.post(
                &a,
                Wr::new(wr_opcode::RDMA_READ).id(i).flags(0).local(&a, 0, 3000).remote(&b, 0),
            );
            net.recv(&a, 100 + i, &[(0, 10)]);
        }
        if way == Way::Wire {
            net.exchange();
        }
        let (mut sent, mut received, mut refused) = (Vec::new(), Vec::new(), 0);
        loop {
            let done = reset(&net, &a);
            sent.extend(net.poll(a.host, a.scq));
            received.extend(net.poll(a.host, a.rcq));
            match done {
                Ok(()) => break,
                Err(e) => assert_eq!((e, net.state(&a)), (Error::Again, qp_state::ERR)),
            }
            refused += 1;
            assert!(refused < 20);
        }
        assert!(refused >= 4, "a CQ of 4 cannot hold 20 completions: {refused}");
        for (wc, first) in [(sent, 0), (received, 100)] {
            assert_eq!(
                wc.iter().map(|w| w.wr_id).collect::<Vec<_>>(),
                (first..first + 20).collect::<Vec<_>>()
            );
            assert!(wc.iter().all(|w| w.status == wc_status::WR_FLUSH_ERR && w.qp_num == a.qpn));
        }
        assert_eq!(net.state(&a), qp_state::RESET);
        assert!(net.lock(&a).take_async_event().is_none(), "the program wanted it");
        assert_eq!(err(net.try_post(&a, Wr::new(wr_opcode::SEND))), Error::Invalid);
    }
}

#[test]
fn from_every_state_and_twice() {
    let o = Opts::default();
    for state in [qp_state::INIT, qp_state::RTS, qp_state::SQD, qp_state::ERR] {
        let (mut net, a, b) = Net::pair(o);
        if state == qp_state::INIT {
            use qp_attr_mask as m;
            net.to_state(&a, qp_state::RESET).unwrap();
            let attr = QpAttr { qp_state: state, port_num: 1, ..QpAttr::default() };
            net.modify(&a, &attr, m::STATE | m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS).unwrap();
        } else if state != qp_state::RTS {
            net.to_state(&a, state).unwrap();
        }
        net.recv(&a, 7, &[(0, 10)]);
        reset(&net, &a).unwrap();
        assert_eq!(net.poll(a.host, a.rcq).iter().map(|w| w.wr_id).collect::<Vec<_>>(), [7]);
        reset(&net, &a).unwrap();
        again(&mut net, &a, &b, &o, GAP);
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 5000).remote(&b, 0));
    }
    let (net, a, _b) = Net::pair(o);
    net.lock(&a).qp_destroy(0, a.qp).unwrap();
    assert_eq!(err(reset(&net, &a)), Error::StaleHandle);
}

#[test]
fn why_it_failed_is_still_known_after_the_reset() {
    let o = Opts { timeout: 8, retry: 1, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    let wc = net.run_one(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).remote(&b, 0));
    assert_eq!(wc.status, wc_status::RETRY_EXC_ERR);
    reset(&net, &a).unwrap();
    assert_eq!(net.lock(&a).qp_cause(a.qp).unwrap().code, CauseCode::RetryExceeded as u32);
}

/// Two lives of one pair. Every packet of the first is kept, and comes again at every step of the
/// second. Returns the word that the second life's ten FETCH_ADDs of 1 left, and what its WRITEs
/// left.
fn two_lives(gap: u32) -> (u64, Vec<u8>, u64) {
    let o = Opts::default();
    let (mut net, a, b) = Net::pair(o);
    let kept = net.note(move |from, p| Some((from, p.to_vec())));
    let life = |net: &mut Net, seed: u64, between: &dyn Fn(&mut Net)| {
        for i in 0..10u64 {
            a.buf.write(0, &pattern(seed + i, 3000));
            net.recv(&b, i, &[(1 << 19, 3000)]);
            let at = 4096 * i as usize;
            for w in [
                Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 3000).remote(&b, at),
                Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, 8192, 8).atomic(
                    &b,
                    1 << 20,
                    1,
                    0,
                ),
                Wr::new(wr_opcode::SEND).local(&a, 0, 3000),
                Wr::new(wr_opcode::RDMA_READ).local(&a, 16_384, 3000).remote(&b, at),
            ] {
                net.post(&a, w);
                between(net);
                net.exchange();
                between(net);
            }
            net.run(50_000_000);
        }
    };
    life(&mut net, 1000, &|_| {});
    assert_eq!(b.buf.read_u64(1 << 20), 10);
    b.buf.write_u64(1 << 20, 0);
    net.tap = None;
    again(&mut net, &a, &b, &o, gap);
    let old = kept.take();
    assert!(old.iter().any(|(from, _)| *from == 0) && old.iter().any(|(from, _)| *from == 1));
    let before = net.lock(&b).counters().duplicate_request;
    life(&mut net, 2000, &|net| {
        for (from, p) in &old {
            net.inject(*from, 1 - *from, p);
        }
    });
    let duplicates = net.lock(&b).counters().duplicate_request - before;
    (b.buf.read_u64(1 << 20), b.buf.read(0, 10 * 4096), duplicates)
}

#[test]
fn packets_of_a_former_life_are_refused_by_their_psns() {
    let (word, written, duplicates) = two_lives(GAP);
    assert_eq!(word, 10);
    for i in 0..10 {
        assert!(written[4096 * i..][..3000] == pattern(2000 + i as u64, 3000), "WRITE {i}");
    }
    assert!(duplicates > 1000, "the old packets came: {duplicates}");
    // What the distance protects from: a life that begins where the last one did takes old packets
    // for its own.
    let (word, written, _) = two_lives(0);
    assert!(
        word != 10
            || (0..10).any(|i| written[4096 * i..][..3000] != pattern(2000 + i as u64, 3000))
    );
}

#[test]
fn ten_thousand_lives_leave_nothing_behind_and_neighbours_in_peace() {
    for way in WAYS {
        let o = Opts { way, timeout: 8, retry: 1, cqe: 64, bytes: 1 << 16, ..Opts::default() };
        let (mut net, a, b) = Net::pair(o);
        let hosts = net.hosts.len();
        let beside: Vec<(End, End)> = (0..2)
            .map(|_| {
                let pair = (net.end(0, &o), net.end(hosts - 1, &o));
                net.connect(&pair.0, &pair.1, &o);
                net.connect(&pair.1, &pair.0, &o);
                pair
            })
            .collect();
        let free: Vec<usize> = net.hosts.iter().map(|h| h.lock().free_bytes()).collect();
        let leaks = net.lock(&a).leaks();
        let write =
            |a: &End, b: &End| Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 2500).remote(b, 0);
        for life in 0..10_000u64 {
            // The neighbours have something under way while the pair breaks.
            for (c, d) in &beside {
                c.buf.write(0, &pattern(life, 2500));
                net.post(c, write(c, d).id(life));
            }
            match life % 4 {
                0 => net.post(&a, write(&a, &b).key(b.mr.iova, 0)),
                1 => net.to_state(&b, qp_state::ERR).unwrap(),
                2 => net.recv(&b, life, &[(0, 10)]),
                _ => {
                    net.recv(&b, life, &[(0, 3000)]);
                    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 3000));
                    net.post(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 3000).remote(&b, 0));
                }
            }
            if life % 3 > 0 {
                net.exchange();
            }
            again(&mut net, &a, &b, &o, GAP);
            a.buf.write(0, &pattern(life + 1, 2500));
            net.ok(&a, write(&a, &b));
            assert!(b.buf.read(0, 2500) == pattern(life + 1, 2500), "life {life}");
            for (c, d) in &beside {
                let wc = net.wait(c.host, c.scq, 1);
                assert_eq!((wc.len(), wc[0].wr_id, wc[0].status), (1, life, 0), "{wc:?}");
                assert!(d.buf.read(0, 2500) == pattern(life, 2500));
            }
        }
        assert_eq!(free, net.hosts.iter().map(|h| h.lock().free_bytes()).collect::<Vec<_>>());
        assert_eq!(leaks, net.lock(&a).leaks());
        assert_eq!(net.lock(&a).qp_number(a.qp).unwrap(), a.qpn);
        // Every entry of the CQs is still there to be used: 64 receives, all at once.
        for e in [&a, &b] {
            (0..64).for_each(|i| net.recv(e, i, &[(0, 10)]));
            reset(&net, e).unwrap();
            assert_eq!(net.poll(e.host, e.rcq).len(), 64);
        }
        // And the windows count nothing of former lives as on its way.
        let g = net.lock(&a);
        assert!((0..g.transport.peers.len()).all(|i| g.transport.peers[i].tx.inflight() == 0));
    }
}

/// UD names neither path MTU nor ACK timeout: its next life has the device's again.
#[test]
fn a_datagram_queue_pair_has_its_mtu_in_the_next_life() {
    let limit = QpAttr { rate_limit_bytes_per_s: 1 << 30, ..QpAttr::default() };
    for way in WAYS {
        let o = Opts { kind: qp_type::UD, way, ..Opts::default() };
        let (mut net, a, b) = Net::pair(o);
        let of_device = |net: &Net| {
            let conn = &net.lock(&a).transport.qps[index(a.qp)].conn;
            (conn.mtu, conn.timeout_ns)
        };
        let before = of_device(&net);
        again(&mut net, &a, &b, &o, 0);
        assert_eq!(of_device(&net), before);
        net.modify(&a, &limit, qp_attr_mask::RATE_LIMIT).unwrap();
        let ah = net.ah(&a, &b);
        net.recv(&b, 1, &[(0, 40 + 4096)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 4096).ud(ah, b.qpn, 0x1111));
        let wc = net.wait(b.host, b.rcq, 1)[0];
        assert_eq!((wc.status, wc.byte_len), (wc_status::SUCCESS, 40 + 4096));
    }
}
