//! Verbs that post requests. The structs are the same, so lists go to the device unchanged.
//! Requests that name objects are the exception: programs put pointers there where the device has
//! handles, so these requests are copied, a few at a time.

use crate::abi::*;
use crate::ah_verbs::Ah;
use crate::hca_kinds::Called;
use crate::mr_verbs::{Mr, Mw};
use crate::qp_verbs::Qp;
use crate::srq_verbs::{self, Srq};
use crate::verb_result::{object, set_errno, Verb};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{access, qp_type, send_flags, wr_opcode, BindMwWr, MwBindInfo};
use gdrcore_core::{refuse, Error, Result};
use gdrcore_net::thread_lock::retry_while_busy;

/// Most requests that are copied at once.
const CHUNK: usize = 16;

/// Errno of a post: a full queue is ENOMEM, as with every driver.
#[cold]
fn post_code(verb: Verb, r: Result<()>) -> c_int {
    match r {
        // Not printed as a refusal: the program polls and posts again.
        Err(Error::Again) => {
            set_errno(libc::ENOMEM);
            libc::ENOMEM
        }
        other => verb.code(other),
    }
}

/// The operation behind `ibv_post_send`.
pub unsafe extern "C" fn post_send<D: Called + ?Sized>(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program's QP. Not checked for null: the inline verb has read it already.
    let q = unsafe { &*qp.cast::<Qp>() };
    let mut at: *const ibv_send_wr = wr;
    let done = match q.kind {
        qp_type::DCI => Err(refuse!(
            Unsupported,
            "a request of a DCI names its target: ibv_wr_ calls and mlx5dv_wr_set_dc_addr"
        )),
        // SAFETY: the program's list.
        _ => unsafe { post::<D>(q, wr, &mut at) },
    };
    // SAFETY: the program's pointer.
    unsafe { tell_bad(Verb("ibv_post_send"), done, at, bad) }
}

/// Posts all requests of a batch or none. Their pointers to windows, regions and the address
/// handles of datagrams are replaced. The requests of a DCI already have the device's handles.
///
/// # Safety
/// The objects live, and so do the pieces. The QP's device is a `D`.
pub unsafe fn post_batch<D: Called + ?Sized>(q: &Qp, wrs: &mut [ibv_send_wr]) -> c_int {
    let mut named = Ok(());
    let mut count = 0;
    for w in wrs.iter_mut() {
        // SAFETY: the caller's promise.
        named = unsafe { translate(q, w) };
        if named.is_err() {
            break;
        }
        count += 1;
    }
    let mut next = core::ptr::null();
    for w in wrs.iter_mut().rev() {
        w.next = next;
        next = w;
    }
    let done = named.and_then(|()| {
        // SAFETY: the list that was linked; its pieces are the caller's.
        retry_while_busy(|| unsafe { D::cast(q.device).post_send_all(q.handle, next) })
    });
    if done.is_err() {
        // SAFETY: not posted, so their windows live.
        wrs[..count].iter().rev().for_each(|w| unsafe { restore_key(w) });
    }
    match done {
        Ok(()) => 0,
        failed => post_code(Verb("ibv_wr_complete"), failed),
    }
}

/// # Safety
/// The list and its objects live, and the QP's device is a `D`.
#[inline]
unsafe fn post<D: Called + ?Sized>(
    q: &Qp,
    wr: *const ibv_send_wr,
    at: &mut *const ibv_send_wr,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if q.kind == qp_type::UD || binds(wr, q.cap.max_send_wr) {
            post_translated::<D>(q, wr, at)
        } else {
            retry_while_busy(|| D::cast(q.device).post_send(q.handle, wr, at))
        }
    }
}

/// Whether one of the first `n` requests of a list binds a window; no more than `n` can be posted.
///
/// # Safety
/// The program's list.
#[inline]
unsafe fn binds(mut wr: *const ibv_send_wr, n: u32) -> bool {
    for _ in 0..n {
        // SAFETY: the caller's promise.
        match unsafe { wr.as_ref() } {
            None => return false,
            Some(w) if w.opcode == wr_opcode::BIND_MW => return true,
            Some(w) => wr = w.next,
        }
    }
    false
}

/// Posts copies in which handles replace the program's pointers.
///
/// # Safety
/// The program's list, and objects of it that live. The QP's device is a `D`.
#[inline(never)] // its copies are large, and most posts need none
unsafe fn post_translated<D: Called + ?Sized>(
    q: &Qp,
    mut wr: *const ibv_send_wr,
    bad: &mut *const ibv_send_wr,
) -> Result<()> {
    while !wr.is_null() {
        let mut copies = [const { MaybeUninit::<ibv_send_wr>::uninit() }; CHUNK];
        let mut theirs = [core::ptr::null::<ibv_send_wr>(); CHUNK];
        let mut n = 0;
        let mut wrong = None;
        while n < CHUNK && !wr.is_null() {
            // SAFETY: the program's request; plain integers.
            let mut w = unsafe { wr.read_unaligned() };
            let next = w.next;
            // SAFETY: as above.
            if let Err(e) = unsafe { translate(q, &mut w) } {
                wrong = Some((e, wr));
                break;
            }
            w.next = core::ptr::null();
            theirs[n] = wr;
            copies[n].write(w);
            if n > 0 {
                let here = copies[n].as_ptr();
                // SAFETY: written in the round before.
                unsafe { copies[n - 1].assume_init_mut() }.next = here;
            }
            n += 1;
            wr = next;
        }
        if n > 0 {
            let first = copies[0].as_ptr();
            let mut at = first;
            let posted = retry_while_busy(|| {
                // SAFETY: a list of our own, of which the pieces are the program's.
                unsafe { D::cast(q.device).post_send(q.handle, first, &mut at) }
            });
            if let Err(e) = posted {
                // SAFETY: the device names one of the copies, all of one array.
                let k = usize::try_from(unsafe { at.offset_from(first) }).unwrap_or(0);
                *bad = theirs[k.min(CHUNK - 1)];
                for w in copies[k.min(n)..n].iter().rev() {
                    // SAFETY: written above, and not posted, so its window lives.
                    unsafe { restore_key(w.assume_init_ref()) };
                }
                return Err(e);
            }
        }
        if let Some((e, at)) = wrong {
            *bad = at;
            return Err(e);
        }
    }
    Ok(())
}

/// The access flags of a window without LOCAL_WRITE. That flag has no meaning there, but many
/// programs set it.
fn window_access(flags: u32) -> u32 {
    flags & !access::LOCAL_WRITE
}

/// Replaces the program's pointers by handles. A window gets its new key already now: once the
/// request is posted, another thread may see its completion and end the window. A part of the
/// request that a bind does not use keeps the window and its old key.
///
/// # Safety
/// The objects live, or their pointers are null.
unsafe fn translate(q: &Qp, w: &mut ibv_send_wr) -> Result<()> {
    if w.opcode == wr_opcode::BIND_MW {
        // SAFETY: the caller's promise; of this opcode these parts of the unions count.
        unsafe {
            let b = &mut w.ext.bind_mw;
            let window = b.mw as *mut Mw;
            let mw = object(window)?;
            b.bind_info.mw_access_flags = window_access(b.bind_info.mw_access_flags);
            if b.bind_info.mr != 0 {
                b.bind_info.mr = object(b.bind_info.mr as *const Mr)?.handle;
            }
            b.mw = mw.handle;
            (w.wr.rdma.remote_addr, w.wr.rdma.rkey) = (window as u64, mw.ibv.rkey);
            (*window).ibv.rkey = (mw.ibv.rkey & !0xff) | (b.rkey & 0xff);
        }
    } else if q.kind == qp_type::UD {
        // SAFETY: as above; of a UD request this is the part of the union that counts.
        unsafe { w.wr.ud.ah = object(w.wr.ud.ah as *const Ah)?.handle };
    }
    Ok(())
}

/// Restores the old key of the window of a request that was not posted.
///
/// # Safety
/// The window lives.
unsafe fn restore_key(w: &ibv_send_wr) {
    if w.opcode == wr_opcode::BIND_MW {
        // SAFETY: `translate` has put them there.
        unsafe { (*(w.wr.rdma.remote_addr as *mut Mw)).ibv.rkey = w.wr.rdma.rkey };
    }
}

/// The operation behind `ibv_post_recv`.
pub unsafe extern "C" fn post_recv<D: Called + ?Sized>(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program's QP. Not checked for null: the inline verb has read it already.
    let q = unsafe { &*qp.cast::<Qp>() };
    let mut at: *const ibv_recv_wr = wr;
    // SAFETY: the program's list, and contexts have this operation for their device.
    let done = retry_while_busy(|| unsafe { D::cast(q.device).post_recv(q.handle, wr, &mut at) });
    // SAFETY: the program's pointer.
    unsafe { tell_bad(Verb("ibv_post_recv"), done, at, bad) }
}

/// The operation behind `ibv_post_srq_recv`.
pub unsafe extern "C" fn post_srq_recv<D: Called + ?Sized>(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program's SRQ. Not checked for null: the inline verb has read it already.
    let s = unsafe { &*srq.cast::<Srq>() };
    let mut at: *const ibv_recv_wr = wr;
    // SAFETY: the program's list.
    let done = unsafe { srq_verbs::post::<D>(s, wr, &mut at) };
    // SAFETY: the program's pointer.
    unsafe { tell_bad(Verb("ibv_post_srq_recv"), done, at, bad) }
}

/// # Safety
/// `bad` is null or writable.
#[inline]
unsafe fn tell_bad<W>(verb: Verb, done: Result<()>, at: *const W, bad: *mut *mut W) -> c_int {
    if done.is_ok() {
        return 0;
    }
    if !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad.write(at.cast_mut()) };
    }
    post_code(verb, done)
}

/// The part of a request that binds a window. In the program's request, window and region are
/// pointers.
pub fn bind_request(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> BindMwWr {
    let ibv_mw_bind_info { mr, addr, length, mw_access_flags } = *info;
    let bind_info = MwBindInfo { mr: mr as u64, addr, length, mw_access_flags };
    BindMwWr { mw: mw as u64, rkey, bind_info }
}

/// The operation behind `ibv_bind_mw`, for windows of type 1: posts a bind request with the
/// window's next rkey.
pub unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    Verb("ibv_bind_mw").code((|| {
        // SAFETY: the program's pointers; the inline verb has checked the window.
        let (q, w, b) = unsafe { (Qp::from_ptr(qp)?, object(mw.cast::<Mw>())?, object(bind)?) };
        // SAFETY: zeroes are a valid request.
        let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
        wr.wr_id = b.wr_id;
        wr.opcode = wr_opcode::BIND_MW;
        wr.send_flags = b.send_flags & (send_flags::SIGNALED | send_flags::FENCE);
        wr.ext.bind_mw = bind_request(mw, w.ibv.rkey.wrapping_add(1), &b.bind_info);
        let mut at: *const ibv_send_wr = &wr;
        // SAFETY: one request of our own, which names the program's objects.
        unsafe { post_translated::<dyn Device>(q, &wr, &mut at) }.map_err(|e| match e {
            Error::Again => refuse!(NoMemory, "max_send_wr: the send queue is full"),
            e => e,
        })
    })())
}
