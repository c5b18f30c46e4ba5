//! What a container is made with: the namespaces of a [`Lab`], bubblewrap or runc. A program in it
//! has no capability and no device, and its router's folder where images look for it.

use crate::lab::Lab;
use crate::library;
use crate::router::{contained, on_the_drop_in};
use crate::source::root;
use crate::tools::{find, is_root, run};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::LazyLock;

/// Where a container has its router's folder.
const MOUNTED: &str = "/run/gdrcore";
/// What stands for root in a container of runc, and how many users it has.
const RUNC_USERS: [u32; 2] = [100_000, 65_536];

/// What makes a container. Its network is that of a place of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// `unshare` and `nsenter`: the place itself, and a variable in place of the mount.
    Namespaces,
    /// `bwrap` by the place's root, with namespaces of its own but for the network.
    Bubblewrap,
    /// `runc run` by root, users of its own, and the network of the place.
    Runc,
}

impl Maker {
    /// What this machine lacks for it.
    pub fn lacks(self) -> Option<String> {
        let fails = |c: &mut Command| {
            let done = run(c, 20);
            (!done.ok()).then(|| done.output.trim().to_string())
        };
        match self {
            Maker::Namespaces => None,
            Maker::Bubblewrap => match find("bwrap") {
                None => Some("bwrap is not installed (bubblewrap)".into()),
                Some(bwrap) => {
                    fails(Command::new(bwrap).args(BWRAP).args(["--ro-bind", "/", "/", "true"]))
                }
            },
            Maker::Runc if !is_root() => Some("runc makes these containers for root alone".into()),
            Maker::Runc => match find("runc") {
                None => Some("runc is not installed (runc)".into()),
                Some(_) => None,
            },
        }
    }
}

const BWRAP: [&str; 7] = [
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--die-with-parent",
    "--cap-drop",
    "ALL",
];

/// Containers of one maker.
pub struct Containers {
    maker: Maker,
    /// Of runc: bundles, and what it keeps of its own.
    dir: PathBuf,
    next: AtomicU32,
}

/// A program of a container.
pub struct Inside<'a> {
    /// The place of the lab whose network it has.
    pub place: usize,
    /// The router's socket, in a folder of the tenant's own.
    pub socket: &'a Path,
    /// The program and its arguments.
    pub words: &'a [String],
    /// Variables besides those that find the drop-in.
    pub environment: &'a [(&'a str, &'a str)],
    /// Folders that it sees, and may write into.
    pub folders: &'a [&'a Path],
}

impl Containers {
    /// `dir`: a folder that may be filled.
    pub fn new(maker: Maker, dir: PathBuf) -> Containers {
        Containers { maker, dir, next: AtomicU32::new(0) }
    }

    /// The command that runs a program in a container.
    pub fn command(&self, lab: &Lab, inside: &Inside) -> Command {
        let program = Path::new(&inside.words[0]);
        let folder = inside.socket.parent().expect("a socket in a folder");
        let mut c = match self.maker {
            Maker::Namespaces => contained(lab, inside.place, program, Some(inside.socket)),
            Maker::Bubblewrap => {
                let bwrap = find("bwrap").expect("Maker::lacks was asked");
                let mut c = lab.privileged(inside.place, &bwrap);
                on_the_drop_in(&mut c);
                c.args(BWRAP).args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
                c.args(["--tmpfs", "/tmp", "--tmpfs", "/run", "--ro-bind"]);
                c.arg(folder).arg(MOUNTED);
                // Mounted again: the tmpfs hides a checkout below /tmp.
                c.args(["--ro-bind", &*BUILD, &*BUILD]);
                for folder in inside.folders {
                    c.arg("--bind").arg(folder).arg(folder);
                }
                c.arg("--").arg(program);
                c
            }
            Maker::Runc => return self.runc(lab, inside, folder),
        };
        c.envs(inside.environment.iter().copied()).args(&inside.words[1..]);
        c
    }

    fn runc(&self, lab: &Lab, inside: &Inside, folder: &Path) -> Command {
        let n = self.next.fetch_add(1, Relaxed);
        let bundle = self.dir.join(format!("bundle-{n}"));
        // What is mounted has a place that is there already: the container's users may make none.
        let shown = inside.folders.iter().copied().chain([Path::new(&*BUILD)]);
        make_root(&bundle.join("rootfs"), shown).expect("a root for a container");
        let config = spec(&lab.netns(inside.place), folder, inside);
        fs::write(bundle.join("config.json"), config).expect("a file");
        let mut c = Command::new(find("runc").expect("Maker::lacks was asked"));
        c.arg("--root").arg(self.kept()).args(["run", "--bundle"]).arg(bundle);
        c.arg(format!("gdrc-{}-{n}", std::process::id()));
        c
    }

    /// What runc keeps of containers that run.
    fn kept(&self) -> PathBuf {
        self.dir.join("runc")
    }
}

impl Drop for Containers {
    /// A container of runc outlives the command that was killed.
    fn drop(&mut self) {
        let Ok(left) = fs::read_dir(self.kept()) else { return };
        for id in left.flatten() {
            let mut c = Command::new("runc");
            run(
                c.arg("--root").arg(self.kept()).args(["delete", "--force"]).arg(id.file_name()),
                20,
            );
        }
    }
}

/// The folder of what was built.
static BUILD: LazyLock<String> =
    LazyLock::new(|| root().join("build").to_str().expect("a path of text").into());

/// Makes a root file system: copies of what this machine's programs need, and mount points for the
/// rest.
fn make_root<'a>(at: &Path, shown: impl Iterator<Item = &'a Path>) -> io::Result<()> {
    for name in ["usr", "etc", "proc", "sys", "dev", "tmp", "run/gdrcore"] {
        fs::create_dir_all(at.join(name))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), at.join(name))?;
    }
    for folder in shown {
        fs::create_dir_all(at.join(folder.strip_prefix("/").expect("an absolute path")))?;
    }
    Ok(())
}

/// The container's description, as the OCI's runtime specification has it.
fn spec(network: &str, folder: &Path, inside: &Inside) -> String {
    let text = |s: &str| {
        assert!(!s.contains(['"', '\\', '\n']), "not for this: {s}");
        format!("\"{s}\"")
    };
    let list = |all: Vec<String>| all.join(",");
    let args = list(inside.words.iter().map(|w| text(w)).collect());
    let path = std::env::var("PATH").unwrap_or_default();
    let drop_in = library::dropin().display().to_string();
    let env = [("PATH", &*path), ("LD_LIBRARY_PATH", &drop_in), ("HOME", "/tmp")];
    let env =
        env.iter().chain(inside.environment).map(|(name, value)| text(&format!("{name}={value}")));
    let env = list(env.collect());
    let bind = |from: &Path, to: &Path, how: &str| {
        format!(
            r#"{{"destination":{to:?},"type":"bind","source":{from:?},"options":["rbind","{how}"]}}"#
        )
    };
    let same = |path: &str| bind(Path::new(path), Path::new(path), "ro");
    let mut mounts = vec![same("/usr"), same("/etc"), same("/sys"), same(&BUILD)];
    mounts.push(bind(folder, Path::new(MOUNTED), "ro"));
    mounts.extend(inside.folders.iter().map(|f| bind(f, f, "rw")));
    let fresh = |to: &str, kind: &str| {
        format!(r#"{{"destination":"{to}","type":"{kind}","source":"{kind}"}}"#)
    };
    // Before those that are mounted into them.
    let to = [("/proc", "proc"), ("/dev", "tmpfs"), ("/dev/shm", "tmpfs"), ("/tmp", "tmpfs")];
    mounts.splice(0..0, to.map(|(to, kind)| fresh(to, kind)));
    let mounts = list(mounts);
    let kinds =
        ["pid", "ipc", "uts", "mount", "user"].map(|kind| format!(r#"{{"type":"{kind}"}}"#));
    let kinds = list(kinds.to_vec());
    let [first, count] = RUNC_USERS;
    let ids = format!(r#"[{{"containerID":0,"hostID":{first},"size":{count}}}]"#);
    format!(
        r#"{{"ociVersion":"1.0.2","root":{{"path":"rootfs","readonly":true}},"mounts":[{mounts}],
"process":{{"terminal":false,"cwd":"/tmp","user":{{"uid":0,"gid":0}},"args":[{args}],"env":[{env}],
"noNewPrivileges":true,"capabilities":{{"bounding":[],"effective":[],"permitted":[],"ambient":[]}}}},
"linux":{{"uidMappings":{ids},"gidMappings":{ids},
"namespaces":[{kinds},{{"type":"network","path":"{network}"}}]}}}}"#
    )
}
