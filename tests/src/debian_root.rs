//! Roots of file systems with the packages of another Debian release, and programs that run in them
//! on our libraries.

use crate::dropin::without_settings;
use crate::source::root;
use crate::tools::{find, is_root, run, target_dir};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a root has what is built here.
const BUILT: &str = "/tmp/gdrcore";
/// The launcher there.
pub const LAUNCHER: &str = "/tmp/gdrcore/bin/gdrcore-run";

/// What a root has, besides what these packages need.
const PACKAGES: &str = "base-files,ibverbs-utils,ibverbs-providers,perftest,rdmacm-utils";

/// A root with the tools of a release.
pub struct DebianRoot(PathBuf);

impl DebianRoot {
    /// Makes a root from Debian's archive, or finds the one of an earlier run.
    ///
    /// # Errors
    /// What this machine lacks for it: a program, root, or a way to the archive.
    pub fn new(release: &str) -> Result<DebianRoot, String> {
        DebianRoot::made(release, release, "extract", PACKAGES)
    }

    /// As [`Self::new`], a root that an administrator would install packages in: with Debian's
    /// essential packages, the tools of libibverbs, pip, and what makes users and environments of
    /// Python.
    pub fn installed(release: &str) -> Result<DebianRoot, String> {
        let packages = "adduser,ibverbs-utils,python3-pip,python3-venv";
        DebianRoot::made(release, &format!("{release}-with-python"), "essential", packages)
    }

    fn made(
        release: &str,
        name: &str,
        variant: &str,
        packages: &str,
    ) -> Result<DebianRoot, String> {
        let at = target_dir().join("debian-roots").join(name);
        std::fs::create_dir_all(at.parent().expect("a folder")).map_err(|e| e.to_string())?;
        // Other tests may ask for the same one; freed with the file.
        let lock = File::create(at.with_extension("lock")).map_err(|e| e.to_string())?;
        lock.lock().map_err(|e| e.to_string())?;
        if at.exists() {
            return Ok(DebianRoot(at));
        }
        if !is_root() {
            return Err("only root makes roots here".into());
        }
        let maker = find("mmdebstrap").ok_or("mmdebstrap is not installed (mmdebstrap)")?;
        find("bwrap").ok_or("bwrap is not installed (bubblewrap)")?;
        // Under its name once it is whole.
        let part = at.with_extension(format!("part-{}", std::process::id()));
        let mut c = Command::new(maker);
        c.args(["--quiet", "--aptopt=Acquire::Check-Valid-Until \"false\""]);
        c.arg(format!("--variant={variant}")).arg(format!("--include={packages}"));
        c.arg(release).arg(&part);
        let done = run(&mut c, 300);
        if !done.ok() {
            let _ = std::fs::remove_dir_all(&part);
            let last = done.output.lines().last().unwrap_or_default().to_string();
            return Err(format!("no root of {release} was made: {last}"));
        }
        std::fs::rename(&part, &at).map_err(|e| e.to_string())?;
        Ok(DebianRoot(at))
    }

    /// A copy that a test may write into, at a folder that there is not yet.
    pub fn copy_to(&self, to: &Path) {
        let done = run(Command::new("cp").arg("-a").arg(&self.0).arg(to), 120);
        assert!(done.ok(), "{done}");
    }

    /// A library of the release.
    pub fn library(&self, name: &str) -> PathBuf {
        self.0.join("usr/lib/x86_64-linux-gnu").join(name)
    }

    /// A program of the root, with what is built here at its place, and this machine's network and
    /// shared memory.
    pub fn command(&self, program: &Path) -> Command {
        let build = root().join("build");
        let mut c = Command::new("bwrap");
        without_settings(&mut c);
        c.arg("--ro-bind").arg(&self.0).arg("/");
        c.args(["--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]);
        c.arg("--ro-bind").arg(build).arg(BUILT);
        c.args(["--die-with-parent", "--"]).arg(program);
        c
    }

    /// A program of the root under `gdrcore-run`, on an address.
    pub fn on_the_drop_in(&self, address: &str, tool: &str) -> Command {
        let mut c = self.command(Path::new(LAUNCHER));
        c.args(["--address", address, tool]);
        c
    }
}
