//! Packets that are forged in a peer's name, by senders that have to guess their PSNs.
//!
//! A stranger that knows the addresses and the QPN of a connection, and sees none of its packets,
//! must guess 24 bits of PSN. Answers count only for what is outstanding, and requests only at the
//! expected PSN. What remains are packets that take effect without the one right PSN, or for which
//! many PSNs are right:
//!
//! - A request ahead of the expected PSN draws a NAK, and the peer retransmits. Far ahead, as half
//!   of all PSNs are, it is believed only while no request comes in order: a loss stops those, a
//!   forgery does not.
//! - A NAK for an outstanding PSN ends the connection, an RNR NAK delays it, and both acknowledge
//!   what is before them. From a UDP port that has never advanced the connection, a NAK ends it
//!   only if silence follows, besieged or not.
//!
//! Most guesses are far off; packets of an honest peer never are. While many such packets come, and
//! for [`SIEGE_NS`] after the last of them, the queue pair is *besieged*. Then a NAK that ends the
//! connection must be repeated, or be followed by silence; an RNR NAK holds for [`RNR_NS`] at most
//! and is not counted; NAKs acknowledge nothing; any request ahead is believed only while none
//! comes in order. Packets far off are dropped before their ICRC is computed. So are packets from
//! other UDP ports than the last two that advanced the connection: a sender keeps its port for a
//! connection (IBTA A17.3.2.1), and another user of its host cannot send from it. A soft device as
//! peer may have a further port, if the kernel says that it is the peer's
//! ([`EngineGuard::allow_port`](crate::engine::EngineGuard::allow_port)).
//!
//! What is left: a forged ACK or SEND at the right PSN is taken, from a stranger below the rate
//! that besieges (640 guesses a second, seven hours for all PSNs), or on the peer's own port.

use super::conn::Conn;
use super::{Origin, Transport};
use crate::verbs::objects::Qp;
use crate::wire::{Bth, NakCode, PacketKind, Psn};

/// Greatest distance of an honest peer's packets, except READs, from the expected PSN.
pub(crate) const NEAR: i32 = 1 << 16;
/// So many packets that no honest peer sends, within this time, make a queue pair besieged.
const ODD_MAX: u32 = 64;
const ODD_NS: u64 = 100_000_000;
/// How long a siege lasts after the last such packet.
pub(crate) const SIEGE_NS: u64 = 100_000_000;
/// A request ahead is believed if no request has come in order for this long.
const SETTLE_NS: u64 = 50_000;
/// The longest time for which an RNR NAK holds a besieged queue pair.
pub(crate) const RNR_NS: u64 = 1_000_000;

impl Qp {
    /// Whether so many packets are forged in the peer's name that single ones are not believed.
    pub(crate) fn is_besieged(&self, now: u64) -> bool {
        now < self.conn.siege.until
    }

    /// Notes a UDP port whose packet has advanced the connection.
    #[inline(always)]
    pub(crate) fn learn_port(&mut self, port: u16) {
        if self.conn.siege.ports[0] != port {
            self.conn.siege.ports = [port, self.conn.siege.ports[0]];
        }
    }

    /// The distance of an answer from the outstanding PSNs; 0: it is among them.
    #[inline(always)]
    pub(crate) fn off_by(&self, psn: Psn, n: u32) -> i32 {
        // rxe rxe_comp.c check_psn, old: An answer for a PSN that is not outstanding changes
        // nothing.
        let first = psn.diff(self.conn.req.una_psn);
        let beyond = psn.add(n - 1).diff(self.conn.req.max_psn);
        if first < 0 {
            first
        } else if beyond >= 0 {
            beyond + 1
        } else {
            0
        }
    }

    /// Whether a request ahead of the expected PSN is a sign that something was lost.
    pub(crate) fn weigh_ahead(&mut self, now: u64, far: bool) -> bool {
        if !far && !self.is_besieged(now) {
            return true;
        }
        let epsn = self.conn.resp.epsn;
        match self.conn.resp.ahead {
            Some((at, since)) if at == epsn => now.saturating_sub(since) >= SETTLE_NS,
            _ => {
                self.conn.resp.ahead = Some((epsn, now));
                false
            }
        }
    }

    /// Whether a UDP port is one of the last two that advanced the connection, or none is known
    /// yet; 0: the packet came by another path.
    pub(crate) fn knows_port(&self, port: u16) -> bool {
        port == 0 || self.conn.siege.ports[0] == 0 || self.conn.siege.ports.contains(&port)
    }

    /// Whether a NAK that ends the connection is believed now: if the queue pair is not besieged,
    /// or if the NAK is repeated. A NAK from a port that has never advanced the connection is not
    /// believed now. It is noted, and counts after silence ([`Qp::doubts`]).
    pub(crate) fn weigh_end(&mut self, now: u64, psn: Psn, code: NakCode, port: u16) -> bool {
        let known = self.knows_port(port);
        if known && !self.is_besieged(now) {
            return true;
        }
        self.conn.req.doubted.replace((psn, code)) == Some((psn, code)) && known
    }

    /// The NAK that was not believed, if its PSN is outstanding now.
    pub(crate) fn doubts(&self) -> Option<(Psn, NakCode)> {
        self.conn.req.doubted.filter(|(psn, _)| self.off_by(*psn, 1) == 0)
    }
}

impl Transport {
    /// Whether a packet that was not checked yet is for a besieged QP, and cannot be its peer's.
    #[cold]
    pub(crate) fn screen_besieged(&mut self, now: u64, from: &Origin, packet: &[u8]) -> bool {
        let Some(header) = packet.first_chunk() else { return false };
        let bth = Bth::parse(header);
        let Some(qp) = self.common.qp_of(bth.dest_qp.get()).and_then(|qi| self.qps.get(qi)) else {
            return false;
        };
        if !qp.is_besieged(now) || !qp.kind.is_reliable() {
            return false;
        }
        let Some(peer) = self.peers.get(qp.conn.peer as usize).filter(|p| p.addr.gid == from.gid)
        else {
            return true;
        };
        if !qp.knows_port(from.port) {
            if !qp.conn.own_port {
                return true;
            }
            // A soft device that has connected a socket goes on from the port of that socket,
            // besieged or not. The caller may find out that the port is the peer's.
            if !peer.sends_from(from.port) {
                self.common.refused_port = Some((peer.addr, from.port));
                return true;
            }
        }
        if bth.opcode.class() != qp.kind.class() {
            return false;
        }
        match bth.opcode.kind() {
            PacketKind::Ack | PacketKind::ReadResponse | PacketKind::AtomicAck => {
                qp.off_by(bth.psn, 1).abs() > NEAR
            }
            // A repeated READ request may be as old as the READ is long.
            PacketKind::ReadRequest => false,
            _ => bth.psn.diff(qp.conn.resp.epsn).abs() > NEAR,
        }
    }
}

impl Conn<'_> {
    /// Counts a packet for a QP that no honest peer sends.
    #[cold]
    pub(crate) fn note_odd(&mut self, now: u64) {
        let siege = &mut self.qp.conn.siege;
        if now.saturating_sub(siege.since) >= ODD_NS {
            (siege.since, siege.count) = (now, 0);
        }
        siege.count += 1;
        if siege.count >= ODD_MAX {
            siege.until = now.saturating_add(SIEGE_NS);
            self.common.siege_until = siege.until;
        }
    }

    /// Counts an answer to no outstanding PSN.
    #[cold]
    pub(crate) fn note_stray(&mut self, now: u64, off: i32) {
        self.count(|c| &mut c.rcvd_stray);
        if off.abs() > NEAR {
            self.note_odd(now);
        }
    }
}
