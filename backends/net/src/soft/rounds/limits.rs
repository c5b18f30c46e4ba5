//! How much work one round of the engine does, and how often it polls idle sources.

/// Bursts that one round sends; more follow in the next.
pub(in crate::soft) const BURSTS: usize = 32;

/// A long burst counts as so many bursts. So a round sends some 0.5 MB. Packets that arrive
/// meanwhile fit into the socket, and each round takes more packets than peers request answers in
/// that time.
pub(in crate::soft) const LONG_BURST: usize = 4;

/// Rounds that drain links and sockets before an end: enough for a full ring of the smallest
/// frames.
pub(in crate::soft) const DRAIN_ROUNDS: usize = 256;

/// The longest wait at the end of a queue pair: for room for its last ACK, and for processes to
/// take the packets that the device holds for them. A reader may be without a CPU for some tens of
/// milliseconds.
pub(in crate::soft) const LAST_ACK_NS: u64 = 300_000_000;

/// Longest wait at the end of a queue pair for the rest of a READ's answer: a peer may request any
/// length.
pub(in crate::soft) const LAST_READ_NS: u64 = 2_000_000;

/// Interval of the checks for that room.
pub(in crate::soft) const ROOM_POLL: core::time::Duration = core::time::Duration::from_micros(100);

/// Links are maintained in a round that received nothing. After this time any round maintains them,
/// because a new peer may connect while every round receives something.
pub(in crate::soft) const MAINTAIN_MAX_NS: u64 = 2_000_000;

/// Interval of polls for messages of the group while none comes.
pub(in crate::soft) const GROUP_POLL_NS: u64 = 100_000;

/// Which parts of a round to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::soft) enum Round {
    /// A doorbell: send only.
    Send,
    /// A poll: receive, send, and what is due when nothing came.
    Full,
}
