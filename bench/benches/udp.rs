//! Two ends over UDP on loopback addresses against bare sockets with the same traffic, alternating
//! in one run: SEND of 64 bytes against an echo with a 20-byte ACK per message; WRITE of 1 MiB
//! against GSO and GRO.
//!
//! `cargo bench -p bench --bench udp`. Two threads poll: the machine needs two free cores. Each
//! ratio compares the same quantile of many short batches, so that batches disturbed by other
//! programs do not count.

use bench::bare::Bare;
use bench::ends::End;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::wr_opcode;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

const BATCHES: usize = 100;
const ROUNDS: usize = 50;
const MIB: u32 = 1 << 20;

/// Half round trip in ns of a batch of bare echoes.
fn echo(a: &Bare, to: &SocketAddr) -> f64 {
    let (msg, ack) = ([7u8; 84], [1u8; 20]);
    let mut buf = [0u8; 2048];
    let start = Instant::now();
    for _ in 0..ROUNDS {
        a.send_to(&msg, to);
        while a.receive(&mut buf) != msg.len() {}
        a.send_to(&ack, to);
    }
    start.elapsed().as_nanos() as f64 / ROUNDS as f64 / 2.0
}

fn send_recv(a: &End) -> f64 {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        a.post_recv(0, 64);
        a.post_unsignalled(0, 64);
        a.wait_recv();
    }
    start.elapsed().as_nanos() as f64 / ROUNDS as f64 / 2.0
}

fn quantile(v: &mut [f64], q: f64) -> f64 {
    v.sort_by(f64::total_cmp);
    v[((v.len() - 1) as f64 * q) as usize]
}

fn report(what: &str, unit: &str, ours: &mut [f64], bare: &mut [f64], quantiles: [f64; 3]) {
    for q in quantiles {
        let (o, b) = (quantile(ours, q), quantile(bare, q));
        println!("{what} p{:.0}: {o:.2} {unit}, bare {b:.2}, ratio {:.2}", q * 100.0, o / b);
    }
}

fn latency() {
    let a = End::open("soft:127.0.0.1:4821", 1, 1 << 20, 64);
    let b = End::open("soft:127.0.0.2:4821", 1, 1 << 20, 64);
    End::connect(&a, &b);
    let (x, y) = (Bare::open("127.0.0.1:0", 0), Bare::open("127.0.0.2:0", 0));
    let (to_x, to_y) = (x.address(), y.address());
    // The traffic that the other thread serves: 0 bare, 1 ours, 2 end.
    let turn = AtomicU64::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            let (msg, ack) = ([7u8; 84], [1u8; 20]);
            let mut buf = [0u8; 2048];
            b.post_recv(0, 64);
            loop {
                match turn.load(Ordering::Relaxed) {
                    0 => {
                        if y.receive(&mut buf) == msg.len() {
                            y.send_to(&ack, &to_x);
                            y.send_to(&msg, &to_x);
                        }
                    }
                    1 => {
                        if b.try_wait() {
                            b.post_recv(0, 64);
                            b.post_unsignalled(0, 64);
                        }
                    }
                    _ => return,
                }
            }
        });
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..BATCHES {
            turn.store(0, Ordering::Relaxed);
            bare.push(echo(&x, &to_y) / 1000.0);
            turn.store(1, Ordering::Relaxed);
            ours.push(send_recv(&a) / 1000.0);
        }
        turn.store(2, Ordering::Relaxed);
        report("SEND 64", "us", &mut ours, &mut bare, [0.02, 0.1, 0.5]);
    });
}

fn bandwidth() {
    const SEGMENT: usize = 4096 + 16;
    let a = End::open("soft:127.0.0.1:4823", 1, 8 << 20, 64);
    let b = End::open("soft:127.0.0.2:4823", 1, 8 << 20, 64);
    End::connect(&a, &b);
    let (x, y) =
        (Bare::open("127.0.0.1:0", SEGMENT as i32), Bare::open("127.0.0.2:0", SEGMENT as i32));
    let (to_x, to_y) = (x.address(), y.address());
    let (turn, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut buf = vec![0u8; 65536];
            while !stop.load(Ordering::Relaxed) {
                if turn.load(Ordering::Relaxed) == 0 {
                    // A byte of credit for each group of datagrams, in place of an ACK.
                    if y.receive(&mut buf) > 0 {
                        y.send_to(&[1], &to_x);
                    }
                } else {
                    b.dev.progress().expect("progress");
                }
            }
        });
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        let data = vec![5u8; 15 * SEGMENT];
        let mut buf = [0u8; 64];
        for _ in 0..BATCHES {
            turn.store(0, Ordering::Relaxed);
            let groups = 4 * MIB as usize / data.len();
            let (mut sent, mut credits) = (0, 0);
            let start = Instant::now();
            let mut last = start;
            while credits < groups {
                // Three groups under way fit the default socket buffer.
                while sent < groups && sent - credits < 3 {
                    x.send_to(&data, &to_y);
                    sent += 1;
                }
                // GRO may join several credits.
                let n = x.receive(&mut buf);
                credits += n;
                if n > 0 {
                    last = Instant::now();
                } else if last.elapsed().as_millis() > 20 {
                    credits = sent;
                }
            }
            bare.push((groups * data.len()) as f64 / start.elapsed().as_nanos() as f64);
            turn.store(1, Ordering::Relaxed);
            let start = Instant::now();
            for i in 0..4 {
                a.post(0, &b.mr, wr_opcode::RDMA_WRITE, i * u64::from(MIB), MIB);
            }
            for _ in 0..4 {
                a.wait();
            }
            ours.push(4.0 * f64::from(MIB) / start.elapsed().as_nanos() as f64);
        }
        stop.store(true, Ordering::Relaxed);
        report("WRITE 1 MiB", "GB/s", &mut ours, &mut bare, [0.98, 0.9, 0.5]);
        let c = a.dev.counters().expect("counters");
        println!(
            "retransmitted {} of {}, timeouts {}, sequence \
             NAKs {}, window closed {}, bytes per send call {}",
            c.retransmitted_pkts,
            c.sent_pkts,
            c.retry_timeouts,
            c.rcvd_seq_err,
            c.window_closed,
            c.sent_bytes / c.port_tx_calls.max(1)
        );
    });
}

fn main() {
    if std::env::var_os("NO_LAT").is_none() {
        latency();
    }
    bandwidth();
}
