//! Sessions that are resumed in another life of the router.

use super::*;

const KEY_A: [u8; KEY] = [1; KEY];

/// A broker of a life, with a key.
fn life(policy: &str, epoch: u64, floor: u64, learn_until: Option<u64>) -> Bench {
    let mut broker = Broker::new(Policy::parse(policy).unwrap(), epoch, |_| None);
    broker.resume_by(Keys { key: KEY_A, floor, learn_until });
    Bench { broker, now: 0 }
}

/// The next life, which waits for sessions.
fn next(epoch: u64) -> Bench {
    life(POLICY, epoch, 1, Some(LEARN_NS))
}

fn with(token: [u8; 64]) -> Hello {
    Hello { token, ..hello() }
}

/// Answers a HELLO with a token: the session, or the refusal.
fn resume(b: &mut Bench, uid: u32, hello: Hello) -> Result<(SessionId, Welcome), (i32, String)> {
    let id = b.connect(uid);
    match &b.hello(id, hello)[..] {
        [Action::Send(_, Envelope { status: 0, message: Message::Welcome(w), .. })] => Ok((id, *w)),
        [Action::Send(_, Envelope { status, message: Message::Welcome(w), .. }), Action::End(..)] =>
        {
            assert!(b.broker.sessions().all(|(other, _)| other != id), "it is gone");
            Err((-status, w.cause.as_str().to_string()))
        }
        other => panic!("{other:?}"),
    }
}

fn stale(b: &mut Bench, uid: u32, hello: Hello, why: &str) {
    let before = b.broker.blocks_given();
    let (errno, words) = resume(b, uid, hello).expect_err("it is resumed");
    assert!(errno == errno::STALE && words.contains(why), "{errno} {words}");
    assert_eq!(b.broker.blocks_given(), before);
}

#[test]
fn a_session_has_its_number_address_and_queue_pairs_back() {
    let mut first = life(POLICY, 1, 1, None);
    let (_, gone) = first.up(1);
    let (_, w) = first.up(2);
    assert!(w.token != [0; 64] && gone.token != w.token);
    let mut second = next(2);
    let (id, again) = resume(&mut second, 2, with(w.token)).unwrap();
    assert_eq!(
        (again.session, again.gids, again.qpns, again.epoch),
        (w.session, w.gids, w.qpns, 2)
    );
    assert_ne!(again.token, w.token);
    // Other sessions reach it by its queue pair numbers, and know it by its session number.
    second.now = LEARN_NS;
    assert!(
        second.broker.take_end_of_learning(LEARN_NS)
            && !second.broker.take_end_of_learning(LEARN_NS)
    );
    let (blue, _) = second.up(1);
    let (routed, owner, _, link) = second.linked(blue, &again);
    assert_eq!((routed.peer, owner, link.peer), (w.session, id, blue));
    // A third life accepts the newer token or the older one, each once.
    for token in [again.token, w.token] {
        let mut third = next(3);
        assert_eq!(resume(&mut third, 2, with(token)).unwrap().1.session, w.session);
        stale(&mut third, 2, with(token), "resumed already");
    }
}

#[test]
fn tokens_that_are_forged_cut_or_of_another_key_are_refused() {
    let (_, w) = life(POLICY, 1, 1, None).up(2);
    let mut b = next(2);
    for bit in (0..512).step_by(3) {
        let mut token = w.token;
        token[bit / 8] ^= 1 << (bit % 8);
        stale(&mut b, 2, with(token), "not of this router's key");
    }
    for len in 1..64 {
        let mut token = w.token;
        token[len..].fill(0);
        if token != w.token {
            stale(&mut b, 2, with(token), "not of this router's key");
        }
    }
    // The key is lost: a new one.
    let mut lost = Broker::new(Policy::parse(POLICY).unwrap(), 2, |_| None);
    lost.resume_by(Keys { key: [2; KEY], floor: 1, learn_until: None });
    let mut lost = Bench { broker: lost, now: 0 };
    stale(&mut lost, 2, with(w.token), "not of this router's key");
    lost.up(2);
    // And a router without any.
    let mut none = Bench::new(POLICY);
    stale(&mut none, 2, with(w.token), "has no key");
    assert_eq!(none.up(2).1.token, [0; 64]);
    // The right one still counts.
    assert!(resume(&mut b, 2, with(w.token)).is_ok());
}

#[test]
fn tokens_of_other_tenants_are_refused() {
    let mut first = life(POLICY, 1, 1, None);
    let (blue, red) = (first.up(1).1, first.up(2).1);
    let mut b = next(2);
    stale(&mut b, 2, with(blue.token), "another tenant");
    stale(&mut b, 3, with(red.token), "another tenant");
    // The tenant of the name is of another network now.
    let moved =
        POLICY.replace("uid = 2 }", "uid = 2 }\nnetwork = \"far\"").replace("0.0.2", "0.0.7");
    let moved = moved.replacen("10.0.0.7", "10.0.0.2", 1);
    let mut other = life(&moved, 2, 1, Some(LEARN_NS));
    stale(&mut other, 2, with(red.token), "another tenant");
    // Its address is another one.
    let mut other = life(&POLICY.replace("10.0.0.1", "10.0.0.9"), 2, 1, Some(LEARN_NS));
    stale(&mut other, 1, with(blue.token), "another address");
    // A process that is no tenant's has no token to use.
    let (errno, _) = resume(&mut b, 9, with(blue.token)).unwrap_err();
    assert_eq!(errno, errno::ACCESS);
    let fewer = Hello { qpns: 2 * QPN_UNIT, ..with(blue.token) };
    stale(&mut b, 1, fewer, "other numbers");
    assert!(resume(&mut b, 1, with(blue.token)).is_ok());
}

#[test]
fn what_was_used_in_this_life_is_used_up() {
    let mut first = life(POLICY, 1, 1, None);
    let (id, w) = first.up(1);
    stale(&mut first, 1, with(w.token), "in this life");
    first.broker.end_session(0, id);
    first.broker.take_actions();
    stale(&mut first, 1, with(w.token), "in this life");
    let mut second = next(2);
    let (id, _) = resume(&mut second, 1, with(w.token)).unwrap();
    second.broker.end_session(0, id);
    second.broker.take_actions();
    stale(&mut second, 1, with(w.token), "in use, or were");
}

#[test]
fn tokens_from_before_the_last_life_that_gave_numbers_are_refused() {
    let (_, w) = life(POLICY, 5, 5, None).up(1);
    for (epoch, floor, counts) in [(6, 5, true), (9, 5, true), (7, 6, false), (5, 5, false)] {
        let mut b = life(POLICY, epoch, floor, Some(LEARN_NS));
        match counts {
            true => drop(resume(&mut b, 1, with(w.token)).unwrap()),
            false => stale(&mut b, 1, with(w.token), ""),
        }
    }
}

#[test]
fn new_numbers_wait_for_those_who_come_back() {
    let mut first = life(POLICY, 1, 1, None);
    let w = first.up(2).1;
    let mut b = next(2);
    // Red may have three sessions, so the fourth that waits is refused.
    let waiting: Vec<SessionId> = (0..3).map(|_| b.connect(2)).collect();
    for &id in &waiting {
        assert_eq!(b.hello(id, hello()), []);
    }
    let fourth = b.connect(2);
    let refused = b.hello(fourth, hello());
    assert!(matches!(refused[1], Action::End(..)), "{refused:?}");
    assert_eq!(b.broker.deadline(), Some(LEARN_NS));
    // A session that waits may only say BYE.
    assert!(matches!(b.hello(waiting[2], hello())[..], [Action::Send(..), Action::End(..)]));
    b.now = SECOND + 1;
    b.broker.tick(b.now);
    let out = b.broker.take_actions();
    assert_eq!(out, [], "they have said HELLO");
    let (_, again) = resume(&mut b, 2, with(w.token)).unwrap();
    assert!(
        !b.broker.take_end_of_learning(LEARN_NS - 1) && b.broker.take_end_of_learning(LEARN_NS)
    );
    b.broker.serve_waiting(LEARN_NS);
    let out = b.broker.take_actions();
    let given: Vec<u32> = out
        .iter()
        .filter_map(|a| match a {
            Action::Send(_, Envelope { status: 0, message: Message::Welcome(w), .. }) => {
                Some(w.qpns.0)
            }
            _ => None,
        })
        .collect();
    assert_eq!(given.len(), 2);
    assert!(!given.contains(&again.qpns.0));
}

#[test]
fn links_of_a_former_life_end_with_the_policy_that_allowed_them() {
    let mut first = life(POLICY, 1, 1, None);
    let (blue, red) = (first.up(1).1, first.up(2).1);
    let mut b = next(2);
    let (x, _) = resume(&mut b, 1, with(blue.token)).unwrap();
    let (y, _) = resume(&mut b, 2, with(red.token)).unwrap();
    let apart = POLICY.replace("vip = \"10.0.0.1\"", "vip = \"10.0.0.1\"\nallow = []");
    b.broker.reload(0, Policy::parse(&apart).unwrap());
    let out = b.broker.take_actions();
    let told: Vec<(SessionId, u32, u32)> = out
        .iter()
        .filter_map(|a| match a {
            Action::Send(id, Envelope { message: Message::RouteEvent(e), .. }) => {
                Some((*id, e.peer, e.event))
            }
            _ => None,
        })
        .collect();
    let revoked = route_event::REVOKED;
    assert_eq!(told, [(x, red.session, revoked), (y, blue.session, revoked)]);
    // The other session is told of the first one's end.
    b.broker.end_session(0, x);
    let out = b.broker.take_actions();
    assert!(matches!(
        out[..],
        [Action::Send(to, Envelope { message: Message::RouteEvent(e), .. }), Action::End(..)]
            if to == y && e.peer == blue.session && e.event == route_event::DOWN
    ));
}
