//! A loan that its lender ends while its borrower may be inside: a Dekker pair of two words.
//!
//! The lender grants a loan by writing its serial; the borrower says which loan it uses before it
//! looks whether it still stands. To end the loan, the lender first takes the serial away and then
//! looks whether the borrower is inside:
//!
//! ```text
//! borrower                                lender
//! [`Entered::enter`]: entered = number    [`Serial::revoke`]: serial = 0
//!        fence SeqCst  <---- pair ---->  fence SeqCst
//! serial is still that: uses the loan     entered is the number: waits ([`Entered::is_inside`])
//! [`Entered::leave`]: entered = 0
//! ```
//!
//! At least one of them sees what the other has written. With either fence weaker both may read
//! before they write: the borrower uses what the lender has given to others. `tests/loom_shared.rs`
//! runs every interleaving.
//!
//! The words lie in memory that is shared with another process. A peer that writes nonsense there,
//! or none of this, has the memory all the same while it is lent; to the lender nonsense means at
//! most that it waits, for as long as it likes to.

use crate::sync::{fence, AtomicU32, Ordering};

/// The word in which a borrower says which loan it uses: its number + 1, or 0.
///
/// # Layout
/// A u32; zeroed memory is "none".
///
/// # Thread-safety
/// One borrower, one lender.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Entered(AtomicU32);

/// The word in which a lender says which loan of a number is in force: its serial, or 0.
///
/// # Layout, thread-safety
/// As [`Entered`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Serial(AtomicU32);

impl Entered {
    /// Enters a loan. False: it has been taken back.
    #[inline(always)]
    pub fn enter(&self, loan: &Serial, number: u32, serial: u32) -> bool {
        self.0.store(number + 1, Ordering::Relaxed);
        // The borrower's fence: our word is written before we look at the lender's. Pairs with the
        // one in `revoke`.
        fence(Ordering::SeqCst);
        let stands = loan.is(serial);
        if !stands {
            self.leave();
        }
        stands
    }

    /// Leaves the loan. Release: what was written to it is there before the lender sees so.
    #[inline(always)]
    pub fn leave(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether the borrower is inside of the loan of a number.
    #[inline]
    pub fn is_inside(&self, number: u32) -> bool {
        self.0.load(Ordering::Acquire) == number.wrapping_add(1)
    }
}

impl Serial {
    /// Grants the loan with a serial that is not 0.
    #[inline]
    pub fn grant(&self, serial: u32) {
        self.0.store(serial, Ordering::Release);
    }

    /// Whether the loan with a serial is in force.
    #[inline(always)]
    pub fn is(&self, serial: u32) -> bool {
        self.0.load(Ordering::Acquire) == serial
    }

    /// Ends the loan, whoever is inside.
    #[inline]
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Ends the loan. Whoever is inside must be waited for: [`Entered::is_inside`] is next.
    #[inline]
    pub fn revoke(&self) {
        self.forget();
        // The lender's fence: our word is written before we look at the borrower's. Pairs with the
        // one in `enter`.
        fence(Ordering::SeqCst);
    }
}
