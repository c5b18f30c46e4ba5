//! Sending: bursts are collected in one buffer and leave by one sendmmsg, each as one GSO message.
//!
//! A single burst leaves by sendto where it can. That is 0.1 to 0.2 us shorter than sendmsg, since
//! the kernel need not fetch a header, a vector and ancillary data one after the other. Its segment
//! size then is the socket's own ([`DefaultSegment`]).

use super::{lines, Carve, UdpConfig, UdpPort, MAX_BURST, MAX_SEGMENTS};
use crate::addr::{Endpoint, SockAddr};
use crate::port::{Burst, ErrorKind, PortError, TxOutcome};
use crate::sys::{errno, set_option};
use gdrcore_core::error::Result;
use gdrcore_core::wire::icrc::Flow;

/// Hosts remembered to refuse GSO. A further one replaces the oldest, which is found out again.
const REFUSERS: usize = 16;
/// Attempts at one message while the kernel reports other destinations' errors by it.
const TRIES: u8 = 8;

/// Ancillary data of one message: the segment size.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 32]);

/// The socket's own segment size (UDP_SEGMENT as an option): a longer datagram without ancillary
/// data is segmented by it. A program that exchanges messages of one size sends bursts of one
/// segment size.
///
/// With a size set, the kernel checks every datagram as one to be segmented: whether the link can,
/// and whether a segment fits its MTU. So the size stays within [`DefaultSegment::SIZES`], and the
/// first refusal clears it for good.
#[derive(Clone, Copy, Default)]
struct DefaultSegment {
    /// 0: none.
    size: u16,
    /// The size that the last bursts needed instead, and their number.
    wanted: u16,
    times: u8,
    /// The kernel has refused a send meanwhile.
    off: bool,
}

impl DefaultSegment {
    /// From the longest datagram that may be sent past the port, to what fits any link.
    const SIZES: core::ops::RangeInclusive<u16> = super::SMALL as u16..=500;
    /// Bursts in a row that change the size.
    const TIMES: u8 = 16;

    /// Whether a burst is segmented right without ancillary data.
    #[inline]
    fn suits(&self, len: usize, seg: u16) -> bool {
        let own = usize::from(self.size);
        if len > usize::from(seg) {
            seg == self.size && seg != 0
        } else {
            own == 0 || len <= own
        }
    }
}

/// One committed burst.
#[derive(Clone, Copy)]
struct Slot {
    dst: Endpoint,
    off: u32,
    len: u32,
    seg: u16,
    /// Bytes that left already, packet by packet.
    done: u32,
    /// Failures of this message so far.
    tries: u8,
    /// Send packet by packet.
    single: bool,
    /// The kernel's headers are not written: it may leave by sendto.
    plain: bool,
    /// GSO was tried and refused for this burst.
    refused: bool,
}

/// The transmit half of a port. The pointers lead into the caller's memory.
pub(super) struct Tx {
    msgs: *mut libc::mmsghdr,
    iovs: *mut libc::iovec,
    addrs: *mut SockAddr,
    controls: *mut Control,
    slots: *mut Slot,
    buffer: *mut u8,
    capacity: usize,
    /// Bytes used, a multiple of ALIGN.
    used: usize,
    batch: usize,
    default_segment: DefaultSegment,
    /// Endpoint of the first address in `addrs`; its family is the port's.
    first: Option<(Endpoint, libc::socklen_t)>,
    /// Slots `head..tail` wait for the kernel.
    head: usize,
    tail: usize,
    refusers: [Endpoint; REFUSERS],
    refusers_len: usize,
    refusers_next: usize,
}

impl Tx {
    const fn capacity(cfg: &UdpConfig) -> usize {
        let bytes = lines(cfg.tx_bytes as usize);
        if bytes < MAX_BURST {
            MAX_BURST
        } else {
            bytes
        }
    }

    pub(super) const fn memsize(cfg: &UdpConfig) -> usize {
        let n = cfg.tx_batch as usize;
        lines(n * size_of::<libc::mmsghdr>())
            + lines(n * size_of::<libc::iovec>())
            + lines(n * size_of::<SockAddr>())
            + lines(n * size_of::<Control>())
            + lines(n * size_of::<Slot>())
            + Self::capacity(cfg)
    }

    /// # Safety
    /// As [`UdpPort::open`].
    pub(super) unsafe fn carve(cfg: &UdpConfig, carve: &mut Carve) -> Result<Tx> {
        let n = cfg.tx_batch as usize;
        let slot = Slot {
            dst: Endpoint::default(),
            off: 0,
            len: 0,
            seg: 0,
            done: 0,
            tries: 0,
            single: false,
            plain: false,
            refused: false,
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
                carve.array(n, Control([0; 32]))?,
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
            used: 0,
            default_segment: DefaultSegment::default(),
            first: None,
            batch: n,
            head: 0,
            tail: 0,
            refusers: [Endpoint::default(); REFUSERS],
            refusers_len: 0,
            refusers_next: 0,
        })
    }

    fn slot(&mut self, i: usize) -> &mut Slot {
        debug_assert!(i < self.batch);
        // SAFETY: callers pass indexes in `head..tail <= batch`, all initialised by `carve`.
        unsafe { &mut *self.slots.add(i) }
    }

    fn refuses(&self, dst: &Endpoint) -> bool {
        self.refusers[..self.refusers_len].iter().any(|r| r.same_host(dst))
    }

    fn remember_refusal(&mut self, dst: &Endpoint) {
        if !self.refuses(dst) {
            self.refusers[self.refusers_next] = *dst;
            self.refusers_next = (self.refusers_next + 1) % REFUSERS;
            self.refusers_len = (self.refusers_len + 1).min(REFUSERS);
        }
    }

    /// Writes the first address, which stays for later bursts.
    #[inline(never)]
    fn set_first_address(&mut self, dst: &Endpoint) {
        let (sa, sa_len) = dst.to_sockaddr();
        // SAFETY: the first of `batch` addresses, `batch` being at least 1.
        unsafe { *self.addrs = sa };
        self.first = Some((*dst, sa_len));
    }

    /// Writes the kernel's headers of a slot.
    fn write_headers(&mut self, i: usize) {
        self.slot(i).plain = false;
        let s = *self.slot(i);
        let many = s.len > u32::from(s.seg) && !s.single;
        // Ancillary data, unless the socket has no segment size of its own. 0: no segmentation.
        let size = if many { s.seg } else { 0 };
        let gso = many || self.default_segment.size != 0;
        let (sa, sa_len) = s.dst.to_sockaddr();
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
    /// Room for one burst, always [`MAX_BURST`] bytes. `None`: the batch is full, flush first.
    #[inline]
    pub fn tx_space(&mut self) -> Option<&mut [u8]> {
        let tx = &mut self.tx;
        if tx.tail == tx.batch || tx.capacity - tx.used < MAX_BURST {
            return None;
        }
        // SAFETY: `used + MAX_BURST <= capacity`, initialised at carve, and the kernel never writes
        // there.
        Some(unsafe { core::slice::from_raw_parts_mut(tx.buffer.add(tx.used), MAX_BURST) })
    }

    /// Adds what was filled to the batch. A burst that cannot be sent at all (no bytes, more than
    /// the room given, another address family) becomes an error of its destination.
    #[inline]
    pub fn tx_commit(&mut self, b: Burst) {
        let fits = b.len != 0
            && b.len <= MAX_BURST
            && self.tx.tail < self.tx.batch
            && self.tx.used + b.len <= self.tx.capacity;
        let known = matches!(&self.tx.first, Some((dst, _)) if *dst == b.dst);
        if !fits || b.seg == 0 || !known && b.dst.is_v4() != self.local.is_v4() {
            self.fail(b.dst, if fits { libc::EAFNOSUPPORT } else { libc::EMSGSIZE });
            return;
        }
        let many = b.len > usize::from(b.seg);
        let too_many = many && b.len > usize::from(b.seg) * usize::from(self.max_segments(&b.dst));
        let i = self.tx.tail;
        // `len <= MAX_BURST` and `used <= capacity <= 16 MiB`: both fit.
        let (off, len) = (self.tx.used as u32, b.len as u32);
        if i == 0 && !known {
            self.tx.set_first_address(&b.dst);
        }
        let plain = i == 0 && !too_many && self.tx.default_segment.suits(b.len, b.seg);
        let slot = Slot {
            dst: b.dst,
            off,
            len,
            seg: b.seg,
            done: 0,
            tries: 0,
            single: too_many,
            plain,
            refused: false,
        };
        *self.tx.slot(i) = slot;
        if !plain {
            self.tx.write_headers(i);
        }
        self.tx.used += lines(b.len);
        self.tx.tail += 1;
    }

    /// Destination, flow and next identification of the connected socket, for
    /// [`UdpPort::tx_connected`].
    #[inline]
    pub fn connected(&self) -> Option<(Endpoint, Flow, u16)> {
        let connected = self.connected.as_ref().filter(|_| self.tx.tail == 0)?;
        Some((connected.dst, connected.flow, connected.ident))
    }

    /// Sends what was filled by the connected socket. False: it was not sent, and has the ICRC of
    /// the port's own socket now: commit it and flush.
    #[inline]
    pub fn tx_connected(&mut self, b: &Burst) -> bool {
        if let Some(connected) = &mut self.connected {
            let fits = b.len.wrapping_sub(1) < MAX_BURST
                && b.seg != 0
                && self.tx.used == 0
                && connected.dst == b.dst;
            if fits {
                // SAFETY: `len <= MAX_BURST <= capacity`, initialised at carve; nobody else uses
                // the buffer now.
                let burst = unsafe { core::slice::from_raw_parts(self.tx.buffer, b.len) };
                self.counters.tx_calls += 1;
                if connected.send(burst, b.seg) {
                    return true;
                }
            }
        }
        self.close_connected(b);
        false
    }

    /// Closes the connected socket after a refusal; the port's own socket learns the same error
    /// when it tries. Computes the ICRC of the burst anew.
    #[cold]
    fn close_connected(&mut self, b: &Burst) {
        self.connected = None;
        self.lone_bursts = 0;
        let flow = Flow::from_gids(&self.local.ip, &b.dst.ip, self.local.port, b.dst.port);
        let Some(burst) =
            self.tx_space().and_then(|space| space.get_mut(..b.len)).filter(|_| b.seg != 0)
        else {
            return;
        };
        for (k, packet) in burst.chunks_mut(b.seg.into()).enumerate() {
            flow.append_icrc(k as u16, packet);
        }
    }

    /// Opens a connected socket to a peer, if that is of this host.
    #[cold]
    fn open_connected(&mut self, dst: &Endpoint) {
        if self.not_connectable != Some(*dst) {
            self.connected = super::connected::ConnectedSocket::open(&self.local, dst, self.class);
            self.not_connectable = Some(*dst).filter(|_| self.connected.is_none());
        }
    }

    /// Sends at once what was filled, where one call does it: to the destination of the last burst,
    /// with the socket's own segment size, and nothing before it in the batch. False: nothing was
    /// sent; commit it and flush.
    #[inline]
    pub fn tx_now(&mut self, b: &Burst) -> bool {
        let tx = &self.tx;
        let known = matches!(&tx.first, Some((dst, _)) if *dst == b.dst);
        let fits =
            b.len.wrapping_sub(1) < MAX_BURST.min(usize::from(b.seg) * usize::from(MAX_SEGMENTS));
        let calm = tx.tail == 0 && tx.used == 0 && tx.refusers_len == 0;
        if !(known
            && fits
            && calm
            && tx.default_segment.suits(b.len, b.seg)
            && self.send_first(b.len))
        {
            self.lone_bursts = 0;
            return false;
        }
        if self.lone_bursts < super::connected::CONNECT_AFTER {
            self.lone_bursts += 1;
            if self.lone_bursts == super::connected::CONNECT_AFTER && self.gso {
                self.open_connected(&b.dst);
            }
        }
        true
    }

    /// Sends the batch. Cost: one system call, unless the kernel refuses something.
    #[inline]
    pub fn tx_flush(&mut self) -> TxOutcome {
        if self.tx.head == 0 && self.tx.tail == 1 {
            let Slot { plain, len, .. } = *self.tx.slot(0);
            if plain && self.send_first(len as usize) {
                self.tx.tail = 0;
                self.tx.used = 0;
                return TxOutcome::Sent;
            }
        }
        self.flush_all()
    }

    #[inline(never)]
    fn flush_all(&mut self) -> TxOutcome {
        if self.tx.head < self.tx.tail && self.tx.slot(0).plain {
            self.tx.write_headers(0);
        }
        while self.tx.head < self.tx.tail {
            let head = self.tx.head;
            if self.tx.slot(head).single {
                if !self.send_singly(head) {
                    return self.full();
                }
                continue;
            }
            let run = (head..self.tx.tail).take_while(|&i| !self.tx.slot(i).single).count();
            if run == 1 && self.tx.tail == head + 1 {
                self.adapt_default_segment(head);
            }
            self.counters.tx_calls += 1;
            match usize::try_from(self.send_run(head, run)) {
                Ok(n) => {
                    self.tx.head += n.clamp(1, run);
                    if n < run {
                        // The next message failed and its errno is lost. If ICMP left the errno,
                        // only the record tells; if the message itself is at fault, it will fail
                        // again.
                        self.drain_errors();
                    }
                }
                Err(_) => {
                    if !self.on_refusal(head, errno()) {
                        return self.full();
                    }
                }
            }
        }
        self.tx.head = 0;
        self.tx.tail = 0;
        self.tx.used = 0;
        TxOutcome::Sent
    }

    /// Sends `run` messages from `head` on; the number that left, or negative with errno.
    #[inline]
    fn send_run(&mut self, head: usize, run: usize) -> i32 {
        // SAFETY: `head + run <= tail <= batch`, the length of the array.
        let msgs = unsafe { self.tx.msgs.add(head) };
        if run > 1 {
            // SAFETY: `run` initialised headers; the buffers that they name live in the caller's
            // memory.
            return unsafe { libc::sendmmsg(self.fd.raw(), msgs, run as u32, libc::MSG_DONTWAIT) };
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

    /// Sends the first bytes of the buffer to the first address. False: they were not sent.
    #[inline]
    fn send_first(&mut self, len: usize) -> bool {
        let Some((_, sa_len)) = self.tx.first else { return false };
        self.counters.tx_calls += 1;
        // SAFETY: the callers have seen that `len` is within the buffer; the first address is
        // initialised, and `sa_len` its length. The kernel writes to neither.
        let rc = unsafe {
            let (bytes, sa) = (self.tx.buffer.cast(), self.tx.addrs.cast());
            libc::sendto(self.fd.raw(), bytes, len, libc::MSG_DONTWAIT, sa, sa_len)
        };
        rc >= 0 || self.plain_refused(errno())
    }

    /// Handles the error of a send without headers. False: it is to be tried with them.
    #[cold]
    fn plain_refused(&mut self, e: i32) -> bool {
        if self.tx.default_segment.size != 0
            && matches!(e, libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP)
        {
            self.clear_default_segment();
        }
        // Room and interruptions are tried once more. An error that another destination left is
        // reported by this call alone, so its record is taken here.
        if !matches!(e, libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) {
            self.drain_errors();
        }
        false
    }

    /// Clears the socket's own segment size for good.
    #[cold]
    fn clear_default_segment(&mut self) {
        self.tx.default_segment.off = true;
        if self.tx.default_segment.size != 0
            && set_option(self.fd.raw(), libc::SOL_UDP, libc::UDP_SEGMENT, 0i32).is_ok()
        {
            self.tx.default_segment.size = 0;
        }
    }

    /// Looks at a single burst that needs ancillary data: after some of one kind the socket's own
    /// segment size becomes theirs.
    fn adapt_default_segment(&mut self, i: usize) {
        let s = *self.tx.slot(i);
        let size = if s.len > u32::from(s.seg) { s.seg } else { 0 };
        let default_segment = &mut self.tx.default_segment;
        if default_segment.off
            || !self.gso
            || size == default_segment.size
            || size != 0 && !DefaultSegment::SIZES.contains(&size)
        {
            return;
        }
        default_segment.times =
            if default_segment.wanted == size { default_segment.times + 1 } else { 1 };
        default_segment.wanted = size;
        if default_segment.times == DefaultSegment::TIMES {
            default_segment.times = 0;
            // The ancillary data of this burst is right under either size.
            if set_option(self.fd.raw(), libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(size)).is_ok()
            {
                self.tx.default_segment.size = size;
                self.tx.write_headers(i);
            } else {
                self.tx.default_segment.off = true;
            }
        }
    }

    /// Whether committed bursts wait for a flush.
    #[inline]
    pub fn tx_pending(&self) -> bool {
        self.tx.head < self.tx.tail
    }

    /// Most packets of one burst to `dst`: 1 where segmentation was refused, else 64.
    #[inline]
    pub fn max_segments(&self, dst: &Endpoint) -> u16 {
        if self.gso && (self.tx.refusers_len == 0 || !self.tx.refuses(dst)) {
            MAX_SEGMENTS
        } else {
            1
        }
    }

    fn full(&mut self) -> TxOutcome {
        self.counters.tx_full += 1;
        TxOutcome::Full
    }

    /// Decides on message `i`, whose send failed with `e`. False: stop, the kernel has no room.
    fn on_refusal(&mut self, i: usize, e: i32) -> bool {
        match e {
            // ENOBUFS: the device's queue is full.
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => return false,
            libc::EINTR => return true,
            _ => {}
        }
        let icmp = self.drain_errors();
        let s = self.tx.slot(i);
        s.tries += 1;
        if s.tries == 1 || (icmp > 0 && s.tries < TRIES) {
            return true;
        }
        let (dst, many) = (s.dst, s.len > u32::from(s.seg));
        if many && !s.single && matches!(e, libc::EIO | libc::EINVAL | libc::EOPNOTSUPP) {
            // The segmentation may be what is refused; the single packets will tell.
            s.single = true;
            s.refused = true;
            s.tries = 0;
            self.clear_default_segment();
            return true;
        }
        self.counters.send_err += 1;
        // An error that ICMP has left is not the kernel's own refusal: any host can send ICMP, all
        // the time.
        let kind = match e {
            libc::EMSGSIZE => ErrorKind::Mtu,
            _ if icmp > 0 || !self.has_room_for_records() => ErrorKind::Icmp,
            _ => ErrorKind::Send,
        };
        self.report(PortError { dst, errno: e, kind, mtu: 0 });
        self.tx.head += 1;
        true
    }

    /// Sends burst `i` packet by packet. False: the kernel has no room; what left is remembered.
    fn send_singly(&mut self, i: usize) -> bool {
        if self.tx.default_segment.size != 0 {
            self.clear_default_segment();
        }
        loop {
            let s = *self.tx.slot(i);
            if s.done >= s.len {
                if s.refused {
                    // Every packet was sent on its own, so the segmentation was refused.
                    self.tx.remember_refusal(&s.dst);
                    self.counters.gso_refused += 1;
                }
                self.tx.head += 1;
                return true;
            }
            let n = (s.len - s.done).min(u32::from(s.seg));
            // SAFETY: `off + done + n <= off + len <= capacity`; nobody else uses the buffer now.
            let packet = unsafe {
                core::slice::from_raw_parts_mut(
                    self.tx.buffer.add((s.off + s.done) as usize),
                    n as usize,
                )
            };
            if s.done > 0 {
                rewrite_icrc(&self.local, &s.dst, packet);
            }
            let (sa, sa_len) = s.dst.to_sockaddr();
            self.counters.tx_calls += 1;
            // SAFETY: packet and address are live and described by their lengths.
            let rc = unsafe {
                libc::sendto(
                    self.fd.raw(),
                    packet.as_ptr().cast(),
                    packet.len(),
                    libc::MSG_DONTWAIT,
                    (&raw const sa).cast(),
                    sa_len,
                )
            };
            if rc >= 0 {
                let slot = self.tx.slot(i);
                slot.done += n;
                slot.tries = 0;
                continue;
            }
            if !self.on_refusal(i, errno()) {
                return false;
            }
            if self.tx.head > i {
                // `on_refusal` has given the burst up.
                return true;
            }
        }
    }

    fn fail(&mut self, dst: Endpoint, e: i32) {
        self.counters.send_err += 1;
        let kind = if e == libc::EMSGSIZE { ErrorKind::Mtu } else { ErrorKind::Send };
        self.report(PortError { dst, errno: e, kind, mtu: 0 });
    }
}

/// Rewrites the ICRC of a packet that leaves alone: as the k-th of a GSO send it had identification
/// k, alone it has 0.
fn rewrite_icrc(local: &Endpoint, dst: &Endpoint, packet: &mut [u8]) {
    if local.is_v4() {
        Flow::from_gids(&local.ip, &dst.ip, local.port, dst.port).append_icrc(0, packet);
    }
}
