//! Peers of a soft device, as its ports see them.
//!
//! * `ends`: processes of peers that end.
//! * `grant_checks`: for how long a peer may write memory that was granted to it.
//! * `grants`: memory that processes of this host may write.
//! * `links`: links to other processes of this host.
//! * `paths`: how each peer is reached.
//! * `ports`: UDP ports that peers may send from.
//! * `witness`: why a peer is silent.

pub(super) mod ends;
pub(super) mod grant_checks;
pub(super) mod grants;
pub(super) mod links;
pub(super) mod paths;
pub(super) mod ports;
pub(super) mod witness;
