//! Sends one burst at once: by the connected socket, or by sendto.

use super::UdpPort;
use crate::port::Burst;
use crate::sys::errno;
use crate::udp::connected::{ConnectedSocket, CONNECT_AFTER, CONNECT_AFTER_MAX};
use crate::udp::MAX_SEGMENTS;
use gdrcore_core::roce::peer::{ConnectedFlow, PeerAddr};
use gdrcore_core::wire::icrc::IcrcFlow;

impl UdpPort {
    /// As [`UdpPort::tx_space`]; unless the batch must leave first, also the flow of the connected
    /// socket, for [`UdpPort::tx_connected`].
    #[inline]
    pub fn space_and_flow(&mut self) -> Option<(&mut [u8], Option<&ConnectedFlow>)> {
        let flow = self.connected.as_ref().filter(|_| self.tx.tail == 0).map(|c| &c.flow);
        Some((self.tx.space()?, flow))
    }

    /// Sends the filled burst by the connected socket. False: it was not sent, and its ICRCs are
    /// now those of the port's own socket; commit it and flush.
    #[inline(always)]
    pub fn tx_connected(&mut self, b: &Burst) -> bool {
        if let Some(connected) = &mut self.connected {
            let fits = b.len.wrapping_sub(1) < self.tx.burst
                && b.seg != 0
                && self.tx.used == 0
                && connected.flow.leads_to(&b.dst);
            if fits {
                // SAFETY: `len <= burst <= capacity`, initialised at carve; nothing else uses
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

    /// Closes the connected socket after a refusal, and recomputes the burst's ICRCs for the port's
    /// own socket. That one will be refused as well if the fault is not the connected socket's.
    #[cold]
    fn close_connected(&mut self, b: &Burst) {
        self.connected = None;
        self.lone_bursts = 0;
        let flow = IcrcFlow::from_gids(&self.local.ip, &b.dst.gid, self.local.port, b.dst.port);
        let Some(burst) =
            self.tx_space().and_then(|space| space.get_mut(..b.len)).filter(|_| b.seg != 0)
        else {
            return;
        };
        for (k, packet) in burst.chunks_mut(b.seg.into()).enumerate() {
            flow.append_icrc(k as u16, packet);
        }
    }

    /// Opens a connected socket to a peer of this host, or takes the resting one up again.
    #[cold]
    fn open_connected(&mut self, dst: &PeerAddr) {
        let leads = |c: &ConnectedSocket| c.flow.leads_to(dst);
        if !self.connected.as_ref().is_some_and(leads) && self.not_connectable != Some(*dst) {
            let rested = self.resting.take().filter(leads);
            let open = || ConnectedSocket::open(&self.local, dst, self.class);
            self.connected = rested.or_else(open);
            self.not_connectable = Some(*dst).filter(|_| self.connected.is_none());
        }
    }

    /// Lets the connected socket rest after a loss, because the peer may refuse its packets: longer
    /// each time, unless the peer has accepted many of them meanwhile.
    #[cold]
    pub fn doubt_connected(&mut self) {
        let Some(mut connected) = self.connected.take() else { return };
        self.connect_after = if connected.take_trust() {
            CONNECT_AFTER
        } else {
            CONNECT_AFTER_MAX.min(2 * self.connect_after)
        };
        self.lone_bursts = 0;
        self.resting = Some(connected);
    }

    /// Sends the filled burst at once if sendto can: the batch is empty, the destination is that of
    /// the last burst, and the segment size is the socket's own. False: nothing was sent; commit it
    /// and flush.
    #[inline]
    pub fn tx_now(&mut self, b: &Burst) -> bool {
        let tx = &self.tx;
        let known = matches!(&tx.first_dst, Some((dst, _)) if *dst == b.dst);
        let fits = b.len.wrapping_sub(1)
            < self.tx.burst.min(usize::from(b.seg) * usize::from(MAX_SEGMENTS));
        let is_free = tx.tail == 0 && tx.used == 0 && tx.refusers.is_empty();
        if !(known
            && fits
            && is_free
            && tx.default_segment.suits(b.len, b.seg)
            && self.send_first(b.len))
        {
            return false;
        }
        self.count_lone(&b.dst);
        true
    }

    /// Counts a burst that left alone for the same destination as the last one. After enough of
    /// them the destination gets a connected socket.
    #[inline]
    pub(super) fn count_lone(&mut self, dst: &PeerAddr) {
        if self.lone_bursts < self.connect_after {
            self.lone_bursts += 1;
            if self.lone_bursts == self.connect_after && self.gso {
                self.open_connected(dst);
            }
        }
    }

    /// Sends the first bytes of the buffer to the first address by sendto. False: nothing was sent.
    #[inline]
    pub(super) fn send_first(&mut self, len: usize) -> bool {
        let Some((_, sa_len)) = self.tx.first_dst else { return false };
        self.counters.tx_calls += 1;
        // SAFETY: the callers have checked that `len` is within the buffer; the first address is
        // initialised, and `sa_len` is its length. The kernel writes to neither.
        let rc = unsafe {
            let (bytes, sa) = (self.tx.buffer.cast(), self.tx.addrs.cast());
            libc::sendto(self.fd.raw(), bytes, len, libc::MSG_DONTWAIT, sa, sa_len)
        };
        rc >= 0 || self.sendto_refused(errno())
    }

    /// Handles an error of sendto. Always returns false: the burst is tried again with a msghdr.
    #[cold]
    fn sendto_refused(&mut self, e: i32) -> bool {
        if self.tx.default_segment.size != 0
            && matches!(e, libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP)
        {
            self.clear_default_segment();
        }
        // For lack of room, or interrupted: tried again as it is. Else the errno may be what an
        // ICMP message left for another destination, and this call has cleared it from the socket:
        // only its record is left.
        if !matches!(e, libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) {
            self.drain_errors();
        }
        false
    }
}
