//! A WRITE of one packet between two queue pairs of one engine with nothing in its way, in one step.
//!
//! The usual way of such a request is a chain of questions: is something held back, lost, repeated, under way, paced,
//! owed, full? For a lone request between two idle queue pairs all answers are no, and asking them one after the other,
//! each where the state of its part lies, takes longer than the rest. Here they are asked together, before anything is
//! changed. One yes, a key that is refused, memory that is gone, and nothing has happened: the request takes the usual
//! way, which alone knows what is to be done then. So every rule about what goes wrong stays where it is, and what goes
//! well leaves the state and the counters that the usual way would have left: `core/tests/engine/direct.rs` runs both
//! over the same requests and compares all of it.
//!
//! It takes no time stamp, because nothing stays outstanding.

use super::answers::ACK_BYTES;
use super::requester::gather;
use super::rules::ack::refill_retries;
use super::rules::complete::{prepare, Left};
use super::Transport;
use crate::counters::Counters;
use crate::mem::{Access, Message};
use crate::verbs::objects::Qp;
use crate::verbs::shared::Shared;
use crate::verbs::types::{access, qp_type, wc_status, wr_opcode};
use crate::wire::{packet_bytes, Opcode};

/// Whether a QP and its peer are of this engine and connected, and its responder is idle.
#[inline(always)]
fn is_local(qp: &Qp) -> bool {
    qp.loopback && qp.kind == qp_type::RC && qp.resp.blocks() == 0 && !qp.resp.ack_owed
}

impl Transport {
    /// Executes the only request in the send queue of the QP at an index, if it can be done in one step: then it has been
    /// acknowledged and, where that was asked for, completed. False: nothing has changed.
    ///
    /// `scratch`: room for one packet.
    #[inline]
    pub(crate) fn pass(&mut self, s: &Shared, qi: usize, scratch: &mut [u8]) -> bool {
        let a = &self.qps[qi];
        let index = a.req.next;
        let mut sq = s.sq(qi, &self.common.key);
        let alone = sq.end() == index.wrapping_add(1);
        if !alone || !a.may_send_new() || !a.req.nothing_in_flight() || !is_local(a) {
            return false;
        }
        let slot = sq.at(index);
        let wqe = slot.header();
        let len = wqe.length as u32;
        let fits = wqe.length.wrapping_sub(1) < u64::from(a.mtu);
        if u32::from(wqe.opcode) != wr_opcode::RDMA_WRITE || !fits {
            return false;
        }
        let Some(bi) = self.common.qp_of(a.attr.dest_qp_num) else { return false };
        let b = &self.qps[bi];
        let psn = a.req.next_psn;
        let connected = b.attr.dest_qp_num == a.qpn && b.resp.epsn == psn && b.mtu == a.mtu;
        if !connected || !is_local(b) || !b.can_receive() || b.attr.qp_access_flags & access::REMOTE_WRITE == 0 {
            return false;
        }
        let ending = prepare(s, &self.common.key, &mut self.common.cqs, a, wqe, wc_status::SUCCESS);
        let Some(ending) = ending else { return false };
        let (at, key) = (wqe.remote_addr, wqe.rkey);
        let Ok(target) = self.common.regions.remote(key, b.pd, b.qpn, at, len, access::REMOTE_WRITE) else {
            return false;
        };
        if target.provider != 0 {
            return false;
        }
        let payload: &[u8] = if wqe.inline != 0 {
            let Some(bytes) = slot.tail().get(..len as usize) else { return false };
            bytes
        } else {
            let Some(bytes) = scratch.get_mut(..len as usize) else { return false };
            // Slow memory that begins to fetch goes on with it for the usual way.
            let of = Message::request(a.qpn, index, 0);
            if gather(&self.common.regions, &self.common.providers, a.pd, &slot, 0, bytes, of).is_err() {
                return false;
            }
            bytes
        };
        // Should it fail half way, the usual way writes the same bytes again before it says so.
        if self.common.providers.place(&target, 0, payload) != Access::Ready {
            return false;
        }

        let next = psn.next();
        let packet = packet_bytes(Opcode::RC_WRITE_ONLY, len as usize) as u64;
        let count = |c: &mut Counters, sender: u64, receiver: u64| {
            c.sent_pkts += sender + receiver;
            c.rcvd_pkts += sender + receiver;
            c.sent_bytes += sender * packet + receiver * ACK_BYTES;
            c.rcvd_bytes += receiver * packet + sender * ACK_BYTES;
        };
        let b = &mut self.qps[bi];
        b.resp.epsn = next;
        b.resp.msn = b.resp.msn.wrapping_add(1);
        b.resp.ack_psn = psn;
        b.resp.ack_msn = b.resp.msn;
        b.resp.pkts_since_ack = 0;
        b.resp.forget_naks();
        count(&mut b.counters, 0, 1);
        count(&mut self.common.counters, 1, 1);
        let a = &mut self.qps[qi];
        a.req.next_psn = next;
        a.req.una_psn = next;
        a.req.max_psn = next;
        refill_retries(a);
        count(&mut a.counters, 1, 0);
        ending.finish(s, a, &mut self.common.counters, &mut sq, Left::NothingUnsent, None);
        true
    }
}
