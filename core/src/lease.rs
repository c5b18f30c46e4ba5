//! A grant of memory that its owner revokes although the peer may have it pinned: a Dekker pair of
//! two words.
//!
//! The owner activates a grant by writing its serial. The peer writes which grant it pins before it
//! reads whether the grant is active. To revoke the grant, the owner first clears the serial and
//! then reads whether the peer has it pinned:
//!
//! ```text
//! peer                                    owner
//! [`PinWord::pin`]: pin word = number     [`Serial::revoke`]: serial = 0
//!        fence SeqCst  <---- pair ---->  fence SeqCst
//! serial unchanged: uses the memory       pin word = number: waits ([`PinWord::is_pinned`])
//! [`PinWord::unpin`]: pin word = 0
//! ```
//!
//! At least one of them sees what the other has written. With either fence weaker both may read
//! before they write: the peer uses memory that its owner has put to another use.
//! `tests/loom_shared.rs` runs every interleaving.
//!
//! The words lie in memory that is shared with another process. A peer that writes nonsense there
//! has access to the memory while the grant is active, and to nothing else. Nonsense costs the
//! owner at most its own bounded wait.

use crate::sync::{fence, AtomicU32, Ordering};

/// The word in which a peer writes which grant it has pinned: its number + 1, or 0.
///
/// # Layout
/// A u32; zeroed memory is "none".
///
/// # Thread-safety
/// One peer, one owner.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct PinWord(AtomicU32);

/// The word in which the owner writes which grant of a number is active: its serial, or 0.
///
/// # Layout, thread-safety
/// As [`PinWord`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Serial(AtomicU32);

impl PinWord {
    /// Pins a grant. False: it has been revoked.
    #[inline(always)]
    pub fn pin(&self, grant: &Serial, number: u32, serial: u32) -> bool {
        self.0.store(number + 1, Ordering::Relaxed);
        // The peer's fence: the pin word is written before the serial is read. Pairs with the one
        // in `revoke`.
        fence(Ordering::SeqCst);
        let active = grant.is(serial);
        if !active {
            self.unpin();
        }
        active
    }

    /// Ends the pin. Release: what was written to the memory is there before the owner sees the
    /// end.
    #[inline(always)]
    pub fn unpin(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether the peer has the grant of a number pinned.
    #[inline]
    pub fn is_pinned(&self, number: u32) -> bool {
        self.0.load(Ordering::Acquire) == number.wrapping_add(1)
    }
}

impl Serial {
    /// Activates the grant with a serial that is not 0.
    #[inline]
    pub fn activate(&self, serial: u32) {
        self.0.store(serial, Ordering::Release);
    }

    /// Whether the grant with a serial is active.
    #[inline(always)]
    pub fn is(&self, serial: u32) -> bool {
        self.0.load(Ordering::Acquire) == serial
    }

    /// Ends the grant, pinned or not.
    #[inline]
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Ends the grant. The caller then waits while [`PinWord::is_pinned`].
    #[inline]
    pub fn revoke(&self) {
        self.forget();
        // The owner's fence: the serial is cleared before the pin word is read. Pairs with the one
        // in `pin`.
        fence(Ordering::SeqCst);
    }
}
