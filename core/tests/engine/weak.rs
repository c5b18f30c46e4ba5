//! Host memory whose bytes are placed in any order: which outcomes RDMA allows, and are seen, and
//! which it forbids. The shapes are the usual ones of memory models, with the verbs' operations
//! (`ibv_post_send(3)`, `ibv_query_qp_data_in_order(3)`; the model RDMA^TSO, OOPSLA 2024).

use gdrcore_core::device::{MrAttr, MrReg};
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::Bth;

use crate::slow_memory::Manual;
use crate::util::*;

/// Seeds within which each allowed outcome is seen.
const SEEDS: u64 = 10_000;
/// Seeds in which no forbidden one is.
const MANY: u64 = 1_000;

fn weak(o: Opts) -> (Net, End, End) {
    Net::pair(Opts { weak: true, bytes: 64 << 10, timeout: 14, ..o })
}

/// Begins the run of a seed: all memory is zero, and nothing is under way.
fn begin(net: &Net, seed: u64, ends: &[&End]) {
    for host in &net.hosts {
        host.weak.as_ref().expect("weak memory").set_seed(seed);
    }
    for e in ends {
        e.buf.write(0, &[0; 16 << 10]);
    }
}

/// Moves everything, and looks at each step, until nothing is left to do.
fn watch(net: &mut Net, mut look: impl FnMut(&Net)) {
    for _ in 0..10_000 {
        let moved = net.exchange();
        look(net);
        if moved {
            continue;
        }
        for host in &net.hosts {
            if let Some(weak) = &host.weak {
                weak.set_now(net.now);
            }
            let mut g = host.lock();
            g.handle_timeout(net.now);
            g.flush_acks();
        }
        look(net);
        if net.exchange() {
            continue;
        }
        let next = net.hosts.iter().filter_map(|h| h.lock().next_timeout(net.now)).min();
        match next {
            Some(at) if at < net.now + 100_000_000 => net.now = at.max(net.now + 1),
            _ => return,
        }
    }
    panic!("never still");
}

/// Takes all completions; they are successes.
fn drain(net: &Net, ends: &[&End]) {
    for e in ends {
        for cq in [e.scq, e.rcq] {
            let all = net.poll(e.host, cq);
            assert!(all.iter().all(|wc| wc.status == wc_status::SUCCESS), "{all:?}");
        }
    }
}

/// Runs a shape with seeds: whether the outcome that it returns was seen in any.
fn is_seen(
    seeds: u64,
    ends: (Net, End, End),
    mut shape: impl FnMut(&mut Net, &End, &End) -> bool,
) -> bool {
    let (mut net, a, b) = ends;
    (1..=seeds).any(|seed| {
        begin(&net, seed, &[&a, &b]);
        let seen = shape(&mut net, &a, &b);
        watch(&mut net, |_| ());
        drain(&net, &[&a, &b]);
        seen
    })
}

fn write(a: &End, b: &End, from: usize, to: usize, len: usize) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, from, len).remote(b, to)
}

/// Whether some moment has an outcome, by bytes of an end's memory.
fn at_some_moment(net: &mut Net, e: &End, is: impl Fn(&Buffer) -> bool) -> bool {
    let mut seen = false;
    watch(net, |_| seen |= is(&e.buf));
    seen
}

#[test]
fn bytes_of_a_message_come_in_any_order() {
    // Of one packet, and of three.
    for len in [200, 3000] {
        let last_first = |net: &mut Net, a: &End, b: &End| {
            a.buf.write(0, &[7; 3000]);
            net.post(a, write(a, b, 0, 4096, len));
            at_some_moment(net, b, |buf| {
                buf.read(4096 + len - 1, 1) == [7] && buf.read(4096, 1) == [0]
            })
        };
        assert!(is_seen(SEEDS, weak(Opts::default()), last_first), "{len}");
        let first_first = |net: &mut Net, a: &End, b: &End| {
            a.buf.write(0, &[7; 3000]);
            net.post(a, write(a, b, 0, 4096, len));
            at_some_moment(net, b, |buf| {
                buf.read(4096, 1) == [7] && buf.read(4096 + len - 1, 1) == [0]
            })
        };
        assert!(is_seen(SEEDS, weak(Opts::default()), first_first), "{len}");
        // A READ's own buffer, and a SEND's.
        let of_read = |net: &mut Net, a: &End, b: &End| {
            b.buf.write(0, &[7; 3000]);
            net.post(a, Wr::new(wr_opcode::RDMA_READ).local(a, 4096, len).remote(b, 0));
            at_some_moment(net, a, |buf| {
                buf.read(4096 + len - 1, 1) == [7] && buf.read(4096, 1) == [0]
            })
        };
        assert!(is_seen(SEEDS, weak(Opts::default()), of_read), "READ {len}");
        let of_send = |net: &mut Net, a: &End, b: &End| {
            a.buf.write(0, &[7; 3000]);
            net.recv(b, 1, &[(4096, 3000)]);
            net.post(a, Wr::new(wr_opcode::SEND).local(a, 0, len));
            at_some_moment(net, b, |buf| {
                buf.read(4096 + len - 1, 1) == [7] && buf.read(4096, 1) == [0]
            })
        };
        assert!(is_seen(SEEDS, weak(Opts::default()), of_send), "SEND {len}");
    }
}

#[test]
fn a_completion_comes_after_all_bytes_before_it() {
    for kind in [qp_type::RC, qp_type::UC] {
        for last in [wr_opcode::SEND, wr_opcode::RDMA_WRITE_WITH_IMM] {
            let missed = |net: &mut Net, a: &End, b: &End| {
                a.buf.write(0, &[7; 3000]);
                net.recv(b, 1, &[(8192, 100)]);
                net.post(a, write(a, b, 0, 4096, 3000));
                let second = match last {
                    wr_opcode::SEND => Wr::new(last).local(a, 0, 100),
                    _ => Wr::new(last).local(a, 0, 100).remote(b, 8192),
                };
                net.post(a, second);
                let mut missed = false;
                watch(net, |net| {
                    if !net.poll(b.host, b.rcq).is_empty() {
                        missed |= b.buf.read(4096, 3000) != [7; 3000];
                        missed |= b.buf.read(8192, 100) != [7; 100];
                    }
                });
                missed
            };
            assert!(
                !is_seen(MANY, weak(Opts { kind, ..Opts::default() }), missed),
                "{kind} {last}"
            );
        }
    }
    let read = |net: &mut Net, a: &End, b: &End| {
        b.buf.write(0, &[7; 3000]);
        net.post(a, Wr::new(wr_opcode::RDMA_READ).local(a, 4096, 3000).remote(b, 0));
        let mut missed = false;
        watch(net, |net| {
            if !net.poll(a.host, a.scq).is_empty() {
                missed |= a.buf.read(4096, 3000) != [7; 3000];
            }
        });
        missed
    };
    assert!(!is_seen(MANY, weak(Opts::default()), read), "READ");
}

/// WRITE data, WRITE flag: the flag is there and the data is not. The flag is put into a region
/// with these rights.
fn passed_message(rights: u32) -> impl FnMut(&mut Net, &End, &End) -> bool {
    let mut key = None;
    move |net, a, b| {
        let rkey = *key.get_or_insert_with(|| net.reg(b, &b.buf, rights).1.rkey);
        a.buf.write(0, &[7; 256]);
        net.post(a, write(a, b, 0, 4096, 256));
        net.post(a, Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 8).key(b.mr.iova, rkey));
        at_some_moment(net, b, |buf| buf.read(0, 8) == [7; 8] && buf.read(4096, 256) != [7; 256])
    }
}

#[test]
fn writes_of_a_queue_pair_pass_each_other_with_relaxed_ordering_only() {
    assert!(!is_seen(MANY, weak(Opts::default()), passed_message(ALL)));
    let relaxed = ALL | access::RELAXED_ORDERING;
    assert!(is_seen(SEEDS, weak(Opts::default()), passed_message(relaxed)));
}

#[test]
fn of_two_writes_to_one_place_the_later_one_remains() {
    let lost = |net: &mut Net, a: &End, b: &End| {
        a.buf.write(0, &[7; 700]);
        a.buf.write(1000, &[9; 700]);
        net.post(a, write(a, b, 0, 4096, 700));
        net.post(a, write(a, b, 1000, 4096 + 300, 700));
        watch(net, |_| ());
        b.buf.read(4096, 300) != [7; 300] || b.buf.read(4096 + 300, 700) != [9; 700]
    };
    assert!(!is_seen(MANY, weak(Opts::default()), lost));
}

#[test]
fn two_queue_pairs_are_not_ordered() {
    let o = Opts { weak: true, bytes: 64 << 10, timeout: 14, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    let (c, d) = (net.end(0, &o), net.end(1, &o));
    net.connect(&c, &d, &o);
    net.connect(&d, &c, &o);
    let ends = [&a, &b, &c, &d];
    let mut seen = false;
    for seed in 1..=SEEDS {
        begin(&net, seed, &ends);
        a.buf.write(0, &[7; 256]);
        c.buf.write(0, &[7; 8]);
        net.post(&a, write(&a, &b, 0, 4096, 256));
        net.settle();
        net.post(&c, write(&c, &d, 0, 0, 8));
        watch(&mut net, |_| {
            seen |= d.buf.read(0, 8) == [7; 8] && b.buf.read(4096, 256) != [7; 256];
        });
        drain(&net, &ends);
        if seen {
            return;
        }
    }
    panic!("a WRITE never passes that of another queue pair");
}

/// READ, then something that changes the word: the READ has the new value.
fn read_then(change: fn(&End, &End) -> Wr, flags: u32) -> impl FnMut(&mut Net, &End, &End) -> bool {
    move |net, a, b| {
        a.buf.write_u64(0, 1);
        net.post(a, Wr::new(wr_opcode::RDMA_READ).local(a, 64, 8).remote(b, 0));
        net.post(a, change(a, b).add_flags(flags));
        watch(net, |_| ());
        a.buf.read_u64(64) == 1
    }
}

#[test]
fn a_read_is_overtaken_by_what_follows_without_a_fence() {
    let changes: [fn(&End, &End) -> Wr; 2] = [
        |a, b| write(a, b, 0, 0, 8),
        |a, b| Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(a, 128, 8).atomic(b, 0, 1, 0),
    ];
    for change in changes {
        assert!(is_seen(SEEDS, weak(Opts::default()), read_then(change, 0)));
        let fence = send_flags::FENCE;
        assert!(!is_seen(MANY, weak(Opts::default()), read_then(change, fence)), "fence");
    }
}

#[test]
fn a_read_sees_the_write_before_it_and_reads_are_in_order() {
    let old = |net: &mut Net, a: &End, b: &End| {
        a.buf.write(0, &[7; 1500]);
        net.post(a, write(a, b, 0, 4096, 1500));
        net.post(a, Wr::new(wr_opcode::RDMA_READ).local(a, 4096, 1500).remote(b, 4096));
        watch(net, |_| ());
        a.buf.read(4096, 1500) != [7; 1500]
    };
    assert!(!is_seen(MANY, weak(Opts::default()), old));
    // The responder's program stores between the two: the second READ is not older.
    let turned = |net: &mut Net, a: &End, b: &End| {
        net.post(a, Wr::new(wr_opcode::RDMA_READ).local(a, 0, 8).remote(b, 0));
        net.post(a, Wr::new(wr_opcode::RDMA_READ).local(a, 8, 8).remote(b, 0));
        let mut steps = 0;
        watch(net, |_| {
            steps += 1;
            b.buf.write_u64(0, steps);
        });
        a.buf.read_u64(0) > a.buf.read_u64(8)
    };
    assert!(!is_seen(MANY, weak(Opts::default()), turned));
}

#[test]
fn an_atomic_is_behind_the_write_before_it() {
    let early = |net: &mut Net, a: &End, b: &End| {
        a.buf.write(0, &[7; 256]);
        net.post(a, write(a, b, 0, 4096, 256));
        let add = Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(a, 512, 8);
        net.post(a, add.atomic(b, 0, 1, 0));
        at_some_moment(net, b, |buf| buf.read_u64(0) == 1 && buf.read(4096, 256) != [7; 256])
    };
    assert!(!is_seen(MANY, weak(Opts::default()), early));
}

#[test]
fn a_send_takes_what_a_read_brings_with_a_fence_only() {
    let old = |flags: u32| {
        move |net: &mut Net, a: &End, b: &End| {
            b.buf.write(0, &[7; 64]);
            net.recv(b, 1, &[(4096, 64)]);
            net.post(a, Wr::new(wr_opcode::RDMA_READ).local(a, 0, 64).remote(b, 0));
            net.post(a, Wr::new(wr_opcode::SEND).local(a, 0, 64).add_flags(flags));
            watch(net, |_| ());
            b.buf.read(4096, 64) != [7; 64]
        }
    };
    assert!(is_seen(SEEDS, weak(Opts::default()), old(0)));
    assert!(!is_seen(MANY, weak(Opts::default()), old(send_flags::FENCE)));
}

/// After these calls the device writes no byte of the program's.
#[test]
fn nothing_is_placed_after_a_region_or_a_queue_pair_has_ended() {
    let ends: [fn(&mut Net, &End); 4] = [
        |net, b| net.lock(b).mr_dereg(b.mr_handle).unwrap(),
        |net, b| net.to_state(b, qp_state::ERR).unwrap(),
        |net, b| net.to_state(b, qp_state::RESET).unwrap(),
        |net, b| {
            let now = net.now;
            net.lock(b).qp_destroy(now, b.qp).unwrap();
        },
    ];
    for (k, end) in ends.iter().enumerate() {
        let mut waited = 0;
        for seed in 1..40 {
            let (mut net, a, b) = weak(Opts { retry: 0, ..Opts::default() });
            begin(&net, seed, &[&a, &b]);
            a.buf.write(0, &[7; 256]);
            net.post(&a, write(&a, &b, 0, 4096, 256));
            net.exchange();
            waited += u32::from(b.buf.read(4096, 256) != [7; 256]);
            end(&mut net, &b);
            b.buf.write(4096, &[1; 256]);
            net.run(20_000_000);
            assert!(b.buf.read(4096, 256) == [1; 256], "{k}, seed {seed}");
        }
        assert!(waited > 10, "{k}: {waited}");
    }
}

/// Opens a window of type 2 for WRITEs onto the first 256 bytes of an end: its handle and key.
fn open_window(net: &mut Net, b: &End) -> (Handle, u32) {
    let (mw, key) = net.lock(b).mw_alloc(b.pd, 2).unwrap();
    let key = (key & !0xff) | (key.wrapping_add(1) & 0xff);
    let info = b.window(256, access::REMOTE_WRITE);
    net.ok(b, Wr::new(wr_opcode::BIND_MW).bind(mw, key, info));
    (mw, key)
}

/// After a window's end, too.
#[test]
fn nothing_is_placed_after_a_window_has_ended() {
    let mut waited = 0;
    for seed in 1..40 {
        let (mut net, a, b) = weak(Opts { retry: 0, ..Opts::default() });
        let (mw, key) = open_window(&mut net, &b);
        begin(&net, seed, &[&a, &b]);
        a.buf.write(0, &[7; 256]);
        net.post(&a, write(&a, &b, 0, 0, 256).key(b.mr.iova, key));
        net.exchange();
        waited += u32::from(b.buf.read(0, 256) != [7; 256]);
        net.lock(&b).mw_dealloc(mw).unwrap();
        b.buf.write(0, &[1; 256]);
        net.run(20_000_000);
        assert!(b.buf.read(0, 256) == [1; 256], "seed {seed}");
    }
    assert!(waited > 10, "{waited}");
}

/// The receive request of a SEND with invalidate says that the window is closed. It completes
/// behind the bytes that came through it, also if the SEND has none of its own.
#[test]
fn nothing_is_placed_through_a_window_after_the_completion_that_tells_of_its_end() {
    for len in [0, 16] {
        let mut waited = 0;
        for seed in 1..40 {
            let (mut net, a, b) = weak(Opts::default());
            let (_, key) = open_window(&mut net, &b);
            begin(&net, seed, &[&a, &b]);
            a.buf.write(0, &[7; 256]);
            net.recv(&b, 1, &[(4096, 64)]);
            net.post(&a, write(&a, &b, 0, 0, 256).key(b.mr.iova, key));
            net.exchange();
            waited += u32::from(b.buf.read(0, 256) != [7; 256]);
            net.post(&a, Wr::new(wr_opcode::SEND_WITH_INV).imm(key).local(&a, 0, len));
            let mut told = false;
            watch(&mut net, |net| {
                if let [wc] = net.poll(b.host, b.rcq)[..] {
                    assert_eq!((wc.status, wc.wc_flags), (wc_status::SUCCESS, wc_flags::WITH_INV));
                    assert_eq!(b.buf.read(0, 256), [7; 256], "{len}, seed {seed}");
                    b.buf.write(0, &[1; 256]);
                    told = true;
                }
            });
            assert!(told && b.buf.read(0, 256) == [1; 256], "{len}, seed {seed}");
        }
        assert!(waited > 10, "{len}: {waited}");
    }
}

/// The NAK of a request acknowledges the messages before it, whose bytes are placed by then.
#[test]
fn a_message_before_one_that_is_refused_has_not_failed() {
    let mut waited = 0;
    for seed in 1..40 {
        let (mut net, a, b) = weak(Opts::default());
        begin(&net, seed, &[&a, &b]);
        a.buf.write(0, &[7; 256]);
        net.recv(&b, 1, &[(4096, 256)]);
        net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 256));
        net.exchange();
        waited += u32::from(b.buf.read(4096, 256) != [7; 256]);
        net.post(&a, write(&a, &b, 0, 0, 8).key(b.mr.iova, b.mr.rkey ^ 0xff00));
        net.exchange();
        let came = net.poll(b.host, b.rcq);
        assert_eq!((came.len(), came[0].status), (1, wc_status::SUCCESS), "seed {seed}");
        assert_eq!(b.buf.read(4096, 256), [7; 256]);
        let sent: Vec<u32> = net.wait(a.host, a.scq, 2).iter().map(|wc| wc.status).collect();
        assert_eq!(sent, [wc_status::SUCCESS, wc_status::REM_ACCESS_ERR], "seed {seed}");
    }
    assert!(waited > 10, "{waited}");
}

/// Its sender may be gone. The part that came asks for no ACK, so it is no landing.
#[test]
fn the_bytes_of_a_message_without_an_end_are_placed_in_time() {
    let mut waited = 0;
    for seed in 1..40 {
        let (mut net, a, b) = weak(Opts::default());
        begin(&net, seed, &[&a, &b]);
        a.buf.write(0, &[7; 3000]);
        net.recv(&b, 1, &[(4096, 3000)]);
        let mut first = true;
        net.tap = Some(Box::new(move |from, packet| {
            if from != 0 {
                return Fate::Deliver;
            }
            if !core::mem::take(&mut first) {
                return Fate::Drop;
            }
            let bth = Bth::parse(packet.first_chunk().expect("a header"));
            assert!(!bth.ack_req && !bth.opcode.is_last(), "{bth:?}");
            Fate::Deliver
        }));
        net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 3000));
        net.exchange();
        waited += u32::from(b.buf.read(4096, 1024) != [7; 1024]);
        let end = net.now + 5_000_000;
        while net.now < end {
            net.now += 20_000;
            net.hosts[1].weak.as_ref().expect("weak memory").set_now(net.now);
            net.lock(&b).poll_memory(net.now);
        }
        assert!(b.buf.read(4096, 1024) == [7; 1024], "seed {seed}");
    }
    assert!(waited > 10, "{waited}");
}

/// Memory of another kind at an end: what lets it land, its bytes and its region.
fn other_memory(net: &Net, e: &End) -> (&'static Manual, Buffer, MrAttr) {
    let (memory, bytes): (&'static Manual, _) = (Box::leak(Box::default()), Buffer::new(4096));
    let reg = MrReg { provider: 1, ..region(e.pd, bytes.addr(), bytes.len() as u64, ALL) };
    let mut g = net.lock(e);
    g.register_memory(1, memory).unwrap();
    let attr = g.mr_reg(&reg).unwrap().1;
    drop(g);
    (memory, bytes, attr)
}

/// A message lands in both, in one order or the other.
#[test]
fn a_message_ends_behind_both_kinds_of_memory() {
    for slow_first in [false, true] {
        let (mut net, a, b) = weak(Opts::default());
        let (memory, slow, MrAttr { addr, lkey, .. }) = other_memory(&net, &b);
        let mut pieces =
            [Sge { addr: b.mr.iova, length: 64, lkey: b.mr.lkey }, Sge { addr, length: 64, lkey }];
        if slow_first {
            pieces.reverse();
        }
        for seed in 1..200 {
            begin(&net, seed, &[&a, &b]);
            a.buf.write(0, &[seed as u8; 128]);
            net.try_recv_sges(&b, seed, &pieces).unwrap();
            net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 128));
            net.run(3_000_000);
            assert_eq!((memory.waiting(), net.poll(b.host, b.rcq).len()), (1, 0), "{seed}");
            memory.land(1);
            net.run(3_000_000);
            assert_eq!(net.poll(b.host, b.rcq).len(), 1, "{seed}");
            assert_eq!(b.buf.read(0, 64), [seed as u8; 64]);
            assert_eq!(slow.read(0, 64), [seed as u8; 64]);
            drain(&net, &[&a]);
        }
    }
}

/// An ACK that is asked for inside a message has no place of its own while others wait: it takes
/// that of the message in front of it, whose bytes it must wait for as well.
#[test]
fn an_ack_inside_a_message_waits_for_the_message_before_it_in_another_kind_of_memory() {
    const LONG: usize = 60 << 10;
    for seed in 1..40 {
        let (mut net, a, b) = weak(Opts::default());
        let (memory, _slow, MrAttr { addr, rkey, .. }) = other_memory(&net, &b);
        begin(&net, seed, &[&a, &b]);
        for n in 0..4 {
            let wr = Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 64).key(addr + 64 * n, rkey);
            net.post(&a, wr);
        }
        net.post(&a, write(&a, &b, 0, 0, LONG));
        net.run(3_000_000);
        memory.land(3);
        net.run(3_000_000);
        assert_eq!(net.poll(a.host, a.scq).len(), 3, "seed {seed}");
        memory.land(1);
        assert_eq!(net.wait(a.host, a.scq, 2).len(), 2, "seed {seed}");
    }
}

#[test]
fn requests_of_an_srq_are_exchanged_and_none_is_lost() {
    let (mut net, a, b) = Net::pair(Opts { srq: true, ..Opts::default() });
    let mut orders = std::collections::BTreeSet::new();
    for draw in 0..20 {
        (0..4).for_each(|id| net.recv(&b, id, &[(4096 * id as usize, 64)]));
        let mut order = Vec::new();
        for k in 0..4 {
            net.lock(&b).swap_receive(index(b.qp), draw + k);
            a.buf.write(0, &[k as u8 + 1; 64]);
            net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 64));
            let wc = net.poll(b.host, b.rcq)[0];
            assert_eq!(b.buf.read(4096 * wc.wr_id as usize, 64), [k as u8 + 1; 64]);
            order.push(wc.wr_id);
        }
        orders.insert(order.clone());
        order.sort();
        assert_eq!(order, [0, 1, 2, 3]);
    }
    assert!(orders.len() > 3, "{orders:?}");
    // Without a request, and without an SRQ.
    net.lock(&b).swap_receive(index(b.qp), 1);
    net.recv(&a, 1, &[(0, 8)]);
    net.lock(&a).swap_receive(index(a.qp), 1);
    net.lock(&a).swap_receive(9999, 1);
}

#[test]
fn what_a_poll_has_left_raises_the_event_of_an_armed_cq() {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.post(&a, write(&a, &b, 0, 0, 8));
    net.run(1_000_000);
    net.lock(&a).cq_raise_pending(a.scq).unwrap();
    assert_eq!(net.lock(&a).take_cq_event(), None, "it is not armed");
    net.lock(&a).arm_cq(a.scq, true).unwrap();
    net.lock(&a).cq_raise_pending(a.scq).unwrap();
    assert_eq!(net.lock(&a).take_cq_event(), Some(a.scq), "one of them may be solicited");
    net.lock(&a).arm_cq(a.scq, false).unwrap();
    net.lock(&a).cq_raise_pending(a.scq).unwrap();
    assert_eq!(net.lock(&a).take_cq_event(), Some(a.scq));
    net.lock(&a).cq_raise_pending(a.scq).unwrap();
    assert_eq!(net.lock(&a).take_cq_event(), None, "one event for an arming");
    net.lock(&a).arm_cq(a.scq, false).unwrap();
    drain(&net, &[&a]);
    net.lock(&a).cq_raise_pending(a.scq).unwrap();
    assert_eq!(net.lock(&a).take_cq_event(), None, "nothing is left");
    assert!(net.lock(&a).cq_raise_pending(0).is_err());
}

/// Keys and attributes are as without.
#[test]
fn a_region_shows_host_memory() {
    let (net, a, _b) = weak(Opts::default());
    assert_eq!((a.mr.provider, net.lock(&a).mr_query(a.mr_handle).unwrap().provider), (0, 0));
}

/// Many datagrams or messages of UC come at once, which nobody would send again.
#[test]
fn a_burst_of_messages_that_come_once_is_not_lost() {
    const BURST: u64 = 15;
    for kind in [qp_type::UD, qp_type::UC] {
        let (mut net, a, b) = weak(Opts { kind, ..Opts::default() });
        let ah = (kind == qp_type::UD).then(|| net.ah(&a, &b));
        for seed in 1..=100 {
            begin(&net, seed, &[&a, &b]);
            for id in 0..BURST {
                net.recv(&b, id, &[(1024 * id as usize, 1024)]);
                let wr = Wr::new(wr_opcode::SEND).local(&a, 0, 600);
                net.post(&a, if let Some(ah) = ah { wr.ud(ah, b.qpn, 0x1111) } else { wr });
            }
            watch(&mut net, |_| ());
            let came: Vec<u64> = net.poll(b.host, b.rcq).iter().map(|wc| wc.wr_id).collect();
            assert!(came.iter().copied().eq(0..BURST), "type {kind}, seed {seed}: {came:?}");
            drain(&net, &[&a]);
        }
    }
}
