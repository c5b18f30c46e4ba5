//! A port that carries nothing for a while, such as one whose router is being restarted.
//!
//! Packets that leave meanwhile are lost. The silence of peers behind the port is then no sign of a
//! failure: it costs no retry, and after the outage everything is sent again. Links, and queue
//! pairs within this engine, are not concerned.

use super::EngineGuard;
use crate::config::config_flags;
use crate::roce::peer::Path;
use crate::roce::Transport;
use crate::verbs::cause::CauseCode;
use crate::verbs::types::wc_status;
use crate::verbs::NONE;

/// Whether a queue pair has a peer that is reached through the port.
fn is_behind_port(t: &Transport, qi: usize) -> bool {
    let qp = &t.qps[qi];
    let has_peer = qp.live && qp.kind.is_connected() && qp.conn.peer != NONE;
    has_peer && t.peers[qp.conn.peer as usize].path == Path::Port
}

/// Data: a port that is away.
impl EngineGuard<'_> {
    /// Notes that the port carries nothing until [`EngineGuard::end_outage`] or
    /// [`EngineGuard::fail_port`].
    pub fn begin_outage(&mut self) {
        self.split().0.transport.common.port_excused = u64::MAX;
    }

    /// Notes that the port carries packets again, and sends all unacknowledged packets again, at
    /// each call. The ports of peers may carry packets only from `excused` on: until then the
    /// silence of peers costs no retry.
    pub fn end_outage(&mut self, now: u64, excused: u64) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        t.common.port_excused = excused;
        for qi in 0..t.qps.len() {
            let req = &t.qps[qi].conn.req;
            let waits = req.ack_deadline != 0 && req.una_psn != req.max_psn;
            if waits && is_behind_port(t, qi) {
                t.conn(s, qi).on_ack_timeout(now);
            }
        }
    }

    /// Fails the queue pairs behind a port that carries nothing any more, with
    /// [`CauseCode::RouterLost`]; with `SILENT_LOSS` their timers fail them. `waited`: how long the
    /// outage lasted, in nanoseconds.
    pub fn fail_port(&mut self, now: u64, waited: u64) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        t.common.port_excused = 0;
        let silent = t.common.config.flags & config_flags::SILENT_LOSS != 0;
        for qi in 0..t.qps.len() {
            if !is_behind_port(t, qi) {
                continue;
            }
            let cause = CauseCode::RouterLost;
            if silent {
                t.conn(s, qi).note(now, cause, wc_status::RETRY_EXC_ERR, waited, 0);
                t.note_end(s, qi, now);
            } else {
                t.conn(s, qi).fail_path(now, cause, waited);
            }
            t.common.ready.set(qi);
        }
    }
}
