//! The short way of a post and a poll: what is left when nothing is unusual, written to be inlined into the C call.
//!
//! It takes no decision of its own. Where anything is not as usual (a handle that is none, another thread inside, a list
//! that is not plain) it has done nothing and says so, and the caller takes the long way, which tells why.

use core::sync::atomic::Ordering::Relaxed;

use crate::data::refused;
use crate::device::VerbsDevice;
use crate::objects::Qp;
use gdrcore_core::error::Result;
use gdrcore_core::verbs::types::{send_flags, Handle, SendWr, Wc};

impl VerbsDevice {
    /// As [`gdrcore_core::device::Device::post_send`]; `None`: nothing was done, take the long way.
    ///
    /// # Safety
    /// The list is readable; `bad` is writable.
    #[inline(always)]
    pub unsafe fn quick_post_send(&self, h: Handle, wr: *const SendWr, bad: *mut *const SendWr) -> Option<Result<()>> {
        let slot = self.qps.slot(h).ok()?;
        let qp = &slot.more;
        qp.send.enter().ok()?;
        // A free slot has handle 0.
        // SAFETY: the list is readable.
        if h == 0 || !slot.is(h) || !unsafe { is_plain(qp, wr) } {
            qp.send.leave();
            return None;
        }
        // SAFETY: inside the send flag a QP whose handle lives is not destroyed; the list is checked.
        let rc = unsafe { (self.opened.data.post_send)(slot.object(), wr, bad) };
        qp.send.leave();
        Some(if rc == 0 { Ok(()) } else { Err(refused(rc)) })
    }

    /// As [`gdrcore_core::device::Device::poll_cq`] for `room` entries at `wc`; `None`: nothing was done, take the long way.
    ///
    /// # Safety
    /// `wc` has `room` writable entries.
    #[inline(always)]
    pub unsafe fn quick_poll_cq(&self, h: Handle, room: i32, wc: *mut Wc) -> Option<Polled> {
        let slot = self.cqs.slot(h).ok()?;
        let cq = &slot.more;
        cq.poll.enter().ok()?;
        if h == 0 || !slot.is(h) {
            cq.poll.leave();
            return None;
        }
        // SAFETY: inside the poll flag a CQ whose handle lives is not destroyed; room for so many.
        let n = unsafe { (self.opened.data.poll_cq)(slot.object(), room, wc) };
        cq.poll.leave();
        if n <= 0 {
            return Some(Polled::Nothing(n));
        }
        let mut at = wc;
        let mut left = n;
        loop {
            // SAFETY: `left` of the `n` entries that the provider wrote lie at `at`.
            if unsafe { (*at).status } != 0 {
                return Some(Polled::Failed(n));
            }
            left -= 1;
            if left == 0 {
                return Some(Polled::Done(n));
            }
            // SAFETY: as above, one more is left.
            at = unsafe { at.add(1) };
        }
    }
}

/// What a poll brought.
#[derive(Clone, Copy, Debug)]
pub enum Polled {
    /// So many completions, all of operations that succeeded.
    Done(i32),
    /// So many, of which some failed: for [`VerbsDevice::explain_all`].
    Failed(i32),
    /// None, or the provider's error: for [`VerbsDevice::polled_nothing`].
    Nothing(i32),
}

/// Whether the provider can have a list as it is: no longer than the queue (so one without end is not), and every request
/// as most are. May say no to one that could; calls nothing, so that its caller keeps nothing in memory.
///
/// # Safety
/// The list is readable.
#[inline(always)]
unsafe fn is_plain(qp: &Qp, mut wr: *const SendWr) -> bool {
    let below = qp.plain_below.load(Relaxed);
    let sge_max = qp.send_sge.load(Relaxed);
    let mut left = qp.send_depth.load(Relaxed);
    loop {
        // SAFETY: the caller's promise: null or readable.
        let Some(w) = (unsafe { wr.as_ref() }) else { return false };
        let usual = w.opcode < below
            && (w.num_sge as u32).wrapping_sub(1) < sge_max
            && !w.sg_list.is_null()
            && w.send_flags & send_flags::INLINE == 0;
        if !usual {
            return false;
        }
        if w.next.is_null() {
            return true;
        }
        wr = w.next;
        left = left.wrapping_sub(1);
        if left == 0 {
            return false;
        }
    }
}
