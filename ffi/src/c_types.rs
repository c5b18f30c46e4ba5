//! The structs of the header. Their layout is ABI: `c_layout.rs` asserts it against core's types,
//! `tests/c/layout.c` asserts it again from the C side.
//!
//! Three families (docs/using/ABI.md): handles (one 64-bit word, passed by value), hot structs
//! (frozen, layout of their `ibv_` counterparts) and attribute structs (`struct_size` first,
//! append-only). Numbers are in host byte order unless a field says otherwise.

pub use crate::context_slots::gdrc_context;
use core::ffi::{c_char, c_int, c_void};

/// Protection domain. `{0}` is never valid; a handle of a destroyed object is refused with -EINVAL.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_pd {
    /// Index, type and generation; opaque.
    pub handle: u64,
}

/// Memory region.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_mr {
    /// Opaque.
    pub handle: u64,
}

/// Memory window.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_mw {
    /// Opaque.
    pub handle: u64,
}

/// Completion queue.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_cq {
    /// Opaque.
    pub handle: u64,
}

/// Completion channel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_channel {
    /// Opaque.
    pub handle: u64,
}

/// Shared receive queue.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_srq {
    /// Opaque.
    pub handle: u64,
}

/// Queue pair.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_qp {
    /// Opaque.
    pub handle: u64,
}

/// Address handle.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_ah {
    /// Opaque.
    pub handle: u64,
}

/// One piece of a local buffer: 16 bytes, layout of ibv_sge. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_sge {
    /// Address of the first byte, in the MR's terms (its iova).
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the MR that holds the range; ignored for inline data.
    pub lkey: u32,
}

/// Remote side of WRITE and READ.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_rdma_wr {
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Operands of CMP_SWAP and FETCH_ADD.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_atomic_wr {
    /// Remote address, a multiple of 8.
    pub remote_addr: u64,
    /// Compared with (CMP_SWAP) or added (FETCH_ADD).
    pub compare_add: u64,
    /// Stored where the comparison holds.
    pub swap: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Destination of a UD SEND.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_ud_wr {
    /// Address handle.
    pub ah: gdrc_ah,
    /// Destination QPN.
    pub remote_qpn: u32,
    /// Q_Key to send; with bit 31 set the QP's own is sent.
    pub remote_qkey: u32,
}

/// The transport-specific part of gdrc_send_wr; the opcode chooses.
#[repr(C)]
#[derive(Clone, Copy)]
pub union gdrc_wr_op {
    /// WRITE and READ.
    pub rdma: gdrc_rdma_wr,
    /// CMP_SWAP and FETCH_ADD.
    pub atomic: gdrc_atomic_wr,
    /// UD SEND.
    pub ud: gdrc_ud_wr,
}

/// What BIND_MW binds a window to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_mw_bind_info {
    /// The region that the window opens onto; registered with GDRC_ACCESS_MW_BIND.
    pub mr: gdrc_mr,
    /// First byte.
    pub addr: u64,
    /// Length in bytes; 0 with a type-1 window closes it.
    pub length: u64,
    /// GDRC_ACCESS_ flags of the window.
    pub mw_access_flags: u32,
}

/// The bind part of gdrc_send_wr.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_bind_mw_wr {
    /// The window.
    pub mw: gdrc_mw,
    /// Its new rkey: the low 8 bits are the program's own.
    pub rkey: u32,
    /// What to bind it to.
    pub bind_info: gdrc_mw_bind_info,
}

/// A send work request: 128 bytes, layout of ibv_send_wr. Frozen. The struct and its sg_list are
/// free again when gdrc_post_send returns; the memory that the pieces name stays the device's until
/// the completion.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_send_wr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Next request, or NULL.
    pub next: *mut gdrc_send_wr,
    /// `num_sge` pieces; may be NULL when there are none.
    pub sg_list: *mut gdrc_sge,
    /// Number of pieces, 0 to cap.max_send_sge.
    pub num_sge: i32,
    /// GDRC_WR_.
    pub opcode: u32,
    /// GDRC_SEND_ flags.
    pub send_flags: u32,
    /// Immediate data in network byte order; for SEND_WITH_INV and LOCAL_INV the rkey to
    /// invalidate, host order.
    pub imm_data: u32,
    /// By opcode.
    pub wr: gdrc_wr_op,
    /// Not used (XRC).
    pub remote_srqn: u32,
    /// For BIND_MW.
    pub bind_mw: gdrc_bind_mw_wr,
}

/// A receive work request: 32 bytes, layout of ibv_recv_wr. Frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_recv_wr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Next request, or NULL.
    pub next: *mut gdrc_recv_wr,
    /// `num_sge` pieces. On UD the first 40 bytes receive the GRH.
    pub sg_list: *mut gdrc_sge,
    /// Number of pieces, 0 to cap.max_recv_sge.
    pub num_sge: i32,
}

/// A work completion: 48 bytes, layout of ibv_wc. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_wc {
    /// Of the work request.
    pub wr_id: u64,
    /// GDRC_WC_; everything but wr_id, status, vendor_err and qp_num is valid only on success.
    pub status: u32,
    /// GDRC_WC_OP_.
    pub opcode: u32,
    /// On an error a GDRC_CAUSE_ number, else 0.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in network byte order (GDRC_WC_FLAG_WITH_IMM), or the rkey invalidated
    /// (GDRC_WC_FLAG_WITH_INV).
    pub imm_data: u32,
    /// The local QPN.
    pub qp_num: u32,
    /// The sender's QPN (UD).
    pub src_qp: u32,
    /// GDRC_WC_FLAG_.
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

/// Posts a request to a device's own object; of gdrc_pinned_qp.
pub type gdrc_post_send_fn =
    Option<unsafe extern "C" fn(*mut c_void, *const gdrc_send_wr, *mut *const gdrc_send_wr) -> c_int>;

/// Posts a receive request to a device's own object; of gdrc_pinned_qp.
pub type gdrc_post_recv_fn =
    Option<unsafe extern "C" fn(*mut c_void, *const gdrc_recv_wr, *mut *const gdrc_recv_wr) -> c_int>;

/// Polls a device's own object; of gdrc_pinned_cq.
pub type gdrc_poll_cq_fn = Option<unsafe extern "C" fn(*mut c_void, c_int, *mut gdrc_wc) -> c_int>;

/// A pinned queue pair (gdrc_qp_pin), read by the inline functions only. All 0: it was given back,
/// or this is the child of a fork.
#[repr(C)]
pub struct gdrc_pinned_qp {
    /// Takes requests as they are.
    pub post_send: gdrc_post_send_fn,
    /// Takes receive requests as they are.
    pub post_recv: gdrc_post_recv_fn,
    /// Their first argument.
    pub object: *mut c_void,
    /// Bits that opcode << 32 | num_sge of a request that is passed on does not have; one at least
    /// is in its sg_list. 0: none is.
    pub unusual: u64,
    /// The same for num_sge and sg_list of a receive request.
    pub recv_unusual: u64,
    /// Twice as many requests may be in a list that is passed on; all bits: whatever it is, it is.
    pub pairs: u64,
    /// 0.
    pub reserved: [u64; 2],
}

/// A pinned CQ (gdrc_cq_pin), as gdrc_pinned_qp.
#[repr(C)]
pub struct gdrc_pinned_cq {
    /// Polls.
    pub poll_cq: gdrc_poll_cq_fn,
    /// Its first argument.
    pub object: *mut c_void,
    /// A poll is passed on where num_entries - 1 is below this.
    pub polls: u64,
    /// Not 0: what a poll brings is the program's as it is.
    pub as_is: u64,
}

/// Every bound of a context. Set struct_size and leave the rest 0: 0 means the default everywhere.
/// All memory follows from these numbers (gdrc_context_size).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_config {
    /// sizeof(struct gdrc_config).
    pub struct_size: u32,
    /// GDRC_CONFIG_ flags.
    pub flags: u32,
    /// Protection domains (64).
    pub max_pd: u32,
    /// Memory regions and windows together (1024), at most 65536.
    pub max_mr: u32,
    /// Completion queues (128).
    pub max_cq: u32,
    /// Queue pairs (128).
    pub max_qp: u32,
    /// Shared receive queues (16).
    pub max_srq: u32,
    /// Address handles (128).
    pub max_ah: u32,
    /// Distinct peer addresses that QPs and address handles name (256).
    pub max_peer: u32,
    /// Pieces of a scatter/gather list (16).
    pub max_sge: u32,
    /// Bytes of inline data (256).
    pub max_inline: u32,
    /// READs and atomics that a QP holds as responder (16), at most 128.
    pub max_rd_atomic: u32,
    /// Largest path MTU in bytes (4096).
    pub max_mtu: u32,
    /// First QPN of the context's range (one of a block of 16384 that nobody has at the address). A
    /// range that is given takes the blocks that it lies in; at 0xfe0000 it must end (-EINVAL).
    pub qpn_base: u32,
    /// Size of the block, a power of two and at least 4 * max_qp (16384, or as many as max_qp
    /// needs).
    pub qpn_count: u32,
    /// Largest window of unacknowledged bytes to one peer address (1048576). 192 KiB are used at
    /// once; beyond, it grows by and by, and goes back for good where packets are lost.
    pub window_max: u32,
    /// After this silence of the peer an operation whose QP has no ACK timeout ends, in
    /// milliseconds (30000).
    pub deadline_ms: u32,
    /// Ids of the connection manager, listeners and connections together (64); rounded up to a
    /// multiple of 64. Requests of peers that have not shown that they receive have places of their
    /// own.
    pub max_cm_ids: u32,
    /// Bytes for the rings of QPs, SRQs and CQs (4 MiB).
    pub ring_bytes: u64,
    /// Write every packet to this pcap file as an Ethernet frame, before it leaves or is handled,
    /// or NULL. Peers of this host are then reached by packets (GDRC_CONFIG_SHM says otherwise);
    /// what passes between queue pairs of the context itself is none. A file that another context
    /// or process writes, or that this process has begun, is continued, any other begun anew
    /// (-EINVAL: a file that is continued is no capture; -EBUSY: it stays locked). A full disk ends
    /// the capture, with a line on standard error and in the counter capture_lost, and not the
    /// traffic. Read during the call only.
    pub pcap_path: *const c_char,
    /// Seed of keys and packet numbers; 0: taken from the system's random source.
    pub seed: u64,
    /// What the link carries, in bytes per second (12.5 GB/s). Only GDRC_CONFIG_DCQCN asks: a rate
    /// begins and ends there.
    pub line_rate_bps: u64,
    /// Keepalive of RC queue pairs in milliseconds; 0, the default: none. One that has nothing
    /// under way and has heard nothing of its peer for so long asks, and asks again by its ACK
    /// timeout and retry count. Without an answer it fails: cause GDRC_CAUSE_KEEPALIVE, event
    /// QP_FATAL, its receives flush. The peer need not know of it, but must poll, or have a helper
    /// thread.
    pub keepalive_ms: u32,
    /// 0.
    pub reserved: u32,
}

/// What a device can do.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_device_attr {
    /// sizeof(struct gdrc_device_attr), set by the caller.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Largest message in bytes.
    pub max_msg_size: u64,
    /// Node GUID.
    pub node_guid: u64,
    /// Bounds of this device alone, whatever other processes have on its address: so many there can
    /// be once gdrc_arena_add has brought memory for them. At first there is room for what the
    /// configuration says.
    pub max_pd: u32,
    /// Memory regions and windows.
    pub max_mr: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Requests in one queue.
    pub max_qp_wr: u32,
    /// Entries of one CQ.
    pub max_cqe: u32,
    /// Pieces of a scatter/gather list.
    pub max_sge: u32,
    /// Inline bytes.
    pub max_inline: u32,
    /// READs and atomics outstanding per QP.
    pub max_rd_atomic: u32,
    /// Largest GDRC_MTU_ code that the link carries.
    pub active_mtu: u32,
    /// The device's UDP port.
    pub udp_port: u32,
    /// First QPN of the device's block.
    pub qpn_base: u32,
    /// The device's GID: its IPv6 address, or its IPv4 address as ::ffff:a.b.c.d.
    pub gid: [u8; 16],
    /// IPv6 zone (interface index) of the GID, else 0.
    pub scope_id: u32,
    /// Zero.
    pub reserved2: u32,
}

/// What a memory region is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_mr_attr {
    /// sizeof(struct gdrc_mr_attr), set by the caller.
    pub struct_size: u32,
    /// GDRC_MEMORY_ kind: 0 is host memory.
    pub provider: u32,
    /// The program's address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// The address that work requests, local and remote, use for the first byte.
    pub iova: u64,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// GDRC_ACCESS_ flags.
    pub access: u32,
    /// Zero.
    pub reserved: u32,
    /// GDRC_ROUTE_: how the bytes are reached.
    pub route: u32,
    /// GDRC_NO_: why not by dma-buf.
    pub no_dmabuf: u32,
    /// GDRC_NO_: why not by nvidia_peermem.
    pub no_peermem: u32,
    /// The last refusal: positive a CUresult, negative an errno of the NIC's, 0 if there was none.
    pub refusal: i32,
    /// CUDA's id of the allocation, unique in the process; 0 for host memory.
    pub buffer_id: u64,
    /// GDRC_MR_ flags.
    pub flags: u32,
    /// Zero.
    pub reserved2: u32,
}

/// Memory to be registered: gdrc_mr_reg_memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_memory {
    /// sizeof(struct gdrc_memory), set by the caller.
    pub struct_size: u32,
    /// GDRC_MEMORY_HOST or GDRC_MEMORY_CUDA.
    pub kind: u32,
    /// Address of the first byte: the CPU's, or CUDA's.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// The address that work requests will use for the first byte (GDRC_MEMORY_IOVA).
    pub iova: u64,
    /// GDRC_MEMORY_ flags.
    pub flags: u32,
    /// What the memory is a mapping of, which stays the caller's: a dma-buf (GDRC_MEMORY_DMABUF),
    /// or a memfd (GDRC_MEMORY_SHARED).
    pub dmabuf_fd: i32,
    /// Where the first byte lies in what the descriptor stands for.
    pub dmabuf_offset: u64,
}

/// A GPU.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_cuda_attr {
    /// sizeof(struct gdrc_cuda_attr), set by the caller.
    pub struct_size: u32,
    /// GDRC_CUDA_HAS_ flags.
    pub flags: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// PCI address, as "0000:b7:00.0".
    pub bdf: [c_char; 16],
    /// The driver's name for it.
    pub name: [c_char; 64],
}

/// GPU memory on its way to another process of this host: 104 bytes, to be sent as they are.
/// Frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_cuda_handle {
    /// 1: by CUDA IPC; 2: by the descriptor that goes with it.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes of the range.
    pub length: u64,
    /// Where it begins in its allocation.
    pub offset: u64,
    /// PCI address of the GPU: ordinals differ between processes.
    pub bdf: [c_char; 16],
    /// CUipcMemHandle; with a descriptor the bytes of its allocation, 8 of them.
    pub ipc: [u8; 64],
}

/// A NIC and a GPU: gdrc_topology. Frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_topology_pair {
    /// The RDMA device, or the network interface where there is none.
    pub nic: [c_char; 64],
    /// Its network interface; empty where it has none.
    pub netdev: [c_char; 16],
    /// The NIC's PCI address, as "0000:b7:00.0".
    pub nic_bdf: [c_char; 16],
    /// The GPU's.
    pub gpu_bdf: [c_char; 16],
    /// GDRC_NEAR_.
    pub near: u32,
    /// NUMA nodes; -1: none.
    pub nic_numa: i32,
    /// The GPU's.
    pub gpu_numa: i32,
    /// PCI class of the GPU: 0x030200 is a 3D controller.
    pub gpu_class: u32,
    /// PCI vendor of the GPU.
    pub gpu_vendor: u16,
    /// PCI device of the GPU.
    pub gpu_device: u16,
    /// PCI revision of the GPU.
    pub gpu_revision: u32,
}

/// Where a QP or an address handle sends to: 24 bytes. Frozen, as it lies inside gdrc_qp_attr.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_ah_attr {
    /// Destination GID: an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d.
    pub dgid: [u8; 16],
    /// IPv6 zone (interface index) for link-local destinations, else 0.
    pub scope_id: u32,
    /// Destination UDP port in host byte order; 0: the device's own.
    pub udp_port: u16,
    /// IP hop limit; 0: the system's default.
    pub hop_limit: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
}

/// SRQ attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_srq_attr {
    /// sizeof(struct gdrc_srq_attr), set by the caller.
    pub struct_size: u32,
    /// Outstanding requests: asked, and at return what was given.
    pub max_wr: u32,
    /// Pieces of a request: asked, and at return what was given.
    pub max_sge: u32,
    /// Raise GDRC_EVENT_SRQ_LIMIT_REACHED once when fewer requests are left; 0 = off.
    pub srq_limit: u32,
}

/// Sizes of a QP's queues: 20 bytes. Frozen, as it lies inside other structs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_qp_cap {
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

/// What a QP is created with.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_qp_init {
    /// sizeof(struct gdrc_qp_init), set by the caller.
    pub struct_size: u32,
    /// GDRC_QPT_.
    pub qp_type: u32,
    /// Protection domain.
    pub pd: gdrc_pd,
    /// CQ of the send queue.
    pub send_cq: gdrc_cq,
    /// CQ of the receive queue; may be the same.
    pub recv_cq: gdrc_cq,
    /// Shared receive queue, or {0}.
    pub srq: gdrc_srq,
    /// 1: every send request is signalled.
    pub sq_sig_all: u32,
    /// Asked, and at return what was given (at least what was asked).
    pub cap: gdrc_qp_cap,
}

/// QP attributes of modify and query.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_qp_attr {
    /// sizeof(struct gdrc_qp_attr), set by the caller.
    pub struct_size: u32,
    /// GDRC_QPS_.
    pub qp_state: u32,
    /// The state that the program believes in (GDRC_QP_CUR_STATE).
    pub cur_qp_state: u32,
    /// GDRC_MTU_ code; bytes are 128 << code.
    pub path_mtu: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// First PSN expected, 24 bits.
    pub rq_psn: u32,
    /// First PSN sent, 24 bits.
    pub sq_psn: u32,
    /// The peer's QPN, 24 bits.
    pub dest_qp_num: u32,
    /// GDRC_ACCESS_REMOTE_ flags: what the peer may do.
    pub qp_access_flags: u32,
    /// Address vector.
    pub ah: gdrc_ah_attr,
    /// Queue sizes (query only).
    pub cap: gdrc_qp_cap,
    /// Index into the P_Key table: 0.
    pub pkey_index: u16,
    /// Port number: 1.
    pub port_num: u8,
    /// 1: raise GDRC_EVENT_SQ_DRAINED on entering SQD.
    pub en_sqd_async_notify: u8,
    /// 1 while SQD drains (query only).
    pub sq_draining: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics held as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code sent to the peer, 0 to 31.
    pub min_rnr_timer: u8,
    /// ACK timeout of 4.096 us * 2^n, 0 to 31; 0 = off, the context's deadline still ends the
    /// operation.
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 0 to 7; 7 = for ever.
    pub rnr_retry: u8,
    /// Zero.
    pub reserved: u8,
    /// Zero.
    pub reserved2: u32,
    /// Send rate in bytes per second; 0 = unlimited.
    pub rate_limit_bps: u64,
}

/// An asynchronous event. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_async_event {
    /// GDRC_EVENT_.
    pub event: u32,
    /// Zero.
    pub reserved: u32,
    /// Handle word of the QP, CQ or SRQ concerned.
    pub handle: u64,
}

/// What a program left behind when it closed a context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_leaks {
    /// sizeof(struct gdrc_leaks), set by the caller.
    pub struct_size: u32,
    /// Protection domains.
    pub pd: u32,
    /// Memory regions.
    pub mr: u32,
    /// Memory windows.
    pub mw: u32,
    /// Completion queues.
    pub cq: u32,
    /// Queue pairs.
    pub qp: u32,
    /// Shared receive queues.
    pub srq: u32,
    /// Address handles.
    pub ah: u32,
}

/// The last cause of an error on a QP or context: 64 bytes. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_cause {
    /// GDRC_CAUSE_.
    pub code: u32,
    /// The completion status that went with it, 0 if none.
    pub wc_status: u32,
    /// The peer's GID, zero if none.
    pub peer: [u8; 16],
    /// The local QPN, 0 if none.
    pub qpn: u32,
    /// The peer's QPN.
    pub remote_qpn: u32,
    /// PSN concerned.
    pub psn: u32,
    /// The counter that stands for it: an index for gdrc_counter_name.
    pub counter: u32,
    /// By code.
    pub arg0: u64,
    /// By code.
    pub arg1: u64,
    /// Device time of the event in nanoseconds.
    pub time_ns: u64,
}

/// What a program tells its peer so that the two can connect: fill it with gdrc_endpoint_local,
/// send it as 128 bytes (gdrc_endpoint_pack), give the peer's to gdrc_qp_connect.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_endpoint {
    /// sizeof(struct gdrc_endpoint), set by the caller.
    pub struct_size: u32,
    /// GDRC_ENDPOINT_VERSION.
    pub version: u32,
    /// The device's GID.
    pub gid: [u8; 16],
    /// IPv6 zone on this machine, else 0. Means nothing to a peer and is not sent.
    pub scope_id: u32,
    /// QPN.
    pub qpn: u32,
    /// First PSN that this side will send.
    pub psn: u32,
    /// Largest GDRC_MTU_ code that this side's link carries.
    pub mtu: u32,
    /// GDRC_QPT_.
    pub qp_type: u32,
    /// UDP port of the device.
    pub udp_port: u32,
    /// Address of a buffer offered to the peer, or 0.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Its remote key.
    pub rkey: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// READs and atomics that this side serves at once.
    pub max_rd_atomic: u32,
    /// GDRC_ENDPOINT_OWN_PORT, or 0: also in a struct that a program fills for a peer of another
    /// kind.
    pub flags: u32,
}

/// Choices of gdrc_qp_connect. 0 means the default named at each field, unless GDRC_CONNECT_EXACT
/// is set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_connect_opts {
    /// sizeof(struct gdrc_connect_opts), set by the caller.
    pub struct_size: u32,
    /// GDRC_ACCESS_REMOTE_ flags: what the peer may do (READ, WRITE and, on RC, ATOMIC).
    pub access: u32,
    /// ACK timeout code (14: 67 ms).
    pub timeout: u32,
    /// Retries after a timeout (7).
    pub retry_cnt: u32,
    /// Retries after an RNR NAK (7: for ever).
    pub rnr_retry: u32,
    /// RNR NAK timer code (12: 0.64 ms).
    pub min_rnr_timer: u32,
    /// READs and atomics outstanding as requester; also without EXACT at most what the peer serves
    /// (what the peer serves).
    pub max_rd_atomic: u32,
    /// READs and atomics held as responder (what `local` says).
    pub max_dest_rd_atomic: u32,
    /// Q_Key of a UD QP (what `local` says).
    pub qkey: u32,
    /// P_Key index: 0.
    pub pkey_index: u32,
    /// Send rate in bytes per second; 0 = unlimited.
    pub rate_limit_bps: u64,
    /// GDRC_CONNECT_ flags.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}
