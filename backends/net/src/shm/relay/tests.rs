use super::*;
use crate::sys::any_ready;
use std::os::fd::AsRawFd;

fn both() -> (Relay, Relay) {
    let (router, ends) = Relay::create().unwrap();
    (router, Relay::open(ends, RINGS).unwrap())
}

fn rings(relay: &Relay) -> bool {
    any_ready([(relay.fd().as_raw_fd(), libc::POLLIN)])
}

#[test]
fn a_frame_arrives_unchanged_with_the_address_of_its_head() {
    let (mut router, mut session) = both();
    let mut space = [0; FRAME_MAX];
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
    let mut space = [0; FRAME_MAX];
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
    let mut space = [0; FRAME_MAX];
    for marked in [true, false, true] {
        assert_eq!(router.put_quietly(&[1; 16], &[5; 100], marked), Ok(Put::Done));
        let got = session.take(&mut space).unwrap().unwrap();
        assert_eq!((got.congested, got.packet), (marked, &[5; 100][..]));
    }
}

#[test]
fn wake_ups_reach_sleepers_and_writers_that_wait_for_room() {
    let (mut router, mut session) = both();
    let mut space = [0; FRAME_MAX];
    session.put(&[1; 16], &[1]).unwrap();
    assert!(!rings(&router), "it does not sleep");
    assert!(router.announce_sleep(), "a frame is there");
    router.take(&mut space).unwrap();
    assert!(!router.announce_sleep());
    session.put(&[1; 16], &[1]).unwrap();
    assert!(rings(&router) && !router.hear() && !rings(&router));
    router.take(&mut space).unwrap();
    while session.has_room(16 << 10).unwrap() {
        session.put(&[1; 16], &[0; 4000]).unwrap();
    }
    while router.take(&mut space).unwrap().is_some() {}
    assert!(rings(&session) && session.has_room(16 << 10).unwrap());
}

#[test]
fn an_ended_or_misbehaving_end_is_noticed() {
    let (router, session) = both();
    assert!(!router.hear());
    drop(session);
    assert!(router.hear(), "the closed end was not noticed");
    let (mut router, mut session) = both();
    let mut space = [0; FRAME_MAX];
    session.writer.place().lie(1 << 20);
    assert_eq!(router.take(&mut space), Err(Broken), "a length beyond the ring");
    let (mut router, session2) = both();
    session2.writer.place().lie(HEAD as u32);
    assert_eq!(router.take(&mut space), Err(Broken), "a head without a packet");
    let (mut router, session3) = both();
    session3.writer.place().lie(FRAME_MAX as u32 + 1);
    assert_eq!(router.take(&mut space), Err(Broken), "longer than a frame");
    for at in [16usize, 18, 23] {
        let (mut router, mut session) = both();
        let Some((p, _)) = session.writer.room(100, 100).unwrap() else { panic!("no room") };
        let mut bytes = [0u8; 100];
        bytes[at] = 2;
        host::place(p.as_ptr() as u64, &bytes).unwrap();
        session.writer.publish(100);
        assert_eq!(router.take(&mut space), Err(Broken), "{at}");
    }
    assert_eq!(session.has_room(1 << 10), Ok(true));
}

#[test]
fn memory_of_another_form_is_refused() {
    let (_router, ends) = Relay::create().unwrap();
    assert_eq!(Relay::open(ends, (RINGS.1, RINGS.0)).unwrap_err(), Error::Access);
    let (_router, ends) = Relay::create().unwrap();
    assert_eq!(
        Ends::of([Some(ends.up), None, Some(ends.socket)]).unwrap_err(),
        Error::Os(libc::EMFILE)
    );
}
