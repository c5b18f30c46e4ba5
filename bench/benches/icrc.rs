//! ICRC, its CRC, and copies that compute it, by implementation and size.
//!
//! `cargo bench -p bench --bench icrc`.
#![allow(missing_docs)] // criterion's macros write undocumented functions

use std::hint::black_box;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use gdrcore_core::mem::host;
use gdrcore_core::wire::icrc::{crc32_with, Impl};
use gdrcore_core::wire::{Bth, IcrcFlow, Opcode, Psn, Qpn};

fn implementations() -> impl Iterator<Item = Impl> {
    Impl::ALL.iter().copied().filter(|which| which.is_available())
}

fn crc(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc32");
    for size in [20, 64, 128, 256, 1024, 4096, 65536] {
        let data = vec![0xA5; size];
        group.throughput(Throughput::Bytes(size as u64));
        for which in implementations() {
            let name = BenchmarkId::new(format!("{which:?}"), size);
            group.bench_function(name, |b| {
                b.iter(|| crc32_with(which, black_box(!0), black_box(&data)))
            });
        }
    }
    group.finish();
}

fn icrc(c: &mut Criterion) {
    let flow = IcrcFlow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xC123, 4791);
    let flow6 = IcrcFlow::v6([1; 16], [2; 16], 0xC123, 4791);
    let mut group = c.benchmark_group("icrc");
    // An ACK, and packets of path MTU.
    for (opcode, payload) in [
        (Opcode::RC_ACK, 0),
        (Opcode::RC_SEND_ONLY, 64),
        (Opcode::RC_WRITE_MIDDLE, 256),
        (Opcode::RC_WRITE_MIDDLE, 1024),
        (Opcode::RC_READ_RESPONSE_ONLY, 1024),
        (Opcode::RC_WRITE_MIDDLE, 4096),
    ] {
        let mut packet = vec![0x5A; opcode.header_len() + payload];
        Bth::new(opcode, Qpn::new(17), Psn::new(1)).emit(packet.first_chunk_mut().unwrap());
        group.throughput(Throughput::Bytes(packet.len() as u64));
        for which in implementations() {
            let name = BenchmarkId::new(format!("{which:?}/{opcode:?}"), payload);
            group.bench_function(name, |b| {
                b.iter(|| flow.icrc_with(which, black_box(0), black_box(&packet)))
            });
        }
        let name = BenchmarkId::new(format!("best/v6/{opcode:?}"), payload);
        group.bench_function(name, |b| b.iter(|| flow6.icrc(black_box(0), black_box(&packet))));
        let name = BenchmarkId::new(format!("best/v4/{opcode:?}"), payload);
        group.bench_function(name, |b| b.iter(|| flow.icrc(black_box(0), black_box(&packet))));
    }
    group.finish();
}

/// The payload of a packet out of program memory: copied and summed, in two passes and in one.
fn copy(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy");
    // As in a packet: behind a BTH.
    let mut packet = vec![0; 12 + 4096];
    for size in [1024, 4096] {
        let memory = vec![0xA5u8; size];
        let addr = memory.as_ptr().expose_provenance() as u64;
        let room = &mut packet[12..12 + size];
        group.throughput(Throughput::Bytes(size as u64));
        for which in implementations() {
            group.bench_function(BenchmarkId::new(format!("{which:?}/two passes"), size), |b| {
                b.iter(|| {
                    host::fetch(black_box(addr), room).expect("it is there");
                    crc32_with(which, !0, room)
                })
            });
            group.bench_function(BenchmarkId::new(format!("{which:?}/one pass"), size), |b| {
                b.iter(|| host::fetch_crc_with(which, black_box(addr), room, !0))
            });
        }
    }
    group.finish();
}

fn check(c: &mut Criterion) {
    let flow = IcrcFlow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xC123, 4791);
    let mut group = c.benchmark_group("check");
    for len in [20, 1040, 4112] {
        let mut packet = vec![0x5A; len];
        flow.append_icrc(0, &mut packet);
        group.bench_function(BenchmarkId::new("hinted", len), |b| {
            b.iter(|| flow.check(black_box(0), black_box(&packet)))
        });
        flow.append_icrc(0x7CB2, &mut packet);
        group.bench_function(BenchmarkId::new("solved", len), |b| {
            b.iter(|| flow.check(black_box(0), black_box(&packet)))
        });
    }
    group.bench_function("flow", |b| {
        b.iter(|| IcrcFlow::v4(black_box([10, 0, 0, 1]), [10, 0, 0, 2], 0xC123, 4791))
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = crc, icrc, copy, check
}
criterion_main!(benches);
