//! Cost of one operation within one engine: two RC QPs, one thread, no socket. Includes the post,
//! both completion paths, the ACK and the clock reads.
//!
//! `cargo bench -p bench --bench post_poll`

#![allow(missing_docs)] // criterion's macros write undocumented functions

use bench::ends::End;
use criterion::{criterion_group, Criterion};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{send_flags, wr_opcode};

fn bench(c: &mut Criterion) {
    let end = End::open_pair("loopback", 1 << 20, 64);
    let mr = end.mr;
    let mut group = c.benchmark_group("post_poll");
    let inline = send_flags::SIGNALED | send_flags::INLINE;
    for (name, op, len, flags) in [
        ("write_8_inline", wr_opcode::RDMA_WRITE, 8, inline),
        ("write_64", wr_opcode::RDMA_WRITE, 64, send_flags::SIGNALED),
        ("write_4k", wr_opcode::RDMA_WRITE, 4096, send_flags::SIGNALED),
        ("write_64k", wr_opcode::RDMA_WRITE, 65536, send_flags::SIGNALED),
        ("read_8", wr_opcode::RDMA_READ, 8, send_flags::SIGNALED),
        ("fetch_add", wr_opcode::ATOMIC_FETCH_AND_ADD, 8, send_flags::SIGNALED),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| {
                end.post_with(0, &mr, op, 0, len, flags);
                end.wait()
            });
        });
    }
    group.bench_function("idle_poll", |b| b.iter(|| end.dev.progress()));
    group.finish();
}

/// The fastest of many short batches, which is the cost without disturbance.
fn fastest() {
    let end = End::open_pair("loopback", 1 << 20, 64);
    let mr = end.mr;
    let flags = send_flags::SIGNALED | send_flags::INLINE;
    let best = (0..20_000).map(|_| {
        let start = std::time::Instant::now();
        for _ in 0..50 {
            end.post_with(0, &mr, wr_opcode::RDMA_WRITE, 0, 8, flags);
            end.wait();
        }
        start.elapsed().as_nanos() as f64 / 50.0
    });
    let mut all: Vec<f64> = best.collect();
    all.sort_by(f64::total_cmp);
    println!(
        "write_8_inline, batches of 50: fastest {:.1} ns, median {:.1} ns",
        all[0],
        all[all.len() / 2]
    );
}

criterion_group!(benches, bench);

fn main() {
    fastest();
    benches();
    Criterion::default().configure_from_args().final_summary();
}
