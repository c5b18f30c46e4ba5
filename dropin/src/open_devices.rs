//! The devices of this process: every entry that the list ever had, and the open devices.
//!
//! Entries are never freed, since programs keep pointers to them; an address keeps its entry and
//! name.

use crate::abi::ibv_device;
use crate::adapter::{places, Adapter};
use crate::fork_verbs::around_forks;
use crate::hca::Hca;
use crate::thread_lock::ForkLock;
use crate::{env, object_numbers, stats_printer};
use gdrcore_core::counters::Counters;
use gdrcore_core::device::Device;
use gdrcore_core::Result;
use gdrcore_net::reason;
use gdrcore_net::threads::with_stack;
use std::sync::Once;

/// All entries that the list ever had, and the open devices.
pub struct State {
    pub adapters: Vec<&'static Adapter>,
    pub open: Vec<OpenHca>,
    /// Counters of devices that were closed.
    closed: ClosedCounters,
}

/// An open device and how many contexts it has.
pub struct OpenHca {
    pub index: u32,
    pub contexts: u32,
    pub hca: &'static Hca,
}

/// The process's devices.
pub static STATE: ForkLock<State> =
    ForkLock::new(State { adapters: Vec::new(), open: Vec::new(), closed: ClosedCounters::new() });

/// The sum of the counters of devices that this process has closed.
struct ClosedCounters {
    /// The process that closed them: a child of fork begins with none.
    owner: libc::pid_t,
    sum: Counters,
}

impl ClosedCounters {
    const fn new() -> Self {
        ClosedCounters { owner: 0, sum: Counters::ZERO }
    }

    /// The sum, which begins at 0 in the child of a fork.
    fn own(&mut self) -> &mut Counters {
        let pid = std::process::id() as libc::pid_t;
        if self.owner != pid {
            *self = ClosedCounters { owner: pid, sum: Counters::ZERO };
        }
        &mut self.sum
    }
}

/// Holds the lock of the list around every later fork.
pub fn guard_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The pair that is registered last holds first: numbers are freed under the list's lock.
        object_numbers::guard_forks();
        around_forks(hold, release);
    });
}

extern "C" fn hold() {
    STATE.hold();
}

extern "C" fn release() {
    STATE.release();
}

/// The entries of the current list: the addresses that are there, and those of devices that are
/// open here.
pub fn present() -> Vec<&'static Adapter> {
    let places = places();
    let only = env::device();
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

/// Whether a pointer of a program is that of an entry.
pub fn is_listed(device: *const ibv_device) -> bool {
    STATE.lock().adapters.iter().any(|a| core::ptr::eq(&a.ibv, device))
}

/// The open device of an entry, opened if it is not, for one more context. [`put`] releases it.
///
/// # Errors
/// Those of [`Hca::open`].
pub fn get(adapter: &'static Adapter) -> Result<&'static Hca> {
    let mut state = STATE.lock();
    // Devices of a parent process do not belong to this process.
    state.open.retain(|o| o.hca.check().is_ok());
    if let Some(o) = state.open.iter_mut().find(|o| o.index == adapter.index) {
        o.contexts += 1;
        return Ok(o.hca);
    }
    stats_printer::install(total);
    let hca = with_stack("gdrc-open", || {
        // Reasons are recorded for the thread that was refused.
        reason::install();
        reason::clear();
        Hca::open(adapter).inspect_err(|&e| {
            reason::returned(e);
            reason::with(|words| {
                env::say(&format!("{} ({}): {words}", adapter.name(), adapter.endpoint))
            });
        })
    })?;
    state.open.push(OpenHca { index: adapter.index, contexts: 1, hca });
    Ok(hca)
}

/// Removes one context from an open device; without any it is closed.
pub fn put(hca: &'static Hca) {
    let mut state = STATE.lock();
    let Some(at) = state.open.iter().position(|o| core::ptr::eq(o.hca, hca)) else { return };
    state.open[at].contexts -= 1;
    if state.open[at].contexts == 0 {
        state.open.remove(at);
        if let Ok(counters) = hca.device.counters() {
            state.closed.own().add(&counters);
        }
        // SAFETY: no context is left, so no object of theirs may be used any more.
        unsafe { hca.close() };
    }
}

/// The sum of the counters of all devices that the process has or had open.
fn total() -> Counters {
    // Open devices stay while the list is locked.
    let mut state = STATE.lock();
    let mut all = *state.closed.own();
    for counters in state.open.iter().filter_map(|o| o.hca.device.counters().ok()) {
        all.add(&counters);
    }
    all
}
