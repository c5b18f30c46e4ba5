//! Runs the fuzz targets with a bounded number of random strings, on every machine.
//! `GDRC_FUZZ_RUNS=N` runs more, `GDRC_FUZZ_SEED=S` repeats one string.

use gdrcore_core::cm::cm_event;
use gdrcore_fuzz::{Counts, Coverage, Relayed};
use gdrcore_testkit::rng::Rng;

/// Whether only one string was requested.
fn single() -> bool {
    std::env::var("GDRC_FUZZ_SEED").is_ok()
}

fn string(seed: u64, max: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let len = rng.next() as usize % max;
    let sparse = rng.next().is_multiple_of(2);
    (0..len)
        .map(|_| {
            let r = rng.next();
            // Half of the strings are mostly small numbers, which reach deeper.
            if sparse && r & 0x300 != 0 {
                (r % 16) as u8
            } else {
                r as u8
            }
        })
        .collect()
}

/// Runs a target over many strings of fewer than `max` bytes; returns what they all reach.
fn run<C: Coverage>(name: &str, runs: u64, max: usize, target: impl Fn(&[u8]) -> C) -> C {
    if let Some(seed) = std::env::var("GDRC_FUZZ_SEED").ok().and_then(|s| s.parse().ok()) {
        return target(&string(seed, max));
    }
    let runs = std::env::var("GDRC_FUZZ_RUNS").ok().and_then(|s| s.parse().ok()).unwrap_or(runs);
    let mut sum = C::default();
    for seed in 0..runs {
        let data = string(seed, max);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&data)));
        let Ok(result) = outcome else { panic!("{name}: GDRC_FUZZ_SEED={seed} repeats it") };
        sum.add(&result);
    }
    sum
}

/// As [`run`]; each counter must exceed `least`.
fn reach<C>(name: &str, runs: u64, max: usize, least: u64, target: impl Fn(&[u8]) -> C)
where
    C: Counts + std::fmt::Debug,
{
    let sum = run(name, runs, max, target);
    assert!(single() || sum.exceed(least), "{sum:?}");
}

#[test]
fn packets_into_qps_of_every_state() {
    let c = run("packets", 400, 2048, gdrcore_fuzz::packets);
    // A fuzzer that fails the first check finds nothing, so these places must be reached.
    let reached = [
        c.rcvd_icrc_err,
        c.rcvd_malformed,
        c.rcvd_no_qp,
        c.rcvd_pkts,
        c.duplicate_request,
        c.out_of_seq_request,
        c.send_nak_err,
        c.rcvd_refused,
        c.rcvd_dropped,
        c.rdma_recvs,
        c.retry_exceeded_err,
        c.rcvd_nak_err,
    ];
    assert!(single() || reached.exceed(0), "{c:#?}");
}

#[test]
fn two_engines_fed_by_one_string() {
    let c = run("pair", 400, 2048, gdrcore_fuzz::pair);
    let reached = [
        c.rdma_sends,
        c.rdma_writes,
        c.rdma_reads,
        c.rdma_atomics,
        c.rdma_recvs,
        c.duplicate_request,
        c.out_of_seq_request,
        c.rcvd_rnr_err,
        c.rcvd_seq_err,
        c.retry_timeouts,
        c.retry_exceeded_err,
        c.rcvd_icrc_err,
    ];
    assert!(single() || reached.exceed(0), "{c:#?}");
}

#[test]
fn packets_into_targets_and_initiators_of_dc() {
    let c = run("dc", 400, 2048, gdrcore_fuzz::dc);
    let reached = [
        c.rcvd_pkts,
        c.rcvd_refused,
        c.rcvd_no_qp,
        c.dc_accepted,
        c.dc_opened,
        c.dc_closed,
        c.dc_refused_key,
        c.dc_busy,
        c.dc_reclaimed,
        c.dc_gone,
        c.rdma_recvs,
        c.duplicate_request,
        c.send_nak_err,
        c.retry_exceeded_err,
    ];
    assert!(single() || reached.exceed(0), "{c:#?}");
}

#[test]
fn parsers_take_anything() {
    run("wire", 20_000, 2048, gdrcore_fuzz::wire);
}

#[test]
fn c_calls_in_any_order_with_any_arguments() {
    let sum = run("capi", 300, 200_000, gdrcore_fuzz::capi);
    println!("{sum:#?}");
    if single() {
        return;
    }
    // Every call must have succeeded, and every call that can refuse must have refused.
    let never = ["gdrc_open"];
    // Without a GPU nothing can be imported; the loopback device is in no group.
    let refused_here = ["gdrc_cuda_import", "gdrc_qp_attach_mcast", "gdrc_qp_detach_mcast"];
    for (name, [good, refused]) in &sum.calls {
        assert!(*good > 0 || refused_here.contains(name), "{name} never succeeded");
        assert!(*refused > 0 || never.contains(name), "{name} never refused");
    }
    assert!(sum.good > 500 && sum.failed > 2000 && sum.statuses.count_ones() >= 8, "{sum:#?}");
}

#[test]
fn mail_of_any_content() {
    reach("mail", 20_000, 600, 100, gdrcore_fuzz::mail);
}

#[test]
fn connection_managers_between_hostile_messages() {
    let sum = run("cm", 1500, 1200, gdrcore_fuzz::cm);
    println!("{sum:?}");
    let events = [
        cm_event::CONNECT_REQUEST,
        cm_event::CONNECT_RESPONSE,
        cm_event::UNREACHABLE,
        cm_event::REJECTED,
        cm_event::ESTABLISHED,
        cm_event::DISCONNECTED,
    ];
    let came = events.iter().all(|&e| sum.events[e as usize] > 50);
    let told = sum.calls.iter().chain(&sum.forged).chain([&sum.retries]).all(|&n| n > 500);
    assert!(single() || came && told, "{sum:?}");
}

#[test]
fn any_processes_at_a_router() {
    reach("router", 3000, 2048, 0, gdrcore_fuzz::router);
}

#[test]
fn any_policies_maps_and_requests() {
    reach("policy", 5000, 600, 20, gdrcore_fuzz::policy);
}

#[test]
fn any_events_of_an_adapter() {
    reach("feed", 3000, 2048, 0, gdrcore_fuzz::feed);
}

#[test]
fn any_packets_at_a_relay() {
    let sum = run("relay", 3000, 2048, gdrcore_fuzz::relay);
    let Relayed { passed, managed, abroad, arrived, refused } = sum;
    // All refusals except that of the rate limit, for which strings are too short.
    let (_, most) = refused.split_last().expect("refusals");
    let reached = [passed, managed, abroad, arrived].exceed(0) && most.iter().all(|&n| n > 0);
    assert!(single() || reached, "{sum:?}");
}

#[test]
fn any_tenants_of_a_routers_device() {
    reach("remote", 1500, 2048, 100, gdrcore_fuzz::remote);
}

/// The same calls, looked at by `--strict`: in a process of its own, whose environment asks for it.
/// What the calls do stays as it is but for full queues, so their sums are not compared.
#[test]
fn c_calls_in_any_order_are_looked_at() {
    const STRICT: &str = "GDRC_STRICT";
    if std::env::var_os(STRICT).is_some() {
        run("capi", 60, 200_000, gdrcore_fuzz::capi);
        return;
    }
    let mut c = std::process::Command::new(std::env::current_exe().expect("this program"));
    c.args(["--exact", "c_calls_in_any_order_are_looked_at"]).env(STRICT, "report");
    let done = c.output().expect("it runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{:?}: {said}", done.status);
    assert!(said.contains("gdrcore strict: buffers-overlap"), "{said}");
}
