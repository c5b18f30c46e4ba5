//! Two connection managers under a virtual clock, over a network that loses, doubles and reorders;
//! and what a hostile peer may try.

mod class;
mod early;
mod ends;
mod messages;
mod order;
mod other_mads;
mod refused;
mod strangers;

use super::mad::{
    Dreq, Ids, IpHeader, Mad, Message, Mra, Rej, Rep, Req, SidrReq, IP_HEADER_LEN, MAD_LEN,
};
use super::*;
use crate::error::Error;
use crate::verbs::types::{mtu, qp_attr_mask, qp_state, qp_type};
use crate::wire::ip::gid_of_v4;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

const MS: u64 = 1_000_000;
const PORT: u16 = 7174;
/// Ids of each side.
const IDS: u32 = 64;

fn address(n: u8) -> PeerAddr {
    PeerAddr { gid: gid_of_v4([10, 0, 0, n]), port: 4791, ..PeerAddr::default() }
}

fn manager(n: u8, max_cm_ids: u32, seed: u64) -> Cm {
    let config = Config { max_cm_ids, seed, ..Config::default() }.resolve().unwrap();
    let mut size = Walk::size_query();
    Cm::carve(&mut size, &config).unwrap();
    let memory: &'static mut [u8] = Box::leak(vec![0u8; size.offset() + 256].into_boxed_slice());
    // SAFETY: leaked, and nobody else's.
    #[allow(unsafe_code)]
    let mut walk = unsafe { Walk::carve(memory.as_mut_ptr(), memory.len()).unwrap() };
    let mut cm = Cm::carve(&mut walk, &config).unwrap();
    cm.set_local(Local {
        gid: address(n).gid,
        guid: 0x0200_0000_0000_0000 | u64::from(n),
        path_mtu: mtu::MTU_1024,
        max_rd_atomic: 16,
        block: 100 * u16::from(n),
        ..Local::default()
    });
    cm
}

fn rc(qpn: u32, data: &[u8]) -> ConnParam<'_> {
    ConnParam {
        qpn,
        qp_type: qp_type::RC,
        responder_resources: 4,
        initiator_depth: u8::MAX,
        retry_count: 7,
        rnr_retry: 6,
        ack_timeout: 14,
        private_data: data,
        ..ConnParam::default()
    }
}

/// Two managers, and what is on its way between them.
struct World {
    cm: [Cm; 2],
    now: u64,
    flight: Vec<(u64, usize, [u8; MAD_LEN])>,
    random: u64,
    /// In percent.
    loss: u64,
    double: u64,
    /// Largest delay beyond 10 µs.
    jitter: u64,
    /// Messages sent by each.
    sent: [u32; 2],
    /// Somebody forges messages: answers to those name ids that nobody has.
    forged: bool,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            cm: [manager(1, IDS, seed), manager(2, IDS, !seed)],
            now: 1,
            flight: Vec::new(),
            random: seed | 1,
            loss: 0,
            double: 0,
            jitter: 0,
            sent: [0; 2],
            forged: false,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) % below.max(1)
    }

    /// Takes what both want to send.
    fn collect(&mut self) {
        for side in 0..2 {
            let mut mad = [0; MAD_LEN];
            while let Some(to) = self.cm[side].poll_transmit(&mut mad) {
                self.sent[side] += 1;
                if to.gid != address(2 - side as u8).gid || self.draw(100) < self.loss {
                    continue;
                }
                let copies = if self.draw(100) < self.double { 2 } else { 1 };
                for _ in 0..copies {
                    let at = self.now + 10_000 + self.draw(self.jitter + 1);
                    self.flight.push((at, 1 - side, mad));
                }
            }
        }
    }

    /// To the next delivery or timer; false: nothing will ever happen any more, or not before
    /// `until`.
    fn step(&mut self, until: u64) -> bool {
        self.collect();
        let due = self.flight.iter().map(|f| f.0);
        let timers = self.cm.iter().filter_map(|cm| cm.next_timeout());
        let Some(at) = due.chain(timers).min().filter(|&at| at <= until) else { return false };
        self.now = self.now.max(at);
        if let Some(k) = self.flight.iter().position(|f| f.0 <= self.now) {
            let (_, to, mad) = self.flight.remove(k);
            // Among several devices with one address it would have found its way.
            match Addressee::from_mad(&mad) {
                Addressee::Service { .. } | Addressee::Anyone => {}
                whose => assert!(
                    self.forged || self.cm[to].is_mine(whose) && !self.cm[1 - to].is_mine(whose)
                ),
            }
            self.cm[to].handle_mad(self.now, &address(2 - to as u8), &mad);
        } else {
            for cm in &mut self.cm {
                cm.handle_timeout(self.now);
            }
        }
        true
    }

    fn run(&mut self, for_ns: u64) {
        let until = self.now + for_ns;
        while self.step(until) {}
        self.now = until;
    }

    /// Runs until a side has an event.
    fn event(&mut self, side: usize) -> CmEvent {
        self.event_within(side, 100_000 * MS).expect("an event")
    }

    fn event_within(&mut self, side: usize, ns: u64) -> Option<CmEvent> {
        let until = self.now + ns;
        loop {
            if let Some(e) = self.cm[side].take_event() {
                return Some(e);
            }
            if !self.step(until) {
                return None;
            }
        }
    }

    fn listen(&mut self, side: usize, ps: u16) -> Handle {
        let id = self.cm[side].create(ps, 0).unwrap();
        assert_eq!(self.cm[side].bind(id, PORT), Ok(PORT));
        self.cm[side].listen(self.now, id, 0).unwrap();
        id
    }

    fn connect(&mut self, qpn: u32) -> Handle {
        let id = self.cm[0].create(port_space::TCP, 77).unwrap();
        self.cm[0].connect(self.now, id, &address(2), PORT, 0, &rc(qpn, b"hello")).unwrap();
        id
    }

    /// Both ends of an established connection.
    fn connected(&mut self, qpn: u32) -> (Handle, Handle) {
        let active = self.connect(qpn);
        let passive = self.event(1).id;
        self.cm[1].accept(self.now, passive, 0, &rc(qpn + 1, b"welcome")).unwrap();
        assert_eq!(self.event(0).event, cm_event::CONNECT_RESPONSE);
        self.cm[0].establish(active).unwrap();
        assert_eq!(self.event(1).event, cm_event::ESTABLISHED);
        (active, passive)
    }

    /// What is left once everything has run out.
    fn quiet(&mut self) {
        self.run(3_600_000 * MS);
        assert!(self.flight.is_empty());
        for cm in &mut self.cm {
            assert!(cm.next_timeout().is_none() && !cm.is_ready());
        }
    }
}

// Linux cma.c rdma_get_service_id
// Linux cm.c cm_req_handler
// Linux cm.c cm_rtu_handler
// IBTA 12.10.8
// Linux cm.c cm_init_qp_rtr_attr
// Linux cm.c cm_init_qp_rts_attr
#[test]
fn two_programs_connect_and_part() {
    let mut w = World::new(1);
    let listener = w.listen(1, port_space::TCP);
    let active = w.connect(0x11);
    let e = w.event(1);
    assert_eq!(
        (e.event, e.listener, e.qp_type),
        (cm_event::CONNECT_REQUEST, listener, qp_type::RC)
    );
    assert_eq!((e.remote_qpn, e.local_port, e.peer.dgid), (0x11, PORT, address(1).gid));
    assert_eq!(
        (e.responder_resources, e.initiator_depth),
        (16, 4),
        "what the peer wants, and what it serves"
    );
    assert_eq!(
        (e.private_data().len(), &e.private_data()[..6]),
        (CONNECT_DATA_MAX, &b"hello\0"[..])
    );
    let passive = e.id;
    w.cm[1]
        .accept(w.now, passive, 0, &ConnParam { responder_resources: 2, ..rc(0x22, b"welcome") })
        .unwrap();
    let (rtr, _) = w.cm[1].qp_attr(passive, qp_state::RTR).unwrap();
    let (rts, _) = w.cm[1].qp_attr(passive, qp_state::RTS).unwrap();

    let e = w.event(0);
    assert_eq!((e.event, e.id, e.context), (cm_event::CONNECT_RESPONSE, active, 77));
    assert_eq!((e.remote_qpn, &e.private_data()[..8]), (0x22, &b"welcome\0"[..]));
    let (a_rtr, m) = w.cm[0].qp_attr(active, qp_state::RTR).unwrap();
    let (a_rts, _) = w.cm[0].qp_attr(active, qp_state::RTS).unwrap();
    assert_eq!(
        (a_rtr.rq_psn, a_rts.sq_psn),
        (rts.sq_psn, rtr.rq_psn),
        "each expects what the other sends"
    );
    assert_eq!((a_rtr.path_mtu, rtr.path_mtu), (mtu::MTU_1024, mtu::MTU_1024));
    assert_eq!((a_rtr.max_dest_rd_atomic, rts.max_rd_atomic), (4, 4));
    assert_eq!((a_rts.max_rd_atomic, rtr.max_dest_rd_atomic), (2, 2));
    assert_eq!((rts.timeout, rts.retry_cnt, rts.rnr_retry, a_rts.rnr_retry), (14, 7, 6, 6));
    assert!(m & qp_attr_mask::MAX_DEST_RD_ATOMIC != 0 && rtr.ah.dgid == address(1).gid);

    w.cm[0].establish(active).unwrap();
    assert_eq!(w.event(1).event, cm_event::ESTABLISHED);
    w.cm[0].disconnect(w.now, active).unwrap();
    assert_eq!(w.event(1).event, cm_event::DISCONNECTED);
    assert_eq!(w.event(0).event, cm_event::DISCONNECTED);
    assert_eq!(w.event(0).event, cm_event::TIMEWAIT_EXIT);
    assert_eq!(w.event(1).event, cm_event::TIMEWAIT_EXIT);
    // REQ, RTU, DREQ; REP, DREP: not one message more than needed.
    assert_eq!(w.sent, [3, 2]);
    w.cm[0].destroy(w.now, active).unwrap();
    w.cm[1].destroy(w.now, passive).unwrap();
    w.cm[1].destroy(w.now, listener).unwrap();
    w.quiet();
    assert_eq!(
        (w.cm[0].live(), w.cm[1].live(), w.cm[0].pool.live(), w.cm[1].pool.live()),
        (0, 0, 0, 0)
    );
}

// IBTA 12.6.7.2
// Linux cm.c cm_rej_handler
#[test]
fn nobody_listens_and_nobody_wants() {
    let mut w = World::new(2);
    w.connect(0x11);
    let e = w.event(0);
    assert_eq!((e.event, e.status), (cm_event::REJECTED, i32::from(reject::INVALID_SERVICE_ID)));
    w.listen(1, port_space::TCP);
    w.connect(0x11);
    let passive = w.event(1).id;
    w.cm[1].reject(w.now, passive, b"no, thank you").unwrap();
    let e = w.event(0);
    assert_eq!((e.event, e.status), (cm_event::REJECTED, i32::from(reject::CONSUMER)));
    assert_eq!(
        (e.private_data().len(), &e.private_data()[..13]),
        (REJECT_DATA_MAX, &b"no, thank you"[..])
    );
    // An answer may be refused as well.
    let active = w.connect(0x12);
    let passive = w.event(1).id;
    w.cm[1].accept(w.now, passive, 0, &rc(9, b"")).unwrap();
    w.event(0);
    w.cm[0].reject(w.now, active, b"changed my mind").unwrap();
    let e = w.event(1);
    assert_eq!((e.event, e.status), (cm_event::REJECTED, i32::from(reject::CONSUMER)));
    assert_eq!(w.cm[1].accept(w.now, passive, 0, &rc(9, b"")), Err(Error::Invalid));
}

#[test]
fn between_two_listeners_nobody_is_refused() {
    let mut w = World::new(13);
    let first = w.listen(1, port_space::TCP);
    w.cm[1].destroy(w.now, first).unwrap();
    let active = w.connect(0x11);
    w.run(100 * MS);
    assert!(!w.cm[0].has_events(), "not refused yet");
    w.listen(1, port_space::TCP);
    assert_eq!(w.event(1).event, cm_event::CONNECT_REQUEST);
    w.cm[0].destroy(w.now, active).unwrap();
    // Where no other listener comes, the request is refused when it is repeated.
    let mut w = World::new(14);
    let only = w.listen(1, port_space::TCP);
    w.cm[1].destroy(w.now, only).unwrap();
    w.connect(0x12);
    let start = w.now;
    let e = w.event(0);
    assert_eq!((e.event, e.status), (cm_event::REJECTED, i32::from(reject::INVALID_SERVICE_ID)));
    assert!(w.now - start <= LISTENER_GRACE_NS + timeout_ns(RESPONSE_TIMEOUT));
}

// Linux cm.c cm_process_send_error
#[test]
fn a_silent_peer_is_unreachable_after_all_retries() {
    let mut w = World::new(3);
    w.loss = 100;
    let active = w.connect(0x11);
    let start = w.now;
    let e = w.event(0);
    assert_eq!((e.event, e.status, e.id), (cm_event::UNREACHABLE, -110, active));
    let (took, one) = (w.now - start, timeout_ns(RESPONSE_TIMEOUT));
    assert!(took >= 16 * one && took <= 17 * one, "{took}");
    assert_eq!(w.cm[0].counters().retries, 15);
    w.quiet();
    assert_eq!(w.sent[0], 17, "16 REQs, and the REJ that says that nobody waits any more");
}

// Linux cm.c cm_mra_handler
#[test]
fn a_program_that_takes_its_time_is_waited_for() {
    let mut w = World::new(4);
    w.listen(1, port_space::TCP);
    let active = w.connect(0x11);
    let passive = w.event(1).id;
    // Without MRAs the active side would give up after 8.6 s.
    w.run(60_000 * MS);
    assert!(w.sent[0] <= 3 && w.sent[1] >= 1, "an MRA holds the REQs back: {:?}", w.sent);
    w.cm[1].accept(w.now, passive, 0, &rc(0x22, b"")).unwrap();
    assert_eq!(w.event(0).event, cm_event::CONNECT_RESPONSE);
    // The other program, too.
    w.run(60_000 * MS);
    w.cm[0].establish(active).unwrap();
    assert_eq!(w.event(1).event, cm_event::ESTABLISHED);
}

// Linux cm.c cm_destroy_id
#[test]
fn who_gives_up_says_so() {
    let mut w = World::new(5);
    w.listen(1, port_space::TCP);
    let active = w.connect(0x11);
    let passive = w.event(1).id;
    w.cm[0].destroy(w.now, active).unwrap();
    let e = w.event(1);
    assert_eq!(
        (e.event, e.status, e.id),
        (cm_event::REJECTED, i32::from(reject::TIMEOUT), passive)
    );
    // One that the program has not heard of goes without a sound.
    let active = w.connect(0x12);
    w.run(MS);
    assert!(w.cm[1].has_events());
    w.cm[0].destroy(w.now, active).unwrap();
    w.run(MS);
    assert!(!w.cm[1].has_events() && w.cm[1].take_event().is_none());
    w.cm[1].destroy(w.now, passive).unwrap();
    w.quiet();
    assert_eq!((w.cm[0].pool.live(), w.cm[1].pool.live()), (0, 1));
}

// Linux cm.c cm_sidr_req_handler
// Linux cm.c cm_sidr_rep_handler
#[test]
fn datagram_services_are_resolved() {
    let mut w = World::new(6);
    w.listen(1, port_space::UDP);
    let ud = |qpn, data| ConnParam {
        qpn,
        qp_type: qp_type::UD,
        qkey: 0x1111,
        private_data: data,
        ..ConnParam::default()
    };
    let active = w.cm[0].create(port_space::UDP, 0).unwrap();
    w.cm[0].connect(w.now, active, &address(2), PORT, 0, &ud(5, b"who?")).unwrap();
    let e = w.event(1);
    assert_eq!(
        (e.event, e.qp_type, &e.private_data()[..5]),
        (cm_event::CONNECT_REQUEST, qp_type::UD, &b"who?\0"[..])
    );
    assert_eq!(e.private_data().len(), UD_CONNECT_DATA_MAX);
    w.cm[1].accept(w.now, e.id, 0, &ud(0x99, b"me")).unwrap();
    let e = w.event(0);
    assert_eq!(
        (e.event, e.remote_qpn, e.qkey, &e.private_data()[..3]),
        (cm_event::ESTABLISHED, 0x99, 0x1111, &b"me\0"[..])
    );
    // Refused, and nobody there.
    for listens in [true, false] {
        let active = w.cm[0].create(port_space::UDP, 0).unwrap();
        let port = if listens { PORT } else { PORT + 1 };
        w.cm[0].connect(w.now, active, &address(2), port, 0, &ud(5, b"")).unwrap();
        if listens {
            let request = w.event(1).id;
            w.cm[1].reject(w.now, request, b"").unwrap();
        }
        let e = w.event(0);
        let status = if listens { sidr_status::REJECTED } else { sidr_status::UNSUPPORTED };
        assert_eq!((e.event, e.status, e.remote_qpn), (cm_event::REJECTED, i32::from(status), 0));
    }
}

// IBTA 12.10.8
#[test]
fn a_bad_network_changes_nothing() {
    for seed in 0..400 {
        let mut w = World::new(seed * 7 + 1);
        (w.loss, w.double, w.jitter) = (20, 30, 2_000 * MS);
        let listener = w.listen(1, port_space::TCP);
        let mut ids = Vec::new();
        for k in 0..3 {
            let active = w.connect(0x100 + k);
            let request = w.event(1);
            assert_eq!(request.event, cm_event::CONNECT_REQUEST, "seed {seed}");
            w.cm[1].accept(w.now, request.id, 0, &rc(0x200 + k, b"")).unwrap();
            let e = w.event(0);
            assert_eq!(
                (e.event, e.id, e.remote_qpn),
                (cm_event::CONNECT_RESPONSE, active, 0x200 + k),
                "seed {seed}"
            );
            w.cm[0].establish(active).unwrap();
            let e = w.event(1);
            assert_eq!((e.event, e.id), (cm_event::ESTABLISHED, request.id), "seed {seed}");
            ids.push((active, request.id));
        }
        // All of them end, some from both sides at once.
        for (k, &(active, passive)) in ids.iter().enumerate() {
            w.cm[k % 2].disconnect(w.now, [active, passive][k % 2]).unwrap();
            if k == 2 {
                w.cm[1].disconnect(w.now, passive).unwrap();
            }
        }
        for side in 0..2 {
            let mut seen = [0; 3];
            while seen.iter().sum::<i32>() < 6 {
                let e = w.event(side);
                let k = ids.iter().position(|p| [p.0, p.1][side] == e.id).unwrap();
                let expected = [cm_event::DISCONNECTED, cm_event::TIMEWAIT_EXIT][seen[k] as usize];
                assert_eq!(e.event, expected, "seed {seed}");
                seen[k] += 1;
            }
        }
        for (active, passive) in ids {
            w.cm[0].destroy(w.now, active).unwrap();
            w.cm[1].destroy(w.now, passive).unwrap();
        }
        w.cm[1].destroy(w.now, listener).unwrap();
        w.quiet();
        assert_eq!((w.cm[0].pool.live(), w.cm[1].pool.live()), (0, 0), "seed {seed}");
    }
}

#[test]
fn an_id_may_be_destroyed_at_any_moment() {
    // Cuts a whole life at every step, on either side.
    for cut in 0..14 {
        for side in 0..2 {
            let mut w = World::new(cut * 2 + side as u64 + 1);
            let listener = w.listen(1, port_space::TCP);
            let active = w.connect(0x11);
            let mut passive = None;
            for _ in 0..cut {
                w.step(u64::MAX);
                while let Some(e) = w.cm[1].take_event() {
                    if e.event == cm_event::CONNECT_REQUEST {
                        passive = Some(e.id);
                        w.cm[1].accept(w.now, e.id, 0, &rc(0x22, b"")).unwrap();
                    }
                }
                while let Some(e) = w.cm[0].take_event() {
                    if e.event == cm_event::CONNECT_RESPONSE {
                        w.cm[0].establish(active).unwrap();
                        w.cm[0].disconnect(w.now, active).unwrap();
                    }
                }
            }
            let mine = if side == 0 { Some(active) } else { passive };
            if let Some(id) = mine {
                w.cm[side].destroy(w.now, id).unwrap();
                assert_eq!(w.cm[side].destroy(w.now, id), Err(Error::StaleHandle));
                w.run(60_000 * MS);
            }
            w.cm[1].destroy(w.now, listener).unwrap();
            for (side, id) in [(0, Some(active)), (1, passive)] {
                if let Some(id) = id {
                    let _ = w.cm[side].destroy(w.now, id);
                }
            }
            w.quiet();
            assert_eq!((w.cm[0].pool.live(), w.cm[1].pool.live()), (0, 0), "cut {cut} side {side}");
        }
    }
}

/// A REQ as a peer at address 1 would send it.
fn req(comm_id: u32, qpn: u32) -> (Req<'static>, [u8; 92]) {
    let mut data = [0; 92];
    let header = IpHeader { src_port: 9, src: address(1).gid, dst: address(2).gid };
    header.emit(data.first_chunk_mut::<IP_HEADER_LEN>().unwrap());
    let req = Req {
        local_comm_id: comm_id,
        service_id: u64::from(port_space::TCP) << 16 | u64::from(PORT),
        local_ca_guid: 0x0200_0000_0000_0001,
        local_qpn: qpn,
        responder_resources: 1,
        initiator_depth: 1,
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        pkey: 0xffff,
        path_mtu: 3,
        max_cm_retries: 15,
        local_gid: address(1).gid,
        remote_gid: address(2).gid,
        local_ack_timeout: 19,
        ..Req::default()
    };
    (req, data)
}

/// The single answer to a message, if any.
fn answer(cm: &mut Cm, from: &PeerAddr, message: Message<'_>) -> Option<[u8; MAD_LEN]> {
    let mut mad = [0; MAD_LEN];
    Mad { tid: 5, message }.emit(&mut mad);
    cm.handle_mad(1, from, &mad);
    let to = cm.poll_transmit(&mut mad)?;
    assert_eq!(to.gid, from.gid, "answers go to the sender");
    assert!(!cm.is_ready(), "one message in, one out");
    Some(mad)
}

fn reason(mad: Option<[u8; MAD_LEN]>) -> u16 {
    match Mad::parse(&mad.expect("an answer")).unwrap().message {
        Message::Rej(r) => r.reason,
        other => panic!("{other:?}"),
    }
}

// Linux cma.c rdma_get_service_id
// IBTA 12.6.7.2
#[test]
fn requests_that_cannot_be_are_refused_with_their_reason() {
    let mut w = World::new(7);
    w.listen(1, port_space::TCP);
    let cm = &mut w.cm[1];
    let (good, data) = req(0x1234, 0x11);
    let mut ask = |r: Req<'static>| {
        reason(answer(cm, &address(1), Message::Req(Req { private_data: &data, ..r })))
    };
    assert_eq!(ask(Req { service_id: good.service_id + 1, ..good }), reject::INVALID_SERVICE_ID);
    assert_eq!(
        ask(Req { service_id: 0x0111_0000 | u64::from(PORT), ..good }),
        reject::INVALID_SERVICE_ID
    );
    assert_eq!(ask(Req { service_id: u64::MAX, ..good }), reject::INVALID_SERVICE_ID);
    assert_eq!(
        ask(Req { local_gid: address(9).gid, ..good }),
        reject::INVALID_GID,
        "a third party's"
    );
    assert_eq!(ask(Req { remote_gid: address(9).gid, ..good }), reject::INVALID_GID);
    assert_eq!(ask(Req { transport: 2, ..good }), reject::INVALID_TRANSPORT);
    assert_eq!(ask(Req { path_mtu: 5, ..good }), reject::INVALID_MTU);
    assert_eq!(ask(Req { path_mtu: 0, ..good }), reject::INVALID_MTU);
    assert_eq!(ask(Req { pkey: 0x1234, ..good }), reject::UNSUPPORTED);
    assert_eq!(ask(Req { local_qpn: 1, ..good }), reject::UNSUPPORTED);
    assert!(!w.cm[1].has_events() && w.cm[1].pool.live() == 1);
}

#[test]
fn a_flood_of_requests_fills_its_own_backlog_only() {
    let mut w = World::new(8);
    w.listen(1, port_space::TCP);
    for n in 0..10_000u32 {
        let (r, data) = req(n + 1, n + 2);
        let none =
            answer(&mut w.cm[1], &address(1), Message::Req(Req { private_data: &data, ..r }));
        assert!(none.is_none());
    }
    // A quarter of all ids is the backlog.
    assert_eq!(
        (w.cm[1].pool.live(), w.cm[1].counters().dropped),
        (1 + IDS as usize / 4, 10_000 - u64::from(IDS) / 4)
    );
    let own = w.cm[1].create(port_space::TCP, 0).unwrap();
    w.cm[1].destroy(w.now, own).unwrap();
    // Answers to nobody in particular are bounded too, and do not wait for ever.
    for n in 0..1_000 {
        let mut mad = [0; MAD_LEN];
        Mad {
            tid: 5,
            message: Message::Dreq(Dreq { local_comm_id: n, remote_comm_id: 7, remote_qpn: 9 }),
        }
        .emit(&mut mad);
        w.cm[1].handle_mad(1, &address(1), &mad);
    }
    let mut mad = [0; MAD_LEN];
    let mut n = 0;
    while w.cm[1].poll_transmit(&mut mad).is_some() {
        n += 1;
    }
    assert_eq!(n, REPLIES);
}

// Linux cm.c cm_acquire_id
#[test]
fn strangers_cannot_touch_a_connection() {
    let mut w = World::new(9);
    w.listen(1, port_space::TCP);
    let (active, passive) = w.connected(0x11);
    let i = w.cm[1].pool.check(passive).unwrap();
    let (local, remote) = (w.cm[1].ids[i].local_id, w.cm[1].ids[i].remote_id);
    let all = |l: u32, r: u32| {
        [
            Message::Dreq(Dreq { local_comm_id: r, remote_comm_id: l, remote_qpn: 0x12 }),
            Message::Drep(Ids { local_comm_id: r, remote_comm_id: l }),
            Message::Rej(Rej { local_comm_id: r, remote_comm_id: l, reason: 4, ..Rej::default() }),
            Message::Rej(Rej { local_comm_id: r, remote_comm_id: 0, reason: 4, ..Rej::default() }),
            Message::Rep(Rep {
                local_comm_id: r,
                remote_comm_id: l,
                local_qpn: 0x666,
                ..Rep::default()
            }),
            Message::Mra(Mra {
                local_comm_id: r,
                remote_comm_id: l,
                message: 1,
                service_timeout: 31,
            }),
            Message::Rtu(Ids { local_comm_id: r, remote_comm_id: l }),
        ]
    };
    // The right ids from the wrong address, and wrong ids from the right one.
    for (from, l, r) in [(9, local, remote), (1, local ^ 0x10000, remote), (1, local, remote ^ 1)] {
        for message in all(l, r) {
            let _ = answer(&mut w.cm[1], &address(from), message);
            assert_eq!(w.cm[1].state(passive), Ok(State::Established), "{message:?} from {from}");
        }
    }
    // The right ids, but not this QP.
    let other =
        Message::Dreq(Dreq { local_comm_id: remote, remote_comm_id: local, remote_qpn: 0x13 });
    assert!(answer(&mut w.cm[1], &address(1), other).is_none());
    assert!(!w.cm[1].has_events());
    assert_eq!(
        (w.cm[0].state(active), w.cm[1].state(passive)),
        (Ok(State::Established), Ok(State::Established))
    );
}

// IBTA 12.9.8.3.1
#[test]
fn a_peer_that_restarted_frees_its_old_connection() {
    let mut w = World::new(10);
    w.listen(1, port_space::TCP);
    let (_, passive) = w.connected(0x11);
    // It comes back with the same QPN and knows nothing.
    w.cm[0] = manager(1, IDS, 99);
    let active = w.connect(0x11);
    let e = w.event(0);
    assert_eq!((e.event, e.status), (cm_event::REJECTED, i32::from(reject::STALE_CONNECTION)));
    w.cm[0].destroy(w.now, active).unwrap();
    let e = w.event(1);
    assert_eq!((e.event, e.id), (cm_event::DISCONNECTED, passive));
    // Asked again, it is welcome.
    w.connect(0x11);
    assert_eq!(w.event(1).event, cm_event::CONNECT_REQUEST);
}

// Linux cm.c cm_mra_handler
#[test]
fn one_mra_after_another_does_not_hold_for_ever() {
    let mut w = World::new(11);
    let active = w.connect(0x11);
    let mut mad = [0; MAD_LEN];
    w.cm[0].poll_transmit(&mut mad).unwrap();
    let Message::Req(m) = Mad::parse(&mad).unwrap().message else { panic!() };
    let mra = Message::Mra(Mra {
        local_comm_id: 3,
        remote_comm_id: m.local_comm_id,
        message: 0,
        service_timeout: 31,
    });
    Mad { tid: 1, message: mra }.emit(&mut mad);
    let most = 16 * (timeout_ns(SERVICE_TIMEOUT) + 16 * timeout_ns(RESPONSE_TIMEOUT));
    let mut now = 0;
    while !w.cm[0].has_events() {
        now += 1000 * MS;
        assert!(now < most, "still waiting");
        w.cm[0].handle_mad(now, &address(2), &mad);
        w.cm[0].handle_timeout(now);
        while w.cm[0].poll_transmit(&mut [0; MAD_LEN]).is_some() {}
    }
    let e = w.cm[0].take_event().unwrap();
    assert_eq!((e.event, e.id), (cm_event::UNREACHABLE, active));
}

#[test]
fn any_bytes_are_survived_in_any_state() {
    let mut w = World::new(12);
    w.forged = true;
    (w.double, w.jitter) = (50, 100 * MS);
    w.listen(1, port_space::TCP);
    w.listen(1, port_space::UDP);
    for round in 0..3_000u32 {
        if round % 16 == 0 {
            if let Ok(id) = w.cm[0].create(port_space::TCP, 0) {
                let _ = w.cm[0].connect(w.now, id, &address(2), PORT, 0, &rc(round + 2, b"x"));
            }
        }
        w.collect();
        // What is on its way is bent a little, or a lot.
        if let Some(k) = w.flight.len().checked_sub(1) {
            for _ in 0..w.draw(4) {
                let (at, bit) = (w.draw(MAD_LEN as u64) as usize, w.draw(8));
                w.flight[k].2[at] ^= 1 << bit;
            }
        }
        let mut garbage = [0; MAD_LEN];
        for b in &mut garbage {
            *b = w.draw(256) as u8;
        }
        garbage[..4].copy_from_slice(&[1, 7, 2, 3]);
        garbage[16..18].copy_from_slice(&(0x10 + w.draw(10) as u16).to_be_bytes());
        let (side, from, cut) = (w.draw(2) as usize, w.draw(3) as u8, w.draw(300) as usize);
        w.cm[side].handle_mad(w.now, &address(from), garbage.get(..cut).unwrap_or(&garbage));
        for _ in 0..4 {
            w.collect();
            w.flight.truncate(64);
            w.step(u64::MAX);
        }
        for side in 0..2 {
            while let Some(e) = w.cm[side].take_event() {
                let _ = match (e.event, w.draw(4)) {
                    (_, 0) => w.cm[side].destroy(w.now, e.id),
                    (cm_event::CONNECT_REQUEST, 1) => w.cm[side].reject(w.now, e.id, b""),
                    (cm_event::CONNECT_REQUEST, _) => {
                        w.cm[side].accept(w.now, e.id, 0, &rc(round + 3, b""))
                    }
                    (cm_event::CONNECT_RESPONSE, _) => w.cm[side].establish(e.id),
                    (cm_event::ESTABLISHED, _) => w.cm[side].disconnect(w.now, e.id),
                    _ => w.cm[side].destroy(w.now, e.id),
                };
            }
            assert!(w.cm[side].pool.live() <= IDS as usize);
        }
    }
    assert!(w.cm[0].counters().rcvd > 1000 && w.cm[1].counters().rcvd > 1000);
}

#[test]
fn ports_are_given_once() {
    let mut w = World::new(13);
    let a = w.listen(1, port_space::TCP);
    let cm = &mut w.cm[1];
    let b = cm.create(port_space::TCP, 0).unwrap();
    assert_eq!(cm.bind(b, PORT), Err(Error::AddressInUse));
    assert_eq!(cm.listen(0, b, 0), Err(Error::Invalid), "no port");
    let port = cm.bind(b, 0).unwrap();
    assert!(port != 0 && port != PORT);
    assert_eq!(cm.bind(b, 5), Err(Error::Invalid), "it has one");
    let u = cm.create(port_space::UDP, 0).unwrap();
    assert_eq!(cm.bind(u, PORT), Ok(PORT), "another space");
    cm.destroy(1, a).unwrap();
    let c = cm.create(port_space::TCP, 0).unwrap();
    assert_eq!(cm.bind(c, PORT), Ok(PORT));
    assert_eq!(cm.create(0x9999, 0), Err(Error::Invalid));
    for _ in 0..IDS - 3 {
        cm.create(port_space::TCP, 0).unwrap();
    }
    assert_eq!(cm.create(port_space::TCP, 0), Err(Error::NoMemory));
}

#[test]
fn parameters_are_checked() {
    let mut w = World::new(14);
    let cm = &mut w.cm[0];
    let id = cm.create(port_space::TCP, 0).unwrap();
    let long = [0; CONNECT_DATA_MAX + 1];
    let good = rc(5, b"");
    for (p, error) in [
        (ConnParam { qpn: 1, ..good }, Error::Invalid),
        (ConnParam { qpn: 1 << 24, ..good }, Error::Invalid),
        (ConnParam { qp_type: qp_type::UD, ..good }, Error::Invalid),
        (ConnParam { psn: Some(1 << 24), ..good }, Error::Invalid),
        (ConnParam { retry_count: 8, ..good }, Error::Invalid),
        (ConnParam { rnr_retry: 8, ..good }, Error::Invalid),
        (ConnParam { ack_timeout: 32, ..good }, Error::Invalid),
        (ConnParam { path_mtu: mtu::MTU_2048, ..good }, Error::Invalid),
        (ConnParam { private_data: &long, ..good }, Error::MessageSize),
    ] {
        assert_eq!(cm.connect(1, id, &address(2), PORT, 0, &p), Err(error));
    }
    assert_eq!(cm.connect(1, id, &address(2), 0, 0, &good), Err(Error::Invalid));
    assert_eq!(cm.connect(1, id, &address(2), PORT, 0, &good), Ok(()));
    assert_eq!(cm.connect(1, id, &address(2), PORT, 0, &good), Err(Error::Invalid), "once");
    assert_eq!(cm.disconnect(1, id), Err(Error::Invalid), "not connected");
    assert_eq!(cm.establish(id), Err(Error::Invalid));
    assert_eq!(
        cm.qp_attr(id, qp_state::RTR).map(|_| ()),
        Err(Error::Invalid),
        "the peer is not known yet"
    );
    assert!(cm.qp_attr(id, qp_state::INIT).is_ok());
}

#[test]
fn an_id_stays_small() {
    assert!(size_of::<Id>() <= 600, "{}", size_of::<Id>());
}

#[test]
fn addresses_of_requests_are_replaced_and_nothing_else() {
    use super::mad::{IpHeader, Mad, Message, Rep, Req, SidrReq, IP_HEADER_LEN, MAD_LEN};
    use crate::wire::ip::gid_of_v4;
    let [inside, host, peer] = [1, 2, 3].map(|n| gid_of_v4([10, 0, 0, n]));
    let mut header = [0; IP_HEADER_LEN];
    IpHeader { src_port: 7, src: inside, dst: peer }.emit(&mut header);
    let emitted = |message| {
        let mut mad = [0; MAD_LEN];
        Mad { tid: 9, message }.emit(&mut mad);
        mad
    };
    let request = |gid, header| {
        emitted(Message::Req(Req {
            service_id: 5,
            local_gid: gid,
            remote_gid: peer,
            private_data: header,
            ..Req::default()
        }))
    };
    let mut mad = request(inside, &header);
    super::readdress(&mut mad, &inside, &host);
    let mut replaced = header;
    replaced[16..20].copy_from_slice(&[10, 0, 0, 2]);
    assert_eq!(mad, request(host, &replaced));
    super::readdress(&mut mad, &host, &inside);
    assert_eq!(mad, request(inside, &header), "and back");
    let mut mad =
        emitted(Message::SidrReq(SidrReq { private_data: &header, ..Default::default() }));
    super::readdress(&mut mad, &inside, &host);
    let data = &replaced;
    assert_eq!(
        mad,
        emitted(Message::SidrReq(SidrReq { private_data: data, ..Default::default() }))
    );
    // Other messages, and bytes that are none, stay as they are.
    let mut rep = emitted(Message::Rep(Rep { private_data: &header, ..Rep::default() }));
    let before = rep;
    super::readdress(&mut rep, &inside, &host);
    assert_eq!(rep, before);
    for len in 0..MAD_LEN {
        let mut cut = request(inside, &header)[..len].to_vec();
        let before = cut.clone();
        super::readdress(&mut cut, &inside, &host);
        assert_eq!(cut, before);
    }
}
