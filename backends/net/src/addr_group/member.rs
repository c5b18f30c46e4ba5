//! One device of an address that several share: its blocks, its place in the group of sockets, its
//! messages.

use super::forward_queue::ForwardQueue;
use super::group_msg::{self, Delivery, GroupMsg, GroupSocket, Packets};
use super::numbers::BLOCK_QPN_BASE;
use super::steer::Insn;
use super::table::{Table, ENTRIES};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::local::{lead_to_first, Holder, Lock, ReceiptFile, Role, SocketDir, SocketPath};
use crate::rights::Foreign;
use crate::sys::Fd;
use crate::wait::watch;
use gdrcore_core::arena::RawSlice;
use gdrcore_core::config::qpn_block;
use gdrcore_core::error::Result;
use gdrcore_core::wire::{IcrcFlow, Psn};
use heapless::HistoryBuf;
use std::os::fd::RawFd;

mod claim;
mod liveness;
mod messages;
mod peers;
mod services;
mod steering_state;

pub use claim::{Claim, ClaimBounds, WantedBlocks};
pub(crate) use steering_state::request_renewal;

/// Former services of other members that a member remembers.
const FORMER: usize = 8;
/// Connections of watchers that are held at a time.
const WATCHERS: usize = 256;
/// Processes of peers that are watched at a time.
const PEERS: usize = 128;
/// Receipts of earlier connections that are known at a time.
const VOID_RECEIPTS: usize = 16;
/// Messages that one poll takes of each socket.
const MSG_BATCH: usize = 32;
/// Time after a message in which every round polls for messages.
const MSG_HOT_NS: u64 = 200_000;
/// A member that ends a queue pair or the device waits for the owners of packets that it holds,
/// because they may wait for a CPU: until no owner has taken a packet for the first of these times.
/// Within the second it does not wait again.
const LAST_NS: u64 = 100_000_000;
const LAST_AGAIN_NS: u64 = 1_000_000_000;
/// Interval of deliveries while packets wait for room.
const DELIVER_NS: u64 = 50_000;
/// Services that a device can offer.
pub const SERVICES: usize = 256;

/// What the member is finding out about its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing.
    Idle,
    /// Whether another member has a table.
    Asking,
    /// The own index: packets were sent to the indexes below `range`.
    Probing { range: u16, lowest: Option<u16>, received: u16 },
    /// Whether packets for the own blocks arrive here.
    Checking(Arrived),
}

/// Which packets of a check have arrived here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Arrived {
    /// The one to the own index.
    index: bool,
    /// The one to an index that no socket has. The kernel gives it to any member, by its hash: so
    /// it may have done with the one to the own index.
    no_index: bool,
    /// The one to the own block.
    block: bool,
    /// The one to a block of another member: a program steered it that does not know that member,
    /// and may not know this one either. `None`: the table has no other member, none was sent.
    foreign_block: Option<bool>,
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
    /// None: a member sent the packet to itself, as a test.
    SelfTest,
    /// The owner of a block.
    Block(u16),
}

/// The member that this one watches.
struct WatchedMember {
    block: u16,
    /// A connection that ends with the process.
    life: Foreign,
}

/// The process of a peer, on this host.
struct WatchedPeer {
    at: Endpoint,
    /// The block of QPNs that named the process, and the block whose sockets it listens at.
    block: u16,
    listener: u16,
    /// A connection that ends with the process; `None`: the process has ended.
    life: Option<Foreign>,
    /// The process had ended when the last round began.
    had_ended: bool,
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
    flow: IcrcFlow,
    socket: RawFd,
    block: u16,
    count: u16,
    qpn_base: u32,
    qpn_count: u32,
    sockets: RawSlice<Option<GroupSocket>>,
    services: RawSlice<Option<Service>>,
    receipts: Option<ReceiptFile>,
    buffer: RawSlice<u8>,
    /// Memory of the BPF program.
    program: RawSlice<Insn>,
    /// The epoll set of all sockets.
    set: Fd,
    /// A listening socket. Its connections end with this process, which notifies the processes at
    /// their other ends.
    liveness: Option<Fd>,
    /// Whether a connection to `liveness` wakes this process.
    accepts_watchers: bool,
    /// When `liveness` is polled again, after a connection for which no descriptor was free.
    watch_again_ns: u64,
    /// Connections of members that watch this one: mostly one, more while the members' tables
    /// differ.
    watchers: heapless::Vec<Foreign, WATCHERS>,
    /// The member that this one watches: the next lower known block; from the lowest block, the
    /// highest.
    watched_member: Option<WatchedMember>,
    /// Processes of peers that have connections with this one.
    /// [`PEERS`] at most. Allocated at the open, apart from the member, which is moved on small
    /// stacks.
    peers: Vec<WatchedPeer>,
    /// Receipts that lay at peers when connections to them began: endpoint, QPN, PSN.
    void_receipts: HistoryBuf<(Endpoint, u32, Psn), VOID_RECEIPTS>,
    /// One of `peers` has ended.
    has_gone: bool,
    /// The socket that reports changes of the interface, and whether it was readable.
    interface_socket: RawFd,
    interface_changed: bool,
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
    /// The socket was empty since the phase began.
    has_read_all: bool,
    tries: u32,
    /// The program must be attached again, whatever the own index turns out to be.
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
    /// Time until which the device does not wait for owners without room.
    no_wait_until_ns: u64,
    counters: GroupCounters,
    /// A process has asked for the status of the device.
    status_requested: bool,
    /// Services that members have withdrawn: block, port, and until when they count.
    former: HistoryBuf<(u16, u16, u64), FORMER>,
}

impl Member {
    /// Readable when a message waits.
    pub fn fd(&self) -> RawFd {
        self.set.raw()
    }

    /// Polls the socket that reports changes of the interface together with the member's own, so
    /// that it costs no system call of its own.
    ///
    /// # Errors
    /// As `epoll_ctl`.
    pub fn poll_interface(&mut self, fd: RawFd) -> Result<()> {
        self.interface_socket = fd;
        watch(self.set.raw(), fd)
    }

    /// Whether the socket of [`Member::poll_interface`] was readable since the last call.
    #[inline]
    pub fn take_interface_change(&mut self) -> bool {
        core::mem::take(&mut self.interface_changed)
    }

    /// The first of the own blocks, and their number.
    pub fn blocks(&self) -> (u16, u16) {
        (self.block, self.count)
    }

    /// The locks of the own blocks, in their order.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &Lock> + Clone {
        self.sockets.iter().flatten().map(GroupSocket::lock)
    }

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

    /// Whether a process has asked for the status of the device since the last call.
    #[inline]
    pub fn take_status_request(&mut self) -> bool {
        core::mem::take(&mut self.status_requested)
    }

    /// As [`crate::local::Lock::name_process`], in the device's directory.
    fn name_process(&self) {
        if let Some(first) = self.locks().next() {
            first.name_process();
        }
    }

    /// Whether no probe or check is in progress.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// The latest time for [`Member::maintain`]; `None`: it is not due.
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
    fn send_fd(&self) -> RawFd {
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
        } else if qpn >= BLOCK_QPN_BASE {
            Owner::SelfTest
        } else if qpn < 16 {
            // The standard's own QPNs, QP1 among them, belong to all members.
            Owner::Block(0)
        } else if self.owns_block(qpn_block(qpn)) {
            Owner::Local
        } else {
            Owner::Block(qpn_block(qpn))
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
        if now >= self.deliver_ns {
            self.deliver_at_once(now);
        }
    }

    fn deliver_at_once(&mut self, now: u64) {
        let mut forward_queue = core::mem::take(&mut self.forward_queue);
        let done = forward_queue
            .deliver(now, |block, packets| self.send_to(block, &GroupMsg::Packets(*packets)));
        self.counters.forwarded += done.forwarded;
        self.counters.dropped += done.dropped;
        self.deliver_ns = if forward_queue.is_empty() { u64::MAX } else { now + DELIVER_NS };
        self.forward_queue = forward_queue;
    }

    /// Waits until the queued packets are delivered, before a queue pair or the device ends,
    /// because the program may exit next. Waits at most `most_ns`, because an owner may be stopped;
    /// no packet stays in the queue for more than a second.
    pub fn forward_pending(&mut self, most_ns: u64) {
        let mut now = now_ns();
        let (begun, mut since, mut forwarded) = (now, now, self.counters.forwarded);
        let waits = |now: u64| now - begun < most_ns;
        while !self.forward_queue.is_empty() && now >= self.no_wait_until_ns && waits(now) {
            self.deliver_at_once(now);
            std::thread::yield_now();
            now = now_ns();
            if self.counters.forwarded != forwarded {
                (since, forwarded) = (now, self.counters.forwarded);
            } else if now - since > LAST_NS {
                self.no_wait_until_ns = now + LAST_AGAIN_NS;
            }
        }
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
        let name =
            SocketPath::new(&self.socket_dir, &self.local, Holder::Block(block), Role::Messages);
        let delivery = group_msg::send_to(self.send_fd(), self.block, &name, message);
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

    /// Takes the own names again. A name that cannot be taken keeps its old socket until the next
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
            // Closing the old socket removes it from the set.
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
        let locks = self.sockets.iter().flatten().map(GroupSocket::lock);
        if let Some(first) = lead_to_first(locks)? {
            if let Some(receipts) = &mut self.receipts {
                // Without the file, peers do not find receipts that this process leaves.
                let _ = receipts.renew(first);
            }
            self.liveness = Some(first.listen(Role::Liveness)?);
            self.accepts_watchers = false;
            self.resume_accepting(now_ns());
        }
        self.name_process();
        Ok(())
    }

    fn begin(&mut self, phase: Phase, now: u64, wait: u64) {
        self.phase = phase;
        self.until_ns = now.saturating_add(wait);
        self.has_read_all = false;
    }

    /// Whether other members are known.
    #[inline]
    pub fn has_others(&self) -> bool {
        // One fold without a branch per word, because this runs for each datagram.
        self.known.iter().fold(0, |all, w| all | w) != 0
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.forward_pending(u64::MAX);
        self.note_unread_senders();
        // The own socket is closed by now. The member whose socket moves to its place in the
        // kernel's list learns of that at once.
        self.send_to_all(&GroupMsg::OwnerGone(self.block));
        // The slices never run destructors, so the names are released here.
        self.sockets.fill_with(|| None);
        self.services.fill_with(|| None);
    }
}

#[cfg(test)]
mod tests;
