//! The list of devices: one for each address of this machine.
//!
//! `gdrc0` has the first global IPv4 address; then come the other IPv4 addresses, the IPv6 ones and the loopback
//! addresses. `GDRC_ADDRESS` makes it a list of one, and so does a router, whose device has the address that the router gives. Entries live as long as the process, since programs keep
//! pointers to them; an address that was seen keeps its entry and name.

use crate::abi::ibv_device;
use crate::env;
use crate::fork;
use crate::hca::Hca;
use crate::lock::ForkLock;
use crate::result::{object, set_errno};
use crate::stats::Closed;
use crate::sysfs;
use core::ffi::{c_char, c_int};
use core::mem::offset_of;
use gdrcore_core::engine::cm::node_guid;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_net::addr::{Endpoint, ROCE_PORT};
use gdrcore_net::via::find::SocketPath;

/// `IBV_NODE_CA` and `IBV_TRANSPORT_IB`: RoCE devices are both.
const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;

/// A device of the list.
#[repr(C)]
pub struct Adapter {
    /// What programs see.
    pub ibv: ibv_device,
    /// Its address and UDP port.
    pub endpoint: Endpoint,
    /// Its place in the list.
    pub index: u32,
    /// Index of the network interface that has the address.
    pub ifindex: u32,
    /// The router by way of which it reaches its peers.
    pub router: Option<SocketPath>,
    /// The port's LID: the low 16 bits of the address, where the environment asks for LIDs; else 0.
    pub lid: u16,
}

/// All devices that were ever seen, and those that are open.
pub struct State {
    pub adapters: Vec<&'static Adapter>,
    pub open: Vec<OpenHca>,
    /// What those that are not open any more have counted.
    pub closed: Closed,
}

/// An open device and how many contexts it has.
pub struct OpenHca {
    pub index: u32,
    pub contexts: u32,
    pub hca: &'static Hca,
}

// SAFETY: adapters are never changed once they are made.
unsafe impl Sync for Adapter {}

/// The process's devices.
pub static STATE: ForkLock<State> =
    ForkLock::new(State { adapters: Vec::new(), open: Vec::new(), closed: Closed::new() });

impl Adapter {
    /// A device that nobody has seen yet.
    pub fn new(index: u32, endpoint: Endpoint, ifindex: u32) -> Self {
        let zero = [0 as c_char; 256];
        let mut ibv = ibv_device {
            ops: [core::ptr::null(); 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: [0; 64],
            dev_name: [0; 64],
            dev_path: zero,
            ibdev_path: zero,
        };
        put(&mut ibv.name, &format!("gdrc{index}"));
        let node = format!("uverbs{}", uverbs(index));
        put(&mut ibv.dev_name, &node);
        put(&mut ibv.dev_path, &format!("/sys/class/infiniband_verbs/{node}"));
        put(&mut ibv.ibdev_path, &format!("/sys/class/infiniband/gdrc{index}"));
        let lid = if env::lid() { low_bits(&endpoint.ip) } else { 0 };
        Adapter { ibv, endpoint, index, ifindex, router: None, lid }
    }

    /// Its name.
    pub fn name(&self) -> String {
        format!("gdrc{}", self.index)
    }

    /// The number of its file `/dev/infiniband/uverbs<n>`.
    pub fn uverbs(&self) -> u32 {
        uverbs(self.index)
    }

    /// The name of its network interface, where it has one.
    pub fn interface(&self) -> Option<String> {
        let mut name = [0 as c_char; libc::IF_NAMESIZE];
        // SAFETY: the array has the room that the call asks for, and is terminated by it.
        unsafe {
            let p = libc::if_indextoname(self.ifindex, name.as_mut_ptr());
            (!p.is_null()).then(|| core::ffi::CStr::from_ptr(p).to_string_lossy().into_owned())
        }
    }

    /// What the soft device is opened with.
    pub fn device_name(&self) -> String {
        self.router.map_or_else(|| format!("soft:{}", self.endpoint), |at| format!("router:{at}"))
    }

    /// The GID of the device that has a LID: the own one with its low 16 bits replaced. `None`: here are no LIDs.
    pub fn gid_of_lid(&self, lid: u16) -> Option<[u8; 16]> {
        let mut gid = self.endpoint.ip;
        gid[14..].copy_from_slice(&lid.to_be_bytes());
        (self.lid != 0 && lid != 0).then_some(gid)
    }

    /// The node GUID in host order; it follows from the address.
    pub fn guid(&self) -> u64 {
        let e = &self.endpoint;
        node_guid(&PeerAddr { gid: e.ip, scope_id: e.scope_id, port: e.port, ..PeerAddr::default() })
    }

    /// The entry that a program's pointer belongs to.
    ///
    /// # Safety
    /// `device` came from [`get_device_list`].
    pub unsafe fn of(device: *const ibv_device) -> &'static Adapter {
        const { assert!(offset_of!(Adapter, ibv) == 0) };
        // SAFETY: the caller's promise; entries live as long as the process.
        unsafe { &*device.cast::<Adapter>() }
    }
}

fn low_bits(gid: &[u8; 16]) -> u16 {
    u16::from_be_bytes([gid[14], gid[15]])
}

fn uverbs(index: u32) -> u32 {
    sysfs::first_uverbs().saturating_add(index)
}

fn put(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// An address that a program may use, the index of its interface, and the router that has it.
type Place = (Endpoint, u32, Option<SocketPath>);

/// All of them, in the order of the list.
fn places() -> Vec<Place> {
    match env::router() {
        Ok(Some((at, endpoint))) => vec![(endpoint, 0, Some(at))],
        Ok(None) => addresses().into_iter().map(|(endpoint, ifindex)| (endpoint, ifindex, None)).collect(),
        // Not by another way than the one that was asked for.
        Err(_) => Vec::new(),
    }
}

/// The addresses of this machine that a program may use, with the index of the interface of each.
fn addresses() -> Vec<(Endpoint, u32)> {
    let wanted = env::address();
    let mut all = of_this_machine();
    let rank = |e: &Endpoint| (is_loopback(e), !e.is_v4());
    // Stable: within a class as the system lists them.
    all.sort_by_key(|(e, _)| rank(e));
    match wanted {
        // An address that no interface has by name may still be local (all of 127.0.0.0/8 is): the open will tell.
        Some(w) => {
            let named = all.iter().find(|(e, _)| e.ip == w.ip);
            let near = named.or_else(|| all.iter().find(|(e, _)| is_loopback(e) && is_loopback(&w)));
            vec![(w, near.map_or(0, |(_, i)| *i))]
        }
        None => all,
    }
}

fn is_loopback(e: &Endpoint) -> bool {
    match e.to_v4() {
        Some(b) => b[0] == 127,
        None => u128::from_be_bytes(e.ip) == 1,
    }
}

/// Unicast addresses of interfaces that are up. Link-local IPv6 ones need a zone, which a GID cannot hold.
fn of_this_machine() -> Vec<(Endpoint, u32)> {
    let mut found: Vec<(Endpoint, u32)> = Vec::new();
    let mut list: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: the call fills in a list that is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return found;
    }
    let mut at = list;
    while !at.is_null() {
        // SAFETY: an element of the list that getifaddrs made.
        let i = unsafe { &*at };
        at = i.ifa_next;
        if i.ifa_addr.is_null() || i.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: not null; every socket address begins with its family.
        let family = c_int::from(unsafe { (*i.ifa_addr).sa_family });
        let endpoint = match family {
            libc::AF_INET => {
                // SAFETY: of this family.
                let a = unsafe { i.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                Endpoint::v4(a.sin_addr.s_addr.to_ne_bytes(), ROCE_PORT)
            }
            libc::AF_INET6 => {
                // SAFETY: of this family.
                let a = unsafe { i.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                Endpoint::new(a.sin6_addr.s6_addr, a.sin6_scope_id, ROCE_PORT)
            }
            _ => continue,
        };
        let link_local = endpoint.ip[..2] == [0xfe, 0x80];
        if !endpoint.is_unicast() || link_local || found.iter().any(|(e, _)| *e == endpoint) {
            continue;
        }
        // SAFETY: a name of the list, NUL-terminated.
        found.push((endpoint, unsafe { libc::if_nametoindex(i.ifa_name) }));
    }
    // SAFETY: the list that getifaddrs made, not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// The entries of today's list.
pub fn present() -> Vec<&'static Adapter> {
    let places = places();
    let only = env::device();
    let mut state = STATE.lock();
    let mut list = Vec::new();
    for (endpoint, ifindex, router) in places {
        let known = state.adapters.iter().find(|a| a.endpoint == endpoint && a.router == router).copied();
        let adapter = known.unwrap_or_else(|| {
            let index = state.adapters.len() as u32;
            let fresh = Adapter { router, ..Adapter::new(index, endpoint, ifindex) };
            let fresh: &'static Adapter = Box::leak(Box::new(fresh));
            state.adapters.push(fresh);
            fresh
        });
        if only.as_ref().is_none_or(|name| *name == adapter.name()) {
            list.push(adapter);
        }
    }
    list
}

/// `ibv_get_device_list`: a null-terminated array, to be freed by `ibv_free_device_list`.
pub unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    fork::install();
    let list = present();
    // SAFETY: calloc takes any sizes.
    let array = unsafe { libc::calloc(list.len() + 1, size_of::<*mut ibv_device>()) }.cast::<*mut ibv_device>();
    if array.is_null() {
        set_errno(libc::ENOMEM);
        return array;
    }
    for (i, a) in list.iter().enumerate() {
        // SAFETY: room for all and the terminating null.
        unsafe { array.add(i).write((&raw const a.ibv).cast_mut()) };
    }
    if !count.is_null() {
        // SAFETY: the program's int.
        unsafe { count.write(list.len() as c_int) };
    }
    array
}

/// `ibv_free_device_list`.
pub unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the array came from calloc, or is null.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name`.
pub unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a pointer of the list, or null.
    match unsafe { object(device) } {
        Ok(d) => d.name.as_ptr(),
        Err(_) => core::ptr::null(),
    }
}

/// `ibv_get_device_index`: the kernel's number of the device, −1 for none.
pub unsafe extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    if device.is_null() {
        return -1;
    }
    // SAFETY: a pointer of the list.
    unsafe { Adapter::of(device) }.index as c_int
}

/// `ibv_get_device_guid`: in network order.
pub unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    if device.is_null() {
        return 0;
    }
    // SAFETY: a pointer of the list.
    unsafe { Adapter::of(device) }.guid().to_be()
}
