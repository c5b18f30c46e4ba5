//! Blocks by key: open addressing with linear probing, at most half full.

use crate::blocks::Blocks;
use core::ffi::c_void;
use core::ptr::null_mut;

/// A key and the number of its block, plus one; no key: 0.
type Cell = (u32, u32);

pub(crate) struct Pool {
    /// A power of two of them.
    cells: Box<[Cell]>,
    blocks: Blocks,
    /// Deleted blocks.
    free: Vec<u32>,
    /// Blocks from this number on were never used.
    fresh: u32,
    count: u32,
}

impl Pool {
    /// `None`: no memory.
    pub(crate) fn new(count: u32) -> Option<Pool> {
        let mut cells: Vec<Cell> = Vec::new();
        let n = (2 * count as usize).next_power_of_two();
        cells.try_reserve_exact(n).ok()?;
        cells.resize(n, (0, 0));
        let mut free = Vec::new();
        free.try_reserve_exact(count as usize).ok()?;
        let blocks = Blocks::new(count)?;
        Some(Pool { cells: cells.into_boxed_slice(), blocks, free, fresh: 0, count })
    }

    /// The cell at which the search for a key begins. The multiplier is 2^32 divided by the golden
    /// ratio, so that consecutive lkeys end up apart.
    pub(crate) fn home(&self, key: u32) -> usize {
        let bits = self.cells.len().trailing_zeros();
        (u64::from(key.wrapping_mul(0x9e37_79b1)) >> (32 - bits.min(32))) as usize
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.cells.len() - 1)
    }

    /// The cell of a key, or the one in which to put it. Half of the cells are empty, so the search
    /// ends.
    fn find(&self, key: u32) -> usize {
        let mut at = self.home(key);
        while self.cells[at].1 != 0 && self.cells[at].0 != key {
            at = self.next(at);
        }
        at
    }

    pub(crate) fn get(&self, key: u32) -> *mut c_void {
        match self.cells[self.find(key)].1 {
            0 => null_mut(),
            block => self.blocks.at(block - 1),
        }
    }

    pub(crate) fn insert(&mut self, key: u32) -> *mut c_void {
        let at = self.find(key);
        if self.cells[at].1 != 0 {
            return self.blocks.at(self.cells[at].1 - 1);
        }
        let block = match self.free.pop() {
            Some(block) => block,
            None if self.fresh < self.count => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return null_mut(),
        };
        self.cells[at] = (key, block + 1);
        self.blocks.fresh(block)
    }

    pub(crate) fn delete(&mut self, key: u32) {
        let mut hole = self.find(key);
        let block = self.cells[hole].1;
        if block == 0 {
            return;
        }
        self.free.push(block - 1);
        // Keys behind the hole that a search would no longer find move into it.
        let mut at = self.next(hole);
        while self.cells[at].1 != 0 {
            let home = self.home(self.cells[at].0);
            let mask = self.cells.len() - 1;
            let from_home = at.wrapping_sub(home) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                self.cells[hole] = self.cells[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.cells[hole] = (0, 0);
    }
}
