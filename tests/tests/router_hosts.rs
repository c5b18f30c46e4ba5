//! Containers by way of a router: namespaces of their own, no capability, no device, and of
//! different users. Their link carries only what programs tell each other by TCP.

use gdrcore_tests::dropin;
use gdrcore_tests::lab::Lab;
use gdrcore_tests::patience;
use gdrcore_tests::rdmacm;
use gdrcore_tests::router::{contained, Router};
use gdrcore_tests::tools::{find, installed, run, Running};
use gdrcore_tests::{library, or_skip, router_round, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Two containers and their TCP.
fn two(lab: Result<Lab, String>) -> Result<Lab, String> {
    let lab = lab?;
    lab.link((0, "a0", &["10.77.0.1/24"]), (1, "b0", &["10.77.0.2/24"]))?;
    Ok(lab)
}

macro_rules! lab {
    ($lab:expr) => {
        or_skip!(two($lab))
    };
}

/// A tool between two containers, to its end.
fn tool(lab: &Lab, words: &str, routers: [Option<PathBuf>; 2]) {
    let began = std::time::Instant::now();
    let (name, arguments) = words.split_once(' ').unwrap_or((words, ""));
    let Some(program) = find(name) else { return println!("{name} is not installed") };
    let port = dropin::free_port();
    let side = |host: usize| {
        let mut c = contained(lab, host, &program, routers[host].as_deref());
        c.args(arguments.split_whitespace()).args(["-p", &port.to_string()]);
        c
    };
    let mut server = Running::start(&mut side(0));
    // Its own network's table of sockets shows when it listens.
    let cat = find("cat").expect("cat");
    let wanted = format!(":{port:04X} ");
    patience::wait_for(60, "the server does not listen", || {
        let table = run(lab.command(0, &cat).args(["/proc/net/tcp", "/proc/net/tcp6"]), 20).output;
        table.lines().any(|l| l.contains(&wanted) && l.contains(" 0A ")) || !server.still_runs()
    });
    let client = Running::start(side(1).arg("10.77.0.1")).finish(LIMIT);
    let server = server.finish(LIMIT);
    println!("{words}: {:?}", began.elapsed());
    assert!(server.ok() && client.ok(), "{words}\nserver {server}\nclient {client}");
}

/// Programs as Debian ships them; those with -c look at the bytes.
const TOOLS: &[&str] = &[
    "ibv_rc_pingpong -g 0 -c",
    "ibv_rc_pingpong -g 1 -c -e",
    "ibv_uc_pingpong -g 0 -c",
    "ibv_srq_pingpong -g 0 -c",
    "ib_send_bw -F -n 500 -x 0",
    "ib_send_lat -F -n 500 -x 0",
    "ib_write_bw -F -n 500 -x 0",
    "ib_write_lat -F -n 500 -x 0",
    "ib_read_bw -F -n 500 -x 0",
    "ib_read_lat -F -n 500 -x 0",
    "ib_atomic_bw -F -n 500 -x 0",
    "ib_send_bw -F -n 500 -x 0 -c UC",
    "ib_write_bw -F -n 500 -x 0 -q 4",
    "ibv_ud_pingpong -g 0 -c",
    // No more than a ring holds: what a receiver does not keep up with is dropped.
    "ib_send_bw -F -n 200 -s 1024 -x 0 -c UD",
    "ib_send_lat -F -n 50 -x 0 -c UD",
];

/// Two sides of a program of librdmacm; `{S}` is the server's address.
const CM_TOOLS: &[(&str, &str)] = &[
    ("rping -s -C 10 -V -S 4000", "rping -c -a {S} -C 10 -V -S 4000"),
    ("ucmatose", "ucmatose -s {S}"),
    ("udaddy", "udaddy -s {S}"),
    ("ib_send_bw -R -F -n 500", "ib_send_bw -R -F -n 500 {S}"),
    ("ib_write_lat -R -F -n 50", "ib_write_lat -R -F -n 50 {S}"),
    ("ib_send_lat -R -c UD -F -n 50", "ib_send_lat -R -c UD -F -n 50 {S}"),
];

/// Between containers that have no interface but their own loopback's.
#[test]
fn rdma_cm_needs_no_network_at_all() {
    let lab = or_skip!(Lab::of_users(&[30001, 30002]));
    let policy = "[router]\nlisten = \"DIR/any\"\n[tenant.one]\nmatch = { uid = 30001 }\nvip = \
                  \"10.88.0.1\"\n[tenant.two]\nmatch = { uid = 30002 }\nvip = \"10.88.0.2\"\n";
    for options in [&[][..], &["--isolated"]] {
        let router = Router::start_with(policy, options);
        for (server, client) in CM_TOOLS {
            cm_tool(&lab, &router, [server, client], "10.88.0.1");
        }
    }
}

fn cm_tool(lab: &Lab, router: &Router, sides: [&str; 2], address: &str) {
    let began = std::time::Instant::now();
    let socket = router.socket("any");
    let side = |host: usize| {
        let words = sides[host].replace("{S}", address);
        let mut words = words.split_whitespace().map(str::to_string);
        let program = find(&words.next().expect("a program"))?;
        let mut c = contained(lab, host, &rdmacm::launcher(), Some(&socket));
        c.arg(program).args(words);
        Some(c)
    };
    let (Some(mut server), Some(mut client)) = (side(0), side(1)) else {
        return println!("{} is not installed", sides[0]);
    };
    let mut server = Running::start(&mut server);
    patience::wait_for(60, "the server does not listen", || {
        let listens = |s: &String| s.contains("\"listens\":1");
        router.sessions().iter().any(listens) || !server.still_runs()
    });
    let client = Running::start(&mut client).finish(LIMIT);
    let server = server.finish(LIMIT);
    println!("{sides:?}: {:?}", began.elapsed());
    let tool = sides[0].split(' ').next().unwrap_or_default();
    assert!(
        rdmacm::has_served(tool, &server) && client.ok(),
        "{sides:?}\nserver {server}\nclient {client}\n{:?}",
        router.sessions()
    );
}

#[test]
fn containers_of_two_users_in_namespaces_of_their_own() {
    let lab = lab!(Lab::of_users(&[30001, 30002]));
    let router = Router::start(
        "[router]\nlisten = \"DIR/any\"\n[tenant.one]\nmatch = \
         { uid = 30001 }\n[tenant.two]\nmatch = { uid = 30002 }\n",
    );
    let namespaces = |host: usize| {
        let kinds = ["user", "net", "mnt", "pid", "ipc"].map(|k| format!("/proc/self/ns/{k}"));
        let done = run(lab.command(host, &find("readlink").expect("readlink")).args(kinds), 20);
        assert!(done.ok(), "{done}");
        done.output.lines().map(str::to_string).collect::<Vec<_>>()
    };
    let both = [namespaces(0), namespaces(1)];
    assert!(both[0].len() == 5 && both[0].iter().zip(&both[1]).all(|(a, b)| a != b), "{both:?}");
    let socket = router.socket("any");
    for words in TOOLS {
        tool(&lab, words, [Some(socket.clone()), Some(socket.clone())]);
    }
    // The C examples: two programs in one container, the third in the other, and every byte looked
    // at.
    let dir = router.dir().join("files");
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777))
        .expect("a folder for all");
    let bin = library::examples();
    router_round::run(&router_round::Round {
        command: &|which, program| lab.command(which / 2, &bin.join(program)),
        router: &router.device("any"),
        peer: &router.device("any"),
        address: "10.77.0.1",
        bytes: 300_001,
        dir: &dir,
    });
    patience::wait_for(60, "sessions stay", || router.sessions().is_empty());
}

#[test]
fn containers_are_told_apart_by_their_networks_and_find_the_router_by_a_mount() {
    let lab = lab!(Lab::new(2));
    let router = Router::start(&format!(
        "[router]\nlisten = \"DIR/any\"\n[tenant.a]\nmatch = {{ netns = \"{}\" }}\n\
         [tenant.b]\nlisten = \"DIR/t/b/tenant.gdrc\"\nmatch = {{ netns = \"{}\" }}\n",
        lab.netns(0),
        lab.netns(1)
    ));
    // Nothing is set in the second: its folder is where a mount of all images puts it.
    let folder = router.dir().join("t/b");
    let mounted = lab.arrange(
        1,
        &format!(
            "mount -t tmpfs none /run; mkdir /run/gdrcore; mount --bind -o ro {} /run/gdrcore",
            folder.display()
        ),
    );
    if let Err(why) = mounted {
        skip!("no mounts in namespaces: {why}");
    }
    for words in ["ibv_rc_pingpong -g 0 -c", "ib_send_bw -F -n 500 -x 0"] {
        tool(&lab, words, [Some(router.socket("any")), None]);
    }
    // Each is who the kernel says, whatever socket it finds.
    let pingpong = or_skip!(installed("ibv_rc_pingpong"));
    let done = run(&mut contained(&lab, 0, &pingpong, Some(&folder.join("tenant.gdrc"))), 60);
    assert!(!done.ok() && done.output.contains("no tenant of the policy is pid"), "{done}");
    let done = run(&mut contained(&lab, 0, &pingpong, Some(Path::new("/nowhere"))), 60);
    assert!(
        !done.ok() && done.output.contains("no device: router '/nowhere': there is no such socket"),
        "{done}"
    );
}
