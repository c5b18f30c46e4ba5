//! All sessions of a device, served in rounds by one thread.

use super::calls;
use super::cm::{self, EVENTS_PER_ROUND};
use super::guard::Guard;
use super::pace::Pace;
use super::posts::{Scratch, SENDS_PER_ROUND};
use super::session::{Owners, Session, Sessions, IDLE};
use super::shared_device::SharedDevice;
use super::shares::Shares;
use crate::policy::Tenant;
use gdrcore_core::device::{Device, Leaks};
use gdrcore_core::error::Error;
use gdrcore_core::sleep::ANY;
use gdrcore_net::clock::now_ns;
use gdrcore_net::reason::{install, note_returned, with_text};
use gdrcore_net::remote::call::{answer, parse_request, BELL, MESSAGE_MAX};
use gdrcore_net::rights::Foreign;
use gdrcore_net::threads::own_cpu;
use gdrcore_net::via::wire::{receive, send_bytes, Buffer, ReadOutcome};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Calls of a session in a round.
const CALLS_PER_ROUND: usize = 16;
/// Requests of all sessions in a round, where a tenant has a limit.
const METERED_PER_ROUND: usize = 512;

/// The sessions of a device.
pub struct Server {
    pub(super) shared: SharedDevice,
    pub(super) sessions: Sessions,
    owners: Owners,
    scratch: Box<Scratch>,
    buffer: Box<Buffer>,
    /// Sessions that have sent what no program of ours sends, or are gone.
    broken: Vec<u32>,
    guard: Arc<Guard>,
    shares: Shares,
    /// A tenant has a limit.
    is_metered: bool,
    /// The device's descriptor was readable.
    told: bool,
    pace: Pace,
    /// On which it runs.
    cpu: u32,
    gone: bool,
}

impl Server {
    /// A server of a device, without sessions.
    pub fn new(shared: SharedDevice) -> Server {
        // Refusals travel to the tenant with their words.
        install();
        let guard = shared.device().query().map(|attr| Guard::of(&attr)).unwrap_or_default();
        Server {
            guard: Arc::new(guard),
            shares: Shares::new(),
            is_metered: false,
            shared,
            sessions: Sessions::default(),
            owners: Owners::new(),
            scratch: Scratch::new(),
            buffer: Box::new([0; MESSAGE_MAX + 1]),
            broken: Vec::new(),
            told: true,
            pace: Pace::default(),
            cpu: u32::MAX,
            gone: false,
        }
    }

    /// Adds a session of a tenant. On a device that is gone, or has too many, it ends at once
    /// ([`Server::take_broken`]).
    pub fn join(&mut self, mut session: Session, tenant: &Tenant) {
        let number = session.number;
        let place =
            self.shares.number(tenant).and_then(|of| Some((of, self.shares.join(number, of)?)));
        let Some((of, slot)) = place.filter(|_| !self.gone) else {
            return self.broken.push(number);
        };
        (session.tenant, session.slot, session.guard) = (of, slot, self.guard.clone());
        session.memory = tenant.memory.unwrap_or(self.shared.memory());
        session.door.set_cpu(self.cpu);
        self.sessions.add(session);
        self.rule(of, tenant);
    }

    /// Puts the rules and limits of a tenant in force, if it has had a session.
    pub fn review(&mut self, tenant: &Tenant) {
        if let Some(of) = self.shares.known(tenant) {
            self.rule(of, tenant);
            let device = self.shared.device();
            self.sessions.iter_mut().for_each(|s| s.part(device));
        }
    }

    fn rule(&mut self, of: u16, tenant: &Tenant) {
        self.guard.set(of, tenant);
        self.shares.limit(now_ns(), of, &tenant.limits);
        self.meter();
    }

    /// Sets the rate of the whole device; 0: no limit.
    pub fn limit_line(&mut self, rate: u64) {
        self.shares.limit_line(now_ns(), rate);
        self.meter();
    }

    fn meter(&mut self) {
        self.is_metered = self.shares.are_limited();
        self.sessions.iter_mut().for_each(|s| s.meter(self.is_metered));
    }

    /// Notes that the device's descriptor was readable: the next round looks at its events.
    pub fn note_readable(&mut self) {
        self.told = true;
    }

    /// Whether the device is gone, as a NIC that was removed. Its sessions have ended then.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Ends a session, and destroys what it has made. False: there is none of this number.
    pub fn leave(&mut self, number: u32) -> bool {
        let session = self.sessions.remove(number);
        let found = session.is_some();
        if let Some(session) = session {
            self.shares.leave(session.slot, session.tenant);
            self.meter();
            session.end(&mut self.shared, &mut self.owners);
        }
        found
    }

    /// Readable when the device has work.
    ///
    /// # Errors
    /// As [`SharedDevice::fd`].
    pub fn fd(&self) -> gdrcore_core::Result<BorrowedFd<'_>> {
        self.shared.fd()
    }

    /// Objects on the device.
    pub fn leaks(&self) -> Leaks {
        self.shared.leaks().unwrap_or_default()
    }

    /// Takes the numbers of sessions that have ended here by a fault, or did not begin: their
    /// connections are to be closed.
    pub fn take_broken(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.broken)
    }

    /// Ends a session for a fault of its own; [`Server::take_broken`] then has its number.
    pub fn give_up(&mut self, number: u32) {
        if self.leave(number) {
            self.broken.push(number);
        }
    }

    /// Posts requests: receives first ([`Session::begin`]). `caller`: a session of which all sends
    /// are posted, not those of a round. True: there was one.
    fn post(&mut self, caller: Option<u32>) -> bool {
        let Server { shared, sessions, scratch, shares, is_metered, .. } = self;
        let device = shared.device();
        let before = scratch.judged;
        let mut waits = false;
        for s in sessions.iter_mut() {
            let most = if caller == Some(s.number) { u32::MAX } else { SENDS_PER_ROUND };
            waits |= s.begin(most);
        }
        sessions.iter_mut().for_each(|s| s.post_receives(device, scratch));
        if waits && *is_metered {
            sessions.iter_mut().for_each(|s| s.post_flushed(device, scratch));
            post_shared(device, sessions, shares, scratch);
        } else if waits {
            sessions.iter_mut().for_each(|s| s.post_sends(device, scratch));
        }
        // A request that got Again does not count as work.
        scratch.judged != before
    }

    /// Posts requests, moves completions, and runs the device and passes its events on where that
    /// is due. Allocates nothing, unless a session ends or the connection manager has an event.
    /// True: there was something to do.
    pub fn round(&mut self) -> bool {
        let posted = self.post(None);
        let mut busy = posted | self.complete(IDLE);
        let is_nic = self.shared.is_nic();
        let is_due = match is_nic {
            // It works by itself, and each look at its events is a system call.
            true => core::mem::take(&mut self.told),
            false => {
                let now = now_ns();
                if busy {
                    self.pace.note_work(now);
                }
                self.pace.is_due(now)
            }
        };
        if is_due || is_nic {
            self.note_cpu();
        }
        if is_due {
            busy |= self.run_device();
        }
        // A post to a soft device may complete a request of another session, and cause an event.
        if is_due || !is_nic && posted && self.sessions.iter().any(Session::awaits_events) {
            busy |= self.take_cq_events();
        }
        if is_due {
            let Server { shared, sessions, owners, .. } = self;
            if sessions.iter().any(|s| s.cm_bell.is_some()) && shared.has_cm_events() {
                busy |= cm::pass_on(shared.device(), sessions, owners);
            }
            busy |= self.take_async_events();
        }
        if self.gone {
            let all = self.sessions.numbers();
            all.into_iter().for_each(|number| self.give_up(number));
        }
        busy
    }

    /// Tells the sessions on which CPU it runs: a tenant there gives its core away sooner.
    fn note_cpu(&mut self) {
        let cpu = own_cpu();
        if core::mem::replace(&mut self.cpu, cpu) != cpu {
            self.sessions.iter().for_each(|s| s.door.set_cpu(cpu));
        }
    }

    /// Moves completions, as [`Session::complete`], and ends sessions that are broken. True: there
    /// was one.
    fn complete(&mut self, idle: u32) -> bool {
        let device = self.shared.device();
        let (mut found, mut owes, mut awaits, mut bad) = (false, false, false, Vec::new());
        for session in self.sessions.iter_mut() {
            found |= session.complete(device, idle);
            if session.is_broken {
                bad.push(session.number);
            }
            owes |= session.owes;
            awaits |= session.owes && session.awaits_events();
        }
        if owes {
            // What was before may be of a CQ that is left to the device's events.
            if awaits {
                self.take_cq_events();
            }
            self.sessions.iter_mut().filter(|s| s.owes).for_each(|s| s.tell_owed(device));
        }
        bad.into_iter().for_each(|number| self.give_up(number));
        found
    }

    /// Runs the device. True: there was something to do.
    fn run_device(&mut self) -> bool {
        let ran = self.shared.device().progress();
        let handled = ran.is_ok_and(|packets| packets > 0);
        self.pace.note(now_ns(), handled);
        self.gone |= ran == Err(Error::NoDevice);
        handled
    }

    /// Takes the device's events of CQs. True: there was one.
    fn take_cq_events(&mut self) -> bool {
        let device = self.shared.device();
        let mut busy = false;
        for _ in 0..EVENTS_PER_ROUND {
            let Ok(Some(cq)) = device.cq_event() else { break };
            busy = true;
            let Some(&(number, cq)) = self.owners.get(&cq) else { continue };
            if let Some(session) = self.sessions.get(number) {
                session.note_event(device, cq);
            }
        }
        busy
    }

    /// Passes asynchronous events of the device on to their sessions. True: there was one.
    fn take_async_events(&mut self) -> bool {
        let Server { shared, sessions, owners, .. } = self;
        for n in 0..EVENTS_PER_ROUND {
            let Ok(Some(event)) = shared.device().async_event() else { return n > 0 };
            match owners.get(&event.handle) {
                Some(&(number, handle)) => {
                    sessions.get(number).iter().for_each(|s| s.tell_async(event.event, handle))
                }
                None if event.handle == 0 => {
                    sessions.iter().for_each(|s| s.tell_async(event.event, 0))
                }
                None => {}
            }
        }
        true
    }

    /// Executes the calls of a session that have come. True: there was one, or a bell.
    pub fn hear(&mut self, number: u32) -> bool {
        for n in 0..CALLS_PER_ROUND {
            let Some(session) = self.sessions.get(number) else { return n > 0 };
            let mut came = match receive(session.calls.as_fd(), &mut self.buffer) {
                ReadOutcome::Message(came) => came,
                ReadOutcome::Nothing => return n > 0,
                ReadOutcome::Gone => {
                    self.give_up(number);
                    return true;
                }
            };
            let fd = came.fds[0].take().filter(|_| came.count == 1);
            let Some((call, seq, words)) = parse_request(&self.buffer[..came.len]) else {
                self.give_up(number);
                return true;
            };
            if call == BELL {
                continue;
            }
            if !self.answer(number, (call, seq), &words, fd) {
                self.give_up(number);
                return true;
            }
        }
        true
    }

    /// Executes a call, and sends its answer. False: nobody is there to get it.
    fn answer(
        &mut self,
        number: u32,
        (call, seq): (u32, u32),
        words: &[u64],
        fd: Option<Foreign>,
    ) -> bool {
        self.post(Some(number));
        let Server { shared, sessions, owners, .. } = self;
        let Some(session) = sessions.get(number) else { return false };
        let mut context = calls::CallContext { shared, owners };
        let (result, fd) = match session.call(call, words, fd, &mut context) {
            Ok((words, fd)) => (Ok(words), fd),
            Err(e) => (Err(e), None),
        };
        let bytes = match result {
            Ok(words) => answer(seq, Ok(words), ""),
            Err(e) => {
                note_returned(e);
                answer(seq, Err(e), &with_text(|text| text.to_string()))
            }
        };
        // A session has one call at a time, so there is room for its answer.
        let sent = send_bytes(session.calls.as_fd(), &bytes, fd.as_ref().map(AsFd::as_fd));
        matches!(sent, Err(Error::Again) | Ok(()))
    }

    /// Executes the calls of all sessions that have come. True: there was one.
    pub fn hear_all(&mut self) -> bool {
        let all = self.sessions.numbers();
        all.into_iter().filter(|&number| self.hear(number)).count() > 0
    }

    /// Announces a sleep. Returns its milliseconds, -1: until something comes. `None`: there is
    /// work, do not sleep.
    pub fn prepare_sleep(&mut self) -> Option<i32> {
        self.sessions.iter().for_each(|s| s.door.asleep().announce(ANY));
        // The device's events tell of completions from here on, bells of requests.
        let found = self.complete(0);
        let news = |n, s: &mut Session| n | s.rest() | s.door.has_rung();
        let rung = self.sessions.iter_mut().fold(found, news);
        if rung || !self.gone && self.shared.device().arm() != Ok(false) {
            self.withdraw_sleep();
            return None;
        }
        // No bell tells of room that tenant or device make.
        let more = self.sessions.iter().any(Session::has_more);
        Some(if more { 1 } else { -1 })
    }

    /// The sleep is over.
    pub fn withdraw_sleep(&mut self) {
        self.sessions.iter().for_each(|s| s.door.asleep().withdraw());
    }
}

/// Posts the sends of a round in the order of the tenants' shares, as far as they have credit. What
/// is left waits for the next round.
fn post_shared(
    device: &dyn Device,
    sessions: &mut Sessions,
    shares: &mut Shares,
    scratch: &mut Scratch,
) {
    shares.begin();
    for s in sessions.iter() {
        shares.add(s.tenant, s.under_way());
    }
    for s in sessions.iter().filter(|s| !s.sends.is_empty()) {
        if shares.has_window(s.tenant) {
            shares.ready(s.slot);
        }
    }
    let now = now_ns();
    for _ in 0..METERED_PER_ROUND {
        let Some((slot, number)) = shares.next(now) else { break };
        // What was left of a round may find that its tenant has enough under way.
        let session = sessions.get(number).filter(|s| shares.has_window(s.tenant));
        let Some(s) = session else {
            shares.served(slot, false);
            continue;
        };
        let posted = s.post_one(device, scratch);
        if let Some(bytes) = posted {
            shares.charge(now, slot, bytes);
            shares.add(s.tenant, bytes);
        }
        let more = posted.is_some() && shares.has_window(s.tenant);
        shares.served(slot, more && !s.sends.is_empty());
    }
    sessions.iter_mut().for_each(|s| s.sends.clear());
}
