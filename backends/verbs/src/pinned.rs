//! A pinned QP or CQ: the fields for calls without a lookup, and the slow paths of such calls.
//!
//! The caller that pinned the object keeps it from being destroyed, so nothing here checks whether
//! it exists. No flag keeps a second thread out, because providers have their own locks.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{Object, PollCq, PostRecv, PostSend};
use crate::device::VerbsDevice;
use crate::fast::Empty;
use crate::unchanged::bits_up_to;
use gdrcore_core::error::Result;
use gdrcore_core::verbs::types::{send_flags, Handle, RecvWr, SendWr};

/// The fields that posts to a pinned QP need.
#[derive(Clone, Copy)]
pub struct PinnedQp {
    /// The provider's post, for common requests.
    pub post_send: PostSend,
    /// The provider's post of receives.
    pub post_recv: PostRecv,
    /// Its QP.
    pub object: Object,
    /// Bits that `opcode << 32 | num_sge` of a common request does not have. `None`: every list is
    /// judged.
    pub refused_bits: Option<u64>,
    /// Bits that `num_sge` of a common receive request does not have. `None`: every list is judged.
    pub recv_refused_bits: Option<u64>,
    /// Requests that fit into the send queue.
    pub depth: u32,
}

/// The fields that polls of a pinned CQ need.
#[derive(Clone, Copy)]
pub struct PinnedCq {
    /// The provider's poll.
    pub poll_cq: PollCq,
    /// Its CQ.
    pub object: Object,
}

// SAFETY: the provider's object is passed to the provider's functions alone, which any thread may
// call: they lock.
unsafe impl Sync for PinnedQp {}
// SAFETY: as for [`PinnedQp`].
unsafe impl Sync for PinnedCq {}

impl VerbsDevice {
    /// The fields for posts to a pinned QP.
    ///
    /// # Errors
    /// [`gdrcore_core::error::Error::StaleHandle`].
    pub fn pinned_qp(&self, qp: Handle) -> Result<PinnedQp> {
        let slot = self.qps.slot(qp)?;
        let more = &slot.more;
        let has_receives = more.recv_depth.load(Relaxed) > 0;
        Ok(PinnedQp {
            post_send: self.opened.data.post_send,
            post_recv: self.opened.data.post_recv,
            object: slot.object(),
            refused_bits: more.usual.bits(),
            recv_refused_bits: has_receives.then(|| !bits_up_to(more.recv_sge.load(Relaxed))),
            depth: more.send_depth.load(Relaxed),
        })
    }

    /// The fields for polls of a pinned CQ.
    ///
    /// # Errors
    /// [`gdrcore_core::error::Error::StaleHandle`].
    pub fn pinned_cq(&self, cq: Handle) -> Result<PinnedCq> {
        Ok(PinnedCq { poll_cq: self.opened.data.poll_cq, object: self.cqs.slot(cq)?.object() })
    }

    /// Any post to a pinned QP.
    ///
    /// # Errors
    /// As for `post_send`, without [`gdrcore_core::error::Error::Busy`].
    ///
    /// # Safety
    /// The QP is pinned; the list is readable.
    pub unsafe fn pinned_post_send(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        let slot = self.qps.slot(qp)?;
        // SAFETY: our contract.
        unsafe { self.send_list(slot.object(), &slot.more, wr, bad) }
    }

    /// Any post of receives to a pinned QP.
    ///
    /// # Errors
    /// As for `post_recv`, without [`gdrcore_core::error::Error::Busy`].
    ///
    /// # Safety
    /// The QP is pinned; the list is readable.
    pub unsafe fn pinned_post_recv(
        &self,
        qp: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        let slot = self.qps.slot(qp)?;
        // SAFETY: our contract.
        unsafe { self.receive_list(slot.object(), &slot.more, wr, bad) }
    }

    /// Ends a poll of a pinned CQ without completions, or with the provider's error `n`.
    ///
    /// # Errors
    /// As for [`VerbsDevice::polled_nothing`].
    pub fn pinned_polled_nothing(&self, cq: Handle, n: c_int) -> Result<usize> {
        self.polled_nothing(Empty(self.cqs.slot(cq)?), n)
    }
}

/// Whether a list consists of common requests, at least one and at most twice `pairs`. Checks them
/// in pairs, with one branch for all, because the result is mostly true.
///
/// # Safety
/// The list is readable.
#[inline(always)]
pub unsafe fn is_usual_list(wr: *const SendWr, refused_bits: u64, pairs: u64) -> bool {
    let (mut next, mut left) = (wr, pairs);
    let (mut shapes, mut flags) = (0, 0);
    if next.is_null() {
        return false;
    }
    while left > 0 {
        for _ in 0..2 {
            // SAFETY: not null, so readable; not aligned, it is the provider's own matter.
            let (opcode, num_sge, sg_list, own) = unsafe {
                (
                    (&raw const (*next).opcode).read_unaligned(),
                    (&raw const (*next).num_sge).read_unaligned(),
                    (&raw const (*next).sg_list).read_unaligned(),
                    (&raw const (*next).send_flags).read_unaligned(),
                )
            };
            shapes |= u64::from(opcode) << 32 | u64::from(num_sge as u32);
            flags |= own;
            if sg_list.is_null() {
                return false;
            }
            // SAFETY: as above.
            next = unsafe { (&raw const (*next).next).read_unaligned() };
            if next.is_null() {
                return shapes & refused_bits == 0 && flags & send_flags::INLINE == 0;
            }
        }
        left -= 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::EMPTY;
    use gdrcore_core::verbs::types::{wr_opcode, Sge};

    /// Bits that opcodes up to 7 and up to 3 entries do not have.
    const UNUSUAL: u64 = !(7 << 32 | 3);

    fn judged(wr: &mut [SendWr], pairs: u64) -> bool {
        for i in 1..wr.len() {
            wr[i - 1].next = &raw const wr[i];
        }
        // SAFETY: a list of this array.
        unsafe { is_usual_list(wr.as_ptr(), UNUSUAL, pairs) }
    }

    #[test]
    fn a_list_is_usual_if_all_of_it_is() {
        let piece = Sge { addr: 0, length: 8, lkey: 0 };
        let usual = SendWr { sg_list: &piece, num_sge: 1, opcode: wr_opcode::RDMA_WRITE, ..EMPTY };
        let others = [
            SendWr { sg_list: core::ptr::null(), ..usual },
            SendWr { num_sge: 4, ..usual },
            SendWr { num_sge: -1, ..usual },
            SendWr { opcode: wr_opcode::BIND_MW, ..usual },
            SendWr { opcode: u32::MAX, ..usual },
            SendWr { send_flags: send_flags::INLINE | send_flags::SIGNALED, ..usual },
        ];
        for n in 1..=9 {
            for pairs in 0..6 {
                assert_eq!(
                    judged(&mut vec![usual; n], pairs),
                    n as u64 <= 2 * pairs,
                    "{n} of {pairs} pairs"
                );
            }
            for at in 0..n {
                for (kind, other) in others.iter().enumerate() {
                    let mut list = vec![usual; n];
                    list[at] = *other;
                    assert!(!judged(&mut list, 5), "{kind} at {at} of {n}");
                }
            }
        }
        let mut circle = usual;
        circle.next = &raw const circle;
        // SAFETY: a list of one that leads to itself; an empty one.
        unsafe {
            assert!(!is_usual_list(&raw const circle, UNUSUAL, 1 << 20));
            assert!(!is_usual_list(core::ptr::null(), UNUSUAL, 4));
        }
    }

    #[test]
    fn numbers_up_to_the_bound_are_usual() {
        for most in [0u32, 1, 2, 3, 4, 30, u32::MAX] {
            let bits = !bits_up_to(most);
            assert!(u64::from(most) & bits == 0 && bits >> 32 == u64::from(u32::MAX), "{most}");
            assert!(most > 1 << 31 || (2 * u64::from(most) + 2) & bits != 0, "{most}");
        }
    }
}
