//! The thread that passes on what sessions put into their rings. It waits for nobody: a ring
//! without room costs its own session the packet. After its start it allocates nothing.

use super::sys::{self, Epoll, Ready};
use crate::policy::Limits;
use crate::relay::{Counters, Ingress, Place, Slots, State, Switch, Turns, SLOTS};
use gdrcore_net::clock::now_ns;
use gdrcore_net::shm::relay::{Put, Relay, FRAME_MAX, RINGS};
use gdrcore_net::shm::ring::{Broken, FRAME_ALIGN};
use gdrcore_net::via::proto::Service;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::Arc;

/// Packets that one round takes.
const ROUND: usize = 64;
/// Rings of sessions that had nothing that are looked at before each packet.
const LOOK: usize = 16;
/// Packets that a ring may hold.
const RINGFUL: usize = RINGS.0 as usize / FRAME_ALIGN;
/// Commands that one round takes.
const COMMANDS: usize = 64;
/// After its last packet the worker looks for so long before it sleeps.
const SPIN_NS: u64 = 50_000;
/// The token of the first thread's bell; others are slots.
const CALL: u64 = u64::MAX;

/// What the first thread wants.
pub(super) enum Command {
    /// A session of a tenant has come.
    Join(u16, u16, Place, Relay),
    /// It is gone: what it has sent before goes where policy lets it, then its slot is free.
    Leave(u16),
    /// It listens at a port, or no more.
    Listen(u16, Service, bool),
    /// How fast a tenant may be.
    Limit(u16, Limits),
    /// A number becomes another tenant's.
    Forget(u16),
    /// Bytes a second of all; 0: no limit.
    Line(u64),
}

pub(super) struct Worker {
    commands: Receiver<Command>,
    /// Readable when there are commands.
    call: OwnedFd,
    /// Tells the first thread that a slot is broken.
    news: OwnedFd,
    epoll: Epoll,
    ready: Vec<Ready>,
    slots: Arc<Slots>,
    lanes: Lanes,
}

/// The rings, and who is where. Apart from the rest, so that what is done with a packet can be seen
/// at one sight.
struct Lanes {
    switch: Switch,
    turns: Turns,
    rings: Vec<Option<Relay>>,
    /// Their tenants.
    tenants: Vec<u16>,
    /// Slots that have one.
    open: Vec<u16>,
    /// The last of them that was looked at.
    cursor: usize,
    /// The packet that is passed on.
    frame: Box<[u8; FRAME_MAX]>,
    slots: Arc<Slots>,
}

/// Adds to what is counted of a session and to what is of its tenant.
fn count(of: [&Counters; 2], which: impl Fn(&Counters) -> &AtomicU64, n: u64) {
    for counters in of {
        let counter = which(counters);
        // The worker alone writes them.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

impl Lanes {
    /// Passes on the next packet of a ring, if there is one. `ends`: its session does, and does not
    /// wait for credit. An error: the slot whose ring is broken.
    fn pass(&mut self, now: u64, from: u16, ends: bool) -> Result<bool, u16> {
        let Lanes { switch, turns, rings, tenants, frame, slots, .. } = self;
        let Some(address) = switch.gid(from) else { return Ok(false) };
        let of = |slot: u16| [slots.counters(slot), slots.tenant(tenants[usize::from(slot)])];
        let Some(ring) = &mut rings[usize::from(from)] else { return Ok(false) };
        let Some(came) = ring.take(frame).map_err(|Broken| from)? else {
            return Ok(false);
        };
        let bytes = came.packet.len();
        if ends && !turns.may_finish(now, from) {
            count(of(from), |c| &c.unpaid, 1);
            return Ok(true);
        }
        // Whatever becomes of it: it is work.
        turns.charge(now, from, bytes);
        let to = match switch.judge(now, from, &came.address, came.packet) {
            Ok(to) => to,
            Err(why) => {
                count(of(from), |c| &c.refused[why as usize], 1);
                return Ok(true);
            }
        };
        let Some(ring) = &mut rings[usize::from(to)] else { return Ok(true) };
        let ingress = turns.receive(now, to, bytes);
        if ingress == Ingress::Drop {
            count(of(to), |c| &c.over_rate, 1);
            return Ok(true);
        }
        let marked = ingress == Ingress::Mark;
        match ring.put_marked(&address, came.packet, marked).map_err(|Broken| to)? {
            Put::Done => {
                count(of(from), |c| &c.tx.0, 1);
                count(of(from), |c| &c.tx.1, bytes as u64);
                count(of(to), |c| &c.rx.0, 1);
                count(of(to), |c| &c.rx.1, bytes as u64);
                if marked {
                    count(of(to), |c| &c.marked, 1);
                }
            }
            // Never waited for: the sender's other peers would wait with it.
            Put::Full => count(of(to), |c| &c.full, 1),
        }
        Ok(true)
    }

    /// Looks at the next so many rings of sessions that had nothing.
    fn look(&mut self, most: usize) {
        for _ in 0..most.min(self.open.len()) {
            self.cursor = if self.cursor + 1 < self.open.len() { self.cursor + 1 } else { 0 };
            let slot = self.open[self.cursor];
            if self.turns.is_idle(slot) && self.has_input(slot) {
                self.turns.ready(slot);
            }
        }
    }

    fn has_input(&self, slot: u16) -> bool {
        self.rings[usize::from(slot)].as_ref().is_some_and(Relay::has_input)
    }

    fn open(&mut self, now: u64, slot: u16, tenant: u16, place: Place, ring: Relay) {
        self.switch.join(now, slot, place);
        self.turns.join(slot, tenant);
        self.tenants[usize::from(slot)] = tenant;
        self.rings[usize::from(slot)] = Some(ring);
        self.open.push(slot);
    }

    /// Lets go of a slot's rings. False: it had none.
    fn close(&mut self, slot: u16) -> bool {
        self.switch.leave(slot);
        self.turns.leave(slot);
        self.open.retain(|&s| s != slot);
        self.rings.get_mut(usize::from(slot)).is_some_and(|ring| ring.take().is_some())
    }
}

impl Worker {
    pub(super) fn new(
        commands: Receiver<Command>,
        call: OwnedFd,
        news: OwnedFd,
        slots: Arc<Slots>,
        listens: usize,
    ) -> std::io::Result<Worker> {
        let epoll = Epoll::new()?;
        epoll.add(call.as_fd(), CALL)?;
        let lanes = Lanes {
            switch: Switch::new(slots.clone(), listens),
            turns: Turns::new(),
            rings: (0..SLOTS).map(|_| None).collect(),
            tenants: vec![0; SLOTS],
            open: Vec::with_capacity(SLOTS),
            cursor: 0,
            frame: Box::new([0; FRAME_MAX]),
            slots: slots.clone(),
        };
        Ok(Worker { commands, call, news, epoll, ready: Vec::with_capacity(64), slots, lanes })
    }

    /// Works until the first thread is gone.
    pub(super) fn run(mut self) {
        let mut busy = now_ns();
        while self.obey() {
            let now = now_ns();
            match self.round(now) {
                // Who has used up its credit is not looked for before it has some.
                Some(last) if self.lanes.turns.waits(last) => {}
                Some(_) => busy = now,
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

    /// Passes on what has its turn. The slot that was served last; `None`: nothing may go.
    fn round(&mut self, now: u64) -> Option<u16> {
        let mut last = None;
        for _ in 0..ROUND {
            self.lanes.look(LOOK);
            let next = self.lanes.turns.next(now).or_else(|| {
                self.lanes.look(SLOTS);
                self.lanes.turns.next(now)
            });
            let Some(slot) = next else { break };
            last = next;
            let passed = self.lanes.pass(now, slot, false);
            let more = self.lanes.has_input(slot);
            self.lanes.turns.served(slot, more);
            if let Err(broken) = passed {
                self.give_up(broken);
            }
        }
        last
    }

    /// Passes on what a session has sent before its end, as a network would, as far as its tenant
    /// has credit. No more than its ring holds: another process may have it, too, and go on.
    #[cold]
    fn empty(&mut self, slot: u16) {
        let now = now_ns();
        for _ in 0..RINGFUL {
            match self.lanes.pass(now, slot, true) {
                Ok(true) => {}
                Err(broken) if broken != slot => self.give_up(broken),
                _ => break,
            }
        }
    }

    /// A session whose rings are of no use is the first thread's to throw out.
    #[cold]
    fn give_up(&mut self, slot: u16) {
        if self.lanes.close(slot) {
            self.slots.set(slot, State::Broken);
            let _ = sys::write(&self.news, &[1]);
        }
    }

    /// Does what the first thread wants. False: it is gone.
    fn obey(&mut self) -> bool {
        for _ in 0..COMMANDS {
            match self.commands.try_recv() {
                Ok(Command::Join(slot, tenant, place, ring)) => {
                    let heard = self.epoll.add(ring.fd(), slot.into());
                    self.lanes.open(now_ns(), slot, tenant, place, ring);
                    if heard.is_err() {
                        self.give_up(slot);
                    }
                }
                Ok(Command::Leave(slot)) => {
                    self.empty(slot);
                    self.lanes.close(slot);
                    self.slots.forbid_all(slot);
                    self.slots.set(slot, State::Free);
                }
                Ok(Command::Listen(slot, service, on)) => {
                    self.lanes.switch.listen(slot, service, on)
                }
                Ok(Command::Limit(tenant, limits)) => {
                    self.lanes.turns.limit(now_ns(), tenant, &limits)
                }
                Ok(Command::Forget(tenant)) => self.lanes.turns.forget(tenant),
                Ok(Command::Line(rate)) => self.lanes.turns.limit_line(now_ns(), rate),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// True: something has come after all. Rings of which something waits for its turn or for
    /// credit need no bell: that time comes by itself.
    fn announce_sleep(&mut self) -> bool {
        let Lanes { open, rings, turns, .. } = &mut self.lanes;
        let mut came = false;
        for &slot in open.iter().filter(|&&slot| turns.is_idle(slot)) {
            came |= rings[usize::from(slot)].as_mut().is_some_and(Relay::announce_sleep);
        }
        came
    }

    /// Sleeps until a bell rings (true), or somebody has credit again.
    fn sleep(&mut self, now: u64) -> bool {
        let ms = self.lanes.turns.wake_at().map_or(-1, |at| {
            i32::try_from(at.saturating_sub(now).div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        self.epoll.wait(ms, &mut self.ready);
        for k in 0..self.ready.len() {
            let token = self.ready[k].token;
            if token == CALL {
                while matches!(sys::read(&self.call, &mut [0; 64]), Ok(1..)) {}
                continue;
            }
            let slot = token as u16;
            let rings = self.lanes.rings.get(usize::from(slot));
            if rings.is_some_and(|ring| ring.as_ref().is_some_and(Relay::hear)) {
                self.empty(slot);
                self.give_up(slot);
            }
        }
        !self.ready.is_empty()
    }
}
