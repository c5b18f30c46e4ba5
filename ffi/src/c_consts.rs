//! The constants of the header. cbindgen needs literals, so the numbers are repeated here; the
//! assertions at the end keep them equal to core's.
#![allow(missing_docs)] // documented where core defines them; the names are those of verbs

/// Version of the header: (major << 16) | (minor << 8) | patch. gdrc_version_number() is the
/// library's.
pub const GDRC_VERSION: u32 = 0x0000_0100;

/// The QP number of a message to a multicast group.
pub const GDRC_QPN_MULTICAST: u32 = 0xff_ffff;

// enum gdrc_wr_opcode
/// Opcodes of send work requests (ibv_wr_opcode).
pub const GDRC_WR_RDMA_WRITE: u32 = 0;
pub const GDRC_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
pub const GDRC_WR_SEND: u32 = 2;
pub const GDRC_WR_SEND_WITH_IMM: u32 = 3;
pub const GDRC_WR_RDMA_READ: u32 = 4;
pub const GDRC_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
pub const GDRC_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
pub const GDRC_WR_LOCAL_INV: u32 = 7;
pub const GDRC_WR_BIND_MW: u32 = 8;
pub const GDRC_WR_SEND_WITH_INV: u32 = 9;
/// RC: succeeds when all that was sent before on the queue pair has been placed, and is visible to
/// who reads that memory. wr.flush names what it is about; sg_list is not looked at. The queue pair
/// and the region of the peer need GDRC_ACCESS_FLUSH_ flags of each of its types.
pub const GDRC_WR_FLUSH: u32 = 14;
/// RC: the peer stores the 8 bytes of sg_list in one piece at wr.rdma.remote_addr, a multiple of 8,
/// behind all that was sent before; it needs GDRC_ACCESS_REMOTE_WRITE. The bytes are copied during
/// the post, as with GDRC_SEND_INLINE, whatever max_inline_data is.
pub const GDRC_WR_ATOMIC_WRITE: u32 = 15;

// flags gdrc_send_flags
/// Flags of send work requests (ibv_send_flags). FENCE: start after earlier READs, atomics, ATOMIC
/// WRITEs and FLUSHes have ended.
pub const GDRC_SEND_FENCE: u32 = 1;
/// Generate a completion.
pub const GDRC_SEND_SIGNALED: u32 = 2;
/// Raise the event of a receiver's CQ that is armed for solicited completions only.
pub const GDRC_SEND_SOLICITED: u32 = 4;
/// Copy the payload during the post: its memory is free at return and needs no lkey.
pub const GDRC_SEND_INLINE: u32 = 8;
pub const GDRC_SEND_IP_CSUM: u32 = 16;
/// Not in libibverbs: the next post or gdrc_progress rings the doorbell, not this post.
pub const GDRC_SEND_MORE: u32 = 0x4000_0000;

// enum gdrc_wc_status
/// Completion statuses (ibv_wc_status).
pub const GDRC_WC_SUCCESS: u32 = 0;
pub const GDRC_WC_LOC_LEN_ERR: u32 = 1;
pub const GDRC_WC_LOC_QP_OP_ERR: u32 = 2;
pub const GDRC_WC_LOC_PROT_ERR: u32 = 4;
pub const GDRC_WC_WR_FLUSH_ERR: u32 = 5;
pub const GDRC_WC_MW_BIND_ERR: u32 = 6;
pub const GDRC_WC_BAD_RESP_ERR: u32 = 7;
pub const GDRC_WC_LOC_ACCESS_ERR: u32 = 8;
pub const GDRC_WC_REM_INV_REQ_ERR: u32 = 9;
pub const GDRC_WC_REM_ACCESS_ERR: u32 = 10;
pub const GDRC_WC_REM_OP_ERR: u32 = 11;
pub const GDRC_WC_RETRY_EXC_ERR: u32 = 12;
pub const GDRC_WC_RNR_RETRY_EXC_ERR: u32 = 13;
pub const GDRC_WC_FATAL_ERR: u32 = 19;
pub const GDRC_WC_RESP_TIMEOUT_ERR: u32 = 20;
pub const GDRC_WC_GENERAL_ERR: u32 = 21;

// enum gdrc_wc_opcode
/// Completion opcodes (ibv_wc_opcode).
pub const GDRC_WC_OP_SEND: u32 = 0;
pub const GDRC_WC_OP_RDMA_WRITE: u32 = 1;
pub const GDRC_WC_OP_RDMA_READ: u32 = 2;
pub const GDRC_WC_OP_COMP_SWAP: u32 = 3;
pub const GDRC_WC_OP_FETCH_ADD: u32 = 4;
pub const GDRC_WC_OP_BIND_MW: u32 = 5;
pub const GDRC_WC_OP_LOCAL_INV: u32 = 6;
pub const GDRC_WC_OP_FLUSH: u32 = 8;
pub const GDRC_WC_OP_ATOMIC_WRITE: u32 = 9;
/// Bit 7 is set in every receive opcode.
pub const GDRC_WC_OP_RECV: u32 = 128;
pub const GDRC_WC_OP_RECV_RDMA_WITH_IMM: u32 = 129;

// flags gdrc_wc_flags
/// Completion flags (ibv_wc_flags). GRH: the first 40 bytes of the receive buffer hold it.
pub const GDRC_WC_FLAG_GRH: u32 = 1;
pub const GDRC_WC_FLAG_WITH_IMM: u32 = 2;
pub const GDRC_WC_FLAG_IP_CSUM_OK: u32 = 4;
pub const GDRC_WC_FLAG_WITH_INV: u32 = 8;

// flags gdrc_access_flags
/// Access flags of regions, windows and QPs (ibv_access_flags).
pub const GDRC_ACCESS_LOCAL_WRITE: u32 = 1;
pub const GDRC_ACCESS_REMOTE_WRITE: u32 = 2;
pub const GDRC_ACCESS_REMOTE_READ: u32 = 4;
pub const GDRC_ACCESS_REMOTE_ATOMIC: u32 = 8;
pub const GDRC_ACCESS_MW_BIND: u32 = 16;
/// Work requests count from 0 instead of from the program's address.
pub const GDRC_ACCESS_ZERO_BASED: u32 = 32;
pub const GDRC_ACCESS_ON_DEMAND: u32 = 64;
pub const GDRC_ACCESS_HUGETLB: u32 = 128;
/// A peer may FLUSH (GDRC_FLUSH_GLOBAL). Not of windows.
pub const GDRC_ACCESS_FLUSH_GLOBAL: u32 = 0x100;
/// A peer may FLUSH for ever (GDRC_FLUSH_PERSISTENT). A QP may have it; regions may not, since no
/// device here has persistent memory: -EINVAL.
pub const GDRC_ACCESS_FLUSH_PERSISTENT: u32 = 0x200;
pub const GDRC_ACCESS_RELAXED_ORDERING: u32 = 0x10_0000;

// flags gdrc_flush_type
/// What a FLUSH brings about (ibv_placement_type). GLOBAL: who reads the memory sees what was sent
/// before.
pub const GDRC_FLUSH_GLOBAL: u32 = 1;
/// It survives a loss of power.
pub const GDRC_FLUSH_PERSISTENT: u32 = 2;

// enum gdrc_flush_level
/// What a FLUSH is about (ibv_selectivity_level). RANGE: remote_addr and length.
pub const GDRC_FLUSH_RANGE: u32 = 0;
/// The whole region of rkey; remote_addr and length are not looked at.
pub const GDRC_FLUSH_MR: u32 = 1;

// enum gdrc_memory_kind
/// Kinds of memory (gdrc_memory.kind, gdrc_mr_attr.provider). HOST: memory that the CPU accesses by
/// address.
pub const GDRC_MEMORY_HOST: u32 = 0;
/// Memory of a GPU, by its CUDA address.
pub const GDRC_MEMORY_CUDA: u32 = 1;

// flags gdrc_memory_flags
/// Flags of gdrc_memory. DMABUF: fd and fd_offset are set, and a NIC tries no other
/// route.
pub const GDRC_MEMORY_FLAG_DMABUF: u32 = 1;
/// iova is set. Without it work requests use addr, or count from 0 with GDRC_ACCESS_ZERO_BASED.
pub const GDRC_MEMORY_FLAG_IOVA: u32 = 2;
/// Host memory: it is a MAP_SHARED mapping of `fd`, a memfd with F_SEAL_SHRINK, from `fd_offset`
/// on. A peer that is another process of this user on this host, reached through shared memory
/// (path=shm or auto), may map it and then executes its RDMA WRITEs by copying into it, without
/// this process and without a packet. Such a peer can write the memory at any time, whatever rights
/// its keys have: share only memory that it may write. No effect on other devices and on other
/// peers.
pub const GDRC_MEMORY_FLAG_SHARED: u32 = 4;

// enum gdrc_mr_route
/// The route by which a device reaches a region (gdrc_mr_attr.route). HOST: by address.
pub const GDRC_ROUTE_HOST: u32 = 0;
/// The NIC holds a dma-buf of them.
pub const GDRC_ROUTE_DMABUF: u32 = 1;
/// The NIC has the GPU's addresses, through nvidia_peermem.
pub const GDRC_ROUTE_PEERMEM: u32 = 2;
/// Copies through pinned host memory.
pub const GDRC_ROUTE_STAGED: u32 = 3;

// enum gdrc_mr_reason
/// Why a route was not taken (gdrc_mr_attr.no_dmabuf, no_peermem). NONE: it was taken, or one
/// before it.
pub const GDRC_MR_REASON_NONE: u32 = 0;
pub const GDRC_MR_REASON_SOFT_DEVICE: u32 = 1;
pub const GDRC_MR_REASON_NOT_EXPORTED: u32 = 2;
pub const GDRC_MR_REASON_NOT_TAKEN: u32 = 3;
pub const GDRC_MR_REASON_NO_PEERMEM: u32 = 4;
pub const GDRC_MR_REASON_REFUSED: u32 = 5;

// flags gdrc_mr_flags
/// Flag of gdrc_mr_attr: the GPU memory was freed under the region; operations that use it fail.
pub const GDRC_MR_GONE: u32 = 1;

// flags gdrc_cuda_alloc_flags
/// Flag of gdrc_cuda_alloc: virtual memory management, which other processes get by descriptor;
/// without it, CUDA IPC.
pub const GDRC_CUDA_SHAREABLE: u32 = 1;

// flags gdrc_cuda_features
/// Features of a GPU (gdrc_cuda_attr.flags).
pub const GDRC_CUDA_HAS_DMABUF: u32 = 1;
pub const GDRC_CUDA_HAS_VMM: u32 = 2;
pub const GDRC_CUDA_HAS_GPUDIRECT: u32 = 4;

// enum gdrc_topology_near
/// The PCIe part that a NIC and a GPU share (gdrc_topology_pair.near), the nearest last.
pub const GDRC_NEAR_SYSTEM: u32 = 0;
pub const GDRC_NEAR_NUMA_NODE: u32 = 1;
pub const GDRC_NEAR_HOST_BRIDGE: u32 = 2;
pub const GDRC_NEAR_ROOT_PORT: u32 = 3;
pub const GDRC_NEAR_SWITCH: u32 = 4;
pub const GDRC_NEAR_BRIDGE: u32 = 5;

// enum gdrc_qp_type
/// QP types (ibv_qp_type).
pub const GDRC_QPT_RC: u32 = 2;
pub const GDRC_QPT_UC: u32 = 3;
pub const GDRC_QPT_UD: u32 = 4;
/// XRC initiator: sends, each request to an SRQ of the peer that remote_srqn names.
pub const GDRC_QPT_XRC_SEND: u32 = 9;
/// XRC target: receives for the SRQs of an XRC domain.
pub const GDRC_QPT_XRC_RECV: u32 = 10;
/// DC initiator: sends, each request to a DC target that ext.dc names.
pub const GDRC_QPT_DCI: u32 = 0x101;
/// DC target: receives into an SRQ, from any DC initiator that knows its access key.
pub const GDRC_QPT_DCT: u32 = 0x102;

// enum gdrc_qp_state
/// QP states (ibv_qp_state).
pub const GDRC_QPS_RESET: u32 = 0;
pub const GDRC_QPS_INIT: u32 = 1;
pub const GDRC_QPS_RTR: u32 = 2;
pub const GDRC_QPS_RTS: u32 = 3;
pub const GDRC_QPS_SQD: u32 = 4;
pub const GDRC_QPS_SQE: u32 = 5;
pub const GDRC_QPS_ERR: u32 = 6;

// flags gdrc_qp_attr_mask
/// Which attributes gdrc_qp_modify sets (ibv_qp_attr_mask).
pub const GDRC_QP_STATE: u32 = 1;
pub const GDRC_QP_CUR_STATE: u32 = 2;
pub const GDRC_QP_EN_SQD_ASYNC_NOTIFY: u32 = 4;
pub const GDRC_QP_ACCESS_FLAGS: u32 = 8;
pub const GDRC_QP_PKEY_INDEX: u32 = 16;
pub const GDRC_QP_PORT: u32 = 32;
pub const GDRC_QP_QKEY: u32 = 64;
pub const GDRC_QP_AV: u32 = 128;
pub const GDRC_QP_PATH_MTU: u32 = 256;
pub const GDRC_QP_TIMEOUT: u32 = 512;
pub const GDRC_QP_RETRY_CNT: u32 = 1024;
pub const GDRC_QP_RNR_RETRY: u32 = 2048;
pub const GDRC_QP_RQ_PSN: u32 = 4096;
pub const GDRC_QP_MAX_QP_RD_ATOMIC: u32 = 8192;
pub const GDRC_QP_MIN_RNR_TIMER: u32 = 0x8000;
pub const GDRC_QP_SQ_PSN: u32 = 0x1_0000;
pub const GDRC_QP_MAX_DEST_RD_ATOMIC: u32 = 0x2_0000;
pub const GDRC_QP_CAP: u32 = 0x8_0000;
pub const GDRC_QP_DEST_QPN: u32 = 0x10_0000;
pub const GDRC_QP_RATE_LIMIT: u32 = 0x200_0000;

// enum gdrc_mtu
/// Path MTU codes (ibv_mtu); bytes are 128 << code.
pub const GDRC_MTU_256: u32 = 1;
pub const GDRC_MTU_512: u32 = 2;
pub const GDRC_MTU_1024: u32 = 3;
pub const GDRC_MTU_2048: u32 = 4;
pub const GDRC_MTU_4096: u32 = 5;

// enum gdrc_port_state
/// States of a port (numbers of ibv_port_state). DOWN: the interface is switched off or has no
/// carrier, or is gone.
pub const GDRC_PORT_DOWN: u32 = 1;
/// Packets can leave. A port that cannot be watched counts as active: that of a loopback context,
/// of one over a router, and one in a sandbox without netlink(7).
pub const GDRC_PORT_ACTIVE: u32 = 4;

// enum gdrc_event_type
/// Asynchronous events (ibv_event_type). An error that a completion reports has none.
pub const GDRC_EVENT_CQ_ERR: u32 = 0;
/// The queue pair has failed (its memory is gone, or its peer's process has ended) while it had no
/// request that could report it.
pub const GDRC_EVENT_QP_FATAL: u32 = 1;
/// The queue pair has failed: its peer sent an invalid request that consumes no receive.
pub const GDRC_EVENT_QP_REQ_ERR: u32 = 2;
/// The same for a request without the rights for it: key, range or access.
pub const GDRC_EVENT_QP_ACCESS_ERR: u32 = 3;
pub const GDRC_EVENT_COMM_EST: u32 = 4;
pub const GDRC_EVENT_SQ_DRAINED: u32 = 5;
/// The device was removed or has failed for good. A NIC completes no outstanding request. A soft
/// device raises it when the network interface of its address is removed; its requests end by their
/// retry counts, and go on if the address comes back before.
pub const GDRC_EVENT_DEVICE_FATAL: u32 = 8;
/// The link of the device's address is up again.
pub const GDRC_EVENT_PORT_ACTIVE: u32 = 9;
/// The link of the device's address is down. Requests wait for it until their retries are used up.
pub const GDRC_EVENT_PORT_ERR: u32 = 10;
pub const GDRC_EVENT_SRQ_ERR: u32 = 14;
pub const GDRC_EVENT_SRQ_LIMIT_REACHED: u32 = 15;
pub const GDRC_EVENT_QP_LAST_WQE_REACHED: u32 = 16;
/// The device's address was removed from its interface, or is there again.
pub const GDRC_EVENT_GID_CHANGE: u32 = 18;

// flags gdrc_config_flags
/// Flags of gdrc_config. STRICT_CQ: refuse a QP whose queues could overflow its CQ.
pub const GDRC_CONFIG_STRICT_CQ: u32 = 1;
/// Start the helper thread at open.
pub const GDRC_CONFIG_HELPER: u32 = 2;
/// Send one packet per message of the system call, without segmentation offload.
pub const GDRC_CONFIG_NO_GSO: u32 = 4;
/// Reach peers through shared memory where they are processes of this host that offer it too, and
/// through the network otherwise. Decided for a QP at RTR, for an address handle at its creation,
/// and never changed. This is the default without a capture file (pcap_path), which does not show
/// messages through shared memory. With this flag it holds with a capture file, too.
pub const GDRC_CONFIG_SHM: u32 = 8;
/// As GDRC_CONFIG_SHM, but a peer that offers no shared memory is an error (-ENODEV).
pub const GDRC_CONFIG_SHM_ONLY: u32 = 16;
/// Reach all peers through the network.
pub const GDRC_CONFIG_UDP_ONLY: u32 = 64;
/// Long RDMA WRITEs (from 64 KiB) between this context and others of the same user on this host
/// that have this flag, too, and are reached through shared memory, may be copied by the kernel
/// from one process into the other (process_vm_writev), for any kind of region memory. Both ends
/// need the flag: the target grants the addresses of its regions, and the initiator writes there
/// without it. No effect where the system does not allow it, and on other peers.
pub const GDRC_CONFIG_CMA: u32 = 128;
/// Congestion control by rate (DCQCN): packets are sent as ECN-capable, and a QP whose packets are
/// marked lowers its rate.
pub const GDRC_CONFIG_DCQCN: u32 = 32;

// flags gdrc_qp_connect_flags
/// Flag of gdrc_qp_connect_opts: 0 is a value in access, timeout, retry_cnt, rnr_retry,
/// min_rnr_timer and the rd_atomic fields.
pub const GDRC_QP_CONNECT_EXACT: u32 = 1;

/// Version of the endpoint descriptor.
pub const GDRC_ENDPOINT_VERSION: u32 = 1;
/// Flag of an endpoint descriptor: the device is a soft one, whose packets leave from udp_port, or,
/// to a peer on the same host, from a port that the peer can check. The peer may refuse others.
/// NICs send from any port.
pub const GDRC_ENDPOINT_OWN_PORT: u32 = 1;
/// Bytes of an endpoint descriptor on the wire.
pub const GDRC_ENDPOINT_WIRE_BYTES: u32 = 128;

/// Alignment of the memory given to gdrc_context_init, in bytes.
pub const GDRC_CONTEXT_ALIGN: u32 = 4096;
/// Longest device name, in bytes without the final NUL.
pub const GDRC_DEVICE_NAME_MAX: u32 = 255;

// enum gdrc_cause_code
/// Causes of errors (gdrc_cause.code, gdrc_wc.vendor_err); gdrc_cause_str describes each.
pub const GDRC_CAUSE_NONE: u32 = 0;
pub const GDRC_CAUSE_LOCAL_KEY: u32 = 1;
pub const GDRC_CAUSE_LOCAL_RANGE: u32 = 2;
pub const GDRC_CAUSE_LOCAL_ACCESS: u32 = 3;
pub const GDRC_CAUSE_LOCAL_MEMORY_GONE: u32 = 4;
pub const GDRC_CAUSE_REMOTE_ACCESS: u32 = 5;
pub const GDRC_CAUSE_REMOTE_INVALID_REQUEST: u32 = 6;
pub const GDRC_CAUSE_REMOTE_OPERATION: u32 = 7;
pub const GDRC_CAUSE_RETRY_EXCEEDED: u32 = 8;
pub const GDRC_CAUSE_RNR_RETRY_EXCEEDED: u32 = 9;
pub const GDRC_CAUSE_DEADLINE: u32 = 10;
pub const GDRC_CAUSE_PEER_UNREACHABLE: u32 = 11;
pub const GDRC_CAUSE_MTU_EXCEEDED: u32 = 12;
pub const GDRC_CAUSE_PEER_USED_BAD_KEY: u32 = 13;
pub const GDRC_CAUSE_PEER_LEFT_RANGE: u32 = 14;
pub const GDRC_CAUSE_PEER_LACKS_ACCESS: u32 = 15;
pub const GDRC_CAUSE_PEER_BAD_REQUEST: u32 = 16;
pub const GDRC_CAUSE_MESSAGE_TOO_LONG: u32 = 17;
pub const GDRC_CAUSE_BAD_RESPONSE: u32 = 18;
pub const GDRC_CAUSE_FLUSHED: u32 = 19;
pub const GDRC_CAUSE_BAD_WINDOW: u32 = 20;
pub const GDRC_CAUSE_BAD_OPCODE: u32 = 21;
pub const GDRC_CAUSE_TOO_LONG: u32 = 22;
pub const GDRC_CAUSE_BAD_ADDRESS_HANDLE: u32 = 23;
pub const GDRC_CAUSE_SOCKET: u32 = 24;
pub const GDRC_CAUSE_MISALIGNED_ATOMIC: u32 = 25;
pub const GDRC_CAUSE_PATH_LOST: u32 = 26;
/// An idle queue pair: keepalive_ms of gdrc_config.
pub const GDRC_CAUSE_KEEPALIVE: u32 = 27;
/// The kernel refused to send, with EPERM: a rule of this machine's firewall.
pub const GDRC_CAUSE_FIREWALL: u32 = 28;
/// The kernel refused to send: no route, or a prohibiting one.
pub const GDRC_CAUSE_NO_ROUTE: u32 = 29;
/// The peer's process is on this machine and lives, but does not read its packets.
pub const GDRC_CAUSE_NOT_POLLED: u32 = 30;
/// The peer's process is on this machine and reads its packets, but this queue pair gets no answer.
pub const GDRC_CAUSE_UNANSWERED: u32 = 31;
/// No answer to a connection request.
pub const GDRC_CAUSE_NO_ANSWER: u32 = 32;
/// The peer rejected a connection request.
pub const GDRC_CAUSE_REJECTED: u32 = 33;
/// The router that carried the packets is gone, or has ended the session.
pub const GDRC_CAUSE_ROUTER_LOST: u32 = 34;
pub const GDRC_CAUSE_DC_KEY: u32 = 35;
pub const GDRC_CAUSE_DC_TARGET_GONE: u32 = 36;
pub const GDRC_CAUSE_DC_NO_CONTEXT: u32 = 37;
pub const GDRC_CAUSE_DEVICE_ERROR: u32 = 40;
pub const GDRC_CAUSE_DEVICE_GONE: u32 = 41;
pub const GDRC_CAUSE_PORT_DOWN: u32 = 42;
pub const GDRC_CAUSE_CQ_OVERRUN: u32 = 43;

const _: () = {
    use gdrcore_core::config::config_flags;
    use gdrcore_core::device::{async_event, port_state};
    use gdrcore_core::verbs::cause::CauseCode;
    use gdrcore_core::verbs::types;
    use gdrcore_cuda::route::{Reason, Route};
    use gdrcore_cuda::topology::Near;
    macro_rules! same {
        ($($c:ident == $core:expr;)*) => { $(assert!($c == $core);)* };
    }
    same! {
        GDRC_ROUTE_HOST == Route::Host as u32;
        GDRC_ROUTE_DMABUF == Route::DmaBuf as u32;
        GDRC_ROUTE_PEERMEM == Route::Peermem as u32;
        GDRC_ROUTE_STAGED == Route::Staged as u32;
        GDRC_MR_REASON_NONE == Reason::None as u32;
        GDRC_MR_REASON_SOFT_DEVICE == Reason::SoftDevice as u32;
        GDRC_MR_REASON_NOT_EXPORTED == Reason::NotExported as u32;
        GDRC_MR_REASON_NOT_TAKEN == Reason::NotTaken as u32;
        GDRC_MR_REASON_NO_PEERMEM == Reason::NoPeermem as u32;
        GDRC_MR_REASON_REFUSED == Reason::Refused as u32;
        GDRC_NEAR_SYSTEM == Near::System as u32;
        GDRC_NEAR_NUMA_NODE == Near::NumaNode as u32;
        GDRC_NEAR_HOST_BRIDGE == Near::HostBridge as u32;
        GDRC_NEAR_ROOT_PORT == Near::RootPort as u32;
        GDRC_NEAR_SWITCH == Near::Switch as u32;
        GDRC_NEAR_BRIDGE == Near::Bridge as u32;
        GDRC_WR_RDMA_WRITE == types::wr_opcode::RDMA_WRITE;
        GDRC_WR_RDMA_WRITE_WITH_IMM == types::wr_opcode::RDMA_WRITE_WITH_IMM;
        GDRC_WR_SEND == types::wr_opcode::SEND;
        GDRC_WR_SEND_WITH_IMM == types::wr_opcode::SEND_WITH_IMM;
        GDRC_WR_RDMA_READ == types::wr_opcode::RDMA_READ;
        GDRC_WR_ATOMIC_CMP_AND_SWP == types::wr_opcode::ATOMIC_CMP_AND_SWP;
        GDRC_WR_ATOMIC_FETCH_AND_ADD == types::wr_opcode::ATOMIC_FETCH_AND_ADD;
        GDRC_WR_LOCAL_INV == types::wr_opcode::LOCAL_INV;
        GDRC_WR_BIND_MW == types::wr_opcode::BIND_MW;
        GDRC_WR_SEND_WITH_INV == types::wr_opcode::SEND_WITH_INV;
        GDRC_WR_FLUSH == types::wr_opcode::FLUSH;
        GDRC_WR_ATOMIC_WRITE == types::wr_opcode::ATOMIC_WRITE;
        GDRC_SEND_FENCE == types::send_flags::FENCE;
        GDRC_SEND_SIGNALED == types::send_flags::SIGNALED;
        GDRC_SEND_SOLICITED == types::send_flags::SOLICITED;
        GDRC_SEND_INLINE == types::send_flags::INLINE;
        GDRC_SEND_IP_CSUM == types::send_flags::IP_CSUM;
        GDRC_SEND_MORE == types::send_flags::MORE;
        GDRC_WC_SUCCESS == types::wc_status::SUCCESS;
        GDRC_WC_LOC_LEN_ERR == types::wc_status::LOC_LEN_ERR;
        GDRC_WC_LOC_QP_OP_ERR == types::wc_status::LOC_QP_OP_ERR;
        GDRC_WC_LOC_PROT_ERR == types::wc_status::LOC_PROT_ERR;
        GDRC_WC_WR_FLUSH_ERR == types::wc_status::WR_FLUSH_ERR;
        GDRC_WC_MW_BIND_ERR == types::wc_status::MW_BIND_ERR;
        GDRC_WC_BAD_RESP_ERR == types::wc_status::BAD_RESP_ERR;
        GDRC_WC_LOC_ACCESS_ERR == types::wc_status::LOC_ACCESS_ERR;
        GDRC_WC_REM_INV_REQ_ERR == types::wc_status::REM_INV_REQ_ERR;
        GDRC_WC_REM_ACCESS_ERR == types::wc_status::REM_ACCESS_ERR;
        GDRC_WC_REM_OP_ERR == types::wc_status::REM_OP_ERR;
        GDRC_WC_RETRY_EXC_ERR == types::wc_status::RETRY_EXC_ERR;
        GDRC_WC_RNR_RETRY_EXC_ERR == types::wc_status::RNR_RETRY_EXC_ERR;
        GDRC_WC_FATAL_ERR == types::wc_status::FATAL_ERR;
        GDRC_WC_RESP_TIMEOUT_ERR == types::wc_status::RESP_TIMEOUT_ERR;
        GDRC_WC_GENERAL_ERR == types::wc_status::GENERAL_ERR;
        GDRC_WC_OP_SEND == types::wc_opcode::SEND;
        GDRC_WC_OP_RDMA_WRITE == types::wc_opcode::RDMA_WRITE;
        GDRC_WC_OP_RDMA_READ == types::wc_opcode::RDMA_READ;
        GDRC_WC_OP_COMP_SWAP == types::wc_opcode::COMP_SWAP;
        GDRC_WC_OP_FETCH_ADD == types::wc_opcode::FETCH_ADD;
        GDRC_WC_OP_BIND_MW == types::wc_opcode::BIND_MW;
        GDRC_WC_OP_LOCAL_INV == types::wc_opcode::LOCAL_INV;
        GDRC_WC_OP_FLUSH == types::wc_opcode::FLUSH;
        GDRC_WC_OP_ATOMIC_WRITE == types::wc_opcode::ATOMIC_WRITE;
        GDRC_WC_OP_RECV == types::wc_opcode::RECV;
        GDRC_WC_OP_RECV_RDMA_WITH_IMM == types::wc_opcode::RECV_RDMA_WITH_IMM;
        GDRC_WC_FLAG_GRH == types::wc_flags::GRH;
        GDRC_WC_FLAG_WITH_IMM == types::wc_flags::WITH_IMM;
        GDRC_WC_FLAG_IP_CSUM_OK == types::wc_flags::IP_CSUM_OK;
        GDRC_WC_FLAG_WITH_INV == types::wc_flags::WITH_INV;
        GDRC_ACCESS_LOCAL_WRITE == types::access::LOCAL_WRITE;
        GDRC_ACCESS_REMOTE_WRITE == types::access::REMOTE_WRITE;
        GDRC_ACCESS_REMOTE_READ == types::access::REMOTE_READ;
        GDRC_ACCESS_REMOTE_ATOMIC == types::access::REMOTE_ATOMIC;
        GDRC_ACCESS_MW_BIND == types::access::MW_BIND;
        GDRC_ACCESS_ZERO_BASED == types::access::ZERO_BASED;
        GDRC_ACCESS_ON_DEMAND == types::access::ON_DEMAND;
        GDRC_ACCESS_HUGETLB == types::access::HUGETLB;
        GDRC_ACCESS_FLUSH_GLOBAL == types::access::FLUSH_GLOBAL;
        GDRC_ACCESS_FLUSH_PERSISTENT == types::access::FLUSH_PERSISTENT;
        GDRC_FLUSH_GLOBAL == types::flush_type::GLOBAL;
        GDRC_FLUSH_PERSISTENT == types::flush_type::PERSISTENT;
        GDRC_FLUSH_RANGE == types::flush_level::RANGE;
        GDRC_FLUSH_MR == types::flush_level::MR;
        GDRC_ACCESS_RELAXED_ORDERING == types::access::RELAXED_ORDERING;
        GDRC_QPT_RC == types::qp_type::RC;
        GDRC_QPT_UC == types::qp_type::UC;
        GDRC_QPT_UD == types::qp_type::UD;
        GDRC_QPT_XRC_SEND == types::qp_type::XRC_SEND;
        GDRC_QPT_XRC_RECV == types::qp_type::XRC_RECV;
        GDRC_QPT_DCI == types::qp_type::DCI;
        GDRC_QPT_DCT == types::qp_type::DCT;
        GDRC_QPS_RESET == types::qp_state::RESET;
        GDRC_QPS_INIT == types::qp_state::INIT;
        GDRC_QPS_RTR == types::qp_state::RTR;
        GDRC_QPS_RTS == types::qp_state::RTS;
        GDRC_QPS_SQD == types::qp_state::SQD;
        GDRC_QPS_SQE == types::qp_state::SQE;
        GDRC_QPS_ERR == types::qp_state::ERR;
        GDRC_QP_STATE == types::qp_attr_mask::STATE;
        GDRC_QP_CUR_STATE == types::qp_attr_mask::CUR_STATE;
        GDRC_QP_EN_SQD_ASYNC_NOTIFY == types::qp_attr_mask::EN_SQD_ASYNC_NOTIFY;
        GDRC_QP_ACCESS_FLAGS == types::qp_attr_mask::ACCESS_FLAGS;
        GDRC_QP_PKEY_INDEX == types::qp_attr_mask::PKEY_INDEX;
        GDRC_QP_PORT == types::qp_attr_mask::PORT;
        GDRC_QP_QKEY == types::qp_attr_mask::QKEY;
        GDRC_QP_AV == types::qp_attr_mask::AV;
        GDRC_QP_PATH_MTU == types::qp_attr_mask::PATH_MTU;
        GDRC_QP_TIMEOUT == types::qp_attr_mask::TIMEOUT;
        GDRC_QP_RETRY_CNT == types::qp_attr_mask::RETRY_CNT;
        GDRC_QP_RNR_RETRY == types::qp_attr_mask::RNR_RETRY;
        GDRC_QP_RQ_PSN == types::qp_attr_mask::RQ_PSN;
        GDRC_QP_MAX_QP_RD_ATOMIC == types::qp_attr_mask::MAX_QP_RD_ATOMIC;
        GDRC_QP_MIN_RNR_TIMER == types::qp_attr_mask::MIN_RNR_TIMER;
        GDRC_QP_SQ_PSN == types::qp_attr_mask::SQ_PSN;
        GDRC_QP_MAX_DEST_RD_ATOMIC == types::qp_attr_mask::MAX_DEST_RD_ATOMIC;
        GDRC_QP_CAP == types::qp_attr_mask::CAP;
        GDRC_QP_DEST_QPN == types::qp_attr_mask::DEST_QPN;
        GDRC_QP_RATE_LIMIT == types::qp_attr_mask::RATE_LIMIT;
        GDRC_MTU_256 == types::mtu::MTU_256;
        GDRC_MTU_512 == types::mtu::MTU_512;
        GDRC_MTU_1024 == types::mtu::MTU_1024;
        GDRC_MTU_2048 == types::mtu::MTU_2048;
        GDRC_MTU_4096 == types::mtu::MTU_4096;
        GDRC_PORT_DOWN == port_state::DOWN;
        GDRC_PORT_ACTIVE == port_state::ACTIVE;
        GDRC_EVENT_CQ_ERR == async_event::CQ_ERR;
        GDRC_EVENT_QP_FATAL == async_event::QP_FATAL;
        GDRC_EVENT_QP_REQ_ERR == async_event::QP_REQ_ERR;
        GDRC_EVENT_QP_ACCESS_ERR == async_event::QP_ACCESS_ERR;
        GDRC_EVENT_COMM_EST == async_event::COMM_EST;
        GDRC_EVENT_SQ_DRAINED == async_event::SQ_DRAINED;
        GDRC_EVENT_DEVICE_FATAL == async_event::DEVICE_FATAL;
        GDRC_EVENT_PORT_ACTIVE == async_event::PORT_ACTIVE;
        GDRC_EVENT_PORT_ERR == async_event::PORT_ERR;
        GDRC_EVENT_SRQ_ERR == async_event::SRQ_ERR;
        GDRC_EVENT_SRQ_LIMIT_REACHED == async_event::SRQ_LIMIT_REACHED;
        GDRC_EVENT_QP_LAST_WQE_REACHED == async_event::QP_LAST_WQE_REACHED;
        GDRC_EVENT_GID_CHANGE == async_event::GID_CHANGE;
        GDRC_CAUSE_NONE == CauseCode::None as u32;
        GDRC_CAUSE_LOCAL_KEY == CauseCode::LocalKey as u32;
        GDRC_CAUSE_LOCAL_RANGE == CauseCode::LocalRange as u32;
        GDRC_CAUSE_LOCAL_ACCESS == CauseCode::LocalAccess as u32;
        GDRC_CAUSE_LOCAL_MEMORY_GONE == CauseCode::LocalMemoryGone as u32;
        GDRC_CAUSE_REMOTE_ACCESS == CauseCode::RemoteAccess as u32;
        GDRC_CAUSE_REMOTE_INVALID_REQUEST == CauseCode::RemoteInvalidRequest as u32;
        GDRC_CAUSE_REMOTE_OPERATION == CauseCode::RemoteOperation as u32;
        GDRC_CAUSE_RETRY_EXCEEDED == CauseCode::RetryExceeded as u32;
        GDRC_CAUSE_RNR_RETRY_EXCEEDED == CauseCode::RnrRetryExceeded as u32;
        GDRC_CAUSE_DEADLINE == CauseCode::Deadline as u32;
        GDRC_CAUSE_PEER_UNREACHABLE == CauseCode::PeerUnreachable as u32;
        GDRC_CAUSE_MTU_EXCEEDED == CauseCode::MtuExceeded as u32;
        GDRC_CAUSE_PEER_USED_BAD_KEY == CauseCode::PeerUsedBadKey as u32;
        GDRC_CAUSE_PEER_LEFT_RANGE == CauseCode::PeerLeftRange as u32;
        GDRC_CAUSE_PEER_LACKS_ACCESS == CauseCode::PeerLacksAccess as u32;
        GDRC_CAUSE_PEER_BAD_REQUEST == CauseCode::PeerBadRequest as u32;
        GDRC_CAUSE_MESSAGE_TOO_LONG == CauseCode::MessageTooLong as u32;
        GDRC_CAUSE_BAD_RESPONSE == CauseCode::BadResponse as u32;
        GDRC_CAUSE_FLUSHED == CauseCode::Flushed as u32;
        GDRC_CAUSE_BAD_WINDOW == CauseCode::BadWindow as u32;
        GDRC_CAUSE_BAD_OPCODE == CauseCode::BadOpcode as u32;
        GDRC_CAUSE_TOO_LONG == CauseCode::TooLong as u32;
        GDRC_CAUSE_BAD_ADDRESS_HANDLE == CauseCode::BadAddressHandle as u32;
        GDRC_CAUSE_SOCKET == CauseCode::Socket as u32;
        GDRC_CAUSE_MISALIGNED_ATOMIC == CauseCode::MisalignedAtomic as u32;
        GDRC_CAUSE_PATH_LOST == CauseCode::PathLost as u32;
        GDRC_CAUSE_KEEPALIVE == CauseCode::Keepalive as u32;
        GDRC_CAUSE_FIREWALL == CauseCode::Firewall as u32;
        GDRC_CAUSE_NO_ROUTE == CauseCode::NoRoute as u32;
        GDRC_CAUSE_NOT_POLLED == CauseCode::NotPolled as u32;
        GDRC_CAUSE_UNANSWERED == CauseCode::Unanswered as u32;
        GDRC_CAUSE_NO_ANSWER == CauseCode::NoAnswer as u32;
        GDRC_CAUSE_REJECTED == CauseCode::Rejected as u32;
        GDRC_CAUSE_ROUTER_LOST == CauseCode::RouterLost as u32;
        GDRC_CAUSE_DC_KEY == CauseCode::DcKey as u32;
        GDRC_CAUSE_DC_TARGET_GONE == CauseCode::DcTargetGone as u32;
        GDRC_CAUSE_DC_NO_CONTEXT == CauseCode::DcNoContext as u32;
        GDRC_CAUSE_DEVICE_ERROR == CauseCode::DeviceError as u32;
        GDRC_CAUSE_DEVICE_GONE == CauseCode::DeviceGone as u32;
        GDRC_CAUSE_PORT_DOWN == CauseCode::PortDown as u32;
        GDRC_CAUSE_CQ_OVERRUN == CauseCode::CqOverrun as u32;
        GDRC_CONFIG_STRICT_CQ == config_flags::STRICT_CQ;
        GDRC_CONFIG_DCQCN == config_flags::DCQCN;
    }
};
