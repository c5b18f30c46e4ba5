//! Protection domains: which one counts for what. Windows are bound within one; an SRQ may be of
//! another than its queue pairs.

use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;

use crate::util::*;

/// A region over an end's buffer in any PD of its host.
fn region_in(net: &Net, e: &End, pd: Handle) -> Handle {
    let reg = region(pd, e.buf.addr(), e.buf.len() as u64, ALL | access::MW_BIND);
    net.lock(e).mr_reg(&reg).unwrap().0
}

// rxe rxe_mw.c rxe_do_bind_mw
#[test]
fn a_bind_names_the_low_byte_of_the_new_key() {
    for (kind, named) in [(1, 0xba), (2, 0xba), (2, 0), (2, u32::MAX)] {
        let (mut net, a, b) = Net::pair(Opts::default());
        let (mw, first) = net.lock(&b).mw_alloc(b.pd, kind).unwrap();
        let info = b.window(100, access::REMOTE_WRITE);
        net.ok(&b, Wr::new(wr_opcode::BIND_MW).bind(mw, named, info));
        let key = (first & !0xff) | (named & 0xff);
        a.buf.write(0, &pattern(9, 100));
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).key(b.mr.iova, key));
        assert!(b.buf.read(0, 100) == pattern(9, 100));
    }
}

// IBTA C10-72
#[test]
fn a_window_is_bound_by_a_queue_pair_of_its_domain_only() {
    for kind in [1, 2] {
        // The window, the region, or both are of another domain than the queue pair.
        for (window, of_region) in [(true, true), (true, false), (false, true)] {
            let (mut net, a, b) = Net::pair(Opts::default());
            let other = net.lock(&b).pd_alloc().unwrap();
            let (mw, key) = net.lock(&b).mw_alloc(if window { other } else { b.pd }, kind).unwrap();
            let mr = region_in(&net, &b, if of_region { other } else { b.pd });
            let info = MwBindInfo { mr, ..b.window(100, access::REMOTE_WRITE) };
            let wc = net.run_one(&b, Wr::new(wr_opcode::BIND_MW).bind(mw, key, info));
            assert_eq!(wc.status, wc_status::MW_BIND_ERR);
            assert_eq!(net.lock(&b).qp_cause(b.qp).unwrap().code, CauseCode::BadWindow as u32);
            let write = Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).key(b.mr.iova, key);
            assert_ne!(net.run_one(&a, write).status, wc_status::SUCCESS);
        }
    }
}

/// Every kind and every way on which the domain of an SRQ counts.
fn apart() -> impl Iterator<Item = Opts> {
    let kinds = [qp_type::RC, qp_type::UC, qp_type::UD, qp_type::DCI];
    kinds.into_iter().flat_map(|kind| {
        WAYS.map(|way| Opts { kind, way, srq: true, srq_apart: true, ..Opts::default() })
    })
}

/// A SEND of `len` bytes from `a` to `b`.
fn send(net: &Net, a: &End, b: &End, len: usize) -> Wr {
    let wr = Wr::new(wr_opcode::SEND).local(a, 0, len);
    match a.kind {
        qp_type::UD => wr.ud(net.ah(a, b), b.qpn, 0x1111),
        _ => wr,
    }
}

#[test]
fn receives_of_an_srq_are_of_its_domain() {
    for o in apart() {
        let (mut net, a, b) = Net::pair(o);
        let datagram = o.kind == qp_type::UD;
        // One packet, one piece or two; several packets.
        let lens: &[usize] = if datagram { &[8, 1000] } else { &[8, 1000, 5000] };
        for &len in lens {
            for pieces in [&[(0, 8192)][..], &[(0, 47), (47, 8192)]] {
                a.buf.write(0, &pattern(len as u64, len));
                net.recv(&b, 7, pieces);
                let wr = send(&net, &a, &b, len);
                net.ok(&a, wr);
                let wc = net.wait(b.host, b.rcq, 1)[0];
                assert_eq!((wc.wr_id, wc.status), (7, wc_status::SUCCESS));
                let header = if datagram { 40 } else { 0 };
                assert!(b.buf.read(header, len) == pattern(len as u64, len));
            }
        }
        net.assert_faultless();
    }
}

#[test]
fn a_receive_of_the_queue_pairs_own_domain_is_refused_by_an_srq_of_another() {
    for o in apart().filter(|o| o.kind == qp_type::RC || o.kind == qp_type::DCI) {
        let (mut net, a, b) = Net::pair(o);
        let sge = Sge { addr: b.mr.iova, length: 100, lkey: b.mr.lkey };
        net.try_recv_sge(b.host, b.srq, 7, sge).unwrap();
        let wr = send(&net, &a, &b, 8);
        assert_eq!(net.run_one(&a, wr).status, wc_status::REM_OP_ERR);
        let wc = net.wait(b.host, b.rcq, 1)[0];
        assert_eq!((wc.wr_id, wc.status), (7, wc_status::LOC_PROT_ERR));
    }
}

#[test]
fn remote_keys_are_of_the_queue_pairs_domain() {
    for o in apart().filter(|o| o.kind == qp_type::RC || o.kind == qp_type::DCI) {
        let (mut net, a, b) = Net::pair(o);
        let far = b.mr.iova + 9000;
        for op in [wr_opcode::RDMA_WRITE, wr_opcode::RDMA_READ] {
            net.ok(&a, Wr::new(op).local(&a, 0, 100).key(far, b.mr.rkey));
        }
        // A WRITE with immediate data uses both domains.
        net.recv(&b, 8, &[]);
        let with_imm = Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM).local(&a, 0, 100);
        net.ok(&a, with_imm.key(far, b.mr.rkey));
        assert_eq!(net.wait(b.host, b.rcq, 1)[0].status, wc_status::SUCCESS);
        // The SRQ's does not open its regions to peers.
        let write = Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).key(far, b.recv_lkey);
        assert_eq!(net.run_one(&a, write).status, wc_status::REM_ACCESS_ERR);
    }
}

/// The domain of an SRQ counts as used by it, not by its queue pairs.
#[test]
fn each_domain_is_kept_by_its_own_objects() {
    let (mut net, a, b) = Net::pair(Opts { srq: true, srq_apart: true, ..Opts::default() });
    net.recv(&b, 1, &[(0, 100)]);
    net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 8));
    net.wait(b.host, b.rcq, 1);
    let now = net.now;
    let mut g = net.lock(&b);
    assert!(g.srq_destroy(now, b.srq).is_err(), "its queue pair uses it");
    g.qp_destroy(now, b.qp).unwrap();
    g.mr_dereg(b.mr_handle).unwrap();
    g.pd_dealloc(b.pd).unwrap();
    g.srq_destroy(now, b.srq).unwrap();
}

#[test]
fn sizes_of_queues_that_a_queue_pair_does_not_have_are_ignored() {
    let o = Opts { srq: true, ..Opts::default() };
    let mut net = Net::new(1, &o);
    let e = net.end(0, &o);
    let now = net.now;
    let mut g = net.lock(&e);
    let xrcd = g.xrcd_alloc().unwrap();
    let huge = QpCap { max_recv_wr: u32::MAX, max_recv_sge: u32::MAX, ..QpCap::default() };
    let all = QpCap { max_send_wr: u32::MAX, max_send_sge: u32::MAX, ..huge };
    let all = QpCap { max_inline_data: u32::MAX, ..all };
    let base = QpInit { pd: e.pd, send_cq: e.scq, recv_cq: e.rcq, xrcd, ..QpInit::default() };
    for (qp_type, srq, cap, fits) in [
        (qp_type::RC, e.srq, huge, true),
        (qp_type::UC, e.srq, huge, true),
        (qp_type::UD, e.srq, huge, true),
        (qp_type::XRC_SEND, 0, huge, true),
        (qp_type::DCI, 0, huge, true),
        (qp_type::XRC_RECV, 0, all, true),
        (qp_type::DCT, e.srq, all, true),
        (qp_type::RC, e.srq, all, false),
        (qp_type::RC, 0, huge, false),
        (qp_type::DCI, 0, all, false),
    ] {
        let init = QpInit { srq, qp_type, cap, ..base };
        let made = g.qp_create(now, &init);
        assert_eq!(made.is_ok(), fits, "{qp_type} {cap:?}");
        if let Ok((qp, _, given)) = made {
            assert_eq!((given.max_recv_wr, given.max_recv_sge), (0, 0));
            g.qp_destroy(now, qp).unwrap();
        }
    }
}
