//! Interoperation cases of failures: refusals, missing receives, silence.

use super::cases::{self, half, read, send, write};
use super::guest::{give_way, Guest, Link};
use super::headers;
use super::pair::Pair;
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::ends::{Op, Shape, QKEY};
use crate::patience::deadline;
use crate::soft::Soft;
use crate::tools::Running;
use gdrcore_core::verbs::types::{
    access, qp_attr_mask, qp_state, qp_type, send_flags, wc_status, wr_opcode, QpAttr, RecvWr, Sge,
};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Moves a QP of either side to ERR.
fn kill(pair: &Pair, side: Side) -> Outcome<()> {
    if side == Side::Rxe {
        return pair.link.request(&format!("modify {} {}", pair.far.id, qp_state::ERR)).map(drop);
    }
    let attr = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
    pair.our.dev.qp_modify(pair.our.qp, &attr, qp_attr_mask::STATE).map_err(|e| e.to_string())
}

/// The state of a side's QP.
fn state(pair: &Pair, side: Side) -> Outcome<u32> {
    if side == Side::Rxe {
        return Ok(pair.link.numbers(&format!("state {}", pair.far.id))?[0] as u32);
    }
    Ok(pair.our.dev.qp_query(pair.our.qp).map_err(|e| e.to_string())?.0.qp_state)
}

/// Waits until a side's QP is in a state.
fn reaches(pair: &Pair, side: Side, want: u32) -> Outcome<()> {
    let end = deadline(60);
    loop {
        let now = state(pair, side)?;
        if now == want {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("{side:?}: QP in state {now}, not {want}"));
        }
        let _ = pair.our.dev.progress();
    }
}

/// Posts `op` and two WRITEs behind it. The first must complete with `status` and the others be
/// flushed; the target's bytes must not change.
pub(super) fn refused(
    pair: &mut Pair,
    side: Side,
    op: Op,
    len: usize,
    key: Option<u32>,
    status: u32,
) -> Outcome<usize> {
    let to = half(pair);
    pair.set(side.other(), to, 256, 0xEE)?;
    let first = pair.post_as(side, op, 0, len, send_flags::SIGNALED, key)?;
    // Unsignalled, but it completes: errors are always reported. The post itself may refuse it.
    let second = pair.post_as(side, Op::Write(to as u64, None), 0, 64, 0, None);
    let third = pair.post_as(side, Op::Write(to as u64, None), 0, 64, send_flags::SIGNALED, None);
    pair.ends_with(side, first, status)?;
    let mut n = 1;
    for id in [second, third].into_iter().flatten() {
        pair.ends_with(side, id, wc_status::WR_FLUSH_ERR)?;
        n += 1;
    }
    reaches(pair, side, qp_state::ERR)?;
    pair.untouched(side.other(), to, 256, 0xEE)?;
    Ok(n)
}

/// One refusal over a connection of its own.
pub(super) fn refusal(
    link: &Link,
    shape: Shape,
    case: impl FnOnce(&mut Pair) -> Outcome<usize>,
) -> Outcome<usize> {
    let mut pair = Pair::new(link, shape)?;
    let n = case(&mut pair)?;
    pair.end()?;
    Ok(n)
}

/// As [`refusal`]; checks the NAK on the wire as well, where the wire is ours.
fn refused_with(
    link: &Link,
    shape: Shape,
    side: Side,
    op: Op,
    len: usize,
    key: Option<u32>,
    status: u32,
) -> Outcome<usize> {
    refusal(link, shape, |p| {
        with_nak(link, side, status, None, || refused(p, side, op, len, key, status))
    })
}

/// Runs a case that ends with a NAK of `side`'s peer, and checks that the wire carried the NAK code
/// that belongs to the status.
pub(super) fn with_nak<T>(
    link: &Link,
    side: Side,
    status: u32,
    evidence: Option<&str>,
    case: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    let Some(wire) = link.wire else { return case() };
    let (done, seen) = headers::watched(wire, case)?;
    headers::expect_nak(&seen, side.other(), headers::code_of(status))?;
    if let Some(name) = evidence {
        wire.evidence(name, &seen)?;
    }
    Ok(done)
}

/// Every fatal NAK code, for every reason that a program can cause.
pub fn naks(report: &mut Report, link: &Link) {
    use wc_status::{REM_ACCESS_ERR, REM_INV_REQ_ERR, REM_OP_ERR};
    let shape = cases::shape(qp_type::RC, 3, 65_536);
    let end = shape.buffer as u64;
    let wrong = Some(0x00BA_D000);
    let name = "NAK 0x62, wrong key";
    for (what, op) in [
        ("WRITE", Op::Write(0, None)),
        ("READ", Op::Read(0)),
        ("CMP_SWAP", Op::CmpSwap(0, 1, 2)),
        ("FETCH_ADD", Op::FetchAdd(0, 1)),
    ] {
        report.both(name, what, |s| refused_with(link, shape, s, op, 8, wrong, REM_ACCESS_ERR));
    }
    let name = "NAK 0x62, out of the region";
    for (what, op, len) in [
        ("WRITE that begins behind the region", Op::Write(end, None), 8),
        ("WRITE that ends behind the region", Op::Write(end - 4, None), 8),
        ("WRITE of several packets that ends behind the region", Op::Write(end - 8192, None), 9000),
        ("WRITE before the region", Op::Write(0u64.wrapping_sub(8), None), 8),
        ("READ that ends behind the region", Op::Read(end - 4), 8),
        ("READ of several packets that ends behind the region", Op::Read(end - 8192), 9000),
        ("FETCH_ADD behind the region", Op::FetchAdd(end, 1), 8),
    ] {
        report.both(name, what, |s| refused_with(link, shape, s, op, len, None, REM_ACCESS_ERR));
    }
    for (name, op, missing) in [
        ("QP without REMOTE_WRITE", Op::Write(0, None), access::REMOTE_WRITE),
        ("QP without REMOTE_READ", Op::Read(0), access::REMOTE_READ),
        ("QP without REMOTE_ATOMIC", Op::FetchAdd(0, 1), access::REMOTE_ATOMIC),
    ] {
        let shape = Shape { access: shape.access & !missing, ..shape };
        report.both(&format!("NAK 0x61, {name}"), "", |s| {
            refused_with(link, shape, s, op, 8, None, REM_INV_REQ_ERR)
        });
    }
    let name = "NAK 0x61, SEND longer than the receive";
    report.both(name, "", |s| {
        // rxe finds out while it copies, and reports a failure of its own.
        let status = if s == Side::Ours { REM_OP_ERR } else { REM_INV_REQ_ERR };
        refusal(link, shape, |p| {
            let evidence = (s == Side::Ours).then_some("rxe_send_too_long");
            let r = p.recv(s.other(), 0, 1500)?;
            let n = with_nak(link, s, status, evidence, || {
                refused(p, s, Op::Send(None), 2000, None, status)
            })?;
            let wc = p.wait(s.other(), r)?;
            if wc.status == wc_status::LOC_LEN_ERR
                || s == Side::Ours && wc.status != wc_status::SUCCESS
            {
                return Ok(n);
            }
            Err(format!("the receive: {wc:?}"))
        })
    });
    report.remark(name, Side::Ours, "rxe is wrong: it answers 0x63 (rxe_send_too_long.pcap)");
    report.both("NAK 0x63, receive with a bad local key", "", |s| {
        refusal(link, shape, |p| {
            bad_recv(p, s.other())?;
            with_nak(link, s, REM_OP_ERR, None, || {
                refused(p, s, Op::Send(None), 64, None, REM_OP_ERR)
            })
        })
    });
}

/// Posts a receive whose local key is invalid.
fn bad_recv(pair: &mut Pair, side: Side) -> Outcome<()> {
    if side == Side::Rxe {
        return pair.link.request(&format!("badrecv {} 77", pair.far.id)).map(drop);
    }
    let piece = Sge { lkey: 0x00BA_D000, ..pair.our.piece(0, 4096) };
    let wr = RecvWr { wr_id: 77, next: std::ptr::null(), sg_list: &piece, num_sge: 1 };
    let mut bad = std::ptr::null();
    // SAFETY: request and piece live on this stack frame until the call returns.
    unsafe { pair.our.dev.post_recv(pair.our.qp, &wr, &mut bad) }.map_err(|e| e.to_string())
}

/// SENDs that arrive before a receive is posted.
pub fn receiver_not_ready(report: &mut Report, link: &Link) {
    let shape = cases::shape(qp_type::RC, 3, 65_536);
    for code in [1u8, 12, 16, 20] {
        let shape = Shape { min_rnr_timer: code, ..shape };
        report.both("RNR, receive posted late", &format!("timer {code}"), |s| {
            refusal(link, shape, |p| {
                p.fill(s, 0, 5000, 9)?;
                let id = p.post(s, Op::Send(None), 0, 5000)?;
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(40) {
                    let _ = p.our.dev.progress();
                }
                let to = half(p);
                let r = p.recv(s.other(), to, 5000)?;
                p.succeed(s.other(), r)?;
                p.succeed(s, id)?;
                p.check(s.other(), to, 5000, 9)?;
                Ok(1)
            })
        });
    }
    for retries in [0u8, 1, 3] {
        let shape = Shape { min_rnr_timer: 20, rnr_retry: retries, ..shape };
        report.both("RNR retries used up", &format!("{retries} retries"), |s| {
            refusal(link, shape, |p| {
                let began = Instant::now();
                let id = p.post(s, Op::Send(None), 0, 100)?;
                p.ends_with(s, id, wc_status::RNR_RETRY_EXC_ERR)?;
                // Timer 20 is 10.24 ms.
                let least = Duration::from_micros(10_240 * u64::from(retries));
                // rxe counts in ticks of the guest's clock, so only our side is checked against the
                // time.
                if s == Side::Ours && began.elapsed() < least {
                    return Err(format!(
                        "ended after {:?}, earlier than {least:?}",
                        began.elapsed()
                    ));
                }
                Ok(1)
            })
        });
    }
    report.both("RNR of a WRITE with immediate", "", |s| {
        refusal(link, shape, |p| {
            p.fill(s, 0, 3000, 4)?;
            let to = half(p);
            let id = p.post(s, Op::Write(to as u64, Some(9)), 0, 3000)?;
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(10) {
                let _ = p.our.dev.progress();
            }
            let r = p.recv(s.other(), 0, 0)?;
            p.succeed(s.other(), r)?;
            p.succeed(s, id)?;
            p.check(s.other(), to, 3000, 4)?;
            Ok(1)
        })
    });
}

/// Peers that disappear, with and without an error state first.
pub fn silence(report: &mut Report, link: &Link) {
    // 2^14 * 4 us = 67 ms, three times.
    let shape = Shape { timeout: 14, retry_cnt: 2, ..cases::shape(qp_type::RC, 3, 65_536) };
    for (what, op) in [
        ("SEND", Op::Send(None)),
        ("WRITE", Op::Write(0, None)),
        ("READ", Op::Read(0)),
        ("FETCH_ADD", Op::FetchAdd(0, 1)),
    ] {
        report.both("peer's QP in ERR: retries end", what, |s| {
            refusal(link, shape, |p| {
                kill(p, s.other())?;
                let id = p.post(s, op, 0, 8)?;
                p.ends_with(s, id, wc_status::RETRY_EXC_ERR)?;
                Ok(1)
            })
        });
    }
    report.both("receives are flushed by ERR", "", |s| {
        refusal(link, shape, |p| {
            let ids = [p.recv(s, 0, 64)?, p.recv(s, 0, 64)?];
            kill(p, s)?;
            for id in ids {
                p.ends_with(s, id, wc_status::WR_FLUSH_ERR)?;
            }
            Ok(2)
        })
    });
}

/// Number of packets that rxe has received.
fn received_by_rxe(pair: &Pair) -> Outcome<i128> {
    Ok(pair.link.numbers(&format!("counter {} rcvd_pkts", pair.far.id))?[0])
}

/// Sends a message of `n` packets to a side without a receive, and waits until the side has dropped
/// it.
fn dropped(pair: &mut Pair, side: Side, len: usize, n: i128) -> Outcome<()> {
    let before = received_by_rxe(pair)?;
    let id = pair.post(side, Op::Send(None), 0, len)?;
    pair.succeed(side, id)?;
    let end = deadline(60);
    while Instant::now() < end {
        let _ = pair.our.dev.progress();
        let seen =
            pair.our.dev.qp_counters(pair.our.qp).map_err(|e| e.to_string())?.rcvd_dropped > 0;
        // rxe counts a packet when it takes it, and drops it before its programs run again.
        if if side == Side::Rxe { seen } else { received_by_rxe(pair)? >= before + n } {
            return Ok(());
        }
        give_way(100);
    }
    Err("nothing was dropped".into())
}

/// Datagrams that must be dropped without an answer; the QP stays usable.
pub fn datagrams(report: &mut Report, link: &Link) {
    let shape = cases::shape(qp_type::UD, 3, 1024);
    report.both("UD, wrong Q_Key is dropped", "", |s| {
        let mut pair = Pair::new(link, shape)?;
        let r = pair.recv(s.other(), half(&pair), 200)?;
        let id = pair.id();
        if s == Side::Ours {
            let pieces = [pair.our.piece(0, 64)];
            let mut wr = pair.our.request(id, Op::Send(None), &pieces);
            wr.wr.ud.remote_qkey = QKEY ^ 1;
            pair.our.post_wr(&wr).map_err(|e| e.to_string())?;
        } else {
            let (opcode, qpn) = (wr_opcode::SEND, pair.our.own.qpn);
            link.request(&format!(
                "send {} 1 {id} {opcode} 2 0 64 0 {qpn} 0 {} 0 0 0",
                pair.far.id,
                QKEY ^ 1
            ))?;
        }
        pair.succeed(s, id)?;
        // The receive is consumed by the next message, which holds other bytes.
        pair.fill(s, 0, 64, 5)?;
        let id = pair.post(s, Op::Send(None), 0, 64)?;
        pair.succeed(s, id)?;
        pair.succeed(s.other(), r)?;
        let to = half(&pair);
        pair.check(s.other(), to + 40, 64, 5)?;
        pair.end()?;
        Ok(1)
    });
    report.both("UD, no receive: dropped", "", |s| {
        let mut pair = Pair::new(link, shape)?;
        dropped(&mut pair, s, 64, 1)?;
        let n = send(&mut pair, s, 100, None)?;
        pair.end()?;
        Ok(n)
    });
    let uc = cases::shape(qp_type::UC, 3, 8192);
    report.both("UC, no receive: dropped", "", |s| {
        let mut pair = Pair::new(link, uc)?;
        dropped(&mut pair, s, 5000, 5)?;
        let n = send(&mut pair, s, 5000, None)?;
        pair.end()?;
        Ok(n)
    });
}

/// Checks that the same QPs still read, write and send after a failure that is not fatal.
pub fn alive(pair: &mut Pair, side: Side) -> Outcome<usize> {
    Ok(send(pair, side, 3000, None)? + write(pair, side, 3000, None)? + read(pair, side, 3000)?)
}

/// Programs that end in the middle of the traffic. `begin` starts another far program, `end` kills
/// it.
pub fn killed(
    report: &mut Report,
    own: &str,
    begin: impl Fn() -> Outcome<(Running, RefCell<Guest>)>,
    end: impl Fn(Running) -> Outcome<()>,
) {
    // Retries for three seconds, longer than a live machine is silent.
    let shape = Shape { timeout: 18, retry_cnt: 2, ..cases::shape(qp_type::RC, 3, 1 << 20) };
    let name = "a program is killed: the other side's work ends";
    report.case(name, Side::Ours, "the kernel's program", || {
        let soft = Soft::open(own, &Default::default()).map_err(|e| e.to_string())?;
        let (program, guest) = begin()?;
        let link = Link::new(soft.dev(), &guest)?;
        let mut pair = Pair::new(&link, shape)?;
        let before = write(&mut pair, Side::Ours, 100_000, None)?;
        let mut ids = Vec::new();
        for _ in 0..8 {
            ids.push(pair.post(Side::Ours, Op::Write(0, None), 0, 1 << 20)?);
        }
        end(program)?;
        // Requests that completed before the end are successes; one reports the cause, the rest are
        // flushed.
        let mut statuses = Vec::new();
        for id in ids {
            statuses.push(pair.wait(Side::Ours, id)?.status);
        }
        let failed =
            statuses.iter().position(|&s| s != wc_status::SUCCESS).ok_or("nothing failed")?;
        let flushed = statuses[failed + 1..].iter().all(|&s| s == wc_status::WR_FLUSH_ERR);
        if statuses[failed] != wc_status::RETRY_EXC_ERR || !flushed {
            return Err(format!("{statuses:?}"));
        }
        Ok(before + statuses.len())
    });
    report.case(name, Side::Rxe, "ours", || {
        let soft = Soft::open(own, &Default::default()).map_err(|e| e.to_string())?;
        let (_program, guest) = begin()?;
        let link = Link::new(soft.dev(), &guest)?;
        let mut pair = Pair::new(&link, shape)?;
        let before = write(&mut pair, Side::Rxe, 100_000, None)?;
        let id = pair.far.id;
        let own = pair.our.own;
        let opcode = wr_opcode::RDMA_WRITE;
        let (len, n) = (1 << 20, 4);
        link.request(&format!(
            "send {id} {n} 1 {opcode} 2 0 {len} 0 {} 0 {} 0 0 0",
            own.addr, own.rkey
        ))?;
        // The device is dropped as when its process ends: its peers get no message.
        let memory = pair.leave();
        drop(soft);
        drop(memory);
        let none = Soft::new("loopback");
        let end = deadline(60);
        let mut ended = Vec::new();
        while ended.len() < n && Instant::now() < end {
            let answer = guest.borrow_mut().request(none.dev(), &format!("poll {id} 1000"))?;
            let words: Vec<&str> = answer.split(' ').collect();
            if words.first() == Some(&"1") {
                ended.push(words.get(2).copied().unwrap_or("?").to_string());
            }
        }
        if ended.len() != n || ended.last().map(String::as_str) == Some("0") {
            return Err(format!("statuses {ended:?}"));
        }
        Ok(before + n)
    });
}
