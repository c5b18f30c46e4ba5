//! Fuzzes what a router reads of its operator: policies, maps of hosts, lines of its admin socket.
//!
//! The string selects lines of a vocabulary, which make sense often enough that the checks behind
//! the syntax are reached, and now and then bytes of its own.

use crate::bytes::Bytes;
use crate::coverage::counts;
use gdrcore_router::daemon::parse_request;
use gdrcore_router::policy::{Fault, Lookup, Map, Policy};
use std::collections::BTreeSet;

counts! {
    Ruled {
        /// Policies that were taken.
        policies: u64,
        /// Tenants in them.
        tenants: u64,
        /// Policies that were taken with a map.
        with_map: u64,
        /// Maps that were taken.
        maps: u64,
        /// Requests that were taken.
        requests: u64,
        /// Texts of any kind that were refused.
        refused: u64,
    }
}

const SECTIONS: [&str; 8] = [
    "[router]",
    "[host]",
    "[network.far]",
    "[tenant.a]",
    "[tenant.b]",
    "[tenant.c]",
    "[tenant.\"\"]",
    "[host.tenant.a]",
];
const KEYS: [&str; 37] = [
    "listen",
    "admin",
    "key",
    "pool",
    "unmatched",
    "local",
    "line_rate",
    "metrics",
    "metrics_from",
    "id",
    "address",
    "port",
    "map",
    "feed",
    "match",
    "ffr_id",
    "vip",
    "network",
    "allow",
    "sessions",
    "blocks",
    "routes",
    "listens",
    "route_rate",
    "tx_rate",
    "rx_rate",
    "tx_pps",
    "burst",
    "weight",
    "metered",
    "outside",
    "publish",
    "match.uid",
    "match.cgroup",
    "match.netns",
    "blocks",
    "nokey",
];
const VALUES: [&str; 33] = [
    "\"/run/a\"",
    "\"/run/b\"",
    "\"10.99.0.1\"",
    "\"10.99.0.2\"",
    "\"10.99.0.0/16\"",
    "\"fd99::/64\"",
    "\"fd99::1\"",
    "\"127.0.0.1:9000\"",
    "\"refuse\"",
    "\"uid\"",
    "\"auto\"",
    "\"relay\"",
    "\"1Gbit\"",
    "\"100MiB\"",
    "\"a\"",
    "\"b\"",
    "\"far\"",
    "[\"a\", \"10.99.0.0/24\"]",
    "[]",
    "[748, 100]",
    "[3, 2]",
    "[0, 2000]",
    "0",
    "1",
    "4791",
    "-1",
    "18446744073709551615",
    "true",
    "false",
    "{ uid = 7 }",
    "{ uid = \"user\" }",
    "{ cgroup = \"*/x?\", netns = \"/run/netns/a\" }",
    "[{ port = 4420 }, { port = 7, space = \"udp\" }]",
];
/// Sections with lines that are right there.
const GOOD: [(&str, &[&str]); 5] = [
    ("[router]", &["listen = \"/run/any\"", "unmatched = \"uid\"", "line_rate = \"10Gbit\""]),
    ("[tenant.a]", &["listen = \"/run/a\"", "vip = \"10.99.0.1\"", "weight = 3"]),
    ("[tenant.b]", &["match = { uid = 7 }", "allow = [\"a\"]", "tx_rate = \"1MiB\""]),
    ("[host]", &["id = \"a\"\naddress = \"192.0.2.1\"\nmap = \"/etc/hosts.toml\""]),
    ("[tenant.c]", &["listen = \"/run/c\"", "outside = true", "publish = [{ port = 4420 }]"]),
];
const MAPS: [&str; 7] = [
    "[a]\naddress = \"192.0.2.1\"\n",
    "[b]\naddress = \"192.0.2.2\"\nport = 4793\n",
    "[a.tenant.a]\nvip = \"10.99.0.1\"\nblocks = [748, 100]\n",
    "[b.tenant.r]\nvip = \"10.99.0.9\"\nblocks = [1, 2]\n",
    "[b.tenant.s]\nvip = \"10.99.0.9\"\nblocks = [2, 1]\n",
    "[b.tenant.far]\nnetwork = \"far\"\nvip = \"10.99.0.9\"\nblocks = [3, 1000]\n",
    "nokey = 1\n",
];
const REQUESTS: [&str; 9] = [
    r#"{"do":"status"}"#,
    r#"{"do":"sessions"}"#,
    r#"{"do":"drop","session":7}"#,
    r#"{"do":"set","tenant":"a","limits":{"weight":"3"}}"#,
    r#"{"do":"drain","for_ms":60}"#,
    r#"{"do":"reload"}"#,
    r#"{"do":"nothing"}"#,
    r#"{"do":7}"#,
    "status",
];

/// One of a list.
fn one<'l, T>(b: &mut Bytes<'_>, of: &'l [T]) -> &'l T {
    &of[b.below(of.len())]
}

/// Some of its bytes replaced by those of the string.
fn garbled(b: &mut Bytes<'_>, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    while b.one_in(3) {
        let at = b.below(bytes.len() + 1);
        let n = b.below(4);
        let count = b.below(4);
        let with = b.take(count).to_vec();
        bytes.splice(at..(at + n).min(bytes.len()), with);
    }
    bytes
}

/// `calm`: all its lines are right by themselves.
fn policy_text(b: &mut Bytes<'_>, calm: bool) -> String {
    let mut text = String::new();
    for (section, lines) in GOOD {
        if b.one_in(2) {
            text += &format!("{section}\n");
            for line in lines {
                if !b.one_in(3) {
                    text += &format!("{line}\n");
                }
            }
        }
    }
    if calm {
        return text;
    }
    while b.one_in(3) {
        if b.one_in(2) {
            text += &format!("{}\n", one(b, &SECTIONS));
        }
        text += &format!("{} = {}\n", one(b, &KEYS), one(b, &VALUES));
    }
    String::from_utf8_lossy(&garbled(b, &text)).into_owned()
}

/// The place of a fault is one of the text, or the end of it.
fn is_within(fault: &Fault, text: &str) {
    let lines = text.split('\n').count();
    assert!(fault.line >= 1 && fault.line <= lines.max(1), "{fault} of {lines} lines");
    let line = text.split('\n').nth(fault.line - 1).unwrap_or("");
    assert!(fault.column >= 1 && fault.column <= line.chars().count() + 1, "{fault} in {line:?}");
    assert!(!fault.what.is_empty());
}

/// What holds for any policy that is taken.
fn is_sound(policy: &Policy) {
    let mut listens = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    for t in &policy.tenants {
        assert!(t.listen.as_ref().is_none_or(|path| listens.insert(path.clone())), "a socket");
        let vip = t.vip.map(|vip| (t.network.clone(), vip));
        assert!(vip.is_none_or(|vip| addresses.insert(vip)), "an address");
        assert!(policy.networks.iter().any(|n| n.name == t.network), "a network");
        assert!(!t.outside || policy.host.is_some(), "outside needs a host");
    }
}

/// The string makes a map, a policy that may name it, and lines that are asked.
pub fn policy(data: &[u8]) -> Ruled {
    let mut b = Bytes::new(data);
    let mut sum = Ruled::default();
    let calm = !b.one_in(2);
    let (first, more) = MAPS.split_at(2);
    let mut maps = first.concat();
    more.iter().filter(|_| b.one_in(4)).for_each(|part| maps += part);
    if !calm {
        maps = String::from_utf8_lossy(&garbled(&mut b, &maps)).into_owned();
    }
    let map = Map::parse(&maps);
    match &map {
        Ok(_) => sum.maps += 1,
        Err(fault) => is_within(fault, &maps),
    }
    let text = policy_text(&mut b, calm);
    let read = |_: &std::path::Path| map.clone().map_err(|fault| fault.to_string());
    let user = |name: &str| match name.len() {
        4 => Ok(4),
        _ => Err("no such user".into()),
    };
    let lookup = Lookup { map: &read, user: &user };
    match Policy::parse_with(&text, lookup) {
        Ok(policy) => {
            sum.policies += 1;
            sum.tenants += policy.tenants.len() as u64;
            sum.with_map += u64::from(policy.host.is_some());
            is_sound(&policy);
            assert_eq!(Policy::parse_with(&text, lookup).as_ref(), Ok(&policy));
        }
        Err(fault) => {
            sum.refused += 1;
            is_within(&fault, &text);
        }
    }
    let request = one(&mut b, &REQUESTS);
    match parse_request(&garbled(&mut b, request)) {
        Ok(_) => sum.requests += 1,
        Err(words) => assert!(!words.is_empty()),
    }
    sum
}
