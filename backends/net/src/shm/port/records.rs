//! Reads the records of a frame, in memory that the other end may still write.

use crate::addr::Endpoint;
use core::ptr::NonNull;
use gdrcore_core::receipt::Receipts;
use gdrcore_core::roce::frame::record::{ack_behind, is_ack, ACK_BESIDE};
use gdrcore_core::roce::run::{Run, Words, HEAD_MAX, HEAD_MIN, RECORD_ALIGN};
use gdrcore_core::wire::Malformed;

/// Who wrote a record, and the receipts of its link.
pub type Sender<'l> = (&'l Endpoint, &'l Receipts);

/// The receiver of the records of frames that have arrived.
pub trait Records {
    /// The receiver for a rare call that is not inlined ([`Records::again`]).
    type Again<'a>: Records
    where
        Self: 'a;

    /// The same borrows once more, so that this value may stay in registers.
    fn again(&mut self) -> Self::Again<'_>;

    /// Offers a record first: the words of its head, and all bytes of its frame from there on.
    /// Returns how many bytes it took; 0: the record goes to [`Records::take`].
    fn take_short(&mut self, from: Sender<'_>, head: impl Words, rest: &[u8]) -> usize;

    /// Takes a run with its payload, which the sender may change at any time; or notes bytes that
    /// are no run.
    fn take(&mut self, from: Sender<'_>, run: core::result::Result<(&Run, &[u8]), Malformed>);
}

/// Passes each record of a frame to [`Records::take_short`] and, if that declines, to
/// [`Records::take`]. Returns the number of records.
///
/// # Safety
/// `len` bytes at `frame`, which is aligned to 8, and HEAD_MAX bytes behind them are mapped during
/// the call.
#[inline(always)]
pub(super) unsafe fn records(
    frame: NonNull<u8>,
    len: usize,
    from: Sender<'_>,
    to: &mut impl Records,
) -> usize {
    let mut first = 0;
    // Most frames are one short message, and maybe the ACK beside it.
    if (HEAD_MIN..=HEAD_MAX).contains(&len) {
        // SAFETY: the caller's promise.
        let (words, rest) = unsafe { (InFrame::at(frame, 0), bytes(frame, 0, len)) };
        first = to.take_short(from, words, rest);
        if first == len {
            return 1;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { place_each(frame, len, first, from, &mut to.again()) }
}

/// Does [`records`] record by record. `first`: the bytes of the first record that
/// [`Records::take_short`] has taken; 0: it was not offered, or was declined.
///
/// # Safety
/// As for [`records`].
#[cold]
#[inline(never)]
unsafe fn place_each(
    frame: NonNull<u8>,
    mut len: usize,
    first: usize,
    from: Sender<'_>,
    to: &mut impl Records,
) -> usize {
    let (mut at, mut n, mut first) = (0, 0, Some(first));
    while at < len {
        n += 1;
        if len - at < HEAD_MIN {
            to.take(from, Err(Malformed::Length));
            return n;
        }
        // SAFETY: the caller's promise.
        let in_frame = unsafe { InFrame::at(frame, at) };
        // SAFETY: the caller's promise.
        let rest = unsafe { bytes(frame, at, len) };
        // `take_short` handles an ACK among the words together with the message. An ACK behind
        // them, or one that `take_short` has left, is handled before the message.
        let mut taken = match first.take() {
            Some(taken) => taken,
            None if rest.len() <= HEAD_MAX => to.take_short(from, in_frame, rest),
            None => 0,
        };
        if !matches!(taken, 0 | ACK_BESIDE) {
            at += taken;
            continue;
        }
        let words = in_frame.copy();
        if taken == 0 {
            let end = len - HEAD_MIN;
            // SAFETY: the caller's promise.
            if let Some(ack) = unsafe { ack_at_end(frame, at, &words, rest.len()) } {
                if to.take_short(from, &ack, &rest[end - at..]) == 0 {
                    match Run::parse_head(&ack) {
                        Ok((run, ..)) => to.take(from, Ok((&run, &[]))),
                        Err(e) => to.take(from, Err(e)),
                    }
                }
                // Only the message is left.
                len = end;
                continue;
            }
            if rest.len() > HEAD_MAX {
                taken = to.take_short(from, in_frame, rest);
                if !matches!(taken, 0 | ACK_BESIDE) {
                    at += taken;
                    continue;
                }
            }
        }
        let parsed = Run::parse_head(&words).and_then(|(run, payload, head)| {
            let end =
                payload.checked_next_multiple_of(RECORD_ALIGN).and_then(|p| p.checked_add(head));
            Ok((run, payload, head, end.filter(|&e| e <= len - at).ok_or(Malformed::Length)?))
        });
        match parsed {
            Ok((run, payload, head, end)) => {
                to.take(from, Ok((&run, &rest[head..head + payload])));
                at += end + if taken == ACK_BESIDE { HEAD_MIN } else { 0 };
            }
            Err(e) => {
                to.take(from, Err(e));
                return n;
            }
        }
    }
    n
}

/// The bytes of a frame from `at` to `end`.
///
/// # Safety
/// As for [`records`]; `at` is not behind `end`. The bytes may change while the slice lives: only
/// the copies of `mem::host` read through it, which are assembly and take each byte as it is.
#[inline(always)]
unsafe fn bytes<'f>(frame: NonNull<u8>, at: usize, end: usize) -> &'f [u8] {
    // SAFETY: inside the frame.
    unsafe { core::slice::from_raw_parts(frame.as_ptr().add(at), end - at) }
}

/// The first words of an ACK. It ends its frame, whose only other record is a message of one packet
/// at `at`. Not inlined: the loop seldom needs it.
///
/// # Safety
/// As for [`InFrame::at`]; `len` bytes of the frame are left at `at`.
#[inline(never)]
unsafe fn ack_at_end(
    frame: NonNull<u8>,
    at: usize,
    words: &[u64; HEAD_MAX / 8],
    len: usize,
) -> Option<[u64; HEAD_MAX / 8]> {
    let ack = ack_behind(words, len)?;
    // SAFETY: the caller's promise; the ACK begins inside the frame, at a multiple of 8.
    Some(unsafe { InFrame::at(frame, at + ack) }.copy()).filter(is_ack)
}

/// The first words of a record, in the ring. The other end may still write there, so each read
/// copies a word before it is checked.
#[derive(Clone, Copy)]
struct InFrame(NonNull<u64>);

impl InFrame {
    /// The record at `at`.
    ///
    /// # Safety
    /// `at` lies in the frame and is a multiple of 8, as for [`records`], while the value is used.
    #[inline(always)]
    unsafe fn at(frame: NonNull<u8>, at: usize) -> InFrame {
        // SAFETY: inside the mapping.
        InFrame(unsafe { frame.add(at) }.cast())
    }

    /// Copies all words.
    #[inline(always)]
    fn copy(self) -> [u64; HEAD_MAX / 8] {
        core::array::from_fn(|at| self.word(at))
    }
}

impl Words for InFrame {
    #[inline(always)]
    fn word(self, at: usize) -> u64 {
        assert!(at < HEAD_MAX / 8);
        // SAFETY: at least HEAD_MAX bytes behind the last byte of a frame are mapped, because the
        // data pages are mapped twice and no frame is as long as they are.
        u64::from_le(unsafe { self.0.add(at).read_volatile() })
    }
}
