//! [`qp_reset`](gdrcore_core::device::Device::qp_reset) on a NIC: every request gets its completion
//! before RESET.
//!
//! RESET drops outstanding requests. ERR completes them, but nothing reports when that is done. So
//! this posts a marker as the last request of each queue: once its completion was polled, all
//! earlier ones were, too. Markers never reach the program.
//!
//! The receive marker is posted before ERR: it does no harm there, and some devices look at
//! receives only at the transition. The send marker is posted after ERR, so that it is never sent.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::Acquire;

use crate::abi::Object;
use crate::device::VerbsDevice;
use crate::drain::{RECV_POSTED, RECV_SEEN, SEND_POSTED, SEND_SEEN};
use crate::errno;
use crate::objects::Qp;
use crate::slots::Use;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::verbs::types::{
    qp_attr_mask as mask, qp_state, qp_type, send_flags, wr_opcode, AhAttr, DcWr, Handle, QpAttr,
    RecvWr, SendWr, UdWr, Wc, WrExt, WrOp,
};

/// `wr_id` of a QP's markers: the complement of an address in this device's tables, which no
/// program uses.
fn marker(qp: &Qp, send: bool) -> u64 {
    let at: *const Qp = qp;
    !(at.addr() as u64) ^ u64::from(send)
}

/// Whether a completion is a marker of this QP. Notes that the marker was seen.
pub fn is_marker(qp: &Qp, wc: &Wc) -> bool {
    let posted = if wc.wr_id == marker(qp, true) {
        (SEND_POSTED, SEND_SEEN)
    } else if wc.wr_id == marker(qp, false) {
        (RECV_POSTED, RECV_SEEN)
    } else {
        return false;
    };
    let ours = qp.drain.has(posted.0);
    if ours {
        qp.drain.add(posted.1);
    }
    ours
}

impl VerbsDevice {
    /// An address handle of this device. In any state of the QP, providers read that of a
    /// datagram's request.
    fn own_ah(&self, qp: &Use<'_, Qp>) -> Result<Object> {
        let pd = self.pds.enter(qp.more().pd())?;
        let attr = AhAttr { dgid: self.gid, ..AhAttr::default() };
        let mut ah = null_mut();
        // SAFETY: a live PD, readable attributes, a writable result.
        errno(unsafe { (self.module.ah_create)(pd.object(), &attr, &self.source, &mut ah) })?;
        Ok(ah)
    }

    /// See [`gdrcore_core::device::Device::qp_reset`].
    pub(crate) fn do_qp_reset(&self, handle: Handle) -> Result<()> {
        let held = self.qps.enter(handle)?;
        let qp = held.more();
        let mut now = QpAttr::default();
        // SAFETY: a live QP, a writable result.
        errno(unsafe { (self.module.qp_query)(held.object(), qp.kind(), &mut now) })?;
        if now.qp_state == qp_state::RESET {
            qp.drain.clear();
            return Ok(());
        }
        let to = |state: u32| {
            let attr = QpAttr { qp_state: state, ..QpAttr::default() };
            // SAFETY: a live QP, readable attributes.
            errno(unsafe {
                (self.module.qp_modify)(held.object(), &attr, mask::STATE, &self.source)
            })
        };
        let (sends, receives) = (qp.has_sends(), qp.has_receives());
        if !sends && !receives {
            // An XRC target or a DCT receives for an SRQ, which keeps its requests.
            to(qp_state::RESET)?;
            self.renew_number(&held);
            return Ok(());
        }
        if receives && !qp.drain.has(RECV_POSTED) {
            let wr = RecvWr {
                wr_id: marker(qp, false),
                next: core::ptr::null(),
                sg_list: core::ptr::null(),
                num_sge: 0,
            };
            let mut bad = core::ptr::null();
            qp.recv.enter()?;
            // Set before the post, because the completion may be polled before the post returns.
            qp.drain.add(RECV_POSTED);
            // SAFETY: a live QP whose receive side is ours; a list of one.
            let rc = unsafe { (self.opened.data.post_recv)(held.object(), &wr, &mut bad) };
            if rc != 0 {
                qp.drain.remove(RECV_POSTED);
            }
            qp.recv.leave();
        }
        to(qp_state::ERR)?;
        if !qp.drain.has(SEND_POSTED) {
            let ah = if qp.names_peers() { self.own_ah(&held)? } else { null_mut() };
            let dci = qp.kind() == qp_type::DCI;
            let name = ah.expose_provenance() as Handle;
            let mut wr = SendWr {
                wr: WrOp { ud: UdWr { ah: name, remote_qpn: 1, remote_qkey: 0 } },
                ext: WrExt { dc: DcWr { ah: name, dc_key: 0, dctn: 1 } },
                wr_id: marker(qp, true),
                opcode: wr_opcode::SEND,
                send_flags: send_flags::SIGNALED,
                ..crate::data::EMPTY
            };
            let mut bad = core::ptr::null();
            let entered = qp.send.enter();
            if entered.is_ok() {
                qp.drain.add(SEND_POSTED);
                // SAFETY: a live QP whose send side is ours; a list of one, which is not executed
                // in ERR.
                let posted = unsafe {
                    match dci {
                        true => self.post_extended(held.object(), &mut wr, 1, &mut bad).is_ok(),
                        false => (self.opened.data.post_send)(held.object(), &wr, &mut bad) == 0,
                    }
                };
                if !posted {
                    qp.drain.remove(SEND_POSTED);
                }
                qp.send.leave();
            }
            if !ah.is_null() {
                // SAFETY: made above; what was posted holds a copy of what it needs.
                unsafe { (self.module.ah_destroy)(ah) };
            }
            entered?;
        }
        let done = SEND_SEEN | if receives { RECV_SEEN } else { 0 };
        if !qp.drain.has(done) && !self.gone.load(Acquire) {
            return Err(Error::Again);
        }
        to(qp_state::RESET)?;
        qp.drain.clear();
        Ok(())
    }
}
