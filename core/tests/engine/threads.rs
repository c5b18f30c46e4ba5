//! A thread that runs the engine beside one that posts and polls, as a helper does beside a
//! program.

use std::sync::atomic::{AtomicBool, Ordering};

use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;

use crate::util::*;

/// Requests that each test ends one by one.
const TIMES: u64 = 60_000;

/// What runs the engine of both ends.
type Drive = fn(&mut gdrcore_core::engine::EngineGuard<'_>, usize);

/// Posts into a send queue of one, and again as soon as the completion is there.
fn queue_of_one(drive: Drive) {
    let (net, a, b) = Net::pair(Opts { way: Way::Loopback, sq: 1, bytes: 4096, ..Opts::default() });
    let engine = &net.hosts[0].engine;
    let over = AtomicBool::new(false);
    let qi = (a.qp & 0xff_ffff) as usize;
    let post = |id: u64| {
        let sge = Sge { addr: a.mr.iova, length: 8, lkey: a.mr.lkey };
        let w = Wr::new(wr_opcode::RDMA_WRITE)
            .id(id)
            .flags(send_flags::SIGNALED)
            .key(b.mr.iova, b.mr.rkey)
            .sge(sge);
        net.try_post(&a, w)
    };
    let mut early = 0u64;
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut rounds = 0u64;
            while !over.load(Ordering::Relaxed) {
                if let Some(mut g) = engine.try_lock() {
                    drive(&mut g, qi);
                }
                rounds += 1;
                if rounds.is_multiple_of(64) {
                    std::thread::yield_now();
                }
            }
        });
        for id in 0..TIMES {
            let mut posted = post(id);
            while posted == Err(Error::Again) {
                early += 1;
                posted = post(id);
            }
            posted.expect("a post");
            let mut wc = [Wc::default()];
            let mut vain = 0u32;
            while engine.poll_cq(a.scq, &mut wc).expect("a poll") == 0 {
                vain += 1;
                // The other one may wait for this core.
                if vain.is_multiple_of(64) {
                    std::thread::yield_now();
                }
            }
            assert_eq!((wc[0].wr_id, wc[0].status), (id, wc_status::SUCCESS));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(early, 0, "posts of {TIMES} found the queue full although the completion was there");
}

#[test]
fn whoever_has_the_completion_may_post_the_next() {
    queue_of_one(|g, _| {
        g.run_loopback(1_000_000);
    });
}

#[test]
fn whoever_has_the_completion_of_a_write_in_one_step_may_post_the_next() {
    queue_of_one(|g, qi| {
        g.try_local::<false>(qi, wr_opcode::RDMA_WRITE);
    });
}
