//! Right programs under `gdrcore-run --strict`, `--weak` and `--fault`: all of them do what they
//! should, and each report of `--strict` is one that docs/using/STRICT.md tells of.

use gdrcore_tests::dropin::{both, free_port};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::rdmacm::{command, has_served, launcher, wait_until_it_listens, Pair};
use gdrcore_tests::source::root;
use gdrcore_tests::strict::reports;
use gdrcore_tests::tools::{compile, find, installed, loopback, run, scratch, Done, Running};
use gdrcore_tests::{or_skip, skip};
use std::process::Command;
use std::time::Duration;

/// What a network does at times. A program with RC, or with a reliability of its own, survives it.
const FAULTS: &str = "loss rate 1%; duplicate rate 1%; reorder 3 rate 1%; corrupt rate 1%; \
                      delay 500us rate 1%";
/// What `--weak` does and what FAULTS do, for programs that wait for each datagram for ever.
const WEAK_BUT_RELIABLE: &str = "scatter rate 50%; lag rate 50%; swap rate 50%; few rate 50%";
const SLOW: &str = "delay 500us rate 5%; ecn every 5; slow 20us";

/// The options of each way to run a program. `loses`: it may lose datagrams.
fn ways(loses: bool, seed: u32) -> [Vec<String>; 3] {
    let owned = |words: &[&str]| words.iter().map(|w| w.to_string()).collect();
    let seed = seed.to_string();
    let fault = |rules: &str| owned(&["--fault", rules, "--seed", &seed]);
    [
        owned(&["--strict=exit=66"]),
        if loses { owned(&["--weak", "--seed", &seed]) } else { fault(WEAK_BUT_RELIABLE) },
        fault(if loses { FAULTS } else { SLOW }),
    ]
}

/// A rule of which a program has reports, and a part of the name of the code that is at fault.
type Told = (&'static str, &'static str);

/// Checks the reports of a process, and that its exit status is of them alone.
#[track_caller]
fn right(what: &str, done: &Done, told: &[Told]) {
    let all = reports(&done.output);
    for (rule, report) in &all {
        let is_told = |(name, code): &Told| rule == name && report.contains(code);
        assert!(told.iter().any(is_told), "{what}: {done}");
    }
    let code = if all.is_empty() { 0 } else { 66 };
    assert_eq!(done.code(), Some(code), "{what}: {done}");
}

/// Runs both sides of a tool in each way. In their lines `{S}` stands for the server's address,
/// `{P}` for a free TCP port; without that port they meet by librdmacm.
struct Tool<'a> {
    server: &'a str,
    client: &'a str,
    told: &'a [Told],
    loses: bool,
    /// The server runs without end.
    endless: bool,
}

impl Tool<'_> {
    const fn new<'a>(server: &'a str, client: &'a str, told: &'a [Told]) -> Tool<'a> {
        Tool { server, client, told, loses: true, endless: false }
    }

    /// It runs on the addresses of number `n`, with further variables of its environment.
    fn runs(&self, n: u32, env: &[(&str, &str)]) {
        let dir = scratch(&format!("right-{n}"));
        for options in ways(self.loses, n) {
            let words: Vec<&str> = options.iter().map(String::as_str).collect();
            let what = format!("{} {options:?}", self.client);
            let done = match self.client.contains("{P}") {
                true => self.by_port(n, &words, env),
                false => {
                    let plain = Pair::new(self.server, self.client);
                    Pair { options: &words, endless: self.endless, ..plain }.run(n, &dir)
                }
            };
            let [server, client] = or_skip!(done);
            let tool = self.server.split(' ').next().expect("a tool");
            let has_ended = has_served(tool, &server) && reports(&server.output).is_empty();
            if !(self.endless || has_ended) {
                right(&what, &server, self.told);
            }
            right(&what, &client, self.told);
        }
    }

    fn by_port(&self, n: u32, options: &[&str], env: &[(&str, &str)]) -> Result<[Done; 2], String> {
        let port = free_port();
        let side = |line: &str, last: u32| {
            let line = line.replace("{S}", &loopback(n, 1)).replace("{P}", &port.to_string());
            let mut words = line.split_whitespace();
            let tool = installed(words.next().expect("a tool"))?;
            let mut c = command(Some(&loopback(n, last)), options, tool);
            c.args(words).envs(env.iter().copied());
            Ok::<_, String>(c)
        };
        Ok(both(&mut side(self.server, 1)?, &mut side(self.client, 2)?, port))
    }
}

/// A line of a tool whose client has the server's address behind it.
fn meets(n: u32, loses: bool, line: &str, told: &[Told], env: &[(&str, &str)]) {
    let client = format!("{line} {{S}}");
    Tool { loses, ..Tool::new(line, &client, told) }.runs(n, env);
}

/// They receive into the buffer from which they send.
const OF_PING_PONGS: &[Told] = &[("buffers-overlap", "pingpong")];
const OF_PERFTEST: &[Told] = &[("buffers-overlap", "ib_"), ("object-left", "ib_")];

/// One of each kind of tools; all of them below.
#[test]
fn a_ping_pong_perftest_and_rping() {
    meets(235, true, "ibv_rc_pingpong -g 0 -c -n 100 -e -p {P}", OF_PING_PONGS, &[]);
    meets(235, true, "ib_write_bw -n 100 -F -q 2 -p {P}", OF_PERFTEST, &[]);
    Tool::new("rping -s -a {S} -C 5 -V", "rping -c -a {S} -C 5 -V", &[]).runs(235, &[]);
}

#[test]
fn thorough_ping_pongs() {
    let told = OF_PING_PONGS;
    for line in [
        "ibv_rc_pingpong -g 0 -c -n 100 -s 20000 -p {P}",
        "ibv_rc_pingpong -g 0 -c -n 100 -e -p {P}",
        "ibv_srq_pingpong -g 0 -c -n 50 -q 4 -p {P}",
        "ibv_srq_pingpong -g 0 -c -n 50 -q 4 -e -p {P}",
        "ibv_xsrq_pingpong -g 0 -n 50 -p {P}",
    ] {
        meets(227, true, line, told, &[]);
    }
    for line in ["ibv_uc_pingpong -g 0 -n 100 -p {P}", "ibv_ud_pingpong -g 0 -n 100 -p {P}"] {
        meets(227, false, line, told, &[]);
    }
}

/// All programs of perftest but those of raw Ethernet.
const PERFTEST: &[&str] = &[
    "ib_send_lat -n 50 -F -p {P}",
    "ib_send_lat -n 50 -F -e -p {P}",
    "ib_send_lat -n 50 -F -c UC -p {P}",
    "ib_send_bw -n 300 -F -p {P}",
    "ib_send_bw -n 300 -F -r 32 --use-srq -p {P}",
    "ib_write_lat -n 50 -F -p {P}",
    "ib_write_bw -n 500 -F -q 4 -p {P}",
    "ib_write_bw -n 100 -F -b -p {P}",
    "ib_read_lat -n 50 -F -p {P}",
    "ib_read_bw -n 300 -F -p {P}",
    "ib_atomic_lat -n 50 -F -p {P}",
    "ib_atomic_bw -n 100 -F -p {P}",
];

#[test]
fn thorough_perftest() {
    let told = OF_PERFTEST;
    for line in PERFTEST {
        meets(228, !line.contains("-c U"), line, told, &[]);
    }
    // The parameters are exchanged by the device, through one buffer in both directions.
    let exchange = &[told[0], told[1], ("send-buffer-changed", "ib_")];
    meets(228, true, "ib_send_lat -n 50 -F -R", exchange, &[]);
}

#[test]
fn thorough_tools_of_librdmacm() {
    const NO_RNR: Told = ("no-rnr-retries", "librdmacm");
    const CMATOSE: &[Told] = &[NO_RNR, ("buffers-overlap", "ucmatose")];
    fn plain(server: &str, client: &str, told: &[Told]) {
        Tool::new(server, client, told).runs(229, &[]);
    }
    plain("rping -s -a {S} -C 20 -V", "rping -c -a {S} -C 20 -V", &[]);
    plain("ucmatose -b {S} -c 5 -C 10", "ucmatose -s {S} -c 5 -C 10", CMATOSE);
    plain("rdma_server -s {S}", "rdma_client -s {S}", &[]);
    plain("rdma_xserver -c r", "rdma_xclient -s {S} -c r", &[NO_RNR]);
    let streams = "{S} -S 5000 -I 20 -C 5 -T v";
    plain(&format!("rstream -b {streams}"), &format!("rstream -s {streams}"), &[]);
    let endless = Tool::new("cmtime -b {S} -c 10", "cmtime -s {S} -b {C} -c 10", &[NO_RNR]);
    Tool { endless: true, ..endless }.runs(229, &[]);
    let told = [("ah-in-use", "udaddy"), ("buffers-overlap", "udaddy")];
    // One message: all receives of a connection name one buffer, and the server reads the first
    // GRH there, which on a weak device may be garbage again by the next message.
    let datagrams = Tool::new("udaddy -b {S} -c 3 -C 1", "udaddy -s {S} -c 3 -C 1", &told);
    Tool { loses: false, ..datagrams }.runs(229, &[]);
}

/// riostream polls the last byte of a WRITE.
#[test]
fn thorough_riostream_is_wrong_on_a_weak_device_alone() {
    let line = |side: &str| format!("riostream -{side} {{S}} -S 5000 -I 20 -C 5 -T v");
    let [server, client] = ["b", "s"].map(line);
    let dir = scratch("riostream");
    for options in [&ways(true, 1)[0], &ways(true, 1)[2]] {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let pair = Pair { options: &options, ..Pair::new(&server, &client) };
        let done = or_skip!(pair.run(230, &dir));
        done.iter().for_each(|end| right("riostream", end, &[]));
    }
    let (tool, own) = (find("riostream").expect("it ran"), loopback(230, 1));
    // What it finds is written at once, as its peer then waits for ever.
    let side = |last, which: &str| {
        let mut c = Command::new("stdbuf");
        c.args(["-oL".as_ref(), launcher().as_os_str()]).args(["--address", &loopback(230, last)]);
        c.args(["--weak", "--seed", "2"]).arg(&tool);
        c.args([which, &own, "-S", "5000", "-I", "1000", "-C", "5", "-T", "v"]);
        c
    };
    let mut server = Running::start(&mut side(1, "-b"));
    wait_until_it_listens(&mut server, &own);
    let mut ends = [server, Running::start(&mut side(2, "-s"))];
    let said = |end: &Running| end.output().contains("data verification failed");
    wait_for(60, "no end notices", || ends.iter().any(said));
    ends.iter_mut().for_each(Running::kill);
}

/// Requests of UCX's own reliable datagrams are unsignaled, and their buffers are used again when
/// the peer has acknowledged them. Receive buffers reach into the header of the next one.
const OF_UCX: &[Told] =
    &[("recv-buffer-changed", "libuct_ib"), ("send-buffer-changed", "libuct_ib")];

#[test]
fn thorough_ucx() {
    for (transport, test) in [
        ("rc_v", "tag_lat -s 64 -n 200"),
        ("rc_v", "tag_bw -s 100000 -n 50"),
        ("rc_v", "ucp_put_bw -s 100000 -n 50"),
        ("rc_v", "ucp_get -s 65536 -n 50"),
        ("rc_v", "ucp_fadd -s 8 -n 100"),
        ("rc_v", "stream_bw -s 4096 -n 100"),
        ("ud_v", "tag_lat -s 64 -n 200"),
        ("ud_v", "tag_bw -s 100000 -n 20"),
    ] {
        let tls = format!("{transport},self");
        let env = [("UCX_TLS", tls.as_str()), ("UCX_NET_DEVICES", "gdrc0:1")];
        let server = format!("ucx_perftest -f -w 10 -p {{P}} -t {test}");
        let client = format!("{server} 127.0.0.1");
        Tool::new(&server, &client, OF_UCX).runs(231, &env);
    }
}

#[test]
fn thorough_libfabric() {
    let tool = or_skip!(installed("fi_pingpong"));
    let lab = or_skip!(Lab::new(2));
    let at = ["10.9.0.1", "10.9.0.2"];
    lab.link((0, "a0", &["10.9.0.1/24"]), (1, "b0", &["10.9.0.2/24"])).expect("a link");
    for arguments in [
        "-p verbs -e msg -c",
        "-p verbs;ofi_rxm -e rdm -c",
        "-p verbs;ofi_rxm -e rdm -m tagged -c",
        "-p verbs;ofi_rxd -e rdm -c",
    ] {
        // Between two sizes the tool waits for its control connection and makes no progress, so
        // rxd repeats nothing that was lost, and the other end waits for ever.
        for options in ways(!arguments.contains("rxd"), 232) {
            let side = |host: usize, more: &[&str]| {
                let mut c = lab.command(host, &launcher());
                c.args(&options).args(["--address", at[host]]).arg(&tool);
                c.args(arguments.split_whitespace()).args(more);
                c
            };
            // The tool's default port; each host has ports of its own.
            let done = both(&mut side(0, &[]), &mut side(1, &[at[0]]), 47592);
            // What one end says of a failure is most often that the other is gone.
            let what = format!("{arguments} {options:?}: {}\n{}\n", done[0], done[1]);
            done.iter().for_each(|end| right(&what, end, &[]));
        }
    }
}

#[test]
fn thorough_open_mpi() {
    let (Some(mpirun), Some(_)) = (find("mpirun.openmpi"), find("mpicc.openmpi")) else {
        skip!("no Open MPI (openmpi-bin, libopenmpi-dev)")
    };
    let dir = scratch("right-mpi");
    let program = compile("mpicc.openmpi", "mpi", &dir, &[]);
    for transport in ["rc_v", "ud_v"] {
        for options in ways(true, 233) {
            let mut c = Command::new(&mpirun);
            c.args(["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ucx"]);
            c.args(["--mca", "osc", "ucx", "--mca", "btl", "self"]);
            c.env("UCX_TLS", format!("{transport},self")).env("UCX_NET_DEVICES", "gdrc0:1");
            for last in [1, 2] {
                if last == 2 {
                    c.arg(":");
                }
                c.args(["-np", "1"]).arg(launcher()).args(["--address", &loopback(233, last)]);
                c.args(&options).arg(&program);
            }
            let done = run(&mut c, 120);
            assert!(done.output.contains("ok 2 ranks"), "{options:?}: {done}");
            right(&format!("{transport} {options:?}"), &done, OF_UCX);
        }
    }
}

/// NIXL and the UCX in its wheel, as `scripts/programs.sh nixl` has fetched them.
#[test]
fn thorough_nixl() {
    let python = root().join("build/programs/nixl/venv/bin/python");
    if !python.exists() {
        skip!("no build/programs/nixl (scripts/programs.sh nixl)");
    }
    // An agent's end does not wait for the last datagrams of its connections.
    let told = &[OF_UCX[0], OF_UCX[1], ("region-in-use", "uct_ud")];
    for options in ways(true, 234) {
        let port = free_port();
        let side = |last: u32, role: &str| {
            let address = loopback(234, last);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let mut c = command(Some(&address), &options, &python);
            c.arg("-B").arg(root().join("tests/python/wheels.py"));
            c.args(["nixl", role, &address, &port.to_string()]).env("UCX_TLS", "rc_v,self");
            c.env("UCX_NET_DEVICES", "gdrc0:1").env("GLOG_minloglevel", "2");
            c
        };
        let target = Running::start(&mut side(1, "target"));
        let initiator = Running::start(&mut side(2, "initiator")).finish(Duration::from_secs(120));
        for done in [target.finish(Duration::from_secs(60)), initiator] {
            assert!(done.output.contains("blocks are right"), "{options:?}: {done}");
            right(&format!("NIXL {options:?}"), &done, told);
        }
    }
}
