//! The programs that are subcommands, and where they lie.

use gdrcore_run::drop_in_library::own_folder;
use std::path::{Path, PathBuf};

/// A subcommand that is a program of its own.
pub struct Program {
    /// Its name as a subcommand.
    pub name: &'static str,
    /// Its name where it is installed.
    pub installed: &'static str,
    /// Its path below the folder of what was built, where it has another one.
    pub built: &'static str,
    /// The package of Debian that has it.
    pub package: &'static str,
    /// One line for `--help`.
    pub what: &'static str,
}

const fn program([name, installed, built, package, what]: [&'static str; 5]) -> Program {
    Program { name, installed, built, package, what }
}

/// All of them.
pub const PROGRAMS: [Program; 8] = [
    program([
        "run",
        "gdrcore-run",
        "",
        "gdrcore-ibverbs",
        "run a program of libibverbs on gdrcore",
    ]),
    program([
        "devices",
        "gdrcore-devinfo",
        "perf/devinfo",
        "gdrcore-tools",
        "list the devices of this machine",
    ]),
    program([
        "perf",
        "gdrcore-perf",
        "perf/perf",
        "gdrcore-tools",
        "measure rates and latencies between two processes",
    ]),
    program([
        "ping",
        "gdrcore-ping",
        "perf/ping",
        "gdrcore-tools",
        "see whether a peer answers RDMA",
    ]),
    program([
        "pingpong",
        "gdrcore-pingpong",
        "perf/pingpong",
        "gdrcore-tools",
        "bounce messages between two processes, and check them",
    ]),
    program([
        "copy",
        "rdma_copy_file",
        "rdma_copy/rdma_copy_file",
        "gdrcore-tools",
        "copy files to another machine",
    ]),
    program(["router", "gdrcore-routerd", "", "gdrcore-router", "join the containers of a host"]),
    program(["ctl", "gdrcore-routerctl", "", "gdrcore-router", "ask or change a running router"]),
];

impl Program {
    /// Its file; `None`: it is not installed beside this program.
    pub fn find(&self) -> Option<PathBuf> {
        self.candidates(&own_folder()?).into_iter().find(|p| p.is_file())
    }

    /// Where it may lie, for a `gdrcore` in `bin`.
    fn candidates(&self, bin: &Path) -> Vec<PathBuf> {
        let mut all = vec![bin.join(self.installed)];
        if !self.built.is_empty() {
            all.push(bin.join(self.built));
        }
        if let Some(prefix) = bin.parent() {
            all.push(prefix.join("bin").join(self.installed));
            all.push(prefix.join("libexec/gdrcore").join(self.installed));
        }
        all
    }
}
