//! Interoperation cases of deep queues, many QPs and shared receive queues.

use super::cases::{self, half};
use super::guest::{give_way, Link};
use super::pair::{pattern, Pair, RECV_ID};
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::ends::{End, Op, Shape};
use crate::patience::deadline;
use gdrcore_core::device::SrqAttr;
use gdrcore_core::verbs::types::{
    qp_type, send_flags, wc_opcode, wc_status, wr_opcode, QpCap, QpInit, RecvWr,
};
use std::time::Instant;

/// Waits for `n` completions at a side; all must be successes, in the order of their numbers.
fn drain(pair: &mut Pair, side: Side, n: usize) -> Outcome<()> {
    if side == Side::Rxe {
        let end = deadline(60);
        let mut left = n;
        while left > 0 {
            let got = pair.link.numbers(&format!("drain {} {left} 50", pair.far.id))?;
            let [count, bad, status, ordered, _] = got[..] else {
                return Err(format!("drain: {got:?}"));
            };
            if bad > 0 || ordered != 1 {
                let cause = pair.our.dev.qp_cause(pair.our.qp);
                return Err(format!(
                    "{side:?}: {bad} bad, first status {status}, in order: {ordered}; our {cause:?}"
                ));
            }
            left -= count as usize;
            if Instant::now() > end {
                return Err(format!("{side:?}: {left} of {n} completions are missing"));
            }
        }
        return Ok(());
    }
    let end = deadline(60);
    let mut idle = 0;
    while pair.our.done.len() < n {
        idle = if pair.our.poll() > 0 { 0 } else { idle + 1 };
        give_way(idle);
        if Instant::now() > end {
            let cause = pair.our.dev.qp_cause(pair.our.qp);
            return Err(format!("{side:?}: {} of {n} completions; {cause:?}", pair.our.done.len()));
        }
    }
    let done: Vec<_> = pair.our.done.drain(..n).collect();
    if let Some(wc) = done.iter().find(|wc| wc.status != wc_status::SUCCESS) {
        return Err(format!("{side:?}: {wc:?}"));
    }
    if done.windows(2).any(|w| w[0].wr_id >= w[1].wr_id) {
        return Err(format!("{side:?}: completions out of order"));
    }
    Ok(())
}

/// Posts `n` requests in a row, each over `len` bytes of its own at both ends.
fn post_many(
    pair: &mut Pair,
    side: Side,
    n: usize,
    opcode: u32,
    from: usize,
    to: usize,
    len: usize,
) -> Outcome<()> {
    if side == Side::Rxe {
        let (far, own) = (pair.far.id, pair.our.own);
        let remote = own.addr + to as u64;
        return pair
            .link
            .request(&format!(
                "send {far} {n} 1 {opcode} 2 {from} {len} {len} {remote} {len} {} 0 0 0",
                own.rkey
            ))
            .map(drop);
    }
    for i in 0..n {
        let remote = (to + i * len) as u64;
        let op = match opcode {
            wr_opcode::SEND => Op::Send(None),
            wr_opcode::RDMA_READ => Op::Read(remote),
            _ => Op::Write(remote, None),
        };
        pair.our
            .post(1 + i as u64, op, (from + i * len) as u64, len as u32)
            .map_err(|e| format!("{i}: {e}"))?;
    }
    Ok(())
}

/// Transfers `n` requests of `len` bytes, all outstanding at once, from the first half of the
/// source's buffer to the second half of the target's. The bytes follow from `seed`; every byte is
/// compared.
pub fn transfer(
    pair: &mut Pair,
    side: Side,
    opcode: u32,
    n: usize,
    len: usize,
    seed: u64,
) -> Outcome<()> {
    let to = half(pair);
    let read = opcode == wr_opcode::RDMA_READ;
    let source = if read { side.other() } else { side };
    pair.fill(source, 0, n * len, seed)?;
    if opcode == wr_opcode::SEND {
        if side == Side::Ours {
            pair.link.request(&format!("recv {} {n} 1 {to} {len} {len}", pair.far.id))?;
        } else {
            for i in 0..n {
                pair.our
                    .post_recv(1 + i as u64, (to + i * len) as u64, len as u32)
                    .map_err(|e| e.to_string())?;
            }
        }
    }
    if read {
        post_many(pair, side, n, opcode, to, 0, len)?;
    } else {
        post_many(pair, side, n, opcode, 0, to, len)?;
    }
    drain(pair, side, n)?;
    if opcode == wr_opcode::SEND {
        drain(pair, side.other(), n)?;
    }
    pair.check(source.other(), to, n * len, seed)
}

/// One such transfer over a connection of its own.
fn deep(link: &Link, side: Side, opcode: u32, n: usize, len: usize) -> Outcome<usize> {
    let shape = Shape { depth: 512, cqe: 1024, ..cases::shape(qp_type::RC, 3, n * len + 8) };
    let mut pair = Pair::new(link, shape)?;
    let to = half(&pair);
    let target = if opcode == wr_opcode::RDMA_READ { side } else { side.other() };
    pair.set(target, to, n * len + 8, 0xEE)?;
    transfer(&mut pair, side, opcode, n, len, n as u64 + 3)?;
    pair.untouched(target, to + n * len, 8, 0xEE)?;
    pair.end()?;
    Ok(n)
}

/// Queues of one to 512 requests.
pub fn depths(report: &mut Report, link: &Link) {
    for (name, opcode) in [
        ("SEND", wr_opcode::SEND),
        ("WRITE", wr_opcode::RDMA_WRITE),
        ("READ", wr_opcode::RDMA_READ),
    ] {
        for n in [1, 2, 16, 128, 512] {
            for len in [64, 3000] {
                report.both(
                    &format!("RC {name}, 1 to 512 outstanding"),
                    &format!("{n} of {len} bytes"),
                    |s| deep(link, s, opcode, n, len),
                );
            }
        }
    }
}

/// Many connections in use at once.
pub fn connections(report: &mut Report, link: &Link, n: usize) {
    report.both(&format!("{n} RC QPs at once"), "WRITE, SEND and READ on each", |side| {
        let shape = cases::shape(qp_type::RC, 3, 8192);
        let mut pairs = Vec::new();
        for _ in 0..n {
            pairs.push(Pair::new(link, shape)?);
        }
        let to = half(&pairs[0]);
        let mut waiting = Vec::new();
        for (k, p) in pairs.iter_mut().enumerate() {
            p.fill(side, 0, 5000, k as u64 + 1)?;
            p.fill(side.other(), 5000, 3000, k as u64 + 1000)?;
            let r = p.recv(side.other(), to + 5000, 2000)?;
            let w = p.post(side, Op::Write(to as u64, None), 0, 5000)?;
            let s = p.post(side, Op::Send(None), 0, 2000)?;
            let read = p.post(side, Op::Read(5000), to + 8000, 3000)?;
            waiting.push((r, [w, s, read]));
        }
        for (k, (p, (r, ids))) in pairs.iter_mut().zip(waiting).enumerate() {
            let which = |e| format!("QP {k}: {e}");
            for id in ids {
                p.succeed(side, id).map_err(which)?;
            }
            p.succeed(side.other(), r).map_err(which)?;
            p.check(side.other(), to, 5000, k as u64 + 1).map_err(which)?;
            p.check(side.other(), to + 5000, 2000, k as u64 + 1).map_err(which)?;
            p.check(side, to + 8000, 3000, k as u64 + 1000).map_err(which)?;
        }
        for p in pairs {
            p.end()?;
        }
        Ok(3 * n)
    });
}

/// Several senders to one shared receive queue of the other side.
pub fn shared_receives(report: &mut Report, link: &Link) {
    let shape = cases::shape(qp_type::RC, 3, 65_536);
    report.case("RC into an SRQ, four senders", Side::Ours, "", || srq_of_rxe(link, shape));
    report.case("RC into an SRQ, four senders", Side::Rxe, "", || srq_of_ours(link, shape));
}

const ROUND: usize = 8;
const LEN: usize = 1500;

fn srq_of_rxe(link: &Link, shape: Shape) -> Outcome<usize> {
    let mut pairs = vec![Pair::with_srq(link, shape, 64)?];
    for _ in 0..3 {
        let first = pairs[0].far.id;
        pairs.push(Pair::with_srq(link, shape, -(first + 1))?);
    }
    let to = half(&pairs[0]);
    let (id, n) = (pairs[0].far.id, 4 * ROUND);
    link.request(&format!("recv {id} {n} {RECV_ID} {to} {LEN} {LEN}"))?;
    let mut left = n;
    for round in 0..ROUND {
        for p in &mut pairs {
            p.fill(Side::Ours, 0, LEN, 7 + round as u64)?;
            let s = p.post(Side::Ours, Op::Send(None), 0, LEN)?;
            p.succeed(Side::Ours, s)?;
            let got = link.numbers(&format!("drain {id} 1 5000"))?;
            if got[0] != 1 || got[1] != 0 {
                return Err(format!("receive: {got:?}"));
            }
            // Receives of a shared queue are used in the order of their posting.
            pairs_check(link, id, to + (n - left) * LEN, 7 + round as u64)?;
            left -= 1;
        }
    }
    // The first end owns the objects that the others share.
    for p in pairs.into_iter().rev() {
        p.end()?;
    }
    Ok(n)
}

fn pairs_check(link: &Link, id: i128, at: usize, seed: u64) -> Outcome<()> {
    let wrong = link.numbers(&format!("check {id} {at} {LEN} {seed}"))?[0];
    if wrong >= 0 {
        return Err(format!("byte {wrong} of the receive at {at}"));
    }
    Ok(())
}

fn srq_of_ours(link: &Link, shape: Shape) -> Outcome<usize> {
    let dev = link.dev;
    let fail = |e: gdrcore_core::Error| e.to_string();
    let mut first = End::new(dev, shape).map_err(fail)?;
    let (srq, _) = dev
        .srq_create(first.pd, &SrqAttr { max_wr: 64, max_sge: 2, srq_limit: 0 })
        .map_err(fail)?;
    let cap = QpCap {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init = QpInit {
        xrcd: 0,
        dc_key: 0,
        pd: first.pd,
        send_cq: first.cq,
        recv_cq: first.cq,
        srq,
        qp_type: qp_type::RC,
        sq_sig_all: 0,
        cap,
    };
    let mut far = Vec::new();
    let mut qps = Vec::new();
    for _ in 0..4 {
        // The first end's buffer and queues serve all; each QP on the shared queue is put in its
        // place to be connected.
        let (qp, qpn, _) = dev.qp_create(&init).map_err(fail)?;
        let plain = std::mem::replace(&mut first.qp, qp);
        first.own.qpn = qpn;
        if qps.is_empty() {
            dev.qp_destroy(plain).map_err(fail)?;
        }
        let pair = Pair::around(link, first, 0)?;
        far.push(pair.far.id);
        qps.push(qp);
        first = pair.our;
    }
    let (to, n) = (shape.buffer / 2, 4 * ROUND);
    for i in 0..n {
        let piece = first.piece((to + i * LEN) as u64, LEN as u32);
        let wr = RecvWr {
            wr_id: RECV_ID | i as u64,
            next: std::ptr::null(),
            sg_list: &piece,
            num_sge: 1,
        };
        let mut bad = std::ptr::null();
        // SAFETY: request and piece live on this stack frame until the call returns.
        unsafe { dev.post_srq_recv(srq, &wr, &mut bad) }.map_err(fail)?;
    }
    let mut at = 0;
    for round in 0..ROUND {
        for id in &far {
            let seed = (at + 50) as u64;
            link.request(&format!("fill {id} 0 {LEN} {seed}"))?;
            let opcode = wr_opcode::SEND;
            let flags = send_flags::SIGNALED;
            link.request(&format!("send {id} 1 {round} {opcode} {flags} 0 {LEN} 0 0 0 0 0 0 0"))?;
            let end = deadline(60);
            let wc = loop {
                first.poll();
                if let Some(wc) = first.take(RECV_ID | at as u64) {
                    break wc;
                }
                if Instant::now() > end {
                    return Err(format!("receive {at} is missing"));
                }
            };
            if wc.status != wc_status::SUCCESS
                || wc.opcode != wc_opcode::RECV
                || wc.byte_len as usize != LEN
            {
                return Err(format!("{wc:?}"));
            }
            if first.buffer.read(to + at * LEN, LEN) != pattern(seed, LEN) {
                return Err(format!("receive {at} holds other bytes"));
            }
            at += 1;
        }
    }
    for id in far {
        link.request(&format!("del {id}"))?;
    }
    for &qp in &qps[..3] {
        dev.qp_destroy(qp).map_err(fail)?;
    }
    dev.qp_destroy(qps[3]).map_err(fail)?;
    dev.srq_destroy(srq).map_err(fail)?;
    dev.cq_destroy(first.cq).map_err(fail)?;
    dev.mr_dereg(first.mr).map_err(fail)?;
    dev.pd_dealloc(first.pd).map_err(fail)?;
    Ok(n)
}
