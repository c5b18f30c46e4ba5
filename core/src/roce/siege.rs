//! Strangers who send in a peer's name: what they may do with a packet whose PSN they have to
//! guess.
//!
//! A stranger that knows the addresses and the QPN of a connection, and sees none of its packets,
//! must guess 24 bits of PSN. Answers count only for what is outstanding, and requests only at the
//! expected PSN. What remains are packets whose effect does not ask for the right PSN, or whose
//! right PSN is one of many:
//!
//! - A request ahead of the expected PSN draws a NAK, by which the peer sends again what is under
//!   way. Far ahead, as half of all PSNs are, it is believed only while nothing comes in order: a
//!   loss stops what is in order, a forgery does not.
//! - A NAK among what is outstanding ends the connection, an RNR NAK holds it up, either
//!   acknowledges what is before it. From a UDP port that has never moved the connection on, a NAK
//!   ends it only when silence follows, besieged or not.
//!
//! Most guesses are far off, which packets of an honest peer never are. While many such come, the
//! queue pair is *besieged*, for [`SIEGE_NS`] after the last of them: then a NAK that ends the
//! connection must be said twice, or be followed by silence; an RNR NAK holds for [`RNR_NS`] at
//! most and is not counted; NAKs acknowledge nothing; and any request ahead is believed only while
//! nothing comes in order. Packets far off are dropped before their ICRC is computed, and so are
//! those from another UDP port than the last two from which the connection has moved on: a sender
//! keeps its port for a connection (IBTA A17.3.2.1), and another user of its host cannot send from
//! that one.
//!
//! What is left: below the rate that besieges a queue pair (640 guesses a second, seven hours for
//! all PSNs), and by a stranger who can send from the peer's port, a forged ACK or SEND at the
//! right PSN is taken.

use super::conn::Conn;
use super::{Origin, Transport};
use crate::verbs::objects::Qp;
use crate::wire::{Bth, Kind, NakCode, Psn};

/// PSNs of an honest peer are not farther from what is expected, but for those of READs.
pub(crate) const NEAR: i32 = 1 << 16;
/// So many packets that no honest peer sends, within this time, besiege a queue pair.
const ODD_MAX: u32 = 64;
const ODD_NS: u64 = 100_000_000;
/// For how long after the last of them.
pub(crate) const SIEGE_NS: u64 = 100_000_000;
/// What comes in order comes again within this time, where a request ahead of it is not a sign of a
/// loss.
const SETTLE_NS: u64 = 50_000;
/// The longest time for which an RNR NAK holds a besieged queue pair.
pub(crate) const RNR_NS: u64 = 1_000_000;

impl Qp {
    /// Whether so much is forged in its peer's name that single packets are not believed.
    pub(crate) fn is_besieged(&self, now: u64) -> bool {
        now < self.conn.siege.until
    }

    /// A packet from this UDP port has moved the connection on.
    #[inline(always)]
    pub(crate) fn learn_port(&mut self, port: u16) {
        if self.conn.siege.ports[0] != port {
            self.conn.siege.ports = [port, self.conn.siege.ports[0]];
        }
    }

    /// Whether an answer is about what is outstanding, and how far off it is otherwise.
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
    pub(crate) fn believes_ahead(&mut self, now: u64, far: bool) -> bool {
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

    /// Whether a UDP port is one of the last two from which the connection has moved on, or nothing
    /// is known of its ports; 0: it came by another path.
    pub(crate) fn knows_port(&self, port: u16) -> bool {
        port == 0 || self.conn.siege.ports[0] == 0 || self.conn.siege.ports.contains(&port)
    }

    /// Whether a NAK that ends the connection is believed: at once, or, while the queue pair is
    /// besieged, when it is said again. One from a port that has never moved the connection on is
    /// believed only when silence follows.
    pub(crate) fn believes_end(&mut self, now: u64, psn: Psn, code: NakCode, port: u16) -> bool {
        let known = self.knows_port(port);
        if known && !self.is_besieged(now) {
            return true;
        }
        self.conn.req.doubted.replace((psn, code)) == Some((psn, code)) && known
    }

    /// The NAK that was not believed, if it is about what is outstanding now.
    pub(crate) fn doubts(&self) -> Option<(Psn, NakCode)> {
        self.conn.req.doubted.filter(|(psn, _)| self.off_by(*psn, 1) == 0)
    }
}

impl Transport {
    /// Whether a packet, of which nothing was checked, is for a besieged QP and cannot be its
    /// peer's.
    #[cold]
    pub(crate) fn is_odd(&self, now: u64, from: &Origin, packet: &[u8]) -> bool {
        let Some(header) = packet.first_chunk() else { return false };
        let bth = Bth::parse(header);
        let Some(qp) = self.common.qp_of(bth.dest_qp.get()).and_then(|qi| self.qps.get(qi)) else {
            return false;
        };
        if !qp.is_besieged(now) || !qp.kind.is_reliable() {
            return false;
        }
        if self.peers.get(qp.conn.peer as usize).is_none_or(|p| p.addr.gid != from.gid) {
            return true;
        }
        if !qp.knows_port(from.port) {
            return true;
        }
        if bth.opcode.class() != qp.kind.class() {
            return false;
        }
        match bth.opcode.kind() {
            Kind::Ack | Kind::ReadResponse | Kind::AtomicAck => qp.off_by(bth.psn, 1).abs() > NEAR,
            // One that was asked before may be as old as the READ is long.
            Kind::ReadRequest => false,
            _ => bth.psn.diff(qp.conn.resp.epsn).abs() > NEAR,
        }
    }
}

impl Conn<'_> {
    /// A packet came for a QP that no honest peer sends.
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

    /// An answer to nothing that is outstanding.
    #[cold]
    pub(crate) fn stray(&mut self, now: u64, off: i32) {
        self.count(|c| &mut c.rcvd_stray);
        if off.abs() > NEAR {
            self.note_odd(now);
        }
    }
}
