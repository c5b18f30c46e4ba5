//! What each call of libibverbs tells, before and after it.

use super::program_objects::*;
use crate::abi::*;
use crate::buf_verbs::iova_of;
use crate::cq_verbs::Cq;
use crate::mr_verbs::CHANGE_TRANSLATION;
use crate::peek::peek;
use crate::qp_verbs::Qp;
use crate::srq_verbs::is_of_xrc;
use core::ffi::c_int;
use gdrcore_calls::{Args, Call};
use gdrcore_core::mem::host;
use gdrcore_core::verbs::types::{access, wr_opcode, AhAttr, QpAttr, QpCap};
use gdrcore_core::{copy_qp_attr, copy_qp_cap, refuse};
use gdrcore_strict::attributes::Ways;
use gdrcore_strict::posting::{Posting, Posts};
use gdrcore_strict::queues::QueueKey;
use gdrcore_strict::state::{Destruction, State};

/// What was seen before a call, for after it.
pub enum Seen {
    Nothing,
    /// The call is not made, and returns this.
    Refused(c_int),
    /// The call posts requests, and says at an address at which of them it failed.
    Posting(Posting, usize),
    /// The call destroys an object.
    Destruction(Destruction),
}

impl Seen {
    /// The arguments with which the call is made, by those of the program.
    pub fn args(&self, args: &Args) -> Args {
        let mut args = *args;
        if let Seen::Posting(posting, _) = self {
            if let Some(first) = posting.list() {
                args[1] = first as usize;
            }
        }
        args
    }
}

/// A post of a list, with the place where the call says which request was not posted.
fn seen(posts: Posts, list: usize, bad: usize) -> Seen {
    match posts {
        Posts::Unwatched => Seen::Nothing,
        Posts::Full => {
            let _ = host::place(bad as u64, &list.to_ne_bytes());
            Seen::Refused(libc::ENOMEM)
        }
        Posts::Kept(posting) => Seen::Posting(posting, bad),
    }
}

/// Before a call.
pub fn note_call(state: &mut State, call: &Call, args: &Args) -> Seen {
    let at = args[0];
    match call.name {
        "ibv_post_send" => {
            let Some((_, key)) = qp_of(at) else { return Seen::Nothing };
            return seen(state.sends(key, args[1]), args[1], args[2]);
        }
        "ibv_wr_complete" => return built(state, at),
        "ibv_bind_mw" => return bind(state, at, args[2]),
        "ibv_post_recv" => {
            let Some((_, key)) = qp_of(at) else { return Seen::Nothing };
            return seen(state.recvs(QueueKey::Recv(key), key.0, args[1]), args[1], args[2]);
        }
        "ibv_post_srq_recv" => {
            let (place, device) = (QueueKey::Shared(id(at)), device_of_srq(at));
            return seen(state.recvs(place, device, args[1]), args[1], args[2]);
        }
        "ibv_create_qp" => queue_sizes(state, peek::<ibv_qp_init_attr>(args[1])),
        "ibv_create_qp_ex" => {
            queue_sizes(state, peek::<ibv_qp_init_attr_ex>(args[1]).map(|i| i.plain()));
        }
        "ibv_rereg_mr" => {
            if let Some((key, _)) = mr_of(at) {
                state.region_ending(key, "registered anew");
            }
        }
        "ibv_get_cq_event" if at != 0 => state.waiting(id(at)),
        "ibv_fork_init" | "ibv_is_fork_initialized" => state.is_fork_ready = true,
        "_ibv_query_gid_ex" | "_ibv_query_gid_table" => state.ways.knows_gid_types = true,
        "rdma_init_qp_attr" => {
            state.ways = Ways { knows_gid_types: true, takes_from_kernel: true };
        }
        _ => {}
    }
    match ended_by(call, at) {
        Some((what, rkey)) => Seen::Destruction(state.ending(id(at), &what, rkey)),
        None => Seen::Nothing,
    }
}

/// The queue sizes of a QP that is to be made.
fn queue_sizes(state: &mut State, init: Option<ibv_qp_init_attr>) {
    let Some(init) = init else { return };
    let mut cap = QpCap::default();
    copy_qp_cap!(init.cap => cap);
    state.queue_sizes(init.qp_type, &cap);
}

/// `ibv_wr_complete`: all or nothing.
fn built(state: &mut State, qp: usize) -> Seen {
    let Some((_, key)) = qp_of(qp) else { return Seen::Nothing };
    // SAFETY: the program's QP, which this thread completes.
    let all = unsafe { Qp::built(qp as *mut Qp) }.to_vec();
    let (posts, is_full) = state.sends_whole(key, &all);
    if is_full {
        // SAFETY: as above.
        if let Some(batch) = unsafe { Qp::batch_of(qp as *mut Qp) } {
            batch.fail(refuse!(NoMemory, "max_send_wr: no slot is free until a poll"));
        }
    }
    seen(posts, 0, 0)
}

/// `ibv_bind_mw`: a request of the send queue.
fn bind(state: &mut State, qp: usize, bind: usize) -> Seen {
    let (Some((_, key)), Some(b)) = (qp_of(qp), peek::<ibv_mw_bind>(bind)) else {
        return Seen::Nothing;
    };
    // SAFETY: zeroes are a value of each field.
    let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (b.wr_id, wr_opcode::BIND_MW, b.send_flags);
    match state.sends_whole(key, &[wr]) {
        (_, true) => Seen::Refused(libc::ENOMEM),
        (posts, false) => seen(posts, 0, 0),
    }
}

/// After a call. Returns an errno in place of its result, if the list that it posted was cut.
pub fn note_result(
    state: &mut State,
    call: &Call,
    args: &Args,
    seen: Seen,
    (result, errno): (usize, c_int),
) -> Option<c_int> {
    let error = call.outcome.error(result, errno);
    match seen {
        Seen::Posting(posting, bad) => {
            let failed_at = error.map(|_| peek::<usize>(bad).unwrap_or(0));
            let first_left = state.posted(&posting, failed_at)?;
            let _ = host::place(bad as u64, &first_left.to_ne_bytes());
            return error.is_none().then_some(libc::ENOMEM);
        }
        Seen::Destruction(ending) => {
            state.ended(id(args[0]), ending, error.is_some());
            return None;
        }
        Seen::Nothing | Seen::Refused(_) => {}
    }
    match call.name {
        "ibv_poll_cq" => {
            let n = usize::try_from(result as i32).unwrap_or(0);
            state.polled(id(args[0]));
            for i in 0..n {
                // SAFETY: the program's array, to which the call has stored completions.
                let wc = unsafe { &mut *(args[2] as *mut ibv_wc).add(i) };
                completion(state, args[0], wc);
            }
        }
        "ibv_start_poll" | "ibv_next_poll" => {
            state.polled(id(args[0]));
            if error.is_none() {
                // SAFETY: the program's CQ, of which this thread has taken a completion.
                let wc = unsafe { &mut (*(args[0] as *mut Cq)).current };
                completion(state, args[0], wc);
            }
        }
        _ if error.is_some() => return None,
        "ibv_req_notify_cq" => state.armed(id(args[0]), args[1] as c_int != 0),
        "ibv_resize_cq" => state.resized_cq(id(args[0]), room_of_cq(args[0])),
        "ibv_modify_qp" => modified(state, args),
        "ibv_rereg_mr" => {
            let (key, mr) = mr_of(args[0])?;
            state.key_begins((key.0, mr.rkey));
            if args[1] as c_int & CHANGE_TRANSLATION != 0 {
                state.made_region(key, Some(region_of(&mr, mr.addr as u64)));
            }
        }
        _ => made(state, call, args, result),
    }
    None
}

/// The program takes a completion.
fn completion(state: &mut State, cq: usize, wc: &mut ibv_wc) {
    if let Some(device) = device_of_cq(cq) {
        state.completion(device, id(cq), wc);
    }
}

/// A QP has other attributes.
fn modified(state: &mut State, args: &Args) {
    let Some((_, key)) = qp_of(args[0]) else { return };
    let (Some(a), m) = (peek::<ibv_qp_attr>(args[1]), args[2] as u32) else { return };
    let grh = &a.ah_attr.grh;
    let ah = AhAttr { dgid: grh.dgid.raw, ..AhAttr::default() };
    let mut attr = QpAttr { ah, ..QpAttr::default() };
    copy_qp_attr!(a => attr);
    state.modified(key, &attr, Some(grh.sgid_index), m);
}

/// A call has made an object.
fn made(state: &mut State, call: &Call, args: &Args, result: usize) {
    let Some(kind) = made_by(call) else { return };
    state.made(id(result), words(kind, result), rkey_of(kind, result));
    if call.name.starts_with("ibv_create_qp") {
        if let Some((q, key)) = qp_of(result) {
            state.made_qp(key, queues_of(q));
        }
    }
    if call.name.starts_with("ibv_create_cq") {
        state.made_cq(id(result), room_of_cq(result), channel_of_cq(result));
    }
    let is_xrc = call.name == "ibv_create_srq_ex"
        && peek::<ibv_srq_init_attr_ex>(args[1]).is_some_and(|init| is_of_xrc(&init));
    if call.name.starts_with("ibv_create_srq") && !is_xrc {
        state.made_srq(id(result));
    }
    let iova = match call.name {
        "ibv_reg_mr" if args[3] as u32 & access::ZERO_BASED != 0 => Some(0),
        "ibv_reg_mr" => Some(args[1] as u64),
        "ibv_reg_mr_iova" | "ibv_reg_mr_iova2" => Some(args[3] as u64),
        "ibv_reg_mr_ex" => iova_of(args[1]),
        _ => None,
    };
    if let (Some(iova), Some((key, mr))) = (iova, mr_of(result)) {
        state.made_region(key, Some(region_of(&mr, iova)));
    }
}
