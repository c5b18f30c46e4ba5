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
    /// DC initiator: RC's requester alone, whose requests each name a DC target. It is associated
    /// with one of them at a time (`roce::dc`).
    Dci,
    /// DC target: it takes associations, each of which gets a [`QpKind::DcContext`].
    Dct,
    /// Responder context of a DC target: RC's responder alone, of one association at a time. No
    /// program creates or sees one.
    DcContext,
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
            qp_type::DCI => Some(QpKind::Dci),
            qp_type::DCT => Some(QpKind::Dct),
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
            QpKind::Dci => qp_type::DCI,
            QpKind::Dct | QpKind::DcContext => qp_type::DCT,
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
            QpKind::Dci | QpKind::Dct | QpKind::DcContext => Class::Dc,
        }
    }

    /// Whether it has one peer at a time.
    #[inline(always)]
    pub const fn is_connected(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => true,
            QpKind::Dci | QpKind::DcContext => true,
            QpKind::Ud | QpKind::Dct => false,
        }
    }

    /// Whether the program names its peer, in the attributes of RTR.
    #[inline(always)]
    pub const fn has_fixed_peer(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => true,
            QpKind::Ud | QpKind::Dci | QpKind::Dct | QpKind::DcContext => false,
        }
    }

    /// Whether requests are acknowledged, and sent again until they are.
    #[inline(always)]
    pub const fn is_reliable(self) -> bool {
        match self {
            QpKind::Rc | QpKind::XrcIni | QpKind::XrcTgt => true,
            QpKind::Dci | QpKind::DcContext => true,
            QpKind::Uc | QpKind::Ud | QpKind::Dct => false,
        }
    }

    /// Whether a WRITE may be one copy into memory that the peer shares, without a packet.
    #[inline(always)]
    pub const fn has_one_copy_writes(self) -> bool {
        match self {
            QpKind::Rc => true,
            QpKind::Uc | QpKind::Ud | QpKind::XrcIni | QpKind::XrcTgt => false,
            QpKind::Dci | QpKind::Dct | QpKind::DcContext => false,
        }
    }

    /// Whether a SEND or WRITE of it is whole by what all transports have: no address handle, no
    /// SRQ number.
    #[inline(always)]
    pub const fn sends_plainly(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc => true,
            QpKind::Ud | QpKind::XrcIni | QpKind::XrcTgt => false,
            QpKind::Dci | QpKind::Dct | QpKind::DcContext => false,
        }
    }

    /// Whether it takes requests from its program.
    #[inline(always)]
    pub const fn has_requester(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc | QpKind::Ud | QpKind::XrcIni | QpKind::Dci => true,
            QpKind::XrcTgt | QpKind::Dct | QpKind::DcContext => false,
        }
    }

    /// Whether it takes requests from its peer and answers them.
    #[inline(always)]
    pub const fn answers(self) -> bool {
        match self {
            QpKind::Rc | QpKind::XrcTgt | QpKind::DcContext => true,
            QpKind::Uc | QpKind::Ud | QpKind::XrcIni | QpKind::Dci | QpKind::Dct => false,
        }
    }

    /// Whether it has a receive queue of its own, or one SRQ in place of it.
    #[inline(always)]
    pub const fn has_receives(self) -> bool {
        match self {
            QpKind::Rc | QpKind::Uc | QpKind::Ud => true,
            QpKind::XrcIni | QpKind::XrcTgt => false,
            QpKind::Dci | QpKind::Dct | QpKind::DcContext => false,
        }
    }
}

impl core::fmt::Display for QpKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(qp_type::name(self.number()))
    }
}
