//! Peers over a router, in place of the socket.
//!
//! * `outage`: a router that is away.
//! * `relayed`: rings to and from the router.
//! * `routed`: peers and queue pairs that the router must know.

pub(super) mod outage;
pub(super) mod relayed;
pub(super) mod routed;
