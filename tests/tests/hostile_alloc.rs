//! No allocation once traffic runs, also when packets are lost, requests fail, peers die or queues
//! are full.
//!
//! Tested twice: in this process, by a counting allocator around every call of the device; and
//! under the C examples, by the preloaded counter, together with a library that loses datagrams.

use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{wc_status, Wc};
use gdrcore_net::soft::{soft_flags as flags, SoftConfig};
use gdrcore_tests::cpu;
use gdrcore_tests::ends::{connected, End, Op, Shape};
use gdrcore_tests::library;
use gdrcore_tests::patience::{deadline, wait_for};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{loopback, run, scratch, Running};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An allocator that counts calls of threads that are inside a device call.
struct Counting;

static FOUND: AtomicU64 = AtomicU64::new(0);
thread_local!(static INSIDE: Cell<bool> = const { Cell::new(false) });

// SAFETY: hands everything to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if INSIDE.try_with(Cell::get).unwrap_or(false) {
            FOUND.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if INSIDE.try_with(Cell::get).unwrap_or(false) {
            FOUND.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls the device; allocations and frees meanwhile are counted.
fn inside<T>(call: impl FnOnce() -> T) -> T {
    INSIDE.with(|i| i.set(true));
    let out = call();
    INSIDE.with(|i| i.set(false));
    out
}

/// Runs both ends until `a` has completed `n` requests; returns the number of each status.
fn drive(a: &End, b: &End, n: usize) -> [usize; 32] {
    let mut seen = [0; 32];
    let mut total = 0;
    let mut wc = [Wc::default(); 8];
    let end = deadline(60);
    while total < n {
        let got = inside(|| a.dev.poll_cq(a.cq, &mut wc)).expect("poll_cq");
        for w in &wc[..got] {
            seen[w.status as usize & 31] += 1;
        }
        total += got;
        inside(|| b.dev.poll_cq(b.cq, &mut wc)).expect("poll_cq");
        assert!(Instant::now() < end, "{total} of {n}");
    }
    seen
}

fn traffic(x: &dyn Device, y: &dyn Device) {
    let shape = Shape {
        timeout: 8,
        retry_cnt: 2,
        rnr_retry: 1,
        min_rnr_timer: 3,
        depth: 16,
        cqe: 4,
        ..Shape::default()
    };
    // Successful traffic: every operation, and receives that are posted late.
    let patient = Shape { retry_cnt: 7, rnr_retry: 7, timeout: 12, ..shape };
    let (a, b) = connected(x, y, patient).expect("connected ends");
    for op in [Op::Write(0, None), Op::Read(0), Op::Send(None), Op::FetchAdd(0, 1)] {
        for n in 0..4 {
            let len = if matches!(op, Op::FetchAdd(..)) { 8 } else { 100_000 };
            inside(|| a.post(n, op, 0, len)).expect("post_send");
        }
        for n in 0..4 {
            if matches!(op, Op::Send(_)) {
                inside(|| x.progress()).expect("progress");
                inside(|| b.post_recv(n, 0, 100_000)).expect("post_recv");
            }
        }
        assert_eq!(drive(&a, &b, 4)[0], 4, "{op:?}");
    }
    // A full queue.
    let mut posted = 0;
    while inside(|| a.post(posted, Op::Write(0, None), 0, 8)).is_ok() {
        posted += 1;
    }
    drive(&a, &b, posted as usize);
    // Each kind of failure: a wrong key, no receive, a silent peer; each with its flushes.
    for how in 0..3 {
        let (mut a, b) = connected(x, y, shape).expect("connected ends");
        let expected = match how {
            0 => {
                a.peer.rkey ^= 1;
                wc_status::REM_ACCESS_ERR
            }
            1 => wc_status::RNR_RETRY_EXC_ERR,
            _ => {
                y.qp_destroy(b.qp).expect("qp_destroy");
                wc_status::RETRY_EXC_ERR
            }
        };
        let op = if how == 1 { Op::Send(None) } else { Op::Write(0, None) };
        for n in 0..4 {
            inside(|| a.post(n, op, 0, 50_000)).expect("post_send");
        }
        let seen = drive(&a, &b, 4);
        assert_eq!(
            (seen[expected as usize], seen[wc_status::WR_FLUSH_ERR as usize]),
            (1, 3),
            "case {how}: {seen:?}"
        );
        inside(|| a.dev.qp_cause(a.qp)).expect("qp_cause");
        while let Some(_event) = inside(|| x.async_event()).expect("async_event") {}
    }
    inside(|| x.cq_arm(a.cq, false)).expect("cq_arm");
    inside(|| x.wait(5)).expect("wait");
    inside(|| x.counters()).expect("counters");
}

#[test]
fn the_data_plane_allocates_nothing_whatever_goes_wrong() {
    let one = Soft::new("loopback");
    traffic(one.dev(), one.dev());
    for flags in [0, flags::HELPER, flags::NO_GSO] {
        let config = SoftConfig { flags, ..SoftConfig::default() };
        let x = Soft::open(&address(1), &config).expect("a device");
        let y = Soft::open(&address(2), &config).expect("a device");
        traffic(x.dev(), y.dev());
    }
    assert_eq!(FOUND.load(Ordering::Relaxed), 0, "allocations or frees inside device calls");
}

/// A command of an example that counts its allocations.
fn counted(program: &Path, report: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library::examples().join("malloc_count.so"));
    command.env("GDRC_MALLOC_REPORT", report);
    command
}

/// Faults of every kind that RC repairs.
const FAULTS: &str = "loss rate 4%; loss in rate 1%; duplicate rate 1%; corrupt rate 1%; \
                      reorder 2 rate 1%; delay 100us rate 1%; rnr rate 1%";

#[test]
fn the_examples_allocate_nothing_while_packets_are_lost_and_clients_are_killed() {
    let bin = library::examples();
    let dir = scratch("alloc-faults");
    let report = dir.join("report");
    let (here, port) = (loopback(44, 1), "19951");
    // The server alone has faults: its clients are as fast as those of any other host.
    let mut server = counted(&bin.join("gpu_direct/server"), &report);
    server.args(["-a", &here, "-p", port, "-s", "1M", "-P", "-D", "8"]);
    server.env("GDRC_FAULTS", FAULTS).env("GDRC_SEED", "1").env("GDRC_FAULT_LOG", &report);
    let server = Running::start(&mut server);
    let client = |last: u32, kind: &str, n: &str| {
        let mut command = counted(&bin.join("gpu_direct/client"), &report);
        command.args([
            "-a",
            &loopback(44, last),
            "-p",
            port,
            "-t",
            kind,
            "-n",
            n,
            "-s",
            "1M",
            "-c",
            &here,
        ]);
        command
    };
    let end = deadline(60);
    while std::net::TcpStream::connect(format!("{here}:{port}")).is_err() {
        assert!(Instant::now() < end, "the server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    for (last, kind) in [(2, "0"), (3, "1")] {
        let done = run(&mut client(last, kind, "40"), 60);
        assert!(done.ok(), "-t {kind}: {done}");
    }
    // A client is killed in the middle; the server reports it and serves the next.
    let mut dying = Running::start(&mut client(4, "0", "1000000"));
    let at_work = || cpu::of(dying.pid()).is_some_and(|used| used > Duration::from_millis(200));
    wait_for(60, "the client to be at work", at_work);
    assert!(dying.still_runs());
    dying.kill();
    let done = run(&mut client(5, "1", "20"), 60);
    assert!(done.ok(), "after the kill: {done}");
    std::thread::sleep(Duration::from_millis(200));
    server.interrupt();
    let done = server.finish(Duration::from_secs(60));
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    assert!(done.status.is_some(), "the server did not end: {done}\n{text}");
    let of = |tool: &str, program: &str| -> Vec<String> {
        text.lines()
            .filter(|l| l.starts_with(&format!("{tool}: {program}:")))
            .map(str::to_string)
            .collect()
    };
    let counts = [of("malloc_count", "server"), of("malloc_count", "client")].concat();
    assert!(counts.len() >= 4, "{text}\n{done}");
    assert!(
        counts.iter().all(|l| l.ends_with(", 0 allocations") && !l.contains(" 0 data-plane")),
        "{text}"
    );
    for (action, direction) in [("loss", "out"), ("loss", "in"), ("corrupt", "out")] {
        let line = format!("{action} {direction} qp ");
        assert!(text.lines().any(|l| l.starts_with(&line)), "{line}: {text}");
    }
}
