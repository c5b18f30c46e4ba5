//! What one thread does with its queue pair, beside others: each call checks what it moved.

use crate::ends::{pattern, Buffer, End, Op, Shape};
use crate::patience::{deadline, run_until};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::device::{Device, MrReg};
use gdrcore_core::verbs::types::{wc_opcode, wc_status, Handle, QpInit};
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

/// The number of the engine in the handle of a CQ, of a device of several.
pub fn engine_of(cq: Handle) -> u64 {
    cq >> 16 & 0xff
}

/// What `make` returns in a thread of its own.
pub fn elsewhere<T: Send>(make: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(make).join().expect("the thread"))
}

/// Gives an end another queue pair.
pub fn remake(end: &mut End, change: impl FnOnce(QpInit) -> QpInit) {
    let init = change(QpInit { pd: end.pd, ..end.dev.qp_query(end.qp).unwrap().1 });
    end.dev.qp_destroy(end.qp).unwrap();
    (end.qp, end.own.qpn, _) = end.dev.qp_create(&init).unwrap();
    let made = end.dev.qp_query(end.qp).unwrap().1;
    assert_eq!(
        [made.send_cq, made.recv_cq, made.srq],
        [init.send_cq, init.recv_cq, init.srq],
        "it reports what the program gave"
    );
}

/// Registers the beginning of a buffer. Returns the region and its key.
pub fn register(dev: &dyn Device, pd: Handle, buffer: &Buffer, length: u64) -> (Handle, u32) {
    let (addr, access) = (buffer.addr(), shape().access);
    let reg = MrReg { pd, addr, length, iova: addr, access, provider: 0, cookie: 0 };
    let (mr, attr) = dev.mr_reg(&reg).expect("mr_reg");
    (mr, attr.rkey)
}

/// Whether the calling thread sleeps on descriptors, for another one to ask.
pub fn sleeping() -> impl Fn() -> bool + Send {
    // SAFETY: no arguments.
    let call = format!("/proc/self/task/{}/syscall", unsafe { libc::gettid() });
    let sleeps = [libc::SYS_epoll_wait, libc::SYS_poll].map(|n| format!("{n} "));
    move || {
        std::fs::read_to_string(&call).is_ok_and(|call| sleeps.iter().any(|n| call.starts_with(n)))
    }
}

/// Waits until a thread sleeps that has sent its [`sleeping`].
pub fn await_sleep(sleeps: impl Fn() -> bool) {
    run_until(60, "nobody sleeps", || {
        std::thread::yield_now();
        sleeps()
    });
}

/// The words of this thread's last refusal.
pub fn words() -> String {
    reason::with_text(|words| words.to_string())
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
