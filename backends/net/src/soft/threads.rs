//! The threads of a soft device: those that run its rounds, and those that sleep meanwhile.
//!
//! * `aside`: a thread that spins gives its core to others.
//! * `channels`: the channels of a device, each with the events of its own CQs.
//! * `driver_role`: threads that sleep on channels, and the one of them that runs the engine.
//! * `helper`: the thread that runs the engine while the program does not.
//! * `linger`: for how long the helper goes on.
//! * `notify`: events, and the threads that sleep until there is one.
//! * `turns`: the threads that share an engine's lock.

pub(super) mod aside;
pub(super) mod channels;
pub(super) mod driver_role;
pub(super) mod helper;
pub(super) mod linger;
pub(super) mod notify;
pub(super) mod turns;
