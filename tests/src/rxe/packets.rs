//! RoCEv2 packets as they crossed the wire: offsets of their parts, their headers, and captures for
//! Wireshark.

use super::side::Side;
use gdrcore_core::wire::{Aeth, Class, IcrcFlow, Opcode, PacketKind, Syndrome};
use gdrcore_testkit::packet::View;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

/// Bytes of an ICRC.
const ICRC: usize = 4;
/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;

/// The point at which a packet was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// When its sender had sent it.
    Sent,
    /// When it was delivered, as the wire had changed it.
    Delivered,
}

/// A recorded frame.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The time.
    pub at: Instant,
    /// Its sender.
    pub from: Side,
    /// The point at which it was recorded.
    pub moment: Moment,
    /// The frame, from the Ethernet header on.
    pub frame: Vec<u8>,
}

impl Seen {
    /// The packet in it; `None`: it does not parse.
    pub fn view(&self) -> Option<View<'_>> {
        View::parse(&self.frame[roce(&self.frame)?]).ok()
    }

    /// Its PSN.
    pub fn psn(&self) -> Option<u32> {
        Some(self.view()?.bth().psn.get())
    }

    /// Its AETH, if it is an answer.
    pub fn aeth(&self) -> Option<Aeth> {
        self.view()?.aeth()
    }

    /// Its PSN and syndrome byte, if it is a NAK or an RNR NAK.
    pub fn nak(&self) -> Option<(u32, u8)> {
        let aeth = self.aeth()?;
        (!matches!(aeth.meaning(), Syndrome::Ack { .. })).then_some((self.psn()?, aeth.syndrome))
    }

    /// Whether it is a request.
    pub fn is_request(&self) -> bool {
        let answer = |kind| {
            matches!(
                kind,
                PacketKind::Ack
                    | PacketKind::AtomicAck
                    | PacketKind::ReadResponse
                    | PacketKind::Cnp
            )
        };
        self.view().is_some_and(|v| !answer(v.opcode().kind()))
    }
}

/// Offset of the UDP header, and whether the packet is IPv6.
fn udp(frame: &[u8]) -> Option<(usize, bool)> {
    let (protocol, at, v6) = match u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]) {
        0x0800 => (*frame.get(23)?, ETHERNET + usize::from(frame.get(14)? & 15) * 4, false),
        0x86DD => (*frame.get(20)?, ETHERNET + 40, true),
        _ => return None,
    };
    (protocol == 17).then_some((at, v6))
}

/// Offset of the BTH in a RoCEv2 frame.
pub fn bth(frame: &[u8]) -> Option<usize> {
    let (udp, _) = udp(frame)?;
    let port = u16::from_be_bytes([*frame.get(udp + 2)?, *frame.get(udp + 3)?]);
    (port == 4791 && frame.len() > udp + 8 + 16).then_some(udp + 8)
}

/// The range from the BTH to before the ICRC, by the UDP length: a short frame may be padded.
pub fn roce(frame: &[u8]) -> Option<Range<usize>> {
    let start = bth(frame)?;
    let len = usize::from(u16::from_be_bytes([frame[start - 4], frame[start - 3]]));
    let end = (start - 8 + len).checked_sub(ICRC)?;
    (end >= start && end + ICRC <= frame.len()).then_some(start..end)
}

/// Sets both ECN bits of the IP header, as a switch with a long queue does. The ICRC does not cover
/// them.
pub fn mark(frame: &mut [u8]) {
    let Some((_, v6)) = udp(frame) else { return };
    if v6 {
        frame[ETHERNET + 1] |= 3 << 4;
        return;
    }
    frame[ETHERNET + 1] |= 3;
    let header = ETHERNET..ETHERNET + usize::from(frame[ETHERNET] & 15) * 4;
    frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    let sum: u32 = frame[header].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
}

/// The ECN bits of a packet.
pub fn ecn(frame: &[u8]) -> Option<u8> {
    let (_, v6) = udp(frame)?;
    Some(if v6 { frame[ETHERNET + 1] >> 4 & 3 } else { frame[ETHERNET + 1] & 3 })
}

/// The flow of a RoCEv2 frame, and its IPv4 identification (0: IPv6).
fn flow(frame: &[u8]) -> Option<(IcrcFlow, u16)> {
    let (udp, v6) = udp(frame)?;
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (source, target, ident) = (port(udp), port(udp + 2), port(18));
    let four = |at: usize| [0, 1, 2, 3].map(|i| frame[at + i]);
    let sixteen = |at: usize| std::array::from_fn(|i| frame[at + i]);
    Some(if v6 {
        (IcrcFlow::v6(sixteen(22), sixteen(38), source, target), 0)
    } else {
        (IcrcFlow::v4(four(26), four(30), source, target), ident)
    })
}

/// Computes the packet's ICRC anew, and clears its UDP checksum.
pub fn set_icrc(frame: &mut [u8]) {
    let (Some((flow, ident)), Some(range)) = (flow(frame), roce(frame)) else { return };
    frame[range.start - 2..range.start].fill(0);
    flow.append_icrc(ident, &mut frame[range.start..range.end + ICRC]);
}

/// The ICRC of a frame: of its bytes with those masked that change on the way, and of its packet
/// once more if `twice`. By the definition, bit by bit, not by the library's own code.
fn icrc(frame: &[u8], twice: bool) -> Option<[u8; ICRC]> {
    let ((udp, v6), range) = (udp(frame)?, roce(frame)?);
    let mut masked = vec![0xFF; 8];
    masked.extend_from_slice(&frame[ETHERNET..range.end]);
    let (ip, udp, bth) = (8, 8 + udp - ETHERNET, 8 + range.start - ETHERNET);
    if v6 {
        masked[ip] |= 0x0F;
        masked[ip + 1..ip + 4].fill(0xFF);
        masked[ip + 7] = 0xFF;
    } else {
        for at in [1, 8, 10, 11] {
            masked[ip + at] = 0xFF;
        }
    }
    masked[udp + 6..udp + 8].fill(0xFF);
    masked[bth + 4] = 0xFF;
    let again = if twice { &frame[range] } else { &[] };
    let crc = masked.iter().chain(again).fold(u32::MAX, |crc, byte| {
        (0..8)
            .fold(crc ^ u32::from(*byte), |c, _| c >> 1 ^ if c & 1 == 1 { 0xEDB8_8320 } else { 0 })
    });
    Some((!crc).to_le_bytes())
}

/// Replaces the ICRC of a FLUSH, if it is right, by one of the packet twice (`twice`), or the other
/// way round. Returns whether it did.
///
/// Linux's rxe computes the ICRC of a FLUSH over the packet's bytes twice: its table of opcodes
/// (rxe_opcode.c) gives that opcode no offset of the payload, so the payload begins at the BTH. It
/// drops a FLUSH with the ICRC of the standard.
pub fn swap_flush_icrc(frame: &mut [u8], twice: bool) -> bool {
    let Some(range) = roce(frame) else { return false };
    let place = range.end..range.end + ICRC;
    if Opcode(frame[range.start]) != Opcode::RC_FLUSH {
        return false;
    }
    let (Some(from), Some(to)) = (icrc(frame, !twice), icrc(frame, twice)) else { return false };
    let is_right = frame[place.clone()] == from;
    if is_right {
        frame[place].copy_from_slice(&to);
        // The UDP checksum, which is optional, covers those bytes.
        frame[range.start - 2..range.start].fill(0);
    }
    is_right
}

/// Whether a receiver that does not see the identification takes the packet: its ICRC is right, or
/// would be with another identification.
pub fn passes_without_ident(frame: &[u8]) -> bool {
    let (Some((flow, ident)), Some(range)) = (flow(frame), roce(frame)) else { return false };
    flow.check(ident, &frame[range.start..range.end + ICRC]).is_ok()
}

/// Writes the delivered packets as a classic capture with nanoseconds; times count from the first
/// packet. Makes the folder if there is none.
pub fn write_pcap(path: &Path, seen: &[Seen]) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    let mut out = Vec::new();
    for word in [0xA1B2_3C4D, 4 << 16 | 2, 0, 0, 1 << 16, 1u32] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let Some(first) = seen.first() else { return std::fs::write(path, out) };
    for s in seen.iter().filter(|s| s.moment == Moment::Delivered) {
        let since = s.at.duration_since(first.at);
        for word in [
            since.as_secs() as u32,
            since.subsec_nanos(),
            s.frame.len() as u32,
            s.frame.len() as u32,
        ] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&s.frame);
    }
    std::fs::write(path, out)
}

/// The PSN of a request of `side` that it has sent again as another part of a message; `None`:
/// there is none. A PSN names one packet of a queue pair. Where a retransmission of rxe and an ACK
/// cross on a busy machine (Linux 6.1, rxe_req.c req_retry), it may begin a message again one PSN
/// late, and the message is longer by a packet for who has had its beginning.
pub fn shifted(seen: &[Seen], side: Side) -> Option<u32> {
    let mut parts = BTreeMap::new();
    let sent = seen.iter().filter(|s| s.from == side && s.moment == Moment::Sent);
    let requests = sent.filter(|s| s.is_request()).filter_map(Seen::view);
    requests.filter(|v| v.opcode().class() == Class::Rc).find_map(|v| {
        let (qpn, psn) = (v.bth().dest_qp.get(), v.bth().psn.get());
        let before = *parts.entry((qpn, psn)).or_insert(v.opcode());
        (before != v.opcode()).then_some(psn)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::root;

    /// The frames of a capture that [`write_pcap`] has written.
    fn frames(name: &str) -> Vec<Vec<u8>> {
        let bytes = std::fs::read(root().join("tests/vm/evidence").join(name)).expect("a capture");
        let (mut rest, mut frames) = (&bytes[24..], Vec::new());
        while let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *rest {
            let len = u32::from_le_bytes([a, b, c, d]) as usize;
            frames.push(rest[16..16 + len].to_vec());
            rest = &rest[16 + len..];
        }
        frames
    }

    /// Two packets of a message, and its beginning again under the PSN of the second one.
    #[test]
    fn a_message_that_rxe_begins_again_at_another_psn_is_noticed() {
        let seen: Vec<_> = frames("rxe_shifted.pcap")
            .into_iter()
            .map(|frame| Seen { at: Instant::now(), from: Side::Rxe, moment: Moment::Sent, frame })
            .collect();
        assert_eq!(seen.len(), 3);
        assert_eq!(shifted(&seen, Side::Rxe), Some(14_535_784));
        assert_eq!(shifted(&seen[..2], Side::Rxe), None);
        let again = [seen[0].clone(), seen[1].clone(), seen[0].clone()];
        assert_eq!(shifted(&again, Side::Rxe), None, "as it was");
        assert_eq!(shifted(&seen, Side::Ours), None);
    }

    #[test]
    fn rxe_computes_the_icrc_of_a_flush_over_the_packet_twice() {
        let mut flushes = 0;
        for sent in frames("rxe_flush_icrc.pcap") {
            let is_flush = Opcode(sent[bth(&sent).expect("a packet")]) == Opcode::RC_FLUSH;
            flushes += usize::from(is_flush);
            // By the library's code: all but FLUSHes are as the standard says.
            assert_eq!(passes_without_ident(&sent), !is_flush);
            let mut frame = sent.clone();
            assert!(!swap_flush_icrc(&mut frame, true), "it is another one");
            assert_eq!(swap_flush_icrc(&mut frame, false), is_flush);
            assert!(passes_without_ident(&frame));
            assert_eq!(swap_flush_icrc(&mut frame, true), is_flush);
            let icrc = sent.len() - ICRC..;
            assert_eq!(frame[icrc.clone()], sent[icrc]);
            if is_flush {
                *frame.last_mut().expect("bytes") ^= 1;
                assert!(!swap_flush_icrc(&mut frame, false), "what is damaged stays so");
            }
        }
        assert!(flushes > 0);
    }
}
