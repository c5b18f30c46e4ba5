use super::*;
use crate::clock::now_ns;
use crate::map::Map;
use crate::share::steer::Program;
use crate::udp::{udp_flags, UdpConfig, UdpPort};

/// A member with a socket of its own, and no engine.
struct One {
    member: Member,
    udp: UdpPort,
    _memory: [Map; 2],
}

fn at(n: u8) -> Endpoint {
    Endpoint::v4([127, 74, std::process::id() as u8, n], 4791)
}

fn one(at: &Endpoint, block: u16) -> One {
    let wanted = Wanted::of(u32::from(block) * QPN_UNIT, 4096).unwrap();
    let cfg = UdpConfig::DEFAULT;
    let memory = [Map::new(Claim::memsize(&wanted)).unwrap(), Map::new(UdpPort::memsize(&cfg)).unwrap()];
    // SAFETY: the maps outlive what is made in them.
    let mut claim = unsafe { Claim::take(at, &wanted, 1, memory[0].as_ptr(), memory[0].len()).unwrap() };
    claim.look();
    let alone = !claim.has_company();
    let flags = if alone { 0 } else { udp_flags::REUSE_PORT };
    // SAFETY: as above.
    let udp = unsafe { UdpPort::open(at, &UdpConfig { flags, ..cfg }, memory[1].as_ptr(), memory[1].len()).unwrap() };
    if alone {
        udp.share().unwrap();
    }
    let qpns = (u32::from(block) * QPN_UNIT, 4096);
    let member = claim.join(udp.fd(), qpns, alone, now_ns()).unwrap();
    One { member, udp, _memory: memory }
}

impl One {
    /// One round: packets, mail, what is due. Returns the packets of this member: by the socket, by mail.
    fn round(&mut self) -> (usize, usize) {
        let now = now_ns();
        let mut direct = 0;
        let n = self.udp.rx_poll();
        if n == 0 {
            self.member.drained(now);
        }
        for i in 0..n {
            let r = self.udp.rx_get(i);
            match self.member.owner_of(r.data) {
                Owner::Here => direct += 1,
                Owner::Own => self.member.take_own(r.data),
                Owner::Block(b) => {
                    let p = Packets { src: r.src, seg: r.seg, first: 0, ecn: r.ecn, data: r.data };
                    if !self.member.pass(b, &p) {
                        self.member.count_dropped(1);
                    }
                }
            }
        }
        self.member.tend(now, false);
        let mailed = self.member.poll(now, |_, _| 1);
        (direct, mailed)
    }
}

/// Repeats `each` for so long. Time in which this thread was not running does not count: members wait for answers by the clock.
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

/// Sends a packet to a QPN at the address; who got it: (member, directly).
fn send_to(members: &mut [One], qpn: u32) -> Option<(usize, bool)> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut packet = [0u8; 32];
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    let at = members[0].member.local;
    socket.send_to(&packet, (std::net::Ipv4Addr::from(at.to_v4().unwrap()), at.port)).unwrap();
    let end = now_ns() + 1_000_000_000;
    while now_ns() < end {
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
    None
}

#[test]
fn each_learns_its_index_and_is_steered_to() {
    let at = at(1);
    let mut members: Vec<One> = [40, 3, 700, 17].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        println!("skipped: the kernel attaches no program to a group of sockets here");
        return;
    }
    for (i, m) in members.iter().enumerate() {
        assert_eq!(m.member.index, Some(i as u16));
        assert_eq!(m.member.table.entries(), [(3, 1), (17, 3), (40, 0), (700, 2)]);
    }
    for (i, block) in [40u32, 3, 700, 17].into_iter().enumerate() {
        assert_eq!(send_to(&mut members, block * QPN_UNIT + 5), Some((i, true)));
    }
    // The last one moves to the place of the first.
    drop(members.remove(0));
    settle(&mut members);
    assert_eq!(members[2].member.index, Some(0));
    assert_eq!(send_to(&mut members, 17 * QPN_UNIT), Some((2, true)));
    assert_eq!(send_to(&mut members, 40 * QPN_UNIT), None, "nobody has it any more");
}

#[test]
fn who_dies_without_a_word_is_noticed_by_whoever_watches_it() {
    let at = at(2);
    let mut members: Vec<One> = [40, 3, 700].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        println!("skipped: the kernel attaches no program to a group of sockets here");
        return;
    }
    // As a killed process: its names go, its socket goes, nobody is told.
    let mut dead = members.remove(0);
    dead.member.known = [0; 16];
    drop(dead);
    settle(&mut members);
    assert_eq!(members[1].member.index, Some(0));
    assert_eq!(send_to(&mut members, 700 * QPN_UNIT), Some((1, true)));
}

#[test]
fn who_is_not_reached_finds_out_by_itself() {
    let at = at(5);
    let mut members: Vec<One> = [40, 3, 700].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        println!("skipped: the kernel attaches no program to a group of sockets here");
        return;
    }
    // A program that knows nobody, from somebody who is not asked again.
    for _ in 0..3 {
        Program::new(&Table::EMPTY).attach(members[0].udp.fd()).unwrap();
        let (who, _) = send_to(&mut members, 700 * QPN_UNIT).expect("it arrives, if by a detour");
        assert_eq!(who, 2);
        members[2].member.check(now_ns());
        settle(&mut members);
        // By chance its own packets may have come to the right place: whoever hears of a detour looks again.
        let found = (0..10).any(|_| match send_to(&mut members, 700 * QPN_UNIT).expect("it arrives") {
            (2, true) => true,
            (who, _) => {
                assert_eq!(who, 2);
                members[2].member.hint(now_ns());
                settle(&mut members);
                false
            }
        });
        assert!(found, "it is still reached by a detour");
    }
}

#[test]
fn a_member_that_never_runs_is_steered_to_and_delays_nobody() {
    let at = at(3);
    let mut members = vec![one(&at, 5), one(&at, 9)];
    // Only the second one runs.
    run(150_000_000, || _ = members[1].round());
    if members[1].member.refused {
        println!("skipped: the kernel attaches no program to a group of sockets here");
        return;
    }
    assert_eq!(members[1].member.table.entries(), [(5, 0), (9, 1)]);
    assert_eq!(send_to(&mut members, 9 * QPN_UNIT), Some((1, true)));
    assert_eq!(send_to(&mut members, 5 * QPN_UNIT), Some((0, true)));
}

#[test]
fn a_forged_packet_to_oneself_and_a_wrong_table_mislead_nobody_for_long() {
    let at = at(4);
    let mut members: Vec<One> = [5, 9].iter().map(|&b| one(&at, b)).collect();
    settle(&mut members);
    if members.iter().any(|m| m.member.refused) {
        println!("skipped: the kernel attaches no program to a group of sockets here");
        return;
    }
    let before = members[0].member.counters.attached;
    for _ in 0..1000 {
        members[0].member.take_own(&[0xff; find::SELF_LEN]);
        members[0].member.take_own(&[]);
    }
    settle(&mut members);
    assert_eq!(members[0].member.counters.attached, before);
    // A table in which the two are exchanged, newer than any: both correct it, and the newest is right.
    let mut wrong = members[0].member.table;
    for _ in 0..100 {
        wrong.revise(BLOCK_MAX);
    }
    wrong.set(5, 7, 5, 1);
    wrong.set(9, 0, 9, 1);
    let now = now_ns();
    for m in &mut members {
        m.member.read(now, 77, &Received::News(wrong));
    }
    settle(&mut members);
    assert_eq!(members[0].member.table.entries(), [(5, 0), (9, 1)]);
    assert_eq!(send_to(&mut members, 9 * QPN_UNIT), Some((1, true)));
    assert_eq!(send_to(&mut members, 5 * QPN_UNIT), Some((0, true)));
}

#[test]
fn blocks_beyond_those_for_programs_are_refused() {
    assert_eq!(Wanted::of(CHECK - 4096, 4096).map(|w| w.count()), Ok(1));
    assert_eq!(Wanted::of(CHECK - 4096, 8192), Err(Error::Invalid));
    assert_eq!(Wanted::of(QPN_UNIT - 16, 32).map(|w| w.count()), Ok(2));
    assert_eq!(Wanted::of(0, 1 << 18), Ok(Wanted { first: None, count: 16 }));
}

#[test]
fn where_the_kernel_refuses_everything_takes_detours() {
    let at = at(6);
    let mut members: Vec<One> = [5, 9, 30].iter().map(|&b| one(&at, b)).collect();
    for m in &mut members {
        m.member.refused = true;
    }
    settle(&mut members);
    assert!(members.iter().all(|m| m.member.counters.attached == 0 && m.member.is_quiet()));
    for (i, block) in [5u32, 9, 30].into_iter().enumerate() {
        for _ in 0..20 {
            assert_eq!(send_to(&mut members, block * QPN_UNIT).map(|(who, _)| who), Some(i));
        }
    }
    let passed: u64 = members.iter().map(|m| m.member.counters.passed).sum();
    assert!(passed > 10, "three sockets, and a hash that knows nothing: {passed}");
}

/// As a server that answers many requests at once, before the kernel steers what it sends to its client.
#[test]
fn more_than_a_mailbox_holds_waits_for_its_owner() {
    let at = at(7);
    let mut members = vec![one(&at, 5), one(&at, 9)];
    settle(&mut members);
    let mut data = [0u8; 64];
    data[4..8].copy_from_slice(&(9 * QPN_UNIT).to_be_bytes());
    let packets = Packets { src: at, seg: 64, first: 0, ecn: 0, data: &data };
    for _ in 0..500 {
        assert!(members[0].member.pass(9, &packets));
    }
    assert!(members[0].member.deadline().is_some());
    let mut got = 0;
    run(200_000_000, || {
        _ = members[0].round();
        got += members[1].round().1;
    });
    let c = members[0].member.counters;
    assert_eq!((got, c.passed, c.dropped, members[0].member.backlog.is_empty()), (500, 500, 0, true));
}
