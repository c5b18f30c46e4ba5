//! How a device becomes a member: it takes its blocks, then its place in the group of sockets.

use super::super::forward_queue::{ForwardQueue, FORWARD_BURSTS};
use super::super::group_msg::{self, claim, claim_any, Delivery, GroupMsg, GroupSocket};
use super::super::numbers::BLOCK_MAX;
use super::super::steer::{self, Insn};
use super::super::table::{Table, ENTRIES};
use super::{GroupCounters, Member, Phase, Service, PEERS, SERVICES};
use crate::addr::Endpoint;
use crate::clock::random_seed;
use crate::local::{lead_to_first, Holder, ReceiptFile, Role, SocketDir, SocketPath};
use crate::sys::Fd;
use crate::wait::watch;
use gdrcore_core::arena::CHUNK;
use gdrcore_core::arena::{RawSlice, Walk};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::wire::IcrcFlow;
use heapless::HistoryBuf;
use std::os::fd::RawFd;

/// Time for another member to answer with its table.
const ASK_NS: u64 = 20_000_000;

/// The blocks that a device needs: the first, or any, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedBlocks {
    pub(super) first: Option<u16>,
    pub(super) count: u16,
}

impl WantedBlocks {
    /// The blocks of a range of QPNs; `base` 0: any block.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Invalid`]: the range reaches into the QPNs that the group of an
    /// address uses itself.
    pub fn from_range(base: u32, qpns: u32) -> Result<WantedBlocks> {
        let first = base / QPN_UNIT;
        let last = (base + qpns.max(1) - 1) / QPN_UNIT;
        if last > u32::from(BLOCK_MAX) {
            let end = BLOCK_MAX as u32 * QPN_UNIT + QPN_UNIT;
            return Err(refuse!(
                Invalid,
                "qpn_base {base:#x}: with qpn_count {qpns:#x} it must end below {end:#x}"
            ));
        }
        Ok(WantedBlocks {
            first: (base != 0).then_some(first as u16),
            count: (last - first + 1) as u16,
        })
    }

    /// The first QPN of a device that claims no block; `seed` chooses if any will do.
    pub(crate) fn unclaimed(&self, seed: u64) -> u32 {
        let places = u64::from(BLOCK_MAX / self.count.max(1)).max(2);
        let any = (1 + (seed >> 17) % (places - 1)) as u16 * self.count;
        u32::from(self.first.unwrap_or(any)) * QPN_UNIT
    }

    /// The number of blocks.
    pub fn count(&self) -> u16 {
        self.count
    }
}

/// Sizes of a member's buffers and tables, by the configuration of the device.
#[derive(Clone, Copy, Debug)]
pub struct ClaimBounds {
    burst_bytes: usize,
    services: usize,
}

impl ClaimBounds {
    /// The bounds for a device whose socket receives at most `burst_bytes` at a time, and which
    /// listens with at most `max_cm_ids` ids.
    pub fn for_device(burst_bytes: u32, max_cm_ids: u32) -> ClaimBounds {
        let ids = max_cm_ids.next_multiple_of(CHUNK as u32) as usize;
        ClaimBounds { burst_bytes: burst_bytes as usize, services: ids.min(SERVICES) }
    }
}

#[derive(Default)]
struct Slices {
    sockets: RawSlice<Option<GroupSocket>>,
    services: RawSlice<Option<Service>>,
    buffer: RawSlice<u8>,
    program: RawSlice<Insn>,
    forward_queue: ForwardQueue,
}

fn walk(w: &mut Walk, count: u16, bounds: &ClaimBounds) -> Result<Slices> {
    Ok(Slices {
        sockets: w.slice_with(usize::from(count), |_| None)?,
        services: w.slice_with(bounds.services, |_| None)?,
        buffer: w.slice(group_msg::message_max(bounds.burst_bytes), 0)?,
        program: steer::room(w)?,
        forward_queue: ForwardQueue::new(w.slice(FORWARD_BURSTS * bounds.burst_bytes, 0)?),
    })
}

/// A future member: it has its blocks, but no socket yet.
pub struct Claim {
    socket_dir: SocketDir,
    at: Endpoint,
    block: u16,
    count: u16,
    parts: Slices,
    /// The listening socket for members that watch this one.
    liveness: Option<Fd>,
    receipts: Option<ReceiptFile>,
    nonce: u64,
    known: [u64; ENTRIES.div_ceil(64)],
}

impl Claim {
    /// Bytes that [`Claim::take`] needs.
    pub fn memsize(wanted: &WantedBlocks, bounds: &ClaimBounds) -> usize {
        let mut w = Walk::size_query();
        // A query of so few bytes does not fail.
        let _ = walk(&mut w, wanted.count, bounds);
        w.offset()
    }

    /// Takes the locks of the blocks. If any block will do, `seed` chooses where the search begins.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::AddressInUse`]: the blocks have owners;
    /// [`gdrcore_core::Error::NoMemory`]: fewer than [`Claim::memsize`] bytes;
    /// [`gdrcore_core::Error::Os`].
    ///
    /// # Safety
    /// Nothing else uses the memory, and it outlives the member.
    pub(crate) unsafe fn take(
        socket_dir: &SocketDir,
        at: &Endpoint,
        (wanted, bounds): (&WantedBlocks, &ClaimBounds),
        seed: u64,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<Claim> {
        // SAFETY: the caller's promise.
        let parts = walk(&mut unsafe { Walk::carve(memory, bytes)? }, wanted.count, bounds)?;
        let nonce = random_seed()?;
        // From here on a drop releases the names.
        let mut c = Claim {
            socket_dir: *socket_dir,
            at: *at,
            block: 0,
            count: wanted.count,
            parts,
            liveness: None,
            receipts: None,
            nonce,
            known: [0; 16],
        };
        let sockets = &mut c.parts.sockets;
        c.block = match wanted.first {
            Some(block) => claim(socket_dir, at, block, wanted.count, sockets).map(|()| block)?,
            None => claim_any(
                socket_dir,
                at,
                (seed >> 17) as u16 % BLOCK_MAX,
                wanted.count,
                BLOCK_MAX,
                sockets,
            )?,
        };
        if let Some(first) = lead_to_first(sockets.iter().flatten().map(GroupSocket::lock))? {
            c.liveness = Some(first.listen(Role::Liveness)?);
            // Without receipts, a message whose ACK waited when this process was killed looks lost.
            c.receipts = ReceiptFile::create(first).ok();
        }
        Ok(c)
    }

    /// The first QPN of the blocks.
    pub fn qpn_base(&self) -> u32 {
        u32::from(self.block) * QPN_UNIT
    }

    /// Whether other members are known.
    pub fn has_others(&self) -> bool {
        self.known.iter().any(|&w| w != 0)
    }

    /// Finds the blocks that have owners. Of two members that join at once, at least one finds the
    /// other. Cost: about a millisecond.
    pub fn find_owners(&mut self) {
        let Some(Some(from)) = self.parts.sockets.first() else { return };
        self.known = [0; 16];
        for block in 0..=BLOCK_MAX {
            let own = block.wrapping_sub(self.block) < self.count;
            let name =
                SocketPath::new(&self.socket_dir, &self.at, Holder::Block(block), Role::Messages);
            if !own
                && group_msg::send_to(from.fd(), self.block, &name, &GroupMsg::TableRequest)
                    != Delivery::NoOwner
            {
                self.known[usize::from(block / 64)] |= 1 << (block % 64);
            }
        }
    }

    /// Makes the member in `out`, once its socket is bound. `alone`: the socket was bound without
    /// SO_REUSEPORT, so it is the first of its group.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Os`].
    #[inline(never)]
    pub fn join(
        mut self,
        socket: RawFd,
        qpns: (u32, u32),
        alone: bool,
        now: u64,
        out: &mut Option<Member>,
    ) -> Result<()> {
        // SAFETY: no pointers.
        let set = Fd::from_call(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        for group_socket in self.parts.sockets.iter().flatten() {
            watch(set.raw(), group_socket.fd())?;
        }
        if let Some(liveness) = &self.liveness {
            watch(set.raw(), liveness.raw())?;
        }
        let at = self.at;
        let Slices { sockets, services, buffer, program, forward_queue } =
            core::mem::take(&mut self.parts);
        *out = Some(Member {
            socket_dir: self.socket_dir,
            local: at,
            flow: IcrcFlow::from_gids(&at.ip, &at.ip, at.port, at.port),
            socket,
            block: self.block,
            count: self.count,
            qpn_base: qpns.0,
            qpn_count: qpns.1,
            sockets,
            services,
            receipts: self.receipts.take(),
            buffer,
            program,
            set,
            liveness: self.liveness.take(),
            accepts_watchers: true,
            watch_again_ns: u64::MAX,
            watchers: heapless::Vec::new(),
            watched_member: None,
            peers: Vec::with_capacity(PEERS),
            void_receipts: HistoryBuf::new(),
            has_gone: false,
            interface_socket: -1,
            interface_changed: false,
            known: self.known,
            table: Table::EMPTY,
            index: None,
            attached: (0, 0),
            refused: false,
            phase: Phase::Idle,
            until_ns: 0,
            has_read_all: false,
            tries: 0,
            must_attach: false,
            publish_ns: None,
            nonce: self.nonce,
            names_checked_ns: 0,
            names_lost: false,
            checked_ns: now,
            detour_ns: 0,
            msg_ns: 0,
            forward_queue,
            deliver_ns: u64::MAX,
            no_wait_until_ns: 0,
            former: heapless::HistoryBuf::new(),
            polled_ns: 0,
            counters: GroupCounters::default(),
            status_requested: false,
        });
        let Some(m) = out else { return Ok(()) };
        m.name_process();
        if alone {
            m.index = Some(0);
            m.list_own();
        } else {
            m.begin(Phase::Asking, now, ASK_NS);
        }
        m.watch_next_member();
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The slices never run destructors, so the names are released here.
        self.parts.sockets.fill_with(|| None);
    }
}
