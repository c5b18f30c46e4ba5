//! Sessions without queue pairs, whose rings are written and read here: what the router makes of
//! them does not depend on how fast an engine is.

use super::{median, until_input_ends, Given, Worker};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::{Class, PacketKind, Psn, ICRC_LEN};
use gdrcore_net::shm::relay::{Put, Relay, PACKET_MAX, RINGS};
use gdrcore_net::via::find::SocketPath;
use gdrcore_net::via::session::Session;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What the router charges for a packet besides its bytes; see `relay::turns`.
const OVERHEAD: u64 = 48;
/// What stands still for so long has come to its end.
const SILENCE: Duration = Duration::from_secs(10);

/// A tenant's session and its rings.
struct Member {
    session: Session,
    relay: Relay,
}

impl Member {
    fn open(given: &Given, name: &str) -> Member {
        let path = given.dir.join(format!("{name}.gdrc"));
        let path = SocketPath::new(path.as_os_str().as_bytes()).expect("a path");
        let (session, relay) = Session::open(&path, QPN_UNIT).expect("a session");
        Member { session, relay: relay.expect("rings") }
    }

    /// A SEND of one packet to a queue pair of another one. Nobody looks at its ICRC here.
    fn packet_to(&self, to: &Member, payload: usize) -> Packet {
        let run =
            Run::new(Class::Rc, PacketKind::Send, to.session.welcome().qpns.0 + 3, Psn::new(1));
        let opcode = run.opcode(true, true);
        let mut bytes = vec![0; opcode.header_len()];
        run.emit_headers(opcode, run.psn, false, 0, &mut bytes);
        bytes.resize(bytes.len() + payload + ICRC_LEN, 7);
        Packet { to: to.session.gid(), bytes }
    }

    /// Puts up to so many into the ring; how many it took.
    fn put(&mut self, packet: &Packet, most: usize) -> usize {
        let mut put = 0;
        while put < most && self.relay.put(&packet.to, &packet.bytes).expect("a ring") == Put::Done
        {
            put += 1;
        }
        put
    }

    /// Takes all that has come; of each sender and length.
    fn take_all(&mut self, mut came: impl FnMut(&[u8; 16], usize)) -> usize {
        let (mut space, mut taken) = ([0; PACKET_MAX], 0);
        while let Some(frame) = self.relay.take(&mut space).expect("a ring") {
            came(&frame.address, frame.packet.len());
            taken += 1;
        }
        if taken > 0 {
            self.relay.settle();
        }
        taken
    }
}

/// A packet and whom it is for.
struct Packet {
    to: [u8; 16],
    bytes: Vec<u8>,
}

impl Packet {
    fn cost(&self) -> u64 {
        self.bytes.len() as u64 + OVERHEAD
    }
}

/// Bytes of a record.
const RECORD: usize = 64;
/// Records that a tenant sends at once.
const BATCH: usize = 16;
/// Tenants of `records`.
const TENANTS: usize = 16;

/// The worker's time for each record: while it always finds some, and while one tenant sends
/// batches and others take them as fast as this thread can.
pub(super) fn records(given: &Given) -> String {
    let router = given.number("pid");
    let mut all: Vec<Member> =
        (0..TENANTS).map(|n| Member::open(given, &format!("t{n}"))).collect();
    let packets: Vec<Packet> =
        (0..TENANTS).map(|n| all[n].packet_to(&all[(n + 1) % TENANTS], RECORD)).collect();
    let mut full: Vec<u64> = (0..30).map(|_| of_full_rings(router, &mut all, &packets)).collect();
    let steady = of_batches(router, &mut all, &packets[0]);
    format!("{{\"full_ns\":{},\"batches_ns\":{steady}}}", median(&mut full))
}

/// Fills all rings while the router is stopped, and lets it empty them.
fn of_full_rings(router: u64, all: &mut [Member], packets: &[Packet]) -> u64 {
    let signal = |number| {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::kill(router as i32, number) }, 0, "the router is gone");
    };
    let worker = Worker::of(router);
    // A thread that goes on after SIGCONT is seen to sleep for a moment before it looks at rings.
    let until_it_sleeps = |before| {
        let (began, mut ran, mut looks) = (Instant::now(), before, 0);
        while looks < 4 {
            assert!(began.elapsed() < SILENCE, "the router's worker does not sleep");
            std::thread::sleep(Duration::from_millis(1));
            let now = worker.ran();
            let rests = worker.sleeps() && now == ran && now != before;
            (ran, looks) = (now, if rests { looks + 1 } else { 0 });
        }
    };
    until_it_sleeps(0);
    signal(libc::SIGSTOP);
    let put: usize = (0..all.len()).map(|n| all[n].put(&packets[n], usize::MAX)).sum();
    let before = worker.ran();
    signal(libc::SIGCONT);
    until_it_sleeps(before);
    let ran = worker.ran() - before;
    let came: usize = all.iter_mut().map(|m| m.take_all(|_, _| {})).sum();
    assert_eq!(came, put, "records were lost");
    ran / came as u64
}

/// A batch is sent while less than eight are under way.
fn of_batches(router: u64, all: &mut [Member], packet: &Packet) -> u64 {
    let worker = Worker::of(router);
    let (mut put, mut came) = (0, 0);
    let began = Instant::now();
    let before = worker.ran();
    while began.elapsed() < Duration::from_millis(500) {
        if put < came + 8 * BATCH {
            put += all[0].put(packet, BATCH);
        }
        came += all[1].take_all(|_, _| {});
    }
    (worker.ran() - before) / came as u64
}

/// Tenants whose rings are kept full towards one that takes all.
struct Full {
    from: Vec<(Member, Packet)>,
    sink: Member,
    /// Bytes by sender, as they are charged.
    charged: Vec<u64>,
    /// A ring was all but empty when its turn came, or the sink's all but full: this thread had no
    /// CPU for a while, and what was counted says nothing of the router.
    late: bool,
}

impl Full {
    fn open(given: &Given, names: &[String], payload: usize) -> Full {
        let sink = Member::open(given, "sink");
        let from = names.iter().map(|name| {
            let member = Member::open(given, name);
            let packet = member.packet_to(&sink, payload);
            (member, packet)
        });
        let from: Vec<_> = from.collect();
        Full { charged: vec![0; from.len()], from, sink, late: false }
    }

    /// Fills all rings and takes what has come; how many packets.
    fn go(&mut self) -> usize {
        let Full { from, sink, charged, late } = self;
        let nearly =
            |ring: u32, packets: usize, cost: u64| packets as u64 * cost > u64::from(ring) * 7 / 8;
        for (member, packet) in from.iter_mut() {
            let put = member.put(packet, usize::MAX);
            *late |= nearly(RINGS.0, put, packet.cost());
        }
        let came = sink.take_all(|sender, bytes| {
            if let Some(n) = from.iter().position(|(m, _)| m.session.gid() == *sender) {
                charged[n] += bytes as u64 + OVERHEAD;
            }
        });
        *late |= nearly(RINGS.1, came, from[0].1.cost());
        came
    }

    fn go_for(&mut self, time: Duration) -> Duration {
        let began = Instant::now();
        while began.elapsed() < time {
            if self.go() == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        began.elapsed()
    }

    /// Counts for so long, in a stretch of time in which neither this thread nor the router's
    /// worker was late, after bursts are over. How long it was.
    fn count_for(&mut self, given: &Given) -> Duration {
        let worker = Worker::of(given.number("pid"));
        let seconds = given.number("seconds");
        for _ in 0..TRIES {
            self.go_for(SETTLED);
            let enough = worker.waited() + given.number("late_ms") * 1_000_000;
            self.charged.fill(0);
            self.late = false;
            let mut took = Duration::ZERO;
            let began = Instant::now();
            while !self.late && took < Duration::from_secs(seconds) {
                self.go_for(Duration::from_millis(10));
                took = began.elapsed();
                self.late |= worker.waited() > enough;
            }
            if !self.late {
                return took;
            }
        }
        panic!("this machine has no CPU left to keep rings full for {seconds} s");
    }
}

/// Stretches of time that are tried.
const TRIES: u32 = 20;
/// Bytes of a packet that shares and rates are measured with.
const PIECE: usize = 1000;
/// Bursts are over then.
const SETTLED: Duration = Duration::from_millis(300);

pub(super) fn weights(given: &Given) -> String {
    let names = ["one", "two", "four"].map(String::from);
    let mut full = Full::open(given, &names, PIECE);
    full.count_for(given);
    let [one, two, four] = full.charged[..] else { unreachable!("three tenants") };
    let sum = (one + two + four) as f64;
    let share = |bytes: u64, weight: f64| bytes as f64 / sum * 7.0 / weight;
    format!(
        "{{\"one\":{:.4},\"two\":{:.4},\"four\":{:.4}}}",
        share(one, 1.0),
        share(two, 2.0),
        share(four, 4.0)
    )
}

pub(super) fn limit(given: &Given) -> String {
    let mut full = Full::open(given, &["one".into()], PIECE);
    let took = full.count_for(given);
    let share = full.charged[0] as f64 / (given.number("rate") as f64 * took.as_secs_f64());
    format!("{{\"share\":{share:.4}}}")
}

/// Bytes of a bulk stream's packet, all of one turn.
const BULK: usize = 4096;

pub(super) fn pings(given: &Given) -> String {
    let bulk = given.number("bulk");
    let names: Vec<String> = (0..bulk).map(|n| format!("b{n}")).collect();
    let mut full = Full::open(given, &names, BULK);
    let mut ping = Member::open(given, "ping");
    let small = ping.packet_to(&full.sink, RECORD);
    let gid = ping.session.gid();
    full.go_for(SETTLED);
    let mut waits = Vec::new();
    for n in 0..given.number("pings") {
        // Not in step with the packets of the others.
        full.go_for(Duration::from_micros(given.number("pause") + n * 7919 % 4000));
        let sent = Instant::now();
        assert_eq!(ping.put(&small, 1), 1, "no room for a ping");
        let mut came = false;
        while !came {
            for (member, packet) in &mut full.from {
                member.put(packet, usize::MAX);
            }
            full.sink.take_all(|sender, _| came |= *sender == gid);
            assert!(sent.elapsed() < SILENCE, "a ping was lost");
        }
        waits.push(sent.elapsed());
    }
    let frame = full.from[0].1.cost() as f64 / given.number("line") as f64;
    let wait = median(&mut waits).as_secs_f64();
    format!(
        "{{\"wait_ms\":{:.4},\"frames\":{:.4},\"rounds\":{:.4}}}",
        wait * 1e3,
        wait / frame,
        wait / frame / bulk as f64,
    )
}

pub(super) fn flood(given: &Given) -> String {
    let mut full = Full::open(given, &["flood".into()], PIECE);
    let over = until_input_ends();
    println!("floods");
    while !over.load(Relaxed) {
        full.go();
        std::thread::sleep(Duration::from_millis(1));
    }
    format!("{{\"charged\":{}}}", full.charged[0])
}
