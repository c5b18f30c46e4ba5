//! DCQCN: the rate of a queue pair whose path is congested.
//!
//! The law of Zhu et al., "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015),
//! section 4, at its reaction point. A congestion notification (CNP) cuts the rate by the part
//! `alpha` / 2; `alpha` estimates how much of the recent past was congested. Without CNPs the rate
//! recovers: five times half-way to its target, which then rises itself, slowly first. A timer and
//! a counter of bytes count the steps, so that neither slow nor fast flows wait for ever.
//!
//! Timers catch up when the rate is used; none runs by itself. A queue pair that never received a
//! CNP has no rate, and costs nothing.

use crate::bucket::TokenBucket;

/// `alpha` of 1. In 24 bits, so that a step of 1/256 does not lose it.
const ONE: u32 = 1 << 24;
/// Gain g = 1/256 as a shift.
const GAIN_SHIFT: u32 = 8;
/// Time without a notification after which `alpha` decays, and the period of the timer that raises
/// the rate.
const PERIOD_NS: u64 = 55_000;
/// Bytes of one step of the byte counter.
const STEP_BYTES: u32 = 10 << 20;
/// Steps of fast recovery, F.
const FAST: u8 = 5;
/// Notifications closer than this are one. A peer that follows the standard sends at most one in 50
/// µs; half of that leaves room for jitter.
const CUT_INTERVAL_NS: u64 = 25_000;
/// Notifications lower a rate to this at least: 10 Mb/s. A peer that sends nothing else slows a
/// queue pair down, but never stops it.
pub const RATE_MIN: u64 = 1_250_000;
/// Largest burst: this much time at the rate, within bounds.
const BURST_NS: u64 = 32_000;
/// Two packets of the largest MTU with their headers.
const BURST_MIN: u32 = 2 * 4200;
/// As much as one burst of the port.
const BURST_MAX: u32 = 64 << 10;
/// After a pause, at most so many periods are stepped through one by one: 32 halvings leave nothing
/// of a distance.
const CATCH_UP: u64 = 32;
/// Periods after which `alpha` has decayed to nothing: (255/256)^4096 is 10^-7.
const FORGOTTEN: u64 = 4096;

/// A rate under DCQCN. The default value is one that was never congested: no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dcqcn {
    /// Rate of the link in bytes per second.
    line: u64,
    /// Current rate R_C; 0: no limit.
    rate: u64,
    /// Target rate R_T.
    target: u64,
    /// Congestion estimate, in parts of [`ONE`].
    alpha: u32,
    /// When `alpha` decays next.
    alpha_at: u64,
    /// When the timer raises the rate next.
    timer_at: u64,
    /// Bytes left of this step of the byte counter.
    bytes_left: u32,
    /// Steps of the timer since the last cut, T.
    timer_steps: u8,
    /// Steps of the byte counter since then, BC.
    byte_steps: u8,
    /// When the rate was last cut.
    cut_ns: u64,
    /// The token bucket that enforces the rate.
    bucket: TokenBucket,
}

impl Dcqcn {
    /// Whether there is a limit now.
    #[inline]
    pub fn is_limiting(&self) -> bool {
        self.rate != 0
    }

    /// Bytes per second; 0: no limit.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// A notification came. `line_rate`: initial and largest rate, in bytes per second. False: it
    /// is one with an earlier one.
    pub fn on_notification(&mut self, now_ns: u64, line_rate: u64) -> bool {
        if self.rate == 0 {
            let line = line_rate.max(RATE_MIN);
            *self = Dcqcn { line, rate: line, target: line, alpha: ONE, ..Dcqcn::default() };
        } else if now_ns.saturating_sub(self.cut_ns) < CUT_INTERVAL_NS {
            return false;
        } else {
            self.catch_up(now_ns);
            if self.rate == 0 {
                return self.on_notification(now_ns, line_rate);
            }
        }
        self.cut_ns = now_ns;
        self.target = self.rate;
        // IBTA CA17-45: A CNP lowers the rate of the queue pair that it names.
        // Halved, times alpha: at most 2^64 * 2^24, in 128 bits.
        let cut = (u128::from(self.rate) * u128::from(self.alpha) / u128::from(2 * ONE)) as u64;
        self.alpha = self.alpha - (self.alpha >> GAIN_SHIFT) + (ONE >> GAIN_SHIFT);
        self.alpha_at = now_ns.saturating_add(PERIOD_NS);
        self.timer_at = self.alpha_at;
        self.bytes_left = STEP_BYTES;
        (self.timer_steps, self.byte_steps) = (0, 0);
        self.limit(now_ns, (self.rate - cut).max(RATE_MIN));
        true
    }

    /// Bytes that may leave now, `u32::MAX` without a limit.
    pub fn available(&mut self, now_ns: u64) -> u32 {
        self.catch_up(now_ns);
        self.bucket.available(now_ns)
    }

    /// These bytes left.
    pub fn on_sent(&mut self, now_ns: u64, bytes: u32) {
        if self.rate == 0 {
            return;
        }
        self.bucket.take(now_ns, bytes);
        if bytes < self.bytes_left {
            self.bytes_left -= bytes;
            return;
        }
        self.bytes_left = STEP_BYTES;
        self.byte_steps = self.byte_steps.saturating_add(1);
        self.raise(now_ns);
    }

    /// When to look again after [`Dcqcn::available`] was 0: when a packet of `bytes` may leave, or
    /// the rate rises.
    pub fn ready_at(&self, now_ns: u64, bytes: u32) -> u64 {
        self.bucket.ready_at(now_ns, bytes).min(self.timer_at).max(now_ns.saturating_add(1))
    }

    /// Runs the timers that have expired by now.
    fn catch_up(&mut self, now_ns: u64) {
        if self.rate == 0 {
            return;
        }
        if now_ns >= self.alpha_at {
            let n = (now_ns - self.alpha_at) / PERIOD_NS + 1;
            self.alpha_at = self.alpha_at.saturating_add(n.saturating_mul(PERIOD_NS));
            if n >= FORGOTTEN {
                self.alpha = 0;
            } else {
                (0..n).for_each(|_| self.alpha -= self.alpha >> GAIN_SHIFT);
            }
        }
        if now_ns >= self.timer_at {
            let n = (now_ns - self.timer_at) / PERIOD_NS + 1;
            self.timer_at = self.timer_at.saturating_add(n.saturating_mul(PERIOD_NS));
            for _ in 0..n.min(CATCH_UP) {
                self.timer_steps = self.timer_steps.saturating_add(1);
                self.raise(now_ns);
                if self.rate == 0 {
                    return;
                }
            }
            if n > CATCH_UP {
                // A pause: the same additive steps, all at once.
                let more = (n - CATCH_UP).saturating_mul(self.additive());
                self.target = self.target.saturating_add(more).min(self.line);
                self.recover(now_ns, self.target);
            }
        }
    }

    /// A thousandth of the line rate: 40 Mb/s of 40 Gb/s, as the paper has it.
    fn additive(&self) -> u64 {
        (self.line / 1000).max(1)
    }

    /// One step up.
    // IBTA CA17-46: The rate rises again with time and with bytes sent since the last CNP.
    fn raise(&mut self, now_ns: u64) {
        let (most, least) =
            (self.timer_steps.max(self.byte_steps), self.timer_steps.min(self.byte_steps));
        if least > FAST {
            let i = u64::from(least - FAST);
            self.target = self.target.saturating_add(i * 10 * self.additive());
        } else if most > FAST {
            self.target = self.target.saturating_add(self.additive());
        }
        self.target = self.target.min(self.line);
        // The sum may pass 64 bits; the mean does not.
        self.recover(now_ns, self.rate / 2 + self.target / 2 + (self.rate & self.target & 1));
    }

    /// Takes a higher rate; no limit if it is the whole link again, until the next notification.
    fn recover(&mut self, now_ns: u64, rate: u64) {
        if self.target >= self.line && rate >= self.line - self.additive() {
            *self = Dcqcn::default();
        } else {
            self.limit(now_ns, rate);
        }
    }

    fn limit(&mut self, now_ns: u64, rate: u64) {
        self.rate = rate;
        let burst = u128::from(rate) * u128::from(BURST_NS) / 1_000_000_000;
        let burst = u32::try_from(burst).unwrap_or(BURST_MAX).clamp(BURST_MIN, BURST_MAX);
        self.bucket.set_rate(now_ns, rate, burst);
    }
}

#[cfg(test)]
mod tests;
