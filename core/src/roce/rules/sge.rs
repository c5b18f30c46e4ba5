//! The scatter/gather lists of work requests: bytes between them and packets, or the peer's memory.
//!
//! Keys are checked piece by piece and anew for every packet, since a region may end on the way.

use crate::mem::{Access, KeyError, RegisteredMemory, Target, Token, TransferId};
use crate::ring::SlotRef;
use crate::roce::peer_memory::{Piece, PIECES};
use crate::verbs::cause::CauseCode;
use crate::verbs::types::Sge;
use crate::verbs::wqe::{from_byte, SendWqe};

/// Failure of a copy between packets and the program's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyError {
    /// Memory is not ready: a provider's token.
    Pending(u32, Token),
    /// No staging room.
    Busy,
    /// Never: the reason, lkey, address.
    Refused(CauseCode, u32, u64),
}

/// A piece whose key was refused.
#[cold]
fn refused(e: KeyError, sge: &Sge) -> CopyError {
    let cause = match e {
        KeyError::Range => CauseCode::LocalRange,
        KeyError::Access => CauseCode::LocalAccess,
        _ => CauseCode::LocalKey,
    };
    CopyError::Refused(cause, sge.lkey, sge.addr)
}

impl RegisteredMemory {
    /// The memory of a piece, or of its beginning.
    #[inline(always)]
    fn piece(&self, pd: u32, sge: &Sge, len: u32, writes: bool) -> Result<Target, KeyError> {
        self.regions.local(sge.lkey, pd, sge.addr, len, writes)
    }

    /// Copies `src` to byte `offset` of a list. `Some`: the bytes are taken, and have landed when
    /// the provider says so of the token.
    #[inline]
    pub(in crate::roce) fn scatter(
        &self,
        pd: u32,
        sges: &[Sge],
        offset: u64,
        mut src: &[u8],
    ) -> Result<Option<(u8, Token)>, CopyError> {
        let mut pending = None;
        for sge in from_byte(sges, offset) {
            if src.is_empty() {
                break;
            }
            let (bytes, rest) = src.split_at(src.len().min(sge.length as usize));
            let target =
                self.piece(pd, &sge, bytes.len() as u32, true).map_err(|e| refused(e, &sge))?;
            match self.providers.place(&target, 0, bytes) {
                Access::Ready => {}
                Access::Pending(token) => pending = Some((target.provider as u8, token)),
                Access::Busy => return Err(CopyError::Busy),
                Access::Fault => return Err(gone(&sge)),
            }
            src = rest;
        }
        if src.is_empty() {
            Ok(pending)
        } else {
            Err(too_short())
        }
    }

    /// Copies bytes `offset..` of a send request, inline or in pieces, into `dst`.
    #[inline]
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

    /// Not inline, so that inline data does not pay for the registers of this.
    #[inline(never)]
    fn gather_pieces(
        &self,
        pd: u32,
        sges: &[Sge],
        offset: u64,
        mut dst: &mut [u8],
        of: TransferId,
    ) -> Result<(), CopyError> {
        for sge in from_byte(sges, offset) {
            if dst.is_empty() {
                break;
            }
            let n = dst.len().min(sge.length as usize);
            let (bytes, rest) = core::mem::take(&mut dst).split_at_mut(n);
            let target = self.piece(pd, &sge, n as u32, false).map_err(|e| refused(e, &sge))?;
            match self.providers.fetch(&target, 0, bytes, TransferId { left: sge.length, ..of }) {
                Access::Ready => {}
                Access::Pending(token) => return Err(CopyError::Pending(target.provider, token)),
                Access::Busy => return Err(CopyError::Busy),
                Access::Fault => return Err(gone(&sge)),
            }
            dst = rest;
        }
        if dst.is_empty() {
            Ok(())
        } else {
            Err(too_short())
        }
    }

    /// Copies `len` bytes of a send request, from byte `at` on, to an address of this process.
    /// False: some of them could not be read, or not be written.
    pub(in crate::roce) fn transfer(
        &self,
        pd: u32,
        slot: &SlotRef<'_, SendWqe>,
        at: u64,
        mut to: u64,
        mut len: u64,
    ) -> bool {
        let wqe = slot.header();
        if wqe.inline != 0 {
            let bytes = slot.tail().get(at as usize..).and_then(|b| b.get(..len as usize));
            return bytes.is_some_and(|b| self.providers.put(to, b) == Access::Ready);
        }
        for sge in from_byte(slot.sges(usize::from(wqe.num_sge)), at) {
            let n = u64::from(sge.length).min(len);
            let Ok(source) = self.piece(pd, &sge, n as u32, false) else { return false };
            if self.providers.transfer(&source, 0, to, n as usize) != Access::Ready {
                return false;
            }
            (to, len) = (to.wrapping_add(n), len - n);
            if len == 0 {
                return true;
            }
        }
        false
    }

    /// Where bytes `at..` of a send request lie in host memory: the pieces, and how many bytes they
    /// have, `most` at most. None where a key is refused, or the memory is not the host's.
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
fn gone(sge: &Sge) -> CopyError {
    CopyError::Refused(CauseCode::LocalMemoryGone, sge.lkey, sge.addr)
}
