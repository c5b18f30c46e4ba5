//! Interoperation with Linux's rxe: our soft device at one end, a kernel's at the other, both
//! driven from here.
//!
//! The far end runs `tests/vm/peer.c`, which turns lines of text into verbs calls ([`Guest`]). A
//! [`Pair`] is a connection of one QP at either end. Its methods name the [`Side`] that acts, so
//! that a case is written once and run in both directions. [`report::Report`] collects the results.

pub mod a19;
pub mod cases;
pub mod cm;
pub mod deep_queues;
pub mod faults;
pub mod forged;
pub mod guest;
pub mod headers;
pub mod lab;
pub mod long;
pub mod lossy;
pub mod mangle;
pub mod outside;
pub mod packets;
pub mod pair;
pub mod perftest;
pub mod pingpong;
pub mod report;
pub mod run_all;
pub mod same_tool;
pub mod side;
pub mod timers;
pub mod tools;
pub mod vm;

pub use guest::{Guest, Link};
pub use pair::Pair;
pub use side::Side;

/// The result of a case, or the first fault as text.
pub type Outcome<T> = Result<T, String>;
