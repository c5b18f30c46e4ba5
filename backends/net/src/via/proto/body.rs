//! The bodies of the messages. `codec!` shows the order of the fields in the message. Text and byte
//! fields are written unchanged, numbers in the width of their type.

use super::bytes::{Reader, Writer};
use super::{Fault, Text, MAGIC};

/// Entries of a GID table.
pub const GIDS: usize = 8;

/// QPNs have 24 bits.
const QPN_END: u32 = 1 << 24;

/// The end of routes' numbers.
const ROUTE_END: u32 = 1 << 24;

/// A message's body, or a field of one.
pub(super) trait Codec: Sized {
    fn emit(&self, to: &mut Writer<'_>);
    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault>;
}

/// The numbers of a field that has a bound.
trait Bounded: Sized {
    /// The field, if all its numbers are below `end`.
    fn below(self, end: u32) -> Result<Self, Fault>;
}

impl Bounded for u32 {
    fn below(self, end: u32) -> Result<Self, Fault> {
        Some(self).filter(|&v| v < end).ok_or(Fault::Value)
    }
}

impl Bounded for (u32, u32) {
    fn below(self, end: u32) -> Result<Self, Fault> {
        Ok((self.0.below(end)?, self.1.below(end)?))
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Codec for $type {
            fn emit(&self, to: &mut Writer<'_>) {
                to.bytes(&self.to_le_bytes());
            }
            fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
                Ok(<$type>::from_le_bytes(from.bytes()))
            }
        }
    )*};
}

numbers!(u16, u32, i32, u64);

impl Codec for () {
    fn emit(&self, _: &mut Writer<'_>) {}
    fn parse(_: &mut Reader<'_>) -> Result<(), Fault> {
        Ok(())
    }
}

impl Codec for (u32, u32) {
    fn emit(&self, to: &mut Writer<'_>) {
        self.0.emit(to);
        self.1.emit(to);
    }
    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok((u32::parse(from)?, u32::parse(from)?))
    }
}

impl<const N: usize> Codec for [u8; N] {
    fn emit(&self, to: &mut Writer<'_>) {
        to.bytes(self);
    }
    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok(from.bytes())
    }
}

impl Codec for [[u8; 16]; GIDS] {
    fn emit(&self, to: &mut Writer<'_>) {
        to.bytes(self.as_flattened());
    }
    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok(core::array::from_fn(|_| from.bytes()))
    }
}

/// The fields of a body in their order in the message. `after`: bytes before them. `< n`: values
/// from n on are refused. `;`: four bytes that mean nothing yet.
macro_rules! codec {
    ($body:ident $(after $magic:ident)?: $($field:ident $(< $end:expr)?),*
     $(; $($behind:ident),*)?) => {
        impl Codec for $body {
            fn emit(&self, to: &mut Writer<'_>) {
                $($magic.emit(to);)?
                $(self.$field.emit(to);)*
                $(0u32.emit(to); $(self.$behind.emit(to);)*)?
            }
            fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
                $(if from.bytes() != $magic {
                    return Err(Fault::Value);
                })?
                $(
                    let $field = Codec::parse(from)?;
                    $(let $field = Bounded::below($field, $end)?;)?
                )*
                $(
                    spare(from)?;
                    $(let $behind = Codec::parse(from)?;)*
                )?
                Ok($body { $($field,)* $($($behind),*)? })
            }
        }
    };
}

/// HELLO, behind [`MAGIC`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version that the tenant supports, and the newest.
    pub versions: (u32, u32),
    /// Bits of [`super::feature`] (8 bytes).
    pub features: u64,
    /// One of [`super::mode`].
    pub mode: u32,
    /// Queue pair numbers wanted; 0: none, the tenant only requests its identity.
    pub qpns: u32,
    /// The number of the identity that the tenant requests, among those it may have; -1: any.
    pub ffr_id: i32,
    /// The name of the process.
    pub program: Text<64>,
    /// The token of an earlier session; zeroes: none.
    pub token: [u8; 64],
}

codec!(Hello after MAGIC: versions, features, mode, qpns < QPN_END, ffr_id; program, token);

/// WELCOME. With a status other than 0 only `cause` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version that both speak.
    pub version: u32,
    /// Bits of [`super::feature`] (8 bytes).
    pub features: u64,
    /// One of [`super::mode`].
    pub mode: u32,
    /// The session's number, unique within the run of the router.
    pub session: u32,
    /// Identifies this run of the router (8 bytes).
    pub epoch: u64,
    /// The tenant's name in the policy.
    pub tenant: Text<64>,
    /// The tenant's network.
    pub network: Text<64>,
    /// The tenant's GIDs; the first is its virtual address, others are zero.
    pub gids: [[u8; 16]; GIDS],
    /// The session's queue pair numbers: first and how many.
    pub qpns: (u32, u32),
    /// Bytes of payload of a packet.
    pub mtu: u32,
    /// Bytes per second of the host's link; 0: not known (8 bytes).
    pub line_rate: u64,
    /// Bytes of a relay's rings, towards the router and from it; 0: there is none.
    pub rings: (u32, u32),
    /// Routes that the session may have.
    pub max_routes: u32,
    /// Token for a reconnect after the router has restarted; zeroes: the router does not support
    /// that.
    pub token: [u8; 64],
    /// Why the session was refused.
    pub cause: Text<256>,
}

impl Welcome {
    /// A refusal.
    pub const fn refused(cause: Text<256>) -> Welcome {
        Welcome {
            version: 0,
            features: 0,
            mode: 0,
            session: 0,
            epoch: 0,
            tenant: Text::EMPTY,
            network: Text::EMPTY,
            gids: [[0; 16]; GIDS],
            qpns: (0, 0),
            mtu: 0,
            line_rate: 0,
            rings: (0, 0),
            max_routes: 0,
            token: [0; 64],
            cause,
        }
    }
}

codec!(
    Welcome: version, mode, features, epoch, line_rate, session, qpns < QPN_END, mtu, rings,
    max_routes; tenant, network, gids, token, cause
);

/// ROUTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The remote address.
    pub gid: [u8; 16],
    /// The index of the own address in the GID table.
    pub sgid_index: u32,
    /// The remote queue pair; 0: any, for datagrams.
    pub qpn: u32,
    /// The traffic class of the address vector.
    pub traffic_class: u32,
}

codec!(Route: gid, sgid_index < GIDS as u32, qpn < QPN_END, traffic_class < 256;);

/// ROUTED. With a status other than 0 only `cause` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// One of [`super::route_kind`].
    pub kind: u32,
    /// The route's number, of 24 bits.
    pub route: u32,
    /// The number of the session at the route's other end.
    pub peer: u32,
    /// Bits of [`super::link_flag`].
    pub flags: u32,
    /// The queue pair numbers at the route's other end: first and how many.
    pub qpns: (u32, u32),
    /// Bytes of payload of a packet.
    pub mtu: u32,
    /// Why there is no route.
    pub cause: Text<256>,
}

impl Routed {
    /// A refusal.
    pub const fn refused(cause: Text<256>) -> Routed {
        Routed { kind: 0, route: 0, peer: 0, flags: 0, qpns: (0, 0), mtu: 0, cause }
    }
}

codec!(Routed: kind, route < ROUTE_END, peer, flags, qpns < QPN_END, mtu; cause);

/// UNROUTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unroute {
    /// The route's number.
    pub route: u32,
}

codec!(Unroute: route < ROUTE_END);

/// LINK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The address of the session at the link's other end.
    pub gid: [u8; 16],
    /// The number of that session.
    pub peer: u32,
    /// Bits of [`super::link_flag`].
    pub flags: u32,
}

codec!(Link: gid, peer, flags);

/// ROUTE_EVENT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEvent {
    /// The route's number; 0: the session has no route, but another session linked to it.
    pub route: u32,
    /// One of [`super::route_event`].
    pub event: u32,
    /// The number of the session at the other end.
    pub peer: u32,
    /// Milliseconds until the event is final.
    pub final_ms: u32,
    /// Why.
    pub cause: Text<256>,
}

codec!(RouteEvent: route < ROUTE_END, event, peer, final_ms, cause);

/// LISTEN and UNLISTEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The port space, of 16 bits.
    pub space: u16,
    /// The port.
    pub port: u16,
}

codec!(Service: space, port);

/// DRAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Milliseconds until the router ends.
    pub deadline_ms: u32,
    /// Text for an operator.
    pub text: Text<256>,
}

codec!(Drain: deadline_ms, text);

/// BYE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bye {
    /// 0: the sender ends the session in order; else a positive errno.
    pub errno: i32,
    /// Why.
    pub text: Text<256>,
}

codec!(Bye: errno, text);

/// Four bytes that mean nothing yet.
fn spare(from: &mut Reader<'_>) -> Result<(), Fault> {
    match u32::parse(from)? {
        0 => Ok(()),
        _ => Err(Fault::TooBig),
    }
}
