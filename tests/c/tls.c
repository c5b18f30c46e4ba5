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

#include "rc_pair.h"

#ifndef TLS
#define TLS (1 << 20)
#endif

static __thread volatile char scratch[TLS];

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
    struct ibv_qp *a = new_qp(pd, cq, IBV_QPT_RC, 4), *b = new_qp(pd, cq, IBV_QPT_RC, 4);
    connect_both(a, b);
    char buf[128];
    struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    for (int round = 0; round < 100; round++) {
        struct ibv_sge to = {.addr = (uintptr_t)buf, .length = 64, .lkey = mr->lkey};
        struct ibv_sge from = {.addr = (uintptr_t)buf + 64, .length = 64, .lkey = mr->lkey};
        struct ibv_recv_wr recv = {.sg_list = &to, .num_sge = 1}, *bad_recv;
        struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
                                   .send_flags = IBV_SEND_SIGNALED}, *bad;
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
