//! One engine with its ports: the calls of `Device` that need more than the engine's core.

use core::sync::atomic::Ordering;

use super::lock::ControlGuard;
use super::rounds::limits::Round;
use super::SoftEngine;
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::interface_state::{InterfaceState, InterfaceWatch};
use crate::port::Port;
use crate::thread_token::token;
use crate::wait::PreSleepCheck;
use gdrcore_core::config::{lowered, Config};
use gdrcore_core::counters::Counters;
use gdrcore_core::device::{port_state, DeviceAttr};
use gdrcore_core::engine::limits::{MAX_CQE, MAX_DEPTH, MAX_MESSAGE};
use gdrcore_core::engine::{cm::node_guid, Engine};
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::sleep;
use gdrcore_core::verbs::post::{self, Take};
use gdrcore_core::verbs::shared::{polled, slotless, CqShared, QpShared};
use gdrcore_core::verbs::types::{
    qp_attr_mask, qp_state, qp_type, AhAttr, Handle, QpAttr, QpCap, QpInit, RecvWr, SendWr, Wc,
};

/// Data: the hot calls of `Device`, for callers that have checked that this process opened the
/// device.
impl SoftEngine {
    /// As `Device::post_send`.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there; and the process is the owner.
    #[inline(always)]
    pub unsafe fn quick_post_send(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        *bad = wr;
        let (qi, q) = self.engine.qp(qp)?;
        // SAFETY: the caller's promise.
        unsafe { self.post_send_to(qi, q, wr, bad, Take::Some) }
    }

    /// As `Device::post_send`, to the QP at an index, which was looked up.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn post_send_to(
        &self,
        qi: usize,
        q: &QpShared,
        wr: *const SendWr,
        bad: &mut *const SendWr,
        take: Take,
    ) -> Result<()> {
        let done = match q.slotless.load(Ordering::Relaxed) {
            slotless::NO => false,
            // SAFETY: the caller's promise.
            slotless::MAPPED => unsafe { self.write_peer_single(qi, q, wr) },
            // SAFETY: as above.
            _ => unsafe { self.pass_single(qi, q, wr) },
        };
        if done {
            return Ok(());
        }
        q.expect_frame();
        // SAFETY: the caller's promise.
        let Some(posted) = (unsafe { post::send_one::<false>(q, wr) }) else {
            // SAFETY: as above.
            return unsafe { self.post_to_target(qi, q, wr, bad, take) };
        };
        self.doorbell(qi, q, posted);
        Ok(())
    }

    /// As `Device::post_recv`.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there; and the process is the owner.
    #[inline(always)]
    pub unsafe fn quick_post_recv(
        &self,
        qp: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.engine.post_recv(qp, wr, bad) }
    }

    /// As `Device::post_send_all`.
    ///
    /// # Safety
    /// As there; and the process is the owner.
    pub(super) unsafe fn post_send_all(&self, qp: Handle, wr: *const SendWr) -> Result<()> {
        let (qi, q) = self.engine.qp(qp)?;
        let mut bad = wr;
        // SAFETY: the caller's promise.
        unsafe { self.post_send_to(qi, q, wr, &mut bad, Take::AllOrNone) }
    }

    /// `Device::poll_cq`.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn quick_poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        let (index, cq) = self.engine.cq(cq)?;
        self.poll_cq_at(index, cq, wc).map(|n| n as usize).ok_or_else(polled)
    }

    /// A CQ for [`SoftEngine::poll_cq_at`].
    ///
    /// # Errors
    /// [`gdrcore_core::error::Error::StaleHandle`].
    #[inline(always)]
    pub fn resolve_cq(&self, cq: Handle) -> Result<(usize, &CqShared)> {
        self.engine.cq(cq)
    }

    /// As `Device::poll_cq`, of the CQ at an index, which was looked up. The count is not more than
    /// `wc` has room for. `None`: another thread polls the CQ.
    #[inline(always)]
    pub fn poll_cq_at(&self, index: usize, cq: &CqShared, wc: &mut [Wc]) -> Option<u32> {
        // Completions that wait are taken without a round. Most polls find none, and run a round.
        match cq.ring.is_empty() {
            false => self.take_completions_of(cq, wc),
            true => self.poll_after_round(index, cq, wc),
        }
    }
}

/// Data: posts of other shapes, and polls that find nothing.
impl SoftEngine {
    /// Posts anything but one plain request to the peer of an RC or UC QP. Most such posts are
    /// plain requests to a DCI.
    ///
    /// # Safety
    /// That of `Device::post_send`.
    #[inline(never)]
    unsafe fn post_to_target(
        &self,
        qi: usize,
        q: &QpShared,
        wr: *const SendWr,
        bad: &mut *const SendWr,
        take: Take,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let Some(posted) = (unsafe { post::send_one::<true>(q, wr) }) else {
            // SAFETY: as above.
            return unsafe { self.post_list(qi, q, wr, bad, take) };
        };
        self.doorbell(qi, q, posted);
        Ok(())
    }

    /// Posts anything but one plain request.
    ///
    /// # Safety
    /// That of `Device::post_send`.
    #[cold]
    #[inline(never)]
    unsafe fn post_list(
        &self,
        qi: usize,
        q: &QpShared,
        wr: *const SendWr,
        bad: &mut *const SendWr,
        take: Take,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let (posted, outcome) = unsafe { post::send_list(q, wr, bad, take) };
        if posted.count > 0 {
            self.doorbell(qi, q, posted);
        }
        outcome
    }

    /// `Device::progress`: runs a full round for the program, and notes whether the poll found work
    /// and, with a helper, when it was. Returns the packets and runs handled.
    #[inline(never)]
    pub fn program_round(&self) -> usize {
        let now = self.helper_on.load(Ordering::Relaxed).then(now_ns);
        if let Some(now) = now {
            self.polls.last_poll_ns.store(now, Ordering::Relaxed);
        }
        let handled = self.try_round(now);
        self.note_poll(handled > 0);
        handled
    }

    /// Runs a round after a poll that found nothing, then polls again. In another thread's turn the
    /// round may be left to that thread.
    #[inline(always)]
    fn poll_after_round(&self, index: usize, cq: &CqShared, wc: &mut [Wc]) -> Option<u32> {
        if self.skip_round_at_rest() {
            return Some(0);
        }
        if wc.is_empty() {
            return Some(0);
        }
        let token = token();
        if !self.turn_for_poll(token, cq) {
            return take(cq, wc);
        }
        if self.helper_on.load(Ordering::Relaxed) {
            let handled = self.program_round();
            self.after_turn(token, handled == 0);
            return take(cq, wc);
        }
        let (mut handled, mut n) = (0, 0);
        if let Some(mut held) = self.try_lock() {
            held.begin_handoff(index, cq);
            handled = self.round(&mut held, Round::Full, None);
            if let (Some(found), Some(first)) = (held.finish_handoff(), wc.first_mut()) {
                *first = *found;
                n = 1;
            }
            if handled == 0 {
                self.note_rest(&mut held);
            }
            drop(held);
            handled += self.after_release(Round::Full);
        }
        match handled {
            0 => self.note_vain_poll(),
            // As `note_poll` without a helper.
            _ => self.polls.idle.store(0, Ordering::Relaxed),
        }
        self.after_turn(token, handled == 0);
        if n as usize == wc.len() || cq.ring.is_empty() {
            return Some(n);
        }
        match take(cq, &mut wc[n as usize..]) {
            // The first completion counts, even if another thread polls the CQ now.
            None if n > 0 => Some(n),
            more => more.map(|more| n + more),
        }
    }

    /// Wakes the helper, which runs the engine from now on: the program is about to sleep.
    pub(super) fn hand_to_helper(&self) {
        if self.helper_on.load(Ordering::Relaxed) {
            self.polls.last_poll_ns.store(0, Ordering::Relaxed);
            self.helper.wake();
        }
    }
}

/// Takes completions of a CQ.
#[cold]
#[inline(never)]
fn take(cq: &CqShared, wc: &mut [Wc]) -> Option<u32> {
    Engine::take_completions(cq, wc)
}

/// The attributes of a port's state. `None`: the port is always active. `is_down`: an injected
/// event has taken it down.
fn port_attributes(state: Option<InterfaceState>, is_down: bool) -> DeviceAttr {
    let is_up = !is_down && state.is_none_or(|link| link.is_up);
    DeviceAttr {
        port_state: if is_up { port_state::ACTIVE } else { port_state::DOWN },
        has_gid: u32::from(state.is_none_or(|link| link.has_address)),
        ..DeviceAttr::default()
    }
}

/// Control: attributes.
impl SoftEngine {
    /// `Device::query`.
    pub(super) fn query(&self) -> Result<DeviceAttr> {
        self.attributes(|last| InterfaceState::read(&self.local, last.interface))
    }

    /// `Device::facts`.
    pub(super) fn facts(&self) -> Result<DeviceAttr> {
        self.attributes(Some)
    }

    /// The attributes of the device. `now` returns the port's state, given the state that was read
    /// last, and is called without the engine's lock.
    fn attributes(
        &self,
        now: impl FnOnce(InterfaceState) -> Option<InterfaceState>,
    ) -> Result<DeviceAttr> {
        let mut held = self.lock()?;
        let c: Config = held.transport.common.config;
        // The link may have become narrower since the device was opened.
        let port = held.port();
        let link = port.net.as_ref().map_or(u32::MAX, Port::link_mtu);
        let state = port.interface.as_ref().map(InterfaceWatch::state);
        let is_down = port.injector().is_some_and(|injector| injector.is_down());
        drop(held);
        let (limits, grown) = (&c.limits, |n: u32| c.table(n) as u32);
        Ok(DeviceAttr {
            max_msg_size: MAX_MESSAGE,
            node_guid: node_guid(&super::peer_addr(&self.local)),
            max_pd: lowered(grown(c.max_pd), limits.max_pd),
            max_mr: lowered(c.regions() as u32, limits.max_mr),
            max_mr_size: limits.max_mr_size.unwrap_or(u64::MAX),
            max_cq: lowered(grown(c.max_cq), limits.max_cq),
            // Each QP takes a number of the block.
            max_qp: lowered(grown(c.max_qp).min(c.qpn_count), limits.max_qp),
            max_srq: lowered(grown(c.max_srq), limits.max_srq),
            max_ah: lowered(grown(c.max_ah), limits.max_ah),
            max_qp_wr: lowered(MAX_DEPTH, limits.max_qp_wr),
            max_cqe: lowered(MAX_CQE, limits.max_cqe),
            max_sge: c.max_sge,
            max_inline: c.max_inline,
            max_rd_atomic: c.max_rd_atomic,
            active_mtu: gdrcore_core::wire::mtu_code(self.mtu.min(super::largest_path_mtu(link)))
                .unwrap_or(1),
            udp_port: u32::from(self.local.port),
            qpn_base: c.qpn_base,
            gid: self.local.ip,
            scope_id: self.local.scope_id,
            own_port: 1,
            ..port_attributes(state.and_then(now), is_down)
        })
    }

    /// `Device::path_mtu`.
    pub(super) fn path_mtu(&self, to: &AhAttr) -> Result<u32> {
        let link = self.facts()?.active_mtu;
        let scope_id = if to.scope_id == 0 { self.local.scope_id } else { to.scope_id };
        let to = Endpoint { ip: to.dgid, scope_id, ..Endpoint::default() };
        let route = self.lock_control().port().net.as_ref().and_then(|net| net.route_mtu(&to));
        let code = route.and_then(|mtu| gdrcore_core::wire::mtu_code(super::largest_path_mtu(mtu)));
        Ok(code.map_or(link, |route| link.min(route)))
    }

    /// The counters of the engine and its ports.
    pub(super) fn counters(&self) -> Result<Counters> {
        let mut held = self.lock()?;
        let (g, port) = held.parts();
        Ok(port.counters(g))
    }
}

/// Control: objects, the helper, memory.
impl SoftEngine {
    /// `Device::cq_resize`, of a ring of this engine.
    pub(super) fn cq_resize(&self, cq: Handle, cqe: u32) -> Result<u32> {
        let given = self.lock()?.cq_resize(cq, cqe);
        self.try_send();
        given
    }

    /// `Device::cq_arm`, of a ring of this engine.
    pub(super) fn cq_arm(&self, cq: Handle, solicited_only: bool) -> Result<()> {
        self.lock()?.arm_cq(cq, solicited_only)?;
        self.hand_to_helper();
        Ok(())
    }

    /// `Device::qp_create`.
    pub(super) fn qp_create(&self, init: &QpInit) -> Result<(Handle, u32, QpCap)> {
        let mut held = self.lock()?;
        if let Some(net) = held.port().net.as_mut().filter(|_| init.qp_type == qp_type::UD) {
            // Datagrams need the IP headers for their GRH.
            net.show_headers();
        }
        let made = held.qp_create(now_ns(), init)?;
        let (g, port) = held.parts();
        if let (Some(injector), Ok(index)) = (port.injector(), g.shared().qp_pool.check(made.0)) {
            if let Err(e) = injector.note_made(index) {
                held.qp_destroy(now_ns(), made.0)?;
                return Err(e);
            }
        }
        Ok(made)
    }

    /// `Device::qp_modify`.
    pub(super) fn qp_modify(&self, qp: Handle, attr: &QpAttr, mask: u32) -> Result<()> {
        self.fork.check()?;
        if mask & qp_attr_mask::STATE != 0
            && matches!(attr.qp_state, qp_state::ERR | qp_state::RESET)
        {
            // As in `qp_destroy`: a program that disconnects (rdma_disconnect) has received the
            // last message, whose sender waits for the ACK.
            self.drain_and_ack(Some(qp));
        }
        let dest_qpn = (mask & qp_attr_mask::DEST_QPN != 0).then_some(attr.dest_qp_num);
        let names_peer = mask & qp_attr_mask::AV != 0 && self.has_fixed_peer(qp)?;
        let way = if names_peer { self.ask_router(&attr.ah, dest_qpn)? } else { None };
        let mut held = self.lock_control();
        if names_peer {
            self.choose_path(&mut held, &attr.ah, dest_qpn, way)?;
        }
        self.modify_locked(held, now_ns(), qp, attr, mask)
    }

    /// Modifies a queue pair whose path was chosen, for the program or its connection manager.
    pub(super) fn modify_locked(
        &self,
        mut held: ControlGuard<'_>,
        now: u64,
        qp: Handle,
        attr: &QpAttr,
        mask: u32,
    ) -> Result<()> {
        held.qp_modify(now, qp, attr, mask)?;
        let (g, port) = held.parts();
        if let (Some(injector), Ok(index)) = (port.injector(), g.shared().qp_pool.check(qp)) {
            match attr.qp_state {
                _ if mask & qp_attr_mask::STATE == 0 => {}
                qp_state::INIT => injector.note_connection(index),
                // Held packets leave before the message of the connection's end.
                qp_state::ERR => injector.release_held(Some(index)),
                _ => {}
            }
        }
        drop(held);
        self.try_send();
        Ok(())
    }

    /// `Device::qp_reset`.
    pub(super) fn qp_reset(&self, qp: Handle) -> Result<()> {
        self.fork.check()?;
        // The last ACK to its peer leaves first.
        self.drain_and_ack(Some(qp));
        self.lock()?.qp_reset(now_ns(), qp)
    }

    /// `Device::qp_destroy`.
    pub(super) fn qp_destroy(&self, qp: Handle) -> Result<()> {
        self.fork.check()?;
        // The last ACK to its peer leaves first.
        self.drain_and_ack(Some(qp));
        let mut held = self.lock()?;
        let index = held.shared().qp_pool.check(qp);
        held.qp_destroy(now_ns(), qp)?;
        if let (Some(injector), Ok(index)) = (held.port().injector(), index) {
            injector.note_ended(index);
        }
        drop(held);
        Self::leave_empty_groups(&mut self.lock_control());
        Ok(())
    }

    /// `Device::helper`.
    pub(super) fn helper(&self, on: bool) -> Result<()> {
        if on {
            self.helper_start()
        } else {
            self.helper_stop();
            Ok(())
        }
    }

    /// `Device::arena_add`.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn arena_add(&self, memory: *mut u8, bytes: usize) -> Result<()> {
        self.fork.check()?;
        if memory.is_null() {
            return Err(refuse!(Invalid, "memory: NULL"));
        }
        // SAFETY: the caller's promise.
        unsafe { self.lock()?.arena_add(memory, bytes) }
    }
}

/// Waiting: sleep on the device.
impl SoftEngine {
    /// `Device::arm`.
    pub(super) fn arm(&self) -> Result<bool> {
        self.fork.check()?;
        self.waiter.drain();
        // From now on a round wakes this thread for events. Earlier events are looked for below.
        self.sleeping.announce(sleep::ANY);
        // This round may have put a completion into a CQ that is not armed, so the thread must not
        // sleep yet.
        if self.try_round(Some(now_ns())) > 0 {
            return Ok(true);
        }
        if self.announce_sleep() {
            return Ok(true);
        }
        let mut held = self.lock_control();
        let next = held.next_timeout(now_ns());
        let blocked = held.port().is_blocked();
        if held.has_events() || (held.has_work() && !blocked) {
            return Ok(true);
        }
        if self.helper_on.load(Ordering::Relaxed) {
            drop(held);
            self.hand_to_helper();
            return Ok(false);
        }
        self.waiter.set_timer(next);
        Ok(false)
    }

    /// `Device::wait`.
    pub(super) fn wait(&self, timeout_ms: i32) -> Result<bool> {
        self.waiter.sleep_until(timeout_ms, || {
            let work = self.arm()?;
            Ok(PreSleepCheck { found: self.lock()?.has_events(), work })
        })
    }
}
