//! One process's session: what it is, what it has, and how much it may ask.

use super::resume::Waiting;
use crate::identity::Seen;
use crate::policy::Tenant;
use crate::rate::Rate;
use gdrcore_net::via::proto::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How long a connection may say nothing before its HELLO.
pub const HELLO_NS: u64 = 1_000_000_000;
/// Links of others that a session has been sent and has not answered; it gets no more until it
/// does.
pub const UNANSWERED: usize = 16;

/// Links in a second that one session may have made to the same other. Each costs that other a ring
/// to map: who is allowed to talk to a process must not keep it busy with nothing but new links.
pub const LINKS_PER_SECOND: u32 = 32;

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    /// To a session here.
    Session(SessionId),
    /// To an address of another host.
    Far([u8; 16]),
}

/// The number of a session, given once in the router's life.
pub type SessionId = u32;

/// Where a session stands. What ends is gone at once, and has no state.
#[derive(Debug)]
pub enum State {
    /// Connected; its HELLO has not come. Since when.
    New(u64),
    /// Its HELLO waits until new numbers are given.
    Waits(Box<Waiting>),
    /// It has an identity.
    Up(Box<Up>),
}

/// A session that is up.
#[derive(Debug)]
pub struct Up {
    /// The number by which processes know it: that of the connection, or for a session that came
    /// back the one that it had.
    pub number: u32,
    /// It came back from a former life of the router. Which links it has is not known: perhaps with
    /// all others that came back.
    pub resumed: bool,
    /// What policy said of it when it came.
    pub tenant: Tenant,
    /// Its address.
    pub gid: [u8; 16],
    /// Its blocks of queue pair numbers; empty: it only wanted to know who it is.
    pub blocks: Range<u32>,
    /// What the process calls itself.
    pub program: String,
    /// The number by which it asked for an identity.
    pub ffr_id: i32,
    /// Where it has routes to, and their numbers.
    pub routes: BTreeMap<To, u32>,
    /// The sessions that have links to this one. What a session says of its routes changes nothing
    /// here.
    pub linked_by: BTreeSet<SessionId>,
    /// It has rings to and from the router.
    pub relays: bool,
    /// Ports of the connection manager.
    pub listens: BTreeSet<(u16, u16)>,
    /// Numbers of LINKs that wait for an answer.
    pub unanswered: BTreeSet<u32>,
    /// What it may still ask for.
    pub rate: Rate,
    /// And of whom. Stays when a route is given back.
    pub rates: BTreeMap<SessionId, Rate>,
    /// The number of the router's last message to it.
    pub last_seq: u32,
    /// The number of its last route.
    pub last_route: u32,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    /// What the kernel says of it.
    pub seen: Seen,
    /// Where it stands.
    pub state: State,
}

impl Up {
    /// The next number of the router's.
    pub fn next_seq(&mut self) -> u32 {
        self.last_seq = self.last_seq.wrapping_add(1);
        self.last_seq
    }

    /// A route: the one that there is, or a new number; `None`: it has too many.
    pub fn route_to(&mut self, peer: To) -> Option<u32> {
        if let Some(&number) = self.routes.get(&peer) {
            return Some(number);
        }
        if self.routes.len() >= self.tenant.quotas.routes as usize {
            return None;
        }
        // Numbers of 24 bits, from 1 on; those in use are few.
        loop {
            self.last_route = self.last_route % ((1 << 24) - 1) + 1;
            if !self.routes.values().any(|&n| n == self.last_route) {
                self.routes.insert(peer, self.last_route);
                return Some(self.last_route);
            }
        }
    }

    /// Whether another session, of this number, has a link to this one, or may have.
    pub fn may_link_to(&self, id: SessionId, other: &Up) -> bool {
        self.linked_by.contains(&id) || self.resumed && other.resumed
    }

    /// Whether it listens at a port.
    pub fn listens_at(&self, s: &Service) -> bool {
        self.listens.contains(&(s.space, s.port))
    }
}
