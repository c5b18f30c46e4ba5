//! The C calls with hostile arguments, over a fake device: what they must refuse before they call
//! the device.

pub(crate) mod fake_device;
mod faulty;

use crate::ptr::zeroed;
use crate::*;
use core::ffi::{c_char, c_int, CStr};
use core::mem::{size_of, MaybeUninit};
use core::ptr::{null, null_mut};
use core::sync::atomic::Ordering;
use fake_device::{Fake, DEPTH, GOOD, QPN};
use gdrcore_core::counters::Counters;

const EINVAL: c_int = -libc::EINVAL;

/// All calls here are C calls with pointers of the tests' own locals, or with deliberate garbage
/// that must not be followed.
macro_rules! c {
    ($e:expr) => {{
        // SAFETY: every pointer is null, checked garbage, or a live local that is large enough.
        unsafe { $e }
    }};
}

fn open_error_text() -> String {
    let mut buf = [0 as c_char; 600];
    let n = c!(gdrc_error_detail(buf.as_mut_ptr(), buf.len()));
    // SAFETY: gdrc_error_detail ends its text with NUL.
    let s = unsafe { CStr::from_ptr(buf.as_ptr()) }.to_str().unwrap().to_string();
    assert_eq!(s.len(), usize::try_from(n).unwrap());
    s
}

fn send_wr(num_sge: i32) -> SendWr {
    // SAFETY: integers, raw pointers and a union of integers: zero is a value of each.
    let mut wr: SendWr = unsafe { MaybeUninit::zeroed().assume_init() };
    wr.num_sge = num_sge;
    wr
}

#[test]
fn context_pointers_of_any_bits_are_refused_without_being_followed() {
    let (_, good) = Fake::open();
    let mut pd = gdrc_pd::default();
    let base = good.addr();
    let near = [base + 1, base + 8, base + 63, base ^ (1 << 40)];
    for bits in [0, 1, 7, 64, 4096, usize::MAX, usize::MAX - 63].into_iter().chain(near) {
        let ctx = core::ptr::without_provenance_mut(bits);
        assert_eq!(c!(gdrc_pd_alloc(ctx, &mut pd)), EINVAL, "{bits:#x}");
        assert_eq!(c!(gdrc_progress(ctx)), EINVAL);
        assert_eq!(
            c!(gdrc_poll_cq(ctx, gdrc_cq { handle: GOOD }, 1, [Wc::default()].as_mut_ptr())),
            EINVAL
        );
        assert_eq!(c!(gdrc_close(ctx, null_mut())), EINVAL);
    }
    assert_eq!(pd.handle, 0);
    assert_eq!(c!(gdrc_pd_alloc(good, &mut pd)), 0);
    assert_eq!(pd.handle, GOOD);
}

#[test]
fn context_is_stale_after_close_and_leaks_are_counted() {
    let (fake, ctx) = Fake::open();
    let mut leaks: gdrc_leaks = zeroed();
    leaks.struct_size = 0;
    assert_eq!(c!(gdrc_close(ctx, &mut leaks)), EINVAL);
    assert_eq!(fake.closed.load(Ordering::Relaxed), 0);
    leaks = zeroed();
    assert_eq!(c!(gdrc_close(ctx, &mut leaks)), 3);
    assert_eq!((leaks.qp, leaks.mr, leaks.pd), (2, 1, 0));
    assert_eq!(c!(gdrc_close(ctx, &mut leaks)), EINVAL);
    assert_eq!(c!(gdrc_fd(ctx)), EINVAL);
    assert_eq!(fake.closed.load(Ordering::Relaxed), 1);
}

#[test]
fn context_of_the_parent_is_refused_in_the_child() {
    let (_, ctx) = Fake::open();
    // SAFETY: the child calls only gdrcore functions that touch atomics, and _exit.
    match unsafe { libc::fork() } {
        0 => {
            let ok = c!(gdrc_progress(ctx)) == -libc::EOWNERDEAD
                && c!(gdrc_close(ctx, null_mut())) == -libc::EOWNERDEAD;
            // SAFETY: ends the child without running the harness.
            unsafe { libc::_exit(if ok { 0 } else { 1 }) }
        }
        pid => {
            let mut status = -1;
            // SAFETY: our child, our local.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0);
        }
    }
    assert_eq!(c!(gdrc_arm(ctx)), 1);
}

#[test]
fn null_outputs_are_refused_before_the_device_is_called() {
    let (fake, ctx) = Fake::open();
    let (pd, mr, cq, srq, qp) = (
        gdrc_pd { handle: GOOD },
        gdrc_mr { handle: GOOD },
        gdrc_cq { handle: GOOD },
        gdrc_srq { handle: GOOD },
        gdrc_qp { handle: GOOD },
    );
    let mem = (&raw const *fake).cast_mut().cast();
    let mut srq_attr: gdrc_srq_attr = zeroed();
    let mut init: gdrc_qp_init = zeroed();
    let mut e: gdrc_endpoint = zeroed();
    let mut out = gdrc_ah::default();
    let results = [
        c!(gdrc_pd_alloc(ctx, null_mut())),
        c!(gdrc_mr_reg(ctx, pd, mem, 8, 1, null_mut(), null_mut())),
        c!(gdrc_mr_query(ctx, mr, null_mut())),
        c!(gdrc_mw_alloc(ctx, pd, 1, null_mut(), null_mut())),
        c!(gdrc_ah_create(ctx, pd, null(), &mut out)),
        c!(gdrc_ah_create(ctx, pd, null(), null_mut())),
        c!(gdrc_ah_from_wc(ctx, pd, null(), null(), &mut out)),
        c!(gdrc_cq_create(ctx, 1, null_mut(), null_mut())),
        c!(gdrc_srq_create(ctx, pd, &mut srq_attr, null_mut())),
        c!(gdrc_srq_create(ctx, pd, null_mut(), &mut gdrc_srq::default())),
        c!(gdrc_srq_query(ctx, srq, null_mut())),
        c!(gdrc_qp_create(ctx, &mut init, null_mut(), null_mut())),
        c!(gdrc_qp_create(ctx, null_mut(), &mut gdrc_qp::default(), null_mut())),
        c!(gdrc_qp_modify(ctx, qp, null(), 1)),
        c!(gdrc_qp_query(ctx, qp, null_mut(), null_mut())),
        c!(gdrc_post_send(ctx, qp, null(), null_mut())),
        c!(gdrc_post_recv(ctx, qp, null(), null_mut())),
        c!(gdrc_post_srq_recv(ctx, srq, null(), null_mut())),
        c!(gdrc_poll_cq(ctx, cq, 1, null_mut())),
        c!(gdrc_poll_cq(ctx, cq, -1, [Wc::default()].as_mut_ptr())),
        c!(gdrc_poll_cq(ctx, cq, c_int::MIN, [Wc::default()].as_mut_ptr())),
        c!(gdrc_get_cq_event(ctx, null_mut())),
        c!(gdrc_get_async_event(ctx, null_mut())),
        c!(gdrc_endpoint_local(ctx, qp, null(), null_mut())),
        c!(gdrc_endpoint_pack(null(), null_mut())),
        c!(gdrc_endpoint_pack(&e, null_mut())),
        c!(gdrc_endpoint_unpack(null(), &mut e)),
        c!(gdrc_qp_connect(ctx, qp, null(), null(), null())),
        c!(gdrc_counters(ctx, null_mut(), 4)),
        c!(gdrc_qp_counters(ctx, qp, null_mut(), 4)),
        c!(gdrc_last_cause(ctx, null_mut())),
        c!(gdrc_qp_cause(ctx, qp, null_mut())),
        c!(gdrc_cause_str(null(), null_mut(), 0)),
        c!(gdrc_device_query(ctx, null_mut())),
        c!(gdrc_arena_add(ctx, null_mut(), 4096)),
        c!(gdrc_config_default(null_mut())),
        c!(gdrc_context_size(null(), null(), null_mut())),
        c!(gdrc_open(null(), null(), null_mut())),
        c!(gdrc_error_detail(null_mut(), 10)),
    ];
    assert_eq!(results, [EINVAL; 39]);
    assert_eq!(fake.calls.load(Ordering::Relaxed), 0);
}

#[test]
fn misaligned_structs_are_refused() {
    let (fake, ctx) = Fake::open();
    let mut room = [0u64; 64];
    let odd: *mut u8 = room.as_mut_ptr().cast::<u8>().wrapping_add(1);
    assert_eq!(c!(gdrc_pd_alloc(ctx, odd.cast())), EINVAL);
    assert_eq!(c!(gdrc_device_query(ctx, odd.cast())), EINVAL);
    assert_eq!(c!(gdrc_post_send(ctx, gdrc_qp { handle: GOOD }, odd.cast(), null_mut())), EINVAL);
    assert_eq!(c!(gdrc_poll_cq(ctx, gdrc_cq { handle: GOOD }, 1, odd.cast())), EINVAL);
    assert_eq!(c!(gdrc_counters(ctx, odd.cast(), 1)), EINVAL);
    assert_eq!(fake.calls.load(Ordering::Relaxed), 0);
}

#[test]
fn stale_and_garbage_handles_reach_the_device_and_come_back_as_einval() {
    let (_, ctx) = Fake::open();
    for handle in [0, 1, GOOD ^ 1, GOOD ^ (1 << 63), u64::MAX] {
        assert_eq!(c!(gdrc_pd_dealloc(ctx, gdrc_pd { handle })), EINVAL);
        assert_eq!(c!(gdrc_mr_dereg(ctx, gdrc_mr { handle })), EINVAL);
        assert_eq!(c!(gdrc_mw_dealloc(ctx, gdrc_mw { handle })), EINVAL);
        assert_eq!(c!(gdrc_ah_destroy(ctx, gdrc_ah { handle })), EINVAL);
        assert_eq!(c!(gdrc_cq_resize(ctx, gdrc_cq { handle }, 4, null_mut())), EINVAL);
        assert_eq!(c!(gdrc_cq_destroy(ctx, gdrc_cq { handle })), EINVAL);
        assert_eq!(c!(gdrc_cq_arm(ctx, gdrc_cq { handle }, 0)), EINVAL);
        assert_eq!(c!(gdrc_srq_modify(ctx, gdrc_srq { handle }, 4)), EINVAL);
        assert_eq!(c!(gdrc_srq_resize(ctx, gdrc_srq { handle }, 4, null_mut())), EINVAL);
        assert_eq!(c!(gdrc_srq_number(ctx, gdrc_srq { handle }, &mut 0)), EINVAL);
        assert_eq!(c!(gdrc_srq_destroy(ctx, gdrc_srq { handle })), EINVAL);
        assert_eq!(c!(gdrc_xrcd_dealloc(ctx, gdrc_xrcd { handle })), EINVAL);
        assert_eq!(c!(gdrc_qp_destroy(ctx, gdrc_qp { handle })), EINVAL);
        assert_eq!(c!(gdrc_qp_reset(ctx, gdrc_qp { handle })), EINVAL);
        let wr = send_wr(0);
        let mut bad = null();
        assert_eq!(c!(gdrc_post_send(ctx, gdrc_qp { handle }, &wr, &mut bad)), EINVAL);
        assert!(core::ptr::eq(bad, &wr));
    }
}

#[test]
fn struct_size_rules_hold_in_both_directions() {
    let (_, ctx) = Fake::open();
    // A caller with a later header: the tail that we do not know is zeroed.
    let mut long = [u32::MAX; 40];
    long[0] = 160;
    assert_eq!(c!(gdrc_device_query(ctx, long.as_mut_ptr().cast())), 0);
    assert_eq!(long[0], 160);
    let known = size_of::<gdrc_device_attr>() / 4;
    assert!(long[known..].iter().all(|&w| w == 0));
    // A caller with an older header: nothing behind its end is written.
    let mut short = [u32::MAX; 40];
    short[0] = 16;
    assert_eq!(c!(gdrc_device_query(ctx, short.as_mut_ptr().cast())), 0);
    assert!(short[4..].iter().all(|&w| w == u32::MAX));
    // Sizes that none can have.
    for (size, err) in [(0, EINVAL), (3, EINVAL), (4097, -libc::E2BIG), (u32::MAX, -libc::E2BIG)] {
        let mut a: gdrc_device_attr = zeroed();
        a.struct_size = size;
        assert_eq!(c!(gdrc_device_query(ctx, &mut a)), err, "{size}");
        let mut cfg: gdrc_config = zeroed();
        cfg.struct_size = size;
        assert_eq!(c!(gdrc_context_size(c"loopback".as_ptr(), &cfg, &mut 0)), err, "{size}");
    }
    // As input: a zero tail is accepted, another is not.
    let mut cfg = [0u32; 40];
    cfg[0] = 160;
    let mut bytes = 0;
    assert_eq!(c!(gdrc_context_size(c"loopback".as_ptr(), cfg.as_ptr().cast(), &mut bytes)), 0);
    assert!(bytes > 0);
    cfg[39] = 1;
    bytes = 7;
    assert_eq!(
        c!(gdrc_context_size(c"loopback".as_ptr(), cfg.as_ptr().cast(), &mut bytes)),
        -libc::E2BIG
    );
    assert_eq!(bytes, 7);
    assert!(open_error_text().contains("newer header"), "{}", open_error_text());
}

#[test]
fn config_flags_and_bounds_must_have_a_meaning() {
    let mut cfg: gdrc_config = zeroed();
    cfg.flags = 1 << 31;
    assert_eq!(c!(gdrc_context_size(c"loopback".as_ptr(), &cfg, &mut 0)), EINVAL);
    cfg.flags = 0;
    cfg.max_cm_ids = (1 << 16) + 1;
    assert_eq!(c!(gdrc_context_size(c"loopback".as_ptr(), &cfg, &mut 0)), EINVAL);
    let mut cfg: gdrc_config = zeroed();
    assert_eq!(c!(gdrc_config_default(&mut cfg)), 0);
    assert_eq!((cfg.max_qp, cfg.max_mtu, cfg.deadline_ms), (128, 4096, 0));
}

#[test]
fn open_errors_advise_a_remedy() {
    let mut ctx = null_mut();
    for (name, part) in [
        (c"", "no device type"),
        (c"soft", "needs a ':'"),
        (c"mlx5_0", "loopback"),
        (c"loopback:x", "nothing follows \"loopback\", and ':x' does"),
        (c"verbs", "needs a ':'"),
        (c"loopback2", "loopback"),
        (c"sfot:127.0.0.1", "device type 'sfot'"),
        (c"soft:", "address ''"),
        (c"soft:300.1.2.3", "address '300.1.2.3'"),
        (c"soft:node7", "address 'node7'"),
        (c"soft:127.0.0.1,path=xxx", "',path=xxx' after '127.0.0.1'"),
        (c"soft:127.0.0.1:65536", "port '65536'"),
        (c"soft:127.0.0.1:", "port ''"),
        (c"soft:[::1", "']' is missing"),
        (c"soft:[::1]4791", "'4791' after the address"),
        (c"soft:[127.0.0.1]", "brackets are for IPv6"),
        (c"soft:224.0.0.1", "address '224.0.0.1'"),
        (c"soft:fe80::1", "its interface must follow"),
        (c"soft:[fe80::1%nothing]", "interface '%nothing'"),
        (c"soft:[::1%lo]", "only a link-local address"),
        (c"verbs:", "NIC ''"),
        (c"verbs:rxe0:x", "'x' after the NIC"),
        (c"verbs:rxe0:256", "port 256"),
        (c"verbs:rxe0:1:256", "gid-index 256"),
        (c"verbs:[::1", "']' is missing"),
    ] {
        assert!(c!(gdrc_open(name.as_ptr(), null(), &mut ctx)) < 0, "{name:?}");
        assert!(ctx.is_null());
        let text = open_error_text();
        assert!(text.contains(part), "{name:?}: {text}");
        let name = name.to_str().unwrap();
        assert!(text.starts_with(&format!("'{name}': ")), "{name:?}: {text}");
    }
    let long = [b'x' as c_char; 4096];
    assert_eq!(c!(gdrc_open(long.as_ptr(), null(), &mut ctx)), EINVAL);
    assert!(open_error_text().contains("255"));
    assert_eq!(c!(gdrc_open(null(), null(), &mut ctx)), EINVAL);
    // Cut like snprintf.
    let mut buf = [1 as c_char; 8];
    let n = c!(gdrc_error_detail(buf.as_mut_ptr(), buf.len()));
    assert!(n > 8 && buf[7] == 0 && buf[6] != 0);
    assert_eq!(n, c!(gdrc_error_detail(null_mut(), 0)));
}

#[test]
fn caller_memory_must_be_aligned_and_large_enough() {
    let mut need = 0;
    assert_eq!(c!(gdrc_context_size(c"loopback".as_ptr(), null(), &mut need)), 0);
    let mut ctx = null_mut();
    let mut init = |bits: usize, len| {
        c!(gdrc_context_init(
            core::ptr::without_provenance_mut(bits),
            len,
            c"loopback".as_ptr(),
            null(),
            &mut ctx
        ))
    };
    assert_eq!(init(0, need), EINVAL);
    assert_eq!(init(4096 + 8, need), EINVAL);
    assert_eq!(init(4096 + 2048, need), EINVAL);
    assert_eq!(init(usize::MAX - 4095, need), EINVAL);
    assert_eq!(init(4096, usize::MAX), EINVAL);
    assert_eq!(init(4096, need - 1), -libc::ENOMEM);
    assert!(open_error_text().contains(&need.to_string()));
    assert_eq!(init(4096, 0), -libc::ENOMEM);
    assert!(ctx.is_null());
}

#[test]
fn registration_refuses_ranges_that_cannot_be() {
    let (fake, ctx) = Fake::open();
    let pd = gdrc_pd { handle: GOOD };
    let mut mr = gdrc_mr::default();
    let at = core::ptr::without_provenance_mut;
    assert_eq!(c!(gdrc_mr_reg(ctx, pd, at(4096), 0, 1, &mut mr, null_mut())), EINVAL);
    assert_eq!(c!(gdrc_mr_reg(ctx, pd, null_mut(), 4096, 1, &mut mr, null_mut())), EINVAL);
    assert_eq!(c!(gdrc_mr_reg(ctx, pd, at(4096), usize::MAX, 1, &mut mr, null_mut())), EINVAL);
    let mut m: gdrc_memory = zeroed();
    m.struct_size = size_of::<gdrc_memory>() as u32;
    (m.addr, m.length, m.flags, m.iova) = (4096, 4096, memory_flags::IOVA, u64::MAX);
    assert_eq!(c!(gdrc_mr_reg_memory(ctx, pd, &m, 1, &mut mr, null_mut())), EINVAL);
    m.iova = 8;
    let access = access::ZERO_BASED;
    assert_eq!(c!(gdrc_mr_reg_memory(ctx, pd, &m, access, &mut mr, null_mut())), EINVAL);
    assert_eq!(fake.calls.load(Ordering::Relaxed), 0);
    let mut attr: gdrc_mr_attr = zeroed();
    assert_eq!(c!(gdrc_mr_reg(ctx, pd, at(4096), 64, access::ZERO_BASED, &mut mr, &mut attr)), 0);
    assert_eq!((mr.handle, attr.rkey, attr.length), (GOOD, 2, 4096));
    assert_eq!(fake.reg.lock().unwrap().unwrap().iova, 0);
    assert_eq!(c!(gdrc_mr_reg(ctx, pd, at(4096), 64, 1, &mut mr, null_mut())), 0);
    assert_eq!(fake.reg.lock().unwrap().unwrap().iova, 4096);
}

#[test]
fn posting_names_the_first_request_that_was_not_posted() {
    let (_, ctx) = Fake::open();
    let qp = gdrc_qp { handle: GOOD };
    let mut wrs = [send_wr(1), send_wr(0), send_wr(-1)];
    let p = wrs.as_mut_ptr();
    // SAFETY: elements of the array.
    unsafe {
        (*p).next = p.add(1);
        (*p.add(1)).next = p.add(2);
    }
    let mut bad = null();
    assert_eq!(c!(gdrc_post_send(ctx, qp, p, &mut bad)), EINVAL);
    assert_eq!(bad, p.wrapping_add(2).cast_const());
    // SAFETY: as before.
    unsafe { (*p.add(2)).num_sge = i32::MAX };
    assert_eq!(c!(gdrc_post_send(ctx, qp, p, &mut bad)), EINVAL);
    // SAFETY: as before: a cycle.
    unsafe {
        (*p.add(2)).num_sge = 0;
        (*p.add(2)).next = p;
    }
    assert_eq!(c!(gdrc_post_send(ctx, qp, p, &mut bad)), -libc::EAGAIN);
    assert_eq!(bad, p.wrapping_add(DEPTH % 3).cast_const());
    // SAFETY: as before.
    unsafe { (*p.add(2)).next = null_mut() };
    bad = null();
    assert_eq!(c!(gdrc_post_send(ctx, qp, p, &mut bad)), 0);
    assert!(bad.is_null(), "written only on failure");
}

#[test]
fn polling_returns_counts() {
    let (fake, ctx) = Fake::open();
    let mut wc = [Wc::default(); 4];
    let cq = gdrc_cq { handle: GOOD };
    assert_eq!(c!(gdrc_poll_cq(ctx, cq, 0, wc.as_mut_ptr())), 0);
    assert_eq!(c!(gdrc_poll_cq(ctx, cq, 1, wc.as_mut_ptr())), 1);
    assert_eq!(c!(gdrc_poll_cq(ctx, cq, 4, wc.as_mut_ptr())), 2);
    assert_eq!((wc[1].wr_id, wc[1].opcode), (42, wc_opcode::RECV));
    assert_eq!(c!(gdrc_progress(ctx)), c_int::MAX, "a count never wraps to an error");
    assert_eq!(c!(gdrc_wait(ctx, 0)), 0);
    assert_eq!(c!(gdrc_wait(ctx, -1)), 1);
    assert_eq!(c!(gdrc_wait(ctx, 77)), -libc::EIO, "an error without errno is still negative");
    let mut e = AsyncEvent::default();
    assert_eq!(c!(gdrc_get_async_event(ctx, &mut e)), 0);
    fake.event.store(async_event::SQ_DRAINED, Ordering::Relaxed);
    assert_eq!(c!(gdrc_get_async_event(ctx, &mut e)), 1);
    assert_eq!((e.event, e.handle), (async_event::SQ_DRAINED, GOOD));
    let mut q = gdrc_cq::default();
    assert_eq!(c!(gdrc_get_cq_event(ctx, &mut q)), 1);
    assert_eq!(q.handle, GOOD);
}

fn endpoints(ctx: *mut gdrc_context) -> (gdrc_endpoint, gdrc_endpoint) {
    let mut l: gdrc_endpoint = zeroed();
    assert_eq!(
        c!(gdrc_endpoint_local(ctx, gdrc_qp { handle: GOOD }, &gdrc_mr { handle: GOOD }, &mut l)),
        0
    );
    assert_eq!((l.qpn, l.addr, l.length, l.rkey, l.udp_port), (QPN, 0x8000, 4096, 2, 4791));
    let r = gdrc_endpoint {
        mtu: mtu::MTU_1024,
        max_rd_atomic: 4,
        qpn: 0x77,
        psn: 0x55,
        udp_port: 4800,
        ..l
    };
    (l, r)
}

#[test]
fn connect_walks_rc_to_rts_with_the_defaults() {
    let (fake, ctx) = Fake::open();
    let (l, r) = endpoints(ctx);
    assert_eq!(c!(gdrc_qp_connect(ctx, gdrc_qp { handle: GOOD }, &l, &r, null())), 0);
    let m = fake.modified.lock().unwrap().clone();
    let states: Vec<u32> = m.iter().map(|(a, _)| a.qp_state).collect();
    assert_eq!(states, [qp_state::INIT, qp_state::RTR, qp_state::RTS]);
    let a = m[2].0;
    assert_eq!((a.timeout, a.retry_cnt, a.rnr_retry, a.min_rnr_timer), (17, 7, 7, 12));
    assert_eq!((a.path_mtu, a.dest_qp_num, a.rq_psn, a.sq_psn), (mtu::MTU_1024, 0x77, 0x55, l.psn));
    assert_eq!(
        (a.max_rd_atomic, a.max_dest_rd_atomic, a.ah.udp_port, a.ah.scope_id),
        (4, 16, 4800, 0)
    );
    let flushes = access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;
    assert_eq!(a.qp_access_flags, 14 | flushes);
    assert_ne!(m[1].1 & qp_attr_mask::AV, 0);
    assert_eq!(
        m[0].1,
        qp_attr_mask::STATE
            | qp_attr_mask::PKEY_INDEX
            | qp_attr_mask::PORT
            | qp_attr_mask::ACCESS_FLAGS
    );
    drop(m);
    // In RTS already.
    assert_eq!(c!(gdrc_qp_connect(ctx, gdrc_qp { handle: GOOD }, &l, &r, null())), EINVAL);
}

#[test]
fn connect_that_fails_half_way_leaves_reset() {
    let (fake, ctx) = Fake::open();
    let (l, r) = endpoints(ctx);
    fake.fail_at.store(qp_state::RTR, Ordering::Relaxed);
    assert_eq!(c!(gdrc_qp_connect(ctx, gdrc_qp { handle: GOOD }, &l, &r, null())), -libc::ENOMEM);
    assert_eq!(fake.modified.lock().unwrap().last().unwrap().0.qp_state, qp_state::RESET);
    fake.fail_at.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(c!(gdrc_qp_connect(ctx, gdrc_qp { handle: GOOD }, &l, &r, null())), 0);
}

#[test]
fn connect_checks_endpoints_and_options() {
    let (fake, ctx) = Fake::open();
    let (l, r) = endpoints(ctx);
    let qp = gdrc_qp { handle: GOOD };
    let go = |l: gdrc_endpoint, r: gdrc_endpoint, o: gdrc_qp_connect_opts| {
        c!(gdrc_qp_connect(ctx, qp, &l, &r, &o))
    };
    let o: gdrc_qp_connect_opts = zeroed();
    assert_eq!(go(gdrc_endpoint { qpn: QPN + 1, ..l }, r, o), EINVAL);
    assert_eq!(go(l, gdrc_endpoint { qp_type: qp_type::UC, ..r }, o), EINVAL);
    assert_eq!(go(l, gdrc_endpoint { mtu: 9, ..r }, o), EINVAL);
    assert_eq!(go(l, gdrc_endpoint { udp_port: 70_000, ..r }, o), EINVAL);
    assert_eq!(go(l, r, gdrc_qp_connect_opts { timeout: 32, ..o }), EINVAL);
    assert_eq!(go(l, r, gdrc_qp_connect_opts { retry_cnt: 8, ..o }), EINVAL);
    assert_eq!(go(l, r, gdrc_qp_connect_opts { flags: 2, ..o }), EINVAL);
    assert_eq!(go(l, r, gdrc_qp_connect_opts { pkey_index: 1 << 16, ..o }), EINVAL);
    assert_eq!(go(l, r, gdrc_qp_connect_opts { struct_size: 0, ..o }), EINVAL);
    assert!(fake.modified.lock().unwrap().iter().all(|(a, _)| a.qp_state == qp_state::RESET));
    let exact =
        gdrc_qp_connect_opts { flags: qp_connect_flags::EXACT, access: access::REMOTE_READ, ..o };
    assert_eq!(go(l, r, gdrc_qp_connect_opts { traffic_class: 0xb8, ..exact }), 0);
    let a = fake.modified.lock().unwrap().last().unwrap().0;
    assert_eq!((a.ah.traffic_class, a.ah.udp_port), (0xb8, 4800));
    assert_eq!(
        (a.timeout, a.retry_cnt, a.rnr_retry, a.qp_access_flags),
        (0, 0, 0, access::REMOTE_READ)
    );
}

#[test]
fn connect_of_ud_needs_no_peer_and_link_local_peers_get_our_zone() {
    let (fake, ctx) = Fake::open();
    fake.qp_type.store(qp_type::UD, Ordering::Relaxed);
    let (l, _) = endpoints(ctx);
    assert_eq!(l.qkey >> 31, 0);
    assert_eq!(c!(gdrc_qp_connect(ctx, gdrc_qp { handle: GOOD }, &l, null(), null())), 0);
    assert_eq!(fake.modified.lock().unwrap()[0].1 & qp_attr_mask::QKEY, qp_attr_mask::QKEY);

    let (fake, ctx) = Fake::open();
    let (l, mut r) = endpoints(ctx);
    r.gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    r.scope_id = 0;
    assert_eq!(c!(gdrc_qp_connect(ctx, gdrc_qp { handle: GOOD }, &l, null(), null())), EINVAL);
    assert_eq!(c!(gdrc_qp_connect(ctx, gdrc_qp { handle: GOOD }, &l, &r, null())), 0);
    assert_eq!(fake.modified.lock().unwrap().last().unwrap().0.ah.scope_id, 3);
}

#[test]
fn answers_to_ud_messages_go_to_the_sender_in_the_grh() {
    let (fake, ctx) = Fake::open();
    let pd = gdrc_pd { handle: GOOD };
    let mut grh = [0u8; 40];
    grh[0] = 0x60;
    (grh[8], grh[9], grh[23]) = (0xfe, 0x80, 5);
    let mut ah = gdrc_ah::default();
    let mut wc = Wc::default();
    assert_eq!(c!(gdrc_ah_from_wc(ctx, pd, &wc, grh.as_ptr().cast(), &mut ah)), EINVAL);
    wc.wc_flags = wc_flags::GRH;
    assert_eq!(c!(gdrc_ah_from_wc(ctx, pd, &wc, grh.as_ptr().cast(), &mut ah)), 0);
    let a = fake.ah.lock().unwrap().unwrap();
    assert_eq!((a.dgid[15], a.scope_id), (5, 3));
    grh[0] = 0;
    assert_eq!(c!(gdrc_ah_from_wc(ctx, pd, &wc, grh.as_ptr().cast(), &mut ah)), EINVAL);
}

#[test]
fn counters_have_names_and_are_cut_to_the_callers_array() {
    let (_, ctx) = Fake::open();
    let n = gdrc_counter_count();
    assert_eq!(n as usize, Counters::NAMES.len());
    for (i, want) in Counters::NAMES.iter().enumerate() {
        // SAFETY: the index is below the count, so the name is a static C string.
        let name = unsafe { CStr::from_ptr(gdrc_counter_name(i as u32)) };
        assert_eq!(name.to_str().unwrap(), *want);
    }
    assert!(gdrc_counter_name(n).is_null());
    assert!(gdrc_counter_name(u32::MAX).is_null());
    let mut v = [7u64; 3];
    assert_eq!(c!(gdrc_counters(ctx, v.as_mut_ptr(), 2)), 2);
    assert_eq!(v, [11, 22, 7]);
    let mut all = vec![0u64; n as usize + 5];
    assert_eq!(
        c!(gdrc_qp_counters(ctx, gdrc_qp { handle: GOOD }, all.as_mut_ptr(), n + 5)),
        n as c_int
    );
    assert_eq!(all[n as usize - 1], 99);
}

#[test]
fn causes_become_text_for_any_struct() {
    let (_, ctx) = Fake::open();
    let mut cause = Cause::default();
    assert_eq!(c!(gdrc_last_cause(ctx, &mut cause)), 0);
    assert_eq!(cause.code, CauseCode::RemoteAccess as u32);
    let mut buf = [0 as c_char; 256];
    assert!(c!(gdrc_cause_str(&cause, buf.as_mut_ptr(), buf.len())) > 20);
    // SAFETY: gdrc_cause_str ends its text with NUL.
    assert!(unsafe { CStr::from_ptr(buf.as_ptr()) }.to_str().unwrap().contains("0x0000abcd"));
    for code in (0..40).chain([u32::MAX]) {
        let hostile = Cause {
            code,
            peer: [0xff; 16],
            qpn: u32::MAX,
            arg0: u64::MAX,
            arg1: u64::MAX,
            ..cause
        };
        assert!(c!(gdrc_cause_str(&hostile, buf.as_mut_ptr(), 3)) > 3);
        assert_eq!(buf[2], 0);
    }
}

#[test]
fn texts_exist_for_any_number() {
    for n in [c_int::MIN, -4095, -22, -11, 0, 11, 22, 130, 100_000, c_int::MAX] {
        // SAFETY: static C strings.
        assert!(!unsafe { CStr::from_ptr(gdrc_strerror(n)) }.is_empty());
    }
    for n in (0..200).chain([u32::MAX]) {
        for s in
            [gdrc_wc_status_str(n), gdrc_wc_opcode_str(n), gdrc_qp_state_str(n), gdrc_event_str(n)]
        {
            // SAFETY: static C strings.
            assert!(!unsafe { CStr::from_ptr(s) }.is_empty());
        }
    }
    for (s, name) in [
        (gdrc_wc_status_str(12), c"RETRY_EXC_ERR"),
        (gdrc_wc_status_str(3), c"UNKNOWN"),
        (gdrc_wc_opcode_str(128), c"RECV"),
        (gdrc_qp_state_str(3), c"RTS"),
        (gdrc_event_str(8), c"DEVICE_FATAL"),
        (gdrc_cm_event_str(8), c"REJECTED"),
    ] {
        // SAFETY: a static C string.
        assert_eq!(unsafe { CStr::from_ptr(s) }, name);
    }
    // SAFETY: a static C string.
    let v = unsafe { CStr::from_ptr(gdrc_version()) }.to_str().unwrap();
    let mut n = 0u32;
    for part in v.split('.') {
        n = n << 8 | part.parse::<u32>().unwrap();
    }
    assert_eq!(n, gdrc_version_number(), "GDRC_VERSION is not the package's version {v}");
}

/// The header's inline function, in Rust.
fn send_by(to: *mut gdrc_qp_fast, wr: *const SendWr, bad: *mut *const SendWr) -> c_int {
    // SAFETY: a handle that was made, readable and writable arguments.
    unsafe { ((*(*to).ops).post_send)(to, wr, bad) }
}

/// As [`send_by`].
fn poll_by(of: *mut gdrc_cq_fast, n: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: as there.
    unsafe { ((*(*of).ops).poll)(of, n, wc) }
}

#[test]
fn a_device_without_fast_paths_has_fast_handles_as_well() {
    let (fake, ctx) = Fake::open();
    let (qp, cq) = (gdrc_qp { handle: GOOD }, gdrc_cq { handle: GOOD });
    let (mut to, mut of): (*mut gdrc_qp_fast, *mut gdrc_cq_fast) = (null_mut(), null_mut());
    assert_eq!(c!(gdrc_qp_fast_get(ctx, gdrc_qp { handle: GOOD ^ 1 }, &mut to)), EINVAL);
    assert_eq!(c!(gdrc_qp_fast_get(ctx, qp, &mut to)), 0);
    assert_eq!(c!(gdrc_cq_fast_get(ctx, cq, &mut of)), 0);
    assert_eq!(fake.pins.load(Ordering::Relaxed), 2);
    let (good, wrong) = (send_wr(1), send_wr(5));
    let mut bad = null();
    assert_eq!(send_by(to, &good, &mut bad), 0);
    assert_eq!((send_by(to, &wrong, &mut bad), bad), (EINVAL, &raw const wrong));
    assert_eq!(send_by(to, null(), &mut bad), EINVAL);
    let mut wc = [Wc::default(); 2];
    let polled = c!(gdrc_poll_cq(ctx, cq, 2, wc.as_mut_ptr()));
    assert_eq!(poll_by(of, 2, wc.as_mut_ptr()), polled);
    assert_eq!(poll_by(of, -1, wc.as_mut_ptr()), EINVAL);
    assert_eq!(c!(gdrc_qp_fast_put(to)), 0);
    assert_eq!((c!(gdrc_qp_fast_put(to)), send_by(to, &good, &mut bad)), (EINVAL, EINVAL));
    assert_eq!(fake.pins.load(Ordering::Relaxed), 1);
    // Remaining handles end with the context; the device is not called for them.
    assert!(c!(gdrc_close(ctx, null_mut())) > 0);
    assert_eq!(fake.pins.load(Ordering::Relaxed), 1);
    assert_eq!((poll_by(of, 1, wc.as_mut_ptr()), c!(gdrc_cq_fast_put(of))), (EINVAL, EINVAL));
}

#[test]
fn handles_of_any_bits_are_not_released() {
    let (_, ctx) = Fake::open();
    let mut to = null_mut();
    assert_eq!(c!(gdrc_qp_fast_get(ctx, gdrc_qp { handle: GOOD }, &mut to)), 0);
    let base = to.addr();
    for bits in [
        0,
        1,
        64,
        4096,
        base + 1,
        base + 8,
        base + 63,
        base ^ (1 << 40),
        usize::MAX,
        usize::MAX - 63,
    ] {
        assert_eq!(
            c!(gdrc_qp_fast_put(core::ptr::without_provenance_mut(bits))),
            EINVAL,
            "{bits:#x}"
        );
        assert_eq!(
            c!(gdrc_cq_fast_put(core::ptr::without_provenance_mut(bits))),
            EINVAL,
            "{bits:#x}"
        );
    }
    assert_eq!(c!(gdrc_qp_fast_put(to)), 0);
}
