//! Hostile tenants of a router, beside two tenants whose stream must not be affected.

use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::error::Error;
use gdrcore_net::rights::Foreign;
use gdrcore_net::shm::relay::{Put, Relay, PACKET_MAX};
use gdrcore_net::shm::ring::{CONTROL, MAGIC, VERSION};
use gdrcore_net::via::proto::{
    Bye, Hello, Link, Message, Route, RouteEvent, Routed, Service, Text, Unroute, Welcome,
};
use gdrcore_tests::ends::Address;
use gdrcore_tests::far_end::{print_address, Far};
use gdrcore_tests::forge;
use gdrcore_tests::linger::Sink;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::rng::Rng;
use gdrcore_tests::router::{hello, number, Raw, Router};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::process::Command;

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
const STEP: &str = env!("CARGO_BIN_EXE_tenant_step");

const POLICY: &str = r#"
[tenant.a]
listen = "DIR/a"
[tenant.b]
listen = "DIR/b"
[tenant.evil]
listen = "DIR/evil"
routes = 40
"#;

/// A router, and a stream between two of its tenants.
struct Scene {
    router: Router,
    from: Far,
    to: Far,
    /// The address that the stream writes to.
    target: Address,
}

impl Scene {
    fn new() -> Scene {
        let router = Router::start(POLICY);
        let mut from =
            Far::start(FAR, &router.device("a"), &["stream=write", "piece=4096", "timeout=18"]);
        let mut to = Far::start(FAR, &router.device("b"), &[]);
        let [_, target] = from.connect_far(&mut to);
        from.say("go");
        let scene = Scene { router, from, to, target };
        scene.moves();
        scene
    }

    /// Checks that the stream progresses and has no failure.
    fn moves(&self) {
        // Discards the lines that it printed meanwhile.
        while self.from.said().is_some() {}
        for _ in 0..5 {
            self.from.answer("moved ");
        }
    }

    fn evil(&self) -> Raw {
        Raw::connect(&self.router.socket("evil")).expect("a connection")
    }

    fn route(&self) -> Message {
        Message::Route(Route {
            gid: self.target.ah.dgid,
            sgid_index: 0,
            qpn: self.target.qpn,
            traffic_class: 0,
        })
    }

    /// Requests a link to the stream's target; its socket.
    fn link(&self, raw: &mut Raw, seq: u32) -> Option<std::os::fd::OwnedFd> {
        raw.say(seq, self.route());
        let (e, mut m) = raw.hear()?;
        assert!(matches!(e.message, Message::Routed(_)), "{e:?}");
        m.fds[0].take().map(Foreign::trusted)
    }

    fn is_calm(&self) {
        self.moves();
        wait_for(60, "sessions stay", || self.router.sessions().len() == 2);
    }
}

#[test]
fn random_bytes_before_and_after_hello() {
    let scene = Scene::new();
    let mut rng = Rng::new(1);
    for round in 0..400 {
        let mut raw = scene.evil();
        if round % 2 == 1 {
            raw.greet();
        }
        let len = 1 + rng.next() as usize % if round % 8 == 0 { 8000 } else { 200 };
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        if round % 4 > 1 && len >= 16 {
            // Behind a valid head.
            bytes[..4].copy_from_slice(&[1 + (round / 4 % 15) as u8, 0, 0, 0]);
            bytes[8..12].fill(0);
            bytes[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        }
        raw.say_bytes(&bytes, None);
        if round % 100 == 0 {
            scene.moves();
        }
    }
    scene.is_calm();
}

#[test]
fn descriptors_with_messages_that_carry_none() {
    let scene = Scene::new();
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let before = descriptors(&scene);
    for round in 0..200 {
        let mut raw = scene.evil();
        if round % 2 == 0 {
            raw.greet();
        }
        // Messages of any length, each with a descriptor.
        while raw.say_bytes(&[round as u8; 64], Some(null.as_fd())) {}
    }
    scene.is_calm();
    wait_for(60, "descriptors stay in the router", || descriptors(&scene) <= before);
}

/// A counter of the relay for the session of a tenant's address.
fn relayed(scene: &Scene, tenant: &str, name: &str) -> u64 {
    let sessions = scene.router.sessions();
    let mark = format!("\"tenant\":\"{tenant}\"");
    let own = sessions.iter().filter(|line| line.contains(&mark));
    own.filter_map(|line| number(line, name)).sum()
}

#[test]
fn rings_full_of_anything() {
    let scene = Scene::new();
    let before = descriptors(&scene);
    let mut rng = Rng::new(3);
    let mut ended = 0;
    for round in 0..60 {
        let mut raw = scene.evil();
        let (welcome, ends) = raw.greet_with_rings();
        let up = std::fs::File::from(ends.up);
        let down = std::fs::File::from(ends.down);
        let mut bytes: Vec<u8> = (0..welcome.rings.0).map(|_| rng.next() as u8).collect();
        if round % 3 > 0 {
            // Valid frame lengths in every place where a frame may begin.
            for at in (0..bytes.len()).step_by(64) {
                let len = if round % 3 == 1 { 24 + rng.next() % 4300 } else { 40 };
                bytes[at..at + 8].copy_from_slice(&len.to_le_bytes());
            }
        }
        if round % 4 == 0 {
            // Random words in the control page as well, in both rings.
            let line: Vec<u8> = (0..CONTROL).map(|_| rng.next() as u8).collect();
            up.write_all_at(&line, 0).expect("write");
            down.write_all_at(&line, 0).expect("write");
        }
        up.write_all_at(&bytes, CONTROL as u64).expect("write");
        if round % 5 == 0 {
            // Pages may be removed in spite of the seals.
            let (mode, at, len) = (
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                0,
                (CONTROL as u32 + welcome.rings.0).into(),
            );
            // SAFETY: no pointers.
            assert_eq!(unsafe { libc::fallocate(up.as_raw_fd(), mode, at, len) }, 0);
        }
        // The worker spins for a while after its last packet: it may have seen the ring, and ended
        // the session, before the bell.
        let bell = gdrcore_net::via::wire::send_bytes(ends.socket.as_fd(), &[1], None);
        assert!(
            matches!(bell, Ok(()) | Err(Error::Os(libc::EPIPE | libc::ECONNRESET))),
            "{bell:?}"
        );
        if round % 10 == 9 {
            scene.moves();
        }
        // A ring whose pages were removed reads as empty.
        if round % 4 == 3 && round % 5 > 0 {
            wait_for(60, "it is never thrown out", || raw.has_ended());
            ended += 1;
        }
    }
    assert!(ended > 0);
    scene.is_calm();
    wait_for(60, "descriptors stay in the router", || descriptors(&scene) <= before);
}

#[test]
fn packets_with_forged_sources() {
    let scene = Scene::new();
    let mut raw = scene.evil();
    let (welcome, ends) = raw.greet_with_rings();
    let mut relay = Relay::open(ends, welcome.rings, false).expect("rings");
    let (own, gid) = (welcome.qpns.0 + 3, scene.target.ah.dgid);
    let mut put = |to: &[u8; 16], packet: &[u8]| {
        wait_for(60, "the router reads no more", || relay.put(to, packet) == Ok(Put::Done));
    };
    let mut rng = Rng::new(11);
    for n in 0..500 {
        // Source of another tenant; to a missing number; to another tenant's number by a wrong
        // address; an unknown kind.
        put(&gid, &forge::datagram(scene.target.qpn, scene.target.qpn, n));
        put(&gid, &forge::datagram(own, own, n));
        put(&[rng.next() as u8; 16], &forge::datagram(own, scene.target.qpn, n));
        let junk: Vec<u8> = (0..1 + n).map(|_| rng.next() as u8).collect();
        put(&gid, &junk);
        // To the stream's own queue pair: a WRITE, an ACK, a CNP.
        for opcode in [0x0a, 0x11, 0x81] {
            let mut packet = forge::bth(opcode, 0, scene.target.qpn, true, n as u32);
            packet.extend_from_slice(&[0; 24]);
            put(&gid, &packet);
        }
    }
    scene.moves();
    wait_for(60, "some were not looked at", || relayed(&scene, "evil", "bad_source") == 500);
    assert!(relayed(&scene, "evil", "bad_qpn") >= 1000 && !raw.has_ended());
    assert!(relayed(&scene, "evil", "bad_frame") > 0);
    drop((raw, relay));
    scene.is_calm();
}

#[test]
fn a_full_ring_of_a_tenant_drops_its_packets_only() {
    let scene = Scene::new();
    let mut raws = [scene.evil(), scene.evil()];
    let open = |raw: &mut Raw| {
        let (welcome, ends) = raw.greet_with_rings();
        (welcome, Relay::open(ends, welcome.rings, false).expect("rings"))
    };
    let [one, other] = &mut raws;
    let ((from, mut sender), (to, mut receiver)) = (open(one), open(other));
    let packet = forge::datagram(from.qpns.0 + 3, to.qpns.0 + 3, 1000);
    for _ in 0..3000 {
        wait_for(60, "the router waits for it", || {
            sender.put(&to.gids[0], &packet) == Ok(Put::Done)
        });
    }
    wait_for(60, "some were not looked at", || {
        relayed(&scene, "evil", "rx_packets") + relayed(&scene, "evil", "full") == 3000
    });
    scene.moves();
    let full = relayed(&scene, "evil", "full");
    let mut space = [0; PACKET_MAX];
    let mut came = 0;
    while let Some(frame) = receiver.take(&mut space).expect("a ring") {
        assert!(frame.packet == packet && frame.address == from.gids[0]);
        came += 1;
    }
    assert_eq!(came + full, 3000);
    assert!(came >= 200 && full > 0, "{came}");
    drop((raws, sender, receiver));
    scene.is_calm();
}

#[test]
fn processes_stopped_and_killed_at_every_step() {
    let mut scene = Scene::new();
    let target = print_address(&scene.target);
    let before = descriptors(&scene);
    let socket = scene.router.socket("evil");
    let mut asks = Raw::connect(&scene.router.socket("a")).expect("a connection");
    asks.greet();
    for step in ["connected", "hello", "welcome", "route", "link", "relay", "stream"] {
        for signal in [libc::SIGSTOP, libc::SIGKILL] {
            let mut held = Vec::new();
            for n in 0..3 {
                let mut far = if step == "stream" {
                    let options = ["stream=write", "piece=4096", "timeout=18"];
                    let mut far = Far::start(FAR, &scene.router.device("evil"), &options);
                    far.connect_far(&mut scene.to);
                    far.say("go");
                    far.answer("moved ");
                    far
                } else {
                    let mut command = Command::new(STEP);
                    let far = Far::run(command.arg(&socket).arg(step).arg(&target));
                    let qpn: u32 = far.answer("at ").parse().expect("a number");
                    if step == "link" {
                        // The LINK is being made when the answer has come.
                        let gid = address_of(&scene, qpn);
                        let route = Route { gid, sgid_index: 0, qpn, traffic_class: 0 };
                        assert!(asks.say(n, Message::Route(route)));
                        let (e, mut m) = loop {
                            // Notifications of earlier links that ended come as well.
                            let (e, m) = asks.hear().expect("an answer");
                            if e.answer {
                                break (e, m);
                            }
                        };
                        assert!(e.status == 0 && m.fds[0].take().is_some(), "{e:?}");
                    }
                    far
                };
                match signal {
                    libc::SIGSTOP => far.stop(),
                    _ => far.kill(),
                }
                held.push(far);
            }
            scene.moves();
            for mut far in held {
                far.kill();
            }
        }
        scene.moves();
    }
    // The stream's target notices ended links when it looks at its sockets.
    drop(asks);
    scene.is_calm();
    wait_for(60, "descriptors stay in the router", || descriptors(&scene) <= before);
}

/// The address of the session that has a queue pair number, by `gdrcore-routerctl`.
fn address_of(scene: &Scene, qpn: u32) -> [u8; 16] {
    let sessions = scene.router.sessions();
    let mark = format!("\"qpn_first\":{qpn},");
    let line = sessions.iter().find(|line| line.contains(&mark)).expect("a session");
    let (_, rest) = line.split_once("\"address\":\"").expect("an address");
    let address = rest.split('"').next().expect("an address");
    let v4: std::net::Ipv4Addr = address.parse().expect("an address");
    v4.to_ipv6_mapped().octets()
}

fn descriptors(scene: &Scene) -> usize {
    let status = scene.router.ask("status").output;
    let pid = status
        .split("\"pid\":")
        .nth(1)
        .and_then(|s| s.split(',').next())
        .expect("a process")
        .to_string();
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("procfs").count()
}

#[test]
fn silent_connections_do_not_keep_others_out() {
    let scene = Scene::new();
    let silent: Vec<Raw> =
        (0..300).map_while(|_| Raw::connect(&scene.router.socket("evil")).ok()).collect();
    assert!(silent.len() > 100);
    scene.moves();
    // Other connections are served meanwhile, on the same socket too.
    Raw::connect(&scene.router.socket("a")).expect("a connection").greet();
    scene.evil().greet();
    scene.moves();
    drop(silent);
    scene.is_calm();
}

#[test]
fn a_client_that_does_not_read_answers_is_disconnected() {
    let scene = Scene::new();
    let mut raw = scene.evil();
    raw.greet();
    wait_for(60, "it is never thrown out", || {
        // Sends as many as fit; reads none of the answers.
        while raw.say(1, Message::Ping(())) {}
        raw.has_ended()
    });
    scene.is_calm();
}

#[test]
fn every_message_at_every_step_and_then_silence_or_an_end() {
    let scene = Scene::new();
    let text = Text::new("x");
    let messages = [
        Message::Hello(hello()),
        Message::Hello(Hello { qpns: 0, ..hello() }),
        Message::Hello(Hello { qpns: 9 * QPN_UNIT, mode: 7, ..hello() }),
        Message::Welcome(Welcome::refused(text.clone_as())),
        scene.route(),
        Message::Routed(Routed::refused(text.clone_as())),
        Message::Unroute(Unroute { route: 1 }),
        Message::Link(Link { gid: [1; 16], peer: 1, flags: 0 }),
        Message::RouteEvent(RouteEvent {
            route: 0,
            event: 4,
            peer: 1,
            final_ms: 0,
            cause: text.clone_as(),
        }),
        Message::Listen(Service { space: 0x106, port: 7 }),
        Message::Unlisten(Service { space: 0x106, port: 7 }),
        Message::Ping(()),
        Message::Bye(Bye { errno: 0, text: text.clone_as() }),
    ];
    // Connections that stay open, like those of stopped processes.
    let mut held = Vec::new();
    for steps in 0..3 {
        for (i, &message) in messages.iter().enumerate() {
            let mut raw = scene.evil();
            let mut link = None;
            if steps > 0 {
                raw.greet();
            }
            if steps > 1 {
                link = scene.link(&mut raw, 5);
            }
            raw.say(6, message);
            if i % 3 == 0 && held.len() < 10 {
                held.push((raw, link));
            }
        }
        scene.moves();
    }
    drop(held);
    scene.is_calm();
}

/// The same short text for fields of all lengths.
trait CloneAs {
    fn clone_as<const N: usize>(&self) -> Text<N>;
}

impl CloneAs for Text<8> {
    fn clone_as<const N: usize>(&self) -> Text<N> {
        Text::new(self.as_str())
    }
}

#[test]
fn links_with_invalid_rings() {
    let scene = Scene::new();
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    let mut rng = Rng::new(7);
    let mut raw = scene.evil();
    raw.greet();
    let mut refused = 0;
    for round in 0..200u32 {
        let Some(socket) = scene.link(&mut raw, round) else {
            refused += 1;
            continue;
        };
        let hello = link_hello();
        let say = |bytes: &[u8], fd| {
            gdrcore_net::via::wire::send_bytes(socket.as_fd(), bytes, fd).is_ok()
        };
        let memory = segment_of_junk(8192, &mut rng);
        match round % 6 {
            0 => say(&hello, Some(null.as_fd())),
            1 => say(&hello, None),
            2 => say(&[round as u8; 40], Some(memory.as_fd())),
            3 => say(&hello, Some(memory.as_fd())),
            4 => {
                // A ring of the right size and seals, with random contents.
                let memory = segment_that_fits(8192, &mut rng);
                say(&hello, Some(memory.as_fd()))
                    && say(&[1], None)
                    && say(&[9; 56], Some(null.as_fd()))
            }
            _ => true,
        };
        if round % 50 == 0 {
            scene.moves();
        }
    }
    assert!(refused < 200, "no link was made");
    scene.moves();
    drop(raw);
    scene.is_calm();
}

/// The first message of a link, with a ring of 8192 bytes.
fn link_hello() -> [u8; 40] {
    let mut hello = [0u8; 40];
    hello[..8].copy_from_slice(b"gdrshm\x03\0");
    hello[8..12].copy_from_slice(&8192u32.to_le_bytes());
    hello
}

#[test]
fn descriptors_that_are_slow_to_close_hold_nobody_up() {
    let scene = Scene::new();
    let sink = Sink::new();
    let mut deaf = Vec::new();
    // The receiver gets the last one; one that the kernel refuses is closed by another thread.
    let mut slow = |to: BorrowedFd<'_>, bytes: &[u8]| {
        let (lingers, end) = sink.lingering();
        deaf.push(end);
        let sent = gdrcore_net::via::wire::send_bytes(to, bytes, Some(lingers.as_fd()));
        drop(Foreign::from(lingers));
        sent.is_ok()
    };
    let mut held = Vec::new();
    for round in 0..6u32 {
        let strange = scene.evil();
        slow(strange.fd(), b"junk");
        let mut raw = scene.evil();
        let (_, ends) = raw.greet_with_rings();
        slow(ends.socket.as_fd(), &[1]);
        // Links to the stream's target: no memory in the hello, then some behind it.
        for _ in 0..2 {
            let Some(socket) = scene.link(&mut raw, round) else { continue };
            let memory = segment_that_fits(8192, &mut Rng::new(7));
            if round % 2 == 1 {
                let sent = gdrcore_net::via::wire::send_bytes(
                    socket.as_fd(),
                    &link_hello(),
                    Some(memory.as_fd()),
                );
                assert_eq!(sent, Ok(()));
            }
            for _ in 0..4 {
                slow(socket.as_fd(), &link_hello());
            }
            held.push(socket);
        }
        slow(raw.fd(), b"junk");
        scene.moves();
        // A new session is taken meanwhile, and reaches another.
        let mut other = Raw::connect(&scene.router.socket("b")).expect("a connection");
        other.greet();
        scene.link(&mut other, 1);
    }
    scene.moves();
    drop(held);
    scene.is_calm();
    drop(deaf);
}

/// A memfd of a ring's size with random contents, without seals.
fn segment_of_junk(data: usize, rng: &mut Rng) -> std::fs::File {
    let file = memfd();
    file.write_all_at(&rng.bytes(CONTROL + data), 0).expect("write");
    file
}

/// As [`segment_of_junk`], with the seals and the first line of a ring.
fn segment_that_fits(data: usize, rng: &mut Rng) -> std::fs::File {
    let file = segment_of_junk(data, rng);
    let mut line = MAGIC.to_le_bytes().to_vec();
    line.extend_from_slice(&VERSION.to_le_bytes());
    file.write_all_at(&line, 0).expect("write");
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }, 0);
    file
}

fn memfd() -> std::fs::File {
    // SAFETY: a C string; the descriptor is new, and nobody else's.
    unsafe {
        let fd = libc::memfd_create(c"junk".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    }
}
