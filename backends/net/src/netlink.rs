//! Netlink messages (netlink(7), rtnetlink(7), sock_diag(7)): requests with one answer,
//! notifications, and their words and attributes, in the machine's byte order.

use crate::addr::Endpoint;
use crate::sys::{check, errno, Fd};

/// Bytes of `nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Bytes of `rtmsg`, which begins a route.
pub(crate) const RTMSG: usize = 12;
/// Offset of `rtm_type` in `rtmsg`.
const RTM_TYPE: usize = 7;
/// Bytes of `ifinfomsg`, which begins an interface.
pub(crate) const IFINFOMSG: usize = 16;
/// RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
const SKIP_STATS: u32 = 8;

/// A socket; `None`: a sandbox does not allow it.
pub(crate) fn socket(protocol: i32) -> Option<Fd> {
    let raw = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers.
    Fd::from_call(unsafe { libc::socket(libc::AF_NETLINK, raw, protocol) }).ok()
}

/// A socket that receives the notifications of groups (RTMGRP_). Any user may have one.
pub(crate) fn subscribe(groups: i32) -> Option<Fd> {
    let nl = socket(libc::NETLINK_ROUTE)?;
    // SAFETY: zeroes are valid for it.
    let mut own: libc::sockaddr_nl = unsafe { core::mem::zeroed() };
    (own.nl_family, own.nl_groups) = (libc::AF_NETLINK as u16, groups as u32);
    let len = size_of_val(&own) as u32;
    // SAFETY: an address of `len` bytes.
    check(unsafe { libc::bind(nl.raw(), (&raw const own).cast(), len) }).ok()?;
    Some(nl)
}

/// The notifications that a subscribed socket has.
pub(crate) enum Notified<'b> {
    Nothing,
    /// Messages, for [`messages`].
    Some(&'b [u8]),
    /// Notifications were lost: their subject must be read anew.
    Lost,
}

/// Receives notifications without waiting. Those that are not the kernel's are ignored.
pub(crate) fn notified<'b>(nl: &Fd, room: &'b mut [u8]) -> Notified<'b> {
    // SAFETY: zeroes are valid for it.
    let mut from: libc::sockaddr_nl = unsafe { core::mem::zeroed() };
    let mut len = size_of_val(&from) as u32;
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let (at, most) = (room.as_mut_ptr().cast(), room.len());
    // SAFETY: room for `most` bytes, and for an address of `len`.
    let n = unsafe { libc::recvfrom(nl.raw(), at, most, flags, (&raw mut from).cast(), &mut len) };
    match usize::try_from(n) {
        Err(_) if matches!(errno(), libc::EAGAIN | libc::EINTR) => Notified::Nothing,
        Ok(_) if from.nl_pid != 0 => Notified::Some(&[]),
        Ok(n) if n <= most => Notified::Some(&room[..n]),
        _ => Notified::Lost,
    }
}

/// The messages of an answer or a notification: type, and the bytes behind the header.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let (len, kind) = rest.get(..HEADER).map(|h| (word(h, 0) as usize, half(h, 4)))?;
        let message = rest.get(HEADER..len)?;
        rest = rest.get((len + 3) & !3..).unwrap_or(&[]);
        Some((kind, message))
    })
}

/// Passes the interface of an index to `read`: `ifinfomsg`, and attributes.
pub(crate) fn interface<T>(index: u32, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let mut request = [0u8; HEADER + IFINFOMSG + 8];
    request[HEADER + 4..HEADER + 8].copy_from_slice(&index.to_ne_bytes());
    // Without statistics, so that the answer is short.
    let mask = &mut request[HEADER + IFINFOMSG..];
    mask[..2].copy_from_slice(&8u16.to_ne_bytes());
    mask[2..4].copy_from_slice(&libc::IFLA_EXT_MASK.to_ne_bytes());
    mask[4..].copy_from_slice(&SKIP_STATS.to_ne_bytes());
    ask(libc::NETLINK_ROUTE, libc::RTM_GETLINK, &mut request, libc::RTM_NEWLINK, read)
}

/// Fills in the header of a request and sends it. `flags`: beside NLM_F_REQUEST. `None`: the kernel
/// does not take it.
pub(crate) fn send(nl: &Fd, kind: u16, flags: i32, request: &mut [u8]) -> Option<()> {
    let len = request.len();
    let header = request.get_mut(..8)?;
    header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    header[4..6].copy_from_slice(&kind.to_ne_bytes());
    header[6..].copy_from_slice(&((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    // SAFETY: pointer and length are those of `request`.
    let sent = unsafe { libc::send(nl.raw(), request.as_ptr().cast(), len, 0) };
    (sent == len as isize).then_some(())
}

/// Sends a request of the type `asked`. Passes the answer without its header to `read`, if it is of
/// the type `kind`. `None`: another answer, such as an error. The kernel answers within the call
/// that sends. For interfaces, and before Linux 6.9 for addresses, that call waits while another
/// process changes the network. Cost: four system calls.
pub(crate) fn ask<T>(
    protocol: i32,
    asked: u16,
    request: &mut [u8],
    kind: u16,
    read: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    let nl = socket(protocol)?;
    send(&nl, asked, 0, request)?;
    let mut answer = [0u8; 4096];
    let (at, most) = (answer.as_mut_ptr().cast(), answer.len());
    // SAFETY: pointer and length are those of `answer`.
    let n = unsafe { libc::recv(nl.raw(), at, most, libc::MSG_DONTWAIT) };
    let answer = usize::try_from(n).ok().and_then(|n| answer.get(..n))?;
    let (len, answered) = answer.get(..HEADER).map(|h| (word(h, 0) as usize, half(h, 4)))?;
    (answered == kind).then(|| read(answer.get(HEADER..len)?))?
}

/// Attributes behind a netlink struct: type and value.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let (len, kind) = rest.get(..4).map(|h| (usize::from(half(h, 0)), half(h, 2)))?;
        let value = rest.get(4..len)?;
        rest = rest.get((len + 3) & !3..).unwrap_or(&[]);
        // The two highest bits are flags.
        Some((kind & 0x3fff, value))
    })
}

pub(crate) fn word(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub(crate) fn half(b: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([b[at], b[at + 1]])
}

/// Whether an address is of this network namespace. Cost: a look-up of a route.
pub(crate) fn is_local(at: &Endpoint) -> bool {
    route(None, at, 0, |route| Some(*route.get(RTM_TYPE)? == libc::RTN_LOCAL)) == Some(true)
}

/// Passes the route to an address to `read`.
pub(crate) fn route<T>(
    from: Option<&Endpoint>,
    to: &Endpoint,
    flags: u32,
    read: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    let (v4_from, v4_to) = (from.and_then(Endpoint::to_v4), to.to_v4());
    let family = if v4_to.is_some() { libc::AF_INET } else { libc::AF_INET6 };
    let target = v4_to.as_ref().map_or(&to.ip[..], |ip| ip);
    let source = match from {
        Some(from) if from.is_v4() != to.is_v4() => return None,
        Some(from) => v4_from.as_ref().map_or(&from.ip[..], |ip| ip),
        None => &[],
    };
    let mut request = [0u8; HEADER + RTMSG + 3 * (4 + 16)];
    let bits = |ip: &[u8]| (8 * ip.len()) as u8;
    request[HEADER..HEADER + 3].copy_from_slice(&[family as u8, bits(target), bits(source)]);
    request[HEADER + 8..HEADER + RTMSG].copy_from_slice(&flags.to_ne_bytes());
    let mut len = HEADER + RTMSG;
    let interface = to.scope_id.to_ne_bytes();
    let interface = if to.scope_id == 0 { &[] } else { &interface[..] };
    for (kind, value) in
        [(libc::RTA_DST, target), (libc::RTA_SRC, source), (libc::RTA_OIF, interface)]
    {
        if value.is_empty() {
            continue;
        }
        request[len..len + 2].copy_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        request[len + 2..len + 4].copy_from_slice(&kind.to_ne_bytes());
        request[len + 4..len + 4 + value.len()].copy_from_slice(value);
        len += 4 + value.len();
    }
    ask(libc::NETLINK_ROUTE, libc::RTM_GETROUTE, &mut request[..len], libc::RTM_NEWROUTE, read)
}
