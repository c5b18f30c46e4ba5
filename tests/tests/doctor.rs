//! `gdrcore doctor` in prepared troubles (docs/using/DOCTOR.md): each row names what it must find,
//! and that it finds nothing else.

use gdrcore_tests::lab::Lab;
use gdrcore_tests::tools::{find, loopback, run, scratch, Done, Running};
use gdrcore_tests::{library, or_skip, patience, skip};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{chown, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every finding of a level, as `level check`.
fn troubles(output: &str) -> BTreeSet<String> {
    let words = |line: &str| -> Option<String> {
        let mut words = line.split_whitespace();
        let (level, check) = (words.next()?, words.next()?);
        (level == "warning" || level == "broken").then(|| format!("{level} {check}"))
    };
    output.lines().filter_map(words).collect()
}

/// Checks that exactly these troubles were found, that a text was said, and the exit code.
#[track_caller]
fn finds(what: &str, done: &Done, expected: &[&str], said: &str) {
    let expected: BTreeSet<String> = expected.iter().map(|e| e.to_string()).collect();
    let mut found = troubles(&done.output);
    let worst = found.first().cloned();
    // A process of another test may still have libraries that were replaced.
    found.remove("warning versions");
    assert_eq!(found, expected, "{what}: {done}");
    assert!(done.output.contains(said), "{what}: no '{said}' in {done}");
    let code = match worst.as_deref() {
        None => 0,
        Some(worst) if worst.starts_with("broken") => 2,
        Some(_) => 1,
    };
    assert_eq!(done.code(), Some(code), "{what}: {done}");
}

/// A machine of its own with its loopback interface alone; `more` changes what it sees.
fn machine(more: &[&str]) -> Result<Command, String> {
    let bwrap = find("bwrap").ok_or("bwrap is not installed (bubblewrap)")?;
    let with = |more: &[&str]| {
        let mut c = Command::new(&bwrap);
        c.args(["--unshare-net", "--die-with-parent", "--dev-bind", "/", "/"]).args(more).arg("--");
        for name in ["ADDRESS", "ROUTER", "LIBRARIES", "PATH", "DEVICE"] {
            c.env_remove(format!("GDRC_{name}"));
        }
        c
    };
    let may = run(with(&[]).arg("true"), 20);
    if !may.ok() {
        return Err(format!("no namespaces: {}", may.output.trim()));
    }
    Ok(with(more))
}

#[test]
fn troubles_of_a_machine_are_named() {
    let doctor = library::cli();
    // A shell's line before it, what the machine sees, what is found, what is said.
    let rows: [(&str, &str, &[&str], &str); 11] = [
        ("true", "", &[], "127.0.0.1: UDP and shared memory carry all bytes"),
        ("true", "--tmpfs /proc", &["warning proc"], "/proc is not mounted"),
        ("true", "--tmpfs /dev/shm --remount-ro /dev/shm", &["warning sockets"], "/tmp can"),
        (
            "true",
            "--tmpfs /dev/shm --remount-ro /dev/shm --tmpfs /run --remount-ro /run --ro-bind /tmp \
             /tmp",
            &["warning sockets", "warning device"],
            "mount a tmpfs at /dev/shm",
        ),
        ("ulimit -n 100", "", &["warning files"], "100 open files"),
        ("ulimit -n 16", "", &["broken files", "broken device"], "16 open files"),
        ("ip link set lo down", "--cap-add ALL", &["warning link", "broken addresses"], "lo up"),
        ("export GDRC_ADDRESS=192.0.2.9", "", &["broken device"], "192.0.2.9"),
        ("export GDRC_ADDRESS=eth0", "", &["broken addresses"], "eth0 is no IP address"),
        ("export GDRC_ROUTER=/x/y.gdrc", "", &["broken router"], "/x/y.gdrc"),
        ("export GDRC_ROUTER=nobody", "", &["broken router"], "nobody"),
    ];
    for (line, more, expected, said) in rows {
        let mut c = or_skip!(machine(&more.split_whitespace().collect::<Vec<_>>()));
        let script = format!("{line} || exit 9; exec \"$0\" doctor");
        finds(
            &format!("{line} {more}"),
            &run(c.args(["sh", "-c", &script]).arg(&doctor), 60),
            expected,
            said,
        );
    }
}

/// A filter that refuses a system call.
fn without(call: i64) -> Vec<u8> {
    let instruction = |code: u16, when: [u8; 2], k: u32| {
        let mut bytes = code.to_ne_bytes().to_vec();
        bytes.extend(when);
        bytes.extend(k.to_ne_bytes());
        bytes
    };
    let (load, equal, end) = (0x20, 0x15, 0x06);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    [
        instruction(load, [0, 0], 0),
        instruction(equal, [0, 1], call as u32),
        instruction(end, [0, 0], refuse),
        instruction(end, [0, 0], libc::SECCOMP_RET_ALLOW),
    ]
    .concat()
}

#[test]
fn what_a_filter_refuses_is_named() {
    let doctor = library::cli();
    let dir = scratch("doctor-seccomp");
    let rows: [(i64, &str, &[&str]); 5] = [
        (libc::SYS_memfd_create, "memfd_create", &["warning sandbox", "warning device"]),
        (libc::SYS_pidfd_open, "pidfd_open", &["warning sandbox"]),
        (libc::SYS_process_vm_readv, "process_vm_readv", &["warning sandbox"]),
        (libc::SYS_eventfd2, "eventfd", &["broken sandbox", "broken device"]),
        (
            libc::SYS_socket,
            "socket(AF_INET, SOCK_DGRAM)",
            &["broken sandbox", "warning sandbox", "warning addresses"],
        ),
    ];
    for (call, name, expected) in rows {
        let filter = dir.join("filter");
        fs::write(&filter, without(call)).expect("the filter");
        let c = or_skip!(machine(&["--seccomp", "9"]));
        let mut sh = Command::new("sh");
        sh.args(["-c", "exec \"$@\" 9<\"$0\""]).arg(&filter).arg(c.get_program());
        let done = run(sh.args(c.get_args()).arg(&doctor).arg("doctor"), 60);
        finds(name, &done, expected, &format!("{name} is refused by a filter (seccomp)"));
    }
}

/// Files of /proc, /sys and /dev as on another machine.
fn another_machine(dir: &Path, files: &[(&str, &str)]) -> PathBuf {
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&root);
    let own = [("proc/self/status", "Seccomp:\t0\n"), ("dev/shm/x", ""), ("tmp/x", "")];
    for (path, text) in own.iter().chain(files) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    root
}

#[test]
fn troubles_of_a_nic_are_named() {
    let doctor = library::cli();
    let dir = scratch("doctor-nic");
    const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";
    let [state, layer, gid, kind, gid_1, kind_1] =
        ["state", "link_layer", "gids/3", "gid_attrs/types/3", "gids/0", "gid_attrs/types/0"]
            .map(|f| format!("{PORT}/{f}"));
    let nic: [(&str, &str); 7] = [
        (&state, "4: ACTIVE\n"),
        (&layer, "Ethernet\n"),
        (&gid, "0000:0000:0000:0000:0000:ffff:c000:0201\n"),
        (&kind, "RoCE v2\n"),
        ("dev/infiniband/uverbs0", ""),
        (&gid_1, "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
        (&kind_1, "IB/RoCE v1\n"),
    ];
    let gpu = ("dev/nvidia0", "");
    // It cannot be raised everywhere.
    let limits = fs::read_to_string("/proc/self/limits").expect("limits");
    let line = limits.lines().find(|l| l.starts_with("Max locked memory")).expect("memlock");
    let memlock = line.split_whitespace().nth(3).expect("a limit");
    let memlock_suffices = memlock.parse().map_or(true, |bytes: u64| bytes >= 64 << 20);
    type Row<'a> = (&'a str, &'a str, Vec<(&'a str, &'a str)>, &'a [&'a str], &'a str);
    let rows: [Row; 6] = [
        ("sound", ":", nic.to_vec(), &[], "RoCE v2 at GID index 3"),
        ("memlock", "ulimit -l 64", nic.to_vec(), &["warning memlock"], "64 KiB of memory"),
        (
            "port down",
            ":",
            [&[nic[4], nic[1], (&state, "1: DOWN\n")], &nic[2..4]].concat(),
            &["warning nic"],
            "1: DOWN (Ethernet)",
        ),
        ("no GID", ":", [&nic[..2], &nic[4..]].concat(), &["warning nic"], "no GID"),
        ("no device file", ":", nic[..4].to_vec(), &["warning nic"], "uverbs"),
        ("peermem", ":", [&nic[..], &[gpu]].concat(), &["warning gpu"], "nvidia_peermem"),
    ];
    for (what, limit, files, expected, said) in rows {
        let root = another_machine(&dir, &files);
        let c = or_skip!(machine(&[]));
        let script = format!("{limit}; exec \"$0\" \"$@\"");
        let mut sh = Command::new("bash");
        sh.args(["-c", &script]).arg(c.get_program()).args(c.get_args()).arg(&doctor);
        let done = run(sh.args(["doctor", "--root"]).arg(&root), 60);
        let mut expected = expected.to_vec();
        expected.extend((!memlock_suffices).then_some("warning memlock"));
        finds(what, &done, &expected, said);
    }
}

/// Compiles C with some options; `None`: this compiler is not here, or has not what it takes.
fn compiled(compiler: &str, text: &str, to: &Path, options: &[&str]) -> Option<PathBuf> {
    let source = to.with_extension("c");
    fs::write(&source, text).expect("a source");
    let mut c = Command::new(find(compiler)?);
    c.arg(&source).arg("-o").arg(to).args(options);
    run(&mut c, 60).ok().then(|| to.to_path_buf())
}

#[test]
fn the_libibverbs_of_a_program_is_named() {
    let doctor = library::cli();
    let dir = scratch("doctor-program");
    const USES: &str = "int f(void); int main(void) { return f(); }";
    let library = |folder: &str, name: &str| {
        fs::create_dir_all(dir.join(folder)).expect("a folder");
        let soname = format!("-Wl,-soname,{name}");
        let to = dir.join(folder).join(name);
        compiled("cc", "int f(void) { return 0; }", &to, &["-shared", "-fPIC", &soname])
    };
    let Some(ours) = library("ours", "libibverbs.so.1") else { skip!("no compiler (cc)") };
    let system = library("system", "libibverbs.so.1").expect("a library");
    let wheel = library("wheel", "libibverbs-5a1b.so.1").expect("a library");
    let gone = library("gone", "libother.so.1").expect("a library");
    let linked = |name: &str, to: &Path, tags: &str| {
        let rpath = format!("-Wl,{tags},-rpath,{}", to.parent().expect("a folder").display());
        let to = to.to_str().expect("a path");
        compiled("cc", USES, &dir.join(name), &[to, &rpath]).expect("a program")
    };
    let plain = linked("plain", &system, "--enable-new-dtags");
    // Its own folder comes before LD_LIBRARY_PATH, and after what is preloaded.
    let fixed = linked("fixed", &system, "--disable-new-dtags");
    let own = linked("own", &wheel, "--enable-new-dtags");
    let lacking = linked("lacking", &gone, "--enable-new-dtags");
    fs::remove_file(&gone).expect("removed");
    let mut foreign = fs::read(&plain).expect("a program");
    foreign[4] = 1;
    let narrow = dir.join("narrow");
    fs::write(&narrow, foreign).expect("a program");
    let loads = format!("by gdrcore-run it loads {}", ours.display());
    let broken: &[&str] = &["broken program"];
    let mut rows: Vec<(PathBuf, &[&str], &str)> = vec![
        (plain.clone(), &[], &loads),
        (fixed, &[], &loads),
        (own, &["warning program"], "RTLD_DEEPBIND"),
        (lacking, broken, "libother.so.1"),
        (narrow, broken, "another processor or word size"),
        (dir.join("nowhere"), broken, "no such program"),
    ];
    let main = "int main(void) { return 0; }";
    rows.extend(
        compiled("cc", main, &dir.join("static"), &["-static"])
            .map(|p| (p, broken, "statically linked")),
    );
    rows.extend(compiled("musl-gcc", main, &dir.join("musl"), &[]).map(|p| (p, broken, "ld-musl")));
    let rights = dir.join("rights");
    fs::copy(&plain, &rights).expect("a copy");
    if chown(&rights, Some(1), Some(1)).is_ok() {
        fs::set_permissions(&rights, fs::Permissions::from_mode(0o4755)).expect("its mode");
        rows.push((rights, broken, "rights of another user"));
    }
    for (program, expected, said) in rows {
        let mut c = or_skip!(machine(&[]));
        c.env("GDRC_LIBRARIES", dir.join("ours")).arg(&doctor).args(["doctor", "--"]);
        let done = run(c.arg(&program).arg("--json"), 60);
        finds(&program.display().to_string(), &done, expected, said);
    }
    let mut c = machine(&[]).expect("as before");
    c.env("GDRC_LIBRARIES", dir.join("wheel")).arg(&doctor).args(["doctor", "--"]);
    finds("no drop-in", &run(c.arg(&plain), 60), broken, "libibverbs.so.1 was not found");
}

/// Two hosts with a link, and a doctor at the second that listens.
struct Hosts {
    lab: Lab,
    doctor: PathBuf,
    listener: Option<Running>,
}

const HERE: &str = "10.9.0.1";
const THERE: &str = "10.9.0.2";

impl Hosts {
    fn new() -> Result<Hosts, String> {
        let lab = Lab::new(2)?;
        let at = |a: &str| format!("{a}/24");
        lab.link((0, "here", &[&at(HERE)]), (1, "there", &[&at(THERE)]))?;
        let doctor = library::cli();
        let mut hosts = Hosts { lab, doctor, listener: None };
        let listens = hosts.lab.command(1, &hosts.doctor);
        hosts.listen(listens);
        Ok(hosts)
    }

    fn listen(&mut self, mut command: Command) {
        let mut listener = Running::start(command.args(["doctor", "--listen"]));
        listener.wait_for_output("listening at");
        self.listener = Some(listener);
    }

    fn ask(&self, peer: &str) -> Done {
        run(self.lab.command(0, &self.doctor).args(["doctor", peer]), 60)
    }
}

#[test]
fn troubles_between_two_machines_are_named() {
    let mut hosts = or_skip!(Hosts::new());
    finds("a clean way", &hosts.ask(THERE), &[], "packets of path MTU 1024 arrive");
    let broken: &[&str] = &["broken firewall"];
    let rows: [(usize, &str, &str, &[&str], String); 8] = [
        (
            1,
            "input",
            "udp dport 4791 drop",
            broken,
            format!("to {THERE}, UDP port 4791: nothing arrives: a firewall drops it"),
        ),
        (
            1,
            "input",
            "udp dport 4791 reject",
            broken,
            format!("to {THERE}, UDP port 4791: nothing arrives: a firewall rejects it"),
        ),
        (
            1,
            "input",
            "udp dport 4791 reject with icmp type admin-prohibited",
            broken,
            "rejects it (No route to host".into(),
        ),
        (
            1,
            "output",
            "udp sport 4791 drop",
            broken,
            format!("from {THERE} to UDP port 4791: nothing arrives: a firewall drops it"),
        ),
        (
            0,
            "input",
            "iifname here udp sport 4791 drop",
            broken,
            format!("from {THERE} to UDP port 4791: nothing arrives: a firewall drops it"),
        ),
        (
            0,
            "output",
            "oifname here udp dport 4791 drop",
            broken,
            "this machine's own firewall refuses to send".into(),
        ),
        (
            1,
            "input",
            "udp length > 700 drop",
            &["broken mtu"],
            format!(
                "to {THERE}, UDP port 4791: packets of path MTU 512 arrive, those of 1024 vanish"
            ),
        ),
        (
            0,
            "input",
            "iifname here udp length > 700 drop",
            &["broken mtu"],
            format!("from {THERE} to UDP port 4791: packets of path MTU 512 arrive"),
        ),
    ];
    // Linux sends six refusals at once, then one a second; the limit is lifted.
    let unlimited = ["-c", "echo 0 >/proc/sys/net/ipv4/icmp_ratelimit"];
    let done = run(hosts.lab.privileged(1, Path::new("sh")).args(unlimited), 10);
    assert!(done.ok(), "{done}");
    for (host, hook, rule, expected, said) in rows {
        if let Err(why) = hosts.lab.firewall(host, hook, rule) {
            skip!("no firewall: {why}");
        }
        finds(rule, &hosts.ask(THERE), expected, &said);
        hosts.lab.firewall(host, hook, "accept").expect("as before");
    }
    // This machine's own firewall on its loopback interface.
    hosts.lab.firewall(0, "input", "iifname lo udp dport 4791 drop").expect("as before");
    finds("lo", &hosts.ask(THERE), &["broken device"], "UDP carries nothing");
    hosts.lab.firewall(0, "input", "accept").expect("as before");
    hosts.listener = None;
    let warning: &[&str] = &["warning peer"];
    finds("nobody listens", &hosts.ask(THERE), warning, "no program has the port");
    hosts.lab.firewall(1, "input", "drop").expect("as before");
    finds("silence", &hosts.ask(THERE), warning, "silence");
    finds("nobody there", &hosts.ask("10.9.0.77"), broken, "nobody has that address");
    finds("no route", &hosts.ask("192.0.2.1"), &["broken route"], "unreachable");
    hosts.lab.admin(1, &["link", "set", "there", "down"]).expect("down");
    let dark = ["warning link", "broken firewall"];
    let link = ["-br", "link", "show", "here"];
    patience::wait_for(60, "the end of the carrier", || {
        let shown = run(hosts.lab.privileged(0, Path::new("ip")).args(link), 10);
        shown.output.contains("NO-CARRIER")
    });
    finds("no carrier", &hosts.ask(THERE), &dark, "here with 10.9.0.1 has no carrier");
    hosts.lab.admin(0, &["link", "set", "here", "down"]).expect("down");
    let down = ["warning link", "broken route"];
    finds("link down", &hosts.ask(THERE), &down, "ip link set here up");
}

/// Answers one doctor as no doctor would.
fn odd_peer(listener: TcpListener, answer: Vec<u8>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a doctor");
        let mut from = BufReader::new(stream);
        // It may have gone.
        while from.read_line(&mut String::new()).is_ok_and(|n| n > 0) {
            if from.get_mut().write_all(&answer).is_err() {
                break;
            }
        }
    })
}

#[test]
fn odd_peers_are_named_and_do_no_harm() {
    let doctor = library::cli();
    let at = loopback(60, 1);
    let _udp = UdpSocket::bind((at.as_str(), 4791)).expect("a port of an address of its own");
    // One listener for all: a child that another test has just forked keeps a closed one's port.
    let listener = TcpListener::bind((at.as_str(), 4791)).expect("its TCP port");
    let rows: [(&str, Vec<u8>, &str); 5] = [
        ("another version", b"gdrcore-doctor 1 9.9.9\n".to_vec(), "9.9.9"),
        ("one that refuses", b"UDP port 4791: in use\n".to_vec(), "says: UDP port 4791: in use"),
        ("control characters", b"\x1b[2J\n".to_vec(), "silence"),
        ("an endless line", vec![b'x'; 100_000], "silence"),
        ("another protocol", b"\0\0\0\x01".to_vec(), "silence"),
    ];
    for (what, answer, said) in rows {
        let peer = odd_peer(listener.try_clone().expect("a listener"), answer);
        let done = run(Command::new(&doctor).args(["doctor", &at]), 60);
        assert!(done.code().is_some_and(|c| c > 0), "{what}: {done}");
        assert!(done.output.contains(said) && !done.output.contains('\x1b'), "{what}: {done}");
        peer.join().expect("the peer");
    }
    // The other way round.
    let at = loopback(60, 2);
    let mut listener = Running::start(Command::new(&doctor).args(["doctor", "--listen", &at]));
    listener.wait_for_output("listening at");
    for asked in [&b"\x1b\n"[..], &[b'y'; 5000], b"gdrcore-doctor 1 x nonsense\n", b""] {
        let mut stream = std::net::TcpStream::connect((at.as_str(), 4791)).expect("a listener");
        let _ = stream.write_all(asked);
        drop(stream);
    }
    let done = run(Command::new(&doctor).args(["doctor", &at]), 60);
    assert!(done.output.contains("arrive"), "{done}");
    assert!(listener.still_runs(), "{}", listener.output());
    assert!(!listener.output().contains('\x1b'));
}
