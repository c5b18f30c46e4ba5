//! What a session keeps for its way back to the router ([`super::resume`]).

use super::client::Client;
use std::os::fd::OwnedFd;

/// The state of a session whose router is away.
pub(super) struct Absence {
    /// Of the last WELCOME; zeroes: the router supports no resumption.
    pub(super) token: [u8; 64],
    /// The next attempt.
    pub(super) next: u64,
    /// The interval after it; 0: there was no attempt yet.
    pub(super) wait: u64,
    /// A connection whose answer has not come, its numbers, and until when it may come.
    pub(super) greeting: Option<(OwnedFd, Client, u64)>,
}

impl Absence {
    /// A session whose router is there.
    pub(super) fn new(token: [u8; 64]) -> Absence {
        Absence { token, next: 0, wait: 0, greeting: None }
    }
}
