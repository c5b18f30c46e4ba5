//! C calls from Rust tests: contexts that close themselves, zeroed structs, connected pairs.
#![allow(dead_code)] // each test file uses a part

use core::ffi::{c_int, CStr};
use core::mem::{size_of, MaybeUninit};
use core::ptr::{null, null_mut};
use gdrcore::*;
use gdrcore_testkit::patience::deadline;
use std::time::Instant;

/// A C call. Every pointer that the tests pass is null, deliberate garbage that must not be
/// dereferenced, or live memory.
#[macro_export]
macro_rules! c {
    ($e:expr) => {{
        #[allow(clippy::macro_metavars_in_unsafe)] // that is what it is for
        // SAFETY: see the macro's text.
        let r = unsafe { $e };
        r
    }};
}

/// A zeroed struct with its size set, as C programs make it.
pub fn sized<T: Copy>() -> T {
    let mut v = MaybeUninit::<T>::zeroed();
    // SAFETY: used for repr(C) structs of the header that begin with u32 struct_size.
    unsafe { v.as_mut_ptr().cast::<u32>().write(size_of::<T>() as u32) };
    // SAFETY: integers and raw pointers: zero is a value of each.
    unsafe { v.assume_init() }
}

pub fn zeroed<T: Copy>() -> T {
    // SAFETY: used for repr(C) structs of integers, raw pointers and unions of integers.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

pub struct Ctx(pub *mut gdrc_context);

impl Ctx {
    pub fn open(device: &CStr, config: Option<&gdrc_config>) -> Ctx {
        let mut ctx = null_mut();
        let rc = c!(gdrc_open(device.as_ptr(), config.map_or(null(), |c| c), &mut ctx));
        assert_eq!(rc, 0, "{device:?}: {}", open_error());
        Ctx(ctx)
    }

    /// Closes and returns the number of leaks.
    pub fn close(self) -> c_int {
        let rc = c!(gdrc_close(self.0, null_mut()));
        core::mem::forget(self);
        rc
    }
}

impl Drop for Ctx {
    fn drop(&mut self) {
        c!(gdrc_close(self.0, null_mut()));
    }
}

pub fn open_error() -> String {
    let mut buf = vec![0u8; 512];
    let n = c!(gdrc_error_detail(buf.as_mut_ptr().cast(), buf.len()));
    buf.truncate(usize::try_from(n).unwrap_or(0));
    String::from_utf8_lossy(&buf).into_owned()
}

/// One side of a connection with a buffer of its own.
pub struct Side {
    pub ctx: *mut gdrc_context,
    pub pd: gdrc_pd,
    pub cq: gdrc_cq,
    pub qp: gdrc_qp,
    pub qpn: u32,
    pub mr: gdrc_mr,
    pub mr_attr: gdrc_mr_attr,
    pub buf: Box<[u8]>,
    pub local: gdrc_endpoint,
}

pub const ALL_ACCESS: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::FLUSH_GLOBAL;

pub fn side(ctx: &Ctx, qp_type: u32, bytes: usize) -> Side {
    let ctx = ctx.0;
    let (mut pd, mut cq, mut qp, mut mr) =
        (gdrc_pd::default(), gdrc_cq::default(), gdrc_qp::default(), gdrc_mr::default());
    assert_eq!(c!(gdrc_pd_alloc(ctx, &mut pd)), 0);
    assert_eq!(c!(gdrc_cq_create(ctx, 64, &mut cq, null_mut())), 0);
    let mut buf = vec![0u8; bytes].into_boxed_slice();
    let mut mr_attr: gdrc_mr_attr = sized();
    assert_eq!(
        c!(gdrc_mr_reg(ctx, pd, buf.as_mut_ptr().cast(), bytes, ALL_ACCESS, &mut mr, &mut mr_attr)),
        0
    );
    let mut init: gdrc_qp_init = sized();
    (init.pd, init.send_cq, init.recv_cq, init.qp_type) = (pd, cq, cq, qp_type);
    init.cap = QpCap {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
    };
    let mut qpn = 0;
    assert_eq!(c!(gdrc_qp_create(ctx, &mut init, &mut qp, &mut qpn)), 0);
    assert!(init.cap.max_send_wr >= 16 && qpn != 0 && qp.handle != 0);
    let mut local: gdrc_endpoint = sized();
    assert_eq!(c!(gdrc_endpoint_local(ctx, qp, &mr, &mut local)), 0);
    assert_eq!((local.qpn, local.addr, local.length), (qpn, buf.as_ptr() as u64, bytes as u64));
    Side { ctx, pd, cq, qp, qpn, mr, mr_attr, buf, local }
}

pub fn connect(a: &Side, b: &Side) {
    assert_eq!(c!(gdrc_qp_connect(a.ctx, a.qp, &a.local, &b.local, null())), 0);
    assert_eq!(c!(gdrc_qp_connect(b.ctx, b.qp, &b.local, &a.local, null())), 0);
}

impl Side {
    pub fn sge(&self, at: usize, length: u32) -> Sge {
        Sge { addr: self.buf.as_ptr() as u64 + at as u64, length, lkey: self.mr_attr.lkey }
    }

    pub fn post_send(&self, opcode: u32, flags: u32, sge: &mut [Sge], remote: (u64, u32)) -> c_int {
        let mut wr: SendWr = zeroed();
        wr.wr_id = 7;
        wr.sg_list = sge.as_mut_ptr();
        wr.num_sge = sge.len() as i32;
        wr.opcode = opcode;
        wr.send_flags = flags;
        wr.wr.rdma = RdmaWr { remote_addr: remote.0, rkey: remote.1 };
        c!(gdrc_post_send(self.ctx, self.qp, &wr, null_mut()))
    }

    pub fn post_recv(&self, id: u64, sge: &mut [Sge]) -> c_int {
        let mut wr: RecvWr = zeroed();
        wr.wr_id = id;
        wr.sg_list = sge.as_mut_ptr();
        wr.num_sge = sge.len() as i32;
        c!(gdrc_post_recv(self.ctx, self.qp, &wr, null_mut()))
    }

    /// One completion, or None if none comes. `other` is polled as well, as it may be another
    /// engine.
    pub fn poll(&self, other: Option<&Side>) -> Option<Wc> {
        let end = deadline(60);
        let mut wc = Wc::default();
        while Instant::now() < end {
            if let Some(o) = other {
                assert!(c!(gdrc_progress(o.ctx)) >= 0);
            }
            match c!(gdrc_poll_cq(self.ctx, self.cq, 1, &mut wc)) {
                0 => {}
                n => {
                    assert_eq!(n, 1);
                    return Some(wc);
                }
            }
        }
        None
    }
}
