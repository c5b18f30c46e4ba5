//! Faults that the device's owner injects ([`crate::inject`]): finds the queue pair of a packet,
//! and causes errors. Without such faults nothing here is called.

use super::EngineGuard;
use crate::cm::types::cm_event;
use crate::device::async_event;
use crate::roce::peer::PeerAddr;
use crate::roce::Transport;
use crate::verbs::cause::CauseCode;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::NONE;
use crate::wire::{NakCode, Psn};
use core::sync::atomic::Ordering;

/// A queue pair, as far as its packets are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketQp {
    /// Its index.
    pub index: usize,
    /// The first PSN that it sends, and the first that it expects, if its attributes name them.
    pub first: Option<(Psn, Psn)>,
    /// GID of its peer, if it has one.
    pub peer: Option<[u8; 16]>,
    /// The PSN that its responder expects now.
    pub expected: Psn,
    /// Path MTU in bytes; 0: it has no connection.
    pub mtu: u32,
    /// Packets of the queue pair may come again.
    pub is_reliable: bool,
    /// The queue pair takes receive requests of an SRQ.
    pub has_srq: bool,
}

impl PacketQp {
    fn new(t: &Transport, index: usize, qp: &Qp) -> PacketQp {
        let first = (Psn::new(qp.attr.sq_psn), Psn::new(qp.attr.rq_psn));
        PacketQp {
            index,
            first: qp.kind.has_fixed_peer().then_some(first),
            peer: t.peers.get(qp.conn.peer as usize).map(|p| p.addr.gid),
            expected: qp.conn.resp.epsn,
            mtu: qp.conn.mtu,
            is_reliable: qp.kind.is_reliable(),
            has_srq: qp.srq != NONE,
        }
    }
}

/// Control: what injected faults ask for.
impl EngineGuard<'_> {
    /// The queue pair of a number, if it takes packets.
    pub fn packet_qp(&self, qpn: u32) -> Option<PacketQp> {
        let t = &self.transport;
        let index = t.common.qp_of(qpn)?;
        t.qps.get(index).filter(|qp| qp.can_receive()).map(|qp| PacketQp::new(t, index, qp))
    }

    /// The connected queue pair that sends to the number `qpn` at an address. `guess`: an index to
    /// look at first. Cost: a look at each queue pair if the guess is wrong.
    pub fn sender_to(&self, to: &PeerAddr, qpn: u32, guess: usize) -> Option<PacketQp> {
        let t = &self.transport;
        let is_it = |qp: &Qp| {
            let peer = t.peers.get(qp.conn.peer as usize);
            qp.live
                && qp.can_receive()
                && qp.kind.is_connected()
                && qp.attr.dest_qp_num == qpn
                && peer.is_some_and(|p| p.addr.gid == to.gid && p.addr.port == to.port)
        };
        let index = match t.qps.get(guess) {
            Some(qp) if is_it(qp) => Some(guess),
            _ => t.qps.iter().position(is_it),
        }?;
        Some(PacketQp::new(t, index, &t.qps[index]))
    }

    /// Makes a queue pair owe its peer an RNR NAK for the packet that it expects, as if it had no
    /// receive request. The packet itself must not reach the engine.
    pub fn refuse_unready(&mut self, index: usize) {
        let (inner, s) = self.split();
        inner.transport.conn(s, index).refuse_unready();
    }

    /// Makes the next message of a queue pair take a request of its SRQ that is not the first.
    /// `draw` decides which. Without an SRQ nothing happens.
    pub fn swap_receive(&mut self, index: usize, draw: u64) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        let Some(srq) = t.qps.get(index).map(|qp| qp.srq).filter(|srq| *srq != NONE) else {
            return;
        };
        let mut queue = s.srq(srq as usize, &t.common.key);
        let others = u64::from(queue.len().saturating_sub(1));
        if others > 0 {
            queue.swap((1 + draw % others) as u32);
        }
    }

    /// Ends the request to which a PSN of a queue pair belongs with an error, in its turn, and
    /// flushes those behind it. The packet of the PSN, and all behind it, must not leave. `rule`:
    /// the rule that requires it.
    pub fn fail_request(&mut self, now: u64, index: usize, psn: Psn, status: u32, rule: u32) {
        let (inner, s) = self.split();
        if inner.transport.qps.get(index).is_some_and(Qp::can_send) {
            inner.transport.conn(s, index).fail_sent(now, psn, status, rule);
        }
    }

    /// Ends the message that an RC queue pair expects with an error, and with it the receive
    /// request and the queue pair. The packet must not reach the engine then. False: there is no
    /// receive request.
    pub fn fail_arrival(&mut self, now: u64, index: usize, status: u32, rule: u32) -> bool {
        let (inner, s) = self.split();
        let is_rc = |qp: &Qp| qp.kind == QpKind::Rc && qp.can_receive();
        inner.transport.qps.get(index).is_some_and(is_rc)
            && inner.transport.conn(s, index).fail_receive(now, status, rule)
    }

    /// Raises an event of a queue pair. An event that reports an error ends the queue pair, as the
    /// error itself would.
    pub fn raise_on_qp(&mut self, now: u64, index: usize, event: u32, rule: u32) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        let Some(qp) = t.qps.get(index).filter(|qp| qp.live) else { return };
        let (is_rc, is_shared) = (qp.kind == QpKind::Rc, qp.srq != NONE || qp.xrcd != NONE);
        let (fails, receives) = (qp.can_fail(), qp.can_receive());
        let mut conn = t.conn(s, index);
        let code = match event {
            async_event::QP_FATAL => NakCode::RemoteOperation,
            async_event::QP_REQ_ERR => NakCode::InvalidRequest,
            async_event::QP_ACCESS_ERR => NakCode::RemoteAccess,
            async_event::QP_LAST_WQE_REACHED if fails && is_shared => {
                // The event comes behind the last request of a failed queue pair.
                conn.note(now, CauseCode::Injected, 0, rule.into(), 0);
                return conn.enter_error(None);
            }
            _ => return conn.raise_qp(event),
        };
        if !fails {
            return conn.raise_qp(event);
        }
        conn.note(now, CauseCode::Injected, 0, rule.into(), 0);
        match is_rc && receives {
            true => conn.end_by_nak(code, conn.qp.conn.resp.epsn, true),
            false => conn.enter_error(Some(event)),
        }
    }

    /// Ends the send CQ of a queue pair.
    pub fn fail_cq_of(&mut self, now: u64, index: usize, rule: u32) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        let cq = t.qps.get(index).map_or(NONE, |qp| if qp.live { qp.scq } else { NONE });
        if t.common.cqs.get(cq as usize).is_some_and(|cq| !cq.has_failed()) {
            t.fail_cq(s, now, cq as usize, CauseCode::Injected, rule.into());
        }
    }

    /// Raises an event of the SRQ of a queue pair. An error ends the queue pairs that use it.
    pub fn raise_on_srq(&mut self, now: u64, index: usize, event: u32, rule: u32) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        let index = t.qps.get(index).map_or(NONE, |qp| if qp.live { qp.srq } else { NONE });
        let Some(srq) = t.common.srqs.get_mut(index as usize) else { return };
        srq.events |= 1 << event;
        s.notify.store(true, Ordering::Release);
        if event == async_event::SRQ_ERR {
            self.fail_qps_where(now, rule, |qp| qp.srq == index);
        }
    }

    /// Removes the device: all queue pairs end.
    pub fn remove_device(&mut self, now: u64, rule: u32) {
        self.raise_port(async_event::DEVICE_FATAL);
        self.cm_interface_changed(cm_event::DEVICE_REMOVAL);
        self.fail_qps_where(now, rule, |_| true);
    }

    fn fail_qps_where(&mut self, now: u64, rule: u32, are: impl Fn(&Qp) -> bool) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        for qi in 0..t.qps.len() {
            if t.qps[qi].live && t.qps[qi].can_fail() && are(&t.qps[qi]) {
                let mut conn = t.conn(s, qi);
                conn.note(now, CauseCode::Injected, 0, rule.into(), 0);
                conn.enter_error(None);
            }
        }
    }

    /// Ends the connection of a queue pair by the connection manager, as a program would: both ends
    /// are told.
    pub fn disconnect(&mut self, now: u64, index: usize) {
        let (inner, _) = self.split();
        if let Some(qp) = inner.transport.qps.get(index).filter(|qp| qp.live) {
            inner.cm.peer_silent(now, qp.qpn, false);
        }
    }
}
