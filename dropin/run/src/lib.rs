//! Finds the drop-in, and tells whether a program can run on it: for `gdrcore-run`, which starts
//! programs, and `gdrcore doctor`, which only looks. `proc_stat`: reads what the kernel says of a
//! process, for `gdrcore top` as well.

pub mod drop_in_library;
pub mod elf;
pub mod proc_stat;
