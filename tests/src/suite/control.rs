//! Behaviour cases of objects: creation, queries, changes, destruction, and checked handles.

use super::{until, Bench, End as Outcome};
use crate::ends::{connect_both, connected, connected_pair, pattern, succeed, End, Op, Shape};
use gdrcore_core::device::{MrReg, SrqAttr};
use gdrcore_core::verbs::types::{
    access, qp_attr_mask as mask, qp_state, qp_type, wc_status, AhAttr, QpAttr, QpCap, QpInit, Wc,
};
use gdrcore_core::Error;

type Run = fn(Bench<'_>) -> Outcome;

/// The cases of this file.
pub const CASES: &[(&str, Run)] = &[
    ("the device reports its capabilities", query),
    ("handles that are stale, foreign or invented are refused", handles),
    ("objects that others depend on are not destroyed", dependents),
    ("a queue pair reports its connection", qp_query),
    ("transitions that do not exist are refused", transitions),
    ("invalid regions are refused", bad_regions),
    ("limits are exact and errors release everything", bounds),
    ("a CQ is resized with completions in it", resize),
    ("reset and reconnected ten times, nothing lost", recovery),
    ("created and destroyed 200 times", churn),
];

fn query(t: Bench<'_>) -> Outcome {
    for dev in [t.a, t.b] {
        let d = dev.query().unwrap();
        assert!(
            d.max_qp > 0 && d.max_cq > 0 && d.max_mr > 0 && d.max_pd > 0 && d.max_sge > 0,
            "{d:?}"
        );
        assert!(d.max_msg_size >= 1 << 20 && d.max_cqe > 0 && d.max_qp_wr > 0, "{d:?}");
        assert!((1..=5).contains(&d.active_mtu) && d.udp_port != 0 && d.gid != [0; 16], "{d:?}");
        dev.counters().unwrap();
        dev.last_cause().unwrap();
    }
    Outcome::Passed
}

fn handles(t: Bench<'_>) -> Outcome {
    let dev = t.a;
    let e = End::new(dev, Shape::default()).unwrap();
    let old = End::new(dev, Shape::default()).unwrap();
    let gone = [old.pd, old.mr, old.cq, old.qp];
    old.destroy().unwrap();
    let invented =
        [0, 1, u64::MAX, e.buffer.addr(), e.qp ^ 1, e.qp ^ (1 << 32), e.qp.wrapping_add(1 << 33)];
    let stale = Some(Error::StaleHandle);
    for h in gone.into_iter().chain(invented) {
        let mut wc = [Wc::default(); 1];
        assert_eq!(dev.poll_cq(h, &mut wc).err(), stale, "{h:#x}");
        assert_eq!(dev.cq_arm(h, false).err(), stale, "{h:#x}");
        assert_eq!(dev.cq_destroy(h).err(), stale, "{h:#x}");
        assert_eq!(dev.mr_query(h).err(), stale, "{h:#x}");
        assert_eq!(dev.mr_dereg(h).err(), stale, "{h:#x}");
        assert_eq!(dev.pd_dealloc(h).err(), stale, "{h:#x}");
        assert_eq!(dev.qp_query(h).err(), stale, "{h:#x}");
        assert_eq!(dev.qp_destroy(h).err(), stale, "{h:#x}");
        assert_eq!(dev.qp_reset(h).err(), stale, "{h:#x}");
        assert_eq!(dev.qp_num(h).err(), stale, "{h:#x}");
        assert_eq!(dev.qp_cause(h).err(), stale, "{h:#x}");
        assert_eq!(dev.ah_destroy(h).err(), stale, "{h:#x}");
        assert_eq!(dev.srq_destroy(h).err(), stale, "{h:#x}");
        assert_eq!(dev.srq_query(h).err(), stale, "{h:#x}");
        assert_eq!(dev.mw_dealloc(h).err(), stale, "{h:#x}");
        let wr = e.request(1, Op::Write(0, None), &[]);
        let mut bad = std::ptr::null();
        // SAFETY: a list of one on this stack frame.
        assert_eq!(unsafe { dev.post_send(h, &wr, &mut bad) }.err(), stale, "{h:#x}");
        let reg = MrReg {
            pd: h,
            addr: e.buffer.addr(),
            length: 64,
            iova: 0,
            access: 1,
            provider: 0,
            cookie: 0,
        };
        assert_eq!(dev.mr_reg(&reg).err(), stale, "{h:#x}");
    }
    // A handle of another type.
    assert_eq!(dev.cq_destroy(e.qp).err(), stale);
    assert_eq!(dev.qp_destroy(e.cq).err(), stale);
    assert_eq!(dev.pd_dealloc(e.mr).err(), stale);
    e.destroy().unwrap();
    Outcome::Passed
}

fn dependents(t: Bench<'_>) -> Outcome {
    let e = End::new(t.a, Shape::default()).unwrap();
    let busy = Err(Error::Busy);
    assert_eq!(t.a.pd_dealloc(e.pd), busy, "a PD with a region and a queue pair");
    assert_eq!(t.a.cq_destroy(e.cq), busy, "a CQ with a queue pair");
    let (srq, _) = t.a.srq_create(e.pd, &SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 }).unwrap();
    // Beside an SRQ the sizes of receives are ignored.
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: u32::MAX,
        max_send_sge: 1,
        max_recv_sge: u32::MAX,
        max_inline_data: 0,
    };
    let init = QpInit {
        xrcd: 0,
        dc_key: 0,
        pd: e.pd,
        send_cq: e.cq,
        recv_cq: e.cq,
        srq,
        qp_type: qp_type::RC,
        sq_sig_all: 0,
        cap,
    };
    let (qp, ..) = t.a.qp_create(&init).unwrap();
    assert_eq!(t.a.srq_destroy(srq), busy, "an SRQ with a queue pair");
    t.a.qp_destroy(qp).unwrap();
    t.a.srq_destroy(srq).unwrap();
    let d = t.a.query().unwrap();
    let ah =
        t.a.ah_create(e.pd, &AhAttr { dgid: d.gid, scope_id: d.scope_id, ..AhAttr::default() })
            .unwrap();
    for _ in 0..2 {
        t.a.qp_pin(e.qp).unwrap();
        t.a.cq_pin(e.cq).unwrap();
    }
    assert_eq!(
        (t.a.qp_pin(e.cq), t.a.cq_pin(e.qp)),
        (Err(Error::StaleHandle), Err(Error::StaleHandle))
    );
    for _ in 0..2 {
        assert_eq!(t.a.qp_destroy(e.qp), busy, "a queue pair that is pinned");
        t.a.qp_unpin(e.qp).unwrap();
    }
    t.a.qp_destroy(e.qp).unwrap();
    for _ in 0..2 {
        assert_eq!(t.a.cq_destroy(e.cq), busy, "a CQ that is pinned");
        t.a.cq_unpin(e.cq).unwrap();
    }
    t.a.cq_destroy(e.cq).unwrap();
    t.a.mr_dereg(e.mr).unwrap();
    assert_eq!(t.a.pd_dealloc(e.pd), busy, "a PD with an address handle");
    t.a.ah_destroy(ah).unwrap();
    t.a.pd_dealloc(e.pd).unwrap();
    Outcome::Passed
}

fn qp_query(t: Bench<'_>) -> Outcome {
    let (a, b) = connected_pair(t.a, t.b);
    let (attr, init) = t.a.qp_query(a.qp).unwrap();
    assert_eq!(
        (attr.qp_state, attr.dest_qp_num, attr.path_mtu),
        (qp_state::RTS, b.own.qpn, a.shape.mtu),
        "{attr:?}"
    );
    let timeout = Shape::default().timeout;
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (timeout, 7, 7), "{attr:?}");
    assert_eq!((attr.port_num, attr.ah.dgid), (1, b.own.ah.dgid), "{attr:?}");
    assert_eq!(
        (init.pd, init.send_cq, init.recv_cq, init.srq, init.qp_type),
        (a.pd, a.cq, a.cq, 0, qp_type::RC)
    );
    assert!(init.cap.max_send_wr >= 64 && init.cap.max_recv_sge >= 4, "{init:?}");
    assert_eq!(t.a.qp_num(a.qp), Ok(a.own.qpn));
    a.destroy().unwrap();
    b.destroy().unwrap();
    Outcome::Passed
}

fn transitions(t: Bench<'_>) -> Outcome {
    let mut e = End::new(t.a, Shape::default()).unwrap();
    let to = |state, set| {
        t.a.qp_modify(e.qp, &QpAttr { qp_state: state, port_num: 1, ..QpAttr::default() }, set)
    };
    assert_eq!(to(qp_state::RTS, mask::STATE), Err(Error::Invalid), "RESET to RTS");
    assert_eq!(to(qp_state::RTR, mask::STATE), Err(Error::Invalid), "RESET to RTR");
    assert_eq!(to(qp_state::INIT, mask::STATE), Err(Error::Invalid), "INIT without its attributes");
    e.to_init().unwrap();
    let to =
        |state, set| t.a.qp_modify(e.qp, &QpAttr { qp_state: state, ..QpAttr::default() }, set);
    assert_eq!(to(qp_state::RTS, mask::STATE), Err(Error::Invalid), "INIT to RTS");
    assert_eq!(to(77, mask::STATE), Err(Error::Invalid), "a state that does not exist");
    to(qp_state::ERR, mask::STATE).unwrap();
    to(qp_state::RESET, mask::STATE).unwrap();
    e.to_init().unwrap();
    e.destroy().unwrap();
    Outcome::Passed
}

fn bad_regions(t: Bench<'_>) -> Outcome {
    let e = End::new(t.a, Shape::default()).unwrap();
    let at = e.buffer.addr();
    let reg = |addr, length, access| {
        let reg = MrReg { pd: e.pd, addr, length, iova: addr, access, provider: 0, cookie: 0 };
        t.a.mr_reg(&reg).map(|_| ()).err()
    };
    assert_eq!(
        reg(at, 4096, access::REMOTE_WRITE),
        Some(Error::Invalid),
        "remote without local write"
    );
    assert_eq!(
        reg(at, 4096, access::REMOTE_ATOMIC),
        Some(Error::Invalid),
        "remote atomics without local write"
    );
    assert_eq!(reg(at, 4096, 1 << 12), Some(Error::Invalid), "an access that does not exist");
    assert_eq!(reg(4096, 4096, 1), Some(Error::Fault), "a page that is not mapped");
    assert!(reg(at, 1 << 60, 1).is_some(), "a region beyond the address space");
    e.destroy().unwrap();
    Outcome::Passed
}

fn bounds(t: Bench<'_>) -> Outcome {
    let before = t.a.leaks().unwrap();
    let mut pds = Vec::new();
    let refused = loop {
        match t.a.pd_alloc() {
            Ok(pd) => pds.push(pd),
            Err(e) => break e,
        }
        assert!(pds.len() <= 1 << 17, "the number of protection domains has no limit");
    };
    assert_eq!(refused, Error::NoMemory);
    for pd in pds {
        t.a.pd_dealloc(pd).unwrap();
    }
    assert_eq!(t.a.leaks().unwrap(), before);
    assert!(t.a.cq_create(0).is_err() && t.a.cq_create(u32::MAX).is_err());
    let pd = t.a.pd_alloc().unwrap();
    let (cq, given) = t.a.cq_create(10).unwrap();
    assert!(given >= 10);
    let cap = |n| QpCap {
        max_send_wr: n,
        max_recv_wr: n,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init = |qp_type, n| QpInit {
        xrcd: 0,
        dc_key: 0,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: 0,
        qp_type,
        sq_sig_all: 0,
        cap: cap(n),
    };
    assert!(t.a.qp_create(&init(qp_type::RC, u32::MAX)).is_err(), "the largest depth");
    assert_eq!(
        t.a.qp_create(&init(99, 4)).map(|_| ()),
        Err(Error::Invalid),
        "a type that does not exist"
    );
    t.a.cq_destroy(cq).unwrap();
    t.a.pd_dealloc(pd).unwrap();
    assert_eq!(t.a.leaks().unwrap(), before);
    Outcome::Passed
}

fn resize(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected(t.a, t.b, Shape { cqe: 64, ..Shape::default() }).unwrap();
    for i in 0..20 {
        a.post(i, Op::Write(0, None), 0, 8).unwrap();
    }
    // The last request has completed, so all have; the CQ holds the completions that were not
    // polled.
    let mut wc = [Wc::default(); 1];
    until("the first completion", || {
        b.poll();
        a.dev.poll_cq(a.cq, &mut wc).unwrap() == 1
    });
    assert_eq!(wc[0].wr_id, 0);
    assert!(a.dev.cq_resize(a.cq, 200).unwrap() >= 200);
    for i in 1..20 {
        succeed(&mut a, &mut b, i);
    }
    assert_eq!(a.dev.cq_resize(a.cq, 0), Err(Error::Invalid));
    a.destroy().unwrap();
    b.destroy().unwrap();
    Outcome::Passed
}

fn recovery(t: Bench<'_>) -> Outcome {
    for kind in [qp_type::RC, qp_type::UD] {
        let shape = Shape { qp_type: kind, timeout: 10, retry_cnt: 1, ..Shape::default() };
        let (mut a, mut b) = connected(t.a, t.b, shape).unwrap();
        for round in 0..10u64 {
            b.post_recv(100, 0, 4096).unwrap();
            let bytes = pattern(round, 500);
            a.buffer.write(0, &bytes);
            a.post(1, Op::Send(None), 0, 500).unwrap();
            succeed(&mut a, &mut b, 1);
            succeed(&mut b, &mut a, 100);
            let grh = if kind == qp_type::UD { 40 } else { 0 };
            assert!(b.buffer.read(grh, 500) == bytes, "round {round}");
            // Receives that no message consumes, and for RC a WRITE that is refused.
            for i in 0..4 {
                a.post_recv(200 + i, 0, 64).unwrap();
            }
            let mut expected = 4;
            if kind == qp_type::RC && round % 2 == 1 {
                let rkey = std::mem::replace(&mut a.peer.rkey, 0);
                a.post(2, Op::Write(0, None), 0, 8).unwrap();
                a.peer.rkey = rkey;
                expected += 1;
            }
            for e in [&mut a, &mut b] {
                let mut reset = Err(Error::Again);
                until("reset", || {
                    reset = e.dev.qp_reset(e.qp);
                    e.poll();
                    reset != Err(Error::Again)
                });
                reset.unwrap();
                e.poll();
            }
            assert_eq!(a.done.len(), expected, "round {round}: {:?}", a.done);
            assert!(b.done.is_empty(), "round {round}: {:?}", b.done);
            for wc in a.done.drain(..).filter(|wc| wc.wr_id >= 200) {
                assert_eq!(wc.status, wc_status::WR_FLUSH_ERR);
            }
            for e in [&mut a, &mut b] {
                e.own.psn = (e.own.psn + 0x10_0000) & 0xFF_FFFF;
                if e.ah != 0 {
                    e.dev.ah_destroy(e.ah).unwrap();
                }
            }
            connect_both(&mut a, &mut b);
        }
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
    Outcome::Passed
}

fn churn(t: Bench<'_>) -> Outcome {
    for i in 0..100u64 {
        let (mut a, mut b) =
            connected(t.a, t.b, Shape { buffer: 4096, ..Shape::default() }).unwrap();
        a.post(i, Op::Write(0, None), 0, 64).unwrap();
        succeed(&mut a, &mut b, i);
        a.destroy().unwrap();
        b.destroy().unwrap();
    }
    Outcome::Passed
}
