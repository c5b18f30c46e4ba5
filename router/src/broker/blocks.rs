//! Blocks of queue pair numbers. A block rests between two sessions, so that late packets for the
//! first do not reach the second. A resting block still counts towards its tenant's quota. A tenant
//! at its quota gets its own block that has rested longest.

use crate::policy::BLOCKS;
use gdrcore_core::config::QPN_UNIT;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The time for which a block rests.
const REST_NS: u64 = 60_000_000_000;

/// The blocks of the host and the sessions that have them.
#[derive(Debug, Default)]
pub struct Blocks {
    /// Runs of blocks by their first block: the length and the session.
    given: BTreeMap<u32, (u32, u32)>,
    /// Resting blocks, the longest-resting first.
    resting: VecDeque<Resting>,
}

/// A block between two sessions.
#[derive(Debug)]
struct Resting {
    block: u32,
    until: u64,
    tenant: String,
}

/// The claimant of blocks, and the blocks that it may take.
#[derive(Clone, Debug)]
pub struct Claimant<'t> {
    /// The session.
    pub session: u32,
    /// Its tenant.
    pub tenant: &'t str,
    /// The blocks that the tenant may have besides those of its present sessions.
    pub may_have: u32,
    /// The blocks that it may get.
    pub within: Range<u32>,
}

impl Blocks {
    /// Gives a session `count` consecutive blocks outside `kept`, which are reserved for others.
    /// `None`: no such run is free. Resting blocks of other tenants are not free.
    pub fn take(
        &mut self,
        now: u64,
        count: u32,
        claimant: &Claimant<'_>,
        kept: &[Range<u32>],
    ) -> Option<Range<u32>> {
        self.wake(now);
        let own = self.resting.iter().filter(|r| r.tenant == claimant.tenant).count() as u32;
        let spare = own + count <= claimant.may_have;
        let run = spare.then(|| self.free(count, claimant, kept, "")).flatten();
        let run = run.or_else(|| self.rested(count, claimant, kept));
        let run = run.or_else(|| self.free(count, claimant, kept, claimant.tenant))?;
        self.resting.retain(|r| !run.contains(&r.block));
        // Blocks beyond the quota rest no longer.
        let left = self.resting.iter().filter(|r| r.tenant == claimant.tenant).count() as u32;
        let mut over = (left + count).saturating_sub(claimant.may_have);
        self.resting.retain(|r| {
            let goes = over > 0 && r.tenant == claimant.tenant;
            over -= u32::from(goes);
            !goes
        });
        self.given.insert(run.start, (count, claimant.session));
        Some(run)
    }

    /// The lowest run of blocks that are free. A resting block is free for its own tenant alone.
    fn free(
        &self,
        count: u32,
        claimant: &Claimant<'_>,
        kept: &[Range<u32>],
        tenant: &str,
    ) -> Option<Range<u32>> {
        let mut first = claimant.within.start;
        let mut taken: Vec<(u32, u32)> = self.given.iter().map(|(&at, &(n, _))| (at, n)).collect();
        let resting = self.resting.iter().filter(|r| r.tenant != tenant);
        taken.extend(resting.map(|r| (r.block, 1)));
        taken.extend(kept.iter().map(|r| (r.start, r.len() as u32)));
        taken.sort_unstable();
        for (at, n) in taken {
            if first + count <= at {
                break;
            }
            first = first.max(at + n);
        }
        let fits = count > 0 && first + count <= claimant.within.end.min(BLOCKS.end);
        fits.then(|| first..first + count)
    }

    /// A run of the tenant's resting blocks only: of several runs, the one whose first block has
    /// rested longest.
    fn rested(
        &self,
        count: u32,
        claimant: &Claimant<'_>,
        kept: &[Range<u32>],
    ) -> Option<Range<u32>> {
        let own = || self.resting.iter().filter(|r| r.tenant == claimant.tenant).map(|r| r.block);
        let may = |block: &u32| {
            claimant.within.contains(block) && !kept.iter().any(|kept| kept.contains(block))
        };
        own()
            .map(|first| first..first + count)
            .find(|run| run.clone().all(|block| may(&block) && own().any(|own| own == block)))
    }

    /// Gives a session the blocks that it had in a former life of the router. False: one of them
    /// rests, or is another session's.
    pub fn claim(&mut self, now: u64, blocks: &Range<u32>, session: u32) -> bool {
        self.wake(now);
        let valid = blocks.start >= BLOCKS.start && blocks.end <= BLOCKS.end && !blocks.is_empty();
        let meets =
            |(&first, &(n, _)): (&u32, &(u32, u32))| first < blocks.end && blocks.start < first + n;
        let free = !self.given.iter().any(meets)
            && !self.resting.iter().any(|r| blocks.contains(&r.block));
        if valid && free {
            self.given.insert(blocks.start, (blocks.len() as u32, session));
        }
        valid && free
    }

    /// Ends the rest of blocks that have rested long enough.
    fn wake(&mut self, now: u64) {
        while self.resting.front().is_some_and(|r| now >= r.until) {
            self.resting.pop_front();
        }
    }

    /// Takes the blocks of a tenant's session back.
    pub fn put(&mut self, now: u64, blocks: Range<u32>, tenant: &str) {
        if self.given.remove(&blocks.start).is_some() {
            let until = now + REST_NS;
            let rests = |block| Resting { block, until, tenant: tenant.into() };
            self.resting.extend(blocks.map(rests));
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

    /// Takes from all blocks; none is kept.
    fn take(b: &mut Blocks, now: u64, count: u32, session: u32) -> Option<Range<u32>> {
        b.take(now, count, &claimant(session, "a", BLOCKS.end), &[])
    }

    fn claimant(session: u32, tenant: &str, may_have: u32) -> Claimant<'_> {
        Claimant { session, tenant, may_have, within: BLOCKS }
    }

    #[test]
    fn a_tenant_that_others_know_by_its_blocks_has_no_others() {
        let mut b = Blocks::default();
        let any = |b: &mut Blocks, n| b.take(0, n, &claimant(1, "a", 1000), &[3..5, 6..8]);
        let own = |b: &mut Blocks, n| {
            b.take(0, n, &Claimant { within: 6..8, ..claimant(2, "b", 1000) }, &[])
        };
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
        b.put(1000, a.clone(), "a");
        b.put(1000, a.clone(), "a");
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
        b.put(5, 10..12, "a");
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
        b.put(0, 500..501, "a");
        b.put(0, 502..503, "a");
        assert_eq!(take(&mut b, REST_NS, 2, 0), None, "not two together");
        b.put(REST_NS, 501..502, "a");
        assert_eq!(take(&mut b, 2 * REST_NS, 3, 7), Some(500..503));
        assert_eq!(take(&mut Blocks::default(), 0, 0, 1), None);
    }

    #[test]
    fn what_rests_is_its_tenants_and_goes_back_to_it_first() {
        let mut b = Blocks::default();
        let mut first = Vec::new();
        // A tenant that opens and closes sessions never has more than its quota.
        for n in 0..100 {
            let got = b.take(n, 1, &claimant(1, "greedy", 4), &[]).unwrap();
            assert!(got.end <= 5, "{got:?}");
            first.push(got.start);
            b.put(n, got, "greedy");
        }
        assert_eq!(first[..6], [1, 2, 3, 4, 1, 2], "new ones first, then what rested longest");
        assert_eq!(b.take(200, 1, &claimant(2, "other", 4), &[]), Some(5..6), "others' still rest");
        // A run of its own resting blocks; then a longer one, for which earlier blocks rest no
        // longer.
        assert_eq!(b.take(200, 2, &claimant(3, "greedy", 4), &[]), Some(1..3));
        b.put(200, 1..3, "greedy");
        assert_eq!(b.take(200, 4, &claimant(4, "greedy", 4), &[]), Some(1..5));
        b.put(201, 1..5, "greedy");
        let one = b.take(201, 1, &claimant(5, "greedy", 4), &[]).unwrap();
        assert_eq!(one, 1..2);
        assert_eq!(b.take(201, 3, &claimant(6, "greedy", 3), &[]), Some(2..5));
        // Of a map that has its blocks within others' only those count.
        let mut b = Blocks::default();
        let own = Claimant { within: 7..9, ..claimant(1, "placed", 16) };
        for n in 0..5 {
            let got = b.take(n, 2, &own, &[]).unwrap();
            assert_eq!(got, 7..9, "its blocks are all that it has");
            b.put(n, got, "placed");
        }
        assert_eq!(b.take(9, 1, &claimant(2, "placed", 2), &[7..8, 8..9]), Some(1..2));
    }

    #[test]
    fn a_tenant_at_its_quota_loses_resting_blocks_for_a_longer_run() {
        let mut b = Blocks::default();
        for n in 0..3 {
            assert_eq!(b.take(0, 1, &claimant(n, "a", 3), &[]), Some(n + 1..n + 2));
        }
        b.put(0, 1..2, "a");
        b.put(0, 3..4, "a");
        // Two in a row: neither run is its own.
        assert_eq!(b.take(0, 2, &claimant(7, "a", 2), &[]), Some(3..5));
        assert_eq!(b.take(0, 1, &claimant(8, "b", 2), &[]), Some(1..2), "it is beyond the quota");
    }
}
