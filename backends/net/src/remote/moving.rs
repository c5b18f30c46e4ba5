//! Which pages of the program move now, or have just moved, for the handler of faults.

use crate::clock::now_ns;
use crate::thread_token;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

/// A fault may be handled so long after the move that caused it has ended.
const RECENT_NS: u64 = 1_000_000_000;

/// Pages that move or have moved. All zero: none.
pub(crate) struct Move {
    begin: AtomicU64,
    end: AtomicU64,
    /// When the move ended; 0: it goes on.
    ended: AtomicU64,
}

/// The latest moves.
static MOVES: [Move; 1024] =
    [const { Move { begin: AtomicU64::new(0), end: AtomicU64::new(0), ended: AtomicU64::new(0) } };
        1024];

/// The thread that moves pages: its own faults are errors of its copy. 0: none.
static MOVER: AtomicUsize = AtomicUsize::new(0);

/// Pages begin to move. `number`: of this move; one thread at a time. Waits while faults of the
/// move that it replaces may come.
pub(crate) fn begin(number: usize, pages: Range<u64>) -> &'static Move {
    let place = &MOVES[number % MOVES.len()];
    while place.may_fault() {
        std::thread::sleep(Duration::from_millis(1));
    }
    MOVER.store(thread_token::token(), Ordering::Release);
    // No range while it changes.
    place.end.store(0, Ordering::Release);
    place.ended.store(0, Ordering::Release);
    place.begin.store(pages.start, Ordering::Release);
    place.end.store(pages.end, Ordering::Release);
    place
}

impl Move {
    /// Whether it has ended, but faults of its time may still come.
    fn may_fault(&self) -> bool {
        let ended = self.ended.load(Ordering::Acquire);
        ended != 0 && now_ns().saturating_sub(ended) < RECENT_NS
    }

    /// The pages have moved, or stay.
    pub(crate) fn end(&self) {
        self.ended.store(now_ns(), Ordering::Release);
        MOVER.store(0, Ordering::Release);
    }
}

/// Whether a fault at this address is that of a write to pages which move, or have just moved: the
/// access must be repeated. Async-signal-safe.
pub(crate) fn is_moving(addr: u64) -> bool {
    MOVES.iter().any(|m| {
        let inside =
            (m.begin.load(Ordering::Acquire)..m.end.load(Ordering::Acquire)).contains(&addr);
        inside && (m.ended.load(Ordering::Acquire) == 0 || m.may_fault())
    }) && MOVER.load(Ordering::Acquire) != thread_token::token()
}
