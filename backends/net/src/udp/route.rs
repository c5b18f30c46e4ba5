//! The MTU of the route to a peer, as it is configured. The kernel also learns MTUs from ICMP,
//! which any host can forge. So the entry of the routing table is read, not the MTU that the kernel
//! reports for a socket (IP_MTU).

use super::socket::interface_mtu;
use crate::addr::Endpoint;
use crate::netlink::{attributes, half, route, word, RTMSG};
use std::os::fd::RawFd;

/// RTM_F_FIB_MATCH of linux/rtnetlink.h: answer with the entry that matches, without exceptions.
const FIB_MATCH: u32 = 0x2000;
/// RTAX_MTU of linux/rtnetlink.h.
const RTAX_MTU: u16 = 2;

/// Bytes of IP packet that the route from an address to another carries; `None`: there is no route,
/// or its MTU is unknown. `socket`: any socket of the network namespace. Cost: some six system
/// calls.
pub(super) fn route_mtu(socket: RawFd, from: &Endpoint, to: &Endpoint) -> Option<u32> {
    route(Some(from), to, FIB_MATCH, |route| {
        read(route.get(RTMSG..)?, |i| interface_mtu(socket, i))
    })
}

/// Reads the attributes of a route: the least of its own MTU and those of its interfaces.
fn read(route: &[u8], interface_mtu: impl Fn(u32) -> Option<u32>) -> Option<u32> {
    let mut least: Option<u32> = None;
    let mut put = |mtu: Option<u32>| least = least.into_iter().chain(mtu.filter(|&m| m > 0)).min();
    for (kind, value) in attributes(route) {
        match kind {
            libc::RTA_OIF => put(interface_mtu(word(value.get(..4)?, 0))),
            libc::RTA_METRICS => {
                let said = attributes(value).find(|(kind, _)| *kind == RTAX_MTU);
                put(said.and_then(|(_, mtu)| Some(word(mtu.get(..4)?, 0))));
            }
            libc::RTA_MULTIPATH => {
                // `rtnexthop`: length 2, flags 1, hops 1, interface 4, then attributes.
                let mut rest = value;
                while let Some(hop) = rest.get(..8) {
                    put(interface_mtu(word(hop, 4)));
                    rest = rest.get((usize::from(half(hop, 0)).max(8) + 3) & !3..).unwrap_or(&[]);
                }
            }
            _ => {}
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut all = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
        all.extend(kind.to_ne_bytes());
        all.extend(value);
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    #[test]
    fn the_least_mtu_of_a_route_and_its_interfaces_counts() {
        let mtu_of = |i: u32| {
            [(1, 65_536), (2, 9000), (3, 1500)].iter().find(|(k, _)| *k == i).map(|(_, m)| *m)
        };
        let oif = |i: u32| attribute(libc::RTA_OIF, &i.to_ne_bytes());
        let metric = |m: u32| {
            let others =
                [attribute(7, &9u32.to_ne_bytes()), attribute(RTAX_MTU, &m.to_ne_bytes())].concat();
            attribute(libc::RTA_METRICS, &others)
        };
        let hop = |i: u32, more: &[u8]| {
            let mut h = ((8 + more.len()) as u16).to_ne_bytes().to_vec();
            h.extend([0, 0]);
            h.extend(i.to_ne_bytes());
            h.extend(more);
            h
        };
        assert_eq!(read(&oif(2), mtu_of), Some(9000));
        assert_eq!(read(&[oif(2), metric(1400)].concat(), mtu_of), Some(1400));
        assert_eq!(read(&[metric(16_000), oif(3)].concat(), mtu_of), Some(1500));
        assert_eq!(read(&[metric(0), oif(1)].concat(), mtu_of), Some(65_536));
        let gateway = attribute(5, &[10, 0, 0, 1]);
        let both = attribute(libc::RTA_MULTIPATH, &[hop(2, &gateway), hop(3, &gateway)].concat());
        assert_eq!(read(&both, mtu_of), Some(1500));
        assert_eq!(read(&[], mtu_of), None);
        // Cut anywhere, and with wrong lengths.
        let whole = [oif(2), metric(1400), both].concat();
        for n in 0..whole.len() {
            read(&whole[..n], mtu_of);
            let mut bad = whole.clone();
            bad[n] = bad[n].wrapping_add(0x81);
            read(&bad, mtu_of);
        }
    }
}
