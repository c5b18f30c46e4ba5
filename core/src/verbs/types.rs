//! The plain data that crosses the API: work requests, completions, attributes.
//!
//! [`Sge`], [`SendWr`], [`RecvWr`] and [`Wc`] have the layout of their `ibv_` counterparts
//! (`<infiniband/verbs.h>`, rdma-core 44, x86-64), so that the verbs device and the libibverbs
//! drop-in translate nothing. They are structs of the C header, too, which `tests/tests/header`
//! makes from their comments: a link becomes the name that C has. Enumerations that come from C are
//! integers with named constants: a C caller can put any bits there, and a Rust enum with an
//! unknown value would be undefined behaviour.

use crate::consts;

/// A scatter/gather element: 16 bytes, layout of ibv_sge. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte, in the MR's terms (its iova).
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the MR that holds the range; ignored for inline data.
    pub lkey: u32,
}

/// A handle of the API: index, object type and generation in 64 bits; 0 is never valid.
pub type Handle = u64;
/// The handle of an AH. C has a struct for each kind of object, which holds its handle.
pub type AhHandle = Handle;
/// The handle of an MR.
pub type MrHandle = Handle;
/// The handle of an MW.
pub type MwHandle = Handle;

/// Remote side of WRITE, READ and ATOMIC WRITE.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RdmaWr {
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Operands of CMP_SWAP and FETCH_ADD.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AtomicWr {
    /// Remote address, a multiple of 8.
    pub remote_addr: u64,
    /// Compared with (CMP_SWAP) or added (FETCH_ADD).
    pub compare_add: u64,
    /// Stored where the comparison holds.
    pub swap: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Remote side of FLUSH. remote_addr and rkey stand where [`RdmaWr`] has them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushWr {
    /// First byte of the range; not looked at with [`flush_level::MR`].
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// [`flush_type::GLOBAL`], [`flush_type::PERSISTENT`] or both.
    pub placement: u32,
    /// Length of the range in bytes, at most 2^31; 0 flushes nothing, and its key must be valid all
    /// the same. Not looked at with [`flush_level::MR`].
    pub length: u64,
    /// [`flush_level::RANGE`] or [`flush_level::MR`].
    pub level: u32,
}

/// Destination of a UD SEND.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UdWr {
    /// Address handle.
    pub ah: AhHandle,
    /// Destination QPN.
    pub remote_qpn: u32,
    /// Q_Key to send; with bit 31 set the QP's own is sent.
    pub remote_qkey: u32,
}

/// The transport-specific part of [`SendWr`]; the opcode chooses.
#[repr(C)]
#[derive(Clone, Copy)]
pub union WrOp {
    /// WRITE, READ and ATOMIC WRITE.
    pub rdma: RdmaWr,
    /// CMP_SWAP and FETCH_ADD.
    pub atomic: AtomicWr,
    /// UD SEND.
    pub ud: UdWr,
    /// FLUSH.
    pub flush: FlushWr,
}

/// The range that BIND_MW binds a window to: layout of ibv_mw_bind_info.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MwBindInfo {
    /// The region that the window gives access to; registered with [`access::MW_BIND`].
    pub mr: MrHandle,
    /// First byte.
    pub addr: u64,
    /// Length in bytes; 0 with a type 1 window closes it.
    pub length: u64,
    /// Flags of the window: [`access`].
    pub mw_access_flags: u32,
}

/// The bind part of [`SendWr`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BindMwWr {
    /// The window.
    pub mw: MwHandle,
    /// The new rkey of the window, of which the low 8 bits count; the others stay.
    pub rkey: u32,
    /// The range.
    pub bind_info: MwBindInfo,
}

/// Target of a request of a DCI.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DcWr {
    /// Address handle of the target's device.
    pub ah: AhHandle,
    /// Access key of the DCT.
    pub dc_key: u64,
    /// Number of the DCT.
    pub dctn: u32,
}

/// The last part of [`SendWr`]; opcode and transport choose.
#[repr(C)]
#[derive(Clone, Copy)]
pub union WrExt {
    /// BIND_MW.
    pub bind_mw: BindMwWr,
    /// All other requests of a DCI.
    pub dc: DcWr,
}

impl Default for WrExt {
    /// Zero in each part.
    fn default() -> WrExt {
        WrExt { bind_mw: BindMwWr::default() }
    }
}

/// A send work request: 128 bytes, layout of ibv_send_wr. Frozen. The struct and its sg_list may be
/// reused when gdrc_post_send returns; the memory of its entries belongs to the device until the
/// completion.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Next request, or NULL.
    pub next: *const SendWr,
    /// `num_sge` pieces; may be NULL when there are none.
    pub sg_list: *const Sge,
    /// Number of pieces, 0 to cap.max_send_sge.
    pub num_sge: i32,
    /// One of [`wr_opcode`].
    pub opcode: u32,
    /// Flags: [`send_flags`].
    pub send_flags: u32,
    /// Immediate data in network byte order; for SEND_WITH_INV and LOCAL_INV the rkey to
    /// invalidate, host order.
    pub imm_data: u32,
    /// By opcode.
    pub wr: WrOp,
    /// [`qp_type::XRC_SEND`]: the number of the peer's SRQ that the request is for
    /// (gdrc_srq_number).
    pub remote_srqn: u32,
    /// For BIND_MW, and for DCIs.
    pub ext: WrExt,
}

/// A receive work request: 32 bytes, layout of ibv_recv_wr. Frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Next request, or NULL.
    pub next: *const RecvWr,
    /// `num_sge` pieces. On UD the first 40 bytes receive the GRH.
    pub sg_list: *const Sge,
    /// Number of pieces, 0 to cap.max_recv_sge.
    pub num_sge: i32,
}

/// A work completion: 48 bytes, layout of ibv_wc. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    /// wr_id of the work request.
    pub wr_id: u64,
    /// One of [`wc_status`]; everything but wr_id, status, vendor_err and qp_num is valid only on
    /// success.
    pub status: u32,
    /// One of [`wc_opcode`].
    pub opcode: u32,
    /// On an error one of [`crate::verbs::cause::CauseCode`], else 0.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in network byte order ([`wc_flags::WITH_IMM`]), or the rkey invalidated
    /// ([`wc_flags::WITH_INV`]).
    pub imm_data: u32,
    /// The local QPN.
    pub qp_num: u32,
    /// The sender's QPN (UD, DC targets).
    pub src_qp: u32,
    /// Flags: [`wc_flags`].
    pub wc_flags: u32,
    /// P_Key index.
    pub pkey_index: u16,
    /// Not used on RoCE.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Not used on RoCE.
    pub dlid_path_bits: u8,
}

consts! {
    /// Opcodes of send work requests (ibv_wr_opcode).
    wr_opcode: u32 {
        RDMA_WRITE = 0, RDMA_WRITE_WITH_IMM = 1, SEND = 2, SEND_WITH_IMM = 3, RDMA_READ = 4,
        ATOMIC_CMP_AND_SWP = 5, ATOMIC_FETCH_AND_ADD = 6, LOCAL_INV = 7, BIND_MW = 8,
        SEND_WITH_INV = 9,
        /// RC: succeeds when all that was sent before on the queue pair has been placed, and is
        /// visible to who reads that memory. wr.flush names what it is about; sg_list is not looked
        /// at. The queue pair and the region of the peer need GDRC_ACCESS_FLUSH_ flags of each of
        /// its types.
        FLUSH = 14,
        /// RC: the peer stores the 8 bytes of sg_list in one piece at wr.rdma.remote_addr, a
        /// multiple of 8, behind all that was sent before; it needs
        /// [`super::access::REMOTE_WRITE`]. The bytes are copied during the post, as with
        /// [`super::send_flags::INLINE`], whatever max_inline_data is.
        ATOMIC_WRITE = 15,
    }
}
consts! {
    /// Flags of send work requests (ibv_send_flags).
    send_flags: u32 {
        /// Start after earlier READs, atomics, ATOMIC WRITEs and FLUSHes have ended.
        FENCE = 1,
        /// Generate a completion.
        SIGNALED = 2,
        /// Raise the event of a receiver's CQ that is armed for solicited completions only.
        SOLICITED = 4,
        /// Copy the payload during the post: its memory is free at return and needs no lkey.
        INLINE = 8,
        IP_CSUM = 16,
        /// Not in libibverbs: another post or gdrc_progress follows at once, and may ring the
        /// doorbell for this one.
        MORE = 1 << 30,
    }
}
consts! {
    /// Completion statuses (ibv_wc_status).
    wc_status: u32 {
        SUCCESS = 0, LOC_LEN_ERR = 1, LOC_QP_OP_ERR = 2, LOC_PROT_ERR = 4, WR_FLUSH_ERR = 5,
        MW_BIND_ERR = 6, BAD_RESP_ERR = 7, LOC_ACCESS_ERR = 8, REM_INV_REQ_ERR = 9,
        REM_ACCESS_ERR = 10, REM_OP_ERR = 11, RETRY_EXC_ERR = 12, RNR_RETRY_EXC_ERR = 13,
        REM_ABORT_ERR = 16, FATAL_ERR = 19, RESP_TIMEOUT_ERR = 20, GENERAL_ERR = 21,
    }
}
consts! {
    /// Completion opcodes (ibv_wc_opcode).
    wc_opcode: u32 {
        SEND = 0, RDMA_WRITE = 1, RDMA_READ = 2, COMP_SWAP = 3, FETCH_ADD = 4, BIND_MW = 5,
        LOCAL_INV = 6, FLUSH = 8, ATOMIC_WRITE = 9,
        /// Bit 7 is set in every receive opcode.
        RECV = 128,
        RECV_RDMA_WITH_IMM = 129,
    }
}
consts! {
    /// Completion flags (ibv_wc_flags).
    wc_flags: u32 {
        /// The first 40 bytes of the receive buffer hold the GRH.
        GRH = 1,
        WITH_IMM = 2, IP_CSUM_OK = 4, WITH_INV = 8,
    }
}
consts! {
    /// What a FLUSH brings about (ibv_placement_type).
    flush_type: u32 {
        /// Who reads the memory sees what was sent before.
        GLOBAL = 1,
        /// It survives a loss of power.
        PERSISTENT = 2,
    }
}
consts! {
    /// What a FLUSH is about (ibv_selectivity_level).
    flush_level: u32 {
        /// remote_addr and length.
        RANGE = 0,
        /// The whole region of rkey; remote_addr and length are not looked at.
        MR = 1,
    }
}
consts! {
    /// Access flags of regions, windows and QPs (ibv_access_flags).
    access: u32 {
        LOCAL_WRITE = 1, REMOTE_WRITE = 2, REMOTE_READ = 4, REMOTE_ATOMIC = 8, MW_BIND = 16,
        /// Work requests count from 0 instead of from the program's address.
        ZERO_BASED = 32,
        ON_DEMAND = 64, HUGETLB = 128,
        /// A peer may FLUSH ([`super::flush_type::GLOBAL`]). Not of windows.
        FLUSH_GLOBAL = 1 << 8,
        /// A peer may FLUSH for ever ([`super::flush_type::PERSISTENT`]). A QP may have it; regions
        /// may not, since no device here has persistent memory: -EINVAL.
        FLUSH_PERSISTENT = 1 << 9,
        RELAXED_ORDERING = 1 << 20,
    }
}

/// All access flags that there are: those that a region may carry, and that a QP may be given.
pub const ACCESS_ALL: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::MW_BIND
    | access::ZERO_BASED
    | access::ON_DEMAND
    | access::HUGETLB
    | ACCESS_FLUSH
    | access::RELAXED_ORDERING;

/// The rights to FLUSH, one for each placement type.
pub const ACCESS_FLUSH: u32 = access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;

/// Rights that are of use in persistent memory alone, which no device here has.
pub const ACCESS_PERSISTENT: u32 = access::FLUSH_PERSISTENT;

/// Accesses that a peer of RC may be given.
pub const ACCESS_RC: u32 = ACCESS_REMOTE | ACCESS_FLUSH;

/// Accesses that a peer may be given whatever the NIC.
pub const ACCESS_REMOTE: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// Accesses of a peer that write, for which a region needs LOCAL_WRITE besides (IBTA 10.6.3.1).
pub const ACCESS_REMOTE_CHANGE: u32 = access::REMOTE_WRITE | access::REMOTE_ATOMIC;

consts! {
    /// QP types (ibv_qp_type; libibverbs has not those of DC).
    qp_type: u32 {
        RC = 2, UC = 3, UD = 4,
        /// XRC initiator: sends, each request to an SRQ of the peer that remote_srqn names.
        XRC_SEND = 9,
        /// XRC target: receives for the SRQs of an XRC domain.
        XRC_RECV = 10,
        /// DC initiator: sends, each request to a DC target that ext.dc names.
        DCI = 0x101,
        /// DC target: receives into an SRQ, from any DC initiator that knows its access key.
        DCT = 0x102,
    }
}
consts! {
    /// QP states (ibv_qp_state).
    qp_state: u32 { RESET = 0, INIT = 1, RTR = 2, RTS = 3, SQD = 4, SQE = 5, ERR = 6 }
}
consts! {
    /// Which attributes gdrc_qp_modify sets (ibv_qp_attr_mask).
    qp_attr_mask: u32 {
        STATE = 1, CUR_STATE = 2, EN_SQD_ASYNC_NOTIFY = 4, ACCESS_FLAGS = 8, PKEY_INDEX = 16,
        PORT = 32, QKEY = 64, AV = 128, PATH_MTU = 256, TIMEOUT = 512, RETRY_CNT = 1024,
        RNR_RETRY = 2048, RQ_PSN = 4096, MAX_QP_RD_ATOMIC = 8192, MIN_RNR_TIMER = 1 << 15,
        SQ_PSN = 1 << 16, MAX_DEST_RD_ATOMIC = 1 << 17, CAP = 1 << 19, DEST_QPN = 1 << 20,
        RATE_LIMIT = 1 << 25,
    }
}
consts! {
    /// Path MTU codes (ibv_mtu); bytes are 128 << code.
    mtu: u32 { MTU_256 = 1, MTU_512 = 2, MTU_1024 = 3, MTU_2048 = 4, MTU_4096 = 5 }
}

/// The flags of a mask by name, for messages: `PATH_MTU, RQ_PSN`; bits without a name as a number.
#[derive(Clone, Copy)]
pub struct Flags(
    /// The mask.
    pub u32,
    /// Names one bit, as [`qp_attr_mask::name`] does.
    pub fn(u32) -> &'static str,
);

impl core::fmt::Display for Flags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut unnamed = 0;
        let mut first = true;
        for bit in (0..32).map(|i| 1 << i).filter(|bit| self.0 & bit != 0) {
            match (self.1)(bit) {
                "?" => unnamed |= bit,
                name => {
                    write!(f, "{}{name}", if first { "" } else { ", " })?;
                    first = false;
                }
            }
        }
        match unnamed {
            0 if first => f.write_str("nothing"),
            0 => Ok(()),
            bits => write!(f, "{}{bits:#x}", if first { "" } else { ", " }),
        }
    }
}

/// Address vector: where a QP or an AH sends to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// Destination GID: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
    pub dgid: [u8; 16],
    /// IPv6 zone (interface index) for link-local destinations, else 0.
    pub scope_id: u32,
    /// Destination UDP port in host order; 0 means the device's own port (4791 unless configured).
    pub udp_port: u16,
    /// IP hop limit; 0 and 1 mean the system's default ([`Fields`](crate::wire::grh::Fields)).
    pub hop_limit: u8,
    /// Traffic class: DSCP. The ECN bits are the device's.
    pub traffic_class: u8,
    /// Flow label, 20 bits; IPv6 alone carries it.
    pub flow_label: u32,
}

/// Attributes of a new QP.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QpInit {
    /// Protection domain.
    pub pd: Handle,
    /// CQ of the send queue.
    pub send_cq: Handle,
    /// CQ of the receive queue.
    pub recv_cq: Handle,
    /// Shared receive queue, or 0.
    pub srq: Handle,
    /// XRC domain of an XRC_RECV, which has nothing else; else 0.
    pub xrcd: Handle,
    /// Access key of a DCT, which an initiator must know; else 0.
    pub dc_key: u64,
    /// One of [`qp_type`].
    pub qp_type: u32,
    /// 1: every send request is signalled.
    pub sq_sig_all: u32,
    /// Queue sizes: asked, and at return what was given (at least what was asked).
    pub cap: QpCap,
}

/// Sizes of a QP's queues: 20 bytes. Frozen, as it lies inside other structs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Outstanding send requests.
    pub max_send_wr: u32,
    /// Outstanding receive requests; ignored with an SRQ.
    pub max_recv_wr: u32,
    /// Pieces of a send request.
    pub max_send_sge: u32,
    /// Pieces of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// QP attributes of modify and query.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// One of [`qp_state`].
    pub qp_state: u32,
    /// The state the program believes in ([`qp_attr_mask::CUR_STATE`]).
    pub cur_qp_state: u32,
    /// One of [`mtu`].
    pub path_mtu: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// The peer's QPN.
    pub dest_qp_num: u32,
    /// [`access`] flags for remote operations.
    pub qp_access_flags: u32,
    /// Address vector.
    pub ah: AhAttr,
    /// Queue sizes (query only).
    pub cap: QpCap,
    /// Index into the P_Key table (only 0).
    pub pkey_index: u16,
    /// Port number (only 1).
    pub port_num: u8,
    /// 1: raise SQ_DRAINED on entering SQD.
    pub en_sqd_async_notify: u8,
    /// 1 while SQD drains (query only).
    pub sq_draining: u8,
    /// READ and atomic requests outstanding as requester.
    pub max_rd_atomic: u8,
    /// READ and atomic requests held as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code 0 to 31 sent to the peer.
    pub min_rnr_timer: u8,
    /// ACK timeout: 4.096 µs · 2^n, 0 = off: then only `deadline_ns` ends the operation or,
    /// if that is 0 too, what this host knows of the end of the peer's process.
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 0 to 7; 7 = for ever.
    pub rnr_retry: u8,
    /// Not 0: the peer is a soft device, whose packets leave from its own UDP port. With the
    /// address vector.
    pub peer_is_soft: u8,
    /// Send rate in bytes per second, 0 = unlimited.
    pub rate_limit_bytes_per_s: u64,
}

/// Copies fields of one name and type from a struct to another, such as one of a C interface.
#[macro_export]
macro_rules! copy_fields {
    ($from:expr => $to:expr; $($field:ident)+) => {{ $($to.$field = $from.$field;)+ }};
}

/// Copies the QP attributes that have one name and type in [`QpAttr`] and in a struct of a C
/// interface: all but the address vector, the queue sizes and the rate.
#[macro_export]
macro_rules! copy_qp_attr {
    ($from:expr => $to:expr) => {
        $crate::copy_fields! { $from => $to;
            qp_state cur_qp_state path_mtu qkey rq_psn sq_psn dest_qp_num qp_access_flags
            pkey_index port_num en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic
            min_rnr_timer timeout retry_cnt rnr_retry
        }
    };
}

/// Copies the queue sizes between [`QpCap`] and a struct of a C interface.
#[macro_export]
macro_rules! copy_qp_cap {
    ($from:expr => $to:expr) => {
        $crate::copy_fields! { $from => $to;
            max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data
        }
    };
}

// Sizes and offsets are ABI.
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<QpCap>() == 20);
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<SendWr>() == 128);
    assert!(offset_of!(SendWr, opcode) == 28);
    assert!(offset_of!(SendWr, imm_data) == 36);
    assert!(offset_of!(SendWr, wr) == 40);
    assert!(offset_of!(SendWr, remote_srqn) == 72);
    assert!(offset_of!(SendWr, ext) == 80);
    assert!(size_of::<WrOp>() == 32);
    assert!(offset_of!(FlushWr, rkey) == offset_of!(RdmaWr, rkey));
    assert!(size_of::<RecvWr>() == 32);
    assert!(size_of::<Wc>() == 48);
    assert!(offset_of!(Wc, imm_data) == 24);
    assert!(offset_of!(Wc, wc_flags) == 36);
};
