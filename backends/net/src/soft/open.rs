//! Opening and closing a device: the layout of its memory, its ports, its engine.

use super::group;
use super::layout::Opening;
use super::router::routed;
use super::router::status_place::StatusPlace;
use super::siblings::Siblings;
use super::socket_io::tap::Tap;
use super::threads::channels;
use super::threads::helper;
use super::{
    largest_path_mtu, leave, peer_addr, soft_flags, PathChoice, PortState, SoftConfig, SoftEngine,
};
use crate::addr::{DeviceName, Endpoint};
use crate::addr_group::Member;
use crate::clock;
use crate::fork::ForkGuard;
use crate::pcap::{Earlier, Pcap};
use crate::shm::relay::{Relay, PACKET_MAX};
use crate::shm::{ShmBounds, ShmPort};
use crate::sock_diag::receiving_user;
use crate::udp::UdpPort;
use crate::via::session::Session;
use crate::wait::Waiter;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;
use gdrcore_core::config::Config;
use gdrcore_core::device::Leaks;
use gdrcore_core::engine::{Engine, EngineGuard};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::sleep::Asleep;
use std::sync::OnceLock;

/// How long a device waits for a router that has gone, unless it has a deadline of its own.
fn router_grace_ns(core: &Config) -> u64 {
    match core.deadline_ns {
        0 => 30_000_000_000,
        ns => ns,
    }
}

/// The source of a device's address and block of QPNs: a socket, which other processes may share,
/// or a router. A loopback device has neither.
#[derive(Default)]
struct Origin {
    udp: Option<UdpPort>,
    member: Option<Member>,
    via: Option<Session>,
    relay: Option<Relay>,
}

/// Opens the origin that `name` describes, and completes `core`'s block of QPNs. Returns the
/// device's address.
///
/// # Safety
/// The walk of the layout over `memory` gave `udp..shm` to this call alone.
#[inline(never)]
unsafe fn open_origin(
    opening: &Opening<'_>,
    name: &DeviceName,
    config: &SoftConfig<'_>,
    core: &mut Config,
    waiter: &Waiter,
    origin: &mut Origin,
) -> Result<Endpoint> {
    let at = match name {
        DeviceName::Router(at) => {
            routed::open(at, core, waiter, (&mut origin.via, &mut origin.relay))?;
            let gid = origin.via.as_ref().map(Session::gid).unwrap_or_default();
            return Ok(Endpoint::new(gid, 0, crate::addr::ROCE_PORT));
        }
        DeviceName::Loopback => return Ok(Endpoint::v4([127, 0, 0, 1], crate::addr::ROCE_PORT)),
        DeviceName::Soft(at) => at,
    };
    let Origin { udp, member, .. } = origin;
    // SAFETY: the caller's promise: `udp..member` for the socket, `member..shm` for the claim.
    unsafe { group::open::open(opening, at, config, core.seed, (&mut *udp, &mut *member)) }?;
    let local = udp.as_ref().map_or(*at, |udp| *udp.local());
    for fd in [udp.as_ref().map(UdpPort::fd), member.as_ref().map(Member::fd)].iter().flatten() {
        waiter.add_socket(*fd)?;
    }
    if core.qpn_base == 0 {
        let alone = || config.wanted_blocks().map(|w| w.unclaimed(core.seed));
        core.qpn_base = member.as_ref().map_or_else(alone, |s| Ok(s.qpn_base()))?;
    }
    Ok(local)
}

/// Opens the links of a device to processes of its host; `None`: it has none. `brokered`: the
/// bounds of links that a router makes, or the device for its engines.
///
/// # Safety
/// The walk of the layout over `memory` gave `shm..pcap` to this call alone.
#[inline(never)]
unsafe fn open_links(
    opening: &Opening<'_>,
    local: &Endpoint,
    name: &DeviceName,
    config: &SoftConfig<'_>,
    member: Option<&Member>,
    brokered: Option<ShmBounds>,
    waiter: &Waiter,
) -> Result<Option<ShmPort>> {
    let (memory, bytes) = opening.range(opening.layout.shm, opening.layout.pcap);
    if let Some(bounds) = brokered {
        // SAFETY: the caller's promise.
        return unsafe { ShmPort::open_brokered(local, &bounds, memory, bytes) }.map(Some);
    }
    match member {
        Some(member) if config.has_links(name) => {
            let (names, first, bounds) =
                (member.socket_dir(), member.locks().next(), config.shm_bounds()?);
            // SAFETY: the caller's promise.
            let mut port =
                unsafe { ShmPort::open(names, local, first, &bounds, memory, bytes, waiter)? };
            if config.flags & soft_flags::CMA != 0 {
                port.enable_by_address();
            }
            Ok(Some(port))
        }
        _ if config.has_links(name) && config.path == PathChoice::Shm => Err(refuse!(
            Unsupported,
            "flags: GDRC_CONFIG_SHM_ONLY, and this process cannot share memory with others \
                 (see /dev/shm)"
        )),
        _ => Ok(None),
    }
}

/// Tells the engine two rules of a device's socket: who may send in a peer's name, and that bursts
/// are segmented. In a sandbox the kernel may not tell the user of a port. Then ports are not
/// checked, because a peer's second socket would look like a stranger's.
fn set_socket_rules(g: &mut EngineGuard<'_>, socket: Option<&Endpoint>) {
    g.check_ports(socket.is_some_and(|own| receiving_user(own, own).is_some()));
    g.divide_writes(socket.is_some());
}

/// Opens the capture of a device, if it is configured.
///
/// # Safety
/// The walk of the layout over `memory` gave `pcap..end` to this call alone.
#[inline(never)]
unsafe fn open_capture(opening: &Opening<'_>, config: &SoftConfig<'_>) -> Result<Option<Pcap>> {
    let Some(path) = config.pcap else { return Ok(None) };
    let earlier =
        if config.flags & soft_flags::KEEP_CAPTURE != 0 { Earlier::Keep } else { Earlier::Replace };
    let (memory, bytes) = opening.range(opening.layout.pcap, opening.layout.end);
    // SAFETY: the caller's promise.
    unsafe { Pcap::open(path, earlier, memory, bytes) }.map(Some)
}

/// Opens everything through which a device reaches its peers, and writes its `port` and `via`.
/// Completes `core`. Returns the device's address.
///
/// Not inlined, like the functions that it and `init` call: each frees its stack before the next
/// one runs.
///
/// # Safety
/// The parts of the memory are this device's alone.
#[inline(never)]
unsafe fn open_port(
    opening: &Opening<'_>,
    name: &DeviceName,
    config: &SoftConfig<'_>,
    core: &mut Config,
    waiter: &Waiter,
) -> Result<Endpoint> {
    let mut origin = Origin::default();
    // SAFETY: the walk gave `udp..shm` to the socket and its claim alone.
    let local = unsafe { open_origin(opening, name, config, core, waiter, &mut origin)? };
    let (udp, member, via) = (&origin.udp, origin.member.as_ref(), &origin.via);
    let brokered = match (via, opening.siblings) {
        (Some(_), _) => Some(config.shm_bounds()?),
        (None, Some(siblings)) => Some(siblings.bounds()),
        (None, None) => None,
    };
    // SAFETY: the walk gave `shm..pcap` to the port alone.
    let shm = unsafe { open_links(opening, &local, name, config, member, brokered, waiter)? };
    let carries = largest_path_mtu(udp.as_ref().map_or(u32::MAX, UdpPort::link_mtu));
    let carries = via.as_ref().map_or(carries, |via| carries.min(via.mtu()));
    core.max_mtu = if core.max_mtu == 0 { carries } else { core.max_mtu.min(carries) };
    // SAFETY: the walk gave `pcap..end` to the capture alone.
    let pcap = unsafe { open_capture(opening, config)? };
    let tap = Tap::open(pcap, config, core.resolve()?.burst_bytes)?;
    let Origin { udp, member, via, relay } = &mut origin;
    let status = via.as_ref().and_then(|via| StatusPlace::open(via.gid(), core.qpn_base));
    if let Some(status) = &status {
        waiter.add_socket(status.fd())?;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let port = UnsafeCell::raw_get(&raw const (*opening.place).port);
        PortState::write(port, udp, member, shm, relay.take(), tap);
        (*port).router.room = via.is_some().then(|| Box::new([0; PACKET_MAX]));
        (*port).router.status = status;
        (&raw mut (*opening.place).via).write(via.take());
    }
    Ok(local)
}

/// Makes the engine of a device whose port is open, and tells it the rules of its paths.
///
/// # Safety
/// As for [`open_port`], which has been called.
#[inline(never)]
unsafe fn start_engine(
    opening: &Opening<'_>,
    config: &SoftConfig<'_>,
    core: &Config,
    local: &Endpoint,
) -> Result<()> {
    let Opening { place, layout, siblings, .. } = *opening;
    let (memory, bytes) = opening.range(layout.engine, layout.udp);
    // SAFETY: the walk gave `engine..udp` to the engine alone, and the fields are written.
    let (engine, port, via) = unsafe {
        let at = &raw mut (*place).engine;
        Engine::init_at(at, memory, bytes, core, peer_addr(local))?;
        (&*at, (*place).port.get_mut(), &(*place).via)
    };
    let Some(mut g) = engine.try_lock() else { return Ok(()) };
    g.set_address_shared(port.net.is_some() || port.router.relay.is_some());
    set_socket_rules(&mut g, port.net.as_ref().map(UdpPort::local));
    if let Some(memory) = port.injector().and_then(|faults| faults.memory()) {
        g.set_host_memory(memory);
    }
    g.set_witness();
    // SAFETY: the engine is not used after the device's port, which has the member, was dropped.
    if let Some(receipts) = port.member.as_ref().and_then(|member| unsafe { member.receipts() }) {
        g.leave_receipts(receipts);
    }
    if via.is_some() {
        g.set_idents_zero();
    }
    if let Some(siblings) = siblings {
        g.set_sibling_qpns(siblings.qpns);
    }
    if config.path == PathChoice::Auto && via.is_none() || port.router.relay.is_some() {
        g.set_mixed_paths();
    }
    Ok(())
}

/// Control: open and close.
impl SoftEngine {
    /// Bytes of memory that [`SoftEngine::init`] needs.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a bound of the configuration.
    pub(super) fn memsize(
        name: &DeviceName,
        config: &SoftConfig<'_>,
        siblings: Option<&Siblings>,
    ) -> Result<usize> {
        config.layout(name, siblings).map(|l| l.end)
    }

    /// Makes an engine in the given memory. It stays there until [`SoftEngine::close`]. `siblings`:
    /// the engine is one of several of a loopback device.
    ///
    /// # Errors
    /// As [`super::SoftDevice::init`].
    ///
    /// # Safety
    /// The memory is aligned to ARENA_ALIGN, nothing else uses it, and it lives until `close` has
    /// returned.
    pub(super) unsafe fn init(
        memory: *mut u8,
        bytes: usize,
        name: &DeviceName,
        config: &SoftConfig<'_>,
        siblings: Option<Siblings>,
    ) -> Result<&'static SoftEngine> {
        let layout = config.layout(name, siblings.as_ref())?;
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
        let (helper, grace_ns) = (helper::Helper::new()?, router_grace_ns(&core));
        let place = memory.cast::<SoftEngine>();
        let opening = Opening { place, memory, layout: &layout, siblings: siblings.as_ref() };
        // SAFETY: the memory is aligned as the engine is, the device has room before
        // `layout.engine`, and nothing else uses it. The walk gave each part of the rest away once.
        let device: &'static SoftEngine = unsafe {
            let local = open_port(&opening, name, config, &mut core, &waiter)?;
            if let Err(e) =
                start_engine(&opening, config, &core, &local).and_then(|()| waiter.attach_io(true))
            {
                (&raw mut (*place).via).drop_in_place();
                (&raw mut (*place).port).drop_in_place();
                return Err(e);
            }
            (&raw mut (*place).channels).write(const { channels::Channels::none() });
            write_fields!(place, SoftEngine {
                local: local,
                waiter: waiter,
                fork: fork,
                polls: Default::default(),
                has_local_peers: AtomicBool::new(false),
                is_relayed: AtomicBool::new(false),
                sleeping: Asleep::new(),
                helper_on: AtomicBool::new(false),
                helper: helper,
                sink: OnceLock::new(),
                mtu: core.max_mtu,
                path: config.path,
                siblings: siblings,
                grace_ns: grace_ns,
            } and engine, port, via, channels);
            &*place
        };
        device.channels.begin(core.context);
        leave::note_open(device);
        if config.flags & soft_flags::HELPER != 0 {
            if let Err(e) = device.helper_start() {
                // SAFETY: nobody has seen the device yet.
                unsafe { device.close() };
                return Err(e);
            }
        }
        Ok(device)
    }

    /// Ends the engine; as [`super::SoftDevice::close`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn close(&self) -> Leaks {
        leave::note_closed(self);
        if self.fork.check().is_err() {
            return Leaks::default();
        }
        self.helper_stop();
        let mut held = self.lock_control();
        let leaks = held.leaks();
        self.release_held(&mut held, None);
        drop(held);
        self.drain_and_ack(None);
        self.end_connections(self.lock_control());
        let place: *const SoftEngine = self;
        // SAFETY: the last use of the device, as the caller promises.
        unsafe { core::ptr::drop_in_place(place.cast_mut()) };
        leaks
    }
}
