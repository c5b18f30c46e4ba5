//! Completion queues: room for a completion, entries reserved for receives, and the push.

use crate::arena::Table;
use crate::ring::EngineProducer;
use crate::verbs::objects::{Armed, Cq};
use crate::verbs::shared::{EngineKey, Shared};
use crate::verbs::types::{wc_status, Wc};

/// The engine's side of one CQ: its ring, its record and its index.
pub(in crate::roce) struct CqSide<'a> {
    ring: EngineProducer<'a, Wc>,
    cq: &'a mut Cq,
    index: u32,
}

impl<'a> CqSide<'a> {
    /// The CQ at an index; `None`: there is none.
    #[inline(always)]
    pub(in crate::roce) fn find(
        s: &'a Shared,
        key: &EngineKey,
        cqs: &'a mut Table<Cq>,
        index: u32,
    ) -> Option<Self> {
        let ring = s.cqs.get(index as usize)?.engine_ring(key);
        Some(CqSide { ring, cq: cqs.get_mut(index as usize)?, index })
    }

    /// Whether a completion that has reserved no entry finds one.
    #[inline(always)]
    pub(in crate::roce) fn has_room(&self) -> bool {
        self.ring.free() > self.cq.reserved
    }

    /// Whether the CQ has failed, so that completions for it are lost. Callers ask this when there
    /// is no room. Inline, because for a call the CQ's side would have to be in memory.
    #[inline(always)]
    pub(in crate::roce) fn has_failed(&self) -> bool {
        self.cq.has_failed()
    }

    /// Whether no entry is free, reserved or not.
    #[cold]
    pub(in crate::roce) fn is_full(&self) -> bool {
        self.ring.free() == 0
    }

    /// Whether so many completions without reserved entries find some.
    #[inline(always)]
    pub(in crate::roce) fn has_room_for(&self, count: u32) -> bool {
        self.ring.free() >= self.cq.reserved.saturating_add(count)
    }

    /// The CQ at an index, if a receive may reserve an entry of it.
    #[inline(always)]
    pub(in crate::roce) fn find_reservable(
        s: &'a Shared,
        key: &EngineKey,
        cqs: &'a mut Table<Cq>,
        index: u32,
    ) -> Option<Self> {
        let side = Self::find(s, key, cqs, index)?;
        let most = side.cq.reservable(side.ring.capacity());
        (side.has_room() && side.cq.reserved < most).then_some(side)
    }

    /// Reserves an entry for the receive in use of the QP at `qi`, of a CQ by
    /// [`CqSide::find_reservable`].
    #[inline(always)]
    pub(in crate::roce) fn reserve(&mut self, qi: usize) {
        self.cq.reserved += 1;
        self.cq.holder = qi as u32;
    }

    /// Pushes a completion for which there is room, and raises the CQ's event if it is armed for
    /// it.
    ///
    /// The slot of the request or receive is released before this: another thread of the program
    /// may poll the completion and at once post the next request into a queue of one entry.
    #[inline(always)]
    pub(in crate::roce) fn push(&mut self, s: &Shared, wc: Wc, solicited: bool) {
        let pushed = self.ring.push(wc);
        debug_assert!(pushed.is_ok(), "room was checked or reserved");
        let cq = &mut *self.cq;
        // A later completion must not overtake this one. `bypass` is mostly 0, and is not written
        // then, because the record shares its cache line with those of other CQs.
        if cq.bypass != 0 {
            cq.bypass = 0;
        }
        if cq.armed == Armed::No {
            return;
        }
        // rxe rxe_cq.c rxe_cq_post: An armed CQ raises one event: for any completion, or for
        // solicited and failed ones only.
        if cq.armed == Armed::Any || solicited || wc.status != wc_status::SUCCESS {
            cq.raise(s, self.index);
        }
    }

    /// Passes a completion to the thread that polls this CQ and runs the engine; without such a
    /// thread pushes it ([`CqSide::push`]).
    #[inline(always)]
    pub(in crate::roce) fn hand_over(
        &mut self,
        s: &Shared,
        to: &mut CompletionHandoff,
        wc: Wc,
        solicited: bool,
    ) {
        match to.is_open(self.cq) {
            true => to.put(wc),
            false => self.push(s, wc, solicited),
        }
    }
}

/// The CQ polled by the thread that runs this round of the engine. Its first completion bypasses
/// the ring, whose end the thread would have to read otherwise.
///
/// [`Cq::bypass`] has the number of the poll while that is allowed: when the round began, the ring
/// was empty, no entry was reserved and no event asked for, and nothing was pushed since.
#[derive(Debug)]
pub struct CompletionHandoff {
    /// The number of the poll; a greater one ends it. Never 0, which [`Cq::bypass`] is for a CQ
    /// that nobody polls.
    number: u64,
    has: bool,
    wc: Wc,
}

impl Default for CompletionHandoff {
    fn default() -> Self {
        CompletionHandoff { number: 1, has: false, wc: Wc::default() }
    }
}

impl CompletionHandoff {
    /// Begins the poll of a CQ by the caller, which holds the engine's lock until
    /// [`CompletionHandoff::finish`]. `is_empty`: nothing is in the CQ's ring.
    #[inline(always)]
    pub(crate) fn begin(&mut self, cq: &mut Cq, is_empty: bool) {
        if is_empty && cq.armed == Armed::No && cq.reserved == 0 {
            cq.bypass = self.number;
        }
    }

    /// Whether the next completion of a CQ bypasses its ring. Such a completion needs no entry, so
    /// a receive reserves none.
    #[inline(always)]
    pub(in crate::roce) fn is_open(&self, cq: &Cq) -> bool {
        cq.bypass == self.number
    }

    /// Takes the completion that bypasses the ring.
    #[inline(always)]
    pub(in crate::roce) fn put(&mut self, wc: Wc) {
        self.number += 1;
        self.has = true;
        self.wc = wc;
    }

    /// Ends the poll, and returns the first completion of the round if it bypassed the ring. All
    /// completions in the ring are later ones.
    #[inline(always)]
    pub(crate) fn finish(&mut self) -> Option<&Wc> {
        self.number += 1;
        core::mem::take(&mut self.has).then_some(&self.wc)
    }
}
