//! Who is gone: each member watches one other.

use super::super::mail::{Mail, Posted};
use super::super::steer::BLOCK_MAX;
use super::Member;
use crate::local::{accept, socket, Name};
use crate::wait::watch;

impl Member {
    /// The owner of a block is gone.
    pub(super) fn forget(&mut self, now: u64, gone: u16) {
        self.known[usize::from(gone / 64)] &= !(1 << (gone % 64));
        self.table.remove(gone);
        // The kernel moves the last of its list into the place of one that leaves.
        if self.index.is_some_and(|i| i >= self.table.sockets()) {
            self.locate(now, true);
        }
    }

    /// Watches whom the ring says.
    pub(super) fn watch_next(&mut self) {
        let mut block = self.block;
        loop {
            block = if block == 0 { BLOCK_MAX } else { block - 1 };
            if block == self.block {
                self.watched = None;
                return;
            }
            if !self.is_known(block) {
                continue;
            }
            if self.watched.as_ref().is_some_and(|w| w.0 == block) {
                return;
            }
            // One with several blocks has one life, at the first of them.
            let Ok(fd) = socket(libc::SOCK_SEQPACKET) else { return };
            let name = Name::life(&self.local, block);
            let (at, len) = name.parts();
            // SAFETY: `len` bytes of the name are initialised and live through the call.
            if unsafe { libc::connect(fd.raw(), at, len) } == 0 && watch(self.set.raw(), fd.raw()).is_ok() {
                self.watched = Some((block, fd));
                return;
            }
        }
    }

    /// Lets others watch. One too many is hung up on, and finds that this process lives nevertheless.
    #[cold]
    pub(super) fn let_watch(&mut self) {
        let Some(life) = &self.life else { return };
        for _ in 0..self.watchers.len() {
            let Some(watcher) = accept(life.raw()) else { return };
            let free = self.watchers.iter_mut().find(|w| w.is_none());
            if let (Some(place), Ok(())) = (free, watch(self.set.raw(), watcher.raw())) {
                *place = Some(watcher);
            }
        }
    }

    /// The process that this one watches has ended: all others are told.
    #[cold]
    pub(super) fn mourn(&mut self, now: u64) {
        let Some((gone, _)) = self.watched.take() else { return };
        if self.post(gone, &Mail::Ask) != Posted::Nobody {
            return;
        }
        self.forget(now, gone);
        self.post_all(&Mail::Left(gone));
        self.watch_next();
    }
}
