//! Sessions, addresses, queue pair numbers and links, as a state machine: messages of processes in,
//! [`Action`]s out. It makes no system call, gets the time as an argument, and trusts no message.
//!
//! ```text
//! connect -> New --HELLO--> Up --BYE, a fault, the end of the process--> gone
//!             |    |soon after the router's start: Waits, then as after HELLO
//!             |no HELLO within a second, or no such tenant: gone
//! ```

mod blocks;
mod drain;
mod hosts;
mod reload;
mod resume;
mod route;
mod session;
mod token;
mod vips;
mod welcome;

pub use hosts::MapEvent;
pub use resume::{Keys, LEARN_NS};
pub use session::{BrokerSession, RouteEnd, SessionId, SessionState, UpSession};
pub use token::KEY;

use crate::identity::{FindNetns, PeerFacts};
use crate::policy::Policy;
use blocks::Blocks;
use gdrcore_net::via::proto::{
    route_event, Bye, Envelope, Link, Message, RouteEvent, Routed, Service, Text,
};
use hosts::{FarTenants, KeptRoutes};
use session::HELLO_NS;
use std::collections::{BTreeMap, BTreeSet};
use vips::Vips;

/// Bytes of payload of a packet, unless the link to other hosts carries fewer.
const MTU: u32 = 4096;

/// A task for the daemon.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)]
pub enum Action {
    /// A message to a session.
    Send(SessionId, Envelope),
    /// Make a socket pair. Send one end with `link` to `owner`, then the other with `routed` to
    /// `caller`. If the first send fails, call [`Broker::link_failed`].
    Connect {
        /// The session that asked for the route.
        caller: SessionId,
        /// The answer to `caller`.
        routed: Envelope,
        /// The session that has the queue pair.
        owner: SessionId,
        /// The message to `owner`.
        link: Envelope,
    },
    /// Make the session's rings to [`Broker::peers`], and send them with this WELCOME. If that
    /// fails, expel the session.
    Join(SessionId, Envelope),
    /// A session begins (true) or ends (false) to listen at a port of the connection manager.
    Listen(SessionId, Service, bool),
    /// The session is gone. Deliver what was sent to it, then close its connection. The text is the
    /// reason for the log; empty: the session wished to end.
    End(SessionId, String),
}

/// The router's state.
#[derive(Debug)]
pub struct Broker {
    policy: Policy,
    epoch: u64,
    keys: Option<Keys>,
    /// When the router ends; `None`: it does not drain.
    drains_until: Option<u64>,
    sessions: BTreeMap<SessionId, BrokerSession>,
    last: SessionId,
    blocks: Blocks,
    vips: Vips,
    far: FarTenants,
    kept_routes: KeptRoutes,
    /// GIDs of the devices that execute verbs, by their names.
    devices: BTreeMap<String, [u8; 16]>,
    mtu: u32,
    isolated: bool,
    netns: FindNetns,
    /// See [`Broker::take_actions`].
    out: Vec<Action>,
}

/// Limit of the ports at which sessions with rings listen.
pub const LISTENS: usize = 8192;

/// errno numbers of answers; asm-generic/errno.h.
mod errno {
    pub const INVALID: i32 = 22;
    pub const AGAIN: i32 = 11;
    pub const ACCESS: i32 = 13;
    pub const NO_SPACE: i32 = 28;
    pub const REMOTE: i32 = 66; // EREMOTE
    pub const VERSION: i32 = 93; // EPROTONOSUPPORT
    pub const UNSUPPORTED: i32 = 95;
    pub const IN_USE: i32 = 98;
    pub const SHUTDOWN: i32 = 108;
    pub const STALE: i32 = 116;
    pub const UNREACHABLE: i32 = 113;
    pub const QUOTA: i32 = 122;
    pub const PROTOCOL: i32 = 71;
}

/// The sessions that are up, of all; the caller may use the broker's other fields meanwhile.
fn all_up_mut(
    sessions: &mut BTreeMap<SessionId, BrokerSession>,
) -> impl Iterator<Item = (SessionId, &mut UpSession)> {
    sessions.iter_mut().filter_map(|(&id, s)| match &mut s.state {
        SessionState::Up(up) => Some((id, &mut **up)),
        SessionState::New(_) | SessionState::Waits(_) => None,
    })
}

fn no_session() -> Refusal {
    refusal!(errno::INVALID, "no session")
}

/// Whether a tenant may have one more of something that all tenants share. It must leave as many
/// for others as it has, so it never gets all of them, however many sessions it opens.
fn leaves_enough(own: usize, all: usize, most: usize) -> bool {
    own < most.saturating_sub(all)
}

/// A refusal: errno and why.
type Refusal = (i32, String);

macro_rules! refusal {
    ($errno:expr, $($words:tt)+) => { ($errno, format!($($words)+)) };
}
use refusal;

impl Broker {
    /// A broker without sessions. `epoch`: the number of this run of the router. `netns`: finds the
    /// namespaces that a policy names.
    pub fn new(policy: Policy, epoch: u64, netns: FindNetns) -> Broker {
        let mut broker = Broker {
            policy,
            epoch,
            keys: None,
            drains_until: None,
            sessions: BTreeMap::new(),
            last: 0,
            blocks: Blocks::default(),
            vips: Vips::default(),
            far: FarTenants::default(),
            kept_routes: KeptRoutes::default(),
            devices: BTreeMap::new(),
            mtu: MTU,
            isolated: false,
            netns,
            out: Vec::new(),
        };
        broker.map_again();
        broker
    }

    /// What the daemon has to do for all that was called since the last call of this, in order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.out)
    }

    /// The device of this name, which executes the verbs of tenants, has this GID: they have it.
    pub fn note_device(&mut self, name: &str, gid: [u8; 16]) {
        self.devices.insert(name.into(), gid);
    }

    /// Limits the payload of sessions' packets to `mtu` bytes, so that other hosts' links carry
    /// them.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.mtu = mtu.min(MTU);
    }

    /// Makes no direct links from here on: all packets go by the rings.
    pub fn isolate(&mut self) {
        self.isolated = true;
    }

    /// The number of this run of the router.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The address that was given to a tenant for which the policy names none.
    pub fn vip_of(&self, tenant: &crate::policy::Tenant) -> Option<[u8; 16]> {
        self.vips.given(tenant)
    }

    /// The tenants that have sessions.
    pub fn tenants_here(&self) -> BTreeSet<&str> {
        self.all_up().map(|(_, up)| up.tenant.name.as_str()).collect()
    }

    /// The sessions, those without a HELLO included.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &BrokerSession)> {
        self.sessions.iter().map(|(&id, s)| (id, s))
    }

    /// Blocks of queue pair numbers that sessions have.
    pub fn blocks_given(&self) -> u32 {
        self.blocks.given()
    }

    /// Adds a connection, whose peer the kernel has identified as `seen`.
    pub fn connect(&mut self, now: u64, seen: PeerFacts) -> SessionId {
        // Numbers wrap; 0 and those of present sessions are skipped.
        loop {
            self.last = self.last.wrapping_add(1);
            let last = self.last;
            let is_taken = self.all_up().any(|(_, up)| up.number == last);
            if last != 0 && !is_taken && !self.sessions.contains_key(&last) {
                break;
            }
        }
        self.sessions.insert(
            self.last,
            BrokerSession { seen, tenant: String::new(), state: SessionState::New(now) },
        );
        self.last
    }

    /// Handles a session's datagram, which came with so many descriptors.
    pub fn handle(&mut self, now: u64, id: SessionId, bytes: &[u8], fds: usize) {
        let Some(session) = self.sessions.get(&id) else { return };
        let is_up = matches!(session.state, SessionState::Up(_));
        let is_new = matches!(session.state, SessionState::New(_));
        let e = match Envelope::parse(bytes) {
            Ok(e) => e,
            Err(fault) => return self.end(now, id, refusal!(fault.errno(), "{fault}")),
        };
        let kind = e.message.kind();
        if fds > 0 {
            return self.end(
                now,
                id,
                refusal!(errno::PROTOCOL, "message {kind} with {fds} descriptors, and it has none"),
            );
        }
        if self.find_up(id).is_some_and(|up| up.tenant.device.is_some())
            && !matches!(e.message, Message::Ping(()) | Message::Bye(_))
        {
            let why = "which a session on the router's device does not send";
            return self.end(now, id, refusal!(errno::PROTOCOL, "message {kind}, {why}"));
        }
        if is_up && !e.answer {
            if let Some(status) = self.request(id, &e.message) {
                return self.out.push(Action::Send(id, Envelope::answer(e.seq, status, e.message)));
            }
        }
        match (is_up, e.answer, e.message) {
            (false, false, Message::Hello(hello)) if is_new => {
                match self.hold_back(id, e.seq, &hello) {
                    Ok(true) => {}
                    Ok(false) => self.hello(now, id, e.seq, &hello),
                    Err(refusal) => self.refuse(id, e.seq, refusal),
                }
            }
            (_, false, Message::Bye(_)) => self.leave(now, id),
            (true, false, Message::Route(route)) => self.route(now, id, e.seq, &route),
            (true, true, Message::Ping(())) => {}
            (true, true, Message::Link(_))
                if self.up_mut(id).is_some_and(|up| up.unanswered.remove(&e.seq).is_some()) => {}
            (up, answer, _) => {
                let (before, what) = (
                    if up { "" } else { "before its HELLO, " },
                    if answer { "answer" } else { "message" },
                );
                self.end(
                    now,
                    id,
                    refusal!(errno::PROTOCOL, "{before}{what} {kind}, which is not expected"),
                );
            }
        }
    }

    /// A session's process has ended, or its connection.
    pub fn end_session(&mut self, now: u64, id: SessionId) {
        if self.sessions.contains_key(&id) {
            self.leave(now, id);
        }
    }

    /// Ends a session, and tells `why` to its program and to the log.
    pub fn expel(&mut self, now: u64, id: SessionId, errno: i32, why: &str) {
        self.end(now, id, refusal!(errno, "{why}"));
    }

    /// Handles a failure to send the LINK of an [`Action::Connect`] or to make its sockets. The
    /// daemon itself refuses the route to the caller.
    pub fn link_failed(&mut self, owner: SessionId, seq: u32) {
        if let Some(up) = self.up_mut(owner) {
            up.unanswered.remove(&seq);
        }
    }

    /// Ends connections whose HELLO is late, forgets stale tenants of other hosts, and refuses late
    /// routes.
    pub fn tick(&mut self, now: u64) {
        let is_late = |state: &SessionState| match *state {
            SessionState::New(since) => now.saturating_sub(since) >= HELLO_NS,
            SessionState::Waits(_) | SessionState::Up(_) => false,
        };
        for id in self.ids(is_late) {
            self.end(now, id, refusal!(errno::PROTOCOL, "no HELLO within a second"));
        }
        self.tick_far(now);
    }

    /// The time of the next [`Broker::tick`].
    pub fn deadline(&self) -> Option<u64> {
        let of = |s: &BrokerSession| match s.state {
            SessionState::New(since) => Some(since + HELLO_NS),
            SessionState::Waits(_) | SessionState::Up(_) => None,
        };
        let others = self.learns_until().into_iter().chain(self.drains_until);
        let others = others.chain(self.far_deadline());
        self.sessions.values().filter_map(of).chain(others).min()
    }

    /// A session that is up, and the sessions with rings that it may reach: those of its network
    /// that both policies allow, itself included.
    pub fn peers(&self, id: SessionId) -> Option<(&UpSession, Vec<SessionId>)> {
        let up = self.find_up(id)?;
        let may = |other: &UpSession| {
            other.relays
                && other.tenant.network == up.tenant.network
                && route::check_talk(up, other).is_ok()
        };
        let of =
            |(peer, other): (SessionId, &UpSession)| (peer == id || may(other)).then_some(peer);
        Some((up, self.all_up().filter_map(of).collect()))
    }

    /// A session that is up.
    pub fn find_up(&self, id: SessionId) -> Option<&UpSession> {
        match &self.sessions.get(&id)?.state {
            SessionState::Up(up) => Some(up),
            SessionState::New(_) | SessionState::Waits(_) => None,
        }
    }

    fn up_mut(&mut self, id: SessionId) -> Option<&mut UpSession> {
        match &mut self.sessions.get_mut(&id)?.state {
            SessionState::Up(up) => Some(up),
            SessionState::New(_) | SessionState::Waits(_) => None,
        }
    }

    /// As [`Broker::find_up`], for a request.
    ///
    /// # Errors
    /// The session is not up.
    fn asking(&self, id: SessionId) -> Result<&UpSession, Refusal> {
        self.find_up(id).ok_or_else(no_session)
    }

    fn asking_mut(&mut self, id: SessionId) -> Result<&mut UpSession, Refusal> {
        self.up_mut(id).ok_or_else(no_session)
    }

    fn all_up(&self) -> impl Iterator<Item = (SessionId, &UpSession)> {
        self.sessions.iter().filter_map(|(&id, s)| match &s.state {
            SessionState::Up(up) => Some((id, &**up)),
            SessionState::New(_) | SessionState::Waits(_) => None,
        })
    }

    /// The sessions in some state.
    fn ids(&self, is: impl Fn(&SessionState) -> bool) -> Vec<SessionId> {
        self.sessions.iter().filter(|(_, s)| is(&s.state)).map(|(&id, _)| id).collect()
    }

    /// Handles a request whose answer is a status alone, and returns that. `None`: it is another
    /// message.
    fn request(&mut self, id: SessionId, message: &Message) -> Option<i32> {
        let (is_known, listen) = match *message {
            Message::Unroute(unroute) => (self.up_mut(id)?.unroute(unroute.route), None),
            Message::Listen(service) => {
                if let Err(errno) = self.listen(id, &service) {
                    return Some(-errno);
                }
                (true, Some((service, true)))
            }
            Message::Unlisten(s) => {
                (self.up_mut(id)?.listens.remove(&(s.space, s.port)), Some((s, false)))
            }
            Message::Ping(()) => (true, None),
            _ => return None,
        };
        // Before the answer: the program announces the port only after the answer, so peers find
        // the listener.
        let relays = is_known && self.find_up(id)?.relays;
        if let Some((service, on)) = listen.filter(|_| relays) {
            self.out.push(Action::Listen(id, service, on));
        }
        Some(if is_known { 0 } else { -errno::INVALID })
    }

    /// Checks that a port has one listener among all sessions of an address.
    fn listen(&mut self, id: SessionId, s: &Service) -> Result<(), i32> {
        let up = self.find_up(id).ok_or(errno::INVALID)?;
        let same =
            |other: &UpSession| other.gid == up.gid && other.tenant.network == up.tenant.network;
        if self.all_up().any(|(_, other)| same(other) && other.listens_at(s)) {
            return Err(errno::IN_USE);
        }
        let tenant = &up.tenant.name;
        let (all, own) = self.all_up().fold((0, 0), |(all, own), (_, other)| {
            let n = other.listens.len();
            (all + n, own + if other.tenant.name == *tenant { n } else { 0 })
        });
        let up = self.up_mut(id).ok_or(errno::INVALID)?;
        if !leaves_enough(own, all, LISTENS)
            || up.listens.len() >= up.tenant.quotas.listens as usize
        {
            return Err(errno::QUOTA);
        }
        up.listens.insert((s.space, s.port));
        Ok(())
    }

    /// Ends a session that wishes so, or whose process has ended.
    fn leave(&mut self, now: u64, id: SessionId) {
        self.remove(now, id, route_event::DOWN, "the session at the other end is gone");
        self.out.push(Action::End(id, String::new()));
    }

    /// Ends a session for a fault of its own, or by the router's decision.
    fn end(&mut self, now: u64, id: SessionId, (errno, why): Refusal) {
        if !self.sessions.contains_key(&id) {
            return;
        }
        // Its process may live on, and its direct links with it.
        self.remove(
            now,
            id,
            route_event::REVOKED,
            "the router has ended the session at the other end",
        );
        self.out.push(Action::Send(
            id,
            Envelope::new(0, Message::Bye(Bye { errno, text: Text::new(&why) })),
        ));
        self.out.push(Action::End(id, why));
    }

    /// Removes a session, and notifies the sessions that have links with it.
    fn remove(&mut self, now: u64, id: SessionId, event: u32, cause: &str) {
        let Some(session) = self.sessions.remove(&id) else { return };
        let SessionState::Up(up) = session.state else { return };
        self.kept_routes.forget(id);
        self.blocks.put(now, up.blocks.clone(), &up.tenant.name);
        let linked = |p: SessionId, o: &UpSession| o.may_link_to(id, &up) || up.may_link_to(p, o);
        let to: Vec<SessionId> =
            self.all_up().filter(|(p, o)| linked(*p, o)).map(|(p, _)| p).collect();
        for peer in to {
            self.notify_link_end(peer, (id, up.number), event, cause);
        }
        for (_, other) in all_up_mut(&mut self.sessions) {
            other.rates.remove(&id);
        }
    }

    /// Notifies a session that its links with another have ended, and forgets its route to that.
    fn notify_link_end(
        &mut self,
        id: SessionId,
        (peer, number): (SessionId, u32),
        event: u32,
        cause: &str,
    ) {
        let Some(up) = self.up_mut(id) else { return };
        let route = up.routes.remove(&RouteEnd::Session(peer)).unwrap_or(0);
        up.linked_by.remove(&peer);
        let peer = number;
        let news = RouteEvent { route, event, peer, final_ms: 0, cause: Text::new(cause) };
        let e = Envelope::new(up.next_seq(), Message::RouteEvent(news));
        self.out.push(Action::Send(id, e));
    }
}

#[cfg(test)]
mod tests;
