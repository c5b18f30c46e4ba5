//! Reading and writing packets. `cargo bench -p bench --bench wire`.
#![allow(missing_docs)] // criterion's macros write undocumented functions

use std::hint::black_box;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion};
use gdrcore_core::wire::{Aeth, Bth, Ext, Opcode, Packet, Psn, Qpn, Reth, Syndrome, View};

fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let ack = Ext::Aeth(Aeth { syndrome: Syndrome::ACK.byte(), msn: 3 });
    let write = Ext::Reth(Reth { va: 0x7F00_0000_1000, rkey: 0x1234, len: 64 });
    let all: [(&str, Opcode, Ext, &[u8]); 3] = [
        ("ack", Opcode::RC_ACK, ack, &[]),
        ("write 64", Opcode::RC_WRITE_ONLY, write, &[7; 64]),
        ("send 1024", Opcode::RC_SEND_MIDDLE, Ext::None, &[7; 1024]),
    ];
    all.iter()
        .map(|(name, opcode, ext, payload)| {
            let packet =
                Packet::new(Bth::new(*opcode, Qpn::new(17), Psn::new(1)), *ext, payload).unwrap();
            let mut bytes = vec![0; packet.emitted_len()];
            packet.emit(&mut bytes).unwrap();
            (*name, bytes)
        })
        .collect()
}

fn wire(c: &mut Criterion) {
    let mut group = c.benchmark_group("wire");
    let bth = Bth::new(Opcode::RC_SEND_MIDDLE, Qpn::new(17), Psn::new(1));
    let mut buf = [0; Bth::LEN];
    group.bench_function("bth emit", |b| b.iter(|| black_box(&bth).emit(black_box(&mut buf))));
    group.bench_function("bth parse", |b| b.iter(|| Bth::parse(black_box(&buf))));
    for (name, bytes) in packets() {
        group.bench_function(BenchmarkId::new("view", name), |b| {
            b.iter(|| View::parse(black_box(&bytes)).map(|v| v.payload().len()))
        });
        group.bench_function(BenchmarkId::new("packet parse", name), |b| {
            b.iter(|| Packet::try_from(View::parse(black_box(&bytes)).unwrap()))
        });
        let packet = Packet::try_from(View::parse(&bytes).unwrap()).unwrap();
        let mut out = vec![0; bytes.len()];
        group.bench_function(BenchmarkId::new("packet emit", name), |b| {
            b.iter(|| black_box(&packet).emit(black_box(&mut out)))
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = wire
}
criterion_main!(benches);
