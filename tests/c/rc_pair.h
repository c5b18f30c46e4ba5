/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Queue pairs and their connections, for the tests' libibverbs programs.
 */
#ifndef GDRC_TEST_RC_PAIR_H
#define GDRC_TEST_RC_PAIR_H

#include <string.h>

#include "device.h"
#include "patience.h"

#define REMOTE \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
     IBV_ACCESS_REMOTE_ATOMIC)

/* A queue pair with queues of so many requests, of two pieces. */
static inline struct ibv_qp *new_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type,
                                    int requests)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = {.max_send_wr = requests,
                .max_recv_wr = requests,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = 64}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static inline enum ibv_qp_state state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
    return attr.qp_state;
}

/* What a queue pair of its type must be given to reach a state. */
static inline int attributes_of(const struct ibv_qp *qp, enum ibv_qp_state state)
{
    int rc = qp->qp_type == IBV_QPT_RC, ud = qp->qp_type == IBV_QPT_UD;
    int path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    int answers = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if (state == IBV_QPS_INIT)
        return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
               (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    if (state == IBV_QPS_RTR)
        return IBV_QP_STATE | (ud ? 0 : path) | (rc ? answers : 0);
    return IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? retries : 0);
}

/* Takes a queue pair to a state by those of the attributes that belong to it. */
static inline void take_to(struct ibv_qp *qp, enum ibv_qp_state state, struct ibv_qp_attr a)
{
    a.qp_state = state;
    CHECK(ibv_modify_qp(qp, &a, attributes_of(qp, state)) == 0);
}

/* Takes it from RESET to RTS. */
static inline void take_to_rts(struct ibv_qp *qp, struct ibv_qp_attr a)
{
    take_to(qp, IBV_QPS_INIT, a);
    take_to(qp, IBV_QPS_RTR, a);
    take_to(qp, IBV_QPS_RTS, a);
}

/* The attributes of a queue pair towards one of this number and of GID 0 of the same device. */
static inline struct ibv_qp_attr towards(struct ibv_context *ctx, uint32_t peer)
{
    struct ibv_qp_attr a = {.port_num = 1,
                            .qp_access_flags = REMOTE,
                            .path_mtu = IBV_MTU_1024,
                            .dest_qp_num = peer,
                            .max_dest_rd_atomic = 4,
                            .min_rnr_timer = 1,
                            .timeout = 14,
                            .retry_cnt = 7,
                            .rnr_retry = 7,
                            .max_rd_atomic = 4,
                            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}}};
    CHECK(ibv_query_gid(ctx, 1, 0, &a.ah_attr.grh.dgid) == 0);
    return a;
}

/* Takes a queue pair to RTS, towards one of a GID; `timeout`: its ACK timeout code. */
static inline void connect_qp_to(struct ibv_qp *qp, const union ibv_gid *gid, uint32_t peer,
                                 int timeout)
{
    struct ibv_qp_attr a = towards(qp->context, peer);
    a.ah_attr.grh.dgid = *gid;
    a.timeout = timeout;
    take_to_rts(qp, a);
}

/* The same, towards another of this device. */
static inline void connect_qp(struct ibv_qp *qp, uint32_t peer, int timeout)
{
    struct ibv_qp_attr a = towards(qp->context, peer);
    a.timeout = timeout;
    take_to_rts(qp, a);
}

static inline void connect_both(struct ibv_qp *a, struct ibv_qp *b)
{
    connect_qp(a, b->qp_num, 14);
    connect_qp(b, a->qp_num, 14);
}

/* Posts one request and returns its completion, the next one of its CQ. */
static inline struct ibv_wc done(struct ibv_qp *qp, struct ibv_send_wr wr)
{
    struct ibv_send_wr *bad;
    wr.send_flags |= IBV_SEND_SIGNALED;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    return next_wc(qp->send_cq);
}

/* A WRITE of `len` bytes from a region to where a key leads. */
static inline struct ibv_wc write_to(struct ibv_qp *qp, struct ibv_mr *from, uint32_t len,
                                     uint64_t addr, uint32_t rkey)
{
    struct ibv_sge sge = {(uintptr_t)from->addr, len, from->lkey};
    return done(qp, (struct ibv_send_wr){.sg_list = &sge,
                                         .num_sge = 1,
                                         .opcode = IBV_WR_RDMA_WRITE,
                                         .wr.rdma = {.remote_addr = addr, .rkey = rkey}});
}

#endif
