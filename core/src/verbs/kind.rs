//! Transport services of queue pairs.

use crate::verbs::types::qp_type;
use crate::wire::Class;

/// The transport service of a queue pair. Each property is a function that lists all kinds, so that
/// the compiler shows where a new kind matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum QpKind {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpKind {
    /// The kind of a number of [`qp_type`]; `None`: this device has no such kind.
    #[inline(always)]
    pub const fn of(number: u32) -> Option<QpKind> {
        match number {
            qp_type::RC => Some(QpKind::Rc),
            qp_type::UC => Some(QpKind::Uc),
            qp_type::UD => Some(QpKind::Ud),
            _ => None,
        }
    }

    /// Its number.
    #[inline(always)]
    pub const fn number(self) -> u32 {
        match self {
            QpKind::Rc => qp_type::RC,
            QpKind::Uc => qp_type::UC,
            QpKind::Ud => qp_type::UD,
        }
    }

    /// The class of opcodes that its packets have.
    #[inline(always)]
    pub const fn class(self) -> Class {
        match self {
            QpKind::Rc => Class::Rc,
            QpKind::Uc => Class::Uc,
            QpKind::Ud => Class::Ud,
        }
    }

    /// Whether it has one peer, for as long as it is in RTR or RTS.
    #[inline(always)]
    pub const fn is_connected(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc => true,
            QpKind::Ud => false,
        }
    }

    /// Whether requests are acknowledged, and sent again until they are.
    #[inline(always)]
    pub const fn is_reliable(self) -> bool {
        match self {
            QpKind::Rc => true,
            QpKind::Uc | QpKind::Ud => false,
        }
    }
}

impl core::fmt::Display for QpKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(qp_type::name(self.number()))
    }
}
