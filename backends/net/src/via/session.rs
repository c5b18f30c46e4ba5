//! A tenant's connection to its router.
//!
//! Two kinds of threads use it: one that connects a queue pair asks and waits for the answer,
//! without the engine's lock; whoever runs the engine looks now and then what the router has to say
//! ([`Session::hear`]), and never waits. What comes while a question is open is put aside for the
//! next look.

use super::client::{Client, Step};
use super::find::{ffr_id, SocketPath};
use super::proto::{feature, MESSAGE_MAX};
use super::proto::{
    link_flag, mode, route_event, route_kind, Bye, Envelope, Hello, Message, Route, Routed,
    Service, Text, Welcome, FDS_MAX, VERSION,
};
use super::wire::{receive, send, Buffer, Look};
use crate::clock::now_ns;
use crate::shm::relay::{Ends, Relay};
use crate::sys::{errno, last_error, set_option};
use core::sync::atomic::{AtomicBool, Ordering};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::reason::refused;
use gdrcore_core::refuse;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A router answers within this time, or counts as gone.
const ANSWER_NS: u64 = 5_000_000_000;
/// Links of others that are put aside; one more is refused, and its owner asks again.
const ASIDE: usize = 32;
/// Messages that one look takes.
const LOOKS: usize = 64;

/// What the router brings.
#[derive(Debug)]
pub enum Arrival {
    /// The socket of another session's link to this one.
    Link {
        /// The address of that session's tenant.
        gid: [u8; 16],
        /// The session's number.
        peer: u32,
        /// Memory may be lent over it.
        loans: bool,
        /// The socket.
        fd: OwnedFd,
    },
    /// Nothing may come from, or go to, that session any more.
    Revoked {
        /// The session's number.
        peer: u32,
    },
}

/// The descriptors of a message.
type Fds = [Option<OwnedFd>; FDS_MAX];

/// What a look at the socket found.
#[allow(clippy::large_enum_variant)]
enum Heard {
    Nothing,
    /// A message, which was dealt with.
    Something,
    /// The answer to the last question, and its descriptors.
    Answer(Envelope, Fds),
}

struct Inner {
    client: Client,
    /// That the router is gone was told.
    told: bool,
    aside: heapless::Vec<Arrival, ASIDE>,
    buffer: Buffer,
}

/// A session, as its process has it.
pub struct Session {
    fd: OwnedFd,
    at: SocketPath,
    welcome: Welcome,
    gone: AtomicBool,
    inner: Mutex<Inner>,
}

/// A link that the router has made.
#[derive(Debug)]
pub struct Direct {
    /// What the router said of it.
    pub routed: Routed,
    /// Its socket.
    pub fd: OwnedFd,
}

impl Direct {
    /// Memory may be lent over it.
    pub fn loans(&self) -> bool {
        self.routed.flags & link_flag::NO_LOANS == 0
    }
}

/// The right to ask, and to be answered: one thread at a time.
pub struct Asker<'s> {
    session: &'s Session,
    inner: MutexGuard<'s, Inner>,
}

impl Session {
    /// Connects to a router and tells it who asks. `qpns`: how many queue pair numbers are wanted,
    /// a power of two from [`QPN_UNIT`] on; 0: only the addresses are. Waits for the router, five
    /// seconds at most. The second: the session's rings, where there are numbers and the router
    /// relays.
    ///
    /// # Errors
    /// With words: [`Error::NoDevice`]: nobody listens there. [`Error::TimedOut`]: nobody answers.
    /// [`Error::Access`]: the router knows no tenant that this process could be. Others as the
    /// router said.
    pub fn open(at: &SocketPath, qpns: u32) -> Result<(Session, Option<Relay>)> {
        let until = now_ns() + ANSWER_NS;
        let fd = connect(at, until)?;
        // Room for the few messages that a process may owe; what it does not read must not fill the
        // system's memory.
        set_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 64i32 << 10)?;
        let inner = Inner {
            client: Client::new(),
            told: false,
            aside: heapless::Vec::new(),
            buffer: [0; MESSAGE_MAX + 1],
        };
        let welcome = Welcome::refused(Text::EMPTY);
        let mut session = Session {
            fd,
            at: *at,
            welcome,
            gone: AtomicBool::new(false),
            inner: Mutex::new(inner),
        };
        let hello = Hello {
            versions: (VERSION, VERSION),
            features: if qpns > 0 { feature::DIRECT | feature::RELAY } else { feature::DIRECT },
            mode: mode::SWITCH,
            qpns,
            ffr_id: ffr_id(),
            program: program(),
            token: [0; 64],
        };
        let (e, [up, down, bell, _]) = session.asker().ask(Message::Hello(hello), until)?;
        let Message::Welcome(welcome) = e.message else {
            return Err(session.broken(format_args!("no WELCOME")));
        };
        if e.status != 0 {
            return Err(session.said(e.status, &welcome.cause));
        }
        check(&welcome, qpns).map_err(|what| session.broken(format_args!("{what}")))?;
        session.welcome = welcome;
        let relay = match welcome.features & feature::RELAY {
            0 => None,
            _ => Some(Relay::open(Ends::of([up, down, bell])?, welcome.rings)?),
        };
        Ok((session, relay))
    }

    /// Bytes of payload of a packet, at most.
    pub fn mtu(&self) -> u32 {
        self.welcome.mtu
    }

    /// What the router said of the tenant.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The tenant's virtual address.
    pub fn gid(&self) -> [u8; 16] {
        self.welcome.gids[0]
    }

    /// Readable when the router says something, or is gone.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether the router is gone, or has ended the session. Links that were made go on.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Waits until no other thread asks.
    pub fn asker(&self) -> Asker<'_> {
        Asker { session: self, inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Gives `take` what has come. Never waits: where a thread asks, what comes is put aside for
    /// the next look. True, once: the router is gone, and its socket would be readable for ever.
    pub fn hear(&self, take: impl FnMut(Arrival)) -> bool {
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        for _ in 0..LOOKS {
            if self.is_gone()
                || !matches!(self.look(&mut inner), Ok(Heard::Something | Heard::Answer(..)))
            {
                break;
            }
        }
        core::mem::take(&mut inner.aside).into_iter().for_each(take);
        self.is_gone() && !core::mem::replace(&mut inner.told, true)
    }

    /// Takes one message, if there is one, and does what it asks for but for answers, which are
    /// returned with their descriptor.
    fn look(&self, inner: &mut Inner) -> Result<Heard> {
        let mut came = match receive(self.fd.as_fd(), &mut inner.buffer) {
            Look::Message(came) => came,
            Look::Nothing => return Ok(Heard::Nothing),
            Look::Gone => return Err(self.lost()),
        };
        // One that this process had no room for was there all the same.
        let fds = if came.cut { came.count.max(1) } else { came.count };
        let step = inner.client.take(&inner.buffer[..came.len], fds);
        match step.map_err(|e| self.broken(format_args!("{e:?}")))? {
            Step::Answer(e) => return Ok(Heard::Answer(e, came.fds)),
            Step::Link(seq, link) => {
                let loans = link.flags & link_flag::NO_LOANS == 0;
                let arrival = came.fds[0].take().map(|fd| {
                    inner.aside.push(Arrival::Link { gid: link.gid, peer: link.peer, loans, fd })
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
                // It must not get lost: a link of the same session that was not looked at is one of
                // those that end.
                let of_peer =
                    |a: &Arrival| matches!(a, Arrival::Link { peer, .. } if *peer == e.peer);
                inner.aside.retain(|a| !of_peer(a));
                if inner.aside.push(Arrival::Revoked { peer: e.peer }).is_err() {
                    return Err(self.broken(format_args!("more news than there is room for")));
                }
            }
            Step::Ping(seq) => self.answer(&Envelope::answer(seq, 0, Message::Ping(())))?,
            Step::Event(_) | Step::Nothing => {}
            Step::End(_) => return Err(self.lost()),
        }
        Ok(Heard::Something)
    }

    /// A router that does not read is one that is about to be found dead.
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
            "the router at {} is gone, or has ended the session: \
             links that stand go on, new ones are not made",
            self.at
        )
    }

    #[cold]
    fn broken(&self, what: core::fmt::Arguments<'_>) -> Error {
        self.gone.store(true, Ordering::Relaxed);
        refuse!(Os(libc::EPROTO), "the router at {} says what no router says: {what}", self.at)
    }

    /// The error that the router answered with, in its words.
    #[cold]
    fn said(&self, status: i32, cause: &Text<256>) -> Error {
        refused(
            Error::from_errno(status.wrapping_neg()),
            format_args!("the router at {}: {cause}", self.at),
        )
    }
}

impl Asker<'_> {
    /// Asks for a link to the owner of a queue pair. `None`: it is reached by way of the router's
    /// rings.
    ///
    /// # Errors
    /// With words: [`Error::Os`]`(EHOSTUNREACH)`: nobody has the address or the number.
    /// [`Error::Access`]: policy forbids it. [`Error::Again`]: not now. [`Error::TimedOut`],
    /// `Os(ENOTCONN)`: there is no router any more.
    pub fn route(&mut self, route: Route) -> Result<Option<Direct>> {
        let s = self.session;
        let (e, [fd, ..]) = self.ask(Message::Route(route), now_ns() + ANSWER_NS)?;
        let Message::Routed(routed) = e.message else {
            return Err(s.broken(format_args!("no ROUTED")));
        };
        match fd {
            _ if e.status != 0 => Err(s.said(e.status, &routed.cause)),
            None if routed.kind == route_kind::RELAYED => Ok(None),
            Some(fd) => Ok(Some(Direct { routed, fd })),
            None => Err(refuse!(
                Os(libc::EMFILE),
                "the link that the router made is one descriptor \
                 too many for this process (`ulimit -n`)"
            )),
        }
    }

    /// Says that a port of the connection manager is listened at, or (`on` false) is not any more.
    ///
    /// # Errors
    /// With words: [`Error::AddressInUse`]: another session of the address listens there;
    /// [`Error::Os`]`(EDQUOT)`: it listens at as many as it may. As [`Asker::route`].
    pub fn listen(&mut self, service: Service, on: bool) -> Result<()> {
        let s = self.session;
        let message = if on { Message::Listen(service) } else { Message::Unlisten(service) };
        let (e, _) = self.ask(message, now_ns() + ANSWER_NS)?;
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
                        "no listener more, or none there"
                    }
                ),
            )),
        }
    }

    /// Gives `take` what has come while this thread asked: nobody is woken by it any more.
    pub fn arrivals(&mut self, take: impl FnMut(Arrival)) {
        core::mem::take(&mut self.inner.aside).into_iter().for_each(take);
    }

    /// Asks, and waits for the answer.
    fn ask(&mut self, message: Message, until: u64) -> Result<(Envelope, Fds)> {
        let Asker { session: s, inner } = self;
        if s.is_gone() {
            return Err(s.lost());
        }
        let question = inner.client.ask(message);
        loop {
            match send(s.fd.as_fd(), &question, None) {
                Ok(()) => break,
                Err(Error::Again) => s.wait(libc::POLLOUT, until)?,
                Err(_) => return Err(s.lost()),
            }
        }
        loop {
            match s.look(inner)? {
                Heard::Answer(e, fds) => return Ok((e, fds)),
                Heard::Something => {}
                Heard::Nothing => s.wait(libc::POLLIN, until)?,
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
            // The router sees the end of the socket, too.
            let _ = send(self.fd.as_fd(), &Envelope::new(0, bye), None);
        }
    }
}

/// What a WELCOME must hold to be used.
fn check(w: &Welcome, qpns: u32) -> Result<(), &'static str> {
    let (base, count) = w.qpns;
    let unicast = crate::addr::Endpoint::new(w.gids[0], 0, 0).is_unicast();
    if w.version != VERSION || w.mode != mode::SWITCH || w.features & feature::DIRECT == 0 {
        return Err("a version or mode that was not asked for");
    }
    if !unicast {
        return Err("no address");
    }
    if qpns > 0 && (count < qpns || base == 0 || base % QPN_UNIT != 0) {
        return Err("other queue pair numbers than were asked for");
    }
    Ok(())
}

fn connect(at: &SocketPath, until: u64) -> Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let raw = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if raw < 0 {
        return Err(last_error());
    }
    // SAFETY: new, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let (addr, len) = at.to_sockaddr();
    loop {
        // SAFETY: `len` bytes of the address are initialised and live through the call.
        if unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) } == 0 {
            return Ok(fd);
        }
        match errno() {
            // Many connect at once: the socket of a listener cannot be waited for.
            libc::EAGAIN | libc::EINTR if now_ns() < until => {
                std::thread::sleep(core::time::Duration::from_millis(2))
            }
            libc::EAGAIN | libc::EINTR => {
                return Err(refuse!(TimedOut, "router '{at}': nobody takes connections there"))
            }
            libc::EACCES | libc::EPERM => {
                return Err(refuse!(
                    Access,
                    "router '{at}': this user may not connect \
                     to the socket, or not look into its folder"
                ))
            }
            n => {
                let words = match n {
                    libc::ENOENT => "there is no such socket",
                    libc::ECONNREFUSED => "nobody listens there: the router is not running",
                    libc::EPROTOTYPE => "the socket is another program's",
                    _ => "no socket of a router",
                };
                return Err(refuse!(NoDevice, "router '{at}': {words} (errno {n})"));
            }
        }
    }
}

fn poll(fd: BorrowedFd<'_>, events: i16, ns: u64) {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let ms = i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX);
    // SAFETY: one live entry. What it returns is found out by whoever looks next.
    unsafe { libc::poll(&mut p, 1, ms) };
}

/// What this process is called.
fn program() -> Text<64> {
    let mut name = [0u8; 16];
    // SAFETY: room for the 16 bytes that the call writes at most, the last of which is zero
    // (prctl(2)).
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    Text::new(String::from_utf8_lossy(&name).trim_end_matches('\0'))
}
