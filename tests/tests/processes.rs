//! Effects of the operating system and of other processes on a device: taken ports, foreign
//! addresses, forks.

use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags as flags, SoftConfig};
use gdrcore_tests::ends::{connected_pair, pattern, succeed, Op};
use gdrcore_tests::patience::{limit_ms, wait_for};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::workers::{await_sleep, sleeping};
use std::net::UdpSocket;

#[test]
fn a_taken_port_and_a_foreign_address_give_different_errors() {
    let name = address(1);
    let config = SoftConfig::default();
    // A stranger's socket, which does not share its port.
    let stranger = UdpSocket::bind(name.trim_start_matches("soft:")).expect("a free port");
    assert_eq!(Soft::open(&name, &config).err(), Some(Error::AddressInUse));
    drop(stranger);
    drop(Soft::open(&name, &config).expect("free again"));
    // TEST-NET-1 and the documentation prefix are no addresses of any machine.
    for foreign in ["soft:192.0.2.77", "soft:[2001:db8::77]"] {
        assert_eq!(Soft::open(foreign, &config).err(), Some(Error::AddressNotLocal), "{foreign}");
    }
    for nonsense in [
        "",
        "soft:",
        "soft:1.2.3",
        "soft:127.0.0.1:99999",
        "soft:[::1",
        "hard:127.0.0.1",
        "soft:[fe80::1%nosuch0]:1",
    ] {
        assert!(Soft::open(nonsense, &config).is_err(), "{nonsense}");
    }
}

#[test]
fn a_child_of_fork_may_not_use_the_parents_device_and_the_parent_goes_on() {
    let (name_a, name_b) = (address(1), address(2));
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let a = Soft::open(&name_a, &config).expect("a device with helper");
    let b = Soft::open(&name_b, &config).expect("a device with helper");
    let (mut x, mut y) = connected_pair(a.dev(), b.dev());
    for round in 0..20u64 {
        x.post(round, Op::Write(0, None), 0, 100_000).expect("post_send");
        // SAFETY: the child calls only the device, which checks its owner before it allocates or
        // locks, and leaves by _exit.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let all_refused = x.dev.query().err() == Some(Error::OwnerDead)
                && x.dev.pd_alloc().err() == Some(Error::OwnerDead)
                && x.dev.progress().err() == Some(Error::OwnerDead)
                && x.post(99, Op::Send(None), 0, 8).err() == Some(Error::OwnerDead)
                && x.dev.poll_cq(x.cq, &mut [Default::default()]).err() == Some(Error::OwnerDead);
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { libc::_exit(if all_refused { 0 } else { 1 }) };
        }
        succeed(&mut x, &mut y, round);
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "a call of the child was not refused");
    }
    let bytes = pattern(1, 50_000);
    x.buffer.write(0, &bytes);
    x.post(1000, Op::Write(0, None), 0, 50_000).expect("post_send");
    succeed(&mut x, &mut y, 1000);
    assert!(y.buffer.read(0, 50_000) == bytes);
}

#[test]
fn a_helper_thread_moves_data_without_any_poll() {
    let config = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let a = Soft::open(&address(1), &config).expect("a device with helper");
    let b = Soft::open(&address(2), &config).expect("a device with helper");
    let (x, y) = connected_pair(a.dev(), b.dev());
    let bytes = pattern(1, 200_000);
    x.buffer.write(0, &bytes);
    x.post(1, Op::Write(0, None), 0, 200_000).expect("post_send");
    wait_for(60, "the helpers did not move the data", || y.buffer.read(0, 200_000) == bytes);
}

#[test]
fn a_blocking_wait_sleeps_and_wakes() {
    let (a, b) = (Soft::new(&address(1)), Soft::new(&address(2)));
    let (x, mut y) = connected_pair(a.dev(), b.dev());
    y.post_recv(5, 0, 64).expect("post_recv");
    b.dev().cq_arm(y.cq, false).expect("cq_arm");
    assert_eq!(b.dev().wait(10), Ok(false), "the wait must time out");
    let sleeps = sleeping();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            await_sleep(sleeps);
            x.post(1, Op::Send(None), 0, 64).expect("post_send");
        });
        let mut woken = false;
        while !woken {
            assert_eq!(
                b.dev().wait(limit_ms(60)),
                Ok(true),
                "the completion did not wake the waiter"
            );
            woken = b.dev().cq_event().expect("cq_event") == Some(y.cq);
        }
    });
    y.poll();
    assert!(y.take(5).is_some());
}
