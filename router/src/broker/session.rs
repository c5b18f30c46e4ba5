//! The session of one process: its identity, its numbers and routes, and its rates.

use super::resume::WaitingHello;
use super::{errno, refusal, Refusal};
use crate::identity::PeerFacts;
use crate::policy::Tenant;
use crate::rate::Rate;
use gdrcore_net::via::proto::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The time limit of a connection's HELLO.
pub const HELLO_NS: u64 = 1_000_000_000;
/// Limit of LINK messages that a session has not answered; it gets no more until it answers. One
/// tenant may have asked for half of them at most.
pub const UNANSWERED: usize = 32;

/// Links in a second that one session may have made to the same other. Each costs the other a ring
/// to map, so a peer could keep it busy with new links alone.
pub const LINKS_PER_SECOND: u32 = 32;

/// The end of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteEnd {
    /// To a session here.
    Session(SessionId),
    /// To a tenant's address on another host.
    Far([u8; 16]),
    /// To an address that is no tenant's: a plain endpoint.
    Outside([u8; 16]),
}

/// The number of a session, given once in the router's life.
pub type SessionId = u32;

/// The state of a session. A session that ends is removed at once, so there is no state for that.
#[derive(Debug)]
pub enum SessionState {
    /// Connected since this time; its HELLO has not come.
    New(u64),
    /// Its HELLO waits: the router gives no new numbers yet.
    Waits(Box<WaitingHello>),
    /// It has an identity.
    Up(Box<UpSession>),
}

/// A session that is up.
#[derive(Debug)]
pub struct UpSession {
    /// The number by which processes know it: that of the connection, or of a resumed session its
    /// former one.
    pub number: u32,
    /// It was resumed. Its direct links are not known: it may have one with every other resumed
    /// session.
    pub resumed: bool,
    /// Its tenant, by the policy at its HELLO.
    pub tenant: Tenant,
    /// Its address.
    pub gid: [u8; 16],
    /// Its blocks of queue pair numbers; empty: it asked only for its identity.
    pub blocks: Range<u32>,
    /// The name of its program, by the kernel; where that says none, by its HELLO.
    pub program: String,
    /// The number with which it asked for an identity.
    pub ffr_id: i32,
    /// Its routes' numbers, by destination.
    pub routes: BTreeMap<RouteEnd, u32>,
    /// The sessions that have links to this one. Messages of this session do not change the set.
    pub linked_by: BTreeSet<SessionId>,
    /// It has rings to and from the router.
    pub relays: bool,
    /// Those rings may move to larger memory.
    pub grows: bool,
    /// The frames of its rings have the fields of IP headers.
    pub headers: bool,
    /// Ports of the connection manager.
    pub listens: BTreeSet<(u16, u16)>,
    /// LINKs that wait for an answer, by number, with the tenants that asked for them, whose
    /// sessions may have ended.
    pub unanswered: BTreeMap<u32, String>,
    /// The rate of its route requests.
    pub rate: Rate,
    /// The rates of its links to each session. They survive the end of a route.
    pub rates: BTreeMap<SessionId, Rate>,
    /// The number of the router's last message to it.
    pub last_seq: u32,
    /// The number of its last route.
    pub last_route: u32,
}

/// A session.
#[derive(Debug)]
pub struct BrokerSession {
    /// The kernel's facts about its process.
    pub seen: PeerFacts,
    /// The tenant that it is, once its HELLO has come; empty: none.
    pub tenant: String,
    /// Its state.
    pub state: SessionState,
}

impl UpSession {
    /// The number of the router's next message to it.
    pub fn next_seq(&mut self) -> u32 {
        self.last_seq = self.last_seq.wrapping_add(1);
        self.last_seq
    }

    /// The number of its route to `peer`, new if it has none.
    ///
    /// # Errors
    /// It has too many routes.
    pub fn route_to(&mut self, peer: RouteEnd) -> Result<u32, Refusal> {
        if let Some(&number) = self.routes.get(&peer) {
            return Ok(number);
        }
        let most = self.tenant.quotas.routes;
        if self.routes.len() >= self.tenant.quotas.routes as usize {
            return Err(refusal!(errno::QUOTA, "the session has {most} routes, its most"));
        }
        // Numbers have 24 bits, and few are in use, so the loop is short.
        loop {
            self.last_route = self.last_route % ((1 << 24) - 1) + 1;
            if !self.routes.values().any(|&n| n == self.last_route) {
                self.routes.insert(peer, self.last_route);
                return Ok(self.last_route);
            }
        }
    }

    /// Forgets a route by its number. False: it has none of that number.
    pub fn unroute(&mut self, number: u32) -> bool {
        let before = self.routes.len();
        self.routes.retain(|_, &mut n| n != number);
        self.routes.len() < before
    }

    /// Whether another session, with this id, has a link to this one, or may have.
    pub fn may_link_to(&self, id: SessionId, other: &UpSession) -> bool {
        self.linked_by.contains(&id) || self.resumed && other.resumed
    }

    /// Whether it listens at a port.
    pub fn listens_at(&self, s: &Service) -> bool {
        self.listens.contains(&(s.space, s.port))
    }
}
