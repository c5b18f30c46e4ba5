use super::super::super::listener::{connect_brokered, LinkEvent};
use super::super::super::messages::{GrantRequest, REQUEST};
use super::*;
use crate::clock::now_ns;
use crate::map::Map;
use crate::rights;
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::{Class, PacketKind, Psn};
use gdrcore_testkit::descriptors::{keep, Keep};

struct End {
    port: ShmPort,
    waiter: Waiter,
    _memory: Map,
    _kept: Keep,
}

/// The next lost link, and whether it led to an address.
fn lost(port: &mut ShmPort) -> Option<(u16, bool)> {
    port.take_lost().map(|(link, lost)| (link, lost.block.is_none()))
}

fn end() -> End {
    let bounds = ShmBounds::for_device(4, 4);
    let memory = Map::new(ShmPort::memsize(&bounds)).unwrap();
    // SAFETY: the map is ours, and is dropped after the port.
    let port = unsafe {
        ShmPort::open_brokered(&Endpoint::default(), &bounds, memory.as_ptr(), memory.len())
            .unwrap()
    };
    End { port, waiter: Waiter::new().unwrap(), _memory: memory, _kept: keep() }
}

/// A connected pair of sockets, as a router makes it.
fn pair() -> (Foreign, Foreign) {
    let [one, other] = rights::pair().unwrap();
    (one.into(), other.into())
}

fn peer(session: u32, may_grant: bool) -> Peer {
    Peer { at: Endpoint::v4([10, 0, 0, session as u8], 4791), session, may_grant }
}

impl End {
    fn maintain(&mut self) {
        self.port.maintain(now_ns(), &self.waiter);
    }
    /// Links a session to another, whose QPNs are those of block 1.
    fn link(&mut self, own: u32, to: &mut End, other: u32, may_grant: bool) -> u16 {
        let (ours, theirs) = pair();
        to.port.admit(now_ns(), &peer(own, may_grant), theirs, &to.waiter);
        self.port.adopt(&peer(other, may_grant), 1, ours, &self.waiter).unwrap()
    }
    fn send(&mut self, link: u16, byte: u8) {
        let (room, _) = self.port.room(link).unwrap();
        let mut run = Run::new(Class::Rc, PacketKind::Send, 7, Psn::new(1));
        run.imm = byte.into();
        assert!(run.emit_head(room, 0));
        self.port.commit(link, run.head_len());
    }
    /// The received frames: the sender of each, and its byte.
    fn poll(&mut self) -> Vec<(Endpoint, u8)> {
        let mut out = Vec::new();
        self.port.poll(|from, run| out.push((*from, run.unwrap().0.imm as u8)));
        out
    }
    fn socket(&mut self, link: u16) -> &mut LinkSocket {
        &mut self.port.out[usize::from(link)].as_mut().unwrap().socket
    }
}

#[test]
fn the_sender_of_a_frame_is_the_session_that_the_router_named() {
    let (mut a, mut b) = (end(), end());
    let ab = a.link(1, &mut b, 2, false);
    assert_eq!(a.port.find_link(&peer(2, false).at, 1), Some(ab));
    assert_eq!(
        (a.port.find_link(&peer(2, false).at, 2), a.port.find_link(&peer(3, false).at, 1)),
        (None, None)
    );
    a.send(ab, 7);
    b.maintain();
    assert_eq!(b.poll(), [(peer(1, false).at, 7)]);
    // Another socket for the same session: the existing link is kept.
    let (ours, theirs) = pair();
    assert_eq!(a.port.adopt(&peer(2, false), 1, ours, &a.waiter).unwrap(), ab);
    drop(theirs);
    a.send(ab, 8);
    assert_eq!(b.poll(), [(peer(1, false).at, 8)]);
    assert_eq!((a.port.counters().broken, b.port.counters().broken), (0, 0));
}

#[test]
fn one_session_has_one_place() {
    let (mut a, mut b, mut c) = (end(), end(), end());
    let cb = c.link(3, &mut b, 2, false);
    for n in 0..1000 {
        let ab = a.link(1, &mut b, 2, false);
        a.send(ab, n as u8);
        b.maintain();
        assert_eq!(b.poll(), [(peer(1, false).at, n as u8)]);
        a.port.close_session(2, true);
        assert!(lost(&mut a.port).is_some());
    }
    assert_eq!(b.port.inbound.iter().flatten().count(), 2);
    c.send(cb, 5);
    assert_eq!(b.poll(), [(peer(3, false).at, 5)], "others keep theirs");
}

#[test]
fn a_revoked_session_loses_its_links_in_both_directions() {
    let (mut a, mut b) = (end(), end());
    let ab = a.link(1, &mut b, 2, false);
    let ba = b.link(2, &mut a, 1, false);
    a.maintain();
    b.maintain();
    a.send(ab, 1);
    b.port.close_session(1, true);
    assert_eq!(b.poll(), [], "a frame of a revoked session was received");
    assert_eq!(lost(&mut b.port), Some((ba, false)));
    a.maintain();
    assert_eq!(lost(&mut a.port), Some((ab, false)), "the other end sees that it was hung up on");
    assert!(a.port.room(ab).is_none());
}

#[test]
fn hellos_of_listeners_and_of_routers_are_not_confused() {
    let (mut a, b) = (end(), end());
    // The hello of a listener, on a socket of the router.
    let (ours, theirs) = pair();
    a.port.admit(now_ns(), &peer(1, false), theirs, &a.waiter);
    let (_, memory) = crate::shm::segment::Segment::create(8192).unwrap();
    let mut hello = [0u8; 40];
    hello[..8].copy_from_slice(b"gdrshm\x02\0");
    hello[8..12].copy_from_slice(&8192u32.to_le_bytes());
    crate::rights::send(ours.raw(), &hello, memory.raw()).unwrap();
    a.maintain();
    assert_eq!((a.port.counters().broken, a.port.inbound.iter().flatten().count()), (1, 0));
    // The hello of a router's socket, at a listener.
    let (ours, theirs) = pair();
    let _link = connect_brokered(ours, 8192).unwrap();
    assert!(LinkSocket::brokered(theirs).receive().is_err());
    drop(b);
}

#[test]
fn requests_for_memory_on_a_link_without_grants_close_it() {
    for may_grant in [true, false] {
        let (mut a, mut b) = (end(), end());
        let ab = a.link(1, &mut b, 2, may_grant);
        b.maintain();
        let request = GrantRequest { from_qpn: 1, qpn: 2, rkey: 3 };
        assert!(a.socket(ab).send(&request.emit(REQUEST), None));
        b.maintain();
        assert_eq!(b.port.take_request().is_some(), may_grant);
        assert_eq!(matches!(a.socket(ab).next_event(), LinkEvent::Closed), !may_grant);
    }
}
