//! A router that drains.

use super::*;

#[test]
fn a_router_that_drains_begins_nothing_and_ends_when_all_have_gone() {
    let mut b = Bench::new(POLICY);
    let (x, blue) = b.up(1);
    let (y, red) = b.up(2);
    b.linked(x, &red);
    assert!(!b.broker.is_drained(u64::MAX));
    b.broker.drain(0, 60 * SECOND);
    let out = b.broker.take_actions();
    let told: Vec<(SessionId, u32)> = out
        .iter()
        .filter_map(|a| match a {
            Action::Send(id, Envelope { message: Message::Drain(d), .. }) => {
                Some((*id, d.deadline_ms))
            }
            _ => None,
        })
        .collect();
    assert_eq!(told, [(x, 60_000), (y, 60_000)]);
    let id = b.connect(3);
    let refused = b.hello(id, hello());
    let Action::Send(_, Envelope { status, .. }) = refused[0] else { panic!("{refused:?}") };
    assert_eq!(status, -errno::SHUTDOWN);
    assert_eq!(b.refused(y, blue.gids[0], blue.qpns.0 + 5).0, errno::SHUTDOWN);
    assert!(!b.broker.is_drained(59 * SECOND) && b.broker.is_drained(60 * SECOND));
    b.broker.drain(SECOND, 5 * SECOND);
    b.broker.take_actions();
    assert_eq!((b.broker.is_drained(5 * SECOND), b.broker.deadline()), (true, Some(5 * SECOND)));
    b.broker.end_session(0, x);
    b.broker.take_actions();
    assert!(!b.broker.is_drained(0));
    b.broker.end_session(0, y);
    b.broker.take_actions();
    assert!(b.broker.is_drained(0));
}
