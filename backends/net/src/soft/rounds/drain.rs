//! The last rounds before a queue pair, a connection or a process ends: packets that have arrived
//! are received and answered.

use crate::clock::now_ns;
use crate::soft::lock::{ControlGuard, EngineLock};
use crate::soft::rounds::limits::{Round, DRAIN_ROUNDS, LAST_ACK_NS, LAST_READ_NS, ROOM_POLL};
use crate::soft::SoftEngine;
use gdrcore_core::verbs::types::Handle;

/// Control: the last rounds before an end.
impl SoftEngine {
    /// Receives and answers everything that has arrived, as a NIC would have, before a queue pair
    /// ends. `None`: before a process or a connection ends; then it does not wait for the long
    /// answer of a READ, which any peer could request. Bounded, because peers may continue to send,
    /// and a ring without room may stay so.
    pub(in crate::soft) fn drain_and_ack(&self, qp: Option<Handle>) {
        self.drain_and_ack_locked(self.lock_control(), qp);
    }

    /// Lets packets of a queue pair, or of all, that wait by injected faults leave and arrive now.
    pub(in crate::soft) fn release_held(&self, held: &mut EngineLock<'_>, qp: Option<Handle>) {
        let (g, port) = held.parts();
        let index = qp.map(|qp| g.shared().qp_pool.check(qp));
        if !matches!(index, Some(Err(_))) {
            port.release_held(self, g, index.and_then(Result::ok));
        }
    }

    pub(in crate::soft) fn drain_and_ack_locked<'d>(
        &'d self,
        mut held: ControlGuard<'d>,
        qp: Option<Handle>,
    ) {
        let mut rounds = DRAIN_ROUNDS;
        let mut end = None;
        if let Some(qp) = qp {
            self.release_held(&mut held, Some(qp));
        }
        // The rounds include links that were made since the last maintenance.
        held.port().schedule.look_at_links();
        while rounds > 0 {
            let now = now_ns();
            held.flush_acks();
            // The socket is read even beside links, because packets of other devices in it must not
            // be lost.
            held.port().schedule.look_at_socket();
            let handled = self.round_apart(&mut held, Round::Full, Some(now));
            let port = held.port();
            port.gave_up_room &= port.is_blocked();
            let is_blocked = port.is_blocked();
            if handled > 0 {
                rounds -= 1;
                continue;
            }
            // With room, only the answer of a READ takes more than a round: it may be long, or its
            // rate limited.
            let has_more = match qp {
                Some(qp) if !is_blocked => held.has_answer(qp),
                _ => is_blocked && held.owes_answer(qp),
            };
            if held.port().gave_up_room || !has_more {
                break;
            }
            let patience = if is_blocked { LAST_ACK_NS } else { LAST_READ_NS };
            if now > *end.get_or_insert(now + patience) {
                held.port().gave_up_room = is_blocked;
                break;
            }
            // Other threads have their turn meanwhile.
            drop(held);
            if is_blocked {
                std::thread::sleep(ROOM_POLL);
            }
            held = self.lock_control();
        }
        if let Some(member) = &mut held.port().member {
            member.forward_pending(LAST_ACK_NS);
        }
    }
}
