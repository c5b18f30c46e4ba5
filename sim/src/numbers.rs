//! Checks that QPNs rest after their queue pairs have ended.

use crate::host::Host;
use crate::link::Link;
use gdrcore_core::verbs::types::qp_type;
use std::collections::HashMap;

/// The shortest regular rest of a QPN.
const REST_MIN_NS: u64 = 100_000_000;

/// The resting QPNs of each host, with the time of their release and the time until which they
/// should rest. A QPN may not be reused before that unless no other is left, which the engine
/// counts.
#[derive(Default)]
pub struct Numbers {
    resting: HashMap<(usize, u32), (u64, u64)>,
    early: HashMap<usize, u64>,
}

impl Numbers {
    /// Records that a QP is about to be destroyed, at a time of the world. The QPN of an RC QP
    /// rests for four times the longest timeout that the engine knows of it; that of UC and UD,
    /// which retransmit nothing, for a second; that of a QP that has neither sent nor received, for
    /// [`REST_MIN_NS`]. Between two QPs of one engine no packet is ever under way.
    pub fn release(&mut self, link: &Link, end: usize, host: &Host, now: u64) {
        let e = &link.ends[end];
        for (qp, qpn) in e.qps() {
            let timeout = 4096u64 << link.plan.timeout;
            let talked = host.lock().qp_counters(qp).is_ok_and(|c| c.sent_pkts + c.rcvd_pkts > 0);
            let inside = link.ends[0].host == link.ends[1].host;
            let wait = match link.plan.kind {
                qp_type::RC | qp_type::UC if inside => return,
                // The number of a target that nobody called goes on with its former rest.
                _ if !talked && link.plan.targets > 0 => continue,
                _ if !talked => REST_MIN_NS,
                // A target repeats nothing of its own accord.
                qp_type::RC if link.plan.targets > 0 && end == 1 => 1_000_000_000,
                qp_type::RC => {
                    (4 * timeout * u64::from(link.plan.retry + 1).min(4)).max(REST_MIN_NS)
                }
                _ => 1_000_000_000,
            };
            let released = host.time(now);
            self.resting.insert((e.host, qpn), (released, released + wait));
        }
    }

    /// Records that the engine of a host is a new one, whose counters are zero.
    pub fn restart(&mut self, host: usize) {
        self.early.insert(host, 0);
    }

    /// Checks the new QPNs of a link's ends.
    pub fn take(&mut self, link: &Link, hosts: &[Host], now: u64) -> Result<(), String> {
        let counted = |n: usize| hosts[n].lock().counters().qpn_reused_early;
        let all = link.ends.iter().flat_map(|e| e.qps().map(move |(_, qpn)| (e, qpn)));
        for (e, qpn) in all {
            let Some((released, until)) = self.resting.remove(&(e.host, qpn)) else { continue };
            let time = hosts[e.host].time(now);
            let early = self.early.entry(e.host).or_default();
            if until > time && (*early == counted(e.host) || released + REST_MIN_NS > time) {
                let (n, left) = (e.host, until - time);
                return Err(format!(
                    "host {n}: QPN {qpn:#x} is reused {left} ns before its time-wait is over"
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
