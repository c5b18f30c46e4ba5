//! The memory of null regions: reads give zeroes, writes vanish. A kind of memory of the device.

use gdrcore_core::mem::{Access, AtomicOp, Memory, Token, TransferId, PROVIDER_MAX};

/// The number of this kind of memory.
pub const PROVIDER: u32 = PROVIDER_MAX;

/// The memory that holds nothing.
pub struct Null;

impl Memory for Null {
    fn fetch(&self, _cookie: u64, _addr: u64, dst: &mut [u8], _of: TransferId) -> Access {
        dst.fill(0);
        Access::Ready
    }

    fn place(&self, _cookie: u64, _addr: u64, _src: &[u8]) -> Access {
        Access::Ready
    }

    fn poll(&self, _token: Token) -> Access {
        Access::Ready
    }

    fn atomic(
        &self,
        _cookie: u64,
        _addr: u64,
        _op: AtomicOp,
        _of: TransferId,
    ) -> Result<u64, Access> {
        Ok(0)
    }
}
