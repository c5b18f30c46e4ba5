//! What `make compare-router` puts on a router: rings that are kept full, pings beside them,
//! tenants that were idle, pairs that outlive a router, and requests of many tenants. Each
//! measurement prints one JSON object.
//!
//! `router_load WHAT DIR [key=value]...`: `DIR/NAME.gdrc` are the sockets of tenants.
//!
//! - `records`, `pid=ROUTER`: the worker's time for a record of 64 bytes. Tenants `t0` to `t15`
//! - `weights`, `seconds=N pid=ROUTER late_ms=N`: shares of `one`, `two` and `four`, all sent to
//!   `sink`, while the worker waits no longer for a CPU
//! - `limit`, the same and `rate=BYTES`: what `one` gets through to `sink`, as a share of its rate
//! - `pings`, `bulk=N line=BYTES pings=N pause=MICROSECONDS`: how long `ping` waits beside full
//!   rings of `b0` to `b<N-1>`, with so long a pause before each
//! - `flood`: keeps the ring of `flood` towards `sink` full until standard input ends
//! - `first`, `idle=N`: the first message from `one` to `two`, beside `i0` to `i<N-1>`
//! - `outlive`: the longest silence of a relayed pair (`one`, `two`) and of a direct one (`three`,
//!   `four`) until standard input ends
//! - `requests`, `tenants=N seconds=N pid=ROUTER`: each of `t0` to `t<N-1>` asks the next one by
//!   WRITE and is answered by SEND

mod pairs;
mod requests;
mod rings;

use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

/// Where the sockets are, and what else was said.
struct Given {
    dir: PathBuf,
    options: HashMap<String, u64>,
}

impl Given {
    fn number(&self, key: &str) -> u64 {
        *self.options.get(key).unwrap_or_else(|| panic!("{key}= is missing"))
    }
}

/// The thread of a router that relays.
struct Worker(PathBuf);

impl Worker {
    fn of(router: u64) -> Worker {
        let tasks = std::fs::read_dir(format!("/proc/{router}/task")).expect("a router");
        let is_worker = |path: &PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "relay")
        };
        Worker(tasks.flatten().map(|t| t.path()).find(is_worker).expect("a worker"))
    }

    /// Nanoseconds that it has run.
    fn ran(&self) -> u64 {
        self.number(0)
    }

    /// Nanoseconds that it has waited for a CPU.
    fn waited(&self) -> u64 {
        self.number(1)
    }

    fn number(&self, n: usize) -> u64 {
        let text = std::fs::read_to_string(self.0.join("schedstat")).expect("schedstat");
        text.split_whitespace().nth(n).and_then(|n| n.parse().ok()).expect("nanoseconds")
    }

    fn sleeps(&self) -> bool {
        let text = std::fs::read_to_string(self.0.join("stat")).expect("stat");
        text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    }
}

/// Is set when standard input ends.
fn until_input_ends() -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    let set = over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        set.store(true, Relaxed);
    });
    over
}

/// The value in the middle.
fn median<T: Ord + Copy>(values: &mut [T]) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

fn main() {
    let mut words = std::env::args().skip(1);
    let (what, dir) = words.next().zip(words.next()).expect("WHAT DIR");
    let option = |word: String| {
        let (key, value) = word.split_once('=').expect("key=value");
        (key.to_string(), value.parse().expect("a number"))
    };
    let given = Given { dir: dir.into(), options: words.map(option).collect() };
    let said = match what.as_str() {
        "records" => rings::records(&given),
        "weights" => rings::weights(&given),
        "limit" => rings::limit(&given),
        "pings" => rings::pings(&given),
        "flood" => rings::flood(&given),
        "first" => pairs::first(&given),
        "outlive" => pairs::outlive(&given),
        "requests" => requests::requests(&given),
        other => panic!("no such measurement: {other}"),
    };
    println!("{said}");
}
