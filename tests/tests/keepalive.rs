//! Keepalive over sockets and shared memory, with the peer in a process of its own: idle, stopped,
//! killed.

use gdrcore_core::device::async_event;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{qp_state, wc_status};
use gdrcore_core::Config;
use gdrcore_net::soft::{soft_flags as flags, PathChoice, SoftConfig};
use gdrcore_tests::ends::{End, Op, Shape};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::patience::deadline;
use gdrcore_tests::soft::{address, Soft};
use std::time::{Duration, Instant};

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
/// Followed by eight probes of 67 ms each, so the machine may be busy for half a second.
const EVERY: Duration = Duration::from_millis(200);

fn open(name: &str, path: PathChoice, flags: u32) -> Soft {
    let core = Config { keepalive_ns: EVERY.as_nanos() as u64, ..Config::default() };
    Soft::open(name, &SoftConfig { core, path, flags, ..SoftConfig::default() }).expect("a device")
}

fn asked(a: &End) -> u64 {
    a.dev.qp_counters(a.qp).expect("counters").keepalives
}

/// Lets the device work until `done` returns true. With a helper thread nothing polls.
fn until(a: &mut End, has_helper: bool, what: &str, mut done: impl FnMut(&mut End) -> bool) {
    let end = deadline(60);
    while !done(a) {
        assert!(Instant::now() < end, "{what}; asked {} times", asked(a));
        if has_helper {
            std::thread::sleep(Duration::from_millis(1));
        } else {
            // Sleeps; only the device's own timers wake it.
            a.dev.wait(1000).expect("wait");
            a.poll();
        }
    }
}

#[test]
fn an_idle_peer_keeps_its_connection_and_a_stopped_or_killed_one_fails_with_its_cause() {
    for (path, name) in [(PathChoice::Udp, "path=udp"), (PathChoice::Shm, "path=shm")] {
        for has_helper in [false, true] {
            let here = open(&address(1), path, if has_helper { flags::HELPER } else { 0 });
            for signal in [libc::SIGSTOP, libc::SIGKILL] {
                let what = format!("{name}, helper: {has_helper}, signal {signal}");
                // The peer has no such option and sleeps: its helper answers.
                let mut far = Far::start(FAR, &address(2), &["helper=1", name]);
                let mut a = End::new(here.dev(), Shape::default()).expect("an end");
                far.connect(&mut a);
                a.post_recv(7, 0, 100).expect("post_recv");
                until(&mut a, has_helper, &what, |a| asked(a) >= 5);
                assert_eq!(a.state(), qp_state::RTS, "{what}");
                a.post(1, Op::Write(0, None), 0, 1000).expect("post_send");
                until(&mut a, has_helper, &what, |a| {
                    a.poll();
                    a.take(1).is_some_and(|wc| wc.status == wc_status::SUCCESS)
                });
                far.signal(signal);
                until(&mut a, has_helper, &what, |a| a.state() == qp_state::ERR);
                // The end of a process is noticed by its link, or by the kernel, which refuses
                // packets to it.
                let cause = CauseCode::from_u32(a.dev.qp_cause(a.qp).expect("cause").code);
                let expected = match (signal, path) {
                    (libc::SIGSTOP, _) => CauseCode::Keepalive,
                    (_, PathChoice::Udp) => CauseCode::PeerUnreachable,
                    _ => CauseCode::PathLost,
                };
                assert_eq!(cause, Some(expected), "{what}");
                let event = a.dev.async_event().expect("async_event").expect("an event");
                assert_eq!((event.event, event.handle), (async_event::QP_FATAL, a.qp), "{what}");
                until(&mut a, has_helper, &what, |a| {
                    a.poll();
                    a.take(7).is_some_and(|wc| wc.status == wc_status::WR_FLUSH_ERR)
                });
                a.destroy().expect("destroy");
            }
        }
    }
}
