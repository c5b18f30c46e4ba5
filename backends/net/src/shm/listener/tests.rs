use super::super::ring::{Reader, Writer};
use super::*;
use crate::local::{Holder, SocketDir};
use gdrcore_testkit::descriptors::keep;
use gdrcore_testkit::place::loopback;

/// Holds the name of an address that no other test uses.
fn address(n: u8) -> Lock {
    let at = Endpoint::v4(loopback(4, n), 4791);
    Lock::take(&SocketDir::open().unwrap(), &at, Holder::Address).unwrap()
}

/// Accepts the connection that waits.
fn accept_links(listener: &Listener) -> LinkSocket {
    match listener.accept() {
        Incoming::Link(socket) => socket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_is_passed_over_the_listener() {
    let _kept = keep();
    let (lock, from) = (address(1), Endpoint::new([0xfd; 16], 0, 7));
    let at = lock.name(Role::Links);
    assert_eq!(connect_link(&at, &from, 8192).unwrap_err(), Error::NoDevice);
    let listener = Listener::open(&lock).unwrap();
    assert!(Listener::open(&lock).is_err());
    assert!(matches!(listener.accept(), Incoming::Nothing));
    let (ours, segment) = connect_link(&at, &from, 8192).unwrap();
    // The ring exists before the receiver has mapped it.
    let mut w = Writer::new(segment.place());
    let (p, _) = w.room(3, 3).unwrap().unwrap();
    // SAFETY: three bytes of the writer's.
    unsafe { p.as_ptr().copy_from(b"abc".as_ptr(), 3) };
    w.publish(3);
    let theirs = accept_links(&listener);
    let (who, mapped) = theirs.receive().unwrap().unwrap();
    assert_eq!(who, from);
    let r = Reader::new(mapped.place());
    let (p, len) = r.peek().unwrap().unwrap();
    // SAFETY: `len` bytes at `p` are mapped.
    assert_eq!(unsafe { core::slice::from_raw_parts(p.as_ptr(), len) }, b"abc");
    // Bells, both ways.
    assert!(matches!((ours.next_event(), theirs.next_event()), (LinkEvent::Idle, LinkEvent::Idle)));
    ours.wake();
    theirs.wake();
    assert!(matches!((ours.next_event(), theirs.next_event()), (LinkEvent::Wake, LinkEvent::Wake)));
    assert!(matches!((ours.next_event(), theirs.next_event()), (LinkEvent::Idle, LinkEvent::Idle)));
    for _ in 0..10_000 {
        ours.wake();
    }
    while matches!(theirs.next_event(), LinkEvent::Wake) {}
    drop(theirs);
    assert!(matches!(ours.next_event(), LinkEvent::Closed));
    drop(listener);
    assert_eq!(connect_link(&at, &from, 8192).unwrap_err(), Error::NoDevice);
}

#[test]
fn connections_with_another_hello_are_closed() {
    let _kept = keep();
    let lock = address(2);
    let at = lock.name(Role::Links);
    let listener = Listener::open(&lock).unwrap();
    let call = || {
        let fd = connect(&at).unwrap();
        (fd, accept_links(&listener))
    };
    // Nothing yet.
    let (_fd, socket) = call();
    assert!(socket.receive().unwrap().is_none());
    // Words without memory.
    let (fd, socket) = call();
    // SAFETY: five bytes.
    unsafe { libc::send(fd.raw(), b"hello".as_ptr().cast(), 5, 0) };
    assert_eq!(socket.receive().unwrap_err(), Error::Access);
    // Gone before it spoke.
    let (fd, socket) = call();
    drop(fd);
    assert_eq!(socket.receive().unwrap_err(), Error::Access);
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
        let (fd, socket) = call();
        crate::rights::send(fd.raw(), bytes, fd_sent).unwrap();
        assert_eq!(socket.receive().unwrap_err(), Error::Access);
    }
    let (fd, socket) = call();
    crate::rights::send(fd.raw(), &hello[..HELLO_LEN], memory.raw()).unwrap();
    assert!(socket.receive().unwrap().is_some());
    // And then sends bytes that no message begins with. SAFETY: five bytes.
    unsafe { libc::send(fd.raw(), b"hello".as_ptr().cast(), 5, 0) };
    assert!(matches!(socket.next_event(), LinkEvent::Closed));
}
