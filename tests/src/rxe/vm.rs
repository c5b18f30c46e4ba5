//! The emulated machine with Linux's own RDMA stack, controlled by `tests/vm/vm.sh`.

use super::Outcome;
use crate::patience;
use crate::source::root;
use crate::tools::{run, Running};
use std::path::Path;
use std::process::Command;

/// The software in a machine: that of the host's Debian release, or of a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The host's.
    Host,
    /// Debian 13: Linux 6.12 and rdma-core 56.
    Trixie,
}

/// A running machine; dropping it ends it.
pub struct Vm {
    name: String,
    release: Release,
}

/// A command line of `vm.sh`.
fn script(release: Release, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(root().join("tests/vm/vm.sh"));
    command
        .args(arguments)
        .env("VMLAB_NAME", name)
        .env("VMLAB_QUIET", "1")
        .env("VMLAB_LIFE", "10800");
    match release {
        Release::Host => command.env_remove("VMLAB_SUITE"),
        Release::Trixie => command.env("VMLAB_SUITE", "trixie"),
    };
    command.env("BOOT_LIMIT", (60 * patience::factor()).to_string());
    command
}

/// Downloads and builds the parts of the machine, once; cached. The error names the obstacle.
pub fn prepare(release: Release) -> Outcome<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the machine is an x86-64 one".into());
    }
    let done = run(&mut script(release, "none", &["setup"]), 500);
    if done.ok() {
        return Ok(());
    }
    let last = done.output.lines().last().unwrap_or("no reason given").to_string();
    Err(format!("tests/vm/vm.sh setup: {last}"))
}

/// The headers of a prepared machine's libibverbs; only a later release than the host's has them.
pub fn headers(release: Release) -> String {
    run(&mut script(release, "none", &["headers"]), 20).output.trim().to_string()
}

impl Vm {
    /// Boots a machine with the network `net` (see `vm.sh`) and the folder `share` as its `/share`.
    pub fn start(release: Release, net: &str, share: &Path) -> Outcome<Vm> {
        // In a pid namespace of its own every test process has the same pid, so the number of the
        // namespace is added.
        let space = std::fs::metadata("/proc/self/ns/pid")
            .map_or(0, |m| std::os::unix::fs::MetadataExt::ino(&m));
        let name = format!("gdrcore-{space}-{}", std::process::id());
        let share = share.to_string_lossy();
        let done = run(
            &mut script(
                release,
                &name,
                &["start", "-n", net, "-a", "10.77.1.2/24", "-u", "4200", "-s", &share],
            ),
            90,
        );
        if done.ok() {
            return Ok(Vm { name, release });
        }
        Err(format!("the machine did not start: {}", done.output))
    }

    /// A command in the machine, ended after `seconds` (of an idle machine). Programs there get the
    /// same patience.
    fn exec(&self, command: &str, seconds: u32) -> Command {
        let factor = patience::factor();
        let limit = (seconds * factor).to_string();
        script(
            self.release,
            &self.name,
            &["exec", "-t", &limit, &format!("export {}={factor}; {command}", patience::VARIABLE)],
        )
    }

    /// Starts a command in the machine, ended after `seconds`.
    pub fn begin(&self, command: &str, seconds: u32) -> Running {
        Running::start(&mut self.exec(command, seconds))
    }

    /// Runs a command in the machine until it ends; returns its output.
    pub fn run(&self, command: &str, seconds: u32) -> Outcome<String> {
        let done = run(&mut self.exec(command, seconds), u64::from(seconds) + 20);
        if done.ok() {
            return Ok(done.output);
        }
        Err(format!("{command}: {:?}: {}", done.code(), done.output.trim()))
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        run(&mut script(self.release, &self.name, &["stop"]), 20);
    }
}
