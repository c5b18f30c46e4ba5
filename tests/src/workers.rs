//! What one thread does with its queue pair, beside others: each call checks what it moved.

use crate::ends::{pattern, End, Op, Shape};
use crate::patience::deadline;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::verbs::types::{wc_opcode, wc_status};
use gdrcore_net::reason;
use std::time::Instant;

/// Bytes of a message.
pub const LEN: u32 = 64;

/// Ends for these calls.
pub fn shape() -> Shape {
    Shape { buffer: 8192, depth: 8, cqe: 32, ..Shape::default() }
}

/// The block of an end's QPN: each engine of a device has its own.
pub fn block(end: &End) -> u32 {
    end.own.qpn / QPN_UNIT
}

/// The words of this thread's last refusal.
pub fn words() -> String {
    reason::with(|words| words.to_string())
}

/// Polls until a completion of `opcode` comes. Others are dropped: they must be successful.
pub fn await_one(end: &mut End, opcode: u32) {
    let came = comes(end, opcode, deadline(60));
    assert!(came, "no completion {opcode}; {:?}", end.dev.qp_cause(end.qp));
}

/// As [`await_one`]; false: none has come until `limit`.
pub fn comes(end: &mut End, opcode: u32, limit: Instant) -> bool {
    loop {
        end.poll();
        let done = std::mem::take(&mut end.done);
        assert!(done.iter().all(|wc| wc.status == wc_status::SUCCESS), "{done:?}");
        if done.iter().any(|wc| wc.opcode == opcode) {
            return true;
        }
        if Instant::now() >= limit {
            return false;
        }
    }
}

/// WRITEs by one thread, checked by it.
pub fn write(a: &mut End, b: &End, seed: u64, rounds: u64) {
    for round in 0..rounds {
        let data = pattern(seed + round, LEN as usize);
        a.buffer.write(0, &data);
        a.post(round, Op::Write(4096, None), 0, LEN).expect("post_send");
        await_one(a, wc_opcode::RDMA_WRITE);
        assert_eq!(b.buffer.read(4096, LEN as usize), data, "round {round}");
    }
}

/// Messages to and fro between two threads.
pub fn exchange(end: &mut End, seed: u64, first: bool, rounds: u64) {
    end.post_recv(0, 4096, LEN).expect("post_recv");
    for round in 0..rounds {
        let data = pattern(seed + round, LEN as usize);
        let send = |end: &mut End| {
            end.buffer.write(0, &data);
            end.post(round, Op::Send(None), 0, LEN).expect("post_send");
        };
        if first {
            send(end);
        }
        await_one(end, wc_opcode::RECV);
        assert_eq!(end.buffer.read(4096, LEN as usize), data, "round {round}");
        end.post_recv(0, 4096, LEN).expect("post_recv");
        if !first {
            send(end);
        }
    }
}
