//! A crowd of tenants of one router (see `gdrcore_tests::crowd`), and what the router needs for it.
//!
//! - `crowd [COUNT]` starts a router, the crowd, and so many sessions that come and go beside it
//!   (10,000), and writes a section of bench/RESULTS-ROUTER.md.
//! - `crowd member FOLDER FIRST COUNT` is so many of the tenants, by the sockets of a folder. Lines
//!   out: `at PLACE ADDRESS` for each queue pair; PLACE is the tenant's number times the queue
//!   pairs of one, and the queue pair's. Lines in: `to PLACE ADDRESS` for each, which is answered
//!   with `connected` when all are; `go` exchanges bytes over all, `done`; from `rest` on, `rests`,
//!   nobody polls. The end of input ends it.

use gdrcore_core::verbs::types::wc_status;
use gdrcore_tests::crowd::{
    busy, come_and_go, memory, policy, remote_policy, shape, Crowd, Held, Member, PIECE, QPS,
    REMOTE_TENANTS, TENANTS,
};
use gdrcore_tests::ends::{pattern, End, Op};
use gdrcore_tests::far_end::{parse_address, print_address};
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::process::kib;
use gdrcore_tests::results::Section;
use gdrcore_tests::router::Router;
use gdrcore_tests::soft::address;
use gdrcore_tests::tools::lines_of_input;
use std::path::{Path, PathBuf};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

/// The parts of a buffer: what is sent, and what comes by WRITE, SEND and READ.
const OWN: u64 = 0;
const WRITTEN: u64 = PIECE as u64;
const RECEIVED: u64 = 2 * PIECE as u64;
const READ: u64 = 3 * PIECE as u64;
/// The request that receives; others are numbered from 0 on.
const RECEIVE: u64 = 9;
const REQUESTS: u64 = 3;

struct Pair<'d> {
    end: End<'d>,
    /// Requests that have completed.
    done: u64,
    received: bool,
}

impl Pair<'_> {
    /// Posts the next request.
    fn post(&self) {
        let op = match self.done {
            0 => (Op::Write(WRITTEN, None), OWN),
            1 => (Op::Send(None), OWN),
            _ => (Op::Read(OWN), READ),
        };
        self.end.post(self.done, op.0, op.1, PIECE as u32).expect("post_send");
    }

    /// Polls once; whether its exchange is over.
    fn serve(&mut self) -> bool {
        self.end.poll();
        for wc in std::mem::take(&mut self.end.done) {
            assert_eq!(wc.status, wc_status::SUCCESS, "{wc:?}");
            if wc.wr_id == RECEIVE {
                self.received = true;
                continue;
            }
            self.done += 1;
            if self.done < REQUESTS {
                self.post();
            }
        }
        self.done == REQUESTS && self.received
    }

    fn check(&self) {
        let theirs = pattern(self.end.peer.qpn.into(), PIECE);
        for at in [WRITTEN, RECEIVED, READ] {
            assert!(self.end.buffer.read(at as usize, PIECE) == theirs, "the bytes at {at}");
        }
    }
}

fn member(dir: &Path, first: u32, count: u32) {
    let tenants: Vec<Member> =
        (first..first + count).map(|n| Member::open(&dir.join(format!("t{n}")))).collect();
    let ends = tenants.iter().flat_map(|t| (0..QPS).map(|_| End::new(t.dev(), shape())));
    let mut pairs: Vec<Pair> =
        ends.map(|end| Pair { end: end.expect("an end"), done: 0, received: false }).collect();
    for (n, pair) in pairs.iter().enumerate() {
        pair.end.buffer.write(OWN as usize, &pattern(pair.end.own.qpn.into(), PIECE));
        println!("at {} {}", (first * QPS) as usize + n, print_address(&pair.end.own));
    }
    let lines = lines_of_input();
    let mut connected = 0;
    let mut goes = false;
    loop {
        match lines.try_recv() {
            Ok(line) => match line.split_once(' ') {
                Some(("to", rest)) => {
                    let (place, address) = rest.split_once(' ').expect("a place and an address");
                    let place: usize = place.parse().expect("a number");
                    let pair = &mut pairs[place - (first * QPS) as usize];
                    let theirs = parse_address(address).expect("an address");
                    pair.end.connect(theirs).expect("connect");
                    pair.end.post_recv(RECEIVE, RECEIVED, PIECE as u32).expect("post_recv");
                    connected += 1;
                    if connected == pairs.len() {
                        println!("connected");
                    }
                }
                _ if line == "go" => {
                    pairs.iter().for_each(Pair::post);
                    goes = true;
                }
                _ => break,
            },
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {}
        }
        let over = pairs.iter_mut().fold(true, |over, pair| pair.serve() & over);
        if goes && over {
            pairs.iter().for_each(Pair::check);
            println!("done");
            goes = false;
        }
        std::thread::yield_now();
    }
    println!("rests");
    while lines.recv().is_ok() {}
    pairs.into_iter().for_each(|pair| pair.end.destroy().expect("nothing in use"));
    for tenant in &tenants {
        assert_eq!(tenant.dev().leaks().expect("leaks"), Default::default());
    }
}

fn mib(kib: u64) -> String {
    format!("{:.1} MiB", kib as f64 / 1024.0)
}

/// What was measured of one router: a row each.
fn measure(program: &Path, mut router: Router, tenants: u32, count: u32) -> Vec<(String, String)> {
    let pid = router.running().pid();
    let alone = Held::by(pid);
    let mut rows = vec![];
    let mut row = |what: &str, figure: String| rows.push((what.to_string(), figure));
    row("memory of its own before anybody came", mib(alone.private_kib));
    let began = Instant::now();
    let crowd = Crowd::start(program, &router, tenants);
    row("until all were connected and had exchanged all bytes", format!("{:.1?}", began.elapsed()));
    assert_eq!(router.sessions().len(), tenants as usize);
    let ((pss, all), there) = (memory(pid), Held::by(pid));
    row("PSS", mib(pss));
    row("all of its memory, each page once", mib(all));
    row("RSS, in which a ring counts twice", mib(kib(pid, "smaps_rollup", "Rss:")));
    row("memory of its own", mib(there.private_kib));
    row("descriptors, before anybody came", format!("{}", alone.descriptors));
    row("descriptors", format!("{}", there.descriptors));
    let idle = busy(pid, Duration::from_secs(10));
    row("of a core in 10 s in which nobody polls", format!("{:.4} %", idle * 100.0));
    if count > 0 {
        // What is taken once: tables, and what the allocator keeps.
        come_and_go(&router, 100);
        wait_for(60, "they stay", || router.sessions().len() == tenants as usize);
        let before = Held::by(pid);
        let began = Instant::now();
        come_and_go(&router, count);
        wait_for(60, "they stay", || router.sessions().len() == tenants as usize);
        let after = Held::by(pid);
        row(
            &format!("{count} sessions come and go beside it, as fast as there are numbers"),
            format!("{:.0?}", began.elapsed()),
        );
        let change = |a: u64, b: u64| format!("{:+}", b as i64 - a as i64);
        row("memory of its own after that", change(before.private_kib, after.private_kib) + " KiB");
        row("mappings", change(before.mappings as u64, after.mappings as u64));
        row("descriptors", change(before.descriptors as u64, after.descriptors as u64));
    }
    crowd.leave();
    wait_for(60, "sessions stay", || router.sessions().is_empty());
    let left = Held::by(pid);
    row("memory of its own after all have left", mib(left.private_kib));
    row("descriptors after that", format!("{}", left.descriptors));
    rows
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| -> u32 { text.parse().expect("a number") };
    if let [word, dir, first, count] = &arguments[..] {
        assert_eq!(word, "member");
        return member(&PathBuf::from(dir), number(first), number(count));
    }
    let count = arguments.first().map_or(10_000, number);
    let program = std::env::current_exe().expect("the path of this program");
    let switch = |options: &[&str]| Router::start_with(&policy(), options);
    let relayed = measure(&program, switch(&["--isolated"]), TENANTS, count);
    let linked = measure(&program, switch(&[]), TENANTS, 0);
    let remote = Router::start(&remote_policy(&address(1)));
    let remote = measure(&program, remote, REMOTE_TENANTS, 0);
    let more = format!(
        "each tenant is a session of its own, and has queue pairs with eight others; before\n  \
         anything is measured, all have exchanged {} KiB each way by WRITE, SEND and READ",
        REQUESTS * PIECE as u64 / 1024
    );
    let title = format!("{TENANTS} tenants with {} queue pairs", TENANTS * QPS);
    let mut section = Section::new(&title, &format!("crowd {count}"), &more);
    section.table("all relayed", &relayed);
    section.table("all by links", &linked);
    section.table(&format!("{REMOTE_TENANTS} of them, on a device of the router"), &remote);
    section.write();
}
