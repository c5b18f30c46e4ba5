//! The end of a process that has devices open. A NIC and a kernel continue when a process ends;
//! these devices end with it. So at each end that runs our code (`exit`, `quick_exit`, dlclose) a
//! device first sends the packets that its peers wait for. After `_exit` or a kill, peers notice
//! the end by receipts, by connections that end, or by keepalive.

use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::lock::ControlGuard;
use super::SoftEngine;
use crate::clock::now_ns;
use crate::fault;
use crate::fork::{process_word, wipe_in_children, ForkGuard, PAGE_BYTES};
use gdrcore_core::mem::host::fetch;

/// Open devices that are noted here. Further ones end without sending anything.
const KNOWN: usize = 1024;
/// Attempts at the engine's lock, with a yield each: the exiting thread may be in a signal handler
/// that has interrupted the lock's holder.
const LOCK_TRIES: u32 = 4096;

/// The devices, in pages of their own, which are wiped in the child of a fork.
#[repr(C, align(4096))]
struct Open([AtomicPtr<SoftEngine>; KNOWN]);

const _: () = assert!(size_of::<Open>().is_multiple_of(PAGE_BYTES));

/// The open devices of this process; the lowest bit: [`leave`] is using it.
static OPEN: Open = Open([const { AtomicPtr::new(core::ptr::null_mut()) }; KNOWN]);
/// Whether fork() runs [`wipe`].
static WIPES: AtomicBool = AtomicBool::new(false);

extern "C" fn wipe() {
    OPEN.0.iter().for_each(|slot| slot.store(core::ptr::null_mut(), Ordering::Relaxed));
}

extern "C" {
    /// quick_exit(3); in the libc crate for some systems only.
    fn at_quick_exit(handler: extern "C" fn()) -> libc::c_int;
}

/// Marks a device as in use by the lowest bit, which is free: devices lie at page boundaries.
fn mark_in_use(device: *mut SoftEngine) -> *mut SoftEngine {
    device.map_addr(|at| at | 1)
}

/// Notes an open device.
pub(super) fn note_open(device: &'static SoftEngine) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        // SAFETY: a function of this library; glibc forgets it when the library is closed.
        unsafe { at_quick_exit(leave) };
    }
    // SAFETY: pages of our own, of atomics that may be 0; the handler only stores to them.
    unsafe { wipe_in_children((&raw const OPEN).cast(), size_of::<Open>(), wipe, &WIPES) };
    let at: *const SoftEngine = device;
    let null = core::ptr::null_mut();
    for slot in &OPEN.0 {
        if slot.compare_exchange(null, at.cast_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// Forgets a device that is about to be closed.
pub(super) fn note_closed(device: &SoftEngine) {
    let at: *const SoftEngine = device;
    let (at, null) = (at.cast_mut(), core::ptr::null_mut());
    let is = |slot: &&AtomicPtr<SoftEngine>| {
        let found = slot.load(Ordering::Relaxed);
        found == at || found == mark_in_use(at)
    };
    let Some(slot) = OPEN.0.iter().find(is) else { return };
    while slot.compare_exchange(at, null, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        std::thread::yield_now();
    }
}

/// Whether a device is still in its memory, and is this process's. A program may free or unmap the
/// memory of a context that it has not closed, and then exit.
fn is_there(at: *const SoftEngine) -> bool {
    let guard = at.wrapping_byte_add(core::mem::offset_of!(SoftEngine, fork));
    let mut word = [0; size_of::<ForkGuard>()];
    fetch(guard.expose_provenance() as u64, &mut word).is_ok()
        && u64::from_ne_bytes(word) == process_word()
}

/// Lets all open devices send the packets that their peers wait for. All ACKs leave first: the end
/// of a connection ends the peer's requests, and its queue pair may be another engine's.
pub extern "C" fn leave() {
    _ = leave_all();
}

/// As [`leave`]. Returns the number of devices in which a thread is, or whose helper runs.
fn leave_all() -> usize {
    OPEN.0.iter().for_each(|slot| _ = leave_one(slot, Last::Acks));
    let busy = OPEN.0.iter().filter(|slot| !leave_one(slot, Last::Connections)).count();
    crate::inject::report();
    busy
}

/// The messages that a device sends before its process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Acks,
    Connections,
}

/// As [`leave`], at an end after which no code of this library is called.
extern "C" fn leave_for_ever() {
    // A thread in a device may still copy memory and need the handlers. A running helper keeps the
    // library loaded.
    if leave_all() == 0 {
        fault::uninstall();
    }
}

/// Does [`leave`] for the device of one slot. False: a thread is in the device, or its helper runs.
fn leave_one(slot: &AtomicPtr<SoftEngine>, last: Last) -> bool {
    let at = slot.load(Ordering::Acquire);
    let mut is_idle = true;
    if at.is_null() || at == mark_in_use(at) {
        return at.is_null();
    }
    if slot.compare_exchange(at, mark_in_use(at), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        if is_there(at) {
            // SAFETY: a device stays until `remove` has taken it from its slot, which waits.
            let device = unsafe { &*at };
            is_idle = device.end_in_order(last) && !device.helper_on.load(Ordering::Relaxed);
        }
        slot.store(at, Ordering::Release);
    }
    is_idle
}

/// exit(3) and dlclose(3) call it, after the handlers that the program gave to `atexit`.
#[used]
#[link_section = ".fini_array"]
static AT_LAST: extern "C" fn() = leave_for_ever;

/// Control: the end of the process.
impl SoftEngine {
    /// Sends the packets that peers wait for: ACKs of accepted requests, or the end of connections
    /// as well. False: another thread is in the engine.
    fn end_in_order(&self, last: Last) -> bool {
        for _ in 0..LOCK_TRIES {
            if let Some(mut held) = self.try_lock().map(ControlGuard::new) {
                self.release_held(&mut held, None);
                match last {
                    Last::Acks => self.drain_and_ack_locked(held, None),
                    Last::Connections => self.end_connections(held),
                }
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// Ends all connections, after the last ACKs.
    pub(super) fn end_connections<'d>(&'d self, mut held: ControlGuard<'d>) {
        held.cm().leave(now_ns());
        self.drain_and_ack_locked(held, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::DeviceName;
    use crate::map::Map;
    use crate::soft::SoftConfig;

    #[test]
    fn a_device_whose_memory_is_gone_is_left_alone() {
        let config = SoftConfig::default();
        let memory =
            Map::new(SoftEngine::memsize(&DeviceName::Loopback, &config, None).unwrap()).unwrap();
        // SAFETY: fresh pages; the device is not used any more when they are unmapped.
        let device = unsafe {
            SoftEngine::init(memory.as_ptr(), memory.len(), &DeviceName::Loopback, &config, None)
                .unwrap()
        };
        let at: *const SoftEngine = device;
        let is = |slot: &&AtomicPtr<SoftEngine>| slot.load(Ordering::Relaxed) == at.cast_mut();
        let slot = OPEN.0.iter().find(is).expect("an open device");
        // Only this device's slot: other tests have devices meanwhile.
        assert!(is_there(at));
        assert!(leave_one(slot, Last::Connections));
        drop(memory);
        assert!(!is_there(at));
        assert!(leave_one(slot, Last::Connections));
        slot.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}
