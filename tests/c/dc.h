/*
 * Queue pairs of DC for the test programs, by mlx5dv as NVIDIA's library has it.
 */
#ifndef DC_H
#define DC_H

#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "device.h"

/* The ACK timeout, 1.1 s, is for a machine with other work. */
enum { DEPTH = 64, PIECES = 4, INLINE = 128, GID_INDEX = 1, TIMEOUT = 18 };

/* What queue pairs are made of. */
struct base {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
};

static inline struct base base_of(struct ibv_context *ctx)
{
    struct base b = {ctx, ibv_alloc_pd(ctx), ibv_create_cq(ctx, 4 * DEPTH, NULL, NULL, 0), NULL};
    struct ibv_srq_init_attr init = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
    CHECK(b.pd && b.cq && (b.srq = ibv_create_srq(b.pd, &init)));
    return b;
}

static inline struct ibv_qp *new_dct(struct base *b, uint64_t key)
{
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_DRIVER,
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = b->pd,
        .send_cq = b->cq,
        .recv_cq = b->cq,
        .srq = b->srq,
        /* Ignored, as NVIDIA's library does. */
        .cap = {.max_inline_data = 1 << 20},
    };
    struct mlx5dv_qp_init_attr dc = {
        .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
        .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = key},
    };
    return mlx5dv_create_qp(b->ctx, &init, &dc);
}

static inline struct ibv_qp *new_dci(struct base *b)
{
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_DRIVER,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = b->pd,
        .send_cq = b->cq,
        .recv_cq = b->cq,
        /* Ignored. */
        .srq = b->srq,
        .cap = {.max_send_wr = DEPTH, .max_send_sge = PIECES, .max_inline_data = INLINE},
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    };
    struct mlx5dv_qp_init_attr dc = {
        .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC | MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
        .create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
        .dc_init_attr = {.dc_type = MLX5DV_DCTYPE_DCI},
    };
    return mlx5dv_create_qp(b->ctx, &init, &dc);
}

static inline int to_init(struct ibv_qp *qp, int target)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    return ibv_modify_qp(qp, &attr, target ? mask | IBV_QP_ACCESS_FLAGS : mask);
}

/* The address vector has no destination: the GID stays zero. */
static inline int to_rtr(struct ibv_qp *qp, int target)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.hop_limit = 1, .sgid_index = GID_INDEX}},
    };
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU;
    return ibv_modify_qp(qp, &attr, target ? mask | IBV_QP_MIN_RNR_TIMER : mask);
}

static inline int to_rts(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .timeout = TIMEOUT,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = 8,
    };
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static inline void bring_up(struct ibv_qp *qp, int target)
{
    CHECK(to_init(qp, target) == 0 && to_rtr(qp, target) == 0);
    CHECK(target || to_rts(qp) == 0);
}

static inline struct ibv_ah *address(struct ibv_pd *pd, union ibv_gid to)
{
    struct ibv_ah_attr attr = {
        .is_global = 1,
        .port_num = 1,
        .grh = {.dgid = to, .sgid_index = GID_INDEX, .hop_limit = 64},
    };
    return ibv_create_ah(pd, &attr);
}

static inline void take(int fd, void *to, size_t n)
{
    CHECK(recv(fd, to, n, MSG_WAITALL) == (ssize_t)n);
}

static inline void give(int fd, const void *from, size_t n)
{
    CHECK(send(fd, from, n, MSG_NOSIGNAL) == (ssize_t)n);
}

#endif
