//! The examples between hosts: separate user, network, mount and pid namespaces, and programs
//! without capabilities.

use gdrcore_tests::lab::Lab;
use gdrcore_tests::tools::{find, run, scratch};
use gdrcore_tests::{library, or_skip, router_round};

/// Makes the hosts of a test, or skips it.
macro_rules! lab {
    ($n:expr) => {
        or_skip!(Lab::new($n))
    };
}

#[test]
fn hosts_are_apart_and_their_programs_have_no_capabilities() {
    let mut lab = lab!(2);
    lab.link((0, "a0", &["10.9.0.1/24", "fd09::1/64"]), (1, "b0", &["10.9.0.2/24", "fd09::2/64"]))
        .expect("a link");
    let mut namespaces = Vec::new();
    for host in 0..2 {
        let cat = find("cat").expect("cat");
        let status = run(lab.command(host, &cat).arg("/proc/self/status"), 10);
        assert!(status.ok(), "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let line = status.output.lines().find(|l| l.starts_with(set)).unwrap_or("");
            assert!(line.ends_with("\t0000000000000000"), "host {host}: {line}");
        }
        let links = run(
            lab.command(host, &find("readlink").expect("readlink"))
                .args(["user", "net", "mnt", "pid"].map(|k| format!("/proc/self/ns/{k}"))),
            10,
        );
        namespaces.extend(links.output.lines().map(str::to_string));
    }
    assert_eq!(namespaces.len(), 8);
    namespaces.sort();
    namespaces.dedup();
    assert_eq!(namespaces.len(), 8, "each host must have namespaces of its own: {namespaces:?}");
    assert!(lab.all_run());
}

#[test]
fn router_client_and_peer_in_namespaces_without_capabilities() {
    let lab = lab!(3);
    // The client's host has no link: it needs only the Unix socket.
    lab.link((0, "r0", &["10.9.0.1/24", "fd09::1/64"]), (2, "p0", &["10.9.0.2/24", "fd09::2/64"]))
        .expect("a link");
    let bin = library::examples();
    for (router, peer, address) in [
        ("soft:10.9.0.1", "soft:10.9.0.2", "10.9.0.1"),
        ("soft:[fd09::1]", "soft:[fd09::2]", "fd09::1"),
        ("soft:10.9.0.1:4800", "soft:10.9.0.2:4801", "10.9.0.1"),
    ] {
        let dir = scratch("namespaces");
        router_round::run(&router_round::Round {
            command: &|host, program| lab.command(host, &bin.join(program)),
            router,
            peer,
            address,
            bytes: 300_001,
            dir: &dir,
        });
    }
}
