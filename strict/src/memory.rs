//! Registered memory, and the bytes of requests.

use crate::peek::peek;
use gdrcore_core::mem::host;
use gdrcore_core::verbs::types::Sge;
use std::collections::HashMap;

/// Most bytes of a piece of a request that are looked at. Of a longer piece these are as many at
/// its begin as at its end.
const LOOK_MAX: u64 = 1 << 20;
/// Bytes that are read at a time.
const CHUNK: usize = 4096;
/// Most pieces of a request: more than any device has. A wrong number may be any.
const PIECES_MAX: usize = 64;
/// Most bytes of a receive buffer's end that are kept.
const TAIL_MAX: usize = 512;

/// The bytes of the program that a memory region covers.
#[derive(Clone, Debug)]
pub struct MrRange {
    addr: u64,
    len: u64,
    iova: u64,
}

impl MrRange {
    /// `len` bytes at `addr`, whose first byte has the address `iova` in requests.
    pub fn new(addr: u64, len: u64, iova: u64) -> MrRange {
        MrRange { addr, len, iova }
    }

    /// What it is called in reports.
    pub fn words(&self) -> String {
        mr_words(self.addr, self.len)
    }
}

/// What a region is called in reports.
pub fn mr_words(addr: u64, len: u64) -> String {
    format!("MR of {len} bytes at {addr:#x}")
}

/// A region, by its device and local key.
pub type MrKey = (usize, u32);

/// All regions whose memory is the program's, by device and local key.
#[derive(Default)]
pub struct MrRanges(pub(crate) HashMap<MrKey, MrRange>);

impl MrRanges {
    /// The place in memory of a piece of a request. `None`: the region is not known, or it does not
    /// hold the piece, which the device will say.
    fn locate(&self, device: usize, sge: &Sge) -> Option<u64> {
        let region = self.0.get(&(device, sge.lkey))?;
        let offset = sge.addr.checked_sub(region.iova)?;
        let end = offset.checked_add(u64::from(sge.length))?;
        (end <= region.len).then(|| region.addr + offset)
    }

    /// The pieces of a request.
    pub(crate) fn pieces(&self, device: usize, list: usize, n: i32, is_read: bool) -> Vec<Piece> {
        let n = usize::try_from(n).unwrap_or(0).min(PIECES_MAX);
        let sges = (0..n).map_while(|i| peek(list.checked_add(i * size_of::<Sge>())?));
        sges.map(|sge: Sge| {
            let addr = self.locate(device, &sge);
            let len = u64::from(sge.length);
            let sum = addr.filter(|_| is_read).and_then(|at| checksum(at, len));
            Piece { lkey: sge.lkey, addr, len, sum }
        })
        .collect()
    }
}

/// A piece of a request.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Its local key.
    pub lkey: u32,
    /// `None`: not known.
    pub addr: Option<u64>,
    /// Its bytes.
    pub len: u64,
    /// The sum of its bytes when it was posted, if the device reads it.
    sum: Option<u64>,
}

/// Memory that cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

impl Piece {
    #[cfg(test)]
    pub fn at(addr: u64, len: u64) -> Piece {
        Piece { lkey: 0, addr: Some(addr), len, sum: None }
    }

    /// Whether two pieces have a byte in common, and where.
    pub fn overlap(&self, other: &Piece) -> Option<u64> {
        let (a, b) = (self.addr?, other.addr?);
        (self.len > 0 && other.len > 0 && a < b + other.len && b < a + self.len).then(|| a.max(b))
    }

    /// Whether the bytes are others than those of the post.
    pub fn has_changed(&self) -> Result<bool, Gone> {
        match (self.addr, self.sum) {
            (Some(at), Some(sum)) => Ok(checksum(at, self.len).ok_or(Gone)? != sum),
            _ => Ok(false),
        }
    }
}

/// A sum of bytes; `None`: they cannot be read.
fn checksum(at: u64, len: u64) -> Option<u64> {
    if len <= LOOK_MAX {
        return sum_of(at, len, len);
    }
    let half = LOOK_MAX / 2;
    sum_of(at + len - half, half, sum_of(at, half, len)?)
}

fn sum_of(mut at: u64, mut len: u64, mut sum: u64) -> Option<u64> {
    let mut bytes = [0; CHUNK];
    while len > 0 {
        let n = len.min(CHUNK as u64) as usize;
        bytes[n..n.next_multiple_of(8)].fill(0);
        host::fetch(at, &mut bytes[..n]).ok()?;
        for word in bytes[..n.next_multiple_of(8)].chunks_exact(8) {
            let word = u64::from_ne_bytes([
                word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
            ]);
            sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        (at, len) = (at + n as u64, len - n as u64);
    }
    Some(sum)
}

/// The end of a receive buffer, as it was when it was posted: the device does not write it if the
/// message is shorter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    /// Its place in the message and in memory.
    offset: u64,
    addr: u64,
    bytes: Vec<u8>,
}

impl Tail {
    /// The end of the last piece.
    pub fn from_pieces(pieces: &[Piece]) -> Tail {
        let Some(last) = pieces.last() else { return Tail::default() };
        let before: u64 = pieces.iter().map(|p| p.len).sum::<u64>() - last.len;
        let kept = last.len.min(TAIL_MAX as u64);
        let from = last.len - kept;
        let Some(addr) = last.addr.map(|at| at + from) else { return Tail::default() };
        let mut bytes = vec![0; kept as usize];
        if host::fetch(addr, &mut bytes).is_err() {
            bytes.clear();
        }
        Tail { offset: before + from, addr, bytes }
    }

    /// Compares what lies behind a message of so many bytes: the offset of the first byte that is
    /// another, or what became of the memory.
    pub fn changed(&self, message: u64) -> Result<Option<u64>, Gone> {
        let skip = message.saturating_sub(self.offset) as usize;
        let Some(then) = self.bytes.get(skip..).filter(|b| !b.is_empty()) else {
            return Ok(None);
        };
        let mut now = vec![0; then.len()];
        host::fetch(self.addr + skip as u64, &mut now).map_err(|_| Gone)?;
        let first = then.iter().zip(&now).position(|(then, now)| then != now);
        Ok(first.map(|n| self.offset + (skip + n) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region_of(memory: &[u8], iova: u64) -> MrRange {
        MrRange::new(memory.as_ptr() as u64, memory.len() as u64, iova)
    }

    #[test]
    fn a_piece_lies_where_its_region_says() {
        let mut memory = vec![7u8; 4096 + 64];
        let mut regions = MrRanges::default();
        regions.0.insert((1, 9), region_of(&memory, 0x1000));
        let sges = [
            Sge { addr: 0x1040, length: 4096, lkey: 9 },
            Sge { addr: 0x1041, length: 4096, lkey: 9 },
            Sge { addr: 0xfff, length: 1, lkey: 9 },
        ];
        let pieces = regions.pieces(1, sges.as_ptr() as usize, 3, true);
        let at = memory.as_ptr() as u64 + 64;
        assert_eq!(pieces.iter().map(|p| p.addr).collect::<Vec<_>>(), [Some(at), None, None]);
        assert_eq!(pieces[0].has_changed(), Ok(false));
        memory[64 + 4095] = 8;
        assert_eq!(pieces[0].has_changed(), Ok(true));
        // The number of pieces may be anything.
        let many = vec![sges[0]; PIECES_MAX + 1];
        assert_eq!(regions.pieces(1, many.as_ptr() as usize, i32::MAX, false).len(), PIECES_MAX);
        let none = regions.pieces(2, sges.as_ptr() as usize, 1, true);
        assert_eq!((none[0].addr, none[0].has_changed()), (None, Ok(false)));
    }

    #[test]
    fn pieces_overlap_by_their_bytes() {
        let piece = Piece::at;
        assert_eq!(piece(100, 10).overlap(&piece(109, 1)), Some(109));
        assert_eq!(piece(100, 10).overlap(&piece(110, 1)), None);
        assert_eq!(piece(100, 0).overlap(&piece(90, 20)), None);
    }

    #[test]
    fn the_end_of_a_receive_buffer_is_compared_behind_the_message() {
        let mut memory = vec![0u8; 2048];
        let mut regions = MrRanges::default();
        regions.0.insert((1, 9), region_of(&memory, 0));
        let sge = Sge { addr: 0, length: 2048, lkey: 9 };
        let tail = Tail::from_pieces(&regions.pieces(1, &raw const sge as usize, 1, false));
        memory[..1900].fill(1);
        assert_eq!(tail.changed(1900), Ok(None));
        assert_eq!(tail.changed(1800), Ok(Some(1800)));
        assert_eq!(tail.changed(2048), Ok(None));
        memory[2047] = 1;
        assert_eq!(tail.changed(1900), Ok(Some(2047)));
        assert_eq!(tail.changed(0), Ok(Some(1536)));
    }
}
