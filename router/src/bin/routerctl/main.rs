//! `gdrcore-routerctl`: asks a running router.

mod top;

use serde_json::{json, Map, Value};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
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
Asks the router whose admin socket is at PATH (/run/gdrcore/admin.sock). Answers are JSON objects,
one a line.

  status                the router: its process, its policy file, how many sessions
  sessions              who is there: tenant, address, process, links, counters
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
    socket: &str,
    request: &Value,
    mut each: impl FnMut(Value) -> Result<(), String>,
) -> Result<(), String> {
    let said = |e: std::io::Error| format!("{socket}: {e}");
    let mut stream = UnixStream::connect(socket).map_err(said)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(said)?;
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(said)?;
        let value: Value = serde_json::from_str(&line).map_err(|e| format!("{socket}: {e}"))?;
        if value.get("done").is_some() {
            return Ok(());
        }
        if let Some(error) = value.get("error") {
            return Err(error.as_str().unwrap_or("the router refuses").into());
        }
        each(value)?;
    }
    Err(format!("{socket}: the router has hung up; only root and its own user may ask"))
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

/// What the command line asks for.
#[derive(Debug, PartialEq)]
enum Wish {
    Help,
    Ask(Value),
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

/// `None`: the words are no command.
fn parse(words: &[&str]) -> Option<Wish> {
    Some(match words {
        ["-h" | "--help"] => Wish::Help,
        [what @ ("status" | "sessions" | "tenants" | "hosts" | "reload")] => {
            Wish::Ask(json!({"do": what}))
        }
        ["firewall"] => Wish::Firewall,
        ["drop", session] => {
            Wish::Ask(json!({"do": "drop", "session": session.parse::<u32>().ok()?}))
        }
        ["drain"] => Wish::Ask(json!({"do": "drain", "for_ms": DRAIN_MS})),
        ["drain", "--for", time] => {
            Wish::Ask(json!({"do": "drain", "for_ms": milliseconds(time)?}))
        }
        ["set", tenant, changes @ ..] if !changes.is_empty() => {
            let mut limits = Map::new();
            for change in changes {
                let (key, value) = change.split_once('=')?;
                limits.insert(key.into(), value.into());
            }
            Wish::Ask(json!({"do": "set", "tenant": tenant, "limits": limits}))
        }
        ["top", options @ ..] => {
            let mut form = top::Form::default();
            for option in options {
                match *option {
                    "--json" => form.json = true,
                    "--once" => form.once = true,
                    _ => return None,
                }
            }
            Wish::Top(form)
        }
        _ => return None,
    })
}

fn run(socket: &str, wish: &Wish) -> Result<(), String> {
    match wish {
        Wish::Help => print(HELP),
        Wish::Ask(request) => ask(socket, request, |line| print(&format!("{line}\n"))),
        Wish::Firewall => ask(socket, &json!({"do": "status"}), |status| {
            let none = "it has no [host]: nothing leaves this host";
            print(status["firewall"].as_str().ok_or(none)?)
        }),
        Wish::Top(form) => top::run(socket, *form),
    }
}

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (socket, rest) = match &words[..] {
        ["--socket", socket, rest @ ..] => (*socket, rest),
        rest => (SOCKET, rest),
    };
    let Some(wish) = parse(rest) else {
        complain(HELP);
        return ExitCode::from(2);
    };
    match run(socket, &wish) {
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
        let ask = |words: &[&str]| match parse(words) {
            Some(Wish::Ask(request)) => request.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(ask(&["tenants"]), "{\"do\":\"tenants\"}");
        assert_eq!(ask(&["drop", "7"]), "{\"do\":\"drop\",\"session\":7}");
        assert_eq!(ask(&["drain"]), "{\"do\":\"drain\",\"for_ms\":60000}");
        assert_eq!(ask(&["drain", "--for", "2m"]), "{\"do\":\"drain\",\"for_ms\":120000}");
        let set = ask(&["set", "blue", "tx_rate=1Gbit", "weight=3"]);
        let request: Value = serde_json::from_str(&set).unwrap();
        assert_eq!(request["limits"], json!({"tx_rate": "1Gbit", "weight": "3"}));
        for bad in [
            &["fly"][..],
            &[],
            &["status", "x"],
            &["drop"],
            &["drop", "x"],
            &["set", "blue"],
            &["set", "blue", "weight"],
            &["top", "--fast"],
            &["drain", "--for"],
            &["drain", "--for", "5"],
            &["drain", "--for", "s"],
            &["drain", "--for", "5h"],
            &["drain", "--for", "99999999999s"],
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        let form = top::Form { json: true, once: true };
        assert_eq!(parse(&["top", "--once", "--json"]), Some(Wish::Top(form)));
    }
}
