//! Seeded simulator.
fn main() {}
