use super::*;
use crate::session::tests::session_lab;
use std::os::fd::{FromRawFd, OwnedFd};

fn is_readable(fd: RawFd) -> bool {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&mut p, 1, 0) == 1 }
}

struct Open<'f> {
    files: &'f Files<session_lab::Lab>,
    fd: OwnedFd,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.files.close(self.raw());
    }
}

impl Open<'_> {
    fn new(files: &Files<session_lab::Lab>, flags: i32) -> Open<'_> {
        let fd = files.open(flags).unwrap();
        // SAFETY: fresh, and ours.
        Open { files, fd: unsafe { OwnedFd::from_raw_fd(fd) } }
    }

    fn raw(&self) -> RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.fd)
    }

    fn write(&self, number: u32, body: &[&[u8]]) -> Result<usize> {
        let body = body.concat();
        let head =
            [&number.to_ne_bytes()[..], &(body.len() as u16).to_ne_bytes(), &400u16.to_ne_bytes()]
                .concat();
        let all = [head, body].concat();
        self.files.write(self.raw(), all.as_ptr() as u64, all.len())
    }

    /// An id whose address is resolved, so that one event is queued.
    fn resolved(&self) -> u32 {
        let mut id = 0u32;
        let at = (&raw mut id as u64).to_ne_bytes();
        self.write(0, &[&1u64.to_ne_bytes(), &at, &0x106u16.to_ne_bytes(), &[2, 0, 0, 0, 0, 0]])
            .unwrap();
        let to = [&2u16.to_ne_bytes()[..], &[0x10, 0, 127, 0, 0, 1], &[0; 20]].concat();
        self.write(3, &[&[0; 28], &to, &id.to_ne_bytes(), &[0; 4]]).unwrap();
        id
    }

    fn event(&self) -> Result<u32> {
        let mut e = [0u32; 84];
        self.write(12, &[&(e.as_mut_ptr() as u64).to_ne_bytes()])?;
        Ok(e[3])
    }
}

#[test]
fn the_descriptor_counts_events() {
    let files = Files::new(session_lab::open());
    let f = Open::new(&files, libc::O_NONBLOCK | libc::O_CLOEXEC);
    assert_eq!(f.event(), Err(Error::Again));
    assert!(!is_readable(f.raw()));
    let id = f.resolved();
    f.resolved();
    assert!(is_readable(f.raw()));
    assert_eq!(f.event(), Ok(0));
    assert!(is_readable(f.raw()));
    assert_eq!(f.event(), Ok(0));
    assert!(!is_readable(f.raw()));
    // An event that is removed with its id wakes no thread.
    let other = f.resolved();
    assert!(is_readable(f.raw()));
    let mut n = 0u32;
    for id in [other, id] {
        f.write(1, &[&(&raw mut n as u64).to_ne_bytes(), &id.to_ne_bytes(), &[0; 4]]).unwrap();
    }
    assert_eq!(n, 1, "one event of the last id was taken");
    assert!(!is_readable(f.raw()));
    drop(f);
    let state = files.state();
    assert_eq!((state.open.len(), state.session.ids()), (0, 0));
}

#[test]
fn a_program_that_waits_is_woken() {
    let files = Files::new(session_lab::open());
    let f = Open::new(&files, 0);
    std::thread::scope(|s| {
        let waiter = s.spawn(|| f.event());
        std::thread::sleep(std::time::Duration::from_millis(20));
        f.resolved();
        assert_eq!(waiter.join().unwrap(), Ok(0));
    });
}

#[test]
fn bad_addresses_and_bad_descriptors_are_errors() {
    gdrcore_net::fault::install().unwrap();
    let files = Files::new(session_lab::open());
    let f = Open::new(&files, 0);
    assert_eq!(files.write(f.raw(), 8, 24), Err(Error::Fault));
    assert_eq!(
        f.write(0, &[&[0; 8], &8u64.to_ne_bytes(), &0x106u16.to_ne_bytes(), &[2, 0, 0, 0, 0, 0]]),
        Err(Error::Fault)
    );
    assert_eq!(files.write(f.raw(), 0, 0), Err(Error::Invalid));
    let id = f.resolved();
    // An option whose value cannot be read.
    let body = [&8u64.to_ne_bytes()[..], &id.to_ne_bytes(), &[0; 8], &1u32.to_ne_bytes()];
    assert_eq!(f.write(14, &body), Err(Error::Fault));
    let all = [12u32.to_ne_bytes(), [8, 0, 144, 1], [0; 4], [0; 4]].concat();
    assert_eq!(files.write(9999, all.as_ptr() as u64, all.len()), Err(Error::Os(libc::EBADF)));
}
