//! A connected socket to one peer of this host.
//!
//! An unconnected socket looks its route up for each send: 0.35 us of 2.9 on Zen 5. A connected
//! socket keeps the route. But the kernel numbers its packets (IPv4's identification), and the ICRC
//! covers the number, so it has to be known before the send. It rises by one with each send,
//! whatever the length, and starts anywhere. No system call returns it, but a socket filter sees
//! it. So the socket first sends a few packets to a probe socket, whose filter truncates each to a
//! length that equals one byte of its number. If the numbers do not rise by one, there is no
//! connected socket. A refused send ends the socket, because it may have taken a number.
//!
//! The socket has a port of its own, to which no packet is sent: RoCEv2 leaves the source port to
//! the sender, and answers go to the address that the QP names.
//!
//! Only for peers of this host. There the packets of two sockets stay in order, because they pass
//! one queue, and the receiver is a socket or an rxe of the same kernel. A NIC that segments a
//! burst itself may number the packets in its own way.

use super::tx::header::{send_labels, SocketHeader};
use super::unconnected;
use crate::addr::{endpoint, Endpoint, SockAddr};
use crate::sys::{check, set_filter, set_option, Fd};
use gdrcore_core::roce::peer::{ConnectedFlow, PeerAddr};
use gdrcore_core::wire::icrc::IcrcFlow;

/// Bursts in a row that leave alone for one peer, after which it gets a connected socket.
pub(super) const CONNECT_AFTER: u16 = 64;
/// Most such bursts: each loss doubles their number.
pub(super) const CONNECT_AFTER_MAX: u16 = 4096;
/// Bursts by a connected socket after which a loss is no sign that the peer refuses the socket.
pub(super) const TRUSTED_AFTER: u16 = 1024;
/// Bytes of a probe packet: more than the filter leaves of one.
const PROBE_LEN: usize = 300;
/// Sends to the probe socket: two to learn the bytes of the number, the others to check that it
/// rises.
const PROBE_SENDS: u16 = 6;
/// Offset of the network header, for a filter.
const SKF_NET_OFF: u32 = 0xfff0_0000;
/// Offset of the identification in IPv4's header.
const IDENT_OFFSET: u32 = 4;

pub(super) struct ConnectedSocket {
    fd: Fd,
    /// What the ICRC of its packets covers; `ident` is the number of the next send.
    pub(super) flow: ConnectedFlow,
    /// The socket's UDP_SEGMENT.
    segment_size: u16,
    /// The number that the packets had when [`ConnectedSocket::take_trust`] last began to count.
    counted_from: u16,
}

fn local_address(fd: &Fd) -> Option<Endpoint> {
    let (mut sa, mut len) = (SockAddr::zeroed(), SockAddr::LEN);
    // SAFETY: `sa` has room for `len` bytes, and both live through the call.
    check(unsafe { libc::getsockname(fd.raw(), (&raw mut sa).cast(), &mut len) }).ok()?;
    Endpoint::from_sockaddr(&sa)
}

/// Attaches a filter that truncates each packet to a length given by eight bits of its
/// identification.
fn truncate_to_ident_byte(probe_socket: &Fd, shift: u32) -> Option<()> {
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let code = [
        op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, SKF_NET_OFF + IDENT_OFFSET),
        op(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, shift),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xff),
        // The filter's result counts from UDP's header on.
        op(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K, 8),
        op(libc::BPF_RET | libc::BPF_A, 0),
    ];
    set_filter(probe_socket.raw(), libc::SO_ATTACH_FILTER, &code).ok()
}

impl ConnectedSocket {
    /// Makes a connected socket to a peer of this host.
    #[cold]
    pub(super) fn open(local: &Endpoint, dst: &PeerAddr, class: u8) -> Option<ConnectedSocket> {
        // A socket can be bound to an address of this host alone.
        drop(unconnected(&endpoint(dst)).ok()?);
        let fd = unconnected(local).ok()?;
        let raw = fd.raw();
        let v4 = local.is_v4();
        super::socket::forbid_fragments(raw, v4).ok()?;
        super::socket::set_class(raw, v4, class).ok()?;
        let mut header = SocketHeader::new(class);
        header.set(raw, dst).ok()?;
        if !v4 {
            send_labels(raw);
        }
        // Nobody reads from the socket: what arrives nevertheless is to take no memory.
        let _ = set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUF, 0i32);
        let (sa, len) = header.address(dst);
        // SAFETY: `sa` is a socket address of `len` bytes.
        check(unsafe { libc::connect(raw, (&raw const sa).cast(), len) }).ok()?;
        let from = local_address(&fd)?;
        let flow = IcrcFlow::from_gids(&from.ip, &dst.gid, from.port, dst.port);
        let flow = ConnectedFlow { dst: *dst, flow, ident: 0 };
        let mut connected = ConnectedSocket { fd, flow, segment_size: 0, counted_from: 0 };
        connected.flow.ident = if v4 { connected.learn_ident(&from)? } else { 0 };
        connected.counted_from = connected.flow.ident;
        Some(connected)
    }

    /// Learns the number of the next send; `None`: numbers do not rise by one with each send.
    fn learn_ident(&mut self, from: &Endpoint) -> Option<u16> {
        let probe_socket = unconnected(from).ok()?;
        let to = local_address(&probe_socket)?;
        truncate_to_ident_byte(&probe_socket, 0)?;
        let low = self.probe_ident_byte(&probe_socket, &to, false)?;
        truncate_to_ident_byte(&probe_socket, 8)?;
        let high = self.probe_ident_byte(&probe_socket, &to, false)?;
        // The number of the second packet follows that of the first.
        let second = u16::from(high) << 8 | u16::from(low.wrapping_add(1));
        for k in 1..PROBE_SENDS - 1 {
            let shift = 8 * u32::from(k % 2);
            truncate_to_ident_byte(&probe_socket, shift)?;
            // The last two sends are bursts: one takes a single number, too.
            if self.probe_ident_byte(&probe_socket, &to, k > 2)?
                != (second.wrapping_add(k) >> shift) as u8
            {
                return None;
            }
        }
        self.set_segment_size(0)?;
        Some(second.wrapping_add(PROBE_SENDS - 1))
    }

    /// Sends a packet, or a burst of two, to the probe socket. Returns the byte of its number to
    /// which the probe socket truncates it.
    fn probe_ident_byte(&mut self, probe_socket: &Fd, to: &Endpoint, burst: bool) -> Option<u8> {
        let bytes = [0u8; 2 * PROBE_LEN];
        let packets = if burst { 2 } else { 1 };
        self.set_segment_size(if burst { PROBE_LEN as u16 } else { 0 })?;
        let (sa, len) = to.to_sockaddr();
        // SAFETY: the bytes and the address live through the call, and their lengths are passed
        // with them.
        let sent = unsafe {
            let (p, sa) = (bytes.as_ptr().cast(), (&raw const sa).cast());
            libc::sendto(self.fd.raw(), p, packets * PROBE_LEN, libc::MSG_DONTWAIT, sa, len)
        };
        if sent != (packets * PROBE_LEN) as isize {
            return None;
        }
        let mut first = None;
        for _ in 0..packets {
            let mut packet = [0u8; PROBE_LEN];
            // SAFETY: pointer and length are those of `packet`. Over loopback the packet is there
            // when the send returns.
            let n = unsafe {
                libc::recv(
                    probe_socket.raw(),
                    packet.as_mut_ptr().cast(),
                    PROBE_LEN,
                    libc::MSG_DONTWAIT,
                )
            };
            first = first.or(Some(u8::try_from(n).ok()?));
        }
        first
    }

    fn set_segment_size(&mut self, size: u16) -> Option<()> {
        if self.segment_size != size {
            set_option(self.fd.raw(), libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(size)).ok()?;
            self.segment_size = size;
        }
        Some(())
    }

    /// Whether so many bursts have left since the last call that the peer certainly accepts them.
    pub(super) fn take_trust(&mut self) -> bool {
        let first = core::mem::replace(&mut self.counted_from, self.flow.ident);
        self.flow.ident.wrapping_sub(first) >= TRUSTED_AFTER
    }

    /// Sends a burst of `seg` bytes a packet. Returns false if it was not sent; then the socket
    /// must be closed.
    #[inline]
    pub(super) fn send(&mut self, burst: &[u8], seg: u16) -> bool {
        let (len, size) = (burst.len(), usize::from(self.segment_size));
        let suits = if len > usize::from(seg) {
            seg == self.segment_size
        } else {
            size == 0 || len <= size
        };
        if !suits && self.set_segment_size(if len > usize::from(seg) { seg } else { 0 }).is_none() {
            return false;
        }
        // SAFETY: pointer and length are those of `burst`, which the kernel only reads.
        let rc =
            unsafe { libc::send(self.fd.raw(), burst.as_ptr().cast(), len, libc::MSG_DONTWAIT) };
        self.flow.ident = self.flow.ident.wrapping_add(1);
        rc == len as isize
    }
}
