//! Criterion benches and end-to-end measurements live in `benches/`; this is what they share.

pub mod bare;
pub mod ends;
