//! Fast path: a SEND or WRITE of one packet between two queue pairs of one engine, in one step.
//!
//! The initiator follows the rules of single requests, the target those of single messages
//! (`Conn::accept_single`); no frame is written. Accepting it acknowledges it, so nothing
//! stays outstanding, and no clock is read. If a check fails, nothing has changed, and the request
//! takes the general path. `core/tests/engine/shapes/local.rs` runs both over the same requests and
//! compares the results.

use crate::mem::TransferId;
use crate::roce::answers::ACK_BYTES;
use crate::roce::rules::ack::refill_retries;
use crate::roce::rules::complete::{prepare, Left};
use crate::roce::rules::send::{class_of_singles, Charge, Departed, Eligible};
use crate::roce::run::Run;
use crate::roce::Transport;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::shared::Shared;
use crate::verbs::types::{wc_opcode, wc_status::SUCCESS};
use crate::verbs::wqe::DcAddr;
use crate::wire::{packet_bytes, Kind, Opcode};

/// Whether a QP and its peer are of this engine and connected, and its responder is idle. `kind`:
/// what it must be.
#[inline(always)]
fn is_local(qp: &Qp, kind: QpKind) -> bool {
    qp.conn.loopback && qp.kind == kind && qp.conn.resp.holds() == 0 && !qp.conn.resp.ack_owed
}

impl Transport {
    /// Executes the only request in the send queue of the QP at an index, if it can be done in one
    /// step. The request is then acknowledged and, if signaled, completed. False: nothing has
    /// changed.
    ///
    /// `scratch`: room for one packet. `DC`: the QP is a DCI; else it is RC. `WRITE`: the request
    /// is to be a WRITE without immediate data, so that the compiler drops the code for receives.
    #[inline(never)]
    pub(crate) fn try_local<const DC: bool, const WRITE: bool>(
        &mut self,
        s: &Shared,
        qi: usize,
        scratch: &mut [u8],
    ) -> bool {
        let (from, to) =
            if DC { (QpKind::Dci, QpKind::DcContext) } else { (QpKind::Rc, QpKind::Rc) };
        let (Some(q), Some(qp)) = (s.qps.get(qi), self.qps.get_mut(qi)) else { return false };
        if !is_local(qp, from) || !qp.conn.req.nothing_in_flight() {
            return false;
        }
        let common = &mut self.common;
        let mut sq = q.engine_sq(&common.key);
        let Some(Eligible { index, slot, op, run }) = qp.next_single::<DC>(&sq) else {
            return false;
        };
        // The code below checks that the context is still that of this association.
        if DC && !common.may_use_open(qp, &DcAddr::read(slot.tail())) {
            return false;
        }
        let run = match WRITE {
            true if op.within(class_of_singles(DC)) != Opcode::RC_WRITE_ONLY => return false,
            true => Run { kind: Kind::Write, has_imm: false, ..run },
            false => run,
        };
        let wqe = slot.header();
        let len = wqe.length as u32;
        let (from, mtu, psn) = (qp.qpn, qp.conn.mtu, run.psn);
        let payload: &[u8] = if wqe.inline != 0 {
            let Some(bytes) = slot.tail().get(..len as usize) else { return false };
            bytes
        } else {
            let Some(bytes) = scratch.get_mut(..len as usize) else { return false };
            // A fetch that slow memory begins here continues for the general path.
            let of = TransferId::request(from, index, 0);
            if common.memory.gather(qp.pd, &slot, 0, bytes, of).is_err() {
                return false;
            }
            bytes
        };
        let bytes = packet_bytes(op.within(class_of_singles(DC)), len as usize);

        let bi = self.common.qp_of(run.dest_qpn);
        let Some(mut b) = bi.and_then(|bi| self.within(s, bi)) else { return false };
        let connected = b.qp.attr.dest_qp_num == from
            && b.qp.conn.mtu == mtu
            && b.qp.can_receive()
            && is_local(b.qp, to);
        if !connected || !b.accept_single::<DC>(&run, bytes, payload) {
            return false;
        }
        b.qp.conn.resp.pkts_since_ack = 0;
        b.count_sent(1, ACK_BYTES);

        let Some(mut a) = self.within(s, qi) else { return false };
        let (bytes, charge) = (bytes as u64, Charge::Free);
        a.note_sent::<true>(&Departed { psn, psns: 1, packets: 1, bytes, charge });
        a.count_received(1, ACK_BYTES);
        a.qp.conn.req.una_psn = a.qp.conn.req.max_psn;
        refill_retries(a.qp);
        let common = &mut *a.common;
        let code = if run.kind == Kind::Write { wc_opcode::RDMA_WRITE } else { wc_opcode::SEND };
        if let Some(ending) = prepare(s, &common.key, &mut common.cqs, a.qp.scq, wqe, code, SUCCESS)
        {
            ending.finish(s, a.qp, &mut sq, Left::NothingKept, None);
            return true;
        }
        // It has ended, and waits for room in its CQ as any other request.
        let ws = a.qp.wqe(index);
        (ws.started, ws.psn, ws.npkts, ws.done) = (true, psn, 1, true);
        let next = index.wrapping_add(1);
        (a.qp.conn.req.next, a.qp.conn.req.acked) = (next, next);
        a.complete(0);
        true
    }
}
