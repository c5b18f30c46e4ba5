//! Cache lines that two threads of one device have in common, by the accesses that valgrind's
//! lackey records: exact, and independent of the machine's load. A line that one of them writes and
//! both use has to move from core to core.

use gdrcore_tests::library;
use gdrcore_tests::skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{find, run, scratch, Scratch};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Uses of a line: bits by thread, read or written.
const USED: [u8; 2] = [1, 2];
const WRITTEN: u8 = 4;

/// Builds the program, and a clock as slow as valgrind makes it, in a folder of its own. `None`: a
/// tool is missing.
fn build() -> Option<Scratch> {
    for tool in ["valgrind", "cc"] {
        find(tool)?;
    }
    let (lib, dir) = (library::build(), scratch("lines"));
    std::os::unix::fs::symlink(lib.join("libgdrcore.so"), dir.join("libgdrcore.so.0"))
        .expect("a link");
    let compile = |source: &str, name: &str, flags: &[&str], libraries: &[&str]| {
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]).args(flags);
        cc.arg(root().join(source)).args(libraries).arg("-o").arg(dir.join(name));
        let built = run(&mut cc, 60);
        assert!(built.ok(), "{built}");
    };
    let include = format!("-I{}", root().join("include").display());
    let place = format!("-L{}", lib.display());
    let flags = ["-D_GNU_SOURCE", &include];
    compile("tests/c/lines.c", "lines", &flags, &[&place, "-lgdrcore", "-lpthread"]);
    let flags = ["-shared", "-fPIC", "-DTIMES=10000"];
    compile("bench/stages/slow.c", "slow.so", &flags, &["-ldl"]);
    Some(dir)
}

/// The lines that both threads use, and at least one writes, while they do these operations.
fn common(dir: &Path, engines: u32, operations: [&str; 2]) -> usize {
    let mut lackey = Command::new("valgrind");
    lackey.args(["--tool=lackey", "--trace-mem=yes", "--log-fd=1"]).arg(dir.join("lines"));
    lackey.arg(engines.to_string()).args(operations);
    lackey.env("LD_LIBRARY_PATH", dir).env("LD_PRELOAD", dir.join("slow.so"));
    let mut running = lackey.stdout(Stdio::piped()).spawn().expect("valgrind");
    let (mut marker, mut marks) = (None, 0);
    let mut lines: HashMap<u64, u8> = HashMap::new();
    let output = BufReader::new(running.stdout.take().expect("its output"));
    for text in output.lines().map_while(Result::ok) {
        if let Some(at) = text.strip_prefix("marker 0x") {
            marker = u64::from_str_radix(at.trim(), 16).ok();
        }
        // " L 04222c4c,8": a load (S: a store, M: both) at this address, of so many bytes.
        let Some((at, bytes)) = text.get(3..).and_then(|rest| rest.split_once(',')) else {
            continue;
        };
        let writes = match text.get(..3) {
            Some(" S " | " M ") => WRITTEN,
            Some(" L ") => 0,
            _ => continue,
        };
        let (Ok(at), Ok(bytes)) = (u64::from_str_radix(at, 16), bytes.trim().parse::<u64>()) else {
            continue;
        };
        if Some(at) == marker {
            marks += u32::from(writes != 0);
            continue;
        }
        // Recorded are the steps from the first mark to the second, and from the third on.
        if marks % 2 == 1 {
            for line in at / 64..=(at + bytes - 1) / 64 {
                *lines.entry(line).or_default() |= USED[marks as usize / 2] | writes;
            }
        }
    }
    let ended = running.wait().expect("valgrind");
    assert!(ended.success() && marks == 4, "{operations:?}: {ended}, {marks} marks");
    lines.values().filter(|&&uses| uses == USED[0] | USED[1] | WRITTEN).count()
}

#[test]
fn threads_of_two_engines_have_no_line_in_common() {
    let Some(dir) = build() else { skip!("valgrind or a C compiler is not installed") };
    for operations in [
        ["write"; 2],
        ["send"; 2],
        ["read"; 2],
        ["empty"; 2],
        ["write", "empty"],
        ["send", "empty"],
    ] {
        assert_eq!(common(&dir, 2, operations), 0, "{operations:?}");
    }
    // The lock and nothing else: an engine counts no packet for the device.
    assert_eq!(common(&dir, 1, ["write"; 2]), 1, "of one engine");
}
