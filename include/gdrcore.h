/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * gdrcore: RDMA over RoCEv2, with a NIC or without one. Link with -lgdrcore (pkg-config gdrcore).
 *
 * Generated from ffi/src (`make header`): do not edit. docs/using/ABI.md has what all calls share:
 *
 * - Calls return 0 or a count on success, a negative errno on failure; outputs are written on
 *   success only. gdrc_error_detail says why the last call of this thread failed, in words.
 * - Structs that begin with struct_size: set every field to 0, then struct_size to sizeof. 0 means
 *   the default.
 * - Fields that hold a value or flags of an enumeration are uint32_t: their size is the ABI's.
 * - Handles are passed by value; that of a destroyed object is refused with -EINVAL.
 * - A context pointer may be used by any thread. One thread at a time per side of a QP, per CQ, per
 *   SRQ: others get -EBUSY.
 * - After fork the child gets -EOWNERDEAD on its parent's contexts, and may open its own.
 */

#ifndef GDRCORE_H
#define GDRCORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__linux__) && defined(__LP64__)
#else
#error "gdrcore is for 64-bit Linux"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * @defgroup gdrc_handles Handles
 * Objects are named by value. {0} is never valid.
 * @{
 */

/** Opaque: a device and its objects. */
typedef struct gdrc_context gdrc_context;

/** Protection domain. */
typedef struct gdrc_pd {
    /** Index, type and generation; opaque. */
    uint64_t handle;
} gdrc_pd;

/** Memory region. */
typedef struct gdrc_mr {
    /** Opaque. */
    uint64_t handle;
} gdrc_mr;

/** Memory window. */
typedef struct gdrc_mw {
    /** Opaque. */
    uint64_t handle;
} gdrc_mw;

/** Address handle. */
typedef struct gdrc_ah {
    /** Opaque. */
    uint64_t handle;
} gdrc_ah;

/** Completion channel. */
typedef struct gdrc_channel {
    /** Opaque. */
    uint64_t handle;
} gdrc_channel;

/** Completion queue. */
typedef struct gdrc_cq {
    /** Opaque. */
    uint64_t handle;
} gdrc_cq;

/** Shared receive queue. */
typedef struct gdrc_srq {
    /** Opaque. */
    uint64_t handle;
} gdrc_srq;

/** XRC domain. */
typedef struct gdrc_xrcd {
    /** Opaque. */
    uint64_t handle;
} gdrc_xrcd;

/** Queue pair. */
typedef struct gdrc_qp {
    /** Opaque. */
    uint64_t handle;
} gdrc_qp;

/** A listener, a request, or one end of a connection. */
typedef struct gdrc_cm_id {
    /** Opaque. */
    uint64_t handle;
} gdrc_cm_id;

/** @} */

/**
 * @defgroup gdrc_context Contexts
 * A device, opened: its bounds and options, and what it can do.
 * @{
 */

/**
 * Version of the header: (major << 16) | (minor << 8) | patch. gdrc_version_number() is the
 * library's.
 */
#define GDRC_VERSION 0x00000100

/** Alignment of the memory given to gdrc_context_init, in bytes. */
#define GDRC_CONTEXT_ALIGN 4096

/** Longest device name, in bytes without the final NUL. */
#define GDRC_DEVICE_NAME_MAX 255

/** Flags of gdrc_config. */
enum gdrc_config_flags {
    /** Refuse a QP whose queues could overflow its CQ. */
    GDRC_CONFIG_STRICT_CQ = 0x1,
    /** Start the helper thread at open. */
    GDRC_CONFIG_HELPER = 0x2,
    /** Send one packet per message of the system call, without segmentation offload. */
    GDRC_CONFIG_NO_GSO = 0x4,
    /**
     * Reach peers through shared memory where they are processes of this host that offer it too,
     * and through the network otherwise. Decided for a QP at RTR, for an address handle at its
     * creation. It stays so, but that datagrams go through the network once the peer's process has
     * ended. This is the default without a capture file (pcap_path), which does not show messages
     * through shared memory. With this flag it holds with a capture file, too.
     */
    GDRC_CONFIG_SHM = 0x8,
    /**
     * As GDRC_CONFIG_SHM, but a peer that offers no shared memory is an error (-ENODEV).
     */
    GDRC_CONFIG_SHM_ONLY = 0x10,
    /**
     * Congestion control by rate (DCQCN): packets are sent as ECN-capable, and a QP whose packets
     * are marked lowers its rate.
     */
    GDRC_CONFIG_DCQCN = 0x20,
    /** Reach all peers through the network. */
    GDRC_CONFIG_UDP_ONLY = 0x40,
    /**
     * Long RDMA WRITEs (from 64 KiB) between this context and others of the same user on this host
     * that have this flag, too, and are reached through shared memory, may be copied by the kernel
     * from one process into the other (process_vm_writev), for any kind of region memory. Both
     * ends need the flag: the target grants the addresses of its regions, and the initiator writes
     * there without it. No effect where the system does not allow it, and on other peers.
     */
    GDRC_CONFIG_CMA = 0x80,
};

/**
 * The limits and options of a context. Set struct_size and leave the rest 0: 0 means the default,
 * given in parentheses. The memory of the context follows from these numbers (gdrc_context_size);
 * docs/using/ABI.md, "Memory", has the bytes of each object and a small configuration.
 */
typedef struct gdrc_config {
    /** sizeof(struct gdrc_config). */
    uint32_t struct_size;
    /** GDRC_CONFIG_ flags. */
    uint32_t flags;
    /** Protection domains (64), at most 65536. */
    uint32_t max_pd;
    /** Memory regions and windows together (1024), at most 65536. */
    uint32_t max_mr;
    /** Completion queues (128), at most 65536. */
    uint32_t max_cq;
    /** Queue pairs (128), at most 262144. */
    uint32_t max_qp;
    /** Shared receive queues (16), at most 65536. */
    uint32_t max_srq;
    /** Address handles (128), at most 65536. */
    uint32_t max_ah;
    /** Distinct peer addresses that QPs and address handles name (256), at most 65536. */
    uint32_t max_peer;
    /** Pieces of a scatter/gather list (16), at most 32. */
    uint32_t max_sge;
    /** Bytes of inline data (256), at most 4096. */
    uint32_t max_inline;
    /** READs and atomics that a QP holds as responder (16), at most 128. */
    uint32_t max_rd_atomic;
    /** Largest path MTU in bytes (4096). */
    uint32_t max_mtu;
    /**
     * First QPN of the context's range (that of a block of 16384 that is free at the address). A
     * range takes all blocks that it touches, and must end at 0xfe0000 or before (-EINVAL).
     */
    uint32_t qpn_base;
    /**
     * Size of the block, a power of two and at least 4 * max_qp (16384, or as many as max_qp
     * needs).
     */
    uint32_t qpn_count;
    /**
     * Largest window of unacknowledged bytes to one peer address (1048576). The window begins at
     * 64 KiB and grows with the acknowledged bytes up to 192 KiB. Beyond, it grows slowly, and a
     * loss there reduces its limit for good.
     */
    uint32_t window_max;
    /**
     * Milliseconds without a packet of the peer after which an operation ends whose QP has no ACK
     * timeout; 0 (default): it waits for ever, as on a NIC, unless this host knows that the peer's
     * process has ended. Also how long a device waits for a router that has gone (0: 30 s).
     */
    uint32_t deadline_ms;
    /**
     * Ids of the connection manager, listeners and connections together (64), at most 65536;
     * rounded up to a multiple of 4. Requests of peers that have not confirmed their address have
     * separate places.
     */
    uint32_t max_cm_ids;
    /** Bytes for the rings of QPs, SRQs and CQs (4 MiB). */
    uint64_t ring_bytes;
    /**
     * Write every packet to this pcap file as an Ethernet frame, before it leaves or is handled,
     * or NULL. Peers of this host are then reached by packets, unless GDRC_CONFIG_SHM is set. Read
     * during the call only. What becomes of a file that exists, and of a full disk:
     * docs/using/ABI.md, "Captures and faults".
     */
    const char *pcap_path;
    /**
     * Seed of keys and packet numbers, and of faults; 0: taken from the system's random source.
     * With any other number peers can guess the keys of regions: for tests.
     */
    uint64_t seed;
    /**
     * Rate of the link in bytes per second (12.5 GB/s). Used with GDRC_CONFIG_DCQCN only: the rate
     * of a QP begins there and returns to it.
     */
    uint64_t line_rate_bytes_per_s;
    /**
     * Keepalive interval of RC queue pairs in milliseconds; 0, the default: none. An idle queue
     * pair that has received no packet of its peer for this time sends a probe, and repeats it by
     * its ACK timeout and retry count. Without an answer it fails: cause GDRC_CAUSE_KEEPALIVE,
     * event QP_FATAL, its receives are flushed. The peer needs no option, but must poll or have a
     * helper thread.
     */
    uint32_t keepalive_ms;
    /**
     * Initiators that all DC targets together serve at a time (256), at most 4096. Memory for them
     * is taken from ring_bytes with the first target: some 5 KiB each.
     */
    uint32_t max_dc_context;
    /**
     * Most bytes that the context passes to the kernel, or between two of its queue pairs, at a
     * time (65536, which is also the largest); at least max_mtu + 256. A soft device has buffers
     * of some 18 times this size, "loopback" of one. Less than 65536 saves memory for devices with
     * little of it, and costs bulk: bursts are short, and arrive packet by packet (without GRO).
     */
    uint32_t burst_bytes;
    /**
     * Engines of a soft device (1), at most 64: threads that use objects of different engines
     * never wait for each other. Each takes the memory of a context, and every limit above is that
     * of one engine. Several exclude qpn_base and NICs (-EOPNOTSUPP). Which object is of which
     * engine: docs/using/ABI.md, "Threads".
     */
    uint32_t engines;
    /**
     * Faults of the packets and calls of a soft device, and its smaller limits, or NULL: rules
     * such as "loss rate 1%; call gdrc_mr_reg nth 3 errno ENOMEM; limit max_qp = 4"
     * (docs/using/TESTING.md), drawn by `seed`. At most 32 in 4096 bytes; -EINVAL: a word is
     * wrong, and gdrc_error_detail names it. Read during the call only. What they exclude:
     * docs/using/ABI.md, "Captures and faults".
     */
    const char *faults;
    /**
     * Reports what the program does with this context though the specification forbids it or
     * leaves it undefined (docs/using/STRICT.md), or NULL: "report", "abort" or "exit=N", N from 1
     * to 255, and perhaps a comma and the NIC that is meant, as in "exit=66,mlx5". -EINVAL: a word
     * is wrong, or another context of the process has other words. GDRC_STRICT in the environment
     * overrides it. Read during the call only. Not of NICs (-EOPNOTSUPP).
     */
    const char *strict;
} gdrc_config;

/** Objects that a program had not destroyed when it closed a context. */
typedef struct gdrc_leaks {
    /** sizeof(struct gdrc_leaks), set by the caller. */
    uint32_t struct_size;
    /** Protection domains. */
    uint32_t pd;
    /** Memory regions. */
    uint32_t mr;
    /** Memory windows. */
    uint32_t mw;
    /** Completion queues. */
    uint32_t cq;
    /** Queue pairs. */
    uint32_t qp;
    /** Shared receive queues. */
    uint32_t srq;
    /** Address handles. */
    uint32_t ah;
} gdrc_leaks;

/** Capabilities and bounds of a device. */
typedef struct gdrc_device_attr {
    /** sizeof(struct gdrc_device_attr), set by the caller. */
    uint32_t struct_size;
    /** Zero. */
    uint32_t reserved;
    /** Largest message in bytes. */
    uint64_t max_msg_size;
    /** Node GUID. */
    uint64_t node_guid;
    /**
     * Protection domains. This and the following limits are those of the device alone, whatever
     * other processes have at its address. Reaching them takes gdrc_arena_add: without it there is
     * memory for the objects of the configuration.
     */
    uint32_t max_pd;
    /** Memory regions and windows. */
    uint32_t max_mr;
    /** Completion queues. */
    uint32_t max_cq;
    /** Queue pairs. */
    uint32_t max_qp;
    /** Shared receive queues. */
    uint32_t max_srq;
    /** Address handles. */
    uint32_t max_ah;
    /** Requests in one queue. */
    uint32_t max_qp_wr;
    /** Entries of one CQ. */
    uint32_t max_cqe;
    /** Pieces of a scatter/gather list. */
    uint32_t max_sge;
    /** Inline bytes. */
    uint32_t max_inline;
    /** READs and atomics outstanding per QP. */
    uint32_t max_rd_atomic;
    /** Largest GDRC_MTU_ code that the link carries. */
    uint32_t active_mtu;
    /** The device's UDP port. */
    uint32_t udp_port;
    /** First QPN of the device's block. */
    uint32_t qpn_base;
    /** The device's GID: its IPv6 address, or its IPv4 address as ::ffff:a.b.c.d. */
    uint8_t gid[16];
    /** IPv6 zone (interface index) of the GID, else 0. */
    uint32_t scope_id;
    /** GDRC_PORT_: the state of the link at the time of the call. */
    uint32_t port_state;
} gdrc_device_attr;

/**
 * Fills `cfg` with the default of every limit, so that a program can print them or scale one.
 * `cfg->struct_size` must be set before the call. A struct whose other fields are 0 means the
 * same.
 *
 * Errors: -EINVAL: cfg is NULL, misaligned, or its struct_size is 0. -E2BIG: struct_size is over
 * 4096. Threads: any. Cost: none.
 */
int gdrc_config_default(struct gdrc_config *cfg);

/**
 * Bytes of memory that a context of this device and configuration needs (gdrc_context_init). The
 * number depends on the arguments and the library's version only. `cfg` may be NULL: all defaults.
 *
 * Errors: -EINVAL: not a device name, struct_size is 0, a limit is out of range, or a pointer is
 * NULL; -E2BIG: cfg is from a newer header and sets fields that this library does not know;
 * gdrc_error_detail has the reason. Threads: any. Cost: no allocation; no system call, but for an
 * IPv6 address with a zone and for a seed of `faults` that is drawn.
 */
int gdrc_context_size(const char *device, const struct gdrc_config *cfg, size_t *bytes);

/**
 * Opens a device in the caller's memory. A soft device or a NIC allocates nothing, now or later,
 * but for `faults`, whose rules allocate when the device is opened, and for each CQ and queue
 * pair, and for `strict`, which allocates in each call. A router's device (below) is on the heap
 * and may allocate in calls other than posts and polls. `memory` must be aligned to
 * GDRC_CONTEXT_ALIGN bytes and have the size of gdrc_context_size; its contents do not matter; it
 * must stay at its place, untouched, until gdrc_close has returned.
 *
 * device: `soft:127.0.0.1`, `soft:10.0.0.1:4800`, `soft:[::1]:4791`, `soft:[fe80::1%eth0]:4791` (a
 * RoCEv2 NIC in software at that local address and UDP port, 4791 by default), "loopback" (queue
 * pairs of this context only), or a NIC through libibverbs: "verbs:rxe0", "verbs:mlx5_0:1:3" (port
 * and index of a RoCE v2 GID), "verbs:10.0.0.1" (the NIC with this address). Without an index the
 * first RoCE v2 GID is used, IPv4 ones first. A NIC needs libgdrcore_verbs.so, beside
 * libgdrcore.so or where the system searches for libraries. Or by way of a router
 * (gdrcore-routerd), which assigns the address and the queue pair numbers, or executes the verbs
 * on a device of its own: "router:/run/gdrcore/tenant.gdrc" (its socket), "router:name"
 * (/freeflow/name.gdrc, else /run/gdrcore/name.gdrc), "router:" (the one in GDRC_ROUTER, else
 * FFR_NAME, else /run/gdrcore/tenant.gdrc).
 *
 * Errors: -EINVAL: name, configuration or memory's alignment; -ENOMEM: memory is too small;
 * -E2BIG: as in gdrc_context_size; -EADDRNOTAVAIL: the address is not local, or the NIC has no
 * usable GID; -ENODEV: there is no such NIC or no module; -EOPNOTSUPP: the NIC is not a RoCE one;
 * -EADDRINUSE: another program has the port, or another context the QPNs (any number of contexts
 * and processes of one user may share an address and port); -EMFILE: over 1024 contexts, or out of
 * descriptors; of a router: -ENODEV: there is none, -EACCES: this process belongs to no tenant,
 * -ETIMEDOUT: it does not answer, -EDQUOT, -ENOSPC: its resources are exhausted; other errnos of
 * the system. gdrc_error_detail has the reason. Threads: any; the new context may be used by all.
 * Cost: system calls (sockets, epoll). A fault of a call opens and writes the log that
 * GDRC_FAULT_LOG names.
 */
int gdrc_context_init(void *memory,
                      size_t bytes,
                      const char *device,
                      const struct gdrc_config *cfg,
                      struct gdrc_context **out);

/**
 * Opens a device in memory that the library maps once, here, and unmaps in gdrc_close; otherwise
 * as gdrc_context_init. `cfg` may be NULL: all defaults.
 *
 * Errors: as gdrc_context_init; -ENOMEM: the memory cannot be mapped. Threads: any. Cost: one
 * mmap; pages are allocated when they are used.
 */
int gdrc_open(const char *device, const struct gdrc_config *cfg, struct gdrc_context **out);

/**
 * Closes a context: stops the helper, acknowledges what was received and ends connections without
 * waiting for answers, releases sockets and memory. Remaining objects are counted and destroyed.
 * No other call on the context may run or follow; later ones get -EINVAL.
 *
 * Returns the number of remaining objects and, if `leaks` is not NULL, their kinds.
 * Errors: -EINVAL: not an open context, or leaks->struct_size is 0 (the context stays open);
 * -E2BIG: leaks->struct_size is over 4096; -EOWNERDEAD: opened by the parent of this fork (it
 * stays the parent's). Threads: one. Cost: system calls.
 */
int gdrc_close(struct gdrc_context *ctx, struct gdrc_leaks *leaks);

/**
 * Gives a context more memory for tables and rings, when a create or resize returned -ENOMEM. The
 * memory must stay untouched until gdrc_close has returned.
 *
 * Errors: -EINVAL: not an open context, memory is NULL, misaligned (64 bytes) or too small to be
 * of use. Threads: any. Cost: no system call.
 */
int gdrc_arena_add(struct gdrc_context *ctx, void *memory, size_t bytes);

/**
 * Fills `attr` with the capabilities of the device. `attr->struct_size` must be set before the
 * call.
 *
 * Errors: -EINVAL: not an open context, attr is NULL or its struct_size 0. Threads: any. Cost:
 * some fifteen system calls, for the state of the link. Source: IBTA verb Query HCA;
 * ibv_query_device(3), ibv_query_port(3).
 */
int gdrc_device_query(struct gdrc_context *ctx, struct gdrc_device_attr *attr);

/** The library's version as text, "major.minor.patch". Static. Threads: any. Cost: none. */
const char *gdrc_version(void);

/**
 * The library's version as (major << 16) | (minor << 8) | patch; compare with GDRC_VERSION of the
 * header.
 * Threads: any. Cost: none.
 */
uint32_t gdrc_version_number(void);

/** @} */

/**
 * @defgroup gdrc_errors Errors in words
 * @{
 */

/**
 * Copies the reason of this thread's last failed gdrc_ call into `buf`, like snprintf:
 * NUL-terminated, cut at `len`. It names the argument or attribute with its value, and the limit,
 * rule or state that forbids it, or the resource that is exhausted: "INIT to RTR: attr_mask lacks
 * PATH_MTU". Reasons are for people, and change between versions; programs check the error number.
 *
 * A call that succeeds leaves it unchanged, as with errno. If an error needs no further words
 * (-EAGAIN: a full queue) it is the text of its number. Empty: no call of this thread has failed
 * yet.
 * Returns the length of the whole text without the NUL, at most 511; `buf` may be NULL when `len`
 * is 0.
 * Errors: -EINVAL: buf is NULL and len is not 0 (the text stays that of the failure before).
 * Threads: any; each has its own. Cost: no system call, no allocation.
 */
int gdrc_error_detail(char *buf, size_t len);

/**
 * The text of an error number, negative or positive. Static; never NULL.
 * Threads: any. Cost: none.
 */
const char *gdrc_strerror(int err);

/** @} */

/**
 * @defgroup gdrc_pd Protection domains
 * @{
 */

/**
 * Allocates a protection domain.
 *
 * Errors: -ENOMEM: max_pd are in use; -EINVAL: not an open context, or out is NULL.
 * Threads: any. Cost: no allocation, no system call. Source: IBTA verb Allocate Protection Domain;
 * ibv_alloc_pd(3).
 */
int gdrc_pd_alloc(struct gdrc_context *ctx, struct gdrc_pd *out);

/**
 * Deallocates a protection domain.
 *
 * Errors: -EBUSY: a region, window, address handle, SRQ or QP is still in it; -EINVAL: stale
 * handle. Threads: any. Cost: none. Source: IBTA verb Deallocate Protection Domain;
 * ibv_dealloc_pd(3).
 */
int gdrc_pd_dealloc(struct gdrc_context *ctx, struct gdrc_pd pd);

/** @} */

/**
 * @defgroup gdrc_mr Memory regions and windows
 * Memory that the device and its peers may reach: the program's, and a GPU's.
 * @{
 */

/** Access flags of regions, windows and QPs (ibv_access_flags). */
enum gdrc_access_flags {
    GDRC_ACCESS_LOCAL_WRITE = 0x1,
    GDRC_ACCESS_REMOTE_WRITE = 0x2,
    GDRC_ACCESS_REMOTE_READ = 0x4,
    GDRC_ACCESS_REMOTE_ATOMIC = 0x8,
    GDRC_ACCESS_MW_BIND = 0x10,
    /** Work requests count from 0 instead of from the program's address. */
    GDRC_ACCESS_ZERO_BASED = 0x20,
    GDRC_ACCESS_ON_DEMAND = 0x40,
    GDRC_ACCESS_HUGETLB = 0x80,
    /** A peer may FLUSH (GDRC_FLUSH_GLOBAL). Not of windows. */
    GDRC_ACCESS_FLUSH_GLOBAL = 0x100,
    /**
     * A peer may FLUSH for ever (GDRC_FLUSH_PERSISTENT). A QP may have it; regions may not, since
     * no device here has persistent memory: -EINVAL.
     */
    GDRC_ACCESS_FLUSH_PERSISTENT = 0x200,
    GDRC_ACCESS_RELAXED_ORDERING = 0x100000,
};

/** Kinds of memory (gdrc_memory.kind, gdrc_mr_attr.provider). */
enum gdrc_memory_kind {
    /** Memory that the CPU accesses by address. */
    GDRC_MEMORY_HOST = 0,
    /** Memory of a GPU, by its CUDA address. */
    GDRC_MEMORY_CUDA = 1,
};

/** Flags of gdrc_memory. */
enum gdrc_memory_flags {
    /** fd and fd_offset are set, and a NIC tries no other route. */
    GDRC_MEMORY_FLAG_DMABUF = 0x1,
    /**
     * iova is set. Without it work requests use addr, or count from 0 with GDRC_ACCESS_ZERO_BASED.
     */
    GDRC_MEMORY_FLAG_IOVA = 0x2,
    /**
     * Host memory: it is a MAP_SHARED mapping of `fd`, a memfd with F_SEAL_SHRINK, from
     * `fd_offset` on. A peer that is another process of this user on this host, reached through
     * shared memory (GDRC_CONFIG_SHM or GDRC_CONFIG_SHM_ONLY; the default without pcap_path), may
     * map it and then executes its RDMA WRITEs by copying into it, without this process and
     * without a packet. Such a peer can write the memory at any time, whatever rights its keys
     * have: share only memory that it may write. A device that a router executes registers such
     * memory by the descriptor, and refuses it without. No effect on other devices and on other
     * peers.
     */
    GDRC_MEMORY_FLAG_SHARED = 0x4,
};

/** Memory to be registered: gdrc_mr_reg_memory. */
typedef struct gdrc_memory {
    /** sizeof(struct gdrc_memory), set by the caller. */
    uint32_t struct_size;
    /** GDRC_MEMORY_HOST or GDRC_MEMORY_CUDA. */
    uint32_t kind;
    /** Address of the first byte: the CPU's, or CUDA's. */
    uint64_t addr;
    /** Length in bytes. */
    uint64_t length;
    /** The address that work requests will use for the first byte (GDRC_MEMORY_FLAG_IOVA). */
    uint64_t iova;
    /** GDRC_MEMORY_ flags. */
    uint32_t flags;
    /**
     * Descriptor of the object that the memory maps: a dma-buf (GDRC_MEMORY_FLAG_DMABUF) or a
     * memfd (GDRC_MEMORY_FLAG_SHARED). It stays the caller's.
     */
    int32_t fd;
    /** Offset of the first byte in that object. */
    uint64_t fd_offset;
} gdrc_memory;

/** The route by which a device reaches a region (gdrc_mr_attr.route). */
enum gdrc_mr_route {
    /** By address. */
    GDRC_ROUTE_HOST = 0,
    /** The NIC holds a dma-buf of the memory. */
    GDRC_ROUTE_DMABUF = 1,
    /** The NIC has the GPU's addresses, through nvidia_peermem. */
    GDRC_ROUTE_PEERMEM = 2,
    /** Copies through pinned host memory. */
    GDRC_ROUTE_STAGED = 3,
};

/** Why a route was not taken (gdrc_mr_attr.no_dmabuf, no_peermem). */
enum gdrc_mr_reason {
    /** It was taken, or one before it. */
    GDRC_MR_REASON_NONE = 0,
    /** The device is software. */
    GDRC_MR_REASON_SOFT_DEVICE = 1,
    /** The driver, or the GPU, exports no dma-buf. */
    GDRC_MR_REASON_NOT_EXPORTED = 2,
    /** The NIC, its driver or the kernel supports no dma-buf. */
    GDRC_MR_REASON_NOT_TAKEN = 3,
    /** The kernel module nvidia_peermem is not loaded. */
    GDRC_MR_REASON_NO_PEERMEM = 4,
    /** The NIC's driver refused the GPU's address. */
    GDRC_MR_REASON_REFUSED = 5,
};

/** Flags of gdrc_mr_attr. */
enum gdrc_mr_flags {
    /** The GPU memory was freed under the region; operations that use it fail. */
    GDRC_MR_GONE = 0x1,
};

/** Attributes of a memory region. */
typedef struct gdrc_mr_attr {
    /** sizeof(struct gdrc_mr_attr), set by the caller. */
    uint32_t struct_size;
    /** GDRC_MEMORY_ kind: 0 is host memory. */
    uint32_t provider;
    /** The program's address of the first byte. */
    uint64_t addr;
    /** Length in bytes. */
    uint64_t length;
    /** The address that work requests, local and remote, use for the first byte. */
    uint64_t iova;
    /** Local key. */
    uint32_t lkey;
    /** Remote key. */
    uint32_t rkey;
    /** GDRC_ACCESS_ flags. */
    uint32_t access;
    /** Zero. */
    uint32_t reserved;
    /** GDRC_ROUTE_: how the device reaches the bytes. */
    uint32_t route;
    /** GDRC_MR_REASON_: why not by dma-buf. */
    uint32_t no_dmabuf;
    /** GDRC_MR_REASON_: why not by nvidia_peermem. */
    uint32_t no_peermem;
    /** The last refusal: positive a CUresult, negative an errno of the NIC, 0 if there was none. */
    int32_t refusal;
    /** CUDA's id of the allocation, unique in the process; 0 for host memory. */
    uint64_t buffer_id;
    /** GDRC_MR_ flags. */
    uint32_t flags;
    /** Zero. */
    uint32_t reserved2;
} gdrc_mr_attr;

/**
 * Registers `length` bytes at `addr`: work requests may name them by the keys in `attr`, with the
 * rights in `access` (GDRC_ACCESS_). Remote write and atomics need local write as well. Work
 * requests use the program's own addresses, or count from 0 with GDRC_ACCESS_ZERO_BASED. The
 * memory must stay mapped until gdrc_mr_dereg; if it vanishes nevertheless, operations on it end
 * with an access error. `attr` (struct_size set) may be NULL.
 *
 * Errors: -EFAULT: the range is not mapped with the rights that `access` needs; -ENOMEM: max_mr
 * are in use; -EINVAL: length 0, the range leaves the address space, unknown or contradictory
 * access flags, stale pd; -EOPNOTSUPP: access flags that the device does not have. Threads: any.
 * Cost: probes every page once. Source: IBTA verb Register Memory Region; ibv_reg_mr(3).
 */
int gdrc_mr_reg(struct gdrc_context *ctx,
                struct gdrc_pd pd,
                void *addr,
                size_t length,
                uint32_t access,
                struct gdrc_mr *out,
                struct gdrc_mr_attr *attr);

/**
 * Registers memory of any kind. Host memory: as gdrc_mr_reg; with GDRC_MEMORY_FLAG_SHARED other
 * processes of this host write it themselves (docs/using/SHARED-MEMORY.md). GPU memory: by the
 * first route that works, dma-buf (the caller's own descriptor, or one of the driver's),
 * nvidia_peermem, staging through pinned host memory; `attr` and gdrc_mr_query name the route, and
 * why the earlier ones were not taken. The range lies within one allocation, which must stay until
 * gdrc_mr_dereg: if it is freed nevertheless, operations that use it end with an access error,
 * even if its address was reused. Work requests name it by CUDA's addresses unless `memory` sets
 * an iova; inline data is read by the CPU and cannot come from a GPU. `attr` (struct_size set) may
 * be NULL.
 *
 * The soft device copies in chunks and acknowledges data that has landed; its 8-byte atomics on
 * GPU memory are atomic among the operations of this context only. The first such registration of
 * a context pins 8 MiB of host memory.
 *
 * Errors: as gdrc_mr_reg; -ENODEV: no CUDA driver; -EINVAL: not GPU memory, or more than one
 * allocation, or (GDRC_MEMORY_FLAG_SHARED) not a shared mapping of that descriptor; -EBADF: no
 * descriptor; -EOPNOTSUPP: the NIC has no route; gdrc_error_detail has the reason. Threads: any.
 * Cost: calls of the driver.
 */
int gdrc_mr_reg_memory(struct gdrc_context *ctx,
                       struct gdrc_pd pd,
                       const struct gdrc_memory *memory,
                       uint32_t access,
                       struct gdrc_mr *out,
                       struct gdrc_mr_attr *attr);

/**
 * Fills `attr` (struct_size set) with the region's attributes.
 *
 * Errors: -EINVAL: stale handle, attr is NULL or its struct_size 0. Threads: any. Cost: none; GPU
 * memory: a call of the driver.
 */
int gdrc_mr_query(struct gdrc_context *ctx, struct gdrc_mr mr, struct gdrc_mr_attr *attr);

/**
 * Deregisters a region: its keys are invalid at return, and the device does not access the memory
 * any more.
 *
 * Errors: -EBUSY: a window is bound to it; -EINVAL: stale handle. Threads: any. Cost: none; GPU
 * memory: waits for copies under way. Source: IBTA verb Deregister Memory Region; ibv_dereg_mr(3).
 */
int gdrc_mr_dereg(struct gdrc_context *ctx, struct gdrc_mr mr);

/** A GDRC_ROUTE_ in words. Static; never NULL. Threads: any. Cost: none. */
const char *gdrc_mr_route_str(uint32_t route);

/** A GDRC_MR_REASON_ in words. Static; never NULL. Threads: any. Cost: none. */
const char *gdrc_mr_reason_str(uint32_t reason);

/**
 * Allocates a memory window of type `mw_type`, 1 or 2, and writes its first rkey (`rkey` may be
 * NULL). A GDRC_WR_BIND_MW work request binds it.
 *
 * Errors: -ENOMEM: max_mr are in use; -EINVAL: another type, stale pd, out is NULL. Threads: any.
 * Cost: none. Source: IBTA verb Allocate Memory Window; ibv_alloc_mw(3).
 */
int gdrc_mw_alloc(struct gdrc_context *ctx,
                  struct gdrc_pd pd,
                  uint32_t mw_type,
                  struct gdrc_mw *out,
                  uint32_t *rkey);

/**
 * Deallocates a window; its rkey is invalid at return.
 *
 * Errors: -EINVAL: stale handle. Threads: any. Cost: none. Source: IBTA verb Deallocate Memory
 * Window; ibv_dealloc_mw(3).
 */
int gdrc_mw_dealloc(struct gdrc_context *ctx, struct gdrc_mw mw);

/** @} */

/**
 * @defgroup gdrc_cq Completion queues and channels
 * @{
 */

/** Completion statuses (ibv_wc_status). */
enum gdrc_wc_status {
    GDRC_WC_SUCCESS = 0,
    GDRC_WC_LOC_LEN_ERR = 1,
    GDRC_WC_LOC_QP_OP_ERR = 2,
    GDRC_WC_LOC_PROT_ERR = 4,
    GDRC_WC_WR_FLUSH_ERR = 5,
    GDRC_WC_MW_BIND_ERR = 6,
    GDRC_WC_BAD_RESP_ERR = 7,
    GDRC_WC_LOC_ACCESS_ERR = 8,
    GDRC_WC_REM_INV_REQ_ERR = 9,
    GDRC_WC_REM_ACCESS_ERR = 10,
    GDRC_WC_REM_OP_ERR = 11,
    GDRC_WC_RETRY_EXC_ERR = 12,
    GDRC_WC_RNR_RETRY_EXC_ERR = 13,
    GDRC_WC_REM_ABORT_ERR = 16,
    GDRC_WC_FATAL_ERR = 19,
    GDRC_WC_RESP_TIMEOUT_ERR = 20,
    GDRC_WC_GENERAL_ERR = 21,
};

/** Completion opcodes (ibv_wc_opcode). */
enum gdrc_wc_opcode {
    GDRC_WC_OP_SEND = 0,
    GDRC_WC_OP_RDMA_WRITE = 1,
    GDRC_WC_OP_RDMA_READ = 2,
    GDRC_WC_OP_COMP_SWAP = 3,
    GDRC_WC_OP_FETCH_ADD = 4,
    GDRC_WC_OP_BIND_MW = 5,
    GDRC_WC_OP_LOCAL_INV = 6,
    GDRC_WC_OP_FLUSH = 8,
    GDRC_WC_OP_ATOMIC_WRITE = 9,
    /** Bit 7 is set in every receive opcode. */
    GDRC_WC_OP_RECV = 128,
    GDRC_WC_OP_RECV_RDMA_WITH_IMM = 129,
};

/** Completion flags (ibv_wc_flags). */
enum gdrc_wc_flags {
    /** The first 40 bytes of the receive buffer hold the GRH. */
    GDRC_WC_FLAG_GRH = 0x1,
    GDRC_WC_FLAG_WITH_IMM = 0x2,
    GDRC_WC_FLAG_IP_CSUM_OK = 0x4,
    GDRC_WC_FLAG_WITH_INV = 0x8,
};

/** A work completion: 48 bytes, layout of ibv_wc. Frozen. */
typedef struct gdrc_wc {
    /** wr_id of the work request. */
    uint64_t wr_id;
    /**
     * One of enum gdrc_wc_status; everything but wr_id, status, vendor_err and qp_num is valid
     * only on success.
     */
    uint32_t status;
    /** One of enum gdrc_wc_opcode. */
    uint32_t opcode;
    /** On an error one of enum gdrc_cause_code, else 0. */
    uint32_t vendor_err;
    /** Bytes received or read. */
    uint32_t byte_len;
    /**
     * Immediate data in network byte order (GDRC_WC_FLAG_WITH_IMM), or the rkey invalidated
     * (GDRC_WC_FLAG_WITH_INV).
     */
    uint32_t imm_data;
    /** The local QPN. */
    uint32_t qp_num;
    /** The sender's QPN (UD, DC targets). */
    uint32_t src_qp;
    /** Flags: enum gdrc_wc_flags. */
    uint32_t wc_flags;
    /** P_Key index. */
    uint16_t pkey_index;
    /** Not used on RoCE. */
    uint16_t slid;
    /** Service level. */
    uint8_t sl;
    /** Not used on RoCE. */
    uint8_t dlid_path_bits;
} gdrc_wc;

/**
 * Creates a completion queue with room for at least `cqe` completions. On a soft device it never
 * overflows: a send keeps its queue slot, and a receive is not begun, until there is room
 * (GDRC_CONFIG_STRICT_CQ refuses at QP creation instead). A NIC's does, and so does any under
 * `strict`. `granted` receives the actual size, and may be NULL.
 *
 * Errors: -ENOMEM: max_cq or ring_bytes are in use; -EINVAL: cqe is 0 or over max_cqe, out is
 * NULL. Threads: any. Cost: no system call. Source: IBTA verb Create Completion Queue;
 * ibv_create_cq(3).
 */
int gdrc_cq_create(struct gdrc_context *ctx, uint32_t cqe, struct gdrc_cq *out, uint32_t *granted);

/**
 * Creates a completion queue as gdrc_cq_create does, whose events go to a completion channel:
 * gdrc_cq_arm then makes the channel's descriptor readable, not the context's, and
 * gdrc_channel_get_event or gdrc_channel_wait takes the event, not gdrc_get_cq_event.
 *
 * Errors: as gdrc_cq_create; -EINVAL: stale channel.
 * Threads: any. Cost: no system call. Source: IBTA verb Create Completion Queue; ibv_create_cq(3).
 */
int gdrc_cq_create_on(struct gdrc_context *ctx,
                      uint32_t cqe,
                      struct gdrc_channel channel,
                      struct gdrc_cq *out,
                      uint32_t *granted);

/**
 * Changes a CQ's size; completions in it stay, in order. `granted` receives the new size, and may
 * be NULL.
 *
 * Errors: -ENOMEM: ring_bytes are in use (the CQ keeps its size); -EINVAL: it holds more
 * completions than would fit, cqe is 0 or over max_cqe, stale handle; -EBUSY: another thread polls
 * it. Threads: one per CQ. Cost: copies its completions. Source: IBTA verb Resize Completion
 * Queue; ibv_resize_cq(3).
 */
int gdrc_cq_resize(struct gdrc_context *ctx, struct gdrc_cq cq, uint32_t cqe, uint32_t *granted);

/**
 * Destroys a CQ with the completions in it.
 *
 * Errors: -EBUSY: a QP uses it, or it has a fast handle; -EINVAL: stale handle.
 * Threads: any. Cost: none. Source: IBTA verb Destroy Completion Queue; ibv_destroy_cq(3).
 */
int gdrc_cq_destroy(struct gdrc_context *ctx, struct gdrc_cq cq);

/**
 * The name of a completion status (GDRC_WC_), without prefix. Static; never NULL. Threads: any.
 * Cost: none.
 */
const char *gdrc_wc_status_str(uint32_t status);

/**
 * The name of a completion opcode (GDRC_WC_OP_), without prefix. Static; never NULL. Threads: any.
 * Cost: none.
 */
const char *gdrc_wc_opcode_str(uint32_t opcode);

/**
 * Creates a completion channel: a descriptor of its own for the events of the CQs that are created
 * with it (gdrc_cq_create_on). Each thread that sleeps on completions has a channel of its own;
 * the events of CQs without one are the context's, which is enough for one thread.
 *
 * Errors: -ENOMEM: the context has 64; -EMFILE: no descriptor; -EINVAL: not an open context, out
 * is NULL; -EOPNOTSUPP.
 * Threads: any. Cost: system calls. Source: ibv_create_comp_channel(3).
 */
int gdrc_channel_create(struct gdrc_context *ctx, struct gdrc_channel *out);

/**
 * Destroys a completion channel, and closes its descriptor.
 *
 * Errors: -EBUSY: a CQ has it, or a thread sleeps on it; -EINVAL: stale channel.
 * Threads: any. Cost: system calls. Source: ibv_destroy_comp_channel(3).
 */
int gdrc_channel_destroy(struct gdrc_context *ctx, struct gdrc_channel channel);

/**
 * The channel's descriptor for poll, select or epoll: readable while the channel has an event. On
 * the soft device a thread must run the engine meanwhile: the helper thread (gdrc_helper_start),
 * or one in gdrc_channel_wait, gdrc_wait, gdrc_progress or a poll. The descriptor stays the
 * library's: do not read, write or close it.
 *
 * Returns the descriptor.
 * Errors: -EINVAL: stale channel. Threads: any. Cost: none.
 */
int gdrc_channel_fd(struct gdrc_context *ctx, struct gdrc_channel channel);

/**
 * Takes one armed CQ of a channel that has an event. Arm it again, and then poll it, before the
 * next sleep.
 *
 * Returns 1 and writes `out`, or 0 when there is none.
 * Errors: -EINVAL: stale channel, out is NULL. Threads: any. Cost: a system call where it was the
 * last event.
 * Source: ibv_get_cq_event(3), without sleep.
 */
int gdrc_channel_get_event(struct gdrc_context *ctx,
                           struct gdrc_channel channel,
                           struct gdrc_cq *out);

/**
 * Sleeps until a channel has an event and takes it, at most `timeout_ms` milliseconds (0: checks
 * once, negative: without limit). Any number of threads may sleep, each on a channel of its own:
 * one of them runs the engine for all, unless there is a helper thread.
 *
 * Returns 1 and writes `out`, or 0 when the time is over.
 * Errors: -EINVAL: stale channel, out is NULL; -EINTR: a signal came; -ENODEV: the NIC was
 * removed. Threads: any; each event wakes one of those that wait for the channel. Cost: sleeps; no
 * allocation. Source: ibv_get_cq_event(3).
 */
int gdrc_channel_wait(struct gdrc_context *ctx,
                      struct gdrc_channel channel,
                      int timeout_ms,
                      struct gdrc_cq *out);

/** @} */

/**
 * @defgroup gdrc_ah Address handles
 * @{
 */

/**
 * The destination of a QP or an address handle: 24 bytes. Frozen, as it lies inside gdrc_qp_attr.
 */
typedef struct gdrc_ah_attr {
    /** Destination GID: an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d. */
    uint8_t dgid[16];
    /** IPv6 zone (interface index) for link-local destinations, else 0. */
    uint32_t scope_id;
    /** Destination UDP port in host byte order; 0: the device's own. */
    uint16_t udp_port;
    /** IP hop limit; 0 and 1: the system's default. */
    uint8_t hop_limit;
    /**
     * Traffic class: DSCP. The two ECN bits are ignored, because they are the device's
     * (GDRC_CONFIG_DCQCN).
     */
    uint8_t traffic_class;
} gdrc_ah_attr;

/**
 * Makes an address handle for UD sends.
 *
 * Errors: -ENOMEM: max_ah or max_peer are in use; -EINVAL: the GID is no address that this device
 * can send to (IPv4 and IPv6 do not mix, link-local needs a zone), stale pd, a NULL pointer.
 * Threads: any. Cost: none. Source: IBTA verb Create Address Handle; ibv_create_ah(3).
 */
int gdrc_ah_create(struct gdrc_context *ctx,
                   struct gdrc_pd pd,
                   const struct gdrc_ah_attr *attr,
                   struct gdrc_ah *out);

/**
 * Makes an address handle for an answer to the sender of a received UD message: `wc` is its
 * completion, `grh40` the first 40 bytes of the receive buffer. The answer goes to the device's
 * own UDP port number at that address.
 *
 * Errors: -EINVAL: the completion has no GDRC_WC_FLAG_GRH, the 40 bytes are no IP header, a NULL
 * pointer; else as gdrc_ah_create. Threads: any. Cost: none. Source: ibv_create_ah_from_wc(3).
 */
int gdrc_ah_from_wc(struct gdrc_context *ctx,
                    struct gdrc_pd pd,
                    const struct gdrc_wc *wc,
                    const void *grh40,
                    struct gdrc_ah *out);

/**
 * Destroys an address handle. Posted sends that name it and have not been sent fail with a
 * completion.
 *
 * Errors: -EINVAL: stale handle. Threads: any. Cost: none. Source: IBTA verb Destroy Address
 * Handle; ibv_destroy_ah(3).
 */
int gdrc_ah_destroy(struct gdrc_context *ctx, struct gdrc_ah ah);

/**
 * The largest path MTU (GDRC_MTU_) of the path to a peer, as far as this host knows it: the
 * link's, and the routing table's (`ip route ... mtu`). gdrc_cm_connect uses it already.
 * gdrc_endpoint_local knows no peer and takes the link's: a program that knows the peer's address
 * by then lowers `mtu` of the endpoint to this before it sends the endpoint.
 *
 * MTUs that the kernel has learned from ICMP are ignored, since anybody can send ICMP. Returns the
 * code. Errors: -EINVAL: not an open context, to is NULL. Threads: any. Cost: some ten system
 * calls.
 */
int gdrc_path_mtu(struct gdrc_context *ctx, const struct gdrc_ah_attr *to);

/** @} */

/**
 * @defgroup gdrc_srq Shared receive queues
 * @{
 */

/** SRQ attributes. */
typedef struct gdrc_srq_attr {
    /** sizeof(struct gdrc_srq_attr), set by the caller. */
    uint32_t struct_size;
    /** Outstanding requests: the requested number; at return the granted one. */
    uint32_t max_wr;
    /** Entries of a request: the requested number; at return the granted one. */
    uint32_t max_sge;
    /** Raise GDRC_EVENT_SRQ_LIMIT_REACHED once when fewer requests are left; 0 = off. */
    uint32_t srq_limit;
} gdrc_srq_attr;

/**
 * Creates a shared receive queue of the size in `inout` (struct_size set), which at return holds
 * the granted size.
 *
 * Errors: -ENOMEM: max_srq or ring_bytes are in use; -EINVAL: a size is 0 or over the device's,
 * stale pd, a NULL pointer. Threads: any. Cost: no system call. Source: IBTA verb Create Shared
 * Receive Queue; ibv_create_srq(3).
 */
int gdrc_srq_create(struct gdrc_context *ctx,
                    struct gdrc_pd pd,
                    struct gdrc_srq_attr *inout,
                    struct gdrc_srq *out);

/**
 * Arms the SRQ's limit: GDRC_EVENT_SRQ_LIMIT_REACHED is raised once when fewer requests are left;
 * 0 disarms.
 *
 * Errors: -EINVAL: limit is over max_wr, stale handle. Threads: any. Cost: none.
 * Source: IBTA verb Modify Shared Receive Queue; ibv_modify_srq(3).
 */
int gdrc_srq_modify(struct gdrc_context *ctx, struct gdrc_srq srq, uint32_t limit);

/**
 * Gives an SRQ another size; what is posted stays in its order. `granted` receives the new size,
 * and may be NULL.
 *
 * Errors: -ENOMEM: ring_bytes are in use; -EINVAL: fewer than are posted or than the limit, max_wr
 * is 0 or over the device's, stale handle; -EBUSY: another thread posts to it; in all cases the
 * SRQ keeps its size; -EOPNOTSUPP: the device cannot. Threads: one at a time per SRQ. Cost: copies
 * what is posted. Source: IBTA verb Modify Shared Receive Queue; ibv_modify_srq(3).
 */
int gdrc_srq_resize(struct gdrc_context *ctx,
                    struct gdrc_srq srq,
                    uint32_t max_wr,
                    uint32_t *granted);

/**
 * Fills `attr` (struct_size set) with the SRQ's sizes and its limit, 0 once the limit was reached.
 *
 * Errors: -EINVAL: stale handle, attr is NULL or its struct_size 0. Threads: any. Cost: none.
 * Source: IBTA verb Query Shared Receive Queue; ibv_query_srq(3).
 */
int gdrc_srq_query(struct gdrc_context *ctx, struct gdrc_srq srq, struct gdrc_srq_attr *attr);

/**
 * Writes the SRQ's number, 24 bits. It is unique among the QPs and SRQs of the device's address.
 *
 * Errors: -EINVAL: stale handle, a NULL pointer; -EOPNOTSUPP: the device has none. Threads: any.
 * Cost: none. Source: ibv_get_srq_num(3).
 */
int gdrc_srq_number(struct gdrc_context *ctx, struct gdrc_srq srq, uint32_t *number);

/**
 * Destroys an SRQ; requests in it end without completion.
 *
 * Errors: -EBUSY: a QP uses it; -EINVAL: stale handle.
 * Threads: any. Cost: none. Source: IBTA verb Destroy Shared Receive Queue; ibv_destroy_srq(3).
 */
int gdrc_srq_destroy(struct gdrc_context *ctx, struct gdrc_srq srq);

/** @} */

/**
 * @defgroup gdrc_xrc XRC domains
 * @{
 */

/**
 * Allocates an XRC domain: its SRQs serve the GDRC_QPT_XRC_RECV queue pairs that are created with
 * it. A domain is of one context.
 *
 * Errors: -ENOMEM: as many as max_pd are in use; -EINVAL: not an open context, or out is NULL;
 * -EOPNOTSUPP: the device has no XRC. Threads: any. Cost: no allocation, no system call. Source:
 * IBTA annex A14; ibv_open_xrcd(3).
 */
int gdrc_xrcd_alloc(struct gdrc_context *ctx, struct gdrc_xrcd *out);

/**
 * Deallocates an XRC domain.
 *
 * Errors: -EBUSY: an SRQ or a QP is still in it; -EINVAL: stale handle. Threads: any. Cost: none.
 * Source: IBTA annex A14; ibv_close_xrcd(3).
 */
int gdrc_xrcd_dealloc(struct gdrc_context *ctx, struct gdrc_xrcd xrcd);

/**
 * As gdrc_srq_create, for an SRQ of an XRC domain. A request of a peer's GDRC_QPT_XRC_SEND names
 * it by its number (gdrc_srq_number). Receives complete in `cq`, with the number of the
 * GDRC_QPT_XRC_RECV that received; the keys of any request for the SRQ count in `pd`.
 *
 * Errors: as gdrc_srq_create; -EINVAL: stale xrcd or cq, with GDRC_CONFIG_STRICT_CQ a CQ that is
 * too small; -EOPNOTSUPP: the device has no XRC. Threads: any. Cost: no system call. Source: IBTA
 * annex A14; ibv_create_srq_ex(3).
 */
int gdrc_srq_create_xrc(struct gdrc_context *ctx,
                        struct gdrc_pd pd,
                        struct gdrc_xrcd xrcd,
                        struct gdrc_cq cq,
                        struct gdrc_srq_attr *inout,
                        struct gdrc_srq *out);

/** @} */

/**
 * @defgroup gdrc_qp Queue pairs
 * @{
 */

/** QP types (ibv_qp_type; libibverbs has not those of DC). */
enum gdrc_qp_type {
    GDRC_QPT_RC = 2,
    GDRC_QPT_UC = 3,
    GDRC_QPT_UD = 4,
    /** XRC initiator: sends, each request to an SRQ of the peer that remote_srqn names. */
    GDRC_QPT_XRC_SEND = 9,
    /** XRC target: receives for the SRQs of an XRC domain. */
    GDRC_QPT_XRC_RECV = 10,
    /** DC initiator: sends, each request to a DC target that ext.dc names. */
    GDRC_QPT_DCI = 257,
    /** DC target: receives into an SRQ, from any DC initiator that knows its access key. */
    GDRC_QPT_DCT = 258,
};

/** QP states (ibv_qp_state). */
enum gdrc_qp_state {
    GDRC_QPS_RESET = 0,
    GDRC_QPS_INIT = 1,
    GDRC_QPS_RTR = 2,
    GDRC_QPS_RTS = 3,
    GDRC_QPS_SQD = 4,
    GDRC_QPS_SQE = 5,
    GDRC_QPS_ERR = 6,
};

/** Which attributes gdrc_qp_modify sets (ibv_qp_attr_mask). */
enum gdrc_qp_attr_mask {
    GDRC_QP_STATE = 0x1,
    GDRC_QP_CUR_STATE = 0x2,
    GDRC_QP_EN_SQD_ASYNC_NOTIFY = 0x4,
    GDRC_QP_ACCESS_FLAGS = 0x8,
    GDRC_QP_PKEY_INDEX = 0x10,
    GDRC_QP_PORT = 0x20,
    GDRC_QP_QKEY = 0x40,
    GDRC_QP_AV = 0x80,
    GDRC_QP_PATH_MTU = 0x100,
    GDRC_QP_TIMEOUT = 0x200,
    GDRC_QP_RETRY_CNT = 0x400,
    GDRC_QP_RNR_RETRY = 0x800,
    GDRC_QP_RQ_PSN = 0x1000,
    GDRC_QP_MAX_QP_RD_ATOMIC = 0x2000,
    GDRC_QP_MIN_RNR_TIMER = 0x8000,
    GDRC_QP_SQ_PSN = 0x10000,
    GDRC_QP_MAX_DEST_RD_ATOMIC = 0x20000,
    GDRC_QP_CAP = 0x80000,
    GDRC_QP_DEST_QPN = 0x100000,
    GDRC_QP_RATE_LIMIT = 0x2000000,
};

/** Path MTU codes (ibv_mtu); bytes are 128 << code. */
enum gdrc_mtu {
    GDRC_MTU_256 = 1,
    GDRC_MTU_512 = 2,
    GDRC_MTU_1024 = 3,
    GDRC_MTU_2048 = 4,
    GDRC_MTU_4096 = 5,
};

/** States of a port (ibv_port_state). */
enum gdrc_port_state {
    /** The interface is switched off or has no carrier, or is gone. */
    GDRC_PORT_DOWN = 1,
    /**
     * Packets can leave. A port that cannot be watched counts as active: that of a loopback
     * context, of one over a router, and one in a sandbox without netlink(7).
     */
    GDRC_PORT_ACTIVE = 4,
};

/** Sizes of a QP's queues: 20 bytes. Frozen, as it lies inside other structs. */
typedef struct gdrc_qp_cap {
    /** Outstanding send requests. */
    uint32_t max_send_wr;
    /** Outstanding receive requests; ignored with an SRQ. */
    uint32_t max_recv_wr;
    /** Pieces of a send request. */
    uint32_t max_send_sge;
    /** Pieces of a receive request. */
    uint32_t max_recv_sge;
    /** Bytes of inline data. */
    uint32_t max_inline_data;
} gdrc_qp_cap;

/** Initial attributes of a QP. */
typedef struct gdrc_qp_init {
    /** sizeof(struct gdrc_qp_init), set by the caller. */
    uint32_t struct_size;
    /** GDRC_QPT_. */
    uint32_t qp_type;
    /** Protection domain; of GDRC_QPT_XRC_RECV ignored, as are both CQs, the SRQ and the sizes. */
    struct gdrc_pd pd;
    /** CQ of the send queue. GDRC_QPT_DCT has none. */
    struct gdrc_cq send_cq;
    /** CQ of the receive queue; may be the same. GDRC_QPT_XRC_SEND and GDRC_QPT_DCI have none. */
    struct gdrc_cq recv_cq;
    /** Shared receive queue, or {0}. GDRC_QPT_DCT must have one, GDRC_QPT_DCI has none. */
    struct gdrc_srq srq;
    /** 1: every send request is signalled. */
    uint32_t sq_sig_all;
    /** The requested sizes; at return the granted ones (at least as large). */
    struct gdrc_qp_cap cap;
    /** GDRC_QPT_XRC_RECV: its XRC domain; else ignored. */
    struct gdrc_xrcd xrcd;
    /** GDRC_QPT_DCT: its access key, which initiators must name; else ignored. */
    uint64_t dc_key;
} gdrc_qp_init;

/** QP attributes of modify and query. */
typedef struct gdrc_qp_attr {
    /** sizeof(struct gdrc_qp_attr), set by the caller. */
    uint32_t struct_size;
    /** GDRC_QPS_. */
    uint32_t qp_state;
    /** The state that the program assumes (GDRC_QP_CUR_STATE). */
    uint32_t cur_qp_state;
    /** GDRC_MTU_ code; bytes are 128 << code. */
    uint32_t path_mtu;
    /** Q_Key (UD). */
    uint32_t qkey;
    /** First PSN expected, 24 bits. */
    uint32_t rq_psn;
    /** First PSN sent, 24 bits. */
    uint32_t sq_psn;
    /** The peer's QPN, 24 bits. */
    uint32_t dest_qp_num;
    /** GDRC_ACCESS_REMOTE_ and _FLUSH_ flags: what the peer may do. */
    uint32_t qp_access_flags;
    /** Address vector. */
    struct gdrc_ah_attr ah;
    /** Queue sizes (query only). */
    struct gdrc_qp_cap cap;
    /** Index into the P_Key table: 0. */
    uint16_t pkey_index;
    /** Port number: 1. */
    uint8_t port_num;
    /** 1: raise GDRC_EVENT_SQ_DRAINED on entering SQD. */
    uint8_t en_sqd_async_notify;
    /** 1 while SQD drains (query only). */
    uint8_t sq_draining;
    /** READs and atomics outstanding as requester. */
    uint8_t max_rd_atomic;
    /** READs and atomics held as responder. */
    uint8_t max_dest_rd_atomic;
    /** RNR NAK timer code sent to the peer, 0 to 31. */
    uint8_t min_rnr_timer;
    /**
     * ACK timeout of 4.096 us * 2^n, 0 to 31; 0 = off: then only `deadline_ms` ends the operation
     * or, if that is 0 too, what this host knows of the end of the peer's process.
     */
    uint8_t timeout;
    /** Retries after a timeout, 0 to 7. */
    uint8_t retry_cnt;
    /** Retries after an RNR NAK, 0 to 7; 7 = for ever. */
    uint8_t rnr_retry;
    /** Zero. */
    uint8_t reserved;
    /**
     * Flow label of packets to the peer, 20 bits, which IPv6 alone has (GDRC_QP_AV); 0: the
     * system's.
     */
    uint32_t flow_label;
    /** Send rate in bytes per second; 0 = unlimited. */
    uint64_t rate_limit_bytes_per_s;
} gdrc_qp_attr;

/**
 * Creates a queue pair in state RESET, by the attributes in `inout` (struct_size set); at return
 * its `cap` holds the granted sizes. `qpn` receives the QP's number and may be NULL; 0: a
 * GDRC_QPT_DCT of a NIC has none before RTR (gdrc_endpoint_local).
 *
 * With an SRQ, `max_recv_wr` and `max_recv_sge` are ignored. The SRQ may be of another protection
 * domain: receives are of that one, keys of peers of the queue pair's.
 *
 * Errors: -ENOMEM: max_qp or ring_bytes are in use; -EINVAL: a stale handle, a size over the
 * device's, an unknown qp_type, a NULL pointer, with GDRC_CONFIG_STRICT_CQ a CQ that is too small;
 * -EOPNOTSUPP: the device does not have this type.
 * Threads: any. Cost: no system call. Source: IBTA verb Create Queue Pair; ibv_create_qp(3).
 */
int gdrc_qp_create(struct gdrc_context *ctx,
                   struct gdrc_qp_init *inout,
                   struct gdrc_qp *out,
                   uint32_t *qpn);

/**
 * Sets the attributes of a QP that `mask` (GDRC_QP_) names, most often its state. IBTA's table of
 * Modify Queue Pair lists the attributes that each transition requires and allows. gdrc_qp_connect
 * makes the usual transitions in one call.
 *
 * Errors: -EINVAL: the transition does not exist, needs an attribute that mask lacks or does not
 * allow one that it has, a value is out of range, stale handle, attr is NULL or its struct_size 0
 * (nothing was changed); -EBUSY: another thread uses the QP. Threads: one per QP. Cost: none; to
 * RTR it may take a peer slot (-ENOMEM). Source: IBTA verb Modify Queue Pair; ibv_modify_qp(3).
 */
int gdrc_qp_modify(struct gdrc_context *ctx,
                   struct gdrc_qp qp,
                   const struct gdrc_qp_attr *attr,
                   uint32_t mask);

/**
 * Fills `attr`, and `init` unless it is NULL (struct_size set in both), with the QP's current
 * attributes.
 *
 * Errors: -EINVAL: stale handle, attr is NULL, a struct_size is 0. Threads: any. Cost: none.
 * Source: IBTA verb Query Queue Pair; ibv_query_qp(3).
 */
int gdrc_qp_query(struct gdrc_context *ctx,
                  struct gdrc_qp qp,
                  struct gdrc_qp_attr *attr,
                  struct gdrc_qp_init *init);

/**
 * Takes a QP back to RESET, from any state, so that it can be connected again: for recovery in
 * place, after a failure, or to another peer. It keeps its handle, number, queues, counters and
 * last cause.
 *
 * Unlike gdrc_qp_modify to RESET, which drops outstanding requests, every posted request gets its
 * completion first (GDRC_WC_WR_FLUSH_ERR if it had not completed). They are in the CQ when the
 * call succeeds, before any completion of the next life. -EAGAIN: they are not all there yet, most
 * often because a CQ is full; the QP is in ERR meanwhile. Poll its CQs and call again. The call
 * itself never waits.
 *
 * Then the two programs exchange endpoints again: gdrc_endpoint_local gives PSNs for which packets
 * of the former life cannot be mistaken (docs/using/ABI.md), gdrc_qp_connect does the rest. The
 * peer resets its QP too, or makes another.
 *
 * Errors: -EAGAIN; -EBUSY: another thread posts to it; -EINVAL: stale handle. Threads: one per QP.
 * Cost: the flushed completions, and the ACK that the QP may still owe. Source: IBTA verb Modify
 * Queue Pair; ibv_modify_qp(3).
 */
int gdrc_qp_reset(struct gdrc_context *ctx, struct gdrc_qp qp);

/**
 * Destroys a QP. Requests still in it end without completion, and the device does not access their
 * memory any more; completions that are already in a CQ stay there.
 *
 * Errors: -EBUSY: it has a fast handle, is in a multicast group, or another thread uses it. A soft
 * device unbinds the type 2 windows that are bound to it. -EINVAL: stale handle. Threads: one per
 * QP. Cost: none. Source: IBTA verb Destroy Queue Pair; ibv_destroy_qp(3).
 */
int gdrc_qp_destroy(struct gdrc_context *ctx, struct gdrc_qp qp);

/**
 * The name of a QP state (GDRC_QPS_), without prefix. Static; never NULL. Threads: any. Cost:
 * none.
 */
const char *gdrc_qp_state_str(uint32_t state);

/** The QP number of a message to a multicast group. */
#define GDRC_QPN_MULTICAST 0xffffff

/**
 * Makes a GDRC_QPT_UD queue pair a member of a multicast group: it receives what is sent there, by
 * any process of any host, under its own Q_Key. `gid` is 16 bytes, of which the device keeps a
 * copy: an IPv6 group, or an IPv4 one as ::ffff:239.1.2.3. Twice is no error, and counts once.
 *
 * To send to a group, make an address handle of its GID and name GDRC_QPN_MULTICAST as the QP; no
 * membership is needed. The sender does not receive its own messages. A queue pair that is a
 * member of a group is not destroyed.
 *
 * Errors: -EINVAL: not UD, not a group's address or of another family than the device's, stale
 * handle, gid is NULL; -ENOMEM: 64 memberships of the device, or 16 groups, are in use;
 * -EOPNOTSUPP: loopback, a device over a router, a NIC without multicast. Threads: any. Cost: for
 * the first member of a group of a context a socket. Source: IBTA verb Attach QP to Multicast
 * Group; ibv_attach_mcast(3).
 */
int gdrc_qp_attach_mcast(struct gdrc_context *ctx, struct gdrc_qp qp, const uint8_t *gid);

/**
 * Ends a membership.
 *
 * Errors: -EINVAL: not a member, stale handle, gid is NULL; -EOPNOTSUPP: as gdrc_qp_attach_mcast.
 * Threads: any. Cost: for the last member of a group the end of its socket.
 * Source: IBTA verb Detach QP from Multicast Group; ibv_detach_mcast(3).
 */
int gdrc_qp_detach_mcast(struct gdrc_context *ctx, struct gdrc_qp qp, const uint8_t *gid);

/** @} */

/**
 * @defgroup gdrc_endpoint Connecting by endpoint descriptors
 * The short way to a connected queue pair: both programs exchange 128 bytes by any means of their
 * own.
 * @{
 */

/** Version of the endpoint descriptor. */
#define GDRC_ENDPOINT_VERSION 1

/**
 * Flag of an endpoint descriptor: the device is a soft one, whose packets leave from udp_port, or,
 * to a peer on the same host, from a port that the peer can check. The peer may refuse others.
 * NICs send from any port.
 */
#define GDRC_ENDPOINT_OWN_PORT 1

/** Bytes of an endpoint descriptor on the wire. */
#define GDRC_ENDPOINT_WIRE_BYTES 128

/**
 * The data that a peer needs to connect: fill it with gdrc_endpoint_local, send it as 128 bytes
 * (gdrc_endpoint_pack), pass the peer's to gdrc_qp_connect.
 */
typedef struct gdrc_endpoint {
    /** sizeof(struct gdrc_endpoint), set by the caller. */
    uint32_t struct_size;
    /** GDRC_ENDPOINT_VERSION. */
    uint32_t version;
    /** The device's GID. */
    uint8_t gid[16];
    /** IPv6 zone on this machine, else 0. It has no meaning for the peer and is not sent. */
    uint32_t scope_id;
    /** QPN. */
    uint32_t qpn;
    /** First PSN that this side will send. */
    uint32_t psn;
    /** Largest GDRC_MTU_ code that this side's link carries. */
    uint32_t mtu;
    /** GDRC_QPT_. */
    uint32_t qp_type;
    /** UDP port of the device. */
    uint32_t udp_port;
    /** Address of a buffer offered to the peer, or 0. */
    uint64_t addr;
    /** Its length in bytes. */
    uint64_t length;
    /** Its remote key. */
    uint32_t rkey;
    /** Q_Key (UD). */
    uint32_t qkey;
    /** READs and atomics that this side holds as responder. */
    uint32_t max_rd_atomic;
    /**
     * GDRC_ENDPOINT_OWN_PORT, or 0. 0 also in a struct that a program fills for a peer of another
     * kind.
     */
    uint32_t flags;
} gdrc_endpoint;

/** Flags of gdrc_qp_connect_opts. */
enum gdrc_qp_connect_flags {
    /**
     * 0 is a value in access, timeout, retry_cnt, rnr_retry, min_rnr_timer and the rd_atomic
     * fields.
     */
    GDRC_QP_CONNECT_EXACT = 0x1,
};

/**
 * Options of gdrc_qp_connect. 0 means the default, given in parentheses, unless
 * GDRC_QP_CONNECT_EXACT is set.
 */
typedef struct gdrc_qp_connect_opts {
    /** sizeof(struct gdrc_qp_connect_opts), set by the caller. */
    uint32_t struct_size;
    /**
     * GDRC_ACCESS_REMOTE_ and _FLUSH_ flags: what the peer may do (READ, WRITE and, on RC, ATOMIC;
     * where the devices have it FLUSH).
     */
    uint32_t access;
    /**
     * ACK timeout code (17: 0.54 s). With the default of retries a request to a silent peer ends
     * after 4.3 s; after the end of a process of this host that is reached through shared memory
     * at once, whatever the timeout.
     */
    uint32_t timeout;
    /** Retries after a timeout (7). */
    uint32_t retry_cnt;
    /** Retries after an RNR NAK (7: for ever). */
    uint32_t rnr_retry;
    /** RNR NAK timer code (12: 0.64 ms). */
    uint32_t min_rnr_timer;
    /**
     * READs and atomics outstanding as requester, in any case at most the peer's max_rd_atomic
     * (the peer's max_rd_atomic).
     */
    uint32_t max_rd_atomic;
    /** READs and atomics held as responder (that of `local`). */
    uint32_t max_dest_rd_atomic;
    /** Q_Key of a UD QP (that of `local`). */
    uint32_t qkey;
    /** P_Key index: 0. */
    uint32_t pkey_index;
    /** Send rate in bytes per second; 0 = unlimited. */
    uint64_t rate_limit_bytes_per_s;
    /** GDRC_QP_CONNECT_ flags. */
    uint32_t flags;
    /**
     * Traffic class of packets to the peer, as in gdrc_ah_attr; a UD QP's are its address
     * handles'.
     */
    uint32_t traffic_class;
} gdrc_qp_connect_opts;

/**
 * Describes the local side of a QP: its device's address, its number, a fresh PSN (random; after
 * gdrc_qp_reset ahead of the former ones) and, for UD, Q_Key; if `mr` is not NULL also the
 * region's first address (the one that the peer must use), length and rkey. `out->struct_size`
 * must be set before the call. Call it once per connection, and pass the same struct to
 * gdrc_qp_connect as `local`.
 *
 * A GDRC_QPT_DCT of a NIC gets its number from gdrc_qp_connect, and `qpn` is 0 before: call this
 * once more then, and send peers that.
 *
 * Errors: -EINVAL: stale handle, out is NULL or its struct_size 0. Threads: any. Cost: one system
 * call (randomness).
 */
int gdrc_endpoint_local(struct gdrc_context *ctx,
                        struct gdrc_qp qp,
                        const struct gdrc_mr *mr,
                        struct gdrc_endpoint *out);

/**
 * Writes an endpoint as GDRC_ENDPOINT_WIRE_BYTES bytes for any transport: magic "GDRC", version,
 * fields in big-endian.
 *
 * Errors: -EINVAL: a field is out of range, a NULL pointer, struct_size is 0. Threads: any. Cost:
 * none.
 */
int gdrc_endpoint_pack(const struct gdrc_endpoint *endpoint, uint8_t *wire);

/**
 * Parses the bytes that a peer's gdrc_endpoint_pack wrote; any bytes are safe. `out->struct_size`
 * must be set before the call.
 *
 * Errors: -EPROTO: not an endpoint, or fields with impossible values; -EPROTONOSUPPORT: a version
 * that this library does not know; -EINVAL: a NULL pointer, struct_size is 0. Threads: any. Cost:
 * none.
 */
int gdrc_endpoint_unpack(const uint8_t *wire, struct gdrc_endpoint *out);

/**
 * Takes a QP from RESET, or from INIT, to RTS, connected to `remote`. `local` is the endpoint that
 * gdrc_endpoint_local filled and that was sent to the peer: its PSN and, for UD, Q_Key are used.
 * For UD `remote` may be NULL, as every send names its peer; for GDRC_QPT_DCI and GDRC_QPT_DCT it
 * is not looked at, for the same reason, and a GDRC_QPT_DCT goes to RTR, which is where it serves.
 * `opts` may be NULL: all defaults. The path MTU is the smaller of both endpoints'; of DC that of
 * `local`, and a DC association has the smaller of both sides'.
 *
 * On failure a QP that was in RESET is in RESET again. Errors: -EINVAL: the QP is in another
 * state, the endpoints' types do not fit the QP's or their fields are out of range, local is
 * another QP's, an option is out of range, a struct_size is 0; -ENOMEM: max_peer are in use;
 * -EBUSY: another thread uses the QP. Threads: one per QP. Cost: none. Source: IBTA verb Modify
 * Queue Pair; ibv_modify_qp(3).
 */
int gdrc_qp_connect(struct gdrc_context *ctx,
                    struct gdrc_qp qp,
                    const struct gdrc_endpoint *local,
                    const struct gdrc_endpoint *remote,
                    const struct gdrc_qp_connect_opts *opts);

/** @} */

/**
 * @defgroup gdrc_cm Connecting by the connection manager
 * IBTA's communication management on QP1, as librdmacm speaks it: with ports, listeners and events.
 * @{
 */

/** Port spaces (rdma_port_space). */
enum gdrc_cm_port_space {
    /** RC connections, with ports like TCP's. */
    GDRC_PS_TCP = 262,
    /** UD services, with ports like UDP's. */
    GDRC_PS_UDP = 273,
    /** RC and UC connections by InfiniBand service ids. */
    GDRC_PS_IB = 319,
};

/** Events of the connection manager (rdma_cm_event_type). */
enum gdrc_cm_event_type {
    /** A peer's request to a listener. */
    GDRC_CM_EVENT_CONNECT_REQUEST = 4,
    /**
     * The peer has accepted. Only for ids without a QP: the program moves its own QP to RTS, then
     * calls gdrc_cm_establish.
     */
    GDRC_CM_EVENT_CONNECT_RESPONSE = 5,
    /** The peer has accepted, but the QP could not be brought to RTS. The peer gets a REJ. */
    GDRC_CM_EVENT_CONNECT_ERROR = 6,
    /**
     * The peer did not answer in time, or the kernel or network refused the request. The status is
     * -ETIMEDOUT, the error of the network (-ECONNREFUSED, -EHOSTUNREACH), or that of the kernel
     * (-EPERM: a firewall; -ENETUNREACH, -EACCES, ...: no route).
     */
    GDRC_CM_EVENT_UNREACHABLE = 7,
    /** The peer has rejected the request; status is the reason. */
    GDRC_CM_EVENT_REJECTED = 8,
    /** The connection is established. */
    GDRC_CM_EVENT_ESTABLISHED = 9,
    /**
     * The connection has ended, from either side. The status is -ETIMEDOUT if the peer said
     * nothing: its process has ended, or it did not answer for 9 s.
     */
    GDRC_CM_EVENT_DISCONNECTED = 10,
    /**
     * The network interface of the context's address has been removed, and with it what a NIC
     * would be. Every id has this event; the program destroys the id, as rdma_get_cm_event(3)
     * says.
     */
    GDRC_CM_EVENT_DEVICE_REMOVAL = 11,
    /**
     * The network interface of the context's address has another hardware address, or another
     * interface has the address: a bonding device has failed over. Every id has this event.
     * Connections go on.
     */
    GDRC_CM_EVENT_ADDR_CHANGE = 14,
    /** No late packet of the connection can arrive any more. */
    GDRC_CM_EVENT_TIMEWAIT_EXIT = 15,
};

/** Common reasons of a rejection (IBTA 12.6.7.2): the status of GDRC_CM_EVENT_REJECTED. */
enum gdrc_cm_rej_reason {
    /** The peer has no queue pair left. */
    GDRC_REJ_NO_QP = 1,
    /** The peer's tables are full. */
    GDRC_REJ_NO_RESOURCES = 3,
    /** The peer's connection manager has timed out, or its program has destroyed the id. */
    GDRC_REJ_TIMEOUT = 4,
    /** The peer does not support what was asked for. */
    GDRC_REJ_UNSUPPORTED = 5,
    /** The peer does not know the communication id. */
    GDRC_REJ_INVALID_COMM_ID = 6,
    /** No listener at this port. */
    GDRC_REJ_INVALID_SERVICE_ID = 8,
    /** The peer does not know the transport. */
    GDRC_REJ_INVALID_TRANSPORT = 9,
    /**
     * The peer still has a connection to this QPN and probes it. Request again, with another QP if
     * the rejection repeats.
     */
    GDRC_REJ_STALE_CONNECTION = 10,
    /** The request names another address than it came from or to. */
    GDRC_REJ_INVALID_GID = 12,
    /** The path MTU is larger than the peer's link carries. */
    GDRC_REJ_INVALID_MTU = 26,
    /** The peer's program called gdrc_cm_reject, or rdma_reject. */
    GDRC_REJ_CONSUMER = 28,
};

/** Flags of gdrc_cm_conn_param. */
enum gdrc_cm_conn_flags {
    /** 0 is a value in the fields that have another default. */
    GDRC_CM_CONN_EXACT = 0x1,
    /** The field psn is set; without it the PSN is random. */
    GDRC_CM_CONN_PSN = 0x2,
    /** The QP named by qpn takes its receives from an SRQ. */
    GDRC_CM_CONN_SRQ = 0x4,
};

/** Bytes of private data that gdrc_cm_connect takes (GDRC_PS_UDP: GDRC_CM_UD_CONNECT_DATA_MAX). */
#define GDRC_CM_CONNECT_DATA_MAX 56

/** Bytes of private data that gdrc_cm_accept takes (GDRC_PS_UDP: GDRC_CM_UD_ACCEPT_DATA_MAX). */
#define GDRC_CM_ACCEPT_DATA_MAX 196

/** Bytes of private data that gdrc_cm_reject takes (GDRC_PS_UDP: GDRC_CM_UD_ACCEPT_DATA_MAX). */
#define GDRC_CM_REJECT_DATA_MAX 148

/** Bytes of private data that gdrc_cm_connect takes for GDRC_PS_UDP. */
#define GDRC_CM_UD_CONNECT_DATA_MAX 180

/** Bytes of private data that gdrc_cm_accept and gdrc_cm_reject take for GDRC_PS_UDP. */
#define GDRC_CM_UD_ACCEPT_DATA_MAX 136

/**
 * The parameters of one side in gdrc_cm_connect and gdrc_cm_accept. 0 means the default, given in
 * parentheses, unless GDRC_CM_CONN_EXACT is set.
 */
typedef struct gdrc_cm_conn_param {
    /** sizeof(struct gdrc_cm_conn_param), set by the caller. */
    uint32_t struct_size;
    /** GDRC_CM_CONN_ flags. */
    uint32_t flags;
    /** QPN, if the call has no QP; else ignored. */
    uint32_t qpn;
    /** GDRC_QPT_, if the call has no QP; else ignored. */
    uint32_t qp_type;
    /** First PSN that this side expects and the peer sends (GDRC_CM_CONN_PSN). */
    uint32_t psn;
    /**
     * READs and atomics that this side holds as responder (the smaller of the device's bound and
     * the peer's initiator_depth).
     */
    uint32_t responder_resources;
    /**
     * READs and atomics that this side has outstanding as requester (the smaller of the device's
     * bound and the peer's responder_resources).
     */
    uint32_t initiator_depth;
    /** Retries after a timeout, for both sides (7); gdrc_cm_connect only. */
    uint32_t retry_count;
    /** Retries of the peer after an RNR NAK (7: for ever). */
    uint32_t rnr_retry;
    /** ACK timeout code, for both sides (17: 0.54 s); gdrc_cm_connect only. */
    uint32_t ack_timeout;
    /**
     * Timeout code of a request to the peer's connection manager, which is sent up to 16 times
     * (17: 0.54 s); gdrc_cm_connect only.
     */
    uint32_t response_timeout;
    /** GDRC_MTU_ code (what the link carries); gdrc_cm_connect only. */
    uint32_t path_mtu;
    /** Q_Key of a UD QP (the QP's own; 0x01234567 if it has none yet). */
    uint32_t qkey;
    /** Bytes at private_data. */
    uint32_t private_data_len;
    /** Data for the peer's program; read during the call only. */
    const void *private_data;
    /** A number of the program's own, returned with the events of the id. */
    uint64_t context;
} gdrc_cm_conn_param;

/** An event of an id. */
typedef struct gdrc_cm_event {
    /** sizeof(struct gdrc_cm_event), set by the caller. */
    uint32_t struct_size;
    /** GDRC_CM_EVENT_. */
    uint32_t event;
    /**
     * GDRC_CM_EVENT_REJECTED: the reason (GDRC_REJ_; for GDRC_PS_UDP the SIDR status); else a
     * negative errno, or 0. In words: gdrc_qp_cause, or gdrc_last_cause for an id without a QP.
     */
    int32_t status;
    /**
     * Bytes of private_data: always the whole field of the message, however many of them the
     * peer's program set.
     */
    uint32_t private_data_len;
    /**
     * The id concerned; with GDRC_CM_EVENT_CONNECT_REQUEST a new one, which the program accepts or
     * rejects, and destroys.
     */
    struct gdrc_cm_id id;
    /** GDRC_CM_EVENT_CONNECT_REQUEST: the listener. */
    struct gdrc_cm_id listener;
    /** The QP of the id, or {0}. */
    struct gdrc_qp qp;
    /** The program's number for the id. */
    uint64_t context;
    /** The peer, as an address handle needs it. */
    struct gdrc_ah_attr peer;
    /** The peer's QPN, once known. */
    uint32_t remote_qpn;
    /** The peer's Q_Key (UD), once known. */
    uint32_t qkey;
    /** This side's port. */
    uint32_t local_port;
    /** The peer's port. */
    uint32_t remote_port;
    /** GDRC_QPT_. */
    uint32_t qp_type;
    /** GDRC_MTU_ code. */
    uint32_t path_mtu;
    /**
     * READs and atomics that this side holds as responder; with a request, the peer's initiator
     * depth.
     */
    uint32_t responder_resources;
    /**
     * READs and atomics that this side may have outstanding; with a request, the peer's responder
     * resources.
     */
    uint32_t initiator_depth;
    /** Retries after a timeout. */
    uint32_t retry_count;
    /** Retries after an RNR NAK. */
    uint32_t rnr_retry;
    /** 1: the peer's QP has an SRQ. */
    uint32_t srq;
    /** Zero. */
    uint32_t reserved;
    /** Data of the peer's program. */
    uint8_t private_data[200];
} gdrc_cm_event;

/**
 * Takes an event of the connection manager, and moves the id's QP accordingly: to RTS when the
 * peer has accepted (GDRC_CM_EVENT_CONNECT_ERROR if that fails), to ERR when the connection has
 * ended. `out->struct_size` must be set before the call. When there is an event, gdrc_fd is
 * readable and gdrc_wait returns.
 *
 * Returns 1 and writes `out`, or 0 when there is none.
 * Errors: -EINVAL: not an open context, out is NULL or its struct_size 0; -EOPNOTSUPP: the device
 * has no connection manager. Threads: any. Cost: a poll. Source: rdma_get_cm_event(3), without
 * sleep.
 */
int gdrc_cm_get_event(struct gdrc_context *ctx, struct gdrc_cm_event *out);

/**
 * Listens for connections to a port of a port space (GDRC_PS_); port 0 takes a free one. Requests
 * come as GDRC_CM_EVENT_CONNECT_REQUEST; at most `backlog` of them wait for the program at once
 * (0: a quarter of max_cm_ids; never more than a quarter of max_qp or half of max_cm_ids,
 * whichever is less, but from 8 to 1024 in any case). Further ones are dropped, and their senders
 * repeat them. `context` is returned with the listener's events. Requests and accepted connections
 * that their peers have not confirmed take none of the max_cm_ids; under a flood of requests those
 * that are not confirmed within 0.1 s end early, with GDRC_CM_EVENT_UNREACHABLE
 * (docs/internals/TRANSPORT.md, "Connection manager").
 *
 * Returns the port.
 * Errors: -EADDRINUSE: another id of this context has the port; -ENOMEM: max_cm_ids are in use;
 * -EINVAL: not a port space, port is over 65535, out is NULL; -EOPNOTSUPP: the device has no
 * connection manager. Threads: any. Cost: none. Source: rdma_listen(3), rdma_bind_addr(3).
 */
int gdrc_cm_listen(struct gdrc_context *ctx,
                   uint32_t port_space,
                   uint32_t port,
                   uint32_t backlog,
                   uint64_t context,
                   struct gdrc_cm_id *out);

/**
 * Requests a connection of `qp` (in RESET or INIT) to the listener at `port` of the peer at `to`.
 * At return the QP is in INIT, so that receives can be posted; events report the result.
 * GDRC_CM_EVENT_ESTABLISHED: the QP is in RTS and connected, the event has the peer's private
 * data. GDRC_CM_EVENT_REJECTED, GDRC_CM_EVENT_UNREACHABLE: no connection; the program destroys the
 * id and the QP. With GDRC_PS_UDP the QP (in any state up to RTS) goes to RTS at once, and
 * GDRC_CM_EVENT_ESTABLISHED brings the QPN and Q_Key to send to.
 *
 * With `qp` {0} the program moves a QP itself: `param` names its number and type, and at
 * GDRC_CM_EVENT_CONNECT_RESPONSE the program uses gdrc_cm_qp_attr and then gdrc_cm_establish.
 * `param` may be NULL: all defaults. The peer may be a Linux kernel (rdma_cm). Destroy the id when
 * done with it.
 *
 * Errors: -EINVAL: the QP's state or its type for this port space, the address, a parameter is out
 * of range, a struct_size is 0; -EMSGSIZE: too much private data; -ENOMEM: max_cm_ids are in use;
 * -EOPNOTSUPP: the device has no connection manager. Threads: one per QP. Cost: a system call.
 * Source: rdma_connect(3).
 */
int gdrc_cm_connect(struct gdrc_context *ctx,
                    const struct gdrc_ah_attr *to,
                    uint32_t port_space,
                    uint32_t port,
                    struct gdrc_qp qp,
                    const struct gdrc_cm_conn_param *param,
                    struct gdrc_cm_id *out);

/**
 * Accepts a request (GDRC_CM_EVENT_CONNECT_REQUEST) with `qp` (in RESET or INIT), which is in RTS
 * at return. The connection is made when GDRC_CM_EVENT_ESTABLISHED comes. For a request of
 * GDRC_PS_UDP the QP may serve many requests at once, and no event follows: destroy the id as soon
 * as it is accepted. One that is kept serves a repeated request alone, and is freed, the oldest
 * first, when max_cm_ids are in use; gdrc_cm_destroy then returns -EINVAL. With `qp` {0} the
 * program has brought a QP of its own to RTS by gdrc_cm_qp_attr; `param` names its number and
 * type. `param` may be NULL: all defaults.
 *
 * Errors: -EINVAL: not a pending request (the peer may have given up), the QP's state, or a type
 * that was not requested; -EMSGSIZE: too much private data; -ENOMEM: max_peer are in use. After an
 * error the request is still pending. Threads: one per QP and id. Cost: a system call. Source:
 * rdma_accept(3).
 */
int gdrc_cm_accept(struct gdrc_context *ctx,
                   struct gdrc_cm_id id,
                   struct gdrc_qp qp,
                   const struct gdrc_cm_conn_param *param);

/**
 * Completes a connection at GDRC_CM_EVENT_CONNECT_RESPONSE: the program's own QP is in RTS, and
 * the peer is notified.
 *
 * Errors: -EINVAL: no accepted connection that waits for it. Threads: any. Cost: a system call.
 */
int gdrc_cm_establish(struct gdrc_context *ctx, struct gdrc_cm_id id);

/**
 * Rejects a request, with at most GDRC_CM_REJECT_DATA_MAX bytes for the peer's program, whose
 * reason is GDRC_REJ_CONSUMER. The program destroys the id. A connection at
 * GDRC_CM_EVENT_CONNECT_RESPONSE may be rejected as well.
 *
 * Errors: -EINVAL: nothing to reject, data is NULL while len is not 0; -EMSGSIZE: too much data.
 * Threads: any. Cost: a system call. Source: rdma_reject(3).
 */
int gdrc_cm_reject(struct gdrc_context *ctx,
                   struct gdrc_cm_id id,
                   const void *private_data,
                   size_t len);

/**
 * Disconnects: the QP goes to ERR and is flushed, the peer is notified. GDRC_CM_EVENT_DISCONNECTED
 * follows when it has answered, or after 16 tries.
 *
 * Errors: -EINVAL: not connected (any more). Threads: one per QP. Cost: a system call. Source:
 * rdma_disconnect(3).
 */
int gdrc_cm_disconnect(struct gdrc_context *ctx, struct gdrc_cm_id id);

/**
 * Destroys an id, whatever its state: a listener stops, a request is rejected, an attempt is given
 * up, a connection is ended. The peer is notified; no further events of the id come. Its QP stays
 * as it is.
 *
 * Errors: -EINVAL: stale handle. Threads: any. Cost: a system call. Source: rdma_destroy_id(3).
 */
int gdrc_cm_destroy(struct gdrc_context *ctx, struct gdrc_cm_id id);

/**
 * The attributes and mask that bring an id's QP to `state` (GDRC_QPS_INIT, RTR or RTS), for
 * programs that call gdrc_qp_modify themselves. `attr->struct_size` must be set before the call.
 *
 * Errors: -EINVAL: another state, the peer is not known yet, a NULL pointer, a struct_size of 0.
 * Threads: any. Cost: none. Source: rdma_init_qp_attr(3).
 */
int gdrc_cm_qp_attr(struct gdrc_context *ctx,
                    struct gdrc_cm_id id,
                    uint32_t state,
                    struct gdrc_qp_attr *attr,
                    uint32_t *mask);

/**
 * The name of a connection manager's event (GDRC_CM_EVENT_), without prefix. Static; never NULL.
 * Threads: any. Cost: none.
 */
const char *gdrc_cm_event_str(uint32_t event);

/** @} */

/**
 * @defgroup gdrc_data Data plane
 * Posting, polling, progress, and sleeping until something comes.
 * @{
 */

/** Opcodes of send work requests (ibv_wr_opcode). */
enum gdrc_wr_opcode {
    GDRC_WR_RDMA_WRITE = 0,
    GDRC_WR_RDMA_WRITE_WITH_IMM = 1,
    GDRC_WR_SEND = 2,
    GDRC_WR_SEND_WITH_IMM = 3,
    GDRC_WR_RDMA_READ = 4,
    GDRC_WR_ATOMIC_CMP_AND_SWP = 5,
    GDRC_WR_ATOMIC_FETCH_AND_ADD = 6,
    GDRC_WR_LOCAL_INV = 7,
    GDRC_WR_BIND_MW = 8,
    GDRC_WR_SEND_WITH_INV = 9,
    /**
     * RC: succeeds when all that was sent before on the queue pair has been placed, and is visible
     * to who reads that memory. wr.flush names what it is about; sg_list is not looked at. The
     * queue pair and the region of the peer need GDRC_ACCESS_FLUSH_ flags of each of its types.
     */
    GDRC_WR_FLUSH = 14,
    /**
     * RC: the peer stores the 8 bytes of sg_list in one piece at wr.rdma.remote_addr, a multiple
     * of 8, behind all that was sent before; it needs GDRC_ACCESS_REMOTE_WRITE. The bytes are
     * copied during the post, as with GDRC_SEND_INLINE, whatever max_inline_data is.
     */
    GDRC_WR_ATOMIC_WRITE = 15,
};

/** Flags of send work requests (ibv_send_flags). */
enum gdrc_send_flags {
    /** Start after earlier READs, atomics, ATOMIC WRITEs and FLUSHes have ended. */
    GDRC_SEND_FENCE = 0x1,
    /** Generate a completion. */
    GDRC_SEND_SIGNALED = 0x2,
    /** Raise the event of a receiver's CQ that is armed for solicited completions only. */
    GDRC_SEND_SOLICITED = 0x4,
    /** Copy the payload during the post: its memory is free at return and needs no lkey. */
    GDRC_SEND_INLINE = 0x8,
    GDRC_SEND_IP_CSUM = 0x10,
    /**
     * Not in libibverbs: another post or gdrc_progress follows at once, and may ring the doorbell
     * for this one.
     */
    GDRC_SEND_MORE = 0x40000000,
};

/** What a FLUSH brings about (ibv_placement_type). */
enum gdrc_flush_type {
    /** Who reads the memory sees what was sent before. */
    GDRC_FLUSH_GLOBAL = 0x1,
    /** It survives a loss of power. */
    GDRC_FLUSH_PERSISTENT = 0x2,
};

/** What a FLUSH is about (ibv_selectivity_level). */
enum gdrc_flush_level {
    /** remote_addr and length. */
    GDRC_FLUSH_RANGE = 0,
    /** The whole region of rkey; remote_addr and length are not looked at. */
    GDRC_FLUSH_MR = 1,
};

/** A scatter/gather element: 16 bytes, layout of ibv_sge. Frozen. */
typedef struct gdrc_sge {
    /** Address of the first byte, in the MR's terms (its iova). */
    uint64_t addr;
    /** Length in bytes. */
    uint32_t length;
    /** Local key of the MR that holds the range; ignored for inline data. */
    uint32_t lkey;
} gdrc_sge;

/** Remote side of WRITE, READ and ATOMIC WRITE. */
typedef struct gdrc_rdma_wr {
    /** Remote address. */
    uint64_t remote_addr;
    /** Remote key. */
    uint32_t rkey;
} gdrc_rdma_wr;

/** Operands of CMP_SWAP and FETCH_ADD. */
typedef struct gdrc_atomic_wr {
    /** Remote address, a multiple of 8. */
    uint64_t remote_addr;
    /** Compared with (CMP_SWAP) or added (FETCH_ADD). */
    uint64_t compare_add;
    /** Stored where the comparison holds. */
    uint64_t swap;
    /** Remote key. */
    uint32_t rkey;
} gdrc_atomic_wr;

/** Remote side of FLUSH. remote_addr and rkey stand where gdrc_rdma_wr has them. */
typedef struct gdrc_flush_wr {
    /** First byte of the range; not looked at with GDRC_FLUSH_MR. */
    uint64_t remote_addr;
    /** Remote key. */
    uint32_t rkey;
    /** GDRC_FLUSH_GLOBAL, GDRC_FLUSH_PERSISTENT or both. */
    uint32_t placement;
    /**
     * Length of the range in bytes, at most 2^31; 0 flushes nothing, and its key must be valid all
     * the same. Not looked at with GDRC_FLUSH_MR.
     */
    uint64_t length;
    /** GDRC_FLUSH_RANGE or GDRC_FLUSH_MR. */
    uint32_t level;
} gdrc_flush_wr;

/** Destination of a UD SEND. */
typedef struct gdrc_ud_wr {
    /** Address handle. */
    gdrc_ah ah;
    /** Destination QPN. */
    uint32_t remote_qpn;
    /** Q_Key to send; with bit 31 set the QP's own is sent. */
    uint32_t remote_qkey;
} gdrc_ud_wr;

/** The transport-specific part of gdrc_send_wr; the opcode chooses. */
typedef union gdrc_wr_op {
    /** WRITE, READ and ATOMIC WRITE. */
    struct gdrc_rdma_wr rdma;
    /** CMP_SWAP and FETCH_ADD. */
    struct gdrc_atomic_wr atomic;
    /** UD SEND. */
    struct gdrc_ud_wr ud;
    /** FLUSH. */
    struct gdrc_flush_wr flush;
} gdrc_wr_op;

/** The range that BIND_MW binds a window to: layout of ibv_mw_bind_info. */
typedef struct gdrc_mw_bind_info {
    /** The region that the window gives access to; registered with GDRC_ACCESS_MW_BIND. */
    gdrc_mr mr;
    /** First byte. */
    uint64_t addr;
    /** Length in bytes; 0 with a type 1 window closes it. */
    uint64_t length;
    /** Flags of the window: enum gdrc_access_flags. */
    uint32_t mw_access_flags;
} gdrc_mw_bind_info;

/** The bind part of gdrc_send_wr. */
typedef struct gdrc_bind_mw_wr {
    /** The window. */
    gdrc_mw mw;
    /** The new rkey of the window, of which the low 8 bits count; the others stay. */
    uint32_t rkey;
    /** The range. */
    struct gdrc_mw_bind_info bind_info;
} gdrc_bind_mw_wr;

/** Target of a request of a DCI. */
typedef struct gdrc_dc_wr {
    /** Address handle of the target's device. */
    gdrc_ah ah;
    /** Access key of the DCT. */
    uint64_t dc_key;
    /** Number of the DCT. */
    uint32_t dctn;
} gdrc_dc_wr;

/** The last part of gdrc_send_wr; opcode and transport choose. */
typedef union gdrc_wr_ext {
    /** BIND_MW. */
    struct gdrc_bind_mw_wr bind_mw;
    /** All other requests of a DCI. */
    struct gdrc_dc_wr dc;
} gdrc_wr_ext;

/**
 * A send work request: 128 bytes, layout of ibv_send_wr. Frozen. The struct and its sg_list may be
 * reused when gdrc_post_send returns; the memory of its entries belongs to the device until the
 * completion.
 */
typedef struct gdrc_send_wr {
    /** Returned in the completion. */
    uint64_t wr_id;
    /** Next request, or NULL. */
    struct gdrc_send_wr *next;
    /** `num_sge` pieces; may be NULL when there are none. */
    struct gdrc_sge *sg_list;
    /** Number of pieces, 0 to cap.max_send_sge. */
    int32_t num_sge;
    /** One of enum gdrc_wr_opcode. */
    uint32_t opcode;
    /** Flags: enum gdrc_send_flags. */
    uint32_t send_flags;
    /**
     * Immediate data in network byte order; for SEND_WITH_INV and LOCAL_INV the rkey to
     * invalidate, host order.
     */
    uint32_t imm_data;
    /** By opcode. */
    union gdrc_wr_op wr;
    /**
     * GDRC_QPT_XRC_SEND: the number of the peer's SRQ that the request is for (gdrc_srq_number).
     */
    uint32_t remote_srqn;
    /** For BIND_MW, and for DCIs. */
    union gdrc_wr_ext ext;
} gdrc_send_wr;

/** A receive work request: 32 bytes, layout of ibv_recv_wr. Frozen. */
typedef struct gdrc_recv_wr {
    /** Returned in the completion. */
    uint64_t wr_id;
    /** Next request, or NULL. */
    struct gdrc_recv_wr *next;
    /** `num_sge` pieces. On UD the first 40 bytes receive the GRH. */
    struct gdrc_sge *sg_list;
    /** Number of pieces, 0 to cap.max_recv_sge. */
    int32_t num_sge;
} gdrc_recv_wr;

/**
 * Posts a list of send requests, in order, and sends at once as much as the windows allow: the
 * post is the doorbell. While eight or more requests of an RC QP are unacknowledged, or one if it
 * sends long messages, up to sixteen further ones may wait for the next post, poll or progress, or
 * for the helper thread, so that they leave by UDP together. The list and its scatter/gather lists
 * may be reused at return; the memory of their entries belongs to the device until the completion
 * (inline data: until return). On failure `*bad` (may be NULL) is the first request that was not
 * posted; those before it were.
 *
 * Errors: -EAGAIN: the send queue is full: poll, post again from *bad; -EINVAL: num_sge or opcode
 * is out of range, the QP's state or type does not allow it, stale handle, wr is NULL; -EMSGSIZE:
 * more inline data than the QP has; -EBUSY: another thread posts to this QP; -EOPNOTSUPP: the
 * device has no ATOMIC WRITE, or no FLUSH. A local protection error, and every error of the peer,
 * comes as a completion. Threads: one at a time per QP. Cost: bounded; no allocation; spins up to
 * 16 us while other threads use the engine; a system call if packets leave by UDP. Source: IBTA
 * verb Post Send Request; ibv_post_send(3).
 */
int gdrc_post_send(struct gdrc_context *ctx,
                   struct gdrc_qp qp,
                   const struct gdrc_send_wr *wr,
                   const struct gdrc_send_wr **bad);

/**
 * Posts a list of receive requests, in order. On failure `*bad` (may be NULL) is the first request
 * that was not posted; those before it were. The memory belongs to the device until the
 * completion.
 *
 * Errors: -EAGAIN: the receive queue is full; -EINVAL: num_sge is out of range, the QP is in RESET
 * or has an SRQ, stale handle, wr is NULL; -EBUSY: another thread posts receives to this QP.
 * Threads: one at a time per QP. Cost: bounded; no allocation, waits for no lock, no system call.
 * Source: IBTA verb Post Receive Request; ibv_post_recv(3).
 */
int gdrc_post_recv(struct gdrc_context *ctx,
                   struct gdrc_qp qp,
                   const struct gdrc_recv_wr *wr,
                   const struct gdrc_recv_wr **bad);

/**
 * Posts a list of receive requests to an SRQ; otherwise as gdrc_post_recv.
 *
 * Errors: as gdrc_post_recv. Threads: one at a time per SRQ. Cost: as gdrc_post_recv. Source: IBTA
 * verb Post Receive Request; ibv_post_srq_recv(3).
 */
int gdrc_post_srq_recv(struct gdrc_context *ctx,
                       struct gdrc_srq srq,
                       const struct gdrc_recv_wr *wr,
                       const struct gdrc_recv_wr **bad);

/**
 * Takes up to `num_entries` completions into `wc`. If there is none it runs one round of the
 * engine first, so a program that polls needs no other thread.
 *
 * Returns the number taken, 0 when there is none. Errors: -EINVAL: num_entries is negative, wc is
 * NULL, stale handle; -EBUSY: another thread polls this CQ. Threads: one at a time per CQ. Cost:
 * bounded; no allocation, waits for no lock; system calls if the socket is checked. Source: IBTA
 * verb Poll for Completion; ibv_poll_cq(3).
 */
int gdrc_poll_cq(struct gdrc_context *ctx, struct gdrc_cq cq, int num_entries, struct gdrc_wc *wc);

/**
 * Runs one bounded round of the engine: receive, send, timers. For programs that wait on memory
 * instead of a CQ.
 *
 * Returns the number of packets handled; 0: nothing to do, or another thread is in the engine now.
 * Errors: -EINVAL: not an open context. Threads: any. Cost: bounded; no allocation; system calls
 * of the socket.
 */
int gdrc_progress(struct gdrc_context *ctx);

/**
 * Arms a CQ: the next completion, or with solicited_only the next solicited or failed one, makes
 * the context's descriptor readable and queues an event for gdrc_get_cq_event. Poll once more
 * after arming: earlier completions raise no event.
 *
 * Errors: -EINVAL: stale handle. Threads: any. Cost: waits for a round of the engine that another
 * thread runs. Source: IBTA verb Request Completion Notification; ibv_req_notify_cq(3).
 */
int gdrc_cq_arm(struct gdrc_context *ctx, struct gdrc_cq cq, int solicited_only);

/**
 * Takes one armed CQ that has an event.
 *
 * Returns 1 and writes `out`, or 0 when there is none.
 * Errors: -EINVAL: not an open context, out is NULL. Threads: any. Cost: none. Source:
 * ibv_get_cq_event(3), without sleep.
 */
int gdrc_get_cq_event(struct gdrc_context *ctx, struct gdrc_cq *out);

/** Asynchronous events (ibv_event_type). An error that a completion reports has none. */
enum gdrc_event_type {
    GDRC_EVENT_CQ_ERR = 0,
    /**
     * The queue pair has failed (its memory is gone, or its peer's process has ended) while it had
     * no request that could report it.
     */
    GDRC_EVENT_QP_FATAL = 1,
    /** The queue pair has failed: its peer sent an invalid request that consumes no receive. */
    GDRC_EVENT_QP_REQ_ERR = 2,
    /** The same for a request without the rights for it: key, range or access. */
    GDRC_EVENT_QP_ACCESS_ERR = 3,
    GDRC_EVENT_COMM_EST = 4,
    GDRC_EVENT_SQ_DRAINED = 5,
    /**
     * A NIC's queue pair goes on by its alternate path, or cannot. A soft device has neither
     * alternate paths nor a subnet manager: it raises these, and the events of LID, P_Key, SM and
     * client, only if they are injected.
     */
    GDRC_EVENT_PATH_MIG = 6,
    GDRC_EVENT_PATH_MIG_ERR = 7,
    /**
     * The device was removed or has failed for good. A NIC completes no outstanding request. A
     * soft device raises it when the network interface of its address is removed; its requests end
     * by their retry counts, and go on if the address comes back before.
     */
    GDRC_EVENT_DEVICE_FATAL = 8,
    /** The link of the device's address is up again. */
    GDRC_EVENT_PORT_ACTIVE = 9,
    /**
     * The link of the device's address is down. Requests wait for it until their retries are used
     * up.
     */
    GDRC_EVENT_PORT_ERR = 10,
    GDRC_EVENT_LID_CHANGE = 11,
    GDRC_EVENT_PKEY_CHANGE = 12,
    GDRC_EVENT_SM_CHANGE = 13,
    GDRC_EVENT_SRQ_ERR = 14,
    GDRC_EVENT_SRQ_LIMIT_REACHED = 15,
    GDRC_EVENT_QP_LAST_WQE_REACHED = 16,
    GDRC_EVENT_CLIENT_REREGISTER = 17,
    /** The device's address was removed from its interface, or is there again. */
    GDRC_EVENT_GID_CHANGE = 18,
};

/** An asynchronous event. Frozen. */
typedef struct gdrc_async_event {
    /** One of enum gdrc_event_type. */
    uint32_t event;
    /** Zero. */
    uint32_t reserved;
    /** Handle word of the QP, CQ or SRQ concerned; 0: the device or its port. */
    uint64_t handle;
} gdrc_async_event;

/**
 * Takes one asynchronous event (GDRC_EVENT_).
 *
 * Returns 1 and writes `out`, or 0 when there is none.
 * Errors: -EINVAL: not an open context, out is NULL. Threads: any. Cost: none. Source:
 * ibv_get_async_event(3), without sleep.
 */
int gdrc_get_async_event(struct gdrc_context *ctx, struct gdrc_async_event *out);

/**
 * The name of an asynchronous event (GDRC_EVENT_), without prefix. Static; never NULL. Threads:
 * any. Cost: none.
 */
const char *gdrc_event_str(uint32_t event);

/**
 * The context's descriptor for poll, select or epoll: readable when gdrc_progress has work, an
 * armed CQ has an event, or there is an asynchronous event. Call gdrc_arm before each sleep. The
 * descriptor stays the library's: do not read, write or close it.
 *
 * Returns the descriptor.
 * Errors: -EINVAL: not an open context; -EOPNOTSUPP: the device has none. Threads: any. Cost:
 * none.
 */
int gdrc_fd(struct gdrc_context *ctx);

/**
 * Prepares the descriptor for sleeping on it: sets its timer to the engine's next deadline.
 *
 * Returns 1: there is work already, do not sleep, call gdrc_progress or poll; 0: armed.
 * Errors: -EINVAL: not an open context. Threads: any. Cost: a round of the engine, some system
 * calls, and some for each link.
 */
int gdrc_arm(struct gdrc_context *ctx);

/**
 * Sleeps until an armed CQ has an event or there is an asynchronous event, at most `timeout_ms`
 * milliseconds (0: checks once, negative: without limit), and runs the engine meanwhile.
 *
 * Returns 1 when there is an event, 0 when the time is over.
 * Errors: -EINVAL: not an open context; -EINTR: a signal came. Threads: any. Cost: sleeps; no
 * allocation.
 */
int gdrc_wait(struct gdrc_context *ctx, int timeout_ms);

/**
 * Starts the helper thread, which runs the engine while the program does not poll: for targets of
 * WRITE, READ and atomics that do something else. It sleeps while a thread polls. Starting it
 * twice is harmless.
 *
 * Errors: -EINVAL: not an open context; -EAGAIN: the system cannot make a thread. Threads: any.
 * Cost: creates a thread.
 */
int gdrc_helper_start(struct gdrc_context *ctx);

/**
 * Stops the helper thread and waits for its end. Without a helper it does nothing.
 *
 * Errors: -EINVAL: not an open context. Threads: any. Cost: joins a thread.
 */
int gdrc_helper_stop(struct gdrc_context *ctx);

/** @} */

/**
 * @defgroup gdrc_fast Fast handles
 * Posts and polls that look nothing up.
 * @{
 */

/**
 * A queue pair for posts without a look-up: see gdrc_qp_fast_get. Bytes behind `ops` are the
 * library's.
 */
typedef struct gdrc_qp_fast {
    /** Called by gdrc_qp_fast_post_send and gdrc_qp_fast_post_recv. */
    const struct gdrc_qp_fast_ops *ops;
} gdrc_qp_fast;

/** The functions of a queue pair's device. Later versions may append some. */
typedef struct gdrc_qp_fast_ops {
    /** As gdrc_post_send. */
    int (*post_send)(struct gdrc_qp_fast*, const struct gdrc_send_wr*, const struct gdrc_send_wr**);
    /** As gdrc_post_recv. */
    int (*post_recv)(struct gdrc_qp_fast*, const struct gdrc_recv_wr*, const struct gdrc_recv_wr**);
} gdrc_qp_fast_ops;

/** A CQ for polls without a look-up: see gdrc_cq_fast_get. Bytes behind `ops` are the library's. */
typedef struct gdrc_cq_fast {
    /** Called by gdrc_cq_fast_poll. */
    const struct gdrc_cq_fast_ops *ops;
} gdrc_cq_fast;

/** The functions of a CQ's device. Later versions may append some. */
typedef struct gdrc_cq_fast_ops {
    /** As gdrc_poll_cq. */
    int (*poll)(struct gdrc_cq_fast*, int, struct gdrc_wc*);
} gdrc_cq_fast_ops;

/**
 * Writes to `*out` a handle of a queue pair for gdrc_qp_fast_post_send and gdrc_qp_fast_post_recv,
 * inline functions that look up neither context nor queue pair. Until gdrc_qp_fast_put the queue
 * pair cannot be destroyed (-EBUSY). It may have several such handles, and be posted to by
 * gdrc_post_send as well. gdrc_close releases the remaining ones.
 *
 * Errors: -EINVAL: stale handle, out is NULL; -ENOMEM: no memory for more; -EOPNOTSUPP: the device
 * does not support it. Threads: any. Cost: none; an allocation if the process has more than 1024
 * at once.
 */
int gdrc_qp_fast_get(struct gdrc_context *ctx, struct gdrc_qp qp, struct gdrc_qp_fast **out);

/**
 * Releases a handle. No other call with it may run; later ones get -EINVAL until the process has
 * made a thousand more.
 *
 * Errors: -EINVAL: not a fast handle, or already released; -EOWNERDEAD: made by the parent of this
 * fork. Threads: one per handle. Cost: none.
 */
int gdrc_qp_fast_put(struct gdrc_qp_fast *qp);

/**
 * Writes to `*out` a handle of a CQ for gdrc_cq_fast_poll; otherwise as gdrc_qp_fast_get.
 *
 * Errors: as gdrc_qp_fast_get. Threads: any. Cost: as gdrc_qp_fast_get.
 */
int gdrc_cq_fast_get(struct gdrc_context *ctx, struct gdrc_cq cq, struct gdrc_cq_fast **out);

/**
 * Releases a handle, as gdrc_qp_fast_put.
 *
 * Errors: as gdrc_qp_fast_put. Threads: one per handle. Cost: none.
 */
int gdrc_cq_fast_put(struct gdrc_cq_fast *cq);


/**
 * Posts by a fast handle, without a look-up. All pointers are dereferenced unchecked, as libibverbs
 * does: none may be NULL.
 *
 * Errors: as gdrc_post_send; -EINVAL: the handle was released; -EOWNERDEAD: a parent process made
 * it. Threads: on a NIC any number at once, as its provider locks; on other devices one at a time,
 * others get -EBUSY. Cost: on a NIC little more than libibverbs itself
 * (docs/records/PERFORMANCE.md).
 */
static inline int gdrc_qp_fast_post_send(struct gdrc_qp_fast *qp, const gdrc_send_wr *wr,
                                         const gdrc_send_wr **bad)
{
    return qp->ops->post_send(qp, wr, bad);
}

/**
 * Posts receive requests by a fast handle; otherwise as gdrc_qp_fast_post_send.
 *
 * Errors: as gdrc_post_recv. Threads: as gdrc_qp_fast_post_send.
 */
static inline int gdrc_qp_fast_post_recv(struct gdrc_qp_fast *qp, const gdrc_recv_wr *wr,
                                         const gdrc_recv_wr **bad)
{
    return qp->ops->post_recv(qp, wr, bad);
}

/**
 * Polls by a fast handle, with room for `num_entries` (1 or more) completions at `wc`; otherwise as
 * gdrc_qp_fast_post_send.
 *
 * Errors: as gdrc_poll_cq. Threads: as gdrc_qp_fast_post_send.
 */
static inline int gdrc_cq_fast_poll(struct gdrc_cq_fast *cq, int num_entries, gdrc_wc *wc)
{
    return cq->ops->poll(cq, num_entries, wc);
}


/** @} */

/**
 * @defgroup gdrc_gpu GPU memory
 * @{
 */

/** Features of a GPU (gdrc_cuda_attr.flags). */
enum gdrc_cuda_features {
    GDRC_CUDA_HAS_DMABUF = 0x1,
    GDRC_CUDA_HAS_VMM = 0x2,
    GDRC_CUDA_HAS_GPUDIRECT = 0x4,
};

/** A GPU. */
typedef struct gdrc_cuda_attr {
    /** sizeof(struct gdrc_cuda_attr), set by the caller. */
    uint32_t struct_size;
    /** GDRC_CUDA_HAS_ flags. */
    uint32_t flags;
    /** Bytes of memory. */
    uint64_t memory;
    /** PCI address, as "0000:b7:00.0". */
    char bdf[16];
    /** The driver's name for it. */
    char name[64];
} gdrc_cuda_attr;

/** Flags of gdrc_cuda_alloc. */
enum gdrc_cuda_alloc_flags {
    /**
     * Virtual memory management, which other processes get by descriptor; without it, CUDA IPC.
     */
    GDRC_CUDA_SHAREABLE = 0x1,
};

/**
 * GPU memory that another process of this host may import: 104 bytes, to be sent unchanged.
 * Frozen.
 */
typedef struct gdrc_cuda_handle {
    /** 1: by CUDA IPC; 2: by the descriptor that goes with it. */
    uint32_t kind;
    /** Zero. */
    uint32_t reserved;
    /** Bytes of the range. */
    uint64_t length;
    /** Offset of the range in its allocation. */
    uint64_t offset;
    /** PCI address of the GPU: ordinals differ between processes. */
    char bdf[16];
    /** CUipcMemHandle; with a descriptor the bytes of its allocation, 8 of them. */
    uint8_t ipc[64];
} gdrc_cuda_handle;

/**
 * Finds a GPU: by ordinal ("0"), by PCI address with or without domain ("b7:00.0"), or the first
 * (NULL or ""). Fills `attr` (struct_size set; may be NULL). The CUDA driver is opened by the
 * first call that needs it.
 *
 * Returns the ordinal.
 * Errors: -ENODEV: no CUDA driver, or no such GPU; -EINVAL: no name of a GPU; gdrc_error_detail
 * has the reason. Threads: any. Cost: the first use of a GPU makes its primary context, which the
 * process keeps.
 */
int gdrc_cuda_device(const char *name, struct gdrc_cuda_attr *attr);

/**
 * Allocates GPU memory on a GPU (its ordinal). `flags`: GDRC_CUDA_SHAREABLE, or 0. Contents are
 * undefined. Memory that a program allocated through CUDA itself may be registered as well.
 *
 * Errors: -ENODEV, -ENOMEM; -EOPNOTSUPP: no virtual memory management; -EINVAL; gdrc_error_detail
 * has the reason. Threads: any. Cost: calls of the driver.
 */
int gdrc_cuda_alloc(int gpu, size_t length, uint32_t flags, uint64_t *addr);

/**
 * Frees memory of gdrc_cuda_alloc, or closes that of gdrc_cuda_import. Deregister it first.
 *
 * Errors: -EINVAL: not from these calls; others of the driver. Threads: any. Cost: waits for work
 * on the GPU.
 */
int gdrc_cuda_free(uint64_t addr);

/**
 * Exports GPU memory to another process of this host. Memory of gdrc_cuda_alloc with
 * GDRC_CUDA_SHAREABLE is exported by a descriptor, `*fd`, which the caller closes; other memory by
 * CUDA IPC, and `*fd` is -1. The memory must stay until the other process has closed it.
 *
 * Errors: -EINVAL: not GPU memory, or of a kind that cannot be exported (imported, managed, of a
 * pool); -ENODEV. Threads: any. Cost: calls of the driver.
 */
int gdrc_cuda_export(uint64_t addr, size_t length, struct gdrc_cuda_handle *handle, int *fd);

/**
 * Opens GPU memory that another process exported. `fd`: the descriptor that came with it, which
 * stays the caller's, or -1. The handle's fields are checked: a range outside of the memory is
 * refused. `*addr` is its address here.
 *
 * Errors: -ENODEV: no driver, or not that GPU; -EINVAL: damaged, or from this very process (CUDA
 * IPC); -EACCES, -EIO: the driver refuses: the exporter has ended, or belongs to another user or
 * container; gdrc_error_detail has the reason. Threads: any. Cost: calls of the driver.
 */
int gdrc_cuda_import(const struct gdrc_cuda_handle *handle, int fd, uint64_t *addr);

/**
 * Copies `length` bytes into GPU memory; done when it returns.
 *
 * Errors: -EINVAL: not within one allocation, or `from` is NULL; -ENODEV. Threads: any. Cost: a
 * call of the driver.
 */
int gdrc_cuda_copy_in(uint64_t addr, const void *from, size_t length);

/**
 * Copies `length` bytes out of GPU memory.
 *
 * Errors: as gdrc_cuda_copy_in. Threads: any. Cost: a call of the driver.
 */
int gdrc_cuda_copy_out(void *to, uint64_t addr, size_t length);

/**
 * Sets `length` bytes of GPU memory to `byte`.
 *
 * Errors: as gdrc_cuda_copy_in. Threads: any. Cost: a call of the driver.
 */
int gdrc_cuda_fill(uint64_t addr, uint8_t byte, size_t length);

/** The PCIe part that a NIC and a GPU share (gdrc_topology_pair.near), the nearest last. */
enum gdrc_topology_near {
    /** Nothing but the machine. */
    GDRC_NEAR_SYSTEM = 0,
    /** The NUMA node: memory controller, not PCIe. */
    GDRC_NEAR_NUMA_NODE = 1,
    /** The root complex: different root ports. */
    GDRC_NEAR_HOST_BRIDGE = 2,
    /** A root port. */
    GDRC_NEAR_ROOT_PORT = 3,
    /** A PCIe switch. */
    GDRC_NEAR_SWITCH = 4,
    /** One bridge, directly below it. */
    GDRC_NEAR_BRIDGE = 5,
};

/** A NIC and a GPU: gdrc_topology. Frozen. */
typedef struct gdrc_topology_pair {
    /** The RDMA device, or the network interface where there is none. */
    char nic[64];
    /** Its network interface; empty where it has none. */
    char netdev[16];
    /** The NIC's PCI address, as "0000:b7:00.0". */
    char nic_bdf[16];
    /** The GPU's. */
    char gpu_bdf[16];
    /** GDRC_NEAR_. */
    uint32_t near;
    /** NUMA nodes; -1: none. */
    int32_t nic_numa;
    /** The GPU's. */
    int32_t gpu_numa;
    /** PCI class of the GPU: 0x030200 is a 3D controller. */
    uint32_t gpu_class;
    /** PCI vendor of the GPU. */
    uint16_t gpu_vendor;
    /** PCI device of the GPU. */
    uint16_t gpu_device;
    /** PCI revision of the GPU. */
    uint32_t gpu_revision;
} gdrc_topology_pair;

/**
 * Writes one entry for every NIC with every GPU of this machine, read from sysfs: the PCIe part
 * that they share, the nearest GPU of each NIC first. `root`: the folder of sysfs, NULL for /sys.
 * No driver is needed.
 *
 * Returns the number of pairs; at most `capacity` are written (`pairs` may be NULL when it is 0).
 * Errors: -EINVAL: pairs is NULL or misaligned, root is no path. Threads: any. Cost: reads files,
 * allocates.
 */
int gdrc_topology(const char *root, struct gdrc_topology_pair *pairs, uint32_t capacity);

/** @} */

/**
 * @defgroup gdrc_diagnostics Counters and causes
 * @{
 */

/**
 * Copies the context's counters into `values`, at most `n`, in the order of gdrc_counter_name.
 * They only grow (modulo 2^64).
 *
 * Returns the number written.
 * Errors: -EINVAL: not an open context, values is NULL. Threads: any. Cost: sums over QPs.
 */
int gdrc_counters(struct gdrc_context *ctx, uint64_t *values, uint32_t n);

/**
 * Copies a QP's counters; otherwise as gdrc_counters.
 *
 * Returns the number written.
 * Errors: -EINVAL: stale handle, values is NULL. Threads: any. Cost: none.
 */
int gdrc_qp_counters(struct gdrc_context *ctx, struct gdrc_qp qp, uint64_t *values, uint32_t n);

/**
 * The number of counters in this version of the library; later versions only append. Threads: any.
 * Cost: none.
 */
uint32_t gdrc_counter_count(void);

/** The name of counter `i`, or NULL if there is none. Static. Threads: any. Cost: none. */
const char *gdrc_counter_name(uint32_t i);

/**
 * Causes of errors (gdrc_cause.code, gdrc_wc.vendor_err); gdrc_cause_str describes each. Numbers
 * are never reused.
 */
enum gdrc_cause_code {
    /** Nothing went wrong yet. */
    GDRC_CAUSE_NONE = 0,
    /** arg0 = lkey, arg1 = address. */
    GDRC_CAUSE_LOCAL_KEY = 1,
    /** arg0 = lkey, arg1 = address. */
    GDRC_CAUSE_LOCAL_RANGE = 2,
    /** arg0 = lkey, arg1 = address. */
    GDRC_CAUSE_LOCAL_ACCESS = 3,
    /** arg0 = lkey, arg1 = address. */
    GDRC_CAUSE_LOCAL_MEMORY_GONE = 4,
    /** The peer answered NAK 0x62; arg0 = rkey, arg1 = remote address. */
    GDRC_CAUSE_REMOTE_ACCESS = 5,
    /** The peer answered NAK 0x61. */
    GDRC_CAUSE_REMOTE_INVALID_REQUEST = 6,
    /** The peer answered NAK 0x63. */
    GDRC_CAUSE_REMOTE_OPERATION = 7,
    /** arg0 = ACK timeout in ns, arg1 = retries made. */
    GDRC_CAUSE_RETRY_EXCEEDED = 8,
    /** arg0 = RNR retries made. */
    GDRC_CAUSE_RNR_RETRY_EXCEEDED = 9,
    /** arg0 = deadline in ns. */
    GDRC_CAUSE_DEADLINE = 10,
    /** arg0 = errno of the ICMP refusal. */
    GDRC_CAUSE_PEER_UNREACHABLE = 11,
    /** arg0 = path MTU, arg1 = link MTU. */
    GDRC_CAUSE_MTU_EXCEEDED = 12,
    /** As responder; arg0 = rkey, arg1 = address. */
    GDRC_CAUSE_PEER_USED_BAD_KEY = 13,
    /** As responder; arg0 = rkey, arg1 = address. */
    GDRC_CAUSE_PEER_LEFT_RANGE = 14,
    /** As responder; arg0 = rkey, arg1 = address. */
    GDRC_CAUSE_PEER_LACKS_ACCESS = 15,
    /** As responder; arg0 = opcode. */
    GDRC_CAUSE_PEER_BAD_REQUEST = 16,
    /** As responder; arg0 = message bytes, arg1 = buffer bytes. */
    GDRC_CAUSE_MESSAGE_TOO_LONG = 17,
    /** The peer answered with something that does not fit the request. */
    GDRC_CAUSE_BAD_RESPONSE = 18,
    /** The program moved the QP to ERR, or an earlier request failed. */
    GDRC_CAUSE_FLUSHED = 19,
    /** arg0 = rkey. */
    GDRC_CAUSE_BAD_WINDOW = 20,
    /** arg0 = send opcode. */
    GDRC_CAUSE_BAD_OPCODE = 21,
    /** arg0 = message bytes, arg1 = largest. */
    GDRC_CAUSE_TOO_LONG = 22,
    /** arg0 = address handle. */
    GDRC_CAUSE_BAD_ADDRESS_HANDLE = 23,
    /** arg0 = errno. */
    GDRC_CAUSE_SOCKET = 24,
    /** arg0 = address. */
    GDRC_CAUSE_MISALIGNED_ATOMIC = 25,
    /** The peer was reached over a link. */
    GDRC_CAUSE_PATH_LOST = 26,
    /**
     * An idle queue pair (keepalive_ms of gdrc_config); arg0 = keepalive interval in ns, arg1 =
     * questions without an answer.
     */
    GDRC_CAUSE_KEEPALIVE = 27,
    /**
     * A rule of this machine's firewall; arg0 = errno. EPERM: the kernel refused to send.
     * ECONNREFUSED: an ICMP error in the name of a socket that is there.
     */
    GDRC_CAUSE_FIREWALL = 28,
    /** The kernel refused to send: no route, or a prohibiting one; arg0 = errno. */
    GDRC_CAUSE_NO_ROUTE = 29,
    /**
     * The peer's process is on this machine and lives, but does not read its packets; arg0 = ACK
     * timeout in ns (0: a connection was asked for), arg1 = retries made.
     */
    GDRC_CAUSE_NOT_POLLED = 30,
    /**
     * The peer's process is on this machine and reads its packets, but this queue pair gets no
     * answer; arg0 = ACK timeout in ns, arg1 = retries made.
     */
    GDRC_CAUSE_UNANSWERED = 31,
    /** No answer to a connection request; arg0 = the port. */
    GDRC_CAUSE_NO_ANSWER = 32,
    /**
     * The peer rejected a connection request; arg0 = the status of the event (UD: that of the
     * SIDR_REP), arg1 = the port that was asked for, plus 2^16 for UD.
     */
    GDRC_CAUSE_REJECTED = 33,
    /**
     * The router that carried the packets is gone, or has ended the session (arg0 = 0); arg0 = how
     * long it was waited for, in ns.
     */
    GDRC_CAUSE_ROUTER_LOST = 34,
    /** The target's answer to a DC initiator; arg0 = number of the DCT. */
    GDRC_CAUSE_DC_KEY = 35,
    /** arg0 = number of the DCT, arg1 = 1: its device was opened anew meanwhile. */
    GDRC_CAUSE_DC_TARGET_GONE = 36,
    /** arg0 = number of the DCT. */
    GDRC_CAUSE_DC_NO_CONTEXT = 37,
    /** A NIC's own error; arg0 = completion status, arg1 = its vendor's number. */
    GDRC_CAUSE_DEVICE_ERROR = 40,
    /** arg0 = errno, if there was one. */
    GDRC_CAUSE_DEVICE_GONE = 41,
    /** arg0 = port. */
    GDRC_CAUSE_PORT_DOWN = 42,
    /** arg0 = CQ. */
    GDRC_CAUSE_CQ_OVERRUN = 43,
    /** arg0 = rule of the faults. */
    GDRC_CAUSE_INJECTED = 44,
};

/** The last cause of an error on a QP or context: 64 bytes. Frozen. */
typedef struct gdrc_cause {
    /** One of enum gdrc_cause_code. */
    uint32_t code;
    /** The completion status that it led to, 0 if none. */
    uint32_t wc_status;
    /** The peer's GID, zero if none. */
    uint8_t peer[16];
    /** The local QPN, 0 if none. */
    uint32_t qpn;
    /** The peer's QPN. */
    uint32_t remote_qpn;
    /** PSN concerned. */
    uint32_t psn;
    /** The counter that counts it: an index for gdrc_counter_name; UINT32_MAX: none does. */
    uint32_t counter;
    /** By code. */
    uint64_t arg0;
    /** By code. */
    uint64_t arg1;
    /** Device time of the event in nanoseconds. */
    uint64_t time_ns;
} gdrc_cause;

/**
 * The last error on this context, with its likely cause; code GDRC_CAUSE_NONE if there was none.
 *
 * Errors: -EINVAL: not an open context, out is NULL. Threads: any. Cost: none.
 */
int gdrc_last_cause(struct gdrc_context *ctx, struct gdrc_cause *out);

/**
 * The last error on this QP; otherwise as gdrc_last_cause.
 *
 * Errors: -EINVAL: stale handle, out is NULL. Threads: any. Cost: none.
 */
int gdrc_qp_cause(struct gdrc_context *ctx, struct gdrc_qp qp, struct gdrc_cause *out);

/**
 * Writes a cause as text into `buf`, like snprintf: NUL-terminated, cut at `len`.
 *
 * Returns the length of the whole text without the NUL; `buf` may be NULL when `len` is 0.
 * Errors: -EINVAL: cause is NULL, or buf is NULL and len is not 0. Threads: any. Cost: no
 * allocation.
 */
int gdrc_cause_str(const struct gdrc_cause *cause, char *buf, size_t len);

/** @} */

#ifdef __cplusplus
}
#endif

#endif /* GDRCORE_H */
