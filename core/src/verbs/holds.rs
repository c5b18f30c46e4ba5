//! A word of bits, each of which keeps a queue pair off the single path.

/// Bits of [`qp_block`](super::objects::qp_block), [`tx_block`](super::req::tx_block) or
/// [`rx_block`](super::resp::rx_block).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds(u32);

impl Holds {
    /// Whether any of these bits is set.
    #[inline(always)]
    pub fn is(self, bits: u32) -> bool {
        self.0 & bits != 0
    }

    /// Sets these bits, or clears them.
    #[inline(always)]
    pub fn set(&mut self, bits: u32, on: bool) {
        if on {
            self.0 |= bits;
        } else {
            self.0 &= !bits;
        }
    }

    /// All that are set.
    #[inline(always)]
    pub fn all(self) -> u32 {
        self.0
    }
}
