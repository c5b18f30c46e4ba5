//! A module for tests, in place of `libgdrcore_verbs.so`. Its NIC can be removed, and a test sets
//! the abilities of its driver.

use core::ffi::{c_char, c_int};
use core::mem::size_of;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::*;
use crate::device::VerbsDevice;
use crate::objects::lock;
use crate::sys::Fd;
use gdrcore_core::config::Config;
use gdrcore_core::device::{async_event as event, SrqAttr};
use gdrcore_core::verbs::types::*;

/// 0: the NIC exists; 1: it is gone, and an event waits; 2: it is gone, without an event.
pub static STATE: AtomicU32 = AtomicU32::new(0);
pub static REFUSES: AtomicU32 = AtomicU32::new(0);
/// WRITEs that are done, but not polled yet.
pub static DONE: AtomicU32 = AtomicU32::new(0);
pub static ASYNC_FD: AtomicU32 = AtomicU32::new(0);
pub static CHANNEL_FD: AtomicU32 = AtomicU32::new(0);
static OBJECTS: AtomicU32 = AtomicU32::new(0);
/// Capabilities and libibverbs' release of the next device that is opened.
pub static CAPS: AtomicU32 = AtomicU32::new(0);
pub static RELEASE: AtomicU32 = AtomicU32::new(0);
/// Extended opcodes that the driver knows, and those of the last request for a queue pair.
pub static KNOWN: AtomicU32 = AtomicU32::new(0);
pub static ASKED: AtomicU32 = AtomicU32::new(0);
/// The state of all queue pairs: that of the last modify.
pub static QP_STATE: AtomicU32 = AtomicU32::new(qp_state::RTS);
/// The room of the send queue in the extended calls, in requests.
pub static ROOM: AtomicU32 = AtomicU32::new(0);
/// The posts: the call of each, with the ids of its requests.
pub static POSTED: Mutex<Vec<(Call, Vec<u64>)>> = Mutex::new(Vec::new());

/// A way to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `ibv_post_send`.
    Unchanged,
    /// The extended calls.
    Extended,
}

/// A lock for the only test that uses this module at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ids of a list.
///
/// # Safety
/// It is readable.
unsafe fn ids(wr: *const SendWr) -> Vec<u64> {
    let (mut next, mut ids) = (wr, Vec::new());
    // SAFETY: our contract.
    while let Some(w) = unsafe { next.as_ref() } {
        ids.push(w.wr_id);
        next = w.next;
    }
    ids
}

fn gone() -> bool {
    STATE.load(SeqCst) != 0
}

/// The result of a command.
fn command() -> c_int {
    if gone() {
        libc::EIO
    } else {
        0
    }
}

/// An object. Only its number matters: the first one is the CQ of the WRITEs.
fn object() -> Object {
    core::ptr::without_provenance_mut(OBJECTS.fetch_add(1, SeqCst) as usize * 16 + 16)
}

static SERVED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn post_send(_: Object, wr: *const SendWr, _: *mut *const SendWr) -> c_int {
    if gone() {
        return if REFUSES.load(SeqCst) != 0 { libc::EIO } else { 0 };
    }
    if CAPS.load(SeqCst) != 0 {
        // SAFETY: the table's contract.
        lock(&POSTED).push((Call::Unchanged, unsafe { ids(wr) }));
    }
    DONE.fetch_add(1, SeqCst);
    0
}

unsafe extern "C" fn post_recv(_: Object, _: *const RecvWr, _: *mut *const RecvWr) -> c_int {
    0
}

unsafe extern "C" fn poll_cq(cq: Object, room: c_int, wc: *mut Wc) -> c_int {
    let served = cq.addr() == SERVED.load(SeqCst) as usize;
    if gone() || room == 0 || !served || DONE.load(SeqCst) == 0 {
        return 0;
    }
    DONE.fetch_sub(1, SeqCst);
    // SAFETY: room for one at least.
    unsafe { wc.write(Wc::default()) };
    1
}

unsafe extern "C" fn req_notify_cq(_: Object, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn device_name(_: u32, _: *mut [c_char; NAME_MAX], _: *mut Text) -> c_int {
    libc::ENODEV
}

unsafe extern "C" fn open_device(
    _: *const [c_char; NAME_MAX],
    out: *mut Opened,
    _: *mut Text,
) -> c_int {
    let opened = Opened {
        context: object(),
        channel: object(),
        async_fd: ASYNC_FD.load(SeqCst) as c_int,
        channel_fd: CHANNEL_FD.load(SeqCst) as c_int,
        data: DataPath { post_send, post_recv, post_srq_recv: post_recv, poll_cq, req_notify_cq },
        caps: CAPS.load(SeqCst),
        ports: 1,
        node_guid: 1,
        max_qp: 64,
        max_qp_wr: 64,
        max_sge: 4,
        max_cq: 64,
        max_cqe: 64,
        max_mr: 64,
        max_pd: 64,
        max_srq: 64,
        max_ah: 64,
        max_rd_atomic: 4,
        release: RELEASE.load(SeqCst),
    };
    // SAFETY: the table's contract.
    unsafe { out.write(opened) };
    0
}

unsafe extern "C" fn close(_: Object, _: Object) -> c_int {
    0
}

unsafe extern "C" fn port(_: Object, _: u32, out: *mut Port) -> c_int {
    // SAFETY: the table's contract.
    unsafe {
        out.write(Port {
            active: 1,
            link: link::ETHERNET,
            active_mtu: 3,
            reserved: 0,
            max_msg_size: 1 << 20,
        })
    };
    0
}

unsafe extern "C" fn gids(_: Object, _: u32, out: *mut GidEntry, _: u32, count: *mut u32) -> c_int {
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    // SAFETY: the table's contract: room for one at least.
    unsafe { out.write(GidEntry { gid, index: 1, roce_v2: 1, interface: 1 }) };
    // SAFETY: as above.
    unsafe { count.write(1) };
    0
}

unsafe extern "C" fn pd_alloc(_: Object, out: *mut Object) -> c_int {
    // SAFETY: the table's contract, as in all that follow.
    unsafe { out.write(object()) };
    command()
}

unsafe extern "C" fn end(_: Object) -> c_int {
    command()
}

unsafe extern "C" fn mr_reg(
    _: Object,
    _: *const Memory,
    out: *mut Object,
    lkey: *mut u32,
    rkey: *mut u32,
) -> c_int {
    // SAFETY: as above.
    unsafe { (out.write(object()), lkey.write(1), rkey.write(2)) };
    command()
}

unsafe extern "C" fn mw_alloc(_: Object, _: u32, _: *mut Object, _: *mut u32) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn ah_create(
    _: Object,
    _: *const AhAttr,
    _: *const Source,
    _: *mut Object,
) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn cq_create(
    _: Object,
    _: Object,
    _: u64,
    _: *mut u32,
    out: *mut Object,
) -> c_int {
    // SAFETY: as above.
    unsafe { out.write(object()) };
    command()
}

unsafe extern "C" fn cq_resize(_: Object, _: *mut u32) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn srq_create(_: Object, _: u64, _: *mut SrqAttr, out: *mut Object) -> c_int {
    // SAFETY: as above.
    unsafe { out.write(object()) };
    command()
}

unsafe extern "C" fn srq_modify(_: Object, _: u32) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn srq_resize(_: Object, _: u32, _: i64) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn srq_number(_: Object, _: *mut u32) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn xrcd_open(_: Object, _: *mut Object) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn srq_create_xrc(
    _: *const XrcSrqMake,
    _: *mut SrqAttr,
    _: *mut Object,
) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn srq_query(_: Object, _: *mut SrqAttr) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn qp_create(
    _: Object,
    make: *const QpMake,
    out: *mut QpMade,
    why: *mut Text,
) -> c_int {
    // SAFETY: as above.
    let make = unsafe { make.read() };
    if matches!(make.qp_type, qp_type::DCI | qp_type::DCT) {
        // SAFETY: as above.
        unsafe { (*why).set(format_args!("a fake has no DC; use RC")) };
        return libc::EOPNOTSUPP;
    }
    SERVED.store(make.send_cq.addr() as u32, SeqCst);
    ASKED.store(make.extended, SeqCst);
    let extended = make.extended & KNOWN.load(SeqCst);
    // SAFETY: as above.
    unsafe { out.write(QpMade { qp: object(), qpn: 17, extended, cap: make.cap }) };
    command()
}

unsafe extern "C" fn qp_modify(
    _: Object,
    attr: *const QpAttr,
    set: u32,
    _: *const Source,
) -> c_int {
    if set & qp_attr_mask::STATE != 0 {
        // SAFETY: as above.
        QP_STATE.store(unsafe { (*attr).qp_state }, SeqCst);
    }
    command()
}

unsafe extern "C" fn mcast(_: Object, _: *const [u8; 16]) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn qp_number(_: Object) -> u32 {
    17
}

unsafe extern "C" fn post_extended(_: Object, wr: *const SendWr) -> c_int {
    // SAFETY: the table's contract.
    let ids = unsafe { ids(wr) };
    let (n, room) = (ids.len() as u32, ROOM.load(SeqCst));
    if n > room {
        return libc::ENOMEM;
    }
    ROOM.store(room - n, SeqCst);
    lock(&POSTED).push((Call::Extended, ids));
    0
}

unsafe extern "C" fn qp_query(_: Object, _: u32, out: *mut QpAttr) -> c_int {
    // SAFETY: as above.
    unsafe { out.write(QpAttr { qp_state: QP_STATE.load(SeqCst), ..QpAttr::default() }) };
    command()
}

unsafe extern "C" fn channel_create(_: Object, out: *mut Object, fd: *mut c_int) -> c_int {
    // SAFETY: the table's contract.
    unsafe { (out.write(object()), fd.write(CHANNEL_FD.load(SeqCst) as c_int)) };
    command()
}

unsafe extern "C" fn cq_event(_: Object, _: *mut u64) -> c_int {
    if gone() {
        libc::EIO
    } else {
        libc::EAGAIN
    }
}

unsafe extern "C" fn async_event(_: Object, out: *mut Event) -> c_int {
    match STATE.compare_exchange(1, 2, SeqCst, SeqCst) {
        Ok(_) => {
            // SAFETY: as above.
            unsafe { out.write(Event { kind: event::DEVICE_FATAL, object: 0, cookie: 0 }) };
            0
        }
        Err(0) => libc::EAGAIN,
        Err(_) => libc::EIO,
    }
}

pub static MODULE: Module = Module {
    magic: MAGIC,
    version: VERSION,
    size: size_of::<Module>() as u32,
    device_name,
    open: open_device,
    close,
    port,
    gids,
    pd_alloc,
    pd_dealloc: end,
    mr_reg,
    mr_dereg: end,
    mw_alloc,
    mw_dealloc: end,
    ah_create,
    ah_destroy: end,
    cq_create,
    cq_resize,
    cq_destroy: end,
    srq_create,
    srq_modify,
    srq_resize,
    srq_number,
    srq_query,
    srq_destroy: end,
    xrcd_open,
    xrcd_close: end,
    srq_create_xrc,
    qp_create,
    qp_modify,
    qp_query,
    qp_number,
    mcast_attach: mcast,
    mcast_detach: mcast,
    post_extended,
    qp_destroy: end,
    channel_create,
    channel_destroy: end,
    cq_event,
    async_event,
    cm: super::fake_cm::CALLS,
};

/// A NIC that exists, and the descriptors that report its end. They must live as long as the NIC.
pub fn open() -> (&'static VerbsDevice, [Fd; 2]) {
    let fds = [(); 2].map(|()| Fd::event().unwrap());
    ASYNC_FD.store(fds[0].raw() as u32, SeqCst);
    CHANNEL_FD.store(fds[1].raw() as u32, SeqCst);
    STATE.store(0, SeqCst);
    DONE.store(0, SeqCst);
    QP_STATE.store(qp_state::RTS, SeqCst);
    lock(&POSTED).clear();
    let config = Config::default();
    let bytes = VerbsDevice::memsize("verbs:fake0", &config).unwrap();
    let layout = std::alloc::Layout::from_size_align(bytes, 4096).unwrap();
    // SAFETY: not empty; leaked, so that it outlives every thread.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    let mut why = Text::new();
    // SAFETY: memory of that size, the device's for ever.
    let device = unsafe {
        VerbsDevice::init_with(|_| Ok(&MODULE), memory, bytes, "verbs:fake0", &config, &mut why)
    };
    (device.unwrap_or_else(|e| panic!("{e}: {}", why.as_str())), fds)
}
