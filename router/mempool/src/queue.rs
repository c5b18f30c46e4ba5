//! Blocks in the order in which they came.

use crate::blocks::Blocks;
use core::ffi::c_void;
use core::ptr::null_mut;

pub(crate) struct Queue {
    blocks: Blocks,
    count: u32,
    first: u32,
    len: u32,
}

impl Queue {
    /// `None`: no memory.
    pub(crate) fn new(count: u32) -> Option<Queue> {
        Some(Queue { blocks: Blocks::new(count)?, count, first: 0, len: 0 })
    }

    pub(crate) fn push(&mut self) -> *mut c_void {
        if self.len == self.count {
            return null_mut();
        }
        let at = (self.first + self.len) % self.count;
        self.len += 1;
        self.blocks.fresh(at)
    }

    pub(crate) fn first(&self) -> *mut c_void {
        if self.len == 0 {
            return null_mut();
        }
        self.blocks.at(self.first)
    }

    pub(crate) fn pop(&mut self) {
        if self.len > 0 {
            self.first = (self.first + 1) % self.count;
            self.len -= 1;
        }
    }
}
