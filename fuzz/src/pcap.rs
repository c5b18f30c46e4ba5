//! Fuzzes the reader of capture files.

use crate::coverage::counts;
use crate::Coverage;
use gdrcore_core::wire::ip::emit_frame_headers;
use gdrcore_core::wire::pcap::{Datagram, FileHeader, Records, RECORD_HEADER_LEN};

use crate::bytes::Bytes;

counts! {
    Seen {
        /// Files with a header.
        files: u64,
        /// Records in them.
        records: u64,
        /// Files that end inside a record.
        cut: u64,
        /// Frames with a UDP datagram.
        datagrams: u64,
        /// Datagrams with a valid ICRC.
        roce: u64,
    }
}

/// Reads the string as a capture file, and the file that it describes: frames with some bytes
/// changed.
pub fn pcap(data: &[u8]) -> Seen {
    let mut seen = read(data);
    seen.add(&read(&describe(data)));
    seen
}

/// A file of valid frames with the string's changes.
fn describe(data: &[u8]) -> Vec<u8> {
    let mut input = Bytes::new(data);
    let mut file = vec![0; FileHeader::LEN];
    let header = FileHeader::ethernet();
    header.emit(file.first_chunk_mut().expect("as long as a header"));
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let plan = input.u8();
        let gid = |n: u8| match plan & 1 {
            0 => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, n],
            _ => [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n],
        };
        let body = input.take(usize::from(plan >> 2));
        let mut frame = vec![0; 62];
        let port = if plan & 2 == 0 { 4791 } else { input.u16() };
        let Some(n) =
            emit_frame_headers(&gid(1), &gid(2), 4791, port, input.u16(), body.len(), &mut frame)
        else {
            continue;
        };
        frame.truncate(n);
        frame.extend(body);
        if let Some(d) = Datagram::parse(&frame).filter(|d| d.payload().len() >= 16) {
            let mut packet = d.payload().to_vec();
            d.flow().append_icrc(d.ident, &mut packet);
            let at = frame.len() - packet.len();
            frame[at..].copy_from_slice(&packet);
        }
        let mut record = [0; RECORD_HEADER_LEN];
        header.emit_record(input.u64() >> 3, frame.len() as u32, frame.len() as u32, &mut record);
        let at = file.len();
        file.extend(record);
        file.extend(&frame);
        // Mostly without a fault.
        if plan >> 6 == 3 {
            let bytes = file.len() - at;
            file[at + input.below(bytes)] ^= input.u8();
        }
    }
    let cut = if input.one_in(4) { input.below(40) } else { 0 };
    file.truncate(file.len().saturating_sub(cut));
    file
}

/// Reads a file as the tests of captures do, and asserts what must hold of every file.
fn read(file: &[u8]) -> Seen {
    let mut seen = Seen::default();
    let Some(records) = Records::of(file) else { return seen };
    seen.files = 1;
    let header = *records.header();
    let mut again = vec![0; FileHeader::LEN];
    header.emit(again.first_chunk_mut().expect("as long as a header"));
    let head = again.clone();
    for record in records {
        let Ok(record) = record else {
            seen.cut = 1;
            break;
        };
        seen.records += 1;
        let mut out = [0; RECORD_HEADER_LEN];
        header.emit_record(record.time_ns, record.frame.len() as u32, record.wire_len, &mut out);
        again.extend(out);
        again.extend(record.frame);
        let Some(d) = Datagram::parse(record.frame) else { continue };
        seen.datagrams += 1;
        assert!(d.ip_packet.len() <= record.frame.len() && d.payload().len() <= d.ip_packet.len());
        assert_eq!(usize::from(d.udp.len), d.payload().len() + 8);
        crate::wire(d.payload());
        let exact = gdrcore_core::wire::icrc::check_exact(d.ip_packet).is_ok();
        if exact && d.udp.dport == gdrcore_core::wire::ROCE_PORT {
            seen.roce += 1;
        }
    }
    // The records can be written again unchanged, except for times that are invalid.
    assert_eq!(Records::of(&head).map(|r| *r.header()), Some(header));
    let count = Records::of(&again).map_or(0, |r| r.filter(Result::is_ok).count());
    assert_eq!(count as u64, seen.records);
    seen
}
