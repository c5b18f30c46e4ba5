//! The program's objects behind its pointers, in the terms of [`gdrcore_strict`].

use crate::abi::*;
use crate::cq_verbs::Cq;
use crate::hca::{EventTarget, Hca};
use crate::open_context::Context;
use crate::peek::peek;
use crate::qp_verbs::Qp;
use crate::srq_verbs::Srq;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use gdrcore_calls::{Arg, Call, Outcome};
use gdrcore_strict::memory::{mr_words, MrKey, MrRange};
use gdrcore_strict::objects::Rkey;
use gdrcore_strict::queues::{QpKey, Queues};
use gdrcore_strict::state::ObjectKind;
use gdrcore_strict::Id;

/// An object, by its address.
pub fn id(at: usize) -> Id {
    (0, at as u64)
}

/// The device of an object of ours.
fn device_of(hca: &'static Hca) -> usize {
    hca as *const Hca as usize
}

/// The device of a context.
fn device_of_context(context: *mut ibv_context) -> Option<usize> {
    // SAFETY: the program's context, whose object the call has used.
    unsafe { Context::from_ptr(context) }.ok().map(|c| device_of(c.hca))
}

/// The queue pair of a pointer of the program, and its key.
pub fn qp_of<'a>(at: usize) -> Option<(&'a Qp, QpKey)> {
    // SAFETY: null, or the program's queue pair, which lives during the call.
    let q = unsafe { Qp::from_ptr(at as *const ibv_qp) }.ok()?;
    Some((q, (device_of(q.hca), q.number)))
}

/// A new queue pair.
pub fn queues_of(q: &Qp) -> Queues {
    let base = &q.ex.qp_base;
    let cqs = [base.send_cq, base.recv_cq].map(|cq| id(cq as usize));
    let mut queues = Queues::new(q.kind, cqs, q.cap.max_send_wr as usize);
    queues.srq = (!base.srq.is_null()).then(|| id(base.srq as usize));
    queues.signals_all = q.snapshot().sq_sig_all;
    queues.own = q.hca.attr.gid;
    queues
}

/// The device of a CQ.
pub fn device_of_cq(at: usize) -> Option<usize> {
    // SAFETY: the program's CQ, which it has just polled.
    unsafe { Cq::from_ptr(at as *const ibv_cq) }.ok().map(|cq| device_of(cq.hca))
}

/// The device of an SRQ.
pub fn device_of_srq(at: usize) -> usize {
    let context = peek::<usize>(at.wrapping_add(offset_of!(ibv_srq, context)));
    context.and_then(|c| device_of_context(c as *mut ibv_context)).unwrap_or(0)
}

/// Entries of a CQ.
pub fn room_of_cq(at: usize) -> usize {
    let cqe = peek::<i32>(at.wrapping_add(offset_of!(ibv_cq, cqe)));
    cqe.and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

/// The channel of a CQ, by its address.
pub fn channel_of_cq(at: usize) -> Id {
    id(peek::<usize>(at.wrapping_add(offset_of!(ibv_cq, channel))).unwrap_or(0))
}

/// The key of a region's memory, and the region as the program sees it.
pub fn mr_of(at: usize) -> Option<(MrKey, ibv_mr)> {
    // SAFETY: null, or the program's region, which lives during the call.
    let mr = unsafe { (at as *const ibv_mr).as_ref() }?;
    Some(((device_of_context(mr.context)?, mr.lkey), *mr))
}

/// A region, whose first byte has this address in requests.
pub fn region_of(mr: &ibv_mr, iova: u64) -> MrRange {
    MrRange::new(mr.addr as u64, mr.length as u64, iova)
}

/// The remote key of a region or window, and its device.
pub fn rkey_of(kind: Arg, at: usize) -> Option<Rkey> {
    match kind {
        Arg::Mr => mr_of(at).map(|((device, _), mr)| (device, mr.rkey)),
        Arg::Mw => {
            // SAFETY: null, or the program's window, which lives during the call.
            let mw = unsafe { (at as *const ibv_mw).as_ref() }?;
            Some((device_of_context(mw.context)?, mw.rkey))
        }
        _ => None,
    }
}

/// The object that a call makes. Contexts and channels are not watched: they are descriptors, which
/// end with the process. Nor is what is another object under a second name.
pub fn made_by(call: &Call) -> Option<Arg> {
    let is_alias = call.name.contains("import") || call.name == "ibv_qp_to_qp_ex";
    match call.outcome {
        Outcome::New(
            kind @ (Arg::Pd | Arg::Mr | Arg::Mw | Arg::Ah | Arg::Cq | Arg::Srq | Arg::Qp | Arg::Dm),
        ) if !is_alias => Some(kind),
        _ => None,
    }
}

/// The object that a call destroys: its first argument, and the key that ends with it.
pub fn ended_by(call: &Call, at: usize) -> Option<(ObjectKind, Option<Rkey>)> {
    let of = |what| Some((what, None));
    match call.name {
        "ibv_destroy_qp" => of(qp_of(at).map_or(ObjectKind::Other, |(_, key)| ObjectKind::Qp(key))),
        "ibv_destroy_cq" => of(ObjectKind::Cq),
        "ibv_destroy_srq" => of(ObjectKind::Srq),
        "ibv_destroy_ah" => of(ObjectKind::Ah),
        "ibv_dereg_mr" => {
            let what = mr_of(at).map_or(ObjectKind::Other, |(key, _)| ObjectKind::Mr(key));
            Some((what, rkey_of(Arg::Mr, at)))
        }
        "ibv_dealloc_mw" => Some((ObjectKind::Other, rkey_of(Arg::Mw, at))),
        "ibv_dealloc_pd" | "ibv_free_dm" => of(ObjectKind::Other),
        _ => None,
    }
}

/// What an object is called in reports.
pub fn words(kind: Arg, at: usize) -> String {
    let field = |offset| peek::<u32>(at + offset).unwrap_or(0);
    match kind {
        Arg::Qp => format!("QP {:#x}", field(offset_of!(ibv_qp, qp_num))),
        Arg::Mr => {
            let [addr, len] = [offset_of!(ibv_mr, addr), offset_of!(ibv_mr, length)]
                .map(|offset| peek::<u64>(at + offset).unwrap_or(0));
            mr_words(addr, len)
        }
        Arg::Pd => "PD".into(),
        Arg::Mw => "MW".into(),
        Arg::Ah => "AH".into(),
        Arg::Srq => "SRQ".into(),
        Arg::Dm => "DM".into(),
        _ => format!("CQ of {} entries", room_of_cq(at)),
    }
}

/// The number of events of an object, which a call is about to end, that were taken and not
/// acknowledged.
pub fn missing_acks(call: &Call, at: usize) -> Option<(&'static str, u32)> {
    // SAFETY: null, or the program's objects, which live until the call.
    let (what, n) = unsafe {
        match call.name {
            "ibv_destroy_cq" => {
                let cq = Cq::from_ptr(at as *const ibv_cq).ok()?;
                // One in use is not destroyed.
                let is_free = cq.users.load(Ordering::Relaxed) == 0;
                ("CQ", if is_free { cq.unacknowledged() } else { 0 })
            }
            "ibv_destroy_qp" => {
                let q = Qp::from_ptr(at as *const ibv_qp).ok()?;
                ("QP", q.acks().missing(0, q.async_taken().load(Ordering::Relaxed)))
            }
            "ibv_destroy_srq" => {
                let srq = Srq::from_ptr(at as *const ibv_srq).ok()?;
                ("SRQ", srq.acks().missing(0, srq.async_taken().load(Ordering::Relaxed)))
            }
            _ => return None,
        }
    };
    (n > 0).then_some((what, n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_calls::{Row, CALLS};

    #[test]
    fn each_object_that_is_watched_has_a_call_that_ends_it() {
        let names = |f: &dyn Fn(&Call) -> bool| -> Vec<&str> {
            CALLS.iter().filter(|c| f(c)).map(|c| c.name).collect()
        };
        assert_eq!(names(&|c| ended_by(c, 0).is_some()).len(), 8);
        assert!(names(&|c| made_by(c).is_some()).contains(&"ibv_reg_dmabuf_mr"));
        assert_eq!(made_by(Row::ibv_import_mr.call()), None);
        assert_eq!(made_by(Row::ibv_open_device.call()), None);
    }
}
