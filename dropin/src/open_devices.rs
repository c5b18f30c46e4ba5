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

/// An open device, and the number of its contexts.
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
    /// The process that closed them; a child of fork starts with none.
    owner: libc::pid_t,
    sum: Counters,
}

impl ClosedCounters {
    const fn new() -> Self {
        ClosedCounters { owner: 0, sum: Counters::ZERO }
    }

    /// The sum; it starts at 0 in the child of a fork.
    fn own(&mut self) -> &mut Counters {
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

extern "C" fn hold() {
    STATE.hold();
}

extern "C" fn release() {
    STATE.release();
}

/// The entries of the present list: those of present addresses, and those of devices that are open
/// here.
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
    let mut state = STATE.lock();
    // A parent process's devices do not count.
    state.open.retain(|o| o.hca.check().is_ok());
    if let Some(o) = state.open.iter_mut().find(|o| o.index == adapter.index) {
        o.contexts += 1;
        return Ok(o.hca);
    }
    stats_printer::install(total);
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
    state.open.push(OpenHca { index: adapter.index, contexts: 1, hca });
    Ok(hca)
}

/// Removes one context from an open device. Without any context the device is closed.
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

/// The sum of the counters of all devices that the process has open or had open.
fn total() -> Counters {
    // The lock keeps the devices open.
    let mut state = STATE.lock();
    let mut all = *state.closed.own();
    for counters in state.open.iter().filter_map(|o| o.hca.device.counters().ok()) {
        all.add(&counters);
    }
    all
}
