//! Receiving: which packets a queue pair accepts, and from whom.

use crate::device::async_event;
use crate::roce::conn::Conn;
use crate::roce::peer::{Path, Peer};
use crate::roce::run::Run;
use crate::roce::{Origin, Transport};
use crate::verbs::types::qp_state;
use crate::wire::{is_default_partition, Bth, Class, NakCode, Psn, Syndrome};

/// Packets of the longest burst of a soft device. One send may have fewer segments.
const BURST_PACKETS: u16 = 128;

impl Transport {
    /// Whether a packet that comes in the name of a soft device has an IPv4 identification that the
    /// device does not give: its own socket numbers the packets of each burst from 0. The receiver
    /// of a datagram solves for the number, so a packet with a wrong ICRC has a random one. The
    /// rest of the packet is unchecked.
    #[cold]
    pub(crate) fn has_strange_ident(&self, from: &Origin, ident: u16, packet: &[u8]) -> bool {
        let Some(header) = packet.first_chunk() else { return false };
        let qi = self.common.qp_of(Bth::parse(header).dest_qp.get());
        let Some(qp) = qi.and_then(|qi| self.qps.get(qi)).filter(|qp| qp.conn.own_port) else {
            return false;
        };
        let peer = self.peers.get(qp.conn.peer as usize);
        let is_peers = |p: &Peer| p.addr.gid == from.gid && p.addr.port == from.port;
        ident >= BURST_PACKETS && peer.is_some_and(is_peers)
    }
}

impl Conn<'_> {
    /// Whether a packet is from the peer of a connected QP: from its address, by a path that it may
    /// use, and from one of its UDP ports, if these are known.
    #[inline(always)]
    pub(in crate::roce) fn is_from_peer(&self, from: &Origin) -> bool {
        self.has_address_of_peer(&from.gid, from.path) && !self.has_other_port(from)
    }

    /// Whether an address is that of the QP's peer, and the peer may use a path. Loopback needs no
    /// address.
    #[inline(always)]
    pub(in crate::roce) fn has_address_of_peer(&self, gid: &[u8; 16], path: Path) -> bool {
        // IBTA A17.4.4.2: A packet for a connected queue pair is dropped unless its source address
        // is the peer's.
        let peer = &*self.peer;
        // Each side of an association of DC chooses its path by itself.
        let mixed = || self.common.mixed_paths || !self.qp.kind.has_fixed_peer();
        self.qp.conn.loopback && path == Path::Loopback
            || peer.addr.gid == *gid && peer.path.answers(path, mixed)
    }

    /// Whether a packet came from a UDP port from which the QP's peer does not send.
    #[inline(always)]
    pub(in crate::roce) fn has_other_port(&self, from: &Origin) -> bool {
        self.qp.conn.own_port && from.path == Path::Port && !self.peer.sends_from(from.port)
    }

    /// Takes one run that names this QP.
    pub(in crate::roce) fn handle_run(
        &mut self,
        now: u64,
        from: &Origin,
        run: &Run,
        payload: &[u8],
    ) {
        // rxe rxe_recv.c check_type_state, state: A queue pair that is not in a state to receive
        // takes no packet.
        if !self.qp.can_receive() {
            if !self.repeat_nak(from, run) {
                self.common.counters.rcvd_no_qp += 1;
            }
            return;
        }
        let class = self.qp.kind.class();
        if run.class == Class::Cnp && self.qp.kind.is_connected() {
            return self.handle_cnp(now, from);
        }
        // rxe rxe_recv.c check_type_state, service: A packet of another service than the queue
        // pair's is dropped without an answer.
        // The membership bit of a P_Key may differ; a limited member may not talk to another.
        // rxe rxe_recv.c check_keys, P_Key: A packet of another partition than the default one is
        // dropped without an answer.
        if run.class != class || !is_default_partition(run.pkey) {
            return self.refuse(now);
        }
        if class != Class::Ud {
            if !self.has_address_of_peer(&from.gid, from.path) {
                return self.refuse(now);
            }
            if self.has_other_port(from) {
                self.common.refused_port = Some((self.peer.addr, from.port));
                return self.refuse(now);
            }
        }
        let bytes = run.wire_bytes(run.n, payload.len() as u32);
        self.count_received(run.n, bytes);
        match class {
            // An initiator takes answers alone, a target requests alone.
            Class::Xrc | Class::Dc if run.kind.is_answer() == self.qp.kind.answers() => {
                self.refuse(now);
            }
            Class::Rc | Class::Xrc | Class::Dc => {
                let stood = (self.qp.conn.resp.epsn, self.qp.conn.req.una_psn);
                if run.kind.is_answer() {
                    self.handle_answer(now, from.port, run, payload);
                } else {
                    self.handle_request(now, run, payload);
                }
                if class == Class::Dc && self.may_go_on() {
                    self.common.ready.set(self.qi);
                }
                if stood != (self.qp.conn.resp.epsn, self.qp.conn.req.una_psn) {
                    self.qp.learn_port(from.port);
                }
            }
            Class::Uc => self.handle_uc(now, run, payload),
            _ => {
                let own = self.common.local.gid;
                self.handle_ud(now, from, &own, run, payload);
            }
        }
    }

    /// Repeats the fatal NAK of a QP whose peer sends another request: the NAK may have been lost.
    /// False: the QP has none, or the packet draws no answer.
    #[cold]
    fn repeat_nak(&mut self, from: &Origin, run: &Run) -> bool {
        let ours = self.is_from_peer(from) && is_default_partition(run.pkey);
        let Some(syndrome) = self.qp.conn.resp.fatal_nak else { return false };
        let kind = self.qp.kind;
        let asks = kind.answers() && run.class == kind.class() && !run.kind.is_answer();
        if self.qp.state != qp_state::ERR || !asks || !ours {
            return false;
        }
        let resp = &mut self.qp.conn.resp;
        resp.set_nak(Some(syndrome));
        // The peer may no longer wait for the answer that failed, and would ignore a NAK before its
        // present request. Everything before the expected PSN was executed.
        if run.psn.diff(resp.fatal_psn) > 0 {
            resp.fatal_psn = if run.psn.diff(resp.epsn) < 0 { run.psn } else { resp.epsn };
        }
        self.common.ready.set(self.qi);
        true
    }

    /// Ends the QP by a NAK at a PSN, which it owes its peer. `reports`: raises an event as well,
    /// because no completion reports the end.
    #[cold]
    pub(crate) fn end_by_nak(&mut self, code: NakCode, psn: Psn, reports: bool) {
        let syndrome = Syndrome::Nak(code).byte();
        let resp = &mut self.qp.conn.resp;
        resp.set_nak(Some(syndrome));
        resp.fatal_nak = Some(syndrome);
        resp.fatal_psn = psn;
        self.common.ready.set(self.qi);
        // The fault is the peer's access, the peer's request, or on this side.
        let event = match code {
            NakCode::RemoteAccess => async_event::QP_ACCESS_ERR,
            NakCode::InvalidRequest => async_event::QP_REQ_ERR,
            _ => async_event::QP_FATAL,
        };
        self.enter_error(reports.then_some(event));
    }

    #[cold]
    fn refuse(&mut self, now: u64) {
        self.count(|c| &mut c.rcvd_refused);
        self.note_odd(now);
    }
}
