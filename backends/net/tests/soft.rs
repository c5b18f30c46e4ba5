//! Tests of two soft devices in one process, over real sockets and over loopback.

use gdrcore_core::verbs::types::*;
use gdrcore_testkit::ends::{connected_pair, pattern, succeed, End, Op};
use gdrcore_testkit::patience::{deadline, run_until};
use gdrcore_testkit::place;
use gdrcore_testkit::soft::Soft;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// A device name that no other test uses.
fn name(last: u8) -> String {
    let [a, b, c, d] = place::loopback(0, last);
    format!("soft:{a}.{b}.{c}.{d}")
}

/// WRITEs, READs and SENDs of many lengths, with every byte compared.
fn traffic(a: &mut End, b: &mut End) {
    let size = a.shape.buffer;
    for len in [1usize, 8, 64, 1000, 4096, 4097, 65_536, 1 << 20] {
        let (sent, zeroes) = (pattern(len as u64, len), vec![0; size]);
        a.buffer.write(0, &sent);
        b.buffer.write(0, &zeroes);
        a.post(1, Op::Write(0, None), 0, len as u32).unwrap();
        succeed(a, b, 1);
        let got = b.buffer.read(0, size);
        assert!(got[..len] == sent && got[len..] == zeroes[len..], "WRITE of {len}");

        let sent = pattern(len as u64 + 1, len);
        b.buffer.write(0, &sent);
        a.post(2, Op::Read(0), 0, len as u32).unwrap();
        succeed(a, b, 2);
        assert!(a.buffer.read(0, len) == sent, "READ of {len}");

        let sent = pattern(len as u64 + 2, len);
        a.buffer.write(0, &sent);
        b.post_recv(9, 0, len as u32).unwrap();
        a.post(3, Op::Send(None), 0, len as u32).unwrap();
        succeed(a, b, 3);
        let wc = succeed(b, a, 9);
        assert_eq!(wc.byte_len as usize, len);
        assert!(b.buffer.read(0, len) == sent, "SEND of {len}");
    }
}

#[test]
fn write_read_send_over_udp() {
    let (x, y) = (Soft::new(&name(1)), Soft::new(&name(2)));
    let (mut a, mut b) = connected_pair(x.dev(), y.dev());
    traffic(&mut a, &mut b);
    let c = x.dev().counters().unwrap();
    assert_eq!(c.rcvd_icrc_err + c.rcvd_malformed + c.rcvd_no_qp, 0, "{c:?}");
}

#[test]
fn write_read_send_over_udp_ipv6() {
    // Loopback has a single IPv6 address, so the process's number tells the ports apart.
    let port = 5000 + 2 * u16::from(place::number());
    let open = |port: u16| Soft::new(&format!("soft:[::1]:{port}"));
    let (x, y) = (open(port), open(port + 1));
    let (mut a, mut b) = connected_pair(x.dev(), y.dev());
    traffic(&mut a, &mut b);
}

/// A receiver that takes a message and leaves at once, by any call, has acknowledged it.
#[test]
fn the_last_message_is_acknowledged_before_its_receiver_leaves() {
    fn to(b: &End, state: u32) {
        let attr = QpAttr { qp_state: state, ..Default::default() };
        b.dev.qp_modify(b.qp, &attr, qp_attr_mask::STATE).unwrap();
    }
    let leave: [fn(&End); 4] = [
        |b| to(b, qp_state::ERR),
        |b| to(b, qp_state::RESET),
        |b| b.dev.qp_reset(b.qp).unwrap(),
        |b| b.dev.qp_destroy(b.qp).unwrap(),
    ];
    for (i, leave) in leave.iter().enumerate() {
        let (x, y) = (Soft::new(&name(3)), Soft::new(&name(4)));
        let (mut a, mut b) = connected_pair(x.dev(), y.dev());
        b.post_recv(9, 0, 64).unwrap();
        a.post(7, Op::Send(None), 0, 64).unwrap();
        run_until(60, "the message did not come", || b.poll() > 0);
        leave(&b);
        // Only the sender polls from here on.
        run_until(60, "neither success nor failure", || a.poll() > 0);
        assert_eq!(a.done[0].status, wc_status::SUCCESS, "way {i} to leave");
    }
}

#[test]
fn a_doorbell_that_meets_a_control_call_is_rung_by_it() {
    let device = Soft::new("loopback");
    let (a, b) = connected_pair(device.dev(), device.dev());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                // A large ring is cleared under the lock, which takes some microseconds.
                let (cq, _) = device.dev().cq_create(4096).unwrap();
                device.dev().cq_destroy(cq).unwrap();
            }
        });
        let word = b.buffer.as_ptr().cast::<u64>();
        for k in 1..=20_000u64 {
            let sge = Sge { addr: &raw const k as u64, length: 8, lkey: 0 };
            let mut wr = a.request(k, Op::Write(0, None), core::slice::from_ref(&sge));
            wr.send_flags = send_flags::INLINE;
            a.post_wr(&wr).unwrap();
            let end = deadline(60);
            // No thread polls: only the doorbell moves it. SAFETY: the buffer lives, is aligned to
            // a page, and is written by atomic stores.
            while unsafe { word.read_volatile() } != k {
                if Instant::now() > end {
                    stop.store(true, Relaxed);
                    panic!("the doorbell of WRITE {k} was lost");
                }
                std::thread::yield_now();
            }
        }
        stop.store(true, Relaxed);
    });
}
