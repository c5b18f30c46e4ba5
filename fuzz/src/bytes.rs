//! Reads a fuzzer's choices from its byte string.

/// Reads numbers from a byte string; past its end every number is 0.
pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Bytes(data)
    }
    pub(crate) fn u8(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&b, rest)) => {
                self.0 = rest;
                b
            }
            None => 0,
        }
    }
    pub(crate) fn u16(&mut self) -> u16 {
        u16::from(self.u8()) | u16::from(self.u8()) << 8
    }
    pub(crate) fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }
    pub(crate) fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }
    pub(crate) fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        head
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// A number below `n`, which is at least 1; reads as few bytes as needed.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (if n <= 256 { usize::from(self.u8()) } else { self.u32() as usize }) % n
    }
    /// True in one of `n` cases, and never past the end.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }
    /// Mostly a small number, sometimes an edge case, sometimes any number.
    pub(crate) fn word(&mut self) -> u32 {
        match self.u8() {
            255 => u32::MAX,
            n @ 223..=254 => 1 << (n - 223),
            191..=222 => self.u32(),
            n => u32::from(n) % 20,
        }
    }
    /// One of `from`, mostly a later one; sometimes 0 or garbage.
    pub(crate) fn pick(&mut self, from: &[u64]) -> u64 {
        let n = from.len();
        match self.u8() {
            255 => self.u64(),
            239..=254 => 0,
            _ if n == 0 => 0,
            k @ 191..=238 => from[(usize::from(k) * 7 + usize::from(self.u8())) % n],
            k => from[n - 1 - usize::from(k) % n.min(6)],
        }
    }
}
