//! Prints arguments and results, by their kinds.

use super::names::{number_of, object, Flags, Named};
use super::words::{put, Hex, Put, Words};
use super::{commands, requests};
use crate::abi::*;
use crate::peek::{peek, text};
use crate::verb_result::errno_name;
use core::mem::offset_of;
use gdrcore_calls::{Arg, Args, Outcome};
use gdrcore_core::verbs::types::{access, mtu, qp_attr_mask, qp_state, qp_type};
use gdrcore_net::reason;

/// `ibv_event_type` without its prefix.
fn event_name(event: u32) -> &'static str {
    const NAMES: [&str; 20] = [
        "CQ_ERR",
        "QP_FATAL",
        "QP_REQ_ERR",
        "QP_ACCESS_ERR",
        "COMM_EST",
        "SQ_DRAINED",
        "PATH_MIG",
        "PATH_MIG_ERR",
        "DEVICE_FATAL",
        "PORT_ACTIVE",
        "PORT_ERR",
        "LID_CHANGE",
        "PKEY_CHANGE",
        "SM_CHANGE",
        "SRQ_ERR",
        "SRQ_LIMIT_REACHED",
        "QP_LAST_WQE_REACHED",
        "CLIENT_REREGISTER",
        "GID_CHANGE",
        "WQ_FATAL",
    ];
    NAMES.get(event as usize).unwrap_or(&"?")
}

/// The name of a device, or of a context's device.
fn device(w: &mut Words<'_>, kind: Arg, at: usize) {
    let device = match kind {
        Arg::Context => peek::<usize>(at).unwrap_or(0),
        _ => at,
    };
    let mut buffer = [0; 64];
    let name = device.wrapping_add(offset_of!(ibv_device, name));
    match (at, text(name, &mut buffer).filter(|_| device != 0)) {
        (0, _) => put!(w, "NULL"),
        (_, Some(name)) => put!(w, name),
        (_, None) => put!(w, Hex(at)),
    }
}

/// Prints the struct at an address with `print`, or the address itself if it cannot be read.
fn show<T: crate::peek::Bits>(w: &mut Words<'_>, at: usize, print: impl FnOnce(&mut Words<'_>, T)) {
    match peek::<T>(at) {
        Some(value) => print(w, value),
        None if at == 0 => put!(w, "NULL"),
        None => put!(w, Hex(at)),
    }
}

/// Whether an argument is written by the call, and so printed after it.
pub fn is_written(kind: Arg) -> bool {
    matches!(
        kind,
        Arg::OutInt
            | Arg::OutU16
            | Arg::OutU32
            | Arg::OutU64
            | Arg::OutCq
            | Arg::OutGid
            | Arg::OutEvent
            | Arg::OutPort
            | Arg::OutDeviceAttr
            | Arg::OutQpAttr
            | Arg::OutSrqAttr
            | Arg::OutAhAttr
            | Arg::OutCompletions
    )
}

/// An argument. `result`: that of the call, if it has been made.
pub fn argument(w: &mut Words<'_>, kind: Arg, (args, i): (&Args, usize), result: Option<usize>) {
    let v = args[i];
    match kind {
        Arg::Int => put!(w, v as i32),
        Arg::U8 => put!(w, v as u8),
        Arg::U16 => put!(w, v as u16),
        Arg::U32 => put!(w, v as u32),
        Arg::Size => put!(w, v),
        Arg::Hex32 => put!(w, Hex(v as u32)),
        Arg::Hex64 => put!(w, Hex(v)),
        Arg::Address if v == 0 => put!(w, "NULL"),
        Arg::Address => put!(w, Hex(v)),
        Arg::Text => {
            let mut buffer = [0; 128];
            match text(v, &mut buffer) {
                Some(text) => put!(w, format_args!("{text:?}")),
                None => put!(w, Hex(v)),
            }
        }
        Arg::Device | Arg::Context => device(w, kind, v),
        Arg::Channel => match peek::<i32>(v.wrapping_add(offset_of!(ibv_comp_channel, fd))) {
            Some(fd) if v != 0 => put!(w, "fd ", fd),
            _ if v == 0 => put!(w, "NULL"),
            _ => put!(w, Hex(v)),
        },
        Arg::Access => put!(w, Flags(v as u32, "IBV_ACCESS_", access::name)),
        Arg::QpMask => put!(w, Flags(v as u32, "IBV_QP_", qp_attr_mask::name)),
        Arg::QpState => put!(w, Named(v as u32, "IBV_QPS_", qp_state::name)),
        Arg::Sends => requests::sends(w, v, requests::is_datagram(args[0])),
        Arg::Recvs => requests::recvs(w, v),
        Arg::Sges => requests::sges(w, v, args[4] as u32),
        Arg::OutCompletions => requests::completions(w, args[0], v, result.unwrap_or(0)),
        Arg::Command => commands::command(w, v, args[2]),
        _ if number_of(kind).is_some() => object(w, kind, v),
        _ if is_written(kind) => written(w, kind, v),
        _ => attributes(w, kind, v, args),
    }
}

/// What a successful call has written.
fn written(w: &mut Words<'_>, kind: Arg, at: usize) {
    match kind {
        Arg::OutInt => show(w, at, |w, n: i32| put!(w, n)),
        Arg::OutU16 => show(w, at, |w, n: u16| put!(w, Hex(n))),
        Arg::OutU32 => show(w, at, |w, n: u32| put!(w, n)),
        Arg::OutU64 => show(w, at, |w, n: u64| put!(w, n)),
        Arg::OutCq => show(w, at, |w, cq: usize| object(w, Arg::Cq, cq)),
        Arg::OutGid => show(w, at, |w, gid: [u8; 16]| put!(w, gid)),
        Arg::OutEvent => show(w, at, event),
        Arg::OutPort => show(w, at, |w, p: ibv_port_attr| {
            let (state, lid) = (p.state, p.lid);
            let mtu = Named(p.active_mtu, "IBV_", mtu::name);
            put!(w, "{state=", state, ", active_mtu=", mtu, ", lid=", lid, "}")
        }),
        Arg::OutDeviceAttr => {
            show(w, at.wrapping_add(offset_of!(ibv_device_attr, limits)), |w, d: DeviceLimits| {
                let (qp, wr, cq, cqe) = (d.max_qp, d.max_qp_wr, d.max_cq, d.max_cqe);
                put!(w, "{max_qp=", qp, ", max_qp_wr=", wr, ", max_cq=", cq, ", max_cqe=", cqe, "}")
            })
        }
        Arg::OutQpAttr => show(w, at, |w, a: ibv_qp_attr| {
            let (state, qpn) = (Named(a.qp_state, "IBV_QPS_", qp_state::name), a.dest_qp_num);
            put!(w, "{qp_state=", state, ", dest_qp_num=", Hex(qpn), "}")
        }),
        Arg::OutSrqAttr => show(w, at, srq_attr),
        _ => show(w, at, ah_attr),
    }
}

fn event(w: &mut Words<'_>, e: ibv_async_event) {
    put!(w, "{", Named(e.event_type, "IBV_EVENT_", event_name));
    // SAFETY: any member of the union may be read as bits.
    let element = unsafe { e.element.cq } as usize;
    let (name, kind) = match e.event_type {
        0 => ("cq", Arg::Cq),
        1..=7 | 16 => ("qp", Arg::Qp),
        14 | 15 => ("srq", Arg::Srq),
        _ => return put!(w, "}"),
    };
    put!(w, ", ", name, "=");
    object(w, kind, element);
    put!(w, "}")
}

fn srq_attr(w: &mut Words<'_>, a: ibv_srq_attr) {
    put!(w, "{max_wr=", a.max_wr, ", max_sge=", a.max_sge, ", srq_limit=", a.srq_limit, "}")
}

fn ah_attr(w: &mut Words<'_>, a: ibv_ah_attr) {
    put!(w, "{dlid=", a.dlid, ", port_num=", a.port_num);
    if a.is_global != 0 {
        put!(w, ", dgid=", a.grh.dgid.raw, ", sgid_index=", a.grh.sgid_index);
        put!(w, ", hop_limit=", a.grh.hop_limit);
    }
    put!(w, "}")
}

fn cap(w: &mut Words<'_>, c: ibv_qp_cap) {
    let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = c;
    put!(w, "{max_send_wr=", max_send_wr, ", max_recv_wr=", max_recv_wr, ", ");
    put!(w, "max_send_sge=", max_send_sge, ", max_recv_sge=", max_recv_sge, ", ");
    put!(w, "max_inline_data=", max_inline_data, "}")
}

/// Structs that the call reads.
fn attributes(w: &mut Words<'_>, kind: Arg, at: usize, args: &Args) {
    match kind {
        Arg::Gid => show(w, at, |w, gid: [u8; 16]| put!(w, gid)),
        Arg::AhAttr => show(w, at, ah_attr),
        Arg::SrqAttr => show(w, at, srq_attr),
        Arg::SrqInit => show(w, at, |w, i: ibv_srq_init_attr| srq_attr(w, i.attr)),
        Arg::SrqInitEx => show(w, at, |w, i: ibv_srq_init_attr_ex| {
            put!(w, "{comp_mask=", Hex(i.comp_mask), ", srq_type=", i.srq_type, ", attr=");
            srq_attr(w, i.attr);
            put!(w, "}")
        }),
        Arg::CqInitEx => show(w, at, |w, i: ibv_cq_init_attr_ex| {
            put!(w, "{cqe=", i.cqe, ", comp_vector=", i.comp_vector, ", ");
            put!(w, "wc_flags=", Hex(i.wc_flags), ", comp_mask=", Hex(i.comp_mask), "}")
        }),
        Arg::QpInit => show(w, at, qp_init),
        Arg::QpInitEx => show(w, at, |w, i: ibv_qp_init_attr_ex| {
            put!(
                w,
                "{comp_mask=",
                Hex(i.comp_mask),
                ", send_ops_flags=",
                Hex(i.send_ops_flags),
                ", "
            );
            qp_init(w, i.plain());
            put!(w, "}")
        }),
        Arg::QpAttr => show(w, at, |w, a: ibv_qp_attr| qp_attr(w, &a, args[2] as u32)),
        Arg::Bind => show(w, at, |w, b: ibv_mw_bind| {
            put!(w, "{wr_id=", b.wr_id, ", bind_info=");
            requests::bind_info(w, &b.bind_info);
            put!(w, "}")
        }),
        Arg::BindInfo => show(w, at, |w, b: ibv_mw_bind_info| requests::bind_info(w, &b)),
        _ => put!(w, Hex(at)),
    }
}

fn qp_init(w: &mut Words<'_>, i: ibv_qp_init_attr) {
    put!(w, "{qp_type=", Named(i.qp_type, "IBV_QPT_", qp_type::name), ", send_cq=");
    object(w, Arg::Cq, i.send_cq as usize);
    put!(w, ", recv_cq=");
    object(w, Arg::Cq, i.recv_cq as usize);
    put!(w, ", srq=");
    object(w, Arg::Srq, i.srq as usize);
    put!(w, ", cap=");
    cap(w, i.cap);
    put!(w, ", sq_sig_all=", i.sq_sig_all, "}")
}

/// The attributes that a mask names.
fn qp_attr(w: &mut Words<'_>, a: &ibv_qp_attr, named: u32) {
    use qp_attr_mask as mask;
    let state = |s| Named(s, "IBV_QPS_", qp_state::name);
    let (now, to) = (state(a.cur_qp_state), state(a.qp_state));
    let path_mtu = Named(a.path_mtu, "IBV_", mtu::name);
    let access = Flags(a.qp_access_flags, "IBV_ACCESS_", access::name);
    let fields: [(u32, &str, &dyn Put); 18] = [
        (mask::STATE, "qp_state", &to),
        (mask::CUR_STATE, "cur_qp_state", &now),
        (mask::PKEY_INDEX, "pkey_index", &a.pkey_index),
        (mask::PORT, "port_num", &a.port_num),
        (mask::ACCESS_FLAGS, "qp_access_flags", &access),
        (mask::QKEY, "qkey", &a.qkey),
        (mask::PATH_MTU, "path_mtu", &path_mtu),
        (mask::DEST_QPN, "dest_qp_num", &Hex(a.dest_qp_num)),
        (mask::RQ_PSN, "rq_psn", &a.rq_psn),
        (mask::SQ_PSN, "sq_psn", &a.sq_psn),
        (mask::MAX_QP_RD_ATOMIC, "max_rd_atomic", &a.max_rd_atomic),
        (mask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", &a.max_dest_rd_atomic),
        (mask::MIN_RNR_TIMER, "min_rnr_timer", &a.min_rnr_timer),
        (mask::TIMEOUT, "timeout", &a.timeout),
        (mask::RETRY_CNT, "retry_cnt", &a.retry_cnt),
        (mask::RNR_RETRY, "rnr_retry", &a.rnr_retry),
        (mask::EN_SQD_ASYNC_NOTIFY, "en_sqd_async_notify", &a.en_sqd_async_notify),
        (mask::RATE_LIMIT, "rate_limit", &a.rate_limit),
    ];
    let mut between = "{";
    for (_, name, value) in fields.iter().filter(|(bit, ..)| named & bit != 0) {
        put!(w, between, name, "=", value);
        between = ", ";
    }
    if named & mask::AV != 0 {
        put!(w, between, "ah_attr=");
        ah_attr(w, a.ah_attr);
        between = ", ";
    }
    if named & mask::CAP != 0 {
        put!(w, between, "cap=");
        cap(w, a.cap);
        between = ", ";
    }
    put!(w, if between == "{" { "{}" } else { "}" })
}

/// ` = ` and the result, of an error with its reason if the call has recorded one.
pub fn result(w: &mut Words<'_>, outcome: Outcome, v: usize, (errno, has_reason): (i32, bool)) {
    if outcome == Outcome::Void {
        return;
    }
    put!(w, " = ");
    if let Some(error) = outcome.error(v, errno) {
        match outcome {
            Outcome::New(_) => put!(w, "NULL "),
            Outcome::Number => put!(w, "-1 "),
            _ => {}
        }
        put!(w, &errno_name(error));
        if has_reason {
            reason::with_text(|why| put!(w, " (", why, ")"));
        }
        return;
    }
    match outcome {
        Outcome::New(kind) => new(w, kind, v),
        Outcome::Plain(kind) => argument(w, kind, (&[v, 0, 0, 0, 0, 0], 0), None),
        _ => put!(w, v as i32),
    }
}

/// A new object, with the numbers by which other calls and the peer know it.
fn new(w: &mut Words<'_>, kind: Arg, at: usize) {
    if kind == Arg::Qp {
        put!(w, "qp ");
    }
    argument(w, kind, (&[at, 0, 0, 0, 0, 0], 0), None);
    match kind {
        Arg::Mr => {
            let key = |offset| peek::<u32>(at + offset).unwrap_or(0);
            let (lkey, rkey) = (key(offset_of!(ibv_mr, lkey)), key(offset_of!(ibv_mr, rkey)));
            put!(w, " lkey=", Hex(lkey), " rkey=", Hex(rkey))
        }
        Arg::Mw => show(w, at + offset_of!(ibv_mw, rkey), |w, k: u32| put!(w, " rkey=", Hex(k))),
        Arg::Cq => show(w, at + offset_of!(ibv_cq, cqe), |w, n: i32| put!(w, " cqe=", n)),
        _ => {}
    }
}
