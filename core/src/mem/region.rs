//! Memory regions and windows: one table, one space of keys.
//!
//! Read first: IBTA volume 1, 10.6 "Memory management" (regions, windows, keys), and 10.6.7 for the
//! rules of access checks; rxe's `rxe_mr.c` and `rxe_mw.c` are the software model of the same.
//!
//! A key is 32 bits: the index of its slot in the upper 20, a random part below. Of a window's
//! random part the low 8 bits are the program's own (`ibv_inc_rkey`). Keys that a peer could guess
//! are a known attack, so the random part is drawn from [`crate::random`], and slots are used in an
//! order that is as secret: seeing keys tells nothing about others. While a table of 4096 slots has
//! few regions, an attacker must guess 12 bits of the index too, so a key is as good as 24 random
//! bits. When all slots are in use, the 12 bits of the random part remain. The next key of an index
//! always differs from its last one, also in the bits that a program cannot choose, so a key that
//! outlived its region finds nothing. Key 0 is never given out.
//!
//! An address becomes a host pointer here and nowhere else. A region never wraps around the end of
//! the address space (checked at registration), though it may end exactly there.

mod slots;

use crate::arena::{RawSlice, Table, Walk, CHUNK};
use crate::config::{Config, REGIONS_MAX};
use crate::device::{MrAttr, MrReg};
use crate::error::{Error, Result};
use crate::mem::{Target, PROVIDER_MAX, STAND_IN};
use crate::pool::{first_generation, generation_of, handle_of, index_of, stale, tag, tag_of};
use crate::reason::refuse;
use crate::verbs::cause::CauseCode;
use crate::verbs::types::{
    access, Flags, Handle, ACCESS_ALL, ACCESS_PERSISTENT, ACCESS_REMOTE, ACCESS_REMOTE_CHANGE,
};
use slots::Keys;

/// End of the list of free slots.
const NIL: u32 = u32::MAX;

/// Bits of a key below the index.
const RANDOM_BITS: u32 = 12;
const _: () = assert!(REGIONS_MAX == 1 << (32 - RANDOM_BITS));
/// Flags that a window may carry.
const MW_ACCESS: u32 = ACCESS_REMOTE | access::ZERO_BASED;

/// Why a key does not give access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// No such key was ever given, or it is of a kind that is not allowed here.
    Unknown,
    /// The key's region or window is gone or has a new key, as far as its slot can tell.
    Expired,
    /// Of another protection domain, or (a type 2 window) of another QP.
    ForeignPd,
    /// The range leaves the region or window.
    Range,
    /// The region or window does not allow this access.
    Access,
    /// A window that is bound to nothing.
    Unbound,
}

impl KeyError {
    /// The cause to record when the program's own request used the key.
    pub const fn local_cause(self) -> CauseCode {
        match self {
            KeyError::Range => CauseCode::LocalRange,
            KeyError::Access => CauseCode::LocalAccess,
            _ => CauseCode::LocalKey,
        }
    }

    /// The cause to record when the peer's request used the key.
    pub const fn peer_cause(self) -> CauseCode {
        match self {
            KeyError::Range => CauseCode::PeerLeftRange,
            KeyError::Access => CauseCode::PeerLacksAccess,
            _ => CauseCode::PeerUsedBadKey,
        }
    }
}

/// Content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum SlotKind {
    Free,
    Mr,
    /// Window of type 1: of its protection domain.
    Mw1,
    /// Window of type 2: of its protection domain and of the QP that bound it.
    Mw2,
}

/// A region or a window: one cache line, since every packet of a message looks it up.
///
/// A bound window has its own copy of where its bytes are, so both kinds are checked by the same
/// code.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Slot {
    /// The whole key; of a free slot the last one.
    key: u32,
    /// Access flags; 0 while a window is unbound.
    access: u32,
    /// Index of the protection domain.
    pd: u32,
    kind: SlotKind,
    provider: u8,
    /// Windows: whether it opens onto a region.
    bound: bool,
    /// Whether this index had another key before.
    aged: bool,
    /// The address that requests use for the first byte.
    iova: u64,
    /// Bytes; `iova + length` and `addr + length` are at most 2^64.
    length: u64,
    /// The provider's address of the first byte.
    addr: u64,
    /// The provider's number for the memory.
    cookie: u64,
    /// Type 2 windows: QPN that bound it. Free: the free slot before it.
    qp: u32,
    /// Odd while live.
    generation: u32,
    /// Regions: windows bound to it.
    windows: u32,
    /// Free: next free slot. Bound windows: index of the region.
    link: u32,
}

const _: () = assert!(size_of::<Slot>() == 64);

const FREE: Slot = Slot {
    key: 0,
    access: 0,
    pd: 0,
    kind: SlotKind::Free,
    provider: 0,
    bound: false,
    aged: false,
    iova: 0,
    length: 0,
    addr: 0,
    cookie: 0,
    qp: 0,
    generation: 0,
    windows: 0,
    link: NIL,
};

impl Slot {
    /// How far `len` bytes at `addr` lie from the start; `None`: they do not lie within.
    #[inline]
    fn offset(&self, addr: u64, len: u32) -> Option<u64> {
        // rxe rxe_mr.c mr_check_range: A range lies within its region, from the first byte to the
        // last.
        // An address below iova becomes an offset of at least 2^64 - iova, which is no less than
        // the length.
        let offset = addr.wrapping_sub(self.iova);
        (offset <= self.length && u64::from(len) <= self.length - offset).then_some(offset)
    }

    #[inline]
    fn target(&self, offset: u64, len: u32) -> Target {
        // Does not wrap but for an empty range at the end of the address space, which is never
        // accessed.
        Target {
            addr: self.addr.wrapping_add(offset),
            cookie: self.cookie,
            provider: u32::from(self.provider),
            len,
        }
    }

    /// What `content` describes, under the key and handle of this slot.
    fn with_content(&self, content: Slot) -> Slot {
        Slot { key: self.key, aged: self.aged, generation: self.generation, ..content }
    }

    /// As a window, bound to nothing.
    fn closed(&self) -> Slot {
        self.with_content(Slot { pd: self.pd, kind: self.kind, ..FREE })
    }

    fn is_window(&self) -> bool {
        matches!(self.kind, SlotKind::Mw1 | SlotKind::Mw2)
    }
}

/// All regions and windows of an engine.
///
/// # Thread-safety
/// Under the engine's lock.
pub struct Regions {
    slots: Table<Slot>,
    /// A slot that was never used.
    fresh: Slot,
    /// Oldest free slot, so that an index rests as long as possible before it is used again.
    free_head: u32,
    /// Latest free slot.
    free_tail: u32,
    keys: Keys,
    /// Of the order of slots.
    seed: u64,
    /// By protection domain: regions and windows.
    of_pd: RawSlice<u64>,
    /// Windows of type 2 that are bound.
    bound_to_qps: u32,
    mr_live: u32,
    mw_live: u32,
    /// Most regions and windows together.
    most: u64,
    /// Bytes that regions lock, and the most, if that is limited.
    locked: u64,
    memlock: Option<u64>,
}

/// Bytes of a page, by which memory is locked.
const PAGE: u64 = 4096;

/// The provider of a region, as the program named it.
fn named_provider(s: &Slot) -> u32 {
    if u32::from(s.provider) == STAND_IN {
        0
    } else {
        s.provider.into()
    }
}

/// Bytes that a region locks: of the program's own memory, unless it is on demand.
fn locked_bytes(s: &Slot) -> u64 {
    if s.kind != SlotKind::Mr || named_provider(s) != 0 || s.access & access::ON_DEMAND != 0 {
        return 0;
    }
    (s.addr % PAGE).saturating_add(s.length).div_ceil(PAGE).saturating_mul(PAGE)
}

impl Regions {
    /// A table of `initial` slots that can grow to `limit` (at most [`REGIONS_MAX`]), both rounded
    /// up to whole chunks.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where it does not fit, [`Error::Invalid`] for other numbers.
    pub fn carve(walk: &mut Walk, initial: usize, limit: usize, c: &Config) -> Result<Self> {
        if limit > REGIONS_MAX {
            return Err(refuse!(Invalid, "max_mr {limit}: at most {REGIONS_MAX}"));
        }
        let fresh = Slot { generation: first_generation(c.context), ..FREE };
        let slots = Table::carve(walk, initial, limit, |_| fresh)?;
        let mut regions = Regions {
            slots,
            fresh,
            free_head: NIL,
            free_tail: NIL,
            keys: Keys::new(c.seed),
            seed: c.seed,
            of_pd: walk.zeroes(c.table(c.max_pd).next_multiple_of(CHUNK))?,
            bound_to_qps: 0,
            mr_live: 0,
            mw_live: 0,
            most: c.limits.max_mr.unwrap_or(u64::MAX),
            locked: 0,
            memlock: c.limits.memlock,
        };
        regions.append_from(0);
        Ok(regions)
    }

    /// Slots that exist now.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Regions that are registered.
    pub fn mr_live(&self) -> u32 {
        self.mr_live
    }

    /// Windows that are allocated.
    pub fn mw_live(&self) -> u32 {
        self.mw_live
    }

    /// Checks a registration. Returns its slot, without a key.
    fn checked_slot(reg: &MrReg, pd: u32) -> Result<Slot> {
        let zero_based = reg.access & access::ZERO_BASED != 0;
        let iova = if zero_based { 0 } else { reg.iova };
        let named = Flags(reg.access, access::name);
        if reg.access & !ACCESS_ALL != 0 {
            let unknown = Flags(reg.access & !ACCESS_ALL, access::name);
            return Err(refuse!(Invalid, "access {named}: a region takes no {unknown}"));
        }
        if reg.access & ACCESS_PERSISTENT != 0 {
            let lacking = Flags(reg.access & ACCESS_PERSISTENT, access::name);
            let why = "no persistent memory is offered";
            return Err(refuse!(Invalid, "access {named}: {lacking}: {why}"));
        }
        // Linux ib_verbs.h ib_check_mr_access: A region that peers may change must allow local
        // writes.
        if reg.access & ACCESS_REMOTE_CHANGE != 0 && reg.access & access::LOCAL_WRITE == 0 {
            return Err(refuse!(
                Invalid,
                "access {named}: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE"
            ));
        }
        if reg.provider > STAND_IN {
            return Err(refuse!(Invalid, "provider {}: at most {PROVIDER_MAX}", reg.provider));
        }
        for (name, first) in [("addr", reg.addr), ("iova", iova)] {
            if wraps(first, reg.length) {
                let length = reg.length;
                return Err(refuse!(
                    Invalid,
                    "length {length:#x}: from {name} {first:#x} on it leaves the address space"
                ));
            }
        }
        Ok(Slot {
            access: reg.access,
            pd,
            kind: SlotKind::Mr,
            provider: reg.provider as u8,
            iova,
            length: reg.length,
            addr: reg.addr,
            cookie: reg.cookie,
            ..FREE
        })
    }

    /// The bytes that are locked once a region is in place of one that locks `before`; 0 without a
    /// limit.
    ///
    /// # Errors
    /// [`Error::Limit`].
    fn locked_with(&self, fresh: &Slot, before: u64) -> Result<u64> {
        let Some(most) = self.memlock else { return Ok(0) };
        let locked = self.locked.saturating_sub(before).saturating_add(locked_bytes(fresh));
        if locked > most {
            let length = fresh.length;
            return Err(refuse!(
                Limit,
                "length {length:#x}: {locked} bytes would be locked, and memlock is {most}"
            ));
        }
        Ok(locked)
    }

    /// Registers memory for the protection domain with index `pd` (the caller has checked `reg.pd`,
    /// that the provider exists, and that the range can be accessed). A length of 0 is allowed.
    ///
    /// With ZERO_BASED the region's addresses begin at 0, whatever `reg.iova` says.
    ///
    /// # Errors
    /// [`Error::Invalid`]: range wraps around, unknown flags, REMOTE_WRITE or REMOTE_ATOMIC without
    /// LOCAL_WRITE, [`ACCESS_PERSISTENT`], no such provider number. [`Error::NoMemory`]: no free
    /// slot; [`Regions::grow`] may help. [`Error::Limit`].
    pub fn reg(&mut self, reg: &MrReg, pd: u32) -> Result<(Handle, MrAttr)> {
        let fresh = Self::checked_slot(reg, pd)?;
        let locked = self.locked_with(&fresh, 0)?;
        let index = self.take()?;
        self.locked = locked;
        let slot = &mut self.slots[index];
        *slot = slot.with_content(fresh);
        self.count(Some(pd), None);
        self.mr_live += 1;
        let handle = self.handle(index);
        Ok((handle, self.query(handle)?))
    }

    /// Registers the memory of a region of another engine of the device here, under the same handle
    /// and key. `pd`: as in [`Regions::reg`].
    ///
    /// # Errors
    /// As [`Regions::reg`]; [`Error::Busy`]: its index is in use here.
    pub fn adopt_mr(&mut self, mr: Handle, key: u32, reg: &MrReg, pd: u32) -> Result<()> {
        let fresh = Self::checked_slot(reg, pd)?;
        self.adopt(mr, key, fresh)?;
        self.mr_live += 1;
        Ok(())
    }

    /// Allocates a window of another engine of the device here, under the same handle and rkey.
    /// What is bound to it in one engine is unknown to the others.
    ///
    /// # Errors
    /// As [`Regions::mw_alloc`]; [`Error::Busy`]: its index is in use here.
    pub fn adopt_mw(&mut self, mw: Handle, key: u32, pd: u32, mw_type: u32) -> Result<()> {
        let kind = window_kind(mw_type)?;
        self.adopt(mw, key, Slot { pd, kind, ..FREE })?;
        self.mw_live += 1;
        Ok(())
    }

    /// Becomes a copy of the table of another engine of the device: the same regions and windows,
    /// under the same handles and keys. Nothing is bound to the windows here: see
    /// [`Regions::copy_bindings`].
    ///
    /// # Errors
    /// [`Error::NoMemory`]: the table has to grow first. [`Error::Busy`]: it has regions or
    /// windows.
    pub fn copy(&mut self, of: &Regions) -> Result<()> {
        if self.capacity() < of.capacity() {
            // No words: the caller grows the table next.
            return Err(Error::NoMemory);
        }
        if self.mr_live != 0 || self.mw_live != 0 {
            return Err(refuse!(Busy, "max_mr: in use in another engine"));
        }
        for (i, s) in of.slots.iter().enumerate() {
            self.slots[i] = match s.kind {
                SlotKind::Free => *s,
                SlotKind::Mr => Slot { windows: 0, ..*s },
                SlotKind::Mw1 | SlotKind::Mw2 => s.closed(),
            };
        }
        (self.free_head, self.free_tail) = (of.free_head, of.free_tail);
        (self.mr_live, self.mw_live) = (of.mr_live, of.mw_live);
        self.of_pd.copy_from_slice(&of.of_pd);
        self.append_from(of.capacity());
        Ok(())
    }

    /// Takes over what is bound to windows of type 1 in another engine's table, of which this one
    /// is a copy in which nothing is bound. A window of type 2 is its queue pair's alone.
    pub fn copy_bindings(&mut self, of: &Regions) {
        for (i, s) in of.slots.iter().enumerate().filter(|(_, s)| s.kind == SlotKind::Mw1) {
            self.slots[i] = *s;
            if s.bound {
                self.slots[s.link as usize].windows += 1;
            }
        }
    }

    /// Whether a handle is that of a window of type 1.
    pub fn is_type1(&self, mw: Handle) -> bool {
        // No words: who binds such a window is told.
        self.find(mw, tag::MW).is_ok_and(|i| self.slots[i].kind == SlotKind::Mw1)
    }

    /// Registers a region anew, under the same handle and key. Operations under way see one or the
    /// other.
    ///
    /// # Errors
    /// As [`Regions::reg`]; [`Error::StaleHandle`]; [`Error::Busy`] while windows are bound to it.
    pub fn rereg(&mut self, mr: Handle, reg: &MrReg, pd: u32) -> Result<MrAttr> {
        let index = self.unbound(mr)?;
        let fresh = Self::checked_slot(reg, pd)?;
        self.locked = self.locked_with(&fresh, locked_bytes(&self.slots[index]))?;
        let slot = &mut self.slots[index];
        let was = slot.pd;
        *slot = slot.with_content(fresh);
        self.count(Some(pd), Some(was));
        self.query(mr)
    }

    /// Attributes of a region.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn query(&self, mr: Handle) -> Result<MrAttr> {
        let s = &self.slots[self.find(mr, tag::MR)?];
        Ok(MrAttr {
            addr: s.addr,
            length: s.length,
            iova: s.iova,
            lkey: s.key,
            rkey: s.key,
            access: s.access,
            provider: named_provider(s),
        })
    }

    /// Ends a region: its key is [`KeyError::Expired`] from here on.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`] while windows are bound to it.
    pub fn dereg(&mut self, mr: Handle) -> Result<()> {
        let index = self.unbound(mr)?;
        // 0 without a limit.
        self.locked = self.locked.saturating_sub(locked_bytes(&self.slots[index]));
        self.give_back(index);
        self.mr_live -= 1;
        Ok(())
    }

    /// The slot of a region to which no window is bound.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`] while windows are bound to it.
    pub fn unbound(&self, mr: Handle) -> Result<usize> {
        let index = self.find(mr, tag::MR)?;
        match self.slots[index].windows {
            0 => Ok(index),
            n => Err(refuse!(Busy, "mr: {n} windows are bound to it")),
        }
    }

    /// Allocates a window of type 1 or 2, bound to nothing. Returns its handle and its first rkey.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another type, [`Error::NoMemory`] as for [`Regions::reg`].
    pub fn mw_alloc(&mut self, pd: u32, mw_type: u32) -> Result<(Handle, u32)> {
        let kind = window_kind(mw_type)?;
        let index = self.take()?;
        let slot = &mut self.slots[index];
        *slot = slot.with_content(Slot { pd, kind, ..FREE });
        let key = slot.key;
        self.count(Some(pd), None);
        self.mw_live += 1;
        Ok((self.handle(index), key))
    }

    /// Ends a window, bound or not.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn mw_dealloc(&mut self, mw: Handle) -> Result<()> {
        let index = self.find(mw, tag::MW)?;
        self.unbind(index);
        self.give_back(index);
        self.mw_live -= 1;
        Ok(())
    }

    /// Opens a window onto `len` bytes at `addr` of a region, and returns the window's new rkey;
    /// the old one is expired. A type 1 window may be bound anew at any time, and a length of 0
    /// closes it (`mr` is not looked at then). A type 2 window must be closed
    /// ([`Regions::invalidate`]) before it is bound again, and it belongs to that QP.
    ///
    /// Of `rkey` the low 8 bits are the window's new ones, and the others are not looked at. `by`:
    /// the protection domain and the QPN of the QP that binds.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]: window or region. [`Error::Invalid`]: range, flags, a region that is
    /// zero-based, a type 2 window that is bound or has no length.
    /// [`Error::Access`]: another protection domain, the region lacks MW_BIND, or lacks LOCAL_WRITE
    /// where the window lets peers write. Nothing has changed then.
    #[allow(clippy::too_many_arguments)] // the operands of one verb
    pub fn bind(
        &mut self,
        mw: Handle,
        rkey: u32,
        mr: Handle,
        addr: u64,
        len: u64,
        flags: u32,
        by: (u32, u32),
    ) -> Result<u32> {
        let window = self.find(mw, tag::MW)?;
        let w = self.slots[window];
        let type2 = w.kind == SlotKind::Mw2;
        if flags & !MW_ACCESS != 0 {
            let unknown = Flags(flags & !MW_ACCESS, access::name);
            return Err(refuse!(
                Invalid,
                "mw_access_flags {flags:#x}: a window takes no {unknown}"
            ));
        }
        // IBTA C10-72: A window is bound by a queue pair of its own protection domain.
        if w.pd != by.0 {
            return Err(refuse!(Access, "mw: of another protection domain than the QP"));
        }
        // rxe rxe_mw.c rxe_check_bind_mw, type 2: A window of type 2 is bound to at least one byte,
        // while it is not bound.
        if type2 && (w.bound || len == 0) {
            return Err(refuse!(
                Invalid,
                "mw: of type 2, which is bound to at least one byte, after it was invalidated"
            ));
        }
        let opened = match len {
            0 => None,
            _ => Some(self.open(&w, mr, addr, len, flags)?),
        };
        // Everything is checked; from here on nothing fails.
        // rxe rxe_mw.c rxe_do_bind_mw: The new key of a window has the low byte of the key that the
        // request names, and keeps its other bytes.
        let key = (w.key & !0xff) | (rkey & 0xff);
        self.unbind(window);
        if let Some((region, opened)) = opened {
            self.slots[window] = Slot { qp: if type2 { by.1 } else { 0 }, ..opened };
            self.bound_to_qps += u32::from(type2);
            let count = &mut self.slots[region].windows;
            *count = count.saturating_add(1); // at most one per window
        }
        let w = &mut self.slots[window];
        w.aged |= w.key != key;
        w.key = key;
        Ok(key)
    }

    /// The index of the region, and the window as it will be when open.
    fn open(&self, w: &Slot, mr: Handle, addr: u64, len: u64, flags: u32) -> Result<(usize, Slot)> {
        let region = self.find(mr, tag::MR)?;
        let r = &self.slots[region];
        let writes = flags & ACCESS_REMOTE_CHANGE != 0;
        // rxe rxe_mw.c rxe_check_bind_mw, region: A window opens onto a region of its protection
        // domain that allows it, and gives peers no right to change what may not be written
        // locally.
        if r.pd != w.pd {
            return Err(refuse!(Access, "mr: of another protection domain than the window"));
        }
        if r.access & access::MW_BIND == 0 || (writes && r.access & access::LOCAL_WRITE == 0) {
            let (has, wants) = (Flags(r.access, access::name), Flags(flags, access::name));
            return Err(refuse!(
                Access,
                "mr: it allows {has}; a window with {wants} \
                 needs MW_BIND, to be written LOCAL_WRITE"
            ));
        }
        let offset = addr.wrapping_sub(r.iova);
        if r.access & access::ZERO_BASED != 0 {
            return Err(refuse!(Invalid, "mr: zero-based, no window opens onto it"));
        }
        if offset > r.length || len > r.length - offset {
            let (first, all) = (r.iova, r.length);
            return Err(refuse!(
                Invalid,
                "length {len:#x} at addr {addr:#x}: the region has {all:#x} bytes at {first:#x}"
            ));
        }
        let slot = Slot {
            access: flags,
            provider: r.provider,
            bound: true,
            iova: if flags & access::ZERO_BASED != 0 { 0 } else { addr },
            length: len,
            addr: r.addr.wrapping_add(offset),
            cookie: r.cookie,
            link: region as u32,
            ..*w
        };
        Ok((region, slot))
    }

    /// LOCAL_INV and SEND with invalidate: closes the type 2 window that has this rkey and is bound
    /// to `qp`.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no window of type 2, or not bound. [`Error::Access`]: of another
    /// protection domain or QP.
    pub fn invalidate(&mut self, rkey: u32, pd: u32, qp: u32) -> Result<()> {
        let index = (rkey >> RANDOM_BITS) as usize;
        // rxe rxe_mw.c rxe_check_invalidate_mw: A window of type 2 is closed by its present key,
        // and only for the queue pair to which it is bound.
        let bound = |s: &&Slot| s.key == rkey && s.kind == SlotKind::Mw2 && s.bound;
        // No words: any packet can cause this, and the caller notes a cause.
        let s = self.slots.get(index).filter(bound).ok_or(Error::Invalid)?;
        if s.pd != pd || s.qp != qp {
            return Err(Error::Access);
        }
        self.unbind(index);
        Ok(())
    }

    /// Closes the type 2 windows of a QP that goes away or to RESET. Looks at every slot if any is
    /// bound: control plane only.
    pub fn unbind_qp(&mut self, qp: u32) {
        if self.bound_to_qps == 0 {
            return;
        }
        for i in 0..self.slots.len() {
            let s = &self.slots[i];
            if s.kind == SlotKind::Mw2 && s.bound && s.qp == qp {
                self.unbind(i);
            }
        }
    }

    /// Checks a piece of a local buffer. Zero bytes need a valid key too; callers that allow any
    /// key for an empty piece do not ask.
    ///
    /// # Errors
    /// [`KeyError`]. A window's key is [`KeyError::Unknown`] here.
    ///
    /// # Cost
    /// One cache line.
    #[inline]
    pub fn local(
        &self,
        lkey: u32,
        pd: u32,
        addr: u64,
        len: u32,
        write: bool,
    ) -> Result<Target, KeyError> {
        let s = self.slots.get((lkey >> RANDOM_BITS) as usize).ok_or(KeyError::Unknown)?;
        if s.key != lkey || s.kind != SlotKind::Mr {
            return Err(why_unknown(s, lkey));
        }
        if s.pd != pd {
            return Err(KeyError::ForeignPd);
        }
        if write && s.access & access::LOCAL_WRITE == 0 {
            return Err(KeyError::Access);
        }
        let offset = s.offset(addr, len).ok_or(KeyError::Range)?;
        Ok(s.target(offset, len))
    }

    /// As [`Regions::local`] of host memory that may be written: its address, and no reason of a
    /// refusal.
    ///
    /// # Cost
    /// One cache line.
    #[inline(always)]
    pub fn local_host(&self, lkey: u32, pd: u32, addr: u64, len: u32) -> Option<u64> {
        let s = self.slots.get((lkey >> RANDOM_BITS) as usize)?;
        if s.key != lkey
            || s.kind != SlotKind::Mr
            || s.pd != pd
            || s.provider != 0
            || s.access & access::LOCAL_WRITE == 0
        {
            return None;
        }
        s.offset(addr, len).map(|offset| s.target(offset, len).addr)
    }

    /// Checks what a peer's request names: a region or an open window with all the flags of `need`.
    /// `qp` is the QPN that received the request.
    ///
    /// # Errors
    /// [`KeyError`].
    ///
    /// # Cost
    /// One cache line.
    #[inline(always)]
    pub fn remote(
        &self,
        rkey: u32,
        pd: u32,
        qp: u32,
        addr: u64,
        len: u32,
        need: u32,
    ) -> Result<Target, KeyError> {
        let s = self.keyed(rkey, pd, qp, need)?;
        let offset = s.offset(addr, len).ok_or(KeyError::Range)?;
        Ok(s.target(offset, len))
    }

    /// As [`Regions::remote`], for a request without a range.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn remote_key(&self, rkey: u32, pd: u32, qp: u32, need: u32) -> Result<(), KeyError> {
        self.keyed(rkey, pd, qp, need).map(|_| ())
    }

    /// The region or open window that a peer's key names, if it gives all the rights of `need`.
    #[inline(always)]
    fn keyed(&self, rkey: u32, pd: u32, qp: u32, need: u32) -> Result<&Slot, KeyError> {
        let s = self.slots.get((rkey >> RANDOM_BITS) as usize).ok_or(KeyError::Unknown)?;
        if s.key != rkey || s.kind == SlotKind::Free {
            return Err(why_unknown(s, rkey));
        }
        if s.pd != pd {
            return Err(KeyError::ForeignPd);
        }
        if s.kind != SlotKind::Mr {
            if !s.bound {
                return Err(KeyError::Unbound);
            }
            if s.kind == SlotKind::Mw2 && s.qp != qp {
                return Err(KeyError::ForeignPd);
            }
        }
        // rxe rxe_mr.c lookup_mr: A key gives access to its region in the same protection domain,
        // with the rights that the region has.
        if s.access & need != need {
            return Err(KeyError::Access);
        }
        Ok(s)
    }

    /// The whole region of host memory that this key names, of this protection domain; `None`:
    /// there is none, or the key is a window's.
    pub fn whole_region(&self, rkey: u32, pd: u32) -> Option<MrAttr> {
        let index = (rkey >> RANDOM_BITS) as usize;
        let s = self.slots.get(index)?;
        let is = s.key == rkey && s.kind == SlotKind::Mr && s.pd == pd && s.provider == 0;
        is.then(|| self.query(self.handle(index)).ok()).flatten()
    }

    fn handle(&self, index: usize) -> Handle {
        let s = &self.slots[index];
        let tag = if s.is_window() { tag::MW } else { tag::MR };
        handle_of(s.generation, tag, index)
    }

    /// The slot of a live handle of this kind.
    fn find(&self, h: Handle, tag: u8) -> Result<usize> {
        let index = index_of(h);
        let s = self.slots.get(index).ok_or_else(|| stale(tag, h))?;
        if s.kind == SlotKind::Free || self.handle(index) != h || tag_of(h) != tag {
            return Err(stale(tag, h));
        }
        Ok(index)
    }

    /// Puts what `fresh` describes into the free slot that a handle of another engine names, with
    /// that handle's generation and a key of that engine.
    fn adopt(&mut self, h: Handle, key: u32, fresh: Slot) -> Result<()> {
        let index = index_of(h);
        if index >= self.slots.len() {
            // No words: `grow` gives it.
            return Err(Error::NoMemory);
        }
        self.unlink(index as u32)?;
        let slot = &mut self.slots[index];
        *slot = Slot { key, aged: slot.aged, generation: generation_of(h), ..fresh };
        self.count(Some(fresh.pd), None);
        Ok(())
    }

    /// Closes a window; one that is closed stays so.
    fn unbind(&mut self, index: usize) {
        let w = &mut self.slots[index];
        if !w.bound {
            return;
        }
        let region = w.link as usize;
        self.bound_to_qps -= u32::from(w.kind == SlotKind::Mw2);
        *w = w.closed();
        let count = &mut self.slots[region].windows;
        *count = count.saturating_sub(1);
    }
}

/// The kind of a window of type 1 or 2.
fn window_kind(mw_type: u32) -> Result<SlotKind> {
    match mw_type {
        1 => Ok(SlotKind::Mw1),
        2 => Ok(SlotKind::Mw2),
        _ => Err(refuse!(Invalid, "mw_type {mw_type}: 1 or 2")),
    }
}

/// Why a key's slot has no live object of that key: the key is expired, or was never given.
#[cold]
fn why_unknown(s: &Slot, key: u32) -> KeyError {
    // A slot records its last key alone. Another one of a slot that has had several counts as
    // expired.
    if s.aged && (s.key != key || s.kind == SlotKind::Free) {
        KeyError::Expired
    } else {
        KeyError::Unknown
    }
}

/// Whether `length` bytes at `start` run over the end of the address space.
fn wraps(start: u64, length: u64) -> bool {
    length != 0 && start.checked_add(length - 1).is_none()
}

#[cfg(test)]
mod tests;
