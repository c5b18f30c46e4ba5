//! How long a router takes for a map of 100,000 tenants by its feed, how much memory, and how many
//! changes a second it takes in. Prints its section of bench/RESULTS-ROUTER.md, and puts it there:
//! `cargo run -p gdrcore-tests --bin feed_load [TENANTS]`. The router is the release build.

use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::proto::{Message, Route};
use gdrcore_router_feed::{write, Entry, Event};
use gdrcore_tests::feed::{address, policy, routed, start, status, wait_for, Adapter};
use gdrcore_tests::process::kib;
use gdrcore_tests::results::Section;
use gdrcore_tests::router::Raw;
use std::time::{Duration, Instant};

/// Tenants of a host, each with so many blocks.
const OF_HOST: u32 = 100;
const BLOCKS: u32 = 10;
/// Changes while all are there.
const CHANGES: u32 = 200_000;
/// New tenants, one at a time.
const SINGLE: u32 = 50;

fn network() -> String {
    "default".into()
}

fn first(n: u32) -> u32 {
    1 + n % OF_HOST * BLOCKS
}

fn entry(n: u32, blocks: u32) -> Entry {
    let host = n / OF_HOST;
    Entry {
        network: network(),
        vip: format!("10.{}.{}.{}", 100 + (n >> 16), n >> 8 & 0xff, n & 0xff),
        tenant: format!("tenant-{n}"),
        blocks: (first(n), blocks),
        host: format!("host-{host}"),
        address: format!("172.16.{}.{}", host >> 8, host & 0xff),
        port: 4791,
    }
}

fn lines(events: impl Iterator<Item = Event>) -> Vec<u8> {
    let mut all = Vec::new();
    events.for_each(|event| write(&event, &mut all));
    all
}

/// Asks for a way to a tenant, which is answered when it is known.
fn ask(raw: &Raw, n: u32) {
    let [_, x, y, z] = n.to_be_bytes();
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 100 + x, y, z];
    let qpn = first(n) * QPN_UNIT;
    raw.say(1, Message::Route(Route { gid, sgid_index: 0, qpn, traffic_class: 0 }));
}

fn answered(raw: &mut Raw) {
    let (e, _) = raw.hear().expect("an answer");
    assert_eq!(routed(&e).0, 0, "{e:?}");
}

fn memory(pid: u32) -> u64 {
    kib(pid, "status", "VmRSS:")
}

fn main() {
    let count: u32 = std::env::args().nth(1).map_or(100_000, |n| n.parse().expect("a number"));
    let mut router = start(&policy("a", &address(1), &[("blue", 1, (1010, 4))]));
    let pid = router.running().pid();
    let mut raw = Raw::connect(&router.socket("blue.gdrc")).expect("the router");
    let _rings = raw.greet_with_rings();
    let mut adapter = Adapter::connect(&router.socket("feed"));
    adapter.hear_all();
    let before = memory(pid);
    let begin = Event::Begin { network: network() };
    let load =
        lines(std::iter::once(begin).chain((0..count).map(|n| Event::Put(entry(n, BLOCKS)))));
    let (loading, began) = (load.len(), Instant::now());
    // Within the two seconds that a route waits; a slower machine asks again.
    adapter.say_bytes(&load);
    ask(&raw, count - 1);
    answered(&mut raw);
    let loaded = began.elapsed();
    adapter.say(&Event::End { network: network() });
    let after = memory(pid);
    // Each is another one's turn, with other blocks than before.
    let change = |k: u32| entry(k.wrapping_mul(7919) % count, BLOCKS - 1 - k / count % 2);
    let changes = lines((0..CHANGES).map(|k| Event::Put(change(k))));
    let began = Instant::now();
    adapter.say_bytes(&changes);
    adapter.say(&Event::Put(entry(count, BLOCKS)));
    let mut took = Duration::ZERO;
    // Until the last one is there, the router says that it is not.
    while took.is_zero() {
        ask(&raw, count);
        let (e, _) = raw.hear().expect("an answer");
        if routed(&e).0 == 0 {
            took = began.elapsed();
        }
    }
    adapter.say(&Event::Store { network: network(), up: false });
    wait_for(&router, "default", "false");
    let mut singles: Vec<Duration> = (1..=SINGLE)
        .map(|k| {
            ask(&raw, count + k);
            adapter.pause();
            let began = Instant::now();
            adapter.say(&Event::Put(entry(count + k, BLOCKS)));
            answered(&mut raw);
            began.elapsed()
        })
        .collect();
    singles.sort_unstable();
    assert_eq!(status(&router, "tenants"), (count + 1 + SINGLE).to_string());
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let row = |what: &str, figure: String| (what.to_string(), figure);
    let more = format!(
        "one session of one tenant is there; each line has {} bytes",
        loading / count as usize
    );
    let mut section = Section::new("A map by the feed", "feed_load", &more);
    section.table(
        "what",
        &[
            row(
                &format!("{count} tenants, until a route to the last one is answered"),
                format!("{:.2} s", loaded.as_secs_f64()),
            ),
            row(
                "resident memory, a tenant",
                format!("{} B", (after - before) * 1024 / u64::from(count)),
            ),
            row("resident memory in all, all of them there", format!("{} MiB", after / 1024)),
            row("resident memory after the changes", format!("{} MiB", memory(pid) / 1024)),
            row("changes in a second", format!("{:.0}", f64::from(CHANGES) / took.as_secs_f64())),
            row(
                &format!("a new one, until a route to it is answered: median, longest of {SINGLE}"),
                format!(
                    "{:.1} ms, {:.1} ms",
                    ms(singles[singles.len() / 2]),
                    ms(singles[singles.len() - 1])
                ),
            ),
        ],
    );
    section.write();
}
