//! Remote mode in the router's process: a thread for each device that tenants of the policy have,
//! and the first thread's half.

use super::sys::{self, Epoll, Ready};
use super::worker_thread::WorkerThread;
use crate::broker::{Broker, SessionId};
use crate::policy::{Policy, Tenant};
use crate::relay::SLOTS;
use crate::remote::server::Server;
use crate::remote::session::{Counts, Session, TenantEnds};
use crate::remote::shared_device::SharedDevice;
use gdrcore_net::clock::now_ns;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

/// The time for which an idle worker polls before it sleeps.
const SPIN_NS: u64 = 50_000;
/// Rounds of a worker between two looks at its sockets.
const ASK: u32 = 64;
/// Rounds without work after which a worker gives its core to other threads, again and again.
const YIELD: u32 = 8;
/// Epoll tokens; others are sessions.
const WAKE: u64 = u64::MAX;
const DEVICE: u64 = u64::MAX - 1;

/// A command of the first thread.
enum Command {
    Join(Box<(Session, Tenant)>),
    /// A tenant has other rules or limits.
    Review(Box<Tenant>),
    /// The rate of the whole device; 0: no limit.
    LimitLine(u64),
    Leave(SessionId),
}

/// What a worker tells the first thread.
struct FromWorker {
    /// Sessions that it has given up.
    broken: Mutex<Vec<SessionId>>,
    /// A socket that is readable then.
    news: OwnedFd,
    /// Objects on the device.
    objects: AtomicU64,
    /// The device is gone.
    gone: AtomicBool,
}

/// A device and its worker.
struct DeviceLoop {
    commands: Receiver<Command>,
    /// Readable when there are commands.
    wake_fd: OwnedFd,
    told: Arc<FromWorker>,
    epoll: Epoll,
    ready: Vec<Ready>,
    server: Server,
}

impl DeviceLoop {
    /// Works until the first thread drops the queue of commands.
    fn run(mut self) {
        let (mut busy, mut rounds, mut idle) = (now_ns(), 0u32, 0u32);
        while self.obey() {
            rounds = rounds.wrapping_add(1);
            let heard = rounds.is_multiple_of(ASK) && self.execute_calls(0);
            let found = self.server.round();
            self.report();
            idle = if found || heard { 0 } else { idle.wrapping_add(1) };
            if idle == 0 {
                busy = now_ns();
            } else if now_ns().saturating_sub(busy) < SPIN_NS {
                if idle.is_multiple_of(YIELD) {
                    std::thread::yield_now();
                }
            } else {
                let ms = self.server.prepare_sleep().unwrap_or(0);
                if self.execute_calls(ms) {
                    busy = now_ns();
                }
                self.server.withdraw_sleep();
            }
        }
    }

    /// Waits up to `ms` milliseconds for calls, and executes them. True: there was one, a bell or a
    /// command.
    fn execute_calls(&mut self, ms: i32) -> bool {
        let mut ready = std::mem::take(&mut self.ready);
        self.epoll.wait(ms, &mut ready);
        let mut heard = false;
        for r in &ready {
            match r.token {
                WAKE => {
                    while matches!(sys::read(&self.wake_fd, &mut [0; 64]), Ok(1..)) {}
                    heard = true;
                }
                // The next round shows whether there is work; until the device is armed again its
                // descriptor stays readable.
                DEVICE => self.server.note_readable(),
                session => {
                    heard |= self.server.hear(session as SessionId);
                    self.count();
                }
            }
        }
        self.ready = ready;
        heard
    }

    /// Passes on which sessions were given up, and that the device is gone.
    fn report(&mut self) {
        if self.server.is_gone() && !self.told.gone.swap(true, Ordering::Release) {
            // It would be readable for ever.
            let _ = self.server.fd().map(|fd| self.epoll.remove(fd));
        }
        let broken = self.server.take_broken();
        if !broken.is_empty() {
            self.told.broken.lock().unwrap_or_else(PoisonError::into_inner).extend(broken);
            let _ = sys::write(&self.told.news, &[1]);
            self.count();
        }
    }

    fn count(&self) {
        let l = self.server.leaks();
        let all = [l.pd, l.mr, l.mw, l.cq, l.qp, l.srq, l.ah];
        self.told.objects.store(all.map(u64::from).iter().sum(), Ordering::Relaxed);
    }

    /// Executes the first thread's commands. False: it has dropped the queue.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Join(joined)) => {
                    let (session, tenant) = *joined;
                    let number = session.number();
                    let heard = self.epoll.add(session.calls(), number.into());
                    self.server.join(session, &tenant);
                    if heard.is_err() {
                        self.server.give_up(number);
                    }
                }
                Ok(Command::Review(tenant)) => self.server.review(&tenant),
                Ok(Command::LimitLine(rate)) => self.server.limit_line(rate),
                Ok(Command::Leave(id)) => {
                    self.server.leave(id);
                    self.count();
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}

/// A device, for the first thread.
struct Device {
    worker: WorkerThread<Command>,
    told: Arc<FromWorker>,
}

impl Device {
    fn serve(shared: SharedDevice, news: &OwnedFd) -> io::Result<Device> {
        let epoll = Epoll::new()?;
        if let Ok(fd) = shared.fd() {
            epoll.add(fd, DEVICE)?;
        }
        let news = news.try_clone()?;
        let told = Arc::new(FromWorker {
            broken: Mutex::default(),
            news,
            objects: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        });
        let server = Server::new(shared);
        let (tells, ready) = (told.clone(), Vec::with_capacity(64));
        let worker = WorkerThread::start("remote", |commands, wake_fd| {
            epoll.add(wake_fd.as_fd(), WAKE)?;
            let worker = DeviceLoop { commands, wake_fd, told: tells, epoll, ready, server };
            Ok(|| worker.run())
        })?;
        Ok(Device { worker, told })
    }

    fn is_gone(&self) -> bool {
        self.told.gone.load(Ordering::Acquire)
    }
}

fn device_gone(device: &str) -> String {
    format!("the router's device '{device}' is gone: the router has to be started anew")
}

/// Open devices, by name.
pub(super) type SharedDevices = BTreeMap<String, SharedDevice>;

/// Opens the devices of a policy. Before the router confines itself: a device reads much of the
/// system. Makes no thread.
///
/// # Errors
/// In words: a device cannot be opened.
pub(super) fn open(policy: &Policy) -> Result<SharedDevices, String> {
    let mut all = SharedDevices::new();
    for name in policy.devices() {
        if !all.contains_key(name) {
            all.insert(name.clone(), open_one(name, &policy.gpus)?);
        }
    }
    Ok(all)
}

/// Opens NICs anew, behind Landlock: their libraries are loaded by now. The kernel takes commands
/// by write(2), as rxe's posts are, with those credentials alone that have opened the device file,
/// and Landlock changes them.
///
/// # Errors
/// In words: one cannot be opened.
pub(super) fn open_nics_anew(all: &mut SharedDevices) -> Result<(), String> {
    for (name, device) in all.iter_mut().filter(|(_, device)| device.is_nic()) {
        *device = open_one(name, &[])?;
    }
    Ok(())
}

/// Opens one device, and the GPUs whose memory its tenants register.
///
/// # Errors
/// In words.
pub(super) fn open_one(name: &str, gpus: &[String]) -> Result<SharedDevice, String> {
    gdrcore_net::reason::install();
    let opened =
        SharedDevice::open(name).and_then(|mut shared| shared.open_gpus(gpus).map(|()| shared));
    opened.map_err(|e| {
        gdrcore_net::reason::note_returned(e);
        gdrcore_net::reason::with_text(|why| format!("device '{name}': {why}"))
    })
}

/// The devices of a policy, and the sessions that have them.
pub(super) struct RemoteWorkers {
    devices: BTreeMap<String, Device>,
    news: OwnedFd,
    /// The workers' end of `news`, kept so that `news` never hangs up, which would be readable for
    /// ever.
    _tells: OwnedFd,
    sessions: BTreeMap<SessionId, (String, Arc<Counts>)>,
    /// Tenants of sessions, as their workers know them.
    tenants: BTreeMap<String, Tenant>,
    line_rate: u64,
}

impl RemoteWorkers {
    /// Starts a worker for each device.
    ///
    /// # Errors
    /// In words: there is no descriptor or no thread.
    pub(super) fn start(all: SharedDevices) -> Result<RemoteWorkers, String> {
        let said = |e: io::Error| format!("remote: {e}");
        let [news, tells] = sys::pair().map_err(said)?;
        let devices = all
            .into_iter()
            .map(|(name, shared)| Ok((name, Device::serve(shared, &tells)?)))
            .collect::<io::Result<_>>()
            .map_err(said)?;
        let (sessions, tenants) = (BTreeMap::new(), BTreeMap::new());
        Ok(RemoteWorkers { devices, news, _tells: tells, sessions, tenants, line_rate: 0 })
    }

    /// Whether there are devices.
    pub(super) fn is_used(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Readable when a worker has given up a session.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Whether all workers live. One ends only by a fault of its own.
    pub(super) fn is_alive(&self) -> bool {
        self.devices.values().all(|d| d.worker.is_alive())
    }

    /// Whether a policy names no device that was not opened at the start.
    ///
    /// # Errors
    /// In words.
    pub(super) fn admits(&self, policy: &Policy) -> Result<(), String> {
        let unknown = |name: &&String| !self.devices.contains_key(*name);
        match policy.devices().find(unknown) {
            Some(name) => Err(format!("device '{name}' can't be opened while the router runs")),
            None => Ok(()),
        }
    }

    /// Makes a session on a device. Returns the tenant's ends.
    ///
    /// # Errors
    /// In words.
    pub(super) fn join(
        &mut self,
        id: SessionId,
        device: &str,
        tenant: &Tenant,
    ) -> Result<TenantEnds, String> {
        let of = self.devices.get(device).ok_or("the router has no such device")?;
        if of.is_gone() {
            return Err(device_gone(device));
        }
        if self.sessions.values().filter(|(known, _)| known == device).count() >= SLOTS {
            return Err(format!("the router's device '{device}' has {SLOTS} sessions, its most"));
        }
        let (session, ends) = Session::new(id)
            .map_err(|_| "the router has no descriptor or memory left for the session")?;
        self.sessions.insert(id, (device.into(), session.counts.clone()));
        of.worker.send(Command::Join(Box::new((session, tenant.clone()))));
        self.tenants.insert(tenant.name.clone(), tenant.clone());
        Ok(ends)
    }

    /// Tells the workers what has changed of their tenants, and of the rate of all.
    pub(super) fn review(&mut self, broker: &Broker) {
        let before = std::mem::take(&mut self.tenants);
        for (id, (device, _)) in &self.sessions {
            let Some(tenant) = broker.find_up(*id).map(|up| &up.tenant) else { continue };
            let is_first = self.tenants.insert(tenant.name.clone(), tenant.clone()).is_none();
            if is_first && before.get(&tenant.name) != Some(tenant) {
                if let Some(of) = self.devices.get(device) {
                    of.worker.send(Command::Review(Box::new(tenant.clone())));
                }
            }
        }
        let line_rate = broker.policy().line_rate.unwrap_or(0);
        if std::mem::replace(&mut self.line_rate, line_rate) != line_rate {
            self.devices.values().for_each(|d| d.worker.send(Command::LimitLine(line_rate)));
        }
    }

    /// Ends a session, and destroys what it has made.
    pub(super) fn leave(&mut self, id: SessionId) {
        if let Some((device, _)) = self.sessions.remove(&id) {
            if let Some(of) = self.devices.get(&device) {
                of.worker.send(Command::Leave(id));
            }
        }
    }

    /// Sessions that a worker has given up, and why where it was not by their fault.
    pub(super) fn broken(&self) -> Vec<(SessionId, Option<String>)> {
        while matches!(sys::read(&self.news, &mut [0; 64]), Ok(1..)) {}
        let take = |(name, d): (&String, &Device)| {
            let why = d.is_gone().then(|| device_gone(name));
            let broken =
                std::mem::take(&mut *d.told.broken.lock().unwrap_or_else(PoisonError::into_inner));
            broken.into_iter().map(move |id| (id, why.clone()))
        };
        self.devices.iter().flat_map(take).collect()
    }

    /// A session's device and counts.
    pub(super) fn session(&self, id: SessionId) -> Option<(&str, &Counts)> {
        self.sessions.get(&id).map(|(device, counts)| (device.as_str(), &**counts))
    }

    /// The devices, and how many objects are on each.
    pub(super) fn devices(&self) -> impl Iterator<Item = (&str, u64)> {
        let objects = |d: &Device| d.told.objects.load(Ordering::Relaxed);
        self.devices.iter().map(move |(name, d)| (name.as_str(), objects(d)))
    }
}
