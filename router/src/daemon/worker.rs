//! The thread that passes on what sessions put into their rings. It waits for nobody: a ring
//! without room costs its own session the packet. After its start it allocates nothing.

use super::sys::{self, Epoll, Ready};
use crate::relay::{Place, Slots, State, Switch, SLOTS};
use gdrcore_net::clock::now_ns;
use gdrcore_net::shm::relay::{Put, Relay, FRAME_MAX, RINGS};
use gdrcore_net::shm::ring::{Broken, FRAME_ALIGN};
use gdrcore_net::via::proto::Service;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::Arc;

/// Packets of one session that one round takes.
const BATCH: usize = 16;
/// Batches that a ring may hold.
const RINGFUL: usize = RINGS.0 as usize / FRAME_ALIGN / BATCH;
/// Commands that one round takes.
const COMMANDS: usize = 64;
/// After its last packet the worker looks for so long before it sleeps.
const SPIN_NS: u64 = 50_000;
/// The token of the first thread's bell; others are slots.
const CALL: u64 = u64::MAX;

/// What the first thread wants.
pub(super) enum Command {
    /// A session has come.
    Join(u16, Place, Relay),
    /// It is gone: what it has sent before goes where policy lets it, then its slot is free.
    Leave(u16),
    /// It listens at a port, or no more.
    Listen(u16, Service, bool),
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
    rings: Vec<Option<Relay>>,
    /// Slots that have one.
    open: Vec<u16>,
    /// The packet that is passed on.
    frame: Box<[u8; FRAME_MAX]>,
    slots: Arc<Slots>,
}

fn add(to: &AtomicU64, n: u64) {
    // The worker alone writes them.
    to.store(to.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Lanes {
    /// Passes on what waits in one ring, a batch at most. How many packets that were; an error: the
    /// slot whose ring is broken.
    fn serve(&mut self, now: u64, from: u16) -> Result<usize, u16> {
        let Some(address) = self.switch.gid(from) else { return Ok(0) };
        for n in 0..BATCH {
            let Some(ring) = &mut self.rings[usize::from(from)] else { return Ok(n) };
            let Some(came) = ring.take(&mut self.frame).map_err(|Broken| from)? else {
                return Ok(n);
            };
            let bytes = came.packet.len() as u64;
            let counters = self.slots.counters(from);
            let to = match self.switch.judge(now, from, &came.address, came.packet) {
                Ok(to) => to,
                Err(why) => {
                    add(&counters.refused[why as usize], 1);
                    continue;
                }
            };
            let Some(ring) = &mut self.rings[usize::from(to)] else { continue };
            let receiver = self.slots.counters(to);
            match ring.put(&address, came.packet).map_err(|Broken| to)? {
                Put::Done => {
                    add(&counters.tx.0, 1);
                    add(&counters.tx.1, bytes);
                    add(&receiver.rx.0, 1);
                    add(&receiver.rx.1, bytes);
                }
                // Never waited for: the sender's other peers would wait with it.
                Put::Full => add(&receiver.full, 1),
            }
        }
        Ok(BATCH)
    }

    fn open(&mut self, now: u64, slot: u16, place: Place, ring: Relay) {
        self.switch.join(now, slot, place);
        self.rings[usize::from(slot)] = Some(ring);
        self.open.push(slot);
    }

    /// Lets go of a slot's rings. False: it had none.
    fn close(&mut self, slot: u16) -> bool {
        self.switch.leave(slot);
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
            rings: (0..SLOTS).map(|_| None).collect(),
            open: Vec::with_capacity(SLOTS),
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
            if self.round(now) > 0 {
                busy = now;
            } else if now.saturating_sub(busy) < SPIN_NS {
                std::thread::yield_now();
            } else if !self.announce_sleep() {
                self.sleep();
                busy = now_ns();
            }
        }
    }

    /// One batch of each session.
    fn round(&mut self, now: u64) -> usize {
        let (mut handled, mut k) = (0, 0);
        while let Some(&slot) = self.lanes.open.get(k) {
            k += 1;
            match self.lanes.serve(now, slot) {
                Ok(n) => handled += n,
                Err(broken) => {
                    self.give_up(broken);
                    // The list has changed; the rest has its turn in the next round.
                    return handled.max(1);
                }
            }
        }
        handled
    }

    /// Passes on what a session has sent before its end, as a network would. No more than its ring
    /// holds: another process may have it, too, and go on.
    #[cold]
    fn empty(&mut self, slot: u16) {
        let now = now_ns();
        for _ in 0..RINGFUL {
            match self.lanes.serve(now, slot) {
                Ok(BATCH) => {}
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
                Ok(Command::Join(slot, place, ring)) => {
                    let heard = self.epoll.add(ring.fd(), slot.into());
                    self.lanes.open(now_ns(), slot, place, ring);
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
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// True: something has come after all.
    fn announce_sleep(&mut self) -> bool {
        let Lanes { open, rings, .. } = &mut self.lanes;
        let mut came = false;
        for &slot in open.iter() {
            came |= rings[usize::from(slot)].as_mut().is_some_and(Relay::announce_sleep);
        }
        came
    }

    fn sleep(&mut self) {
        self.epoll.wait(-1, &mut self.ready);
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
    }
}
