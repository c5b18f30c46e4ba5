//! The kernel's data about one UDP socket of this network namespace (sock_diag(7)): its user, and
//! its unread bytes.
//!
//! The kernel looks the socket up as it does for each packet that it delivers, so the cost is the
//! same whatever the number of sockets on the host. Its lists (/proc/net/udp, or a dump) would cost
//! time for all sockets of the host, which any user can make.

use crate::addr::Endpoint;
use crate::netlink::{ask, word, HEADER};
use std::net::{SocketAddrV4, SocketAddrV6, UdpSocket};

/// NETLINK_SOCK_DIAG, and SOCK_DIAG_BY_FAMILY of linux/sock_diag.h.
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Bytes of `inet_diag_sockid` of linux/inet_diag.h: source and target port in network order,
/// source and target address 16 each, interface 4, cookie 8.
const ID_LEN: usize = 48;

/// Offsets in `inet_diag_msg`: family 1, state 1, timer 1, retransmissions 1, then the id; its
/// expiry, unread bytes, unsent bytes, user and inode follow.
const ID: usize = 4;
const PORT: usize = ID;
const REMOTE_PORT: usize = ID + 2;
const IP: usize = ID + 4;
const UNREAD: usize = ID + ID_LEN + 4;
const USER: usize = UNREAD + 8;
const INODE: usize = USER + 4;

/// A socket, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    /// The socket is bound to the address, not to all addresses.
    exact: bool,
    /// The socket receives packets of one peer only.
    connected: bool,
    /// Bytes that were not read, with the kernel's overhead.
    unread: u32,
    user: u32,
    /// Equal numbers mean the same socket.
    inode: u32,
}

/// The socket that receives a packet from an address to another of this network namespace. `None`:
/// there is none, or the kernel does not answer (a sandbox, a kernel without this module).
fn receiver(from: &Endpoint, at: &Endpoint) -> Option<Socket> {
    let ip = |e: &Endpoint| {
        let mut bytes = [0; 16];
        match e.to_v4() {
            Some(v4) => bytes[..4].copy_from_slice(&v4),
            None => bytes = e.ip,
        }
        bytes
    };
    let family = if at.is_v4() { libc::AF_INET } else { libc::AF_INET6 };
    // nlmsghdr, then `inet_diag_req_v2`: family 1, protocol 1, extensions 1, padding 1, states 4,
    // and the id.
    let mut request = [0u8; HEADER + 8 + ID_LEN];
    request[HEADER..HEADER + 2].copy_from_slice(&[family as u8, libc::IPPROTO_UDP as u8]);
    request[HEADER + 4..HEADER + 8].fill(0xff);
    // For UDP the source is the packet's, and the target the socket's own address.
    let id = &mut request[HEADER + 8..];
    id[..2].copy_from_slice(&from.port.to_be_bytes());
    id[2..4].copy_from_slice(&at.port.to_be_bytes());
    id[4..20].copy_from_slice(&ip(from));
    id[20..36].copy_from_slice(&ip(at));
    id[36..40].copy_from_slice(&at.scope_id.to_ne_bytes());
    // INET_DIAG_NOCOOKIE: any socket of these addresses.
    id[40..].fill(0xff);
    let kind = SOCK_DIAG_BY_FAMILY;
    ask(NETLINK_SOCK_DIAG, kind, &mut request, kind, |told| parse(told, at))
}

/// Reads an `inet_diag_msg`; `None`: the socket has another port.
fn parse(told: &[u8], at: &Endpoint) -> Option<Socket> {
    told.get(..INODE + 4)?;
    let port = |from: usize| u16::from_be_bytes([told[from], told[from + 1]]);
    let ip = if told[0] == libc::AF_INET as u8 {
        let mut ip = [0; 16];
        ip[10..12].fill(0xff);
        ip[12..].copy_from_slice(&told[IP..IP + 4]);
        ip
    } else {
        told[IP..IP + 16].try_into().ok()?
    };
    (port(PORT) == at.port).then(|| Socket {
        exact: ip == at.ip,
        connected: port(REMOTE_PORT) != 0,
        unread: word(told, UNREAD),
        user: word(told, USER),
        inode: word(told, INODE),
    })
}

/// The user of the socket that receives packets from an address to another, which is of this
/// network namespace, if it is bound to exactly that one.
///
/// Cost: four system calls.
pub(crate) fn receiving_user(from: &Endpoint, at: &Endpoint) -> Option<u32> {
    receiver(from, at).filter(|s| s.exact).map(|s| s.user)
}

/// The user whose unconnected socket has an address and port of this network namespace, or has that
/// port on all addresses. `None`: there is no such socket, or the kernel does not say.
///
/// Cost: four system calls. No allocation.
pub fn port_owner(at: &Endpoint) -> Option<u32> {
    receiver(&Endpoint { port: 0, ..*at }, at).map(|s| s.user)
}

/// The sockets that receive a peer's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The address is of another host or namespace, or the kernel does not say.
    Unknown,
    /// The address is this namespace's, and no socket has the port.
    Nobody,
    /// All of these sockets hold packets.
    Waits,
    /// None of these sockets holds a packet.
    Taken,
}

/// Packets whose receivers [`unread`] looks up: many sockets may share a port, and the kernel
/// chooses among them by the sender's port.
const SENDERS: usize = 16;

/// Whether the unconnected sockets at an address and port of this host hold packets. If many
/// sockets share the port, only those count that [`SENDERS`] example senders would reach.
///
/// Cost: four system calls for each of these. No allocation.
pub fn unread(at: &Endpoint) -> Unread {
    let senders = (0..SENDERS as u16).map(|port| Endpoint { port, ..*at });
    match said(senders.map_while(|from| receiver(&from, at).filter(|s| !s.connected))) {
        Unread::Nobody if !finds_sockets_at(at) => Unread::Unknown,
        said => said,
    }
}

/// The result of several looks at sockets. A socket that one look finds empty is being read,
/// because packets come and go between two looks.
fn said(looks: impl Iterator<Item = Socket>) -> Unread {
    let mut sockets = heapless::Vec::<(u32, bool), SENDERS>::new();
    for Socket { inode, unread, .. } in looks {
        match sockets.iter_mut().find(|(seen, _)| *seen == inode) {
            Some((_, is_read)) => *is_read |= unread == 0,
            // There is a place for each look.
            None => drop(sockets.push((inode, unread == 0))),
        }
    }
    match sockets.iter().filter(|(_, is_read)| *is_read).count() {
        _ if sockets.is_empty() => Unread::Nobody,
        0 => Unread::Waits,
        read if read == sockets.len() => Unread::Taken,
        _ => Unread::Unknown,
    }
}

/// Whether an address is this namespace's and the kernel answers for it: it finds a socket that is
/// bound there just now.
fn finds_sockets_at(at: &Endpoint) -> bool {
    let bound = match at.to_v4() {
        Some(ip) => UdpSocket::bind(SocketAddrV4::new(ip.into(), 0)),
        None => UdpSocket::bind(SocketAddrV6::new(at.ip.into(), 0, 0, at.scope_id)),
    };
    let port = bound.as_ref().ok().and_then(|socket| socket.local_addr().ok()).map(|a| a.port());
    port.is_some_and(|port| port_owner(&Endpoint { port, ..*at }).is_some())
}

#[cfg(test)]
mod tests;
