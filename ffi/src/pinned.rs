//! Pins: a queue pair or CQ looked up once, for posts and polls that look nothing up.
//!
//! What the header's inline functions read lies in tables of this library that last as long as the process, so that a
//! pin which was given back, or is its parent's, is a wrong pin and never a dangling pointer. The kernel wipes these tables in every
//! child of a fork. A row that is all 0 lets no call through: it comes here, where [`Seat`], which is not wiped, tells
//! whether the pin is a parent's, was given back, or is another device's that has no short way.

use crate::context::{device, nic, Owned};
use crate::data::{check_list, gdrc_poll_cq, gdrc_post_recv, gdrc_post_send, refuse};
use crate::ptr::{count, out, ret, wc_slice};
use crate::types::*;
use crate::verbs::{all_succeeded, is_usual_list, refused, PinnedCq, PinnedQp, VerbsDevice};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::{align_of, offset_of, size_of, MaybeUninit};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use gdrcore_core::verbs::types::{Handle, RecvWr, SendWr};
use gdrcore_core::{Error, Result};
use gdrcore_net::fork::{wipe_in_children, ForkGuard, PAGE_BYTES};

/// Pins of one kind that a process can have.
const PINS: usize = 16384;

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
    reserved: AtomicU64,
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
row_of!(CqRow = gdrc_pinned_cq { poll_cq object polls reserved });

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
            reserved: AtomicU64::new(0),
        }
    }; PINS],
);

impl QpRow {
    /// Lets usual requests through to a NIC's provider.
    fn open(&self, to: &PinnedQp) {
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
}

impl CqRow {
    /// Lets polls through to a NIC's provider.
    fn open(&self, to: &PinnedCq) {
        self.poll_cq.store(to.poll_cq as *mut c_void, Relaxed);
        self.object.store(to.object, Relaxed);
        self.polls.store(c_int::MAX as u64, Release);
    }
}

/// What is pinned: what only the library reads of a pin.
#[derive(Clone, Copy)]
struct What {
    device: &'static dyn Owned,
    /// The same, where it is a NIC's.
    nic: Option<&'static VerbsDevice>,
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

impl<R: Row> Table<R> {
    /// The index of a pin that C gave. Any bits are fine.
    fn index(&self, pin: *const R) -> Result<usize> {
        let off = pin.addr().wrapping_sub(self.rows.0.as_ptr().addr());
        let index = off / size_of::<R>();
        if index >= PINS || !off.is_multiple_of(size_of::<R>()) {
            return Err(Error::Invalid);
        }
        Ok(index)
    }

    /// What a pin holds, and of which context: the way in of every call that does not go by its row alone.
    fn what(&'static self, pin: *const R) -> Result<(&'static What, *mut gdrc_context)> {
        let seat = &self.seats[self.index(pin)?];
        if seat.state.load(Acquire) != PINNED {
            return Err(Error::StaleHandle);
        }
        // SAFETY: PINNED was loaded with acquire, so `what` was written before; it is not changed until the pin is given
        // back, and the header forbids other calls on a pin during that.
        let what = unsafe { (*seat.what.get()).assume_init_ref() };
        what.owner.check()?;
        Ok((what, seat.ctx.load(Relaxed)))
    }

    /// Takes a seat for what is pinned already; `open` fills its row where there is a short way.
    fn seat(&self, ctx: *mut gdrc_context, what: What, open: impl FnOnce(&R)) -> Result<*const R> {
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
            unsafe { (*seat.what.get()).write(what) };
            seat.ctx.store(ctx, Relaxed);
            seat.state.store(PINNED, Release);
            open(&self.rows.0[i]);
            return Ok(&raw const self.rows.0[i]);
        }
        Err(Error::NoMemory)
    }

    /// Gives a seat back: `release` gets what it held.
    fn vacate(&self, i: usize, release: impl FnOnce(&What) -> Result<()>) -> Result<()> {
        let seat = &self.seats[i];
        // Of two at once one wins, the other sees a stale pin.
        if seat.state.compare_exchange(PINNED, CHANGING, Acquire, Relaxed).is_err() {
            return Err(Error::StaleHandle);
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
/// Errors: -EINVAL: stale handle, out is NULL; -ENOMEM: the process has 16384 pinned queue pairs; -EOPNOTSUPP: the device
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
    let nic = nic(ctx);
    let way = nic.map(|nic| nic.pinned_qp(handle)).transpose()?;
    let what = What { device, nic, owner: ForkGuard::new(), handle };
    match QPS.seat(ctx, what, |row| way.iter().for_each(|way| row.open(way))) {
        Ok(pin) => out.write(pin.cast()),
        Err(e) => {
            device.qp_unpin(handle)?;
            return Err(e);
        }
    }
    Ok(0)
}

/// Gives a pin back. No other call with it may run; later ones get -EINVAL until 16384 more were made.
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
    let nic = nic(ctx);
    let way = nic.map(|nic| nic.pinned_cq(handle)).transpose()?;
    let what = What { device, nic, owner: ForkGuard::new(), handle };
    match CQS.seat(ctx, what, |row| way.iter().for_each(|way| row.open(way))) {
        Ok(pin) => out.write(pin.cast()),
        Err(e) => {
            device.cq_unpin(handle)?;
            return Err(e);
        }
    }
    Ok(0)
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
    if unsafe { is_usual_list(wr.cast(), row.unusual, row.pairs) } {
        if let Some(post_send) = row.post_send {
            let mut first = wr;
            // SAFETY: rows that let lists through are those of a NIC's QP that is pinned; the list is checked.
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
        Ok((What { nic: Some(nic), handle, .. }, _)) => check_list(wr)
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
    let mut first: *const RecvWr = wr.cast();
    let done = match QPS.what(pin.cast()) {
        Ok((What { nic: Some(nic), handle, .. }, _)) => check_list(wr)
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
    match CQS.what(pin.cast()) {
        Ok((What { nic: Some(nic), handle, .. }, _)) if n <= 0 => ret(nic.pinned_polled_nothing(*handle, n).map(count)),
        Ok((What { nic: Some(nic), .. }, _)) => {
            // SAFETY: the provider wrote n of the caller's entries.
            ret(unsafe { wc_slice(wc, n) }.map(|wc| count(nic.explain_all(wc, wc.len()))))
        }
        Ok(_) => n,
        Err(e) => ret(Err(e)),
    }
}
