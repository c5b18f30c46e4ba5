//! Interoperation cases of ATOMIC WRITE and FLUSH (IBTA Annex A19), which rxe has from Linux 6.2
//! on.
//!
//! rxe computes another ICRC of FLUSHes than the standard says, so none gets through between it and
//! another stack: `packets::swap_flush_icrc` has the difference. The wire mends it in both
//! directions, and everything else is compared as it is.

use super::cases::{self, half, lengths, read, write};
use super::faults::{refusal, refused, with_nak};
use super::forged;
use super::guest::{give_way, Link};
use super::headers::{numbered, scripted, sent, watched};
use super::lab::Lab;
use super::lossy::nothing_is_late;
use super::mangle::{Fault, Mangler, Script};
use super::packets::{Moment, Seen};
use super::pair::Pair;
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::ends::{Op, Shape};
use crate::patience::deadline;
use crate::rdmacm::command;
use crate::tools::Running;
use gdrcore_core::verbs::types::{access, flush_level, flush_type, qp_type, wc_opcode, wc_status};
use gdrcore_core::wire::{Opcode, PacketKind, Syndrome};
use gdrcore_testkit::packet::View;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit of a program.
const LIMIT: Duration = Duration::from_secs(60);
/// The TCP ports of the programs are above it.
const TOOL_PORT: u16 = 7100;
/// Requests of either kind that are in flight at once; the QPs have 8 READs and atomics.
const AT_ONCE: u64 = 8;

/// A shape whose QP and region may be flushed. rxe treats seven retries as endless.
fn shape(mtu: u32, longest: usize) -> Shape {
    let shape = cases::shape(qp_type::RC, mtu, longest);
    Shape { access: shape.access | access::FLUSH_GLOBAL, retry_cnt: 6, ..shape }
}

/// What rxe's ICRC of a FLUSH is, and what becomes of one with the ICRC of the standard.
fn icrcs(report: &mut Report, link: &Link, wire: &Mangler) {
    let name = "RC FLUSH, its ICRC";
    wire.mend(true);
    report.case(name, Side::Rxe, "", || {
        let mut pair = Pair::new(link, shape(3, 8192))?;
        let (n, seen) = watched(wire, || flushed(&mut pair, Side::Rxe, 5000, flush_level::RANGE))?;
        if wire.mended() > 0 {
            // As they were before the wire mended them.
            let as_sent = sent(&seen, Side::Rxe);
            let before: Vec<Seen> =
                as_sent.map(|s| Seen { moment: Moment::Delivered, ..s.clone() }).collect();
            wire.evidence("rxe_flush_icrc", &before)?;
        }
        pair.end()?;
        Ok(n)
    });
    if wire.mended() == 0 {
        return;
    }
    report.remark(
        name,
        Side::Rxe,
        "rxe is wrong: its ICRC covers the packet twice (rxe_flush_icrc.pcap); the wire mends it",
    );
    report.case(name, Side::Ours, "", || {
        wire.mend(false);
        let shape = Shape { timeout: 14, retry_cnt: 2, ..shape(3, 8192) };
        let mut pair = Pair::new(link, shape)?;
        let id = pair.post(Side::Ours, flush(0, 64, flush_level::RANGE), 0, 0)?;
        let done = pair.ends_with(Side::Ours, id, wc_status::RETRY_EXC_ERR);
        wire.mend(true);
        done?;
        pair.end()?;
        Ok(1)
    });
    report.remark(
        name,
        Side::Ours,
        "rxe is wrong: it drops a FLUSH with the ICRC of the standard; below the wire mends it",
    );
}

/// A FLUSH of the global type of a range, or of the whole region.
fn flush(at: usize, length: usize, level: u32) -> Op {
    Op::Flush(at as u64, length as u64, flush_type::GLOBAL, level)
}

/// Waits for a completion of this opcode.
fn completes(pair: &mut Pair, side: Side, id: u64, opcode: u32) -> Outcome<()> {
    let wc = pair.succeed(side, id)?;
    match wc.opcode == opcode {
        true => Ok(()),
        false => Err(format!("completed as {wc:?}")),
    }
}

/// Words, one by one and then at once; the bytes around each stay.
fn words(pair: &mut Pair, side: Side) -> Outcome<usize> {
    let to = half(pair);
    let mut n = 0;
    for (i, value) in [0, 1, u64::MAX, 0x0807_0605_0403_0201, 1 << 63].into_iter().enumerate() {
        let at = to + 4096 - 16 + 8 * i;
        pair.set(side.other(), at - 8, 24, 0xEE)?;
        pair.word(side, 0, Some(value))?;
        let id = pair.post(side, Op::AtomicWrite(at as u64), 0, 8)?;
        completes(pair, side, id, wc_opcode::ATOMIC_WRITE)?;
        let found = pair.word(side.other(), at, None)?;
        if found != value {
            return Err(format!("{value:#x} was stored as {found:#x}"));
        }
        pair.untouched(side.other(), at - 8, 8, 0xEE)?;
        pair.untouched(side.other(), at + 8, 8, 0xEE)?;
        n += 1;
    }
    pair.fill(side, 0, 8 * AT_ONCE as usize, 77)?;
    pair.set(side.other(), to, 8 * AT_ONCE as usize + 8, 0xEE)?;
    let mut ids = Vec::new();
    for i in 0..AT_ONCE {
        ids.push(pair.post(side, Op::AtomicWrite(to as u64 + 8 * i), 8 * i as usize, 8)?);
    }
    for id in ids {
        completes(pair, side, id, wc_opcode::ATOMIC_WRITE)?;
        n += 1;
    }
    pair.check(side.other(), to, 8 * AT_ONCE as usize, 77)?;
    pair.untouched(side.other(), to + 8 * AT_ONCE as usize, 8, 0xEE)?;
    Ok(n)
}

/// A WRITE with an ATOMIC WRITE behind it: the responder that sees the word finds all bytes.
fn announced(pair: &mut Pair, side: Side, len: usize) -> Outcome<usize> {
    let (to, seed) = (half(pair), len as u64 * 47 + 3);
    let word = to + len.next_multiple_of(8) + 8;
    pair.set(side.other(), to, word + 8 - to, 0xEE)?;
    pair.fill(side, 0, len, seed)?;
    let source = len.next_multiple_of(8);
    pair.word(side, source, Some(seed))?;
    pair.post_as(side, Op::Write(to as u64, None), 0, len, 0, None)?;
    let id = pair.post(side, Op::AtomicWrite(word as u64), source, 8)?;
    let end = deadline(60);
    while pair.word(side.other(), word, None)? != seed {
        if Instant::now() > end {
            return Err("the word does not come".into());
        }
        let _ = pair.our.dev.progress();
        give_way(0);
    }
    pair.check(side.other(), to, len, seed)?;
    pair.untouched(side.other(), to + len, word - to - len, 0xEE)?;
    completes(pair, side, id, wc_opcode::ATOMIC_WRITE)?;
    Ok(2)
}

/// A WRITE that nothing but the FLUSH behind it reports.
fn flushed(pair: &mut Pair, side: Side, len: usize, level: u32) -> Outcome<usize> {
    let (to, seed) = (half(pair), len as u64 * 53 + 7 + u64::from(level));
    pair.fill(side, 0, len, seed)?;
    pair.set(side.other(), to, len + 8, 0xEE)?;
    pair.post_as(side, Op::Write(to as u64, None), 0, len, 0, None)?;
    let id = pair.post(side, flush(to, len, level), 0, 0)?;
    completes(pair, side, id, wc_opcode::FLUSH)?;
    pair.check(side.other(), to, len, seed)?;
    pair.untouched(side.other(), to + len, 8, 0xEE)?;
    Ok(2)
}

/// Rounds of WRITE, FLUSH (if wanted), ATOMIC WRITE and READ with nothing waited for in between; on
/// a wire that keeps packets back rxe's READs wait, for the reason of [`nothing_is_late`].
fn mixture(
    pair: &mut Pair,
    side: Side,
    rounds: u64,
    flushes: bool,
    late: Option<&Mangler>,
) -> Outcome<usize> {
    const LEN: usize = 6000;
    let to = half(pair);
    for round in 0..rounds {
        let seed = 900 + round;
        pair.fill(side, 0, LEN, seed)?;
        pair.word(side, LEN, Some(seed))?;
        pair.set(side.other(), to, LEN + 16, 0xEE)?;
        let level = if round % 2 == 0 { flush_level::RANGE } else { flush_level::MR };
        let mut ids = vec![pair.post(side, Op::Write(to as u64, None), 0, LEN)?];
        if flushes {
            ids.push(pair.post(side, flush(to, LEN, level), 0, 0)?);
        }
        ids.push(pair.post(side, Op::AtomicWrite((to + LEN) as u64), LEN, 8)?);
        if let (Some(wire), Side::Rxe) = (late, side) {
            for id in ids.drain(..) {
                pair.succeed(side, id)?;
            }
            nothing_is_late(pair.link, wire)?;
        }
        ids.push(pair.post(side, Op::Read(to as u64), to, LEN + 8)?);
        for id in ids {
            pair.succeed(side, id)?;
        }
        for at in [side, side.other()] {
            pair.check(at, to, LEN, seed)?;
            if pair.word(at, to + LEN, None)? != seed {
                return Err(format!("{at:?}: round {round}: the word is wrong"));
            }
        }
        pair.untouched(side.other(), to + LEN + 8, 8, 0xEE)?;
    }
    Ok((3 + usize::from(flushes)) * rounds as usize)
}

/// The form of a request and of its answer, whoever sends them: lengths, FETH, RETH, an answer
/// without data.
fn well_formed(seen: &[Seen], side: Side, asked: (usize, usize)) -> Outcome<()> {
    let mut found = (BTreeSet::new(), BTreeSet::new());
    for request in sent(seen, side).filter_map(Seen::view) {
        let (size, reth, psn) = (request.bytes().len(), request.reth(), request.bth().psn);
        let is_right = match request.opcode().kind() {
            PacketKind::AtomicWrite => {
                found.0.insert(psn.get());
                size == 12 + 16 + 8 && reth.is_some_and(|r| r.len == 8)
            }
            PacketKind::Flush => {
                found.1.insert(psn.get());
                size == 12 + 4 + 16 && request.feth().is_some_and(|f| f.is_legal())
            }
            _ => continue,
        };
        if !is_right {
            return Err(format!("{side:?} asks with {:02x?}", request.bytes()));
        }
        let answered = sent(seen, side.other()).filter_map(Seen::view).any(|a| {
            let acks = |aeth: gdrcore_core::wire::Aeth| aeth.meaning() == Syndrome::ACK;
            a.opcode().kind() == PacketKind::ReadResponse
                && a.bth().psn == psn
                && a.payload().is_empty()
                && a.aeth().is_some_and(acks)
        });
        if !answered {
            return Err(format!("no empty READ response at PSN {psn:?}"));
        }
    }
    // A probe is the same packet again.
    let found = (found.0.len(), found.1.len());
    match found == asked {
        true => Ok(()),
        false => Err(format!("{found:?} requests crossed the wire, not {asked:?}")),
    }
}

/// Requests one by one: the form of all packets, and the MSN of every answer.
fn packets(link: &Link, wire: &Mangler, side: Side) -> Outcome<usize> {
    let mut pair = Pair::new(link, shape(3, 65_536))?;
    let to = half(&pair);
    let (n, seen) = watched(wire, || {
        let mut n = 0;
        for _ in 0..3 {
            // With immediate data: without, ours is a message for each of its packets.
            n += write(&mut pair, side, 3000, Some(9))? + read(&mut pair, side, 3000)?;
            for op in [
                Op::AtomicWrite(to as u64),
                flush(to, 3000, flush_level::RANGE),
                flush(0, 0, flush_level::MR),
            ] {
                let len = if matches!(op, Op::AtomicWrite(_)) { 8 } else { 0 };
                let id = pair.post(side, op, 0, len)?;
                pair.succeed(side, id)?;
                n += 1;
            }
        }
        Ok(n)
    })?;
    pair.end()?;
    numbered(&seen, side, n)?;
    well_formed(&seen, side, (3, 6))?;
    Ok(n)
}

/// One refusal over a connection of its own: `prepare` takes a right away and may return another
/// key. Two WRITEs behind it are flushed, and the wire carries the NAK of the status.
fn is_refused(
    link: &Link,
    side: Side,
    op: Op,
    status: u32,
    prepare: impl FnOnce(&mut Pair) -> Outcome<Option<u32>>,
) -> Outcome<usize> {
    let len = if matches!(op, Op::AtomicWrite(_)) { 8 } else { 0 };
    refusal(link, shape(3, 65_536), |p| {
        let key = prepare(p)?;
        with_nak(link, side, status, None, || refused(p, side, op, len, key, status))
    })
}

/// Refusals of FLUSH: by the region, by the QP, by key and range.
fn refused_flushes(report: &mut Report, link: &Link) {
    use wc_status::{REM_ACCESS_ERR, REM_INV_REQ_ERR};
    let remote = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let persistent = access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;
    let end = shape(3, 65_536).buffer;
    for (what, level) in [("range", flush_level::RANGE), ("region", flush_level::MR)] {
        let global = flush(0, 64, level);
        let lasting = Op::Flush(0, 64, flush_type::PERSISTENT, level);
        let both = Op::Flush(0, 64, flush_type::PERSISTENT | flush_type::GLOBAL, level);
        let bare =
            |p: &mut Pair, s: Side| p.region(s.other(), access::LOCAL_WRITE | remote).map(Some);
        report.both("NAK 0x62, FLUSH of a region without FLUSH_GLOBAL", what, |s| {
            is_refused(link, s, global, REM_ACCESS_ERR, |p| bare(p, s))
        });
        for op in [lasting, both] {
            report.both("NAK 0x62, persistent FLUSH, which no region allows", what, |s| {
                let rights = remote | persistent;
                is_refused(link, s, op, REM_ACCESS_ERR, |p| {
                    p.allow(s.other(), rights).map(|()| None)
                })
            });
            report.both("NAK 0x61, persistent FLUSH, QP without FLUSH_PERSISTENT", what, |s| {
                is_refused(link, s, op, REM_INV_REQ_ERR, |_| Ok(None))
            });
        }
        report.both("NAK 0x61, FLUSH, QP without FLUSH_GLOBAL", what, |s| {
            is_refused(link, s, global, REM_INV_REQ_ERR, |p| {
                p.allow(s.other(), remote).map(|()| None)
            })
        });
        report.both("NAK 0x62, FLUSH with a wrong key", what, |s| {
            is_refused(link, s, global, REM_ACCESS_ERR, |_| Ok(Some(0x00BA_D000)))
        });
    }
    for (what, at, length) in
        [("ends behind it", end - 8, 16), ("begins behind it", end + 8, 8), ("longer", 0, end + 1)]
    {
        let op = flush(at, length, flush_level::RANGE);
        report.both("NAK 0x62, FLUSH of a range out of the region", what, |s| {
            is_refused(link, s, op, REM_ACCESS_ERR, |_| Ok(None))
        });
    }
}

/// Refusals of ATOMIC WRITE.
fn refused_words(report: &mut Report, link: &Link) {
    use wc_status::{REM_ACCESS_ERR, REM_INV_REQ_ERR};
    let end = shape(3, 65_536).buffer as u64;
    let read_only = access::LOCAL_WRITE | access::REMOTE_READ;
    report.both("NAK 0x62, ATOMIC WRITE with a wrong key", "", |s| {
        let op = Op::AtomicWrite(0);
        is_refused(link, s, op, REM_ACCESS_ERR, |_| Ok(Some(0x00BA_D000)))
    });
    report.both("NAK 0x62, ATOMIC WRITE out of the region", "", |s| {
        is_refused(link, s, Op::AtomicWrite(end), REM_ACCESS_ERR, |_| Ok(None))
    });
    report.both("NAK 0x62, ATOMIC WRITE into a region without REMOTE_WRITE", "", |s| {
        let bare = |p: &mut Pair| p.region(s.other(), read_only).map(Some);
        is_refused(link, s, Op::AtomicWrite(0), REM_ACCESS_ERR, bare)
    });
    report.both("NAK 0x61, ATOMIC WRITE, QP without REMOTE_WRITE", "", |s| {
        is_refused(link, s, Op::AtomicWrite(0), REM_INV_REQ_ERR, |p| {
            p.allow(s.other(), access::REMOTE_READ).map(|()| None)
        })
    });
}

/// What the wire loses once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Request,
    Answer,
}

/// The addresses of a side's FLUSHes and ATOMIC WRITEs, packet by packet, and the PSN of the first.
fn addresses(seen: &[Seen], side: Side) -> (Vec<u64>, Option<u32>) {
    let asks: Vec<_> = sent(seen, side).filter_map(Seen::view).filter(is_a19).collect();
    let first = asks.first().map(|v| v.bth().psn.get());
    (asks.iter().filter_map(|v| Some(v.reth()?.va)).collect(), first)
}

fn is_a19(view: &View<'_>) -> bool {
    matches!(view.opcode().kind(), PacketKind::AtomicWrite | PacketKind::Flush)
}

/// The first packet with the request or with its answer is lost, so the request is sent again.
/// Returns whether rxe was wrong: it sends another address, or does not answer twice.
fn sent_again(link: &Link, wire: &Mangler, side: Side, op: Op, lost: Lost) -> Outcome<bool> {
    let word = matches!(op, Op::AtomicWrite(_));
    // Few where rxe is expected to use them up.
    let few = lost == Lost::Answer && (side == Side::Rxe || !word);
    let shape = Shape { retry_cnt: if few { 2 } else { 6 }, ..shape(3, 8192) };
    let mut pair = Pair::new(link, shape)?;
    let (to, mut done) = (half(&pair), false);
    pair.set(side.other(), to, 4096, 0xEE)?;
    pair.word(side, 0, Some(0x1234))?;
    let once: Script = Box::new(move |from, roce| {
        let is_it = match (lost, Opcode(roce[0]).kind()) {
            (Lost::Request, PacketKind::AtomicWrite | PacketKind::Flush) => from == side,
            (Lost::Answer, PacketKind::ReadResponse) => from != side,
            _ => false,
        };
        let passes = done || !is_it;
        done |= is_it;
        passes
    });
    let (wc, seen) = scripted(wire, once, || {
        pair.post_as(side, Op::Write((to + 8) as u64, None), 0, 4000, 0, None)?;
        let id = pair.post(side, op, 0, if word { 8 } else { 0 })?;
        pair.wait(side, id)
    })?;
    let (asked, psn) = addresses(&seen, side);
    if asked.len() < 2 {
        return Err(format!("sent {} times", asked.len()));
    }
    let same = asked.iter().all(|va| va == &asked[0]);
    let answers = sent(&seen, side.other())
        .filter_map(Seen::view)
        .filter(|v| v.opcode().kind() == PacketKind::ReadResponse && Some(v.bth().psn.get()) == psn)
        .count();
    let failed = wc.status != wc_status::SUCCESS;
    let silent = failed && !word && lost == Lost::Answer && answers == 1;
    let evidence = match side {
        // That it ends well is possible too: an ACK of the WRITE, sent again as well, ends it.
        Side::Rxe if !same => Some("rxe_sent_again"),
        Side::Ours if silent => Some("rxe_flush_duplicate"),
        _ => None,
    };
    if let Some(name) = evidence {
        wire.evidence(name, &seen)?;
        pair.end()?;
        return Ok(true);
    }
    if failed || !same {
        return Err(format!("{asked:x?}, {answers} answers: {wc:?}"));
    }
    if word && pair.word(side.other(), to, None)? != 0x1234 {
        return Err("the word is not there".into());
    }
    pair.end()?;
    Ok(false)
}

/// What is lost is sent again as it was, and answered again.
fn again(report: &mut Report, link: &Link, wire: &Mangler) {
    let at = shape(3, 8192).buffer / 2;
    for (name, lost) in [
        ("RC FLUSH and ATOMIC WRITE, request lost", Lost::Request),
        ("RC FLUSH and ATOMIC WRITE, answer lost", Lost::Answer),
    ] {
        let mut is_wrong = [false; 2];
        for (what, op) in [
            ("FLUSH", flush(at, 4000, flush_level::RANGE)),
            ("ATOMIC WRITE", Op::AtomicWrite(at as u64)),
        ] {
            report.both(name, what, |side| {
                is_wrong[side as usize] |= sent_again(link, wire, side, op, lost)?;
                Ok(1)
            });
        }
        if is_wrong[Side::Ours as usize] {
            let wrong = "rxe is wrong: it answers no FLUSH twice (rxe_flush_duplicate.pcap)";
            report.remark(name, Side::Ours, wrong);
        }
        if is_wrong[Side::Rxe as usize] {
            let wrong = "rxe is wrong: it sends both again with address 0 (rxe_sent_again.pcap)";
            report.remark(name, Side::Rxe, wrong);
        }
    }
}

/// Over bad wires: what was executed is not executed again, so a stale word or a missing byte
/// shows. Where rxe cannot repeat a request or an answer (see [`sent_again`]) packets are only
/// doubled.
fn bad_wires(report: &mut Report, link: &Link, wire: &Mangler) {
    use Fault::{Corrupt, Drop, Duplicate, Reorder};
    let all: &[_] = &[(Drop, 200), (Duplicate, 200), (Reorder, 200), (Corrupt, 100)];
    let doubled: &[_] = &[(Duplicate, 1000)];
    for (name, flushes) in
        [("RC ATOMIC WRITE over a bad wire", false), ("RC FLUSH over a bad wire", true)]
    {
        for seed in [1u64, 2] {
            let what = format!("{}, seed {seed}", link.name);
            report.both(name, &what, |side| {
                let shape = Shape { timeout: 16, ..shape(3, 65_536) };
                let mut pair = Pair::new(link, shape)?;
                wire.watch();
                wire.set(seed, if side == Side::Ours && !flushes { all } else { doubled });
                let done = mixture(&mut pair, side, 8, flushes, Some(wire));
                wire.set(0, &[]);
                let n = wire.explain(done)?;
                pair.end()?;
                Ok(n)
            });
        }
        report.remark(name, Side::Rxe, "10 % doubled, none lost: rxe cannot send again");
        if flushes {
            report.remark(name, Side::Ours, "10 % doubled, none lost: rxe cannot answer again");
        }
    }
}

/// A program at both ends, ours on the drop-in at the address `near`, theirs with the GID of this
/// index: WRITEs and FLUSHes, ATOMIC WRITEs, a FLUSH that is refused.
fn tool(lab: &Lab, share: &Path, side: Side, near: &str, index: u32, port: u16) -> Outcome<usize> {
    let line = |at: &str, index: u32, requests: bool, peer: &str| {
        format!("{at} {index} {port} {}", if requests { peer } else { "" })
    };
    let ours = line("gdrc0", 1, side == Side::Ours, "10.77.1.2");
    let theirs = line("rxe0", index, side == Side::Rxe, "10.77.1.1");
    let mut command = command(Some(near), &[], share.join("a19"));
    command.args(ours.split_whitespace());
    let theirs = lab.vm.begin(&format!("exec ./a19 {theirs}"), 60);
    let ours = Running::start(&mut command).finish(LIMIT);
    let theirs = theirs.finish(LIMIT);
    let messages = [&ours, &theirs].into_iter().try_fold(0, |sum, done| {
        let said = done.output.lines().find_map(|l| l.strip_prefix("ok, "))?;
        let n: usize = said.split(' ').next()?.parse().ok()?;
        done.ok().then_some(sum + n)
    });
    messages.ok_or_else(|| {
        let (ours, theirs) = (ours.output.trim(), theirs.output.trim());
        format!("ours says {ours}; the kernel's {theirs}")
    })
}

/// The program over the addresses of some links: each our own, and the index of the far end's GID.
pub fn tools(report: &mut Report, lab: &Lab, share: &Path, links: &[(String, u32)]) {
    let name = "a program of rdma-core 56 at both ends, ours on the drop-in";
    let mut port = TOOL_PORT;
    for (near, index) in links {
        report.both(name, near, |side| {
            port += 1;
            tool(lab, share, side, near, *index, port)
        });
    }
}

/// Runs all of them over one link; `first`: also those whose result does not depend on the address
/// family.
pub fn all(report: &mut Report, link: &Link, wire: &Mangler, first: bool) {
    if first {
        icrcs(report, link, wire);
    }
    let mtus: &[u32] = if first { &[1, 3, 5] } else { &[3] };
    for &mtu in mtus {
        let what = format!("{}, MTU {}", link.name, 128 << mtu);
        let lengths = lengths(mtu);
        let shape = shape(mtu, 8 * (128 << mtu));
        let over = |one: &dyn Fn(&mut Pair, usize) -> Outcome<usize>| {
            let mut pair = Pair::new(link, shape)?;
            let mut n = 0;
            for &len in &lengths {
                n += one(&mut pair, len).map_err(|e| format!("{len} bytes: {e}"))?;
            }
            pair.end()?;
            Ok(n)
        };
        report.both("RC ATOMIC WRITE", &what, |s| {
            let mut pair = Pair::new(link, shape)?;
            let n = words(&mut pair, s)?;
            pair.end()?;
            Ok(n)
        });
        report.both("RC ATOMIC WRITE behind a WRITE", &what, |s| over(&|p, l| announced(p, s, l)));
        for (name, level) in
            [("RC FLUSH of a range", flush_level::RANGE), ("RC FLUSH of a region", flush_level::MR)]
        {
            report.both(name, &what, |s| over(&|p, l| flushed(p, s, l, level)));
        }
        report.both("RC WRITE, FLUSH, ATOMIC WRITE and READ at once", &what, |s| {
            let mut pair = Pair::new(link, shape)?;
            let n = mixture(&mut pair, s, 4, true, None)?;
            pair.end()?;
            Ok(n)
        });
    }
    if first {
        let name = "FLUSH and ATOMIC WRITE: form of the packets, MSN of every answer";
        report.both(name, "", |s| packets(link, wire, s));
        refused_flushes(report, link);
        refused_words(report, link);
        report.both("NAK 0x61, misaligned ATOMIC WRITE", "", |s| {
            let op = Op::AtomicWrite(0);
            forged::refused(link, wire, s, op, 8, forged::misalign).map(|done| done.0)
        });
        again(report, link, wire);
        bad_wires(report, link, wire);
    }
}
