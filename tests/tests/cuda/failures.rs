//! Machines without a driver, and calls of the driver that fail.

use super::*;
use gdrcore_tests::skip;

#[test]
fn without_a_driver_programs_name_what_is_missing_and_work_with_host_memory() {
    let bin = library::examples();
    let own = format!("soft:{}", loopback(65, 1));
    let mut router = without_driver(&bin.join("freeflow_gdr/router"));
    let done = run(router.args(["-d", &own, "-m", "cuda", "-t", "5", "-s", "/nonexistent/s"]), 20);
    assert!(done.code() == Some(1) && done.output.contains("GPU memory"), "{done}");
    if cuda::driver() == Driver::Fake {
        assert!(done.output.contains("libcuda.so.1 is not on this machine"), "{done}");
    }
    let done = run(
        without_driver(&bin.join("perf/perf"))
            .args(["-d", "loopback", "write", "bw", "-n", "16", "-s", "64k"]),
        20,
    );
    assert!(done.ok(), "host memory needs no driver: {done}");
    for wrong in ["cuda:c8:00.0", "cuda:nonsense", "cuda:99", "tuba"] {
        let mut router = with_driver(&bin.join("freeflow_gdr/router"));
        let done =
            run(router.args(["-d", &own, "-m", wrong, "-t", "5", "-s", "/nonexistent/s"]), 20);
        assert!(
            done.code().is_some_and(|c| c > 0) && done.output.lines().count() >= 2,
            "{wrong}: {done}"
        );
    }
}

#[test]
fn every_failure_of_the_driver_ends_the_examples_with_its_message() {
    if cuda::driver() == Driver::Real {
        skip!("a real driver does not fail on demand");
    }
    let bin = library::examples();
    let own = format!("soft:{}", loopback(66, 1));
    let cases = [
        ("cuInit=100", "finds no GPU"),
        ("cuInit=999", "CUDA_ERROR_UNKNOWN"),
        ("cuDevicePrimaryCtxRetain=2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuMemCreate=2", "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuMemsetD8_v2=700", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("cuMemExportToShareableHandle=800", "CUDA_ERROR_NOT_PERMITTED"),
        ("cuMemHostAlloc=2", "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuStreamCreate=2", "cuStreamCreate"),
        ("cuEventCreate=2", "cuEventCreate"),
    ];
    let fails = |(name, value): (&str, &str), more: &[&str], words: &str| {
        let mut router = with_driver(&bin.join("freeflow_gdr/router"));
        router.env(name, value).args(["-d", &own, "-m", "cuda", "-t", "2", "-s", "/nonexistent/s"]);
        let done = run(router.args(more), 20);
        assert!(done.code() == Some(1) && done.output.contains(words), "{name}={value}: {done}");
    };
    for (fail, words) in cases {
        fails(("FAKECUDA_FAIL", fail), &[], words);
    }
    // No device, and one with too little memory.
    for (name, value, words) in
        [("FAKECUDA_DEVICES", "", "finds no GPU"), ("FAKECUDA_MEMORY", "1000000", "OUT_OF_MEMORY")]
    {
        fails((name, value), &["-b", "4M"], words);
    }
    // The client's import is refused: the client fails, and the router waits for the next.
    let dir = scratch("cuda-refused");
    let socket = dir.join("s").to_str().expect("a plain path").to_string();
    for fail in ["cuMemImportFromShareableHandle=800", "cuMemMap=2"] {
        let mut router = with_driver(&bin.join("freeflow_gdr/router"));
        let router =
            Running::start(router.args(["-d", &own, "-m", "cuda", "-t", "3", "-s", &socket]));
        let mut client = with_driver(&bin.join("freeflow_gdr/client"));
        let done = run(client.env("FAKECUDA_FAIL", fail).args(["-s", &socket, "x"]), 20);
        assert!(
            done.code() == Some(1) && done.output.contains("opening the router's buffer"),
            "{fail}: {done}"
        );
        let done = router.finish(LIMIT);
        assert!(done.output.contains("no client came"), "{fail}: {done}");
    }
}
