//! Every interleaving, by loom, of what two processes do with words in memory that they share:
//! loans that end, and frames of a ring without a head index.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p gdrcore-core --release --test loom_shared`
#![cfg(loom)]

use gdrcore_core::frame::Length;
use gdrcore_core::lease::{Entered, Serial};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const NUMBER: u32 = 3;

/// The words of a loan, and what is lent.
#[derive(Default)]
struct Loan {
    entered: Entered,
    serial: Serial,
    memory: UnsafeCell<u32>,
}

// SAFETY: the memory is used by whom the two words allow it; loom reports any other use.
unsafe impl Sync for Loan {}
// SAFETY: as above.
unsafe impl Send for Loan {}

impl Loan {
    /// As the borrower: writes, if it may.
    fn write(&self, serial: u32) -> bool {
        let may = self.entered.enter(&self.serial, NUMBER, serial);
        if may {
            // SAFETY: the loan is in force until we leave.
            self.memory.with_mut(|m| unsafe { *m += 1 });
            self.entered.leave();
        }
        may
    }

    /// As the lender: ends the loan and uses the memory.
    fn take_back(&self) -> u32 {
        self.serial.revoke();
        while self.entered.is_inside(NUMBER) {
            thread::yield_now();
        }
        // SAFETY: nobody is inside, and nobody enters any more.
        self.memory.with_mut(|m| unsafe {
            *m += 100;
            *m
        })
    }
}

#[test]
fn a_loan_that_has_ended_is_used_by_nobody() {
    loom::model(|| {
        let loan = Arc::new(Loan::default());
        loan.serial.grant(7);
        let other = loan.clone();
        let borrower = thread::spawn(move || u32::from(other.write(7)) + u32::from(other.write(7)));
        let seen = loan.take_back();
        let written = borrower.join().unwrap();
        // What it wrote was there when the lender looked: it never writes later.
        assert_eq!(seen, 100 + written);
    });
}

#[test]
fn a_number_that_is_lent_again_is_another_loan() {
    loom::model(|| {
        let loan = Arc::new(Loan::default());
        loan.serial.grant(7);
        let other = loan.clone();
        let borrower = thread::spawn(move || other.write(7));
        let seen = loan.take_back();
        loan.serial.grant(8);
        let wrote = borrower.join().unwrap();
        assert_eq!(seen, 100 + u32::from(wrote));
        assert!(!loan.write(7) && loan.write(8));
    });
}

/// What earlier laps have left.
const STALE: u32 = 99;

struct Ring {
    lengths: [Length; 3],
    frames: [UnsafeCell<u32>; 2],
}

// SAFETY: a frame is used by whom its length allows it; loom reports any other use.
unsafe impl Sync for Ring {}
// SAFETY: as above.
unsafe impl Send for Ring {}

#[test]
fn a_frame_is_whole_and_nothing_stale_follows_it() {
    for prepares in [false, true] {
        loom::model(move || {
            let ring = Arc::new(Ring {
                lengths: Default::default(),
                frames: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            ring.lengths[1].scribble(STALE);
            ring.lengths[2].scribble(STALE);
            let to = ring.clone();
            let writer = thread::spawn(move || {
                for k in 0..2 {
                    if prepares {
                        to.lengths[k + 1].clear();
                    }
                    // SAFETY: its length is still zero.
                    to.frames[k].with_mut(|f| unsafe { *f = 10 + k as u32 });
                    to.lengths[k].publish(1 + k as u32, &to.lengths[k + 1], prepares);
                }
            });
            let mut at = 0;
            // Looks as often as loom lets it; what is there must be right.
            for _ in 0..3 {
                let len = ring.lengths[at].read();
                if len == 0 {
                    thread::yield_now();
                    continue;
                }
                assert_eq!(len, 1 + at as u32, "what an earlier lap has left");
                // SAFETY: its length says that it is there.
                assert_eq!(ring.frames[at].with(|f| unsafe { *f }), 10 + at as u32);
                at += 1;
                if at == 2 {
                    break;
                }
            }
            writer.join().unwrap();
            // And behind the last one nothing.
            assert_eq!(ring.lengths[2].read(), 0);
        });
    }
}
