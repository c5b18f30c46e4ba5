//! Memory of a peer that this process writes by itself: the interface to the code that maps it.

/// Shortest WRITE that is copied so. Shorter ones go through the ring, where they take no longer
/// and the peer's core shares the work.
pub const COPY_REMOTE_MIN: u64 = 64 << 10;

/// Most pieces of a request that one call takes.
pub const PIECES: usize = 16;

/// Bytes that are copied before the engine turns to other work: some 25 us, or 100 us by calls.
pub(crate) const COPY_BUDGET: u64 = 1 << 20;

/// Memory of this process, on its way into a peer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Its first byte.
    pub addr: u64,
    /// How long it is.
    pub len: u64,
}

/// Memory of one peer that this process writes by itself.
pub trait PeerMemory {
    /// Address in this process of `len` bytes at `addr` of the peer's memory, if `rkey` permits
    /// WRITEs there by our QP `from_qpn` to its QP `qpn`; `None`: not mapped (yet). The peer does
    /// not revoke them before [`PeerMemory::unpin`], which follows at once.
    fn pin(&mut self, from_qpn: u32, qpn: u32, rkey: u32, addr: u64, len: u64) -> Option<u64>;
    /// Ends the use of the bytes of [`PeerMemory::pin`].
    fn unpin(&mut self);
    /// As [`PeerMemory::pin`], for memory that is not mapped here: an address of the peer's
    /// process, for [`PeerMemory::copy_remote`] alone. Called for WRITEs of [`COPY_REMOTE_MIN`]
    /// bytes and more.
    fn pin_remote(
        &mut self,
        _from_qpn: u32,
        _qpn: u32,
        _rkey: u32,
        _addr: u64,
        _len: u64,
    ) -> Option<u64> {
        None
    }
    /// Copies at most [`PIECES`] pieces, one behind the other, to the address that
    /// [`PeerMemory::pin_remote`] returned. The last aligned word (up to 8 bytes) is stored after
    /// all others. False: not all bytes were written.
    fn copy_remote(&mut self, _pieces: &[Piece], _to: u64) -> bool {
        false
    }
}

/// No memory.
impl PeerMemory for () {
    fn pin(&mut self, _: u32, _: u32, _: u32, _: u64, _: u64) -> Option<u64> {
        None
    }
    fn unpin(&mut self) {}
}
