//! The soft device: an engine, its port, and whoever drives them.
//!
//! * `progress`: one bounded round of the engine, and who runs it when. `budget`: how much of it.
//!   `lock`: who may.
//! * `wire`: the socket. `links`: other processes of this host. `loans`: memory that they write by
//!   themselves, `mappable` for how long. `paths`: which of them leads to a peer.
//! * `helper`: the thread that runs it while the program does not. `channels`: threads that sleep
//!   on events of their own CQs.
//! * `routed`: peers by way of a router, in place of the socket and of `paths`. `relayed`: what goes
//!   by its rings. `services`: what it knows of our listeners.
//! * `ports`: from where peers may send. `cm`: the connection manager. `multicast`: groups.
//! * `sharing`: what others of the same address are owed. `witness`: why a peer is silent.
//! * `device`: the [`gdrcore_core::device::Device`] trait. `pinned`: its posts and polls without a
//!   handle.
//!
//! Everything lies in the memory given to [`SoftDevice::init`]: the device itself first, then the
//! engine's arena, then the buffers of the port and of the tee.

mod budget;
mod channels;
mod cm;
mod device;
mod helper;
mod links;
mod loans;
mod lock;
mod mappable;
mod multicast;
mod paths;
mod pinned;
mod ports;
mod progress;
mod relayed;
mod routed;
mod services;
mod sharing;
mod wire;
mod witness;

pub use helper::OwnSignals;
pub use pinned::{PinnedCq, PinnedQp};

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::OnceLock;

use crate::addr::{DeviceName, Endpoint};
use crate::clock;
use crate::fork::ForkGuard;
use crate::pcap::{Earlier, Pcap};
use crate::share::{Claim, Member, Wanted};
use crate::shm::relay::Relay;
use crate::shm::ShmPort;
use crate::udp::{udp_flags, UdpConfig, UdpPort};
use crate::via::session::Session;
use crate::wait::Waiter;
use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::device::{AsyncEvent, Leaks};
use gdrcore_core::engine::Engine;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::Memory;
use gdrcore_core::refuse;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::sleep::Asleep;
use gdrcore_core::verbs::types::Handle;

/// How a soft device is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftConfig<'a> {
    /// Bounds of the engine. `seed` 0: drawn from the system's random source. `max_mtu` 0: what the
    /// link carries.
    pub core: Config,
    /// [`soft_flags`].
    pub flags: u32,
    /// How peers of this host are reached.
    pub path: PathChoice,
    /// Write all packets that the device sends and receives into this capture file. What travels
    /// over links is no packet.
    pub pcap: Option<&'a CStr>,
}

/// How peers are reached. Decided for each at RTR, or when an address handle is made, and never
/// changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// Always through the network.
    #[default]
    Udp,
    /// Through shared memory; a peer that is not there is an error.
    Shm,
    /// Through shared memory where the peer is a process of this host that offers it, else through
    /// the network.
    Auto,
}

/// Takes events as they happen, instead of a program that asks for them
/// ([`SoftDevice::deliver_to`]).
///
/// Called by whoever runs the engine, with its lock held: it must not call the device, and should
/// be short.
pub trait EventSink: Sync {
    /// The arming of a CQ was met.
    fn cq_event(&self, cq: Handle);
    /// Something happened to a QP, an SRQ, a CQ or the device.
    fn async_event(&self, event: AsyncEvent);
    /// The connection manager has events, to be taken as ever.
    fn cm_event(&self) {}
}

/// Flags of [`SoftConfig::flags`].
pub mod soft_flags {
    /// Never use segmentation offload.
    pub const NO_GSO: u32 = 1;
    /// Start the helper thread at once.
    pub const HELPER: u32 = 2;
    /// Let processes of this user that want it too write regions by their addresses, and write
    /// theirs (`process_vm_writev`).
    pub const CMA: u32 = 4;
    /// Write the capture behind what is in its file.
    pub const KEEP_CAPTURE: u32 = 8;
}

/// Bytes of the tee's write buffer.
const PCAP_BUFFER: usize = 256 << 10;

/// What the socket's receive buffer is asked to hold. The system grants its own maximum where that
/// is less: twice the default on Debian, which then has room for a window of WRITEs and a window of
/// READ responses of one peer.
const RCVBUF: u32 = 1 << 20;

/// ECN bits of packets that switches may mark instead of dropping them (RFC 3168: ECN-capable
/// transport).
const ECT_0: u8 = 2;

/// What belongs to the holder of the engine's lock besides the engine.
struct Port {
    udp: Option<UdpPort>,
    /// Behind the socket: who has the address too hears of our end when the socket is closed.
    share: Option<Member>,
    shm: Option<ShmPort>,
    /// The rings to and from a router.
    relay: Option<Relay>,
    /// Listeners that the router knows of.
    services: services::Services,
    pcap: Option<Pcap>,
    /// The socket is among what wakes a sleeper.
    watched: bool,
    /// Rounds that received something since somebody was about to sleep.
    wakeful: u32,
    /// The send buffer of the socket was full; wake when it can be written.
    blocked: bool,
    /// A ring to another process was full.
    rings_full: bool,
    /// A link of a device without a socket was lost: what it would have carried goes nowhere.
    discards: bool,
    /// Empty rounds since something was handled.
    empty: u32,
    /// The tick in which the last of them did all there is to do, and whether it looked at the
    /// socket, without which no timer runs.
    idle_tick: (u64, bool),
    /// UDP ports from which peers may send.
    ports: ports::Ports,
    /// Errors of the socket seen so far.
    send_err: u64,
    /// The time of the last round.
    now: u64,
    /// Rounds since the clock was read for it.
    stale: u8,
    /// When the socket last brought something.
    udp_hot_ns: u64,
    /// When it is looked at next, whatever the links bring.
    listen_at: u64,
    /// When the shm port is tended next.
    tend_at: u64,
    /// And how long after the last time that is.
    tend_every: u64,
    /// When a round to which the links brought something has more to do than that: either of both,
    /// or at once while the socket is hot.
    due_at: u64,
    /// [`Guard::changes`](gdrcore_core::engine::Guard::changes) when the loans were last checked.
    changes: u32,
}

/// A RoCEv2 NIC in software.
pub struct SoftDevice {
    engine: Engine,
    port: UnsafeCell<Port>,
    local: Endpoint,
    waiter: Waiter,
    fork: ForkGuard,
    /// Polls in a row that found nothing.
    idle: AtomicU32,
    /// Some peers are processes of this host. As of the last time that the links were looked after.
    near: AtomicBool,
    /// When a program thread last ran the engine; the helper keeps away for a while.
    last_poll_ns: AtomicU64,
    /// A thread has armed the descriptor and may sleep on it.
    sleeping: Asleep,
    /// The helper thread runs.
    helper_on: AtomicBool,
    helper: helper::Slot,
    channels: channels::Channels,
    /// Where events go; without one, programs ask for them.
    sink: OnceLock<&'static dyn EventSink>,
    mtu: u32,
    path: PathChoice,
    /// The router by way of which peers are reached. Its lock is never taken by who waits for it
    /// under the engine's.
    via: Option<Session>,
}

// SAFETY: `port` is reached only by the holder of the engine's lock; everything else is `Sync`.
unsafe impl Sync for SoftDevice {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for SoftDevice {}

/// Where the parts lie in the device's memory.
struct Layout {
    engine: usize,
    udp: usize,
    share: usize,
    shm: usize,
    pcap: usize,
    end: usize,
}

fn page_up(n: usize) -> Result<usize> {
    n.checked_add(4095).map(|n| n & !4095).ok_or(Error::NoMemory)
}

impl SoftConfig<'_> {
    fn udp(&self) -> UdpConfig {
        let flags = if self.flags & soft_flags::NO_GSO != 0 { udp_flags::NO_GSO } else { 0 };
        let traffic_class = if self.core.flags & config_flags::DCQCN != 0 { ECT_0 } else { 0 };
        UdpConfig { flags, rcvbuf: RCVBUF, traffic_class, ..UdpConfig::DEFAULT }
    }

    fn has_links(&self, name: &DeviceName) -> bool {
        match name {
            DeviceName::Soft(_) => self.path != PathChoice::Udp,
            DeviceName::Router(_) => true,
            DeviceName::Loopback => false,
        }
    }

    /// The QPN blocks that the device claims of its address.
    fn wanted(&self) -> Result<Wanted> {
        Wanted::of(self.core.qpn_base, self.core.resolve()?.qpn_count)
    }

    fn layout(&self, name: &DeviceName) -> Result<Layout> {
        let engine = page_up(size_of::<SoftDevice>())?;
        let udp =
            page_up(engine.checked_add(Engine::memsize(&self.core)?).ok_or(Error::NoMemory)?)?;
        let bytes =
            if matches!(name, DeviceName::Soft(_)) { UdpPort::memsize(&self.udp()) } else { 0 };
        let share = page_up(udp.checked_add(bytes).ok_or(Error::NoMemory)?)?;
        let (claim, blocks) = match name {
            DeviceName::Soft(_) => self.wanted().map(|w| (Claim::memsize(&w), w.count()))?,
            DeviceName::Loopback | DeviceName::Router(_) => (0, 0),
        };
        let shm = page_up(share + claim)?;
        let links = if self.has_links(name) { ShmPort::memsize(blocks) } else { 0 };
        let pcap = page_up(shm.checked_add(links).ok_or(Error::NoMemory)?)?;
        let end = page_up(pcap + if self.pcap.is_some() { PCAP_BUFFER } else { 0 })?;
        Ok(Layout { engine, udp, share, shm, pcap, end })
    }
}

/// The largest path MTU whose packets an MTU of IP carries. rxe's rule: the headers and the ICRC
/// take at most 80 bytes of it.
fn carried_by(mtu: u32) -> u32 {
    [4096, 2048, 1024, 512].into_iter().find(|&m| m <= mtu.saturating_sub(80)).unwrap_or(256)
}

/// The address as the engine has it.
pub(crate) fn peer_addr(e: &Endpoint) -> PeerAddr {
    PeerAddr { gid: e.ip, scope_id: e.scope_id, port: e.port, ..PeerAddr::default() }
}

/// The address as the port has it.
pub(crate) fn endpoint(p: &PeerAddr) -> Endpoint {
    Endpoint { ip: p.gid, scope_id: p.scope_id, port: p.port }
}

impl Port {
    /// That of a new device.
    fn new(
        udp: Option<UdpPort>,
        share: Option<Member>,
        shm: Option<ShmPort>,
        relay: Option<Relay>,
        pcap: Option<Pcap>,
    ) -> Port {
        Port {
            udp,
            share,
            shm,
            relay,
            services: services::Services::default(),
            pcap,
            watched: true,
            wakeful: 0,
            blocked: false,
            rings_full: false,
            discards: false,
            empty: 0,
            idle_tick: (0, false),
            ports: ports::Ports::default(),
            send_err: 0,
            now: 0,
            stale: u8::MAX,
            udp_hot_ns: 0,
            listen_at: 0,
            due_at: 0,
            tend_at: 0,
            tend_every: 0,
            changes: 0,
        }
    }
}

/// The links of a device to processes of its host; `None`: it has none. `brokered`: a router makes
/// them.
///
/// # Safety
/// The walk of the layout over `memory` gave `shm..pcap` to nobody else.
#[allow(clippy::too_many_arguments)] // what the device is made of so far
unsafe fn open_links(
    memory: *mut u8,
    layout: &Layout,
    local: &Endpoint,
    name: &DeviceName,
    config: &SoftConfig<'_>,
    share: Option<&Member>,
    brokered: bool,
    waiter: &Waiter,
) -> Result<Option<ShmPort>> {
    let links = match share {
        _ if brokered => {
            // SAFETY: the caller's promise.
            Some(unsafe {
                ShmPort::open_brokered(local, memory.add(layout.shm), layout.pcap - layout.shm)?
            })
        }
        Some(share) if config.has_links(name) => {
            let by_address = config.flags & soft_flags::CMA != 0;
            let bytes = layout.pcap - layout.shm;
            // SAFETY: the caller's promise.
            let (memory, locks) = (unsafe { memory.add(layout.shm) }, share.locks());
            // SAFETY: as above.
            Some(unsafe {
                ShmPort::open(share.home(), local, locks, by_address, memory, bytes, waiter)?
            })
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

/// The tee of a device that captures its packets.
///
/// # Safety
/// The walk of the layout over `memory` gave `pcap..end` to nobody else.
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
        config.layout(&DeviceName::parse(name)?).map(|l| l.end)
    }

    /// Makes a device in the given memory. It stays where it is until [`SoftDevice::close`].
    ///
    /// # Errors
    /// The name or a bound: [`Error::Invalid`], [`Error::NoDevice`]. A router: as
    /// [`Session::open`]. The address: [`Error::AddressNotLocal`], [`Error::AddressInUse`].
    /// [`Error::NoMemory`]: fewer than [`SoftDevice::memsize`] bytes. [`Error::Os`].
    ///
    /// # Safety
    /// The memory is page-aligned, used by nobody else and lives until `close` has returned.
    pub unsafe fn init(
        memory: *mut u8,
        bytes: usize,
        name: &str,
        config: &SoftConfig<'_>,
    ) -> Result<&'static SoftDevice> {
        let name = DeviceName::parse(name)?;
        let layout = config.layout(&name)?;
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
        let (mut via, mut relay) = (None, None);
        let (local, udp, share) = match name {
            DeviceName::Router(at) => {
                let (session, rings) = routed::open(&at, &mut core, &waiter)?;
                let local = Endpoint::new(session.gid(), 0, crate::addr::ROCE_PORT);
                (via, relay) = (Some(session), rings);
                (local, None, None)
            }
            DeviceName::Soft(at) => {
                // SAFETY: the walk gave `udp..share` to the socket and `share..shm` to the claim,
                // each alone.
                let sharing::Opened { udp, share } =
                    unsafe { sharing::open(memory, &layout, &at, config, core.seed)? };
                waiter.add_socket(udp.fd())?;
                if let Some(share) = &share {
                    waiter.add_socket(share.fd())?;
                }
                if core.qpn_base == 0 {
                    let alone = || config.wanted().map(|w| w.unclaimed(core.seed));
                    core.qpn_base = share.as_ref().map_or_else(alone, |s| Ok(s.qpn_base()))?;
                }
                (*udp.local(), Some(udp), share)
            }
            DeviceName::Loopback => {
                (Endpoint::v4([127, 0, 0, 1], crate::addr::ROCE_PORT), None, None)
            }
        };
        // SAFETY: the walk gave `shm..pcap` to the port alone.
        let shm = unsafe {
            open_links(
                memory,
                &layout,
                &local,
                &name,
                config,
                share.as_ref(),
                via.is_some(),
                &waiter,
            )?
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
            g.check_ports(udp.is_some());
            g.set_witness();
            if config.path == PathChoice::Auto && via.is_none() || relay.is_some() {
                g.set_mixed_paths();
            }
        }
        let device = SoftDevice {
            engine,
            port: UnsafeCell::new(Port::new(udp, share, shm, relay, pcap)),
            local,
            waiter,
            fork,
            last_poll_ns: AtomicU64::new(0),
            idle: AtomicU32::new(0),
            near: AtomicBool::new(false),
            sleeping: Asleep::new(),
            helper_on: AtomicBool::new(false),
            helper: helper::Slot::new()?,
            channels: channels::Channels::new(),
            sink: OnceLock::new(),
            mtu: core.max_mtu,
            path: config.path,
            via,
        };
        let place = memory.cast::<SoftDevice>();
        // SAFETY: aligned to a page, large enough (`layout.engine`), and nobody else's.
        let device: &'static SoftDevice = unsafe {
            place.write(device);
            &*place
        };
        if config.flags & soft_flags::HELPER != 0 {
            if let Err(e) = device.helper_start() {
                // SAFETY: nobody has seen the device yet.
                unsafe { device.close() };
                return Err(e);
            }
        }
        Ok(device)
    }

    /// Makes a kind of memory known under a number from 1 on, for registrations that name it. It
    /// must outlive the device.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Busy`]: no such number, or taken. [`Error::OwnerDead`].
    pub fn memory_add(&self, provider: u32, memory: &'static dyn Memory) -> Result<()> {
        self.lock()?.register_memory(provider, memory)
    }

    /// From here on events go to `sink`, and only there: `cq_event` and `async_event` find none.
    /// The first sink stays. It must live until `close` has returned.
    pub fn deliver_to(&self, sink: &'static dyn EventSink) {
        let _ = self.sink.set(sink);
    }

    /// Ends the device: stops the helper, writes out the capture, closes the descriptors. Says what
    /// was left. In a forked child nothing is touched but the child's copies of the descriptors
    /// stay open.
    ///
    /// # Safety
    /// No thread is inside a call on the device, and none makes one afterwards.
    pub unsafe fn close(&self) -> Leaks {
        if self.fork.check().is_err() {
            return Leaks::default();
        }
        self.helper_stop();
        let leaks = lock::Control::of(self.lock_held()).leaks();
        let place: *const SoftDevice = self;
        // SAFETY: the last use of the device, as the caller promises.
        unsafe { core::ptr::drop_in_place(place.cast_mut()) };
        leaks
    }
}
