//! A UDP port that owns its memory.

use super::{UdpConfig, UdpPort, UdpSocket};
use crate::map::Map;
use core::ops::{Deref, DerefMut};
use gdrcore_core::error::Result;
use std::os::fd::{AsFd, BorrowedFd};

/// A port with memory of its own; both are released when it is dropped.
pub struct OwnedUdpPort {
    port: UdpPort,
    /// Field order matters: dropped after the port, which uses the memory.
    _memory: Map,
}

impl OwnedUdpPort {
    /// Maps memory for a port of this configuration.
    ///
    /// # Errors
    /// As [`Map::new`].
    pub fn memory(cfg: &UdpConfig) -> Result<Map> {
        Map::new(UdpPort::memsize(cfg))
    }

    /// Makes a port over a socket and [`OwnedUdpPort::memory`].
    ///
    /// # Errors
    /// `NoMemory`: the memory was mapped for a smaller configuration.
    pub fn new(socket: UdpSocket, cfg: &UdpConfig, memory: Map) -> Result<OwnedUdpPort> {
        // SAFETY: the memory is of this value alone, which keeps it for as long as the port.
        let port = unsafe { UdpPort::from_socket(socket, cfg, memory.as_ptr(), memory.len()) }?;
        Ok(OwnedUdpPort { port, _memory: memory })
    }
}

impl Deref for OwnedUdpPort {
    type Target = UdpPort;

    fn deref(&self) -> &UdpPort {
        &self.port
    }
}

impl DerefMut for OwnedUdpPort {
    fn deref_mut(&mut self) -> &mut UdpPort {
        &mut self.port
    }
}

impl AsFd for OwnedUdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the port's socket is open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.port.fd()) }
    }
}
