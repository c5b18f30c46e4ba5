//! The links to other processes of this host: taking what they brought, writing what the engine has
//! for them.

use core::sync::atomic::Ordering;

use super::budget::{BURSTS, LAST_WORDS, OVERDUE_NS};
use super::loans::lend;
use super::relayed;
use super::sharing::pass_run;
use super::{peer_addr, PathChoice, Port, SoftDevice};
use crate::clock::now_ns;
use crate::shm::ShmPort;
use gdrcore_core::engine::Guard;

/// How often the sockets of the links are looked at while somebody polls: a new peer waits so long,
/// and a dead one is noticed so late. It costs a system call per link, which delays the message
/// that comes meanwhile; so while nobody comes or goes the time doubles, from the first of these to
/// the other.
const TEND_NS: (u64, u64) = (100_000, 1_600_000);

impl SoftDevice {
    /// Writes the one small message that a QP was just posted into the ring of its link, if nothing
    /// is in its way.
    #[inline(always)]
    pub(super) fn send_single(&self, g: &mut Guard<'_>, port: &mut Port, qi: usize) -> bool {
        let Some(shm) = port.shm.as_mut() else { return false };
        // A helper that sleeps wants to know until when it may: then the time is read, once the
        // peer has begun.
        g.send_single(qi, shm, !self.is_helper_awake(), now_ns)
    }

    /// Writes what a QP was just posted into the ring of its link. When; `None`: it goes another
    /// way.
    #[inline]
    pub(super) fn send_to_link(
        &self,
        g: &mut Guard<'_>,
        port: &mut Port,
        qi: usize,
        link: u16,
    ) -> Option<u64> {
        let shm = port.shm.as_mut()?;
        let (room, memory) = shm.room(link)?;
        let now = now_ns();
        let len = g.transmit_to_link(now, qi, link, room, memory);
        if len > 0 {
            shm.commit(link, len);
        }
        Some(now)
    }

    /// Looks after the links now and then. `handled`: what this round has taken from them.
    #[inline]
    pub(super) fn tend_if_due(&self, g: &mut Guard<'_>, port: &mut Port, now: u64, handled: usize) {
        if now >= port.tend_at && (handled == 0 || now - port.tend_at >= OVERDUE_NS) {
            self.tend(g, port, now);
        }
    }

    /// Takes what other processes have put into our rings.
    #[inline(always)]
    pub(super) fn read_links(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
        let Port { shm, share, stale, .. } = port;
        let Some(shm) = shm else { return 0 };
        shm.poll_with(
            &mut (g, share),
            // For what it does with the time, one of a few rounds ago will do: an owed ACK leaves
            // so much earlier.
            |(g, _), from, head, rest| g.take_record(now, &from.ip, head, rest),
            |(g, share), from, run| match run {
                Ok((run, payload)) if g.owns(run.dest_qpn) => {
                    let now = if *stale == 0 { now } else { now_ns() };
                    g.handle_run(now, &peer_addr(from), run, payload);
                }
                Ok((run, payload)) => pass_run(share, &self.local, from, run, payload),
                Err(_) => g.count_malformed(),
            },
        )
    }

    #[inline(never)]
    fn read_links_apart(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
        self.read_links(g, port, now)
    }

    /// New links, bells, links that are gone. Some system calls.
    #[cold]
    pub(super) fn tend(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) {
        relayed::tend(port);
        let Some(shm) = &mut port.shm else { return };
        self.hear_router(shm, now);
        let next = if shm.tend(now, &self.waiter) {
            TEND_NS.0
        } else {
            (2 * port.tend_every).clamp(TEND_NS.0, TEND_NS.1)
        };
        (port.tend_every, port.tend_at) = (next, now + next);
        lend(g, shm);
        if shm.has_lost() {
            // Who is gone may have said something before: the last ACK counts. Bounded, since
            // others may go on writing.
            for _ in 0..LAST_WORDS {
                if self.read_links_apart(g, port, now) == 0 {
                    break;
                }
            }
        }
        if let Some(shm) = &mut port.shm {
            port.discards |= self.via.is_some() && shm.has_lost();
            self.lose_links(g, shm, now);
            self.near.store(shm.has_links(), Ordering::Relaxed);
        }
    }

    /// Tells the engine of links that are gone. Those of datagrams lead to an address, which may
    /// have other owners: they go through the network from then on, unless only shared memory is
    /// wanted.
    fn lose_links(&self, g: &mut Guard<'_>, shm: &mut ShmPort, now: u64) {
        while let Some((link, of_address)) = shm.take_lost() {
            if of_address && self.path == PathChoice::Auto {
                g.link_ended(link);
            } else {
                g.link_lost(now, link);
            }
        }
    }

    /// Writes what the engine has for other processes into their rings.
    #[inline]
    pub(super) fn send_links(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) {
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
            // No room, or nothing after all: the others have their turn.
            full[n_full] = link;
            n_full += 1;
            if n_full == full.len() {
                break;
            }
        }
        port.discards |= self.via.is_some() && shm.has_lost();
        self.lose_links(g, shm, now);
    }
}
