//! Tests of a NIC that is removed during its use. Threads that post, poll, poll in vain or sleep
//! notice the removal, and everything ends.
//!
//! Linux's rxe cannot show this, because its removal waits until the last program has closed the
//! device. So the tests use their own module, which behaves as the kernel does with a NIC that
//! supports removal. The asynchronous descriptor becomes readable, and returns DEVICE_FATAL once or
//! nothing at all. Then it and every command return EIO. Posts are refused, or go to a page that
//! nothing reads.

use core::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::fake::{self, CAPS, REFUSES, RELEASE, STATE};
use crate::abi::Event;
use crate::device::VerbsDevice;
use gdrcore_core::device::{async_event as event, Device, MrReg};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_testkit::patience::deadline;

/// The behaviour of the NIC once it is gone.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The kernel reports the event before it returns EIO.
    event: bool,
    /// Posts are refused; otherwise they are taken and never complete.
    refuses: bool,
}

/// The last error of a thread that posts and polls.
fn posts_and_polls(device: &VerbsDevice, qp: Handle, cq: Handle) -> Error {
    let piece = Sge { addr: 0, length: 8, lkey: 1 };
    let wr = SendWr {
        sg_list: &piece,
        num_sge: 1,
        send_flags: send_flags::SIGNALED,
        ..crate::data::EMPTY
    };
    loop {
        let mut bad = core::ptr::null();
        // SAFETY: a list of one that lives through the call.
        if let Err(e) = unsafe { device.post_send(qp, &wr, &mut bad) } {
            assert_eq!(bad, &raw const wr, "the provider sets it, and this one does not");
            return e;
        }
        let mut wc = [Wc::default()];
        loop {
            match device.poll_cq(cq, &mut wc) {
                Ok(0) => {}
                Ok(_) => break,
                Err(e) => return e,
            }
        }
    }
}

fn polls_in_vain(device: &VerbsDevice, cq: Handle) -> Error {
    loop {
        match device.poll_cq(cq, &mut [Wc::default()]) {
            Ok(n) => assert_eq!(n, 0),
            Err(e) => return e,
        }
    }
}

/// Sleeps until the event comes.
fn sleeps(device: &VerbsDevice) -> Result<u32> {
    loop {
        assert!(device.wait(-1)?, "without a limit there is always something");
        if let Some(e) = device.async_event()? {
            return Ok(e.event);
        }
    }
}

fn take_away(way: Way) {
    REFUSES.store(u32::from(way.refuses), SeqCst);
    CAPS.store(0, SeqCst);
    RELEASE.store(0, SeqCst);
    let (device, [async_fd, _channel]) = fake::open();
    let pd = device.pd_alloc().unwrap();
    let reg = MrReg {
        pd,
        addr: 4096,
        length: 8,
        iova: 4096,
        access: access::LOCAL_WRITE,
        provider: 0,
        cookie: 0,
    };
    device.mr_reg(&reg).unwrap();
    let [busy, idle] = [(); 2].map(|()| device.cq_create(16).unwrap().0);
    device.cq_arm(idle, false).unwrap();
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init =
        QpInit { pd, send_cq: busy, recv_cq: busy, qp_type: qp_type::RC, cap, ..QpInit::default() };
    let qp = device.qp_create(&init).unwrap().0;

    let [posting, polling, sleeping] = std::thread::scope(|s| {
        let threads = [
            s.spawn(move || Err(posts_and_polls(device, qp, busy))),
            s.spawn(move || Err(polls_in_vain(device, idle))),
            s.spawn(move || sleeps(device)),
        ];
        std::thread::sleep(Duration::from_millis(50));
        assert!(threads.iter().all(|t| !t.is_finished()), "{way:?}: a thread ended too early");
        STATE.store(if way.event { 1 } else { 2 }, SeqCst);
        async_fd.raise();
        let limit = deadline(60);
        while !threads.iter().all(|t| t.is_finished()) {
            if Instant::now() > limit {
                let finished: Vec<bool> = threads.iter().map(|t| t.is_finished()).collect();
                // A hanging thread would stop the test for ever.
                eprintln!("{way:?}: results of posting, polling and sleeping: {finished:?}");
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        threads.map(|t| t.join().unwrap())
    });
    assert_eq!((posting, polling), (Err(Error::NoDevice), Err(Error::NoDevice)), "{way:?}");
    assert_eq!(sleeping, Ok(event::DEVICE_FATAL), "{way:?}");
    assert_eq!(device.last_cause().unwrap().code, CauseCode::DeviceGone as u32, "{way:?}");
    assert_eq!(device.progress(), Err(Error::NoDevice));
    assert_eq!(device.cq_event(), Err(Error::NoDevice));
    assert_eq!(device.pd_alloc(), Err(Error::NoDevice));
    assert_eq!(device.async_event(), Ok(None), "the event is reported once");
    // A thread has taken the kernel's event, but not recorded it yet while another found the device
    // gone.
    device.note_event(&Event { kind: event::DEVICE_FATAL, object: 0, cookie: 0 });
    assert_eq!(device.async_event(), Ok(None), "the event is reported once");
    device.cq_pin(idle).unwrap();
    assert_eq!(device.pinned_polled_nothing(idle, 0), Err(Error::NoDevice));
    assert_eq!(device.cq_destroy(idle), Err(Error::Busy), "{way:?}: pinned");
    device.cq_unpin(idle).unwrap();
    // Objects are destroyed as usual, though the kernel and the device no longer know them.
    assert_eq!(device.qp_destroy(qp), Ok(()));
    assert_eq!(device.cq_destroy(idle), Ok(()));
    assert_eq!(device.qp_destroy(qp), Err(Error::StaleHandle));
    // SAFETY: no thread is left that uses it.
    let left = unsafe { device.close() };
    assert_eq!((left.qp, left.cq, left.pd, left.mr), (0, 1, 1, 1));
}

#[test]
fn a_removed_nic_is_noticed_by_every_thread_and_nothing_hangs() {
    let _alone = fake::alone();
    for event in [true, false] {
        for refuses in [true, false] {
            take_away(Way { event, refuses });
        }
    }
}
