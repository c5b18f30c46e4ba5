//! An open soft device. All contexts of the process on one address share it, as all contexts of a process
//! share a NIC: their queue pairs reach each other, and the address is bound once.
//!
//! It takes the events of the device as they happen, on whatever thread runs the engine, and puts them into the queue of
//! the channel or context that they are for: a sleeping program is woken by one write.
//!
//! Locks are taken in the order engine, `objects`, queue. So nothing here calls the device while it holds `objects`.

use crate::abi::{ibv_async_event, ibv_context};
use crate::adapter::{Adapter, OpenHca, STATE};
use crate::context::Context;
use crate::cq::Cq;
use crate::dm::Dm;
use crate::env;
use crate::lock::in_turn;
use crate::mr::Mr;
use crate::null;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::stats;
use crate::worker::with_stack;
use core::sync::atomic::{AtomicUsize, Ordering};
use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::device::{async_event, AsyncEvent, Device, DeviceAttr};
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::{Error, Result};
use gdrcore_net::map::Map;
use gdrcore_net::reason;
use gdrcore_net::soft::{soft_flags, EventSink, SoftConfig, SoftDevice};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where events go: the objects that can have some.
#[derive(Clone, Copy)]
pub enum Object {
    Cq(*mut Cq),
    Qp(*mut Qp),
    Srq(*mut Srq),
}

impl Object {
    /// The context that it was made on.
    fn context(self) -> *mut ibv_context {
        // SAFETY: what is in the table lives.
        unsafe {
            match self {
                Object::Cq(p) => (*p).ex.base.context,
                Object::Qp(p) => (*p).ex.qp_base.context,
                Object::Srq(p) => (*p).context(),
            }
        }
    }
}

/// The objects of a device.
#[derive(Default)]
pub struct Objects {
    pub by_handle: HashMap<Handle, Object>,
    /// What another context may import, by the number that programs see.
    pub domains: HashMap<u32, *mut Pd>,
    pub regions: HashMap<u32, *mut Mr>,
    pub dms: HashMap<u32, *mut Dm>,
    pub contexts: Vec<*mut Context>,
}

// SAFETY: the pointers are to objects that leave the table, under its lock, before they are freed.
unsafe impl Send for Objects {}

/// An open device.
pub struct Hca {
    pub device: &'static SoftDevice,
    /// What the device can do.
    pub attr: DeviceAttr,
    /// Bytes that the next growth takes at least.
    growth: AtomicUsize,
    /// All its memory.
    maps: Mutex<Vec<Map>>,
    objects: Mutex<Objects>,
}

/// What the device begins with; tables grow to sixteen times of it inside create calls.
const CONFIG: Config = Config {
    max_pd: 64,
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
    // Programs may close their end while the other still has receives posted: on a NIC nobody hears of that.
    flags: config_flags::SILENT_LOSS,
    ..Config::DEFAULT
};

/// First growth; each is twice the one before, so that 14 of them hold what a process can use.
const GROWTH: usize = 8 << 20;

impl Hca {
    /// The open device of an adapter, opened if it is not.
    ///
    /// # Errors
    /// Those of [`SoftDevice::init`].
    pub fn get(adapter: &'static Adapter) -> Result<&'static Hca> {
        let mut state = STATE.lock();
        // What a parent of this process had open is not ours.
        state.open.retain(|o| o.hca.device.query().is_ok());
        if let Some(o) = state.open.iter_mut().find(|o| o.index == adapter.index) {
            o.contexts += 1;
            return Ok(o.hca);
        }
        stats::install();
        let hca = with_stack("gdrc-open", || {
            // The words are those of the thread that was refused.
            reason::install();
            reason::clear();
            Hca::open(adapter).inspect_err(|&e| {
                reason::returned(e);
                reason::with(|words| env::say(&format!("{} ({}): {words}", adapter.name(), adapter.endpoint)));
            })
        })?;
        state.open.push(OpenHca { index: adapter.index, contexts: 1, hca });
        Ok(hca)
    }

    fn open(adapter: &Adapter) -> Result<&'static Hca> {
        let pcap = env::pcap();
        let (path, flags) = env::path(pcap.is_some());
        // Other devices and processes of the program may have begun it.
        let flags = flags | soft_flags::KEEP_CAPTURE;
        let core = Config { keepalive_ns: env::keepalive_ns(), ..CONFIG };
        let config = SoftConfig { core, flags, path, pcap: pcap.as_deref() };
        let name = adapter.device_name();
        let map = Map::new(SoftDevice::memsize(&name, &config)?)?;
        // SAFETY: the map is fresh, page-aligned, and kept until the device is closed.
        let device = unsafe { SoftDevice::init(map.as_ptr(), map.len(), &name, &config)? };
        let attr = device.query()?;
        let hca: &'static Hca = Box::leak(Box::new(Hca {
            device,
            attr,
            growth: AtomicUsize::new(GROWTH),
            maps: Mutex::new(vec![map]),
            objects: Mutex::default(),
        }));
        device.deliver_to(hca);
        // Programs that poll memory, or sleep, rely on somebody else to run the engine.
        if let Err(e) = device.memory_add(null::PROVIDER, &null::Null).and_then(|()| device.helper(true)) {
            // SAFETY: nobody else knows the device.
            unsafe { hca.close() };
            return Err(e);
        }
        Ok(hca)
    }

    /// One context less; the last one closes the device.
    pub fn put(&'static self) {
        let mut state = STATE.lock();
        let Some(at) = state.open.iter().position(|o| core::ptr::eq(o.hca, self)) else { return };
        state.open[at].contexts -= 1;
        if state.open[at].contexts == 0 {
            state.open.remove(at);
            if let Ok(counters) = self.device.counters() {
                state.closed.add(&counters);
            }
            // SAFETY: no context is left, so no object of theirs may be used any more.
            unsafe { self.close() };
        }
    }

    /// # Safety
    /// Nobody uses the device or this any more.
    unsafe fn close(&'static self) {
        // SAFETY: the caller's promise.
        unsafe { self.device.close() };
        // SAFETY: made by Box::leak in `open`; the device, which knew it, is gone. The maps go with it.
        drop(unsafe { Box::from_raw((&raw const *self).cast_mut()) });
    }

    /// Whether this process opened the device.
    ///
    /// # Errors
    /// [`Error::OwnerDead`]: its parent did.
    pub fn check(&self) -> Result<()> {
        self.device.fd().map(|_| ())
    }

    /// The table of objects.
    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the queues that a program leaves on a context which it closes: their events would have nowhere to go. What else it
    /// leaves goes with the device.
    pub fn end_queues_of(&self, context: *mut ibv_context) {
        let mut left: Vec<(Handle, Object)> = {
            let mut objects = self.objects();
            let theirs = |o: &Object| o.context() == context;
            let left = objects.by_handle.iter().filter(|(_, o)| theirs(o)).map(|(h, o)| (*h, *o)).collect();
            objects.by_handle.retain(|_, o| !theirs(o));
            left
        };
        // Queue pairs first: they use the others. Errors are for queues that other contexts' QPs use; those go later.
        left.sort_by_key(|(_, o)| !matches!(o, Object::Qp(_)));
        for (handle, object) in left {
            let _ = match object {
                Object::Qp(_) => in_turn(|| self.device.qp_destroy(handle)),
                Object::Srq(_) => self.device.srq_destroy(handle),
                Object::Cq(_) => self.device.cq_destroy(handle),
            };
        }
    }

    /// Makes an object; where the device has no room for it, gives it more memory. `bytes`: of its rings, about.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn make<T>(&self, bytes: usize, mut make: impl FnMut(&SoftDevice) -> Result<T>) -> Result<T> {
        match make(self.device) {
            Err(Error::NoMemory) => {}
            done => return done,
        }
        self.grow(bytes)?;
        make(self.device)
    }

    fn grow(&self, bytes: usize) -> Result<()> {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.growth.load(Ordering::Relaxed);
        // The heap gives powers of two, so what is asked may take twice as much, and as much again for the parts.
        let size = next.max(bytes.checked_mul(4).ok_or(Error::NoMemory)?);
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
        let objects = self.objects();
        if let Some(Object::Cq(cq)) = objects.by_handle.get(&cq) {
            // SAFETY: what is in the table lives.
            unsafe { (**cq).raise() };
        }
    }

    fn cm_event(&self) {
        crate::ucma::wake();
    }

    fn async_event(&self, e: AsyncEvent) {
        let objects = self.objects();
        let event_type = e.event;
        match objects.by_handle.get(&e.handle) {
            // SAFETY: what is in the table lives.
            Some(Object::Cq(p)) => unsafe { (**p).raise_async(event_type) },
            // SAFETY: as above.
            Some(Object::Qp(p)) => unsafe { (**p).raise_async(event_type) },
            // SAFETY: as above.
            Some(Object::Srq(p)) => unsafe { (**p).raise_async(event_type) },
            None if e.handle == 0 => {
                for c in &objects.contexts {
                    // SAFETY: as above.
                    unsafe { &**c }.events.push(ibv_async_event::of_port(event_type));
                }
            }
            None => {}
        }
        debug_assert!(event_type <= async_event::GID_CHANGE);
    }
}
