//! Flow control over default socket buffers: one QP, 16 QPs, and one 2 GiB READ, as ratios of one run.
//!
//! `cargo bench -p bench --bench flow`

use bench::ends::End;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::wr_opcode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const MIB: u32 = 1 << 20;

fn rate(a: &End, b: &End, qps: usize, op: u32, len: u32, total: u64) -> f64 {
    let start = Instant::now();
    let (mut posted, mut done) = (0u64, 0u64);
    let n = total / u64::from(len);
    let depth = if len > MIB { 1 } else { 4 };
    for q in 0..qps {
        for _ in 0..depth {
            if posted < n {
                a.post(q, &b.mr, op, if len > MIB { 0 } else { (q as u64) * u64::from(len) }, len);
                posted += 1;
            }
        }
    }
    while done < n {
        let q = a.wait() as usize;
        done += 1;
        if posted < n {
            a.post(q, &b.mr, op, if len > MIB { 0 } else { (q as u64) * u64::from(len) }, len);
            posted += 1;
        }
    }
    total as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn main() {
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
        let _ = rate(&a, &b, 1, wr_opcode::RDMA_WRITE, MIB, 1 << 30);
        let mut rows = Vec::new();
        for _ in 0..3 {
            let one = rate(&a, &b, 1, wr_opcode::RDMA_WRITE, MIB, 4 << 30);
            let many = rate(&a, &b, 16, wr_opcode::RDMA_WRITE, MIB, 4 << 30);
            let one_read = rate(&a, &b, 1, wr_opcode::RDMA_READ, MIB, 4 << 30);
            let big = rate(&a, &b, 1, wr_opcode::RDMA_READ, 2048 * MIB - 4096, (2048 * u64::from(MIB)) - 4096);
            println!("WRITE 1 QP {one:.2} GB/s | 16 QPs {many:.2} ({:.0} %) | READ 1 QP {one_read:.2} | one 2 GiB READ {big:.2} ({:.0} %)",
                many / one * 100.0, big / one * 100.0);
            rows.push((many / one, big / one));
        }
        stop.store(true, Ordering::Relaxed);
        let c = a.dev.counters().expect("counters");
        let d = b.dev.counters().expect("counters");
        println!(
            "retransmitted {} + {}, timeouts {} + {}, sequence NAKs {} of {} packets; tx calls {} rx calls {}",
            c.retransmitted_pkts,
            d.retransmitted_pkts,
            c.retry_timeouts,
            d.retry_timeouts,
            c.rcvd_seq_err,
            c.sent_pkts,
            c.port_tx_calls,
            d.port_rx_calls
        );
    });
}
