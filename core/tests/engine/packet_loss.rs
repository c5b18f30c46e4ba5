//! Losses, duplicates and late packets, one kind at a time; and programs that do not keep still.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{IcrcFlow, Opcode};
use gdrcore_testkit::patience::deadline;

use crate::util::*;

/// Some of everything, in a row; everything must come out right.
pub fn mixture(net: &mut Net, a: &End, b: &End) {
    b.buf.write(0, &pattern(1, 30_000));
    b.buf.write_u64(1_000_000, 0);
    for i in 0..24u64 {
        a.buf.write(100_000 + i as usize * 10_000, &pattern(50 + i, 9000));
        let at = i as usize * 10_000;
        let w = match i % 4 {
            0 => Wr::new(wr_opcode::RDMA_READ).local(a, 500_000 + at, 9000).remote(b, at / 10),
            1 => Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD)
                .local(a, i as usize * 8, 8)
                .atomic(b, 1_000_000, 3, 0),
            2 => {
                Wr::new(wr_opcode::RDMA_WRITE).local(a, 100_000 + at, 9000).remote(b, 100_000 + at)
            }
            _ => {
                net.recv(b, i, &[(500_000 + at, 9000)]);
                Wr::new(wr_opcode::SEND_WITH_IMM).imm(i as u32).local(a, 100_000 + at, 9000)
            }
        };
        net.post(a, w.id(i));
    }
    let wc = net.wait(a.host, a.scq, 24);
    assert!(wc.iter().enumerate().all(|(i, w)| (w.wr_id, w.status) == (i as u64, 0)), "{wc:?}");
    let wc = net.wait(b.host, b.rcq, 6);
    assert!(wc
        .iter()
        .enumerate()
        .all(|(i, w)| w.wr_id == 4 * i as u64 + 3 && w.imm_data == w.wr_id as u32));
    assert_eq!(b.buf.read_u64(1_000_000), 18, "atomics are executed once");
    for i in 0..24usize {
        let at = i * 10_000;
        match i % 4 {
            0 => assert!(a.buf.read(500_000 + at, 9000) == b.buf.read(at / 10, 9000)),
            1 => assert_eq!(a.buf.read_u64(i * 8), (i as u64 / 4) * 3),
            2 => assert!(b.buf.read(100_000 + at, 9000) == pattern(50 + i as u64, 9000)),
            _ => assert!(b.buf.read(500_000 + at, 9000) == pattern(50 + i as u64, 9000)),
        }
    }
    assert_eq!(net.poll(b.host, b.rcq).len(), 0);
}

fn with(tap: impl FnMut(usize, &mut Vec<u8>) -> Fate + 'static) {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.tap = Some(Box::new(tap));
    mixture(&mut net, &a, &b);
}

// rxe rxe_resp.c check_psn, expected
// IBTA C9-105
// rxe rxe_resp.c duplicate_request, atomic
#[test]
fn everything_twice() {
    with(|_, _| Fate::Twice);
}

// rxe rxe_req.c req_retry
#[test]
fn one_packet_in_three_seven_and_thirty_one_lost() {
    for n in [3u32, 7, 31] {
        with(one_in(n));
    }
}

/// Loses one packet in `n`, in no pattern that could fall into step with the retries.
pub fn one_in(n: u32) -> impl FnMut(usize, &mut Vec<u8>) -> Fate {
    let mut x = n;
    move |_, _| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Fate::drop_if((x >> 16) % n == 0)
    }
}

/// Runs a test on a good wire, on one where everything arrives twice, on some that lose packets,
/// and on some that lose those of one opcode the first time.
pub fn on_bad_wires(test: impl Fn(Tap), lost: [Opcode; 2]) {
    test(Box::new(|_, _| Fate::Deliver));
    test(Box::new(|_, _| Fate::Twice));
    for n in [5, 7, 31] {
        test(Box::new(one_in(n)));
    }
    for lost in lost {
        let mut gone = HashSet::new();
        test(Box::new(move |_, p| {
            Fate::drop_if(Opcode(p[0]) == lost && gone.insert(p[9..12].to_vec()))
        }));
    }
}

/// Loses the packet with that number, counted from 0.
pub fn only(lost: u32) -> impl FnMut(usize, &mut Vec<u8>) -> Fate {
    let mut n = 0;
    move |_, _| {
        n += 1;
        Fate::drop_if(n == lost + 1)
    }
}

/// Loses all packets of a host but its first.
pub fn all_but_first_of(host: usize) -> impl FnMut(usize, &mut Vec<u8>) -> Fate {
    let mut n = 0;
    move |from, _| {
        n += u32::from(from == host);
        Fate::drop_if(from == host && n > 1)
    }
}

// rxe rxe_resp.c check_psn, expected
#[test]
fn every_other_packet_late() {
    let mut k = 0;
    with(move |_, _| {
        k += 1;
        if k % 2 == 0 {
            Fate::Later
        } else {
            Fate::Deliver
        }
    });
}

// rxe rxe_req.c req_retry
#[test]
fn each_kind_of_packet_lost_the_first_time() {
    for op in 0..=0x17u8 {
        let mut left = 3;
        with(move |_, p| {
            if Opcode(p[0]) == Opcode(op) && left > 0 {
                left -= 1;
                return Fate::Drop;
            }
            Fate::Deliver
        });
    }
}

// IBTA C9-105
#[test]
fn all_answers_lost_for_a_while() {
    let mut k = 0;
    with(move |from, _| {
        k += usize::from(from == 1);
        Fate::drop_if(from == 1 && k < 40)
    });
}

// IBTA C9-105
#[test]
fn old_packets_of_another_life_change_nothing() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let log = net.note(move |from, p| Some((from, p.to_vec())));
    mixture(&mut net, &a, &b);
    net.tap = None;
    let before = (a.buf.read(0, a.buf.len()), b.buf.read(0, b.buf.len()));
    for (from, p) in log.borrow().iter() {
        net.inject(*from, 1 - from, p);
        net.exchange();
    }
    net.settle();
    assert!(before == (a.buf.read(0, a.buf.len()), b.buf.read(0, b.buf.len())));
    assert!(net.poll(0, a.scq).is_empty() && net.poll(1, b.rcq).is_empty());
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).remote(&b, 0));
}

// rxe rxe_comp.c check_psn, old
#[test]
fn naks_and_acks_out_of_the_window_change_nothing() {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 5000).remote(&b, 0));
    let flow = {
        let (src, dst) = (net.hosts[1].addr, net.hosts[0].addr);
        gdrcore_core::wire::IcrcFlow::from_gids(&src.gid, &dst.gid, src.port, dst.port)
    };
    for syndrome in [0x1f_u8, 0x20, 0x60, 0x61, 0x62, 0x63] {
        for psn in [PSN - 1, PSN, PSN + 4, PSN + 5, PSN + 6, PSN + 1000, 0x7f_0000] {
            let mut p =
                vec![0x11, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, syndrome, 0, 0, 1, 0, 0, 0, 0];
            p[4..8].copy_from_slice(&a.qpn.to_be_bytes());
            p[8..12].copy_from_slice(&(psn & 0xff_ffff).to_be_bytes());
            flow.append_icrc(0, &mut p);
            net.inject(1, 0, &p);
        }
    }
    net.settle();
    assert_eq!(net.state(&a), qp_state::RTS);
    assert!(net.poll(0, a.scq).is_empty());
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 5000).remote(&b, 0));
}

// rxe rxe_req.c rxe_do_local_ops
#[test]
fn windows_are_bound_once_through_losses() {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.tap = Some(Box::new(one_in(4)));
    let (mw, mut key) = net.lock(&a).mw_alloc(a.pd, 2).unwrap();
    let bind_info = a.window(64, access::REMOTE_READ);
    let mut n = 0;
    for _ in 0..10 {
        key = (key & !0xff) | (key.wrapping_add(1) & 0xff);
        net.post(&a, Wr::new(wr_opcode::RDMA_READ).id(n).local(&a, 4096, 3000).remote(&b, 0));
        net.post(&a, Wr::new(wr_opcode::BIND_MW).id(n + 1).bind(mw, key, bind_info));
        net.post(
            &a,
            Wr::new(wr_opcode::RDMA_WRITE).id(n + 2).local(&a, 4096, 3000).remote(&b, 4096),
        );
        net.post(&a, Wr::new(wr_opcode::LOCAL_INV).id(n + 3).imm(key));
        n += 4;
    }
    let wc = net.wait(a.host, a.scq, n as usize);
    assert!(wc.iter().enumerate().all(|(i, w)| (w.wr_id, w.status) == (i as u64, 0)), "{wc:?}");
}

#[test]
fn a_buffer_that_changes_meanwhile_costs_no_icrc() {
    let (mut net, a, b) = Net::pair(Opts { mtu: mtu::MTU_4096, ..Opts::default() });
    let (stop, ptr) = (AtomicBool::new(false), a.buf.as_ptr() as usize);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut x = 0u8;
            while !stop.load(Ordering::Relaxed) {
                x = x.wrapping_add(1);
                for i in (0..200_000).step_by(61) {
                    // SAFETY: inside the buffer, which outlives the scope; the engine's own
                    // accesses are not Rust's.
                    unsafe { (*((ptr + i) as *const AtomicU8)).store(x, Ordering::Relaxed) };
                }
            }
        });
        for _ in 0..100 {
            net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 200_000).remote(&b, 0));
            net.ok(&b, Wr::new(wr_opcode::RDMA_READ).local(&b, 300_000, 200_000).remote(&a, 0));
        }
        stop.store(true, Ordering::Relaxed);
    });
    for h in &net.hosts {
        let c = h.lock().counters();
        assert_eq!(c.rcvd_icrc_err + c.rcvd_malformed + c.retry_timeouts, 0, "{c:?}");
    }
}

#[test]
fn thorough_who_polls_the_last_byte_sees_all_before_it() {
    use Way::{Link, Loopback, Wire};
    for (way, len) in [
        (Wire, 8usize),
        (Wire, 1000),
        (Wire, 70_000),
        (Loopback, 1),
        (Loopback, 5000),
        (Loopback, 1 << 20),
        (Link, 8),
        (Link, 1 << 20),
    ] {
        let (mut net, a, b) = Net::pair(Opts { mtu: mtu::MTU_4096, way, ..Opts::default() });
        let (stop, seen, ptr) = (AtomicBool::new(false), AtomicU8::new(0), b.buf.as_ptr() as usize);
        // SAFETY: inside the buffer, which outlives the scope below.
        let byte = |i: usize| unsafe { (*((ptr + i) as *const AtomicU8)).load(Ordering::Acquire) };
        let rounds = if len > 100_000 { 20 } else { 120 };
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    let now = byte(len - 1);
                    if now != last {
                        let early = (0..len).find(|&i| byte(i) != now);
                        assert_eq!(early, None, "round {now} of {len} bytes");
                        last = now;
                        seen.store(now, Ordering::Release);
                    }
                }
            });
            for round in 1..=rounds {
                a.buf.write(0, &vec![round; len]);
                net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, len).remote(&b, 0));
                // The next round would change what the poller is comparing.
                let end = deadline(60);
                while seen.load(Ordering::Acquire) != round {
                    assert!(std::time::Instant::now() < end, "the poller failed");
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

// rxe rxe_comp.c check_psn, READ
#[test]
fn an_ack_that_passes_a_lost_read_answer_asks_for_it_again() {
    let (mut net, a, b) = Net::pair(Opts::default());
    b.buf.write(0, &pattern(9, 64));
    let mut lost = false;
    net.tap = Some(Box::new(move |from, p| {
        if from == 1 && !lost && Opcode(p[0]) == Opcode::RC_READ_RESPONSE_ONLY {
            lost = true;
            return Fate::Drop;
        }
        Fate::Deliver
    }));
    net.post(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 1000, 64).remote(&b, 0).id(1));
    net.settle();
    assert!(net.poll(0, a.scq).is_empty(), "its answer is lost");
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 2000, 64).remote(&b, 4096).id(2));
    let before = net.now;
    net.settle();
    assert_eq!(net.now, before, "no timer has run");
    let wc = net.poll(0, a.scq);
    assert!(wc.iter().map(|w| (w.wr_id, w.status)).eq([(1, 0), (2, 0)]), "{wc:?}");
    assert_eq!(a.buf.read(1000, 64), pattern(9, 64));
}

// rxe rxe_comp.c do_read
#[test]
fn a_read_answer_of_another_length_is_a_bad_response() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let (us, peer) = (net.hosts[0].addr, net.hosts[1].addr);
    let flow = IcrcFlow::from_gids(&peer.gid, &us.gid, peer.port, us.port);
    net.tap = Some(Box::new(move |from, p| {
        if from == 1 && Opcode(p[0]) == Opcode::RC_READ_RESPONSE_ONLY {
            // A word less than was asked for: a peer that lies, so its ICRC is right.
            let short = p.len() - 4;
            p.truncate(short);
            flow.append_icrc(0, p);
        }
        Fate::Deliver
    }));
    let wc = net.run_one(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 64).remote(&b, 0));
    assert_eq!(wc.status, wc_status::BAD_RESP_ERR);
    assert_eq!(net.state(&a), qp_state::ERR);
}
