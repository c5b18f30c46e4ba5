//! Counts calls: how many, how many failed, and their time.

use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering};
use gdrcore_calls::CALLS;

struct Count {
    calls: AtomicU64,
    failed: AtomicU64,
    ns: AtomicU64,
}

static COUNTS: [Count; CALLS.len()] = [const {
    Count { calls: AtomicU64::new(0), failed: AtomicU64::new(0), ns: AtomicU64::new(0) }
}; CALLS.len()];

/// Counts a call of `ns` nanoseconds.
pub fn count(row: usize, failed: bool, ns: u64) {
    let c = &COUNTS[row];
    c.calls.fetch_add(1, Ordering::Relaxed);
    c.failed.fetch_add(failed.into(), Ordering::Relaxed);
    c.ns.fetch_add(ns, Ordering::Relaxed);
}

/// A child of fork counts its own calls.
pub fn clear() {
    for c in &COUNTS {
        for n in [&c.calls, &c.failed, &c.ns] {
            n.store(0, Ordering::Relaxed);
        }
    }
}

/// The calls that were made, those that took the most time first.
pub fn table(to: &mut String) {
    let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let mut rows: Vec<_> = CALLS
        .iter()
        .zip(&COUNTS)
        .map(|(call, c)| (read(&c.ns), read(&c.calls), read(&c.failed), call.name))
        .filter(|row| row.1 > 0)
        .collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    let sum = rows.iter().fold((0, 0, 0), |s, r| (s.0 + r.0, s.1 + r.1, s.2 + r.2));
    let _ = writeln!(to, "% time     seconds  usecs/call     calls    errors call");
    let _ = writeln!(to, "------ ----------- ----------- --------- --------- ----------------");
    let mut line = |(ns, calls, failed): (u64, u64, u64), name: &str| {
        let share = 100.0 * ns as f64 / sum.0.max(1) as f64;
        let (seconds, each) = (ns as f64 / 1e9, ns as f64 / 1e3 / calls.max(1) as f64);
        let errors = if failed > 0 { failed.to_string() } else { String::new() };
        let _ =
            writeln!(to, "{share:>6.2} {seconds:>11.6} {each:>11.3} {calls:>9} {errors:>9} {name}");
    };
    for (ns, calls, failed, name) in &rows {
        line((*ns, *calls, *failed), name);
    }
    line(sum, "total");
}
