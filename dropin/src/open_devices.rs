//! The devices of this process: every entry that the list ever had, and the open devices.
//!
//! Entries are never freed, since programs keep pointers to them; an address keeps its entry and
//! name.

use crate::abi::ibv_device;
use crate::adapter::{places, Adapter};
use crate::fork_verbs::PAGES_MOVE;
use crate::hca::Hca;
use crate::worker::{HelperThread, Sleep};
use crate::{env, object_numbers, stats_printer};
use core::sync::atomic::Ordering;
use gdrcore_calls::options;
use gdrcore_core::counters::Counters;
use gdrcore_core::Result;
use gdrcore_net::fork::around_forks;
use gdrcore_net::reason;
use gdrcore_net::thread_lock::{back_off, ForkLock};
use gdrcore_net::threads::with_stack;
use std::sync::Once;

/// All entries that the list ever had, and the open devices.
pub struct HcaList {
    pub adapters: Vec<&'static Adapter>,
    pub open: Vec<OpenHca>,
    /// Devices of routers that a thread opens, with the process of the thread: the child of a fork
    /// has none of its parent's.
    opening: Vec<(u32, u32)>,
    /// Counters of devices that were closed.
    closed: ClosedCounters,
}

/// An open device, and the number of its contexts.
pub struct OpenHca {
    pub index: u32,
    pub contexts: u32,
    pub hca: &'static Hca,
}

impl OpenHca {
    /// The device, for one more context. [`put`] is the opposite.
    pub fn hold(&mut self) -> &'static Hca {
        self.contexts += 1;
        self.hca
    }
}

/// The process's devices.
pub static STATE: ForkLock<HcaList> = ForkLock::new(HcaList {
    adapters: Vec::new(),
    open: Vec::new(),
    opening: Vec::new(),
    closed: ClosedCounters::new(),
});

/// The sum of the counters of devices that this process has closed.
struct ClosedCounters {
    /// The process that closed them; a child of fork starts with none.
    owner: libc::pid_t,
    sum: Counters,
}

impl ClosedCounters {
    const fn new() -> Self {
        ClosedCounters { owner: 0, sum: Counters::ZERO }
    }

    /// The sum; it starts at 0 in the child of a fork.
    fn current(&mut self) -> &mut Counters {
        let pid = std::process::id() as libc::pid_t;
        if self.owner != pid {
            *self = ClosedCounters { owner: pid, sum: Counters::ZERO };
        }
        &mut self.sum
    }
}

/// Holds the list's lock around every later fork.
pub fn guard_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Numbers are freed under the list's lock, so the list's lock must be held first: its pair
        // is registered last.
        object_numbers::guard_forks();
        around_forks(hold, release);
    });
}

fork_handlers!(STATE);

/// The entries of the present list: those of present addresses, and those of devices that are open
/// here.
pub fn present() -> Vec<&'static Adapter> {
    let places = places();
    let only = env::text(&options::DEVICE);
    let mut state = STATE.lock();
    let mut list = Vec::new();
    for place in places {
        let known =
            state.adapters.iter().find(|a| (a.endpoint, a.router) == (place.0, place.2)).copied();
        let adapter = known.unwrap_or_else(|| {
            let index = state.adapters.len() as u32;
            let fresh: &'static Adapter = Box::leak(Box::new(Adapter::new(index, place)));
            state.adapters.push(fresh);
            fresh
        });
        if only.as_ref().is_none_or(|name| *name == adapter.name()) {
            list.push(adapter);
        }
    }
    let is_left = |a: &&&'static Adapter| {
        state.open.iter().any(|o| o.index == a.index) && list.iter().all(|l| l.index != a.index)
    };
    let left: Vec<_> = state.adapters.iter().filter(is_left).copied().collect();
    list.extend(left);
    list
}

/// Whether a program's pointer points to an entry.
pub fn is_listed(device: *const ibv_device) -> bool {
    STATE.lock().adapters.iter().any(|a| core::ptr::eq(&a.ibv, device))
}

/// The device of an entry, for one more context; opens it if it is not open. [`put`] is the
/// opposite.
///
/// # Errors
/// Those of [`Hca::open`].
pub fn get(adapter: &'static Adapter) -> Result<&'static Hca> {
    let own = (std::process::id(), adapter.index);
    let mut tries = 0;
    let mut state = loop {
        let mut state = STATE.lock();
        // A parent process's devices do not count.
        state.open.retain(|o| o.hca.check().is_ok());
        state.opening.retain(|(process, _)| *process == own.0);
        // A new context on a device whose router has ended gets a device of the next router.
        let serves = |o: &&mut OpenHca| o.index == adapter.index && !o.hca.is_lost();
        if let Some(o) = state.open.iter_mut().find(serves) {
            return Ok(o.hold());
        }
        if !state.opening.contains(&own) {
            break state;
        }
        drop(state);
        back_off(tries);
        tries = tries.saturating_add(1);
    };
    stats_printer::install(total);
    let opened;
    if adapter.router.is_some() {
        // A router may be slow to answer, and a fork waits for the list.
        state.opening.push(own);
        drop(state);
        opened = open(adapter);
        state = STATE.lock();
        state.opening.retain(|o| *o != own);
    } else {
        // The child of a fork must not have an address that is half open.
        opened = open(adapter);
    }
    let hca = opened?;
    state.open.push(OpenHca { index: adapter.index, contexts: 1, hca });
    drop(state);
    EVENTS.wake();
    Ok(hca)
}

/// Opens the device of an entry, and starts the thread of its events, if it has none of its own.
fn open(adapter: &'static Adapter) -> Result<&'static Hca> {
    let hca = with_stack("gdrc-open", || {
        // The reason for a refusal is recorded per thread.
        reason::install();
        reason::clear();
        Hca::open(adapter).inspect_err(|&e| {
            reason::note_returned(e);
            reason::with_text(|words| {
                env::say(&format!("{} ({}): {words}", adapter.name(), adapter.endpoint))
            });
        })
    })?;
    if hca.soft().is_none() {
        PAGES_MOVE.store(true, Ordering::Relaxed);
        let started = EVENTS.start("gdrc-events", |_| deliver());
        started.inspect_err(|_| {
            // SAFETY: nobody else knows the device.
            unsafe { hca.close() };
        })?;
    }
    Ok(hca)
}

/// The thread that delivers the events of devices that have no thread in this process.
static EVENTS: HelperThread = HelperThread::new();

/// Delivers what there is. The lock keeps the devices open.
fn deliver() -> Sleep {
    let state = STATE.lock();
    let readable = state.open.iter().filter_map(|o| o.hca.pump()).collect();
    Sleep { readable, ..Sleep::default() }
}

/// Removes one context from an open device. Without any context the device is closed.
pub fn put(hca: &'static Hca) {
    let mut state = STATE.lock();
    let Some(at) = state.open.iter().position(|o| core::ptr::eq(o.hca, hca)) else { return };
    state.open[at].contexts -= 1;
    if state.open[at].contexts > 0 {
        return;
    }
    state.open.remove(at);
    // A device here has its address until it is closed, so the next one waits. A router may be slow
    // to answer, and a fork waits for the list.
    let mut held = hca.soft().is_some().then_some(state);
    let counters = hca.device.counters().unwrap_or_default();
    // SAFETY: no context is left, so no object of theirs may be used any more.
    unsafe { hca.close() };
    held.get_or_insert_with(|| STATE.lock()).closed.current().add(&counters);
}

/// Asks the open device of an entry. It stays open meanwhile, and the list is not locked, because a
/// router may be slow to answer. `None`: it is not open.
pub fn ask<T>(index: u32, question: impl FnOnce(&Hca) -> T) -> Option<T> {
    let hca = STATE.lock().open.iter_mut().find(|o| o.index == index).map(OpenHca::hold)?;
    let answer = question(hca);
    put(hca);
    Some(answer)
}

/// The sum of the counters of all devices that the process has open or had open.
fn total() -> Counters {
    let mut state = STATE.lock();
    let mut all = *state.closed.current();
    let open: Vec<_> = state.open.iter_mut().map(OpenHca::hold).collect();
    drop(state);
    for hca in open {
        all.add(&hca.device.counters().unwrap_or_default());
        put(hca);
    }
    all
}
