//! Ends and bare sockets that the benches and measurements in `benches/` and `examples/` share.

pub mod bare;
pub mod ends;
