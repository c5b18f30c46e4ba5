//! Peers and programs that do what they may not: they are refused and told why, and others lose
//! nothing.

use gdrcore_core::device::{async_event, MrReg};
use gdrcore_core::roce::run::Run;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Bth, PacketKind};
use gdrcore_core::Error;

use crate::util::*;

/// A request that the peer must refuse: its status here, the cause there, and nothing written.
pub fn refused(o: Opts, w: impl Fn(&Net, &End, &End) -> Wr, status: u32, cause: CauseCode) {
    let (mut net, a, b) = Net::pair(o);
    b.buf.write(0, &[0xaa; 8192]);
    a.buf.write(0, &[0x11; 4096]);
    let w = w(&net, &a, &b);
    net.post(&a, w.id(1));
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(2).flags(0).local(&a, 0, 8).remote(&b, 0));
    let wc = net.wait(a.host, a.scq, 2);
    assert_eq!((wc[0].wr_id, wc[0].status), (1, status), "{wc:?}");
    assert_eq!((wc[1].wr_id, wc[1].status), (2, wc_status::WR_FLUSH_ERR));
    assert_ne!(wc[0].vendor_err, 0);
    assert_eq!(net.lock(&b).qp_cause(b.qp).unwrap().code, cause as u32);
    assert!(b.buf.read(0, 8192).iter().all(|&x| x == 0xaa), "something was written");
    assert_eq!((net.state(&a), net.state(&b)), (qp_state::ERR, qp_state::ERR));
    // The requester learns it from its completion. The responder completes nothing, and raises the
    // one event that the standard has for that.
    let event = if status == ACCESS { async_event::QP_ACCESS_ERR } else { async_event::QP_REQ_ERR };
    net.only_events(&[(&a, None), (&b, Some(event))]);
}

pub const ACCESS: u32 = wc_status::REM_ACCESS_ERR;

// rxe rxe_resp.c check_op_valid
// rxe rxe_resp.c check_rkey, key
// rxe rxe_resp.c do_class_ac_error
#[test]
fn keys_ranges_and_access_are_checked() {
    let o = Opts::default();
    let write =
        |a: &End, addr, key| Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 4096).key(addr, key);
    let read = |a: &End, addr, key| Wr::new(wr_opcode::RDMA_READ).local(a, 0, 4096).key(addr, key);
    for way in WAYS {
        let o = Opts { way, ..o };
        refused(o, |_, a, b| write(a, b.mr.iova, b.mr.rkey ^ 1), ACCESS, CauseCode::PeerUsedBadKey);
        refused(
            o,
            |_, a, b| write(a, b.mr.iova, b.mr.rkey ^ (1 << 20)),
            ACCESS,
            CauseCode::PeerUsedBadKey,
        );
        refused(o, |_, a, b| read(a, b.mr.iova, 0), ACCESS, CauseCode::PeerUsedBadKey);
        let end = o.bytes as u64;
        refused(
            o,
            |_, a, b| write(a, b.mr.iova + end - 4095, b.mr.rkey),
            ACCESS,
            CauseCode::PeerLeftRange,
        );
        refused(o, |_, a, b| write(a, b.mr.iova - 1, b.mr.rkey), ACCESS, CauseCode::PeerLeftRange);
        refused(o, |_, a, b| read(a, u64::MAX - 100, b.mr.rkey), ACCESS, CauseCode::PeerLeftRange);
    }
    let local = |net: &Net, b: &End, flags| net.reg(b, &b.buf, flags).1.rkey;
    refused(o, |n, a, b| write(a, b.mr.iova, local(n, b, 1)), ACCESS, CauseCode::PeerLacksAccess);
    refused(o, |n, a, b| read(a, b.mr.iova, local(n, b, 3)), ACCESS, CauseCode::PeerLacksAccess);
    let only_read = Opts { access: access::REMOTE_READ, ..o };
    // What the QP does not do at all is an invalid request, as to rxe (check_op_valid).
    let inv = wc_status::REM_INV_REQ_ERR;
    refused(only_read, |_, a, b| write(a, b.mr.iova, b.mr.rkey), inv, CauseCode::PeerLacksAccess);
    let only_write = Opts { access: access::REMOTE_WRITE, ..o };
    refused(only_write, |_, a, b| read(a, b.mr.iova, b.mr.rkey), inv, CauseCode::PeerLacksAccess);
}

// rxe rxe_resp.c check_rkey, key
#[test]
fn a_key_of_another_domain_is_refused() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let c = net.end(1, &Opts::default());
    assert_ne!(c.pd, b.pd);
    let wc =
        net.run_one(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).key(c.mr.iova, c.mr.rkey));
    assert_eq!(wc.status, ACCESS);
    net.only_events(&[(&a, None), (&b, Some(async_event::QP_ACCESS_ERR))]);
}

// rxe rxe_resp.c check_op_valid
// rxe rxe_resp.c atomic_reply, alignment
#[test]
fn atomics_must_be_aligned_and_allowed() {
    let o = Opts::default();
    let add = |a: &End, b: &End, at| {
        Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(a, 0, 8).atomic(b, at, 1, 0)
    };
    let inv = wc_status::REM_INV_REQ_ERR;
    refused(o, |_, a, b| add(a, b, 4), inv, CauseCode::MisalignedAtomic);
    // Where a region has addresses of its own, both must be aligned: the one in the request, and
    // the one in memory.
    for (iova, at) in [(4, 0), (4, 4)] {
        let shifted = |net: &Net, a: &End, b: &End| {
            let (addr, length) = (b.buf.addr(), b.buf.len() as u64);
            let reg = MrReg { iova: addr + iova, ..region(b.pd, addr, length, ALL) };
            let (_, mr) = net.lock(b).mr_reg(&reg).unwrap();
            let mut w = Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(a, 0, 8);
            w.raw.wr.atomic =
                AtomicWr { remote_addr: mr.iova + at, compare_add: 1, swap: 0, rkey: mr.rkey };
            w
        };
        refused(o, shifted, inv, CauseCode::MisalignedAtomic);
    }
    let no = Opts { access: access::REMOTE_WRITE, ..o };
    refused(no, |_, a, b| add(a, b, 0), inv, CauseCode::PeerLacksAccess);
    let (net, a, b) = Net::pair(o);
    let short = Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, 0, 4).atomic(&b, 0, 1, 0);
    assert_eq!(err(net.try_post(&a, short)), Error::Invalid);
}

// rxe rxe_resp.c send_data_in, length
#[test]
fn a_message_longer_than_the_receive_fails_on_both_sides() {
    for len in [101usize, 5000] {
        let (mut net, a, b) = Net::pair(Opts::default());
        b.buf.write(0, &[0xaa; 8192]);
        net.recv(&b, 1, &[(0, 100)]);
        net.recv(&b, 2, &[(0, 100)]);
        let wc = net.run_one(&a, Wr::new(wr_opcode::SEND).local(&a, 0, len));
        assert_eq!(wc.status, wc_status::REM_INV_REQ_ERR);
        let wc = net.wait(b.host, b.rcq, 2);
        assert_eq!((wc[0].wr_id, wc[0].status), (1, wc_status::LOC_LEN_ERR));
        assert_eq!((wc[1].wr_id, wc[1].status), (2, wc_status::WR_FLUSH_ERR));
        assert!(b.buf.read(100, 8000).iter().all(|&x| x == 0xaa));
        net.only_events(&[(&a, None), (&b, None)]);
    }
}

// rxe rxe_resp.c send_data_in, buffer
#[test]
fn local_buffers_are_checked_too() {
    let bad = |a: &End| {
        let s = Sge { addr: a.mr.iova, length: 100, lkey: a.mr.lkey };
        let end = a.mr.iova + a.buf.len() as u64;
        [
            Sge { lkey: s.lkey ^ 1, ..s },
            Sge { addr: end - 99, ..s },
            Sge { addr: a.mr.iova - 1, ..s },
        ]
    };
    for k in 0..3 {
        for opcode in [wr_opcode::RDMA_WRITE, wr_opcode::RDMA_READ] {
            let (mut net, a, b) = Net::pair(Opts::default());
            b.buf.write(0, &[0xaa; 4096]);
            let wc = net.run_one(&a, Wr::new(opcode).sge(bad(&a)[k]).remote(&b, 0));
            assert_eq!(wc.status, wc_status::LOC_PROT_ERR);
            assert!(b.buf.read(0, 4096).iter().all(|&x| x == 0xaa));
            net.only_events(&[(&a, None), (&b, None)]);
        }
        let (mut net, a, b) = Net::pair(Opts::default());
        net.try_recv_sges(&b, 5, &[bad(&b)[k]]).unwrap();
        let wc = net.run_one(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 100));
        assert_eq!(wc.status, wc_status::REM_OP_ERR);
        assert_eq!(net.wait(b.host, b.rcq, 1)[0].status, wc_status::LOC_PROT_ERR);
        net.only_events(&[(&a, None), (&b, None)]);
    }
    // READ into a region that is not for writing.
    let (mut net, a, b) = Net::pair(Opts::default());
    let (_, mr) = net.reg(&a, &a.buf, access::REMOTE_READ);
    let sge = Sge { addr: mr.iova, length: 8, lkey: mr.lkey };
    let wc = net.run_one(&a, Wr::new(wr_opcode::RDMA_READ).sge(sge).remote(&b, 0));
    assert_eq!(
        (wc.status, wc.vendor_err),
        (wc_status::LOC_PROT_ERR, CauseCode::LocalAccess as u32)
    );
}

// rxe rxe_comp.c do_complete
#[test]
fn a_failure_waits_for_those_before_it_even_through_a_loss() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let mut n = 0;
    net.tap = Some(Box::new(move |from, _| {
        n += usize::from(from == 0);
        Fate::drop_if(from == 0 && n == 1)
    }));
    a.buf.write(0, &[7; 100]);
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(1).local(&a, 0, 100).remote(&b, 0));
    let sge = Sge { addr: a.mr.iova, length: 8, lkey: 0 };
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(2).sge(sge).remote(&b, 0));
    let wc = net.wait(a.host, a.scq, 2);
    assert_eq!((wc[0].wr_id, wc[0].status), (1, wc_status::SUCCESS));
    assert_eq!((wc[1].wr_id, wc[1].status), (2, wc_status::LOC_PROT_ERR));
    assert!(b.buf.read(0, 100) == [7; 100]);
}

// rxe rxe_resp.c rxe_recheck_mr
#[test]
fn a_region_that_ends_under_traffic_fails_the_peer() {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.post(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 2 << 20).remote(&b, 0));
    net.exchange();
    net.lock(&b).mr_dereg(b.mr_handle).unwrap();
    let wc = net.wait(a.host, a.scq, 1);
    assert_eq!(wc[0].status, ACCESS);
    assert_eq!(net.lock(&b).mr_query(b.mr_handle), Err(Error::StaleHandle));
}

#[test]
fn stale_handles_are_errors_everywhere() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let now = net.now;
    net.lock(&a).qp_destroy(now, a.qp).unwrap();
    assert_eq!(err(net.try_post(&a, Wr::new(wr_opcode::SEND))), Error::StaleHandle);
    assert_eq!(err(net.try_recv(&a, 1, &[])), Error::StaleHandle);
    assert_eq!(err(net.to_state(&a, qp_state::ERR)), Error::StaleHandle);
    let mut g = net.lock(&a);
    assert_eq!(err(g.qp_destroy(now, a.qp)), Error::StaleHandle);
    assert_eq!(err(g.qp_query(a.qp)), Error::StaleHandle);
    for h in [0, 1, u64::MAX, a.qp, a.pd, b.scq ^ (1 << 40)] {
        assert_eq!(err(g.cq_destroy(h)), Error::StaleHandle);
        assert_eq!(err(g.srq_destroy(0, h)), Error::StaleHandle);
        assert_eq!(err(g.ah_destroy(h)), Error::StaleHandle);
        assert_eq!(err(g.mw_dealloc(h)), Error::StaleHandle);
    }
    g.cq_destroy(a.scq).unwrap();
    drop(g);
    let engine = &net.hosts[0].engine;
    assert_eq!(engine.poll_cq(a.scq, &mut [Wc::default()]), Err(Error::StaleHandle));
    assert_eq!(engine.try_lock().unwrap().arm_cq(a.scq, false), Err(Error::StaleHandle));
    net.settle();
}

/// What makes one more queue pair beside an end's.
fn another_qp(e: &End, wr: u32, sge: u32) -> QpInit {
    queue_pair(qp_type::RC, e.pd, [e.scq, e.rcq], queues(wr, sge, 0))
}

#[test]
fn pools_and_heap_run_out_cleanly_and_grow() {
    let mut o = Opts::default();
    o.config.max_qp = 64;
    o.config.ring_bytes = 1 << 20;
    let mut net = Net::new(1, &o);
    let e = net.end(0, &o);
    let init = another_qp(&e, 16, 2);
    let fill = |net: &mut Net| {
        let mut made = Vec::new();
        loop {
            match net.hosts[0].lock().qp_create(net.now, &init) {
                Ok((qp, ..)) => made.push(qp),
                Err(error) => {
                    assert_eq!(error, Error::NoMemory);
                    return made;
                }
            }
        }
    };
    let free = net.hosts[0].lock().free_bytes();
    let first = fill(&mut net);
    assert!(first.len() > 20, "{}", first.len());
    let more = Buffer::new(4 << 20);
    // SAFETY: the memory outlives the engine (it is declared before `net` drops by the explicit
    // drop below).
    unsafe { net.hosts[0].lock().arena_add(more.as_ptr(), more.len()).unwrap() };
    let second = fill(&mut net);
    assert!(!second.is_empty());
    for qp in first.iter().chain(&second) {
        net.hosts[0].lock().qp_destroy(net.now, *qp).unwrap();
    }
    assert!(net.hosts[0].lock().free_bytes() >= free);
    let again = fill(&mut net);
    assert!(!again.is_empty());
    drop(net);
}

/// If some tables of queue pairs have grown and there is no memory for the others, no places are
/// lost.
#[test]
fn as_many_queue_pairs_as_said_whatever_growth_has_failed_on() {
    let mut o = Opts::default();
    o.config.max_qp = 64;
    o.config.ring_bytes = 1 << 18;
    let most = o.config.resolve().unwrap().table(o.config.max_qp);
    let mut rng = Rng(5);
    for round in 0..8 {
        let mut pieces = Vec::new();
        let mut net = Net::new(1, &o);
        let e = net.end(0, &o);
        let init = another_qp(&e, 1, 1);
        // One is the end's.
        let mut made = 1;
        while made < most {
            match net.hosts[0].lock().qp_create(net.now, &init) {
                Ok(_) => {
                    made += 1;
                    continue;
                }
                Err(error) => assert_eq!(error, Error::NoMemory),
            }
            assert!(pieces.len() < 15, "round {round}: {made} of {most}");
            let bytes =
                if pieces.len() < 14 { 16_000 + rng.below(128_000) as usize } else { 32 << 20 };
            pieces.push(Buffer::new(bytes));
            let piece = &pieces[pieces.len() - 1];
            // SAFETY: the memory outlives the engine, which is dropped below.
            unsafe { net.hosts[0].lock().arena_add(piece.as_ptr(), piece.len()).unwrap() };
        }
        assert_eq!(
            net.hosts[0].lock().qp_create(net.now, &init),
            Err(Error::NoMemory),
            "round {round}"
        );
        drop(net);
    }
}

#[test]
fn posts_that_ask_too_much_are_refused() {
    let (net, a, b) = Net::pair(Opts { sq: 4, sge: 2, ..Opts::default() });
    let w = || Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).remote(&b, 0);
    assert_eq!(err(net.try_post(&a, w().local(&a, 0, 1).local(&a, 0, 1))), Error::Invalid);
    let inline = Wr::new(wr_opcode::SEND).local(&a, 0, 4000).add_flags(send_flags::INLINE);
    assert_eq!(err(net.try_post(&a, inline)), Error::MessageSize);
    assert_eq!(err(net.try_post(&a, Wr::new(99))), Error::Invalid);
    let huge = Sge { addr: a.mr.iova, length: u32::MAX, lkey: a.mr.lkey };
    assert_eq!(err(net.try_post(&a, w().sge(huge))), Error::MessageSize);
    for _ in 0..4 {
        net.post(&a, w());
    }
    assert_eq!(err(net.try_post(&a, w())), Error::Again);
}

// rxe rxe_recv.c check_keys, P_Key
// IBTA A17.4.4.2
// IBTA 9.6.1.4.1
// rxe rxe_resp.c send_data_in, UD
#[test]
fn p_keys_q_keys_and_strangers_are_refused() {
    let (mut net, a, b) = Net::pair(Opts::default());
    // A signed SEND with another P_Key, or from another host.
    net.add(Host::new(&Opts::default().config, false, 9));
    let class = gdrcore_core::wire::Class::Rc;
    let mut run = Run::new(class, PacketKind::Send, b.qpn, gdrcore_core::wire::Psn::new(PSN));
    run.pkey = 0x1234;
    for (from, pkey) in [(0, 0x1234), (2, 0xffff)] {
        run.pkey = pkey;
        let mut packet = vec![0; 16];
        run.emit_headers(run.opcode(true, true), run.psn, true, 0, &mut packet[..12]);
        sign(&net, from, 1, &mut packet);
        let before = net.lock(&b).counters();
        net.inject(from, 1, &packet);
        let after = net.lock(&b).counters();
        assert_eq!(
            (after.rcvd_refused, after.rcvd_pkts),
            (before.rcvd_refused + 1, before.rcvd_pkts),
            "{after:?}"
        );
    }
    net.recv(&b, 1, &[]);
    net.ok(&a, Wr::new(wr_opcode::SEND));

    let (mut net, a, b) = Net::pair(Opts { kind: qp_type::UD, ..Opts::default() });
    let ah = net.ah(&a, &b);
    net.recv(&b, 1, &[(0, 200)]);
    net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 8).ud(ah, b.qpn, 0x1112));
    assert_eq!(net.lock(&b).counters().rcvd_refused, 1);
    // Longer than the buffer: dropped, and the buffer serves the next.
    net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 161).ud(ah, b.qpn, 0x1111));
    net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 160).ud(ah, b.qpn, 0x1111));
    let wc = net.wait(b.host, b.rcq, 1);
    assert_eq!((wc.len(), wc[0].byte_len, wc[0].wr_id), (1, 200, 1));
    assert_eq!(net.lock(&b).counters().rcvd_dropped, 1);
}

#[test]
fn an_ack_of_the_own_engine_ends_no_request_to_another_peer() {
    let o = Opts::default();
    let (mut net, a, b) = Net::pair(o);
    // `c` takes messages of `d`, and believes that `a` sent them.
    let (c, d) = (net.end(a.host, &o), net.end(a.host, &o));
    net.connect(&c, &a, &o);
    net.connect(&d, &c, &o);
    net.recv(&b, 1, &[(0, 64)]);
    net.recv(&c, 2, &[(0, 64)]);
    net.post(&a, Wr::new(wr_opcode::SEND).id(3).local(&a, 0, 8));
    net.send_from(a.host);
    net.post(&d, Wr::new(wr_opcode::SEND).id(4).local(&d, 0, 8));
    assert!(net.lock(&d).run_loopback(net.now) > 0);
    assert_eq!(net.poll(c.host, c.rcq).len(), 1, "c has received, and acknowledged to a");
    assert!(net.poll(a.host, a.scq).is_empty());
    net.settle();
    assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);
}

// IBTA CA17-24
#[test]
fn thorough_garbage_harms_nobody() {
    let mut x = 12345u64;
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let (mut net, a, b) = Net::pair(Opts::default());
    for _ in 0..20_000 {
        let len = (next() % 200) as usize;
        let mut packet: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        if next() % 2 == 0 {
            sign(&net, 0, 1, &mut packet);
        }
        net.inject(0, 1, &packet);
    }
    let c = net.lock(&b).counters();
    assert!(c.rcvd_malformed > 0 && c.rcvd_icrc_err > 0, "{c:?}");
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).remote(&b, 0));

    // Packets with a right ICRC, for the QP, near its PSNs, with any opcode and any header.
    // Only the QP may fail.
    for round in 0..400u64 {
        let kind = [qp_type::RC, qp_type::UC, qp_type::UD][round as usize % 3];
        let (mut net, a, b) = Net::pair(Opts { kind, bytes: 8192, ..Opts::default() });
        let guard = Buffer::new(8192);
        guard.write(0, &[0xaa; 8192]);
        net.recv(&b, 1, &[(0, 4096)]);
        if kind == qp_type::RC {
            net.tap = Some(Box::new(|_, _| Fate::Drop));
            net.post(&b, Wr::new(wr_opcode::RDMA_READ).local(&b, 0, 4000).remote(&a, 0));
            net.post(
                &b,
                Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&b, 0, 8).atomic(&a, 0, 1, 0),
            );
            net.exchange();
            net.tap = None;
        }
        for _ in 0..60 {
            let len = 12 + (next() % 1100) as usize;
            let mut packet: Vec<u8> = (0..len + 4).map(|_| next() as u8).collect();
            let opcode = next() as u8 & if kind == qp_type::UC { 0x2f } else { 0x7f };
            let psn = PSN.wrapping_add((next() % 6) as u32).wrapping_sub(1) & 0xff_ffff;
            packet[..4].copy_from_slice(&[opcode, (next() as u8) & 0xf0, 0xff, 0xff]);
            packet[4..8].copy_from_slice(&b.qpn.to_be_bytes());
            packet[8..12].copy_from_slice(&psn.to_be_bytes());
            if next() % 2 == 0 && packet.len() > 32 {
                packet[12..20].copy_from_slice(&b.mr.iova.to_be_bytes());
                packet[20..24].copy_from_slice(&b.mr.rkey.to_be_bytes());
                packet[24..28].copy_from_slice(&((next() % 3000) as u32).to_be_bytes());
            }
            sign(&net, 0, 1, &mut packet);
            net.inject(0, 1, &packet);
            net.exchange();
        }
        net.settle();
        assert!(guard.read(0, 8192).iter().all(|&x| x == 0xaa));
        assert_eq!(Bth::LEN, 12);
    }
}

// IBTA CA17-33
#[test]
fn packets_for_a_dead_qp_are_counted_and_its_number_rests() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 8, retry: 2, ..Opts::default() });
    let now = net.now;
    net.lock(&b).qp_destroy(now, b.qp).unwrap();
    let wc = net.run_one(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).remote(&b, 0));
    assert_eq!(
        (wc.status, wc.vendor_err),
        (wc_status::RETRY_EXC_ERR, CauseCode::RetryExceeded as u32)
    );
    assert!(net.lock(&b).counters().rcvd_no_qp >= 3);
    for _ in 0..50 {
        let c = net.end(1, &Opts { bytes: 64, cqe: 1, ..Opts::default() });
        assert_ne!(c.qpn, b.qpn);
        let now = net.now;
        let mut g = net.lock(&c);
        g.qp_destroy(now, c.qp).unwrap();
        g.mr_dereg(c.mr_handle).unwrap();
        g.cq_destroy(c.scq).unwrap();
        g.cq_destroy(c.rcq).unwrap();
        g.pd_dealloc(c.pd).unwrap();
    }
}
