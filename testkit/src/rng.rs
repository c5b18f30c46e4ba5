//! Random numbers from a seed, the same on every machine and in every version, so that a failure
//! repeats.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A sequence of its own for every seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // numbers without end, not an iterator
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for `n` = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `from..=to`.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True in `per_million` of a million cases.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// True half the time.
    pub fn coin(&mut self) -> bool {
        self.next() & 1 != 0
    }

    /// One of the elements.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.take(len.div_ceil(8)).flatten().take(len).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded seeds of the simulator must repeat their worlds in later versions.
    #[test]
    fn a_seed_gives_the_same_numbers_in_every_version() {
        let mut rng = Rng::new(7);
        let first = [rng.next(), rng.next()];
        assert_eq!(first, [0xd134_a2a8_a5bd_5588, 0xe5c8_696c_f01c_af09]);
        assert_eq!(
            Rng::new(7).bytes(9),
            [&first[0].to_le_bytes()[..], &first[1].to_le_bytes()[..1]].concat()
        );
        assert!((0..1000).all(|_| (3..=5).contains(&rng.range(3, 5)) && rng.below(0) == 0));
    }
}
