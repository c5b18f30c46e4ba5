//! librdmacm for tests: a test gives the events, and sees the calls.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicI32, AtomicU32};
use std::collections::VecDeque;
use std::sync::Mutex;

use crate::abi::cm::*;
use crate::abi::{Object, Text};
use crate::objects::lock;
use gdrcore_core::verbs::types::{qp_attr_mask as mask, qp_state, QpAttr};

/// Whether librdmacm is there, and how often it was asked for.
pub static MISSING: AtomicU32 = AtomicU32::new(0);
pub static OPENS: AtomicU32 = AtomicU32::new(0);
/// The events to come.
pub static EVENTS: Mutex<VecDeque<Event>> = Mutex::new(VecDeque::new());
/// The calls, and the cookie or object that each was about.
pub static CALLED: Mutex<Vec<(&str, u64)>> = Mutex::new(Vec::new());
/// A call that fails, and its errno.
pub static FAILS: Mutex<Option<(&str, c_int)>> = Mutex::new(None);
/// Descriptor of the channel.
pub static FD: AtomicI32 = AtomicI32::new(-1);

/// Nothing has been called, and nothing comes.
pub fn clear(fd: c_int) {
    MISSING.store(0, SeqCst);
    OPENS.store(0, SeqCst);
    FD.store(fd, SeqCst);
    lock(&EVENTS).clear();
    lock(&CALLED).clear();
    *lock(&FAILS) = None;
}

/// An event without parameters.
pub fn event(kind: u32, cookie: u64) -> Event {
    Event {
        kind,
        status: 0,
        cookie,
        request: core::ptr::null_mut(),
        peer: Address::default(),
        local_port: 0,
        qp_type: 2,
        qpn: 0,
        qkey: 0,
        srq: 0,
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry: 0,
        data_len: 0,
        data: [0; DATA_MAX],
    }
}

/// How often something was called.
pub fn count(name: &str) -> usize {
    lock(&CALLED).iter().filter(|(called, _)| *called == name).count()
}

fn note(name: &'static str, about: u64) -> c_int {
    lock(&CALLED).push((name, about));
    match *lock(&FAILS) {
        Some((fails, errno)) if fails == name => errno,
        _ => 0,
    }
}

unsafe extern "C" fn open(_: Object, _: *const Address, out: *mut Opened, why: *mut Text) -> c_int {
    OPENS.fetch_add(1, SeqCst);
    if MISSING.load(SeqCst) != 0 {
        // SAFETY: the table's contract, as in all that follow.
        unsafe { (*why).set(format_args!("no connection manager: none here")) };
        return libc::EOPNOTSUPP;
    }
    let [channel, keeper] = [8, 16].map(core::ptr::without_provenance_mut);
    // SAFETY: as above.
    unsafe { out.write(Opened { channel, keeper, fd: FD.load(SeqCst) }) };
    0
}

unsafe extern "C" fn close(_: *const Opened) {
    note("close", 0);
}

unsafe extern "C" fn create(_: Object, _: u32, cookie: u64, out: *mut Object) -> c_int {
    // SAFETY: as above.
    unsafe { out.write(core::ptr::without_provenance_mut(cookie as usize)) };
    note("create", cookie)
}

unsafe extern "C" fn destroy(id: Object) -> c_int {
    note("destroy", id.addr() as u64)
}

unsafe extern "C" fn set_cookie(_: Object, cookie: u64) {
    note("set_cookie", cookie);
}

unsafe extern "C" fn bind(id: Object, _: *const Address, port: *mut u32) -> c_int {
    // SAFETY: as above.
    unsafe { port.write(7777) };
    note("bind", id.addr() as u64)
}

unsafe extern "C" fn listen(id: Object, _: u32) -> c_int {
    note("listen", id.addr() as u64)
}

unsafe extern "C" fn resolve_address(id: Object, _: *const Address, _: c_int) -> c_int {
    note("resolve_address", id.addr() as u64)
}

macro_rules! calls {
    ($($name:ident($($more:ty),*);)*) => {$(
        unsafe extern "C" fn $name(id: Object $(, _: $more)*) -> c_int {
            note(stringify!($name), id.addr() as u64)
        }
    )*};
}

calls! {
    resolve_route();
    connect(*const Param);
    accept(*const Param);
    establish();
    reject(*const c_void, u32);
    disconnect();
}

/// The kernel's answer names more READs than the other side has agreed to.
unsafe extern "C" fn qp_attr(id: Object, state: u32, out: *mut QpAttr, set: *mut u32) -> c_int {
    let attr = QpAttr { max_dest_rd_atomic: 200, max_rd_atomic: 200, ..QpAttr::default() };
    let m = if state == qp_state::RTR { mask::AV | mask::RQ_PSN } else { mask::SQ_PSN };
    // SAFETY: as above.
    unsafe { (out.write(attr), set.write(mask::STATE | m)) };
    note("qp_attr", id.addr() as u64)
}

unsafe extern "C" fn next_event(_: Object, out: *mut Event) -> c_int {
    let Some(e) = lock(&EVENTS).pop_front() else { return libc::EAGAIN };
    // SAFETY: as above.
    unsafe { out.write(e) };
    0
}

pub const CALLS: Calls = Calls {
    open,
    close,
    create,
    destroy,
    set_cookie,
    bind,
    listen,
    resolve_address,
    resolve_route,
    connect,
    accept,
    establish,
    reject,
    disconnect,
    qp_attr,
    event: next_event,
};
