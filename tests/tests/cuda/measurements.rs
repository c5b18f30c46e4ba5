//! perf over GPU memory, and the comparison with host memory.

use super::*;
use gdrcore_tests::skip;

#[test]
fn perf_measures_gpu_memory_on_either_side_and_finds_every_byte() {
    let perf = library::examples().join("perf/perf");
    let kind = format!("cuda:{}", gpu());
    let tests: &[&[&str]] = &[
        &["write", "bw", "-s", "300000", "-n", "50", "-C"],
        &["read", "bw", "-s", "300000", "-n", "50", "-C"],
        &["send", "bw", "-s", "10000", "-n", "200", "-C"],
        &["send", "lat", "-n", "50"],
        &["send", "lat", "-n", "50", "-e"],
        &["atomic", "bw", "-n", "50", "-C"],
    ];
    for (i, (ours, theirs)) in
        [(kind.as_str(), "host"), ("host", kind.as_str()), (&kind, &kind)].into_iter().enumerate()
    {
        let address = loopback(64, i as u32 + 1);
        let port = (19_952 + i).to_string();
        let mut server = with_driver(&perf);
        let server = Running::start(server.args([
            "-k",
            "-d",
            &format!("soft:{address}"),
            "-p",
            &port,
            "--mem",
            theirs,
        ]));
        for test in tests {
            let mut client = with_driver(&perf);
            client.args(*test).args([
                "-d",
                &format!("soft:{}", loopback(64, 10 + i as u32)),
                "-p",
                &port,
                "--mem",
                ours,
            ]);
            let done = Running::start(client.arg(&address)).finish(LIMIT);
            assert!(done.ok(), "{test:?} {ours} to {theirs}: {done}");
        }
        server.interrupt();
        let done = server.finish(LIMIT);
        assert!(done.ok(), "{done}");
    }
    let done = run(with_driver(&perf).args(["-d", "loopback", "write", "lat", "--mem", &kind]), 20);
    assert!(!done.ok() && done.output.contains("polls the last byte"), "{done}");
}

#[test]
fn the_comparison_of_gpu_memory_runs_and_names_the_gpu() {
    let bin = library::examples();
    let dir = scratch("cuda-compare");
    let out = dir.join("RESULTS-GPU.md");
    let mut compare = with_driver(&root().join("bench/compare_gpu.sh"));
    compare.env("BIN", bin).env("OUT", &out).env("ROUNDS", "1").env("SCALE", "200");
    let done = run(&mut compare, 120);
    assert!(done.ok(), "{done}");
    let page = fs::read_to_string(&out).expect("the page");
    assert!(cuda::driver() == Driver::Real || page.contains("Fake GPU 0, CUDA"), "{page}");
    // Four tests of four sizes, each row with all its figures.
    let rows: Vec<&str> =
        page.lines().filter(|l| l.starts_with("| ") && l.contains(", ")).collect();
    assert_eq!(rows.len(), 16, "{page}");
    for row in rows {
        let figures = row
            .split('|')
            .skip(2)
            .take(6)
            .filter(|f| f.trim().parse::<f64>().is_ok_and(|f| f >= 0.0))
            .count();
        assert_eq!(figures, 6, "{row}");
    }
}

#[test]
fn bandwidth_and_latency_of_the_machines_gpu() {
    if cuda::driver() == Driver::Fake {
        skip!(
            "no GPU: GPU memory was the fake driver's; \
             docs/using/GPU.md says what has not been seen on hardware"
        );
    }
    let dir = scratch("cuda-hardware");
    let out = dir.join("RESULTS-GPU.md");
    let mut compare = with_driver(&root().join("bench/compare_gpu.sh"));
    compare.env("BIN", library::examples()).env("OUT", &out).env("ROUNDS", "1").env("SCALE", "20");
    let done = run(&mut compare, 240);
    assert!(done.ok(), "{done}");
    println!("{}", fs::read_to_string(&out).expect("the page"));
}
