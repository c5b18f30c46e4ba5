//! Tests of a NIC that is removed while it is used: threads that post, poll, poll in vain or sleep
//! notice it, and everything ends.
//!
//! Linux's rxe cannot show it: its removal waits until the last program has closed the device. So
//! the module here is the test's own, and behaves as the kernel does with a NIC that supports
//! removal: the asynchronous descriptor becomes readable, returns DEVICE_FATAL once or nothing at
//! all, and then, as every command, EIO; posts are refused, or go to a page that nothing reads.

use core::ffi::{c_char, c_int};
use core::mem::size_of;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::device::VerbsDevice;
use crate::sys::Fd;
use gdrcore_core::config::Config;
use gdrcore_core::device::{async_event as event, Device, MrReg, SrqAttr};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_testkit::patience::deadline;

/// The behaviour of the NIC once it is gone.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The kernel reports the event before it returns EIO.
    event: bool,
    /// Posts are refused; else they are taken and never complete.
    refuses: bool,
}

/// 0: the NIC exists; 1: it is gone, and an event waits; 2: it is gone.
static STATE: AtomicU32 = AtomicU32::new(0);
static REFUSES: AtomicU32 = AtomicU32::new(0);
/// WRITEs that are done and not polled yet.
static DONE: AtomicU32 = AtomicU32::new(0);
static ASYNC_FD: AtomicU32 = AtomicU32::new(0);
static CHANNEL_FD: AtomicU32 = AtomicU32::new(0);
static OBJECTS: AtomicU32 = AtomicU32::new(0);

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

/// An object: only its number is used, which shows whether it is the CQ of the WRITEs (the first).
fn object() -> Object {
    core::ptr::without_provenance_mut(OBJECTS.fetch_add(1, SeqCst) as usize * 16 + 16)
}

static SERVED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn post_send(_: Object, _: *const SendWr, _: *mut *const SendWr) -> c_int {
    if gone() {
        return if REFUSES.load(SeqCst) != 0 { libc::EIO } else { 0 };
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

unsafe extern "C" fn open(_: *const [c_char; NAME_MAX], out: *mut Opened, _: *mut Text) -> c_int {
    let opened = Opened {
        context: object(),
        channel: object(),
        async_fd: ASYNC_FD.load(SeqCst) as c_int,
        channel_fd: CHANNEL_FD.load(SeqCst) as c_int,
        data: DataPath { post_send, post_recv, post_srq_recv: post_recv, poll_cq, req_notify_cq },
        caps: 0,
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

unsafe extern "C" fn srq_create(_: Object, _: u64, _: *mut SrqAttr, _: *mut Object) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn srq_modify(_: Object, _: u32) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn srq_query(_: Object, _: *mut SrqAttr) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn qp_create(make: *const QpMake, out: *mut QpMade) -> c_int {
    // SAFETY: as above.
    let make = unsafe { make.read() };
    SERVED.store(make.send_cq.addr() as u32, SeqCst);
    // SAFETY: as above.
    unsafe { out.write(QpMade { qp: object(), qpn: 17, cap: make.cap }) };
    command()
}

unsafe extern "C" fn qp_modify(_: Object, _: *const QpAttr, _: u32, _: *const Source) -> c_int {
    command()
}

unsafe extern "C" fn qp_query(_: Object, out: *mut QpAttr) -> c_int {
    // SAFETY: as above.
    unsafe { out.write(QpAttr { qp_state: qp_state::RTS, ..QpAttr::default() }) };
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

static MODULE: Module = Module {
    magic: MAGIC,
    version: VERSION,
    size: size_of::<Module>() as u32,
    device_name,
    open,
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
    srq_query,
    srq_destroy: end,
    qp_create,
    qp_modify,
    qp_query,
    qp_destroy: end,
    channel_create,
    channel_destroy: end,
    cq_event,
    async_event,
};

/// The last error of a thread that posts and polls.
fn posts_and_polls(device: &VerbsDevice, qp: Handle, cq: Handle) -> Error {
    let piece = Sge { addr: 0, length: 8, lkey: 1 };
    let wr = SendWr {
        sg_list: &piece,
        num_sge: 1,
        send_flags: send_flags::SIGNALED,
        ..crate::data::EMPTY
    };
    loop {
        let mut bad = core::ptr::null();
        // SAFETY: a list of one that lives through the call.
        if let Err(e) = unsafe { device.post_send(qp, &wr, &mut bad) } {
            assert_eq!(bad, &raw const wr, "the provider sets it, and this one does not");
            return e;
        }
        let mut wc = [Wc::default()];
        loop {
            match device.poll_cq(cq, &mut wc) {
                Ok(0) => {}
                Ok(_) => break,
                Err(e) => return e,
            }
        }
    }
}

fn polls_in_vain(device: &VerbsDevice, cq: Handle) -> Error {
    loop {
        match device.poll_cq(cq, &mut [Wc::default()]) {
            Ok(n) => assert_eq!(n, 0),
            Err(e) => return e,
        }
    }
}

/// Sleeps until the event comes.
fn sleeps(device: &VerbsDevice) -> Result<u32> {
    loop {
        assert!(device.wait(-1)?, "without a limit there is always something");
        if let Some(e) = device.async_event()? {
            return Ok(e.event);
        }
    }
}

fn take_away(way: Way) {
    let (async_fd, channel) = (Fd::event().unwrap(), Fd::event().unwrap());
    ASYNC_FD.store(async_fd.raw() as u32, SeqCst);
    CHANNEL_FD.store(channel.raw() as u32, SeqCst);
    REFUSES.store(u32::from(way.refuses), SeqCst);
    STATE.store(0, SeqCst);
    DONE.store(0, SeqCst);
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
    let device = device.unwrap_or_else(|e| panic!("{e}: {}", why.as_str()));
    let pd = device.pd_alloc().unwrap();
    let reg = MrReg {
        pd,
        addr: 4096,
        length: 8,
        iova: 4096,
        access: access::LOCAL_WRITE,
        provider: 0,
        cookie: 0,
    };
    device.mr_reg(&reg).unwrap();
    let [busy, idle] = [(); 2].map(|()| device.cq_create(16).unwrap().0);
    device.cq_arm(idle, false).unwrap();
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init =
        QpInit { pd, send_cq: busy, recv_cq: busy, qp_type: qp_type::RC, cap, ..QpInit::default() };
    let qp = device.qp_create(&init).unwrap().0;

    let [posting, polling, sleeping] = std::thread::scope(|s| {
        let threads = [
            s.spawn(move || Err(posts_and_polls(device, qp, busy))),
            s.spawn(move || Err(polls_in_vain(device, idle))),
            s.spawn(move || sleeps(device)),
        ];
        std::thread::sleep(Duration::from_millis(50));
        assert!(threads.iter().all(|t| !t.is_finished()), "{way:?}: a thread ended too early");
        STATE.store(if way.event { 1 } else { 2 }, SeqCst);
        async_fd.raise();
        let limit = deadline(60);
        while !threads.iter().all(|t| t.is_finished()) {
            if Instant::now() > limit {
                let finished: Vec<bool> = threads.iter().map(|t| t.is_finished()).collect();
                // A thread that hangs would stop the test for ever.
                eprintln!("{way:?}: results of posting, polling and sleeping: {finished:?}");
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        threads.map(|t| t.join().unwrap())
    });
    assert_eq!((posting, polling), (Err(Error::NoDevice), Err(Error::NoDevice)), "{way:?}");
    assert_eq!(sleeping, Ok(event::DEVICE_FATAL), "{way:?}");
    assert_eq!(device.last_cause().unwrap().code, CauseCode::DeviceGone as u32, "{way:?}");
    assert_eq!(device.progress(), Err(Error::NoDevice));
    assert_eq!(device.cq_event(), Err(Error::NoDevice));
    assert_eq!(device.pd_alloc(), Err(Error::NoDevice));
    assert_eq!(device.async_event(), Ok(None), "the event is reported once");
    // The kernel's event, which a thread has taken and not recorded while another found the device
    // gone.
    device.note_event(&Event { kind: event::DEVICE_FATAL, object: 0, cookie: 0 });
    assert_eq!(device.async_event(), Ok(None), "the event is reported once");
    device.cq_pin(idle).unwrap();
    assert_eq!(device.pinned_polled_nothing(idle, 0), Err(Error::NoDevice));
    assert_eq!(device.cq_destroy(idle), Err(Error::Busy), "{way:?}: pinned");
    device.cq_unpin(idle).unwrap();
    // Objects are destroyed as usual, though the kernel and the device no longer know them.
    assert_eq!(device.qp_destroy(qp), Ok(()));
    assert_eq!(device.cq_destroy(idle), Ok(()));
    assert_eq!(device.qp_destroy(qp), Err(Error::StaleHandle));
    // SAFETY: no thread is left that uses it.
    let left = unsafe { device.close() };
    assert_eq!((left.qp, left.cq, left.pd, left.mr), (0, 1, 1, 1));
}

#[test]
fn a_removed_nic_is_noticed_by_every_thread_and_nothing_hangs() {
    for event in [true, false] {
        for refuses in [true, false] {
            take_away(Way { event, refuses });
        }
    }
}
