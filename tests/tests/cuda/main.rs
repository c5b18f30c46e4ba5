//! GPU memory in programs: the C examples and the C library, each process with its own driver. Uses
//! the machine's GPU where there is one, else the fake driver.

mod failures;
mod measurements;
mod topology;

use gdrcore_tests::cuda::{self, Driver};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::or_skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{loopback, run, scratch, Running};
use gdrcore_tests::{library, router_round};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// A program with a CUDA driver: the machine's or the fake one.
fn with_driver(program: &Path) -> Command {
    let mut command = Command::new(program);
    add_driver(&mut command);
    command
}

fn add_driver(command: &mut Command) {
    if cuda::driver() == Driver::Fake {
        command.env("LD_LIBRARY_PATH", cuda::fake());
    }
}

/// A program that finds no usable driver, on any machine.
fn without_driver(program: &Path) -> Command {
    // The driver's own variable hides all GPUs of a machine that has some.
    let mut command = Command::new(program);
    command.env("CUDA_VISIBLE_DEVICES", "").env_remove("LD_LIBRARY_PATH");
    command
}

/// The examples' name of the GPU; with the fake driver its PCI address.
fn gpu() -> &'static str {
    match cuda::driver() {
        Driver::Fake => "b7:00.0",
        Driver::Real => "0",
    }
}

/// One run of router, client and peer, with the router's and the peer's buffer in GPU memory.
fn round(test: &str, n: u32, bytes: usize, size: &str, vmm: &str) {
    let bin = library::examples();
    let dir = scratch(test);
    let kind = format!("cuda:{}", gpu());
    let done = router_round::run_with(
        &router_round::Round {
            command: &|_, program| {
                let mut command = with_driver(&bin.join(program));
                command.env("FAKECUDA_VMM", vmm);
                command
            },
            router: &format!("soft:{}", loopback(n, 1)),
            peer: &format!("soft:{}", loopback(n, 2)),
            address: &loopback(n, 1),
            bytes,
            dir: &dir,
        },
        &["-m", &kind, "-b", size],
        &["-M", &kind],
    );
    let [router, client, _] = done;
    assert!(router.output.contains("staged through pinned host memory"), "{}", router.output);
    assert!(client.output.contains("GPU's memory"), "{}", client.output);
    if cuda::driver() == Driver::Fake {
        let by = if vmm == "1" { "by descriptor" } else { "by CUDA IPC" };
        assert!(router.output.contains(by), "{}", router.output);
    }
}

#[test]
fn router_client_and_peer_move_a_gibibyte_through_gpu_memory() {
    // Half of it by READ, half by WRITE.
    round("cuda-gib", 61, 1 << 29, "513M", "1");
}

#[test]
fn the_buffer_passes_by_cuda_ipc_where_there_are_no_descriptors() {
    round("cuda-ipc", 62, 3_000_001, "4M", "0");
}

/// The client's container has a pid namespace of its own: descriptors can be passed into it, CUDA
/// IPC handles cannot.
#[test]
fn a_container_gets_the_buffer_by_descriptor_and_is_refused_by_ipc() {
    let lab = or_skip!(Lab::new(3));
    lab.link((0, "r0", &["10.9.0.1/24"]), (2, "p0", &["10.9.0.2/24"])).expect("a link");
    let bin = library::examples();
    let dir = scratch("cuda-container");
    let start = |host: usize, program: &str| {
        let mut command = lab.command(host, &bin.join(program));
        add_driver(&mut command);
        command
    };
    let done = router_round::run_with(
        &router_round::Round {
            command: &|host, program| start(host, program),
            router: "soft:10.9.0.1",
            peer: "soft:10.9.0.2",
            address: "10.9.0.1",
            bytes: 300_001,
            dir: &dir,
        },
        &["-m", "cuda", "-b", "1M"],
        &[],
    );
    assert!(done[0].output.contains("by descriptor"), "{}", done[0].output);
    if cuda::driver() == Driver::Real {
        println!("cuda: a real driver has descriptors, so no handle was tried in a container");
        return;
    }
    let socket = dir.join("s2").to_str().expect("a plain path").to_string();
    let mut router = start(0, "freeflow_gdr/router");
    let router = Running::start(router.env("FAKECUDA_VMM", "0").args([
        "-d",
        "soft:10.9.0.1",
        "-m",
        "cuda",
        "-t",
        "5",
        "-s",
        &socket,
    ]));
    let mut client = start(1, "freeflow_gdr/client");
    let done = run(client.args(["-s", &socket, "x"]), 20);
    assert!(done.code() == Some(1) && done.output.contains("cuIpcOpenMemHandle"), "{done}");
    let done = router.finish(LIMIT);
    assert!(done.output.contains("no client came"), "{done}");
}

#[test]
fn server_and_client_move_a_gibibyte_into_and_out_of_gpu_memory() {
    let bin = library::examples();
    let address = loopback(63, 1);
    let start = |command: &mut Command| Running::start(command);
    let mut server = with_driver(&bin.join("gpu_direct/server"));
    let server = start(server.args([
        "-a",
        &address,
        "-p",
        "19951",
        "-s",
        "8M",
        "-l",
        "3",
        "-u",
        gpu(),
        "-P",
    ]));
    for (kind, n, last) in [("0", "64", 2), ("1", "64", 3), ("0", "3", 4)] {
        // The third buffer is in host memory, which can be mixed with GPU memory.
        let mut client = with_driver(&bin.join("gpu_direct/client"));
        client.args([
            "-a",
            &loopback(63, last),
            "-p",
            "19951",
            "-c",
            "-t",
            kind,
            "-n",
            n,
            "-s",
            "8M",
        ]);
        if last < 4 {
            client.args(["-u", gpu()]);
        }
        let done = start(client.arg(&address)).finish(LIMIT);
        assert!(done.ok() && done.output.contains("every byte checked"), "{done}");
    }
    server.interrupt();
    let done = server.finish(LIMIT);
    assert!(done.ok(), "{done}");
}

/// Runs `tests/c/cuda.c`, linked with the static library, with this further argument.
fn c_program(argument: Option<&str>) {
    let archive = library::archive();
    let dir = scratch(&format!("cuda-c-{}", argument.unwrap_or("all")));
    let program = dir.join("cuda_api");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g"]);
    cc.arg(format!("-I{}", root().join("include").display())).arg(root().join("tests/c/cuda.c"));
    // The static library: the program finds the fake driver by LD_LIBRARY_PATH.
    let done = run(cc.arg(archive).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program), 120);
    assert!(done.ok(), "{done}");
    let real = if cuda::driver() == Driver::Real { "real" } else { "fake" };
    let done = Running::start(with_driver(&program).arg(real).args(argument)).finish(LIMIT);
    assert!(done.ok(), "{done}");
}

#[test]
fn the_c_interface_of_gpu_memory_behaves_as_documented() {
    c_program(None);
}

/// A process of its own: NVIDIA's driver does not give it another context.
#[test]
fn a_lost_context_ends_what_uses_gpu_memory_and_nothing_else() {
    c_program(Some("lose"));
}
