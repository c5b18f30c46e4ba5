//! Numbered blocks of 32 bytes.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 32;

/// Atomics, because the caller may write to a block at any time, even after it has deleted it.
#[repr(C, align(32))]
struct Block([AtomicU64; BLOCK / 8]);

/// A fixed number of them.
pub(crate) struct Blocks {
    all: Box<[Block]>,
}

impl Blocks {
    /// `None`: no memory.
    pub(crate) fn new(n: u32) -> Option<Blocks> {
        let mut all = Vec::new();
        all.try_reserve_exact(n as usize).ok()?;
        all.resize_with(n as usize, || Block([const { AtomicU64::new(0) }; BLOCK / 8]));
        Some(Blocks { all: all.into_boxed_slice() })
    }

    /// The address of a block, for its caller.
    pub(crate) fn at(&self, n: u32) -> *mut c_void {
        self.all[n as usize].0.as_ptr().cast_mut().cast()
    }

    /// As above, zeroed.
    pub(crate) fn fresh(&self, n: u32) -> *mut c_void {
        self.all[n as usize].0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.at(n)
    }
}
