//! The bodies of the messages. `emit` shows the order of the fields in the message. Text and byte
//! fields are written as they are, numbers in the width of their type.

use super::bytes::{Reader, Writer};
use super::{Fault, Text, MAGIC};

/// Entries of a GID table.
pub const GIDS: usize = 8;

/// QPNs have 24 bits.
const QPN_END: u32 = 1 << 24;

pub(super) trait Body: Sized {
    fn emit(&self, to: &mut Writer<'_>);
    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault>;
}

impl Body for () {
    fn emit(&self, _: &mut Writer<'_>) {}
    fn parse(_: &mut Reader<'_>) -> Result<(), Fault> {
        Ok(())
    }
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
    /// Of an earlier session; zeroes: none.
    pub token: [u8; 64],
}

impl Body for Hello {
    fn emit(&self, to: &mut Writer<'_>) {
        to.bytes(&MAGIC);
        to.u32(self.versions.0);
        to.u32(self.versions.1);
        to.u64(self.features);
        to.u32(self.mode);
        to.u32(self.qpns);
        to.i32(self.ffr_id);
        to.u32(0);
        self.program.emit(to);
        to.bytes(&self.token);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        if from.bytes() != MAGIC {
            return Err(Fault::Value);
        }
        let versions = (from.u32(), from.u32());
        let (features, mode) = (from.u64(), from.u32());
        let qpns = from.below(QPN_END)?;
        let ffr_id = from.i32();
        spare(from)?;
        Ok(Hello {
            versions,
            features,
            mode,
            qpns,
            ffr_id,
            program: Text::parse(from)?,
            token: from.bytes(),
        })
    }
}

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
    /// Its network.
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
    /// Token for a reconnect after the router has restarted; zeroes: it does not support that.
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

impl Body for Welcome {
    fn emit(&self, to: &mut Writer<'_>) {
        to.u32(self.version);
        to.u32(self.mode);
        to.u64(self.features);
        to.u64(self.epoch);
        to.u64(self.line_rate);
        to.u32(self.session);
        to.u32(self.qpns.0);
        to.u32(self.qpns.1);
        to.u32(self.mtu);
        to.u32(self.rings.0);
        to.u32(self.rings.1);
        to.u32(self.max_routes);
        to.u32(0);
        self.tenant.emit(to);
        self.network.emit(to);
        self.gids.iter().for_each(|gid| to.bytes(gid));
        to.bytes(&self.token);
        self.cause.emit(to);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let (version, mode) = (from.u32(), from.u32());
        let (features, epoch, line_rate) = (from.u64(), from.u64(), from.u64());
        let session = from.u32();
        let qpns = (from.below(QPN_END)?, from.below(QPN_END)?);
        let (mtu, rings, max_routes) = (from.u32(), (from.u32(), from.u32()), from.u32());
        spare(from)?;
        let (tenant, network) = (Text::parse(from)?, Text::parse(from)?);
        let gids = core::array::from_fn(|_| from.bytes());
        let (token, cause) = (from.bytes(), Text::parse(from)?);
        #[rustfmt::skip]
        let welcome = Welcome {
            version, features, mode, session, epoch, tenant, network, gids, qpns, mtu, line_rate,
            rings, max_routes, token, cause,
        };
        Ok(welcome)
    }
}

/// ROUTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The address.
    pub gid: [u8; 16],
    /// The index of the own address in the GID table.
    pub sgid_index: u32,
    /// The remote queue pair; 0: any, for datagrams.
    pub qpn: u32,
    /// As in the address vector.
    pub traffic_class: u32,
}

impl Body for Route {
    fn emit(&self, to: &mut Writer<'_>) {
        to.bytes(&self.gid);
        to.u32(self.sgid_index);
        to.u32(self.qpn);
        to.u32(self.traffic_class);
        to.u32(0);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let gid = from.bytes();
        let sgid_index = from.below(GIDS as u32)?;
        let (qpn, traffic_class) = (from.below(QPN_END)?, from.below(256)?);
        spare(from)?;
        Ok(Route { gid, sgid_index, qpn, traffic_class })
    }
}

/// ROUTED. With a status other than 0 only `cause` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// One of [`super::route_kind`].
    pub kind: u32,
    /// The route's number, of 24 bits.
    pub route: u32,
    /// The number of the session at its other end.
    pub peer: u32,
    /// Bits of [`super::link_flag`].
    pub flags: u32,
    /// The queue pair numbers at its other end: first and how many.
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

impl Body for Routed {
    fn emit(&self, to: &mut Writer<'_>) {
        for word in
            [self.kind, self.route, self.peer, self.flags, self.qpns.0, self.qpns.1, self.mtu, 0]
        {
            to.u32(word);
        }
        self.cause.emit(to);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let (kind, route, peer, flags) = (from.u32(), from.below(1 << 24)?, from.u32(), from.u32());
        let (qpns, mtu) = ((from.below(QPN_END)?, from.below(QPN_END)?), from.u32());
        spare(from)?;
        Ok(Routed { kind, route, peer, flags, qpns, mtu, cause: Text::parse(from)? })
    }
}

/// UNROUTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unroute {
    /// The route's number.
    pub route: u32,
}

impl Body for Unroute {
    fn emit(&self, to: &mut Writer<'_>) {
        to.u32(self.route);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok(Unroute { route: from.below(1 << 24)? })
    }
}

/// LINK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The address of the session at its other end.
    pub gid: [u8; 16],
    /// The number of that session.
    pub peer: u32,
    /// Bits of [`super::link_flag`].
    pub flags: u32,
}

impl Body for Link {
    fn emit(&self, to: &mut Writer<'_>) {
        to.bytes(&self.gid);
        to.u32(self.peer);
        to.u32(self.flags);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok(Link { gid: from.bytes(), peer: from.u32(), flags: from.u32() })
    }
}

/// ROUTE_EVENT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEvent {
    /// The route's number; 0: the session has no route, but another session linked to it.
    pub route: u32,
    /// One of [`super::route_event`].
    pub event: u32,
    /// The number of the session at the other end.
    pub peer: u32,
    /// Milliseconds until it is final.
    pub final_ms: u32,
    /// Why.
    pub cause: Text<256>,
}

impl Body for RouteEvent {
    fn emit(&self, to: &mut Writer<'_>) {
        for word in [self.route, self.event, self.peer, self.final_ms] {
            to.u32(word);
        }
        self.cause.emit(to);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let (route, event, peer, final_ms) =
            (from.below(1 << 24)?, from.u32(), from.u32(), from.u32());
        Ok(RouteEvent { route, event, peer, final_ms, cause: Text::parse(from)? })
    }
}

/// LISTEN and UNLISTEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The port space, of 16 bits.
    pub space: u16,
    /// The port.
    pub port: u16,
}

impl Body for Service {
    fn emit(&self, to: &mut Writer<'_>) {
        to.u16(self.space);
        to.u16(self.port);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok(Service { space: from.u16(), port: from.u16() })
    }
}

/// DRAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Milliseconds until the router ends.
    pub deadline_ms: u32,
    /// Text for an operator.
    pub text: Text<256>,
}

impl Body for Drain {
    fn emit(&self, to: &mut Writer<'_>) {
        to.u32(self.deadline_ms);
        self.text.emit(to);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok(Drain { deadline_ms: from.u32(), text: Text::parse(from)? })
    }
}

/// BYE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bye {
    /// 0: the sender ends the session in order; else a positive errno.
    pub errno: i32,
    /// Why.
    pub text: Text<256>,
}

impl Body for Bye {
    fn emit(&self, to: &mut Writer<'_>) {
        to.i32(self.errno);
        self.text.emit(to);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok(Bye { errno: from.i32(), text: Text::parse(from)? })
    }
}

/// Four bytes that mean nothing yet.
fn spare(from: &mut Reader<'_>) -> Result<(), Fault> {
    if from.u32() == 0 {
        Ok(())
    } else {
        Err(Fault::TooBig)
    }
}
