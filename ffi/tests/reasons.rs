//! Checks that every refused call names the wrong argument: gdrc_error_detail after each call of
//! the header with each wrong argument.

mod common;

use common::*;
use core::ffi::c_int;
use core::ptr::{null, null_mut};
use gdrcore::*;

fn detail() -> String {
    let mut buf = vec![0u8; 512];
    let n = c!(gdrc_error_detail(buf.as_mut_ptr().cast(), buf.len()));
    buf.truncate(usize::try_from(n).expect("a length"));
    String::from_utf8(buf).expect("UTF-8")
}

/// Each line: a call, its errno, and the beginning of its reason, which contains more than the name
/// of the argument.
macro_rules! refused {
    ($($errno:ident $begin:literal: $call:expr;)*) => { $(
        // So that the reason of the call before is not taken for this one's.
        forget();
        let rc: c_int = c!($call);
        let (call, said) = (stringify!($call), detail());
        assert_eq!(rc, -libc::$errno, "{call}: {said}");
        assert!(said.starts_with($begin) && said.len() > $begin.len(), "\
            {call}\nwanted: {}...\nsaid:   {said}", $begin);
    )* };
}

/// Makes another call fail, with a reason that no line of the table has.
fn forget() {
    assert_eq!(c!(gdrc_pd_alloc(null_mut(), null_mut())), -libc::EINVAL);
    assert_eq!(detail(), "out: NULL");
}

const NOBODY: u64 = 0x77_0000_0000;

#[test]
fn contexts() {
    let ctx = Ctx::open(c"loopback", None);
    let (x, mut none, mut need) = (ctx.0, null_mut(), 0);
    let name = c"loopback".as_ptr();
    let with = |change: &dyn Fn(&mut gdrc_config)| {
        let mut cfg: gdrc_config = sized();
        change(&mut cfg);
        cfg
    };
    let mem = gdrcore_net::map::Map::new(1 << 20).expect("memory");
    let at = mem.as_ptr();
    let mut leaks: gdrc_leaks = zeroed();
    let mut attr: gdrc_device_attr = zeroed();
    let huge = with(&|c| c.struct_size = 5000);
    let two_paths = config_flags::UDP_ONLY | config_flags::SHM;
    let (limit, call) = (c"limit max_qp = 4".as_ptr(), c"call ibv_reg_mr errno EIO".as_ptr());
    let parent: *mut gdrc_context = core::ptr::without_provenance_mut(64);
    refused! {
        EINVAL "cfg": gdrc_config_default(null_mut());
        EINVAL "cfg->struct_size 0": gdrc_config_default(&mut zeroed());
        E2BIG "cfg->struct_size 5000": gdrc_config_default(&mut with(&|c| c.struct_size = 5000));
        EINVAL "bytes": gdrc_context_size(name, null(), null_mut());
        EINVAL "device": gdrc_context_size(null(), null(), &mut need);
        E2BIG "'loopback': gdrc_config": gdrc_context_size(name, &huge, &mut need);
        EINVAL "'loopback': cfg->flags":
            gdrc_context_size(name, &with(&|c| c.flags = 1 << 30), &mut need);
        EINVAL "'loopback': cfg->flags":
            gdrc_context_size(name, &with(&|c| c.flags = two_paths), &mut need);
        EINVAL "'loopback': engines 65":
            gdrc_context_size(name, &with(&|c| c.engines = 65), &mut need);
        EINVAL "'loopback': max_qp 70000":
            gdrc_context_size(name, &with(&|c| (c.engines, c.max_qp) = (2, 70_000)), &mut need);
        EOPNOTSUPP "'loopback': qpn_base 0x8000":
            gdrc_context_size(name, &with(&|c| (c.engines, c.qpn_base) = (2, 0x8000)), &mut need);
        EOPNOTSUPP "'verbs:x': engines":
            gdrc_context_size(c"verbs:x".as_ptr(), &with(&|c| c.engines = 2), &mut need);
        EOPNOTSUPP "'loopback': cfg->faults: a device with limits":
            gdrc_context_size(name, &with(&|c| (c.engines, c.faults) = (2, limit)), &mut need);
        EOPNOTSUPP "'verbs:x': faults":
            gdrc_context_size(c"verbs:x".as_ptr(), &with(&|c| c.faults = limit), &mut need);
        EINVAL "'loopback': faults: line 1, column 6: 'ibv_reg_mr': no call of gdrcore.h":
            gdrc_context_size(name, &with(&|c| c.faults = call), &mut need);
        EINVAL "'loopback': max_dc_context 5000":
            gdrc_context_size(name, &with(&|c| c.max_dc_context = 5000), &mut need);
        EINVAL "'loopback': max_qp 300000":
            gdrc_context_size(name, &with(&|c| c.max_qp = 300_000), &mut need);
        EINVAL "'loopback': burst_bytes 4351":
            gdrc_context_size(name, &with(&|c| c.burst_bytes = 4351), &mut need);
        EINVAL "'loopback': max_mtu 1000":
            gdrc_context_size(name, &with(&|c| c.max_mtu = 1000), &mut need);
        EINVAL "'loopback': qpn_count 3":
            gdrc_context_size(name, &with(&|c| c.qpn_count = 3), &mut need);
        EINVAL "'loopback': qpn_base 0x1":
            gdrc_context_size(name, &with(&|c| c.qpn_base = 1), &mut need);
        EINVAL "'loopback': ring_bytes":
            gdrc_context_size(name, &with(&|c| c.ring_bytes = u64::MAX), &mut need);
        EINVAL "'loopback': max_sge 33":
            gdrc_context_size(name, &with(&|c| c.max_sge = 33), &mut need);
        EINVAL "out": gdrc_open(name, null(), null_mut());
        EINVAL "device": gdrc_open(null(), null(), &mut none);
        EINVAL "'soft:300.1.2.3': address '300.1.2.3'":
            gdrc_open(c"soft:300.1.2.3".as_ptr(), null(), &mut none);
        EADDRNOTAVAIL "'soft:192.0.2.9': no interface":
            gdrc_open(c"soft:192.0.2.9".as_ptr(), null(), &mut none);
        EINVAL "out": gdrc_context_init(at.cast(), 1 << 20, name, null(), null_mut());
        EINVAL "memory for 'loopback'":
            gdrc_context_init(null_mut(), 1 << 20, name, null(), &mut none);
        EINVAL "memory for 'loopback'":
            gdrc_context_init(at.wrapping_add(8).cast(), 4096, name, null(), &mut none);
        ENOMEM "bytes 4096": gdrc_context_init(at.cast(), 4096, name, null(), &mut none);
        EINVAL "ctx": gdrc_close(null_mut(), null_mut());
        EINVAL "ctx 0x40": gdrc_close(parent, null_mut());
        EINVAL "leaks->struct_size 0": gdrc_close(x, &mut leaks);
        EINVAL "ctx": gdrc_arena_add(null_mut(), at.cast(), 4096);
        EINVAL "memory 0x0": gdrc_arena_add(x, null_mut(), 4096);
        EINVAL "bytes 0x0": gdrc_arena_add(x, at.cast(), 0);
        EINVAL "bytes 64": gdrc_arena_add(x, at.cast(), 64);
        EINVAL "attr": gdrc_device_query(x, null_mut());
        EINVAL "attr->struct_size 0": gdrc_device_query(x, &mut attr);
        EINVAL "ctx": gdrc_progress(null_mut());
        EINVAL "ctx": gdrc_fd(null_mut());
        EINVAL "ctx": gdrc_arm(null_mut());
        EINVAL "ctx": gdrc_wait(null_mut(), 0);
        EINVAL "ctx": gdrc_helper_start(null_mut());
        EINVAL "ctx": gdrc_helper_stop(null_mut());
        EINVAL "out": gdrc_get_cq_event(x, null_mut());
        EINVAL "out": gdrc_get_async_event(x, null_mut());
        EINVAL "values": gdrc_counters(x, null_mut(), 1);
        EINVAL "out": gdrc_last_cause(x, null_mut());
        EINVAL "cause": gdrc_cause_str(null(), null_mut(), 0);
        EINVAL "buf": gdrc_cause_str(&zeroed(), null_mut(), 5);
        EINVAL "pairs": gdrc_topology(null(), null_mut(), 1);
        EINVAL "to": gdrc_path_mtu(x, null());
    }
    let closed = ctx.0;
    ctx.close();
    refused! { EINVAL "ctx": gdrc_fd(closed); }
    assert!(detail().ends_with("it is closed"));
}

#[test]
fn regions_and_windows() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, qp_type::UD, 4096);
    let (x, pd) = (ctx.0, s.pd);
    let at = s.buf.as_ptr().cast_mut().cast();
    let (mut mr, mut mw) = (gdrc_mr::default(), gdrc_mw::default());
    let mut mattr: gdrc_mr_attr = zeroed();
    let memory = |change: &dyn Fn(&mut gdrc_memory)| {
        let mut m: gdrc_memory = sized();
        (m.addr, m.length) = (s.buf.as_ptr() as u64, 64);
        change(&mut m);
        m
    };
    let with_iova = |iova| memory(&|m| (m.flags, m.iova) = (memory_flags::IOVA, iova));
    let dmabuf = memory(&|m| m.flags = memory_flags::DMABUF);
    let no_dmabuf = memory(&|m| {
        (m.kind, m.flags, m.fd) = (memory_kind::CUDA, memory_flags::DMABUF, -1);
    });
    let gone = gdrc_pd { handle: pd.handle };
    assert_eq!(c!(gdrc_pd_dealloc(x, pd)), -libc::EBUSY);
    assert!(detail().contains("are in it; the first is QP 0x"), "{}", detail());
    refused! {
        EINVAL "ctx": gdrc_pd_alloc(null_mut(), &mut gdrc_pd::default());
        EINVAL "pd {0}": gdrc_pd_dealloc(x, gdrc_pd { handle: 0 });
        EINVAL "pd 0x7700000000": gdrc_pd_dealloc(x, gdrc_pd { handle: NOBODY });
        EINVAL "pd": gdrc_pd_dealloc(x, gdrc_pd { handle: s.cq.handle });
        EBUSY "pd: 1 regions": gdrc_pd_dealloc(x, gone);
        EINVAL "out": gdrc_mr_reg(x, pd, at, 8, 1, null_mut(), null_mut());
        EINVAL "attr->struct_size 0": gdrc_mr_reg(x, pd, at, 8, 1, &mut mr, &mut mattr);
        EINVAL "addr": gdrc_mr_reg(x, pd, null_mut(), 8, 1, &mut mr, null_mut());
        EFAULT "addr 0x1000: of the 0x8 bytes":
            gdrc_mr_reg(x, pd, core::ptr::without_provenance_mut(4096), 8, 1, &mut mr, null_mut());
        EINVAL "length 0": gdrc_mr_reg(x, pd, at, 0, 1, &mut mr, null_mut());
        EINVAL "length 0xffffffffffffffff":
            gdrc_mr_reg(x, pd, at, usize::MAX, 1, &mut mr, null_mut());
        EINVAL "access REMOTE_WRITE":
            gdrc_mr_reg(x, pd, at, 8, access::REMOTE_WRITE, &mut mr, null_mut());
        EINVAL "access 0x400": gdrc_mr_reg(x, pd, at, 8, 1024, &mut mr, null_mut());
        EINVAL "access FLUSH_PERSISTENT":
            gdrc_mr_reg(x, pd, at, 8, access::FLUSH_PERSISTENT, &mut mr, null_mut());
        EINVAL "pd 0x7700000000":
            gdrc_mr_reg(x, gdrc_pd { handle: NOBODY }, at, 8, 1, &mut mr, null_mut());
        EINVAL "memory->iova 0x8":
            gdrc_mr_reg_memory(x, pd, &with_iova(8), access::ZERO_BASED, &mut mr, null_mut());
        EINVAL "length 0x40: from iova":
            gdrc_mr_reg_memory(x, pd, &with_iova(u64::MAX), 1, &mut mr, null_mut());
        EINVAL "attr": gdrc_mr_query(x, s.mr, null_mut());
        EINVAL "mr": gdrc_mr_query(x, gdrc_mr { handle: pd.handle }, &mut sized());
        EINVAL "mr {0}": gdrc_mr_dereg(x, gdrc_mr { handle: 0 });
        EINVAL "memory": gdrc_mr_reg_memory(x, pd, null(), 1, &mut mr, null_mut());
        EINVAL "memory->flags":
            gdrc_mr_reg_memory(x, pd, &memory(&|m| m.flags = 1 << 30), 1, &mut mr, null_mut());
        EINVAL "memory->kind 9":
            gdrc_mr_reg_memory(x, pd, &memory(&|m| m.kind = 9), 1, &mut mr, null_mut());
        EINVAL "memory->flags": gdrc_mr_reg_memory(x, pd, &dmabuf, 1, &mut mr, null_mut());
        EINVAL "memory->fd -1":
            gdrc_mr_reg_memory(x, pd, &no_dmabuf, 1, &mut mr, null_mut());
        EINVAL "mw_type 3": gdrc_mw_alloc(x, pd, 3, &mut mw, null_mut());
        EINVAL "out": gdrc_mw_alloc(x, pd, 1, null_mut(), null_mut());
        EINVAL "mw {0}": gdrc_mw_dealloc(x, gdrc_mw { handle: 0 });
    }
}

#[test]
fn address_handles() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, qp_type::UD, 4096);
    let (x, pd, at) = (ctx.0, s.pd, s.buf.as_ptr().cast_mut().cast());
    let mut ah = gdrc_ah::default();
    let mut to: gdrc_ah_attr = zeroed();
    refused! {
        EINVAL "attr": gdrc_ah_create(x, pd, null(), &mut ah);
        EINVAL "dgid ::": gdrc_ah_create(x, pd, &to, &mut ah);
        EINVAL "wc": gdrc_ah_from_wc(x, pd, null(), at, &mut ah);
        EINVAL "grh40": gdrc_ah_from_wc(x, pd, &zeroed(), null(), &mut ah);
        EINVAL "wc->wc_flags 0x0": gdrc_ah_from_wc(x, pd, &zeroed(), at, &mut ah);
        EINVAL "ah {0}": gdrc_ah_destroy(x, gdrc_ah { handle: 0 });
    }
    to.dgid[15] = 1;
    refused! { EINVAL "dgid ::1: IPv6": gdrc_ah_create(x, pd, &to, &mut ah); }
}

#[test]
fn groups() {
    let ctx = Ctx::open(c"loopback", None);
    let (ud, rc) = (side(&ctx, qp_type::UD, 4096), side(&ctx, qp_type::RC, 4096));
    let (x, none) = (ctx.0, gdrc_qp { handle: 0 });
    let group: [u8; 16] = *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xef\x01\x02\x03";
    let to = group.as_ptr();
    refused! {
        EINVAL "ctx": gdrc_qp_attach_mcast(null_mut(), ud.qp, to);
        EINVAL "gid": gdrc_qp_attach_mcast(x, ud.qp, null());
        EINVAL "qp {0}": gdrc_qp_attach_mcast(x, none, to);
        EINVAL "qp: of type RC": gdrc_qp_attach_mcast(x, rc.qp, to);
        EINVAL "gid ::": gdrc_qp_attach_mcast(x, ud.qp, [0; 16].as_ptr());
        EOPNOTSUPP "gid: loopback": gdrc_qp_attach_mcast(x, ud.qp, to);
        EINVAL "ctx": gdrc_qp_detach_mcast(null_mut(), ud.qp, to);
        EINVAL "gid": gdrc_qp_detach_mcast(x, ud.qp, null());
        EINVAL "qp {0}": gdrc_qp_detach_mcast(x, none, to);
        EINVAL "gid: the QP is no member": gdrc_qp_detach_mcast(x, ud.qp, to);
    }
}

#[test]
fn completion_queues_shared_receive_queues_and_channels() {
    let ctx = Ctx::open(c"loopback", None);
    let s = side(&ctx, qp_type::UD, 4096);
    let (x, pd, cq) = (ctx.0, s.pd, s.cq);
    let (mut srq, mut c2) = (gdrc_srq::default(), gdrc_cq::default());
    let mut channel: gdrc_channel = zeroed();
    let srq_attr = |max_wr, max_sge| {
        let mut a: gdrc_srq_attr = sized();
        (a.max_wr, a.max_sge) = (max_wr, max_sge);
        a
    };
    refused! {
        EINVAL "cqe 0": gdrc_cq_create(x, 0, &mut c2, null_mut());
        EINVAL "cqe 4294967295": gdrc_cq_create(x, u32::MAX, &mut c2, null_mut());
        EINVAL "out": gdrc_cq_create(x, 4, null_mut(), null_mut());
        EINVAL "channel":
            gdrc_cq_create_on(x, 4, gdrc_channel { handle: NOBODY }, &mut c2, null_mut());
        EINVAL "cqe 0": gdrc_cq_resize(x, cq, 0, null_mut());
        EINVAL "cq {0}": gdrc_cq_resize(x, gdrc_cq { handle: 0 }, 8, null_mut());
        EBUSY "cq: 2 queues or fast handles use it; the first is QP 0x": gdrc_cq_destroy(x, cq);
        EINVAL "cq": gdrc_cq_arm(x, gdrc_cq { handle: NOBODY }, 0);
        EINVAL "num_entries -1": gdrc_poll_cq(x, cq, -1, &mut zeroed());
        EINVAL "wc": gdrc_poll_cq(x, cq, 1, null_mut());
        EINVAL "cq 0x7700000000": gdrc_poll_cq(x, gdrc_cq { handle: NOBODY }, 1, &mut zeroed());
        EINVAL "max_wr 0": gdrc_srq_create(x, pd, &mut srq_attr(0, 1), &mut srq);
        EINVAL "max_sge 99": gdrc_srq_create(x, pd, &mut srq_attr(4, 99), &mut srq);
        EINVAL "inout": gdrc_srq_create(x, pd, null_mut(), &mut srq);
        EINVAL "srq {0}": gdrc_srq_modify(x, gdrc_srq { handle: 0 }, 1);
        EINVAL "out": gdrc_xrcd_alloc(x, null_mut());
        EINVAL "xrcd {0}": gdrc_xrcd_dealloc(x, gdrc_xrcd { handle: 0 });
        EINVAL "xrcd {0}":
            gdrc_srq_create_xrc(x, pd, zeroed(), cq, &mut srq_attr(4, 1), &mut srq);
        EINVAL "inout": gdrc_srq_create_xrc(x, pd, zeroed(), cq, null_mut(), &mut srq);
        EINVAL "srq {0}": gdrc_srq_resize(x, gdrc_srq { handle: 0 }, 8, null_mut());
        EINVAL "srq {0}": gdrc_srq_number(x, gdrc_srq { handle: 0 }, &mut 0);
        EINVAL "number": gdrc_srq_number(x, srq, null_mut());
        EINVAL "srq {0}": gdrc_srq_query(x, gdrc_srq { handle: 0 }, &mut sized());
        EINVAL "srq {0}": gdrc_srq_destroy(x, gdrc_srq { handle: 0 });
        EINVAL "wr": gdrc_post_srq_recv(x, srq, null(), null_mut());
        EINVAL "srq {0}": gdrc_post_srq_recv(x, gdrc_srq { handle: 0 }, &zeroed(), null_mut());
        EINVAL "out": gdrc_channel_create(x, null_mut());
        EINVAL "channel 0x7700000000": gdrc_channel_destroy(x, gdrc_channel { handle: NOBODY });
        EINVAL "channel 0x7700000000": gdrc_channel_fd(x, gdrc_channel { handle: NOBODY });
        EINVAL "channel 0x7700000000":
            gdrc_channel_get_event(x, gdrc_channel { handle: NOBODY }, &mut c2);
        EINVAL "channel 0x7700000000":
            gdrc_channel_wait(x, gdrc_channel { handle: NOBODY }, 0, &mut c2);
    }
    assert_eq!(c!(gdrc_srq_create(x, pd, &mut srq_attr(4, 1), &mut srq)), 0);
    assert_eq!(c!(gdrc_channel_create(x, &mut channel)), 0);
    assert_eq!(c!(gdrc_cq_create_on(x, 4, channel, &mut c2, null_mut())), 0);
    refused! {
        EINVAL "limit 9": gdrc_srq_modify(x, srq, 9);
        EINVAL "max_wr 0": gdrc_srq_resize(x, srq, 0, null_mut());
        EINVAL "max_wr 4294967295": gdrc_srq_resize(x, srq, u32::MAX, null_mut());
        EBUSY "channel": gdrc_channel_destroy(x, channel);
    }
    assert_eq!(c!(gdrc_cq_destroy(x, c2)), 0);
    refused! { EINVAL "cq": gdrc_cq_destroy(x, c2); }
    assert!(detail().contains("destroyed"));
}

#[test]
fn queue_pairs() {
    let ctx = Ctx::open(c"loopback", None);
    let a = side(&ctx, qp_type::RC, 4096);
    let (x, qp) = (ctx.0, a.qp);
    let gone = gdrc_qp { handle: NOBODY };
    let init = |change: &dyn Fn(&mut gdrc_qp_init)| {
        let mut i: gdrc_qp_init = sized();
        (i.pd, i.send_cq, i.recv_cq, i.qp_type) = (a.pd, a.cq, a.cq, qp_type::RC);
        change(&mut i);
        i
    };
    let attr = |change: &dyn Fn(&mut gdrc_qp_attr)| {
        let mut q: gdrc_qp_attr = sized();
        q.qp_state = qp_state::INIT;
        q.port_num = 1;
        change(&mut q);
        q
    };
    let up = qp_attr_mask::STATE
        | qp_attr_mask::PKEY_INDEX
        | qp_attr_mask::PORT
        | qp_attr_mask::ACCESS_FLAGS;
    let mut q2 = gdrc_qp::default();
    refused! {
        EINVAL "inout": gdrc_qp_create(x, null_mut(), &mut q2, null_mut());
        EINVAL "out": gdrc_qp_create(x, &mut init(&|_| ()), null_mut(), null_mut());
        EINVAL "qp_type 8": gdrc_qp_create(x, &mut init(&|i| i.qp_type = 8), &mut q2, null_mut());
        EINVAL "xrcd {0}": gdrc_qp_create(x, &mut init(&|i| i.qp_type = 10), &mut q2, null_mut());
        EINVAL "max_send_wr":
            gdrc_qp_create(x, &mut init(&|i| i.cap.max_send_wr = 1 << 30), &mut q2, null_mut());
        EINVAL "max_recv_sge 99":
            gdrc_qp_create(x, &mut init(&|i| i.cap.max_recv_sge = 99), &mut q2, null_mut());
        EINVAL "max_inline_data 9999":
            gdrc_qp_create(x, &mut init(&|i| i.cap.max_inline_data = 9999), &mut q2, null_mut());
        EINVAL "pd {0}": gdrc_qp_create(x, &mut init(&|i| i.pd.handle = 0), &mut q2, null_mut());
        EINVAL "cq {0}":
            gdrc_qp_create(x, &mut init(&|i| i.recv_cq.handle = 0), &mut q2, null_mut());
        EINVAL "srq 0x7700000000":
            gdrc_qp_create(x, &mut init(&|i| i.srq.handle = NOBODY), &mut q2, null_mut());
        EINVAL "attr": gdrc_qp_modify(x, qp, null(), 1);
        EINVAL "qp 0x7700000000": gdrc_qp_modify(x, gone, &attr(&|_| ()), up);
        EINVAL "RESET to INIT: attr_mask lacks ACCESS_FLAGS":
            gdrc_qp_modify(x, qp, &attr(&|_| ()), up & !qp_attr_mask::ACCESS_FLAGS);
        EINVAL "RESET to INIT: attr_mask has PATH_MTU":
            gdrc_qp_modify(x, qp, &attr(&|_| ()), up | qp_attr_mask::PATH_MTU);
        EINVAL "RESET to INIT: port_num 2": gdrc_qp_modify(x, qp, &attr(&|q| q.port_num = 2), up);
        EINVAL "RESET to INIT: pkey_index 1":
            gdrc_qp_modify(x, qp, &attr(&|q| q.pkey_index = 1), up);
        EINVAL "RESET to INIT: qp_access_flags 0x80000000":
            gdrc_qp_modify(x, qp, &attr(&|q| q.qp_access_flags = 1 << 31), up);
        EINVAL "RESET to RTS: qp_state RTS":
            gdrc_qp_modify(x, qp, &attr(&|q| q.qp_state = qp_state::RTS), up);
        EINVAL "RESET to ?: qp_state ?": gdrc_qp_modify(x, qp, &attr(&|q| q.qp_state = 77), up);
        EINVAL "attr_mask": gdrc_qp_modify(x, qp, &attr(&|_| ()), qp_attr_mask::PORT);
        EINVAL "attr": gdrc_qp_query(x, qp, null_mut(), null_mut());
        EINVAL "qp 0x7700000000": gdrc_qp_query(x, gone, &mut sized(), null_mut());
        EINVAL "qp 0x7700000000": gdrc_qp_reset(x, gone);
        EINVAL "qp 0x7700000000": gdrc_qp_destroy(x, gone);
        EINVAL "qp 0x7700000000": gdrc_qp_counters(x, gone, &mut 0, 1);
        EINVAL "qp 0x7700000000": gdrc_qp_cause(x, gone, &mut zeroed());
    }
}

#[test]
fn endpoints() {
    let ctx = Ctx::open(c"loopback", None);
    let (a, b) = (side(&ctx, qp_type::RC, 4096), side(&ctx, qp_type::RC, 4096));
    let (x, qp) = (ctx.0, a.qp);
    let gone = gdrc_qp { handle: NOBODY };
    let opts = |change: &dyn Fn(&mut gdrc_qp_connect_opts)| {
        let mut o: gdrc_qp_connect_opts = sized();
        change(&mut o);
        o
    };
    let remote = |change: &dyn Fn(&mut gdrc_endpoint)| {
        let mut e = b.local;
        change(&mut e);
        e
    };
    let mut wire = [0u8; GDRC_ENDPOINT_WIRE_BYTES as usize];
    let none = opts(&|_| ());
    refused! {
        EINVAL "out->struct_size 0": gdrc_endpoint_local(x, qp, null(), &mut zeroed());
        EINVAL "qp 0x7700000000": gdrc_endpoint_local(x, gone, null(), &mut sized());
        EINVAL "wire": gdrc_endpoint_pack(&b.local, null_mut());
        EINVAL "endpoint": gdrc_endpoint_pack(null(), wire.as_mut_ptr());
        EINVAL "endpoint->mtu 9": gdrc_endpoint_pack(&remote(&|e| e.mtu = 9), wire.as_mut_ptr());
        EINVAL "endpoint->qpn 0": gdrc_endpoint_pack(&remote(&|e| e.qpn = 0), wire.as_mut_ptr());
        EPROTO "wire: it does not begin": gdrc_endpoint_unpack(wire.as_ptr(), &mut sized());
        EINVAL "local": gdrc_qp_connect(x, qp, null(), &b.local, &none);
        EINVAL "remote": gdrc_qp_connect(x, qp, &a.local, null(), &none);
        EINVAL "local->qpn": gdrc_qp_connect(x, qp, &b.local, &b.local, &none);
        EINVAL "remote->qp_type UC":
            gdrc_qp_connect(x, qp, &a.local, &remote(&|e| e.qp_type = qp_type::UC), &none);
        EINVAL "remote->udp_port 70000":
            gdrc_qp_connect(x, qp, &a.local, &remote(&|e| e.udp_port = 70_000), &none);
        EINVAL "remote->version 7":
            gdrc_qp_connect(x, qp, &a.local, &remote(&|e| e.version = 7), &none);
        EINVAL "opts->flags 0x2":
            gdrc_qp_connect(x, qp, &a.local, &b.local, &opts(&|o| o.flags = 2));
        EINVAL "opts->timeout 32":
            gdrc_qp_connect(x, qp, &a.local, &b.local, &opts(&|o| o.timeout = 32));
        EINVAL "opts->retry_cnt 8":
            gdrc_qp_connect(x, qp, &a.local, &b.local, &opts(&|o| o.retry_cnt = 8));
        EINVAL "opts->pkey_index 65536":
            gdrc_qp_connect(x, qp, &a.local, &b.local, &opts(&|o| o.pkey_index = 65_536));
        EINVAL "opts->traffic_class 256":
            gdrc_qp_connect(x, qp, &a.local, &b.local, &opts(&|o| o.traffic_class = 256));
    }
    connect(&a, &b);
    refused! {
        EINVAL "qp: it is in RTS": gdrc_qp_connect(x, qp, &a.local, &b.local, &none);
    }
}

#[test]
fn posted_requests() {
    let ctx = Ctx::open(c"loopback", None);
    let (a, b) = (side(&ctx, qp_type::RC, 4096), side(&ctx, qp_type::RC, 4096));
    let (x, qp) = (ctx.0, a.qp);
    let gone = gdrc_qp { handle: NOBODY };
    refused! {
        EINVAL "wr": gdrc_post_send(x, qp, null(), null_mut());
        EINVAL "qp: it is in RESET": gdrc_post_send(x, qp, &zeroed(), null_mut());
        EINVAL "qp: it is in RESET": gdrc_post_recv(x, qp, &zeroed(), null_mut());
        EINVAL "qp 0x7700000000": gdrc_post_recv(x, gone, &zeroed(), null_mut());
    }
    connect(&a, &b);
    let fetch_add = wr_opcode::ATOMIC_FETCH_AND_ADD;
    let send = |change: &dyn Fn(&mut SendWr)| {
        let mut w: SendWr = zeroed();
        change(&mut w);
        w
    };
    let mut piece = Sge { addr: 8, length: 8, lkey: 0 };
    let inline_read =
        send(&|w| (w.opcode, w.send_flags) = (wr_opcode::RDMA_READ, send_flags::INLINE));
    let flush = |level, length| {
        let (remote_addr, rkey, placement) = (0, 0, flush_type::GLOBAL);
        let flush = FlushWr { remote_addr, rkey, placement, length, level };
        send(&|w| (w.opcode, w.wr.flush) = (wr_opcode::FLUSH, flush))
    };
    let mut inline_nowhere =
        send(&|w| (w.opcode, w.send_flags) = (wr_opcode::SEND, send_flags::INLINE));
    (inline_nowhere.num_sge, inline_nowhere.sg_list) = (1, &raw mut piece);
    let mut less_than_nothing: RecvWr = zeroed();
    less_than_nothing.num_sge = -1;
    refused! {
        EINVAL "wr->opcode 99": gdrc_post_send(x, qp, &send(&|w| w.opcode = 99), null_mut());
        EINVAL "wr->num_sge 99": gdrc_post_send(x, qp, &send(&|w| w.num_sge = 99), null_mut());
        EINVAL "wr->sg_list": gdrc_post_send(x, qp, &send(&|w| w.num_sge = 1), null_mut());
        EINVAL "wr->sg_list: 0 bytes":
            gdrc_post_send(x, qp, &send(&|w| w.opcode = fetch_add), null_mut());
        EINVAL "wr->sg_list: 0 bytes, and ATOMIC_WRITE":
            gdrc_post_send(x, qp, &send(&|w| w.opcode = wr_opcode::ATOMIC_WRITE), null_mut());
        EINVAL "wr->wr.flush.placement 0x0":
            gdrc_post_send(x, qp, &send(&|w| w.opcode = wr_opcode::FLUSH), null_mut());
        EINVAL "wr->wr.flush.level 2": gdrc_post_send(x, qp, &flush(2, 0), null_mut());
        EMSGSIZE "wr->wr.flush.length 2147483649":
            gdrc_post_send(x, qp, &flush(0, (1 << 31) + 1), null_mut());
        EINVAL "wr->send_flags INLINE": gdrc_post_send(x, qp, &inline_read, null_mut());
        EFAULT "wr->sg_list: 8 bytes at 0x8": gdrc_post_send(x, qp, &inline_nowhere, null_mut());
        EINVAL "wr->num_sge -1": gdrc_post_recv(x, qp, &less_than_nothing, null_mut());
    }
}

#[test]
fn fast_handles() {
    let ctx = Ctx::open(c"loopback", None);
    let a = side(&ctx, qp_type::RC, 4096);
    let (x, qp) = (ctx.0, a.qp);
    let gone = gdrc_qp { handle: NOBODY };
    let (mut fast, mut cq_fast) = (null_mut(), null_mut());
    refused! {
        EINVAL "out": gdrc_qp_fast_get(x, qp, null_mut());
        EINVAL "qp 0x7700000000": gdrc_qp_fast_get(x, gone, &mut fast);
        EINVAL "cq 0x7700000000": gdrc_cq_fast_get(x, gdrc_cq { handle: NOBODY }, &mut cq_fast);
        EINVAL "fast handle 0x0": gdrc_qp_fast_put(null_mut());
        EINVAL "fast handle 0x0": gdrc_cq_fast_put(null_mut());
    }
    assert_eq!(c!(gdrc_qp_fast_get(x, qp, &mut fast)), 0);
    refused! { EBUSY "qp: 1 fast handles of it": gdrc_qp_destroy(x, qp); }
    assert_eq!(c!(gdrc_qp_fast_put(fast)), 0);
    assert_eq!(c!(gdrc_cq_fast_get(x, a.cq, &mut cq_fast)), 0);
    assert_eq!(c!(gdrc_cq_fast_put(cq_fast)), 0);
    refused! {
        EINVAL "fast handle: it was rel": gdrc_qp_fast_put(fast);
        EINVAL "fast handle: it was rel": gdrc_cq_fast_put(cq_fast);
        EINVAL "fast handle: it was": ((*(*fast).ops).post_send)(fast, &zeroed(), &mut null());
        EINVAL "fast handle: it was": ((*(*fast).ops).post_recv)(fast, &zeroed(), &mut null());
        EINVAL "fast handle: it was rel": ((*(*cq_fast).ops).poll)(cq_fast, 1, &mut zeroed());
    }
}

#[test]
fn connections() {
    let ctx = Ctx::open(c"soft:127.0.0.1:0", None);
    let s = side(&ctx, qp_type::RC, 64);
    let x = ctx.0;
    let (mut id, mut port, mut mask) = (gdrc_cm_id::default(), gdrc_cm_id::default(), 0);
    let mut to: gdrc_ah_attr = zeroed();
    to.dgid[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
    let param = |change: &dyn Fn(&mut gdrc_cm_conn_param)| {
        let mut p: gdrc_cm_conn_param = sized();
        change(&mut p);
        p
    };
    let gone = gdrc_cm_id { handle: NOBODY };
    let (tcp, udp) = (u32::from(port_space::TCP), u32::from(port_space::UDP));
    refused! {
        EINVAL "out": gdrc_cm_listen(x, tcp, 1, 0, 0, null_mut());
        EINVAL "port 70000": gdrc_cm_listen(x, tcp, 70_000, 0, 0, &mut id);
        EINVAL "port_space 0x7": gdrc_cm_listen(x, 7, 1, 0, 0, &mut id);
        EINVAL "port_space 0x10000": gdrc_cm_listen(x, 65_536, 1, 0, 0, &mut id);
        EINVAL "to": gdrc_cm_connect(x, null(), tcp, 1, s.qp, null(), &mut id);
        EINVAL "port 0": gdrc_cm_connect(x, &to, tcp, 0, s.qp, null(), &mut id);
        EINVAL "qp 0x7700000000":
            gdrc_cm_connect(x, &to, tcp, 9, gdrc_qp { handle: NOBODY }, null(), &mut id);
        EINVAL "qp_type RC": gdrc_cm_connect(x, &to, udp, 9, s.qp, null(), &mut id);
        EINVAL "param->flags":
            gdrc_cm_connect(x, &to, tcp, 9, s.qp, &param(&|p| p.flags = 1 << 30), &mut id);
        EINVAL "retry_count 9":
            gdrc_cm_connect(x, &to, tcp, 9, s.qp, &param(&|p| p.retry_count = 9), &mut id);
        EINVAL "param->ack_timeout 300":
            gdrc_cm_connect(x, &to, tcp, 9, s.qp, &param(&|p| p.ack_timeout = 300), &mut id);
        EINVAL "private data: NULL":
            gdrc_cm_connect(x, &to, tcp, 9, s.qp, &param(&|p| p.private_data_len = 8), &mut id);
        EMSGSIZE "private data of 500":
            gdrc_cm_connect(x, &to, tcp, 9, s.qp, &param(&|p| p.private_data_len = 500), &mut id);
        EINVAL "id 0x7700000000": gdrc_cm_accept(x, gone, s.qp, null());
        EINVAL "id 0x7700000000": gdrc_cm_establish(x, gone);
        EINVAL "id 0x7700000000": gdrc_cm_reject(x, gone, null(), 0);
        EINVAL "id 0x7700000000": gdrc_cm_disconnect(x, gone);
        EINVAL "id 0x7700000000": gdrc_cm_destroy(x, gone);
        EINVAL "out": gdrc_cm_get_event(x, null_mut());
        EINVAL "id 0x7700000000": gdrc_cm_qp_attr(x, gone, qp_state::RTR, &mut sized(), &mut mask);
    }
    let taken = c!(gdrc_cm_listen(x, tcp, 0, 0, 0, &mut port));
    assert!(taken > 0);
    refused! {
        EADDRINUSE "port ": gdrc_cm_listen(x, tcp, taken as u32, 0, 0, &mut id);
        EINVAL "id in state Listen": gdrc_cm_accept(x, port, s.qp, null());
        EINVAL "id in state Listen": gdrc_cm_establish(x, port);
        EINVAL "id in state Listen": gdrc_cm_reject(x, port, null(), 0);
        EINVAL "id in state Listen": gdrc_cm_disconnect(x, port);
        EINVAL "state RTR": gdrc_cm_qp_attr(x, port, qp_state::RTR, &mut sized(), &mut mask);
    }
}

#[test]
fn gpu_memory() {
    let (mut addr, mut fd) = (0, -1);
    refused! {
        EINVAL "addr": gdrc_cuda_alloc(0, 8, 0, null_mut());
        EINVAL "flags 0x100": gdrc_cuda_alloc(0, 8, 256, &mut addr);
        EINVAL "length 0": gdrc_cuda_alloc(0, 0, 0, &mut addr);
        EINVAL "gpu -1": gdrc_cuda_alloc(-1, 8, 0, &mut addr);
        EINVAL "from": gdrc_cuda_copy_in(8, null(), 8);
        EINVAL "to": gdrc_cuda_copy_out(null_mut(), 8, 8);
        EINVAL "handle": gdrc_cuda_export(8, 8, null_mut(), &mut fd);
        EINVAL "handle": gdrc_cuda_import(null(), -1, &mut addr);
        EINVAL "handle->kind 0": gdrc_cuda_import(&zeroed(), -1, &mut addr);
        EINVAL "attr->struct_size 0": gdrc_cuda_device(null(), &mut zeroed());
    }
}

#[test]
fn the_text_is_the_last_failures_and_each_threads_own() {
    let ctx = Ctx::open(c"loopback", None);
    let mut cq = gdrc_cq::default();
    assert_eq!(c!(gdrc_cq_create(ctx.0, 0, &mut cq, null_mut())), -libc::EINVAL);
    let said = detail();
    assert!(said.starts_with("cqe 0: 1 to "), "{said}");
    // A call that succeeds leaves the reason, and both names return the same.
    assert_eq!(c!(gdrc_cq_create(ctx.0, 4, &mut cq, null_mut())), 0);
    assert_eq!((detail(), open_error()), (said.clone(), said.clone()));
    std::thread::spawn(|| assert_eq!(detail(), "")).join().unwrap();
    // Truncated like snprintf; a wrong buffer is refused and leaves the text.
    let mut buf = [1i8; 6];
    assert_eq!(c!(gdrc_error_detail(buf.as_mut_ptr(), buf.len())), said.len() as c_int);
    assert_eq!((buf[4] as u8, buf[5]), (said.as_bytes()[4], 0));
    assert_eq!(c!(gdrc_error_detail(null_mut(), 0)), said.len() as c_int);
    assert_eq!(c!(gdrc_error_detail(null_mut(), 3)), -libc::EINVAL);
    assert_eq!(c!(gdrc_error_detail(null_mut(), 3)), -libc::EINVAL);
    assert_eq!(detail(), said);
    // An error without a reason has the text of its number, not the reason of the call before.
    let (a, b) = (side(&ctx, qp_type::RC, 64), side(&ctx, qp_type::RC, 64));
    connect(&a, &b);
    let mut wr: RecvWr = zeroed();
    wr.next = &mut wr;
    assert_eq!(c!(gdrc_post_recv(a.ctx, a.qp, &wr, null_mut())), -libc::EAGAIN);
    assert_eq!(detail(), "ring full, poll first");
}

/// A call that is added to the header must be added to this table.
#[test]
fn no_call_of_the_header_is_left_out() {
    /// Calls that return something else than an error number.
    const NO_ERRORS: &[&str] = &["gdrc_cuda_free", "gdrc_cuda_fill"];
    let header = include_str!("../../include/gdrcore.h");
    let table = include_str!("reasons.rs");
    let calls = header
        .lines()
        .filter_map(|l| l.strip_prefix("int gdrc_")?.split('(').next())
        .map(|n| format!("gdrc_{n}"));
    let calls: Vec<String> = calls.collect();
    assert!(calls.len() > 80, "{}", calls.len());
    let missing: Vec<_> = calls
        .iter()
        .filter(|n| !NO_ERRORS.contains(&n.as_str()) && !table.contains(&format!("{n}(")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
