//! Inbound links: reads frames from their rings, and announces that this end sleeps.

use super::super::listener::LinkSocket;
use super::super::ring::Broken;
use super::records::records;
use super::{Inbound, InboundRing, ShmPort};
use crate::addr::Endpoint;
use core::sync::atomic::{fence, Ordering};
use gdrcore_core::receipt::Receipts;
use gdrcore_core::roce::run::{Run, HEAD_MAX};
use gdrcore_core::sleep;
use gdrcore_core::wire::Malformed;

/// Most frames of one link that one poll takes, so that a fast peer does not delay others.
pub(super) const BATCH: usize = 16;

/// Who wrote a record, and the receipts of its link.
pub type Sender<'l> = (&'l Endpoint, &'l Receipts);

impl ShmPort {
    /// Passes every run that has arrived to `take`, with its sender, head and payload; `take` gets
    /// an error for bytes that are no run. The sender may change the payload at any time. Returns
    /// the number of runs.
    #[inline]
    pub fn poll(
        &mut self,
        mut take: impl FnMut(&Endpoint, core::result::Result<(&Run, &[u8]), Malformed>),
    ) -> usize {
        self.poll_with(&mut take, |_, _, _, _| 0, |take, (from, _), run| take(from, run))
    }

    /// As [`ShmPort::poll`], but each record goes to `short` first: the words of its head, and all
    /// bytes of its frame from there on. `short` returns how many bytes it handled, 0 to leave the
    /// record to `take`. `to`: the state that both work on. Both get the receipts of the link
    /// beside the sender.
    #[inline(always)]
    pub fn poll_with<T>(
        &mut self,
        to: &mut T,
        short: impl Fn(&mut T, Sender<'_>, &[u64; HEAD_MAX / 8], &[u8]) -> usize,
        take: impl Fn(&mut T, Sender<'_>, core::result::Result<(&Run, &[u8]), Malformed>),
    ) -> usize {
        let mut handled = 0;
        let mut k = 0;
        while let Some(&i) = self.open[..self.open_len].get(k) {
            k += 1;
            match self.inbound.get(usize::from(i)) {
                Some(Some(Inbound { link: Some(link), .. })) if !link.reader.is_empty() => {}
                _ => continue,
            }
            match self.read_link(usize::from(i), to, &short, &take) {
                Ok(n) => handled += n,
                Err(Broken) => {
                    self.counters.broken += 1;
                    self.close_inbound(usize::from(i));
                    // The list has changed; the rest is read by the next poll.
                    return handled.max(1);
                }
            }
        }
        handled
    }

    /// [`ShmPort::poll_with`] for the link at one index.
    #[inline(always)]
    fn read_link<T>(
        &mut self,
        i: usize,
        to: &mut T,
        short: impl Fn(&mut T, Sender<'_>, &[u64; HEAD_MAX / 8], &[u8]) -> usize,
        take: impl Fn(&mut T, Sender<'_>, core::result::Result<(&Run, &[u8]), Malformed>),
    ) -> core::result::Result<usize, Broken> {
        let Some(Some(Inbound { link: Some(link), socket, .. })) = self.inbound.get_mut(i) else {
            return Ok(0);
        };
        let mut handled = 0;
        for _ in 0..BATCH {
            let Some((p, len)) = link.reader.peek()? else { break };
            let from = (&link.from, link.reader.place().receipts());
            // SAFETY: the frame lies in the mapping, which lives until the link is closed.
            handled += unsafe {
                records(
                    p,
                    len,
                    to,
                    |to, w, rest| short(to, from, w, rest),
                    |to, r| take(to, from, r),
                )
            };
            link.reader.release(len);
            self.counters.rx_frames += 1;
            if len >= crate::LONG {
                // The ACK of a long frame opens its sender's window, so it is sent before the next
                // frame is read.
                break;
            }
        }
        // A writer that waits for room must be woken.
        if link.reader.place().wants_room().load(Ordering::Relaxed) != 0 {
            return_room(link, socket);
        }
        Ok(handled)
    }

    /// Whether a frame waits to be read.
    pub fn has_input(&self) -> bool {
        self.open[..self.open_len].iter().any(|&i| match &self.inbound[usize::from(i)] {
            Some(Inbound { link: Some(link), .. }) => !link.reader.is_empty(),
            _ => false,
        })
    }

    /// Announces on every ring that this end is about to sleep. Returns true if a frame waits after
    /// all.
    pub fn announce_sleep(&mut self) -> bool {
        for k in 0..self.open_len {
            let i = usize::from(self.open[k]);
            let Some(Some(Inbound { link: Some(link), socket, .. })) = self.inbound.get_mut(i)
            else {
                continue;
            };
            // The room of frames that were read is returned first: a writer that waits for it would
            // otherwise wait for a sleeper.
            if link.reader.settle() {
                return_room(link, socket);
            }
            link.reader.place().asleep().announce(sleep::ANY);
        }
        self.has_input()
    }
}

/// Returns the room of frames that were read to the writer, and wakes it if it waits for room.
pub(super) fn return_room(link: &mut InboundRing, socket: &LinkSocket) {
    link.reader.settle();
    // Pairs with the writer's fence in `ShmPort::room`.
    fence(Ordering::SeqCst);
    let wants_room = link.reader.place().wants_room();
    if wants_room.load(Ordering::Relaxed) != 0 {
        wants_room.store(0, Ordering::Relaxed);
        socket.wake();
    }
}
