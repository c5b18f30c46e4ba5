//! Interoperation cases of timers: when the stacks retry, measured on the wire between them.

use super::cases::{self, half};
use super::guest::Link;
use super::headers::{is_request, scripted, sent, watched};
use super::mangle::{Mangler, Script};
use super::packets::{Moment, Seen};
use super::pair::Pair;
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::ends::{Op, Shape};
use crate::patience::deadline;
use gdrcore_core::verbs::types::{qp_type, wc_status};
use gdrcore_core::wire::{ack_timeout_ns, RNR_TIMER_NS};
use std::time::{Duration, Instant};

/// A tick of the guest's clock, in which rxe counts (250 a second): its timers may be one tick
/// early.
const TICK: Duration = Duration::from_millis(4);

/// RNR NAKs of one message whose timers are checked.
const NAKS: usize = 9;
/// Tries of measurements that a pause of a busy machine between two readings of the clock may
/// spoil.
const TRIES: usize = 5;

/// Runs our device until `n` packets of a kind have crossed the wire.
fn run_until(link: &Link, wire: &Mangler, n: usize, kind: impl Fn(&Seen) -> bool) -> Outcome<()> {
    let end = deadline(60);
    while wire.so_far(|seen| seen.iter().filter(|s| kind(s)).count()) < n {
        if Instant::now() > end {
            return Err(format!("{n} expected packets have not crossed the wire"));
        }
        let _ = link.dev.progress();
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// The RNR NAK must carry the timer of the responder's QP, and the requester must wait that long.
fn not_ready(link: &Link, wire: &Mangler, side: Side, code: u8) -> Outcome<usize> {
    let shape = Shape { min_rnr_timer: code, ..cases::shape(qp_type::RC, 3, 65_536) };
    let mut pair = Pair::new(link, shape)?;
    let timer = Duration::from_nanos(RNR_TIMER_NS[usize::from(code)]);
    pair.fill(side, 0, 3000, 9)?;
    let to = half(&pair);
    // rxe adds a NAK 0x60 for the packets behind the refused one.
    let nak = |s: &Seen| match s.nak() {
        Some((_, syndrome)) if s.from == side.other() && s.moment == Moment::Delivered => {
            (syndrome != 0x60 || side == Side::Rxe).then_some(syndrome)
        }
        _ => None,
    };
    let ((), seen) = watched(wire, || {
        let id = pair.post(side, Op::Send(None), 0, 3000)?;
        run_until(link, wire, NAKS, |s| nak(s).is_some())?;
        let r = pair.recv(side.other(), to, 3000)?;
        pair.succeed(side.other(), r)?;
        pair.succeed(side, id).map(drop)
    })?;
    pair.check(side.other(), to, 3000, 9)?;
    pair.end()?;
    let begins: Vec<&Seen> = sent(&seen, side).filter(|s| s.is_request()).collect();
    let first = begins[0].psn();
    let mut waited = Vec::new();
    for (at, syndrome) in seen.iter().filter_map(|s| nak(s).map(|syndrome| (s.at, syndrome))) {
        if syndrome != 0x20 | code {
            return Err(format!("NAK {syndrome:#x} instead of {:#x}", 0x20 | code));
        }
        waited.extend(
            begins.iter().find(|s| s.at > at && s.psn() == first).map(|again| again.at - at),
        );
    }
    let n = waited.len();
    if n < NAKS {
        return Err(format!("tried again {n} times after {NAKS} NAKs"));
    }
    // Our side counts from the start of the round that received the NAK. Packets that were on their
    // way when a NAK came are no retries. A busy machine makes some retries early by our clock; a
    // requester that does not wait is early each time.
    let slack = if side == Side::Rxe { TICK } else { Duration::from_micros(500) };
    waited.sort();
    if waited[n / 2] + slack < timer {
        return Err(format!("tried again after {waited:?} instead of {timer:?}"));
    }
    Ok(n)
}

/// Drops all packets of the requester for a while: it must retry, and the request complete once a
/// packet gets through.
fn silence(link: &Link, wire: &Mangler, side: Side, op: Op, code: u8) -> Outcome<usize> {
    let shape = Shape { timeout: code, retry_cnt: 6, ..cases::shape(qp_type::RC, 3, 65_536) };
    let timer = Duration::from_nanos(ack_timeout_ns(code).unwrap_or(0));
    let mut tried_after = Vec::new();
    for n in 1..=TRIES {
        let mut pair = Pair::new(link, shape)?;
        let to = half(&pair);
        pair.recv(side.other(), to, 4096)?;
        let until = Instant::now() + timer + timer / 2;
        let lost: Script =
            Box::new(move |from, roce| from != side || !is_request(roce) || Instant::now() > until);
        let ((), seen) = scripted(wire, lost, || {
            let id = pair.post(side, op, 0, 8)?;
            pair.succeed(side, id).map(drop)
        })?;
        if Instant::now() < until {
            return Err("complete before any packet arrived".into());
        }
        pair.end()?;
        // Our side probes before its timer expires; rxe is silent until then. If the wire was late
        // for the first try, the second one seems early.
        let mut tries = sent(&seen, side).filter(|s| s.is_request());
        match (side, tries.next(), tries.next()) {
            (Side::Rxe, Some(first), Some(second)) if second.at - first.at + TICK < timer => {
                tried_after.push(second.at - first.at);
            }
            _ => return Ok(n),
        }
    }
    Err(format!("tried again after {tried_after:?} instead of {timer:?}"))
}

/// Drops all packets: the request must fail after all retries, and not before.
fn used_up(link: &Link, wire: &Mangler, side: Side, code: u8, retries: u8) -> Outcome<usize> {
    let shape = Shape { timeout: code, retry_cnt: retries, ..cases::shape(qp_type::RC, 3, 65_536) };
    let timer = Duration::from_nanos(ack_timeout_ns(code).unwrap_or(0));
    let mut pair = Pair::new(link, shape)?;
    let first = if side == Side::Ours { pair.our.own.psn } else { pair.far.own.psn };
    let is_first = move |s: &Seen| {
        s.from == side && s.moment == Moment::Sent && s.is_request() && s.psn() == Some(first)
    };
    let lost: Script = Box::new(move |from, roce| from != side || !is_request(roce));
    let expiries = usize::from(retries) + 1;
    let began = Instant::now();
    let (took, seen) = scripted(wire, lost, || {
        let id = pair.post(side, Op::Write(0, None), 0, 3000)?;
        pair.ends_with(side, id, wc_status::RETRY_EXC_ERR)?;
        let took = began.elapsed();
        // On a busy machine the wire lags behind; a retry too many would come now.
        run_until(link, wire, expiries, is_first)?;
        let end = Instant::now() + 2 * timer;
        while Instant::now() < end {
            let _ = link.dev.progress();
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(took)
    })?;
    let ticks = if side == Side::Rxe { TICK * expiries as u32 } else { Duration::ZERO };
    // A timer of T takes at least T. That it takes at most 4 T is tested in
    // core/tests/engine/retries_and_states.rs, in virtual time.
    if took + ticks < timer * expiries as u32 {
        return Err(format!("ended after {took:?}, expected {expiries} times {timer:?}"));
    }
    let copies = seen.iter().filter(|s| is_first(s)).count();
    if copies != expiries {
        return Err(format!("the first packet was sent {copies} times instead of {expiries}"));
    }
    pair.end()?;
    Ok(1)
}

/// Runs all of them.
pub fn all(report: &mut Report, link: &Link, wire: &Mangler) {
    for code in [1, 12, 18, 20, 22] {
        report.both("RNR timer: carried and kept", &format!("timer {code}"), |s| {
            not_ready(link, wire, s, code)
        });
    }
    for (what, op) in [
        ("SEND", Op::Send(None)),
        ("WRITE", Op::Write(0, None)),
        ("READ", Op::Read(0)),
        ("FETCH_ADD", Op::FetchAdd(0, 1)),
    ] {
        report.both("ACK timeout: tried again", what, |s| silence(link, wire, s, op, 14));
    }
    for (code, retries) in [(12, 0), (12, 3), (14, 1), (10, 6)] {
        let what = format!("timeout {code}, {retries} retries");
        report
            .both("ACK timeout: retries counted", &what, |s| used_up(link, wire, s, code, retries));
    }
}
