//! The soft device: an engine, its ports, and the threads that run them.
//!
//! * `open`: opening and closing; `leave`: the end of the process; `layout`: the parts of the
//!   device's memory; `lock`: the engine's lock.
//! * `rounds`: one bounded round of the engine: its time, its inputs, its end.
//! * `threads`: the threads that run rounds, take turns, spin and sleep.
//! * `socket_io`: packets through a port; `tap`: captures and injected faults.
//! * `peers`: the path to each peer, its grants, the cause of its silence, its end.
//! * `router`: peers over a router, in place of the socket and of `peers::paths`.
//! * `group`: the other devices of an address.
//! * `interface`: events of the port's link and address. `cm`: the connection manager. `multicast`:
//!   groups.
//! * `device`: the engines of a device. `siblings`: those without a port.
//! * `engine`: the calls of one engine. `pinned_handles`: posts and polls without a handle.
//!
//! Each `impl` of [`SoftEngine`] names its role. **Data**: posts, polls and rounds; they wait for
//! two turns at most, and leave their work to the lock's holder. **Control**: calls that wait for
//! it. **Waiting**: threads that sleep. `lock` says how.
//!
//! Everything lies in the memory given to [`SoftDevice::init`]: the device itself, then of each
//! engine the engine, its arena, the buffers of the ports and of the capture.

/// Writes the fields of a struct in place, one by one. A whole struct that is made on the stack and
/// copied would not fit the small stacks of some programs' threads. The fields after `and` are
/// already written.
macro_rules! write_fields {
    ($place:expr, $type:ident { $($field:ident: $value:expr,)* } and $($before:ident),*) => {{
        let place = $place;
        // This does not compile if a field is missing.
        if false {
            let $type { $($field: _,)* $($before: _,)* } = &*place;
        }
        $((&raw mut (*place).$field).write($value);)*
    }};
}

mod cm;
mod device;
mod engine;
mod group;
mod interface;
mod layout;
mod leave;
mod lock;
mod multicast;
mod open;
mod peers;
mod pinned_handles;
mod rounds;
mod router;
mod services;
mod siblings;
mod socket_io;
mod status;
#[cfg(test)]
mod test_engine;
mod threads;

/// The directories of this user in which devices of a host find each other. Devices make
/// directories and sockets there while they live. Cost: some system calls; allocates.
pub fn socket_dirs() -> Vec<std::path::PathBuf> {
    crate::local::own_paths()
}

pub use device::{EngineCount, PinnedRings, SoftDevice, MAX_ENGINES};
pub use pinned_handles::{PinnedCq, PinnedQp};

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::AtomicBool;
use std::sync::OnceLock;

use crate::addr::{endpoint, peer_addr, Endpoint};
use crate::addr_group::Member;
use crate::fork::ForkGuard;
use crate::inject::FaultSpec;
use crate::interface_state::InterfaceWatch;
use crate::shm::relay::Relay;
use crate::shm::ShmPort;
use crate::udp::UdpPort;
use crate::via::session::Session;
use crate::wait::Waiter;
use gdrcore_core::config::Config;
use gdrcore_core::device::AsyncEvent;
use gdrcore_core::engine::Engine;
use gdrcore_core::sleep::Asleep;
use gdrcore_core::verbs::types::Handle;
use socket_io::tap::Tap;

/// The configuration of a soft device.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftConfig<'a> {
    /// Bounds of the engine. `seed` 0: drawn from the system's random source. `max_mtu` 0: what the
    /// link carries.
    pub core: Config,
    /// [`soft_flags`].
    pub flags: u32,
    /// How peers of this host are reached.
    pub path: PathChoice,
    /// Write all packets that the device sends and receives into this capture file. Runs over links
    /// are not captured: they are no packets.
    pub pcap: Option<&'a CStr>,
    /// Injected faults. The device then has one engine, and reaches every peer through its port,
    /// itself too ([`PathChoice::Udp`]).
    pub faults: Option<&'a FaultSpec<'a>>,
    /// How many engines the device has.
    pub engines: EngineCount,
}

/// How peers are reached. Chosen for each at RTR, or when an address handle is made. It stays so,
/// but that datagrams to a process that has ended go through the network.
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

/// Receives events as they happen, for a program that does not poll for them
/// ([`SoftDevice::deliver_to`]).
///
/// Called by the thread that runs the engine, with its lock held: it must not call the device, and
/// should be short.
pub trait EventSink: Sync {
    /// A completion met the arming of a CQ.
    fn cq_event(&self, cq: Handle);
    /// A QP, an SRQ, a CQ or the device has an event.
    fn async_event(&self, event: AsyncEvent);
    /// The connection manager has events; [`gdrcore_core::device::CmDevice::event`] takes them.
    fn cm_event(&self) {}
    /// MADs of other management classes have arrived; [`SoftDevice::take_other_mad`] takes them.
    fn other_mad_event(&self) {}
}

/// Flags of [`SoftConfig::flags`].
pub mod soft_flags {
    /// Never use segmentation offload.
    pub const NO_GSO: u32 = 1;
    /// Start the helper thread at once.
    pub const HELPER: u32 = 2;
    /// Processes of this user that set this flag write each other's regions by address
    /// (`process_vm_writev`).
    pub const CMA: u32 = 4;
    /// Append to the capture file.
    pub const KEEP_CAPTURE: u32 = 8;
}

/// The ports of a device, and the schedule of its rounds. Protected by the engine's lock.
struct PortState<P = UdpPort> {
    /// Carries packets; `None`: loopback, or a device over a router.
    net: Option<P>,
    /// Field order matters: dropped after `net`, so that its end tells others that the socket is
    /// closed.
    member: Option<Member>,
    shm: Option<ShmPort>,
    /// Look-ups of destinations that the network refuses.
    refused: peers::ports::LookUps,
    /// The interface of the address; `None`: its port is always active.
    interface: Option<InterfaceWatch>,
    router: router::routed::RouterState,
    /// Sees each packet: a capture, injected faults.
    tap: Option<Box<Tap>>,
    /// Decides which inputs a round reads, and when.
    schedule: rounds::schedule::Schedule,
    /// The port's descriptor is in the epoll set.
    watched: bool,
    /// The port has no room; its descriptor wakes a thread when it has.
    blocked: bool,
    /// A ring to another process was full.
    rings_full: bool,
    /// A thread waited in vain for room for a last ACK, and there has been no room since.
    gave_up_room: bool,
    /// A device without a socket has lost a link: packets that would leave by the port are dropped.
    discards: bool,
    /// UDP ports that peers may send from.
    ports: peers::ports::PeerPorts,
    seen: LastCounters,
}

/// The last seen values of counters. When one changes, a round repeats the checks that depend on
/// it.
#[derive(Default)]
struct LastCounters {
    /// [`EngineGuard::loss_signs`](gdrcore_core::engine::EngineGuard::loss_signs), by the last idle
    /// round.
    loss_signs: u32,
    /// Errors of the port.
    send_err: u64,
    /// [`EngineGuard::changes`](gdrcore_core::engine::EngineGuard::changes), when the grants were
    /// checked.
    changes: u32,
    /// [`EngineGuard::connections_begun`](gdrcore_core::engine::EngineGuard::connections_begun),
    /// when the receipts were checked.
    connections_begun: u32,
}

/// An engine of a [`SoftDevice`], with its ports.
pub struct SoftEngine {
    /// The router over which peers are reached. A thread that waits for its lock must not hold the
    /// engine's lock. Dropped before the port: otherwise the router could take the rings for broken
    /// before it learns of the device's end.
    via: Option<Session>,
    engine: Engine,
    port: UnsafeCell<PortState>,
    local: Endpoint,
    waiter: Waiter,
    fork: ForkGuard,
    /// Some peers are processes of this host, as of the last maintenance of the links.
    has_local_peers: AtomicBool,
    /// All peers are reached over a router, as of the last maintenance of the links.
    is_relayed: AtomicBool,
    polls: threads::turns::PollNotes,
    /// A thread has armed the descriptor and may sleep on it.
    sleeping: Asleep,
    helper_on: AtomicBool,
    helper: threads::helper::Helper,
    channels: threads::channels::Channels,
    /// Receiver of events; without one, programs poll for events.
    sink: OnceLock<&'static dyn EventSink>,
    mtu: u32,
    path: PathChoice,
    /// The engines of this engine's loopback device.
    siblings: Option<siblings::Siblings>,
    /// How long a router may be away.
    grace_ns: u64,
}

// SAFETY: `port` is accessed only by the holder of the engine's lock; everything else is `Sync`.
unsafe impl Sync for SoftEngine {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for SoftEngine {}

/// The largest path MTU whose packets fit an IP MTU, and the smallest one where none fits. rxe's
/// rule: the headers and the ICRC take at most 80 bytes of it.
pub fn largest_path_mtu(mtu: u32) -> u32 {
    [4096, 2048, 1024, 512].into_iter().find(|&m| m <= mtu.saturating_sub(80)).unwrap_or(256)
}

impl<P> PortState<P> {
    /// The state of a device with a port and nothing else.
    #[cfg(test)]
    fn with_port(port: P) -> PortState<P> {
        let mut state = core::mem::MaybeUninit::uninit();
        // SAFETY: its own place, and all of it is written.
        unsafe {
            PortState::write(state.as_mut_ptr(), &mut Some(port), &mut None, None, None, None);
            state.assume_init()
        }
    }

    /// Writes the state of a new device; takes its socket and its membership.
    ///
    /// # Safety
    /// The place is aligned for it and may be written.
    #[inline(never)]
    unsafe fn write(
        place: *mut PortState<P>,
        net: &mut Option<P>,
        member: &mut Option<Member>,
        shm: Option<ShmPort>,
        relay: Option<Relay>,
        tap: Option<Box<Tap>>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            write_fields!(place, PortState {
                net: net.take(),
                member: member.take(),
                shm: shm,
                refused: Default::default(),
                interface: None,
                router: router::routed::RouterState { relay, ..Default::default() },
                tap: tap,
                schedule: rounds::schedule::Schedule::new(),
                watched: true,
                blocked: false,
                rings_full: false,
                gave_up_room: false,
                discards: false,
                ports: peers::ports::PeerPorts::default(),
                seen: LastCounters::default(),
            } and);
        }
    }
}

/// Control: settings that the device's owner makes once.
impl SoftEngine {
    /// Sends events to `sink` alone from now on, so that `cq_event` and `async_event` return none.
    /// The first sink stays, and must live until `close` has returned.
    fn deliver_to(&self, sink: &'static dyn EventSink) {
        let _ = self.sink.set(sink);
    }
}
