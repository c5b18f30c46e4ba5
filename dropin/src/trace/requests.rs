//! Prints work requests and completions.

use super::names::{number, object, Flags, Named};
use super::words::{put, Hex, Put, Words};
use crate::abi::*;
use crate::cq_verbs::Cq;
use crate::failed_requests;
use crate::peek::{list, peek};
use crate::qp_verbs::Qp;
use core::mem::offset_of;
use gdrcore_calls::{Arg, Object};
use gdrcore_core::verbs::types::{
    access, qp_type, send_flags, wc_flags, wc_opcode, wc_status, wr_opcode,
};

/// Most pieces of a request that are printed.
const PIECES_MAX: usize = 4;

/// Whether the QP at an address sends datagrams, whose requests name their destination.
pub fn is_datagram(qp: usize) -> bool {
    peek::<u32>(qp.wrapping_add(offset_of!(ibv_qp, qp_type))) == Some(qp_type::UD)
}

/// The requests that `ibv_wr_` calls have built on a QP.
///
/// # Safety
/// As for [`Qp::built`].
pub unsafe fn batch_list(qp: usize) -> impl Iterator<Item = ibv_send_wr> {
    // SAFETY: the caller's promise.
    unsafe { Qp::built(qp as *mut Qp) }.iter().copied()
}

/// `[{…}, …]` of send requests.
pub fn sends(w: &mut Words<'_>, first: usize, datagrams: bool) {
    send_requests(w, list(first), datagrams)
}

/// As [`sends`], of requests from anywhere.
pub fn send_requests(w: &mut Words<'_>, list: impl Iterator<Item = ibv_send_wr>, datagrams: bool) {
    put!(w, "[");
    for (i, wr) in list.enumerate() {
        w.element(i);
        send(w, &wr, datagrams);
    }
    put!(w, "]")
}

fn send(w: &mut Words<'_>, wr: &ibv_send_wr, datagram: bool) {
    let (opcode, flags) = (Named(wr.opcode, "IBV_WR_", wr_opcode::name), wr.send_flags);
    put!(w, "{wr_id=", wr.wr_id, ", opcode=", opcode, ", ");
    put!(w, "send_flags=", Flags(flags, "IBV_SEND_", send_flags::name), ", sg_list=");
    sges(w, wr.sg_list as usize, wr.num_sge as u32);
    match wr.opcode {
        wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM => {
            put!(w, ", imm_data=", Hex(u32::from_be(wr.imm_data)))
        }
        wr_opcode::SEND_WITH_INV | wr_opcode::LOCAL_INV => {
            put!(w, ", invalidate_rkey=", Hex(wr.imm_data))
        }
        _ => {}
    }
    operands(w, wr, datagram);
    put!(w, "}")
}

fn operands(w: &mut Words<'_>, wr: &ibv_send_wr, datagram: bool) {
    // SAFETY: integers; the opcode and the transport say which of them count.
    unsafe {
        match wr.opcode {
            wr_opcode::RDMA_WRITE
            | wr_opcode::RDMA_WRITE_WITH_IMM
            | wr_opcode::RDMA_READ
            | wr_opcode::ATOMIC_WRITE => {
                let r = wr.wr.rdma;
                put!(w, ", remote_addr=", Hex(r.remote_addr), ", rkey=", Hex(r.rkey))
            }
            wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
                let a = wr.wr.atomic;
                put!(w, ", remote_addr=", Hex(a.remote_addr), ", rkey=", Hex(a.rkey), ", ");
                put!(w, "compare_add=", Hex(a.compare_add), ", swap=", Hex(a.swap))
            }
            wr_opcode::FLUSH => {
                let f = wr.wr.flush;
                put!(w, ", remote_addr=", Hex(f.remote_addr), ", rkey=", Hex(f.rkey), ", ");
                put!(w, "length=", f.length, ", type=", f.placement, ", level=", f.level)
            }
            wr_opcode::BIND_MW => {
                let b = wr.ext.bind_mw;
                put!(w, ", mw=");
                object(w, Arg::Mw, b.mw as usize);
                put!(w, ", rkey=", Hex(b.rkey), ", bind_info=");
                let i = b.bind_info;
                let (mr, mw_access_flags) = (i.mr as *mut ibv_mr, i.mw_access_flags);
                let (addr, length) = (i.addr, i.length);
                bind_info(w, &ibv_mw_bind_info { mr, addr, length, mw_access_flags })
            }
            _ if datagram => {
                let u = wr.wr.ud;
                put!(w, ", ah=");
                object(w, Arg::Ah, u.ah as usize);
                put!(w, ", remote_qpn=", Hex(u.remote_qpn), ", remote_qkey=", Hex(u.remote_qkey))
            }
            _ => {}
        }
    }
}

/// The range of a window.
pub fn bind_info(w: &mut Words<'_>, b: &ibv_mw_bind_info) {
    put!(w, "{mr=");
    object(w, Arg::Mr, b.mr as usize);
    let flags = Flags(b.mw_access_flags, "IBV_ACCESS_", access::name);
    put!(w, ", addr=", Hex(b.addr), ", length=", b.length, ", mw_access_flags=", flags, "}")
}

/// `[{…}, …]` of receive requests.
pub fn recvs(w: &mut Words<'_>, first: usize) {
    put!(w, "[");
    for (i, wr) in list::<ibv_recv_wr>(first).enumerate() {
        w.element(i);
        put!(w, "{wr_id=", wr.wr_id, ", sg_list=");
        sges(w, wr.sg_list as usize, wr.num_sge as u32);
        put!(w, "}");
    }
    put!(w, "]")
}

/// The pieces of a request.
pub fn sges(w: &mut Words<'_>, list: usize, n: u32) {
    put!(w, "[");
    let n = usize::try_from(n as i32).unwrap_or(0);
    for i in 0..n.min(PIECES_MAX) {
        put!(w, if i > 0 { ", " } else { "" });
        match peek::<ibv_sge>(list.wrapping_add(i * size_of::<ibv_sge>())) {
            Some(ibv_sge { addr, length, lkey }) if list != 0 => {
                put!(w, "{addr=", Hex(addr), ", length=", length, ", lkey=", Hex(lkey), "}")
            }
            _ => return put!(w, Hex(list), "]"),
        }
    }
    if n > PIECES_MAX {
        put!(w, ", ", n - PIECES_MAX, " more");
    }
    put!(w, "]")
}

/// The completions that a poll of the CQ at `cq` has stored, as many as it has returned.
pub fn completions(w: &mut Words<'_>, cq: usize, wc: usize, result: usize) {
    let n = usize::try_from(result as i32).unwrap_or(0);
    put!(w, "[");
    for i in 0..n {
        w.element(i);
        match peek::<ibv_wc>(wc.wrapping_add(i * size_of::<ibv_wc>())) {
            Some(wc) => completion(w, cq, &wc),
            None => return put!(w, Hex(wc), "]"),
        }
    }
    put!(w, "]")
}

/// A completion; of one that failed its cause.
pub fn completion(w: &mut Words<'_>, cq: usize, wc: &ibv_wc) {
    w.names(Object::Qp, wc.qp_num);
    let status = Named(wc.status, "IBV_WC_", wc_status::name);
    put!(w, "{wr_id=", wc.wr_id, ", status=", status, ", ");
    if wc.status != wc_status::SUCCESS {
        put!(w, "qp_num=", Hex(wc.qp_num), ", cause=\"");
        // SAFETY: the program's CQ, which it has just polled.
        let hca = unsafe { Cq::from_ptr(cq as *const ibv_cq) }.ok().map(|cq| cq.hca);
        failed_requests::with_cause(hca, wc, |words| put!(w, words));
        return put!(w, "\"}");
    }
    let opcode = Named(wc.opcode, "IBV_WC_", wc_opcode::name);
    put!(w, "opcode=", opcode, ", byte_len=", wc.byte_len, ", qp_num=", Hex(wc.qp_num));
    if wc.wc_flags != 0 {
        put!(w, ", wc_flags=", Flags(wc.wc_flags, "IBV_WC_", wc_flags::name));
    }
    if wc.wc_flags & wc_flags::WITH_IMM != 0 {
        put!(w, ", imm_data=", Hex(u32::from_be(wc.imm_data)));
    }
    if wc.wc_flags & wc_flags::GRH != 0 {
        put!(w, ", src_qp=", Hex(wc.src_qp));
    }
    put!(w, "}")
}

/// The completion that an extended CQ shows.
///
/// # Safety
/// The program's CQ, and this thread has just taken its completion.
pub unsafe fn current(cq: usize) -> ibv_wc {
    // SAFETY: the caller's promise: no other thread writes it.
    unsafe { (*(cq as *const Cq)).current }
}

/// The number of a CQ, 0 if it cannot be read.
pub fn cq_number(cq: usize) -> u32 {
    number(Arg::Cq, cq).map_or(0, |(_, n)| n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Line, Trace};
    use gdrcore_calls::{Filter, Row};

    /// The text of a list of completions, and whether a filter wants its call.
    fn polled(filter: &str, list: &[ibv_wc]) -> (String, bool) {
        let filter = Filter::parse(filter).unwrap();
        let open = filter.open(Row::ibv_poll_cq as usize, 1).unwrap();
        let trace = Trace { output: None, counting: false, filter, start_ns: 0 };
        let mut line = Line::new();
        let mut w = Words::new(Box::leak(Box::new(trace)), &mut line, (0, 1), open);
        completions(&mut w, 0, list.as_ptr() as usize, list.len());
        (w.line.as_str().to_string(), w.is_wanted())
    }

    #[test]
    fn a_filter_finds_the_queue_pair_of_a_completion() {
        let wc = |qp_num, status| ibv_wc { wr_id: 7, qp_num, status, ..ibv_wc::default() };
        let two = [wc(0x11, 0), wc(0x12, wc_status::WR_FLUSH_ERR)];
        assert!(polled("qp=0x11", &two).1 && polled("qp=18", &two).1);
        assert!(!polled("qp=0x13", &two).1 && !polled("qp=0x11;cq=1", &two).1);
        let text = polled("qp=1", &two).0;
        let wanted = "[{wr_id=7, status=IBV_WC_SUCCESS, opcode=IBV_WC_SEND, byte_len=0, \
                      qp_num=0x11}, {wr_id=7, status=IBV_WC_WR_FLUSH_ERR, qp_num=0x12, cause=\"";
        assert!(text.starts_with(wanted), "{text}");
    }
}
