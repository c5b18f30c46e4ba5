//! Cost of a request in the router's remote mode, beside the same device called directly; all in
//! one thread, so that callgrind can count.
//!
//! `remote PLACE BATCH COUNT`: `COUNT` times, a batch of WRITEs of 8 bytes inline and signalled is
//! posted, executed and its completions polled, between two queue pairs of one device. `PLACE`:
//! `direct`, or `remote`, over the rings of a session. The tenant's part is in `tenant`, the
//! router's in `serve`: `valgrind --tool=callgrind --toggle-collect='*tenant*'` counts one of them.

use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{send_flags, wr_opcode, Wc};
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_router::policy::tenant_of_uid;
use gdrcore_router::remote::server::Server;
use gdrcore_router::remote::session::Session;
use gdrcore_router::remote::shared_device::SharedDevice;
use gdrcore_testkit::ends::{connected_pair, End, Op};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Posts a batch.
#[inline(never)]
fn tenant_post(end: &End, batch: u64) {
    let pieces = [end.piece(0, 8)];
    for n in 0..batch {
        let mut wr = end.request(n, Op::Write(0, None), &pieces);
        wr.send_flags |= send_flags::INLINE;
        debug_assert_eq!(wr.opcode, wr_opcode::RDMA_WRITE);
        end.post_wr(&wr).expect("a post");
    }
}

/// Polls once. Returns how many completed.
#[inline(never)]
fn tenant_poll(device: &dyn Device, end: &End) -> u64 {
    let mut wc = [Wc::default(); 64];
    let n = device.poll_cq(end.cq, &mut wc).expect("a poll");
    assert!(wc[..n].iter().all(|wc| wc.status == 0));
    n as u64
}

/// Runs `count` batches, and `serve` until each has completed. Prints nanoseconds a request.
fn run(device: &dyn Device, end: &End, batch: u64, count: u64, mut serve: impl FnMut()) {
    let start = Instant::now();
    for _ in 0..count {
        tenant_post(end, batch);
        let mut done = 0;
        while done < batch {
            serve();
            done += tenant_poll(device, end);
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / (batch * count) as f64;
    println!("{ns:.0} ns a request, {batch} at a time");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [place, batch, count] = &words[..] else {
        panic!("usage: remote direct|remote BATCH COUNT");
    };
    let number = |word: &str| word.parse().expect("a number");
    let (batch, count) = (number(batch), number(count));
    let shared = SharedDevice::open("loopback").expect("a device");
    if place == "direct" {
        let device = shared.device();
        let (a, _b) = connected_pair(device, device);
        return run(device, &a, batch, count, || ());
    }
    let mut server = Server::new(shared);
    let (session, ends) = Session::new(1).expect("a session");
    server.join(session, &tenant_of_uid(0));
    // Calls need somebody who answers; the loop below serves by itself.
    let stop = AtomicBool::new(false);
    let device = std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                server.hear_all();
                server.round();
            }
        });
        let device = RemoteDevice::over(ends.0, None).expect("a session");
        let device: &'static RemoteDevice = Box::leak(Box::new(device));
        let made = connected_pair(device, device);
        stop.store(true, Ordering::Release);
        (device, made)
    });
    let (device, (a, _b)) = device;
    run(device, &a, batch, count, || _ = server.round());
    std::process::exit(0);
}
