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

/// What is wrong with a file, and where.
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
    refused("[tenant.a]\nlisten = \"/a\"\ntx_rate = \"1GB\"", 3, 1, "unknown field `tx_rate`");
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
