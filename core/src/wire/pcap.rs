//! Capture files: classic pcap, in the byte order and with the time unit that their writer had.
//!
//! Files come from anywhere, so nothing here trusts a length. A capture is read in two steps:
//! [`Records`] gives the frames, [`Datagram`] takes one apart as far as the UDP payload, which is a
//! RoCEv2 packet.

use super::ip::{gid_of_v4, Udp, ETHERNET_LEN, PROTO_UDP, V4, V6};
use super::Flow;

/// Link type of frames that begin with an Ethernet header.
pub const LINKTYPE_ETHERNET: u32 = 1;

/// Longest record that readers of the format accept.
const RECORD_MAX: u32 = 256 << 10;

/// Times in microseconds, and in nanoseconds.
const MAGIC_US: u32 = 0xA1B2_C3D4;
const MAGIC_NS: u32 = 0xA1B2_3C4D;
/// The version that every file has: major and minor, of 16 bits each.
const VERSION: [u16; 2] = [2, 4];

/// Byte order and time unit of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    big_endian: bool,
    nanoseconds: bool,
}

impl Form {
    /// What this machine writes.
    const NATIVE: Form = Form { big_endian: cfg!(target_endian = "big"), nanoseconds: true };

    fn word(self, b: &[u8], at: usize) -> u32 {
        let b = b.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
        if self.big_endian {
            u32::from_be_bytes(b)
        } else {
            u32::from_le_bytes(b)
        }
    }

    fn unit_ns(self) -> u64 {
        if self.nanoseconds {
            1
        } else {
            1000
        }
    }

    /// The bytes of some words.
    fn bytes<const N: usize>(self, words: [u32; N]) -> [[u8; 4]; N] {
        words.map(|w| if self.big_endian { w.to_be_bytes() } else { w.to_le_bytes() })
    }

    /// Both numbers of the version as the word that they share.
    fn version(self) -> u32 {
        let [major, minor] = VERSION.map(u32::from);
        if self.big_endian {
            major << 16 | minor
        } else {
            minor << 16 | major
        }
    }
}

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    form: Form,
    /// Link type of the frames, such as [`LINKTYPE_ETHERNET`].
    pub linktype: u32,
    /// Bytes after which a frame is cut off.
    pub snaplen: u32,
}

impl FileHeader {
    /// Bytes in the file.
    pub const LEN: usize = 24;

    /// The header of a file that this machine writes: its own byte order, nanoseconds, Ethernet,
    /// frames whole.
    pub const fn ethernet() -> FileHeader {
        FileHeader { form: Form::NATIVE, linktype: LINKTYPE_ETHERNET, snaplen: RECORD_MAX }
    }

    /// Reads the header; `None` where the file is no classic pcap file of version 2.
    pub fn parse(b: &[u8; Self::LEN]) -> Option<FileHeader> {
        let form = [false, true].into_iter().find_map(|big_endian| {
            let form = Form { big_endian, nanoseconds: false };
            match form.word(b, 0) {
                MAGIC_US => Some(form),
                MAGIC_NS => Some(Form { nanoseconds: true, ..form }),
                _ => None,
            }
        })?;
        // The upper bits of the last word are not part of the link type.
        let linktype = form.word(b, 20) & 0x0FFF_FFFF;
        (form.word(b, 4) == form.version()).then_some(FileHeader {
            form,
            linktype,
            snaplen: form.word(b, 16),
        })
    }

    /// Writes the header; its reserved fields are zero.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        let magic = if self.form.nanoseconds { MAGIC_NS } else { MAGIC_US };
        let words = [magic, self.form.version(), 0, 0, self.snaplen, self.linktype];
        b.copy_from_slice(self.form.bytes(words).as_flattened());
    }

    /// Writes the header of a record. `time_ns` counts from the epoch; the format's seconds end in
    /// 2106.
    pub fn emit_record(
        &self,
        time_ns: u64,
        captured: u32,
        wire_len: u32,
        b: &mut [u8; RECORD_HEADER_LEN],
    ) {
        let fraction = time_ns % 1_000_000_000 / self.form.unit_ns();
        let words = [(time_ns / 1_000_000_000) as u32, fraction as u32, captured, wire_len];
        b.copy_from_slice(self.form.bytes(words).as_flattened());
    }
}

/// Bytes before each frame in the file.
pub const RECORD_HEADER_LEN: usize = 16;

/// One frame of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was captured, in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Its bytes, as many as were captured.
    pub frame: &'a [u8],
    /// How many it had on the wire.
    pub wire_len: u32,
}

/// The file ends inside a record, or a record is longer than `RECORD_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut;

/// The records of a capture file that lies in memory. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    header: FileHeader,
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// The records of a file; `None` where it is no pcap file.
    pub fn of(file: &'a [u8]) -> Option<Records<'a>> {
        let (header, rest) = file.split_first_chunk()?;
        Some(Records { header: FileHeader::parse(header)?, rest })
    }

    /// The file's header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Cut>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = core::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        let form = self.header.form;
        let Some((head, rest)) = rest.split_first_chunk::<RECORD_HEADER_LEN>() else {
            return Some(Err(Cut));
        };
        let captured = form.word(head, 8);
        let frame = rest.get(..captured as usize).filter(|_| captured <= RECORD_MAX);
        let Some(frame) = frame else {
            return Some(Err(Cut));
        };
        self.rest = &rest[frame.len()..];
        let fraction = u64::from(form.word(head, 4)) * form.unit_ns();
        let time_ns = u64::from(form.word(head, 0)) * 1_000_000_000 + fraction;
        Some(Ok(Record { time_ns, frame, wire_len: form.word(head, 12) }))
    }
}

/// A UDP datagram with the headers around it.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Source address; IPv4 as a v4-mapped GID.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// The UDP header.
    pub udp: Udp,
    /// IPv4's identification, 0 on IPv6.
    pub ident: u16,
    /// IPv4's "don't fragment", true on IPv6.
    pub dont_fragment: bool,
    /// From the IP header to the end of the payload, without padding of the link.
    pub ip_packet: &'a [u8],
    /// Where the UDP header begins in it.
    pub udp_at: usize,
}

impl<'a> Datagram<'a> {
    /// Takes an Ethernet frame apart. `None` where it carries no UDP over IPv4 or IPv6, or a
    /// fragment, options or extension headers, or where its lengths do not agree.
    pub fn parse(frame: &'a [u8]) -> Option<Datagram<'a>> {
        let (ethernet, ip) = frame.split_first_chunk::<ETHERNET_LEN>()?;
        let (src, dst, ident, dont_fragment, udp_at, end) =
            match u16::from_be_bytes([ethernet[12], ethernet[13]]) {
                0x0800 => {
                    let v4 = V4::parse(ip.first_chunk()?).filter(|v4| v4.protocol == PROTO_UDP)?;
                    let end = usize::from(v4.total_len);
                    (gid_of_v4(v4.src), gid_of_v4(v4.dst), v4.ident, v4.dont_fragment, V4::LEN, end)
                }
                0x86DD => {
                    let v6 =
                        V6::parse(ip.first_chunk()?).filter(|v6| v6.next_header == PROTO_UDP)?;
                    (v6.src, v6.dst, 0, true, V6::LEN, V6::LEN + usize::from(v6.payload_len))
                }
                _ => return None,
            };
        let ip_packet = ip.get(..end)?;
        let datagram = ip_packet.get(udp_at..)?;
        let udp = Udp::parse(datagram.first_chunk()?);
        (usize::from(udp.len) == datagram.len()).then_some(Datagram {
            src,
            dst,
            udp,
            ident,
            dont_fragment,
            ip_packet,
            udp_at,
        })
    }

    /// UDP payload; of RoCEv2, BTH to ICRC.
    pub fn payload(&self) -> &'a [u8] {
        self.ip_packet.get(self.udp_at + Udp::LEN..).unwrap_or(&[])
    }

    /// Its direction, for the ICRC.
    pub fn flow(&self) -> Flow {
        Flow::from_gids(&self.src, &self.dst, self.udp.sport, self.udp.dport)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ip::emit_frame_headers;
    use std::vec::Vec;

    /// A file of two frames as this machine writes it.
    fn file() -> Vec<u8> {
        let mut head = [0; FileHeader::LEN];
        FileHeader::ethernet().emit(&mut head);
        let mut file = head.to_vec();
        for (time, gid) in [
            (5_000_000_007, gid_of_v4([10, 0, 0, 1])),
            (u64::from(u32::MAX) * 1_000_000_000, [0xfd; 16]),
        ] {
            let mut frame = [0; 100];
            let n = emit_frame_headers(&gid, &gid, 4791, 4791, 3, 20, &mut frame).unwrap();
            let mut record = [0; RECORD_HEADER_LEN];
            FileHeader::ethernet().emit_record(time, n as u32 + 20, n as u32 + 20, &mut record);
            file.extend(record);
            file.extend(&frame[..n + 20]);
        }
        file
    }

    #[test]
    fn emitted_messages_are_read_back() {
        let file = file();
        let records = Records::of(&file).unwrap();
        assert_eq!(*records.header(), FileHeader::ethernet());
        let records: Vec<Record> = records.map(|r| r.unwrap()).collect();
        assert_eq!(records.len(), 2);
        assert_eq!((records[0].time_ns, records[0].wire_len), (5_000_000_007, 62));
        assert_eq!(
            (records[1].time_ns, records[1].wire_len),
            (u64::from(u32::MAX) * 1_000_000_000, 82)
        );
        for (record, ident) in records.iter().zip([3, 0]) {
            let d = Datagram::parse(record.frame).unwrap();
            assert_eq!((d.payload().len(), d.ident, d.udp.dport, d.src), (20, ident, 4791, d.dst));
        }
    }

    #[test]
    fn files_of_other_machines_are_read() {
        let frame = [0xEE; 3];
        for (big_endian, nanoseconds) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let word = |v: u32| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() };
            let version = if big_endian { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
            let magic = word(if nanoseconds { MAGIC_NS } else { MAGIC_US });
            let mut file = [magic, version, [0; 4], [0; 4], word(65_535), word(1)].concat();
            file.extend([word(7), word(9), word(3), word(1500)].concat());
            file.extend(frame);
            let mut records = Records::of(&file).unwrap();
            let (mut head, mut record) = ([0; FileHeader::LEN], [0; RECORD_HEADER_LEN]);
            records.header().emit(&mut head);
            assert_eq!(head, file[..FileHeader::LEN], "what is read is written");
            let time_ns = 7_000_000_000 + if nanoseconds { 9 } else { 9000 };
            records.header().emit_record(time_ns, 3, 1500, &mut record);
            assert_eq!(record, file[FileHeader::LEN..][..RECORD_HEADER_LEN]);
            assert_eq!(
                (records.header().linktype, records.header().snaplen),
                (LINKTYPE_ETHERNET, 65_535)
            );
            assert_eq!(records.next(), Some(Ok(Record { time_ns, frame: &frame, wire_len: 1500 })));
            assert_eq!(records.next(), None);
        }
    }

    #[test]
    fn a_file_that_is_cut_off_says_so_once() {
        let file = file();
        for len in 0..file.len() {
            let Some(records) = Records::of(&file[..len]) else {
                assert!(len < FileHeader::LEN);
                continue;
            };
            let results: Vec<_> = records.collect();
            let whole = results.iter().filter(|r| r.is_ok()).count();
            let (first, second) = (FileHeader::LEN, FileHeader::LEN + RECORD_HEADER_LEN + 62);
            assert_eq!(whole, usize::from(len >= second), "{len} bytes");
            assert_eq!(
                results.len() - whole,
                usize::from(len != first && len != second),
                "{len} bytes"
            );
        }
        let mut long = file.clone();
        long[FileHeader::LEN + 8..][..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(Records::of(&long).unwrap().eq([Err(Cut)]));
        let mut other = file;
        other[4] = 9;
        other[5] = 9;
        assert!(Records::of(&other).is_none(), "another version");
    }

    #[test]
    fn frames_whose_lengths_do_not_agree_are_no_datagrams() {
        let mut frame = [0; 82];
        for (gid, ip_len_at, udp_len_at) in
            [(gid_of_v4([10, 0, 0, 1]), 16, 38), ([0xfd; 16], 18, 58)]
        {
            let n = emit_frame_headers(&gid, &gid, 4791, 4791, 3, 20, &mut frame).unwrap() + 20;
            assert!(Datagram::parse(&frame[..n]).is_some());
            for len in 0..n {
                assert!(Datagram::parse(&frame[..len]).is_none(), "cut to {len}");
            }
            for at in [ip_len_at, ip_len_at + 1, udp_len_at, udp_len_at + 1] {
                let mut wrong = frame;
                wrong[at] ^= 1;
                assert!(Datagram::parse(&wrong[..n]).is_none(), "byte {at}");
            }
        }
    }
}
