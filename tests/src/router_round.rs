//! One round of router, client and peer, wherever each of them runs.

use crate::ends::pattern;
use crate::patience;
use crate::tools::{Done, Running};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Where the three run and what they carry.
pub struct Round<'a> {
    /// Makes a command for one of the programs: 0 router, 1 client, 2 peer.
    pub command: &'a dyn Fn(usize, &str) -> Command,
    /// The router's device.
    pub router: &'a str,
    /// The peer's device.
    pub peer: &'a str,
    /// The address that the peer connects to.
    pub address: &'a str,
    /// Bytes of client's note and peer's answer.
    pub bytes: usize,
    /// Folder for socket and files.
    pub dir: &'a Path,
}

/// Runs the round; panics unless all three end with 0 and both notes arrived byte for byte. Returns
/// the outputs.
pub fn run(round: &Round) -> [Done; 3] {
    run_with(round, &["-b", "1M"], &[])
}

/// As [`run`], with more arguments for the router (the size of the buffer is one of them) and for
/// the peer.
pub fn run_with(round: &Round, of_router: &[&str], of_peer: &[&str]) -> [Done; 3] {
    let path = |name: &str| round.dir.join(name).to_str().expect("a plain path").to_string();
    let socket = path("s");
    let (note, answer) = (pattern(1, round.bytes), pattern(2, round.bytes));
    fs::write(path("note"), &note).expect("note");
    fs::write(path("answer"), &answer).expect("answer");
    let start = |which: usize, program: &str, arguments: &[&str]| {
        Running::start((round.command)(which, program).args(arguments))
    };
    let seconds = patience::limit(60).as_secs().to_string();
    let router = [&["-d", round.router, "-s", &socket, "-t", &seconds], of_router].concat();
    let router = start(0, "freeflow_gdr/router", &router);
    let client = start(
        1,
        "freeflow_gdr/client",
        &["-s", &socket, "-f", &path("note"), "-o", &path("note.back"), "-w", &seconds],
    );
    let peer = [
        &["-d", round.peer, "-f", &path("answer"), "-o", &path("answer.back"), "-t", &seconds],
        of_peer,
        &[round.address],
    ];
    let peer = start(2, "freeflow_gdr/peer", &peer.concat());
    let limit = Duration::from_secs(90);
    let peer = peer.finish(limit);
    let client = client.finish(limit);
    let router = router.finish(limit);
    let all =
        format!("router: {}\nclient: {}\npeer: {}", router.output, client.output, peer.output);
    assert!(
        router.ok() && client.ok() && peer.ok(),
        "{:?} {:?} {:?}\n{all}",
        router.status,
        client.status,
        peer.status
    );
    // The peer saved what it read (the client's note), the client what came back (the peer's
    // answer).
    assert!(
        fs::read(path("answer.back")).expect("what the peer read") == note,
        "the peer read otherwise\n{all}"
    );
    assert!(
        fs::read(path("note.back")).expect("what the client saw") == answer,
        "the client saw otherwise\n{all}"
    );
    [router, client, peer]
}
