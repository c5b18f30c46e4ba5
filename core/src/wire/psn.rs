//! The 24-bit numbers: packet sequence numbers and queue pair numbers.

use core::fmt;

const MASK: u32 = 0xFF_FFFF;

/// A packet sequence number: 24 bits, serial arithmetic.
///
/// It has no `Ord` on purpose: which of two PSNs is the later one is a question of [`Psn::diff`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `n`.
    #[inline]
    pub const fn new(n: u32) -> Psn {
        Psn(n & MASK)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// `n` packets further on, modulo 2^24. Not `core::ops::Add`: the operand is a count.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub const fn add(self, n: u32) -> Psn {
        Psn(self.0.wrapping_add(n) & MASK)
    }

    /// `n` packets back, modulo 2^24.
    #[inline]
    #[allow(clippy::should_implement_trait)]
    pub const fn sub(self, n: u32) -> Psn {
        Psn(self.0.wrapping_sub(n) & MASK)
    }

    /// The following PSN.
    #[inline]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// The preceding PSN.
    #[inline]
    pub const fn prev(self) -> Psn {
        self.sub(1)
    }

    /// How many PSNs are behind `other`, up to `self`, which is not before it.
    #[inline]
    pub const fn since(self, other: Psn) -> u32 {
        self.0.wrapping_sub(other.0) & 0xff_ffff
    }

    /// How far `self` lies ahead of `other`: −2^23 to 2^23 − 1, negative where it lies behind.
    #[inline]
    pub const fn diff(self, other: Psn) -> i32 {
        // rxe rxe_verbs.h psn_compare: PSNs have serial arithmetic: a PSN up to 2^23 - 1 ahead of
        // another is the later one.
        // The 24-bit difference moves to the top of the word, and comes back with its sign.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Qpn(u32);

impl Qpn {
    /// QP1, the general services interface.
    pub const GSI: Qpn = Qpn(1);
    /// The number that means "all members" in a multicast packet.
    pub const MULTICAST: Qpn = Qpn(MASK);

    /// The low 24 bits of `n`.
    #[inline]
    pub const fn new(n: u32) -> Qpn {
        Qpn(n & MASK)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps() {
        assert_eq!(Psn::new(0x1FF_FFFF).get(), 0xFF_FFFF);
        assert_eq!(Psn::new(0xFF_FFFF).next(), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), Psn::new(0xFF_FFFF));
        assert_eq!(Psn::new(5).add(u32::MAX), Psn::new(4));
        assert_eq!(Psn::new(5).sub(6), Psn::new(0xFF_FFFF));
    }

    // rxe rxe_verbs.h psn_compare
    #[test]
    fn diff_is_serial() {
        assert_eq!(Psn::new(3).diff(Psn::new(1)), 2);
        assert_eq!(Psn::new(1).diff(Psn::new(0xFF_FFFF)), 2);
        assert_eq!(Psn::new(0xFF_FFFF).diff(Psn::new(1)), -2);
        assert_eq!(Psn::new(0x7F_FFFF).diff(Psn::new(0)), 0x7F_FFFF);
        assert_eq!(Psn::new(0x80_0000).diff(Psn::new(0)), -0x80_0000);
    }

    // rxe rxe_verbs.h psn_compare
    #[test]
    fn diff_undoes_add() {
        for base in [0, 1, 0x7F_FFFF, 0x80_0000, 0xFF_FFFF] {
            for n in [0, 1, 2, 1000, 0x7F_FFFE, 0x7F_FFFF] {
                let a = Psn::new(base);
                assert_eq!(a.add(n).diff(a), n as i32);
                assert_eq!(a.sub(n).diff(a), -(n as i32));
            }
        }
    }
}
