//! Fuzzed calls that create, connect, change and destroy objects.

use gdrcore::*;

use super::*;

impl Walk<'_> {
    pub(super) fn create(&mut self) {
        match self.input.below(10) {
            0 => {
                if !self.made.pd.is_empty() && !self.input.one_in(8) {
                    return; // objects of different domains do not fit together
                }
                let mut o = gdrc_pd::default();
                call!(self, gdrc_pd_alloc(self.ctx(), &mut o));
                self.made.pd.push(o.handle);
            }
            1 => {
                let cqe = if self.input.one_in(4) {
                    self.input.word()
                } else {
                    1 + self.input.below(40) as u32
                };
                let mut o = gdrc_cq::default();
                call!(self, gdrc_cq_create(self.ctx(), cqe, &mut o, null_mut()));
                self.made.cq.push(o.handle);
            }
            2..=4 => self.create_mr(),
            5..=6 => self.create_qp(),
            7 => {
                let mut a: gdrc_srq_attr = sized();
                a.max_wr = if self.input.one_in(4) {
                    self.input.word()
                } else {
                    1 + self.input.below(20) as u32
                };
                (a.max_sge, a.srq_limit) = (self.input.below(6) as u32, self.input.below(4) as u32);
                let mut o = gdrc_srq::default();
                let pd = gdrc_pd { handle: self.input.pick(&self.made.pd) };
                if self.input.one_in(3) {
                    let xrcd = self.xrcd();
                    let cq = gdrc_cq { handle: self.input.pick(&self.made.cq) };
                    call!(self, gdrc_srq_create_xrc(self.ctx(), pd, xrcd, cq, &mut a, &mut o));
                } else {
                    call!(self, gdrc_srq_create(self.ctx(), pd, &mut a, &mut o));
                }
                self.made.srq.push(o.handle);
            }
            8 => {
                let (mut o, mut key) = (gdrc_mw::default(), 0);
                let pd = gdrc_pd { handle: self.input.pick(&self.made.pd) };
                let kind = self.input.below(4) as u32;
                call!(self, gdrc_mw_alloc(self.ctx(), pd, kind, &mut o, &mut key));
                self.made.mw.push(o.handle);
                self.made.keys.push(u64::from(key));
            }
            _ => {
                let mut a: gdrc_ah_attr = zeroed();
                a.dgid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1];
                if self.input.one_in(3) {
                    a.dgid[self.input.below(16)] = self.input.u8();
                    (a.udp_port, a.scope_id) = (self.input.word() as u16, self.input.word());
                }
                let mut o = gdrc_ah::default();
                let pd = gdrc_pd { handle: self.input.pick(&self.made.pd) };
                call!(self, gdrc_path_mtu(self.ctx(), &a));
                call!(self, gdrc_ah_create(self.ctx(), pd, &a, &mut o));
                self.made.ah.push(o.handle);
            }
        }
    }

    /// An XRC domain, new or old.
    fn xrcd(&mut self) -> gdrc_xrcd {
        if self.input.one_in(2) {
            let mut o = gdrc_xrcd::default();
            call!(self, gdrc_xrcd_alloc(self.ctx(), &mut o));
            self.made.xrcd.push(o.handle);
        }
        gdrc_xrcd { handle: self.input.pick(&self.made.xrcd) }
    }

    fn create_mr(&mut self) {
        let (mut at, mut len) = (0, MEM);
        if self.input.one_in(2) {
            (at, len) = (self.input.below(MEM / 4), self.input.below(MEM / 2));
        }
        let access = if self.input.one_in(6) { self.input.word() } else { ALL_ACCESS };
        let p: *mut core::ffi::c_void = self.memory.at(at).cast();
        let pd = gdrc_pd { handle: self.input.pick(&self.made.pd) };
        let (mut o, mut a) = (gdrc_mr::default(), sized::<gdrc_mr_attr>());
        let rc = if self.input.one_in(6) {
            let mut m = sized::<gdrc_memory>();
            (m.addr, m.length) = (p.expose_provenance() as u64, len as u64);
            (m.flags, m.iova) = (memory_flags::IOVA, self.input.u64());
            call!(self, gdrc_mr_reg_memory(self.ctx(), pd, &m, access, &mut o, &mut a))
        } else if self.input.one_in(4) {
            let mut m = sized::<gdrc_memory>();
            (m.addr, m.length) = (p.expose_provenance() as u64, len as u64);
            call!(self, gdrc_mr_reg_memory(self.ctx(), pd, &m, access, &mut o, &mut a))
        } else {
            call!(self, gdrc_mr_reg(self.ctx(), pd, p, len, access, &mut o, &mut a))
        };
        if rc == 0 {
            self.made.keys.push(u64::from(a.rkey));
            assert_eq!(call!(self, gdrc_mr_query(self.ctx, o, &mut a)), 0);
            self.made.keys.push(u64::from(a.lkey));
        }
        self.made.mr.push(o.handle);
    }

    fn create_qp(&mut self) {
        let input = &mut self.input;
        let mut init: gdrc_qp_init = sized();
        init.pd.handle = input.pick(&self.made.pd);
        (init.send_cq.handle, init.recv_cq.handle) =
            (input.pick(&self.made.cq), input.pick(&self.made.cq));
        init.srq.handle = if input.one_in(3) { input.pick(&self.made.srq) } else { 0 };
        init.qp_type = match input.below(12) {
            0 => input.word(),
            1 => qp_type::XRC_SEND,
            2 => qp_type::XRC_RECV,
            3 => qp_type::DCI,
            4 => qp_type::DCT,
            _ => 2 + input.below(3) as u32,
        };
        if init.qp_type == qp_type::DCT {
            init.srq.handle = input.pick(&self.made.srq);
            init.dc_key = input.u64() & 3;
        }
        init.xrcd.handle = input.pick(&self.made.xrcd);
        init.sq_sig_all = input.below(2) as u32;
        let mut depth = || if input.one_in(12) { input.word() } else { 1 + input.below(20) as u32 };
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (depth(), depth());
        (init.cap.max_send_sge, init.cap.max_recv_sge) =
            (input.below(6) as u32, input.below(6) as u32);
        init.cap.max_inline_data = input.below(80) as u32;
        let mut o = gdrc_qp::default();
        if call!(self, gdrc_qp_create(self.ctx(), &mut init, &mut o, null_mut())) == 0 {
            let mut e: gdrc_endpoint = sized();
            assert_eq!(call!(self, gdrc_endpoint_local(self.ctx, o, null(), &mut e)), 0);
            self.made.ends.push(e);
            self.made.qp.push(o.handle);
        }
    }

    /// Connects the latest QPs with each other, or one to any earlier one.
    pub(super) fn connect(&mut self) {
        let n = self.made.ends.len();
        if n == 0 {
            return;
        }
        let last = n - 1;
        let mut a = last - self.input.below(n.min(4));
        let mut b = last - self.input.below(n.min(4));
        if self.input.one_in(5) {
            (a, b) = (self.input.below(n), self.input.below(n));
        }
        let opts = self.input.one_in(4).then(|| {
            let mut o: gdrc_qp_connect_opts = sized();
            (o.access, o.timeout, o.retry_cnt) =
                (self.input.word(), self.input.word(), self.input.word());
            (o.rnr_retry, o.min_rnr_timer, o.flags) =
                (self.input.word(), self.input.word(), self.input.word());
            (o.max_rd_atomic, o.max_dest_rd_atomic) = (self.input.word(), self.input.word());
            o.rate_limit_bytes_per_s = u64::from(self.input.word());
            o
        });
        let opts = opts.as_ref().map_or(null(), |o| o);
        for (l, p) in [(a, b), (b, a)] {
            let (qp, l, p) =
                (gdrc_qp { handle: self.made.qp[l] }, self.made.ends[l], self.made.ends[p]);
            call!(self, gdrc_qp_connect(self.ctx(), qp, &l, &p, opts));
        }
    }

    pub(super) fn modify(&mut self) {
        let input = &mut self.input;
        let qp = gdrc_qp { handle: input.pick(&self.made.qp) };
        let mut a: gdrc_qp_attr = sized();
        a.qp_state = input.below(9) as u32;
        let mask = if input.one_in(2) { input.u32() | 1 } else { qp_attr_mask::STATE };
        if mask != qp_attr_mask::STATE {
            (a.path_mtu, a.dest_qp_num, a.rq_psn, a.sq_psn) =
                (input.word(), input.word(), input.word(), input.word());
            (a.max_rd_atomic, a.max_dest_rd_atomic, a.timeout) =
                (input.u8(), input.u8(), input.u8());
            (a.retry_cnt, a.rnr_retry, a.min_rnr_timer) = (input.u8(), input.u8(), input.u8());
            (a.port_num, a.rate_limit_bytes_per_s) = (input.below(3) as u8, input.u64());
        }
        call!(self, gdrc_qp_modify(self.ctx(), qp, &a, mask));
        if self.input.one_in(8) {
            call!(self, gdrc_qp_reset(self.ctx(), qp));
        }
    }

    pub(super) fn destroy(&mut self) {
        let (made, input) = (&self.made, &mut self.input);
        match input.below(10) {
            0 => {
                _ = call!(self, gdrc_pd_dealloc(self.ctx, gdrc_pd { handle: input.pick(&made.pd) }))
            }
            1 => {
                _ = call!(self, gdrc_cq_destroy(self.ctx, gdrc_cq { handle: input.pick(&made.cq) }))
            }
            2 => _ = call!(self, gdrc_mr_dereg(self.ctx, gdrc_mr { handle: input.pick(&made.mr) })),
            3 => {
                _ = call!(self, gdrc_mw_dealloc(self.ctx, gdrc_mw { handle: input.pick(&made.mw) }))
            }
            4 => {
                _ = call!(
                    self,
                    gdrc_srq_destroy(self.ctx, gdrc_srq { handle: input.pick(&made.srq) })
                )
            }
            5 => {
                _ = call!(self, gdrc_ah_destroy(self.ctx, gdrc_ah { handle: input.pick(&made.ah) }))
            }
            6 => {
                let srq = gdrc_srq { handle: input.pick(&made.srq) };
                call!(self, gdrc_srq_modify(self.ctx, srq, input.word()));
                call!(self, gdrc_srq_resize(self.ctx, srq, input.word(), null_mut()));
                call!(self, gdrc_srq_number(self.ctx, srq, &mut 0));
                let xrcd = gdrc_xrcd { handle: input.pick(&made.xrcd) };
                call!(self, gdrc_xrcd_dealloc(self.ctx, xrcd));
            }
            7 => {
                let cq = gdrc_cq { handle: input.pick(&made.cq) };
                call!(self, gdrc_cq_resize(self.ctx, cq, input.word(), null_mut()));
            }
            8 => {
                let qp = gdrc_qp { handle: input.pick(&made.qp) };
                let gid = [input.word(), input.word(), 0xffff_0000, input.word()];
                call!(self, gdrc_qp_attach_mcast(self.ctx, qp, gid.as_ptr().cast()));
                call!(self, gdrc_qp_detach_mcast(self.ctx, qp, gid.as_ptr().cast()));
            }
            _ => {
                _ = call!(self, gdrc_qp_destroy(self.ctx, gdrc_qp { handle: input.pick(&made.qp) }))
            }
        }
    }

    /// Destroys all objects, users before what they use, so that pools empty and fill again.
    pub(super) fn sweep(&mut self) {
        let x = self.ctx;
        let made = core::mem::take(&mut self.made);
        for handle in made.qp {
            call!(self, gdrc_qp_destroy(x, gdrc_qp { handle }));
        }
        for handle in made.srq {
            call!(self, gdrc_srq_destroy(x, gdrc_srq { handle }));
        }
        for handle in made.cq {
            call!(self, gdrc_cq_destroy(x, gdrc_cq { handle }));
        }
        for handle in made.xrcd {
            call!(self, gdrc_xrcd_dealloc(x, gdrc_xrcd { handle }));
        }
        for handle in made.mw {
            call!(self, gdrc_mw_dealloc(x, gdrc_mw { handle }));
        }
        for handle in made.mr {
            call!(self, gdrc_mr_dereg(x, gdrc_mr { handle }));
        }
        for handle in made.ah {
            call!(self, gdrc_ah_destroy(x, gdrc_ah { handle }));
        }
        for handle in made.pd {
            call!(self, gdrc_pd_dealloc(x, gdrc_pd { handle }));
        }
    }

    pub(super) fn look(&mut self) {
        let x = self.ctx();
        let (made, input) = (&self.made, &mut self.input);
        match input.below(8) {
            0 => {
                _ = call!(
                    self,
                    gdrc_mr_query(x, gdrc_mr { handle: input.pick(&made.mr) }, &mut sized())
                )
            }
            1 => {
                _ = call!(
                    self,
                    gdrc_srq_query(x, gdrc_srq { handle: input.pick(&made.srq) }, &mut sized())
                )
            }
            2 => {
                let qp = gdrc_qp { handle: input.pick(&made.qp) };
                call!(self, gdrc_qp_query(x, qp, &mut sized(), &mut sized()));
            }
            3 => {
                let mut values = [0; 64];
                let n = input.word().min(64);
                call!(
                    self,
                    gdrc_qp_counters(
                        x,
                        gdrc_qp { handle: input.pick(&made.qp) },
                        values.as_mut_ptr(),
                        n
                    )
                );
                call!(self, gdrc_counters(x, values.as_mut_ptr(), n));
            }
            4 => {
                let mut cause = zeroed();
                call!(self, gdrc_qp_cause(x, gdrc_qp { handle: input.pick(&made.qp) }, &mut cause));
                call!(self, gdrc_last_cause(x, &mut cause));
                assert!(call!(self, gdrc_cause_str(&cause, null_mut(), 0)) > 0);
            }
            5 => {
                let qp = gdrc_qp { handle: input.pick(&made.qp) };
                let mr = gdrc_mr { handle: input.pick(&made.mr) };
                call!(self, gdrc_endpoint_local(x, qp, &mr, &mut sized()));
            }
            6 => _ = call!(self, gdrc_device_query(x, &mut sized())),
            _ => {
                let cq = gdrc_cq { handle: input.pick(&made.cq) };
                call!(self, gdrc_cq_arm(x, cq, i32::from(input.u8() & 1)));
            }
        }
    }
}
