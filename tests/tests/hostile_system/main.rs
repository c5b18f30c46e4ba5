//! Limits of kernel, threads and forks: sockets without room, links that refuse segmentation,
//! descriptors, sleepers beside a helper thread, two threads on one queue.

mod forks;
mod sockets;
mod threads;

use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{wc_status, Wc};
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags as flags, SoftConfig, SoftDevice};
use gdrcore_tests::ends::{connected, connected_pair, pattern, succeed, Buffer, Op, Shape};
use gdrcore_tests::patience::{deadline, limit_ms};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::run;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The open descriptors of this process.
fn descriptors() -> BTreeSet<i32> {
    let dir = std::fs::read_dir("/proc/self/fd").expect("/proc");
    dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Resident memory of the process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|l| l.starts_with("VmRSS")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

/// Opens and closes devices, in a process of its own (see below).
fn open_and_close(rounds: usize) {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let name = address(1);
    let bytes = SoftDevice::memsize(&name, &config).expect("memsize");
    let memory = Buffer::new(bytes);
    for _ in 0..rounds {
        // SAFETY: page-aligned memory that only this device uses until `close`.
        let dev =
            unsafe { SoftDevice::init(memory.as_ptr(), bytes, &name, &config) }.expect("a device");
        let kept = dev.pd_alloc().expect("pd_alloc");
        dev.progress().expect("progress");
        assert_ne!(kept, 0);
        // SAFETY: nothing uses the device any more.
        let leaks = unsafe { dev.close() };
        assert_eq!(leaks.pd, 1, "{leaks:?}");
    }
}

#[test]
fn a_thousand_devices_leave_no_descriptor_and_no_memory_behind() {
    if std::env::var_os("GDRC_TEST_ALONE").is_none() {
        // In a process in which no other test opens devices.
        let mut alone = Command::new(std::env::current_exe().expect("this program"));
        alone.args([
            "--exact",
            "a_thousand_devices_leave_no_descriptor_and_no_memory_behind",
            "--nocapture",
        ]);
        let done = run(alone.env("GDRC_TEST_ALONE", "1"), 60);
        assert!(done.ok(), "{done}");
        return;
    }
    open_and_close(50);
    let (descriptors_before, resident_before) = (descriptors().len(), resident());
    open_and_close(1000);
    assert_eq!(descriptors().len(), descriptors_before, "descriptors leak");
    let grown = resident().saturating_sub(resident_before);
    assert!(grown < 4096, "{grown} KiB leaked");
    let threads = std::fs::read_dir("/proc/self/task").expect("/proc").count();
    assert!(threads <= 3, "{threads} threads are left");
}
