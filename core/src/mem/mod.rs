//! Memory: regions, windows and keys, and how bytes get in and out of them.
//!
//! [`region`] turns a key and a range into a checked [`Target`]; [`Providers`] moves bytes between
//! a target and the engine's own buffers. Host memory ([`host`]) is built in as provider 0 and
//! answers at once; other kinds (GPU memory) answer through [`Memory`] and may say `Pending`. MR
//! bytes are never Rust references: the program may change, unmap or truncate them at any moment.

#[allow(unsafe_code)]
pub mod host;
pub mod region;
pub mod weak;

use crate::device::MrReg;
use crate::verbs::types::{access, Handle};
use crate::wire::icrc::crc32;
pub use region::{KeyError, Regions};

/// Result of an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Done: the bytes are copied or placed.
    Ready,
    /// Under way; ask [`Providers::poll`] with the token.
    Pending(Token),
    /// No staging room now. Treat the packet as lost: the peer sends it again.
    Busy,
    /// The memory is gone (unmapped, truncated), or the provider cannot do this.
    Fault,
}

/// A provider's name for an access under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token(pub u64);

/// An 8-byte atomic on memory, in the CPU's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` where the memory holds `compare`.
    CmpSwap {
        /// The value compared with.
        compare: u64,
        /// The value stored if equal.
        swap: u64,
    },
    /// Adds, wrapping around at 2^64.
    FetchAdd(u64),
    /// Stores in one piece, whatever the memory holds. The value before has no meaning.
    Store(u64),
}

/// Which message an access serves, and how much of it follows.
///
/// Memory that is staged may fetch ahead of the wire, but only what this message will send: bytes
/// that a program changes before it posts the next one must be read anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferId {
    /// Its number among the messages of one device. A message that is sent again keeps it, and no
    /// other message gets it within a second.
    pub id: u64,
    /// Bytes of it, from this access on, that lie in a row.
    pub left: u32,
}

impl TransferId {
    /// The send request at a ring index of a queue pair. QPNs rest before they are used again, and
    /// indexes are not reset at RESET.
    #[inline]
    pub const fn request(qpn: u32, index: u32, left: u32) -> TransferId {
        TransferId { id: (qpn as u64) << 32 | index as u64, left }
    }

    /// The answer of a queue pair to the READ or atomic at a PSN. PSNs repeat after 16 million
    /// packets.
    #[inline]
    pub const fn answer(qpn: u32, psn: u32, left: u32) -> TransferId {
        TransferId { id: 1 << 63 | (qpn as u64) << 32 | psn as u64, left }
    }

    /// Whether it is the answer to a READ or atomic.
    #[inline]
    pub const fn is_answer(self) -> bool {
        self.id >> 63 != 0
    }
}

/// A kind of memory that is not the host's.
///
/// `cookie` is what the registration named, `addr` the provider's address of the first byte; the
/// engine has checked that the range lies within the registered memory. No call may block or
/// allocate.
pub trait Memory: Sync {
    /// Copies from memory into `dst`. `Ready`: copied now. `Pending(t)`: nothing is copied yet;
    /// once `poll(t)` is `Ready`, the same call again is `Ready`.
    fn fetch(&self, cookie: u64, addr: u64, dst: &mut [u8], of: TransferId) -> Access;
    /// Announces a fetch from here on: memory that is staged may begin. The call has no result.
    fn ahead(&self, _cookie: u64, _addr: u64, _of: TransferId) {}
    /// Takes bytes for the memory. `Ready`: placed. `Pending(t)`: taken, `src` may be reused,
    /// visible once `poll(t)` is `Ready`. Placements of one provider become visible in the order of
    /// the calls. In memory that stands in for the host's they need not: there `poll(t)` is `Ready`
    /// when all placements of the queue pair up to `t` are visible.
    fn place(&self, cookie: u64, addr: u64, src: &[u8]) -> Access;
    /// Asks after an access under way: `Ready`, `Pending` (the same token) or `Fault`.
    fn poll(&self, token: Token) -> Access;
    /// An atomic at an address aligned to 8 bytes, ordered after earlier placements. Returns the
    /// value before. `Err(Fault)`: gone, or the provider has no atomics; `Err(Pending(t))`: nothing
    /// done yet, ask again with the same operation once `poll(t)` is `Ready`; it is executed
    /// exactly once for a message.
    fn atomic(&self, cookie: u64, addr: u64, op: AtomicOp, of: TransferId) -> Result<u64, Access>;
    /// A queue pair or a region ends: memory that can place at once what it has taken does so
    /// before the call returns.
    fn finish(&self) {}
}

/// A checked piece of registered memory.
///
/// It is only a description: what it describes may be deregistered later. The engine therefore
/// checks keys anew for every packet, and keeps a target no longer than it holds its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The provider's address of the first byte (host memory: a pointer).
    pub addr: u64,
    /// The provider's own number for the memory.
    pub cookie: u64,
    /// Which kind of memory; 0 is the host's.
    pub provider: u32,
    /// Length in bytes.
    pub len: u32,
}

/// Largest number of a provider; 0 is host memory and always there.
pub const PROVIDER_MAX: u32 = 4;
/// The number of the memory that stands in for the host's ([`Providers::stand_in`]).
pub const STAND_IN: u32 = PROVIDER_MAX + 1;

/// The kinds of memory that an engine knows.
///
/// # Thread-safety
/// Any thread; each [`Memory`] sees calls only from the holder of the engine's lock, but a device
/// of several engines has one for all of them.
#[derive(Clone, Copy)]
pub struct Providers {
    others: [Option<&'static dyn Memory>; STAND_IN as usize],
}

/// The region tables of the other engines of a device.
pub trait OtherTables: Sync {
    /// Makes a change in all of them, with all their locks held. `own`: the engine that asks, whose
    /// lock the caller holds. False: another engine is at work, and nothing was changed. It does
    /// not wait for a lock, because two engines may ask at the same time.
    fn change(&self, own: usize, change: &mut dyn FnMut(&mut Regions)) -> bool;
}

/// The memory that an engine may reach.
pub struct RegisteredMemory {
    /// Memory regions, windows and their keys.
    pub regions: Regions,
    /// Providers, which move their bytes.
    pub providers: Providers,
    /// Of a device of several engines: the other ones, and the number of this one.
    pub others: Option<(&'static dyn OtherTables, usize)>,
}

impl RegisteredMemory {
    /// Binds a window. One of type 1 belongs to the whole protection domain, and is bound in all
    /// engines of the device. `None`: another engine is at work; try again soon.
    pub fn bind(
        &mut self,
        mw: Handle,
        bind: impl Fn(&mut Regions) -> crate::Result<u32>,
    ) -> Option<crate::Result<u32>> {
        let mut all = Ok(0);
        if let Some((others, own)) = self.others.filter(|_| self.regions.is_type1(mw)) {
            let change = &mut |regions: &mut Regions| all = all.and_then(|_| bind(regions));
            if !others.change(own, change) {
                return None;
            }
        }
        // The tables are the same, and so are the outcomes.
        Some(all.and_then(|_| bind(&mut self.regions)))
    }
}

impl Default for Providers {
    fn default() -> Self {
        Self::new()
    }
}

impl Providers {
    /// Host memory only.
    pub const fn new() -> Self {
        Providers { others: [None; STAND_IN as usize] }
    }

    /// Makes `memory` provider `n` (1 to [`PROVIDER_MAX`]).
    ///
    /// # Errors
    /// [`crate::Error::Invalid`]: no such number. [`crate::Error::Busy`]: the number is taken.
    pub fn register(&mut self, n: u32, memory: &'static dyn Memory) -> crate::Result<()> {
        let numbered = &mut self.others[..PROVIDER_MAX as usize];
        let slot = (n as usize).checked_sub(1).and_then(|i| numbered.get_mut(i));
        let slot = slot
            .ok_or_else(|| crate::reason::refuse!(Invalid, "provider {n}: 1 to {PROVIDER_MAX}"))?;
        if slot.is_some() {
            return Err(crate::reason::refuse!(Busy, "provider {n}: registered before"));
        }
        *slot = Some(memory);
        Ok(())
    }

    /// Lets `memory` stand in for host memory, in regions that are registered from now on. The
    /// cookie is 1 for a region with RELAXED_ORDERING, else 0.
    pub fn stand_in(&mut self, memory: &'static dyn Memory) {
        self.others[STAND_IN as usize - 1] = Some(memory);
    }

    /// The registration to make for `reg`: of the memory that stands in for the host's, if one
    /// does.
    pub fn of_region(&self, reg: &MrReg) -> MrReg {
        match self.provider(STAND_IN) {
            Some(_) if reg.provider == 0 => {
                let cookie = u64::from(reg.access & access::RELAXED_ORDERING != 0);
                MrReg { provider: STAND_IN, cookie, ..*reg }
            }
            _ => *reg,
        }
    }

    /// A queue pair or a region ends ([`Memory::finish`]).
    #[cold]
    pub fn finish(&self) {
        self.others.iter().flatten().for_each(|memory| memory.finish());
    }

    /// Whether memory can be registered with provider `n`.
    pub fn is_known(&self, n: u32) -> bool {
        n == 0 || n <= PROVIDER_MAX && self.provider(n).is_some()
    }

    #[inline]
    fn provider(&self, n: u32) -> Option<&'static dyn Memory> {
        *self.others.get((n as usize).wrapping_sub(1))?
    }

    /// Copies `dst.len()` bytes at `off` of the target into `dst`.
    ///
    /// # Cost
    /// Host memory: an inlined load for 8 bytes, else one call; no syscall, no allocation.
    #[inline]
    pub fn fetch(&self, target: &Target, off: u32, dst: &mut [u8], of: TransferId) -> Access {
        let Some(addr) = piece(target, off, dst.len()) else { return Access::Fault };
        if target.provider == 0 {
            return answer(host::fetch(addr, dst));
        }
        match self.provider(target.provider) {
            Some(memory) => memory.fetch(target.cookie, addr, dst, of),
            None => Access::Fault,
        }
    }

    /// As [`Providers::fetch`]. When it is `Ready`, the CRC `state` covers `dst` as it is now.
    #[inline]
    pub fn fetch_crc(
        &self,
        target: &Target,
        off: u32,
        dst: &mut [u8],
        of: TransferId,
        state: &mut u32,
    ) -> Access {
        if target.provider != 0 {
            let access = self.fetch(target, off, dst, of);
            if access == Access::Ready {
                *state = crc32(*state, dst);
            }
            return access;
        }
        let Some(addr) = piece(target, off, dst.len()) else { return Access::Fault };
        match host::fetch_crc(addr, dst, *state) {
            Ok(behind) => {
                *state = behind;
                Access::Ready
            }
            Err(host::Fault) => Access::Fault,
        }
    }

    /// Puts `src` at `off` of the target. The order in which a polling program sees the bytes: see
    /// [`host::place`].
    #[inline(always)]
    pub fn place(&self, target: &Target, off: u32, src: &[u8]) -> Access {
        let Some(addr) = piece(target, off, src.len()) else { return Access::Fault };
        if target.provider == 0 {
            return answer(host::place(addr, src));
        }
        match self.provider(target.provider) {
            Some(memory) => memory.place(target.cookie, addr, src),
            None => Access::Fault,
        }
    }

    /// Puts `src` at the start of the target, of host memory alone. The CRC `state` goes on over it
    /// in the same pass. `None`: another kind of memory, or a fault; some bytes may be written.
    #[inline]
    pub fn place_crc(&self, target: &Target, src: &[u8], state: u32) -> Option<u32> {
        let addr = piece(target, 0, src.len()).filter(|_| target.provider == 0)?;
        host::place_crc(addr, src, state).ok()
    }

    /// Copies `len` bytes at `off` of the target to `to`, memory outside this table that a peer let
    /// this process map. Only from host memory; from another kind it is a fault. The bytes are seen
    /// in the order of [`Providers::place`].
    #[inline]
    pub fn transfer(&self, target: &Target, off: u32, to: u64, len: usize) -> Access {
        match piece(target, off, len) {
            Some(addr) if target.provider == 0 => answer(host::transfer(addr, to, len)),
            _ => Access::Fault,
        }
    }

    /// Copies `src` to a host address that the caller has checked.
    #[inline]
    pub fn put(&self, to: u64, src: &[u8]) -> Access {
        answer(host::place_short(to, src))
    }

    /// An 8-byte atomic at the start of the target. Returns the value before.
    ///
    /// # Errors
    /// [`Access::Fault`]: memory gone, target shorter than 8 bytes or misaligned, provider without
    /// atomics.
    #[inline]
    pub fn atomic(&self, target: &Target, op: AtomicOp, of: TransferId) -> Result<u64, Access> {
        let addr = piece(target, 0, 8).ok_or(Access::Fault)?;
        if target.provider == 0 {
            return host_atomic(addr, op);
        }
        self.provider(target.provider).ok_or(Access::Fault)?.atomic(target.cookie, addr, op, of)
    }

    /// Announces a fetch to slow memory.
    pub fn ahead(&self, target: &Target, of: TransferId) {
        if let Some(memory) = self.provider(target.provider) {
            memory.ahead(target.cookie, target.addr, of);
        }
    }

    /// Of two placements of one message, the one after which both have landed. If they are in
    /// different kinds of memory, one kind stands in for the host's; that one places at once what
    /// it holds, and the other placement is returned.
    #[cold]
    pub fn later_of(&self, one: Option<(u8, Token)>, next: (u8, Token)) -> (u8, Token) {
        let Some(one) = one.filter(|one| one.0 != next.0) else { return next };
        self.finish();
        if u32::from(one.0) == STAND_IN {
            next
        } else {
            one
        }
    }

    /// Asks a provider after an access under way.
    pub fn poll(&self, provider: u32, token: Token) -> Access {
        match self.provider(provider) {
            Some(memory) => memory.poll(token),
            // Host memory never says Pending, so nobody can hold such a token.
            None => Access::Fault,
        }
    }
}

#[inline]
fn answer(r: Result<(), host::Fault>) -> Access {
    match r {
        Ok(()) => Access::Ready,
        Err(host::Fault) => Access::Fault,
    }
}

#[inline(always)]
fn host_atomic(addr: u64, op: AtomicOp) -> Result<u64, Access> {
    let old = match op {
        AtomicOp::CmpSwap { compare, swap } => host::cmp_swap(addr, compare, swap),
        AtomicOp::FetchAdd(add) => host::fetch_add(addr, add),
        AtomicOp::Store(value) => host::store(addr, value).map(|()| 0),
    };
    old.map_err(|host::Fault| Access::Fault)
}

/// The address of `len` bytes at `off`, if they lie within the target.
#[inline]
fn piece(target: &Target, off: u32, len: usize) -> Option<u64> {
    // Two 32-bit numbers cannot overflow 64 bits, and a slice is at most 2^63 bytes long.
    let fits = u64::from(off) + len as u64 <= u64::from(target.len);
    // The registration has checked that the region does not wrap around.
    fits.then(|| target.addr.wrapping_add(u64::from(off)))
}

#[cfg(test)]
mod tests;
