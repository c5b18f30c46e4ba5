//! Other users of the host as attackers: whatever they do to the sockets through which processes of
//! one user find each other, no process waits for them, sends them payload, trusts them or is kept
//! out by them. Victims and attackers are processes of different users, so the tests need root.

use gdrcore_core::verbs::types::{wc_opcode, wc_status, Wc};
use gdrcore_core::Error;
use gdrcore_net::addr::Endpoint;
use gdrcore_net::sock_diag::port_owner;
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::cpu;
use gdrcore_tests::ends::{connected, pattern, succeed, End, Op, Shape};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::forge::{bth, plain, send_valid};
use gdrcore_tests::patience::{deadline, run_until, wait_for};
use gdrcore_tests::router::{Raw, Router, TWO};
use gdrcore_tests::soft::{address, names_of, Soft};
use gdrcore_tests::tools::as_root;
use gdrcore_tests::{or_skip, skip};
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
const STRANGER: &str = env!("CARGO_BIN_EXE_stranger");
/// The victims' user and the attacker's.
const VICTIM: &str = "30001";
const ATTACKER: &str = "30002";

/// A process of the victims' user with a device.
fn victim(device: &str, options: &[&str]) -> Far {
    Far::start(FAR, device, &[&[&format!("user={VICTIM}")[..], "path=auto"], options].concat())
}

/// A process of a user that attacks; `words` are the command and its arguments.
fn stranger(user: &str, words: &[&str]) -> Far {
    Far::run(Command::new(STRANGER).arg(user).args(words))
}

/// The part of a device's socket names that identifies it.
fn host_of(device: &str) -> String {
    device.trim_start_matches("soft:").split(':').next().expect("an address").to_owned()
}

/// Waits until a stream has made `times` × 64 further requests.
fn moves(far: &Far, times: u32) {
    for _ in 0..times {
        far.answer("moved ");
    }
}

/// The share of a CPU that a process takes.
fn share_of_cpu(far: &Far) -> f64 {
    let used = || cpu::of(far.pid()).expect("a process that lives");
    let (began, before) = (Instant::now(), used());
    std::thread::sleep(Duration::from_secs(2));
    (used() - before).as_secs_f64() / began.elapsed().as_secs_f64()
}

#[test]
fn descriptors_that_are_slow_to_close_block_no_process() {
    or_skip!(as_root());
    let (x, y) = (address(1), address(2));
    let mut from = victim(&x, &["stream=write", "piece=4096"]);
    let mut to = victim(&y, &[]);
    // A third process that shares an address, so that its mailbox is in use.
    let _third = victim(&x, &[]);
    from.connect_far(&mut to);
    from.say("go");
    moves(&from, 2);
    let attacks = [&x, &y].map(|device| stranger(ATTACKER, &["descriptors", &host_of(device)]));
    for attack in &attacks {
        println!("{} names could be reached", attack.answer("reached "));
    }
    // Each descriptor takes five minutes to close; a line must come within one.
    moves(&from, 200);
}

#[test]
fn nor_do_they_block_a_router() {
    or_skip!(as_root());
    let router = Router::start(TWO);
    let mut from = Far::start(FAR, &router.device("a"), &["stream=write", "piece=4096"]);
    let mut to = Far::start(FAR, &router.device("b"), &[]);
    from.connect_far(&mut to);
    from.say("go");
    moves(&from, 2);
    let socket = router.socket("a");
    for _ in 0..6 {
        // A user that is no tenant where sockets are not tenants', and here one of its own will.
        let attack = stranger(ATTACKER, &["descriptors", socket.to_str().expect("text")]);
        println!("{} names could be reached", attack.answer("reached "));
        moves(&from, 2);
        Raw::connect(&router.socket("b")).expect("a connection").greet();
    }
}

#[test]
fn the_payload_for_a_dead_process_reaches_no_other_user() {
    or_skip!(as_root());
    let (x, y) = (address(1), address(2));
    // The survivor opened first, so packets for a dead neighbour go to it.
    let mut survivor = victim(&x, &["path=udp"]);
    let mut dies = victim(&x, &["path=udp"]);
    let mut from = victim(&y, &["path=udp", "stream=write", "piece=4096", "timeout=16"]);
    from.connect_far(&mut dies);
    from.say("go");
    moves(&from, 2);
    let mut thief = stranger(ATTACKER, &["take", &host_of(&x)]);
    thief.answer("ready");
    // The owner's neighbours are stopped, so that the thief takes the name before they notice.
    survivor.signal(libc::SIGSTOP);
    dies.kill();
    std::thread::sleep(Duration::from_millis(50));
    survivor.signal(libc::SIGCONT);
    // The sender continues until its retries run out.
    run_until(120, "the stream to the dead process did not end", || {
        from.answer("").starts_with("failed")
    });
    thief.hang_up();
    assert_eq!(thief.answer("read "), "0", "bytes that belong to another user");
    survivor.say("tell");
    survivor.answer("counters ");
}

#[test]
fn a_process_of_the_overflow_uid_has_no_names() {
    or_skip!(as_root());
    let x = address(1);
    let trusts = std::panic::catch_unwind(|| victim(&x, &["overflow=1"]));
    let Ok(_open) = trusts else { skip!("no user namespaces here") };
    assert_eq!(names_of(&x), [""; 0], "a process of the overflow uid must have no names");
    let knocks = stranger(ATTACKER, &["knock", &host_of(&x)]);
    assert_eq!(knocks.answer("kept "), "0", "links with another user");
    // A process of the same user would accept the offer: a device of a plain user does.
    let y = address(2);
    let _open = victim(&y, &[]);
    assert_eq!(stranger(ATTACKER, &["knock", &host_of(&y)]).answer("kept "), "0");
    let own: u32 =
        stranger(VICTIM, &["knock", &host_of(&y)]).answer("kept ").parse().expect("a number");
    assert!(own > 0, "the offer must be valid for a process of the same user");
}

#[test]
fn root_is_another_user_too() {
    or_skip!(as_root());
    // The directory does not keep root out; the check of the peer's credentials does.
    let x = address(1);
    let _members = [victim(&x, &[]), victim(&x, &[])];
    for (user, is_one_of_them) in [("0", false), (VICTIM, true)] {
        for (command, result) in [("knock", "kept "), ("ask", "answered ")] {
            let try_it = || -> u32 {
                stranger(user, &[command, &host_of(&x)]).answer(result).parse().expect("a number")
            };
            if is_one_of_them {
                // Members answer once they have found each other.
                wait_for(60, &format!("no answer to {command} by {user}"), || try_it() > 0);
            } else {
                assert_eq!(try_it(), 0, "{command} by {user}");
            }
        }
    }
}

#[test]
fn guessed_packets_do_not_end_a_connection() {
    or_skip!(as_root());
    let (x, y) = (address(1), address(2));
    for option in ["peer_is_soft=0", "peer_is_soft=1"] {
        // Many PSNs are outstanding at a time, and a NAK with any of them is accepted.
        let mut from = victim(&x, &["path=udp", "stream=write", "piece=65536", option]);
        let mut to = victim(&y, &["path=udp", option]);
        let [at, _] = from.connect_far(&mut to);
        from.say("go");
        moves(&from, 2);
        let words = ["forge", &host_of(&y), x.trim_start_matches("soft:"), &at.qpn.to_string()];
        let mut forger = stranger(ATTACKER, &words);
        // An eighth of all PSNs, in ten parts, while data moves and between.
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
        println!("{option}: {refused} packets were refused ({told})");
        assert!(refused > 1000, "{told}");
    }
}

/// A soft device sends from its own port; small messages to its own host use a second socket, which
/// the kernel's list attributes to it.
#[test]
fn a_peers_second_socket_is_allowed() {
    let (x, y) = (address(1), address(2));
    let [dx, dy] = [&x, &y].map(|name| Soft::new(name));
    let shape = Shape { peer_is_soft: true, ..Shape::default() };
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

/// A message is refused while its source port is not known, and its sender may never retry, like a
/// program that only answers. So the message is accepted once the kernel has named the port's
/// owner.
#[test]
fn the_first_message_by_a_second_socket_is_taken() {
    let (x, y) = (address(1), address(2));
    let [dx, dy] = [&x, &y].map(|name| Soft::new(name));
    let shape = Shape { peer_is_soft: true, ..Shape::default() };
    let (mut a, mut b) = connected(dx.dev(), dy.dev(), shape).expect("connected ends");
    for end in [&a, &b] {
        (0..2).for_each(|id| end.post_recv(id, 4096, 64).expect("post_recv"));
    }
    for round in 0..500 {
        let (from, to) = if round % 2 == 0 { (&a, &mut b) } else { (&b, &mut a) };
        from.post(round, Op::Send(None), 0, 64).expect("post_send");
        let end = deadline(60);
        // The sender is not polled meanwhile, so a lost message stays lost, and in the end the
        // receiver's own messages fail.
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

/// A socket of a user at an address of this host.
fn socket_of(user: u32, ip: std::net::IpAddr) -> UdpSocket {
    // SAFETY: takes no pointer; of this thread alone.
    let was = unsafe { libc::setfsuid(user) } as u32;
    let socket = UdpSocket::bind((ip, 0)).expect("a socket");
    // SAFETY: as above.
    unsafe { libc::setfsuid(was) };
    socket
}

/// A peer gets its second socket while another user sends in its name, from the same address.
#[test]
fn a_second_socket_is_found_while_another_user_guesses() {
    or_skip!(as_root());
    // Which packet is asked about is a matter of luck.
    for _ in 0..3 {
        let (x, y) = (address(1), address(2));
        let options = ["path=udp", "peer_is_soft=1"];
        let mut from = victim(&x, &[&options[..], &["stream=write", "piece=64"]].concat());
        let mut to = victim(&y, &options);
        let [_, at] = from.connect_far(&mut to);
        let words = ["forge", &host_of(&x), y.trim_start_matches("soft:"), &at.qpn.to_string()];
        let mut forger = stranger(ATTACKER, &words);
        forger.answer("sent ");
        from.say("go");
        // The stream soon leaves from the second socket. On a busy machine nothing moves beside the
        // guesses, which fill the victim's socket while it has no CPU; so they are counted.
        for _ in 0..10 {
            forger.say("more");
            moves(&from, 50);
        }
    }
}

/// A packet with the right PSN from the peer's address is refused if another user owns its port,
/// and no list of the host's sockets is read to find that out, however many sockets there are.
#[test]
fn packets_of_another_users_socket_are_refused() {
    or_skip!(as_root());
    let (x, y) = (address(1), address(2));
    let [dx, dy] = [&x, &y].map(|name| Soft::new(name));
    let (a, mut b) =
        connected(dx.dev(), dy.dev(), Shape { peer_is_soft: true, ..Shape::default() })
            .expect("connected ends");
    b.post_recv(7, 0, 64).expect("post_recv");
    let attacker = ATTACKER.parse().expect("a number");
    let idle: Vec<UdpSocket> =
        (0..MANY_SOCKETS).map(|_| socket_of(attacker, plain(&x).ip())).collect();
    let packet = [bth(0x04, 0x40, b.own.qpn, true, a.own.psn), pattern(9, 64)].concat();
    let refused = |b: &End| b.dev.counters().expect("counters").rcvd_refused;
    let mut give = |socket: &UdpSocket| {
        let before = refused(&b);
        send_valid(socket, plain(&y), &mut packet.clone());
        wait_for(60, "the packet is lost", || {
            b.poll();
            // A packet that is accepted at the second look counts as refused at the first.
            refused(&b) > before || !b.done.is_empty()
        });
        b.poll();
        !b.done.is_empty()
    };
    let before = bytes_read();
    for socket in &idle {
        assert!(!give(socket), "a packet of another user");
    }
    let own = socket_of(0, plain(&x).ip());
    // Look-ups have their share of the time, so the next one may be later.
    wait_for(60, "packets of the peer's user are refused", || give(&own));
    let read = bytes_read() - before;
    assert!(read < 128 * MANY_SOCKETS, "{read} bytes: a line for each socket is longer");
}

/// Sockets of another user.
const MANY_SOCKETS: u64 = 600;

/// Bytes that this thread has read from files.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/io").expect("procfs");
    let line = text.lines().find_map(|l| l.strip_prefix("rchar: ")).expect("rchar");
    line.parse().expect("a number")
}

/// From here on this thread has no netlink sockets, as in a sandbox: nothing can be looked up.
fn forbid_netlink() {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ);
    // The number of the call, and its first argument, of `seccomp_data`.
    let mut code = [
        op(load, 0, 0, 0),
        op(equal, 0, 3, libc::SYS_socket as u32),
        op(load, 0, 0, 16),
        op(equal, 0, 1, libc::AF_NETLINK as u32),
        op(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: the program lives through the call; it concerns this thread alone.
    let rc = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(rc, 0, "seccomp: {}", std::io::Error::last_os_error());
    assert!(std::fs::metadata("/").is_ok());
}

/// Sends small messages both ways, so many that each side would use its second socket.
fn talk<'d>(a: &mut End<'d>, b: &mut End<'d>) {
    for round in 0..400 {
        let (from, to) = if round % 2 == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
        from.post(round, Op::Write(0, None), 0, 8).expect("post_send");
        succeed(from, to, round);
    }
}

/// A port that cannot be looked up, be it that strangers' ports take all the time that there is for
/// look-ups, costs the connection no message: what is sent again leaves from the peer's own port.
#[test]
fn a_second_socket_that_is_refused_ends_no_connection() {
    std::thread::spawn(|| {
        let (x, y) = (address(1), address(2));
        let [dx, dy] = [&x, &y].map(|name| Soft::new(name));
        let shape = Shape { peer_is_soft: true, timeout: 10, ..Shape::default() };
        let (mut a, mut b) = connected(dx.dev(), dy.dev(), shape).expect("connected ends");
        forbid_netlink();
        talk(&mut a, &mut b);
        let refused = [&dx, &dy].map(|d| d.dev().counters().expect("counters").rcvd_refused);
        assert!(refused.iter().sum::<u64>() > 0, "no second socket was used");
    })
    .join()
    .expect("the messages arrive");
}

/// Where nothing can be looked up from the start, ports are not checked.
#[test]
fn in_a_sandbox_without_netlink_second_sockets_are_accepted() {
    std::thread::spawn(|| {
        forbid_netlink();
        let (x, y) = (address(1), address(2));
        let [dx, dy] = [&x, &y].map(|name| Soft::new(name));
        let shape = Shape { peer_is_soft: true, ..Shape::default() };
        let (mut a, mut b) = connected(dx.dev(), dy.dev(), shape).expect("connected ends");
        talk(&mut a, &mut b);
        let refused = [&dx, &dy].map(|d| d.dev().counters().expect("counters").rcvd_refused);
        assert_eq!(refused, [0, 0]);
    })
    .join()
    .expect("the messages arrive");
}

/// Without procfs everything is looked up all the same.
#[test]
fn without_procfs_a_second_socket_is_allowed() {
    let (x, y) = (address(1), address(2));
    let hidden = |device: &str, options: &[&str]| {
        let script = "mount -t tmpfs -o ro none /proc || exit 3; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh", FAR, device, "path=udp", "peer_is_soft=1"]);
        Far::run(command.args(options))
    };
    let mut from = hidden(&x, &["stream=write", "piece=64"]);
    if from.line(Duration::from_secs(20)).as_deref() != Some("open") {
        skip!("no mount namespaces here");
    }
    let mut to = hidden(&y, &[]);
    to.answer("open");
    from.connect_far(&mut to);
    from.say("go");
    moves(&from, 50);
    to.say("tell");
    let told = to.answer("counters ");
    let refused: u64 = told.split(' ').nth(3).expect("four").parse().expect("a number");
    assert!((1..500).contains(&refused), "{told}");
}

#[test]
fn idle_connections_take_no_cpu_time() {
    or_skip!(as_root());
    for (n, user) in [(1, ATTACKER), (2, VICTIM)] {
        let x = address(n);
        let first = victim(&x, &["helper=1"]);
        let idle = stranger(user, &["idle", &host_of(&x)]);
        println!("{} connections of user {user}", idle.answer("reached "));
        idle.answer("ready");
        // Other processes join, which use such connections themselves.
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
    or_skip!(as_root());
    let (x, y) = (address(1), address(2));
    let full = victim(&x, &["helper=1", "full=1"]);
    // Its sockets are found, and it cannot accept connections.
    let idle = stranger(VICTIM, &["idle", &host_of(&x)]);
    println!("{} connections", idle.answer("reached "));
    idle.answer("ready");
    let share = share_of_cpu(&full);
    assert!(share < 0.1, "it takes {:.0} % of a CPU", 100.0 * share);
    drop(idle);
    let _other = victim(&y, &[]);
}

#[test]
fn taken_names_keep_no_process_out() {
    or_skip!(as_root());
    let (x, y) = (address(1), address(2));
    let squats = [&x, &y].map(|device| {
        let squat = stranger(ATTACKER, &["squat", device.trim_start_matches("soft:"), VICTIM]);
        squat.answer("ready");
        squat
    });
    // Two processes of one address find each other, and a third links to one of them.
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
fn without_a_directory_for_names_a_device_has_its_address_alone() {
    let (x, y) = (address(1), address(2));
    // In a mount namespace of its own, in which nothing can be written. The program may be below a
    // folder that is hidden then, so it is opened before.
    let sealed = |device: &str, options: &[&str]| {
        let script = "exec 9<\"$1\"; shift; \
            for d in /dev/shm /tmp; do mount -t tmpfs -o ro none $d || exit 3; done; \
            exec /proc/self/fd/9 \"$@\"";
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
    // Another process on the same address gets an error; so does one that allows shared memory
    // only.
    for options in [["path=udp"], ["path=shm"]] {
        assert_eq!(sealed(&x, &options).line(Duration::from_secs(60)), None, "it opened");
    }
    moves(&first, 3);
}

#[test]
fn the_owner_of_a_taken_port_is_named() {
    or_skip!(as_root());
    let x = address(1);
    let at = Endpoint::parse(x.trim_start_matches("soft:")).expect("an address");
    let other = stranger(ATTACKER, &["port", x.trim_start_matches("soft:")]);
    other.answer("ready");
    assert_eq!(Soft::open(&x, &SoftConfig::default()).err(), Some(Error::AddressInUse));
    assert_eq!(port_owner(&at).map(|user| user.to_string()).as_deref(), Some(ATTACKER));
}

#[test]
fn a_directory_that_was_removed_is_made_anew() {
    or_skip!(as_root());
    // A user of its own, so that no other process loses its names.
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
