//! QP numbers that rest after their queue pairs have ended.

use crate::host::Host;
use crate::link::Link;
use gdrcore_core::verbs::types::qp_type;
use std::collections::HashMap;

/// Rest of a QPN that nothing cuts short.
const REST_MIN_NS: u64 = 100_000_000;

/// QPNs that rest, by host: when they were released, and until when they should rest. A number that
/// was used may not be used again before that, unless no other is left, which the engine counts.
#[derive(Default)]
pub struct Numbers {
    resting: HashMap<(usize, u32), (u64, u64)>,
    early: HashMap<usize, u64>,
}

impl Numbers {
    /// A QP is about to be destroyed, at a time of the world. The number of an RC QP rests for four
    /// times the longest timeout that the engine knows of it; that of UC and UD, which send nothing
    /// again, for a second; that of a QP that has neither sent nor received, for [`REST_MIN_NS`].
    /// Between two QPs of one engine nothing is ever under way.
    pub fn release(&mut self, link: &Link, end: usize, host: &Host, now: u64) {
        let e = &link.ends[end];
        if e.qpn != 0 {
            let timeout = 4096u64 << link.plan.timeout;
            let talked = host.lock().qp_counters(e.qp).is_ok_and(|c| c.sent_pkts + c.rcvd_pkts > 0);
            let inside = link.ends[0].host == link.ends[1].host;
            let wait = match link.plan.kind {
                qp_type::RC | qp_type::UC if inside => return,
                _ if !talked => REST_MIN_NS,
                qp_type::RC => {
                    (4 * timeout * u64::from(link.plan.retry + 1).min(4)).max(REST_MIN_NS)
                }
                _ => 1_000_000_000,
            };
            let released = host.time(now);
            self.resting.insert((e.host, e.qpn), (released, released + wait));
        }
    }

    /// The engine of a host is a new one, which has counted nothing yet.
    pub fn restart(&mut self, host: usize) {
        self.early.insert(host, 0);
    }

    /// The ends of a link have new numbers.
    pub fn take(&mut self, link: &Link, hosts: &[Host], now: u64) -> Result<(), String> {
        let counted = |n: usize| hosts[n].lock().counters().qpn_reused_early;
        for e in &link.ends {
            let Some((released, until)) = self.resting.remove(&(e.host, e.qpn)) else { continue };
            let time = hosts[e.host].time(now);
            let early = self.early.entry(e.host).or_default();
            if until > time && (*early == counted(e.host) || released + REST_MIN_NS > time) {
                let (n, qpn, left) = (e.host, e.qpn, until - time);
                return Err(format!(
                    "host {n}: QPN {qpn:#x} is used again {left} ns before its time-wait is over"
                ));
            }
            *early += u64::from(until > time);
        }
        for e in &link.ends {
            self.early.insert(e.host, counted(e.host));
        }
        Ok(())
    }
}
