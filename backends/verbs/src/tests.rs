//! Tests of the device with a module of their own.

mod cm;
mod fake;
mod fake_cm;
mod limits;
mod removal;
