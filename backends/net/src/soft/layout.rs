//! The parts of a device's memory, and the configurations that determine their sizes.

use super::siblings::Siblings;
use super::{soft_flags, PathChoice, SoftConfig, SoftEngine};
use crate::addr::DeviceName;
use crate::addr_group::{Claim, ClaimBounds, WantedBlocks};
use crate::shm::{ShmBounds, ShmPort};
use crate::udp::{udp_flags, UdpConfig, UdpPort};
use gdrcore_core::arena::ARENA_ALIGN;
use gdrcore_core::config::config_flags;
use gdrcore_core::engine::Engine;
use gdrcore_core::error::{Error, Result};

/// Bytes of the capture's write buffer.
pub(super) const PCAP_BUFFER: usize = 256 << 10;

/// Size that the socket's receive buffer is set to. The system grants at most its own maximum. On
/// Debian that is twice the default, enough for a window of WRITEs and a window of READ responses
/// of one peer.
const RCVBUF: u32 = 1 << 20;

/// ECN bits of packets that switches may mark instead of dropping them (RFC 3168: ECN-capable
/// transport).
const ECT_0: u8 = 2;

/// Offsets of the parts in the device's memory.
pub(super) struct Layout {
    pub(super) engine: usize,
    pub(super) udp: usize,
    pub(super) member: usize,
    pub(super) shm: usize,
    pub(super) pcap: usize,
    pub(super) end: usize,
}

/// An engine that is being opened, and its memory, divided by a layout. Each range has one owner.
pub(super) struct Opening<'a> {
    pub(super) place: *mut SoftEngine,
    pub(super) memory: *mut u8,
    pub(super) layout: &'a Layout,
    pub(super) siblings: Option<&'a Siblings>,
}

impl Opening<'_> {
    /// Memory from one offset of the layout to another.
    pub(super) fn range(&self, from: usize, to: usize) -> (*mut u8, usize) {
        (self.memory.wrapping_add(from), to - from)
    }
}

pub(super) fn page_up(n: usize) -> Result<usize> {
    n.checked_next_multiple_of(4096).ok_or(Error::NoMemory)
}

const _: () = assert!(align_of::<SoftEngine>() <= ARENA_ALIGN);

/// The offset of the part behind the first `n` bytes of a device, or of an engine.
pub(super) fn part_at(n: Option<usize>) -> Result<usize> {
    n.and_then(|n| n.checked_next_multiple_of(ARENA_ALIGN)).ok_or(Error::NoMemory)
}

impl SoftConfig<'_> {
    pub(super) fn udp_config(&self) -> UdpConfig {
        let singly = self.flags & soft_flags::NO_GSO != 0 || self.faults.is_some();
        let flags = if singly { udp_flags::NO_GSO } else { 0 };
        let traffic_class = if self.core.flags & config_flags::DCQCN != 0 { ECT_0 } else { 0 };
        // Four bursts to send; as many to receive as `rx_batch` is without a value.
        let burst_bytes = self.core.burst_bytes;
        UdpConfig {
            flags,
            burst_bytes,
            tx_bytes: 4 * burst_bytes,
            rcvbuf: RCVBUF,
            traffic_class,
            ..UdpConfig::DEFAULT
        }
    }

    /// The bounds of the device's claim among the devices of its address.
    pub(super) fn claim_bounds(&self) -> Result<ClaimBounds> {
        let c = self.core.resolve()?;
        Ok(ClaimBounds::for_device(c.burst_bytes, c.max_cm_ids))
    }

    /// The bounds of the device's links: the engine has a peer for each outbound link.
    pub(super) fn shm_bounds(&self) -> Result<ShmBounds> {
        let c = self.core.resolve()?;
        Ok(ShmBounds::for_device(c.max_peer, c.max_mr))
    }

    /// Whether the device has links to other processes.
    pub(super) fn has_links(&self, name: &DeviceName) -> bool {
        match name {
            DeviceName::Soft(_) => self.path != PathChoice::Udp,
            DeviceName::Router(_) => true,
            DeviceName::Loopback => false,
        }
    }

    /// The QPN blocks that the device claims of its address.
    pub(super) fn wanted_blocks(&self) -> Result<WantedBlocks> {
        WantedBlocks::from_range(self.core.qpn_base, self.core.resolve()?.qpn_count)
    }

    /// The layout of a device with a name. `siblings`: the device is one of the engines of a
    /// loopback device.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a bound; [`Error::NoMemory`]: the sum overflows.
    pub(super) fn layout(&self, name: &DeviceName, siblings: Option<&Siblings>) -> Result<Layout> {
        let engine = part_at(Some(size_of::<SoftEngine>()))?;
        let udp = part_at(engine.checked_add(Engine::memsize(&self.core)?))?;
        let bytes = if matches!(name, DeviceName::Soft(_)) {
            UdpPort::memsize(&self.udp_config())
        } else {
            0
        };
        let member = part_at(udp.checked_add(bytes))?;
        let claim = match name {
            DeviceName::Soft(_) => Claim::memsize(&self.wanted_blocks()?, &self.claim_bounds()?),
            DeviceName::Loopback | DeviceName::Router(_) => 0,
        };
        let shm = part_at(member.checked_add(claim))?;
        let links = match siblings {
            Some(siblings) => ShmPort::memsize(&siblings.bounds()),
            None if self.has_links(name) => ShmPort::memsize(&self.shm_bounds()?),
            None => 0,
        };
        let pcap = part_at(shm.checked_add(links))?;
        let end = part_at(Some(pcap + if self.pcap.is_some() { PCAP_BUFFER } else { 0 }))?;
        Ok(Layout { engine, udp, member, shm, pcap, end })
    }
}
