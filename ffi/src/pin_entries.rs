//! The entries of pins, which the inline functions of the header read, and the functions of the
//! soft device that they call.
//!
//! Entries lie in tables that last as long as the process, so a pin that was given back, or that a
//! parent process made, is a wrong pin and never a dangling pointer. The kernel wipes these tables
//! in the child of a fork. An entry that is all 0 passes no call to a device.

use crate::c_result::{count, ret};
use crate::c_types::*;
use crate::ptr::{check_list, report_bad, wc_slice};
use core::ffi::{c_int, c_void};
use core::mem::{align_of, offset_of, size_of};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64};
use gdrcore_core::verbs::types::{RecvWr, SendWr};
use gdrcore_net::fork::PAGE_BYTES;
use gdrcore_net::soft::{PinnedCq as SoftCq, PinnedQp as SoftQp};
use gdrcore_verbs::pinned::{PinnedCq as NicCq, PinnedQp as NicQp};

/// Pins of one kind that a process can have.
pub(crate) const PINS: usize = 8192;

/// The entry of a pin: a struct of the header as the library writes it.
pub(crate) trait PinEntry: 'static {
    /// From here on the inline functions pass every call to the library.
    fn shut(&self);
    /// Whether they do.
    fn is_shut(&self) -> bool;
}

/// [`gdrc_pinned_qp`].
#[repr(C)]
pub(crate) struct QpEntry {
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
pub(crate) struct CqEntry {
    poll_cq: AtomicPtr<c_void>,
    object: AtomicPtr<c_void>,
    polls: AtomicU64,
    as_is: AtomicU64,
}

impl PinEntry for QpEntry {
    fn shut(&self) {
        self.unusual.store(0, Release);
        self.recv_unusual.store(0, Release);
        self.pairs.store(0, Release);
    }

    fn is_shut(&self) -> bool {
        self.unusual.load(Relaxed) | self.recv_unusual.load(Relaxed) | self.pairs.load(Relaxed) == 0
    }
}

impl PinEntry for CqEntry {
    fn shut(&self) {
        self.polls.store(0, Release);
    }

    fn is_shut(&self) -> bool {
        self.polls.load(Relaxed) == 0
    }
}

macro_rules! layout_of {
    ($entry:ty = $c:ty { $($f:ident)* }) => {
        const _: () = {
            assert!(size_of::<$entry>() == size_of::<$c>());
            assert!(align_of::<$entry>() == align_of::<$c>());
            $(assert!(offset_of!($entry, $f) == offset_of!($c, $f));)*
        };
    };
}
layout_of!(QpEntry = gdrc_pinned_qp {
    post_send post_recv object unusual recv_unusual pairs reserved
});
layout_of!(CqEntry = gdrc_pinned_cq { poll_cq object polls as_is });

/// All entries of one kind, in whole pages, as the kernel wipes them in the child of a fork.
#[repr(C, align(4096))]
pub(crate) struct PinEntries<E>(pub(crate) [E; PINS]);

const _: () = assert!(
    size_of::<PinEntries<QpEntry>>() % PAGE_BYTES == 0
        && align_of::<PinEntries<QpEntry>>() == PAGE_BYTES
);
const _: () = assert!(
    size_of::<PinEntries<CqEntry>>() % PAGE_BYTES == 0
        && align_of::<PinEntries<CqEntry>>() == PAGE_BYTES
);

pub(crate) static QP_ENTRIES: PinEntries<QpEntry> = PinEntries(
    [const {
        QpEntry {
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

pub(crate) static CQ_ENTRIES: PinEntries<CqEntry> = PinEntries(
    [const {
        CqEntry {
            poll_cq: AtomicPtr::new(core::ptr::null_mut()),
            object: AtomicPtr::new(core::ptr::null_mut()),
            polls: AtomicU64::new(0),
            as_is: AtomicU64::new(0),
        }
    }; PINS],
);

/// `pairs` of an entry whose functions take any list.
pub(crate) const ALL: u64 = u64::MAX;

/// Bits of `opcode << 32 | num_sge` that are 0 in a request that the soft device takes at once: a
/// SEND or WRITE of one scatter/gather element.
const SOFT_UNUSUAL: u64 = !(3 << 32 | 1);

impl QpEntry {
    /// Lets requests without special features through to a NIC's provider.
    pub(crate) fn open_nic(&self, to: &NicQp) {
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

    /// Lets every request through to a soft device.
    pub(crate) fn open_soft(&self, to: &'static SoftQp) {
        self.post_send.store(soft_send as *mut c_void, Relaxed);
        self.post_recv.store(soft_recv as *mut c_void, Relaxed);
        self.object.store((&raw const *to).cast_mut().cast(), Relaxed);
        self.pairs.store(ALL, Relaxed);
        self.unusual.store(SOFT_UNUSUAL, Release);
        self.recv_unusual.store(SOFT_UNUSUAL, Release);
    }
}

impl CqEntry {
    /// Lets polls through to a NIC's provider.
    pub(crate) fn open_nic(&self, to: &NicCq) {
        self.poll_cq.store(to.poll_cq as *mut c_void, Relaxed);
        self.object.store(to.object, Relaxed);
        self.as_is.store(0, Relaxed);
        self.polls.store(c_int::MAX as u64, Release);
    }

    /// Lets polls through to a soft device.
    pub(crate) fn open_soft(&self, to: &'static SoftCq) {
        self.poll_cq.store(soft_poll as *mut c_void, Relaxed);
        self.object.store((&raw const *to).cast_mut().cast(), Relaxed);
        self.as_is.store(1, Relaxed);
        self.polls.store(c_int::MAX as u64, Release);
    }
}

/// [`gdrc_pinned_qp::post_send`] of a soft device.
///
/// # Safety
/// `object` is a [`SoftQp`] that is still pinned, in the process that owns it; the list is
/// readable, `bad` NULL or writable.
unsafe extern "C" fn soft_send(
    object: *mut c_void,
    wr: *const gdrc_send_wr,
    bad: *mut *const gdrc_send_wr,
) -> c_int {
    // SAFETY: our contract.
    let to = unsafe { &*object.cast::<SoftQp>() };
    let mut first: *const SendWr = wr.cast();
    // SAFETY: our contract; c_layout.rs asserts that both structs are one layout.
    match check_list(wr).and_then(|()| unsafe { to.post_send(wr.cast(), &mut first) }) {
        Ok(()) => 0,
        // SAFETY: our contract.
        Err(e) => unsafe { report_bad(e, bad, first.cast()) },
    }
}

/// [`gdrc_pinned_qp::post_recv`] of a soft device.
///
/// # Safety
/// That of [`soft_send`].
unsafe extern "C" fn soft_recv(
    object: *mut c_void,
    wr: *const gdrc_recv_wr,
    bad: *mut *const gdrc_recv_wr,
) -> c_int {
    // SAFETY: our contract.
    let to = unsafe { &*object.cast::<SoftQp>() };
    let mut first: *const RecvWr = wr.cast();
    // SAFETY: our contract; c_layout.rs asserts that both structs are one layout.
    match check_list(wr).and_then(|()| unsafe { to.post_recv(wr.cast(), &mut first) }) {
        Ok(()) => 0,
        // SAFETY: our contract.
        Err(e) => unsafe { report_bad(e, bad, first.cast()) },
    }
}

/// [`gdrc_pinned_cq::poll_cq`] of a soft device.
///
/// # Safety
/// `object` is a [`SoftCq`] that is still pinned, in the process that owns it; `wc` has `n`
/// structs.
unsafe extern "C" fn soft_poll(object: *mut c_void, n: c_int, wc: *mut gdrc_wc) -> c_int {
    // SAFETY: our contract.
    let of = unsafe { &*object.cast::<SoftCq>() };
    // SAFETY: our contract.
    ret(unsafe { wc_slice(wc, n).and_then(|wc| of.poll(wc)) }.map(count))
}
