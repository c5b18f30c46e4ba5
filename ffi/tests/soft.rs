//! The C calls over the soft device: a program from open to close, on loopback and over UDP.

mod common;

use common::*;
use core::ffi::{c_int, CStr};
use core::ptr::{null, null_mut};
use gdrcore::*;
use gdrcore_testkit::descriptors::{fork, keep};
use gdrcore_testkit::patience::limit_ms;
use gdrcore_testkit::place;
use std::ffi::CString;

/// SEND, WRITE, READ, atomics and an error between two sides.
fn exchange(a: &mut Side, b: &mut Side) {
    a.buf[..5].copy_from_slice(b"hello");
    assert_eq!(b.post_recv(3, &mut [b.sge(100, 64)]), 0);
    assert_eq!(a.post_send(wr_opcode::SEND, send_flags::SIGNALED, &mut [a.sge(0, 5)], (0, 0)), 0);
    let wc = b.poll(Some(a)).expect("the receive ends");
    assert_eq!(
        (wc.status, wc.opcode, wc.wr_id, wc.byte_len),
        (wc_status::SUCCESS, wc_opcode::RECV, 3, 5)
    );
    assert_eq!(&b.buf[100..105], b"hello");
    let wc = a.poll(Some(b)).expect("the send ends");
    assert_eq!(
        (wc.status, wc.opcode, wc.wr_id, wc.qp_num),
        (wc_status::SUCCESS, wc_opcode::SEND, 7, a.qpn)
    );

    // Two entries, one remote range of 20,000 bytes: several packets.
    for (i, x) in a.buf[..20_000].iter_mut().enumerate() {
        *x = (i * 7) as u8;
    }
    let remote = (b.local.addr + 1000, b.local.rkey);
    let mut sges = [a.sge(0, 7_001), a.sge(7_001, 12_999)];
    assert_eq!(a.post_send(wr_opcode::RDMA_WRITE, send_flags::SIGNALED, &mut sges, remote), 0);
    assert_eq!(a.poll(Some(b)).expect("the write ends").status, wc_status::SUCCESS);
    assert_eq!(a.buf[..20_000], b.buf[1000..21_000]);

    assert_eq!(
        a.post_send(
            wr_opcode::RDMA_READ,
            send_flags::SIGNALED,
            &mut [a.sge(30_000, 20_000)],
            remote
        ),
        0
    );
    assert_eq!(a.poll(Some(b)).expect("the read ends").status, wc_status::SUCCESS);
    assert_eq!(a.buf[30_000..50_000], b.buf[1000..21_000]);

    b.buf[8..16].copy_from_slice(&41u64.to_ne_bytes());
    let mut wr: SendWr = zeroed();
    let mut sge = a.sge(64, 8);
    wr.sg_list = &mut sge;
    wr.num_sge = 1;
    wr.opcode = wr_opcode::ATOMIC_FETCH_AND_ADD;
    wr.send_flags = send_flags::SIGNALED;
    wr.wr.atomic =
        AtomicWr { remote_addr: b.local.addr + 8, compare_add: 1, swap: 0, rkey: b.local.rkey };
    assert_eq!(c!(gdrc_post_send(a.ctx, a.qp, &wr, null_mut())), 0);
    assert_eq!(a.poll(Some(b)).expect("the atomic ends").status, wc_status::SUCCESS);
    assert_eq!(a.buf[64..72], 41u64.to_ne_bytes());
    assert_eq!(b.buf[8..16], 42u64.to_ne_bytes());

    // The bytes of an ATOMIC WRITE are taken at the post, whatever its flags and its lkey.
    a.buf[64..72].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let word = Sge { addr: a.buf[64..].as_ptr() as u64, length: 8, lkey: 0x5a5a };
    let to = (b.local.addr + 16, b.local.rkey);
    assert_eq!(a.post_send(wr_opcode::ATOMIC_WRITE, send_flags::SIGNALED, &mut [word], to), 0);
    a.buf[64..72].fill(0);
    let wc = a.poll(Some(b)).expect("the atomic write ends");
    assert_eq!((wc.status, wc.opcode), (wc_status::SUCCESS, wc_opcode::ATOMIC_WRITE));
    assert_eq!(b.buf[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);

    // A FLUSH of the peer's region, which allows it, and of a range of none.
    let (remote_addr, placement) = (b.local.addr, flush_type::GLOBAL);
    wr = zeroed();
    (wr.opcode, wr.send_flags) = (wr_opcode::FLUSH, send_flags::SIGNALED);
    for (level, length) in [(flush_level::MR, 0), (flush_level::RANGE, 24), (flush_level::RANGE, 0)]
    {
        let rkey = b.local.rkey;
        wr.wr.flush = FlushWr { remote_addr, rkey, placement, length, level };
        assert_eq!(c!(gdrc_post_send(a.ctx, a.qp, &wr, null_mut())), 0);
        let wc = a.poll(Some(b)).expect("the flush ends");
        assert_eq!((wc.status, wc.opcode), (wc_status::SUCCESS, wc_opcode::FLUSH));
    }

    // A key that never existed: an error completion with a cause.
    let bad = (b.local.addr, b.local.rkey ^ 0x5a00);
    assert_eq!(a.post_send(wr_opcode::RDMA_WRITE, 0, &mut [a.sge(0, 8)], bad), 0);
    let wc = a.poll(Some(b)).expect("an error is completed, signalled or not");
    assert_eq!(
        (wc.status, wc.vendor_err),
        (wc_status::REM_ACCESS_ERR, CauseCode::RemoteAccess as u32)
    );
    let mut cause = Cause::default();
    assert_eq!(c!(gdrc_qp_cause(a.ctx, a.qp, &mut cause)), 0);
    assert_eq!((cause.code, cause.qpn), (CauseCode::RemoteAccess as u32, a.qpn));
    let mut attr: gdrc_qp_attr = sized();
    assert_eq!(c!(gdrc_qp_query(a.ctx, a.qp, &mut attr, null_mut())), 0);
    assert_eq!(attr.qp_state, qp_state::ERR);
    // The requester has its completion; the responder, which completes nothing, gets the one event
    // of IBTA.
    let mut event: AsyncEvent = zeroed();
    assert_eq!(c!(gdrc_get_async_event(b.ctx, &mut event)), 1);
    assert_eq!((event.event, event.handle), (async_event::QP_ACCESS_ERR, b.qp.handle));
    assert_eq!(c!(gdrc_get_async_event(b.ctx, &mut event)), 0);
    assert_eq!(c!(gdrc_get_async_event(a.ctx, &mut event)), 0);
}

fn destroy(s: Side) {
    assert_eq!(c!(gdrc_pd_dealloc(s.ctx, s.pd)), -libc::EBUSY);
    assert_eq!(c!(gdrc_cq_destroy(s.ctx, s.cq)), -libc::EBUSY);
    assert_eq!(c!(gdrc_qp_destroy(s.ctx, s.qp)), 0);
    assert_eq!(c!(gdrc_qp_destroy(s.ctx, s.qp)), -libc::EINVAL);
    assert_eq!(c!(gdrc_cq_destroy(s.ctx, s.cq)), 0);
    assert_eq!(c!(gdrc_mr_dereg(s.ctx, s.mr)), 0);
    assert_eq!(c!(gdrc_mr_query(s.ctx, s.mr, &mut sized())), -libc::EINVAL);
    assert_eq!(c!(gdrc_pd_dealloc(s.ctx, s.pd)), 0);
}

#[test]
fn rc_on_loopback_from_open_to_close_without_a_leak() {
    let ctx = Ctx::open(c"loopback", None);
    let (mut a, mut b) = (side(&ctx, qp_type::RC, 64 << 10), side(&ctx, qp_type::RC, 64 << 10));
    connect(&a, &b);
    exchange(&mut a, &mut b);
    destroy(a);
    destroy(b);
    assert_eq!(ctx.close(), 0);
}

#[test]
fn threads_of_one_context_have_engines_of_their_own() {
    struct Shared(*mut gdrc_context);
    // SAFETY: any thread may use a context.
    unsafe impl Sync for Shared {}
    let config = gdrc_config { engines: 3, ..sized() };
    for device in [c"loopback", &at(9)] {
        let ctx = Ctx::open(device, Some(&config));
        let shared = &Shared(ctx.0);
        let work = move || {
            let ctx = core::mem::ManuallyDrop::new(Ctx(shared.0));
            let make = || side(&ctx, qp_type::RC, 64 << 10);
            let (mut a, mut b) = (make(), make());
            connect(&a, &b);
            exchange(&mut a, &mut b);
            let qpn = a.qpn;
            destroy(a);
            destroy(b);
            qpn >> 14
        };
        // One after the other: none has the token of another.
        let blocks = std::thread::scope(|scope| {
            let own = work();
            let other = scope.spawn(work).join().expect("the thread");
            [own, other]
        });
        assert_ne!(blocks[0], blocks[1], "{device:?}: each engine has its block of QPNs");
        assert_eq!(ctx.close(), 0);
    }
    let mut cfg: gdrc_config = sized();
    assert_eq!((c!(gdrc_config_default(&mut cfg)), cfg.engines), (0, 1));
}

/// Handles of one context, used in another that has made the same calls: each call refuses them and
/// leaves the other's objects alone. Also in the context that comes after a closed one.
#[test]
fn handles_of_another_context_are_refused() {
    for engines in [1, 3] {
        let config = gdrc_config { engines, ..sized() };
        let mut earlier: Option<Side> = None;
        for _ in 0..3 {
            let (x, y) =
                (Ctx::open(c"loopback", Some(&config)), Ctx::open(c"loopback", Some(&config)));
            let (mut a, b) = (side(&x, qp_type::RC, 64 << 10), side(&y, qp_type::RC, 64 << 10));
            refuses_all_of(&x, &b);
            if let Some(earlier) = earlier.replace(b) {
                refuses_all_of(&x, &earlier);
                refuses_all_of(&y, &earlier);
            }
            let mut other = side(&x, qp_type::RC, 64 << 10);
            connect(&a, &other);
            exchange(&mut a, &mut other);
            drop(y);
        }
    }
}

fn refuses_all_of(ctx: &Ctx, s: &Side) {
    const NO: c_int = -libc::EINVAL;
    let (ctx, mut wc) = (ctx.0, Wc::default());
    assert_eq!(c!(gdrc_qp_destroy(ctx, s.qp)), NO);
    assert_eq!(c!(gdrc_qp_reset(ctx, s.qp)), NO);
    assert_eq!(c!(gdrc_qp_query(ctx, s.qp, &mut sized::<gdrc_qp_attr>(), null_mut())), NO);
    assert_eq!(c!(gdrc_cq_destroy(ctx, s.cq)), NO);
    assert_eq!(c!(gdrc_cq_arm(ctx, s.cq, 0)), NO);
    assert_eq!(c!(gdrc_poll_cq(ctx, s.cq, 1, &mut wc)), NO);
    assert_eq!(c!(gdrc_mr_dereg(ctx, s.mr)), NO);
    assert_eq!(c!(gdrc_mr_query(ctx, s.mr, &mut sized())), NO);
    assert_eq!(c!(gdrc_pd_dealloc(ctx, s.pd)), NO);
    assert_eq!(c!(gdrc_mw_alloc(ctx, s.pd, 2, &mut gdrc_mw::default(), null_mut())), NO);
    let (mut wr, recv) = (zeroed::<SendWr>(), zeroed::<RecvWr>());
    wr.opcode = wr_opcode::SEND;
    assert_eq!(c!(gdrc_post_send(ctx, s.qp, &wr, null_mut())), NO);
    assert_eq!(c!(gdrc_post_recv(ctx, s.qp, &recv, null_mut())), NO);
    // Those that a side does not have: of a context of its own that made the same calls.
    let other = Ctx::open(c"loopback", None);
    let (mut own, mut theirs) = (gdrc_channel::default(), gdrc_channel::default());
    assert_eq!(c!(gdrc_channel_create(ctx, &mut own)), 0);
    assert_eq!(c!(gdrc_channel_create(other.0, &mut theirs)), 0);
    assert_eq!(c!(gdrc_channel_destroy(ctx, theirs)), NO);
    assert_eq!(c!(gdrc_channel_destroy(ctx, own)), 0);
    let mut xrcd = gdrc_xrcd::default();
    assert_eq!(c!(gdrc_xrcd_alloc(other.0, &mut xrcd)), 0);
    assert_eq!(c!(gdrc_xrcd_dealloc(ctx, xrcd)), NO);
    assert_eq!(c!(gdrc_cm_destroy(ctx, gdrc_cm_id { handle: 1 << 32 | 8 << 24 })), NO);
}

/// A device name that no other test uses.
fn at(last: u8) -> CString {
    let [a, b, c, d] = place::loopback(0, last);
    CString::new(format!("soft:{a}.{b}.{c}.{d}:24801")).unwrap()
}

fn udp(x: &CStr, y: &CStr) {
    let (cx, cy) = (Ctx::open(x, None), Ctx::open(y, None));
    let (mut a, mut b) = (side(&cx, qp_type::RC, 64 << 10), side(&cy, qp_type::RC, 64 << 10));
    connect(&a, &b);
    exchange(&mut a, &mut b);
    let mut v = vec![0u64; gdrc_counter_count() as usize];
    assert_eq!(c!(gdrc_counters(cx.0, v.as_mut_ptr(), v.len() as u32)), v.len() as c_int);
    assert!(v[0] > 0 && v[1] > 0, "packets sent and received: {v:?}");
    destroy(a);
    destroy(b);
    assert_eq!((cx.close(), cy.close()), (0, 0));
}

#[test]
fn rc_over_udp_ipv4() {
    udp(&at(1), &at(2));
}

#[test]
fn rc_over_udp_ipv6() {
    let [x, y] =
        [place::port(), place::port()].map(|p| CString::new(format!("soft:[::1]:{p}")).unwrap());
    udp(&x, &y);
}

/// After its failure each QP is reset and connected again, as docs/using/ABI.md shows.
fn recover(a: &mut Side, b: &mut Side) {
    for s in [&mut *a, &mut *b] {
        let (ctx, former) = (s.ctx, s.local.psn);
        assert_eq!(
            s.post_recv(50, &mut [s.sge(0, 8)]),
            0,
            "a QP in ERR takes requests and flushes them"
        );
        let mut wc = Wc::default();
        let mut rc;
        loop {
            rc = c!(gdrc_qp_reset(ctx, s.qp));
            while c!(gdrc_poll_cq(ctx, s.cq, 1, &mut wc)) > 0 {
                assert_eq!(wc.status, wc_status::WR_FLUSH_ERR);
            }
            if rc != -libc::EAGAIN {
                break;
            }
        }
        assert_eq!((rc, wc.wr_id), (0, 50));
        assert_eq!(c!(gdrc_endpoint_local(ctx, s.qp, &s.mr, &mut s.local)), 0);
        let ahead = s.local.psn.wrapping_sub(former) & 0xff_ffff;
        assert!(
            (1 << 16..1 << 23).contains(&ahead),
            "the PSNs of the next life are ahead: {ahead:#x}"
        );
    }
    connect(a, b);
}

#[test]
fn a_failed_qp_is_reset_and_connected_again() {
    let (cx, cy) = (Ctx::open(&at(3), None), Ctx::open(&at(4), None));
    let one = Ctx::open(c"loopback", None);
    for (x, y) in [(&one, &one), (&cx, &cy)] {
        let (mut a, mut b) = (side(x, qp_type::RC, 64 << 10), side(y, qp_type::RC, 64 << 10));
        connect(&a, &b);
        for _ in 0..3 {
            exchange(&mut a, &mut b);
            recover(&mut a, &mut b);
        }
        exchange(&mut a, &mut b);
        destroy(a);
        destroy(b);
    }
    assert_eq!((one.close(), cx.close(), cy.close()), (0, 0, 0));
}

#[test]
fn a_queue_pair_keeps_its_class_hop_limit_and_flow_label() {
    let ctx = Ctx::open(c"loopback", None);
    let (a, b) = (side(&ctx, qp_type::RC, 4096), side(&ctx, qp_type::RC, 4096));
    let mut opts: gdrc_qp_connect_opts = zeroed();
    (opts.struct_size, opts.traffic_class) = (size_of_val(&opts) as u32, 0x68);
    assert_eq!(c!(gdrc_qp_connect(a.ctx, a.qp, &a.local, &b.local, &opts)), 0);
    let mut attr: gdrc_qp_attr = zeroed();
    attr.struct_size = size_of_val(&attr) as u32;
    assert_eq!(c!(gdrc_qp_query(a.ctx, a.qp, &mut attr, null_mut())), 0);
    assert_eq!((attr.ah.traffic_class, attr.ah.hop_limit, attr.flow_label), (0x68, 0, 0));
    (attr.ah.traffic_class, attr.ah.hop_limit, attr.flow_label) = (0x20, 33, 0xa_bcde);
    attr.qp_state = qp_state::RESET;
    assert_eq!(c!(gdrc_qp_modify(a.ctx, a.qp, &attr, qp_attr_mask::STATE)), 0);
    attr.qp_state = qp_state::INIT;
    let init = qp_attr_mask::STATE
        | qp_attr_mask::PKEY_INDEX
        | qp_attr_mask::PORT
        | qp_attr_mask::ACCESS_FLAGS;
    assert_eq!(c!(gdrc_qp_modify(a.ctx, a.qp, &attr, init)), 0);
    attr.qp_state = qp_state::RTR;
    let rtr = qp_attr_mask::STATE
        | qp_attr_mask::AV
        | qp_attr_mask::PATH_MTU
        | qp_attr_mask::DEST_QPN
        | qp_attr_mask::RQ_PSN;
    let rtr = rtr | qp_attr_mask::MAX_DEST_RD_ATOMIC | qp_attr_mask::MIN_RNR_TIMER;
    assert_eq!(c!(gdrc_qp_modify(a.ctx, a.qp, &attr, rtr)), 0);
    let mut got: gdrc_qp_attr = zeroed();
    got.struct_size = size_of_val(&got) as u32;
    assert_eq!(c!(gdrc_qp_query(a.ctx, a.qp, &mut got, null_mut())), 0);
    assert_eq!((got.ah.traffic_class, got.ah.hop_limit, got.flow_label), (0x20, 33, 0xa_bcde));
}

#[test]
fn ud_on_loopback_names_the_sender_and_can_be_answered() {
    let ctx = Ctx::open(c"loopback", None);
    let (mut a, b) = (side(&ctx, qp_type::UD, 4096), side(&ctx, qp_type::UD, 4096));
    for s in [&a, &b] {
        assert_eq!(c!(gdrc_qp_connect(s.ctx, s.qp, &s.local, null(), null())), 0);
    }
    let to = gdrc_ah_attr {
        dgid: b.local.gid,
        scope_id: 0,
        udp_port: 0,
        hop_limit: 7,
        traffic_class: 0xbb,
    };
    let mut ah = gdrc_ah::default();
    assert_eq!(c!(gdrc_ah_create(a.ctx, a.pd, &to, &mut ah)), 0);
    a.buf[..4].copy_from_slice(b"ping");
    assert_eq!(b.post_recv(1, &mut [b.sge(0, 256)]), 0);
    let mut wr: SendWr = zeroed();
    let mut sge = a.sge(0, 4);
    (wr.sg_list, wr.num_sge, wr.opcode, wr.send_flags) =
        (&mut sge, 1, wr_opcode::SEND, send_flags::SIGNALED);
    wr.wr.ud = UdWr { ah: ah.handle, remote_qpn: b.qpn, remote_qkey: b.local.qkey };
    assert_eq!(c!(gdrc_post_send(a.ctx, a.qp, &wr, null_mut())), 0);
    let wc = b.poll(None).expect("the message arrives");
    assert_eq!((wc.status, wc.byte_len, wc.src_qp), (wc_status::SUCCESS, 44, a.qpn));
    assert_eq!(&b.buf[40..44], b"ping");
    // The IPv4 header: the class without its ECN bits, which are the device's, and the hop limit.
    assert_eq!((b.buf[20], b.buf[21], b.buf[28]), (0x45, 0xb8, 7));
    let mut back = gdrc_ah::default();
    assert_eq!(c!(gdrc_ah_from_wc(b.ctx, b.pd, &wc, b.buf.as_ptr().cast(), &mut back)), 0);
    assert_eq!(c!(gdrc_ah_destroy(b.ctx, back)), 0);
    assert_eq!(c!(gdrc_ah_destroy(a.ctx, ah)), 0);
}

#[test]
fn close_counts_remaining_objects_by_kind() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, qp_type::RC, 4096);
    let mut leaks: gdrc_leaks = sized();
    let raw = ctx.0;
    core::mem::forget(ctx);
    assert_eq!(c!(gdrc_close(raw, &mut leaks)), 4);
    assert_eq!(
        (leaks.pd, leaks.mr, leaks.cq, leaks.qp, leaks.srq, leaks.ah, leaks.mw),
        (1, 1, 1, 1, 0, 0, 0)
    );
    assert_eq!(c!(gdrc_progress(raw)), -libc::EINVAL);
    drop(s.buf);
}

#[test]
fn caller_memory_with_any_contents_is_used_and_free_after_close() {
    let mut need = 0;
    assert_eq!(c!(gdrc_context_size(c"loopback".as_ptr(), null(), &mut need)), 0);
    let layout = std::alloc::Layout::from_size_align(need + 4096, 4096).unwrap();
    // SAFETY: the size is not zero.
    let mem = unsafe { std::alloc::alloc(layout) };
    // SAFETY: freshly allocated with that size.
    unsafe { mem.write_bytes(0xa5, need + 4096) };
    let mut ctx = null_mut();
    for round in 0..3 {
        let rc = c!(gdrc_context_init(mem.cast(), need, c"loopback".as_ptr(), null(), &mut ctx));
        assert_eq!(rc, 0, "round {round}: {}", open_error());
        let ctx = Ctx(ctx);
        let (mut a, mut b) = (side(&ctx, qp_type::RC, 64 << 10), side(&ctx, qp_type::RC, 64 << 10));
        connect(&a, &b);
        exchange(&mut a, &mut b);
        assert_eq!(ctx.close(), 8);
    }
    // SAFETY: the allocation has `need + 4096` bytes.
    let rest = unsafe { core::slice::from_raw_parts(mem.add(need), 4096) };
    assert!(rest.iter().all(|&b| b == 0xa5), "written behind its end");
    // SAFETY: allocated above with this layout, and the contexts are closed.
    unsafe { std::alloc::dealloc(mem, layout) };
}

#[test]
fn an_open_names_the_wrong_address_or_port() {
    // Contexts share an address among themselves, but not with a program that has taken its port
    // alone.
    let _kept = keep();
    let name = at(5);
    let (first, second) = (Ctx::open(&name, None), Ctx::open(&name, None));
    drop((first, second));
    let socket = name.to_str().unwrap().trim_start_matches("soft:");
    let stranger = std::net::UdpSocket::bind(socket).expect("a free port");
    let mut ctx = null_mut();
    assert_eq!(c!(gdrc_open(name.as_ptr(), null(), &mut ctx)), -libc::EADDRINUSE);
    assert!(
        open_error().contains("has the UDP port") && open_error().contains("24801"),
        "{}",
        open_error()
    );
    assert_eq!(c!(gdrc_open(c"soft:192.0.2.77".as_ptr(), null(), &mut ctx)), -libc::EADDRNOTAVAIL);
    assert!(
        open_error().contains("192.0.2.77") && open_error().contains("ip address"),
        "{}",
        open_error()
    );
    assert!(c!(gdrc_open(c"soft:127.0.0.1:99999".as_ptr(), null(), &mut ctx)) < 0);
    assert!(!open_error().is_empty());
    assert!(ctx.is_null());
    drop(stranger);
    drop(Ctx::open(&name, None));
}

#[test]
fn contexts_come_and_go_without_a_descriptor_or_mapping_left() {
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (before, mut last, own) = (fds(), null_mut(), at(6));
    for i in 0..1500 {
        let name = if i % 2 == 0 { c"loopback" } else { &own };
        let config = gdrc_config { engines: 1 + i % 3, ..sized() };
        let ctx = Ctx::open(name, Some(&config));
        assert_ne!(ctx.0, last, "a slot rests before it is given again");
        last = ctx.0;
        assert_eq!(ctx.close(), 0);
        assert_eq!(c!(gdrc_progress(last)), -libc::EINVAL);
    }
    // Other tests run beside this one and have some open.
    assert!(fds() < before + 100, "{before} descriptors before, {} after", fds());
}

#[test]
fn sleeping_on_an_armed_cq_ends_with_the_completion() {
    let ctx = Ctx::open(c"loopback", None);
    let (a, b) = (side(&ctx, qp_type::RC, 4096), side(&ctx, qp_type::RC, 4096));
    connect(&a, &b);
    assert_eq!(c!(gdrc_wait(ctx.0, 0)), 0);
    assert_eq!(c!(gdrc_wait(ctx.0, 20)), 0);
    assert_eq!(b.post_recv(1, &mut [b.sge(0, 64)]), 0);
    assert_eq!(c!(gdrc_cq_arm(ctx.0, b.cq, 0)), 0);
    assert_eq!(a.post_send(wr_opcode::SEND, send_flags::SIGNALED, &mut [a.sge(0, 5)], (0, 0)), 0);
    assert_eq!(c!(gdrc_wait(ctx.0, limit_ms(60))), 1);
    let mut cq = gdrc_cq::default();
    assert_eq!(c!(gdrc_get_cq_event(ctx.0, &mut cq)), 1);
    assert_eq!(cq.handle, b.cq.handle);
    assert!(b.poll(None).is_some());
    assert!(c!(gdrc_fd(ctx.0)) >= 0);
}

#[test]
fn child_of_a_fork_is_refused_while_the_helper_runs_and_may_open_its_own() {
    let _fork = fork();
    for engines in [1, 2] {
        child_is_refused(gdrc_config { flags: config_flags::HELPER, engines, ..sized() });
    }
}

fn child_is_refused(config: gdrc_config) {
    let ctx = Ctx::open(&at(7), Some(&config));
    let s = side(&ctx, qp_type::RC, 4096);
    // SAFETY: the child makes C calls that allocate nothing from the C heap, and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let mut own = null_mut();
            let mut wc = Wc::default();
            let dead = -libc::EOWNERDEAD;
            let ok = c!(gdrc_progress(ctx.0)) == dead
                && c!(gdrc_poll_cq(ctx.0, s.cq, 1, &mut wc)) == dead
                && c!(gdrc_helper_stop(ctx.0)) == dead
                && c!(gdrc_pd_alloc(ctx.0, &mut gdrc_pd::default())) == dead
                && c!(gdrc_close(ctx.0, null_mut())) == dead
                && c!(gdrc_open(c"loopback".as_ptr(), null(), &mut own)) == 0
                && c!(gdrc_progress(own)) >= 0
                && c!(gdrc_close(own, null_mut())) == 0;
            // SAFETY: ends the child without running the harness in it.
            unsafe { libc::_exit(if ok { 0 } else { 1 }) }
        }
        pid => {
            let mut status = -1;
            // SAFETY: our child, our local.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0);
        }
    }
    assert!(c!(gdrc_progress(ctx.0)) >= 0);
    assert_eq!(ctx.close(), 4);
    drop(s.buf);
}

/// Threads of programs may have stacks of 64 KiB, of which the C library takes a part.
#[test]
fn a_stack_of_64_kib_suffices() {
    let _kept = keep();
    let at = |last| {
        let [a, b, c, d] = place::loopback(9, last);
        CString::new(format!("soft:{a}.{b}.{c}.{d}")).expect("no NUL")
    };
    for (names, engines) in [
        ([c"loopback".to_owned(), c"loopback".to_owned()], 1),
        ([at(1), at(2)], 1),
        ([at(1), at(2)], 2),
    ] {
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let work = move || {
            let config = gdrc_config { engines, ..sized() };
            let ctx = names.map(|name| Ctx::open(&name, Some(&config)));
            for ctx in &ctx {
                let (mut a, mut b) =
                    (side(ctx, qp_type::RC, 65_536), side(ctx, qp_type::RC, 65_536));
                connect(&a, &b);
                exchange(&mut a, &mut b);
            }
        };
        small.spawn(work).expect("a thread").join().expect("the exchange succeeds");
    }
}

#[test]
fn a_limit_of_the_rules_is_shown_and_holds() {
    let config = gdrc_config { faults: c"limit max_pd = 1; limit max_mr = 0".as_ptr(), ..sized() };
    let ctx = Ctx::open(c"loopback", Some(&config));
    let mut attr: gdrc_device_attr = sized();
    assert_eq!(c!(gdrc_device_query(ctx.0, &mut attr)), 0);
    assert_eq!((attr.max_pd, attr.max_mr), (1, 0));
    let (mut pd, mut second): (gdrc_pd, gdrc_pd) = (zeroed(), zeroed());
    assert_eq!(c!(gdrc_pd_alloc(ctx.0, &mut pd)), 0);
    assert_eq!(c!(gdrc_pd_alloc(ctx.0, &mut second)), -libc::ENOMEM);
    assert_eq!(c!(gdrc_pd_dealloc(ctx.0, pd)), 0);
    assert_eq!(c!(gdrc_pd_alloc(ctx.0, &mut pd)), 0);
}
