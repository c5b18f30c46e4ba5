//! Queue of packets that wait for room in the socket of their block's owner.
//!
//! Such a socket holds ten messages. A process that has just started, or is not running at the
//! moment, may get more packets before the kernel steers its packets to it. Packets that do not fit
//! wait here for a while, in order for each owner.

use super::group_msg::{Delivery, Packets};
use crate::addr::Endpoint;
use gdrcore_core::arena::RawSlice;
use gdrcore_core::wire::grh::Fields;

/// Bytes of a forward queue, in bursts of the device.
pub const FORWARD_BURSTS: usize = 4;
/// A packet that has waited for this long is dropped, because its owner is stopped.
const MAX_WAIT_NS: u64 = 1_000_000_000;
/// Owners without room that one delivery remembers. Packets for further owners wait for the next
/// delivery.
const OWNERS: usize = 16;
/// Bytes of an entry's head.
const HEAD: usize = 48;

/// The head of an entry.
#[derive(Clone, Copy)]
struct EntryHead {
    len: u32,
    block: u16,
    seg: u16,
    first: u16,
    class: u8,
    /// The packets were delivered or dropped; the entry's bytes are free once it is the oldest.
    done: bool,
    src: Endpoint,
    since_ns: u64,
}

impl EntryHead {
    fn size(&self) -> usize {
        HEAD + (self.len as usize).next_multiple_of(8)
    }

    fn emit(&self, to: &mut [u8; HEAD]) {
        to[..4].copy_from_slice(&self.len.to_le_bytes());
        to[4..6].copy_from_slice(&self.block.to_le_bytes());
        to[6..8].copy_from_slice(&self.seg.to_le_bytes());
        to[8..10].copy_from_slice(&self.first.to_le_bytes());
        (to[10], to[11]) = (self.class, self.done.into());
        to[12..28].copy_from_slice(&self.src.ip);
        to[28..32].copy_from_slice(&self.src.scope_id.to_le_bytes());
        to[32..34].copy_from_slice(&self.src.port.to_le_bytes());
        to[40..].copy_from_slice(&self.since_ns.to_le_bytes());
    }

    fn read(b: &[u8; HEAD]) -> EntryHead {
        let u16_at = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let (mut ip, mut since) = ([0; 16], [0; 8]);
        ip.copy_from_slice(&b[12..28]);
        since.copy_from_slice(&b[40..]);
        EntryHead {
            len: u32_at(0),
            block: u16_at(4),
            seg: u16_at(6),
            first: u16_at(8),
            class: b[10],
            done: b[11] != 0,
            src: Endpoint::new(ip, u32_at(28), u16_at(32)),
            since_ns: u64::from_le_bytes(since),
        }
    }
}

/// Result of one delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Packets that reached their owner.
    pub forwarded: u64,
    /// Packets whose block has no owner any more, or whose owner took too long.
    pub dropped: u64,
}

/// Queue entries, stored back to back in memory of the caller.
#[derive(Default)]
pub struct ForwardQueue {
    bytes: RawSlice<u8>,
    head: usize,
    tail: usize,
}

impl ForwardQueue {
    pub fn new(bytes: RawSlice<u8>) -> ForwardQueue {
        ForwardQueue { bytes, head: 0, tail: 0 }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    fn entry(&self, at: usize) -> Option<EntryHead> {
        self.bytes.get(at..self.tail)?.first_chunk().map(EntryHead::read)
    }

    /// Bytes that wait for the owner of a block. Later packets for this owner must follow them.
    pub fn bytes_for(&self, block: u16) -> usize {
        let (mut at, mut bytes) = (self.head, 0);
        while let Some(e) = self.entry(at) {
            if e.block == block && !e.done {
                bytes += e.size();
            }
            at += e.size();
        }
        bytes
    }

    /// Appends packets. Returns false if there is no room, or if packets for the same owner take
    /// half of it.
    pub fn push(&mut self, now: u64, block: u16, p: &Packets<'_>) -> bool {
        let e = EntryHead {
            len: p.data.len() as u32,
            block,
            seg: p.seg,
            first: p.first,
            class: p.grh.traffic_class,
            done: false,
            src: p.src,
            since_ns: now,
        };
        if self.bytes_for(block) + e.size() > self.bytes.len() / 2 {
            return false;
        }
        if self.tail + e.size() > self.bytes.len() {
            self.compact();
        }
        let Some(room) = self.bytes.get_mut(self.tail..self.tail + e.size()) else { return false };
        let Some((head, rest)) = room.split_first_chunk_mut::<HEAD>() else { return false };
        e.emit(head);
        rest[..p.data.len()].copy_from_slice(p.data);
        self.tail += e.size();
        true
    }

    /// Closes the gaps that delivered packets have left, so that an owner without room does not
    /// take the other owners' room.
    fn compact(&mut self) {
        let (mut from, mut to) = (self.head, 0);
        while let Some(e) = self.entry(from) {
            if !e.done {
                self.bytes.copy_within(from..from + e.size(), to);
                to += e.size();
            }
            from += e.size();
        }
        (self.head, self.tail) = (0, to);
    }

    /// Sends all entries; those of an owner without room stay.
    pub fn deliver(
        &mut self,
        now: u64,
        mut send_to: impl FnMut(u16, &Packets<'_>) -> Delivery,
    ) -> Delivered {
        let mut outcome = Delivered::default();
        let (mut full, mut n) = ([0u16; OWNERS], 0);
        let mut at = self.head;
        while let Some(mut e) = self.entry(at) {
            let start = at;
            at += e.size();
            if e.done || full[..n].contains(&e.block) {
                continue;
            }
            let data = &self.bytes[start + HEAD..start + HEAD + e.len as usize];
            let packets = data.len().div_ceil(usize::from(e.seg).max(1)) as u64;
            let grh = Fields { traffic_class: e.class, ..Fields::default() };
            match send_to(e.block, &Packets { src: e.src, seg: e.seg, first: e.first, grh, data }) {
                Delivery::Sent => outcome.forwarded += packets,
                Delivery::NoRoom if now.saturating_sub(e.since_ns) < MAX_WAIT_NS => {
                    if n == OWNERS {
                        break;
                    }
                    full[n] = e.block;
                    n += 1;
                    continue;
                }
                Delivery::NoRoom | Delivery::NoOwner => outcome.dropped += packets,
            }
            e.done = true;
            if let Some(head) = self.bytes.get_mut(start..).and_then(|b| b.first_chunk_mut()) {
                e.emit(head);
            }
        }
        while let Some(e) = self.entry(self.head).filter(|e| e.done) {
            self.head += e.size();
        }
        if self.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Map;
    use gdrcore_core::arena::Walk;
    use gdrcore_testkit::rng::Rng;
    use std::collections::HashMap;

    fn packets(data: &[u8]) -> Packets<'_> {
        let grh = Fields { traffic_class: 0xb9, ..Fields::default() };
        Packets { src: Endpoint::v4([127, 0, 0, 9], 4791), seg: 100, first: 3, grh, data }
    }

    fn forward_queue(bytes: usize) -> (ForwardQueue, Map) {
        let memory = Map::new(bytes + 4096).unwrap();
        // SAFETY: fresh memory, kept beside the forward_queue.
        let mut walk = unsafe { Walk::carve(memory.as_ptr(), memory.len()) }.unwrap();
        (ForwardQueue::new(walk.slice(bytes, 0).unwrap()), memory)
    }

    #[test]
    fn each_owner_gets_its_packets_in_order_and_waits_for_no_other() {
        let (mut b, _memory) = forward_queue(64 << 10);
        let mut got: HashMap<u16, Vec<u8>> = HashMap::new();
        let mut kept: HashMap<u16, Vec<u8>> = HashMap::new();
        let mut rng = Rng::new(1);
        for step in 0..20_000u64 {
            let seed = rng.next();
            let block = (seed % 5) as u16;
            let data = vec![step as u8; 1 + (seed >> 8) as usize % 900];
            if b.push(step, block, &packets(&data)) {
                assert!(b.bytes_for(block) > 0);
                kept.entry(block).or_default().push(step as u8);
            }
            // Block 0 hardly ever has room; each other one takes one message at a time.
            let mut room: [bool; 5] = [step % 97 == 0, true, seed & 32 != 0, true, seed & 64 != 0];
            b.deliver(step, |block, p| {
                assert_eq!((p.seg, p.first, p.grh.traffic_class), (100, 3, 0xb9));
                assert_eq!(p.src.port, 4791);
                assert!(p.data.iter().all(|&x| x == p.data[0]));
                if !core::mem::take(&mut room[usize::from(block)]) {
                    return Delivery::NoRoom;
                }
                got.entry(block).or_default().push(p.data[0]);
                Delivery::Sent
            });
        }
        b.deliver(20_000, |block, p| {
            got.entry(block).or_default().push(p.data[0]);
            Delivery::Sent
        });
        assert!(b.is_empty());
        assert!(
            kept[&0].len() > 100 && kept[&1].len() > 1000,
            "{} {}",
            kept[&0].len(),
            kept[&1].len()
        );
        assert_eq!(got, kept);
    }

    #[test]
    fn packets_of_an_owner_that_reads_nothing_are_dropped_in_time() {
        let (mut b, _memory) = forward_queue(4096);
        assert!(b.push(5, 7, &packets(&[1; 250])));
        assert!(!b.push(5, 7, &packets(&[1; 4096])), "more than half");
        assert_eq!(b.deliver(MAX_WAIT_NS, |_, _| Delivery::NoRoom), Delivered::default());
        assert!(b.bytes_for(7) > 0);
        // Three packets of at most 100 bytes.
        assert_eq!(
            b.deliver(MAX_WAIT_NS + 5, |_, _| Delivery::NoRoom),
            Delivered { forwarded: 0, dropped: 3 }
        );
        assert!(b.is_empty() && b.bytes_for(7) == 0);
        assert!(b.push(9, 8, &packets(&[1; 40])));
        assert_eq!(b.deliver(9, |_, _| Delivery::NoOwner), Delivered { forwarded: 0, dropped: 1 });
    }
}
