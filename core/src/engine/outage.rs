//! A port that carries nothing for a while, such as one whose router is being restarted.
//!
//! Packets that leave meanwhile are lost. The silence of peers behind the port is then no sign of a
//! failure: it costs no retry, and after the outage everything is sent again. Links, and queue
//! pairs within this engine, are not concerned.

use super::Guard;
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
impl Guard<'_> {
    /// From here on the port carries nothing, until [`Guard::port_back`] or [`Guard::port_lost`].
    pub fn port_away(&mut self) {
        self.split().0.transport.common.port_excused = u64::MAX;
    }

    /// The port carries packets again. Peers may need until `excused` before they do: until then
    /// their silence costs no retry. What is unacknowledged is sent again now; a repeated call
    /// sends what is still unacknowledged again.
    pub fn port_back(&mut self, now: u64, excused: u64) {
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

    /// The port carries nothing any more: queue pairs behind it fail with
    /// [`CauseCode::RouterLost`], or by their timers with `SILENT_LOSS`. `waited`: how long it was
    /// away, in nanoseconds.
    pub fn port_lost(&mut self, now: u64, waited: u64) {
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
