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
    /// Extended reliable connection, the initiator: RC's requester alone, whose requests each name
    /// an SRQ of the peer.
    XrcIni,
    /// Extended reliable connection, the target: RC's responder alone, without PD and CQ of its
    /// own; those of the SRQ that a request names count.
    XrcTgt,
}

impl QpKind {
    /// The kind of a number of [`qp_type`]; `None`: this device has no such kind.
    #[inline(always)]
    pub const fn of(number: u32) -> Option<QpKind> {
        match number {
            qp_type::RC => Some(QpKind::Rc),
            qp_type::UC => Some(QpKind::Uc),
            qp_type::UD => Some(QpKind::Ud),
            qp_type::XRC_SEND => Some(QpKind::XrcIni),
            qp_type::XRC_RECV => Some(QpKind::XrcTgt),
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
            QpKind::XrcIni => qp_type::XRC_SEND,
            QpKind::XrcTgt => qp_type::XRC_RECV,
        }
    }

    /// The class of opcodes that its packets have.
    #[inline(always)]
    pub const fn class(self) -> Class {
        match self {
            QpKind::Rc => Class::Rc,
            QpKind::Uc => Class::Uc,
            QpKind::Ud => Class::Ud,
            QpKind::XrcIni | QpKind::XrcTgt => Class::Xrc,
        }
    }

    /// Whether it has one peer, for as long as it is in RTR or RTS.
    #[inline(always)]
    pub const fn is_connected(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => true,
            QpKind::Ud => false,
        }
    }

    /// Whether requests are acknowledged, and sent again until they are.
    #[inline(always)]
    pub const fn is_reliable(self) -> bool {
        match self {
            QpKind::Rc | QpKind::XrcIni | QpKind::XrcTgt => true,
            QpKind::Uc | QpKind::Ud => false,
        }
    }

    /// Whether messages of one packet may go by the single path, and WRITEs by the copy of a peer.
    #[inline(always)]
    pub const fn has_single_path(self) -> bool {
        match self {
            QpKind::Rc => true,
            QpKind::Uc | QpKind::Ud | QpKind::XrcIni | QpKind::XrcTgt => false,
        }
    }

    /// Whether a SEND or WRITE of it is whole by what all transports have: no address handle, no
    /// SRQ number.
    #[inline(always)]
    pub const fn sends_plainly(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc => true,
            QpKind::Ud | QpKind::XrcIni | QpKind::XrcTgt => false,
        }
    }

    /// Whether it takes requests from its program.
    #[inline(always)]
    pub const fn has_requester(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc | QpKind::Ud | QpKind::XrcIni => true,
            QpKind::XrcTgt => false,
        }
    }

    /// Whether it takes requests from its peer and answers them.
    #[inline(always)]
    pub const fn answers(self) -> bool {
        match self {
            QpKind::Rc | QpKind::XrcTgt => true,
            QpKind::Uc | QpKind::Ud | QpKind::XrcIni => false,
        }
    }

    /// Whether it has a receive queue of its own, or one SRQ in place of it.
    #[inline(always)]
    pub const fn has_receives(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc | QpKind::Ud => true,
            QpKind::XrcIni | QpKind::XrcTgt => false,
        }
    }
}

impl core::fmt::Display for QpKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(qp_type::name(self.number()))
    }
}
