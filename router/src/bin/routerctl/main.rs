//! `gdrcore-routerctl`: asks a running router.

mod top;

use lexopt::prelude::*;
use serde_json::{json, Map, Value as Json};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The default path of the admin socket.
const SOCKET: &str = "/run/gdrcore/admin.sock";
/// Time limit of an answer. A running router answers at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// The default time of a drain.
const DRAIN_MS: u32 = 60_000;

const HELP: &str = "\
usage: gdrcore-routerctl [--socket PATH] COMMAND
       gdrcore-routerctl --help | --version
Asks the router whose admin socket is at PATH (/run/gdrcore/admin.sock). Answers are JSON objects,
one a line.

  status                the router: its process, its policy file, how many sessions
  sessions              who is there: tenant, program, address, process, links, counters
  tenants               tenants: limits, sessions, counters
  hosts                 other hosts: addresses, how many tenants, whether a router answers
  top [--json] [--once] what each tenant sends and gets in a second, every second; --once: one time
  firewall              the rule for nft -f that lets nobody else send as the router
  reload                read the policy file anew; what is wrong with it changes nothing
  set TENANT KEY=VALUE...
                        until the next reload: tx_rate, rx_rate, tx_pps, burst, weight, metered, as
                        in the file; off takes a limit away
  drop SESSION          end a session
  drain [--for TIME]    begin nothing new; end when all have gone, or after TIME (60s, 5m, 500ms)
";

/// Sends a request and passes on each line of the answer.
fn ask(
    socket: &Path,
    request: &Json,
    mut each: impl FnMut(Json) -> Result<(), String>,
) -> Result<(), String> {
    let shown = socket.display();
    let said = |e: std::io::Error| format!("{shown}: {e}");
    let mut stream = UnixStream::connect(socket).map_err(said)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(said)?;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(said)?;
        let value: Json = serde_json::from_str(&line).map_err(|e| format!("{shown}: {e}"))?;
        if value.get("done").is_some() {
            return Ok(());
        }
        if let Some(error) = value.get("error") {
            return Err(error.as_str().unwrap_or("the router refuses").into());
        }
        each(value)?;
    }
    Err(format!("{shown}: the router has hung up; only root and its own user may ask"))
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| format!("standard output: {e}"))
}

/// A line on standard error, which may have been closed.
fn complain(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The request of the command line.
#[derive(Debug, PartialEq)]
enum Request {
    Say(String),
    Ask(Json),
    Top(top::Form),
    Firewall,
}

/// A time such as `60s`, in milliseconds.
fn milliseconds(text: &str) -> Option<u32> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    digits.parse::<u32>().ok()?.checked_mul(unit)
}

/// The socket, and the request to send there.
///
/// # Errors
/// The fault in words.
fn parse(words: impl Iterator<Item = OsString>) -> Result<(PathBuf, Request), lexopt::Error> {
    let mut parser = lexopt::Parser::from_args(words);
    let mut socket = PathBuf::from(SOCKET);
    let (mut form, mut time, mut words) = (top::Form::default(), None, Vec::new());
    while let Some(word) = parser.next()? {
        match word {
            Long("socket") => socket = parser.value()?.into(),
            Long("json") if words == ["top"] => form.json = true,
            Long("once") if words == ["top"] => form.once = true,
            Long("for") if words == ["drain"] => time = Some(parser.value()?.string()?),
            Short('h') | Long("help") => return Ok((socket, Request::Say(HELP.into()))),
            Short('V') | Long("version") => {
                let text = format!("gdrcore-routerctl {}\n", env!("CARGO_PKG_VERSION"));
                return Ok((socket, Request::Say(text)));
            }
            Value(word) => words.push(word.string()?),
            _ => return Err(word.unexpected()),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Ok((socket, command(&words, form, time.as_deref())?))
}

fn command(words: &[&str], form: top::Form, time: Option<&str>) -> Result<Request, String> {
    Ok(match words {
        [what @ ("status" | "sessions" | "tenants" | "hosts" | "reload")] => {
            Request::Ask(json!({"do": what}))
        }
        ["firewall"] => Request::Firewall,
        ["top"] => Request::Top(form),
        ["drop", session] => {
            let number: Option<u32> = session.parse().ok();
            let number = number.ok_or_else(|| format!("drop {session}: no number of a session"))?;
            Request::Ask(json!({"do": "drop", "session": number}))
        }
        ["drain"] => {
            let ms = time.map_or(Some(DRAIN_MS), milliseconds);
            let ms = ms.ok_or("drain --for: a time such as 60s, 5m or 500ms")?;
            Request::Ask(json!({"do": "drain", "for_ms": ms}))
        }
        ["set", tenant, changes @ ..] if !changes.is_empty() => {
            let mut limits = Map::new();
            for change in changes {
                let (key, value) =
                    change.split_once('=').ok_or_else(|| format!("set: {change}: no KEY=VALUE"))?;
                limits.insert(key.into(), value.into());
            }
            Request::Ask(json!({"do": "set", "tenant": tenant, "limits": limits}))
        }
        [] => return Err("which command?".into()),
        _ => return Err(format!("{}: no such command", words.join(" "))),
    })
}

fn run(socket: &Path, request: &Request) -> Result<(), String> {
    match request {
        Request::Say(text) => print(text),
        Request::Ask(request) => ask(socket, request, |line| print(&format!("{line}\n"))),
        Request::Firewall => ask(socket, &json!({"do": "status"}), |status| {
            let none = "it has no [host]: nothing leaves this host";
            print(status["firewall"].as_str().ok_or(none)?)
        }),
        Request::Top(form) => top::run(socket, *form),
    }
}

fn main() -> ExitCode {
    let (socket, request) = match parse(std::env::args_os().skip(1)) {
        Ok(found) => found,
        Err(e) => {
            complain(&format!("gdrcore-routerctl: {e}\n{HELP}"));
            return ExitCode::from(2);
        }
    };
    match run(&socket, &request) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            complain(&format!("gdrcore-routerctl: {e}\n"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_requests() {
        let parse = |words: &[&str]| super::parse(words.iter().map(OsString::from));
        let ask = |words: &[&str]| match parse(words) {
            Ok((_, Request::Ask(request))) => request.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(ask(&["tenants"]), "{\"do\":\"tenants\"}");
        assert_eq!(ask(&["drop", "7"]), "{\"do\":\"drop\",\"session\":7}");
        assert_eq!(ask(&["drain"]), "{\"do\":\"drain\",\"for_ms\":60000}");
        assert_eq!(ask(&["drain", "--for", "2m"]), "{\"do\":\"drain\",\"for_ms\":120000}");
        let set = ask(&["set", "blue", "tx_rate=1Gbit", "weight=3"]);
        let request: Json = serde_json::from_str(&set).unwrap();
        assert_eq!(request["limits"], json!({"tx_rate": "1Gbit", "weight": "3"}));
        for (bad, named) in [
            (&["fly"][..], "fly"),
            (&[], "command"),
            (&["status", "x"], "status x"),
            (&["status", "--once"], "--once"),
            (&["drop"], "drop"),
            (&["drop", "x"], "drop x"),
            (&["set", "blue"], "set blue"),
            (&["set", "blue", "weight"], "weight"),
            (&["top", "--fast"], "--fast"),
            (&["top", "--once=1"], "--once"),
            (&["--socket"], "--socket"),
            (&["drain", "--for"], "--for"),
            (&["drain", "--for", "5"], "60s"),
            (&["drain", "--for", "s"], "60s"),
            (&["drain", "--for", "5h"], "60s"),
            (&["drain", "--for", "99999999999s"], "60s"),
        ] {
            let why = parse(bad).unwrap_err().to_string();
            assert!(why.contains(named), "{bad:?}: {why}");
        }
        let form = top::Form { json: true, once: true };
        let top = (PathBuf::from("/s"), Request::Top(form));
        assert_eq!(parse(&["--socket=/s", "top", "--once", "--json"]).unwrap(), top);
        assert_eq!(ask(&["drop", "--", "7"]), ask(&["drop", "7"]));
        assert!(matches!(parse(&["top", "--help"]), Ok((_, Request::Say(_)))));
        assert!(matches!(parse(&["-V"]), Ok((_, Request::Say(_)))));
    }
}
