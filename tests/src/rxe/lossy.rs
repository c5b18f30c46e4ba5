//! Interoperation cases over a wire that loses, duplicates, reorders, corrupts and delays packets,
//! and over one that marks them.

use super::cases::{self, half};
use super::guest::Link;
use super::mangle::{Fault, Mangler};
use super::pair::Pair;
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::ends::{Op, Shape};
use crate::patience::deadline;
use gdrcore_core::verbs::types::qp_type;
use std::time::{Duration, Instant};

/// Bytes of each message.
const LEN: usize = 100_000;

/// How long, and for how many rounds of our device, the wire has to stay still: what it has
/// delivered is read and answered by then. An owed ACK leaves after 20 us.
const STILL: (Duration, u32) = (Duration::from_millis(5), 200);

/// Waits until the wire holds no delayed packet, and nothing that it has delivered is to be
/// answered. An ACK with the PSN of a READ's last packet ends the READ for rxe although packets of
/// its response are missing (likewise for an atomic); a late copy of an earlier request causes such
/// an ACK, and an ACK may be copied itself.
pub(super) fn nothing_is_late(link: &Link, wire: &Mangler) -> Outcome<()> {
    let end = deadline(60);
    let (mut since, mut rounds, mut crossed) = (Instant::now(), 0, u64::MAX);
    while since.elapsed() < STILL.0 || rounds < STILL.1 {
        if Instant::now() > end {
            return Err("the wire keeps packets back".into());
        }
        let _ = link.dev.progress();
        rounds += 1;
        if !wire.is_empty() || wire.counts().0 != crossed {
            (since, rounds, crossed) = (Instant::now(), 0, wire.counts().0);
        }
    }
    Ok(())
}

/// Rounds of SEND, WRITE and READ, then FETCH_ADDs whose sum shows that each was executed once.
fn rounds(link: &Link, wire: &Mangler, side: Side, mtu: u32, n: usize) -> Outcome<usize> {
    // rxe treats seven retries as endless, and a short timer makes up for its losses. Our side
    // probes long before its timer; its retries must outlast the pauses of a busy machine.
    let shape = Shape { timeout: 16, retry_cnt: 7, ..cases::shape(qp_type::RC, mtu, 2 * LEN) };
    let mut pair = Pair::with_timeouts(link, shape, 14)?;
    let to = half(&pair);
    for round in 0..n {
        let seed = 1 + round as u64;
        pair.fill(side, 0, LEN, seed)?;
        pair.set(side.other(), to, 2 * LEN, 0xEE)?;
        let r = pair.recv(side.other(), to, LEN)?;
        let s = pair.post(side, Op::Send(Some(7)), 0, LEN)?;
        let w = pair.post(side, Op::Write((to + LEN) as u64, None), 0, LEN - 1)?;
        let wc = pair.succeed(side.other(), r)?;
        if wc.byte_len as usize != LEN || wc.imm_data != 7 {
            return Err(format!("round {round}: received as {wc:?}"));
        }
        pair.succeed(side, s)?;
        pair.succeed(side, w)?;
        pair.check(side.other(), to, LEN, seed)?;
        pair.check(side.other(), to + LEN, LEN - 1, seed)?;
        pair.untouched(side.other(), to + 2 * LEN - 1, 1, 0xEE)?;
        pair.fill(side.other(), 0, LEN, seed + 500)?;
        if side == Side::Rxe {
            nothing_is_late(link, wire)?;
        }
        let s = pair.post(side, Op::Read(0), to, LEN)?;
        pair.succeed(side, s)?;
        pair.check(side, to, LEN, seed + 500)?;
    }
    pair.word(side.other(), 8, Some(1000))?;
    if side == Side::Rxe {
        nothing_is_late(link, wire)?;
    }
    for i in 0..30u64 {
        let s = pair.post(side, Op::FetchAdd(8, 1), to, 8)?;
        pair.succeed(side, s)?;
        let before = pair.word(side, to, None)?;
        if before != 1000 + i {
            return Err(format!("FETCH_ADD {i} found {before}"));
        }
    }
    if pair.word(side.other(), 8, None)? != 1030 {
        return Err("FETCH_ADDs were lost or executed twice".into());
    }
    pair.end()?;
    Ok(3 * n + 30)
}

/// Each kind of fault alone, then all at once.
pub fn wires(report: &mut Report, link: &Link, mangler: &Mangler, n: usize) {
    use Fault::{Corrupt, Delay, Drop, Duplicate, Reorder};
    let wires: [(&str, &[(Fault, u32)]); 7] = [
        ("1 % of the packets lost", &[(Drop, 100)]),
        ("5 % lost", &[(Drop, 500)]),
        ("5 % doubled", &[(Duplicate, 500)]),
        ("5 % overtaken", &[(Reorder, 500)]),
        ("2 % damaged", &[(Corrupt, 200)]),
        ("5 % delayed by 2 to 10 ms", &[(Delay, 500)]),
        (
            "all of these at once",
            &[(Drop, 100), (Duplicate, 200), (Reorder, 200), (Corrupt, 100), (Delay, 100)],
        ),
    ];
    for (name, faults) in wires {
        for seed in [1u64, 2] {
            let mtu = if seed == 1 { 3 } else { 5 };
            report.both(
                &format!("RC over a wire with {name}"),
                &format!("{}, seed {seed}", link.name),
                |side| {
                    mangler.watch();
                    mangler.set(seed, faults);
                    let done = rounds(link, mangler, side, mtu, n);
                    mangler.set(0, &[]);
                    mangler.explain(done)
                },
            );
        }
    }
}

/// Half of the requester's packets are marked as congested. Our side answers marks with CNPs, which
/// rxe receives without harm; rxe sends none.
pub fn marks(report: &mut Report, link: &Link, mangler: &Mangler, n: usize) {
    let name = "RC over a wire that marks congestion";
    for seed in [1u64, 2] {
        let mtu = if seed == 1 { 3 } else { 5 };
        report.both(name, &format!("{}, seed {seed}", link.name), |side| {
            mangler.watch();
            mangler.set(seed, &[]);
            let counters = || link.dev.counters().map_err(|e| e.to_string());
            let (before, marked) = (counters()?, mangler.marked());
            mangler.mark(side, 5000);
            let done = rounds(link, mangler, side, mtu, n);
            mangler.mark(side, 0);
            let done = mangler.explain(done)?;
            let (after, marked) = (counters()?, mangler.marked() - marked);
            let seen = after.np_ecn_marked - before.np_ecn_marked;
            let sent = after.np_cnp_sent - before.np_cnp_sent;
            let got = after.rp_cnp_handled - before.rp_cnp_handled;
            // Our side sends one CNP per 50 us; marks on duplicates or late packets count as well.
            let ok = match side {
                Side::Rxe => seen > 0 && sent > 0 && sent <= seen && got == 0,
                Side::Ours => seen == 0 && sent == 0 && got == 0,
            };
            if marked > 0 && ok {
                Ok(done)
            } else {
                Err(format!(
                    "{marked} packets marked, {seen} of them seen by \
                     ours; {sent} CNPs sent and {got} taken by ours"
                ))
            }
        });
    }
    report.remark(name, Side::Ours, "rxe does not report marks");
}
