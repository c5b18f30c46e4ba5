use super::*;

const WHOLE: &str = r#"
[router]
listen = "/run/gdrcore/router.gdrc"
admin = "/run/gdrcore/admin.sock"
pool = "10.99.0.0/24"
unmatched = "uid"

[network.prod]
pool = "fd99::/64"

[tenant.zebra]
match = { uid = 100000, cgroup = "/machine/z*", netns = "/run/netns/z" }
network = "prod"
ffr_id = 7
sessions = 2
route_rate = 5

[tenant.blue]
listen = "/run/gdrcore/t/blue/tenant.gdrc"
vip = "10.99.0.2"
allow = ["zebra", "10.99.3.0/24", "uid-5"]
"#;

#[test]
fn a_file_says_all_of_it() {
    let p = Policy::parse(WHOLE).unwrap();
    assert_eq!(
        p.tenants.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        ["zebra", "blue"],
        "as in the file"
    );
    let [zebra, blue] = &p.tenants[..] else { panic!() };
    assert_eq!(zebra.rules.uid, Some(100_000));
    assert_eq!((zebra.network.as_str(), zebra.ffr_id), ("prod", Some(7)));
    assert_eq!(zebra.quotas, Quotas { sessions: 2, route_rate: 5, ..Quotas::DEFAULT });
    assert_eq!(blue.vip.map(|v| show(&v)).as_deref(), Some("10.99.0.2"));
    assert_eq!(p.network("prod").unwrap().pool.to_string(), "fd99::/64");
    assert_eq!(p.network(DEFAULT_NETWORK).unwrap().pool.to_string(), "10.99.0.0/24");
    assert_eq!((p.unmatched, p.tenant("uid-12").unwrap().rules.uid), (Unmatched::Uid, Some(12)));
    assert_eq!((p.tenant("uid-012"), p.tenant("uid-x"), p.tenant("red")), (None, None, None));
    let gid = |text: &str| address::parse(text).unwrap();
    assert!(wants(blue, "zebra", &gid("1.1.1.1")) && wants(blue, "red", &gid("10.99.3.9")));
    assert!(!wants(blue, "red", &gid("10.99.4.9")) && wants(zebra, "red", &gid("10.99.4.9")));
    assert!(wants(blue, "blue", &gid("1.1.1.1")));
}

#[test]
fn an_empty_file_refuses_everybody() {
    let p = Policy::parse("").unwrap();
    assert_eq!((p.tenants.len(), p.unmatched, p.listen), (0, Unmatched::Refuse, None));
}

/// The fault of a file, and its place.
fn fault(text: &str) -> (usize, usize, String) {
    let f = Policy::parse(text).unwrap_err();
    assert_eq!(f.to_string(), format!("line {}, column {}: {}", f.line, f.column, f.what));
    (f.line, f.column, f.what)
}

#[track_caller]
fn refused(text: &str, line: usize, column: usize, words: &str) {
    let (l, c, what) = fault(text);
    assert!((l, c) == (line, column) && what.contains(words), "{l}:{c} {what}");
}

#[test]
fn faults_name_their_line_and_column() {
    refused("[router]\nlisten = \"/x\"\n  colour = 1\n", 3, 3, "unknown field `colour`");
    refused("[router]\n\n[tenants.a]\n", 3, 2, "unknown field `tenants`");
    refused("[tenant.a]\nlisten = \"/a\"\nmtu = \"1GB\"", 3, 1, "unknown field `mtu`");
    refused("[router]\nlisten = 5\n", 2, 10, "expected a string");
    refused("[router\n", 1, 8, "");
    let a = "[tenant.a]\nlisten = \"/a\"\n";
    refused(&format!("{a}vip = \"127.0.0.1\""), 3, 7, "vip '127.0.0.1'");
    refused(&format!("{a}network = \"x\""), 3, 11, "there is no [network.x]");
    refused(&format!("{a}sessions = 0"), 3, 12, "sessions 0: from 1 to 1015");
    refused(&format!("{a}allow = [ \"b\" ]"), 3, 11, "allow 'b'");
    refused(&format!("{a}[tenant.b]\nlisten = \"/a\""), 4, 10, "tenant 'a' has it");
    refused(
        &format!("{a}vip=\"1.2.3.4\"\n[tenant.b]\nlisten=\"/b\"\nvip=\"1.2.3.4\""),
        6,
        5,
        "tenant 'a' has it",
    );
    refused(&format!("[router]\nlisten = \"/a\"\n{a}"), 4, 10, "[router] has it");
    refused(&format!("[router]\nadmin = \"/a\"\n{a}"), 4, 10, "[router] has it");
    refused("[router]\nlisten = \"/a\"\nadmin = \"/a\"", 3, 9, "`listen` is the same");
    refused("[tenant.a]\n", 1, 9, "neither `listen` nor `match`");
    refused("[tenant.a]\nmatch = { uid = -1 }", 2, 17, "uid -1");
    refused("[tenant.a]\nmatch = { uid = 1 }", 1, 9, "[router] has no `listen`");
    refused("[tenant.uid-1]\nlisten = \"/a\"", 1, 9, "names that begin with uid-");
    refused("[tenant.\"ä\"]\nlisten = \"/a\"", 1, 9, "name 'ä'");
    refused("# ä\n[router]\npool = \"10.0.0.1/8\"", 3, 8, "pool '10.0.0.1/8'");
    refused("[router]\nunmatched = \"maybe\"", 2, 13, "unmatched 'maybe'");
    refused("[router]\nunmatched = \"uid\"", 1, 1, "[router] has no `listen`");
    refused("[router]\nlisten = \"x\"", 2, 10, "path 'x'");
    refused(&format!("[router]\nlisten = \"/{}\"", "x".repeat(100)), 2, 10, "at most 100 bytes");
}

#[test]
fn a_network_may_repeat_an_address_of_another() {
    let text = r#"
        [network.n]
        [tenant.a]
        listen = "/a"
        vip = "1.2.3.4"
        [tenant.b]
        listen = "/b"
        vip = "1.2.3.4"
        network = "n"
    "#;
    assert!(Policy::parse(text).is_ok());
}

#[test]
fn a_file_says_how_fast_who_may_be() {
    let text = r#"
        [router]
        line_rate = "40Gbit"
        local = "auto"
        [tenant.a]
        listen = "/a"
        ffr_id = 7
        tx_rate = "1Gbit/s"
        rx_rate = 5000
        tx_pps = 100
        burst = "1MiB"
        weight = 4
        [tenant.b]
        listen = "/b"
        metered = true
        [tenant.c]
        listen = "/c"
        ffr_id = 8
        [tenant.d]
        listen = "/d"
        ffr_id = 8
        weight = 1000
    "#;
    let mut p = Policy::parse(text).unwrap();
    assert_eq!((p.line_rate, p.local), (Some(5_000_000_000), Local::Auto));
    let a = Limits {
        tx_rate: Some(125_000_000),
        rx_rate: Some(5000),
        tx_pps: Some(100),
        burst: Some(1 << 20),
        weight: 4,
        metered: false,
    };
    assert_eq!(p.tenants[0].limits, a);
    assert_eq!(p.tenants[1].limits, Limits { metered: true, ..Limits::NONE });
    assert_eq!(p.tenants[3].limits, Limits { weight: 1000, ..Limits::NONE });
    let relayed = |p: &Policy| {
        let pairs = [(0, 2), (2, 1), (2, 3), (3, 3), (0, 0)];
        pairs.map(|(x, y)| p.relays(&p.tenants[x], &p.tenants[y]))
    };
    assert_eq!(relayed(&p), [true, true, false, false, true]);
    for (word, local) in [("direct", false), ("relay", true)] {
        let p = Policy::parse(&text.replace("\"auto\"", &format!("\"{word}\""))).unwrap();
        assert_eq!(relayed(&p), [local; 5]);
    }
    assert_eq!(p.limit_by_ffr_id(&[(7, Some(1)), (8, Some(9000))]), Ok(()));
    let rates = p.tenants.iter().map(|t| t.limits.tx_rate).collect::<Vec<_>>();
    assert_eq!(rates, [Some(125_000_000), None, Some(9000), Some(9000)], "the file's counts more");
    assert!(p.limit_by_ffr_id(&[(9, None)]).unwrap_err().contains("RATE_LIMIT_9"));
}

#[test]
fn a_slip_in_a_rate_is_said_where_it_is() {
    let a = "[tenant.a]\nlisten = \"/a\"\n";
    refused(&format!("{a}tx_rate = \"1Gb\""), 3, 11, "tx_rate '1Gb'");
    refused(&format!("{a}rx_rate = -5"), 3, 11, "rx_rate '-5'");
    refused(&format!("{a}tx_rate = true"), 3, 11, "expected a number or a string");
    refused(&format!("{a}tx_rate = \"off\""), 3, 11, "leave the key out");
    refused(&format!("{a}tx_pps = \"many\""), 3, 10, "tx_pps 'many'");
    refused(&format!("{a}burst = 100"), 3, 9, "burst '100'");
    refused(&format!("{a}  weight = 1001"), 3, 12, "weight '1001': from 1 to 1000");
    refused(&format!("{a}metered = 1"), 3, 11, "expected a boolean");
    refused("[router]\nlocal = \"far\"", 2, 9, "local 'far'");
    refused("[router]\nline_rate = 0", 2, 13, "line_rate '0'");
}

#[test]
fn metrics_are_for_this_host_or_for_those_that_the_file_names() {
    for there in ["127.0.0.1:0", "127.0.0.1", "localhost:9000"] {
        let text = format!("[router]\nmetrics = \"{there}\"");
        refused(&text, 2, 11, &format!("metrics '{there}': ADDRESS:PORT"));
    }
    for there in ["0.0.0.0:9000", "10.0.0.1:9000", "[::]:9000", "[::ffff:127.0.0.1]:9000"] {
        let text = format!("[router]\nmetrics = \"{there}\"");
        refused(&text, 2, 11, "does not say which of them may ask");
    }
    let may = |text: &str, ip: &str| {
        let p = Policy::parse(&format!("[router]\n{text}")).unwrap();
        assert_eq!(p.metrics.map(|a| a.port()), Some(9000));
        let gid = match ip.parse().unwrap() {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            std::net::IpAddr::V6(ip) => ip,
        };
        p.metrics_from.iter().any(|range| range.contains(&gid.octets()))
    };
    for own in ["metrics = \"[::1]:9000\"", "metrics = \"127.0.0.1:9000\""] {
        assert!(may(own, "127.9.9.9") && may(own, "::1"));
        assert!(!may(own, "10.0.0.1") && !may(own, "fd00::1"));
    }
    let some = "metrics = \"[::]:9000\"\nmetrics_from = [\"10.1.0.0/16\", \"fd00::7\"]";
    assert!(may(some, "10.1.2.3") && may(some, "fd00::7"));
    assert!(!may(some, "10.2.0.1") && !may(some, "fd00::8") && !may(some, "127.0.0.1"));
    refused("[router]\nmetrics_from = []", 2, 16, "there is no `metrics`");
    let text = "[router]\nmetrics = \"[::]:9000\"\nmetrics_from = [\"::/0\", \"10.0.0.1/8\"]";
    refused(text, 3, 25, "metrics_from '10.0.0.1/8'");
}

#[test]
fn a_user_has_a_number_or_a_name() {
    let map = |_: &Path| Err("none".into());
    let user = |name: &str| match name {
        "alice" => Ok(1001),
        _ => Err("there is no user of this name".to_string()),
    };
    let read = |uid: &str| {
        let text = format!("[router]\nlisten = \"/s\"\n[tenant.a]\nmatch = {{ uid = {uid} }}");
        let policy = Policy::parse_with(&text, Lookup { map: &map, user: &user });
        policy.map(|p| p.tenants[0].rules.uid).map_err(|fault| fault.to_string())
    };
    for (uid, number) in [("7", 7), ("\"alice\"", 1001), ("\"7\"", 7), ("4294967294", u32::MAX - 1)]
    {
        assert_eq!(read(uid), Ok(Some(number)), "{uid}");
    }
    for (uid, why) in [
        ("\"bob\"", "line 4, column 17: uid 'bob': there is no user of this name"),
        ("4294967295", "line 4, column 17: uid 4294967295: from 0 to 4294967294"),
        ("-1", "line 4, column 17: uid -1: from 0"),
        ("true", "line 4, column 17: invalid type: boolean `true`, expected a number or a string"),
    ] {
        let fault = read(uid).unwrap_err();
        assert!(fault.starts_with(why), "{fault}");
    }
}

#[test]
fn outside_needs_a_host_and_a_port_is_published_once() {
    let map = |_: &Path| {
        Map::parse("[h]\naddress = \"192.0.2.1\"\n[i]\naddress = \"192.0.2.2\"\n")
            .map_err(|f| f.to_string())
    };
    let with = |text: &str, host: &str| {
        let text = format!("{host}\n[tenant.a]\nlisten = \"/a\"\n{text}");
        Policy::parse_with(&text, Lookup::maps(&map))
    };
    let host = "[host]\nid = \"h\"\naddress = \"192.0.2.1\"\nmap = \"/m\"";
    let p = with("outside = true\npublish = [{ port = 9 }, { port = 9, space = \"udp\" }]", host);
    let p = p.unwrap();
    let ports: Vec<(u16, u16)> = p.tenants[0].publish.iter().map(|s| (s.space, s.port)).collect();
    assert_eq!(ports, [(0x106, 9), (0x111, 9)]);
    let rules = p.outside_of(&p.tenants[0]).unwrap();
    let gid = |last: u8| std::net::Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped().octets();
    assert!(rules.is_allowed(&gid(9)) && !rules.is_allowed(&gid(1)) && !rules.is_allowed(&gid(2)));
    assert_eq!(with("outside = false", "").unwrap().tenants[0].publish, []);
    for text in ["", "outside = false"] {
        let p = with(text, host).unwrap();
        assert_eq!(p.outside_of(&p.tenants[0]), None);
    }
    for (text, host, why) in [
        ("outside = true", "", "there is no [host]"),
        ("publish = [{ port = 9 }]", host, "has no `outside = true`"),
        ("outside = true\npublish = [{ port = 9 }, { port = 9 }]", host, "published twice"),
        ("outside = true\npublish = [{ port = 0 }]", host, "port"),
        ("outside = true\npublish = [{ port = 9, space = \"x\" }]", host, "space 'x'"),
        ("outside = true\npublish = [{ port = 9, tenant = \"a\" }]", host, "unknown field"),
    ] {
        let fault = with(text, host).unwrap_err();
        assert!(fault.what.contains(why), "{fault}");
    }
    let other = |_: &Path| {
        Map::parse("[h]\naddress = \"192.0.2.1\"\nport = 4793\n").map_err(|f| f.to_string())
    };
    let text = format!("{host}\nport = 4793\n[tenant.a]\nlisten = \"/a\"\noutside = true");
    let fault = Policy::parse_with(&text, Lookup::maps(&other)).unwrap_err();
    assert!(fault.what.contains("UDP port 4791 alone"), "{fault}");
    // An `allow` list also applies to plain endpoints.
    let some = with("outside = true\nallow = [\"192.0.2.8/30\"]", host).unwrap();
    let rules = some.outside_of(&some.tenants[0]).unwrap();
    assert!(rules.is_allowed(&gid(9)) && !rules.is_allowed(&gid(20)));
}

#[test]
fn a_tenant_has_a_device_of_the_router_and_then_nothing_of_switch_mode() {
    let a = "[tenant.a]\nlisten = \"/a\"\n";
    let device = "device = \"soft:192.0.2.1:18000\"\n";
    let p = Policy::parse(&format!("{a}{device}sessions = 3")).unwrap();
    assert_eq!(p.tenants[0].device.as_deref(), Some("soft:192.0.2.1:18000"));
    assert_eq!(Policy::parse(a).unwrap().tenants[0].device, None);
    let nic = host_references(&format!("{a}device = \"verbs:mlx5_0:1:3\"")).unwrap().pop().unwrap();
    assert_eq!(nic.object, HostObject::Nic("verbs:mlx5_0:1:3".into()));
    refused(&format!("{a}device = \"verbs:mlx5_0:x\""), 3, 10, "or a NIC: \"verbs:NAME");
    refused(&format!("{a}device = \"loopback\""), 3, 10, "device 'loopback'");
    for at in ["", "x", "0.0.0.0", "224.0.0.1"] {
        refused(&format!("{a}device = \"soft:{at}\""), 3, 10, "no address that a host can have");
    }
    for key in [
        "vip = \"10.0.0.1\"",
        "network = \"default\"",
        "blocks = 1",
        "routes = 1",
        "listens = 1",
        "route_rate = 1",
        "rx_rate = \"1Gbit\"",
        "tx_pps = 1",
        "metered = false",
        "outside = false",
        "publish = []",
    ] {
        let name = key.split(' ').next().unwrap();
        let words = format!("`{name}` has no meaning beside it");
        refused(&format!("{a}{device}{key}"), 3, 10, &words);
    }
    let limited = "tx_rate = \"1MB\"\nburst = \"1MiB\"\nweight = 3\nallow = [\"a\"]\n";
    let p = Policy::parse(&format!("{a}{device}{limited}memory = \"4GiB\"")).unwrap();
    let t = &p.tenants[0];
    assert_eq!(
        (t.limits.tx_rate, t.limits.burst, t.limits.weight),
        (Some(1_000_000), Some(1 << 20), 3)
    );
    assert_eq!((t.memory, t.allow.as_ref().map(Vec::len)), (Some(4 << 30), Some(1)));
    refused(&format!("{a}{device}memory = \"1KiB\""), 4, 10, "from 4KiB to 1TiB");
    refused(&format!("{a}memory = \"1GiB\""), 3, 10, "beside a `device` alone");
    let place = host_references(&format!("{a}{device}")).unwrap().pop().unwrap();
    assert_eq!((place.line, place.column), (3, 10));
    assert!(matches!(place.object, HostObject::Device(at) if at.port == 18000), "{place:?}");
}

#[test]
fn the_routers_device_is_that_of_tenants_without_one() {
    let router = "[router]\nlisten = \"/s\"\nunmatched = \"uid\"\ndevice = \"soft:192.0.2.1\"\n";
    let tenants = "[tenant.a]\nlisten = \"/a\"\n[tenant.b]\nlisten = \"/b\"\ndevice = \
                   \"soft:192.0.2.2\"\n[tenant.c]\nlisten = \"/c\"\ndevice = \"none\"\nvip = \
                   \"10.99.0.9\"\n";
    let text = format!("{router}{tenants}");
    let p = Policy::parse(&text).unwrap();
    let of = |name| p.tenant(name).unwrap().device;
    let device = |n: u8| Some(format!("soft:192.0.2.{n}"));
    assert_eq!(["a", "b", "c", "uid-7"].map(of), [device(1), device(2), None, device(1)]);
    let mut all: Vec<_> = p.devices().cloned().collect();
    all.sort();
    all.dedup();
    assert_eq!(all.into_iter().map(Some).collect::<Vec<_>>(), [device(1), device(2)]);
    let named = host_references(&text).unwrap();
    let devices = named.iter().filter(|n| matches!(n.object, HostObject::Device(_)));
    assert_eq!(devices.map(|n| n.line).collect::<Vec<_>>(), [4, 9]);
    let words = "`vip` has no meaning beside the `device` of [router]";
    refused(&format!("{router}[tenant.a]\nlisten = \"/a\"\nvip = \"10.99.0.9\""), 5, 9, words);
    refused("[router]\ndevice = \"none\"", 2, 10, "device 'none'");
}

#[test]
fn gpus_have_pci_addresses() {
    let p = Policy::parse("[router]\ngpus = [\"b7:00.0\", \"0001:3B:00.1\"]").unwrap();
    assert_eq!(p.gpus, ["b7:00.0", "0001:3B:00.1"]);
    refused("[router]\ngpus = [\"b7:00.0\", \"0\"]", 2, 20, "gpus '0'");
}
