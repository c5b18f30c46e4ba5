//! Sending: bursts are collected in one buffer and leave by one sendmmsg, each as one GSO message.
//!
//! A single burst leaves by sendto if possible, which is 0.1 to 0.2 us shorter than sendmsg: the
//! kernel need not fetch a header, a vector and ancillary data one after the other. Without
//! ancillary data its segment size has to be the socket's own ([`DefaultSegment`]).
//!
//! Traffic class and hop limit are always the socket's own, and are set when they change
//! (`header`). So bursts of one class cost nothing extra.

use super::{lines, Ancillary, Carve, UdpConfig, UdpPort, MAX_BURST, MAX_SEGMENTS};
use crate::addr::{endpoint, Endpoint, SockAddr};
use crate::port::{Burst, TxOutcome};
use crate::sys::errno;
use default_segment::DefaultSegment;
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::PeerAddr;
use heapless::HistoryBuf;

mod default_segment;
pub(super) mod header;
mod refusal;
mod single;

/// Most hosts that are remembered to refuse GSO. A further one replaces the oldest, whose refusal
/// is found again.
const REFUSERS: usize = 16;
/// Attempts at one message while it fails with errors of other destinations.
const TRIES: u8 = 8;

/// Bytes for the ancillary data of one message: the segment size.
const CONTROL: usize = 32;

/// One committed burst.
#[derive(Clone, Copy)]
struct Slot {
    dst: PeerAddr,
    off: u32,
    len: u32,
    seg: u16,
    /// Bytes that have left, if it leaves packet by packet.
    sent: u32,
    /// Failures so far.
    tries: u8,
    /// Each packet leaves by a call of its own: the destination, or this burst, was refused GSO.
    packet_by_packet: bool,
    /// The burst may leave by sendto, and its msghdr is not filled in.
    by_sendto: bool,
    /// It was tried by GSO, and refused.
    gso_refused: bool,
}

/// The transmit half of a port. Its arrays are in the caller's memory, with `batch` elements each.
pub(super) struct Tx {
    msgs: *mut libc::mmsghdr,
    iovs: *mut libc::iovec,
    addrs: *mut SockAddr,
    controls: *mut Ancillary<CONTROL>,
    slots: *mut Slot,
    buffer: *mut u8,
    capacity: usize,
    /// Most bytes of one burst; at most [`MAX_BURST`].
    pub(super) burst: usize,
    /// Bytes used, a multiple of ALIGN.
    used: usize,
    batch: usize,
    default_segment: DefaultSegment,
    /// The destination of the first address in `addrs`, which is of the port's family, and the
    /// address's length. While no burst waits, the socket has its class and hop limit.
    first_dst: Option<(PeerAddr, libc::socklen_t)>,
    /// The header fields of the socket's packets.
    header: header::SocketHeader,
    /// Slots `head..tail` wait for the kernel.
    head: usize,
    tail: usize,
    refusers: HistoryBuf<Endpoint, REFUSERS>,
}

impl Tx {
    const fn burst(cfg: &UdpConfig) -> usize {
        let bytes = cfg.burst_bytes as usize;
        if bytes < MAX_BURST {
            bytes
        } else {
            MAX_BURST
        }
    }

    /// One burst always fits: `tx_bytes` is at least `burst_bytes`.
    const fn capacity(cfg: &UdpConfig) -> usize {
        lines(cfg.tx_bytes as usize)
    }

    pub(super) const fn memsize(cfg: &UdpConfig) -> usize {
        let n = cfg.tx_batch as usize;
        lines(n * size_of::<libc::mmsghdr>())
            + lines(n * size_of::<libc::iovec>())
            + lines(n * size_of::<SockAddr>())
            + lines(n * size_of::<Ancillary<CONTROL>>())
            + lines(n * size_of::<Slot>())
            + Self::capacity(cfg)
    }

    /// # Safety
    /// As [`UdpPort::open`].
    pub(super) unsafe fn carve(cfg: &UdpConfig, carve: &mut Carve) -> Result<Tx> {
        let n = cfg.tx_batch as usize;
        let slot = Slot {
            dst: PeerAddr::default(),
            off: 0,
            len: 0,
            seg: 0,
            sent: 0,
            tries: 0,
            packet_by_packet: false,
            by_sendto: false,
            gso_refused: false,
        };
        // SAFETY: zeroes are valid for the C structs: null pointers and lengths of 0.
        let (msg, iov) =
            unsafe { (core::mem::zeroed::<libc::mmsghdr>(), core::mem::zeroed::<libc::iovec>()) };
        // SAFETY: the caller's memory is writable and ours, for all five.
        let (msgs, iovs, addrs, controls, slots) = unsafe {
            (
                carve.array(n, msg)?,
                carve.array(n, iov)?,
                carve.array(n, SockAddr::zeroed())?,
                carve.array(n, Ancillary([0; CONTROL]))?,
                carve.array(n, slot)?,
            )
        };
        let capacity = Self::capacity(cfg);
        let buffer = carve.bytes(capacity)?;
        // SAFETY: carved just now with this size; zeroed so that `tx_space` can hand it out as a
        // slice.
        unsafe { buffer.write_bytes(0, capacity) };
        Ok(Tx {
            msgs,
            iovs,
            addrs,
            controls,
            slots,
            buffer,
            capacity,
            burst: Self::burst(cfg),
            used: 0,
            default_segment: DefaultSegment::default(),
            first_dst: None,
            header: header::SocketHeader::new(cfg.traffic_class),
            batch: n,
            head: 0,
            tail: 0,
            refusers: HistoryBuf::new(),
        })
    }

    fn slot(&mut self, i: usize) -> &mut Slot {
        debug_assert!(i < self.batch);
        // SAFETY: callers pass indexes in `head..tail <= batch`, all initialised by `carve`.
        unsafe { &mut *self.slots.add(i) }
    }

    /// Whether a burst may leave by the same call as the burst before it.
    fn follows(&mut self, i: usize) -> bool {
        let Slot { packet_by_packet, dst, .. } = *self.slot(i);
        !packet_by_packet && self.header.suits(&dst)
    }

    fn refuses(&self, dst: &Endpoint) -> bool {
        self.refusers.iter().any(|r| r.same_host(dst))
    }

    fn remember_refusal(&mut self, dst: &Endpoint) {
        if !self.refuses(dst) {
            self.refusers.write(*dst);
        }
    }

    /// Writes the first address, which stays for later bursts.
    #[inline(never)]
    fn set_first_address(&mut self, dst: &PeerAddr) {
        let (sa, sa_len) = self.header.address(dst);
        // SAFETY: the first of `batch` addresses, `batch` being at least 1.
        unsafe { *self.addrs = sa };
        self.first_dst = Some((*dst, sa_len));
    }

    /// [`UdpPort::tx_space`].
    #[inline]
    pub(super) fn space(&mut self) -> Option<&mut [u8]> {
        if self.tail == self.batch || self.capacity - self.used < self.burst {
            return None;
        }
        // SAFETY: `used + burst <= capacity`, initialised at carve, and the kernel never writes
        // there.
        Some(unsafe { core::slice::from_raw_parts_mut(self.buffer.add(self.used), self.burst) })
    }

    fn write_headers(&mut self, i: usize) {
        self.slot(i).by_sendto = false;
        let s = *self.slot(i);
        let many = s.len > u32::from(s.seg) && !s.packet_by_packet;
        // Ancillary data for a burst to be segmented, or to override the socket's own segment size.
        // 0: no segmentation.
        let size = if many { s.seg } else { 0 };
        let gso = many || self.default_segment.size != 0;
        let (sa, sa_len) = self.header.address(&s.dst);
        // SAFETY: `i < batch`, the length of every array, and all were initialised;
        // `off + len <= capacity`.
        unsafe {
            *self.addrs.add(i) = sa;
            *self.iovs.add(i) = libc::iovec {
                iov_base: self.buffer.add(s.off as usize).cast(),
                iov_len: s.len as usize,
            };
            let hdr = &mut (*self.msgs.add(i)).msg_hdr;
            hdr.msg_name = self.addrs.add(i).cast();
            hdr.msg_namelen = sa_len;
            hdr.msg_iov = self.iovs.add(i);
            hdr.msg_iovlen = 1;
            hdr.msg_flags = 0;
            if gso {
                let room = self.controls.add(i);
                hdr.msg_control = room.cast();
                hdr.msg_controllen = libc::CMSG_SPACE(2) as _;
                let cmsg = room.cast::<libc::cmsghdr>();
                (*cmsg).cmsg_level = libc::SOL_UDP;
                (*cmsg).cmsg_type = libc::UDP_SEGMENT;
                (*cmsg).cmsg_len = libc::CMSG_LEN(2) as _;
                libc::CMSG_DATA(cmsg).cast::<u16>().write_unaligned(size);
            } else {
                hdr.msg_control = core::ptr::null_mut();
                hdr.msg_controllen = 0;
            }
        }
    }
}

impl UdpPort {
    /// Room for one burst, always as many bytes as a burst may have. `None`: the batch is full,
    /// flush first.
    #[inline]
    pub fn tx_space(&mut self) -> Option<&mut [u8]> {
        self.tx.space()
    }

    /// Adds the filled burst to the batch. A burst that cannot be sent at all (no bytes, more than
    /// the room, another address family) becomes an error of its destination.
    #[inline]
    pub fn tx_commit(&mut self, b: Burst) {
        let fits = b.len != 0
            && b.len <= self.tx.burst
            && self.tx.tail < self.tx.batch
            && self.tx.used + b.len <= self.tx.capacity;
        let known = matches!(&self.tx.first_dst, Some((dst, _)) if *dst == b.dst);
        if !fits || b.seg == 0 || !known && endpoint(&b.dst).is_v4() != self.local.is_v4() {
            let errno = if fits { libc::EAFNOSUPPORT } else { libc::EMSGSIZE };
            self.fail(endpoint(&b.dst), errno, false);
            return;
        }
        let many = b.len > usize::from(b.seg);
        let too_many =
            many && b.len > usize::from(b.seg) * usize::from(self.max_segments(&endpoint(&b.dst)));
        let i = self.tx.tail;
        // `len <= burst` and `used <= capacity <= 16 MiB`: both fit.
        let (off, len) = (self.tx.used as u32, b.len as u32);
        if i == 0 && !known {
            self.tx.set_first_address(&b.dst);
            self.lone_bursts = 0;
        }
        let by_sendto = i == 0
            && !too_many
            && self.tx.default_segment.suits(b.len, b.seg)
            && (known || self.tx.header.suits(&b.dst));
        let slot = Slot {
            dst: b.dst,
            off,
            len,
            seg: b.seg,
            sent: 0,
            tries: 0,
            packet_by_packet: too_many,
            by_sendto,
            gso_refused: false,
        };
        *self.tx.slot(i) = slot;
        if !by_sendto {
            self.tx.write_headers(i);
        }
        self.tx.used += lines(b.len);
        self.tx.tail += 1;
    }

    /// Sends the batch. Cost: one system call, unless the kernel refuses something.
    #[inline]
    pub fn tx_flush(&mut self) -> TxOutcome {
        if self.tx.head == 0 && self.tx.tail == 1 {
            let Slot { by_sendto, len, .. } = *self.tx.slot(0);
            if by_sendto && self.send_first(len as usize) {
                self.tx.tail = 0;
                self.tx.used = 0;
                return TxOutcome::Sent;
            }
        }
        self.flush_all()
    }

    #[inline(never)]
    fn flush_all(&mut self) -> TxOutcome {
        if self.tx.head < self.tx.tail && self.tx.slot(0).by_sendto {
            self.tx.write_headers(0);
        }
        while self.tx.head < self.tx.tail {
            let head = self.tx.head;
            if !self.set_header(head) {
                continue;
            }
            if self.tx.slot(head).packet_by_packet {
                if !self.send_singly(head) {
                    return self.count_full();
                }
                continue;
            }
            let run = (head..self.tx.tail).take_while(|&i| self.tx.follows(i)).count();
            if run == 1 && self.tx.tail == head + 1 {
                self.adapt_default_segment(head);
            }
            self.counters.tx_calls += 1;
            match usize::try_from(self.send_run(head, run)) {
                Ok(n) => {
                    if self.tx.tail == 1 {
                        let dst = self.tx.slot(0).dst;
                        self.count_lone(&dst);
                    }
                    self.tx.head += n.clamp(1, run);
                    if n < run {
                        // The next message failed and its errno is lost. If ICMP left the errno,
                        // only the record shows it; if the message itself is at fault, it will fail
                        // again.
                        self.drain_errors();
                    }
                }
                Err(_) => {
                    if !self.on_refusal(head, errno()) {
                        return self.count_full();
                    }
                }
            }
        }
        self.tx.head = 0;
        self.tx.tail = 0;
        self.tx.used = 0;
        TxOutcome::Sent
    }

    /// Sends `run` messages from `head` on; returns the number that left, or the negative errno.
    #[inline]
    fn send_run(&mut self, head: usize, run: usize) -> i32 {
        // SAFETY: `head + run <= tail <= batch`, the length of the array.
        let msgs = unsafe { self.tx.msgs.add(head) };
        if run > 1 {
            let now = libc::MSG_DONTWAIT as _;
            // SAFETY: `run` initialised headers; the buffers that they name live in the caller's
            // memory.
            return unsafe { libc::sendmmsg(self.fd.raw(), msgs, run as u32, now) };
        }
        // SAFETY: as above, for one.
        let rc =
            unsafe { libc::sendmsg(self.fd.raw(), &raw const (*msgs).msg_hdr, libc::MSG_DONTWAIT) };
        if rc < 0 {
            -1
        } else {
            1
        }
    }

    /// Whether committed bursts wait for a flush.
    #[cfg(test)]
    pub(super) fn tx_pending(&self) -> bool {
        self.tx.head < self.tx.tail
    }

    /// Most packets of one burst to `dst`: 1 where segmentation was refused, else 64.
    #[inline]
    pub fn max_segments(&self, dst: &Endpoint) -> u16 {
        if self.gso && (self.tx.refusers.is_empty() || !self.tx.refuses(dst)) {
            MAX_SEGMENTS
        } else {
            1
        }
    }

    fn count_full(&mut self) -> TxOutcome {
        self.counters.tx_full += 1;
        TxOutcome::Full
    }
}
