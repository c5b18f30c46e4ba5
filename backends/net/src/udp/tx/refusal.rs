//! Handles refused sends: retries, bursts without GSO, and errors of single destinations.

use super::{UdpPort, TRIES};
use crate::addr::{endpoint, Endpoint};
use crate::port::{ErrorKind, PortError};
use crate::sys::errno;
use gdrcore_core::wire::icrc::Flow;

/// Who has refused a send. An error that an ICMP message left is not the kernel's own refusal: any
/// host can send ICMP, at any time. `may_be_icmp`: an ICMP message has come, or could have been
/// lost.
fn kind_of(errno: i32, may_be_icmp: impl FnOnce() -> bool) -> ErrorKind {
    match errno {
        libc::EMSGSIZE => ErrorKind::Mtu,
        // No ICMP message becomes this errno: it comes from this host's firewall, which may also
        // send an ICMP message.
        libc::EPERM => ErrorKind::Send,
        _ if may_be_icmp() => ErrorKind::Icmp,
        _ => ErrorKind::Send,
    }
}

impl UdpPort {
    /// Decides on message `i`, whose send failed with `e`. Returns false to stop: the kernel has no
    /// room.
    pub(super) fn on_refusal(&mut self, i: usize, e: i32) -> bool {
        match e {
            // ENOBUFS: the device's queue is full.
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => return false,
            libc::EINTR => return true,
            libc::EINVAL if self.gives_up_labels(i) => return true,
            _ => {}
        }
        let icmp = self.drain_errors();
        let s = self.tx.slot(i);
        s.tries += 1;
        if s.tries == 1 || (icmp > 0 && s.tries < TRIES) {
            return true;
        }
        let (dst, many) = (endpoint(&s.dst), s.len > u32::from(s.seg));
        if many && !s.single && matches!(e, libc::EIO | libc::EINVAL | libc::EOPNOTSUPP) {
            // The kernel may have refused GSO: packets that are sent one by one show whether it
            // has.
            s.single = true;
            s.refused = true;
            s.tries = 0;
            self.clear_default_segment();
            return true;
        }
        self.counters.send_err += 1;
        let kind = kind_of(e, || icmp > 0 || !self.has_room_for_records());
        self.report(PortError { dst, errno: e, kind, mtu: 0 });
        self.tx.head += 1;
        true
    }

    /// Sends burst `i` packet by packet. Returns false if the kernel has no room; the packets that
    /// left are remembered.
    pub(super) fn send_singly(&mut self, i: usize) -> bool {
        if self.tx.default_segment.size != 0 {
            self.clear_default_segment();
        }
        loop {
            let s = *self.tx.slot(i);
            if s.done >= s.len {
                if s.refused {
                    // Every packet was sent on its own, so the segmentation was refused.
                    self.tx.remember_refusal(&endpoint(&s.dst));
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
                rewrite_icrc(&self.local, &endpoint(&s.dst), packet);
            }
            let (sa, sa_len) = self.tx.header.address(&s.dst);
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

    pub(super) fn fail(&mut self, dst: Endpoint, e: i32) {
        self.counters.send_err += 1;
        let kind = if e == libc::EMSGSIZE { ErrorKind::Mtu } else { ErrorKind::Send };
        self.report(PortError { dst, errno: e, kind, mtu: 0 });
    }
}

/// Rewrites the ICRC of a packet that leaves alone: as the k-th packet of a GSO send it had
/// identification k, alone it has 0.
fn rewrite_icrc(local: &Endpoint, dst: &Endpoint, packet: &mut [u8]) {
    if local.is_v4() {
        Flow::from_gids(&local.ip, &dst.ip, local.port, dst.port).append_icrc(0, packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firewall_of_this_host_is_no_message_of_another() {
        for icmp in [false, true] {
            assert_eq!(kind_of(libc::EPERM, || icmp), ErrorKind::Send);
            assert_eq!(kind_of(libc::EMSGSIZE, || icmp), ErrorKind::Mtu);
        }
        assert_eq!(kind_of(libc::EHOSTUNREACH, || true), ErrorKind::Icmp);
        assert_eq!(kind_of(libc::EHOSTUNREACH, || false), ErrorKind::Send);
    }
}
