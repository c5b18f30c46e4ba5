//! The engines of a device: those made at its opening, and those that a thread makes when it first
//! needs one.
//!
//! An engine that is made later takes over all that belongs to the whole device: memory that the
//! program has given, kinds of memory, protection domains, regions, windows, address handles, marks
//! of shared regions, the receiver of events, the helper. Only then do others see it.

use super::{part_at, siblings_of, SoftDevice, MAX_ENGINES};
use crate::addr::DeviceName;
use crate::clock;
use crate::inject::FaultSpec;
use crate::soft::lock::ControlGuard;
use crate::soft::siblings::Siblings;
use crate::soft::{SoftConfig, SoftEngine};
use crate::threads::with_stack;
use core::sync::atomic::{AtomicPtr, Ordering};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::{OtherTables, Regions};
use gdrcore_core::refuse;
use std::ffi::{CStr, CString};
use std::sync::PoisonError;

/// How many engines a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineCount {
    /// The most engines.
    pub most: u32,
    /// Engines made when the device is opened, at least 1. Each thread that makes a CQ then makes
    /// one more.
    pub at_open: u32,
}

impl EngineCount {
    /// All engines are made when the device is opened.
    pub const fn all(engines: u32) -> Self {
        EngineCount { most: engines, at_open: engines }
    }

    /// One engine.
    pub const ONE: EngineCount = EngineCount::all(1);

    /// The first engine is made when the device is opened.
    pub const fn up_to(engines: u32) -> Self {
        EngineCount { most: engines, at_open: 1 }
    }
}

impl Default for EngineCount {
    fn default() -> Self {
        EngineCount::ONE
    }
}

/// The engines by their numbers. A place is filled once and stays until the device ends.
pub(super) struct Engines {
    places: [AtomicPtr<SoftEngine>; MAX_ENGINES],
    most: usize,
}

impl Engines {
    pub fn new(most: u32) -> Self {
        let places = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_ENGINES];
        Engines { places, most: most as usize }
    }

    /// How many engines there may be.
    pub fn most(&self) -> usize {
        self.most
    }

    /// An engine, if it exists.
    #[inline(always)]
    pub fn get(&self, k: usize) -> Option<&'static SoftEngine> {
        // Acquire pairs with the Release of `put`: a thread that sees the engine sees it complete.
        let engine = self.places.get(k)?.load(Ordering::Acquire);
        // SAFETY: null, or an engine that lives until the device is closed.
        unsafe { engine.as_ref() }
    }

    /// The engines that exist, with their numbers.
    pub fn numbered(&self) -> impl DoubleEndedIterator<Item = (usize, &'static SoftEngine)> + '_ {
        (0..self.most).filter_map(|k| self.get(k).map(|engine| (k, engine)))
    }

    /// The engines that exist. The first one always does.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &'static SoftEngine> + '_ {
        self.numbered().map(|(_, engine)| engine)
    }

    /// The first engine.
    pub fn first(&self) -> &'static SoftEngine {
        self.get(0).expect("made when the device was opened")
    }

    fn put(&self, k: usize, engine: &'static SoftEngine) {
        self.places[k].store(core::ptr::from_ref(engine).cast_mut(), Ordering::Release);
    }
}

/// Memory that the program gave.
pub(super) struct Room {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that nothing else uses (contracts of `SoftDevice::init` and `arena_add`).
unsafe impl Send for Room {}
// SAFETY: as above; by shared reference nobody reads or writes it.
unsafe impl Sync for Room {}

/// Memory that a program may give to a device whose engines are not all made.
const ROOMS: usize = 64;

/// The parameters that engines are made from.
pub(super) struct Plan {
    name: DeviceName,
    pub config: SoftConfig<'static>,
    /// The capture of engines that are made later.
    pcap: Option<CString>,
    /// The memory of all engines: each has a part of the same size.
    room: Room,
    /// Bytes of a part.
    one: usize,
    /// The QPNs of a loopback device with several engines.
    pub siblings: Option<Siblings>,
}

impl Plan {
    /// A plan of engines in `room`, which begins behind the device itself.
    ///
    /// # Errors
    /// As [`SoftDevice::init`].
    ///
    /// # Safety
    /// As for [`SoftDevice::init`].
    pub unsafe fn new(memory: *mut u8, name: DeviceName, config: &SoftConfig<'_>) -> Result<Plan> {
        let EngineCount { most, at_open } = config.engines;
        let mut core = config.core;
        if core.seed == 0 {
            core.seed = clock::random_seed()?;
        }
        let siblings = siblings_of(&name, config, core.seed)?;
        let own = part_at(Some(size_of::<SoftDevice>()))?;
        let one = SoftEngine::memsize(&name, config, siblings.as_ref())?;
        // SAFETY: our contract: the memory has room for the device and `most` parts.
        let room = Room { at: unsafe { memory.add(own) }, bytes: most as usize * one };
        let pcap = config.pcap.filter(|_| at_open < most).map(Into::into);
        let SoftConfig { flags, path, engines, .. } = *config;
        let config = SoftConfig { core, flags, path, pcap: None, faults: None, engines };
        Ok(Plan { name, config, pcap, room, one, siblings })
    }

    /// Opens engine `k` in its part, with a capture and faults or none.
    ///
    /// # Errors
    /// As [`SoftEngine::init`].
    ///
    /// # Safety
    /// No such engine is open.
    unsafe fn open(
        &self,
        k: usize,
        pcap: Option<&CStr>,
        faults: Option<&FaultSpec<'_>>,
    ) -> Result<&'static SoftEngine> {
        let mut config = SoftConfig { pcap, faults, ..self.config };
        config.core.seed = config.core.seed.wrapping_add(k as u64);
        if let Some(siblings) = &self.siblings {
            config.core.qpn_base = siblings.qpns.first_of(k);
        }
        debug_assert!((k + 1) * self.one <= self.room.bytes);
        // SAFETY: the room has a part for each engine of the device.
        let part = unsafe { self.room.at.add(k * self.one) };
        // SAFETY: the part is this engine's alone (our contract), and lives as the device does.
        unsafe { SoftEngine::init(part, self.one, &self.name, &config, self.siblings) }
    }
}

/// State that calls for the whole device change, under [`SoftDevice::control`].
#[derive(Default)]
pub(super) struct DeviceState {
    /// Memory that the program gave. A part of each room is for engines that are not made yet.
    rooms: heapless::Vec<Room, ROOMS>,
    /// Whether the helpers run.
    helper: bool,
    /// The device itself, once it is in its place.
    device: Option<&'static SoftDevice>,
    /// Engines that are made later are linked with all others.
    pub(super) links_all: bool,
}

impl SoftDevice {
    /// Tells the engines that were made at the opening about each other, once the device is in its
    /// place.
    pub(super) fn introduce(&'static self) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        control.device = Some(self);
        if self.engines.most() > 1 {
            for (k, engine) in self.engines.numbered() {
                engine.lock_control().set_other_tables(self, k);
            }
        }
        self.engines.first().watch_interface();
    }

    /// Makes the engines of a new device that are made at its opening.
    ///
    /// # Errors
    /// As [`SoftDevice::init`].
    pub(super) fn make_first(&self, config: &SoftConfig<'_>) -> Result<()> {
        for k in 0..self.plan.config.engines.at_open as usize {
            // SAFETY: nobody has seen the device yet.
            let engine = unsafe { self.plan.open(k, config.pcap, config.faults)? };
            self.engines.put(k, engine);
            self.watch(engine)?;
        }
        Ok(())
    }

    /// An engine that exists.
    ///
    /// # Errors [`Error::StaleHandle`]: the engine does not exist, so no program has a handle of
    /// it.
    pub(super) fn existing_engine(&self, k: usize) -> Result<&'static SoftEngine> {
        // No words: no call of the program comes here.
        self.engines.get(k).ok_or(Error::StaleHandle)
    }

    /// The engine `k`. Makes it if it does not exist; if the system's limits prevent that now,
    /// returns another engine.
    ///
    /// # Errors
    /// [`Error::OwnerDead`]: a parent of this process opened the device.
    pub(super) fn engine_at(&self, k: usize) -> Result<(usize, &'static SoftEngine)> {
        if let Some(engine) = self.engines.get(k) {
            return Ok((k, engine));
        }
        let control = self.control()?;
        if let Some(engine) = self.engines.get(k) {
            return Ok((k, engine));
        }
        match self.make(&control, k) {
            Ok(engine) => Ok((k, engine)),
            Err(_) => {
                let made = self.engines.iter().count();
                let other = self.engines.numbered().nth(k % made);
                Ok(other.unwrap_or((0, self.engines.first())))
            }
        }
    }

    fn make(&self, control: &DeviceState, k: usize) -> Result<&'static SoftEngine> {
        let engine = with_stack("gdrc-engine", || {
            // SAFETY: nobody makes engines but under `control`, and there is no engine `k`.
            let engine = unsafe { self.plan.open(k, self.plan.pcap.as_deref(), None)? };
            self.complete(control, k, engine).inspect_err(|_| {
                // SAFETY: nobody has seen the engine yet.
                unsafe { engine.close() };
            })?;
            Ok(engine)
        })?;
        self.with_all_locked(|all| {
            // While all locks are held nobody binds a window of type 1. So each binding is either
            // copied with the engines, or comes later and reaches this engine, too.
            engine.lock_control().adopt_bindings(&all[0]);
            self.engines.put(k, engine);
            Ok(())
        })?;
        // Threads that sleep on the device have not armed this engine.
        if let Some(waiter) = &self.waiter {
            waiter.notify();
        }
        self.has_unarmed_engine.store(true, Ordering::Release);
        Ok(engine)
    }

    /// Gives an engine all that belongs to the whole device.
    fn complete(&self, control: &DeviceState, k: usize, engine: &'static SoftEngine) -> Result<()> {
        for room in &control.rooms {
            let (at, bytes) = self.part_of(room, k);
            // SAFETY: the contract of `arena_add`, and the part is this engine's alone.
            unsafe { engine.arena_add(at, bytes)? };
        }
        let first = self.engines.first();
        {
            let (mut theirs, mut held) = (first.lock_control(), engine.lock_control());
            held.adopt_all(&theirs)?;
            if let Some(device) = control.device {
                held.set_other_tables(device, k);
            }
            if let (Some(of), Some(shm)) = (&theirs.port().shm, &mut held.port().shm) {
                shm.share_all(of)?;
            }
        }
        let places = first.lock()?.ah_places();
        for place in 0..places {
            let Some((ah, pd, attr)) = first.lock()?.ah_at(place) else { continue };
            engine.with_path(&attr, |g| g.ah_follow(ah, pd, &attr))?;
        }
        if control.links_all {
            self.link_with_others((k, engine))?;
        }
        if let Some((_, sinks)) = control.device.and_then(|device| device.sinks.get()) {
            engine.deliver_to(&sinks[k]);
        }
        if control.helper {
            engine.helper(true)?;
        }
        self.watch(engine)
    }

    /// Lets an engine's descriptor wake the threads that sleep on the device.
    fn watch(&self, engine: &SoftEngine) -> Result<()> {
        self.waiter.as_ref().map_or(Ok(()), |waiter| waiter.attach(engine.waiter.user_fd(), true))
    }

    /// The part of an engine in memory of the program's.
    fn part_of(&self, room: &Room, k: usize) -> (*mut u8, usize) {
        let part = match self.engines.most() {
            1 => room.bytes,
            most => (room.bytes / most) & !4095,
        };
        (room.at.wrapping_add(k * part), part)
    }

    /// `Device::arena_add`.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn give_room(&self, memory: *mut u8, bytes: usize) -> Result<()> {
        let mut control = self.control()?;
        let room = Room { at: memory, bytes };
        if control.rooms.is_full() {
            return Err(refuse!(NoMemory, "memory was given {ROOMS} times: more cannot be noted"));
        }
        for (k, engine) in self.engines.numbered() {
            let (at, bytes) = self.part_of(&room, k);
            // SAFETY: the caller's promise; each part is one engine's. If one is refused it is the
            // first: all have had parts of the same sizes.
            unsafe { engine.arena_add(at, bytes)? };
        }
        if self.engines.iter().count() < self.engines.most() {
            // There is room: checked above.
            let _ = control.rooms.push(room);
        }
        Ok(())
    }

    /// `Device::helper`.
    ///
    /// # Errors
    /// As there.
    pub(super) fn all_helpers(&self, on: bool) -> Result<()> {
        let mut control = self.control()?;
        for (k, engine) in self.engines.numbered() {
            if let Err(e) = engine.helper(on) {
                for (_, before) in self.engines.numbered().filter(|(of, _)| *of < k) {
                    before.helper(false)?;
                }
                return Err(e);
            }
        }
        control.helper = on;
        Ok(())
    }
}

/// Windows of type 1 are bound in all engines at once.
impl OtherTables for SoftDevice {
    fn change(&self, own: usize, change: &mut dyn FnMut(&mut Regions)) -> bool {
        let mut all = heapless::Vec::<ControlGuard<'static>, MAX_ENGINES>::new();
        for (_, engine) in self.engines.numbered().filter(|(k, _)| *k != own) {
            let Some(held) = engine.try_lock() else { return false };
            // There is room for each.
            let _ = all.push(ControlGuard::new(held));
        }
        all.iter_mut().for_each(|held| change(held.regions()));
        true
    }
}
