// SPDX-License-Identifier: MIT OR Apache-2.0
/* One end of a measurement: its device, queue pairs, buffers and connection. */
#include "perf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define UD_GRH 40u
/*
 * With data checks every message has its own slot; without them all share one, as in other tools of
 * this kind.
 */
#define CHECK_BYTES_MAX (256ull << 20)

static uint32_t at_most(uint64_t a, uint64_t b) { return (uint32_t)(a < b ? a : b); }

void plan_config(const struct plan *plan, uint32_t sides, struct gdrc_config *config)
{
    memset(config, 0, sizeof *config);
    config->struct_size = sizeof *config;
    uint32_t lanes = plan->qps * sides, qps = has_targets(plan->qp_type) ? 2 * lanes : lanes;
    config->max_qp = qps > 128 ? qps : 0;
    config->max_ah = lanes > 128 ? lanes : 0;
    config->max_srq = lanes > 16 && has_targets(plan->qp_type) ? lanes : 0;
    config->max_dc_context = lanes > 256 && plan->qp_type == GDRC_QPT_DCI ? lanes : 0;
    config->max_inline = plan->inline_max > 256 ? plan->inline_max : 0;
    /*
     * For each: a request with its inline data, a receive and a completion; twice that, for
     * rounding up.
     */
    uint64_t entry = 256 + plan->inline_max;
    config->ring_bytes =
        (8ull << 20) + 4 * sides * (uint64_t)plan->qps * (plan->tx_depth + plan->rx_depth) * entry;
    if (plan->qp_type == GDRC_QPT_DCI)
        config->ring_bytes += (uint64_t)(lanes > 256 ? lanes : 256) * 8192;
}

bool has_targets(uint32_t qp_type)
{
    return qp_type == GDRC_QPT_XRC_SEND || qp_type == GDRC_QPT_DCI;
}

bool is_reliable(uint32_t qp_type) { return qp_type != GDRC_QPT_UC && qp_type != GDRC_QPT_UD; }

/* What receives: an SRQ of the lane's own, and a target for it. */
static int create_target(struct side *side, struct target *t)
{
    const struct plan *plan = side->plan;
    gdrc_context *ctx = side->dev->ctx;
    struct gdrc_srq_attr attr = {
        .struct_size = sizeof attr,
        .max_wr = plan->rx_depth,
        .max_sge = 1,
    };
    struct gdrc_qp_init init;
    bool dc = plan->qp_type == GDRC_QPT_DCI;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    if (dc && getrandom(&t->key, sizeof t->key, 0) != (ssize_t)sizeof t->key)
        return -EIO;
    int err = dc ? gdrc_srq_create(ctx, side->dev->pd, &attr, &t->srq)
                 : gdrc_srq_create_xrc(ctx, side->dev->pd, side->xrcd, side->cq, &attr, &t->srq);
    if (!err && !dc)
        err = gdrc_srq_number(ctx, t->srq, &t->srqn);
    if (err) {
        gx_explain_call(side->dev, err, "creating an SRQ");
        return err;
    }
    init.qp_type = dc ? GDRC_QPT_DCT : GDRC_QPT_XRC_RECV;
    init.xrcd = side->xrcd;
    if (dc) {
        init.pd = side->dev->pd;
        init.recv_cq = side->cq;
        init.srq = t->srq;
        init.dc_key = t->key;
    }
    err = gdrc_qp_create(ctx, &init, &t->qp, NULL);
    if (err)
        gx_explain_call(side->dev, err, "creating a target");
    return err;
}

/* Describes a queue pair to the peer. */
static int describe(struct side *side, gdrc_qp qp, const gdrc_mr *mr, struct gdrc_endpoint *out)
{
    const struct plan *plan = side->plan;
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    int err = gdrc_endpoint_local(side->dev->ctx, qp, mr, out);
    if (err)
        gx_explain_call(side->dev, err, "describing the endpoint");
    if (plan->mtu && plan->mtu < out->mtu)
        out->mtu = plan->mtu;
    return err;
}

static int create_lane(struct side *side, struct lane *lane)
{
    const struct plan *plan = side->plan;
    struct gdrc_qp_init init;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = plan->qp_type;
    init.pd = side->dev->pd;
    init.send_cq = side->cq;
    init.cap.max_send_wr = plan->tx_depth;
    init.cap.max_send_sge = 1;
    init.cap.max_inline_data = plan->inline_max;
    bool targets = has_targets(plan->qp_type);
    if (!targets) {
        init.recv_cq = side->cq;
        init.cap.max_recv_wr = plan->rx_depth;
        init.cap.max_recv_sge = 1;
    }
    int err = gdrc_qp_create(side->dev->ctx, &init, &lane->qp, NULL);
    if (err) {
        gx_explain_call(side->dev, err, "creating a queue pair");
        return err;
    }
    err = gdrc_qp_fast_get(side->dev->ctx, lane->qp, &lane->fast);
    if (err) {
        gx_explain_call(side->dev, err, "getting its fast handle");
        return err;
    }
    if (targets)
        err = create_target(side, &lane->target);
    if (targets && !err)
        err = describe(side, lane->qp, NULL, &lane->initiator);
    if (!err)
        err = describe(side, targets ? lane->target.qp : lane->qp, &side->mr, &lane->local);
    /* Each lane of the peer gets its own part of the buffer. */
    lane->local.addr = lane->rx_addr;
    return err;
}

int side_open(struct side *side, struct gx_dev *dev, const struct plan *plan, const char *kind)
{
    memset(side, 0, sizeof *side);
    side->dev = dev;
    side->plan = plan;
    side->mem.fd = side->conn_fd = -1;
    side->tx_slots = plan->check ? plan->tx_depth : 1;
    side->rx_slots =
        plan->check ? (plan->tx_depth > plan->rx_depth ? plan->tx_depth : plan->rx_depth) : 1;
    uint64_t stride = (plan->max_size + UD_GRH + 63) & ~63ull,
             slots = (uint64_t)side->tx_slots + side->rx_slots;
    if (plan->check && stride * slots * plan->qps > CHECK_BYTES_MAX && slots > 2) {
        gx_error("Take smaller messages, fewer queue pairs or a smaller depth (-t, -r).",
                 "a data check of this many bytes at once needs over 256 MiB");
        return -ENOMEM;
    }
    side->stride = (size_t)stride;
    struct gdrc_memory memory;
    int err = gx_mem_alloc(&side->mem, kind, (size_t)(stride * slots * plan->qps), false);
    if (err)
        return err;
    gx_mem_describe(&side->mem, &memory);
    if (side->mem.gpu && plan->verb == VERB_WRITE && plan->mode == MODE_LAT) {
        gx_error(
            "Take 'send lat' or 'read lat': there the CPU need not look into the GPU's memory.",
            "WRITE latency polls the last byte of the buffer, which is a GPU's here");
        return -EOPNOTSUPP;
    }
    if (side->mem.gpu && !(side->scratch = malloc((size_t)stride)))
        return gx_error("Take smaller messages.", "out of memory"), -ENOMEM;
    uint32_t access = GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ |
                      GDRC_ACCESS_REMOTE_ATOMIC;
    if (plan->verb == VERB_FLUSH)
        access |= GDRC_ACCESS_FLUSH_GLOBAL;
    err = gx_mem_register(dev, &memory, access, &side->mr, &side->mr_attr);
    if (err)
        return err;
    if (side->mem.gpu)
        gx_note("the buffer is in %s memory: %s", side->mem.kind,
                gdrc_mr_route_str(side->mr_attr.route));
    uint64_t cqe = (uint64_t)plan->qps * (plan->tx_depth / plan->cq_mod + plan->rx_depth + 1);
    err = gdrc_cq_create(dev->ctx, at_most(cqe, dev->attr.max_cqe), &side->cq, NULL);
    if (!err)
        err = gdrc_cq_fast_get(dev->ctx, side->cq, &side->cq_fast);
    if (err) {
        gx_explain_call(dev, err, "creating a completion queue");
        return err;
    }
    if (plan->qp_type == GDRC_QPT_XRC_SEND && (err = gdrc_xrcd_alloc(dev->ctx, &side->xrcd))) {
        gx_explain_call(dev, err, "allocating an XRC domain");
        return err;
    }
    side->lanes = calloc(plan->qps, sizeof *side->lanes);
    if (!side->lanes)
        return gx_error("Take fewer queue pairs.", "out of memory"), -ENOMEM;
    for (uint32_t i = 0; i < plan->qps && !err; i++) {
        struct lane *lane = &side->lanes[i];
        size_t offset = (size_t)(i * slots * stride);
        lane->tx = (uint8_t *)side->mem.addr + offset;
        lane->rx = lane->tx + side->tx_slots * stride;
        lane->tx_addr = side->mr_attr.iova + offset;
        lane->rx_addr = lane->tx_addr + side->tx_slots * stride;
        err = create_lane(side, lane);
    }
    return err;
}

int side_post_recv(struct side *side, uint32_t index, uint64_t number)
{
    struct lane *lane = &side->lanes[index];
    uint64_t slot = number % side->rx_slots;
    /* A UD receive begins with 40 bytes of GRH; the peer's message follows. */
    gdrc_sge sge = {
        .addr = lane->rx_addr + slot * side->stride,
        .length = (uint32_t)side->stride,
        .lkey = side->mr_attr.lkey,
    };
    gdrc_recv_wr wr = {
        .wr_id = 1ull << 63 | (uint64_t)index << 48 | slot,
        .sg_list = &sge,
        .num_sge = 1,
    };
    const gdrc_recv_wr *bad;
    if (has_targets(side->plan->qp_type))
        return gdrc_post_srq_recv(side->dev->ctx, lane->target.srq, &wr, &bad);
    return gdrc_qp_fast_post_recv(lane->fast, &wr, &bad);
}

static int connect_lane(struct side *side, uint32_t index)
{
    const struct plan *plan = side->plan;
    struct lane *lane = &side->lanes[index];
    bool dc = plan->qp_type == GDRC_QPT_DCI, named = dc || plan->qp_type == GDRC_QPT_UD;
    struct gdrc_qp_connect_opts opts;
    memset(&opts, 0, sizeof opts);
    opts.struct_size = sizeof opts;
    /* No timeout and no retries are valid choices too, so every attribute is set here. */
    opts.flags = GDRC_QP_CONNECT_EXACT;
    opts.access = GDRC_ACCESS_REMOTE_WRITE;
    if (is_reliable(plan->qp_type))
        opts.access |= GDRC_ACCESS_REMOTE_READ | GDRC_ACCESS_REMOTE_ATOMIC;
    if (plan->verb == VERB_FLUSH)
        opts.access |= GDRC_ACCESS_FLUSH_GLOBAL;
    opts.timeout = plan->timeout;
    opts.retry_cnt = plan->retries;
    opts.rnr_retry = 7;
    opts.min_rnr_timer = 12;
    opts.max_rd_atomic = plan->outs ? plan->outs : lane->remote.max_rd_atomic;
    opts.max_dest_rd_atomic = at_most(lane->local.max_rd_atomic, 255);
    lane->peer_rx_addr = lane->remote.addr;
    /* Of DC no queue pair has a peer: each request names one. */
    bool targets = has_targets(plan->qp_type);
    int err = gdrc_qp_connect(side->dev->ctx, lane->qp, targets ? &lane->initiator : &lane->local,
                              dc ? NULL : &lane->remote, &opts);
    if (!err && targets)
        err = gdrc_qp_connect(side->dev->ctx, lane->target.qp, &lane->local,
                              dc ? NULL : &lane->remote_initiator, &opts);
    if (!err && named) {
        struct gdrc_ah_attr ah = {
            .scope_id = side->dev->attr.scope_id,
            .udp_port = (uint16_t)lane->remote.udp_port,
        };
        memcpy(ah.dgid, lane->remote.gid, sizeof ah.dgid);
        err = gdrc_ah_create(side->dev->ctx, side->dev->pd, &ah, &lane->ah);
    }
    for (uint32_t i = 0; i < plan->rx_depth && !err && plan->verb == VERB_SEND; i++)
        err = side_post_recv(side, index, i);
    if (err)
        gx_explain_call(side->dev, err, "connecting a queue pair");
    return err;
}

/* An endpoint; XRC and DC: that of the target, that of what sends, the SRQ's number, the key. */
#define WIRE GDRC_ENDPOINT_WIRE_BYTES
#define WIRE_MAX (2 * WIRE + 12)

static int pack(const struct lane *lane, bool targets, uint8_t *wire)
{
    int err = gdrc_endpoint_pack(&lane->local, wire);
    if (!targets || err)
        return err;
    gx_put32(wire + 2 * WIRE, lane->target.srqn);
    gx_put64(wire + 2 * WIRE + 4, lane->target.key);
    return gdrc_endpoint_pack(&lane->initiator, wire + WIRE);
}

static int unpack(struct lane *lane, bool targets, const uint8_t *wire)
{
    memset(&lane->remote, 0, sizeof lane->remote);
    lane->remote.struct_size = sizeof lane->remote;
    int err = gdrc_endpoint_unpack(wire, &lane->remote);
    if (!targets || err)
        return err;
    lane->remote_srqn = gx_get32(wire + 2 * WIRE);
    lane->remote_key = gx_get64(wire + 2 * WIRE + 4);
    memset(&lane->remote_initiator, 0, sizeof lane->remote_initiator);
    lane->remote_initiator.struct_size = sizeof lane->remote_initiator;
    return gdrc_endpoint_unpack(wire + WIRE, &lane->remote_initiator);
}

int side_connect(struct side *side, struct gx_conn *conn)
{
    uint8_t wire[WIRE_MAX];
    bool targets = has_targets(side->plan->qp_type);
    size_t length = targets ? WIRE_MAX : WIRE;
    int err = 0;
    side->conn_fd = conn->fd;
    for (uint32_t i = 0; i < side->plan->qps && !err; i++) {
        struct lane *lane = &side->lanes[i];
        if (!side->plan->mtu)
            gx_endpoint_fit(side->dev, conn, &lane->local);
        if (targets && !side->plan->mtu)
            gx_endpoint_fit(side->dev, conn, &lane->initiator);
        err = pack(lane, targets, wire);
        if (!err)
            err = gx_conn_send(conn, GX_MSG_ENDPOINT, wire, length, -1, "an endpoint");
        if (err)
            return err;
        int n = gx_conn_recv(conn, GX_MSG_ENDPOINT, wire, sizeof wire, GX_TIMEOUT_MS, "endpoint");
        if (n < 0)
            return n;
        err = n == (int)length ? unpack(lane, targets, wire) : -EPROTO;
        if (err)
            gx_error("Build both sides from one source.",
                     "%s sent an endpoint that this version does not read: %s", conn->peer,
                     gdrc_strerror(err));
        else
            err = connect_lane(side, i);
    }
    return err;
}

static void introduce(struct lane *to, const struct lane *peer)
{
    to->remote = peer->local;
    to->remote_initiator = peer->initiator;
    to->remote_srqn = peer->target.srqn;
    to->remote_key = peer->target.key;
}

int side_connect_pair(struct side *a, struct side *b)
{
    int err = 0;
    for (uint32_t i = 0; i < a->plan->qps && !err; i++) {
        introduce(&a->lanes[i], &b->lanes[i]);
        introduce(&b->lanes[i], &a->lanes[i]);
        err = connect_lane(a, i);
        if (!err)
            err = connect_lane(b, i);
    }
    return err;
}

uint64_t side_largest(const struct side *side)
{
    const struct lane *lane = &side->lanes[0];
    if (side->plan->qp_type != GDRC_QPT_UD)
        return side->plan->max_size;
    return 128u << (lane->local.mtu < lane->remote.mtu ? lane->local.mtu : lane->remote.mtu);
}

static void destroy_lane(gdrc_context *ctx, struct lane *lane)
{
    gdrc_qp_fast_put(lane->fast);
    if (lane->qp.handle)
        gdrc_qp_destroy(ctx, lane->qp);
    if (lane->target.qp.handle)
        gdrc_qp_destroy(ctx, lane->target.qp);
    if (lane->target.srq.handle)
        gdrc_srq_destroy(ctx, lane->target.srq);
    if (lane->ah.handle)
        gdrc_ah_destroy(ctx, lane->ah);
}

void side_close(struct side *side)
{
    gdrc_context *ctx = side->dev ? side->dev->ctx : NULL;
    for (uint32_t i = 0; side->lanes && i < side->plan->qps; i++)
        destroy_lane(ctx, &side->lanes[i]);
    if (side->xrcd.handle)
        gdrc_xrcd_dealloc(ctx, side->xrcd);
    gdrc_cq_fast_put(side->cq_fast);
    if (side->cq.handle)
        gdrc_cq_destroy(ctx, side->cq);
    if (side->mr.handle)
        gdrc_mr_dereg(ctx, side->mr);
    gx_mem_free(&side->mem);
    free(side->lanes);
    free(side->samples);
    free(side->scratch);
    memset(side, 0, sizeof *side);
}
