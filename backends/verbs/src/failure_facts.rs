//! Facts about a QP that explain a failure of one of its operations.

use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::types::{qp_attr_mask as mask, QpAttr};

/// Facts about a QP, recorded when they change.
#[derive(Clone, Copy, Default)]
pub struct FailureFacts {
    /// The last cause.
    pub cause: Cause,
    /// The peer's GID.
    pub peer: [u8; 16],
    /// The peer's QPN.
    pub remote_qpn: u32,
    /// ACK timeout code.
    pub timeout: u8,
    /// Retries after a timeout.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK.
    pub rnr_retry: u8,
}

impl FailureFacts {
    /// Records the attributes of a modify.
    pub fn modified(&mut self, attr: &QpAttr, set: u32) {
        if set & mask::AV != 0 {
            self.peer = attr.ah.dgid;
        }
        if set & mask::DEST_QPN != 0 {
            self.remote_qpn = attr.dest_qp_num;
        }
        if set & mask::TIMEOUT != 0 {
            self.timeout = attr.timeout;
        }
        if set & mask::RETRY_CNT != 0 {
            self.retry_cnt = attr.retry_cnt;
        }
        if set & mask::RNR_RETRY != 0 {
            self.rnr_retry = attr.rnr_retry;
        }
    }
}
