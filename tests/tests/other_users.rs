//! Other users of the host: whatever they do to the sockets by which processes of one user find
//! each other, nobody waits for them, sends them payload, trusts them or is kept out by them.
//! Victims and attackers are processes of different users, which takes root.

use gdrcore_core::verbs::types::{wc_opcode, wc_status, Wc};
use gdrcore_core::Error;
use gdrcore_net::addr::Endpoint;
use gdrcore_net::proc_net::port_owner;
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::cpu;
use gdrcore_tests::ends::{connected, pattern, succeed, End, Op, Shape};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::forge::{bth, plain, send_valid};
use gdrcore_tests::patience::deadline;
use gdrcore_tests::skip;
use gdrcore_tests::soft::{address, names_of, Soft};
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
const STRANGER: &str = env!("CARGO_BIN_EXE_stranger");
/// The victims' user and the attacker's.
const VICTIM: &str = "30001";
const ATTACKER: &str = "30002";

fn is_root() -> bool {
    // SAFETY: no precondition.
    unsafe { libc::geteuid() == 0 }
}

/// A process of the victims' user on a device.
fn victim(device: &str, options: &[&str]) -> Far {
    Far::start(FAR, device, &[&[&format!("user={VICTIM}")[..], "path=auto"], options].concat())
}

/// A process of a user, with what it does to whom.
fn stranger(user: &str, words: &[&str]) -> Far {
    Far::run(Command::new(STRANGER).arg(user).args(words))
}

/// What the names of a device's sockets contain, whatever else they are made of.
fn host_of(device: &str) -> String {
    device.trim_start_matches("soft:").split(':').next().expect("an address").to_owned()
}

/// Waits until a stream has moved so many times 64 requests further.
fn moves(far: &Far, times: u32) {
    for _ in 0..times {
        far.answer("moved ");
    }
}

/// How much of a CPU a process takes.
fn share_of_cpu(far: &Far) -> f64 {
    let used = || cpu::of(far.pid()).expect("a process that lives");
    let (began, before) = (Instant::now(), used());
    std::thread::sleep(Duration::from_secs(2));
    (used() - before).as_secs_f64() / began.elapsed().as_secs_f64()
}

#[test]
fn descriptors_that_are_slow_to_close_stop_nobody() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let (x, y) = (address(1), address(2));
    let mut from = victim(&x, &["stream=write", "piece=4096"]);
    let mut to = victim(&y, &[]);
    // A third that shares an address, and so has a mailbox in use.
    let _third = victim(&x, &[]);
    from.connect_far(&mut to);
    from.say("go");
    moves(&from, 2);
    let attacks = [&x, &y].map(|device| stranger(ATTACKER, &["descriptors", &host_of(device)]));
    for attack in &attacks {
        println!("{} names could be reached", attack.answer("reached "));
    }
    // Each descriptor takes five minutes to close; a line comes within one.
    moves(&from, 200);
}

#[test]
fn the_payload_of_a_dead_process_goes_to_nobody() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let (x, y) = (address(1), address(2));
    // The survivor opened first, so packets for a dead neighbour come to it.
    let mut survivor = victim(&x, &["path=udp"]);
    let mut dies = victim(&x, &["path=udp"]);
    let mut from = victim(&y, &["path=udp", "stream=write", "piece=4096", "timeout=16"]);
    from.connect_far(&mut dies);
    from.say("go");
    moves(&from, 2);
    let mut thief = stranger(ATTACKER, &["take", &host_of(&x)]);
    thief.answer("ready");
    // The thief is faster than those who would notice that the owner has gone.
    survivor.signal(libc::SIGSTOP);
    dies.kill();
    std::thread::sleep(Duration::from_millis(50));
    survivor.signal(libc::SIGCONT);
    // The sender goes on until its retries run out.
    let end = deadline(120);
    while !from.answer("").starts_with("failed") {
        assert!(Instant::now() < end, "it goes on writing to a dead process");
    }
    thief.hang_up();
    assert_eq!(thief.answer("read "), "0", "bytes that were another user's");
    survivor.say("tell");
    survivor.answer("counters ");
}

#[test]
fn the_overflow_uid_of_a_user_namespace_trusts_nobody() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let x = address(1);
    let trusts = std::panic::catch_unwind(|| victim(&x, &["overflow=1"]));
    let Ok(_open) = trusts else { skip!("no user namespaces here") };
    assert_eq!(
        names_of(&x),
        [""; 0],
        "it cannot tell its user from others, so nobody is to find it"
    );
    let knocks = stranger(ATTACKER, &["knock", &host_of(&x)]);
    assert_eq!(knocks.answer("kept "), "0", "links with another user");
    // The same from one of that user's own namespace would be a link; a plain user's device has
    // them.
    let y = address(2);
    let _open = victim(&y, &[]);
    assert_eq!(stranger(ATTACKER, &["knock", &host_of(&y)]).answer("kept "), "0");
    let own: u32 =
        stranger(VICTIM, &["knock", &host_of(&y)]).answer("kept ").parse().expect("a number");
    assert!(own > 0, "the offer is one that a process of the same user takes");
}

#[test]
fn root_is_another_user_too() {
    if !is_root() {
        skip!("only root can be two users");
    }
    // The directory does not keep root out; who it is does.
    let x = address(1);
    let _members = [victim(&x, &[]), victim(&x, &[])];
    for (user, is_one_of_them) in [("0", false), (VICTIM, true)] {
        for (command, result) in [("knock", "kept "), ("ask", "answered ")] {
            let n: u32 =
                stranger(user, &[command, &host_of(&x)]).answer(result).parse().expect("a number");
            assert_eq!(n > 0, is_one_of_them, "{command} by {user}: {n}");
        }
    }
}

#[test]
fn nobody_ends_a_connection_by_guessing() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let (x, y) = (address(1), address(2));
    for kin in ["kin=0", "kin=1"] {
        // Many PSNs are outstanding at a time, and each of them is right for a NAK.
        let mut from = victim(&x, &["path=udp", "stream=write", "piece=65536", kin]);
        let mut to = victim(&y, &["path=udp", kin]);
        let [at, _] = from.connect_far(&mut to);
        from.say("go");
        moves(&from, 2);
        let words = ["forge", &host_of(&y), x.trim_start_matches("soft:"), &at.qpn.to_string()];
        let mut forger = stranger(ATTACKER, &words);
        // Every PSN an eighth of a time over, in ten parts, while data moves and between them.
        while forger.answer("sent ").parse::<u64>().expect("a number") < 2_000_000 {
            moves(&from, 1);
            forger.say("more");
        }
        drop(forger);
        moves(&from, 5);
        from.say("tell");
        let told = loop {
            let line = from.answer("");
            if let Some(counters) = line.strip_prefix("counters ") {
                break counters.to_owned();
            }
        };
        let refused: u64 = told.split(' ').nth(3).expect("four").parse().expect("a number");
        println!("{kin}: {refused} packets were not believed ({told})");
        assert!(refused > 1000, "{told}");
    }
}

/// A peer of our kind may send from its own port; small messages to its own host go by a second
/// socket, which the kernel says is its.
#[test]
fn a_peers_second_socket_is_allowed() {
    let (x, y) = (address(1), address(2));
    let [dx, dy] = [&x, &y].map(|name| Soft::new(name));
    let shape = Shape { kin: true, ..Shape::default() };
    let (mut a, mut b) = connected(dx.dev(), dy.dev(), shape).expect("connected ends");
    for round in 0..500 {
        a.post(round, Op::Write(0, None), 0, 8).expect("post_send");
        succeed(&mut a, &mut b, round);
    }
    let refused = dx.dev().counters().expect("counters").rcvd_refused
        + dy.dev().counters().expect("counters").rcvd_refused;
    println!("{refused} packets were refused before the second sockets were known");
    assert!(refused < 50, "{refused}");
}

/// Whose message is refused because its port is not known yet may never look again, as a program
/// that answers only what it hears: the message is taken once the kernel has said whose the port
/// is.
#[test]
fn the_first_message_by_a_second_socket_is_taken() {
    let (x, y) = (address(1), address(2));
    let [dx, dy] = [&x, &y].map(|name| Soft::new(name));
    let shape = Shape { kin: true, ..Shape::default() };
    let (mut a, mut b) = connected(dx.dev(), dy.dev(), shape).expect("connected ends");
    for end in [&a, &b] {
        (0..2).for_each(|id| end.post_recv(id, 4096, 64).expect("post_recv"));
    }
    for round in 0..500 {
        let (from, to) = if round % 2 == 0 { (&a, &mut b) } else { (&b, &mut a) };
        from.post(round, Op::Send(None), 0, 64).expect("post_send");
        let end = deadline(60);
        // The sender is not polled meanwhile: what is lost stays lost, and in the end what the
        // receiver has sent fails.
        let is_recv = |wc: &Wc| wc.opcode >= wc_opcode::RECV;
        while !to.done.iter().any(is_recv) {
            to.poll();
            let failed = to.done.iter().find(|wc| wc.status != wc_status::SUCCESS);
            assert!(
                failed.is_none() && Instant::now() < end,
                "round {round}: {failed:?} {:?}",
                to.dev.counters()
            );
        }
        to.done.clear();
        to.post_recv(round, 4096, 64).expect("post_recv");
    }
    let known = [&dx, &dy].map(|d| d.dev().counters().expect("counters").rcvd_refused);
    assert!(known.iter().all(|&n| n > 0), "no second socket was used: {known:?}");
}

/// A socket at an address of this host that belongs to a user.
fn socket_of(user: u32, ip: std::net::IpAddr) -> UdpSocket {
    // SAFETY: takes no pointer; of this thread alone.
    let was = unsafe { libc::setfsuid(user) } as u32;
    let socket = UdpSocket::bind((ip, 0)).expect("a socket");
    // SAFETY: as above.
    unsafe { libc::setfsuid(was) };
    socket
}

/// The right PSN from the peer's address does not help a user who has not the peer's port.
#[test]
fn only_the_peers_user_speaks_for_it() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let (x, y) = (address(1), address(2));
    let [dx, dy] = [&x, &y].map(|name| Soft::new(name));
    let (a, mut b) = connected(dx.dev(), dy.dev(), Shape { kin: true, ..Shape::default() })
        .expect("connected ends");
    b.post_recv(7, 0, 64).expect("post_recv");
    let packet = [bth(0x04, 0x40, b.own.qpn, true, a.own.psn), pattern(9, 64)].concat();
    for (user, is_heard) in [(ATTACKER.parse().expect("a number"), false), (0, true)] {
        let socket = socket_of(user, plain(&x).ip());
        let refused = |b: &End| b.dev.counters().expect("counters").rcvd_refused;
        let before = refused(&b);
        send_valid(&socket, plain(&y), &mut packet.clone());
        let end = deadline(60);
        // What is taken at the second look counts as refused at the first.
        while refused(&b) == before && b.done.is_empty() {
            b.poll();
            assert!(Instant::now() < end, "{:?}", b.dev.counters());
        }
        b.poll();
        assert_eq!(!b.done.is_empty(), is_heard, "user {user}: {:?}", b.done);
        // The kernel is asked about a refused port once in ten milliseconds.
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn idle_connections_take_no_cpu_time() {
    if !is_root() {
        skip!("only root can be two users");
    }
    for (n, user) in [(1, ATTACKER), (2, VICTIM)] {
        let x = address(n);
        let first = victim(&x, &["helper=1"]);
        let idle = stranger(user, &["idle", &host_of(&x)]);
        println!("{} connections of user {user}", idle.answer("reached "));
        idle.answer("ready");
        // Others come, who would have a use for such connections themselves.
        let others: Vec<Far> = (0..2).map(|_| victim(&x, &["helper=1"])).collect();
        for m in others.iter().chain([&first]) {
            let share = share_of_cpu(m);
            assert!(
                share < 0.1,
                "user {user}: a sleeping process takes {:.0} % of a CPU",
                100.0 * share
            );
        }
    }
}

#[test]
fn a_process_without_descriptors_left_still_sleeps() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let (x, y) = (address(1), address(2));
    let full = victim(&x, &["helper=1", "full=1"]);
    // Its doors are found, and nobody opens.
    let idle = stranger(VICTIM, &["idle", &host_of(&x)]);
    println!("{} connections", idle.answer("reached "));
    idle.answer("ready");
    let share = share_of_cpu(&full);
    assert!(share < 0.1, "it takes {:.0} % of a CPU", 100.0 * share);
    drop(idle);
    let _other = victim(&y, &[]);
}

#[test]
fn nobody_is_kept_out_by_taken_names() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let (x, y) = (address(1), address(2));
    let squats = [&x, &y].map(|device| {
        let squat = stranger(ATTACKER, &["squat", device.trim_start_matches("soft:"), VICTIM]);
        squat.answer("ready");
        squat
    });
    // Two of one address find each other, and a third links to one of them.
    let mut first = victim(&x, &["stream=write", "piece=4096"]);
    let mut second = victim(&x, &["path=shm"]);
    first.connect_far(&mut second);
    first.say("go");
    moves(&first, 3);
    let mut third = victim(&y, &["path=shm", "stream=write", "piece=4096"]);
    third.connect_far(&mut second);
    third.say("go");
    moves(&third, 3);
    drop(squats);
    for base in ["/dev/shm", "/tmp"] {
        let _ = std::fs::remove_dir(format!("{base}/gdrcore-{VICTIM}"));
    }
}

#[test]
fn without_a_directory_for_names_a_device_has_its_address_for_itself() {
    let (x, y) = (address(1), address(2));
    // In a mount namespace of its own, where nothing can be written.
    let sealed = |device: &str, options: &[&str]| {
        let script =
            "for d in /dev/shm /tmp; do mount -t tmpfs -o ro none $d || exit 3; done; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh", FAR, device]).args(options);
        Far::run(&mut command)
    };
    let mut first = sealed(&x, &["path=auto", "stream=write", "piece=4096"]);
    if first.line(Duration::from_secs(20)).as_deref() != Some("open") {
        skip!("no mount namespaces here");
    }
    let mut second = sealed(&y, &["path=auto"]);
    second.answer("open");
    first.connect_far(&mut second);
    first.say("go");
    moves(&first, 3);
    // Another one on the same address is told, not led astray; and so is who wants shared memory
    // alone.
    for options in [["path=udp"], ["path=shm"]] {
        assert_eq!(sealed(&x, &options).line(Duration::from_secs(60)), None, "it opened");
    }
    moves(&first, 3);
}

#[test]
fn the_user_who_has_the_port_is_named() {
    if !is_root() {
        skip!("only root can be two users");
    }
    let x = address(1);
    let at = Endpoint::parse(x.trim_start_matches("soft:")).expect("an address");
    let other = stranger(ATTACKER, &["port", x.trim_start_matches("soft:")]);
    other.answer("ready");
    assert_eq!(Soft::open(&x, &SoftConfig::default()).err(), Some(Error::AddressInUse));
    assert_eq!(port_owner(&at).map(|user| user.to_string()).as_deref(), Some(ATTACKER));
}

#[test]
fn a_directory_that_was_removed_is_made_anew() {
    if !is_root() {
        skip!("only root can be another user");
    }
    // A user of its own: nobody else's names are lost.
    const USER: &str = "30003";
    let x = address(1);
    let open = |options: &[&str]| {
        Far::start(FAR, &x, &[&[&format!("user={USER}")[..], "path=auto"], options].concat())
    };
    let mut first = open(&["helper=1"]);
    // As a session manager does when a user has logged out.
    let _ = std::fs::remove_dir_all(format!("/dev/shm/gdrcore-{USER}"));
    let mut second = open(&["stream=write", "piece=4096", "path=shm"]);
    second.connect_far(&mut first);
    second.say("go");
    moves(&second, 3);
}
