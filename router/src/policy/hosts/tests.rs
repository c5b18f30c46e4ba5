use super::*;
use crate::policy::{Lookup, Policy};

const MAP: &str = r#"
[a]
address = "192.0.2.1"
[a.tenant.blue]
vip = "10.99.0.1"
blocks = [1, 64]
[a.tenant.green]
vip = "10.99.0.2"
blocks = [65, 951]
[b]
address = "2001:db8::2"
port = 4793
[b.tenant.red]
network = "prod"
vip = "10.99.0.1"
blocks = [64, 1]
"#;

const POLICY: &str = r#"
[host]
id = "a"
address = "192.0.2.1"
map = "/map"
[network.prod]
[tenant.blue]
listen = "/blue"
allow = ["red"]
[tenant.green]
listen = "/green"
vip = "10.99.0.2"
[tenant.local]
listen = "/local"
"#;

fn policy(text: &str, map: &str) -> Result<Policy, String> {
    let read = |path: &std::path::Path| {
        assert_eq!(path.to_str(), Some("/map"));
        Map::parse(map).map_err(|fault| format!("'/map': {fault}"))
    };
    Policy::parse_with(text, Lookup::maps(&read)).map_err(|fault| fault.to_string())
}

#[test]
fn a_map_says_who_is_where() {
    let map = Map::parse(MAP).unwrap();
    assert_eq!(map.hosts["b"].to_string(), "[2001:db8::2]:4793");
    let all: Vec<_> = map.tenants.iter().map(|p| (p.tenant.as_str(), p.blocks.clone())).collect();
    assert_eq!(all, [("blue", 1..65), ("green", 65..1016), ("red", 64..65)]);
    let p = policy(POLICY, MAP).unwrap();
    assert_eq!(p.host.as_ref().map(|h| h.at.to_string()).as_deref(), Some("192.0.2.1:4791"));
    let places: Vec<_> =
        p.tenants.iter().map(|t| (t.vip.map(|v| show(&v)), t.place.clone())).collect();
    let of = |vip: &str, blocks| (Some(vip.to_string()), Some(blocks));
    assert_eq!(places, [of("10.99.0.1", 1..65), of("10.99.0.2", 65..1016), (None, None)]);
}

#[test]
fn what_is_wrong_with_a_map_is_said_with_its_place() {
    for (from, to, wanted) in [
        ("\"192.0.2.1\"", "\"192.0.2.1:4791\"", "line 3, column 11: address '192.0.2.1:4791'"),
        ("\"192.0.2.1\"", "\"224.0.0.1\"", "line 3, column 11: address"),
        ("\"192.0.2.1\"", "\"fe80::1\"", "line 3, column 11: address"),
        (
            "\"2001:db8::2\"",
            "\"192.0.2.1\"",
            "line 11, column 11: address 192.0.2.1:4793: host 'a' has it",
        ),
        ("4793", "0", "line 12, column 8: port 0: from 1 to 65535"),
        ("[65, 951]", "[64, 2]", "line 9, column 10: blocks 64 to 65: tenant 'blue' has 1 to 64"),
        ("[65, 951]", "[65, 952]", "line 9, column 10: blocks: [first, count], within 1 to 1015"),
        ("[1, 64]", "[0, 64]", "line 6, column 10: blocks"),
        ("[1, 64]", "[1, 0]", "line 6, column 10: blocks"),
        ("[1, 64]", "[1]", "line 6, column 10: blocks"),
        ("[1, 64]", "[1, 9223372036854775807]", "line 6, column 10: blocks"),
        (
            "\"10.99.0.2\"",
            "\"10.99.0.1\"",
            "line 8, column 7: vip 10.99.0.1: tenant 'blue' of host 'a'",
        ),
        ("\"10.99.0.2\"", "\"127.0.0.1\"", "line 8, column 7: vip '127.0.0.1'"),
        ("[a.tenant.blue]", "[a.tenant.\"b u\"]", "line 4, column 11: name 'b u'"),
        ("port = 4793", "prot = 4793", "line 12, column 1: unknown field `prot`"),
    ] {
        let bad = MAP.replacen(from, to, 1);
        assert_ne!(bad, MAP);
        let fault = Map::parse(&bad).unwrap_err().to_string();
        assert!(fault.starts_with(wanted), "{fault}\n{wanted}");
    }
}

#[test]
fn a_policy_and_its_map_agree() {
    for (from, to, wanted) in [
        ("id = \"a\"", "id = \"c\"", "line 3, column 6: id 'c': the map has no host"),
        (
            "\"192.0.2.1\"",
            "\"192.0.2.9\"",
            "line 4, column 11: address 192.0.2.9:4791: the map has",
        ),
        ("[tenant.green]", "[tenant.gren]", "line 5, column 7: map: tenant 'green' of host 'a'"),
        (
            "vip = \"10.99.0.2\"",
            "vip = \"10.99.0.3\"",
            "line 5, column 7: map: tenant 'green' has vip",
        ),
        (
            "vip = \"10.99.0.2\"",
            "network = \"prod\"",
            "line 5, column 7: map: tenant 'green' has network",
        ),
        (
            "\"/local\"",
            "\"/local\"\nnetwork = \"prod\"\nvip = \"10.99.0.1\"",
            "line 5, column 7: map: vip",
        ),
        ("allow = [\"red\"]", "allow = [\"rde\"]", "line 9, column 10: allow 'rde'"),
        ("map = \"/map\"", "map = \"map\"", "line 5, column 7: path 'map'"),
    ] {
        let bad = POLICY.replacen(from, to, 1);
        assert_ne!(bad, POLICY);
        let fault = policy(&bad, MAP).unwrap_err();
        assert!(fault.starts_with(wanted), "{fault}\n{wanted}");
    }
    let fault = policy(POLICY, "[a]\naddress = 5").unwrap_err();
    assert!(fault.starts_with("line 5, column 7: map '/map': line 2, column 11: "), "{fault}");
    let fault = Policy::parse(POLICY).unwrap_err();
    assert!(fault.what.contains("map '/map': not read here"), "{fault}");
}

const FED: &str = r#"
[host]
id = "a"
address = "192.0.2.1"
map = "feed"
feed = "/feed"
[host.tenant.blue]
vip = "10.99.0.1"
blocks = [748, 100]
[tenant.blue]
listen = "/blue"
allow = ["red", "10.99.0.0/24"]
[tenant.local]
listen = "/local"
"#;

#[test]
fn with_a_feed_the_policy_has_this_hosts_tenants() {
    let p = policy(FED, "").unwrap();
    let host = p.host.as_ref().unwrap();
    assert_eq!(
        (host.feed(), host.at.to_string()),
        (Some(Path::new("/feed")), "192.0.2.1:4791".into())
    );
    assert_eq!((p.map.hosts.len(), p.map.tenants.len()), (1, 1));
    let blue = p.tenant("blue").unwrap();
    assert_eq!(
        (blue.vip.map(|v| show(&v)).as_deref(), blue.place),
        (Some("10.99.0.1"), Some(748..848))
    );
    assert_eq!(p.tenant("local").unwrap().place, None);
    for (from, to, wanted) in [
        ("feed = \"/feed\"", "", "line 5, column 7: map \"feed\": `feed` names no socket"),
        ("\"/feed\"", "\"feed\"", "line 6, column 8: path 'feed'"),
        ("\"/feed\"", "\"/blue\"", "line 11, column 10: listen '/blue': [router] has it"),
        ("map = \"feed\"", "map = \"/map\"", "line 6, column 8: feed: with"),
        ("map = \"feed\"\nfeed = \"/feed\"", "map = \"/map\"", "line 6, column 14: [host.tenant]"),
        ("[host.tenant.blue]", "[host.tenant.bleu]", "line 5, column 7: map: tenant 'bleu' of"),
        ("[748, 100]", "[748, 1000]", "line 9, column 10: blocks"),
        (
            "[host]",
            "[router]\nadmin = \"/feed\"\n[host]",
            "line 8, column 8: feed '/feed': [router]",
        ),
    ] {
        let bad = FED.replacen(from, to, 1);
        assert_ne!(bad, FED);
        let fault = policy(&bad, "[a]\naddress = \"192.0.2.1\"").unwrap_err();
        assert!(fault.starts_with(wanted), "{fault}\n{wanted}");
    }
}

#[test]
fn blocks_may_touch_and_not_overlap() {
    // Behind others, before them, and between two.
    for (blocks, fits) in [
        ("[10, 5]", true),
        ("[20, 5]", true),
        ("[10, 6]", false),
        ("[19, 2]", false),
        ("[14, 7]", false),
        ("[16, 1]", false),
        ("[9, 20]", false),
        ("[30, 10]", true),
        ("[29, 1]", true),
        ("[39, 2]", false),
    ] {
        let tenant =
            |(n, blocks)| format!("[b.tenant.t{n}]\nvip = \"10.99.0.{n}\"\nblocks = {blocks}\n");
        let more = [(7, "[15, 5]"), (8, "[40, 9]"), (9, blocks)].map(tenant);
        let map = [MAP, &more.concat()].concat();
        match policy(POLICY, &map) {
            Ok(_) => assert!(fits, "{blocks}"),
            Err(why) => assert!(!fits && why.contains("of the same host"), "{blocks}: {why}"),
        }
    }
}
