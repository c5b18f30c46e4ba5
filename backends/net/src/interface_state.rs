//! The interface that has an address: the state of its link, and its changes (rtnetlink(7)). Any
//! user may read and watch them.

use crate::addr::Endpoint;
use crate::netlink::{self, attributes, is_local, messages, notified, word, Notified, IFINFOMSG};
use crate::sys::Fd;
use crate::udp::{interface_of, owner};
use std::os::fd::RawFd;

/// `IFF_UP` and `IFF_RUNNING`: the interface is switched on, and has a carrier.
const UP: u32 = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
/// Notifications that one look takes.
const BATCH: usize = 64;
/// Longest notification. A longer one counts as lost.
const ROOM: usize = 8 << 10;

/// The interface of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// The interface's index; 0: none is known.
    pub interface: u32,
    /// Packets can leave by it.
    pub is_up: bool,
    /// The interface has the address.
    pub has_address: bool,
}

/// A hardware address.
type Hardware = heapless::Vec<u8, 32>;

impl InterfaceState {
    /// The present state of an address's interface. `known`: the interface that had the address
    /// last, or 0. `None`: the kernel cannot be asked (a sandbox). Cost: some twelve system calls.
    pub fn read(at: &Endpoint, known: u32) -> Option<InterfaceState> {
        netlink::socket(libc::NETLINK_ROUTE)?;
        let has_address = is_local(at);
        let owner = if has_address { interface_of(at) } else { None };
        let interface = owner.unwrap_or(known);
        let is_up = netlink::interface(interface, |m| Some(read_interface(m)?.1)) == Some(true);
        Some(InterfaceState { interface, is_up, has_address })
    }
}

/// Index, whether it is up, and hardware address of an interface. Messages of another family are
/// about the interface's place in a bridge.
fn read_interface(message: &[u8]) -> Option<(u32, bool, Hardware)> {
    let head = message.get(..IFINFOMSG)?;
    if head[0] != libc::AF_UNSPEC as u8 {
        return None;
    }
    let is_hardware = |&(kind, _): &(u16, _)| kind == libc::IFLA_ADDRESS;
    let hardware = attributes(&message[IFINFOMSG..]).find(is_hardware).map_or(&[][..], |(_, a)| a);
    let hardware = Hardware::from_slice(hardware).unwrap_or_default();
    Some((word(head, 4), word(head, 8) & UP == UP, hardware))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterfaceEvent {
    Up,
    Down,
    /// The address has gone or come.
    Address,
    /// The interface has another hardware address, or another interface has the address.
    Hardware,
    Removed,
}

/// Follows the interface of an address.
pub(crate) struct InterfaceWatch {
    nl: Fd,
    at: Endpoint,
    state: InterfaceState,
    hardware: Hardware,
}

impl InterfaceWatch {
    /// Begins to watch. `None`: as for [`InterfaceState::read`], or no interface has the address.
    pub(crate) fn open(at: &Endpoint) -> Option<InterfaceWatch> {
        let addresses =
            if at.is_v4() { libc::RTMGRP_IPV4_IFADDR } else { libc::RTMGRP_IPV6_IFADDR };
        // Subscribed before the first look, so that no change is missed.
        let nl = netlink::subscribe(libc::RTMGRP_LINK | addresses)?;
        let state = InterfaceState::read(at, 0)?;
        let hardware = hardware_of(state.interface)?;
        Some(InterfaceWatch { nl, at: *at, state, hardware })
    }

    /// Readable when something may have changed.
    pub(crate) fn fd(&self) -> RawFd {
        self.nl.raw()
    }

    /// The interface that has the address, or had it last.
    pub(crate) fn index(&self) -> u32 {
        self.state.interface
    }

    /// The state as last read.
    pub(crate) fn state(&self) -> InterfaceState {
        self.state
    }

    /// Reads the changes.
    #[cold]
    #[inline(never)]
    pub(crate) fn read(&mut self, mut note: impl FnMut(InterfaceEvent)) {
        let mut room = [0; ROOM];
        let mut ask = false;
        for _ in 0..BATCH {
            match notified(&self.nl, &mut room) {
                Notified::Nothing => break,
                Notified::Lost => ask = true,
                Notified::Some(all) => {
                    for (kind, message) in messages(all) {
                        ask |= self.take(kind, message, &mut note);
                    }
                }
            }
        }
        if ask {
            self.ask(&mut note);
        }
    }

    /// Takes a notification. Returns whether the rest must be read from the kernel.
    fn take(&mut self, kind: u16, message: &[u8], note: &mut impl FnMut(InterfaceEvent)) -> bool {
        match kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK => {
                let Some((index, is_up, hardware)) = read_interface(message) else { return false };
                if index != self.state.interface {
                    return false;
                }
                if kind == libc::RTM_DELLINK {
                    self.set_up(false, note);
                    note(InterfaceEvent::Removed);
                    return true;
                }
                self.set_up(is_up, note);
                self.set_hardware(hardware, note);
                false
            }
            libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                let v4 = self.at.to_v4();
                let owner = owner(message, v4.as_ref().map_or(&self.at.ip[..], |ip| ip));
                if kind == libc::RTM_DELADDR && owner == Some((u8::MAX, self.state.interface)) {
                    self.set_address(false, note);
                }
                // Another address whose network contains this one does not count. The exception is
                // 127.0.0.0/8, where one address stands for all.
                let is_of_host = v4.is_some_and(|ip| ip[0] == 127);
                let is_own = matches!(owner, Some((u8::MAX, _)));
                is_own || owner.is_some() && (is_of_host || !self.state.has_address)
            }
            _ => false,
        }
    }

    /// Reads the present state from the kernel.
    fn ask(&mut self, note: &mut impl FnMut(InterfaceEvent)) {
        let Some(now) = InterfaceState::read(&self.at, self.state.interface) else { return };
        self.state.interface = now.interface;
        self.set_address(now.has_address, note);
        if let Some(hardware) = hardware_of(now.interface) {
            self.set_hardware(hardware, note);
        }
        self.set_up(now.is_up, note);
    }

    fn set_up(&mut self, is_up: bool, note: &mut impl FnMut(InterfaceEvent)) {
        if core::mem::replace(&mut self.state.is_up, is_up) != is_up {
            note(if is_up { InterfaceEvent::Up } else { InterfaceEvent::Down });
        }
    }

    fn set_address(&mut self, has_address: bool, note: &mut impl FnMut(InterfaceEvent)) {
        if core::mem::replace(&mut self.state.has_address, has_address) != has_address {
            note(InterfaceEvent::Address);
        }
    }

    fn set_hardware(&mut self, hardware: Hardware, note: &mut impl FnMut(InterfaceEvent)) {
        if self.hardware != hardware {
            self.hardware = hardware;
            note(InterfaceEvent::Hardware);
        }
    }
}

fn hardware_of(interface: u32) -> Option<Hardware> {
    netlink::interface(interface, |m| Some(read_interface(m)?.2))
}

#[cfg(test)]
mod tests {
    use super::InterfaceEvent::{Address, Down, Hardware as NewHardware, Removed, Up};
    use super::*;
    use crate::udp::tests::network::{ip, Namespace};
    use gdrcore_testkit::patience::{until, wait_for};

    /// Waits until a watch has seen something and its state is this one. Returns the events.
    fn seen(watch: &mut InterfaceWatch, is_up: bool, has_address: bool) -> Vec<InterfaceEvent> {
        let mut all = Vec::new();
        wait_for(60, "a change of the link", || {
            watch.read(|event| all.push(event));
            let InterfaceState { is_up: up, has_address: has, .. } = watch.state;
            !all.is_empty() && (up, has) == (is_up, has_address)
        });
        all
    }

    /// A pair of interfaces with a cable between them: `a` and `b` of this number.
    fn pair(n: u8) {
        ip(&format!("link add a{n} type veth peer name b{n}"));
        ip(&format!("link set a{n} up"));
        ip(&format!("link set b{n} up"));
    }

    /// Steps of a link, seen while they happen.
    fn steps(at: &str, address: &str) {
        let add = |to: &str| {
            ip(&format!(
                "addr add {address} dev {to}{}",
                if at.contains(':') { " nodad" } else { "" }
            ))
        };
        pair(0);
        add("a0");
        let at = Endpoint::parse(at).unwrap();
        // An IPv6 address is there only with the carrier.
        let mut watch = until(60, || "no address".into(), || InterfaceWatch::open(&at));
        if !watch.state.is_up {
            assert_eq!(seen(&mut watch, true, true), [Up], "the carrier came");
        }
        assert_eq!(InterfaceState::read(&at, 0), Some(watch.state));
        // The other end takes the carrier away. IPv6 addresses stay then, too.
        ip("link set b0 down");
        assert_eq!(seen(&mut watch, false, true), [Down]);
        assert_eq!(InterfaceState::read(&at, 0), Some(watch.state));
        // Other interfaces do not count.
        pair(1);
        ip("addr add 10.71.0.1/24 dev a1");
        ip("link set b0 up");
        assert_eq!(seen(&mut watch, true, true), [Up]);
        // A bridge takes the interface and releases it, with messages about the same index.
        ip("link add br0 type bridge");
        ip("link set a0 master br0");
        ip("link set a0 nomaster");
        ip("link del br0");
        ip(&format!("addr del {address} dev a0"));
        assert_eq!(seen(&mut watch, true, false), [Address]);
        let gone = InterfaceState { has_address: false, ..watch.state };
        assert_eq!(InterfaceState::read(&at, watch.index()), Some(gone));
        let nobodys = InterfaceState { interface: 0, is_up: false, has_address: false };
        assert_eq!(InterfaceState::read(&at, 0), Some(nobodys));
        // The address comes back on another interface.
        let first = watch.index();
        add("a1");
        assert_eq!(seen(&mut watch, true, true), [Address, NewHardware]);
        assert!(watch.index() != first);
        ip("link set a1 address 02:00:00:00:00:07");
        assert_eq!(seen(&mut watch, true, true), [NewHardware]);
        ip("link del a1");
        let mut all = seen(&mut watch, false, false);
        all.retain(|e| *e != Address);
        assert_eq!(all, [Down, Removed]);
        assert!(!InterfaceState::read(&at, watch.index()).unwrap().is_up);
        ip("link del a0");
        pair(2);
        add("a2");
        let all = seen(&mut watch, true, true);
        assert!(all.contains(&Address) && all.contains(&Up), "{all:?}");
        ip("link del a2");
    }

    #[test]
    fn each_change_of_link_and_address_is_seen() {
        let Some(a) = Namespace::new() else { return };
        a.run(|| {
            steps("10.70.0.1", "10.70.0.1/24");
            steps("fd00:70::1", "fd00:70::1/64");
        });
    }

    #[test]
    fn an_address_of_a_whole_network_is_that_of_its_interface() {
        let Some(a) = Namespace::new() else { return };
        a.run(|| {
            let at = Endpoint::v4([127, 9, 9, 9], 4791);
            let mut watch = InterfaceWatch::open(&at).unwrap();
            assert_eq!(
                watch.state,
                InterfaceState { interface: 1, is_up: true, has_address: true }
            );
            ip("addr del 127.0.0.1/8 dev lo");
            assert_eq!(seen(&mut watch, true, false), [Address]);
            ip("addr add 127.0.0.1/8 dev lo");
            assert_eq!(seen(&mut watch, true, true), [Address]);
            ip("link set lo down");
            assert_eq!(seen(&mut watch, false, true), [Down]);
            // Nobody has this one.
            assert!(InterfaceWatch::open(&Endpoint::v4([10, 72, 0, 1], 4791)).is_none());
        });
    }

    #[test]
    fn neither_a_blink_nor_a_flood_of_notifications_loses_a_state() {
        let Some(a) = Namespace::new() else { return };
        a.run(|| {
            pair(0);
            ip("addr add 10.70.0.1/24 dev a0");
            let mut watch = InterfaceWatch::open(&Endpoint::v4([10, 70, 0, 1], 4791)).unwrap();
            if !watch.state.is_up {
                seen(&mut watch, true, true);
            }
            // Both events are reported although nobody looked meanwhile. (A carrier that blinked is
            // reported like one that never changed.)
            ip("link set a0 down");
            ip("link set a0 up");
            assert_eq!(seen(&mut watch, true, true), [Down, Up]);
            crate::sys::set_option(watch.fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 0i32).unwrap();
            for _ in 0..20 {
                ip("link set a0 down");
                ip("link set a0 up");
            }
            ip("link set a0 down");
            let all = seen(&mut watch, false, true);
            assert_eq!(all.last(), Some(&Down), "{all:?}");
        });
    }
}
