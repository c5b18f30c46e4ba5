//! The memory of null regions, as a memory provider of the device: reads return zeroes, writes are
//! discarded.

use gdrcore_core::mem::{Access, AtomicOp, Memory, Token, TransferId, PROVIDER_MAX};

/// The number of this provider.
pub const PROVIDER: u32 = PROVIDER_MAX;

/// The provider.
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
