//! Interoperation cases of invalid requests, which the wire makes of valid ones: opcodes out of
//! order, wrong lengths, a misaligned atomic, headers of other transports.

use super::cases::{self, half, send};
use super::guest::Link;
use super::headers::{expect_nak, is_request, scripted, sent};
use super::mangle::{Mangler, Script};
use super::packets::Seen;
use super::pair::Pair;
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::ends::Op;
use gdrcore_core::verbs::types::{qp_state, qp_type, wc_status};
use gdrcore_core::wire::{Opcode, PacketKind};

/// A change of a request's packets; packets of another kind stay as they are.
pub(super) type Change = fn(&mut [u8]);

/// Replaces one opcode by another.
fn opcode(roce: &mut [u8], from: u8, to: u8) {
    if roce[0] == from {
        roce[0] = to;
    }
}

/// Makes the address of an atomic misaligned.
pub(super) fn misalign(roce: &mut [u8]) {
    if matches!(
        Opcode(roce[0]).kind(),
        PacketKind::CmpSwap | PacketKind::FetchAdd | PacketKind::AtomicWrite
    ) {
        roce[19] |= 4;
    }
}

/// Changes the length that a WRITE or READ announces, by `by` packets of 1024 bytes.
fn lengthen(roce: &mut [u8], by: i32) {
    if Opcode(roce[0]).has_reth() {
        let at = 12 + 12;
        let len = i32::from_be_bytes([roce[at], roce[at + 1], roce[at + 2], roce[at + 3]]);
        roce[at..at + 4].copy_from_slice(&(len + 1024 * by).to_be_bytes());
    }
}

/// Invalid requests for which the standard has a NAK. WRITEs have immediate data: without it, a
/// short one of ours is a WRITE for each packet.
const REFUSED: &[(&str, Op, usize, Change)] = &[
    ("misaligned FETCH_ADD", Op::FetchAdd(0, 1), 8, misalign),
    ("misaligned CMP_SWAP", Op::CmpSwap(0, 1, 2), 8, misalign),
    ("SEND that begins in its middle", Op::Send(None), 4000, |p| opcode(p, 0x00, 0x01)),
    ("SEND that begins twice", Op::Send(None), 4000, |p| opcode(p, 0x01, 0x00)),
    ("SEND that goes on as a WRITE", Op::Send(None), 4000, |p| opcode(p, 0x01, 0x07)),
    ("WRITE that goes on as a SEND", Op::Write(0, Some(7)), 4000, |p| opcode(p, 0x07, 0x01)),
    ("WRITE longer than it says", Op::Write(0, Some(7)), 4000, |p| lengthen(p, -1)),
    ("WRITE shorter than it says", Op::Write(0, Some(7)), 4000, |p| lengthen(p, 1)),
];

/// Packets that must be dropped without an answer; sent again unchanged, they are accepted.
const DROPPED: &[(&str, Change)] = &[
    ("transport version 1", |p| p[1] |= 1),
    ("opcode of UC", |p| p[0] |= 0x20),
    ("opcode of RD", |p| p[0] |= 0x40),
    ("opcode of UD", |p| p[0] = 0x64),
    ("reserved opcode", |p| p[0] = 0x1F),
];

/// A script that changes all requests of a side, or the first only.
fn change(side: Side, how: Change, all: bool) -> Script {
    let mut done = false;
    Box::new(move |from, roce| {
        if from == side && is_request(roce) && (all || !done) {
            how(roce);
            done = true;
        }
        true
    })
}

/// The request must be refused with NAK 0x61, and the target's memory stay as it was.
pub(super) fn refused(
    link: &Link,
    wire: &Mangler,
    side: Side,
    op: Op,
    len: usize,
    how: Change,
) -> Outcome<(usize, Vec<Seen>)> {
    let mut pair = Pair::new(link, cases::shape(qp_type::RC, 3, 65_536))?;
    send(&mut pair, side, 64, None)?;
    pair.set(side.other(), 0, 8, 0xEE)?;
    let to = half(&pair);
    pair.recv(side.other(), to, 8192)?;
    let ((), seen) = scripted(wire, change(side, how, true), || {
        let id = pair.post(side, op, 0, len)?;
        pair.ends_with(side, id, wc_status::REM_INV_REQ_ERR).map(drop)
    })?;
    expect_nak(&seen, side.other(), 0x61)?;
    if matches!(op, Op::FetchAdd(..) | Op::CmpSwap(..) | Op::AtomicWrite(..)) {
        pair.untouched(side.other(), 0, 8, 0xEE)?;
    }
    let state = match side.other() {
        Side::Rxe => link.numbers(&format!("state {}", pair.far.id))?[0] as u32,
        Side::Ours => pair.our.dev.qp_query(pair.our.qp).map_err(|e| e.to_string())?.0.qp_state,
    };
    if state != qp_state::ERR {
        return Err(format!("the responder's QP is in state {state}"));
    }
    pair.end()?;
    Ok((1, seen))
}

/// The packet must be dropped without an answer, and the QP stay usable.
fn dropped(link: &Link, wire: &Mangler, side: Side, how: Change) -> Outcome<usize> {
    let mut pair = Pair::new(link, cases::shape(qp_type::RC, 3, 65_536))?;
    send(&mut pair, side, 64, None)?;
    let (n, seen) = scripted(wire, change(side, how, false), || send(&mut pair, side, 64, None))?;
    let copies = sent(&seen, side).filter(|s| s.is_request()).count();
    let naks: Vec<_> = sent(&seen, side.other()).filter_map(Seen::nak).collect();
    if copies < 2 || !naks.is_empty() {
        return Err(format!("sent {copies} times, NAKs {naks:x?}"));
    }
    let n = n + send(&mut pair, side, 3000, None)?;
    pair.end()?;
    Ok(n)
}

/// An ACK of a PSN that was never sent arrives ahead of the real ACK.
fn ghost_ack(link: &Link, wire: &Mangler, side: Side) -> Outcome<usize> {
    let mut pair = Pair::new(link, cases::shape(qp_type::RC, 3, 65_536))?;
    send(&mut pair, side, 64, None)?;
    let mut done = false;
    let ahead: Script = Box::new(move |from, roce| {
        if !done && from != side && Opcode(roce[0]).kind() == PacketKind::Ack {
            let psn = u32::from_be_bytes([0, roce[9], roce[10], roce[11]]).wrapping_add(1000);
            roce[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
            done = true;
        }
        true
    });
    let (n, seen) = scripted(wire, ahead, || send(&mut pair, side, 64, None))?;
    let copies = sent(&seen, side).filter(|s| s.is_request()).count();
    if (copies > 1) != (side == Side::Ours) {
        return Err(format!("sent {copies} times"));
    }
    if side == Side::Rxe {
        wire.evidence("rxe_ghost_ack", &seen)?;
    }
    let n = n + send(&mut pair, side, 3000, None)?;
    pair.end()?;
    Ok(n)
}

/// Runs all of them.
pub fn all(report: &mut Report, link: &Link, wire: &Mangler) {
    for &(what, op, len, how) in REFUSED {
        report.both(&format!("NAK 0x61, {what}"), "", |s| {
            refused(link, wire, s, op, len, how).map(|done| done.0)
        });
    }
    for &(what, how) in DROPPED {
        report.both(&format!("{what}: dropped, sent again"), "", |s| dropped(link, wire, s, how));
    }
    let name = "ACK of a PSN that was never sent: dropped";
    report.both(name, "", |s| ghost_ack(link, wire, s));
    report.remark(
        name,
        Side::Rxe,
        "rxe is wrong: it treats the request as acknowledged (rxe_ghost_ack.pcap)",
    );
}
