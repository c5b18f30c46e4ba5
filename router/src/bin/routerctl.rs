//! `gdrcore-routerctl`: asks a running router.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

/// Where routers have their admin socket unless they are told otherwise.
const SOCKET: &str = "/run/gdrcore/admin.sock";
/// A router answers at once, or is stopped.
const PATIENCE: Duration = Duration::from_secs(10);

const HELP: &str = "\
usage: gdrcore-routerctl [--socket PATH] status|sessions|reload
Asks the router whose admin socket is at PATH (/run/gdrcore/admin.sock). Answers are JSON objects,
one a line.

  status     the router: its process, its policy file, how many sessions
  sessions   who is there: tenant, address, process, links
  reload     read the policy file anew; what is wrong with it changes nothing
";

fn ask(socket: &str, what: &str) -> Result<(), String> {
    let said = |e: std::io::Error| format!("{socket}: {e}");
    let mut stream = UnixStream::connect(socket).map_err(said)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
    stream.write_all(format!("{{\"do\":\"{what}\"}}\n").as_bytes()).map_err(said)?;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(said)?;
        let value: serde_json::Value =
            serde_json::from_str(&line).map_err(|e| format!("{socket}: {e}"))?;
        if value.get("done").is_some() {
            return Ok(());
        }
        if let Some(error) = value.get("error") {
            return Err(error.as_str().unwrap_or("the router refuses").into());
        }
        print(&format!("{line}\n"))?;
    }
    Err(format!("{socket}: the router has hung up; only root and its own user may ask"))
}

fn print(text: &str) -> Result<(), String> {
    std::io::stdout().write_all(text.as_bytes()).map_err(|e| format!("standard output: {e}"))
}

/// A line on standard error, which may have been closed.
fn complain(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn run(socket: &str, what: &str) -> ExitCode {
    let done = if what.is_empty() { print(HELP) } else { ask(socket, what) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            complain(&format!("gdrcore-routerctl: {e}\n"));
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["-h" | "--help"] => run("", ""),
        [what @ ("status" | "sessions" | "reload")] => run(SOCKET, what),
        ["--socket", socket, what @ ("status" | "sessions" | "reload")] => run(socket, what),
        _ => {
            complain(HELP);
            ExitCode::from(2)
        }
    }
}
