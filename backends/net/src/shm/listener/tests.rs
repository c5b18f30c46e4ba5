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
    let (mut ours, segment) = connect_link(&at, &from, 8192).unwrap();
    // The ring exists before the receiver has mapped it.
    let mut w = Writer::new(segment.place());
    let (p, _) = w.room(3, 3).unwrap().unwrap();
    // SAFETY: three bytes of the writer's.
    unsafe { p.as_ptr().copy_from(b"abc".as_ptr(), 3) };
    w.publish(3);
    let mut theirs = accept_links(&listener);
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
    let (_fd, mut socket) = call();
    assert!(socket.receive().unwrap().is_none());
    // Words without memory.
    let (fd, mut socket) = call();
    // SAFETY: five bytes.
    unsafe { libc::send(fd.raw(), b"hello".as_ptr().cast(), 5, 0) };
    assert_eq!(socket.receive().unwrap_err(), Error::Access);
    // The other end closes before it sends a hello.
    let (fd, mut socket) = call();
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
        let (fd, mut socket) = call();
        crate::rights::send(fd.raw(), bytes, fd_sent).unwrap();
        assert_eq!(socket.receive().unwrap_err(), Error::Access);
    }
    let (fd, mut socket) = call();
    crate::rights::send(fd.raw(), &hello[..HELLO_LEN], memory.raw()).unwrap();
    assert!(socket.receive().unwrap().is_some());
    // And then sends bytes that no message begins with. SAFETY: five bytes.
    unsafe { libc::send(fd.raw(), b"hello".as_ptr().cast(), 5, 0) };
    assert!(matches!(socket.next_event(), LinkEvent::Closed));
}

/// Whether a descriptor is refused at this moment; a kernel before Linux 6.16 refuses none.
fn is_refused(from: RawFd) -> bool {
    let null = std::fs::File::open("/dev/null").unwrap();
    let sent = crate::rights::send(from, b"?", std::os::fd::AsRawFd::as_raw_fd(&null));
    sent == Err(Error::Access)
}

#[test]
fn no_descriptor_comes_after_the_hello_but_memory_that_was_asked_for() {
    let _kept = keep();
    let lock = address(3);
    let listener = Listener::open(&lock).unwrap();
    let from = Endpoint::new([0xfd; 16], 0, 7);
    let (mut ours, _segment) = connect_link(&lock.name(Role::Links), &from, 8192).unwrap();
    let mut theirs = accept_links(&listener);
    if !is_refused(theirs.fd()) {
        gdrcore_testkit::skip!("this kernel refuses no descriptors");
    }
    assert!(theirs.receive().unwrap().is_some());
    assert!(is_refused(ours.fd()), "the reader takes one after the hello");
    ours.allow_descriptor(true);
    assert!(!is_refused(theirs.fd()));
    ours.allow_descriptor(false);
    assert!(is_refused(theirs.fd()), "the writer takes one that it has not asked for");
    assert!(matches!(ours.next_event(), LinkEvent::Closed), "one that came before");
}

#[test]
fn descriptors_before_and_behind_the_hello_hold_nobody_up() {
    let _kept = keep();
    let sink = gdrcore_testkit::linger::Sink::new();
    let lock = address(4);
    let at = lock.name(Role::Links);
    let mut deaf = Vec::new();
    let (_segment, memory) = Segment::create(4096).unwrap();
    let mut hello = [0u8; HELLO_LEN];
    hello[..8].copy_from_slice(&HELLO);
    hello[8..12].copy_from_slice(&4096u32.to_le_bytes());
    let mut send = |fd: &Foreign, bytes: &[u8]| {
        let (lingers, end) = sink.lingering();
        deaf.push(end);
        let sent = crate::rights::send(fd.raw(), bytes, std::os::fd::AsRawFd::as_raw_fd(&lingers));
        // The receiver has the last one. If the kernel has refused it, its close would linger here.
        drop(Foreign::from(lingers));
        sent.is_ok()
    };
    // In place of the memory, behind it, and in a connection that nobody accepts.
    let listener = Listener::open(&lock).unwrap();
    let [false_hello, behind, waits] = [(); 3].map(|()| connect(&at).unwrap());
    crate::rights::send(behind.raw(), &hello, memory.raw()).unwrap();
    for (fd, times) in [(&false_hello, 1), (&behind, 40), (&waits, 1)] {
        assert!((0..times).any(|_| send(fd, &hello)));
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            assert_eq!(accept_links(&listener).receive().unwrap_err(), Error::Access);
            let mut link = accept_links(&listener);
            assert!(link.receive().unwrap().is_some());
            assert!(matches!(link.next_event(), LinkEvent::Closed));
            drop((link, listener));
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        gdrcore_testkit::patience::wait_for(60, "the closes are not waited for", || {
            done.load(std::sync::atomic::Ordering::SeqCst)
        });
    });
}
