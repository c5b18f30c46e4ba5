//! Peers that never show that they receive: what they may occupy, what their messages draw, and who
//! gets through all the same.

use super::*;
use crate::cm::admit::{Bounds, FAIR_NS};
use std::collections::{BTreeMap, HashSet};

/// An address that answers nobody; none of the world's own.
fn forged(n: u32) -> PeerAddr {
    let [_, a, b, c] = n.to_be_bytes();
    PeerAddr { gid: gid_of_v4([11, a, b, c]), port: 4791, ..PeerAddr::default() }
}

/// A REQ that says that it comes from an address, and a GUID of that address.
fn req_of(from: &PeerAddr, comm_id: u32, qpn: u32) -> [u8; MAD_LEN] {
    let (mut r, mut data) = req(comm_id, qpn);
    let header = IpHeader { src_port: 9, src: from.gid, dst: address(2).gid };
    header.emit(data.first_chunk_mut::<IP_HEADER_LEN>().unwrap());
    r.local_gid = from.gid;
    r.local_ca_guid =
        0x0200_0000_0000_0000 | u64::from(from.gid[15]) << 8 | u64::from(from.gid[14]);
    let mut mad = [0; MAD_LEN];
    Mad { tid: comm_id.into(), message: Message::Req(Req { private_data: &data, ..r }) }
        .emit(&mut mad);
    mad
}

/// Programs on both sides, and strangers beside them: the program of side 1 accepts everything and
/// lets go of what ends, that of side 0 connects, and gives up nothing.
struct Siege {
    w: World,
    /// Connections of side 0, and whether they stand there.
    wanted: BTreeMap<Handle, bool>,
    /// Connections of side 1 that stand with side 0.
    served: HashSet<Handle>,
    /// Most ids of side 1 that were accepted and not confirmed at once.
    most: u32,
    accepted: u32,
    next: u32,
}

impl Siege {
    fn new(seed: u64) -> Siege {
        let mut w = World::new(seed);
        w.forged = true;
        w.listen(1, port_space::TCP);
        let none = (BTreeMap::new(), HashSet::new());
        Siege { w, wanted: none.0, served: none.1, most: 0, accepted: 0, next: 0 }
    }

    fn forge(&mut self, from: &PeerAddr) {
        self.next += 1;
        let mad = req_of(from, 0x5000_0000 + self.next, 0x1000 + self.next);
        self.w.cm[1].handle_mad(self.w.now, from, &mad);
    }

    fn connect(&mut self, qpn: u32) {
        let id = self.w.connect(qpn);
        self.wanted.insert(id, false);
    }

    fn programs(&mut self) {
        while let Some(e) = self.w.cm[1].take_event() {
            match e.event {
                cm_event::CONNECT_REQUEST => {
                    self.accepted += 1;
                    self.w.cm[1].accept(self.w.now, e.id, 0, &rc(e.remote_qpn + 1, b"")).unwrap();
                    let unconfirmed = self.w.cm[1].half_open.iter().count() as u32;
                    self.most = self.most.max(unconfirmed);
                }
                cm_event::ESTABLISHED => {
                    assert_eq!(e.peer.dgid, address(1).gid, "a stranger");
                    self.served.insert(e.id);
                }
                _ => {
                    self.served.remove(&e.id);
                    self.w.cm[1].destroy(self.w.now, e.id).unwrap();
                }
            }
        }
        while let Some(e) = self.w.cm[0].take_event() {
            assert_eq!(e.event, cm_event::CONNECT_RESPONSE, "{e:?} at {}", self.w.now);
            self.w.cm[0].establish(e.id).unwrap();
            self.wanted.insert(e.id, true);
        }
    }

    /// What comes in a millisecond from addresses that are new each time, at any moment of it.
    fn flood(&mut self, rate: u64) {
        let mut left = rate;
        for _ in 0..rate {
            let step = self.w.draw(MS / left.max(1));
            left -= 1;
            self.w.run(step);
            let from = forged(self.next);
            self.forge(&from);
        }
    }

    /// A millisecond, in steps in which the programs have their turns.
    fn pass(&mut self) {
        for _ in 0..4 {
            self.programs();
            self.w.run(MS / 4);
        }
        self.programs();
    }

    fn all_stand(&self) -> bool {
        self.wanted.values().all(|&stands| stands)
    }
}

fn bounds() -> Bounds {
    manager(9, IDS, 1).bounds
}

#[test]
fn one_request_draws_five_answers_and_a_goodbye() {
    // Whatever time its sender asks for, and whether the program accepts it or ends it.
    for (code, disconnects) in [(1, false), (17, false), (20, false), (31, false), (17, true)] {
        let mut w = World::new(1);
        w.listen(1, port_space::TCP);
        let from = forged(1);
        let (r, mut data) = req(7, 0x99);
        let header = IpHeader { src_port: 9, src: from.gid, dst: address(2).gid };
        header.emit(data.first_chunk_mut::<IP_HEADER_LEN>().unwrap());
        let r =
            Req { local_gid: from.gid, local_cm_response_timeout: code, private_data: &data, ..r };
        assert!(answer(&mut w.cm[1], &from, Message::Req(r)).is_none());
        let e = w.event(1);
        w.cm[1].accept(w.now, e.id, 0, &rc(5, b"")).unwrap();
        if disconnects {
            w.run(MS);
            w.cm[1].disconnect(w.now, e.id).unwrap();
        }
        let begin = w.now;
        let lost = w.event_within(1, 20_000 * MS).expect("an end");
        let expected = if disconnects { cm_event::DISCONNECTED } else { cm_event::UNREACHABLE };
        assert_eq!((lost.event, lost.id), (expected, e.id), "code {code}");
        assert!(w.now - begin <= 15 * timeout_ns(RESPONSE_TIMEOUT + 1) + MS, "code {code}");
        w.cm[1].destroy(w.now, e.id).unwrap();
        w.quiet();
        assert_eq!(
            w.sent,
            [0, 6],
            "code {code}: one REP, four copies, and a REJ; or one REP and five DREQs"
        );
        assert_eq!((w.cm[1].guests, w.cm[1].pool.live()), (0, 1));
    }
}

#[test]
fn requests_from_forged_addresses_keep_nobody_out() {
    // A thousand a second, and four.
    for rate in [1, 4] {
        let mut s = Siege::new(rate);
        let mut own = Vec::new();
        for ms in 0..3_000 {
            s.flood(rate);
            if ms % 300 == 100 {
                s.connect(0x100 + ms as u32);
            }
            s.pass();
            // The table of the program is its own meanwhile.
            if ms == 1_500 {
                let free = IDS - 1 - s.served.len() as u32;
                own.extend((0..free - 8).map(|_| s.w.cm[1].create(port_space::TCP, 0).unwrap()));
            }
        }
        for id in own {
            s.w.cm[1].destroy(s.w.now, id).unwrap();
        }
        // Who has not got through yet asks on, 16 times in all, under the same flood.
        for _ in 0..9_000 {
            s.flood(rate);
            s.pass();
            if s.all_stand() {
                break;
            }
        }
        assert!(s.all_stand() && s.wanted.len() == 10, "rate {rate}: {:?}", s.wanted);
        assert_eq!(s.served.len(), 10);
        assert!(s.most <= bounds().half_open, "{}", s.most);
        assert!(s.w.cm[1].counters().evicted > 1_000 && s.w.cm[1].guests <= bounds().guests);
    }
}

#[test]
fn a_peer_that_is_known_takes_its_place_at_once() {
    let mut s = Siege::new(3);
    s.connect(0x100);
    s.pass();
    assert!(s.all_stand());
    for ms in 0..1_000 {
        s.flood(5);
        if ms % 50 == 49 {
            s.connect(0x200 + ms);
            s.pass();
            assert!(s.all_stand(), "at {ms} ms: {:?}", s.wanted);
        } else {
            s.pass();
        }
    }
    assert_eq!(s.served.len(), 21);
    // Not for ever.
    s.w.now += 3_600_000 * MS;
    assert!(!s.w.cm[1].is_known(s.w.now, &address(1).gid));
}

#[test]
fn requests_from_one_address_keep_nobody_else_out() {
    let mut s = Siege::new(4);
    let flood = forged(77);
    for ms in 0..2_000 {
        (0..3).for_each(|_| s.forge(&flood));
        if ms % 200 == 50 {
            s.connect(0x100 + ms);
            s.pass();
            assert!(s.all_stand(), "at {ms} ms, at the first try: {:?}", s.wanted);
        } else {
            s.pass();
        }
        assert!(
            s.w.cm[1].load_of(&flood.gid) <= bounds().half_open_of_source(),
            "more than its share"
        );
    }
    assert_eq!(s.served.len(), 10);
}

#[test]
fn requests_in_the_name_of_a_peer_do_not_keep_it_out() {
    let mut s = Siege::new(5);
    s.connect(0x100);
    s.pass();
    for ms in 0..2_000u32 {
        s.forge(&address(1));
        if ms % 200 == 50 {
            s.connect(0x100 + ms);
        }
        s.pass();
    }
    for _ in 0..9_000 {
        if s.all_stand() {
            break;
        }
        s.forge(&address(1));
        s.pass();
    }
    assert!(s.all_stand() && s.wanted.len() == 11, "{:?}", s.wanted);
}

#[test]
fn many_at_once_who_take_their_time_are_not_given_up() {
    let mut s = Siege::new(6);
    // An exchange takes up to 80 ms, and all who ask are new.
    s.w.jitter = 40 * MS;
    let n = bounds().half_open - 4;
    (0..n).for_each(|k| s.connect(0x100 + k));
    for _ in 0..9_000 {
        s.pass();
        if s.all_stand() && s.served.len() == n as usize {
            break;
        }
    }
    // (That none was given up is what the program of side 0 asserts.)
    assert_eq!(s.served.len() as u32, n);
}

#[test]
fn a_program_that_does_not_listen_is_told_of_no_more_than_its_backlog() {
    let mut w = World::new(7);
    w.listen(1, port_space::TCP);
    let flood = |w: &mut World, from: &dyn Fn(u32) -> PeerAddr| {
        for n in 0..1_000 {
            let from = from(n);
            let mad = req_of(&from, 0x100 + n, 0x200 + n);
            w.cm[1].handle_mad(w.now, &from, &mad);
            w.now += MS;
        }
    };
    let told =
        |w: &mut World| -> Vec<CmEvent> { std::iter::from_fn(|| w.cm[1].take_event()).collect() };
    flood(&mut w, &forged);
    // A single peer, new here, has a place among those of a flood from one address, but not among
    // as many who are new too.
    let mad = req_of(&address(1), 1, 2);
    w.cm[1].handle_mad(w.now, &address(1), &mad);
    let all = told(&mut w);
    assert_eq!(all.len() as u32, IDS / 4);
    assert!(all.iter().all(|e| e.peer.dgid != address(1).gid));
    all.iter().for_each(|e| w.cm[1].destroy(w.now, e.id).unwrap());
    w.run(60_000 * MS);
    flood(&mut w, &|_| forged(3));
    w.cm[1].handle_mad(w.now, &address(1), &mad);
    let all = told(&mut w);
    assert_eq!(all.len() as u32, IDS / 4);
    assert_eq!(all.iter().filter(|e| e.peer.dgid == address(1).gid).count(), 1);
    // Those that it was told of are the program's, whoever comes.
    flood(&mut w, &forged);
    all.iter().for_each(|e| assert_eq!(w.cm[1].state(e.id), Ok(State::ReqRcvd)));
}

#[test]
fn what_a_program_lets_go_late_does_not_fill_its_own_table() {
    let mut w = World::new(8);
    w.listen(1, port_space::TCP);
    let mut held = Vec::new();
    for n in 0..5_000 {
        let from = forged(n);
        let mad = req_of(&from, 0x100 + n, 0x200 + n);
        w.cm[1].handle_mad(w.now, &from, &mad);
        w.run(MS);
        // It accepts, and forgets what becomes of it.
        while let Some(e) = w.cm[1].take_event() {
            if e.event == cm_event::CONNECT_REQUEST {
                w.cm[1].accept(w.now, e.id, 0, &rc(5, b"")).unwrap();
                held.push(e.id);
            }
        }
    }
    assert_eq!(held.len() as u32, bounds().guests, "the strangers' share, and no more");
    for _ in 0..IDS - 1 {
        w.cm[1].create(port_space::TCP, 0).unwrap();
    }
    held.iter().for_each(|&id| w.cm[1].destroy(w.now, id).unwrap());
    w.quiet();
    assert_eq!((w.cm[1].guests, w.cm[1].pool.live()), (0, IDS as usize));
    assert!(w.cm[1].load.iter().all(|&n| n == 0));
}

#[test]
fn a_backlog_is_free_again_whatever_becomes_of_its_requests() {
    let mut w = World::new(9);
    let listener = w.cm[1].create(port_space::TCP, 0).unwrap();
    w.cm[1].bind(listener, PORT).unwrap();
    w.cm[1].listen(w.now, listener, 2).unwrap();
    for round in 0..40u32 {
        let active = w.connect(0x100 + round);
        if round % 5 == 0 {
            // Taken back before the program has heard of it.
            w.run(MS);
            w.cm[0].destroy(w.now, active).unwrap();
            w.run(MS);
            continue;
        }
        let passive = w.event(1).id;
        match round % 5 {
            1 => w.cm[1].reject(w.now, passive, b"").unwrap(),
            2 => w.cm[1].destroy(w.now, passive).unwrap(),
            3 => {
                // Taken back after it has.
                w.cm[0].destroy(w.now, active).unwrap();
                assert_eq!(w.event(1).event, cm_event::REJECTED);
                w.cm[1].destroy(w.now, passive).unwrap();
                continue;
            }
            _ => {
                w.cm[1].accept(w.now, passive, 0, &rc(9, b"")).unwrap();
                assert_eq!(w.event(0).event, cm_event::CONNECT_RESPONSE);
                w.cm[0].establish(active).unwrap();
                assert_eq!(w.event(1).event, cm_event::ESTABLISHED);
                w.cm[1].destroy(w.now, passive).unwrap();
            }
        }
        w.event(0);
        w.cm[0].destroy(w.now, active).unwrap();
        if round % 5 == 1 {
            w.cm[1].destroy(w.now, passive).unwrap();
        }
    }
    let l = w.cm[1].pool.check(listener).unwrap();
    assert_eq!(
        (w.cm[1].ids[l].pending, w.cm[1].ids[l].half_open, w.cm[1].half_open.is_empty()),
        (0, 0, true)
    );
    w.quiet();
    assert_eq!((w.cm[1].guests, w.cm[1].pool.live()), (0, 1));
}

#[test]
fn a_listener_that_goes_leaves_nothing_half_open_behind() {
    for accepts in [0, 3] {
        let mut w = World::new(10);
        let listener = w.listen(1, port_space::TCP);
        for n in 0..10 {
            let from = forged(n);
            w.cm[1].handle_mad(w.now, &from, &req_of(&from, 0x100 + n, 0x200 + n));
        }
        let taken: Vec<Handle> = (0..accepts).map(|_| w.event(1).id).collect();
        taken.iter().for_each(|&id| w.cm[1].accept(w.now, id, 0, &rc(5, b"")).unwrap());
        w.cm[1].destroy(w.now, listener).unwrap();
        // The next one at its place in the table counts anew.
        let next = w.listen(1, port_space::UDP);
        let l = w.cm[1].pool.check(next).unwrap();
        taken.iter().for_each(|&id| w.cm[1].destroy(w.now, id).unwrap());
        w.quiet();
        assert_eq!((w.cm[1].ids[l].pending, w.cm[1].ids[l].half_open, w.cm[1].guests), (0, 0, 0));
        assert!(w.cm[1].half_open.is_empty() && w.cm[1].load.iter().all(|&n| n == 0));
    }
}

/// What the passive side of a fresh connection calls it, and what the active side does.
fn names(w: &World, passive: Handle) -> (u32, u32) {
    let id = &w.cm[1].ids[w.cm[1].pool.check(passive).unwrap()];
    (id.local_id, id.remote_id)
}

fn tell(w: &mut World, side: usize, from: &PeerAddr, message: Message<'_>) {
    let mut mad = [0; MAD_LEN];
    Mad { tid: 1, message }.emit(&mut mad);
    w.cm[side].handle_mad(w.now, from, &mad);
}

#[test]
fn only_the_peer_itself_may_ask_for_time() {
    // The accepting side: an MRA from anybody else, or with other ids, neither confirms nor delays.
    let mut w = World::new(11);
    w.listen(1, port_space::TCP);
    w.connect(0x11);
    let passive = w.event(1).id;
    w.cm[1].accept(w.now, passive, 0, &rc(5, b"")).unwrap();
    w.loss = 100;
    w.run(10 * MS);
    let (local, remote) = names(&w, passive);
    let mra = |l, r| {
        Message::Mra(Mra { local_comm_id: r, remote_comm_id: l, message: 1, service_timeout: 24 })
    };
    let due = w.cm[1].next_timeout();
    for (from, l, r) in [(9, local, remote), (1, local ^ 1, remote), (1, local, remote ^ 1)] {
        tell(&mut w, 1, &address(from), mra(l, r));
        let i = w.cm[1].pool.check(passive).unwrap();
        assert!(
            w.cm[1].ids[i].guest && !w.cm[1].is_known(w.now, &address(from).gid),
            "from {from}"
        );
        assert_eq!(w.cm[1].next_timeout(), due, "from {from}");
    }
    tell(&mut w, 1, &address(1), mra(local, remote));
    assert!(w.cm[1].next_timeout() > due && w.cm[1].is_known(w.now, &address(1).gid));
    // The asking side.
    let mut w = World::new(12);
    let active = w.connect(0x11);
    w.loss = 100;
    w.run(10 * MS);
    let i = w.cm[0].pool.check(active).unwrap();
    let asked = w.cm[0].ids[i].local_id;
    let mra = Message::Mra(Mra {
        local_comm_id: 5,
        remote_comm_id: asked,
        message: 0,
        service_timeout: 24,
    });
    let due = w.cm[0].next_timeout();
    tell(&mut w, 0, &address(9), mra);
    assert_eq!(w.cm[0].next_timeout(), due);
    tell(&mut w, 0, &address(2), mra);
    assert!(w.cm[0].next_timeout() > due);
}

#[test]
fn communication_ids_are_not_to_be_guessed() {
    let mut w = World::new(13);
    let mut ids = Vec::new();
    for n in 0..200 {
        let active = w.connect(n + 2);
        let i = w.cm[0].pool.check(active).unwrap();
        ids.push((i as u32, w.cm[0].ids[i].local_id));
        w.cm[0].destroy(w.now, active).unwrap();
        w.run(MS);
    }
    assert!(ids.iter().all(|&(i, id)| Addressee::of_id(id) == Addressee::Block(100)
        && w.cm[0].by_local_id(id) != Some(i as usize)));
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    // Neither the index nor the id before shows in it.
    let mask = w.cm[0].index_mask();
    assert!(ids.iter().filter(|(i, id)| id & mask == *i).count() < 20);
    assert!(
        ids.windows(2)
            .filter(|p| p[1].1.wrapping_sub(p[0].1) == ids[1].1.wrapping_sub(ids[0].1))
            .count()
            < 5
    );
    // And a peer that guesses does not confirm: of 22 bits it has none.
    let mut s = Siege::new(14);
    let from = forged(1);
    s.forge(&from);
    s.programs();
    for guess in 0..10_000u32 {
        let rtu =
            Message::Rtu(Ids { local_comm_id: 0x5000_0001, remote_comm_id: 200 << 22 | guess });
        tell(&mut s.w, 1, &from, rtu);
    }
    assert!(s.served.is_empty() && s.w.cm[1].guests == 1);
}

#[test]
fn the_same_number_from_two_addresses_is_two_requests() {
    let mut w = World::new(15);
    w.listen(1, port_space::TCP);
    for n in 1..=2 {
        let from = forged(n);
        w.cm[1].handle_mad(w.now, &from, &req_of(&from, 0x77, 0x88));
    }
    let (a, b) = (w.event(1), w.event(1));
    assert!(a.id != b.id && a.peer.dgid != b.peer.dgid);
    // And again from the first: one that is known already.
    w.cm[1].handle_mad(w.now, &forged(1), &req_of(&forged(1), 0x77, 0x88));
    assert!(w.event_within(1, MS).is_none());
}

#[test]
fn a_request_names_its_own_sender_twice() {
    let mut w = World::new(16);
    w.listen(1, port_space::TCP);
    // The path's GIDs are right, and the private header of rdma_cm names a third party.
    let (r, mut data) = req(7, 0x99);
    let header = IpHeader { src_port: 9, src: address(3).gid, dst: address(2).gid };
    header.emit(data.first_chunk_mut::<IP_HEADER_LEN>().unwrap());
    let ask = Message::Req(Req { private_data: &data, ..r });
    assert_eq!(reason(answer(&mut w.cm[1], &address(1), ask)), reject::INVALID_GID);
    // And the other way round.
    let (_, data) = req(7, 0x99);
    let ask = Message::Req(Req { local_gid: address(3).gid, private_data: &data, ..r });
    assert_eq!(reason(answer(&mut w.cm[1], &address(1), ask)), reject::INVALID_GID);
    assert!(!w.cm[1].has_events());
}

// Linux cm.c cm_enter_timewait
#[test]
fn late_packets_get_their_time() {
    let mut w = World::new(17);
    w.listen(1, port_space::TCP);
    let (active, passive) = w.connected(0x11);
    w.cm[0].disconnect(w.now, active).unwrap();
    let mut ends = [0; 2];
    for (side, id) in [(1, passive), (0, active)] {
        let e = w.event(side);
        assert_eq!((e.event, e.id), (cm_event::DISCONNECTED, id));
        ends[side] = w.now;
    }
    for (side, id) in [(1, passive), (0, active)] {
        assert_eq!(w.cm[side].state(id), Ok(State::TimeWait));
        let e = w.event(side);
        assert_eq!((e.event, e.id), (cm_event::TIMEWAIT_EXIT, id));
        // Twice the ACK timeout that both ends were given, code 14.
        assert!(w.now - ends[side] >= 2 * timeout_ns(14), "side {side}: {}", w.now - ends[side]);
        assert!(w.now - ends[side] <= 3 * timeout_ns(14), "side {side}: {}", w.now - ends[side]);
    }
}

// IBTA 12.9.8.3.1
#[test]
fn who_pretends_that_a_peer_has_restarted_ends_nothing() {
    let mut w = World::new(18);
    w.forged = true;
    w.listen(1, port_space::TCP);
    let (active, passive) = w.connected(0x11);
    let guid = w.cm[0].local.guid;
    let stale = |guid: u64| {
        let (r, data) = req(0xabcd, 0x11);
        (Req { local_ca_guid: guid, ..r }, data)
    };
    // The peer's address and QPN, which a stranger may know, and once a second for a minute.
    for _ in 0..60 {
        let (r, data) = stale(guid);
        let ask = Message::Req(Req { private_data: &data, ..r });
        let now = w.now;
        let mut mad = [0; MAD_LEN];
        Mad { tid: 5, message: ask }.emit(&mut mad);
        w.cm[1].handle_mad(now, &address(1), &mad);
        w.run(1_000 * MS);
        assert!(!w.cm[0].has_events() && !w.cm[1].has_events());
    }
    assert_eq!(
        (w.cm[0].state(active), w.cm[1].state(passive)),
        (Ok(State::Established), Ok(State::Established))
    );
    // The answer is a refusal, and one look after the peer, not more: a copy of the REP, and the
    // peer's RTU.
    assert!(w.sent[1] <= 1 + 60 * 2 && w.sent[0] <= 2 + 60, "{:?}", w.sent);
    // Another machine with this address and QPN is another peer.
    let (r, data) = stale(guid ^ 1);
    assert!(
        answer(&mut w.cm[1], &address(1), Message::Req(Req { private_data: &data, ..r })).is_none()
    );
    let e = w.event(1);
    assert_eq!((e.event, e.remote_qpn), (cm_event::CONNECT_REQUEST, 0x11));
    // The side that had asked is not moved by it either.
    w.listen(0, port_space::TCP);
    let other = address(2);
    let (r, mut data) = req(0xbcde, 0x12);
    let header = IpHeader { src_port: 9, src: other.gid, dst: address(1).gid };
    header.emit(data.first_chunk_mut::<IP_HEADER_LEN>().unwrap());
    let (local_gid, remote_gid, local_ca_guid) = (other.gid, address(1).gid, w.cm[1].local.guid);
    let r = Req { local_gid, remote_gid, local_ca_guid, private_data: &data, ..r };
    assert_eq!(reason(answer(&mut w.cm[0], &other, Message::Req(r))), reject::STALE_CONNECTION);
    w.run(60_000 * MS);
    assert_eq!(w.cm[0].state(active), Ok(State::Established));
}

// IBTA 12.9.8.3.1
#[test]
fn a_peer_that_is_silent_after_a_restart_loses_its_old_connection() {
    // Linux says nothing to a REP that it knows nothing of.
    let mut w = World::new(19);
    w.listen(1, port_space::TCP);
    let (_, passive) = w.connected(0x11);
    let (r, data) = req(0xabcd, 0x11);
    let ask = Message::Req(Req { private_data: &data, local_ca_guid: w.cm[0].local.guid, ..r });
    w.loss = 100;
    assert_eq!(reason(answer(&mut w.cm[1], &address(1), ask)), reject::STALE_CONNECTION);
    let e = w.event_within(1, 15 * timeout_ns(RESPONSE_TIMEOUT)).expect("the old one ends");
    assert_eq!((e.event, e.id), (cm_event::DISCONNECTED, passive));
}

/// A SIDR_REQ that says that it comes from an address.
fn sidr_of(from: &PeerAddr, request_id: u32) -> [u8; MAD_LEN] {
    let mut data = [0; mad::private_len::SIDR_REQ];
    let header = IpHeader { src_port: 9, src: from.gid, dst: address(2).gid };
    header.emit(data.first_chunk_mut::<IP_HEADER_LEN>().unwrap());
    let service_id = u64::from(port_space::UDP) << 16 | u64::from(PORT);
    let request = SidrReq { request_id, pkey: 0xffff, service_id, private_data: &data };
    let mut mad = [0; MAD_LEN];
    Mad { tid: request_id.into(), message: Message::SidrReq(request) }.emit(&mut mad);
    mad
}

fn ud(qpn: u32) -> ConnParam<'static> {
    ConnParam { qpn, qp_type: qp_type::UD, qkey: 0x1111, ..ConnParam::default() }
}

/// No message confirms an accepted datagram request, so a program that keeps the ids, as rdma_cm's
/// do, would soon have no other.
#[test]
fn datagram_requests_that_are_kept_keep_nobody_out() {
    let mut w = World::new(3);
    w.forged = true;
    w.listen(1, port_space::UDP);
    let mut kept = Vec::new();
    for n in 0..10 * IDS {
        let from = forged(n);
        w.cm[1].handle_mad(w.now, &from, &sidr_of(&from, 0x5000_0000 + n));
        while let Some(e) = w.cm[1].take_event() {
            w.cm[1].accept(w.now, e.id, 0, &ud(0x99)).unwrap();
            kept.push(e.id);
        }
        w.run(MS);
    }
    assert_eq!(kept.len() as u32, 10 * IDS, "each was asked about");
    assert_eq!(w.cm[1].counters().evicted, u64::from(9 * IDS + 1), "and the listener");
    // An honest peer is served, and so is the program itself.
    let active = w.cm[0].create(port_space::UDP, 0).unwrap();
    w.cm[0].connect(w.now, active, &address(2), PORT, 0, &ud(5)).unwrap();
    let request = w.event(1);
    assert_eq!(request.peer.dgid, address(1).gid);
    w.cm[1].accept(w.now, request.id, 0, &ud(0x99)).unwrap();
    let e = w.event(0);
    assert_eq!((e.event, e.remote_qpn), (cm_event::ESTABLISHED, 0x99));
    let own = w.cm[1].create(port_space::TCP, 0).unwrap();
    // The newest are still there; a repeated request gets its answer again, and raises nothing.
    let last = forged(10 * IDS - 1);
    w.collect();
    w.cm[1].handle_mad(w.now, &last, &sidr_of(&last, 0x5000_0000 + 10 * IDS - 1));
    assert!(w.cm[1].take_event().is_none(), "it is known");
    let mut mad = [0; MAD_LEN];
    assert_eq!(w.cm[1].poll_transmit(&mut mad).map(|to| to.gid), Some(last.gid));
    // The program may destroy what is gone: it is told that the handle is stale.
    let (gone, there) = kept.split_at(kept.len() - IDS as usize + 3);
    for id in gone {
        assert_eq!(w.cm[1].destroy(w.now, *id), Err(Error::StaleHandle));
    }
    for id in there.iter().chain([&request.id, &own]) {
        assert_eq!(w.cm[1].destroy(w.now, *id), Ok(()));
    }
}

/// Connections, and requests that wait for the program, are not given up for datagram requests.
#[test]
fn datagram_requests_take_the_place_of_no_connection() {
    let mut w = World::new(4);
    w.forged = true;
    w.listen(1, port_space::UDP);
    let own: Vec<Handle> = (1..IDS).map(|_| w.cm[1].create(port_space::TCP, 0).unwrap()).collect();
    let from = forged(1);
    w.cm[1].handle_mad(w.now, &from, &sidr_of(&from, 77));
    assert!(w.cm[1].take_event().is_none(), "there is no room");
    w.cm[1].destroy(w.now, own[0]).unwrap();
    for n in 2..40 {
        let from = forged(n);
        w.cm[1].handle_mad(w.now, &from, &sidr_of(&from, 77 + n));
        let Some(e) = w.cm[1].take_event() else { panic!("request {n} finds no place") };
        w.cm[1].accept(w.now, e.id, 0, &ud(0x99)).unwrap();
        // An answer that has not left yet stays.
        let early = forged(1000 + n);
        w.cm[1].handle_mad(w.now, &early, &sidr_of(&early, 1077 + n));
        assert!(w.cm[1].take_event().is_none(), "the answer to request {n} was not sent");
        w.run(MS);
    }
    for id in &own[1..] {
        assert_eq!(w.cm[1].destroy(w.now, *id), Ok(()));
    }
}

#[test]
fn fairness_is_a_time_in_which_a_network_can_answer() {
    assert!((20 * MS..1_000 * MS).contains(&FAIR_NS));
    let b = bounds();
    assert_eq!((b.own, b.half_open, b.guests), (64, 64, 128), "of the default configuration");
    // A flood of a thousand requests a second leaves an honest one the better part of its tries.
    assert!(u64::from(b.half_open) * 1_000 * MS / FAIR_NS >= 600);
    let of = |max_cm_ids, max_qp| {
        let b = Bounds::from_config(
            &Config { max_cm_ids, max_qp, ..Config::default() }.resolve().unwrap(),
        );
        (b.own, b.half_open, b.guests)
    };
    assert_eq!(of(1, 1), (4, 16, 32));
    assert_eq!(of(1 << 16, 1 << 14), (1 << 16, 2048, 4096));
    assert!(
        of(1 << 16, 1 << 16).0 + of(1 << 16, 1 << 16).2 <= 1 << 17,
        "their index fits beside five bits more"
    );
}
