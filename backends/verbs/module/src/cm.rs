//! librdmacm, opened at run time: a host may have libibverbs without it.
//!
//! Ids have no queue pair here, so librdmacm moves none, and opens the device once more for itself
//! alone.

use core::ffi::{c_int, c_void, CStr};
use core::mem::zeroed;
use core::ptr::null_mut;
use std::sync::OnceLock;

use crate::convert::qp_attr_of;
use crate::events::pointer;
use crate::last_errno;
use gdrcore_core::verbs::types::QpAttr;
use gdrcore_verbs::abi::cm::{Address, Calls, Event, Opened, Param, DATA_MAX};
use gdrcore_verbs::abi::{Object, Text};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rdma_sys::*;

/// rdma-sys writes these by hand; the numbers are those of rdma_cma.h on 64-bit machines, which
/// librdmacm's ABI freezes.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<rdma_cm_event>() == 80 && offset_of!(rdma_cm_event, param) == 24);
    assert!(size_of::<rdma_ud_param>() == 56 && offset_of!(rdma_ud_param, qp_num) == 48);
    assert!(size_of::<rdma_conn_param>() == 24 && offset_of!(rdma_conn_param, qp_num) == 16);
    assert!(offset_of!(rdma_cm_id, route) == 32 && offset_of!(rdma_addr, dst_addr_union) == 128);
    assert!(offset_of!(rdma_cm_id, qp_type) == 408);
};

const FILE: &CStr = c"librdmacm.so.1";
/// How long the address of a peer may be looked for.
const RESOLVE_MS: c_int = 4000;
/// RDMA_OPTION_ID, and RDMA_OPTION_ID_ACK_TIMEOUT in it.
const LEVEL_ID: c_int = 0;
const ACK_TIMEOUT: c_int = 3;

macro_rules! functions {
    ($($name:ident($($arg:ty),*) -> $out:ty;)*) => {
        /// The functions of librdmacm that the module calls.
        struct Library {
            $($name: unsafe extern "C" fn($($arg),*) -> $out,)*
        }

        impl Library {
            /// Opens librdmacm, which stays.
            ///
            /// # Errors
            /// In words: it or a function of it is missing.
            fn open() -> Result<Library, String> {
                // SAFETY: a terminated name; its constructors are any library's.
                let library = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return Err(format!("{}; Debian's package is librdmacm1", why()));
                }
                $(
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: a live handle, a terminated name.
                    let $name = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
                    if $name.is_null() {
                        return Err(why());
                    }
                )*
                // SAFETY: each is the function of this name, with the types of rdma_cma.h.
                Ok(unsafe {
                    Library {
                        $($name: core::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($arg),*) -> $out,
                        >($name),)*
                    }
                })
            }
        }
    };
}

functions! {
    rdma_create_event_channel() -> *mut rdma_event_channel;
    rdma_destroy_event_channel(*mut rdma_event_channel) -> ();
    rdma_create_id(
        *mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, rdma_port_space::Type
    ) -> c_int;
    rdma_destroy_id(*mut rdma_cm_id) -> c_int;
    rdma_bind_addr(*mut rdma_cm_id, *mut sockaddr) -> c_int;
    rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
    rdma_resolve_addr(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
    rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
    rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
    rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_establish(*mut rdma_cm_id) -> c_int;
    rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    rdma_disconnect(*mut rdma_cm_id) -> c_int;
    rdma_init_qp_attr(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
}

/// Why the last dl call of this thread failed.
fn why() -> String {
    // SAFETY: the string is the thread's own until its next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{} cannot be opened", FILE.to_string_lossy());
    }
    // SAFETY: not null, so a terminated string; used before the next dl call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::open).as_ref().map_err(String::as_str)
}

/// Calls a function of librdmacm, which is open where there is an object of it. They return -1 and
/// set errno. Expands to unsafe code.
macro_rules! call {
    ($name:ident($($arg:expr),*)) => {
        match library() {
            Ok(library) if (library.$name)($($arg),*) == 0 => 0,
            Ok(_) => last_errno(),
            Err(_) => libc::ENOSYS,
        }
    };
}

/// An address as the kernel has it.
fn socket_address(at: &Address) -> sockaddr_storage {
    // SAFETY: plain data, all-zero is valid.
    let mut to: sockaddr_storage = unsafe { zeroed() };
    let (ip, port) = (core::net::Ipv6Addr::from(at.gid), (at.port as u16).to_be());
    match ip.to_ipv4_mapped() {
        Some(v4) => {
            // SAFETY: as above.
            let mut own: sockaddr_in = unsafe { zeroed() };
            own.sin_family = libc::AF_INET as u16;
            own.sin_port = port;
            own.sin_addr.s_addr = u32::from_ne_bytes(v4.octets());
            // SAFETY: room for any address, aligned for all.
            unsafe { (&raw mut to).cast::<sockaddr_in>().write(own) };
        }
        None => {
            // SAFETY: as above.
            let mut own: sockaddr_in6 = unsafe { zeroed() };
            own.sin6_family = libc::AF_INET6 as u16;
            own.sin6_port = port;
            own.sin6_addr.s6_addr = at.gid;
            own.sin6_scope_id = at.scope_id;
            // SAFETY: as above.
            unsafe { (&raw mut to).cast::<sockaddr_in6>().write(own) };
        }
    }
    to
}

/// What [`socket_address`] was made of; nothing for an address of another family.
fn address_of(from: &sockaddr_storage) -> Address {
    let at = &raw const *from;
    match c_int::from(from.ss_family) {
        libc::AF_INET => {
            // SAFETY: an address of this family; any bits are one.
            let own = unsafe { at.cast::<sockaddr_in>().read() };
            let v4 = core::net::Ipv4Addr::from(own.sin_addr.s_addr.to_ne_bytes());
            let gid = v4.to_ipv6_mapped().octets();
            Address { gid, scope_id: 0, port: u16::from_be(own.sin_port).into() }
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let own = unsafe { at.cast::<sockaddr_in6>().read() };
            Address {
                gid: own.sin6_addr.s6_addr,
                scope_id: own.sin6_scope_id,
                port: u16::from_be(own.sin6_port).into(),
            }
        }
        _ => Address::default(),
    }
}

/// Both addresses of an id: its own, and its peer's.
///
/// # Safety
/// A live id.
unsafe fn addresses(id: *const rdma_cm_id) -> [Address; 2] {
    // SAFETY: our contract; any bits of either union are an address.
    unsafe {
        let route = &raw const (*id).route.addr;
        let own = (*route).src_addr_union.src_storage;
        [address_of(&own), address_of(&(*route).dst_addr_union.dst_storage)]
    }
}

/// # Safety
/// Here and below: as documented for the table (`gdrcore_verbs::abi::cm::Calls`).
unsafe extern "C" fn open(
    context: Object,
    at: *const Address,
    out: *mut Opened,
    why: *mut Text,
) -> c_int {
    // SAFETY: the table's contract.
    let why = unsafe { &mut *why };
    let library = match library() {
        Ok(library) => library,
        Err(words) => {
            why.set(format_args!("no connection manager: {words}"));
            return libc::EOPNOTSUPP;
        }
    };
    // SAFETY: no precondition.
    let channel = unsafe { (library.rdma_create_event_channel)() };
    if channel.is_null() {
        why.set(format_args!(
            "no connection manager: /dev/infiniband/rdma_cm cannot be opened (errno {}); the \
             kernel's module is rdma_ucm",
            last_errno()
        ));
        return libc::EOPNOTSUPP;
    }
    // SAFETY: a live channel.
    let fd = unsafe { (*channel).fd };
    let mut keeper = null_mut();
    let mut port = 0;
    // SAFETY: a live channel, its descriptor, a live id once it is made; the table's contract.
    let bound = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        match create(channel.cast(), rdma_port_space::RDMA_PS_TCP, 0, &mut keeper) {
            0 => bind(keeper, at, &mut port),
            e => e,
        }
    };
    // SAFETY: the context is open, and a bound id has one.
    let same = bound == 0 && unsafe { is_of(keeper.cast(), context.cast()) };
    let opened = Opened { channel: channel.cast(), keeper, fd };
    if !same {
        match bound {
            0 => why.set(format_args!(
                "no connection manager: the kernel gives the address of this NIC to another one"
            )),
            e => why.set(format_args!(
                "no connection manager: the kernel does not bind it to the NIC's address (errno \
                 {e}); its GID has to be an address of its network interface"
            )),
        }
        // SAFETY: made above, and nothing else on it.
        unsafe { close(&opened) };
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the table's contract.
    unsafe { out.write(opened) };
    0
}

/// Whether an id is bound to the device of a context.
///
/// # Safety
/// Both live; the id is bound.
unsafe fn is_of(id: *const rdma_cm_id, context: *const ibv_context) -> bool {
    // SAFETY: our contract.
    let verbs = unsafe { (*id).verbs };
    if verbs.is_null() {
        return false;
    }
    // SAFETY: two open contexts, whose devices have names.
    let [own, wanted] = [verbs.cast_const(), context]
        .map(|c| unsafe { CStr::from_ptr(ibv_get_device_name((*c).device)) });
    own == wanted
}

unsafe extern "C" fn close(opened: *const Opened) {
    let Ok(library) = library() else { return };
    // SAFETY: the table's contract.
    unsafe {
        if !(*opened).keeper.is_null() {
            (library.rdma_destroy_id)((*opened).keeper.cast());
        }
        (library.rdma_destroy_event_channel)((*opened).channel.cast());
    }
}

unsafe extern "C" fn create(channel: Object, space: u32, cookie: u64, out: *mut Object) -> c_int {
    let mut id = null_mut();
    // SAFETY: the table's contract.
    let rc = unsafe { call!(rdma_create_id(channel.cast(), &mut id, pointer(cookie), space)) };
    if rc == 0 {
        // SAFETY: as above.
        unsafe { out.write(id.cast()) };
    }
    rc
}

unsafe extern "C" fn destroy(id: Object) -> c_int {
    // SAFETY: the table's contract.
    unsafe { call!(rdma_destroy_id(id.cast())) }
}

unsafe extern "C" fn set_cookie(id: Object, cookie: u64) {
    // SAFETY: the table's contract.
    unsafe { (*id.cast::<rdma_cm_id>()).context = pointer(cookie) };
}

unsafe extern "C" fn bind(id: Object, at: *const Address, port: *mut u32) -> c_int {
    // SAFETY: the table's contract.
    let mut at = socket_address(unsafe { &*at });
    // SAFETY: as above; an address that lives through the call.
    let rc = unsafe { call!(rdma_bind_addr(id.cast(), (&raw mut at).cast())) };
    if rc == 0 {
        // SAFETY: a live id; the table's contract.
        unsafe { port.write(addresses(id.cast())[0].port) };
    }
    rc
}

unsafe extern "C" fn listen(id: Object, backlog: u32) -> c_int {
    let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
    // SAFETY: the table's contract.
    unsafe { call!(rdma_listen(id.cast(), backlog)) }
}

unsafe extern "C" fn resolve_address(id: Object, to: *const Address, ack_timeout: c_int) -> c_int {
    if let Ok(mut code) = u8::try_from(ack_timeout) {
        let at = (&raw mut code).cast();
        // A kernel without the option has a timeout of its own.
        // SAFETY: the table's contract; a byte that lives through the call.
        let _ = unsafe { call!(rdma_set_option(id.cast(), LEVEL_ID, ACK_TIMEOUT, at, 1)) };
    }
    // SAFETY: the table's contract.
    let mut to = socket_address(unsafe { &*to });
    let to = (&raw mut to).cast();
    // SAFETY: as above; an address that lives through the call, and none: the id is bound.
    unsafe { call!(rdma_resolve_addr(id.cast(), null_mut(), to, RESOLVE_MS)) }
}

unsafe extern "C" fn resolve_route(id: Object) -> c_int {
    // SAFETY: the table's contract.
    unsafe { call!(rdma_resolve_route(id.cast(), RESOLVE_MS)) }
}

/// # Safety
/// The table's: a readable parameter.
unsafe fn conn_param(param: *const Param) -> rdma_conn_param {
    // SAFETY: our contract.
    let p = unsafe { *param };
    rdma_conn_param {
        private_data: p.private_data,
        private_data_len: p.private_data_len as u8,
        responder_resources: p.responder_resources,
        initiator_depth: p.initiator_depth,
        flow_control: 1,
        retry_count: p.retry_count,
        rnr_retry_count: p.rnr_retry,
        srq: p.srq as u8,
        qp_num: p.qpn,
    }
}

unsafe extern "C" fn connect(id: Object, param: *const Param) -> c_int {
    // SAFETY: the table's contract.
    unsafe { call!(rdma_connect(id.cast(), &mut conn_param(param))) }
}

unsafe extern "C" fn accept(id: Object, param: *const Param) -> c_int {
    // SAFETY: the table's contract.
    unsafe { call!(rdma_accept(id.cast(), &mut conn_param(param))) }
}

unsafe extern "C" fn establish(id: Object) -> c_int {
    // SAFETY: the table's contract.
    unsafe { call!(rdma_establish(id.cast())) }
}

unsafe extern "C" fn reject(id: Object, data: *const c_void, len: u32) -> c_int {
    // SAFETY: the table's contract.
    unsafe { call!(rdma_reject(id.cast(), data, len as u8)) }
}

unsafe extern "C" fn disconnect(id: Object) -> c_int {
    // SAFETY: the table's contract.
    unsafe { call!(rdma_disconnect(id.cast())) }
}

unsafe extern "C" fn qp_attr(id: Object, state: u32, out: *mut QpAttr, mask: *mut u32) -> c_int {
    // SAFETY: plain data, all-zero is valid.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = state;
    let mut set = 0;
    // SAFETY: the table's contract.
    let rc = unsafe { call!(rdma_init_qp_attr(id.cast(), &mut attr, &mut set)) };
    if rc == 0 {
        // SAFETY: as above.
        unsafe { (out.write(qp_attr_of(&attr)), mask.write(set as u32)) };
    }
    rc
}

unsafe extern "C" fn event(channel: Object, out: *mut Event) -> c_int {
    let mut taken: *mut rdma_cm_event = null_mut();
    // SAFETY: the table's contract.
    let rc = unsafe { call!(rdma_get_cm_event(channel.cast(), &mut taken)) };
    if rc != 0 {
        return rc;
    }
    // SAFETY: an event that is not acknowledged yet, of ids that live for so long.
    let found = unsafe { event_of(&*taken) };
    // SAFETY: taken above, once.
    let _ = unsafe { call!(rdma_ack_cm_event(taken)) };
    // SAFETY: the table's contract.
    unsafe { out.write(found) };
    0
}

/// # Safety
/// An event of librdmacm, whose ids live.
unsafe fn event_of(e: &rdma_cm_event) -> Event {
    let is_request = e.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
    let about = if is_request { e.listen_id } else { e.id };
    // SAFETY: our contract.
    let ([own, peer], qp_type, cookie) =
        unsafe { (addresses(e.id), (*e.id).qp_type, (*about).context.addr() as u64) };
    let mut to = Event {
        kind: e.event,
        status: e.status,
        cookie,
        request: if is_request { e.id.cast() } else { null_mut() },
        peer,
        local_port: own.port,
        qp_type,
        qpn: 0,
        qkey: 0,
        srq: 0,
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry: 0,
        data_len: 0,
        data: [0; DATA_MAX],
    };
    let (data, len);
    if qp_type == ibv_qp_type::IBV_QPT_UD {
        // SAFETY: the side of the union for such ids; events without parameters have zeroes.
        let p = unsafe { e.param.ud };
        (to.qpn, to.qkey) = (p.qp_num, p.qkey);
        (data, len) = (p.private_data, p.private_data_len);
    } else {
        // SAFETY: as above.
        let p = unsafe { e.param.conn };
        (to.qpn, to.srq) = (p.qp_num, p.srq.into());
        (to.responder_resources, to.initiator_depth) = (p.responder_resources, p.initiator_depth);
        (to.retry_count, to.rnr_retry) = (p.retry_count, p.rnr_retry_count);
        (data, len) = (p.private_data, p.private_data_len);
    }
    if !data.is_null() {
        let len = usize::from(len).min(DATA_MAX);
        // SAFETY: librdmacm's own copy of so many bytes.
        let bytes = unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len) };
        to.data[..len].copy_from_slice(bytes);
        to.data_len = len as u32;
    }
    to
}

/// The functions of the table.
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
    event,
};
