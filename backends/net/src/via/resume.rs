//! Reconnects a session to a router that was restarted.
//!
//! WELCOME carries a token. When the control socket closes without a BYE, the thread that runs the
//! engine connects again, at growing intervals, and sends HELLO with the token. A router with the
//! same key gives the session its numbers and its address back, and new rings. Links to other
//! processes are not affected.
//!
//! Nothing here waits: an attempt connects and sends; a later round receives the answer.

use super::absence::Absence;
use super::client::{Client, Step};
use super::connect::{socket, try_connect};
use super::proto::{Message, Welcome};
use super::session::{check, hello, rings_of, Inner, Session};
use super::wire::{receive, send, ReadOutcome};
use crate::shm::relay::Relay;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::TryLockError;

/// The first interval between attempts, and the longest; each is twice the one before.
const WAIT_NS: (u64, u64) = (10_000_000, 1_000_000_000);
/// Interval of looks at an answer that has not come.
const CHECK_ANSWER_NS: u64 = 1_000_000;
/// If an answer takes longer, another attempt is made.
const WELCOME_WITHIN_NS: u64 = 5_000_000_000;

/// State of a session's connection to its router.
#[derive(Debug)]
// Not boxed: the value is passed on once in the life of a router.
#[allow(clippy::large_enum_variant)]
pub enum Standing {
    /// The router is there.
    Up,
    /// The router is away; when to look again.
    Away(u64),
    /// A router has taken the session, and has given it these rings.
    Back(Option<Relay>),
    /// The session has ended for good.
    Over,
}

/// Result of one attempt. Not boxed: nothing may be allocated here.
#[allow(clippy::large_enum_variant)]
enum Attempt {
    /// No answer yet; the time to look again.
    Wait(u64),
    /// The attempt failed, and the next one may succeed.
    Failed,
    /// The router refuses for good, or is none of ours.
    Refused,
    /// The session is taken.
    Taken(OwnedFd, Client, Welcome, Option<Relay>),
}

impl Session {
    /// Continues the reconnect to the router, if it is away. Never waits. Cost: a few system calls
    /// per attempt, and one per look.
    pub fn resume(&self, now: u64) -> Standing {
        if self.is_over() {
            return Standing::Over;
        }
        if !self.is_gone() {
            return Standing::Up;
        }
        let mut inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            // A thread that panicked with this lock has left nothing half done that an attempt
            // needs.
            Err(TryLockError::Poisoned(inner)) => inner.into_inner(),
            Err(TryLockError::WouldBlock) => return Standing::Away(now + CHECK_ANSWER_NS),
        };
        if inner.absence.token == [0; 64] {
            self.end();
            return Standing::Over;
        }
        if inner.absence.greeting.is_none() && now < inner.absence.next {
            return Standing::Away(inner.absence.next);
        }
        match self.attempt(&mut inner, now) {
            Attempt::Wait(at) => Standing::Away(at),
            Attempt::Failed => {
                let absence = &mut inner.absence;
                absence.wait = (2 * absence.wait).clamp(WAIT_NS.0, WAIT_NS.1);
                absence.next = now + absence.wait;
                Standing::Away(absence.next)
            }
            Attempt::Refused => {
                self.end();
                Standing::Over
            }
            Attempt::Taken(fd, client, welcome, relay) => {
                self.empty(&mut inner.buffer);
                // The number of the descriptor stays: other threads use it.
                // SAFETY: both are open; no pointers.
                let rc =
                    unsafe { libc::dup3(fd.as_raw_fd(), self.fd.as_raw_fd(), libc::O_CLOEXEC) };
                if rc < 0 {
                    return Standing::Away(now + WAIT_NS.0);
                }
                inner.client = client;
                inner.absence = Absence::new(welcome.token);
                self.come_back(&mut inner);
                Standing::Back(relay)
            }
        }
    }

    /// Makes no further attempt.
    pub fn give_up(&self) {
        self.end();
    }

    fn attempt(&self, inner: &mut Inner, now: u64) -> Attempt {
        let Some((fd, mut client, until)) = inner.absence.greeting.take() else {
            let Ok(fd) = socket() else { return Attempt::Failed };
            if try_connect(fd.as_fd(), &self.at).is_err() {
                return Attempt::Failed;
            }
            let mut client = Client::new();
            let hello = hello(self.welcome.qpns.1, inner.absence.token);
            let e = client.ask(Message::Hello(hello));
            if send(fd.as_fd(), &e, None).is_err() {
                return Attempt::Failed;
            }
            inner.absence.greeting = Some((fd, client, now + WELCOME_WITHIN_NS));
            return Attempt::Wait(now + CHECK_ANSWER_NS);
        };
        let came = match receive(fd.as_fd(), &mut inner.buffer) {
            ReadOutcome::Message(came) => came,
            ReadOutcome::Nothing if now < until => {
                inner.absence.greeting = Some((fd, client, until));
                return Attempt::Wait(now + CHECK_ANSWER_NS);
            }
            ReadOutcome::Nothing | ReadOutcome::Gone => return Attempt::Failed,
        };
        let fds = if came.cut { came.count.max(1) } else { came.count };
        let e = match client.take(&inner.buffer[..came.len], fds) {
            Ok(Step::Answer(e)) => e,
            _ => return Attempt::Refused,
        };
        match e.message {
            // This router is about to end or is overloaded; a later attempt may succeed.
            _ if matches!(e.status.wrapping_neg(), libc::EAGAIN | libc::ESHUTDOWN) => {
                Attempt::Failed
            }
            Message::Welcome(w) if e.status == 0 && self.is_same(&w) => {
                let [up, down, bell, _] = came.fds;
                match rings_of(&w, [up, down, bell]) {
                    Ok(relay) => Attempt::Taken(fd, client, w, relay),
                    // This process has no descriptor or memory left at the moment.
                    Err(_) => Attempt::Failed,
                }
            }
            _ => Attempt::Refused,
        }
    }

    /// Whether a WELCOME continues this session: the engine has its address and its numbers.
    fn is_same(&self, w: &Welcome) -> bool {
        let before = &self.welcome;
        check(w, &hello(before.qpns.1, [0; 64])).is_ok()
            && w.gids[0] == before.gids[0]
            && w.qpns == before.qpns
    }
}
