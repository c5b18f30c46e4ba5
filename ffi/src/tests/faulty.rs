//! Calls of the C API that fail, and polls that end early, by rules of `gdrc_config.faults`.

use super::{open_error_text, EINVAL};
use crate::ptr::zeroed;
use crate::*;
use core::ffi::{c_int, CStr};
use core::ptr::{null, null_mut};
use gdrcore_core::cm::types::port_space;
use gdrcore_core::verbs::types::{access, qp_state, qp_type, send_flags, wr_opcode, Sge};
use std::mem::MaybeUninit;

const LEN: usize = 64;
/// Operands that no call reads.
const NONE: u64 = 0;

/// A device with two connected queue pairs and a CQ.
struct Pair {
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    mr: gdrc_mr,
    cq: gdrc_cq,
    qp: [gdrc_qp; 2],
    memory: Box<[u64; LEN]>,
    keys: gdrc_mr_attr,
}

fn open(faults: &CStr, seed: u64) -> Result<*mut gdrc_context, c_int> {
    let cfg = gdrc_config { faults: faults.as_ptr(), seed, ..zeroed() };
    let mut ctx = null_mut();
    // SAFETY: live locals.
    match unsafe { gdrc_open(c"loopback".as_ptr(), &cfg, &mut ctx) } {
        0 => Ok(ctx),
        e => Err(e),
    }
}

/// Repeats a call until it is not refused; the errnos before that.
fn until_done(refusals: &mut Vec<c_int>, mut call: impl FnMut() -> c_int) {
    loop {
        match call() {
            0.. => return,
            e => refusals.push(-e),
        }
        assert!(refusals.len() < 100, "{}", open_error_text());
    }
}

impl Pair {
    /// Everything is made as often as it is refused.
    fn new(faults: &CStr, seed: u64, refused: &mut Vec<c_int>) -> Pair {
        let ctx = open(faults, seed).expect("a device");
        let mut p = Pair {
            ctx,
            pd: gdrc_pd::default(),
            mr: gdrc_mr::default(),
            cq: gdrc_cq::default(),
            qp: [gdrc_qp::default(); 2],
            memory: Box::new([NONE; LEN]),
            keys: zeroed(),
        };
        let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
        let at = p.memory.as_mut_ptr().cast();
        // SAFETY: live locals, and memory that outlives the region.
        unsafe {
            until_done(refused, || gdrc_pd_alloc(ctx, &mut p.pd));
            until_done(refused, || {
                gdrc_mr_reg(ctx, p.pd, at, 8 * LEN, rights, &mut p.mr, &mut p.keys)
            });
            until_done(refused, || gdrc_cq_create(ctx, 64, &mut p.cq, null_mut()));
            let mut ends = [zeroed::<gdrc_endpoint>(); 2];
            for (qp, end) in p.qp.iter_mut().zip(&mut ends) {
                let mut init: gdrc_qp_init = zeroed();
                (init.pd, init.send_cq, init.recv_cq) = (p.pd, p.cq, p.cq);
                init.qp_type = qp_type::RC;
                (init.cap.max_send_wr, init.cap.max_send_sge) = (32, 1);
                until_done(refused, || gdrc_qp_create(ctx, &mut init, qp, null_mut()));
                assert_eq!(gdrc_endpoint_local(ctx, *qp, &p.mr, end), 0);
            }
            for k in 0..2 {
                let connect = || gdrc_qp_connect(ctx, p.qp[k], &ends[k], &ends[1 - k], null());
                until_done(refused, connect);
            }
        }
        p
    }

    /// Posts a WRITE of a word.
    fn write(&mut self) -> c_int {
        let at = self.memory.as_ptr().expose_provenance() as u64;
        let mut sge = Sge { addr: at, length: 8, lkey: self.keys.lkey };
        // SAFETY: integers, raw pointers and a union of integers: zero is a value of each.
        let mut wr: SendWr = unsafe { MaybeUninit::zeroed().assume_init() };
        (wr.sg_list, wr.num_sge, wr.opcode) = (&raw mut sge, 1, wr_opcode::RDMA_WRITE);
        wr.send_flags = send_flags::SIGNALED;
        wr.wr.rdma.remote_addr = at + 8;
        wr.wr.rdma.rkey = self.keys.rkey;
        let mut bad = null();
        // SAFETY: live locals.
        let done = unsafe { gdrc_post_send(self.ctx, self.qp[0], &wr, &mut bad) };
        assert_eq!(bad, if done == 0 { null() } else { &raw const wr }, "{done}");
        done
    }

    fn poll(&self, n: usize) -> c_int {
        let mut wc = [Wc::default(); 64];
        // SAFETY: room for as many.
        unsafe { gdrc_poll_cq(self.ctx, self.cq, n as c_int, wc.as_mut_ptr()) }
    }

    /// Writes so many words, which complete.
    fn complete(&mut self, n: usize) {
        (0..n).for_each(|_| assert_eq!(self.write(), 0));
        // SAFETY: an open context.
        while unsafe { gdrc_progress(self.ctx) } > 0 {}
    }

    /// Takes everything down.
    fn end(self, refused: &mut Vec<c_int>) {
        let ctx = self.ctx;
        // SAFETY: live locals.
        unsafe {
            self.qp.iter().for_each(|qp| until_done(refused, || gdrc_qp_destroy(ctx, *qp)));
            until_done(refused, || gdrc_cq_destroy(ctx, self.cq));
            until_done(refused, || gdrc_mr_dereg(ctx, self.mr));
            until_done(refused, || gdrc_pd_dealloc(ctx, self.pd));
            assert_eq!(gdrc_close(ctx, null_mut()), 0, "nothing is left");
        }
    }
}

#[test]
fn a_call_that_a_rule_hits_fails_and_changes_nothing() {
    let rules = c"call gdrc_pd_alloc nth 1 errno ENOMEM; call gdrc_mr_reg nth 1 errno EIO;
        call gdrc_cq_create nth 1 errno ENOMEM; call gdrc_qp_create nth 2 errno EAGAIN;
        call gdrc_qp_modify nth 5 errno EIO; call gdrc_post_send nth 2 errno ENOMEM;
        call gdrc_poll_cq nth 1 errno EIO; call gdrc_qp_destroy nth 1 errno EBUSY;
        call gdrc_cq_destroy nth 1 errno EBUSY; call gdrc_mr_dereg nth 1 errno EBUSY;
        call gdrc_pd_dealloc every 1 to 2 errno EBUSY";
    let mut refused = Vec::new();
    let mut p = Pair::new(rules, 7, &mut refused);
    assert_eq!(refused, [libc::ENOMEM, libc::EIO, libc::ENOMEM, libc::EAGAIN, libc::EIO]);
    assert_eq!((p.write(), p.write()), (0, -libc::ENOMEM));
    let text = open_error_text();
    assert!(text.contains("fault: call gdrc_post_send nth 2 errno ENOMEM rule 6"), "{text}");
    // SAFETY: an open context.
    while unsafe { gdrc_progress(p.ctx) } > 0 {}
    assert_eq!(p.poll(4), -libc::EIO);
    assert_eq!(p.poll(4), 1, "the completion is still there");
    refused.clear();
    p.end(&mut refused);
    assert_eq!(refused, [libc::EBUSY; 5]);
}

#[test]
fn polls_end_with_a_completion_that_a_rule_hits_and_the_rest_has_an_event() {
    let mut refused = Vec::new();
    let mut p = Pair::new(c"few every 3", 7, &mut refused);
    p.complete(8);
    let mut of = gdrc_cq::default();
    // SAFETY: an open context, a live local.
    unsafe {
        assert_eq!(gdrc_cq_arm(p.ctx, p.cq, 0), 0);
        assert_eq!(gdrc_get_cq_event(p.ctx, &mut of), 0, "all had completed");
    }
    assert_eq!(p.poll(16), 3);
    // SAFETY: as above.
    assert_eq!(unsafe { gdrc_get_cq_event(p.ctx, &mut of) }, 1);
    assert_eq!([p.poll(2), p.poll(16), p.poll(16), p.poll(16)], [2, 1, 2, 0]);
    // By a fast handle, too.
    let mut fast = null_mut();
    let mut wc = [Wc::default(); 16];
    p.complete(4);
    // SAFETY: live locals; the handle is put back.
    unsafe {
        assert_eq!(gdrc_cq_fast_get(p.ctx, p.cq, &mut fast), 0);
        let poll = (*(*fast).ops).poll;
        assert_eq!([(); 3].map(|()| poll(fast, 16, wc.as_mut_ptr())), [1, 3, 0]);
        assert_eq!(gdrc_cq_fast_put(fast), 0);
    }
    p.end(&mut refused);
    assert_eq!(refused, [0; 0]);
}

#[test]
fn a_seed_repeats_the_calls_and_polls_that_it_hits() {
    let run = |seed| {
        let rules = c"call gdrc_post_send rate 30% errno ENOMEM; few rate 50%; keys";
        let mut p = Pair::new(rules, seed, &mut Vec::new());
        let posts: Vec<c_int> = (0..30).map(|_| p.write()).collect();
        // SAFETY: an open context.
        while unsafe { gdrc_progress(p.ctx) } > 0 {}
        let polls: Vec<c_int> = (0..8).map(|_| p.poll(8)).collect();
        p.end(&mut Vec::new());
        (posts, polls)
    };
    assert_eq!(run(7), run(7));
    let (other, one) = (run(8), run(7));
    assert_eq!(run(0), run(0), "the process draws one seed");
    assert!(other.0 != one.0 && other.1 != one.1);
}

/// Whoever has written down a key of one device does not reach another by it.
#[test]
fn keys_that_follow_from_a_seed_differ_between_the_devices_of_a_process() {
    let keys = |_| {
        let p = Pair::new(c"keys", 7, &mut Vec::new());
        let keys = p.keys.rkey;
        p.end(&mut Vec::new());
        keys
    };
    let [one, again] = [(); 2].map(keys);
    assert_ne!(one, again);
}

/// A rule may fail what the program asks for, and not what a call undoes: the queue pair is in
/// RESET again, and no id is left.
#[test]
fn no_rule_fails_what_a_failed_call_undoes() {
    let rules = c"call gdrc_qp_modify from 2 errno EIO; call gdrc_cm_listen errno EIO;
        call gdrc_cm_connect errno EIO; call gdrc_cm_destroy errno EIO";
    let ctx = open(rules, 7).expect("a device");
    let (mut pd, mut cq) = (gdrc_pd::default(), gdrc_cq::default());
    let (mut qp, mut end) = (gdrc_qp::default(), zeroed::<gdrc_endpoint>());
    // SAFETY: live locals.
    unsafe {
        assert_eq!(gdrc_pd_alloc(ctx, &mut pd), 0);
        assert_eq!(gdrc_cq_create(ctx, 16, &mut cq, null_mut()), 0);
        let mut init: gdrc_qp_init = zeroed();
        (init.pd, init.send_cq, init.recv_cq, init.qp_type) = (pd, cq, cq, qp_type::RC);
        (init.cap.max_send_wr, init.cap.max_send_sge) = (4, 1);
        assert_eq!(gdrc_qp_create(ctx, &mut init, &mut qp, null_mut()), 0);
        assert_eq!(gdrc_endpoint_local(ctx, qp, null(), &mut end), 0);
        assert_eq!(gdrc_qp_connect(ctx, qp, &end, &end, null()), -libc::EIO);
        let mut attr: gdrc_qp_attr = zeroed();
        assert_eq!(gdrc_qp_query(ctx, qp, &mut attr, null_mut()), 0);
        assert_eq!(attr.qp_state, qp_state::RESET);
        let mut id = gdrc_cm_id::default();
        let to: gdrc_ah_attr = MaybeUninit::zeroed().assume_init();
        let space = port_space::TCP.into();
        // More than there are ids.
        for _ in 0..100 {
            assert_eq!(gdrc_cm_listen(ctx, space, 0, 0, 0, &mut id), -libc::EIO);
            assert_eq!(gdrc_cm_connect(ctx, &to, space, 1, qp, null(), &mut id), -libc::EIO);
        }
        assert_eq!(gdrc_qp_destroy(ctx, qp), 0);
        assert_eq!(gdrc_cq_destroy(ctx, cq), 0);
        assert_eq!(gdrc_pd_dealloc(ctx, pd), 0);
        assert_eq!(gdrc_close(ctx, null_mut()), 0);
    }
}

/// What is looked at fails by the same rules, and what undoes a call does not: the tests of this
/// file once more, in a process whose environment asks for it.
#[test]
fn calls_that_are_looked_at_fail_by_rules_likewise() {
    const STRICT: &str = "GDRC_STRICT";
    if std::env::var_os(STRICT).is_some() {
        return;
    }
    let mut c = std::process::Command::new(std::env::current_exe().expect("this program"));
    let done = c.args(["tests::faulty::", "--nocapture"]).env(STRICT, "report").output();
    let done = done.expect("it runs");
    let said = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(done.status.success() && !said.concat().contains("gdrcore strict"), "{said:?}");
}

/// In a process of its own, whose environment names the log.
#[test]
fn a_log_that_cannot_be_written_refuses_the_device() {
    const LOG: &str = "GDRC_FAULT_LOG";
    let name = "a_log_that_cannot_be_written_refuses_the_device";
    if std::env::var_os(LOG).is_none() {
        let mut c = std::process::Command::new(std::env::current_exe().expect("this program"));
        c.args(["--exact", &format!("tests::faulty::{name}"), "--nocapture"]);
        let done = c.env(LOG, "/nowhere/log").output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{done:?}");
        return;
    }
    assert_eq!(open(c"call gdrc_mr_reg nth 1 errno EIO", 1), Err(-libc::ENOENT));
    let text = open_error_text();
    assert!(text.starts_with("'loopback': GDRC_FAULT_LOG: cannot be opened"), "{text}");
}

#[test]
fn names_that_are_no_call_of_the_header_are_refused() {
    for (rules, place) in [
        (c"call ibv_reg_mr errno EIO", "column 6: 'ibv_reg_mr': no call of gdrcore.h"),
        (c"call gdrc_counters errno EIO", "column 6: 'gdrc_counters': no call"),
        (c"call gdrc_pd_alloc", "'errno' and its name are missing"),
    ] {
        assert_eq!(open(rules, 1), Err(EINVAL));
        let text = open_error_text();
        assert!(text.contains(place), "{text}");
    }
    let header = include_str!("../../../include/gdrcore.h");
    for name in gdrcore_net::inject::calls_that_may_fail() {
        assert!(header.contains(&format!("int {name}(")), "{name}");
    }
}
