//! One device among those that share an address: its blocks, its place in the group of sockets, its mail.

use super::mail::{self, claim, claim_any, Mail, Mailbox, Packets, Posted, Received};
use super::steer::{Program, BLOCK_MAX, CHECK, PROBE};
use super::table::{Table, ENTRIES, INDEX_MAX};
use crate::addr::Endpoint;
use crate::clock::random_seed;
use crate::local::Name;
use crate::sys::Fd;
use crate::wait::{poll_set, watch};
use gdrcore_core::arena::{RawSlice, Walk};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::wire::{Flow, ICRC_LEN};
use std::os::fd::RawFd;

/// Others have this long to answer with a table.
const ASK_NS: u64 = 20_000_000;
/// A packet to oneself has this long to come back: it is there before the call that sent it returns, but may stand behind others.
const PROBE_NS: u64 = 20_000_000;
/// Whoever waits for an answer of a peer looks this often whether the answers would reach him.
const CHECK_NS: u64 = 100_000_000;
/// Packets that came by a detour make one look this often.
const HINT_NS: u64 = 5_000_000;
/// An index that no socket ever has.
const NO_INDEX: u32 = 0xffff;
/// Tries to learn the own index before the detours are taken for good.
const TRIES: u32 = 5;
/// Messages that one look takes.
const MAIL_BATCH: usize = 32;
/// While mail came within this time it is looked for in every round.
const MAIL_HOT_NS: u64 = 200_000;
/// Services that a device can be asked for.
pub const SERVICES: usize = 256;

/// Bytes of a packet to oneself: BTH, a CNP's reserved bytes (here: which packet it is), ICRC.
const SELF_LEN: usize = 12 + 16 + ICRC_LEN;
/// CNP: the one opcode whose payload says nothing, so that a capture shows nothing strange.
const OPCODE: u8 = 0x81;

/// What is being found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing.
    Quiet,
    /// Whether somebody has a table.
    Asking,
    /// The own index: packets have been sent to those below `range`.
    Probing { range: u16, lowest: Option<u16>, heard: u16 },
    /// Whether packets for the own blocks arrive here. `hashed`: what nobody is meant to get does, so that they may do so by chance.
    Checking { hashed: bool },
}

/// What was counted since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareCounters {
    /// Packets of others that came here and were passed on.
    pub passed: u64,
    /// Packets of others that were dropped: nobody has the block, or its owner's mail is full.
    pub dropped: u64,
    /// Packets of this device that came by mail.
    pub by_mail: u64,
    /// Programs attached.
    pub attached: u64,
    /// Programs that the kernel refused.
    pub refused: u64,
}

/// Where a packet or message belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This device.
    Here,
    /// One of the packets that members send themselves.
    Own,
    /// The owner of a block.
    Block(u16),
}

/// A member of the group that shares an address. One thread at a time.
pub struct Member {
    local: Endpoint,
    flow: Flow,
    socket: RawFd,
    block: u16,
    count: u16,
    qpn_base: u32,
    qpn_count: u32,
    boxes: RawSlice<Option<Mailbox>>,
    services: RawSlice<Option<(u64, Mailbox)>>,
    buffer: RawSlice<u8>,
    /// All mailboxes.
    set: Fd,
    /// Blocks that have an owner, as far as known: those that are told news.
    known: [u64; ENTRIES.div_ceil(64)],
    table: Table,
    index: Option<u16>,
    /// Age of the table whose program was last attached here.
    attached: (u64, u16),
    /// The kernel takes no program: packets take detours, and nobody is troubled again.
    refused: bool,
    phase: Phase,
    until_ns: u64,
    tries: u32,
    /// Whatever the own index is found to be, the program is attached anew.
    doubtful: bool,
    nonce: u64,
    checked_ns: u64,
    hint_ns: u64,
    mail_ns: u64,
    looked_ns: u64,
    counters: ShareCounters,
}

/// The blocks that a device needs: the first, or any, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    first: Option<u16>,
    count: u16,
}

impl Wanted {
    /// The blocks of a range of QPNs; `base` 0: any block.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it reaches into the QPNs that the group of an address uses itself.
    pub fn of(base: u32, qpns: u32) -> Result<Wanted> {
        let first = base / QPN_UNIT;
        let last = (base + qpns.max(1) - 1) / QPN_UNIT;
        if last > u32::from(BLOCK_MAX) {
            return Err(Error::Invalid);
        }
        Ok(Wanted { first: (base != 0).then_some(first as u16), count: (last - first + 1) as u16 })
    }
}

impl Wanted {
    /// How many.
    pub fn count(&self) -> u16 {
        self.count
    }
}

struct Parts {
    boxes: RawSlice<Option<Mailbox>>,
    services: RawSlice<Option<(u64, Mailbox)>>,
    buffer: RawSlice<u8>,
}

fn walk(w: &mut Walk, count: u16) -> Result<Parts> {
    Ok(Parts {
        boxes: w.slice_with(usize::from(count), |_| None)?,
        services: w.slice_with(SERVICES, |_| None)?,
        buffer: w.slice(mail::MAIL_MAX, 0)?,
    })
}

/// A place in the group that has its blocks, and no socket yet.
pub struct Claim {
    at: Endpoint,
    block: u16,
    count: u16,
    parts: Parts,
    nonce: u64,
    known: [u64; ENTRIES.div_ceil(64)],
}

impl Claim {
    /// Bytes that [`Claim::take`] needs.
    pub fn memsize(wanted: &Wanted) -> usize {
        let mut w = Walk::size_query();
        // A query of a fixed size does not fail.
        let _ = walk(&mut w, wanted.count);
        w.offset()
    }

    /// Makes blocks this process's, and looks who else has some. Where any will do, `seed` says where the search begins.
    ///
    /// # Errors
    /// [`Error::AddressInUse`]: they have owners; [`Error::NoMemory`]: fewer than [`Claim::memsize`] bytes; [`Error::Os`].
    ///
    /// # Safety
    /// The memory is used by nobody else and outlives the member.
    pub unsafe fn take(at: &Endpoint, wanted: &Wanted, seed: u64, memory: *mut u8, bytes: usize) -> Result<Claim> {
        // SAFETY: the caller's promise.
        let parts = walk(&mut unsafe { Walk::carve(memory, bytes)? }, wanted.count)?;
        let nonce = random_seed()?;
        let mut claim = Claim { at: *at, block: 0, count: wanted.count, parts, nonce, known: [0; 16] };
        let boxes = &mut claim.parts.boxes;
        match wanted.first {
            Some(block) => {
                self::claim(at, block, wanted.count, boxes)?;
                claim.block = block;
            }
            None => {
                claim.block = claim_any(at, (seed >> 17) as u16 % BLOCK_MAX, wanted.count, BLOCK_MAX, boxes)?;
            }
        }
        claim.look();
        Ok(claim)
    }

    /// The first QPN of the blocks.
    pub fn qpn_base(&self) -> u32 {
        u32::from(self.block) * QPN_UNIT
    }

    /// Whether others have this address.
    pub fn has_company(&self) -> bool {
        self.known.iter().any(|&w| w != 0)
    }

    /// Asks every block whether it has an owner. Some microseconds for a hundred blocks.
    pub fn look(&mut self) {
        let Some(Some(from)) = self.parts.boxes.first() else { return };
        self.known = [0; 16];
        for block in 0..=BLOCK_MAX {
            let own = block.wrapping_sub(self.block) < self.count;
            if !own && mail::post(from.fd(), self.block, &Name::block(&self.at, block), &Mail::Ask) != Posted::Nobody {
                self.known[usize::from(block / 64)] |= 1 << (block % 64);
            }
        }
    }

    /// The member, once its socket is bound. `alone`: the socket was bound without sharing, so it is the first of its group.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn join(self, socket: RawFd, qpns: (u32, u32), alone: bool, now: u64) -> Result<Member> {
        // SAFETY: no pointers.
        let set = Fd::from_call(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        for mailbox in self.parts.boxes.iter().flatten() {
            watch(set.raw(), mailbox.fd())?;
        }
        let at = self.at;
        let Parts { boxes, services, buffer } = self.parts;
        let mut m = Member {
            local: at,
            flow: Flow::from_gids(&at.ip, &at.ip, at.port, at.port),
            socket,
            block: self.block,
            count: self.count,
            qpn_base: qpns.0,
            qpn_count: qpns.1,
            boxes,
            services,
            buffer,
            set,
            known: self.known,
            table: Table::EMPTY,
            index: None,
            attached: (0, 0),
            refused: false,
            phase: Phase::Quiet,
            until_ns: 0,
            tries: 0,
            doubtful: false,
            nonce: self.nonce,
            checked_ns: now,
            hint_ns: 0,
            mail_ns: 0,
            looked_ns: 0,
            counters: ShareCounters::default(),
        };
        if alone {
            m.index = Some(0);
            m.enter_own();
        } else {
            m.begin(Phase::Asking, now, ASK_NS);
        }
        Ok(m)
    }
}

impl Member {
    /// Readable when there is mail.
    pub fn fd(&self) -> RawFd {
        self.set.raw()
    }

    /// The first of the own blocks, and how many there are.
    pub fn blocks(&self) -> (u16, u16) {
        (self.block, self.count)
    }

    /// The first QPN of the own range.
    pub fn qpn_base(&self) -> u32 {
        self.qpn_base
    }

    /// Counts since the device was opened.
    pub fn counters(&self) -> ShareCounters {
        self.counters
    }

    /// Whether nothing is being found out.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.phase == Phase::Quiet
    }

    /// When [`Member::tend`] is wanted at the latest.
    pub fn deadline(&self) -> Option<u64> {
        (self.phase != Phase::Quiet).then_some(self.until_ns)
    }

    /// The descriptor from which mail is posted.
    fn from(&self) -> RawFd {
        self.boxes.first().and_then(Option::as_ref).map_or(-1, Mailbox::fd)
    }

    fn owns_block(&self, block: u16) -> bool {
        block.wrapping_sub(self.block) < self.count
    }

    /// Whose a packet is, by its BTH.
    #[inline]
    pub fn owner_of(&self, packet: &[u8]) -> Owner {
        let Some(&[_, _, _, _, _, a, b, c]) = packet.first_chunk::<8>() else { return Owner::Here };
        let qpn = u32::from_be_bytes([0, a, b, c]);
        if qpn.wrapping_sub(self.qpn_base) < self.qpn_count {
            Owner::Here
        } else if qpn >= CHECK {
            Owner::Own
        } else if qpn < 16 {
            // The standard's own, QP1 among them: everybody's.
            Owner::Block(0)
        } else if self.owns_block((qpn / QPN_UNIT) as u16) {
            Owner::Here
        } else {
            Owner::Block((qpn / QPN_UNIT) as u16)
        }
    }

    /// Passes packets on to the owner of a block. False: nobody owns it.
    pub fn pass(&mut self, block: u16, packets: &Packets<'_>) -> bool {
        let posted = self.post(block, &Mail::Packets(*packets));
        self.count_passed(posted, packets)
    }

    /// Passes a message of the connection manager on to whoever listens. False: nobody does.
    pub fn pass_to_service(&mut self, port_space: u16, port: u16, packets: &Packets<'_>) -> bool {
        let name = Name::service(&self.local, port_space, port);
        let posted = mail::post(self.from(), self.block, &name, &Mail::Packets(*packets));
        self.count_passed(posted, packets)
    }

    fn count_passed(&mut self, posted: Posted, packets: &Packets<'_>) -> bool {
        let n = packets.data.len().div_ceil(usize::from(packets.seg).max(1)) as u64;
        match posted {
            Posted::Done => self.counters.passed += n,
            Posted::Lost => self.counters.dropped += n,
            Posted::Nobody => return false,
        }
        true
    }

    /// Packets of this device came by mail.
    pub fn count_by_mail(&mut self, packets: u64) {
        self.counters.by_mail += packets;
    }

    /// Packets were dropped because nobody owns their block.
    pub fn count_dropped(&mut self, packets: u64) {
        self.counters.dropped += packets;
    }

    fn post(&mut self, block: u16, mail: &Mail<'_>) -> Posted {
        let posted = mail::post(self.from(), self.block, &Name::block(&self.local, block), mail);
        let (word, bit) = (usize::from(block / 64), 1 << (block % 64));
        if let Some(w) = self.known.get_mut(word) {
            if posted == Posted::Nobody {
                *w &= !bit;
            } else {
                *w |= bit;
            }
        }
        posted
    }

    /// Listens for a service among all devices of the address.
    ///
    /// # Errors
    /// [`Error::AddressInUse`]: another device does; [`Error::NoMemory`]: [`SERVICES`] of this device do; [`Error::Os`].
    pub fn offer(&mut self, id: u64, port_space: u16, port: u16) -> Result<()> {
        let slot = self.services.iter_mut().find(|s| s.is_none()).ok_or(Error::NoMemory)?;
        let mailbox = Mailbox::open(&Name::service(&self.local, port_space, port))?;
        watch(self.set.raw(), mailbox.fd())?;
        *slot = Some((id, mailbox));
        Ok(())
    }

    /// Ends what an id offers, if anything.
    pub fn withdraw(&mut self, id: u64) {
        for slot in self.services.iter_mut() {
            if slot.as_ref().is_some_and(|s| s.0 == id) {
                // Closing takes it out of the set.
                *slot = None;
            }
        }
    }

    fn begin(&mut self, phase: Phase, now: u64, wait: u64) {
        self.phase = phase;
        self.until_ns = now.saturating_add(wait);
    }

    /// Enters the own blocks and index in the next version of the table.
    fn enter_own(&mut self) {
        let Some(index) = self.index else { return };
        self.table.revise(self.block);
        for block in self.block..self.block + self.count {
            self.table.set(block, index, self.block, self.count);
        }
    }

    /// Whether the table has the own blocks at the own index.
    fn is_entered(&self) -> bool {
        (self.block..self.block + self.count).all(|b| self.index.is_some() && self.table.index_of(b) == self.index)
    }

    /// Where exactly one owner and one index remain, they belong together: a process that does not answer is steered to as well.
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

    fn is_known(&self, block: u16) -> bool {
        self.known.get(usize::from(block / 64)).is_some_and(|w| w >> (block % 64) & 1 != 0)
    }

    /// Attaches the program of the table.
    fn attach(&mut self) {
        if self.refused {
            return;
        }
        match Program::new(self.table.entries()).attach(self.socket) {
            Ok(()) => {
                self.counters.attached += 1;
                self.attached = self.table.age();
            }
            Err(_) => {
                self.counters.refused += 1;
                self.refused = true;
                self.phase = Phase::Quiet;
            }
        }
    }

    /// Writes the next version, attaches its program and tells everybody; whoever is gone is forgotten on the way.
    fn publish(&mut self) {
        // Each turn but the last forgets somebody.
        for _ in 0..ENTRIES {
            self.enter_own();
            self.conclude_last();
            self.attach();
            let news = self.table;
            let mut gone = false;
            for block in 0..=BLOCK_MAX {
                let wanted = self.is_known(block) || news.index_of(block).is_some();
                if wanted && !self.owns_block(block) && self.post(block, &Mail::News(&news)) == Posted::Nobody {
                    gone |= self.table.remove(block);
                }
            }
            if !gone {
                return;
            }
        }
    }

    /// Sends itself a packet for each index below `range`.
    fn probe(&mut self, now: u64, range: u16) {
        if self.refused {
            return;
        }
        self.nonce = self.nonce.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        for index in 0..range {
            self.send_self(PROBE + u32::from(index));
        }
        self.begin(Phase::Probing { range, lowest: None, heard: 0 }, now, PROBE_NS);
    }

    fn first_range(&self) -> u16 {
        let others = self.known.iter().map(|w| w.count_ones()).sum::<u32>() as u16;
        self.table.last_index().map_or(0, |i| i + 1).max(others + 1).saturating_add(4).min(INDEX_MAX)
    }

    fn check(&mut self, now: u64) {
        self.checked_ns = now;
        if self.refused {
            return;
        }
        self.nonce = self.nonce.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.send_self(PROBE + NO_INDEX);
        self.send_self(CHECK + u32::from(self.block));
        self.begin(Phase::Checking { hashed: false }, now, PROBE_NS);
    }

    /// One packet to the own address.
    fn send_self(&self, qpn: u32) {
        let mut packet = [0u8; SELF_LEN];
        packet[0] = OPCODE;
        packet[2..4].copy_from_slice(&0xffffu16.to_be_bytes());
        packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        packet[12..20].copy_from_slice(&self.nonce.to_le_bytes());
        self.flow.append_icrc(0, &mut packet);
        let (to, len) = self.local.to_sockaddr();
        // SAFETY: the packet and the address live through the call and have the lengths beside them.
        unsafe {
            let p = packet.as_ptr().cast();
            libc::sendto(self.socket, p, SELF_LEN, libc::MSG_DONTWAIT, (&raw const to).cast(), len);
        }
    }

    /// Takes a packet that a member has sent itself. Anybody can send such bytes: only the own number counts.
    #[cold]
    pub fn take_own(&mut self, now: u64, packet: &[u8]) {
        if packet.len() != SELF_LEN || packet[12..20] != self.nonce.to_le_bytes() {
            return;
        }
        let qpn = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
        match &mut self.phase {
            Phase::Checking { hashed } if qpn == PROBE + NO_INDEX => *hashed = true,
            Phase::Checking { hashed: false } if qpn == CHECK + u32::from(self.block) => self.phase = Phase::Quiet,
            Phase::Checking { hashed: true } if qpn == CHECK + u32::from(self.block) => self.locate(now, false),
            Phase::Probing { range, lowest, heard } if qpn >= PROBE && qpn - PROBE < u32::from(*range) => {
                let index = (qpn - PROBE) as u16;
                *lowest = Some(lowest.map_or(index, |l| l.min(index)));
                *heard += 1;
            }
            _ => {}
        }
    }

    /// The socket is empty: what has not come of the probes does not come.
    #[inline]
    pub fn drained(&mut self, now: u64) {
        if matches!(self.phase, Phase::Probing { lowest: Some(_), .. }) {
            self.until_ns = now;
        }
    }

    /// What the probes say. Of those for indexes that no socket has, all or none come here as well, so the lowest counts;
    /// where all have come, or none, there is no program yet.
    fn conclude(&mut self, now: u64) {
        let Phase::Probing { range, lowest, heard } = self.phase else { return };
        self.phase = Phase::Quiet;
        self.tries += 1;
        match lowest {
            Some(index) if heard < range => {
                let found = self.index.replace(index) != Some(index);
                self.tries = 0;
                if found || self.doubtful || !self.is_entered() {
                    self.doubtful = false;
                    self.publish();
                }
            }
            _ if self.tries < TRIES => {
                self.attach();
                let wider = if lowest.is_none() { range.saturating_mul(2).min(INDEX_MAX) } else { range };
                self.probe(now, wider);
            }
            // The next look, or the next hint, tries again.
            _ => self.tries = 0,
        }
    }

    /// Begins to learn the own index; `doubtful`: the program that is attached is wrong.
    fn locate(&mut self, now: u64, doubtful: bool) {
        self.tries = 0;
        self.doubtful |= doubtful;
        if self.table.entries().len() < 2 {
            // The first of a group has never needed a program.
            self.attach();
        }
        self.probe(now, self.first_range());
    }

    /// A packet of this device came by a detour: others may be lost. Looked into now and then.
    #[cold]
    pub fn hint(&mut self, now: u64) {
        if self.phase == Phase::Quiet && now.saturating_sub(self.hint_ns) >= HINT_NS {
            self.hint_ns = now;
            self.locate(now, true);
        }
    }

    /// What is due. `waits`: the device waits for answers of peers. Few system calls; most often none.
    pub fn tend(&mut self, now: u64, waits: bool) {
        if self.phase != Phase::Quiet {
            if now < self.until_ns {
                return;
            }
            match self.phase {
                Phase::Probing { .. } => self.conclude(now),
                Phase::Asking | Phase::Checking { .. } => self.locate(now, true),
                Phase::Quiet => {}
            }
        } else if waits && self.has_company() && now.saturating_sub(self.checked_ns) >= CHECK_NS {
            self.check(now);
        }
    }

    /// Whether others are known to share the address.
    #[inline]
    pub fn has_company(&self) -> bool {
        self.known.iter().any(|&w| w != 0)
    }

    /// Whether the next round shall look for mail: where there was some just now in each, else every `every_ns`.
    #[inline]
    pub fn listens(&self, now: u64, every_ns: u64) -> bool {
        now.saturating_sub(self.looked_ns) >= every_ns || now.saturating_sub(self.mail_ns) < MAIL_HOT_NS
    }

    /// The next look at the mail is due at once.
    pub fn look_soon(&mut self) {
        self.looked_ns = 0;
    }

    /// Takes mail; packets go to `take`, which says how many it handled. Returns those.
    pub fn poll(&mut self, now: u64, mut take: impl FnMut(&mut Member, &Packets<'_>) -> usize) -> usize {
        self.looked_ns = now;
        let mut ready = [-1; 8];
        let n = poll_set(self.set.raw(), &mut ready);
        let mut handled = 0;
        // The buffer leaves the member for as long as what lies in it is looked at.
        let mut buffer = core::mem::take(&mut self.buffer);
        for &fd in &ready[..n] {
            for _ in 0..MAIL_BATCH {
                let Some(len) = mail::receive(fd, &mut buffer) else { break };
                self.mail_ns = now;
                let Some((from, received)) = mail::parse(&buffer[..len]) else { continue };
                if let Received::Packets(packets) = &received {
                    handled += take(self, packets);
                } else {
                    self.read(now, from, &received);
                }
            }
        }
        self.buffer = buffer;
        handled
    }

    fn read(&mut self, now: u64, from: u16, received: &Received<'_>) {
        if from > BLOCK_MAX || self.owns_block(from) {
            return;
        }
        match received {
            Received::Ask => {
                let table = self.table;
                if !table.is_empty() {
                    self.post(from, &Mail::News(&table));
                }
                self.known[usize::from(from / 64)] |= 1 << (from % 64);
            }
            Received::Left => {
                self.known[usize::from(from / 64)] &= !(1 << (from % 64));
                let last = self.table.last_index();
                self.table.remove(from);
                // The kernel moves the last of its list into the place of one that leaves.
                if self.index.is_some() && self.index == last {
                    self.locate(now, true);
                }
            }
            Received::News(table) => self.adopt(now, from, table),
            Received::Packets(_) => {}
        }
    }

    fn adopt(&mut self, now: u64, from: u16, table: &Table) {
        self.known[usize::from(from / 64)] |= 1 << (from % 64);
        if table.age() <= self.table.age() {
            if table.age() < self.table.age() && self.phase == Phase::Quiet && self.is_entered() {
                // Whoever published an older one has attached its program: the newer goes back on, and to him.
                let newer = self.table;
                self.attach();
                self.post(from, &Mail::News(&newer));
            }
            return;
        }
        // Two versions of one number: the program that was attached last may be the one that lost.
        let tie = self.attached.0 == table.age().0;
        self.table = *table;
        for &(block, _) in table.entries() {
            if !self.owns_block(block) {
                self.known[usize::from(block / 64)] |= 1 << (block % 64);
            }
        }
        if tie {
            self.attach();
        }
        match self.phase {
            Phase::Asking => self.locate(now, true),
            Phase::Quiet if !self.is_entered() => self.locate(now, true),
            _ => {}
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // The socket is closed by now; who takes its place in the kernel's list hears of it at once.
        for block in 0..=BLOCK_MAX {
            if self.is_known(block) && !self.owns_block(block) {
                self.post(block, &Mail::Left);
            }
        }
        // The slices never run destructors: the names are given back here.
        self.boxes.fill_with(|| None);
        self.services.fill_with(|| None);
    }
}

#[cfg(test)]
mod tests;
