use super::*;
use crate::etcd::Pair;
use gdrcore_router_feed::read;
use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;

#[test]
fn each_change_is_told_as_what_it_means() {
    let (to, from) = UnixStream::pair().unwrap();
    let (router, mut heard) = (Router::new(to), BufReader::new(from));
    let etcd = Etcd::new(Vec::new());
    let freed = RefCell::new(Vec::new());
    let note = |key| freed.borrow_mut().push(key);
    let watch = Watch { etcd: &etcd, router: &router, own: "a", network: "n", freed: &note };
    let key = Key { network: "n".into(), vip: "10.0.0.1".into() };
    let place = |host: &str, withdrawn| Holder {
        host: host.into(),
        address: "192.0.2.2".into(),
        port: 4791,
        tenant: "red".into(),
        blocks: (1, 2),
        withdrawn,
    };
    let put = |value: Vec<u8>| Change::Put(Pair { key: keys::vip(&key), value, revision: 1 });
    let gone = |stale| Event::Gone { network: "n".into(), vip: key.vip.clone(), stale };
    for (change, wanted) in [
        (
            put(keys::bytes(&place("b", false))),
            Some(Event::Put(place("b", false).entry(key.clone()))),
        ),
        (put(keys::bytes(&place("b", true))), Some(gone(false))),
        (put(keys::bytes(&place("a", false))), Some(gone(false))),
        (put(b"rubbish".to_vec()), None),
        (Change::Delete(keys::vip(&key)), Some(gone(true))),
        (Change::Delete("/gdrcore/v1/net/n/vip/x".into()), None),
    ] {
        watch.report(change);
        router.say(&Event::End { network: "end".into() });
        let mut next = || {
            let mut line = String::new();
            heard.read_line(&mut line).unwrap();
            read::<Event>(line.trim().as_bytes()).unwrap()
        };
        let first = next();
        if let Some(wanted) = wanted {
            assert_eq!(first, wanted);
            next();
        } else {
            assert!(matches!(first, Event::End { .. }), "{first:?}");
        }
    }
    assert_eq!(*freed.borrow(), [key]);
}
