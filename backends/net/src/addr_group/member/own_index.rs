//! Finding out: the own index in the kernel's list, and whether packets come here.

use super::super::group_msg::{Delivery, GroupMsg};
use super::super::numbers::{BLOCK_MAX, CHECK, PROBE};
use super::super::steer::Program;
use super::super::table::{ENTRIES, INDEX_MAX};
use super::{Member, Phase};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use gdrcore_core::wire::{Flow, ICRC_LEN};
use std::sync::atomic::{AtomicBool, Ordering};

/// A packet to oneself has this long to come back: it is there before the call that sent it
/// returns, but may stand behind others.
const PROBE_NS: u64 = 20_000_000;
/// Whoever waits for an answer of a peer, and gets no packets, looks this often whether they would
/// reach him.
const CHECK_NS: u64 = 100_000_000;
/// Packets that came by a detour make one look this often.
const HINT_NS: u64 = 50_000_000;
/// News of oneself waits up to this long: where many join at once, one table then has the news of
/// several.
const GATHER_NS: u64 = 4_000_000;
/// An index that no socket ever has.
const NO_INDEX: u32 = 0xffff;
/// Tries to learn the own index before the detours are taken for good.
const TRIES: u32 = 5;

/// Bytes of a packet to oneself: BTH, a CNP's reserved bytes (here: which packet it is), ICRC.
pub(super) const SELF_LEN: usize = 12 + 16 + ICRC_LEN;
/// CNP: the one opcode whose payload says nothing, so that a capture shows nothing strange.
const OPCODE: u8 = 0x81;
/// In place of the number of a packet to oneself: a process asks whether the names of this one are
/// still there.
const RENEW: u64 = u64::from_le_bytes(*b"gdrnames");
/// How often such a question is looked into.
const RENEW_NS: u64 = 50_000_000;

fn packet(flow: &Flow, qpn: u32, number: u64) -> [u8; SELF_LEN] {
    let mut packet = [0u8; SELF_LEN];
    packet[0] = OPCODE;
    packet[2..4].copy_from_slice(&0xffffu16.to_be_bytes());
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    packet[12..20].copy_from_slice(&number.to_le_bytes());
    flow.append_icrc(0, &mut packet);
    packet
}

/// Asks the processes that have an address, from another socket of it, whether their names are
/// still where they were. A session manager may have removed the directory of a user who has logged
/// out (logind.conf(5), RemoveIPC). One packet each to as many sockets as there may well be.
pub(crate) fn request_renewal(at: &Endpoint) {
    let Ok(from) = crate::udp::unconnected(at) else { return };
    let flow = Flow::from_gids(&at.ip, &at.ip, at.port, at.port);
    let (to, len) = at.to_sockaddr();
    for index in 0..64 {
        let packet = packet(&flow, PROBE + index, RENEW);
        // SAFETY: the packet and the address live through the call and have the lengths beside
        // them.
        unsafe {
            let p = packet.as_ptr().cast();
            libc::sendto(from.raw(), p, SELF_LEN, libc::MSG_DONTWAIT, (&raw const to).cast(), len);
        }
    }
}

/// Whether this process has said that the kernel refuses.
static SAID: AtomicBool = AtomicBool::new(false);

impl Member {
    /// Enters the own blocks and index in the next version of the table.
    pub(super) fn list_own(&mut self) {
        let Some(index) = self.index else { return };
        self.table.revise(self.block);
        for block in self.block..self.block + self.count {
            self.table.set(block, index, self.block, self.count);
        }
        self.table.set_services(self.block, self.services.iter().flatten().map(|s| s.name));
    }

    /// Whether the table has the own blocks at the own index.
    pub(super) fn lists_own_blocks(&self) -> bool {
        (self.block..self.block + self.count)
            .all(|b| self.index.is_some() && self.table.index_of(b) == self.index)
    }

    /// Whether the table has the own services and no others for the own block, as far as it has
    /// room.
    pub(super) fn lists_own_services(&self) -> bool {
        let own = |name: u32| self.services.iter().flatten().any(|s| s.name == name);
        let listed = self.table.services().iter().filter(|s| s.1 == self.block);
        let wanted = self.services.iter().flatten().count();
        listed.clone().all(|s| own(s.0))
            && (listed.count() == wanted || self.table.has_all_services())
    }

    /// Where exactly one owner and one index remain, they belong together: a process that does not
    /// answer is steered to as well.
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
            self.table.set(block, index, block, 1);
        }
    }

    pub(super) fn is_known(&self, block: u16) -> bool {
        self.known.get(usize::from(block / 64)).is_some_and(|w| w >> (block % 64) & 1 != 0)
    }

    /// Attaches the program of the table.
    pub(super) fn attach(&mut self) {
        if self.refused {
            return;
        }
        match Program::new(&mut self.program, &self.table).attach(self.socket) {
            Ok(()) => {
                self.counters.attached += 1;
                self.attached = self.table.age();
            }
            Err(e) => {
                self.counters.refused += 1;
                self.refused = true;
                self.phase = Phase::Idle;
                if !SAID.swap(true, Ordering::Relaxed) {
                    // To nobody in particular: programs work, and an operator may wonder why they
                    // are slow.
                    eprintln!(
                        "gdrcore: the kernel does not steer packets to the processes that share \
                         {} ({e}); they pass them on, which is slower",
                        self.local
                    );
                }
            }
        }
    }

    /// Writes the next version, attaches its program and tells everybody; whoever is gone is
    /// forgotten on the way.
    pub(super) fn publish(&mut self) {
        self.publish_ns = None;
        if !self.has_others() {
            return self.list_own();
        }
        // Each turn but the last forgets somebody.
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

    /// Publishes soon: at a time of its own, so that of many who have news few write a version
    /// each.
    pub(super) fn publish_soon(&mut self, now: u64) {
        let at = now + self.next_nonce() % GATHER_NS;
        self.publish_ns.get_or_insert(at);
    }

    fn next_nonce(&mut self) -> u64 {
        self.nonce =
            self.nonce.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.nonce >> 16
    }

    /// Sends itself a packet for each index below `range`.
    fn probe(&mut self, now: u64, range: u16) {
        if self.refused {
            self.phase = Phase::Idle;
            return;
        }
        self.next_nonce();
        for index in 0..range {
            self.send_self(PROBE + u32::from(index));
        }
        self.begin(Phase::Probing { range, lowest: None, heard: 0 }, now, PROBE_NS << self.tries);
    }

    /// One more than there can be sockets, as far as known, and a few for who has come meanwhile.
    fn first_range(&self) -> u16 {
        let others = self.known.iter().map(|w| w.count_ones()).sum::<u32>() as u16;
        self.table
            .last_index()
            .map_or(0, |i| i + 1)
            .max(others + 1)
            .saturating_add(4)
            .min(INDEX_MAX)
    }

    /// Sends itself one packet each for no socket, for its index and for its block.
    pub(super) fn check(&mut self, now: u64) {
        self.checked_ns = now;
        if self.refused {
            return;
        }
        self.next_nonce();
        self.send_self(PROBE + NO_INDEX);
        if let Some(index) = self.index {
            self.send_self(PROBE + u32::from(index));
        }
        self.send_self(CHECK + u32::from(self.block));
        self.begin(Phase::Checking { hashed: false, index: false, block: false }, now, PROBE_NS);
    }

    /// One packet to the own address.
    fn send_self(&self, qpn: u32) {
        let packet = packet(&self.flow, qpn, self.nonce);
        const { assert!(SELF_LEN <= crate::udp::SMALL) };
        let (to, len) = self.local.to_sockaddr();
        // SAFETY: the packet and the address live through the call and have the lengths beside
        // them.
        unsafe {
            let p = packet.as_ptr().cast();
            libc::sendto(self.socket, p, SELF_LEN, libc::MSG_DONTWAIT, (&raw const to).cast(), len);
        }
    }

    /// Takes a packet that a member has sent itself. Anybody can send such bytes: only the own
    /// number counts. False: the packet has another length, so no member has sent it.
    #[cold]
    pub fn take_probe(&mut self, packet: &[u8]) -> bool {
        if packet.len() != SELF_LEN {
            return false;
        }
        if packet[12..20] == RENEW.to_le_bytes() {
            self.check_names(now_ns());
            return true;
        }
        if packet[12..20] != self.nonce.to_le_bytes() {
            return true;
        }
        let qpn = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
        match &mut self.phase {
            Phase::Checking { hashed, .. } if qpn == PROBE + NO_INDEX => *hashed = true,
            Phase::Checking { index, .. }
                if self.index.is_some_and(|i| qpn == PROBE + u32::from(i)) =>
            {
                *index = true
            }
            Phase::Checking { block, .. } if qpn == CHECK + u32::from(self.block) => *block = true,
            Phase::Probing { range, lowest, heard }
                if qpn >= PROBE && qpn - PROBE < u32::from(*range) =>
            {
                let index = (qpn - PROBE) as u16;
                *lowest = Some(lowest.map_or(index, |l| l.min(index)));
                *heard += 1;
            }
            _ => {}
        }
        true
    }

    /// Anybody may ask: the look is one system call, and rare.
    fn check_names(&mut self, now: u64) {
        if now.saturating_sub(self.names_checked_ns) >= RENEW_NS {
            self.names_checked_ns = now;
            let lost = self.locks().next().is_some_and(|lock| !lock.is_there());
            self.names_lost = lost;
        }
    }

    /// The socket is empty: what has not come of the packets to oneself does not come.
    #[inline]
    pub fn note_socket_empty(&mut self, now: u64) {
        match self.phase {
            Phase::Probing { lowest: Some(_), .. } | Phase::Checking { block: true, .. } => {
                self.until_ns = now
            }
            _ => {}
        }
    }

    /// What the probes say. Of those for indexes that no socket has, all or none come here as well,
    /// so the lowest counts; where all have come, or none, there is no program yet.
    fn conclude_probe(&mut self, now: u64, range: u16, lowest: Option<u16>, heard: u16) {
        self.phase = Phase::Idle;
        self.tries += 1;
        match lowest {
            Some(index) if heard < range => {
                let moved = self.index.replace(index) != Some(index);
                self.tries = 0;
                let must_attach = core::mem::take(&mut self.must_attach);
                if moved || !self.lists_own_blocks() {
                    self.publish_soon(now);
                } else if must_attach {
                    self.attach();
                }
            }
            _ if self.tries < TRIES => {
                self.attach();
                self.probe(now, range.saturating_add(4 * self.tries as u16).min(INDEX_MAX));
            }
            // The next look, or the next hint, tries again.
            _ => self.tries = 0,
        }
    }

    fn conclude_check(&mut self, now: u64, hashed: bool, index: bool, block: bool) {
        self.phase = Phase::Idle;
        match (index && !hashed, block) {
            (true, true) if self.lists_own_services() => {}
            (true, true) => self.publish_soon(now),
            // The index is right, and the program says something else: somebody has a table without
            // this member (its block may have been another's, whose end was told late), and does
            // not tell it.
            (true, false) => self.publish_soon(now),
            // Where what is for nobody comes here, what is for here may come by chance.
            (false, block) => self.find_index(now, !block),
        }
    }

    /// Begins to learn the own index; `doubtful`: the program that is attached is wrong.
    pub(super) fn find_index(&mut self, now: u64, must_attach: bool) {
        self.tries = 0;
        self.must_attach |= must_attach;
        if self.table.entries().len() < 2 {
            // The first of a group has never needed a program.
            self.attach();
        }
        self.probe(now, self.first_range());
    }

    /// A packet of this device came by a detour: others may be lost. Looked into now and then.
    #[cold]
    pub fn note_detour(&mut self, now: u64) {
        if self.phase == Phase::Idle
            && self.publish_ns.is_none()
            && now.saturating_sub(self.detour_ns) >= HINT_NS
        {
            self.detour_ns = now;
            self.check(now);
        }
    }

    /// A packet of this device came straight.
    #[inline]
    pub fn note_direct(&mut self, now: u64) {
        self.checked_ns = now;
    }

    /// What is due. `waits`: the device waits for answers of peers. Few system calls; most often
    /// none.
    pub fn maintain(&mut self, now: u64, waits: bool) {
        self.deliver(now);
        if now >= self.watch_again_ns {
            self.resume_accepting(now);
        }
        match self.phase {
            Phase::Idle => {
                if self.publish_ns.is_some_and(|at| now >= at) {
                    self.publish();
                } else if waits
                    && self.has_others()
                    && now.saturating_sub(self.checked_ns) >= CHECK_NS
                {
                    self.check(now);
                }
            }
            _ if now < self.until_ns => {}
            Phase::Probing { range, lowest, heard } => {
                self.conclude_probe(now, range, lowest, heard)
            }
            Phase::Checking { hashed, index, block } => {
                self.conclude_check(now, hashed, index, block)
            }
            Phase::Asking => self.find_index(now, true),
        }
    }
}
