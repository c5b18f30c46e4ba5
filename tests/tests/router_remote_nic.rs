//! Remote mode over a NIC. The drop-in's libibverbs is the NIC: what the router asks of it goes by
//! the module of the verbs device, as with any other.

use gdrcore_core::device::Device;
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_tests::dropin::{both, command, free_port};
use gdrcore_tests::library;
use gdrcore_tests::patience::{factor, wait_for};
use gdrcore_tests::rdmacm;
use gdrcore_tests::remote::{
    can_compile, connects, kill_tenants, objects, open, pair_on, wait_until_empty, Side,
};
use gdrcore_tests::router::Router;
use gdrcore_tests::rxe::vm::{self, Release, Vm};
use gdrcore_tests::tools::{compile, find, loopback, run, scratch};
use gdrcore_tests::{or_skip, skip};
use std::path::Path;
use std::process::Command;

const SUITE: &str = env!("CARGO_BIN_EXE_suite");
/// The one device of the drop-in.
const NIC: &str = "verbs:gdrc0";

/// Two tenants on a NIC of the router, whose address is the test's own. An engine for each thread
/// that uses it would begin behind the router's filter.
///
/// # Errors
/// What is missing.
fn start(last: u32, faults: &str, has_cm: bool) -> Result<Router, &'static str> {
    let built = library::build();
    if !built.join("libgdrcore_verbs.so").exists() {
        return Err("libgdrcore_verbs.so is not built (make verbs)");
    }
    let libraries = format!("{}:{}", library::dropin().display(), built.display());
    // The drop-in's own /dev/infiniband/rdma_cm.
    let preload = ["libibverbs.so.1", "libgdrcore_preload.so"];
    let preload = preload.map(|name| library::dropin().join(name).display().to_string()).join(":");
    let environment = [
        ("LD_LIBRARY_PATH", libraries.as_str()),
        ("LD_PRELOAD", if has_cm { &preload } else { "" }),
        ("GDRC_ADDRESS", &loopback(161, last)),
        ("GDRC_VERBS_ON_DROPIN", "1"),
        ("GDRC_ENGINES", "1"),
        ("GDRC_FAULTS", faults),
    ];
    // Landlock takes no folder that the preloaded library makes up; a `netns` leaves it out.
    let netns =
        "[router]\nlisten = \"DIR/any\"\n[tenant.c]\nmatch = { netns = \"/proc/1/ns/net\" }\n";
    let policy = format!("{}{}", if has_cm { netns } else { "" }, pair_on(NIC));
    Ok(Router::start_in(&policy, &[], &environment))
}

/// A router with a NIC, or the test is skipped.
macro_rules! router {
    ($last:expr, $faults:expr) => {
        router!($last, $faults, true)
    };
    ($last:expr, $faults:expr, $has_cm:expr) => {
        match start($last, $faults, $has_cm) {
            Ok(router) => router,
            Err(why) => skip!("{why}"),
        }
    };
}

#[test]
fn the_device_suite_passes_on_a_nic_of_a_router() {
    let router = router!(1, "");
    let [a, b] = ["a", "b"].map(|name| router.device(name));
    for peer in [&a, &b] {
        let words = ["--device", &a, "--peer", peer, "--nic", "yes"];
        let done = run(Command::new(SUITE).args(words), 600 * u64::from(factor()));
        assert!(done.ok(), "{}", done.output);
    }
    wait_until_empty(&router);
}

#[test]
fn unmodified_programs_run_on_a_nic_of_a_router() {
    let router = router!(2, "");
    for words in [
        "ibv_rc_pingpong -g 0 -c -e",
        "ibv_uc_pingpong -g 0 -c",
        "ibv_ud_pingpong -g 0 -c -n 200",
        "ibv_srq_pingpong -g 0 -c",
        "ibv_xsrq_pingpong -g 0 -c 1",
        "ib_write_bw -F -n 200 -x 0",
        "ib_read_bw -F -n 200 -x 0",
        "ib_atomic_bw -F -n 200 -x 0",
    ] {
        let mut parts = words.split(' ');
        let Some(tool) = parts.next().and_then(find) else {
            println!("{words}: not installed");
            continue;
        };
        let (port, parts) = (free_port(), parts.collect::<Vec<_>>());
        let [mut server, mut client] = ["a", "b"].map(|name| {
            let mut c = command(&tool, "");
            c.env_remove("GDRC_ADDRESS").env("GDRC_ROUTER", router.socket(name));
            c.args(&parts).args(["-p", &port.to_string()]);
            c
        });
        let [of_server, of_client] = both(&mut server, client.arg("127.0.0.1"), port);
        let said = format!("{words}: {}\n{}", of_server.output, of_client.output);
        assert!(of_server.ok() && of_client.ok(), "{said}");
    }
    wait_until_empty(&router);
}

#[test]
fn regions_of_buffers_and_regions_anew_are_the_nics() {
    or_skip!(can_compile());
    let router = router!(7, "");
    let dir = scratch("router-remote-nic-buffer");
    let program = compile("cc", "verbs", &dir, &["-libverbs"]);
    for mode in ["sealed_buffer", "ended_buffer", "rereg"] {
        let mut tenant = command(&program, "");
        tenant.env_remove("GDRC_ADDRESS").env("GDRC_ROUTER", router.socket("a"));
        let done = run(tenant.arg(mode), 60);
        assert!(done.ok(), "{mode}: {done}");
    }
    wait_until_empty(&router);
}

#[test]
fn a_killed_tenant_leaves_nothing_on_the_nic() {
    kill_tenants(&router!(3, ""), SUITE);
}

#[test]
fn a_host_without_a_connection_manager_says_so_to_its_tenants() {
    let router = router!(4, "", false);
    let Some(rping) = find("rping") else { skip!("no rping (rdmacm-utils)") };
    let mut c = rdmacm::command(None, &[], rping);
    c.args(["-s", "-a", &loopback(161, 4), "-C", "1"]);
    c.env("GDRC_ROUTER", router.socket("a")).env("GDRC_VERBOSE", "1");
    let done = run(&mut c, 60);
    assert!(done.output.contains("no connection manager"), "{}", done.output);
}

#[test]
fn programs_of_librdmacm_connect_by_the_manager_of_the_host() {
    let router = router!(6, "");
    let (nic, plain) = (loopback(161, 6), loopback(161, 7));
    let (a, b, outside) = (Side::Tenant("a"), Side::Tenant("b"), Side::Plain(&plain));
    let connects = |sides: [_; 2], (tool, port): (&str, u16), at: &str| {
        let (server, client) = tool.split_once('|').expect("two sides");
        connects(&router, [(sides[0], server), (sides[1], client)], at, Some(port));
    };
    let rping = ("rping -s -a {S} -C 100 -V|rping -c -a {S} -C 100 -V", 7174);
    for program in [
        rping,
        ("rping -s -a {S} -C 10 -V -S 65000|rping -c -a {S} -C 10 -V -S 65000", 7174),
        ("ucmatose -b {S} -c 20 -C 50|ucmatose -s {S} -c 20 -C 50", 7471),
        ("udaddy -b {S} -c 10|udaddy -s {S} -c 10", 7174),
        ("rdma_server -s {S}|rdma_client -s {S}", 7471),
    ] {
        connects([a, b], program, &nic);
    }
    connects([a, a], rping, &nic);
    connects([a, outside], rping, &nic);
    connects([outside, b], rping, &plain);
    wait_until_empty(&router);
}

#[test]
fn the_end_of_the_nic_ends_its_sessions_with_the_cause() {
    let mut router = router!(5, "event DEVICE_FATAL at 4s");
    let device = open(&router, "a");
    let (_pd, (_cq, _)) = (device.pd_alloc(), device.cq_create(16).expect("a CQ"));
    wait_for(60, "the session stays", || router.sessions().is_empty());
    let said = "the router's device 'verbs:gdrc0' is gone";
    router.running().wait_for_output(said);
    assert!(RemoteDevice::open(&router.device("b")).is_err(), "it serves");
    // What was on it went with it.
    assert_eq!(objects(&router), Some(0));
}

/// Runs in the machine with rxe: a router on both NICs, and programs of tenants on the drop-in,
/// which opens no device node. The suite has tenants of one NIC: between two, a datagram may
/// overtake the receive that its peer has posted.
const ON_RXE: &str = r#"
cd /share && mkdir -p /tmp/r && cat >/tmp/r/policy.toml <<END
[tenant.a]
listen = "/tmp/r/a"
device = "verbs:rxe0"
[tenant.b]
listen = "/tmp/r/b"
device = "verbs:rxe0"
[tenant.c]
listen = "/tmp/r/c"
device = "verbs:rxe1"
[tenant.soft]
listen = "/tmp/r/soft"
device = "soft:127.0.0.1:4899"
END
bin/gdrcore-routerd --check /tmp/r/policy.toml || exit 1
ulimit -l unlimited
bin/gdrcore-routerd -v --admin /tmp/r/admin /tmp/r/policy.toml >/tmp/r/log 2>&1 &
while ! grep -q ready /tmp/r/log; do kill -0 $! || { cat /tmp/r/log; exit 1; }; sleep 0.1; done
cat /tmp/r/log
./suite --device router:/tmp/r/a --peer router:/tmp/r/b --nic yes 2>&1
chmod 000 /dev/infiniband/uverbs* /dev/infiniband/rdma_cm
if [ -e verbs ]; then
    echo "begins rereg"
    GDRC_ROUTER=/tmp/r/a bin/gdrcore-run ./verbs rereg && echo "ran rereg"
    # Dma-bufs of a driver: rxe takes none, soft devices do.
    modprobe vgem
    echo "begins dma_buf of a router"
    GDRC_ROUTER=/tmp/r/soft bin/gdrcore-run ./verbs dma_buf && echo "ran dma_buf of a router"
    echo "begins dma_buf"
    bin/gdrcore-run --address 127.0.0.1:4898 ./verbs dma_buf && echo "ran dma_buf"
    GDRC_ROUTER=/tmp/r/a bin/gdrcore-run ./verbs sealed_buffer 2>&1 | grep "errno 95" ||
        echo "begins a buffer on rxe"
fi
port=20000
limit=$((100 * ${GDRC_TEST_PATIENCE:-1}))
# run SERVER READY WORDS WORDS: a server of a tenant, who listens in what READY prints, and a client
# of tenant a. rping's server ends by its client's end, with any exit status.
run() {
    port=$((port + 1)); echo "begins $1 $4"
    GDRC_ROUTER=/tmp/r/$1 timeout $limit bin/gdrcore-run ${3//PORT/$port} >/tmp/r/server 2>&1 &
    pid=$!
    until $2 | grep -q ":$port \|:7174 "; do kill -0 $pid || break; sleep 0.1; done
    GDRC_ROUTER=/tmp/r/a timeout $limit bin/gdrcore-run ${4//PORT/$port} >/tmp/r/client 2>&1
    rc=$?; wait $pid; rc="$rc $?"
    grep -q "DISCONNECT EVENT" /tmp/r/server && rc="${rc% *} 0"
    [ "$rc" = "0 0" ] && echo "ran $1 $4" && return
    echo "FAILED $1 $4: $rc"; cat /tmp/r/server /tmp/r/client
}
by_tcp() { run $1 "ss -ltn" "$2 -p PORT" "$2 -p PORT 127.0.0.1"; }
by_cm() { run $1 "rdma resource show cm_id" "$2" "$3"; }
for server in b c; do
    at=10.77.0.1; [ $server = c ] && at=10.77.0.2
    by_tcp $server "ibv_rc_pingpong -g 0 -c -n 100 -e"
    by_tcp $server "ibv_ud_pingpong -g 0 -c -n 100"
    by_tcp $server "ib_write_bw -F -x 0 -n 100 -q 4"
    by_cm $server "rping -s -a $at -p PORT -C 20 -V -v" "rping -c -a $at -p PORT -C 20 -V"
    by_cm $server "udaddy -b $at -c 5" "udaddy -s $at -c 5"
done
for words in "ibv_uc_pingpong -g 0 -c -n 100" "ibv_srq_pingpong -g 0 -c -n 100" \
    "ib_send_bw -F -x 0 -n 100" "ib_send_lat -F -x 0 -n 100 -e" \
    "ib_send_bw -F -x 0 -n 100 -c UD -s 1024" "ib_write_lat -F -x 0 -n 100" \
    "ib_read_bw -F -x 0 -n 100" "ib_atomic_bw -F -x 0 -n 100"; do
    by_tcp c "$words"
done
by_cm c "ucmatose -b $at -p PORT -c 5 -C 20" "ucmatose -s $at -p PORT -c 5 -C 20"
by_cm c "rdma_server -s $at -p PORT" "rdma_client -s $at -p PORT"
by_cm c "ib_write_bw -R -F -n 100 -p PORT" "ib_write_bw -R -F -n 100 -p PORT $at"
export LD_LIBRARY_PATH=/share/ucx UCX_MODULE_DIR=/share/ucx/ucx
export UCX_NET_DEVICES=gdrc0:1 UCX_TLS=rc_v,self
[ -e ucx ] && by_tcp c "ucx/ucx_perftest -t tag_bw -f -s 8192 -n 20 -w 5"
unset LD_LIBRARY_PATH
for n in 1 2 3 4 5 6 7 8 9; do
    bin/gdrcore-routerctl --socket /tmp/r/admin status | grep -o '"objects":[0-9]*' >/tmp/r/objects
    grep -qv ':0$' /tmp/r/objects || break
    sleep 1
done
cat /tmp/r/objects
kill -0 %1 && echo "router lives" || cat /tmp/r/log
"#;

/// Copies UCX and its libraries for the machine, if it is installed here.
fn copy_ucx(share: &Path) {
    let Some(tool) = find("ucx_perftest") else { return println!("ucx_perftest: not installed") };
    // The guest has libc's libraries, and verbs are the drop-in's.
    let script = "mkdir $2/ucx && cp -L $1 $2/ucx && cd $2/ucx && ldd $1 | awk '{ print $3 }' |
        grep -v -e libc.so -e libm.so -e '^$' >list &&
        cp -L $(cat list) . && cp -rL $(dirname $(grep ucp list))/ucx .";
    let done = run(Command::new("sh").args(["-c", script, "sh"]).arg(tool).arg(share), 60);
    assert!(done.ok(), "{}", done.output);
}

#[test]
fn tenants_without_a_device_node_have_rxe_of_the_kernel() {
    let built = library::build();
    if !built.join("libgdrcore_verbs.so").exists() {
        skip!("libgdrcore_verbs.so is not built (make verbs)");
    }
    if let Err(why) = vm::prepare(Release::Host) {
        skip!("no machine with rxe: {why}");
    }
    let share = scratch("router-remote-nic");
    let copy = |from: &Path, to: &str| {
        let done = run(Command::new("cp").arg("-rL").arg(from).arg(share.join(to)), 60);
        assert!(done.ok(), "{}", done.output);
    };
    std::fs::create_dir(share.join("bin")).expect("a folder");
    for program in ["gdrcore-routerd", "gdrcore-routerctl"] {
        copy(&library::router().join(program), &format!("bin/{program}"));
    }
    copy(&built.join("libgdrcore_verbs.so"), "bin/libgdrcore_verbs.so");
    copy(&library::dropin(), "dropin");
    copy(&rdmacm::launcher(), "bin/gdrcore-run");
    copy_ucx(&share);
    copy(Path::new(SUITE), "suite");
    match can_compile() {
        Ok(()) => _ = compile("cc", "verbs", &share, &["-libverbs"]),
        Err(why) => println!("{why}"),
    }
    std::fs::write(share.join("on_rxe.sh"), ON_RXE).expect("a script");
    let vm = Vm::start(Release::Host, "pair", &share).unwrap_or_else(|e| panic!("{e}"));
    let said = vm.run("bash /share/on_rxe.sh 2>&1", 800).unwrap_or_else(|e| panic!("{e}"));
    println!("{said}");
    assert!(said.contains("is confined: seccomp"), "{said}");
    assert!(said.contains(" 0 failed"), "{said}");
    let (begun, ran) = (said.matches("\nbegins ").count(), said.matches("\nran ").count());
    assert!(ran == begun && ran >= 21, "{ran} of {begun}: {said}");
    assert_eq!(said.matches("\"objects\":0\n").count(), 3, "{said}");
    assert!(said.contains("router lives"), "{said}");
}
