//! Connections without traffic take no CPU time, however many processes share the address.
//!
//! `GDRC_QUIET_SECONDS=60` makes the measurement longer.

use gdrcore_core::config::Config;
use gdrcore_net::soft::{soft_flags as flags, PathChoice, SoftConfig};
use gdrcore_tests::cpu;
use gdrcore_tests::ends::{connected, succeed, End, Op, Shape};
use gdrcore_tests::soft::{address, Soft};
use std::time::{Duration, Instant};

#[test]
fn a_hundred_idle_connections_cost_no_cpu_time() {
    let seconds =
        std::env::var("GDRC_QUIET_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    let core = Config {
        max_qp: 256,
        max_cq: 256,
        max_mr: 256,
        max_pd: 256,
        ring_bytes: 16 << 20,
        ..Config::default()
    };
    let config = SoftConfig { core, path: PathChoice::Auto, ..SoftConfig::default() };
    let name = address(1);
    let open = |name: &str, config: &SoftConfig| {
        Soft::open(name, config).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    // Two devices of one address, one of them with a helper; a third that is reached by UDP.
    let a = open(&name, &config);
    let b = open(&name, &SoftConfig { flags: flags::HELPER, ..config });
    let c = open(&address(2), &SoftConfig { path: PathChoice::Udp, ..config });
    let shape = Shape { buffer: 4096, depth: 4, cqe: 8, ..Shape::default() };
    let mut ends: Vec<(End, End)> = (0..100)
        .map(|i| {
            connected(a.dev(), if i % 2 == 0 { b.dev() } else { c.dev() }, shape)
                .expect("connected ends")
        })
        .collect();
    for (x, y) in &mut ends {
        x.post(1, Op::Write(0, None), 0, 100).expect("post_send");
        succeed(x, y, 1);
    }
    // Waits until owed ACKs and the steering of the address have settled.
    let settled = cpu::of_thread() + Duration::from_millis(300);
    while cpu::of_thread() < settled {
        [&a, &b, &c].into_iter().for_each(|d| _ = d.dev().progress());
    }
    let limit = Duration::from_secs(seconds);
    let before = cpu::of_process();
    std::thread::scope(|scope| {
        for d in [&a, &c] {
            scope.spawn(move || {
                let end = Instant::now() + limit;
                while let Some(left) =
                    end.checked_duration_since(Instant::now()).filter(|l| l.as_millis() > 0)
                {
                    assert_eq!(d.dev().wait(left.as_millis() as i32), Ok(false), "nothing happens");
                }
            });
        }
        std::thread::sleep(limit);
    });
    let used = cpu::of_process() - before;
    println!("100 idle connections, {seconds} s: {used:?} of CPU time");
    assert!(used < limit / 50, "{used:?} in {limit:?}");
}
