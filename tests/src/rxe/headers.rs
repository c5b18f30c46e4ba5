//! Interoperation cases that read headers on the wire: MSNs and credits, P_Keys, NAK codes.

use super::cases::{self, half, read, send, write};
use super::guest::Link;
use super::mangle::{Mangler, Script};
use super::packets::{Moment, Seen};
use super::pair::Pair;
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::ends::{Op, Shape};
use gdrcore_core::verbs::types::{qp_type, wc_status};
use gdrcore_core::wire::{Opcode, PacketKind, Syndrome};

/// Offset of the AETH in an answer that has one.
const AETH: usize = 12;

/// Runs a case and returns the packets that crossed meanwhile. A failed case keeps its capture.
pub fn watched<T>(wire: &Mangler, case: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Vec<Seen>)> {
    wire.watch();
    match case() {
        Ok(done) => Ok((done, wire.seen())),
        Err(e) => wire.explain(Err(e)),
    }
}

/// As [`watched`], with a script that changes packets.
pub fn scripted<T>(
    wire: &Mangler,
    script: Script,
    case: impl FnOnce() -> Outcome<T>,
) -> Outcome<(T, Vec<Seen>)> {
    wire.script(Some(script));
    let done = watched(wire, case);
    wire.script(None);
    done
}

/// The packets that `side` sent.
pub fn sent(seen: &[Seen], side: Side) -> impl Iterator<Item = &Seen> {
    seen.iter().filter(move |s| s.from == side && s.moment == Moment::Sent)
}

/// The NAKs that `side` sent: PSN and syndrome.
pub fn naks(seen: &[Seen], side: Side) -> Vec<(u32, u8)> {
    sent(seen, side).filter_map(Seen::nak).collect()
}

/// Whether the packet is a request.
pub fn is_request(roce: &[u8]) -> bool {
    matches!(
        Opcode(roce[0]).kind(),
        PacketKind::Send
            | PacketKind::Write
            | PacketKind::ReadRequest
            | PacketKind::CmpSwap
            | PacketKind::FetchAdd
            | PacketKind::AtomicWrite
            | PacketKind::Flush
    )
}

/// Messages of every kind, each complete before the next. The MSN of every answer must be the
/// number of complete messages (a READ counts from its request on). No answer may limit credits:
/// neither stack has end-to-end flow control.
fn message_numbers(link: &Link, wire: &Mangler, side: Side) -> Outcome<usize> {
    let mut pair = Pair::new(link, cases::shape(qp_type::RC, 3, 65_536))?;
    let to = half(&pair);
    let (n, seen) = watched(wire, || {
        let mut n = 0;
        for round in 0..3 {
            // With immediate data: without, ours is a message for each of its packets.
            n += send(&mut pair, side, 5000, None)? + write(&mut pair, side, 3000, Some(9))?;
            n += read(&mut pair, side, 3000)? + write(&mut pair, side, 100, Some(round))?;
            for op in [Op::FetchAdd(8, 1), Op::CmpSwap(8, 1, 2)] {
                let id = pair.post(side, op, to, 8)?;
                pair.succeed(side, id)?;
                n += 1;
            }
            n += send(&mut pair, side, 0, Some(1))?;
        }
        Ok(n)
    })?;
    pair.end()?;
    numbered(&seen, side, n)?;
    Ok(n)
}

/// Checks the answers to `n` messages of `side`: the MSN of each is the number of complete
/// messages, and none limits credits.
pub fn numbered(seen: &[Seen], side: Side, n: usize) -> Outcome<()> {
    // The PSN at which each message ended, and whether it counts from its request on.
    let mut ends = Vec::new();
    for view in sent(seen, side).filter(|s| s.is_request()).filter_map(Seen::view) {
        let (psn, op) = (view.bth().psn.get(), view.opcode());
        let end = match view.reth() {
            Some(reth) if op.kind() == PacketKind::ReadRequest => {
                psn + reth.len.div_ceil(1024).max(1) - 1
            }
            _ => psn,
        };
        let end = end & 0xFF_FFFF;
        // A probe is the same packet again, or the rest of a READ.
        if op.is_last() && ends.last().map(|last: &(u32, u32)| last.1) != Some(end) {
            ends.push((psn, end));
        }
    }
    let mut answers = 0;
    for answer in sent(seen, side.other()) {
        let (Some(psn), Some(aeth)) = (answer.psn(), answer.aeth()) else { continue };
        let reached = |&&(first, last): &&(u32, u32)| {
            let upto = if last == first { last } else { first };
            psn.wrapping_sub(upto) & 0xFF_FFFF < 1 << 23
        };
        let complete = ends.iter().filter(reached).count();
        if aeth.meaning() != Syndrome::ACK || aeth.msn as usize != complete {
            return Err(format!(
                "{:?} with MSN {} after {complete} messages",
                aeth.meaning(),
                aeth.msn
            ));
        }
        answers += 1;
    }
    if ends.len() != n || answers < n {
        return Err(format!("{n} messages: {} seen, {answers} answers", ends.len()));
    }
    Ok(())
}

/// Answers with limited credits, which neither stack sends by itself: the requester must go on,
/// with at least one message at a time.
fn limited_credits(link: &Link, wire: &Mangler, side: Side) -> Outcome<usize> {
    let mut next = 0u8;
    let script: Script = Box::new(move |from, roce| {
        if from != side && Opcode(roce[0]).has_aeth() && roce[AETH] >> 5 == 0 {
            roce[AETH] = next;
            next = (next + 1) % 31;
        }
        true
    });
    let mut pair = Pair::new(link, cases::shape(qp_type::RC, 3, 65_536))?;
    let (n, seen) = scripted(wire, script, || {
        let mut n = 0;
        for _ in 0..6 {
            n += send(&mut pair, side, 3000, None)? + write(&mut pair, side, 3000, None)?;
            n += read(&mut pair, side, 3000)?;
        }
        for i in 0..8 {
            pair.recv(side.other(), half(&pair) + 4096 * i, 4096)?;
        }
        let ids: Vec<u64> =
            (0..8).map(|_| pair.post(side, Op::Send(None), 0, 2000)).collect::<Outcome<_>>()?;
        for id in ids {
            pair.succeed(side, id)?;
            n += 1;
        }
        Ok(n)
    })?;
    pair.end()?;
    let limited = |s: &&Seen| {
        matches!(s.aeth().map(|a| a.meaning()), Some(Syndrome::Ack { credits: 0..=30 }))
    };
    if seen.iter().filter(|s| s.moment == Moment::Delivered).filter(limited).count() < n {
        return Err("no answer carried limited credits".into());
    }
    Ok(n)
}

/// Changes the P_Key of the next packet of `side` that `which` accepts.
fn other_partition(side: Side, pkey: u16, which: fn(&[u8]) -> bool) -> Script {
    let mut done = false;
    Box::new(move |from, roce| {
        if !done && from == side && which(roce) {
            roce[2..4].copy_from_slice(&pkey.to_be_bytes());
            done = true;
        }
        true
    })
}

/// A request or an answer with the P_Key of another partition must be dropped without an answer,
/// and sent again after its timeout. The key of a limited member of the default partition is
/// accepted.
fn partitions(report: &mut Report, link: &Link, wire: &Mangler) {
    let once = |side: Side, of: Side, pkey: u16, again: bool| {
        // Where no retransmission is expected, a slow answer must not cause one: 2^21 * 4 us are
        // eight seconds.
        let timeout = if again { 17 } else { 21 };
        let mut pair = Pair::new(link, Shape { timeout, ..cases::shape(qp_type::RC, 3, 4096) })?;
        // An acknowledged message first: rxe accepts no NAK before it.
        send(&mut pair, side, 64, None)?;
        let which: fn(&[u8]) -> bool =
            if of == side { is_request } else { |roce| !is_request(roce) };
        let (n, seen) =
            scripted(wire, other_partition(of, pkey, which), || send(&mut pair, side, 64, None))?;
        let copies = sent(&seen, side).filter(|s| s.is_request()).count();
        let refused = naks(&seen, side.other());
        // Our side probes after a millisecond without an answer; on a busy machine the answer may
        // only be slow.
        let retransmitted = again || side == Side::Rxe;
        if retransmitted && (copies > 1) != again || !refused.is_empty() {
            return Err(format!("sent {copies} times, NAKs {refused:?}"));
        }
        let count = pair.our.dev.qp_counters(pair.our.qp).map_err(|e| e.to_string())?.rcvd_refused;
        if of == Side::Rxe && (count > 0) != again {
            return Err(format!("our device counted {count} refused packets"));
        }
        pair.end()?;
        Ok(n)
    };
    report.both("P_Key of another partition: dropped, sent again", "request", |s| {
        once(s, s, 0x9234, true)
    });
    report.both("P_Key of another partition: dropped, sent again", "answer", |s| {
        once(s, s.other(), 0x9234, true)
    });
    report.both("P_Key of a limited member: taken", "request", |s| once(s, s, 0x7FFF, false));
    report.both("UD, P_Key of another partition: dropped", "", |s| {
        let mut pair = Pair::new(link, cases::shape(qp_type::UD, 3, 1024))?;
        let to = half(&pair);
        let r = pair.recv(s.other(), to, 200)?;
        let script = other_partition(s, 0x9234, is_request);
        scripted(wire, script, || {
            let id = pair.post(s, Op::Send(None), 0, 64)?;
            pair.succeed(s, id)?;
            // The receive is consumed by the next message, which holds other bytes.
            pair.fill(s, 0, 64, 5)?;
            let id = pair.post(s, Op::Send(None), 0, 64)?;
            pair.succeed(s, id)?;
            pair.succeed(s.other(), r)
        })?;
        pair.check(s.other(), to + 40, 64, 5)?;
        pair.end()?;
        Ok(1)
    });
}

/// The third packet of a message is lost. One NAK 0x60 with its PSN must come, and alone cause the
/// retransmission: both ends have no ACK timeout. `twice`: the fifth packet is lost when it is sent
/// again, before any ACK; a second NAK must report it.
fn sequence_error(link: &Link, wire: &Mangler, side: Side, twice: bool) -> Outcome<usize> {
    let mut pair = Pair::new(link, Shape { timeout: 0, ..cases::shape(qp_type::RC, 3, 65_536) })?;
    send(&mut pair, side, 64, None)?;
    let first = if side == Side::Ours { pair.our.own.psn } else { pair.far.own.psn } + 1;
    let mut seen_times = [0; 8];
    let lose: Script = Box::new(move |from, roce| {
        let psn = u32::from_be_bytes([0, roce[9], roce[10], roce[11]]);
        let at = psn.wrapping_sub(first) as usize & 0xFF_FFFF;
        if from != side {
            // No ACK between the two NAKs.
            return !twice || seen_times[5] > 1 || roce[AETH] >> 5 != 0;
        }
        if !is_request(roce) || at >= seen_times.len() {
            return true;
        }
        seen_times[at] += 1;
        !(at == 2 && seen_times[2] == 1 || twice && at == 4 && seen_times[4] == 2)
    });
    let (n, seen) = scripted(wire, lose, || write(&mut pair, side, 8000, None))?;
    pair.end()?;
    let mut want = vec![((first + 2) & 0xFF_FFFF, 0x60)];
    if twice {
        want.push(((first + 4) & 0xFF_FFFF, 0x60));
    }
    let refused = naks(&seen, side.other());
    if refused != want {
        return Err(format!("NAKs {refused:x?} instead of {want:x?}"));
    }
    Ok(n)
}

/// Runs all of them.
pub fn all(report: &mut Report, link: &Link, wire: &Mangler) {
    report.both("MSN of every answer, credits unlimited", "", |s| message_numbers(link, wire, s));
    report.both("answers with credits 0 to 30", "", |s| limited_credits(link, wire, s));
    partitions(report, link, wire);
    report.both("NAK 0x60, one for a lost packet", "", |s| sequence_error(link, wire, s, false));
    report
        .both("NAK 0x60, a second one before any ACK", "", |s| sequence_error(link, wire, s, true));
}

/// Checks that a refusal was sent with this NAK code and the PSN of a packet of the request.
pub fn expect_nak(seen: &[Seen], responder: Side, code: u8) -> Outcome<()> {
    let refused = naks(seen, responder);
    let asked: Vec<u32> =
        sent(seen, responder.other()).filter(|s| s.is_request()).filter_map(Seen::psn).collect();
    if !refused.is_empty() && refused.iter().all(|(psn, c)| *c == code && asked.contains(psn)) {
        return Ok(());
    }
    Err(format!("NAKs {refused:x?} instead of {code:#x} for one of {asked:x?}"))
}

/// The NAK code that belongs to a requester's status.
pub fn code_of(status: u32) -> u8 {
    match status {
        wc_status::REM_INV_REQ_ERR => 0x61,
        wc_status::REM_ACCESS_ERR => 0x62,
        _ => 0x63,
    }
}
