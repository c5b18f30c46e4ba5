//! Links that go down, addresses that are removed, under open devices: the states of their ports,
//! the events, and connections that go on.

use gdrcore_tests::lab::Lab;
use gdrcore_tests::patience::{ack_timeout, until, wait_for};
use gdrcore_tests::rdmacm::launcher;
use gdrcore_tests::tools::{run, scratch, verbs_program, Running};
use gdrcore_tests::{library, or_skip};
use std::process::Command;

const SERVER: &str = "10.70.0.2";
const CLIENT: &str = "10.70.0.1";

/// Two hosts with a cable between them.
fn network() -> Result<Lab, String> {
    let lab = Lab::new(2)?;
    lab.link((0, "a0", &["10.70.0.1/24"]), (1, "b0", &["10.70.0.2/24"]))?;
    for (host, name) in [(0, "a0"), (1, "b0")] {
        lab.admin(host, &["link", "set", name, "mtu", "4200"])?;
    }
    Ok(lab)
}

/// A program whose output is read on.
struct Watched {
    program: Running,
    read: usize,
}

impl Watched {
    fn start(command: &mut Command) -> Watched {
        Watched { program: Running::start(command), read: 0 }
    }

    /// Waits until it has printed all of this, in any order, behind what was waited for before. A
    /// state may be seen before its event.
    #[track_caller]
    fn wait(&mut self, texts: &[&str]) {
        let end = |output: &str, text: &str| Some(output.find(text)? + text.len());
        let (program, from) = (&self.program, self.read);
        let read = until(
            60,
            || format!("not {texts:?} in: {}", &program.output()[from..]),
            || {
                let output = &program.output()[from..];
                let ends: Option<Vec<usize>> = texts.iter().map(|t| end(output, t)).collect();
                ends?.into_iter().max()
            },
        );
        self.read += read;
    }

    /// Waits until two more rounds are over: what the client had sent before has arrived, and what
    /// it sends from now on arrives too.
    #[track_caller]
    fn goes_on(&mut self) {
        self.read = self.program.output().len();
        for _ in 0..2 {
            self.wait(&["round "]);
        }
    }
}

/// Takes the link and the address from a client and gives them back, and looks at what it says.
fn follows(lab: &Lab, mut server: Watched, client: impl FnOnce() -> Watched) {
    let admin = |words: &str| {
        lab.admin(0, &words.split(' ').collect::<Vec<_>>()).expect("an administrator");
    };
    server.wait(&["listens"]);
    let mut client = client();
    client.wait(&["state 4,"]);
    client.goes_on();
    for _ in 0..2 {
        admin("link set a0 down");
        client.wait(&["event PORT_ERR", "state 1,"]);
        // The other end has no carrier.
        server.wait(&["event PORT_ERR"]);
        admin("link set a0 up");
        client.wait(&["event PORT_ACTIVE", "state 4,"]);
        client.goes_on();
        server.wait(&["event PORT_ACTIVE"]);
    }
    // Nobody needs to look between both.
    admin("link set a0 down");
    admin("link set a0 up");
    client.wait(&["event PORT_ERR"]);
    client.wait(&["event PORT_ACTIVE"]);
    client.goes_on();
    admin("addr del 10.70.0.1/24 dev a0");
    client.wait(&["event GID_CHANGE", "gid 0"]);
    admin("addr add 10.70.0.1/24 dev a0");
    client.wait(&["event GID_CHANGE", "gid 1"]);
    client.goes_on();
    admin("link set a0 mtu 1500");
    client.wait(&["mtu 1024"]);
    admin("link set a0 mtu 4200");
    client.wait(&["mtu 4096"]);
    client.goes_on();
    admin("link set a0 address 02:00:00:00:00:70");
    lab.admin(1, &["neigh", "flush", "all"]).expect("an administrator");
    client.wait(&["ADDR_CHANGE 0"]);
    client.goes_on();
    admin("link del a0");
    client.wait(&["event DEVICE_FATAL", "DEVICE_REMOVAL 0", "state 1,"]);
    // The other end of the cable is gone, too: the listener and the connection hear of it.
    for _ in 0..2 {
        server.wait(&["DEVICE_REMOVAL 0"]);
    }
    // The address comes back on an interface of another MTU.
    admin("link add c0 type veth peer name c1");
    admin("link set c0 mtu 800");
    admin("link set c1 up");
    admin("link set c0 up");
    admin("addr add 10.70.0.1/24 dev c0");
    client.wait(&["event GID_CHANGE", "event PORT_ACTIVE", "state 4,", "mtu 512"]);
    // One engine tells of them, whose state comes last.
    let output = client.program.output();
    let states: Vec<&str> =
        output.lines().filter_map(|line| line.strip_prefix("event PORT_")).collect();
    assert!(states.chunks(2).all(|two| two == ["ERR", "ACTIVE"]), "{states:?}");
    for mut side in [client, server] {
        assert!(side.program.still_runs(), "{}", side.program.output());
    }
}

/// The ACK timeout of the connections: a second on an idle machine.
fn timeout() -> String {
    ack_timeout(18).to_string()
}

#[test]
fn a_verbs_program_hears_of_its_port_and_goes_on() {
    let (program, _dir) = or_skip!(verbs_program("ports", "ports", &["-lrdmacm"]));
    for options in [&[][..], &["--engines", "2"]] {
        let lab = or_skip!(network());
        let side = |host: usize, address: &str, role: &str| {
            let mut c = lab.command(host, &launcher());
            // An outage is as long as the commands here take.
            c.args(["--address", address, "--keepalive", "600"]).args(options).arg(&program);
            c.args([role, SERVER, &timeout()]);
            Watched::start(&mut c)
        };
        let server = side(1, SERVER, "s");
        follows(&lab, server, || side(0, CLIENT, "c"));
    }
}

#[test]
fn the_files_of_a_port_follow_its_link_and_address() {
    let lab = or_skip!(network());
    let admin = |words: &str| {
        lab.admin(0, &words.split(' ').collect::<Vec<_>>()).expect("an administrator");
    };
    let files = || {
        let script = "p=/sys/class/infiniband/gdrc0/ports/1; \
                      cat $p/state $p/phys_state $p/gids/1; \
                      cat $p/gid_attrs/types/1 2>/dev/null || echo unreadable";
        let mut c = lab.command(0, &launcher());
        run(c.args(["--address", CLIENT, "sh", "-c", script]), 30).output
    };
    let (gid, none) =
        ("0000:0000:0000:0000:0000:ffff:0a46:0001", "0000:0000:0000:0000:0000:0000:0000:0000");
    let up = format!("4: ACTIVE\n5: LinkUp\n{gid}\nRoCE v2\n");
    wait_for(60, "a link", || files() == up);
    admin("link set a0 down");
    assert_eq!(files(), format!("1: DOWN\n3: Disabled\n{gid}\nRoCE v2\n"));
    admin("addr del 10.70.0.1/24 dev a0");
    let without = files();
    assert!(without.ends_with(&format!("{none}\nunreadable\n")), "{without}");
    admin("addr add 10.70.0.1/24 dev a0");
    admin("link set a0 up");
    wait_for(60, "the link again", || files() == up);
}

#[test]
fn a_program_of_the_c_api_hears_of_its_port_and_goes_on() {
    let dir = scratch("ports-api");
    let program = library::program("ports_api", &dir);
    for engines in ["1", "2"] {
        let lab = or_skip!(network());
        let side = |host: usize, address: &str, role: &str| {
            let mut c = lab.command(host, &program);
            c.args([role, &format!("soft:{address}"), SERVER, &timeout(), engines]);
            Watched::start(&mut c)
        };
        let server = side(1, SERVER, "s");
        follows(&lab, server, || side(0, CLIENT, "c"));
    }
}
