//! Single messages over a link and as packets, any requests, with harm done to their frames.

use std::fmt::Debug;

use gdrcore_core::verbs::types::*;

use super::framed::{carry, settle, Harm};
use super::{same, same_completions, worlds, Plan, Ways, World, SMALL_WRITE};
use crate::util::*;

/// Sometimes CQs, or windows, that have hardly any room.
fn crowd(worlds: &[World; 2], rng: &mut Rng) {
    if rng.below(4) == 0 {
        // All entries of the CQs but one are reserved for others.
        for w in worlds {
            for e in &w.ends {
                let mut g = w.net.lock(e);
                for cq in [e.scq, e.rcq] {
                    let entries = g.shared().cqs[index(cq)].ring.capacity();
                    g.transport.common.cqs[index(cq)].reserved = entries - 1;
                }
            }
        }
    }
    if rng.below(3) == 0 {
        // Windows of two packets, as after a silence.
        for w in worlds {
            for end in 0..2 {
                // A DCT has no peer, and its contexts send nothing that a window holds.
                let _ = w.with_peer(end, |peer| peer.tx.on_timeout(w.net.now));
            }
        }
    }
}

/// A request, whatever it may be.
fn plan(rng: &mut Rng, kind: u32) -> Plan {
    let reliable = kind != qp_type::UC;
    let p = Plan {
        from: if kind == qp_type::DCI { 0 } else { rng.below(2) as usize },
        opcode: match rng.below(16) {
            0 if reliable => wr_opcode::RDMA_READ,
            1 if reliable => wr_opcode::ATOMIC_FETCH_AND_ADD,
            2 => wr_opcode::RDMA_WRITE_WITH_IMM,
            3 => wr_opcode::SEND_WITH_IMM,
            8 if reliable => wr_opcode::ATOMIC_WRITE,
            9 if reliable => wr_opcode::FLUSH,
            4..8 => wr_opcode::RDMA_WRITE,
            _ => wr_opcode::SEND,
        },
        flags: [
            0,
            send_flags::SIGNALED,
            send_flags::SIGNALED,
            send_flags::FENCE,
            send_flags::SOLICITED,
        ][rng.below(5) as usize],
        len: [8, 8, 0, 1, 7, 64, 300, 4096, 5000][rng.below(9) as usize],
        pieces: 1 + usize::from(rng.below(8) == 0),
        src: rng.below(4096) as usize,
        dst: 8 * rng.below(512) as usize,
        wrong: if rng.below(60) == 0 { 1 + rng.below(3) } else { 0 },
    };
    let comes_back = matches!(p.opcode, wr_opcode::RDMA_READ | wr_opcode::ATOMIC_FETCH_AND_ADD);
    p.posted(rng, !comes_back)
}

/// What is done to a frame, where something is.
fn harm(rng: &mut Rng, way: Way) -> Harm {
    match rng.below(13) {
        1 => Harm::Lost,
        2 => Harm::Twice,
        3 => Harm::Bit(rng.below(24) as usize, 1 << rng.below(8)),
        4 => Harm::Cut(1 + rng.below(40) as usize),
        5 => Harm::Stranger,
        6 if way == Way::Wire => Harm::Marked,
        _ => Harm::None,
    }
}

/// A connection of any kind.
fn any_options(rng: &mut Rng, way: Way) -> Opts {
    let kind = match rng.below(16) {
        0 => qp_type::UC,
        1..5 => qp_type::DCI,
        _ => qp_type::RC,
    };
    Opts {
        way,
        kind,
        bytes: 16 << 10,
        mtu: 1 + rng.below(5) as u32,
        sq: 4 + rng.below(12) as u32,
        rq: 4 + rng.below(12) as u32,
        cqe: 4 + rng.below(16) as u32,
        sig_all: rng.below(4) == 0,
        srq: rng.below(8) == 0,
        access: ACCESS_FLUSH | if rng.below(8) == 0 { ALL & !access::REMOTE_WRITE } else { ALL },
        rnr: 2,
        ..Opts::default()
    }
}

/// What happens around one request, the same in both worlds.
#[derive(Clone, Copy, Debug)]
struct Around {
    /// Receives that are posted before it, and whether they are too short for some messages.
    receives: u64,
    short: bool,
    /// A second request at once, before the engine has run.
    more: bool,
    /// The end that polls nothing afterwards.
    polls_nothing: u64,
    /// The end that arms a CQ.
    arms: u64,
    /// The send queue is drained meanwhile.
    drains: bool,
    harm: Harm,
    /// 0: answers come after a while; 1: at once; 2: with the next step.
    answers: u64,
    /// Ends poll while something is delivered.
    polls: bool,
    wait: u64,
}

fn around(rng: &mut Rng, way: Way, harmful: bool) -> Around {
    Around {
        receives: rng.below(3),
        short: rng.below(12) == 0,
        more: rng.below(6) == 0,
        polls_nothing: rng.below(3),
        arms: rng.below(6),
        drains: rng.below(40) == 0,
        harm: if harmful { harm(rng, way) } else { Harm::None },
        answers: rng.below(3),
        polls: rng.below(3) == 0,
        wait: [0, 1000, 30_000, 1_500_000][rng.below(4) as usize],
    }
}

/// What a world is like when the request is posted.
fn prepare(w: &mut World, step: u64, p: &Plan, a: &Around) {
    w.polls = a.polls;
    w.polled.clear();
    for k in 0..a.receives {
        // Full is full in both worlds.
        let length = if a.short { 4 } else { 6000 };
        let _ = w.net.try_recv(&w.ends[1 - p.from], 2 * step + k, &[(8192, length)]);
    }
    let to = &w.ends[1 - p.from];
    if to.srq != 0 && step % 4 == 0 {
        w.net.lock(to).srq_modify(to.srq, 2).unwrap();
    }
    if let Some(e) = w.ends.get(a.arms as usize) {
        let cq = if step.count_ones() % 2 == 0 { e.scq } else { e.rcq };
        w.net.lock(e).arm_cq(cq, step % 3 == 0).unwrap();
    }
    if a.drains {
        let _ = w.net.to_state(&w.ends[p.from], qp_state::SQD);
    }
}

fn one_request(worlds: &mut [World; 2], step: u64, p: &Plan, a: &Around, what: &dyn Debug) {
    worlds.iter_mut().for_each(|w| prepare(w, step, p, a));
    let [x, y] = worlds.each_mut().map(|w| w.post(1000 + step, p));
    assert_eq!(x, y, "{what:?}");
    for w in worlds.iter_mut().filter(|_| a.more) {
        let _ = w.post(2000 + step, &Plan { wrong: 0, ..*p });
    }
    let frames = worlds.each_mut().map(|w| w.ring(p.from));
    // A damaged frame has the byte that is damaged.
    let harm = match a.harm {
        Harm::Bit(at, _) if frames[0].as_ref().is_none_or(|(_, bytes, _)| bytes.len() <= at) => {
            Harm::None
        }
        harm => harm,
    };
    carry(worlds, frames, harm, what);
    if a.answers == 0 {
        worlds.iter_mut().for_each(|w| w.wait(a.wait, step % 2 == 0));
    }
    if a.answers < 2 {
        settle(worlds, what);
    }
    if a.drains {
        for w in worlds.iter_mut() {
            let _ = w.net.to_state(&w.ends[p.from], qp_state::RTS);
        }
        settle(worlds, what);
    }
    same(worlds, what);
    same_completions(worlds, a.polls_nothing, what);
}

fn compare(seed: u64, way: Way) -> (u32, Ways) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let o = any_options(&mut rng, way);
    let mut worlds = worlds(o);
    if o.kind == qp_type::DCI {
        // An association, for what follows.
        worlds.iter_mut().for_each(|w| w.post(1, &SMALL_WRITE).unwrap());
        settle(&mut worlds, &(seed, "opening"));
        same_completions(&worlds, 2, &(seed, "opening"));
    }
    let harmful = rng.below(3) == 0;
    crowd(&worlds, &mut rng);
    let mut after_failure = 0;
    for step in 0..80 {
        // A connection that has failed shows a few more requests how it ends them.
        after_failure += u32::from(worlds[0].has_failed());
        if after_failure > 4 {
            break;
        }
        let p = plan(&mut rng, o.kind);
        let a = around(&mut rng, way, harmful);
        one_request(&mut worlds, step, &p, &a, &(seed, step, p, a));
    }
    (o.kind, worlds[0].ways)
}

fn compare_all(way: Way) {
    let mut all = [Ways::default(); 2];
    for seed in 1..250 {
        let (kind, w) = compare(seed, way);
        let all = &mut all[usize::from(kind == qp_type::DCI)];
        all.sent += w.sent;
        all.not_sent += w.not_sent;
        all.requests += w.requests;
        all.acks += w.acks;
        all.not_taken += w.not_taken;
        all.handed += w.handed;
    }
    // Each path was taken, often.
    for (w, times) in all.iter().zip([300, 40]) {
        let least = [w.sent, w.not_sent, w.requests, w.acks, w.not_taken].into_iter().min();
        let handed = way != Way::Link || w.handed > times / 4;
        assert!(least > Some(times) && handed, "{all:?}");
    }
}

#[test]
fn thorough_over_a_link_the_single_path_leaves_what_the_general_path_leaves() {
    compare_all(Way::Link);
}

#[test]
fn thorough_of_packets_the_single_path_leaves_what_the_general_path_leaves() {
    compare_all(Way::Wire);
}
