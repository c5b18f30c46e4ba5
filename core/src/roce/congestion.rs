//! Congestion: from the network's marks to the rate of a sender.
//!
//! Three roles, as in IBTA Annex A17.9 and DCQCN. The *congestion point* is a switch, which marks
//! packets that wait in a long queue (ECN 3, "congestion experienced"). The *notification point*
//! receives them: it sends a CNP to the sender, at most one in [`CNP_INTERVAL_NS`] per queue pair,
//! as NICs do. The *reaction point* is the sender: with [`config_flags::DCQCN`] its packets are
//! ECN-capable, and each queue pair has a rate ([`Dcqcn`]). Without it no packet can be marked, and
//! CNPs are only counted.
//!
//! A packet that is not marked, of a queue pair that never received a CNP, costs nothing here.

use core::convert::Infallible;

use super::conn::Conn;
use super::peer::Path;
use super::run::Run;
use super::txbuf::{Emission, TxBuf};
use super::{Origin, Transport};
use crate::config::config_flags;
use crate::dcqcn::Dcqcn;
use crate::verbs::objects::Qp;
use crate::verbs::shared::Shared;
use crate::wire::icrc::crc32;
use crate::wire::{packet_bytes, Class, Opcode, PacketKind, Psn};

/// Least time between two CNPs of one queue pair.
pub const CNP_INTERVAL_NS: u64 = 50_000;
/// Most packets sent without a CNP that count as credit for later CNPs.
const CNP_CREDIT: u64 = 1024;
/// How long CNPs are ignored after more of them came than packets were sent.
const CNP_DEAF_NS: u64 = 200_000_000;
/// Reserved bytes behind the BTH of a CNP (IBTA A17.9.3).
const CNP_BYTES: u32 = 16;

impl Qp {
    /// Packets of the path MTU that may leave now under the QP's rate limits. Err: none; when to
    /// look again.
    #[cold]
    pub(crate) fn pace(&mut self, now: u64) -> Result<u32, u64> {
        let (mtu, have) = (self.conn.mtu, self.bucket.available(now));
        if have == 0 {
            return Err(self.bucket.ready_at(now, mtu).max(now + 1));
        }
        Ok((have / mtu).max(1).min(self.pace_congestion(now)?))
    }

    /// As [`Qp::pace`], under the congestion rate alone: the program's own limit does not cover
    /// answers.
    #[cold]
    pub(crate) fn pace_congestion(&mut self, now: u64) -> Result<u32, u64> {
        let have = self.conn.congestion.available(now);
        // The rate limit may have ended just now.
        self.set_paced(self.bucket.rate() != 0 || self.conn.congestion.is_limiting());
        if have == 0 {
            return Err(self.conn.congestion.ready_at(now, self.conn.mtu));
        }
        Ok((have / self.conn.mtu).max(1))
    }

    /// Whether a CNP may be about a packet that was sent. False: it is ignored.
    fn credits_notification(&mut self, now: u64) -> bool {
        let sent = self.counters.sent_pkts.wrapping_sub(self.conn.cnp_sent);
        self.conn.cnp_sent = self.counters.sent_pkts;
        let credit = u64::from(self.conn.cnp_credit).saturating_add(sent).min(CNP_CREDIT) as u32;
        self.conn.cnp_credit = credit.saturating_sub(1);
        if credit == 0 && now >= self.conn.cnp_deaf {
            // The effect of the forged CNPs ends.
            self.conn.cnp_deaf = now.saturating_add(CNP_DEAF_NS);
            self.conn.congestion = Dcqcn::default();
            self.set_paced(self.bucket.rate() != 0);
        }
        now >= self.conn.cnp_deaf
    }
}

impl Transport {
    /// Makes a QP owe its peer a CNP, because a packet for it arrived with a congestion mark.
    #[cold]
    pub(crate) fn on_mark(&mut self, s: &Shared, now: u64, from: &Origin, run: &Run) {
        let c = self.common.qp_of(run.dest_qpn).and_then(|qi| self.connected(s, qi));
        // A marked CNP is not answered by another. UD has no rate that a CNP could lower.
        let answers =
            |c: &Conn| c.is_from_peer(from) && run.class != Class::Cnp && c.qp.kind.is_connected();
        let Some(c) = c.filter(answers) else {
            self.common.counters.np_ecn_marked += 1;
            return;
        };
        let (qi, qp) = (c.qi, &mut *c.qp);
        qp.counters.np_ecn_marked += 1;
        // IBTA CA17-44: A marked packet is answered with a CNP, at most one for each queue pair in
        // 50 us.
        if now < qp.conn.cnp_at || !qp.can_receive() {
            return;
        }
        qp.conn.cnp_at = now.saturating_add(CNP_INTERVAL_NS);
        c.common.cnp_owed.set(qi);
        c.common.ready.set(qi);
    }

    /// Puts the owed CNPs of one peer into an empty burst, ahead of everything else.
    #[cold]
    pub(crate) fn transmit_cnps(&mut self, tx: &mut TxBuf<'_>) {
        let mut from = 0;
        while let Some(qi) = self.common.cnp_owed.at_or_after(from) {
            from = qi + 1;
            let qp = &mut self.qps[qi];
            let peer = self
                .peers
                .get(qp.conn.peer as usize)
                .filter(|p| qp.can_receive() && p.path == Path::Port);
            let Some(p) = peer else {
                // The QP has ended meanwhile.
                self.common.cnp_owed.clear(qi);
                continue;
            };
            if !tx.aim(qp.conn.peer, &p.flow, p.max_seg) {
                continue;
            }
            // IBTA A17.9.3: A CNP has PSN 0 and 16 zero bytes, and names the queue pair that sent
            // the marked packet.
            let mut run = Run::new(Class::Cnp, PacketKind::Cnp, qp.attr.dest_qp_num, Psn::new(0));
            run.becn = true;
            let zeroes = |_, to: &mut [u8], state: Option<u32>| {
                to.fill(0);
                Ok::<u32, Infallible>(state.map_or(0, |state| crc32(state, to)))
            };
            let (run, mtu, payload) = (&run, qp.conn.mtu, CNP_BYTES);
            let what = Emission { run, mtu, payload, ack_each_burst: false };
            if tx.emit(what, zeroes).packets == 0 {
                return;
            }
            self.common.cnp_owed.clear(qi);
            qp.counters.np_cnp_sent += 1;
            qp.counters.count_sent(1, run.wire_bytes(1, CNP_BYTES));
        }
    }
}

impl Conn<'_> {
    /// Takes a CNP for a connected QP.
    ///
    /// Without the option packets are not ECN-capable, so a CNP is ignored. With it a peer sends at
    /// most one CNP for each packet that it received. If more come, they are forged, and CNPs are
    /// ignored for a while.
    #[cold]
    pub(crate) fn handle_cnp(&mut self, now: u64, from: &Origin) {
        let line = self.common.config.line_rate_bytes_per_s;
        let ours = self.is_from_peer(from);
        let capable = self.common.config.flags & config_flags::DCQCN != 0;
        let qp = &mut *self.qp;
        let handled = ours && capable && qp.credits_notification(now) && {
            let handled = qp.conn.congestion.on_notification(now, line);
            qp.set_paced(qp.is_paced() || handled);
            handled
        };
        let c = &mut qp.counters;
        if ours {
            c.count_received(1, packet_bytes(Opcode::CNP, CNP_BYTES as usize) as u64);
        }
        if handled {
            c.rp_cnp_handled += 1;
        } else {
            c.rp_cnp_ignored += 1;
        }
        if !ours {
            self.note_odd(now);
        }
    }
}
