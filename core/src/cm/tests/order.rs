//! Events come in the order in which they arrived, whichever ids they are of.

use super::*;

/// Connects, and takes the request's event. Returns the ids of both ends.
fn requested(w: &mut World, qpn: u32) -> (Handle, Handle) {
    let active = w.connect(qpn);
    let e = w.event(1);
    assert_eq!(e.event, cm_event::CONNECT_REQUEST);
    (active, e.id)
}

/// Accepts and establishes; the passive end's event is not taken.
fn establish(w: &mut World, (active, passive): (Handle, Handle)) {
    w.cm[1].accept(w.now, passive, 0, &rc(0x22, b"")).unwrap();
    let e = w.event(0);
    assert_eq!((e.event, e.id), (cm_event::CONNECT_RESPONSE, active));
    w.cm[0].establish(active).unwrap();
    w.run(MS);
}

#[test]
fn a_requests_event_does_not_overtake_an_earlier_one() {
    let mut w = World::new(31);
    w.listen(1, port_space::TCP);
    let ends: Vec<_> = (0..6).map(|n| requested(&mut w, 0x100 + n)).collect();
    // Neither the order of the table nor its reverse.
    for n in [3, 0, 5, 2] {
        establish(&mut w, ends[n]);
    }
    let late = w.connect(0x200);
    w.run(MS);
    w.cm[0].disconnect(w.now, ends[0].0).unwrap();
    assert_eq!(w.event(0).event, cm_event::DISCONNECTED);
    establish(&mut w, ends[4]);
    let mut arrival = 0;
    let mut next = |w: &mut World| {
        let e = w.cm[1].take_event().expect("an event");
        assert!(e.arrival > arrival);
        arrival = e.arrival;
        (e.event, e.id)
    };
    for n in [3, 0, 5, 2] {
        assert_eq!(next(&mut w), (cm_event::ESTABLISHED, ends[n].1));
    }
    let (event, fresh) = next(&mut w);
    assert_eq!(event, cm_event::CONNECT_REQUEST);
    assert!(ends.iter().all(|(_, passive)| *passive != fresh));
    assert_eq!(next(&mut w), (cm_event::DISCONNECTED, ends[0].1));
    assert_eq!(next(&mut w), (cm_event::ESTABLISHED, ends[4].1));
    assert!(w.cm[1].take_event().is_none());
    establish(&mut w, (late, fresh));
    assert_eq!(w.event(1).id, fresh);
}

#[test]
fn the_events_of_an_id_that_ends_leave_the_others_in_order() {
    let mut w = World::new(32);
    let listener = w.listen(1, port_space::TCP);
    let ends: Vec<_> = (0..5).map(|n| requested(&mut w, 0x100 + n)).collect();
    for n in [1, 4, 0, 3, 2] {
        establish(&mut w, ends[n]);
    }
    // The first, one in the middle and the last of the list.
    for n in [1, 0, 2] {
        w.cm[1].destroy(w.now, ends[n].1).unwrap();
    }
    w.connect(0x200);
    w.run(MS);
    // A request whose event was not taken ends with its listener.
    w.cm[1].destroy(w.now, listener).unwrap();
    for n in [4, 3] {
        let e = w.cm[1].take_event().expect("an event");
        assert_eq!((e.event, e.id), (cm_event::ESTABLISHED, ends[n].1));
    }
    assert!(!w.cm[1].has_events() && w.cm[1].take_event().is_none());
}

#[test]
fn a_change_of_the_interface_is_an_event_of_each_id_that_the_program_knows() {
    let mut w = World::new(33);
    let listener = w.listen(1, port_space::TCP);
    let destroyed = requested(&mut w, 0x101).1;
    w.cm[1].destroy(w.now, destroyed).unwrap();
    assert_eq!(w.event(0).event, cm_event::REJECTED);
    let ends = requested(&mut w, 0x100);
    establish(&mut w, ends);
    w.connect(0x102);
    w.run(MS);
    for event in [cm_event::ADDR_CHANGE, cm_event::DEVICE_REMOVAL, cm_event::ADDR_CHANGE] {
        w.cm[1].interface_changed(event);
    }
    assert_eq!(w.event(1).event, cm_event::ESTABLISHED);
    // The program does not know of this one yet.
    let unheard = w.event(1);
    assert_eq!(unheard.event, cm_event::CONNECT_REQUEST);
    let mut all = Vec::new();
    while let Some(e) = w.cm[1].take_event() {
        assert_eq!(e.status, 0);
        all.push((e.event, e.id));
    }
    let both = [listener, ends.1];
    for event in [cm_event::ADDR_CHANGE, cm_event::DEVICE_REMOVAL] {
        let ids: Vec<_> = all.iter().filter(|(e, _)| *e == event).map(|(_, id)| *id).collect();
        assert!(ids.len() == 2 && both.iter().all(|id| ids.contains(id)), "{all:?}");
    }
    assert_eq!(all.len(), 4);
    w.cm[1].interface_changed(cm_event::ADDR_CHANGE);
    let told: Vec<_> = core::iter::from_fn(|| w.cm[1].take_event()).map(|e| e.id).collect();
    assert!(told.len() == 3 && told.contains(&unheard.id));
}
