//! Messages one by one: what a message that comes again, or late, is answered with, and which
//! fields of it count.

use super::super::mad::attribute;
use super::*;

/// What a message that was answered to says.
fn said(mad: &[u8; MAD_LEN]) -> Message<'_> {
    Mad::parse(mad).unwrap().message
}

/// A manager that listens, and a REQ for it.
fn asked() -> (World, Req<'static>, [u8; 92]) {
    let mut w = World::new(21);
    w.forged = true;
    w.listen(1, port_space::TCP);
    let (r, data) = req(0x1234, 0x11);
    (w, r, data)
}

// Linux cm.c cm_dup_req_handler
#[test]
fn a_request_that_comes_again_is_answered_again_and_makes_no_second_connection() {
    let (mut w, r, data) = asked();
    let again = Message::Req(Req { private_data: &data, ..r });
    assert!(answer(&mut w.cm[1], &address(1), again).is_none(), "the program is told");
    let mra = answer(&mut w.cm[1], &address(1), again).expect("it takes its time");
    assert!(matches!(said(&mra), Message::Mra(m) if m.message == 0 && m.remote_comm_id == 0x1234));
    let e = w.cm[1].take_event().unwrap();
    assert_eq!(e.event, cm_event::CONNECT_REQUEST);
    w.cm[1].accept(1, e.id, 0, &rc(0x22, b"")).unwrap();
    let mut first = [0; MAD_LEN];
    assert!(w.cm[1].poll_transmit(&mut first).is_some());
    let second = answer(&mut w.cm[1], &address(1), again).expect("the same answer");
    assert_eq!(first, second);
    assert!(matches!(said(&second), Message::Rep(m) if m.local_qpn == 0x22));
    assert!(!w.cm[1].has_events() && w.cm[1].pool.live() == 2);
}

// Linux cm.c cm_dup_rep_handler
#[test]
fn an_answer_that_comes_again_is_answered_again() {
    let mut w = World::new(22);
    w.forged = true;
    let active = w.connect(0x11);
    let mut mad = [0; MAD_LEN];
    w.cm[0].poll_transmit(&mut mad).unwrap();
    let Message::Req(m) = said(&mad) else { panic!() };
    let id = m.local_comm_id;
    let rep = Message::Rep(Rep {
        local_comm_id: 7,
        remote_comm_id: id,
        local_qpn: 0x22,
        ..Rep::default()
    });
    assert!(answer(&mut w.cm[0], &address(2), rep).is_none(), "the program is told");
    assert_eq!(w.cm[0].take_event().unwrap().event, cm_event::CONNECT_RESPONSE);
    let mra = answer(&mut w.cm[0], &address(2), rep).expect("it takes its time");
    assert!(matches!(said(&mra), Message::Mra(m) if m.message == 1));
    w.cm[0].establish(active).unwrap();
    w.cm[0].poll_transmit(&mut mad).unwrap();
    let rtu = answer(&mut w.cm[0], &address(2), rep).expect("the same answer");
    assert_eq!(rtu, mad);
    let right = |m: Ids| (m.local_comm_id, m.remote_comm_id) == (id, 7);
    assert!(matches!(said(&rtu), Message::Rtu(m) if right(m)));
}

// Linux cm.c cm_rep_handler
#[test]
fn an_answer_that_nobody_has_asked_for_is_refused() {
    let (mut w, ..) = asked();
    let rep = Message::Rep(Rep {
        local_comm_id: 7,
        remote_comm_id: 9,
        local_qpn: 0x22,
        ..Rep::default()
    });
    let rej = answer(&mut w.cm[1], &address(1), rep).expect("a REJ");
    let right = |m: Rej<'_>| {
        (m.local_comm_id, m.remote_comm_id, m.message, m.reason)
            == (9, 7, 1, reject::INVALID_COMM_ID)
    };
    assert!(matches!(said(&rej), Message::Rej(m) if right(m)));
}

// Linux cm.c cm_issue_drep
#[test]
fn the_end_of_a_connection_that_is_forgotten_is_answered() {
    let (mut w, ..) = asked();
    let dreq = Message::Dreq(Dreq { local_comm_id: 7, remote_comm_id: 9, remote_qpn: 0x22 });
    let drep = answer(&mut w.cm[1], &address(1), dreq).expect("a DREP");
    let right = |m: Ids| (m.local_comm_id, m.remote_comm_id) == (9, 7);
    assert!(matches!(said(&drep), Message::Drep(m) if right(m)));
    // In TimeWait the same end is answered again.
    let mut w = World::new(23);
    w.listen(1, port_space::TCP);
    let (active, passive) = w.connected(0x11);
    w.cm[0].disconnect(w.now, active).unwrap();
    assert_eq!(w.event(1).event, cm_event::DISCONNECTED);
    w.run(0);
    let i = w.cm[1].pool.check(passive).unwrap();
    let (l, r, qpn) = (w.cm[1].ids[i].local_id, w.cm[1].ids[i].remote_id, w.cm[1].ids[i].local_qpn);
    w.forged = true;
    w.collect();
    let dreq = Message::Dreq(Dreq { local_comm_id: r, remote_comm_id: l, remote_qpn: qpn });
    let drep = answer(&mut w.cm[1], &address(1), dreq).expect("a DREP");
    assert!(matches!(said(&drep), Message::Drep(_)));
    assert_eq!(w.cm[1].state(passive), Ok(State::TimeWait));
}

// IBTA CA17-34
#[test]
fn lids_of_a_request_count_for_nothing() {
    let (mut w, r, data) = asked();
    let mut mad = [0; MAD_LEN];
    Mad { tid: 5, message: Message::Req(Req { private_data: &data, ..r }) }.emit(&mut mad);
    assert_eq!(mad[16..18], attribute::REQ.to_be_bytes());
    // Primary and alternate, local and remote: behind 24 bytes of header.
    for at in [52, 54, 96, 98] {
        mad[24 + at..24 + at + 2].copy_from_slice(&[0x12, at as u8]);
    }
    w.cm[1].handle_mad(1, &address(1), &mad);
    assert_eq!(w.cm[1].take_event().unwrap().event, cm_event::CONNECT_REQUEST);
}

#[test]
fn an_end_right_after_the_establishing_sends_both() {
    let mut w = World::new(41);
    w.listen(1, port_space::TCP);
    let active = w.connect(5);
    let passive = w.event(1).id;
    w.cm[1].accept(w.now, passive, 0, &rc(6, b"")).unwrap();
    assert_eq!(w.event(0).event, cm_event::CONNECT_RESPONSE);
    w.cm[0].establish(active).unwrap();
    w.cm[0].disconnect(w.now, active).unwrap();
    let seen = [w.event(1).event, w.event(1).event];
    assert_eq!(seen, [cm_event::ESTABLISHED, cm_event::DISCONNECTED]);
}
