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
    /// One of `from`, mostly the later ones; sometimes nothing or garbage.
    fn pick(&mut self, from: &[u64]) -> u64 {
        let n = from.len() as u64;
        match self.below(16) {
            0 => self.next(),
            1 => 0,
            _ if n == 0 => 0,
            2..=4 => from[self.below(n) as usize],
            _ => from[(n - 1 - self.below(n.min(6))) as usize],
        }
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What the walks reached, so that a walk that only meets refusals does not pass for a test.
#[derive(Debug, Default)]
struct Reached {
    qps: u32,
    connected: u32,
    sends: u32,
    receives: u32,
    good: u32,
    failed: u32,
    statuses: u32,
}

/// Handles of each kind that were ever made, dead ones among them, and what else calls take from earlier ones.
#[derive(Default)]
struct Made {
    pd: Vec<u64>,
    cq: Vec<u64>,
    mr: Vec<u64>,
    mw: Vec<u64>,
    qp: Vec<u64>,
    srq: Vec<u64>,
    ah: Vec<u64>,
    keys: Vec<u64>,
    ends: Vec<gdrc_endpoint>,
}

/// Every call with arguments that are part valid, part stale, part garbage, in any order.
struct Walk {
    r: Random,
    ctx: Ctx,
    mem: Box<[u8]>,
    h: Made,
    reached: Reached,
}

const MEM: u64 = 1 << 16;

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut config: gdrc_config = sized();
        (config.max_qp, config.max_cq, config.max_pd, config.max_mr) = (8, 8, 4, 12);
        (config.max_srq, config.max_ah, config.deadline_ms, config.ring_bytes) = (3, 3, 5, 1 << 20);
        config.seed = seed | 1;
        let ctx = Ctx::open(c"loopback", Some(&config));
        let mem = vec![0u8; MEM as usize].into_boxed_slice();
        Walk { r: Random(seed | 1), ctx, mem, h: Made::default(), reached: Reached::default() }
    }

    fn address(&mut self) -> u64 {
        if self.r.one_in(25) {
            self.r.next()
        } else {
            self.mem.as_ptr() as u64 + self.r.below(MEM - 4096)
        }
    }

    fn sges(&mut self) -> [gdrc_sge; 6] {
        core::array::from_fn(|_| {
            let length = if self.r.one_in(25) { self.r.word() } else { self.r.below(5000) as u32 };
            gdrc_sge { addr: self.address(), length, lkey: self.r.pick(&self.h.keys) as u32 }
        })
    }

    fn pieces(&mut self) -> i32 {
        if self.r.one_in(30) {
            self.r.word() as i32 | 8
        } else {
            self.r.below(4) as i32
        }
    }

    fn create(&mut self) {
        let (x, h) = (self.ctx.0, &mut self.h);
        let r = &mut self.r;
        match r.below(10) {
            0 => {
                let mut o = gdrc_pd::default();
                if !h.pd.is_empty() && !r.one_in(8) {
                    return; // objects of many domains do not fit together
                }
                c!(gdrc_pd_alloc(x, &mut o));
                h.pd.push(o.handle);
            }
            1 => {
                let mut o = gdrc_cq::default();
                c!(gdrc_cq_create(x, if r.one_in(4) { r.word() } else { 1 + r.below(40) as u32 }, &mut o));
                h.cq.push(o.handle);
            }
            2..=4 => {
                let (mut o, mut a) = (gdrc_mr::default(), sized::<gdrc_mr_attr>());
                let (mut at, mut len) = (r.below(MEM / 4) as usize, (r.below(MEM / 2)) as usize);
                if r.one_in(2) {
                    (at, len) = (0, MEM as usize);
                }
                let access = if r.one_in(6) { r.word() } else { ALL_ACCESS | GDRC_ACCESS_MW_BIND };
                let p: *mut core::ffi::c_void = self.mem[at..].as_mut_ptr().cast();
                let iova = if r.one_in(6) { r.next() } else { p.addr() as u64 };
                let pd = gdrc_pd { handle: r.pick(&h.pd) };
                if c!(gdrc_mr_reg_iova(x, pd, p, len, iova, access, &mut o, &mut a)) == 0 {
                    h.keys.push(u64::from(a.rkey));
                    assert_eq!(c!(gdrc_mr_query(x, o, &mut a)), 0);
                    h.keys.push(u64::from(a.lkey));
                }
                h.mr.push(o.handle);
            }
            5..=6 => {
                let mut init: gdrc_qp_init = sized();
                init.pd.handle = r.pick(&h.pd);
                (init.send_cq.handle, init.recv_cq.handle) = (r.pick(&h.cq), r.pick(&h.cq));
                init.srq.handle = if r.one_in(3) { r.pick(&h.srq) } else { 0 };
                init.qp_type = if r.one_in(8) { r.word() } else { 2 + r.below(3) as u32 };
                init.sq_sig_all = r.below(2) as u32;
                let mut depth = || if r.one_in(12) { r.word() } else { 1 + r.below(20) as u32 };
                (init.cap.max_send_wr, init.cap.max_recv_wr) = (depth(), depth());
                (init.cap.max_send_sge, init.cap.max_recv_sge) = (r.below(6) as u32, r.below(6) as u32);
                init.cap.max_inline_data = r.below(80) as u32;
                let mut o = gdrc_qp::default();
                if c!(gdrc_qp_create(x, &mut init, &mut o, null_mut())) == 0 {
                    let mut e: gdrc_endpoint = sized();
                    assert_eq!(c!(gdrc_endpoint_local(x, o, null(), &mut e)), 0);
                    h.ends.push(e);
                    h.qp.push(o.handle);
                    self.reached.qps += 1;
                }
            }
            7 => {
                let mut a: gdrc_srq_attr = sized();
                (a.max_wr, a.max_sge) =
                    (if r.one_in(4) { r.word() } else { 1 + r.below(20) as u32 }, r.below(6) as u32);
                a.srq_limit = r.below(4) as u32;
                let mut o = gdrc_srq::default();
                c!(gdrc_srq_create(x, gdrc_pd { handle: r.pick(&h.pd) }, &mut a, &mut o));
                h.srq.push(o.handle);
            }
            8 => {
                let (mut o, mut k) = (gdrc_mw::default(), 0);
                c!(gdrc_mw_alloc(x, gdrc_pd { handle: r.pick(&h.pd) }, r.below(4) as u32, &mut o, &mut k));
                h.mw.push(o.handle);
                h.keys.push(u64::from(k));
            }
            _ => {
                let mut a: gdrc_ah_attr = zeroed();
                a.dgid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1];
                if r.one_in(3) {
                    a.dgid = (u128::from(r.next()) << 64 | u128::from(r.next())).to_ne_bytes();
                    (a.udp_port, a.scope_id) = (r.word() as u16, r.word());
                }
                let mut o = gdrc_ah::default();
                c!(gdrc_ah_create(x, gdrc_pd { handle: r.pick(&h.pd) }, &a, &mut o));
                h.ah.push(o.handle);
            }
        }
    }

    /// Connects the latest QPs with each other, or one to any that ever was.
    fn connect(&mut self) {
        let n = self.h.ends.len();
        if n == 0 {
            return;
        }
        let last = n - 1;
        let mut a = last - self.r.below(n.min(4) as u64) as usize;
        let mut b = last - self.r.below(n.min(4) as u64) as usize;
        if self.r.one_in(5) {
            (a, b) = (self.r.below(n as u64) as usize, self.r.below(n as u64) as usize);
        }
        for (l, p) in [(a, b), (b, a)] {
            let (qp, l, p) = (gdrc_qp { handle: self.h.qp[l] }, self.h.ends[l], self.h.ends[p]);
            if c!(gdrc_qp_connect(self.ctx.0, qp, &l, &p, null())) == 0 {
                self.reached.connected += 1;
            }
        }
    }

    fn modify(&mut self) {
        let r = &mut self.r;
        let qp = gdrc_qp { handle: r.pick(&self.h.qp) };
        let mut a: gdrc_qp_attr = sized();
        a.qp_state = r.below(9) as u32;
        (a.path_mtu, a.dest_qp_num, a.rq_psn, a.sq_psn) = (r.word(), r.word(), r.word(), r.word());
        (a.max_rd_atomic, a.max_dest_rd_atomic, a.timeout) = (r.word() as u8, r.word() as u8, r.word() as u8);
        (a.retry_cnt, a.rnr_retry, a.min_rnr_timer) = (r.word() as u8, r.word() as u8, r.word() as u8);
        (a.port_num, a.rate_limit_bps) = (r.below(3) as u8, r.next());
        let mask = if r.one_in(2) { GDRC_QP_STATE } else { r.next() as u32 | 1 };
        c!(gdrc_qp_modify(self.ctx.0, qp, &a, mask));
    }

    fn destroy(&mut self) {
        let (x, r, h) = (self.ctx.0, &mut self.r, &self.h);
        match r.below(9) {
            0 => _ = c!(gdrc_pd_dealloc(x, gdrc_pd { handle: r.pick(&h.pd) })),
            1 => _ = c!(gdrc_cq_destroy(x, gdrc_cq { handle: r.pick(&h.cq) })),
            2 => _ = c!(gdrc_mr_dereg(x, gdrc_mr { handle: r.pick(&h.mr) })),
            3 => _ = c!(gdrc_mw_dealloc(x, gdrc_mw { handle: r.pick(&h.mw) })),
            4 => _ = c!(gdrc_srq_destroy(x, gdrc_srq { handle: r.pick(&h.srq) })),
            5 => _ = c!(gdrc_ah_destroy(x, gdrc_ah { handle: r.pick(&h.ah) })),
            6 => _ = c!(gdrc_srq_modify(x, gdrc_srq { handle: r.pick(&h.srq) }, r.word())),
            7 => _ = c!(gdrc_cq_resize(x, gdrc_cq { handle: r.pick(&h.cq) }, r.word())),
            _ => _ = c!(gdrc_qp_destroy(x, gdrc_qp { handle: r.pick(&h.qp) })),
        }
    }

    /// Destroys all that ever was, oldest first, so that pools empty and fill again.
    fn sweep(&mut self) {
        let x = self.ctx.0;
        let h = core::mem::take(&mut self.h);
        h.qp.iter().for_each(|&handle| _ = c!(gdrc_qp_destroy(x, gdrc_qp { handle })));
        h.cq.iter().for_each(|&handle| _ = c!(gdrc_cq_destroy(x, gdrc_cq { handle })));
        h.srq.iter().for_each(|&handle| _ = c!(gdrc_srq_destroy(x, gdrc_srq { handle })));
        h.mw.iter().for_each(|&handle| _ = c!(gdrc_mw_dealloc(x, gdrc_mw { handle })));
        h.mr.iter().for_each(|&handle| _ = c!(gdrc_mr_dereg(x, gdrc_mr { handle })));
        h.ah.iter().for_each(|&handle| _ = c!(gdrc_ah_destroy(x, gdrc_ah { handle })));
        h.pd.iter().for_each(|&handle| _ = c!(gdrc_pd_dealloc(x, gdrc_pd { handle })));
    }

    fn look(&mut self) {
        let (x, r, h) = (self.ctx.0, &mut self.r, &self.h);
        c!(gdrc_mr_query(x, gdrc_mr { handle: r.pick(&h.mr) }, &mut sized()));
        c!(gdrc_srq_query(x, gdrc_srq { handle: r.pick(&h.srq) }, &mut sized()));
        let qp = gdrc_qp { handle: r.pick(&h.qp) };
        c!(gdrc_qp_query(x, qp, &mut sized(), &mut sized()));
        c!(gdrc_qp_counters(x, qp, &mut 0, 1));
        let mut cause = zeroed();
        if c!(gdrc_qp_cause(x, qp, &mut cause)) == 0 {
            assert!(c!(gdrc_cause_str(&cause, null_mut(), 0)) > 0);
        }
        c!(gdrc_cq_arm(x, gdrc_cq { handle: r.pick(&h.cq) }, r.below(2) as i32));
    }

    fn receive(&mut self) {
        let mut sges = self.sges();
        let mut wr: gdrc_recv_wr = zeroed();
        (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), self.pieces());
        let qp = gdrc_qp { handle: self.r.pick(&self.h.qp) };
        for _ in 0..self.r.below(4) {
            let rc = c!(gdrc_post_recv(self.ctx.0, qp, &wr, null_mut()));
            self.reached.receives += u32::from(rc == 0);
        }
        c!(gdrc_post_srq_recv(self.ctx.0, gdrc_srq { handle: self.r.pick(&self.h.srq) }, &wr, null_mut()));
    }

    fn send(&mut self) {
        let mut sges = self.sges();
        let mut inline = [0u8; 16];
        let mut wr: gdrc_send_wr = zeroed();
        (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), self.pieces());
        wr.opcode = if self.r.one_in(20) { self.r.word() } else { self.r.below(10) as u32 };
        wr.send_flags = self.r.next() as u32;
        if wr.send_flags & GDRC_SEND_INLINE != 0 {
            // Read at the post through the caller's own pointers, which are the caller's to get right.
            for s in &mut sges {
                (s.addr, s.length) = (inline.as_mut_ptr() as u64, self.r.below(17) as u32);
            }
            wr.num_sge = wr.num_sge.min(6);
        }
        wr.imm_data = self.r.pick(&self.h.keys) as u32;
        let (remote_addr, rkey) = (self.address(), self.r.pick(&self.h.keys) as u32);
        let r = &mut self.r;
        match wr.opcode {
            GDRC_WR_ATOMIC_CMP_AND_SWP | GDRC_WR_ATOMIC_FETCH_AND_ADD => {
                let remote_addr = if r.one_in(8) { remote_addr } else { remote_addr & !7 };
                wr.wr.atomic = gdrc_atomic_wr { remote_addr, compare_add: r.next(), swap: r.next(), rkey };
            }
            GDRC_WR_SEND | GDRC_WR_SEND_WITH_IMM => {
                let ends = &self.h.ends;
                let to = if ends.is_empty() { None } else { Some(&ends[r.below(ends.len() as u64) as usize]) };
                let (remote_qpn, remote_qkey) = to.map_or((r.word(), r.word()), |e| (e.qpn, e.qkey));
                wr.wr.ud = gdrc_ud_wr { ah: gdrc_ah { handle: r.pick(&self.h.ah) }, remote_qpn, remote_qkey };
            }
            _ => wr.wr.rdma = gdrc_rdma_wr { remote_addr, rkey },
        }
        if wr.opcode == GDRC_WR_BIND_MW {
            wr.bind_mw.mw.handle = r.pick(&self.h.mw);
            wr.bind_mw.rkey = rkey;
            wr.bind_mw.bind_info.mr.handle = r.pick(&self.h.mr);
            wr.bind_mw.bind_info.addr = remote_addr;
            wr.bind_mw.bind_info.length = u64::from(r.word());
            wr.bind_mw.bind_info.mw_access_flags = r.word();
        }
        let qp = gdrc_qp { handle: r.pick(&self.h.qp) };
        let rc = c!(gdrc_post_send(self.ctx.0, qp, &wr, null_mut()));
        self.reached.sends += u32::from(rc == 0);
    }

    fn poll(&mut self) {
        let x = self.ctx.0;
        let mut wc = [gdrc_wc::default(); 8];
        for &handle in &self.h.cq {
            let n = c!(gdrc_poll_cq(x, gdrc_cq { handle }, 1 + self.r.below(8) as i32, wc.as_mut_ptr()));
            for w in wc.iter().take(usize::try_from(n).unwrap_or(0)) {
                assert!(w.status < 32, "status {}", w.status);
                self.reached.statuses |= 1 << w.status;
                if w.status == GDRC_WC_SUCCESS {
                    self.reached.good += 1;
                } else {
                    self.reached.failed += 1;
                }
            }
        }
        assert!(c!(gdrc_progress(x)) >= 0);
        assert!(c!(gdrc_cq_event(x, &mut gdrc_cq::default())) >= 0);
        assert!(c!(gdrc_async_event(x, &mut zeroed())) >= 0);
    }

    fn run(mut self, steps: u32) -> Reached {
        for _ in 0..steps {
            match self.r.below(100) {
                0..=19 => self.create(),
                20..=29 => self.connect(),
                30 => self.modify(),
                31..=32 => self.destroy(),
                33..=34 => self.look(),
                35..=54 => self.receive(),
                55..=79 => self.send(),
                80..=98 => self.poll(),
                _ => {
                    if self.r.one_in(3) {
                        self.sweep();
                    }
                }
            }
        }
        assert!(self.ctx.close() >= 0);
        self.reached
    }
}

#[test]
fn random_walks_of_all_calls_end_well_and_reach_far() {
    // More walks than usual: GDRC_WALKS=10000. A failing seed repeats.
    let mut sum = Reached::default();
    let walks = std::env::var("GDRC_WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for seed in 1..=walks {
        let r = Walk::new(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed)).run(8000);
        sum.qps += r.qps;
        sum.connected += r.connected;
        sum.sends += r.sends;
        sum.receives += r.receives;
        sum.good += r.good;
        sum.failed += r.failed;
        sum.statuses |= r.statuses;
    }
    println!("{sum:?}, {} kinds of status", sum.statuses.count_ones());
    assert!(sum.connected > 500 && sum.good > 500 && sum.failed > 5000, "{sum:?}");
}
