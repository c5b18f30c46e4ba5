//! The path MTU follows link and route: tests between hosts with wide links and a narrower network
//! between them.

use gdrcore_tests::lab::Lab;
use gdrcore_tests::tools::{run, scratch, Done, Running};
use gdrcore_tests::{library, or_skip};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Two ends with links of 9000 bytes, and two routers between them with a link of 1500. Only the
/// first end's route states the MTU.
fn network() -> Result<Lab, String> {
    let lab = Lab::new(4)?;
    lab.link(
        (0, "a0", &["10.7.1.1/24", "fd07:1::1/64"]),
        (1, "r0", &["10.7.1.2/24", "fd07:1::2/64"]),
    )?;
    lab.link(
        (1, "r1", &["10.7.2.1/24", "fd07:2::1/64"]),
        (2, "r2", &["10.7.2.2/24", "fd07:2::2/64"]),
    )?;
    lab.link(
        (2, "r3", &["10.7.3.2/24", "fd07:3::2/64"]),
        (3, "b0", &["10.7.3.1/24", "fd07:3::1/64"]),
    )?;
    for (host, wide) in [(0, "a0"), (1, "r0"), (2, "r3"), (3, "b0")] {
        lab.admin(host, &["link", "set", wide, "mtu", "9000"])?;
    }
    let forward =
        "echo 1 >/proc/sys/net/ipv4/ip_forward && echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";
    for router in [1, 2] {
        let done = run(lab.privileged(router, Path::new("sh")).args(["-c", forward]), 10);
        if !done.ok() {
            return Err(format!("a namespace cannot be made a router: {}", done.output.trim()));
        }
    }
    for (host, v4, v6, mtu) in [
        (0, "10.7.1.2", "fd07:1::2", &["mtu", "1500"][..]),
        (1, "10.7.2.2", "fd07:2::2", &[]),
        (2, "10.7.2.1", "fd07:2::1", &[]),
        (3, "10.7.3.2", "fd07:3::2", &[]),
    ] {
        lab.admin(host, &[&["route", "add", "default", "via", v4], mtu].concat())?;
        lab.admin(host, &[&["-6", "route", "add", "default", "via", v6], mtu].concat())?;
    }
    Ok(lab)
}

/// Runs both sides of an example: a server on one host, a client on another.
fn both(
    lab: &Lab,
    program: &Path,
    server: (usize, &str, &[&str]),
    client: (usize, &str, &[&str]),
) -> [Done; 2] {
    let mut serving =
        Running::start(lab.command(server.0, program).args(["-d", server.1]).args(server.2));
    serving.wait_for_output("waiting on");
    let mut asking = lab.command(client.0, program);
    let asking = Running::start(asking.args(["-d", client.1]).args(client.2).arg(server.1));
    let asking = asking.finish(LIMIT);
    if !asking.ok() {
        serving.interrupt();
    }
    [serving.finish(LIMIT), asking]
}

#[test]
fn a_route_narrower_than_the_links_needs_no_option() {
    let lab = or_skip!(network());
    let bin = library::examples();
    let perf = bin.join("perf/perf");
    let test: &[&str] = &["write", "bw", "-n", "50", "-s", "100000", "-C"];
    for (a, b) in [("10.7.1.1", "10.7.3.1"), ("fd07:1::1", "fd07:3::1")] {
        // Either side may be the client: the endpoints that both send carry each side's MTU.
        for (server, client) in [((0, a), (3, b)), ((3, b), (0, a))] {
            let [s, c] = both(&lab, &perf, (server.0, server.1, &[]), (client.0, client.1, test));
            assert!(s.ok() && c.ok(), "{s}\n{c}");
        }
        // An option overrides it, which shows that the network is that narrow.
        let wide = [test, &["-m", "4096", "--retry_count", "1"]].concat();
        let [_, c] = both(&lab, &perf, (3, b, &[]), (0, a, &wide));
        assert!(c.code() == Some(1) && c.output.contains("RETRY_EXC_ERR"), "{c}");
        // The connection manager's request carries the MTU for both ends.
        let ping = bin.join("cm/cm_ping");
        let [s, c] = both(&lab, &ping, (3, b, &["-s"]), (0, a, &["-c", "-S", "100000"]));
        assert!(s.ok() && c.ok(), "{s}\n{c}");
    }
}

#[test]
fn an_open_device_follows_link_and_route_and_ignores_icmp() {
    let lab = or_skip!(network());
    let dir = scratch("watch-mtu");
    let watch = library::program("watch_mtu", &dir);
    let mut end = Running::start(lab.command(3, &watch).args(["soft:10.7.3.1", "10.7.1.1"]));
    end.wait_for_output("link 4096, path 4096\n");
    // A real ICMP message, which a forged one could imitate: this end's kernel learns the MTU and
    // would report it to any socket that asks.
    let wide = ["write", "bw", "-n", "1", "-m", "4096", "--retry_count", "1"];
    let perf = library::examples().join("perf/perf");
    let [_, c] = both(&lab, &perf, (0, "10.7.1.1", &[]), (3, "10.7.3.1", &wide));
    assert_eq!(c.code(), Some(1), "{c}");
    let told = run(lab.privileged(3, Path::new("ip")).args(["route", "get", "10.7.1.1"]), 10);
    assert!(told.output.contains("mtu 1500"), "the kernel did not learn the MTU: {}", told.output);
    lab.admin(3, &["route", "replace", "default", "via", "10.7.3.2", "mtu", "3000"])
        .expect("a narrower route");
    end.wait_for_output("link 4096, path 2048\n");
    lab.admin(3, &["link", "set", "b0", "mtu", "1500"]).expect("a narrower link");
    end.wait_for_output("link 1024, path 1024\n");
    lab.admin(3, &["link", "set", "b0", "mtu", "9000"]).expect("the link as it was");
    end.wait_for_output("link 4096, path 2048\nlink 1024, path 1024\nlink 4096, path 2048\n");
    let said = end.output();
    assert_eq!(said.lines().next(), Some("link 4096, path 4096"), "{said}");
    assert_eq!(said.lines().count(), 4, "{said}");
}
