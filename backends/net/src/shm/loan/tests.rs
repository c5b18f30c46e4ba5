use super::super::door::{knock, Door, Heard, Knock};
use super::super::messages::{ASK_LEN, LOAN, LOAN_LEN};
use super::super::segment::Segment;
use super::*;
use crate::local::{Holder, Home, Lock, Role};
use crate::sys::check;
use gdrcore_testkit::descriptors::{keep, Keep};
use gdrcore_testkit::place::loopback;

const BYTES: u64 = 3 << 12;
const WANTED: Ask = Ask { from_qpn: 17, qpn: 18, rkey: 0x10033 };

/// A link with a borrower and a lender at its ends.
struct Link {
    ours: Bell,
    theirs: Bell,
    borrowed: Borrowed,
    loans: Loans,
    place: Place,
    now: u64,
    /// What is asked for may be lent by address.
    far: bool,
    _segments: [Segment; 2],
    /// Either end sees the end of the other.
    _kept: Keep,
}

fn link(n: u8) -> Link {
    let from = Endpoint::v4(loopback(7, n), 4791);
    let lock = Lock::take(&Home::open().unwrap(), &from, Holder::Address).unwrap();
    let door = Door::open(&lock).unwrap();
    let (ours, segment) = knock(&lock.name(Role::Door), &from, 8192).unwrap();
    let Knock::Caller(theirs) = door.accept() else { panic!("nobody at the door") };
    let (_, mapped) = theirs.receive().unwrap().unwrap();
    let (borrowed, place) = (Borrowed::new(segment.place(), Reach::of(ours.fd())), mapped.place());
    place.lends().store(SHARES, Ordering::Relaxed);
    Link {
        ours,
        theirs,
        borrowed,
        loans: Loans::new(),
        place,
        now: 1,
        far: false,
        _segments: [segment, mapped],
        _kept: keep(),
    }
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
    fn enter(&mut self, ask: &Ask, at: u64, len: u64) -> Option<u64> {
        let to = self.borrowed.enter(
            ask.from_qpn,
            ask.qpn,
            ask.rkey,
            (1u64 << 40).wrapping_add(at),
            len,
        );
        if to.is_some() {
            self.borrowed.leave();
        }
        to
    }

    /// Tends the borrower's end; what it asks for.
    fn asks(&mut self) -> Vec<Ask> {
        self.now += ASK_AGAIN_NS + 1;
        self.borrowed.tend(self.now, &self.ours);
        let mut all = Vec::new();
        loop {
            match self.theirs.hear() {
                Heard::Asked(ask, far) => {
                    assert_eq!(far, self.far);
                    all.push(ask);
                }
                Heard::Quiet => return all,
                other => panic!("{other:?}"),
            }
        }
    }

    /// The borrower takes the loans that have come.
    fn takes(&mut self) {
        while let Heard::Lent(loan, fd) = self.ours.hear() {
            self.borrowed.take(&loan, fd.as_ref());
        }
    }

    fn lend(&mut self, ask: &Ask, fd: &Fd) {
        assert!(self.loans.lend(ask, &region(), Some((fd.raw(), 100)), &self.place, &self.theirs));
        self.takes();
    }

    /// What was taken back is given up, wanted again, asked for and lent.
    fn borrows(&mut self, fd: &Fd) {
        self.asks();
        self.enter(&WANTED, 0, 8);
        self.asks();
        self.lend(&WANTED, fd);
    }

    fn takes_back(&mut self) -> bool {
        self.loans.check(&self.place, |_, _, _| false)
    }
}

#[test]
fn what_is_lent_is_written_and_taken_back() {
    let mut l = link(1);
    let (fd, map) = memory(libc::F_SEAL_SHRINK);
    assert!(l.enter(&WANTED, 0, 8).is_none());
    assert_eq!(l.asks(), [WANTED]);
    l.lend(&WANTED, &fd);
    let to = l.enter(&WANTED, 8, 8).unwrap();
    gdrcore_core::mem::host::place(to, b"12345678").unwrap();
    // SAFETY: inside the map, 12,288 bytes.
    let seen = unsafe { core::slice::from_raw_parts(map.as_ptr().add(108), 8) };
    assert_eq!(seen, b"12345678");
    // Its ends, and what lies beyond.
    assert!(l.enter(&WANTED, 4999, 1).is_some() && l.enter(&WANTED, 0, 5000).is_some());
    assert!(
        l.enter(&WANTED, 4999, 2).is_none() && l.enter(&WANTED, 1u64.wrapping_neg(), 1).is_none()
    );
    assert!(
        l.enter(&WANTED, u64::MAX - (1 << 40), 1).is_none()
            && l.enter(&WANTED, 0, u64::MAX).is_none()
    );
    for other in
        [Ask { from_qpn: 1, ..WANTED }, Ask { qpn: 1, ..WANTED }, Ask { rkey: 1, ..WANTED }]
    {
        assert!(l.enter(&other, 0, 8).is_none());
    }
    assert!(l.takes_back());
    assert!(l.enter(&WANTED, 0, 8).is_none());
    // And it is asked for anew, later.
    l.asks();
    assert!(l.enter(&WANTED, 0, 8).is_none());
    assert!(l.asks().contains(&WANTED));
    l.lend(&WANTED, &fd);
    assert!(l.enter(&WANTED, 0, 8).is_some());
    // Lent twice: the second counts.
    l.lend(&WANTED, &fd);
    assert!(l.enter(&WANTED, 0, 8).is_none());
    l.asks();
    assert!(l.enter(&WANTED, 0, 8).is_none());
    l.asks();
    l.lend(&WANTED, &fd);
    assert!(l.enter(&WANTED, 0, 8).is_some());
}

#[test]
fn a_lender_is_not_believed() {
    let mut l = link(2);
    let (fd, _map) = memory(libc::F_SEAL_SHRINK);
    let (loose, _loose_map) = memory(0);
    let null = crate::sys::Fd::from_call(
        // SAFETY: the name is a C string.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) },
    )
    .unwrap();
    let sound = Loan {
        ask: WANTED,
        number: 0,
        serial: 1,
        iova: 1 << 40,
        length: 5000,
        offset: 100,
        far: false,
    };
    l.place.loan(0).grant(1);
    // Not asked for.
    l.borrowed.take(&sound, Some(&fd));
    assert!(l.enter(&WANTED, 0, 8).is_none());
    l.asks();
    for (loan, fd) in [
        (sound, &loose),
        (sound, &null),
        (Loan { number: LOANS as u32, ..sound }, &fd),
        (Loan { number: u32::MAX, ..sound }, &fd),
        (Loan { serial: 0, ..sound }, &fd),
        (Loan { length: 0, ..sound }, &fd),
        (Loan { length: BYTES, ..sound }, &fd),
        (Loan { length: u64::MAX, ..sound }, &fd),
        (Loan { offset: u64::MAX, ..sound }, &fd),
        (Loan { iova: u64::MAX - 10, ..sound }, &fd),
        (Loan { ask: Ask { rkey: 7, ..WANTED }, ..sound }, &fd),
    ] {
        l.borrowed.take(&loan, Some(fd));
        assert!(l.enter(&WANTED, 0, 8).is_none(), "{loan:?}");
    }
    // The serial in the page is another.
    l.borrowed.take(&Loan { serial: 2, ..sound }, Some(&fd));
    assert!(l.enter(&WANTED, 0, 8).is_none());
    l.asks();
    assert!(l.enter(&WANTED, 0, 8).is_none());
    l.asks();
    l.borrowed.take(&sound, Some(&fd));
    assert!(l.enter(&WANTED, 0, 8).is_some());
}

#[test]
fn a_borrower_has_as_many_loans_as_there_is_room_for() {
    let mut l = link(3);
    let (fd, _map) = memory(libc::F_SEAL_SHRINK);
    let ask = |i: usize| Ask { rkey: i as u32, ..WANTED };
    for i in 0..3 * LOANS {
        assert!(l.enter(&ask(i), 0, 8).is_none());
        for asked in l.asks() {
            l.lend(&asked, &fd);
        }
    }
    let held = (0..3 * LOANS).filter(|&i| l.enter(&ask(i), 0, 8).is_some()).count();
    assert_eq!(held, LOANS);
    // Nothing to lend: nothing is asked for.
    let mut l = link(4);
    l.place.lends().store(0, Ordering::Relaxed);
    assert!(!l.borrowed.any() && l.enter(&WANTED, 0, 8).is_none() && l.asks().is_empty());
}

#[test]
fn who_is_inside_is_waited_for_but_not_for_ever() {
    let (fd, _map) = memory(libc::F_SEAL_SHRINK);
    // It leaves after a while, which on a busy machine may be longer than the lender waits: then
    // once more.
    let waited = (0..100).find_map(|_| {
        let mut l = link(5);
        l.enter(&WANTED, 0, 8);
        l.asks();
        l.lend(&WANTED, &fd);
        assert!(l.borrowed.enter(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_some());
        let Link { loans, place, _segments: [segment, _], .. } = &mut l;
        let left = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Until the lender has ended the loan and waits.
                while !segment.place().loan(0).is(0) {
                    std::thread::yield_now();
                }
                segment.place().entered().leave();
            });
            loans.check(place, |_, _, _| false)
        });
        left.then_some(l)
    });
    let mut l = waited.expect("nobody who is inside is waited for");
    assert!(l.enter(&WANTED, 0, 8).is_none());
    l.borrows(&fd);
    // It has stopped there.
    assert!(l.borrowed.enter(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_some());
    assert!(!l.takes_back());
    l.borrowed.leave();
    assert!(l.enter(&WANTED, 0, 8).is_none());
    // Nor does asking again from inside hold the lender up more than once.
    l.borrows(&fd);
    assert!(l.borrowed.enter(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_some());
    assert!(!l.loans.lend(&WANTED, &region(), Some((fd.raw(), 100)), &l.place, &l.theirs));
}

/// A link whose lender lends what it has by address, and a region of it.
fn by_address(n: u8) -> (Link, Map, MrAttr) {
    let mut l = link(n);
    l.place.lends().store(lends(&[], true), Ordering::Relaxed);
    l.far = true;
    let map = Map::new(BYTES as usize).unwrap();
    let addr = map.as_ptr().expose_provenance() as u64 + 3;
    (l, map, MrAttr { addr, ..region() })
}

impl Link {
    fn enter_far(&mut self, at: u64, len: u64) -> Option<u64> {
        let to = self.borrowed.enter_far(
            WANTED.from_qpn,
            WANTED.qpn,
            WANTED.rkey,
            (1u64 << 40).wrapping_add(at),
            len,
        );
        if to.is_some() {
            assert!(self.place.entered().is_inside(0));
            self.borrowed.leave();
        }
        assert!(!self.place.entered().is_inside(0));
        to
    }

    /// It is wanted, asked for and lent by address.
    fn borrows_far(&mut self, region: &MrAttr) {
        assert!(self.enter_far(0, 8).is_none());
        assert_eq!(self.asks(), [WANTED]);
        assert!(self.loans.lend(&WANTED, region, None, &self.place, &self.theirs));
        self.takes();
    }
}

#[test]
fn what_is_lent_by_address_is_carried_there_and_taken_back() {
    let (mut l, map, region) = by_address(6);
    // Short WRITEs do not ask for it.
    assert!(!l.borrowed.any() && l.borrowed.any_far());
    assert!(l.enter(&WANTED, 0, 8).is_none() && l.asks().is_empty());
    l.borrows_far(&region);
    assert!(l.enter(&WANTED, 0, 8).is_none(), "it is not mapped");
    let to = l.enter_far(8, 13).unwrap();
    assert_eq!(to, region.addr + 8);
    let (one, two) = (*b"from one ", *b"and another");
    let piece = |bytes: &[u8], len| Piece { addr: bytes.as_ptr().expose_provenance() as u64, len };
    assert!(l.borrowed.carry(&[piece(&one, 9), piece(&two, 4)], to));
    // SAFETY: inside the map.
    let seen = unsafe { core::slice::from_raw_parts(map.as_ptr().add(8), 24) };
    assert_eq!(seen, b"\0\0\0from one and \0\0\0\0\0\0\0\0");
    assert!(l.enter_far(4999, 1).is_some() && l.enter_far(0, 5000).is_some());
    assert!(l.enter_far(4999, 2).is_none() && l.enter_far(1u64.wrapping_neg(), 1).is_none());
    assert!(l.enter_far(u64::MAX - (1 << 40), 1).is_none() && l.enter_far(0, u64::MAX).is_none());
    // What is not there is a fault, which does not end the way.
    assert!(
        !l.borrowed.carry(&[piece(&one, 9)], 8)
            && !l.borrowed.carry(&[Piece { addr: 8, len: 9 }], to)
    );
    assert!(l.enter_far(0, 8).is_some());
    assert!(l.takes_back());
    assert!(l.enter_far(0, 8).is_none());
    l.asks();
    l.borrows_far(&region);
    assert!(l.enter_far(0, 8).is_some());
    // Who is inside is waited for, as if it were mapped.
    assert!(l.borrowed.enter_far(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_some());
    assert!(!l.takes_back());
}

#[test]
fn a_loan_by_address_comes_only_to_who_wants_it() {
    let (mut l, _map, region) = by_address(7);
    let sound = Loan {
        ask: WANTED,
        number: 0,
        serial: 1,
        iova: 1 << 40,
        length: 5000,
        offset: region.addr,
        far: true,
    };
    l.place.loan(0).grant(1);
    // Not asked for; asked for mapped.
    l.borrowed.take(&sound, None);
    assert!(l.enter_far(0, 8).is_none());
    l.borrowed.far = [const { None }; LOANS];
    l.place.lends().store(SHARES, Ordering::Relaxed);
    l.enter(&WANTED, 0, 8);
    l.borrowed.take(&sound, None);
    l.borrowed.list = [const { None }; LOANS];
    l.place.lends().store(lends(&[], true), Ordering::Relaxed);
    assert!(l.enter_far(0, 8).is_none());
    assert_eq!(l.asks(), [WANTED]);
    for loan in [
        Loan { number: LOANS as u32, ..sound },
        Loan { serial: 0, ..sound },
        Loan { length: 0, ..sound },
        Loan { iova: u64::MAX - 10, ..sound },
        Loan { offset: u64::MAX - 10, ..sound },
        Loan { far: false, ..sound },
    ] {
        l.borrowed.take(&loan, None);
        assert!(l.enter_far(0, 8).is_none(), "{loan:?}");
    }
    l.borrowed.take(&sound, None);
    assert!(l.enter_far(0, 8).is_some());
    // Nobody is at the other end any more: it is not tried again.
    let Link { ours, mut borrowed, theirs, place, .. } = l;
    drop(theirs);
    let own = *b"12345678";
    assert!(!borrowed
        .carry(&[Piece { addr: own.as_ptr().expose_provenance() as u64, len: 8 }], region.addr));
    assert!(borrowed.reach.is_none() && !borrowed.any_far());
    assert!(borrowed.enter_far(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_none());
    borrowed.tend(u64::MAX, &ours);
    // Nor is it where the program does not want it.
    let mut without = Borrowed::new(place, None);
    assert!(!without.any_far());
    assert!(without.enter_far(WANTED.from_qpn, WANTED.qpn, WANTED.rkey, 1 << 40, 8).is_none());
    assert!(without.far.iter().all(Option::is_none));
}

#[test]
fn messages_are_told_apart() {
    for far in [false, true] {
        let loan = Loan { ask: WANTED, number: 3, serial: 4, iova: 5, length: 6, offset: 7, far };
        assert_eq!(Loan::parse(&loan.emit(), far), Some(loan));
        assert_eq!(Loan::parse(&loan.emit(), !far), None);
        assert_eq!(Loan::parse(&loan.emit()[..LOAN_LEN - 1], far), None);
        let ask = WANTED.emit(if far { ASK_FAR } else { ASK });
        assert_eq!(Ask::parse(&ask), Some((WANTED, far)));
        assert_eq!(Ask::parse(&ask[..ASK_LEN - 1]), None);
    }
    assert_eq!(Ask::parse(&WANTED.emit(LOAN)), None);
}
