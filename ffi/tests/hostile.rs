//! The C calls over the real soft device with arguments that no sane program passes. Nothing may panic (which would abort),
//! fault, loop for ever, or write where it was not told to.

mod common;

use common::*;
use core::ptr::{null, null_mut};
use gdrcore::connect::gdrc_qp_connect;
use gdrcore::consts::*;
use gdrcore::context::*;
use gdrcore::data::*;
use gdrcore::endpoint::*;
use gdrcore::objects::*;
use gdrcore::qp::*;
use gdrcore::stats::*;
use gdrcore::types::*;

#[test]
fn lists_of_requests_that_never_end_stop_at_the_queues_depth() {
    let ctx = Ctx::open(c"loopback", None);
    let (a, b) = (side(&ctx, GDRC_QPT_RC, 4096), side(&ctx, GDRC_QPT_RC, 4096));
    connect(&a, &b);
    let mut wr: gdrc_recv_wr = zeroed();
    wr.next = &mut wr;
    let mut bad = null();
    assert_eq!(c!(gdrc_post_recv(a.ctx, a.qp, &wr, &mut bad)), -libc::EAGAIN);
    assert!(core::ptr::eq(bad, &wr));
    // No receive is posted at b's side, so these wait, and the send queue fills.
    let mut wr: gdrc_send_wr = zeroed();
    wr.opcode = GDRC_WR_SEND;
    wr.next = &mut wr;
    let mut bad = null();
    assert_eq!(c!(gdrc_post_send(a.ctx, a.qp, &wr, &mut bad)), -libc::EAGAIN);
    assert!(core::ptr::eq(bad, &wr));
}

#[test]
fn piece_counts_out_of_range_are_refused() {
    let ctx = Ctx::open(c"loopback", None);
    let (a, b) = (side(&ctx, GDRC_QPT_RC, 4096), side(&ctx, GDRC_QPT_RC, 4096));
    connect(&a, &b);
    for num_sge in [-1, i32::MIN, 17, 65_536, i32::MAX] {
        let mut s: gdrc_send_wr = zeroed();
        (s.num_sge, s.opcode) = (num_sge, GDRC_WR_SEND);
        assert_eq!(c!(gdrc_post_send(a.ctx, a.qp, &s, null_mut())), -libc::EINVAL, "{num_sge}");
        let mut r: gdrc_recv_wr = zeroed();
        r.num_sge = num_sge;
        assert_eq!(c!(gdrc_post_recv(a.ctx, a.qp, &r, null_mut())), -libc::EINVAL, "{num_sge}");
    }
    // A list that is promised and not there.
    let mut s: gdrc_send_wr = zeroed();
    (s.num_sge, s.opcode) = (1, GDRC_WR_SEND);
    assert_eq!(c!(gdrc_post_send(a.ctx, a.qp, &s, null_mut())), -libc::EINVAL);
    let mut r: gdrc_recv_wr = zeroed();
    r.num_sge = 1;
    assert_eq!(c!(gdrc_post_recv(a.ctx, a.qp, &r, null_mut())), -libc::EINVAL);
}

#[test]
fn sizes_beyond_every_bound_are_refused() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, GDRC_QPT_RC, 4096);
    for n in [0, u32::MAX, 1 << 31, (1 << 31) + 1, 1 << 30] {
        assert!(c!(gdrc_cq_create(ctx.0, n, &mut gdrc_cq::default())) < 0, "{n}");
        assert!(c!(gdrc_cq_resize(ctx.0, s.cq, n)) < 0, "{n}");
        let mut q: gdrc_srq_attr = sized();
        (q.max_wr, q.max_sge) = (n, 1);
        assert!(c!(gdrc_srq_create(ctx.0, s.pd, &mut q, &mut gdrc_srq::default())) < 0, "{n}");
    }
    for n in [u32::MAX, 1 << 31, 1 << 30] {
        for field in 0..5 {
            let mut init: gdrc_qp_init = sized();
            (init.pd, init.send_cq, init.recv_cq, init.qp_type) = (s.pd, s.cq, s.cq, GDRC_QPT_RC);
            let mut cap = [4, 4, 1, 1, 0];
            cap[field] = n;
            let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = cap;
            init.cap = gdrc_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
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
            if (20..22).contains(&at) {
                continue; // the path's pointer
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
fn pools_that_are_full_say_enomem_and_recover() {
    let mut config: gdrc_config = sized();
    (config.max_pd, config.max_cq, config.max_mr, config.max_qp, config.max_ah) = (2, 2, 2, 2, 2);
    let ctx = Ctx::open(c"loopback", Some(&config));
    // Tables grow by chunks: the device says how far.
    let mut attr: gdrc_device_attr = sized();
    assert_eq!(c!(gdrc_query_device(ctx.0, &mut attr)), 0);
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
        assert_ne!(pd.handle, last.handle, "a handle comes back only after its generations are used up");
        pds.push(pd);
    }
}

#[test]
fn handles_of_one_kind_are_not_those_of_another() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, GDRC_QPT_RC, 4096);
    let all = [s.pd.handle, s.cq.handle, s.qp.handle, s.mr.handle];
    for handle in all {
        let inval = -libc::EINVAL;
        if handle != s.qp.handle {
            assert_eq!(c!(gdrc_qp_destroy(ctx.0, gdrc_qp { handle })), inval);
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
fn memory_that_is_not_there_is_not_registered() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, GDRC_QPT_RC, 4096);
    let mut mr = gdrc_mr::default();
    let at = core::ptr::without_provenance_mut;
    for (addr, len) in [(4096, 4096), (1 << 46, 1 << 40), (usize::MAX - 8192, 4096), (s.buf.as_ptr() as usize, 1 << 45)]
    {
        let rc = c!(gdrc_mr_reg(ctx.0, s.pd, at(addr), len, ALL_ACCESS, &mut mr, null_mut()));
        assert!(rc == -libc::EFAULT || rc == -libc::EINVAL, "{addr:#x}+{len:#x}: {rc}");
    }
    // Read-only memory for remote write.
    let text = "constant".as_ptr().cast_mut().cast();
    assert!(c!(gdrc_mr_reg(ctx.0, s.pd, text, 8, ALL_ACCESS, &mut mr, null_mut())) < 0);
    assert_eq!(c!(gdrc_mr_reg(ctx.0, s.pd, text, 8, GDRC_ACCESS_REMOTE_READ, &mut mr, null_mut())), 0);
    // Remote write without local write.
    let buf = s.buf.as_ptr().cast_mut().cast();
    assert_eq!(c!(gdrc_mr_reg(ctx.0, s.pd, buf, 8, GDRC_ACCESS_REMOTE_WRITE, &mut mr, null_mut())), -libc::EINVAL);
    assert!(c!(gdrc_mr_reg(ctx.0, s.pd, buf, 8, 1 << 31, &mut mr, null_mut())) < 0);
}

/// A small generator (xorshift64*), so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// Mostly small, sometimes at an edge, sometimes anything.
    fn word(&mut self) -> u32 {
        match self.below(8) {
            0 => u32::MAX,
            1 => 1 << self.below(32),
            2 => self.next() as u32,
            _ => self.below(20) as u32,
        }
    }
    fn pick(&mut self, from: &[u64]) -> u64 {
        match self.below(12) {
            0 => self.next(),
            1 => 0,
            _ if from.is_empty() => 0,
            _ => from[self.below(from.len() as u64) as usize],
        }
    }
}

/// Every call with arguments that are part valid, part stale, part garbage, in any order.
fn walk(seed: u64, steps: u32) {
    let mut r = Random(seed | 1);
    let mut config: gdrc_config = sized();
    (config.max_qp, config.max_cq, config.max_pd, config.max_mr, config.ring_bytes) = (6, 6, 4, 12, 1 << 20);
    (config.max_srq, config.max_ah, config.deadline_ms) = (3, 3, 50);
    let ctx = Ctx::open(c"loopback", Some(&config));
    let x = ctx.0;
    let mut mem = vec![0u8; 1 << 16].into_boxed_slice();
    // Handles of all kinds that were ever made, dead ones among them: each call gets any of them.
    let mut h: Vec<u64> = Vec::new();
    let mut keys: Vec<u64> = Vec::new();
    let mut ends: Vec<gdrc_endpoint> = Vec::new();
    for _ in 0..steps {
        let any = r.pick(&h);
        let other = r.pick(&h);
        match r.below(30) {
            0 => {
                let mut o = gdrc_pd::default();
                c!(gdrc_pd_alloc(x, &mut o));
                h.push(o.handle);
            }
            1 => {
                let mut o = gdrc_cq::default();
                c!(gdrc_cq_create(x, r.word(), &mut o));
                h.push(o.handle);
            }
            2 | 3 => {
                let (mut o, mut a) = (gdrc_mr::default(), sized::<gdrc_mr_attr>());
                let (at, len) = (r.below(1 << 15) as usize, r.below(1 << 15) as usize);
                let access = if r.below(3) == 0 { r.word() } else { ALL_ACCESS | GDRC_ACCESS_MW_BIND };
                let p = mem[at..].as_mut_ptr().cast();
                let iova = if r.below(2) == 0 { r.next() } else { 0 };
                c!(gdrc_mr_reg_iova(x, gdrc_pd { handle: any }, p, len, iova, access, &mut o, &mut a));
                h.push(o.handle);
                keys.push(u64::from(a.lkey));
                keys.push(u64::from(a.rkey));
            }
            4..=6 => {
                let mut init: gdrc_qp_init = sized();
                (init.pd.handle, init.send_cq.handle, init.recv_cq.handle) = (any, other, r.pick(&h));
                init.srq.handle = if r.below(3) == 0 { r.pick(&h) } else { 0 };
                init.qp_type = 2 + r.below(4) as u32;
                init.sq_sig_all = r.word();
                init.cap.max_send_wr = r.word();
                init.cap.max_recv_wr = r.word();
                init.cap.max_send_sge = r.below(6) as u32;
                init.cap.max_recv_sge = r.below(6) as u32;
                init.cap.max_inline_data = r.below(80) as u32;
                let mut o = gdrc_qp::default();
                if c!(gdrc_qp_create(x, &mut init, &mut o, null_mut())) == 0 {
                    let mut e: gdrc_endpoint = sized();
                    assert_eq!(c!(gdrc_endpoint_local(x, o, null(), &mut e)), 0);
                    ends.push(e);
                }
                h.push(o.handle);
            }
            7..=9 if !ends.is_empty() => {
                let n = ends.len() as u64;
                let (l, p) = (ends[r.below(n) as usize], ends[r.below(n) as usize]);
                for &handle in &h {
                    c!(gdrc_qp_connect(x, gdrc_qp { handle }, &l, &p, null()));
                }
            }
            10 => {
                let mut a: gdrc_qp_attr = sized();
                a.qp_state = r.below(9) as u32;
                (a.path_mtu, a.dest_qp_num, a.rq_psn, a.sq_psn) = (r.word(), r.word(), r.word(), r.word());
                (a.max_rd_atomic, a.max_dest_rd_atomic, a.timeout) = (r.word() as u8, r.word() as u8, r.word() as u8);
                (a.retry_cnt, a.rnr_retry, a.min_rnr_timer) = (r.word() as u8, r.word() as u8, r.word() as u8);
                (a.port_num, a.rate_limit_bps) = (r.below(3) as u8, r.next());
                c!(gdrc_qp_modify(x, gdrc_qp { handle: any }, &a, r.next() as u32 | 1));
            }
            11 => {
                let mut a: gdrc_srq_attr = sized();
                (a.max_wr, a.max_sge, a.srq_limit) = (r.word(), r.below(6) as u32, r.word());
                let mut o = gdrc_srq::default();
                c!(gdrc_srq_create(x, gdrc_pd { handle: any }, &mut a, &mut o));
                h.push(o.handle);
            }
            12 => {
                let (mut o, mut k) = (gdrc_mw::default(), 0);
                c!(gdrc_mw_alloc(x, gdrc_pd { handle: any }, r.below(4) as u32, &mut o, &mut k));
                h.push(o.handle);
                keys.push(u64::from(k));
            }
            13 => {
                let mut a: gdrc_ah_attr = zeroed();
                a.dgid = if r.below(2) == 0 {
                    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1]
                } else {
                    u128::from(r.next()).to_ne_bytes()
                };
                (a.udp_port, a.scope_id) = (r.word() as u16, r.word());
                let mut o = gdrc_ah::default();
                c!(gdrc_ah_create(x, gdrc_pd { handle: any }, &a, &mut o));
                h.push(o.handle);
            }
            14 => match r.below(12) {
                0 => _ = c!(gdrc_pd_dealloc(x, gdrc_pd { handle: any })),
                1 => _ = c!(gdrc_cq_destroy(x, gdrc_cq { handle: any })),
                2 => _ = c!(gdrc_mr_dereg(x, gdrc_mr { handle: any })),
                3 => _ = c!(gdrc_mw_dealloc(x, gdrc_mw { handle: any })),
                4 => _ = c!(gdrc_srq_destroy(x, gdrc_srq { handle: any })),
                5 => _ = c!(gdrc_ah_destroy(x, gdrc_ah { handle: any })),
                6 => _ = c!(gdrc_srq_modify(x, gdrc_srq { handle: any }, r.word())),
                7 => _ = c!(gdrc_cq_resize(x, gdrc_cq { handle: any }, r.word())),
                8 => _ = c!(gdrc_qp_destroy(x, gdrc_qp { handle: any })),
                _ => {}
            },
            15 => {
                c!(gdrc_mr_query(x, gdrc_mr { handle: any }, &mut sized()));
                c!(gdrc_srq_query(x, gdrc_srq { handle: any }, &mut sized()));
                c!(gdrc_qp_query(x, gdrc_qp { handle: any }, &mut sized(), &mut sized()));
                c!(gdrc_qp_cause(x, gdrc_qp { handle: any }, &mut zeroed()));
                c!(gdrc_qp_counters(x, gdrc_qp { handle: any }, &mut 0, 1));
                c!(gdrc_cq_arm(x, gdrc_cq { handle: any }, r.below(2) as i32));
            }
            16..=18 => {
                let mut sges = [gdrc_sge::default(); 6];
                for s in &mut sges {
                    s.addr = if r.below(2) == 0 { r.next() } else { mem.as_ptr() as u64 + r.below(1 << 15) };
                    (s.length, s.lkey) = (r.word(), r.pick(&keys) as u32);
                }
                let mut wr: gdrc_recv_wr = zeroed();
                (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), r.below(7) as i32 - 1);
                c!(gdrc_post_recv(x, gdrc_qp { handle: any }, &wr, null_mut()));
                c!(gdrc_post_srq_recv(x, gdrc_srq { handle: any }, &wr, null_mut()));
            }
            19..=25 => {
                let mut sges = [gdrc_sge::default(); 6];
                for s in &mut sges {
                    s.addr = if r.below(3) == 0 { r.next() } else { mem.as_ptr() as u64 + r.below(1 << 15) };
                    (s.length, s.lkey) = (r.word(), r.pick(&keys) as u32);
                }
                let mut wr: gdrc_send_wr = zeroed();
                (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), r.below(7) as i32 - 1);
                wr.opcode = r.below(12) as u32;
                // Inline data is read at post from the caller's own pointers, which must then be good.
                wr.send_flags = r.next() as u32 & !GDRC_SEND_INLINE;
                wr.imm_data = r.pick(&keys) as u32;
                let remote = if r.below(3) == 0 { r.next() } else { mem.as_ptr() as u64 + r.below(1 << 15) };
                match r.below(3) {
                    0 => {
                        let rkey = r.pick(&keys) as u32;
                        wr.wr.atomic =
                            gdrc_atomic_wr { remote_addr: remote & !7, compare_add: r.next(), swap: r.next(), rkey }
                    }
                    1 => {
                        let (remote_qpn, remote_qkey) = (r.word(), r.word());
                        wr.wr.ud = gdrc_ud_wr { ah: gdrc_ah { handle: other }, remote_qpn, remote_qkey }
                    }
                    _ => wr.wr.rdma = gdrc_rdma_wr { remote_addr: remote, rkey: r.pick(&keys) as u32 },
                }
                if wr.opcode == GDRC_WR_BIND_MW {
                    wr.bind_mw = gdrc_bind_mw_wr {
                        mw: gdrc_mw { handle: other },
                        rkey: r.pick(&keys) as u32,
                        bind_info: gdrc_mw_bind_info {
                            mr: gdrc_mr { handle: r.pick(&h) },
                            addr: remote,
                            length: u64::from(r.word()),
                            mw_access_flags: r.word(),
                        },
                    };
                }
                for &handle in h.iter().rev().take(8) {
                    c!(gdrc_post_send(x, gdrc_qp { handle }, &wr, null_mut()));
                }
            }
            26..=28 => {
                let mut wc = [gdrc_wc::default(); 8];
                for &handle in &h {
                    c!(gdrc_poll_cq(x, gdrc_cq { handle }, 1 + r.below(8) as i32, wc.as_mut_ptr()));
                }
                c!(gdrc_progress(x));
                c!(gdrc_cq_event(x, &mut gdrc_cq::default()));
                c!(gdrc_async_event(x, &mut zeroed()));
            }
            _ => {
                // Forget the oldest, so that pools empty and fill again.
                for handle in h.drain(..h.len() / 2) {
                    c!(gdrc_qp_destroy(x, gdrc_qp { handle }));
                    c!(gdrc_cq_destroy(x, gdrc_cq { handle }));
                    c!(gdrc_srq_destroy(x, gdrc_srq { handle }));
                    c!(gdrc_mr_dereg(x, gdrc_mr { handle }));
                    c!(gdrc_mw_dealloc(x, gdrc_mw { handle }));
                    c!(gdrc_ah_destroy(x, gdrc_ah { handle }));
                    c!(gdrc_pd_dealloc(x, gdrc_pd { handle }));
                }
                let keep = keys.len().saturating_sub(16);
                keys.drain(..keep);
                let keep = ends.len().saturating_sub(6);
                ends.drain(..keep);
            }
        }
        h.retain(|&v| v != 0);
    }
    assert!(ctx.close() >= 0);
}

#[test]
fn random_walks_of_all_calls_end_well() {
    for seed in 1..=12 {
        walk(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed), 4000);
    }
}
