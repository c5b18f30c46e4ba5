//! Every interleaving, by loom, of threads at the lock of an engine: one holder at a time, no mark
//! lost, and no word left of a thread that has given up its wait.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p gdrcore-core --release --test loom_turns`
#![cfg(loom)]

use gdrcore_core::turns::TurnLock;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::Arc;
use loom::thread;

#[derive(Default)]
struct Scene {
    lock: TurnLock,
    state: UnsafeCell<u32>,
    mark: AtomicBool,
}

// SAFETY: the state is used under the lock; loom reports any other use.
unsafe impl Sync for Scene {}
// SAFETY: as above.
unsafe impl Send for Scene {}

impl Scene {
    fn work(&self) {
        // SAFETY: the caller holds the lock.
        self.state.with_mut(|s| unsafe { *s += 1 });
        self.lock.note_round();
        self.lock.unlock();
    }

    fn done(&self) -> u32 {
        // SAFETY: all other threads have ended.
        self.state.with(|s| unsafe { *s })
    }
}

#[test]
fn one_thread_at_a_time_holds_the_lock() {
    loom::model(|| {
        let scene = Arc::new(Scene::default());
        let others: Vec<_> = (0..2)
            .map(|_| {
                let scene = scene.clone();
                thread::spawn(move || {
                    let took = scene.lock.try_lock();
                    if took {
                        scene.work();
                    }
                    u32::from(took)
                })
            })
            .collect();
        let took: u32 = others.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!((scene.done(), scene.lock.rounds()), (took, took));
        assert!(took >= 1 && scene.lock.try_lock());
    });
}

#[test]
fn a_mark_is_seen_by_the_holder_or_by_its_own_thread() {
    loom::model(|| {
        let scene = Arc::new(Scene::default());
        assert!(scene.lock.try_lock());
        let other = scene.clone();
        let posts = thread::spawn(move || {
            // Relaxed: the pair has to hold whatever the mark is stored with.
            other.mark.store(true, Ordering::Relaxed);
            let took = other.lock.try_lock_marked();
            if took {
                other.work();
            }
            took
        });
        scene.work();
        let seen = scene.mark.load(Ordering::Relaxed);
        assert!(posts.join().unwrap() || seen, "the request waits for ever");
    });
}

#[test]
fn a_turn_is_handed_over_or_its_thread_gives_up() {
    loom::model(|| {
        let (scene, [a, b]) = (Arc::new(Scene::default()), [4, 8]);
        scene.lock.begin_turn(a);
        let other = scene.clone();
        let waits = thread::spawn(move || {
            // The word may just have changed by another request.
            while !other.lock.try_want(b) {
                thread::yield_now();
            }
            let waited = other.lock.waits(b);
            if waited {
                other.lock.call_due(b);
                other.lock.withdraw(b);
            }
            if other.lock.try_lock() {
                other.lock.begin_turn(b);
                other.work();
            }
        });
        if scene.lock.try_lock() {
            scene.work();
        }
        if scene.lock.is_wanted() {
            scene.lock.hand_over();
        }
        scene.lock.want_round();
        waits.join().unwrap();
        assert!(!scene.lock.waits(b), "a wait that nobody ends");
        assert!(scene.lock.take_round(), "a round that was asked for is forgotten");
        assert!(!scene.lock.is_wanted() && scene.lock.try_lock());
    });
}
