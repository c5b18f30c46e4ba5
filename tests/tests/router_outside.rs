//! Tenants of a router that talk to plain RoCEv2 endpoints: a soft device on another host, which
//! knows nothing of routers.

use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::error::Error;
use gdrcore_net::reason;
use gdrcore_net::via::find::SocketPath;
use gdrcore_net::via::proto::Route;
use gdrcore_net::via::session::Session;
use gdrcore_tests::ends::{pattern, succeed, End, Op, Shape};
use gdrcore_tests::far_end::{parse_address, print_address, Far};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::rdmacm::launcher;
use gdrcore_tests::router::{contained, number, Router};
use gdrcore_tests::soft::Soft;
use gdrcore_tests::tools::{favoured, installed, run, Done, Running};
use gdrcore_tests::{or_skip, skip};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
const FORGER: &str = env!("CARGO_BIN_EXE_forger");
const LIMIT: Duration = Duration::from_secs(120);
const ROUTER: &str = "192.0.2.1";
const OUT: &str = "192.0.2.7";

const POLICY: &str = r#"
[host]
id = "h"
address = "192.0.2.1"
map = "DIR/map"
[tenant.blue]
listen = "DIR/blue/tenant.gdrc"
vip = "10.99.0.1"
outside = true
publish = [{ port = 7174 }, { port = 7174, space = "udp" }]
[tenant.red]
listen = "DIR/red/tenant.gdrc"
vip = "10.99.0.2"
"#;
const MAP: &str = r#"
[h]
address = "192.0.2.1"
[i]
address = "192.0.2.2"
[i.tenant.green]
vip = "10.99.0.9"
blocks = [900, 2]
"#;

/// A host with a router, one without, and a container; dropping it ends everything.
struct World {
    router: Router,
    lab: Lab,
}

impl World {
    fn new() -> Result<World, String> {
        let lab = Lab::new(3)?;
        lab.link((0, "w0", &["192.0.2.1/24"]), (1, "w1", &["192.0.2.7/24", "192.0.2.2/24"]))?;
        let router = Router::start_on(&lab, 0, POLICY, &[("map", MAP)]);
        Ok(World { router, lab })
    }

    fn device(&self, tenant: &str) -> Soft {
        self.router.open(&format!("{tenant}/tenant.gdrc"))
    }

    /// A far end on the host without a router.
    fn far(&self, options: &[&str]) -> Far {
        let mut command = favoured(&self.lab.command(1, Path::new(FAR)));
        let far = Far::run(command.arg(format!("soft:{OUT}")).args(options));
        far.answer("open");
        far
    }

    fn wire(&self, name: &str) -> u64 {
        let done = self.router.ask("status");
        let (_, wire) = done.output.split_once("\"wire\":").expect("a router with hosts");
        number(wire, name).unwrap_or_else(|| panic!("{name}: {wire}"))
    }

    /// A program of librdmacm in a tenant's container, or on the host without a router.
    fn cm(&self, tenant: Option<&str>, words: &str) -> Result<Command, String> {
        let (name, rest) = words.split_once(' ').unwrap_or((words, ""));
        let program = installed(name)?;
        let socket = tenant.map(|t| self.router.socket(&format!("{t}/tenant.gdrc")));
        let host = if tenant.is_some() { 2 } else { 1 };
        let mut c = contained(&self.lab, host, &launcher(), socket.as_deref());
        if tenant.is_none() {
            c.args(["--address", OUT]);
        }
        c.env("GDRC_VERBOSE", "1").arg(program).args(rest.split_whitespace());
        Ok(c)
    }
}

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(lacks) => skip!("no namespaces: {lacks}"),
        }
    };
}

fn gid(text: &str) -> [u8; 16] {
    text.parse::<std::net::Ipv4Addr>().expect("an address").to_ipv6_mapped().octets()
}

/// Connects an end of a tenant with a far end outside, which knows it by the host's address.
fn connect(end: &mut End, far: &mut Far) {
    let mut own = end.own;
    own.ah.dgid = gid(ROUTER);
    far.say(&format!("peer {}", print_address(&own)));
    let theirs = parse_address(&far.answer("at ")).expect("an address");
    end.connect(theirs).expect("connect");
}

#[test]
fn connected_queue_pairs_reach_plain_endpoints_and_are_reached() {
    let world = world!();
    let blue = world.device("blue");
    let mut far = world.far(&["stream=write", "piece=30000"]);
    let mut end = End::new(blue.dev(), Shape::default()).expect("an end");
    connect(&mut end, &mut far);
    let mut idle = End::new(blue.dev(), Shape::default()).expect("an end");
    let data = pattern(5, 100_000);
    end.buffer.write(200_000, &data);
    for round in 0..5 {
        end.post(1, Op::Write(200_000, None), 200_000, 100_000).expect("post_send");
        end.post(2, Op::Read(200_000), 400_000, 100_000).expect("post_send");
        succeed(&mut end, &mut idle, 1);
        succeed(&mut end, &mut idle, 2);
        assert!(end.buffer.read(400_000, 100_000) == data, "{round}");
        end.buffer.write(400_000, &[0; 100_000]);
    }
    // The other way: its requests come by the host's address.
    far.say("go");
    wait_for(60, "the stream of the endpoint stands", || {
        end.poll();
        far.said().is_some_and(|line| line.starts_with("moved "))
    });
    let counters = blue.dev().counters().expect("counters");
    assert_eq!((counters.rcvd_malformed, counters.rcvd_icrc_err), (0, 0));
    assert!(world.wire("tx_packets") > 0 && world.wire("rx_packets") > 0);
}

#[test]
fn who_may_not_talk_outside_is_told_why() {
    let world = world!();
    reason::install();
    let open = |tenant: &str| {
        let at = world.router.socket(&format!("{tenant}/tenant.gdrc"));
        let at = SocketPath::new(at.as_os_str().as_bytes()).expect("a path");
        Session::open(&at, QPN_UNIT).expect("a session")
    };
    let ask = |session: &Session, to: &str, sgid_index: u32| {
        let route = Route { gid: gid(to), sgid_index, qpn: 77, traffic_class: 0 };
        let answer = session.request_guard().route(route).map(|direct| direct.is_some());
        let why = answer.err().map_or(String::new(), |e| {
            reason::note_returned(e);
            reason::with_text(|words| words.to_string())
        });
        (answer, why)
    };
    let ((blue, _rings), (red, _others)) = (open("blue"), open("red"));
    assert_eq!(blue.welcome().gids[1], gid(ROUTER));
    assert_eq!(red.welcome().gids[1], [0; 16]);
    assert_eq!((ask(&blue, OUT, 0).0, ask(&blue, OUT, 1).0), (Ok(false), Ok(false)), "relayed");
    let unreachable = Err(Error::Os(libc::EHOSTUNREACH));
    let (answer, why) = ask(&red, OUT, 0);
    assert!(answer == unreachable && why.contains("may not talk to others"), "{answer:?} {why}");
    assert_eq!(ask(&red, OUT, 1).0, Err(Error::Invalid), "it has one address");
    // Other routers, this one, virtual addresses and what is no endpoint.
    for inside in ["192.0.2.2", ROUTER, "10.99.7.7", "224.0.0.5", "127.0.0.1"] {
        let (answer, why) = ask(&blue, inside, 0);
        assert!(answer == unreachable && why.contains("no address outside"), "{answer:?} {why}");
    }
}

#[test]
fn hostile_packets_from_outside_reach_nobody() {
    let world = world!();
    let (blue, red) = (world.device("blue"), world.device("red"));
    let mut far = world.far(&["stream=write", "piece=4096"]);
    let mut end = End::new(blue.dev(), Shape::default()).expect("an end");
    connect(&mut end, &mut far);
    let mut others = End::new(red.dev(), Shape::default()).expect("an end");
    let to = format!("{ROUTER}:4791");
    let forge = |from: &str, port: u16, qpn: u32, count: u32, bad: &[&str]| {
        let mut c = world.lab.privileged(1, Path::new(FORGER));
        let from = format!("{from}:{port}");
        let done = run(c.args([&from, &to, &qpn.to_string(), &count.to_string()]).args(bad), 60);
        assert!(done.ok(), "{done}");
    };
    let counts = |name: &str, n: u64| {
        wait_for(60, name, || world.wire(name) >= n);
        assert_eq!(world.wire(name), n, "{name}");
    };
    let block_of_red = 0xc000 | ((others.own.qpn / QPN_UNIT) as u16 * 16);
    // To a tenant without `outside`, from any port, a block's among them.
    forge(OUT, 9000, others.own.qpn, 3, &[]);
    forge(OUT, block_of_red, others.own.qpn, 4, &[]);
    counts("policy", 7);
    // To numbers of nobody.
    forge(OUT, 9000, 900 * QPN_UNIT + 7, 5, &[]);
    counts("bad_qpn", 5);
    forge(OUT, 9000, end.own.qpn, 6, &["bad"]);
    counts("bad_icrc", 6);
    // From the address of a host of the map, whose tenants are known: this is none of them.
    forge("192.0.2.2", block_of_red, end.own.qpn, 7, &[]);
    counts("bad_block", 7);
    // What remains is the receiving engine's to refuse: a valid packet with a wrong sender's PSN.
    forge(OUT, 9000, end.own.qpn, 8, &[]);
    wait_for(60, "they do not arrive", || world.wire("rx_packets") >= 8);
    far.say("go");
    wait_for(60, "the stream stands", || {
        end.poll();
        others.poll();
        far.said().is_some_and(|line| line.starts_with("moved "))
    });
    assert_eq!(red.dev().counters().expect("counters").rcvd_pkts, 0);
}

/// Runs a server and a client; `of`: their tenants.
fn pair(world: &World, of: [Option<&str>; 2], words: [&str; 2]) -> Result<[Done; 2], String> {
    let mut server = Running::start(&mut world.cm(of[0], words[0])?);
    match of[0] {
        Some(_) => wait_for(60, "the server does not listen", || {
            let listens = |s: &String| s.contains("\"listens\":1");
            world.router.sessions().iter().any(listens) || !server.still_runs()
        }),
        None => gdrcore_tests::rdmacm::wait_until_it_listens_in(
            world.lab.first_process(1),
            &mut server,
            OUT,
        ),
    }
    let client = Running::start(&mut world.cm(of[1], words[1])?).finish(LIMIT);
    Ok([server.finish(LIMIT), client])
}

fn well(world: &World, done: &[Done; 2]) {
    let [server, client] = done;
    assert!(
        server.ok() && client.ok(),
        "server {server}\nclient {client}\n{}",
        world.router.ask("status").output
    );
}

#[test]
fn a_published_port_is_asked_from_outside() {
    let world = world!();
    let of = [Some("blue"), None];
    let words =
        ["rping -s -p 7174 -C 20 -V -S 900", "rping -c -a 192.0.2.1 -p 7174 -C 20 -V -S 900"];
    let done = or_skip!(pair(&world, of, words));
    well(&world, &done);
    // Datagrams, too.
    let words = ["udaddy -C 20 -S 900", "udaddy -s 192.0.2.1 -C 20 -S 900"];
    let done = or_skip!(pair(&world, of, words));
    well(&world, &done);
    // Another port is nobody's there, although a session of the tenant is.
    let _blue = world.device("blue");
    let before = world.wire("bad_address");
    let mut c = or_skip!(world.cm(None, "rping -c -a 192.0.2.1 -p 7175 -C 2"));
    let mut asks = Running::start(&mut c);
    wait_for(60, "the request does not come", || world.wire("bad_address") > before);
    asks.kill();
    asks.finish(LIMIT);
}

#[test]
fn a_tenant_asks_a_plain_endpoint() {
    let world = world!();
    let of = [None, Some("blue")];
    let words = ["rping -s -a 192.0.2.7 -C 20 -V -S 900", "rping -c -a 192.0.2.7 -C 20 -V -S 900"];
    let done = or_skip!(pair(&world, of, words));
    well(&world, &done);
    let words = ["udaddy -b 192.0.2.7 -C 20 -S 900", "udaddy -s 192.0.2.7 -C 20 -S 900"];
    let done = or_skip!(pair(&world, of, words));
    well(&world, &done);
}
