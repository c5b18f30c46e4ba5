//! Goodput of a connection while a stranger floods its receiver.
//!
//! `flood [SECONDS]`: WRITEs of 64 KiB over UDP between two devices, a thread each, in turn beside
//! nothing, beside a thread that only computes, and beside one that sends as fast as it can:
//! datagrams of 64 bytes, or trains of 60 KiB that the kernel cuts into segments of 1 KiB. Packets
//! of each kind are sent with an unused QPN, with the connection's QPN and a wrong ICRC, and valid
//! except for the PSN, from the peer's address. Prints the median goodput of the rounds and its
//! ratio to that beside the computing thread, which takes its share of the CPUs as well.

use bench::ends::End;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{qp_state, wc_status, wr_opcode, Wc};
use gdrcore_core::wire::IcrcFlow;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BYTES: u32 = 64 << 10;
const DEPTH: usize = 16;
const ROUNDS: usize = 3;
const PORT: u16 = 4841;
const HERE: [u8; 4] = [127, 0, 0, 1];
const THERE: [u8; 4] = [127, 0, 0, 2];
/// Bytes of a segment of a train.
const SEGMENT: usize = 1024;

/// Activity of the other thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Computing,
    Flood { what: What, train: bool },
}

/// The fault of the packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    UnknownQpn,
    WrongIcrc,
    WrongPsn,
}

/// A datagram, or a train of equal segments.
fn packets(what: What, train: bool, qpn: u32, from_port: u16) -> Vec<u8> {
    let (len, count) = if train { (SEGMENT, 60) } else { (64, 1) };
    let mut all = Vec::new();
    for ident in 0..count {
        // RC SEND only, with PSNs that no connection expects for long.
        let mut p = vec![0x04, 0, 0xff, 0xff, 0];
        p.extend_from_slice(
            &(if what == What::UnknownQpn { 0xfd_fffe } else { qpn }).to_be_bytes()[1..],
        );
        p.extend_from_slice(&[0, 0x40, 0x00, 0x00]);
        p.resize(len, 0x5a);
        if what != What::WrongIcrc {
            IcrcFlow::v4(HERE, THERE, from_port, PORT).append_icrc(ident, &mut p);
        }
        all.append(&mut p);
    }
    all
}

fn flood(what: What, train: bool, qpn: u32, stop: &AtomicBool, sent: &AtomicU64) {
    let from = UdpSocket::bind((Ipv4Addr::from(HERE), 0)).expect("a socket");
    let packets = packets(what, train, qpn, from.local_addr().expect("bound").port());
    if train {
        let segment = SEGMENT as i32;
        // SAFETY: a live int and its length. SOL_UDP, UDP_SEGMENT.
        let rc =
            unsafe { libc::setsockopt(from.as_raw_fd(), 17, 103, (&raw const segment).cast(), 4) };
        assert_eq!(rc, 0, "UDP_SEGMENT");
    }
    let to = (Ipv4Addr::from(THERE), PORT);
    while !stop.load(Ordering::Relaxed) {
        if from.send_to(&packets, to).is_ok() {
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Bytes per second that arrive within `time`, and datagrams or trains that the stranger has sent.
fn goodput(a: &End, b: &End, qp: usize, beside: Beside, time: Duration) -> (f64, u64) {
    let (stop, sent) = (&AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                b.dev.progress().expect("progress");
            }
        });
        match beside {
            Beside::Nothing => {}
            Beside::Computing => _ = s.spawn(|| while !stop.load(Ordering::Relaxed) {}),
            Beside::Flood { what, train } => {
                _ = s.spawn(move || flood(what, train, b.qps[qp].1, stop, sent))
            }
        }
        let (began, mut done, mut under_way) = (Instant::now(), 0u64, 0);
        let mut wc = [Wc::default(); DEPTH];
        while began.elapsed() < time || under_way > 0 {
            while under_way < DEPTH && began.elapsed() < time {
                a.post(qp, &b.mr, wr_opcode::RDMA_WRITE, 0, BYTES);
                under_way += 1;
            }
            let n = a.dev.poll_cq(a.cq, &mut wc).expect("poll");
            under_way -= n;
            if wc[..n].iter().any(|wc| wc.status != wc_status::SUCCESS) {
                // The connection has ended, so nothing arrives in the rest of the time.
                break;
            }
            done += n as u64;
        }
        let took = began.elapsed().max(time);
        stop.store(true, Ordering::Relaxed);
        ((done * u64::from(BYTES)) as f64 / took.as_secs_f64(), sent.load(Ordering::Relaxed))
    })
}

fn main() {
    let seconds = std::env::args().nth(1).map_or(1.0, |s| s.parse().expect("seconds"));
    let open =
        |ip: [u8; 4], n| End::open(&format!("soft:{}:{PORT}", Ipv4Addr::from(ip)), n, 1 << 20, 64);
    // A connection for each measurement: one that has ended must not affect the next.
    let n = ROUNDS * 8;
    let (a, b) = (open(HERE, n), open(THERE, n));
    End::connect(&a, &b);
    let of = |what, train| Beside::Flood { what, train };
    let rows = [
        ("nothing", Beside::Nothing),
        ("a thread that computes", Beside::Computing),
        ("64 B, an unused QPN", of(What::UnknownQpn, false)),
        ("64 B, wrong ICRC", of(What::WrongIcrc, false)),
        ("64 B, wrong PSN", of(What::WrongPsn, false)),
        ("trains, an unused QPN", of(What::UnknownQpn, true)),
        ("trains, wrong ICRC", of(What::WrongIcrc, true)),
        ("trains, wrong PSN", of(What::WrongPsn, true)),
    ];
    let mut rates = vec![Vec::new(); rows.len()];
    let mut floods = vec![0u64; rows.len()];
    for round in 0..ROUNDS {
        for (i, row) in rows.iter().enumerate() {
            let (rate, sent) =
                goodput(&a, &b, round * rows.len() + i, row.1, Duration::from_secs_f64(seconds));
            rates[i].push(rate);
            floods[i] += sent;
        }
    }
    let median = |v: &[f64]| {
        let mut v = v.to_vec();
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let computing = median(&rates[1]);
    println!(
        "| beside | goodput MB/s | of it beside computing | sent \
         to the receiver a second | connections that ended |"
    );
    println!("|---|---|---|---|---|");
    for (i, (name, _)) in rows.iter().enumerate() {
        let rate = median(&rates[i]);
        let sent = floods[i] as f64 / ROUNDS as f64 / seconds;
        let connections = (0..ROUNDS).map(|round| a.qps[round * rows.len() + i].0);
        let ended = connections
            .filter(|&qp| a.dev.qp_query(qp).is_ok_and(|(attr, _)| attr.qp_state == qp_state::ERR))
            .count();
        println!(
            "| {name} | {:.0} | {:.2} | {sent:.0} | {ended} of {ROUNDS} |",
            rate / 1e6,
            rate / computing
        );
    }
    let c = b.dev.counters().expect("counters");
    println!(
        "receiver: {} with a wrong ICRC, {} for nobody, \
         {} refused, {} out of sequence, {} duplicates",
        c.rcvd_icrc_err, c.rcvd_no_qp, c.rcvd_refused, c.out_of_seq_request, c.duplicate_request
    );
}
