//! Other processes as targets and as writers: stopped, killed, forbidden by the kernel.

use super::*;
use gdrcore_tests::tools::is_root;

const OPTIONS: [&str; 3] = ["path=shm", "cma=1", "buffer=4194304"];

/// An end here and one in another process, whose memory this one may write.
fn across<'d>(here: &'d Soft, far: &mut Far) -> End<'d> {
    let mut x = End::new(here.dev(), Shape { buffer: BYTES, ..Shape::default() }).expect("an end");
    far.connect(&mut x);
    until_carried(&mut x, || {});
    x
}

#[test]
fn another_process_is_written_also_while_it_is_stopped() {
    let (here, there) = (open(1, true), address(2));
    let mut far = Far::start(FAR, &there, &OPTIONS);
    let mut x = across(&here, &mut far);
    let read_back = |x: &mut End, seed: u64, len: usize| {
        x.post(2, Op::Read(3), 0, len as u32).expect("post_send");
        assert_eq!(x.alone(2).status, wc_status::SUCCESS);
        assert!(x.buffer.read(0, len) == pattern(seed, len), "{seed}");
    };
    for (seed, len) in [(1, LEAST), (2, 100_001), (3, 3 << 20)] {
        let before = carried(&x);
        x.buffer.write(0, &pattern(seed, len));
        x.post(1, Op::Write(3, None), 0, len as u32).expect("post_send");
        assert_eq!(x.alone(1).status, wc_status::SUCCESS);
        assert_eq!(carried(&x), before + 1);
        read_back(&mut x, seed, len);
    }
    far.stop();
    let before = carried(&x);
    x.buffer.write(0, &pattern(4, MIB as usize));
    for _ in 0..100 {
        x.post(1, Op::Write(3, None), 0, MIB).expect("post_send");
        assert_eq!(x.alone(1).status, wc_status::SUCCESS);
    }
    assert_eq!(carried(&x), before + 100);
    far.signal(libc::SIGCONT);
    read_back(&mut x, 4, MIB as usize);
    assert!(far.finish(), "the far end did not close cleanly");
}

#[test]
fn a_process_that_is_killed_while_it_is_written_is_a_lost_path() {
    let (here, there) = (open(1, true), address(2));
    for _ in 0..3 {
        let mut far = Far::start(FAR, &there, &OPTIONS);
        let mut x = across(&here, &mut far);
        let (mut posted, mut moved, end) = (0u64, 0u64, deadline(60));
        let failed = 'stream: loop {
            while posted < moved + 8 && x.post(posted, Op::Write(0, None), 0, MIB).is_ok() {
                posted += 1;
            }
            x.poll();
            for wc in std::mem::take(&mut x.done) {
                if wc.status != wc_status::SUCCESS {
                    break 'stream wc;
                }
                moved += 1;
                if moved == 200 {
                    far.kill();
                }
            }
            assert!(Instant::now() < end, "the stream did not end");
        };
        assert!(moved >= 200, "the stream failed before the kill: {failed:?}");
        assert_eq!(failed.status, wc_status::RETRY_EXC_ERR);
        let cause = CauseCode::from_u32(x.dev.qp_cause(x.qp).expect("qp_cause").code);
        assert_eq!(cause, Some(CauseCode::PathLost));
    }
}

#[test]
fn a_stopped_writer_blocks_no_control_call() {
    let (here, there) = (open(1, true), address(2));
    for _ in 0..5 {
        let mut far = Far::start(FAR, &there, &[&OPTIONS[..], &["stream=write"]].concat());
        let mut x =
            End::new(here.dev(), Shape { buffer: BYTES, ..Shape::default() }).expect("an end");
        far.connect(&mut x);
        // Waits until it has written some.
        let mut moved = 0;
        run_until(60, "nothing moves", || {
            x.poll();
            moved += u32::from(far.said().is_some_and(|line| line.starts_with("moved")));
            moved >= 8
        });
        assert!(told(&mut far) > 0, "no WRITE bypassed the ring");
        far.stop();
        // Must return although the writer continues only later.
        let watch = patience::watch(60, "mr_dereg beside a writer that is stopped");
        x.dev.mr_dereg(x.mr).expect("mr_dereg");
        drop(watch);
        // A copy that the writer had begun may land before it, or not at all; the same for later
        // ones.
        std::thread::sleep(Duration::from_millis(20));
        let before = x.buffer.read(0, BYTES);
        x.buffer.write(0, &vec![0x5a; BYTES]);
        far.signal(libc::SIGCONT);
        while far.line(Duration::from_secs(20)).is_some_and(|line| !line.starts_with("failed")) {
            x.poll();
        }
        assert!(before.len() == BYTES && x.buffer.read(0, BYTES).iter().all(|&b| b == 0x5a));
    }
}

#[test]
fn perf_writes_so_and_finds_every_byte() {
    let perf = library::examples().join("perf/perf");
    let name = |n| format!("soft:{},path=auto,cma", loopback(76, n));
    let to = loopback(76, 1);
    let start = |args: &[&str]| Running::start(Command::new(&perf).args(args));
    let server = start(&["-k", "-d", &name(1), "-p", "19963"]);
    for test in [
        &["write", "bw", "-s", "300000", "-n", "500", "-C"][..],
        &["write", "bw", "-s", "65536", "-n", "3000", "-C", "-q", "4"],
        &["write", "bw", "-s", "5000000", "-n", "40", "-C", "-t", "4"],
        &["write", "lat", "-s", "100000", "-n", "500"],
        &["send", "bw", "-s", "100000", "-n", "500", "-C"],
        &["read", "bw", "-s", "300000", "-n", "50", "-C"],
    ] {
        let done = start(&[test, &["-d", &name(2), "-p", "19963", &to]].concat())
            .finish(Duration::from_secs(60));
        assert!(done.ok(), "{test:?}: {done}");
    }
    drop(server);
    let done = start(&["-d", "127.0.0.1,path=udp,cma", "write", "bw", "127.0.0.1"])
        .finish(Duration::from_secs(60));
    assert!(!done.ok() && done.output.contains("',cma'"), "{done}");
}

/// Number of WRITEs of another process that bypassed the ring so far.
fn told(far: &mut Far) -> u64 {
    far.say("tell");
    until(
        60,
        || "no counters".to_string(),
        || {
            let said = far.line(Duration::from_secs(20)).expect("counters");
            let counters = said.strip_prefix("counters ")?;
            Some(counters.split(' ').nth(2).expect("three").parse().expect("a number"))
        },
    )
}

/// Runs two processes of another user; `dumpable` says whether others of that user may trace the
/// target. Returns how many of more than a thousand WRITEs bypassed the ring; more are made until
/// `wanted` of them did.
fn strangers(dumpable: &str, wanted: u64) -> u64 {
    let [mut from, mut to] = ["stream=write", "stream=read"].map(|stream| {
        let n = if stream == "stream=write" { 1 } else { 2 };
        // Only one of them streams, so only that one is started.
        Far::start(FAR, &address(n), &[&OPTIONS[..], &["user=65534", dumpable, stream]].concat())
    });
    from.connect_far(&mut to);
    from.say("go");
    let (mut lines, end) = (0, deadline(60));
    loop {
        let said = from.line(Duration::from_secs(60)).expect("it moves");
        assert!(said.starts_with("moved"), "{said}");
        lines += 1;
        if lines >= 20 {
            let carried = told(&mut from);
            if carried >= wanted || Instant::now() > end {
                return carried;
            }
        }
    }
}

#[test]
fn writes_that_the_kernel_forbids_use_the_ring() {
    if !is_root() {
        gdrcore_tests::skip!("only root can start processes of another user");
    }
    assert_eq!(
        strangers("dumpable=0", 0),
        0,
        "WRITEs that bypassed the ring, of more than a thousand"
    );
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if yama.is_empty() || yama.trim() == "0" {
        assert!(strangers("dumpable=1", 500) >= 500);
    } else {
        gdrcore_tests::skip::skipped(format_args!(
            "Yama forbids a user's processes to write each other"
        ));
    }
}
