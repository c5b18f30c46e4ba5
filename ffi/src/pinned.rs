//! Pins: a queue pair or CQ looked up once, for posts and polls that look nothing up.
//!
//! What the header's inline functions read lies in tables of this library that last as long as the process, so that a
//! pin which was given back, or is its parent's, is a wrong pin and never a dangling pointer. The kernel wipes these tables in every
//! child of a fork. A row that is all 0 lets no call through: it comes here, where [`Seat`], which is not wiped, tells
//! whether the pin is a parent's, was given back, or is another device's that has no short way.

use crate::context::{device, quick, Owned, Quick};
use crate::data::{check_list, gdrc_poll_cq, gdrc_post_recv, gdrc_post_send, refuse};
use crate::ptr::{self, count, out, ret, wc_slice};
use crate::soft;
use crate::types::*;
use crate::verbs::{self, all_succeeded, is_usual_list, refused, VerbsDevice};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::{align_of, offset_of, size_of, MaybeUninit};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use gdrcore_core::verbs::types::{Handle, RecvWr, SendWr};
use gdrcore_core::{Error, Result};
use gdrcore_net::fork::{wipe_in_children, ForkGuard, PAGE_BYTES};

/// Pins of one kind that a process can have.
const PINS: usize = 8192;

/// States of a seat.
const FREE: u32 = 0;
const CHANGING: u32 = 1;
const PINNED: u32 = 2;

/// What the inline functions read of a pin: a struct of the header as the library writes it.
trait Row: 'static {
    /// Sends every call to the library.
    fn shut(&self);
    /// Whether it is so.
    fn is_shut(&self) -> bool;
}

/// [`gdrc_pinned_qp`].
#[repr(C)]
struct QpRow {
    post_send: AtomicPtr<c_void>,
    post_recv: AtomicPtr<c_void>,
    object: AtomicPtr<c_void>,
    unusual: AtomicU64,
    recv_unusual: AtomicU64,
    pairs: AtomicU64,
    reserved: [AtomicU64; 2],
}

/// [`gdrc_pinned_cq`].
#[repr(C)]
struct CqRow {
    poll_cq: AtomicPtr<c_void>,
    object: AtomicPtr<c_void>,
    polls: AtomicU64,
    as_is: AtomicU64,
}

impl Row for QpRow {
    fn shut(&self) {
        self.unusual.store(0, Release);
        self.recv_unusual.store(0, Release);
        self.pairs.store(0, Release);
    }

    fn is_shut(&self) -> bool {
        self.unusual.load(Relaxed) | self.recv_unusual.load(Relaxed) | self.pairs.load(Relaxed) == 0
    }
}

impl Row for CqRow {
    fn shut(&self) {
        self.polls.store(0, Release);
    }

    fn is_shut(&self) -> bool {
        self.polls.load(Relaxed) == 0
    }
}

macro_rules! row_of {
    ($row:ty = $c:ty { $($f:ident)* }) => {
        const _: () = {
            assert!(size_of::<$row>() == size_of::<$c>() && align_of::<$row>() == align_of::<$c>());
            $(assert!(offset_of!($row, $f) == offset_of!($c, $f));)*
        };
    };
}
row_of!(QpRow = gdrc_pinned_qp { post_send post_recv object unusual recv_unusual pairs reserved });
row_of!(CqRow = gdrc_pinned_cq { poll_cq object polls as_is });

/// Rows, as the kernel wipes them.
#[repr(C, align(4096))]
struct Rows<R>([R; PINS]);

const _: () = assert!(size_of::<Rows<QpRow>>() % PAGE_BYTES == 0 && align_of::<Rows<QpRow>>() == PAGE_BYTES);
const _: () = assert!(size_of::<Rows<CqRow>>() % PAGE_BYTES == 0 && align_of::<Rows<CqRow>>() == PAGE_BYTES);

static QP_ROWS: Rows<QpRow> = Rows(
    [const {
        QpRow {
            post_send: AtomicPtr::new(core::ptr::null_mut()),
            post_recv: AtomicPtr::new(core::ptr::null_mut()),
            object: AtomicPtr::new(core::ptr::null_mut()),
            unusual: AtomicU64::new(0),
            recv_unusual: AtomicU64::new(0),
            pairs: AtomicU64::new(0),
            reserved: [const { AtomicU64::new(0) }; 2],
        }
    }; PINS],
);

static CQ_ROWS: Rows<CqRow> = Rows(
    [const {
        CqRow {
            poll_cq: AtomicPtr::new(core::ptr::null_mut()),
            object: AtomicPtr::new(core::ptr::null_mut()),
            polls: AtomicU64::new(0),
            as_is: AtomicU64::new(0),
        }
    }; PINS],
);

/// `pairs` of a row whose functions take whatever there is.
const ALL: u64 = u64::MAX;

/// What a request does not have that the soft device takes alone: a SEND or WRITE of one piece.
const SOFT_UNUSUAL: u64 = !(3 << 32 | 1);

impl QpRow {
    /// Lets usual requests through to a NIC's provider.
    fn open_nic(&self, to: &verbs::PinnedQp) {
        self.post_send.store(to.post_send as *mut c_void, Relaxed);
        self.post_recv.store(to.post_recv as *mut c_void, Relaxed);
        self.object.store(to.object, Relaxed);
        if let Some(unusual) = to.unusual {
            self.pairs.store(to.depth.div_ceil(2).into(), Relaxed);
            self.unusual.store(unusual, Release);
        }
        if let Some(unusual) = to.recv_unusual {
            self.recv_unusual.store(unusual, Release);
        }
    }

    /// Lets everything through to a soft device.
    fn open_soft(&self, to: &'static soft::PinnedQp) {
        self.post_send.store(soft_send as *mut c_void, Relaxed);
        self.post_recv.store(soft_recv as *mut c_void, Relaxed);
        self.object.store((&raw const *to).cast_mut().cast(), Relaxed);
        self.pairs.store(ALL, Relaxed);
        self.unusual.store(SOFT_UNUSUAL, Release);
        self.recv_unusual.store(SOFT_UNUSUAL, Release);
    }
}

impl CqRow {
    /// Lets polls through to a NIC's provider.
    fn open_nic(&self, to: &verbs::PinnedCq) {
        self.poll_cq.store(to.poll_cq as *mut c_void, Relaxed);
        self.object.store(to.object, Relaxed);
        self.as_is.store(0, Relaxed);
        self.polls.store(c_int::MAX as u64, Release);
    }

    /// Lets polls through to a soft device.
    fn open_soft(&self, to: &'static soft::PinnedCq) {
        self.poll_cq.store(soft_poll as *mut c_void, Relaxed);
        self.object.store((&raw const *to).cast_mut().cast(), Relaxed);
        self.as_is.store(1, Relaxed);
        self.polls.store(c_int::MAX as u64, Release);
    }
}

/// [`gdrc_pinned_qp::post_send`] of a soft device.
///
/// # Safety
/// `object` is a [`soft::PinnedQp`] that is still pinned, in the process that owns it; the list is readable, `bad` NULL or writable.
unsafe extern "C" fn soft_send(object: *mut c_void, wr: *const gdrc_send_wr, bad: *mut *const gdrc_send_wr) -> c_int {
    // SAFETY: our contract.
    let to = unsafe { &*object.cast::<soft::PinnedQp>() };
    let mut first: *const SendWr = wr.cast();
    // SAFETY: our contract; layout.rs asserts that both structs are one layout.
    match check_list(wr).and_then(|()| unsafe { to.post_send(wr.cast(), &mut first) }) {
        Ok(()) => 0,
        // SAFETY: our contract.
        Err(e) => unsafe { refuse(e, bad, first.cast()) },
    }
}

/// [`gdrc_pinned_qp::post_recv`] of a soft device.
///
/// # Safety
/// That of [`soft_send`].
unsafe extern "C" fn soft_recv(object: *mut c_void, wr: *const gdrc_recv_wr, bad: *mut *const gdrc_recv_wr) -> c_int {
    // SAFETY: our contract.
    let to = unsafe { &*object.cast::<soft::PinnedQp>() };
    let mut first: *const RecvWr = wr.cast();
    // SAFETY: our contract; layout.rs asserts that both structs are one layout.
    match check_list(wr).and_then(|()| unsafe { to.post_recv(wr.cast(), &mut first) }) {
        Ok(()) => 0,
        // SAFETY: our contract.
        Err(e) => unsafe { refuse(e, bad, first.cast()) },
    }
}

/// [`gdrc_pinned_cq::poll_cq`] of a soft device.
///
/// # Safety
/// `object` is a [`soft::PinnedCq`] that is still pinned, in the process that owns it; `wc` has `n` structs.
unsafe extern "C" fn soft_poll(object: *mut c_void, n: c_int, wc: *mut gdrc_wc) -> c_int {
    // SAFETY: our contract.
    let of = unsafe { &*object.cast::<soft::PinnedCq>() };
    // SAFETY: our contract.
    ret(unsafe { wc_slice(wc, n).and_then(|wc| of.poll(wc)) }.map(count))
}

/// How the calls of a pin get to its device.
#[derive(Clone, Copy)]
enum Way {
    Nic(&'static VerbsDevice),
    SoftQp(soft::PinnedQp),
    SoftCq(soft::PinnedCq),
    /// As all calls do.
    Checked,
}

/// What is pinned: what only the library reads of a pin.
#[derive(Clone, Copy)]
struct What {
    device: &'static dyn Owned,
    way: Way,
    owner: ForkGuard,
    handle: Handle,
}

struct Seat {
    /// `PINNED` is stored with release after `what` was written, and loaded with acquire before it is read.
    state: AtomicU32,
    ctx: AtomicPtr<gdrc_context>,
    what: UnsafeCell<MaybeUninit<What>>,
}

// SAFETY: `what` is written only by the thread that moved `state` to CHANGING, and read only while it is PINNED.
unsafe impl Sync for Seat {}

/// All pins of one kind.
struct Table<R: 'static> {
    rows: &'static Rows<R>,
    seats: [Seat; PINS],
    /// Seats are given in turn, so that one is stale for long before it is another's.
    next: AtomicUsize,
    /// No seat from here on was ever given.
    end: AtomicUsize,
}

impl<R> Table<R> {
    const fn new(rows: &'static Rows<R>) -> Self {
        let seats = [const {
            Seat {
                state: AtomicU32::new(FREE),
                ctx: AtomicPtr::new(core::ptr::null_mut()),
                what: UnsafeCell::new(MaybeUninit::uninit()),
            }
        }; PINS];
        Table { rows, seats, next: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }
}

static QPS: Table<QpRow> = Table::new(&QP_ROWS);
static CQS: Table<CqRow> = Table::new(&CQ_ROWS);

/// Whether fork() runs [`wipe`].
static HANDLER: AtomicBool = AtomicBool::new(false);

/// What the kernel does, by hand. Reads first, so that it touches no page that was never used.
extern "C" fn wipe() {
    for row in QP_ROWS.0.iter().filter(|r| !r.is_shut()) {
        row.shut();
    }
    for row in CQ_ROWS.0.iter().filter(|r| !r.is_shut()) {
        row.shut();
    }
}

#[cold]
#[inline(never)]
fn given_back() -> Error {
    ptr::refuse!(StaleHandle, "pin: it was given back")
}

impl<R: Row> Table<R> {
    /// The index of a pin that C gave. Any bits are fine.
    fn index(&self, pin: *const R) -> Result<usize> {
        let off = pin.addr().wrapping_sub(self.rows.0.as_ptr().addr());
        let index = off / size_of::<R>();
        if index >= PINS || !off.is_multiple_of(size_of::<R>()) {
            return Err(ptr::refuse!(Invalid, "pin {:#x}: not a pin of this library", pin.addr()));
        }
        Ok(index)
    }

    /// What a pin holds, and of which context: the way in of every call that does not go by its row alone.
    fn what(&'static self, pin: *const R) -> Result<(&'static What, *mut gdrc_context)> {
        let seat = &self.seats[self.index(pin)?];
        if seat.state.load(Acquire) != PINNED {
            return Err(given_back());
        }
        // SAFETY: PINNED was loaded with acquire, so `what` was written before; it is not changed until the pin is given
        // back, and the header forbids other calls on a pin during that.
        let what = unsafe { (*seat.what.get()).assume_init_ref() };
        what.owner.check()?;
        Ok((what, seat.ctx.load(Relaxed)))
    }

    /// Takes a seat for what is pinned already; `open` fills its row where there is a short way.
    fn seat(
        &'static self,
        ctx: *mut gdrc_context,
        what: What,
        open: impl FnOnce(&R, &'static Way),
    ) -> Result<*const R> {
        // SAFETY: tables of our own, statics of atomics that may be 0; the handler only stores to them.
        unsafe { wipe_in_children((&raw const *self.rows).cast(), size_of::<Rows<R>>(), wipe, &HANDLER) };
        for _ in 0..PINS {
            let i = self.next.fetch_add(1, Relaxed) % PINS;
            let seat = &self.seats[i];
            if seat.state.compare_exchange(FREE, CHANGING, Acquire, Relaxed).is_err() {
                continue;
            }
            self.end.fetch_max(i + 1, Relaxed);
            // SAFETY: the seat is CHANGING and this thread made it so: nobody else reads or writes `what`.
            let what: &'static What = unsafe { (*seat.what.get()).write(what) };
            seat.ctx.store(ctx, Relaxed);
            seat.state.store(PINNED, Release);
            open(&self.rows.0[i], &what.way);
            return Ok(&raw const self.rows.0[i]);
        }
        Err(ptr::refuse!(NoMemory, "pins: the process has {PINS} of this kind, the most it can have"))
    }

    /// Gives a seat back: `release` gets what it held.
    fn vacate(&self, i: usize, release: impl FnOnce(&What) -> Result<()>) -> Result<()> {
        let seat = &self.seats[i];
        // Of two at once one wins, the other sees a stale pin.
        if seat.state.compare_exchange(PINNED, CHANGING, Acquire, Relaxed).is_err() {
            return Err(given_back());
        }
        // SAFETY: the seat was PINNED, so `what` was written; it is CHANGING by us, so nobody writes it.
        let what = unsafe { (*seat.what.get()).assume_init() };
        let released = what.owner.check().and_then(|()| {
            self.rows.0[i].shut();
            release(&what)
        });
        seat.state.store(if released.is_ok() { FREE } else { PINNED }, Release);
        released
    }

    /// Gives the seats of a context back, whose objects go with it.
    fn forget(&self, ctx: *const gdrc_context) {
        for i in 0..self.end.load(Relaxed) {
            let seat = &self.seats[i];
            if seat.state.load(Acquire) == PINNED && core::ptr::eq(seat.ctx.load(Relaxed), ctx) {
                let _ = self.vacate(i, |_| Ok(()));
            }
        }
    }
}

/// Pins a queue pair: writes to `*out` what gdrc_pinned_post_send and gdrc_pinned_post_recv take, inline functions that look
/// neither context nor handle up. While a queue pair is pinned it is not destroyed (-EBUSY). One may be pinned several times, and
/// posted to by gdrc_post_send as well. The struct is the library's own: not to be written, nor to be read but by those functions.
/// gdrc_close gives back what the program did not.
///
/// Errors: -EINVAL: stale handle, out is NULL; -ENOMEM: the process has 8192 pinned queue pairs; -EOPNOTSUPP: the device
/// cannot.
/// Threads: any. Cost: one system call.
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_pin(ctx: *mut gdrc_context, qp: gdrc_qp, out: *mut *const gdrc_pinned_qp) -> c_int {
    ret(qp_pin(ctx, qp.handle, out))
}

fn qp_pin(ctx: *mut gdrc_context, handle: Handle, out: *mut *const gdrc_pinned_qp) -> Result<c_int> {
    let out = out!(out);
    let device = device(ctx)?;
    device.qp_pin(handle)?;
    let pin = qp_seat(ctx, device, handle);
    if pin.is_err() {
        device.qp_unpin(handle)?;
    }
    out.write(pin?.cast());
    Ok(0)
}

/// A seat for a queue pair that is pinned.
fn qp_seat(ctx: *mut gdrc_context, device: &'static dyn Owned, handle: Handle) -> Result<*const QpRow> {
    let (way, nic) = match quick(ctx) {
        Quick::Nic(nic) => (Way::Nic(nic), Some(nic.pinned_qp(handle)?)),
        Quick::Soft(soft) => (Way::SoftQp(soft.pinned_qp(handle)?), None),
        Quick::None => (Way::Checked, None),
    };
    QPS.seat(ctx, What { device, way, owner: ForkGuard::new(), handle }, |row, way| match (way, nic) {
        (_, Some(nic)) => row.open_nic(&nic),
        (Way::SoftQp(to), _) => row.open_soft(to),
        _ => {}
    })
}

/// Gives a pin back. No other call with it may run; later ones get -EINVAL until 8192 more were made.
///
/// Errors: -EINVAL: not a pin, or given back before; -EOWNERDEAD: made by the parent of this fork.
/// Threads: one per pin. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_unpin(pin: *const gdrc_pinned_qp) -> c_int {
    ret(QPS.index(pin.cast()).and_then(|i| QPS.vacate(i, |w| w.device.qp_unpin(w.handle))).map(|()| 0))
}

/// Pins a CQ for gdrc_pinned_poll_cq; else as gdrc_qp_pin.
///
/// Errors: as gdrc_qp_pin. Threads: any. Cost: one system call.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_pin(ctx: *mut gdrc_context, cq: gdrc_cq, out: *mut *const gdrc_pinned_cq) -> c_int {
    ret(cq_pin(ctx, cq.handle, out))
}

fn cq_pin(ctx: *mut gdrc_context, handle: Handle, out: *mut *const gdrc_pinned_cq) -> Result<c_int> {
    let out = out!(out);
    let device = device(ctx)?;
    device.cq_pin(handle)?;
    let pin = cq_seat(ctx, device, handle);
    if pin.is_err() {
        device.cq_unpin(handle)?;
    }
    out.write(pin?.cast());
    Ok(0)
}

/// A seat for a CQ that is pinned.
fn cq_seat(ctx: *mut gdrc_context, device: &'static dyn Owned, handle: Handle) -> Result<*const CqRow> {
    let (way, nic) = match quick(ctx) {
        Quick::Nic(nic) => (Way::Nic(nic), Some(nic.pinned_cq(handle)?)),
        Quick::Soft(soft) => (Way::SoftCq(soft.pinned_cq(handle)?), None),
        Quick::None => (Way::Checked, None),
    };
    CQS.seat(ctx, What { device, way, owner: ForkGuard::new(), handle }, |row, way| match (way, nic) {
        (_, Some(nic)) => row.open_nic(&nic),
        (Way::SoftCq(of), _) => row.open_soft(of),
        _ => {}
    })
}

/// Gives a pin back, as gdrc_qp_unpin.
///
/// Errors: as gdrc_qp_unpin. Threads: one per pin. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_unpin(pin: *const gdrc_pinned_cq) -> c_int {
    ret(CQS.index(pin.cast()).and_then(|i| CQS.vacate(i, |w| w.device.cq_unpin(w.handle))).map(|()| 0))
}

/// A context is about to be closed: its pins go.
pub(crate) fn forget(ctx: *const gdrc_context) {
    QPS.forget(ctx);
    CQS.forget(ctx);
}

/// What gdrc_pinned_post_send does with all that it does not pass on by itself: lists first of all. Not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_send_rest(
    pin: *const gdrc_pinned_qp,
    wr: *const gdrc_send_wr,
    bad: *mut *const gdrc_send_wr,
) -> c_int {
    // SAFETY: the header's contract: a pin that was made once, which is for ever, or the caller's own zeros.
    let row = unsafe { &*pin };
    // SAFETY: the header's contract: the list is readable; layout.rs asserts that both structs are one layout.
    if row.pairs == ALL || unsafe { is_usual_list(wr.cast(), row.unusual, row.pairs) } {
        if let Some(post_send) = row.post_send {
            let mut first = wr;
            // SAFETY: rows that let lists through are those of QPs that are pinned; the list is checked, or the function does it.
            return match unsafe { post_send(row.object, wr, &mut first) } {
                0 => 0,
                // SAFETY: our contract.
                rc => unsafe { refuse(refused(rc), bad, first) },
            };
        }
    }
    // SAFETY: our contract.
    unsafe { send_rest(pin, wr, bad) }
}

/// A post that is no list of usual requests.
///
/// # Safety
/// That of [`gdrc_pinned_send_rest`].
#[inline(never)]
unsafe extern "C" fn send_rest(
    pin: *const gdrc_pinned_qp,
    wr: *const gdrc_send_wr,
    bad: *mut *const gdrc_send_wr,
) -> c_int {
    let mut first: *const SendWr = wr.cast();
    let done = match QPS.what(pin.cast()) {
        Ok((What { way: Way::Nic(nic), handle, .. }, _)) => check_list(wr)
            // SAFETY: it is pinned; the header's contract: the list is readable.
            .and_then(|()| unsafe { nic.pinned_post_send(*handle, wr.cast(), &mut first) }),
        // SAFETY: our contract.
        Ok((w, ctx)) => return unsafe { gdrc_post_send(ctx, gdrc_qp { handle: w.handle }, wr, bad) },
        Err(e) => Err(e),
    };
    match done {
        Ok(()) => 0,
        // SAFETY: the header's contract: bad is NULL or writable.
        Err(e) => unsafe { refuse(e, bad, first.cast()) },
    }
}

/// What gdrc_pinned_post_recv does with all that it does not pass on by itself. Not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_recv_rest(
    pin: *const gdrc_pinned_qp,
    wr: *const gdrc_recv_wr,
    bad: *mut *const gdrc_recv_wr,
) -> c_int {
    // SAFETY: as in gdrc_pinned_send_rest.
    let row = unsafe { &*pin };
    if let (ALL, Some(post_recv)) = (row.pairs, row.post_recv) {
        // SAFETY: as in gdrc_pinned_send_rest; this one checks the list, and `bad`.
        return unsafe { post_recv(row.object, wr, bad) };
    }
    let mut first: *const RecvWr = wr.cast();
    let done = match QPS.what(pin.cast()) {
        Ok((What { way: Way::Nic(nic), handle, .. }, _)) => check_list(wr)
            // SAFETY: it is pinned; the header's contract: the list is readable.
            .and_then(|()| unsafe { nic.pinned_post_recv(*handle, wr.cast(), &mut first) }),
        // SAFETY: our contract.
        Ok((w, ctx)) => return unsafe { gdrc_post_recv(ctx, gdrc_qp { handle: w.handle }, wr, bad) },
        Err(e) => Err(e),
    };
    match done {
        Ok(()) => 0,
        // SAFETY: the header's contract: bad is NULL or writable.
        Err(e) => unsafe { refuse(e, bad, first.cast()) },
    }
}

/// What gdrc_pinned_poll_cq does where it passes nothing on. Not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_poll_rest(
    pin: *const gdrc_pinned_cq,
    num_entries: c_int,
    wc: *mut gdrc_wc,
) -> c_int {
    match CQS.what(pin.cast()) {
        // SAFETY: our contract.
        Ok((w, ctx)) => unsafe { gdrc_poll_cq(ctx, gdrc_cq { handle: w.handle }, num_entries, wc) },
        Err(e) => ret(Err(e)),
    }
}

/// What gdrc_pinned_post_send and gdrc_pinned_post_recv make of `rc`, with which a device refused a request. Not for programs.
#[no_mangle]
#[cold]
pub extern "C" fn gdrc_pinned_refused(rc: c_int) -> c_int {
    ret(Err(refused(rc)))
}

/// What gdrc_pinned_poll_cq makes of `n`, what a poll that was passed on brought: completions, none, or an error. Not for
/// programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_polled(pin: *const gdrc_pinned_cq, n: c_int, wc: *mut gdrc_wc) -> c_int {
    // SAFETY: the provider wrote n of the caller's entries.
    if n > 0 && unsafe { all_succeeded(wc.cast(), n) } {
        return n;
    }
    // SAFETY: as above.
    unsafe { polled_else(pin, n, wc) }
}

/// A poll that brought failed operations, nothing, or an error.
///
/// # Safety
/// That of [`gdrc_pinned_polled`].
#[inline(never)]
unsafe fn polled_else(pin: *const gdrc_pinned_cq, n: c_int, wc: *mut gdrc_wc) -> c_int {
    // SAFETY: the header's contract: a pin that was made once, which is for ever.
    if unsafe { (*pin).as_is } != 0 {
        return n;
    }
    match CQS.what(pin.cast()) {
        Ok((What { way: Way::Nic(nic), handle, .. }, _)) if n <= 0 => {
            ret(nic.pinned_polled_nothing(*handle, n).map(count))
        }
        Ok((What { way: Way::Nic(nic), .. }, _)) => {
            // SAFETY: the provider wrote n of the caller's entries.
            ret(unsafe { wc_slice(wc, n) }.map(|wc| count(nic.explain_all(wc, wc.len()))))
        }
        Ok(_) => n,
        Err(e) => ret(Err(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wiped_by_hand_lets_nothing_through() {
        // A pin of no device: a row is opened and wiped, its seat is another's.
        let (fake, ctx) = crate::fake::Fake::open();
        let what = What { device: fake, way: Way::Checked, owner: ForkGuard::new(), handle: 1 };
        let nowhere = verbs::PinnedCq { poll_cq: never, object: core::ptr::null_mut() };
        let pin = CQS.seat(ctx, what, |row, _| row.open_nic(&nowhere)).unwrap();
        // SAFETY: rows are statics.
        let row = unsafe { &*pin };
        assert!(!row.is_shut());
        wipe();
        assert!(row.is_shut() && CQS.what(pin).is_ok());
        CQS.forget(ctx);
        assert!(CQS.what(pin).is_err());
    }

    unsafe extern "C" fn never(_: *mut c_void, _: c_int, _: *mut gdrcore_core::verbs::types::Wc) -> c_int {
        unreachable!("the row is not called through")
    }
}
