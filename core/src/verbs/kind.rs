//! Transport services of queue pairs.

use crate::verbs::types::qp_type;
use crate::wire::Class;

const CONNECTED: u8 = 1;
const FIXED_PEER: u8 = 2;
const RELIABLE: u8 = 4;
const ONE_COPY: u8 = 8;
const PLAIN: u8 = 16;
const REQUESTER: u8 = 32;
const ANSWERS: u8 = 64;
const RECEIVES: u8 = 128;

/// The kinds of which a fact is true, as bits.
const fn kinds_with(fact: u8) -> u8 {
    use QpKind::*;
    let all = [Rc, Uc, Ud, XrcIni, XrcTgt, Dci, Dct, DcContext];
    // The last kind: a new one is to be in the list.
    assert!(all.len() == DcContext as usize + 1);
    let (mut bits, mut i) = (0, 0);
    while i < all.len() {
        if all[i].facts() & fact != 0 {
            bits |= 1 << all[i] as u8;
        }
        i += 1;
    }
    bits
}

/// Questions that one fact answers.
macro_rules! facts {
    ($($(#[$m:meta])* $name:ident = $fact:ident;)*) => {
        $($(#[$m])*
        #[inline(always)]
        pub const fn $name(self) -> bool {
            const KINDS: u8 = kinds_with($fact);
            KINDS >> self as u8 & 1 != 0
        })*
    };
}

/// The transport service of a queue pair.
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
    pub const fn from_number(number: u32) -> Option<QpKind> {
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

    facts! {
        /// Whether it has one peer at a time.
        is_connected = CONNECTED;
        /// Whether the program names its peer, in the attributes of RTR.
        has_fixed_peer = FIXED_PEER;
        /// Whether requests are acknowledged, and sent again until they are.
        is_reliable = RELIABLE;
        /// Whether a WRITE may be one copy into memory that the peer shares, without a packet.
        has_one_copy_writes = ONE_COPY;
        /// Whether a SEND or WRITE of it is whole by what all transports have: no address handle,
        /// no SRQ number.
        sends_plainly = PLAIN;
        /// Whether it takes requests from its program.
        has_requester = REQUESTER;
        /// Whether it takes requests from its peer and answers them.
        answers = ANSWERS;
        /// Whether it has a receive queue of its own, or one SRQ in place of it.
        has_receives = RECEIVES;
    }

    /// What is true of a kind.
    const fn facts(self) -> u8 {
        match self {
            QpKind::Rc => 0xff,
            QpKind::Uc => CONNECTED | FIXED_PEER | PLAIN | REQUESTER | RECEIVES,
            QpKind::Ud => REQUESTER | RECEIVES,
            QpKind::XrcIni => CONNECTED | FIXED_PEER | RELIABLE | REQUESTER,
            QpKind::XrcTgt => CONNECTED | FIXED_PEER | RELIABLE | ANSWERS,
            QpKind::Dci => CONNECTED | RELIABLE | REQUESTER,
            QpKind::Dct => 0,
            QpKind::DcContext => CONNECTED | RELIABLE | ANSWERS,
        }
    }
}

impl core::fmt::Display for QpKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(qp_type::name(self.number()))
    }
}
