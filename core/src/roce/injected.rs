//! Errors of requests that the device's owner injects ([`crate::inject`]). Programs see them as
//! errors that the requester and the responder find.

use super::conn::Conn;
use crate::verbs::cause::CauseCode;
use crate::verbs::types::wc_status;
use crate::wire::{NakCode, Psn};

impl Conn<'_> {
    /// Fails the send request that contains `psn`.
    pub(crate) fn fail_sent(&mut self, now: u64, psn: Psn, status: u32, rule: u32) {
        let tail = self.q.engine_sq(&self.common.key).end();
        let mut index = self.qp.conn.req.acked;
        while index != tail {
            let ws = *self.qp.wqe(index);
            if !ws.started {
                return;
            }
            let into = psn.diff(ws.psn);
            if !ws.done && into >= 0 && into < ws.npkts as i32 {
                let cause = CauseCode::Injected;
                return self.fail_request(now, index, status, cause, rule.into(), 0);
            }
            index = index.wrapping_add(1);
        }
    }

    /// Fails the receive request of the next message, and NAKs it. False: none is posted.
    pub(crate) fn fail_receive(&mut self, now: u64, status: u32, rule: u32) -> bool {
        if !self.take_recv() {
            return false;
        }
        self.note(now, CauseCode::Injected, status, rule.into(), 0);
        self.fail_recv(status);
        let code = match status {
            wc_status::LOC_LEN_ERR => NakCode::InvalidRequest,
            _ => NakCode::RemoteOperation,
        };
        self.end_by_nak(code, self.qp.conn.resp.epsn, false);
        true
    }
}
