//! Descriptors, mappings and named sockets of one address are all released after a thousand devices
//! and a hundred killed processes.

use gdrcore_core::config::Config;
use gdrcore_net::soft::{soft_flags, PathChoice, SoftConfig};
use gdrcore_tests::ends::{connected, succeed, Op, Shape};
use gdrcore_tests::patience::deadline;
use gdrcore_tests::soft::{address, Soft};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of descriptors, of mappings of rings and other device memory, and of names of the
/// address.
fn held(name: &str) -> (usize, usize, usize) {
    let read = |path: &str| std::fs::read_to_string(path).expect("procfs");
    let fds = std::fs::read_dir("/proc/self/fd").expect("procfs").count();
    let maps = read("/proc/self/maps").lines().filter(|l| l.contains("gdrcore-ring")).count();
    (fds, maps, gdrcore_tests::soft::names_of(name).len())
}

#[test]
fn all_resources_are_released() {
    let core =
        Config { max_qp: 16, max_cq: 16, max_mr: 16, ring_bytes: 1 << 20, ..Config::default() };
    let config = SoftConfig {
        core,
        path: PathChoice::Auto,
        flags: soft_flags::CMA,
        ..SoftConfig::default()
    };
    let name = address(1);
    let open = || Soft::open(&name, &config).unwrap_or_else(|e| panic!("{name}: {e}"));
    let stays = open();
    let settle = |wanted: (usize, usize, usize)| {
        let end = deadline(60);
        loop {
            stays.dev().progress().expect("progress");
            let now = held(&name);
            if now == wanted || Instant::now() > end {
                return now;
            }
        }
    };
    let shape = Shape { buffer: 4096, depth: 4, cqe: 8, ..Shape::default() };
    let begun = Instant::now() + Duration::from_millis(100);
    while Instant::now() < begun {
        stays.dev().progress().expect("progress");
    }
    let before = held(&name);
    for round in 0..1000 {
        let comes = open();
        if round % 10 == 0 {
            let (mut x, mut y) =
                connected(comes.dev(), stays.dev(), shape).expect("connected ends");
            x.post(1, Op::Write(0, None), 0, 1000).expect("post_send");
            succeed(&mut x, &mut y, 1);
            x.destroy().expect("nothing in use");
            y.destroy().expect("nothing in use");
        }
    }
    assert_eq!(settle(before), before, "after a thousand devices");
    for round in 0..100u32 {
        // It requests connections of this process's slot, which does not listen, until it is
        // killed.
        let mut child = Command::new(env!("CARGO_BIN_EXE_swarm"))
            .args(["member", "1", "3", &name, if round % 2 == 0 { "auto" } else { "udp" }])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a member");
        let end = Instant::now() + Duration::from_millis(5 + u64::from(round % 20));
        while Instant::now() < end {
            stays.dev().progress().expect("progress");
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    assert_eq!(settle(before), before, "after a hundred dead processes");
    // The address still works.
    let comes = open();
    let (mut x, mut y) = connected(comes.dev(), stays.dev(), shape).expect("connected ends");
    x.post(1, Op::Write(0, None), 0, 1000).expect("post_send");
    succeed(&mut x, &mut y, 1);
}
