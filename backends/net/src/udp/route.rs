//! The MTU of the route to a peer, as it is configured. The kernel also learns MTUs from ICMP,
//! which any host can forge. So the entry of the routing table is read, not the MTU that the kernel
//! reports for a socket (IP_MTU).

use super::netlink::{attributes, half, word};
use super::socket::interface_mtu;
use crate::addr::Endpoint;
use crate::sys::Fd;
use std::os::fd::RawFd;

/// RTM_F_FIB_MATCH of linux/rtnetlink.h: answer with the entry that matches, without exceptions.
const FIB_MATCH: u32 = 0x2000;
/// RTAX_MTU of linux/rtnetlink.h.
const RTAX_MTU: u16 = 2;
/// Bytes of `rtmsg`, and of `nlmsghdr` before it.
const RTMSG: usize = 12;
const HEADER: usize = 16;

/// Bytes of IP packet that the route from an address to another carries; `None`: there is none, or
/// it is unknown. `socket`: any socket of the network namespace. Cost: some six system calls.
pub(super) fn route_mtu(socket: RawFd, from: &Endpoint, to: &Endpoint) -> Option<u32> {
    let (v4_from, v4_to) = (from.to_v4(), to.to_v4());
    let (family, source, target): (i32, &[u8], &[u8]) = match (&v4_from, &v4_to) {
        (Some(a), Some(b)) => (libc::AF_INET, a, b),
        (None, None) => (libc::AF_INET6, &from.ip, &to.ip),
        _ => return None,
    };
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers.
    let nl =
        Fd::from_call(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) }).ok()?;
    let mut request = [0u8; HEADER + RTMSG + 3 * (4 + 16)];
    request[4..6].copy_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    let bits = (8 * target.len()) as u8;
    request[HEADER..HEADER + 3].copy_from_slice(&[family as u8, bits, bits]);
    request[HEADER + 8..HEADER + RTMSG].copy_from_slice(&FIB_MATCH.to_ne_bytes());
    let mut len = HEADER + RTMSG;
    let interface = to.scope_id.to_ne_bytes();
    for (kind, value) in
        [(libc::RTA_DST, target), (libc::RTA_SRC, source), (libc::RTA_OIF, &interface[..])]
    {
        if kind == libc::RTA_OIF && to.scope_id == 0 {
            continue;
        }
        request[len..len + 2].copy_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        request[len + 2..len + 4].copy_from_slice(&kind.to_ne_bytes());
        request[len + 4..len + 4 + value.len()].copy_from_slice(value);
        len += 4 + value.len();
    }
    request[0..4].copy_from_slice(&(len as u32).to_ne_bytes());
    let mut answer = [0u8; 4096];
    // SAFETY: pointers and lengths are those of `request`, of which `len` bytes are filled, and of
    // `answer`.
    let n = unsafe {
        if libc::send(nl.raw(), request.as_ptr().cast(), len, 0) != len as isize {
            return None;
        }
        libc::recv(nl.raw(), answer.as_mut_ptr().cast(), answer.len(), 0)
    };
    let answer = usize::try_from(n).ok().and_then(|n| answer.get(..n))?;
    let (len, kind) = answer.get(..HEADER).map(|h| (word(h, 0) as usize, half(h, 4)))?;
    (kind == libc::RTM_NEWROUTE)
        .then(|| read(answer.get(HEADER + RTMSG..len)?, |i| interface_mtu(socket, i)))?
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
