//! What `--weak` (docs/using/WEAK.md) changes in the calls themselves: where polls of CQs end (the
//! rule `few`), and which keys, handles and numbers a program sees (the rule `keys`).
//!
//! Contexts and CQs choose functions that ask here when they are made; others do not.

use crate::abi::ibv_mr;
use crate::env;
use core::ffi::c_void;
use gdrcore_core::inject::Faults;
use gdrcore_core::random::Random;
use gdrcore_net::fork::around_forks;
use gdrcore_net::inject::{count_one, device_keys, note_program, note_repeat, program_keys};
use gdrcore_net::thread_lock::ForkLock;
use std::alloc::{dealloc, Layout};
use std::collections::VecDeque;
use std::sync::OnceLock;

/// Regions that have ended, and whose memory is not used again yet.
const GRAVES: usize = 1024;
/// The purpose of the numbers of objects.
const PURPOSE: u64 = 0x6861_6e64_6c65;

/// The memory of regions that have ended, the oldest first.
static ENDED: ForkLock<VecDeque<(usize, Layout)>> = ForkLock::new(VecDeque::new());

/// The rules of the process, if any is of this module, and its seed.
fn rules() -> Option<&'static (Faults, u64)> {
    static RULES: OnceLock<Option<(Faults, u64)>> = OnceLock::new();
    let read = || {
        let words = env::faults()?;
        let spec = env::fault_spec(&words);
        let is_own = |rules: &Faults| rules.shortens_polls() || rules.sets_keys();
        let rules = spec.read().ok().filter(is_own)?;
        Some((rules, spec.drawn_seed().ok()?))
    };
    RULES.get_or_init(read).as_ref()
}

fn rules_of_keys() -> Option<u64> {
    rules().filter(|(rules, _)| rules.sets_keys()).map(|(_, seed)| *seed)
}

/// Notes the process, for [`keys`]: when the library is loaded, before the program changes its
/// words or forks.
pub fn install() {
    if rules_of_keys().is_some() {
        note_program();
        around_forks(hold, release);
    }
}

fork_handlers!(ENDED);

/// The seed of the keys and QP numbers of a device that is about to be opened, if they follow from
/// that of the faults. A key that is mistaken for the peer's does not serve by chance: two devices
/// have others ([`device_keys`]).
pub fn keys(device: &str) -> Option<u64> {
    Some(device_keys(rules_of_keys()?, device))
}

/// A device has been opened: the process tells of its rules at its end.
pub fn note_device() {
    let (Some((rules, seed)), Some(words)) = (rules(), env::faults()) else { return };
    note_repeat(&env::fault_spec(&words), *seed);
    if rules.sets_keys() {
        count_one();
    }
}

/// The first handle of a kind of objects: 0, as the kernel has it, or one that follows from the
/// seed and the program.
pub fn first_handle(kind: u64) -> u32 {
    let draw = |seed| Random::new(program_keys(seed), PURPOSE).hash(&[kind]) as u32 >> 8;
    rules_of_keys().map_or(0, draw)
}

/// Counts a poll that has ended early.
pub fn count_short_poll() {
    count_one();
}

/// Whether polls of CQs may end early.
pub fn shortens_polls() -> bool {
    rules().is_some_and(|(rules, _)| rules.shortens_polls())
}

/// The most completions of a poll ([`Faults::few`]). `cq`: its handle.
pub fn few(cq: u32, polled: u64, n: usize) -> usize {
    let most = |(rules, seed): &(Faults, u64)| rules.few(*seed, cq.into(), polled, n as u64);
    rules().map_or(n, |own| most(own) as usize)
}

/// Whether a poll ends with the completion of this number ([`Faults::ends_poll`]).
pub fn ends_poll(cq: u32, number: u64) -> bool {
    rules().is_some_and(|(rules, seed)| rules.ends_poll(*seed, cq.into(), number))
}

/// Frees a region that has ended. With the rule `keys` its fields are garbage first, and its memory
/// is not used again for the next [`GRAVES`] regions.
///
/// # Safety
/// `of` was made by [`Box::into_raw`], and nobody uses it any more. Its first field is the
/// [`ibv_mr`] that the program had.
pub unsafe fn free_and_poison<T>(of: *mut T) {
    if rules_of_keys().is_none() {
        // SAFETY: the caller's promise.
        return drop(unsafe { Box::from_raw(of) });
    }
    // SAFETY: the caller's promise; the memory stays, and what is in it is not dropped again.
    unsafe {
        of.drop_in_place();
        let shown = of.cast::<ibv_mr>();
        let was = shown.read();
        shown.write(ibv_mr {
            lkey: !was.lkey,
            rkey: !was.rkey,
            handle: !was.handle,
            addr: core::ptr::without_provenance_mut::<c_void>(!was.addr.addr()),
            length: !was.length,
            ..was
        });
    }
    let mut ended = ENDED.lock();
    ended.push_back((of.expose_provenance(), Layout::new::<T>()));
    if ended.len() > GRAVES {
        if let Some((oldest, layout)) = ended.pop_front() {
            // SAFETY: the memory of a box of this layout, whose content was dropped above.
            unsafe { dealloc(core::ptr::with_exposed_provenance_mut(oldest), layout) };
        }
    }
}
