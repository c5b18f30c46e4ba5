//! Ends without a word.

use super::*;

// Linux cm.c cm_process_send_error
#[test]
fn an_end_that_nobody_answers_has_a_status() {
    for dies in [false, true] {
        let mut w = World::new(41);
        w.listen(1, port_space::TCP);
        let (active, _) = w.connected(0x11);
        w.loss = if dies { 100 } else { 0 };
        w.cm[0].disconnect(w.now, active).unwrap();
        let e = w.event_within(0, 60_000_000_000).expect("the end");
        let status = if dies { -110 } else { 0 };
        assert_eq!((e.event, e.status), (cm_event::DISCONNECTED, status));
    }
}

#[test]
fn a_program_may_ask_for_an_end_that_has_begun_once() {
    let mut w = World::new(42);
    w.listen(1, port_space::TCP);
    let (active, _) = w.connected(0x11);
    w.loss = 100;
    // Requests of the queue pair met silence.
    w.cm[0].peer_silent(w.now, 0x11, false);
    assert_eq!(w.cm[0].state(active), Ok(State::DreqSent));
    w.cm[0].disconnect(w.now, active).unwrap();
    assert!(w.cm[0].disconnect(w.now, active).is_err());
    let e = w.event_within(0, 60_000_000_000).expect("the end");
    assert_eq!((e.event, e.status), (cm_event::DISCONNECTED, -110));
}

#[test]
fn the_end_of_a_process_is_that_of_its_connections_alone() {
    let mut w = World::new(43);
    w.listen(1, port_space::TCP);
    let (active, passive) = w.connected(0x11);
    while w.cm[1].next_unwatched().is_some() {}
    let i = w.cm[1].pool.check(passive).unwrap();
    let (peer, qpn) = (w.cm[1].ids[i].peer, w.cm[1].ids[i].remote_qpn);
    let block = crate::config::qpn_block(qpn);
    assert!(w.cm[1].is_connected_to(&peer, block) && !w.cm[1].is_connected_to(&peer, block + 1));
    assert!(!w.cm[1].is_connected_to(&address(7), block));
    assert!(!w.cm[1].take_ended());
    w.cm[1].peer_ended(w.now, &peer, block + 1);
    w.cm[1].peer_ended(w.now, &address(7), block);
    assert!(!w.cm[1].has_events());
    w.cm[1].peer_ended(w.now, &peer, block);
    let e = w.cm[1].take_event().expect("the end");
    assert_eq!((e.event, e.id, e.status), (cm_event::DISCONNECTED, passive, -110));
    assert!(w.cm[1].take_ended() && !w.cm[1].take_ended());
    let _ = active;
}
