//! The two sides of a case.

/// The side that acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Our device.
    Ours,
    /// The kernel's.
    Rxe,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::Ours => Side::Rxe,
            Side::Rxe => Side::Ours,
        }
    }
}
