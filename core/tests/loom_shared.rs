//! Every interleaving, by loom, of what two processes do with words in memory that they share:
//! grants that are revoked, and frames of a ring without a head index.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p gdrcore-core --release --test loom_shared`
#![cfg(loom)]

use gdrcore_core::frame_len::Length;
use gdrcore_core::lease::{PinWord, Serial};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const NUMBER: u32 = 3;

/// The words of a grant, and its memory.
#[derive(Default)]
struct Granted {
    pin: PinWord,
    serial: Serial,
    memory: UnsafeCell<u32>,
}

// SAFETY: the memory is used by whom the two words allow it; loom reports any other use.
unsafe impl Sync for Granted {}
// SAFETY: as above.
unsafe impl Send for Granted {}

impl Granted {
    /// As the peer: writes, if it may.
    fn write(&self, serial: u32) -> bool {
        let may = self.pin.pin(&self.serial, NUMBER, serial);
        if may {
            // SAFETY: the grant is active until it is unpinned.
            self.memory.with_mut(|m| unsafe { *m += 1 });
            self.pin.unpin();
        }
        may
    }

    /// As the owner: revokes the grant and uses the memory.
    fn revoke(&self) -> u32 {
        self.serial.revoke();
        while self.pin.is_pinned(NUMBER) {
            thread::yield_now();
        }
        // SAFETY: nobody has it pinned, and nobody pins it any more.
        self.memory.with_mut(|m| unsafe {
            *m += 100;
            *m
        })
    }
}

#[test]
fn a_revoked_grant_is_used_by_nobody() {
    loom::model(|| {
        let grant = Arc::new(Granted::default());
        grant.serial.activate(7);
        let other = grant.clone();
        let peer = thread::spawn(move || u32::from(other.write(7)) + u32::from(other.write(7)));
        let seen = grant.revoke();
        let written = peer.join().unwrap();
        // What it wrote was there when the owner looked: it never writes later.
        assert_eq!(seen, 100 + written);
    });
}

#[test]
fn a_number_that_is_granted_again_is_another_grant() {
    loom::model(|| {
        let grant = Arc::new(Granted::default());
        grant.serial.activate(7);
        let other = grant.clone();
        let peer = thread::spawn(move || other.write(7));
        let seen = grant.revoke();
        grant.serial.activate(8);
        let wrote = peer.join().unwrap();
        assert_eq!(seen, 100 + u32::from(wrote));
        assert!(!grant.write(7) && grant.write(8));
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
