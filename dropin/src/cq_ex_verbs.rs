//! Verbs of extended completion queues, whose completions are read field by field.
//!
//! Between `ibv_start_poll` and `ibv_end_poll` a thread has exclusive use of the CQ. A timestamp is
//! the time at which the poll took the completion: the polling program runs the engine, so the
//! device records no earlier time. Its clock is that of `ibv_query_rt_values_ex` (nanoseconds of
//! CLOCK_MONOTONIC) or the wall clock.

use crate::abi::*;
use crate::cq_verbs::{Cq, CqInit};
use crate::failed_requests;
use crate::hca_kinds::Called;
use crate::layer;
use crate::open_context::Context;
use crate::pd_verbs::Pd;
use crate::verb_result::{object, Verb};
use crate::weak;
use core::ffi::{c_int, c_uint};
use gdrcore_core::device::Device;
use gdrcore_core::{refuse, Result};
use gdrcore_net::clock::now_ns;
use gdrcore_net::soft::SoftDevice;

/// The `ibv_create_cq_wc_flags` that the device accepts. Its packets have no VLAN tag, and no rule
/// steers flows, so those two fields are 0, as on a NIC without them.
const WC_FLAGS: u64 = 0x7f | COMPLETION_TIMESTAMP | CVLAN | FLOW_TAG | WALLCLOCK;
const COMPLETION_TIMESTAMP: u64 = 1 << 7;
const CVLAN: u64 = 1 << 8;
const FLOW_TAG: u64 = 1 << 9;
const WALLCLOCK: u64 = 1 << 11;
/// `ibv_cq_init_attr_mask`.
const MASK_FLAGS: u32 = 1;
const MASK_PD: u32 = 2;
/// `ibv_create_cq_attr_flags`: no lock; ignore overruns, which never happen here.
const SINGLE_THREADED: u32 = 1;
const IGNORE_OVERRUN: u32 = 2;

/// The operation behind `ibv_create_cq_ex`.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the program's pointers.
    Verb("ibv_create_cq_ex").pointer(unsafe { create(context, init) })
}

/// An extended CQ.
///
/// # Errors
/// [`Error::Unsupported`](gdrcore_core::Error::Unsupported): a flag; those of [`Cq::make`].
///
/// # Safety
/// The program's pointers.
pub unsafe fn create(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex> {
    // SAFETY: the caller's promise.
    let (_, i) = unsafe { (Context::from_ptr(context)?, object(init)?) };
    let flags = if i.comp_mask & MASK_FLAGS != 0 { i.flags } else { 0 };
    if i.comp_mask & !(MASK_FLAGS | MASK_PD) != 0
        || i.wc_flags & !WC_FLAGS != 0
        || flags & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0
    {
        let (comp, wc) = (i.comp_mask, i.wc_flags);
        return Err(refuse!(
            Unsupported,
            "comp_mask {comp:#x}, wc_flags {wc:#x}, flags {flags:#x}: \
             the device knows {:#x}, {WC_FLAGS:#x}, {:#x}",
            MASK_FLAGS | MASK_PD,
            SINGLE_THREADED | IGNORE_OVERRUN
        ));
    }
    let domain = match i.comp_mask & MASK_PD {
        0 => None,
        // SAFETY: the caller's promise.
        _ => unsafe { Pd::from_ptr(i.parent_domain)? }.thread_domain(),
    };
    let plain = CqInit {
        cqe: i.cqe,
        cq_context: i.cq_context,
        channel: i.channel,
        comp_vector: i.comp_vector,
        domain,
    };
    // SAFETY: the caller's promise.
    let mut cq = unsafe { Cq::make(context, &plain)? };
    cq.single_threaded = flags & SINGLE_THREADED != 0;
    let ex = &mut cq.ex;
    let polls = match cq.hca.soft() {
        Some(_) => polls::<SoftDevice>(),
        None => polls::<dyn Device>(),
    };
    (ex.start_poll, ex.next_poll) = (Some(polls.0), Some(polls.1));
    ex.end_poll = Some(end_poll);
    set_readers(ex);
    layer::wrap_cq(ex);
    cq.stamps = i.wc_flags & (COMPLETION_TIMESTAMP | WALLCLOCK) != 0;
    let cq = Box::into_raw(Box::new(cq));
    Cq::publish(cq);
    Ok(cq.cast())
}

/// The polls of a device's kind.
fn polls<D: Called + ?Sized>() -> (StartPoll, NextPoll) {
    match (weak::shortens_polls(), failed_requests::are_wanted()) {
        (false, false) => (start_poll::<D, false, false>, next_poll::<D, false, false>),
        (false, true) => (start_poll::<D, false, true>, next_poll::<D, false, true>),
        (true, false) => (start_poll::<D, true, false>, next_poll::<D, true, false>),
        (true, true) => (start_poll::<D, true, true>, next_poll::<D, true, true>),
    }
}

type StartPoll = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
type NextPoll = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;

/// Takes the next completion. Returns 0, ENOENT if there is none, or an errno. `VERBOSE`: prints
/// why a request failed. `SHORT`: polls are shortened, so completions are counted.
///
/// # Safety
/// A live CQ that this thread has locked, on a device of kind `D`.
unsafe fn advance<D: Called + ?Sized, const SHORT: bool, const VERBOSE: bool>(
    p: *mut ibv_cq_ex,
) -> c_int {
    // SAFETY: the caller's promise; nobody else touches what is written here.
    let cq = unsafe { &mut *p.cast::<Cq>() };
    let mut wc = [ibv_wc::default()];
    // SAFETY: the caller's promise.
    match unsafe { cq.poll::<D>(&mut wc) } {
        Ok(0) => libc::ENOENT,
        Ok(_) => {
            if VERBOSE {
                failed_requests::explain(cq.hca, &wc);
            }
            if SHORT {
                cq.count_polled(1);
            }
            let [wc] = wc;
            cq.ex.wr_id = wc.wr_id;
            cq.ex.status = wc.status;
            cq.current = wc;
            if cq.stamps {
                cq.stamp_ns = now_ns();
            }
            0
        }
        Err(e) => e.errno(),
    }
}

unsafe extern "C" fn start_poll<D: Called + ?Sized, const SHORT: bool, const VERBOSE: bool>(
    cq: *mut ibv_cq_ex,
    attr: *mut ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: the program's pointers.
    let c = unsafe { &*cq.cast::<Cq>() };
    // SAFETY: as above.
    if unsafe { attr.as_ref() }.is_some_and(|a| a.comp_mask != 0) {
        return libc::EINVAL;
    }
    if !c.single_threaded {
        c.lock.lock();
    }
    // SAFETY: this thread has the turn, or the program said that there is no other.
    let rc = unsafe { advance::<D, SHORT, VERBOSE>(cq) };
    if rc != 0 && !c.single_threaded {
        // After an error the program does not call ibv_end_poll.
        c.lock.unlock();
    }
    rc
}

unsafe extern "C" fn next_poll<D: Called + ?Sized, const SHORT: bool, const VERBOSE: bool>(
    cq: *mut ibv_cq_ex,
) -> c_int {
    // SAFETY: the program's CQ.
    if SHORT && unsafe { &*cq.cast::<Cq>() }.ends_here() {
        return libc::ENOENT;
    }
    // SAFETY: between start and end this thread has the turn.
    unsafe { advance::<D, SHORT, VERBOSE>(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program's CQ.
    let c = unsafe { &*cq.cast::<Cq>() };
    if !c.single_threaded {
        c.lock.unlock();
    }
}

macro_rules! readers {
    ($($name:ident -> $t:ty = |$cq:ident| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $t {
            // SAFETY: the program calls it between start and end, in the thread that has the CQ.
            let $cq = unsafe { &*cq.cast::<Cq>() };
            $value
        })*

        /// The functions that read the current completion.
        fn set_readers(ex: &mut ibv_cq_ex) {
            $(ex.$name = Some($name);)*
        }
    };
}

readers! {
    read_opcode -> u32 = |cq| cq.current.opcode;
    read_vendor_err -> u32 = |cq| cq.current.vendor_err;
    read_byte_len -> u32 = |cq| cq.current.byte_len;
    read_imm_data -> u32 = |cq| cq.current.imm_data;
    read_qp_num -> u32 = |cq| cq.current.qp_num;
    read_src_qp -> u32 = |cq| cq.current.src_qp;
    read_wc_flags -> c_uint = |cq| cq.current.wc_flags;
    read_slid -> u32 = |cq| cq.current.slid.into();
    read_sl -> u8 = |cq| cq.current.sl;
    read_dlid_path_bits -> u8 = |cq| cq.current.dlid_path_bits;
    read_cvlan -> u16 = |_cq| 0;
    read_flow_tag -> u32 = |_cq| 0;
    read_completion_ts -> u64 = |cq| cq.stamp_ns;
    read_completion_wallclock_ns -> u64 = |cq| wall_clock(cq.stamp_ns);
}

/// Converts a time of CLOCK_MONOTONIC to the wall clock.
fn wall_clock(stamp_ns: u64) -> u64 {
    let wall = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64);
    wall.saturating_sub(now_ns().saturating_sub(stamp_ns))
}
