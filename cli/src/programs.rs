//! The programs that are subcommands, and where they lie.

use gdrcore_run::drop_in_library::own_folder;
use std::path::{Path, PathBuf};

/// A subcommand that is a program of its own.
pub struct Program {
    /// Its name as a subcommand.
    pub name: &'static str,
    /// Its name where it is installed.
    pub installed: &'static str,
    /// The package of Debian that has it.
    pub package: &'static str,
    /// One line for `--help`.
    pub what: &'static str,
}

const fn program([name, installed, package, what]: [&'static str; 4]) -> Program {
    Program { name, installed, package, what }
}

const RUN: &str = "gdrcore-ibverbs";
const TOOLS: &str = "gdrcore-tools";
const ROUTER: &str = "gdrcore-router";

/// All of them.
pub const PROGRAMS: [Program; 8] = [
    program(["run", "gdrcore-run", RUN, "run a program of libibverbs on gdrcore"]),
    program(["devices", "gdrcore-devinfo", TOOLS, "list the devices of this machine"]),
    program(["perf", "gdrcore-perf", TOOLS, "measure rates and latencies between two processes"]),
    program(["ping", "gdrcore-ping", TOOLS, "see whether a peer answers RDMA"]),
    program([
        "pingpong",
        "gdrcore-pingpong",
        TOOLS,
        "bounce messages between two processes, and check them",
    ]),
    program(["copy", "rdma_copy_file", TOOLS, "copy files to another machine"]),
    program(["router", "gdrcore-routerd", ROUTER, "join the containers of a host"]),
    program(["ctl", "gdrcore-routerctl", ROUTER, "ask or change a running router"]),
];

/// Installed programs that are no subcommands.
pub const OTHERS: [&str; 3] = ["gdrcore-router-etcd", "gdrcore-gpu-server", "gdrcore-gpu-client"];

impl Program {
    /// Its file; `None`: it is not installed beside this program.
    pub fn find(&self) -> Option<PathBuf> {
        self.candidates(&own_folder()?).into_iter().find(|p| p.is_file())
    }

    /// Where it may lie, for a `gdrcore` in `bin`: installed, or as `make` builds the C programs.
    fn candidates(&self, bin: &Path) -> Vec<PathBuf> {
        let short = self.installed.trim_start_matches("gdrcore-");
        let mut all = vec![
            bin.join(self.installed),
            bin.join("perf").join(short),
            bin.join("rdma_copy").join(short),
        ];
        if let Some(prefix) = bin.parent() {
            all.push(prefix.join("bin").join(self.installed));
            all.push(prefix.join("libexec/gdrcore").join(self.installed));
        }
        all
    }
}
