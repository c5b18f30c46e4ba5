//! With GDRC_VERBOSE: prints why a request failed, once for each connection of a queue pair. Later
//! requests fail for the same reason, and flushed ones have no reason of their own.
//!
//! Contexts and CQs choose the printing poll or the silent one when they are made, so without
//! GDRC_VERBOSE no poll checks for it.

use crate::abi::ibv_wc;
use crate::env;
use crate::hca::Hca;
use crate::string_verbs::wc_status_str;
use core::ffi::CStr;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{wc_status, Handle};

/// Prints the causes of the completions that failed.
#[cold]
pub fn explain(hca: &Hca, completions: &[ibv_wc]) {
    let has_none = |wc: &&ibv_wc| matches!(wc.status, wc_status::SUCCESS | wc_status::WR_FLUSH_ERR);
    for wc in completions.iter().filter(|wc| !has_none(wc)) {
        let Some(qp) = first_failure(hca, wc.qp_num) else { continue };
        let cause = hca.device.qp_cause(qp).ok().filter(|cause| cause.code == wc.vendor_err);
        let words = match cause {
            Some(cause) => cause.to_string(),
            // The QP has a newer cause by now.
            None => CauseCode::from_u32(wc.vendor_err).unwrap_or_default().text().into(),
        };
        // SAFETY: a static text.
        let status = unsafe { CStr::from_ptr(wc_status_str(wc.status)) }.to_string_lossy();
        env::say(&format!("QP {:#x}: {status}: {words}", wc.qp_num));
    }
}

/// The queue pair of a number, if no failure of its connection was printed yet.
fn first_failure(hca: &Hca, number: u32) -> Option<Handle> {
    let objects = hca.objects();
    // SAFETY: what is in the table, which is locked, lives.
    let mut all = objects.by_handle.values().map(|target| unsafe { &**target });
    all.find_map(|target| target.first_failure(number))?
}
