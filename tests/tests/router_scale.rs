//! 256 tenants of one router with 4096 queue pairs, and 64 with 1024 on a device of it: every byte
//! arrives, the router stays within its memory, does nothing while they do nothing, and keeps
//! nothing of sessions that have gone (`GDRC_ROUTER_SESSIONS`, 500). `crowd` writes the figures.

use gdrcore_tests::crowd::{
    busy, come_and_go, memory, policy, remote_policy, Crowd, Held, REMOTE_TENANTS, TENANTS,
};
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::remote::wait_until_empty;
use gdrcore_tests::router::Router;
use gdrcore_tests::soft::address;
use std::path::Path;
use std::time::Duration;

const CROWD: &str = env!("CARGO_BIN_EXE_crowd");
/// KiB of the router, for all tenants: 328 of rings each, and 30 MiB.
const MOST: u64 = 112 << 10;
/// KiB of the router's own for the tenants of its device, with 16 queue pairs each.
const REMOTE_MOST: u64 = 32 << 10;
/// The part of a core that an idle router may use: ten times its bound.
const IDLE: f64 = 0.01;

fn sessions() -> u32 {
    std::env::var("GDRC_ROUTER_SESSIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(500)
}

/// A router with the whole crowd.
fn crowded(options: &[&str]) -> (Router, Crowd, Held) {
    let mut router = Router::start_with(&policy(), options);
    let alone = Held::by(router.running().pid());
    let crowd = Crowd::start(Path::new(CROWD), &router, TENANTS);
    assert_eq!(router.sessions().len(), TENANTS as usize);
    let (pss, all) = memory(router.running().pid());
    assert!(pss <= all && all <= MOST, "{pss} KiB, {all} KiB with each page once");
    (router, crowd, alone)
}

fn is_idle(router: &mut Router) {
    let pid = router.running().pid();
    wait_for(60, "the router works", || busy(pid, Duration::from_secs(1)) <= IDLE);
}

/// Waits until the router has as many descriptors as it had. A session that is listed no more, and
/// the question for the list itself, have theirs until the router turns to them.
fn has_descriptors_of(before: &Held, pid: u32) {
    let other = "the router has another number of descriptors";
    wait_for(60, other, || Held::by(pid).descriptors == before.descriptors);
}

#[test]
fn a_crowd_by_the_relay_and_sessions_that_come_and_go() {
    let (mut router, crowd, alone) = crowded(&["--isolated"]);
    let pid = router.running().pid();
    is_idle(&mut router);
    // Nothing comes or goes.
    let full = Held::by(pid);
    let stay = |n: usize| wait_for(60, "sessions stay", || router.sessions().len() == n);
    // What is taken once: tables, and what the allocator keeps.
    come_and_go(&router, 100);
    stay(TENANTS as usize);
    has_descriptors_of(&full, pid);
    let before = Held::by(pid);
    come_and_go(&router, sessions());
    stay(TENANTS as usize);
    has_descriptors_of(&full, pid);
    let after = Held::by(pid);
    println!("before {before:?}\nafter  {after:?}");
    assert!(after.mappings <= before.mappings + 8, "{before:?} {after:?}");
    assert!(after.private_kib <= before.private_kib + 512, "{before:?} {after:?}");
    crowd.leave();
    stay(0);
    has_descriptors_of(&alone, pid);
    let left = Held::by(pid);
    assert!(left.mappings <= alone.mappings + 16, "{alone:?} {left:?}");
    assert!(left.private_kib <= after.private_kib + 512, "{after:?} {left:?}");
}

#[test]
fn a_crowd_by_links() {
    let (mut router, crowd, alone) = crowded(&[]);
    is_idle(&mut router);
    crowd.leave();
    wait_for(60, "sessions stay", || router.sessions().is_empty());
    has_descriptors_of(&alone, router.running().pid());
}

#[test]
fn a_crowd_on_a_device_of_the_router() {
    let mut router = Router::start(&remote_policy(&address(1)));
    let pid = router.running().pid();
    let alone = Held::by(pid);
    let crowd = Crowd::start(Path::new(CROWD), &router, REMOTE_TENANTS);
    assert_eq!(router.sessions().len(), REMOTE_TENANTS as usize);
    is_idle(&mut router);
    let full = Held::by(pid);
    println!("alone {alone:?}\nfull  {full:?}");
    assert!(full.private_kib <= alone.private_kib + REMOTE_MOST, "{alone:?} {full:?}");
    crowd.leave();
    wait_until_empty(&router);
    wait_for(60, "sessions stay", || router.sessions().is_empty());
    has_descriptors_of(&alone, pid);
}
