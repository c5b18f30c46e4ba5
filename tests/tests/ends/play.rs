//! The program that ends: it opens a device, does its part, and goes by one of the ways.

use gdrcore_core::verbs::types::{qp_attr_mask, qp_state, AhAttr, QpAttr};
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::ends::{Address, End, Shape};
use gdrcore_tests::soft::Soft;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The ways in which a program ends.
pub const WAYS: [&str; 12] = [
    "close",
    "destroy",
    "error",
    "reset",
    "exit",
    "quick_exit",
    "_exit",
    "abort",
    "SIGTERM",
    "SIGKILL",
    "SIGSEGV",
    "execve",
];

extern "C" {
    fn quick_exit(status: libc::c_int) -> !;
}

/// Ends this process.
pub fn go(way: &str, device: &'static Soft, end: &End<'_>) -> ! {
    let raise = |signal| {
        // SAFETY: no pointers; the default action ends the process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        unreachable!("signal {signal}")
    };
    let modify = |qp_state| {
        let attr = QpAttr { qp_state, ..QpAttr::default() };
        end.dev.qp_modify(end.qp, &attr, qp_attr_mask::STATE).expect("qp_modify");
    };
    match way {
        // SAFETY: nothing of the device is used afterwards.
        "close" => _ = unsafe { device.soft().close() },
        "destroy" => end.dev.qp_destroy(end.qp).expect("qp_destroy"),
        "error" => modify(qp_state::ERR),
        "reset" => modify(qp_state::RESET),
        "exit" => std::process::exit(0),
        // SAFETY: ends the process.
        "quick_exit" => unsafe { quick_exit(0) },
        "abort" => std::process::abort(),
        "SIGTERM" => raise(libc::SIGTERM),
        "SIGKILL" => raise(libc::SIGKILL),
        "SIGSEGV" => raise(libc::SIGSEGV),
        "execve" => panic!("{}", Command::new("/bin/true").exec()),
        _ => assert_eq!(way, "_exit"),
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

/// The path by its name.
pub fn config(path: &str) -> SoftConfig<'static> {
    let path = if path.starts_with("udp") { PathChoice::Udp } else { PathChoice::Auto };
    SoftConfig { path, ..SoftConfig::default() }
}

/// Ends that two processes connect.
pub fn shape() -> Shape {
    Shape { buffer: 8192, depth: 8, cqe: 32, ..Shape::default() }
}

/// A GID as a word.
pub fn gid_text(gid: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*gid))
}

/// Reads what [`gid_text`] wrote.
pub fn gid_of(text: &str) -> [u8; 16] {
    u128::from_str_radix(text, 16).expect("a gid").to_be_bytes()
}

/// Writes what the other process needs of an end, as a line.
pub fn tell(to: &mut impl Write, own: &Address) {
    let Address { ah, qpn, psn, addr, rkey } = own;
    let gid = gid_text(&ah.dgid);
    writeln!(to, "{gid} {} {qpn} {psn} {addr} {rkey}", ah.udp_port).expect("a pipe");
    to.flush().expect("a pipe");
}

/// Reads what [`tell`] wrote.
pub fn hear(from: &mut impl BufRead) -> Address {
    let mut line = String::new();
    from.read_line(&mut line).expect("a pipe");
    let mut words = line.split_whitespace();
    let mut next = || words.next().unwrap_or_else(|| panic!("the other end said: {line:?}"));
    let mut ah = AhAttr { dgid: gid_of(next()), ..AhAttr::default() };
    ah.udp_port = next().parse().expect("a port");
    let mut n = || next().parse::<u64>().expect("a number");
    Address { ah, qpn: n() as u32, psn: n() as u32, addr: n(), rkey: n() as u32 }
}
