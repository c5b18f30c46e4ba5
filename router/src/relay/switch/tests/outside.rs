//! Plain endpoints.

use super::*;
use crate::policy::{Outside, Published};

const HOST: [u8; 16] = v4([192, 0, 2, 1]);
const OUT: [u8; 16] = v4([192, 0, 2, 9]);

const fn v4(a: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3]]
}

/// Only the first session may talk to plain endpoints.
fn opened() -> Switch {
    let mut s = switch();
    let inside = vec![A, B];
    let rules = Outside { own: HOST, allow: None, pools: Vec::new(), inside };
    assert!(!s.talks_outside());
    assert!(s.set_outside(0, Some(Arc::new(rules))).is_none());
    assert!(s.talks_outside());
    s
}

#[test]
fn a_tenant_with_outside_talks_to_endpoints_and_no_other_does() {
    let mut s = opened();
    for class in [Class::Rc, Class::Uc, Class::Ud] {
        let there = sent(class, qpn(1), 7, b"x");
        assert_eq!(s.route(0, 0, &OUT, &there), Ok(Destination::Outside));
        assert_eq!(s.route(0, 0, &HOST, &there), Err(Refused::Qpn), "itself");
        assert_eq!(s.route(0, 0, &OUT, &sent(class, qpn(1), 0, b"x")), Err(Refused::Qpn));
        let there = sent(class, qpn(2), 7, b"x");
        assert_eq!(s.route(0, 1, &OUT, &there), Err(Refused::Qpn));
        let back = sent(class, 7, qpn(1), b"x");
        assert_eq!(s.judge_outside(&OUT, &back), Ok(OutsidePacket { slot: 0, is_mad: false }));
        let other = sent(class, 7, qpn(2), b"x");
        assert_eq!(s.judge_outside(&OUT, &other), Err(Refused::Policy));
        let nobody = sent(class, 7, qpn(9), b"x");
        assert_eq!(s.judge_outside(&OUT, &nobody), Err(Refused::Qpn));
        // No packet from outside may come from a tenant's address or the host's own.
        for inside in [A, B, HOST] {
            assert_eq!(s.judge_outside(&inside, &back), Err(Refused::Policy));
        }
    }
    let forged = sent(Class::Ud, qpn(2), 7, b"x");
    assert_eq!(s.route(0, 0, &OUT, &forged), Err(Refused::Source));
    // An expelled session is refused, too, though its last packets are still in its ring.
    s.slots.expel(0);
    assert_eq!(s.route(0, 0, &OUT, &sent(Class::Rc, qpn(1), 7, b"x")), Err(Refused::Qpn));
    s.slots.set(0, SlotState::Free);
    assert_eq!(s.slots.take(), Some(0));
    assert_eq!(s.route(0, 0, &OUT, &sent(Class::Rc, qpn(1), 7, b"x")), Ok(Destination::Outside));
    // Without the rules there is no way out.
    assert!(s.set_outside(0, None).is_some());
    assert_eq!(s.route(0, 0, &OUT, &sent(Class::Rc, qpn(1), 7, b"x")), Err(Refused::Qpn));
    let back = sent(Class::Rc, 7, qpn(1), b"x");
    assert_eq!(s.judge_outside(&OUT, &back), Err(Refused::Policy));
}

#[test]
fn requests_from_outside_go_where_a_port_is_published() {
    let mut s = opened();
    assert_eq!(s.judge_outside(&OUT, &request(9)), Err(Refused::Address));
    let all = [(service(9), 0, A), (service(10), 0, B), (service(11), 5, A)];
    drop(s.set_published(Arc::new(Published::new(all.into_iter()))));
    assert_eq!(s.judge_outside(&OUT, &request(9)), Ok(OutsidePacket { slot: 0, is_mad: true }));
    assert_eq!(s.judge_outside(&OUT, &request(10)), Err(Refused::Policy), "it has no `outside`");
    assert_eq!(s.judge_outside(&OUT, &request(11)), Err(Refused::Address), "nobody is there");
    assert_eq!(s.judge_outside(&OUT, &request(12)), Err(Refused::Address));
    // An answer to a connection of a block's session.
    let answer = |block: u32| {
        let ids = Ids { local_comm_id: 5, remote_comm_id: block << 22 | 7 };
        mad(Message::Rtu(ids))
    };
    assert_eq!(s.judge_outside(&OUT, &answer(1)), Ok(OutsidePacket { slot: 0, is_mad: true }));
    assert_eq!(s.judge_outside(&OUT, &answer(2)), Err(Refused::Policy));
    assert_eq!(s.route(0, 0, &OUT, &request(9)), Ok(Destination::Outside));
    assert_eq!(s.route(0, 1, &OUT, &request(9)), Err(Refused::Address));
}
