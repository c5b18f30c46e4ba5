use super::*;
use crate::broker::Action;
use crate::identity::PeerFacts;
use crate::policy::Policy;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::proto::{
    feature, mode, Envelope, Hello, Message, Text, MESSAGE_MAX, VERSIONS,
};

const MINUTE: u64 = 60_000_000_000;

/// A session of a user, with rings; returns the number of its tenant.
fn join(relaying: &mut RelayWorker, broker: &mut Broker, now: u64, uid: u32) -> (SessionId, u16) {
    let seen = PeerFacts { socket: "/s".into(), pid: 1, uid: Some(uid), ..PeerFacts::default() };
    let id = broker.connect(now, seen);
    let hello = Hello {
        versions: VERSIONS,
        features: feature::DIRECT | feature::RELAY,
        mode: mode::SWITCH,
        qpns: QPN_UNIT,
        ffr_id: -1,
        program: Text::new("test"),
        token: [0; 64],
    };
    let mut bytes = [0; MESSAGE_MAX];
    let n = Envelope::new(1, Message::Hello(hello)).emit(&mut bytes);
    broker.handle(now, id, &bytes[..n], 0);
    let out = broker.take_actions();
    assert!(matches!(out[..], [Action::Join(..)]), "{out:?}");
    relaying.join(broker, id).expect("rings");
    (id, relaying.tenants[&format!("uid-{uid}")].number)
}

fn leave(relaying: &mut RelayWorker, broker: &mut Broker, now: u64, id: SessionId) {
    broker.end_session(now, id);
    broker.take_actions();
    relaying.leave(id, false);
}

#[test]
fn a_tenant_keeps_its_number_until_there_are_too_many() {
    let policy = Policy::parse("[router]\nlisten = \"/s\"\nunmatched = \"uid\"").unwrap();
    let mut broker = Broker::new(policy, 7, |_| None);
    let mut relaying = RelayWorker::start(None, None).unwrap();
    let (stays, kept) = join(&mut relaying, &mut broker, 0, 1);
    let mut numbers = vec![kept];
    // Queue pair numbers whose rest is over.
    let mut now = 0;
    for uid in 2..=TENANTS as u32 {
        now += MINUTE;
        let (id, number) = join(&mut relaying, &mut broker, now, uid);
        leave(&mut relaying, &mut broker, now, id);
        numbers.push(number);
    }
    numbers.sort_unstable();
    assert!(numbers.iter().map(|&n| usize::from(n)).eq(0..TENANTS), "each has its own");
    // A tenant that comes back keeps its number.
    let second = relaying.tenants["uid-2"].number;
    let (id, number) = join(&mut relaying, &mut broker, now + MINUTE, 2);
    assert_eq!(number, second);
    leave(&mut relaying, &mut broker, now + MINUTE, id);
    // One more tenant takes the number of the least recently used one, not of one with sessions.
    let third = relaying.tenants["uid-3"].number;
    relaying.slots.tenant(third).full.store(5, std::sync::atomic::Ordering::Relaxed);
    let (_, number) = join(&mut relaying, &mut broker, now + 2 * MINUTE, 10_000);
    assert_eq!((number, relaying.tenants.len()), (third, TENANTS));
    assert!(!relaying.tenants.contains_key("uid-3"));
    let full = &relaying.tenant("uid-10000").unwrap().full;
    assert_eq!(full.load(std::sync::atomic::Ordering::Relaxed), 0, "counted anew");
    assert_eq!(relaying.tenants["uid-1"].number, kept);
    leave(&mut relaying, &mut broker, now + 3 * MINUTE, stays);
}
