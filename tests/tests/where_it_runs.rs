//! The table "Where it runs" of docs/using/INSTALL.md: two processes exchange checked messages over
//! the drop-in in each of these surroundings, through shared memory and through UDP.

use gdrcore_tests::patience::wait_for;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{
    as_root, closed_to_others, find, installed, is_root, loopback, run, verbs_program, Scratch,
};
use gdrcore_tests::{library, or_skip, skip};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const RUN: &str = "bin/gdrcore-run";

/// The program in a folder with an installed gdrcore-run.
fn program(test: &str) -> Result<Scratch, String> {
    let (_, dir) = verbs_program(&format!("where-{test}"), "two_hosts", &[])?;
    for folder in ["bin", "lib/gdrcore"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    let built = library::dropin();
    for name in ["libibverbs.so.1", "libgdrcore_preload.so"] {
        fs::copy(built.join(name), dir.join("lib/gdrcore").join(name)).unwrap();
    }
    fs::copy(built.join("../bin/gdrcore-run"), dir.join(RUN)).unwrap();
    Ok(dir)
}

/// Runs it behind the words of a command that makes the surroundings.
fn exchange(dir: &Path, n: u32, path: &str, around: &[String]) -> String {
    let own = [RUN, "two_hosts"].map(|name| dir.join(name).display().to_string());
    let words = [around, &own].concat();
    let mut c = Command::new(&words[0]);
    c.args(&words[1..]).args([loopback(99, n), loopback(99, n + 1)]);
    c.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("GDRC_PATH", path);
    if let Some(factor) = std::env::var_os("GDRC_TEST_PATIENCE") {
        c.env("GDRC_TEST_PATIENCE", factor);
    }
    let done = run(&mut c, 60);
    assert!(
        done.ok() && done.output.contains("every byte arrived"),
        "GDRC_PATH={path} {words:?}: {done}"
    );
    done.output
}

/// Both paths in surroundings whose tool is the first word.
fn works(test: &str, n: u32, around: &[&str]) {
    works_within(test, n, |_| around.iter().map(|word| word.to_string()).collect());
}

/// As [`works`], in surroundings that are told where the program lies.
fn works_within(test: &str, n: u32, around: impl Fn(&Path) -> Vec<String>) {
    or_skip!(as_root());
    let dir = or_skip!(program(test));
    let around = around(&dir);
    let mut tools = around.iter().filter(|word| TOOLS.contains(&word.as_str()));
    if let Some(tool) = tools.find(|tool| find(tool).is_none()) {
        skip!("{tool} is not installed");
    }
    let may = run(Command::new(&around[0]).args(&around[1..]).arg("true"), 60);
    if !may.ok() {
        skip!("these surroundings cannot be made: {}", may.output.trim());
    }
    let closed = closed_to_others().filter(|_| around.iter().any(|word| word == "setpriv"));
    if let Some(closed) = closed {
        skip!("other users may not enter {}", closed.display());
    }
    exchange(&dir, n, "auto", &around);
    exchange(&dir, n, "udp", &around);
}

const TOOLS: [&str; 6] = ["bwrap", "setpriv", "prlimit", "unshare", "systemd-nspawn", "podman"];
/// All of the system as it is, in namespaces of mounts.
const SYSTEM: [&str; 5] = ["bwrap", "--die-with-parent", "--bind", "/", "/"];

#[test]
fn without_proc() {
    works("proc", 1, &[&SYSTEM[..], &["--tmpfs", "/proc"]].concat());
}

#[test]
fn without_devices_and_dev_shm() {
    works("dev", 3, &[&SYSTEM[..], &["--tmpfs", "/dev", "--remount-ro", "/dev"]].concat());
}

#[test]
fn on_a_file_system_that_is_read_only() {
    works("read-only", 5, &READ_ONLY);
}

const READ_ONLY: [&str; 5] = ["bwrap", "--die-with-parent", "--ro-bind", "/", "/"];

/// A directory for the sockets of this user and network, as a process outside has it.
struct SocketDir(PathBuf);

impl SocketDir {
    fn new() -> SocketDir {
        const SO_NETNS_COOKIE: libc::c_int = 71;
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let (mut cookie, mut len) = (0u64, 8);
        // SAFETY: room for the eight bytes that `len` names.
        let rc = unsafe {
            let to = (&raw mut cookie).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, to, &mut len)
        };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        let dir = PathBuf::from(format!("/dev/shm/gdrcore-0/{cookie:x}"));
        // Whoever uses it last does not take it away: it is not empty.
        let kept = dir.join(format!("kept-{}", std::process::id()));
        let mut make = fs::DirBuilder::new();
        make.recursive(true).mode(0o700);
        // Others take an empty one away, also between its making and that of what is in it.
        wait_for(10, "the directory", || make.create(&kept).is_ok());
        SocketDir(kept)
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
        // Fails while others use it.
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

#[test]
fn on_a_read_only_file_system_where_others_have_sockets() {
    if !is_root() || !Path::new("/dev/shm").is_dir() {
        skip!("only root makes all these surroundings");
    }
    let _dir = SocketDir::new();
    works("read-only-others", 21, &READ_ONLY);
}

#[test]
fn without_a_network() {
    works("network", 7, &[&SYSTEM[..], &["--unshare-net"]].concat());
}

/// A user whom no file names, without capabilities and without locked memory.
const NOBODY: [&str; 11] = [
    "prlimit",
    "--memlock=0:0",
    "setpriv",
    "--reuid=54321",
    "--regid=54321",
    "--clear-groups",
    "--no-new-privs",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--ambient-caps=-all",
    "--",
];

#[test]
fn as_a_user_without_a_name_capabilities_and_locked_memory() {
    works("nobody", 9, &NOBODY[..10]);
}

#[test]
fn in_a_namespace_of_users_within_one() {
    let twice = ["unshare", "--user", "--map-root-user", "unshare", "--user", "--map-root-user"];
    works("users", 11, &twice);
}

#[test]
fn with_nothing_of_all_that() {
    let all = ["--tmpfs", "/proc", "--tmpfs", "/dev", "--unshare-net", "--unshare-ipc"];
    works("nothing", 13, &[&SYSTEM[..], &all, &NOBODY[..10]].concat());
}

/// A folder of control groups, taken away again.
struct Group(PathBuf);

impl Group {
    /// With a limit, by the file of version 1 or that of version 2; the reason where this machine
    /// has none to give.
    fn new(limits: [(&str, &str, &str); 2]) -> Result<Group, String> {
        for (folder, file, limit) in limits {
            let name = format!("gdrc-test-{}-{file}", std::process::id());
            let at = Path::new(folder).join(name);
            if fs::create_dir(&at).is_err() {
                continue;
            }
            let group = Group(at);
            if fs::write(group.0.join(file), limit).is_ok() {
                return Ok(group);
            }
        }
        Err(format!("no control group with {} can be made here", limits[0].1))
    }

    /// Both paths within it.
    fn works(&self, test: &str, n: u32) {
        let enter = format!("echo $$ >{}/cgroup.procs; exec \"$0\" \"$@\"", self.0.display());
        works(test, n, &["sh", "-ec", &enter]);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn in_a_control_group_of_64_mib() {
    match Group::new([
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "67108864"),
        ("/sys/fs/cgroup", "memory.max", "67108864"),
    ]) {
        Ok(group) => group.works("group", 15),
        Err(why) => skip!("{why}"),
    }
}

#[test]
fn in_a_control_group_of_half_a_cpu() {
    match Group::new([
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "50000"),
        ("/sys/fs/cgroup", "cpu.max", "50000 100000"),
    ]) {
        Ok(group) => group.works("cpu", 23),
        Err(why) => skip!("{why}"),
    }
}

/// The root of a container in a folder, in which this machine's /usr is mounted.
fn make_root(at: &Path) {
    for name in ["usr", "proc", "dev", "sys", "tmp", "run", "var", "etc", "own"] {
        fs::create_dir_all(at.join(name)).unwrap();
    }
    for name in ["bin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), at.join(name)).unwrap();
    }
    fs::write(at.join("etc/os-release"), "").unwrap();
}

#[test]
fn in_systemd_nspawn() {
    works_within("nspawn", 25, |dir| {
        let root = dir.join("root");
        make_root(&root);
        let words = format!(
            "systemd-nspawn --quiet --register=no --keep-unit --private-network --console=pipe \
             --link-journal=no --setenv=GDRC_PATH --bind-ro=/usr --bind-ro={} --directory={}",
            dir.display(),
            root.display()
        );
        words.split(' ').map(str::to_string).collect()
    });
}

#[test]
fn in_podman_without_root() {
    works_within("podman", 27, |dir| {
        let (home, root) = (dir.join("home"), dir.join("home/root"));
        make_root(&root);
        let of_user = |at: &Path| std::os::unix::fs::lchown(at, Some(1000), Some(1000)).unwrap();
        of_user(&home);
        of_user(&root);
        fs::read_dir(&root).unwrap().for_each(|e| of_user(&e.unwrap().path()));
        let words = format!(
            "setpriv --reuid=1000 --regid=1000 --clear-groups env HOME={home} \
             XDG_RUNTIME_DIR={home} podman --log-level=error --runtime=runc \
             --cgroup-manager=cgroupfs --storage-driver=vfs run --rm --network=none \
             --ulimit=nofile=1024:1024 --ulimit=nproc=1024:1024 --env=GDRC_PATH \
             --volume=/usr:/usr:ro --volume={dir}:{dir}:ro --rootfs {root}",
            home = home.display(),
            dir = dir.display(),
            root = root.display()
        );
        words.split(' ').map(str::to_string).collect()
    });
}

/// The list of calls that podman allows, which is docker's.
const PROFILE: &str = "/usr/share/containers/seccomp.json";

#[test]
fn in_a_container_with_the_calls_that_docker_allows() {
    if !Path::new(PROFILE).exists() {
        skip!("no {PROFILE} (apt-get install golang-github-containers-common)");
    }
    let runtime = or_skip!(installed("runc"));
    or_skip!(as_root());
    let dir = or_skip!(program("seccomp"));
    let convert = root().join("tests/python/oci_seccomp.py");
    let rules = run(Command::new("python3").arg("-B").arg(convert).arg(PROFILE), 60);
    assert!(rules.ok(), "{rules}");
    let bundle = dir.join("bundle");
    make_root(&bundle.join("rootfs"));
    let begin = |n: usize, path: &str, words: &str| {
        let config = format!(
            r#"{{"ociVersion":"1.0.2","root":{{"path":"rootfs","readonly":true}},
"process":{{"terminal":false,"cwd":"/","user":{{"uid":1000,"gid":1000}},"noNewPrivileges":true,
"args":[{words}],"env":["GDRC_PATH={path}"]}},
"mounts":[{{"destination":"/proc","type":"proc","source":"proc"}},
{{"destination":"/dev","type":"tmpfs","source":"tmpfs"}},
{{"destination":"/usr","type":"bind","source":"/usr","options":["rbind","ro"]}},
{{"destination":"/own","type":"bind","source":{:?},"options":["rbind","ro"]}}],
"linux":{{"namespaces":[{{"type":"pid"}},{{"type":"ipc"}},{{"type":"uts"}},{{"type":"mount"}},
{{"type":"network"}}],"seccomp":{}}}}}"#,
            dir.display().to_string(),
            rules.output
        );
        fs::write(bundle.join("config.json"), config).unwrap();
        let mut c = Command::new(&runtime);
        c.arg("--root").arg(dir.join("kept")).args(["run", "--bundle"]).arg(&bundle);
        run(c.arg(format!("gdrc-where-{}-{n}", std::process::id())), 60)
    };
    let may = begin(0, "auto", "\"/bin/true\"");
    if !may.ok() {
        skip!("runc makes no container here: {}", may.output.trim());
    }
    for (n, path) in [(1, "auto"), (2, "udp")] {
        let at = |host| loopback(99, 15 + 2 * n as u32 + host);
        let words = format!(r#""/own/{RUN}","/own/two_hosts","{}","{}""#, at(0), at(1));
        let done = begin(n, path, &words);
        assert!(
            done.ok() && done.output.contains("every byte arrived"),
            "GDRC_PATH={path}: {done}"
        );
    }
}
