//! How much one round of the engine does, and how often it looks at what brings nothing.

/// Bursts that one round sends; more follow in the next.
pub(super) const BURSTS: usize = 32;

/// Rounds that receive what has come, where it must all be heard: as many as a ring full of the
/// smallest frames takes.
pub(super) const DRAIN_ROUNDS: usize = 256;

/// Links are tended in a round in which nothing has come, and after this time in any round: where
/// each round brings something, a new peer may call all the same.
pub(super) const MAINTAIN_MAX_NS: u64 = 2_000_000;

/// How often mail is looked for while somebody polls and none comes.
pub(super) const GROUP_POLL_NS: u64 = 100_000;

/// Which parts of a round to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// A doorbell: send only.
    Send,
    /// A poll: receive, send, and what is due when nothing came.
    Full,
}
