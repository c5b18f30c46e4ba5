//! Remote mode: verbs of tenants that the router executes on a device of its own.

use gdrcore_core::device::{Device, MrReg};
use gdrcore_core::verbs::types::{access, qp_state};
use gdrcore_core::Error;
use gdrcore_net::map::Map;
use gdrcore_net::reason;
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::ends::{connected, connected_pair, pattern, succeed, Op, Shape};
use gdrcore_tests::library;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::remote::{kill_tenants, objects, open, pair_on, wait_until_empty};
use gdrcore_tests::router::{number, words, Router};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{run, scratch};
use serde_json::Value;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;

const SUITE: &str = env!("CARGO_BIN_EXE_suite");

/// Two tenants on a device of the router, and one without.
fn start(last: u8) -> Router {
    let switch = "[tenant.c]\nlisten = \"DIR/c\"\n";
    Router::start(&(pair_on(&address(last)) + switch))
}

#[test]
fn the_device_suite_passes_on_a_routers_device() {
    let router = start(1);
    let [a, b] = ["a", "b"].map(|name| router.device(name));
    for peer in [&a, &b] {
        let done = run(Command::new(SUITE).args(["--device", &a, "--peer", peer]), 300);
        assert!(done.ok(), "{}", done.output);
    }
    wait_until_empty(&router);
}

#[test]
fn two_tenants_exchange_bytes_and_are_shown() {
    let router = start(2);
    let (x, y) = (open(&router, "a"), open(&router, "b"));
    let (mut a, mut b) = connected_pair(&x, &y);
    for round in 0..50u64 {
        let bytes = pattern(round, 200_000);
        a.buffer.write(0, &bytes);
        a.post(round, Op::Write(0, None), 0, 200_000).expect("post_send");
        succeed(&mut a, &mut b, round);
        assert!(b.buffer.read(0, 200_000) == bytes, "round {round}");
    }
    let sessions = router.sessions();
    let shown = |s: &&String| s.contains("\"remote\":{") && s.contains("\"completed\":50");
    assert_eq!(sessions.iter().filter(shown).count(), 1, "{sessions:?}");
    assert_ne!(objects(&router), Some(0));
    a.destroy().expect("destroy a");
    b.destroy().expect("destroy b");
    drop((x, y));
    wait_until_empty(&router);
    wait_for(60, "sessions stay", || router.sessions().is_empty());
}

#[test]
fn a_tenant_that_closes_its_device_has_broken_nothing() {
    let mut router = start(9);
    (0..100).for_each(|_| drop(open(&router, "a")));
    wait_for(60, "sessions stay", || router.sessions().is_empty());
    let said = router.running().output();
    assert!(!said.contains("its rings hold"), "{said}");
}

/// The router's device, whose system calls are confined, uses files of its peers' processes when a
/// connection begins and ends, and writes its status when somebody asks.
#[test]
fn a_process_beside_the_router_connects_ends_and_asks_for_its_status() {
    let mut router = start(6);
    let pid = router.running().pid();
    let tenant = open(&router, "a");
    // Without links, as between processes of two containers.
    let config = SoftConfig { path: PathChoice::Udp, ..SoftConfig::default() };
    for round in 0..2 {
        let beside = Soft::open(&address(7), &config).expect("a device");
        let (mut a, mut b) = connected(&tenant, beside.dev(), Shape::default()).expect("ends");
        a.post(round, Op::Write(0, None), 0, 4096).expect("post_send");
        succeed(&mut a, &mut b, round);
        let top = run(Command::new(library::cli()).args(["top", "--json", "--once"]), 60);
        let device: Value = serde_json::from_str(&top.output).expect("JSON");
        let of_router =
            |d: &&Value| d["pid"] == pid && d["counters"]["sent_pkts"].as_u64() > Some(0);
        let devices = device["devices"].as_array().expect("devices");
        assert_eq!(devices.iter().filter(of_router).count(), 1, "{}", top.output);
        b.destroy().expect("destroy b");
        a.destroy().expect("destroy a");
    }
    drop(tenant);
    wait_until_empty(&router);
}

#[test]
fn a_killed_tenant_leaves_nothing_on_the_device() {
    kill_tenants(&start(3), SUITE);
}

#[test]
fn each_mode_says_why_it_is_not_the_other() {
    let router = start(4);
    reason::install();
    let (e, why) = words(Soft::open(&router.device("a"), &SoftConfig::default()).map(drop));
    assert_eq!(e, Error::Os(libc::EREMOTE));
    assert!(why.contains("the verbs of tenant a are executed by the router"), "{why}");
    let (e, why) = words(RemoteDevice::open(&router.device("c")).map(drop));
    assert_eq!(e, Error::Unsupported);
    assert!(why.contains("no `device` for tenant c"), "{why}");
    // Words of the device travel, too.
    let device = open(&router, "a");
    let (e, why) = words(device.cq_create(u32::MAX).map(drop));
    assert!(e == Error::Invalid && why.contains("more than a queue has"), "{e} {why}");
    // A policy with another device waits for a restart.
    router.write("[tenant.a]\nlisten = \"DIR/a\"\ndevice = \"soft:127.0.0.9\"\n");
    let fault = router.reload().expect_err("it is refused");
    assert!(fault.contains("can't be opened while the router runs"), "{fault}");
}

#[test]
fn limits_and_rules_of_tenants_change_while_they_are_there() {
    let router = start(6);
    let (x, y) = (open(&router, "a"), open(&router, "b"));
    let (mut a, mut b) = connected(&x, &y, Shape::default()).expect("connected ends");
    let set = |change: &str| run(&mut router.asks(&["set", "a", change]), 60);
    assert!(set("weight=2").ok());
    wait_for(60, "nothing is charged", || {
        a.post(1, Op::Write(0, None), 0, 4096).expect("post_send");
        succeed(&mut a, &mut b, 1);
        router.sessions().iter().any(|s| number(s, "charged").is_some_and(|n| n >= 4096))
    });
    for change in ["rx_rate=1MB", "tx_pps=5", "metered=true"] {
        let done = set(change);
        let said = done.output.contains("no meaning beside the device");
        assert!(!done.ok() && said, "{change}: {}", done.output);
    }
    // A reload ends what it forbids.
    router.write(&(pair_on(&address(6)) + "allow = []\n"));
    router.reload().expect("a policy");
    wait_for(60, "the connection stays", || {
        x.qp_query(a.qp).is_ok_and(|(attr, _)| attr.qp_state == qp_state::ERR)
    });
    let (e, why) = words(connected(&y, &x, Shape::default()).map(drop));
    assert!(e == Error::Access && why.contains("does not allow tenant b"), "{e} {why}");
    a.destroy().expect("destroy a");
    b.destroy().expect("destroy b");
}

#[test]
fn a_router_that_ends_ends_its_sessions_and_the_next_one_serves_at_once() {
    let mut router = start(5);
    let device = open(&router, "a");
    let (mut a, mut b) = connected_pair(&device, &device);
    a.post(1, Op::Write(0, None), 0, 64).expect("post_send");
    succeed(&mut a, &mut b, 1);
    router.kill();
    let mut lost = Ok(0);
    wait_for(60, "a poll goes on", || {
        lost = device.poll_cq(a.cq, &mut [Default::default()]);
        lost.is_err()
    });
    assert_eq!(lost, Err(Error::Os(libc::ENOTCONN)));
    assert_eq!(device.pd_alloc(), Err(Error::Os(libc::ENOTCONN)));
    let _memory = (a.leave(), b.leave());
    router.restart();
    let again = open(&router, "a");
    let (mut a, mut b) = connected_pair(&again, &again);
    a.post(1, Op::Write(0, None), 0, 64).expect("post_send");
    succeed(&mut a, &mut b, 1);
}

#[test]
fn memory_that_the_program_shares_is_reached_by_its_descriptor() {
    let router = start(8);
    reason::install();
    let (x, y) = (open(&router, "a"), open(&router, "b"));
    let (mut a, mut b) = connected(&x, &y, Shape::default()).expect("connected ends");
    // The file ends within a page, and no page of it is there.
    const LEN: usize = 5000;
    let (map, fd) = Map::with_file(c"shared", LEN).expect("memory");
    let at = map.as_ptr().expose_provenance() as u64;
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    let pd = b.pd;
    let reg = |addr: u64, length: usize| MrReg {
        pd,
        addr,
        length: length as u64,
        iova: addr,
        access: rights,
        provider: 0,
        cookie: 0,
    };
    let (mr, attr) = y.mr_reg_file(&reg(at + 7, LEN - 7), fd.as_raw_fd(), 7).expect("a region");
    (a.peer.addr, a.peer.rkey) = (at + 7, attr.rkey);
    let bytes = pattern(1, LEN - 7);
    a.buffer.write(0, &bytes);
    a.post(1, Op::Write(0, None), 0, (LEN - 7) as u32).expect("post_send");
    succeed(&mut a, &mut b, 1);
    // It is the file, wherever that is mapped.
    let mut read = vec![0; LEN - 7];
    let file = std::fs::File::from(fd.try_clone().expect("a copy"));
    file.read_exact_at(&mut read, 7).expect("its bytes");
    assert!(read == bytes, "other bytes than were written");
    y.mr_dereg(mr).expect("mr_dereg");

    let refused = |reg: MrReg, fd: i32, offset: u64| words(y.mr_reg_file(&reg, fd, offset));
    let (e, why) = refused(reg(at, LEN), fd.as_raw_fd(), 4096);
    assert!(e == Error::Invalid && why.contains("no shared mapping"), "{e}: {why}");
    assert_eq!(refused(reg(at, LEN), -1, 0).0, Error::Os(libc::EBADF));
    // A file could lose its pages: this one has no seal.
    let dir = scratch("router-remote-file");
    let path = dir.join("file");
    std::fs::write(&path, [0; 4096]).expect("a file");
    let plain = std::fs::File::options().read(true).write(true).open(path).expect("a file");
    let mapped = Map::shared(plain.as_raw_fd(), 0, 4096, true).expect("its pages");
    let at = mapped.as_ptr().expose_provenance() as u64;
    let (e, why) = refused(reg(at, 4096), plain.as_raw_fd(), 0);
    assert!(e == Error::Access && why.contains("may shrink"), "{e}: {why}");
    a.destroy().and(b.destroy()).expect("destroy");
    drop((x, y));
    wait_until_empty(&router);
}
