//! Tests of the device over a module of their own.

mod fake;
mod limits;
mod removal;
