//! Who has which block, and where in the kernel's list its socket stands: the table behind the steering program.
//!
//! Every process of an address has one, and the newest is right: it has a version, and of two with the same version the one
//! whose author has the higher block. Whoever learns something (its own index, that somebody is gone) writes the next version,
//! attaches the program that follows from it and sends it to all others. Two who write at once are told apart by the order; the
//! one that lost finds itself missing and writes again. Nothing here is needed for packets to arrive, only for them to arrive
//! without a detour.
//!
//! Plain data and bytes; no system calls.

use super::steer::BLOCK_MAX;

/// Entries that a table can have: one a block.
pub const ENTRIES: usize = BLOCK_MAX as usize + 1;
/// Indexes are below this.
pub const INDEX_MAX: u16 = 4096;
/// Most bytes of a table as it travels.
pub const BYTES: usize = 12 + 4 * ENTRIES;

/// Which blocks have which index.
#[derive(Clone, Copy)]
pub struct Table {
    version: u64,
    author: u16,
    len: u16,
    /// (block, index), in ascending order of blocks.
    entries: [(u16, u16); ENTRIES],
}

impl Table {
    /// Knows nobody, and is older than all others.
    pub const EMPTY: Table = Table { version: 0, author: 0, len: 0, entries: [(0, 0); ENTRIES] };

    /// (block, index), in ascending order of blocks.
    pub fn entries(&self) -> &[(u16, u16)] {
        &self.entries[..usize::from(self.len)]
    }

    /// Version and author: the order of tables.
    pub fn age(&self) -> (u64, u16) {
        (self.version, self.author)
    }

    /// Whether it knows nobody.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The index of a block's owner.
    pub fn index_of(&self, block: u16) -> Option<u16> {
        self.entries().binary_search_by_key(&block, |e| e.0).ok().map(|i| self.entries[i].1)
    }

    /// The highest index; `None`: it knows nobody.
    pub fn last_index(&self) -> Option<u16> {
        self.entries().iter().map(|e| e.1).max()
    }

    /// Begins the next version, which is this block's.
    pub fn revise(&mut self, author: u16) {
        self.version += 1;
        self.author = author;
    }

    /// Gives a block an index. Whoever had that index has it no more, but for the blocks `from` on, `count` of them, which one
    /// process has together.
    pub fn set(&mut self, block: u16, index: u16, from: u16, count: u16) {
        self.retain(|b, i| b != block && (i != index || b.wrapping_sub(from) < count));
        let at = self.entries().partition_point(|e| e.0 < block);
        let len = usize::from(self.len);
        if len == ENTRIES {
            return;
        }
        self.entries.copy_within(at..len, at + 1);
        self.entries[at] = (block, index);
        self.len += 1;
    }

    /// Forgets a block. True: it was there.
    pub fn remove(&mut self, block: u16) -> bool {
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

    /// Writes it; the bytes written.
    ///
    /// Layout, little-endian: version 8, author 2, entries 2, then block 2 and index 2 of each.
    pub fn emit(&self, to: &mut [u8; BYTES]) -> usize {
        to[..8].copy_from_slice(&self.version.to_le_bytes());
        to[8..10].copy_from_slice(&self.author.to_le_bytes());
        to[10..12].copy_from_slice(&self.len.to_le_bytes());
        for (to, (block, index)) in to[12..].chunks_exact_mut(4).zip(self.entries()) {
            to[..2].copy_from_slice(&block.to_le_bytes());
            to[2..].copy_from_slice(&index.to_le_bytes());
        }
        12 + 4 * self.entries().len()
    }

    /// Reads what [`Table::emit`] wrote. `None`: it did not write that. A version that would leave no room for later
    /// ones is refused: nobody could ever correct it.
    pub fn parse(bytes: &[u8]) -> Option<Table> {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let u16_at = |b: &[u8], i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let mut t = Table::EMPTY;
        t.version = u64::from_le_bytes(*head.first_chunk()?);
        t.author = u16_at(head, 8);
        t.len = u16_at(head, 10);
        let n = usize::from(t.len);
        if n > ENTRIES || rest.len() != 4 * n || t.version == 0 || t.version > u64::MAX / 2 || t.author > BLOCK_MAX {
            return None;
        }
        for (entry, b) in t.entries.iter_mut().zip(rest.chunks_exact(4)) {
            *entry = (u16_at(b, 0), u16_at(b, 2));
        }
        let ascending = t.entries().windows(2).all(|w| w[0].0 < w[1].0);
        let in_range = t.entries().iter().all(|&(block, index)| block <= BLOCK_MAX && index < INDEX_MAX);
        (ascending && in_range).then_some(t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(u16, u16)]) -> Table {
        let mut t = Table::EMPTY;
        t.revise(1);
        for &(b, i) in entries {
            t.set(b, i, b, 1);
        }
        t
    }

    #[test]
    fn an_index_has_one_owner() {
        let mut t = table(&[(5, 0), (3, 1), (9, 2)]);
        assert_eq!(t.entries(), [(3, 1), (5, 0), (9, 2)]);
        t.set(7, 0, 7, 1);
        assert_eq!(t.entries(), [(3, 1), (7, 0), (9, 2)]);
        t.set(8, 0, 7, 2);
        assert_eq!(t.entries(), [(3, 1), (7, 0), (8, 0), (9, 2)], "one process, two blocks");
        assert!(t.remove(9) && !t.remove(9));
        assert_eq!((t.index_of(3), t.index_of(4), t.last_index()), (Some(1), None, Some(1)));
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let t = table(&[(1, 1), (2, 0), (1015, 77)]);
        let mut b = [0; BYTES];
        let n = t.emit(&mut b);
        let back = Table::parse(&b[..n]).unwrap();
        assert_eq!((back.age(), back.entries()), (t.age(), t.entries()));
        for cut in 0..n {
            assert!(Table::parse(&b[..cut]).is_none());
        }
        assert!(Table::parse(&b[..n + 1]).is_none());
        for (at, value) in [(0, 0), (7, 0xff), (9, 0xff), (11, 9), (12, 2), (13, 0xff), (15, 0xff)] {
            let mut bad = b;
            bad[at] = value;
            assert!(Table::parse(&bad[..n]).is_none(), "byte {at}");
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read() {
        let mut x = 1u64;
        let mut b = [0; 64];
        for _ in 0..100_000 {
            for byte in b.iter_mut() {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                *byte = if x & 7 == 0 { (x >> 32) as u8 } else { (x >> 32) as u8 & 3 };
            }
            let n = (x >> 8) as usize % 65;
            if let Some(t) = Table::parse(&b[..n]) {
                let mut out = [0; BYTES];
                let len = t.emit(&mut out);
                assert_eq!(out[..len], b[..n]);
            }
        }
    }
}
