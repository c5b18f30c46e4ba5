use super::*;

/// 10 Gb/s.
const LINE: u64 = 1_250_000_000;

/// Sends as much as it may for `ns`; returns the bytes.
fn send_for(d: &mut Dcqcn, now: &mut u64, ns: u64) -> u64 {
    let end = *now + ns;
    let mut sent = 0;
    while *now < end {
        if d.available(*now) == 0 {
            *now = d.ready_at(*now, 4096).min(end);
            continue;
        }
        d.on_sent(*now, 4096);
        sent += 4096;
        if !d.is_limiting() {
            *now += 4096 * 1_000_000_000 / LINE;
        }
    }
    sent
}

#[test]
fn no_limit_until_the_first_notification() {
    let mut d = Dcqcn::default();
    assert_eq!((d.rate(), d.available(5)), (0, u32::MAX));
    d.on_sent(5, 1 << 30);
    assert_eq!(d.available(6), u32::MAX);
    assert!(d.on_notification(7, LINE));
    assert_eq!(d.rate(), LINE / 2, "alpha begins at 1: half");
    assert!(d.available(7) <= BURST_MAX);
}

// IBTA CA17-45
#[test]
fn notifications_of_one_interval_are_one() {
    let mut d = Dcqcn::default();
    assert!(d.on_notification(1000, LINE));
    assert!(!d.on_notification(1000 + CUT_INTERVAL_NS - 1, LINE));
    assert_eq!(d.rate(), LINE / 2);
    assert!(d.on_notification(1000 + CUT_INTERVAL_NS, LINE));
    assert_eq!(d.rate(), LINE / 4);
}

#[test]
fn a_flood_ends_at_the_least_rate_and_that_rate_is_given() {
    let (mut d, mut now, mut sent) = (Dcqcn::default(), 1u64, 0);
    for _ in 0..100_000 {
        d.on_notification(now, LINE);
        now += 10_000;
        if d.available(now) > 0 {
            d.on_sent(now, 4096);
            sent += 4096;
        }
    }
    assert_eq!(d.rate(), RATE_MIN);
    // One second under the flood.
    assert!((RATE_MIN..RATE_MIN + RATE_MIN / 2).contains(&sent), "{sent}");
}

// IBTA CA17-46
#[test]
fn fast_recovery_goes_half_the_way_each_period() {
    let mut d = Dcqcn::default();
    d.on_notification(0, LINE);
    d.on_notification(CUT_INTERVAL_NS, LINE);
    let (mut rate, target) = (LINE / 4, LINE / 2);
    assert_eq!((d.rate(), d.target), (rate, target));
    for period in 1..=u64::from(FAST) {
        let at = CUT_INTERVAL_NS + period * PERIOD_NS;
        d.available(at - 1);
        assert_eq!(d.rate(), rate);
        d.available(at);
        rate = (rate + target) / 2;
        assert_eq!((d.rate(), d.target), (rate, target), "period {period}");
    }
    d.available(CUT_INTERVAL_NS + 6 * PERIOD_NS);
    assert_eq!(d.target, target + LINE / 1000, "then additive increase");
}

// IBTA CA17-46
#[test]
fn the_byte_counter_raises_as_well_and_both_together_hyper() {
    let mut d = Dcqcn::default();
    for i in 0..8 {
        d.on_notification(i * CUT_INTERVAL_NS, LINE);
    }
    let (now, target) = (7 * CUT_INTERVAL_NS, d.target);
    (0..FAST).for_each(|_| d.on_sent(now, STEP_BYTES));
    assert_eq!((d.byte_steps, d.target), (FAST, target));
    d.on_sent(now, STEP_BYTES);
    assert_eq!(d.target, target + LINE / 1000);
    d.available(now + 6 * PERIOD_NS);
    assert_eq!(
        d.target,
        target + LINE / 1000 * 6 + LINE / 100,
        "five additive steps, and one hyper"
    );
}

#[test]
fn without_congestion_the_limit_goes_away() {
    let (mut d, mut now) = (Dcqcn::default(), 1);
    for _ in 0..20 {
        d.on_notification(now, LINE);
        now += 50_000;
    }
    assert!(d.rate() < LINE / 100);
    let sent = send_for(&mut d, &mut now, 200_000_000);
    assert!(!d.is_limiting(), "{d:?}");
    assert!(sent > LINE / 5 / 2, "most of the line's share of 200 ms: {sent}");
    // A pause without a byte does the same, in bounded work.
    let mut idle = Dcqcn::default();
    idle.on_notification(1, LINE);
    assert_eq!(idle.available(u64::MAX / 2), u32::MAX);
    assert!(!idle.is_limiting());
}

#[test]
fn alpha_forgets_old_congestion() {
    let mut d = Dcqcn::default();
    d.on_notification(0, LINE);
    let now = 300 * PERIOD_NS;
    d.available(now);
    assert!(d.alpha < ONE / 3, "{}", d.alpha);
    let before = d.rate();
    d.on_notification(now, LINE);
    assert!(d.rate() > before * 5 / 6, "a mild cut: {} of {before}", d.rate());
}

#[test]
fn no_number_that_a_program_or_the_clock_gives_overflows() {
    for line in [0, 1, RATE_MIN, u64::MAX / 2, u64::MAX] {
        for times in [
            [0, 1, 2, 3],
            [u64::MAX - 3, u64::MAX - 2, u64::MAX - 1, u64::MAX],
            [0, u64::MAX, 5, u64::MAX],
        ] {
            let mut d = Dcqcn::default();
            for now in times {
                d.on_notification(now, line);
                d.available(now);
                d.on_sent(now, u32::MAX);
                d.ready_at(now, u32::MAX);
                assert!(!d.is_limiting() || d.rate() >= RATE_MIN);
            }
        }
    }
}
