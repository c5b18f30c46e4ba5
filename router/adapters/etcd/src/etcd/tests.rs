use super::*;
use crate::fake::start_member;

/// An endpoint without a listener.
fn nobody() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("http://127.0.0.1:{port}")
}

fn ok(value: Value) -> (u16, String) {
    (200, value.to_string())
}

fn kv(key: &str, revision: i64) -> Value {
    json!({"key": text(key), "value": text("v"), "mod_revision": revision.to_string()})
}

#[test]
fn the_next_member_is_asked_where_one_does_not_answer() {
    let lease = |id: &'static str| start_member(move |_, _| ok(json!({"ID": id, "TTL": "15"})));
    let etcd = Etcd::new(vec![nobody(), lease("7"), lease("8")]);
    assert_eq!(etcd.grant(15), Ok(7));
    assert_eq!(etcd.at.load(Ordering::Relaxed), 1, "it is asked first from now on");
    etcd.turn_away();
    assert_eq!(etcd.grant(15), Ok(8));
    let no_leader = || start_member(|_, _| (503, json!({"code": 14, "message": "x"}).to_string()));
    assert_eq!(Etcd::new(vec![no_leader(), lease("9")]).grant(15), Ok(9));
    let down = Etcd::new(vec![nobody(), no_leader()]).grant(15);
    assert!(matches!(down, Err(Error::Down(_))), "{down:?}");
    let full = start_member(|_, _| {
        (429, json!({"code": 8, "error": "etcdserver: mvcc: database space exceeded"}).to_string())
    });
    let refused = Etcd::new(vec![full, lease("9")]).grant(15);
    assert_eq!(refused, Err(Error::Refused("etcdserver: mvcc: database space exceeded".into())));
}

#[test]
fn a_lease_is_renewed_while_it_lasts() {
    let keep = |ttl: Value| {
        Etcd::new(vec![start_member(move |_, _| ok(json!({"result": {"ID": "7", "TTL": ttl}})))])
            .keep(7)
    };
    assert_eq!(
        (keep(json!("15")), keep(json!("0")), keep(json!(null))),
        (Ok(true), Ok(false), Ok(false))
    );
}

#[test]
fn pages_are_of_one_revision_and_go_forward() {
    let pages = |second: &'static str| {
        start_member(move |_, request| {
            let from = String::from_utf8(bytes(&request["key"])).unwrap();
            let asked = number(&request["revision"]);
            let key = match (from.as_str(), asked) {
                ("/a", 0) => "/a/1",
                ("/a/1\0", 40) => second,
                other => panic!("{other:?}"),
            };
            // Later than the first page's revision.
            let now = if asked == 0 { "40" } else { "41" };
            let more = asked == 0;
            ok(json!({"header": {"revision": now}, "kvs": [kv(key, 3)], "more": more}))
        })
    };
    let mut keys = Vec::new();
    let etcd = Etcd::new(vec![pages("/a/2")]);
    assert_eq!(etcd.range("/a", |pair| keys.push(pair.key)), Ok(40));
    assert_eq!(keys, ["/a/1", "/a/2"]);
    let again = start_member(|_, _| {
        ok(json!({"header": {"revision": "40"}, "kvs": [kv("/a/1", 3)], "more": true}))
    });
    let outcome = Etcd::new(vec![again]).range("/a", |_| {});
    assert!(matches!(outcome, Err(Error::Refused(_))), "a member that repeats itself: {outcome:?}");
    let gone = start_member(|_, _| {
        (400, json!({"code": 11, "message": "required revision has been compacted"}).to_string())
    });
    assert_eq!(Etcd::new(vec![gone]).range("/a", |_| {}), Err(Error::Compacted));
}

#[test]
fn a_watch_goes_on_behind_what_it_has_told() {
    let watch = |lines: Vec<Value>| {
        let body: String = lines.iter().map(|l| format!("{l}\n")).collect();
        let etcd = Etcd::new(vec![start_member(move |path, request| {
            assert_eq!(
                (path, &request["create_request"]["start_revision"]),
                ("watch", &json!("5"))
            );
            (200, body.clone())
        })]);
        let mut seen = Vec::new();
        let next = etcd.watch("/a", 5, |change| {
            seen.push(change);
            true
        });
        (next, seen)
    };
    let created = json!({"result": {"header": {"revision": "90"}, "created": true}});
    let events = json!({"result": {"header": {"revision": "93"}, "events": [
        {"kv": kv("/a/1", 6)}, {"type": "DELETE", "kv": {"key": text("/a/2"), "mod_revision": "8"}},
    ]}});
    let (next, seen) = watch(vec![created.clone(), events.clone()]);
    assert_eq!(next, Ok(9));
    let put = Pair { key: "/a/1".into(), value: b"v".to_vec(), revision: 6 };
    assert_eq!(seen, [Change::Put(put), Change::Delete("/a/2".into())]);
    assert_eq!(watch(vec![created.clone()]).0, Ok(5), "nothing was told");
    let progress = json!({"result": {"header": {"revision": "50"}}});
    assert_eq!(watch(vec![created.clone(), progress]).0, Ok(51));
    let compacted = json!({"result": {
        "canceled": true, "compact_revision": "60", "header": {"revision": "70"},
    }});
    assert_eq!(watch(vec![created.clone(), compacted]).0, Err(Error::Compacted));
    let canceled = json!({"result": {"canceled": true, "cancel_reason": "no leader"}});
    assert_eq!(watch(vec![created.clone(), events, canceled]).0, Ok(9));
    let failed = json!({"error": {"grpc_code": 14, "message": "x"}});
    assert!(matches!(watch(vec![failed]).0, Err(Error::Down(_))));
}

#[test]
fn a_change_says_what_is_there_where_it_does_not_happen() {
    let txn = |answer: Value| {
        Etcd::new(vec![start_member(move |_, _| ok(answer.clone()))]).change("/a", None, If::Absent)
    };
    assert_eq!(txn(json!({"succeeded": true})), Ok(Ok(())));
    let there = json!({"responses": [{"response_range": {"kvs": [kv("/a", 3)], "count": "1"}}]});
    let pair = Pair { key: "/a".into(), value: b"v".to_vec(), revision: 3 };
    assert_eq!(txn(there), Ok(Err(Some(pair))));
    assert_eq!(txn(json!({"responses": [{"response_range": {}}]})), Ok(Err(None)));
}

#[test]
fn no_answer_harms() {
    let answers = [
        "",
        "null",
        "[]",
        "{",
        "7",
        "{\"header\":5}",
        "{\"result\":7}",
        "{\"kvs\":7}",
        "\u{0}",
        "{\"kvs\":[7,null,{\"key\":\"%\"}],\"more\":true}",
        "{\"responses\":[]}",
        "{\"result\":{\"events\":[7,{\"kv\":7}]}}\n{\"result\":{\"events\":{}}}\nx",
    ];
    for answer in answers {
        let etcd = Etcd::new(vec![start_member(move |_, _| (200, answer.into()))]);
        let _ = etcd.grant(15);
        let _ = etcd.keep(7);
        assert!(etcd.range("/a", |_| panic!("{answer}")).is_err(), "{answer}");
        let _ = etcd.change("/a", None, If::Revision(7));
        let _ = etcd.watch("/a", 1, |_| panic!("{answer}"));
    }
}
