//! Fuzzes every C call over the real soft device, with arguments that are part valid, part stale,
//! part garbage, in any order.
//!
//! The caller's duties of the header are kept: a pointer is null, misaligned, or to live memory of
//! the promised size. Handles, lengths, flags, keys, counts, states, addresses in work requests and
//! the bytes of every struct come from the string. The device reads a real clock, so a string may
//! behave differently when repeated.
//!
//! * `make`: creates and destroys objects.
//! * `work`: requests and completions.
//! * `wild`: structs, names and texts of any bytes.

mod make;
mod wild;
mod work;

use core::ptr::{null, null_mut};
use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::collections::BTreeMap;

use gdrcore::*;

use crate::bytes::Bytes;
use crate::Coverage;

/// Coverage of strings: a test fails if they cause refusals only.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    /// For each call by name: how many times it succeeded, and how many times it refused.
    pub calls: BTreeMap<&'static str, [u64; 2]>,
    /// Completions with success.
    pub good: u64,
    /// Completions with an error.
    pub failed: u64,
    /// A bit for each completion status that occurred.
    pub statuses: u32,
}

impl Coverage for Reached {
    fn add(&mut self, other: &Reached) {
        other.calls.iter().for_each(|(name, n)| self.calls.entry(name).or_default().add(n));
        self.good.add(&other.good);
        self.failed.add(&other.failed);
        self.statuses |= other.statuses;
    }
}

impl Reached {
    fn note(&mut self, name: &'static str, rc: i32) {
        assert!(rc > -4096, "{name} returned {rc}, which is no errno");
        self.calls.entry(name).or_default()[usize::from(rc < 0)] += 1;
    }
}

/// A C call, counted under its name.
macro_rules! call {
    ($walk:expr, $f:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: every pointer is null, misaligned, or to live memory of the size that the call's
        // contract requires.
        let rc = unsafe { $f($($arg),*) };
        $walk.reached.note(stringify!($f), rc);
        rc
    }};
}
use call;

/// A zeroed struct with its size set, as C programs make it.
fn sized<T: Copy>() -> T {
    let mut v = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: used for repr(C) structs of the header that begin with u32 struct_size.
    unsafe { v.as_mut_ptr().cast::<u32>().write(size_of::<T>() as u32) };
    // SAFETY: integers and raw pointers: zero is a value of each.
    unsafe { v.assume_init() }
}

fn zeroed<T: Copy>() -> T {
    // SAFETY: used for repr(C) structs of integers, raw pointers and unions of integers.
    unsafe { core::mem::MaybeUninit::zeroed().assume_init() }
}

/// Bytes of memory that may be registered.
const MEM: usize = 1 << 16;
/// Bytes before and behind it that are never registered.
const GUARD: usize = 4096;
const FILL: u8 = 0xa5;

/// Memory that the device changes; no reference to it exists meanwhile.
struct Memory(*mut u8);

impl Memory {
    const BYTES: usize = MEM + 2 * GUARD;

    fn layout() -> Layout {
        Layout::from_size_align(Self::BYTES, 4096).expect("a power of two")
    }

    fn new() -> Memory {
        // SAFETY: the size is not zero.
        let at = unsafe { alloc_zeroed(Self::layout()) };
        assert!(!at.is_null());
        for guard in [0, GUARD + MEM] {
            // SAFETY: inside the allocation.
            unsafe { at.add(guard).write_bytes(FILL, GUARD) };
        }
        Memory(at)
    }

    /// An address inside the memory that may be registered.
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(GUARD + offset)
    }

    fn check(&self) {
        for guard in [0, GUARD + MEM] {
            // SAFETY: inside the allocation; nobody else is told of these bytes.
            let bytes = unsafe { core::slice::from_raw_parts(self.0.add(guard), GUARD) };
            assert!(bytes.iter().all(|&b| b == FILL), "a byte outside every region changed");
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated so in `new`; the context that knew it is closed.
        unsafe { dealloc(self.0, Self::layout()) };
    }
}

/// All handles of each kind that were ever made, also destroyed ones, and other results that later
/// calls take.
#[derive(Default)]
struct Made {
    pd: Vec<u64>,
    cq: Vec<u64>,
    mr: Vec<u64>,
    mw: Vec<u64>,
    qp: Vec<u64>,
    srq: Vec<u64>,
    xrcd: Vec<u64>,
    ah: Vec<u64>,
    keys: Vec<u64>,
    ends: Vec<gdrc_endpoint>,
}

struct Walk<'a> {
    input: Bytes<'a>,
    ctx: *mut gdrc_context,
    made: Made,
    reached: Reached,
    memory: Memory,
    /// Memory given to the arena, which uses it until the context closes.
    lent: Vec<Memory>,
}

const ALL_ACCESS: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::MW_BIND
    | access::FLUSH_GLOBAL;

impl Walk<'_> {
    fn new(data: &[u8]) -> Walk<'_> {
        let mut config: gdrc_config = sized();
        (config.max_qp, config.max_cq, config.max_pd, config.max_mr) = (8, 8, 4, 12);
        (config.max_srq, config.max_ah, config.deadline_ms, config.ring_bytes) = (3, 3, 5, 1 << 20);
        config.seed = 7;
        // One string in four meets a device of several engines, all of one thread.
        config.engines = 1 + u32::from(data.len() % 4 == 3);
        let mut ctx = null_mut();
        let mut reached = Reached::default();
        // SAFETY: a C string, a live struct and a place for the result.
        let rc = unsafe { gdrc_open(c"loopback".as_ptr(), &config, &mut ctx) };
        reached.note("gdrc_open", rc);
        assert_eq!(rc, 0, "no device");
        let (made, memory, lent) = (Made::default(), Memory::new(), Vec::new());
        Walk { input: Bytes::new(data), ctx, made, reached, memory, lent }
    }

    /// The context; sometimes null.
    fn ctx(&mut self) -> *mut gdrc_context {
        if self.input.one_in(60) {
            null_mut()
        } else {
            self.ctx
        }
    }

    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            if self.input.is_empty() {
                break;
            }
            // Strings of small numbers must reach every call as well.
            match self.input.below(32) {
                0..=3 => self.create(),
                4 | 5 | 16 => self.connect(),
                6 | 7 | 17..=20 => self.receive(),
                8..=10 | 21..=24 => self.send(),
                11..=13 | 25..=27 => self.poll(),
                14 | 28 => self.look(),
                15 | 29 => self.wild(),
                30 => self.modify(),
                _ => match self.input.u8() {
                    0..=99 => self.destroy(),
                    100..=129 => self.sweep(),
                    _ => self.rare(),
                },
            }
        }
    }

    /// Rare calls: helper threads, more arena memory, and closing the context in the middle.
    fn rare(&mut self) {
        use gdrcore::gdrc_arena_add;
        use gdrcore::{gdrc_helper_start, gdrc_helper_stop, gdrc_wait};
        match self.input.u8() {
            0..=15 => _ = call!(self, gdrc_helper_start(self.ctx())),
            16..=95 if self.input.one_in(2) => _ = call!(self, gdrc_helper_stop(self.ctx())),

            16..=95 if self.lent.len() < 4 => {
                let more = Memory::new();
                let bytes = self.input.below(Memory::BYTES + 1);
                call!(
                    self,
                    gdrc_arena_add(
                        self.ctx,
                        more.0.wrapping_add(self.input.below(2)).cast(),
                        bytes / 2
                    )
                );
                self.lent.push(more);
            }
            96..=99 => {
                _ = call!(self, gdrc_arena_add(self.ctx(), null_mut(), self.input.word() as usize))
            }
            _ => _ = call!(self, gdrc_wait(self.ctx(), 0)),
        }
    }
}

/// Makes C calls in the order and with the arguments that the string selects. Returns the coverage.
pub fn capi(data: &[u8]) -> Reached {
    let mut walk = Walk::new(data);
    walk.run(8000);
    let rc = call!(walk, gdrc_close(walk.ctx, null_mut()));
    assert!(rc >= 0, "an open context closes");
    // The context's handle is stale now.
    assert_eq!(call!(walk, gdrc_close(walk.ctx, null_mut())), -libc::EINVAL);
    walk.memory.check();
    walk.reached
}
