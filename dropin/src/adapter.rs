//! An entry of the list of devices; there is one for each address of this machine.
//!
//! At first `gdrc0` has the first global IPv4 address, if there is one. The other IPv4 addresses
//! follow, then the IPv6 and the loopback addresses. An address that comes later gets the next
//! number. `GDRC_ADDRESS` reduces the list to one entry. So does a router, which
//! assigns the address of the only device.

use crate::abi::ibv_device;
use crate::env;
use crate::hca_kinds::{DeviceKind, KINDS};
use crate::sysfs::system::{first_umad, first_uverbs};
use core::ffi::{c_char, c_int};
use core::mem::offset_of;
use gdrcore_calls::options;
use gdrcore_core::engine::cm::node_guid;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::wire::grh::is_link_local;
use gdrcore_net::addr::Endpoint;
use gdrcore_net::interface_state::InterfaceState;
use gdrcore_net::interfaces;
use gdrcore_net::via::find::SocketPath;

/// `IBV_NODE_CA` and `IBV_TRANSPORT_IB`: RoCE devices are both.
const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;

/// A device of the list.
#[repr(C)]
pub struct Adapter {
    /// The part that programs see.
    pub ibv: ibv_device,
    /// rdma-core's drivers have their table of operations behind each device. Debian's libmlx5
    /// compares the first word there with its own, and so refuses this device.
    pub behind: [u64; 8],
    pub kind: &'static DeviceKind,
    /// Its address and UDP port.
    pub endpoint: Endpoint,
    /// Its place in the list.
    pub index: u32,
    /// Index of the network interface that has the address.
    pub ifindex: u32,
    /// The router through which it reaches its peers.
    pub router: Option<SocketPath>,
    /// The port's LID: the low 16 bits of the address, if the environment requests LIDs; else 0.
    pub lid: u16,
}

// SAFETY: adapters are never changed once they are made.
unsafe impl Sync for Adapter {}

impl Adapter {
    /// A new entry.
    pub fn new(index: u32, (endpoint, ifindex, router): UsableAddress) -> Self {
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
        let lid = if env::is_on(&options::LID) { low_bits(&endpoint.ip) } else { 0 };
        Adapter {
            ibv,
            behind: [0; 8],
            kind: &KINDS[usize::from(router.is_some())],
            endpoint,
            index,
            ifindex,
            router,
            lid,
        }
    }

    pub fn name(&self) -> String {
        format!("gdrc{}", self.index)
    }

    /// The number of its file `/dev/infiniband/uverbs<n>`.
    pub fn uverbs(&self) -> u32 {
        uverbs(self.index)
    }

    /// The number of its file `/dev/infiniband/umad<n>`.
    pub fn umad(&self) -> u32 {
        first_umad().saturating_add(self.index)
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

    /// The state of the interface with its address; `None`: unknown, as behind a router.
    pub fn link(&self) -> Option<InterfaceState> {
        InterfaceState::read(&self.endpoint, self.ifindex).filter(|_| self.router.is_none())
    }

    /// The name by which its device is opened.
    pub fn device_name(&self) -> String {
        self.router
            .map_or_else(|| self.kind.device_name(&self.endpoint), |at| self.kind.device_name(&at))
    }

    /// The GID of the device with a LID: this device's GID with the low 16 bits replaced by the
    /// LID. `None`: the environment does not request LIDs.
    pub fn gid_of_lid(&self, lid: u16) -> Option<[u8; 16]> {
        let mut gid = self.endpoint.ip;
        gid[14..].copy_from_slice(&lid.to_be_bytes());
        (self.lid != 0 && lid != 0).then_some(gid)
    }

    /// The node GUID in host order; it follows from the address.
    pub fn guid(&self) -> u64 {
        let e = &self.endpoint;
        node_guid(&PeerAddr {
            gid: e.ip,
            scope_id: e.scope_id,
            port: e.port,
            ..PeerAddr::default()
        })
    }

    /// The entry that a program's pointer belongs to.
    ///
    /// # Safety
    /// `device` came from `ibv_get_device_list`.
    pub unsafe fn from_ptr(device: *const ibv_device) -> &'static Adapter {
        const {
            assert!(offset_of!(Adapter, ibv) == 0);
            assert!(offset_of!(Adapter, behind) == size_of::<ibv_device>());
        };
        // SAFETY: the caller's promise; entries live as long as the process.
        unsafe { &*device.cast::<Adapter>() }
    }
}

fn low_bits(gid: &[u8; 16]) -> u16 {
    u16::from_be_bytes([gid[14], gid[15]])
}

fn uverbs(index: u32) -> u32 {
    first_uverbs().saturating_add(index)
}

fn put(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// An address that a program may use, the index of its interface, and the router that assigned it.
pub type UsableAddress = (Endpoint, u32, Option<SocketPath>);

/// All these addresses, in the order of the list.
pub fn places() -> Vec<UsableAddress> {
    match env::router() {
        Ok(Some((at, endpoint))) => vec![(endpoint, 0, Some(at))],
        Ok(None) => {
            addresses().into_iter().map(|(endpoint, ifindex)| (endpoint, ifindex, None)).collect()
        }
        // The process must reach its peers by the requested path alone.
        Err(_) => Vec::new(),
    }
}

/// The addresses of this machine that a program may use, with the index of the interface of each.
fn addresses() -> Vec<(Endpoint, u32)> {
    let wanted = env::address();
    let mut all = of_this_machine();
    let rank = |e: &Endpoint| (is_loopback(e), !e.is_v4());
    // A stable sort: within a class the system's order remains.
    all.sort_by_key(|(e, _)| rank(e));
    match wanted {
        // An address that no interface lists may still be local (all of 127.0.0.0/8 is). Only
        // opening the device shows it.
        Some(w) => {
            let named = all.iter().find(|(e, _)| e.ip == w.ip);
            let near =
                named.or_else(|| all.iter().find(|(e, _)| is_loopback(e) && is_loopback(&w)));
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

/// Unicast addresses of interfaces that are up. Link-local IPv6 ones need a zone, which a GID
/// cannot hold.
fn of_this_machine() -> Vec<(Endpoint, u32)> {
    let mut found: Vec<(Endpoint, u32)> = Vec::new();
    interfaces::for_each(|i| {
        let Some(endpoint) = i.at.filter(|at| i.is_up() && at.is_unicast()) else { return };
        if !is_link_local(&endpoint.ip) && found.iter().all(|(e, _)| *e != endpoint) {
            found.push((endpoint, i.index()));
        }
    });
    found
}
