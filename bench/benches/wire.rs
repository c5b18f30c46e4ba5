//! Reading and writing packets. `cargo bench -p bench --bench wire`.
#![allow(missing_docs)] // criterion's macros write undocumented functions

use std::hint::black_box;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion};
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::{Bth, Class, Opcode, PacketKind, Psn, Qpn, Syndrome};

/// Runs of one packet and their payloads.
fn packets() -> [(&'static str, Run, &'static [u8]); 3] {
    let run = |kind| Run::new(Class::Rc, kind, 17, Psn::new(1));
    let ack = Run { syndrome: Syndrome::ACK.byte(), msn: 3, ..run(PacketKind::Ack) };
    let write = Run { va: 0x7F00_0000_1000, rkey: 0x1234, dma_len: 64, ..run(PacketKind::Write) };
    let middle = Run { first: false, last: false, ..run(PacketKind::Send) };
    [("ack", ack, &[]), ("write 64", write, &[7; 64]), ("send 1024", middle, &[7; 1024])]
}

fn wire(c: &mut Criterion) {
    let mut group = c.benchmark_group("wire");
    let bth = Bth::new(Opcode::RC_SEND_MIDDLE, Qpn::new(17), Psn::new(1));
    let mut buf = [0; Bth::LEN];
    group.bench_function("bth emit", |b| b.iter(|| black_box(&bth).emit(black_box(&mut buf))));
    group.bench_function("bth parse", |b| b.iter(|| Bth::parse(black_box(&buf))));
    for (name, run, payload) in packets() {
        let opcode = run.opcode(run.first, run.last);
        let mut headers = vec![0; opcode.header_len()];
        group.bench_function(BenchmarkId::new("headers emit", name), |b| {
            b.iter(|| black_box(&run).emit_headers(opcode, run.psn, false, 0, &mut headers))
        });
        let bytes = [&headers, payload].concat();
        group.bench_function(BenchmarkId::new("packet parse", name), |b| {
            b.iter(|| Run::parse_packet(black_box(&bytes)).map(|(_, payload)| payload.len()))
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
