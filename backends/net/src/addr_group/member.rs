//! One device among those that share an address: its blocks, its place in the group of sockets, its
//! messages.

use super::forward_queue::ForwardQueue;
use super::group_msg::{self, Delivery, GroupMsg, GroupSocket, Packets, Received};
use super::numbers::{BLOCK_MAX, CHECK};
use super::steer::Insn;
use super::table::{Table, ENTRIES};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::local::{is_open, Holder, Lock, Name, Role, SocketDir};
use crate::sys::Fd;
use crate::wait::{poll_set, watch};
use gdrcore_core::arena::RawSlice;
use gdrcore_core::cm::LISTENER_GRACE_NS;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::wire::Flow;
use std::os::fd::RawFd;

mod claim;
mod liveness;
mod own_index;

pub use claim::{Claim, WantedBlocks};
pub(crate) use own_index::request_renewal;

/// Former services of other members that a member remembers.
const FORMER: usize = 8;
/// Messages that one poll takes of each socket.
const MSG_BATCH: usize = 32;
/// For so long after a message, every round polls for messages.
const MSG_HOT_NS: u64 = 200_000;
/// Longest wait of a device that ends for the owners of packets that it still has, and the time to
/// the next such wait after one in vain.
const LAST_NS: u64 = 50_000_000;
const LAST_AGAIN_NS: u64 = 1_000_000_000;
/// Interval of deliveries while packets wait for room.
const DELIVER_NS: u64 = 50_000;
/// Services that a device can offer.
pub const SERVICES: usize = 256;

/// What the member finds out at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing.
    Idle,
    /// Whether another member has a table.
    Asking,
    /// Its own index: packets were sent to the indexes below `range`.
    Probing { range: u16, lowest: Option<u16>, received: u16 },
    /// Whether packets for its blocks arrive here. `hashed`: a packet for no socket arrived as
    /// well, so the others may have arrived by chance.
    Checking { hashed: bool, index: bool, block: bool },
}

/// Counters since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Packets of other members that were received here and forwarded.
    pub forwarded: u64,
    /// Packets of other members that were dropped: their block has no owner, its owner took no
    /// message for a second, or too much waited for it.
    pub dropped: u64,
    /// Packets of this device that another member forwarded.
    pub by_detour: u64,
    /// BPF programs attached.
    pub attached: u64,
    /// BPF programs that the kernel refused.
    pub refused: u64,
}

/// Messages that are for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForEngine<'a> {
    /// Packets that another member received.
    Packets(Packets<'a>),
    /// The network refused a packet that a member sent to this address.
    Refused(Endpoint, i32),
}

/// The destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This device.
    Local,
    /// The member that sent it to itself.
    Probe,
    /// The owner of a block.
    Block(u16),
}

/// A service that this device offers.
struct Service {
    /// The id of the connection manager that listens.
    id: u64,
    /// Port space in the upper half and port in the lower.
    name: u32,
    /// The name's lock and socket, to which other members forward requests.
    _socket: GroupSocket,
}

/// A member of the group of an address. One thread at a time.
pub struct Member {
    socket_dir: SocketDir,
    local: Endpoint,
    flow: Flow,
    socket: RawFd,
    block: u16,
    count: u16,
    qpn_base: u32,
    qpn_count: u32,
    sockets: RawSlice<Option<GroupSocket>>,
    services: RawSlice<Option<Service>>,
    buffer: RawSlice<u8>,
    /// Memory of the BPF program.
    program: RawSlice<Insn>,
    /// The epoll set of all sockets.
    set: Fd,
    /// A listening socket; its connections end with this process, which tells the processes at
    /// their other ends.
    liveness: Option<Fd>,
    /// Whether a connection to it wakes this process.
    accepts_watchers: bool,
    /// When it is watched again, after there was no descriptor for a connection.
    watch_again_ns: u64,
    /// Those connections: mostly one, more while the members' tables differ.
    watchers: [Option<Fd>; 8],
    /// The block whose owner this member watches, and the connection that ends with it. Each member
    /// watches the next lower known block, the lowest the highest.
    watched: Option<(u16, Fd)>,
    /// Blocks known to have an owner: the receivers of table updates.
    known: [u64; ENTRIES.div_ceil(64)],
    table: Table,
    index: Option<u16>,
    /// Age of the table whose program this member attached last.
    attached: (u64, u16),
    /// The kernel refuses the program: packets take detours, and nothing is probed again.
    refused: bool,
    phase: Phase,
    until_ns: u64,
    tries: u32,
    /// The program is attached anew whatever the own index turns out to be.
    must_attach: bool,
    /// When the next version of the table is sent.
    publish_ns: Option<u64>,
    nonce: u64,
    /// When the names were last checked, and whether they were gone.
    names_checked_ns: u64,
    names_lost: bool,
    checked_ns: u64,
    detour_ns: u64,
    msg_ns: u64,
    polled_ns: u64,
    /// Packets whose owner has no room, and the time of the next delivery.
    forward_queue: ForwardQueue,
    deliver_ns: u64,
    /// No wait for owners without room until then.
    no_wait_until_ns: u64,
    counters: GroupCounters,
    /// Services that members have withdrawn: block, port, and until when they count.
    former: [(u16, u16, u64); FORMER],
    former_next: usize,
}

impl Member {
    /// Readable when a message waits.
    pub fn fd(&self) -> RawFd {
        self.set.raw()
    }

    /// The first of the own blocks, and their number.
    pub fn blocks(&self) -> (u16, u16) {
        (self.block, self.count)
    }

    /// The locks of the own blocks, in their order.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &Lock> + Clone {
        self.sockets.iter().flatten().map(GroupSocket::lock)
    }

    /// The directory of the sockets.
    pub(crate) fn socket_dir(&self) -> &SocketDir {
        &self.socket_dir
    }

    /// The first QPN of the own range.
    pub fn qpn_base(&self) -> u32 {
        self.qpn_base
    }

    /// Counts since the device was opened.
    pub fn counters(&self) -> GroupCounters {
        self.counters
    }

    /// Whether nothing is being found out.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// The latest time for [`Member::maintain`]; `None`: none.
    pub fn deadline(&self) -> Option<u64> {
        let due = match self.phase {
            Phase::Idle => self.publish_ns,
            _ => Some(self.until_ns),
        };
        let other = self.deliver_ns.min(self.watch_again_ns);
        if other == u64::MAX {
            return due;
        }
        Some(due.map_or(other, |at| at.min(other)))
    }

    /// The socket that messages leave from.
    fn from(&self) -> RawFd {
        self.sockets.first().and_then(Option::as_ref).map_or(-1, GroupSocket::fd)
    }

    fn owns_block(&self, block: u16) -> bool {
        block.wrapping_sub(self.block) < self.count
    }

    /// The destination of a packet, by its BTH.
    #[inline]
    pub fn owner_of(&self, packet: &[u8]) -> Owner {
        let Some(&[_, _, _, _, _, a, b, c]) = packet.first_chunk::<8>() else {
            return Owner::Local;
        };
        let qpn = u32::from_be_bytes([0, a, b, c]);
        if qpn.wrapping_sub(self.qpn_base) < self.qpn_count {
            Owner::Local
        } else if qpn >= CHECK {
            Owner::Probe
        } else if qpn < 16 {
            // The standard's own QPNs, QP1 among them, belong to all members.
            Owner::Block(0)
        } else if self.owns_block((qpn / QPN_UNIT) as u16) {
            Owner::Local
        } else {
            Owner::Block((qpn / QPN_UNIT) as u16)
        }
    }

    /// Forwards packets to the owner of a block, now or when its socket has room. False: the block
    /// has no owner.
    pub fn forward(&mut self, block: u16, packets: &Packets<'_>) -> bool {
        let waits = !self.forward_queue.is_empty() && self.forward_queue.bytes_for(block) > 0;
        let delivery = if waits {
            Delivery::NoRoom
        } else {
            self.send_to(block, &GroupMsg::Packets(*packets))
        };
        if delivery == Delivery::NoRoom {
            let now = now_ns();
            if self.forward_queue.push(now, block, packets) {
                self.deliver_ns = self.deliver_ns.min(now + DELIVER_NS);
                return true;
            }
        }
        self.count_forwarded(delivery, packets)
    }

    /// Delivers packets that wait for room, if it is time.
    fn deliver(&mut self, now: u64) {
        if now < self.deliver_ns {
            return;
        }
        let mut forward_queue = core::mem::take(&mut self.forward_queue);
        let done = forward_queue
            .deliver(now, |block, packets| self.send_to(block, &GroupMsg::Packets(*packets)));
        self.counters.forwarded += done.forwarded;
        self.counters.dropped += done.dropped;
        self.deliver_ns = if forward_queue.is_empty() { u64::MAX } else { now + DELIVER_NS };
        self.forward_queue = forward_queue;
    }

    /// Before a queue pair or the device ends: waits until the owners of packets that wait here
    /// have them, since the program may exit next. Bounded, for owners that do not run.
    pub fn forward_pending(&mut self) {
        let begun = now_ns();
        let mut now = begun;
        while !self.forward_queue.is_empty() && now >= self.no_wait_until_ns {
            self.deliver(self.deliver_ns.max(now));
            std::thread::yield_now();
            now = now_ns();
            if now - begun > LAST_NS {
                self.no_wait_until_ns = now + LAST_AGAIN_NS;
            }
        }
    }

    /// Forwards a message of the connection manager to the member that listens. False: none does.
    pub fn forward_to_service(
        &mut self,
        port_space: u16,
        port: u16,
        packets: &Packets<'_>,
    ) -> bool {
        let name = Name::of(
            &self.socket_dir,
            &self.local,
            Holder::Service(port_space, port),
            Role::Messages,
        );
        let delivery =
            group_msg::send_to(self.from(), self.block, &name, &GroupMsg::Packets(*packets));
        self.count_forwarded(delivery, packets)
    }

    /// Remembers services that the newer table lacks.
    fn note_former(&mut self, now: u64, newer: &Table) {
        for &(name, block) in self.table.services() {
            if newer.index_of(block).is_some() && !newer.services().iter().any(|s| s.0 == name) {
                let port = name as u16;
                self.former[self.former_next % FORMER] =
                    (block, port, now.saturating_add(LISTENER_GRACE_NS));
                self.former_next = self.former_next.wrapping_add(1);
            }
        }
    }

    /// Whether a living member listened at a port a moment ago. A request for it may reach any
    /// member, and only that member's engine knows to drop it, so that its sender asks again.
    pub fn is_former(&self, now: u64, port: u16) -> bool {
        let counts = |&(block, at, until): &(u16, u16, u64)| {
            at == port && now < until && self.table.index_of(block).is_some()
        };
        self.former.iter().any(counts)
    }

    fn count_forwarded(&mut self, delivery: Delivery, packets: &Packets<'_>) -> bool {
        let n = packets.data.len().div_ceil(usize::from(packets.seg).max(1)) as u64;
        match delivery {
            Delivery::Sent => self.counters.forwarded += n,
            Delivery::NoRoom => self.counters.dropped += n,
            Delivery::NoOwner => return false,
        }
        true
    }

    /// Counts packets of this device that another member forwarded.
    pub fn count_detoured(&mut self, packets: u64) {
        self.counters.by_detour += packets;
    }

    /// Counts packets whose block has no owner.
    pub fn count_dropped(&mut self, packets: u64) {
        self.counters.dropped += packets;
    }

    fn send_to(&mut self, block: u16, message: &GroupMsg<'_>) -> Delivery {
        let name = Name::of(&self.socket_dir, &self.local, Holder::Block(block), Role::Messages);
        let delivery = group_msg::send_to(self.from(), self.block, &name, message);
        let (word, bit) = (usize::from(block / 64), 1 << (block % 64));
        if let Some(w) = self.known.get_mut(word) {
            if delivery == Delivery::NoOwner {
                *w &= !bit;
            } else {
                *w |= bit;
            }
        }
        delivery
    }

    /// Whether the directory of the own names was removed, so that [`Member::renew`] is due.
    #[inline]
    pub fn has_lost_names(&self) -> bool {
        self.names_lost
    }

    /// Takes the own names anew. A name that cannot be had keeps its old socket until the next
    /// request.
    ///
    /// # Errors
    /// As [`SocketDir::open`] and [`Lock::take`].
    #[cold]
    pub(crate) fn renew(&mut self) -> Result<()> {
        self.names_lost = false;
        let socket_dir = SocketDir::open()?;
        for (k, group_socket) in self.sockets.iter_mut().enumerate() {
            let renewed =
                GroupSocket::open(&socket_dir, &self.local, Holder::Block(self.block + k as u16))?;
            watch(self.set.raw(), renewed.fd())?;
            // Closing takes the old one out of the set.
            *group_socket = Some(renewed);
        }
        for service in self.services.iter_mut().flatten() {
            let (space, port) = ((service.name >> 16) as u16, service.name as u16);
            let renewed =
                GroupSocket::open(&socket_dir, &self.local, Holder::Service(space, port))?;
            watch(self.set.raw(), renewed.fd())?;
            service._socket = renewed;
        }
        self.socket_dir = socket_dir;
        let liveness = self.locks().next().map(|lock| lock.listen(Role::Liveness));
        if let Some(liveness) = liveness {
            self.liveness = Some(liveness?);
            self.accepts_watchers = false;
            self.resume_accepting(now_ns());
        }
        Ok(())
    }

    /// Listens for a service among all devices of the address: the kernel brings its requests here.
    /// No effect for an id that does already.
    ///
    /// # Errors
    /// [`Error::AddressInUse`]: another device does; [`Error::NoMemory`]: [`SERVICES`] of this
    /// device do; [`Error::Os`].
    pub fn offer(&mut self, id: u64, port_space: u16, port: u16) -> Result<()> {
        if self.services.iter().flatten().any(|s| s.id == id) {
            return Ok(());
        }
        let slot = self.services.iter_mut().find(|s| s.is_none()).ok_or(Error::NoMemory)?;
        let group_socket =
            GroupSocket::open(&self.socket_dir, &self.local, Holder::Service(port_space, port))?;
        watch(self.set.raw(), group_socket.fd())?;
        *slot = Some(Service {
            id,
            name: u32::from(port_space) << 16 | u32::from(port),
            _socket: group_socket,
        });
        self.publish_services();
        Ok(())
    }

    /// Withdraws the service of an id, if it offers one.
    pub fn withdraw(&mut self, id: u64) {
        let offers = |s: &Option<Service>| s.as_ref().is_some_and(|s| s.id == id);
        // Closing takes it out of the set.
        if let Some(slot) = self.services.iter_mut().find(|s| offers(s)) {
            *slot = None;
            self.publish_services();
        }
    }

    /// Sends the changed services; while the own index is unknown, they are sent with it.
    fn publish_services(&mut self) {
        if self.lists_own_blocks() {
            self.publish();
        }
    }

    fn begin(&mut self, phase: Phase, now: u64, wait: u64) {
        self.phase = phase;
        self.until_ns = now.saturating_add(wait);
    }

    /// Whether other members are known.
    #[inline]
    pub fn has_others(&self) -> bool {
        // One fold without a branch per word, since this runs for each datagram.
        self.known.iter().fold(0, |all, w| all | w) != 0
    }

    /// Whether the next round polls for messages: always shortly after one came, else every
    /// `every_ns`.
    #[inline]
    pub fn is_poll_due(&self, now: u64, every_ns: u64) -> bool {
        now.saturating_sub(self.polled_ns) >= every_ns
            || now.saturating_sub(self.msg_ns) < MSG_HOT_NS
            || now >= self.deliver_ns
    }

    /// Makes the next poll for messages due at once.
    pub fn poll_soon(&mut self) {
        self.polled_ns = 0;
    }

    /// Tells the other members what the network refused: the kernel reports it to any socket of the
    /// group.
    pub fn send_peer_error(&mut self, dst: &Endpoint, errno: i32) {
        self.send_to_all(&GroupMsg::PeerError(*dst, errno));
    }

    fn send_to_all(&mut self, message: &GroupMsg<'_>) {
        for block in 0..=BLOCK_MAX {
            if self.is_known(block) && !self.owns_block(block) {
                self.send_to(block, message);
            }
        }
    }

    /// Receives messages; those for the engine go to `take`, which returns the packets it handled.
    /// Returns their sum.
    pub fn poll(
        &mut self,
        now: u64,
        mut take: impl FnMut(&mut Member, &ForEngine<'_>) -> usize,
    ) -> usize {
        self.polled_ns = now;
        let mut ready = [-1; 8];
        let n = poll_set(self.set.raw(), &mut ready);
        let mut handled = 0;
        // The buffer leaves the member while its contents are borrowed.
        let mut buffer = core::mem::take(&mut self.buffer);
        for &fd in &ready[..n] {
            if self.watched.as_ref().is_some_and(|w| w.1.raw() == fd) {
                self.on_watched_end(now);
                continue;
            }
            if self.liveness.as_ref().is_some_and(|l| l.raw() == fd) {
                self.accept_watchers(now);
                continue;
            }
            if let Some(watcher) =
                self.watchers.iter_mut().find(|w| w.as_ref().is_some_and(|w| w.raw() == fd))
            {
                // It sends nothing: its process watches another now, or has ended.
                *watcher = watcher.take().filter(|w| is_open(w.raw()));
                self.resume_accepting(now);
                continue;
            }
            for _ in 0..MSG_BATCH {
                let Some(len) = group_msg::receive(fd, &mut buffer) else { break };
                self.msg_ns = now;
                let Some((from, received)) = group_msg::parse(&buffer[..len]) else { continue };
                match &received {
                    Received::Packets(packets) => {
                        handled += take(self, &ForEngine::Packets(*packets))
                    }
                    Received::PeerError(dst, errno) => {
                        handled += take(self, &ForEngine::Refused(*dst, *errno))
                    }
                    group => self.read(now, from, group),
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
        self.handle_msg(now, from, received);
        self.watch_next();
    }

    fn handle_msg(&mut self, now: u64, from: u16, received: &Received<'_>) {
        match received {
            Received::TableRequest => {
                let table = self.table;
                if !table.is_empty() {
                    self.send_to(from, &GroupMsg::TableUpdate(&table));
                }
                self.known[usize::from(from / 64)] |= 1 << (from % 64);
            }
            Received::OwnerGone(gone) if *gone <= BLOCK_MAX && !self.owns_block(*gone) => {
                self.forget(now, *gone)
            }
            Received::OwnerGone(_) => {}
            Received::TableUpdate(table) => self.adopt_table(now, from, table),
            Received::Packets(_) | Received::PeerError(..) => {}
        }
    }

    fn adopt_table(&mut self, now: u64, from: u16, table: &Table) {
        self.known[usize::from(from / 64)] |= 1 << (from % 64);
        if table.age() <= self.table.age() {
            if table.age() < self.table.age() && self.table.age().1 == self.block {
                // The sender has attached the program of an older table. This member attaches the
                // newer one again and sends it, as its author.
                let newer = self.table;
                self.attach();
                self.send_to(from, &GroupMsg::TableUpdate(&newer));
            }
            return;
        }
        // Two tables of one version: the program attached last may be of the one that lost.
        let tie = self.attached.0 == table.age().0;
        self.note_former(now, table);
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
            Phase::Asking => self.find_index(now, false),
            Phase::Idle if self.lists_own_blocks() && self.lists_own_services() => {
                self.publish_ns = None
            }
            // Of two versions written at once the other counts, and lacks this member's services.
            Phase::Idle if self.lists_own_blocks() => self.publish_soon(now),
            // The author does not know this member, or has another at its index.
            Phase::Idle => {
                self.check(now);
                self.publish_soon(now);
            }
            _ => {}
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.forward_pending();
        // The socket is closed by now; the socket that takes its place in the kernel's list learns
        // of it at once.
        self.send_to_all(&GroupMsg::OwnerGone(self.block));
        // The slices never run destructors: the names are given back here.
        self.sockets.fill_with(|| None);
        self.services.fill_with(|| None);
    }
}

#[cfg(test)]
mod tests;
