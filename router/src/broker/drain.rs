//! Draining, before the router ends: it refuses new sessions and routes, and present sessions may
//! end in order.

use super::{all_up_mut, errno, refusal, Action, Broker, Refusal, SessionState};
use gdrcore_net::via::proto::{Drain, Envelope, Message, Text};

impl Broker {
    /// Refuses new sessions and routes from here on, and sets `until` as the end of the router.
    /// Notifies all sessions. A later call changes the time.
    pub fn drain(&mut self, now: u64, until: u64) {
        self.drains_until = Some(until);
        let left = until.saturating_sub(now) / 1_000_000;
        let news = Drain {
            deadline_ms: u32::try_from(left).unwrap_or(u32::MAX),
            text: Text::new("the router is about to end"),
        };
        for (id, up) in all_up_mut(&mut self.sessions) {
            self.out.push(Action::Send(id, Envelope::new(up.next_seq(), Message::Drain(news))));
        }
        for id in self.ids(|state| matches!(state, SessionState::Waits(_))) {
            self.end(now, id, draining());
        }
    }

    /// Whether a draining router may end: it has no session, or its time is over.
    pub fn is_drained(&self, now: u64) -> bool {
        let anybody = self.all_up().next().is_some();
        self.drains_until.is_some_and(|until| !anybody || now >= until)
    }

    /// The time at which a draining router ends. `None`: it does not drain.
    pub fn drains_until(&self) -> Option<u64> {
        self.drains_until
    }

    /// Checks that new sessions and routes may begin.
    ///
    /// # Errors
    /// The router drains.
    pub(super) fn check_not_draining(&self) -> Result<(), Refusal> {
        match self.drains_until {
            Some(_) => Err(draining()),
            None => Ok(()),
        }
    }
}

fn draining() -> Refusal {
    refusal!(errno::SHUTDOWN, "the router is about to end and begins nothing new")
}
