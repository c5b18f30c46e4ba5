//! The oracle: checks every completion, and the memory at that time.

use gdrcore_core::verbs::types::*;

use crate::buf::Buf;
use crate::host::{Host, SharedRecv};
use crate::link::{End, Link, Message, Op, GAP, GRH};

/// A completion of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it must be.
    Fine,
    /// A legal failure: the link must be made anew.
    Failed,
    /// Its message's receive has not been polled at the peer: poll the peer's CQs, then check
    /// again.
    PeerFirst,
}

/// Whether a completion is that of a receive. (The device sets the opcode on errors, too.)
pub fn is_recv(wc: &Wc) -> bool {
    wc.opcode == wc_opcode::RECV || wc.opcode == wc_opcode::RECV_RDMA_WITH_IMM
}

/// Statuses with which the first failed request may complete.
const FIRST: [u32; 2] = [wc_status::RETRY_EXC_ERR, wc_status::RNR_RETRY_EXC_ERR];
/// Further ones, which deregistered memory at either end causes.
const VANISHED: [u32; 4] = [
    wc_status::LOC_PROT_ERR,
    wc_status::MW_BIND_ERR,
    wc_status::REM_ACCESS_ERR,
    wc_status::REM_OP_ERR,
];

macro_rules! ensure {
    ($cond:expr, $($why:tt)*) => {
        if !$cond {
            return Err(format!($($why)*));
        }
    };
}

impl Link {
    /// Checks a completion of end `i`.
    pub fn judge(&mut self, hosts: &mut [Host], i: usize, wc: &Wc) -> Result<Verdict, String> {
        if is_recv(wc) {
            self.judge_recv(hosts, i, wc)
        } else {
            self.judge_send(i, wc)
        }
    }

    fn judge_send(&mut self, i: usize, wc: &Wc) -> Result<Verdict, String> {
        let e = &self.ends[i];
        let n = e.ops.iter().position(|op| op.id == wc.wr_id);
        let n = n.ok_or_else(|| {
            format!("completion of {}, which is not outstanding: {wc:?}", wc.wr_id)
        })?;
        let silent = e.ops.iter().take(n).all(|op| !op.signaled);
        ensure!(silent, "completion of {} before {:?}", wc.wr_id, e.ops[0]);
        if wc.status != wc_status::SUCCESS {
            let reason = FIRST.contains(&wc.status) || self.doomed && VANISHED.contains(&wc.status);
            let flushed = wc.status == wc_status::WR_FLUSH_ERR;
            if e.failed || self.doomed {
                ensure!(flushed || reason, "{wc:?} on a failed queue");
            } else {
                ensure!(reason, "{wc:?} without a reason");
                ensure!(self.plan.kind == qp_type::RC, "{wc:?} on a transport that cannot know");
                ensure!(wc.vendor_err != 0, "{wc:?} without a cause");
            }
            // Behind a failure no request succeeds, so no unsignalled one may have ended silently.
            let broken = e.broken;
            ensure!(!broken || n == 0, "{wc:?} before {:?}", e.ops[0]);
            ensure!(!broken || wc.status == wc_status::WR_FLUSH_ERR, "{wc:?} behind a failure");
            self.ends[i].broken = true;
            for k in 0..=n {
                let Some(op) = self.ends[i].ops.pop_front() else { break };
                let ok = k < n;
                self.ends[i].ended[usize::from(!ok)] += 1;
                if ok {
                    self.check_op(i, &op)?;
                }
            }
            return Ok(Verdict::Failed);
        }
        let op = e.ops[n];
        ensure!(!e.broken, "{wc:?} ended well behind a failure");
        ensure!(op.signaled, "completion of {op:?}, which is not signalled");
        let opcode = match op.opcode {
            wr_opcode::SEND | wr_opcode::SEND_WITH_IMM | wr_opcode::SEND_WITH_INV => {
                wc_opcode::SEND
            }
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
            wr_opcode::RDMA_READ => wc_opcode::RDMA_READ,
            wr_opcode::ATOMIC_CMP_AND_SWP => wc_opcode::COMP_SWAP,
            wr_opcode::ATOMIC_FETCH_AND_ADD => wc_opcode::FETCH_ADD,
            wr_opcode::FLUSH => wc_opcode::FLUSH,
            wr_opcode::ATOMIC_WRITE => wc_opcode::ATOMIC_WRITE,
            wr_opcode::BIND_MW => wc_opcode::BIND_MW,
            _ => wc_opcode::LOCAL_INV,
        };
        ensure!(wc.opcode == opcode && wc.qp_num == e.qpn, "{wc:?} for {op:?}");
        let carries =
            matches!(opcode, wc_opcode::RDMA_READ | wc_opcode::COMP_SWAP | wc_opcode::FETCH_ADD);
        ensure!(!carries || wc.byte_len as usize == op.len, "{wc:?} for {op:?}");
        // An RC message is acknowledged after it was received, so its completion is in the peer's
        // CQ.
        let messages = e.ops.iter().take(n + 1).map(|op| op.message).max().unwrap_or(0);
        let lives = !self.ends[1 - i].dead;
        if self.plan.kind == qp_type::RC && lives && messages > self.ends[1 - i].got {
            return Ok(Verdict::PeerFirst);
        }
        for _ in 0..=n {
            let Some(op) = self.ends[i].ops.pop_front() else { break };
            self.ends[i].ended[0] += 1;
            self.check_op(i, &op)?;
        }
        Ok(Verdict::Fine)
    }

    /// Checks a request that succeeded: its bytes are in their place, and no others are changed.
    pub(crate) fn check_op(&mut self, i: usize, op: &Op) -> Result<(), String> {
        if self.doomed {
            // Deregistered memory is not checked here, but compared later as a whole.
            return Ok(());
        }
        let (at, word_at) = (self.at(op.slot), self.word_at());
        let behind = self.at(1) - op.len;
        // The memory of an engine that has died is gone.
        let rc = self.plan.kind == qp_type::RC && !self.ends[1 - i].dead;
        let (left, right) = self.ends.split_at_mut(1);
        let (e, peer) = if i == 0 { (&mut left[0], &right[0]) } else { (&mut right[0], &left[0]) };
        let (src, win) = (&e.src.buf, &peer.win.buf);
        match op.opcode {
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM if rc => {
                if let Some(x) = win.differs(at, op.len, op.id) {
                    return Err(format!("{op:?}: byte {x} at the peer is wrong"));
                }
                if let Some(x) = win.touched(at + op.len, behind) {
                    return Err(format!("{op:?}: byte {x} behind it was written"));
                }
                win.fill(at, op.len, crate::buf::BACKGROUND);
            }
            wr_opcode::RDMA_READ => {
                if let Some(x) = src.differs(at, op.len, op.id) {
                    return Err(format!("{op:?}: byte {x} of the READ is wrong"));
                }
                if rc {
                    win.fill(at, op.len, crate::buf::BACKGROUND);
                }
            }
            wr_opcode::FLUSH => {
                // What was to be placed before it was looked at in its turn.
                let there = if rc { win.touched(at, op.len) } else { None };
                if let Some(x) = src.touched(at, op.len).or(there) {
                    return Err(format!("{op:?}: byte {x} was written"));
                }
            }
            wr_opcode::BIND_MW => e.mw_key = Some(e.mw.1),
            _ if op.is_atomic() => {
                let old = src.get_u64(at);
                let was = op.is_atomic_write() || old == e.word;
                ensure!(was, "{op:?}: returned {old:#x}, the word was {:#x}", e.word);
                e.word = op.apply(e.word);
                let more = |op: &Op| op.is_atomic();
                if rc && !e.ops.iter().any(more) {
                    let now = win.get_u64(word_at);
                    ensure!(now == e.word, "{op:?}: the word is {now:#x}, not {:#x}", e.word);
                }
            }
            _ => {}
        }
        if let Some(x) = src.touched(at + op.len, behind) {
            return Err(format!("{op:?}: byte {x} behind the local buffer was written"));
        }
        // The program may use the buffer again.
        src.fill(at, op.len, crate::buf::BACKGROUND);
        Ok(())
    }

    fn judge_recv(&mut self, hosts: &mut [Host], i: usize, wc: &Wc) -> Result<Verdict, String> {
        let rc = self.plan.kind == qp_type::RC;
        let ok = wc.status == wc_status::SUCCESS;
        let (srq, stride) = (self.plan.srq[i], self.at(1));
        let failed = self.ends[i].failed;
        let message = if !ok {
            let vanished = self.doomed && VANISHED.contains(&wc.status);
            ensure!(vanished || wc.status == wc_status::WR_FLUSH_ERR, "{wc:?}");
            ensure!(failed || rc, "{wc:?} on a transport that cannot fail so");
            None
        } else if rc {
            let m = self.ends[i].expected.pop_front();
            let m = m.ok_or_else(|| format!("{wc:?}: nothing was sent"))?;
            self.ends[i].got += 1;
            Some(m)
        } else {
            Some(self.claimed(i, wc)?)
        };
        // The memory that received it.
        let mut taken = None;
        let slot = if srq {
            let shared = hosts[self.ends[i].host].shared.as_mut().ok_or("no SRQ")?;
            Some(take_shared(shared, wc)?)
        } else {
            let e = &mut self.ends[i];
            let (id, slot) =
                e.posted.pop_front().ok_or_else(|| format!("{wc:?}: no receive is posted"))?;
            ensure!(id == wc.wr_id, "{wc:?}: receives end out of order, {id} was first");
            e.free.push(slot);
            taken = Some(slot);
            None
        };
        let e = &self.ends[i];
        if !ok {
            // Bytes that slow memory has accepted may still be under way.
            hosts[e.host].flush_memory();
        }
        let shared = hosts[e.host].shared.as_ref();
        let (buf, at, stride) = match (slot, taken, shared) {
            (Some(slot), _, Some(shared)) => {
                (&shared.area.buf, slot * shared.stride, shared.stride)
            }
            (_, Some(slot), _) => (&e.rcv.buf, slot * stride, stride),
            _ => return Err("no receive memory".into()),
        };
        if let (Some(m), false) = (message, self.doomed) {
            let torn = srq && shared.is_some_and(|s| s.torn.get());
            self.check_message(e, (buf, at, stride), torn, &m, wc)?;
        }
        let closed = message.is_some_and(|m| m.inv.is_some());
        if let Some(x) = buf.touched(at + stride - GAP, GAP) {
            return Err(format!("{wc:?}: byte {x} behind the receive buffer was written"));
        }
        if srq || !self.doomed {
            buf.fill(at, stride, crate::buf::BACKGROUND);
        }
        if closed {
            self.ends[i].mw.2 = false;
        }
        Ok(if ok || failed { Verdict::Fine } else { Verdict::Failed })
    }

    /// UC and UD: the message that a completion claims to be.
    fn claimed(&self, i: usize, wc: &Wc) -> Result<Message, String> {
        let imm = wc.wc_flags & wc_flags::WITH_IMM != 0;
        let send = wc.opcode == wc_opcode::RECV;
        let head = if self.plan.kind == qp_type::UD { GRH } else { 0 };
        let len = (wc.byte_len as usize)
            .checked_sub(head)
            .ok_or_else(|| format!("{wc:?}: shorter than a GRH"))?;
        // By its immediate data, or else by its first bytes, which `check_message` reads.
        let known = if imm { self.ends[1 - i].by_imm(wc.imm_data) } else { Some((0, len)) };
        let (id, sent) = known.ok_or_else(|| format!("{wc:?}: no such message was sent"))?;
        ensure!(sent == len, "{wc:?}: sent with {sent} bytes");
        Ok(Message { id, send, len, imm, inv: None, target: 0 })
    }

    fn check_message(
        &self,
        e: &End,
        (buf, at, stride): (&Buf, usize, usize),
        torn: bool,
        m: &Message,
        wc: &Wc,
    ) -> Result<(), String> {
        let ud = self.plan.kind == qp_type::UD;
        let head = if ud { GRH } else { 0 };
        let opcode = if m.send { wc_opcode::RECV } else { wc_opcode::RECV_RDMA_WITH_IMM };
        let mut flags =
            if m.imm { wc_flags::WITH_IMM } else { 0 } | if ud { wc_flags::GRH } else { 0 };
        if let Some(key) = m.inv {
            flags |= wc_flags::WITH_INV;
            ensure!(wc.imm_data == key, "{wc:?}: key {key:#x} was to be invalidated");
        }
        let same =
            wc.opcode == opcode && wc.byte_len as usize == m.len + head && wc.wc_flags == flags;
        ensure!(same && (!m.imm || wc.imm_data == m.id as u32), "{wc:?} for {m:?}");
        let to = e.qps().nth(m.target).map_or(0, |(_, qpn)| qpn);
        ensure!(wc.qp_num == to, "{wc:?} for QP {to:#x}");
        if self.plan.targets > 0 {
            // An initiator that was destroyed has no number any more.
            let of = self.initiator;
            ensure!(wc.src_qp == of, "{wc:?} of initiator {of:#x}");
        }
        let placed = if m.send { m.len } else { 0 };
        let mut id = m.id;
        if placed >= 8 && self.plan.kind != qp_type::RC {
            id = buf.get_u64(at + head);
            let sent = self.ends.iter().find_map(|e| e.len_of(id));
            ensure!(sent == Some(m.len), "{wc:?}: message {id} has {sent:?} bytes");
            ensure!(!m.imm || id == m.id, "{wc:?}: message {id} with the data of {}", m.id);
        }
        if let Some(x) = buf.differs(at + head, placed, id) {
            return Err(format!("{wc:?} for {m:?}: byte {x} is wrong"));
        }
        // A dropped attempt may have left bytes behind, where an unreliable message failed on the
        // way.
        if self.plan.kind == qp_type::RC && !(torn && self.plan.targets > 0) {
            if let Some(x) = buf.touched(at + placed, stride - placed) {
                return Err(format!("{wc:?} for {m:?}: byte {x} behind it was written"));
            }
        }
        Ok(())
    }
}

/// Frees the slot of an SRQ's receive; returns it.
fn take_shared(shared: &mut SharedRecv, wc: &Wc) -> Result<usize, String> {
    let n = shared.posted.iter().position(|p| p.0 == wc.wr_id);
    let n = n.ok_or_else(|| format!("{wc:?}: no such receive in the SRQ"))?;
    let (_, slot) = shared.posted.remove(n);
    shared.free.push(slot);
    Ok(slot)
}
