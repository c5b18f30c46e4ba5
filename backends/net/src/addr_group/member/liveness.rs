//! Detection of members that have ended: each member watches one other.

use super::super::group_msg::{Delivery, GroupMsg};
use super::super::numbers::BLOCK_MAX;
use super::{Member, WatchedMember};
use crate::local::{accept, connect, is_open, Accepted, Holder, Role, SocketPath, ACCEPT_AGAIN_NS};
use crate::sys::Fd;
use crate::wait::{unwatch, watch};

impl Member {
    /// Forgets a block whose owner has ended.
    pub(super) fn forget_owner(&mut self, now: u64, gone: u16) {
        self.known[usize::from(gone / 64)] &= !(1 << (gone % 64));
        self.table.remove(gone);
        // The kernel moves the last socket of its list into the place of one that closes. The table
        // may lack the sockets of members that never ran, so any socket may have been the last.
        if self.index.is_some_and(|i| i >= self.table.socket_count()) {
            self.find_index(now, true);
        } else {
            self.checked_ns = 0;
        }
    }

    /// Connects to the next lower member, which this one watches from now on.
    pub(super) fn watch_next_member(&mut self) {
        let mut block = self.block;
        loop {
            block = if block == 0 { BLOCK_MAX } else { block - 1 };
            if block == self.block {
                self.watched_member = None;
                return;
            }
            if !self.is_known(block) {
                continue;
            }
            if self.watched_member.as_ref().is_some_and(|w| w.block == block) {
                return;
            }
            // A member with several blocks listens at the first of them.
            let Ok(life) = connect(&SocketPath::new(
                &self.socket_dir,
                &self.local,
                Holder::Block(block),
                Role::Liveness,
            )) else {
                continue;
            };
            if watch(self.set.raw(), life.raw()).is_ok() {
                self.watched_member = Some(WatchedMember { block, life });
                return;
            }
        }
    }

    /// Accepts members that watch this one. Connections without a free slot wait in the kernel,
    /// where the end of this process reaches them too; they must not wake this process before a
    /// slot is free.
    #[cold]
    pub(super) fn accept_watchers(&mut self, now: u64) {
        let Some(liveness) = self.liveness.as_ref().map(Fd::raw) else { return };
        self.close_ended_watchers();
        while !self.watchers.is_full() {
            match accept(liveness) {
                Accepted::Peer(watcher) => {
                    // If the connection cannot be watched, its end is found later. To close it
                    // would announce our own end.
                    let _ = watch(self.set.raw(), watcher.raw());
                    let _ = self.watchers.push(watcher);
                }
                Accepted::OtherUser => {}
                Accepted::Nothing => return,
                Accepted::NoDescriptor => {
                    self.watch_again_ns = now + ACCEPT_AGAIN_NS;
                    break;
                }
            }
        }
        unwatch(self.set.raw(), liveness);
        self.accepts_watchers = false;
    }

    /// Closes connections whose other end has closed. A watcher sends nothing: readable means that
    /// its process has ended or watches another member now.
    pub(super) fn close_ended_watchers(&mut self) {
        self.watchers.retain_mut(is_open);
    }

    /// Accepts again: a watcher has closed, or descriptors may be free.
    #[cold]
    pub(super) fn resume_accepting(&mut self, now: u64) {
        self.watch_again_ns = u64::MAX;
        if let Some(liveness) = self.liveness.as_ref().filter(|_| !self.accepts_watchers) {
            self.accepts_watchers = watch(self.set.raw(), liveness.raw()).is_ok();
            self.accept_watchers(now);
        }
    }

    /// Notifies all other members that the watched process has ended.
    #[cold]
    pub(super) fn on_watched_member_end(&mut self, now: u64) {
        let Some(WatchedMember { block: gone, .. }) = self.watched_member.take() else { return };
        if self.send_to(gone, &GroupMsg::TableRequest) != Delivery::NoOwner {
            return;
        }
        self.forget_owner(now, gone);
        self.send_to_all(&GroupMsg::OwnerGone(gone));
        self.watch_next_member();
    }
}
