//! Receiving: one recvmmsg, then an iteration over the received datagrams.

use super::{lines, Ancillary, Carve, UdpConfig, UdpPort};
use crate::addr::{peer_addr, Endpoint, SockAddr};
use crate::port::RxPacket;
use crate::sys::{errno, set_option};
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::wire::grh::{Fields, FLOW_LABEL};
use std::os::fd::RawFd;

/// Distance of two buffers: the odd number of cache lines spreads the headers of a batch over the
/// sets of the L1. A distance of 64 KiB would map them to one set.
const fn stride(cfg: &UdpConfig) -> usize {
    lines(cfg.burst_bytes as usize) + 3 * super::ALIGN
}

/// Ancillary bytes of one datagram: the GRO size, the TOS byte or traffic class, the hop limit and
/// the flow label, each an int or shorter, with headers.
const CONTROL: usize = 96;

/// IPV6_FLOWINFO of linux/in6.h: traffic class and flow label of received packets.
const IPV6_FLOWINFO: i32 = 11;

/// Makes a socket report the class of received packets, with its ECN bits.
pub(super) fn show_class(socket: RawFd, v4: bool) {
    let _ = if v4 {
        set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1i32)
    } else {
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1i32)
    };
}

/// Makes a socket report the hop limit and the flow label of received packets. If the kernel
/// refuses, it reports none.
pub(super) fn show_headers(socket: RawFd, v4: bool) {
    if v4 {
        let _ = set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1i32);
    } else {
        let _ = set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1i32);
        let _ = set_option(socket, libc::IPPROTO_IPV6, IPV6_FLOWINFO, 1i32);
    }
}

/// The receive half of a port. The pointers lead into the caller's memory.
pub(super) struct Rx {
    msgs: *mut libc::mmsghdr,
    addrs: *mut SockAddr,
    controls: *mut Ancillary<CONTROL>,
    buffers: *mut u8,
    /// Bytes of one buffer.
    room: usize,
    /// Distance of two buffers.
    stride: usize,
    batch: usize,
    /// Datagrams of the last poll.
    filled: usize,
    /// Datagrams to receive: as many as last time. A larger number than the waiting ones costs a
    /// lookup (some 150 ns), as much as an empty receive. A program that exchanges single messages
    /// would pay that every time.
    pub(super) want: usize,
    /// Consecutive polls that received the full number.
    full: u8,
    /// Number of such polls before `want` grows; grows while no more datagrams come.
    patience: u8,
}

impl Rx {
    pub(super) const fn memsize(cfg: &UdpConfig) -> usize {
        let n = cfg.rx_batch as usize;
        lines(n * size_of::<libc::mmsghdr>())
            + lines(n * size_of::<libc::iovec>())
            + lines(n * size_of::<SockAddr>())
            + lines(n * size_of::<Ancillary<CONTROL>>())
            + lines(n * stride(cfg))
    }

    /// # Safety
    /// As [`UdpPort::open`].
    pub(super) unsafe fn carve(cfg: &UdpConfig, carve: &mut Carve) -> Result<Rx> {
        let n = cfg.rx_batch as usize;
        // SAFETY: zeroes are valid for the C structs: null pointers and lengths of 0.
        let (msg, iov) =
            unsafe { (core::mem::zeroed::<libc::mmsghdr>(), core::mem::zeroed::<libc::iovec>()) };
        // SAFETY: the caller's memory is writable and ours, for all four.
        let (msgs, iovs, addrs, controls) = unsafe {
            (
                carve.array(n, msg)?,
                carve.array(n, iov)?,
                carve.array(n, SockAddr::zeroed())?,
                carve.array(n, Ancillary([0; CONTROL]))?,
            )
        };
        let (room, stride) = (cfg.burst_bytes as usize, stride(cfg));
        let buffers = carve.bytes(n * stride)?;
        for i in 0..n {
            // SAFETY: all arrays have `n` elements and `i < n`; they were initialised above.
            unsafe {
                (*iovs.add(i)).iov_base = buffers.add(i * stride).cast();
                (*iovs.add(i)).iov_len = room;
                let hdr = &mut (*msgs.add(i)).msg_hdr;
                hdr.msg_name = addrs.add(i).cast();
                hdr.msg_iov = iovs.add(i);
                hdr.msg_iovlen = 1;
                hdr.msg_control = controls.add(i).cast();
            }
        }
        Ok(Rx {
            msgs,
            addrs,
            controls,
            buffers,
            room,
            stride,
            batch: n,
            filled: n,
            want: 1,
            full: 0,
            patience: 1,
        })
    }

    /// Notes the number received, and sets the number of the next receive.
    fn adapt(&mut self, n: usize) {
        self.filled = n;
        if n < self.want {
            // The larger number did not pay. An empty poll does not show that, so it does not
            // count.
            if n == 1 {
                self.patience = (2 * self.patience).min(16);
            }
            self.want = n.max(1);
            self.full = 0;
            return;
        }
        self.full += 1;
        if n > 1 || self.full >= self.patience {
            self.patience = if n > 1 { 1 } else { self.patience };
            self.want = (2 * n).min(self.batch);
            self.full = 0;
        }
    }

    /// Restores the lengths that the kernel has overwritten.
    fn reset(&mut self) {
        for i in 0..self.filled {
            // SAFETY: `filled <= batch`, the length of the array.
            let hdr = unsafe { &mut (*self.msgs.add(i)).msg_hdr };
            hdr.msg_namelen = SockAddr::LEN;
            hdr.msg_controllen = CONTROL as _;
            hdr.msg_flags = 0;
        }
        self.filled = 0;
    }
}

impl UdpPort {
    /// Receives the waiting datagrams, up to the batch, and returns their number; the packets of
    /// the previous poll are gone. Cost: one system call; a few more after an ICMP message.
    pub fn rx_poll(&mut self) -> usize {
        self.rx.reset();
        // The kernel reports a pending socket error once in place of data, and each ICMP message
        // leaves an error. So there are a few attempts.
        for _ in 0..4 {
            self.counters.rx_calls += 1;
            if let Ok(n) = usize::try_from(self.receive()) {
                self.rx.adapt(n.min(self.rx.batch));
                return self.rx.filled;
            }
            match errno() {
                libc::EAGAIN => return 0,
                libc::EINTR => {}
                _ => {
                    self.drain_errors();
                }
            }
        }
        0
    }

    /// Receives up to `want` datagrams; returns their number, or the negative errno.
    #[inline]
    fn receive(&mut self) -> i32 {
        if self.rx.want > 1 {
            let (msgs, want) = (self.rx.msgs, self.rx.want as u32);
            let (now, for_ever) = (libc::MSG_DONTWAIT as _, core::ptr::null_mut());
            // SAFETY: `want <= batch` initialised headers whose buffers are ours alone.
            return unsafe { libc::recvmmsg(self.fd.raw(), msgs, want, now, for_ever) };
        }
        self.receive_one(self.fd.raw())
    }

    /// Receives one datagram of a socket; returns 1, or the negative errno.
    #[inline]
    fn receive_one(&mut self, fd: RawFd) -> i32 {
        // SAFETY: the first of `batch` headers, `batch` being at least 1.
        let msg = unsafe { &mut *self.rx.msgs };
        // SAFETY: an initialised header whose buffers are ours alone.
        match u32::try_from(unsafe { libc::recvmsg(fd, &mut msg.msg_hdr, libc::MSG_DONTWAIT) }) {
            Ok(len) => {
                msg.msg_len = len;
                1
            }
            Err(_) => -1,
        }
    }

    /// Receives one datagram from a socket other than the port's own.
    pub(super) fn rx_one(&mut self, fd: RawFd) -> bool {
        self.rx.reset();
        self.counters.rx_calls += 1;
        let came = self.receive_one(fd) == 1;
        self.rx.filled = usize::from(came);
        came
    }

    /// Makes the kernel report the hop limit and the flow label of packets.
    pub fn show_headers(&mut self) {
        show_headers(self.fd.raw(), self.local.is_v4());
    }

    /// The `i`-th packet of the last poll; beyond the last one an empty packet.
    #[inline]
    pub fn rx_get(&self, i: usize) -> RxPacket<'_> {
        let nothing = RxPacket { src: PeerAddr::default(), seg: 0, data: &[] };
        if i >= self.rx.filled {
            return nothing;
        }
        // SAFETY: `i < filled <= batch`; the kernel is not writing now, since polls need
        // `&mut self`.
        let (msg, addr) = unsafe { (&*self.rx.msgs.add(i), &*self.rx.addrs.add(i)) };
        let Some(src) = Endpoint::from_sockaddr(addr) else { return nothing };
        let src = peer_addr(&src);
        if msg.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return RxPacket { src, ..nothing };
        }
        let len = (msg.msg_len as usize).min(self.rx.room);
        // SAFETY: buffer `i` lies in the carved block, has `room` bytes, and the kernel filled the
        // first `len`.
        let data =
            unsafe { core::slice::from_raw_parts(self.rx.buffers.add(i * self.rx.stride), len) };
        // SAFETY: control `i` of `batch`.
        let control = unsafe { &*self.rx.controls.add(i) };
        let used: usize = msg.msg_hdr.msg_controllen as _;
        let (seg, Fields { flow_label, traffic_class, hop_limit }) =
            parse_control(&control.0[..used.min(CONTROL)]);
        let src = PeerAddr { flow_label, traffic_class, hop_limit, ..src };
        // A single datagram is its only segment; at most 65,507 bytes, so it fits.
        let seg = if seg == 0 || usize::from(seg) > len { len as u16 } else { seg };
        RxPacket { src, seg, data }
    }
}

/// The GRO size (0: none) and the fields of the IP header. Compares bytes instead of walking with
/// the C macros, so that it cannot leave the slice.
#[inline]
fn parse_control(bytes: &[u8]) -> (u16, Fields) {
    // IPv4's ancillary data in the order in which Linux writes it: the GRO size, if any, and the
    // TOS byte.
    const TOS: [u8; 16] = header(17, libc::IPPROTO_IP, libc::IP_TOS);
    const GRO: [u8; 16] = header(20, libc::SOL_UDP, libc::UDP_GRO);
    let (seg, rest) = match bytes.split_first_chunk::<24>() {
        Some(([h @ .., a, b, c, d, _, _, _, _], rest)) if *h == GRO => {
            (i32::from_ne_bytes([*a, *b, *c, *d]), rest)
        }
        _ => (0, bytes),
    };
    match rest.first_chunk::<17>() {
        Some([h @ .., tos]) if *h == TOS && rest.len() <= 24 => {
            let grh = Fields { flow_label: 0, traffic_class: *tos, hop_limit: 0 };
            (u16::try_from(seg).unwrap_or(0), grh)
        }
        _ => parse_any_control(bytes),
    }
}

/// The header of one ancillary message.
const fn header(len: u64, level: i32, name: i32) -> [u8; 16] {
    let (len, level, name) = (len.to_ne_bytes(), level.to_ne_bytes(), name.to_ne_bytes());
    let mut head = [0; 16];
    let mut i = 0;
    while i < 16 {
        head[i] = match i {
            0..8 => len[i],
            8..12 => level[i - 8],
            _ => name[i - 12],
        };
        i += 1;
    }
    head
}

fn parse_any_control(mut rest: &[u8]) -> (u16, Fields) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let (mut seg, mut grh) = (0, Fields::default());
    while let Some((head, _)) = rest.split_at_checked(HEADER) {
        const LEN: usize = size_of::<usize>();
        let Some((len, kind)) = head.split_first_chunk::<LEN>() else { break };
        let len = usize::from_ne_bytes(*len);
        let (Some(level), Some(name)) = (kind.first_chunk::<4>(), kind.last_chunk::<4>()) else {
            break;
        };
        let Some(value) = rest.get(HEADER..len) else { break };
        let int = value.first_chunk::<4>().map_or(0, |v| i32::from_ne_bytes(*v));
        match (i32::from_ne_bytes(*level), i32::from_ne_bytes(*name)) {
            (libc::SOL_UDP, libc::UDP_GRO) => seg = u16::try_from(int).unwrap_or(0),
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                grh.traffic_class = value.first().copied().unwrap_or(0);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => grh.traffic_class = int as u8,
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                grh.hop_limit = int as u8;
            }
            (libc::IPPROTO_IPV6, IPV6_FLOWINFO) => {
                grh.flow_label = u32::from_be(int as u32) & FLOW_LABEL;
            }
            _ => {}
        }
        let next = (len + size_of::<usize>() - 1) & !(size_of::<usize>() - 1);
        rest = rest.get(next..).unwrap_or(&[]);
    }
    (seg, grh)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(len: u64, level: i32, name: i32, value: &[u8]) -> Vec<u8> {
        let mut out = header(len, level, name).to_vec();
        out.extend_from_slice(value);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }

    #[test]
    fn ancillary_data_as_linux_writes_it_is_read_as_any_is() {
        let tos = |v: u8| piece(17, libc::IPPROTO_IP, libc::IP_TOS, &[v]);
        let gro = |v: i32| piece(20, libc::SOL_UDP, libc::UDP_GRO, &v.to_ne_bytes());
        let class = |v: i32| piece(20, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &v.to_ne_bytes());
        let ttl = |v: i32| piece(20, libc::IPPROTO_IP, libc::IP_TTL, &v.to_ne_bytes());
        let hops = |v: i32| piece(20, libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &v.to_ne_bytes());
        let info = |v: u32| piece(20, libc::IPPROTO_IPV6, IPV6_FLOWINFO, &v.to_be_bytes());
        let of =
            |traffic_class, hop_limit, flow_label| Fields { traffic_class, hop_limit, flow_label };
        let usual = [
            ([gro(80), tos(3)].concat(), (80, of(3, 0, 0))),
            (tos(0xba), (0, of(0xba, 0, 0))),
            (gro(4124), (4124, of(0, 0, 0))),
            ([gro(80), class(0xb9)].concat(), (80, of(0xb9, 0, 0))),
            ([tos(1), gro(80)].concat(), (80, of(1, 0, 0))),
            ([gro(-1), tos(3)].concat(), (0, of(3, 0, 0))),
            ([gro(80), ttl(255), tos(0xb8)].concat(), (80, of(0xb8, 255, 0))),
            ([hops(7), class(8), info(0x0b8a_bcde)].concat(), (0, of(8, 7, 0xa_bcde))),
            (vec![], (0, of(0, 0, 0))),
        ];
        for (bytes, wanted) in usual {
            assert_eq!(parse_control(&bytes), wanted, "{bytes:?}");
            // Cut anywhere, with any byte changed, with more behind it: the same result as the
            // general parser.
            for n in 0..bytes.len() {
                assert_eq!(
                    parse_control(&bytes[..n]),
                    parse_any_control(&bytes[..n]),
                    "{n} of {bytes:?}"
                );
                for bit in 0..8 {
                    let mut bytes = bytes.clone();
                    bytes[n] ^= 1 << bit;
                    assert_eq!(parse_control(&bytes), parse_any_control(&bytes), "{bytes:?}");
                    bytes.extend(tos(1));
                    assert_eq!(parse_control(&bytes), parse_any_control(&bytes), "{bytes:?}");
                }
            }
        }
    }
}
