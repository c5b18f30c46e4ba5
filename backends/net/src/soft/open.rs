//! Opening and closing a device: the layout of its memory, its ports, its engine.

use super::layout::{Layout, PCAP_BUFFER};
use super::siblings::Siblings;
use super::{
    carried_by, channels, group_rx, helper, leave, peer_addr, routed, soft_flags, PathChoice,
    PortState, SoftConfig, SoftDevice,
};
use crate::addr::{DeviceName, Endpoint};
use crate::addr_group::Member;
use crate::clock;
use crate::fork::ForkGuard;
use crate::pcap::{Earlier, Pcap};
use crate::shm::relay::{Relay, PACKET_MAX};
use crate::shm::{ShmBounds, ShmPort};
use crate::udp::UdpPort;
use crate::via::session::Session;
use crate::wait::Waiter;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;
use gdrcore_core::config::Config;
use gdrcore_core::device::Leaks;
use gdrcore_core::engine::{Engine, Guard};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::sleep::Asleep;
use std::sync::OnceLock;

/// The source of a device's address and block of QPNs: a socket of its own, which other processes
/// may share, or a router; a loopback device has neither.
struct Origin {
    local: Endpoint,
    udp: Option<UdpPort>,
    member: Option<Member>,
    via: Option<Session>,
    relay: Option<Relay>,
}

/// Opens the origin that `name` describes, and completes `core`'s block of QPNs.
///
/// # Safety
/// The walk of the layout over `memory` gave `udp..shm` to this call alone.
unsafe fn open_origin(
    memory: *mut u8,
    layout: &Layout,
    name: &DeviceName,
    config: &SoftConfig<'_>,
    core: &mut Config,
    waiter: &Waiter,
) -> Result<Origin> {
    let at = match name {
        DeviceName::Router(at) => {
            let (session, relay) = routed::open(at, core, waiter)?;
            let local = Endpoint::new(session.gid(), 0, crate::addr::ROCE_PORT);
            return Ok(Origin { local, udp: None, member: None, via: Some(session), relay });
        }
        DeviceName::Loopback => {
            let local = Endpoint::v4([127, 0, 0, 1], crate::addr::ROCE_PORT);
            return Ok(Origin { local, udp: None, member: None, via: None, relay: None });
        }
        DeviceName::Soft(at) => at,
    };
    // SAFETY: the caller's promise: `udp..member` for the socket, `member..shm` for the claim.
    let group_rx::Opened { udp, member } =
        unsafe { group_rx::open(memory, layout, at, config, core.seed)? };
    waiter.add_socket(udp.fd())?;
    if let Some(member) = &member {
        waiter.add_socket(member.fd())?;
    }
    if core.qpn_base == 0 {
        let alone = || config.wanted().map(|w| w.unclaimed(core.seed));
        core.qpn_base = member.as_ref().map_or_else(alone, |s| Ok(s.qpn_base()))?;
    }
    Ok(Origin { local: *udp.local(), udp: Some(udp), member, via: None, relay: None })
}

/// Opens the links of a device to processes of its host; `None`: it has none. `brokered`: a router
/// makes them, or the set of engines; their bounds.
///
/// # Safety
/// The walk of the layout over `memory` gave `shm..pcap` to this call alone.
#[allow(clippy::too_many_arguments)] // each is a part of the device that is open by now
unsafe fn open_links(
    memory: *mut u8,
    layout: &Layout,
    local: &Endpoint,
    name: &DeviceName,
    config: &SoftConfig<'_>,
    member: Option<&Member>,
    brokered: Option<ShmBounds>,
    waiter: &Waiter,
) -> Result<Option<ShmPort>> {
    if let Some(bounds) = brokered {
        let bytes = layout.pcap - layout.shm;
        // SAFETY: the caller's promise.
        return unsafe { ShmPort::open_brokered(local, &bounds, memory.add(layout.shm), bytes) }
            .map(Some);
    }
    let links = match member {
        Some(member) if config.has_links(name) => {
            let bytes = layout.pcap - layout.shm;
            // SAFETY: the caller's promise.
            let (memory, locks) = (unsafe { memory.add(layout.shm) }, member.locks());
            // SAFETY: as above.
            let mut port = unsafe {
                let (names, bounds) = (member.socket_dir(), config.shm()?);
                ShmPort::open(names, local, locks, &bounds, memory, bytes, waiter)?
            };
            if config.flags & soft_flags::CMA != 0 {
                port.enable_by_address();
            }
            Some(port)
        }
        _ if config.has_links(name) && config.path == PathChoice::Shm => {
            return Err(refuse!(
                Unsupported,
                "flags: GDRC_CONFIG_SHM_ONLY, and this process cannot share memory with others \
                 (see /dev/shm)"
            ))
        }
        _ => None,
    };
    Ok(links)
}

/// Tells the engine of a device's socket: who may send in a peer's name, and that bursts are
/// segmented.
fn set_socket_rules(g: &mut Guard<'_>, has_socket: bool) {
    g.check_ports(has_socket);
    g.divide_writes(has_socket);
}

/// Opens the capture of a device, if it is configured.
///
/// # Safety
/// The walk of the layout over `memory` gave `pcap..end` to this call alone.
unsafe fn open_tee(
    memory: *mut u8,
    layout: &Layout,
    config: &SoftConfig<'_>,
) -> Result<Option<Pcap>> {
    let Some(path) = config.pcap else { return Ok(None) };
    let earlier =
        if config.flags & soft_flags::KEEP_CAPTURE != 0 { Earlier::Keep } else { Earlier::Replace };
    // SAFETY: the caller's promise.
    unsafe { Pcap::open(path, earlier, memory.add(layout.pcap), PCAP_BUFFER) }.map(Some)
}

impl SoftDevice {
    /// Bytes of memory that [`SoftDevice::init`] needs.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Invalid`]: the name; [`Error::Invalid`]: a bound of the
    /// configuration.
    pub fn memsize(name: &str, config: &SoftConfig<'_>) -> Result<usize> {
        SoftDevice::memsize_of_sibling(name, config, None)
    }

    /// Bytes of memory that [`SoftDevice::init_sibling`] needs.
    pub(super) fn memsize_of_sibling(
        name: &str,
        config: &SoftConfig<'_>,
        siblings: Option<&Siblings>,
    ) -> Result<usize> {
        config.layout(&DeviceName::parse(name)?, siblings).map(|l| l.end)
    }

    /// Makes a device in the given memory. It stays there until [`SoftDevice::close`].
    ///
    /// # Errors
    /// The name or a bound: [`Error::Invalid`], [`Error::NoDevice`]. A router: as
    /// [`Session::open`]. The address: [`Error::AddressNotLocal`], [`Error::AddressInUse`].
    /// [`Error::NoMemory`]: fewer than [`SoftDevice::memsize`] bytes. [`Error::Os`].
    ///
    /// # Safety
    /// The memory is page-aligned, nothing else uses it, and it lives until `close` has returned.
    pub unsafe fn init(
        memory: *mut u8,
        bytes: usize,
        name: &str,
        config: &SoftConfig<'_>,
    ) -> Result<&'static SoftDevice> {
        // SAFETY: our contract.
        unsafe { SoftDevice::init_sibling(memory, bytes, name, config, None) }
    }

    /// As [`SoftDevice::init`], for an engine of a loopback device.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn init_sibling(
        memory: *mut u8,
        bytes: usize,
        name: &str,
        config: &SoftConfig<'_>,
        siblings: Option<Siblings>,
    ) -> Result<&'static SoftDevice> {
        let name = DeviceName::parse(name)?;
        let layout = config.layout(&name, siblings.as_ref())?;
        if memory.is_null() || memory as usize & 4095 != 0 {
            return Err(refuse!(Invalid, "memory {memory:p}: not NULL, and aligned to 4096 bytes"));
        }
        if bytes < layout.end {
            return Err(Error::NoMemory);
        }
        crate::fault::install()?;
        let fork = ForkGuard::new();
        let waiter = Waiter::new()?;
        let mut core = config.core;
        if core.seed == 0 {
            core.seed = clock::random_seed()?;
        }
        // SAFETY: the walk gave `udp..shm` to the socket and its claim alone.
        let Origin { local, udp, member, via, relay } =
            unsafe { open_origin(memory, &layout, &name, config, &mut core, &waiter)? };
        let brokered = match (&via, &siblings) {
            (Some(_), _) => Some(config.shm()?),
            (None, Some(siblings)) => Some(siblings.bounds()),
            (None, None) => None,
        };
        // SAFETY: the walk gave `shm..pcap` to the port alone.
        let shm = unsafe {
            open_links(memory, &layout, &local, &name, config, member.as_ref(), brokered, &waiter)?
        };
        let carries = carried_by(udp.as_ref().map_or(u32::MAX, UdpPort::link_mtu));
        let carries = via.as_ref().map_or(carries, |via| carries.min(via.mtu()));
        core.max_mtu = if core.max_mtu == 0 { carries } else { core.max_mtu.min(carries) };
        // SAFETY: the walk gave `pcap..end` to the tee alone.
        let pcap = unsafe { open_tee(memory, &layout, config)? };
        // SAFETY: the walk gave `engine..udp` to the engine alone.
        let engine = unsafe {
            Engine::init(
                memory.add(layout.engine),
                layout.udp - layout.engine,
                &core,
                peer_addr(&local),
            )?
        };
        waiter.attach_io(true)?;
        if let Some(mut g) = engine.try_lock() {
            g.set_shared(udp.is_some() || relay.is_some());
            set_socket_rules(&mut g, udp.is_some());
            g.set_witness();
            if via.is_some() {
                g.set_unnumbered();
            }
            if let Some(siblings) = &siblings {
                g.set_sibling_qpns(siblings.qpns);
            }
            if config.path == PathChoice::Auto && via.is_none() || relay.is_some() {
                g.set_mixed_paths();
            }
        }
        let relay_room = via.is_some().then(|| Box::new([0; PACKET_MAX]));
        let port = PortState { relay_room, ..PortState::new(udp, member, shm, relay, pcap) };
        let device = SoftDevice {
            engine,
            port: UnsafeCell::new(port),
            local,
            waiter,
            fork,
            polls: Default::default(),
            has_local_peers: AtomicBool::new(false),
            is_relayed: AtomicBool::new(false),
            sleeping: Asleep::new(),
            helper_on: AtomicBool::new(false),
            helper: helper::Helper::new()?,
            channels: channels::Channels::new(),
            sink: OnceLock::new(),
            mtu: core.max_mtu,
            path: config.path,
            siblings,
            grace_ns: core.resolve()?.deadline_ns,
            via,
        };
        let place = memory.cast::<SoftDevice>();
        // SAFETY: aligned to a page, large enough (`layout.engine`), and nobody else's.
        unsafe { place.write(device) };
        // SAFETY: written just now.
        let device: &'static SoftDevice = unsafe { &*place };
        leave::enter(device);
        if config.flags & soft_flags::HELPER != 0 {
            if let Err(e) = device.helper_start() {
                // SAFETY: nobody has seen the device yet.
                unsafe { device.close() };
                return Err(e);
            }
        }
        Ok(device)
    }

    /// Ends the device: stops the helper, acknowledges what was accepted, ends connections, flushes
    /// the capture, closes the descriptors. Returns the objects that were left. In a forked child
    /// it does nothing, and the child's copies of the descriptors stay open.
    ///
    /// # Safety
    /// No thread is inside a call on the device, and none makes one afterwards.
    pub unsafe fn close(&self) -> Leaks {
        leave::remove(self);
        if self.fork.check().is_err() {
            return Leaks::default();
        }
        self.helper_stop();
        let leaks = self.lock_control().leaks();
        self.send_last(self.lock_engine());
        let place: *const SoftDevice = self;
        // SAFETY: the last use of the device, as the caller promises.
        unsafe { core::ptr::drop_in_place(place.cast_mut()) };
        leaks
    }
}
