//! Captures of our own traffic, checked by tshark and scapy: no malformed packet, no wrong ICRC.

use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::verbs::types::access;
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::ends::{connected, succeed, Op, Shape};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::library;
use gdrcore_tests::patience::{limit, wait_for};
use gdrcore_tests::place;
use gdrcore_tests::soft::Soft;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{find, installed, loopback, run, scratch, Running};
use gdrcore_tests::{or_skip, skip};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const TYPES: [&str; 3] = ["rc", "uc", "ud"];

/// An error says what the two checkers need and this machine lacks.
fn checkers() -> Result<(), String> {
    installed("tshark")?;
    let scapy = run(Command::new("/usr/bin/python3").args(["-c", "import scapy.contrib.roce"]), 20);
    scapy.ok().then_some(()).ok_or_else(|| "python3-scapy is not installed".into())
}

/// Least number of RoCE frames in each capture: that of UD, which has the fewest.
const FRAMES_MIN: &str = "36";

/// Bytes of a capture without frames.
const EMPTY: u64 = 24;

/// Checks each file with both; returns their output.
fn check(files: &[PathBuf], ports: &[&str]) -> String {
    let mut icrc = Command::new(root().join("scripts/icrc_check.py"));
    icrc.args(["--min-frames", FRAMES_MIN]);
    let mut tshark = Command::new(root().join("scripts/tshark_check.sh"));
    for port in ports {
        icrc.args(["--port", port]);
        tshark.args(["-p", port]);
    }
    let mut said = String::new();
    for checker in [icrc.args(files), tshark.args(files)] {
        let done = run(checker, 300);
        println!("{}", done.output);
        assert!(done.ok(), "{done}");
        said += &done.output;
    }
    said
}

/// Checks that GSO was used where it was requested, and only there: segments have identifications
/// 0, 1, 2, …
fn check_segmentation(said: &str) {
    let single = |line: &&str| line.contains("identifications to 0,");
    let of = |name: &str| {
        said.lines()
            .find(|l| l.contains(name) && l.contains("identifications"))
            .expect("a line for each file")
    };
    assert!(!single(&of("rc-v4-gso.pcap")), "{said}");
    assert!(single(&of("rc-v4-single.pcap")) && single(&of("uc-v4-single.pcap")), "{said}");
}

fn traffic() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_traffic"))
}

#[test]
fn the_pcap_tee_of_every_transport_and_address_family() {
    or_skip!(checkers());
    let dir = scratch("tee");
    let mut files = Vec::new();
    let (v4_from, v4_to) =
        (format!("soft:{}", loopback(42, 1)), format!("soft:{}", loopback(42, 2)));
    let ports = [place::port(), place::port()].map(|p| p.to_string());
    let [v6_from, v6_to] = ports.each_ref().map(|p| format!("soft:[::1]:{p}"));
    let families =
        [("v4", v4_from.as_str(), v4_to.as_str()), ("v6", v6_from.as_str(), v6_to.as_str())];
    for (family, from, to) in families {
        if family == "v6" && !Path::new("/proc/net/if_inet6").exists() {
            println!("this machine has no IPv6");
            continue;
        }
        for qp_type in TYPES {
            for gso in [true, false] {
                let file = dir.join(format!(
                    "{qp_type}-{family}-{}.pcap",
                    if gso { "gso" } else { "single" }
                ));
                let mut command = Command::new(traffic());
                command.args([qp_type, from, to, "--pcap"]).arg(&file);
                if !gso {
                    command.arg("--no-gso");
                }
                let done = run(&mut command, 60);
                assert!(done.ok(), "{qp_type} {family} gso={gso}: {done}");
                files.push(file);
            }
        }
    }
    check(&files, &["4791", &ports[0], &ports[1]]);
}

#[test]
fn packets_after_the_kernels_segmentation_are_right() {
    or_skip!(checkers());
    let (Some(dumpcap), Some(ethtool)) = (find("dumpcap"), find("ethtool")) else {
        skip!("dumpcap or ethtool is not installed, or not for this user");
    };
    let lab = or_skip!(Lab::new(1));
    for address in ["fd42::1/128", "fd42::2/128"] {
        lab.admin(0, &["addr", "add", address, "dev", "lo", "nodad"]).expect("an address");
    }
    // A capture shows the packets after the kernel's segmentation only if the device does no
    // segmentation of its own.
    let off = run(lab.privileged(0, &ethtool).args(["-K", "lo", "tx-udp-segmentation", "off"]), 10);
    assert!(off.ok(), "{off}");
    let dir = scratch("capture");
    let mut files = Vec::new();
    for (family, from, to) in
        [("v4", "soft:127.0.0.1", "soft:127.0.0.2"), ("v6", "soft:[fd42::1]", "soft:[fd42::2]")]
    {
        for qp_type in TYPES {
            for gso in [true, false] {
                let file = dir.join(format!(
                    "{qp_type}-{family}-{}.pcap",
                    if gso { "gso" } else { "single" }
                ));
                let mut record = lab.privileged(0, &dumpcap);
                record
                    .args(["-i", "lo", "-f", "udp port 4791", "-P", "-B", "64", "-q", "-w"])
                    .arg(&file);
                let recorder = Running::start(&mut record);
                // The file appears when the capture has begun.
                wait_for(60, "dumpcap does not start", || file.exists());
                std::thread::sleep(Duration::from_millis(100));
                let mut command = lab.command(0, traffic());
                command.args([qp_type, from, to]);
                if !gso {
                    command.arg("--no-gso");
                }
                let done = run(&mut command, 60);
                assert!(done.ok(), "{qp_type} {family} gso={gso}: {done}");
                // dumpcap writes at intervals: the capture is complete when the file has not grown
                // for a while.
                let (mut length, mut since) = (0, Instant::now());
                wait_for(60, "the capture has no end", || {
                    let now = file.metadata().map_or(0, |m| m.len());
                    if now != length {
                        (length, since) = (now, Instant::now());
                    }
                    now > EMPTY && since.elapsed() > limit(1)
                });
                recorder.interrupt();
                recorder.finish(Duration::from_secs(60));
                files.push(file);
            }
        }
    }
    check_segmentation(&check(&files, &["4791"]));
}

/// What tshark prints of the only column "Info", with the dissector of this repository or without.
fn infos(file: &Path, more: &[&str]) -> Vec<String> {
    let mut tshark = Command::new("tshark");
    tshark.args(more).arg("-r").arg(file).args(["-T", "fields", "-e", "_ws.col.Info"]);
    let done = run(&mut tshark, 60);
    assert!(done.ok(), "{done}");
    done.output.lines().filter(|l| !l.starts_with("Running as user")).map(str::to_owned).collect()
}

#[test]
fn what_is_our_own_has_names_in_wireshark() {
    or_skip!(installed("tshark"));
    or_skip!(installed("cc"));
    let dir = scratch("wireshark");
    let (dc, rc) = (dir.join("dc.pcap"), dir.join("rc.pcap"));
    let program = library::program("dc", &dir);
    let soft = |n| format!("soft:{}", loopback(42, n));
    let mut command = Command::new(&program);
    let done = run(command.args([&soft(11), &soft(12), "udp"]).env("DC_CAPTURE", &dc), 120);
    assert!(done.ok(), "{done}");
    {
        let pcap = CString::new(rc.to_str().expect("a plain path")).expect("no NUL");
        let config =
            SoftConfig { path: PathChoice::Udp, pcap: Some(&pcap), ..SoftConfig::default() };
        let a = Soft::open(&soft(13), &config).expect("a device");
        // Another of the same address asks whether it is reached.
        let _beside = Soft::open(&soft(13), &config).expect("a device beside it");
        let b = Soft::new(&soft(14));
        let shape =
            Shape { access: Shape::default().access | access::FLUSH_GLOBAL, ..Shape::default() };
        let (mut x, mut y) = connected(a.dev(), b.dev(), shape).expect("two connected ends");
        for (id, op, len) in [(1, Op::AtomicWrite(8), 8), (2, Op::Flush(0, 64, 1, 0), 0)] {
            x.post(id, op, 0, len).expect("post_send");
            succeed(&mut x, &mut y, id);
        }
    }
    let lua = format!("lua_script:{}", root().join("cli/wireshark/gdrcore.lua").display());
    let names: [(&Path, &[&str]); 2] = [
        (
            &dc,
            &["DC OPEN", "DC ACCEPT", "DC CLOSE", "DC RDMA WRITE First", "DC SEND Last", "DC Ack"],
        ),
        (&rc, &["RC ATOMIC WRITE", "RC FLUSH", "Engine probe"]),
    ];
    for (file, names) in names {
        let (plain, named) = (infos(file, &[]), infos(file, &["-X", &lua]));
        let unknown = |lines: &[String]| lines.iter().filter(|l| l.contains("Unknown")).count();
        assert!(unknown(&plain) > 0 && unknown(&named) == 0 && plain.len() == named.len());
        for name in names {
            let has = |lines: &[String]| lines.iter().any(|l| l.starts_with(name));
            assert!(has(&named) && !has(&plain), "{name}: {:#?}", named.first());
        }
    }
    // The fields, as a filter finds them: the answer of a target repeats the initiator's id.
    let id = |kind: &str| {
        let filter = format!("gdrcore.dc.type == {kind}");
        let fields = ["-X", &lua, "-Y", &filter, "-T", "fields", "-e", "gdrcore.dc.id"];
        let done = run(Command::new("tshark").arg("-r").arg(&dc).args(fields), 60);
        let first = done.output.lines().find(|l| l.starts_with("0x"));
        first.unwrap_or_else(|| panic!("{done}")).to_owned()
    };
    assert_eq!(id("1"), id("2"));
    let blocks = ["-X", &lua, "-T", "fields", "-e", "infiniband.bth.destqp", "-e", "gdrcore.block"];
    let done = run(Command::new("tshark").arg("-r").arg(&rc).args(blocks), 60);
    for line in done.output.lines().filter(|l| l.starts_with("0x")) {
        let (qpn, block) = line.split_once('\t').expect("two fields");
        let qpn = u32::from_str_radix(&qpn[2..], 16).expect("a QPN");
        assert_eq!(block.parse(), Ok(qpn / QPN_UNIT), "{line}");
    }
}
