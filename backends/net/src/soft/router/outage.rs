//! A device whose router is away: queue pairs behind it wait, until a router takes the session
//! again ([`crate::via::resume`]) or the device's deadline is over. Links are not affected.
//!
//! The thread that runs the engine does all of this, when it maintains the links.

use crate::shm::relay::Relay;
use crate::soft::{PortState, SoftEngine};
use crate::via::proto::Message;
use crate::via::resume::Standing;
use gdrcore_core::engine::EngineGuard;
use std::os::fd::AsRawFd;

/// Time after the router's return for which the silence of a peer is no fault, because its process
/// may come back later than this one.
const SETTLE_NS: u64 = 2_000_000_000;
/// Times after the return at which unacknowledged packets are sent again, once each. The delay is
/// at most twice the time that the peer's process took to come back.
const AGAIN_NS: [u64; 9] = [
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
    320_000_000,
    640_000_000,
    1_280_000_000,
    SETTLE_NS,
];
/// Interval of looks at a session whose rings are lost while its socket is not.
const CHECK_RINGS_NS: u64 = 10_000_000;
/// Listeners that one round announces again.
const LISTENS: usize = 8;

/// The state of a device whose router is away, or was away until lately.
#[derive(Default)]
pub(in crate::soft) struct Outage {
    /// The rings are lost.
    pub(in crate::soft) relay_lost: bool,
    /// Since when the router is away.
    since: Option<u64>,
    /// When [`SoftEngine::follow_router`] must act next; `None`: not at all.
    at: Option<u64>,
    /// When the router came back, and how often packets were sent again since.
    back: Option<(u64, usize)>,
    /// The session is over, and the engine was told.
    over: bool,
    /// The engine has something to send or to report.
    changed: bool,
}

/// When a device whose router is away acts next: at the next attempt, but no later than its
/// deadline.
fn look_at(attempt: u64, since: u64, grace_ns: u64) -> u64 {
    attempt.min(since.saturating_add(grace_ns))
}

impl Outage {
    /// Whether the router is away and may come back.
    pub(in crate::soft) fn is_away(&self) -> bool {
        self.since.is_some()
    }

    /// When the device must act next.
    pub(in crate::soft) fn deadline(&self) -> Option<u64> {
        self.at
    }

    /// Whether the engine has something to send or to report since the last call.
    pub(in crate::soft) fn take_change(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }
}

/// Data, under the lock, in the maintenance of the links: a router that is away.
impl SoftEngine {
    /// Notices the router's end, looks for the next one, and resumes with it.
    pub(in crate::soft) fn follow_router(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        now: u64,
    ) {
        let Some(via) = &self.via else { return };
        let outage = &mut port.router.outage;
        if outage.over {
            return;
        }
        if outage.since.is_none() && (outage.relay_lost || via.is_gone()) {
            (outage.since, outage.at, outage.back) = (Some(now), Some(now), None);
            g.begin_outage();
        }
        if outage.at.is_none_or(|at| now < at) {
            return;
        }
        let Some(since) = outage.since else { return self.catch_up(g, port, now) };
        match via.resume(now) {
            Standing::Over => return self.lose_router(g, port, now, 0),
            Standing::Back(relay) => return self.take_back(g, port, now, relay),
            Standing::Away(at) => outage.at = Some(look_at(at, since, self.grace_ns)),
            Standing::Up => outage.at = Some(now + CHECK_RINGS_NS),
        }
        let waited = now.saturating_sub(since);
        if waited >= self.grace_ns {
            via.give_up();
            self.lose_router(g, port, now, waited);
        }
    }

    /// Continues with a router that has taken the session.
    #[cold]
    fn take_back(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        now: u64,
        relay: Option<Relay>,
    ) {
        let Some(via) = &self.via else { return };
        // If the socket cannot be watched, its messages wait for the next maintenance.
        let _ = self.waiter.add_socket(via.fd());
        if let Some(relay) = &relay {
            let _ = self.waiter.add_socket(relay.fd().as_raw_fd());
        }
        port.router.relay = relay;
        port.router.services.tell_again();
        port.router.outage = Outage { at: Some(now), back: Some((now, 0)), ..Outage::default() };
        port.router.outage.changed = true;
        g.end_outage(now, now + SETTLE_NS);
    }

    /// After the router's return: announces listeners again, and sends what peers have not
    /// acknowledged.
    fn catch_up(&self, g: &mut EngineGuard<'_>, port: &mut PortState, now: u64) {
        let Some(via) = &self.via else { return };
        let outage = &mut port.router.outage;
        let Some((since, done)) = outage.back else {
            outage.at = None;
            return;
        };
        let untold = port
            .router
            .services
            .announce(LISTENS, |service| via.tell(Message::Listen(service)).is_ok());
        let due = AGAIN_NS.iter().take_while(|&&after| now >= since + after).count();
        if due > done {
            outage.changed = true;
            g.end_outage(now, since + SETTLE_NS);
        }
        outage.back = (due < AGAIN_NS.len() || untold).then_some((since, due));
        let next = AGAIN_NS.get(due).map(|after| since + after);
        outage.at = if untold { Some(now + CHECK_RINGS_NS) } else { next };
    }

    /// Gives up, because no router takes the session any more.
    #[cold]
    fn lose_router(&self, g: &mut EngineGuard<'_>, port: &mut PortState, now: u64, waited: u64) {
        port.end_relay();
        port.router.outage = Outage { over: true, changed: true, ..Outage::default() };
        g.fail_port(now, waited);
        self.notify(g);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_between_attempts_does_not_move_the_deadline() {
        // The router has been away since 5.
        assert_eq!((look_at(8, 5, 10), look_at(15, 5, 10), look_at(900, 5, 10)), (8, 15, 15));
        assert_eq!(look_at(900, 5, u64::MAX), 900);
    }

    #[test]
    fn what_is_unacknowledged_waits_no_longer_than_its_peer_was_late() {
        assert!(AGAIN_NS.windows(2).all(|w| w[0] < w[1] && w[1] <= 2 * w[0]));
        assert_eq!(AGAIN_NS.last(), Some(&SETTLE_NS));
    }
}
