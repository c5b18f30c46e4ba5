//! When the server runs its device.

/// When a soft device runs beside the doorbells of its sessions. A round of the device costs more
/// than a message of a tenant, as a rule because it polls the socket. So it runs in each round of
/// the server only for a while after it has handled something, and seldom between the messages of
/// tenants who talk to each other.
#[derive(Default)]
pub(super) struct Pace {
    /// When it ran last, and until when it runs in each round.
    ran_ns: u64,
    hot_until_ns: u64,
    /// Until when the sessions count as busy.
    busy_until_ns: u64,
}

impl Pace {
    /// The device has handled something within this time: it runs in each round.
    const HOT_NS: u64 = 50_000;
    /// Otherwise it runs at this interval.
    const IDLE_NS: u64 = 1_000;
    /// And at this one while the sessions are busy.
    const BUSY_NS: u64 = 20_000;
    /// The sessions are busy for so long after they had work: longer than a tenant takes to answer.
    const BUSY_FOR_NS: u64 = 10_000;

    /// Notes that the sessions had work in this round.
    pub(super) fn note_work(&mut self, now: u64) {
        self.busy_until_ns = now + Pace::BUSY_FOR_NS;
    }

    /// Whether it runs now.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let every = if now < self.busy_until_ns { Pace::BUSY_NS } else { Pace::IDLE_NS };
        now < self.hot_until_ns || now.saturating_sub(self.ran_ns) >= every
    }

    /// Notes that it ran, and whether it handled something.
    pub(super) fn note(&mut self, now: u64, handled: bool) {
        self.ran_ns = now;
        if handled {
            self.hot_until_ns = now + Pace::HOT_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000;

    #[test]
    fn a_device_at_rest_runs_at_intervals_and_one_at_work_in_each_round() {
        let mut pace = Pace::default();
        assert!(pace.is_due(NOW), "a new one");
        pace.note(NOW, false);
        assert!(!pace.is_due(NOW + Pace::IDLE_NS - 1) && pace.is_due(NOW + Pace::IDLE_NS));
        pace.note(NOW, true);
        pace.note(NOW + 1, false);
        assert!(pace.is_due(NOW + 1) && pace.is_due(NOW + Pace::HOT_NS - 1));
        pace.note(NOW + Pace::HOT_NS, false);
        assert!(!pace.is_due(NOW + Pace::HOT_NS));
    }

    #[test]
    fn a_tenant_s_answer_comes_before_the_device_runs() {
        let mut pace = Pace::default();
        pace.note(NOW, false);
        pace.note_work(NOW);
        let waits = NOW + Pace::BUSY_FOR_NS;
        assert!(!pace.is_due(waits - 1) && pace.is_due(waits), "no answer");
        pace.note_work(waits);
        assert!(!pace.is_due(NOW + Pace::BUSY_NS - 1), "work again");
        assert!(pace.is_due(NOW + Pace::BUSY_NS), "it runs nevertheless");
    }
}
