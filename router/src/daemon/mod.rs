//! The router as a process: its sockets, and the broker's [`Action`](crate::broker::Action)s. The
//! first thread waits for all its descriptors in one epoll set. The second is the relay's worker.

mod activation;
mod admin;
mod answers;
mod check;
mod confine;
mod connection;
mod feed;
mod keyfile;
mod listener;
mod log;
mod metrics;
mod options;
mod peer_process;
mod relaying;
mod remoting;
mod report;
mod session_rings;
mod sessions;
mod supervised;
mod sys;
mod users;
mod wire;
mod worker;
mod worker_thread;

pub use admin::{parse as parse_request, Request};
pub use check::check;
pub use options::{default_policy, read_policy, Options};
pub use users::Users;

use crate::broker::{Broker, Keys, SessionId};
use crate::nic;
use crate::policy::Policy;
use activation::Activation;
use admin::Admin;
use confine::Fence;
use connection::Connection;
use feed::Feed;
use gdrcore_net::clock::{now_ns, random_seed};
use gdrcore_net::via::proto::MESSAGE_MAX;
use gdrcore_net::via::wire::Buffer;
use keyfile::KeyFile;
use listener::Listener;
use log::Log;
use metrics::Metrics;
use peer_process::namespace;
use relaying::RelayWorker;
use remoting::RemoteWorkers;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use supervised::Supervised;
use sys::{Epoll, Ready, SocketKind};

/// Connections at the admin socket.
const ADMINS: usize = 8;
/// Descriptors for everything but sessions.
const SPARE: usize = 64;
/// Descriptors of a session: its socket, its process and its bell. Ends of links exist only until
/// they are sent.
const PER_SESSION: usize = 3;
/// Descriptors of a session for traffic with other hosts.
const TO_HOSTS: usize = 2;
/// Descriptors of a session on a device of the router: its sockets, its file, and some completion
/// channels.
const ON_DEVICE: usize = 12;

/// The time of a drain by SIGTERM.
const DRAIN_NS: u64 = 60_000_000_000;

/// Epoll tokens: the upper half is the kind of descriptor, the lower one its number.
const SIGNALS: u64 = 1 << 32;
const LISTENER: u64 = 2 << 32;
const SOCKET: u64 = 3 << 32;
const PROCESS: u64 = 4 << 32;
const ADMIN_LISTENER: u64 = 5 << 32;
const ADMIN: u64 = 6 << 32;
const RELAY: u64 = 7 << 32;
const REMOTE: u64 = 16 << 32;
const METRICS_LISTENER: u64 = 8 << 32;
const METRICS: u64 = 9 << 32;
const FEED_LISTENER: u64 = 14 << 32;
const FEED: u64 = 15 << 32;
const KIND: u64 = !0 << 32;

/// A router.
pub struct Daemon {
    file: Option<PathBuf>,
    rate_limits: Vec<(i32, Option<u64>)>,
    users: Users,
    fence: Fence,
    broker: Broker,
    /// `None`: sessions cannot be resumed.
    keys: Option<KeyFile>,
    supervised: Supervised,
    epoll: Epoll,
    signals: OwnedFd,
    /// By their tokens.
    listeners: BTreeMap<u64, Listener>,
    admin: Option<Listener>,
    admins: BTreeMap<u64, Admin>,
    connections: BTreeMap<SessionId, Connection>,
    relaying: RelayWorker,
    remoting: RemoteWorkers,
    metrics: Option<Metrics>,
    /// `None`: the map is a file, or there are no other hosts.
    feed: Option<Feed>,
    /// A spare descriptor. If no other is free, it is closed for a moment, to accept and close a
    /// waiting connection.
    reserve: Option<OwnedFd>,
    most: usize,
    last_token: u64,
    buffer: Box<Buffer>,
    /// `None`: it says nothing of who comes and goes.
    log: Option<Log>,
}

impl Daemon {
    /// Opens all sockets.
    ///
    /// # Errors
    /// In words.
    pub fn open(options: &Options) -> Result<Daemon, String> {
        // Before any descriptor is opened, because the inherited ones have fixed numbers.
        let mut given = Activation::from_environment();
        let users = Users::default();
        let policy = options.policy(&users)?;
        users.close();
        options.check_firewall(&policy)?;
        policy.host.as_ref().map_or(Ok(()), |host| nic::check(&host.at))?;
        let said = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
        let epoll = Epoll::new().map_err(said("epoll"))?;
        let signals =
            sys::signals(&[libc::SIGHUP, libc::SIGTERM, libc::SIGINT]).map_err(said("signalfd"))?;
        epoll.add(signals.as_fd(), SIGNALS).map_err(said("epoll"))?;
        let metrics = policy
            .metrics
            .map(|at| Metrics::open(at, now_ns(), &epoll, METRICS_LISTENER))
            .transpose()?;
        let mut devices = remoting::open(&policy)?;
        let fence = confine::landlock(&policy, options)?;
        if fence == Fence::Whole {
            remoting::open_nics_anew(&mut devices)?;
        }
        let admin = policy.admin.as_deref();
        let admin = admin.map(|path| given.listen(path, SocketKind::Stream, 0o600, false));
        let admin = admin.transpose()?;
        if let Some(admin) = &admin {
            epoll.add(admin.fd(), ADMIN_LISTENER).map_err(said("epoll"))?;
        }
        let at = policy.host.as_ref().map(|host| &host.at);
        let relaying = RelayWorker::start(at, at.and_then(|at| given.udp(at)))?;
        epoll.add(relaying.fd(), RELAY).map_err(said("epoll"))?;
        let gids: Vec<_> =
            devices.iter().map(|(name, device)| (name.clone(), device.gid())).collect();
        let remoting = RemoteWorkers::start(devices)?;
        epoll.add(remoting.fd(), REMOTE).map_err(said("epoll"))?;
        let feed = Feed::open(&policy, &epoll)?;
        let keys = key_file(&policy, options);
        let epoch = match &keys {
            Some((file, _)) => file.life(),
            None => random_seed().map_err(|e| format!("random numbers: {e}"))?,
        };
        let each = PER_SESSION
            + if relaying.mtu().is_some() { TO_HOSTS } else { 0 }
            + if remoting.is_used() { ON_DEVICE } else { 0 };
        let most = sys::raise_descriptors().saturating_sub(SPARE) / each;
        let mut daemon = Daemon {
            file: options.file.clone(),
            rate_limits: options.rate_limits.clone(),
            users,
            fence,
            broker: Broker::new(policy, epoch, namespace),
            keys: None,
            supervised: Supervised::from_environment(),
            epoll,
            signals,
            listeners: BTreeMap::new(),
            admin,
            admins: BTreeMap::new(),
            connections: BTreeMap::new(),
            relaying,
            remoting,
            metrics,
            feed,
            reserve: reserve(),
            most,
            last_token: 0,
            buffer: Box::new([0; MESSAGE_MAX + 1]),
            log: options.verbose.then(Log::from_environment),
        };
        gids.iter().for_each(|(name, gid)| daemon.broker.note_device(name, *gid));
        if options.isolated {
            daemon.broker.isolate();
        }
        if let Some((file, keys)) = keys {
            daemon.broker.resume_by(keys);
            daemon.keys = Some(file);
        }
        if let Some(mtu) = daemon.relaying.mtu() {
            daemon.broker.set_mtu(mtu);
        }
        daemon.review();
        let policy = daemon.broker.policy().clone();
        daemon.listen(&policy, &mut given)?;
        given.complain();
        confine::seccomp(&policy, fence)?;
        daemon.say(format_args!("is confined: {}", fence.name()));
        Ok(daemon)
    }

    /// Serves until a drain ends (SIGTERM, or a request) or a signal ends it at once (SIGINT, a
    /// second SIGTERM). SIGHUP reads the policy again.
    ///
    /// # Errors
    /// The relay's worker has failed.
    pub fn run(&mut self) -> Result<(), String> {
        let mut ready: Vec<Ready> = Vec::new();
        self.supervised.ready();
        loop {
            self.epoll.wait(self.patience(), &mut ready);
            for r in &ready {
                if r.token == SIGNALS {
                    while let Some(signal) = sys::next_signal(self.signals.as_fd()) {
                        if self.handle_signal(signal) {
                            return Ok(());
                        }
                    }
                    continue;
                }
                self.attend(r);
            }
            self.broker.tick(now_ns());
            if self.broker.take_end_of_learning(now_ns()) {
                self.keys.iter_mut().for_each(KeyFile::settle);
                self.broker.serve_waiting(now_ns());
            }
            self.perform();
            self.relaying.catch_up(&self.broker, now_ns());
            if self.broker.is_drained(now_ns()) {
                self.say(format_args!("has drained"));
                self.retire();
                return Ok(());
            }
            self.supervised.tick(now_ns());
            if let Some(metrics) = &mut self.metrics {
                metrics.tick(now_ns());
            }
            if let Some(log) = &mut self.log {
                log.tick(now_ns());
            }
            if !self.relaying.is_alive() {
                return Err("the relay's worker has failed".into());
            }
            if !self.remoting.is_alive() {
                return Err("the worker of a device has failed".into());
            }
        }
    }

    /// Does what a signal asks for. True: the router ends.
    fn handle_signal(&mut self, signal: i32) -> bool {
        match signal {
            libc::SIGTERM if !self.is_draining() => self.drain(DRAIN_NS),
            libc::SIGHUP => {
                if let Err(what) = self.reload() {
                    mention(format_args!("the policy stays as it was: {what}"));
                }
            }
            _ => {
                self.say(format_args!("ends by signal {signal}"));
                self.retire();
                return true;
            }
        }
        false
    }

    /// Refuses new sessions and routes, and ends after so many nanoseconds or with the last
    /// session.
    fn drain(&mut self, ns: u64) {
        let now = now_ns();
        self.broker.drain(now, now.saturating_add(ns));
        self.perform();
        self.supervised.stopping();
        self.say(format_args!("drains for {} ms at most", ns / 1_000_000));
    }

    fn is_draining(&self) -> bool {
        self.broker.drains_until().is_some()
    }

    /// Tells the workers what has changed of policy and limits.
    fn review(&mut self) {
        self.relaying.review(&self.broker);
        self.remoting.review(&self.broker);
    }

    /// Prepares the end: without sessions the next life need not wait for any.
    fn retire(&mut self) {
        if self.broker.blocks_given() == 0 && !self.broker.is_recovering() {
            self.keys.iter_mut().for_each(KeyFile::retire);
        }
    }

    /// Milliseconds until the next deadline; -1: there is none.
    fn patience(&self) -> i32 {
        let metrics = self.metrics.as_ref().and_then(Metrics::deadline);
        let others = metrics.into_iter().chain(self.supervised.deadline());
        let others = others.chain(self.relaying.next_catch_up(&self.broker));
        let others = others.chain(self.log.as_ref().and_then(Log::deadline));
        let first = self.broker.deadline().into_iter().chain(others).min();
        let left = first.map(|at| at.saturating_sub(now_ns()).div_ceil(1_000_000));
        left.map_or(-1, |ms| i32::try_from(ms).unwrap_or(i32::MAX))
    }

    fn attend(&mut self, r: &Ready) {
        let id = r.token as u32;
        match r.token & KIND {
            LISTENER => self.let_in(r.token),
            SOCKET => self.converse(id, r),
            PROCESS => self.end_session(id),
            ADMIN_LISTENER => self.let_admins_in(),
            ADMIN => self.serve_admin(r),
            RELAY | REMOTE => self.throw_out(),
            METRICS_LISTENER => self.let_readers_in(),
            METRICS => self.serve_reader(r),
            FEED_LISTENER => self.let_adapter_in(),
            FEED => self.serve_adapter(r),
            _ => {}
        }
    }

    /// Listens at exactly the sockets of a policy. If one fails, nothing changes.
    fn listen(&mut self, policy: &Policy, given: &mut Activation) -> Result<(), String> {
        let wanted: Vec<&PathBuf> = policy
            .listen
            .iter()
            .chain(policy.tenants.iter().filter_map(|t| t.listen.as_ref()))
            .collect();
        let mut fresh = Vec::new();
        for path in &wanted {
            if !self.listeners.values().any(|l| l.path() == *path) {
                let is_tenants = policy.listen.as_ref() != Some(*path);
                let listener = given.listen(path, SocketKind::Packets, 0o666, is_tenants)?;
                let token = self.next_token(LISTENER);
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

    /// Reads the policy again. A policy with a fault changes nothing.
    fn reload(&mut self) -> Result<(), String> {
        self.read_again().map_err(|what| self.fence.explain(what))
    }

    fn read_again(&mut self) -> Result<(), String> {
        let Some(file) = &self.file else { return Err("there is no policy file".into()) };
        let mut policy = read_policy(file, &self.users)?;
        policy.limit_by_ffr_id(&self.rate_limits)?;
        self.fence.admits(&policy)?;
        self.remoting.admits(&policy)?;
        let (admin, present) = (self.admin.as_ref().map(Listener::path), self.broker.policy());
        let host = |policy: &Policy| {
            policy.host.as_ref().map(|h| (h.id.clone(), h.at, h.feed().map(PathBuf::from)))
        };
        let fixed = [
            ("`admin`", policy.admin.is_none() || policy.admin.as_deref() == admin),
            ("`key`", policy.key == present.key),
            ("`metrics`", policy.metrics == self.metrics.as_ref().map(Metrics::address)),
            ("`gpus`", policy.gpus == present.gpus),
            ("`id`, `address`, `port` and `feed` of [host]", host(&policy) == host(present)),
        ];
        if let Some((keys, _)) = fixed.iter().find(|(_, is_same)| !is_same) {
            return Err(format!("{keys} can't change while the router runs"));
        }
        self.listen(&policy, &mut Activation::default())?;
        self.broker.reload(now_ns(), policy);
        self.perform();
        self.review();
        self.publish();
        self.say(format_args!("has read the policy anew"));
        Ok(())
    }

    fn next_token(&mut self, kind: u64) -> u64 {
        self.last_token += 1;
        kind | self.last_token
    }

    fn say(&self, words: std::fmt::Arguments<'_>) {
        if self.log.is_some() {
            mention(words);
        }
    }
}

/// The key of tokens. Without a key the router works, but its sessions end with it.
fn key_file(policy: &Policy, options: &Options) -> Option<(KeyFile, Keys)> {
    let path = key_path(policy, options)?;
    KeyFile::open(&path, now_ns())
        .map_err(|what| note(format_args!("{what}: sessions will not be resumed")))
        .ok()
}

/// The path of the key: as the policy says, or beside another file of the router.
fn key_path(policy: &Policy, options: &Options) -> Option<PathBuf> {
    policy.key.clone().or_else(|| {
        let beside = policy.admin.as_ref().or(options.listen.as_ref())?;
        let mut path = beside.as_os_str().to_owned();
        path.push(".key");
        Some(path.into())
    })
}

/// A line on standard error, which may have been closed.
pub fn note(words: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(line(words).as_bytes());
}

fn line(words: std::fmt::Arguments<'_>) -> String {
    format!("gdrcore-routerd: {words}\n")
}

/// [`note`] for the thread that serves sessions: it does not wait. False: the descriptor takes no
/// more now, as a pipe does that nobody reads. One that was closed takes everything.
///
/// What is writable takes PIPE_BUF bytes (pipe(7); a socket has more room), so a longer line is
/// cut.
fn offer(to: BorrowedFd<'_>, words: std::fmt::Arguments<'_>) -> bool {
    let mut line = line(words);
    if line.len() > libc::PIPE_BUF {
        let end = (0..libc::PIPE_BUF).rev().find(|&at| line.is_char_boundary(at));
        line.truncate(end.unwrap_or(0));
        line.push('\n');
    }
    let takes = sys::is_ready(to, libc::POLLOUT);
    if takes {
        sys::put(to, line.as_bytes());
    }
    takes
}

/// [`offer`] to standard error.
fn mention(words: std::fmt::Arguments<'_>) {
    offer(std::io::stderr().as_fd(), words);
}

/// The spare descriptor.
fn reserve() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}
