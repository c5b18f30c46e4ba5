//! Inbound links: reads frames from their rings, and announces that this end sleeps.

use super::super::listener::LinkSocket;
use super::super::ring::BrokenRing;
use super::records::{records, Records, Sender};
use super::{Inbound, InboundRing, ShmCounters, ShmPort};
use crate::addr::Endpoint;
use core::ptr::NonNull;
use core::sync::atomic::{fence, Ordering};
use gdrcore_core::roce::run::{Run, Words};
use gdrcore_core::sleep;
use gdrcore_core::wire::Malformed;

/// Most frames of one link that one poll takes, so that a fast peer does not delay others.
pub(super) const BATCH: usize = 16;

/// Takes each record as a whole.
struct Whole<F>(F);

impl<F> Records for Whole<F>
where
    F: FnMut(&Endpoint, core::result::Result<(&Run, &[u8]), Malformed>),
{
    type Again<'a>
        = Whole<&'a mut F>
    where
        Self: 'a;

    fn again(&mut self) -> Whole<&mut F> {
        Whole(&mut self.0)
    }

    fn take_short(&mut self, _: Sender<'_>, _: impl Words, _: &[u8]) -> usize {
        0
    }

    fn take(&mut self, from: Sender<'_>, run: core::result::Result<(&Run, &[u8]), Malformed>) {
        self.0(from.0, run);
    }
}

impl ShmPort {
    /// Passes every run that has arrived to `take`, with its sender, head and payload; `take` gets
    /// an error for bytes that are no run. The sender may change the payload at any time. Returns
    /// the number of runs.
    #[inline]
    pub fn poll(
        &mut self,
        take: impl FnMut(&Endpoint, core::result::Result<(&Run, &[u8]), Malformed>),
    ) -> usize {
        self.poll_with(&mut Whole(take))
    }

    /// Passes every record that has arrived to `to`. Returns the number of records.
    #[inline(always)]
    pub fn poll_with(&mut self, to: &mut impl Records) -> usize {
        let mut handled = 0;
        for k in 0..self.open_len {
            let Some(&i) = self.open.get(k) else { break };
            let Some(Some(Inbound { link: Some(link), socket, .. })) =
                self.inbound.get_mut(usize::from(i))
            else {
                continue;
            };
            let read = match link.reader.peek() {
                Ok(None) => continue,
                Ok(Some(first)) => read_link(link, first, socket, &mut self.counters, to),
                Err(broken) => Err(broken),
            };
            match read {
                Ok(n) => handled += n,
                Err(BrokenRing) => {
                    self.counters.broken += 1;
                    self.close_inbound(usize::from(i));
                    // The list has changed; the rest is read by the next poll.
                    return handled.max(1);
                }
            }
        }
        handled
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

/// Reads the frames of a link, the first of which was seen. Returns the number of their records.
#[inline(always)]
fn read_link(
    link: &mut InboundRing,
    (mut p, mut len): (NonNull<u8>, usize),
    socket: &LinkSocket,
    counters: &mut ShmCounters,
    to: &mut impl Records,
) -> core::result::Result<usize, BrokenRing> {
    let mut handled = 0;
    for _ in 0..BATCH {
        let from = (&link.from, link.reader.place().receipts());
        // SAFETY: the frame lies in the mapping, which lives until the link is closed.
        handled += unsafe { records(p, len, from, to) };
        link.reader.release(len);
        counters.rx_frames += 1;
        if len >= crate::LONG {
            // The ACK of a long frame opens its sender's window, so it is sent before the next
            // frame is read.
            break;
        }
        let Some(next) = link.reader.peek()? else { break };
        (p, len) = next;
    }
    // A writer that waits for room must be woken.
    if link.reader.place().wants_room().load(Ordering::Relaxed) != 0 {
        return_room(link, socket);
    }
    Ok(handled)
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
