//! Protection domains, memory, address handles, completion queues, shared receive queues.

use crate::consts::*;
use crate::context::device;
use crate::cuda;
use crate::ptr::{out, out_optional, plain_in, refuse, ret, sized_in, sized_out, sized_out_optional, zeroed};
use crate::types::*;
use core::ffi::{c_int, c_void};
use gdrcore_core::device::{MrAttr, MrReg, SrqAttr};
use gdrcore_core::verbs::types::AhAttr;
use gdrcore_core::wire::grh;
use gdrcore_core::Result;

/// Allocates a protection domain.
///
/// Errors: -ENOMEM: max_pd are in use; -EINVAL: not an open context, or out is NULL.
/// Threads: any. Cost: no allocation, no system call. Source: IBTA verb Allocate Protection Domain; ibv_alloc_pd(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_pd_alloc(ctx: *mut gdrc_context, out: *mut gdrc_pd) -> c_int {
    ret(pd_alloc(ctx, out))
}

fn pd_alloc(ctx: *mut gdrc_context, out: *mut gdrc_pd) -> Result<c_int> {
    let out = out!(out);
    out.write(gdrc_pd { handle: device(ctx)?.pd_alloc()? });
    Ok(0)
}

/// Gives a protection domain back.
///
/// Errors: -EBUSY: a region, window, address handle, SRQ or QP is still in it; -EINVAL: stale handle.
/// Threads: any. Cost: none. Source: IBTA verb Deallocate Protection Domain; ibv_dealloc_pd(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_pd_dealloc(ctx: *mut gdrc_context, pd: gdrc_pd) -> c_int {
    ret(device(ctx).and_then(|d| d.pd_dealloc(pd.handle)).map(|()| 0))
}

/// Registers `length` bytes at `addr`: work requests may name them by the keys in `attr`, as far as `access`
/// (GDRC_ACCESS_) allows. Remote write and atomics need local write as well. Work requests use the program's own
/// addresses, or count from 0 with GDRC_ACCESS_ZERO_BASED. The memory must stay mapped until gdrc_mr_dereg; if it
/// vanishes all the same, operations on it end with an access error. `attr` (struct_size set) may be NULL.
///
/// Errors: -EFAULT: the range is not mapped with the rights that `access` needs; -ENOMEM: max_mr are in use;
/// -EINVAL: length 0, the range leaves the address space, unknown or contradictory access flags, stale pd;
/// -EOPNOTSUPP: access flags that the device does not have.
/// Threads: any. Cost: probes every page once. Source: IBTA verb Register Memory Region; ibv_reg_mr(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_mr_reg(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
    out: *mut gdrc_mr,
    attr: *mut gdrc_mr_attr,
) -> c_int {
    let iova = if access & GDRC_ACCESS_ZERO_BASED != 0 { 0 } else { addr.expose_provenance() as u64 };
    ret(mr_reg(ctx, pd, addr, length, iova, access, None, out, attr))
}

/// As gdrc_mr_reg; work requests use `iova` for the first byte. With GDRC_ACCESS_ZERO_BASED iova must be 0.
///
/// Errors: as gdrc_mr_reg. Threads: any. Cost: as gdrc_mr_reg. Source: ibv_reg_mr_iova(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_mr_reg_iova(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
    out: *mut gdrc_mr,
    attr: *mut gdrc_mr_attr,
) -> c_int {
    ret(mr_reg(ctx, pd, addr, length, iova, access, None, out, attr))
}

#[allow(clippy::too_many_arguments)] // those of the C call
pub(crate) fn mr_reg(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
    shared: Option<(i32, u64)>,
    out: *mut gdrc_mr,
    attr: *mut gdrc_mr_attr,
) -> Result<c_int> {
    let out = out!(out);
    let attr = sized_out_optional!(attr);
    let dev = device(ctx)?;
    // The engine reaches the memory by its address: the pointer's provenance is exposed here for that.
    let addr = addr.expose_provenance() as u64;
    let len = length as u64;
    check_range(addr, len, iova)?;
    if access & GDRC_ACCESS_ZERO_BASED != 0 && iova != 0 {
        return Err(refuse!(Invalid, "iova {iova:#x}: with GDRC_ACCESS_ZERO_BASED it must be 0"));
    }
    let (mr, a) = dev.mr_reg(&MrReg { pd: pd.handle, addr, length: len, iova, access, provider: 0, cookie: 0 })?;
    if let Some((fd, offset)) = shared {
        if let Err(e) = dev.mr_share(mr, fd, offset) {
            dev.mr_dereg(mr)?;
            return Err(e);
        }
    }
    out.write(gdrc_mr { handle: mr });
    if let Some(attr) = attr {
        attr.write(&mr_attr(&a));
    }
    Ok(0)
}

/// A region's memory: somewhere, and within the address space, by the program's addresses and by those of its peers.
pub(crate) fn check_range(addr: u64, length: u64, iova: u64) -> Result<()> {
    if addr == 0 {
        return Err(refuse!(Invalid, "addr: NULL"));
    }
    if length == 0 {
        return Err(refuse!(Invalid, "length 0: a region has at least one byte"));
    }
    if addr.checked_add(length).is_none() {
        return Err(refuse!(Invalid, "length {length:#x}: from addr {addr:#x} on it leaves the address space"));
    }
    if iova.checked_add(length).is_none() {
        return Err(refuse!(Invalid, "length {length:#x}: from iova {iova:#x} on it leaves the address space"));
    }
    Ok(())
}

pub(crate) fn mr_attr(a: &MrAttr) -> gdrc_mr_attr {
    gdrc_mr_attr {
        provider: a.provider,
        addr: a.addr,
        length: a.length,
        iova: a.iova,
        lkey: a.lkey,
        rkey: a.rkey,
        access: a.access,
        ..zeroed()
    }
}

/// Fills `attr` (struct_size set) with what the region is.
///
/// Errors: -EINVAL: stale handle, attr is NULL or its struct_size 0. Threads: any. Cost: none; GPU memory: a call of the driver.
#[no_mangle]
pub unsafe extern "C" fn gdrc_mr_query(ctx: *mut gdrc_context, mr: gdrc_mr, attr: *mut gdrc_mr_attr) -> c_int {
    ret(mr_query(ctx, mr, attr))
}

fn mr_query(ctx: *mut gdrc_context, mr: gdrc_mr, attr: *mut gdrc_mr_attr) -> Result<c_int> {
    let out = sized_out!(attr);
    let mut a = mr_attr(&device(ctx)?.mr_query(mr.handle)?);
    cuda::describe(ctx, mr.handle, &mut a);
    out.write(&a);
    Ok(0)
}

/// Takes a region back: its keys are dead at return, and the device does not touch the memory any more.
///
/// Errors: -EBUSY: a window is bound to it; -EINVAL: stale handle.
/// Threads: any. Cost: none; GPU memory: waits for copies under way. Source: IBTA verb Deregister Memory Region; ibv_dereg_mr(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_mr_dereg(ctx: *mut gdrc_context, mr: gdrc_mr) -> c_int {
    ret(device(ctx).and_then(|d| {
        d.mr_dereg(mr.handle)?;
        cuda::release(ctx, mr.handle);
        Ok(0)
    }))
}

/// Allocates a memory window of `type` 1 or 2 and tells its first rkey (`rkey` may be NULL).
/// A GDRC_WR_BIND_MW work request opens it.
///
/// Errors: -ENOMEM: max_mr are in use; -EINVAL: another type, stale pd, out is NULL.
/// Threads: any. Cost: none. Source: IBTA verb Allocate Memory Window; ibv_alloc_mw(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_mw_alloc(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    mw_type: u32,
    out: *mut gdrc_mw,
    rkey: *mut u32,
) -> c_int {
    ret(mw_alloc(ctx, pd, mw_type, out, rkey))
}

fn mw_alloc(ctx: *mut gdrc_context, pd: gdrc_pd, mw_type: u32, out: *mut gdrc_mw, rkey: *mut u32) -> Result<c_int> {
    let out = out!(out);
    let rkey = out_optional!(rkey);
    let (handle, key) = device(ctx)?.mw_alloc(pd.handle, mw_type)?;
    out.write(gdrc_mw { handle });
    if let Some(rkey) = rkey {
        rkey.write(key);
    }
    Ok(0)
}

/// Gives a window back; its rkey is dead at return.
///
/// Errors: -EINVAL: stale handle. Threads: any. Cost: none. Source: IBTA verb Deallocate Memory Window; ibv_dealloc_mw(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_mw_dealloc(ctx: *mut gdrc_context, mw: gdrc_mw) -> c_int {
    ret(device(ctx).and_then(|d| d.mw_dealloc(mw.handle)).map(|()| 0))
}

pub(crate) fn ah_attr(a: &gdrc_ah_attr) -> AhAttr {
    AhAttr {
        dgid: a.dgid,
        scope_id: a.scope_id,
        udp_port: a.udp_port,
        hop_limit: a.hop_limit,
        traffic_class: a.traffic_class,
    }
}

/// Makes an address handle for UD sends.
///
/// Errors: -ENOMEM: max_ah or max_peer are in use; -EINVAL: the GID is no address that this device can send to
/// (IPv4 and IPv6 do not mix, link-local needs a zone), stale pd, a NULL pointer.
/// Threads: any. Cost: none. Source: IBTA verb Create Address Handle; ibv_create_ah(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_ah_create(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    attr: *const gdrc_ah_attr,
    out: *mut gdrc_ah,
) -> c_int {
    ret(ah_create(ctx, pd, attr, out))
}

fn ah_create(ctx: *mut gdrc_context, pd: gdrc_pd, attr: *const gdrc_ah_attr, out: *mut gdrc_ah) -> Result<c_int> {
    let out = out!(out);
    let attr = plain_in!(attr);
    out.write(gdrc_ah { handle: device(ctx)?.ah_create(pd.handle, &ah_attr(&attr))? });
    Ok(0)
}

/// Makes an address handle that answers the sender of a received UD message: `wc` is its completion, `grh40` the first
/// 40 bytes of the receive buffer. The answer goes to the device's own UDP port number at that address.
///
/// Errors: -EINVAL: the completion has no GDRC_WC_FLAG_GRH, the 40 bytes are no IP header, a NULL pointer; else as
/// gdrc_ah_create. Threads: any. Cost: none. Source: ibv_create_ah_from_wc(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_ah_from_wc(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    wc: *const gdrc_wc,
    grh40: *const c_void,
    out: *mut gdrc_ah,
) -> c_int {
    ret(ah_from_wc(ctx, pd, wc, grh40, out))
}

fn ah_from_wc(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    wc: *const gdrc_wc,
    grh40: *const c_void,
    out: *mut gdrc_ah,
) -> Result<c_int> {
    let out = out!(out);
    let wc = plain_in!(wc);
    let bytes: [u8; grh::BYTES] = plain_in!(grh40.cast());
    let dev = device(ctx)?;
    if wc.wc_flags & GDRC_WC_FLAG_GRH == 0 {
        return Err(refuse!(
            Invalid,
            "wc->wc_flags {:#x}: without GDRC_WC_FLAG_GRH there is no sender's address",
            wc.wc_flags
        ));
    }
    let from = grh::parse(&bytes).ok_or_else(|| refuse!(Invalid, "grh40: these 40 bytes are no IP header"))?;
    // A link-local sender is on the link of the device's own address.
    let scope_id = if grh::is_link_local(&from.source) { dev.query()?.scope_id } else { 0 };
    let attr = AhAttr { dgid: from.source, scope_id, traffic_class: from.traffic_class, ..AhAttr::default() };
    out.write(gdrc_ah { handle: dev.ah_create(pd.handle, &attr)? });
    Ok(0)
}

/// Gives an address handle back. Posted sends that name it and have not left fail with a completion.
///
/// Errors: -EINVAL: stale handle. Threads: any. Cost: none. Source: IBTA verb Destroy Address Handle; ibv_destroy_ah(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_ah_destroy(ctx: *mut gdrc_context, ah: gdrc_ah) -> c_int {
    ret(device(ctx).and_then(|d| d.ah_destroy(ah.handle)).map(|()| 0))
}

/// Creates a completion queue with room for at least `cqe` completions. It never overflows: a send keeps its queue
/// slot, and a receive is not begun, until there is room (GDRC_CONFIG_STRICT_CQ refuses at QP creation instead).
///
/// Errors: -ENOMEM: max_cq or ring_bytes are in use; -EINVAL: cqe is 0 or over max_cqe, out is NULL.
/// Threads: any. Cost: no system call. Source: IBTA verb Create Completion Queue; ibv_create_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_create(ctx: *mut gdrc_context, cqe: u32, out: *mut gdrc_cq) -> c_int {
    ret(cq_create(ctx, cqe, out))
}

fn cq_create(ctx: *mut gdrc_context, cqe: u32, out: *mut gdrc_cq) -> Result<c_int> {
    let out = out!(out);
    let (handle, _) = device(ctx)?.cq_create(cqe)?;
    out.write(gdrc_cq { handle });
    Ok(0)
}

/// Creates a completion queue as gdrc_cq_create does, whose events go to a completion channel: gdrc_cq_arm then makes the channel's
/// descriptor readable, not the context's, and gdrc_channel_event or gdrc_channel_wait takes the event, not gdrc_cq_event.
///
/// Errors: as gdrc_cq_create; -EINVAL: stale channel.
/// Threads: any. Cost: no system call. Source: IBTA verb Create Completion Queue; ibv_create_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_create_on(
    ctx: *mut gdrc_context,
    cqe: u32,
    channel: gdrc_channel,
    out: *mut gdrc_cq,
) -> c_int {
    ret(cq_create_on(ctx, cqe, channel, out))
}

fn cq_create_on(ctx: *mut gdrc_context, cqe: u32, channel: gdrc_channel, out: *mut gdrc_cq) -> Result<c_int> {
    let out = out!(out);
    let (handle, _) = device(ctx)?.cq_create_on(cqe, channel.handle)?;
    out.write(gdrc_cq { handle });
    Ok(0)
}

/// Changes a CQ's size; completions in it stay, in order.
///
/// Errors: -ENOMEM: ring_bytes are in use (the CQ keeps its size); -EINVAL: more completions wait than would fit, cqe is
/// 0 or over max_cqe, stale handle; -EBUSY: another thread polls it.
/// Threads: one per CQ. Cost: copies the waiting completions. Source: IBTA verb Resize Completion Queue; ibv_resize_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_resize(ctx: *mut gdrc_context, cq: gdrc_cq, cqe: u32) -> c_int {
    ret(device(ctx).and_then(|d| d.cq_resize(cq.handle, cqe)).map(|_| 0))
}

/// Destroys a CQ with the completions in it.
///
/// Errors: -EBUSY: a QP uses it, or it is pinned; -EINVAL: stale handle.
/// Threads: any. Cost: none. Source: IBTA verb Destroy Completion Queue; ibv_destroy_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_destroy(ctx: *mut gdrc_context, cq: gdrc_cq) -> c_int {
    ret(device(ctx).and_then(|d| d.cq_destroy(cq.handle)).map(|()| 0))
}

fn srq_attr(a: &SrqAttr) -> gdrc_srq_attr {
    gdrc_srq_attr { max_wr: a.max_wr, max_sge: a.max_sge, srq_limit: a.srq_limit, ..zeroed() }
}

/// Creates a shared receive queue of the size in `inout` (struct_size set), which at return holds what was given.
///
/// Errors: -ENOMEM: max_srq or ring_bytes are in use; -EINVAL: a size is 0 or over the device's, stale pd, a NULL pointer.
/// Threads: any. Cost: no system call. Source: IBTA verb Create Shared Receive Queue; ibv_create_srq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_create(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    inout: *mut gdrc_srq_attr,
    out: *mut gdrc_srq,
) -> c_int {
    ret(srq_create(ctx, pd, inout, out))
}

fn srq_create(ctx: *mut gdrc_context, pd: gdrc_pd, inout: *mut gdrc_srq_attr, out: *mut gdrc_srq) -> Result<c_int> {
    let out = out!(out);
    let asked = sized_in!(inout.cast_const());
    let given = sized_out!(inout);
    let asked = SrqAttr { max_wr: asked.max_wr, max_sge: asked.max_sge, srq_limit: asked.srq_limit };
    let (handle, a) = device(ctx)?.srq_create(pd.handle, &asked)?;
    out.write(gdrc_srq { handle });
    given.write(&srq_attr(&a));
    Ok(0)
}

/// Arms the SRQ's limit: GDRC_EVENT_SRQ_LIMIT_REACHED is raised once when fewer requests are left; 0 disarms.
///
/// Errors: -EINVAL: limit is over max_wr, stale handle. Threads: any. Cost: none.
/// Source: IBTA verb Modify Shared Receive Queue; ibv_modify_srq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_modify(ctx: *mut gdrc_context, srq: gdrc_srq, limit: u32) -> c_int {
    ret(device(ctx).and_then(|d| d.srq_modify(srq.handle, limit)).map(|()| 0))
}

/// Fills `attr` (struct_size set) with the SRQ's sizes and its limit, 0 once that was reached.
///
/// Errors: -EINVAL: stale handle, attr is NULL or its struct_size 0. Threads: any. Cost: none.
/// Source: IBTA verb Query Shared Receive Queue; ibv_query_srq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_query(ctx: *mut gdrc_context, srq: gdrc_srq, attr: *mut gdrc_srq_attr) -> c_int {
    ret(srq_query(ctx, srq, attr))
}

fn srq_query(ctx: *mut gdrc_context, srq: gdrc_srq, attr: *mut gdrc_srq_attr) -> Result<c_int> {
    let out = sized_out!(attr);
    out.write(&srq_attr(&device(ctx)?.srq_query(srq.handle)?));
    Ok(0)
}

/// Destroys an SRQ; requests in it end without completion.
///
/// Errors: -EBUSY: a QP uses it; -EINVAL: stale handle.
/// Threads: any. Cost: none. Source: IBTA verb Destroy Shared Receive Queue; ibv_destroy_srq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_destroy(ctx: *mut gdrc_context, srq: gdrc_srq) -> c_int {
    ret(device(ctx).and_then(|d| d.srq_destroy(srq.handle)).map(|()| 0))
}
