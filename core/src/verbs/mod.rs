//! Verbs objects: their data, states and tables.

pub mod cause;
pub mod transition;
pub mod types;
