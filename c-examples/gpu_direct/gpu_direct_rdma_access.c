// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The interface of gpu_direct_rdma_access.h over the C API of gdrcore.
 *
 * Tasks are posted to lanes. A lane is a queue pair that sends: with RC each peer has one of its
 * own, with DC the device has a few, each with one task at a time. So a task that fails, or whose
 * peer is silent, takes no other task with it.
 */
#include "gpu_direct_rdma_access.h"

#include "../common/gx.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Most work requests of a task: GDA_PIECES_MAX pieces with one piece each. */
#define SEND_WRS GDA_PIECES_MAX
/* Every task under way needs one entry, and a failing queue pair flushes all its requests. */
#define CQ_ENTRIES 4096
/* For GDA_PEERS_MAX queue pairs of that depth. */
#define RING_BYTES (16u << 20)

struct lane {
    gdrc_qp qp;
    uint32_t qpn;                /* 0: not made */
    uint32_t epoch;              /* number of resets; completions of earlier epochs are ignored */
    unsigned in_flight;          /* work requests posted and not known to have completed */
    bool failed;                 /* needs a reset */
    struct gda_peer *peer;       /* of its tasks */
    /* Of each task under way, oldest first: its id and its number of work requests. */
    struct { uint64_t id; unsigned requests; } tasks[SEND_WRS];
    unsigned first, count;
};

/* DC: an address handle, which all peers at its address share. */
struct address {
    struct gdrc_ah_attr to;
    gdrc_ah ah;
    unsigned users;              /* 0: a free place */
};

/* DC: a task that waits for a lane, with its own copy of the pieces. */
struct waiting {
    struct gda_task task;        /* peer NULL: its peer has gone */
    struct gda_piece pieces[GDA_PIECES_MAX];
};

struct gda_device {
    struct gx_dev dev;
    enum gda_transport transport;
    gdrc_cq cq;
    uint32_t max_sge, send_wrs;
    struct gda_peer *peers[GDA_PEERS_MAX];
    /* DC: the initiators, made for the first peer with a buffer. */
    struct lane lanes[GDA_INITIATORS_MAX];
    unsigned initiators;
    struct address addresses[GDA_PEERS_MAX];
    struct waiting waiting[GDA_PEERS_MAX];
    unsigned first, count;
    /* DC: the target, made for the first description of a buffer; qpn 0: not made. */
    gdrc_srq srq;
    gdrc_qp target;
    struct gda_description own;
};

struct gda_buffer {
    struct gda_device *device;
    gdrc_mr mr;
    struct gdrc_mr_attr attr;
};

struct gda_peer {
    struct gda_device *device;
    bool described, spoiled;
    struct lane lane;            /* RC */
    struct address *address;     /* DC */
    struct gda_description local, remote;
};

const char *gda_transport_name(enum gda_transport transport)
{
    return transport == GDA_DC ? "DC" : "RC";
}

/* ---- lanes and the target -------------------------------------------------------------------- */

/* DC: a queue pair in RESET; only targets have an SRQ. */
static int dc_create(struct gda_device *device, uint32_t type, uint64_t key, gdrc_qp *out,
                     uint32_t *qpn)
{
    struct gdrc_qp_init init;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.pd = device->dev.pd;
    init.qp_type = type;
    if (type == GDRC_QPT_DCT) {
        init.recv_cq = device->cq;
        init.srq = device->srq;
        init.dc_key = key;
    } else {
        init.send_cq = device->cq;
        init.cap.max_send_wr = device->send_wrs;
        init.cap.max_send_sge = device->max_sge;
    }
    return gdrc_qp_create(device->dev.ctx, &init, out, qpn);
}

/*
 * DC: from RESET to RTS, a target to RTR. It names no peer. A NIC numbers a target only then, so it
 * is described once more.
 */
static int dc_start(struct gda_device *device, gdrc_qp qp, struct gdrc_endpoint *end)
{
    memset(end, 0, sizeof *end);
    end->struct_size = sizeof *end;
    int err = gdrc_endpoint_local(device->dev.ctx, qp, NULL, end);
    err = err ? err : gdrc_qp_connect(device->dev.ctx, qp, end, NULL, NULL);
    return err ? err : gdrc_endpoint_local(device->dev.ctx, qp, NULL, end);
}

/* To RESET: requests under way end without completion and access no memory any more. */
static int lane_reset(struct gda_device *device, struct lane *lane)
{
    struct gdrc_qp_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.struct_size = sizeof attr;
    attr.qp_state = GDRC_QPS_RESET;
    int err = gdrc_qp_modify(device->dev.ctx, lane->qp, &attr, GDRC_QP_STATE);
    if (err) {
        gx_explain_call(&device->dev, err, "resetting a queue pair");
        return err;
    }
    lane->epoch++;
    lane->failed = false;
    lane->in_flight = lane->first = lane->count = 0;
    return 0;
}

/* DC: takes an initiator to RTS. */
static int lane_start(struct gda_device *device, struct lane *lane)
{
    struct gdrc_endpoint end;
    int err = dc_start(device, lane->qp, &end);
    if (err)
        gx_explain_call(&device->dev, err, "starting a DC initiator");
    return err;
}

/* DC: makes an initiator ready again after a failure, or without the task that it has. */
static int lane_renew(struct gda_device *device, struct lane *lane)
{
    int err = lane_reset(device, lane);
    err = err ? err : lane_start(device, lane);
    lane->failed = err != 0;
    return err;
}

static int lanes_open(struct gda_device *device)
{
    for (unsigned i = 0; i < device->initiators; i++) {
        struct lane *lane = &device->lanes[i];
        if (lane->qpn)
            continue;
        int err = dc_create(device, GDRC_QPT_DCI, 0, &lane->qp, &lane->qpn);
        if (err) {
            gx_explain_call(&device->dev, err, "creating a DC initiator");
            return err;
        }
        err = lane_start(device, lane);
        lane->failed = err != 0;
        if (err)
            return err;
    }
    return 0;
}

static int target_open(struct gda_device *device)
{
    /* Nothing is posted to it: peers read and write, they do not send. */
    struct gdrc_srq_attr attr = { .struct_size = sizeof attr, .max_wr = 1, .max_sge = 1 };
    gdrc_context *ctx = device->dev.ctx;
    struct gda_description own;
    if (device->own.end.qpn)
        return 0;
    memset(&own, 0, sizeof own);
    if (getrandom(&own.dc_key, sizeof own.dc_key, 0) != sizeof own.dc_key)
        return -EIO;
    int err = gdrc_srq_create(ctx, device->dev.pd, &attr, &device->srq);
    if (err) {
        gx_explain_call(&device->dev, err, "creating an SRQ");
        return err;
    }
    err = dc_create(device, GDRC_QPT_DCT, own.dc_key, &device->target, NULL);
    if (!err && (err = dc_start(device, device->target, &own.end)) != 0)
        gdrc_qp_destroy(ctx, device->target);
    if (err) {
        gx_explain_call(&device->dev, err, "creating a DC target");
        gdrc_srq_destroy(ctx, device->srq);
        return err;
    }
    device->own = own;
    return 0;
}

static int lane_destroy(struct gda_device *device, struct lane *lane)
{
    int err = lane->qpn ? gdrc_qp_destroy(device->dev.ctx, lane->qp) : 0;
    if (err)
        gx_explain_call(&device->dev, err, "destroying a queue pair");
    return err;
}

/* ---- devices and buffers --------------------------------------------------------------------- */

/* Tries it, at the start rather than when the first peer comes. */
static int find_dc(struct gda_device *device)
{
    gdrc_qp qp;
    if (device->transport == GDA_RC)
        return 0;
    char why[256];
    int err = dc_create(device, GDRC_QPT_DCI, 0, &qp, NULL);
    if (err == -EOPNOTSUPP || err == -EINVAL) {
        gdrc_error_detail(why, sizeof why);
        gx_error("Start both sides with --transport rc.", "device %s has no DC: %s",
                 device->dev.name, why);
    } else if (err)
        gx_explain_call(&device->dev, err, "creating a DC initiator");
    return err ? err : gdrc_qp_destroy(device->dev.ctx, qp);
}

struct gda_device *gda_open(const char *address, enum gda_transport transport, unsigned initiators)
{
    struct gda_device *device = calloc(1, sizeof *device);
    struct gdrc_config config;
    if (initiators < 1 || initiators > GDA_INITIATORS_MAX) {
        free(device);
        gx_error("Take 1 to 64.", "%u DC initiators", initiators);
        return NULL;
    }
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.ring_bytes = RING_BYTES;
    if (!device || gx_dev_open(&device->dev, address, 0, &config)) {
        free(device);
        return NULL;
    }
    device->transport = transport;
    device->initiators = initiators;
    device->max_sge = device->dev.attr.max_sge ? device->dev.attr.max_sge : 1;
    if (device->max_sge > GDA_PIECES_MAX)
        device->max_sge = GDA_PIECES_MAX;
    device->send_wrs = (GDA_PIECES_MAX + device->max_sge - 1) / device->max_sge;
    int err = gdrc_cq_create(device->dev.ctx, CQ_ENTRIES, &device->cq, NULL);
    if (err)
        gx_explain_call(&device->dev, err, "creating a CQ");
    else if (find_dc(device))
        gdrc_cq_destroy(device->dev.ctx, device->cq);
    else
        return device;
    gx_dev_close(&device->dev);
    free(device);
    return NULL;
}

void gda_close(struct gda_device *device)
{
    if (!device)
        return;
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++)
        gda_peer_destroy(device->peers[i]);
    for (unsigned i = 0; i < device->initiators; i++)
        lane_destroy(device, &device->lanes[i]);
    if (device->own.end.qpn) {
        gdrc_qp_destroy(device->dev.ctx, device->target);
        gdrc_srq_destroy(device->dev.ctx, device->srq);
    }
    gdrc_cq_destroy(device->dev.ctx, device->cq);
    gx_dev_close(&device->dev);
    free(device);
}

int gda_reset(struct gda_device *device)
{
    int count = 0;
    for (unsigned i = 0; i < GDA_PEERS_MAX && device->transport == GDA_RC; i++) {
        struct gda_peer *peer = device->peers[i];
        struct gdrc_qp_attr attr;
        if (!peer)
            continue;
        memset(&attr, 0, sizeof attr);
        attr.struct_size = sizeof attr;
        int err = gdrc_qp_query(device->dev.ctx, peer->lane.qp, &attr, NULL);
        if (!peer->lane.failed && !err && attr.qp_state != GDRC_QPS_ERR)
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

/* ---- peers ----------------------------------------------------------------------------------- */

struct gda_peer *gda_peer_create(struct gda_device *device)
{
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++) {
        if (device->peers[i])
            continue;
        struct gda_peer *peer = calloc(1, sizeof *peer);
        if (!peer || (device->transport == GDA_RC &&
                      gx_qp_create(&device->dev, device->cq, device->send_wrs, 1, device->max_sge,
                                   &peer->lane.qp, &peer->lane.qpn))) {
            free(peer);
            return NULL;
        }
        peer->device = device;
        peer->lane.peer = peer;
        device->peers[i] = peer;
        return peer;
    }
    gx_error("Start a second server on another port.", "this device already has %u peers",
             GDA_PEERS_MAX);
    return NULL;
}

/* DC: ends the peer's tasks and its use of the address handle. */
static int leave_lanes(struct gda_peer *peer)
{
    struct gda_device *device = peer->device;
    int err = 0;
    for (unsigned i = 0; i < device->initiators; i++) {
        struct lane *lane = &device->lanes[i];
        if (lane->count && lane->peer == peer && lane_renew(device, lane))
            err = -EIO;
    }
    for (unsigned i = 0; i < device->count; i++) {
        struct waiting *w = &device->waiting[(device->first + i) % GDA_PEERS_MAX];
        if (w->task.peer == peer)
            w->task.peer = NULL;
    }
    if (peer->address && --peer->address->users == 0)
        gdrc_ah_destroy(device->dev.ctx, peer->address->ah);
    peer->address = NULL;
    return err;
}

void gda_peer_destroy(struct gda_peer *peer)
{
    if (!peer)
        return;
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++)
        if (peer->device->peers[i] == peer)
            peer->device->peers[i] = NULL;
    leave_lanes(peer);
    lane_destroy(peer->device, &peer->lane);
    free(peer);
}

int gda_peer_reset(struct gda_peer *peer)
{
    int err = peer->device->transport == GDA_DC ? leave_lanes(peer)
                                                : lane_reset(peer->device, &peer->lane);
    if (err)
        return err;
    peer->described = false;
    memset(&peer->remote, 0, sizeof peer->remote);
    return 0;
}

/* What a description says of this end. */
static int describe_end(struct gda_peer *peer, bool offers)
{
    struct gda_device *device = peer->device;
    struct gdrc_endpoint *e = &peer->local.end;
    if (device->transport == GDA_RC && peer->described)
        /* Once per connection: it draws the first PSN, which both sides must use. */
        return 0;
    memset(&peer->local, 0, sizeof peer->local);
    e->struct_size = sizeof *e;
    if (device->transport == GDA_RC) {
        int err = gdrc_endpoint_local(device->dev.ctx, peer->lane.qp, NULL, e);
        if (err)
            gx_explain_call(&device->dev, err, "describing the endpoint");
        return err;
    }
    if (offers) {
        int err = target_open(device);
        peer->local = device->own;
        return err;
    }
    /* No target: this end only posts. */
    e->qp_type = GDRC_QPT_DCT;
    e->mtu = device->dev.attr.active_mtu;
    e->udp_port = device->dev.attr.udp_port;
    memcpy(e->gid, device->dev.attr.gid, sizeof e->gid);
    return 0;
}

int gda_describe(struct gda_peer *peer, const struct gda_buffer *buffer, char *out, size_t size)
{
    int err = describe_end(peer, buffer != NULL);
    if (err)
        return err;
    peer->described = true;
    struct gda_description description = peer->local;
    description.end.addr = buffer ? buffer->attr.iova : 0;
    description.end.length = buffer ? buffer->attr.length : 0;
    description.end.rkey = buffer ? buffer->attr.rkey : 0;
    return gda_format(&description, out, size);
}

/* DC: the address handle of a peer: that of another peer at the same address, or a new one. */
static int take_address(struct gda_device *device, const struct gdrc_endpoint *remote,
                        struct address **out)
{
    struct address *place = NULL;
    struct gdrc_ah_attr to;
    memset(&to, 0, sizeof to);
    memcpy(to.dgid, remote->gid, sizeof to.dgid);
    to.udp_port = (uint16_t)remote->udp_port;
    to.scope_id = device->dev.attr.scope_id;
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++) {
        struct address *a = &device->addresses[i];
        if (a->users && !memcmp(&a->to, &to, sizeof to)) {
            a->users++;
            *out = a;
            return 0;
        }
        if (!a->users)
            place = a;
    }
    /* Each peer has at most one, so there is a place. */
    int err = place ? gdrc_ah_create(device->dev.ctx, device->dev.pd, &to, &place->ah) : -ENOMEM;
    if (err) {
        gx_explain_call(&device->dev, err, "making an address handle");
        return err;
    }
    place->to = to;
    place->users = 1;
    *out = place;
    return 0;
}

static int connect_rc(struct gda_peer *peer, struct gdrc_endpoint *remote)
{
    if (!peer->described)
        return -EINVAL;
    /* A zone is valid on its own host only: a link-local peer is on the link of our own address. */
    remote->version = peer->local.end.version;
    remote->scope_id = peer->local.end.scope_id;
    int err = gdrc_qp_connect(peer->device->dev.ctx, peer->lane.qp, &peer->local.end, remote, NULL);
    if (err)
        gx_explain_call(&peer->device->dev, err, "connecting the queue pair");
    return err;
}

/* Nothing is sent: the first task associates an initiator with the target. */
static int connect_dc(struct gda_peer *peer, const struct gdrc_endpoint *remote)
{
    int err = leave_lanes(peer);
    if (err || !remote->length)
        return err;
    err = lanes_open(peer->device);
    return err ? err : take_address(peer->device, remote, &peer->address);
}

int gda_peer_connect(struct gda_peer *peer, const char *description)
{
    struct gda_description remote;
    int err = gda_parse(description, &remote);
    if (err) {
        gx_error("Build both sides from one source.",
                 "the other side's description is not understood: %s", gdrc_strerror(err));
        return err;
    }
    enum gda_transport own = peer->device->transport;
    enum gda_transport other = remote.end.qp_type == GDRC_QPT_DCT ? GDA_DC : GDA_RC;
    if (own != other) {
        gx_error("Start both sides with the same --transport.",
                 "the other side uses %s, this side %s", gda_transport_name(other),
                 gda_transport_name(own));
        return -EPROTOTYPE;
    }
    err = own == GDA_DC ? connect_dc(peer, &remote.end) : connect_rc(peer, &remote.end);
    if (!err)
        peer->remote = remote;
    return err;
}

uint64_t gda_peer_remote_length(const struct gda_peer *peer) { return peer->remote.end.length; }
void gda_peer_spoil(struct gda_peer *peer) { peer->spoiled = true; }

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Posts the requests of a checked task to a lane that has room for them. */
static int post_task(struct gda_device *device, struct lane *lane, const struct gda_task *task)
{
    struct gda_peer *peer = task->peer;
    const struct gdrc_mr_attr *local = &task->local->attr;
    unsigned requests = (task->count + device->max_sge - 1) / device->max_sge;
    uint64_t remote = peer->remote.end.addr + task->remote_offset;
    lane->peer = peer;
    for (unsigned done = 0, request = 0; request < requests; request++) {
        gdrc_sge pieces[GDA_PIECES_MAX];
        gdrc_send_wr wr;
        unsigned count =
            task->count - done < device->max_sge ? task->count - done : device->max_sge;
        uint64_t bytes = 0;
        for (unsigned i = 0; i < count; i++) {
            const struct gda_piece *p = &task->pieces[done + i];
            pieces[i] = (gdrc_sge){
                .addr = local->iova + p->offset,
                .length = (uint32_t)p->length,
                .lkey = local->lkey,
            };
            bytes += p->length;
        }
        memset(&wr, 0, sizeof wr);
        wr.wr_id = (uint64_t)lane->epoch << 32 | lane->qpn;
        wr.sg_list = pieces;
        wr.num_sge = (int)count;
        wr.opcode = task->read ? GDRC_WR_RDMA_READ : GDRC_WR_RDMA_WRITE;
        /* Requests of a queue pair complete in order, so the last one completes the task. */
        wr.send_flags = request + 1 == requests ? GDRC_SEND_SIGNALED : 0;
        wr.wr.rdma.remote_addr = remote;
        wr.wr.rdma.rkey = peer->spoiled ? ~peer->remote.end.rkey : peer->remote.end.rkey;
        peer->spoiled = false;
        if (device->transport == GDA_DC) {
            wr.ext.dc.ah = peer->address->ah;
            wr.ext.dc.dc_key = peer->remote.dc_key;
            wr.ext.dc.dctn = peer->remote.end.qpn;
        }
        int err = gdrc_post_send(device->dev.ctx, lane->qp, &wr, NULL);
        if (err) {
            gx_explain_call(&device->dev, err, "posting a task");
            if (device->transport == GDA_RC || lane_renew(device, lane))
                lane->failed = true;
            return err;
        }
        lane->in_flight++;
        remote += bytes;
        done += count;
    }
    unsigned slot = (lane->first + lane->count++) % SEND_WRS;
    lane->tasks[slot].id = task->id;
    lane->tasks[slot].requests = requests;
    return 0;
}

/* DC: a lane without a task, or NULL. `busy`: whether one that is in use will be free. */
static struct lane *idle_lane(struct gda_device *device, bool *busy)
{
    *busy = false;
    for (unsigned i = 0; i < device->initiators; i++) {
        struct lane *lane = &device->lanes[i];
        if (lane->count)
            *busy = true;
        else if (lane->qpn && (!lane->failed || lane_renew(device, lane) == 0))
            return lane;
    }
    return NULL;
}

/* DC: starts tasks that wait. Returns the number of events of those that could not start. */
static int start_waiting(struct gda_device *device, struct gda_event *events, int count)
{
    int taken = 0;
    while (device->count && taken < count) {
        struct gda_task *task = &device->waiting[device->first].task;
        if (task->peer) {
            bool busy;
            struct lane *lane = idle_lane(device, &busy);
            if (!lane && busy)
                break;
            int err = lane ? post_task(device, lane, task) : -EIO;
            if (err)
                events[taken++] = (struct gda_event){
                    .id = task->id,
                    .peer = task->peer,
                    .status = err,
                };
        }
        device->first = (device->first + 1) % GDA_PEERS_MAX;
        device->count--;
    }
    return taken;
}

/* DC: starts a task, or lets it wait behind the others. */
static int submit_dc(struct gda_device *device, const struct gda_task *task)
{
    bool busy;
    struct lane *lane = device->count ? NULL : idle_lane(device, &busy);
    if (lane)
        return post_task(device, lane, task);
    if (device->count == GDA_PEERS_MAX)
        return -EAGAIN;
    struct waiting *w = &device->waiting[(device->first + device->count++) % GDA_PEERS_MAX];
    memcpy(w->pieces, task->pieces, task->count * sizeof *w->pieces);
    w->task = *task;
    w->task.pieces = w->pieces;
    return 0;
}

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
    if (task->remote_offset > peer->remote.end.length ||
        total > peer->remote.end.length - task->remote_offset)
        return -ERANGE;
    if (device->transport == GDA_DC)
        return peer->address ? submit_dc(device, task) : -ENOTCONN;
    unsigned requests = (task->count + device->max_sge - 1) / device->max_sge;
    if (requests > device->send_wrs - peer->lane.in_flight)
        return -EAGAIN;
    return post_task(device, &peer->lane, task);
}

static struct lane *find_lane(struct gda_device *device, uint32_t qpn)
{
    for (unsigned i = 0; i < device->initiators && device->transport == GDA_DC; i++)
        if (device->lanes[i].qpn == qpn)
            return &device->lanes[i];
    for (unsigned i = 0; i < GDA_PEERS_MAX; i++)
        if (device->peers[i] && device->peers[i]->lane.qpn == qpn)
            return &device->peers[i]->lane;
    return NULL;
}

/* Handles a completion. Returns whether it was the end of a task. */
static bool on_completion(struct gda_device *device, const gdrc_wc *wc, struct gda_event *event)
{
    struct lane *lane = find_lane(device, wc->qp_num);
    /* A failure flushes all requests; the first of them has reported the task's failure. */
    if (!lane || !lane->count || lane->failed || wc->wr_id >> 32 != lane->epoch)
        return false;
    if (wc->status != GDRC_WC_SUCCESS) {
        gx_explain_wc(&device->dev, lane->qp, wc, "a task");
        lane->failed = true;
    }
    *event = (struct gda_event){
        .id = lane->tasks[lane->first].id,
        .peer = lane->peer,
        .status = lane->failed ? -EIO : 0,
    };
    lane->in_flight -= lane->tasks[lane->first].requests;
    lane->first = (lane->first + 1) % SEND_WRS;
    lane->count--;
    if (lane->failed && device->transport == GDA_DC)
        /* If that fails, it is tried again before the next task. */
        lane_renew(device, lane);
    return true;
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
        for (int i = 0; i < n; i++)
            taken += on_completion(device, &wc[i], &events[taken]);
        if (n < room)
            break;
    }
    return taken + start_waiting(device, events + taken, count - taken);
}

int gda_sleep(struct gda_device *device, struct pollfd *fds, nfds_t count, int timeout_ms)
{
    return gx_sleep(device->dev.ctx, &device->cq, fds, count, timeout_ms);
}
