//! The end of a program: whatever the way, its peers see what they would see of a NIC and a kernel.
//!
//! A test's process is the survivor. It starts itself anew as the program that ends (`play`).

mod connection;
mod last_message;
mod matrix;
mod play;
mod programs;
mod survivor;
