use super::*;
use crate::sys::any_ready;
use std::os::fd::AsRawFd;

fn both() -> (Relay, Relay) {
    pair(false)
}

fn pair(grow: bool) -> (Relay, Relay) {
    let (router, ends) = Relay::create(grow).unwrap();
    (router, Relay::open(ends, RINGS, grow).unwrap())
}

/// An address, with the fields of packets to it.
fn at(gid: [u8; 16], grh: Fields) -> PeerAddr {
    let Fields { flow_label, traffic_class, hop_limit } = grh;
    PeerAddr { gid, flow_label, traffic_class, hop_limit, ..PeerAddr::default() }
}

fn rings(relay: &Relay) -> bool {
    any_ready([(relay.fd().as_raw_fd(), libc::POLLIN)])
}

#[test]
fn a_frame_arrives_unchanged_with_the_address_of_its_head() {
    let (mut router, mut session) = both();
    let mut space = [0; PACKET_MAX];
    for (n, len) in [1usize, 40, 63, 64, 65, 4096, PACKET_MAX].into_iter().enumerate() {
        let packet: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
        assert_eq!(session.put(&[n as u8; 16], &packet), Ok(Put::Done));
        let got = router.take(&mut space).unwrap().unwrap();
        assert_eq!((got.address, got.packet), ([n as u8; 16], &packet[..]));
        assert_eq!(router.put(&[9; 16], &packet), Ok(Put::Done));
        assert_eq!(session.take(&mut space).unwrap().unwrap().packet, &packet[..]);
    }
    assert_eq!(router.take(&mut space), Ok(None));
    assert_eq!(session.put(&[0; 16], &[0; PACKET_MAX + 1]), Ok(Put::Full), "no packet");
}

#[test]
fn a_full_ring_refuses_frames_and_marks_them_before_it_is_full() {
    let (mut router, mut session) = both();
    let mut space = [0; PACKET_MAX];
    let mut sent = 0;
    while router.put(&[1; 16], &[sent as u8; 1000]) == Ok(Put::Done) {
        sent += 1;
    }
    assert!((200..=256).contains(&sent), "{sent}");
    let mut congested = Vec::new();
    for n in 0..sent {
        let got = session.take(&mut space).unwrap().unwrap();
        assert_eq!(got.packet, [n as u8; 1000]);
        congested.push(got.congested);
    }
    let first = congested.iter().position(|&c| c).expect("it was full");
    assert!(congested[first..].iter().all(|&c| c));
    assert!((sent * 2 / 5..sent * 3 / 5).contains(&first), "{first} of {sent}");
    session.settle();
    assert_eq!(router.put(&[1; 16], &[0; 1000]), Ok(Put::Done));
}

#[test]
fn a_mark_arrives_whatever_room_there_is() {
    let (mut router, mut session) = both();
    let mut space = [0; PACKET_MAX];
    for marked in [true, false, true] {
        assert_eq!(router.put_quietly(&[1; 16], &[5; 100], marked), Ok(Put::Done));
        let got = session.take(&mut space).unwrap().unwrap();
        assert_eq!((got.congested, got.packet), (marked, &[5; 100][..]));
    }
}

#[test]
fn wake_ups_reach_sleepers_and_writers_that_wait_for_room() {
    let (mut router, mut session) = both();
    let mut space = [0; PACKET_MAX];
    session.put(&[1; 16], &[1]).unwrap();
    assert!(!rings(&router), "it does not sleep");
    assert!(router.announce_sleep(), "a frame is there");
    router.take(&mut space).unwrap();
    assert!(!router.announce_sleep());
    session.put(&[1; 16], &[1]).unwrap();
    assert!(rings(&router) && !router.take_wakeups() && !rings(&router));
    router.take(&mut space).unwrap();
    while session.ask_room(16 << 10).unwrap() {
        session.put(&[1; 16], &[0; 4000]).unwrap();
    }
    while router.take(&mut space).unwrap().is_some() {}
    assert!(rings(&session) && session.ask_room(16 << 10).unwrap());
}

#[test]
fn an_ended_or_misbehaving_end_is_noticed() {
    let (mut router, session) = both();
    assert!(!router.take_wakeups());
    drop(session);
    assert!(router.take_wakeups(), "the closed end was not noticed");
    let (mut router, mut session) = both();
    let mut space = [0; PACKET_MAX];
    session.writer.place().write_length(1 << 20);
    assert_eq!(router.take(&mut space), Err(BrokenRing), "a length beyond the ring");
    let (mut router, session2) = both();
    session2.writer.place().write_length(HEAD as u32);
    assert_eq!(router.take(&mut space), Err(BrokenRing), "a head without a packet");
    let (mut router, session3) = both();
    session3.writer.place().write_length(FRAME_MAX as u32 + 1);
    assert_eq!(router.take(&mut space), Err(BrokenRing), "longer than a frame");
    for (at, has_headers) in
        [(16usize, false), (17, false), (20, false), (23, false), (16, true), (23, true)]
    {
        let (router, mut session) = both();
        let mut router = router.with_headers(has_headers);
        let Some((p, _)) = session.writer.room(100, 100).unwrap() else { panic!("no room") };
        let mut bytes = [0u8; 100];
        bytes[at] = 0x12;
        host::place(p.as_ptr() as u64, &bytes).unwrap();
        session.writer.publish(100);
        assert_eq!(router.take(&mut space), Err(BrokenRing), "{at}");
    }
    assert_eq!(session.ask_room(1 << 10), Ok(true));
}

#[test]
fn a_frame_of_several_packets_is_taken_packet_by_packet() {
    let (mut router, mut session) = pair(true);
    let mut space = [0; PACKET_MAX];
    let mut number = 0u32;
    // Many laps of the ring, and its move: more than half of the ring is sent at once.
    for turn in 0..200usize {
        let mut sent = Vec::new();
        while sent.len() < 6 * (turn % 2) + 1 {
            let (seg, n) = ([100, 1000, 4096][number as usize % 3], 1 + number as usize % 7);
            let Some(room) = session.room(32 << 10).unwrap() else { break };
            let len = (n * seg - number as usize % 50).min(room.len());
            for (k, bytes) in room[..len].chunks_mut(seg).enumerate() {
                bytes.fill((number as u8).wrapping_add(k as u8));
            }
            session.send(&at([number as u8; 16], Fields::default()), len, seg).unwrap();
            sent.push((number as u8, len, seg));
            number += 1;
        }
        for (number, len, seg) in sent {
            for k in 0..len.div_ceil(seg) {
                assert!(router.has_input());
                let got = router.take(&mut space).unwrap().unwrap();
                let bytes = vec![number.wrapping_add(k as u8); (len - k * seg).min(seg)];
                assert_eq!((got.address, got.packet), ([number; 16], &bytes[..]));
            }
        }
        assert!(!router.has_input() && router.take(&mut space) == Ok(None));
    }
    assert!(session.writer.half() == LARGER.0 as usize / 2, "it has moved");
}

#[test]
fn a_frame_of_anything_but_packets_breaks_the_ring() {
    let mut space = [0; PACKET_MAX];
    let (mut router, mut session) = both();
    assert_eq!(session.room(32 << 10).unwrap().unwrap().len(), 32 << 10);
    assert_eq!(session.room(1).unwrap().unwrap().len(), PACKET_MAX);
    // One packet that is too long, packets that are too long, and none behind the first.
    for (len, several) in [(PACKET_MAX + 1, 0), (9000, PACKET_MAX + 1), (60, 60), (60, 61)] {
        let Some((p, _)) = session.writer.room(HEAD + len, HEAD + len).unwrap() else { panic!() };
        let mut head = [0; HEAD];
        head[18..20].copy_from_slice(&(several as u16).to_le_bytes());
        host::place(p.as_ptr() as u64, &head).unwrap();
        session.writer.publish(HEAD + len);
        assert_eq!(router.take(&mut space), Err(BrokenRing), "{len} {several}");
        assert!(router.look(&mut [0; LONG]).is_err(), "{len} {several}");
        (router, session) = both();
    }
}

#[test]
fn a_frame_has_what_ip_headers_have_where_both_ends_know_of_it() {
    let of = |flow_label, traffic_class, hop_limit| Fields { flow_label, traffic_class, hop_limit };
    let all = [
        (of(0, 0, 0), of(0, 0, 0)),
        (of(0xf_edcb, 0xb8, 255), of(0xf_edcb, 0xb8, 255)),
        // Values that no frame carries: ECN bits, a limit of 1, a label of more than 20 bits.
        (of(0xff0_0001, 0x07, 1), of(1, 4, 0)),
    ];
    for known in [false, true] {
        let (router, session) = both();
        let mut ends = (router.with_headers(known), session.with_headers(known));
        let mut space = [0; PACKET_MAX];
        for (asked, carried) in all {
            let carried = if known { carried } else { of(0, 0, 0) };
            let (router, session) = &mut ends;
            session.room(100).unwrap().unwrap()[..90].fill(7);
            session.send(&at([1; 16], asked), 90, 40).unwrap();
            for _ in 0..3 {
                let mut first = [0; LONG];
                let (_, packet) = router.look(&mut first).unwrap().unwrap();
                assert_eq!(packet.grh, carried);
                // And on to another session.
                router
                    .put_with_icrc(&[2; 16], &Packet::whole(&[7; 40], asked), &[], false)
                    .unwrap();
                router.consume();
                assert_eq!(session.take(&mut space).unwrap().unwrap().grh, carried);
            }
        }
    }
}

/// Frames that go into a ring before it is full, or `most`, each with its number.
fn fill(relay: &mut Relay, from: u32, most: u32) -> u32 {
    let mut n = 0;
    while n < most
        && relay.put(&[1; 16], &[(from + n).to_le_bytes(); 250].concat()) == Ok(Put::Done)
    {
        n += 1;
    }
    n
}

/// Takes frames of [`fill`]. Returns how many were marked.
fn drain(relay: &mut Relay, numbers: std::ops::Range<u32>) -> usize {
    let mut space = [0; PACKET_MAX];
    let marked = numbers.filter(|n| {
        let got = relay.take(&mut space).unwrap().unwrap();
        assert_eq!(got.packet, [n.to_le_bytes(); 250].concat());
        got.congested
    });
    let marked = marked.count();
    assert_eq!(relay.take(&mut space), Ok(None));
    relay.settle();
    marked
}

#[test]
fn a_half_full_ring_moves_to_larger_memory_and_loses_no_frame() {
    let moves = |name: &str, from: &mut Relay, to: &mut Relay, size: u32, larger: u32| {
        let (mut n, first) = (0, size / 1088);
        for lap in 1..LAPS {
            let (more, before) = (fill(from, n, first * 7 / 8), n);
            n += more;
            assert!(more == first * 7 / 8, "{name}, lap {lap}: {more}");
            drain(to, before..n);
        }
        // Half of the first ring, and all of the larger one, half of it marked.
        let (half, all, before) = (first / 2, larger / 1088, n);
        let more = fill(from, n, u32::MAX);
        n += more;
        assert!(((half + all) * 9 / 10..=half + all + 5).contains(&more), "{name}: {more}");
        let marked = drain(to, before..n) as u32;
        assert!((all * 4 / 10..all * 6 / 10).contains(&marked), "{name}: {marked} of {n} marked");
        // The ring stays in the larger memory.
        let again = fill(from, n, u32::MAX);
        assert!((all * 9 / 10..=all).contains(&again), "{name}: {again}");
        drain(to, n..n + again);
    };
    let (mut router, mut session) = pair(true);
    moves("down", &mut router, &mut session, RINGS.1, LARGER.1);
    moves("up", &mut session, &mut router, RINGS.0, LARGER.0);
}

#[test]
fn a_ring_without_room_moves_at_once() {
    let (mut router, mut session) = pair(true);
    let n = fill(&mut router, 0, u32::MAX);
    let room = (RINGS.1 + LARGER.1) / 1088;
    assert!((room * 9 / 10..=room).contains(&n), "{n}");
    drain(&mut session, 0..n);
    // The ring moves once.
    let again = fill(&mut router, n, u32::MAX);
    assert!((LARGER.1 / 1088 * 9 / 10..=LARGER.1 / 1088).contains(&again), "{again}");
    drain(&mut session, n..n + again);
}

#[test]
fn a_ring_without_room_for_anything_moves_all_the_same() {
    let (mut router, mut session) = pair(true);
    let mut space = [0; PACKET_MAX];
    // Frames of a line each, so that none is left.
    let mut n = 0u32;
    while router.put(&[1; 16], &[n.to_le_bytes(); 8].concat()) == Ok(Put::Done) {
        n += 1;
    }
    assert!(n > RINGS.1 / 64 * 2, "{n}");
    for k in 0..n {
        let got = session.take(&mut space).unwrap().unwrap();
        assert_eq!(got.packet, [k.to_le_bytes(); 8].concat());
    }
}

#[test]
fn a_reader_that_sleeps_is_woken_by_the_move() {
    let (mut router, mut session) = pair(true);
    let mut n = 0u32;
    for _ in 1..LAPS {
        let more = fill(&mut router, n, RINGS.1 / 1088 * 7 / 8);
        drain(&mut session, n..n + more);
        n += more;
    }
    assert!(!session.announce_sleep());
    let before = n;
    while router.writer.half() == RINGS.1 as usize / 2 {
        let frame = [n.to_le_bytes(); 250].concat();
        assert_eq!(router.put_quietly(&[1; 16], &frame, false), Ok(Put::Done));
        n += 1;
    }
    // Nobody has called `wake`.
    assert!(rings(&session) && !session.take_wakeups());
    assert_eq!(drain(&mut session, before..n), 0);
    assert!(!session.announce_sleep(), "it sleeps in the larger ring");
    assert_eq!(router.put(&[1; 16], &[7]), Ok(Put::Done));
    assert!(rings(&session));
}

#[test]
fn a_ring_that_may_not_move_breaks_by_the_word_of_it() {
    let mut space = [0; PACKET_MAX];
    let (mut router, session) = both();
    session.writer.place().write_length(MOVED as u32);
    assert_eq!(router.take(&mut space), Err(BrokenRing));
    // The ring moves once.
    let (mut router, session) = pair(true);
    session.writer.place().write_length(MOVED as u32);
    assert_eq!(router.take(&mut space), Ok(None));
    let mut larger = Writer::new(session.grows.as_ref().unwrap().segment.place());
    for len in [100, MOVED] {
        let (p, _) = larger.room(len, len).unwrap().unwrap();
        host::place(p.as_ptr() as u64, &[0; 100][..len]).unwrap();
        larger.publish(len);
    }
    assert_eq!(router.take(&mut space).unwrap().unwrap().packet, [0; 76]);
    assert_eq!(router.take(&mut space), Err(BrokenRing));
}

#[test]
fn memory_of_another_form_is_refused() {
    let open = |made, sizes, grow| {
        let (_router, ends) = Relay::create(made).unwrap();
        Relay::open(ends, sizes, grow).unwrap_err()
    };
    for grow in [false, true] {
        assert_eq!(open(grow, (RINGS.1, RINGS.0), grow), Error::Access);
        assert_eq!(open(grow, RINGS, !grow), Error::Access);
    }
    assert_eq!(open(true, (u32::MAX, RINGS.1), true), Error::Invalid);
    let (_router, ends) = Relay::create(false).unwrap();
    assert_eq!(
        RingDescriptors::from_descriptors([Some(ends.up), None, Some(ends.socket)]).unwrap_err(),
        Error::Os(libc::EMFILE)
    );
}

#[test]
fn neither_bell_takes_a_descriptor() {
    let (router, session) = both();
    let null = std::fs::File::open("/dev/null").unwrap();
    if !crate::rights::refuse(router.fd()) {
        gdrcore_testkit::skip!("this kernel refuses no descriptors");
    }
    let (router, ends) = (Relay::create(false).unwrap(), session);
    let (relay, parts) = router;
    for from in [relay.fd().as_raw_fd(), parts.socket.as_raw_fd(), ends.fd().as_raw_fd()] {
        assert_eq!(crate::rights::send(from, &[1], null.as_raw_fd()), Err(Error::Access));
    }
}
