/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A program with TLS bytes of thread-local variables, which the C library takes from each thread's
 * stack: opens the device, also on a thread whose own part of the stack is 64 KiB, and sleeps for
 * the completions of both.
 */
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "device.h"

#ifndef TLS
#define TLS (1 << 20)
#endif

static __thread volatile char scratch[TLS];

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static void join(struct ibv_context *ctx, struct ibv_qp *qp, struct ibv_qp *to)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = to->qp_num,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh.hop_limit = 1},
    };
    CHECK(!ibv_query_gid(ctx, 1, 0, &attr.ah_attr.grh.dgid));
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void *traffic(void *unused)
{
    (void)unused;
    scratch[TLS - 1] = 1;
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
    CHECK(pd && channel);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, channel, 0);
    CHECK(cq);
    struct ibv_qp *a = make_qp(pd, cq), *b = make_qp(pd, cq);
    join(ctx, a, b);
    join(ctx, b, a);
    char buf[128];
    struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    for (int round = 0; round < 100; round++) {
        struct ibv_sge to = {.addr = (uintptr_t)buf, .length = 64, .lkey = mr->lkey};
        struct ibv_sge from = {.addr = (uintptr_t)buf + 64, .length = 64, .lkey = mr->lkey};
        struct ibv_recv_wr recv = {.sg_list = &to, .num_sge = 1}, *bad_recv;
        struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
        memset(buf + 64, round, 64);
        CHECK(!ibv_req_notify_cq(cq, 0));
        CHECK(!ibv_post_recv(b, &recv, &bad_recv));
        CHECK(!ibv_post_send(a, &send, &bad));
        for (int n = 0; n < 2;) {
            struct ibv_wc wc;
            if (ibv_poll_cq(cq, 1, &wc) == 1) {
                CHECK(wc.status == IBV_WC_SUCCESS);
                n++;
                continue;
            }
            struct ibv_cq *of;
            void *context;
            CHECK(!ibv_get_cq_event(channel, &of, &context));
            ibv_ack_cq_events(of, 1);
            CHECK(!ibv_req_notify_cq(cq, 0));
        }
        CHECK(buf[0] == (char)round);
    }
    ibv_dereg_mr(mr);
    ibv_destroy_qp(a);
    ibv_destroy_qp(b);
    ibv_destroy_cq(cq);
    ibv_destroy_comp_channel(channel);
    ibv_dealloc_pd(pd);
    CHECK(!ibv_close_device(ctx));
    return NULL;
}

int main(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    traffic(NULL);
    pthread_attr_init(&attr);
    CHECK(!pthread_attr_setstacksize(&attr, TLS + (64 << 10)));
    CHECK(!pthread_create(&thread, &attr, traffic, NULL));
    pthread_join(thread, NULL);
    puts("ok");
    return 0;
}
