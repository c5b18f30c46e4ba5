//! Traffic class, hop limit and flow label of sent packets.
//!
//! Class and hop limit are options of the socket: each option that differs from the previous
//! burst's costs a system call. As ancillary data they would cost a msghdr for every burst with a
//! class. The flow label is a part of IPv6's socket address. It does not choose the UDP source
//! port, as in rxe: the port names the engine, and peers accept packets from no other port.

use super::UdpPort;
use crate::addr::{endpoint, SockAddr};
use crate::sys::set_option;
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::transition::is_multicast;
use gdrcore_core::wire::grh::{DSCP, FLOW_LABEL};
use std::os::fd::RawFd;

/// IPV6_FLOWINFO_SEND of linux/in6.h: socket addresses have flow labels.
const IPV6_FLOWINFO_SEND: i32 = 33;

/// The fields of the IP headers of a socket's packets.
#[derive(Clone, Copy)]
pub(in crate::udp) struct SocketHeader {
    /// The ECN bits of all packets that the port sends.
    ecn: u8,
    class: u8,
    /// Hop limits of packets to hosts and to groups; 0: the system's.
    hops: [u8; 2],
    /// The kernel takes flow labels.
    has_labels: bool,
}

impl SocketHeader {
    /// The fields of a new socket, whose class is `class`.
    pub(in crate::udp) fn new(class: u8) -> SocketHeader {
        SocketHeader { ecn: class & !DSCP, class, hops: [0; 2], has_labels: true }
    }

    /// The class of packets to an address, whether the address is a host or a group, and their hop
    /// limit.
    fn wanted(&self, to: &PeerAddr) -> (u8, usize, u8) {
        let hops = if to.hop_limit <= 1 { 0 } else { to.hop_limit };
        (to.traffic_class & DSCP | self.ecn, is_multicast(&to.gid).into(), hops)
    }

    /// Whether packets to an address need no other options.
    pub(super) fn suits(&self, to: &PeerAddr) -> bool {
        let (class, kind, hops) = self.wanted(to);
        self.class == class && self.hops[kind] == hops
    }

    /// The socket address that gives packets the flow label.
    pub(in crate::udp) fn address(&self, to: &PeerAddr) -> (SockAddr, libc::socklen_t) {
        endpoint(to).to_labelled(if self.has_labels { to.flow_label & FLOW_LABEL } else { 0 })
    }

    /// Sets the options for packets to an address.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub(in crate::udp) fn set(&mut self, socket: RawFd, to: &PeerAddr) -> Result<()> {
        let (class, kind, hops) = self.wanted(to);
        let v4 = endpoint(to).is_v4();
        let level = if v4 { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
        if self.class != class {
            let name = if v4 { libc::IP_TOS } else { libc::IPV6_TCLASS };
            set_option(socket, level, name, i32::from(class))?;
            self.class = class;
        }
        if self.hops[kind] != hops {
            let name = match (v4, kind) {
                (true, 0) => libc::IP_TTL,
                (true, _) => libc::IP_MULTICAST_TTL,
                (false, 0) => libc::IPV6_UNICAST_HOPS,
                (false, _) => libc::IPV6_MULTICAST_HOPS,
            };
            set_option(socket, level, name, if hops == 0 { -1 } else { i32::from(hops) })?;
            self.hops[kind] = hops;
        }
        Ok(())
    }
}

/// Lets socket addresses have flow labels. Without this option the kernel ignores the labels.
pub(in crate::udp) fn send_labels(socket: RawFd) {
    let _ = set_option(socket, libc::IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1i32);
}

impl UdpPort {
    /// Gives the socket the options for burst `i`, the first that waits. False: the socket refuses
    /// them, and the burst is given up.
    pub(super) fn set_header(&mut self, i: usize) -> bool {
        let dst = self.tx.slot(i).dst;
        if self.tx.header.suits(&dst) {
            return true;
        }
        let set = self.tx.header.set(self.fd.raw(), &dst);
        self.tx.first_dst = self.tx.first_dst.filter(|(first, _)| self.tx.header.suits(first));
        if let Err(e) = set {
            self.fail(endpoint(&dst), e.errno(), false);
            self.tx.head += 1;
            return false;
        }
        true
    }

    /// The kernel refused burst `i` with EINVAL. Returns whether the flow label may be the reason:
    /// once a process of this host has taken a label for itself alone, no other process may use
    /// labels without doing the same. From here on packets have no label.
    #[cold]
    pub(super) fn gives_up_labels(&mut self, i: usize) -> bool {
        if self.tx.slot(i).dst.flow_label == 0 || !self.tx.header.has_labels || self.local.is_v4() {
            return false;
        }
        self.tx.header.has_labels = false;
        self.tx.first_dst = None;
        for slot in self.tx.head..self.tx.tail {
            self.tx.write_headers(slot);
        }
        true
    }
}
