//! Closes descriptors and mappings that other processes made, on threads that serve nobody.
//!
//! The last close of a descriptor takes as long as its maker likes: a socket lingers, a file's
//! server does not answer, a large memfd has many pages, and a Unix socket has such descriptors in
//! its queue. So a thread that serves anyone passes such a thing to [`close_later`]. A closing
//! thread starts for it, and ends when nothing is left. There are several closing threads, so that
//! a slow close delays no other. While many things wait, nothing further is taken from other
//! processes ([`is_full`]).

use crate::fork::ForkGuard;
use crate::map::Map;
use crate::threads::{taken_by_libc, HelperSignals};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::os::fd::RawFd;

/// Most things that wait at a time. A further one is closed at once.
const ROOM: usize = 1024;
/// Waiting things from which on nothing further is taken from other processes.
const MANY: usize = ROOM / 2;
/// Threads at a time.
const THREADS: u64 = 4;
/// Bytes of stack of a thread.
const STACK: usize = 256 << 10;

/// A thing to close: a descriptor (its number, 0), or a mapping (address, bytes).
#[derive(Clone, Copy, Debug)]
struct Resource(u64, u64);

impl Resource {
    fn close(self) {
        match self {
            // SAFETY: whoever handed it over has given it up.
            Resource(fd, 0) => unsafe { libc::close(fd as RawFd) },
            // SAFETY: as above: a whole mapping that nobody uses any more.
            Resource(at, len) => unsafe {
                libc::munmap(core::ptr::with_exposed_provenance_mut(at as usize), len as usize)
            },
        };
    }
}

/// A place for a thing that waits. One thread at a time has the place in state [`HELD`].
struct Slot {
    state: AtomicU32,
    thing: [AtomicU64; 2],
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const FILLED: u32 = 2;

impl Slot {
    /// Changes one state to [`HELD`]. False: the place is in another state.
    fn hold(&self, from: u32) -> bool {
        self.state.load(SeqCst) == from
            && self.state.compare_exchange(from, HELD, SeqCst, SeqCst).is_ok()
    }
}

static PLACES: [Slot; ROOM] =
    [const { Slot { state: AtomicU32::new(FREE), thing: [const { AtomicU64::new(0) }; 2] } }; ROOM];
/// Things that wait or are being closed.
static LEFT: AtomicUsize = AtomicUsize::new(0);
/// The running threads, in the lowest byte, of the process whose word is above: a forked child has
/// the things, but not the threads.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// The upper bytes of [`RUNNING`] in this process.
fn process() -> u64 {
    ForkGuard::new().word() << 8
}

/// Closes a descriptor that its owner gives up, on another thread. Any thread; never waits.
pub(crate) fn close_later(fd: RawFd) {
    hand_over(Resource(fd as u64, 0));
}

/// As [`close_later`], for a mapping.
pub(crate) fn unmap_later(map: Map) {
    let (at, len) = map.into_raw();
    hand_over(Resource(at.expose_provenance() as u64, len as u64));
}

/// Whether so many things wait that nothing further may be taken from other processes.
pub fn is_full() -> bool {
    LEFT.load(SeqCst) >= MANY
}

fn hand_over(thing: Resource) {
    LEFT.fetch_add(1, SeqCst);
    let Some(place) = PLACES.iter().find(|place| place.hold(FREE)) else { return end(thing) };
    place.thing[0].store(thing.0, SeqCst);
    place.thing[1].store(thing.1, SeqCst);
    place.state.store(FILLED, SeqCst);
    if !start_if_needed() {
        // No thread could be made, and the thing must not stay open.
        close_all();
    }
}

/// Starts a thread, unless there are enough. False: no thread runs, and none can be made.
fn start_if_needed() -> bool {
    !enter() || start() || !leave() || RUNNING.load(SeqCst) & 0xff > 0
}

/// Counts one more thread. False: there are enough.
fn enter() -> bool {
    let own = process();
    let more = |now| match now & 0xff {
        _ if now & !0xff != own => Some(own | 1),
        running => (running < THREADS).then(|| now + 1),
    };
    RUNNING.fetch_update(SeqCst, SeqCst, more).is_ok()
}

fn is_any_left() -> bool {
    PLACES.iter().any(|place| place.state.load(SeqCst) == FILLED)
}

fn end(thing: Resource) {
    thing.close();
    LEFT.fetch_sub(1, SeqCst);
}

fn close_all() {
    for place in PLACES.iter().filter(|place| place.hold(FILLED)) {
        let thing = Resource(place.thing[0].load(SeqCst), place.thing[1].load(SeqCst));
        place.state.store(FREE, SeqCst);
        if is_any_left() {
            // This close may take long.
            start_if_needed();
        }
        end(thing);
    }
}

/// Counts one thread less. False: the count is now of another process's threads.
fn leave() -> bool {
    let own = process();
    let less = |now| (now & !0xff == own && now & 0xff > 0).then(|| now - 1);
    RUNNING.fetch_update(SeqCst, SeqCst, less).is_ok()
}

/// Starts a thread. False: the system gives none.
fn start() -> bool {
    let _masked = HelperSignals::take();
    // SAFETY: zeroes may be initialised; the attributes live through the calls, and the thread gets
    // no pointer.
    unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        let mut id: libc::pthread_t = core::mem::zeroed();
        if libc::pthread_attr_init(&mut attributes) != 0 {
            return false;
        }
        // By pthreads, since std's threads allocate.
        libc::pthread_attr_setstacksize(&mut attributes, STACK + taken_by_libc());
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let rc = libc::pthread_create(&mut id, &attributes, run, core::ptr::null_mut());
        libc::pthread_attr_destroy(&mut attributes);
        rc == 0
    }
}

extern "C" fn run(_: *mut core::ffi::c_void) -> *mut core::ffi::c_void {
    loop {
        close_all();
        // A thing that was passed on before the thread left relies on this thread.
        if !leave() || !is_any_left() || !enter() {
            return core::ptr::null_mut();
        }
    }
}
