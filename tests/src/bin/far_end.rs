//! A process with ends that serve requests and may stream; tests kill, stop and continue it. See
//! `gdrcore_tests::far_end`.
//!
//! `far_end DEVICE [key=value]...`:
//!
//! - `buffer`: bytes of each end's buffer
//! - `timeout`, `retry`, `mtu`: attributes of its QPs (`mtu`: the code; `timeout`: that of an idle
//!   machine, see [`patience`])
//! - `recv`: bytes of each receive request (0: none are posted)
//! - `path`: udp, shm or auto
//! - `stream`: write, read or send; `piece`: bytes of each streamed request
//! - `helper` 1: sleep, and let the helper thread run the engine
//! - `cma` 1: grant and use memory by address
//! - `user`: number of the user to become
//! - `dumpable` 0 or 1: whether others of that user may trace it
//! - `overflow` 1: be the overflow uid of a user namespace of its own
//! - `full` 1: once the device is open, take all descriptors that the process may have
//! - `peer_is_soft` 1: its peers are known to be soft devices
//! - `read_only` 1: the buffer allows no remote WRITEs
//! - `response`: code of the time within which the connection manager's answers must come
//!
//! Lines in: `peer ADDRESS` makes an end and connects it; `make` only makes it, and `join ADDRESS`
//! connects the newest end; `go` starts the streams; `tell` asks for counters, `cause` for the
//! cause of the newest end; `ask PORT ADDRESS` requests a connection there. The process ends when
//! its input does.
//!
//! Lines out: `open`; `at ADDRESS`; `moved N` for every 64 requests; `failed STATUS CAUSE RETRIES`;
//! `counters RETRIES FAILURES CARRIED REFUSED` (REFUSED: packets that failed a check of their
//! sender); `cause CODE TEXT`; `asked EVENT STATUS TEXT`.

use gdrcore_core::cm::types::ConnParam;
use gdrcore_core::verbs::types::{access, mtu, wc_opcode, wc_status, AhAttr};
use gdrcore_net::soft::{soft_flags as flags, PathChoice, SoftConfig};
use gdrcore_tests::cm;
use gdrcore_tests::ends::{End, Op, Shape};
use gdrcore_tests::far_end::{parse_address, print_address};
use gdrcore_tests::patience;
use gdrcore_tests::soft::Soft;
use gdrcore_tests::tools::lines_of_input;
use std::collections::HashMap;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

const DEPTH: u64 = 8;

struct Served<'d> {
    end: End<'d>,
    posted: u64,
    moved: u64,
    go: bool,
    failed: bool,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let device = arguments.next().expect("DEVICE is missing");
    let options: HashMap<String, String> = arguments
        .map(|a| a.split_once('=').map(|(k, v)| (k.to_string(), v.to_string())).expect("key=value"))
        .collect();
    let number = |key: &str, default: u64| {
        options.get(key).map_or(default, |v| v.parse().expect("a number"))
    };
    let shape = Shape {
        buffer: number("buffer", 1 << 20) as usize,
        timeout: patience::ack_timeout(number("timeout", 14) as u8),
        retry_cnt: number("retry", 7) as u8,
        peer_is_soft: number("peer_is_soft", 0) == 1,
        mtu: number("mtu", mtu::MTU_1024.into()) as u32,
        access: if number("read_only", 0) == 1 {
            access::LOCAL_WRITE | access::REMOTE_READ
        } else {
            Shape::default().access
        },
        ..Shape::default()
    };
    let (recv, piece) = (number("recv", 0) as u32, number("piece", 1 << 20) as u32);
    let op = match options.get("stream").map(String::as_str) {
        None => None,
        Some("write") => Some(Op::Write(0, None)),
        Some("read") => Some(Op::Read(0)),
        Some("send") => Some(Op::Send(None)),
        Some(other) => panic!("unknown stream {other}"),
    };
    let helper = number("helper", 0) == 1;
    become_user(number("user", 0) as u32, number("dumpable", 2) as i32);
    if number("overflow", 0) == 1 {
        become_overflow_uid();
    }
    let path = match options.get("path").map(String::as_str) {
        Some("auto") => PathChoice::Auto,
        Some("shm") => PathChoice::Shm,
        _ => PathChoice::Udp,
    };
    let mut config =
        SoftConfig { flags: if helper { flags::HELPER } else { 0 }, path, ..SoftConfig::default() };
    config.flags |= if number("cma", 0) == 1 { flags::CMA } else { 0 };
    let soft = Soft::open(&device, &config).unwrap_or_else(|e| panic!("{device}: {e}"));
    let _full: Vec<std::fs::File> = match number("full", 0) {
        1 => std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect(),
        _ => Vec::new(),
    };
    println!("open");
    let lines = lines_of_input();
    let mut ends: Vec<Served> = Vec::new();
    loop {
        match lines.try_recv() {
            Ok(line) => {
                command(&line, &soft, shape, (recv, number("response", 14) as u8), &mut ends)
            }
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {}
        }
        let found: usize = ends.iter_mut().map(|e| serve(e, op, recv, piece)).sum();
        if helper {
            std::thread::sleep(Duration::from_millis(1));
        } else if found == 0 {
            soft.dev().progress().expect("progress");
            std::thread::yield_now();
        }
    }
    ends.into_iter().for_each(|e| e.end.destroy().expect("destroy"));
    assert_eq!(soft.dev().leaks().expect("leaks"), Default::default());
}

/// Changes from root to a user, dumpable or not.
fn become_user(user: u32, dumpable: i32) {
    // SAFETY: no pointers.
    unsafe {
        if user != 0 {
            assert_eq!(
                (libc::setgid(user), libc::setuid(user)),
                (0, 0),
                "not allowed to become {user}"
            );
        }
        if dumpable < 2 {
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, dumpable), 0);
        }
    }
}

/// Enters a user namespace in which this user has the number that stands for unmapped users.
fn become_overflow_uid() {
    // SAFETY: no pointers.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    // SAFETY: no pointers. After a change of user, procfs belongs to the process only if it is
    // dumpable.
    unsafe {
        assert_eq!(
            (libc::prctl(libc::PR_SET_DUMPABLE, 1), libc::unshare(libc::CLONE_NEWUSER)),
            (0, 0)
        );
    }
    let write =
        |file: &str, text: &str| std::fs::write(format!("/proc/self/{file}"), text).expect(file);
    write("setgroups", "deny");
    write("uid_map", &format!("65534 {uid} 1"));
    write("gid_map", &format!("65534 {gid} 1"));
}

fn command<'d>(
    line: &str,
    soft: &'d Soft,
    shape: Shape,
    (recv, response): (u32, u8),
    ends: &mut Vec<Served<'d>>,
) {
    if let Some(address) = line.strip_prefix("peer ") {
        let mut end = End::new(soft.dev(), shape).expect("an end");
        end.connect(parse_address(address).expect("an address")).expect("connect");
        if recv > 0 {
            (0..u64::from(shape.depth)).for_each(|n| end.post_recv(n, 0, recv).expect("post_recv"));
        }
        println!("at {}", print_address(&end.own));
        ends.push(Served { end, posted: 0, moved: 0, go: false, failed: false });
    } else if line == "make" {
        let end = End::new(soft.dev(), shape).expect("an end");
        println!("at {}", print_address(&end.own));
        ends.push(Served { end, posted: 0, moved: 0, go: false, failed: false });
    } else if let Some(address) = line.strip_prefix("join ") {
        let made = &mut ends.last_mut().expect("an end").end;
        made.connect(parse_address(address).expect("an address")).expect("connect");
    } else if line == "go" {
        ends.iter_mut().for_each(|e| e.go = true);
    } else if line == "tell" {
        let c = soft.dev().counters().expect("counters");
        let refused = c.rcvd_refused + c.rcvd_stray + c.rcvd_throttled;
        println!(
            "counters {} {} {} {refused}",
            c.retry_timeouts, c.retry_exceeded_err, c.carried_writes
        );
    } else if line == "cause" {
        let end = &ends.last().expect("an end").end;
        let cause = end.dev.qp_cause(end.qp).expect("qp_cause");
        println!("cause {} {cause}", cause.code);
    } else if let Some((port, address)) =
        line.strip_prefix("ask ").and_then(|rest| rest.split_once(' '))
    {
        let to = parse_address(address).expect("an address").ah;
        println!("asked {}", ask(soft, shape, response, to, port.parse().expect("a port")));
    }
}

/// Requests a connection and waits for its result: event, status and cause.
fn ask(soft: &Soft, shape: Shape, response_timeout: u8, to: AhAttr, port: u16) -> String {
    let end = End::new(soft.dev(), shape).expect("an end");
    let id = cm::connect(&end, to, port, &ConnParam { response_timeout, ..cm::offer(b"") });
    let e = loop {
        match cm::cm(soft.dev()).event().expect("event") {
            Some(e) => break e,
            None => std::thread::yield_now(),
        }
    };
    let cause = soft.dev().qp_cause(end.qp).expect("qp_cause");
    cm::cm(soft.dev()).destroy(id).expect("destroy");
    end.destroy().expect("destroy");
    format!("{} {} {cause}", e.event, e.status)
}

/// Posts and polls once at an end; returns the number of completions.
fn serve(e: &mut Served, op: Option<Op>, recv: u32, piece: u32) -> usize {
    if let (Some(op), true, false) = (op, e.go, e.failed) {
        while e.posted < e.moved + DEPTH && e.end.post(e.posted, op, 0, piece).is_ok() {
            e.posted += 1;
        }
    }
    let found = e.end.poll();
    for wc in std::mem::take(&mut e.end.done) {
        if wc.status != wc_status::SUCCESS {
            if !e.failed {
                let c = e.end.dev.qp_counters(e.end.qp).expect("counters");
                println!("failed {} {} {}", wc.status, wc.vendor_err, c.retry_timeouts);
            }
            e.failed = true;
        } else if wc.opcode & wc_opcode::RECV != 0 {
            e.end.post_recv(wc.wr_id, 0, recv).expect("post_recv");
        } else {
            e.moved += 1;
            if e.moved % 64 == 0 {
                println!("moved {}", e.moved);
            }
        }
    }
    found
}
