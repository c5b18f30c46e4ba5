//! Outbound links: makes them, finds them, and writes frames into their rings.

use super::super::cma::PeerProcess;
use super::super::grant::PeerGrants;
use super::super::listener::{connect_link, LinkSocket};
use super::super::ring::{BrokenRing, Writer};
use super::super::segment::Segment;
use super::{Brokered, Outbound, ShmCounters, ShmPort, LINK_RING_BYTES};
use crate::addr::Endpoint;
use crate::local::{has_hung_up, listener_block, Holder, Role, SocketPath};
use crate::wait::Waiter;
use core::sync::atomic::{fence, Ordering};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::roce::frame::record::{Frame, Links};
use gdrcore_core::roce::peer_memory::PeerMemory;
use gdrcore_core::sleep;

/// Most bytes of one frame: four of them fill a ring, so that one is read while the next is
/// written.
const FRAME_MAX: usize = LINK_RING_BYTES / 4 - 128;
/// Least room worth a call of the engine: one packet of the largest MTU with its header.
pub(super) const FRAME_MIN: usize = 4096 + 512;

/// The place of a link in the table.
pub(super) enum LinkSlot {
    /// The link is there.
    Linked(u16),
    /// There is no link yet; this entry is free.
    Free(usize),
}

/// A frame that is being written.
pub struct OpenFrame<'p> {
    out: &'p mut Outbound,
    counters: &'p mut ShmCounters,
}

/// Small frames. Without room for one, the caller continues with [`ShmPort::room`].
impl Links for ShmPort {
    type Frame<'p> = OpenFrame<'p>;

    #[inline(always)]
    fn begin(&mut self, link: u16) -> Option<(&mut [u8], OpenFrame<'_>)> {
        let Some(Some(out)) = self.out.get_mut(usize::from(link)) else { return None };
        let (p, len) = out.writer.room(FRAME_MIN, FRAME_MIN).ok()??;
        // SAFETY: as in `room`; nothing of the port lies there.
        let room = unsafe { core::slice::from_raw_parts_mut(p.as_ptr(), len) };
        Some((room, OpenFrame { out, counters: &mut self.counters }))
    }
}

impl Frame for OpenFrame<'_> {
    /// Wakes the other end if it sleeps.
    #[inline(always)]
    fn commit(self, len: usize) -> u64 {
        let OpenFrame { out, counters } = self;
        let next = out.writer.publish(len);
        counters.tx_frames += 1;
        if out.writer.place().asleep().must_wake(sleep::ANY) {
            counters.wakes += 1;
            out.socket.wake();
        }
        out.writer.prepare();
        next
    }
}

impl ShmPort {
    /// The link to the owner of a block of QPNs at an address; `None`: to the holder of the
    /// address's own name. A new link is made if there is none, and can be written at once.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: no process of this host listens there; [`Error::Access`]: a process of
    /// another user listens there; [`Error::NoMemory`]: all links are in use; others of the system.
    pub fn connect(&mut self, to: &Endpoint, block: Option<u16>, waiter: &Waiter) -> Result<u16> {
        let socket_dir = self.socket_dir.ok_or(Error::NoDevice)?;
        let block = block.map(|block| listener_block(&socket_dir, to, block));
        let local = self.local;
        self.link(to, block, None, waiter, || {
            let holder = block.map_or(Holder::Address, Holder::Block);
            connect_link(
                &SocketPath::new(&socket_dir, to, holder, Role::Links),
                &local,
                LINK_RING_BYTES,
            )
        })
    }

    /// The link to the owner of a block at an address, made by `connect` if there is none.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: all links are in use; those of `connect`, and of the system.
    pub(super) fn link(
        &mut self,
        to: &Endpoint,
        block: Option<u16>,
        brokered: Option<Brokered>,
        waiter: &Waiter,
        connect: impl FnOnce() -> Result<(LinkSocket, Segment)>,
    ) -> Result<u16> {
        let i = match self.place_for(to, block)? {
            LinkSlot::Linked(link) => return Ok(link),
            LinkSlot::Free(i) => i,
        };
        let (socket, segment) = connect()?;
        waiter.add_socket(socket.fd())?;
        // Between tenants of a router memory is never granted by address.
        let by_address = self.by_address && brokered.is_none();
        let process = if by_address { PeerProcess::from_socket(socket.fd()) } else { None };
        self.out[i] = Some(Outbound {
            to: *to,
            block,
            socket,
            writer: Writer::new(segment.place()),
            peer_grants: PeerGrants::new(segment.place(), process),
            gone: false,
            brokered,
            _segment: segment,
        });
        Ok(i as u16)
    }

    /// The link to the owner of a block at an address, or a free entry for it.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: all links are in use.
    pub(super) fn place_for(&mut self, to: &Endpoint, block: Option<u16>) -> Result<LinkSlot> {
        // A link whose process has ended is closed only by the next `maintain`. The block may have
        // a new owner before that.
        let same = |l: &Outbound| l.to == *to && l.block == block;
        let stale = |l: &Outbound| same(l) && has_hung_up(l.socket.fd());
        if let Some(i) = self.out.iter().position(|l| l.as_ref().is_some_and(stale)) {
            self.close_outbound(i);
        }
        let mut free = None;
        for (i, link) in self.out.iter().enumerate() {
            match link {
                Some(l) if same(l) && self.lost[i].is_none() => {
                    return Ok(LinkSlot::Linked(i as u16))
                }
                None if free.is_none() && self.lost[i].is_none() => free = Some(i),
                _ => {}
            }
        }
        free.map(LinkSlot::Free).ok_or(Error::NoMemory)
    }

    /// Room for the next frame of a link, and the other end's memory that is mapped here. `None`:
    /// the link is gone, or its ring is full. The socket of a full ring becomes readable when there
    /// is room.
    #[inline]
    pub fn room(&mut self, link: u16) -> Option<(&mut [u8], &mut dyn PeerMemory)> {
        let i = usize::from(link);
        let Some(Some(out)) = self.out.get_mut(i) else { return None };
        let mut room = out.writer.room(FRAME_MIN, FRAME_MAX);
        if room == Ok(None) {
            // Pairs with the reader's fence in `return_room`: either the reader sees the word, or
            // this end sees the reader's tail.
            out.writer.place().wants_room().store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            room = out.writer.room(FRAME_MIN, FRAME_MAX);
        }
        match room {
            Ok(Some((p, len))) => {
                let Some(Some(out)) = self.out.get_mut(i) else { return None };
                // SAFETY: the bytes are the writer's until it publishes; the engine only writes
                // them. A peer that writes there too damages only its own input.
                let room = unsafe { core::slice::from_raw_parts_mut(p.as_ptr(), len) };
                Some((room, &mut out.peer_grants))
            }
            Ok(None) => None,
            Err(BrokenRing) => {
                self.close_outbound(i);
                self.counters.broken += 1;
                None
            }
        }
    }

    /// Whether there is a link to the owner of a block at an address.
    pub(crate) fn leads_to(&self, to: &Endpoint, block: u16) -> bool {
        self.out.iter().flatten().any(|l| l.to == *to && l.block == Some(block))
    }

    /// Whether the other end of a link has read everything; `None`: the link is gone.
    pub fn is_drained(&self, link: u16) -> Option<bool> {
        match self.out.get(usize::from(link)) {
            Some(Some(out)) if !out.gone => Some(out.writer.is_drained()),
            _ => None,
        }
    }

    /// The other end's grants, if it offers any memory, mapped or by address.
    #[inline]
    pub fn peer_grants_any(&mut self, link: u16) -> Option<&mut PeerGrants> {
        match self.out.get_mut(usize::from(link)) {
            Some(Some(out)) if out.peer_grants.offers_any() => Some(&mut out.peer_grants),
            _ => None,
        }
    }

    /// The other end's grants, if it offers memory that can be mapped.
    #[inline(always)]
    pub fn peer_grants(&mut self, link: u16) -> Option<&mut PeerGrants> {
        match self.out.get_mut(usize::from(link)) {
            Some(Some(out)) if out.peer_grants.offers_mappable() => Some(&mut out.peer_grants),
            _ => None,
        }
    }

    /// Sends `len` bytes of the room that [`ShmPort::room`] returned, and wakes the other end if it
    /// sleeps.
    #[inline]
    pub fn commit(&mut self, link: u16, len: usize) {
        let Some(Some(out)) = self.out.get_mut(usize::from(link)) else { return };
        OpenFrame { out, counters: &mut self.counters }.commit(len);
    }
}
