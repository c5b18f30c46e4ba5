//! Management datagrams: libibumad's file, as a C program sees it, and the tools of
//! infiniband-diags, unmodified, between two processes.

use gdrcore_tests::rdmacm::command;
use gdrcore_tests::tools::{compile, find, loopback, run, scratch, Done, Running};
use gdrcore_tests::{patience, skip};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time limit of a server's start on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The LID of an address of [`loopback`], with LIDs: its low 16 bits.
fn lid(address: &str) -> String {
    let parts: Vec<u16> = address.split('.').map(|p| p.parse().expect("a number")).collect();
    (parts[2] << 8 | parts[3]).to_string()
}

/// A tool at an address that has a LID.
fn tool(program: &PathBuf, address: &str, arguments: &str) -> std::process::Command {
    let mut c = command(Some(address), &["--lid"], program);
    c.args(arguments.split_whitespace());
    c
}

fn said(done: &Done, words: &[&str]) {
    assert!(done.ok(), "{done}");
    for word in words {
        assert!(done.output.contains(word), "{word}:\n{done}");
    }
}

#[test]
fn the_file_is_the_kernels_to_a_program() {
    let dir = scratch("umad");
    let program = compile("cc", "umad", &dir, &[]);
    let done = run(command(Some(&loopback(158, 1)), &[], program).arg("/dev/infiniband/umad0"), 60);
    said(&done, &["ok"]);
}

#[test]
fn tools_read_the_port() {
    let names = ["ibstat", "smpquery", "perfquery", "iblinkinfo"];
    let [Some(ibstat), Some(smpquery), Some(perfquery), Some(iblinkinfo)] = names.map(find) else {
        skip!("no infiniband-diags")
    };
    let address = loopback(158, 2);
    let own = lid(&address);
    let stat = run(&mut tool(&ibstat, &address, ""), 30);
    said(&stat, &["State: Active", "Physical state: LinkUp", &format!("Base lid: {own}\n")]);
    let guid = stat.output.split("Port GUID: ").nth(1).and_then(|l| l.lines().next());
    let node = run(&mut tool(&smpquery, &address, "-D nodeinfo 0"), 30);
    said(&node, &["Channel Adapter", guid.expect("a GUID")]);
    let port = run(&mut tool(&smpquery, &address, "-D portinfo 0 1"), 30);
    said(&port, &["Active", "LinkUp", &format!("Lid:.............................{own}\n")]);
    said(&run(&mut tool(&perfquery, &address, "-x"), 30), &["PortXmitData", "PortRcvPkts"]);
    let fabric = run(&mut tool(&iblinkinfo, &address, ""), 30);
    assert!(fabric.output.contains("there is no InfiniBand fabric"), "{}", fabric.output);
    assert!(fabric.output.contains("CA: gdrc0"), "{}", fabric.output);
}

#[test]
fn two_of_ours_ping_each_other_and_read_each_others_counters() {
    let [Some(ibping), Some(perfquery)] = ["ibping", "perfquery"].map(find) else {
        skip!("no infiniband-diags")
    };
    let [a, b] = [3, 4].map(|last| loopback(158, last));
    let mut server = Running::start(&mut tool(&ibping, &a, "-S"));
    // The server has opened its device once its counters can be read.
    let end = Instant::now() + LIMIT * patience::factor();
    let counters = loop {
        let done = run(&mut tool(&perfquery, &b, &format!("-t 200 {} 1", lid(&a))), 30);
        if done.ok() || !server.still_runs() || Instant::now() > end {
            break done;
        }
    };
    said(&counters, &[&format!("Lid {} port 1", lid(&a)), "PortRcvPkts"]);
    let pings = run(&mut tool(&ibping, &b, &format!("-c 3 {}", lid(&a))), 60);
    said(&pings, &["3 packets transmitted, 3 received, 0% packet loss"]);
    // The pings are among what it counts, in both forms.
    for form in ["", "-x"] {
        let counted = run(&mut tool(&perfquery, &b, &format!("{form} {}", lid(&a))), 30);
        assert!(counted.ok(), "{counted}");
        for name in ["XmitPkts:", "RcvPkts:", "XmitData:", "RcvData:"] {
            let line =
                counted.output.lines().find_map(|l| l.strip_prefix("Port")?.strip_prefix(name));
            let count: u64 = line.and_then(|l| l.trim_start_matches('.').parse().ok()).unwrap_or(0);
            assert!(count >= 3, "{name} {counted}");
        }
    }
    // Nobody is there: said so, in time.
    let nobody = run(&mut tool(&ibping, &b, &format!("-c 1 -t 50 {}", lid(&loopback(158, 9)))), 30);
    assert!(nobody.output.contains("0 received, 100% packet loss"), "{}", nobody.output);
    server.kill();
    server.finish(LIMIT);
}
