//! Runs the fuzz targets with a bounded number of random strings, on every machine.
//! `GDRC_FUZZ_RUNS=N` runs more, `GDRC_FUZZ_SEED=S` repeats one string.

use gdrcore_core::cm::cm_event;
use gdrcore_core::counters::Counters;
use gdrcore_fuzz::{Fed, Mailed, Managed, Reached, Relayed, Routed, Ruled, Seen};
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

/// Runs a target over many strings of fewer than `max` bytes; passes each result to `add`.
fn run<T>(name: &str, runs: u64, max: usize, target: impl Fn(&[u8]) -> T, mut add: impl FnMut(T)) {
    if let Some(seed) = std::env::var("GDRC_FUZZ_SEED").ok().and_then(|s| s.parse().ok()) {
        return add(target(&string(seed, max)));
    }
    let runs = std::env::var("GDRC_FUZZ_RUNS").ok().and_then(|s| s.parse().ok()).unwrap_or(runs);
    for seed in 0..runs {
        let data = string(seed, max);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&data)));
        let Ok(result) = outcome else { panic!("{name}: GDRC_FUZZ_SEED={seed} repeats it") };
        add(result);
    }
}

/// Runs a target over many strings; returns the sum of their counters.
fn counted(name: &str, runs: u64, target: impl Fn(&[u8]) -> Counters) -> Counters {
    let mut sum = Counters::default();
    run(name, runs, 2048, target, |c| sum.add(&c));
    sum
}

#[test]
fn packets_into_qps_of_every_state() {
    let c = counted("packets", 400, gdrcore_fuzz::packets);
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
    assert!(single() || reached.iter().all(|&n| n > 0), "{c:#?}");
}

#[test]
fn two_engines_fed_by_one_string() {
    let c = counted("pair", 400, gdrcore_fuzz::pair);
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
    assert!(single() || reached.iter().all(|&n| n > 0), "{c:#?}");
}

#[test]
fn packets_into_targets_and_initiators_of_dc() {
    let c = counted("dc", 400, gdrcore_fuzz::dc);
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
    assert!(single() || reached.iter().all(|&n| n > 0), "{c:#?}");
}

#[test]
fn parsers_take_anything() {
    run("wire", 20_000, 2048, gdrcore_fuzz::wire, |()| {});
}

#[test]
fn capture_files_of_any_content() {
    let mut sum = Seen::default();
    run("pcap", 4000, 2048, gdrcore_fuzz::pcap, |s| sum.add(&s));
    let reached = [sum.files, sum.records, sum.cut, sum.datagrams, sum.roce];
    assert!(single() || reached.iter().all(|&n| n > 100), "{sum:?}");
}

#[test]
fn c_calls_in_any_order_with_any_arguments() {
    let mut sum = Reached::default();
    run("capi", 300, 200_000, gdrcore_fuzz::capi, |r| sum.add(&r));
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
    let mut sum = Mailed::default();
    run("mail", 20_000, 600, gdrcore_fuzz::mail, |s| sum.add(&s));
    println!("{sum:?}");
    assert!(single() || sum.tables > 100 && sum.packets > 100, "{sum:?}");
}

#[test]
fn connection_managers_between_hostile_messages() {
    let mut sum = Managed::default();
    run("cm", 1500, 1200, gdrcore_fuzz::cm, |m| sum.add(&m));
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
    let mut sum = Routed::default();
    run("router", 3000, 2048, gdrcore_fuzz::router, |r| sum.add(&r));
    let Routed { welcomed, links, refused, expelled, revoked, listens, policies } = sum;
    let reached = [welcomed, links, refused, expelled, revoked, listens, policies];
    assert!(single() || reached.iter().all(|&n| n > 0), "{sum:?}");
}

#[test]
fn any_policies_maps_and_requests() {
    let mut sum = Ruled::default();
    run("policy", 5000, 600, gdrcore_fuzz::policy, |r| sum.add(&r));
    let Ruled { policies, tenants, with_map, maps, requests, refused } = sum;
    let reached = [policies, tenants, with_map, maps, requests, refused];
    assert!(single() || reached.iter().all(|&n| n > 20), "{sum:?}");
}

#[test]
fn any_events_of_an_adapter() {
    let mut sum = Fed::default();
    run("feed", 3000, 2048, gdrcore_fuzz::feed, |r| sum.add(&r));
    let Fed { taken, refused, made, failed, waited, ended } = sum;
    let reached = [taken, refused, made, failed, waited, ended];
    assert!(single() || reached.iter().all(|&n| n > 0), "{sum:?}");
}

#[test]
fn any_packets_at_a_relay() {
    let mut sum = Relayed::default();
    run("relay", 3000, 2048, gdrcore_fuzz::relay, |r| sum.add(&r));
    let Relayed { passed, managed, abroad, arrived, refused } = sum;
    // All refusals except that of the rate limit, for which strings are too short.
    let (_, most) = refused.split_last().expect("refusals");
    let reached = [passed, managed, abroad, arrived].iter().chain(most).all(|&n| n > 0);
    assert!(single() || reached, "{sum:?}");
}
