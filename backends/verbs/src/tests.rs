//! Tests of the device with a module of their own.

mod fake;
mod limits;
mod removal;
