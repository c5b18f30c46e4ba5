//! Pins: a queue pair or CQ looked up once, for posts and polls that look nothing up.
//!
//! What the header's inline functions read lies in tables of this library that last as long as the process, so that a
//! pin which was given back, or is its parent's, is a wrong pin and never a dangling pointer. The kernel wipes these tables in every
//! child of a fork. A row that is all 0 lets no call through: it comes here, where [`Seat`], which is not wiped, tells
//! whether the pin is a parent's, was given back, or is another device's that has no short way.

use crate::context::{device, Owned};
use crate::data::{gdrc_poll_cq, gdrc_post_recv, gdrc_post_send, refuse};
use crate::ptr::{out, ret};
use crate::types::*;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::{align_of, offset_of, size_of, MaybeUninit};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use gdrcore_core::verbs::types::Handle;
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
    sends: AtomicU64,
    recvs: AtomicU64,
    unusual: AtomicU64,
    recv_unusual: AtomicU32,
    depth: AtomicU32,
    reserved: AtomicU64,
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
        self.sends.store(0, Release);
        self.recvs.store(0, Release);
    }

    fn is_shut(&self) -> bool {
        self.sends.load(Relaxed) | self.recvs.load(Relaxed) == 0
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
row_of!(QpRow = gdrc_pinned_qp { post_send post_recv object sends recvs unusual recv_unusual depth reserved });
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
            sends: AtomicU64::new(0),
            recvs: AtomicU64::new(0),
            unusual: AtomicU64::new(0),
            recv_unusual: AtomicU32::new(0),
            depth: AtomicU32::new(0),
            reserved: AtomicU64::new(0),
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

/// What is pinned: what only the library reads of a pin.
#[derive(Clone, Copy)]
struct What {
    device: &'static dyn Owned,
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
    match QPS.seat(ctx, What { device, owner: ForkGuard::new(), handle }, |_| ()) {
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
    match CQS.seat(ctx, What { device, owner: ForkGuard::new(), handle }, |_| ()) {
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

/// What gdrc_pinned_post_send does with all that it does not pass on by itself; not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_send_rest(
    pin: *const gdrc_pinned_qp,
    wr: *const gdrc_send_wr,
    bad: *mut *const gdrc_send_wr,
) -> c_int {
    match QPS.what(pin.cast()) {
        // SAFETY: our contract.
        Ok((w, ctx)) => unsafe { gdrc_post_send(ctx, gdrc_qp { handle: w.handle }, wr, bad) },
        // SAFETY: the header's contract: bad is NULL or writable.
        Err(e) => unsafe { refuse(e, bad, wr) },
    }
}

/// What gdrc_pinned_post_recv does with all that it does not pass on by itself; not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_recv_rest(
    pin: *const gdrc_pinned_qp,
    wr: *const gdrc_recv_wr,
    bad: *mut *const gdrc_recv_wr,
) -> c_int {
    match QPS.what(pin.cast()) {
        // SAFETY: our contract.
        Ok((w, ctx)) => unsafe { gdrc_post_recv(ctx, gdrc_qp { handle: w.handle }, wr, bad) },
        // SAFETY: the header's contract: bad is NULL or writable.
        Err(e) => unsafe { refuse(e, bad, wr) },
    }
}

/// What gdrc_pinned_poll_cq does where it passes nothing on; not for programs.
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

/// What gdrc_pinned_post_send and gdrc_pinned_post_recv do with `rc`, what a request that was passed on got; not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_refused(pin: *const gdrc_pinned_qp, rc: c_int) -> c_int {
    let _ = pin;
    rc
}

/// What gdrc_pinned_poll_cq does with `n`, what a poll that was passed on brought; not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_polled(pin: *const gdrc_pinned_cq, n: c_int, wc: *mut gdrc_wc) -> c_int {
    let _ = (pin, wc);
    n
}
