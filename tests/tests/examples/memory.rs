//! Examples that allocate nothing after their start.

use super::*;

#[test]
fn static_memory_is_enough_and_nothing_is_allocated() {
    let done = run(&mut Command::new(library::examples().join("static_mem")), 60);
    assert!(done.ok() && done.output.contains("proven: nothing was allocated"), "{done}");
}

#[test]
fn the_data_plane_allocates_nothing_under_the_examples() {
    let bin = library::examples();
    let preload = bin.join("malloc_count.so");
    let dir = scratch("malloc");
    let report = dir.join("report");
    router_round::run(&router_round::Round {
        command: &|_, program| {
            let mut command = Command::new(bin.join(program));
            command
                .env("LD_PRELOAD", &preload)
                .env("GDRC_MALLOC_REPORT", &report)
                .env("GDRC_MALLOC_FAIL", "1");
            command
        },
        router: &format!("soft:{}", loopback(41, 31)),
        peer: &format!("soft:{}", loopback(41, 32)),
        address: &loopback(41, 31),
        bytes: 900_000,
        dir: &dir,
    });
    let report = fs::read_to_string(&report).expect("the counter's report");
    let lines: Vec<&str> = report.lines().filter(|l| l.contains("data-plane calls")).collect();
    assert!(lines.iter().any(|l| l.contains("peer") && !l.contains(" 0 data-plane")), "{report}");
    assert!(lines.iter().all(|l| l.ends_with(", 0 allocations")), "{report}");
}

/// Posts and polls by fast handles are inline functions; the counter must still see them.
#[test]
fn the_allocation_counter_sees_calls_by_fast_handles() {
    let bin = library::examples();
    let dir = scratch("malloc-fast");
    let counted = |preload: &str, test: &[&str]| {
        let report = dir.join("report");
        let _ = fs::remove_file(&report);
        let mut command = Command::new(bin.join("perf/perf"));
        command
            .env("LD_PRELOAD", preload)
            .env("GDRC_MALLOC_REPORT", &report)
            .env("GDRC_MALLOC_FAIL", "1");
        let done = run(
            command.args(["-d", &format!("soft:{},path=udp", loopback(41, 121))]).args(test),
            60,
        );
        (done, fs::read_to_string(&report).unwrap_or_default())
    };
    let counter = bin.join("malloc_count.so").to_string_lossy().into_owned();
    // Each test of perf makes at least two posts and a poll for each message, and nothing else
    // calls the data plane so often.
    let serve = |port: &str| {
        let device = format!("soft:{}", loopback(41, 122));
        let mut server =
            Running::start(Command::new(bin.join("perf/perf")).args(["-d", &device, "-p", port]));
        server.wait_for_output("waiting on");
        server
    };
    let server = serve("19981");
    let (done, report) =
        counted(&counter, &["-p", "19981", "send", "lat", "-n", "2000", &loopback(41, 122)]);
    assert!(done.ok(), "{done}: {report}");
    let calls = report.split(' ').find_map(|w| w.parse::<u64>().ok()).unwrap_or(0);
    assert!(calls > 3 * 2000 && report.ends_with(", 0 allocations\n"), "{report}");
    assert!(server.finish(LIMIT).ok());
    // An allocation inside such a call must be found: a sendmsg that allocates.
    let wasteful = compile("cc", "wasteful", &dir, &["-shared", "-fPIC", "-ldl"]);
    let server = serve("19982");
    let (done, report) = counted(
        &format!("{counter}:{}", wasteful.display()),
        &["-p", "19982", "write", "bw", "-n", "10", &loopback(41, 122)],
    );
    assert_eq!(done.code(), Some(99), "{done}: {report}");
    assert!(server.finish(LIMIT).ok());
}
