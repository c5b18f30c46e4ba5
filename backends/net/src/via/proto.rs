//! The protocol between a tenant's process and its router: messages as bytes.
//!
//! A message is one datagram of a `SOCK_SEQPACKET` socket, little-endian, at most [`MESSAGE_MAX`]
//! bytes and [`FDS_MAX`] descriptors:
//!
//! ```text
//!  0  u16 type    2  u16 flags (1: an answer)    4  u32 number, which an answer repeats
//!  8  i32 status (0, or -errno; answers)        12  u32 length of the whole message
//! 16  the body
//! ```
//!
//! A body may grow at its end in later versions. A shorter body is filled up with zeroes. The
//! unknown fields of a longer body must be zero, otherwise the fault is [`Fault::TooBig`]. Texts
//! are UTF-8, padded with zeroes.
//!
//! | type | from | body | answer | descriptors |
//! |---|---|---|---|---|
//! | 1 HELLO | tenant | [`Hello`] | WELCOME | |
//! | 2 WELCOME | router | [`Welcome`] | | with `RELAY`: ring to it, ring from it, bell; with `REMOTE`: calls, events of CQs, other events, doorbells |
//! | 3 ROUTE | tenant | [`Route`] | ROUTED | |
//! | 4 ROUTED | router | [`Routed`] | | 1: the socket of a direct link; 0: relayed |
//! | 5 UNROUTE | tenant | [`Unroute`] | itself | |
//! | 6 LINK | router | [`Link`] | itself | 1: the socket of a direct link |
//! | 7 ROUTE_EVENT | router | [`RouteEvent`] | | |
//! | 8 LISTEN, 9 UNLISTEN | tenant | [`Service`] | itself | |
//! | 12 PING | both | none | itself | |
//! | 13 DRAIN | router | [`Drain`] | | |
//! | 14 BYE | both | [`Bye`] | | |
//!
//! Nothing here allocates or calls the system. The codec trusts no input: any bytes are a message
//! or a [`Fault`].

mod body;
mod bytes;
mod text;

pub use body::{
    Bye, Drain, Hello, Link, Route, RouteEvent, Routed, Service, Unroute, Welcome, GIDS,
};
pub use text::Text;

use body::Codec;
use bytes::{Reader, Writer};

/// Most bytes of a message.
pub const MESSAGE_MAX: usize = 4096;
/// Most descriptors of a message; a connection that sends more is closed.
pub const FDS_MAX: usize = 4;
/// Bytes before the body.
pub const HEAD_LEN: usize = 16;
/// The oldest version of the protocol that this library speaks, and the newest. 2: a frame of a
/// relay's ring may hold several packets.
pub const VERSIONS: (u32, u32) = (2, 2);
/// First bytes of a HELLO's body.
pub const MAGIC: [u8; 8] = *b"gdrcrtr\0";

/// In the head's flags: an answer.
const ANSWER: u16 = 1;

/// The version in which two ends talk: the newest that both speak. `None`: there is none.
pub fn common_version(a: (u32, u32), b: (u32, u32)) -> Option<u32> {
    let newest = a.1.min(b.1);
    (newest >= a.0.max(b.0)).then_some(newest)
}

/// Bits of [`Hello::features`] and [`Welcome::features`].
pub mod feature {
    /// Links between tenants of one host, which the router makes and then leaves alone.
    pub const DIRECT: u64 = 1;
    /// Two rings between the session and its router, which forwards packets of other sessions over
    /// them ([`crate::shm::relay`]).
    pub const RELAY: u64 = 2;
    /// The rings of `RELAY` move to memory of one and two MiB when they are often half full.
    pub const GROW: u64 = 4;
    /// Frames of the rings have the hop limit, flow label and traffic class of the packets.
    pub const HEADERS: u64 = 8;
    /// The session's verbs are executed by the router ([`crate::remote`]).
    pub const REMOTE: u64 = 16;
}

/// Values of [`Hello::mode`] and [`Welcome::mode`].
pub mod mode {
    /// Any mode that the router offers.
    pub const ANY: u32 = 0;
    /// The engine is the tenant's.
    pub const SWITCH: u32 = 1;
    /// The device is the router's.
    pub const REMOTE: u32 = 2;
}

/// Values of [`Routed::kind`].
pub mod route_kind {
    /// Over a link between the two processes.
    pub const DIRECT: u32 = 1;
    /// Over the router's rings.
    pub const RELAYED: u32 = 2;
}

/// Bits of [`Routed::flags`] and [`Link::flags`].
pub mod link_flag {
    /// No memory is granted over the link: its ends belong to different tenants.
    pub const NO_GRANTS: u32 = 1;
}

/// Values of [`RouteEvent::event`].
pub mod route_event {
    /// The session at the route's other end has ended.
    pub const DOWN: u32 = 1;
    /// Policy no longer allows the route.
    pub const REVOKED: u32 = 4;
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Shorter than a head, longer than [`MESSAGE_MAX`], or not of the length that it claims.
    Length,
    /// A flag that is not known.
    Flags(u16),
    /// No such type.
    Unknown(u16),
    /// Fields that this version does not know are not zero.
    TooBig,
    /// A HELLO without [`MAGIC`], an invalid text, or a number that does not fit its field.
    Value,
}

impl Fault {
    /// The positive errno of the BYE that reports the fault.
    pub const fn errno(self) -> i32 {
        match self {
            Fault::Length | Fault::Value | Fault::Flags(_) => 22, // EINVAL
            Fault::Unknown(_) => 95,                              // EOPNOTSUPP
            Fault::TooBig => 7,                                   // E2BIG
        }
    }
}

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Fault::Length => f.write_str("a message of the wrong length"),
            Fault::Flags(flags) => write!(f, "a message with the unknown flags {flags:#x}"),
            Fault::Unknown(kind) => write!(f, "a message of the unknown type {kind}"),
            Fault::TooBig => f.write_str("a message with fields of a later version"),
            Fault::Value => f.write_str("a message with a value that means nothing"),
        }
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $body:ty;)+) => {
        /// The body of a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant)]
        pub enum Message {
            $($(#[$doc])* $name($body),)+
        }

        impl Message {
            /// The message's number on the wire.
            pub const fn kind(&self) -> u16 {
                match self { $(Message::$name(_) => $number,)+ }
            }

            fn emit_body(&self, to: &mut Writer<'_>) {
                match self { $(Message::$name(body) => body.emit(to),)+ }
            }

            fn parse_body(kind: u16, from: &mut Reader<'_>) -> Result<Message, Fault> {
                match kind {
                    $($number => <$body>::parse(from).map(Message::$name),)+
                    _ => Err(Fault::Unknown(kind)),
                }
            }
        }

        /// All types.
        pub const KINDS: &[u16] = &[$($number),+];
    };
}

messages! {
    /// The first message of a session.
    Hello = 1, Hello;
    /// The answer to HELLO: an identity, or the reason of a refusal.
    Welcome = 2, Welcome;
    /// Requests a route to a queue pair.
    Route = 3, Route;
    /// The answer to ROUTE.
    Routed = 4, Routed;
    /// A route is not used any more.
    Unroute = 5, Unroute;
    /// Another session's link to this one.
    Link = 6, Link;
    /// A change of a route.
    RouteEvent = 7, RouteEvent;
    /// Listens at a port of the connection manager.
    Listen = 8, Service;
    /// Stops listening.
    Unlisten = 9, Service;
    /// Whether the other end is there.
    Ping = 12, ();
    /// The router is about to end.
    Drain = 13, Drain;
    /// The session ends.
    Bye = 14, Bye;
}

/// A message with its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The message answers the one with this number.
    pub answer: bool,
    /// The message's number; of an answer, the number of the request.
    pub seq: u32,
    /// Of an answer: 0, or a negative errno.
    pub status: i32,
    /// The body.
    pub message: Message,
}

impl Envelope {
    /// A message that is no answer.
    pub const fn new(seq: u32, message: Message) -> Envelope {
        Envelope { answer: false, seq, status: 0, message }
    }

    /// An answer.
    pub const fn answer(seq: u32, status: i32, message: Message) -> Envelope {
        Envelope { answer: true, seq, status, message }
    }

    /// Writes the message; returns its length, at most [`MESSAGE_MAX`].
    pub fn emit(&self, to: &mut [u8; MESSAGE_MAX]) -> usize {
        let mut w = Writer::new(to);
        self.message.kind().emit(&mut w);
        (if self.answer { ANSWER } else { 0 }).emit(&mut w);
        self.seq.emit(&mut w);
        self.status.emit(&mut w);
        0u32.emit(&mut w);
        self.message.emit_body(&mut w);
        let len = w.len();
        to[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        len
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// [`Fault`]: it is no message.
    pub fn parse(bytes: &[u8]) -> Result<Envelope, Fault> {
        if !(HEAD_LEN..=MESSAGE_MAX).contains(&bytes.len()) {
            return Err(Fault::Length);
        }
        let mut r = Reader::new(bytes);
        let (kind, flags) = (u16::parse(&mut r)?, u16::parse(&mut r)?);
        let (seq, status) = (u32::parse(&mut r)?, i32::parse(&mut r)?);
        let length = u32::parse(&mut r)?;
        if length as usize != bytes.len() {
            return Err(Fault::Length);
        }
        if flags & !ANSWER != 0 {
            return Err(Fault::Flags(flags));
        }
        let message = Message::parse_body(kind, &mut r)?;
        if !r.rest_is_zero() {
            return Err(Fault::TooBig);
        }
        Ok(Envelope { answer: flags & ANSWER != 0, seq, status, message })
    }
}

#[cfg(test)]
mod tests;
