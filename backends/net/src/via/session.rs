//! A tenant's connection to its router.
//!
//! Two kinds of threads use it. A thread that connects a queue pair sends a request and waits for
//! the answer, without the engine's lock. The thread that runs the engine polls for the router's
//! messages at intervals ([`Session::receive_all`]), and never waits. Messages that arrive while a
//! request is open are set aside for its next poll. When the router has ended, the thread that runs
//! the engine looks for the next router (`super::resume`).

use super::absence::Absence;
use super::client::{Client, Step, REMOTE};
use super::connect::{connect, poll};
use super::find::{ffr_id, SocketPath};
use super::proto::{feature, MESSAGE_MAX};
use super::proto::{
    link_flag, mode, route_event, route_kind, Bye, Envelope, Hello, Message, Route, Routed,
    Service, Text, Welcome, FDS_MAX, VERSIONS,
};
use super::wire::{receive, send, Buffer, ReadOutcome};
use crate::clock::now_ns;
use crate::closing;
use crate::rights::{self, Foreign};
use crate::shm::relay::{Relay, RingDescriptors};
use core::sync::atomic::{AtomicBool, Ordering};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::reason::refused;
use gdrcore_core::refuse;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A router that does not answer within this time counts as gone.
const ROUTER_ANSWERS_WITHIN_NS: u64 = 5_000_000_000;
/// Most links of other sessions that are set aside; a further one is refused, and its session
/// repeats the request.
const ASIDE: usize = 64;
/// Messages that one call of [`Session::receive_all`] takes.
const LOOKS: usize = 64;

/// A message of the router for the device.
#[derive(Debug)]
pub enum Arrival {
    /// The socket of another session's link to this one.
    Link {
        /// The address of that session's tenant.
        gid: [u8; 16],
        /// The session's number.
        peer: u32,
        /// Memory may be granted over the link.
        may_grant: bool,
        /// The socket.
        fd: Foreign,
    },
    /// No frame may come from, or go to, that session any more.
    Revoked {
        /// The session's number.
        peer: u32,
    },
}

/// The descriptors of a message.
type Fds = [Option<Foreign>; FDS_MAX];

/// Result of one read of the socket.
#[allow(clippy::large_enum_variant)]
enum Received {
    Nothing,
    /// A message, which was handled.
    Something,
    /// The answer to the last request, and its descriptors.
    Answer(Envelope, Fds),
}

pub(super) struct Inner {
    pub(super) client: Client,
    /// State for reconnecting to the router.
    pub(super) absence: Absence,
    /// The end of the router was reported.
    reported: bool,
    aside: heapless::Vec<Arrival, ASIDE>,
    pub(super) buffer: Buffer,
}

/// The tenant's end of a session.
pub struct Session {
    /// The socket. The descriptor's number stays the same after a reconnect.
    pub(super) fd: OwnedFd,
    pub(super) at: SocketPath,
    pub(super) welcome: Welcome,
    gone: AtomicBool,
    /// The session has ended for good.
    over: AtomicBool,
    pub(super) inner: Mutex<Inner>,
}

/// A link that the router has made.
#[derive(Debug)]
pub struct Direct {
    /// The router's answer.
    pub routed: Routed,
    /// The link's socket.
    pub fd: Foreign,
}

impl Direct {
    /// Whether memory may be granted over the link.
    pub fn may_grant(&self) -> bool {
        self.routed.flags & link_flag::NO_GRANTS == 0
    }
}

/// The right to make requests: one thread at a time.
pub struct RequestGuard<'s> {
    session: &'s Session,
    inner: MutexGuard<'s, Inner>,
}

impl Session {
    /// Connects to a router and identifies the process. `qpns`: number of queue pair numbers
    /// wanted, a power of two from [`QPN_UNIT`] on; 0: only the addresses are wanted. Waits for the
    /// router, five seconds at most. Returns the session's rings too, if there are queue pair
    /// numbers and the router relays.
    ///
    /// # Errors
    /// With a reason: [`Error::NoDevice`]: no router listens there. [`Error::TimedOut`]: no answer
    /// came. [`Error::Access`]: the router knows no tenant that this process could be. Others as
    /// the router answers.
    pub fn open(at: &SocketPath, qpns: u32) -> Result<(Session, Option<Relay>)> {
        let (session, [up, down, bell, _]) = Session::greet(at, hello(qpns, [0; 64]))?;
        let relay = rings_of(&session.welcome, [up, down, bell])?;
        Ok((session, relay))
    }

    /// As [`Session::open`], for a session whose verbs the router executes. Returns the descriptors
    /// of [`crate::remote`], in the order of the WELCOME.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_remote(at: &SocketPath) -> Result<(Session, [OwnedFd; REMOTE])> {
        let wanted = Hello { mode: mode::REMOTE, features: feature::REMOTE, ..hello(0, [0; 64]) };
        let (session, fds) = Session::greet(at, wanted)?;
        let mut all = heapless::Vec::<OwnedFd, REMOTE>::new();
        // The router is trusted not to make a close slow.
        all.extend(fds.into_iter().flatten().map(Foreign::trusted));
        let all = all.into_array();
        Ok((session, all.map_err(|_| refuse!(Os(libc::EMFILE), "too few descriptors are free"))?))
    }

    fn greet(at: &SocketPath, wanted: Hello) -> Result<(Session, Fds)> {
        let until = now_ns() + ROUTER_ANSWERS_WITHIN_NS;
        let fd = connect(at, until)?;
        let inner = Inner {
            client: Client::new(),
            absence: Absence::new([0; 64]),
            reported: false,
            aside: heapless::Vec::new(),
            buffer: [0; MESSAGE_MAX + 1],
        };
        let welcome = Welcome::refused(Text::EMPTY);
        let mut session = Session {
            fd,
            at: *at,
            welcome,
            gone: AtomicBool::new(false),
            over: AtomicBool::new(false),
            inner: Mutex::new(inner),
        };
        let (e, fds) = session.request_guard().ask(Message::Hello(wanted), until)?;
        let Message::Welcome(welcome) = e.message else {
            return Err(session.broken(format_args!("no WELCOME")));
        };
        if e.status != 0 {
            return Err(session.refusal(e.status, &welcome.cause));
        }
        check(&welcome, &wanted).map_err(|what| session.broken(format_args!("{what}")))?;
        session.welcome = welcome;
        if let Ok(inner) = session.inner.get_mut() {
            inner.absence.token = welcome.token;
        }
        Ok((session, fds))
    }

    /// Bytes of payload of a packet, at most.
    pub fn mtu(&self) -> u32 {
        self.welcome.mtu
    }

    /// The router's description of the tenant.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The tenant's virtual address.
    pub fn gid(&self) -> [u8; 16] {
        self.welcome.gids[0]
    }

    /// Readable when the router has sent a message, or has ended.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether the router has ended, or has ended the session. Existing links stay.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether the session has ended for good.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Notes that the session has ended for good.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Notes that a router has taken the session again.
    pub(super) fn come_back(&self, inner: &mut Inner) {
        inner.reported = false;
        self.gone.store(false, Ordering::Relaxed);
    }

    /// Sends a request whose answer does not count. Never waits.
    ///
    /// # Errors
    /// [`Error::Again`]: the message cannot be sent now.
    pub fn tell(&self, message: Message) -> Result<()> {
        let Ok(mut inner) = self.inner.try_lock() else { return Err(Error::Again) };
        let e = inner.client.tell(message);
        send(self.fd.as_fd(), &e, None)
    }

    /// Waits until no other thread has a request open.
    pub fn request_guard(&self) -> RequestGuard<'_> {
        RequestGuard {
            session: self,
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Passes the messages that have arrived to `take`. Never waits: while a thread has a request
    /// open, messages are set aside for the next poll. Returns true once, when the router has
    /// ended: its socket stays readable for ever.
    pub fn receive_all(&self, take: impl FnMut(Arrival)) -> bool {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        for _ in 0..LOOKS {
            if self.is_gone()
                || !matches!(
                    self.receive_one(&mut inner),
                    Ok(Received::Something | Received::Answer(..))
                )
            {
                break;
            }
        }
        core::mem::take(&mut inner.aside).into_iter().for_each(take);
        self.is_gone() && !core::mem::replace(&mut inner.reported, true)
    }

    /// Receives one message, if there is one, and handles it, except answers, which are returned
    /// with their descriptor.
    fn receive_one(&self, inner: &mut Inner) -> Result<Received> {
        let mut came = match receive(self.fd.as_fd(), &mut inner.buffer) {
            ReadOutcome::Message(came) => came,
            ReadOutcome::Nothing => return Ok(Received::Nothing),
            ReadOutcome::Gone => return Err(self.lost()),
        };
        // A descriptor that this process had no room for counts as received.
        let fds = if came.cut { came.count.max(1) } else { came.count };
        let step = inner.client.take(&inner.buffer[..came.len], fds);
        match step.map_err(|e| self.broken(format_args!("{e:?}")))? {
            Step::Answer(e) => return Ok(Received::Answer(e, came.fds)),
            Step::Link(seq, link) => {
                let may_grant = link.flags & link_flag::NO_GRANTS == 0;
                let arrival = came.fds[0].take().map(|fd| {
                    inner.aside.push(Arrival::Link {
                        gid: link.gid,
                        peer: link.peer,
                        may_grant,
                        fd,
                    })
                });
                let status = match arrival {
                    Some(Ok(())) => 0,
                    Some(Err(_)) => -libc::EAGAIN,
                    // This process may open no more descriptors.
                    None => -libc::EMFILE,
                };
                self.answer(&Envelope::answer(seq, status, Message::Link(link)))?;
            }
            Step::Event(e) if e.event == route_event::REVOKED => {
                // A revocation must not get lost. Links of that session that are still set aside
                // end too.
                let of_peer =
                    |a: &Arrival| matches!(a, Arrival::Link { peer, .. } if *peer == e.peer);
                inner.aside.retain(|a| !of_peer(a));
                if inner.aside.push(Arrival::Revoked { peer: e.peer }).is_err() {
                    return Err(self.broken(format_args!("too many revoked sessions")));
                }
            }
            Step::Ping(seq) => self.answer(&Envelope::answer(seq, 0, Message::Ping(())))?,
            Step::Event(_) | Step::Nothing => {}
            Step::End(_) => {
                self.end();
                return Err(self.lost());
            }
        }
        Ok(Received::Something)
    }

    /// Sends an answer. A full socket is no error: a router that does not read is soon found dead.
    fn answer(&self, e: &Envelope) -> Result<()> {
        match send(self.fd.as_fd(), e, None) {
            Ok(()) | Err(Error::Again) => Ok(()),
            Err(_) => Err(self.lost()),
        }
    }

    #[cold]
    fn lost(&self) -> Error {
        self.gone.store(true, Ordering::Relaxed);
        refuse!(
            Os(libc::ENOTCONN),
            "the router at {} has ended, or has ended the session: \
             existing links stay, new ones are not made",
            self.at
        )
    }

    #[cold]
    fn broken(&self, what: core::fmt::Arguments<'_>) -> Error {
        self.end();
        refuse!(Os(libc::EPROTO), "the router at {} sent an invalid message: {what}", self.at)
    }

    /// The error of the router's answer, with its reason.
    #[cold]
    fn refusal(&self, status: i32, cause: &Text<256>) -> Error {
        refused(
            Error::from_errno(status.wrapping_neg()),
            format_args!("the router at {}: {cause}", self.at),
        )
    }
}

impl Session {
    /// Empties the socket's queue before the socket is closed: links of other sessions in it may
    /// hold anything.
    pub(super) fn empty(&self, buffer: &mut Buffer) {
        rights::refuse(self.fd.as_fd());
        for _ in 0..LOOKS {
            if closing::is_full() {
                break;
            }
            if !matches!(receive(self.fd.as_fd(), buffer), ReadOutcome::Message(_)) {
                return;
            }
        }
        // A copy stays open for the thread that closes, so this close is not the last one.
        drop(self.fd.try_clone().map(Foreign::from));
    }
}

impl RequestGuard<'_> {
    /// Requests a link to the owner of a queue pair. `None`: the queue pair is reached over the
    /// router's rings.
    ///
    /// # Errors
    /// With a reason: [`Error::Os`]`(EHOSTUNREACH)`: no session has the address or the number.
    /// [`Error::Access`]: policy forbids it. [`Error::Again`]: not now. [`Error::TimedOut`],
    /// `Os(ENOTCONN)`: the router has ended.
    pub fn route(&mut self, route: Route) -> Result<Option<Direct>> {
        let s = self.session;
        let (e, [fd, ..]) = self.ask(Message::Route(route), now_ns() + ROUTER_ANSWERS_WITHIN_NS)?;
        let Message::Routed(routed) = e.message else {
            return Err(s.broken(format_args!("no ROUTED")));
        };
        match fd {
            _ if e.status != 0 => Err(s.refusal(e.status, &routed.cause)),
            None if routed.kind == route_kind::RELAYED => Ok(None),
            Some(fd) => Ok(Some(Direct { routed, fd })),
            None => Err(refuse!(
                Os(libc::EMFILE),
                "the link that the router made is one descriptor \
                 too many for this process (`ulimit -n`)"
            )),
        }
    }

    /// Begins to listen at a port of the connection manager, or (`on` false) ends it.
    ///
    /// # Errors
    /// With a reason: [`Error::AddressInUse`]: another session of the address listens there;
    /// [`Error::Os`]`(EDQUOT)`: the session listens at as many ports as it may. As
    /// [`RequestGuard::route`].
    pub fn listen(&mut self, service: Service, on: bool) -> Result<()> {
        let s = self.session;
        let message = if on { Message::Listen(service) } else { Message::Unlisten(service) };
        let (e, _) = self.ask(message, now_ns() + ROUTER_ANSWERS_WITHIN_NS)?;
        match e.status {
            0 => Ok(()),
            status => Err(refused(
                Error::from_errno(status.wrapping_neg()),
                format_args!(
                    "the router at {}: port {} of space {:#x}: {}",
                    s.at,
                    service.port,
                    service.space,
                    if Error::from_errno(status.wrapping_neg()) == Error::AddressInUse {
                        "another process of this address listens there"
                    } else {
                        "the session may have no further listener, or has none there"
                    }
                ),
            )),
        }
    }

    /// Passes the messages that arrived during the request to `take`: the socket wakes no thread
    /// for them any more.
    pub fn arrivals(&mut self, take: impl FnMut(Arrival)) {
        core::mem::take(&mut self.inner.aside).into_iter().for_each(take);
    }

    /// Sends a request and waits for the answer.
    fn ask(&mut self, message: Message, until: u64) -> Result<(Envelope, Fds)> {
        let RequestGuard { session: s, inner } = self;
        if s.is_gone() {
            return Err(s.lost());
        }
        let request = inner.client.ask(message);
        loop {
            match send(s.fd.as_fd(), &request, None) {
                Ok(()) => break,
                Err(Error::Again) => s.wait(libc::POLLOUT, until)?,
                Err(_) => return Err(s.lost()),
            }
        }
        loop {
            match s.receive_one(inner)? {
                Received::Answer(e, fds) => return Ok((e, fds)),
                Received::Something => {}
                Received::Nothing => s.wait(libc::POLLIN, until)?,
            }
        }
    }
}

impl Session {
    /// Sleeps until the socket is ready.
    fn wait(&self, events: i16, until: u64) -> Result<()> {
        let left = until.saturating_sub(now_ns());
        if left == 0 {
            return Err(refuse!(TimedOut, "the router at {} does not answer", self.at));
        }
        poll(self.fd.as_fd(), events, left);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_gone() {
            let bye = Message::Bye(Bye { errno: 0, text: Text::EMPTY });
            // The router sees the end of the socket too, so a failed send does no harm.
            let _ = send(self.fd.as_fd(), &Envelope::new(0, bye), None);
        }
        self.empty(&mut [0; MESSAGE_MAX + 1]);
    }
}

/// The HELLO of this process. `token`: of the session to resume; zeroes: none.
pub(super) fn hello(qpns: u32, token: [u8; 64]) -> Hello {
    Hello {
        versions: VERSIONS,
        features: feature::DIRECT
            | if qpns > 0 { feature::RELAY | feature::GROW | feature::HEADERS } else { 0 },
        mode: mode::SWITCH,
        qpns,
        ffr_id: ffr_id(),
        program: program(),
        token,
    }
}

/// The rings of a WELCOME.
pub(super) fn rings_of(w: &Welcome, fds: [Option<Foreign>; 3]) -> Result<Option<Relay>> {
    match w.features & feature::RELAY {
        0 => Ok(None),
        _ => Relay::open(
            RingDescriptors::from_descriptors(fds.map(|fd| fd.map(Foreign::trusted)))?,
            w.rings,
            w.features & feature::GROW != 0,
        )
        .map(|relay| Some(relay.with_headers(w.features & feature::HEADERS != 0))),
    }
}

/// Checks a WELCOME for the fields that a session needs, which sent this HELLO.
pub(super) fn check(w: &Welcome, wanted: &Hello) -> Result<(), &'static str> {
    let (base, count) = w.qpns;
    let unicast = crate::addr::Endpoint::new(w.gids[0], 0, 0).is_unicast();
    let needed = wanted.features & (feature::DIRECT | feature::REMOTE);
    if !(VERSIONS.0..=VERSIONS.1).contains(&w.version)
        || w.mode != wanted.mode
        || w.features & needed != needed
    {
        return Err("a version or mode that was not requested");
    }
    if !unicast {
        return Err("no address");
    }
    if wanted.qpns > 0 && (count < wanted.qpns || base == 0 || base % QPN_UNIT != 0) {
        return Err("other queue pair numbers than were requested");
    }
    Ok(())
}

/// The name of this process.
fn program() -> Text<64> {
    let mut name = [0u8; 16];
    // SAFETY: room for the 16 bytes that the call writes at most, the last of which is zero
    // (prctl(2)).
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    Text::new(String::from_utf8_lossy(&name).trim_end_matches('\0'))
}
