//! Opens soft devices for tests, and runs a test over each of their paths.

use crate::place;
use gdrcore_core::device::Device;
use gdrcore_net::soft::{PathChoice, SoftConfig};
pub use gdrcore_testkit::soft::Soft;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A device name on loopback that no other test process uses.
pub fn address(last: u8) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static MINE: u32 = NEXT.fetch_add(1, Relaxed));
    let [a, b, c, d] = place::loopback(MINE.with(|n| (*n % 250) as u8), last);
    // Not the default port: tests that choose addresses themselves (`tools::loopback`) use that
    // one.
    format!("soft:{a}.{b}.{c}.{d}:18791")
}

/// Runs `test` over each path: with both ends on one loopback device, and with one device each over
/// UDP and over shared memory.
pub fn over_each(test: impl Fn(&dyn Device, &dyn Device)) {
    over_each_with(&SoftConfig::default(), test);
}

/// As [`over_each`], with a configuration.
pub fn over_each_with(config: &SoftConfig, test: impl Fn(&dyn Device, &dyn Device)) {
    let open = |name: &str| Soft::open(name, config).unwrap_or_else(|e| panic!("{name}: {e}"));
    let one = open("loopback");
    test(one.dev(), one.dev());
    drop(one);
    let (a, b) = (open(&address(1)), open(&address(2)));
    test(a.dev(), b.dev());
    drop((a, b));
    let config = SoftConfig { path: PathChoice::Shm, ..*config };
    let open =
        |name: &str| Soft::open(name, &config).unwrap_or_else(|e| panic!("{name} over shm: {e}"));
    let (a, b) = (open(&address(3)), open(&address(4)));
    test(a.dev(), b.dev());
}

/// Names of sockets below an address that are bound in this network namespace, as `/proc/net/unix`
/// lists them.
pub fn names_of(device: &str) -> Vec<String> {
    let below = format!("/{}/", device.trim_start_matches("soft:").replace(':', "-"));
    let all = std::fs::read_to_string("/proc/net/unix").expect("procfs");
    all.lines()
        .filter_map(|l| l.rsplit(' ').next())
        .filter(|n| n.contains(&below))
        .map(str::to_string)
        .collect()
}
