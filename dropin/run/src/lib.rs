//! Finds the drop-in, and tells whether a program can run on it: for `gdrcore-run`, which starts
//! programs, and `gdrcore doctor`, which only looks.

pub mod drop_in_library;
pub mod elf;
