//! The long interoperation run: gibibytes between the two stacks, over a clean wire and over lossy
//! ones, every byte compared.

use super::cases::half;
use super::deep_queues::transfer;
use super::lab::{Lab, DEVICES, PEER_PORT};
use super::mangle::Fault;
use super::pair::Pair;
use super::side::Side;
use super::vm::Release;
use super::{cases, Link, Outcome};
use crate::ends::Shape;
use crate::soft::Soft;
use gdrcore_core::verbs::types::{qp_type, wr_opcode};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of a message, and messages outstanding.
const LEN: usize = 1 << 20;
const DEPTH: usize = 8;

/// One part of the run: packets lost of ten thousand, and bytes to transfer.
struct Leg {
    name: &'static str,
    loss: u32,
    bytes: u64,
}

/// What crossed the wire in one part.
struct Done {
    bytes: u64,
    time: Duration,
    packets: u64,
    lost: u64,
}

/// SEND, WRITE and READ in turn, with each side as requester, until so many bytes have crossed.
fn leg(lab: &Lab, link: &Link, leg: &Leg) -> Outcome<Done> {
    // Our side must outlast the pauses of an emulated peer; rxe handles one NAK per ACK, so after
    // losses it depends on its timer.
    let shape =
        Shape { timeout: 16, retry_cnt: 7, depth: 64, ..cases::shape(qp_type::RC, 5, DEPTH * LEN) };
    let mut pair = Pair::with_timeouts(link, shape, if leg.loss > 0 { 10 } else { 17 })?;
    let (packets, [lost, ..]) = lab.mangler.counts();
    let (began, mut bytes, mut said) = (Instant::now(), 0, Instant::now());
    if leg.loss > 0 {
        lab.mangler.set(u64::from(leg.loss), &[(Fault::Drop, leg.loss)]);
    }
    while bytes < leg.bytes {
        for (op, name) in [
            (wr_opcode::RDMA_WRITE, "WRITE"),
            (wr_opcode::SEND, "SEND"),
            (wr_opcode::RDMA_READ, "READ"),
        ] {
            for side in [Side::Ours, Side::Rxe] {
                // Each transfer has other bytes, so that bytes of an earlier one are not taken for
                // new.
                let seed = 1 + bytes / LEN as u64;
                transfer(&mut pair, side, op, DEPTH, LEN, seed)
                    .map_err(|e| format!("{name} of {side:?} after {bytes} bytes: {e}"))?;
                bytes += (DEPTH * LEN) as u64;
            }
        }
        if said.elapsed() > Duration::from_secs(20) {
            said = Instant::now();
            println!("{}: {} MiB in {} s", leg.name, bytes >> 20, began.elapsed().as_secs());
        }
    }
    lab.mangler.set(0, &[]);
    let (to, last) = (half(&pair), lab.mangler.counts());
    pair.untouched(Side::Ours, to + DEPTH * LEN, 8, 0)?;
    pair.end()?;
    Ok(Done { bytes, time: began.elapsed(), packets: last.0 - packets, lost: last.1[0] - lost })
}

/// Boots the machine and runs every part; returns the result as Markdown. `share` holds the far
/// end's program. `clean` MiB cross the clean wire, `lossy` MiB each of the others.
pub fn run(share: &Path, clean: u64, lossy: u64) -> Outcome<String> {
    let lab = Lab::new(Release::Host, share)?;
    let kernel = lab.vm.run("uname -r", 10)?;
    let (_program, guest) = lab.peer(PEER_PORT)?;
    let device = Soft::open(DEVICES[0], &Default::default()).map_err(|e| e.to_string())?;
    let link = Link::new(device.dev(), &guest)?;
    let mut out = String::from(
        "| wire | moved, every byte checked | packets | lost on the wire | rate, the far end \
         emulated |\n|---|---|---|---|---|\n",
    );
    for l in [
        Leg { name: "clean", loss: 0, bytes: clean << 20 },
        Leg { name: "1 % of the packets lost", loss: 100, bytes: lossy << 20 },
        Leg { name: "5 % of the packets lost", loss: 500, bytes: lossy << 20 },
    ] {
        lab.mangler.watch();
        let done = lab.mangler.explain(leg(&lab, &link, &l))?;
        let rate = done.bytes as f64 / 1e6 / done.time.as_secs_f64();
        let gib = done.bytes as f64 / (1u64 << 30) as f64;
        let line = format!(
            "| {} | {gib:.1} GiB | {} | {} | {rate:.0} MB/s |",
            l.name, done.packets, done.lost
        );
        println!("{line}");
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(
        out,
        "\nSENDs, WRITEs and READs of 1 MiB, eight outstanding, each stack as \
         requester and as responder by turns; path MTU 4096, IPv4, kernel {}.",
        kernel.trim()
    );
    Ok(out)
}
