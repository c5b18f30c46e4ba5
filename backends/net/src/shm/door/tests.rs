use super::super::ring::{Reader, Writer};
use super::*;
use crate::local::{Holder, Home};
use gdrcore_testkit::descriptors::keep;
use gdrcore_testkit::place::loopback;

/// The right to the name of an address that no other test uses.
fn address(n: u8) -> Lock {
    let at = Endpoint::v4(loopback(4, n), 4791);
    Lock::take(&Home::open().unwrap(), &at, Holder::Address).unwrap()
}

/// Takes a caller, who is there.
fn let_in(door: &Door) -> Bell {
    match door.accept() {
        Knock::Caller(bell) => bell,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_goes_through_the_door() {
    let _kept = keep();
    let (lock, from) = (address(1), Endpoint::new([0xfd; 16], 0, 7));
    let at = lock.name(Role::Door);
    assert_eq!(knock(&at, &from, 8192).unwrap_err(), Error::NoDevice);
    let door = Door::open(&lock).unwrap();
    assert!(Door::open(&lock).is_err());
    assert!(matches!(door.accept(), Knock::Nobody));
    let (ours, segment) = knock(&at, &from, 8192).unwrap();
    // Before anybody has opened: the ring is there.
    let mut w = Writer::new(segment.place());
    let (p, _) = w.room(3, 3).unwrap().unwrap();
    // SAFETY: three bytes of the writer's.
    unsafe { p.as_ptr().copy_from(b"abc".as_ptr(), 3) };
    w.publish(3);
    let theirs = let_in(&door);
    let (who, mapped) = theirs.receive().unwrap().unwrap();
    assert_eq!(who, from);
    let r = Reader::new(mapped.place());
    let (p, len) = r.peek().unwrap().unwrap();
    // SAFETY: `len` bytes at `p` are mapped.
    assert_eq!(unsafe { core::slice::from_raw_parts(p.as_ptr(), len) }, b"abc");
    // Bells, both ways.
    assert!(matches!((ours.hear(), theirs.hear()), (Heard::Quiet, Heard::Quiet)));
    ours.ring();
    theirs.ring();
    assert!(matches!((ours.hear(), theirs.hear()), (Heard::Rung, Heard::Rung)));
    assert!(matches!((ours.hear(), theirs.hear()), (Heard::Quiet, Heard::Quiet)));
    for _ in 0..10_000 {
        ours.ring();
    }
    while matches!(theirs.hear(), Heard::Rung) {}
    drop(theirs);
    assert!(matches!(ours.hear(), Heard::Gone));
    drop(door);
    assert_eq!(knock(&at, &from, 8192).unwrap_err(), Error::NoDevice);
}

#[test]
fn who_says_something_else_is_hung_up_on() {
    let _kept = keep();
    let lock = address(2);
    let at = lock.name(Role::Door);
    let door = Door::open(&lock).unwrap();
    let call = || {
        let fd = connect(&at).unwrap();
        (fd, let_in(&door))
    };
    // Nothing yet.
    let (_fd, bell) = call();
    assert!(bell.receive().unwrap().is_none());
    // Words without memory.
    let (fd, bell) = call();
    // SAFETY: five bytes.
    unsafe { libc::send(fd.raw(), b"hello".as_ptr().cast(), 5, 0) };
    assert_eq!(bell.receive().unwrap_err(), Error::Access);
    // Gone before it spoke.
    let (fd, bell) = call();
    drop(fd);
    assert_eq!(bell.receive().unwrap_err(), Error::Access);
    // A right hello with a descriptor that is no memory, with a wrong size, with a wrong magic, too
    // long.
    let null = std::fs::File::open("/dev/null").unwrap();
    let (_segment, memory) = Segment::create(4096).unwrap();
    let null = std::os::fd::AsRawFd::as_raw_fd(&null);
    let mut hello = [0u8; HELLO_LEN + 1];
    hello[..8].copy_from_slice(&HELLO);
    hello[8..12].copy_from_slice(&4096u32.to_le_bytes());
    let mut large = hello;
    large[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut other = hello;
    other[6] = 9;
    for (bytes, fd_sent) in [
        (&hello[..HELLO_LEN], null),
        (&large[..HELLO_LEN], memory.raw()),
        (&other[..HELLO_LEN], memory.raw()),
        (&hello[..], memory.raw()),
        (&hello[..HELLO_LEN - 1], memory.raw()),
    ] {
        let (fd, bell) = call();
        crate::rights::send(fd.raw(), bytes, fd_sent).unwrap();
        assert_eq!(bell.receive().unwrap_err(), Error::Access);
    }
    let (fd, bell) = call();
    crate::rights::send(fd.raw(), &hello[..HELLO_LEN], memory.raw()).unwrap();
    assert!(bell.receive().unwrap().is_some());
    // And then talks: no process of ours does.
    // SAFETY: five bytes.
    unsafe { libc::send(fd.raw(), b"hello".as_ptr().cast(), 5, 0) };
    assert!(matches!(bell.hear(), Heard::Gone));
}
