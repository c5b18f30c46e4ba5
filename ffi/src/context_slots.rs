//! The table of contexts, to whose slots `gdrc_context *` points.
//!
//! A context is in a fixed table of this library, not in the memory of the device. So a pointer is
//! checked by arithmetic alone, nothing that C passes is dereferenced, and a pointer to a closed
//! context is refused until its slot is reused (slots are reused in turn, the oldest first).

use crate::c_result::refuse;
use crate::context_device::ContextDevice;
use core::cell::UnsafeCell;
use core::mem::{size_of, MaybeUninit};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use gdrcore_core::{Error, Result};
use gdrcore_net::fork::{self, ForkGuard};
use gdrcore_net::soft::{SoftDevice, SoftEngine};
use gdrcore_verbs::VerbsDevice;

/// Contexts that one process can have open.
pub(crate) const SLOTS: usize = 1024;

/// Magic words of a slot. `OPEN` is "gdrcctx" with a version byte.
const FREE: u64 = 0;
const CHANGING: u64 = 1;
const OPEN: u64 = u64::from_le_bytes(*b"gdrcctx\x01");

/// `fast_word` of a context without a fast path.
const NO_FAST: u64 = fork::NOWHERE;

/// Opaque: a device and its objects.
#[repr(align(64))]
pub struct gdrc_context {
    /// `OPEN` is stored with release after `body` was written, and loaded with acquire before it is
    /// read.
    magic: AtomicU64,
    /// An open NIC: [`fork::process_word`] of the process that opened it. An open soft device: the
    /// same word with the bit [`fork::MARK`] inverted; of several engines, with
    /// [`fork::SECOND_MARK`] inverted. Otherwise a word that equals none of them.
    fast_word: AtomicU64,
    body: UnsafeCell<MaybeUninit<ContextBody>>,
}

#[derive(Clone, Copy)]
struct ContextBody {
    device: &'static dyn ContextDevice,
    /// Checks with one load whether this process opened the context.
    owner: ForkGuard,
    /// The device again, for the fast path; `fast_word` has its type.
    fast: *const (),
    /// The memory that gdrc_open has mapped, unmapped at close; length 0: it is the caller's.
    mapped: (*mut u8, usize),
}

const _: () = assert!(size_of::<gdrc_context>() == 64);

// SAFETY: `body` is written only by the thread that moved `magic` to CHANGING, and read only while
// it is OPEN.
unsafe impl Sync for gdrc_context {}

static TABLE: [gdrc_context; SLOTS] = [const {
    gdrc_context {
        magic: AtomicU64::new(FREE),
        fast_word: AtomicU64::new(NO_FAST),
        body: UnsafeCell::new(MaybeUninit::uninit()),
    }
}; SLOTS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The slot of a pointer that C gave. Any bits are fine.
#[inline(always)]
fn slot(ctx: *const gdrc_context) -> Option<&'static gdrc_context> {
    let off = ctx.addr().wrapping_sub(TABLE.as_ptr().addr());
    // The rotation makes it one comparison: an offset that is no multiple of the size gets high
    // bits.
    if off.rotate_right(size_of::<gdrc_context>().trailing_zeros()) >= SLOTS {
        return None;
    }
    // SAFETY: within TABLE, as was just found.
    let slot = unsafe { TABLE.as_ptr().byte_add(off) };
    // SAFETY: as above, and a multiple of a slot's size from its begin.
    Some(unsafe { &*slot })
}

/// The index of a context's slot, for tables beside this one.
pub(crate) fn number(ctx: *const gdrc_context) -> Option<usize> {
    slot(ctx).map(|c| ((&raw const *c).addr() - TABLE.as_ptr().addr()) / size_of::<gdrc_context>())
}

/// The body of an open context. Every call except those of [`fast`] begins here.
#[inline(always)]
fn body(ctx: *const gdrc_context) -> Result<&'static ContextBody> {
    let Some(c) = slot(ctx) else { return Err(not_a_context(ctx)) };
    if c.magic.load(Ordering::Acquire) != OPEN {
        return Err(closed(ctx));
    }
    // SAFETY: OPEN was loaded with acquire, so `body` was written before; it is not changed until
    // close, and the header forbids other calls on a context during its close.
    let body = unsafe { (*c.body.get()).assume_init_ref() };
    body.owner.check()?;
    Ok(body)
}

#[cold]
#[inline(never)]
pub(crate) fn not_a_context(ctx: *const gdrc_context) -> Error {
    match ctx.addr() {
        0 => refuse!(Invalid, "ctx: NULL"),
        at => refuse!(Invalid, "ctx {at:#x}: not a context of this library"),
    }
}

#[cold]
#[inline(never)]
fn closed(ctx: *const gdrc_context) -> Error {
    refuse!(StaleHandle, "ctx {:#x}: it is closed", ctx.addr())
}

/// The device of a context.
#[inline(always)]
pub(crate) fn device(ctx: *const gdrc_context) -> Result<&'static dyn ContextDevice> {
    body(ctx).map(|b| b.device)
}

/// The device of a context by its own type, so that posts and polls call it without a vtable.
pub(crate) enum FastDevice {
    Nic(&'static VerbsDevice),
    /// The only engine of a soft device.
    Engine(&'static SoftEngine),
    /// A soft device of several engines.
    Engines(&'static SoftDevice),
    /// The device has no fast path, or the context may not be used; [`device`] returns the error.
    None,
}

/// The device of a context by its own type.
#[inline(always)]
pub(crate) fn fast(ctx: *const gdrc_context) -> FastDevice {
    let Some(c) = slot(ctx) else { return FastDevice::None };
    // One word shows whether the context is open, whether this process opened it, and its type.
    let word = c.fast_word.load(Ordering::Acquire) ^ fork::process_word();
    if word & !fork::MARK != 0 {
        return if word == fork::SECOND_MARK { engines(c) } else { FastDevice::None };
    }
    // SAFETY: `fast_word` was loaded with acquire, so `body` was written before; it is not changed
    // until close, and the header forbids other calls on a context during its close.
    let body = unsafe { (*c.body.get()).assume_init_ref() };
    if word == 0 {
        // SAFETY: `publish` stores this word only for a NIC, which lives until close.
        FastDevice::Nic(unsafe { &*body.fast.cast() })
    } else {
        // SAFETY: `publish` stores this word only for the engine of a soft device, which lives
        // until close.
        FastDevice::Engine(unsafe { &*body.fast.cast() })
    }
}

/// The device of a context whose `fast_word` says that it has several.
#[inline(always)]
fn engines(c: &'static gdrc_context) -> FastDevice {
    // SAFETY: as in `fast`.
    let body = unsafe { (*c.body.get()).assume_init_ref() };
    // SAFETY: `publish` stores this word only for a soft device of several engines, which lives
    // until close.
    FastDevice::Engines(unsafe { &*body.fast.cast() })
}

/// The NIC of a context. `None`: another kind of device, or a context that may not be used;
/// [`device`] returns the error.
pub(crate) fn nic(ctx: *const gdrc_context) -> Option<&'static VerbsDevice> {
    match fast(ctx) {
        FastDevice::Nic(nic) => Some(nic),
        _ => None,
    }
}

/// An open device for a slot: the same device twice, which lives until the context is closed.
pub(crate) struct OpenDevice {
    pub(crate) device: &'static dyn ContextDevice,
    pub(crate) fast: FastDevice,
}

/// A slot in state CHANGING, for this thread only.
pub(crate) struct ClaimedSlot(&'static gdrc_context);

impl ClaimedSlot {
    /// Takes a free slot.
    ///
    /// # Errors
    /// `Os(EMFILE)`: all [`SLOTS`] are in use.
    pub(crate) fn claim() -> Result<ClaimedSlot> {
        for _ in 0..SLOTS {
            let i = NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS;
            let c = &TABLE[i];
            if c.magic
                .compare_exchange(FREE, CHANGING, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return Ok(ClaimedSlot(c));
            }
        }
        Err(Error::Os(libc::EMFILE))
    }

    /// Opens the slot for calls.
    pub(crate) fn publish(
        self,
        owner: ForkGuard,
        open: &OpenDevice,
        mapped: (*mut u8, usize),
    ) -> *mut gdrc_context {
        let (fast, fast_word): (*const (), u64) = match open.fast {
            FastDevice::Nic(nic) => ((&raw const *nic).cast(), owner.word()),
            FastDevice::Engine(soft) => ((&raw const *soft).cast(), owner.word() ^ fork::MARK),
            FastDevice::Engines(set) => {
                ((&raw const *set).cast(), owner.word() ^ fork::SECOND_MARK)
            }
            FastDevice::None => (core::ptr::null(), NO_FAST),
        };
        let c = self.0;
        // SAFETY: the slot is CHANGING and this thread made it so: no other thread reads or writes
        // `body`.
        unsafe { (*c.body.get()).write(ContextBody { device: open.device, owner, fast, mapped }) };
        c.fast_word.store(fast_word, Ordering::Release);
        c.magic.store(OPEN, Ordering::Release);
        (&raw const *c).cast_mut()
    }

    /// Gives the slot back.
    pub(crate) fn free(self) {
        self.0.magic.store(FREE, Ordering::Release);
    }
}

/// A context that is being closed: calls do not find it any more.
pub(crate) struct ClosingContext {
    pub(crate) slot: ClaimedSlot,
    pub(crate) device: &'static dyn ContextDevice,
    /// The memory that gdrc_open has mapped, as in [`ClaimedSlot::publish`].
    pub(crate) mapped: (*mut u8, usize),
}

/// Takes an open context out of the table.
///
/// # Errors
/// Those of [`device`]; [`Error::StaleHandle`] to the second of two calls at once.
pub(crate) fn retire(ctx: *const gdrc_context) -> Result<ClosingContext> {
    device(ctx)?;
    let c = slot(ctx).ok_or_else(|| not_a_context(ctx))?;
    if c.magic.compare_exchange(OPEN, CHANGING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return Err(closed(ctx));
    }
    c.fast_word.store(NO_FAST, Ordering::Relaxed);
    // SAFETY: the slot was OPEN, so `body` was written; this thread made it CHANGING, so no other
    // writes it.
    let body = unsafe { (*c.body.get()).assume_init() };
    Ok(ClosingContext { slot: ClaimedSlot(c), device: body.device, mapped: body.mapped })
}

/// Puts a device of another crate behind a context pointer, for tests of the C calls.
#[doc(hidden)]
#[cfg(test)]
pub(crate) fn open_test_device(device: &'static dyn ContextDevice) -> *mut gdrc_context {
    let open = OpenDevice { device, fast: FastDevice::None };
    ClaimedSlot::claim().unwrap().publish(ForkGuard::new(), &open, (core::ptr::null_mut(), 0))
}
