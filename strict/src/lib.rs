//! `--strict`: reports what a program does though the specification forbids it or leaves it
//! undefined, as a sanitizer does: what, of which object, where, and the rule.
//!
//! The rules and the state are the same for all programs; who sees the calls tells them in core's
//! terms. The drop-in does so for programs of libibverbs, [`device`] for those of the C API: a
//! device in front of the context's.
//!
//! Low to high: `rules`: their names, words and sources. [`inside`], [`peek`], [`json`]: threads
//! that look at a call, a program's memory, strings. `sites`: call stacks. `report`: what is
//! printed, once for each place. `like`: limits of NICs. [`memory`]: regions and bytes. `keys`:
//! remote keys that have ended. `requests`, [`queues`]: what is outstanding. [`objects`]: what
//! lives. [`attributes`]: of queue pairs. `garbage`: undefined fields of completions. [`state`]:
//! all of it, and what each call changes in it; [`posting`]: of posts. [`process`]: the one state
//! of the process, its forks and its end.
//!
//! A request counts as outstanding until the program has polled a completion that tells of its end,
//! whatever the device knows: that is what the program may rely on with any device.
//!
//! # Thread rule
//! Any thread. One lock around all of it, for the time before and after a call, not during it.
//! Memory is bounded: places, objects, requests and reports have limits, beyond which there are
//! fewer reports.

pub mod attributes;
pub mod device;
mod garbage;
pub mod inside;
pub mod json;
mod keys;
mod like;
pub mod memory;
pub mod objects;
pub mod peek;
pub mod posting;
pub mod process;
pub mod queues;
mod report;
mod requests;
mod rules;
mod sites;
pub mod state;

pub use report::own_thread;
pub use rules::rule_names;

/// An object: its device and its handle there. Of the drop-in, whose objects have addresses: 0, and
/// the address.
pub type Id = (usize, u64);
