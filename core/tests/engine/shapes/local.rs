//! SENDs, WRITEs and READs between two queue pairs of one engine, in one step.

use gdrcore_core::verbs::post;
use gdrcore_core::verbs::shared::slotless;
use gdrcore_core::verbs::types::*;

use std::sync::atomic::Ordering::Relaxed;

use super::{same, same_completions, worlds, Plan, Ways, World};
use crate::util::*;

impl World {
    /// The doorbell of an end, for a request with this opcode: it is offered the single step.
    fn offer(&mut self, end: usize, opcode: u32) {
        if !self.single {
            return;
        }
        let e = &self.ends[end];
        let passed = match e.kind {
            qp_type::DCI => self.net.lock(e).try_local::<true>(index(e.qp), opcode),
            _ => self.net.lock(e).try_local::<false>(index(e.qp), opcode),
        };
        *if passed { &mut self.ways.sent } else { &mut self.ways.not_sent } += 1;
        self.ways.reads += u64::from(passed && opcode == wr_opcode::RDMA_READ);
        if passed && e.kind == qp_type::RC && opcode != wr_opcode::RDMA_READ {
            let q = &self.net.hosts[e.host].engine.shared().qps[index(e.qp)];
            assert_eq!(q.slotless.load(Relaxed), slotless::WITHIN, "the next one is offered");
        }
    }
}

impl World {
    /// Offers a request to be executed without a slot. False: it is to be posted.
    fn offer_slotless(&mut self, id: u64, p: &Plan) -> bool {
        let e = &self.ends[p.from];
        if !self.single || e.kind != qp_type::RC {
            return false;
        }
        let mut wr = self.request(id, p);
        (wr.raw.sg_list, wr.raw.num_sge) = (wr.sges.as_ptr(), wr.sges.len() as i32);
        let q = &self.net.hosts[e.host].engine.shared().qps[index(e.qp)];
        // SAFETY: the request and its list live through the call.
        let single = unsafe { post::single(q, &wr.raw) };
        let done = single.is_some_and(|single| self.net.lock(e).pass_single(index(e.qp), &single));
        self.ways.slotless += u64::from(done);
        done
    }
}

fn any_options(rng: &mut Rng) -> Opts {
    Opts {
        way: Way::Loopback,
        kind: if rng.below(3) == 0 { qp_type::DCI } else { qp_type::RC },
        bytes: 16 << 10,
        mtu: 1 + rng.below(5) as u32,
        cqe: 4 + rng.below(8) as u32,
        sig_all: rng.below(4) == 0,
        access: match rng.below(16) {
            0 | 1 => ACCESS_FLUSH | ALL & !access::REMOTE_WRITE,
            2 => ACCESS_FLUSH | ALL & !access::REMOTE_READ,
            _ => ACCESS_FLUSH | ALL,
        },
        rd_atomic: if rng.below(8) == 0 { 0 } else { 4 },
        rnr: 2,
        ..Opts::default()
    }
}

/// A request, most often a WRITE or a SEND.
fn plan(rng: &mut Rng, kind: u32) -> Plan {
    let p = Plan {
        from: if kind == qp_type::DCI { 0 } else { rng.below(2) as usize },
        opcode: match rng.below(14) {
            0 | 6..=8 => wr_opcode::SEND,
            9 => wr_opcode::SEND_WITH_IMM,
            1 => wr_opcode::RDMA_READ,
            2 => wr_opcode::RDMA_WRITE_WITH_IMM,
            3 => wr_opcode::ATOMIC_FETCH_AND_ADD,
            4 => wr_opcode::ATOMIC_WRITE,
            5 => wr_opcode::FLUSH,
            _ => wr_opcode::RDMA_WRITE,
        },
        flags: [0, send_flags::SIGNALED, send_flags::FENCE | send_flags::SIGNALED]
            [rng.below(3) as usize],
        len: [8, 0, 1, 7, 64, 300, 4096, 5000][rng.below(8) as usize],
        pieces: 1,
        src: rng.below(4096) as usize,
        dst: 8 * rng.below(512) as usize,
        wrong: if rng.below(40) == 0 { 1 + rng.below(3) } else { 0 },
    };
    let may_be_inline = matches!(p.opcode, wr_opcode::RDMA_WRITE..=wr_opcode::SEND_WITH_IMM);
    p.posted(rng, may_be_inline)
}

/// What happens around one request, the same in both worlds.
#[derive(Clone, Copy, Debug)]
struct Around {
    /// Its peer posts a receive, an end arms its CQ, the send queue is drained meanwhile.
    receives: bool,
    arms: bool,
    drains: bool,
    /// It is offered to be executed without a slot, if it is alone: two are acknowledged by one
    /// ACK.
    slotless: bool,
    /// A second request at once, before the engine has run.
    more: bool,
    /// The end that polls nothing afterwards.
    polls_nothing: u64,
    wait: u64,
}

fn around(rng: &mut Rng) -> Around {
    Around {
        receives: rng.below(3) > 0,
        slotless: rng.below(3) == 0,
        more: rng.below(5) == 0,
        polls_nothing: rng.below(3),
        arms: rng.below(6) == 0,
        drains: rng.below(30) == 0,
        wait: rng.below(4) * 700_000,
    }
}

/// Returns the kind, and how often the single step was taken.
fn compare(seed: u64) -> (u32, Ways) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let o = any_options(&mut rng);
    let mut worlds = worlds(o);
    let mut after_failure = 0;
    for step in 0..60 {
        // A connection that has failed shows a few more requests how it ends them.
        after_failure += u32::from(worlds[0].has_failed());
        if after_failure > 4 {
            break;
        }
        let (p, a) = (plan(&mut rng, o.kind), around(&mut rng));
        let what = (seed, step, p, a);
        for w in &mut worlds {
            if a.receives {
                // Full is full in both worlds.
                let _ = w.net.try_recv(&w.ends[1 - p.from], step, &[(8192, 6000)]);
            }
            if a.arms {
                let e = &w.ends[p.from];
                w.net.lock(e).arm_cq(e.scq, false).unwrap();
            }
            if a.drains {
                let _ = w.net.to_state(&w.ends[p.from], qp_state::SQD);
            }
        }
        let [x, y] = worlds.each_mut().map(|w| {
            let done = a.slotless && !a.more && w.offer_slotless(1000 + step, &p);
            if done {
                Ok(())
            } else {
                w.post(1000 + step, &p)
            }
        });
        assert_eq!(x, y, "{what:?}");
        for w in &mut worlds {
            if a.more {
                let _ = w.post(2000 + step, &Plan { wrong: 0, ..p });
            }
            w.offer(p.from, p.opcode);
            w.net.settle();
            w.net.run(a.wait);
            if a.drains {
                let _ = w.net.to_state(&w.ends[p.from], qp_state::RTS);
                w.net.settle();
            }
        }
        same(&worlds, &what);
        same_completions(&worlds, a.polls_nothing, &what);
    }
    (o.kind, worlds[0].ways)
}

#[test]
fn thorough_within_an_engine_the_single_step_leaves_what_the_general_path_leaves() {
    let (mut all, mut slotless) = ([(0, 0, 0); 2], 0);
    for seed in 1..600 {
        let (kind, ways) = compare(seed);
        let (passed, reads, general) = &mut all[usize::from(kind == qp_type::DCI)];
        *passed += ways.sent;
        *reads += ways.reads;
        *general += ways.not_sent;
        slotless += ways.slotless;
    }
    // Both paths were taken, often, and the single one by READs, too.
    assert!(all.iter().all(|&(p, r, g)| p > 700 && r > 50 && g > 1000), "{all:?}");
    assert!(slotless > 300, "{slotless}");
}
