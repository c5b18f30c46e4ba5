//! The short path of a post and a poll for the common case, written to be inlined into the C call.
//!
//! It makes no decision of its own. In any other case (a wrong handle, another thread inside, a
//! list that is not plain) it does nothing and returns so. The caller then takes the full path,
//! which finds the reason. Its parts are few and ordered, so that the compiler holds all of them in
//! registers: it is counted in instructions (docs/records/PERFORMANCE.md, "The verbs device").

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use crate::device::VerbsDevice;
use crate::objects::{Cq, Qp};
use crate::slots::Slot;
use gdrcore_core::verbs::types::{send_flags, Handle, SendWr, Wc};

/// Result of a post by the short path.
#[derive(Clone, Copy, Debug)]
pub enum Posted {
    /// All of it is posted.
    Done,
    /// Nothing was done: take the full path.
    Declined,
    /// The provider did not take all of it and returned this value, for [`crate::refused`].
    Refused(c_int),
}

impl VerbsDevice {
    /// As [`gdrcore_core::device::Device::post_send`]; on failure `*bad` is the first request that
    /// was not posted.
    ///
    /// # Safety
    /// The list is readable; `bad` is writable.
    #[inline(always)]
    pub unsafe fn quick_post_send(
        &self,
        h: Handle,
        wr: *const SendWr,
        bad: *mut *const SendWr,
    ) -> Posted {
        let slot: &Slot<Qp> = self.qps.masked(h);
        let qp = &slot.more;
        if !qp.send.try_enter() {
            return Posted::Declined;
        }
        // SAFETY: the list is readable.
        if !slot.is(h) || !unsafe { is_plain(qp, wr) } {
            qp.send.leave();
            return Posted::Declined;
        }
        // For providers that refuse the whole list without setting `bad`. SAFETY: our contract.
        unsafe { bad.write_unaligned(wr) };
        // SAFETY: inside the send flag a QP whose handle lives is not destroyed; the list is
        // checked.
        let rc = unsafe { (self.opened.data.post_send)(slot.object(), wr, bad) };
        qp.send.leave();
        match rc {
            0 => Posted::Done,
            rc => Posted::Refused(rc),
        }
    }

    /// As [`gdrcore_core::device::Device::poll_cq`] for `room` entries at `wc`.
    ///
    /// # Safety
    /// `wc` has `room` writable entries.
    #[inline(always)]
    pub unsafe fn quick_poll_cq(&self, h: Handle, room: c_int, wc: *mut Wc) -> Polled<'_> {
        let slot: &Slot<Cq> = self.cqs.masked(h);
        let cq = &slot.more;
        if !cq.poll.try_enter() {
            return Polled::Declined;
        }
        if !slot.is(h) {
            cq.poll.leave();
            return Polled::Declined;
        }
        // SAFETY: inside the poll flag a CQ whose handle lives is not destroyed; room for so many.
        let n = unsafe { (self.opened.data.poll_cq)(slot.object(), room, wc) };
        cq.poll.leave();
        if n <= 0 {
            return Polled::Nothing(Empty(slot), n);
        }
        // SAFETY: the provider wrote `n` entries.
        if unsafe { all_succeeded(wc, n) } {
            Polled::Done(n)
        } else {
            Polled::Failed(n)
        }
    }
}

/// A CQ whose poll found nothing.
#[derive(Clone, Copy)]
pub struct Empty<'d>(pub(crate) &'d Slot<Cq>);

/// Result of a poll by the short path.
#[derive(Clone, Copy)]
pub enum Polled<'d> {
    /// This many completions, all of operations that succeeded.
    Done(c_int),
    /// This many completions, of which some failed: for [`VerbsDevice::explain_all`].
    Failed(c_int),
    /// No completion, or the provider's error, for [`VerbsDevice::polled_nothing`].
    Nothing(Empty<'d>, c_int),
    /// Nothing was done: take the full path.
    Declined,
}

/// Whether none of `n` completions, at least one, failed.
///
/// # Safety
/// `wc` has `n` readable entries.
#[inline(always)]
pub unsafe fn all_succeeded(wc: *const Wc, n: c_int) -> bool {
    // SAFETY: one is there.
    let first = unsafe { (*wc).status };
    if n == 1 {
        return first == 0;
    }
    // Four at a time, with one branch for all, because the result is mostly true. SAFETY: each is
    // below n.
    let status = |i: usize| unsafe { (*wc.add(i)).status };
    let (mut all, mut i, n) = (first, 0, n as usize);
    while i < n % 4 {
        all |= status(i);
        i += 1;
    }
    while i < n {
        // The number left is a multiple of 4.
        all |= status(i) | status(i + 1) | status(i + 2) | status(i + 3);
        i += 4;
    }
    all == 0
}

/// Whether a list can go to the provider unchanged: every request has the common form, and the list
/// is no longer than the queue, so it has an end. May return false for other lists that could.
/// Calls nothing, so that its caller keeps nothing in memory. The first request is checked
/// separately, because it is mostly the only one.
///
/// # Safety
/// The list is readable.
#[inline(always)]
unsafe fn is_plain(qp: &Qp, wr: *const SendWr) -> bool {
    let (unusual, nowhere) = (qp.usual.unusual.load(Relaxed), qp.usual.nowhere.load(Relaxed));
    // SAFETY: our contract.
    if wr.is_null() || !unsafe { is_usual(wr, unusual, nowhere) } {
        return false;
    }
    let mut left = qp.send_depth.load(Relaxed);
    // SAFETY: not null, so readable.
    let mut next = unsafe { (&raw const (*wr).next).read_unaligned() };
    while !next.is_null() {
        left = left.wrapping_sub(1);
        // SAFETY: not null, so readable.
        if left == 0 || !unsafe { is_usual(next, unusual, nowhere) } {
            return false;
        }
        // SAFETY: as above.
        next = unsafe { (&raw const (*next).next).read_unaligned() };
    }
    true
}

/// Whether a request has the common form. Reads it without a reference, so that the provider deals
/// with an unaligned one.
///
/// # Safety
/// It is readable.
#[inline(always)]
unsafe fn is_usual(wr: *const SendWr, unusual: u64, nowhere: u64) -> bool {
    // SAFETY: readable.
    let (opcode, num_sge, sg_list, flags) = unsafe {
        (
            (&raw const (*wr).opcode).read_unaligned(),
            (&raw const (*wr).num_sge).read_unaligned(),
            (&raw const (*wr).sg_list).read_unaligned(),
            (&raw const (*wr).send_flags).read_unaligned(),
        )
    };
    (u64::from(opcode) << 32 | u64::from(num_sge as u32)) & unusual == 0
        && sg_list.addr() as u64 > nowhere
        && flags & send_flags::INLINE == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{plain_opcodes, EMPTY};
    use crate::unchanged::Unchanged;
    use gdrcore_core::verbs::types::{qp_type, wr_opcode, Sge};

    #[test]
    fn only_requests_without_objects_are_usual() {
        let piece = Sge { addr: 0, length: 8, lkey: 0 };
        for kind in [qp_type::RC, qp_type::UC, qp_type::UD] {
            for sge_max in [1, 3, 4, 30] {
                let plain = Unchanged::default();
                let usual = |wr: &SendWr| {
                    // SAFETY: a readable request.
                    unsafe {
                        is_usual(wr, plain.unusual.load(Relaxed), plain.nowhere.load(Relaxed))
                    }
                };
                let wr = SendWr { sg_list: &piece, num_sge: 1, opcode: wr_opcode::SEND, ..EMPTY };
                assert!(!usual(&wr), "no QP yet");
                plain.prepare(plain_opcodes(kind), sge_max);
                for opcode in (0..40).chain([1 << 31, u32::MAX]) {
                    for num_sge in (0..70).chain([i32::MIN, i32::MAX, -1]) {
                        let wr = SendWr { opcode, num_sge, ..wr };
                        if usual(&wr) {
                            assert!(
                                opcode < 32 && plain_opcodes(kind) >> opcode & 1 == 1,
                                "{kind} {opcode}"
                            );
                            // The filter passes numbers less than twice the bound: the provider
                            // refuses those.
                            assert!(
                                num_sge >= 0 && num_sge as u32 <= 2 * sge_max,
                                "{sge_max} {num_sge}"
                            );
                        }
                    }
                }
                assert_eq!(usual(&wr), kind != qp_type::UD);
                assert_eq!(usual(&SendWr { num_sge: sge_max as i32, ..wr }), kind != qp_type::UD);
                assert!(!usual(&SendWr { sg_list: core::ptr::null(), ..wr }));
                assert!(!usual(&SendWr {
                    send_flags: send_flags::INLINE | send_flags::SIGNALED,
                    ..wr
                }));
            }
        }
    }

    #[test]
    fn one_failure_is_found_wherever_it_is() {
        let mut wc = [Wc::default(); 9];
        for n in 1..=9 {
            // SAFETY: n completions are there.
            assert!(unsafe { all_succeeded(wc.as_ptr(), n as c_int) });
            for bad in 0..9 {
                wc[bad].status = 5;
                // SAFETY: as above.
                let succeeded = unsafe { all_succeeded(wc.as_ptr(), n as c_int) };
                assert_eq!(succeeded, bad >= n, "{bad} of {n}");
                wc[bad].status = 0;
            }
        }
    }
}
