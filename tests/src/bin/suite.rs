//! The behaviour suite as a program: `suite --device NAME [--peer NAME] [--only WORDS] [--engines
//! N] [--nic yes]`, the last where a router's device is a NIC. Prints a line for each case, then
//! their number; exit status 0 if none failed.

use gdrcore_tests::suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (mut device, mut peer, mut only, mut engines) = (None, None, String::new(), 1);
    let mut nic = false;
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--device", Some(name)) => device = Some(name),
            ("--peer", Some(name)) => peer = Some(name),
            ("--only", Some(text)) => only = text,
            ("--engines", Some(n)) => engines = n.parse().unwrap_or(0),
            ("--nic", Some(word)) => nic = word == "yes",
            _ => {
                eprintln!(
                    "usage: suite --device NAME [--peer NAME] [--only WORDS] [--engines N] [--nic \
                     yes]"
                );
                return ExitCode::from(2);
            }
        }
    }
    let device = device.unwrap_or_else(|| "loopback".into());
    let peer = peer.unwrap_or_else(|| device.clone());
    match suite::run(&device, &peer, &only, engines, nic) {
        Ok(sum) => {
            println!("{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
            ExitCode::from(u8::from(sum.failed > 0))
        }
        Err(e) => {
            println!("{e}");
            ExitCode::from(3)
        }
    }
}
