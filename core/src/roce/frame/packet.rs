//! Single requests and messages as RoCEv2 packets.
//!
//! A packet is written into the port's buffer, passed to the port, and then recorded in the QP's
//! state, while the peer already handles it. The ACK that a QP owes goes behind its request as the
//! shorter last segment of the same burst. `core/tests/engine/shapes/single.rs` compares this with
//! the general path, burst by burst.

use crate::mem::TransferId;
use crate::roce::conn::Conn;
use crate::roce::peer::{ConnectedFlow, Path, PeerAddr};
use crate::roce::rules::send::{class_of_singles, Eligible, PreparedSend};
use crate::roce::run::Run;
use crate::roce::{Origin, Transport};
use crate::verbs::shared::Shared;
use crate::verbs::wqe::DcAddr;
use crate::wire::{
    is_default_partition, packet_bytes, pad_len, Bth, Class, Opcode, PacketKind, Syndrome, ICRC_LEN,
};

/// Bytes of an ACK.
const ACK_LEN: usize = packet_bytes(Opcode::RC_ACK, 0);

/// The port, as far as small messages need it.
pub trait Packets {
    /// Room for a burst, and the flow of the port's connected socket; `None`: no room now.
    fn begin(&mut self) -> Option<(&mut [u8], Option<&ConnectedFlow>)>;
    /// Sends the first `len` bytes of the room: packets of `seg` bytes, of which the last may be
    /// shorter. `for_connected`: their ICRCs are those of the connected socket's flow. Returns the
    /// time.
    fn commit(&mut self, to: &PeerAddr, len: usize, seg: usize, for_connected: bool) -> u64;
}

impl Transport {
    /// Sends the only waiting request of the QP at an index, and behind it the ACK that the QP
    /// owes, if the request is single and goes through the port. Returns the time. `None`: it has
    /// sent nothing, and the QP is as it was. `DC`: the QP is a DCI, for which the clock is read
    /// before the packet; else it is RC.
    #[inline(always)]
    pub(crate) fn send_packet<const DC: bool, P: Packets>(
        &mut self,
        s: &Shared,
        qi: usize,
        port: &mut P,
        clock: impl Fn() -> u64,
    ) -> Option<u64> {
        let mut c = self.connected(s, qi)?;
        let (buf, connected) = port.begin()?;
        let (prepared, for_connected) = c.write_packet::<DC>(buf, clock, connected)?;
        let now = port.commit(&c.peer.addr, prepared.len, prepared.bytes as usize, for_connected);
        c.note_single_sent(&prepared);
        c.note_reply();
        if let Some(association) = c.qp.dci.first_mut() {
            association.used_at = now;
        }
        c.start_timers(now);
        c.arm_timer();
        Some(now)
    }

    /// Takes a packet from the port, its ICRC checked, if it is a single message in order, or an
    /// ACK that ends all requests in flight, each single. False: nothing has changed. `DC`: the
    /// packet is of DC.
    pub(crate) fn take_packet<const DC: bool>(
        &mut self,
        s: &Shared,
        now: u64,
        from: &Origin,
        packet: &[u8],
    ) -> bool {
        let Some((header, rest)) = packet.split_first_chunk::<{ Bth::LEN }>() else { return false };
        let Some((rest, _icrc)) = rest.split_last_chunk::<ICRC_LEN>() else { return false };
        let bth = Bth::parse(header);
        let single = matches!(
            bth.opcode.class_to_rc(class_of_singles(DC)),
            Opcode::RC_SEND_ONLY
                | Opcode::RC_ACK
                | Opcode::RC_WRITE_ONLY
                | Opcode::RC_SEND_ONLY_IMM
                | Opcode::RC_WRITE_ONLY_IMM
        );
        if !single || bth.fecn || bth.becn || !is_default_partition(bth.pkey) {
            return false;
        }
        let qi = self.common.qp_of(bth.dest_qp.get());
        let Some(mut c) = qi.and_then(|qi| self.connected(s, qi)) else { return false };
        let takes = if DC { c.qp.takes_singles_of_dc() } else { c.qp.is_rc_in_rts() };
        if !takes || !c.is_from_peer(from) {
            return false;
        }
        let Ok((run, payload)) = Run::parse_behind(&bth, rest) else { return false };
        let taken = if run.kind == PacketKind::Ack {
            // IBTA 9.7.7.2, taken
            let acked =
                payload.is_empty() && matches!(Syndrome::parse(run.syndrome), Syndrome::Ack { .. });
            let ended = acked && c.end_singles_through(now, run.psn);
            if ended {
                c.note_single_ended();
            }
            ended
        } else {
            c.take_single::<DC>(now, &run, packet_bytes(bth.opcode, payload.len()), payload)
        };
        if taken {
            c.qp.learn_port(from.port);
        }
        taken
    }
}

impl Conn<'_> {
    /// Writes the only waiting request into `buf`, and behind it the owed ACK. If there is a result
    /// the request has begun; nothing else changes. Also returns whether the ICRC is that of
    /// `connected`, the flow of the port's connected socket.
    #[inline(always)]
    fn write_packet<const DC: bool>(
        &mut self,
        buf: &mut [u8],
        clock: impl Fn() -> u64,
        connected: Option<&ConnectedFlow>,
    ) -> Option<(PreparedSend, bool)> {
        let Conn { qp, peer, q, common, .. } = self;
        if peer.path != Path::Port || peer.tx.available() == 0 {
            return None;
        }
        let sq = q.engine_sq(&common.key);
        let Eligible { index, slot, op, run } = qp.next_single::<DC>(&sq)?;
        if DC && !common.try_association(qp, &DcAddr::read(slot.tail()), clock()) {
            return None;
        }
        let wqe = slot.header();
        // With this many requests in flight the request is batched with later ones.
        if index.wrapping_sub(qp.conn.req.acked) >= qp.conn.req.deep() {
            return None;
        }
        let len = wqe.length as usize;
        let pad = pad_len(len);
        let size = packet_bytes(op, len);
        let acks = !DC && qp.conn.resp.ack_owed;
        if acks && (peer.max_seg < 2 || size < ACK_LEN) {
            return None;
        }
        let (packet, behind) = buf.get_mut(..size + ACK_LEN)?.split_at_mut(size);
        let (head, rest) = packet.split_at_mut_checked(op.header_len())?;
        run.emit_headers(op, run.psn, true, pad as u8, head);
        let (body, tail) = rest.split_at_mut_checked(len)?;
        if len > 0 {
            // A fetch that slow memory begins here continues for the general path.
            let of = TransferId::request(qp.qpn, index, 0);
            common.memory.gather(qp.pd, &slot, 0, body, of).ok()?;
        }
        if !qp.begin_single(index) {
            return None;
        }
        tail[..pad].fill(0);
        let connected = connected.filter(|c| c.leads_to(&peer.addr));
        let (flow, ident) = connected.map_or((&peer.flow, 0), |c| (&c.flow, c.ident));
        flow.append_icrc(ident, packet);
        if acks {
            let ack = qp.conn.resp.ack(Class::Rc, run.dest_qpn);
            ack.emit_headers(Opcode::RC_ACK, ack.psn, false, 0, &mut behind[..ACK_LEN - ICRC_LEN]);
            flow.append_icrc(ident.wrapping_add(1), behind);
        }
        let (payload, bytes) = (len as u32, size as u32);
        let len = size + if acks { ACK_LEN } else { 0 };
        Some((PreparedSend { len, payload, bytes, acks }, connected.is_some()))
    }
}
