//! Checked traffic between two soft devices of this process, for captures.
//!
//! `traffic TYPE FROM TO [--mtu CODE] [--no-gso] [--pcap FILE] [--longest BYTES]`: TYPE is rc, uc
//! or ud, FROM and TO are device names. Runs every operation of the type in both directions, checks
//! every byte, and prints the number of messages.

use gdrcore_core::verbs::types::qp_type;
use gdrcore_net::soft::{soft_flags as flags, SoftConfig};
use gdrcore_tests::ends::{connected, Shape};
use gdrcore_tests::soft::Soft;
use gdrcore_tests::traffic::every_operation;
use std::ffi::CString;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().unwrap_or_else(|| panic!("{what} is missing"));
    let qp_type = match next("TYPE").as_str() {
        "rc" => qp_type::RC,
        "uc" => qp_type::UC,
        "ud" => qp_type::UD,
        other => panic!("unknown type {other}"),
    };
    let (from, to) = (next("FROM"), next("TO"));
    let mut shape = Shape { qp_type, ..Shape::default() };
    let mut config = SoftConfig::default();
    let mut longest = 20_000;
    let mut pcap = None;
    while let Some(option) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{option} wants a value"));
        match option.as_str() {
            "--mtu" => shape.mtu = value().parse().expect("an MTU code"),
            "--longest" => longest = value().parse().expect("bytes"),
            "--pcap" => pcap = Some(CString::new(value()).expect("a path")),
            "--no-gso" => config.flags |= flags::NO_GSO,
            other => panic!("unknown option {other}"),
        }
    }
    shape.buffer = (2 * longest as usize + 8192).next_multiple_of(4096);
    let plain = config;
    config.pcap = pcap.as_deref();
    let a = Soft::open(&from, &config).unwrap_or_else(|e| panic!("{from}: {e}"));
    let b = Soft::open(&to, &plain).unwrap_or_else(|e| panic!("{to}: {e}"));
    let (mut x, mut y) = connected(a.dev(), b.dev(), shape).expect("two connected ends");
    let n = every_operation(&mut x, &mut y, longest) + every_operation(&mut y, &mut x, longest);
    x.destroy().expect("nothing in use");
    y.destroy().expect("nothing in use");
    println!("{n} messages");
}
