//! What becomes of a burst whose send was refused: another try, packets one by one, or an error of
//! its destination.

use super::{UdpPort, TRIES};
use crate::addr::{endpoint, Endpoint};
use crate::port::{ErrorKind, PortError};
use crate::sys::errno;
use gdrcore_core::wire::icrc::IcrcFlow;

/// Who has refused a send. `may_be_icmp`: an ICMP message has come, or the record of one may have
/// been lost. Any host can send ICMP at any time, so such an errno may not be the kernel's own.
fn kind_of_refusal(errno: i32, may_be_icmp: bool) -> ErrorKind {
    match errno {
        libc::EMSGSIZE => ErrorKind::Mtu,
        // Of this host's firewall, which may send an ICMP message besides: no ICMP message becomes
        // this errno.
        libc::EPERM => ErrorKind::Send,
        _ if may_be_icmp => ErrorKind::Icmp,
        _ => ErrorKind::Send,
    }
}

impl UdpPort {
    /// Decides about burst `i`, whose send failed with `e`: it is tried again, or given up with an
    /// error of its destination. False: the kernel has no room; stop.
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
        if many && !s.packet_by_packet && matches!(e, libc::EIO | libc::EINVAL | libc::EOPNOTSUPP) {
            // Perhaps for GSO: the packets, sent one by one, will show.
            s.packet_by_packet = true;
            s.gso_refused = true;
            s.tries = 0;
            self.clear_default_segment();
            return true;
        }
        self.fail(dst, e, icmp > 0 || !self.has_room_for_records());
        self.tx.head += 1;
        true
    }

    /// Sends burst `i` packet by packet. False: the kernel has no room; the next call goes on
    /// behind the packets that have left.
    pub(super) fn send_singly(&mut self, i: usize) -> bool {
        if self.tx.default_segment.size != 0 {
            self.clear_default_segment();
        }
        loop {
            let s = *self.tx.slot(i);
            if s.sent >= s.len {
                if s.gso_refused {
                    // Each packet alone was accepted, so it was GSO that the kernel refused.
                    self.tx.remember_refusal(&endpoint(&s.dst));
                    self.counters.gso_refused += 1;
                }
                self.tx.head += 1;
                return true;
            }
            let n = (s.len - s.sent).min(u32::from(s.seg));
            // SAFETY: `off + sent + n <= off + len <= capacity`; nobody else uses the buffer now.
            let packet = unsafe {
                core::slice::from_raw_parts_mut(
                    self.tx.buffer.add((s.off + s.sent) as usize),
                    n as usize,
                )
            };
            if s.sent > 0 {
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
                slot.sent += n;
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

    /// Counts and reports a burst that is given up. `may_be_icmp`: as for `kind_of_refusal`.
    pub(super) fn fail(&mut self, dst: Endpoint, e: i32, may_be_icmp: bool) {
        self.counters.send_err += 1;
        let kind = kind_of_refusal(e, may_be_icmp);
        self.report(PortError { dst, errno: e, kind, mtu: 0 });
    }
}

/// Recomputes the ICRC of a packet that leaves alone: the k-th packet of a GSO send has
/// identification k, a packet alone has 0.
fn rewrite_icrc(local: &Endpoint, dst: &Endpoint, packet: &mut [u8]) {
    if local.is_v4() {
        IcrcFlow::from_gids(&local.ip, &dst.ip, local.port, dst.port).append_icrc(0, packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firewall_of_this_host_is_no_message_of_another() {
        for icmp in [false, true] {
            assert_eq!(kind_of_refusal(libc::EPERM, icmp), ErrorKind::Send);
            assert_eq!(kind_of_refusal(libc::EMSGSIZE, icmp), ErrorKind::Mtu);
        }
        assert_eq!(kind_of_refusal(libc::EHOSTUNREACH, true), ErrorKind::Icmp);
        assert_eq!(kind_of_refusal(libc::EHOSTUNREACH, false), ErrorKind::Send);
    }
}
