//! Fuzzed requests and completions.

use gdrcore::*;

use super::*;

/// Opcodes of most send requests.
const OPCODES: [u32; 12] = [
    wr_opcode::RDMA_WRITE,
    wr_opcode::RDMA_WRITE_WITH_IMM,
    wr_opcode::SEND,
    wr_opcode::SEND_WITH_IMM,
    wr_opcode::RDMA_READ,
    wr_opcode::ATOMIC_CMP_AND_SWP,
    wr_opcode::ATOMIC_FETCH_AND_ADD,
    wr_opcode::LOCAL_INV,
    wr_opcode::BIND_MW,
    wr_opcode::SEND_WITH_INV,
    wr_opcode::FLUSH,
    wr_opcode::ATOMIC_WRITE,
];

/// Scatter/gather entries that really exist.
const PIECES: usize = 6;

/// The header's inline function, in Rust.
///
/// # Safety
/// As in the header.
unsafe fn gdrc_qp_fast_post_send(
    qp: *mut gdrc_qp_fast,
    wr: *const SendWr,
    bad: *mut *const SendWr,
) -> i32 {
    // SAFETY: our contract.
    unsafe { ((*(*qp).ops).post_send)(qp, wr, bad) }
}

impl Walk<'_> {
    /// An address for a request; mostly a registered one.
    fn address(&mut self) -> u64 {
        if self.input.one_in(25) {
            self.input.u64()
        } else {
            self.memory.at(self.input.below(MEM - 4096)) as u64
        }
    }

    fn sges(&mut self) -> [Sge; PIECES] {
        core::array::from_fn(|_| {
            let length = if self.input.one_in(25) {
                self.input.word()
            } else {
                self.input.below(5000) as u32
            };
            Sge { addr: self.address(), length, lkey: self.input.pick(&self.made.keys) as u32 }
        })
    }

    /// The number of entries in a request: up to the existing ones, or more than any queue allows.
    fn pieces(&mut self) -> i32 {
        if self.input.one_in(30) {
            // No queue here allows more than five, so entries beyond the existing ones are never
            // read.
            self.input.word() as i32 | 8
        } else {
            self.input.below(4) as i32
        }
    }

    pub(super) fn receive(&mut self) {
        let mut sges = self.sges();
        let mut wr: RecvWr = zeroed();
        (wr.wr_id, wr.sg_list, wr.num_sge) =
            (self.input.u8().into(), sges.as_mut_ptr(), self.pieces());
        if self.input.one_in(40) {
            // A list without end.
            wr.next = &raw mut wr;
        }
        let mut bad = null();
        if self.input.one_in(4) {
            let srq = gdrc_srq { handle: self.input.pick(&self.made.srq) };
            call!(self, gdrc_post_srq_recv(self.ctx(), srq, &wr, &mut bad));
            return;
        }
        let qp = gdrc_qp { handle: self.input.pick(&self.made.qp) };
        for _ in 0..=self.input.below(4) {
            call!(self, gdrc_post_recv(self.ctx(), qp, &wr, &mut bad));
        }
    }

    pub(super) fn send(&mut self) {
        let mut sges = self.sges();
        let mut inline = [0u8; 16];
        let mut wr: SendWr = zeroed();
        (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), self.pieces());
        wr.opcode = if self.input.one_in(20) {
            self.input.word()
        } else {
            OPCODES[self.input.below(OPCODES.len())]
        };
        wr.send_flags =
            if self.input.one_in(8) { self.input.u32() } else { u32::from(self.input.u8()) & 0x1f };
        if wr.send_flags & send_flags::INLINE != 0 && !self.input.one_in(8) {
            // Inline data is read at the post. Other entries may have any address: that is an error
            // and no fault.
            for s in &mut sges {
                (s.addr, s.length) = (inline.as_mut_ptr() as u64, self.input.below(17) as u32);
            }
        }
        wr.imm_data = self.input.pick(&self.made.keys) as u32;
        let (remote_addr, rkey) = (self.address(), self.input.pick(&self.made.keys) as u32);
        let input = &mut self.input;
        match wr.opcode {
            wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
                let remote_addr = if input.one_in(8) { remote_addr } else { remote_addr & !7 };
                let (compare_add, swap) = (input.u8().into(), input.u8().into());
                wr.wr.atomic = AtomicWr { remote_addr, compare_add, swap, rkey };
            }
            wr_opcode::FLUSH => {
                // Most are legal.
                let (placement, level) = match input.one_in(8) {
                    true => (input.u32(), input.u32()),
                    false => (flush_type::GLOBAL, u32::from(input.u8() & 1)),
                };
                let length = input.word().into();
                wr.wr.flush = FlushWr { remote_addr, rkey, placement, length, level };
            }
            wr_opcode::SEND | wr_opcode::SEND_WITH_IMM => {
                let ends = &self.made.ends;
                let to = if ends.is_empty() { None } else { Some(&ends[input.below(ends.len())]) };
                let (remote_qpn, remote_qkey) = to.map_or((0, 0), |e| (e.qpn, e.qkey));
                let ah = input.pick(&self.made.ah);
                wr.wr.ud = UdWr { ah, remote_qpn, remote_qkey };
            }
            _ => wr.wr.rdma = RdmaWr { remote_addr, rkey },
        }
        if wr.opcode == wr_opcode::BIND_MW {
            wr.ext.bind_mw.mw = input.pick(&self.made.mw);
            wr.ext.bind_mw.rkey = if input.one_in(3) {
                rkey
            } else {
                self.made.keys.last().map_or(0, |&k| k as u32 ^ 1)
            };
            wr.ext.bind_mw.bind_info.mr = input.pick(&self.made.mr);
            wr.ext.bind_mw.bind_info.addr = remote_addr;
            wr.ext.bind_mw.bind_info.length = u64::from(input.word());
            wr.ext.bind_mw.bind_info.mw_access_flags = input.word();
        } else if let Some(end) = self.made.ends.last().filter(|_| input.one_in(2)) {
            let ah = input.pick(&self.made.ah);
            wr.ext.dc = DcWr { ah, dc_key: input.u64() & 3, dctn: end.qpn };
        }
        if input.one_in(40) {
            wr.next = &raw mut wr;
        }
        let qp = gdrc_qp { handle: input.pick(&self.made.qp) };
        let mut bad = null();
        if !input.one_in(4) {
            call!(self, gdrc_post_send(self.ctx(), qp, &wr, &mut bad));
            return;
        }
        let mut fast = null_mut();
        if call!(self, gdrc_qp_fast_get(self.ctx(), qp, &mut fast)) == 0 {
            call!(self, gdrc_qp_fast_post_send(fast, &wr, &mut bad));
            let rc = call!(self, gdrc_qp_destroy(self.ctx, qp));
            assert_eq!(rc, -libc::EBUSY, "a queue pair with a fast handle is not destroyed");
            assert_eq!(call!(self, gdrc_qp_fast_put(fast)), 0);
            assert_eq!(call!(self, gdrc_qp_fast_put(fast)), -libc::EINVAL);
            let rc = call!(self, gdrc_qp_fast_post_send(fast, &wr, &mut bad));
            assert_eq!(rc, -libc::EINVAL);
        }
    }

    pub(super) fn poll(&mut self) {
        const ROOM: usize = 8;
        let x = self.ctx;
        let mut wc = [Wc::default(); ROOM];
        for i in 0..self.made.cq.len() {
            let cq = gdrc_cq { handle: self.made.cq[i] };
            let want = if self.input.one_in(50) { self.input.u32().cast_signed() } else { 8 };
            let n = call!(self, gdrc_poll_cq(x, cq, want.min(ROOM as i32), wc.as_mut_ptr()));
            for w in wc.iter().take(usize::try_from(n).unwrap_or(0)) {
                assert!(w.status < 32, "status {}", w.status);
                self.reached.statuses |= 1 << w.status;
                if w.status == wc_status::SUCCESS {
                    self.reached.good += 1;
                } else {
                    self.reached.failed += 1;
                }
            }
        }
        assert!(call!(self, gdrc_progress(x)) >= 0);
        let x = self.ctx();
        let rc = match self.input.below(8) {
            0 => call!(self, gdrc_get_cq_event(x, &mut gdrc_cq::default())),
            1 => call!(self, gdrc_get_async_event(x, &mut zeroed())),
            2 => call!(self, gdrc_arm(x)),
            3 => call!(self, gdrc_fd(x)),
            _ => call!(self, gdrc_progress(x)),
        };
        assert_eq!(rc < 0, x.is_null(), "on an open context these never fail");
    }
}
