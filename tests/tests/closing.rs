//! What other processes made is closed by threads that serve nobody.

use gdrcore_net::closing::is_full;
use gdrcore_net::rights::Foreign;
use gdrcore_net::via::wire::{receive, send_bytes, Buffer, ReadOutcome};
use gdrcore_tests::linger::Sink;
use gdrcore_tests::patience::wait_for;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The closing threads are the process's, so one test has them at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both ends of a pipe, which a forked child has too: (reads, writes).
fn pipe() -> (File, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: room for the two descriptors, which are new.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK), 0);
        (File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

/// Whether nobody has the writing end of a pipe any more.
fn has_ended(pipe: &mut File) -> bool {
    matches!(pipe.read(&mut [0]), Ok(0))
}

/// Does what must not wait for a close.
fn without_waiting(what: &str, work: impl FnOnce() + Send) {
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            work();
            done.store(true, SeqCst);
        });
        // A panic here would wait for the thread, which ends with the process.
        let is_done = || done.load(SeqCst);
        if std::panic::catch_unwind(|| wait_for(60, what, is_done)).is_err() {
            eprintln!("{what}");
            std::process::abort();
        }
    });
}

/// Holds up all four closing threads, until the ends that are returned are dropped. No descriptor
/// waits for a thread any more: a forked child would have it among its own.
fn occupy_threads(sink: &Sink) -> Vec<std::net::TcpStream> {
    let occupy_one = |_| {
        let (lingers, end) = sink.lingering();
        let fd = lingers.as_raw_fd();
        drop(Foreign::from(lingers));
        // A close takes the number away before it lingers.
        // SAFETY: no pointers.
        wait_for(60, "no thread closes it", || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0);
        end
    };
    (0..4).map(occupy_one).collect()
}

#[test]
fn a_close_that_lingers_holds_up_neither_its_owner_nor_other_closes() {
    let _alone = alone();
    let sink = Sink::new();
    let (lingers, deaf) = sink.lingering();
    without_waiting("the owner waits", || drop(Foreign::from(lingers)));
    let (mut reads, writes) = pipe();
    drop(Foreign::from(writes));
    wait_for(60, "the next descriptor is not closed", || has_ended(&mut reads));
    drop(deaf);
}

#[test]
fn while_much_waits_nothing_further_is_taken_and_later_it_is() {
    let _alone = alone();
    let sink = Sink::new();
    let mut deaf = Vec::new();
    // As many as there are threads, and more.
    for _ in 0..6 {
        let (lingers, end) = sink.lingering();
        deaf.push(end);
        drop(Foreign::from(lingers));
    }
    let (here, there) = UnixDatagram::pair().expect("a pair");
    send_bytes(there.as_fd(), b"x", None).expect("sent");
    let mut buffer: Box<Buffer> = Box::new([0; _]);
    let mut reads = Vec::new();
    while !is_full() {
        let (reading, writes) = pipe();
        reads.push(reading);
        drop(Foreign::from(writes));
    }
    assert!(matches!(receive(here.as_fd(), &mut buffer), ReadOutcome::Nothing));
    assert!(!has_ended(&mut reads[0]), "nothing can be closed yet");
    drop(deaf);
    for reading in &mut reads {
        wait_for(60, "a descriptor stays open", || has_ended(reading));
    }
    wait_for(60, "it stays full", || !is_full());
    assert!(matches!(receive(here.as_fd(), &mut buffer), ReadOutcome::Message(_)));
}

#[test]
fn without_a_place_to_wait_it_is_closed_at_once() {
    let _alone = alone();
    let sink = Sink::new();
    let deaf = occupy_threads(&sink);
    let (mut first, writes) = pipe();
    for _ in 0..1024 {
        drop(Foreign::from(writes.try_clone().expect("a copy")));
    }
    // A lingering descriptor holds a place until a thread has taken it, so up to four places may
    // have become free meanwhile.
    let is_closed_at_once = |_| {
        let (mut reads, further) = pipe();
        drop(Foreign::from(further));
        has_ended(&mut reads)
    };
    assert!((0..5).any(is_closed_at_once) && !has_ended(&mut first));
    drop((deaf, writes));
    wait_for(60, "a descriptor stays open", || has_ended(&mut first));
    wait_for(60, "it stays full", || !is_full());
}

#[test]
fn a_forked_child_closes_by_threads_of_its_own() {
    let _alone = alone();
    let sink = Sink::new();
    let deaf = occupy_threads(&sink);
    let (mut reads, writes) = pipe();
    // SAFETY: the child makes calls that are safe with threads in its parent, and ends by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        drop(Foreign::from(writes));
        let mut p = libc::pollfd { fd: reads.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a live entry; the other calls have no pointers.
        unsafe {
            libc::alarm(600);
            libc::poll(&mut p, 1, -1);
            libc::_exit(0);
        }
    }
    drop(writes);
    wait_for(60, "the child has not closed it", || has_ended(&mut reads));
    let mut status = 0;
    // SAFETY: our own child and a place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    drop(deaf);
}
