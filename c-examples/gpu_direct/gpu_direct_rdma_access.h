// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A small interface for "the server reads and writes my buffer, in any kind of memory": open a
 * device by local address, register a buffer, describe it as a line of text, submit tasks with the
 * other side's description, poll for their completion, reset peers that failed.
 *
 * The transport is DC, or RC by option; both sides need the same. With DC a buffer is described by
 * its address, a DC target's number and its access key, and nothing is connected: the side that
 * posts has a few DC initiators for all its peers, and each task takes a free one. With RC each
 * side has one queue pair per peer and connects it to the other's description. The calls are the
 * same.
 *
 * One thread uses a device. Functions return 0 or a count, or a negative errno after printing the
 * reason.
 */
#ifndef GPU_DIRECT_RDMA_ACCESS_H
#define GPU_DIRECT_RDMA_ACCESS_H

#include <gdrcore.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gda_device;
struct gda_buffer;
struct gda_peer;

/* Longest description, its terminator included. */
#define GDA_DESC_MAX 192
/* Most pieces of a task. */
#define GDA_PIECES_MAX 256
/* Most peers of a device. */
#define GDA_PEERS_MAX 64
/*
 * DC initiators of a device, by default and at most: a pool that all peers share. So many tasks run
 * at a time, further ones wait.
 */
#define GDA_INITIATORS 4
#define GDA_INITIATORS_MAX 64

enum gda_transport { GDA_DC, GDA_RC };

/* A piece of a local buffer. */
struct gda_piece {
    uint64_t offset, length;
};

/*
 * Copy between local pieces and the remote buffer. With RC the tasks of a peer run in the order in
 * which they were submitted; with DC each runs by itself.
 */
struct gda_task {
    uint64_t id;                    /* returned in the event */
    struct gda_peer *peer;
    const struct gda_buffer *local;
    const struct gda_piece *pieces; /* in the order of the remote bytes */
    unsigned count;
    uint64_t remote_offset;
    bool read;                      /* remote to local; otherwise local to remote */
};

/* The completion of a task. */
struct gda_event {
    uint64_t id;
    struct gda_peer *peer;
    /*
     * 0 or a negative errno. With RC the peer then needs gda_peer_reset and a new connection; with
     * DC it goes on as it is, and so do the other peers.
     */
    int status;
};

/*
 * `address`: an address of this machine or a device name ("soft:192.0.2.1:4800"); NULL: the first
 * usable one. `initiators`: of the pool, 1 to GDA_INITIATORS_MAX; no more than peers at work are of
 * use. Returns NULL on failure, with GDA_DC also if the device has no DC.
 */
struct gda_device *gda_open(const char *address, enum gda_transport transport, unsigned initiators);
/* Also destroys the device's remaining objects. */
void gda_close(struct gda_device *device);
/*
 * RC: resets all peers whose queue pair has failed. Returns their number; connect them again. DC:
 * returns 0, as initiators recover by themselves.
 */
int gda_reset(struct gda_device *device);
/* The address of the device, for a side channel to listen on. */
const char *gda_address(const struct gda_device *device);
gdrc_context *gda_context(struct gda_device *device);
/* "DC" or "RC". Static text. */
const char *gda_transport_name(enum gda_transport transport);

/*
 * Registers memory of the host or of a GPU; the caller keeps it until gda_buffer_release. Returns
 * NULL on failure.
 */
struct gda_buffer *gda_buffer_register(struct gda_device *device, const struct gdrc_memory *memory);
/* The route by which the device reaches the buffer. Static text. */
const char *gda_buffer_route(const struct gda_buffer *buffer);
void gda_buffer_release(struct gda_buffer *buffer);

struct gda_peer *gda_peer_create(struct gda_device *device);
void gda_peer_destroy(struct gda_peer *peer);
/*
 * Returns to the state after gda_peer_create: describe it anew and connect it again. Tasks under
 * way are lost.
 */
int gda_peer_reset(struct gda_peer *peer);
/* Describes the buffer (NULL: none) and this end, as gda_format does. */
int gda_describe(struct gda_peer *peer, const struct gda_buffer *buffer, char *out, size_t size);
/*
 * Takes the other side's description; its buffer becomes the remote buffer of this peer's tasks.
 * RC: connects to it. -EPROTO: it is malformed; -EPROTONOSUPPORT: another version; -EPROTOTYPE: the
 * other side uses the other transport.
 */
int gda_peer_connect(struct gda_peer *peer, const char *description);
/* Bytes of the remote buffer, 0 if it has none. */
uint64_t gda_peer_remote_length(const struct gda_peer *peer);

/*
 * Starts a task, or lets it wait for a free initiator. -EAGAIN: too many under way, poll first. The
 * pieces are copied.
 */
int gda_submit(struct gda_device *device, const struct gda_task *task);
/* Returns completed tasks, without waiting. Returns their number. */
int gda_poll(struct gda_device *device, struct gda_event *events, int count);
/* Sleeps until the device or one of the descriptors is ready; poll before. As gx_sleep(). */
int gda_sleep(struct gda_device *device, struct pollfd *fds, nfds_t count, int timeout_ms);

/* For demonstrating a failure: the next task of this peer uses a wrong rkey. */
void gda_peer_spoil(struct gda_peer *peer);

/* ---- description.c --------------------------------------------------------------------------- */

/*
 * A description: the fields of an endpoint, whose qp_type is GDRC_QPT_DCT or GDRC_QPT_RC, and with
 * DC the target's access key.
 */
struct gda_description {
    struct gdrc_endpoint end;
    uint64_t dc_key;
};

/*
 * Writes "gda2:dc:addr:length:rkey:dctn:key:gid:mtu:port:rd", with RC
 * "gda2:rc:addr:length:rkey:qpn:psn:gid:mtu:port:rd": numbers in hexadecimal, gid as 32 digits,
 * zeros where there is no buffer. -ENOSPC: `out` is too small.
 */
int gda_format(const struct gda_description *description, char *out, size_t size);
/* Parses a description. -EPROTO if it is malformed, -EPROTONOSUPPORT if it has another version. */
int gda_parse(const char *text, struct gda_description *out);

#endif
