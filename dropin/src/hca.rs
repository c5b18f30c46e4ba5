//! An open device. All contexts of the process on one address share it, as they share a NIC. So
//! their queue pairs reach each other, and the address is bound once.
//!
//! The thread that runs the engine delivers the device's events at once: it queues them for their
//! channel or context, and one write wakes a sleeping program.
//!
//! Locks are taken in the order engine, `objects`, queue. So nothing here calls the device while it
//! holds `objects`.

use crate::abi::{ibv_async_element, ibv_async_event, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::adapter::Adapter;
use crate::env;
use crate::event_acks::{AckCounters, EventKind};
use crate::event_queue::EventQueue;
use crate::hca_kinds::{HcaDevice, OpenedDevice};
use crate::object_numbers;
use crate::worker::HelperThread;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use gdrcore_core::cm::mad::MAD_LEN;
use gdrcore_core::cm::other_mads::OtherMad;
use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::device::{async_event, AsyncEvent, Device, DeviceAttr};
use gdrcore_core::verbs::types::{AhAttr, Handle};
use gdrcore_core::{refuse, Error, Result};
use gdrcore_net::map::Map;
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_net::soft::{EventSink, SoftDevice};
use gdrcore_net::thread_lock::retry_while_busy;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The most events of a kind that [`Hca::pump`] delivers at a time.
const BURST: u32 = 64;

/// The thread that handles the events of connection managers.
pub static CM_EVENTS: HelperThread = HelperThread::new();

/// An object that can have events: a CQ, a QP or an SRQ.
pub trait EventTarget {
    fn kind(&self) -> EventKind;

    /// The context on which it was made.
    fn context(&self) -> *mut ibv_context;

    /// The object in the form that asynchronous events have.
    fn element(&self) -> ibv_async_element;

    /// The fields by which its asynchronous events are acknowledged.
    fn acks(&self) -> AckCounters;

    /// Counts the asynchronous events that the program has taken.
    fn async_taken(&self) -> &AtomicU32;

    /// Queues a completion event for the channel of an armed CQ. Called by the thread that runs the
    /// engine.
    fn raise_completion(&self) {}

    /// The multicast groups that it is a member of.
    fn groups(&self) -> Vec<[u8; 16]> {
        Vec::new()
    }

    /// The handle of the queue pair with this number. `None`: this is another object.
    fn handle_of(&self, _number: u32) -> Option<Handle> {
        None
    }

    /// Whether this is the first such question about the queue pair with this number. `None`: this
    /// is another object.
    fn is_first_failure(&self, _number: u32) -> Option<bool> {
        None
    }
}

/// The thread that runs the engine calls this for arrived management datagrams, except those of the
/// connection manager.
pub static ON_OTHER_MAD: OnceLock<fn()> = OnceLock::new();

/// What is done when a CQ has failed: its address as the program has it. Called by the thread that
/// runs the engine, with `objects` locked.
pub static ON_CQ_ERROR: OnceLock<fn(usize)> = OnceLock::new();

/// A context of the device, with its event queue.
pub struct OpenContext {
    pub ibv: *mut ibv_context,
    pub events: *const EventQueue<ibv_async_event>,
}

/// A file by its device and inode.
pub type File = (u64, u64);

/// The XRC domain of a file, and the number of handles that programs have of it.
pub struct XrcFile {
    pub handle: Handle,
    pub opens: usize,
}

/// The objects of a device.
#[derive(Default)]
pub struct Objects {
    pub by_handle: HashMap<Handle, *const dyn EventTarget>,
    /// Objects that another context may import, by the number that programs see.
    pub domains: HashMap<u32, *mut ibv_pd>,
    pub regions: HashMap<u32, *mut ibv_mr>,
    pub dms: HashMap<u32, *mut ibv_dm>,
    /// Further handles, from `ibv_open_qp`, of XRC targets that are in `by_handle`.
    pub opened: HashMap<Handle, Vec<*const dyn EventTarget>>,
    /// XRC domains that programs named by a file.
    pub xrc_files: HashMap<File, XrcFile>,
    pub contexts: Vec<OpenContext>,
}

// SAFETY: the pointers are to objects that leave the table, under its lock, before they are freed.
unsafe impl Send for Objects {}

impl Objects {
    /// Removes one of several handles of an object, which lives on. False: it is the only handle,
    /// and stays until the object has ended.
    pub fn remove_one_of_several(
        &mut self,
        handle: Handle,
        target: *const dyn EventTarget,
    ) -> bool {
        let Some(others) = self.opened.get_mut(&handle) else { return false };
        let first = self.by_handle.get(&handle).is_some_and(|t| core::ptr::addr_eq(*t, target));
        if !first {
            others.retain(|t| !core::ptr::addr_eq(*t, target));
        } else if let Some(next) = others.pop() {
            self.by_handle.insert(handle, next);
        }
        if others.is_empty() {
            self.opened.remove(&handle);
        }
        true
    }

    /// The queue of a context's asynchronous events.
    fn events_of(&self, context: *mut ibv_context) -> Option<&EventQueue<ibv_async_event>> {
        let found = self.contexts.iter().find(|c| c.ibv == context)?;
        // SAFETY: what is in the table lives.
        Some(unsafe { &*found.events })
    }

    /// Queues an event of the port or the device for each context.
    fn tell_contexts(&self, event_type: u32) {
        for context in &self.contexts {
            // SAFETY: what is in the table lives.
            unsafe { &*context.events }.push(ibv_async_event::of_port(event_type));
        }
    }
}

/// An open device.
pub struct Hca {
    pub device: &'static dyn Device,
    place: HcaDevice,
    pub attr: DeviceAttr,
    /// Least size of the next growth in bytes.
    growth: AtomicUsize,
    /// The memory of the device.
    maps: Mutex<Vec<Map>>,
    objects: Mutex<Objects>,
    /// The number of thread domains made so far.
    pub thread_domains: AtomicU32,
    /// The router of a remote device has ended. Set with `objects` locked, while all contexts of
    /// the table are told; [`Hca::add_context`] tells a later one.
    lost: AtomicBool,
}

/// The initial limits of a device. Create calls grow the tables up to 256 times these limits, as
/// far as [`Config::table`] allows: a million regions and windows, 32,768 domains, 65,536 of each
/// other object. Until then a table is a directory of untouched pages.
const CONFIG: Config = Config {
    growth: 256,
    max_pd: 128,
    max_mr: 4096,
    max_cq: 256,
    max_qp: 256,
    max_srq: 64,
    max_ah: 256,
    max_peer: 512,
    ring_bytes: 4 << 20,
    max_sge: 32,
    max_inline: 1024,
    max_rd_atomic: 32,
    // Programs close one end while the other still has receives posted. A NIC reports nothing then,
    // so neither does this device. Programs choose timeouts for NICs, which never wait for a CPU:
    // the device lengthens them.
    flags: config_flags::SILENT_LOSS | config_flags::LONG_TIMEOUTS,
    ..Config::DEFAULT
};

/// First growth in bytes. Each is twice the one before, so 14 of them add 128 GiB.
const GROWTH: usize = 8 << 20;

impl Hca {
    /// Opens the device of an adapter.
    ///
    /// # Errors
    /// Those of the device: its address is taken or not of this machine, no memory, the system's.
    pub fn open(adapter: &Adapter) -> Result<&'static Hca> {
        let core =
            Config { keepalive_ns: env::keepalive_ns(), qpn_count: env::qpn_count(), ..CONFIG };
        let OpenedDevice { place, maps } = (adapter.kind.open)(&adapter.device_name(), &core)?;
        let device = place.device();
        // SAFETY: nobody else knows the device.
        let attr = device.facts().inspect_err(|_| unsafe { place.close() })?;
        let hca: &'static Hca = Box::leak(Box::new(Hca {
            device,
            place,
            attr,
            growth: AtomicUsize::new(GROWTH),
            maps: Mutex::new(maps),
            objects: Mutex::default(),
            thread_domains: AtomicU32::new(0),
            lost: AtomicBool::new(false),
        }));
        if let Err(e) = place.start(hca) {
            // SAFETY: nobody else knows the device.
            unsafe { hca.close() };
            return Err(e);
        }
        Ok(hca)
    }

    /// The device, if it is in this process.
    pub fn soft(&self) -> Option<&'static SoftDevice> {
        self.place.soft()
    }

    /// The device, if it is a router's.
    pub fn router(&self) -> Option<&'static RemoteDevice> {
        self.place.router()
    }

    /// Sends a management datagram of another class than the connection manager's.
    ///
    /// # Errors
    /// Those of [`SoftDevice::send_other_mad`]; [`Error::Unsupported`]: a device of a router.
    pub fn send_other_mad(&self, to: &AhAttr, mad: &[u8; MAD_LEN]) -> Result<()> {
        let soft = self.soft().ok_or_else(|| {
            refuse!(Unsupported, "a device of a router sends no management datagrams")
        })?;
        soft.send_other_mad(to, mad)
    }

    /// Takes the next such datagram that has arrived.
    ///
    /// # Errors
    /// Those of [`SoftDevice::take_other_mad`].
    pub fn take_other_mad(&self) -> Result<Option<OtherMad>> {
        self.soft().map_or(Ok(None), SoftDevice::take_other_mad)
    }

    /// Delivers events of a device that has no thread in this process: a limited number, since the
    /// caller holds the list of devices. Returns the descriptor that is readable while there are
    /// others; `None`: there will be none.
    pub fn pump(&self) -> Option<RawFd> {
        if self.soft().is_some() || self.is_lost() {
            return None;
        }
        let deliver = || {
            for cq in (0..BURST).map_while(|_| self.device.cq_event().transpose()) {
                self.cq_event(cq?);
            }
            for event in (0..BURST).map_while(|_| self.device.async_event().transpose()) {
                self.async_event(event?);
            }
            if self.place.hears_cm()? {
                self.cm_event();
            }
            self.device.fd()
        };
        deliver().inspect_err(|_| self.lose()).ok()
    }

    /// The router of the device has ended, and the device with it.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// The device is gone: tells the program, and wakes its threads that wait for completions.
    /// Their polls then fail.
    fn lose(&self) {
        let objects = self.objects();
        self.lost.store(true, Ordering::Relaxed);
        for target in objects.by_handle.values() {
            // SAFETY: what is in the table, which is locked, lives.
            unsafe { &**target }.raise_completion();
        }
        objects.tell_contexts(async_event::DEVICE_FATAL);
        drop(objects);
        self.cm_event();
    }

    /// Adds a context, so that events reach it.
    pub fn add_context(&self, context: OpenContext) {
        let mut objects = self.objects();
        if self.is_lost() {
            let fatal = ibv_async_event::of_port(async_event::DEVICE_FATAL);
            // SAFETY: the caller's queue, which lives as long as it is in the table.
            unsafe { &*context.events }.push(fatal);
        }
        objects.contexts.push(context);
    }

    /// Closes the device and frees its memory.
    ///
    /// # Safety
    /// No thread uses the device or this any more.
    pub unsafe fn close(&'static self) {
        // SAFETY: the caller's promise.
        unsafe { self.place.close() };
        object_numbers::free_all(self);
        // SAFETY: made by Box::leak in `open`; the device, which knew it, is gone. The maps go with
        // it.
        drop(unsafe { Box::from_raw((&raw const *self).cast_mut()) });
    }

    /// Checks that this process opened the device.
    ///
    /// # Errors
    /// [`Error::OwnerDead`]: a parent process did.
    pub fn check(&self) -> Result<()> {
        self.device.fd().map(|_| ())
    }

    /// The table of objects.
    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Destroys the queues that a program left on a context that it closes, because their events
    /// would have no context. Other objects end with the device.
    pub fn end_queues_of(&self, context: *mut ibv_context) {
        let mut left: Vec<(Handle, EventKind, Vec<[u8; 16]>)> = Vec::new();
        let mut objects = self.objects();
        // A queue pair with a handle of another context stays.
        let Objects { opened, by_handle, .. } = &mut *objects;
        opened.retain(|handle, others| {
            // SAFETY: what is in the table lives.
            let of_theirs = |t: &*const dyn EventTarget| unsafe { &**t }.context() == context;
            others.retain(|t| !of_theirs(t));
            if by_handle.get(handle).is_some_and(of_theirs) {
                if let Some(next) = others.pop() {
                    by_handle.insert(*handle, next);
                }
            }
            !others.is_empty()
        });
        by_handle.retain(|handle, target| {
            // SAFETY: what is in the table lives.
            let target = unsafe { &**target };
            let theirs = target.context() == context;
            if theirs {
                left.push((*handle, target.kind(), target.groups()));
            }
            !theirs
        });
        drop(objects);
        // Queue pairs first, because they use the others; SRQs before CQs, because one of XRC has a
        // CQ. A queue that another context's QP uses cannot be destroyed; it ends with the device.
        left.sort_by_key(|(_, kind, _)| match kind {
            EventKind::Qp => 0,
            EventKind::Srq => 1,
            EventKind::Cq | EventKind::Port => 2,
        });
        for (handle, kind, groups) in left {
            let _ = match kind {
                EventKind::Qp => {
                    for gid in groups {
                        let _ = self.device.mcast_detach(handle, &gid);
                    }
                    retry_while_busy(|| self.device.qp_destroy(handle))
                }
                EventKind::Srq => self.device.srq_destroy(handle),
                EventKind::Cq => self.device.cq_destroy(handle),
                EventKind::Port => Ok(()),
            };
        }
    }

    /// Makes an object; if the device has no room for it, gives the device more memory. `bytes`:
    /// approximate size of the object's rings.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn make<T>(
        &self,
        bytes: usize,
        mut make: impl FnMut(&dyn Device) -> Result<T>,
    ) -> Result<T> {
        match make(self.device) {
            // A router's device grows by itself, up to the session's quotas.
            Err(Error::NoMemory) if self.soft().is_some() => {}
            done => return done,
        }
        self.grow(bytes)?;
        make(self.device)
    }

    fn grow(&self, bytes: usize) -> Result<()> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.growth.load(Ordering::Relaxed);
        // The heap rounds up to powers of two, and a ring has several parts: each may double the
        // bytes.
        let size = next.max(bytes.checked_mul(4).ok_or(Error::NoMemory)?);
        // The device divides the memory among its engines; each has a completion vector.
        let size = size.checked_mul(self.device.vectors() as usize).ok_or(Error::NoMemory)?;
        let map = Map::new(size)?;
        // SAFETY: a fresh map, kept until the device is closed.
        unsafe { self.device.arena_add(map.as_ptr(), map.len())? };
        self.growth.store(next.saturating_mul(2), Ordering::Relaxed);
        maps.push(map);
        Ok(())
    }
}

impl EventSink for Hca {
    fn cq_event(&self, cq: Handle) {
        if let Some(target) = self.objects().by_handle.get(&cq) {
            // SAFETY: what is in the table, which is locked, lives.
            unsafe { &**target }.raise_completion();
        }
    }

    fn cm_event(&self) {
        CM_EVENTS.wake();
    }

    fn other_mad_event(&self) {
        if let Some(arrived) = ON_OTHER_MAD.get() {
            arrived();
        }
    }

    fn async_event(&self, e: AsyncEvent) {
        let objects = self.objects();
        let event_type = e.event;
        debug_assert!(event_type <= async_event::GID_CHANGE);
        match objects.by_handle.get(&e.handle) {
            Some(first) => {
                if let (async_event::CQ_ERR, Some(failed)) = (event_type, ON_CQ_ERROR.get()) {
                    // SAFETY: what is in the table, which is locked, lives; it is a CQ.
                    failed(unsafe { (&**first).element().cq } as usize);
                }
                let others = objects.opened.get(&e.handle).map_or(&[][..], |all| all);
                for target in others.iter().chain([first]) {
                    // SAFETY: what is in the table, which is locked, lives.
                    let target = unsafe { &**target };
                    if let Some(events) = objects.events_of(target.context()) {
                        events.push(ibv_async_event { element: target.element(), event_type });
                    }
                }
            }
            None if e.handle == 0 => objects.tell_contexts(event_type),
            None => {}
        }
    }
}
