//! The connection manager of sessions.

use super::*;
use gdrcore_core::cm::types::{cm_event, port_space, reject, CmEvent, ConnParam};
use gdrcore_core::device::CmDevice;
use gdrcore_testkit::patience;

fn offer(data: &[u8]) -> ConnParam<'_> {
    ConnParam {
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: patience::ack_timeout(14),
        response_timeout: patience::ack_timeout(14),
        private_data: data,
        ..ConnParam::default()
    }
}

/// The connection manager of a tenant.
fn cm(device: &RemoteDevice) -> &dyn CmDevice {
    device.cm().unwrap()
}

/// The next event of a tenant.
fn event(device: &RemoteDevice) -> CmEvent {
    let mut found = None;
    wait_for(60, "no event", || {
        found = cm(device).event().unwrap();
        found.is_some()
    });
    found.unwrap()
}

fn expect(device: &RemoteDevice, number: u32, id: Handle) -> CmEvent {
    let e = event(device);
    assert_eq!((e.event, e.id), (number, id), "{e:?}");
    e
}

/// A listener and its port.
fn listen(device: &RemoteDevice, backlog: u32) -> (Handle, u16) {
    let id = cm(device).create(port_space::TCP, 0).unwrap();
    let port = cm(device).bind(id, 0).unwrap();
    cm(device).listen(id, backlog).unwrap();
    (id, port)
}

/// Requests a connection of an end to a port of the same device.
fn connect(end: &End, port: u16) -> Handle {
    let cm = end.dev.cm().unwrap();
    let (id, to) = (cm.create(port_space::TCP, 5).unwrap(), end.dev.query().unwrap().ah());
    cm.connect(id, &to, port, end.qp, &offer(b"a request")).unwrap();
    id
}

fn end(device: &RemoteDevice) -> End<'_> {
    End::new(device, Shape::default()).unwrap()
}

/// More ids than the device has, a session after the other: those that ended have left none.
fn assert_that_all_ids_are_free(running: &Running, first: u32) {
    for number in first..first + 12 {
        let tenant = running.tenant(number);
        for _ in 0..limits::ID {
            cm(&tenant).create(port_space::TCP, 0).unwrap();
        }
        let more = cm(&tenant).create(port_space::TCP, 0).err();
        assert_eq!(more, Some(Error::NoMemory), "its own most");
        drop(tenant);
        wait_for(60, "it goes on", || running.server().take_broken() == [number]);
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Stage {
    Listening,
    Requested,
    PeerFacts,
    Accepted,
    Established,
}

#[test]
fn tenants_connect_and_leave_at_any_stage() {
    use Stage::{Accepted, Established, Listening, PeerFacts, Requested};
    let running = Running::start();
    let mut number = 0;
    for stage in [Listening, Requested, PeerFacts, Accepted, Established] {
        for server_leaves in [false, true] {
            number += 2;
            let (x, y) = (running.tenant(number), running.tenant(number + 1));
            let (listener, port) = listen(&y, 4);
            let (mut a, mut b) = (end(&x), end(&y));
            let active = (stage > Listening).then(|| connect(&a, port));
            let request = (stage > Requested).then(|| {
                let e = event(&y);
                assert_eq!((e.event, e.listener), (cm_event::CONNECT_REQUEST, listener));
                assert!(e.private_data().starts_with(b"a request"), "{e:?}");
                e.id
            });
            if let Some(id) = request.filter(|_| stage > PeerFacts) {
                cm(&y).accept(id, b.qp, &offer(b"an answer")).unwrap();
            }
            if let (Established, Some(active), Some(passive)) = (stage, active, request) {
                let e = expect(&x, cm_event::ESTABLISHED, active);
                assert!(e.private_data().starts_with(b"an answer") && e.context == 5);
                assert_eq!((e.qp, e.remote_qpn), (a.qp, y.qp_num(b.qp).unwrap()));
                expect(&y, cm_event::ESTABLISHED, passive);
                b.post_recv(1, 0, 64).unwrap();
                a.post(2, Op::Send(None), 0, 64).unwrap();
                succeed(&mut a, &mut b, 2);
                succeed(&mut b, &mut a, 1);
            }
            let (stays, id, leaves) = match server_leaves {
                true => (a, active, b),
                false => (b, request, a),
            };
            let other = if server_leaves { &x } else { &y };
            drop(leaves.leave());
            let (gone, stayed) = match server_leaves {
                true => (number + 1, number),
                false => (number, number + 1),
            };
            running.server().give_up(gone);
            assert_eq!(running.server().take_broken(), [gone], "{stage:?}");
            if let Some(id) = id.filter(|_| stage == Established) {
                expect(other, cm_event::DISCONNECTED, id);
            }
            if let Some(id) = id.filter(|_| server_leaves && matches!(stage, Requested | PeerFacts))
            {
                assert_eq!(expect(other, cm_event::REJECTED, id).id, id);
            }
            stays.destroy().unwrap();
            drop((x, y));
            wait_for(60, "objects stay on the device", || running.is_clean());
            wait_for(60, "an end is not seen", || running.server().take_broken() == [stayed]);
        }
    }
    assert_that_all_ids_are_free(&running, 1000);
}

#[test]
fn ids_and_queue_pairs_of_another_session_are_refused() {
    let running = Running::start();
    let (x, y) = (running.tenant(1), running.tenant(2));
    let (listener, port) = listen(&x, 4);
    let (theirs, own) = (end(&x), end(&y));
    let to = y.query().unwrap().ah();
    let mine = cm(&y).create(port_space::TCP, 0).unwrap();
    let stale = Some(Error::StaleHandle);
    for id in [listener, 0, u64::MAX, own.qp] {
        assert_eq!(cm(&y).bind(id, 0).err(), stale, "{id:#x}");
        assert_eq!(cm(&y).set_context(id, 0).err(), stale, "{id:#x}");
        assert_eq!(cm(&y).announce(id, true).err(), stale, "{id:#x}");
        assert_eq!(cm(&y).listen(id, 1).err(), stale, "{id:#x}");
        assert_eq!(cm(&y).connect(id, &to, port, own.qp, &offer(b"")).err(), stale, "{id:#x}");
        assert_eq!(cm(&y).accept(id, own.qp, &offer(b"")).err(), stale, "{id:#x}");
        assert_eq!(cm(&y).establish(id).err(), stale, "{id:#x}");
        assert_eq!(cm(&y).reject(id, b"").err(), stale, "{id:#x}");
        assert_eq!(cm(&y).disconnect(id).err(), stale, "{id:#x}");
        assert_eq!(cm(&y).destroy(id).err(), stale, "{id:#x}");
        assert_eq!(cm(&y).qp_attr(id, qp_state::INIT).err(), stale, "{id:#x}");
    }
    let foreign = cm(&y).connect(mine, &to, port, theirs.qp, &offer(b""));
    assert_eq!(foreign.err(), stale, "a queue pair of another session");
    let with = |of: &RemoteDevice, qp| ConnParam {
        qpn: of.qp_num(qp).unwrap(),
        qp_type: qp_type::RC,
        ..offer(b"")
    };
    let number = with(&x, theirs.qp);
    assert_eq!(cm(&y).connect(mine, &to, port, 0, &number).err(), Some(Error::Invalid));
    // With its own the call is right.
    cm(&y).connect(mine, &to, port, 0, &with(&y, own.qp)).unwrap();
    let request = event(&x);
    assert_eq!(request.listener, listener);
    let number = with(&y, own.qp);
    assert_eq!(cm(&x).accept(request.id, 0, &number).err(), Some(Error::Invalid));
    assert_eq!(cm(&y).reject(mine, &[0; 5000]).err(), Some(Error::MessageSize));
    cm(&x).reject(request.id, b"no").unwrap();
    let e = expect(&y, cm_event::REJECTED, mine);
    assert_eq!((e.status, &e.private_data()[..2]), (reject::CONSUMER.into(), &b"no"[..]));
    theirs.destroy().unwrap();
    own.destroy().unwrap();
}

#[test]
fn a_backlog_bounds_the_requests_that_wait() {
    let running = Running::start();
    let (x, y) = (running.tenant(1), running.tenant(2));
    let (_, port) = listen(&y, 2);
    let ends: Vec<End> = (0..5).map(|_| end(&x)).collect();
    ends.iter().for_each(|end| _ = connect(end, port));
    let mut waiting = vec![event(&y).id, event(&y).id];
    for left in (0..5).rev() {
        for _ in 0..100 {
            running.server().round();
        }
        assert_eq!(cm(&y).event(), Ok(None), "a third one waits");
        cm(&y).reject(waiting.remove(0), b"").unwrap();
        if left >= 2 {
            // Requests that were dropped are repeated.
            let e = event(&y);
            assert_eq!(e.event, cm_event::CONNECT_REQUEST);
            waiting.push(e.id);
        }
    }
    ends.into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn requests_that_nobody_has_seen_end_with_their_listener() {
    let running = Running::start();
    let (x, y) = (running.tenant(1), running.tenant(2));
    let (listener, port) = listen(&y, 4);
    let ends = [end(&x), end(&x)];
    let ids = ends.each_ref().map(|end| connect(end, port));
    for _ in 0..100 {
        running.server().round();
    }
    cm(&y).destroy(listener).unwrap();
    let mut told = ids.map(|_| event(&x)).map(|e| (e.event, e.id));
    told.sort_unstable();
    assert_eq!(told, ids.map(|id| (cm_event::REJECTED, id)));
    assert_eq!(cm(&y).event(), Ok(None), "of a listener that is gone");
    // They have left their places, too.
    for _ in 0..limits::ID {
        cm(&y).create(port_space::TCP, 0).unwrap();
    }
    ends.into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn a_request_to_a_session_without_room_is_rejected() {
    let running = Running::start();
    let (x, y) = (running.tenant(1), running.tenant(2));
    let (_, port) = listen(&y, 4);
    let ids = (1..limits::ID).map(|_| cm(&y).create(port_space::TCP, 0).unwrap());
    let last = ids.last().unwrap();
    let a = end(&x);
    let id = connect(&a, port);
    expect(&x, cm_event::REJECTED, id);
    cm(&y).destroy(last).unwrap();
    let b = end(&x);
    connect(&b, port);
    assert_eq!(event(&y).event, cm_event::CONNECT_REQUEST);
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn a_descriptor_tells_of_events_until_all_are_taken() {
    let running = Running::start();
    let (x, y) = (running.tenant(1), running.tenant(2));
    let (_, port) = listen(&y, 4);
    assert_eq!((y.arm(), cm(&y).event()), (Ok(false), Ok(None)));
    let ends = [end(&x), end(&x), end(&x)];
    ends.iter().for_each(|end| _ = connect(end, port));
    for _ in 0..100 {
        running.server().round();
    }
    for left in (0..3).rev() {
        assert_eq!(y.arm(), Ok(true), "before the last but {left}");
        assert_eq!(event(&y).event, cm_event::CONNECT_REQUEST);
    }
    assert_eq!((y.arm(), cm(&y).event()), (Ok(false), Ok(None)));
    // One that listens for another thread takes the message, and that one still gets the event.
    let last = connect(&end(&x), port);
    wait_for(60, "it is not heard", || y.hears_cm() == Ok(true));
    assert_eq!(event(&y).event, cm_event::CONNECT_REQUEST);
    assert_eq!((y.hears_cm(), cm(&y).event()), (Ok(false), Ok(None)));
    cm(&x).destroy(last).unwrap();
    ends.into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn the_end_of_the_router_is_the_removal_of_the_device() {
    let running = Running::start();
    let device = running.tenant(1);
    let ids = [3, 4, 5].map(|context| cm(&device).create(port_space::TCP, context).unwrap());
    cm(&device).destroy(ids[0]).unwrap();
    cm(&device).set_context(ids[2], 6).unwrap();
    assert_eq!(cm(&device).event(), Ok(None));
    drop(running);
    let mut told = [event(&device), event(&device)].map(|e| (e.event, e.id, e.context));
    told.sort_unstable_by_key(|told| told.2);
    let removed = cm_event::DEVICE_REMOVAL;
    assert_eq!(told, [(removed, ids[1], 4), (removed, ids[2], 6)]);
    assert_eq!(cm(&device).event().err(), Some(Error::Os(libc::ENOTCONN)));
}

#[test]
fn a_session_has_ids_once_it_has_opened_the_connection_manager() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let create = (port_space::TCP, 0);
    assert_eq!(tenant.try_ask::<call::CmCreate>(&create).err(), Some(Error::Invalid));
    assert_eq!(tenant.ask::<call::CmTakeEvent>(&()), None);
    assert!(tenant.try_ask::<call::CmOpen>(&()).unwrap().1.is_some(), "a socket");
    assert_eq!(tenant.try_ask::<call::CmOpen>(&()).err(), Some(Error::Busy));
    let id = tenant.ask::<call::CmCreate>(&create);
    assert_eq!(tenant.try_ask::<call::CmCreate>(&(1, 0)).err(), Some(Error::Invalid));
    tenant.ask::<call::CmDestroy>(&id);
    assert_eq!(tenant.try_ask::<call::CmDestroy>(&id).err(), Some(Error::StaleHandle));
}
