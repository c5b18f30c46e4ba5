//! Whether the kernel steers this member's packets to this member, and what to do if not: the own
//! index in the kernel's list, the table of all members, the program made of it, and the packets to
//! oneself that test it.

use super::super::group_msg::{Delivery, GroupMsg};
use super::super::numbers::{BLOCK_MAX, BLOCK_QPN_BASE, INDEX_QPN_BASE};
use super::super::steer::Program;
use super::super::table::{ENTRIES, INDEX_MAX};
use super::{Arrived, Member, Phase};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::reason::say;
use gdrcore_core::wire::{IcrcFlow, ICRC_LEN};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Time to receive a packet to oneself. It is in the socket before its send returns, but may stand
/// behind others.
const SELF_TEST_NS: u64 = 20_000_000;
/// Interval of checks of a member that waits for a peer and receives nothing.
const WAITING_CHECK_NS: u64 = 100_000_000;
/// Interval of checks of a member that waits for nothing: a peer may send requests that never
/// arrive. It is below the ACK timeout of most programs, so that a retry comes after the check.
const QUIET_CHECK_NS: u64 = 400_000_000;
/// Further time for a member that has not yet read its socket to the end.
const UNREAD_NS: u64 = 200_000_000;
/// Least time between two checks that detours cause.
const DETOUR_CHECK_NS: u64 = 50_000_000;
/// Longest delay of a new version of the table. If many members join at once, one version then has
/// the changes of several.
const GATHER_NS: u64 = 4_000_000;
/// An index that no socket has.
const NO_INDEX: u32 = 0xffff;
/// Attempts to learn the own index; after the last one packets take detours.
const PROBE_TRIES: u32 = 5;

/// Bytes of a packet to oneself: BTH, a CNP's reserved bytes (here: its number), ICRC.
pub(super) const SELF_LEN: usize = 12 + 16 + ICRC_LEN;
/// CNP: no other opcode has a payload without a meaning, so a capture shows nothing unusual.
const OPCODE: u8 = 0x81;
/// In place of the number: another process asks this one to check its names.
const RENEW_NAMES: u64 = u64::from_le_bytes(*b"gdrnames");
/// Least time between two such checks.
const NAMES_CHECK_NS: u64 = 50_000_000;

/// Sends a packet to oneself: from a socket to an address, whose `flow` it has. What cannot be sent
/// now is lost.
fn send_self_test(socket: RawFd, to: &Endpoint, flow: &IcrcFlow, qpn: u32, number: u64) {
    let mut packet = [0u8; SELF_LEN];
    packet[0] = OPCODE;
    packet[2..4].copy_from_slice(&0xffffu16.to_be_bytes());
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    packet[12..20].copy_from_slice(&number.to_le_bytes());
    flow.append_icrc(0, &mut packet);
    const { assert!(SELF_LEN <= crate::udp::SMALL) };
    let (to, len) = to.to_sockaddr();
    // SAFETY: the packet and the address live through the call and have the lengths beside them.
    unsafe {
        let p = packet.as_ptr().cast();
        libc::sendto(socket, p, SELF_LEN, libc::MSG_DONTWAIT, (&raw const to).cast(), len);
    }
}

/// Asks the processes of an address to check their names: one packet to each of the first 64
/// indexes, from a further socket of that address. A session manager may have removed the directory
/// of a user who has logged out (logind.conf(5), RemoveIPC).
pub(crate) fn request_renewal(at: &Endpoint) {
    let Ok(from) = crate::udp::unconnected(at) else { return };
    let flow = IcrcFlow::from_gids(&at.ip, &at.ip, at.port, at.port);
    for index in 0..64 {
        send_self_test(from.raw(), at, &flow, INDEX_QPN_BASE + index, RENEW_NAMES);
    }
}

/// Whether this process has printed that the kernel refuses the program.
static REFUSAL_PRINTED: AtomicBool = AtomicBool::new(false);

impl Member {
    /// Enters the own blocks, index and services in the next version of the table.
    pub(super) fn list_own(&mut self) {
        let Some(index) = self.index else { return };
        self.table.begin_next_version(self.block);
        let owned = self.block..self.block + self.count;
        for block in owned.clone() {
            self.table.set(block, index, owned.clone());
        }
        self.table.set_services(self.block, self.services.iter().flatten().map(|s| s.name));
    }

    /// Whether the table has the own blocks at the own index.
    pub(super) fn lists_own_blocks(&self) -> bool {
        (self.block..self.block + self.count)
            .all(|b| self.index.is_some() && self.table.index_of(b) == self.index)
    }

    /// Whether the table has exactly the own services for the own block, as far as the table has
    /// room.
    pub(super) fn lists_own_services(&self) -> bool {
        let own = |name: u32| self.services.iter().flatten().any(|s| s.name == name);
        let listed = self.table.services().iter().filter(|s| s.1 == self.block);
        let wanted = self.services.iter().flatten().count();
        listed.clone().all(|s| own(s.0))
            && (listed.count() == wanted || self.table.services_are_full())
    }

    /// If exactly one owner lacks an index and exactly one index lacks an owner, they belong
    /// together. So packets are steered to a process that does not answer, too.
    fn conclude_last(&mut self) {
        let mut missing = None;
        let mut others = 0u16;
        for block in 0..=BLOCK_MAX {
            if self.is_known(block) {
                others += 1;
                if self.table.index_of(block).is_none() && missing.replace(block).is_some() {
                    return;
                }
            }
        }
        let Some(block) = missing else { return };
        let taken = |i: u16| self.index == Some(i) || self.table.entries().iter().any(|e| e.1 == i);
        let mut free = (0..=others).filter(|&i| !taken(i));
        if let (Some(index), None) = (free.next(), free.next()) {
            self.table.set(block, index, block..block + 1);
        }
    }

    pub(super) fn is_known(&self, block: u16) -> bool {
        self.known.get(usize::from(block / 64)).is_some_and(|w| w >> (block % 64) & 1 != 0)
    }

    /// Notes that a block, at most [`BLOCK_MAX`], has an owner.
    pub(super) fn note_known(&mut self, block: u16) {
        self.known[usize::from(block / 64)] |= 1 << (block % 64);
    }

    /// Attaches the table's program.
    pub(super) fn attach(&mut self) {
        if self.refused {
            return;
        }
        match Program::new(&mut self.program, &self.table).attach(self.socket) {
            Ok(()) => {
                self.counters.attached += 1;
                self.attached = self.table.order_key();
            }
            Err(e) => {
                self.counters.refused += 1;
                self.refused = true;
                self.phase = Phase::Idle;
                if !REFUSAL_PRINTED.swap(true, Ordering::Relaxed) {
                    // Printed for an operator who wonders about the speed; programs work.
                    say(format_args!(
                        "the kernel does not steer packets to the processes that share \
                         {} ({e}); they pass them on, which is slower",
                        self.local
                    ));
                }
            }
        }
    }

    /// Writes the next version, attaches its program and sends it to all members. Removes members
    /// that turn out to have ended.
    pub(super) fn publish(&mut self) {
        self.publish_ns = None;
        if !self.has_others() {
            return self.list_own();
        }
        // Each iteration but the last removes a member.
        for _ in 0..ENTRIES {
            self.list_own();
            self.conclude_last();
            self.attach();
            let news = self.table;
            let mut gone = false;
            for block in 0..=BLOCK_MAX {
                let wanted = self.is_known(block) || news.index_of(block).is_some();
                if wanted
                    && !self.owns_block(block)
                    && self.send_to(block, &GroupMsg::TableUpdate(&news)) == Delivery::NoOwner
                {
                    gone |= self.table.remove(block);
                }
            }
            if !gone {
                return;
            }
        }
    }

    /// Publishes within [`GATHER_NS`], at a random time, so that, if many members have changes,
    /// only a few write versions.
    pub(super) fn publish_soon(&mut self, now: u64) {
        let at = now + self.next_nonce() % GATHER_NS;
        self.publish_ns.get_or_insert(at);
    }

    fn next_nonce(&mut self) -> u64 {
        self.nonce =
            self.nonce.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.nonce >> 16
    }

    /// Sends this member a packet for each index below `range`.
    fn probe_indexes(&mut self, now: u64, range: u16) {
        if self.refused {
            self.phase = Phase::Idle;
            return;
        }
        self.next_nonce();
        for index in 0..range {
            self.send_self(INDEX_QPN_BASE + u32::from(index));
        }
        self.begin(
            Phase::Probing { range, lowest: None, received: 0 },
            now,
            SELF_TEST_NS << self.tries,
        );
    }

    /// How many indexes to probe first: more than the known sockets, with room for members that
    /// join meanwhile.
    fn first_range(&self) -> u16 {
        let others = self.known.iter().map(|w| w.count_ones()).sum::<u32>() as u16;
        self.table.max_index().map_or(0, |i| i + 1).max(others + 1).saturating_add(4).min(INDEX_MAX)
    }

    /// A block that another member has by the table.
    fn foreign_block(&self) -> Option<u16> {
        let other = |e: &&(u16, u16)| Some(e.1) != self.index && !self.owns_block(e.0);
        self.table.entries().iter().find(other).map(|e| e.0)
    }

    /// Sends this member one packet for no socket, one for its index, one for its block and one for
    /// the block of another member.
    pub(super) fn check(&mut self, now: u64) {
        self.checked_ns = now;
        if self.refused {
            return;
        }
        self.next_nonce();
        self.send_self(INDEX_QPN_BASE + NO_INDEX);
        if let Some(index) = self.index {
            self.send_self(INDEX_QPN_BASE + u32::from(index));
        }
        self.send_self(BLOCK_QPN_BASE + u32::from(self.block));
        let foreign = self.foreign_block();
        if let Some(block) = foreign {
            self.send_self(BLOCK_QPN_BASE + u32::from(block));
        }
        let foreign_block = foreign.map(|_| false);
        let arrived = Arrived { foreign_block, ..Arrived::default() };
        self.begin(Phase::Checking(arrived), now, SELF_TEST_NS);
    }

    fn send_self(&self, qpn: u32) {
        send_self_test(self.socket, &self.local, &self.flow, qpn, self.nonce);
    }

    /// Handles a packet that a member has sent to itself. Any process could send such bytes, so
    /// only those with the own number count. Returns false if the length differs, so no member can
    /// have sent it.
    #[cold]
    pub fn take_self_test(&mut self, packet: &[u8]) -> bool {
        if packet.len() != SELF_LEN {
            return false;
        }
        if packet[12..20] == RENEW_NAMES.to_le_bytes() {
            self.check_names(now_ns());
            return true;
        }
        if packet[12..20] != self.nonce.to_le_bytes() {
            return true;
        }
        let qpn = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
        match &mut self.phase {
            Phase::Checking(arrived) => {
                let own_index = self.index.map(|i| INDEX_QPN_BASE + u32::from(i));
                if qpn == INDEX_QPN_BASE + NO_INDEX {
                    arrived.no_index = true;
                } else if Some(qpn) == own_index {
                    arrived.index = true;
                } else if qpn == BLOCK_QPN_BASE + u32::from(self.block) {
                    arrived.block = true;
                } else if let Some(foreign) = &mut arrived.foreign_block {
                    // A check sends to one other block only.
                    *foreign = true;
                }
            }
            Phase::Probing { range, lowest, received }
                if qpn >= INDEX_QPN_BASE && qpn - INDEX_QPN_BASE < u32::from(*range) =>
            {
                let index = (qpn - INDEX_QPN_BASE) as u16;
                *lowest = Some(lowest.map_or(index, |l| l.min(index)));
                *received += 1;
            }
            _ => {}
        }
        true
    }

    /// Checks the names at another process's request: one system call, at a bounded rate.
    fn check_names(&mut self, now: u64) {
        if now.saturating_sub(self.names_checked_ns) >= NAMES_CHECK_NS {
            self.names_checked_ns = now;
            let lost = self.locks().next().is_some_and(|lock| !lock.is_there());
            self.names_lost = lost;
        }
    }

    /// The socket is empty: packets to oneself that have not arrived by now will not arrive.
    #[inline]
    pub fn note_socket_empty(&mut self, now: u64) {
        self.has_read_all = true;
        match self.phase {
            Phase::Probing { lowest: Some(_), .. }
            | Phase::Checking(Arrived { block: true, .. }) => self.until_ns = now,
            _ => {}
        }
    }

    /// Learns the own index from the probes that arrived. One to an index that no socket has goes
    /// where the kernel's hash says, for all such indexes to the same member. If that is this one,
    /// the own index is the lowest that arrived; else it is the only one. If all probes arrived, or
    /// none, no program is attached yet.
    fn conclude_probe(&mut self, now: u64, range: u16, lowest: Option<u16>, received: u16) {
        self.phase = Phase::Idle;
        self.tries += 1;
        match lowest {
            Some(index) if received < range => {
                let moved = self.index.replace(index) != Some(index);
                self.tries = 0;
                let must_attach = core::mem::take(&mut self.must_attach);
                if moved || !self.lists_own_blocks() {
                    self.publish_soon(now);
                } else if must_attach {
                    self.attach();
                }
            }
            _ if self.tries < PROBE_TRIES => {
                self.attach();
                self.probe_indexes(now, range.saturating_add(4 * self.tries as u16).min(INDEX_MAX));
            }
            // The next check or detour tries again.
            _ => self.tries = 0,
        }
    }

    fn conclude_check(&mut self, now: u64, arrived: Arrived) {
        self.phase = Phase::Idle;
        let Arrived { index, no_index, block, foreign_block: foreign } = arrived;
        // A program that knows a block of another member knows the own block too, or steers packets
        // for it to the member of a lower block. So if the own block's packet arrived and the other
        // one did not, the program knows this member, and the hash had no part in it.
        let is_steered = block && foreign == Some(false);
        let is_index_right = index && (!no_index || is_steered);
        let is_block_right = block && foreign != Some(true);
        match (is_index_right, is_block_right) {
            (true, true) if self.lists_own_blocks() && self.lists_own_services() => {}
            (true, true) => self.publish_soon(now),
            // The attached program is of a table without this member. (The own block may have had
            // another owner before, whose end became known late.)
            (true, false) if !block => self.publish_soon(now),
            // The program knows no other member, or none at all. Then the hash may have brought the
            // packets to oneself, and it brings those of a peer to others.
            _ => self.find_index(now, true),
        }
    }

    /// Begins to find the own index. `must_attach`: the attached program is wrong.
    pub(super) fn find_index(&mut self, now: u64, must_attach: bool) {
        self.tries = 0;
        self.must_attach |= must_attach;
        // By whichever program is attached, because the own one may be wrong: the table of a member
        // that joins may lack the others, and would take their packets from them.
        self.probe_indexes(now, self.first_range());
    }

    /// Notes a packet of this device that another member forwarded. This starts a check, at a
    /// bounded rate.
    #[cold]
    pub fn note_detour(&mut self, now: u64) {
        if self.phase == Phase::Idle
            && self.publish_ns.is_none()
            && now.saturating_sub(self.detour_ns) >= DETOUR_CHECK_NS
        {
            self.detour_ns = now;
            self.check(now);
        }
    }

    /// Notes a packet of this device that came directly.
    #[inline]
    pub fn note_direct(&mut self, now: u64) {
        self.checked_ns = now;
    }

    /// Does what is due: delivers packets, accepts watchers, publishes the table, ends a probe or a
    /// check. To be called after [`Member::poll`]. `waits`: the device waits for answers of peers.
    /// Few system calls, most often none.
    pub fn maintain(&mut self, now: u64, waits: bool) {
        self.deliver(now);
        if now >= self.watch_again_ns {
            self.resume_accepting(now);
        }
        let each = if waits { WAITING_CHECK_NS } else { QUIET_CHECK_NS };
        match self.phase {
            Phase::Idle => {
                if self.publish_ns.is_some_and(|at| now >= at) {
                    self.publish();
                } else if self.has_others() && now.saturating_sub(self.checked_ns) >= each {
                    self.check(now);
                }
            }
            _ if now < self.until_ns => {}
            // The thread did not run for a while, and the socket still has packets to read.
            Phase::Probing { .. } | Phase::Checking(_)
                if !self.has_read_all && now < self.until_ns.saturating_add(UNREAD_NS) => {}
            Phase::Probing { range, lowest, received } => {
                self.conclude_probe(now, range, lowest, received)
            }
            Phase::Checking(arrived) => self.conclude_check(now, arrived),
            Phase::Asking => self.find_index(now, true),
        }
    }
}
