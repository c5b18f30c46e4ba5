//! The scatter/gather lists of work requests: bytes between them and packets, or the peer's memory.
//!
//! Keys are checked piece by piece and anew for every packet, since a region may be deregistered.

use core::ops::Range;

use crate::mem::{host, Access, KeyError, RegisteredMemory, Target, Token, TransferId};
use crate::ring::SlotRef;
use crate::roce::peer_memory::{Piece, PIECES};
use crate::verbs::cause::CauseCode;
use crate::verbs::types::Sge;
use crate::verbs::wqe::{from_byte, SendWqe};
use crate::wire::icrc::crc32;

/// Failure of a copy between packets and the program's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyError {
    /// Memory is not ready: a provider's token.
    Pending(u32, Token),
    /// No staging room.
    Busy,
    /// Refused for good: the cause, lkey, address.
    Refused(CauseCode, u32, u64),
}

/// A piece whose key was refused.
#[cold]
fn refused(e: KeyError, sge: &Sge) -> CopyError {
    CopyError::Refused(e.local_cause(), sge.lkey, sge.addr)
}

impl RegisteredMemory {
    /// The memory of a piece, or of its beginning.
    #[inline(always)]
    fn piece(&self, pd: u32, sge: &Sge, len: u32, writes: bool) -> Result<Target, KeyError> {
        self.regions.local(sge.lkey, pd, sge.addr, len, writes)
    }

    /// Copies `len` bytes from byte `offset` of a list on, piece by piece. `copy` gets the memory
    /// of a piece, the range of the bytes there, and the bytes of the piece from there on.
    /// `writes`: the list is the target. `Some`: the bytes are taken, and have landed when the
    /// provider reports the token as ready.
    #[inline(always)]
    fn copy_pieces(
        &self,
        (pd, sges, offset): (u32, &[Sge], u64),
        len: usize,
        writes: bool,
        mut copy: impl FnMut(&Target, Range<usize>, u32) -> Access,
    ) -> Result<Option<(u8, Token)>, CopyError> {
        let (mut done, mut pending) = (0, None);
        for sge in from_byte(sges, offset) {
            if done == len {
                break;
            }
            let end = done + (len - done).min(sge.length as usize);
            let target =
                self.piece(pd, &sge, (end - done) as u32, writes).map_err(|e| refused(e, &sge))?;
            match copy(&target, done..end, sge.length) {
                Access::Ready => {}
                Access::Pending(token) if writes => {
                    let next = (target.provider as u8, token);
                    pending = Some(self.providers.later_of(pending, next));
                }
                Access::Pending(token) => return Err(CopyError::Pending(target.provider, token)),
                Access::Busy => return Err(CopyError::Busy),
                Access::Fault => return Err(memory_gone(&sge)),
            }
            done = end;
        }
        if done == len {
            Ok(pending)
        } else {
            Err(too_short())
        }
    }

    /// Copies `src` to byte `offset` of a list. `Some`: see [`RegisteredMemory::copy_pieces`].
    pub(in crate::roce) fn scatter(
        &self,
        pd: u32,
        sges: &[Sge],
        offset: u64,
        src: &[u8],
    ) -> Result<Option<(u8, Token)>, CopyError> {
        self.copy_pieces((pd, sges, offset), src.len(), true, |target, part, _| {
            self.providers.place(target, 0, &src[part])
        })
    }

    /// The memory of `len` bytes of a list from byte `offset` on, if they are in one piece of host
    /// memory that may be written.
    pub(in crate::roce) fn host_target(
        &self,
        pd: u32,
        sges: &[Sge],
        offset: u64,
        len: u32,
    ) -> Option<Target> {
        let sge = from_byte(sges, offset).next().filter(|sge| sge.length >= len)?;
        self.piece(pd, &sge, len, true).ok().filter(|target| target.provider == 0)
    }

    /// Copies bytes `offset..` of a send request, inline or in pieces, into `dst`.
    pub(in crate::roce) fn gather(
        &self,
        pd: u32,
        slot: &SlotRef<'_, SendWqe>,
        offset: u64,
        dst: &mut [u8],
        of: TransferId,
    ) -> Result<(), CopyError> {
        let wqe = slot.header();
        if wqe.inline == 0 {
            let sges = slot.sges(usize::from(wqe.num_sge));
            return self.gather_pieces(pd, sges, offset, dst, of);
        }
        let at = offset as usize;
        let src = slot.tail().get(at..at + dst.len()).ok_or_else(too_short)?;
        dst.copy_from_slice(src);
        Ok(())
    }

    /// Copies all bytes of a request of one piece that has no slot. `inline`: the piece is the
    /// program's, without a key. Reads host memory alone, because a provider keeps fetched bytes
    /// under the number of the request's slot.
    #[inline(always)]
    pub(in crate::roce) fn gather_single(
        &self,
        pd: u32,
        sge: &Sge,
        inline: bool,
        dst: &mut [u8],
    ) -> bool {
        if inline || dst.is_empty() {
            return host::fetch(sge.addr, dst).is_ok();
        }
        let target = self.piece(pd, sge, sge.length, false);
        target.is_ok_and(|t| t.provider == 0 && host::fetch(t.addr, dst).is_ok())
    }

    /// Fills a packet for [`crate::roce::txbuf::TxBuf::emit`]: by [`RegisteredMemory::gather`] or,
    /// with a CRC state, by [`RegisteredMemory::gather_crc`].
    #[inline(always)]
    pub(in crate::roce) fn fill(
        &self,
        pd: u32,
        slot: &SlotRef<'_, SendWqe>,
        offset: u64,
        dst: &mut [u8],
        of: TransferId,
        state: Option<u32>,
    ) -> Result<u32, CopyError> {
        match state {
            None => self.gather(pd, slot, offset, dst, of).map(|()| 0),
            Some(state) => self.gather_crc(pd, slot, offset, dst, of, state),
        }
    }

    /// As [`RegisteredMemory::gather`], for bulk. Continues the CRC from `state` over the bytes in
    /// `dst`, and returns the new state.
    #[inline(never)]
    fn gather_crc(
        &self,
        pd: u32,
        slot: &SlotRef<'_, SendWqe>,
        offset: u64,
        dst: &mut [u8],
        of: TransferId,
        mut state: u32,
    ) -> Result<u32, CopyError> {
        if slot.header().inline != 0 {
            self.gather(pd, slot, offset, dst, of)?;
            return Ok(crc32(state, dst));
        }
        let list = (pd, slot.sges(usize::from(slot.header().num_sge)), offset);
        self.copy_pieces(list, dst.len(), false, |target, part, left| {
            let of = TransferId { left, ..of };
            self.providers.fetch_crc(target, 0, &mut dst[part], of, &mut state)
        })?;
        Ok(state)
    }

    /// Not inlined, so that inline data does not pay for the registers of this function.
    #[inline(never)]
    fn gather_pieces(
        &self,
        pd: u32,
        sges: &[Sge],
        offset: u64,
        dst: &mut [u8],
        of: TransferId,
    ) -> Result<(), CopyError> {
        self.copy_pieces((pd, sges, offset), dst.len(), false, |target, part, left| {
            self.providers.fetch(target, 0, &mut dst[part], TransferId { left, ..of })
        })
        .map(|_| ())
    }

    /// Copies `len` bytes of a send request, from byte `at` on, to an address of this process.
    /// False: some of them could not be read, or not be written.
    pub(in crate::roce) fn transfer(
        &self,
        pd: u32,
        slot: &SlotRef<'_, SendWqe>,
        at: u64,
        to: u64,
        len: u64,
    ) -> bool {
        let wqe = slot.header();
        if wqe.inline != 0 {
            let bytes = slot.tail().get(at as usize..).and_then(|b| b.get(..len as usize));
            return bytes.is_some_and(|b| self.providers.put(to, b) == Access::Ready);
        }
        let list = (pd, slot.sges(usize::from(wqe.num_sge)), at);
        self.copy_pieces(list, len as usize, false, |source, part, _| {
            self.providers.transfer(source, 0, to.wrapping_add(part.start as u64), part.len())
        })
        .is_ok()
    }

    /// Where bytes `at..` of a send request, at most `most`, lie in host memory: the number of
    /// pieces, and of their bytes. (0, 0): a key is refused, or the memory is not the host's.
    pub(in crate::roce) fn host_pieces(
        &self,
        pd: u32,
        slot: &SlotRef<'_, SendWqe>,
        at: u64,
        most: u64,
        pieces: &mut [Piece; PIECES],
    ) -> (usize, u64) {
        let (mut count, mut len) = (0, 0);
        for sge in from_byte(slot.sges(usize::from(slot.header().num_sge)), at) {
            if len == most || count == PIECES {
                break;
            }
            let n = u64::from(sge.length).min(most - len);
            match self.piece(pd, &sge, n as u32, false) {
                Ok(source) if source.provider == 0 => {
                    pieces[count] = Piece { addr: source.addr, len: n }
                }
                _ => return (0, 0),
            }
            (count, len) = (count + 1, len + n);
        }
        (count, len)
    }
}

/// A list that ends before the bytes that are to be copied.
#[cold]
fn too_short() -> CopyError {
    CopyError::Refused(CauseCode::LocalRange, 0, 0)
}

/// A piece whose memory was unmapped or truncated.
#[cold]
fn memory_gone(sge: &Sge) -> CopyError {
    CopyError::Refused(CauseCode::LocalMemoryGone, sge.lkey, sge.addr)
}
