//! Access to memory of the program that a command names. The address may be bad.

use gdrcore_core::mem::host;
use gdrcore_core::{refuse, Result};

/// Copies a command, or a part of it.
///
/// # Errors
/// [`Error::Fault`](gdrcore_core::Error::Fault): the program has no such memory.
pub fn read(at: u64, to: &mut [u8]) -> Result<()> {
    let n = to.len();
    host::fetch(at, to).map_err(|_| refuse!(Fault, "command: {n} bytes at {at:#x} are no memory"))
}

/// Writes a response.
///
/// # Errors
/// As [`read`].
pub fn place(at: u64, bytes: &[u8]) -> Result<()> {
    host::place(at, bytes)
        .map_err(|_| refuse!(Fault, "response: {} bytes at {at:#x} cannot be written", bytes.len()))
}
