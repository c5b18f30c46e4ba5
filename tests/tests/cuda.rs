//! GPU memory in programs: the C examples and the C library, each process with its own driver. Uses
//! the machine's GPU where there is one, else the fake driver.

use gdrcore_tests::cuda::{self, Driver};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{loopback, run, scratch, target_dir, Running};
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
    if cuda::driver() == Driver::Fake {
        command.env("LD_LIBRARY_PATH", cuda::fake());
    }
    command
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
    if cuda::driver() == Driver::Real {
        skip!("a GPU's device files are not in the namespaces of this test");
    }
    let lab = match Lab::new(3) {
        Ok(lab) => lab,
        Err(why) => skip!("no namespaces: {why}"),
    };
    lab.link((0, "r0", &["10.9.0.1/24"]), (2, "p0", &["10.9.0.2/24"])).expect("a link");
    let bin = library::examples();
    let dir = scratch("cuda-container");
    router_round::run_with(
        &router_round::Round {
            command: &|host, program| {
                let mut command = lab.command(host, &bin.join(program));
                command.env("LD_LIBRARY_PATH", cuda::fake());
                command
            },
            router: "soft:10.9.0.1",
            peer: "soft:10.9.0.2",
            address: "10.9.0.1",
            bytes: 300_001,
            dir: &dir,
        },
        &["-m", "cuda", "-b", "1M"],
        &[],
    );
    let socket = dir.join("s2").to_str().expect("a plain path").to_string();
    let mut router = lab.command(0, &bin.join("freeflow_gdr/router"));
    router.env("LD_LIBRARY_PATH", cuda::fake()).env("FAKECUDA_VMM", "0");
    let router = Running::start(router.args([
        "-d",
        "soft:10.9.0.1",
        "-m",
        "cuda",
        "-t",
        "5",
        "-s",
        &socket,
    ]));
    let mut client = lab.command(1, &bin.join("freeflow_gdr/client"));
    let done = run(client.env("LD_LIBRARY_PATH", cuda::fake()).args(["-s", &socket, "x"]), 20);
    assert!(
        done.code() == Some(1) && done.output.contains("cuIpcOpenMemHandle"),
        "{}",
        done.output
    );
    let done = router.finish(LIMIT);
    assert!(done.output.contains("no client came"), "{}", done.output);
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
        assert!(
            done.ok() && done.output.contains("every byte checked"),
            "{:?}: {}",
            done.status,
            done.output
        );
    }
    server.interrupt();
    let done = server.finish(LIMIT);
    assert!(done.ok(), "{:?}: {}", done.status, done.output);
}

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
            assert!(done.ok(), "{test:?} {ours} to {theirs}: {:?} {}", done.status, done.output);
        }
        server.interrupt();
        let done = server.finish(LIMIT);
        assert!(done.ok(), "{:?}: {}", done.status, done.output);
    }
    let done = run(with_driver(&perf).args(["-d", "loopback", "write", "lat", "--mem", &kind]), 20);
    assert!(!done.ok() && done.output.contains("polls the last byte"), "{}", done.output);
}

#[test]
fn the_comparison_of_gpu_memory_runs_and_names_the_gpu() {
    let bin = library::examples();
    let dir = scratch("cuda-compare");
    let out = dir.join("RESULTS-GPU.md");
    let mut compare = with_driver(&root().join("bench/compare_gpu.sh"));
    compare.env("BIN", bin).env("OUT", &out).env("ROUNDS", "1").env("SCALE", "200");
    let done = run(&mut compare, 120);
    assert!(done.ok(), "{}", done.output);
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
    let out = scratch("cuda-hardware").join("RESULTS-GPU.md");
    let mut compare = with_driver(&root().join("bench/compare_gpu.sh"));
    compare.env("BIN", library::examples()).env("OUT", &out).env("ROUNDS", "1").env("SCALE", "20");
    let done = run(&mut compare, 240);
    assert!(done.ok(), "{}", done.output);
    println!("{}", fs::read_to_string(&out).expect("the page"));
}

#[test]
fn without_a_driver_programs_name_what_is_missing_and_work_with_host_memory() {
    let bin = library::examples();
    let own = format!("soft:{}", loopback(65, 1));
    let mut router = without_driver(&bin.join("freeflow_gdr/router"));
    let done = run(router.args(["-d", &own, "-m", "cuda", "-t", "5", "-s", "/nonexistent/s"]), 20);
    assert!(
        done.code() == Some(1) && done.output.contains("GPU memory"),
        "{:?}: {}",
        done.status,
        done.output
    );
    if cuda::driver() == Driver::Fake {
        assert!(done.output.contains("libcuda.so.1 is not on this machine"), "{}", done.output);
    }
    let done = run(
        without_driver(&bin.join("perf/perf"))
            .args(["-d", "loopback", "write", "bw", "-n", "16", "-s", "64k"]),
        20,
    );
    assert!(done.ok(), "host memory needs no driver: {}", done.output);
    for wrong in ["cuda:c8:00.0", "cuda:nonsense", "cuda:99", "tuba"] {
        let mut router = with_driver(&bin.join("freeflow_gdr/router"));
        let done =
            run(router.args(["-d", &own, "-m", wrong, "-t", "5", "-s", "/nonexistent/s"]), 20);
        assert!(
            done.code().is_some_and(|c| c > 0) && done.output.lines().count() >= 2,
            "{wrong}: {}",
            done.output
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
    for (fail, words) in cases {
        let mut router = with_driver(&bin.join("freeflow_gdr/router"));
        let done = run(
            router.env("FAKECUDA_FAIL", fail).args([
                "-d",
                &own,
                "-m",
                "cuda",
                "-t",
                "2",
                "-s",
                "/nonexistent/s",
            ]),
            20,
        );
        assert!(
            done.code() == Some(1) && done.output.contains(words),
            "{fail}: {:?} {}",
            done.status,
            done.output
        );
    }
    // No device, and one with too little memory.
    for (name, value, words) in
        [("FAKECUDA_DEVICES", "", "finds no GPU"), ("FAKECUDA_MEMORY", "1000000", "OUT_OF_MEMORY")]
    {
        let mut router = with_driver(&bin.join("freeflow_gdr/router"));
        let done = run(
            router.env(name, value).args([
                "-d",
                &own,
                "-m",
                "cuda",
                "-t",
                "2",
                "-b",
                "4M",
                "-s",
                "/nonexistent/s",
            ]),
            20,
        );
        assert!(
            done.code() == Some(1) && done.output.contains(words),
            "{name}: {:?} {}",
            done.status,
            done.output
        );
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
            "{fail}: {}",
            done.output
        );
        let done = router.finish(LIMIT);
        assert!(done.output.contains("no client came"), "{fail}: {}", done.output);
    }
}

#[test]
fn the_c_interface_of_gpu_memory_behaves_as_documented() {
    let archive = library::archive();
    let program = target_dir().join("fakecuda").join(format!("cuda_api.{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g"]);
    cc.arg(format!("-I{}", root().join("include").display())).arg(root().join("tests/c/cuda.c"));
    // The static library: the program finds the fake driver by LD_LIBRARY_PATH.
    let done = run(cc.arg(archive).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program), 120);
    assert!(done.ok(), "{}", done.output);
    let real = if cuda::driver() == Driver::Real { "real" } else { "fake" };
    let done = Running::start(with_driver(&program).arg(real)).finish(LIMIT);
    let _ = fs::remove_file(&program);
    assert!(done.ok(), "{:?}: {}", done.status, done.output);
}

/// Makes a sysfs tree of a machine with two switches, four GPUs and two NICs.
fn sysfs(dir: &Path) -> PathBuf {
    let root = dir.join("sys");
    let device = |path: &str, class: &str| {
        let folder = root.join("devices").join(path);
        fs::create_dir_all(&folder).expect("a folder");
        for (file, value) in [
            ("class", class),
            ("vendor", "0x10de"),
            ("device", "0x1db8"),
            ("revision", "0xa1"),
            ("numa_node", "0"),
        ] {
            fs::write(folder.join(file), format!("{value}\n")).expect("a file");
        }
        let bus = root.join("bus/pci/devices");
        fs::create_dir_all(&bus).expect("a folder");
        symlink(&folder, bus.join(folder.file_name().expect("a name"))).expect("a link");
        folder
    };
    for (bus, nic, gpus) in [("b0", "b5", ["b7", "b8"]), ("30", "35", ["37", "38"])] {
        let switch = format!("pci0000:{bus}/0000:{bus}:02.0/0000:{bus}:10.0");
        for (i, gpu) in gpus.iter().enumerate() {
            device(&format!("{switch}/0000:{bus}:1{}.0/0000:{gpu}:00.0", i + 1), "0x030200");
        }
        let folder = device(&format!("{switch}/0000:{bus}:14.0/0000:{nic}:00.0"), "0x020700");
        let name = format!("mlx5_{nic}");
        fs::create_dir_all(folder.join("net/lo")).expect("a folder");
        fs::create_dir_all(folder.join("infiniband").join(&name)).expect("a folder");
        symlink(&folder, folder.join("infiniband").join(&name).join("device")).expect("a link");
        fs::create_dir_all(root.join("class/infiniband")).expect("a folder");
        symlink(folder.join("infiniband").join(&name), root.join("class/infiniband").join(&name))
            .expect("a link");
    }
    root
}

#[test]
fn map_pci_nic_gpu_names_the_pairs_that_are_near() {
    let dir = scratch("cuda-topology");
    let root = sysfs(&dir);
    let ids = dir.join("pci.ids");
    fs::write(
        &ids,
        "# comment\n10dd  Another\n\t1db8  Not this\n10de  NVIDIA Corporation\n\
         \t1db7  Not this either\n\t1db8  GV100GL\n\t\t10de 1db8  Nor this\n10df  Last\n",
    )
    .unwrap();
    let map = library::examples().join("gpu_direct/map_pci_nic_gpu");
    let done = run(Command::new(&map).arg("-r").arg(&root).arg("-i").arg(&ids), 10);
    assert!(done.ok(), "{}", done.output);
    let near = "127.0.0.1 (mlx5_b5) is near 0000:b7:00.0 3D \
                controller: NVIDIA Corporation GV100GL (rev a1)";
    assert!(done.output.lines().any(|l| l == near), "{}", done.output);
    assert_eq!(done.output.lines().count(), 4, "{}", done.output);
    let done = run(Command::new(&map).args(["-a", "-i", "/nonexistent", "-r"]).arg(&root), 10);
    assert_eq!(done.output.lines().count(), 8, "{}", done.output);
    assert!(
        done.output.contains(
            "is far from 0000:37:00.0 3D controller: 10de Device 1db8 (rev a1), sharing a NUMA node"
        ),
        "{}",
        done.output
    );
    let done = run(Command::new(&map).args(["-r", "/nonexistent"]), 10);
    assert!(done.code() == Some(1) && done.output.contains("no NIC or no GPU"), "{}", done.output);
}

#[test]
fn arp_announce_conf_shows_and_makes_its_changes() {
    let dir = scratch("cuda-arp");
    let conf = dir.join("net/ipv4/conf");
    for interface in ["all", "eth0", "eth1"] {
        fs::create_dir_all(conf.join(interface)).unwrap();
        for setting in ["arp_announce", "arp_ignore", "rp_filter"] {
            fs::write(conf.join(interface).join(setting), "0\n").unwrap();
        }
    }
    let script = root().join("c-examples/gpu_direct/arp_announce_conf.sh");
    let read = |file: &str| fs::read_to_string(conf.join(file)).unwrap().trim().to_string();
    let run_it = |args: &[&str]| {
        run(Command::new("sh").arg(&script).args(args).env("PROC_SYS", dir.as_os_str()), 10)
    };
    let done = run_it(&["-n", "eth0"]);
    assert!(
        done.ok() && done.output.contains("would set net.ipv4.conf.eth0.arp_announce=2 (now 0)"),
        "{}",
        done.output
    );
    assert_eq!(
        (read("eth0/arp_announce"), read("all/arp_ignore")),
        ("0".into(), "0".into()),
        "a dry run changed the setting"
    );
    let done = run_it(&["eth0"]);
    assert!(done.ok(), "{}", done.output);
    assert_eq!(
        (read("eth0/arp_announce"), read("all/arp_ignore"), read("eth0/rp_filter")),
        ("2".into(), "1".into(), "2".into())
    );
    assert_eq!(read("eth1/arp_announce"), "0", "another interface");
    let done = run_it(&["eth0", "nosuch0"]);
    assert!(done.code() == Some(1) && done.output.contains("nosuch0"), "{}", done.output);
    assert!(
        run_it(&["--help"]).output.contains("Usage:") && run_it(&["--nonsense"]).code() == Some(2)
    );
}
