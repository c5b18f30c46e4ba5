//! Blocks of queue pair numbers. A block rests between two sessions, so that late packets for the
//! first do not reach the second.

use crate::policy::BLOCKS;
use gdrcore_core::config::QPN_UNIT;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The time for which a block rests.
const REST_NS: u64 = 60_000_000_000;

/// The blocks of the host and the sessions that have them.
#[derive(Debug, Default)]
pub struct Blocks {
    /// Runs of blocks, by their first one: their number and session.
    given: BTreeMap<u32, (u32, u32)>,
    /// Resting blocks and the end of their rest, earliest first.
    resting: VecDeque<(u32, u64)>,
}

impl Blocks {
    /// Gives a session `count` consecutive blocks of `within`, none of them of `kept`, which are
    /// other tenants'. `None`: no such run is free; blocks that rest are not free.
    pub fn take(
        &mut self,
        now: u64,
        count: u32,
        session: u32,
        within: Range<u32>,
        kept: impl Iterator<Item = Range<u32>>,
    ) -> Option<Range<u32>> {
        self.wake(now);
        let mut first = within.start;
        let mut taken: Vec<(u32, u32)> = self.given.iter().map(|(&at, &(n, _))| (at, n)).collect();
        taken.extend(self.resting.iter().map(|&(at, _)| (at, 1)));
        taken.extend(kept.map(|r| (r.start, r.len() as u32)));
        taken.sort_unstable();
        for (at, n) in taken {
            if first + count <= at {
                break;
            }
            first = first.max(at + n);
        }
        let fits = count > 0 && first + count <= within.end.min(BLOCKS.end);
        fits.then(|| {
            self.given.insert(first, (count, session));
            first..first + count
        })
    }

    /// Gives a session the blocks that it had in a former life of the router. False: another
    /// session has one of them, or one rests.
    pub fn claim(&mut self, now: u64, blocks: &Range<u32>, session: u32) -> bool {
        self.wake(now);
        let valid = blocks.start >= BLOCKS.start && blocks.end <= BLOCKS.end && !blocks.is_empty();
        let meets =
            |(&first, &(n, _)): (&u32, &(u32, u32))| first < blocks.end && blocks.start < first + n;
        let free = !self.given.iter().any(meets)
            && !self.resting.iter().any(|(block, _)| blocks.contains(block));
        if valid && free {
            self.given.insert(blocks.start, (blocks.len() as u32, session));
        }
        valid && free
    }

    /// Ends the rest of blocks that have rested long enough.
    fn wake(&mut self, now: u64) {
        while self.resting.front().is_some_and(|&(_, until)| now >= until) {
            self.resting.pop_front();
        }
    }

    /// Takes a session's blocks back.
    pub fn put(&mut self, now: u64, blocks: Range<u32>) {
        if self.given.remove(&blocks.start).is_some() {
            self.resting.extend(blocks.map(|block| (block, now + REST_NS)));
        }
    }

    /// The session that has a queue pair number.
    pub fn owner(&self, qpn: u32) -> Option<u32> {
        let block = qpn / QPN_UNIT;
        let (&first, &(count, session)) = self.given.range(..=block).next_back()?;
        (block < first + count).then_some(session)
    }

    /// The number of blocks that sessions have.
    pub fn given(&self) -> u32 {
        self.given.values().map(|(count, _)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of all blocks, none of which is kept.
    fn take(b: &mut Blocks, now: u64, count: u32, session: u32) -> Option<Range<u32>> {
        b.take(now, count, session, BLOCKS, std::iter::empty())
    }

    #[test]
    fn a_tenant_that_others_know_by_its_blocks_has_no_others() {
        let mut b = Blocks::default();
        let kept = || [3..5, 6..8].into_iter();
        let any = |b: &mut Blocks, n| b.take(0, n, 1, BLOCKS, kept());
        let own = |b: &mut Blocks, n| b.take(0, n, 2, 6..8, std::iter::empty());
        assert_eq!((any(&mut b, 3), any(&mut b, 1)), (Some(8..11), Some(1..2)));
        assert_eq!(
            (own(&mut b, 3), own(&mut b, 1), own(&mut b, 1)),
            (None, Some(6..7), Some(7..8))
        );
        assert_eq!(
            (own(&mut b, 1), any(&mut b, 1), any(&mut b, 1)),
            (None, Some(2..3), Some(5..6))
        );
        assert_eq!((b.owner(5 * QPN_UNIT), b.owner(6 * QPN_UNIT)), (Some(1), Some(2)));
    }

    #[test]
    fn numbers_have_one_owner_and_rest_when_it_is_gone() {
        let mut b = Blocks::default();
        let a = take(&mut b, 0, 1, 10).unwrap();
        let c = take(&mut b, 0, 2, 11).unwrap();
        assert_eq!((a.clone(), c.clone()), (1..2, 2..4));
        let owners = [0, 1, 2, 3, 4].map(|block| b.owner(block * QPN_UNIT + 5));
        assert_eq!(owners, [None, Some(10), Some(11), Some(11), None]);
        b.put(1000, a.clone());
        b.put(1000, a.clone());
        assert_eq!((b.owner(QPN_UNIT), b.given()), (None, 2));
        assert_eq!(take(&mut b, 1000 + REST_NS - 1, 1, 12), Some(4..5), "it rests");
        assert_eq!(take(&mut b, 1000 + REST_NS, 1, 13), Some(1..2));
    }

    #[test]
    fn a_session_has_its_blocks_back_unless_they_were_used_since() {
        let mut b = Blocks::default();
        assert!(b.claim(0, &(10..12), 1) && b.claim(0, &(12..13), 2));
        for taken in [10..12, 9..11, 11..12, 11..14, 5..20, 12..13] {
            assert!(!b.claim(0, &taken, 3), "{taken:?}");
        }
        for wrong in [0..1, 5..5, 1015..1017, 2000..2001] {
            assert!(!b.claim(0, &wrong, 3), "{wrong:?}");
        }
        assert_eq!((b.owner(11 * QPN_UNIT), b.owner(12 * QPN_UNIT)), (Some(1), Some(2)));
        assert_eq!(take(&mut b, 0, 10, 4), Some(13..23), "new ones go round them");
        b.put(5, 10..12);
        assert!(!b.claim(5, &(10..12), 1), "what has ended in this life is used up");
        assert!(!b.claim(REST_NS + 4, &(11..12), 1));
    }

    #[test]
    fn there_are_only_so_many() {
        let mut b = Blocks::default();
        for n in BLOCKS {
            assert_eq!(take(&mut b, 0, 1, n), Some(n..n + 1));
        }
        assert_eq!((take(&mut b, 0, 1, 0), b.given()), (None, BLOCKS.len() as u32));
        b.put(0, 500..501);
        b.put(0, 502..503);
        assert_eq!(take(&mut b, REST_NS, 2, 0), None, "not two together");
        b.put(REST_NS, 501..502);
        assert_eq!(take(&mut b, 2 * REST_NS, 3, 7), Some(500..503));
        assert_eq!(take(&mut Blocks::default(), 0, 0, 1), None);
    }
}
