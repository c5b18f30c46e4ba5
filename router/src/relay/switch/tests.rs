use super::*;
use crate::relay::{FarPeer, SlotState};
use gdrcore_core::cm::mad::{Ids, IpHeader, Mad, Message, Req, SidrReq, IP_HEADER_LEN, MAD_LEN};
use gdrcore_core::wire::{Opcode, Psn, QP1_QKEY};

const A: [u8; 16] = [1; 16];
const B: [u8; 16] = [2; 16];
const SECOND: u64 = 1_000_000_000;

/// Four sessions. Two of one network have the blocks 1, and 2 and 3. One with the second's address
/// has block 4. One of another network, also with the second's address, has block 5. All but the
/// last may talk.
fn switch() -> Switch {
    let slots = Arc::new(Slots::default());
    let mut s = Switch::new(slots.clone(), 8);
    let places =
        [(0, A, 1..2), (0, B, 2..4), (0, B, 4..5), (7, B, 5..6)].map(|(network, gid, blocks)| {
            slots.take();
            SessionAddress { network, gid, blocks }
        });
    for (slot, place) in places.into_iter().enumerate() {
        s.join(0, slot as u16, place);
    }
    for (a, b) in [(0, 0), (0, 1), (0, 2), (1, 2), (3, 3)] {
        slots.set_allowed(a, b, true);
    }
    s
}

impl Switch {
    /// The slot to which a packet goes on this host.
    fn here(&mut self, now: u64, from: u16, to: &[u8; 16], packet: &[u8]) -> Result<u16, Refused> {
        self.route(now, from, to, packet).map(|goal| match goal {
            Destination::Slot(slot) => slot,
            Destination::Far(peer) => panic!("to another host's {peer}"),
            Destination::Outside => panic!("to a plain endpoint"),
        })
    }
}

fn qpn(block: u32) -> u32 {
    block * QPN_UNIT + 9
}

fn packet(run: &Run, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let head = opcode.header_len();
    let mut bytes = vec![0; head];
    run.emit_headers(opcode, run.psn, false, 0, &mut bytes);
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(&[0; ICRC_LEN]);
    bytes
}

fn sent(class: Class, from: u32, to: u32, payload: &[u8]) -> Vec<u8> {
    let mut run = Run::new(class, PacketKind::Send, to, Psn::new(5));
    run.src_qpn = from;
    run.qkey = QP1_QKEY;
    packet(&run, run.opcode(true, true), payload)
}

fn mad(message: Message<'_>) -> Vec<u8> {
    let mut bytes = [0; MAD_LEN];
    Mad { tid: 1, message }.emit(&mut bytes);
    sent(Class::Ud, GSI_QPN, GSI_QPN, &bytes)
}

fn request(port: u16) -> Vec<u8> {
    let service_id = u64::from(0x0106u16) << 16 | u64::from(port);
    mad(Message::Req(Req { service_id, local_comm_id: 1 << 22, ..Req::default() }))
}

fn service(port: u16) -> Service {
    Service { space: 0x106, port }
}

#[test]
fn a_packet_goes_to_the_owner_of_its_queue_pair_and_to_nobody_else() {
    let mut s = switch();
    for class in [Class::Rc, Class::Uc, Class::Ud, Class::Xrc] {
        let mut to = |from: u16, gid: &[u8; 16], block: u32| {
            s.here(0, from, gid, &sent(class, qpn(from.into()) + QPN_UNIT, qpn(block), b"hello"))
        };
        assert_eq!((to(0, &B, 2), to(0, &B, 3), to(0, &B, 4)), (Ok(1), Ok(1), Ok(2)));
        assert_eq!(to(0, &A, 1), Ok(0), "its own");
        // A number at the wrong address, numbers without an owner, and one of another network.
        for (gid, block) in [(&A, 2), (&B, 1), (&B, 0), (&B, 6), (&B, 1023), (&B, 5)] {
            assert_eq!(to(0, gid, block), Err(Refused::Qpn), "{class:?} {block}");
        }
    }
    assert_eq!((s.gid(0), s.gid(3), s.gid(4)), (Some(A), Some(B), None));
}

#[test]
fn a_datagram_names_a_source_of_its_sender() {
    let mut s = switch();
    let mut from = |slot: u16, src: u32| s.here(0, slot, &B, &sent(Class::Ud, src, qpn(4), b"x"));
    assert_eq!(from(0, qpn(1)), Ok(2));
    assert_eq!((from(1, qpn(2)), from(1, qpn(3))), (Ok(2), Ok(2)), "both of its blocks");
    for src in [0, 1, qpn(0), qpn(2), qpn(4), 0xff_ffff] {
        assert_eq!(from(0, src), Err(Refused::Source), "{src:#x}");
    }
    // A connected packet does not name its source.
    assert_eq!(s.here(0, 0, &B, &sent(Class::Rc, qpn(4), qpn(4), b"x")), Ok(2));
    assert_eq!(s.here(0, 9, &B, &request(7)), Err(Refused::Source), "a slot without a session");
}

#[test]
fn policy_is_asked_for_each_packet() {
    let mut s = switch();
    let data = sent(Class::Ud, qpn(1), qpn(2), b"x");
    assert_eq!(s.here(0, 0, &B, &data), Ok(1));
    s.slots.set_allowed(0, 1, false);
    assert_eq!(s.here(0, 0, &B, &data), Err(Refused::Policy));
    s.listen(1, service(7), true);
    assert_eq!(s.here(0, 0, &B, &request(7)), Err(Refused::Policy));
    let of_block = mad(Message::Rtu(Ids { local_comm_id: 1 << 22, remote_comm_id: 2 << 22 }));
    assert_eq!(s.here(0, 0, &B, &of_block), Err(Refused::Policy));
}

#[test]
fn what_no_program_sends_goes_nowhere() {
    let mut s = switch();
    let good = sent(Class::Ud, qpn(1), qpn(2), b"some bytes");
    for len in 0..24 {
        assert_eq!(s.here(0, 0, &B, &good[..len]), Err(Refused::Frame), "{len}");
    }
    for opcode in [0x41u8, 0x60, 0x7f, 0xc0, 0xff] {
        let mut bad = good.clone();
        bad[0] = opcode;
        assert_eq!(s.here(0, 0, &B, &bad), Err(Refused::Frame), "{opcode:#x}");
    }
    let run = Run::new(Class::Cnp, PacketKind::Cnp, qpn(2), Psn::new(0));
    let cnp = |len: usize| packet(&run, Opcode::CNP, &vec![0; len]);
    assert_eq!(s.here(0, 0, &B, &cnp(CNP_PAYLOAD)), Ok(1));
    assert_eq!(s.here(0, 0, &B, &cnp(CNP_PAYLOAD + 4)), Err(Refused::Frame));
    // QP1 accepts only datagrams from QP1.
    let gsi = |class, src| sent(class, src, GSI_QPN, &[0; MAD_LEN]);
    assert_eq!(s.here(0, 0, &B, &gsi(Class::Rc, GSI_QPN)), Err(Refused::Frame));
    assert_eq!(s.here(0, 0, &B, &gsi(Class::Ud, qpn(1))), Err(Refused::Source));
}

#[test]
fn a_request_goes_to_who_listens_and_an_answer_to_who_asked() {
    let mut s = switch();
    s.listen(2, service(7), true);
    s.listen(3, service(8), true);
    let mut judge = |gid: &[u8; 16], m: &[u8]| s.here(0, 0, gid, m);
    assert_eq!(judge(&B, &request(7)), Ok(2));
    assert_eq!(judge(&B, &request(8)), Ok(1), "the listener is of another network: refused there");
    assert_eq!(judge(&[9; 16], &request(7)), Err(Refused::Address));
    assert_eq!(judge(&B, &sent(Class::Ud, GSI_QPN, GSI_QPN, &[7; MAD_LEN])), Ok(1), "no message");
    let answer =
        |block: u32| mad(Message::Rtu(Ids { local_comm_id: 1, remote_comm_id: block << 22 }));
    assert_eq!((judge(&B, &answer(3)), judge(&B, &answer(4))), (Ok(1), Ok(2)));
    for block in [1, 5, 6] {
        assert_eq!(judge(&B, &answer(block)), Err(Refused::Qpn), "{block}");
    }
    // A second listener at the address, and the end of the first one.
    s.listen(1, service(7), true);
    s.listen(1, service(7), false);
    assert_eq!(s.here(0, 0, &B, &request(7)), Ok(2), "who came first");
    s.listen(2, service(7), false);
    s.listen(1, service(7), true);
    assert_eq!(s.here(0, 0, &B, &request(7)), Ok(1));
}

#[test]
fn who_has_left_is_not_there_and_its_ports_are_free() {
    let mut s = switch();
    s.listen(2, service(7), true);
    s.leave(2);
    let data = sent(Class::Ud, qpn(1), qpn(4), b"x");
    assert_eq!(s.here(0, 0, &B, &data), Err(Refused::Qpn));
    assert_eq!(s.here(0, 0, &B, &request(7)), Ok(1));
    // The next session in its slot does not get its packets either.
    s.join(0, 2, SessionAddress { network: 0, gid: B, blocks: 6..7 });
    assert_eq!(s.here(0, 0, &B, &data), Err(Refused::Qpn));
    assert_eq!(s.here(0, 0, &B, &sent(Class::Ud, qpn(1), qpn(6), b"x")), Ok(2));
    s.leave(2);
    for _ in 0..100 {
        s.listen(0, service(1), true);
        (0..20).for_each(|port| s.listen(1, service(port), true));
        assert_eq!(s.listens.len(), 8, "no more than there is room for");
        s.leave(1);
        s.leave(1);
        s.join(0, 1, SessionAddress { network: 0, gid: B, blocks: 2..4 });
    }
    assert_eq!(s.listens.len(), 1);
}

#[test]
fn requests_have_a_rate_and_data_has_none() {
    let mut s = switch();
    s.listen(1, service(7), true);
    let mut took = |now: u64| (0..5000).filter(|_| s.here(now, 0, &B, &request(7)).is_ok()).count();
    assert_eq!(took(0), MADS_PER_SECOND as usize);
    assert_eq!(took(SECOND / 10), MADS_PER_SECOND as usize / 10);
    assert_eq!(s.here(SECOND / 10, 0, &B, &request(7)), Err(Refused::Rate));
    let data = sent(Class::Ud, qpn(1), qpn(2), b"x");
    assert!((0..5000).all(|_| s.here(SECOND / 10, 0, &B, &data) == Ok(1)));
    assert_eq!(s.here(SECOND / 10, 2, &A, &request(7)), Ok(0), "another's is its own");
}

/// The same with other hosts: an address C of the first network in its blocks 1 and 2, D of the
/// other network in 3. Slots 0 and 1 may talk to C, slot 3 to D.
fn with_far() -> Switch {
    let mut s = switch();
    let at = |last| gdrcore_net::addr::Endpoint::v4([192, 0, 2, last], 4791);
    let peer = |network, gid, blocks| FarPeer { network, gid, blocks, at: at(1) };
    let far = Far::new(vec![peer(0, C, 1..3), peer(7, D, 3..4)]);
    for (slot, peer) in [(0, 0), (1, 0), (3, 1)] {
        far.set_allowed(slot, peer, true);
    }
    drop(s.set_far(Arc::new(far)));
    s
}

const C: [u8; 16] = [3; 16];
const D: [u8; 16] = [4; 16];

#[test]
fn a_packet_to_another_host_is_looked_at_as_any() {
    let mut s = with_far();
    let mut to = |from: u16, gid: &[u8; 16], packet: &[u8]| s.route(0, from, gid, packet);
    let data = |block: u32| sent(Class::Rc, 0, qpn(block), b"x");
    assert_eq!(
        (to(0, &C, &data(1)), to(1, &C, &data(2))),
        (Ok(Destination::Far(0)), Ok(Destination::Far(0)))
    );
    assert_eq!(to(3, &D, &data(3)), Ok(Destination::Far(1)));
    assert_eq!(to(0, &C, &data(3)), Err(Refused::Qpn), "another tenant's block of that host");
    assert_eq!(to(0, &D, &data(3)), Err(Refused::Qpn), "another network's address");
    assert_eq!(to(2, &C, &data(1)), Err(Refused::Policy));
    let datagram = |from: u32| sent(Class::Ud, from, qpn(1), b"x");
    assert_eq!(to(0, &C, &datagram(qpn(1))), Ok(Destination::Far(0)));
    assert_eq!(to(0, &C, &datagram(qpn(2))), Err(Refused::Source));
    // Requests go to the host whoever listens there, since only that host knows. Answers go to the
    // connection's owner.
    assert_eq!(to(0, &C, &request(7)), Ok(Destination::Far(0)));
    assert_eq!(to(2, &C, &request(7)), Err(Refused::Policy));
    let answer =
        |block: u32| mad(Message::Rtu(Ids { local_comm_id: 1, remote_comm_id: block << 22 }));
    assert_eq!(
        (to(0, &C, &answer(2)), to(0, &C, &answer(3))),
        (Ok(Destination::Far(0)), Err(Refused::Qpn))
    );
    // This host's own addresses are still reached here.
    assert_eq!(to(0, &B, &data(2)), Ok(Destination::Slot(1)));
}

#[test]
fn a_packet_of_another_host_reaches_who_may_be_reached() {
    let s = with_far();
    let data = |block: u32| sent(Class::Rc, 0, qpn(block), b"x");
    assert_eq!((s.route_far(0, &data(1)), s.route_far(0, &data(3))), (Ok(0), Ok(1)));
    assert_eq!(s.route_far(1, &data(5)), Ok(3));
    assert_eq!(s.route_far(0, &data(5)), Err(Refused::Qpn), "a block of another network's tenant");
    assert_eq!(s.route_far(1, &data(1)), Err(Refused::Qpn));
    assert_eq!(s.route_far(0, &data(6)), Err(Refused::Qpn), "nobody's");
    assert_eq!(s.route_far(0, &data(4)), Err(Refused::Policy));
    assert_eq!(s.route_far(2, &data(1)), Err(Refused::Source), "nobody");
    for (block, wanted) in
        [(1, Ok(0)), (2, Ok(0)), (3, Err(Refused::Source)), (0, Err(Refused::Source))]
    {
        assert_eq!(s.route_far(0, &sent(Class::Ud, qpn(block), qpn(1), b"x")), wanted, "{block}");
    }
    assert_eq!(s.route_far(0, &data(1)[..14]), Err(Refused::Frame));
}

#[test]
fn a_message_of_another_host_says_whom_it_means() {
    let mut s = with_far();
    s.listen(1, service(7), true);
    s.listen(3, service(8), true);
    let ask = |gid: [u8; 16], port: u16| {
        let service_id = 0x0106_0000 | u64::from(port);
        let req = Req { service_id, local_comm_id: 1 << 22, remote_gid: gid, ..Req::default() };
        mad(Message::Req(req))
    };
    assert_eq!((s.route_far(0, &ask(B, 7)), s.route_far(0, &ask(A, 7))), (Ok(1), Ok(0)));
    assert_eq!(s.route_far(1, &ask(B, 8)), Ok(3), "the listener of its network");
    assert_eq!(s.route_far(0, &ask(C, 7)), Err(Refused::Address));
    let find = |head: &[u8]| {
        let service_id = 0x0111_0007;
        mad(Message::SidrReq(SidrReq {
            service_id,
            request_id: 9,
            private_data: head,
            ..SidrReq::default()
        }))
    };
    s.listen(1, Service { space: 0x111, port: 7 }, true);
    let mut head = [0; IP_HEADER_LEN];
    IpHeader { src_port: 1, src: C, dst: B }.emit(&mut head);
    assert_eq!(s.route_far(0, &find(&head)), Ok(1));
    assert_eq!(
        s.route_far(0, &find(&[0xff; IP_HEADER_LEN])),
        Err(Refused::Address),
        "it says nobody"
    );
    let answer =
        |block: u32| mad(Message::Rtu(Ids { local_comm_id: 1, remote_comm_id: block << 22 }));
    assert_eq!(
        (s.route_far(0, &answer(3)), s.route_far(0, &answer(5))),
        (Ok(1), Err(Refused::Qpn))
    );
    assert_eq!(s.route_far(0, &answer(4)), Err(Refused::Policy));
    assert_eq!(
        s.route_far(0, &sent(Class::Ud, GSI_QPN, GSI_QPN, &[7; MAD_LEN])),
        Err(Refused::Address)
    );
    assert_eq!(
        s.route_far(0, &sent(Class::Ud, qpn(1), GSI_QPN, &[7; MAD_LEN])),
        Err(Refused::Source)
    );
}

mod outside;
