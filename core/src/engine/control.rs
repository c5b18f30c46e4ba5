//! The control plane of everything but queue pairs and SRQs: create, query, destroy. These calls
//! may fail, check all arguments, and never touch the OS.

use core::sync::atomic::Ordering;

use super::{EngineGuard, Inner};
use crate::arena::{RawBytes, Table};
use crate::config::{lowered, Config, MIN_CQE};
use crate::device::{MrAttr, MrReg};
use crate::error::{Error, Result};
use crate::mem::{Memory, Regions};
use crate::pool::Pool;
use crate::reason::refuse;
use crate::roce::peer::{Path, Peer, PeerAddr};
use crate::verbs::objects::{Ah, Armed, Cq, CqError, Pd, Qp};
use crate::verbs::shared::{CqShared, Shared};
use crate::verbs::transition::{self, Limits};
use crate::verbs::types::{mtu, AhAttr, Handle, Wc};
use crate::verbs::NONE;
use crate::wire::mtu_code;

/// Largest depth of a queue.
pub const MAX_DEPTH: u32 = 1 << 16;
/// Largest CQ.
pub const MAX_CQE: u32 = 1 << 22;
/// Bytes of one CQ entry in its ring.
const CQE_STRIDE: u32 = 64;

impl Inner {
    pub(super) fn ring<T>(&mut self, capacity: u32, stride: u32) -> Result<RawBytes>
    where
        T: Copy,
    {
        let bytes = crate::ring::SlotRing::<T>::bytes(capacity, stride).ok_or_else(|| {
            refuse!(Invalid, "{capacity} requests of {stride} bytes: more than a ring holds")
        })?;
        self.heap.alloc(bytes)
    }

    /// The peer record of an address, with one user more. Makes the record if there is none.
    pub(super) fn peer_get(&mut self, addr: PeerAddr) -> Result<u32> {
        let path = match self.link_of_new_peers {
            _ if self.is_self(&addr) && !self.own_address_is_remote => Path::Loopback,
            Some(link) => Path::Link(link),
            None => Path::Port,
        };
        self.peer_by_path(addr, path)
    }

    /// As [`Inner::peer_get`], for a path to the address.
    pub(super) fn peer_by_path(&mut self, addr: PeerAddr, path: Path) -> Result<u32> {
        let t = &mut self.transport;
        if let Some(peer) = t.peer_join(addr, path) {
            return Ok(peer);
        }
        t.peers.grow(&mut self.heap, |_| Peer::empty())?;
        t.peer_join(addr, path).ok_or_else(|| {
            refuse!(NoMemory, "max_peer: all are in use; raise it, or give more memory")
        })
    }

    /// The two peer records of an address: one for datagrams to it, one for datagrams to other
    /// engines there. An address handle names no QPN, so each datagram to a shared address chooses
    /// one of them by its own QPN. Among siblings it chooses the record of one of them
    /// ([`Siblings`]).
    ///
    /// [`Siblings`]: crate::roce::siblings::Siblings
    fn datagram_peers(&mut self, addr: PeerAddr) -> Result<(u32, u32)> {
        let peer = self.peer_get(addr)?;
        let has_others = self.address_is_shared || self.transport.common.siblings.any();
        if !has_others || self.transport.peers[peer as usize].path != Path::Loopback {
            return Ok((peer, NONE));
        }
        let before = core::mem::replace(&mut self.own_address_is_remote, self.address_is_shared);
        let others = self.peer_get(addr);
        self.own_address_is_remote = before;
        match others {
            Ok(others) => Ok((peer, others)),
            Err(e) => {
                self.transport.peer_leave(peer);
                Err(e)
            }
        }
    }

    pub(super) fn pd(&self, pd: Handle) -> Result<usize> {
        self.transport.common.pd_pool.check(pd)
    }

    pub(super) fn limits(&self) -> Limits {
        let c = &self.transport.common.config;
        Limits {
            max_mtu: mtu_code(c.max_mtu).unwrap_or(mtu::MTU_256),
            max_rd_atomic: c.max_rd_atomic,
        }
    }

    /// Whether packets to a GID can leave: an IPv4 engine reaches IPv4 only, an IPv6 engine IPv6
    /// only.
    fn is_reachable(&self, gid: &[u8; 16]) -> bool {
        let v4 = |g: &[u8; 16]| crate::wire::ip::v4_of_gid(g).is_some();
        v4(gid) == v4(&self.local.gid)
    }

    #[cold]
    fn unreachable(&self, name: &str, gid: &[u8; 16]) -> Error {
        match crate::wire::ip::v4_of_gid(&self.local.gid).is_some() {
            true => unusable(name, gid, "IPv6, and the device has an IPv4 address"),
            false => unusable(name, gid, "IPv4, and the device has an IPv6 address"),
        }
    }

    /// The peer that an address vector names.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the address is of no host, or of one that this engine does not reach.
    pub fn address(&self, ah: &AhAttr) -> Result<PeerAddr> {
        if !transition::is_unicast(&ah.dgid) {
            return Err(unusable("dgid", &ah.dgid, "no address of one host"));
        }
        self.any_address(ah)
    }

    /// As [`Inner::address`], for datagrams: permits a group's address too.
    fn any_address(&self, ah: &AhAttr) -> Result<PeerAddr> {
        if !transition::is_unicast(&ah.dgid) && !transition::is_multicast(&ah.dgid) {
            return Err(unusable("dgid", &ah.dgid, "neither a host's address nor a group's"));
        }
        if !self.is_reachable(&ah.dgid) {
            return Err(self.unreachable("dgid", &ah.dgid));
        }
        let mut addr = PeerAddr::from_ah(ah, self.local.port);
        if addr.scope_id == 0 && addr.gid[..2] == [0xfe, 0x80] {
            addr.scope_id = self.local.scope_id;
        }
        Ok(addr)
    }
}

#[cold]
fn unusable(name: &str, gid: &[u8; 16], why: &str) -> Error {
    let gid = core::net::Ipv6Addr::from(*gid);
    match gid.to_ipv4_mapped() {
        Some(v4) => refuse!(Invalid, "{name} {v4}: {why}"),
        None => refuse!(Invalid, "{name} {gid}: {why}"),
    }
}

/// Checks the argument `cqe` of a CQ.
fn check_cqe(cqe: u32, config: &Config) -> Result<()> {
    let most = lowered(MAX_CQE, config.limits.max_cqe);
    if cqe == 0 || cqe > most {
        return Err(refuse!(Invalid, "cqe {cqe}: 1 to {most}"));
    }
    Ok(())
}

/// Control: protection domains, memory, address handles, groups and CQs.
impl EngineGuard<'_> {
    /// Adds memory for rings and for the growth of tables.
    ///
    /// # Errors
    /// [`Error::Invalid`]: too small to be of use; [`Error::NoMemory`]: too many pieces.
    ///
    /// # Safety
    /// The memory is used by nobody else and outlives the engine.
    pub unsafe fn arena_add(&mut self, memory: *mut u8, bytes: usize) -> Result<()> {
        let (inner, _) = self.split();
        // SAFETY: the caller's promise.
        unsafe { inner.heap.add(memory, bytes) }
    }

    /// Registers a kind of memory under a number from 1 on.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Busy`]: no such number, or taken.
    pub fn register_memory(&mut self, n: u32, memory: &'static dyn Memory) -> Result<()> {
        self.transport.common.memory.providers.register(n, memory)
    }

    /// Puts memory in place of host memory ([`crate::mem::Providers::stand_in`]).
    pub fn set_host_memory(&mut self, memory: &'static dyn Memory) {
        self.transport.common.memory.providers.stand_in(memory);
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn pd_alloc(&mut self) -> Result<Handle> {
        self.make_pd(Pool::alloc)
    }

    /// Makes a protection domain, whose handle `take` gets from the pool.
    pub(super) fn make_pd(
        &mut self,
        take: impl Fn(&Pool) -> Result<(Handle, usize)>,
    ) -> Result<Handle> {
        let (inner, _) = self.split();
        let common = &mut inner.transport.common;
        let (h, i) = common.pd_pool.growing(&mut inner.heap, take, |have, heap| {
            common.pds.grow_past(have, heap, |_| Pd::default())
        })?;
        common.pds[i] = Pd::default();
        Ok(h)
    }

    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`]: objects belong to it.
    pub fn pd_dealloc(&mut self, pd: Handle) -> Result<()> {
        let i = self.check_pd_unused(pd)?;
        self.transport.common.pd_pool.free(i);
        Ok(())
    }

    /// Checks that no objects belong to a protection domain. Returns its index.
    pub(super) fn check_pd_unused(&self, pd: Handle) -> Result<usize> {
        let i = self.pd(pd)?;
        let common = &self.transport.common;
        let (users, regions) = (common.pds[i].users, common.memory.regions.pd_users(i as u32));
        if users > 0 || regions > 0 {
            let first = self.first_user(|qp| qp.pd == i as u32);
            return Err(refuse!(
                Busy,
                "pd: {regions} regions and windows, {users} QPs, SRQs and address handles are in \
                 it{first}"
            ));
        }
        Ok(i)
    }

    /// Registers memory. The caller has made sure that host memory can be read (and written).
    ///
    /// # Errors
    /// [`Error::StaleHandle`], [`Error::Invalid`]: range wraps, flags, unknown provider;
    /// [`Error::NoMemory`].
    pub fn mr_reg(&mut self, reg: &MrReg) -> Result<(Handle, MrAttr)> {
        let pd = self.pd_of_region(reg)?;
        let reg = self.transport.common.memory.providers.of_region(reg);
        self.in_regions(|regions| regions.reg(&reg, pd))
    }

    /// The protection domain of a region, whose provider is known.
    fn pd_of_region(&self, reg: &MrReg) -> Result<u32> {
        let pd = self.pd(reg.pd)? as u32;
        if !self.transport.common.memory.providers.is_known(reg.provider) {
            return Err(refuse!(
                Invalid,
                "provider {}: there is none of this number",
                reg.provider
            ));
        }
        // The limit does not count for a region of the whole address space.
        let most = self.transport.common.config.limits.max_mr_size;
        if let Some(most) = most.filter(|most| reg.length > *most && reg.length != u64::MAX) {
            return Err(refuse!(Invalid, "length {:#x}: at most {most:#x}", reg.length));
        }
        Ok(pd)
    }

    /// Makes a region or window by `make`, in a table that grows if it must.
    pub(super) fn in_regions<R>(&mut self, make: impl Fn(&mut Regions) -> Result<R>) -> Result<R> {
        let (inner, _) = self.split();
        let regions = &mut inner.transport.common.memory.regions;
        loop {
            match make(regions) {
                Err(Error::NoMemory) => regions.grow(&mut inner.heap)?,
                other => return other,
            }
        }
    }

    /// Registers a region anew; see [`crate::mem::Regions::rereg`].
    ///
    /// # Errors
    /// As [`EngineGuard::mr_reg`]; [`Error::Busy`]: windows are bound to it.
    pub fn mr_rereg(&mut self, mr: Handle, reg: &MrReg) -> Result<MrAttr> {
        let pd = self.pd_of_region(reg)?;
        self.transport.common.note_change();
        let memory = &mut self.transport.common.memory;
        let reg = memory.providers.of_region(reg);
        memory.providers.finish();
        memory.regions.rereg(mr, &reg, pd)
    }

    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn mr_query(&self, mr: Handle) -> Result<MrAttr> {
        self.transport.common.memory.regions.query(mr)
    }

    /// Ends a registration. Operations under way that use it end with access errors.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`]: windows are bound to it.
    pub fn mr_dereg(&mut self, mr: Handle) -> Result<()> {
        self.transport.common.note_change();
        let memory = &mut self.transport.common.memory;
        memory.providers.finish();
        memory.regions.dereg(mr)
    }

    /// Makes a memory window of type 1 or 2. Returns its first rkey, too.
    ///
    /// # Errors
    /// [`Error::StaleHandle`], [`Error::Invalid`], [`Error::NoMemory`].
    pub fn mw_alloc(&mut self, pd: Handle, mw_type: u32) -> Result<(Handle, u32)> {
        let pd = self.pd(pd)? as u32;
        self.in_regions(|regions| regions.mw_alloc(pd, mw_type))
    }

    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn mw_dealloc(&mut self, mw: Handle) -> Result<()> {
        let memory = &mut self.transport.common.memory;
        memory.providers.finish();
        memory.regions.mw_dealloc(mw)
    }

    /// Makes an address handle.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: not an address of this engine's family;
    /// [`Error::NoMemory`].
    pub fn ah_create(&mut self, pd: Handle, attr: &AhAttr) -> Result<Handle> {
        self.make_ah(pd, attr, Pool::alloc)
    }

    /// Makes an address handle, whose handle `take` gets from the pool.
    pub(super) fn make_ah(
        &mut self,
        pd: Handle,
        attr: &AhAttr,
        take: impl Fn(&Pool) -> Result<(Handle, usize)>,
    ) -> Result<Handle> {
        let pd = self.pd(pd)?;
        let addr = self.any_address(attr)?;
        let (inner, _) = self.split();
        let common = &mut inner.transport.common;
        let (h, i) = common.ah_pool.growing(&mut inner.heap, take, |have, heap| {
            common.ahs.grow_past(have, heap, |_| Ah::default())
        })?;
        match inner.datagram_peers(addr) {
            Ok((peer, others)) => {
                inner.transport.common.ahs[i] = Ah { live: true, pd: pd as u32, peer, others };
                inner.transport.common.pds[pd].users += 1;
                Ok(h)
            }
            Err(e) => {
                inner.transport.common.ah_pool.free(i);
                Err(e)
            }
        }
    }

    /// Ends an address handle. Datagrams that name it and have not left fail.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn ah_destroy(&mut self, ah: Handle) -> Result<()> {
        let i = self.transport.common.ah_pool.check(ah)?;
        let (inner, _) = self.split();
        let a = core::mem::take(&mut inner.transport.common.ahs[i]);
        inner.transport.common.ah_pool.free(i);
        inner.transport.common.ahs_ended += 1;
        let pd = &mut inner.transport.common.pds[a.pd as usize];
        pd.users = pd.users.saturating_sub(1);
        inner.transport.peer_leave(a.peer);
        if a.others != NONE {
            inner.transport.peer_leave(a.others);
        }
        Ok(())
    }

    /// Makes a UD QP a member of a group: it gets what is sent there. Twice is no error. The port
    /// must listen for the group.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: not a UD QP, or not a multicast GID of this
    /// engine's family; [`Error::NoMemory`]: [`MEMBERS`](crate::roce::multicast::MEMBERS) are in
    /// use.
    pub fn mcast_attach(&mut self, qp: Handle, gid: &[u8; 16]) -> Result<()> {
        let (inner, s) = self.split();
        let qi = s.qp_pool.check(qp)?;
        let kind = inner.transport.qps[qi].kind;
        if kind.is_connected() {
            return Err(refuse!(Invalid, "qp: of type {}, and only UD joins groups", kind));
        }
        if !transition::is_multicast(gid) {
            return Err(unusable("gid", gid, "no group's address"));
        }
        if !inner.is_reachable(gid) {
            return Err(inner.unreachable("gid", gid));
        }
        inner.transport.common.members.join(qi, gid)
    }

    /// Ends a membership. A QP with one is not destroyed.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: not a member.
    pub fn mcast_detach(&mut self, qp: Handle, gid: &[u8; 16]) -> Result<()> {
        let (inner, s) = self.split();
        let qi = s.qp_pool.check(qp)?;
        inner.transport.common.members.leave(qi, gid)
    }

    /// Whether a group has members here.
    pub fn has_members(&self, gid: &[u8; 16]) -> bool {
        self.transport.common.members.has(gid)
    }

    /// Makes a CQ of at least `cqe` entries. Returns the entries that it has.
    ///
    /// # Errors
    /// [`Error::Invalid`]: 0 or more than [`MAX_CQE`], or than the limit; [`Error::NoMemory`];
    /// [`Error::Limit`].
    pub fn cq_create(&mut self, cqe: u32) -> Result<(Handle, u32)> {
        check_cqe(cqe, &self.transport.common.config)?;
        let capacity = cqe.next_power_of_two().max(MIN_CQE);
        let (inner, s) = self.split();
        let mem = inner.ring::<Wc>(capacity, CQE_STRIDE)?;
        let cqs = &inner.transport.common.cqs;
        let made = s.cq_pool.growing(&mut inner.heap, Pool::alloc, |have, heap| {
            s.cqs.grow_past(have, heap, |_| CqShared::default())?;
            cqs.grow_past(have, heap, |_| Cq::default())
        });
        let (h, i) = made.inspect_err(|_| inner.heap.free(mem))?;
        let made = Some((mem, capacity, CQE_STRIDE));
        s.install(|s| &s.cqs[i].ring, made, &inner.transport.common.key);
        s.cqs[i].beside.branches.begin(0);
        inner.transport.common.cqs[i] = Cq { live: true, mem: Some(mem), ..Cq::default() };
        s.cqs[i].ring.name.give(h);
        Ok((h, capacity))
    }

    /// Gives a CQ another size: a new ring that takes the entries of the old one, swapped in.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: fewer than are in it or promised, or the CQ has
    /// failed; [`Error::Busy`]: a thread polls it right now; [`Error::NoMemory`].
    pub fn cq_resize(&mut self, cq: Handle, cqe: u32) -> Result<u32> {
        let (inner, s) = self.split();
        let i = s.cq_pool.check(cq)?;
        check_cqe(cqe, &inner.transport.common.config)?;
        let capacity = cqe.next_power_of_two().max(MIN_CQE);
        let c = &inner.transport.common.cqs[i];
        if c.has_failed() {
            return Err(refuse!(Invalid, "the CQ has failed"));
        }
        let held = s.cqs[i].ring.len() + c.reserved;
        if capacity < held || c.reservable(capacity) < c.reserved {
            return Err(refuse!(
                Invalid,
                "cqe {cqe}: {held} completions wait in the CQ, or are promised to it"
            ));
        }
        let mem = inner.ring::<Wc>(capacity, CQE_STRIDE)?;
        if let Err(e) = s.swap_cq(i, mem, capacity, CQE_STRIDE, &inner.transport.common.key) {
            inner.heap.free(mem);
            return Err(e);
        }
        if let Some(old) = inner.transport.common.cqs[i].mem.replace(mem) {
            inner.heap.free(old);
        }
        // QPs that wait for room may look again.
        inner.transport.common.cqs[i].seen_free = 0;
        Ok(capacity)
    }

    /// Takes the completions of a QP, by its number, out of a CQ.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`]: a thread polls it right now.
    pub fn cq_purge(&mut self, cq: Handle, qpn: u32) -> Result<()> {
        let (inner, s) = self.split();
        let i = s.cq_pool.check(cq)?;
        s.purge_cq(i, qpn, &inner.transport.common.key)?;
        // QPs that wait for room may look again.
        inner.transport.common.cqs[i].seen_free = 0;
        Ok(())
    }

    /// Arms a CQ: its next completion (`solicited_only`: its next solicited or failed one) raises
    /// an event. A CQ that is armed for any completion stays so. True: completions are there
    /// already; they raise no event.
    ///
    /// Arming takes the lock, so each completion comes before or after it, and pushing a completion
    /// needs no fence. A program that only polls pays nothing for programs that sleep.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn arm_cq(&mut self, cq: Handle, solicited_only: bool) -> Result<bool> {
        let (inner, s) = self.split();
        let i = s.cq_pool.check(cq)?;
        let armed = &mut inner.transport.common.cqs[i].armed;
        *armed = (*armed).max(if solicited_only { Armed::Urgent } else { Armed::Any });
        Ok(!s.cqs[i].ring.is_empty())
    }

    /// Disarms a CQ, and takes back its event if nobody has taken that yet. Arming alone never
    /// narrows what a CQ is armed for.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn disarm_cq(&mut self, cq: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let i = s.cq_pool.check(cq)?;
        inner.transport.common.cqs[i].armed = Armed::No;
        forget_event(&mut inner.transport.common.cqs, s, i);
        Ok(())
    }

    /// Counts all completions in a CQ as new: an armed CQ raises its event. A CQ that is armed for
    /// solicited completions alone raises it, too, because the CQ does not record which completions
    /// are solicited.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn cq_raise_pending(&mut self, cq: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let i = s.cq_pool.check(cq)?;
        let cq = &mut inner.transport.common.cqs[i];
        if cq.armed != Armed::No && !s.cqs[i].ring.is_empty() {
            cq.raise(s, i as u32);
        }
        Ok(())
    }

    /// Keeps a CQ from being destroyed until [`EngineGuard::cq_unpin`] was called as often.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn cq_pin(&mut self, cq: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let users = &mut inner.transport.common.cqs[s.cq_pool.check(cq)?].users;
        *users = users.saturating_add(1);
        Ok(())
    }

    /// Undoes one [`EngineGuard::cq_pin`].
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn cq_unpin(&mut self, cq: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let users = &mut inner.transport.common.cqs[s.cq_pool.check(cq)?].users;
        *users = users.saturating_sub(1);
        Ok(())
    }

    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`]: QPs use it, it is pinned, or a thread polls it.
    pub fn cq_destroy(&mut self, cq: Handle) -> Result<()> {
        let i = self.check_cq_unused(cq)?;
        let (inner, s) = self.split();
        s.remove_cq(i, &inner.transport.common.key)?;
        forget_event(&mut inner.transport.common.cqs, s, i);
        s.cqs[i].ring.name.take();
        s.cq_pool.free(i);
        if let Some(mem) = inner.transport.common.cqs[i].mem.take() {
            inner.heap.free(mem);
        }
        let common = &mut inner.transport.common;
        let cq = core::mem::take(&mut common.cqs[i]);
        common.cq_errors -= u32::from(cq.error == CqError::Raised);
        common.full_cqs.clear(i);
        Ok(())
    }
}

/// The first of the queue pairs that use an object, in words.
pub(super) struct FirstUser(Option<u32>);

impl core::fmt::Display for FirstUser {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.map_or(Ok(()), |qpn| write!(f, "; the first is QP {qpn:#x}"))
    }
}

impl Inner {
    /// Names one of the queue pairs that `uses` tells of.
    #[cold]
    pub(super) fn first_user(&self, uses: impl Fn(&Qp) -> bool) -> FirstUser {
        let qps = &self.transport.qps;
        FirstUser(qps.iter().find(|qp| qp.live && uses(qp)).map(|qp| qp.qpn))
    }
}

impl EngineGuard<'_> {
    /// Checks that nothing uses a CQ. Returns its index.
    pub(super) fn check_cq_unused(&self, cq: Handle) -> Result<usize> {
        let i = self.shared().cq_pool.check(cq)?;
        match self.transport.common.cqs[i].users {
            0 => Ok(i),
            // IBTA C11-17: A CQ that queue pairs use is not destroyed.
            users => {
                let at = i as u32;
                let first = self.first_user(|qp| qp.scq == at || qp.rcq == at);
                Err(refuse!(Busy, "cq: {users} queues or fast handles use it{first}"))
            }
        }
    }
}

/// Takes back the event of a CQ, from the context's events or from those of its channel.
fn forget_event(cqs: &mut Table<Cq>, s: &Shared, cq: usize) {
    s.cq_events.clear(cq);
    if !core::mem::take(&mut cqs[cq].has_event) {
        return;
    }
    let Some(first) = cqs[cq].channel.and_then(|c| s.channel_events.get(usize::from(c))) else {
        return;
    };
    let (after, mut at) = (cqs[cq].next, first.load(Ordering::Relaxed));
    if at as usize == cq + 1 {
        return first.store(after, Ordering::Relaxed);
    }
    while let Some(i) = at.checked_sub(1) {
        at = cqs[i as usize].next;
        if at as usize == cq + 1 {
            cqs[i as usize].next = after;
            return;
        }
    }
}
