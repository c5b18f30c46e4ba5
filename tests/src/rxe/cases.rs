//! Interoperation cases of traffic: every operation that both stacks have, at the lengths around
//! packet boundaries.

use super::guest::Link;
use super::pair::Pair;
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::ends::{Op, Shape};
use crate::patience::deadline;
use gdrcore_core::verbs::types::{access, qp_type, wc_flags, wc_opcode, wc_status, AhAttr};
use gdrcore_core::wire::grh::DSCP;
use std::time::{Duration, Instant};

/// Where targets begin in a buffer: behind room for the longest source.
pub fn half(pair: &Pair) -> usize {
    pair.our.shape.buffer / 2
}

/// Lengths around the packets of a path MTU code.
pub fn lengths(mtu: u32) -> Vec<usize> {
    let m = 128usize << mtu;
    vec![0, 1, 3, 64, m - 1, m, m + 1, 2 * m, 7 * m + 5]
}

/// A shape with room for messages of `longest` bytes.
pub fn shape(qp_type: u32, mtu: u32, longest: usize) -> Shape {
    let buffer = (2 * longest + 16_384).next_multiple_of(8192);
    let all =
        access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    // An emulated peer is slow, so the timeout is 2^17 * 4 us, half a second.
    Shape { qp_type, mtu, buffer, timeout: 17, access: all | access::MW_BIND, ..Shape::default() }
}

/// One SEND by `side`; compares every byte.
pub fn send(pair: &mut Pair, side: Side, len: usize, imm: Option<u32>) -> Outcome<usize> {
    let (to, ud) = (half(pair), pair.our.shape.qp_type == qp_type::UD);
    let ahead = if ud { 40 } else { 0 };
    let seed = len as u64 * 31 + u64::from(imm.is_some()) + 5;
    pair.fill(side, 0, len, seed)?;
    pair.set(side.other(), to, len + ahead + 8, 0xEE)?;
    let r = pair.recv(side.other(), to, len + ahead + 8)?;
    let s = pair.post(side, Op::Send(imm), 0, len)?;
    let wc = pair.succeed(side.other(), r)?;
    pair.succeed(side, s)?;
    // rxe sets the GRH flag for connected QPs too, whose buffers hold no GRH.
    let flags = wc_flags::WITH_IMM | if ud || side == Side::Rxe { wc_flags::GRH } else { 0 };
    let want = u32::from(imm.is_some()) * wc_flags::WITH_IMM + u32::from(ud) * wc_flags::GRH;
    if wc.byte_len as usize != len + ahead
        || wc.wc_flags & flags != want
        || wc.opcode != wc_opcode::RECV
    {
        return Err(format!("received as {wc:?}"));
    }
    if imm.is_some_and(|i| i != wc.imm_data) {
        return Err(format!("immediate data {:#x}", wc.imm_data));
    }
    pair.check(side.other(), to + ahead, len, seed)?;
    pair.untouched(side.other(), to + ahead + len, 8, 0xEE)?;
    if ud {
        let qpn = if side == Side::Ours { pair.our.own.qpn } else { pair.far.own.qpn };
        if wc.src_qp != qpn {
            return Err(format!("source QPN {:#x} instead of {qpn:#x}", wc.src_qp));
        }
    }
    Ok(1)
}

/// One WRITE by `side`.
pub fn write(pair: &mut Pair, side: Side, len: usize, imm: Option<u32>) -> Outcome<usize> {
    let to = half(pair);
    let seed = len as u64 * 37 + 11;
    pair.fill(side, 0, len, seed)?;
    pair.set(side.other(), to, len + 8, 0xEE)?;
    let r = if imm.is_some() { Some(pair.recv(side.other(), 0, 0)?) } else { None };
    let s = pair.post(side, Op::Write(to as u64, imm), 0, len)?;
    if let Some(r) = r {
        let wc = pair.succeed(side.other(), r)?;
        let right = wc.opcode == wc_opcode::RECV_RDMA_WITH_IMM && Some(wc.imm_data) == imm;
        if !right || wc.byte_len as usize != len {
            return Err(format!("received as {wc:?}"));
        }
    }
    pair.succeed(side, s)?;
    pair.check(side.other(), to, len, seed)?;
    pair.untouched(side.other(), to + len, 8, 0xEE)?;
    Ok(1)
}

/// One READ by `side`.
pub fn read(pair: &mut Pair, side: Side, len: usize) -> Outcome<usize> {
    let to = half(pair);
    let seed = len as u64 * 41 + 13;
    pair.fill(side.other(), 0, len, seed)?;
    pair.set(side, to, len + 8, 0xEE)?;
    let s = pair.post(side, Op::Read(0), to, len)?;
    let wc = pair.succeed(side, s)?;
    if wc.opcode != wc_opcode::RDMA_READ {
        return Err(format!("completed as {wc:?}"));
    }
    pair.check(side, to, len, seed)?;
    pair.untouched(side, to + len, 8, 0xEE)?;
    Ok(1)
}

/// One UC WRITE. It has no answer, so the target's memory shows when it has arrived.
fn unreliable_write(pair: &mut Pair, side: Side, len: usize) -> Outcome<usize> {
    let to = half(pair);
    let seed = len as u64 * 43 + 17;
    pair.fill(side, 0, len, seed)?;
    pair.set(side.other(), to, len + 8, 0xEE)?;
    let s = pair.post(side, Op::Write(to as u64, None), 0, len)?;
    pair.succeed(side, s)?;
    let end = deadline(60);
    while let Err(e) = pair.check(side.other(), to, len, seed) {
        if Instant::now() > end {
            return Err(e);
        }
        std::thread::sleep(Duration::from_millis(2));
        let _ = pair.our.dev.progress();
    }
    pair.untouched(side.other(), to + len, 8, 0xEE)?;
    Ok(1)
}

/// A FETCH_ADD that wraps, a CMP_SWAP that matches and one that does not.
fn atomics(pair: &mut Pair, side: Side, swap: bool) -> Outcome<usize> {
    let to = half(pair);
    let (start, steps): (u64, &[(Op, u64, u64)]) = if swap {
        (
            42,
            &[
                (Op::CmpSwap(8, 42, 7), 42, 7),
                (Op::CmpSwap(8, 42, 9), 7, 7),
                (Op::CmpSwap(8, 7, u64::MAX), 7, u64::MAX),
            ],
        )
    } else {
        (
            u64::MAX - 1,
            &[
                (Op::FetchAdd(8, 3), u64::MAX - 1, 1),
                (Op::FetchAdd(8, 0), 1, 1),
                (Op::FetchAdd(8, 1 << 40), 1, (1 << 40) + 1),
            ],
        )
    };
    pair.word(side.other(), 8, Some(start))?;
    for &(op, found, left) in steps {
        let s = pair.post(side, op, to, 8)?;
        pair.succeed(side, s)?;
        let (got, now) = (pair.word(side, to, None)?, pair.word(side.other(), 8, None)?);
        if (got, now) != (found, left) {
            return Err(format!("{op:?} found {got:#x}, left {now:#x}"));
        }
    }
    Ok(steps.len())
}

/// SEND with invalidate closes a window of the target; the key is invalid afterwards.
fn invalidate(pair: &mut Pair, side: Side) -> Outcome<usize> {
    let key = pair.window(side.other(), 4096)?;
    pair.fill(side, 0, 64, 3)?;
    let s = pair.post_as(side, Op::Write(0, None), 0, 64, 2, Some(key))?;
    pair.succeed(side, s)?;
    pair.check(side.other(), 0, 64, 3)?;
    let to = half(pair);
    let r = pair.recv(side.other(), to, 64)?;
    let s = pair.post(side, Op::SendInv(key), 0, 64)?;
    let wc = pair.succeed(side.other(), r)?;
    pair.succeed(side, s)?;
    // rxe passes the kernel's value of this flag to programs, in whose numbering it is IP_CSUM_OK.
    let flag = if side == Side::Ours { wc_flags::IP_CSUM_OK } else { wc_flags::WITH_INV };
    if wc.wc_flags & flag == 0 || wc.imm_data != key {
        return Err(format!("key {key:#x} received as {wc:?}"));
    }
    pair.check(side.other(), to, 64, 3)?;
    let s = pair.post_as(side, Op::Write(0, None), 0, 64, 2, Some(key))?;
    pair.ends_with(side, s, wc_status::REM_ACCESS_ERR)?;
    Ok(3)
}

/// Runs `one` for each length over one connection.
fn over(
    link: &Link,
    shape: Shape,
    lengths: &[usize],
    mut one: impl FnMut(&mut Pair, usize) -> Outcome<usize>,
) -> Outcome<usize> {
    let mut pair = Pair::new(link, shape)?;
    let mut n = 0;
    for &len in lengths {
        n += one(&mut pair, len).map_err(|e| format!("{len} bytes: {e}"))?;
    }
    pair.end()?;
    Ok(n)
}

const IMM: Option<u32> = Some(0x0403_0201);

/// RC's operations with messages of these lengths.
pub fn reliable(report: &mut Report, link: &Link, mtu: u32, lengths: &[usize]) {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let what = format!("{}, MTU {}", link.name, 128 << mtu);
    let shape = shape(qp_type::RC, mtu, longest);
    report.both("RC SEND", &what, |s| over(link, shape, lengths, |p, l| send(p, s, l, None)));
    report.both("RC SEND with immediate", &what, |s| {
        over(link, shape, lengths, |p, l| send(p, s, l, IMM))
    });
    report.both("RC SEND with invalidate", &what, |s| {
        over(link, shape, &[64], |p, _| invalidate(p, s))
    });
    report.remark(
        "RC SEND with invalidate",
        Side::Ours,
        "rxe is wrong: it reports IP_CSUM_OK (4) instead of WITH_INV (8)",
    );
    report.both("RC WRITE", &what, |s| over(link, shape, lengths, |p, l| write(p, s, l, None)));
    report.both("RC WRITE with immediate", &what, |s| {
        over(link, shape, lengths, |p, l| write(p, s, l, IMM))
    });
    report.both("RC READ", &what, |s| over(link, shape, lengths, |p, l| read(p, s, l)));
    report.both("RC CMP_SWAP", &what, |s| over(link, shape, &[8], |p, _| atomics(p, s, true)));
    report.both("RC FETCH_ADD", &what, |s| over(link, shape, &[8], |p, _| atomics(p, s, false)));
}

/// Messages of a mebibyte, and of the largest length that rxe takes.
pub fn large(report: &mut Report, link: &Link, mtu: u32) {
    for (len, name) in [(1 << 20, "1 MiB"), (8 << 20, "8 MiB")] {
        let what = format!("{}, MTU {}", link.name, 128 << mtu);
        let shape = shape(qp_type::RC, mtu, len);
        report.both(&format!("RC SEND of {name}"), &what, |s| {
            over(link, shape, &[len], |p, l| send(p, s, l, None))
        });
        report.both(&format!("RC WRITE of {name}"), &what, |s| {
            over(link, shape, &[len], |p, l| write(p, s, l, None))
        });
        report.both(&format!("RC READ of {name}"), &what, |s| {
            over(link, shape, &[len], |p, l| read(p, s, l))
        });
    }
}

/// The operations of a tenant by way of a router: features for SEND, WRITE, READ and datagrams.
pub fn outside(report: &mut Report, link: &Link, [s, w, r, ud]: [&str; 4]) {
    let (mtu, what) = (3, format!("{}, MTU {}", link.name, 128 << 3));
    let lengths = lengths(mtu);
    let of = |kind| shape(kind, mtu, lengths[lengths.len() - 1]);
    let rc = of(qp_type::RC);
    report.both(s, &what, |side| over(link, rc, &lengths, |p, l| send(p, side, l, None)));
    report.both(w, &what, |side| over(link, rc, &lengths, |p, l| write(p, side, l, None)));
    report.both(r, &what, |side| over(link, rc, &lengths, |p, l| read(p, side, l)));
    let one_packet: Vec<usize> = lengths.iter().copied().filter(|&l| l <= 128 << mtu).collect();
    report.both(ud, &what, |side| {
        over(link, of(qp_type::UD), &one_packet, |p, l| send(p, side, l, IMM))
    });
}

/// UC's operations.
pub fn unreliable(report: &mut Report, link: &Link, mtu: u32, lengths: &[usize]) {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let what = format!("{}, MTU {}", link.name, 128 << mtu);
    let shape = shape(qp_type::UC, mtu, longest);
    report.both("UC SEND", &what, |s| over(link, shape, lengths, |p, l| send(p, s, l, None)));
    report.both("UC SEND with immediate", &what, |s| {
        over(link, shape, lengths, |p, l| send(p, s, l, IMM))
    });
    report
        .both("UC WRITE", &what, |s| over(link, shape, lengths, |p, l| unreliable_write(p, s, l)));
    report.both("UC WRITE with immediate", &what, |s| {
        over(link, shape, lengths, |p, l| write(p, s, l, IMM))
    });
}

/// UD, whose messages are one packet and arrive behind a GRH.
pub fn datagrams(report: &mut Report, link: &Link, mtu: u32) {
    let m = 128usize << mtu;
    let what = format!("{}, MTU {m}", link.name);
    let (shape, lengths) = (shape(qp_type::UD, mtu, m), [0, 1, 2, 3, 64, m - 1, m]);
    report.both("UD SEND", &what, |s| over(link, shape, &lengths, |p, l| send(p, s, l, None)));
    report.both("UD SEND with immediate", &what, |s| {
        over(link, shape, &lengths, |p, l| send(p, s, l, IMM))
    });
    report.both("UD GRH", &what, |s| over(link, shape, &[100], |p, l| grh(p, s, l)));
    let far = AhAttr { traffic_class: 0xb8, hop_limit: HOPS[0], ..link.far };
    let classed = Link { far, near: link.near.clone(), ..*link };
    report.both("UD GRH with a traffic class", &what, |s| {
        over(&classed, shape, &[100], |p, l| grh(p, s, l))
    });
}

/// Hop limits of our packets that have a class, and of the far end's (tests/vm/peer.c).
const HOPS: [u8; 2] = [77, 64];

/// Checks the 40 bytes ahead of a datagram: version, lengths and addresses of the packet; and of
/// packets with a traffic class that and the hop limit.
fn grh(pair: &mut Pair, side: Side, len: usize) -> Outcome<usize> {
    send(pair, side, len, None)?;
    let to = half(pair);
    let mut bytes = Vec::new();
    for word in 0..5 {
        bytes.extend_from_slice(&pair.word(side.other(), to + 8 * word, None)?.to_le_bytes());
    }
    let far = pair.link.far.dgid;
    let near: [u8; 16] = pair.link.dev.query().map_err(|e| e.to_string())?.gid;
    let (source, target) = if side == Side::Ours { (near, far) } else { (far, near) };
    // BTH 12, DETH 8, padded payload, ICRC 4, behind 8 bytes of UDP header.
    let udp = 8 + 12 + 8 + len.next_multiple_of(4) + 4;
    let v4 = pair.link.name == "IPv4";
    let (class, hops) =
        if v4 { (bytes[21], bytes[28]) } else { (bytes[0] << 4 | bytes[1] >> 4, bytes[7]) };
    let wanted = (pair.link.far.traffic_class, HOPS[usize::from(side == Side::Rxe)]);
    if wanted.0 != 0 && (class & DSCP, hops) != wanted {
        return Err(format!("class and hop limit ({class:#x}, {hops}), not {wanted:?}"));
    }
    let right = if v4 {
        let length = u16::from_be_bytes([bytes[22], bytes[23]]);
        let sum = bytes[20..40]
            .chunks(2)
            .fold(0u32, |s, c| s + u32::from(u16::from_be_bytes([c[0], c[1]])));
        bytes[20] == 0x45
            && usize::from(length) == udp + 20
            && bytes[29] == 17
            && bytes[32..36] == source[12..]
            && bytes[36..40] == target[12..]
            && (sum & 0xFFFF) + (sum >> 16) == 0xFFFF
    } else {
        let length = u16::from_be_bytes([bytes[4], bytes[5]]);
        bytes[0] >> 4 == 6
            && usize::from(length) == udp
            && bytes[6] == 17
            && bytes[8..24] == source
            && bytes[24..40] == target
    };
    if right {
        return Ok(1);
    }
    Err(format!("{bytes:02x?}"))
}
