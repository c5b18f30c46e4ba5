//! The last cause of a queue pair and of its device: why a request failed, or what explains the
//! silence of a peer.

use super::conn::Conn;
use crate::counters::Counters;
use crate::verbs::cause::{Cause, CauseCode};

impl Conn<'_> {
    /// Notes a cause on the QP and on the device.
    #[cold]
    pub(crate) fn note(&mut self, now: u64, code: CauseCode, status: u32, arg0: u64, arg1: u64) {
        let cause = Cause {
            code: code as u32,
            wc_status: status,
            peer: self.peer.addr.gid,
            qpn: self.qp.qpn,
            remote_qpn: self.qp.attr.dest_qp_num,
            psn: self.qp.conn.req.una_psn.get(),
            counter: counter_of(code),
            arg0,
            arg1,
            time_ns: now,
        };
        self.common.cause = cause;
        self.qp.cause = cause;
    }

    /// The cause noted since the time `since`, if it explains the peer's silence: an ICMP error, a
    /// refusal of the kernel, a lost router, or the witness's answer.
    pub(crate) fn explanation(&self, since: u64) -> Option<(CauseCode, u64, u64)> {
        let cause = &self.qp.cause;
        let known = CauseCode::from_u32(cause.code).unwrap_or_default();
        use CauseCode::*;
        let explains = matches!(
            known,
            PeerUnreachable
                | MtuExceeded
                | Socket
                | Firewall
                | NoRoute
                | NotPolled
                | Unanswered
                | RouterLost
        );
        (explains && cause.time_ns >= since).then_some((known, cause.arg0, cause.arg1))
    }
}

/// The index of the counter of a cause.
fn counter_of(code: CauseCode) -> u32 {
    use CauseCode::*;
    let name = match code {
        RetryExceeded | Deadline | PeerUnreachable | NotPolled | Unanswered | RouterLost => {
            "retry_exceeded_err"
        }
        Keepalive => "keepalives",
        DcTargetGone => "dc_gone",
        DcNoContext => "dc_busy",
        DcKey => "dc_refused_key",
        RnrRetryExceeded => "retry_rnr_exceeded_err",
        RemoteAccess | RemoteInvalidRequest | RemoteOperation => "rcvd_nak_err",
        PeerUsedBadKey | PeerLeftRange | PeerLacksAccess | PeerBadRequest | MessageTooLong
        | MisalignedAtomic => "send_nak_err",
        Socket | Firewall | NoRoute | MtuExceeded => "send_err",
        _ => return u32::MAX,
    };
    Counters::NAMES.iter().position(|n| *n == name).map_or(u32::MAX, |i| i as u32)
}
