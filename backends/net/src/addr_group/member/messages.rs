//! Messages of the group: polls the member's sockets and applies each message.

use super::super::group_msg::{self, GroupMsg, GroupSocket, Received};
use super::super::numbers::BLOCK_MAX;
use super::super::table::Table;
use super::{ForEngine, Member, Phase, MSG_BATCH, MSG_HOT_NS};
use crate::addr::Endpoint;
use crate::wait::poll_set;

/// Messages that a device reads of each of its sockets before it ends. A socket holds fewer, if
/// nobody writes meanwhile.
const UNREAD_MESSAGES: usize = 1024;

impl Member {
    /// Whether the next round polls for messages: always for a while after one came, else every
    /// `every_ns`.
    #[inline]
    pub fn is_poll_due(&self, now: u64, every_ns: u64) -> bool {
        now.saturating_sub(self.polled_ns) >= every_ns
            || now.saturating_sub(self.msg_ns) < MSG_HOT_NS
            || now >= self.deliver_ns
    }

    /// Makes the next poll for messages due at once.
    pub fn poll_soon(&mut self) {
        self.polled_ns = 0;
    }

    /// Passes on an error of the network to the other members, because the kernel reports it to
    /// one socket of the group, whichever.
    pub fn send_peer_error(&mut self, dst: &Endpoint, errno: i32) {
        self.send_to_all(&GroupMsg::PeerError(*dst, errno));
    }

    /// Sends a message to all known members.
    pub(super) fn send_to_all(&mut self, message: &GroupMsg<'_>) {
        for block in 0..=BLOCK_MAX {
            if self.is_known(block) && !self.owns_block(block) {
                self.send_to(block, message);
            }
        }
    }

    /// Receives messages. Those for the engine go to `take`, which returns the packets it handled.
    /// Returns their sum.
    pub fn poll(
        &mut self,
        now: u64,
        mut take: impl FnMut(&mut Member, &ForEngine<'_>) -> usize,
    ) -> usize {
        self.polled_ns = now;
        let mut ready = [-1; 8];
        let n = poll_set(self.set.raw(), &mut ready);
        let mut handled = 0;
        // The buffer leaves the member while its contents are borrowed.
        let mut buffer = core::mem::take(&mut self.buffer);
        for &fd in &ready[..n] {
            if self.watched_member.as_ref().is_some_and(|w| w.life.raw() == fd) {
                self.on_watched_member_end(now);
                continue;
            }
            if self.liveness.as_ref().is_some_and(|l| l.raw() == fd) {
                self.accept_watchers(now);
                continue;
            }
            if fd == self.interface_socket {
                self.interface_changed = true;
                continue;
            }
            if self.note_peer_end(fd) {
                continue;
            }
            if self.watchers.iter().any(|w| w.raw() == fd) {
                self.close_ended_watchers();
                self.resume_accepting(now);
                continue;
            }
            for _ in 0..MSG_BATCH {
                let Some(len) = group_msg::receive(fd, &mut buffer) else { break };
                self.msg_ns = now;
                let Some((from, received)) = group_msg::parse(&buffer[..len]) else { continue };
                match &received {
                    Received::Packets(packets) => {
                        handled += take(self, &ForEngine::Packets(*packets))
                    }
                    Received::PeerError(dst, errno) => {
                        handled += take(self, &ForEngine::Refused(*dst, *errno))
                    }
                    Received::StatusRequest => self.status_requested = true,
                    group => self.handle_msg(now, from, group),
                }
            }
        }
        self.buffer = buffer;
        handled
    }

    /// Before the device ends: notes the senders of unread messages as members, because one may
    /// have joined since the last poll and is to learn of the end. The messages themselves are
    /// lost, and packets in them too: their queue pairs end with the device.
    pub(super) fn note_unread_senders(&mut self) {
        let mut buffer = core::mem::take(&mut self.buffer);
        for k in 0..self.sockets.len() {
            let Some(fd) = self.sockets[k].as_ref().map(GroupSocket::fd) else { continue };
            for _ in 0..UNREAD_MESSAGES {
                let Some(len) = group_msg::receive(fd, &mut buffer) else { break };
                let Some((from, _)) = group_msg::parse(&buffer[..len]) else { continue };
                if from <= BLOCK_MAX {
                    self.note_known(from);
                }
            }
        }
        self.buffer = buffer;
    }

    /// Handles a message of the group from the owner of a block.
    pub(super) fn handle_msg(&mut self, now: u64, from: u16, received: &Received<'_>) {
        if from > BLOCK_MAX || self.owns_block(from) {
            return;
        }
        match received {
            Received::TableRequest => {
                let table = self.table;
                if !table.is_empty() {
                    self.send_to(from, &GroupMsg::TableUpdate(&table));
                }
                self.note_known(from);
            }
            Received::OwnerGone(gone) if *gone <= BLOCK_MAX && !self.owns_block(*gone) => {
                self.forget_owner(now, *gone)
            }
            Received::OwnerGone(_) => {}
            Received::TableUpdate(table) => self.adopt_table(now, from, table),
            Received::Packets(_) | Received::PeerError(..) | Received::StatusRequest => {}
        }
        self.watch_next_member();
    }

    fn adopt_table(&mut self, now: u64, from: u16, table: &Table) {
        self.note_known(from);
        if table.order_key() <= self.table.order_key() {
            if table.order_key() < self.table.order_key() && self.table.order_key().1 == self.block
            {
                // The sender has attached the program of an older table. This member attaches the
                // newer one again and sends it, as its author.
                let newer = self.table;
                self.attach();
                self.send_to(from, &GroupMsg::TableUpdate(&newer));
            }
            return;
        }
        // Two tables of one version: the program attached last may be that of the table that lost.
        let tie = self.attached.0 == table.order_key().0;
        self.note_former(now, table);
        self.table = *table;
        for &(block, _) in table.entries() {
            if !self.owns_block(block) {
                self.note_known(block);
            }
        }
        if tie {
            self.attach();
        }
        match self.phase {
            Phase::Asking => self.find_index(now, false),
            Phase::Idle if self.lists_own_blocks() && self.lists_own_services() => {
                self.publish_ns = None
            }
            // Two versions were written at once. The other one counts, and lacks this member's
            // services.
            Phase::Idle if self.lists_own_blocks() => self.publish_soon(now),
            // The author does not know this member, or has another at its index.
            Phase::Idle => {
                self.check(now);
                self.publish_soon(now);
            }
            _ => {}
        }
    }
}
