//! Decides whether the helper polls on after work or sleeps at once, by the results of earlier
//! polls.

/// If a yield takes longer, another thread is computing on this core.
const AWAY_NS: u64 = 200_000;
/// Polls in vain after which the helper sleeps at once.
const CREDIT: u32 = 16;
/// Sleeps before lingering is tried again: initial and maximum back-off.
const AGAIN: (u32, u32) = (1 << 8, 1 << 16);
/// The shortest time slice of a scheduler.
const SLICE_NS: u64 = 100_000;

/// State of the decision. Polling on pays between two bursts of a stream, and where messages come
/// one by one, because a sleep and a wake-up cost both sides more. It does not pay if the program
/// spins on memory on this very core: the program gives up the core only at the end of a time
/// slice, and answers nothing while the helper polls.
pub(in crate::soft) struct Linger {
    /// Balance of polls that found work and polls in vain.
    credit: u32,
    /// Sleeps left until the next attempt, and their number after the next failed one.
    without: u32,
    again: u32,
    /// An attempt is in progress.
    trying: bool,
    /// The helper sleeps at once, with short time slices.
    short_slices: bool,
}

impl Linger {
    pub(in crate::soft) fn new() -> Self {
        Linger { credit: CREDIT, without: 0, again: AGAIN.0, trying: false, short_slices: false }
    }

    /// Work has just ended: returns whether the helper polls on, and notes the attempt.
    pub(in crate::soft) fn try_lingering(&mut self) -> bool {
        if !self.trying {
            self.trying = self.credit > 0 || self.without == 0;
            if self.trying && core::mem::take(&mut self.short_slices) {
                prefer_slices(0);
            }
            self.without = self.without.saturating_sub(1);
        }
        self.trying
    }

    /// Work came; the yield before it took `away`.
    pub(in crate::soft) fn note_work(&mut self, away: u64) {
        if self.trying && away > AWAY_NS {
            self.note_vain();
        } else if self.trying {
            self.trying = false;
            self.again = AGAIN.0;
            self.credit = (self.credit + 1).min(CREDIT);
        }
    }

    /// No work came.
    pub(in crate::soft) fn note_vain(&mut self) {
        if core::mem::take(&mut self.trying) {
            self.credit = self.credit.saturating_sub(1);
            if self.credit == 0 {
                self.without = self.again;
                self.short_slices = true;
                prefer_slices(SLICE_NS);
                self.again = (2 * self.again).min(AGAIN.1);
            }
        }
    }
}

/// Asks the scheduler for time slices of this length; 0: the default. When a thread with short
/// slices wakes, it takes the core at once from a thread that computes. But when it yields, it
/// keeps the core. Nothing changes where the kernel or a sandbox refuses.
fn prefer_slices(ns: u64) {
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let mut attr = SchedAttr::default();
    let size = size_of::<SchedAttr>();
    // SAFETY: `attr` lives through both calls, has the size that is given, and any bytes are valid
    // for it.
    unsafe {
        let got = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0);
        if got == 0 && attr.policy == libc::SCHED_OTHER as u32 {
            attr.runtime = ns;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rest with a look in vain.
    fn in_vain(linger: &mut Linger) -> bool {
        let tried = linger.try_lingering();
        linger.note_vain();
        tried
    }

    #[test]
    fn polling_in_vain_ends_and_is_retried_ever_more_rarely() {
        let mut linger = Linger::new();
        assert!((0..CREDIT).all(|_| in_vain(&mut linger)));
        for without in [AGAIN.0, 2 * AGAIN.0, 4 * AGAIN.0] {
            assert_eq!(
                (0..=without).filter(|_| in_vain(&mut linger)).count(),
                1,
                "once in {without}"
            );
            assert!(linger.short_slices);
        }
        // Work came at once: it polls on again, and keeps its back-off.
        while !linger.try_lingering() {
            linger.note_vain();
        }
        linger.note_work(1_000);
        assert!(!linger.short_slices && linger.again == AGAIN.0);
        assert!(in_vain(&mut linger));
        // Work that came while another thread ran on the core was no gain.
        let mut linger = Linger::new();
        for _ in 0..CREDIT {
            assert!(linger.try_lingering());
            linger.note_work(AWAY_NS + 1);
        }
        assert!(!linger.try_lingering());
    }
}
