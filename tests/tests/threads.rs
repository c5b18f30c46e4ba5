//! Threads that share a device, each with a queue pair and a completion queue of its own: they take
//! turns at its engine, and each finishes, whatever the others do.

use gdrcore_core::verbs::types::wc_opcode;
use gdrcore_net::soft::{soft_flags, PathChoice, SoftConfig};
use gdrcore_tests::ends::{connected, pattern, Op};
use gdrcore_tests::patience::{deadline, run_until};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::workers::{await_one, comes, exchange, shape, write, LEN};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

const ROUNDS: u64 = 20_000;

/// Devices for a path: one for both ends, or one each.
fn devices(path: &str) -> Vec<Soft> {
    let config = |path| SoftConfig { path, flags: soft_flags::HELPER, ..SoftConfig::default() };
    let two = |path| two_of(&config(path));
    match path {
        "loopback" => vec![Soft::open("loopback", &SoftConfig::default()).expect("open")],
        "loopback, helper" => vec![Soft::open("loopback", &config(PathChoice::Udp)).expect("open")],
        "shm" => two(PathChoice::Shm),
        _ => two(PathChoice::Udp),
    }
}

fn two_of(config: &SoftConfig) -> Vec<Soft> {
    [1, 2].map(|n| Soft::open(&address(n), config).expect("open")).into()
}

const PATHS: [&str; 4] = ["loopback", "loopback, helper", "shm", "udp"];

#[test]
fn threads_with_own_queues_finish_beside_each_other() {
    for path in PATHS {
        let devices = devices(path);
        let (x, y) = (devices[0].dev(), devices[devices.len() - 1].dev());
        let rounds = if path.starts_with("loopback") { ROUNDS } else { ROUNDS / 10 };
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (mut a, mut b) = connected(x, y, shape()).expect("connected ends");
                if n == 0 {
                    scope.spawn(move || write(&mut a, &b, 1 << 40, rounds));
                } else {
                    let seed = n << 32;
                    scope.spawn(move || exchange(&mut a, seed, true, rounds / 4));
                    scope.spawn(move || exchange(&mut b, seed, false, rounds / 4));
                }
            }
        });
    }
}

#[test]
fn a_poller_of_an_empty_queue_and_a_worker_both_go_on() {
    for path in PATHS {
        let devices = devices(path);
        let (x, y) = (devices[0].dev(), devices[devices.len() - 1].dev());
        let (mut a, b) = connected(x, y, shape()).expect("connected ends");
        let (mut idle, mut sender) = connected(x, y, shape()).expect("connected ends");
        let over = AtomicBool::new(false);
        let came = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Its only message comes while the other thread works, or after it.
                idle.post_recv(0, 4096, LEN).expect("post_recv");
                await_one(&mut idle, wc_opcode::RECV);
                came.fetch_add(1, Ordering::Relaxed);
                while !over.load(Ordering::Relaxed) {
                    idle.poll();
                }
            });
            write(&mut a, &b, 0, ROUNDS / 20);
            sender.post(1, Op::Send(None), 0, LEN).expect("post_send");
            // WRITEs go on until the idle thread has its message, which the worker may never look
            // for.
            let mut seed = 1 << 32;
            run_until(60, &format!("{path}: the message waits behind the worker"), || {
                write(&mut a, &b, seed, 1);
                seed += 1;
                sender.poll();
                came.load(Ordering::Relaxed) == 1
            });
            over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_thread_that_stops_in_its_turn_stops_no_other() {
    let devices = devices("loopback");
    let dev = devices[0].dev();
    let (mut a, b) = connected(dev, dev, shape()).expect("connected ends");
    std::thread::scope(|scope| {
        for n in 0..8 {
            // Each has the turn when it ends or sleeps.
            let (mut c, d) = connected(dev, dev, shape()).expect("connected ends");
            scope.spawn(move || {
                for round in 0..20 {
                    write(&mut c, &d, n << 32 | round << 16, 50);
                    std::thread::sleep(std::time::Duration::from_millis(n));
                }
            });
        }
        write(&mut a, &b, 1 << 48, ROUNDS);
    });
}

#[test]
fn a_program_whose_polls_always_find_completions_serves_its_peers() {
    for (path, flags) in [
        (PathChoice::Shm, 0),
        (PathChoice::Udp, 0),
        (PathChoice::Shm, soft_flags::HELPER),
        (PathChoice::Udp, soft_flags::HELPER),
    ] {
        let devices = two_of(&SoftConfig { path, flags, ..SoftConfig::default() });
        let (x, y) = (devices[0].dev(), devices[1].dev());
        let (mut a, b) = connected(x, x, shape()).expect("connected ends");
        let (mut peer, end) = connected(y, x, shape()).expect("connected ends");
        end.post_recv(1, 4096, LEN).expect("post_recv");
        let data = pattern(7, LEN as usize);
        peer.buffer.write(0, &data);
        peer.post(1, Op::Send(None), 0, LEN).expect("post_send");
        let limit = deadline(60);
        // Each WRITE completes at once, and one poll finds that.
        for seed in 1 << 32.. {
            write(&mut a, &b, seed, 1);
            if comes(&mut peer, wc_opcode::SEND, Instant::now()) {
                break;
            }
            assert!(Instant::now() < limit, "{path:?}, {flags}: no ACK from a busy program");
        }
        assert_eq!(end.buffer.read(4096, LEN as usize), data);
    }
}
