//! What the tests of every crate share: limits of time, addresses that no other test process uses,
//! CPU time, forks.
//!
//! It depends on no crate of this repository, so each of them may use it in its tests.

pub mod cpu;
pub mod descriptors;
pub mod patience;
pub mod place;
