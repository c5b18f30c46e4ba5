//! Verbs of memory regions and windows.

use crate::abi::*;
use crate::dmah_verbs::Dmah;
use crate::hca::Hca;
use crate::null_memory;
use crate::object_numbers::{ObjectKind, ObjectNumber};
use crate::pd_verbs::Pd;
use crate::verb_result::{object, Verb};
use crate::weak;
use core::ffi::{c_int, c_uint, c_void};
use gdrcore_core::device::{MrAttr, MrReg};
use gdrcore_core::verbs::types::{access, Handle, ACCESS_ALL, ACCESS_REMOTE_CHANGE};
use gdrcore_core::{refuse, Error, Result};
use gdrcore_net::map::{page_size, Map};

/// A memory region.
#[repr(C)]
pub struct Mr {
    ibv: ibv_mr,
    /// `ibv.handle`; `None`: imported.
    _number: Option<ObjectNumber>,
    hca: &'static Hca,
    pub handle: Handle,
    /// The domain that counts it as a user.
    domain: &'static Pd,
    /// The arguments of the registration, for `ibv_rereg_mr`.
    iova: u64,
    access: u32,
    /// It is of a dma-buf; with the library's mapping of that, unless a router has it.
    dma_buf: Option<Option<Map>>,
    /// The DMA handle of its registration, which cannot be deallocated meanwhile.
    dmah: Option<&'static Dmah>,
}

/// A memory window.
#[repr(C)]
pub struct Mw {
    pub ibv: ibv_mw,
    /// `ibv.handle`.
    _number: ObjectNumber,
    hca: &'static Hca,
    pub handle: Handle,
    domain: &'static Pd,
}

/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a device may ignore.
const OPTIONAL: u32 = 0x3ff0_0000;

/// The arguments of a registration.
pub struct RegRequest {
    pub pd: *mut ibv_pd,
    pub addr: u64,
    pub length: usize,
    pub iova: u64,
    pub access: u32,
    /// 0: the program's memory, else [`null_memory::PROVIDER`].
    pub provider: u32,
}

impl RegRequest {
    /// The device's form of the request.
    fn request(&self, pd: &Pd) -> MrReg {
        MrReg {
            pd: pd.handle,
            addr: self.addr,
            length: self.length as u64,
            iova: self.iova,
            access: self.access & (!OPTIONAL | ACCESS_ALL),
            provider: self.provider,
            cookie: 0,
        }
    }
}

/// A region.
///
/// # Errors
/// Those of the registration.
///
/// # Safety
/// `w.pd` is the program's.
pub unsafe fn new(w: &RegRequest) -> Result<*mut ibv_mr> {
    // SAFETY: the caller's promise.
    unsafe { new_by(w, |hca, reg| hca.make(0, |d| d.mr_reg(reg))) }
}

/// The same, registered with the device by `register`.
///
/// # Errors
/// As [`new`].
///
/// # Safety
/// As [`new`].
unsafe fn new_by(
    w: &RegRequest,
    register: impl FnOnce(&Hca, &MrReg) -> Result<(Handle, MrAttr)>,
) -> Result<*mut ibv_mr> {
    // SAFETY: the caller's promise.
    let pd = unsafe { Pd::from_ptr(w.pd)? };
    let (handle, attr) = register(pd.hca, &w.request(pd))?;
    let domain = pd.hold();
    let number = ObjectNumber::new(ObjectKind::Mr, pd.hca);
    let shown = number.get();
    let ibv = ibv_mr {
        // SAFETY: checked above.
        context: unsafe { (*w.pd).context },
        pd: w.pd,
        addr: w.addr as *mut c_void,
        length: w.length,
        handle: shown,
        lkey: attr.lkey,
        rkey: attr.rkey,
    };
    let mr = Box::into_raw(Box::new(Mr {
        ibv,
        _number: Some(number),
        hca: pd.hca,
        handle,
        domain,
        iova: w.iova,
        access: w.access,
        dma_buf: None,
        dmah: None,
    }));
    pd.hca.objects().regions.insert(shown, mr.cast());
    Ok(mr.cast())
}

/// Notes the DMA handle of a new region.
///
/// # Safety
/// `mr` was made just now; nobody else knows it.
pub unsafe fn set_dmah(mr: *mut ibv_mr, dmah: &'static Dmah) {
    // SAFETY: the caller's promise.
    unsafe { (*mr.cast::<Mr>()).dmah = Some(dmah.hold()) };
}

/// `ibv_reg_mr`.
pub unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program's arguments.
    unsafe { register(Verb("ibv_reg_mr"), pd, addr, length, addr as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova`.
pub unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program's arguments.
    unsafe { register(Verb("ibv_reg_mr_iova"), pd, addr, length, iova, access as c_uint) }
}

/// `ibv_reg_mr_iova2`.
pub unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the program's arguments.
    unsafe { register(Verb("ibv_reg_mr_iova2"), pd, addr, length, iova, access) }
}

/// Registers host memory; `verb` is the name of the program's call.
///
/// # Safety
/// The program's arguments.
unsafe fn register(
    verb: Verb,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let w = RegRequest { pd, addr: addr as u64, length, iova, access, provider: 0 };
    // SAFETY: the program's arguments.
    verb.pointer(unsafe { of_host(&w) })
}

/// A region of host memory.
///
/// # Errors
/// Those of the registration; [`Error::Invalid`]: an implicit region that does not begin at 0.
///
/// # Safety
/// `w.pd` is the program's.
pub unsafe fn of_host(w: &RegRequest) -> Result<*mut ibv_mr> {
    // A region on demand over the whole address space is an implicit region.
    let implicit = w.access & access::ON_DEMAND != 0 && w.length == usize::MAX;
    if implicit && (w.addr != 0 || w.iova != 0) {
        return Err(refuse!(
            Invalid,
            "addr {:#x}, iova {:#x}: an implicit region (ON_DEMAND, the whole address space) \
             begins at 0",
            w.addr,
            w.iova
        ));
    }
    // SAFETY: the caller's promise.
    unsafe { new(w) }
}

/// `ibv_reg_dmabuf_mr`. The CPU makes the copies of a soft device, so the CPU must be able to map
/// the buffer (of a display, of system memory). Any other buffer, such as a GPU's, is EOPNOTSUPP:
/// the C ABI's `gdrc_mr_reg_memory` supports those. A router's NIC reaches any that its driver
/// does.
pub unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program's domain.
    Verb("ibv_reg_dmabuf_mr").pointer(unsafe { of_dmabuf(pd, offset, length, iova, fd, access) })
}

/// A region of a dma-buf, as the verb describes it.
///
/// # Errors
/// Those of the registration and of mmap(2); [`Error::Invalid`]: the offsets of `iova` and `offset`
/// in their pages differ; [`Error::Unsupported`]: the CPU cannot map it.
///
/// # Safety
/// `pd` is the program's.
pub unsafe fn of_dmabuf(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> Result<*mut ibv_mr> {
    let access = access as u32;
    let page = page_size() as u64;
    let into = offset % page;
    if iova % page != into {
        return Err(refuse!(
            Invalid,
            "iova {iova:#x}: {:#x} in its page, and offset {offset:#x} is {into:#x} in its own",
            iova % page
        ));
    }
    let whole = length.checked_add(into as usize).filter(|_| length > 0);
    let whole = whole.ok_or_else(|| {
        refuse!(Invalid, "length {length:#x}: at least 1, and within the address space")
    })?;
    let writes = access::LOCAL_WRITE | ACCESS_REMOTE_CHANGE;
    // SAFETY: the program's domain.
    let router = unsafe { Pd::from_ptr(pd)? }.hca.router();
    // As in rdma-core, the address is the offset in the buffer.
    let w = RegRequest { pd, addr: offset, length, iova, access, provider: 0 };
    let (mr, map) = match router {
        // SAFETY: the program's domain.
        Some(router) => (unsafe { new_by(&w, |_, reg| router.mr_reg_dmabuf(reg, fd))? }, None),
        None => {
            let writable = access & writes != 0;
            let made = Map::of_buffer(fd, offset - into, whole, writable);
            let (map, at) = made.map_err(|e| match e {
                Error::NoDevice => {
                    refuse!(Unsupported, "fd {fd}: memory that the CPU cannot map, such as a GPU's")
                }
                e => e,
            })?;
            let addr = at + into;
            let by_cpu =
                |hca: &Hca, reg: &MrReg| hca.make(0, |d| d.mr_reg(&MrReg { addr, ..*reg }));
            // SAFETY: the program's domain.
            (unsafe { new_by(&w, by_cpu)? }, Some(map))
        }
    };
    // SAFETY: made just now; nobody else knows it.
    unsafe { (*mr.cast::<Mr>()).dma_buf = Some(map) };
    Ok(mr)
}

/// `ibv_rereg_mr_flags`.
pub const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 2;
const CHANGE_ACCESS: c_int = 4;
/// `IBV_REREG_MR_ERR_INPUT`: the old region is unchanged.
const REREG_ERR_INPUT: c_int = -1;

/// `ibv_rereg_mr`: the region keeps its keys, unless it is a NIC's by way of a router.
pub unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let done = (|| {
        if flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0
            || flags == 0
            || mr.is_null()
        {
            return Err(refuse!(
                Invalid,
                "flags {flags:#x}: one or more of TRANSLATION \
                 (1), PD (2) and ACCESS (4), and mr not NULL"
            ));
        }
        // SAFETY: the program's region, which it gives us for the call.
        let m = unsafe { &mut *mr.cast::<Mr>() };
        let moves = flags & CHANGE_TRANSLATION != 0;
        if m.dma_buf.is_some() {
            // The program has no address of the buffer for another call.
            return Err(refuse!(
                Unsupported,
                "mr: a region of a dma-buf cannot be registered anew"
            ));
        }
        if moves && (addr.is_null() || length == 0) {
            return Err(refuse!(
                Invalid,
                "addr {addr:p}, length {length}: a region has at least one byte"
            ));
        }
        let w = RegRequest {
            pd: if flags & CHANGE_PD != 0 { pd } else { m.ibv.pd },
            addr: if moves { addr } else { m.ibv.addr } as u64,
            length: if moves { length } else { m.ibv.length },
            iova: if moves { addr as u64 } else { m.iova },
            access: if flags & CHANGE_ACCESS != 0 { access as u32 } else { m.access },
            provider: 0,
        };
        // SAFETY: the program's domain, or the one of its region.
        let to = unsafe { Pd::from_ptr(w.pd)? };
        if !core::ptr::eq(to.hca, m.hca) {
            return Err(refuse!(Invalid, "pd: of another device than the region"));
        }
        let attr = m.hca.device.mr_rereg(m.handle, &w.request(to))?;
        core::mem::replace(&mut m.domain, to.hold()).release();
        m.ibv.pd = w.pd;
        m.ibv.addr = w.addr as *mut c_void;
        m.ibv.length = w.length;
        (m.ibv.lkey, m.ibv.rkey) = (attr.lkey, attr.rkey);
        m.iova = w.iova;
        m.access = w.access;
        Ok(0)
    })();
    match Verb("ibv_rereg_mr").number(done) {
        0 => 0,
        _ => REREG_ERR_INPUT,
    }
}

/// `ibv_dereg_mr`.
pub unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    Verb("ibv_dereg_mr").code((|| {
        // SAFETY: the program's pointer, one of ours.
        let m = unsafe { object(mr.cast::<Mr>())? };
        m.hca.device.mr_dereg(m.handle)?;
        m.hca.objects().regions.remove(&m.ibv.handle);
        m.domain.release();
        if let Some(dmah) = m.dmah {
            dmah.release();
        }
        // SAFETY: made by Box::into_raw; the program may not use it any more. Mr begins with the
        // program's struct.
        unsafe { weak::free_and_poison(mr.cast::<Mr>()) };
        Ok(())
    })())
}

/// `ibv_import_mr`: another object for a region of another context of this process. The owner
/// deregisters the region.
pub unsafe extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    Verb("ibv_import_mr").pointer((|| {
        // SAFETY: the program's pointer.
        let p = unsafe { Pd::from_ptr(pd)? };
        let objects = p.hca.objects();
        let theirs = objects.regions.get(&handle).copied();
        let theirs = theirs
            .ok_or_else(|| refuse!(Invalid, "mr_handle {handle}: no region of this device"))?;
        // SAFETY: a region is in the table for as long as it lives, and the table is locked.
        let m = unsafe { &*theirs.cast::<Mr>() };
        let ibv = ibv_mr {
            // SAFETY: checked above.
            context: unsafe { (*pd).context },
            pd,
            // 0, as with every driver: the importer knows the address or does not need it.
            addr: core::ptr::null_mut(),
            ..m.ibv
        };
        let alias = Mr {
            ibv,
            _number: None,
            hca: m.hca,
            handle: m.handle,
            domain: p.hold(),
            iova: m.iova,
            access: m.access,
            dma_buf: None,
            dmah: None,
        };
        Ok(Box::into_raw(Box::new(alias)).cast())
    })())
}

/// `ibv_unimport_mr`.
pub unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    if !mr.is_null() {
        // SAFETY: made by `import_mr`; only the name goes.
        unsafe { Box::from_raw(mr.cast::<Mr>()) }.domain.release();
    }
}

/// The operation behind `ibv_alloc_mw`.
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw {
    Verb("ibv_alloc_mw").pointer((|| {
        // SAFETY: the program's pointer.
        let p = unsafe { Pd::from_ptr(pd)? };
        let (handle, rkey) = p.hca.make(0, |d| d.mw_alloc(p.handle, mw_type))?;
        let domain = p.hold();
        // SAFETY: checked above.
        let context = unsafe { (*pd).context };
        let number = ObjectNumber::new(ObjectKind::Mw, p.hca);
        let ibv = ibv_mw { context, pd, rkey, handle: number.get(), r#type: mw_type };
        let mw = Mw { ibv, _number: number, hca: p.hca, handle, domain };
        Ok(Box::into_raw(Box::new(mw)).cast())
    })())
}

/// The operation behind `ibv_dealloc_mw`.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    Verb("ibv_dealloc_mw").code((|| {
        // SAFETY: the program's pointer, one of ours.
        let m = unsafe { object(mw.cast::<Mw>())? };
        m.hca.device.mw_dealloc(m.handle)?;
        m.domain.release();
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(mw.cast::<Mw>()) });
        Ok(())
    })())
}

/// `ibv_advise_mr_advice`: PREFETCH, PREFETCH_WRITE, PREFETCH_NO_FAULT.
const ADVICE_MAX: u32 = 2;

/// The operation behind `ibv_advise_mr`: ignores the advice, whatever regions the list names,
/// because the copying CPU needs none.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    /// `IBV_ADVISE_MR_FLAG_FLUSH`.
    const FLUSH: u32 = 1;
    // SAFETY: the program's pointer.
    Verb("ibv_advise_mr").code(unsafe { Pd::from_ptr(pd) }.and_then(|_| {
        if advice > ADVICE_MAX {
            return Err(refuse!(Unsupported, "advice {advice}: at most {ADVICE_MAX}"));
        }
        if flags & !FLUSH != 0 {
            return Err(refuse!(Invalid, "flags {flags:#x}: IBV_ADVISE_MR_FLAG_FLUSH (1)"));
        }
        if num_sge == 0 || sg_list.is_null() {
            return Err(refuse!(Invalid, "sg_list, num_sge {num_sge}: at least one piece"));
        }
        Ok(())
    }))
}

/// The operation behind `ibv_alloc_null_mr`: a region of any address, for local use.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    let w = RegRequest {
        pd,
        addr: 0,
        length: usize::MAX,
        iova: 0,
        access: access::LOCAL_WRITE,
        provider: null_memory::PROVIDER,
    };
    // SAFETY: the program's pointer.
    Verb("ibv_alloc_null_mr").pointer(unsafe { Pd::from_ptr(pd).and_then(|_| new(&w)) })
}
