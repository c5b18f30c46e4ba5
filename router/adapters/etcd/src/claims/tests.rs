use super::*;
use crate::fake::start_member;
use base64::prelude::{Engine, BASE64_STANDARD};
use gdrcore_router_feed::read;
use serde_json::{json, Value};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

type Store = Arc<Mutex<BTreeMap<String, (String, u64, String)>>>;

/// A store with keys, values, revisions and leases, which knows the transactions of claims.
fn store() -> (Store, Etcd) {
    let store = Store::default();
    let own = store.clone();
    let endpoint = start_member(move |path, request| {
        let mut keys = own.lock().unwrap();
        let answer = match path {
            "lease/grant" => json!({"ID": "7", "TTL": "15"}),
            "lease/keepalive" => json!({"result": {"TTL": "15"}}),
            "kv/txn" => txn(&mut keys, request),
            other => panic!("{other}"),
        };
        (200, answer.to_string())
    });
    (store, Etcd::new(vec![endpoint]))
}

/// A store whose first lease ends when the adapter renews it. While `down`, it refuses every write.
fn frail(down: Arc<Mutex<bool>>) -> (Store, Etcd) {
    let store = Store::default();
    let (own, leases) = (store.clone(), Mutex::new(6));
    let endpoint = start_member(move |path, request| {
        let mut keys = own.lock().unwrap();
        let mut lease = leases.lock().unwrap();
        let answer = match path {
            "lease/grant" => {
                *lease += 1;
                json!({"ID": lease.to_string(), "TTL": "15"})
            }
            "lease/keepalive" => {
                let ended = request["ID"] == "7";
                if ended {
                    keys.retain(|_, (.., of)| of != "7");
                }
                json!({"result": {"TTL": if ended { "0" } else { "15" }}})
            }
            "kv/txn" if *down.lock().unwrap() => return (503, "{}".into()),
            "kv/txn" => txn(&mut keys, request),
            other => panic!("{other}"),
        };
        (200, answer.to_string())
    });
    (store, Etcd::new(vec![endpoint]))
}

fn plain(v: &Value) -> String {
    String::from_utf8(BASE64_STANDARD.decode(v.as_str().unwrap()).unwrap()).unwrap()
}

fn txn(keys: &mut BTreeMap<String, (String, u64, String)>, request: &Value) -> Value {
    let compare = &request["compare"][0];
    let key = plain(&compare["key"]);
    let there = keys.get(&key).cloned();
    let holds = match compare["target"].as_str().unwrap() {
        "CREATE" => there.is_none(),
        "MOD" => there.as_ref().is_some_and(|t| compare["mod_revision"] == json!(t.1.to_string())),
        "VALUE" => there.as_ref().is_some_and(|t| plain(&compare["value"]) == t.0),
        other => panic!("{other}"),
    };
    if !holds {
        let kvs = there.map(|(value, revision, _)| {
            json!({"key": BASE64_STANDARD.encode(&key), "value": BASE64_STANDARD.encode(value),
                "mod_revision": revision.to_string()})
        });
        return json!({"responses": [{"response_range": {"kvs": Vec::from_iter(kvs)}}]});
    }
    let put = &request["success"][0]["request_put"];
    if put.is_null() {
        keys.remove(&key);
    } else {
        let lease = put["lease"].as_str().unwrap().to_string();
        let revision = keys.values().map(|t| t.1).max().unwrap_or(0) + 1;
        keys.insert(key, (plain(&put["value"]), revision, lease));
    }
    json!({"succeeded": true})
}

fn entry(host: &str, vip: &str) -> Entry {
    Entry {
        network: "default".into(),
        vip: vip.into(),
        tenant: "blue".into(),
        blocks: (1, 2),
        host: host.into(),
        address: format!("192.0.2.{}", host.len()),
        port: 4791,
    }
}

fn host(address: &str) -> Host {
    Host { address: address.into(), port: 4791, epoch: 1, version: "x".into() }
}

/// Does the due work, and returns the events that the router gets.
fn step(
    claims: &mut Claims<'_>,
    heard: &mut BufReader<UnixStream>,
) -> (Result<(), Error>, Vec<Event>) {
    let outcome = claims.step();
    // A line of the test marks the end of the events so far.
    claims.router.say(&Event::Begin { network: "end".into() });
    let mut events = Vec::new();
    loop {
        let mut line = String::new();
        heard.read_line(&mut line).unwrap();
        match read(line.trim().as_bytes()).unwrap() {
            Event::Begin { .. } => return (outcome, events),
            event => events.push(event),
        }
    }
}

#[test]
fn the_first_has_an_address_until_it_gives_it_up() {
    let (store, etcd) = store();
    let side = || {
        let (to, from) = UnixStream::pair().unwrap();
        (Router::new(to), BufReader::new(from))
    };
    let (a, mut heard_a) = side();
    let (b, mut heard_b) = side();
    let mut first = Claims::new(&etcd, &a, "a", host("192.0.2.1"), 15);
    let mut second = Claims::new(&etcd, &b, "bb", host("192.0.2.2"), 15);
    let vip = || Key { network: "default".into(), vip: "10.0.0.1".into() };
    first.obey(Order::Publish(entry("a", "10.0.0.1")));
    assert_eq!(step(&mut first, &mut heard_a), (Ok(()), vec![Event::Claimed(vip())]));
    assert_eq!(store.lock().unwrap().len(), 2, "the host and its tenant");
    assert!(store.lock().unwrap().values().all(|(_, _, lease)| lease == "7"));
    second.obey(Order::Publish(entry("bb", "10.0.0.1")));
    let Key { network, vip: address } = vip();
    let denied = Event::Denied { network, vip: address, holder: "a".into() };
    assert_eq!(step(&mut second, &mut heard_b), (Ok(()), vec![denied]));
    second.obey(Order::Freed(vip()));
    assert_eq!(step(&mut second, &mut heard_b), (Ok(()), vec![]), "it is told once");
    // Under a new lease it claims its own tenant again.
    first.lease = None;
    assert_eq!(step(&mut first, &mut heard_a), (Ok(()), vec![Event::Claimed(vip())]));
    first.obey(Order::Withdraw(vip()));
    assert_eq!(step(&mut first, &mut heard_a), (Ok(()), vec![]));
    assert!(!store.lock().unwrap().contains_key(&keys::vip(&vip())));
    second.obey(Order::Freed(vip()));
    assert_eq!(step(&mut second, &mut heard_b), (Ok(()), vec![Event::Claimed(vip())]));
    // The claim overwrites a value that somebody wrote by hand.
    store.lock().unwrap().get_mut(&keys::vip(&vip())).unwrap().0 = "rubbish".into();
    first.obey(Order::Publish(entry("a", "10.0.0.1")));
    assert_eq!(step(&mut first, &mut heard_a).1, [Event::Claimed(vip())]);
}

#[test]
fn two_routers_of_one_name_are_not_one_host() {
    let (store, etcd) = store();
    let (to, from) = UnixStream::pair().unwrap();
    let (router, mut heard) = (Router::new(to), BufReader::new(from));
    let mut first = Claims::new(&etcd, &router, "a", host("192.0.2.1"), 15);
    assert_eq!(step(&mut first, &mut heard).0, Ok(()));
    let mut other = Claims::new(&etcd, &router, "a", host("192.0.2.9"), 15);
    other.obey(Order::Publish(entry("a", "10.0.0.1")));
    let (outcome, events) = step(&mut other, &mut heard);
    assert!(matches!(outcome, Err(Error::Refused(_))), "{outcome:?}");
    assert!(
        matches!(&events[..], [Event::Denied { holder, .. }] if holder == "a at 192.0.2.1"),
        "{events:?}"
    );
    assert_eq!(store.lock().unwrap().len(), 1);
}

#[test]
fn after_the_end_of_a_lease_the_host_and_its_tenants_are_there_again() {
    let (store, etcd) = frail(Arc::default());
    let (to, from) = UnixStream::pair().unwrap();
    let (router, mut heard) = (Router::new(to), BufReader::new(from));
    let mut claims = Claims::new(&etcd, &router, "a", host("192.0.2.1"), 15);
    claims.obey(Order::Publish(entry("a", "10.0.0.1")));
    assert_eq!(step(&mut claims, &mut heard).0, Ok(()));
    let leases = || store.lock().unwrap().values().map(|t| t.2.clone()).collect::<Vec<_>>();
    assert_eq!(leases(), ["7", "7"]);
    // The renewal finds the lease ended, with all keys under it.
    claims.renewed -= claims.every();
    assert_eq!(step(&mut claims, &mut heard).0, Ok(()));
    assert_eq!(leases(), ["8", "8"], "the host and its tenant");
    assert!(store.lock().unwrap().contains_key(&keys::host("a")));
}

#[test]
fn what_could_not_be_withdrawn_is_withdrawn_later() {
    let down = Arc::new(Mutex::new(false));
    let (store, etcd) = frail(down.clone());
    let (to, from) = UnixStream::pair().unwrap();
    let (router, mut heard) = (Router::new(to), BufReader::new(from));
    let mut claims = Claims::new(&etcd, &router, "a", host("192.0.2.1"), 15);
    let all = ["10.0.0.1", "10.0.0.2"];
    all.iter().for_each(|vip| claims.obey(Order::Publish(entry("a", vip))));
    assert_eq!(step(&mut claims, &mut heard).0, Ok(()));
    *down.lock().unwrap() = true;
    for vip in all {
        claims.obey(Order::Withdraw(Key { network: "default".into(), vip: vip.into() }));
    }
    for _ in 0..2 {
        assert!(step(&mut claims, &mut heard).0.is_err());
        assert_eq!(store.lock().unwrap().len(), 3, "nothing has changed");
    }
    *down.lock().unwrap() = false;
    assert_eq!(step(&mut claims, &mut heard).0, Ok(()));
    assert_eq!(store.lock().unwrap().keys().collect::<Vec<_>>(), [&keys::host("a")]);
}
