//! The association of a DC initiator: the target that it talks to now, and the phase of that.

use crate::verbs::wqe::DcAddr;
use crate::verbs::NONE;

/// What identifies the target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcTarget {
    /// Index of the peer's address.
    pub peer: u32,
    /// Number of the DCT.
    pub dctn: u32,
    /// Access key.
    pub key: u64,
}

impl DcTarget {
    /// None.
    pub const NONE: DcTarget = DcTarget { peer: NONE, dctn: 0, key: 0 };
}

/// How far an initiator is with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DcPhase {
    /// It has none.
    #[default]
    Apart,
    /// It has asked for an association.
    Opening,
    /// Requests may leave.
    Open,
    /// All requests have ended; the target is still to be told.
    Closing,
    /// Nothing is left to be said to the target.
    Leaving,
}

/// The association of a DC initiator.
#[derive(Clone, Copy, Debug)]
pub struct Association {
    /// How far it is.
    pub phase: DcPhase,
    /// Its target, unless it is apart.
    pub target: DcTarget,
    /// The address that the latest request for it named, and how many address handles had ended by
    /// then. As long as no further one ends, the same address is the same target.
    pub named: (DcAddr, u64),
    /// Its id: the life of the initiator, and a count.
    pub id: u64,
    /// The target's incarnation, once open.
    pub incarnation: u64,
    /// An OPEN is to be sent; once open, one that asks whether the association is there.
    pub asks: bool,
    /// When the first OPEN was due.
    pub since: u64,
    /// When the next one is, if no answer comes.
    pub again_at: u64,
    /// Time from that one to the next.
    pub wait_ns: u64,
    /// When the request at the head fails.
    pub deadline: u64,
    /// The target's last answer was that it has no context free.
    pub busy: bool,
    /// The target wants its context back: nothing begins any more, and it ends when all has ended.
    pub wanted: bool,
    /// When a request last left, or the association was made.
    pub used_at: u64,
    /// How long the target keeps the association without hearing of it.
    pub lease_ns: u64,
    /// `max_rd_atomic` as the program set it; a target may grant less.
    pub max_rd_atomic: u8,
}

impl Default for Association {
    fn default() -> Association {
        Association {
            phase: DcPhase::Apart,
            target: DcTarget::NONE,
            named: (DcAddr::default(), u64::MAX),
            id: 0,
            incarnation: 0,
            asks: false,
            since: 0,
            again_at: 0,
            wait_ns: 0,
            deadline: 0,
            busy: false,
            wanted: false,
            used_at: 0,
            lease_ns: 0,
            max_rd_atomic: 0,
        }
    }
}

impl Association {
    /// Ends it in any phase, because its queue pair is in ERR. The target is told if it has a
    /// context for it.
    pub fn fail(&mut self) {
        self.phase = match self.phase {
            DcPhase::Apart => DcPhase::Apart,
            DcPhase::Opening | DcPhase::Leaving => DcPhase::Leaving,
            DcPhase::Open | DcPhase::Closing => DcPhase::Closing,
        };
        self.asks = false;
    }

    /// Whether it was unused for so long that the target may have given the context to another.
    #[inline(always)]
    pub fn is_stale(&self, now: u64) -> bool {
        now.saturating_sub(self.used_at) > self.lease_ns / 2
    }

    /// When something is to be done for it; `u64::MAX`: never.
    pub fn next_deadline(&self) -> u64 {
        match self.phase {
            DcPhase::Opening => self.again_at.min(self.deadline),
            _ => u64::MAX,
        }
    }
}
