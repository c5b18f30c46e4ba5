//! Random requests of an end: drawn part by part, recorded and posted.

use gdrcore_core::verbs::types::*;
use gdrcore_testkit::rng::Rng;

use super::{dc_key, End, Link, Message, Op};
use crate::host::{split, Host};

/// UC and UD messages whose lengths are remembered: more than can be under way.
const REMEMBERED: usize = 1 << 14;

/// A request while it is being drawn.
struct Draft {
    op: Op,
    wr: SendWr,
    sges: Vec<Sge>,
    /// The key for the peer's memory.
    rkey: u32,
    /// The key of the peer's window that it invalidates.
    inv: Option<u32>,
}

impl Draft {
    /// A request whose other parts are still missing.
    fn new(id: u64, opcode: u32, slot: usize, len: usize) -> Draft {
        let op = Op {
            id,
            opcode,
            len,
            slot,
            signaled: false,
            a: 0,
            b: 0,
            message: 0,
            via: false,
            posted_at: 0,
            target: 0,
        };
        let wr = SendWr {
            wr_id: id,
            next: std::ptr::null(),
            sg_list: std::ptr::null(),
            num_sge: 0,
            opcode,
            send_flags: 0,
            imm_data: id as u32,
            wr: WrOp { rdma: RdmaWr { remote_addr: 0, rkey: 0 } },
            remote_srqn: 0,
            ext: WrExt::default(),
        };
        Draft { op, wr, sges: Vec::new(), rkey: 0, inv: None }
    }

    fn become_opcode(&mut self, opcode: u32) {
        (self.op.opcode, self.wr.opcode) = (opcode, opcode);
    }

    /// Uses the peer's window instead of its region, or invalidates it.
    fn use_window(&mut self, key: u32, rng: &mut Rng) {
        match self.op.opcode {
            // Behind every READ: a READ that is requested again would find the window invalidated.
            wr_opcode::SEND_WITH_IMM if rng.below(4) == 0 => {
                self.become_opcode(wr_opcode::SEND_WITH_INV);
                self.wr.imm_data = key;
                self.wr.send_flags |= send_flags::FENCE;
                self.inv = Some(key);
            }
            // A window gives no right to FLUSH.
            wr_opcode::SEND | wr_opcode::SEND_WITH_IMM | wr_opcode::BIND_MW | wr_opcode::FLUSH => {}
            _ => (self.rkey, self.op.via) = (key, true),
        }
    }

    /// Binds the window of an end, or invalidates it if it is bound.
    fn turn_window(&mut self, e: &mut End) {
        self.sges.clear();
        if e.mw.2 {
            self.become_opcode(wr_opcode::LOCAL_INV);
            self.wr.imm_data = e.mw.1;
            (e.mw.2, e.mw_key) = (false, None);
            return;
        }
        e.mw.1 = (e.mw.1 & !0xff) | (e.mw.1.wrapping_add(1) & 0xff);
        let (addr, length) = (e.win.mr.iova, e.win.buf.len() as u64);
        let mw_access_flags = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
        let bind_info = MwBindInfo { mr: e.win.handle, addr, length, mw_access_flags };
        self.wr.ext.bind_mw = BindMwWr { mw: e.mw.0, rkey: e.mw.1, bind_info };
        e.mw.2 = true;
    }

    /// The operands of an atomic, or the word of an ATOMIC WRITE.
    fn draw_operands(&mut self, e: &End, rng: &mut Rng) {
        if self.op.is_atomic_write() {
            self.op.a = self.op.id << 8 | 2;
            return;
        }
        let adds = self.op.opcode == wr_opcode::ATOMIC_FETCH_AND_ADD;
        self.op.a = if adds { self.op.id << 8 | 1 } else { rng.next() };
        self.op.b = self.op.id << 8;
        // Half of the swaps compare with the value that the word will have if all succeeds.
        if !adds && rng.coin() {
            self.op.a = e.ops.iter().fold(e.word, |word, op| op.apply(word));
        }
    }

    /// Draws INLINE, FENCE and SOLICITED.
    fn draw_flags(&mut self, e: &End, rng: &mut Rng) {
        let brings = matches!(self.op.opcode, wr_opcode::RDMA_READ | wr_opcode::FLUSH);
        let reads = brings || self.op.is_atomic();
        let host_memory = e.src.mr.provider == 0;
        if !reads && self.op.len <= 100 && host_memory && rng.below(3) == 0 {
            self.wr.send_flags |= send_flags::INLINE;
        }
        if rng.below(10) == 0 {
            self.wr.send_flags |= send_flags::FENCE;
        }
        if rng.coin() {
            self.wr.send_flags |= send_flags::SOLICITED;
        }
    }
}

impl Link {
    fn choose(&self, rng: &mut Rng) -> u32 {
        let (all, plenty) = match self.plan.kind {
            qp_type::RC if self.plan.windows => (12, 10),
            qp_type::RC => (10, 10),
            qp_type::UC => (4, 4),
            _ => (2, 2),
        };
        let of = if rng.below(8) == 0 { all } else { plenty };
        match rng.below(of) {
            0 => wr_opcode::SEND,
            1 => wr_opcode::SEND_WITH_IMM,
            2 => wr_opcode::RDMA_WRITE,
            3 => wr_opcode::RDMA_WRITE_WITH_IMM,
            4 | 5 => wr_opcode::RDMA_READ,
            6 => wr_opcode::ATOMIC_CMP_AND_SWP,
            7 => wr_opcode::ATOMIC_FETCH_AND_ADD,
            8 => wr_opcode::ATOMIC_WRITE,
            9 => wr_opcode::FLUSH,
            // Bound and invalidated in turn.
            _ => wr_opcode::BIND_MW,
        }
    }

    /// Whether the window of an end can be bound or invalidated: not while the peer uses it.
    fn may_bind(&self, i: usize) -> bool {
        let uses = |op: &Op| op.via || op.opcode == wr_opcode::SEND_WITH_INV;
        let e = &self.ends[i];
        !e.mw.2 || e.mw_key.is_some() && !self.ends[1 - i].ops.iter().any(uses)
    }

    fn length(&self, rng: &mut Rng) -> usize {
        let most = self.plan.most;
        let mtu = 128usize << self.plan.mtu;
        let len = match rng.below(10) {
            0 => 0,
            1..=3 => rng.below(300) as usize,
            4 => mtu * rng.below(4) as usize,
            5 => mtu * rng.below(4) as usize + 1,
            6 => most,
            _ => rng.below(most as u64 + 1) as usize,
        };
        // UC and UD messages contain their number, or are empty.
        let least = if self.plan.kind == qp_type::RC { 1 } else { 8 };
        if len < least {
            0
        } else {
            len.min(most)
        }
    }

    /// Posts a request of an end.
    pub(super) fn post(
        &mut self,
        hosts: &[Host],
        rng: &mut Rng,
        i: usize,
        next_id: &mut u64,
        now: u64,
    ) -> Result<(), String> {
        *next_id += 1;
        let mut draft = self.draw(rng, i, *next_id);
        self.aim(&mut draft, rng, i);
        draft.draw_flags(&self.ends[i], rng);
        if draft.inv.is_some() {
            self.ends[1 - i].mw_key = None;
        }
        let e = &mut self.ends[i];
        e.todo -= 1;
        let silent = e.ops.iter().rev().take_while(|op| !op.signaled).count();
        draft.op.signaled =
            rng.below(self.plan.signal_every) == 0 || e.todo == 0 || silent + 1 >= self.slots;
        if draft.op.signaled {
            draft.wr.send_flags |= send_flags::SIGNALED;
        }
        draft.op.posted_at = hosts[e.host].time(now);
        self.note(i, &mut draft);
        let Draft { op, mut wr, sges, .. } = draft;
        if self.plan.xrc {
            let shared = hosts[self.ends[1].host].shared.as_ref();
            wr.remote_srqn = shared.and_then(|s| s.xrc).map_or(0, |(.., number)| number);
        }
        if self.plan.targets > 0 {
            let (_, dctn) = self.ends[1].qps().nth(op.target).ok_or("no such target")?;
            wr.ext.dc = DcWr { ah: self.ends[0].ah, dc_key: dc_key(op.target), dctn };
        }
        let at = self.at(op.slot);
        let e = &mut self.ends[i];
        e.ops.push_back(op);
        hosts[e.host].post_send(e.qp, &mut wr, &sges)?;
        let copied = wr.send_flags & send_flags::INLINE != 0 || op.is_atomic_write();
        if copied && !self.doomed {
            // The data has been copied.
            e.src.buf.fill(at, op.len, 0x55);
        }
        Ok(())
    }

    /// Draws an opcode, a free slot and a length.
    fn draw(&self, rng: &mut Rng, i: usize, id: u64) -> Draft {
        let mut opcode = self.choose(rng);
        if opcode == wr_opcode::BIND_MW && !self.may_bind(i) {
            opcode = wr_opcode::SEND;
        }
        let busy = self.ends[i].ops.iter().fold(0u64, |busy, op| busy | 1 << op.slot);
        let slot = busy.trailing_ones() as usize;
        let mut draft = Draft::new(id, opcode, slot, 8);
        if !draft.op.is_atomic() {
            draft.op.len = self.length(rng);
        }
        if self.plan.targets > 1 {
            // Mostly some in a row for the same target.
            let last = self.ends[i].ops.back().map_or(0, |op| op.target);
            let any = rng.below(self.plan.targets as u64) as usize;
            draft.op.target = if rng.below(3) > 0 { last } else { any };
        }
        draft
    }

    /// Draws its data, and its local and remote addresses.
    fn aim(&mut self, draft: &mut Draft, rng: &mut Rng, i: usize) {
        let (at, word_at) = (self.at(draft.op.slot), self.word_at());
        let (id, len, atomic) = (draft.op.id, draft.op.len, draft.op.is_atomic());
        let (left, right) = self.ends.split_at_mut(1);
        let (e, peer) = if i == 0 { (&mut left[0], &right[0]) } else { (&mut right[0], &left[0]) };
        draft.sges = split(rng, &e.src, at, len, self.plan.sge as usize);
        draft.rkey = peer.win.mr.rkey;
        if let (Some(key), true) = (peer.mw_key, rng.coin()) {
            draft.use_window(key, rng);
        }
        match draft.op.opcode {
            // It carries nothing.
            wr_opcode::FLUSH => draft.sges.clear(),
            opcode if self.doomed && !atomic && opcode != wr_opcode::BIND_MW => {}
            wr_opcode::RDMA_READ => peer.win.buf.put_pattern(at, len, id),
            wr_opcode::BIND_MW => draft.turn_window(e),
            _ if atomic => draft.draw_operands(e, rng),
            _ => e.src.buf.put_pattern(at, len, id),
        }
        let remote_addr = peer.win.mr.iova + if atomic { word_at } else { at } as u64;
        let rkey = draft.rkey;
        draft.wr.wr = match self.plan.kind {
            qp_type::UD => {
                WrOp { ud: UdWr { ah: e.ah, remote_qpn: peer.qpn, remote_qkey: 0x2222 } }
            }
            _ if draft.op.opcode == wr_opcode::FLUSH => {
                let (level, length) = ((id & 1) as u32, len as u64);
                let placement = flush_type::GLOBAL;
                WrOp { flush: FlushWr { remote_addr, rkey, placement, length, level } }
            }
            _ if draft.op.is_atomic_write() => {
                // Read at the post, by address.
                if !self.doomed {
                    e.src.buf.put(at, &draft.op.a.to_ne_bytes());
                }
                let addr = e.src.buf.addr() + at as u64;
                draft.sges = vec![Sge { addr, length: 8, lkey: 0 }];
                WrOp { rdma: RdmaWr { remote_addr, rkey } }
            }
            _ if atomic => {
                let addr = e.src.mr.iova + at as u64;
                draft.sges = vec![Sge { addr, length: 8, lkey: e.src.mr.lkey }];
                let (compare_add, swap) = (draft.op.a, draft.op.b);
                WrOp { atomic: AtomicWr { remote_addr, compare_add, swap, rkey } }
            }
            _ => WrOp { rdma: RdmaWr { remote_addr, rkey } },
        };
    }

    /// Records a request that consumes a receive as a message that the peer expects.
    fn note(&mut self, i: usize, draft: &mut Draft) {
        let (id, opcode, len) = (draft.op.id, draft.op.opcode, draft.op.len);
        let send =
            matches!(opcode, wr_opcode::SEND | wr_opcode::SEND_WITH_IMM | wr_opcode::SEND_WITH_INV);
        let imm = matches!(opcode, wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM);
        if !send && !imm {
            return;
        }
        let e = &mut self.ends[i];
        e.sent += 1;
        draft.op.message = e.sent;
        if self.plan.kind == qp_type::RC {
            let target = draft.op.target;
            let m = Message { id, send, len, imm, inv: draft.inv, target };
            self.ends[1 - i].expected.push_back(m);
        } else {
            if e.lens.len() == REMEMBERED {
                e.lens.pop_front();
            }
            e.lens.push_back((id, len));
        }
    }
}
