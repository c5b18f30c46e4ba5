//! Queue pairs of two tenants, both driven by this thread.

use super::{median, until_input_ends, Given};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::verbs::types::{mtu, wc_opcode, wc_status};
use gdrcore_net::via::find::SocketPath;
use gdrcore_net::via::session::Session;
use gdrcore_testkit::ends::{connected, End, Op, Shape};
use gdrcore_testkit::soft::Soft;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const MESSAGE: u32 = 64;
/// A message that takes so long is lost.
const SILENCE: Duration = Duration::from_secs(10);

pub(super) fn device(given: &Given, name: &str) -> Soft {
    Soft::new(&format!("router:{}/{name}.gdrc", given.dir.display()))
}

/// The shape of ends here: a small buffer, and silences that are not waited for long.
pub(super) fn shape() -> Shape {
    Shape { buffer: 16 << 10, mtu: mtu::MTU_4096, timeout: 14, ..Shape::default() }
}

/// A pair that passes on one message after the other.
struct Pair<'d> {
    from: End<'d>,
    to: End<'d>,
    under_way: bool,
    moved: u64,
    last: Instant,
    longest: Duration,
}

impl<'d> Pair<'d> {
    fn new(a: &'d Soft, b: &'d Soft) -> Pair<'d> {
        let (from, to) = connected(a.dev(), b.dev(), shape()).expect("a pair");
        for n in 0..8 {
            to.post_recv(n, 0, MESSAGE).expect("post_recv");
        }
        let (last, longest) = (Instant::now(), Duration::ZERO);
        Pair { from, to, under_way: false, moved: 0, last, longest }
    }

    /// Posts or polls once. True: a message has arrived, and its sender knows.
    fn step(&mut self) -> bool {
        if !self.under_way {
            self.from.post(0, Op::Send(None), 0, MESSAGE).expect("post_send");
            self.under_way = true;
        }
        self.from.poll();
        self.to.poll();
        for wc in self.to.done.drain(..).collect::<Vec<_>>() {
            assert_eq!((wc.status, wc.opcode & wc_opcode::RECV), (wc_status::SUCCESS, 128));
            self.to.post_recv(wc.wr_id, 0, MESSAGE).expect("post_recv");
        }
        let Some(wc) = self.from.done.pop() else { return false };
        assert_eq!(wc.status, wc_status::SUCCESS, "{:?}", self.from.dev.qp_cause(self.from.qp));
        self.under_way = false;
        self.moved += 1;
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
        true
    }

    fn pass_on(&mut self) {
        let began = Instant::now();
        while !self.step() {
            assert!(began.elapsed() < SILENCE, "a message was lost");
        }
    }
}

/// Until the receiver has the first message after a pause in which nobody sends, and the worker
/// sleeps.
pub(super) fn first(given: &Given) -> String {
    let idle = |n| {
        let path = given.dir.join(format!("i{n}.gdrc"));
        let path = SocketPath::new(path.as_os_str().as_bytes()).expect("a path");
        Session::open(&path, QPN_UNIT).expect("a session")
    };
    let _idle: Vec<_> = (0..given.number("idle")).map(idle).collect();
    let (a, b) = (device(given, "one"), device(given, "two"));
    let mut pair = Pair::new(&a, &b);
    (0..100).for_each(|_| pair.pass_on());
    let mut waits: Vec<Duration> = (0..200).map(|_| after_a_pause(&mut pair)).collect();
    let median = median(&mut waits).as_secs_f64() * 1e6;
    let p99 = waits[waits.len() * 99 / 100].as_secs_f64() * 1e6;
    format!("{{\"median_us\":{median:.2},\"p99_us\":{p99:.2}}}")
}

fn after_a_pause(pair: &mut Pair) -> Duration {
    std::thread::sleep(Duration::from_millis(3));
    let began = Instant::now();
    pair.from.post(0, Op::Send(None), 0, MESSAGE).expect("post_send");
    pair.under_way = true;
    while pair.to.done.is_empty() {
        pair.to.poll();
        assert!(began.elapsed() < SILENCE, "a message was lost");
    }
    let took = began.elapsed();
    pair.pass_on();
    took
}

pub(super) fn outlive(given: &Given) -> String {
    let devices = ["one", "two", "three", "four"].map(|name| device(given, name));
    let [one, two, three, four] = &devices;
    let mut pairs = [Pair::new(one, two), Pair::new(three, four)];
    pairs.iter_mut().for_each(Pair::pass_on);
    let begun = Instant::now();
    pairs.iter_mut().for_each(|p| (p.moved, p.last, p.longest) = (0, begun, Duration::ZERO));
    println!("moves");
    let over = until_input_ends();
    while !over.load(Relaxed) {
        for pair in &mut pairs {
            pair.step();
        }
    }
    let [relayed, direct] = pairs.map(|p| {
        // It may be silent still.
        (p.longest.max(p.last.elapsed()).as_secs_f64() * 1e3, p.moved)
    });
    format!(
        "{{\"relayed_ms\":{:.3},\"direct_ms\":{:.3},\"relayed\":{},\"direct\":{}}}",
        relayed.0, direct.0, relayed.1, direct.1
    )
}
