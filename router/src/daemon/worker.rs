//! The relay's worker: the thread that forwards the packets in sessions' rings. It never waits for
//! a session: a packet for a full ring is dropped. After its start it allocates nothing.

use super::session_rings::SessionRings;
use super::sys::{self, Epoll, Ready};
use super::wire::{self, Wire};
use crate::policy::{Limits, Outside, Published};
use crate::relay::{Far, SessionAddress, SlotState, Slots, SLOTS};
use gdrcore_net::clock::now_ns;
use gdrcore_net::shm::relay::{Relay, LARGER, RINGS};
use gdrcore_net::shm::ring::FRAME_ALIGN;
use gdrcore_net::via::proto::Service;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::Arc;

/// Packets in one round, and further ones that may fill a burst.
const ROUND: usize = 64;
const BURST: usize = 16;
/// Idle rings that the worker checks before each large packet, or before several small ones.
const LOOK: usize = 16;
/// Limit of packets in a ring and in the larger one that it has moved to.
const RINGFUL: usize = (RINGS.0 + LARGER.0) as usize / FRAME_ALIGN;
/// Commands in one round.
const COMMANDS: usize = 64;
/// The time for which an idle worker polls before it sleeps.
const SPIN_NS: u64 = 50_000;
/// Rounds of a busy worker between two calls of epoll, for the sockets that it does not poll.
const ASK: u32 = 16;
/// The token of the first thread's bell. Other tokens are slots: of a ring's bell, or with
/// [`wire::RX`] or [`wire::TX`] of a socket.
const WAKE: u64 = u64::MAX;

/// A command of the first thread.
// Not boxed: the worker frees nothing.
#[allow(clippy::large_enum_variant)]
pub(super) enum Command {
    /// Adds a session: slot, tenant, place and rings; and its sockets, if it may talk to other
    /// hosts.
    Join(u16, u16, SessionAddress, Relay, Option<wire::SocketParts>),
    /// A new table of other hosts' tenants. The first thread frees the old one.
    Far(Arc<Far>),
    /// The plain endpoints to which a session may talk; `None`: to none. The first thread frees the
    /// old rules.
    Outside(u16, Option<Arc<Outside>>),
    /// The tenants that answer at the host's address.
    Published(Arc<Published>),
    /// Removes a session: forwards what its ring still holds, then frees its slot.
    Leave(u16),
    /// A session begins or ends to listen at a port.
    Listen(u16, Service, bool),
    Limit(u16, Limits),
    /// Clears a tenant's number for another tenant.
    Forget(u16),
    /// Bytes a second of all tenants together; 0: no limit.
    Line(u64),
}

pub(super) struct RelayLoop {
    commands: Receiver<Command>,
    /// Readable when there are commands.
    wake_fd: OwnedFd,
    /// Tells the first thread that a slot is broken.
    news: OwnedFd,
    epoll: Epoll,
    ready: Vec<Ready>,
    slots: Arc<Slots>,
    sessions: SessionRings,
    /// `None`: there are no other hosts.
    wire: Option<Wire>,
    rounds: u32,
}

impl RelayLoop {
    /// `wire`: the socket for other hosts, and its counters.
    pub(super) fn new(
        commands: Receiver<Command>,
        wake_fd: OwnedFd,
        news: OwnedFd,
        slots: Arc<Slots>,
        listens: usize,
        wire: Option<(wire::Common, Arc<wire::Counters>)>,
    ) -> std::io::Result<RelayLoop> {
        let epoll = Epoll::new()?;
        epoll.add(wake_fd.as_fd(), WAKE)?;
        let wire = wire.map(|(common, counters)| Wire::new(common, counters, &epoll)).transpose();
        let wire = wire.map_err(|e| std::io::Error::other(format!("{e:?}")))?;
        let sessions = SessionRings::new(slots.clone(), listens, ROUND + BURST);
        let ready = Vec::with_capacity(64);
        Ok(RelayLoop { commands, wake_fd, news, epoll, ready, slots, sessions, wire, rounds: 0 })
    }

    /// Works until the first thread drops the queue of commands.
    pub(super) fn run(mut self) {
        let mut busy = now_ns();
        while self.obey() {
            let now = now_ns();
            // The rings first: a look at a ring is cheap, a look at a socket costs a system call.
            let passed = self.round(now);
            let heard = self.receive(now);
            match passed {
                // The last session waits for credit: do not poll on its account.
                Some(last) if heard == 0 && self.sessions.scheduler.waits(last) => {}
                Some(_) => busy = now,
                None if heard > 0 => {
                    busy = now;
                    if heard == 1 {
                        // The thread that waits for a single packet may share this core.
                        std::thread::yield_now();
                    }
                }
                None if now.saturating_sub(busy) < SPIN_NS => std::thread::yield_now(),
                None if self.announce_sleep() => {}
                None => {
                    if self.sleep(now) {
                        busy = now_ns();
                    }
                }
            }
        }
    }

    /// Forwards packets in turn. Returns the slot that was served last; `None`: no packet may go.
    fn round(&mut self, now: u64) -> Option<u16> {
        let mut last = None;
        for n in 0..ROUND + BURST {
            if n >= ROUND && !last.is_some_and(|slot| self.fills_burst(slot)) {
                break;
            }
            self.sessions.look_in_time(LOOK);
            let mut next = self.sessions.scheduler.next(now);
            if next.is_none() {
                // Before the look at all rings, which takes long if there are many.
                self.flush();
                self.sessions.poll_idle(SLOTS);
                next = self.sessions.scheduler.next(now);
            }
            let Some(slot) = next else { break };
            last = next;
            let passed = self.sessions.pass(now, slot, false, self.wire.as_mut());
            let more = self.sessions.has_input(slot);
            self.sessions.scheduler.served(slot, more);
            if let Err(broken) = passed {
                self.give_up(broken);
            }
        }
        self.flush();
        last
    }

    /// Whether a session has a packet for an open burst. Each burst costs a system call.
    fn fills_burst(&self, slot: u16) -> bool {
        let begun = self.wire.as_ref().is_some_and(|wire| wire.has_begun(slot));
        begun && self.sessions.has_input(slot) && !self.sessions.scheduler.waits(slot)
    }

    /// Sends the packets for other hosts, and wakes the sessions that got packets.
    fn flush(&mut self) {
        self.sessions.wake();
        while let Some(slot) = self.sessions.sending.pop() {
            self.flush_one(slot, false);
        }
    }

    /// `told`: epoll has reported room, or an error.
    fn flush_one(&mut self, slot: u16, told: bool) {
        let RelayLoop { wire: Some(wire), sessions, epoll, .. } = self else { return };
        let far = sessions.switch.far();
        wire.flush(slot, told, epoll, |at| far.note_silence(now_ns(), at));
        sessions.stalled[usize::from(slot)] = wire.waits(slot);
    }

    /// Receives packets of other hosts. Returns how many there were.
    fn receive(&mut self, now: u64) -> usize {
        if self.wire.is_none() {
            return 0;
        }
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ASK) {
            self.take_ready(now, 0);
        }
        let RelayLoop { wire: Some(wire), sessions, .. } = self else { return 0 };
        let (own, counted) = (*wire.address(), wire.counters().clone());
        let heard = wire.receive(now, |came| sessions.arrive(now, &own, &counted, came));
        sessions.wake();
        while let Some(slot) = self.sessions.broken.pop() {
            self.give_up(slot);
        }
        heard
    }

    /// Forwards the packets that a session sent before its end, as a network would, as far as its
    /// tenant has credit. The limit is a full ring: another process may have the ring too and go on
    /// writing.
    #[cold]
    fn empty(&mut self, slot: u16) {
        let now = now_ns();
        for _ in 0..RINGFUL {
            match self.sessions.pass(now, slot, true, self.wire.as_mut()) {
                Ok(true) => {}
                Err(broken) if broken != slot => self.give_up(broken),
                _ => break,
            }
        }
        self.flush();
    }

    /// Closes a session with broken rings; the first thread then expels it.
    #[cold]
    fn give_up(&mut self, slot: u16) {
        if self.close(slot) {
            self.slots.set(slot, SlotState::Broken);
            let _ = sys::write(&self.news, &[1]);
        }
    }

    fn close(&mut self, slot: u16) -> bool {
        if let Some(wire) = &mut self.wire {
            wire.close(slot);
        }
        self.sessions.close(slot)
    }

    /// Executes the first thread's commands. False: it has dropped the queue.
    fn obey(&mut self) -> bool {
        for _ in 0..COMMANDS {
            match self.commands.try_recv() {
                Ok(Command::Join(slot, tenant, place, ring, ends)) => {
                    let mut heard = self.epoll.add(ring.fd(), slot.into()).is_ok();
                    self.sessions.open(now_ns(), slot, tenant, place, ring);
                    if let Some((ends, wire)) = ends.zip(self.wire.as_mut()) {
                        heard &= wire.open(slot, ends, &self.epoll);
                    }
                    if !heard {
                        self.give_up(slot);
                    }
                }
                Ok(Command::Far(far)) => drop(self.sessions.switch.set_far(far)),
                Ok(Command::Outside(slot, rules)) => {
                    drop(self.sessions.switch.set_outside(slot, rules))
                }
                Ok(Command::Published(all)) => drop(self.sessions.switch.set_published(all)),
                Ok(Command::Leave(slot)) => {
                    self.empty(slot);
                    self.close(slot);
                    self.slots.forbid_all(slot);
                    self.slots.set(slot, SlotState::Free);
                }
                Ok(Command::Listen(slot, service, on)) => {
                    self.sessions.switch.listen(slot, service, on)
                }
                Ok(Command::Limit(tenant, limits)) => {
                    self.sessions.scheduler.limit(now_ns(), tenant, &limits)
                }
                Ok(Command::Forget(tenant)) => self.sessions.scheduler.forget(tenant),
                Ok(Command::Line(rate)) => self.sessions.scheduler.limit_line(now_ns(), rate),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// Asks the sessions to ring a bell for their next packet. True: a packet has come meanwhile. A
    /// ring whose packet waits for its turn or for credit needs no bell.
    fn announce_sleep(&mut self) -> bool {
        let SessionRings { open, rings, scheduler, stalled, .. } = &mut self.sessions;
        let mut came = false;
        let sleeps = |slot: u16| scheduler.is_idle(slot) && !stalled[usize::from(slot)];
        for &slot in open.iter().filter(|&&slot| sleeps(slot)) {
            came |= rings[usize::from(slot)].as_mut().is_some_and(Relay::announce_sleep);
        }
        came
    }

    /// Sleeps until a descriptor is ready (true), or a session may have its turn. Does not sleep if
    /// a session became ready after the round.
    fn sleep(&mut self, now: u64) -> bool {
        let ms = self.sessions.scheduler.wake_at().map_or(-1, |at| {
            i32::try_from(at.saturating_sub(now).div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        self.take_ready(now, ms)
    }

    /// Waits up to `ms` milliseconds for ready descriptors and handles them. True: there were some.
    fn take_ready(&mut self, now: u64, ms: i32) -> bool {
        self.epoll.wait(ms, &mut self.ready);
        for k in 0..self.ready.len() {
            let token = self.ready[k].token;
            let slot = token as u16;
            match token & !u64::from(u32::MAX) {
                wire::RX => {
                    if let Some(wire) = &mut self.wire {
                        wire.start_polling(now, slot);
                    }
                }
                wire::TX => self.flush_one(slot, true),
                _ if token == WAKE => {
                    while matches!(sys::read(&self.wake_fd, &mut [0; 64]), Ok(1..)) {}
                }
                _ => {
                    let rings = self.sessions.rings.get_mut(usize::from(slot));
                    if rings.is_some_and(|ring| ring.as_mut().is_some_and(Relay::take_wakeups)) {
                        self.empty(slot);
                        self.give_up(slot);
                    }
                    self.sessions.look_at(slot);
                }
            }
        }
        !self.ready.is_empty()
    }
}
