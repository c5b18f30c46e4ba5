//! A batch of send requests that a program builds between `ibv_wr_start` and `ibv_wr_complete`.

use crate::abi::*;
use core::ffi::{c_int, c_void};
use gdrcore_core::mem::host;
use gdrcore_core::verbs::types::send_flags;
use gdrcore_core::{refuse, Error};

/// Bytes of an ATOMIC WRITE.
const WORD: usize = 8;

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
pub struct SendBatch {
    pub wrs: Vec<ibv_send_wr>,
    /// `max_sge` for each request.
    sges: Vec<ibv_sge>,
    /// `max_inline` bytes for each request, but at least a word for an ATOMIC WRITE.
    inline: Vec<u8>,
    pub max_sge: usize,
    max_inline: usize,
    pub limit: usize,
    pub error: Option<Error>,
}

// SAFETY: its pointers lead into its own vectors; whoever has the turn uses it.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// Room for all requests of a QP's send queue. The system allocates the pages at their first
    /// use.
    pub fn new(cap: &ibv_qp_cap) -> Self {
        let (limit, max_sge, max_inline) = (
            cap.max_send_wr as usize,
            cap.max_send_sge.max(1) as usize,
            cap.max_inline_data as usize,
        );
        let bytes = max_inline.max(WORD);
        SendBatch {
            wrs: Vec::with_capacity(limit),
            sges: Vec::with_capacity(limit * max_sge),
            inline: Vec::with_capacity(limit * bytes),
            max_sge,
            max_inline,
            limit,
            error: None,
        }
    }

    pub fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
        self.error = None;
    }

    pub fn fail(&mut self, e: Error) {
        self.error.get_or_insert(e);
    }

    /// The request that was begun last.
    pub fn last(&mut self) -> Option<&mut ibv_send_wr> {
        if self.error.is_some() {
            return None;
        }
        if self.wrs.is_empty() {
            self.fail(refuse!(
                Invalid,
                "ibv_wr_set_: before any request (ibv_wr_send, ibv_wr_rdma_write)"
            ));
        }
        self.wrs.last_mut()
    }

    pub fn set_sges(&mut self, list: &[ibv_sge]) {
        if list.len() > self.max_sge {
            return self.fail(refuse!(Invalid, "num_sge {}: at most {}", list.len(), self.max_sge));
        }
        if self.last().is_none() {
            return;
        }
        // This never grows: each request takes its share at most once, because a second list for it
        // is refused.
        if self.sges.len() + list.len() > self.limit * self.max_sge {
            return self.fail(refuse!(NoMemory, "sg_list: a second one of this request"));
        }
        let at = self.sges.len();
        self.sges.extend_from_slice(list);
        let pieces = self.sges[at..].as_ptr();
        if let Some(wr) = self.last() {
            wr.sg_list = pieces;
            wr.num_sge = list.len() as c_int;
        }
    }

    /// Sets the 8 bytes of the request that was begun last, an ATOMIC WRITE. Memory that cannot be
    /// read is an error.
    pub fn set_word(&mut self, bytes: *const c_void) {
        let at = self.inline.len();
        if self.last().is_none() || at + WORD > self.inline.capacity() {
            return self.fail(refuse!(NoMemory, "atomic_wr: a second one of this request"));
        }
        self.inline.resize(at + WORD, 0);
        if host::fetch(bytes as u64, &mut self.inline[at..]).is_err() {
            return self.fail(refuse!(Fault, "atomic_wr: 8 bytes at {bytes:p} cannot be read"));
        }
        let addr = self.inline[at..].as_ptr() as u64;
        self.set_sges(&[ibv_sge { addr, length: WORD as u32, lkey: 0 }]);
    }

    /// # Safety
    /// The program's entries; memory that cannot be read is an error.
    pub unsafe fn set_inline(&mut self, pieces: &[ibv_data_buf]) {
        if self.last().is_none() {
            return;
        }
        let at = self.inline.len();
        let total = pieces.iter().try_fold(0usize, |sum, p| sum.checked_add(p.length));
        match total {
            Some(n) if n <= self.max_inline && at + n <= self.inline.capacity() => {}
            _ => {
                return self.fail(refuse!(
                    Invalid,
                    "inline data: longer than max_inline_data, {}",
                    self.max_inline
                ))
            }
        }
        for p in pieces {
            let from = self.inline.len();
            self.inline.resize(from + p.length, 0);
            if host::fetch(p.addr as u64, &mut self.inline[from..]).is_err() {
                let (n, at) = (p.length, p.addr);
                return self.fail(refuse!(Fault, "inline data: {n} bytes at {at:p}: no memory"));
            }
        }
        let length = (self.inline.len() - at) as u32;
        let addr = self.inline[at..].as_ptr() as u64;
        self.set_sges(&[ibv_sge { addr, length, lkey: 0 }]);
        if let Some(wr) = self.last() {
            wr.send_flags |= send_flags::INLINE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_atomic_writes_find_room_without_inline_data() {
        let cap = ibv_qp_cap { max_send_wr: 2, max_send_sge: 1, ..ibv_qp_cap::default() };
        let mut batch = SendBatch::new(&cap);
        // SAFETY: zeroes are a valid request.
        let request = || unsafe { core::mem::zeroed::<ibv_send_wr>() };
        for round in 0..3u64 {
            batch.clear();
            for k in 0..2 {
                batch.wrs.push(request());
                let word = 10 * round + k;
                batch.set_word((&raw const word).cast());
            }
            assert_eq!(batch.error, None);
            for (wr, k) in batch.wrs.iter().zip(0u64..) {
                assert_eq!(wr.num_sge, 1);
                // SAFETY: its one piece, of the batch.
                let (sge, word) = unsafe { (*wr.sg_list, *((*wr.sg_list).addr as *const [u8; 8])) };
                assert_eq!((sge.length, u64::from_ne_bytes(word)), (8, 10 * round + k));
            }
        }
        batch.clear();
        batch.set_word((&raw const cap).cast());
        assert_eq!(batch.error, Some(Error::Invalid), "no request");
    }
}
