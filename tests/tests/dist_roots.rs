//! The artifacts of a release in roots without a compiler: installed, used by a user without
//! privileges, and taken off without a trace. Debian 12 takes part in every run, with artifacts of
//! the build at hand; all take part with `DIST_ALL` (make test-dist), with those of `make dist`.

use gdrcore_tests::debian_root::DebianRoot;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{
    all_installed, as_root, compile, find, installed, loopback, run, scratch, target_dir,
    verbs_compiler, Running, Scratch,
};
use gdrcore_tests::{or_skip, skip};
use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// What is installed how, the folder of its gdrcore-run, a check of its own, and its removal.
const KINDS: [(&str, &str, &str, &str, &str); 3] = [
    (
        "Debian packages",
        "dpkg -i /artifacts/*_$(dpkg --print-architecture).deb; \
         gdrcore-routerd --check /usr/share/doc/gdrcore-router/examples/router.toml",
        "/usr/bin",
        "gdrcore-devinfo -d soft:127.0.0.4; grep ^gdrcore: /etc/passwd /etc/group",
        "dpkg -P gdrcore-tools gdrcore-router gdrcore-ibverbs libgdrcore-dev libgdrcore0",
    ),
    (
        "tarball",
        "mkdir /opt/g && tar -xzf /artifacts/gdrcore-*-$(uname -m)-linux-gnu.tar.gz -C /opt/g \
         --strip-components=1",
        "/opt/g/bin",
        "gdrcore-devinfo -d soft:127.0.0.4",
        "rm -r /opt/g",
    ),
    (
        "wheel",
        "python3 -m pip install --no-index --no-compile \
         /artifacts/gdrcore-*$(uname -m).whl",
        "/usr/local/bin",
        "python3 -c 'import gdrcore as g; g.run([\"ibv_devinfo\", \"-d\", \"gdrc0\"], \
         \"127.0.0.4\", check=True); g.lib_dir().joinpath(\"libgdrcore.so.0\").stat(); \
         g.include_dir().joinpath(\"gdrcore.h\").stat(); \
         [g.run([\"python3\", \"-c\", \"import ctypes; ctypes.CDLL(\\\"lib%s.so\\\").%s\" % of], \
         \"127.0.0.4\", check=True) for of in \
         [(\"ibverbs\", \"ibv_fork_init\"), (\"mlx5\", \"mlx5dv_is_supported\")]]'",
        "python3 -m pip uninstall --yes gdrcore",
    ),
];

/// Whether all roots take part.
fn all() -> bool {
    std::env::var_os("DIST_ALL").is_some()
}

/// The folder of the artifacts, which are packed once for this process.
fn artifacts() -> PathBuf {
    static ONCE: OnceLock<PathBuf> = OnceLock::new();
    ONCE.get_or_init(|| {
        let dist = target_dir().join("dist");
        if all() {
            return dist.join("out");
        }
        let done = run(Command::new(root().join("dist/dist.sh")).arg("--here"), 900);
        assert!(done.ok(), "{done}");
        dist.join("here/out")
    })
    .clone()
}

/// A shell's script in a root that it may change; without a way to the network.
fn in_root(at: &Path, script: &str) -> String {
    let mut c = Command::new("bwrap");
    c.args(["--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent"]);
    c.args(["--cap-add", "ALL", "--bind"]).arg(at).arg("/");
    c.args(["--dev", "/dev", "--proc", "/proc", "--ro-bind"]).arg(artifacts()).arg("/artifacts");
    c.arg("--ro-bind").arg(root().join("dist")).arg("/dist");
    c.args(["--tmpfs", "/tmp", "--clearenv", "--setenv", "PATH", "/usr/sbin:/usr/bin:/sbin:/bin"]);
    // By variables, since Debian 11's pip knows no such options.
    c.args(["--setenv", "PIP_BREAK_SYSTEM_PACKAGES", "1"]);
    c.args(["--setenv", "PIP_ROOT_USER_ACTION", "ignore"]);
    // Python's own files get no compiled copies meanwhile.
    c.args(["--setenv", "PYTHONDONTWRITEBYTECODE", "1", "--", "/bin/sh", "-ec", script]);
    let done = run(&mut c, 300);
    assert!(done.ok(), "{script}\n{done}");
    done.output
}

/// The names of a root, but those in which the system's tools keep notes, and its users.
fn names(at: &Path) -> Vec<String> {
    let listed = in_root(
        at,
        "find / -xdev ! -path '/run/*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' \
         ! -path '/var/cache/*' \
         ! -path '/artifacts*' ! -path '/dist*' ! -path '/tmp*' ! -path '/etc/ld.so.cache' \
         ! -path '/etc/*-' ! -path '/etc/.pwd.lock' | sort; cat /etc/passwd /etc/group",
    );
    listed.lines().map(str::to_string).collect()
}

/// What packing needs.
const TOOLS: [&str; 3] = ["dpkg-deb", "python3", "readelf"];

fn serves(release: &str) {
    if !all() && release != "bookworm" {
        skip!("make test-dist runs in the roots of all releases");
    }
    or_skip!(all_installed(&TOOLS));
    or_skip!(installed("bwrap"));
    let system = or_skip!(DebianRoot::installed(release));
    let dir = scratch(&format!("dist-{release}"));
    let at = dir.join("root");
    system.copy_to(&at);
    // Where the tarball goes, and a file of the administrator's: pip takes empty folders off.
    in_root(&at, "mkdir -p /artifacts /dist /opt; touch /usr/local/bin/own");
    let before = names(&at);
    for (kind, install, bin, own, remove) in KINDS {
        in_root(&at, install);
        let user = format!(
            "export PATH={bin}:$PATH; {own}; gdrcore doctor; gdrcore run --version; \
             /dist/ping_pong.sh"
        );
        let user = user.replace('\'', "'\\''");
        let done = in_root(
            &at,
            &format!(
                "chmod 1777 /tmp /dev/shm; cd /tmp; exec setpriv --reuid 1000 --regid 1000 \
                 --clear-groups --no-new-privs --bounding-set=-all sh -ec '{user}'"
            ),
        );
        assert_eq!(done.matches("iters in").count(), 4, "{kind}: {done}");
        in_root(&at, remove);
        let after = names(&at);
        let without = |of: &[String], those: &[String]| -> Vec<String> {
            of.iter().filter(|n| !those.contains(n)).cloned().collect()
        };
        assert_eq!(without(&after, &before), [""; 0], "{kind} leaves these");
        assert_eq!(without(&before, &after), [""; 0], "{kind} takes these with it");
    }
}

#[test]
fn debian_11() {
    serves("bullseye");
}

#[test]
fn debian_12() {
    serves("bookworm");
}

#[test]
fn debian_13() {
    serves("trixie");
}

/// The scripts of the steps of action.yml.
fn steps_of_the_action() -> Vec<String> {
    let text = fs::read_to_string(root().join("action.yml")).expect("action.yml");
    assert!(text.contains("        WHEEL: ${{ inputs.wheel }}\n"), "what the steps are told");
    let of_step = |step: &str| -> String {
        let (_, script) = step.split_once("      run: |\n").expect("a script");
        script.lines().map(|line| format!("{}\n", line.get(8..).unwrap_or_default())).collect()
    };
    text.split("\n    - name: ").skip(1).map(of_step).collect()
}

/// As in a job that runs in a container: root, without sudo. What apt would install is there.
#[test]
fn the_steps_of_the_action_install_the_wheel_and_check_it() {
    or_skip!(all_installed(&TOOLS));
    or_skip!(installed("bwrap"));
    let system = or_skip!(DebianRoot::installed("bookworm"));
    let dir = scratch("dist-action");
    let at = dir.join("root");
    system.copy_to(&at);
    in_root(&at, "mkdir -p /artifacts /dist /job/shim");
    let steps = steps_of_the_action();
    assert_eq!(steps.len(), 2);
    for (n, step) in steps.iter().enumerate() {
        fs::write(at.join(format!("job/{n}.sh")), step).expect("a step");
    }
    fs::write(at.join("job/shim/apt-get"), "#!/bin/sh\necho apt-get \"$@\"\n").expect("apt-get");
    let step = |n: u32| format!("bash --noprofile --norc -eo pipefail /job/{n}.sh");
    // What a job's runner sets, and what it does with a step's additions to the path.
    let script = format!(
        "chmod +x /job/shim/apt-get; export PATH=/job/shim:$PATH RUNNER_TEMP=/job \
         GITHUB_PATH=/job/path GITHUB_ACTION_PATH=/. WHEEL='/artifacts/none-*.whl'; \
         if {}; then exit 9; fi; export WHEEL=\"/artifacts/gdrcore-*$(uname -m).whl\"; {}; \
         export PATH=\"$(cat /job/path):$PATH\"; {}; \
         [ \"$(command -v python3)\" = /usr/bin/python3 ]; gdrcore run --version; gdrcore doctor",
        step(0),
        step(0),
        step(1)
    );
    let done = in_root(&at, &script);
    let asked = done.lines().find(|line| line.starts_with("apt-get install "));
    assert!(asked.is_some_and(|line| line.ends_with(" ibverbs-utils")), "{done}");
    assert_eq!(done.matches("iters in").count(), 4, "{done}");
}

#[test]
fn the_wheels_need_no_later_glibc_than_2_28_and_less_than_8_mb() {
    if !all() {
        skip!("make test-dist packs what an old root has built");
    }
    let listed = fs::read_dir(artifacts()).expect("the artifacts").flatten();
    let names: Vec<String> = listed.map(|e| e.file_name().to_string_lossy().into()).collect();
    let wheels: Vec<&String> = names.iter().filter(|name| name.ends_with(".whl")).collect();
    assert!(!wheels.is_empty(), "{names:?}");
    for wheel in wheels {
        let (_, tag) = wheel.split_once("-manylinux_2_").expect("a tag");
        let minor = tag.split('_').next().and_then(|n| n.parse::<u32>().ok());
        assert!(minor.is_some_and(|n| n <= 28), "{wheel}");
        let bytes = fs::metadata(artifacts().join(wheel)).expect("a wheel").len();
        assert!(bytes < 8_000_000, "{wheel}: {bytes} bytes");
    }
}

/// The tarball for another C library or architecture, unpacked; `Err`: why there is none.
fn unpacked(kind: &str, target: &str) -> Result<Scratch, String> {
    if !all() {
        return Err(format!("make test-dist packs and runs what is for {kind}"));
    }
    let is_for_it =
        |e: &fs::DirEntry| e.path().to_string_lossy().ends_with(&format!("-{kind}.tar.gz"));
    let mut all = fs::read_dir(artifacts()).expect("the artifacts").flatten();
    let tarball = all.find(is_for_it).ok_or_else(|| {
        format!("make dist packed nothing for {kind} (rustup target add {target})")
    })?;
    let dir = scratch(&format!("dist-{kind}"));
    let mut c = Command::new("tar");
    c.args(["--strip-components=1", "-C"]).arg(&*dir).arg("-xzf").arg(tarball.path());
    let done = run(&mut c, 60);
    assert!(done.ok(), "{done}");
    Ok(dir)
}

/// As on Alpine: musl's loader and C library, and nothing else of this system.
#[test]
fn a_program_of_musl_runs_on_the_tarball_for_musl() {
    if find("musl-gcc").is_none() || !Path::new("/usr/include/infiniband/verbs.h").exists() {
        skip!("no program of musl can be compiled (apt-get install musl-tools libibverbs-dev)");
    }
    let dir = or_skip!(unpacked("x86_64-linux-musl", "x86_64-unknown-linux-musl"));
    let (headers, drop_in) = ("-idirafter", format!("-L{}", dir.join("lib/gdrcore").display()));
    let machine = format!("/usr/include/{ARCH}-linux-gnu");
    let more = [headers, "/usr/include", headers, &machine, &drop_in, "-libverbs"];
    let program = compile("musl-gcc", "two_hosts", &dir, &more);
    for path in ["auto", "udp"] {
        let mut c = Command::new(dir.join("bin/gdrcore-run"));
        c.args(["--path", path]).arg(&program).args([loopback(98, 1), loopback(98, 2)]);
        assert_eq!(run(&mut c, 60).output.trim(), "every byte arrived", "{path}");
    }
}

/// By qemu-user, which starts no program from within another: the loader is told of the drop-in, as
/// gdrcore-run tells it.
#[test]
fn programs_of_aarch64_run_on_the_tarball_for_it() {
    or_skip!(all_installed(&["aarch64-linux-gnu-gcc", "qemu-aarch64"]));
    or_skip!(verbs_compiler());
    let dir = or_skip!(unpacked("aarch64-linux-gnu", "aarch64-unknown-linux-gnu"));
    let emulated = |program: &Path| {
        let mut c = Command::new("qemu-aarch64");
        c.args(["-L", "/usr/aarch64-linux-gnu"]).arg(program);
        c
    };
    // The library beside them is found from where they lie.
    for tool in ["gdrcore", "gdrcore-run", "gdrcore-devinfo", "gdrcore-routerd"] {
        let done = run(emulated(&dir.join("bin").join(tool)).arg("--version"), 60);
        let expected = format!("{tool} {}\n", env!("CARGO_PKG_VERSION"));
        assert!(done.ok() && done.output == expected, "{done}");
    }
    let drop_in = dir.join("lib/gdrcore");
    let link = format!("-L{}", drop_in.display());
    let more = ["-idirafter", "/usr/include", &link, "-l:libibverbs.so.1"];
    let program = compile("aarch64-linux-gnu-gcc", "two_hosts", &dir, &more);
    for path in ["auto", "udp"] {
        let mut c = emulated(&program);
        c.env("GDRC_PATH", path).env("LD_LIBRARY_PATH", &drop_in);
        let done = run(c.args([loopback(98, 3), loopback(98, 4)]), 120);
        assert_eq!(done.output.trim(), "every byte arrived", "{path}");
    }
}

/// The OCI archive for an architecture, once it is packed; `Err`: why it is not.
fn image(arch: &str) -> Result<PathBuf, String> {
    all_installed(&TOOLS)?;
    let mut all = fs::read_dir(artifacts()).expect("the artifacts").flatten().map(|e| e.path());
    let end = format!("-{arch}.oci.tar");
    let image = all.find(|p| p.to_string_lossy().ends_with(&end));
    image.ok_or("no image was packed: mmdebstrap makes no root here".into())
}

/// Unpacks an image into a folder, as `bundle/rootfs` and `bundle/config.json`.
fn unpack(image: &Path, dir: &Path) {
    let unpack = "mkdir oci; tar -xf \"$0\" -C oci; umoci unpack --image oci:\"$1\" bundle";
    let mut c = Command::new("sh");
    c.args(["-ec", unpack]).arg(image).arg(format!("gdrcore:{}", env!("CARGO_PKG_VERSION")));
    let done = run(c.current_dir(dir), 120);
    assert!(done.ok(), "{done}");
}

/// The words of a ping-pong on a device of a container of the image.
fn ping_pong(n: u32) -> Vec<String> {
    let words = format!("--address 127.0.0.{n} ibv_rc_pingpong -g 0 -c");
    words.split(' ').map(str::to_string).collect()
}

/// A command that takes a container away, also of a test that fails.
struct Removal(Command);

impl Drop for Removal {
    fn drop(&mut self) {
        run(&mut self.0, 60);
    }
}

/// A checked ping-pong within one container: it begins with the server, and a command enters it
/// with the client.
fn serves_within(begin: &mut Command, enter: impl Fn() -> Command, remove: Command) {
    let _removal = Removal(remove);
    let mut server = Running::start(begin);
    // The client may be killed at the end: the container ends with its server, who has checked all.
    wait_for(60, "a server that listens", || {
        let mut client = enter();
        let client = run(client.arg("gdrcore-run").args(ping_pong(3)).arg("127.0.0.1"), 60);
        client.ok() || !server.still_runs()
    });
    let done = server.finish(Duration::from_secs(60));
    assert!(done.ok() && done.output.contains("iters in"), "{done}");
    assert!(!done.output.contains("invalid data"), "{done}");
}

#[test]
fn the_image_starts_in_runc() {
    let image = or_skip!(image(ARCH));
    or_skip!(all_installed(&["umoci", "runc"]));
    or_skip!(as_root());
    let dir = scratch("dist-runc");
    unpack(&image, &dir);
    // The program and its words in place of those of the image, whose terminal this is not.
    let edit = "import json, sys; file = sys.argv[1]; config = json.load(open(file)); \
                process = config['process']; assert process['user']['uid'] == 65534; \
                process['terminal'] = False; process['args'][1:] = sys.argv[2:]; \
                json.dump(config, open(file, 'w'))";
    let name = format!("gdrc-image-{}", std::process::id());
    let runc = |words: &[&str]| {
        let mut c = Command::new("runc");
        c.current_dir(&dir).args(["--root", "kept"]).args(words);
        c
    };
    let begin = |words: &[String]| {
        let mut c = Command::new("python3");
        c.args(["-c", edit]).arg(dir.join("bundle/config.json")).args(words);
        let done = run(&mut c, 60);
        assert!(done.ok(), "{done}");
        runc(&["run", "--bundle", "bundle", &name])
    };
    let may = run(&mut begin(&["--version".into()]), 60);
    if may.output.contains("runc create failed") {
        skip!("runc makes no container here: {}", may.output.trim());
    }
    assert!(may.ok() && may.output.starts_with("gdrcore-run "), "{may}");
    let remove = runc(&["delete", "--force", &name]);
    serves_within(&mut begin(&ping_pong(2)), || runc(&["exec", &name]), remove);
}

#[test]
fn the_image_starts_in_podman() {
    let image = or_skip!(image(ARCH));
    or_skip!(all_installed(&["podman", "runc"]));
    // All of podman's own files in folders of this test, and nothing asked of systemd. The path of
    // one may have 50 characters at most.
    let dir = scratch("dist-podman");
    let short = std::env::temp_dir().join(format!("gdrc-podman-{}", std::process::id()));
    let mut remove = Command::new("rm");
    remove.arg("-rf").arg(&short);
    let _removal = Removal(remove);
    let podman = |words: &[&str]| {
        let mut c = Command::new("podman");
        c.arg("--root").arg(dir.join("root")).arg("--tmpdir").arg(dir.join("tmp"));
        c.arg("--runroot").arg(&short);
        c.args(["--cgroup-manager=cgroupfs", "--storage-driver=vfs", "--runtime=runc"]).args(words);
        c
    };
    let loaded = run(podman(&["load", "-q", "-i"]).arg(&image), 120);
    if !loaded.ok() {
        skip!("podman loads nothing here: {}", loaded.output.trim());
    }
    let tag = format!("gdrcore:{}", env!("CARGO_PKG_VERSION"));
    assert!(loaded.output.contains(&format!("localhost/{tag}")), "{loaded}");
    let name = format!("gdrc-image-{}", std::process::id());
    let begin = || {
        let mut c = podman(&["run", "--rm", "--network=none", "--cap-drop=ALL", "--read-only"]);
        c.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--name"]);
        c.arg(&name).arg(&tag);
        c
    };
    let listed = run(&mut begin(), 60);
    if listed.output.contains("OCI ") {
        skip!("podman makes no container here: {}", listed.output.trim());
    }
    assert!(listed.ok() && listed.output.contains("gdrc0"), "{listed}");
    let remove = podman(&["rm", "--force", &name]);
    serves_within(begin().args(ping_pong(2)), || podman(&["exec", &name]), remove);
}

/// In a user namespace whose kernel starts each program of aarch64 by qemu: the entry point of the
/// image starts the image's own programs.
#[test]
fn the_image_for_aarch64_starts_by_qemu() {
    const FORMAT: &str = "/usr/lib/binfmt.d/qemu-aarch64.conf";
    if !all() {
        skip!("make test-dist packs and runs what is for aarch64");
    }
    let image = or_skip!(image("aarch64"));
    or_skip!(all_installed(&["bwrap", "umoci", "unshare"]));
    if !Path::new(FORMAT).exists() || find("qemu-aarch64-static").is_none() {
        skip!("no qemu that starts by itself (apt-get install qemu-user-static)");
    }
    let within = |script: &str| {
        let emulate = "mount -t binfmt_misc formats /proc/sys/fs/binfmt_misc; ip link set lo up";
        let mut c = Command::new("unshare");
        c.args(["--map-root-user", "--mount", "--net", "sh", "-ec"]);
        run(c.arg(format!("{emulate}; {script}")), 300)
    };
    let may = within("");
    if !may.ok() {
        skip!("no formats of a user namespace's own (Linux 6.7): {}", may.output.trim());
    }
    let dir = scratch("dist-qemu");
    unpack(&image, &dir);
    // What a container of the image is, by the name of its entry point.
    let container = format!(
        "#!/bin/sh\nexec bwrap --unshare-user --uid 65534 --gid 65534 --ro-bind {} / --proc /proc \
         --dev /dev --tmpfs /tmp --clearenv --setenv PATH /usr/bin:/bin gdrcore-run \"$@\"\n",
        dir.join("bundle/rootfs").display()
    );
    let shim = dir.join("gdrcore-run");
    fs::write(&shim, container).expect("a container's start");
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).expect("its mode");
    let done = within(&format!(
        "cat {FORMAT} >/proc/sys/fs/binfmt_misc/register; export PATH={}:$PATH; \
         gdrcore-run ibv_devinfo; {}",
        dir.display(),
        root().join("dist/ping_pong.sh").display()
    ));
    assert!(done.ok() && done.output.contains("gdrc0"), "{done}");
    assert_eq!(done.output.matches("iters in").count(), 4, "{done}");
}

/// Packs a build's trees; returns the folder of the artifacts. In a time to come, since times of
/// files that are later than the release's are cut anyway.
fn packed(trees: &Path, out: PathBuf) -> PathBuf {
    let mut c = Command::new("python3");
    c.arg("-B").arg(root().join("dist/pack.py")).arg("--trees").arg(trees).arg("--out").arg(&out);
    let done = run(c.env("SOURCE_DATE_EPOCH", "4102444800"), 300);
    assert!(done.ok(), "{done}");
    out
}

#[test]
fn the_same_trees_give_the_same_bytes() {
    or_skip!(all_installed(&TOOLS));
    let trees = artifacts().parent().expect("a folder").join(if all() { "old" } else { "." });
    let dir = scratch("dist-bytes");
    // Files of another age, in another place.
    let again = dir.join("trees");
    let names = ["any", "system", "debug", "stubs"].map(|n| trees.join(n));
    // Those that not every system makes: an artifact each.
    let more = ["base", "musl"].map(|n| trees.join(n));
    let more: Vec<&PathBuf> = more.iter().filter(|n| n.exists()).collect();
    let mut copy = Command::new("sh");
    copy.args(["-ec", "mkdir \"$0\"; umask 077; cp -dR --preserve=mode \"$@\" \"$0\""]);
    let done = run(copy.arg(&again).args(&names).args(&more), 120);
    assert!(done.ok(), "{done}");
    let sums = [(&trees, "one"), (&again, "two")].map(|(trees, out)| {
        let out = packed(trees, dir.join(out));
        let sums = std::fs::read_to_string(out.join("SHA256SUMS")).expect("the sums");
        let done = run(Command::new("sha256sum").args(["-c", "SHA256SUMS"]).current_dir(&out), 60);
        assert!(done.ok(), "{done}");
        sums
    });
    assert_eq!(sums[0].lines().count(), 9 + more.len(), "{}", sums[0]);
    assert_eq!(sums[0], sums[1]);
}

/// The loader of Debian 13 refuses such a library.
#[test]
fn no_library_needs_an_executable_stack() {
    or_skip!(all_installed(&TOOLS));
    let trees = artifacts().parent().expect("a folder").join(if all() { "old" } else { "." });
    let list = "find any stubs -type f -name '*.so*' -exec readelf --wide --segments {} +";
    let done = run(Command::new("sh").args(["-ec", list]).current_dir(trees), 60);
    let stacks: Vec<&str> = done.output.lines().filter(|l| l.contains("GNU_STACK")).collect();
    // One that says nothing is taken for one that needs it.
    let files = done.output.matches(" program headers, starting").count();
    assert!(files >= 7 && stacks.len() == files, "{done}");
    let executable = |line: &&&str| line.contains(" RWE ");
    assert_eq!(stacks.iter().find(executable), None, "{done}");
}

#[test]
fn lintian_finds_nothing_in_the_packages() {
    let lintian = or_skip!(installed("lintian"));
    or_skip!(all_installed(&TOOLS));
    let out = artifacts();
    let mut c = Command::new(lintian);
    c.args(["--allow-root", "--fail-on", "error,warning"]);
    for name in ["libgdrcore0", "libgdrcore-dev", "gdrcore-tools", "gdrcore-ibverbs"] {
        c.arg(package(&out, name));
    }
    let done = run(c.arg(package(&out, "gdrcore-router")), 300);
    assert!(done.ok(), "{done}");
}

/// The file of a package.
fn package(out: &Path, name: &str) -> PathBuf {
    let begins = format!("{name}_");
    let mut all = std::fs::read_dir(out).expect("artifacts").map(|e| e.expect("a file").path());
    let is = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&begins));
    all.find(is).unwrap_or_else(|| panic!("no {name}"))
}

/// Behind pytest: the same by CTest, with gdrcore-run on the path.
const BY_CTEST: &str = "export PATH=\"$PWD/../site/gdrcore/_root/bin:$PATH\"; cmake -B build; \
                        cmake --build build; ctest --test-dir build";

#[test]
fn the_sample_project_passes_with_the_wheel() {
    let sees = |check: &str| run(Command::new("/usr/bin/python3").args(["-c", check]), 60).ok();
    if !sees("import pytest") {
        skip!("no pytest (python3-pytest)");
    }
    or_skip!(verbs_compiler());
    or_skip!(all_installed(&TOOLS));
    or_skip!(installed("unshare"));
    let dir = scratch("dist-ci");
    let script = format!(
        "cp -r '{}' ci; /usr/bin/python3 -m zipfile -e '{}'/gdrcore-*$(uname -m).whl site; \
         chmod +x site/gdrcore/_root/bin/*; cd ci; make -s register; \
         /usr/bin/python3 -m pytest -v; {}",
        root().join("examples/ci").display(),
        artifacts().display(),
        if find("cmake").is_some() { BY_CTEST } else { "" }
    );
    // Alone with its loopback interface: the ping-pong has a port of TCP.
    let mut c = Command::new("unshare");
    c.args(["--map-root-user", "--net", "sh", "-ec", &format!("ip link set lo up; {script}")]);
    c.current_dir(&dir).env("PYTHONPATH", dir.join("site"));
    let done = run(&mut c, 300);
    assert!(done.ok() && done.output.contains("2 passed"), "{done}");
    or_skip!(installed("cmake"));
    assert!(done.output.contains("100% tests passed"), "{done}");
}
