//! Keyed pseudo-random numbers: keys of regions, communication ids, start PSNs, the order of QPNs.
//!
//! Every number here is SipHash-1-3 under a key that follows from the seed
//! ([`crate::config::Config::seed`]), which the OS layer takes from getrandom. Peers see some of
//! the numbers, so a plain generator (SplitMix, xoshiro) will not do: its state follows from a
//! handful of outputs. Each use has a `purpose` of its own, so that the numbers of one say nothing
//! about those of another.

use core::hash::Hasher;
use siphasher::sip::SipHasher13;

/// Most bits of a [`Shuffle`]: those of a QPN.
const BITS_MAX: u32 = 24;
/// Rounds of [`Shuffle`].
const ROUNDS: u64 = 4;

/// A generator, and a keyed hash.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    k0: u64,
    k1: u64,
    count: u64,
}

impl Random {
    /// The generator of a seed for one purpose.
    pub fn new(seed: u64, purpose: u64) -> Random {
        // The second half of the key, so that all 256 bits of the state begin unlike each other.
        let k1 = (seed ^ (seed >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ purpose;
        Random { k0: seed, k1, count: 0 }
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.count = self.count.wrapping_add(1);
        self.hash(&[self.count])
    }

    /// A keyed hash of some words: the same each time, and unpredictable without the seed.
    pub fn hash(&self, words: &[u64]) -> u64 {
        let mut hash = SipHasher13::new_with_keys(self.k0, self.k1);
        words.iter().for_each(|&word| hash.write_u64(word));
        hash.finish()
    }
}

/// A secret permutation of the numbers below a power of two, in both directions: a Feistel network,
/// which needs no memory.
#[derive(Clone, Copy, Debug)]
pub struct Shuffle {
    key: Random,
    /// Bits of half a number.
    half: u32,
    /// Numbers from here on are not part of the order.
    end: u32,
}

impl Shuffle {
    /// An order of the numbers below 2^`bits`, at most 2^24.
    pub fn new(key: Random, bits: u32) -> Shuffle {
        let bits = bits.min(BITS_MAX);
        Shuffle { key, half: bits.div_ceil(2), end: 1 << bits }
    }

    fn once(&self, number: u32, back: bool) -> u32 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (number >> self.half, number & mask);
        for k in 0..ROUNDS {
            let round = if back { ROUNDS - 1 - k } else { k };
            if back {
                (left, right) =
                    (right ^ (self.key.hash(&[round, left.into()]) as u32 & mask), left);
            } else {
                (left, right) =
                    (right, left ^ (self.key.hash(&[round, right.into()]) as u32 & mask));
            }
        }
        left << self.half | right
    }

    /// Repeats the network until the number is below the end: with an odd number of bits every
    /// second number lies above it.
    fn walk(&self, number: u32, back: bool) -> u32 {
        let mut at = number & (self.end - 1);
        loop {
            at = self.once(at, back);
            if at < self.end {
                return at;
            }
        }
    }

    /// The number at a place of the permutation.
    pub fn number_at(&self, place: u32) -> u32 {
        self.walk(place, false)
    }

    /// The place of a number.
    pub fn place_of(&self, number: u32) -> u32 {
        self.walk(number, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    #[test]
    fn a_shuffle_holds_every_number_once_and_goes_back() {
        for bits in 0..=11 {
            let order = Shuffle::new(Random::new(7, 1), bits);
            let all: Vec<u32> = (0..1 << bits).map(|p| order.number_at(p)).collect();
            assert!(all.iter().all(|&n| n < 1 << bits), "{bits} bits");
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), 1 << bits, "{bits} bits");
            assert!((0..1 << bits).all(|p| order.place_of(all[p as usize]) == p), "{bits} bits");
        }
        let order = Shuffle::new(Random::new(7, 1), 24);
        assert!((0..1000).all(|k| order.place_of(order.number_at(k * 16_777)) == k * 16_777));
    }

    #[test]
    fn seeds_and_purposes_have_orders_and_numbers_of_their_own() {
        let order = |seed, purpose| {
            let s = Shuffle::new(Random::new(seed, purpose), 14);
            (0..64).map(|p| s.number_at(p)).collect::<Vec<_>>()
        };
        assert_eq!(order(1, 1), order(1, 1));
        assert_ne!(order(1, 1), order(2, 1));
        assert_ne!(order(1, 1), order(1, 2));
        // Neighbours in the order are not neighbours as numbers.
        let steps: HashSet<u32> = order(1, 1).windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(steps.len() > 60, "{}", steps.len());
        let (mut a, mut b) = (Random::new(1, 1), Random::new(1, 2));
        assert_ne!(a.draw(), b.draw());
        assert_ne!(a.draw(), a.draw());
        assert_ne!(a.hash(&[1, 2]), a.hash(&[2, 1]));
        // A list of words and a longer one with zeroes behind are not the same.
        assert_ne!(a.hash(&[1]), a.hash(&[1, 0]));
    }
}
