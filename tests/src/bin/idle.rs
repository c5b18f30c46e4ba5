//! One busy pair of QPs beside idle ones; `tests/idle.rs` counts its instructions.
//!
//! `idle N`: makes N connected QPs that stay idle, then runs 400 rounds of one WRITE of 8 bytes,
//! its completion and one empty poll, all inside the function [`gdrc_test_busy`].

use gdrcore_core::config::Config;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::Wc;
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::ends::{connected, End, Op, Shape};
use gdrcore_tests::soft::Soft;

const ROUNDS: u64 = 400;

/// The part that is counted; `--toggle-collect` names this function.
#[no_mangle]
#[inline(never)]
fn gdrc_test_busy(dev: &dyn Device, a: &End, rounds: u64) -> u64 {
    let mut wc = [Wc::default()];
    let mut done = 0;
    for _ in 0..rounds {
        a.post(1, Op::Write(0, None), 0, 8).expect("room");
        while dev.poll_cq(a.cq, &mut wc).expect("poll") == 0 {}
        done += u64::from(wc[0].status == 0);
        dev.progress().expect("progress");
    }
    done
}

fn main() {
    let idle: u32 =
        std::env::args().nth(1).and_then(|n| n.parse().ok()).expect("how many idle QPs");
    let many = idle + 8;
    let core = Config {
        max_qp: many,
        max_pd: many,
        max_cq: many,
        max_mr: many,
        ring_bytes: u64::from(many) * 8192,
        ..Config::default()
    };
    let soft =
        Soft::open("loopback", &SoftConfig { core, ..SoftConfig::default() }).expect("a device");
    let shape = Shape { depth: 4, cqe: 4, sge: 1, buffer: 4096, ..Shape::default() };
    let pair = || connected(soft.dev(), soft.dev(), shape).expect("a pair");
    let others: Vec<_> = (0..idle / 2).map(|_| pair()).collect();
    let (a, b) = pair();
    assert_eq!(gdrc_test_busy(soft.dev(), &a, ROUNDS), ROUNDS);
    for (x, y) in others.into_iter().chain([(a, b)]) {
        x.destroy().expect("nothing in use");
        y.destroy().expect("nothing in use");
    }
}
