//! The table behind the steering program: the owner's index in the kernel's list for each block,
//! and the listeners.
//!
//! Each member has a table, and the newest counts: the one with the higher version or, if the
//! versions are equal, with the higher block of its author. A member that learns something (its own
//! index, the end of another) writes the next version, attaches its program and sends it to all
//! others. If two members write at once, one table loses; its author finds that its entries are
//! missing and writes again. Packets also arrive without the table, by a detour.
//!
//! This module is plain data and bytes, without system calls.

use super::numbers::BLOCK_MAX;
use core::ops::Range;

/// Entries that a table can have: one per block.
pub const ENTRIES: usize = BLOCK_MAX as usize + 1;
/// Services that are steered to their listeners; others take a detour.
pub const SERVICES: usize = 128;
/// Bound of the indexes, which are below it.
pub const INDEX_MAX: u16 = 4096;
/// Bytes before the entries.
const HEAD: usize = 14;
/// Most bytes of a table in a message.
pub const BYTES: usize = HEAD + 4 * ENTRIES + 6 * SERVICES;

/// The index of each block, and the listeners of services.
#[derive(Clone, Copy)]
pub struct Table {
    version: u64,
    author: u16,
    len: u16,
    /// (block, index), in ascending order of blocks.
    entries: [(u16, u16); ENTRIES],
    services_len: u16,
    /// (port space and port, block of the listener), in no order.
    services: [(u32, u16); SERVICES],
}

impl Table {
    /// A table without entries, older than all others.
    pub const EMPTY: Table = Table {
        version: 0,
        author: 0,
        len: 0,
        entries: [(0, 0); ENTRIES],
        services_len: 0,
        services: [(0, 0); SERVICES],
    };

    /// (block, index), in ascending order of blocks.
    pub fn entries(&self) -> &[(u16, u16)] {
        &self.entries[..usize::from(self.len)]
    }

    /// (port space in the upper half and port in the lower, block of the listener).
    pub fn services(&self) -> &[(u32, u16)] {
        &self.services[..usize::from(self.services_len)]
    }

    /// Version and author, which order tables.
    pub fn order_key(&self) -> (u64, u16) {
        (self.version, self.author)
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The index of a block's owner.
    pub fn index_of(&self, block: u16) -> Option<u16> {
        self.entries().binary_search_by_key(&block, |e| e.0).ok().map(|i| self.entries[i].1)
    }

    /// The highest index; `None`: no entries.
    pub fn max_index(&self) -> Option<u16> {
        self.entries().iter().map(|e| e.1).max()
    }

    /// Begins the next version, written by this block.
    pub fn begin_next_version(&mut self, author: u16) {
        self.version += 1;
        self.author = author;
    }

    /// Gives a block an index. Other blocks lose that index, except for those of `owned`, which one
    /// process owns together.
    pub fn set(&mut self, block: u16, index: u16, owned: Range<u16>) {
        self.retain(|b, i| b != block && (i != index || owned.contains(&b)));
        let at = self.entries().partition_point(|e| e.0 < block);
        let len = usize::from(self.len);
        if len == ENTRIES {
            return;
        }
        self.entries.copy_within(at..len, at + 1);
        self.entries[at] = (block, index);
        self.len += 1;
    }

    /// Sets the ports at which a block listens.
    pub fn set_services(&mut self, block: u16, services: impl Iterator<Item = u32>) {
        let mut n = 0;
        for i in 0..usize::from(self.services_len) {
            let s = self.services[i];
            if s.1 != block {
                self.services[n] = s;
                n += 1;
            }
        }
        for (place, service) in self.services[n..].iter_mut().zip(services) {
            *place = (service, block);
            n += 1;
        }
        self.services_len = n as u16;
    }

    /// Whether there is no room for another service.
    pub fn services_are_full(&self) -> bool {
        usize::from(self.services_len) == self.services.len()
    }

    /// The number of sockets that the entries name.
    pub fn socket_count(&self) -> u16 {
        let mut seen = [0u64; INDEX_MAX as usize / 64];
        self.entries().iter().for_each(|e| seen[usize::from(e.1) / 64] |= 1 << (e.1 % 64));
        seen.iter().map(|w| w.count_ones()).sum::<u32>() as u16
    }

    /// Removes a block. True: it was there.
    pub fn remove(&mut self, block: u16) -> bool {
        self.set_services(block, core::iter::empty());
        let before = self.len;
        self.retain(|b, _| b != block);
        self.len != before
    }

    fn retain(&mut self, mut keep: impl FnMut(u16, u16) -> bool) {
        let mut n = 0;
        for i in 0..usize::from(self.len) {
            let (block, index) = self.entries[i];
            if keep(block, index) {
                self.entries[n] = (block, index);
                n += 1;
            }
        }
        self.len = n as u16;
    }

    /// Writes the table and returns the bytes written.
    ///
    /// Layout, little-endian: version 8, author 2, entries 2, services 2, then block 2 and index 2
    /// of each entry, service 4 and block 2 of each service.
    pub fn emit(&self, to: &mut [u8; BYTES]) -> usize {
        to[..8].copy_from_slice(&self.version.to_le_bytes());
        to[8..10].copy_from_slice(&self.author.to_le_bytes());
        to[10..12].copy_from_slice(&self.len.to_le_bytes());
        to[12..14].copy_from_slice(&self.services_len.to_le_bytes());
        let (entries, services) = to[HEAD..].split_at_mut(4 * self.entries().len());
        for (to, (block, index)) in entries.chunks_exact_mut(4).zip(self.entries()) {
            to[..2].copy_from_slice(&block.to_le_bytes());
            to[2..].copy_from_slice(&index.to_le_bytes());
        }
        for (to, (service, block)) in services.chunks_exact_mut(6).zip(self.services()) {
            to[..4].copy_from_slice(&service.to_le_bytes());
            to[4..].copy_from_slice(&block.to_le_bytes());
        }
        HEAD + 4 * self.entries().len() + 6 * self.services().len()
    }

    /// Reads the bytes of [`Table::emit`]; `None`: other bytes. Versions in the upper half of the
    /// range are refused: no later one could replace the highest.
    pub fn parse(bytes: &[u8]) -> Option<Table> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let u16_at = |b: &[u8], i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let mut t = Table::EMPTY;
        t.version = u64::from_le_bytes(*head.first_chunk()?);
        t.author = u16_at(head, 8);
        t.len = u16_at(head, 10);
        t.services_len = u16_at(head, 12);
        let (n, m) = (usize::from(t.len), usize::from(t.services_len));
        if n > ENTRIES
            || m > SERVICES
            || rest.len() != 4 * n + 6 * m
            || t.version == 0
            || t.version > u64::MAX / 2
            || t.author > BLOCK_MAX
        {
            return None;
        }
        let (entries, services) = rest.split_at(4 * n);
        for (entry, b) in t.entries.iter_mut().zip(entries.chunks_exact(4)) {
            *entry = (u16_at(b, 0), u16_at(b, 2));
        }
        for (service, b) in t.services.iter_mut().zip(services.chunks_exact(6)) {
            *service = (u32::from_le_bytes([b[0], b[1], b[2], b[3]]), u16_at(b, 4));
        }
        let ascending = t.entries().windows(2).all(|w| w[0].0 < w[1].0);
        let in_range =
            t.entries().iter().all(|&(block, index)| block <= BLOCK_MAX && index < INDEX_MAX);
        (ascending && in_range).then_some(t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_testkit::rng::Rng;

    fn table(entries: &[(u16, u16)]) -> Table {
        let mut t = Table::EMPTY;
        t.begin_next_version(1);
        for &(b, i) in entries {
            t.set(b, i, b..b + 1);
        }
        t
    }

    #[test]
    fn an_index_has_one_owner() {
        let mut t = table(&[(5, 0), (3, 1), (9, 2)]);
        assert_eq!(t.entries(), [(3, 1), (5, 0), (9, 2)]);
        t.set(7, 0, 7..8);
        assert_eq!(t.entries(), [(3, 1), (7, 0), (9, 2)]);
        t.set(8, 0, 7..9);
        assert_eq!(t.entries(), [(3, 1), (7, 0), (8, 0), (9, 2)], "one process, two blocks");
        assert!(t.remove(9) && !t.remove(9));
        assert_eq!(
            (t.index_of(3), t.index_of(4), t.max_index(), t.socket_count()),
            (Some(1), None, Some(1), 2)
        );
    }

    #[test]
    fn a_member_that_has_ended_is_no_listener() {
        let mut t = table(&[(5, 0), (3, 1)]);
        t.set_services(5, 100..300);
        assert_eq!(t.services().len(), SERVICES, "as many as there is room for");
        t.set_services(5, [7, 8].into_iter());
        t.set_services(3, [9].into_iter());
        assert_eq!(t.services(), [(7, 5), (8, 5), (9, 3)]);
        t.remove(5);
        assert_eq!(t.services(), [(9, 3)]);
    }

    #[test]
    fn emitted_tables_are_read_and_other_bytes_refused() {
        let mut t = table(&[(1, 1), (2, 0), (1015, 77)]);
        t.set_services(2, [5, 6].into_iter());
        let mut b = [0; BYTES];
        let n = t.emit(&mut b);
        let back = Table::parse(&b[..n]).unwrap();
        assert_eq!(
            (back.order_key(), back.entries(), back.services()),
            (t.order_key(), t.entries(), t.services())
        );
        for cut in 0..n {
            assert!(Table::parse(&b[..cut]).is_none());
        }
        assert!(Table::parse(&b[..n + 1]).is_none());
        for (at, value) in
            [(0, 0), (7, 0xff), (9, 0xff), (11, 9), (12, 9), (14, 2), (15, 0xff), (17, 0xff)]
        {
            let mut bad = b;
            bad[at] = value;
            assert!(Table::parse(&bad[..n]).is_none(), "byte {at}");
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read() {
        let mut rng = Rng::new(1);
        let mut b = [0; 64];
        for _ in 0..100_000 {
            for byte in b.iter_mut() {
                let x = rng.next();
                *byte = if x & 7 == 0 { (x >> 32) as u8 } else { (x >> 32) as u8 & 3 };
            }
            let n = rng.below(65) as usize;
            if let Some(t) = Table::parse(&b[..n]) {
                let mut out = [0; BYTES];
                let len = t.emit(&mut out);
                assert_eq!(out[..len], b[..n]);
            }
        }
    }
}
