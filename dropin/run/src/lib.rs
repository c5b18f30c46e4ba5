//! What a launcher of verbs programs knows: where the drop-in lies, and whether a program can run
//! on it. `gdrcore-run` launches, `gdrcore doctor` only looks.

pub mod drop_in_library;
pub mod elf;
