use super::super::group_msg::Received;
use super::super::numbers::{BLOCK_MAX, INDEX_QPN_BASE};
use super::*;
use crate::addr::endpoint;
use crate::addr_group::steer::Program;
use crate::clock::{now_ns, wall_ns};
use crate::local::sweep;
use crate::map::Map;
use crate::udp::{udp_flags, UdpConfig, UdpPort};
use gdrcore_core::config::{qpn_block, QPN_UNIT};
use gdrcore_core::error::Error;
use gdrcore_core::wire::grh::Fields;
use gdrcore_core::wire::Psn;
use gdrcore_testkit::descriptors::{keep, Keep};
use gdrcore_testkit::patience::{deadline, until};
use gdrcore_testkit::place::loopback;
use std::sync::mpsc::{channel, TryRecvError};
use std::time::{Duration, Instant};

/// A member with a socket of its own, and no engine.
struct One {
    member: Member,
    udp: UdpPort,
    _memory: [Map; 2],
    /// Others see its end.
    _kept: Keep,
}

fn at(n: u8) -> Endpoint {
    Endpoint::v4(loopback(1, n), 4791)
}

fn one(at: &Endpoint, block: u16) -> One {
    with_qpns(at, block, 4096)
}

fn with_qpns(at: &Endpoint, block: u16, qpn_count: u32) -> One {
    let wanted = WantedBlocks::from_range(u32::from(block) * QPN_UNIT, qpn_count).unwrap();
    let cfg = UdpConfig::DEFAULT;
    let bounds = ClaimBounds::for_device(cfg.burst_bytes, 64);
    let kept = keep();
    let memory =
        [Claim::memsize(&wanted, &bounds), UdpPort::memsize(&cfg)].map(|n| Map::new(n).unwrap());
    // SAFETY: the maps outlive what is made in them.
    let mut claim = unsafe {
        Claim::take(
            &SocketDir::open().unwrap(),
            at,
            (&wanted, &bounds),
            1,
            memory[0].as_ptr(),
            memory[0].len(),
        )
        .unwrap()
    };
    claim.find_owners();
    let alone = !claim.has_others();
    let flags = if alone { 0 } else { udp_flags::REUSE_PORT };
    // SAFETY: as above.
    let udp = unsafe {
        UdpPort::open(at, &UdpConfig { flags, ..cfg }, memory[1].as_ptr(), memory[1].len()).unwrap()
    };
    if alone {
        udp.allow_reuse_port().unwrap();
    }
    let qpns = (u32::from(block) * QPN_UNIT, qpn_count);
    let mut member = None;
    claim.join(udp.fd(), qpns, alone, now_ns(), &mut member).unwrap();
    let member = member.unwrap();
    One { member, udp, _memory: memory, _kept: kept }
}

impl One {
    /// One round: packets, messages, timers. Returns the packets of this member: by the socket, by
    /// message.
    fn round(&mut self) -> (usize, usize) {
        let now = now_ns();
        let mut direct = 0;
        let n = self.udp.rx_poll();
        if n == 0 {
            self.member.note_socket_empty(now);
        }
        for i in 0..n {
            let r = self.udp.rx_get(i);
            match self.member.owner_of(r.data) {
                Owner::Local => direct += 1,
                Owner::SelfTest => _ = self.member.take_self_test(r.data),
                Owner::Block(b) => {
                    let (src, grh) = (endpoint(&r.src), r.src.grh());
                    let p = Packets { src, seg: r.seg, first: 0, grh, data: r.data };
                    if !self.member.forward(b, &p) {
                        self.member.count_dropped(1);
                    }
                }
            }
        }
        self.member.maintain(now, false);
        let mailed = self.member.poll(now, |_, _| 1);
        (direct, mailed)
    }
}

/// Repeats `each` for `ns` of running time. Time in which this thread was not running does not
/// count, because members wait for answers by the clock.
fn run(ns: u64, mut each: impl FnMut()) {
    let (mut ran, mut last) = (0, now_ns());
    while ran < ns {
        each();
        let now = now_ns();
        ran += (now - last).min(100_000);
        last = now;
    }
}

fn settle(members: &mut [One]) {
    run(100_000_000, || members.iter_mut().for_each(|m| _ = m.round()));
}

/// Sends a packet to a QPN at the address and returns its receiver: (member, directly). `None`: it
/// was dropped.
fn send_to(members: &mut [One], qpn: u32) -> Option<(usize, bool)> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut packet = [0u8; 32];
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    let at = members[0].member.local;
    socket.send_to(&packet, (std::net::Ipv4Addr::from(at.to_v4().unwrap()), at.port)).unwrap();
    let end = deadline(60);
    while Instant::now() < end {
        for (i, m) in members.iter_mut().enumerate() {
            match m.round() {
                (1, 0) => return Some((i, true)),
                (0, 1) => return Some((i, false)),
                (0, 0) => {}
                other => panic!("{other:?}"),
            }
        }
        if members.iter().any(|m| m.member.counters.dropped > 0) {
            return None;
        }
    }
    panic!("a packet to {qpn:#x} is neither handled nor dropped");
}

#[test]
fn each_member_learns_its_index_and_is_steered_to() {
    let at = at(1);
    let mut members: Vec<One> = [40, 3, 700, 17].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        gdrcore_testkit::skip!("the kernel attaches no program to a group of sockets here");
    }
    for (i, m) in members.iter().enumerate() {
        assert_eq!(m.member.index, Some(i as u16));
        assert_eq!(m.member.table.entries(), [(3, 1), (17, 3), (40, 0), (700, 2)]);
    }
    for (i, block) in [40u32, 3, 700, 17].into_iter().enumerate() {
        assert_eq!(send_to(&mut members, block * QPN_UNIT + 5), Some((i, true)));
    }
    // The last socket takes the place of the first.
    drop(members.remove(0));
    settle(&mut members);
    assert_eq!(members[2].member.index, Some(0));
    assert_eq!(send_to(&mut members, 17 * QPN_UNIT), Some((2, true)));
    assert_eq!(send_to(&mut members, 40 * QPN_UNIT), None, "the block has no owner any more");
}

#[test]
fn a_killed_member_is_noticed_by_its_watcher() {
    let at = at(2);
    let mut members: Vec<One> = [40, 3, 700].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        gdrcore_testkit::skip!("the kernel attaches no program to a group of sockets here");
    }
    // As after a kill: the names and the socket close, and no message is sent.
    let mut dead = members.remove(0);
    dead.member.known = [0; 16];
    drop(dead);
    settle(&mut members);
    assert_eq!(members[1].member.index, Some(0));
    assert_eq!(send_to(&mut members, 700 * QPN_UNIT), Some((1, true)));
}

#[test]
fn a_member_that_is_not_reached_finds_out_by_itself() {
    let at = at(5);
    let mut members: Vec<One> = [40, 3, 700].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        gdrcore_testkit::skip!("the kernel attaches no program to a group of sockets here");
    }
    // A program that knows no block, from an author that does not answer.
    for _ in 0..3 {
        let socket = members[0].udp.fd();
        Program::new(&mut members[0].member.program, &Table::EMPTY).attach(socket).unwrap();
        let (receiver, _) = send_to(&mut members, 700 * QPN_UNIT).expect("it arrives by a detour");
        assert_eq!(receiver, 2);
        members[2].member.check(now_ns());
        settle(&mut members);
        // The member's own packets may have arrived at the right place by chance. A member that
        // learns of a detour checks again.
        let end = deadline(60);
        loop {
            match send_to(&mut members, 700 * QPN_UNIT).expect("it arrives") {
                (2, true) => break,
                (who, _) => assert_eq!(who, 2),
            }
            assert!(Instant::now() < end, "it is still reached by a detour");
            members[2].member.note_detour(now_ns());
            settle(&mut members);
        }
    }
}

/// When a socket closes, the last one takes its place. The last one's member may know neither of
/// the closed socket nor of its new place: here no other member ever ran, or told it of an end.
#[test]
fn a_member_that_nobody_tells_of_a_new_place_finds_it_by_itself() {
    let at = at(10);
    let mut members: Vec<One> = [40, 3, 700].iter().map(|&b| one(&at, b)).collect();
    let run_last = |members: &mut [One]| {
        let last = members.last_mut().unwrap();
        run(100_000_000, || _ = last.round());
    };
    let end = deadline(60);
    while members[2].member.index != Some(2) {
        run_last(&mut members);
        if members[2].member.refused {
            gdrcore_testkit::skip!("the kernel attaches no program to a group of sockets here");
        }
        assert!(Instant::now() < end, "{:?}", members[2].member.index);
    }
    // The silent member closes and tells nobody.
    let mut silent = members.remove(1);
    while silent.member.sockets.iter().flatten().any(|s| s.receive(&mut [0; 4096]).is_some()) {}
    silent.member.known = [0; 16];
    drop(silent);
    let end = deadline(60);
    while members[1].member.index != Some(1) {
        run_last(&mut members);
        assert!(Instant::now() < end, "{:?}", members[1].member.index);
    }
    // The member has learned its place, and next attaches a program.
    while send_to(&mut members, 700 * QPN_UNIT).expect("it arrives") != (1, true) {
        run_last(&mut members);
        assert!(Instant::now() < end, "it is reached by a detour");
    }
}

#[test]
fn a_member_that_ends_tells_those_whose_messages_it_never_read() {
    let at = at(11);
    let mut members: Vec<One> = [40, 3, 700].iter().map(|&b| one(&at, b)).collect();
    run(100_000_000, || _ = members[2].round());
    assert!(!members[1].member.is_known(700), "it has read nothing");
    drop(members.remove(1));
    members[1].member.checked_ns = now_ns();
    members[1].round();
    // The member now looks for its place.
    let m = &members[1].member;
    assert!(m.refused || !m.is_known(3) && (m.checked_ns == 0 || m.phase != Phase::Idle));
}

#[test]
fn who_is_told_of_an_end_looks_for_its_place_whichever_that_is() {
    let at = at(18);
    let mut members: Vec<One> = [40, 3, 700].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    for m in members.iter_mut().map(|one| &mut one.member).filter(|m| !m.refused) {
        let now = now_ns();
        m.checked_ns = now;
        m.forget_owner(now, 500);
        assert!(m.checked_ns == 0 || m.phase != Phase::Idle, "index {:?}", m.index);
    }
}

#[test]
fn a_check_proves_nothing_where_a_packet_may_arrive_by_chance() {
    let at = at(12);
    let mut members: Vec<One> = [5, 9].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    let m = &mut members[0].member;
    if m.refused {
        gdrcore_testkit::skip!("the kernel attaches no program to a group of sockets here");
    }
    let conclude = |m: &mut Member, no_index, index, block, foreign_block| {
        (m.phase, m.publish_ns, m.must_attach) = (Phase::Idle, None, false);
        let arrived = Arrived { index, no_index, block, foreign_block };
        m.begin(Phase::Checking(arrived), now_ns(), 0);
        m.note_socket_empty(now_ns());
        m.maintain(now_ns(), false);
        (m.must_attach, m.publish_ns.is_some())
    };
    let (nothing, attach, publish) = ((false, false), (true, false), (false, true));
    let (steered, all_here) = (Some(false), Some(true));
    assert_eq!(conclude(m, false, true, true, steered), nothing, "all is right");
    assert_eq!(conclude(m, true, true, true, steered), nothing, "a program knows the block");
    // The member's own packets arrive by the kernel's hash; a peer's may not.
    assert_eq!(conclude(m, true, true, true, all_here), attach);
    assert_eq!(conclude(m, true, true, true, None), attach);
    assert_eq!(conclude(m, false, true, true, all_here), attach, "the others' come here as well");
    assert_eq!(conclude(m, false, false, false, steered), attach, "another place in the list");
    assert_eq!(conclude(m, false, false, true, steered), attach, "another's table knows it");
    assert_eq!(conclude(m, false, true, false, steered), publish);
    // Another version came after the packets had been sent, and it lacks this member.
    m.table.remove(5);
    assert_eq!(conclude(m, false, true, true, steered), publish);
}

#[test]
fn a_probe_is_concluded_when_the_packets_that_came_are_read() {
    let at = at(13);
    let mut one = one(&at, 5);
    let m = &mut one.member;
    let phase = Phase::Probing { range: 4, lowest: Some(1), received: 1 };
    let now = now_ns();
    m.begin(phase, now, 10);
    m.maintain(now + 1_000_000, false);
    assert_eq!(m.phase, phase, "the thread did not run, and its socket is not read");
    m.note_socket_empty(now + 1_000_000);
    m.maintain(now + 1_000_001, false);
    assert_eq!((m.phase, m.index), (Phase::Idle, Some(1)));
    // A member that always has packets to read does not wait for ever.
    m.begin(phase, now, 10);
    m.maintain(now + 1_000_000_000, false);
    assert_eq!(m.phase, Phase::Idle);
}

/// The table of a member that joins lacks the others until one answers.
#[test]
fn a_member_that_joins_does_not_take_the_packets_of_others() {
    let at = at(14);
    let mut members: Vec<One> = [40, 3].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    members.push(one(&at, 700));
    let joined = &mut members[2];
    // Nobody answers until it looks for its index.
    while joined.member.phase == Phase::Asking {
        joined.round();
    }
    let m = &joined.member;
    assert!(m.refused || m.counters.attached == 0 && matches!(m.phase, Phase::Probing { .. }));
    for (i, block) in [(0, 40u32), (1, 3)] {
        assert_eq!(send_to(&mut members, block * QPN_UNIT + 5).map(|(who, _)| who), Some(i));
    }
}

#[test]
fn a_service_that_another_version_lacks_comes_back() {
    let at = at(6);
    let mut members: Vec<One> = [40, 3].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        gdrcore_testkit::skip!("the kernel attaches no program to a group of sockets here");
    }
    members[0].member.offer(1, 0x106, 99).unwrap();
    settle(&mut members);
    let listed = |m: &One| m.member.table.services().to_vec();
    assert_eq!(listed(&members[1]), [(0x106_0063, 40)]);
    // Two tables: one whose author did not know the service, and one with a service that has ended.
    for wrong in [&[][..], &[0x106_0063, 0x106_0064]] {
        members[1].member.table.set_services(40, wrong.iter().copied());
        members[1].member.publish();
        let end = deadline(60);
        while members.iter().any(|m| listed(m) != [(0x106_0063, 40)]) {
            settle(&mut members);
            assert!(Instant::now() < end, "{:?}", listed(&members[0]));
        }
    }
}

#[test]
fn a_member_that_never_runs_is_steered_to_and_delays_no_other() {
    let at = at(3);
    let mut members = vec![one(&at, 5), one(&at, 9)];
    // Only the second one runs.
    run(150_000_000, || _ = members[1].round());
    if members[1].member.refused {
        gdrcore_testkit::skip!("the kernel attaches no program to a group of sockets here");
    }
    assert_eq!(members[1].member.table.entries(), [(5, 0), (9, 1)]);
    assert_eq!(send_to(&mut members, 9 * QPN_UNIT), Some((1, true)));
    assert_eq!(send_to(&mut members, 5 * QPN_UNIT), Some((0, true)));
}

#[test]
fn members_recover_from_a_forged_packet_to_oneself_and_a_wrong_table() {
    let at = at(4);
    let mut members: Vec<One> = [5, 9].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        gdrcore_testkit::skip!("the kernel attaches no program to a group of sockets here");
    }
    let before = members[0].member.counters.attached;
    for _ in 0..1000 {
        assert!(members[0].member.take_self_test(&[0xff; steering_state::SELF_LEN]));
        assert!(!members[0].member.take_self_test(&[]), "no member's");
    }
    settle(&mut members);
    assert_eq!(members[0].member.counters.attached, before);
    // A table with the two indexes exchanged, newer than any other. Both members correct it, and
    // the newest table is right.
    let mut wrong = members[0].member.table;
    for _ in 0..100 {
        wrong.begin_next_version(BLOCK_MAX);
    }
    wrong.set(5, 7, 5..6);
    wrong.set(9, 0, 9..10);
    let now = now_ns();
    for m in &mut members {
        m.member.handle_msg(now, 77, &Received::TableUpdate(wrong));
    }
    settle(&mut members);
    assert_eq!(members[0].member.table.entries(), [(5, 0), (9, 1)]);
    assert_eq!(send_to(&mut members, 9 * QPN_UNIT), Some((1, true)));
    assert_eq!(send_to(&mut members, 5 * QPN_UNIT), Some((0, true)));
}

#[test]
fn a_packet_to_oneself_counts_only_with_the_own_number() {
    let at = at(8);
    let mut one = one(&at, 5);
    let m = &mut one.member;
    let mut packet = [0u8; steering_state::SELF_LEN];
    packet[4..8].copy_from_slice(&(INDEX_QPN_BASE + 1).to_be_bytes());
    // Four indexes are probed; a forged packet claims that the second is the member's.
    m.begin(Phase::Probing { range: 4, lowest: None, received: 0 }, now_ns(), u64::MAX / 2);
    for number in [0, m.nonce ^ 1, !m.nonce] {
        packet[12..20].copy_from_slice(&number.to_le_bytes());
        m.take_self_test(&packet);
        assert_eq!(m.phase, Phase::Probing { range: 4, lowest: None, received: 0 });
    }
    packet[12..20].copy_from_slice(&m.nonce.to_le_bytes());
    m.take_self_test(&packet);
    assert_eq!(m.phase, Phase::Probing { range: 4, lowest: Some(1), received: 1 });
}

#[test]
fn an_older_table_changes_nothing() {
    let at = at(9);
    let mut members: Vec<One> = [5, 9].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        gdrcore_testkit::skip!("the kernel attaches no program to a group of sockets here");
    }
    let current = members[0].member.table;
    let mut older = Table::EMPTY;
    older.begin_next_version(BLOCK_MAX);
    older.set(5, 3, 5..6);
    older.set(9, 4, 9..10);
    assert!(older.order_key() < current.order_key());
    for m in &mut members {
        m.member.handle_msg(now_ns(), 77, &Received::TableUpdate(older));
        assert_eq!(m.member.table.entries(), current.entries());
    }
    // The newer of two versions counts, in either order.
    let mut newer = current;
    newer.begin_next_version(BLOCK_MAX);
    members[0].member.handle_msg(now_ns(), 77, &Received::TableUpdate(newer));
    members[0].member.handle_msg(now_ns(), 77, &Received::TableUpdate(current));
    assert_eq!(members[0].member.table.order_key(), newer.order_key());
}

#[test]
fn blocks_beyond_those_for_programs_are_refused() {
    assert_eq!(WantedBlocks::from_range(BLOCK_QPN_BASE - 4096, 4096).map(|w| w.count()), Ok(1));
    assert_eq!(WantedBlocks::from_range(BLOCK_QPN_BASE - 4096, 8192), Err(Error::Invalid));
    assert_eq!(WantedBlocks::from_range(QPN_UNIT - 16, 32).map(|w| w.count()), Ok(2));
    assert_eq!(WantedBlocks::from_range(0, 1 << 18), Ok(WantedBlocks { first: None, count: 16 }));
}

#[test]
fn where_the_kernel_refuses_the_program_all_packets_take_detours() {
    let at = at(6);
    let mut members: Vec<One> = [5, 9, 30].iter().map(|&b| one(&at, b)).collect();
    for m in &mut members {
        m.member.refused = true;
    }
    settle(&mut members);
    assert!(members.iter().all(|m| m.member.counters.attached == 0 && m.member.is_settled()));
    for (i, block) in [5u32, 9, 30].into_iter().enumerate() {
        for _ in 0..20 {
            assert_eq!(send_to(&mut members, block * QPN_UNIT).map(|(who, _)| who), Some(i));
        }
    }
    let forwarded: u64 = members.iter().map(|m| m.member.counters.forwarded).sum();
    assert!(forwarded > 10, "three sockets, and a hash that knows nothing: {forwarded}");
}

/// As with a server that answers many requests at once, before the kernel steers its replies to the
/// client.
#[test]
fn more_packets_than_a_socket_holds_wait_for_their_owner() {
    let at = at(7);
    let mut members = vec![one(&at, 5), one(&at, 9)];
    settle(&mut members);
    let mut data = [0u8; 64];
    data[4..8].copy_from_slice(&(9 * QPN_UNIT).to_be_bytes());
    let packets = Packets { src: at, seg: 64, first: 0, grh: Fields::default(), data: &data };
    for _ in 0..500 {
        assert!(members[0].member.forward(9, &packets));
    }
    assert!(members[0].member.deadline().is_some());
    let mut got = 0;
    until(
        60,
        || "not all came".into(),
        || {
            _ = members[0].round();
            got += members[1].round().1;
            (got >= 500 && members[0].member.forward_queue.is_empty()).then_some(())
        },
    );
    let c = members[0].member.counters;
    assert_eq!(
        (got, c.forwarded, c.dropped, members[0].member.forward_queue.is_empty()),
        (500, 500, 0, true)
    );
}

/// On a crowded machine an owner runs rarely, and each time takes the packets in its socket.
#[test]
fn a_member_that_ends_waits_as_long_as_the_owner_takes_packets() {
    let at = at(30);
    let mut sender = one(&at, 5);
    let (made, is_made) = channel();
    let (end, has_ended) = channel::<()>();
    let owner = std::thread::spawn(move || {
        let mut owner = one(&at, 9);
        made.send(()).expect("a test");
        let (mut got, mut longest, mut last) = (0, Duration::ZERO, Instant::now());
        while has_ended.try_recv() == Err(TryRecvError::Empty) {
            std::thread::sleep(Duration::from_millis(20));
            got += owner.member.poll(now_ns(), |_, _| 1);
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        // Takes the rest; one poll does not look at all descriptors.
        (got + (0..8).map(|_| owner.member.poll(now_ns(), |_, _| 1)).sum::<usize>(), longest)
    });
    is_made.recv().expect("an owner");
    let mut data = [0u8; 64];
    data[4..8].copy_from_slice(&(9 * QPN_UNIT).to_be_bytes());
    let packets = Packets { src: at, seg: 64, first: 0, grh: Fields::default(), data: &data };
    for _ in 0..250 {
        assert!(sender.member.forward(9, &packets));
    }
    sender.member.forward_pending(u64::MAX);
    end.send(()).expect("an owner");
    let (got, longest) = owner.join().expect("no panic");
    let gaps = longest > Duration::from_nanos(LAST_NS / 2);
    let c = sender.member.counters;
    assert!(got == 250 || gaps, "{got}, at most {longest:?} apart; {c:?}");
}

#[test]
fn what_a_killed_peer_left_is_found_by_any_block() {
    let (mut here, there) = (one(&at(14), 40), at(15));
    // Three blocks, and no links.
    let mut peer = with_qpns(&there, 3, 3 * QPN_UNIT);
    assert!(here.member.watch_peer(&there, 5) && here.member.watches(&there, Some(3)));
    let qpns = [3 * QPN_UNIT, 5 * QPN_UNIT + 1];
    let receipts = peer.member.receipts.as_ref().unwrap().receipts();
    assert_eq!(qpns.map(|qpn| receipts.leave(qpn, Psn::new(9))), [0, 0]);
    let left = |here: &One, qpn: u32| {
        let block = qpn_block(qpn);
        here.member.receipts_of(&there, block, false).and_then(|left| left.find(qpn)).map(Psn::get)
    };
    assert_eq!(qpns.map(|qpn| left(&here, qpn)), [None, None], "it lives");
    // Its directory is removed, and made again: the receipts move to the new file, at the same
    // address in memory.
    let address = std::ptr::from_ref(receipts);
    let name = peer.member.locks().next().unwrap().name(Role::Liveness);
    std::fs::remove_dir_all(name.path().ancestors().nth(2).unwrap()).unwrap();
    peer.member.renew().unwrap();
    assert!(name.path().with_file_name("status").exists(), "whose it is is known as before");
    let receipts = peer.member.receipts.as_ref().unwrap().receipts();
    assert_eq!(std::ptr::from_ref(receipts), address);
    assert_eq!(receipts.leave(qpns[1], Psn::new(10)), 0);
    peer.member.locks().for_each(Lock::abandon);
    // Another device is opened meanwhile.
    sweep(&here.member.socket_dir, wall_ns());
    assert_eq!(qpns.map(|qpn| left(&here, qpn)), [Some(9), Some(10)]);
    assert_eq!([6 * QPN_UNIT, 3 * QPN_UNIT + 1].map(|qpn| left(&here, qpn)), [None, None]);
    // A connection begins to a queue pair without a receipt, and to one with the receipt of its
    // last connection. One that is left later counts.
    [6 * QPN_UNIT, qpns[1]].into_iter().for_each(|qpn| here.member.void_receipt(&there, qpn));
    assert_eq!(qpns.map(|qpn| left(&here, qpn)), [Some(9), None]);
    assert_eq!(receipts.leave(qpns[1], Psn::new(11)), 0);
    assert_eq!(qpns.map(|qpn| left(&here, qpn)), [Some(9), Some(11)]);
    // Of many, the newest are known.
    here.member.void_receipt(&there, qpns[1]);
    (0..VOID_RECEIPTS).for_each(|_| here.member.void_receipt(&there, qpns[0]));
    assert_eq!(qpns.map(|qpn| left(&here, qpn)), [None, Some(11)]);
}

#[test]
fn a_peer_is_watched_until_it_ends_or_is_needed_no_more() {
    let mut members = [one(&at(11), 40)];
    let there = at(12);
    let mut peer = one(&there, 3);
    let watcher = &mut members[0].member;
    let closed = |_: &Endpoint, _| true;
    assert!(watcher.watch_peer(&there, 3) && watcher.watch_peer(&there, 3));
    assert_eq!(watcher.peers.len(), 1, "once");
    assert!(watcher.watches(&there, Some(3)) && !watcher.watches(&there, Some(4)));
    assert!(!watcher.watch_peer(&there, 9) && !watcher.watch_peer(&at(13), 3), "nobody is there");
    let own = watcher.local;
    assert!(watcher.watch_peer(&own, 40) && watcher.peers.len() == 1, "itself");
    watcher.retain_peers(|_, block| block != 3);
    assert!(watcher.peers.is_empty());
    // The peer ends: its connections end once its links are closed.
    assert!(watcher.watch_peer(&there, 3));
    settle(&mut members);
    assert!(!members[0].member.has_gone());
    let name = peer.member.locks().next().unwrap().name(Role::Liveness);
    peer.member.liveness = None;
    peer.member.watchers.clear();
    settle(&mut members);
    let watcher = &mut members[0].member;
    assert!(watcher.has_gone());
    assert_eq!(watcher.take_gone(|_, _| false), None, "what it had sent is read first");
    assert_eq!(watcher.take_gone(|_, _| false), None, "its links are open");
    assert_eq!(watcher.take_gone(closed), Some((there, 3)));
    assert!(watcher.take_gone(closed).is_none() && !watcher.has_gone());
    // The peer was killed before it could be watched, so its name is still there.
    assert!(name.exists() && watcher.watch_peer(&there, 3) && watcher.has_gone());
}
