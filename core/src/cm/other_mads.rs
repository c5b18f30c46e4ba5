//! Datagrams of other management classes, which QP1 carries beside those of the connection manager:
//! performance queries and vendors' pings. The engine only passes them on, both ways, by rings of a
//! few places. What finds no room is lost, as a datagram may be.

use super::mad::{CLASS_CM, MAD_LEN};
use super::Cm;
use crate::arena::{RawSlice, Walk};
use crate::error::{Error, Result};
use crate::reason::refuse;
use crate::roce::peer::PeerAddr;
use heapless::Deque;

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

type Ring = RawSlice<Deque<OtherMad, PLACES>>;

/// A ring of each way, in the arena: a connection manager is moved before it has its place.
pub(super) struct OtherMads {
    arrived: Ring,
    leaving: Ring,
}

impl OtherMads {
    pub(super) fn carve(w: &mut Walk) -> Result<OtherMads> {
        let mut ring = || w.slice_with(1, |_| Deque::new());
        Ok(OtherMads { arrived: ring()?, leaving: ring()? })
    }

    /// Where the next one goes.
    pub(super) fn destination(&self) -> Option<PeerAddr> {
        self.leaving[0].front().map(|d| d.peer)
    }
}

impl Cm {
    /// Whether [`Cm::take_other_mad`] has one.
    pub fn has_other_mads(&self) -> bool {
        !self.other_mads.arrived[0].is_empty()
    }

    /// The next datagram of another class that has arrived.
    pub fn take_other_mad(&mut self) -> Option<OtherMad> {
        self.other_mads.arrived[0].pop_front()
    }

    /// Sends a datagram of another class from QP1 to QP1.
    ///
    /// # Errors
    /// [`Error::Again`]: others have yet to leave. [`Error::Invalid`]: of communication management.
    pub fn send_other_mad(&mut self, d: OtherMad) -> Result<()> {
        if !is_other_mad(&d.mad) {
            return Err(refuse!(Invalid, "mgmt_class {CLASS_CM:#x}: the connection manager's"));
        }
        // No words: the caller tries again.
        self.other_mads.leaving[0].push_back(d).map_err(|_| Error::Again)?;
        self.tx.set(self.ids.len());
        Ok(())
    }

    /// Takes a message that has arrived, if it is of another class.
    pub(super) fn keep_other_mad(&mut self, from: &PeerAddr, bytes: &[u8]) -> bool {
        if !is_other_mad(bytes) {
            return false;
        }
        let whole = <[u8; MAD_LEN]>::try_from(bytes).ok();
        let kept = whole.is_some_and(|mad| {
            self.other_mads.arrived[0].push_back(OtherMad { peer: *from, mad }).is_ok()
        });
        self.raised |= kept;
        self.counters.dropped += u64::from(!kept);
        true
    }

    /// The next datagram of another class that leaves.
    pub(super) fn transmit_other_mad(&mut self, mad: &mut [u8; MAD_LEN]) -> Option<PeerAddr> {
        let d = self.other_mads.leaving[0].pop_front();
        if self.other_mads.leaving[0].is_empty() {
            self.tx.clear(self.ids.len());
        }
        let d = d?;
        *mad = d.mad;
        self.counters.sent += 1;
        Some(d.peer)
    }
}

/// Whether a message is of another class than communication management; too short ones are not.
fn is_other_mad(bytes: &[u8]) -> bool {
    bytes.get(1).is_some_and(|&class| class != CLASS_CM)
}
