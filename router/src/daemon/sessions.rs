//! Sessions' connections: accepts them, passes their messages to the broker, and performs its
//! actions.

use super::connection::{Connection, Sent, Tokens};
use super::peer_process::identify;
use super::sys::{self, Ready};
use super::{reserve, Daemon, ADMIN_LISTENER, FEED_LISTENER, METRICS_LISTENER, PROCESS, SOCKET};
use crate::broker::{Action, SessionId, SessionState};
use crate::identity::PeerFacts;
use gdrcore_net::clock::now_ns;
use gdrcore_net::rights::Foreign;
use gdrcore_net::via::proto::{Envelope, Message, Routed, Text};
use gdrcore_net::via::wire::ReadOutcome;
use std::os::fd::AsFd;

/// Messages of one session in one round.
const BATCH: usize = 64;
/// Connections accepted at one socket in one round.
pub(super) const ACCEPTS: usize = 16;
/// Connections without an identity. One more ends the oldest.
const STRANGERS: usize = 64;

impl Daemon {
    pub(super) fn let_in(&mut self, token: u64) {
        for _ in 0..ACCEPTS {
            let Some(listener) = self.listeners.get(&token) else { return };
            let path = listener.path().to_path_buf();
            let Some(fd) = self.accept(token) else { return };
            if self.connections.len() >= self.most {
                // Closes the new connection at once, so that present sessions keep their places.
                if let Some(log) = &mut self.log {
                    log.turned_away(now_ns(), "the router has no descriptors left for a session");
                }
                continue;
            }
            let Some((seen, process)) = identify(&path, fd.as_fd()) else { continue };
            self.make_room(&seen);
            let id = self.broker.connect(now_ns(), seen.clone());
            if let Some(log) = &mut self.log {
                log.connected(id, &seen);
            }
            let tokens =
                Tokens { socket: SOCKET | u64::from(id), process: PROCESS | u64::from(id) };
            match Connection::new(fd, process, tokens, &self.epoll) {
                Ok(connection) => drop(self.connections.insert(id, connection)),
                Err(_) => self.end_session(id),
            }
        }
    }

    /// Accepts the next connection. Without a free descriptor, accepts it with the spare one and
    /// closes it: otherwise epoll would report it again and again.
    pub(super) fn accept(&mut self, token: u64) -> Option<Foreign> {
        let fd = match token {
            ADMIN_LISTENER => self.admin.as_ref()?.fd(),
            FEED_LISTENER => self.feed.as_ref()?.fd(),
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

    /// If too many connections have no identity, ends the oldest one: of the newcomer's user, if
    /// that has one.
    fn make_room(&mut self, newcomer: &PeerFacts) {
        let strangers: Vec<(SessionId, Option<u32>)> = self
            .broker
            .sessions()
            .filter(|(_, s)| matches!(s.state, SessionState::New(_)))
            .map(|(id, s)| (id, s.seen.uid))
            .collect();
        if strangers.len() < STRANGERS {
            return;
        }
        let same = strangers.iter().find(|(_, uid)| *uid == newcomer.uid);
        if let Some(&(id, _)) = same.or(strangers.first()) {
            self.expel(id, libc::EAGAIN, "too many connections without a HELLO");
        }
    }

    /// Receives a session's messages, and sends the message that was kept for it.
    pub(super) fn converse(&mut self, id: SessionId, r: &Ready) {
        if r.write {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            if connection.flush(&self.epoll) == Sent::Lost {
                return self.end_session(id);
            }
        }
        if r.read {
            self.hear(id);
        }
    }

    /// Receives a session's messages.
    fn hear(&mut self, id: SessionId) {
        self.broker.set_silent(self.relaying.silent(now_ns()));
        for _ in 0..BATCH {
            let Some(connection) = self.connections.get(&id) else { return };
            match connection.receive(&mut self.buffer) {
                ReadOutcome::Message(m) => {
                    let fds = if m.cut { m.count.max(1) } else { m.count };
                    self.broker.handle(now_ns(), id, &self.buffer[..m.len], fds);
                    drop(m);
                    self.perform();
                }
                ReadOutcome::Nothing => return,
                ReadOutcome::Gone => return self.end_session(id),
            }
        }
    }

    /// Ends a session whose process or connection has ended.
    pub(super) fn end_session(&mut self, id: SessionId) {
        self.broker.end_session(now_ns(), id);
        self.perform();
    }

    /// Ends a session, and tells `why` to its program and to the log.
    pub(super) fn expel(&mut self, id: SessionId, errno: i32, why: &str) {
        self.broker.expel(now_ns(), id, errno, why);
        self.perform();
    }

    /// Expels sessions that a worker has given up, for their rings or for the end of their device.
    pub(super) fn throw_out(&mut self) {
        let relayed = self.relaying.broken().into_iter().map(|id| (id, None));
        let remote = self.remoting.broken();
        // The worker has seen the end of a socket. A program that has ended, or closed its device,
        // says so by its connection, and that may be unread.
        remote.iter().for_each(|(id, _)| self.hear(*id));
        for (id, why) in relayed.chain(remote) {
            match why {
                Some(why) => self.expel(id, libc::ENODEV, &why),
                None => {
                    let why =
                        "its rings hold what no program of ours writes, or it has let go of them";
                    self.expel(id, libc::EPROTO, why);
                }
            }
        }
    }

    /// Performs the broker's actions, and the actions that follow from them.
    pub(super) fn perform(&mut self) {
        loop {
            let actions = self.broker.take_actions();
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.perform_one(action));
        }
    }

    fn perform_one(&mut self, action: Action) {
        match action {
            Action::Send(id, e) => {
                self.log_answer(id, &e);
                self.send(id, &e, None);
            }
            Action::Connect { caller, routed, owner, link } => match self.link(owner, &link) {
                Ok(end) => self.send(caller, &routed, Some(end)),
                Err(why) => {
                    self.broker.link_failed(owner, link.seq);
                    let refused = Message::Routed(Routed::refused(Text::new(why)));
                    let refused = Envelope::answer(routed.seq, -libc::EAGAIN, refused);
                    self.send(caller, &refused, None);
                }
            },
            Action::Join(id, e) => {
                self.log_answer(id, &e);
                self.welcome(id, &e);
            }
            Action::Listen(id, service, on) => self.relaying.listen(id, service, on),
            Action::End(id, why) => {
                self.relaying.leave(id, !why.is_empty());
                self.remoting.leave(id);
                self.connections.remove(&id);
                if let Some(log) = &mut self.log {
                    log.note_end(now_ns(), id, &why);
                }
            }
        }
    }

    fn log_answer(&mut self, id: SessionId, e: &Envelope) {
        if let Some(log) = &mut self.log {
            let resumes = self.broker.find_up(id).is_some_and(|up| up.resumed);
            log.answered(now_ns(), id, e, resumes, self.broker.policy());
        }
    }

    /// Makes a socket pair, sends one end to `owner`, and returns the other.
    fn link(&mut self, owner: SessionId, link: &Envelope) -> Result<Foreign, &'static str> {
        let Some(connection) = self.connections.get(&owner) else {
            return Err("the process there is gone");
        };
        let Ok([theirs, ours]) = sys::pair() else {
            return Err("the router has no descriptor left: ask again");
        };
        // The caller sends one descriptor, the memory of its hello; the owner sends none.
        let ours = Foreign::fresh(ours);
        match connection.send_now(link, Some(theirs.as_fd())) {
            Sent::Gone => Ok(ours),
            Sent::Full => {
                Err("the process there takes no messages: it is stopped, or nobody polls there")
            }
            Sent::Lost => Err("the process there is gone"),
        }
    }

    /// Sends a WELCOME with new rings, or with the descriptors of a remote session.
    fn welcome(&mut self, id: SessionId, e: &Envelope) {
        let Some(connection) = self.connections.get(&id) else { return };
        let tenant = self.broker.find_up(id).map(|up| &up.tenant);
        let joined = match tenant.and_then(|tenant| Some((tenant, tenant.device.as_deref()?))) {
            Some((tenant, device)) => {
                let joined = self.remoting.join(id, device, tenant);
                joined.map(|ends| connection.send_with(e, ends.0.each_ref()))
            }
            None => self
                .relaying
                .join(&self.broker, id)
                .map(|ends| connection.send_with(e, [&ends.up, &ends.down, &ends.socket])),
        };
        match joined {
            Ok(Sent::Gone) => {}
            Ok(Sent::Lost) => self.broker.end_session(now_ns(), id),
            Ok(Sent::Full) => {
                let why = "the system has too much under way: again later";
                self.broker.expel(now_ns(), id, libc::ENOBUFS, why);
            }
            Err(why) => self.broker.expel(now_ns(), id, libc::ENOMEM, &why),
        }
    }

    fn send(&mut self, id: SessionId, e: &Envelope, fd: Option<Foreign>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.send(e, fd, &self.epoll) {
            Sent::Gone => {}
            Sent::Full => {
                let why = "it does not read what it is sent";
                self.broker.expel(now_ns(), id, libc::ENOBUFS, why);
            }
            Sent::Lost => self.broker.end_session(now_ns(), id),
        }
    }
}
