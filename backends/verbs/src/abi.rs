//! The table between libgdrcore and its module `libgdrcore_verbs.so`.
//!
//! The module is a separate file because it is linked to libibverbs, which many machines lack. It
//! is thin: it converts arguments to libibverbs' structs and back, and keeps no state. Everything
//! else (names of objects, checks, causes, waiting) is on this side, where tests need no NIC.
//!
//! Both files come from one build, but may be installed separately. So the table is C and has a
//! version, and another version is refused. Every function returns 0 or a positive errno, and
//! writes its results only on success. Objects are libibverbs' own pointers.

pub mod cm;

use core::ffi::{c_char, c_int, c_void};
use core::fmt;
use core::mem::size_of;
use gdrcore_core::device::SrqAttr;
use gdrcore_core::verbs::types::{AhAttr, QpAttr, QpCap, RecvWr, SendWr, Wc};

/// First word of a table.
pub const MAGIC: u64 = u64::from_le_bytes(*b"gdrcverb");
/// Changes whenever anything in this file, or below it, does.
pub const VERSION: u32 = 5;
/// The one symbol that the module exports: an [`EntryPoint`].
pub const ENTRY: &core::ffi::CStr = c"gdrcore_verbs_module";
/// Longest name of an RDMA device, with its NUL (`IBV_SYSFS_NAME_MAX`).
pub const NAME_MAX: usize = 64;

/// Returns the module's table, which lives as long as the process.
pub type EntryPoint = unsafe extern "C" fn() -> *const Module;
/// A pointer of libibverbs: `ibv_context *`, `ibv_qp *` and so on.
pub type Object = *mut c_void;
/// `ibv_post_send` of one provider.
pub type PostSend = unsafe extern "C" fn(Object, *const SendWr, *mut *const SendWr) -> c_int;
/// `ibv_post_recv` or `ibv_post_srq_recv` of one provider.
pub type PostRecv = unsafe extern "C" fn(Object, *const RecvWr, *mut *const RecvWr) -> c_int;
/// `ibv_poll_cq` of one provider.
pub type PollCq = unsafe extern "C" fn(Object, c_int, *mut Wc) -> c_int;
/// `ibv_req_notify_cq` of one provider.
pub type ReqNotifyCq = unsafe extern "C" fn(Object, c_int) -> c_int;

/// The provider's own data path, which calls reach without the module. An opened device has all
/// these functions.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct DataPath {
    pub post_send: PostSend,
    pub post_recv: PostRecv,
    pub post_srq_recv: PostRecv,
    pub poll_cq: PollCq,
    pub req_notify_cq: ReqNotifyCq,
}

/// Bits of [`Opened::caps`].
pub mod caps {
    /// On-demand paging of RC memory.
    pub const ODP: u32 = 1;
    /// Atomics.
    pub const ATOMICS: u32 = 2;
    /// Memory windows of type 1.
    pub const MW_1: u32 = 4;
    /// Memory windows of type 2.
    pub const MW_2: u32 = 8;
    /// XRC.
    pub const XRC: u32 = 16;
    /// SRQs that can be resized.
    pub const SRQ_RESIZE: u32 = 32;
    /// ATOMIC WRITE.
    pub const ATOMIC_WRITE: u32 = 64;
    /// FLUSH of type GLOBAL.
    pub const FLUSH_GLOBAL: u32 = 128;
    /// FLUSH of type PERSISTENT.
    pub const FLUSH_PERSISTENT: u32 = 256;
}

/// Link layers.
pub mod link {
    /// RoCE.
    pub const ETHERNET: u32 = 0;
    /// InfiniBand: addressed by LIDs.
    pub const INFINIBAND: u32 = 1;
    /// iWARP: connected by its own TCP handshake only.
    pub const IWARP: u32 = 2;
}

/// An open device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Opened {
    /// `ibv_context *`.
    pub context: Object,
    /// `ibv_comp_channel *`, non-blocking.
    pub channel: Object,
    /// Readable when an asynchronous event waits; non-blocking.
    pub async_fd: c_int,
    /// Readable when an armed CQ has an event.
    pub channel_fd: c_int,
    /// The provider's data path.
    pub data: DataPath,
    /// [`caps`].
    pub caps: u32,
    /// Ports, counted from 1.
    pub ports: u32,
    /// Node GUID in host order.
    pub node_guid: u64,
    /// The device's own limits; this one: queue pairs.
    pub max_qp: u32,
    /// Requests in a queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of a request.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a CQ.
    pub max_cqe: u32,
    /// Regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// SRQs.
    pub max_srq: u32,
    /// Address handles.
    pub max_ah: u32,
    /// READs and atomics that a QP serves.
    pub max_rd_atomic: u32,
    /// The release of rdma-core that has this libibverbs; 0: unknown.
    pub release: u32,
}

// SAFETY: libibverbs' objects may be used by any thread; the caller ensures that they exist.
unsafe impl Send for Opened {}
// SAFETY: as above; the struct itself is plain data.
unsafe impl Sync for Opened {}

/// A port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Port {
    /// 1: it is up.
    pub active: u32,
    /// [`link`].
    pub link: u32,
    /// Largest path MTU code.
    pub active_mtu: u32,
    /// Zero.
    pub reserved: u32,
    /// Largest message in bytes.
    pub max_msg_size: u64,
}

/// An entry of a port's GID table that is in use.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GidEntry {
    /// The GID.
    pub gid: [u8; 16],
    /// Its index.
    pub index: u32,
    /// 1: RoCE v2, 0: anything else.
    pub roce_v2: u32,
    /// Index of its network interface, 0 if none.
    pub interface: u32,
}

/// A memory region to register.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memory {
    /// First byte; for a dma-buf the offset in it.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// The address of the first byte in work requests.
    pub iova: u64,
    /// Access flags as libibverbs has them.
    pub access: u32,
    /// Descriptor of a dma-buf, or -1.
    pub dmabuf: c_int,
}

/// Attributes of a new QP; the objects are libibverbs'. Null: the type has no such object.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpMake {
    /// `ibv_pd *`.
    pub pd: Object,
    /// `ibv_cq *`.
    pub send_cq: Object,
    /// `ibv_cq *`.
    pub recv_cq: Object,
    /// `ibv_srq *` or null.
    pub srq: Object,
    /// `ibv_xrcd *`, or null.
    pub xrcd: Object,
    /// Access key of a DCT.
    pub dc_key: u64,
    /// Comes back in asynchronous events.
    pub cookie: u64,
    /// One of [`qp_type`](gdrcore_core::verbs::types::qp_type).
    pub qp_type: u32,
    /// Opcodes wanted beside those of `ibv_post_send`, as bits.
    pub extended: u32,
    /// 1: every send request is signalled.
    pub sq_sig_all: u32,
    /// The requested bounds; [`QpMade`] has the granted ones.
    pub cap: QpCap,
}

/// A made QP.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpMade {
    /// `ibv_qp *`.
    pub qp: Object,
    /// Its number; 0: it has none yet.
    pub qpn: u32,
    /// Opcodes that [`Module::post_extended`] takes, as bits.
    pub extended: u32,
    /// Sizes given.
    pub cap: QpCap,
}

/// Attributes of a new SRQ of an XRC domain; the objects are libibverbs'.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct XrcSrqMake {
    /// `ibv_pd *`.
    pub pd: Object,
    /// `ibv_xrcd *`.
    pub xrcd: Object,
    /// `ibv_cq *` of its receives.
    pub cq: Object,
    /// Comes back in asynchronous events.
    pub cookie: u64,
}

/// The GID by which a device sends.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Source {
    /// Port.
    pub port: u32,
    /// Index in its GID table.
    pub gid_index: u32,
}

/// An asynchronous event of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    /// As `ibv_event_type`.
    pub kind: u32,
    /// 1: `cookie` is that of a QP, CQ or SRQ; 0: it is a port's number or 0.
    pub object: u32,
    /// The cookie of the object, or the number of the port.
    pub cookie: u64,
}

/// The reason of a failed call. Cut at its length.
#[repr(C)]
pub struct Text {
    used: u32,
    bytes: [u8; 380],
}

impl Text {
    /// An empty text.
    pub const fn new() -> Text {
        Text { used: 0, bytes: [0; 380] }
    }

    /// The text written so far.
    pub fn as_str(&self) -> &str {
        let written = self.bytes.get(..self.used as usize).unwrap_or_default();
        match core::str::from_utf8(written) {
            Ok(text) => text,
            // The text was cut within a character.
            Err(e) => core::str::from_utf8(&written[..e.valid_up_to()]).unwrap_or_default(),
        }
    }

    /// Replaces the words.
    pub fn set(&mut self, words: fmt::Arguments<'_>) {
        self.used = 0;
        // `write_str` never fails.
        let _ = fmt::write(self, words);
    }
}

impl Default for Text {
    fn default() -> Self {
        Text::new()
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.used as usize..).unwrap_or_default();
        let n = room.len().min(s.len());
        room[..n].copy_from_slice(&s.as_bytes()[..n]);
        self.used += n as u32;
        Ok(())
    }
}

/// The module's functions. Pointers are never null, unless a line says so. Functions write results
/// only on success.
///
/// # Thread-safety
/// As with libibverbs: any thread, but no thread uses an object while it is destroyed.
#[repr(C)]
#[allow(missing_docs)]
pub struct Module {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of the module's struct.
    pub size: u32,
    /// The name of device number `index` as a C string of [`NAME_MAX`] bytes; ENODEV past the last
    /// one.
    pub device_name:
        unsafe extern "C" fn(index: u32, name: *mut [c_char; NAME_MAX], why: *mut Text) -> c_int,
    /// Opens the device of this name. ENODEV: there is none.
    pub open: unsafe extern "C" fn(
        name: *const [c_char; NAME_MAX],
        out: *mut Opened,
        why: *mut Text,
    ) -> c_int,
    /// Closes channel and device.
    pub close: unsafe extern "C" fn(context: Object, channel: Object) -> c_int,
    pub port: unsafe extern "C" fn(context: Object, port: u32, out: *mut Port) -> c_int,
    /// Writes the used GIDs of a port, at most `room`, by rising index. Returns 0 and their number.
    pub gids: unsafe extern "C" fn(
        context: Object,
        port: u32,
        out: *mut GidEntry,
        room: u32,
        count: *mut u32,
    ) -> c_int,
    pub pd_alloc: unsafe extern "C" fn(context: Object, out: *mut Object) -> c_int,
    pub pd_dealloc: unsafe extern "C" fn(pd: Object) -> c_int,
    pub mr_reg: unsafe extern "C" fn(
        pd: Object,
        memory: *const Memory,
        out: *mut Object,
        lkey: *mut u32,
        rkey: *mut u32,
    ) -> c_int,
    pub mr_dereg: unsafe extern "C" fn(mr: Object) -> c_int,
    pub mw_alloc:
        unsafe extern "C" fn(pd: Object, mw_type: u32, out: *mut Object, rkey: *mut u32) -> c_int,
    pub mw_dealloc: unsafe extern "C" fn(mw: Object) -> c_int,
    pub ah_create: unsafe extern "C" fn(
        pd: Object,
        attr: *const AhAttr,
        source: *const Source,
        out: *mut Object,
    ) -> c_int,
    pub ah_destroy: unsafe extern "C" fn(ah: Object) -> c_int,
    /// `cqe`: the requested size, and on return the granted one.
    pub cq_create: unsafe extern "C" fn(
        context: Object,
        channel: Object,
        cookie: u64,
        cqe: *mut u32,
        out: *mut Object,
    ) -> c_int,
    pub cq_resize: unsafe extern "C" fn(cq: Object, cqe: *mut u32) -> c_int,
    pub cq_destroy: unsafe extern "C" fn(cq: Object) -> c_int,
    pub srq_create: unsafe extern "C" fn(
        pd: Object,
        cookie: u64,
        attr: *mut SrqAttr,
        out: *mut Object,
    ) -> c_int,
    pub srq_modify: unsafe extern "C" fn(srq: Object, limit: u32) -> c_int,
    /// `limit`: the new limit; negative: unchanged.
    pub srq_resize: unsafe extern "C" fn(srq: Object, max_wr: u32, limit: i64) -> c_int,
    pub srq_number: unsafe extern "C" fn(srq: Object, out: *mut u32) -> c_int,
    pub srq_query: unsafe extern "C" fn(srq: Object, out: *mut SrqAttr) -> c_int,
    pub srq_destroy: unsafe extern "C" fn(srq: Object) -> c_int,
    pub xrcd_open: unsafe extern "C" fn(context: Object, out: *mut Object) -> c_int,
    pub xrcd_close: unsafe extern "C" fn(xrcd: Object) -> c_int,
    pub srq_create_xrc: unsafe extern "C" fn(
        make: *const XrcSrqMake,
        attr: *mut SrqAttr,
        out: *mut Object,
    ) -> c_int,
    /// `why` gets words only where the errno is not enough.
    pub qp_create: unsafe extern "C" fn(
        context: Object,
        make: *const QpMake,
        out: *mut QpMade,
        why: *mut Text,
    ) -> c_int,
    pub qp_modify: unsafe extern "C" fn(
        qp: Object,
        attr: *const QpAttr,
        mask: u32,
        source: *const Source,
    ) -> c_int,
    /// `kind`: its type.
    pub qp_query: unsafe extern "C" fn(qp: Object, kind: u32, out: *mut QpAttr) -> c_int,
    /// The QP's present number; 0: it has none.
    pub qp_number: unsafe extern "C" fn(qp: Object) -> u32,
    /// `gid`: 16 bytes. The group has no LID, because RoCE has none.
    pub mcast_attach: unsafe extern "C" fn(qp: Object, gid: *const [u8; 16]) -> c_int,
    pub mcast_detach: unsafe extern "C" fn(qp: Object, gid: *const [u8; 16]) -> c_int,
    /// Posts a list of requests that `ibv_post_send` does not take, all or none: those of a DCI,
    /// and those of [`QpMade::extended`]. Address handles, windows and regions in it are
    /// libibverbs' pointers.
    pub post_extended: unsafe extern "C" fn(qp: Object, wr: *const SendWr) -> c_int,
    pub qp_destroy: unsafe extern "C" fn(qp: Object) -> c_int,
    /// Makes a non-blocking channel for the events of CQs, and returns its descriptor.
    pub channel_create:
        unsafe extern "C" fn(context: Object, out: *mut Object, fd: *mut c_int) -> c_int,
    pub channel_destroy: unsafe extern "C" fn(channel: Object) -> c_int,
    /// Takes the event of one armed CQ: its cookie. EAGAIN: there is none.
    pub cq_event: unsafe extern "C" fn(channel: Object, cookie: *mut u64) -> c_int,
    /// Takes one asynchronous event. EAGAIN: there is none.
    pub async_event: unsafe extern "C" fn(context: Object, out: *mut Event) -> c_int,
    /// The host's connection manager.
    pub cm: cm::Calls,
}

impl Module {
    /// Whether this library understands the table.
    pub fn is_ours(&self) -> bool {
        self.magic == MAGIC && self.version == VERSION && self.size as usize == size_of::<Module>()
    }
}
