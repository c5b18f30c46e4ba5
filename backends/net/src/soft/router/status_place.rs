//! The directory at which a device over a router is asked for its status ([`crate::status`]), and
//! answers. Other devices have the directory of their block for that.

use crate::addr::{Endpoint, ROCE_PORT};
use crate::addr_group::group_msg::{parse, GroupSocket, Received};
use crate::local::{Holder, Lock, SocketDir};
use gdrcore_core::config::qpn_block;
use std::os::fd::RawFd;

/// Bytes of the longest message that is read: a request has no more.
const ROOM: usize = 64;
/// Messages that one look takes.
const BATCH: usize = 32;

/// The directory of a device over a router.
pub(in crate::soft) struct StatusPlace {
    socket: GroupSocket,
    /// The address of the device.
    local: Endpoint,
}

impl StatusPlace {
    /// Takes the directory of an address and the first block of the session, and names the process
    /// there. `None`: there is none for this device, which is not shown then.
    pub(in crate::soft) fn open(gid: [u8; 16], qpn: u32) -> Option<StatusPlace> {
        // No group of an address has this port.
        let at = Endpoint::new(gid, 0, 0);
        let holder = Holder::Block(qpn_block(qpn));
        let socket = GroupSocket::open(&SocketDir::open().ok()?, &at, holder).ok()?;
        let place = StatusPlace { socket, local: Endpoint { port: ROCE_PORT, ..at } };
        place.socket.lock().name_process();
        Some(place)
    }

    /// Readable when somebody asks.
    pub(in crate::soft) fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// The lock of the directory, and the address of the device.
    pub(in crate::soft) fn named(&self) -> (&Lock, Endpoint) {
        (self.socket.lock(), self.local)
    }

    /// Whether a process has asked since the last call. A system call, or more if one has.
    pub(in crate::soft) fn take_request(&self) -> bool {
        let mut buffer = [0; ROOM];
        let mut is_asked = false;
        for _ in 0..BATCH {
            let Some(n) = self.socket.receive(&mut buffer) else { break };
            let message = buffer.get(..n).and_then(parse);
            is_asked |= matches!(message, Some((_, Received::StatusRequest)));
        }
        is_asked
    }
}
