//! Cost of a message over UDP, stage by stage; both ends run in one thread, so that no stage waits
//! for the other end.
//!
//! * `udp_stages`: medians in ns of the calls in one hop of a ping-pong of 64-byte SENDs, and of
//!   the bare socket calls with datagrams of the same lengths.
//! * `udp_stages BYTES [COUNT]`: CPU time and system calls of both ends per WRITE of this size,
//!   with 128 under way.
//!
//! Medians, and CPU time rather than wall time, are stable on a machine with other load.

use bench::bare::Bare;
use bench::ends::End;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{send_flags, wr_opcode, Wc};
use std::time::Instant;

const HOPS: usize = 100_000;
const DEPTH: u64 = 128;
/// One WRITE of so many is signalled.
const SIGNALLED: u64 = 8;

fn median(v: &mut [u128]) -> u128 {
    v.sort_unstable();
    v[v.len() / 2]
}

/// Runs `f` and records its time.
fn timed<T>(into: &mut Vec<u128>, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let out = f();
    into.push(start.elapsed().as_nanos());
    out
}

fn hops() {
    let a = End::open("soft:127.0.0.1:4831", 1, 1 << 20, 64);
    let b = End::open("soft:127.0.0.2:4831", 1, 1 << 20, 64);
    End::connect(&a, &b);
    let (mut x, mut y) = (&a, &b);
    x.post_recv(0, 64);
    y.post_recv(0, 64);
    let (mut post, mut hit, mut recv, mut empty) = (vec![], vec![], vec![], vec![]);
    for _ in 0..HOPS {
        timed(&mut post, || x.post_unsignalled(0, 64));
        while !timed(&mut hit, || y.try_wait()) {
            // A completion of an earlier SEND.
            hit.pop();
        }
        timed(&mut recv, || y.post_recv(0, 64));
        timed(&mut empty, || x.try_wait());
        core::mem::swap(&mut x, &mut y);
    }
    println!(
        "post_send {} ns, poll_cq with a message {}, post_recv {}, poll_cq in vain {}",
        median(&mut post),
        median(&mut hit),
        median(&mut recv),
        median(&mut empty)
    );
    // A SEND and an ACK as one burst: 80 bytes and 20.
    let (s, r) = (Bare::open("127.0.0.1:0", 80), Bare::open("127.0.0.2:0", 80));
    let to = r.address();
    let (mut buf, data) = ([0; 2048], [7; 100]);
    let (mut send, mut got, mut none) = (vec![], vec![], vec![]);
    for _ in 0..HOPS {
        timed(&mut send, || s.send_to(&data, &to));
        timed(&mut got, || r.receive(&mut buf));
        timed(&mut none, || r.receive(&mut buf));
    }
    println!(
        "bare: GSO send {} ns, receive {}, receive in vain {}",
        median(&mut send),
        median(&mut got),
        median(&mut none)
    );
}

/// CPU time of this thread in ns.
fn cpu() -> f64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts) };
    ts.tv_sec as f64 * 1e9 + ts.tv_nsec as f64
}

fn writes(bytes: u32, count: u64) {
    let a = End::open("soft:127.0.0.1:4833", 1, (bytes as usize).max(4096), DEPTH as u32);
    let b = End::open("soft:127.0.0.2:4833", 1, (bytes as usize).max(4096), DEPTH as u32);
    End::connect(&a, &b);
    let count = count.next_multiple_of(SIGNALLED);
    let (mut posted, mut done, mut sender, mut receiver) = (0, 0, 0.0, 0.0);
    let mut wc = [Wc::default(); 16];
    while done < count {
        let start = cpu();
        while posted < count && posted - done < DEPTH {
            posted += 1;
            let flags = if posted % SIGNALLED == 0 { send_flags::SIGNALED } else { 0 };
            a.post_with(0, &b.mr, wr_opcode::RDMA_WRITE, 0, bytes, flags);
        }
        let n = a.dev.poll_cq(a.cq, &mut wc).expect("poll");
        assert!(wc[..n].iter().all(|w| w.status == 0));
        done += SIGNALLED * n as u64;
        let between = cpu();
        b.dev.progress().expect("progress");
        sender += between - start;
        receiver += cpu() - between;
    }
    let (x, y) = (a.dev.counters().expect("counters"), b.dev.counters().expect("counters"));
    let each = |v: f64| v / count as f64;
    println!(
        "WRITE of {bytes}: sender {:.0} ns, receiver {:.0}; calls \
         per message: sender {:.3} + {:.3}, receiver {:.3} + {:.3}",
        each(sender),
        each(receiver),
        each(x.port_tx_calls as f64),
        each(x.port_rx_calls as f64),
        each(y.port_tx_calls as f64),
        each(y.port_rx_calls as f64)
    );
}

fn main() {
    let number = |n: usize| std::env::args().nth(n).and_then(|a| a.parse::<u64>().ok());
    match number(1).map(u32::try_from) {
        None => hops(),
        Some(Ok(bytes)) if bytes > 0 => writes(bytes, number(2).unwrap_or(20_000)),
        Some(_) => eprintln!("usage: udp_stages [BYTES [COUNT]]"),
    }
}
