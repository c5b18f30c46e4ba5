//! Forks while a helper thread works; descriptors across exec.

use super::*;

/// Waits for a child, whose exit code is its result.
fn reap(child: i32) -> i32 {
    let mut status = -1;
    // SAFETY: our own child and a local.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_child_opens_devices_of_its_own_while_the_parents_helper_works() {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let a = Soft::open(&address(1), &config).expect("a device with helper");
    let b = Soft::open(&address(2), &config).expect("a device with helper");
    let (mut x, mut y) = connected_pair(a.dev(), b.dev());
    let names = (address(3), address(4));
    // The child's memory is allocated before the fork: another thread of this process may hold the
    // allocator's lock.
    let bytes = SoftDevice::memsize(&names.0, &SoftConfig::default()).expect("memsize");
    let (m1, m2) = (Buffer::new(bytes), Buffer::new(bytes));
    let data = pattern(2, 1000);
    for round in 0..10u64 {
        x.post(round, Op::Write(0, None), 0, 500_000).expect("post_send");
        // SAFETY: the child calls only the device, with memory made beforehand, and leaves by
        // _exit.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let refused = x.dev.progress().err() == Some(Error::OwnerDead)
                && x.dev.helper(true).err() == Some(Error::OwnerDead)
                && x.dev.wait(0).err() == Some(Error::OwnerDead)
                && x.dev.fd().err() == Some(Error::OwnerDead);
            let moved = child_traffic(&names.0, &names.1, &m1, &m2, bytes, &data);
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(if refused { i32::from(moved.is_err()) * 2 } else { 1 }) };
        }
        succeed(&mut x, &mut y, round);
        assert_eq!(reap(child), 0, "1 << 8: not refused; 2 << 8: its own devices failed");
    }
}

/// Makes two devices in the given memory and one WRITE between them; allocates only what `End`
/// does.
fn child_traffic(
    x: &str,
    y: &str,
    m1: &Buffer,
    m2: &Buffer,
    bytes: usize,
    data: &[u8],
) -> Result<(), Error> {
    let config = SoftConfig::default();
    // SAFETY: page-aligned memory of the asked size that nobody else uses in this process.
    let a = unsafe { SoftDevice::init(m1.as_ptr(), bytes, x, &config)? };
    // SAFETY: as above.
    let b = unsafe { SoftDevice::init(m2.as_ptr(), bytes, y, &config)? };
    let shape = Shape { buffer: 4096, ..Shape::default() };
    {
        let (mut p, mut q) = connected(a, b, shape)?;
        p.buffer.write(0, data);
        p.post(1, Op::Write(0, None), 0, data.len() as u32)?;
        let end = deadline(60);
        loop {
            p.poll();
            q.poll();
            match p.take(1) {
                Some(wc) if wc.status == wc_status::SUCCESS => break,
                Some(_) => return Err(Error::Invalid),
                None if Instant::now() > end => return Err(Error::Again),
                None => {}
            }
        }
        if q.buffer.read(0, data.len()) != data {
            return Err(Error::Fault);
        }
        p.destroy()?;
        q.destroy()?;
    }
    // SAFETY: nothing uses the devices any more.
    unsafe {
        a.close();
        b.close();
    }
    Ok(())
}

#[test]
fn every_descriptor_is_close_on_exec() {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let dir = gdrcore_tests::tools::scratch("cloexec");
    let pcap = dir.join("all.pcap");
    let path = std::ffi::CString::new(pcap.to_str().expect("a plain path")).expect("a path");
    let before = descriptors();
    let _a =
        Soft::open(&address(1), &SoftConfig { pcap: Some(&path), ..config }).expect("a device");
    let _b = Soft::open("loopback", &config).expect("a device");
    let mut seen = 0;
    for fd in descriptors().difference(&before) {
        // SAFETY: asks for the flags of a descriptor; a closed one is an error.
        let got = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
        // A thread of another test may have opened or closed it meanwhile.
        if got >= 0 {
            assert!(got & libc::FD_CLOEXEC != 0, "descriptor {fd} outlives exec");
            seen += 1;
        }
    }
    assert!(seen >= 9, "{seen} descriptors");
}
