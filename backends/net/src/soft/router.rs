//! Peers over a router, in place of the socket.
//!
//! * `outage`: a router that is away.
//! * `relayed`: rings to and from the router.
//! * `routed`: peers and queue pairs that the router must know.
//! * `status_place`: who asks for the status of a device over a router.

pub(super) mod outage;
pub(super) mod relayed;
pub(super) mod routed;
pub(super) mod status_place;
