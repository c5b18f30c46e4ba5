//! State for reconnecting a session to its router ([`super::resume`]).

use super::client::Client;
use std::os::fd::OwnedFd;

/// The state of a session whose router is away.
pub(super) struct Absence {
    /// Token of the last WELCOME; zeroes: the router supports no resumption.
    pub(super) token: [u8; 64],
    pub(super) next: u64,
    /// Interval before that attempt; 0: none has failed yet.
    pub(super) wait: u64,
    /// A connection that waits for its WELCOME, with its request numbers and its deadline.
    pub(super) greeting: Option<(OwnedFd, Client, u64)>,
}

impl Absence {
    /// A session whose router is there.
    pub(super) fn new(token: [u8; 64]) -> Absence {
        Absence { token, next: 0, wait: 0, greeting: None }
    }
}
