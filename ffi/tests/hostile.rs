//! The C calls over the real soft device with arguments that no correct program passes. Nothing may
//! panic (which would abort), fault, loop for ever, or write elsewhere. Here one call at a time; in
//! any order: `fuzz/src/capi`.

mod common;

use common::*;
use core::ptr::{null, null_mut};
use gdrcore::*;

#[test]
fn lists_of_requests_that_never_end_stop_at_the_queues_depth() {
    let ctx = Ctx::open(c"loopback", None);
    let (a, b) = (side(&ctx, qp_type::RC, 4096), side(&ctx, qp_type::RC, 4096));
    connect(&a, &b);
    let mut wr: RecvWr = zeroed();
    wr.next = &mut wr;
    let mut bad = null();
    assert_eq!(c!(gdrc_post_recv(a.ctx, a.qp, &wr, &mut bad)), -libc::EAGAIN);
    assert!(core::ptr::eq(bad, &wr));
    // No receive is posted at b's side, so these wait, and the send queue fills.
    let mut wr: SendWr = zeroed();
    wr.opcode = wr_opcode::SEND;
    wr.next = &mut wr;
    let mut bad = null();
    assert_eq!(c!(gdrc_post_send(a.ctx, a.qp, &wr, &mut bad)), -libc::EAGAIN);
    assert!(core::ptr::eq(bad, &wr));
}

#[test]
fn piece_counts_out_of_range_are_refused() {
    let ctx = Ctx::open(c"loopback", None);
    let (a, b) = (side(&ctx, qp_type::RC, 4096), side(&ctx, qp_type::RC, 4096));
    connect(&a, &b);
    for num_sge in [-1, i32::MIN, 17, 65_536, i32::MAX] {
        let mut s: SendWr = zeroed();
        (s.num_sge, s.opcode) = (num_sge, wr_opcode::SEND);
        assert_eq!(c!(gdrc_post_send(a.ctx, a.qp, &s, null_mut())), -libc::EINVAL, "{num_sge}");
        let mut r: RecvWr = zeroed();
        r.num_sge = num_sge;
        assert_eq!(c!(gdrc_post_recv(a.ctx, a.qp, &r, null_mut())), -libc::EINVAL, "{num_sge}");
    }
    // A list that num_sge promises but that is not there.
    let mut s: SendWr = zeroed();
    (s.num_sge, s.opcode) = (1, wr_opcode::SEND);
    assert_eq!(c!(gdrc_post_send(a.ctx, a.qp, &s, null_mut())), -libc::EINVAL);
    let mut r: RecvWr = zeroed();
    r.num_sge = 1;
    assert_eq!(c!(gdrc_post_recv(a.ctx, a.qp, &r, null_mut())), -libc::EINVAL);
}

#[test]
fn sizes_beyond_every_bound_are_refused() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, qp_type::RC, 4096);
    for n in [0, u32::MAX, 1 << 31, (1 << 31) + 1, 1 << 30] {
        assert!(c!(gdrc_cq_create(ctx.0, n, &mut gdrc_cq::default(), null_mut())) < 0, "{n}");
        assert!(c!(gdrc_cq_resize(ctx.0, s.cq, n, null_mut())) < 0, "{n}");
        let mut q: gdrc_srq_attr = sized();
        (q.max_wr, q.max_sge) = (n, 1);
        assert!(c!(gdrc_srq_create(ctx.0, s.pd, &mut q, &mut gdrc_srq::default())) < 0, "{n}");
    }
    for n in [u32::MAX, 1 << 31, 1 << 30] {
        for field in 0..5 {
            let mut init: gdrc_qp_init = sized();
            (init.pd, init.send_cq, init.recv_cq, init.qp_type) = (s.pd, s.cq, s.cq, qp_type::RC);
            let mut cap = [4, 4, 1, 1, 0];
            cap[field] = n;
            let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = cap;
            init.cap =
                QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
            let rc = c!(gdrc_qp_create(ctx.0, &mut init, &mut gdrc_qp::default(), null_mut()));
            assert!(rc == -libc::EINVAL || rc == -libc::ENOMEM, "{field} {n}: {rc}");
        }
    }
    let mut config: gdrc_config = sized();
    let words = size_of::<gdrc_config>() / 4;
    for at in 2..words {
        for v in [u32::MAX, 1 << 31, 1 << 30, 3] {
            let mut raw = [0u32; size_of::<gdrc_config>() / 4];
            (raw[0], raw[at]) = (config.struct_size, v);
            if (20..22).contains(&at) || (30..34).contains(&at) {
                continue; // the pointers: the capture's path, the rules of faults, strict's words
            }
            let mut bytes = 0;
            let rc = c!(gdrc_context_size(c"loopback".as_ptr(), raw.as_ptr().cast(), &mut bytes));
            assert!(rc <= 0 && (rc < 0) == (bytes == 0), "word {at} = {v}: {rc}, {bytes} bytes");
        }
    }
    config.struct_size = 4;
    assert_eq!(c!(gdrc_context_size(c"loopback".as_ptr(), &config, &mut 0)), 0);
}

#[test]
fn full_pools_return_enomem_and_recover() {
    let mut config: gdrc_config = sized();
    (config.max_pd, config.max_cq, config.max_mr, config.max_qp, config.max_ah) = (2, 2, 2, 2, 2);
    let ctx = Ctx::open(c"loopback", Some(&config));
    // Tables grow by chunks; the device reports its limit.
    let mut attr: gdrc_device_attr = sized();
    assert_eq!(c!(gdrc_device_query(ctx.0, &mut attr)), 0);
    assert!(attr.max_pd >= 2);
    let mut pds = Vec::new();
    let full = loop {
        let mut pd = gdrc_pd::default();
        match c!(gdrc_pd_alloc(ctx.0, &mut pd)) {
            0 => pds.push(pd),
            e => break e,
        }
        assert!(pds.len() <= attr.max_pd as usize);
    };
    assert_eq!(full, -libc::ENOMEM);
    assert!(pds.len() >= 2);
    for _ in 0..10_000 {
        let last = pds.pop().unwrap();
        assert_eq!(c!(gdrc_pd_dealloc(ctx.0, last)), 0);
        assert_eq!(c!(gdrc_pd_dealloc(ctx.0, last)), -libc::EINVAL);
        let mut pd = gdrc_pd::default();
        assert_eq!(c!(gdrc_pd_alloc(ctx.0, &mut pd)), 0);
        assert_ne!(
            pd.handle, last.handle,
            "a handle comes back only after its generations are used up"
        );
        pds.push(pd);
    }
}

#[test]
fn handles_of_one_kind_are_not_those_of_another() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, qp_type::RC, 4096);
    let all = [s.pd.handle, s.cq.handle, s.qp.handle, s.mr.handle];
    for handle in all {
        let inval = -libc::EINVAL;
        if handle != s.qp.handle {
            assert_eq!(c!(gdrc_qp_destroy(ctx.0, gdrc_qp { handle })), inval);
            assert_eq!(c!(gdrc_qp_reset(ctx.0, gdrc_qp { handle })), inval);
        }
        if handle != s.cq.handle {
            assert_eq!(c!(gdrc_cq_destroy(ctx.0, gdrc_cq { handle })), inval);
        }
        if handle != s.mr.handle {
            assert_eq!(c!(gdrc_mr_dereg(ctx.0, gdrc_mr { handle })), inval);
        }
        if handle != s.pd.handle {
            assert_eq!(c!(gdrc_pd_dealloc(ctx.0, gdrc_pd { handle })), inval);
        }
        assert_eq!(c!(gdrc_srq_destroy(ctx.0, gdrc_srq { handle })), inval);
        assert_eq!(c!(gdrc_ah_destroy(ctx.0, gdrc_ah { handle })), inval);
        assert_eq!(c!(gdrc_mw_dealloc(ctx.0, gdrc_mw { handle })), inval);
    }
}

#[test]
fn unmapped_memory_is_not_registered() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, qp_type::RC, 4096);
    let mut mr = gdrc_mr::default();
    let at = core::ptr::without_provenance_mut;
    for (addr, len) in [
        (4096, 4096),
        (1 << 46, 1 << 40),
        (usize::MAX - 8192, 4096),
        (s.buf.as_ptr() as usize, 1 << 45),
    ] {
        let rc = c!(gdrc_mr_reg(ctx.0, s.pd, at(addr), len, ALL_ACCESS, &mut mr, null_mut()));
        assert!(rc == -libc::EFAULT || rc == -libc::EINVAL, "{addr:#x}+{len:#x}: {rc}");
    }
    // Read-only memory for remote write.
    let text = "constant".as_ptr().cast_mut().cast();
    assert!(c!(gdrc_mr_reg(ctx.0, s.pd, text, 8, ALL_ACCESS, &mut mr, null_mut())) < 0);
    assert_eq!(c!(gdrc_mr_reg(ctx.0, s.pd, text, 8, access::REMOTE_READ, &mut mr, null_mut())), 0);
    // Remote write without local write.
    let buf = s.buf.as_ptr().cast_mut().cast();
    assert_eq!(
        c!(gdrc_mr_reg(ctx.0, s.pd, buf, 8, access::REMOTE_WRITE, &mut mr, null_mut())),
        -libc::EINVAL
    );
    assert!(c!(gdrc_mr_reg(ctx.0, s.pd, buf, 8, 1 << 31, &mut mr, null_mut())) < 0);
}
