use super::*;
use proptest::prelude::*;

#[test]
fn off_lets_everything_pass() {
    let mut b = TokenBucket::new(0, 10);
    b.take(5, u32::MAX);
    assert_eq!(b.available(5), u32::MAX);
    assert_eq!(b.ready_at(7, u32::MAX), 7);
}

#[test]
fn a_byte_in_three_seconds_does_not_drift() {
    // 7 bytes per second, asked every nanosecond-odd step: the sum over 1000 s is exact.
    let mut b = TokenBucket::new(7, u32::MAX);
    b.take(0, u32::MAX);
    let mut now = 0;
    let mut step = 1;
    while now < 1_000_000_000_000 {
        step = step * 31 % 99_999_989;
        now = (now + step).min(1_000_000_000_000);
        b.available(now);
    }
    assert_eq!(b.available(now), 7000);
}

#[test]
fn debt_is_paid_before_anything_passes() {
    let mut b = TokenBucket::new(1_000_000_000, 100);
    b.take(0, 1100);
    assert_eq!(b.available(1000), 0);
    assert_eq!(b.ready_at(1000, 1), 1001);
    assert_eq!(b.available(1001), 1);
    assert_eq!(b.available(5000), 100);
}

#[test]
fn switching_on_starts_full_and_changing_keeps_the_debt() {
    let mut b = TokenBucket::new(0, 1);
    b.set_rate(10, 1_000_000_000, 50);
    assert_eq!(b.available(10), 50);
    b.take(10, 150);
    b.set_rate(10, 2_000_000_000, 10);
    assert_eq!(b.ready_at(10, 10), 10 + 55);
}

#[test]
fn the_ends_of_all_numbers_do_not_overflow() {
    let mut b = TokenBucket::new(u64::MAX, u32::MAX);
    for _ in 0..10 {
        b.take(1, u32::MAX);
    }
    assert_eq!(b.available(u64::MAX), u32::MAX);
    let mut slow = TokenBucket::new(1, u32::MAX);
    for _ in 0..10 {
        slow.take(u64::MAX - 1, u32::MAX);
    }
    assert_eq!(slow.ready_at(u64::MAX - 1, 9), u64::MAX);
}

proptest! {
    #[test]
    fn ready_at_is_the_very_first_time(
        rate in prop_oneof![1u64..100, 1u64..50_000_000_000],
        burst in 1u32..200_000,
        steps in prop::collection::vec((0u64..1 << 40, 0u32..400_000), 1..30),
        want in 0u32..300_000,
    ) {
        let mut b = TokenBucket::new(rate, burst);
        let mut now = 0;
        for (dt, bytes) in steps {
            now += dt;
            b.take(now, bytes);
        }
        let need = want.min(burst);
        let at = b.ready_at(now, want);
        prop_assert!(at >= now);
        let (mut then, mut before) = (b, b);
        prop_assert!(then.available(at) >= need);
        if at > now {
            prop_assert!(before.available(at - 1) < need);
        }
    }

    #[test]
    fn never_more_than_rate_and_burst(
        rate in 1u64..50_000_000_000,
        burst in 1u32..100_000,
        steps in prop::collection::vec(0u64..10_000_000, 1..200),
    ) {
        let mut b = TokenBucket::new(rate, burst);
        let (mut now, mut sent) = (0u64, 0u128);
        for dt in steps {
            now += dt;
            let n = b.available(now);
            b.take(now, n);
            sent += u128::from(n);
            prop_assert!(
                sent <= u128::from(burst) + u128::from(now) * u128::from(rate) / 1_000_000_000
            );
        }
    }
}
