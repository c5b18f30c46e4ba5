//! The trait of a port that carries RoCEv2 packets, and the types of its calls.
//!
//! The soft device sends and receives through this trait alone; [`crate::udp`] is the port that it
//! opens. The engine's burst is n packets of one message to one address, each as long as `seg` but
//! the last.
//!
//! A round calls in this order: `tx_space` → fill → `tx_commit` (repeat) → `tx_flush`; `rx_poll` →
//! `rx_get` for each; `take_error` until `None`. One thread at a time.

use crate::addr::Endpoint;
use gdrcore_core::engine::Arrival;
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::{ConnectedFlow, PeerAddr};
use std::os::fd::RawFd;

/// Multicast groups that a port receives at once.
pub const GROUPS: usize = 16;

/// Description of a burst in [`Port::tx_space`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Address and port of the receiver; class, hop limit and flow label of the packets.
    pub dst: PeerAddr,
    /// Bytes filled.
    pub len: usize,
    /// Bytes of each packet with its ICRC; the last may be shorter.
    pub seg: u16,
}

/// How a flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxOutcome {
    /// All bursts left, or failed for their destination (see [`Port::take_error`]).
    Sent,
    /// There is no room; the rest is kept in order. Flush again when the descriptor is writable.
    Full,
}

/// A datagram, or several of one burst that were received together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxPacket<'a> {
    /// The sender, and fields of the IP header: the class with its ECN bits, of which 3 means
    /// congestion experienced. Hop limit and flow label: 0 unless [`Port::show_headers`] was
    /// called.
    pub src: PeerAddr,
    /// Bytes of each segment, the last may be shorter; the length of `data` for a single datagram.
    pub seg: u16,
    /// UDP payload of all segments. Empty if the datagram was not usable.
    pub data: &'a [u8],
}

impl RxPacket<'_> {
    /// The network marked congestion.
    #[inline(always)]
    pub fn is_marked(&self) -> bool {
        self.src.traffic_class & 3 == 3
    }

    /// The packet in the engine's form; `recent`: as [`Arrival::recent`].
    #[inline(always)]
    pub fn arrival(&self, recent: u64) -> Arrival<'_> {
        let RxPacket { src, seg, data } = self;
        let (segment, ecn_ce) = (usize::from(*seg), self.is_marked());
        Arrival { src, first: 0, segment, data, ecn_ce, recent }
    }
}

/// Where an error comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The network answered with an ICMP error: no listener, no route, filtered.
    Icmp,
    /// The host refused to send.
    Send,
    /// A packet was larger than the link or the path carries.
    Mtu,
}

/// An error of one destination. Consecutive equal errors are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortError {
    /// Destination of the packet. Port 0 stands for every port of the host.
    pub dst: Endpoint,
    /// Positive errno.
    pub errno: i32,
    /// The error's origin.
    pub kind: ErrorKind,
    /// The MTU that the host now assumes, in bytes of IP packet, if `kind` is `Mtu` and it is
    /// known; else 0.
    pub mtu: u32,
}

/// Counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// System calls that sent.
    pub tx_calls: u64,
    /// System calls that received, empty ones included.
    pub rx_calls: u64,
    /// Sends without room; nothing is lost, the rest stays in the batch.
    pub tx_full: u64,
    /// ICMP messages about our packets.
    pub icmp_err: u64,
    /// Bursts that the kernel refused to segment and that left packet by packet.
    pub gso_refused: u64,
    /// Bursts dropped because the kernel refused to send them.
    pub send_err: u64,
    /// Errors that found no room in the queue of [`Port::take_error`].
    pub errors_lost: u64,
}

/// A port that carries RoCEv2 packets between hosts. The engine's lock protects it: one thread at a
/// time.
pub trait Port {
    /// Readable when a packet or an error waits, writable when a full port has room again.
    fn fd(&self) -> RawFd;
    /// The address and UDP port that packets leave from and arrive at.
    fn local(&self) -> &Endpoint;
    /// Bytes of IP packet that the link carries now.
    fn link_mtu(&self) -> u32;
    /// Bytes of IP packet that the route to a peer carries now; `None`: unknown.
    fn route_mtu(&self, to: &Endpoint) -> Option<u32>;
    /// Counters since the port was opened.
    fn counters(&self) -> PortCounters;

    /// Returns room for one burst. With it comes the flow of the connected socket, if there is one
    /// and the burst may leave before the batch. `None`: the batch is full, flush first.
    fn tx_space(&mut self) -> Option<(&mut [u8], Option<&ConnectedFlow>)>;
    /// Adds the filled burst to the batch. A burst that cannot be sent at all becomes an error of
    /// its destination.
    fn tx_commit(&mut self, b: Burst);
    /// Sends the batch.
    fn tx_flush(&mut self) -> TxOutcome;
    /// Most packets of one burst to a destination, at least 1.
    fn max_segments(&self, dst: &Endpoint) -> u16;
    /// Sends the filled burst at once; the batch is empty before it. `for_connected`: the burst's
    /// ICRCs are those of the connected socket's flow. False: nothing was sent, and the ICRCs are
    /// those of the port's address; commit the burst and flush.
    fn tx_single(&mut self, b: &Burst, for_connected: bool) -> bool;

    /// Makes bursts leave by the port's own socket for a while, after a loss, because the peer may
    /// refuse the connected one.
    fn doubt_connected(&mut self);

    /// Receives the waiting datagrams and returns their number; those of the poll before are gone.
    fn rx_poll(&mut self) -> usize;
    /// The `i`-th datagram of the last poll; beyond the last one an empty datagram.
    fn rx_get(&self, i: usize) -> RxPacket<'_>;

    /// Makes the kernel report hop limits and flow labels, for [`RxPacket::src`]. Cost: some 50 ns
    /// a receive.
    fn show_headers(&mut self);

    /// Whether [`Port::take_error`] returns an error.
    fn has_error(&self) -> bool;
    /// Takes the oldest error of a destination.
    fn take_error(&mut self) -> Option<PortError>;
    /// Collects errors that the kernel holds. Returns how many of them the network sent.
    fn drain_errors(&mut self) -> usize;

    /// Begins to receive a group. `Some`: a descriptor to be watched like the port's own.
    ///
    /// # Errors
    /// [`gdrcore_core::error::Error::NoMemory`]: [`GROUPS`] are received; others of the system.
    fn group_join(&mut self, gid: &[u8; 16]) -> Result<Option<RawFd>>;
    /// Leaves the groups for which `keep` is false.
    fn groups_retain(&mut self, keep: impl Fn(&[u8; 16]) -> bool);
    /// Whether any group is received.
    fn has_groups(&self) -> bool;
    /// Receives one datagram of the `k`-th group, which is then `rx_get(0)`, and returns the group.
    fn group_poll(&mut self, k: usize) -> Option<[u8; 16]>;
}
