use super::*;
use crate::local::{accept, connect, Accepted, Holder, Lock, Role, SocketDir};
use crate::map::Map;
use gdrcore_core::roce::peer_memory::PIECES;
use gdrcore_testkit::descriptors::{fork, keep};
use gdrcore_testkit::place::loopback;

/// An active grant.
fn active() -> Serial {
    let grant = Serial::default();
    grant.activate(1);
    grant
}

/// Two ends of a connection.
fn ends(n: u8) -> [crate::rights::Foreign; 2] {
    let at = crate::addr::Endpoint::v4(loopback(6, n), 4791);
    let lock = Lock::take(&SocketDir::open().unwrap(), &at, Holder::Address).unwrap();
    let listens = lock.listen(Role::Links).unwrap();
    let fd = connect(&lock.name(Role::Links)).unwrap();
    let Accepted::Peer(other) = accept(listens.raw()) else { panic!("nobody") };
    [fd, other]
}

#[test]
fn ranges_are_copied_one_behind_the_other_at_any_alignment() {
    let [ours, _theirs] = ends(1);
    let process = PeerProcess::from_socket(ours.raw()).unwrap();
    let (from, to) = (Map::new(1 << 20).unwrap(), Map::new(1 << 20).unwrap());
    let at = |map: &Map, offset| map.as_ptr().expose_provenance() as u64 + offset;
    let bytes = |map: &Map, offset: u64, len: u64| -> Vec<u8> {
        // SAFETY: inside the map, which nobody writes meanwhile.
        unsafe { core::slice::from_raw_parts(map.as_ptr().add(offset as usize), len as usize) }
            .to_vec()
    };
    // SAFETY: the whole of a map of our own.
    unsafe { core::slice::from_raw_parts_mut(from.as_ptr(), from.len()) }
        .iter_mut()
        .enumerate()
        .for_each(|(i, b)| *b = (i * 7 + i / 251 + 1) as u8);
    for (offset, len) in
        [(0, 1), (5, 3), (7, 2), (8, 8), (4, 8), (1, 4095), (4090, 100_000), (0, 256 << 10)]
    {
        // SAFETY: as above.
        unsafe { to.as_ptr().write_bytes(0, to.len()) };
        assert_eq!(
            process.write(
                &[Piece { addr: at(&from, 11), len }],
                at(&to, offset + 64),
                (&active(), 1)
            ),
            Ok(())
        );
        assert_eq!(bytes(&to, offset + 64, len), bytes(&from, 11, len), "{offset} {len}");
        assert!(bytes(&to, 0, offset + 64)
            .iter()
            .chain(&bytes(&to, offset + 64 + len, 64))
            .all(|&b| b == 0));
    }
    let pieces: Vec<Piece> =
        (0..PIECES as u64).map(|i| Piece { addr: at(&from, i * 5000), len: 1 + i * 77 }).collect();
    assert_eq!(process.write(&pieces, at(&to, 3), (&active(), 1)), Ok(()));
    let all: Vec<u8> =
        (0..PIECES as u64).flat_map(|i| bytes(&from, i * 5000, 1 + i * 77)).collect();
    assert_eq!(bytes(&to, 3, all.len() as u64), all);
}

#[test]
fn a_process_that_has_ended_is_not_written() {
    let kept = keep();
    let [ours, theirs] = ends(2);
    let process = PeerProcess::from_socket(ours.raw()).unwrap();
    let (from, to) = (1u64, Map::new(4096).unwrap());
    let piece = [Piece { addr: (&raw const from).expose_provenance() as u64, len: 8 }];
    let addr = to.as_ptr().expose_provenance() as u64;
    assert_eq!(process.write(&piece, addr, (&active(), 1)), Ok(()));
    assert_eq!(process.write(&piece, 4096, (&active(), 1)), Err(CmaError::Fault));
    drop(theirs);
    assert_eq!(process.write(&piece, addr, (&active(), 1)), Err(CmaError::Never));
    assert!(PeerProcess::from_socket(ours.raw()).is_none());
    // A process that has ended, and a pid without a process.
    assert!(pidfd_open(i32::MAX).is_none());
    drop(kept);
    let _fork = fork();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pidfd = pidfd_open(child.id() as i32).unwrap();
    assert!(child.wait().unwrap().success());
    let [ours, _theirs] = ends(3);
    let process = PeerProcess { pid: std::process::id() as i32, pidfd, socket: ours.raw() };
    assert_eq!(process.write(&piece, addr, (&active(), 1)), Err(CmaError::Never));
}

#[test]
fn the_kernels_errno_decides_about_a_retry() {
    assert_eq!(outcome(Ok(100), 100), Ok(()));
    for answer in [Ok(99), Ok(0), Ok(101), Err(libc::EFAULT), Err(libc::ENOMEM), Err(libc::EINVAL)]
    {
        assert_eq!(outcome(answer, 100), Err(CmaError::Fault), "{answer:?}");
    }
    for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS, libc::ESRCH] {
        assert_eq!(outcome(Err(errno), 100), Err(CmaError::Never), "{errno}");
    }
}

#[test]
fn the_last_word_is_a_range_of_its_own_after_the_others() {
    for (to, len, first) in
        [(0, 1, 0), (0, 8, 0), (0, 9, 8), (3, 5, 0), (3, 6, 5), (3, 10, 5), (16, 65536, 65528)]
    {
        assert_eq!(ranges(to, len), [(to, first), (to + first, len - first)], "{to} {len}");
    }
}
