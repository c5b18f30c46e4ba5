//! `gdrcore top` (docs/using/TOP.md) beside devices with prepared troubles, and those who may ask.

use gdrcore_net::inject::FaultSpec;
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::ends::{connected_pair, Op};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::router::{Router, TWO};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{run, Running};
use gdrcore_tests::{library, skip};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const FAR: &str = env!("CARGO_BIN_EXE_far_end");

/// What `gdrcore top --json --once` says, while `meanwhile` runs again and again.
fn top(mut meanwhile: impl FnMut()) -> Vec<Value> {
    let mut command = Command::new(library::cli());
    command.args(["top", "--json", "--once", "--interval", "0.3"]);
    // What it says is read while it runs: the devices of all processes fill more than a pipe.
    let done = std::thread::scope(|s| {
        let reader = s.spawn(|| run(&mut command, 60));
        while !reader.is_finished() {
            meanwhile();
        }
        reader.join().expect("gdrcore top")
    });
    let value: Value = serde_json::from_str(&done.output).expect("JSON");
    value["devices"].as_array().expect("devices").clone()
}

fn rest() {
    std::thread::sleep(Duration::from_millis(1));
}

fn poll(device: &Soft) {
    device.dev().progress().expect("progress");
}

/// Tests that open devices in this process do so one at a time, so that each sees its own.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The devices of a process.
fn of(devices: &[Value], pid: u32) -> Vec<&Value> {
    devices.iter().filter(|d| d["pid"] == pid).collect()
}

/// The only device of a process.
#[track_caller]
fn one(devices: &[Value], pid: u32) -> Value {
    match of(devices, pid)[..] {
        [device] => device.clone(),
        ref other => panic!("{} devices of process {pid} in {devices:?}", other.len()),
    }
}

fn count(of: &Value, counter: &str) -> u64 {
    of["counters"][counter].as_u64().unwrap_or(0)
}

#[test]
fn a_receiver_that_posts_no_receive_is_seen_at_both_ends() {
    let options = ["stream=send", "piece=64"];
    let (name, other) = (address(1), address(2));
    let (mut from, mut to) = (Far::start(FAR, &name, &options), Far::start(FAR, &other, &[]));
    from.connect_far(&mut to);
    from.say("go");
    let mut seen = (Value::Null, Value::Null);
    wait_for(60, "no RNR NAK is seen at both ends", || {
        let devices = top(rest);
        seen = (one(&devices, from.pid()), one(&devices, to.pid()));
        let has = |of: &Value, counter| count(&of["qps"][0], counter) > 0;
        has(&seen.0, "rcvd_rnr_err") && has(&seen.1, "send_rnr_err") && seen.0["answers"] == true
    });
    let (from_qp, to_qp) = (&seen.0["qps"][0], &seen.1["qps"][0]);
    assert_eq!(seen.0["program"], "far_end");
    assert_eq!(seen.0["address"], name.trim_start_matches("soft:"), "{seen:?}");
    assert_eq!(
        (&from_qp["type"], &from_qp["state"], &from_qp["path"]),
        (&"RC".into(), &"RTS".into(), &"udp".into())
    );
    assert_eq!(from_qp["peer_qpn"], to_qp["qpn"]);
    assert_eq!(to_qp["peer_qpn"], from_qp["qpn"]);
    assert!(other.contains(from_qp["peer"].as_str().expect("an address")), "{from_qp}");
    assert!(from_qp["sq"]["used"].as_u64() > Some(0), "requests wait: {from_qp}");
}

#[test]
fn a_lossy_path_has_rates_and_packets_sent_again() {
    let _alone = alone();
    let spec = FaultSpec { rules: "loss rate 20%", seed: 7, launched: None };
    let config = SoftConfig { path: PathChoice::Udp, faults: Some(&spec), ..SoftConfig::default() };
    let lossy = Soft::open(&address(1), &config).expect("a device");
    let plain = Soft::open(&address(2), &SoftConfig { faults: None, ..config }).expect("a device");
    let (mut a, mut b) = connected_pair(lossy.dev(), plain.dev());
    let mut posted = 0;
    let lossy_address = address(1);
    wait_for(60, "no rate, or no packet sent again, is seen", || {
        let devices = top(|| {
            let may = a.done.len() as u64 + 8 > posted;
            if may && a.post(posted, Op::Write(0, None), 0, 4096).is_ok() {
                posted += 1;
            }
            a.poll();
            b.poll();
        });
        let is_lossy = |d: &&Value| d["address"] == lossy_address.trim_start_matches("soft:");
        let own = of(&devices, std::process::id());
        let Some(device) = own.into_iter().find(is_lossy) else { return false };
        let qp = &device["qps"][0];
        count(qp, "retransmitted_pkts") > 0
            && count(qp, "rdma_writes") > 0
            && qp["rates"]["sent_bytes"].as_f64() > Some(0.0)
    });
    assert!(a.done.iter().all(|wc| wc.status == 0), "{:?}", a.done);
}

#[test]
fn sleepers_answer_stopped_ones_do_not_and_ended_ones_are_gone() {
    let mut sleeper = Far::start(FAR, &address(1), &["helper=1"]);
    let mut polling = Far::start(FAR, &address(1), &[]);
    let [_, theirs] = polling.connect_far(&mut sleeper);
    wait_for(60, "the sleeper, or the one that polls, does not answer", || {
        let devices = top(rest);
        let [device, other] = [&sleeper, &polling].map(|far| one(&devices, far.pid()));
        device["answers"] == true
            && device["qps"][0]["qpn"] == theirs.qpn
            && other["answers"] == true
            && other["qps"][0]["peer_qpn"] == theirs.qpn
    });
    polling.stop();
    let stopped = one(&top(rest), polling.pid());
    assert_eq!((&stopped["answers"], &stopped["process"]), (&false.into(), &"stopped".into()));
    // What it said before stays.
    assert_eq!(stopped["qps"][0]["peer_qpn"], theirs.qpn, "{stopped}");
    polling.signal(libc::SIGCONT);
    wait_for(60, "it does not answer again", || one(&top(rest), polling.pid())["answers"] == true);
    let gone = polling.pid();
    polling.kill();
    assert!(of(&top(rest), gone).is_empty());
    wait_for(60, "the sleeper does not sleep", || {
        one(&top(rest), sleeper.pid())["process"] == "sleeping"
    });
}

/// A program that has opened a device and never polls: whose it is is known.
#[test]
fn one_that_never_polls_is_named() {
    let _alone = alone();
    let device = Soft::open(&address(1), &SoftConfig::default()).expect("a device");
    let own = one(&top(rest), std::process::id());
    assert_eq!((&own["answers"], &own["address"]), (&false.into(), &"".into()));
    assert_eq!(own["objects"], serde_json::json!({}));
    wait_for(60, "a device that is polled does not answer", || {
        one(&top(|| poll(&device)), std::process::id())["answers"] == true
    });
}

#[test]
fn another_user_sees_nothing() {
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() } != 0 {
        skip!("only root can become another user");
    }
    let other = |command: &mut Command| _ = command.uid(65533).gid(65533);
    let mut help = Command::new(library::cli());
    other(help.args(["top", "--help"]).stdout(Stdio::null()));
    if help.status().is_err() {
        skip!("another user cannot execute what is in this folder");
    }
    let _alone = alone();
    let device = Soft::open(&address(1), &SoftConfig::default()).expect("a device");
    let pid = std::process::id();
    wait_for(60, "the device does not answer its own user", || {
        one(&top(|| poll(&device)), pid)["answers"] == true
    });
    let mut command = Command::new(library::cli());
    other(command.args(["top", "--json", "--once", "--interval", "0.1"]));
    let done = run(&mut command, 60);
    assert!(done.ok() && done.output.trim() == r#"{"devices":[],"routers":[]}"#, "{}", done.output);
}

#[test]
fn prometheus_gets_counters_whatever_other_clients_send() {
    let _alone = alone();
    let device = Soft::open(&address(1), &SoftConfig::default()).expect("a device");
    let mut command = Command::new(library::cli());
    command.args(["top", "--prometheus", "127.0.0.1:0"]);
    let mut server = Running::start(&mut command);
    server.wait_for_output("/metrics\n");
    let output = server.output();
    let at = output.trim().trim_start_matches("http://").trim_end_matches("/metrics").to_string();
    let ask = |request: &[u8]| {
        let mut client = TcpStream::connect(&at).expect("a connection");
        let mut text = String::new();
        // A request that is too long is answered by a reset, maybe while it is sent.
        let _ = client.write_all(request);
        let _ = client.read_to_string(&mut text);
        text
    };
    let silent = TcpStream::connect(&at).expect("a connection");
    assert!(ask(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert_eq!(ask(&[b'x'; 20_000]), "");
    let pid = std::process::id();
    wait_for(60, "no counters of this process", || {
        let got = std::thread::scope(|s| {
            let answer = s.spawn(|| ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"));
            while !answer.is_finished() {
                poll(&device);
            }
            answer.join().expect("an answer")
        });
        let answers = format!("gdrcore_device_answers{{pid=\"{pid}\"");
        got.lines().any(|l| l.starts_with(&answers) && l.ends_with(" 1"))
    });
    drop(silent);
}

/// Over a router, by the same page: its peers, and which way its packets take.
#[test]
fn devices_over_a_router_are_shown() {
    let _alone = alone();
    for (local, path) in [("auto", "memory"), ("relay", "router")] {
        let router = Router::start(&format!("[router]\nlocal = \"{local}\"\n{TWO}"));
        let (one, other) = (router.open("a"), router.open("b"));
        let (mut a, mut b) = connected_pair(one.dev(), other.dev());
        let mut posted = 0;
        let mut seen = Vec::new();
        wait_for(60, "no answer, or no rate, of a device over a router", || {
            seen = top(|| {
                let may = a.done.len() as u64 + 8 > posted;
                if may && a.post(posted, Op::Write(0, None), 0, 4096).is_ok() {
                    posted += 1;
                }
                a.poll();
                b.poll();
            });
            let own = of(&seen, std::process::id());
            own.len() == 2
                && own.iter().all(|d| d["answers"] == true)
                && own.iter().any(|d| d["qps"][0]["rates"]["rdma_writes"].as_f64() > Some(0.0))
        });
        let own = of(&seen, std::process::id());
        let at = |address: &str| {
            let found = own.iter().find(|d| d["address"] == address);
            found.unwrap_or_else(|| panic!("{address} in {own:?}")).to_owned().clone()
        };
        let (from, to) = (at("10.99.0.2:4791"), at("10.99.0.3:4791"));
        let (from_qp, to_qp) = (&from["qps"][0], &to["qps"][0]);
        let facts = [&from_qp["state"], &from_qp["path"], &from_qp["peer"]];
        assert_eq!(facts, ["RTS", path, "10.99.0.3"], "{from}");
        assert_eq!((&from_qp["peer_qpn"], &to_qp["peer_qpn"]), (&to_qp["qpn"], &from_qp["qpn"]));
        assert!(count(from_qp, "rdma_writes") > 0 && from["objects"]["qp"] == 1, "{from}");
        drop((a, b));
        drop((one, other));
        assert!(of(&top(rest), std::process::id()).is_empty());
    }
    let router = Router::start(TWO);
    // Nobody polls: the helper answers.
    let mut sleeper = Far::start(FAR, &router.device("a"), &["helper=1"]);
    wait_for(60, "a sleeper does not answer", || one(&top(rest), sleeper.pid())["answers"] == true);
    let gone = sleeper.pid();
    sleeper.kill();
    assert!(of(&top(rest), gone).is_empty());
}
