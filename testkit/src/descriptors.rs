//! Keeps descriptors from leaking into forked children within one test process.
//!
//! A child of fork(2) has all descriptors of its parent until it ends or calls exec(3), and the
//! standard library's `Command` forks as well. So a socket that one test closes stays open while
//! another test forks. A test that must see the end of a descriptor holds [`keep`], and a test that
//! forks holds [`fork`]; neither is given while the other is held.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct Holders {
    keepers: usize,
    forks: bool,
}

static HOLDERS: Mutex<Holders> = Mutex::new(Holders { keepers: 0, forks: false });
static CHANGED: Condvar = Condvar::new();

/// While this lives, no other test of the process has a child that is not yet another program.
pub struct Keep(());

/// While this lives, no other test of the process closes a descriptor whose end it must see.
pub struct Fork(());

/// Holders change by whole assignments, so a panic leaves them consistent.
fn holders() -> MutexGuard<'static, Holders> {
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no test forks. A thread may hold several.
pub fn keep() -> Keep {
    let mut h = CHANGED.wait_while(holders(), |h| h.forks).unwrap_or_else(PoisonError::into_inner);
    h.keepers += 1;
    Keep(())
}

/// Waits until no test keeps or forks. A thread that holds a [`Keep`] would wait for ever.
pub fn fork() -> Fork {
    let mut h = CHANGED
        .wait_while(holders(), |h| h.forks || h.keepers > 0)
        .unwrap_or_else(PoisonError::into_inner);
    h.forks = true;
    Fork(())
}

impl Drop for Keep {
    fn drop(&mut self) {
        holders().keepers -= 1;
        CHANGED.notify_all();
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        holders().forks = false;
        CHANGED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    #[test]
    fn a_fork_waits_for_all_keepers() {
        let (first, second) = (keep(), keep());
        let forked = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = fork();
                forked.store(true, SeqCst);
                drop(held);
            });
            drop(first);
            // The fork waits for the second keeper as well, and a third may come meanwhile.
            let third = keep();
            assert!(!forked.load(SeqCst));
            drop((second, third));
        });
        assert!(forked.load(SeqCst));
    }
}
