//! QP numbers: the engine's block of the 24 bits, oldest first, with a time-wait before reuse.

use crate::arena::{RawSlice, Walk};
use crate::config::Config;
use crate::error::{Error, Result};

/// A released number waits at least this long, whatever its QP's timeout was.
const WAIT_MIN_NS: u64 = 100_000_000;
/// And at most this long: the largest timeout codes mean hours.
const WAIT_MAX_NS: u64 = 300_000_000_000;

#[derive(Clone, Copy)]
struct Waiting {
    qpn: u32,
    /// Milliseconds, rounded up.
    until_ms: u64,
}

/// Numbers that are free, in the order of their release.
pub(super) struct Qpns {
    base: u32,
    count: u32,
    /// Numbers that were never used.
    fresh: u32,
    waiting: RawSlice<Waiting>,
    head: usize,
    len: usize,
}

impl Qpns {
    pub(super) fn carve(w: &mut Walk, c: &Config) -> Result<Self> {
        Ok(Qpns {
            base: c.qpn_base,
            count: c.qpn_count,
            fresh: 0,
            waiting: w.slice(c.qpn_count as usize, Waiting { qpn: 0, until_ms: 0 })?,
            head: 0,
            len: 0,
        })
    }

    /// A number that no packet of an earlier QP can still be meant for.
    pub(super) fn alloc(&mut self, now_ns: u64) -> Result<u32> {
        if self.fresh < self.count {
            self.fresh += 1;
            return Ok(self.base + self.fresh - 1);
        }
        let first = self.waiting[self.head];
        if self.len == 0 || first.until_ms > now_ns / 1_000_000 {
            return Err(Error::NoMemory);
        }
        self.head = (self.head + 1) % self.waiting.len();
        self.len -= 1;
        Ok(first.qpn)
    }

    /// Gives a number back; it is used again after 4 × the longest timeout of its QP.
    pub(super) fn free(&mut self, qpn: u32, now_ns: u64, timeout_ns: u64) {
        let wait = timeout_ns.saturating_mul(4).clamp(WAIT_MIN_NS, WAIT_MAX_NS);
        let at = (self.head + self.len) % self.waiting.len();
        self.waiting[at] = Waiting { qpn, until_ms: now_ns.saturating_add(wait).div_ceil(1_000_000) };
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn a_number_rests_before_it_is_used_again() {
        let config = Config { qpn_base: 256, qpn_count: 4, ..Config::default() };
        let mut memory = vec![0u8; 4096];
        // SAFETY: `memory` outlives the walk and everything carved from it.
        let mut w = unsafe { Walk::carve(memory.as_mut_ptr(), memory.len()).unwrap() };
        let mut q = Qpns::carve(&mut w, &config).unwrap();
        for n in 256..260 {
            assert_eq!(q.alloc(0), Ok(n));
        }
        assert_eq!(q.alloc(0), Err(Error::NoMemory));
        let timeout = 67_000_000;
        q.free(258, 1_000_000, timeout);
        q.free(256, 2_000_000, timeout);
        assert_eq!(q.alloc(1_000_000 + 4 * timeout - 1_000_000), Err(Error::NoMemory), "4 x its timeout");
        assert_eq!(q.alloc(1_000_000 + 4 * timeout), Ok(258));
        assert_eq!(q.alloc(2_000_000 + 4 * timeout), Ok(256), "oldest first");
    }
}
