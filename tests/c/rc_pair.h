/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Two connected RC queue pairs on one device, for the tests' libibverbs programs.
 */
#ifndef GDRC_TEST_RC_PAIR_H
#define GDRC_TEST_RC_PAIR_H

#include <string.h>

#include "device.h"
#include "patience.h"

#define REMOTE \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
     IBV_ACCESS_REMOTE_ATOMIC)

/* Takes a queue pair to RTS, towards one of a GID; `timeout`: its ACK timeout code. */
static inline void connect_qp_to(struct ibv_qp *qp, const union ibv_gid *gid, uint32_t peer,
                                 int timeout)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = REMOTE};
    CHECK(ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 64}}};
    CHECK(ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ==
          0);
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                             .timeout = timeout,
                             .retry_cnt = 7,
                             .rnr_retry = 7,
                             .max_rd_atomic = 4};
    CHECK(ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* The same, towards another of this device. */
static inline void connect_qp(struct ibv_qp *qp, uint32_t peer, int timeout)
{
    union ibv_gid gid;
    CHECK(ibv_query_gid(qp->context, 1, 0, &gid) == 0);
    connect_qp_to(qp, &gid, peer, timeout);
}

static inline void connect_both(struct ibv_qp *a, struct ibv_qp *b)
{
    connect_qp(a, b->qp_num, 14);
    connect_qp(b, a->qp_num, 14);
}

/* The next completion of a CQ. */
static inline struct ibv_wc next_wc(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(n == 1);
    return wc;
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
