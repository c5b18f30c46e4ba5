//! The first thread's half of the relay: it makes rings, says who may reach whom, and looks what
//! the worker has counted.

use super::sys;
use super::worker::{Command, Worker};
use crate::broker::{Broker, SessionId, LISTENS};
use crate::relay::{Counters, Place, Slots, State};
use gdrcore_net::shm::relay::{Ends, Relay};
use gdrcore_net::via::proto::Service;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{sync_channel, SyncSender, TrySendError};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Commands under way.
const COMMANDS: usize = 256;
/// How long a full queue of commands is left to the worker.
const FULL: Duration = Duration::from_micros(100);

pub(super) struct Relaying {
    /// `None`: it ends.
    commands: Option<SyncSender<Command>>,
    call: OwnedFd,
    news: OwnedFd,
    slots: Arc<Slots>,
    given: BTreeMap<SessionId, u16>,
    networks: BTreeMap<String, u32>,
    worker: Option<JoinHandle<()>>,
}

impl Relaying {
    /// Starts the worker.
    ///
    /// # Errors
    /// No descriptor, or no thread.
    pub(super) fn start() -> io::Result<Relaying> {
        let (call, called) = sys::pair()?;
        let (news, tells) = sys::pair()?;
        let slots = Arc::new(Slots::default());
        let (commands, queue) = sync_channel(COMMANDS);
        let worker = Worker::new(queue, called, tells, slots.clone(), LISTENS)?;
        let worker =
            std::thread::Builder::new().name("relay".into()).spawn(move || worker.run())?;
        Ok(Relaying {
            commands: Some(commands),
            call,
            news,
            slots,
            given: BTreeMap::new(),
            networks: BTreeMap::new(),
            worker: Some(worker),
        })
    }

    /// Readable when the worker has given up a session.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Whether the worker lives. It ends by a fault of its own alone.
    pub(super) fn lives(&self) -> bool {
        self.worker.as_ref().is_some_and(|w| !w.is_finished())
    }

    /// Makes a session's rings and takes it in; what it is to be sent.
    ///
    /// # Errors
    /// In words.
    pub(super) fn join(&mut self, broker: &Broker, id: SessionId) -> Result<Ends, &'static str> {
        let (up, peers) = broker.peers(id).ok_or("there is no such session")?;
        let (ring, ends) =
            Relay::create().map_err(|_| "the router has no descriptor or memory left for rings")?;
        let slot = self.slots.take().ok_or("the router has no rings left")?;
        let next = self.networks.len() as u32;
        let network = *self.networks.entry(up.tenant.network.clone()).or_insert(next);
        self.given.insert(id, slot);
        self.allow(slot, &peers);
        let place = Place { network, gid: up.gid, blocks: up.blocks.clone() };
        self.tell(Command::Join(slot, place, ring));
        Ok(ends)
    }

    /// Those that a slot may reach, and no others.
    fn allow(&self, slot: u16, peers: &[SessionId]) {
        for (id, &other) in &self.given {
            self.slots.allow(slot, other, peers.contains(id));
        }
    }

    /// Another policy is in force.
    pub(super) fn review(&self, broker: &Broker) {
        for (&id, &slot) in &self.given {
            let peers = broker.peers(id).map(|(_, peers)| peers).unwrap_or_default();
            self.allow(slot, &peers);
        }
    }

    /// A session is gone; where it was thrown out (`at_once`), nothing of its goes anywhere from
    /// now on.
    pub(super) fn leave(&mut self, id: SessionId, at_once: bool) {
        if let Some(slot) = self.given.remove(&id) {
            if at_once {
                self.slots.forbid_all(slot);
            }
            self.tell(Command::Leave(slot));
        }
    }

    /// A session listens at a port, or no more.
    pub(super) fn listen(&mut self, id: SessionId, service: Service, on: bool) {
        if let Some(&slot) = self.given.get(&id) {
            self.tell(Command::Listen(slot, service, on));
        }
    }

    /// Sessions that the worker has given up.
    pub(super) fn broken(&self) -> Vec<SessionId> {
        while matches!(sys::read(&self.news, &mut [0; 64]), Ok(1..)) {}
        let is_broken = |slot: u16| self.slots.state(slot) == State::Broken;
        self.given.iter().filter(|(_, &slot)| is_broken(slot)).map(|(&id, _)| id).collect()
    }

    /// What was counted of a session.
    pub(super) fn counters(&self, id: SessionId) -> Option<&Counters> {
        self.given.get(&id).map(|&slot| self.slots.counters(slot))
    }

    /// Waits for room among the commands, which the worker makes at once: it waits for nobody.
    fn tell(&mut self, command: Command) {
        let mut command = command;
        let Some(commands) = &self.commands else { return };
        loop {
            match commands.try_send(command) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) => command = back,
                // The router ends when it sees that.
                Err(TrySendError::Disconnected(_)) => return,
            }
            self.ring();
            std::thread::sleep(FULL);
        }
        self.ring();
    }

    fn ring(&self) {
        // A bell that is full has not been heard yet.
        let _ = sys::write(&self.call, &[1]);
    }
}

impl Drop for Relaying {
    fn drop(&mut self) {
        self.commands = None;
        self.ring();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}
