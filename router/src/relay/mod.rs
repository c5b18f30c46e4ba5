//! The rules by which the relay forwards packets from sessions' rings.
//!
//! * [`switch`]: the destination of each packet. A packet's source must agree with the sender's
//!   ring.
//! * [`refused`]: why a packet is refused.
//! * [`scheduler`]: the order of packets: rates, weights and turns of tenants.
//! * [`far`]: tenants of other hosts.
//! * [`slots`]: what the worker shares with the rest of the router.

pub mod far;
pub mod refused;
pub mod scheduler;
pub mod slots;
pub mod switch;

pub use far::{Far, FarPeer, UnknownSender};
pub use refused::Refused;
pub(crate) use scheduler::{Ingress, Scheduler};
pub use slots::{Counters, SlotState, Slots, SLOTS, TENANTS};
pub use switch::{Destination, OutsidePacket, SessionAddress, Switch};
