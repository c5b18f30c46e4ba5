//! The connection manager's place in an engine: QP1 on the wire, and what ends its connections.

use core::sync::atomic::Ordering;

use super::{Burst, EngineGuard, Inner};
use crate::cm::mad::MAD_LEN;
use crate::cm::{Cm, CmEvent, Local};
use crate::config::{qpn_block, Config};
use crate::error::Result;
use crate::roce::peer::{Path, PeerAddr};
use crate::roce::run::Run;
use crate::roce::Transport;
use crate::verbs::cause::{Cause, CauseCode};
use crate::verbs::shared::Shared;
use crate::verbs::types::Handle;
use crate::verbs::NONE;
use crate::wire::{
    is_default_partition, mtu_code, packet_bytes, Class, IcrcFlow, PacketKind, Psn, QP1_QKEY,
};

/// The general services QP, where connection managers talk.
pub const GSI_QPN: u32 = 1;
/// UDP source ports of at least this number are entropy for the network's hashes, not addresses for
/// answers.
const FLOW_PORTS: u16 = 0xc000;

/// A node GUID that follows from the address: an EUI-64-like number with the "local" bit.
pub fn node_guid(local: &PeerAddr) -> u64 {
    let (high, low) = local.gid.split_at(8);
    let word = |b: &[u8]| b.iter().fold(0u64, |w, &x| w << 8 | u64::from(x));
    (word(low) ^ word(high).rotate_left(21) ^ u64::from(local.port)) | 0x0200_0000_0000_0000
}

/// Whether a node GUID is that of a soft device at an address: only theirs follows from it.
pub(crate) fn is_soft_peer(guid: u64, at: &PeerAddr) -> bool {
    guid == node_guid(at)
}

/// Properties of this engine that the connection manager sends to peers.
pub(super) fn local(config: &Config, addr: &PeerAddr) -> Local {
    Local {
        gid: addr.gid,
        guid: node_guid(addr),
        path_mtu: mtu_code(config.max_mtu).unwrap_or(1),
        max_rd_atomic: config.max_rd_atomic.min(255) as u8,
        block: qpn_block(config.qpn_base),
        is_soft_peer,
    }
}

/// Takes a packet to QP1.
#[allow(clippy::too_many_arguments)] // the parts of an engine, and what came
pub(super) fn take_packet(
    cm: &mut Cm,
    t: &mut Transport,
    s: &Shared,
    local: &PeerAddr,
    now: u64,
    src: &PeerAddr,
    run: &Run,
    payload: &[u8],
) {
    // rxe rxe_recv.c check_keys, QP1: QP1 takes datagrams of another QP1 with Q_Key 0x80010000.
    let gsi = run.class == Class::Ud
        && run.kind == PacketKind::Send
        && run.src_qpn == GSI_QPN
        && run.qkey == QP1_QKEY;
    if !gsi || !is_default_partition(run.pkey) {
        t.common.counters.rcvd_refused += 1;
        return;
    }
    t.common.counters.rcvd_pkts += 1;
    t.common.counters.rcvd_bytes += run.wire_bytes(1, payload.len() as u32);
    let port = if src.port >= FLOW_PORTS { local.port } else { src.port };
    let from = PeerAddr { gid: src.gid, scope_id: src.scope_id, port, ..PeerAddr::default() };
    if cm.take_confirm_due(now) {
        cm.confirm(now, |qpn| t.has_heard(qpn));
    }
    cm.handle_mad(now, &from, payload);
    wake(cm, s);
}

/// Wakes threads that sleep on the descriptor, if there are new events.
fn wake(cm: &mut Cm, s: &Shared) {
    if cm.take_raised() {
        s.notify.store(true, Ordering::Release);
    }
}

impl Inner {
    pub(super) fn is_self(&self, to: &PeerAddr) -> bool {
        to.gid == self.local.gid && to.port == self.local.port
    }

    /// Whether the next message goes to this engine itself: to its address, and not to another
    /// engine there.
    fn next_mad_is_mine(&self) -> bool {
        self.cm.next_destination().is_some_and(|to| self.is_self(&to))
            && (!self.address_is_shared || self.cm.next_is_mine())
    }

    /// Carries messages from this engine to itself. Returns how many.
    #[inline]
    pub(super) fn loop_mads(&mut self, s: &Shared, now: u64) -> usize {
        if !self.cm.is_ready() {
            return 0;
        }
        let mut n = 0;
        let mut mad = [0; MAD_LEN];
        // Each message causes at most one more, and no exchange is longer than a handful.
        while self.next_mad_is_mine() {
            // Its destination is this engine, and so is its source.
            let Some(own) = self.cm.poll_transmit(&mut mad) else { break };
            let PeerAddr { gid, scope_id, port, .. } = own;
            let own = PeerAddr { gid, scope_id, port, ..PeerAddr::default() };
            self.cm.handle_mad(now, &own, &mad);
            n += 1;
        }
        wake(&mut self.cm, s);
        n
    }

    /// Writes the next message as a packet from QP1 to QP1.
    pub(super) fn transmit_mad(&mut self, s: &Shared, now: u64, buf: &mut [u8]) -> Option<Burst> {
        self.loop_mads(s, now);
        let mut run = Run::new(
            Class::Ud,
            PacketKind::Send,
            GSI_QPN,
            Psn::new(self.transport.common.counters.sent_pkts as u32),
        );
        run.qkey = QP1_QKEY;
        run.src_qpn = GSI_QPN;
        let opcode = run.opcode(true, true);
        let headers = opcode.header_len();
        let len = packet_bytes(opcode, MAD_LEN);
        let packet = buf.get_mut(..len)?;
        let (head, body) = packet.split_at_mut(headers);
        let dst = self.cm.poll_transmit(body.first_chunk_mut()?)?;
        run.emit_headers(opcode, run.psn, false, 0, head);
        IcrcFlow::from_gids(&self.local.gid, &dst.gid, self.local.port, dst.port)
            .append_icrc(0, packet);
        self.transport.common.counters.sent_pkts += 1;
        self.transport.common.counters.sent_bytes += len as u64;
        Some(Burst { dst, len, seg: len, for_connected: false })
    }

    /// Ends the connections of queue pairs that have failed because their peers were silent.
    #[cold]
    pub(super) fn end_silent(&mut self, now: u64) {
        while let Some(qi) = self.transport.common.silent.next_from(0) {
            self.transport.common.silent.clear(qi);
            let qp = &self.transport.qps[qi];
            let gone = [CauseCode::Keepalive, CauseCode::PeerUnreachable];
            let gone = gone.iter().any(|&code| qp.cause.code == code as u32);
            self.cm.peer_silent(now, qp.qpn, gone);
        }
    }

    pub(super) fn cm_timeout(&mut self, s: &Shared, now: u64) {
        if self.cm.next_timeout().is_some_and(|at| at <= now) {
            let t = &self.transport;
            self.cm.confirm(now, |qpn| t.has_heard(qpn));
            self.cm.handle_timeout(now);
        }
        wake(&mut self.cm, s);
    }
}

/// Control: the connection manager, and what ends its connections.
impl EngineGuard<'_> {
    /// The connection manager, for callers that move QPs by themselves.
    pub fn cm(&mut self) -> &mut Cm {
        &mut self.split().0.cm
    }

    /// Passes a message that an injected fault made up to [`Cm::handle_mad`]. Events that it raises
    /// wake threads that sleep on the descriptor.
    pub fn cm_take_mad(&mut self, now: u64, from: &PeerAddr, mad: &[u8]) {
        let (inner, s) = self.split();
        inner.cm.handle_mad(now, from, mad);
        wake(&mut inner.cm, s);
    }

    /// Calls [`Cm::note_unreachable`]. Events that it raises wake threads that sleep on the
    /// descriptor.
    pub fn cm_refused(&mut self, dst: &PeerAddr, errno: i32, local: bool) {
        let (inner, s) = self.split();
        inner.cm.note_unreachable(dst, errno, local);
        wake(&mut inner.cm, s);
    }

    /// Notes why a connection failed, for a caller that knows more than the connection manager. The
    /// cause becomes the last one of the device and, unless the program moves its QP by itself, of
    /// the event's QP.
    pub fn cm_note(&mut self, now: u64, e: &CmEvent, code: CauseCode, arg0: u64, arg1: u64) {
        let (inner, s) = self.split();
        let mut cause = Cause {
            code: code as u32,
            peer: e.peer.dgid,
            remote_qpn: e.remote_qpn,
            counter: u32::MAX,
            arg0,
            arg1,
            time_ns: now,
            ..Cause::default()
        };
        if let Ok(qi) = s.qp_pool.check(e.qp) {
            let qp = &mut inner.transport.qps[qi];
            cause.qpn = qp.qpn;
            qp.cause = cause;
        }
        inner.transport.common.cause = cause;
    }

    /// Notes the cause of an event that reports a failed attempt. Its QP, if it has one, is of this
    /// engine.
    pub fn cm_note_failed(&mut self, now: u64, e: &CmEvent) {
        let (code, arg0, arg1) = super::cm_qps::cause_of(e);
        self.cm_note(now, e, code, arg0, arg1);
    }

    /// Calls [`Cm::listen`]. Requests that were kept for the listener wake threads that sleep on
    /// the descriptor.
    ///
    /// # Errors
    /// As [`Cm::listen`].
    pub fn cm_listen(&mut self, now: u64, id: Handle, backlog: u32) -> Result<()> {
        let (inner, s) = self.split();
        inner.cm.listen(now, id, backlog)?;
        wake(&mut inner.cm, s);
        Ok(())
    }

    /// Makes the QP of this number ask its peer now and then whether it is still there, because the
    /// peer's process cannot be watched.
    pub fn cm_begin_keepalive(&mut self, now: u64, qpn: u32) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        if let Some(qi) = t.common.qp_of(qpn).filter(|&qi| t.qps[qi].conn.peer != NONE) {
            t.conn(s, qi).begin_keepalive_of_cm(now);
        }
    }

    /// Ends the connections of a link that is gone, because nothing else watched the process at its
    /// other end. The caller gives the link up afterwards.
    pub fn cm_link_lost(&mut self, now: u64, link: u16) {
        let (inner, s) = self.split();
        let t = &inner.transport;
        for qp in t.qps.iter().filter(|qp| qp.live && qp.kind.has_fixed_peer()) {
            if t.peers.get(qp.conn.peer as usize).is_some_and(|p| p.path == Path::Link(link)) {
                inner.cm.peer_silent(now, qp.qpn, true);
            }
        }
        wake(&mut inner.cm, s);
    }

    /// Ends the connections to a process that has ended, and flushes their QPs. The process owned a
    /// block of QPNs at an address. All that it had sent has been received.
    pub fn cm_peer_ended(&mut self, now: u64, at: &PeerAddr, block: u16) {
        let (inner, s) = self.split();
        for qi in 0..inner.transport.qps.len() {
            let t = &inner.transport;
            let qp = &t.qps[qi];
            if qp.live && qpn_block(qp.attr.dest_qp_num) == block && qp.can_receive() {
                let peer = t.peers.get(qp.conn.peer as usize).map(|peer| peer.addr);
                let there = peer.is_some_and(|p| (p.gid, p.port) == (at.gid, at.port));
                if there && inner.cm.is_managed(qp.qpn) {
                    inner.enter_error_on_request(s, qi, now);
                }
            }
        }
        inner.cm.peer_ended(now, at, block);
        wake(&mut inner.cm, s);
    }

    /// Calls [`Cm::interface_changed`].
    pub fn cm_interface_changed(&mut self, event: u32) {
        let (inner, s) = self.split();
        inner.cm.interface_changed(event);
        wake(&mut inner.cm, s);
    }

    /// Whether the connection manager has events.
    pub fn has_cm_events(&self) -> bool {
        self.cm.has_events()
    }
}
