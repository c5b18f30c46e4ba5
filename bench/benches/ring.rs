//! The ring between program and engine: one element, bursts, and two threads. `cargo bench -p bench
//! --bench ring`.
#![allow(missing_docs)] // criterion's macros write undocumented functions

use std::hint::black_box;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use gdrcore_core::arena::{Heap, RawBytes};
use gdrcore_core::ring::SlotRing;
use gdrcore_core::verbs::types::Wc;
use gdrcore_net::map::Map;

const CAPACITY: u32 = 256;
const STRIDE: u32 = size_of::<Wc>() as u32;

/// A ring of completions, its slot memory leaked.
fn ring() -> &'static SlotRing<Wc> {
    let bytes = SlotRing::<Wc>::bytes(CAPACITY, STRIDE).expect("geometry");
    let memory = Map::new(Heap::bytes_for(2 * bytes)).expect("memory");
    let (at, len) = memory.into_raw();
    let mut heap = Heap::new();
    // SAFETY: a fresh mapping, never unmapped.
    unsafe { heap.add(at, len) }.expect("heap");
    let region: RawBytes = heap.alloc(bytes).expect("room");
    let ring: &'static SlotRing<Wc> = Box::leak(Box::default());
    // SAFETY: nobody else knows the ring; the region was allocated for it; a Wc may be zero.
    unsafe { ring.install(region, CAPACITY, STRIDE) };
    ring
}

fn one_thread(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    let ring = ring();
    let wc = Wc { wr_id: 7, ..Wc::default() };
    // Both ends are acquired and released for each element, as post and poll do.
    group.bench_function("push and pop, ends taken each time", |b| {
        b.iter(|| {
            ring.producer().expect("one thread").push(black_box(wc)).expect("room");
            ring.consumer().expect("one thread").pop().map(|w| w.wr_id)
        })
    });
    for n in [1u32, 16, 64] {
        group.throughput(Throughput::Elements(n.into()));
        group.bench_function(BenchmarkId::new("burst", n), |b| {
            let mut tx = ring.producer().expect("one thread");
            let mut rx = ring.consumer().expect("one thread");
            b.iter(|| {
                for k in 0..n {
                    *tx.slot(k).header_mut() = black_box(wc);
                }
                tx.publish(n);
                let mut sum = 0;
                for k in 0..rx.len() {
                    sum += rx.peek(k).header().wr_id;
                }
                rx.release(n);
                sum
            })
        });
    }
    group.finish();
}

/// Round trip of an element to another thread: two rings, a cache line each way.
fn two_threads(c: &mut Criterion) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (there, back) = (ring(), ring());
    let stop: &'static AtomicBool = Box::leak(Box::default());
    let echo = std::thread::spawn(move || {
        let mut rx = there.consumer().expect("the only consumer");
        let mut tx = back.producer().expect("the only producer");
        while !stop.load(Ordering::Relaxed) {
            match rx.pop() {
                Some(wc) => tx.push(wc).expect("room"),
                None => std::hint::spin_loop(),
            }
        }
    });
    let mut group = c.benchmark_group("ring");
    group.bench_function("to another thread and back", |b| {
        let mut tx = there.producer().expect("the only producer");
        let mut rx = back.consumer().expect("the only consumer");
        b.iter(|| {
            tx.push(Wc::default()).expect("room");
            loop {
                match rx.pop() {
                    Some(wc) => break wc.wr_id,
                    None => std::hint::spin_loop(),
                }
            }
        })
    });
    group.finish();
    stop.store(true, Ordering::Relaxed);
    echo.join().expect("the echo ends");
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = one_thread, two_threads
}
criterion_main!(benches);
