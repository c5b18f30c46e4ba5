//! Layout of the messages between the two ends of a link: the hello, requests for memory, and
//! grants.

use super::ring::GRANTS;
use crate::addr::Endpoint;

/// First bytes of a hello: name and version.
pub(super) const HELLO: [u8; 8] = *b"gdrshm\x02\0";
/// First bytes of a hello on a socket that a router made. The router names the sender, so the
/// address in the hello is ignored.
pub(super) const HELLO_BROKERED: [u8; 8] = *b"gdrshm\x03\0";
/// Bytes of a hello: magic 8, bytes of ring data 4, zone 4, port 2, zero 2, zero 4, address 16.
pub(super) const HELLO_LEN: usize = 40;

/// First bytes of the messages: name and version.
pub(super) const REQUEST: [u8; 8] = *b"gdrask\x01\0";
pub(super) const GRANT: [u8; 8] = *b"gdrlon\x01\0";
/// First bytes of messages about access by address, which are sent only to ends that offer it.
pub(super) const REQUEST_BY_ADDRESS: [u8; 8] = *b"gdrakf\x01\0";
const GRANT_BY_ADDRESS: [u8; 8] = *b"gdrlnf\x01\0";
/// Bytes of the messages.
pub(super) const REQUEST_LEN: usize = 24;
pub(super) const GRANT_LEN: usize = 56;

/// The first message of a link, which comes with the segment's descriptor.
pub(super) struct Hello {
    /// Bytes of ring data.
    pub(super) size: u32,
    /// The sender's address.
    pub(super) from: Endpoint,
}

impl Hello {
    pub(super) fn emit(&self, head: [u8; 8]) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&head);
        bytes[8..12].copy_from_slice(&self.size.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.from.scope_id.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.from.port.to_le_bytes());
        bytes[24..].copy_from_slice(&self.from.ip);
        bytes
    }

    /// Reads a hello that begins with `head`. `None`: other bytes.
    pub(super) fn parse(bytes: &[u8], head: [u8; 8]) -> Option<Hello> {
        let (_, ip) = bytes.split_last_chunk()?;
        let from = Endpoint::new(*ip, word(bytes, 12), word(bytes, 16) as u16);
        let known = bytes.len() == HELLO_LEN && bytes[..8] == head;
        known.then(|| Hello { size: word(bytes, 8), from })
    }
}

/// The queue pairs of a request, and the owner's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRequest {
    /// The requester's QPN.
    pub from_qpn: u32,
    /// The owner's QPN.
    pub qpn: u32,
    /// The owner's key.
    pub rkey: u32,
}

/// A grant of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub(super) request: GrantRequest,
    pub(super) number: u32,
    pub(super) serial: u32,
    pub(super) iova: u64,
    pub(super) length: u64,
    /// Offset of the region in the descriptor's memory; by address: its address in the owner's
    /// process.
    pub(super) offset: u64,
    /// The grant is by address, without a descriptor.
    pub(super) by_address: bool,
}

/// A message of a link's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkMessage {
    Wake,
    Request { request: GrantRequest, by_address: bool },
    Grant(Grant),
}

impl LinkMessage {
    /// Reads a message: a wake-up is any byte, the others are told apart by their head. `None`:
    /// other bytes.
    pub(super) fn parse(bytes: &[u8]) -> Option<LinkMessage> {
        let request =
            |by_address| LinkMessage::Request { request: GrantRequest::read(bytes), by_address };
        match (bytes.len(), bytes.first_chunk()) {
            (1, _) => Some(LinkMessage::Wake),
            (REQUEST_LEN, Some(&REQUEST)) => Some(request(false)),
            (REQUEST_LEN, Some(&REQUEST_BY_ADDRESS)) => Some(request(true)),
            (GRANT_LEN, Some(&GRANT)) => Some(LinkMessage::Grant(Grant::read(bytes, false))),
            (GRANT_LEN, Some(&GRANT_BY_ADDRESS)) => {
                Some(LinkMessage::Grant(Grant::read(bytes, true)))
            }
            _ => None,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl GrantRequest {
    pub(super) fn emit(&self, head: [u8; 8]) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..8].copy_from_slice(&head);
        for (at, value) in [(8, self.from_qpn), (12, self.qpn), (16, self.rkey)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> GrantRequest {
        GrantRequest { from_qpn: word(bytes, 8), qpn: word(bytes, 12), rkey: word(bytes, 16) }
    }
}

impl Grant {
    pub(super) fn emit(&self) -> [u8; GRANT_LEN] {
        let mut bytes = [0; GRANT_LEN];
        bytes[..REQUEST_LEN].copy_from_slice(&self.request.emit(if self.by_address {
            GRANT_BY_ADDRESS
        } else {
            GRANT
        }));
        bytes[20..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.serial.to_le_bytes());
        for (at, value) in [(32, self.iova), (40, self.length), (48, self.offset)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: &[u8], by_address: bool) -> Grant {
        Grant {
            request: GrantRequest::read(bytes),
            number: word(bytes, 20),
            serial: word(bytes, 24),
            iova: long(bytes, 32),
            length: long(bytes, 40),
            offset: long(bytes, 48),
            by_address,
        }
    }

    /// Whether the numbers are possible.
    pub(super) fn is_sound(&self) -> bool {
        self.number < GRANTS as u32
            && self.serial != 0
            && self.length != 0
            && self.iova.checked_add(self.length - 1).is_some()
            && self.offset.checked_add(self.length - 1).is_some()
    }
}
