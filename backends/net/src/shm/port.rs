//! The links of one device: outbound links, inbound links, and the listeners for new ones.

use super::grant::{OwnGrants, PeerGrants, PeerRequest, SharedRegion};
use super::listener::{LinkSocket, Listener};
use super::ring::{Reader, RingMap, Writer};
use super::segment::Segment;
use crate::addr::Endpoint;
use crate::local::{Holder, Lock, SocketDir};
use crate::wait::Waiter;
pub(crate) use brokered::Peer;
use gdrcore_core::arena::{RawSlice, Walk};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::receipt::Receipts;
pub use records::{Records, Sender};

mod brokered;
mod grants;
mod maintain;
mod records;
mod rx;
mod tx;

/// Most links of either direction that one device holds.
pub const LINKS: usize = 256;
/// Bytes of data in a ring: small enough to stay in the caches of both ends.
const LINK_RING_BYTES: usize = 256 << 10;
/// The fewest links of a device: more than its peers need, because a link that has ended may keep
/// its place for a moment, until its other end lets go.
const LINKS_MIN: usize = 4;
/// Most regions whose memory may be shared at a time.
const SHARED: usize = 256;

/// Numbers of links and of regions, by the configuration of the device.
#[derive(Clone, Copy, Debug)]
pub struct ShmBounds {
    links: usize,
    shared: usize,
}

impl ShmBounds {
    /// The bounds for a device with so many peers and regions: each link leads to a peer.
    pub fn for_device(max_peer: u32, max_mr: u32) -> ShmBounds {
        ShmBounds {
            links: (max_peer as usize).clamp(LINKS_MIN, LINKS),
            shared: (max_mr as usize).min(SHARED),
        }
    }

    /// The bounds for an engine of a device with so many engines and no other peers.
    pub fn of_siblings(engines: u32) -> ShmBounds {
        ShmBounds { links: engines as usize, shared: 0 }
    }
}

/// The other end of a link, as named by the router that made the link.
#[derive(Clone, Copy, Debug)]
struct Brokered {
    /// The other end's address.
    from: Endpoint,
    /// The number of the other end's session.
    peer: u32,
    may_grant: bool,
}

/// A link that we write.
struct Outbound {
    to: Endpoint,
    /// The QPN block whose owner reads the link; `None`: the holder of the address's own name reads
    /// it.
    block: Option<u16>,
    socket: LinkSocket,
    writer: Writer,
    /// Memory of the other end that this end may write.
    peer_grants: PeerGrants,
    /// The other end has ended: its earlier frames are read, then the link counts as lost.
    gone: bool,
    /// `Some`: a router made the link.
    brokered: Option<Brokered>,
    /// Keeps the mapping.
    _segment: Segment,
}

/// A link whose other end is gone.
pub struct LostLink {
    /// The address to which the link led.
    pub to: Endpoint,
    /// The block to whose owner the link led; `None`: it led to the address.
    pub block: Option<u16>,
    place: RingMap,
    _segment: Segment,
}

impl LostLink {
    /// The receipts of what the other end has accepted.
    pub fn receipts(&self) -> &Receipts {
        self.place.receipts()
    }
}

/// A link that we read.
struct InboundRing {
    from: Endpoint,
    reader: Reader,
    /// Memory of this process that the other end may write.
    grants: OwnGrants,
    /// The other end may write by address.
    by_address: bool,
    /// The other end has ended: its last frames are read, then the link is closed.
    gone: bool,
    _segment: Segment,
}

/// A connection from another process, before and after its hello.
struct Inbound {
    socket: LinkSocket,
    since_ns: u64,
    link: Option<InboundRing>,
    /// `Some`: a router made the socket.
    brokered: Option<Brokered>,
}

/// Counters of shm since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmCounters {
    /// Frames written.
    pub tx_frames: u64,
    /// Frames read.
    pub rx_frames: u64,
    /// Wake-ups sent: the other end slept.
    pub wakes: u64,
    /// Links refused or ended because the other end broke a rule.
    pub broken: u64,
}

/// The shm port of a device. One thread at a time.
pub struct ShmPort {
    /// The directory of this user's sockets; `None`: a router makes all links.
    socket_dir: Option<SocketDir>,
    local: Endpoint,
    /// A listener for the address, if no other device holds its name, and a listener for the
    /// blocks.
    listeners: [Option<Listener>; 2],
    /// The lock of the address's own name.
    address: Option<Lock>,
    /// A connection waits for a free descriptor; until then no listener is watched.
    paused_until: Option<u64>,
    out: RawSlice<Option<Outbound>>,
    inbound: RawSlice<Option<Inbound>>,
    /// Indexes of the inbound links that have a ring, densely.
    open: RawSlice<u16>,
    open_len: usize,
    /// Links that were lost and not yet taken.
    lost: RawSlice<Option<LostLink>>,
    any_lost: bool,
    /// Regions of which the program shares the memory.
    shared: RawSlice<Option<SharedRegion>>,
    /// Requests for grants that were not processed yet.
    requested: RawSlice<Option<PeerRequest>>,
    /// The program enables grants by address, of its regions and of its peers'.
    by_address: bool,
    counters: ShmCounters,
}

// SAFETY: the slices lead only into memory that `open` was given for this port alone.
unsafe impl Send for ShmPort {}
// SAFETY: by shared reference the port only reads; whatever writes takes `&mut self`.
unsafe impl Sync for ShmPort {}

struct Slices {
    out: RawSlice<Option<Outbound>>,
    inbound: RawSlice<Option<Inbound>>,
    open: RawSlice<u16>,
    lost: RawSlice<Option<LostLink>>,
    shared: RawSlice<Option<SharedRegion>>,
    requested: RawSlice<Option<PeerRequest>>,
}

fn walk(w: &mut Walk, bounds: &ShmBounds) -> Result<Slices> {
    let links = bounds.links;
    Ok(Slices {
        out: w.slice_with(links, |_| None)?,
        inbound: w.slice_with(links, |_| None)?,
        open: w.slice(links, 0)?,
        lost: w.slice_with(links, |_| None)?,
        shared: w.slice_with(bounds.shared, |_| None)?,
        requested: w.slice(links, None)?,
    })
}

impl ShmPort {
    /// Bytes that [`ShmPort::open`] needs.
    pub fn memsize(bounds: &ShmBounds) -> usize {
        let mut w = Walk::size_query();
        // A query of so few bytes does not fail.
        let _ = walk(&mut w, bounds);
        w.offset()
    }

    /// Opens the listener of the device's blocks, under the lock of the first block. Opens the
    /// listener of its address, too, if no other device holds the address's name.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: fewer than [`ShmPort::memsize`] bytes; [`Error::Os`].
    ///
    /// # Safety
    /// Nothing else uses the memory, and it outlives the port.
    pub(crate) unsafe fn open(
        socket_dir: &SocketDir,
        local: &Endpoint,
        first: Option<&Lock>,
        bounds: &ShmBounds,
        memory: *mut u8,
        bytes: usize,
        waiter: &Waiter,
    ) -> Result<ShmPort> {
        // SAFETY: the caller's promise.
        let mut port = unsafe { ShmPort::carve(local, bounds, memory, bytes)? };
        // From here on a drop releases the names.
        port.socket_dir = Some(*socket_dir);
        port.open_listeners(first, waiter)?;
        Ok(port)
    }

    /// A port without listeners.
    ///
    /// # Safety
    /// As [`ShmPort::open`].
    unsafe fn carve(
        local: &Endpoint,
        bounds: &ShmBounds,
        memory: *mut u8,
        bytes: usize,
    ) -> Result<ShmPort> {
        // SAFETY: the caller's promise.
        let parts = walk(&mut unsafe { Walk::carve(memory, bytes)? }, bounds)?;
        let Slices { out, inbound, open, lost, shared, requested } = parts;
        Ok(ShmPort {
            socket_dir: None,
            local: *local,
            listeners: [None, None],
            address: None,
            paused_until: None,
            out,
            inbound,
            open,
            open_len: 0,
            lost,
            any_lost: false,
            shared,
            requested,
            by_address: false,
            counters: ShmCounters::default(),
        })
    }

    /// Enables grants by address, between processes of this user.
    pub(crate) fn enable_by_address(&mut self) {
        self.by_address = true;
    }

    /// Opens all listeners, and reopens those that were open.
    pub(crate) fn open_listeners(&mut self, first: Option<&Lock>, waiter: &Waiter) -> Result<()> {
        self.listeners = [None, None];
        self.address = None;
        let Some(socket_dir) = &self.socket_dir else { return Ok(()) };
        match Lock::take(socket_dir, &self.local, Holder::Address) {
            Ok(lock) => self.address = Some(lock),
            Err(Error::AddressInUse) => {}
            Err(e) => return Err(e),
        }
        let open = |lock: &Lock| {
            let listener = Listener::open(lock)?;
            waiter.add_socket(listener.fd())?;
            Ok(listener)
        };
        let of_address = self.address.as_ref().map(open).transpose()?;
        self.listeners = [of_address, first.map(open).transpose()?];
        Ok(())
    }

    /// Reopens the listeners in another directory.
    ///
    /// # Errors
    /// As [`ShmPort::open`].
    #[cold]
    pub(crate) fn renew(
        &mut self,
        socket_dir: &SocketDir,
        first: Option<&Lock>,
        waiter: &Waiter,
    ) -> Result<()> {
        self.socket_dir = Some(*socket_dir);
        self.open_listeners(first, waiter)
    }

    /// The latest time for [`ShmPort::maintain`]; `None`: none.
    pub fn deadline(&self) -> Option<u64> {
        self.paused_until
    }

    /// Whether there is any inbound link.
    #[inline]
    pub fn has_links(&self) -> bool {
        self.open_len > 0
    }

    /// Counts since the port was opened.
    pub fn counters(&self) -> ShmCounters {
        self.counters
    }
}

impl Drop for ShmPort {
    fn drop(&mut self) {
        // After the close of the context, no peer writes the program's memory.
        self.check_grants(|_, _, _| false);
        // The slices never run destructors, so sockets and mappings are released here.
        self.listeners = [None, None];
        self.address = None;
        self.shared.fill_with(|| None);
        self.out.fill_with(|| None);
        self.lost.fill_with(|| None);
        self.inbound.fill_with(|| None);
    }
}

#[cfg(test)]
mod tests;
