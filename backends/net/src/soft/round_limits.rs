//! How much work one round of the engine does, and how often it polls idle sources.

/// Bursts that one round sends; more follow in the next.
pub(super) const BURSTS: usize = 32;

/// What a long burst counts for. A round sends some 0.5 MB: meanwhile the packets that arrive have
/// room in the socket, and more of them are taken than peers ask for answers in that time.
pub(super) const LONG_BURST: usize = 4;

/// Rounds that drain links and sockets before an end: as many as a full ring of the smallest frames
/// takes.
pub(super) const DRAIN_ROUNDS: usize = 256;

/// Longest wait of a queue pair that ends for room for its last ACK, and for who takes the packets
/// that its device holds for other processes: a reader may be without a CPU for some tens of
/// milliseconds.
pub(super) const LAST_ACK_NS: u64 = 300_000_000;

/// So long the end of a queue pair waits for the rest of a READ's answer that has begun: a peer
/// asks for as much as it likes.
pub(super) const LAST_READ_NS: u64 = 2_000_000;

/// Interval of the checks for that room.
pub(super) const ROOM_POLL: core::time::Duration = core::time::Duration::from_micros(100);

/// Links are maintained in a round that received nothing, and after this time in any round, since a
/// new peer may connect while every round receives something.
pub(super) const MAINTAIN_MAX_NS: u64 = 2_000_000;

/// Interval of polls for messages of the group while none comes.
pub(super) const GROUP_POLL_NS: u64 = 100_000;

/// Which parts of a round to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// A doorbell: send only.
    Send,
    /// A poll: receive, send, and what is due when nothing came.
    Full,
}
