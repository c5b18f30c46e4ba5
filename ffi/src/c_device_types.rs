//! Structs of contexts and memory: configuration, attributes of devices and regions, GPUs.

use core::ffi::c_char;

/// The limits and options of a context. Set struct_size and leave the rest 0: 0 means the default,
/// given in parentheses. The memory of the context follows from these numbers (gdrc_context_size);
/// docs/using/ABI.md, "Memory", has the bytes of each object and a small configuration.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_config {
    /// sizeof(struct gdrc_config).
    pub struct_size: u32,
    /// GDRC_CONFIG_ flags.
    pub flags: u32,
    /// Protection domains (64), at most 65536.
    pub max_pd: u32,
    /// Memory regions and windows together (1024), at most 65536.
    pub max_mr: u32,
    /// Completion queues (128), at most 65536.
    pub max_cq: u32,
    /// Queue pairs (128), at most 262144.
    pub max_qp: u32,
    /// Shared receive queues (16), at most 65536.
    pub max_srq: u32,
    /// Address handles (128), at most 65536.
    pub max_ah: u32,
    /// Distinct peer addresses that QPs and address handles name (256), at most 65536.
    pub max_peer: u32,
    /// Pieces of a scatter/gather list (16), at most 32.
    pub max_sge: u32,
    /// Bytes of inline data (256), at most 4096.
    pub max_inline: u32,
    /// READs and atomics that a QP holds as responder (16), at most 128.
    pub max_rd_atomic: u32,
    /// Largest path MTU in bytes (4096).
    pub max_mtu: u32,
    /// First QPN of the context's range (that of a block of 16384 that is free at the address). A
    /// range takes all blocks that it touches, and must end at 0xfe0000 or before (-EINVAL).
    pub qpn_base: u32,
    /// Size of the block, a power of two and at least 4 * max_qp (16384, or as many as max_qp
    /// needs).
    pub qpn_count: u32,
    /// Largest window of unacknowledged bytes to one peer address (1048576). The window
    /// begins at 64 KiB and grows with the acknowledged bytes up to 192 KiB. Beyond, it grows
    /// slowly, and a loss there reduces its limit for good.
    pub window_max: u32,
    /// Milliseconds without a packet of the peer after which an operation ends whose QP has no ACK
    /// timeout; 0 (default): it waits for ever, as on a NIC, unless this host knows that the peer's
    /// process has ended. Also how long a device waits for a router that has gone (0: 30 s).
    pub deadline_ms: u32,
    /// Ids of the connection manager, listeners and connections together (64), at most 65536;
    /// rounded up to a multiple of 4. Requests of peers that have not confirmed their address have
    /// separate places.
    pub max_cm_ids: u32,
    /// Bytes for the rings of QPs, SRQs and CQs (4 MiB).
    pub ring_bytes: u64,
    /// Write every packet to this pcap file as an Ethernet frame, before it leaves or is handled,
    /// or NULL. Peers of this host are then reached by packets, unless GDRC_CONFIG_SHM is set. Read
    /// during the call only. What becomes of a file that exists, and of a full disk:
    /// docs/using/ABI.md, "Captures and faults".
    pub pcap_path: *const c_char,
    /// Seed of keys and packet numbers, and of faults; 0: taken from the system's random source.
    /// With any other number peers can guess the keys of regions: for tests.
    pub seed: u64,
    /// Rate of the link in bytes per second (12.5 GB/s). Used with GDRC_CONFIG_DCQCN only: the rate
    /// of a QP begins there and returns to it.
    pub line_rate_bytes_per_s: u64,
    /// Keepalive interval of RC queue pairs in milliseconds; 0, the default: none. An idle queue
    /// pair that has received no packet of its peer for this time sends a probe, and repeats it by
    /// its ACK timeout and retry count. Without an answer it fails: cause GDRC_CAUSE_KEEPALIVE,
    /// event QP_FATAL, its receives are flushed. The peer needs no option, but must poll or have a
    /// helper thread.
    pub keepalive_ms: u32,
    /// Initiators that all DC targets together serve at a time (256), at most 4096. Memory for them
    /// is taken from ring_bytes with the first target: some 5 KiB each.
    pub max_dc_context: u32,
    /// Most bytes that the context passes to the kernel, or between two of its queue pairs, at a
    /// time (65536, which is also the largest); at least max_mtu + 256. A soft device has buffers
    /// of some 18 times this size, "loopback" of one. Less than 65536 saves memory for devices with
    /// little of it, and costs bulk: bursts are short, and arrive packet by packet (without GRO).
    pub burst_bytes: u32,
    /// Engines of a soft device (1), at most 64: threads that use objects of different engines
    /// never wait for each other. Each takes the memory of a context, and every limit above is that
    /// of one engine. Several exclude qpn_base and NICs (-EOPNOTSUPP). Which object is of which
    /// engine: docs/using/ABI.md, "Threads".
    pub engines: u32,
    /// Faults of the packets and calls of a soft device, and its smaller limits, or NULL: rules
    /// such as "loss rate 1%; call gdrc_mr_reg nth 3 errno ENOMEM; limit max_qp = 4"
    /// (docs/using/TESTING.md), drawn by `seed`. At most 32 in 4096 bytes; -EINVAL: a word is
    /// wrong, and gdrc_error_detail names it. Read during the call only. What they exclude:
    /// docs/using/ABI.md, "Captures and faults".
    pub faults: *const c_char,
    /// Reports what the program does with this context though the specification forbids it or
    /// leaves it undefined (docs/using/STRICT.md), or NULL: "report", "abort" or "exit=N", N from 1
    /// to 255, and perhaps a comma and the NIC that is meant, as in "exit=66,mlx5". -EINVAL: a word
    /// is wrong, or another context of the process has other words. GDRC_STRICT in the environment
    /// overrides it. Read during the call only. Not of NICs (-EOPNOTSUPP).
    pub strict: *const c_char,
}

/// Capabilities and bounds of a device.
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
    /// Protection domains. This and the following limits are those of the device alone, whatever
    /// other processes have at its address. Reaching them takes gdrc_arena_add: without it there is
    /// memory for the objects of the configuration.
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
    /// GDRC_PORT_: the state of the link at the time of the call.
    pub port_state: u32,
}

/// Attributes of a memory region.
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
    /// GDRC_ROUTE_: how the device reaches the bytes.
    pub route: u32,
    /// GDRC_MR_REASON_: why not by dma-buf.
    pub no_dmabuf: u32,
    /// GDRC_MR_REASON_: why not by nvidia_peermem.
    pub no_peermem: u32,
    /// The last refusal: positive a CUresult, negative an errno of the NIC, 0 if there was none.
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
    /// The address that work requests will use for the first byte (GDRC_MEMORY_FLAG_IOVA).
    pub iova: u64,
    /// GDRC_MEMORY_ flags.
    pub flags: u32,
    /// Descriptor of the object that the memory maps: a dma-buf (GDRC_MEMORY_FLAG_DMABUF) or a
    /// memfd (GDRC_MEMORY_FLAG_SHARED). It stays the caller's.
    pub fd: i32,
    /// Offset of the first byte in that object.
    pub fd_offset: u64,
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

/// GPU memory that another process of this host may import: 104 bytes, to be sent unchanged.
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
    /// Offset of the range in its allocation.
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
