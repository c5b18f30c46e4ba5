//! The router as a process: its sockets, and what becomes of the broker's [`Action`]s. One thread,
//! which never waits but for all of them; beside it the worker of the relay.

mod admin;
mod answers;
mod connection;
mod listener;
mod look;
mod metrics;
mod relaying;
mod report;
mod sys;
mod worker;

pub use admin::{parse as parse_request, Request};

use crate::broker::{Action, Broker, SessionId, State};
use crate::identity::Seen;
use crate::policy::{Policy, Unmatched};
use admin::Admin;
use connection::{Connection, Sent, Tokens};
use gdrcore_net::clock::{now_ns, random_seed};
use gdrcore_net::via::proto::{Envelope, Message, Routed, Text, MESSAGE_MAX};
use gdrcore_net::via::wire::{Buffer, Look};
use listener::Listener;
use look::{look, Host};
use metrics::Metrics;
use relaying::Relaying;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use sys::{Epoll, Kind, Ready};

/// Messages of one session that one round takes.
const BATCH: usize = 64;
/// Connections of one socket that one round takes.
const ACCEPTS: usize = 16;
/// Connections without an identity. One more ends the oldest.
const STRANGERS: usize = 64;
/// Connections of `gdrcore-routerctl`.
const ADMINS: usize = 8;
/// Descriptors that are not sessions'.
const SPARE: usize = 64;
/// Descriptors of a session: its socket, its process and its bell. Links are under way for a
/// moment.
const PER_SESSION: usize = 3;

/// What a token stands for: the upper half says which kind, the lower which one.
const SIGNALS: u64 = 1 << 32;
const LISTENER: u64 = 2 << 32;
const SOCKET: u64 = 3 << 32;
const PROCESS: u64 = 4 << 32;
const ADMIN_LISTENER: u64 = 5 << 32;
const ADMIN: u64 = 6 << 32;
const RELAY: u64 = 7 << 32;
const METRICS_LISTENER: u64 = 8 << 32;
const METRICS: u64 = 9 << 32;
const KIND: u64 = !0 << 32;

/// A router.
pub struct Daemon {
    file: Option<PathBuf>,
    rate_limits: Vec<(i32, Option<u64>)>,
    broker: Broker,
    epoll: Epoll,
    signals: OwnedFd,
    /// By their tokens.
    listeners: BTreeMap<u64, Listener>,
    admin: Option<Listener>,
    admins: BTreeMap<u64, Admin>,
    connections: BTreeMap<SessionId, Connection>,
    relaying: Relaying,
    metrics: Option<Metrics>,
    /// Given up for a moment where there is no other descriptor, so that who waits can be sent
    /// away.
    reserve: Option<OwnedFd>,
    most: usize,
    last_token: u64,
    buffer: Box<Buffer>,
    verbose: bool,
}

/// How a router is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The policy's file; `None`: every user is a tenant of its own, at [`Options::listen`].
    pub file: Option<PathBuf>,
    /// The socket where there is no file.
    pub listen: Option<PathBuf>,
    /// The admin socket where there is no file, or none in it.
    pub admin: Option<PathBuf>,
    /// Say on standard error who comes and goes.
    pub verbose: bool,
    /// Make no direct links: all goes by way of the router.
    pub isolated: bool,
    /// Rates of tenants by their `ffr_id`, see [`crate::policy::rate_limits`].
    pub rate_limits: Vec<(i32, Option<u64>)>,
}

/// Reads a policy.
///
/// # Errors
/// In words, with the file's name.
pub fn read_policy(file: &Path) -> Result<Policy, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    Policy::parse(&text).map_err(|fault| format!("{}: {fault}", file.display()))
}

/// The policy where there is no file: one network, and every user is a tenant of its own.
///
/// # Errors
/// In words: the path is no socket's.
pub fn default_policy(listen: &Path) -> Result<Policy, String> {
    if !listen.is_absolute() {
        return Err(format!("{}: an absolute path", listen.display()));
    }
    let empty = Policy::parse("").map_err(|fault| fault.what)?;
    Ok(Policy { listen: Some(listen.into()), unmatched: Unmatched::Uid, ..empty })
}

impl Options {
    fn policy(&self) -> Result<Policy, String> {
        let mut policy = match (&self.file, &self.listen) {
            (Some(file), _) => read_policy(file)?,
            (None, Some(listen)) => default_policy(listen)?,
            (None, None) => return Err("neither a policy file nor a socket to listen at".into()),
        };
        policy.admin = policy.admin.or_else(|| self.admin.clone());
        policy.limit_by_ffr_id(&self.rate_limits)?;
        Ok(policy)
    }
}

impl Daemon {
    /// Opens all sockets.
    ///
    /// # Errors
    /// In words.
    pub fn open(options: &Options) -> Result<Daemon, String> {
        let policy = options.policy()?;
        let said = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
        let epoll = Epoll::new().map_err(said("epoll"))?;
        let signals =
            sys::signals(&[libc::SIGHUP, libc::SIGTERM, libc::SIGINT]).map_err(said("signalfd"))?;
        epoll.add(signals.as_fd(), SIGNALS).map_err(said("epoll"))?;
        let admin = policy
            .admin
            .as_deref()
            .map(|path| Listener::open(path, Kind::Stream, 0o600, false))
            .transpose()?;
        if let Some(admin) = &admin {
            epoll.add(admin.fd(), ADMIN_LISTENER).map_err(said("epoll"))?;
        }
        let relaying = Relaying::start().map_err(said("relay"))?;
        epoll.add(relaying.fd(), RELAY).map_err(said("epoll"))?;
        let metrics = policy
            .metrics
            .map(|at| Metrics::open(at, now_ns(), &epoll, METRICS_LISTENER))
            .transpose()?;
        let epoch = random_seed().map_err(|e| format!("random numbers: {e}"))?;
        let most = sys::raise_descriptors().saturating_sub(SPARE) / PER_SESSION;
        let mut daemon = Daemon {
            file: options.file.clone(),
            rate_limits: options.rate_limits.clone(),
            broker: Broker::new(policy, epoch),
            epoll,
            signals,
            listeners: BTreeMap::new(),
            admin,
            admins: BTreeMap::new(),
            connections: BTreeMap::new(),
            relaying,
            metrics,
            reserve: reserve(),
            most,
            last_token: 0,
            buffer: Box::new([0; MESSAGE_MAX + 1]),
            verbose: options.verbose,
        };
        if options.isolated {
            daemon.broker.isolate();
        }
        daemon.relaying.review(&daemon.broker);
        let policy = daemon.broker.policy().clone();
        daemon.listen(&policy)?;
        Ok(daemon)
    }

    /// Serves until a signal ends it (SIGTERM, SIGINT); SIGHUP reads the policy anew.
    ///
    /// # Errors
    /// The relay's worker has failed. Else it ends by a signal alone.
    pub fn run(&mut self) -> Result<(), String> {
        let mut ready: Vec<Ready> = Vec::new();
        loop {
            self.epoll.wait(self.patience(), &mut ready);
            for r in &ready {
                if r.token == SIGNALS {
                    while let Some(signal) = sys::next_signal(self.signals.as_fd()) {
                        if signal != libc::SIGHUP {
                            self.say(format_args!("ends by signal {signal}"));
                            return Ok(());
                        }
                        if let Err(what) = self.reload() {
                            note(format_args!("the policy stays as it was: {what}"));
                        }
                    }
                    continue;
                }
                self.attend(r);
            }
            let mut actions = Vec::new();
            self.broker.tick(now_ns(), &mut actions);
            self.perform(actions);
            if let Some(metrics) = &mut self.metrics {
                metrics.tick(now_ns());
            }
            if !self.relaying.lives() {
                return Err("the relay's worker has failed".into());
            }
        }
    }

    /// Milliseconds until something is to be done without being asked for.
    fn patience(&self) -> i32 {
        let metrics = self.metrics.as_ref().and_then(Metrics::deadline);
        let first = self.broker.deadline().into_iter().chain(metrics).min();
        let left = first.map(|at| at.saturating_sub(now_ns()).div_ceil(1_000_000));
        left.map_or(-1, |ms| i32::try_from(ms).unwrap_or(i32::MAX))
    }

    fn attend(&mut self, r: &Ready) {
        let id = r.token as u32;
        match r.token & KIND {
            LISTENER => self.let_in(r.token),
            SOCKET => self.converse(id, r),
            PROCESS => self.gone(id),
            ADMIN_LISTENER => self.let_admins_in(),
            ADMIN => self.serve_admin(r),
            RELAY => self.throw_out(),
            METRICS_LISTENER => self.let_readers_in(),
            METRICS => self.serve_reader(r),
            _ => {}
        }
    }

    /// Listens at the sockets of a policy, and at no others. Where one can't be had, nothing has
    /// changed.
    fn listen(&mut self, policy: &Policy) -> Result<(), String> {
        let wanted: Vec<&PathBuf> = policy
            .listen
            .iter()
            .chain(policy.tenants.iter().filter_map(|t| t.listen.as_ref()))
            .collect();
        let mut fresh = Vec::new();
        for path in &wanted {
            if !self.listeners.values().any(|l| l.path() == *path) {
                let is_tenants = policy.listen.as_ref() != Some(*path);
                let listener = Listener::open(path, Kind::Packets, 0o666, is_tenants)?;
                self.last_token += 1;
                let token = LISTENER | self.last_token;
                self.epoll.add(listener.fd(), token).map_err(|e| format!("epoll: {e}"))?;
                fresh.push((token, listener));
            }
        }
        self.listeners.retain(|_, l| wanted.iter().any(|path| *path == l.path()));
        for (token, listener) in fresh {
            self.say(format_args!("listens at {}", listener.path().display()));
            self.listeners.insert(token, listener);
        }
        Ok(())
    }

    /// Reads the policy anew. All or nothing: what is wrong changes nothing.
    fn reload(&mut self) -> Result<(), String> {
        let Some(file) = &self.file else { return Err("there is no policy file".into()) };
        let mut policy = read_policy(file)?;
        policy.limit_by_ffr_id(&self.rate_limits)?;
        let admin = self.admin.as_ref().map(Listener::path);
        if policy.admin.is_some() && policy.admin.as_deref() != admin {
            return Err("`admin` can't change while the router runs".into());
        }
        if policy.metrics != self.metrics.as_ref().map(Metrics::at) {
            return Err("`metrics` can't change while the router runs".into());
        }
        self.listen(&policy)?;
        let mut actions = Vec::new();
        self.broker.reload(now_ns(), policy, &Host, &mut actions);
        self.perform(actions);
        self.relaying.review(&self.broker);
        self.say(format_args!("has read the policy anew"));
        Ok(())
    }

    fn let_in(&mut self, token: u64) {
        for _ in 0..ACCEPTS {
            let Some(listener) = self.listeners.get(&token) else { return };
            let path = listener.path().to_path_buf();
            let Some(fd) = self.accept(token) else { return };
            if self.connections.len() >= self.most {
                // Sent away: whoever is there keeps its place.
                continue;
            }
            let Some((seen, process)) = look(&path, fd.as_fd()) else { continue };
            self.make_room(&seen);
            let id = self.broker.connect(now_ns(), seen);
            let tokens =
                Tokens { socket: SOCKET | u64::from(id), process: PROCESS | u64::from(id) };
            match Connection::new(fd, process, tokens, &self.epoll) {
                Ok(connection) => drop(self.connections.insert(id, connection)),
                Err(_) => self.gone(id),
            }
        }
    }

    /// Takes the next connection. Where there is no descriptor for it, it is sent away with one
    /// that is kept for that: it would be told of again at once.
    fn accept(&mut self, token: u64) -> Option<OwnedFd> {
        let fd = match token {
            ADMIN_LISTENER => self.admin.as_ref()?.fd(),
            METRICS_LISTENER => self.metrics.as_ref()?.fd(),
            _ => self.listeners.get(&token)?.fd(),
        };
        let e = match sys::accept(fd) {
            Ok(fd) => return Some(fd),
            Err(e) => e,
        };
        if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            self.reserve = None;
            drop(sys::accept(fd));
            self.reserve = reserve();
        }
        None
    }

    /// Of too many without an identity the oldest goes: of the newcomer's user, if that has any.
    fn make_room(&mut self, newcomer: &Seen) {
        let strangers: Vec<(SessionId, Option<u32>)> = self
            .broker
            .sessions()
            .filter(|(_, s)| matches!(s.state, State::New(_)))
            .map(|(id, s)| (id, s.seen.uid))
            .collect();
        if strangers.len() < STRANGERS {
            return;
        }
        let same = strangers.iter().find(|(_, uid)| *uid == newcomer.uid);
        if let Some(&(id, _)) = same.or(strangers.first()) {
            let mut actions = Vec::new();
            self.broker.expel(
                now_ns(),
                id,
                libc::EAGAIN,
                "too many connections without a HELLO",
                &mut actions,
            );
            self.perform(actions);
        }
    }

    /// Takes what a session has sent, and sends what it could not take before.
    fn converse(&mut self, id: SessionId, r: &Ready) {
        if r.write {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            if connection.flush(&self.epoll) == Sent::Lost {
                return self.gone(id);
            }
        }
        if !r.read {
            return;
        }
        for _ in 0..BATCH {
            let Some(connection) = self.connections.get(&id) else { return };
            match connection.receive(&mut self.buffer) {
                Look::Message(m) => {
                    let mut actions = Vec::new();
                    let fds = if m.cut { m.count.max(1) } else { m.count };
                    self.broker.handle(
                        now_ns(),
                        id,
                        &self.buffer[..m.len],
                        fds,
                        &Host,
                        &mut actions,
                    );
                    drop(m);
                    self.perform(actions);
                }
                Look::Nothing => return,
                Look::Gone => return self.gone(id),
            }
        }
    }

    /// A session's process has ended, or its connection.
    fn gone(&mut self, id: SessionId) {
        let mut actions = Vec::new();
        self.broker.gone(now_ns(), id, &mut actions);
        self.perform(actions);
    }

    /// Ends sessions that have broken their rings.
    fn throw_out(&mut self) {
        for id in self.relaying.broken() {
            let mut actions = Vec::new();
            let why = "its rings hold what no program of ours writes, or it has let go of them";
            self.broker.expel(now_ns(), id, libc::EPROTO, why, &mut actions);
            self.perform(actions);
        }
    }

    /// Does what the broker wants, and what follows from that.
    fn perform(&mut self, actions: Vec<Action>) {
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Send(id, e) => self.send(id, &e, None, &mut queue),
                Action::Connect { caller, routed, owner, link } => match self.link(owner, &link) {
                    Ok(end) => self.send(caller, &routed, Some(end), &mut queue),
                    Err(why) => {
                        self.broker.link_failed(owner, link.seq);
                        let refused = Message::Routed(Routed::refused(Text::new(why)));
                        self.send(
                            caller,
                            &Envelope::answer(routed.seq, -libc::EAGAIN, refused),
                            None,
                            &mut queue,
                        );
                    }
                },
                Action::Join(id, e) => self.welcome(id, &e, &mut queue),
                Action::Listen(id, service, on) => self.relaying.listen(id, service, on),
                Action::End(id, why) => {
                    self.relaying.leave(id, !why.is_empty());
                    if self.connections.remove(&id).is_some() && !why.is_empty() {
                        self.say(format_args!("session {id} ended: {why}"));
                    }
                }
            }
        }
    }

    /// Sends one end of a new socket; the other end.
    fn link(&mut self, owner: SessionId, link: &Envelope) -> Result<OwnedFd, &'static str> {
        let Some(connection) = self.connections.get(&owner) else {
            return Err("the process there is gone");
        };
        let Ok((theirs, ours)) = sys::pair() else {
            return Err("the router has no descriptor left: ask again");
        };
        match connection.send_now(link, Some(&theirs)) {
            Sent::Gone => Ok(ours),
            Sent::Full => {
                Err("the process there takes no messages: it is stopped, or nobody polls there")
            }
            Sent::Lost => Err("the process there is gone"),
        }
    }

    /// Sends a WELCOME with new rings.
    fn welcome(&mut self, id: SessionId, e: &Envelope, queue: &mut VecDeque<Action>) {
        let mut more = Vec::new();
        let Some(connection) = self.connections.get(&id) else { return };
        match self.relaying.join(&self.broker, id).map(|ends| connection.send_rings(e, &ends)) {
            Ok(Sent::Gone) => {}
            Ok(Sent::Lost) => self.broker.gone(now_ns(), id, &mut more),
            Ok(Sent::Full) => self.broker.expel(
                now_ns(),
                id,
                libc::ENOBUFS,
                "the system has too much under way: again later",
                &mut more,
            ),
            Err(why) => self.broker.expel(now_ns(), id, libc::ENOMEM, why, &mut more),
        }
        queue.extend(more);
    }

    fn send(
        &mut self,
        id: SessionId,
        e: &Envelope,
        fd: Option<OwnedFd>,
        queue: &mut VecDeque<Action>,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut more = Vec::new();
        match connection.send(e, fd, &self.epoll) {
            Sent::Gone => {}
            Sent::Full => self.broker.expel(
                now_ns(),
                id,
                libc::ENOBUFS,
                "it does not read what it is sent",
                &mut more,
            ),
            Sent::Lost => self.broker.gone(now_ns(), id, &mut more),
        }
        queue.extend(more);
    }

    fn say(&self, words: std::fmt::Arguments<'_>) {
        if self.verbose {
            note(words);
        }
    }
}

/// A line on standard error, which may have been closed.
pub fn note(words: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("gdrcore-routerd: {words}\n").as_bytes());
}

/// A descriptor to give up.
fn reserve() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}
