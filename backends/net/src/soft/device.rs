//! The soft device: one engine, or several, so that threads with objects of their own never wait
//! for each other.
//!
//! Each engine is a [`SoftEngine`] with a lock, ports, links and a block of QPNs of its own.
//! Packets find an engine as they find one of several processes at an address, and queue pairs of
//! two engines reach each other as those of two processes do. A loopback device has no port, so it
//! links its engines (`links`). The engines share no memory that a packet reads or writes but the
//! rings of these links.
//!
//! * CQs, SRQs, channels and XRC domains belong to the engine of the thread that makes them. A
//!   queue pair belongs to the engine of its SRQ or XRC domain, else of its send CQ, else of its
//!   receive CQ. Handles contain the engine's number. A CQ with queue pairs of other engines has a
//!   ring in each of those engines, too.
//! * Protection domains, regions, windows and address handles belong to the device: each engine has
//!   them all, under the same handles and keys (`adopt` of [`gdrcore_core::engine`]). The calls
//!   that make and end them take a lock of the device.
//! * The connection manager belongs to the first engine. Its connections may have queue pairs of
//!   any engine.
//!
//! Threads are spread over the engines in the order in which they first make such an object. An
//! engine may be made then, too (`engines`).

mod branches;
mod calls;
mod channels;
mod cm;
mod engines;
mod events;
mod links;
mod parts;

pub use branches::PinnedRings;
pub use engines::EngineCount;

use super::layout::{page_up, part_at};
use super::lock::ControlGuard;
use super::siblings::Siblings;
use super::{SoftConfig, SoftEngine};
use crate::addr::DeviceName;
use crate::fork::ForkGuard;
use crate::thread_token::token;
use crate::wait::Waiter;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use engines::{DeviceState, Engines, Plan};
use gdrcore_core::config::Config;
use gdrcore_core::device::Leaks;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::Memory;
use gdrcore_core::refuse;
use gdrcore_core::roce::siblings::MAX_SIBLINGS;
use gdrcore_core::verbs::types::Handle;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Engines that a device can have.
pub const MAX_ENGINES: usize = MAX_SIBLINGS;

/// Place of an engine's number in a handle, above the index.
const ENGINE_SHIFT: u32 = 16;
/// Most entries in a table of an engine: no table is configured larger or grows beyond this.
const MAX_INDEX: u32 = 1 << ENGINE_SHIFT;
const ENGINE_MASK: u64 = 0xff << ENGINE_SHIFT;

/// Threads that a device tells apart by their order.
const THREADS: usize = 256;

/// The threads that have made objects, in the order in which they came. Each is known by the page
/// of its token: tokens are thread pointers, and no two lie in one page.
#[derive(Default)]
struct Threads(heapless::Vec<u32, THREADS>);

impl Threads {
    /// The number of a thread, the same in each call. A thread that comes when there is no room for
    /// another one gets a number by its token.
    fn number(&mut self, token: usize) -> usize {
        let page = (token >> 12) as u32;
        match self.0.iter().position(|known| *known == page) {
            Some(number) => number,
            None => match self.0.push(page) {
                Ok(()) => self.0.len() - 1,
                Err(page) => page as usize,
            },
        }
    }
}

/// A RoCEv2 NIC in software.
pub struct SoftDevice {
    engines: Engines,
    /// The bits of a handle that are the number of its engine; 0 for one engine.
    engine_mask: u64,
    plan: Plan,
    /// Held by calls that make and end objects of the whole device, and by those that name a
    /// protection domain.
    control: Mutex<DeviceState>,
    threads: Mutex<Threads>,
    /// The descriptors of all engines; `None`: there is one engine, whose own a program uses.
    waiter: Option<Waiter>,
    /// An engine was made since the last arming.
    has_unarmed_engine: AtomicBool,
    fork: ForkGuard,
    /// The engine at which the next search for an event begins.
    next_event: AtomicUsize,
    /// Queue pairs that were made with a CQ of another engine.
    crossing_qps: AtomicU64,
    /// Where events go, if not to the program's calls.
    sinks: events::Sinks,
}

/// Refuses a number of engines that no device can have, or that this configuration does not allow.
fn check(config: &SoftConfig<'_>) -> Result<()> {
    let EngineCount { most: engines, at_open } = config.engines;
    if engines == 0 || engines as usize > MAX_ENGINES {
        return Err(refuse!(Invalid, "engines {engines}: 1 to {MAX_ENGINES}"));
    }
    if at_open == 0 || at_open > engines {
        return Err(refuse!(Invalid, "engines {engines}, {at_open} at the opening: 1 to all"));
    }
    let Config { max_qp, qpn_base, .. } = config.core;
    if engines > 1 && max_qp > MAX_INDEX {
        return Err(refuse!(
            Invalid,
            "max_qp {max_qp}: each of several engines has at most {MAX_INDEX}"
        ));
    }
    if engines > 1 && qpn_base != 0 {
        return Err(refuse!(
            Unsupported,
            "qpn_base {qpn_base:#x}: each of several engines takes a free block"
        ));
    }
    Ok(())
}

/// The QPNs of the engines of a device that has several and no port.
fn siblings_of(name: &DeviceName, config: &SoftConfig<'_>, seed: u64) -> Result<Option<Siblings>> {
    match (name, config.engines.most) {
        (DeviceName::Loopback, 2..) => Siblings::choose(config, seed).map(Some),
        _ => Ok(None),
    }
}

impl SoftDevice {
    /// Bytes of memory that [`SoftDevice::init`] needs.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Invalid`]: the name; [`Error::Invalid`]: a bound of the
    /// configuration, 0 or more than [`MAX_ENGINES`] engines. Of several engines:
    /// [`Error::Invalid`]: more than 65,536 queue pairs for each; [`Error::Unsupported`]: a
    /// `qpn_base`.
    pub fn memsize(name: &str, config: &SoftConfig<'_>) -> Result<usize> {
        let name = DeviceName::parse(name)?;
        check(config)?;
        config.check_faults(&name)?;
        // The seed decides which QPNs the engines have, not how many.
        let siblings = siblings_of(&name, config, config.core.seed)?;
        let one = SoftEngine::memsize(&name, config, siblings.as_ref())?;
        let all = one.checked_mul(config.engines.most as usize);
        let own = part_at(Some(size_of::<SoftDevice>()))?;
        all.and_then(|all| all.checked_add(own)).ok_or(Error::NoMemory).and_then(page_up)
    }

    /// Makes a device in the given memory. It stays there until [`SoftDevice::close`].
    ///
    /// # Errors
    /// As [`SoftDevice::memsize`]. A router: as [`super::Session::open`]. The address:
    /// [`Error::AddressNotLocal`], [`Error::AddressInUse`]. [`Error::NoMemory`]: fewer than
    /// [`SoftDevice::memsize`] bytes. [`Error::Os`].
    ///
    /// # Safety
    /// The memory is page-aligned, nothing else uses it, and it lives until `close` has returned.
    pub unsafe fn init(
        memory: *mut u8,
        bytes: usize,
        name: &str,
        config: &SoftConfig<'_>,
    ) -> Result<&'static SoftDevice> {
        let needed = SoftDevice::memsize(name, config)?;
        if memory.is_null() || memory as usize & 4095 != 0 {
            return Err(refuse!(Invalid, "memory {memory:p}: not NULL, and aligned to 4096 bytes"));
        }
        if bytes < needed {
            return Err(Error::NoMemory);
        }
        let (most, name) = (config.engines.most, DeviceName::parse(name)?);
        // SAFETY: `bytes` is enough, and the rest is our contract.
        let plan = unsafe { Plan::new(memory, name, config)? };
        let waiter = if most > 1 { Some(Waiter::new()?) } else { None };
        let place = memory.cast::<SoftDevice>();
        // SAFETY: aligned to a page, and the first part, which is the device's alone.
        let device: &'static SoftDevice = unsafe {
            write_fields!(place, SoftDevice {
                engines: Engines::new(most),
                engine_mask: if most > 1 { ENGINE_MASK } else { 0 },
                plan: plan,
                control: Mutex::default(),
                threads: Mutex::default(),
                waiter: waiter,
                has_unarmed_engine: AtomicBool::new(false),
                fork: ForkGuard::new(),
                next_event: AtomicUsize::new(0),
                crossing_qps: AtomicU64::new(0),
                sinks: events::Sinks::new(),
            } and);
            &*place
        };
        if let Err(e) = device.make_first(config) {
            // SAFETY: nobody has seen the device yet.
            unsafe { device.close() };
            return Err(e);
        }
        device.introduce();
        Ok(device)
    }

    /// Ends the device: for each engine it stops the helper, acknowledges what was accepted, ends
    /// connections, flushes the capture and closes the descriptors. Returns the objects that were
    /// left. In a forked child it does nothing, and the child's copies of the descriptors stay
    /// open.
    ///
    /// # Safety
    /// No thread is inside a call on the device, and none makes one afterwards.
    pub unsafe fn close(&self) -> Leaks {
        if self.fork.check().is_err() {
            return Leaks::default();
        }
        // SAFETY: our contract.
        let leaks = all_leaks(self.engines.iter().rev().map(|engine| unsafe { engine.close() }));
        let place: *const SoftDevice = self;
        // SAFETY: the last use of the device, as the caller promises.
        unsafe { core::ptr::drop_in_place(place.cast_mut()) };
        leaks
    }

    /// Registers a kind of memory under a number from 1 on, for registrations that name it.
    /// `memory` must outlive the device. Several engines may call it at the same time.
    ///
    /// # Errors
    /// `Error::Invalid`, `Error::Busy`: no such number, or taken. `Error::OwnerDead`.
    pub fn memory_add(&self, provider: u32, memory: &'static dyn Memory) -> Result<()> {
        let _control = self.control()?;
        let add = |engine: &SoftEngine| engine.lock()?.register_memory(provider, memory);
        self.engines.iter().try_for_each(add)
    }

    /// Disarms a CQ, and takes back its event if nobody has taken that yet. For callers that want
    /// fewer events than before, which [`gdrcore_core::device::Device::cq_arm`] does not offer.
    ///
    /// # Errors
    /// [`Error::StaleHandle`], `Error::OwnerDead`.
    pub fn cq_disarm(&self, cq: Handle) -> Result<()> {
        self.for_each_ring(cq, |engine, ring| engine.lock()?.disarm_cq(ring))
    }

    /// Counts all completions in a CQ as new: a CQ that is armed for any completion raises its
    /// event. For polls that left completions in the CQ although they had room
    /// ([`gdrcore_core::inject::Faults::few`]).
    ///
    /// # Errors
    /// [`Error::StaleHandle`], `Error::OwnerDead`.
    pub fn cq_raise_pending(&self, cq: Handle) -> Result<()> {
        self.for_each_ring(cq, |engine, ring| engine.lock()?.cq_raise_pending(ring))
    }

    /// The engine of a device that can have only one: posts and polls then skip the look-up of the
    /// engine.
    pub fn only_engine(&self) -> Option<&'static SoftEngine> {
        (self.engines.most() == 1).then(|| self.engines.first())
    }

    /// The engine of a QP or CQ, and its handle there: for posts and polls without a look-up.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]: no engine has such a handle.
    #[inline(always)]
    pub fn engine_of(&self, h: Handle) -> Result<(&'static SoftEngine, Handle)> {
        self.resolve(h).map(|(_, engine, h)| (engine, h))
    }

    /// The engine whose number is in a handle, and the handle there.
    #[inline(always)]
    fn resolve(&self, h: Handle) -> Result<(usize, &'static SoftEngine, Handle)> {
        let k = ((h & self.engine_mask) >> ENGINE_SHIFT) as usize;
        match self.engines.get(k) {
            Some(engine) => Ok((k, engine, self.engine_handle(h))),
            None => Err(no_engine(h)),
        }
    }

    /// The engine's form of a handle that the program gave.
    #[inline(always)]
    fn engine_handle(&self, h: Handle) -> Handle {
        h & !self.engine_mask
    }

    /// The engine of the calling thread. Makes it if it does not exist. Not under
    /// [`SoftDevice::control`].
    ///
    /// # Errors
    /// [`Error::OwnerDead`]: a parent of this process opened the device.
    fn thread_engine(&self) -> Result<(usize, &'static SoftEngine)> {
        self.fork.check()?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let k = threads.number(token()) % self.engines.most();
        drop(threads);
        self.engine_at(k)
    }

    /// The lock of calls that make and end objects of all engines.
    ///
    /// # Errors
    /// [`Error::OwnerDead`]: a parent of this process opened the device.
    fn control(&self) -> Result<MutexGuard<'_, DeviceState>> {
        self.fork.check()?;
        Ok(self.control.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a change with the locks of all engines held, so that no engine sees a part of it. Only
    /// under [`SoftDevice::control`]: nobody else waits for a second of these locks. The bind of a
    /// window of type 1 tries all others, and gives up if one is taken.
    fn with_all_locked<R>(
        &self,
        change: impl FnOnce(&mut [ControlGuard<'static>]) -> Result<R>,
    ) -> Result<R> {
        let mut all: heapless::Vec<_, MAX_ENGINES> =
            self.engines.iter().map(|engine| engine.lock_control()).collect();
        change(&mut all)
    }
}

/// The program's form of a handle of an engine.
#[inline(always)]
fn program_handle(k: usize, h: Handle) -> Handle {
    h | (k as u64) << ENGINE_SHIFT
}

#[cold]
#[inline(never)]
fn no_engine(h: Handle) -> Error {
    refuse!(StaleHandle, "handle {h:#x}: stale, or another context's")
}

/// The objects that are left in a device. Objects of one engine are added up. Objects of the whole
/// device are in each engine, so only the count of the first engine, which comes last, is taken.
fn all_leaks(engines: impl Iterator<Item = Leaks>) -> Leaks {
    engines.fold(Leaks::default(), |sum, l| Leaks {
        cq: sum.cq + l.cq,
        qp: sum.qp + l.qp,
        srq: sum.srq + l.srq,
        ..l
    })
}

#[cfg(test)]
mod tests;
