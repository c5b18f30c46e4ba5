//! Datagrams of other management classes, which QP1 carries beside those of the connection manager:
//! performance queries and vendors' pings. The engine only passes them on, both ways, by rings of a
//! few places. What finds no room is lost, as a datagram may be.

use super::mad::{CLASS_CM, MAD_LEN};
use super::{Addressee, Cm};
use crate::arena::{RawSlice, Walk};
use crate::error::{Error, Result};
use crate::reason::refuse;
use crate::roce::peer::PeerAddr;

/// Places of each ring.
const PLACES: usize = 4;

/// A datagram, and the other end: where it goes, or came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherMad {
    /// The other end's QP1.
    pub peer: PeerAddr,
    /// The datagram.
    pub mad: [u8; MAD_LEN],
}

struct Ring {
    places: RawSlice<OtherMad>,
    head: usize,
    len: usize,
}

impl Ring {
    fn carve(w: &mut Walk) -> Result<Ring> {
        let none = OtherMad { peer: PeerAddr::default(), mad: [0; MAD_LEN] };
        Ok(Ring { places: w.slice(PLACES, none)?, head: 0, len: 0 })
    }

    fn push(&mut self, d: OtherMad) -> Result<()> {
        if self.len == PLACES {
            return Err(Error::Again);
        }
        self.places[(self.head + self.len) % PLACES] = d;
        self.len += 1;
        Ok(())
    }

    fn first(&self) -> Option<&OtherMad> {
        self.places.get(self.head).filter(|_| self.len > 0)
    }

    fn pop(&mut self) -> Option<OtherMad> {
        let first = *self.first()?;
        self.head = (self.head + 1) % PLACES;
        self.len -= 1;
        Some(first)
    }
}

/// Both rings.
pub(super) struct OtherMads {
    arrived: Ring,
    leaving: Ring,
}

impl OtherMads {
    pub(super) fn carve(w: &mut Walk) -> Result<OtherMads> {
        Ok(OtherMads { arrived: Ring::carve(w)?, leaving: Ring::carve(w)? })
    }

    /// Where the next one goes.
    pub(super) fn destination(&self) -> Option<PeerAddr> {
        self.leaving.first().map(|d| d.peer)
    }
}

impl Cm {
    /// Whether [`Cm::take_other_mad`] has one.
    pub fn has_other_mads(&self) -> bool {
        self.other_mads.arrived.len > 0
    }

    /// The next datagram of another class that has arrived.
    pub fn take_other_mad(&mut self) -> Option<OtherMad> {
        self.other_mads.arrived.pop()
    }

    /// Sends a datagram of another class from QP1 to QP1.
    ///
    /// # Errors
    /// [`Error::Again`]: others have yet to leave. [`Error::Invalid`]: of communication management.
    pub fn send_other_mad(&mut self, d: OtherMad) -> Result<()> {
        if !is_other_mad(&d.mad) {
            return Err(refuse!(Invalid, "mgmt_class {CLASS_CM:#x}: the connection manager's"));
        }
        self.other_mads.leaving.push(d)?;
        self.tx.set(self.ids.len());
        Ok(())
    }

    /// Takes a message that has arrived, if it is of another class.
    pub(super) fn keep_other_mad(&mut self, from: &PeerAddr, bytes: &[u8]) -> bool {
        if !is_other_mad(bytes) {
            return false;
        }
        let whole = <[u8; MAD_LEN]>::try_from(bytes).ok();
        let kept = whole.map(|mad| self.other_mads.arrived.push(OtherMad { peer: *from, mad }));
        match kept {
            Some(Ok(())) => self.raised = true,
            _ => self.counters.dropped += 1,
        }
        true
    }

    /// The next datagram of another class that leaves.
    pub(super) fn transmit_other_mad(&mut self, mad: &mut [u8; MAD_LEN]) -> Option<PeerAddr> {
        let d = self.other_mads.leaving.pop();
        if self.other_mads.leaving.len == 0 {
            self.tx.clear(self.ids.len());
        }
        let d = d?;
        *mad = d.mad;
        self.counters.sent += 1;
        Some(d.peer)
    }

    /// The addressee of a datagram that leaves for the own address, among several devices there:
    /// this one.
    pub(super) fn addressee_of_other_mad(&self) -> Addressee {
        Addressee::Block(self.local.block)
    }
}

/// Whether a message is of another class than communication management; too short ones are not.
fn is_other_mad(bytes: &[u8]) -> bool {
    bytes.get(1).is_some_and(|&class| class != CLASS_CM)
}
