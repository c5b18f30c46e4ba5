//! The connection manager of a NIC: what it refuses, and what events that nobody expects do.

use core::sync::atomic::Ordering::SeqCst;

use super::fake::{self, alone};
use super::fake_cm::{self, clear, count, CALLED, EVENTS, FAILS};
use crate::device::VerbsDevice;
use crate::objects::lock;
use crate::sys::Fd;
use gdrcore_core::cm::{cm_event, port_space, ConnParam};
use gdrcore_core::device::{CmDevice, Device};
use gdrcore_core::error::Error;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{qp_state, qp_type, AhAttr, Handle, QpCap, QpInit};

/// A NIC with a connection manager, and the descriptors of both.
fn open() -> (&'static VerbsDevice, &'static dyn CmDevice, [Fd; 3]) {
    let (device, [a, b]) = fake::open();
    let channel = Fd::event().unwrap();
    clear(channel.raw());
    (device, device.cm().unwrap(), [a, b, channel])
}

fn qp(device: &VerbsDevice) -> Handle {
    let pd = device.pd_alloc().unwrap();
    let cq = device.cq_create(8).unwrap().0;
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, ..QpCap::default() };
    let init =
        QpInit { pd, send_cq: cq, recv_cq: cq, qp_type: qp_type::RC, cap, ..QpInit::default() };
    fake::QP_STATE.store(qp_state::RESET, SeqCst);
    device.qp_create(&init).unwrap().0
}

/// A queue pair that the program moves itself.
fn own() -> ConnParam<'static> {
    ConnParam {
        qpn: 9,
        qp_type: qp_type::RC,
        responder_resources: 3,
        initiator_depth: 2,
        ..ConnParam::default()
    }
}

fn raise(kind: u32, cookie: u64) {
    lock(&EVENTS).push_back(fake_cm::event(kind, cookie));
}

fn request(listener: Handle, id: usize) {
    let request = core::ptr::without_provenance_mut(id);
    let (kind, depths) = (cm_event::CONNECT_REQUEST, (255, 1));
    let event = fake_cm::event(kind, listener);
    lock(&EVENTS).push_back(crate::abi::cm::Event {
        request,
        qpn: 33,
        responder_resources: depths.0,
        initiator_depth: depths.1,
        ..event
    });
}

fn listener(cm: &dyn CmDevice) -> Handle {
    let id = cm.create(port_space::TCP, 5).unwrap();
    assert_eq!(cm.bind(id, 0), Ok(7777));
    cm.listen(id, 4).unwrap();
    id
}

#[test]
fn one_that_is_missing_is_asked_for_once() {
    let _alone = alone();
    let (device, _fds) = fake::open();
    clear(-1);
    fake_cm::MISSING.store(1, SeqCst);
    for _ in 0..3 {
        assert_eq!(device.cm().err(), Some(Error::Unsupported));
    }
    assert_eq!(fake_cm::OPENS.load(SeqCst), 1);
}

#[test]
fn one_whose_events_cannot_be_watched_is_closed() {
    let _alone = alone();
    let (device, _fds) = fake::open();
    clear(-1);
    assert_eq!((device.cm().err(), count("close")), (Some(Error::Unsupported), 1));
}

#[test]
fn what_the_hosts_manager_chooses_itself_is_refused() {
    let _alone = alone();
    let (_device, cm, _fds) = open();
    let id = cm.create(port_space::IB, 0).unwrap();
    let datagram = cm.create(port_space::UDP, 0).unwrap();
    let of_ud = ConnParam { qp_type: qp_type::UD, ..own() };
    for (id, p) in [
        (id, ConnParam { qp_type: qp_type::UC, ..own() }),
        (id, ConnParam { psn: Some(1), ..own() }),
        (id, ConnParam { path_mtu: 3, ..own() }),
        (datagram, ConnParam { qkey: 1, ..of_ud }),
    ] {
        let asked = cm.connect(id, &AhAttr::default(), 1, 0, &p);
        assert_eq!(asked, Err(Error::Unsupported), "{p:?}");
    }
    let to = AhAttr { udp_port: 4793, ..AhAttr::default() };
    assert_eq!(cm.connect(id, &to, 1, 0, &own()), Err(Error::Unsupported), "another UDP port");
    assert_eq!(cm.connect(id, &AhAttr::default(), 0, 0, &own()), Err(Error::Invalid), "port 0");
    let long = ConnParam { private_data: &[0; 57], ..own() };
    assert_eq!(cm.connect(id, &AhAttr::default(), 1, 0, &long), Err(Error::MessageSize));
    assert_eq!(cm.create(7, 0), Err(Error::Invalid));
    assert_eq!((count("resolve_address"), count("bind")), (0, 0), "{:?}", lock(&CALLED));
}

#[test]
fn calls_out_of_order_are_refused() {
    let _alone = alone();
    let (_device, cm, _fds) = open();
    let id = cm.create(port_space::TCP, 0).unwrap();
    assert_eq!(cm.listen(id, 1), Err(Error::Invalid), "without a port");
    cm.bind(id, 0).unwrap();
    assert_eq!(cm.bind(id, 0), Err(Error::Invalid), "twice");
    for refused in [
        cm.accept(id, 0, &own()),
        cm.establish(id),
        cm.reject(id, &[]),
        cm.disconnect(id),
        cm.qp_attr(id, qp_state::RTR).map(drop),
    ] {
        assert_eq!(refused, Err(Error::Invalid));
    }
    cm.connect(id, &AhAttr::default(), 1, 0, &own()).unwrap();
    assert_eq!(cm.connect(id, &AhAttr::default(), 1, 0, &own()), Err(Error::Invalid), "twice");
    assert_eq!(cm.listen(id, 1), Err(Error::Invalid), "it connects");
    cm.destroy(id).unwrap();
    assert_eq!(cm.set_context(id, 1), Err(Error::StaleHandle));
    assert_eq!(cm.destroy(id), Err(Error::StaleHandle));
}

#[test]
fn a_connection_that_cannot_be_asked_for_is_unreachable_with_its_cause() {
    let _alone = alone();
    for fails in ["resolve_route", "connect"] {
        let (device, cm, _fds) = open();
        let (id, qp) = (cm.create(port_space::TCP, 5).unwrap(), qp(device));
        cm.connect(id, &AhAttr::default(), 1, qp, &own()).unwrap();
        *lock(&FAILS) = Some((fails, libc::ENETUNREACH));
        raise(0, id);
        raise(2, id);
        let e = cm.event().unwrap().unwrap();
        assert_eq!((e.event, e.id, e.context), (cm_event::UNREACHABLE, id, 5), "{fails}");
        assert_eq!((e.status, e.local), (-libc::ENETUNREACH, true), "{fails}");
        assert_eq!(device.qp_cause(qp).unwrap().code, CauseCode::NoRoute as u32);
    }
    // The kernel finds no such neighbour.
    let (device, cm, _fds) = open();
    let (id, qp) = (cm.create(port_space::TCP, 5).unwrap(), qp(device));
    cm.connect(id, &AhAttr::default(), 1, qp, &own()).unwrap();
    let event = crate::abi::cm::Event { status: -libc::ETIMEDOUT, ..fake_cm::event(1, id) };
    lock(&EVENTS).push_back(event);
    let e = cm.event().unwrap().unwrap();
    assert_eq!((e.event, e.status, e.local), (cm_event::UNREACHABLE, -libc::ETIMEDOUT, false));
    assert_eq!(device.qp_cause(qp).unwrap().code, CauseCode::NoAnswer as u32);
}

#[test]
fn an_answer_that_the_queue_pair_does_not_take_is_refused() {
    let _alone = alone();
    let (device, cm, _fds) = open();
    let (id, qp) = (cm.create(port_space::TCP, 5).unwrap(), qp(device));
    cm.connect(id, &AhAttr::default(), 1, qp, &own()).unwrap();
    *lock(&FAILS) = Some(("establish", libc::EINVAL));
    raise(cm_event::CONNECT_RESPONSE, id);
    let e = cm.event().unwrap().unwrap();
    assert_eq!((e.event, e.status), (cm_event::CONNECT_ERROR, -libc::EINVAL));
    assert_eq!(count("reject"), 1);
}

#[test]
fn a_request_without_room_or_listener_is_refused() {
    let _alone = alone();
    let (device, cm, _fds) = open();
    let listener = listener(cm);
    let room = device.config.max_cm_ids as usize - 1;
    for n in 0..room {
        request(listener, 0x1000 + n);
        let e = cm.event().unwrap().unwrap();
        assert_eq!((e.event, e.listener, e.context), (cm_event::CONNECT_REQUEST, listener, 0));
    }
    request(listener, 0x7777);
    assert_eq!(cm.event(), Ok(None));
    assert_eq!(lock(&CALLED).last(), Some(&("destroy", 0x7777)));
    cm.destroy(listener).unwrap();
    request(listener, 0x8888);
    assert_eq!(cm.event(), Ok(None));
    assert_eq!(lock(&CALLED).last(), Some(&("destroy", 0x8888)));
}

#[test]
fn a_request_is_accepted_with_what_both_sides_have() {
    let _alone = alone();
    let (_device, cm, _fds) = open();
    let listener = listener(cm);
    request(listener, 0x1000);
    let e = cm.event().unwrap().unwrap();
    // The NIC has four.
    assert_eq!((e.responder_resources, e.initiator_depth, e.remote_qpn), (4, 1, 33));
    cm.accept(e.id, 0, &own()).unwrap();
    let rtr = cm.qp_attr(e.id, qp_state::RTR).unwrap().0;
    let rts = cm.qp_attr(e.id, qp_state::RTS).unwrap().0;
    assert_eq!((rtr.max_dest_rd_atomic, rts.max_rd_atomic), (3, 1));
    assert_eq!((rtr.qp_state, rts.qp_state), (qp_state::RTR, qp_state::RTS));
    assert_eq!(cm.accept(e.id, 0, &own()), Err(Error::Invalid), "twice");
    raise(cm_event::ESTABLISHED, e.id);
    assert_eq!(cm.event().unwrap().unwrap().event, cm_event::ESTABLISHED);
    // The peer ends it: it has its answer before the program says anything.
    raise(cm_event::DISCONNECTED, e.id);
    assert_eq!(cm.event().unwrap().unwrap().event, cm_event::DISCONNECTED);
    assert_eq!(count("disconnect"), 1);
    assert_eq!(cm.disconnect(e.id), Err(Error::Invalid), "it is over");
}

#[test]
fn events_of_ids_that_are_gone_and_of_other_kinds_are_dropped() {
    let _alone = alone();
    let (_device, cm, _fds) = open();
    let id = cm.create(port_space::TCP, 5).unwrap();
    for kind in [12, 13, 16, u32::MAX] {
        raise(kind, id);
    }
    cm.destroy(id).unwrap();
    for kind in (0..16).filter(|&kind| kind != cm_event::CONNECT_REQUEST) {
        for cookie in [0, id, u64::MAX] {
            raise(kind, cookie);
        }
    }
    assert_eq!(cm.event(), Ok(None));
    assert!(lock(&EVENTS).is_empty());
}

#[test]
fn the_end_of_the_device_ends_ids_and_manager() {
    let _alone = alone();
    let (device, cm, _fds) = open();
    let (listener, other) = (listener(cm), cm.create(port_space::TCP, 5).unwrap());
    // SAFETY: no other thread knows it, and nothing follows.
    unsafe { device.close() };
    let called = lock(&CALLED);
    let ended: Vec<_> = called.iter().rev().take(3).rev().copied().collect();
    assert_eq!(ended, [("destroy", listener), ("destroy", other), ("close", 0)]);
}
