//! Unmodified programs of libibverbs in remote mode: the drop-in on a device of a router.

use gdrcore_tests::dropin::{both, command, free_port, start_server, without_settings};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::rdmacm::{self, has_served, launcher};
use gdrcore_tests::remote::{
    self, can_compile, objects, pair_on, start, tenants, wait_until_empty, Side,
};
use gdrcore_tests::router::{number, Router, TWO};
use gdrcore_tests::soft::address;
use gdrcore_tests::tools::{compile, find, run, scratch, Done, Running};
use gdrcore_tests::{or_skip, skip};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A program of a tenant.
fn of_tenant(router: &Router, name: &str, program: impl AsRef<Path>) -> Command {
    let mut c = command(program.as_ref(), "");
    c.env_remove("GDRC_ADDRESS").env("GDRC_ROUTER", router.socket(name));
    c
}

/// Server and client of a tool, each a tenant's, and their port; `None`: it is not installed.
fn sides(router: &Router, words: &str) -> Option<([Command; 2], u16)> {
    let mut words = words.split(' ');
    let tool = find(words.next()?)?;
    let (port, arguments) = (free_port(), words.collect::<Vec<_>>());
    let mut sides = ["a", "b"].map(|name| {
        let mut c = of_tenant(router, name, &tool);
        c.args(&arguments).args(["-p", &port.to_string()]);
        c
    });
    sides[1].arg("127.0.0.1");
    Some((sides, port))
}

fn succeeds(router: &Router, words: &str, more: &[(&str, &str)]) {
    let Some(([mut server, mut client], port)) = sides(router, words) else {
        return println!("{words}: not installed");
    };
    let more = || more.iter().copied();
    let done = both(server.envs(more()), client.envs(more()), port);
    let [of_server, of_client]: [&Done; 2] = done.each_ref();
    assert!(
        of_server.ok() && of_client.ok(),
        "{words}: {}\n{}",
        of_server.output,
        of_client.output
    );
}

#[test]
fn ping_pongs_compare_their_bytes() {
    let router = start(1);
    for words in [
        "ibv_rc_pingpong -g 0 -c",
        "ibv_rc_pingpong -g 0 -c -e",
        "ibv_uc_pingpong -g 0 -c",
        "ibv_ud_pingpong -g 0 -c -n 200",
        "ibv_srq_pingpong -g 0 -c",
        "ibv_srq_pingpong -g 0 -c -e",
        "ibv_xsrq_pingpong -g 0 -c 1",
    ] {
        succeeds(&router, words, &[]);
    }
    wait_until_empty(&router);
}

#[test]
fn perftest_and_ucx_run() {
    let router = start(2);
    for words in [
        "ib_send_bw -F -n 200 -x 0",
        "ib_send_lat -F -n 200 -x 0",
        "ib_send_lat -F -n 100 -x 0 -e",
        "ib_send_bw -F -n 100 -x 0 -c UD -s 1024",
        "ib_write_bw -F -n 200 -x 0 -q 4",
        "ib_write_lat -F -n 200 -x 0",
        "ib_read_bw -F -n 200 -x 0",
        "ib_atomic_bw -F -n 200 -x 0",
    ] {
        succeeds(&router, words, &[]);
    }
    if find("ucx_perftest").is_some() {
        // UCX may use our device, and a process's own memory for what it sends to itself.
        let ucx = [("UCX_NET_DEVICES", "gdrc0:1"), ("UCX_TLS", "rc_v,self")];
        let tool = "ucx_perftest -t tag_bw -f -s 8192 -n 300 -w 10";
        succeeds(&router, &format!("{} {tool}", launcher().display()), &ucx);
    }
    wait_until_empty(&router);
}

/// The address of a device.
fn ip(last: u8) -> String {
    address(last).split(':').nth(1).expect("an address").to_string()
}

/// A side of a program of librdmacm, a tenant's; `{S}` stands for the address of the device.
/// `None`: it is not installed.
fn of_rdma_cm(router: &Router, name: &str, words: &str, last: u8) -> Option<Command> {
    Side::Tenant(name).command(router, words, &ip(last))
}

/// Runs a server of a tenant and a client of one.
fn connects(router: &Router, sides: [(&str, &str); 2], last: u8) {
    let sides = sides.map(|(name, words)| (Side::Tenant(name), words));
    remote::connects(router, sides, &ip(last), None);
}

#[test]
fn programs_of_librdmacm_connect() {
    let router = start(7);
    for [server, client] in [
        ["rping -s -a {S} -C 200 -V", "rping -c -a {S} -C 200 -V"],
        ["rping -s -a {S} -C 20 -V -S 65000", "rping -c -a {S} -C 20 -V -S 65000"],
        ["ucmatose -b {S} -c 20 -C 50", "ucmatose -s {S} -c 20 -C 50"],
        ["udaddy -b {S} -c 10", "udaddy -s {S} -c 10"],
        ["rdma_server -s {S}", "rdma_client -s {S}"],
    ] {
        connects(&router, [("a", server), ("b", client)], 7);
    }
    connects(&router, [("a", "rping -s -a {S} -C 20 -V"), ("a", "rping -c -a {S} -C 20 -V")], 7);
    wait_until_empty(&router);
}

#[test]
fn who_waits_for_a_connection_learns_that_the_router_has_ended() {
    let end_router = || {
        let mut router = start(8);
        let mut server = Running::start(&mut of_rdma_cm(&router, "a", "rping -s -a {S} -v", 8)?);
        rdmacm::wait_until_it_accepts(&mut server, &ip(8));
        router.kill();
        Some(server.finish(Duration::from_secs(60)))
    };
    for _ in 0..5 {
        let Some(done) = end_router() else { skip!("no rping (rdmacm-utils)") };
        // On a busy machine it may not have bound its address yet, or not listened.
        let early = |l: &str| l.starts_with("rdma_bind_addr:") || l.contains("rdma_listen:");
        if !done.output.lines().any(early) {
            assert!(done.output.contains("device removal"), "{}", done.output);
            return;
        }
    }
    panic!("it never listened");
}

#[test]
fn programs_of_each_part_of_verbs_run() {
    or_skip!(can_compile());
    let (router, dir) = (start(3), scratch("router-remote-programs"));
    for name in ["flush", "xrcd", "batches", "fields", "longer", "careful", "refused_posts"] {
        let program = compile("cc", name, &dir, &["-libverbs"]);
        let done = run(&mut of_tenant(&router, "a", program), 60);
        assert!(done.ok() && done.output.contains("ok"), "{name}: {}", done.output);
    }
    let verbs = compile("cc", "verbs", &dir, &["-libverbs"]);
    let modes = ["router", "gids", "lid", "forks", "limits", "lone_stack"];
    let buffers = ["sealed_buffer", "ended_buffer", "refused_buffers", "rereg"];
    for mode in modes.into_iter().chain(buffers) {
        let done = run(of_tenant(&router, "a", &verbs).arg(mode), 60);
        assert!(done.ok(), "{mode}: {}", done.output);
    }
    // What the program has left ends with it, and so do the contexts that a child opens.
    let contexts = compile("cc", "contexts", &dir, &["-libverbs"]);
    for words in [["5", ""], ["3", "child"], ["3", "fork"]] {
        let done = run(of_tenant(&router, "a", &contexts).args(words), 60);
        assert!(done.ok(), "contexts {words:?}: {}", done.output);
    }
    wait_until_empty(&router);
}

#[test]
fn a_killed_program_leaves_nothing_on_the_device() {
    let router = start(4);
    let Some(([mut server, mut client], port)) = sides(&router, "ib_write_bw -F -D 60 -x 0") else {
        skip!("no ib_write_bw (perftest)")
    };
    for kill in 0..5u64 {
        let mut all = [start_server(&mut server, port), Running::start(&mut client)];
        wait_for(60, "nothing is posted", || {
            router.sessions().iter().any(|s| number(s, "posted").is_some_and(|n| n > 0))
        });
        std::thread::sleep(Duration::from_millis(13 * kill));
        // The one that is left meets an error, or ends for the end of its TCP connection.
        all[kill as usize % 2].kill();
        all[1 - kill as usize % 2].kill();
        all.into_iter().for_each(|side| _ = side.finish(Duration::from_secs(60)));
        wait_until_empty(&router);
    }
    // The next program finds the device as before.
    succeeds(&router, "ib_write_bw -F -n 100 -x 0", &[]);
}

#[test]
fn sleepers_learn_that_the_router_has_ended() {
    or_skip!(can_compile());
    let (mut router, dir) = (start(5), scratch("router-remote-lost"));
    let program = compile("cc", "lost", &dir, &["-libverbs", "-lpthread"]);
    let mut sleeper = Running::start(&mut of_tenant(&router, "a", &program));
    sleeper.wait_for_output("ready");
    router.kill();
    sleeper.wait_for_output("lost");
    router.restart();
    let done = sleeper.finish(Duration::from_secs(60));
    assert!(done.ok() && done.output.contains("ok"), "{}", done.output);
    succeeds(&router, "ibv_rc_pingpong -g 0 -c", &[]);
}

#[test]
fn a_router_that_does_not_answer_keeps_neither_lists_nor_forks_waiting() {
    or_skip!(can_compile());
    let dir = scratch("router-remote-unanswered");
    let program = compile("cc", "unanswered", &dir, &["-libverbs", "-lpthread"]);
    // In switch mode a session is opened in the same place.
    for mut router in [start(9), Router::start(TWO)] {
        let pid = router.running().pid().to_string();
        let done = run(of_tenant(&router, "a", &program).arg(pid), 60);
        assert!(done.ok() && done.output.contains("ok"), "{}", done.output);
    }
}

#[test]
fn queues_that_are_left_on_a_closed_context_end() {
    or_skip!(can_compile());
    let (router, dir) = (start(7), scratch("router-remote-left"));
    let program = compile("cc", "left", &dir, &["-libverbs"]);
    let mut program = Running::start(&mut of_tenant(&router, "a", &program));
    program.wait_for_output("left");
    // The protection domain ends with the device.
    assert_eq!(objects(&router), Some(1));
    program.kill();
    program.finish(Duration::from_secs(60));
    wait_until_empty(&router);
}

#[test]
fn what_only_a_device_of_the_program_has_is_refused_with_words() {
    let router = start(6);
    let Some(tool) = find("ibv_devinfo") else { skip!("no ibv_devinfo (ibverbs-utils)") };
    let refused = |variable: &str, value: &str| {
        let done = run(of_tenant(&router, "a", &tool).env(variable, value), 60);
        assert!(!done.ok() && done.output.contains("router"), "{variable}: {}", done.output);
    };
    refused("GDRC_PCAP", "/dev/null");
    refused("GDRC_FAULTS", "loss");
    refused("GDRC_ENGINES", "2");
    refused("GDRC_KEEPALIVE", "1");
    refused("GDRC_QPS", "20000");
    // Faults of calls are the library's, wherever the device is.
    for (variable, value) in
        [("GDRC_ENGINES", "1"), ("GDRC_FAULTS", "call ibv_post_send errno ENOMEM")]
    {
        let done = run(of_tenant(&router, "a", &tool).env(variable, value), 60);
        assert!(done.ok() && done.output.contains("gdrc0"), "{variable}: {}", done.output);
    }
}

/// Tenants `a` and `b` on one device of the router, and `c` on another.
fn start_with_two_devices(last: u8, other: u8) -> Router {
    Router::start(&(pair_on(&address(last)) + &tenants([("c", &address(other))])))
}

#[test]
fn programs_of_librdmacm_connect_by_two_devices_of_a_router() {
    let router = start_with_two_devices(11, 12);
    for [server, client] in [
        ["rping -s -a {S} -C 200 -V", "rping -c -a {S} -C 200 -V"],
        ["ucmatose -b {S} -c 20 -C 50", "ucmatose -s {S} -c 20 -C 50"],
        ["udaddy -b {S} -c 10", "udaddy -s {S} -c 10"],
        ["rdma_server -s {S}", "rdma_client -s {S}"],
    ] {
        connects(&router, [("a", server), ("c", client)], 11);
        connects(&router, [("c", server), ("b", client)], 12);
    }
    wait_until_empty(&router);
}

/// A side of a connection is killed while both move data, and the other one learns of it as from a
/// NIC: by its connection's end, or by requests that fail.
#[test]
fn who_talks_with_a_killed_program_of_librdmacm_is_disconnected() {
    for (router, far, last) in [(start(13), "b", 13), (start_with_two_devices(14, 15), "c", 14)] {
        for kill in 0..6u64 {
            let side = |name, words| of_rdma_cm(&router, name, words, last);
            let (Some(mut server), Some(mut client)) = (
                side("a", "rping -s -a {S} -v -C 100000000"),
                side(far, "rping -c -a {S} -v -C 100000000"),
            ) else {
                skip!("no rping (rdmacm-utils)")
            };
            let mut server = Running::start(&mut server);
            rdmacm::wait_until_it_listens(&mut server, &ip(last));
            let mut all = [server, Running::start(&mut client)];
            all[1].wait_for_output("ping data");
            std::thread::sleep(Duration::from_millis(13 * kill));
            all[kill as usize % 2].kill();
            let [first, second] = all.map(|side| side.finish(Duration::from_secs(60)).output);
            let left = if kill % 2 == 0 { second } else { first };
            let learns = ["DISCONNECT EVENT", "cq completion failed", "status 5"];
            assert!(learns.iter().any(|words| left.contains(words)), "{kill}: {left}");
            wait_until_empty(&router);
        }
        connects(
            &router,
            [("a", "rping -s -a {S} -C 20 -V"), (far, "rping -c -a {S} -C 20 -V")],
            last,
        );
    }
}

/// A side is killed at any moment from its start on, while it resolves, listens or connects.
#[test]
fn a_program_of_librdmacm_that_is_killed_early_leaves_nothing() {
    let router = start_with_two_devices(16, 17);
    for kill in 0..16u64 {
        let far = ["b", "c"][kill as usize / 8];
        let side = |name, words| of_rdma_cm(&router, name, words, 16);
        let (Some(mut server), Some(mut client)) =
            (side("a", "rping -s -a {S} -v -C 5000"), side(far, "rping -c -a {S} -v -C 5000"))
        else {
            skip!("no rping (rdmacm-utils)")
        };
        let mut server = Running::start(&mut server);
        if kill % 2 == 0 {
            rdmacm::wait_until_it_listens(&mut server, &ip(16));
        }
        let mut all = [server, Running::start(&mut client)];
        std::thread::sleep(Duration::from_millis(7 * (kill % 8)));
        // A server that nobody connects to waits for ever.
        all[kill as usize / 2 % 2].kill();
        all[1 - kill as usize / 2 % 2].kill();
        all.into_iter().for_each(|side| _ = side.finish(Duration::from_secs(60)));
        wait_until_empty(&router);
    }
    connects(&router, [("a", "rping -s -a {S} -C 20 -V"), ("c", "rping -c -a {S} -C 20 -V")], 16);
}

/// The addresses of two hosts, of which each has a container without any network.
const HOSTS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// An address of the second host that its router has not.
const PLAIN: &str = "192.0.2.3";

/// Two hosts, linked by an Ethernet, and a router on each, whose device has the host's address.
fn two_hosts() -> Result<(Lab, [Router; 2]), String> {
    let lab = Lab::new(4)?;
    let with = HOSTS.map(|host| format!("{host}/24"));
    lab.link((0, "w0", &[&with[0]]), (1, "w1", &[&with[1], &format!("{PLAIN}/24")]))?;
    let routers = [0, 1].map(|host| {
        let device = format!("soft:{}", HOSTS[host]);
        let policy = tenants([("t", &device)]);
        Router::start_on(&lab, host, &policy, &[])
    });
    Ok((lab, routers))
}

#[test]
fn programs_of_librdmacm_connect_across_hosts() {
    let (lab, routers) = match two_hosts() {
        Ok(hosts) => hosts,
        Err(why) => skip!("no hosts: {why}"),
    };
    let launched = |place: usize, words: &str| {
        let words = words.replace("{S}", HOSTS[0]);
        let mut words = words.split(' ');
        let tool = find(words.next()?)?;
        let mut c = lab.command(place, &launcher());
        without_settings(&mut c);
        c.arg(tool).args(words).env("GDRC_VERBOSE", "1");
        Some(c)
    };
    for [server, client] in [
        ["rping -s -a {S} -C 100 -V", "rping -c -a {S} -C 100 -V"],
        ["ucmatose -b {S} -c 10 -C 20", "ucmatose -s {S} -c 10 -C 20"],
        ["udaddy -b {S} -c 5", "udaddy -s {S} -c 5"],
    ] {
        // The other end is a tenant of the other host's router, or a program without a router, as
        // any RoCEv2 endpoint is.
        for far in [3, 1] {
            let (Some(mut first), Some(mut second)) = (launched(2, server), launched(far, client))
            else {
                println!("{server}: not installed");
                continue;
            };
            match far {
                3 => second.env("GDRC_ROUTER", routers[1].socket("t")),
                _ => second.env("GDRC_ROUTER", "off").env("GDRC_ADDRESS", PLAIN),
            };
            let mut first = Running::start(first.env("GDRC_ROUTER", routers[0].socket("t")));
            let host = lab.first_process(0);
            rdmacm::wait_until_it_listens_in(host, &mut first, HOSTS[0]);
            let [b, a] = [run(&mut second, 60), first.finish(Duration::from_secs(60))];
            let tool = server.split(' ').next().unwrap_or_default();
            assert!(b.ok() && has_served(tool, &a), "{client}: {}\n{}", a.output, b.output);
        }
    }
    routers.iter().for_each(wait_until_empty);
}
