//! [`VerbsDevice`]: opens and closes a NIC, and makes and destroys its objects.

use core::mem::{size_of, MaybeUninit};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Mutex;

use crate::abi::{Module, Object, Opened, Port, QpMade, QpMake, Source, Text};
use crate::cm_ids::Manages;
use crate::event_set::Events;
use crate::name::NicName;
use crate::objects::{lock, Ah, Channel, Cq, Mr, Mw, Qp, Srq, Tables};
use crate::open;
use crate::slots::Slots;
use crate::{errno, load};
use gdrcore_core::arena::Walk;
use gdrcore_core::config::Config;
use gdrcore_core::device::{Device, Leaks};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::types::{qp_type, AhAttr, Handle, QpCap};
use gdrcore_core::wire::grh::is_link_local;

/// UDP port of RoCE v2: NICs send to no other.
pub const ROCE_PORT: u16 = 4791;

/// A NIC that libibverbs drives.
///
/// Handles, bounds and causes are ours, in the memory that [`VerbsDevice::init`] gets. The NIC does
/// the transport.
///
/// # Thread-safety
/// Any thread may call any function. If two threads use one side of a QP, poll one CQ or post to
/// one SRQ at once, one of them gets [`Error::Busy`]. The device does not check for a forked child;
/// the C API does.
pub struct VerbsDevice {
    pub(crate) opened: Opened,
    pub(crate) qps: Slots<Qp>,
    pub(crate) cqs: Slots<Cq>,
    pub(crate) srqs: Slots<Srq>,
    pub(crate) ahs: Slots<Ah>,
    pub(crate) mws: Slots<Mw>,
    pub(crate) mrs: Slots<Mr>,
    pub(crate) pds: Slots<()>,
    pub(crate) xrcds: Slots<()>,
    pub(crate) channels: Slots<Channel>,
    pub(crate) cm: Manages,
    pub(crate) module: &'static Module,
    pub(crate) port: Port,
    pub(crate) source: Source,
    pub(crate) gid: [u8; 16],
    pub(crate) scope_id: u32,
    pub(crate) config: Config,
    /// Most bytes of inline data of a QP.
    pub(crate) inline: u32,
    /// Name in sysfs.
    pub(crate) name: open::DeviceName,
    /// Protects the tables of handles. Never held during a call of libibverbs.
    control: Mutex<()>,
    pub(crate) events: Events,
    /// The device is gone.
    pub(crate) gone: AtomicBool,
    /// The last cause, of any QP or of none.
    pub(crate) last: Mutex<Cause>,
}

/// The layout of the device's memory.
fn layout(
    walk: &mut Walk,
    config: &Config,
) -> Result<(gdrcore_core::arena::RawBytes, Config, Tables)> {
    let config = config.resolve()?;
    let device = walk.bytes(size_of::<VerbsDevice>(), 128)?;
    let tables = Tables::carve(walk, &config)?;
    Ok((device, config, tables))
}

/// The object that a function of the module makes.
pub(crate) fn made(make: impl FnOnce(&mut Object) -> i32) -> Result<Object> {
    let mut object = null_mut();
    errno(make(&mut object))?;
    Ok(object)
}

/// A loader of the table of functions that [`VerbsDevice`] needs; tests pass their own.
pub(crate) type Loader = fn(&mut Text) -> Result<&'static Module>;

impl VerbsDevice {
    /// Bytes of memory that [`VerbsDevice::init`] needs.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Invalid`]: the name; [`Error::Invalid`]: a bound of the
    /// configuration.
    pub fn memsize(name: &str, config: &Config) -> Result<usize> {
        NicName::parse(name)?;
        let mut walk = Walk::size_query();
        layout(&mut walk, config)?;
        Ok(walk.offset())
    }

    /// Loads the module, opens a NIC, and makes a device of it in the given memory, where it stays
    /// until [`VerbsDevice::close`].
    ///
    /// # Errors
    /// The name or a bound: [`Error::Invalid`]. No module, no such NIC, or its port is down:
    /// [`Error::NoDevice`]. No GID fits: [`Error::AddressNotLocal`]. Not RoCE, or libibverbs is
    /// gdrcore's own drop-in: [`Error::Unsupported`]. [`Error::NoMemory`]: fewer than
    /// [`VerbsDevice::memsize`] bytes. `why` gets the reason.
    ///
    /// # Safety
    /// Nothing else uses the memory, and it lives until `close` has returned.
    pub unsafe fn init(
        memory: *mut u8,
        bytes: usize,
        name: &str,
        config: &Config,
        why: &mut Text,
    ) -> Result<&'static VerbsDevice> {
        // SAFETY: our contract.
        unsafe { Self::init_with(load::module, memory, bytes, name, config, why) }
    }

    /// # Safety
    /// As for [`VerbsDevice::init`].
    pub(crate) unsafe fn init_with(
        load: Loader,
        memory: *mut u8,
        bytes: usize,
        name: &str,
        config: &Config,
        why: &mut Text,
    ) -> Result<&'static VerbsDevice> {
        let parsed = NicName::parse(name)?;
        // SAFETY: our contract.
        let mut walk = unsafe { Walk::carve(memory, bytes) }?;
        let (place, config, tables) = layout(&mut walk, config)?;
        let events = Events::new()?;
        let module = load(why)?;
        let chosen = open::open(module, &parsed, why)?;
        let ready = events
            .watch(chosen.opened.channel_fd)
            .and_then(|()| events.watch(chosen.opened.async_fd));
        let Tables { pds, xrcds, mrs, mws, ahs, cqs, srqs, qps, channels, cm_ids } = tables;
        let device = VerbsDevice {
            inline: inline(module, &chosen.opened, config.max_inline),
            scope_id: if is_link_local(&chosen.gid.gid) { chosen.gid.interface } else { 0 },
            name: chosen.device,
            opened: chosen.opened,
            port: chosen.port,
            source: chosen.source,
            gid: chosen.gid.gid,
            qps,
            cqs,
            srqs,
            ahs,
            mws,
            mrs,
            pds,
            xrcds,
            channels,
            cm: Manages::new(cm_ids),
            module,
            config,
            control: Mutex::new(()),
            events,
            gone: AtomicBool::new(false),
            last: Mutex::new(Cause::default()),
        };
        if let Err(e) = ready {
            // SAFETY: opened above, nothing was made on it.
            unsafe { (module.close)(device.opened.context, device.opened.channel) };
            return Err(e);
        }
        let place: *mut VerbsDevice = place.as_ptr().cast();
        // SAFETY: the walk gave this many aligned bytes to the device alone.
        unsafe { place.write(device) };
        // SAFETY: written above; it stays until close.
        Ok(unsafe { &*place })
    }

    /// Destroys the objects that the program left, closes the NIC, and returns the number of each.
    ///
    /// # Safety
    /// No thread is inside a call on the device, and none makes one afterwards.
    pub unsafe fn close(&self) -> Leaks {
        let leaks = self.left();
        // SAFETY: our contract.
        unsafe { self.close_cm() };
        // Destroys objects before those that they use. Errors are ignored, because closing the
        // context destroys the rest.
        macro_rules! end_all {
            ($($slots:ident $end:ident,)*) => {$(
                for (handle, _) in self.$slots.iter() {
                    let _ = self.$end(handle);
                }
            )*};
        }
        end_all! {
            qps qp_destroy, mws mw_dealloc, srqs srq_destroy, xrcds xrcd_dealloc, ahs ah_destroy,
            cqs cq_destroy, channels channel_destroy, mrs mr_dereg, pds pd_dealloc,
        }
        // SAFETY: an open device, used by nobody any more.
        unsafe { (self.module.close)(self.opened.context, self.opened.channel) };
        let place: *const VerbsDevice = self;
        // SAFETY: the last use of the device, as the caller promises.
        unsafe { core::ptr::drop_in_place(place.cast_mut()) };
        leaks
    }

    pub(crate) fn left(&self) -> Leaks {
        Leaks {
            pd: self.pds.live(),
            mr: self.mrs.live(),
            mw: self.mws.live(),
            cq: self.cqs.live(),
            qp: self.qps.live(),
            srq: self.srqs.live(),
            ah: self.ahs.live(),
        }
    }

    /// Makes an object: reserves its handle, calls `make`, publishes the handle.
    pub(crate) fn add<T>(
        &self,
        slots: &Slots<T>,
        make: impl FnOnce(Handle, &T) -> Result<Object>,
    ) -> Result<Handle> {
        let (handle, slot) = {
            let _held = lock(&self.control);
            slots.reserve()?
        };
        match make(handle, &slot.more) {
            Ok(object) => {
                slots.publish(handle, object);
                Ok(handle)
            }
            Err(e) => {
                let _held = lock(&self.control);
                slots.release(handle);
                Err(e)
            }
        }
    }

    /// Ends an object of a PD, as [`VerbsDevice::end`].
    pub(crate) fn end_of_pd<T>(
        &self,
        slots: &Slots<T>,
        handle: Handle,
        pd: fn(&T) -> &AtomicU64,
        destroy: unsafe extern "C" fn(Object) -> i32,
    ) -> Result<()> {
        let pd = pd(&slots.slot(handle)?.more).load(Relaxed);
        self.end(slots, handle, destroy)?;
        self.pds.disown(pd);
        Ok(())
    }

    /// Destroys an object: makes its handle stale, calls `destroy`, releases the handle.
    pub(crate) fn end<T>(
        &self,
        slots: &Slots<T>,
        handle: Handle,
        destroy: unsafe extern "C" fn(Object) -> i32,
    ) -> Result<()> {
        let object = slots.take_out(handle)?;
        // SAFETY: an object of this kind that nobody uses, nor will, as its handle is stale.
        let outcome = errno(unsafe { destroy(object) });
        // The error of a removed device no longer matters: its objects are gone, too.
        if outcome.is_err() && !self.gone.load(Relaxed) && outcome != Err(Error::NoDevice) {
            slots.put_back(handle);
            return outcome;
        }
        let _held = lock(&self.control);
        slots.release(handle);
        Ok(())
    }

    /// Refuses an address vector to which a NIC cannot send.
    pub(crate) fn reachable(&self, ah: &AhAttr) -> Result<()> {
        if ah.udp_port != 0 && ah.udp_port != ROCE_PORT {
            return Err(refuse!(
                Unsupported,
                "udp_port {}: a NIC sends to {ROCE_PORT} only",
                ah.udp_port
            ));
        }
        Ok(())
    }
}

/// Most bytes of inline data of this NIC's QPs, at most `wanted`. Verbs has no query for it, so
/// this makes a QP to find out.
fn inline(module: &Module, opened: &Opened, wanted: u32) -> u32 {
    let (mut pd, mut cq, mut cqe) = (null_mut(), null_mut(), 1);
    // SAFETY: an open context and writable results.
    if unsafe { (module.pd_alloc)(opened.context, &mut pd) } != 0 {
        return 0;
    }
    let mut found = 0;
    // SAFETY: as above.
    if unsafe { (module.cq_create)(opened.context, null_mut(), 0, &mut cqe, &mut cq) } == 0 {
        let mut bytes = wanted;
        while bytes > 0 {
            let cap = QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: bytes,
            };
            let make = QpMake {
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: null_mut(),
                xrcd: null_mut(),
                dc_key: 0,
                cookie: 0,
                qp_type: qp_type::RC,
                extended: 0,
                sq_sig_all: 0,
                cap,
            };
            let (mut made, mut why) = (MaybeUninit::<QpMade>::uninit(), Text::new());
            let create = module.qp_create;
            // SAFETY: live objects and writable results.
            if unsafe { create(opened.context, &make, made.as_mut_ptr(), &mut why) } == 0 {
                // SAFETY: written, as the call succeeded.
                let made = unsafe { made.assume_init() };
                found = made.cap.max_inline_data.min(wanted);
                // SAFETY: made above.
                unsafe { (module.qp_destroy)(made.qp) };
                break;
            }
            bytes /= 2;
        }
        // SAFETY: made above, its QPs are gone.
        unsafe { (module.cq_destroy)(cq) };
    }
    // SAFETY: as above.
    unsafe { (module.pd_dealloc)(pd) };
    found
}
