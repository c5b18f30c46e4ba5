//! Null regions: reads give zeroes, writes vanish. A kind of memory of the device.

use crate::abi::*;
use crate::mr::{self, Wanted};
use crate::pd::Pd;
use crate::result::Verb;
use gdrcore_core::mem::{Access, AtomicOp, Memory, Message, Token, PROVIDER_MAX};
use gdrcore_core::verbs::types::access;

/// Its number among the kinds of memory.
pub const PROVIDER: u32 = PROVIDER_MAX;

/// The memory that holds nothing.
pub struct Null;

impl Memory for Null {
    fn fetch(&self, _cookie: u64, _addr: u64, dst: &mut [u8], _of: Message) -> Access {
        dst.fill(0);
        Access::Ready
    }

    fn place(&self, _cookie: u64, _addr: u64, _src: &[u8]) -> Access {
        Access::Ready
    }

    fn poll(&self, _token: Token) -> Access {
        Access::Ready
    }

    fn atomic(&self, _cookie: u64, _addr: u64, _op: AtomicOp, _of: Message) -> Result<u64, Access> {
        Ok(0)
    }
}

/// The operation behind `ibv_alloc_null_mr`: a region of any address, for local use.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    let w = Wanted { pd, addr: 0, length: usize::MAX, iova: 0, access: access::LOCAL_WRITE, provider: PROVIDER };
    // SAFETY: the program's pointer.
    Verb("ibv_alloc_null_mr").pointer(unsafe { Pd::of(pd).and_then(|_| mr::new(&w)) })
}
