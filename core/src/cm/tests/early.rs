//! Requests that come before their listener does.

use super::*;

/// An id that is bound and announced, but does not listen yet.
fn announced(w: &mut World, ps: u16) -> Handle {
    let id = w.cm[1].create(ps, 0).unwrap();
    w.cm[1].bind(id, PORT).unwrap();
    w.cm[1].announce(id, true).unwrap();
    id
}

#[test]
fn a_request_waits_for_the_listener_that_was_announced() {
    for ps in [port_space::TCP, port_space::UDP] {
        let mut w = World::new(21);
        let listener = announced(&mut w, ps);
        assert!(w.cm[1].serves(ps, PORT));
        let active = w.cm[0].create(ps, 0).unwrap();
        let offer = ConnParam {
            qp_type: if ps == port_space::UDP { qp_type::UD } else { qp_type::RC },
            ..rc(5, b"me")
        };
        w.cm[0].connect(w.now, active, &address(2), PORT, 0, &offer).unwrap();
        w.run(100 * MS);
        assert!(!w.cm[0].has_events() && !w.cm[1].has_events(), "neither refused nor told");
        w.cm[1].listen(w.now, listener, 0).unwrap();
        let e = w.cm[1].take_event().expect("at once, without another request");
        assert_eq!(
            (e.event, e.listener, &e.private_data()[..2]),
            (cm_event::CONNECT_REQUEST, listener, &b"me"[..])
        );
        assert_eq!((w.cm[0].counters().retries, w.cm[1].counters().dropped), (0, 0));
        w.cm[1].accept(w.now, e.id, 0, &ConnParam { qpn: 6, private_data: b"", ..offer }).unwrap();
        assert!(matches!(w.event(0).event, cm_event::CONNECT_RESPONSE | cm_event::ESTABLISHED));
    }
}

#[test]
fn a_listener_that_never_comes_is_not_waited_for_for_ever() {
    let mut w = World::new(22);
    announced(&mut w, port_space::TCP);
    w.connect(0x11);
    let start = w.now;
    let e = w.event(0);
    assert_eq!((e.event, e.status), (cm_event::REJECTED, i32::from(reject::INVALID_SERVICE_ID)));
    let took = w.now - start;
    assert!(
        took >= LISTENER_GRACE_NS && took <= LISTENER_GRACE_NS + timeout_ns(RESPONSE_TIMEOUT),
        "{took}"
    );
}

#[test]
fn what_is_bound_but_not_announced_or_no_more_is_refused_at_once() {
    for taken_back in [false, true] {
        let mut w = World::new(23);
        let id = w.cm[1].create(port_space::TCP, 0).unwrap();
        w.cm[1].bind(id, PORT).unwrap();
        if taken_back {
            w.cm[1].announce(id, true).unwrap();
            w.cm[1].announce(id, false).unwrap();
        }
        assert!(!w.cm[1].serves(port_space::TCP, PORT));
        w.connect(0x11);
        w.run(MS);
        let e = w.cm[0].take_event().expect("refused");
        assert_eq!(
            (e.event, e.status),
            (cm_event::REJECTED, i32::from(reject::INVALID_SERVICE_ID))
        );
    }
}

#[test]
fn only_ids_that_can_listen_are_announced() {
    let mut w = World::new(24);
    let id = w.cm[1].create(port_space::TCP, 0).unwrap();
    assert_eq!(w.cm[1].announce(id, true), Err(Error::Invalid), "no port");
    let listener = w.listen(1, port_space::TCP);
    assert_eq!(w.cm[1].announce(listener, true), Err(Error::Invalid));
    w.cm[1].destroy(w.now, id).unwrap();
    assert_eq!(w.cm[1].announce(id, true), Err(Error::StaleHandle));
}

#[test]
fn a_request_that_is_too_old_is_not_taken_up() {
    let mut w = World::new(25);
    let first = w.listen(1, port_space::TCP);
    w.cm[1].destroy(w.now, first).unwrap();
    let active = w.connect(0x11);
    w.run(MS);
    // It gives up, and its REJ names nobody.
    w.cm[0].destroy(w.now, active).unwrap();
    w.run(1_500 * MS);
    w.listen(1, port_space::TCP);
    assert!(!w.cm[1].has_events());
}

#[test]
fn strangers_push_out_requests_and_nothing_else() {
    let mut w = World::new(26);
    let listener = announced(&mut w, port_space::TCP);
    w.connect(0x11);
    w.run(MS);
    let mut mad = [0; MAD_LEN];
    for n in 0..1000u32 {
        let header = IpHeader { src_port: 1, src: address(9).gid, dst: address(2).gid };
        let mut data = [0; IP_HEADER_LEN];
        header.emit(&mut data);
        let req = Req {
            local_comm_id: n + 1,
            service_id: u64::from(port_space::TCP) << 16 | u64::from(PORT),
            local_qpn: n + 2,
            local_gid: address(9).gid,
            remote_gid: address(2).gid,
            pkey: 0xffff,
            path_mtu: 1,
            private_data: &data,
            ..Req::default()
        };
        Mad { tid: n.into(), message: Message::Req(req) }.emit(&mut mad);
        w.cm[1].handle_mad(w.now, &address(9), &mad);
        assert!(!w.cm[1].is_ready(), "nothing is sent");
    }
    w.cm[1].listen(w.now, listener, 0).unwrap();
    // The peer that was pushed out asks again.
    let asked = core::iter::from_fn(|| w.event_within(1, 2_000 * MS)).take(20);
    let from: Vec<_> = asked.map(|e| e.peer.dgid).collect();
    assert!(from.contains(&address(1).gid), "{from:?}");
    assert!(from.len() <= EARLY + 1);
}

#[test]
fn every_listener_of_the_last_seconds_is_remembered() {
    let mut w = World::new(27);
    let ports = [PORT, PORT + 1, PORT + 2];
    let listeners = ports.map(|port| {
        let id = w.cm[1].create(port_space::TCP, 0).unwrap();
        w.cm[1].bind(id, port).unwrap();
        w.cm[1].listen(w.now, id, 0).unwrap();
        id
    });
    for id in listeners {
        w.cm[1].destroy(w.now, id).unwrap();
    }
    for port in ports {
        let id = w.cm[0].create(port_space::TCP, 0).unwrap();
        w.cm[0].connect(w.now, id, &address(2), port, 0, &rc(5, b"")).unwrap();
    }
    w.run(100 * MS);
    assert!(!w.cm[0].has_events(), "a request for a former listener waits for the next one");
}
