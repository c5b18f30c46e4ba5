//! MIDDLE packets of a WRITE, or of the response to a READ, that is under way: the payload goes to
//! its place and into the ICRC in one pass, before the ICRC is known to be right.
//!
//! Why that is allowed, and only here:
//!
//! - The place follows from the WRITE's first packet, whose ICRC was right, or from the READ's own
//!   request, and not from this packet. Bytes of a damaged packet lie where the WRITE or READ has
//!   yet to put its own. The packet that is sent in its stead puts them there, because the expected
//!   PSN has not moved.
//! - Until a WRITE or READ is complete, nobody may rely on what its memory holds. Programs that
//!   poll memory wait for the last bytes of a message, so LAST and ONLY are checked first.
//! - Memory of another kind than the host's has no such pass.
//!
//! An attacker gains nothing: who knows addresses, ports, QPN and PSN can compute the ICRC.

use crate::roce::run::Run;
use crate::roce::{Origin, Transport};
use crate::verbs::shared::Shared;
use crate::wire::{is_default_partition, Bth, IcrcFlow, Opcode, PacketKind, ICRC_LEN};

/// Bytes of the shortest packet for which one pass pays.
pub const FEWEST: usize = 1024;

impl Transport {
    /// Takes a packet from the port whose ICRC was not checked yet, if it is the expected MIDDLE
    /// packet of a WRITE, or of a READ's response, into host memory, and its IPv4 identification is
    /// `ident`. False: the general path checks and takes the packet; nothing has changed but memory
    /// that this packet of the WRITE or READ writes in any case.
    #[inline(never)]
    pub(crate) fn take_middle(
        &mut self,
        s: &Shared,
        from: &Origin,
        (flow, ident): (&IcrcFlow, u16),
        packet: &[u8],
        now: impl FnOnce() -> u64,
    ) -> bool {
        let Some((header, rest)) = packet.split_first_chunk::<{ Bth::LEN }>() else { return false };
        let Some((rest, icrc)) = rest.split_last_chunk::<ICRC_LEN>() else { return false };
        if ![Opcode::RC_WRITE_MIDDLE, Opcode::RC_READ_RESPONSE_MIDDLE].contains(&Opcode(header[0]))
        {
            return false;
        }
        let bth = Bth::parse(header);
        let Ok((run, payload)) = Run::parse_behind(&bth, rest) else { return false };
        let qi = self.common.qp_of(run.dest_qpn);
        let Some(mut c) = qi.and_then(|qi| self.connected(s, qi)) else { return false };
        if !is_default_partition(run.pkey) || !c.qp.is_rc_in_rts() || !c.is_from_peer(from) {
            return false;
        }
        // A path MTU is a multiple of 4: no pad follows the payload.
        if payload.len() != rest.len() {
            return false;
        }
        let (psn, len) = (run.psn, payload.len());
        let next = match run.kind {
            PacketKind::ReadResponse => c.next_of_read(psn, len).map(|(read, to)| (Some(read), to)),
            _ => c.next_of_write(psn, len).map(|to| (None, to)),
        };
        let Some((read, target)) = next else { return false };
        let state = flow.icrc_of_headers(ident, header, Bth::LEN + rest.len());
        let summed = c.common.memory.providers.place_crc(&target, payload, state);
        if summed.is_none_or(|s| !s != u32::from_le_bytes(*icrc)) {
            return false;
        }
        c.count_received(1, packet.len() as u64);
        match read {
            Some(read) => c.note_answer_placed(now(), read, &run, len),
            None => c.accept(now(), &run, payload),
        }
        c.qp.learn_port(from.port);
        true
    }
}
