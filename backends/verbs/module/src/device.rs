//! The module's functions for devices, ports and GIDs.

use core::ffi::{c_char, c_int, c_void, CStr};
use core::mem::{transmute, zeroed};

use crate::context_ops::operation;
use crate::{code, last_errno, library};
use gdrcore_verbs::abi::{
    caps, link, DataPath, GidEntry, Object, Opened, PollCq, Port, PostRecv, PostSend, ReqNotifyCq,
    Text, NAME_MAX,
};
use gdrcore_verbs::extended::EXTENDED;
use rdma_sys::*;

/// libibverbs' query of all GIDs with their types; verbs.h calls it by an inline function.
/// rdma-core has it since version 32.
const QUERY_GID_TABLE: &CStr = c"_ibv_query_gid_table";
/// Most GIDs of all ports that are requested at once.
const TABLE_MAX: usize = 1024;
/// IBV_LINK_LAYER_ETHERNET.
const LAYER_ETHERNET: u32 = 2;
/// `ibv_gid_type` of RoCE v2.
const ROCE_V2: u32 = 2;

/// The list of devices; freed when dropped.
struct List {
    devices: *mut *mut ibv_device,
    count: usize,
}

impl List {
    fn new(why: &mut Text) -> Result<List, c_int> {
        if !library::may_be_used() {
            why.set(format_args!("{}", library::OURS));
            return Err(libc::EOPNOTSUPP);
        }
        let mut count = 0;
        // SAFETY: a writable number.
        let devices = unsafe { ibv_get_device_list(&mut count) };
        if devices.is_null() {
            let e = last_errno();
            why.set(format_args!(
                "libibverbs cannot list devices (errno {e}); is the kernel module ib_uverbs loaded?"
            ));
            return Err(e);
        }
        Ok(List { devices, count: usize::try_from(count).unwrap_or(0) })
    }

    fn get(&self, i: usize) -> Option<*mut ibv_device> {
        // SAFETY: i < count elements of the list.
        (i < self.count).then(|| unsafe { *self.devices.add(i) })
    }

    fn name(&self, i: usize) -> Option<&CStr> {
        let device = self.get(i)?;
        // SAFETY: a device of the list.
        let name = unsafe { ibv_get_device_name(device) };
        // SAFETY: libibverbs' terminated string, which lives as long as the list.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list as it was given; open devices keep their own reference.
        unsafe { ibv_free_device_list(self.devices) };
    }
}

/// # Safety
/// Here and below: as documented for the table (`gdrcore_verbs::abi::Module`).
pub unsafe extern "C" fn device_name(
    index: u32,
    name: *mut [c_char; NAME_MAX],
    why: *mut Text,
) -> c_int {
    // SAFETY: the table's contract.
    let (why, out) = unsafe { (&mut *why, &mut *name) };
    let list = match List::new(why) {
        Ok(list) => list,
        Err(e) => return e,
    };
    let Some(name) = list.name(index as usize) else { return libc::ENODEV };
    let bytes = name.to_bytes();
    if bytes.len() >= NAME_MAX {
        return libc::ENODEV;
    }
    *out = [0; NAME_MAX];
    for (to, from) in out.iter_mut().zip(bytes) {
        *to = *from as c_char;
    }
    0
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn open(
    name: *const [c_char; NAME_MAX],
    out: *mut Opened,
    why: *mut Text,
) -> c_int {
    // SAFETY: the table's contract.
    let why = unsafe { &mut *why };
    // SAFETY: the table's contract: terminated within its bytes.
    let wanted = unsafe { CStr::from_ptr(name.cast()) };
    let shown = wanted.to_str().unwrap_or("?");
    let list = match List::new(why) {
        Ok(list) => list,
        Err(e) => return e,
    };
    let Some(device) =
        (0..list.count).find(|&i| list.name(i) == Some(wanted)).and_then(|i| list.get(i))
    else {
        why.set(format_args!(
            "there is no RDMA device '{shown}' among {}; `ibv_devices` lists them",
            list.count
        ));
        return libc::ENODEV;
    };
    // Keeps the memory of a parent that forks: on kernels before 5.12 a registered page would move
    // to the child. A program that used verbs before us has decided already, so an error here does
    // not matter. SAFETY: no precondition.
    unsafe { ibv_fork_init() };
    // SAFETY: a device of the list.
    let context = unsafe { ibv_open_device(device) };
    if context.is_null() {
        let e = last_errno();
        why.set(format_args!(
            "cannot open '{shown}' (errno {e}); may this user open /dev/infiniband/uverbs*?"
        ));
        return e;
    }
    // SAFETY: just opened.
    match unsafe { prepare(context, device) } {
        Ok(opened) => {
            // SAFETY: the table's contract.
            unsafe { out.write(opened) };
            0
        }
        Err(e) => {
            why.set(format_args!("cannot use '{shown}' (errno {e})"));
            // SAFETY: just opened, nothing was made on it that is left.
            unsafe { ibv_close_device(context) };
            e
        }
    }
}

/// Makes a non-blocking completion channel.
///
/// # Safety
/// `context` is open.
unsafe fn new_channel(context: *mut ibv_context) -> Result<(*mut ibv_comp_channel, c_int), c_int> {
    // SAFETY: our contract.
    let channel = unsafe { ibv_create_comp_channel(context) };
    if channel.is_null() {
        return Err(last_errno());
    }
    // SAFETY: just made.
    let fd = unsafe { (*channel).fd };
    if let Err(e) = set_nonblocking(fd) {
        // SAFETY: just made, no CQ has it.
        unsafe { ibv_destroy_comp_channel(channel) };
        return Err(e);
    }
    Ok((channel, fd))
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn channel_create(
    context: Object,
    out: *mut Object,
    fd: *mut c_int,
) -> c_int {
    // SAFETY: the table's contract.
    match unsafe { new_channel(context.cast()) } {
        Ok((channel, number)) => {
            // SAFETY: the table's contract: both are writable.
            unsafe { (out.write(channel.cast()), fd.write(number)) };
            0
        }
        Err(e) => e,
    }
}

fn set_nonblocking(fd: c_int) -> Result<(), c_int> {
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: no pointers.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(last_errno());
    }
    Ok(())
}

/// The provider's functions as libibverbs has them.
type SendFn = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type RecvFn = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type SrqRecvFn =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PollFn = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type NotifyFn = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

/// The attributes of a device; 0 for those that its driver or libibverbs does not know.
///
/// # Safety
/// `context` is open.
unsafe fn attributes(context: *mut ibv_context) -> Result<ibv_device_attr_ex, c_int> {
    // SAFETY: plain data, all-zero is valid.
    let mut ex: ibv_device_attr_ex = unsafe { zeroed() };
    let mut rc = libc::EOPNOTSUPP;
    // SAFETY: our contract.
    if let Some(query) = unsafe { operation!(context, query_device_ex) } {
        // SAFETY: as above, and a writable result of this size.
        rc = code(unsafe { query(context, core::ptr::null(), &mut ex, size_of_val(&ex)) });
    }
    if rc == libc::EOPNOTSUPP {
        // SAFETY: as above.
        rc = code(unsafe { ibv_query_device(context, &mut ex.orig_attr) });
    }
    match rc {
        0 => Ok(ex),
        e => Err(e),
    }
}

/// The capabilities of a device, as bits of [`caps`].
fn caps_of(ex: &ibv_device_attr_ex) -> u32 {
    let a = &ex.orig_attr;
    let cap_flags = a.device_cap_flags;
    let mut bits = 0;
    if ex.odp_caps.general_caps & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0) != 0 {
        bits |= caps::ODP;
    }
    if a.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE {
        bits |= caps::ATOMICS;
    }
    let window_2 = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
        | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    if a.max_mw > 0 {
        // A driver with windows has windows of type 1. rxe has none, but does not show that here;
        // it refuses their allocation.
        bits |= caps::MW_1;
        if cap_flags & window_2 != 0 {
            bits |= caps::MW_2;
        }
    }
    for (flag, bit) in [
        (ibv_device_cap_flags::IBV_DEVICE_XRC.0, caps::XRC),
        (ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0, caps::SRQ_RESIZE),
    ] {
        bits |= if cap_flags & flag != 0 { bit } else { 0 };
    }
    for cap in EXTENDED.iter().flat_map(|e| e.caps) {
        bits |= if ex.device_cap_flags_ex & cap.kernel != 0 { cap.cap } else { 0 };
    }
    bits
}

/// # Safety
/// `context` is open and its device is `device`.
unsafe fn prepare(context: *mut ibv_context, device: *mut ibv_device) -> Result<Opened, c_int> {
    // SAFETY: our contract.
    let ex = unsafe { attributes(context)? };
    // SAFETY: open, as the caller promises.
    let (async_fd, ops) = unsafe { ((*context).async_fd, &(*context).ops) };
    let (Some(send), Some(recv), Some(srq), Some(poll), Some(arm)) =
        (ops.post_send, ops.post_recv, ops.post_srq_recv, ops.poll_cq, ops.req_notify_cq)
    else {
        return Err(libc::EOPNOTSUPP);
    };
    // SAFETY: the same functions, with pointers to structs of one layout in place of libibverbs'
    // (asserted in lib.rs; ffi's C test compares every field), and void pointers to its objects.
    let data = unsafe {
        DataPath {
            post_send: transmute::<SendFn, PostSend>(send),
            post_recv: transmute::<RecvFn, PostRecv>(recv),
            post_srq_recv: transmute::<SrqRecvFn, PostRecv>(srq),
            poll_cq: transmute::<PollFn, PollCq>(poll),
            req_notify_cq: transmute::<NotifyFn, ReqNotifyCq>(arm),
        }
    };
    set_nonblocking(async_fd)?;
    // SAFETY: an open context.
    let (channel, channel_fd) = unsafe { new_channel(context)? };
    let a = &ex.orig_attr;
    let bits = caps_of(&ex);
    let n = |v: c_int| u32::try_from(v).unwrap_or(0);
    // SAFETY: the device of an open context.
    let guid = unsafe { ibv_get_device_guid(device) };
    Ok(Opened {
        context: context.cast(),
        channel: channel.cast(),
        async_fd,
        channel_fd,
        data,
        caps: bits,
        ports: u32::from(a.phys_port_cnt),
        node_guid: u64::from_be(guid),
        max_qp: n(a.max_qp),
        max_qp_wr: n(a.max_qp_wr),
        max_sge: n(a.max_sge),
        max_cq: n(a.max_cq),
        max_cqe: n(a.max_cqe),
        max_mr: n(a.max_mr),
        max_pd: n(a.max_pd),
        max_srq: n(a.max_srq),
        max_ah: n(a.max_ah),
        max_rd_atomic: n(a.max_qp_rd_atom),
        release: library::release(),
    })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn close(context: Object, channel: Object) -> c_int {
    // SAFETY: the table's contract.
    unsafe { ibv_destroy_comp_channel(channel.cast()) };
    // SAFETY: the table's contract.
    code(unsafe { ibv_close_device(context.cast()) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn port(context: Object, number: u32, out: *mut Port) -> c_int {
    let context: *mut ibv_context = context.cast();
    let Ok(number) = u8::try_from(number) else { return libc::EINVAL };
    // SAFETY: plain data, all-zero is valid.
    let mut attr: ibv_port_attr = unsafe { zeroed() };
    // SAFETY: an open context, a writable result.
    let rc = code(unsafe { ___ibv_query_port(context, number, &mut attr) });
    if rc != 0 {
        return rc;
    }
    // SAFETY: an open context has a device, which has these fields.
    let iwarp =
        unsafe { (*(*context).device).transport_type } == ibv_transport_type::IBV_TRANSPORT_IWARP;
    let kind = match u32::from(attr.link_layer) {
        _ if iwarp => link::IWARP,
        LAYER_ETHERNET => link::ETHERNET,
        _ => link::INFINIBAND,
    };
    let port = Port {
        active: u32::from(attr.state == ibv_port_state::IBV_PORT_ACTIVE),
        link: kind,
        active_mtu: attr.active_mtu as u32,
        reserved: 0,
        max_msg_size: u64::from(attr.max_msg_sz),
    };
    // SAFETY: the table's contract.
    unsafe { out.write(port) };
    0
}

/// `ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GidTableEntry {
    gid: [u8; 16],
    gid_index: u32,
    port_num: u32,
    gid_type: u32,
    ndev_ifindex: u32,
}

type QueryGidTable =
    unsafe extern "C" fn(*mut ibv_context, *mut GidTableEntry, usize, u32, usize) -> isize;

/// # Safety
/// The table's.
pub unsafe extern "C" fn gids(
    context: Object,
    port: u32,
    out: *mut GidEntry,
    room: u32,
    count: *mut u32,
) -> c_int {
    let query = library::symbol(QUERY_GID_TABLE);
    if query.is_null() {
        // Without this query RoCE v1 and v2 cannot be distinguished.
        return libc::ENOSYS;
    }
    // SAFETY: the symbol of this name has had this form since it exists.
    let query: QueryGidTable = unsafe { transmute::<*mut c_void, QueryGidTable>(query) };
    let mut table =
        [GidTableEntry { gid: [0; 16], gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
            TABLE_MAX];
    // SAFETY: an open context, a writable table of so many entries of this size.
    let found = unsafe {
        query(context.cast(), table.as_mut_ptr(), TABLE_MAX, 0, size_of::<GidTableEntry>())
    };
    let Ok(found) = usize::try_from(found) else {
        return i32::try_from(-found).unwrap_or(libc::EIO);
    };
    let mut n = 0;
    for e in table.iter().take(found).filter(|e| e.port_num == port).take(room as usize) {
        let roce_v2 = u32::from(e.gid_type == ROCE_V2);
        let entry = GidEntry { gid: e.gid, index: e.gid_index, roce_v2, interface: e.ndev_ifindex };
        // SAFETY: n < room, the table's contract.
        unsafe { out.add(n).write(entry) };
        n += 1;
    }
    // SAFETY: the table's contract.
    unsafe { count.write(n as u32) };
    0
}
