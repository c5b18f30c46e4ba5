//! WRITEs that pass in one step leave what the usual way leaves: the same requests in two worlds,
//! of which one is offered the short way, and everything compared after each.

use gdrcore_core::verbs::types::*;

use crate::util::*;

struct World {
    net: Net,
    ends: [End; 2],
    offered: bool,
    passed: u64,
    usual: u64,
}

/// A request, the same in both worlds, though their addresses differ.
#[derive(Clone, Copy, Debug)]
struct Plan {
    from: usize,
    opcode: u32,
    flags: u32,
    len: usize,
    src: usize,
    dst: usize,
    /// What is wrong with it: 0 nothing, 1 the remote key, 2 the remote range, 3 the local key.
    wrong: u64,
}

impl World {
    fn new(o: Opts, offered: bool) -> World {
        let (net, a, b) = Net::pair(o);
        for (i, e) in [&a, &b].iter().enumerate() {
            e.buf.put(0, &pattern(i as u64, e.buf.len()));
        }
        World { net, ends: [a, b], offered, passed: 0, usual: 0 }
    }

    fn post(&mut self, id: u64, p: &Plan) -> Result<(), gdrcore_core::Error> {
        let (e, peer) = (&self.ends[p.from], &self.ends[1 - p.from]);
        let mut wr = Wr::new(p.opcode).id(id).flags(p.flags).imm(7);
        let mut sge = Sge { addr: e.mr.iova + p.src as u64, length: p.len as u32, lkey: e.mr.lkey };
        if p.wrong == 3 {
            sge.lkey ^= 0x55;
        }
        wr = wr.sge(sge);
        let rkey = peer.mr.rkey ^ if p.wrong == 1 { 0x55 } else { 0 };
        let at = peer.mr.iova + if p.wrong == 2 { peer.buf.len() as u64 } else { p.dst as u64 };
        wr = match p.opcode {
            wr_opcode::ATOMIC_FETCH_AND_ADD => wr.atomic(peer, p.dst, 3, 0),
            _ => wr.key(at, rkey),
        };
        self.net.try_post(e, wr)
    }

    /// The doorbell of an end.
    fn ring(&mut self, end: usize) {
        let e = &self.ends[end];
        if !self.offered {
            return;
        }
        if self.net.lock(e).try_local_write((e.qp & 0xff_ffff) as usize) {
            self.passed += 1;
        } else {
            self.usual += 1;
        }
    }

    /// All that the two ways could leave behind differently, as text.
    fn state(&self) -> String {
        self.ends.iter().enumerate().map(|(i, e)| end_state(&self.net, i, e, false)).collect()
    }
}

fn same(worlds: &mut [World; 2], what: &dyn std::fmt::Debug) {
    let [short, long] = worlds;
    let (a, b) = (short.state(), long.state());
    assert!(a == b, "{what:?}\n--- offered the short way:\n{a}--- not:\n{b}");
    for i in 0..2 {
        let (x, y) = (&short.ends[i].buf, &long.ends[i].buf);
        assert!(x.get(0, x.len()) == y.get(0, y.len()), "{what:?}: memory of end {i}");
    }
}

fn polled(worlds: &mut [World; 2], end: usize, what: &dyn std::fmt::Debug) {
    let take = |w: &World| {
        let e = &w.ends[end];
        (w.net.poll(e.host, e.scq), w.net.poll(e.host, e.rcq))
    };
    let (a, b) = (take(&worlds[0]), take(&worlds[1]));
    assert_eq!(a, b, "{what:?}");
}

/// Returns the requests that passed in one step, and those that were offered and did not.
fn compare(seed: u64) -> (u64, u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let o = Opts {
        way: Way::Loopback,
        bytes: 16 << 10,
        mtu: 1 + rng.below(5) as u32,
        cqe: 4 + rng.below(8) as u32,
        sig_all: rng.below(4) == 0,
        access: if rng.below(8) == 0 { ALL & !access::REMOTE_WRITE } else { ALL },
        rnr: 2,
        ..Opts::default()
    };
    let mut worlds = [World::new(o, true), World::new(o, false)];
    let mut lame = 0;
    for step in 0..60 {
        // A few more requests are posted to a connection that has failed.
        lame += u32::from(worlds[0].ends.iter().any(|e| worlds[0].net.state(e) == qp_state::ERR));
        if lame > 4 {
            break;
        }
        let p = Plan {
            from: rng.below(2) as usize,
            opcode: match rng.below(12) {
                0 => wr_opcode::SEND,
                1 => wr_opcode::RDMA_READ,
                2 => wr_opcode::RDMA_WRITE_WITH_IMM,
                3 => wr_opcode::ATOMIC_FETCH_AND_ADD,
                _ => wr_opcode::RDMA_WRITE,
            },
            flags: [0, send_flags::SIGNALED, send_flags::FENCE | send_flags::SIGNALED]
                [rng.below(3) as usize],
            len: [8, 0, 1, 7, 64, 300, 4096, 5000][rng.below(8) as usize],
            src: rng.below(4096) as usize,
            dst: 8 * rng.below(512) as usize,
            wrong: if rng.below(40) == 0 { 1 + rng.below(3) } else { 0 },
        };
        let inline = matches!(p.opcode, wr_opcode::RDMA_WRITE | wr_opcode::SEND)
            && p.len <= 64
            && rng.below(2) == 0;
        let len = if p.opcode == wr_opcode::ATOMIC_FETCH_AND_ADD { 8 } else { p.len };
        let p = Plan { flags: p.flags | if inline { send_flags::INLINE } else { 0 }, len, ..p };
        let receive = rng.below(3) == 0;
        let more = rng.below(5) == 0;
        let poll = rng.below(3);
        let arm = rng.below(6) == 0;
        let drain = rng.below(30) == 0;
        let wait = rng.below(4) * 700_000;
        for w in &mut worlds {
            if receive {
                // The queue is full in both worlds.
                let _ = w.net.try_recv(&w.ends[1 - p.from], step, &[(8192, 6000)]);
            }
            if arm {
                let e = &w.ends[p.from];
                w.net.lock(e).arm_cq(e.scq, false).unwrap();
            }
            if drain {
                let _ = w.net.to_state(&w.ends[p.from], qp_state::SQD);
            }
        }
        let outcome: Vec<_> = worlds.iter_mut().map(|w| w.post(1000 + step, &p)).collect();
        assert_eq!(outcome[0], outcome[1], "{p:?}");
        for w in &mut worlds {
            if more {
                // A second request at once, before the engine has run.
                let _ = w.post(2000 + step, &Plan { wrong: 0, ..p });
            }
            w.ring(p.from);
            w.net.settle();
            w.net.run(wait);
            if drain {
                let _ = w.net.to_state(&w.ends[p.from], qp_state::RTS);
                w.net.settle();
            }
        }
        same(&mut worlds, &(seed, step, p));
        for end in 0..2 {
            if poll != end {
                polled(&mut worlds, end as usize, &(seed, step, p));
            }
        }
        let events = |w: &World| w.net.hosts[0].lock().take_cq_event();
        assert_eq!(events(&worlds[0]).is_some(), events(&worlds[1]).is_some(), "{p:?}");
    }
    (worlds[0].passed, worlds[0].usual)
}

#[test]
fn passing_in_one_step_leaves_what_the_usual_way_leaves() {
    let (mut passed, mut usual) = (0, 0);
    for seed in 1..600 {
        let (p, u) = compare(seed);
        passed += p;
        usual += u;
    }
    // Both ways were taken, often.
    assert!(passed > 2000 && usual > 2000, "{passed} passed, {usual} did not");
}
