// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Two threads post WRITEs to one queue pair, each with a place of its own, and poll one CQ. All
 * that completes is good, and as much as was posted.
 */
#include "rc_pair.h"

#include <pthread.h>
#include <stdatomic.h>

#define POSTS 1000

static struct ibv_qp *a, *b;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static char memory[8192];
static atomic_int slots = 8, done_count;

static void take(void)
{
    struct ibv_wc wc;
    int n = ibv_poll_cq(cq, 1, &wc);
    CHECK(n >= 0);
    if (n == 1) {
        CHECK(wc.status == IBV_WC_SUCCESS);
        atomic_fetch_add(&done_count, 1);
        atomic_fetch_add(&slots, 1);
    }
}

static void *work(void *at)
{
    struct ibv_sge sge = {(uintptr_t)at, 64, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {(uintptr_t)at + 4096, mr->rkey}},
                       *bad;
    for (int i = 0; i < POSTS; i++) {
        while (atomic_fetch_sub(&slots, 1) <= 0) {
            atomic_fetch_add(&slots, 1);
            take();
        }
        wr.wr_id = (uintptr_t)at + i;
        CHECK(ibv_post_send(a, &wr, &bad) == 0);
    }
    return NULL;
}

int main(void)
{
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    CHECK(pd && (cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE)));
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 8, .max_send_sge = 1}};
    CHECK((a = ibv_create_qp(pd, &init)) && (b = ibv_create_qp(pd, &init)));
    connect_both(a, b);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, work, memory) == 0);
    work(memory + 1024);
    CHECK(pthread_join(other, NULL) == 0);
    while (atomic_load(&done_count) < 2 * POSTS)
        take();
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_dereg_mr(mr) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
    puts("ok");
    return 0;
}
