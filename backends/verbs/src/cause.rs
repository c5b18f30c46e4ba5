//! Finds the cause of a failed operation, from a completion's status or an event.

use core::sync::atomic::Ordering::Relaxed;

use crate::device::VerbsDevice;
use crate::objects::{lock, Qp};
use crate::recover::is_marker;
use crate::sys::now_ns;
use gdrcore_core::counters::Counters;
use gdrcore_core::verbs::cause::{Cause, CauseCode};
use gdrcore_core::verbs::types::{wc_status, Wc};

fn code(status: u32) -> CauseCode {
    match status {
        wc_status::SUCCESS => CauseCode::None,
        wc_status::LOC_LEN_ERR => CauseCode::MessageTooLong,
        wc_status::LOC_QP_OP_ERR => CauseCode::BadOpcode,
        wc_status::LOC_PROT_ERR => CauseCode::LocalKey,
        wc_status::WR_FLUSH_ERR => CauseCode::Flushed,
        wc_status::MW_BIND_ERR => CauseCode::BadWindow,
        wc_status::BAD_RESP_ERR => CauseCode::BadResponse,
        wc_status::LOC_ACCESS_ERR => CauseCode::PeerLacksAccess,
        wc_status::REM_INV_REQ_ERR => CauseCode::RemoteInvalidRequest,
        wc_status::REM_ACCESS_ERR => CauseCode::RemoteAccess,
        wc_status::REM_OP_ERR => CauseCode::RemoteOperation,
        wc_status::RETRY_EXC_ERR => CauseCode::RetryExceeded,
        wc_status::RNR_RETRY_EXC_ERR => CauseCode::RnrRetryExceeded,
        _ => CauseCode::DeviceError,
    }
}

/// Index of a counter by its name, `u32::MAX` if there is none.
fn counter(name: &str) -> u32 {
    Counters::NAMES.iter().position(|n| *n == name).map_or(u32::MAX, |i| i as u32)
}

impl VerbsDevice {
    /// Explains the failed ones of `n` completions, and removes the markers of a reset. Returns the
    /// number left.
    #[cold]
    #[inline(never)]
    pub fn explain_all(&self, wc: &mut [Wc], n: usize) -> usize {
        let mut kept = 0;
        for i in 0..n.min(wc.len()) {
            let mut w = wc[i];
            if w.status != wc_status::SUCCESS {
                let of = |qp: &Qp| qp.qpn.load(Relaxed) == w.qp_num;
                let qp = self.qps.iter().map(|(_, s)| &s.more).find(|qp| of(qp));
                if qp.is_some_and(|qp| is_marker(qp, &w)) {
                    continue;
                }
                self.explain(qp, &mut w);
            }
            wc[kept] = w;
            kept += 1;
        }
        kept
    }

    /// Records why a completion failed, and writes the cause's number over the NIC's own.
    fn explain(&self, qp: Option<&Qp>, wc: &mut Wc) {
        let code = code(wc.status);
        let vendor = wc.vendor_err;
        wc.vendor_err = code as u32;
        // A flushed request does not show the reason: the failed operation has recorded it.
        if code == CauseCode::Flushed {
            return;
        }
        let Some(qp) = qp else { return };
        let facts = *lock(&qp.facts);
        let args = match code {
            CauseCode::RetryExceeded => {
                let timeout = if facts.timeout == 0 { 0 } else { 4096u64 << facts.timeout.min(31) };
                (timeout, u64::from(facts.retry_cnt))
            }
            CauseCode::RnrRetryExceeded => (u64::from(facts.rnr_retry), 0),
            CauseCode::DeviceError => (u64::from(wc.status), u64::from(vendor)),
            // libibverbs does not report the key, address or length.
            _ => (0, 0),
        };
        self.note(qp, code, wc.status, args);
    }

    /// Records a cause on a QP and on the device.
    pub(crate) fn note(&self, qp: &Qp, code: CauseCode, wc_status: u32, (arg0, arg1): (u64, u64)) {
        let mut facts = lock(&qp.facts);
        let counter = match code {
            CauseCode::RetryExceeded => counter("retry_exceeded_err"),
            CauseCode::RnrRetryExceeded => counter("retry_rnr_exceeded_err"),
            CauseCode::RemoteAccess
            | CauseCode::RemoteInvalidRequest
            | CauseCode::RemoteOperation => counter("rcvd_nak_err"),
            _ => u32::MAX,
        };
        let cause = Cause {
            code: code as u32,
            wc_status,
            peer: facts.peer,
            qpn: qp.qpn.load(Relaxed),
            remote_qpn: facts.remote_qpn,
            counter,
            arg0,
            arg1,
            time_ns: now_ns(),
            ..Cause::default()
        };
        facts.cause = cause;
        *lock(&self.last) = cause;
    }

    /// Records a cause that belongs to no QP.
    pub(crate) fn note_device(&self, code: CauseCode, arg0: u64) {
        *lock(&self.last) =
            Cause { code: code as u32, arg0, time_ns: now_ns(), ..Cause::default() };
    }
}
