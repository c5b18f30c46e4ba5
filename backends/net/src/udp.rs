//! The udp port: bursts over one unprivileged UDP socket.
//!
//! A burst leaves by one GSO send and arrives, mostly whole, by GRO. The socket is never connected
//! and forbids fragmentation. So Linux sends IPv4 identification 0 with DF (and 0, 1, 2, … for the
//! segments of one GSO send): the ICRC is exact although the kernel writes the IP header. The
//! kernel's errors of single destinations (ICMP, path MTU, refused GSO) arrive out of step with the
//! sends. [`errors`](self) assigns them, so that an error of one peer never costs another peer a
//! packet.
//!
//! A peer of this host to which many bursts in a row leave, each alone, gets a second, connected
//! socket (`connected`).
//!
//! [`crate::port`] has the order of calls. One thread at a time.

mod as_port;
mod connected;
mod errors;
mod groups;
mod owned;
mod route;
mod rx;
mod socket;
mod tx;

pub use crate::port::{Burst, ErrorKind, PortCounters, PortError, RxPacket, TxOutcome, GROUPS};
pub use owned::OwnedUdpPort;
pub use socket::UdpSocket;
pub(crate) use socket::{interface_of, owner, unconnected};

use crate::addr::Endpoint;
use crate::sys::Fd;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::roce::peer::PeerAddr;
use std::os::fd::RawFd;

/// Most bytes of one burst. A GSO packet of 64 KiB or more, with its link, IP and UDP headers, is
/// segmented in software before it reaches the device (gso_max_size), and the receiver then gets it
/// in parts. This bound leaves room for the headers.
pub const MAX_BURST: usize = (64 << 10) - 128;
/// The largest datagram that a receive returns, by GRO or not.
const MOST: u32 = 64 << 10;
/// Most segments of one GSO send (UDP_MAX_SEGMENTS of kernels before 6.9).
pub const MAX_SEGMENTS: u16 = 64;

/// Datagrams up to this length may be sent over a port's socket without the port: they leave whole,
/// whatever segment size the socket has.
pub const SMALL: usize = 32;

/// Aligned room for the ancillary data of one message (`msg_control`).
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Ancillary<const BYTES: usize>([u8; BYTES]);

/// Capacity and socket options of a port. Fields of 0 take the value of [`UdpConfig::DEFAULT`],
/// options stay off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Messages of one batch of sends, at most 64.
    pub tx_batch: u32,
    /// Bytes of the transmit buffer; one full burst always fits.
    pub tx_bytes: u32,
    /// Datagrams (GRO packets) of one receive call, at most 64. Each has a buffer of `burst_bytes`.
    pub rx_batch: u32,
    /// Most bytes of one burst, and of one received datagram: 576 to 65,536. Below 65,536 bursts
    /// that arrive are received packet by packet (no GRO).
    pub burst_bytes: u32,
    /// SO_RCVBUF in bytes; 0 leaves the system's default.
    pub rcvbuf: u32,
    /// SO_SNDBUF in bytes; 0 leaves the system's default.
    pub sndbuf: u32,
    /// SO_BUSY_POLL in microseconds; 0 leaves it. Ignored where the kernel refuses it.
    pub busy_poll_us: u32,
    /// Byte for IPv4 TOS and IPv6 traffic class: the DSCP until a burst has another one, and the
    /// ECN bits of all bursts. The ICRC does not cover it.
    pub traffic_class: u8,
    /// Any of [`udp_flags`].
    pub flags: u32,
}

/// Flags of [`UdpConfig::flags`].
pub mod udp_flags {
    /// Never use UDP_SEGMENT.
    pub const NO_GSO: u32 = 1;
    /// Never use UDP_GRO.
    pub const NO_GRO: u32 = 2;
    /// Share the port with other sockets that set this (SO_REUSEPORT).
    pub const REUSE_PORT: u32 = 4;
}

/// Datagrams of one recvmmsg, each of which may be a burst that the kernel has put together.
const RX_BATCH: u32 = 8;

impl UdpConfig {
    /// The values of zero fields.
    pub const DEFAULT: UdpConfig = UdpConfig {
        tx_batch: 32,
        tx_bytes: 256 << 10,
        rx_batch: RX_BATCH,
        burst_bytes: MOST,
        rcvbuf: 0,
        sndbuf: 0,
        busy_poll_us: 0,
        traffic_class: 0,
        flags: 0,
    };

    const fn resolved(&self) -> UdpConfig {
        const fn pick(v: u32, default: u32, lo: u32, hi: u32) -> u32 {
            let v = if v == 0 { default } else { v };
            if v < lo {
                lo
            } else if v > hi {
                hi
            } else {
                v
            }
        }
        let d = &UdpConfig::DEFAULT;
        let burst_bytes = pick(self.burst_bytes, d.burst_bytes, 576, MOST);
        let no_gro = if burst_bytes < MOST { udp_flags::NO_GRO } else { 0 };
        UdpConfig {
            tx_batch: pick(self.tx_batch, d.tx_batch, 1, 64),
            tx_bytes: pick(self.tx_bytes, d.tx_bytes, burst_bytes, 16 << 20),
            rx_batch: pick(self.rx_batch, d.rx_batch, 1, 64),
            burst_bytes,
            flags: self.flags | no_gro,
            ..*self
        }
    }
}

impl Default for UdpConfig {
    fn default() -> Self {
        UdpConfig::DEFAULT
    }
}

/// One UDP socket with its batches of buffers. Movable; the buffers are in the caller's memory.
pub struct UdpPort {
    fd: Fd,
    local: Endpoint,
    /// Index of the interface that owns `local`, 0 if none does.
    interface: u32,
    gso: bool,
    gro: bool,
    tx: tx::Tx,
    rx: rx::Rx,
    errors: errors::Errors,
    groups: groups::Groups,
    class: u8,
    connected: Option<connected::ConnectedSocket>,
    /// The connected socket, while it is doubted.
    resting: Option<connected::ConnectedSocket>,
    /// The last peer for which no connected socket could be made.
    not_connectable: Option<PeerAddr>,
    /// Bursts that left alone for the last destination, and could have left by a connected socket.
    lone_bursts: u16,
    /// Lone bursts after which their peer gets a connected socket.
    connect_after: u16,
    counters: PortCounters,
}

// SAFETY: the raw pointers inside lead only into memory that `open` got for this port alone.
unsafe impl Send for UdpPort {}
// SAFETY: by shared reference the port only reads; whatever writes takes `&mut self`.
unsafe impl Sync for UdpPort {}

impl UdpPort {
    /// Bytes of memory that [`UdpPort::open`] needs.
    pub const fn memsize(cfg: &UdpConfig) -> usize {
        let cfg = cfg.resolved();
        // `Carve` may skip bytes to align its start.
        tx::Tx::memsize(&cfg) + rx::Rx::memsize(&cfg) + 2 * ALIGN
    }

    /// Opens and binds the socket. Port 0 takes a free port, which [`UdpPort::local`] returns.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotLocal`, `Access` (a port below 1024 without privilege),
    /// `NoMemory` (`len` is too small), `Invalid` (no unicast address), `Unsupported` (no IPv6
    /// here), other errors of the system.
    ///
    /// # Safety
    /// `mem` is `len` writable bytes that nothing else uses while the port lives.
    pub unsafe fn open(ep: &Endpoint, cfg: &UdpConfig, mem: *mut u8, len: usize) -> Result<Self> {
        if mem.is_null() || len < Self::memsize(cfg) {
            return Err(Error::NoMemory);
        }
        // SAFETY: the caller's promise.
        unsafe { UdpPort::from_socket(UdpSocket::open(ep, cfg)?, cfg, mem, len) }
    }

    /// As [`UdpPort::open`], over a socket that is open already.
    ///
    /// # Errors
    /// `NoMemory`: `len` is too small.
    ///
    /// # Safety
    /// As [`UdpPort::open`].
    pub unsafe fn from_socket(
        socket: UdpSocket,
        cfg: &UdpConfig,
        mem: *mut u8,
        len: usize,
    ) -> Result<Self> {
        if mem.is_null() || len < Self::memsize(cfg) {
            return Err(Error::NoMemory);
        }
        let cfg = cfg.resolved();
        let mut carve = Carve { next: mem, left: len };
        // SAFETY: the caller's contract for `mem` is the one that both require; the carver hands
        // out each byte once.
        let (tx, rx) =
            unsafe { (tx::Tx::carve(&cfg, &mut carve)?, rx::Rx::carve(&cfg, &mut carve)?) };
        Ok(UdpPort {
            fd: socket.fd,
            local: socket.local,
            interface: socket.interface,
            gso: socket.gso,
            gro: socket.gro,
            tx,
            rx,
            errors: errors::Errors::new(),
            groups: groups::Groups::new(),
            class: cfg.traffic_class,
            connected: None,
            resting: None,
            not_connectable: None,
            lone_bursts: 0,
            connect_after: connected::CONNECT_AFTER,
            counters: PortCounters::default(),
        })
    }

    /// The socket, for a [`crate::wait::Waiter`].
    #[inline]
    pub fn fd(&self) -> RawFd {
        self.fd.raw()
    }

    /// The address and port that the socket is bound to.
    #[inline]
    pub fn local(&self) -> &Endpoint {
        &self.local
    }

    /// Allows later sockets of this user to bind the same port, if they set
    /// [`udp_flags::REUSE_PORT`].
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn allow_reuse_port(&self) -> Result<()> {
        socket::allow_reuse_port(self.fd.raw())
    }

    /// Current MTU, in bytes of IP packet, of the interface that owns the address; 1500 if none
    /// is known. Cost: two system calls.
    pub fn link_mtu(&self) -> u32 {
        socket::link_mtu(self.interface, self.fd.raw())
    }

    /// Bytes of IP packet that the route to a peer carries now, by the routing table. `None`:
    /// unknown. Cost: some six system calls.
    pub fn route_mtu(&self, to: &Endpoint) -> Option<u32> {
        route::route_mtu(self.fd.raw(), &self.local, to)
    }

    /// Follows the address to another interface.
    pub fn set_interface(&mut self, interface: u32) {
        if core::mem::replace(&mut self.interface, interface) != interface {
            self.groups_follow();
        }
    }

    /// Whether the kernel segments bursts (GSO), and whether it returns whole bursts (GRO).
    pub fn offloads(&self) -> (bool, bool) {
        (self.gso, self.gro)
    }

    /// Counters so far.
    pub fn counters(&self) -> PortCounters {
        self.counters
    }
}

/// Cache line, and the alignment of every carved part.
const ALIGN: usize = 64;

const fn lines(bytes: usize) -> usize {
    (bytes + ALIGN - 1) & !(ALIGN - 1)
}

/// Deals out aligned pieces of the caller's memory.
struct Carve {
    next: *mut u8,
    left: usize,
}

impl Carve {
    fn bytes(&mut self, bytes: usize) -> Result<*mut u8> {
        let pad = self.next.align_offset(ALIGN);
        let need = lines(bytes).checked_add(pad).ok_or(Error::NoMemory)?;
        if need > self.left {
            return Err(Error::NoMemory);
        }
        let at = self.next.wrapping_add(pad);
        self.next = at.wrapping_add(lines(bytes));
        self.left -= need;
        Ok(at)
    }

    /// Room for `n` values, each set to `init`.
    ///
    /// # Safety
    /// The memory is writable and ours.
    unsafe fn array<T: Copy>(&mut self, n: usize, init: T) -> Result<*mut T> {
        let at = self.bytes(n * core::mem::size_of::<T>())?.cast::<T>();
        for i in 0..n {
            // SAFETY: `bytes` found room for `n` values at an address that is aligned for every T
            // here.
            unsafe { at.add(i).write(init) };
        }
        Ok(at)
    }
}

#[cfg(test)]
pub(crate) mod tests;
