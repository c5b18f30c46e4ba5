//! Runs unmodified verbs programs on the drop-in: finds the library, and runs the two sides of a
//! tool.

use crate::library;
use crate::source::root;
use crate::tools::{compile, find, installed, loopback, run, scratch, Done, Running};
use crate::{patience, place};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit of a tool on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A program that uses the drop-in in place of the system's libibverbs, on an address of its own.
pub fn command(program: impl AsRef<std::ffi::OsStr>, address: &str) -> Command {
    let mut c = Command::new(program);
    without_settings(&mut c);
    c.env("LD_LIBRARY_PATH", library::dropin()).env("GDRC_ADDRESS", address);
    c
}

/// Runs a C program of libibverbs, from `tests/c`, on the drop-in: it has to print "ok". Whether
/// there are a compiler and libibverbs' headers for it.
pub fn says_ok(name: &str, address: &str) -> bool {
    if find("cc").is_none() || !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return false;
    }
    let dir = scratch(name);
    let program = compile("cc", name, &dir, &["-libverbs"]);
    let done = run(&mut command(&program, address), 30);
    assert!(done.ok() && done.output.contains("ok"), "{name}: {done}");
    true
}

/// A command gets none of the drop-in's settings from whoever runs the tests.
pub fn without_settings(c: &mut Command) {
    for name in [
        "GDRC_ADDRESS",
        "GDRC_DEVICE",
        "GDRC_PATH",
        "GDRC_PCAP",
        "GDRC_STATS",
        "GDRC_ENGINES",
        "GDRC_QPS",
        "GDRC_KEEPALIVE",
        "GDRC_LID",
        "GDRC_IDENTITY",
        "GDRC_VERBOSE",
        "GDRC_TRACE",
        "GDRC_TRACE_FILTER",
        "GDRC_TRACE_COUNT",
        "GDRC_STRICT",
        "GDRC_STRICT_JSON",
        "GDRC_STRICT_SUPPRESSIONS",
        "GDRC_LIKE",
        "GDRC_FAULTS",
        "GDRC_SEED",
        "GDRC_FAULT_LOG",
        "GDRC_CALL_COUNTS",
        "GDRC_VERBS_ON_DROPIN",
        "LD_PRELOAD",
    ] {
        c.env_remove(name);
    }
}

/// A free TCP port for the exchange that the tools make before their traffic.
pub fn free_port() -> u16 {
    place::port()
}

/// Whether a TCP port has a listener in a process's network namespace. Reads procfs: a connection
/// would use up the tool's only accept.
pub fn is_listened_at(port: u16, process: u32) -> bool {
    let wanted = format!(":{port:04X} ");
    ["tcp", "tcp6"].iter().any(|f| {
        let text = std::fs::read_to_string(format!("/proc/{process}/net/{f}")).unwrap_or_default();
        // Local address, remote address, state 0A (LISTEN).
        text.lines().any(|l| {
            let mut words = l.split_whitespace().skip(1);
            let local = words.next().unwrap_or_default().to_string() + " ";
            local.ends_with(&wanted) && words.nth(1) == Some("0A")
        })
    })
}

/// Waits until a server listens at a TCP port, or has ended.
pub fn wait_until_listened_at(port: u16, server: &mut Running) {
    let end = Instant::now() + LIMIT * patience::factor();
    while !is_listened_at(port, server.pid()) && server.still_runs() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a server and waits until it listens at a TCP port.
pub fn start_server(command: &mut Command, port: u16) -> Running {
    let mut server = Running::start(command);
    wait_until_listened_at(port, &mut server);
    server
}

/// Runs a server that listens at a TCP port and its client until both have ended.
pub fn both(server: &mut Command, client: &mut Command, port: u16) -> [Done; 2] {
    let server = start_server(server, port);
    let client = Running::start(client).finish(LIMIT);
    [server.finish(LIMIT), client]
}

/// Server and client of a tool whose option `-p` names a TCP port for their exchange. Each has its
/// own address; `n` numbers the test.
pub struct Pair {
    tool: PathBuf,
    arguments: Vec<String>,
    addresses: [String; 2],
    port: u16,
    path: &'static str,
    lid: bool,
    mlx5: bool,
}

impl Pair {
    /// An error: the tool is not installed.
    pub fn new(tool: &str, arguments: &str, n: u32) -> Result<Pair, String> {
        Ok(Pair {
            tool: installed(tool)?,
            arguments: arguments.split_whitespace().map(str::to_string).collect(),
            addresses: [1, 2].map(|last| loopback(n, last)),
            port: free_port(),
            path: "auto",
            lid: false,
            mlx5: false,
        })
    }

    /// Forces the path between them.
    pub fn over(mut self, path: &'static str) -> Pair {
        self.path = path;
        self
    }

    /// Gives the addresses as LIDs.
    pub fn with_lids(mut self) -> Pair {
        self.lid = true;
        self
    }

    /// Gives the devices the identity of a ConnectX-5, and prints their counters.
    pub fn as_mlx5(mut self) -> Pair {
        self.mlx5 = true;
        self
    }

    fn side(&self, i: usize) -> Command {
        let mut c = command(&self.tool, &self.addresses[i]);
        if self.lid {
            c.env("GDRC_LID", "1");
        }
        if self.mlx5 {
            c.env("GDRC_IDENTITY", "mlx5").env("GDRC_STATS", "1");
        }
        c.env("GDRC_PATH", self.path).args(&self.arguments).args(["-p", &self.port.to_string()]);
        c
    }

    /// Starts the server and waits until it listens.
    pub fn server(&self) -> Running {
        start_server(&mut self.side(0), self.port)
    }

    /// Starts the client.
    pub fn client(&self) -> Running {
        Running::start(self.side(1).arg("127.0.0.1"))
    }

    /// Runs both until they have ended.
    pub fn run(&self) -> [Done; 2] {
        let server = self.server();
        let client = self.client().finish(LIMIT);
        [server.finish(LIMIT), client]
    }
}

/// Names and versions that a library exports, as `name version`; `@@` marks a name's default
/// version.
pub fn exports(library: &Path) -> Result<BTreeSet<String>, String> {
    let done = run(Command::new(installed("readelf")?).args(["-W", "--dyn-syms"]).arg(library), 20);
    let symbols = done.output.lines().filter_map(|l| {
        let words: Vec<&str> = l.split_whitespace().collect();
        let name = *words.get(7)?;
        // Neither imports nor the versions themselves.
        (name.contains("@") && words[6] != "UND" && words[6] != "ABS").then(|| name.to_string())
    });
    Ok(symbols.collect())
}

/// The names and versions of a table of the drop-in's exports, as `name version`.
pub fn table(file: &str) -> BTreeSet<String> {
    let text =
        std::fs::read_to_string(root().join("dropin/symbols").join(file)).expect("the table");
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let versions = |line: &str| -> Vec<String> {
        let mut words = line.split_whitespace();
        let (name, versions) = (words.next().expect("a name"), words.next().expect("a version"));
        let (family, numbers) = versions.rsplit_once('_').expect("a version with a number");
        numbers.split(',').map(|number| format!("{name} {family}_{number}")).collect()
    };
    lines.flat_map(versions).collect()
}

/// Names as [`exports`] has them, in the form of [`table`].
pub fn without_defaults(exported: &BTreeSet<String>) -> BTreeSet<String> {
    exported.iter().map(|n| n.replacen("@@", "@", 1).replacen('@', " ", 1)).collect()
}
