//! Verbs of extended queue pairs: requests are built call by call (`ibv_wr_*`) and posted together
//! by `ibv_wr_complete`.
//!
//! Requests after `ibv_wr_start` are collected in the QP's memory, which has room for its whole
//! send queue. The first error is recorded: `ibv_wr_complete` returns it and posts nothing.

use crate::abi::*;
use crate::hca_kinds::Called;
use crate::layer;
use crate::mlx5::requests;
use crate::open_context::Context;
use crate::post_verbs::{bind_request, post_batch};
use crate::qp_verbs::{destroy_qp, make, make_as, make_target, publish, Qp};
use crate::send_batch::SendBatch;
use crate::verb_result::{out, Verb};
use crate::xrcd_verbs::Xrcd;
use core::ffi::{c_int, c_void};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{qp_type, send_flags, wr_opcode, AtomicWr, FlushWr};
use gdrcore_core::{refuse, Result};
use gdrcore_net::soft::SoftDevice;

/// `ibv_qp_create_send_ops_flags` of each transport: up to 9, bit n is operation n of
/// `ibv_wr_opcode`.
const UD_OPS: u64 = 1 << 2 | 1 << 3;
const UC_OPS: u64 = UD_OPS | 1 | 1 << 1 | 1 << 7 | 1 << 8;
const RC_OPS: u64 = UC_OPS | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 9 | EX_FLUSH | EX_ATOMIC_WRITE;
/// `IBV_QP_EX_WITH_FLUSH` and `_ATOMIC_WRITE`, whose bits differ from their opcodes' numbers.
const EX_FLUSH: u64 = 1 << 11;
/// See [`EX_FLUSH`].
const EX_ATOMIC_WRITE: u64 = 1 << 12;

/// The flag of an operation.
const fn flag_of(opcode: u32) -> u64 {
    match opcode {
        wr_opcode::FLUSH => EX_FLUSH,
        wr_opcode::ATOMIC_WRITE => EX_ATOMIC_WRITE,
        n => 1 << n,
    }
}

/// `ibv_qp_init_attr_mask`.
pub const INIT_PD: u32 = 1;
const INIT_XRCD: u32 = 2;
const INIT_CREATE_FLAGS: u32 = 4;
const INIT_SEND_OPS: u32 = 64;

/// The operation behind `ibv_create_qp_ex`.
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the program's pointers.
    Verb("ibv_create_qp_ex").pointer(unsafe { create(context, init, None) })
}

/// Creates a QP of the type in `init`, or with `dc` of one of the device's types for DC and with
/// the access key of a DCT.
///
/// # Errors
/// `Unsupported`: type, flag or operation; `Invalid`; `NoMemory`.
///
/// # Safety
/// The program's pointers.
pub unsafe fn create(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
    dc: Option<(u32, u64)>,
) -> Result<*mut ibv_qp> {
    // SAFETY: the caller's promise.
    let (_, i) = unsafe { (Context::from_ptr(context)?, out(init)?) };
    let target = dc.is_none() && i.qp_type == qp_type::XRC_RECV;
    check(i, target)?;
    if target {
        // SAFETY: as above.
        let xrcd = unsafe { Xrcd::from_ptr(i.xrcd)? }.handle;
        // SAFETY: as above.
        return unsafe { make_target(context, xrcd, i.qp_context, None) }.map(publish);
    }
    let plain = i.plain();
    // SAFETY: as above.
    let qp = unsafe {
        match dc {
            Some(dc) => make_as(dc, i.pd, &plain, &mut i.cap)?,
            None => make(i.pd, &plain, &mut i.cap)?,
        }
    };
    if i.comp_mask & INIT_SEND_OPS != 0 {
        // SAFETY: just made, and known to nobody.
        if let Err(e) = extend(unsafe { &mut *qp }, i.send_ops_flags) {
            // SAFETY: as above.
            unsafe { destroy_qp(qp.cast()) };
            return Err(e);
        }
    }
    Ok(publish(qp))
}

/// The attributes that do not depend on sizes. `target`: for an XRC target.
fn check(i: &ibv_qp_init_attr_ex, target: bool) -> Result<()> {
    let known = INIT_PD | INIT_XRCD | INIT_CREATE_FLAGS | INIT_SEND_OPS;
    let mask = i.comp_mask;
    if mask & !known != 0 {
        return Err(refuse!(Unsupported, "comp_mask {mask:#x}: the device knows {known:#x}"));
    }
    let (bit, word) = if target { (INIT_XRCD, "XRCD") } else { (INIT_PD, "PD") };
    if mask & bit == 0 {
        return Err(refuse!(Invalid, "comp_mask {mask:#x}: it lacks IBV_QP_INIT_ATTR_{word}"));
    }
    if mask & INIT_CREATE_FLAGS != 0 && i.create_flags != 0 {
        let flags = i.create_flags;
        return Err(refuse!(Unsupported, "create_flags {flags:#x}: the device has none"));
    }
    if target && mask & INIT_SEND_OPS != 0 && i.send_ops_flags != 0 {
        let ops = i.send_ops_flags;
        return Err(refuse!(Unsupported, "send_ops_flags {ops:#x}: XRC_RECV has none"));
    }
    Ok(())
}

/// Makes a QP extended, for the operations that the program requests.
///
/// # Errors
/// `Unsupported`: the device or the transport lacks one.
fn extend(qp: &mut Qp, ops: u64) -> Result<()> {
    let supported = match qp.kind {
        qp_type::RC | qp_type::XRC_SEND | qp_type::DCI => RC_OPS,
        qp_type::UC => UC_OPS,
        _ => UD_OPS,
    };
    if ops & !supported != 0 {
        let kind = qp_type::name(qp.kind);
        return Err(refuse!(Unsupported, "send_ops_flags {ops:#x}: {kind} has {supported:#x}"));
    }
    qp.batch = Some(Box::new(SendBatch::new(&qp.cap)));
    let ex = &mut qp.ex;
    macro_rules! op {
        ($($op:ident => $field:ident),* $(,)?) => {
            $(if ops & flag_of(wr_opcode::$op) != 0 {
                ex.$field = Some($field);
            })*
        };
    }
    op! {
        RDMA_WRITE => wr_rdma_write, RDMA_WRITE_WITH_IMM => wr_rdma_write_imm, SEND => wr_send,
        SEND_WITH_IMM => wr_send_imm, RDMA_READ => wr_rdma_read,
        ATOMIC_CMP_AND_SWP => wr_atomic_cmp_swp, ATOMIC_FETCH_AND_ADD => wr_atomic_fetch_add,
        LOCAL_INV => wr_local_inv, BIND_MW => wr_bind_mw, SEND_WITH_INV => wr_send_inv,
        FLUSH => wr_flush, ATOMIC_WRITE => wr_atomic_write,
    }
    if qp.kind == qp_type::UD {
        ex.wr_set_ud_addr = Some(wr_set_ud_addr);
    }
    if qp.kind == qp_type::XRC_SEND {
        ex.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    }
    ex.wr_set_inline_data = Some(wr_set_inline_data);
    ex.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    ex.wr_set_sge = Some(wr_set_sge);
    ex.wr_set_sge_list = Some(wr_set_sge_list);
    ex.wr_start = Some(wr_start);
    ex.wr_complete = Some(match qp.hca.soft() {
        Some(_) => wr_complete::<SoftDevice>,
        None => wr_complete::<dyn Device>,
    });
    ex.wr_abort = Some(wr_abort);
    layer::wrap_qp(ex);
    qp.dv = requests::functions(qp.kind == qp_type::DCI);
    Ok(())
}

/// The batch of a QP.
///
/// # Safety
/// The program's QP, and this thread is between its start and its complete or abort.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> Option<&'a mut SendBatch> {
    // SAFETY: the caller's promise.
    unsafe { Qp::batch_of(qp.cast()) }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the program's QP.
    unsafe { &(*qp.cast::<Qp>()).lock }.lock();
    // SAFETY: this thread has the turn.
    if let Some(b) = unsafe { batch(qp) } {
        b.clear();
    }
}

unsafe extern "C" fn wr_complete<D: Called + ?Sized>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: this thread has the turn.
    let Some(b) = (unsafe { batch(qp) }) else { return libc::EINVAL };
    // SAFETY: the program's QP.
    let q = unsafe { &*qp.cast::<Qp>() };
    if q.kind == qp_type::DCI {
        requests::check(b);
    }
    let rc = match b.error {
        Some(e) => Verb("ibv_wr_complete").code(Err(e)),
        None if b.wrs.is_empty() => 0,
        // SAFETY: objects in the list are the program's, and pieces the batch's.
        None => unsafe { post_batch::<D>(q, &mut b.wrs) },
    };
    b.clear();
    q.lock.unlock();
    rc
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: this thread has the turn.
    if let Some(b) = unsafe { batch(qp) } {
        b.clear();
    }
    // SAFETY: the program's QP.
    unsafe { &(*qp.cast::<Qp>()).lock }.unlock();
}

/// Begins a request with the values of the QP's fields.
///
/// # Safety
/// As for [`batch`].
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: u32, fill: impl FnOnce(&mut ibv_send_wr)) {
    // SAFETY: the caller's promise.
    let Some(b) = (unsafe { batch(qp) }) else { return };
    if b.wrs.len() == b.limit {
        b.fail(refuse!(NoMemory, "max_send_wr: {} requests are begun", b.limit));
    }
    if b.error.is_some() {
        return;
    }
    // SAFETY: zeroes are a valid request.
    let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
    // SAFETY: the program's QP.
    unsafe {
        wr.wr_id = (*qp).wr_id;
        wr.send_flags = (*qp).wr_flags & !send_flags::INLINE;
    }
    wr.opcode = opcode;
    fill(&mut wr);
    b.wrs.push(wr);
}

macro_rules! requests {
    ($(
        $opcode:ident $name:ident($($arg:ident: $t:ty),*) = |$wr:ident| $fill:expr;
    )*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $t)*) {
            // SAFETY: the program calls it between start and complete.
            unsafe { begin(qp, wr_opcode::$opcode, |$wr| $fill) };
        }
    )*};
}

requests! {
    SEND wr_send() = |_w| ();
    SEND_WITH_IMM wr_send_imm(imm: u32) = |w| w.imm_data = imm;
    SEND_WITH_INV wr_send_inv(rkey: u32) = |w| w.imm_data = rkey;
    LOCAL_INV wr_local_inv(rkey: u32) = |w| w.imm_data = rkey;
    RDMA_READ wr_rdma_read(rkey: u32, remote_addr: u64) = |w| {
        (w.wr.rdma.remote_addr, w.wr.rdma.rkey) = (remote_addr, rkey);
    };
    RDMA_WRITE wr_rdma_write(rkey: u32, remote_addr: u64) = |w| {
        (w.wr.rdma.remote_addr, w.wr.rdma.rkey) = (remote_addr, rkey);
    };
    RDMA_WRITE_WITH_IMM wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) = |w| {
        (w.wr.rdma.remote_addr, w.wr.rdma.rkey) = (remote_addr, rkey);
        w.imm_data = imm;
    };
    ATOMIC_CMP_AND_SWP wr_atomic_cmp_swp(
        rkey: u32, remote_addr: u64, compare_add: u64, swap: u64
    ) = |w| {
        w.wr.atomic = AtomicWr { remote_addr, compare_add, swap, rkey };
    };
    ATOMIC_FETCH_AND_ADD wr_atomic_fetch_add(rkey: u32, remote_addr: u64, compare_add: u64) = |w| {
        w.wr.atomic = AtomicWr { remote_addr, compare_add, swap: 0, rkey };
    };
    // A FLUSH ignores the pieces that the program may set.
    FLUSH wr_flush(rkey: u32, remote_addr: u64, length: usize, placement: u8, level: u8) = |w| {
        let (placement, level, length) = (placement.into(), level.into(), length as u64);
        w.wr.flush = FlushWr { remote_addr, rkey, placement, length, level };
    };
    // Window and region are still pointers here, as in a posted request; `post` replaces them by
    // handles.
    BIND_MW wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = |w| {
        w.ext.bind_mw = bind_request(mw, rkey, &*info);
    };
}

/// Copies the 8 bytes: they are the program's only until the call returns.
unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    bytes: *const c_void,
) {
    // SAFETY: between start and complete.
    unsafe {
        begin(qp, wr_opcode::ATOMIC_WRITE, |w| {
            (w.wr.rdma.remote_addr, w.wr.rdma.rkey) = (remote_addr, rkey)
        });
        if let Some(b) = batch(qp) {
            b.set_word(bytes);
        }
    }
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: between start and complete.
    if let Some(wr) = unsafe { batch(qp) }.and_then(SendBatch::last) {
        wr.wr.ud.ah = ah as u64;
        wr.wr.ud.remote_qpn = remote_qpn;
        wr.wr.ud.remote_qkey = remote_qkey;
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: between start and complete.
    if let Some(wr) = unsafe { batch(qp) }.and_then(SendBatch::last) {
        wr.remote_srqn = remote_srqn;
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: between start and complete.
    if let Some(b) = unsafe { batch(qp) } {
        b.set_sges(&[ibv_sge { addr, length, lkey }]);
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, n: usize, list: *const ibv_sge) {
    // SAFETY: between start and complete.
    let Some(b) = (unsafe { batch(qp) }) else { return };
    if n > b.max_sge || (n > 0 && list.is_null()) {
        return b.fail(refuse!(
            Invalid,
            "sg_list, num_sge {n}: at most {}, and not NULL",
            b.max_sge
        ));
    }
    if n > 0 {
        // SAFETY: `n` pieces of the program.
        b.set_sges(unsafe { core::slice::from_raw_parts(list, n) });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: between start and complete.
    if let Some(b) = unsafe { batch(qp) } {
        // SAFETY: the program's piece.
        unsafe { b.set_inline(&[ibv_data_buf { addr, length }]) };
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    n: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: between start and complete.
    let Some(b) = (unsafe { batch(qp) }) else { return };
    if n > 0 && list.is_null() {
        return b.fail(refuse!(Invalid, "buf_list: NULL, and num_buf is {n}"));
    }
    if n > 0 {
        // SAFETY: `n` pieces of the program.
        unsafe { b.set_inline(core::slice::from_raw_parts(list, n)) };
    }
}
