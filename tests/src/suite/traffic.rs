//! Behaviour cases of traffic: bytes, lengths, immediate data, order.

use super::{until, Bench, DeviceKind, End as Outcome};
use crate::ends::{
    complete, connect_both, connected, connected_pair, pattern, succeed, End, Op, Shape,
};
use gdrcore_core::device::SrqAttr;
use gdrcore_core::verbs::types::{
    access, mtu, qp_type, send_flags, wc_flags, wc_opcode, wc_status, wr_opcode, BindMwWr, Handle,
    MwBindInfo, QpInit, RecvWr, Sge,
};
use gdrcore_core::Error;
use std::time::Duration;

type Run = fn(Bench<'_>) -> Outcome;

/// The cases of this file.
pub const CASES: &[(&str, Run)] = &[
    ("SEND carries every length", send_lengths),
    ("SEND with immediate data", send_immediate),
    ("WRITE needs no receive, with immediate data it takes one", write),
    ("READ fetches every length", read),
    ("atomics return the former value", atomics),
    ("ATOMIC WRITE stores a word that is free when the post returns", atomic_write),
    ("scatter/gather lists of several entries", pieces),
    ("inline data is free when the post returns", inline),
    ("only the signalled request of a batch completes", unsignalled),
    ("a list of requests is posted in order", list),
    ("a full depth of WRITEs, again and again", depth),
    ("a shared receive queue serves two queue pairs", shared_receives),
    ("a shared receive queue is resized with receives in it", resized_srq),
    ("UC carries SEND and WRITE", unreliable),
    ("UD carries datagrams behind a GRH", datagrams),
    ("a window grants access to a region and is invalidated", window),
    ("16 queue pairs at once", many),
    ("a region counted from zero, and one with an iova", iova),
    ("every path MTU", path_mtu),
];

const LENGTHS: [usize; 8] = [0, 1, 7, 1023, 1024, 1025, 65_536, 1 << 20];

fn finish(a: End<'_>, b: End<'_>) -> Outcome {
    a.destroy().expect("destroy a");
    b.destroy().expect("destroy b");
    Outcome::Passed
}

fn send_lengths(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    for (i, len) in LENGTHS.into_iter().enumerate() {
        let bytes = pattern(i as u64, len);
        a.buffer.write(0, &bytes);
        b.post_recv(100, 0, 1 << 20).unwrap();
        a.post(1, Op::Send(None), 0, len as u32).unwrap();
        succeed(&mut a, &mut b, 1);
        let wc = succeed(&mut b, &mut a, 100);
        assert_eq!((wc.byte_len as usize, wc.opcode, wc.qp_num), (len, wc_opcode::RECV, b.own.qpn));
        assert!(b.buffer.read(0, len) == bytes, "bytes of a SEND of {len}");
    }
    finish(a, b)
}

fn send_immediate(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    for len in [0, 5, 3000] {
        b.post_recv(100, 0, 4096).unwrap();
        a.post(1, Op::Send(Some(0x0102_0304)), 0, len).unwrap();
        succeed(&mut a, &mut b, 1);
        let wc = succeed(&mut b, &mut a, 100);
        assert_eq!((wc.imm_data, wc.byte_len), (0x0102_0304, len));
        assert_ne!(wc.wc_flags & wc_flags::WITH_IMM, 0);
    }
    finish(a, b)
}

fn write(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    for (i, len) in LENGTHS.into_iter().enumerate().skip(1) {
        let bytes = pattern(50 + i as u64, len);
        a.buffer.write(0, &bytes);
        a.post(1, Op::Write(0, None), 0, len as u32).unwrap();
        let wc = succeed(&mut a, &mut b, 1);
        assert_eq!(wc.opcode, wc_opcode::RDMA_WRITE);
        assert!(b.buffer.read(0, len) == bytes, "bytes of a WRITE of {len}");
    }
    assert!(b.done.is_empty(), "a WRITE completes nothing at the other end: {:?}", b.done);
    b.post_recv(100, 0, 0).unwrap();
    a.post(2, Op::Write(64, Some(77)), 0, 2000).unwrap();
    succeed(&mut a, &mut b, 2);
    let wc = succeed(&mut b, &mut a, 100);
    assert_eq!((wc.opcode, wc.imm_data, wc.byte_len), (wc_opcode::RECV_RDMA_WITH_IMM, 77, 2000));
    finish(a, b)
}

fn read(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    for (i, len) in LENGTHS.into_iter().enumerate().skip(1) {
        let bytes = pattern(90 + i as u64, len);
        b.buffer.write(0, &bytes);
        a.post(1, Op::Read(0), 0, len as u32).unwrap();
        let wc = succeed(&mut a, &mut b, 1);
        assert_eq!(wc.opcode, wc_opcode::RDMA_READ);
        assert!(a.buffer.read(0, len) == bytes, "bytes of a READ of {len}");
    }
    finish(a, b)
}

fn atomics(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    b.buffer.write(64, &40u64.to_ne_bytes());
    let word = |e: &End, at| u64::from_ne_bytes(e.buffer.read(at, 8).try_into().unwrap());
    a.post(1, Op::FetchAdd(64, 2), 0, 8).unwrap();
    assert_eq!(succeed(&mut a, &mut b, 1).opcode, wc_opcode::FETCH_ADD);
    assert_eq!((word(&a, 0), word(&b, 64)), (40, 42));
    a.post(2, Op::CmpSwap(64, 41, 7), 8, 8).unwrap();
    assert_eq!(succeed(&mut a, &mut b, 2).opcode, wc_opcode::COMP_SWAP);
    assert_eq!((word(&a, 8), word(&b, 64)), (42, 42));
    a.post(3, Op::CmpSwap(64, 42, 7), 8, 8).unwrap();
    succeed(&mut a, &mut b, 3);
    assert_eq!((word(&a, 8), word(&b, 64)), (42, 7));
    // A longer list gets 8 bytes as well.
    a.buffer.write(16, &[0xee; 100]);
    a.post(4, Op::FetchAdd(64, 1), 16, 100).unwrap();
    succeed(&mut a, &mut b, 4);
    assert_eq!((word(&a, 16), a.buffer.read(24, 92)), (7, vec![0xee; 92]));
    finish(a, b)
}

fn atomic_write(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    b.buffer.write(56, &[0xee; 24]);
    a.buffer.write(8, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let posted = a.post(1, Op::AtomicWrite(64), 8, 8);
    if t.kind.is_nic() && posted == Err(Error::Unsupported) {
        finish(a, b);
        return Outcome::Skipped("the NIC has no ATOMIC WRITE".into());
    }
    posted.unwrap();
    a.buffer.write(8, &[0; 8]);
    let wc = complete(&mut a, &mut b, 1, Duration::from_secs(60));
    if t.kind == DeviceKind::RoutersNic && wc.status == wc_status::LOC_QP_OP_ERR {
        finish(a, b);
        return Outcome::Skipped("the router's NIC has no ATOMIC WRITE".into());
    }
    assert_eq!((wc.status, wc.opcode), (wc_status::SUCCESS, wc_opcode::ATOMIC_WRITE));
    let want = [[0xee; 8], [1, 2, 3, 4, 5, 6, 7, 8], [0xee; 8]].concat();
    assert_eq!(b.buffer.read(56, 24), want);
    finish(a, b)
}

fn pieces(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    let bytes = pattern(5, 6000);
    a.buffer.write(0, &bytes[..1000]);
    a.buffer.write(10_000, &bytes[1000..1001]);
    a.buffer.write(20_000, &bytes[1001..]);
    let from = [a.piece(0, 1000), a.piece(10_000, 1), a.piece(20_000, 4999)];
    let to = [b.piece(0, 3000), b.piece(8000, 1), b.piece(9000, 3000)];
    let wr = RecvWr { wr_id: 100, next: std::ptr::null(), sg_list: to.as_ptr(), num_sge: 3 };
    let mut bad = std::ptr::null();
    // SAFETY: request and pieces live on this stack frame.
    unsafe { b.dev.post_recv(b.qp, &wr, &mut bad) }.unwrap();
    a.post_wr(&a.request(1, Op::Send(None), &from)).unwrap();
    succeed(&mut a, &mut b, 1);
    assert_eq!(succeed(&mut b, &mut a, 100).byte_len, 6000);
    let got = [b.buffer.read(0, 3000), b.buffer.read(8000, 1), b.buffer.read(9000, 2999)].concat();
    assert!(got == bytes, "scattered bytes");
    finish(a, b)
}

fn inline(t: Bench<'_>) -> Outcome {
    if t.a.query().unwrap().max_inline < 64 {
        return Outcome::Skipped("the device has no inline data".into());
    }
    let (mut a, mut b) = connected_pair(t.a, t.b);
    for round in 0..20u64 {
        let bytes = pattern(round, 64);
        a.buffer.write(0, &bytes);
        // The lkey of inline data is not checked.
        let pieces = [Sge { lkey: 0xBAD, ..a.piece(0, 64) }];
        let mut wr = a.request(round, Op::Write(round * 64, None), &pieces);
        wr.send_flags |= send_flags::INLINE;
        a.post_wr(&wr).unwrap();
        a.buffer.write(0, &[0xEE; 64]);
        succeed(&mut a, &mut b, round);
        assert_eq!(b.buffer.read(round as usize * 64, 64), bytes);
    }
    finish(a, b)
}

fn unsignalled(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    for i in 0..10u64 {
        let pieces = [a.piece(0, 100)];
        let mut wr = a.request(i, Op::Write(i * 100, None), &pieces);
        if i < 9 {
            wr.send_flags = 0;
        }
        a.post_wr(&wr).unwrap();
    }
    succeed(&mut a, &mut b, 9);
    assert!(a.done.is_empty(), "{:?}", a.done);
    finish(a, b)
}

fn list(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    let pieces: Vec<[Sge; 1]> = (0..12).map(|i| [a.piece(i * 8, 8)]).collect();
    let mut wrs: Vec<_> =
        (0..12).map(|i| a.request(i, Op::Write(i * 8, None), &pieces[i as usize])).collect();
    for i in 0..11 {
        wrs[i].next = &wrs[i + 1];
    }
    let bytes = pattern(77, 96);
    a.buffer.write(0, &bytes);
    a.post_wr(&wrs[0]).unwrap();
    let mut order = Vec::new();
    until("12 completions", || {
        a.poll();
        b.poll();
        order.extend(a.done.drain(..).map(|wc| wc.wr_id));
        order.len() == 12
    });
    assert_eq!(order, (0..12).collect::<Vec<u64>>());
    assert_eq!(b.buffer.read(0, 96), bytes);
    finish(a, b)
}

fn depth(t: Bench<'_>) -> Outcome {
    let shape = Shape { depth: 128, cqe: 512, ..Shape::default() };
    let (mut a, mut b) = connected(t.a, t.b, shape).unwrap();
    for round in 0..4u64 {
        let bytes = pattern(round, 128 * 64);
        a.buffer.write(0, &bytes);
        for i in 0..128 {
            a.post(i, Op::Write(i * 64, None), i * 64, 64).unwrap();
        }
        for i in 0..128 {
            succeed(&mut a, &mut b, i);
        }
        assert!(b.buffer.read(0, 128 * 64) == bytes);
    }
    finish(a, b)
}

/// Gives an end a queue pair that receives from an SRQ, in that one's PD.
fn on_srq(end: &mut End<'_>, pd: Handle, srq: Handle) {
    let QpInit { cap, .. } = end.dev.qp_query(end.qp).unwrap().1;
    end.dev.qp_destroy(end.qp).unwrap();
    let init = QpInit {
        pd,
        send_cq: end.cq,
        recv_cq: end.cq,
        srq,
        qp_type: qp_type::RC,
        cap,
        ..QpInit::default()
    };
    (end.qp, end.own.qpn, _) = end.dev.qp_create(&init).unwrap();
}

/// Posts a receive of 64 bytes to an SRQ.
fn post_shared(end: &End<'_>, srq: Handle, wr_id: u64, at: u64) -> gdrcore_core::Result<()> {
    let pieces = [end.piece(at, 64)];
    let wr = RecvWr { wr_id, next: std::ptr::null(), sg_list: pieces.as_ptr(), num_sge: 1 };
    // SAFETY: request and piece live on this stack frame.
    unsafe { end.dev.post_srq_recv(srq, &wr, &mut std::ptr::null()) }
}

/// Destroys an SRQ and the ends whose queue pairs receive from it.
fn end_with_srq<const N: usize>(ends: [End<'_>; N], srq: Handle) {
    ends.iter().for_each(|end| end.dev.qp_destroy(end.qp).unwrap());
    ends[0].dev.srq_destroy(srq).unwrap();
    for End { dev, cq, mr, pd, .. } in &ends {
        dev.cq_destroy(*cq).and(dev.mr_dereg(*mr)).and(dev.pd_dealloc(*pd)).unwrap();
    }
}

fn resized_srq(t: Bench<'_>) -> Outcome {
    let shape = Shape { cqe: 512, ..Shape::default() };
    let (mut a, mut b) = (End::new(t.a, shape).unwrap(), End::new(t.b, shape).unwrap());
    let attr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let (srq, SrqAttr { max_wr: before, .. }) = t.b.srq_create(b.pd, &attr).unwrap();
    let pd = b.pd;
    on_srq(&mut b, pd, srq);
    connect_both(&mut a, &mut b);
    // More than it has room for, where a queue in front of it has some, too.
    let mut posted = 0;
    while post_shared(&b, srq, posted, posted % 16 * 64).is_ok() {
        posted += 1;
    }
    let (small, large) = (posted as u32, 4 * before);
    match t.b.srq_resize(srq, large, Some(2)) {
        Err(Error::Unsupported) => {
            a.destroy().unwrap();
            end_with_srq([b], srq);
            return Outcome::Skipped("SRQs keep their size".into());
        }
        given => assert!(given.unwrap() >= large),
    }
    let now = t.b.srq_query(srq).unwrap();
    assert!(now.max_wr >= large && now.srq_limit == 2, "{now:?}");
    while posted < large.into() {
        post_shared(&b, srq, posted, posted % 16 * 64).unwrap();
        posted += 1;
    }
    let mut exchange = |b: &mut End<'_>, from: u64, to: u64| {
        for i in from..to {
            a.buffer.write(0, &[i as u8; 64]);
            a.post(i, Op::Send(None), 0, 64).unwrap();
            succeed(&mut a, b, i);
            succeed(b, &mut a, i);
            assert_eq!(b.buffer.read(i as usize % 16 * 64, 64), [i as u8; 64]);
        }
    };
    exchange(&mut b, 0, 1);
    assert_eq!(t.b.srq_resize(srq, small.min(before), None), Err(Error::Invalid), "too many wait");
    assert_eq!(t.b.srq_resize(srq, 0, None), Err(Error::Invalid));
    assert_eq!(t.b.srq_resize(b.cq, large, None), Err(Error::StaleHandle));
    exchange(&mut b, 1, posted);
    let smaller = t.b.srq_resize(srq, before, Some(0)).unwrap();
    assert!((before..large).contains(&smaller), "{smaller}");
    for i in posted..posted + 3 * u64::from(before) {
        post_shared(&b, srq, i, i % 16 * 64).unwrap();
        exchange(&mut b, i, i + 1);
    }
    a.destroy().unwrap();
    end_with_srq([b], srq);
    Outcome::Passed
}

fn shared_receives(t: Bench<'_>) -> Outcome {
    let (mut a1, mut a2) =
        (End::new(t.a, Shape::default()).unwrap(), End::new(t.a, Shape::default()).unwrap());
    let (mut b1, mut b2) =
        (End::new(t.b, Shape::default()).unwrap(), End::new(t.b, Shape::default()).unwrap());
    let (srq, _) =
        t.b.srq_create(b1.pd, &SrqAttr { max_wr: 32, max_sge: 1, srq_limit: 0 }).unwrap();
    let pd = b1.pd;
    on_srq(&mut b1, pd, srq);
    on_srq(&mut b2, pd, srq);
    for (a, b) in [(&mut a1, &mut b1), (&mut a2, &mut b2)] {
        connect_both(a, b);
    }
    for i in 0..8u64 {
        post_shared(&b1, srq, 100 + i, i * 64).unwrap();
    }
    for i in 0..8u64 {
        let (a, b) = if i % 2 == 0 { (&mut a1, &mut b1) } else { (&mut a2, &mut b2) };
        a.buffer.write(0, &[i as u8 + 1; 64]);
        a.post(i, Op::Send(None), 0, 64).unwrap();
        succeed(a, b, i);
        let wc = succeed(b, a, 100 + i);
        assert_eq!(wc.qp_num, b.own.qpn);
        assert_eq!(b1.buffer.read(i as usize * 64, 64), [i as u8 + 1; 64]);
    }
    assert!(t.b.srq_query(srq).unwrap().max_wr >= 32);
    for e in [a1, a2] {
        e.destroy().unwrap();
    }
    end_with_srq([b1, b2], srq);
    Outcome::Passed
}

fn unreliable(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) =
        connected(t.a, t.b, Shape { qp_type: qp_type::UC, ..Shape::default() }).unwrap();
    for (i, len) in [0usize, 1, 1024, 1025, 40_000].into_iter().enumerate() {
        let bytes = pattern(i as u64, len);
        a.buffer.write(0, &bytes);
        b.post_recv(100, 0, 1 << 16).unwrap();
        a.post(1, Op::Send(None), 0, len as u32).unwrap();
        succeed(&mut a, &mut b, 1);
        assert_eq!(succeed(&mut b, &mut a, 100).byte_len as usize, len);
        assert!(b.buffer.read(0, len) == bytes);
    }
    b.post_recv(101, 0, 0).unwrap();
    a.buffer.write(0, b"unreliable");
    a.post(2, Op::Write(512, Some(9)), 0, 10).unwrap();
    succeed(&mut a, &mut b, 2);
    assert_eq!(succeed(&mut b, &mut a, 101).imm_data, 9);
    assert_eq!(b.buffer.read(512, 10), b"unreliable");
    finish(a, b)
}

fn datagrams(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) =
        connected(t.a, t.b, Shape { qp_type: qp_type::UD, ..Shape::default() }).unwrap();
    for (i, len) in [1usize, 200, 1024].into_iter().enumerate() {
        let bytes = pattern(i as u64, len);
        a.buffer.write(0, &bytes);
        b.post_recv(100, 0, 4096).unwrap();
        a.post(1, Op::Send(Some(3)), 0, len as u32).unwrap();
        succeed(&mut a, &mut b, 1);
        let wc = succeed(&mut b, &mut a, 100);
        assert_eq!((wc.byte_len as usize, wc.src_qp, wc.imm_data), (len + 40, a.own.qpn, 3));
        assert_ne!(wc.wc_flags & wc_flags::GRH, 0);
        assert!(b.buffer.read(40, len) == bytes);
    }
    // A list longer than one round of copying takes.
    let pieces = [a.piece(0, 8)];
    let mut wrs: Vec<_> = (0..20).map(|i| a.request(200 + i, Op::Send(None), &pieces)).collect();
    for i in 0..19 {
        wrs[i].next = &wrs[i + 1];
    }
    for i in 0..20 {
        b.post_recv(300 + i, 0, 4096).unwrap();
    }
    a.post_wr(&wrs[0]).unwrap();
    for i in 0..20 {
        succeed(&mut a, &mut b, 200 + i);
        succeed(&mut b, &mut a, 300 + i);
    }
    finish(a, b)
}

fn window(t: Bench<'_>) -> Outcome {
    let all = Shape::default().access | access::MW_BIND;
    let (mut a, mut b) = connected(t.a, t.b, Shape { access: all, ..Shape::default() }).unwrap();
    let (mw, first) = match b.dev.mw_alloc(b.pd, 2) {
        Ok(made) => made,
        Err(e) => {
            finish(a, b);
            return Outcome::Skipped(format!("no windows of type 2: {e}"));
        }
    };
    let rkey = (first & !0xFF) | (first.wrapping_add(1) & 0xFF);
    let mut bind = b.request(1, Op::Send(None), &[]);
    bind.opcode = wr_opcode::BIND_MW;
    let flags = access::REMOTE_WRITE | access::REMOTE_READ;
    let bind_info =
        MwBindInfo { mr: b.mr, addr: b.attr.iova + 4096, length: 4096, mw_access_flags: flags };
    // The low byte of the key counts.
    bind.ext.bind_mw = BindMwWr { mw, rkey: rkey & 0xFF, bind_info };
    b.post_wr(&bind).unwrap();
    assert_eq!(succeed(&mut b, &mut a, 1).opcode, wc_opcode::BIND_MW);
    a.peer.rkey = rkey;
    a.buffer.write(0, b"by the window");
    a.post(2, Op::Write(4096, None), 0, 13).unwrap();
    succeed(&mut a, &mut b, 2);
    assert_eq!(b.buffer.read(4096, 13), b"by the window");
    b.post_recv(100, 0, 64).unwrap();
    a.post(3, Op::SendInv(rkey), 0, 8).unwrap();
    succeed(&mut a, &mut b, 3);
    let wc = succeed(&mut b, &mut a, 100);
    // Linux 6.1's rxe reports another flag here.
    let flag = if t.kind.is_nic() {
        wc_flags::WITH_INV | wc_flags::IP_CSUM_OK
    } else {
        wc_flags::WITH_INV
    };
    assert!(wc.wc_flags & flag != 0 && wc.imm_data == rkey, "{wc:?}");
    b.dev.mw_dealloc(mw).unwrap();
    // Windows that do not exist must be refused, not dereferenced.
    let mut bad = b.request(4, Op::Send(None), &[]);
    bad.opcode = wr_opcode::BIND_MW;
    for (mw, mr) in [(mw, b.mr), (0, 0), (u64::MAX, b.mr), (b.mr, b.mr), (0x1000, 0x1000)] {
        bad.ext.bind_mw = BindMwWr { mw, rkey, bind_info: MwBindInfo { mr, ..bind_info } };
        if b.post_wr(&bad).is_ok() {
            // A soft device may accept the request and fail it later.
            let wc = crate::ends::complete(&mut b, &mut a, 4, std::time::Duration::from_secs(60));
            assert_ne!(wc.status, 0, "a window that does not exist was bound");
        }
    }
    finish(a, b)
}

fn many(t: Bench<'_>) -> Outcome {
    let shape = Shape { buffer: 1 << 16, ..Shape::default() };
    let mut pairs: Vec<_> = (0..16).map(|_| connected(t.a, t.b, shape).unwrap()).collect();
    for (i, (a, _)) in pairs.iter_mut().enumerate() {
        a.buffer.write(0, &pattern(i as u64, 30_000));
        for k in 0..3 {
            a.post(k, Op::Write(k * 10_000, None), k * 10_000, 10_000).unwrap();
        }
    }
    for (i, (a, b)) in pairs.iter_mut().enumerate() {
        for k in 0..3 {
            succeed(a, b, k);
        }
        assert!(b.buffer.read(0, 30_000) == pattern(i as u64, 30_000), "queue pair {i}");
    }
    for (a, b) in pairs {
        finish(a, b);
    }
    Outcome::Passed
}

fn iova(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    for (iova, flag) in [(0, access::ZERO_BASED), (0x7000_0000_0000, 0)] {
        let flags = b.shape.access | flag;
        let reg = gdrcore_core::device::MrReg {
            pd: b.pd,
            addr: b.buffer.addr(),
            length: 8192,
            iova,
            access: flags,
            provider: 0,
            cookie: 0,
        };
        let (mr, attr) = b.dev.mr_reg(&reg).unwrap();
        assert_eq!(attr.iova, iova);
        (a.peer.addr, a.peer.rkey) = (iova, attr.rkey);
        a.buffer.write(0, b"counted from elsewhere");
        a.post(1, Op::Write(4000, None), 0, 22).unwrap();
        succeed(&mut a, &mut b, 1);
        assert_eq!(b.buffer.read(4000, 22), b"counted from elsewhere");
        b.dev.mr_dereg(mr).unwrap();
    }
    finish(a, b)
}

fn path_mtu(t: Bench<'_>) -> Outcome {
    let top = t.a.query().unwrap().active_mtu.min(t.b.query().unwrap().active_mtu);
    for code in mtu::MTU_256..=top {
        let (mut a, mut b) = connected(t.a, t.b, Shape { mtu: code, ..Shape::default() }).unwrap();
        let bytes = pattern(u64::from(code), 20_001);
        a.buffer.write(0, &bytes);
        a.post(1, Op::Write(0, None), 0, 20_001).unwrap();
        succeed(&mut a, &mut b, 1);
        assert!(b.buffer.read(0, 20_001) == bytes, "MTU code {code}");
        finish(a, b);
    }
    Outcome::Passed
}
