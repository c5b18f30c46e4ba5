//! Routers that know each other by etcd: Debian's etcd, the routers and their adapters as they are
//! installed, and what becomes of it all when some of it fails.

use gdrcore_core::config::QPN_UNIT;
use gdrcore_tests::etcd::{adapter, Cluster};
use gdrcore_tests::feed::{address, ask, policy, routed, start, status, wait_for};
use gdrcore_tests::router::{Raw, Router};
use gdrcore_tests::tools::Running;
use gdrcore_tests::{patience, skip};
use std::time::Duration;

/// Bytes that etcd stores where nothing is to be too much.
const PLENTY: u64 = 1 << 30;

macro_rules! cluster {
    ($n:expr, $members:expr, $quota:expr) => {
        match Cluster::start($n, $members, $quota) {
            Some(cluster) => cluster,
            None => skip!("etcd or etcdctl is not installed"),
        }
    };
}

/// A router with its adapter.
struct Host {
    router: Router,
    adapter: Running,
    id: &'static str,
    address: String,
}

impl Host {
    /// `tenants`: the last parts of their addresses.
    fn start(cluster: &Cluster, id: &'static str, last: u32, tenants: &[u32]) -> Host {
        let address = address(last);
        let router = start(&text(id, &address, tenants));
        let adapter = adapter(cluster, &router);
        Host { router, adapter, id, address }
    }

    /// Other tenants from now on.
    fn has(&self, tenants: &[u32]) {
        self.router.write(&text(self.id, &self.address, tenants));
        self.router.reload().unwrap();
    }

    fn kill_adapter(&mut self) {
        self.adapter.kill();
        patience::wait_for(60, "a killed adapter lives", || !self.adapter.still_runs());
    }

    /// How many tenants of other hosts it knows.
    fn knows(&self, count: u32) {
        wait_for(&self.router, "tenants", &count.to_string());
    }

    /// A program of a tenant.
    fn session(&self, tenant: u32) -> Raw {
        Raw::connect(&self.router.socket(&format!("t{tenant}.gdrc"))).expect("the router")
    }
}

fn text(id: &str, address: &str, tenants: &[u32]) -> String {
    let names: Vec<_> = tenants.iter().map(|t| format!("t{t}")).collect();
    let each = names.iter().zip(tenants).map(|(name, &t)| (name.as_str(), t, (700 + 4 * t, 4)));
    policy(id, address, &each.collect::<Vec<_>>())
}

/// The status of a route to a tenant of another host.
fn route(raw: &mut Raw, tenant: u32) -> i32 {
    assert!(raw.say(2, ask(tenant as u8, (700 + 4 * tenant) * QPN_UNIT)));
    let (e, _) = raw.hear().expect("an answer");
    routed(&e).0
}

#[test]
fn two_hosts_know_each_other_whatever_fails() {
    let mut cluster = cluster!(1, 1, PLENTY);
    let mut a = Host::start(&cluster, "a", 11, &[1]);
    let mut b = Host::start(&cluster, "b", 12, &[2]);
    a.knows(1);
    b.knows(1);
    assert!(cluster.values("/gdrcore/v1/host/a")[0].contains(&a.address));
    let mut program = a.session(1);
    let _rings = program.greet_with_rings();
    assert_eq!(route(&mut program, 2), 0);
    // What is withdrawn is gone at once, and not merely stale.
    b.has(&[3]);
    patience::wait_for(60, "the other tenant", || route(&mut program, 3) == 0);
    a.knows(1);
    assert_eq!(route(&mut program, 2), -libc::EHOSTUNREACH);
    assert_eq!(cluster.values("/gdrcore/v1/net/default/vip/10.99.0.2"), [""; 0]);
    // An adapter that is killed: its lease ends, the tenant stays.
    b.kill_adapter();
    wait_for(&a.router, "stale", "1");
    assert_eq!(cluster.values("/gdrcore/v1/net/default/vip/10.99.0.3"), [""; 0]);
    assert_eq!(route(&mut program, 3), 0);
    b.adapter = adapter(&cluster, &b.router);
    wait_for(&a.router, "stale", "0");
    // The store is killed.
    cluster.kill(0);
    wait_for(&a.router, "default", "false");
    assert_eq!(route(&mut program, 3), 0, "what is known is known");
    assert_eq!(route(&mut program, 9), -libc::EAGAIN, "what is not may be there");
    let mut other = a.session(1);
    assert_eq!(other.greet().tenant.as_str(), "t1", "tenants of this host need no store");
    // It comes back, while an adapter sleeps; what happens meanwhile, the store forgets.
    a.adapter.signal(libc::SIGSTOP);
    cluster.start_member(0);
    cluster.wait();
    b.has(&[4]);
    patience::wait_for(60, "the store has no new tenant", || {
        cluster.values("/gdrcore/v1/net/default/vip/10.99.0.4").len() == 1
            && cluster.values("/gdrcore/v1/net/default/vip/10.99.0.3").is_empty()
    });
    cluster.compact();
    a.adapter.signal(libc::SIGCONT);
    a.adapter.wait_for_output("has compacted the revision; it is read again");
    patience::wait_for(60, "the new tenant", || route(&mut program, 4) == 0);
    // The adapter's connection may have failed once more meanwhile.
    wait_for(&a.router, "default", "true");
    // The router itself.
    b.router.kill();
    wait_for(&a.router, "stale", "2");
    b.router.restart();
    wait_for(&a.router, "stale", "1");
    b.knows(1);
    assert_eq!(route(&mut program, 4), 0);
}

#[test]
fn of_two_hosts_that_want_one_address_one_has_it() {
    let mut cluster = cluster!(2, 1, PLENTY);
    // That of the one that lives is not to end.
    cluster.ttl *= u64::from(patience::factor().min(4));
    let a = Host::start(&cluster, "a", 21, &[5]);
    let b = Host::start(&cluster, "b", 22, &[5]);
    let denied = |host: &Host| host.router.ask("status").output.contains("\"denied\":[{");
    patience::wait_for(60, "nobody is denied", || denied(&a) || denied(&b));
    let (mut has, hasnt) = if denied(&b) { (a, b) } else { (b, a) };
    let said = hasnt.router.ask("status").output;
    assert!(said.contains(&format!("\"host\":\"{}\"", has.id)), "{said}");
    let mut winner = has.session(5);
    assert_eq!(winner.greet().tenant.as_str(), "t5");
    let mut loser = hasnt.session(5);
    loser.say(1, hello());
    let why = refusal(&mut loser);
    let held = |by: &str| format!("address 10.99.0.5 of tenant t5 is held by host {by}");
    assert_eq!(why, held(has.id));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!denied(&has) && !winner.has_ended(), "who has it is not concerned");
    // Its router ends for good: the other one gets it, by the store.
    has.router.kill();
    patience::wait_for(60, "the address is not freed", || !denied(&hasnt));
    assert_eq!(hasnt.session(5).greet().tenant.as_str(), "t5");
    // It comes back, to hear that it has lost.
    has.router.restart();
    patience::wait_for(60, "both have it", || denied(&has));
    let mut loser = has.session(5);
    loser.say(1, hello());
    assert_eq!(refusal(&mut loser), held(hasnt.id));
    assert!(!denied(&hasnt));
    // A third router with a name that another one has takes nothing.
    let third = Host::start(&cluster, hasnt.id, 23, &[6]);
    patience::wait_for(60, "two hosts of one name", || denied(&third));
    assert_eq!(cluster.values("/gdrcore/v1/net/default/vip/10.99.0.6"), [""; 0]);
}

fn hello() -> gdrcore_net::via::proto::Message {
    gdrcore_net::via::proto::Message::Hello(gdrcore_tests::router::hello())
}

/// Why a session is refused.
fn refusal(raw: &mut Raw) -> String {
    match raw.hear() {
        Some((e, _)) => match e.message {
            gdrcore_net::via::proto::Message::Welcome(w) if e.status == -libc::EADDRINUSE => {
                w.cause.as_str().to_string()
            }
            other => panic!("{other:?}"),
        },
        None => panic!("no answer"),
    }
}

#[test]
fn three_members_lose_one_after_the_other() {
    let mut cluster = cluster!(3, 3, 4 << 20);
    // No lease is to end here.
    cluster.ttl = 15 * u64::from(patience::factor());
    let a = Host::start(&cluster, "a", 31, &[1]);
    let mut b = Host::start(&cluster, "b", 32, &[2]);
    a.knows(1);
    b.knows(1);
    let mut program = a.session(1);
    let _rings = program.greet_with_rings();
    let arrives = |program: &mut Raw, tenant: u32| {
        patience::wait_for(120, "a new tenant is not known", || {
            route(program, tenant) == 0 && route(program, 2) == 0
        });
    };
    // The leader is killed.
    let leader = cluster.leader();
    cluster.kill(leader);
    b.has(&[2, 3]);
    arrives(&mut program, 3);
    cluster.start_member(leader);
    // The one that leads now, and that answers the adapters, stops without a word.
    for k in 0..3 {
        cluster.signal(k, libc::SIGSTOP);
        let tenants: Vec<u32> = (2..=4 + k as u32).collect();
        b.has(&tenants);
        arrives(&mut program, 4 + k as u32);
        cluster.signal(k, libc::SIGCONT);
        cluster.wait();
    }
    // The store is full: who is there stays, who is new has to wait.
    let value = "x".repeat(100_000);
    patience::wait_for(120, "the store is not full", || {
        let done = cluster.ctl(&["put", "/filler", &value]);
        !done.ok() && done.output.contains("space exceeded")
    });
    b.has(&[2, 3, 4, 5, 6, 7]);
    b.adapter.wait_for_output("database space exceeded");
    assert_eq!(route(&mut program, 6), 0);
    assert_eq!(route(&mut program, 7), -libc::EHOSTUNREACH);
    assert_eq!(status(&a.router, "stale"), "0", "leases are still renewed");
    cluster.ctl(&["del", "/filler"]);
    cluster.compact();
    assert!(cluster.ctl(&["defrag"]).ok());
    assert!(cluster.ctl(&["alarm", "disarm"]).ok());
    arrives(&mut program, 7);
}
