//! A limit of events per second.

use gdrcore_core::bucket::TokenBucket;

/// A number of events a second, all of which may come at once.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// One byte is one event. `None`: the rate is 0.
    bucket: Option<TokenBucket>,
}

impl Rate {
    /// With a full bucket.
    pub fn new(now: u64, per_second: u32) -> Rate {
        let mut bucket = TokenBucket::default();
        bucket.set_rate(now, per_second.into(), per_second);
        Rate { bucket: (per_second != 0).then_some(bucket) }
    }

    /// Takes one event. False: the rate is exceeded.
    pub fn take(&mut self, now: u64) -> bool {
        let Some(bucket) = &mut self.bucket else { return false };
        let may = bucket.available(now) > 0;
        if may {
            bucket.take(now, 1);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;

    #[test]
    fn a_rate_is_so_many_at_once_and_so_many_in_a_second() {
        let mut r = Rate::new(5, 3);
        let mut at = |now, n: usize| (0..n).filter(|_| r.take(now)).count();
        assert_eq!(at(5, 10), 3);
        assert_eq!(at(5 + 333_333_333, 10), 0);
        assert_eq!(at(5 + 333_333_334, 10), 1);
        assert_eq!(at(5 + 10_000_000_000, 10), 3, "no more than at once");
        assert_eq!(at(7, 10), 0, "a clock that stands");
        assert_eq!(at(u64::MAX, 10), 3);
    }
}
