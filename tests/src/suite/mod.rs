//! The behaviour suite: one set of cases for every kind of device. It is also a program (`suite
//! --device NAME`), so that it can run in the machine that has the NIC.
//!
//! A case gets two devices, which may be the same one, and panics on a fault. Where devices may
//! differ (docs/using/VERBS.md lists the differences) the case branches on [`DeviceKind`].

mod control;
mod failures;
mod traffic;
mod waiting;

use crate::ends::Buffer;
use crate::patience;
use crate::soft::Soft;
use gdrcore_core::device::{Device, Leaks};
use gdrcore_core::{Config, Error};
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_net::soft::{EngineCount, SoftConfig};
use gdrcore_verbs::{Text, VerbsDevice};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The soft device, the program's or a router's.
    Soft,
    /// A NIC.
    Verbs,
    /// A NIC of a router.
    RoutersNic,
}

impl DeviceKind {
    /// Whether its transport is a NIC's.
    pub fn is_nic(self) -> bool {
        self != DeviceKind::Soft
    }
}

/// The two devices of a case.
#[derive(Clone, Copy)]
pub struct Bench<'d> {
    /// The first device.
    pub a: &'d dyn Device,
    /// The second device, or the first again.
    pub b: &'d dyn Device,
    /// Their kind.
    pub kind: DeviceKind,
}

/// The result of a case that did not panic.
pub enum End {
    /// The case passed.
    Passed,
    /// The device lacks the feature.
    Skipped(String),
}

/// A case of the suite.
pub struct Case {
    /// What the case shows, as a sentence.
    pub name: &'static str,
    run: fn(Bench<'_>) -> End,
}

/// Every case, in order.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for part in [traffic::CASES, failures::CASES, control::CASES, waiting::CASES] {
        all.extend(part.iter().map(|&(name, run)| Case { name, run }));
    }
    all
}

/// An open device of any kind.
pub enum Opened {
    /// The soft device.
    Soft(Soft),
    /// One of several engines.
    Set(Soft),
    /// A NIC's.
    Verbs(Nic),
    /// A router's.
    Remote(Box<RemoteDevice>),
}

/// A verbs device in memory of its own; closed when dropped.
pub struct Nic {
    dev: &'static VerbsDevice,
    _memory: Buffer,
}

impl Nic {
    /// Opens a NIC; the error is the reason as text.
    pub fn open(name: &str) -> Result<Nic, String> {
        let config = Config::default();
        let bytes = VerbsDevice::memsize(name, &config).map_err(|e| format!("{name}: {e}"))?;
        let memory = Buffer::new(bytes);
        let mut why = Text::new();
        // SAFETY: the memory is fresh and lives in `_memory` until after `close`.
        let dev = unsafe { VerbsDevice::init(memory.as_ptr(), bytes, name, &config, &mut why) };
        let dev = dev.map_err(|e| format!("{name}: {e}: {}", why.as_str()))?;
        Ok(Nic { dev, _memory: memory })
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // SAFETY: every reference to the device ended with the borrow of self.
        unsafe { self.dev.close() };
    }
}

impl Opened {
    /// Opens a device by its name. Of several engines this thread has the second.
    pub fn open(name: &str, engines: u32) -> Result<Opened, String> {
        let explain = |e| format!("{name}: {e}");
        if engines > 1 {
            let set = Soft::open_with(name, &SoftConfig::default(), EngineCount::all(engines))
                .map_err(explain)?;
            let dev = set.dev();
            std::thread::scope(|scope| {
                let before = || dev.cq_create(2).and_then(|(cq, _)| dev.cq_destroy(cq));
                scope.spawn(before).join().expect("the thread").map_err(explain)
            })?;
            return Ok(Opened::Set(set));
        }
        if name.starts_with(gdrcore_verbs::name::PREFIX) {
            return Nic::open(name).map(Opened::Verbs);
        }
        match Soft::open(name, &SoftConfig::default()) {
            Err(Error::Os(libc::EREMOTE)) => {
                RemoteDevice::open(name).map(|d| Opened::Remote(Box::new(d))).map_err(explain)
            }
            opened => opened.map(Opened::Soft).map_err(explain),
        }
    }

    /// The device.
    pub fn dev(&self) -> &dyn Device {
        match self {
            Opened::Soft(soft) => soft.dev(),
            Opened::Set(set) => set.dev(),
            Opened::Verbs(nic) => nic.dev,
            Opened::Remote(device) => &**device,
        }
    }

    /// Its kind. `nic`: the device of the router is one.
    pub fn kind(&self, nic: bool) -> DeviceKind {
        match self {
            Opened::Remote(_) if nic => DeviceKind::RoutersNic,
            Opened::Soft(_) | Opened::Set(_) | Opened::Remote(_) => DeviceKind::Soft,
            Opened::Verbs(_) => DeviceKind::Verbs,
        }
    }
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Sum {
    pub passed: u32,
    pub failed: u32,
    pub skipped: u32,
}

/// Runs the cases whose name contains `filter` between two devices of these names (one device, if
/// the names are equal) with so many engines, prints a line for each, and returns the counts.
/// `nic`: a router's device is a NIC.
///
/// # Errors
/// A device that cannot be opened.
pub fn run(a: &str, b: &str, filter: &str, engines: u32, nic: bool) -> Result<Sum, String> {
    let first = Opened::open(a, engines)?;
    let second = if a == b { None } else { Some(Opened::open(b, engines)?) };
    let (da, db) = (first.dev(), second.as_ref().unwrap_or(&first).dev());
    let bench = Bench { a: da, b: db, kind: first.kind(nic) };
    let mut sum = Sum::default();
    for case in cases().iter().filter(|c| c.name.contains(filter)) {
        let begun = std::time::Instant::now();
        match catch_unwind(AssertUnwindSafe(|| (case.run)(bench))) {
            Ok(End::Passed) => {
                sum.passed += 1;
                println!("ok      {} ({:.1} s)", case.name, begun.elapsed().as_secs_f32());
            }
            Ok(End::Skipped(why)) => {
                sum.skipped += 1;
                println!("skipped: {}: {why}", case.name);
            }
            Err(_) => {
                sum.failed += 1;
                println!("FAILED  {}", case.name);
            }
        }
    }
    // A failed case may leave its objects behind.
    for dev in [da, db] {
        let left = dev.leaks().map_err(|e| e.to_string())?;
        if sum.failed == 0 && left != Leaks::default() {
            sum.failed += 1;
            println!("FAILED  objects are left: {left:?}");
        }
    }
    Ok(sum)
}

/// Runs both ends until `done` returns true.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let turn = || {
        let is_done = done();
        if !is_done {
            std::thread::yield_now();
        }
        is_done.then_some(())
    };
    patience::until(60, || what.to_string(), turn);
}
