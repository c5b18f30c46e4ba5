// SPDX-License-Identifier: MIT OR Apache-2.0
/* The interface of gpu_direct_rdma_access.h over the C API of gdrcore. */
#include "gpu_direct_rdma_access.h"

#include "../common/gx.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "gda"
#define VERSION 1
/* Most work requests of a task: GDA_PIECES_MAX pieces with one piece each. */
#define SEND_WRS GDA_PIECES_MAX
/* Every task under way needs one entry, and a failing queue pair flushes all its requests. */
#define CQ_ENTRIES 4096
/* For GDA_PEERS_MAX queue pairs of that depth. */
#define RING_BYTES (16u << 20)

struct gda_device {
    struct gx_dev dev;
    gdrc_cq cq;
    uint32_t max_sge, send_wrs;
    struct gda_peer *peers[GDA_PEERS_MAX];
};

struct gda_buffer {
    struct gda_device *device;
    gdrc_mr mr;
    struct gdrc_mr_attr attr;
};

struct gda_peer {
    struct gda_device *device;
    gdrc_qp qp;
    uint32_t qpn;
    uint32_t epoch;              /* number of resets; completions of earlier epochs are ignored */
    unsigned in_flight;          /* work requests posted and not known to have completed */
    bool described, failed, spoiled;
    struct gdrc_endpoint local, remote;
    /* Of each task under way, oldest first: its id and its number of work requests. */
    struct { uint64_t id; unsigned requests; } tasks[SEND_WRS];
    unsigned first, count;
};

struct gda_device *gda_open(const char *address)
{
    struct gda_device *device = calloc(1, sizeof *device);
    struct gdrc_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.ring_bytes = RING_BYTES;
    if (!device || gx_dev_open(&device->dev, address, 0, &config)) {
        free(device);
        return NULL;
    }
    int err = gdrc_cq_create(device->dev.ctx, CQ_ENTRIES, &device->cq, NULL);
    if (err) {
        gx_explain_call(&device->dev, err, "creating a CQ");
        gx_dev_close(&device->dev);
        free(device);
        return NULL;
    }
    device->max_sge = device->dev.attr.max_sge ? device->dev.attr.max_sge : 1;
    if (device->max_sge > GDA_PIECES_MAX)
        device->max_sge = GDA_PIECES_MAX;
    device->send_wrs = (GDA_PIECES_MAX + device->max_sge - 1) / device->max_sge;
    return device;
}

void gda_close(struct gda_device *device)
{
    if (!device)
        return;
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++)
        gda_peer_destroy(device->peers[i]);
    gdrc_cq_destroy(device->dev.ctx, device->cq);
    gx_dev_close(&device->dev);
    free(device);
}

int gda_reset(struct gda_device *device)
{
    int count = 0;
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++) {
        struct gda_peer *peer = device->peers[i];
        struct gdrc_qp_attr attr;
        if (!peer)
            continue;
        memset(&attr, 0, sizeof attr);
        attr.struct_size = sizeof attr;
        int err = gdrc_qp_query(device->dev.ctx, peer->qp, &attr, NULL);
        if (!peer->failed && !err && attr.qp_state != GDRC_QPS_ERR)
            continue;
        err = gda_peer_reset(peer);
        if (err)
            return err;
        count++;
    }
    return count;
}

const char *gda_address(const struct gda_device *device) { return device->dev.address; }
gdrc_context *gda_context(struct gda_device *device) { return device->dev.ctx; }

struct gda_buffer *gda_buffer_register(struct gda_device *device, const struct gdrc_memory *memory)
{
    struct gda_buffer *buffer = calloc(1, sizeof *buffer);
    uint32_t access = GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_READ | GDRC_ACCESS_REMOTE_WRITE;
    if (!buffer || gx_mem_register(&device->dev, memory, access, &buffer->mr, &buffer->attr)) {
        free(buffer);
        return NULL;
    }
    buffer->device = device;
    return buffer;
}

const char *gda_buffer_route(const struct gda_buffer *buffer)
{
    return gdrc_mr_route_str(buffer->attr.route);
}

void gda_buffer_release(struct gda_buffer *buffer)
{
    if (!buffer)
        return;
    gdrc_mr_dereg(buffer->device->dev.ctx, buffer->mr);
    free(buffer);
}

struct gda_peer *gda_peer_create(struct gda_device *device)
{
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++) {
        if (device->peers[i])
            continue;
        struct gda_peer *peer = calloc(1, sizeof *peer);
        if (!peer || gx_qp_create(&device->dev, device->cq, device->send_wrs, 1, device->max_sge,
                                  &peer->qp, &peer->qpn)) {
            free(peer);
            return NULL;
        }
        peer->device = device;
        device->peers[i] = peer;
        return peer;
    }
    gx_error("Start a second server on another port.", "this device already has %u peers",
             GDA_PEERS_MAX);
    return NULL;
}

void gda_peer_destroy(struct gda_peer *peer)
{
    if (!peer)
        return;
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++)
        if (peer->device->peers[i] == peer)
            peer->device->peers[i] = NULL;
    int err = gdrc_qp_destroy(peer->device->dev.ctx, peer->qp);
    if (err)
        gx_explain_call(&peer->device->dev, err, "destroying a queue pair");
    free(peer);
}

int gda_peer_reset(struct gda_peer *peer)
{
    struct gdrc_qp_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.struct_size = sizeof attr;
    attr.qp_state = GDRC_QPS_RESET;
    int err = gdrc_qp_modify(peer->device->dev.ctx, peer->qp, &attr, GDRC_QP_STATE);
    if (err) {
        gx_explain_call(&peer->device->dev, err, "resetting a queue pair");
        return err;
    }
    peer->epoch++;
    peer->described = peer->failed = false;
    peer->in_flight = peer->first = peer->count = 0;
    memset(&peer->remote, 0, sizeof peer->remote);
    return 0;
}

int gda_describe(struct gda_peer *peer, const struct gda_buffer *buffer, char *out, size_t size)
{
    if (!peer->described) {
        /* Once per connection: it draws the first PSN, which both sides must use. */
        memset(&peer->local, 0, sizeof peer->local);
        peer->local.struct_size = sizeof peer->local;
        int err = gdrc_endpoint_local(peer->device->dev.ctx, peer->qp, NULL, &peer->local);
        if (err) {
            gx_explain_call(&peer->device->dev, err, "describing the endpoint");
            return err;
        }
        peer->described = true;
    }
    const struct gdrc_endpoint *e = &peer->local;
    char gid[33];
    for (int i = 0; i < 16; i++)
        snprintf(gid + 2 * i, 3, "%02x", e->gid[i]);
    int n = snprintf(out, size, PREFIX "%d:%" PRIx64 ":%" PRIx64 ":%x:%x:%x:%s:%x:%x:%x", VERSION,
                     buffer ? buffer->attr.iova : 0, buffer ? buffer->attr.length : 0,
                     buffer ? buffer->attr.rkey : 0, e->qpn, e->psn, gid, e->mtu, e->udp_port,
                     e->max_rd_atomic);
    return n > 0 && (size_t)n < size ? 0 : -ENOSPC;
}

/* The next number of the description, at most `max`; moves past the colon or to the end. */
static bool next_number(const char **at, uint64_t max, uint64_t *out)
{
    uint64_t value = 0;
    unsigned digits = 0;
    for (;; (*at)++, digits++) {
        char c = **at;
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
                                                : 16;
        if (digit == 16)
            break;
        value = value << 4 | digit;
    }
    if (digits == 0 || digits > 16 || value > max || (**at != ':' && **at != 0))
        return false;
    *at += **at == ':';
    *out = value;
    return true;
}

int gda_parse(const char *text, struct gdrc_endpoint *out)
{
    uint64_t version, addr, length, rkey, qpn, psn, gid_half, mtu, port, rd;
    if (strncmp(text, PREFIX, strlen(PREFIX)))
        return -EPROTO;
    text += strlen(PREFIX);
    if (!next_number(&text, UINT64_MAX, &version))
        return -EPROTO;
    if (version != VERSION)
        return -EPROTONOSUPPORT;
    struct gdrc_endpoint e;
    memset(&e, 0, sizeof e);
    if (!next_number(&text, UINT64_MAX, &addr) || !next_number(&text, UINT64_MAX, &length) ||
        !next_number(&text, UINT32_MAX, &rkey) || !next_number(&text, 0xffffff, &qpn) ||
        !next_number(&text, 0xffffff, &psn) || strspn(text, "0123456789abcdef") != 32)
        return -EPROTO;
    for (int half = 0; half < 2; half++) {
        char digits[17];
        memcpy(digits, text + 16 * half, 16);
        digits[16] = 0;
        const char *at = digits;
        if (!next_number(&at, UINT64_MAX, &gid_half))
            return -EPROTO;
        gx_put64(e.gid + 8 * half, gid_half);
    }
    text += 32;
    if (*text++ != ':' || !next_number(&text, 5, &mtu) || !next_number(&text, 65535, &port) ||
        !next_number(&text, 255, &rd) || *text)
        return -EPROTO;
    e.struct_size = sizeof e;
    e.qpn = (uint32_t)qpn;
    e.psn = (uint32_t)psn;
    e.mtu = (uint32_t)mtu;
    e.qp_type = GDRC_QPT_RC;
    e.udp_port = (uint32_t)port;
    e.addr = addr;
    e.length = length;
    e.rkey = (uint32_t)rkey;
    e.max_rd_atomic = (uint32_t)rd;
    *out = e;
    return 0;
}

int gda_peer_connect(struct gda_peer *peer, const char *description)
{
    struct gdrc_endpoint remote;
    int err = gda_parse(description, &remote);
    if (err) {
        gx_error("Build both sides from one source.",
                 "the other side's description is not understood: %s", gdrc_strerror(err));
        return err;
    }
    if (!peer->described)
        return -EINVAL;
    /* A zone is valid on its own host only: a link-local peer is on the link of our own address. */
    remote.version = peer->local.version;
    remote.scope_id = peer->local.scope_id;
    err = gdrc_qp_connect(peer->device->dev.ctx, peer->qp, &peer->local, &remote, NULL);
    if (err)
        gx_explain_call(&peer->device->dev, err, "connecting the queue pair");
    else
        peer->remote = remote;
    return err;
}

uint64_t gda_peer_remote_length(const struct gda_peer *peer) { return peer->remote.length; }
void gda_peer_spoil(struct gda_peer *peer) { peer->spoiled = true; }

int gda_submit(struct gda_device *device, const struct gda_task *task)
{
    struct gda_peer *peer = task->peer;
    uint64_t total = 0;
    if (task->count == 0 || task->count > GDA_PIECES_MAX)
        return -EINVAL;
    for (unsigned i = 0; i < task->count; i++) {
        const struct gda_piece *p = &task->pieces[i];
        if (p->offset > task->local->attr.length ||
            p->length > task->local->attr.length - p->offset || p->length > UINT32_MAX)
            return -ERANGE;
        total += p->length;
    }
    if (task->remote_offset > peer->remote.length ||
        total > peer->remote.length - task->remote_offset)
        return -ERANGE;
    unsigned requests = (task->count + device->max_sge - 1) / device->max_sge;
    if (requests > device->send_wrs - peer->in_flight)
        return -EAGAIN;

    uint64_t remote = peer->remote.addr + task->remote_offset;
    for (unsigned done = 0, request = 0; request < requests; request++) {
        gdrc_sge pieces[GDA_PIECES_MAX];
        gdrc_send_wr wr;
        unsigned count =
            task->count - done < device->max_sge ? task->count - done : device->max_sge;
        uint64_t bytes = 0;
        for (unsigned i = 0; i < count; i++) {
            const struct gda_piece *p = &task->pieces[done + i];
            pieces[i] = (gdrc_sge){
                .addr = task->local->attr.iova + p->offset,
                .length = (uint32_t)p->length,
                .lkey = task->local->attr.lkey,
            };
            bytes += p->length;
        }
        memset(&wr, 0, sizeof wr);
        wr.wr_id = (uint64_t)peer->epoch << 32 | peer->qpn;
        wr.sg_list = pieces;
        wr.num_sge = (int)count;
        wr.opcode = task->read ? GDRC_WR_RDMA_READ : GDRC_WR_RDMA_WRITE;
        /* Requests of a queue pair complete in order, so the last one completes the task. */
        wr.send_flags = request + 1 == requests ? GDRC_SEND_SIGNALED : 0;
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = peer->spoiled ? ~peer->remote.rkey : peer->remote.rkey;
        peer->spoiled = false;
        int err = gdrc_post_send(device->dev.ctx, peer->qp, &wr, NULL);
        if (err) {
            gx_explain_call(&device->dev, err, "posting a task");
            peer->failed = true;
            return err;
        }
        peer->in_flight++;
        remote += bytes;
        done += count;
    }
    unsigned slot = (peer->first + peer->count++) % SEND_WRS;
    peer->tasks[slot].id = task->id;
    peer->tasks[slot].requests = requests;
    return 0;
}

static struct gda_peer *find_peer(struct gda_device *device, uint32_t qpn)
{
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++)
        if (device->peers[i] && device->peers[i]->qpn == qpn)
            return device->peers[i];
    return NULL;
}

int gda_poll(struct gda_device *device, struct gda_event *events, int count)
{
    gdrc_wc wc[16];
    int taken = 0;
    while (taken < count) {
        int room = count - taken < 16 ? count - taken : 16;
        int n = gdrc_poll_cq(device->dev.ctx, device->cq, room, wc);
        if (n < 0) {
            gx_explain_call(&device->dev, n, "polling");
            return n;
        }
        for (int i = 0; i < n; i++) {
            struct gda_peer *peer = find_peer(device, wc[i].qp_num);
            /*
             * After a failure each request is flushed; the first of them has reported the task's
             * failure.
             */
            if (!peer || !peer->count || peer->failed || wc[i].wr_id >> 32 != peer->epoch)
                continue;
            if (wc[i].status != GDRC_WC_SUCCESS) {
                gx_explain_wc(&device->dev, peer->qp, &wc[i], "a task");
                peer->failed = true;
            }
            events[taken++] = (struct gda_event){
                .id = peer->tasks[peer->first].id,
                .peer = peer,
                .status = peer->failed ? -EIO : 0,
            };
            peer->in_flight -= peer->tasks[peer->first].requests;
            peer->first = (peer->first + 1) % SEND_WRS;
            peer->count--;
        }
        if (n < room)
            break;
    }
    return taken;
}

int gda_sleep(struct gda_device *device, struct pollfd *fds, nfds_t count, int timeout_ms)
{
    return gx_sleep(device->dev.ctx, &device->cq, fds, count, timeout_ms);
}
