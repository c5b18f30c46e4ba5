//! When the stacks try again, measured on the wire between them.

use super::cases::{self, half};
use super::guest::Link;
use super::headers::{is_request, scripted, sent, watched};
use super::mangle::{Mangler, Script};
use super::pair::{Pair, Side};
use super::report::Report;
use super::seen::{Moment, Seen};
use super::Outcome;
use crate::ends::{Op, Shape};
use gdrcore_core::verbs::types::{qp_type, wc_status};
use gdrcore_core::wire::{ack_timeout_ns, RNR_TIMER_NS};
use std::time::{Duration, Instant};

/// rxe counts in ticks of the guest's clock (250 a second): a timer of its may be over one tick early.
const TICK: Duration = Duration::from_millis(4);

/// Runs our device for a while.
fn run(link: &Link, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let _ = link.dev.progress();
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// The RNR NAK carries the timer that the responder's QP was given, and the requester waits for as long.
fn not_ready(link: &Link, wire: &Mangler, side: Side, code: u8) -> Outcome<usize> {
    let shape = Shape { min_rnr_timer: code, ..cases::shape(qp_type::RC, 3, 65_536) };
    let mut pair = Pair::new(link, shape)?;
    let timer = Duration::from_nanos(RNR_TIMER_NS[usize::from(code)]);
    pair.fill(side, 0, 3000, 9)?;
    let (to, mut n, mut early) = (half(&pair), 0, Vec::new());
    let ((), seen) = watched(wire, || {
        let id = pair.post(side, Op::Send(None), 0, 3000)?;
        run(link, timer * 2 + Duration::from_millis(30));
        let r = pair.recv(side.other(), to, 3000)?;
        pair.succeed(side.other(), r)?;
        pair.succeed(side, id).map(drop)
    })?;
    pair.check(side.other(), to, 3000, 9)?;
    pair.end()?;
    let begins: Vec<&Seen> = sent(&seen, side).filter(|s| s.is_request()).collect();
    let first = begins[0].psn();
    let arrived = seen.iter().filter(|s| s.from == side.other() && s.moment == Moment::Delivered);
    for (nak, (_, syndrome)) in arrived.filter_map(|s| s.nak().map(|nak| (s, nak))) {
        // rxe adds a NAK 0x60 for the packets behind the refused one.
        if syndrome == 0x60 && side == Side::Ours {
            continue;
        }
        if syndrome != 0x20 | code {
            return Err(format!("NAK {syndrome:#x} instead of {:#x}", 0x20 | code));
        }
        let Some(again) = begins.iter().find(|s| s.at > nak.at && s.psn() == first) else { continue };
        let waited = again.at - nak.at;
        // Ours counts from the beginning of the round that brought the NAK, which a busy machine may have held up.
        let slack = if side == Side::Rxe { TICK } else { Duration::from_micros(500) };
        // What was on its way when the NAK came is no retry.
        if n > 0 && waited + slack < timer {
            early.push(waited);
        }
        n += 1;
    }
    // One of many may have been held up for longer still.
    if early.len() > n / 8 {
        return Err(format!("tried again after {early:?} instead of {timer:?}"));
    }
    if n == 0 {
        return Err("no RNR NAK was seen".into());
    }
    Ok(n)
}

/// Nothing of the requester arrives for a while: it tries again and, once it gets through, all is well.
fn silence(link: &Link, wire: &Mangler, side: Side, op: Op, code: u8) -> Outcome<usize> {
    let shape = Shape { timeout: code, retry_cnt: 6, ..cases::shape(qp_type::RC, 3, 65_536) };
    let timer = Duration::from_nanos(ack_timeout_ns(code).unwrap_or(0));
    let mut pair = Pair::new(link, shape)?;
    let to = half(&pair);
    pair.recv(side.other(), to, 4096)?;
    let until = Instant::now() + timer + timer / 2;
    let lost: Script = Box::new(move |from, roce| from != side || !is_request(roce) || Instant::now() > until);
    let began = Instant::now();
    let ((), seen) = scripted(wire, lost, || {
        let id = pair.post(side, op, 0, 8)?;
        pair.succeed(side, id).map(drop)
    })?;
    if began.elapsed() < timer + timer / 2 {
        return Err(format!("complete after {:?}", began.elapsed()));
    }
    // Ours probes before its timer is over; rxe is silent until then.
    let mut tries = sent(&seen, side).filter(|s| s.is_request());
    if let (Side::Rxe, Some(first), Some(second)) = (side, tries.next(), tries.next()) {
        if second.at - first.at + TICK < timer {
            return Err(format!("tried again after {:?} instead of {timer:?}", second.at - first.at));
        }
    }
    pair.end()?;
    Ok(1)
}

/// Nothing ever arrives: the end comes after all retries, not before and not much later.
fn used_up(link: &Link, wire: &Mangler, side: Side, code: u8, retries: u8) -> Outcome<usize> {
    let shape = Shape { timeout: code, retry_cnt: retries, ..cases::shape(qp_type::RC, 3, 65_536) };
    let timer = Duration::from_nanos(ack_timeout_ns(code).unwrap_or(0));
    let mut pair = Pair::new(link, shape)?;
    let lost: Script = Box::new(move |from, roce| from != side || !is_request(roce));
    let began = Instant::now();
    let (took, seen) = scripted(wire, lost, || {
        let id = pair.post(side, Op::Write(0, None), 0, 3000)?;
        pair.ends_with(side, id, wc_status::RETRY_EXC_ERR)?;
        let took = began.elapsed();
        // On a busy machine the wire is behind.
        run(link, Duration::from_millis(50));
        Ok(took)
    })?;
    let expiries = u32::from(retries) + 1;
    let ticks = if side == Side::Rxe { TICK * expiries } else { Duration::ZERO };
    // IBTA C9-141: a timer of T may take up to 4 T; the emulated machine and its clock add to that.
    if took + ticks < timer * expiries || took > timer * expiries * 4 + Duration::from_secs(2) {
        return Err(format!("over after {took:?}, {expiries} times {timer:?}"));
    }
    let first = sent(&seen, side).filter(|s| s.is_request()).filter_map(Seen::psn).next();
    let copies = sent(&seen, side).filter(|s| s.is_request() && s.psn() == first).count();
    if copies != expiries as usize {
        return Err(format!("the first packet was sent {copies} times instead of {expiries}"));
    }
    pair.end()?;
    Ok(1)
}

/// All of the above.
pub fn all(report: &mut Report, link: &Link, wire: &Mangler) {
    for code in [1, 12, 18, 20, 22] {
        report.both("RNR timer: carried and kept", &format!("timer {code}"), |s| not_ready(link, wire, s, code));
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
        report.both("ACK timeout: retries counted", &what, |s| used_up(link, wire, s, code, retries));
    }
}
