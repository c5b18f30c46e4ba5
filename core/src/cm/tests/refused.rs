//! What the kernel and the network say of a peer that is asked for a connection.

use super::*;

const EPERM: i32 = 1;
const REFUSED: i32 = 111;

#[test]
fn what_the_kernel_refuses_to_send_ends_the_attempt_at_once() {
    for ps in [port_space::TCP, port_space::UDP] {
        let mut w = World::new(31);
        let active = w.cm[0].create(ps, 0).unwrap();
        let offer = ConnParam {
            qp_type: if ps == port_space::UDP { qp_type::UD } else { qp_type::RC },
            ..rc(5, b"")
        };
        w.cm[0].connect(w.now, active, &address(2), PORT, 0, &offer).unwrap();
        // Of another peer, or of another port there: not this one's affair.
        w.cm[0].note_unreachable(&address(3), EPERM, true);
        w.cm[0].note_unreachable(&PeerAddr { port: 9, ..address(2) }, EPERM, true);
        assert!(!w.cm[0].has_events());
        w.cm[0].note_unreachable(&address(2), EPERM, true);
        let e = w.cm[0].take_event().expect("at once");
        assert_eq!(
            (e.event, e.status, e.local, e.id),
            (cm_event::UNREACHABLE, -EPERM, true, active)
        );
        assert_eq!(w.cm[0].state(active), Ok(State::Dead));
        w.quiet();
    }
}

#[test]
fn what_the_network_says_is_the_cause_when_nobody_answers() {
    for ps in [port_space::TCP, port_space::UDP] {
        let mut w = World::new(32);
        w.loss = 100;
        let active = w.cm[0].create(ps, 0).unwrap();
        let offer = ConnParam {
            qp_type: if ps == port_space::UDP { qp_type::UD } else { qp_type::RC },
            ..rc(5, b"")
        };
        w.cm[0].connect(w.now, active, &address(2), PORT, 0, &offer).unwrap();
        let start = w.now;
        for _ in 0..100 {
            w.cm[0].note_unreachable(&address(2), REFUSED, false);
        }
        let e = w.event(0);
        assert_eq!((e.event, e.status, e.local), (cm_event::UNREACHABLE, -REFUSED, false));
        assert!(w.now - start >= 16 * timeout_ns(RESPONSE_TIMEOUT), "it shortens nothing");
    }
}

#[test]
fn icmp_keeps_nobody_from_a_peer_that_answers() {
    let mut w = World::new(33);
    w.listen(1, port_space::TCP);
    let active = w.connect(0x11);
    w.cm[0].note_unreachable(&address(2), REFUSED, false);
    let passive = w.event(1).id;
    w.cm[1].note_unreachable(&address(1), REFUSED, false);
    // Neither does a refusal of the kernel's own end what has an answer already.
    w.cm[1].accept(w.now, passive, 0, &rc(0x22, b"")).unwrap();
    w.cm[1].note_unreachable(&address(1), EPERM, true);
    assert_eq!(w.event(0).event, cm_event::CONNECT_RESPONSE);
    w.cm[0].note_unreachable(&address(2), EPERM, true);
    w.cm[0].establish(active).unwrap();
    assert_eq!(w.event(1).event, cm_event::ESTABLISHED);
    w.cm[0].note_unreachable(&address(2), EPERM, true);
    w.run(1000 * MS);
    assert!(!w.cm[0].has_events() && !w.cm[1].has_events());
}

#[test]
fn refusals_are_kept_for_who_wants_to_know() {
    let mut w = World::new(34);
    w.connect(0x11);
    w.event(0);
    assert_eq!((w.cm[1].counters().rejected, w.cm[0].counters().rejects_rcvd), (1, 1));
    let said = w.cm[1].take_refusal().expect("one");
    assert_eq!(
        (said.peer, said.port, said.reason),
        (address(1).gid, PORT, reject::INVALID_SERVICE_ID)
    );
    assert_eq!(w.cm[1].take_refusal(), None);
    // Strangers fill the few places, and no more.
    for n in 0..100 {
        let id = w.connect(0x20 + n);
        w.event(0);
        w.cm[0].destroy(w.now, id).unwrap();
    }
    assert_eq!(core::iter::from_fn(|| w.cm[1].take_refusal()).count(), REFUSALS);
    assert_eq!(w.cm[1].counters().rejected, 101);
}
