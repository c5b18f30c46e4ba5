//! What `lone` does for links, for packets: a message of one packet that travels alone through the port, in one step at either
//! end, and the ACK that ends it.
//!
//! The questions are those of `lone`, and so is what is noted when they were answered; here is how a packet is written and read. The
//! ACK that a QP owes goes behind its request as the shorter last segment of the same burst. `core/tests/engine/lone.rs` runs both ways
//! over the same requests and compares all that they leave, burst by burst.

use super::answers::ACK_UNLIMITED;
use super::conn::Conn;
use super::lone::Lone;
use super::peer::{FlowControl, Path, PeerAddr};
use super::requester::{gather, DEEP};
use super::rules::accept::RequestHeader;
use super::rules::send::Eligible;
use super::{Origin, Transport};
use crate::mem::Message;
use crate::verbs::shared::Shared;
use crate::wire::{packet_bytes, pad_len, Aeth, Bth, Flow, ImmDt, Opcode, Qpn, Reth, Syndrome, ICRC_LEN};

/// Bytes of an ACK.
const ACK_LEN: usize = packet_bytes(Opcode::RC_ACK, 0);

impl Transport {
    /// Writes the only request that waits in the send queue of the QP at an index into `buf`, and the ACK that the QP owes behind it, if
    /// the request is one packet through the port and nothing is in its way. `way` is as [`crate::engine::Guard::write_lone_packet`] has it. Returns the peer's index and the bytes of the
    /// request besides; [`Transport::wrote_lone`] is next. `None`: nothing has changed.
    #[inline]
    pub(crate) fn write_lone_packet(
        &mut self,
        s: &Shared,
        qi: usize,
        buf: &mut [u8],
        way: impl FnOnce(&PeerAddr) -> Option<(Flow, u16)>,
    ) -> Option<(Lone, usize, usize)> {
        let Conn { qp, peer, q, common, .. } = self.connected(s, qi)?;
        let to = qp.peer as usize;
        if peer.path != Path::Port || peer.tx.available(0) == 0 {
            return None;
        }
        let sq = q.engine_sq(&common.key);
        let Eligible { slot, op, is_write } = qp.next_single(&sq)?;
        let wqe = slot.header();
        let (index, psn) = (qp.req.next, qp.req.next_psn);
        // With so many under way it waits for others.
        if index.wrapping_sub(qp.req.acked) >= DEEP {
            return None;
        }
        let len = wqe.length as usize;
        let has_imm = op.has_imm();
        let pad = pad_len(len);
        let size = packet_bytes(op, len);
        let acks = qp.resp.ack_owed;
        if acks && (peer.max_seg < 2 || size < ACK_LEN) {
            return None;
        }
        let (packet, behind) = buf.get_mut(..size + ACK_LEN)?.split_at_mut(size);
        let (header, rest) = packet.split_first_chunk_mut::<{ Bth::LEN }>()?;
        let dest = Qpn::new(qp.attr.dest_qp_num);
        let bth = Bth { solicited: wqe.is_solicited(), pad: pad as u8, ack_req: true, ..Bth::new(op, dest, psn) };
        bth.emit(header);
        let mut rest = rest;
        if is_write {
            let (reth, more) = rest.split_first_chunk_mut::<{ Reth::LEN }>()?;
            Reth { va: wqe.remote_addr, rkey: wqe.rkey, len: len as u32 }.emit(reth);
            rest = more;
        }
        if has_imm {
            let (imm, more) = rest.split_first_chunk_mut::<{ ImmDt::LEN }>()?;
            ImmDt { imm: wqe.imm }.emit(imm);
            rest = more;
        }
        let (body, tail) = rest.split_at_mut_checked(len)?;
        if len > 0 {
            // Slow memory that begins to fetch goes on with it for the usual way.
            let of = Message::request(qp.qpn, index, 0);
            gather(&common.regions, &common.providers, qp.pd, &slot, 0, body, of).ok()?;
        }
        tail[..pad].fill(0);
        let (flow, ident) = way(&peer.addr).unwrap_or((peer.flow, 0));
        flow.append_icrc(ident, packet);
        if acks {
            let (header, rest) = behind.split_first_chunk_mut::<{ Bth::LEN }>()?;
            Bth::new(Opcode::RC_ACK, dest, qp.resp.ack_psn).emit(header);
            let aeth = rest.first_chunk_mut::<{ Aeth::LEN }>()?;
            Aeth { syndrome: ACK_UNLIMITED, msn: qp.resp.ack_msn & 0xff_ffff }.emit(aeth);
            flow.append_icrc(ident.wrapping_add(1), behind);
        }
        let lone =
            Lone { len: size + if acks { ACK_LEN } else { 0 }, qi, payload: len as u32, bytes: size as u32, acks };
        Some((lone, to, size))
    }

    /// Takes a packet, whose ICRC is right, that came through the port from somebody, if it is a message of one packet in order, or an ACK
    /// that ends the only request under way, and nothing is in its way. False: nothing has changed.
    #[inline]
    pub(crate) fn take_lone_packet(&mut self, s: &Shared, now: u64, from: &Origin, packet: &[u8]) -> bool {
        let Some((header, rest)) = packet.split_first_chunk::<{ Bth::LEN }>() else { return false };
        let Some((mut rest, _icrc)) = rest.split_last_chunk::<ICRC_LEN>() else { return false };
        let bth = Bth::parse(header);
        let (names_memory, has_imm) = match bth.opcode {
            Opcode::RC_SEND_ONLY | Opcode::RC_ACK => (false, false),
            Opcode::RC_WRITE_ONLY => (true, false),
            Opcode::RC_SEND_ONLY_IMM => (false, true),
            Opcode::RC_WRITE_ONLY_IMM => (true, true),
            _ => return false,
        };
        if bth.tver != 0 || bth.fecn || bth.becn || bth.pkey & 0x7fff != 0x7fff {
            return false;
        }
        let Some(mut c) = self.common.qp_of(bth.dest_qp.get()).and_then(|qi| self.connected(s, qi)) else {
            return false;
        };
        if !c.qp.is_rc_in_rts() || !c.is_from_peer(from) {
            return false;
        }
        if bth.opcode == Opcode::RC_ACK {
            let Ok(aeth) = rest.try_into().map(Aeth::parse) else { return false };
            let acked = bth.pad == 0 && matches!(Syndrome::parse(aeth.syndrome), Syndrome::Ack { .. });
            let ended = acked && c.end_lone(now, bth.psn);
            if ended {
                c.lone_ended();
                c.qp.learn_port(from.port);
            }
            return ended;
        }
        let (mut va, mut rkey, mut dma_len, mut imm) = (0, 0, 0, 0);
        if names_memory {
            let Some((reth, more)) = rest.split_first_chunk::<{ Reth::LEN }>() else { return false };
            Reth { va, rkey, len: dma_len } = Reth::parse(reth);
            rest = more;
        }
        if has_imm {
            let Some((bytes, more)) = rest.split_first_chunk::<{ ImmDt::LEN }>() else { return false };
            imm = ImmDt::parse(bytes).imm;
            rest = more;
        }
        let Some(payload) = rest.len().checked_sub(bth.pad.into()).map(|len| &rest[..len]) else { return false };
        let (psn, solicited, ack_req) = (bth.psn, bth.solicited, bth.ack_req);
        let bytes = packet_bytes(bth.opcode, payload.len()) as u32;
        let r = RequestHeader { psn, writes: names_memory, has_imm, solicited, ack_req, imm, bytes, va, rkey, dma_len };
        let taken = c.take_single(now, &r, payload);
        if taken {
            c.qp.learn_port(from.port);
        }
        taken
    }
}
