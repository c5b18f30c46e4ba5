//! Peers: one record per address that QPs and AHs name, with the window that all its QPs share.

use core::sync::atomic::Ordering;

use super::Transport;
use crate::verbs::shared::{qp_path, Shared};
use crate::verbs::types::AhAttr;
use crate::wire::grh::{Fields, DSCP, FLOW_LABEL};
use crate::wire::ip;
use crate::wire::IcrcFlow;

/// Silence after which the newest packet is sent once more, on a path that may lose it
/// ([`Peer::probe_at`]). It doubles until the peer answers.
pub(crate) const PROBE_NS: u64 = 1_000_000;
/// Longest time between two probes.
pub(crate) const PROBE_MAX_NS: u64 = 10_000_000_000;

/// An address to which the port sends, and the IP header's fields for it.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct PeerAddr {
    /// GID: IPv6, or IPv4 as `::ffff:a.b.c.d`.
    pub gid: [u8; 16],
    /// IPv6 zone, else 0.
    pub scope_id: u32,
    /// UDP port in host order.
    pub port: u16,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit, 0 = the system's.
    pub hop_limit: u8,
    /// Flow label.
    pub flow_label: u32,
}

/// Not derived: the comparison runs for each packet that leaves, and the derived one has a branch
/// for each field.
impl PartialEq for PeerAddr {
    #[inline(always)]
    fn eq(&self, other: &PeerAddr) -> bool {
        let words = |a: &PeerAddr| {
            let port = u32::from(a.port) | u32::from(a.traffic_class) << 16;
            let rest = port | u32::from(a.hop_limit) << 24;
            let tail = u128::from(a.scope_id) | u128::from(rest) << 32;
            (u128::from_ne_bytes(a.gid), tail | u128::from(a.flow_label) << 64)
        };
        let ((gid, rest), (other_gid, other_rest)) = (words(self), words(other));
        (gid ^ other_gid) | (rest ^ other_rest) == 0
    }
}

impl PeerAddr {
    /// The address of an address vector, on a device whose own port is `own_port`. Fields that do
    /// not reach the wire are left out, so vectors with the same packets share a record.
    pub fn from_ah(ah: &AhAttr, own_port: u16) -> Self {
        let has_label = ip::v4_of_gid(&ah.dgid).is_none();
        PeerAddr {
            gid: ah.dgid,
            scope_id: ah.scope_id,
            port: if ah.udp_port == 0 { own_port } else { ah.udp_port },
            traffic_class: ah.traffic_class & DSCP,
            hop_limit: if ah.hop_limit == 1 { 0 } else { ah.hop_limit },
            flow_label: if has_label { ah.flow_label & FLOW_LABEL } else { 0 },
        }
    }

    /// The address for answers of a traffic class to the sender of a packet. Flow labels are left
    /// out, because they differ from connection to connection, so that the connections of a host
    /// share a record.
    pub fn reply_addr(&self, class: u8) -> Self {
        PeerAddr { traffic_class: class & DSCP, hop_limit: 0, flow_label: 0, ..*self }
    }

    /// The fields of the IP header of packets to this address, or of packets from it.
    #[inline(always)]
    pub fn grh(&self) -> Fields {
        let PeerAddr { flow_label, traffic_class, hop_limit, .. } = *self;
        Fields { flow_label, traffic_class, hop_limit }
    }

    /// The address vector that names this address.
    pub fn to_ah(&self) -> AhAttr {
        AhAttr {
            dgid: self.gid,
            scope_id: self.scope_id,
            udp_port: self.port,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
        }
    }
}

/// Header fields of the packets to one destination, which differ from those of the port's address.
/// The ICRC covers them.
#[derive(Clone, Copy)]
pub struct ConnectedFlow {
    /// The destination.
    pub dst: PeerAddr,
    /// Addresses and UDP ports.
    pub flow: IcrcFlow,
    /// IPv4 identification of the first packet of the next burst.
    pub ident: u16,
}

impl ConnectedFlow {
    /// Whether this is the flow to an address, with its traffic class.
    #[inline]
    pub fn leads_to(&self, to: &PeerAddr) -> bool {
        self.dst == *to
    }
}

/// How packets to a peer travel. Chosen when the peer's record is made; a link may end, and leave
/// [`Path::Port`] or [`Path::Lost`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// As packets through the port.
    #[default]
    Port,
    /// As runs, at once: the peer is this engine itself.
    Loopback,
    /// As runs over a link to another process of this host; the number is the device's own.
    Link(u16),
    /// Not at all: the link is gone.
    Lost,
}

impl Path {
    /// The [`qp_path`] of this path.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Path::Lost => qp_path::UNKNOWN,
            Path::Port => qp_path::PORT,
            Path::Loopback => qp_path::LOOPBACK,
            Path::Link(_) => qp_path::LINK,
        }
    }

    /// Whether a packet that arrived by the path `arrived` may come from a peer that is reached by
    /// this path. A link has one direction, so link numbers are not compared; the sender's address
    /// was checked when the link was made. `mixed`: each side chooses its path by itself, and one
    /// of them may have found no link.
    pub fn answers(self, arrived: Path, mixed: impl FnOnce() -> bool) -> bool {
        match (self, arrived) {
            (Path::Link(_), Path::Link(_)) => true,
            (Path::Link(_), Path::Port) | (Path::Port, Path::Link(_)) => mixed(),
            (a, b) => a == b,
        }
    }
}

/// Bytes that a packet takes beyond its payload in the receiver's socket buffer: headers and the
/// kernel's bookkeeping of a small datagram.
pub const PACKET_COST: u32 = 256;

/// Bytes that may be unacknowledged: additive increase, multiplicative decrease. All QPs to one
/// address share it; a QP that received CNPs has a rate besides ([`crate::dcqcn`]).
///
/// The size of a peer's socket buffer is unknown. [`WINDOW_UNTESTED`] fits the receive buffer that
/// Debian grants to any socket. Beyond it the window grows slowly, and the first loss there lowers
/// its limit for good.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    size: u32,
    /// Limit of its size. A loss beyond [`WINDOW_UNTESTED`] lowers it to three quarters of the
    /// size.
    max: u32,
    threshold: u32,
    inflight: u32,
    growth: u32,
    cut_ns: u64,
}

/// First size of a window.
const WINDOW_START: u32 = 64 << 10;
/// Lower bound of a window: two packets of the largest MTU.
const WINDOW_MIN: u32 = 2 * (4096 + PACKET_COST);
/// Size up to which a window grows as fast as bytes are acknowledged. Debian's default receive
/// buffer holds so many.
pub(crate) const WINDOW_UNTESTED: u32 = 192 << 10;
/// Beyond that size a window grows by the acknowledged bytes divided by this, until the first loss.
const TRIAL_PART: u32 = 8;
/// Losses within this time are one event.
const CUT_INTERVAL_NS: u64 = 100_000;

impl Window {
    /// A window that may grow to `max` bytes.
    pub fn new(max: u32) -> Self {
        let max = max.max(WINDOW_MIN);
        let threshold = max.min(WINDOW_UNTESTED);
        Window { size: WINDOW_START.min(max), max, threshold, inflight: 0, growth: 0, cut_ns: 0 }
    }
    /// Bytes that count as on their way.
    pub fn inflight(&self) -> u32 {
        self.inflight
    }
    /// The present size.
    pub fn size(&self) -> u32 {
        self.size
    }
    /// Grows by acknowledged bytes; at least half of the window was in use.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: u32) {
        if self.size < self.threshold {
            self.size = self.size.saturating_add(bytes).min(self.threshold);
        } else if self.size >= WINDOW_UNTESTED && self.cut_ns == 0 {
            self.size = self.size.saturating_add(bytes / TRIAL_PART).min(self.max);
        } else {
            // One packet per window.
            self.growth = self.growth.saturating_add(bytes);
            if self.growth >= self.size {
                self.growth -= self.size;
                self.size = self.size.saturating_add(4096 + PACKET_COST).min(self.max);
            }
        }
    }
    fn cut(&mut self, now_ns: u64, to: u32) {
        if now_ns.saturating_sub(self.cut_ns) < CUT_INTERVAL_NS && self.cut_ns != 0 {
            return;
        }
        self.cut_ns = now_ns.max(1);
        if self.size > WINDOW_UNTESTED {
            self.max = (self.size - self.size / 4).max(WINDOW_UNTESTED);
        }
        self.threshold = (self.size / 2).max(WINDOW_MIN);
        self.size = to.max(WINDOW_MIN);
        self.growth = 0;
    }

    /// Bytes that may be sent now; 0 = closed.
    #[inline(always)]
    pub fn available(&self) -> u32 {
        // One packet may always be on its way: a window never locks up.
        if self.inflight == 0 {
            return self.size.max(1);
        }
        self.size.saturating_sub(self.inflight)
    }

    /// Counts bytes that have left.
    #[inline(always)]
    pub fn on_sent(&mut self, bytes: u32) {
        self.inflight = self.inflight.saturating_add(bytes);
    }

    /// Counts bytes that were acknowledged.
    #[inline(always)]
    pub fn on_acked(&mut self, bytes: u32) {
        let was_full = self.inflight.saturating_mul(2) >= self.size;
        self.on_forgotten(bytes);
        if was_full && self.size < self.max {
            self.grow(bytes);
        }
    }

    /// Stops counting bytes that will be sent again, or whose QP has ended.
    #[inline(always)]
    pub fn on_forgotten(&mut self, bytes: u32) {
        self.inflight = self.inflight.saturating_sub(bytes);
    }

    /// Shrinks after packets were lost on the way (a sequence NAK, or a gap in READ responses).
    pub fn on_loss(&mut self, now_ns: u64) {
        self.cut(now_ns, self.size / 2);
    }

    /// Shrinks after no answer came in time.
    pub fn on_timeout(&mut self, now_ns: u64) {
        self.cut(now_ns, WINDOW_MIN);
    }
}

/// UDP ports that a peer may send from beside its own.
pub const EXTRA_PORTS: usize = 4;

/// One peer address.
#[derive(Clone, Copy)]
pub struct Peer {
    /// QPs and AHs that name it; 0 = free.
    pub refs: u32,
    /// The address.
    pub addr: PeerAddr,
    /// How packets to it travel.
    pub path: Path,
    /// Segments that one burst to it may have (1 where the link refuses segmentation offload).
    pub max_seg: u16,
    /// Header fields that the ICRC of packets to the peer covers.
    pub flow: IcrcFlow,
    /// UDP ports that its packets may come from beside its own; 0: none.
    pub extra_ports: [u16; EXTRA_PORTS],
    /// Bytes sent and not acknowledged.
    pub tx: Window,
    /// Bytes asked for by READs and not received.
    pub rx: Window,
    /// The record that has `last_burst` for the address: all records of one address name the same.
    pub(crate) group: u32,
    /// The last full burst to the address, if this is the record that `group` names.
    pub(crate) last_burst: LastBurst,
}

/// A search for the next sender passes over at most so many queue pairs.
const SENDERS_MAX: usize = 256;

/// The last full burst to an address: its queue pair, and its number among all full bursts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastBurst {
    qi: u32,
    at: u32,
}

impl Transport {
    /// Tells posts to a QP which path to its peer was chosen, or that the path has ended.
    pub(crate) fn note_path(&self, s: &Shared, qi: usize) {
        let path = self.path_to_peer(qi).map_or(qp_path::UNKNOWN, Path::number);
        s.qps[qi].path.store(path, Ordering::Relaxed);
    }

    /// The queue pair that sends next, after a full burst to the peer `to`. `qi`: the queue pair
    /// that filled the burst, or that could not add to it because it has another peer. The address
    /// whose last full burst is longest ago comes first, and of its queue pairs the one behind the
    /// last sender. So an address gets no more by having more queue pairs.
    #[inline(never)]
    pub(crate) fn next_sender(&mut self, qi: usize, to: u32) -> usize {
        let now = self.common.bursts.wrapping_add(1);
        if self.qps[qi].conn.peer == to {
            self.common.bursts = now;
            *self.last_burst_of(qi) = LastBurst { qi: qi as u32, at: now };
        }
        let (mut next, mut age) = (qi, 0);
        self.for_each_ready(qi, |t, other| {
            let other_age = now.wrapping_sub(t.last_burst_of(other).at);
            if other_age > age {
                (next, age) = (other, other_age);
            }
            true
        });
        let (group, last) = (self.group_of(next), self.last_burst_of(next).qi as usize);
        self.for_each_ready(last, |t, other| {
            let found = t.group_of(other) == group;
            if found {
                next = other;
            }
            !found
        });
        next
    }

    /// The group of a queue pair's peer, which stands for its address; `None`: each of its requests
    /// names a peer.
    fn group_of(&self, qi: usize) -> Option<u32> {
        self.peers.get(self.qps[qi].conn.peer as usize).map(|peer| peer.group)
    }

    /// The last full burst to that address.
    fn last_burst_of(&mut self, qi: usize) -> &mut LastBurst {
        match self.group_of(qi) {
            Some(group) => &mut self.peers[group as usize].last_burst,
            None => &mut self.nobody.last_burst,
        }
    }

    /// Calls `look` for the queue pairs with something to send, from the one behind `after` around
    /// to itself, until it returns false.
    fn for_each_ready(
        &mut self,
        after: usize,
        mut look: impl FnMut(&mut Transport, usize) -> bool,
    ) {
        let Some(first) = self.common.ready.next_from(after + 1) else { return };
        let mut at = first;
        for _ in 0..SENDERS_MAX {
            if !look(self, at) {
                return;
            }
            match self.common.ready.next_from(at + 1) {
                Some(next) if next != first => at = next,
                _ => return,
            }
        }
    }

    /// The peer record of an address that is reached by a path, made if there is none; counts one
    /// more user. `None`: no record is free.
    pub(crate) fn peer_join(&mut self, addr: PeerAddr, path: Path) -> Option<u32> {
        let mut free = None;
        for i in 0..self.peers.len() {
            let p = &mut self.peers[i];
            if p.refs > 0 && p.addr == addr && p.path == path {
                p.refs += 1;
                return Some(i as u32);
            }
            if p.refs == 0 && free.is_none() {
                free = Some(i);
            }
        }
        let i = free?;
        let others = || self.peers.iter().filter(|p| p.refs > 0);
        let same = others().find(|p| p.addr.gid == addr.gid).map(|p| p.group);
        let mut numbers = (i..self.peers.len()).chain(0..i).map(|n| n as u32);
        let group = same.or_else(|| numbers.find(|&n| others().all(|p| p.group != n)))?;
        // A link loses nothing, and a larger window would only fill its ring beyond the reader's
        // cache.
        let most = if matches!(path, Path::Link(_)) { WINDOW_UNTESTED } else { u32::MAX };
        let (window, local) = (self.common.config.window_max.min(most), &self.common.local);
        self.peers[i] = Peer {
            refs: 1,
            addr,
            path,
            max_seg: u16::MAX,
            extra_ports: [0; EXTRA_PORTS],
            flow: IcrcFlow::from_gids(&local.gid, &addr.gid, local.port, addr.port),
            tx: Window::new(window),
            rx: Window::new(window),
            group,
            last_burst: self.peers[i].last_burst,
        };
        Some(i as u32)
    }

    /// Takes one user from a record.
    pub(crate) fn peer_leave(&mut self, peer: u32) {
        if let Some(p) = self.peers.get_mut(peer as usize) {
            p.refs = p.refs.saturating_sub(1);
        }
    }
}

impl Peer {
    /// Whether a peer that is known to be a soft device may send from a UDP port.
    #[inline(always)]
    pub(crate) fn sends_from(&self, port: u16) -> bool {
        port == self.addr.port || port != 0 && self.extra_ports.contains(&port)
    }

    /// When the newest packet is sent once more if no answer comes. 0: never, because this path
    /// loses nothing: a silent peer there was not scheduled yet, or the link reports its end.
    pub(crate) fn probe_at(&self, now: u64) -> u64 {
        if matches!(self.path, Path::Port) {
            now + PROBE_NS
        } else {
            0
        }
    }

    /// A free record.
    pub fn empty() -> Self {
        Peer {
            refs: 0,
            addr: PeerAddr::default(),
            path: Path::Port,
            max_seg: u16::MAX,
            flow: IcrcFlow::v4([0; 4], [0; 4], 0, 0),
            extra_ports: [0; EXTRA_PORTS],
            tx: Window::default(),
            rx: Window::default(),
            group: 0,
            last_burst: LastBurst::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine has a record and a window for each.
    #[test]
    fn vectors_of_the_same_packets_are_one_peer() {
        let (v4, v6) = (ip::gid_of_v4([10, 0, 0, 1]), [0xfd; 16]);
        let of = |dgid, traffic_class, hop_limit, flow_label| {
            let ah = AhAttr { dgid, traffic_class, hop_limit, flow_label, ..AhAttr::default() };
            PeerAddr::from_ah(&ah, 4791)
        };
        assert_eq!(of(v4, 0xb9, 1, 77), of(v4, 0xb8, 0, 0));
        assert_eq!(of(v6, 0xb8, 0, 0xf00_0001), of(v6, 0xbb, 1, 1));
        assert_ne!(of(v6, 0, 0, 1), of(v6, 0, 0, 2));
        assert_ne!(of(v4, 0, 2, 0), of(v4, 0, 0, 0));
        assert_ne!(of(v4, 4, 0, 0), of(v4, 0, 0, 0));
        let at = |port, scope_id| PeerAddr { port, scope_id, ..of(v6, 0, 0, 0) };
        assert_ne!(at(4791, 0), at(4792, 0));
        assert_ne!(at(4791, 0), at(4791, 1));
        assert_ne!(of(v4, 0, 0, 0), of(v6, 0, 0, 0));
    }

    #[test]
    fn window_never_locks_up_and_stays_in_bounds() {
        let mut w = Window::new(128 << 10);
        for step in 0..10_000u64 {
            match step % 7 {
                0..=3 if w.available() > 0 => {
                    let room = w.available();
                    w.on_sent(room.min(4352));
                }
                4 => w.on_acked(4352),
                5 if step % 35 == 5 => w.on_loss(step * 60_000),
                _ if step % 91 == 6 => w.on_timeout(step * 60_000),
                _ => {}
            }
            assert!(w.size() >= WINDOW_MIN && w.size() <= 128 << 10);
            if w.inflight() == 0 {
                assert!(w.available() > 0);
            }
        }
    }

    #[test]
    fn a_full_window_is_closed_until_something_is_acknowledged() {
        let mut w = Window::new(128 << 10);
        let size = w.size();
        w.on_sent(size - 100);
        assert_eq!(w.available(), 100);
        w.on_sent(100);
        assert_eq!(w.available(), 0);
        w.on_acked(4352);
        assert!(w.available() >= 4352);
    }

    /// Fills a window and has all of it acknowledged, packet by packet.
    fn pass_one(w: &mut Window) {
        let mut sent = 0;
        while w.available() > 0 {
            w.on_sent(4352);
            sent += 1;
        }
        (0..sent).for_each(|_| w.on_acked(4352));
    }

    #[test]
    fn what_nobody_promised_is_tried_slowly_and_given_up_for_good() {
        let mut w = Window::new(1 << 20);
        (0..4).for_each(|_| pass_one(&mut w));
        assert!((WINDOW_UNTESTED..WINDOW_UNTESTED * 5 / 4).contains(&w.size()), "{}", w.size());
        (0..30).for_each(|_| pass_one(&mut w));
        assert_eq!(w.size(), 1 << 20);
        w.on_loss(1_000_000);
        assert_eq!(w.size(), 512 << 10);
        // Now it grows by a packet for each window, up to the size that was never too much.
        pass_one(&mut w);
        assert!(w.size() <= (512 << 10) + 2 * 4352);
        (0..200).for_each(|_| pass_one(&mut w));
        assert_eq!(w.size(), 768 << 10);
        for i in 2..20u64 {
            w.on_loss(i * 1_000_000);
            (0..300).for_each(|_| pass_one(&mut w));
        }
        assert_eq!(w.size(), WINDOW_UNTESTED, "what is sure stays");
    }

    #[test]
    fn losses_of_one_round_trip_are_one_event() {
        let mut w = Window::new(128 << 10);
        w.on_loss(1_000_000);
        let once = w.size();
        w.on_loss(1_050_000);
        assert_eq!(w.size(), once);
        w.on_loss(1_200_000);
        assert_eq!(w.size(), once / 2);
    }
}
