//! The UDP ports from which a peer that is a soft device may send.
//!
//! A soft device sends from its own port, from which no other process of its host can send. To
//! peers of its own host it may also send from the port of a connected socket ([`crate::udp`]). The
//! engine refuses other ports of peers that are known to be soft devices, and reports the refused
//! port. Such a port is allowed if the socket that has it, connected to this device or not, belongs
//! to the user of the peer's own socket. Only ports of this host and network namespace can be
//! looked up; every other port stays refused.
//!
//! Each look-up costs microseconds, whatever the number of sockets on the host
//! ([`crate::sock_diag`]). Look-ups take a small share of the time ([`SHARE`]), and a port or peer
//! that was refused is not looked up again for a while. Strangers with thousands of ports can use
//! up that share. The peer's port is then not looked up, the peer's requests time out, and it sends
//! them again from its own port ([`Port::doubt_connected`](crate::port::Port::doubt_connected)).

use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::netlink::is_local;
use crate::sock_diag::receiving_user;
use crate::soft::endpoint;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::roce::peer::PeerAddr;

/// Look-ups take at most the time divided by this.
const SHARE: u64 = 32;
/// Interval of checks of allowed ports, which may have another user by now.
const AGAIN_NS: u64 = 1_000_000_000;
/// Longest time for which a refused port is remembered.
const FORGET_NS: u64 = 1_000_000_000;
/// Most allowed ports that are remembered. A further one replaces the oldest.
const ALLOWED: usize = 8;
/// Places for refused ports, and as many for peers of other hosts. A place keeps the last one.
const REFUSED: usize = 64;

/// Look-ups that anybody can cause by sending: they take one part in [`SHARE`] of the time.
#[derive(Default)]
pub(in crate::soft) struct LookUps {
    next_at: u64,
}

impl LookUps {
    /// Calls `look`, unless look-ups have had their share of the time. `clock` is in nanoseconds.
    pub(in crate::soft) fn take<T>(
        &mut self,
        clock: impl Fn() -> u64,
        look: impl FnOnce() -> T,
    ) -> Option<T> {
        let began = clock();
        if began < self.next_at {
            return None;
        }
        let found = look();
        let ended = clock();
        self.next_at = ended + (SHARE - 1) * ended.saturating_sub(began);
        Some(found)
    }
}

/// A peer and a port from which somebody sends in the peer's name.
type PeerPort = (PeerAddr, u16);

fn is_same((a, p): &PeerPort, (b, q): &PeerPort) -> bool {
    (a.gid, a.port, p) == (b.gid, b.port, q)
}

/// Allowed ports, and when they are checked next; ports that were refused lately.
pub(in crate::soft) struct PeerPorts {
    allowed: [Option<PeerPort>; ALLOWED],
    any: bool,
    /// Ports by number. Port 0 stands for all ports of a peer that is not of this host.
    refused: [Option<PeerPort>; REFUSED],
    look_ups: LookUps,
    again_at: u64,
    forget_at: u64,
}

impl Default for PeerPorts {
    fn default() -> Self {
        PeerPorts {
            allowed: [None; ALLOWED],
            any: false,
            refused: [None; REFUSED],
            look_ups: LookUps::default(),
            again_at: 0,
            forget_at: 0,
        }
    }
}

/// Result of a look-up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The port is the peer's.
    Peers,
    /// The port is somebody else's, or nobody's.
    Others,
    /// The peer is not of this host, so no port can be looked up.
    Elsewhere,
}

/// Looks up a port that has sent in a peer's name to the device at `local`. Cost: a dozen system
/// calls, none of which waits.
fn look_up(peer: &PeerAddr, port: u16, local: &Endpoint) -> Found {
    let own = endpoint(peer);
    let user = receiving_user(local, &own).filter(|_| is_local(&own));
    match user {
        None => Found::Elsewhere,
        Some(_) if receiving_user(local, &Endpoint { port, ..own }) == user => Found::Peers,
        Some(_) => Found::Others,
    }
}

impl PeerPorts {
    /// Checks the allowed ports again at intervals, after packets came to the device at `local`.
    #[inline]
    pub(in crate::soft) fn review(&mut self, g: &mut EngineGuard<'_>, now: u64, local: &Endpoint) {
        if self.any && now >= self.again_at {
            self.look_again(g, now, local);
        }
    }

    #[cold]
    fn look_again(&mut self, g: &mut EngineGuard<'_>, now: u64, local: &Endpoint) {
        self.again_at = now + AGAIN_NS;
        for slot in &mut self.allowed {
            let others = |(peer, port): &PeerPort| look_up(peer, *port, local) != Found::Peers;
            if let Some((peer, port)) = slot.filter(others) {
                g.forbid_port(&peer, port);
                *slot = None;
            }
        }
        self.any = self.allowed.iter().any(Option::is_some);
    }

    /// Checks the port that the engine refused, if there is one, after packets came to the device
    /// at `local`. True: the port is the peer's, and is allowed from now on. The packets must be
    /// handled again then, because the peer may never repeat them.
    #[inline]
    pub(in crate::soft) fn vet_refused(
        &mut self,
        g: &mut EngineGuard<'_>,
        local: &Endpoint,
    ) -> bool {
        g.has_refused_port() && self.vet(g, local)
    }

    #[cold]
    fn vet(&mut self, g: &mut EngineGuard<'_>, local: &Endpoint) -> bool {
        let Some((peer, port)) = g.take_refused_port() else { return false };
        // The port was checked in the last second. The engine forgets it when no queue pair is
        // connected to the peer.
        if self.is_allowed(&peer, port) {
            return g.allow_port(&peer, port);
        }
        // The engine's time may be that of an earlier poll.
        self.ask(&peer, port, now_ns, || look_up(&peer, port, local)) && self.allow(g, &peer, port)
    }

    /// Whether `look` finds that a port is the peer's. Also false if `look` may not be called now,
    /// or lately found something else.
    fn ask(
        &mut self,
        peer: &PeerAddr,
        port: u16,
        clock: impl Fn() -> u64,
        look: impl FnOnce() -> Found,
    ) -> bool {
        let now = clock();
        if now >= self.forget_at {
            self.forget_at = now + FORGET_NS;
            self.refused = [None; REFUSED];
        }
        if self.is_refused(peer, port) {
            return false;
        }
        let found = self.look_ups.take(clock, look);
        match found {
            Some(Found::Others) => self.refuse(peer, port),
            Some(Found::Elsewhere) => self.refuse(peer, 0),
            Some(Found::Peers) | None => {}
        }
        found == Some(Found::Peers)
    }

    /// The place of a port, or of a peer whose ports are all refused.
    fn place(peer: &PeerAddr, port: u16) -> usize {
        let ip =
            peer.gid.iter().fold(0, |sum: u16, b| sum.wrapping_mul(31).wrapping_add((*b).into()));
        usize::from(if port == 0 { ip } else { port }) % REFUSED
    }

    fn is_refused(&self, peer: &PeerAddr, port: u16) -> bool {
        [0, port].iter().any(|&port| {
            let last = &self.refused[Self::place(peer, port)];
            last.as_ref().is_some_and(|last| is_same(last, &(*peer, port)))
        })
    }

    fn refuse(&mut self, peer: &PeerAddr, port: u16) {
        self.refused[Self::place(peer, port)] = Some((*peer, port));
    }

    fn is_allowed(&self, peer: &PeerAddr, port: u16) -> bool {
        self.allowed.iter().flatten().any(|of| is_same(of, &(*peer, port)))
    }

    /// Allows a port. False: no queue pair is connected to the peer.
    fn allow(&mut self, g: &mut EngineGuard<'_>, peer: &PeerAddr, port: u16) -> bool {
        if !g.allow_port(peer, port) {
            return false;
        }
        if let Some((peer, port)) = self.allowed[ALLOWED - 1] {
            g.forbid_port(&peer, port);
        }
        self.allowed.rotate_right(1);
        self.allowed[0] = Some((*peer, port));
        self.any = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::peer_addr;
    use crate::sys::set_option;
    use core::cell::Cell;
    use gdrcore_testkit::descriptors::keep;
    use gdrcore_testkit::place::loopback;
    use std::net::UdpSocket;

    fn peer(n: u8) -> PeerAddr {
        peer_addr(&Endpoint::v4([127, 0, 0, n], 4791))
    }

    /// Asks at a time about a port; the look-up takes `costs`. Returns the answer, and whether it
    /// was looked up.
    fn ask(ports: &mut PeerPorts, of: (u8, u16), at: u64, costs: u64, found: Found) -> [bool; 2] {
        let time = Cell::new(at);
        let mut looked = false;
        let answer = ports.ask(
            &peer(of.0),
            of.1,
            || time.get(),
            || {
                looked = true;
                time.set(at + costs);
                found
            },
        );
        [answer, looked]
    }

    #[test]
    fn look_ups_take_a_share_of_the_time_however_slow_they_are() {
        let mut ports = PeerPorts::default();
        assert_eq!(ask(&mut ports, (1, 5000), 1000, 100, Found::Peers), [true, true]);
        // The time is that of the end of the look-up.
        let next = 1000 + SHARE * 100;
        assert_eq!(ask(&mut ports, (1, 5001), next - 1, 1, Found::Peers), [false, false]);
        assert_eq!(ask(&mut ports, (1, 5001), next, 1, Found::Peers), [true, true]);
    }

    #[test]
    fn what_was_refused_is_not_looked_up_again_for_a_while() {
        let mut ports = PeerPorts::default();
        let (refused, elsewhere, late) = ([false, true], [false, true], 2 * FORGET_NS);
        for (at, of, found, answer) in [
            (1000, (1, 5000), Found::Others, refused),
            (2000, (1, 5000), Found::Peers, [false, false]),
            // Another port, and that port of another peer.
            (3000, (1, 5001), Found::Peers, [true, true]),
            (4000, (2, 5000), Found::Peers, [true, true]),
            // No port of a peer elsewhere.
            (5000, (3, 5002), Found::Elsewhere, elsewhere),
            (6000, (3, 5003), Found::Peers, [false, false]),
            (late, (1, 5000), Found::Peers, [true, true]),
            (late + 1000, (3, 5003), Found::Peers, [true, true]),
        ] {
            assert_eq!(ask(&mut ports, of, at, 1, found), answer, "{at}: {of:?}");
        }
    }

    #[test]
    fn a_port_is_the_peers_if_its_user_has_the_peers_own() {
        let _kept = keep();
        let (ip, here) = (loopback(8, 9), Endpoint::v4(loopback(8, 10), 4791));
        let bind = || {
            let socket = UdpSocket::bind((std::net::Ipv4Addr::from(ip), 0)).unwrap();
            let port = socket.local_addr().unwrap().port();
            (socket, port)
        };
        let ((_own, own), (second, port)) = (bind(), bind());
        let peer = peer_addr(&Endpoint::v4(ip, own));
        let found = |port: u16| look_up(&peer, port, &here);
        assert!(found(port) == Found::Peers);
        second.connect((std::net::Ipv4Addr::from(here.to_v4().unwrap()), here.port)).unwrap();
        assert!(found(port) == Found::Peers);
        second.connect((std::net::Ipv4Addr::from(ip), own)).unwrap();
        assert!(found(port) == Found::Others, "it is connected to another device");
        drop(second);
        assert!(found(port) == Found::Others, "nobody has it");
        let gone = PeerAddr { port, ..peer };
        assert!(look_up(&gone, own, &here) == Found::Elsewhere);
    }

    /// Any user may bind an address that is not of this host (IP_FREEBIND).
    #[test]
    fn peers_of_other_hosts_have_no_ports_here() {
        let _kept = keep();
        let away = |port| {
            // SAFETY: socket takes no pointers; `sa` is an address of `len` bytes.
            let fd =
                unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
            let fd = crate::sys::Fd::from_call(fd).unwrap();
            set_option(fd.raw(), libc::IPPROTO_IP, libc::IP_FREEBIND, 1i32).unwrap();
            let (sa, len) = Endpoint::v4([192, 0, 2, 77], port).to_sockaddr();
            // SAFETY: as above.
            assert_eq!(unsafe { libc::bind(fd.raw(), (&raw const sa).cast(), len) }, 0);
            fd
        };
        let ports = [18_791, 18_792];
        let _sockets = ports.map(away);
        let here = Endpoint::v4(loopback(8, 11), 4791);
        let peer = peer_addr(&Endpoint::v4([192, 0, 2, 77], ports[0]));
        assert!(receiving_user(&here, &endpoint(&peer)).is_some());
        assert!(look_up(&peer, ports[1], &here) == Found::Elsewhere);
    }
}
