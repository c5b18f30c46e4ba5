//! Messages among the processes of one address: datagrams between the sockets of their blocks'
//! names.
//!
//! ```text
//! 0  magic "gdrm"   4  version 1   5  kind   6  block of the sender (2)
//! Then, by kind, little-endian:
//! TableRequest  nothing; a process that has a table answers with it
//! TableUpdate   a table
//! OwnerGone     block 2: its owner's socket is closed
//! PeerError     address 16, zone 4, port 2, zero 2, errno 4: the network refused a packet
//! StatusRequest nothing; the receiver replaces its status file ([`crate::status`])
//! Packets       address 16, zone 4, port 2, ECN 1, DSCP 1, bytes of a packet 2, number of the
//!               first packet 2, the packets
//! ```
//!
//! Other users cannot reach the sockets ([`crate::local`]). The kernel also names the sender's user
//! with each message (SO_PASSCRED); a message of another user is dropped. Messages of the same user
//! may still be wrong: a wrong table costs a detour, and a packet is checked like any other.

use super::table::{self, Table};
use crate::addr::Endpoint;
use crate::local::{is_own_user, Holder, Lock, Role, SocketDir, SocketPath};
use crate::rights;
use crate::sys::{errno, set_option, Fd};
use core::mem::MaybeUninit;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::wire::grh::{Fields, DSCP};
use std::os::fd::RawFd;

const MAGIC: [u8; 4] = *b"gdrm";
const VERSION: u8 = 1;
/// Bytes before those of the kind.
const HEAD: usize = 8;
/// Bytes before the packets.
const PACKETS_HEAD: usize = HEAD + 28;
/// Most bytes of a message to a device whose UDP socket receives at most `burst_bytes` at a time. A
/// member with larger bursts may send a longer message, of which only the first packets are taken.
pub const fn message_max(burst_bytes: usize) -> usize {
    let (packets, table) = (PACKETS_HEAD + burst_bytes, HEAD + table::BYTES);
    if packets > table {
        packets
    } else {
        table
    }
}

mod kind {
    pub const TABLE_REQUEST: u8 = 1;
    pub const TABLE_UPDATE: u8 = 2;
    pub const OWNER_GONE: u8 = 3;
    pub const PACKETS: u8 = 4;
    pub const PEER_ERROR: u8 = 5;
    pub const STATUS_REQUEST: u8 = 6;
}

/// Packets that came to another socket than their owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets<'a> {
    /// The sender.
    pub src: Endpoint,
    /// Bytes of each packet but the last.
    pub seg: u16,
    /// Number of the first packet in its burst.
    pub first: u16,
    /// The fields of the IP header; a message carries the class alone.
    pub grh: Fields,
    /// The packets.
    pub data: &'a [u8],
}

/// A message.
#[derive(Clone, Copy)]
pub enum GroupMsg<'a> {
    /// Requests the table.
    TableRequest,
    /// A table.
    TableUpdate(&'a Table),
    /// The owner of a block has closed its socket, or has ended.
    OwnerGone(u16),
    /// The network refused a packet (ICMP); the kernel does not say which member had sent it.
    PeerError(Endpoint, i32),
    /// Packets for the receiver.
    Packets(Packets<'a>),
}

/// A received message. It lies on the reader's stack, since nothing is allocated here.
#[allow(clippy::large_enum_variant)]
pub enum Received<'a> {
    /// As [`GroupMsg::TableRequest`].
    TableRequest,
    /// As [`GroupMsg::TableUpdate`].
    TableUpdate(Table),
    /// As [`GroupMsg::OwnerGone`].
    OwnerGone(u16),
    /// As [`GroupMsg::PeerError`].
    PeerError(Endpoint, i32),
    /// Requests the status of the receiver.
    StatusRequest,
    /// As [`GroupMsg::Packets`].
    Packets(Packets<'a>),
}

/// Result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The message is in the receiver's queue.
    Sent,
    /// The message is lost: the receiver's queue, or the sender's buffer, is full.
    NoRoom,
    /// No process holds the name.
    NoOwner,
}

/// Reads a message: the block that it names as its sender's, and the rest. `None`: other bytes.
pub fn parse(bytes: &[u8]) -> Option<(u16, Received<'_>)> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    if head[..4] != MAGIC || head[4] != VERSION {
        return None;
    }
    let received = match head[5] {
        kind::TABLE_REQUEST if rest.is_empty() => Received::TableRequest,
        kind::STATUS_REQUEST if rest.is_empty() => Received::StatusRequest,
        kind::OWNER_GONE => Received::OwnerGone(u16::from_le_bytes(rest.try_into().ok()?)),
        kind::TABLE_UPDATE => Received::TableUpdate(Table::parse(rest)?),
        kind::PEER_ERROR => {
            let h: &[u8; 28] = rest.try_into().ok()?;
            let errno = i32::from_le_bytes([h[24], h[25], h[26], h[27]]);
            Received::PeerError(endpoint(h.first_chunk()?), (errno > 0).then_some(errno)?)
        }
        kind::PACKETS => {
            let (h, data) = rest.split_first_chunk::<{ PACKETS_HEAD - HEAD }>()?;
            let u16_at = |i: usize| u16::from_le_bytes([h[i], h[i + 1]]);
            let src = endpoint(h.first_chunk()?);
            let (ecn, seg, first) = (h[22], u16_at(24), u16_at(26));
            if ecn > 3 || seg == 0 || data.is_empty() {
                return None;
            }
            let grh = Fields { traffic_class: h[23] & DSCP | ecn, ..Fields::default() };
            Received::Packets(Packets { src, seg, first, grh, data })
        }
        _ => return None,
    };
    Some((u16::from_le_bytes([head[6], head[7]]), received))
}

/// A message by which a process that owns no block requests a status.
pub(crate) fn status_request() -> [u8; HEAD] {
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, VERSION, kind::STATUS_REQUEST, 0xff, 0xff]
}

/// Reads an endpoint: address 16, zone 4, port 2.
fn endpoint(b: &[u8; 22]) -> Endpoint {
    let mut ip = [0; 16];
    ip.copy_from_slice(&b[..16]);
    Endpoint::new(
        ip,
        u32::from_le_bytes([b[16], b[17], b[18], b[19]]),
        u16::from_le_bytes([b[20], b[21]]),
    )
}

fn emit_endpoint(e: &Endpoint, to: &mut [u8]) {
    to[..16].copy_from_slice(&e.ip);
    to[16..20].copy_from_slice(&e.scope_id.to_le_bytes());
    to[20..22].copy_from_slice(&e.port.to_le_bytes());
}

/// Sends a message to a name. Never blocks.
pub(crate) fn send_to(
    from: RawFd,
    block: u16,
    to: &SocketPath,
    message: &GroupMsg<'_>,
) -> Delivery {
    let mut head = [0u8; PACKETS_HEAD];
    head[..4].copy_from_slice(&MAGIC);
    head[4] = VERSION;
    head[6..8].copy_from_slice(&block.to_le_bytes());
    let mut bytes = [0u8; table::BYTES];
    let (len, rest): (usize, &[u8]) = match message {
        GroupMsg::TableRequest => {
            head[5] = kind::TABLE_REQUEST;
            (HEAD, &[])
        }
        GroupMsg::OwnerGone(gone) => {
            head[5] = kind::OWNER_GONE;
            head[HEAD..HEAD + 2].copy_from_slice(&gone.to_le_bytes());
            (HEAD + 2, &[])
        }
        GroupMsg::TableUpdate(t) => {
            head[5] = kind::TABLE_UPDATE;
            let n = t.emit(&mut bytes);
            (HEAD, &bytes[..n])
        }
        GroupMsg::PeerError(dst, errno) => {
            head[5] = kind::PEER_ERROR;
            emit_endpoint(dst, &mut head[HEAD..]);
            head[HEAD + 24..].copy_from_slice(&errno.to_le_bytes());
            (PACKETS_HEAD, &[])
        }
        GroupMsg::Packets(p) => {
            head[5] = kind::PACKETS;
            emit_endpoint(&p.src, &mut head[HEAD..]);
            (head[30], head[31]) = (p.grh.traffic_class & !DSCP, p.grh.traffic_class & DSCP);
            head[32..34].copy_from_slice(&p.seg.to_le_bytes());
            head[34..36].copy_from_slice(&p.first.to_le_bytes());
            (PACKETS_HEAD, p.data)
        }
    };
    let mut iov = [
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: len },
        libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() },
    ];
    let (name, name_len) = to.parts();
    // SAFETY: zeroes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_name = name.cast_mut().cast();
    msg.msg_namelen = name_len;
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = iov.len() as _;
    // SAFETY: every pointer in `msg` leads to memory that lives through the call; sendmsg writes to
    // none of it.
    let n = unsafe { libc::sendmsg(from, &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if n >= 0 {
        return Delivery::Sent;
    }
    match errno() {
        libc::ECONNREFUSED | libc::ENOENT | libc::ENOTDIR | libc::EINVAL => Delivery::NoOwner,
        _ => Delivery::NoRoom,
    }
}

/// A bound socket for messages, and the lock of its name.
#[derive(Debug)]
pub struct GroupSocket {
    fd: Fd,
    lock: Lock,
}

impl GroupSocket {
    /// Takes the lock of a holder and binds its name for messages.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub(crate) fn open(
        socket_dir: &SocketDir,
        at: &Endpoint,
        holder: Holder,
    ) -> Result<GroupSocket> {
        let lock = Lock::take(socket_dir, at, holder)?;
        let fd = lock.bind(Role::Messages, libc::SOCK_DGRAM)?;
        set_option(fd.raw(), libc::SOL_SOCKET, libc::SO_PASSCRED, 1i32)?;
        Ok(GroupSocket { fd, lock })
    }

    /// The lock, for the holder's other names.
    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Readable when a message waits.
    pub fn fd(&self) -> RawFd {
        self.fd.raw()
    }

    /// Receives one message into `buf` and returns its length. 0: the message was another user's or
    /// too long, and was dropped. `None`: no message waits.
    ///
    /// If a message of packets is too long, its last packets are lost, like packets on a network.
    /// Their sender repeats them from the first lost one on, so each such message brings progress.
    pub fn receive(&self, buf: &mut [u8]) -> Option<usize> {
        receive(self.fd(), buf)
    }
}

/// As [`GroupSocket::receive`], for its descriptor.
pub fn receive(fd: RawFd, buf: &mut [u8]) -> Option<usize> {
    let mut control: rights::Ancillary = [const { MaybeUninit::uninit() }; _];
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: zeroes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control) as _;
    // SAFETY: every pointer in `msg` leads to a buffer that lives through the call and has the
    // length beside it.
    let n = unsafe { libc::recvmsg(fd, &mut msg, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    let len = usize::try_from(n).ok()?;
    // Only a kernel without the option that `bind` sets delivers any descriptor.
    rights::each_fd(&msg, drop);
    let whole = msg.msg_flags & libc::MSG_TRUNC == 0;
    Some(match is_from_trusted(&msg) {
        true if whole => len,
        true => whole_packets(buf),
        false => 0,
    })
}

/// The bytes of a message of packets up to the end of its last whole packet; 0: it has none, or is
/// no message of packets.
#[cold]
fn whole_packets(message: &[u8]) -> usize {
    match parse(message) {
        Some((_, Received::Packets(p))) => {
            let n = p.data.len() / usize::from(p.seg);
            if n == 0 {
                0
            } else {
                PACKETS_HEAD + n * usize::from(p.seg)
            }
        }
        _ => 0,
    }
}

/// Whether a received message is of a user that this process trusts.
fn is_from_trusted(msg: &libc::msghdr) -> bool {
    let mut trusted = false;
    // SAFETY: `msg` is as recvmsg left it, and its control buffer lives.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !cmsg.is_null() {
        // SAFETY: not null, so a whole header inside the control buffer.
        let head = unsafe { cmsg.read_unaligned() };
        // SAFETY: no pointers.
        let data = head.cmsg_len as usize - unsafe { libc::CMSG_LEN(0) } as usize;
        // SAFETY: as above.
        let at = unsafe { libc::CMSG_DATA(cmsg) };
        let is_sender =
            head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_CREDENTIALS;
        if is_sender && data >= size_of::<libc::ucred>() {
            // SAFETY: the kernel wrote that many bytes behind the header; they may be unaligned.
            let cred = unsafe { at.cast::<libc::ucred>().read_unaligned() };
            trusted = is_own_user(cred.uid);
        }
        // SAFETY: as above.
        cmsg = unsafe { libc::CMSG_NXTHDR(msg, cmsg) };
    }
    trusted
}

/// Takes the locks of `count` blocks in a row, the first block a multiple of `count`. Tries the
/// block `first * count` first, then upwards, and wraps around below `max`.
///
/// # Errors
/// [`Error::AddressInUse`]: none is free; [`Error::Os`].
pub(crate) fn claim_any(
    socket_dir: &SocketDir,
    at: &Endpoint,
    first: u16,
    count: u16,
    max: u16,
    sockets: &mut [Option<GroupSocket>],
) -> Result<u16> {
    let places = max / count;
    for k in 0..places {
        let block = (first + k) % places * count;
        if block == 0 {
            continue;
        }
        match claim(socket_dir, at, block, count, sockets) {
            Ok(()) => return Ok(block),
            Err(Error::AddressInUse) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Error::AddressInUse)
}

/// Takes the locks of exactly these blocks, or of none.
///
/// # Errors
/// [`Error::AddressInUse`]: one has an owner; [`Error::Os`].
pub(crate) fn claim(
    socket_dir: &SocketDir,
    at: &Endpoint,
    block: u16,
    count: u16,
    sockets: &mut [Option<GroupSocket>],
) -> Result<()> {
    for k in 0..count {
        match GroupSocket::open(socket_dir, at, Holder::Block(block + k)) {
            Ok(group_socket) => sockets[usize::from(k)] = Some(group_socket),
            Err(e) => {
                sockets.fill_with(|| None);
                return Err(e);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_testkit::descriptors::keep;
    use gdrcore_testkit::place::loopback;

    fn at(n: u8) -> Endpoint {
        Endpoint::v4(loopback(2, n), 4791)
    }

    fn group_socket(at: &Endpoint, block: u16) -> GroupSocket {
        GroupSocket::open(&SocketDir::open().unwrap(), at, Holder::Block(block)).unwrap()
    }

    fn name(at: &Endpoint, block: u16) -> SocketPath {
        SocketPath::new(&SocketDir::open().unwrap(), at, Holder::Block(block), Role::Messages)
    }

    /// Two packets of five bytes and one of one.
    fn sample() -> Packets<'static> {
        let src = Endpoint::v4([1, 2, 3, 4], 9);
        let grh = Fields { traffic_class: 0xbb, ..Fields::default() };
        Packets { src, seg: 5, first: 2, grh, data: b"hello world" }
    }

    #[test]
    fn a_request_for_a_status_names_no_block_and_has_nothing_behind_it() {
        let mut request = status_request().to_vec();
        assert!(matches!(parse(&request), Some((0xffff, Received::StatusRequest))));
        request.push(0);
        assert!(parse(&request).is_none());
    }

    #[test]
    fn of_a_message_that_is_too_long_the_first_packets_are_taken() {
        let at = at(4);
        let (a, b) = (group_socket(&at, 1), group_socket(&at, 2));
        let to = name(&at, 2);
        let packets = sample();
        for (room, left) in [(11, "hello world"), (10, "hello worl"), (9, "hello"), (4, "")] {
            assert_eq!(send_to(a.fd(), 1, &to, &GroupMsg::Packets(packets)), Delivery::Sent);
            let mut buf = vec![0; PACKETS_HEAD + room];
            let n = b.receive(&mut buf).unwrap();
            let data = match parse(&buf[..n]) {
                Some((1, Received::Packets(p))) => p.data,
                _ => b"",
            };
            assert_eq!(core::str::from_utf8(data), Ok(left), "room {room}");
        }
        // Other messages count as a whole only.
        assert_eq!(send_to(a.fd(), 1, &to, &GroupMsg::OwnerGone(3)), Delivery::Sent);
        assert_eq!(b.receive(&mut [0; HEAD + 1]), Some(0));
    }

    #[test]
    fn group_messages_arrive_as_sent() {
        let at = at(1);
        let (a, b) = (group_socket(&at, 1), group_socket(&at, 2));
        let to = name(&at, 2);
        let packets = sample();
        assert_eq!(send_to(a.fd(), 1, &to, &GroupMsg::Packets(packets)), Delivery::Sent);
        let mut buf = vec![0; message_max(64 << 10)];
        let n = b.receive(&mut buf).unwrap();
        assert!(matches!(parse(&buf[..n]), Some((1, Received::Packets(p))) if p == packets));
        let mut t = Table::EMPTY;
        t.begin_next_version(7);
        t.set(7, 3, 7..8);
        assert_eq!(send_to(a.fd(), 1, &to, &GroupMsg::TableUpdate(&t)), Delivery::Sent);
        let n = b.receive(&mut buf).unwrap();
        assert!(matches!(parse(&buf[..n]), Some((1, Received::TableUpdate(x)))
                if x.entries() == t.entries()));
        let dst = Endpoint::new([0xfd; 16], 0, 4791);
        assert_eq!(send_to(a.fd(), 1, &to, &GroupMsg::PeerError(dst, 111)), Delivery::Sent);
        let n = b.receive(&mut buf).unwrap();
        assert!(matches!(parse(&buf[..n]), Some((1, Received::PeerError(d, 111))) if d == dst));
        assert_eq!(b.receive(&mut buf), None);
        assert_eq!(send_to(a.fd(), 1, &name(&at, 3), &GroupMsg::TableRequest), Delivery::NoOwner);
        // Nobody reads this queue: messages that do not fit are lost, and no send waits.
        let lost = (0..100_000)
            .any(|_| send_to(a.fd(), 1, &to, &GroupMsg::TableRequest) == Delivery::NoRoom);
        assert!(lost);
    }

    #[test]
    fn other_bytes_are_refused() {
        let mut good = [0u8; PACKETS_HEAD + 3];
        good[..6].copy_from_slice(b"gdrm\x01\x04");
        good[32] = 3;
        assert!(parse(&good).is_some());
        for cut in 0..=PACKETS_HEAD {
            assert!(parse(&good[..cut]).is_none());
        }
        for (i, v) in [(0, 0), (4, 2), (5, 0), (5, 9), (30, 4), (32, 0)] {
            let mut bad = good;
            bad[i] = v;
            assert!(parse(&bad).is_none(), "{i}");
        }
        assert!(parse(b"gdrm\x01\x01\0\0").is_some());
        assert!(parse(b"gdrm\x01\x01\0\0x").is_none());
        assert!(parse(b"gdrm\x01\x02\0\0").is_none());
    }

    #[test]
    fn descriptors_that_come_along_are_refused_or_closed() {
        let _kept = keep();
        let at = at(2);
        let b = group_socket(&at, 1);
        let from = crate::local::socket(libc::SOCK_DGRAM).unwrap();
        let (name, len) = name(&at, 1).parts();
        // SAFETY: the name lives through the call.
        crate::sys::check(unsafe { libc::connect(from.raw(), name, len) }).unwrap();
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        crate::sys::check(unsafe {
            libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK)
        })
        .unwrap();
        let (read, write) = (Fd::from_call(ends[0]).unwrap(), Fd::from_call(ends[1]).unwrap());
        match crate::rights::send(from.raw(), b"gdrm\x01\x01\0\0", write.raw()) {
            // Since Linux 6.16 by the kernel.
            Err(Error::Access) => return assert_eq!(b.receive(&mut [0; 64]), None),
            other => other.unwrap(),
        }
        let mut buf = [0; 64];
        assert_eq!(b.receive(&mut buf), Some(8));
        drop(write);
        let mut byte = 0u8;
        // SAFETY: room for one byte.
        let n = unsafe { libc::read(read.raw(), (&raw mut byte).cast(), 1) };
        assert_eq!(n, 0, "nobody has the writing end any more");
    }

    #[test]
    fn blocks_are_claimed_once_and_together() {
        let at = at(3);
        let sockets = || [const { None::<GroupSocket> }; 4];
        let (mut a, mut b, mut c) = (sockets(), sockets(), sockets());
        let socket_dir = SocketDir::open().unwrap();
        claim(&socket_dir, &at, 5, 1, &mut a).unwrap();
        assert_eq!(claim(&socket_dir, &at, 4, 4, &mut b).unwrap_err(), Error::AddressInUse);
        assert!(b.iter().all(Option::is_none));
        assert_eq!(
            claim_any(&socket_dir, &at, 1, 4, 15, &mut b),
            Ok(8),
            "4 to 7 are not free, and neither is 0"
        );
        assert_eq!(claim_any(&socket_dir, &at, 5, 1, 15, &mut c), Ok(6));
        assert_eq!(
            claim_any(&socket_dir, &at, 1, 4, 11, &mut sockets()).unwrap_err(),
            Error::AddressInUse
        );
    }
}
