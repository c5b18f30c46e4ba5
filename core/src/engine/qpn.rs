//! QP numbers: the engine's block of the 24 bits, in a secret order, with a rest before reuse.
//!
//! A packet finds its QP by the number alone, so a number rests after its QP until no late packet
//! for it can be in flight. The length of the rest follows from the QP ([`rest_ns`]); the number of
//! a QP that never had a peer does not rest. Numbers that were never used come first, in an order
//! that follows from the seed, so that an attacker that knows the block must still guess the
//! number. Then come those that have rested, oldest first. If all others still rest, the one that
//! has rested longest is used early, which is counted: a program that makes and ends queue pairs
//! faster than numbers come back must not keep others from having any.

use crate::arena::{RawSlice, Walk};
use crate::config::Config;
use crate::error::Result;
use crate::random::{Random, Shuffle};
use crate::reason::refuse;
use crate::roce::endless::NEVER_NS;
use crate::verbs::objects::Qp;
use crate::verbs::NONE;

/// A number whose QP had a peer rests at least this long.
const REST_MIN_NS: u64 = 100_000_000;
/// A number rests at most this long. By the largest timeout codes it would rest for hours.
const REST_MAX_NS: u64 = 300_000_000_000;
/// The timeout that counts for a QP without one.
const SILENCE_NS: u64 = 30_000_000_000;
/// Longest time that the network takes to deliver a packet.
pub(super) const LIFETIME_NS: u64 = 1_000_000_000;
/// Purpose of the order's key.
const PURPOSE: u64 = 0x7170_6e73;
/// Rests are rounded up to one of this many lengths: four for each doubling.
const CLASSES: usize = 47;
/// After this time without a check every rest is over. Ages are exact up to twice this.
const FORGOTTEN_MS: u64 = 1 << 30;

/// The rest of a class, in milliseconds: 100, 125, 150, 175, 200, 250, ...
const fn rest_of(class: usize) -> u32 {
    (25 * (4 + class as u32 % 4)) << (class / 4)
}

const _: () = assert!(rest_of(0) as u64 * 1_000_000 == REST_MIN_NS);
const _: () = assert!(rest_of(CLASSES - 1) as u64 * 1_000_000 >= REST_MAX_NS);

/// How long the number of a QP rests once the QP is gone.
///
/// A QP that never reached RTR has no peer, and no sender knows its number; between QPs of one
/// engine no packet is ever in flight. A QP that neither sent nor received is unlikely to get
/// packets. A packet of UD or UC is sent once, and lives as long as the network keeps it. RC
/// retransmits for as long as its timeouts say, which both ends usually share.
pub(super) fn rest_ns(qp: &Qp) -> u64 {
    if !qp.met {
        0
    } else if qp.counters.sent_pkts | qp.counters.rcvd_pkts == 0 {
        REST_MIN_NS
    } else if !qp.kind.is_reliable() {
        LIFETIME_NS
    } else {
        longest_silence_ns(qp).max(qp.longest_ns).saturating_mul(4).clamp(REST_MIN_NS, REST_MAX_NS)
    }
}

/// How long the peer of a QP may be silent before a request ends, at most four of its timeouts.
pub(super) fn longest_silence_ns(qp: &Qp) -> u64 {
    let timeout_ns = if qp.conn.timeout_ns == NEVER_NS { SILENCE_NS } else { qp.conn.timeout_ns };
    timeout_ns.saturating_mul(u64::from(qp.attr.retry_cnt).saturating_add(1).min(4))
}

/// State of a number.
#[derive(Clone, Copy)]
struct Slot {
    /// The next in its list, or [`NONE`]. Of a number in use: the class of its last rest if that is
    /// not over, else [`NONE`].
    next: u32,
    /// When it was released, in milliseconds; wraps.
    released_ms: u32,
}

impl Slot {
    /// For how long the number has rested.
    fn rested_ms(&self, now_ms: u64) -> u32 {
        // 0 within the millisecond of the release, whose time is rounded up.
        (now_ms as u32).wrapping_sub(self.released_ms).cast_signed().max(0).cast_unsigned()
    }
}

/// Numbers in the order of their release.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// Numbers of QPs.
pub(super) struct Qpns {
    base: u32,
    count: u32,
    order: Shuffle,
    /// How many numbers of the order were used.
    used: u32,
    slots: RawSlice<Slot>,
    /// Numbers that have rested.
    rested: List,
    /// Numbers that rest, by the class of their rest: in one class they end their rest in the order
    /// of their release.
    resting: [List; CLASSES],
    /// When [`Qpns::wake`] last looked.
    looked_ms: u64,
}

impl List {
    const EMPTY: List = List { first: NONE, last: NONE };

    fn push(&mut self, slots: &mut RawSlice<Slot>, at: u32) {
        slots[at as usize].next = NONE;
        match self.last {
            NONE => self.first = at,
            last => slots[last as usize].next = at,
        }
        self.last = at;
    }

    fn push_first(&mut self, slots: &mut RawSlice<Slot>, at: u32) {
        slots[at as usize].next = self.first;
        self.first = at;
        if self.last == NONE {
            self.last = at;
        }
    }

    fn pop(&mut self, slots: &mut RawSlice<Slot>) -> Option<u32> {
        let at = self.first;
        if at == NONE {
            return None;
        }
        self.first = core::mem::replace(&mut slots[at as usize].next, NONE);
        if self.first == NONE {
            self.last = NONE;
        }
        Some(at)
    }
}

impl Qpns {
    pub(super) fn carve(w: &mut Walk, c: &Config) -> Result<Self> {
        let bits = c.qpn_count.checked_ilog2().unwrap_or(0);
        Ok(Qpns {
            base: c.qpn_base,
            count: c.qpn_count,
            order: Shuffle::new(Random::new(c.seed, PURPOSE), bits),
            used: 0,
            slots: w.slice(c.qpn_count as usize, Slot { next: NONE, released_ms: 0 })?,
            rested: List::EMPTY,
            resting: [List::EMPTY; CLASSES],
            looked_ms: 0,
        })
    }

    /// Moves the numbers whose rest is over.
    fn wake(&mut self, now_ms: u64) {
        let all = now_ms.saturating_sub(self.looked_ms) >= FORGOTTEN_MS;
        self.looked_ms = now_ms;
        for (class, list) in self.resting.iter_mut().enumerate() {
            while list.first != NONE {
                if !all && self.slots[list.first as usize].rested_ms(now_ms) < rest_of(class) {
                    break;
                }
                if let Some(at) = list.pop(&mut self.slots) {
                    self.rested.push(&mut self.slots, at);
                }
            }
        }
    }

    /// The number that has rested longest of those that still rest, if that is long enough.
    fn wake_early(&mut self, now_ms: u64) -> Option<u32> {
        let age = |list: &List| match list.first {
            NONE => 0,
            at => self.slots[at as usize].rested_ms(now_ms),
        };
        let class = (0..CLASSES).max_by_key(|&c| age(&self.resting[c]))?;
        if u64::from(age(&self.resting[class])) * 1_000_000 < REST_MIN_NS {
            return None;
        }
        let at = self.resting[class].pop(&mut self.slots)?;
        self.slots[at as usize].next = class as u32;
        Some(at)
    }

    /// Takes a number for which no late packet is in flight. True: its rest was cut short, because
    /// no other is left.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`]: none is left that has rested for 0.1 s.
    pub(super) fn alloc(&mut self, now_ns: u64) -> Result<(u32, bool)> {
        if self.used < self.count {
            self.used += 1;
            return Ok((self.base + self.order.number_at(self.used - 1), false));
        }
        let now_ms = now_ns / 1_000_000;
        self.wake(now_ms);
        if let Some(at) = self.rested.pop(&mut self.slots) {
            return Ok((self.base + at, false));
        }
        let all_rest = || {
            refuse!(
                NoMemory,
                "qpn_count: every QPN of the block is in use, \
                 or was given back within the last 0.1 s"
            )
        };
        self.wake_early(now_ms).map(|at| (self.base + at, true)).ok_or_else(all_rest)
    }

    /// Gives a number back, for use after this rest; 0: at once. The remainder of a rest that was
    /// cut short counts as well.
    pub(super) fn free(&mut self, qpn: u32, now_ns: u64, rest_ns: u64) {
        let at = qpn - self.base;
        self.wake(now_ns / 1_000_000);
        // Rounded up, so that no fraction of a millisecond is missing from the rest.
        let now_ms = now_ns.div_ceil(1_000_000);
        let slot = self.slots[at as usize];
        let mut rest_ms = rest_ns.div_ceil(1_000_000);
        if let Some(list) = self.resting.get_mut(slot.next as usize) {
            let left = rest_of(slot.next as usize).saturating_sub(slot.rested_ms(now_ms));
            if rest_ms == 0 && left > 0 {
                // The number was the first of its class, and those behind it were released later.
                return list.push_first(&mut self.slots, at);
            }
            // The rest begins anew, because a used number is not used again at once.
            rest_ms = rest_ms.max(left.into());
        }
        if rest_ms == 0 {
            return self.rested.push(&mut self.slots, at);
        }
        let class =
            (0..CLASSES - 1).find(|&c| u64::from(rest_of(c)) >= rest_ms).unwrap_or(CLASSES - 1);
        self.slots[at as usize].released_ms = now_ms as u32;
        self.resting[class].push(&mut self.slots, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::testing::carve;
    use std::collections::HashSet;
    use std::vec::Vec;

    const MS: u64 = 1_000_000;

    fn qpns(base: u32, count: u32, seed: u64) -> Qpns {
        let config = Config { qpn_base: base, qpn_count: count, seed, ..Config::default() };
        carve(|w| Qpns::carve(w, &config))
    }

    fn all(q: &mut Qpns) -> Vec<u32> {
        (0..q.count).map(|_| q.alloc(0).unwrap().0).collect()
    }

    #[test]
    fn a_number_rests_before_it_is_used_again() {
        let mut q = qpns(256, 4, 1);
        let mut numbers = all(&mut q);
        numbers.sort_unstable();
        assert_eq!(numbers, [256, 257, 258, 259]);
        assert_eq!(q.alloc(0), Err(Error::NoMemory));
        let rest = 200 * MS;
        q.free(258, MS, rest);
        q.free(256, 2 * MS, rest);
        assert_eq!(
            q.alloc(100 * MS),
            Err(Error::NoMemory),
            "a tenth of a second it rests in any case"
        );
        assert_eq!(q.alloc(MS + rest), Ok((258, false)));
        assert_eq!(q.alloc(2 * MS + rest), Ok((256, false)), "oldest first");
        q.free(256, 500 * MS + 1, rest);
        assert_eq!(q.alloc(500 * MS + 1), Err(Error::NoMemory), "within the same millisecond");
        q.free(257, 500 * MS + rest + 1, 0);
        assert_eq!(
            q.alloc(500 * MS + rest + 1),
            Ok((257, false)),
            "another's release cuts no rest short"
        );
        assert_eq!(q.alloc(501 * MS + rest), Ok((256, false)));
        // Whatever the rest is, it is not cut short.
        for rest in [100 * MS, 101 * MS, 268 * MS, 3_333 * MS, REST_MAX_NS] {
            q.free(257, 7 * MS + 1, rest);
            q.wake((7 * MS + rest) / MS);
            assert_eq!(q.rested.first, NONE, "{rest}");
            q.wake((8 * MS + rest + rest / 4) / MS);
            assert_eq!(q.alloc(8 * MS + rest + rest / 4), Ok((257, false)), "{rest}");
        }
    }

    #[test]
    fn short_rests_do_not_wait_for_long_ones() {
        let mut q = qpns(256, 4, 1);
        all(&mut q);
        q.free(256, 0, REST_MAX_NS);
        q.free(257, 0, 100 * MS);
        q.free(258, 0, 0);
        assert_eq!(q.alloc(0), Ok((258, false)), "one that had no peer does not rest");
        assert_eq!(q.alloc(100 * MS), Ok((257, false)));
    }

    #[test]
    fn where_all_rest_the_oldest_is_used_early() {
        let mut q = qpns(256, 4, 1);
        all(&mut q);
        q.free(259, 10 * MS, REST_MAX_NS);
        q.free(257, 20 * MS, 1_000 * MS);
        assert_eq!(q.alloc(100 * MS), Err(Error::NoMemory), "but not at once");
        assert_eq!(q.alloc(110 * MS), Ok((259, true)), "whatever its rest would have been");
        assert_eq!(q.alloc(110 * MS), Err(Error::NoMemory));
        assert_eq!(q.alloc(120 * MS), Ok((257, true)));
        // What was taken early and not used rests on.
        q.free(257, 130 * MS, 0);
        assert_eq!(q.alloc(140 * MS), Ok((257, true)));
        q.free(257, 150 * MS, 100 * MS);
        assert_eq!(q.alloc(1_010 * MS), Ok((257, true)));
        q.free(257, 1_010 * MS, 300 * MS);
        assert_eq!(q.alloc(1_100 * MS), Err(Error::NoMemory), "not even early");
        assert_eq!(q.alloc(1_310 * MS), Ok((257, false)), "the later rest is the longer one");
    }

    #[test]
    fn a_number_that_was_used_rests_also_while_its_former_rest_goes_on() {
        let mut q = qpns(256, 4, 1);
        all(&mut q);
        q.free(258, 0, 10_000 * MS);
        assert_eq!(q.alloc(100 * MS), Ok((258, true)));
        q.free(258, 200 * MS, 150 * MS);
        assert_eq!(q.alloc(200 * MS), Err(Error::NoMemory), "packets of this use may be under way");
        assert_eq!(q.alloc(299 * MS), Err(Error::NoMemory));
        assert_eq!(q.alloc(300 * MS), Ok((258, true)));
    }

    #[test]
    fn times_of_release_may_wrap() {
        let mut q = qpns(256, 4, 1);
        all(&mut q);
        let wrap = (1u64 << 32) * MS;
        q.free(256, wrap - 50 * MS, 1_000 * MS);
        assert_eq!(q.alloc(wrap + 40 * MS), Err(Error::NoMemory));
        assert_eq!(q.alloc(wrap + 950 * MS), Ok((256, false)));
        // Nobody looked for months.
        q.free(257, wrap, REST_MAX_NS);
        assert_eq!(q.alloc(2 * wrap + MS), Ok((257, false)));
    }

    #[test]
    fn numbers_come_in_an_order_that_only_the_seed_tells() {
        let order = |seed| all(&mut qpns(1 << 14, 4096, seed));
        let (one, other) = (order(1), order(2));
        assert_eq!(one, order(1));
        assert_eq!(one.iter().collect::<HashSet<_>>().len(), 4096);
        assert!(one.iter().all(|n| (1 << 14..(1 << 14) + 4096).contains(n)));
        let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 20, "{same} of 4096 at the same place");
        assert!(one.windows(2).filter(|w| w[1] == w[0] + 1).count() < 20);
    }
}
