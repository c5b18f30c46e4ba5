//! Flow control over default socket buffers: one QP, 16 QPs, and one 2 GiB READ, as ratios of one
//! run.
//!
//! `cargo bench -p bench --bench flow [-- ROUNDS]`; as a test (`cargo test --benches`) it moves
//! little and only shows that it runs.

use bench::ends::End;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::wr_opcode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const MIB: u32 = 1 << 20;

/// One run: its rate in GB/s, retransmissions and timeouts.
fn rate(a: &End, b: &End, qps: usize, op: u32, len: u32, total: u64, walk: bool) -> f64 {
    let before = a.dev.counters().expect("counters");
    let start = Instant::now();
    let (mut posted, mut done) = (0u64, 0u64);
    let n = total / u64::from(len);
    let depth = if len > MIB { 1 } else { 4 };
    // In place: one range per QP, which stays in the cache. Walking: through all of the buffers, as
    // the READ of 2 GiB does, at the speed of memory.
    let offset = |q: usize, k: u64| match (len > MIB, walk) {
        (true, _) => 0,
        (false, true) => k * u64::from(len) % (2 << 30),
        (false, false) => q as u64 * u64::from(len),
    };
    for _ in 0..depth {
        for q in 0..qps {
            if posted < n {
                a.post(q, &b.mr, op, offset(q, posted), len);
                posted += 1;
            }
        }
    }
    while done < n {
        let q = a.wait() as usize;
        done += 1;
        if posted < n {
            a.post(q, &b.mr, op, offset(q, posted), len);
            posted += 1;
        }
    }
    let rate = total as f64 / start.elapsed().as_secs_f64() / 1e9;
    let after = a.dev.counters().expect("counters");
    println!(
        "  {qps:2} QP op {op} {len:>10} B{}: {rate:6.2} GB/s, {} packets, \
         {} again, {} timeouts, {} sequence NAKs, window closed {}",
        if walk { " walking" } else { "" },
        after.sent_pkts - before.sent_pkts,
        after.retransmitted_pkts - before.retransmitted_pkts,
        after.retry_timeouts - before.retry_timeouts,
        after.rcvd_seq_err - before.rcvd_seq_err,
        after.window_closed - before.window_closed,
    );
    rate
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn main() {
    let brief = !std::env::args().any(|a| a == "--bench");
    let rounds =
        if brief { 1 } else { std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(3) };
    let total: u64 = if brief { 32 << 20 } else { 2 << 30 };
    let a = End::open("soft:127.0.0.1:4811", 16, 2 << 30, 64);
    let b = End::open("soft:127.0.0.2:4811", 16, 2 << 30, 64);
    End::connect(&a, &b);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if b.dev.progress().expect("progress") == 0 {
                    core::hint::spin_loop();
                }
            }
        });
        rate(&a, &b, 1, wr_opcode::RDMA_WRITE, MIB, total / 2, false);
        let (mut many, mut big, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
        let at_once = (total - 4096) as u32;
        for _ in 0..rounds {
            let one = rate(&a, &b, 1, wr_opcode::RDMA_WRITE, MIB, total, false);
            many.push(rate(&a, &b, 16, wr_opcode::RDMA_WRITE, MIB, total, false) / one);
            let write = rate(&a, &b, 1, wr_opcode::RDMA_WRITE, MIB, total, true);
            rate(&a, &b, 1, wr_opcode::RDMA_READ, MIB, total, true);
            let read = rate(&a, &b, 1, wr_opcode::RDMA_READ, at_once, u64::from(at_once), false);
            big.push(read / write);
            fresh.push(read / one);
        }
        println!("medians of {rounds}:");
        println!("  16 QPs x 1 MiB WRITE at {:.0} % of one QP", median(many) * 100.0);
        println!(
            "  one 2 GiB READ at {:.0} % of one QP that WRITEs the same 2 GiB by 1 MiB",
            median(big) * 100.0
        );
        println!(
            "  one 2 GiB READ at {:.0} % of one QP that WRITEs the same cached MiB",
            median(fresh) * 100.0
        );
        stop.store(true, Ordering::Relaxed);
    });
}
