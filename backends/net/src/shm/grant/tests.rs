use super::super::listener::{connect_link, Incoming, LinkEvent, Listener};
use super::super::messages::{LinkMessage, GRANT, GRANT_LEN, REQUEST_LEN};
use super::super::segment::Segment;
use super::*;
use crate::local::{Holder, Lock, Role, SocketDir};
use crate::sys::check;
use gdrcore_testkit::descriptors::{keep, Keep};
use gdrcore_testkit::place::loopback;
use std::os::fd::OwnedFd;

const BYTES: u64 = 3 << 12;
const WANTED: GrantRequest = GrantRequest { from_qpn: 17, qpn: 18, rkey: 0x10033 };

/// A link with a writer and an owner at its ends.
struct Link {
    ours: LinkSocket,
    theirs: LinkSocket,
    peer_grants: PeerGrants,
    grants: OwnGrants,
    place: RingMap,
    now: u64,
    /// Requested memory may be granted by address.
    by_address: bool,
    _segments: [Segment; 2],
    /// Keeps both processes' ends open, so that either end sees the end of the other.
    _kept: Keep,
}

fn link(n: u8) -> Link {
    let from = Endpoint::v4(loopback(7, n), 4791);
    let lock = Lock::take(&SocketDir::open().unwrap(), &from, Holder::Address).unwrap();
    let listener = Listener::open(&lock).unwrap();
    let (ours, segment) = connect_link(&lock.name(Role::Links), &from, 8192).unwrap();
    let Incoming::Link(mut theirs) = listener.accept() else { panic!("no link at the listener") };
    let (_, mapped) = theirs.receive().unwrap().unwrap();
    let (peer_grants, place) =
        (PeerGrants::new(segment.place(), PeerProcess::from_socket(ours.fd())), mapped.place());
    place.offers().store(OFFERS_SHARED, Ordering::Relaxed);
    Link {
        ours,
        theirs,
        peer_grants,
        grants: OwnGrants::new(),
        place,
        now: 1,
        by_address: false,
        _segments: [segment, mapped],
        _kept: keep(),
    }
}

/// A descriptor as a message brings it.
fn copy(fd: &Fd) -> Foreign {
    OwnedFd::from(Fd::copy_of(fd.raw()).unwrap()).into()
}

fn memory(seals: i32) -> (Fd, Map) {
    // SAFETY: the name is a C string; no other pointers.
    let fd = Fd::from_call(unsafe { libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING) })
        .unwrap();
    // SAFETY: no pointers.
    check(unsafe { libc::ftruncate(fd.raw(), BYTES as libc::off_t) }).unwrap();
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.raw(), libc::F_ADD_SEALS, seals) }).unwrap();
    let map = Map::shared(fd.raw(), 0, BYTES as usize, true).unwrap();
    (fd, map)
}

/// A region that begins 100 bytes into the memory.
fn region() -> MrAttr {
    MrAttr { addr: 0, length: 5000, iova: 1 << 40, rkey: WANTED.rkey, ..MrAttr::default() }
}

impl Link {
    fn pin(&mut self, request: &GrantRequest, at: u64, len: u64) -> Option<u64> {
        let to = self.peer_grants.pin(
            request.from_qpn,
            request.qpn,
            request.rkey,
            (1u64 << 40).wrapping_add(at),
            len,
        );
        if to.is_some() {
            self.peer_grants.unpin();
        }
        to
    }

    /// Maintains the writer's end and returns its requests.
    fn requests(&mut self) -> Vec<GrantRequest> {
        self.now += REQUEST_AGAIN_NS + 1;
        self.peer_grants.maintain(self.now, &mut self.ours);
        let mut all = Vec::new();
        loop {
            match self.theirs.next_event() {
                LinkEvent::Request { request, by_address } => {
                    assert_eq!(by_address, self.by_address);
                    all.push(request);
                }
                LinkEvent::Idle => return all,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Whether the owner may send a descriptor: a kernel before Linux 6.16 refuses none.
    fn takes_descriptors(&self) -> bool {
        let null = std::fs::File::open("/dev/null").unwrap();
        self.theirs.send(b"?", Some(std::os::fd::AsRawFd::as_raw_fd(&null)))
    }

    /// The writer takes the grants that have arrived.
    fn take_grants(&mut self) {
        while let LinkEvent::Grant(grant, fd) = self.ours.next_event() {
            self.peer_grants.take(&grant, fd);
        }
    }

    fn export(&mut self, request: &GrantRequest, fd: &Fd) {
        assert!(self.grants.export(
            request,
            &region(),
            Some((fd.raw(), 100)),
            &self.place,
            &self.theirs
        ));
        self.take_grants();
    }

    /// Drops the revoked grant, misses it again, requests it and gets it.
    fn regrant(&mut self, fd: &Fd) {
        self.requests();
        self.pin(&WANTED, 0, 8);
        self.requests();
        self.export(&WANTED, fd);
    }

    fn takes_back(&mut self) -> bool {
        self.grants.revoke_invalid(&self.place, |_, _, _| false)
    }
}

#[test]
fn a_descriptor_may_come_while_memory_is_asked_for() {
    let mut l = link(40);
    let (fd, _map) = memory(libc::F_SEAL_SHRINK);
    l.requests();
    if l.takes_descriptors() {
        gdrcore_testkit::skip!("this kernel refuses no descriptors");
    }
    assert!(l.pin(&WANTED, 0, 8).is_none());
    assert_eq!(l.requests(), [WANTED]);
    l.export(&WANTED, &fd);
    l.take_grants();
    assert!(l.pin(&WANTED, 0, 8).is_some(), "the memory was refused");
    l.requests();
    assert!(!l.takes_descriptors(), "all that was asked for has come");
    // A further request, for which nothing comes yet.
    assert!(l.pin(&GrantRequest { rkey: 7, ..WANTED }, 0, 8).is_none());
    l.requests();
    assert!(l.takes_descriptors());
}

/// The owner may have had no room for the request, or may share the region later.
#[test]
fn a_request_without_an_answer_is_repeated_after_a_while() {
    let mut l = link(41);
    assert!(l.pin(&WANTED, 0, 8).is_none());
    assert_eq!(l.requests(), [WANTED]);
    // The owner drops it. A round right after that is too early for another request.
    l.peer_grants.maintain(l.now + 1, &mut l.ours);
    assert!(matches!(l.theirs.next_event(), LinkEvent::Idle));
    assert_eq!(l.requests(), [WANTED]);
    assert_eq!(l.requests(), [WANTED]);
    let (fd, _map) = memory(libc::F_SEAL_SHRINK);
    l.export(&WANTED, &fd);
    assert!(l.pin(&WANTED, 0, 8).is_some());
    assert_eq!(l.requests(), []);
}

#[test]
fn granted_memory_is_written_until_it_is_revoked() {
    let mut l = link(1);
    let (fd, map) = memory(libc::F_SEAL_SHRINK);
    assert!(l.pin(&WANTED, 0, 8).is_none());
    assert_eq!(l.requests(), [WANTED]);
    l.export(&WANTED, &fd);
    let to = l.pin(&WANTED, 8, 8).unwrap();
    gdrcore_core::mem::host::place(to, b"12345678").unwrap();
    // SAFETY: inside the map, 12,288 bytes.
    let seen = unsafe { core::slice::from_raw_parts(map.as_ptr().add(108), 8) };
    assert_eq!(seen, b"12345678");
    // The region's ends, and addresses beyond.
    assert!(l.pin(&WANTED, 4999, 1).is_some() && l.pin(&WANTED, 0, 5000).is_some());
    assert!(l.pin(&WANTED, 4999, 2).is_none() && l.pin(&WANTED, 1u64.wrapping_neg(), 1).is_none());
    assert!(
        l.pin(&WANTED, u64::MAX - (1 << 40), 1).is_none() && l.pin(&WANTED, 0, u64::MAX).is_none()
    );
    for other in [
        GrantRequest { from_qpn: 1, ..WANTED },
        GrantRequest { qpn: 1, ..WANTED },
        GrantRequest { rkey: 1, ..WANTED },
    ] {
        assert!(l.pin(&other, 0, 8).is_none());
    }
    assert!(l.takes_back());
    assert!(l.pin(&WANTED, 0, 8).is_none());
    // The region is requested again later.
    l.requests();
    assert!(l.pin(&WANTED, 0, 8).is_none());
    assert!(l.requests().contains(&WANTED));
    l.export(&WANTED, &fd);
    assert!(l.pin(&WANTED, 0, 8).is_some());
    // Granted twice: the second grant counts.
    l.export(&WANTED, &fd);
    assert!(l.pin(&WANTED, 0, 8).is_none());
    l.requests();
    assert!(l.pin(&WANTED, 0, 8).is_none());
    l.requests();
    l.export(&WANTED, &fd);
    assert!(l.pin(&WANTED, 0, 8).is_some());
}

#[test]
fn grants_of_an_owner_are_checked() {
    let mut l = link(2);
    let (fd, _map) = memory(libc::F_SEAL_SHRINK);
    let (loose, _loose_map) = memory(0);
    let null = crate::sys::Fd::from_call(
        // SAFETY: the name is a C string.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) },
    )
    .unwrap();
    let sound = Grant {
        request: WANTED,
        number: 0,
        serial: 1,
        iova: 1 << 40,
        length: 5000,
        offset: 100,
        by_address: false,
    };
    l.place.grant(0).activate(1);
    // A grant that was not requested.
    l.peer_grants.take(&sound, Some(copy(&fd)));
    assert!(l.pin(&WANTED, 0, 8).is_none());
    l.requests();
    for (grant, fd) in [
        (sound, &loose),
        (sound, &null),
        (Grant { number: GRANTS as u32, ..sound }, &fd),
        (Grant { number: u32::MAX, ..sound }, &fd),
        (Grant { serial: 0, ..sound }, &fd),
        (Grant { length: 0, ..sound }, &fd),
        (Grant { length: BYTES, ..sound }, &fd),
        (Grant { length: u64::MAX, ..sound }, &fd),
        (Grant { offset: u64::MAX, ..sound }, &fd),
        (Grant { iova: u64::MAX - 10, ..sound }, &fd),
        (Grant { request: GrantRequest { rkey: 7, ..WANTED }, ..sound }, &fd),
    ] {
        l.peer_grants.take(&grant, Some(copy(fd)));
        assert!(l.pin(&WANTED, 0, 8).is_none(), "{grant:?}");
    }
    // The serial in the page is another.
    l.peer_grants.take(&Grant { serial: 2, ..sound }, Some(copy(&fd)));
    assert!(l.pin(&WANTED, 0, 8).is_none());
    l.requests();
    assert!(l.pin(&WANTED, 0, 8).is_none());
    l.requests();
    l.peer_grants.take(&sound, Some(copy(&fd)));
    assert!(l.pin(&WANTED, 0, 8).is_some());
}

#[test]
fn a_writer_holds_as_many_grants_as_it_has_entries() {
    let mut l = link(3);
    let (fd, _map) = memory(libc::F_SEAL_SHRINK);
    let request = |i: usize| GrantRequest { rkey: i as u32, ..WANTED };
    for i in 0..3 * GRANTS {
        assert!(l.pin(&request(i), 0, 8).is_none());
        for requested in l.requests() {
            l.export(&requested, &fd);
        }
    }
    let held = (0..3 * GRANTS).filter(|&i| l.pin(&request(i), 0, 8).is_some()).count();
    assert_eq!(held, GRANTS);
    // Without memory to grant, nothing is requested.
    let mut l = link(4);
    l.place.offers().store(0, Ordering::Relaxed);
    assert!(
        !l.peer_grants.offers_mappable()
            && l.pin(&WANTED, 0, 8).is_none()
            && l.requests().is_empty()
    );
}

#[test]
fn a_pin_is_waited_for_but_not_for_ever() {
    let (fd, _map) = memory(libc::F_SEAL_SHRINK);
    // The writer unpins after a while. On a busy machine that may be longer than the owner waits:
    // then the test repeats.
    let waited = (0..100).find_map(|_| {
        let mut l = link(5);
        l.pin(&WANTED, 0, 8);
        l.requests();
        l.export(&WANTED, &fd);
        assert!(l.peer_grants.pin(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_some());
        let Link { grants, place, _segments: [segment, _], .. } = &mut l;
        let left = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Until the owner has ended the grant and waits.
                while !segment.place().grant(0).is(0) {
                    std::thread::yield_now();
                }
                segment.place().pinned().unpin();
            });
            grants.revoke_invalid(place, |_, _, _| false)
        });
        left.then_some(l)
    });
    let mut l = waited.expect("the owner never waited for the pin");
    assert!(l.pin(&WANTED, 0, 8).is_none());
    l.regrant(&fd);
    // The writer has stopped with the pin.
    assert!(l.peer_grants.pin(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_some());
    assert!(!l.takes_back());
    l.peer_grants.unpin();
    assert!(l.pin(&WANTED, 0, 8).is_none());
    // A repeated request by a writer that keeps the pin delays the owner no more than once.
    l.regrant(&fd);
    assert!(l.peer_grants.pin(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_some());
    assert!(!l.grants.export(&WANTED, &region(), Some((fd.raw(), 100)), &l.place, &l.theirs));
}

/// A link whose owner grants its memory by address, and a region of it.
fn by_address(n: u8) -> (Link, Map, MrAttr) {
    let mut l = link(n);
    l.place.offers().store(offers(&[], true), Ordering::Relaxed);
    l.by_address = true;
    let map = Map::new(BYTES as usize).unwrap();
    let addr = map.as_ptr().expose_provenance() as u64 + 3;
    (l, map, MrAttr { addr, ..region() })
}

impl Link {
    fn pin_remote(&mut self, at: u64, len: u64) -> Option<u64> {
        let to = self.peer_grants.pin_remote(
            WANTED.from_qpn,
            WANTED.qpn,
            WANTED.rkey,
            (1u64 << 40).wrapping_add(at),
            len,
        );
        if to.is_some() {
            assert!(self.place.pinned().is_pinned(0));
            self.peer_grants.unpin();
        }
        assert!(!self.place.pinned().is_pinned(0));
        to
    }

    /// The region is missed, requested and granted by address.
    fn grant_by_address(&mut self, region: &MrAttr) {
        assert!(self.pin_remote(0, 8).is_none());
        assert_eq!(self.requests(), [WANTED]);
        assert!(self.grants.export(&WANTED, region, None, &self.place, &self.theirs));
        self.take_grants();
    }
}

#[test]
fn memory_granted_by_address_is_copied_to_until_it_is_revoked() {
    let (mut l, map, region) = by_address(6);
    // Short WRITEs do not request the region.
    assert!(!l.peer_grants.offers_mappable() && l.peer_grants.offers_any());
    assert!(l.pin(&WANTED, 0, 8).is_none() && l.requests().is_empty());
    l.grant_by_address(&region);
    assert!(l.pin(&WANTED, 0, 8).is_none(), "it is not mapped");
    let to = l.pin_remote(8, 13).unwrap();
    assert_eq!(to, region.addr + 8);
    let (one, two) = (*b"from one ", *b"and another");
    let piece = |bytes: &[u8], len| Piece { addr: bytes.as_ptr().expose_provenance() as u64, len };
    assert!(l.peer_grants.copy_remote(&[piece(&one, 9), piece(&two, 4)], to));
    // SAFETY: inside the map.
    let seen = unsafe { core::slice::from_raw_parts(map.as_ptr().add(8), 24) };
    assert_eq!(seen, b"\0\0\0from one and \0\0\0\0\0\0\0\0");
    assert!(l.pin_remote(4999, 1).is_some() && l.pin_remote(0, 5000).is_some());
    assert!(l.pin_remote(4999, 2).is_none() && l.pin_remote(1u64.wrapping_neg(), 1).is_none());
    assert!(l.pin_remote(u64::MAX - (1 << 40), 1).is_none() && l.pin_remote(0, u64::MAX).is_none());
    // An unmapped address is a fault, which does not end the use of the grant.
    assert!(
        !l.peer_grants.copy_remote(&[piece(&one, 9)], 8)
            && !l.peer_grants.copy_remote(&[Piece { addr: 8, len: 9 }], to)
    );
    assert!(l.pin_remote(0, 8).is_some());
    assert!(l.takes_back());
    // An initiator that was stopped before its call learns of the revocation when it continues.
    assert!(!l.peer_grants.copy_remote(&[piece(b"late", 4)], to));
    // SAFETY: inside the map.
    let seen = unsafe { core::slice::from_raw_parts(map.as_ptr().add(8), 24) };
    assert_eq!(seen, b"\0\0\0from one and \0\0\0\0\0\0\0\0");
    assert!(l.pin_remote(0, 8).is_none());
    l.requests();
    l.grant_by_address(&region);
    assert!(l.pin_remote(0, 8).is_some());
    // A pin is waited for, as if the memory were mapped.
    assert!(l
        .peer_grants
        .pin_remote(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8)
        .is_some());
    assert!(!l.takes_back());
}

#[test]
fn a_grant_by_address_is_taken_only_if_requested_and_enabled() {
    let (mut l, _map, region) = by_address(7);
    let sound = Grant {
        request: WANTED,
        number: 0,
        serial: 1,
        iova: 1 << 40,
        length: 5000,
        offset: region.addr,
        by_address: true,
    };
    l.place.grant(0).activate(1);
    // Not requested; requested as mapped.
    l.peer_grants.take(&sound, None);
    assert!(l.pin_remote(0, 8).is_none());
    l.peer_grants.by_address = [const { None }; GRANTS];
    l.place.offers().store(OFFERS_SHARED, Ordering::Relaxed);
    l.pin(&WANTED, 0, 8);
    l.peer_grants.take(&sound, None);
    l.peer_grants.list = [const { None }; GRANTS];
    l.place.offers().store(offers(&[], true), Ordering::Relaxed);
    assert!(l.pin_remote(0, 8).is_none());
    assert_eq!(l.requests(), [WANTED]);
    for grant in [
        Grant { number: GRANTS as u32, ..sound },
        Grant { serial: 0, ..sound },
        Grant { length: 0, ..sound },
        Grant { iova: u64::MAX - 10, ..sound },
        Grant { offset: u64::MAX - 10, ..sound },
        Grant { by_address: false, ..sound },
    ] {
        l.peer_grants.take(&grant, None);
        assert!(l.pin_remote(0, 8).is_none(), "{grant:?}");
    }
    l.peer_grants.take(&sound, None);
    assert!(l.pin_remote(0, 8).is_some());
    // The other end's process is gone: no further attempt.
    let Link { mut ours, mut peer_grants, theirs, place, .. } = l;
    drop(theirs);
    let own = *b"12345678";
    assert!(!peer_grants.copy_remote(
        &[Piece { addr: own.as_ptr().expose_provenance() as u64, len: 8 }],
        region.addr
    ));
    assert!(peer_grants.process.is_none() && !peer_grants.offers_any());
    assert!(peer_grants.pin_remote(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_none());
    peer_grants.maintain(u64::MAX, &mut ours);
    // Nor is there one if the program does not enable it.
    let mut without = PeerGrants::new(place, None);
    assert!(!without.offers_any());
    assert!(without.pin_remote(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_none());
    assert!(without.by_address.iter().all(Option::is_none));
}

#[test]
fn messages_differ_by_kind() {
    for by_address in [false, true] {
        let grant = Grant {
            request: WANTED,
            number: 3,
            serial: 4,
            iova: 5,
            length: 6,
            offset: 7,
            by_address,
        };
        let bytes = grant.emit();
        assert_eq!(LinkMessage::parse(&bytes), Some(LinkMessage::Grant(grant)));
        assert_eq!(LinkMessage::parse(&bytes[..GRANT_LEN - 1]), None);
        let bytes = WANTED.emit(if by_address { REQUEST_BY_ADDRESS } else { REQUEST });
        let request = LinkMessage::Request { request: WANTED, by_address };
        assert_eq!(LinkMessage::parse(&bytes), Some(request));
        assert_eq!(LinkMessage::parse(&bytes[..REQUEST_LEN - 1]), None);
    }
    assert_eq!(LinkMessage::parse(&[1]), Some(LinkMessage::Wake));
    assert_eq!(LinkMessage::parse(&WANTED.emit(GRANT)), None);
}
