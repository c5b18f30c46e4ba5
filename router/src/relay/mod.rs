//! What sessions put into their rings, and who gets it.
//!
//! * [`switch`]: the rules, packet by packet. Nothing in a packet is believed that the sender's
//!   ring does not bear out.
//! * [`refused`]: why a packet goes to nobody.
//! * [`turns`]: whose packet is next: rates, weights and turns of tenants.
//! * [`far`]: tenants of other hosts.
//! * [`slots`]: what the worker, which applies them, shares with the rest of the router.

pub mod far;
pub mod refused;
pub mod slots;
pub mod switch;
pub mod turns;

pub use far::{Far, FarPeer, Stranger};
pub use refused::Refused;
pub use slots::{Counters, Slots, State, SLOTS, TENANTS};
pub use switch::{Goal, Guest, Place, Switch};
pub use turns::{Ingress, Turns};
