//! Links to other processes of this host: reads their frames, and writes the engine's frames for
//! them.

use core::sync::atomic::Ordering;

use crate::addr_group::Member;
use crate::clock::now_ns;
use crate::shm::{Records, Sender};
use crate::soft::group::rx::forward_run;
use crate::soft::peers::grants::export_requested;
use crate::soft::rounds::limits::{Round, BURSTS, DRAIN_ROUNDS};
use crate::soft::rounds::schedule::Schedule;
use crate::soft::router::relayed;
use crate::soft::{endpoint, peer_addr, PathChoice, PortState, SoftEngine};
use gdrcore_core::config::qpn_block;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::roce::peer::Path;
use gdrcore_core::roce::run::{Run, Words};
use gdrcore_core::wire::Malformed;

/// The engine that takes the runs and records that come over links.
struct Arrivals<'a, 'g> {
    engine: &'a SoftEngine,
    g: &'a mut EngineGuard<'g>,
    member: &'a mut Option<Member>,
    schedule: &'a Schedule,
    now: u64,
}

impl<'g> Records for Arrivals<'_, 'g> {
    type Again<'b>
        = Arrivals<'b, 'g>
    where
        Self: 'b;

    #[inline(always)]
    fn again(&mut self) -> Arrivals<'_, 'g> {
        let Arrivals { engine, g, member, schedule, now } = self;
        Arrivals { engine, g, member, schedule, now: *now }
    }

    #[inline(always)]
    fn take_short(&mut self, (from, receipts): Sender<'_>, head: impl Words, rest: &[u8]) -> usize {
        // The time of an earlier round is good enough: at worst an ACK leaves a little earlier.
        self.g.take_record(self.now, &from.ip, head, rest, receipts)
    }

    #[cold]
    #[inline(never)]
    fn take(&mut self, (from, receipts): Sender<'_>, run: Result<(&Run, &[u8]), Malformed>) {
        match run {
            Ok((run, payload)) if self.g.owns(run.dest_qpn) => {
                let now = self.schedule.exact(self.now, now_ns);
                self.g.handle_run(now, &peer_addr(from), run, payload, receipts);
            }
            Ok((run, payload)) => {
                forward_run(self.member, &self.engine.local, from, run, payload);
            }
            Err(_) => self.g.count_malformed(),
        }
    }
}

/// Data, under the lock: links to other processes.
impl SoftEngine {
    /// Writes the request that was just posted to a QP into the ring of its link. False: the
    /// request takes another path, or there is more to do. `is_plain`: the last request is a SEND
    /// or WRITE.
    #[inline(always)]
    pub(in crate::soft) fn send_to_link<const DC: bool>(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        qi: usize,
        is_plain: bool,
    ) -> bool {
        let Some(shm) = port.shm.as_mut() else { return false };
        // A sleeping helper must learn how long it may sleep. So this reads the clock, after the
        // peer has the message.
        let asleep = !self.is_helper_awake();
        if !is_plain || !g.send_single::<DC, _>(qi, shm, asleep, now_ns) {
            return self.send_posted_to_link(g, port, qi);
        }
        if asleep {
            self.notify_helper(g, now_ns(), Round::Send);
        }
        !g.has_known_work()
    }

    /// Writes the requests that were just posted to a QP into the ring of its link. False: they
    /// take another path, or there is more to do.
    #[cold]
    #[inline(never)]
    fn send_posted_to_link(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        qi: usize,
    ) -> bool {
        let (Some(Path::Link(link)), Some(shm)) = (g.path_of(qi), &mut port.shm) else {
            return false;
        };
        let Some((room, memory)) = shm.room(link) else { return false };
        let now = now_ns();
        let len = g.transmit_to_link(now, qi, link, room, memory);
        if len > 0 {
            shm.commit(link, len);
        }
        self.end_send(g, port, Some(now))
    }

    /// Maintains the links at intervals. `handled`: number of frames that this round has read from
    /// them. Returns the number of frames that were read from new links.
    #[inline]
    pub(in crate::soft) fn maintain_if_due(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        now: u64,
        handled: usize,
    ) -> usize {
        if port.schedule.is_maintenance_due(now, handled) && self.maintain_links(g, port, now) {
            return self.drain_links(g, port, now);
        }
        0
    }

    /// Reads the frames that other processes wrote into our rings.
    #[inline(always)]
    pub(in crate::soft) fn read_links(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        now: u64,
    ) -> usize {
        let PortState { shm, member, schedule, .. } = port;
        let Some(shm) = shm else { return 0 };
        shm.poll_with(&mut Arrivals { engine: self, g, member, schedule, now })
    }

    /// Reads all frames, because a process has ended or connected. Bounded, because others may
    /// continue to write. Returns their number.
    #[inline(never)]
    pub(in crate::soft) fn drain_links(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        now: u64,
    ) -> usize {
        let reads = (0..DRAIN_ROUNDS).map(|_| self.read_links(g, port, now));
        reads.take_while(|&n| n > 0).sum()
    }

    /// Finds links back to DC initiators whose requests came over a link. An initiator without a
    /// link is answered through the port. Costs some system calls for each.
    #[cold]
    pub(in crate::soft) fn link_contexts(&self, g: &mut EngineGuard<'_>, port: &mut PortState) {
        while let Some((at, addr, qpn)) = g.next_unlinked() {
            if let Some(siblings) = &self.siblings {
                self.link_context(g, port, siblings, at, qpn);
                continue;
            }
            let Some(shm) = port.shm.as_mut().filter(|_| self.via.is_none()) else { continue };
            let block = qpn_block(qpn);
            if let Ok(link) = shm.connect(&endpoint(&addr), Some(block), &self.waiter) {
                g.set_context_link(at, link);
            }
        }
    }

    /// Maintains the links: new links, wake-ups, grants, ends. Costs some system calls. Returns
    /// whether a process has connected or ended.
    #[cold]
    pub(in crate::soft) fn maintain_links(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        now: u64,
    ) -> bool {
        relayed::maintain(port);
        port.answer_status_request(g);
        port.watch_peers(g, now);
        self.poll_router(g, port, now);
        let Some(shm) = &mut port.shm else {
            // A device with a socket alone is maintained as rarely as idle links.
            port.schedule.plan_maintenance_alone(now, port.router.relay.is_some());
            return false;
        };
        let has_changed = shm.maintain(now, &self.waiter);
        port.schedule.plan_maintenance(now, has_changed);
        export_requested(g, shm);
        if shm.has_lost() {
            // A process that has ended may have written a last ACK.
            self.drain_links(g, port, now);
        }
        if let Some(shm) = &mut port.shm {
            port.discards |= self.via.is_some() && shm.has_lost();
        }
        self.lose_links(g, port, now);
        if let Some(shm) = &port.shm {
            self.has_local_peers.store(shm.has_links(), Ordering::Relaxed);
            let is_relayed = port.router.relay.is_some() && !shm.has_links();
            self.is_relayed.store(is_relayed, Ordering::Relaxed);
        }
        has_changed
    }

    /// Reports lost links to the engine. A link for datagrams leads to an address, which may have
    /// other owners. So these datagrams take the network from now on, unless the device uses only
    /// shared memory.
    fn lose_links(&self, g: &mut EngineGuard<'_>, port: &mut PortState, now: u64) {
        let PortState { shm: Some(shm), member, .. } = port else { return };
        while let Some((link, lost)) = shm.take_lost() {
            g.take_link_receipts(now, link, lost.receipts());
            // A watched process may have sent the reason of its end.
            let watched = |member: &Member| member.watches(&lost.to, lost.block);
            if !member.as_ref().is_some_and(watched) {
                g.cm_link_lost(now, link);
            }
            if lost.block.is_none() && self.path == PathChoice::Auto {
                g.link_ended(link);
            } else {
                g.link_lost(now, link);
            }
        }
    }

    /// Writes the engine's frames for other processes into their rings.
    #[inline]
    pub(in crate::soft) fn send_links(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        now: u64,
    ) {
        let Some(shm) = &mut port.shm else { return };
        port.rings_full = false;
        let mut full = [u16::MAX; 4];
        let mut n_full = 0;
        for _ in 0..BURSTS {
            let Some(link) = g.next_link(now, |k| full.contains(&k)) else { break };
            let len = match shm.room(link) {
                Some((room, memory)) => g.poll_transmit_link(now, link, room, memory),
                None => {
                    port.rings_full = true;
                    0
                }
            };
            if len > 0 {
                shm.commit(link, len);
                continue;
            }
            // The link has no room, or nothing to send after all. The other links continue.
            full[n_full] = link;
            n_full += 1;
            if n_full == full.len() {
                break;
            }
        }
        port.discards |= self.via.is_some() && shm.has_lost();
        self.lose_links(g, port, now);
    }
}
