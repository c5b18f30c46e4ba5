//! When the server runs its device.

/// When a soft device runs beside the doorbells of its sessions. A round of the device costs more
/// than a message of a tenant, as a rule because it polls the socket. So it runs in each round of
/// the server only for a while after it has handled something.
#[derive(Default)]
pub(super) struct Pace {
    /// When it ran last, and until when it runs in each round.
    ran_ns: u64,
    hot_until_ns: u64,
}

impl Pace {
    /// The device has handled something within this time: it runs in each round.
    const HOT_NS: u64 = 50_000;
    /// It runs this often otherwise, and while the sessions have work.
    const IDLE_NS: u64 = 1_000;
    const BUSY_NS: u64 = 20_000;

    /// Whether it runs now. `busy`: the sessions had work in this round.
    pub(super) fn is_due(&self, now: u64, busy: bool) -> bool {
        let every = if busy { Pace::BUSY_NS } else { Pace::IDLE_NS };
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

    #[test]
    fn a_device_at_rest_runs_at_intervals_and_one_at_work_in_each_round() {
        const NOW: u64 = 1_000_000_000;
        let mut pace = Pace::default();
        assert!(pace.is_due(NOW, false) && pace.is_due(NOW, true), "a new one");
        pace.note(NOW, false);
        for (busy, every) in [(false, Pace::IDLE_NS), (true, Pace::BUSY_NS)] {
            assert!(!pace.is_due(NOW + every - 1, busy) && pace.is_due(NOW + every, busy));
        }
        pace.note(NOW, true);
        pace.note(NOW + 1, false);
        assert!(pace.is_due(NOW + 1, true) && pace.is_due(NOW + Pace::HOT_NS - 1, false));
        pace.note(NOW + Pace::HOT_NS, false);
        assert!(!pace.is_due(NOW + Pace::HOT_NS, false));
    }
}
