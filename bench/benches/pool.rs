//! Looking up objects: handles, the bitmaps of busy ones, the timer wheel. `cargo bench -p bench
//! --bench pool`.
#![allow(missing_docs)] // criterion's macros write undocumented functions

use std::hint::black_box;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion};
use gdrcore_core::arena::Walk;
use gdrcore_core::bitmap::{AtomicBitmap, Bitmap};
use gdrcore_core::pool::Pool;
use gdrcore_core::wheel::Wheel;
use gdrcore_core::Result;
use gdrcore_net::map::Map;

/// Lays out an object in leaked memory.
fn carve<T>(mut layout: impl FnMut(&mut Walk) -> Result<T>) -> T {
    let mut query = Walk::size_query();
    layout(&mut query).expect("size query");
    let (at, len) = Map::new(query.offset().max(1)).expect("memory").into_raw();
    // SAFETY: a fresh mapping, never unmapped.
    let mut walk = unsafe { Walk::carve(at, len) }.expect("carve");
    layout(&mut walk).expect("carving what the query measured")
}

fn pool(c: &mut Criterion) {
    let mut group = c.benchmark_group("pool");
    let pool = carve(|w| Pool::carve(w, (5, 0), 4096, 4096, None));
    let handles: Vec<_> = (0..4096).map(|_| pool.alloc().expect("room").0).collect();
    let mut i = 0;
    group.bench_function("check", |b| {
        b.iter(|| {
            i = (i + 1021) & 4095;
            pool.check(black_box(handles[i]))
        })
    });
    group.bench_function("check of a stale one", |b| {
        b.iter(|| pool.check(black_box(handles[7] ^ 1 << 33)).is_err())
    });
    group.bench_function("free and alloc", |b| {
        b.iter(|| {
            pool.free(7);
            pool.alloc().expect("just freed")
        })
    });
    group.finish();
}

/// One busy object among idle ones, which must cost nothing.
fn bitmaps(c: &mut Criterion) {
    let mut group = c.benchmark_group("bitmap");
    for size in [128usize, 4096, 65_536] {
        let busy = size - 1;
        let mut map = carve(|w| Bitmap::carve(w, size));
        group.bench_function(BenchmarkId::new("set, find, clear", size), |b| {
            b.iter(|| {
                map.set(black_box(busy));
                let found = map.next_from(0);
                map.clear(busy);
                (found, map.is_empty())
            })
        });
        let shared = carve(|w| AtomicBitmap::carve(w, size));
        group.bench_function(BenchmarkId::new("set and drain, shared", size), |b| {
            b.iter(|| {
                shared.set(black_box(busy));
                let mut sum = 0;
                shared.drain(|i| sum += i);
                (sum, shared.any())
            })
        });
    }
    group.finish();
}

fn wheel(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel");
    for idle in [0u64, 4096] {
        let mut wheel = carve(|w| Wheel::carve(w, 8192, 8192));
        for id in 0..idle {
            wheel.arm(id as usize, 1_000_000_000 + id * 100_000);
        }
        let mut now = 1_000_000;
        group.bench_function(BenchmarkId::new("arm and cancel beside", idle), |b| {
            b.iter(|| {
                now += 100;
                wheel.arm(8000, now + 67_000_000);
                let fired = wheel.pop_expired(black_box(now.min(900_000_000)));
                wheel.cancel(8000);
                fired
            })
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = pool, bitmaps, wheel
}
criterion_main!(benches);
