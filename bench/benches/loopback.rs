//! Messages between two QPs of one engine, one thread: sizes, depths, and 4096 idle QPs beside
//! them. Bytes cost one copy only. `cargo bench -p bench --bench loopback`.
#![allow(missing_docs)] // criterion's macros write undocumented functions

use std::time::Duration;

use bench::ends::End;
use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{send_flags, wr_opcode};

fn sizes(c: &mut Criterion) {
    let end = End::open_pair("loopback", 16 << 20, 64);
    let mut group = c.benchmark_group("loopback");
    for size in [8u32, 64, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 8 << 20] {
        group.throughput(Throughput::Bytes(size.into()));
        for (name, op) in [("write", wr_opcode::RDMA_WRITE), ("read", wr_opcode::RDMA_READ)] {
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| {
                    end.post(0, &end.mr, op, 0, size);
                    end.wait()
                })
            });
        }
        if size <= 64 << 10 {
            group.bench_function(BenchmarkId::new("send", size), |b| {
                b.iter(|| {
                    end.post_recv(1, size);
                    end.post(0, &end.mr, wr_opcode::SEND, 0, size);
                    // Both completions are in the one CQ.
                    (end.wait(), end.wait())
                })
            });
        }
    }
    group.finish();
}

fn depth(c: &mut Criterion) {
    let end = End::open_pair("loopback", 1 << 20, 64);
    let mut group = c.benchmark_group("loopback");
    for depth in [1u64, 16, 64] {
        group.throughput(Throughput::Elements(depth));
        group.bench_function(
            BenchmarkId::new("write of 64 bytes, posted before a poll", depth),
            |b| {
                b.iter(|| {
                    for _ in 0..depth {
                        end.post(0, &end.mr, wr_opcode::RDMA_WRITE, 0, 64);
                    }
                    for _ in 0..depth {
                        end.wait();
                    }
                })
            },
        );
    }
    group.finish();
}

/// `tests/tests/idle.rs` checks the same by instruction counts.
fn idle(c: &mut Criterion) {
    let mut group = c.benchmark_group("loopback");
    for idle in [0, 4096] {
        let end = End::open_pair_beside("loopback", idle);
        group.bench_function(BenchmarkId::new("write of 8 bytes beside idle QPs", idle), |b| {
            b.iter(|| {
                end.post_with(
                    0,
                    &end.mr,
                    wr_opcode::RDMA_WRITE,
                    0,
                    8,
                    send_flags::SIGNALED | send_flags::INLINE,
                );
                end.wait()
            })
        });
        group.bench_function(BenchmarkId::new("empty poll beside idle QPs", idle), |b| {
            b.iter(|| end.dev.progress())
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = sizes, depth, idle
}
criterion_main!(benches);
