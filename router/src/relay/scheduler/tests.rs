use super::*;

const MS: u64 = 1_000_000;

/// Sessions with packets to send, by their slots, and one clock.
struct Bench {
    scheduler: Scheduler,
    now: u64,
    /// The packets that each session has left, and their size.
    queues: Vec<(usize, usize)>,
    sent: Vec<u64>,
    steps: usize,
}

/// More steps than any test needs: a test with an endless loop fails.
const STEPS: usize = 2_000_000;

fn limits(rate: u64, weight: u32) -> Limits {
    Limits { tx_rate: (rate > 0).then_some(rate), weight, ..Limits::NONE }
}

impl Bench {
    /// A session for each tenant, with the same number.
    fn new(all: &[Limits]) -> Bench {
        let mut scheduler = Scheduler::new();
        for (n, l) in all.iter().enumerate() {
            scheduler.limit(0, n as u16, l);
            scheduler.join(n as u16, n as u16);
        }
        Bench {
            scheduler,
            now: 0,
            queues: vec![(0, 0); all.len()],
            sent: vec![0; all.len()],
            steps: 0,
        }
    }

    fn give(&mut self, slot: u16, packets: usize, bytes: usize) {
        self.queues[usize::from(slot)] = (packets, bytes);
        self.scheduler.ready(slot);
    }

    /// Serves the next packet, which costs `bytes`, and returns its session.
    fn step(&mut self) -> Option<u16> {
        self.steps += 1;
        assert!(self.steps < STEPS, "it has no end");
        let slot = self.scheduler.next(self.now)?;
        let n = usize::from(slot);
        let (packets, bytes) = &mut self.queues[n];
        *packets -= 1;
        self.scheduler.charge(self.now, slot, *bytes - OVERHEAD as usize);
        self.sent[n] += *bytes as u64;
        self.scheduler.served(slot, *packets > 0);
        Some(slot)
    }

    /// Runs until a time: sleeps when there is nothing to do, and wakes at the scheduler's time.
    /// Returns the number of wake-ups.
    fn run(&mut self, until: u64) -> usize {
        let mut wakes = 0;
        while self.now < until {
            while self.step().is_some() {}
            let Some(at) = self.scheduler.wake_at() else { break };
            assert!(at > self.now, "it spins");
            self.now = at.min(until);
            wakes += 1;
        }
        wakes
    }

    fn next(&mut self, count: usize) -> Vec<u16> {
        (0..count).map_while(|_| self.step()).collect()
    }
}

const MANY: usize = usize::MAX;

#[test]
fn a_rate_is_kept_within_a_packet() {
    for (rate, bytes) in [(125_000_000, 4096 + 64), (1_000_000, 4096), (3_333_333, 100), (1000, 99)]
    {
        let mut b = Bench::new(&[limits(rate, 1)]);
        b.give(0, MANY, bytes);
        let burst = u64::from(burst_of(rate));
        b.run(1);
        assert_eq!(b.sent[0], burst.div_ceil(bytes as u64) * bytes as u64, "a burst at first");
        for second in 1..4 {
            let wakes = b.run(second * SECOND);
            let due = burst + second * rate;
            assert!(b.sent[0].abs_diff(due) <= bytes as u64, "{rate}: {} {due}", b.sent[0]);
            assert!(wakes as u64 <= rate / bytes as u64 + 2, "a wake-up a packet at most: {wakes}");
        }
    }
}

#[test]
fn who_sleeps_too_long_keeps_its_rate_as_far_as_its_burst_goes() {
    let mut b = Bench::new(&[limits(100_000_000, 1)]);
    b.give(0, MANY, 4096);
    b.run(1);
    let first = b.sent[0];
    // The worker is awake only every 2 ms.
    for _ in 0..500 {
        b.now += 2 * MS;
        while b.step().is_some() {}
    }
    assert!((b.sent[0] - first).abs_diff(100_000_000) < 2_000_000, "{}", b.sent[0] - first);
    // A second too late it may send no more than the burst.
    let before = b.sent[0];
    b.now += SECOND;
    while b.step().is_some() {}
    assert!(b.sent[0] - before <= u64::from(burst_of(100_000_000)) + 4096);
}

#[test]
fn packets_have_a_rate_of_their_own() {
    let mut b = Bench::new(&[Limits { tx_pps: Some(1000), ..Limits::NONE }]);
    b.give(0, MANY, 64);
    b.run(2 * SECOND);
    let burst = u64::from(packet_burst_of(1000));
    assert!((b.sent[0] / 64).abs_diff(2000 + burst) <= 1, "{}", b.sent[0] / 64);
    // With both limits the smaller one counts.
    let both = Limits { tx_pps: Some(1000), ..limits(10_000, 1) };
    let mut b = Bench::new(&[both]);
    b.give(0, MANY, 1000);
    b.run(100 * SECOND);
    let due = u64::from(burst_of(0)) + 1_000_000;
    assert!(b.sent[0].abs_diff(due) <= 1000, "{}", b.sent[0]);
}

#[test]
fn weights_are_shares() {
    let mut b = Bench::new(&[limits(0, 1), limits(0, 2), limits(0, 4)]);
    // The packet size does not change the shares.
    for (slot, bytes) in [(0, 4200), (1, 100), (2, 1500)] {
        b.give(slot, MANY, bytes);
    }
    let all = 20_000_000;
    while b.sent.iter().sum::<u64>() < all {
        b.step();
    }
    for (sent, due) in b.sent.iter().zip([all / 7, all * 2 / 7, all * 4 / 7]) {
        assert!(sent.abs_diff(due) < due / 50, "{:?}", b.sent);
    }
}

#[test]
fn the_line_is_shared_by_weights() {
    let mut b = Bench::new(&[limits(0, 1), limits(0, 2), limits(0, 4), limits(1_000_000, 1000)]);
    b.scheduler.limit_line(0, 15_000_000);
    for slot in 0..4 {
        b.give(slot, MANY, 4000);
    }
    b.run(10 * SECOND);
    let line = u64::from(burst_of(15_000_000)) + 150_000_000;
    assert!(b.sent.iter().sum::<u64>().abs_diff(line) <= 4000, "{:?}", b.sent);
    // The others share what the limited tenant leaves. Its burst is within the margin.
    for (sent, due) in b.sent.iter().zip([20_000_000u64, 40_000_000, 80_000_000, 10_000_000]) {
        assert!(sent.abs_diff(due) < due / 20, "{:?}", b.sent);
    }
    // Without a limit of the line nobody waits.
    b.scheduler.limit_line(b.now, 0);
    assert_eq!(b.next(1000).len(), 1000);
}

#[test]
fn who_had_nothing_waits_for_one_packet() {
    let mut b = Bench::new(&[limits(0, 100), limits(0, 100), limits(0, 1)]);
    b.give(0, MANY, 4096);
    b.give(1, MANY, 4096);
    for _ in 0..50 {
        b.next(37);
        b.give(2, 1, 64);
        assert_eq!(b.step(), Some(2));
        // The tenant has had its turn, and stays listed until the round has reached it.
        b.next(500);
    }
    // A tenant that comes back within the round is not new, so it cannot stay at the front.
    let mut b = Bench::new(&[limits(0, 100), limits(0, 1)]);
    b.give(0, MANY, 4096);
    b.next(10);
    for _ in 0..3000 {
        if b.scheduler.is_idle(1) {
            b.give(1, 1, 4096);
        }
        b.next(2);
    }
    assert!(b.sent[1] > 0 && b.sent[1] * 20 < b.sent[0], "{:?}", b.sent);
}

#[test]
fn sessions_of_a_tenant_share_what_it_has() {
    let mut b = Bench::new(&[limits(0, 1), limits(0, 1), Limits::NONE, Limits::NONE]);
    for slot in [2, 3] {
        b.scheduler.join(slot, 1);
    }
    for slot in 0..4 {
        b.give(slot, MANY, 1024);
    }
    b.next(6000);
    let packets: Vec<u64> = b.sent.iter().map(|n| n / 1024).collect();
    assert!(packets[0].abs_diff(3000) <= 4, "{packets:?}");
    assert!(packets[1..].iter().all(|n| n.abs_diff(1000) <= 4), "{packets:?}");
    // The sessions take turns without those that have left.
    b.scheduler.leave(2);
    b.scheduler.leave(0);
    let order = b.next(6);
    assert!(order == [1, 3, 1, 3, 1, 3] || order == [3, 1, 3, 1, 3, 1], "{order:?}");
    b.scheduler.leave(3);
    b.scheduler.leave(1);
    assert_eq!(b.step(), None);
    assert_eq!(b.scheduler.wake_at(), None);
    // Sessions can come back.
    b.scheduler.join(3, 0);
    b.give(3, 2, 100);
    assert_eq!(b.next(5), [3, 3]);
}

#[test]
fn a_limit_of_one_is_no_others_and_is_the_sum_of_its_sessions() {
    let mut b = Bench::new(&[limits(1_000_000, 1), limits(0, 1), Limits::NONE]);
    b.scheduler.join(2, 0);
    b.give(0, MANY, 4000);
    b.give(2, MANY, 4000);
    b.run(SECOND);
    let due = u64::from(burst_of(1_000_000)) + 1_000_000;
    assert!((b.sent[0] + b.sent[2]).abs_diff(due) <= 4000, "{:?}", b.sent);
    b.give(1, MANY, 4000);
    let order = b.next(1000);
    assert!(order.iter().filter(|&&slot| slot == 1).count() >= 998, "the others' time is its own");
    assert!(b.scheduler.waits(0) && b.scheduler.waits(2) && !b.scheduler.waits(1));
}

/// Epoll reports the packet after the worker's last look at the rings, so it must not sleep then.
#[test]
fn who_is_ready_after_a_round_is_not_slept_upon() {
    let mut b = Bench::new(&[limits(1000, 1), Limits::NONE]);
    b.give(0, MANY, 4000);
    b.run(1);
    let credit = b.scheduler.wake_at();
    assert!(credit.is_some_and(|at| at > SECOND));
    b.give(1, 1, 100);
    assert_eq!(b.scheduler.wake_at(), Some(0));
    assert_eq!(b.next(2), [1]);
    assert_eq!(b.scheduler.wake_at(), credit);
    // If all tenants wait for the line, the worker wakes when that has credit.
    b.scheduler.limit_line(b.now, 1000);
    b.give(1, MANY, 100_000);
    while b.step().is_some() {}
    assert!(b.scheduler.wake_at().is_some_and(|at| at > b.now));
}

#[test]
fn another_limit_counts_at_once() {
    let mut b = Bench::new(&[limits(1000, 1)]);
    b.give(0, MANY, 4000);
    b.run(1);
    assert!(b.scheduler.wake_at().is_some_and(|at| at > SECOND));
    b.scheduler.limit(b.now, 0, &limits(0, 1));
    assert_eq!(b.next(100).len(), 100);
    b.scheduler.limit(b.now, 0, &limits(1_000_000, 1));
    let (from, sent) = (b.now, b.sent[0]);
    b.run(from + SECOND);
    let due = u64::from(burst_of(0)) + 1_000_000;
    assert!((b.sent[0] - sent).abs_diff(due) <= 4000, "{}", b.sent[0] - sent);
    // A debt survives the end of the session.
    b.scheduler.leave(0);
    b.scheduler.join(0, 0);
    b.scheduler.limit(b.now, 0, &limits(1_000_000, 1));
    b.give(0, MANY, 4000);
    assert!(b.next(10).len() <= 1);
    // The next tenant of the number has no debt.
    b.scheduler.leave(0);
    b.scheduler.forget(0);
    b.scheduler.join(0, 0);
    b.give(0, MANY, 4000);
    assert_eq!(b.next(100).len(), 100);
}

#[test]
fn what_arrives_is_marked_from_half_of_the_burst_and_dropped_beyond_it() {
    let rx = Limits { rx_rate: Some(1_000_000), burst: Some(100_000), ..Limits::NONE };
    let mut b = Bench::new(&[rx, Limits::NONE]);
    let bytes = 1000 - OVERHEAD as usize;
    let mut take = |now: u64, n: usize| {
        let all: Vec<Ingress> = (0..n).map(|_| b.scheduler.receive(now, 0, bytes)).collect();
        [Ingress::Pass, Ingress::Mark, Ingress::Drop]
            .map(|what| all.iter().filter(|&&i| i == what).count())
    };
    assert_eq!(take(0, 150), [51, 49, 50]);
    assert_eq!(take(10 * MS, 50), [0, 10, 40]);
    assert_eq!(take(10 * MS + 70 * MS, 50), [21, 29, 0]);
    assert!((0..1000).all(|_| b.scheduler.receive(0, 1, 4096) == Ingress::Pass), "no limit");
}

#[test]
fn who_ends_may_owe_a_burst_and_no_more() {
    let mut b = Bench::new(&[limits(1_000_000, 1), Limits::NONE]);
    let burst = u64::from(burst_of(1_000_000));
    let mut finished = 0u64;
    // For a second, every 100 us, a session comes, fills its ring and goes.
    for _ in 0..10_000 {
        b.scheduler.join(0, 0);
        for _ in 0..16 {
            if b.scheduler.lets_finish(b.now, 0) {
                b.scheduler.charge(b.now, 0, 4096 - OVERHEAD as usize);
                finished += 4096;
            }
        }
        b.scheduler.leave(0);
        b.now += 100_000;
    }
    assert!(finished.abs_diff(2 * burst + 1_000_000) <= 2 * 4096, "{finished}");
    b.scheduler.join(1, 1);
    b.scheduler.charge(b.now, 1, 1 << 30);
    assert!(b.scheduler.lets_finish(b.now, 1), "no limit");
}

#[test]
fn whoever_leaves_is_out_of_the_queue_wherever_it_stood() {
    for (leaves, served) in [(1, [2, 3, 4]), (2, [1, 3, 4]), (3, [1, 2, 4])] {
        let mut scheduler = Scheduler::new();
        scheduler.limit(0, 0, &limits(0, 1));
        (1..=4).for_each(|slot| scheduler.join(slot, 0));
        (1..=3).for_each(|slot| scheduler.ready(slot));
        scheduler.leave(leaves);
        scheduler.ready(4);
        let next = || {
            let slot = scheduler.next(0)?;
            scheduler.charge(0, slot, 100);
            scheduler.served(slot, false);
            Some(slot)
        };
        let order: Vec<u16> = std::iter::from_fn(next).collect();
        assert_eq!(order, served, "{leaves} has left");
    }
    // A tenant with a single session.
    let mut scheduler = Scheduler::new();
    scheduler.limit(0, 0, &limits(0, 1));
    (1..=2).for_each(|slot| scheduler.join(slot, 0));
    scheduler.ready(1);
    scheduler.leave(1);
    scheduler.ready(2);
    assert_eq!(scheduler.next(0), Some(2));
}
