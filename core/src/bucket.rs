//! A token bucket: the rate of a QP.

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// Tokens are bytes. `rate` of them arrive in a second, up to `burst`; taking more than there are
/// leaves a debt.
///
/// The remainder of a byte is kept as a fraction, so that no rate drifts, however often the bucket
/// is refilled. Time must not run backwards; if it does, nothing happens until it has caught up.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenBucket {
    /// Bytes per second; 0: off, everything passes.
    rate: u64,
    /// Most tokens that gather, at least 1.
    burst: u32,
    /// Bytes that may go; negative: debt.
    tokens: i64,
    /// Fraction of the next byte, in 1 / SECOND bytes.
    fraction: u64,
    /// Time of the last refill in nanoseconds.
    last_ns: u64,
}

impl TokenBucket {
    /// A full bucket. `burst` in bytes; 0 counts as 1.
    pub const fn new(rate: u64, burst: u32) -> Self {
        let burst = if burst == 0 { 1 } else { burst };
        TokenBucket { rate, burst, tokens: burst as i64, fraction: 0, last_ns: 0 }
    }

    /// Changes the rate (bytes per second, 0 = off) and the burst (bytes). Debt stays, unless the
    /// rate was off.
    pub fn set_rate(&mut self, now_ns: u64, rate: u64, burst: u32) {
        let was_off = self.rate == 0;
        self.refill(now_ns);
        self.rate = rate;
        self.burst = burst.max(1);
        let full = i64::from(self.burst);
        if was_off || self.tokens >= full {
            self.tokens = full;
            self.fraction = 0;
        }
    }

    /// Bytes per second; 0: off.
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// Bytes that may go now; 0 in debt, `u32::MAX` when off.
    #[inline]
    pub fn available(&mut self, now_ns: u64) -> u32 {
        if self.rate == 0 {
            return u32::MAX;
        }
        self.refill(now_ns);
        self.tokens.clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Takes `bytes`, into debt where there are fewer.
    #[inline]
    pub fn take(&mut self, now_ns: u64, bytes: u32) {
        if self.rate == 0 {
            return;
        }
        self.refill(now_ns);
        self.tokens = self.tokens.saturating_sub(i64::from(bytes));
    }

    /// The first time from `now_ns` on at which `bytes` are available. If they exceed the burst:
    /// the time at which the bucket is full.
    pub fn ready_at(&self, now_ns: u64, bytes: u32) -> u64 {
        if self.rate == 0 {
            return now_ns;
        }
        let missing = i128::from(bytes.min(self.burst)) - i128::from(self.tokens);
        if missing <= 0 {
            return now_ns;
        }
        // At most 2^64 * 10^9: fits with room to spare. The fraction is less than one byte, so it
        // stays positive.
        let parts = missing as u128 * u128::from(SECOND) - u128::from(self.fraction);
        let wait = match u64::try_from(parts) {
            Ok(p) => p.div_ceil(self.rate),
            Err(_) => u64::try_from(parts.div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX),
        };
        self.last_ns.saturating_add(wait).max(now_ns)
    }

    /// Adds the tokens since the last refill.
    fn refill(&mut self, now_ns: u64) {
        if now_ns <= self.last_ns {
            return;
        }
        let elapsed = now_ns - self.last_ns;
        self.last_ns = now_ns;
        let full = i64::from(self.burst);
        if self.rate == 0 || self.tokens >= full {
            return;
        }
        // The 64-bit division is a fraction of the 128-bit one, and enough for seconds at 10 GB/s.
        let (whole, fraction) =
            match elapsed.checked_mul(self.rate).and_then(|p| p.checked_add(self.fraction)) {
                Some(parts) => (parts / SECOND, parts % SECOND),
                None => {
                    let parts =
                        u128::from(elapsed) * u128::from(self.rate) + u128::from(self.fraction);
                    let whole = parts / u128::from(SECOND);
                    (u64::try_from(whole).unwrap_or(u64::MAX), (parts % u128::from(SECOND)) as u64)
                }
            };
        self.tokens = self.tokens.saturating_add_unsigned(whole);
        self.fraction = fraction;
        if self.tokens >= full {
            self.tokens = full;
            self.fraction = 0;
        }
    }
}

#[cfg(test)]
mod tests;
