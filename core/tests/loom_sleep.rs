//! Every interleaving of a side that goes to sleep and sides that bring it work, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p gdrcore-core --release --test loom_sleep`
#![cfg(loom)]

use gdrcore_core::arena::RawBytes;
use gdrcore_core::ring::SlotRing;
use gdrcore_core::sleep::{Asleep, ANY, URGENT};
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::Arc;
use loom::thread;

/// A sleeper, producers that publish a flag each, and the wake-ups that they made.
struct Scene {
    word: Asleep,
    work: [AtomicU32; 2],
    woken: AtomicU32,
}

impl Scene {
    fn new() -> Arc<Scene> {
        let work = [AtomicU32::new(0), AtomicU32::new(0)];
        Arc::new(Scene { word: Asleep::new(), work, woken: AtomicU32::new(0) })
    }

    fn produce(&self, who: usize, urgency: u32) {
        // Relaxed: the pair has to hold whatever the work itself is published with.
        self.work[who].store(1, Ordering::Relaxed);
        if self.word.must_wake(urgency) {
            self.woken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True: it found nothing to do and sleeps.
    fn sleep(&self, level: u32, look_at: &[usize]) -> bool {
        self.word.announce(level);
        look_at.iter().all(|&who| self.work[who].load(Ordering::Relaxed) == 0)
    }
}

#[test]
fn a_sleeper_sees_the_work_or_is_woken() {
    loom::model(|| {
        let scene = Scene::new();
        let other = scene.clone();
        let producer = thread::spawn(move || other.produce(0, ANY));
        let sleeps = scene.sleep(ANY, &[0]);
        producer.join().unwrap();
        let woken = scene.woken.load(Ordering::Relaxed);
        assert!(!sleeps || woken == 1, "asleep for ever");
    });
}

#[test]
fn of_two_producers_one_wakes_the_sleeper() {
    loom::model(|| {
        let scene = Scene::new();
        let producers: Vec<_> = (0..2)
            .map(|who| {
                let scene = scene.clone();
                thread::spawn(move || scene.produce(who, ANY))
            })
            .collect();
        let sleeps = scene.sleep(ANY, &[0, 1]);
        for p in producers {
            p.join().unwrap();
        }
        let woken = scene.woken.load(Ordering::Relaxed);
        assert!(!sleeps || woken == 1, "{woken} wake-ups");
        assert!(woken <= 1);
    });
}

#[test]
fn who_waits_for_what_is_urgent_is_woken_by_that_alone() {
    loom::model(|| {
        let scene = Scene::new();
        let other = scene.clone();
        let producer = thread::spawn(move || {
            other.produce(0, ANY);
            assert_eq!(other.woken.load(Ordering::Relaxed), 0);
            other.produce(1, URGENT);
        });
        let sleeps = scene.sleep(URGENT, &[1]);
        producer.join().unwrap();
        assert!(!sleeps || scene.woken.load(Ordering::Relaxed) == 1, "asleep for ever");
    });
}

/// The pair around the ring that it is for: what is published is a cursor.
#[test]
fn a_ring_whose_consumer_sleeps_loses_no_element() {
    loom::model(|| {
        let mut memory = vec![0u128; 2];
        let ring = SlotRing::<u64>::new();
        // SAFETY: fresh memory, kept until the model run ends; u64 may be zero.
        unsafe { ring.install(RawBytes::from_raw(memory.as_mut_ptr().cast(), 32), 2, 16) };
        let shared = Arc::new((ring, Asleep::new(), AtomicU32::new(0)));
        let other = shared.clone();
        let producer = thread::spawn(move || {
            let (ring, word, woken) = &*other;
            for v in 1..=2 {
                let pushed = ring.producer().is_some_and(|mut end| end.push(v).is_ok());
                assert!(pushed, "room for two");
                if word.must_wake(ANY) {
                    woken.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let (ring, word, woken) = &*shared;
        let mut end = ring.consumer().expect("nobody else consumes");
        let mut seen = 0;
        while end.pop().is_some() {
            seen += 1;
        }
        word.announce(ANY);
        let sleeps = end.len() == 0;
        producer.join().unwrap();
        // A side that slept was woken for the first element that came.
        assert!(
            !sleeps || seen == 2 || woken.load(Ordering::Relaxed) == 1,
            "asleep with {seen} of 2"
        );
        while end.pop().is_some() {
            seen += 1;
        }
        assert_eq!(seen, 2);
    });
}
