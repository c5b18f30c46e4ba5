//! The numbers of the header: core's, and those of this library alone. ffi/header/layout.txt has
//! the prefix that C puts before each group's names.

use gdrcore_core::consts;

pub use gdrcore_core::cm::types::{cm_event, port_space, reject};
pub use gdrcore_core::device::{async_event, port_state};
pub use gdrcore_core::verbs::cause::CauseCode;
pub use gdrcore_core::verbs::types::{
    access, flush_level, flush_type, mtu, qp_attr_mask, qp_state, qp_type, send_flags, wc_flags,
    wc_opcode, wc_status, wr_opcode,
};

/// Version of the header: (major << 16) | (minor << 8) | patch. gdrc_version_number() is the
/// library's.
pub const GDRC_VERSION: u32 = 0x0000_0100;

/// The QP number of a message to a multicast group.
pub const GDRC_QPN_MULTICAST: u32 = 0xff_ffff;

consts! {
    /// Kinds of memory (gdrc_memory.kind, gdrc_mr_attr.provider).
    memory_kind: u32 {
        /// Memory that the CPU accesses by address.
        HOST = 0,
        /// Memory of a GPU, by its CUDA address.
        CUDA = 1,
    }
}

consts! {
    /// Flags of gdrc_memory.
    memory_flags: u32 {
        /// fd and fd_offset are set, and a NIC tries no other route.
        DMABUF = 1,
        /// iova is set. Without it work requests use addr, or count from 0 with
        /// [`super::access::ZERO_BASED`].
        IOVA = 2,
        /// Host memory: it is a MAP_SHARED mapping of `fd`, a memfd with F_SEAL_SHRINK, from
        /// `fd_offset` on. A peer that is another process of this user on this host, reached
        /// through shared memory (GDRC_CONFIG_SHM or GDRC_CONFIG_SHM_ONLY; the default without
        /// pcap_path), may map it and then executes its RDMA WRITEs by copying into it, without
        /// this process and without a packet. Such a peer can write the memory at any time,
        /// whatever rights its keys have: share only memory that it may write. A device that
        /// a router executes registers such memory by the descriptor, and refuses it without. No
        /// effect on other devices and on other peers.
        SHARED = 4,
    }
}

consts! {
    /// Flags of gdrc_mr_attr.
    mr_flags: u32 {
        /// The GPU memory was freed under the region; operations that use it fail.
        GONE = 1,
    }
}

consts! {
    /// Flags of gdrc_cuda_alloc.
    cuda_alloc_flags: u32 {
        /// Virtual memory management, which other processes get by descriptor; without it, CUDA
        /// IPC.
        SHAREABLE = 1,
    }
}

consts! {
    /// Features of a GPU (gdrc_cuda_attr.flags).
    cuda_features: u32 { HAS_DMABUF = 1, HAS_VMM = 2, HAS_GPUDIRECT = 4 }
}

consts! {
    /// Flags of gdrc_config.
    config_flags: u32 {
        /// Refuse a QP whose queues could overflow its CQ.
        STRICT_CQ = 1,
        /// Start the helper thread at open.
        HELPER = 2,
        /// Send one packet per message of the system call, without segmentation offload.
        NO_GSO = 4,
        /// Reach peers through shared memory where they are processes of this host that offer it
        /// too, and through the network otherwise. Decided for a QP at RTR, for an address handle
        /// at its creation. It stays so, but that datagrams go through the network once the peer's
        /// process has ended. This is the default without a capture file (pcap_path), which does
        /// not show messages through shared memory. With this flag it holds with a capture file,
        /// too.
        SHM = 8,
        /// As [`super::config_flags::SHM`], but a peer that offers no shared memory is an error
        /// (-ENODEV).
        SHM_ONLY = 16,
        /// Congestion control by rate (DCQCN): packets are sent as ECN-capable, and a QP whose
        /// packets are marked lowers its rate.
        DCQCN = 32,
        /// Reach all peers through the network.
        UDP_ONLY = 64,
        /// Long RDMA WRITEs (from 64 KiB) between this context and others of the same user on this
        /// host that have this flag, too, and are reached through shared memory, may be copied by
        /// the kernel from one process into the other (process_vm_writev), for any kind of region
        /// memory. Both ends need the flag: the target grants the addresses of its regions, and the
        /// initiator writes there without it. No effect where the system does not allow it, and on
        /// other peers.
        CMA = 128,
    }
}

const _: () = {
    use gdrcore_core::config::config_flags as core;
    assert!(config_flags::STRICT_CQ == core::STRICT_CQ && config_flags::DCQCN == core::DCQCN);
};

consts! {
    /// Flags of gdrc_qp_connect_opts.
    qp_connect_flags: u32 {
        /// 0 is a value in access, timeout, retry_cnt, rnr_retry, min_rnr_timer and the rd_atomic
        /// fields.
        EXACT = 1,
    }
}

consts! {
    /// Flags of gdrc_cm_conn_param.
    cm_conn_flags: u32 {
        /// 0 is a value in the fields that have another default.
        EXACT = 1,
        /// The field psn is set; without it the PSN is random.
        PSN = 2,
        /// The QP named by qpn takes its receives from an SRQ.
        SRQ = 4,
    }
}

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
